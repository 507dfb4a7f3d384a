/*
 * optimizer_element.h -- the arithmetic of the walks, one element at a time: the truth for the CPU and for a GPU.
 *
 * Included by optimizer_walk.inc.h and by cuda_grad_walk.cu, which say what AQ_ELEMENT and element_fma (a b + c,
 * rounded once) are there. Every operation is rounded once: both are compiled without contraction, and tests/cuda_ptx
 * looks at what nvcc made of it. `kind` and `masks` are constants where this is compiled; formulas and their sources
 * stand at the kinds (optimizer_*.c).
 */
#ifndef AQSGD_GRAD_OPTIMIZER_ELEMENT_H
#define AQSGD_GRAD_OPTIMIZER_ELEMENT_H

#include <math.h>

#include "optimizer_walk.h"

/* m = b1 m + (1 - b1) g, on this rank. */
AQ_ELEMENT void element_momentum(const struct aq_walk w, uint64_t i)
{
    w.m[i] = w.b1 * w.m[i] + w.c1 * (w.g[i] * w.scale);
}

/* v = b2 v + (1 - b2) g g. */
AQ_ELEMENT void element_variance(const struct aq_walk w, uint64_t i)
{
    const float g = w.g[i] * w.scale;
    w.v[i] = w.b2 * w.v[i] + w.c2 * g * g;
}

/*
 * A parameter whose v is exactly zero never had a gradient; what compression leaves in its momentum and errors is
 * noise, which eps would blow up. It is wiped off.
 */
AQ_ELEMENT void element_mask(const struct aq_walk w, uint64_t i)
{
    if (w.frozen[i] != 0.0f) return;
    w.m[i] = 0.0f;
    if (w.worker_error) w.worker_error[i] = 0.0f;
    if (w.server_error && i - w.chunk_first < w.chunk) w.server_error[i - w.chunk_first] = 0.0f; /* wraps below */
}

AQ_ELEMENT void element_qadam(const struct aq_walk w, const float *values, uint64_t i)
{
    const float decay = w.lr * values[0];
    const float moved = w.p[i] - w.size * w.m[i] / (sqrtf(w.v[i]) + w.eps);
    w.p[i] = moved - decay * moved;
}

AQ_ELEMENT void element_onebit_adam(const struct aq_walk w, const float *values, uint64_t i)
{
    const float decay = w.lr * values[0];
    w.p[i] = w.p[i] - decay * w.p[i] - w.lr * (w.m[i] * w.k1) / (sqrtf(w.v[i] * w.k2) + w.eps);
}

AQ_ELEMENT float element_lamb_direction(const struct aq_walk w, float decay, uint64_t i)
{
    return w.m[i] * w.k1 / (sqrtf(w.v[i] * w.k2) + w.eps) + decay * w.p[i];
}

/* |x|^2 and |u|^2. */
AQ_ELEMENT void element_lamb_moments(const struct aq_walk w, const float *values, uint64_t i, double *terms)
{
    element_momentum(w, i);
    element_variance(w, i);
    const double x = (double)w.p[i], u = (double)element_lamb_direction(w, values[0], i);
    terms[0] = x * x;
    terms[1] = u * u;
}

/* values[1]: c. */
AQ_ELEMENT void element_lamb_step(const struct aq_walk w, const float *values, uint64_t i)
{
    const float size = w.lr * values[1];
    w.p[i] -= size * element_lamb_direction(w, values[0], i);
}

/* values[2]: the momentum's scale. */
AQ_ELEMENT void element_onebit_lamb_scale(const struct aq_walk w, const float *values, uint64_t i)
{
    w.last[i] = w.m[i];
    w.m[i] = (w.b1 * w.m[i] + w.c1 * (w.g[i] * w.scale)) * values[2];
}

/* values[3]: one over the momentum's scale. r, and with root |u|^2 without and with decay. */
AQ_ELEMENT void element_onebit_lamb_rebuild(bool root, bool masks, const struct aq_walk w, const float *values,
                                            uint64_t i, double *terms)
{
    const float frozen = w.frozen[i];
    for (int k = 0; k < (root ? 3 : 1); k++)
        terms[k] = 0.0;
    if (masks) element_mask(w, i);
    if (masks && frozen == 0.0f) return; /* m is 0, v stays 0 */
    const float m = w.m[i] * values[3], g = (m - w.b1 * w.last[i]) * (1.0f / w.c1);
    const float v = w.b2 * w.v[i] + w.c2 * g * g;
    w.m[i] = m;
    w.v[i] = v;
    if (!root) {
        terms[0] = (double)(frozen / v);
        return;
    }
    const float under = sqrtf(frozen) + w.eps, u = m / under, with = u + values[0] * w.p[i];
    terms[0] = (double)(under / (sqrtf(v) + w.eps));
    terms[1] = (double)u * (double)u;
    terms[2] = (double)with * (double)with;
}

/* values[1]: r c_avg. */
AQ_ELEMENT void element_onebit_lamb_step(const struct aq_walk w, const float *values, uint64_t i)
{
    const float size = w.lr * values[1];
    w.p[i] -= size * (w.m[i] / (sqrtf(w.frozen[i]) + w.eps) + values[0] * w.p[i]);
}

/* k1 and k2: the corrections. */
AQ_ELEMENT void element_adamw(const struct aq_walk w, const float *values, uint64_t i)
{
    const float g = w.g[i] * w.scale, decay = w.lr * values[0];
    const float m = element_fma(w.b1, w.m[i], w.c1 * g), v = element_fma(w.b2, w.v[i], w.c2 * g * g);
    const float step = m * w.k1 / (sqrtf(v * w.k2) + w.eps);
    w.m[i] = m;
    w.v[i] = v;
    w.p[i] = element_fma(-w.lr, step, element_fma(-decay, w.p[i], w.p[i]));
}

/* b1: the momentum; m: the velocity. */
AQ_ELEMENT void element_sgd(bool momentum, const struct aq_walk w, const float *values, uint64_t i)
{
    const float g = w.g[i] * w.scale, decay = w.lr * values[0];
    const float u = momentum ? element_fma(w.b1, w.m[i], g) : g;
    if (momentum) w.m[i] = u;
    w.p[i] = element_fma(-w.lr, u, element_fma(-decay, w.p[i], w.p[i]));
}

/* The walks of qadam and onebit_adam. */
AQ_ELEMENT void element_adam(enum aq_walk_kind kind, bool masks, const struct aq_walk w, const float *values,
                             uint64_t i)
{
    const bool warm = kind == AQ_WALK_QADAM_WARM || kind == AQ_WALK_ONEBIT_ADAM_WARM;
    if (warm || kind == AQ_WALK_QADAM_ALONE || kind == AQ_WALK_ONEBIT_ADAM_ALONE) element_momentum(w, i);
    if (warm) element_variance(w, i);
    if (masks) element_mask(w, i);
    if (kind == AQ_WALK_QADAM_WARM || kind == AQ_WALK_QADAM_FROZEN || kind == AQ_WALK_QADAM_ALONE)
        element_qadam(w, values, i);
    else
        element_onebit_adam(w, values, i);
}

/* ---- slamb: values[1] phi_max, [2] phi_min, [3] one over |u|, [4] the share that is masked ---- */

AQ_ELEMENT bool element_masked(const struct aq_walk w, uint32_t piece, uint32_t j)
{
    return w.mask[(uint64_t)AQ_WALK_MASK_BYTES * piece + j / 8] >> j % 8 & 1;
}

/* `in`: it is in the mask, and the at-th that is. */
AQ_ELEMENT void element_slamb_gather(const struct aq_walk w, uint64_t i, bool in, uint64_t at)
{
    if (!in) return;
    w.sent[at] = w.m[i];
    if (w.sent_g) w.sent_g[at] = w.g[i] * w.scale;
}

/* Line 8, and line 9: the gradient that v sees. */
AQ_ELEMENT float element_slamb_take(const struct aq_walk w, uint64_t i, bool in, uint64_t at)
{
    if (in && w.sent) w.m[i] = w.sent[at];
    return in && w.sent_g ? w.sent_g[at] : w.g[i] * w.scale;
}

AQ_ELEMENT void element_slamb_moments(const struct aq_walk w, const float *values, uint64_t i, bool in, float g,
                                      double *terms)
{
    w.v[i] = w.b2 * w.v[i] + w.c2 * g * g;
    w.c[i] = in ? 1.0f : w.b3 * w.c[i];
    const double x = (double)w.p[i], u = (double)element_lamb_direction(w, values[0], i);
    terms[0] = in ? x * x : 0.0;
    terms[1] = in ? u * u : 0.0;
    terms[2] = in ? 0.0 : x * x;
    terms[3] = in ? 0.0 : u * u;
}

AQ_ELEMENT void element_slamb_step(bool code, const struct aq_walk w, const float *values, uint64_t i)
{
    const float c = w.c[i], u = element_lamb_direction(w, values[0], i);
    if (code)
        w.p[i] -= w.lr * values[1] * c * u + w.low * values[2] * (1.0f - c) * u;
    else
        w.p[i] -= (w.lr * c + w.low * (1.0f - c)) * (values[1] * c + values[2] * (1.0f - c)) * values[3] * u;
}

/* ---- lioncub: values[1] what a vector's value is multiplied by to be a level; size: K ---- */

AQ_ELEMENT float element_lion_vector(const struct aq_walk w, uint64_t i)
{
    return w.b1 * w.m[i] + w.c1 * (w.g[i] * w.scale);
}

AQ_ELEMENT void element_lion_step(const struct aq_walk w, const float *values, uint64_t i, float c)
{
    const float g = w.g[i] * w.scale;
    w.p[i] -= w.lr * ((float)((c > 0.0f) - (c < 0.0f)) + values[0] * w.p[i]);
    w.m[i] = w.b2 * w.m[i] + w.c2 * g;
}

AQ_ELEMENT void element_lion_quantize(const struct aq_walk w, const float *values, uint64_t i)
{
    const float q = rintf(values[1] * w.c[i]), low = q < -w.size ? -w.size : q;
    w.codes[i] = (uint8_t)((low > w.size ? w.size : low) + w.size);
}

/* Word i of the lanes of codes. */
AQ_ELEMENT void element_lion_pack(const struct aq_walk w, uint64_t i)
{
    const uint64_t each = 64 / w.lane_bits, first = i * each;
    const uint64_t end = w.count - first < each ? w.count : first + each;
    uint64_t word = 0;
    for (uint64_t j = first; j < end; j++)
        word |= (uint64_t)w.codes[j] << (j - first) * w.lane_bits;
    w.lanes[i] = word;
}

/* c = sign(S) of a word: what is no tie lies on one side of the middle. */
AQ_ELEMENT void element_lion_unpack(const struct aq_walk w, uint64_t i)
{
    const uint64_t each = 64 / w.lane_bits, first = i * each;
    const uint64_t end = w.count - first < each ? w.count : first + each, word = w.lanes[i];
    const uint32_t lane = (1u << w.lane_bits) - 1;
    for (uint64_t j = first; j < end; j++) {
        const uint32_t sum = ((uint32_t)(word >> (j - first) * w.lane_bits) & lane) * w.times;
        w.c[j] = (float)((sum > w.middle) - (sum < w.middle));
    }
}

/* Is there any c in row i? */
AQ_ELEMENT void element_lion_used(const struct aq_walk w, uint64_t i)
{
    const struct aq_flat_piece row = w.rows[i];
    uint64_t j = row.first;
    while (j < row.first + row.count && w.c[j] == 0.0f)
        j++;
    w.used[i] = j < row.first + row.count ? 1.0f : 0.0f;
}

AQ_ELEMENT void element_lion_mask(const struct aq_walk w, uint64_t i)
{
    const struct aq_flat_piece row = w.rows[i];
    for (uint64_t j = row.first; w.used[i] == 0.0f && j < row.first + row.count; j++)
        w.c[j] = 0.0f;
}

/* Of a word, or a row. */
AQ_ELEMENT void element_word(enum aq_walk_kind kind, const struct aq_walk w, uint64_t i)
{
    if (kind == AQ_WALK_LIONCUB_PACK)
        element_lion_pack(w, i);
    else if (kind == AQ_WALK_LIONCUB_UNPACK)
        element_lion_unpack(w, i);
    else if (kind == AQ_WALK_LIONCUB_USED)
        element_lion_used(w, i);
    else
        element_lion_mask(w, i);
}

AQ_ELEMENT void element_lion(enum aq_walk_kind kind, const struct aq_walk w, const float *values, uint64_t i,
                             double *terms)
{
    if (kind == AQ_WALK_LIONCUB_STEP) {
        element_lion_step(w, values, i, w.c[i]);
    } else if (kind == AQ_WALK_LION) {
        element_lion_step(w, values, i, element_lion_vector(w, i));
    } else if (kind == AQ_WALK_LIONCUB_VOTE) {
        w.codes[i] = (uint8_t)(w.tie ? w.c[i] >= 0.0f : w.c[i] > 0.0f);
    } else if (kind == AQ_WALK_LIONCUB_QUANTIZE) {
        element_lion_quantize(w, values, i);
    } else {
        const float c = element_lion_vector(w, i);
        w.c[i] = c;
        if (kind == AQ_WALK_LIONCUB_VECTOR_SIZES) terms[0] = terms[1] = fabs((double)c);
    }
}

/* ---- all ---- */

/* values: of the tensor; terms: as many as the walk has sums. masks: does the piece have anything to be masked? */
AQ_ELEMENT void element(enum aq_walk_kind kind, bool masks, const struct aq_walk w, const float *values, uint64_t i,
                        double *terms)
{
    switch (kind) {
    case AQ_WALK_ADAMW:
        element_adamw(w, values, i);
        return;
    case AQ_WALK_SGD:
    case AQ_WALK_SGD_MOMENTUM:
        element_sgd(kind == AQ_WALK_SGD_MOMENTUM, w, values, i);
        return;
    case AQ_WALK_MOMENTUM:
        element_momentum(w, i);
        return;
    case AQ_WALK_NORM1:
        terms[0] = fabs((double)w.v[i]);
        return;
    case AQ_WALK_LAMB_MOMENTS:
        element_lamb_moments(w, values, i, terms);
        return;
    case AQ_WALK_LAMB_STEP:
        element_lamb_step(w, values, i);
        return;
    case AQ_WALK_SQUARES:
        terms[0] = (double)w.m[i] * (double)w.m[i];
        return;
    case AQ_WALK_ONEBIT_LAMB_SCALE:
        element_onebit_lamb_scale(w, values, i);
        return;
    case AQ_WALK_ONEBIT_LAMB_REBUILD:
    case AQ_WALK_ONEBIT_LAMB_REBUILD_ROOT:
        element_onebit_lamb_rebuild(kind == AQ_WALK_ONEBIT_LAMB_REBUILD_ROOT, masks, w, values, i, terms);
        return;
    case AQ_WALK_ONEBIT_LAMB_STEP:
        element_onebit_lamb_step(w, values, i);
        return;
    case AQ_WALK_SLAMB_STEP:
    case AQ_WALK_SLAMB_STEP_CODE:
        element_slamb_step(kind == AQ_WALK_SLAMB_STEP_CODE, w, values, i);
        return;
    case AQ_WALK_LIONCUB_VECTOR:
    case AQ_WALK_LIONCUB_VECTOR_SIZES:
    case AQ_WALK_LIONCUB_VOTE:
    case AQ_WALK_LIONCUB_QUANTIZE:
    case AQ_WALK_LIONCUB_STEP:
    case AQ_WALK_LION:
        element_lion(kind, w, values, i, terms);
        return;
    case AQ_WALK_LOW_RANK_ADD: /* values[4]: the tensor goes whole; [1] to [3] are the update's */
        if (values[4] == 0.0f) w.worker_error[i] += w.g[i];
        return;
    default:
        element_adam(kind, masks, w, values, i);
        return;
    }
}

#endif
