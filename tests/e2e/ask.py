"""Models that are asked: `aqpipe generate` writes what it wrote before, `aqpipe eval` says what the run's last evaluation said."""
import json
import re
import shutil
import subprocess

from jobs import BIN, aqpipe, check, launch, manifest, metrics
from deberta import job as deberta_job
from kit import ROOT
from tables import job as table_job, table


def answer(command, *arguments):
    done = aqpipe(command, *arguments, "--json")
    check(done.returncode == 0, f"{command} {arguments}: {done.stderr}")
    return json.loads(done.stdout)


def wrong(pattern, code, command, *arguments):
    done = aqpipe(command, *arguments)
    lines = done.stderr.strip().splitlines()
    check(done.returncode == code and re.search(pattern, done.stderr) and len(lines) == 1 and not done.stdout,
          f"{command} {arguments}: exit {done.returncode}, wanted {code} and /{pattern}/ in one line:\n{done.stderr}{done.stdout}")


def same_figures(got, name, *more):
    last = metrics(name, "eval")[-1]
    for key in ("loss", "targets", *more):
        check(got[key] == last[key], f"{name}: {key} is {got[key]}, the run's last evaluation says {last[key]}")


def scenario_eval():
    """A run's figures again bit for bit, from its folder and from what export writes; other data; every refusal in a line."""
    launch(manifest("run"))
    same_figures(answer("eval", ROOT / "run"), "run", "perplexity")
    coded, last = answer("eval", ROOT / "run", "--codec", "on"), metrics("run", "eval")[-1]
    check(coded["codec"].startswith("on, ") and coded["loss"] == last["loss_coded"] != last["loss"], f"codec on: {coded}, {last}")
    heldout = json.loads((ROOT / "run" / "report.json").read_text())["runs"][0]["heldout"]
    check(all(abs(heldout[key] - last[key]) < 1e-7 for key in ("loss", "loss_coded")), f"report: {heldout}")
    done = aqpipe("export", ROOT / "run", ROOT / "model")
    check(done.returncode == 0, done.stderr)
    own = ("--data", ROOT / "heldout.txt", "--T", 32, "--batch", 2, "--tokenizer", "bytes")
    same_figures(answer("eval", ROOT / "model", *own, "--samples", 5), "run", "perplexity")
    all_of_it = answer("eval", ROOT / "run", "--data", ROOT / "heldout.txt")
    check(all_of_it["samples"] > 5 and all_of_it["targets"] == 32 * all_of_it["samples"], f"all samples: {all_of_it}")
    text = aqpipe("eval", ROOT / "run")
    check(text.stdout.startswith(f"loss {metrics('run', 'eval')[-1]['loss']:.6f}, perplexity "), text.stdout)

    table("train.tsv", 3, 22)
    table("heldout.tsv", 4, 9)
    launch(table_job("rows"))
    same_figures(answer("eval", ROOT / "rows"), "rows", "accuracy", "matthews")
    columns = ("--data", ROOT / "heldout.tsv", "--T", 32, "--tokenizer", "bytes", "--text-column", "words", "--label-column", "kind",
               "--labels", "short, long")
    done = aqpipe("export", ROOT / "rows", ROOT / "classifier")
    same_figures(answer("eval", ROOT / "classifier", *columns, "--batch", 2), "rows", "accuracy", "matthews")

    launch(deberta_job("encoder", **{"pipeline.stages": 1, "model.precision": "bf16"}))
    same_figures(answer("eval", ROOT / "encoder"), "encoder", "accuracy")
    lines = [json.dumps({"prompt": f"say {word} ", "response": word}) for word in "pipeline edge disk link sample sum".split()]
    (ROOT / "talk.jsonl").write_text("\n".join(lines) + "\n")
    launch(manifest("talk", **{"data.kind": "instruct", "data.train": ROOT / "talk.jsonl", "data.heldout": ROOT / "talk.jsonl",
                               "data.train_samples_max": 0, "data.pack": "false", "train.batch": 2}))
    same_figures(answer("eval", ROOT / "talk"), "talk", "perplexity")

    wrong(r"--codec on: .*model is not a run's folder", 2, "eval", ROOT / "model", *own, "--codec", "on")
    wrong(r"--codec on: .*encoder was one stage", 2, "eval", ROOT / "encoder", "--codec", "on")
    wrong(r"there is no such folder", 2, "eval", ROOT / "none", *own)
    wrong(r"has no held-out data; pass --data FILE", 2, "eval", ROOT / "model", "--tokenizer", "bytes")
    wrong(r"has no tokenizer that is read here: name one", 2, "eval", ROOT / "model", "--data", ROOT / "heldout.txt")
    wrong(r"--T 33 is more than the context of .*, 32", 2, "eval", ROOT / "run", "--T", 33)
    wrong(r"there is no task 'summaries'", 2, "eval", ROOT / "run", "--task", "summaries")
    wrong(r"there is no kind of data 'prose'", 2, "eval", ROOT / "run", "--kind", "prose")
    wrong(r"has no score\.weight: it was not trained for this task", 2, "eval", ROOT / "model", *columns, "--kind", "tsv")
    wrong(r"is a GPT2ForSequenceClassification, and this task is of every token", 2, "eval", ROOT / "classifier", *own)
    wrong(r"there is no option '--dat.*did you mean|there is no option", 2, "eval", ROOT / "run", "--dta", "x")
    wrong(r"eval needs one model folder", 2, "eval")
    wrong(r"needs one model folder", 2, "init", "--data", ROOT / "x")
    shutil.copytree(ROOT / "run", ROOT / "going")
    (ROOT / "going" / "config.json").unlink()
    wrong(r"has no model yet: a run writes one at its end; `aqpipe export ", 2, "eval", ROOT / "going")


def scenario_generate():
    """Greedy text is one whatever the seed, draws are those of the seed; stop words, context and end; every refusal in a line."""
    launch(manifest("run", **{"model.context": 48}))
    run, prompt = ROOT / "run", ("--prompt", "the pipeline ")
    greedy = answer("generate", run, *prompt, "--tokens", 24)
    check(greedy["tokens"] == 24 == len(greedy["ids"]) and greedy["prompt_tokens"] == 13 and greedy["ended"] == "tokens" and
          greedy["tokens_per_second"] > 0, f"{greedy}")
    check(greedy["text"] == bytes(greedy["ids"]).decode(errors="replace"), "the text is not that of the ids")
    for other in (("--seed", 5), ("--threads", 1), ("--temperature", 0), ("--temperature", 1, "--top-k", 1)):
        again = answer("generate", run, *prompt, "--tokens", 24, *other)
        check(again["ids"] == greedy["ids"], f"{other}: {again}")
    coded = answer("generate", run, *prompt, "--tokens", 24, "--codec", "on")
    check(greedy["codec"] == "off" and coded["codec"].startswith("on, ") and coded["cache"] and len(coded["ids"]) == 24,
          f"codec on: {coded}")
    plain = aqpipe("generate", run, *prompt, "--tokens", 24)
    check(plain.stdout == greedy["text"] + "\n" and not plain.stderr, f"as text: {plain}")
    piped = subprocess.run([BIN / "aqpipe", "generate", run, "--tokens", "24"], input=b"the pipeline \n", capture_output=True)
    check(piped.stdout == plain.stdout.encode(), f"from standard input: {piped}")

    draws = [answer("generate", run, *prompt, "--temperature", 2, "--tokens", 24, "--seed", seed)["ids"] for seed in (1, 1, 2)]
    check(draws[0] == draws[1] != draws[2], f"draws: {draws}")
    word = greedy["text"][5:8]
    stopped = answer("generate", run, *prompt, "--tokens", 24, "--stop", "\x01never", "--stop", word)
    check(stopped["ended"] == "stop" and stopped["text"] == greedy["text"][:greedy["text"].index(word)], f"{stopped}")
    full = answer("generate", run, *prompt, "--tokens", 1000)
    check(full["ended"] == "context" and full["tokens"] == 48 - 13 + 1 and full["ids"][:24] == greedy["ids"], f"{full}")

    model = ROOT / "model"
    done = aqpipe("export", run, model)
    check(answer("generate", model, *prompt, "--tokens", 24, "--tokenizer", "bytes")["ids"] == greedy["ids"], f"exported: {done}")
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": [300, greedy["ids"][4]], "bos_token_id": 32}))
    at = greedy["ids"].index(greedy["ids"][4])
    ended = answer("generate", model, *prompt, "--tokenizer", "bytes")
    check(ended["ended"] == "end" and ended["ids"] == greedy["ids"][:at + 1] and ended["tokens"] == at + 1 and
          len(ended["text"]) == at, f"{ended}")
    check(answer("generate", model, "--prompt", "", "--tokenizer", "bytes", "--tokens", 4)["prompt_tokens"] == 1, "empty prompt")
    generate_refusals(run, model)


def generate_refusals(run, model):
    wrong(r"there is no such folder", 2, "generate", ROOT / "none", "--prompt", "x")
    wrong(r"the prompt has 49 tokens, the context of .*run has 48", 2, "generate", run, "--prompt", "x" * 49)
    wrong(r"the prompt is empty, and .* names no token to start with", 2, "generate", run, "--prompt", "")
    wrong(r"has no tokenizer that is read here", 2, "generate", model, "--prompt", "x")
    wrong(r"nor a chat_template", 2, "generate", run, "--chat", "hello")
    wrong(r"there is no option '--promt'", 2, "generate", run, "--promt", "x")
    wrong(r"use --prompt or --chat, not both", 2, "generate", run, "--prompt", "x", "--chat", "y")
    wrong(r"pass --temperature, too", 2, "generate", run, "--prompt", "x", "--top-k", 4)
    wrong(r"--top-p: '2' is not a number", 2, "generate", run, "--prompt", "x", "--temperature", 2, "--top-p", 2)
    wrong(r"generate needs one model folder", 2, "generate", "--prompt", "x")
    (model / "generation_config.json").write_text('{"eos_token_id": "</s>"}')
    wrong(r'generation_config\.json: eos_token_id: found "</s>", expected a token', 2, "generate", model, "--prompt", "x",
          "--tokenizer", "bytes")
    (model / "generation_config.json").write_text("{")
    wrong(r"generation_config\.json:1:", 2, "generate", model, "--prompt", "x", "--tokenizer", "bytes")
    table("train.tsv", 3, 22)
    table("heldout.tsv", 4, 9)
    launch(table_job("rows", **{"train.steps_max": 1}))
    wrong(r"is a GPT2ForSequenceClassification, which writes no text", 2, "generate", ROOT / "rows", "--prompt", "x")
