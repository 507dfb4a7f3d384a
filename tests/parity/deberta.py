"""DeBERTa v2 and v3 against transformers: random weights at small sizes, samples of several lengths, token types.

cases(run) gives one dictionary a case: {"case", "error", "limit", "ok"}. `run(folder, case)` calls folder_run
(tests/kit/folder_run.c). By hand: deberta.py PATH/TO/folder_run
"""

import json
import os
import subprocess
import sys
import tempfile

try:
    import numpy
    import torch
    from transformers import DebertaV2Config, DebertaV2ForSequenceClassification
except ImportError as missing:
    print(f"skip: {missing}")
    sys.exit(77)

LENGTHS = [40, 9, 1, 27]  # the longest is T

COMMON = dict(
    vocab_size=97, hidden_size=48, num_hidden_layers=3, num_attention_heads=4, intermediate_size=80, type_vocab_size=0,
    max_position_embeddings=64, max_relative_positions=-1, position_buckets=16, relative_attention=True,
    share_att_key=True, position_biased_input=False, pos_att_type="p2c|c2p", norm_rel_ebd="layer_norm",
    layer_norm_eps=1e-7, pooler_dropout=0, pooler_hidden_act="gelu", hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0, num_labels=3, initializer_range=0.3)

KINDS = {
    "deberta-v3": {},
    "deberta-v3 without buckets": dict(position_buckets=-1, max_relative_positions=23),
    "deberta-v3 types": dict(type_vocab_size=2, num_labels=2),
    "deberta-v3 regression": dict(num_labels=1, problem_type="regression"),
    "deberta-v2": dict(conv_kernel_size=3, conv_act="gelu"),
    "deberta-v2 narrow embedding": dict(conv_kernel_size=5, conv_act="gelu", embedding_size=20, type_vocab_size=2),
}


def model_of(changes):
    """In double precision, with numbers that no layer norm or bias begins with."""
    torch.manual_seed(7)
    model = DebertaV2ForSequenceClassification(DebertaV2Config(**{**COMMON, **changes}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model.eval()


def batch_of(model, lengths):
    samples, T = len(lengths), max(lengths)
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(1, model.config.vocab_size, (samples, T), generator=generator)
    labels = torch.randint(0, model.config.num_labels, (samples,), generator=generator)
    if model.config.num_labels == 1:
        labels = 5 * torch.rand(samples, generator=generator)
    types = torch.randint(0, max(model.config.type_vocab_size, 1), (samples, T), generator=generator)
    mask = torch.arange(T)[None, :] < torch.tensor(lengths)[:, None]
    return dict(input_ids=tokens, labels=labels, token_type_ids=types, attention_mask=mask.long())


def write(folder, name, values):
    kind = "f32" if values.is_floating_point() else "i32"
    values.numpy().astype(numpy.float32 if kind == "f32" else numpy.int32).tofile(os.path.join(folder, f"{name}.{kind}"))


def case_write(folder, batch, lines):
    write(folder, "tokens", batch["input_ids"])
    numbers = batch["labels"].is_floating_point()
    write(folder, "scores" if numbers else "labels", batch["labels"])
    write(folder, "types", batch["token_type_ids"])
    write(folder, "lengths", batch["attention_mask"].sum(1))
    samples, T = batch["input_ids"].shape
    text = [f"samples {samples}", f"T {T}", f"task {'regression' if numbers else 'classification'}", "lengths 1",
            f"field tokens {T}", "numbers scores 1" if numbers else "field labels 1", f"field types {T}"]
    with open(os.path.join(folder, "case.txt"), "w") as file:
        file.write("\n".join(text + lines) + "\n")


def far(mine, reference):
    """Relative, by the Euclidean norm."""
    size = numpy.linalg.norm(reference)
    return float(numpy.linalg.norm(mine - reference) / size) if size else float(numpy.linalg.norm(mine))


def gradients_far(folder, model):
    """The worst tensor: its distance, or that of all to the largest one's size where its own is rounding alone."""
    worst, name_of = 0.0, ""
    largest = max(float(p.grad.norm()) for p in model.parameters())
    for name, parameter in model.named_parameters():
        reference = parameter.grad.numpy()
        path = os.path.join(folder, name + ".grad.f32")
        turned = not os.path.exists(path)
        if turned:
            path = os.path.join(folder, name + ".turned.f32")
        mine = numpy.fromfile(path, numpy.float32).astype(numpy.float64)
        mine = mine.reshape(reference.shape[::-1]).T if turned else mine.reshape(reference.shape)
        size = max(numpy.linalg.norm(reference), 1e-6 * largest)
        error = float(numpy.linalg.norm(mine - reference) / size)
        if not error <= worst:  # NaN is worst
            worst, name_of = error, name
    return worst, name_of


def measure(name, changes, lines, limits, run, lengths=LENGTHS):
    with tempfile.TemporaryDirectory() as folder:
        model = model_of(changes)
        model.save_pretrained(folder)
        batch = batch_of(model, lengths)
        case_write(folder, batch, lines)
        run(folder, folder)
        model = model.double()
        if model.config.num_labels == 1:
            batch["labels"] = batch["labels"].double()
        out = model(**batch)
        out.loss.backward()
        logits = numpy.fromfile(os.path.join(folder, "logits.f32"), numpy.float32).reshape(len(lengths), -1)
        loss = float(numpy.fromfile(os.path.join(folder, "loss.f64"))[0])
        worst, tensor = gradients_far(folder, model)
    errors = {"logits": far(logits, out.logits.detach().numpy()), "loss": abs(loss / float(out.loss) - 1),
              "gradients": worst}
    for what, error in errors.items():
        result = {"case": f"{name} {what}", "error": error, "limit": limits[what], "ok": error <= limits[what]}
        if what == "gradients":
            result["worst"] = tensor
        yield result


def cases(run):
    fp32 = {"logits": 1e-5, "loss": 1e-5, "gradients": 1e-4}
    for name, changes in KINDS.items():
        yield from measure(name, changes, [], fp32, run)
    published = dict(max_position_embeddings=512, position_buckets=256, num_hidden_layers=1)
    yield from measure("deberta-v3 512 tokens", published, [], fp32, run, [512, 300])
    yield from measure("deberta-v2 recompute", KINDS["deberta-v2"], ["recompute 1"], fp32, run)
    bf16 = {"logits": 2e-2, "loss": 1e-2, "gradients": 5e-2}
    fp16 = {"logits": 2e-3, "loss": 2e-3, "gradients": 1e-2}
    smaller = dict(KINDS["deberta-v2"], initializer_range=0.05)
    yield from measure("deberta-v2 bf16", smaller, ["precision bf16"], bf16, run)
    yield from measure("deberta-v2 fp16", smaller, ["precision fp16"], fp16, run)


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
