/*
 * cuda_codec_row.cuh -- one warp, one row: shared by the general kernels (cuda_codec_rows.cu, cuda_codec_whole.cu).
 *
 * A row is in the warp's own scratch memory, which its first-level cache holds; lane l has the columns c = l, l + 32,
 * .. of it, so that its partial sums are the CPU's. A __syncwarp separates a write by one lane from a read by another.
 */
#ifndef AQSGD_CUDA_CODEC_ROW_CUH
#define AQSGD_CUDA_CODEC_ROW_CUH

#include "cuda_codec_math.cuh"

/* A row on its way. */
struct row {
    const struct aq_cuda_codec_job *job;
    uint32_t sample; /* of the launch */
    uint32_t number;
    uint32_t lane;
    float *d, *x, *reference;
    struct step *steps; /* one for each tile */
    uint8_t *codes;
    bool staged; /* codes are kept in the sample's staging and packed later: rows do not end on a byte */
};

/* The parts of a warp's scratch; its length: row_scratch_bytes in codec_place.c. */
static __device__ inline void row_place(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem,
                                        const struct job_list &list, uint64_t warp, uint64_t item, struct row *out)
{
    const uint64_t codes = ((uint64_t)plan.columns + 15) / 16 * 16;
    uint8_t *base = mem.rows + warp * mem.warp_bytes;
    out->sample = (uint32_t)(item / plan.rows);
    out->number = (uint32_t)(item % plan.rows);
    out->job = &list.jobs[out->sample];
    out->lane = threadIdx.x % WARP;
    out->d = (float *)base;
    out->x = out->d + codes;
    out->reference = out->x + codes;
    out->codes = base + 12 * codes;
    out->steps = (struct step *)(out->codes + codes);
    out->staged = plan.columns % 8 != 0;
    if (out->staged) out->codes = mem.codes + out->sample * plan.values + (uint64_t)out->number * plan.columns;
}

/* Has the sample failed before? One answer for the whole warp: other blocks of the same launch may set it meanwhile. */
static __device__ __forceinline__ bool sample_failed(const struct aq_cuda_codec_scratch &mem, uint32_t sample)
{
    return __shfl_sync(WHOLE_WARP, mem.status[sample], 0) != 0;
}

/* Did any lane see trouble? Then the sample has failed. */
static __device__ inline bool row_failed(const struct aq_cuda_codec_scratch &mem, const struct row &row, bool failed)
{
    const bool any = __any_sync(WHOLE_WARP, failed);
    if (any && row.lane == 0) atomicOr(&mem.status[row.sample], 1u);
    return any;
}

/* Pack the codes of a row that starts and ends at a byte. */
static __device__ inline void row_pack(const struct aq_cuda_codec_plan &plan, const struct row &row,
                                       const uint8_t *codes, uint8_t *stream, uint32_t bits)
{
    if (row.staged) return;
    const uint32_t units = plan.columns / 8;
    uint8_t *out = stream + (uint64_t)row.number * units * bits;
    __syncwarp();
    for (uint32_t u = row.lane; u < units; u += WARP) {
        uint64_t word = 0;
        for (uint32_t i = 0; i < 8; i++)
            word |= (uint64_t)codes[8 * u + i] << i * bits;
        for (uint32_t k = 0; k < bits; k++)
            out[(uint64_t)u * bits + k] = (uint8_t)(word >> 8 * k);
    }
}

/* The span of n values. */
static __device__ inline struct span row_span(const struct row &row, const float *d, uint32_t n)
{
    struct span s = {0, 0.0f, 0.0f};
    __syncwarp();
    for (uint32_t c = row.lane; c < n; c += WARP) {
        const uint32_t magnitude = magnitude_of(d[c]);
        s.peak = magnitude > s.peak ? magnitude : s.peak;
        s.sum_abs = __fadd_rn(s.sum_abs, __uint_as_float(magnitude));
        s.sum_square = __fadd_rn(s.sum_square, __fmul_rn(d[c], d[c]));
    }
    s.peak = warp_max(s.peak);
    s.sum_abs = warp_fold(s.sum_abs);
    s.sum_square = warp_fold(s.sum_square);
    return s;
}

/* The rotation of docs/FORMAT.md, in place. */
static __device__ inline void row_rotate(const struct row &row, float *v, uint32_t columns, uint32_t tile)
{
    for (uint32_t at = 0; at < columns;) {
        uint32_t block = tile;
        while (block > columns - at)
            block /= 2;
        for (uint32_t h = 1; h < block; h *= 2) {
            __syncwarp();
            for (uint32_t pair = row.lane; pair < block / 2; pair += WARP) {
                const uint32_t i = at + pair / h * 2 * h + pair % h;
                const float x = v[i], y = v[i + h];
                v[i] = __fadd_rn(x, y);
                v[i + h] = __fsub_rn(x, y);
            }
        }
        __syncwarp();
        const float scale = rotation_scale(block);
        for (uint32_t i = row.lane; i < block; i += WARP)
            v[at + i] = __fmul_rn(v[at + i], scale);
        at += block;
    }
    __syncwarp();
}

/* The sums of a row for the live measures: a, a^2, d^2, error^2. */
static __device__ inline void row_sums(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem,
                                       const struct row &row, float a, float a2, float d2, float error2)
{
    a = warp_fold(a);
    a2 = warp_fold(a2);
    d2 = warp_fold(d2);
    error2 = warp_fold(error2);
    if (row.lane != 0) return;
    float *out = mem.sums + 4 * ((uint64_t)row.sample * plan.rows + row.number);
    out[0] = a;
    out[1] = a2;
    out[2] = d2;
    out[3] = error2;
}

/* d of a row into row.d, rotated where the plan asks for it, and its span; adds a, a^2 and d^2 to sums[0..2]. False
 * where d is not finite. */
static __device__ inline bool row_delta(const struct aq_cuda_codec_plan &plan, const struct row &row, struct span *span,
                                        float *sums)
{
    const uint64_t first = (uint64_t)row.number * plan.columns;
    const uint8_t *m = (const uint8_t *)row.job->m;
    struct span s = {0, 0.0f, 0.0f};
    for (uint32_t c = row.lane; c < plan.columns; c += WARP) {
        const float a = row.job->a[first + c];
        const float reference = plan.warm ? value_read(plan.store, m, plan.rows, first + c, 0.0f) : 0.0f;
        const float d = plan.warm ? __fsub_rn(a, reference) : a;
        const uint32_t magnitude = magnitude_of(d);
        row.reference[c] = reference;
        row.d[c] = d;
        s.peak = magnitude > s.peak ? magnitude : s.peak;
        s.sum_abs = __fadd_rn(s.sum_abs, __uint_as_float(magnitude));
        s.sum_square = __fadd_rn(s.sum_square, __fmul_rn(d, d));
        sums[0] = __fadd_rn(sums[0], a);
        sums[1] = __fadd_rn(sums[1], __fmul_rn(a, a));
    }
    sums[2] = s.sum_square;
    span->peak = warp_max(s.peak);
    span->sum_abs = warp_fold(s.sum_abs);
    span->sum_square = warp_fold(s.sum_square);
    if (span->peak >= INFINITE_BITS) return false;
    if (!plan.hadamard) return true;
    row_rotate(row, row.d, plan.columns, plan.tile);
    *span = row_span(row, row.d, plan.columns);
    return span->peak < INFINITE_BITS;
}

/* Squared error of n values under one quantizer, this lane's part added to `error`. */
static __device__ inline float error_add(const struct aq_cuda_codec_plan &plan, float d, const struct step &step,
                                         float error)
{
    const int i = quantize_nearest(d, step.inverse, grid_of_plan(plan));
    const float e = __fsub_rn(d, dequantize(i, step.unit, plan.rise));
    return __fadd_rn(error, __fmul_rn(e, e));
}

/* The best of the candidates of SEARCH by their errors; false where none fits the format. */
static __device__ inline bool pick_shrink(const struct aq_cuda_codec_plan &plan, uint32_t peak, const float *errors,
                                          uint64_t stride, uint32_t *word, struct step *step)
{
    float best = 0.0f;
    bool found = false;
    for (uint32_t i = 0; i < SHRINKS; i++) {
        struct step candidate;
        const uint32_t tried = scale_word(plan, scale_shrink(plan, peak, i));
        if (!scale_decode(plan, tried, &candidate)) continue;
        if (found && !(errors[i * stride] < best)) continue;
        best = errors[i * stride];
        found = true;
        *word = tried;
        *step = candidate;
    }
    return found;
}

/* The scale of a group whose n values are at d, written to out by lane 0. */
static __device__ inline bool row_scale(const struct aq_cuda_codec_plan &plan, const struct row &row,
                                        const struct span &span, const float *d, uint32_t n, uint8_t *out,
                                        struct step *step)
{
    uint32_t word = 0;
    bool good;
    if (plan.scale != AQ_SCALE_SEARCH) {
        word = scale_word(plan, scale_choose(plan, span, n));
        good = scale_decode(plan, word, step);
    } else {
        float errors[SHRINKS];
        for (uint32_t i = 0; i < SHRINKS; i++) {
            struct step candidate;
            float error = 0.0f;
            if (scale_decode(plan, scale_word(plan, scale_shrink(plan, span.peak, i)), &candidate)) {
                for (uint32_t c = row.lane; c < n; c += WARP)
                    error = error_add(plan, d[c], candidate, error);
            }
            errors[i] = warp_sum_in_order(error);
        }
        good = pick_shrink(plan, span.peak, errors, 1, &word, step);
    }
    if (good && row.lane == 0) bytes_write(out, word, plan.scale_bytes);
    return good;
}

/* row.x into a body of Q values; it becomes what the body holds. */
static __device__ inline bool row_store_q(const struct aq_cuda_codec_plan &plan, const struct row &row, uint32_t bits,
                                          uint8_t *body)
{
    const struct grid_of grid = grid_of_store(bits);
    const struct span span = row_span(row, row.x, plan.columns);
    struct step step;
    float s;
    if (!store_scale(span.peak, bits, &s, &step)) return false;
    if (row.lane == 0) bytes_write(body + 4 * (uint64_t)row.number, __float_as_uint(s), 4);
    for (uint32_t c = row.lane; c < plan.columns; c += WARP) {
        const int i = quantize_nearest(row.x[c], step.inverse, grid);
        row.codes[c] = (uint8_t)(i + grid.half);
        row.x[c] = dequantize(i, step.unit, true);
    }
    row_pack(plan, row, row.codes, body + 4 * (uint64_t)plan.rows, bits);
    __syncwarp();
    return true;
}

/* x^ of a row, from row.x, to hat and m_out. False where the store cannot hold it. */
static __device__ inline bool row_emit(const struct aq_cuda_codec_plan &plan, const struct row &row)
{
    const uint64_t first = (uint64_t)row.number * plan.columns;
    uint8_t *m_out = plan.warm ? (uint8_t *)row.job->m_out : NULL;
    uint32_t peak = 0;
    for (uint32_t c = row.lane; c < plan.columns; c += WARP) {
        const float x = row.x[c];
        peak = magnitude_of(x) > peak ? magnitude_of(x) : peak;
        if (row.job->hat != NULL) row.job->hat[first + c] = x;
        if (m_out != NULL) value_write(plan.store, m_out, first + c, x);
    }
    return warp_max(peak) < plan.limit;
}

#endif
