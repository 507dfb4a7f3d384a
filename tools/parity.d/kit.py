"""kit.py: what families share: models with random weights, ours beside PyTorch's, distances."""
import pathlib
import subprocess

import torch
import transformers

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


class Failed(Exception):
    """One line: what did not work."""


class Place:
    """A folder of one case, and the program that computes ours."""

    def __init__(self, path, program):
        self.path, self.program = path, pathlib.Path(program)
        path.mkdir(parents=True)

    def folder(self, name):
        path = self.path / name
        path.mkdir(parents=True)
        return path

    def adapted(self, model, case, **words):
        """Runs folder_run (tests/kit) on a published folder: logits, the loss, gradients by name."""
        lines = [f"{name} {value}" for name, value in words.items()]
        (case / "case.txt").write_text((case / "case.txt").read_text() + "\n".join(lines) + "\n")
        run = subprocess.run([str(self.program), str(model), str(case)], capture_output=True, text=True, check=False)
        if run.returncode != 0:
            raise Failed(run.stderr.strip().splitlines()[-1] if run.stderr.strip() else f"folder_run: {run.returncode}")
        gradients = {path.name[:-len(".grad.f32")]: values(path) for path in case.glob("*.grad.f32")}
        return values(case / "logits.f32"), float(values(case / "loss.f64", "float64")), gradients

    def ours(self, model, case, shapes, **words):
        """The same, of a model that trains whole. shapes: of the gradients."""
        found = self.adapted(model, case, **words)
        missing = set(found[2]) ^ set(shapes)
        if missing:
            raise Failed(f"gradients of one side alone: {sorted(missing)[:3]}")
        return found


def values(path, kind="float32"):
    return torch.frombuffer(bytearray(path.read_bytes()), dtype=getattr(torch, kind))


def distance(mine, reference):
    """Euclidean, relative to the reference."""
    mine, reference = mine.double().flatten(), reference.double().flatten()
    return float((mine - reference).norm() / reference.norm().clamp_min(1e-30))


def shake(model, seed):
    """Biases and norms begin as zeroes and ones: numbers at random show whether they are used."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            scale = 0.2 if parameter.dim() == 1 else 0.05
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator))


def batch_write(case, **fields):
    """case.txt and NAME.i32 of the batch, as folder_run takes them; all fields of as many samples, T of the first."""
    first = next(iter(fields.values()))
    lines = [f"samples {first.shape[0]}", f"T {first.shape[1]}"]
    for name, field in fields.items():
        field.to(torch.int32).numpy().tofile(case / f"{name}.i32")
        lines.append(f"field {name} {field[0].numel()}")
    (case / "case.txt").write_text("\n".join(lines) + "\n")


def batch_of(vocabulary, samples, T, seed):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, vocabulary, (samples, T), generator=generator)
    targets = torch.randint(0, vocabulary, (samples, T), generator=generator)
    targets[0, T // 2] = -1
    return tokens, targets


def reference_of(model, tokens, targets):
    """Logits, the mean loss, gradients by name: PyTorch in single precision, attention in its plain form."""
    model.eval()
    model.zero_grad()
    logits = model(tokens).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=-1)
    loss.backward()
    return logits.detach(), float(loss.detach()), {n: p.grad.detach() for n, p in model.named_parameters() if p.grad is not None}


def worst_gradient(mine, theirs, keys_vanish=False):
    """The largest distance of a tensor.

    keys_vanish: softmax ignores what is added to all keys, so the true gradient of a bias of keys is nearly 0 in a block with rotary
    embedding, and 0 in one without. Its error is measured against the gradient of the bias of values, which has the same scale."""
    def one(name):
        like = name.replace("k_proj.bias", "v_proj.bias") if keys_vanish else name
        return distance(mine[name], theirs[name]) * float(theirs[name].double().norm() / theirs[like].double().norm().clamp_min(1e-30))
    return max(one(name) for name in theirs)


def language_model(family, configs, samples=3, T=21, precisions=("fp32", "bf16"), bf16_gradients=6e-2, keys_vanish=False):
    """
    A case of a family of decoders: `configs()` gives its configurations, each a transformers config; what is told is the worst of
    them. In bf16 ours is compared with PyTorch's single precision: 8 bits of mantissa in a dozen products one after another.
    """
    limits = {"logits": 1e-5, "loss": 1e-6, "gradients": 1e-4, "export": 1e-6}
    if "bf16" in precisions:
        limits.update({"logits bf16": 2e-2, "gradients bf16": bf16_gradients})
    limits = {f"parity {family} {what}": limit for what, limit in limits.items()}

    def run(place):
        worst = dict.fromkeys(limits, 0.0)
        for number, config in enumerate(configs()):
            torch.manual_seed(number)
            model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float()
            shake(model, number)
            folder = place.folder(f"{family}-{number}")
            model.save_pretrained(folder)
            tokens, targets = batch_of(config.vocab_size, samples, T, number)
            logits, loss, gradients = reference_of(model, tokens, targets)
            for precision in precisions:
                case = place.folder(f"{family}-{number}-{precision}")
                batch_write(case, tokens=tokens, targets=targets)
                mine = place.ours(folder, case, gradients, task="language_model", precision=precision, export=1)
                end = "" if precision == "fp32" else f" {precision}"
                found = {f"parity {family} logits{end}": distance(mine[0], logits),
                         f"parity {family} gradients{end}": worst_gradient(mine[2], gradients, keys_vanish or precision != "fp32")}
                if precision == "fp32":
                    found[f"parity {family} loss"] = abs(mine[1] - loss) / abs(loss)
                    again = transformers.AutoModelForCausalLM.from_pretrained(case / "export", attn_implementation="eager")
                    with torch.no_grad():
                        found[f"parity {family} export"] = distance(again.eval()(tokens).logits, logits)
                for name, value in found.items():
                    worst[name] = max(worst[name], value)
        for name, limit in limits.items():
            yield name, worst[name], "relative", limit

    run.names = list(limits)
    return run
