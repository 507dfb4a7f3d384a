"""Encoders, DeBERTa v2 and v3, ModernBERT, BERT, RoBERTa, XLM-R and EuroBERT: the cases of tests/parity, which say themselves what is compared and how near."""
import importlib.util
import pathlib
import subprocess
import sys

import kit

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "tests/parity"


def module_of(name):
    """tests/parity/NAME.py, under a name of its own: families have theirs here."""
    spec = importlib.util.spec_from_file_location(f"{name}_cases", FOLDER / f"{name}.py")
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compare(module, others, what):
    def run(place):
        def once(folder, case):
            made = subprocess.run([str(place.program), str(folder), str(case)], capture_output=True, text=True, check=False)
            if made.returncode != 0:
                raise kit.Failed((made.stderr.strip().splitlines() or ["folder_run failed"])[-1])

        for result in module.cases(once):
            yield f"parity {result['case']}", result["error"], "relative", result["limit"]

    run.names = [f"parity {kind} {each}" for kind in (*module.KINDS, *others) for each in what]
    return run


deberta, modernbert, bert = module_of("deberta"), module_of("modernbert"), module_of("bert")
CASES = [compare(deberta, ("deberta-v3 512 tokens", "deberta-v2 recompute", "deberta-v2 bf16", "deberta-v2 fp16"),
                 ("logits", "loss", "gradients")),
         compare(modernbert, ("modernbert 300 tokens", "modernbert recompute", "modernbert bf16", "modernbert fp16"),
                 ("logits", "loss", "gradients", "export")),
         compare(bert, bert.OTHERS, ("logits", "loss", "gradients", "export"))]
