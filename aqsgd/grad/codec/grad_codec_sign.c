/*
 * grad_codec_sign.c -- one bit per value and one scale per tensor: Seide et al. 2014; 1-bit Adam (Tang et al. 2021,
 * section 6.1) and 1-bit LAMB (Li et al. 2022, Algorithm 1: C[x] = ||x|| / ||Sign(x)|| Sign(x)).
 *
 * That norm is the second one: s is the root mean square (scale "l2"). s = mean |x| ("l1") has the least squared error,
 * and never a larger one than x itself, whatever x looks like; the other has, where x is heavy-tailed.
 *
 * Differs from DeepSpeed: a scale is of a tensor's part of one piece, not of a whole tensor, so that a piece travels
 * while the next is encoded; and padding is not in it.
 */
#include <math.h>

#include "cuda_grad.h"
#include "grad_internal.h"

static void sign_config_default(struct aq_grad_codec_config *out)
{
    out->scale = "l1";
}

static enum aq_status sign_config_check(const struct aq_grad_codec_config *config)
{
    AQ_TRY(aq_grad_check_bucket(config));
    if (config->scale && (strcmp(config->scale, "l1") == 0 || strcmp(config->scale, "l2") == 0)) return AQ_OK;
    return aq_fail(AQ_INVAL, "grad", "scale is \"%s\", must be l1 or l2", config->scale ? config->scale : "(none)");
}

/* Bits at..at+n-1 of the stream from `bits`, n of them from the start of a byte; the rest of the stream's last byte is
 * kept. */
static void splice(uint8_t *stream, uint64_t at, const uint8_t *bits, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        const uint8_t bit = (uint8_t)(bits[i / 8] >> i % 8 & 1);
        stream[(at + i) / 8] = (uint8_t)(stream[(at + i) / 8] | bit << (at + i) % 8);
    }
}

/*
 * One bucket: the stretch up to the next whole byte of the stream, if it does not start at one, then the rest; both
 * with one scale. The bytes of the stream are zero so far where they are not written whole.
 */
static void encode_bucket(const struct aq_grad_codec *codec, uint8_t *stream, uint64_t at, uint64_t n, const float *x,
                          float *error, uint8_t **scale_at)
{
    const bool square = strcmp(codec->config.scale, "l2") == 0;
    const enum aq_sign_sum ask = square ? AQ_SIGN_SQUARE : AQ_SIGN_ABS;
    const uint64_t to_byte = (8 - at % 8) % 8, head = n < to_byte ? n : to_byte;
    uint8_t first[1];
    const uint8_t *whole = stream + (at + head) / 8;
    double sum = 0.0;
    if (head > 0) {
        sum = (double)codec->kernels->sign_pack(x, error, (size_t)head, true, ask, first);
        splice(stream, at, first, head);
    }
    if (n > head)
        sum += (double)codec->kernels->sign_pack(x + head, error ? error + head : NULL, (size_t)(n - head), true, ask,
                                                 stream + (at + head) / 8);
    const double mean = sum / (double)n;
    const float s = (float)(square ? sqrt(mean) : mean);
    aq_grad_put_scale(scale_at, s);
    if (!error) return;
    if (head > 0) codec->kernels->sign_error(error, (size_t)head, first, s);
    codec->kernels->sign_error(error + head, (size_t)(n - head), whole, s);
}

static void sign_encode(const struct aq_grad_codec *codec, const struct aq_grad_range *range, const float *x,
                        float *error)
{
    struct aq_grad_runs runs;
    struct aq_grad_run run;
    uint8_t *scale_at = range->scales;
    memset(range->codes, 0, (size_t)((range->count + 7) / 8));
    aq_grad_runs_init(&runs, codec, range->first, range->count);
    while (aq_grad_runs_next(&runs, &run)) {
        if (run.padding) continue;
        const uint64_t bucket = codec->config.bucket ? codec->config.bucket : run.count;
        for (uint64_t at = 0; at < run.count; at += bucket) {
            const uint64_t n = run.count - at < bucket ? run.count - at : bucket;
            encode_bucket(codec, range->codes, run.offset + at, n, x + run.offset + at,
                          error ? error + run.offset + at : NULL, &scale_at);
        }
    }
}

static void decode_bucket(const struct aq_grad_codec *codec, const uint8_t *stream, uint64_t at, uint64_t n, float s,
                          bool add, float *sum)
{
    const uint64_t to_byte = (8 - at % 8) % 8, head = n < to_byte ? n : to_byte;
    if (head > 0) {
        const uint8_t first = (uint8_t)(stream[at / 8] >> at % 8);
        codec->kernels->sign_apply(&first, (size_t)head, s, add, sum);
    }
    if (n > head) codec->kernels->sign_apply(stream + (at + head) / 8, (size_t)(n - head), s, add, sum + head);
}

static enum aq_status sign_decode(const struct aq_grad_codec *codec, const struct aq_grad_range *range, float weight,
                                  bool add, float *sum)
{
    struct aq_grad_runs runs;
    struct aq_grad_run run;
    const uint8_t *scale_at = range->scales;
    aq_grad_runs_init(&runs, codec, range->first, range->count);
    while (aq_grad_runs_next(&runs, &run)) {
        float *to = sum + run.offset;
        if (run.padding) {
            if (!add) memset(to, 0, (size_t)run.count * sizeof *to);
            continue;
        }
        const uint64_t bucket = codec->config.bucket ? codec->config.bucket : run.count;
        for (uint64_t at = 0; at < run.count; at += bucket) {
            const uint64_t n = run.count - at < bucket ? run.count - at : bucket;
            const float s = aq_grad_get_scale(&scale_at);
            if (!aq_grad_scale_valid(s))
                return aq_fail(AQ_CORRUPT, "grad", "the scale of float %llu is %g, which is not valid",
                               (unsigned long long)(range->first + run.offset + at), (double)s);
            decode_bucket(codec, range->codes, run.offset + at, n, weight * s, add, to + at);
        }
    }
    return AQ_OK;
}

const struct aq_grad_kind aq_grad_codec_kind_sign = {
    .name = "sign",
    .has = AQ_GRAD_HAS_BUCKET | AQ_GRAD_HAS_SCALE,
    .gpu = AQ_CUDA_GRAD_SIGN,
    .needs_errors = true,
    .lossy = true,
    .config_default = sign_config_default,
    .config_check = sign_config_check,
    .code_bits = 1,
    .scales = aq_grad_scales_bucket,
    .encode = sign_encode,
    .decode = sign_decode,
};
