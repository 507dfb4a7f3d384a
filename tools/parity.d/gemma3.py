"""Gemma 3, of texts: windows that begin within the sample, frequencies of two sorts, scales of scores and of the embedding."""
import kit
from transformers import Gemma3TextConfig


def configs():
    small = {"vocab_size": 307, "hidden_size": 48, "intermediate_size": 88, "max_position_embeddings": 128, "head_dim": 20,
             "sliding_window": 7, "query_pre_attn_scalar": 32, "bos_token_id": 2, "eos_token_id": 1}
    linear = {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
              "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}
    yield Gemma3TextConfig(**small, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=1, sliding_window_pattern=3)
    yield Gemma3TextConfig(**small, num_hidden_layers=3, num_attention_heads=3, num_key_value_heads=3, rope_parameters=linear,
                           tie_word_embeddings=False, layer_types=["full_attention", "sliding_attention", "sliding_attention"])


CASES = [kit.language_model("gemma3", configs)]
