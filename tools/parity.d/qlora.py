"""QLoRA: `train.frozen_store: nf4` beside transformers, bitsandbytes and PEFT, each in single precision on a CPU.

The base is quantized by both from the same folder, the adapters are the same, and both train 50 steps of AdamW on the same samples.
Compared are the bits of the frozen weights, and the losses. Without bitsandbytes, which is not in requirements.txt, the cases are
left out and say so: pip install bitsandbytes==0.50.2 into the environment.
"""
import importlib.util
import json
import subprocess
import sys

import kit
import peft
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaConfig

STEPS, BATCH, T, LR = 50, 4, 32, 2e-3
CONFIG = LlamaConfig(vocab_size=307, hidden_size=128, intermediate_size=192, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
                     max_position_embeddings=64, initializer_range=0.08)


def text():
    words = ["the", "stage", "sends", "what", "changed", "over", "a", "slow", "link", "and", "keeps", "samples"]
    generator = torch.Generator().manual_seed(4)
    out = ""
    while len(out) <= STEPS * BATCH * T:
        out += words[int(torch.randint(0, len(words), (1,), generator=generator))] + " "
    return out[:STEPS * BATCH * T + 1]


def theirs(case, double):
    """The losses of each step, and the frozen weights as bitsandbytes unpacks them."""
    import bitsandbytes.functional as bnb
    four = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=double, bnb_4bit_compute_dtype=torch.float32)
    model = AutoModelForCausalLM.from_pretrained(case / "base", quantization_config=four, dtype=torch.float32, device_map="cpu", attn_implementation="eager")
    weights = {name: bnb.dequantize_4bit(p.data, p.quant_state) for name, p in model.named_parameters() if type(p).__name__ == "Params4bit"}
    model = peft.PeftModel.from_pretrained(model, case / "adapter", is_trainable=True).train()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=LR, weight_decay=0.0)
    tokens = torch.tensor(list(text().encode()))
    losses = []
    for step in range(STEPS):
        at = step * BATCH * T
        x, y = tokens[at:at + BATCH * T].reshape(BATCH, T), tokens[at + 1:at + BATCH * T + 1].reshape(BATCH, T)
        loss = torch.nn.functional.cross_entropy(model(x).logits.flatten(0, 1), y.flatten())
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses, weights


def ours(place, case, store):
    job = {"job": {"name": store}, "model": {"weights": "base"}, "lora": {"weights": "adapter"},
           "train": {"T": T, "batch": BATCH, "micro_batch": BATCH, "epochs": 1, "lr": LR, "lr_min": LR, "weight_decay": 0, "clip": 0,
                     "shuffle": False, "frozen_store": store},
           "data": {"train": "text.txt", "tokenizer": "bytes"}, "pipeline": {"stages": 1, "threads": 1}, "cache": {"kind": "memory"},
           "output": {"path": store}}
    path = case / f"{store}.yaml"
    path.write_text(json.dumps(job))
    run = subprocess.run([str(place.program.parent / "aqpipe"), "launch", str(path)], capture_output=True, text=True, check=False)
    if run.returncode != 0:
        raise kit.Failed((run.stderr.strip().splitlines() or [f"aqpipe launch: {run.returncode}"])[-1])
    lines = [json.loads(line) for line in (case / store / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if line.get("event") == "step"]


def apart(case, store, weights):
    """How many frozen values have other bits than bitsandbytes'."""
    wrong = 0
    with safe_open(case / store / "checkpoint" / "frozen-stage-0.safetensors", "pt") as file:
        for name, value in weights.items():
            wrong += int((file.get_tensor(name.removeprefix("model.")).view(torch.int32) != value.view(torch.int32)).sum())
    return wrong


def qlora(store, double):
    names = [f"parity qlora {store} values apart", f"parity qlora {store} loss of step 1", f"parity qlora {store} loss of step {STEPS}",
             f"parity qlora {store} largest of {STEPS} steps"]

    def run(place):
        if importlib.util.find_spec("bitsandbytes") is None:
            print(f"{names[0]}: skipped: the environment has no bitsandbytes: pip install bitsandbytes==0.50.2", file=sys.stderr)
            return
        case = place.folder(store)
        torch.manual_seed(7)
        torch.set_num_threads(1)
        model = AutoModelForCausalLM.from_config(CONFIG, attn_implementation="eager").float()
        kit.shake(model, 7)
        model.save_pretrained(case / "base")
        lora = peft.LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj", "down_proj"])
        peft.get_peft_model(model, lora).save_pretrained(case / "adapter")
        (case / "text.txt").write_text(text())
        (reference, weights), mine = theirs(case, double), ours(place, case, store)
        if len(mine) != STEPS or not weights:
            raise kit.Failed(f"{len(mine)} steps, {len(weights)} weights")
        off = [abs(a - b) for a, b in zip(mine, reference, strict=True)]
        for name, value, unit, limit in zip(names, (apart(case, store, weights), off[0], off[-1], max(off)),
                                            ("values", "nats", "nats", "nats"), (0, 1e-5, 1e-3, 1e-3)):
            yield name, value, unit, limit
        print(f"parity qlora {store}: losses {reference[0]:.4f} to {reference[-1]:.4f}", file=sys.stderr)

    run.names = names
    return run


CASES = [qlora("nf4", False), qlora("nf4_double", True)]
