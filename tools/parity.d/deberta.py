"""DeBERTa v2 and v3: the cases of tests/parity/deberta.py, which say themselves what is compared and how near."""
import importlib.util
import pathlib
import subprocess

import kit

PATH = pathlib.Path(__file__).resolve().parents[2] / "tests/parity/deberta.py"
spec = importlib.util.spec_from_file_location("deberta_cases", PATH)
deberta = importlib.util.module_from_spec(spec)
spec.loader.exec_module(deberta)


def compare(place):
    def once(folder, case):
        run = subprocess.run([str(place.program), str(folder), str(case)], capture_output=True, text=True, check=False)
        if run.returncode != 0:
            raise kit.Failed((run.stderr.strip().splitlines() or ["folder_run failed"])[-1])

    for result in deberta.cases(once):
        yield f"parity {result['case']}", result["error"], "relative", result["limit"]


OTHERS = ("deberta-v3 512 tokens", "deberta-v2 recompute", "deberta-v2 bf16", "deberta-v2 fp16")
compare.names = [f"parity {kind} {what}" for kind in (*deberta.KINDS, *OTHERS) for what in ("logits", "loss", "gradients")]
CASES = [compare]
