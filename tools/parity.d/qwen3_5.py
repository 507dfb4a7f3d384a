"""Qwen3.5, dense and of texts: the gated delta rule in most blocks, attention with gates in the others, heads that turn in part."""
import kit
from transformers import Qwen3_5TextConfig
from transformers.models.qwen3_5 import modeling_qwen3_5

# transformers has the rule in two forms. Its form in chunks subtracts sums of decays: gradients of A_log and dt_bias are then up to 2e-3
# from those of its form token by token, from which ours are 5e-6. So that one is the reference. Its signature is the same.
modeling_qwen3_5.torch_chunk_gated_delta_rule = modeling_qwen3_5.torch_recurrent_gated_delta_rule

SMALL = {"vocab_size": 307, "hidden_size": 48, "intermediate_size": 88, "max_position_embeddings": 128, "head_dim": 16,
         "num_attention_heads": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 12,
         "linear_value_head_dim": 10, "bos_token_id": 2, "eos_token_id": 1}


def configs():
    yield Qwen3_5TextConfig(**SMALL, num_hidden_layers=4, num_key_value_heads=2, tie_word_embeddings=True)
    yield Qwen3_5TextConfig(**{**SMALL, "linear_num_key_heads": 4, "linear_conv_kernel_dim": 3}, num_hidden_layers=3, num_key_value_heads=1,
                            layer_types=["linear_attention", "full_attention", "linear_attention"],
                            rope_parameters={"rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 0.5})


# More tokens than a chunk of ours has (AQ_DELTA_CHUNK). In bf16 the worst tensors are A_log and dt_bias.
CASES = [kit.language_model("qwen3_5", configs, T=75, bf16_gradients=1e-1)]
