/*
 * attention_results.h -- attention of fixed values there and back, on a device of this environment, for tests of who
 * computes it.
 */
#ifndef AQ_ATTENTION_RESULTS_H
#define AQ_ATTENTION_RESULTS_H

#include "stage_help.h"

#include <math.h>
#include <stdlib.h>

#include "codec_common.h"
#include "cuda_cudnn.h"

enum { ATTENDED_SAMPLES = 2, ATTENDED_T = 37, ATTENDED_H = 4, ATTENDED_K = 2, ATTENDED_D = 16 };
enum {
    ATTENDED_ROWS = ATTENDED_SAMPLES * ATTENDED_T,
    ATTENDED_WIDE = ATTENDED_ROWS * (ATTENDED_H + 2 * ATTENDED_K) * ATTENDED_D,
    ATTENDED_OUT = ATTENDED_ROWS * ATTENDED_H * ATTENDED_D
};

struct attended {
    uint16_t qkv[ATTENDED_WIDE], out[ATTENDED_OUT], dout[ATTENDED_OUT], dqkv_rounded[ATTENDED_WIDE];
    float dqkv[ATTENDED_WIDE], lse[ATTENDED_ROWS * ATTENDED_H];
    _Alignas(16) uint32_t starts[ATTENDED_ROWS];
    _Alignas(16) uint32_t lengths[ATTENDED_SAMPLES];
};

struct attended_how {
    uint64_t window;
    bool small; /* one sample of 5 tokens and 2 heads: for tests that compute it often */
    float dropout;
    bool fp32, both, parts, lengths; /* fp32: gradients, which are in 16 bits else */
};

/* Of attended values that lie in device memory. */
static struct aq_attention attended_args(struct attended *x, const struct attended_how *how,
                                         const struct aq_rng_key *keys)
{
    return (struct aq_attention){.samples = how->small ? 1 : ATTENDED_SAMPLES,
                                 .T = how->small ? 5 : ATTENDED_T,
                                 .H = how->small ? 2 : ATTENDED_H,
                                 .kv_heads = how->small ? 1 : ATTENDED_K,
                                 .D = ATTENDED_D,
                                 .T_mask = ATTENDED_T,
                                 .window = how->window,
                                 .both = how->both,
                                 .type = AQ_BF16,
                                 .qkv = x->qkv,
                                 .out = x->out,
                                 .lse = x->lse,
                                 .dropout = {.probability = how->dropout, .keys = keys},
                                 .starts = how->parts ? x->starts : NULL,
                                 .lengths = how->lengths ? x->lengths : NULL,
                                 .dout = x->dout,
                                 .dqkv = x->dqkv,
                                 .dqkv_rounded = how->fp32 ? NULL : x->dqkv_rounded};
}

/* Parts of 1, 5, 9 .. tokens; the second sample has 23 tokens. */
static void attended_fill(struct attended *x)
{
    for (size_t i = 0; i < ATTENDED_WIDE; i++)
        x->qkv[i] = aq_bfloat_from_float((float)(i * 2654435761u % 256) / 128.0f - 1.0f);
    for (size_t i = 0; i < ATTENDED_OUT; i++)
        x->dout[i] = aq_bfloat_from_float((float)(i * 2246822519u % 256) / 128.0f - 1.0f);
    for (uint32_t i = 0, start = 0, next = 1; i < ATTENDED_ROWS; i++) {
        const uint32_t t = i % ATTENDED_T;
        if (t == 0) start = 0, next = 1;
        if (t == next) next = t + 5 + (start ? next - start : 0), start = t;
        x->starts[i] = start;
    }
    x->lengths[0] = ATTENDED_T;
    x->lengths[1] = 23;
}

/* free()d by the caller. */
static inline struct attended *attend(const struct attended_how *how)
{
    struct aq_device *device = NULL;
    const struct aq_device_config config = {.kind = "cuda"};
    const struct aq_rng_key keys[ATTENDED_SAMPLES] = {aq_rng_key(7, AQ_RNG_DROPOUT, 4, 0),
                                                      aq_rng_key(7, AQ_RNG_DROPOUT, 4, 1)};
    void *memory = NULL;
    struct attended *copy = malloc(sizeof *copy);
    assert_non_null(copy);
    assert_int_equal(aq_device_open(&config, &device), AQ_OK);
    assert_int_equal(aq_device_alloc(device, AQ_MEMORY_DEVICE, sizeof *copy, &memory), AQ_OK);
    struct attended *x = memory;
    attended_fill(x);
    const struct aq_attention args = attended_args(x, how, keys);
    assert_int_equal(aq_device_attention(device, &args, NULL), AQ_OK);
    assert_int_equal(aq_device_attention_backward(device, &args, NULL), AQ_OK);
    assert_int_equal(aq_device_stream_sync(device, NULL), AQ_OK);
    *copy = *x;
    aq_device_free(device, AQ_MEMORY_DEVICE, memory, sizeof *x);
    aq_device_close(device);
    return copy;
}

static inline bool attended_same(const struct attended *x, const struct attended *y)
{
    return memcmp(x->out, y->out, sizeof x->out) == 0 && memcmp(x->lse, y->lse, sizeof x->lse) == 0 &&
           memcmp(x->dqkv_rounded, y->dqkv_rounded, sizeof x->dqkv_rounded) == 0;
}

static inline void attended_near(const uint16_t *x, const uint16_t *y, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const float one = aq_bfloat_to_float(x[i]), other = aq_bfloat_to_float(y[i]);
        if (!(fabsf(one - other) <= 0.02f + 0.02f * fabsf(other)))
            fail_msg("%zu: %g, %g", i, (double)one, (double)other);
    }
}

#endif
