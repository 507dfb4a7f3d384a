"""GPT-2, small and at the size of its smallest published model."""
import kit
from transformers import GPT2Config


def small():
    yield GPT2Config(vocab_size=307, n_embd=48, n_layer=3, n_head=4, n_positions=64)
    yield GPT2Config(vocab_size=307, n_embd=40, n_layer=2, n_head=2, n_positions=64, tie_word_embeddings=False)


def published():
    yield GPT2Config()


CASES = [kit.language_model("gpt2", small), kit.language_model("gpt2-124m", published, samples=1, T=33, precisions=("fp32",))]
CASES[1].long = True
