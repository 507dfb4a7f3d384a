/*
 * grad_codec.c -- the table of gradient codecs, a range's runs, lengths, and the two calls.
 */

#include "grad_internal.h"

#define AREA "grad"

static const struct aq_grad_kind *const kinds[] = {
#define AQ_GRAD_CODEC(name) &aq_grad_codec_kind_##name,
#include "aqsgd/grad_codecs.def"
};

enum { KIND_COUNT = sizeof kinds / sizeof kinds[0] };

static const struct aq_grad_kind *find_kind(const char *name)
{
    for (size_t i = 0; i < KIND_COUNT; i++) {
        if (name && strcmp(kinds[i]->name, name) == 0) return kinds[i];
    }
    return NULL;
}

const char *aq_grad_codec_kind(uint32_t index)
{
    return index < KIND_COUNT ? kinds[index]->name : NULL;
}

const char *aq_grad_list(char *text, size_t bytes, const char *(*name)(uint32_t index))
{
    text[0] = '\0';
    for (uint32_t i = 0; name(i); i++) {
        strncat(text, i == 0 ? "" : name(i + 1) ? ", " : " and ", bytes - strlen(text) - 1);
        strncat(text, name(i), bytes - strlen(text) - 1);
    }
    return text;
}

void aq_grad_codec_config_default(struct aq_grad_codec_config *out, const char *kind)
{
    const struct aq_grad_kind *found = find_kind(kind);
    *out = (struct aq_grad_codec_config){.kind = found ? found->name : kind};
    if (found && found->config_default) found->config_default(out);
}

enum aq_status aq_grad_codec_config_check(const struct aq_grad_codec_config *config)
{
    const struct aq_grad_kind *kind = find_kind(config->kind);
    char known[AQ_GRAD_LIST_BYTES];
    if (!kind)
        return aq_fail(AQ_INVAL, AREA, "kind: there is no gradient codec \"%s\"; known are %s",
                       config->kind ? config->kind : "(none)", aq_grad_list(known, sizeof known, aq_grad_codec_kind));
    return kind->config_check(config);
}

/* Their names in manifests. */
static const struct {
    const char *prefix; /* the whole name, or the part before the bits */
    const char *kind;
    bool bits;
} names[] = {
#define AQ_GRAD_CODEC(kind)              {#kind, #kind, false},
#define AQ_GRAD_CODEC_BITS(kind, prefix) {#prefix, #kind, true},
#include "aqsgd/grad_codecs.def"
};

bool aq_grad_codec_config_named(struct aq_grad_codec_config *out, const char *name)
{
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const size_t length = strlen(names[i].prefix);
        if (strncmp(name, names[i].prefix, length) != 0) continue;
        const char *rest = name + length;
        if (names[i].bits ? rest[0] < '2' || rest[0] > '8' || rest[1] : rest[0]) continue;
        aq_grad_codec_config_default(out, names[i].kind);
        if (names[i].bits) out->bits = (uint32_t)(rest[0] - '0');
        return true;
    }
    return false;
}

void aq_grad_codec_config_take(struct aq_grad_codec_config *out, const struct aq_grad_codec_config *wished)
{
    const struct aq_grad_kind *kind = find_kind(out->kind);
    const uint32_t has = kind ? kind->has : 0;
    if (has & AQ_GRAD_HAS_BUCKET && wished->bucket) out->bucket = wished->bucket;
    if (has & AQ_GRAD_HAS_GRID && wished->grid) out->grid = wished->grid;
    if (has & AQ_GRAD_HAS_SCALE && wished->scale) out->scale = wished->scale;
    if (has & AQ_GRAD_HAS_NORM && wished->norm != 0.0f) out->norm = wished->norm;
    if (has & AQ_GRAD_HAS_DENSITY && wished->density != 0.0f) out->density = wished->density;
}

bool aq_grad_codec_config_on_gpu(const struct aq_grad_codec_config *config)
{
    const struct aq_grad_kind *kind = find_kind(config->kind);
    return kind == NULL || kind->gpu != 0;
}

enum aq_status aq_grad_codec_config_check_device(const struct aq_grad_codec_config *config)
{
    const struct aq_grad_kind *kind = find_kind(config->kind);
    AQ_ASSERT(kind != NULL);
    if (kind->gpu == 0) return aq_fail(AQ_NODEV, AREA, "%s has no kernels for a GPU", kind->name);
    return AQ_OK;
}

bool aq_grad_codec_config_plain(const struct aq_grad_codec_config *config)
{
    return !config->kind || strcmp(config->kind, aq_grad_codec_kind_fp32.name) == 0;
}

bool aq_grad_codec_config_signs(const struct aq_grad_codec_config *config)
{
    const struct aq_grad_kind *kind = find_kind(config->kind);
    return kind != NULL && kind->signs_alone;
}

bool aq_grad_codec_config_needs_errors(const struct aq_grad_codec_config *config)
{
    const struct aq_grad_kind *kind = find_kind(config->kind);
    return kind != NULL && kind->needs_errors;
}

bool aq_grad_codec_config_one_sided(const struct aq_grad_codec_config *config)
{
    const struct aq_grad_kind *kind = find_kind(config->kind);
    return kind != NULL && kind->one_sided;
}

bool aq_grad_codec_config_keeps_server(const struct aq_grad_codec_config *config)
{
    const struct aq_grad_kind *kind = find_kind(config->kind);
    return kind != NULL && kind->lossy && !kind->one_sided && !kind->mean_exact;
}

bool aq_grad_codec_config_lossy(const struct aq_grad_codec_config *config)
{
    const struct aq_grad_kind *kind = find_kind(config->kind);
    return kind != NULL && kind->lossy;
}

const struct aq_grad_codec_config *aq_grad_codec_config_of(const struct aq_grad_codec *codec)
{
    return &codec->config;
}

enum aq_status aq_grad_check_nothing(const struct aq_grad_codec_config *config)
{
    (void)config;
    return AQ_OK;
}

enum aq_status aq_grad_check_bits(const struct aq_grad_codec_config *config)
{
    if (config->bits >= 2 && config->bits <= 8) return AQ_OK;
    return aq_fail(AQ_INVAL, AREA, "bits is %u, must be 2 to 8", (unsigned)config->bits);
}

enum aq_status aq_grad_check_bucket(const struct aq_grad_codec_config *config)
{
    if (config->bucket % 64 == 0) return AQ_OK;
    return aq_fail(AQ_INVAL, AREA, "bucket is %u, must be a multiple of 64, or 0 for one scale a tensor",
                   (unsigned)config->bucket);
}

uint64_t aq_grad_scales_none(const struct aq_grad_codec_config *config, uint64_t count)
{
    (void)config;
    (void)count;
    return 0;
}

uint64_t aq_grad_scales_bucket(const struct aq_grad_codec_config *config, uint64_t count)
{
    return config->bucket == 0 ? 1 : (count + config->bucket - 1) / config->bucket;
}

/* Copies the tensors that are not empty; they must be in order, within the buffer and apart. */
static enum aq_status copy_tensors(const struct aq_optimizer_tensor *tensors, uint32_t count, uint64_t parameters,
                                   struct aq_grad_codec *codec)
{
    uint64_t end = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct aq_optimizer_tensor *tensor = &tensors[i];
        if (tensor->offset < end || tensor->offset > parameters || tensor->count > parameters - tensor->offset)
            return aq_fail(AQ_INVAL, AREA, "tensor %u has floats %llu + %llu; free are %llu to %llu", (unsigned)i,
                           (unsigned long long)tensor->offset, (unsigned long long)tensor->count,
                           (unsigned long long)end, (unsigned long long)parameters);
        if (tensor->count == 0) continue;
        end = tensor->offset + tensor->count;
        codec->tensors[codec->tensor_count] = *tensor;
        codec->tensors[codec->tensor_count++].name = NULL; /* the caller's text need not live on */
    }
    return AQ_OK;
}

/* The equal text of the table: the caller's need not live on. Checked before. */
static const char *settled(const char *text)
{
    static const char *const texts[] = {"tread", "rise", "signed", "l1", "l2"};
    for (size_t i = 0; text && i < sizeof texts / sizeof texts[0]; i++) {
        if (strcmp(texts[i], text) == 0) return texts[i];
    }
    return NULL;
}

enum aq_status aq_grad_codec_open(const struct aq_grad_codec_config *config, const struct aq_optimizer_tensor *tensors,
                                  uint32_t tensor_count, uint64_t parameters, struct aq_grad_codec **out)
{
    AQ_TRY(aq_grad_codec_config_check(config));
    if (parameters > SIZE_MAX / 8)
        return aq_fail(AQ_INVAL, AREA, "there is not enough memory for %llu parameters",
                       (unsigned long long)parameters);
    struct aq_grad_codec *codec;
    AQ_TRY(AQ_NEW(1, &codec));
    *codec = (struct aq_grad_codec){.kind = find_kind(config->kind),
                                    .config = *config,
                                    .parameters = parameters,
                                    .kernels = aq_grad_kernels_best(),
                                    .rows = aq_codec_kernels_best()};
    codec->config.kind = codec->kind->name;
    codec->config.grid = settled(config->grid);
    codec->config.scale = settled(config->scale);
    enum aq_status status;
    AQ_TRY_GOTO(AQ_NEW((size_t)tensor_count, &codec->tensors), out);
    AQ_TRY_GOTO(copy_tensors(tensors, tensor_count, parameters, codec), out);
out:
    if (status != AQ_OK)
        aq_grad_codec_close(codec);
    else
        *out = codec;
    return status;
}

void aq_grad_codec_close(struct aq_grad_codec *codec)
{
    if (!codec) return;
    aq_free(codec->tensors);
    aq_free(codec);
}

uint32_t aq_grad_tensor_at(const struct aq_optimizer_tensor *tensors, uint32_t tensor_count, uint64_t at)
{
    uint32_t low = 0, high = tensor_count;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (tensors[middle].offset + tensors[middle].count > at)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

void aq_grad_runs_init(struct aq_grad_runs *runs, const struct aq_grad_codec *codec, uint64_t first, uint64_t count)
{
    *runs = (struct aq_grad_runs){.codec = codec,
                                  .first = first,
                                  .end = first + count,
                                  .at = first,
                                  .tensor = aq_grad_tensor_at(codec->tensors, codec->tensor_count, first)};
}

bool aq_grad_runs_next(struct aq_grad_runs *runs, struct aq_grad_run *out)
{
    if (runs->at == runs->end) return false;
    const bool left = runs->tensor < runs->codec->tensor_count;
    const struct aq_optimizer_tensor *tensor = left ? &runs->codec->tensors[runs->tensor] : NULL;
    const bool inside = left && tensor->offset <= runs->at;
    uint64_t stop = runs->end;
    if (inside)
        stop = tensor->offset + tensor->count;
    else if (left)
        stop = tensor->offset;
    if (stop > runs->end) stop = runs->end;
    *out = (struct aq_grad_run){.offset = runs->at - runs->first, .count = stop - runs->at, .padding = !inside};
    if (inside && stop == tensor->offset + tensor->count) runs->tensor++;
    runs->at = stop;
    return true;
}

static uint64_t scale_bytes(const struct aq_grad_codec *codec, uint64_t first, uint64_t count)
{
    struct aq_grad_runs runs;
    struct aq_grad_run run;
    uint64_t scales = 0;
    if (codec->kind->scales == aq_grad_scales_none) return 0;
    aq_grad_runs_init(&runs, codec, first, count);
    while (aq_grad_runs_next(&runs, &run)) {
        if (!run.padding) scales += codec->kind->scales(&codec->config, run.count);
    }
    return scales * sizeof(float);
}

static uint64_t code_bytes(const struct aq_grad_codec *codec, uint64_t first, uint64_t count)
{
    if (codec->kind->code_bytes) return codec->kind->code_bytes(codec, first, count);
    const uint32_t bits = aq_grad_code_bits(codec);
    return count / 8 * bits + (count % 8 * bits + 7) / 8;
}

float aq_grad_codec_weight(const struct aq_grad_codec *codec, uint32_t ranks)
{
    return codec->kind->signs_alone ? 1.0f : 1.0f / (float)ranks;
}

size_t aq_grad_codec_bytes(const struct aq_grad_codec *codec, uint64_t first, uint64_t count)
{
    AQ_ASSERT(first <= codec->parameters && count <= codec->parameters - first);
    return (size_t)(scale_bytes(codec, first, count) + code_bytes(codec, first, count));
}

uint64_t aq_grad_codec_bytes_pieces(const struct aq_grad_codec *codec, uint64_t first, uint64_t count)
{
    uint64_t bytes = 0;
    for (uint64_t at = 0; at < count; at += AQ_GRAD_PIECE)
        bytes += aq_grad_codec_bytes(codec, first + at, count - at < AQ_GRAD_PIECE ? count - at : AQ_GRAD_PIECE);
    return bytes;
}

static enum aq_status check_range(const struct aq_grad_codec *codec, uint64_t first, uint64_t count)
{
    if (first <= codec->parameters && count <= codec->parameters - first) return AQ_OK;
    return aq_fail(AQ_INVAL, AREA, "floats %llu + %llu exceed a buffer of %llu", (unsigned long long)first,
                   (unsigned long long)count, (unsigned long long)codec->parameters);
}

enum aq_status aq_grad_encode(const struct aq_grad_codec *codec, uint64_t first, uint64_t count, const float *x,
                              float *error, uint64_t step, void *wire)
{
    AQ_TRY(check_range(codec, first, count));
    const struct aq_grad_range range = {.first = first,
                                        .count = count,
                                        .step = step,
                                        .scales = wire,
                                        .codes = (uint8_t *)wire + scale_bytes(codec, first, count)};
    codec->kind->encode(codec, &range, x, error);
    return AQ_OK;
}

enum aq_status aq_grad_decode(const struct aq_grad_codec *codec, uint64_t first, uint64_t count, const void *wire,
                              size_t bytes, float weight, bool add, float *sum)
{
    AQ_TRY(check_range(codec, first, count));
    const uint64_t scales = scale_bytes(codec, first, count), codes = code_bytes(codec, first, count);
    if (bytes != scales + codes)
        return aq_fail(AQ_CORRUPT, AREA, "floats %llu + %llu arrived in %zu bytes; %s encodes them in %llu",
                       (unsigned long long)first, (unsigned long long)count, bytes, codec->kind->name,
                       (unsigned long long)(scales + codes));
    /* Decoding only reads; the range has one form for both directions. */
    uint8_t *start = (uint8_t *)(uintptr_t)wire;
    const struct aq_grad_range range = {.first = first, .count = count, .scales = start, .codes = start + scales};
    return codec->kind->decode(codec, &range, weight, add, sum);
}

void aq_grad_chunk(uint64_t count, uint32_t size, uint32_t index, uint64_t *first, uint64_t *chunk)
{
    AQ_ASSERT(size > 0 && index < size);
    const uint64_t each = ((count + size - 1) / size + 63) / 64 * 64;
    *first = each * index < count ? each * index : count;
    *chunk = count - *first < each ? count - *first : each;
}

size_t aq_lanes_bytes(uint64_t count, uint32_t bits)
{
    return (size_t)((count * bits + 63) / 64 * 8);
}

void aq_lanes_add(void *to, const void *from, size_t bytes)
{
    uint8_t *t = to;
    const uint8_t *f = from;
    AQ_ASSERT(bytes % 8 == 0);
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t a, b;
        memcpy(&a, t + i, 8);
        memcpy(&b, f + i, 8);
        a += b;
        memcpy(t + i, &a, 8);
    }
}
