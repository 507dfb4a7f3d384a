/*
 * library.c -- libaqsgd's functions: check what a caller may get wrong, and call the rooms below.
 *
 * Inside, what a caller gets wrong is an assertion; outside it must be a status. So every pointer and size is looked at
 * here, and nothing below is asked for what it would refuse to answer. The log goes nowhere but into aqsgd_error.
 */
#include "aqsgd.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "aqsgd/codec.h"
#include "aqsgd/grad_codec.h"
#include "library_settings.h"

_Static_assert((int)AQSGD_INVAL == AQ_INVAL && (int)AQSGD_NOMEM == AQ_NOMEM && (int)AQSGD_NOSPC == AQ_NOSPC &&
                   (int)AQSGD_CORRUPT == AQ_CORRUPT && (int)AQSGD_KEYFRAME == AQ_CODED_KEYFRAME &&
                   (int)AQSGD_RAW == AQ_CODED_RAW,
               "the library's numbers are the project's");

enum { ERROR_BYTES = 512, TENSORS_MAX = 1 << 20 };
static const uint64_t floats_max = 1ULL << 40;

struct aqsgd_codec {
    struct aq_device *device;
    struct aq_codec *codec;
    bool keeps; /* messages */
};

struct aqsgd_grad {
    struct aq_grad_codec *codec;
    uint64_t count;
};

static _Thread_local char error_text[ERROR_BYTES];
static atomic_bool silent; /* the log goes into error_text; relaxed: a second call does the same again */

/* "aqpipe: error: codec: bits: 9; ..." without what is before the text. */
static void keep(int level, const char *line, void *context)
{
    (void)context;
    if (level != AQ_LOG_ERROR) return;
    const char *text = strstr(line, "error ");
    text = text ? text + strlen("error ") : line;
    snprintf(error_text, sizeof error_text, "%s", text);
}

static void begin(void)
{
    if (!atomic_exchange_explicit(&silent, true, memory_order_relaxed)) aq_log_sink(keep, NULL);
    error_text[0] = 0;
}

static int wrong(const char *what)
{
    snprintf(error_text, sizeof error_text, "%s", what);
    return AQSGD_INVAL;
}

/* The status for a caller of the library: internal ones are not passed on. */
static int answer(enum aq_status status)
{
    if (status != AQ_OK && !error_text[0]) snprintf(error_text, sizeof error_text, "%s", aq_status_text(status));
    return status == AQ_OK || status == AQ_NOMEM || status == AQ_NOSPC || status == AQ_CORRUPT ? (int)status
                                                                                               : AQSGD_INVAL;
}

uint32_t aqsgd_version(void)
{
    return 10000 * AQSGD_VERSION_MAJOR + 100 * AQSGD_VERSION_MINOR + AQSGD_VERSION_PATCH;
}

const char *aqsgd_error(void)
{
    return error_text;
}

uint64_t aqsgd_digest(const void *bytes, size_t count)
{
    return count == 0 || !bytes ? aq_digest("", 0) : aq_digest(bytes, count);
}

/* ---- activations ---- */

int aqsgd_codec_open(const char *settings, uint32_t rows, uint32_t columns, uint32_t threads, struct aqsgd_codec **out)
{
    struct aq_codec_config config;
    void *memory;
    begin();
    if (!settings || !out) return wrong("aqsgd_codec_open: settings or out is NULL");
    enum aq_status status = aq_library_settings(settings, &config);
    if (status == AQ_OK) status = aq_codec_config_check(&config, rows, columns);
    if (status == AQ_OK) status = aq_alloc(sizeof(struct aqsgd_codec), &memory);
    if (status != AQ_OK) return answer(status);
    struct aqsgd_codec *codec = memory;
    const struct aq_device_config device = {.kind = "cpu", .threads = threads};
    status = aq_device_open(&device, &codec->device);
    if (status == AQ_OK) status = aq_codec_open(codec->device, &config, rows, columns, &codec->codec);
    if (status != AQ_OK) {
        aqsgd_codec_close(codec);
        return answer(status);
    }
    codec->keeps = aq_codec_message_bytes(codec->codec) > 0;
    *out = codec;
    return AQSGD_OK;
}

void aqsgd_codec_close(struct aqsgd_codec *codec)
{
    if (!codec) return;
    aq_codec_close(codec->codec);
    aq_device_close(codec->device);
    aq_free(codec);
}

uint64_t aqsgd_codec_digest(const struct aqsgd_codec *codec)
{
    return codec ? aq_codec_config_digest(aq_codec_config_of(codec->codec)) : 0;
}

void aqsgd_codec_text(const struct aqsgd_codec *codec, char *text, size_t bytes)
{
    if (!text || bytes == 0) return;
    text[0] = 0;
    if (codec) aq_codec_config_text(aq_codec_config_of(codec->codec), text, bytes);
}

size_t aqsgd_bound(const struct aqsgd_codec *codec)
{
    return codec ? aq_codec_bound(codec->codec) : 0;
}

size_t aqsgd_body_bytes(const struct aqsgd_codec *codec, int keyframe)
{
    return codec ? aq_codec_body_bytes(codec->codec, keyframe != 0) : 0;
}

size_t aqsgd_message_bytes(const struct aqsgd_codec *codec)
{
    return codec ? aq_codec_message_bytes(codec->codec) : 0;
}

int aqsgd_encode(struct aqsgd_codec *codec, const float *a, const void *m, uint64_t key, void *body, size_t capacity,
                 size_t *body_bytes, uint32_t *flags, float *hat, void *m_out)
{
    struct aq_codec_result result;
    begin();
    if (!codec || !a || !body || !body_bytes || !flags) return wrong("aqsgd_encode: a pointer is NULL");
    if (!codec->keeps) m = m_out = NULL;
    const struct aq_rng_key random = aq_rng_key(key, AQ_RNG_ROUND, 0, 0);
    const enum aq_status status =
        aq_codec_encode(codec->codec, a, m, &random, body, capacity, hat, m_out, &result, NULL);
    if (status != AQ_OK) return answer(status);
    *body_bytes = result.body_bytes;
    *flags = result.flags;
    return AQSGD_OK;
}

int aqsgd_decode(struct aqsgd_codec *codec, const void *body, size_t body_bytes, uint32_t flags, const void *m,
                 float *hat, void *m_out)
{
    begin();
    if (!codec || !body) return wrong("aqsgd_decode: a pointer is NULL");
    if (!codec->keeps) m = m_out = NULL;
    return answer(aq_codec_decode(codec->codec, body, body_bytes, flags, m, hat, m_out, NULL));
}

/* ---- gradients ---- */

int aqsgd_grad_open(const char *name, const uint64_t *counts, uint32_t tensors, struct aqsgd_grad **out)
{
    struct aq_grad_codec_config config;
    void *memory, *list = NULL;
    uint64_t offset = 0;
    begin();
    if (!name || !counts || !out || tensors == 0 || tensors > TENSORS_MAX)
        return wrong("aqsgd_grad_open: name, counts or out is NULL, or there are no tensors, or too many");
    if (!aq_grad_codec_config_named(&config, name)) {
        snprintf(error_text, sizeof error_text, "grad: there is no compressor '%.40s'", name);
        return AQSGD_INVAL;
    }
    enum aq_status status = aq_alloc(tensors * sizeof(struct aq_optimizer_tensor), &list);
    if (status != AQ_OK) return answer(status);
    struct aq_optimizer_tensor *at = list;
    for (uint32_t t = 0; t < tensors; t++) {
        if (counts[t] == 0 || counts[t] > floats_max - offset) {
            aq_free(list);
            return wrong("aqsgd_grad_open: a tensor of no floats, or of too many");
        }
        at[t] = (struct aq_optimizer_tensor){.offset = offset, .count = counts[t]};
        offset += counts[t];
    }
    status = aq_alloc(sizeof(struct aqsgd_grad), &memory);
    if (status == AQ_OK) {
        struct aqsgd_grad *grad = memory;
        grad->count = offset;
        status = aq_grad_codec_open(&config, at, tensors, offset, &grad->codec);
        if (status == AQ_OK)
            *out = grad;
        else
            aq_free(grad);
    }
    aq_free(list);
    return answer(status);
}

void aqsgd_grad_close(struct aqsgd_grad *grad)
{
    if (!grad) return;
    aq_grad_codec_close(grad->codec);
    aq_free(grad);
}

static bool inside(const struct aqsgd_grad *grad, uint64_t first, uint64_t count)
{
    return grad && count > 0 && first < grad->count && count <= grad->count - first;
}

size_t aqsgd_grad_bytes(const struct aqsgd_grad *grad, uint64_t first, uint64_t count)
{
    return inside(grad, first, count) ? aq_grad_codec_bytes(grad->codec, first, count) : 0;
}

int aqsgd_grad_encode(const struct aqsgd_grad *grad, uint64_t first, uint64_t count, const float *x, float *error,
                      uint64_t step, void *wire)
{
    begin();
    if (!inside(grad, first, count) || !x || !wire || x == error)
        return wrong("aqsgd_grad_encode: a pointer is NULL, x is error, or the range leaves the buffer");
    return answer(aq_grad_encode(grad->codec, first, count, x, error, step, wire));
}

int aqsgd_grad_decode(const struct aqsgd_grad *grad, uint64_t first, uint64_t count, const void *wire, size_t bytes,
                      float weight, int add, float *sum)
{
    begin();
    if (!inside(grad, first, count) || !wire || !sum)
        return wrong("aqsgd_grad_decode: a pointer is NULL, or the range leaves the buffer");
    return answer(aq_grad_decode(grad->codec, first, count, wire, bytes, weight, add != 0, sum));
}
