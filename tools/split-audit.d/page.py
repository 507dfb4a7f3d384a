"""A page for an ethics board: what leaves the site, what limits it, and what was measured, from the manifest of the captured run and the attacks' figures.

RUN/manifest.yaml is canonical: it has all keys.
"""
import datetime
import hashlib
import pathlib
import sys

QUESTIONS = {
    "label-norm": "Can the server sort samples by their label, by how large their gradients are?",
    "label-cosine": "Can the server sort samples by their label, by the direction of their gradients?",
    "label-zeros": "Can the server sort samples by their label, by the zeroes in their gradients?",
    "inversion": "Can the server draw the image, from its activation?",
    "nearest-token": "Can the server read the words, by the table of embeddings?",
    "nearest-layer": "Can the server read the words, by the known first layers?",
    "token-decoder": "Can the server read the words, if it knows other texts with their activations?",
    "learned-decoder": "Can the server read the words, by a network trained on public text?",
    "padding-zeros": "Can the server find out how long a padded text is, by rows of zeroes in its gradients?",
    "membership": "Can the server find out that it was sent a text or image that it has?",
    "membership-loss": "Can whoever has the trained model find out that a text was trained on?"}
ANSWERS = {"leaks": "**yes**", "not found": "not by this attack", "void": "unknown: a control failed"}


def manifest_of(audit, run):
    try:
        import yaml
    except ImportError:
        print("split-audit: --page needs the package yaml (python3-yaml), which is not there", file=sys.stderr)
        sys.exit(77)
    path = pathlib.Path(run) / "manifest.yaml"
    try:
        return path, yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        audit.fail(f"{path}: the run's manifest cannot be read: {str(error).splitlines()[0]}")
    return path, {}


class Manifest:
    """of(key): its value, as `split.privacy.clip`."""

    def __init__(self, audit, run):
        self.audit = audit
        self.path, self.keys = manifest_of(audit, run)

    def of(self, key):
        at = self.keys
        for part in key.split("."):
            at = at.get(part) if isinstance(at, dict) else None
        if at is None:
            self.audit.fail(f"{self.path}: has no {key}: it is no manifest of a turn of split learning, or of another version")
        return at

    def number(self, key):
        """A manifest has 5e-05, which YAML's reader takes for a text."""
        try:
            return float(self.of(key))
        except (TypeError, ValueError):
            self.audit.fail(f"{self.path}: {key} is no number")
        return 0.0

    def codec(self, edge, way):
        edges = self.of("edges.list")
        of = edges[edge].get(way) if isinstance(edges, list) and len(edges) > edge and isinstance(edges[edge], dict) else None
        if not isinstance(of, dict):
            self.audit.fail(f"{self.path}: edges.list has no {way} of edge {edge}")
        name, bits = of.get("codec"), of.get("rate") if of.get("codec") in ("ec", "lowrank") else of.get("bits")
        return f"as they are ({of.get('precision')})" if name == "raw" else f"compressed by {name}, {bits} bits per number"

    def noise(self, prefix):
        clip, amount = self.number(f"split.privacy.{prefix}clip"), self.number(f"split.privacy.{prefix}noise")
        if not clip:
            return "no clip, no noise"
        return f"clipped to norm {clip:g}, " + (f"noise of {amount:g} times that in each value" if amount else "no noise")


def leaving(manifest):
    """Rows of (what, how often, settings of this job)."""
    rows = [("activations of every sample, held-out ones included", f"each visit: {manifest.of('split.rounds')} rounds of {manifest.of('split.epochs')} epochs",
             f"after layers {manifest.of('pipeline.stages')[0].get('layers')}; {manifest.codec(0, 'forward')}; {manifest.noise('')}"),
            ("gradients of every training sample at the second cut", "each visit", f"{manifest.codec(1, 'backward')}; {manifest.noise('gradient_')}")]
    if manifest.of("data.kind") in ("tsv", "instruct"):
        pad = manifest.of("split.pad")
        rows.append(("the length of every text in tokens", "not sent; for what the values show, see below" if pad else "once, when the client joins", f"`split.pad` is {'on' if pad else 'off'}"))
    lora = "lora" in manifest.keys and manifest.of("lora.rank")
    rows.append(("weights of the client's layers: " + (f"adapters of rank {lora} and what trains next to them" if lora else "all of them"), "after each turn",
                 f"`split.mode: {manifest.of('split.mode')}`; in the clear to the server"))
    if manifest.of("split.mode") == "global":
        rows.append(("gradients of the client's layers", "each step", "in the clear to the server"))
    return [*rows, ("counts of samples, losses, accuracies, times", "always", "not limited")]


def limits(manifest):
    ttl = str(manifest.of("split.cache_ttl"))
    yield "Connections use TLS 1.3 with a certificate of both sides. The server is one of the two sides."
    yield ("The server's stored activations are encrypted with the client's key between turns." if manifest.of("split.seal") else
           "**The server's stored activations are not encrypted** (`split.seal` is off).") + (" They are not removed by themselves (`split.cache_ttl`)." if ttl.startswith("0") else
                                                                                            f" They are removed after `split.cache_ttl: {ttl}`.")
    noises = [manifest.number(f"split.privacy.{prefix}noise") for prefix in ("", "gradient_")]
    if all(noises):
        yield ("Noise is added at both cuts. `aqpipe epsilon` computes its bound (epsilon) from the settings above and the number of visits; it covers only what "
               "crosses the cuts.")
    elif any(noises):
        yield "Noise is added at one of the two cuts only, so there is no bound (epsilon) on what can be learnt. Compression protects nothing."
    else:
        yield "No noise is added, so there is no bound (epsilon) on what can be learnt. Compression protects nothing."


def measured(found):
    yield "| question | answer | measured | chance | counts as a leak from | injected leak | shuffled truth | untrained model |"
    yield "|---|---|---:|---:|---:|---:|---:|---:|"
    for line in found:
        untrained = "not used" if line["untrained"] is None else f"{line['untrained']:.3f}"
        yield (f"| {QUESTIONS[line['attack']]} | {ANSWERS[line['verdict']]} | {line['value']:.3f} | {line['chance']:g} | {line['threshold']:g} | "
               f"{line['positive']:.3f} | {line['shuffled']:.3f} | {untrained} |")


def augmented(manifest):
    """How images are seen anew in each visit; empty: they are not."""
    crop, hole = (manifest.number(f"data.augment.{key}") for key in ("crop", "cutout"))
    said = [f"cropped by up to {crop:g} pixels"] * bool(crop) + ["flipped"] * bool(manifest.of("data.augment.flip")) + [f"a hole of {hole:g} pixels"] * bool(hole)
    return f" (at random: {', '.join(said)}; the server knows how, and figures are of the pixels that were sent)" if said else ""


def of_them(manifest, asked):
    """What a sample is, where the word alone does not say it."""
    if asked.packed:
        return f", in which {asked.packed} conversations are packed; an attack takes each conversation by itself"
    if manifest.of("data.kind") == "instruct" and manifest.of("data.pack") and not manifest.of("data.pack_mask"):
        return ", each of several conversations, which an attack takes together"
    if manifest.of("data.kind") in ("image_files", "cifar10", "cifar100"):
        return ", each an image" + augmented(manifest)
    return ", each a conversation" if manifest.of("data.kind") == "instruct" else ""


def write(audit, asked, found, out):
    manifest = Manifest(audit, asked.run)
    run = pathlib.Path(asked.run).resolve()
    digest = hashlib.sha256(manifest.path.read_bytes()).hexdigest()[:16]
    leaks = [line for line in found if line["verdict"] == "leaks"]
    lines = [f"# Split learning of '{manifest.of('job.name')}': what leaves the site", "",
             f"Client {run.name}. Made on {datetime.date.today()} by `tools/split-audit` from the manifest of a captured run (SHA-256 {digest}...) and from what its "
             "server received. Another manifest needs another page.", "",
             f"A server trains the middle of a network. This client has {manifest.of('facts.train_samples')} training samples{of_them(manifest, asked)}. "
             "The site keeps inputs and labels, and the first and last layers.", "", "## What leaves the site", "",
             "| what | when | in this job |", "|---|---|---|", *("| " + " | ".join(row) + " |" for row in leaving(manifest)), "", "## What limits it", "",
             *(f"- {text}" for text in limits(manifest)), "", "## What was measured on this job", "", *measured(found), "",
             "The figure of words is the share that is right, beyond always guessing the most frequent word. The figure of images is R2: 0 is the mean image, 1 the image. AUC of labels and of membership: 0.5 is chance, 1 is certain. "
             "Each attack must find a leak that was injected, and must find nothing in shuffled truth and with an untrained model. Otherwise its answer is unknown.", "",
             (f"**{len(leaks)} of {len(found)} attacks succeed.** Treat what they read as known to the server, and to a thief of its memory." if leaks else
              f"None of {len(found)} attacks succeeds. Better attacks may: this is no proof of privacy."), "", "## What this page does not show", "",
             "- Attacks on the weights and gradients of the client's layers, which the server reads after each turn (with `global`: in each step).",
             "- What a stronger attacker finds: one with more known samples, or with a larger decoder.",
             "- Whether other data of this site leak as much: the run used the data that the tool was given.", ""]
    out.write_text("\n".join(lines), encoding="utf-8")
