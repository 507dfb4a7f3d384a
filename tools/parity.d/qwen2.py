"""Qwen2 and Qwen2.5: biases of queries, keys and values."""
import kit
from transformers import Qwen2Config


def configs():
    small = {"vocab_size": 307, "hidden_size": 48, "intermediate_size": 88, "num_hidden_layers": 3, "max_position_embeddings": 128,
             "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}}
    yield Qwen2Config(**small, num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True)
    yield Qwen2Config(**small, num_attention_heads=6, num_key_value_heads=1, tie_word_embeddings=False)


CASES = [kit.language_model("qwen2", configs)]
