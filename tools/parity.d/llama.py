"""Llama 3.x and SmolLM2."""
import kit
from transformers import LlamaConfig


def configs():
    small = {"vocab_size": 307, "hidden_size": 48, "intermediate_size": 88, "num_hidden_layers": 3, "max_position_embeddings": 128}
    llama3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
              "original_max_position_embeddings": 16}
    yield LlamaConfig(**small, num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True)
    yield LlamaConfig(**small, num_attention_heads=4, num_key_value_heads=1, head_dim=20, rope_parameters=llama3)
    yield LlamaConfig(**small, num_attention_heads=3, num_key_value_heads=3, rms_norm_eps=1e-5,
                      rope_parameters={"rope_type": "default", "rope_theta": 100000.0})
    yield LlamaConfig(**small, num_attention_heads=3, num_key_value_heads=3,
                      rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0})


CASES = [kit.language_model("llama", configs)]
