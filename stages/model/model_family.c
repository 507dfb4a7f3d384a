/* model_family.c -- the one reader and the one writer of config.json of all rows. See the header. */
#include "model_family.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

const struct decoder_family *decoder_family_of(const struct aq_model_config *model)
{
    const struct stage_model *of = stage_model_find(model->kind);
    AQ_ASSERT(of && of->family);
    return of->family;
}

/* ---- The configuration. */

void decoder_family_default(const struct stage_model *of, struct aq_model_config *out)
{
    *out = (struct aq_model_config){.kind = of->kind,
                                    .blocks = 12,
                                    .heads = 12,
                                    .channels = 768,
                                    .mlp = 2048,
                                    .vocabulary = 50257,
                                    .context = 1024,
                                    .tied = AQ_TIED_EXACT,
                                    .init_std = 0.02f,
                                    .norm_eps = 1e-5f,
                                    .qk_norm = of->family->qk_norm,
                                    .rope_theta = 10000.0f,
                                    .rope_partial = 1.0f,
                                    .rope_factor = 1.0f,
                                    .rope_low = 1.0f,
                                    .rope_high = 4.0f,
                                    .rope_original = 8192,
                                    .rope_linear = 1.0f,
                                    .rope_yarn = 1.0f,
                                    .rope_fast = 32.0f,
                                    .rope_slow = 1.0f,
                                    .rope_attention = 1.0f,
                                    .rope_every = of->family->rope_every,
                                    .conv_taps = of->family->conv_taps,
                                    .attention_blocks = of->family->conv_taps ? 0x24924924 : 0,
                                    .attention_blocks_high = of->family->conv_taps ? 0x49249249 : 0,
                                    .embedding_scale = 1.0f,
                                    .score_scale = of->family->score_scale,
                                    .residual_scale = 1.0f,
                                    .logit_divisor = 1.0f};
    memcpy(out->own, of->family->own, sizeof out->own);
    if (!of->family->pooler) return;
    out->tied = AQ_TIED_NO;
    out->labels = 2;
}

enum { PLACES_MAX = 1048576 }; /* rows of a position table, as read_encoder's families read them */

/* Positions that begin behind the padding token: config.json has that token and the rows of the whole table. */
static enum aq_status check_places(const struct aq_model_config *model)
{
    const struct decoder_family *family = decoder_family_of(model);
    const uint32_t first = decoder_position_first(&family->form, model);
    if (!family->types->places_behind_pad) return AQ_OK;
    if (first > model->vocabulary)
        return aq_fail(AQ_INVAL, "stage",
                       "model.position_first is %u, but at most %u is possible: config.json has it as pad_token_id + 1",
                       first, model->vocabulary);
    if ((uint64_t)model->context + first > PLACES_MAX)
        return aq_fail(AQ_INVAL, "stage",
                       "model.context is %u: a published %s has at most %d positions, with model.position_first; "
                       "at most %u",
                       model->context, model->kind, PLACES_MAX, PLACES_MAX - first);
    return AQ_OK;
}

/* Refuses a model that no config.json of the family can express, before training instead of at the export. */
static enum aq_status check_published(const struct aq_model_config *model)
{
    const struct family_type *types = decoder_family_of(model)->types;
    bool alone = false; /* some type has biases of q, k, v without the other */
    for (const struct family_type *type = types; type->type; type++)
        alone |= type->qkv_bias;
    if (model->qkv_bias && !model->out_bias && !alone)
        return aq_fail(AQ_INVAL, "stage", "model.qkv_bias without model.out_bias: no published %s has only one of them",
                       model->kind);
    if (types->windows == FAMILY_WINDOWS_ALL && (model->window_every || model->window_from))
        return aq_fail(AQ_INVAL, "stage", "model.window_every and model.window_from: %s has a window in every block",
                       model->kind);
    if (model->rope_yarn > 1.0f && (model->rope_factor > 1.0f || model->rope_linear > 1.0f))
        return aq_fail(AQ_INVAL, "stage",
                       "model.rope_yarn with model.rope_factor or model.rope_linear: set one of them");
    return check_places(model);
}

enum aq_status decoder_family_check(const struct aq_model_config *model)
{
    AQ_TRY(decoder_range("rope_local", (double)model->rope_local, 0, 1e12));
    AQ_TRY(decoder_range("rope_partial", (double)model->rope_partial, 0, 1));
    AQ_TRY(decoder_range("rope_attention", (double)model->rope_attention, 0, 1e6));
    AQ_TRY(decoder_range("rope_factor", (double)model->rope_factor, 1, 1024));
    AQ_TRY(decoder_range("rope_yarn", (double)model->rope_yarn, 0, 1024));
    AQ_TRY(decoder_range("rope_every", model->rope_every, 0, 1024));
    AQ_TRY(decoder_range("embedding_scale", (double)model->embedding_scale, 0, 1e6));
    AQ_TRY(decoder_range("score_scale", (double)model->score_scale, 0, 1e6));
    AQ_TRY(decoder_range("score_cap", (double)model->score_cap, 0, 1e6));
    AQ_TRY(decoder_range("logit_cap", (double)model->logit_cap, 0, 1e6));
    AQ_TRY(decoder_range("residual_scale", (double)model->residual_scale, 0, 1e6));
    AQ_TRY(decoder_range("logit_divisor", (double)model->logit_divisor, 0, 1e6));
    AQ_TRY(decoder_range("types", model->types, 0, 65536));
    AQ_TRY(decoder_range("position_first", model->position_first, 0, 1048576));
    if (decoder_family_of(model)->pooler) AQ_TRY(decoder_range("labels", model->labels, 1, 65536));
    if (model->out_bias && !model->qkv_bias)
        return aq_fail(AQ_INVAL, "stage",
                       "model.out_bias without model.qkv_bias: no published model has only one of them");
    AQ_TRY(decoder_ranges(model));
    const uint32_t dim = decoder_head_dim(model), turning = (uint32_t)((float)dim * model->rope_partial);
    if (model->rope_partial < 1.0f && turning % 2)
        return aq_fail(AQ_INVAL, "stage", "model.rope_partial: %u of %u columns turn, and an odd one has no partner",
                       turning, dim);
    AQ_TRY(check_published(model));
    if (decoder_family_of(model)->form.delta) AQ_TRY(family_delta_check(model));
    if (model->conv_taps) {
        AQ_TRY(decoder_range("blocks", model->blocks, 1, FAMILY_CONV_BLOCKS));
        AQ_TRY(decoder_range("conv_taps", model->conv_taps, 1, AQ_CAUSAL_CONV_TAPS));
    }
    const uint64_t columns = (uint64_t)model->heads * decoder_head_dim(model);
    if (!decoder_family_of(model)->form.heads_whole) return AQ_OK;
    if (decoder_kv_heads(model) != model->heads)
        return aq_fail(AQ_INVAL, "stage",
                       "model.kv_heads is %u and model.heads %u: norms of all heads are computed only if both are one",
                       decoder_kv_heads(model), model->heads);
    return decoder_range("heads times model.head_dim", (double)columns, 1, 8192);
}

/* All that its keys have but the choices of training. */
void decoder_family_identity(const struct aq_model_config *model, char *text, size_t bytes)
{
    const struct stage_model *of = stage_model_find(model->kind);
    size_t used = (size_t)snprintf(text, bytes, "%s", of->kind);
    for (uint32_t i = 0; i < of->key_count && used < bytes; i++) {
        const struct aq_model_key *key = &of->keys[i];
        const char *field = (const char *)model + key->offset;
        uint32_t whole = 0;
        float number;
        if (key->offset == DECODER_FIELD(dropout) || key->offset == DECODER_FIELD(init_std)) continue;
        if (key->kind == AQ_MODEL_FACTORS) {
            const unsigned long long digest = aq_digest(field, sizeof(struct aq_factors));
            used += (size_t)snprintf(text + used, bytes - used, " %016llx", digest);
            continue;
        }
        memcpy(&whole, field, aq_model_key_bytes(key));
        memcpy(&number, &whole, sizeof number);
        if (key->offset == DECODER_FIELD(types)) whole = decoder_types(&of->family->form, model);
        if (key->offset == DECODER_FIELD(position_first)) whole = decoder_position_first(&of->family->form, model);
        if (key->offset == DECODER_FIELD(kv_heads)) whole = decoder_kv_heads(model);
        if (key->offset == DECODER_FIELD(head_dim)) whole = decoder_head_dim(model);
        if (key->kind == AQ_MODEL_TIED) whole = whole != AQ_TIED_NO;
        used += (size_t)(key->kind == AQ_MODEL_F32 ? snprintf(text + used, bytes - used, " %a", (double)number)
                                                   : snprintf(text + used, bytes - used, " %u", whole));
    }
    if (of->family->pooler && used < bytes) snprintf(text + used, bytes - used, " labels %u", model->labels);
}

void decoder_family_describe(const struct aq_model_config *model, char *text, size_t bytes)
{
    char windows[64] = "", labels[32] = "";
    uint32_t convolutions = 0;
    for (uint32_t block = 0; block < model->blocks; block++)
        convolutions += decoder_convolves(model, block);
    if (decoder_family_of(model)->pooler) snprintf(labels, sizeof labels, ", %u labels", model->labels);
    if (model->window) snprintf(windows, sizeof windows, ", windows of %u", model->window);
    if (convolutions)
        snprintf(windows, sizeof windows, ", convolutions of %u in %u blocks", model->conv_taps, convolutions);
    snprintf(text, bytes, "%u blocks, %u heads (%u of keys) of %u, %u channels, MLP %u, vocabulary %u%s%s%s%s",
             model->blocks, model->heads, decoder_kv_heads(model), decoder_head_dim(model), model->channels, model->mlp,
             model->vocabulary, model->qkv_bias ? ", biases of q, k, v" : "",
             model->qk_norm && !decoder_family_of(model)->qk_norm ? ", norms of heads" : "", windows, labels);
}

/* ---- Layers. */

uint32_t decoder_family_layers(const struct aq_model_config *model)
{
    const struct stage_model *of = stage_model_find(model->kind); /* GPT-2, too, which is no row */
    return model->blocks + (of->family && of->family->pooler ? 3 : 2);
}

void decoder_layer(const struct decoder_form *form, const struct aq_model_config *model, uint32_t T, uint32_t index,
                   struct layer *out)
{
    const struct aq_cut_shape stream = {.rows = T, .columns = model->channels};
    const bool last = index == model->blocks + 1;
    const struct layer_kind *head = model->labels ? &layer_sequence_head : &layer_language_head;
    out->kind = index == 0 ? &layer_embedding : last ? head : &layer_decoder;
    out->form = form;
    out->onward = index > 0 && !last && decoder_is_delta(form, model, index - 1);
    if (index > 0) out->in = stream;
    out->out = stream;
    if (last && model->labels)
        out->out = (struct aq_cut_shape){.rows = 1, .columns = model->labels};
    else if (last)
        out->out.columns = model->vocabulary;
    if (index == 0 || last) {
        snprintf(out->name, sizeof out->name, "%s", last ? "head" : "embedding");
    } else {
        snprintf(out->name, sizeof out->name, "block %u", index - 1);
        snprintf(out->prefix, sizeof out->prefix, "%s.%u.", form->blocks, index - 1);
    }
}

/* The layers behind an encoder's blocks. */
static void encoder_end(const struct decoder_family *of, const struct aq_model_config *model, uint32_t T, bool last,
                        struct layer *out)
{
    const struct aq_cut_shape pooled = {.rows = 1, .columns = model->channels};
    out->kind = last ? &layer_classifier : of->pooler;
    out->form = &of->form;
    out->transposed = last;
    out->in = last ? pooled : (struct aq_cut_shape){.rows = T, .columns = model->channels};
    out->out = pooled;
    if (last) out->out.columns = model->labels;
    snprintf(out->name, sizeof out->name, "%s", last ? "classifier" : "pooler");
    if (last) snprintf(out->prefix, sizeof out->prefix, "%s", of->classifier);
}

void decoder_family_layer(const struct aq_model_config *model, uint32_t T, uint32_t index, struct layer *out)
{
    const struct decoder_family *of = decoder_family_of(model);
    if (of->pooler && index > model->blocks) {
        encoder_end(of, model, T, index == model->blocks + 2, out);
        return;
    }
    decoder_layer(&decoder_family_of(model)->form, model, T, index, out);
}

/* Frequencies of heads, which older files have as tensors. */
bool decoder_family_ignores(const char *name)
{
    static const char end[] = ".rotary_emb.inv_freq";
    const size_t length = strlen(name);
    return length >= sizeof end && strcmp(name + length - (sizeof end - 1), end) == 0;
}

bool decoder_family_begins(const char *name, const char *const *begins)
{
    for (uint32_t i = 0; begins[i]; i++)
        if (strncmp(name, begins[i], strlen(begins[i])) == 0) return true;
    return false;
}

void decoder_family_name(const struct stage_model *of, const char *tensor, char *out, size_t bytes)
{
    const struct decoder_form *form = &of->family->form;
    const bool head = of->family->pooler ? decoder_family_begins(tensor, of->family->heads)
                                         : strcmp(tensor, form->head) == 0 || strcmp(tensor, form->score) == 0;
    snprintf(out, bytes, "%s%s", head ? "" : of->base, tensor);
}

/* ---- From config.json. */

static enum aq_status read_key(const struct config_json *config, const struct family_key *key,
                               struct aq_model_config *out)
{
    void *field = (char *)out + key->offset;
    if (key->kind == FAMILY_F32_NULL && json_is_null(json_object_get(config->object, key->name))) {
        *(float *)field = 0.0f;
        return AQ_OK;
    }
    const uint32_t least = (uint32_t)key->least, most = (uint32_t)key->most;
    if (key->kind != FAMILY_U32)
        return decoder_read_number(config, key->name, key->least, key->most, key->fallback, field);
    if (key->fallback == FAMILY_REQUIRED) return config_json_u32(config, key->name, least, most, field);
    const uint32_t fallback = key->fallback == FAMILY_HEADS ? out->heads : (uint32_t)key->fallback;
    return config_json_u32_or(config, key->name, least, most, fallback, field);
}

static enum aq_status read_switch(const struct config_json *config, const char *key, enum family_switch how, bool *out)
{
    if (how == FAMILY_READ) return config_json_bool_or(config, key, false, out);
    return how == FAMILY_REFUSED ? config_json_only(config, key, false) : AQ_OK;
}

static enum aq_status read_biases(const struct config_json *config, const struct family_type *type,
                                  struct aq_model_config *out)
{
    bool attention = false, mlp = false;
    AQ_TRY(read_switch(config, "attention_bias", type->attention_bias, &attention));
    AQ_TRY(read_switch(config, "mlp_bias", type->mlp_bias, &mlp));
    out->qkv_bias = type->qkv_bias || attention;
    out->out_bias = attention;
    out->mlp_bias = mlp;
    out->qk_norm = type->qk_norm;
    return AQ_OK;
}

/* The last of that many blocks has no window: a number, or as a text "LLLG". */
static enum aq_status read_pattern(const struct config_json *config, const struct family_type *type, uint32_t *every)
{
    const json_t *value = json_object_get(config->object, "sliding_window_pattern");
    const char *text = json_string_value(value);
    if (!text || !type->null_window)
        return config_json_u32_or(config, "sliding_window_pattern", type->null_window ? 0 : 1, 1024, type->window_every,
                                  every);
    const size_t count = strlen(text);
    if (count == 0 || strspn(text, "L") + 1 != count || text[count - 1] != 'G')
        return config_json_refuse(config, "sliding_window_pattern", "a number, or L several times and G behind");
    *every = (uint32_t)count;
    return AQ_OK;
}

/* Which blocks have no rotary embedding, as a list of 0 and 1 or a number n: the last of every n. */
static enum aq_status read_rope_every(const struct config_json *config, struct aq_model_config *out)
{
    const json_t *list = json_object_get(config->object, "no_rope_layers");
    AQ_TRY(config_json_u32_or(config, "no_rope_layer_interval", 1, 1024, 4, &out->rope_every));
    if (!json_is_array(list)) return AQ_OK;
    for (size_t block = 0; block < json_array_size(list); block++)
        if (!json_is_integer(json_array_get(list, block)))
            return config_json_refuse(config, "no_rope_layers", "a list of 0 and 1");
    if (json_array_size(list) < out->blocks)
        return config_json_refuse(config, "no_rope_layers", "a number for each of %u blocks", out->blocks);
    for (out->rope_every = 0; out->rope_every <= out->blocks; out->rope_every++) {
        uint32_t block = 0;
        while (block < out->blocks && (json_integer_value(json_array_get(list, block)) == 0) ==
                                          (out->rope_every && (block + 1) % out->rope_every == 0))
            block++;
        if (block == out->blocks) return AQ_OK;
    }
    return config_json_refuse(config, "no_rope_layers", "0 for the last of every n-th block and 1 for all others");
}

static enum aq_status read_windows(const struct config_json *config, const struct family_type *type,
                                   struct aq_model_config *out)
{
    const bool null = json_is_null(json_object_get(config->object, "sliding_window"));
    uint32_t window = 0, every = 0, from = 0;
    bool uses = true;
    if (type->windows == FAMILY_WINDOWS_NONE) return AQ_OK;
    if (type->windows == FAMILY_WINDOWS_OFF) return config_json_only(config, "use_sliding_window", false);
    if (type->windows == FAMILY_WINDOWS_SWITCHED) {
        AQ_TRY(config_json_bool_or(config, "use_sliding_window", false, &uses));
        AQ_TRY(config_json_u32_or(config, "max_window_layers", 0, 1048576, 28, &from));
    }
    if (type->windows == FAMILY_WINDOWS_EVERY) AQ_TRY(read_pattern(config, type, &every));
    if (type->windows == FAMILY_WINDOWS_FIXED) every = type->window_every;
    if (type->windows == FAMILY_WINDOWS_ALL || type->null_window) uses = !null;
    if (uses) AQ_TRY(config_json_u32_or(config, "sliding_window", 1, 1048576, type->window, &window));
    if (type->windows == FAMILY_WINDOWS_ALL) { /* there layer_types is another family's */
        out->window = window;
        return AQ_OK;
    }
    AQ_TRY(decoder_read_windows(config, window, every, from < 1024 ? from : 1024, out));
    if (window && !out->window && decoder_family_of(out)->form.window_turns) {
        /* A window of which no block makes use: rotary embeddings are of blocks with a window, so no block rotates. */
        out->window = window;
        out->window_every = 1;
    }
    return AQ_OK;
}

static enum aq_status read_off(const struct config_json *config, const struct family_type *type)
{
    for (uint32_t i = 0; type->off && type->off[i]; i++)
        AQ_TRY(config_json_only(config, type->off[i], false));
    for (uint32_t i = 0; type->refused && type->refused[i]; i++)
        if (config_json_has(config, type->refused[i]))
            return config_json_refuse(config, type->refused[i], "null (the option is not supported)");
    return AQ_OK;
}

/* The first position, whose rows max_position_embeddings counts; the pooling; the labels. */
static enum aq_status read_encoder(const struct config_json *config, const struct family_type *type,
                                   struct aq_model_config *out)
{
    const json_t *names = json_object_get(config->object, "id2label");
    uint32_t pooling = 0;
    out->tied = AQ_TIED_NO; /* there is no head of words */
    if (json_object_size(names) > 0)
        out->labels = (uint32_t)json_object_size(names);
    else
        AQ_TRY(config_json_u32_or(config, "num_labels", 1, 65536, out->labels, &out->labels));
    if (type->pooling) AQ_TRY(config_json_one_of(config, "classifier_pooling", "late", "late|bos|mean", &pooling));
    out->pool_late = type->pooling && pooling == 0;
    out->pool_mean = type->pooling && pooling == 2;
    if (!type->places_behind_pad) return AQ_OK;
    const uint32_t last = out->vocabulary ? out->vocabulary - 1 : 0;
    AQ_TRY(config_json_u32_or(config, "pad_token_id", 0, last, type->pad, &out->position_first));
    out->position_first++;
    if (out->context > out->position_first) {
        out->context -= out->position_first;
        return AQ_OK;
    }
    return config_json_refuse(config, "max_position_embeddings", "more than pad_token_id + 1, %u", out->position_first);
}

enum aq_status decoder_family_read(const struct config_json *config, struct aq_model_config *out)
{
    const struct family_type *first = decoder_family_of(out)->types, *type = first;
    const char *name = NULL;
    bool tied;
    AQ_TRY(config_json_text_or(config, "model_type", NULL, &name));
    while (type->type && name && strcmp(type->type, name) != 0)
        type++;
    if (!type->type || !name) return config_json_refuse(config, "model_type", "%s", first->type);
    for (uint32_t i = 0; type->keys[i].name; i++)
        AQ_TRY(read_key(config, &type->keys[i], out));
    AQ_TRY(config_json_bool_or(config, "tie_word_embeddings", type->tied, &tied));
    if (type->tied_key) AQ_TRY(config_json_bool_or(config, type->tied_key, tied, &tied));
    out->tied = tied ? AQ_TIED_EXACT : AQ_TIED_NO;
    if (type->activation) {
        char words[64];
        snprintf(words, sizeof words, "%.*s", (int)strcspn(type->activations, "|"), type->activations);
        AQ_TRY(config_json_one_of(config, type->activation, words, type->activations, NULL));
    }
    AQ_TRY(read_biases(config, type, out));
    AQ_TRY(read_off(config, type));
    AQ_TRY(read_windows(config, type, out));
    if (type->rope_every) AQ_TRY(read_rope_every(config, out));
    if (type->delta) AQ_TRY(family_read_delta(config, out));
    if (type->convolves) AQ_TRY(family_read_conv(config, out));
    if (decoder_family_of(out)->pooler) AQ_TRY(read_encoder(config, type, out));
    if (!decoder_family_of(out)->form.turns) return AQ_OK;
    return family_read_rope(config, type, out);
}

/* ---- To config.json. */

static bool has_default(const struct family_type *type, const char *key)
{
    for (uint32_t i = 0; type->keys[i].name; i++)
        if (strcmp(type->keys[i].name, key) == 0) return type->keys[i].fallback > 0;
    return false;
}

/* Does a model of the type have these biases, norms and windows? */
static bool type_has(const struct family_type *type, const struct aq_model_config *model)
{
    const bool biases = type->qkv_bias ? model->qkv_bias && !model->out_bias : model->qkv_bias == model->out_bias;
    if (!biases || type->qk_norm != model->qk_norm) return false;
    if (model->out_bias && type->attention_bias != FAMILY_READ) return false;
    if (model->mlp_bias && type->mlp_bias != FAMILY_READ) return false;
    return !model->window || (type->windows != FAMILY_WINDOWS_NONE && type->windows != FAMILY_WINDOWS_OFF);
}

static void publish_keys(const struct aq_model_config *model, const struct family_type *type, json_t *config)
{
    for (uint32_t i = 0; type->keys[i].name; i++) {
        const struct family_key *key = &type->keys[i];
        const void *field = (const char *)model + key->offset;
        float number;
        uint32_t whole;
        memcpy(&number, field, sizeof number);
        memcpy(&whole, field, sizeof whole);
        const bool null = key->kind == FAMILY_F32_NULL && number == 0.0f;
        json_object_set_new(config, key->name,
                            null                      ? json_null()
                            : key->kind == FAMILY_U32 ? json_integer((json_int_t)whole)
                                                      : decoder_number(number));
    }
    if (!decoder_family_of(model)->form.turns) return;
    json_object_set_new(config, "num_key_value_heads", json_integer(decoder_kv_heads(model)));
    json_object_del(config, "head_dim");
    if (model->head_dim || has_default(type, "head_dim"))
        json_object_set_new(config, "head_dim", json_integer(decoder_head_dim(model)));
    if (has_default(type, "query_pre_attn_scalar"))
        json_object_set_new(config, "query_pre_attn_scalar",
                            json_integer(model->query_scale ? model->query_scale : decoder_head_dim(model)));
}

static void publish_windows(const struct aq_model_config *model, const struct family_type *type, json_t *config)
{
    json_t *window = model->window ? json_integer(model->window) : json_null();
    switch (type->windows) {
    case FAMILY_WINDOWS_SWITCHED:
        json_object_set_new(config, "use_sliding_window", json_boolean(model->window));
        json_object_set_new(config, "max_window_layers",
                            json_integer(model->window ? model->window_from : model->blocks));
        break;
    case FAMILY_WINDOWS_EVERY:
    case FAMILY_WINDOWS_FIXED:
        if (model->window || type->null_window) break;
        json_decref(window);
        window = json_integer(type->window);
        break;
    case FAMILY_WINDOWS_ALL:
        break;
    case FAMILY_WINDOWS_OFF:
        json_object_set_new(config, "use_sliding_window", json_false());
        json_decref(window);
        return;
    case FAMILY_WINDOWS_NONE:
        json_decref(window);
        return;
    }
    json_object_set_new(config, "sliding_window", window);
    if (type->windows != FAMILY_WINDOWS_ALL) json_object_set_new(config, "layer_types", decoder_layer_types(model));
}

static void publish_rope_every(const struct aq_model_config *model, json_t *config)
{
    json_t *list = json_array();
    for (uint32_t block = 0; block < model->blocks; block++)
        json_array_append_new(list, json_integer(!model->rope_every || (block + 1) % model->rope_every != 0));
    json_object_set_new(config, "no_rope_layers", list);
    if (model->rope_every) json_object_set_new(config, "no_rope_layer_interval", json_integer(model->rope_every));
}

const struct family_type *decoder_family_type(const struct aq_model_config *model)
{
    const struct family_type *type = decoder_family_of(model)->types;
    while (type->type && !type_has(type, model))
        type++;
    return type->type ? type : NULL;
}

/* What is only an encoder's. */
static void publish_encoder(const struct aq_model_config *model, const struct family_type *type, json_t *config)
{
    const struct decoder_form *form = &decoder_family_of(model)->form;
    const uint32_t first = decoder_position_first(form, model);
    if (form->types) json_object_set_new(config, "type_vocab_size", json_integer(decoder_types(form, model)));
    if (type->places_behind_pad) {
        json_object_set_new(config, "max_position_embeddings", json_integer((json_int_t)model->context + first));
        json_object_set_new(config, "pad_token_id", json_integer(first - 1));
    }
    if (type->pooling) {
        const char *pooling = model->pool_late ? "late" : model->pool_mean ? "mean" : "bos";
        json_object_set_new(config, "classifier_pooling", json_string(pooling));
    }
    json_object_set_new(config, "id2label", json_object());
    for (uint32_t i = 0; i < model->labels; i++) {
        char number[16];
        snprintf(number, sizeof number, "%u", i);
        json_object_set_new(json_object_get(config, "id2label"), number, json_sprintf("LABEL_%u", i));
    }
    if (model->labels == 1) json_object_set_new(config, "problem_type", json_string("regression"));
}

enum aq_status decoder_family_publish(const struct aq_model_config *model, bool tied, int32_t end_of_text, char *json,
                                      size_t *count)
{
    const struct family_type *type = decoder_family_type(model);
    char word[64];
    if (!type)
        return aq_fail(AQ_INVAL, "stage",
                       "model.kind %s: no published model has these of model.qkv_bias, out_bias, mlp_bias, qk_norm and "
                       "window together",
                       model->kind);
    json_t *config =
        json_pack("{s:[s], s:s, s:s, s:s}", "architectures", model->labels ? type->classifier : type->architecture,
                  "model_type", type->type, "torch_dtype", "float32", "dtype", "float32");
    const bool encoder = decoder_family_of(model)->pooler != NULL;
    if (!encoder) json_object_set_new(config, "tie_word_embeddings", json_boolean(tied));
    if (type->attention_bias != FAMILY_IGNORED || !encoder)
        json_object_set_new(config, "attention_bias", json_boolean(model->qkv_bias));
    if (!type->dropouts) json_object_set_new(config, "attention_dropout", json_real((double)model->dropout));
    for (uint32_t i = 0; type->dropouts && type->dropouts[i]; i++)
        json_object_set_new(config, type->dropouts[i], json_real((double)model->dropout));
    if (type->activation) {
        snprintf(word, sizeof word, "%.*s", (int)strcspn(type->activations, "|"), type->activations);
        json_object_set_new(config, type->activation, json_string(word));
    }
    publish_keys(model, type, config);
    if (type->mlp_bias == FAMILY_READ) json_object_set_new(config, "mlp_bias", json_boolean(model->mlp_bias));
    publish_windows(model, type, config);
    if (type->rope_every) publish_rope_every(model, config);
    if (type->delta) family_publish_delta(model, config);
    if (type->convolves) family_publish_conv(model, config);
    if (decoder_family_of(model)->form.turns) family_publish_rope(model, type, config);
    if (model->vocabulary <= type->pad) json_object_set_new(config, "pad_token_id", json_null());
    if (encoder)
        publish_encoder(model, type, config);
    else
        config_json_put_ends(config, model->labels, end_of_text);
    return decoder_write(config, json, count);
}
