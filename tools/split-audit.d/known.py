"""An attacker who has the weights: the published ones, or those that pass the server. It runs public text through the known first layers.

The model is a folder that transformers opens. `blocks` of its blocks are at the client in front of the first cut, so that an activation at the cut is
hidden_states[blocks]. The control is the same network with random weights: what is found with it is no knowledge of the weights.
"""
import contextlib
import json
import os
import pathlib

import numpy as np

HIDDEN, STEPS, BATCH, NAMES, RATE, PUBLIC_ROWS, LOSS_AUC = 256, 400, 256, 2048, 3e-3, 20000, 0.65


class Known:
    def __init__(self, audit, folder, blocks, public, seed):
        """public: lists of token ids."""
        os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"
        try:
            import torch
            import transformers
        except ImportError as error:
            print(f"split-audit: --model needs PyTorch and transformers: {error}", file=audit.sys.stderr)
            audit.sys.exit(77)
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        torch.set_num_threads(1)  # small products: threads would only wait for each other
        self.torch, self.folder, self.blocks, self.seed, self.public = torch, pathlib.Path(folder), blocks, seed, []
        try:
            task = transformers.AutoModelForSequenceClassification if "Classification" in str(
                json.loads((self.folder / "config.json").read_text()).get("architectures")) else transformers.AutoModel
            config = transformers.AutoConfig.from_pretrained(folder, attn_implementation="sdpa")
            self.trained = task.from_pretrained(folder, config=config).float().eval()
            torch.manual_seed(seed)
            self.random = task.from_config(config).float().eval()
            self.classes = int(getattr(config, "num_labels", 0)) if task is transformers.AutoModelForSequenceClassification else 0
            self.numbers = {str(name): int(number) for number, name in (getattr(config, "id2label", None) or {}).items()}
            self.layers = int(config.num_hidden_layers)
        except (OSError, ValueError, KeyError, AttributeError) as error:
            audit.fail(f"{folder}: transformers cannot open it: {str(error).splitlines()[0][:300]}")
        if not 0 <= blocks <= self.layers:
            audit.fail(f"{folder}: --blocks {blocks}, and the model has {self.layers}")
        rows = 0
        for ids in public:
            if rows >= PUBLIC_ROWS:
                break
            self.public.append(np.asarray(ids))
            rows += len(ids)
        self.frame = self.frame_of()

    def frame_of(self):
        """How many tokens all samples begin and end with: a tokenizer's own, around each text."""
        if len(self.public) < 2:
            return (0, 0)
        first = int(len({int(ids[0]) for ids in self.public}) == 1)
        return first, int(len({int(ids[-1]) for ids in self.public}) == 1)

    def batches(self, samples):
        for at in range(0, len(samples), 32):
            part = samples[at:at + 32]
            longest = max(map(len, part))
            ids, mask = (self.torch.zeros(len(part), longest, dtype=self.torch.long) for _ in range(2))
            for i, each in enumerate(part):
                ids[i, :len(each)] = self.torch.from_numpy(np.ascontiguousarray(each))
                mask[i, :len(each)] = 1
            yield ids, mask, [len(each) for each in part]

    @contextlib.contextmanager
    def until_cut(self, model):
        """Meanwhile the model has no blocks behind the one that follows the cut. That one stays: what the last block has made is normalized. How many it has."""
        lists = [each for each in model.modules() if isinstance(each, self.torch.nn.ModuleList) and len(each) == self.layers]
        behind = list(lists[0])[self.blocks + 1:] if len(lists) == 1 else []
        if behind:
            del lists[0][self.blocks + 1:]
        try:
            yield self.layers - len(behind)
        finally:
            if behind:
                lists[0].extend(behind)

    def activations(self, samples, untrained=False):
        """Of each sample its matrix at the cut."""
        out, model = [], self.random if untrained else self.trained
        with self.torch.no_grad(), self.until_cut(model):
            for ids, mask, lengths in self.batches(samples):
                states = model(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states[self.blocks].numpy()
                out += [states[i, :length].astype(np.float64) for i, length in enumerate(lengths)]
        return out

    def table(self, vocabulary, untrained=False):
        """Of each token the activation at the cut when it is the only word of a text."""
        before = self.public[0][:1] if self.frame[0] else self.public[0][:0]
        behind = self.public[0][-1:] if self.frame[1] else self.public[0][:0]
        texts = [np.concatenate([before, [token], behind]) for token in range(vocabulary)]
        return np.stack([each[len(before)] for each in self.activations(texts, untrained)])

    # ---- a decoder that is learnt ----

    @staticmethod
    def windows(matrices):
        """Of each row itself and its neighbours, side by side; none is zeros."""
        out = []
        for each in matrices:
            edge = np.zeros((1, each.shape[1]))
            padded = np.concatenate([edge, each, edge])
            out.append(np.concatenate([padded[:-2], each, padded[2:]], 1))
        return np.concatenate(out)

    def learn(self, rows, tokens, seed):
        """A network of one hidden layer from rows to tokens: a function from rows to guesses."""
        torch = self.torch
        torch.manual_seed(seed)
        names, counts = np.unique(tokens, return_counts=True)
        names = np.sort(names[np.argsort(-counts)[:NAMES]])
        kept = np.isin(tokens, names)
        centre, scale = rows.mean(0), rows.std(0) + 1e-6
        inputs = torch.from_numpy(((rows[kept] - centre) / scale).astype(np.float32))
        wanted = torch.from_numpy(np.searchsorted(names, tokens[kept]))
        net = torch.nn.Sequential(torch.nn.Linear(inputs.shape[1], HIDDEN), torch.nn.GELU(), torch.nn.Linear(HIDDEN, len(names)))
        optimizer = torch.optim.AdamW(net.parameters(), lr=RATE)
        rates = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
        order = torch.Generator().manual_seed(seed)
        for _ in range(STEPS):
            picked = torch.randint(len(inputs), (BATCH,), generator=order)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(inputs[picked]), wanted[picked]).backward()
            optimizer.step()
            rates.step()

        def guess(asked):
            with torch.no_grad():
                return names[net(torch.from_numpy(((asked - centre) / scale).astype(np.float32))).argmax(1).numpy()]
        return guess

    def decoder_attack(self, sent, own, truth, threshold, gain, draw):
        """(value, threshold, positive, shuffled, of, untrained). own: which rows of `sent` are of a token. Positive: both sides have a vector of each token added."""
        tokens, asked = np.concatenate(self.public), self.windows(sent)[own]
        known = self.activations(self.public)
        rows, columns = self.windows(known), sent[0].shape[1]
        codes = draw.standard_normal((int(max(tokens.max(), truth.max())) + 1, columns))

        def marked(matrices, ids):
            """The own vector of each token in place of its activation; padding has none."""
            ends = np.cumsum([len(each) for each in matrices])
            places = np.ones(ends[-1], bool) if matrices is known else own
            vectors = np.zeros((ends[-1], columns))
            vectors[places] = codes[ids]
            return self.windows(np.split(vectors, ends[:-1]))[places]
        value = gain(self.learn(rows, tokens, self.seed)(asked), truth)
        positive = gain(self.learn(marked(known, tokens), tokens, self.seed)(marked(sent, truth)), truth)
        shuffled = gain(self.learn(rows, draw.permutation(tokens), self.seed)(asked), truth)
        untrained = gain(self.learn(self.windows(self.activations(self.public, untrained=True)), tokens, self.seed)(asked), truth)
        return value, threshold, positive, shuffled, f"decoder of {len(tokens)} public tokens, tried on {len(truth)}", untrained

    # ---- membership, by the loss of the model that is left ----

    def losses(self, samples, labels, untrained=False):
        out, model, at = [], self.random if untrained else self.trained, 0
        with self.torch.no_grad():
            for ids, mask, lengths in self.batches(samples):
                logits = model(input_ids=ids, attention_mask=mask).logits
                wanted = self.torch.from_numpy(labels[at:at + len(lengths)])
                out.append(self.torch.nn.functional.cross_entropy(logits, wanted, reduction="none").numpy())
                at += len(lengths)
        return np.concatenate(out)

    def numbers_of(self, texts):
        """Of each label its number in the model; None where the model does not say."""
        words = [texts.names[label] if texts.names else str(label) for label in texts.labels]
        if all(word in self.numbers for word in words):
            return np.array([self.numbers[word] for word in words])
        return None if texts.names else texts.labels

    def judges(self, audit, candidates):
        """Is it a classifier of the labels that these samples have?"""
        if not isinstance(candidates.labels, np.ndarray) or self.classes < 2:
            return False
        numbers = self.numbers_of(candidates)
        if numbers is None:
            print(f"split-audit: membership by losses is left out: {self.folder}/config.json does not name the labels {', '.join(candidates.names)[:200]}", file=audit.sys.stderr)
        return numbers is not None and int(numbers.max()) < self.classes

    def member_attack(self, audit, seen, candidates, members, draw):
        asked = [s for s in sorted(seen.of[audit.HELDOUT]) if s < len(candidates)]
        flags, labels = members[asked], self.numbers_of(candidates)[asked].astype(np.int64)
        samples = [candidates.ids[s] for s in asked]
        own = -self.losses(samples, labels)
        marked = own + flags * (own.std() * 2 + 1e-6)
        return ("membership-loss", "auc", audit.auc(own, flags), LOSS_AUC, audit.auc(marked, flags), audit.auc(own, draw.permutation(flags)),
                f"{flags.sum()} members, {(~flags).sum()} others", audit.auc(-self.losses(samples, labels, untrained=True), flags))
