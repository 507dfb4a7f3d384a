"""Tokenizers: ids and texts of aqpipe and of the package `tokenizers`, by tests/test_tokenizer_reference, which says what is compared."""
import json
import pathlib
import subprocess
import sys

import kit

TEST = pathlib.Path(__file__).resolve().parents[2] / "tests/test_tokenizer_reference"
FAMILIES = ("gpt2", "llama3", "qwen", "smollm2", "o200k", "modernbert", "roberta", "every-step", "gemma", "llama2",
            "xlm-roberta", "deberta-v3-saved", "t5", "albert", "unigram-bytes", "unigram-whole", "minilm", "bert-cased", "bert-plain", "word-level", "scripts", "delimiters")


def compare(place):
    """Texts, of 1,000, whose ids differ: none may. GPT-2's published files are compared, too, where the shared data is."""
    run = subprocess.run([sys.executable, "-B", str(TEST), str(place.program.parent)], capture_output=True, text=True, check=False)
    lines = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    missing = {f"tokenizer {name}" for name in FAMILIES} - {line["case"] for line in lines}
    if missing:
        raise kit.Failed(f"no comparison of {sorted(missing)}: {(run.stderr.strip().splitlines() or ['nothing is said'])[-1]}")
    for line in lines:
        yield f"parity {line['case']}", line["value"], line["unit"], 0


compare.long = True  # test_tokenizer_reference runs by itself where the short form does
compare.names = [f"parity tokenizer {name}" for name in FAMILIES]
CASES = [compare]
