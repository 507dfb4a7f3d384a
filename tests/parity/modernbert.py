"""ModernBERT against transformers: random weights at small sizes, samples of several lengths, windows within the sample.

cases(run) and folder_run as in deberta.py beside this file. By hand: modernbert.py PATH/TO/folder_run
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy
import torch
from transformers import ModernBertConfig, ModernBertForSequenceClassification

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import deberta  # noqa: E402

LENGTHS = [40, 9, 1, 27]  # the longest is T

COMMON = dict(
    vocab_size=97, hidden_size=48, num_hidden_layers=4, num_attention_heads=4, intermediate_size=72, max_position_embeddings=64,
    local_attention=12, global_attn_every_n_layers=3, pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2,
    num_labels=3, initializer_range=0.3)
THETAS = dict(rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": 5000.0},
                               "sliding_attention": {"rope_type": "default", "rope_theta": 100.0}})
FIRST = {"layer_types": ["full_attention", "full_attention", "sliding_attention", "sliding_attention"]}

KINDS = {
    "modernbert": {},
    "modernbert mean": dict(classifier_pooling="mean", num_labels=2, **THETAS),
    "modernbert regression": dict(num_labels=1, problem_type="regression", local_attention=40),
    "modernbert layers": dict(local_attention=4, classifier_pooling="mean", **FIRST),
}


def model_of(changes):
    """With numbers that no norm begins with. Attention of transformers' plain form gives NaN in rows of padding that see no key."""
    torch.manual_seed(7)
    model = ModernBertForSequenceClassification._from_config(
        ModernBertConfig(**{**COMMON, **changes}), attn_implementation="sdpa")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model.float().eval()


def logits_of(folder, batch):
    again = ModernBertForSequenceClassification.from_pretrained(folder, attn_implementation="sdpa").double().eval()
    with torch.no_grad():
        return again(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits.numpy()


def measure(name, changes, lines, limits, run, lengths=LENGTHS):
    model = model_of(changes)
    batch = deberta.batch_of(types_of(model), lengths)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        deberta.case_write(folder, batch, [*lines, "export 1"])
        run(folder, folder)
        model = model.double()
        del batch["token_type_ids"]
        if model.config.num_labels == 1:
            batch["labels"] = batch["labels"].double()
        out = model(**batch)
        out.loss.backward()
        logits = numpy.fromfile(os.path.join(folder, "logits.f32"), numpy.float32).reshape(len(lengths), -1)
        loss = float(numpy.fromfile(os.path.join(folder, "loss.f64"))[0])
        worst, tensor = deberta.gradients_far(folder, model)
        reference = out.logits.detach().numpy()
        errors = {"logits": deberta.far(logits, reference), "loss": abs(loss / out.loss.item() - 1), "gradients": worst,
                  "export": deberta.far(logits_of(os.path.join(folder, "export"), batch), reference)}
    for what, error in errors.items():
        result = {"case": f"{name} {what}", "error": error, "limit": limits[what], "ok": bool(error <= limits[what])}
        if what == "gradients":
            result["worst"] = tensor
        yield result


def types_of(model):
    """deberta.batch_of asks for it."""
    model.config.type_vocab_size = 0
    return model


def cases(run):
    fp32 = {"logits": 1e-5, "loss": 1e-5, "gradients": 1e-4, "export": 1e-6}
    bf16 = {"logits": 2e-2, "loss": 1e-2, "gradients": 6e-2, "export": 1e-6}
    fp16 = {"logits": 2e-3, "loss": 2e-3, "gradients": 1e-2, "export": 1e-6}
    for name, changes in KINDS.items():
        yield from measure(name, changes, [], fp32, run)
    published = dict(local_attention=128, max_position_embeddings=8192, num_hidden_layers=2)
    yield from measure("modernbert 300 tokens", published, [], fp32, run, [300, 190])
    yield from measure("modernbert recompute", {}, ["recompute 1"], fp32, run)
    yield from measure("modernbert bf16", dict(initializer_range=0.05), ["precision bf16"], bf16, run)
    yield from measure("modernbert fp16", dict(initializer_range=0.05), ["precision fp16"], fp16, run)


def main():
    def run(folder, case):
        subprocess.run([sys.argv[1], folder, case], check=True)

    failed = 0
    for result in cases(run):
        print(json.dumps(result), flush=True)
        failed += not result["ok"]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
