"""BERT, RoBERTa, XLM-R and EuroBERT against transformers: random weights at small sizes, samples of several lengths, token types.

cases(run) and folder_run as in deberta.py beside this file. By hand: bert.py PATH/TO/folder_run
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy
import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import deberta  # noqa: E402

LENGTHS = [40, 9, 1, 27]  # the longest is T

COMMON = dict(
    vocab_size=97, hidden_size=48, num_hidden_layers=3, num_attention_heads=4, intermediate_size=80, max_position_embeddings=64,
    hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=3, initializer_range=0.3)

EURO = dict(num_key_value_heads=2, pad_token_id=0, bos_token_id=1, eos_token_id=2, mask_token_id=3,
            rope_parameters={"rope_type": "default", "rope_theta": 5000.0})

KINDS = {
    "bert": ("Bert", {}),
    "bert odd heads": ("Bert", dict(hidden_size=36, type_vocab_size=3, num_labels=2)),
    "bert regression": ("Bert", dict(num_labels=1, problem_type="regression")),
    "roberta": ("Roberta", {}),
    "roberta padding 4": ("Roberta", dict(pad_token_id=4, type_vocab_size=1, num_labels=2)),
    "xlm-roberta": ("XLMRoberta", dict(type_vocab_size=1)),
    "eurobert late": ("EuroBert", dict(EURO)),
    "eurobert mean": ("EuroBert", dict(EURO, classifier_pooling="mean", attention_bias=True, mlp_bias=True, num_labels=2)),
    "eurobert bos": ("EuroBert", dict(EURO, classifier_pooling="bos", head_dim=16, num_labels=1, problem_type="regression")),
}


def model_of(family, changes):
    """With numbers that no norm or bias begins with."""
    torch.manual_seed(7)
    config = getattr(transformers, f"{family}Config")(**{**COMMON, **changes})
    model = getattr(transformers, f"{family}ForSequenceClassification")._from_config(config, attn_implementation="sdpa")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model.float().eval()


def batch_of(model, lengths):
    """As deberta's. RoBERTa counts positions of what is not padding: ids of real tokens are others, and padding has its own."""
    types = getattr(model.config, "type_vocab_size", None)
    model.config.type_vocab_size = types or 0
    batch = deberta.batch_of(model, lengths)
    pad = model.config.pad_token_id or 0
    batch["input_ids"].clamp_(min=pad + 1)
    batch["input_ids"][batch["attention_mask"] == 0] = pad
    if not types:
        del model.config.type_vocab_size
    return batch, bool(types)


def measure(name, kind, lines, limits, run, lengths=LENGTHS):
    model = model_of(*kind)
    batch, typed = batch_of(model, lengths)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        deberta.case_write(folder, batch, [*lines, "export 1"])
        run(folder, folder)
        model = model.double()
        if not typed:
            del batch["token_type_ids"]
        if model.config.num_labels == 1:
            batch["labels"] = batch["labels"].double()
        out = model(**batch)
        out.loss.backward()
        logits = numpy.fromfile(os.path.join(folder, "logits.f32"), numpy.float32).reshape(len(lengths), -1)
        loss = float(numpy.fromfile(os.path.join(folder, "loss.f64"))[0])
        worst, tensor = gradients_far(folder, model)
        reference = out.logits.detach().numpy()
        again = type(model).from_pretrained(os.path.join(folder, "export"), attn_implementation="sdpa").double().eval()
        labels = batch.pop("labels")
        del labels
        with torch.no_grad():
            exported = again(**batch).logits.numpy()
    errors = {"logits": deberta.far(logits, reference), "loss": abs(loss / out.loss.item() - 1), "gradients": worst,
              "export": deberta.far(exported, reference)}
    for what, error in errors.items():
        result = {"case": f"{name} {what}", "error": error, "limit": limits[what], "ok": bool(error <= limits[what])}
        if what == "gradients":
            result["worst"] = tensor
        yield result


def gradients_far(folder, model):
    """The worst tensor, as deberta's. Biases of keys move all scores of a query alike: what rounding leaves of their gradients is measured
    against the gradients of biases of values."""
    parameters = dict(model.named_parameters())
    worst, name_of = 0.0, ""
    largest = max(float(p.grad.norm()) for p in parameters.values())
    for name, parameter in parameters.items():
        reference = parameter.grad.numpy()
        turned = not (path := pathlib.Path(folder, name + ".grad.f32")).exists()
        mine = numpy.fromfile(pathlib.Path(folder, name + ".turned.f32") if turned else path, numpy.float32).astype(numpy.float64)
        mine = mine.reshape(reference.shape[::-1]).T if turned else mine.reshape(reference.shape)
        values = name.replace("self.key.bias", "self.value.bias").replace("k_proj.bias", "v_proj.bias")
        error = float(numpy.linalg.norm(mine - reference) / max(float(parameters[values].grad.norm()), 1e-6 * largest))
        if not error <= worst:  # NaN is worst
            worst, name_of = error, name
    return worst, name_of


OTHERS = ("bert 300 tokens", "bert recompute", "bert bf16", "bert fp16", "eurobert recompute", "eurobert bf16")


def cases(run):
    fp32 = {"logits": 1e-5, "loss": 1e-5, "gradients": 1e-4, "export": 1e-6}
    bf16 = {"logits": 2e-2, "loss": 1e-2, "gradients": 6e-2, "export": 1e-6}
    fp16 = {"logits": 2e-3, "loss": 2e-3, "gradients": 1e-2, "export": 1e-6}
    for name, kind in KINDS.items():
        yield from measure(name, kind, [], fp32, run)
    published = ("Bert", dict(max_position_embeddings=512, num_hidden_layers=1))
    yield from measure("bert 300 tokens", published, [], fp32, run, [300, 190])
    yield from measure("bert recompute", ("Bert", {}), ["recompute 1"], fp32, run)
    yield from measure("bert bf16", ("Bert", dict(initializer_range=0.05)), ["precision bf16"], bf16, run)
    yield from measure("eurobert recompute", KINDS["eurobert late"], ["recompute 1"], fp32, run)
    yield from measure("eurobert bf16", ("EuroBert", dict(EURO, initializer_range=0.05)), ["precision bf16"], bf16, run)
    yield from measure("bert fp16", ("Bert", dict(initializer_range=0.05)), ["precision fp16"], fp16, run)


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
