"""Families that are rows of data (stages/model/model_family.h): Mistral, Ministral 3, SmolLM3, OLMo 2 and 3, EXAONE 4, Granite, Phi-3, Gemma 2, LFM2;
Llama and Qwen3 with biases and YaRN."""
import kit
from transformers import (Exaone4Config, Gemma2Config, GraniteConfig, Lfm2Config, LlamaConfig, Ministral3Config, MistralConfig, Olmo2Config, Olmo3Config,
                          Phi3Config, Qwen3Config, SmolLM3Config)

SMALL = {"vocab_size": 307, "hidden_size": 48, "intermediate_size": 88, "num_hidden_layers": 4, "max_position_embeddings": 128,
         "num_attention_heads": 4}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}


def llama_biases():
    yield LlamaConfig(**SMALL, num_key_value_heads=2, attention_bias=True, mlp_bias=True)
    yield LlamaConfig(**SMALL, num_key_value_heads=4, mlp_bias=True, tie_word_embeddings=True)
    yield Qwen3Config(**SMALL, num_key_value_heads=2, head_dim=16, attention_bias=True)


def yarn():
    yield LlamaConfig(**SMALL, num_key_value_heads=2, head_dim=32, rope_parameters=YARN)
    yield Qwen3Config(**SMALL, num_key_value_heads=2, head_dim=32,
                      rope_parameters={**YARN, "beta_fast": 16.0, "beta_slow": 2.0, "attention_factor": 1.3})
    yield MistralConfig(**SMALL, num_key_value_heads=2, head_dim=32, sliding_window=None,
                        rope_parameters={**YARN, "mscale": 1.0, "mscale_all_dim": 0.5})


def mistral():
    yield MistralConfig(**SMALL, num_key_value_heads=2, sliding_window=7)
    yield MistralConfig(**SMALL, num_key_value_heads=2, head_dim=20, sliding_window=None, tie_word_embeddings=True)


def ministral3():
    rope = {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}
    yield Ministral3Config(**SMALL, num_key_value_heads=2, head_dim=32, pad_token_id=None, rope_parameters=rope)
    yield Ministral3Config(**SMALL, num_key_value_heads=4, head_dim=20, pad_token_id=None, tie_word_embeddings=True, sliding_window=7,
                           rope_parameters={**rope, "mscale_all_dim": 0.5, "llama_4_scaling_beta": 0.3})


def smollm3():
    yield SmolLM3Config(**SMALL, num_key_value_heads=2, pad_token_id=0)
    yield SmolLM3Config(**SMALL, num_key_value_heads=4, pad_token_id=0, no_rope_layer_interval=2, tie_word_embeddings=False, mlp_bias=True)
    yield SmolLM3Config(**SMALL, num_key_value_heads=4, pad_token_id=0, no_rope_layers=[1, 1, 1, 1])


def olmo2():
    yield Olmo2Config(**SMALL, pad_token_id=None)
    yield Olmo2Config(**SMALL, pad_token_id=None, tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": 500000.0})


def olmo3():
    yield Olmo3Config(**SMALL, sliding_window=7)
    yield Olmo3Config(**SMALL, sliding_window=5, tie_word_embeddings=True, layer_types=["full_attention", "sliding_attention"] * 2,
                      rope_parameters={"full_attention": YARN, "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0}})


def exaone4():
    yield Exaone4Config(**SMALL, num_key_value_heads=2, sliding_window=7, sliding_window_pattern="LLG",
                        layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"])
    yield Exaone4Config(**SMALL, num_key_value_heads=2, sliding_window=None, layer_types=["full_attention"] * 4, tie_word_embeddings=True)


def granite():
    yield GraniteConfig(**SMALL, num_key_value_heads=2, embedding_multiplier=12.0, attention_multiplier=0.05, residual_multiplier=0.22,
                        logits_scaling=8.0, tie_word_embeddings=True)
    yield GraniteConfig(**SMALL, num_key_value_heads=4, embedding_multiplier=3.0, residual_multiplier=0.7, attention_bias=True, mlp_bias=True,
                        attention_multiplier=0.25)


def longrope(pairs, original, **more):
    factors = {"short_factor": [1.0 + 0.1 * i for i in range(pairs)], "long_factor": [1.0 + 1.7 * i for i in range(pairs)]}
    return {"original_max_position_embeddings": original, "rope_parameters": {"rope_type": "longrope", "rope_theta": 10000.0, **factors, **more}}


def phi3():
    yield Phi3Config(**SMALL, num_key_value_heads=2, pad_token_id=None, sliding_window=7)
    yield Phi3Config(**SMALL, num_key_value_heads=2, pad_token_id=None, tie_word_embeddings=True, **longrope(3, 32, partial_rotary_factor=0.5))
    yield Phi3Config(**SMALL, num_key_value_heads=4, pad_token_id=None, **longrope(4, 16, partial_rotary_factor=2 / 3))
    yield Phi3Config(**SMALL, num_key_value_heads=4, pad_token_id=None, **longrope(6, 16, attention_factor=1.3))


def gemma2():
    caps = {"query_pre_attn_scalar": 3, "attn_logit_softcapping": 1.5, "final_logit_softcapping": 2.0, "initializer_range": 0.1}
    yield Gemma2Config(**{**SMALL, **caps}, num_key_value_heads=2, head_dim=20, sliding_window=7)
    yield Gemma2Config(**SMALL, num_key_value_heads=1, head_dim=12, sliding_window=64, tie_word_embeddings=False,
                       layer_types=["full_attention"] * 4)
    yield Gemma2Config(**{**SMALL, **caps, "attn_logit_softcapping": None, "final_logit_softcapping": None}, num_key_value_heads=2, head_dim=12,
                       sliding_window=7, rope_parameters=YARN)


def lfm2():
    """Convolutions in most blocks, with biases and other taps; the MLP's width adjusted and final; older keys."""
    yield Lfm2Config(**SMALL, num_key_value_heads=2, layer_types=["conv", "conv", "full_attention", "conv"], block_multiple_of=16)
    yield Lfm2Config(**SMALL, num_key_value_heads=4, layer_types=["conv", "full_attention", "full_attention", "conv"], conv_bias=True, conv_L_cache=5,
                     block_auto_adjust_ff_dim=False, tie_word_embeddings=False, rope_parameters={"rope_type": "default", "rope_theta": 500.0})
    yield Lfm2Config(**SMALL, num_key_value_heads=2, full_attn_idxs=[1], block_ff_dim=99, block_ffn_dim_multiplier=1.3, block_multiple_of=8)
    yield Lfm2Config(**SMALL, num_key_value_heads=1, full_attn_idxs=[3], conv_L_cache=4, block_multiple_of=3)


def smollm3_biases():
    yield SmolLM3Config(**SMALL, num_key_value_heads=2, pad_token_id=0, attention_bias=True)


# In bf16 the worst tensors are k_proj.weight (7.3e-2 with biases) and q_norm.weight (6.2e-2 of OLMo 3). A bias of keys adds the same
# to all scores of a query in a block without rotary embedding: what cancels there leaves its rounding, so only fp32 tells.
CASES = [kit.language_model("llama-biases", llama_biases, bf16_gradients=8e-2), kit.language_model("yarn", yarn),
         kit.language_model("mistral", mistral), kit.language_model("ministral3", ministral3), kit.language_model("smollm3", smollm3, bf16_gradients=7e-2),
         kit.language_model("smollm3-biases", smollm3_biases, precisions=("fp32",), keys_vanish=True),
         kit.language_model("olmo2", olmo2), kit.language_model("olmo3", olmo3, bf16_gradients=7e-2), kit.language_model("exaone4", exaone4),
         kit.language_model("granite", granite), kit.language_model("phi3", phi3),
         kit.language_model("gemma2", gemma2), kit.language_model("lfm2", lfm2)]
