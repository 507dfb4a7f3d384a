/*
 * gguf_model.c -- the families that llama.cpp knows: a row of a table each, with the architecture's name and what it
 * can do. Keys and names of tensors follow from the row, the configuration and the form of its blocks (decoder.h).
 *
 * Each architecture of llama.cpp has its own code: a model that it does not compute is refused here. One exception: an
 * architecture without windows is exact for texts that fit into the window, so that context_length ends there.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gguf_private.h"
#include "model_family.h"
#include "stage_model.h"

static const struct gguf_family families[] = {
    {.type = "gpt2", .arch = "gpt2", .in_out = true},
    {.type = "llama", .arch = "llama", .turns_pairs = true, .factors = true, .biases_out = true, .biases_mlp = true},
    {.type = "mistral", .arch = "llama", .turns_pairs = true, .factors = true},
    {.type = "qwen2", .arch = "qwen2"},
    {.type = "qwen3", .arch = "qwen3"},
    {.type = "qwen3_5_text", .arch = "qwen35", .partial = true, .norm2 = "post_attention_norm.weight"},
    {.type = "gemma2",
     .arch = "gemma2",
     .windows = GGUF_WINDOWS_ALWAYS,
     .capped = true,
     .tied = true,
     .scores_of = 46},
    {.type = "gemma3_text", .arch = "gemma3", .windows = GGUF_WINDOWS_ALWAYS, .local = true},
    {.type = "olmo2", .arch = "olmo2"},
    {.type = "olmo3", .arch = "olmo2", .windows = GGUF_WINDOWS_SOME, .local = true},
    {.type = "exaone4", .arch = "exaone4", .factors = true, .windows = GGUF_WINDOWS_NEVER},
    {.type = "smollm3", .arch = "smollm3", .turns_pairs = true, .rope_every = 4},
    {.type = "phi3", .arch = "phi3", .factors = true, .partial = true, .square = true},
    {.type = "lfm2", .arch = "lfm2", .square = true, .norm = "token_embd_norm.weight"},
    {.type = "granite",
     .arch = "granite",
     .turns_pairs = true,
     .factors = true,
     .biases_out = true,
     .biases_mlp = true,
     .multiplied = true},
};

enum { FAMILIES = sizeof families / sizeof families[0], NAME_BYTES = 256 };

static enum aq_status refuse(const struct aq_model_config *model, const char *cause)
{
    return aq_fail(AQ_INVAL, GGUF_AREA, "model.kind %s cannot be written as GGUF: %s. Export it without --gguf",
                   model->kind, cause);
}

/* The row of a model_type; a family whose types share a form has several. */
static const struct gguf_family *row_of(const struct aq_model_config *model)
{
    const struct stage_model *ops = stage_model_find(model->kind);
    const struct family_type *type = ops->family ? decoder_family_type(model) : NULL;
    const char *name = ops->family ? (type ? type->type : "") : model->kind;
    for (uint32_t i = 0; i < FAMILIES; i++)
        if (strcmp(families[i].type, name) == 0) return &families[i];
    return NULL;
}

/* Has every n-th block no window, and no other? Then n; all have one: 0. */
static bool windows_regular(const struct aq_model_config *model)
{
    return model->window_from == 0 && !model->window_first;
}

static enum aq_status check_windows(const struct gguf_family *family, const struct aq_model_config *model)
{
    if (family->windows == GGUF_WINDOWS_CAP) return AQ_OK;
    if (family->windows == GGUF_WINDOWS_ALWAYS && !model->window)
        return refuse(model, "llama.cpp computes it with model.window only");
    if (family->windows == GGUF_WINDOWS_NEVER && model->window)
        return refuse(model, "llama.cpp computes it without model.window only");
    if (model->window && !windows_regular(model)) return refuse(model, "model.window_from is not 0");
    return AQ_OK;
}

static enum aq_status check_rope(const struct gguf_family *family, const struct aq_model_config *model)
{
    if (decoder_rotary(model) != decoder_head_dim(model) && !family->partial)
        return refuse(model, "model.rope_partial is not 1");
    if (model->rope_factor > 1.0f && !family->factors)
        return refuse(model, "model.rope_factor is above 1, and llama.cpp reads no factors of frequencies for it");
    if (model->rope_every != family->rope_every)
        return refuse(model, "llama.cpp has model.rope_every 4 only in smollm3, and 0 in all others");
    if (model->rope_local > 0.0f && model->rope_local != model->rope_theta && !family->local)
        return refuse(model, "model.rope_local is another than model.rope_theta");
    if (model->query_beta > 0.0f) return refuse(model, "model.query_beta is not 0");
    return AQ_OK;
}

/* Scores are divided by the root of the head's channels; Granite has a key for it, and Gemma 2 27B its own rule. */
static enum aq_status check_scores(const struct gguf_family *family, const struct aq_model_config *model)
{
    const bool ruled = family->scores_of && model->blocks == family->scores_of;
    const uint32_t divisor = ruled ? model->channels / model->heads : decoder_head_dim(model);
    if ((model->query_scale ? model->query_scale : decoder_head_dim(model)) != divisor)
        return refuse(model, ruled ? "model.query_scale is not model.channels / model.heads"
                                   : "model.query_scale is not model.head_dim");
    if (!family->multiplied && model->score_scale > 0.0f) return refuse(model, "model.score_scale is set");
    if (family->capped && !(model->score_cap > 0.0f && model->logit_cap > 0.0f))
        return refuse(model, "llama.cpp computes it with model.score_cap and model.logit_cap only");
    return AQ_OK;
}

/* Blocks with the delta rule or a convolution: llama.cpp has memory for both kinds of blocks, and needs both. */
static enum aq_status check_mixture(const struct decoder_form *form, const struct aq_model_config *model)
{
    uint32_t others = 0;
    for (uint32_t block = 0; block < model->blocks; block++)
        others += form->delta ? decoder_is_delta(form, model, block) : decoder_convolves(model, block);
    if (others == 0) return refuse(model, "llama.cpp does not load it with attention in all blocks");
    if (others == model->blocks) return refuse(model, "llama.cpp does not load it without attention");
    return AQ_OK;
}

static enum aq_status check_blocks(const struct gguf_family *family, const struct aq_model_config *model)
{
    const struct decoder_form *form = &stage_model_find(model->kind)->family->form;
    if (family->square && (uint64_t)decoder_head_dim(model) * model->heads != model->channels)
        return refuse(model, "model.head_dim is not model.channels / model.heads");
    if (form->conv_names && model->conv_bias) return refuse(model, "model.conv_bias is true");
    if (form->conv_names && model->conv_taps < 2) return refuse(model, "model.conv_taps is 1");
    if (form->delta && model->own[DELTA_OWN_DK] != model->own[DELTA_OWN_DV])
        return refuse(model, "model.delta_key_dim is not model.delta_value_dim");
    return form->delta || form->conv_names ? check_mixture(form, model) : AQ_OK;
}

enum aq_status gguf_family_find(const struct aq_model_config *model, const struct gguf_family **out)
{
    const struct gguf_family *family = row_of(model);
    if (model->labels) return refuse(model, "it is a classifier, which llama.cpp does not load");
    if (!family) return refuse(model, "no architecture of llama.cpp is in the table of docs/GGUF.md for it");
    if (model->out_bias && !family->biases_out) return refuse(model, "model.out_bias is true");
    if (model->mlp_bias && !family->biases_mlp) return refuse(model, "model.mlp_bias is true");
    AQ_TRY(check_windows(family, model));
    if (!family->in_out) {
        AQ_TRY(check_rope(family, model));
        AQ_TRY(check_blocks(family, model));
    }
    AQ_TRY(check_scores(family, model));
    *out = family;
    return AQ_OK;
}

/* ---- Keys. */

/* llama.cpp multiplies cosines and sines by 1 + 0.1 ln(factor) itself: only what differs is written. */
static void rope_keys(const struct aq_model_config *model, struct gguf_keys *keys)
{
    const bool yarn = model->rope_yarn > 1.0f, linear = model->rope_linear > 1.0f;
    gguf_u32(keys, ".rope.dimension_count", decoder_rotary(model));
    gguf_f32(keys, ".rope.freq_base", model->rope_theta);
    if (linear) {
        gguf_string(keys, ".rope.scaling.type", "linear", strlen("linear"));
        gguf_f32(keys, ".rope.scaling.factor", model->rope_linear);
    }
    if (!yarn) return;
    const float follows = (float)(1.0 + 0.1 * log((double)model->rope_yarn));
    gguf_string(keys, ".rope.scaling.type", "yarn", strlen("yarn"));
    gguf_f32(keys, ".rope.scaling.factor", model->rope_yarn);
    gguf_u32(keys, ".rope.scaling.original_context_length", model->rope_original);
    gguf_f32(keys, ".rope.scaling.yarn_beta_fast", model->rope_fast);
    gguf_f32(keys, ".rope.scaling.yarn_beta_slow", model->rope_slow);
    if (fabsf(model->rope_attention - follows) > 1e-6f)
        gguf_f32(keys, ".rope.scaling.attn_factor", model->rope_attention / follows);
}

/* LongRoPE: the context before, behind which the longer list is taken, and what multiplies cosines and sines. */
static void long_keys(const struct aq_model_config *model, struct gguf_keys *keys)
{
    gguf_u32(keys, ".rope.scaling.original_context_length", model->rope_original);
    gguf_f32(keys, ".rope.scaling.attn_factor", model->rope_attention);
}

/* Positions of texts: each of three axes has every third pair of columns, and all have the same position. */
static void section_keys(const struct aq_model_config *model, struct gguf_keys *keys)
{
    const uint32_t pairs = decoder_rotary(model) / 2;
    const int32_t sections[] = {(int32_t)(pairs + 2) / 3, (int32_t)(pairs + 1) / 3, (int32_t)pairs / 3, 0};
    gguf_array(keys, ".rope.dimension_sections", GGUF_I32, 4);
    gguf_bytes(keys, sections, sizeof sections);
}

static void delta_keys(const struct aq_model_config *model, struct gguf_keys *keys)
{
    const uint32_t *own = model->own;
    gguf_u32(keys, ".ssm.conv_kernel", own[DELTA_OWN_TAPS]);
    gguf_u32(keys, ".ssm.state_size", own[DELTA_OWN_DK]);
    gguf_u32(keys, ".ssm.group_count", own[DELTA_OWN_KEYS]);
    gguf_u32(keys, ".ssm.time_step_rank", own[DELTA_OWN_VALUES]);
    gguf_u32(keys, ".ssm.inner_size", own[DELTA_OWN_VALUES] * own[DELTA_OWN_DV]);
    gguf_u32(keys, ".full_attention_interval", own[DELTA_OWN_EVERY]);
    section_keys(model, keys);
}

/* A block without heads of keys has a convolution. */
static void conv_keys(const struct aq_model_config *model, struct gguf_keys *keys)
{
    gguf_u32(keys, ".shortconv.l_cache", model->conv_taps);
    gguf_array(keys, ".attention.head_count_kv", GGUF_U32, model->blocks);
    for (uint32_t block = 0; block < model->blocks; block++) {
        const uint32_t heads = decoder_convolves(model, block) ? 0 : decoder_kv_heads(model);
        gguf_bytes(keys, &heads, sizeof heads);
    }
}

static void window_keys(const struct gguf_family *family, const struct aq_model_config *model, struct gguf_keys *keys)
{
    if (family->windows == GGUF_WINDOWS_CAP || !model->window) return;
    gguf_u32(keys, ".attention.sliding_window", model->window);
    gguf_u32(keys, ".attention.sliding_window_pattern", model->window_every);
    if (family->local)
        gguf_f32(keys, ".rope.freq_base_swa", model->rope_local > 0.0f ? model->rope_local : model->rope_theta);
}

void gguf_family_keys(const struct gguf_family *family, const struct aq_model_config *model, struct gguf_keys *keys)
{
    const struct decoder_family *of = stage_model_find(model->kind)->family;
    const bool caps = family->windows == GGUF_WINDOWS_CAP && model->window && model->window < model->context;
    gguf_u32(keys, ".vocab_size", model->vocabulary);
    gguf_u32(keys, ".context_length", caps ? model->window : model->context);
    gguf_u32(keys, ".embedding_length", model->channels);
    gguf_u32(keys, ".block_count", model->blocks);
    gguf_u32(keys, ".feed_forward_length", model->mlp ? model->mlp : 4 * model->channels);
    gguf_u32(keys, ".attention.head_count", model->heads);
    if (of && of->form.conv_names)
        conv_keys(model, keys);
    else
        gguf_u32(keys, ".attention.head_count_kv", decoder_kv_heads(model));
    if (family->in_out) { /* GPT-2 */
        gguf_f32(keys, ".attention.layer_norm_epsilon", model->norm_eps);
        return;
    }
    gguf_f32(keys, ".attention.layer_norm_rms_epsilon", model->norm_eps);
    gguf_u32(keys, ".attention.key_length", decoder_head_dim(model));
    gguf_u32(keys, ".attention.value_length", decoder_head_dim(model));
    rope_keys(model, keys);
    if (model->rope_short.count) long_keys(model, keys);
    window_keys(family, model, keys);
    if (of->form.delta) delta_keys(model, keys);
    if (family->capped) {
        gguf_f32(keys, ".attn_logit_softcapping", model->score_cap);
        gguf_f32(keys, ".final_logit_softcapping", model->logit_cap);
    }
    if (!family->multiplied) return;
    gguf_f32(keys, ".attention.scale", model->score_scale);
    gguf_f32(keys, ".embedding_scale", model->embedding_scale);
    gguf_f32(keys, ".residual_scale", model->residual_scale);
    gguf_f32(keys, ".logit_scale", model->logit_divisor);
}

/*
 * llama.cpp looks for "phi-3" or "phi3" in the name: then it looks up four tokens, without which it does not load, and
 * special tokens take the spaces behind them. A tokenizer that does so gets that name, and no other one has it.
 */
void gguf_name(const char *name, bool strips, struct gguf_keys *keys)
{
    char longer[NAME_BYTES];
    const bool named = strcasestr(name, "phi-3") || strcasestr(name, "phi3");
    if (named && !strips) return;
    snprintf(longer, sizeof longer, "%.200s%s", name, strips && !named ? " (phi-3)" : "");
    gguf_string(keys, "general.name", longer, strlen(longer));
}

/* ---- Tensors. */

static const char *const names[DECODER_TENSORS] = {[NORM1] = "attn_norm.weight",
                                                   [NORM1_BIAS] = "attn_norm.bias",
                                                   [QUERY] = "attn_q.weight",
                                                   [KEY] = "attn_k.weight",
                                                   [VALUE] = "attn_v.weight",
                                                   [QUERY_BIAS] = "attn_q.bias",
                                                   [KEY_BIAS] = "attn_k.bias",
                                                   [VALUE_BIAS] = "attn_v.bias",
                                                   [QUERY_NORM] = "attn_q_norm.weight",
                                                   [KEY_NORM] = "attn_k_norm.weight",
                                                   [PROJECTION] = "attn_output.weight",
                                                   [PROJECTION_BIAS] = "attn_output.bias",
                                                   [POST1] = "post_attention_norm.weight",
                                                   [NORM2] = "ffn_norm.weight",
                                                   [NORM2_BIAS] = "ffn_norm.bias",
                                                   [GATE] = "ffn_gate.weight",
                                                   [UP] = "ffn_up.weight",
                                                   [GATE_BIAS] = "ffn_gate.bias",
                                                   [UP_BIAS] = "ffn_up.bias",
                                                   [MLP] = "ffn_down.weight",
                                                   [MLP_BIAS] = "ffn_down.bias",
                                                   [POST2] = "post_ffw_norm.weight",
                                                   [DELTA_QKV] = "attn_qkv.weight",
                                                   [DELTA_TAPS] = "ssm_conv1d.weight",
                                                   [DELTA_B] = "ssm_beta.weight",
                                                   [DELTA_A] = "ssm_alpha.weight",
                                                   [DELTA_SHIFT] = "ssm_dt.bias",
                                                   [DELTA_RATE] = "ssm_a",
                                                   [DELTA_Z] = "attn_gate.weight",
                                                   [DELTA_NORM] = "ssm_norm.weight",
                                                   [DELTA_PROJECTION] = "ssm_out.weight",
                                                   [CONV] = "shortconv.conv.weight"};

/* Of a block with a convolution; q, k and v in one tensor; the first product of an MLP without a gate. */
static const char *name_of(const struct gguf_family *family, const struct decoder_form *form, bool conv,
                           uint32_t tensor)
{
    if (conv && tensor == QUERY) return "shortconv.in_proj.weight";
    if (conv && tensor == PROJECTION) return "shortconv.out_proj.weight";
    if (family->norm2 && tensor == NORM2) return family->norm2;
    if (form->qkv_one_tensor && tensor == QUERY) return "attn_qkv.weight";
    if (form->qkv_one_tensor && tensor == QUERY_BIAS) return "attn_qkv.bias";
    if (!form->names[UP] && tensor == GATE) return names[UP];
    if (!form->names[UP] && tensor == GATE_BIAS) return names[UP_BIAS];
    return names[tensor];
}

/* "layers.3.mlp.up_proj.weight": the block's number and the rest. False: it is of no block. */
static bool of_block(const struct decoder_form *form, const char *tensor, uint32_t *block, const char **rest)
{
    const size_t bytes = strlen(form->blocks);
    char *end;
    if (strncmp(tensor, form->blocks, bytes) != 0 || tensor[bytes] != '.') return false;
    *block = (uint32_t)strtoul(tensor + bytes + 1, &end, 10);
    *rest = end + 1;
    return *end == '.';
}

static bool is_norm(uint32_t tensor)
{
    return tensor == NORM1 || tensor == NORM2 || tensor == POST1 || tensor == POST2 || tensor == QUERY_NORM ||
           tensor == KEY_NORM;
}

/* Halves of a head, whose columns turn together, become neighbours. */
static struct gguf_order neighbours(const struct aq_model_config *model)
{
    return (struct gguf_order){.groups = 2, .items = decoder_head_dim(model) / 2, .rows = 1};
}

/*
 * Heads of values of the delta rule: here those of a head of keys follow each other, there the first of each head of
 * keys, then the second of each. Those of all tensors that have one or more rows per head of values.
 */
static void place_delta(const struct aq_model_config *model, uint32_t tensor, struct gguf_place *out)
{
    const uint32_t keys = model->own[DELTA_OWN_KEYS], Dv = model->own[DELTA_OWN_DV];
    const struct gguf_order heads = {0, keys, model->own[DELTA_OWN_VALUES] / keys, Dv};
    const struct gguf_order ones = {0, keys, heads.items, 1};
    const struct gguf_order behind = {2 * (uint64_t)keys * model->own[DELTA_OWN_DK], keys, heads.items, Dv};
    out->plain = tensor == DELTA_TAPS;
    out->decay = tensor == DELTA_RATE;
    if (heads.items == 1) return;
    if (tensor == DELTA_QKV || tensor == DELTA_TAPS) out->order = behind;
    if (tensor == DELTA_Z) out->order = heads;
    if (tensor == DELTA_B || tensor == DELTA_A || tensor == DELTA_SHIFT || tensor == DELTA_RATE) out->order = ones;
    if (tensor == DELTA_PROJECTION) out->columns = heads;
}

static enum aq_status place_block(const struct gguf_family *family, const struct aq_model_config *model,
                                  const struct decoder_form *form, uint32_t block, const char *rest,
                                  struct gguf_place *out)
{
    const bool conv = form->conv_names && decoder_convolves(model, block);
    const char *const *ours = conv ? form->conv_names : form->names;
    for (uint32_t t = 0; t < DECODER_TENSORS; t++) {
        if (!ours[t] || strcmp(ours[t], rest) != 0) continue;
        snprintf(out->name, sizeof out->name, "blk.%u.%s", block, name_of(family, form, conv, t));
        if (family->turns_pairs && (t == QUERY || t == QUERY_BIAS || t == KEY || t == KEY_BIAS))
            out->order = neighbours(model);
        if (form->rms && is_norm(t)) out->plus = form->plus;
        if (t >= DELTA_QKV && t <= DELTA_PROJECTION) place_delta(model, t, out);
        if (t == CONV) out->plain = true;
        out->turn = family->in_out;
        return AQ_OK;
    }
    return aq_fail(AQ_INVAL, GGUF_AREA, "tensor %s of a block has no name in GGUF", rest);
}

enum aq_status gguf_place(const struct gguf_family *family, const struct aq_model_config *model, const char *tensor,
                          struct gguf_place *out)
{
    struct layer layer = {.number = 1};
    const char *rest;
    uint32_t block;
    stage_layer(model, model->context, 1, &layer);
    const struct decoder_form *form = layer.form;
    const struct {
        const char *tensor, *name;
        bool norm, plain;
    } others[] = {{form->tokens, "token_embd.weight", false, false},
                  {form->positions, "position_embd.weight", false, true},
                  {form->norm, family->norm ? family->norm : "output_norm.weight", true, false},
                  {form->norm_bias, "output_norm.bias", false, false},
                  {form->head, "output.weight", false, false}};
    *out = (struct gguf_place){.plus = 0};
    if (of_block(form, tensor, &block, &rest)) return place_block(family, model, form, block, rest, out);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        if (!others[i].tensor || strcmp(others[i].tensor, tensor) != 0) continue;
        if (others[i].tensor == form->head && family->tied)
            return refuse(model, "its head differs from its embedding, and llama.cpp has one table for both");
        snprintf(out->name, sizeof out->name, "%s", others[i].name);
        if (others[i].norm && form->rms) out->plus = form->plus;
        out->plain = others[i].plain;
        return AQ_OK;
    }
    return aq_fail(AQ_INVAL, GGUF_AREA, "tensor %s has no name in GGUF", tensor);
}

/* Llama 3: a factor per pair of columns. */
static uint32_t llama3_factors(const struct aq_model_config *model, float *out, uint32_t most)
{
    const double pi = 3.14159265358979323846;
    const uint32_t R = decoder_rotary(model), pairs = R / 2;
    if (!(model->rope_factor > 1.0f) || pairs > most) return 0;
    const double factor = (double)model->rope_factor, low = (double)model->rope_low, high = (double)model->rope_high;
    const double original = model->rope_original;
    for (uint32_t i = 0; i < pairs; i++) {
        const double wave = 2.0 * pi * pow((double)model->rope_theta, 2.0 * i / R);
        const double smooth = (original / wave - low) / (high - low);
        out[i] = wave < original / high  ? 1.0f
                 : wave > original / low ? (float)factor
                                         : (float)(1.0 / ((1.0 - smooth) / factor + smooth));
    }
    return pairs;
}

uint32_t gguf_rope_factors(const struct gguf_family *family, const struct aq_model_config *model, uint32_t index,
                           const char **name, float *out, uint32_t most)
{
    const struct aq_factors *of = index ? &model->rope_short : &model->rope_long;
    if (family->in_out) return 0;
    if (model->rope_short.count && of->count <= most) {
        *name = index ? "rope_factors_short.weight" : "rope_factors_long.weight";
        memcpy(out, of->of, of->count * sizeof *out);
        return of->count;
    }
    *name = "rope_freqs.weight";
    return index ? 0 : llama3_factors(model, out, most);
}
