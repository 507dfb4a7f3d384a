"""Qwen3: norms of heads, heads that are wider than channels / heads."""
import kit
from transformers import Qwen3Config


def configs():
    small = {"vocab_size": 307, "hidden_size": 48, "intermediate_size": 88, "num_hidden_layers": 3, "max_position_embeddings": 128,
             "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}}
    yield Qwen3Config(**small, num_attention_heads=4, num_key_value_heads=2, head_dim=32, tie_word_embeddings=True)
    yield Qwen3Config(**small, num_attention_heads=3, num_key_value_heads=3, head_dim=16, tie_word_embeddings=False)
    yield Qwen3Config(**small, num_attention_heads=4, num_key_value_heads=2, head_dim=16, use_sliding_window=True, sliding_window=6,
                      max_window_layers=1)


CASES = [kit.language_model("qwen3", configs)]
