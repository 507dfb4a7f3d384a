/*
 * cuda_codec.cu -- the launchers of cuda_codec.h: which way a list of samples goes, the scratch, and what comes back.
 *
 * A call's jobs go out in launches of at most scratch.jobs, deltas and plain bodies apart. After the kernels that code
 * comes codec_finish: it adds up the live measures, writes the results, and sends raw what could not be coded.
 */
#include "cuda_codec_launch.cuh"
#include "cuda_codec_row.cuh"

enum {
    FINISH_BLOCK = 256,
    FINISH_BLOCKS = 32,   /* of each sample, at most: the first one adds up, all copy what is sent raw */
    FINISH_VALUES = 4096  /* values of one of them, at least */
};

/* ---- what comes back ---- */

/* The sum of all threads' x, by halves; every thread calls, thread 0 has it. */
static __device__ double block_sum(double *shared, double x)
{
    __syncthreads();
    shared[threadIdx.x] = x;
    for (uint32_t half = FINISH_BLOCK / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
    }
    __syncthreads();
    return shared[0];
}

/* What each of the later measured rows counts for: measure_factor of codec_encode.c. */
static __device__ double later_weight(const struct aq_cuda_codec_plan &plan, bool part)
{
    const uint32_t later = plan.rows - 8;
    return part ? (double)later / (double)((later + 3) / 8) : 1.0;
}

/* The live measures: of all rows, or of the sampled ones (codec_encode.c, measure_factor). */
static __device__ void measures_sum(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem,
                                    uint32_t sample, bool part, double *shared, struct aq_codec_result *out)
{
    const double factor = later_weight(plan, part);
    double sums[4] = {0.0, 0.0, 0.0, 0.0};
    for (uint32_t r = threadIdx.x; r < plan.rows; r += FINISH_BLOCK) {
        if (part && r >= 8 && r % 8 != 4) continue;
        const double weight = r < 8 ? 1.0 : factor;
        const float *from = mem.sums + 4 * ((uint64_t)sample * plan.rows + r);
        for (int i = 0; i < 4; i++)
            sums[i] += weight * (double)from[i];
    }
    for (int i = 0; i < 4; i++)
        sums[i] = block_sum(shared, sums[i]);
    out->sum_a = sums[0];
    out->sum_a2 = sums[1];
    out->sum_delta2 = sums[2];
    out->sum_error2 = out->sum_stored2 = sums[3];
}

/* Those of a sample that goes raw, and why it does. */
static __device__ void measures_raw(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_job &job,
                                    double *shared, uint32_t *peak, struct aq_codec_result *out)
{
    const float *a = job.a;
    double sum = 0.0, sum2 = 0.0;
    uint32_t mine = 0;
    if (threadIdx.x == 0) *peak = 0;
    __syncthreads();
    for (uint64_t e = threadIdx.x; e < plan.values; e += FINISH_BLOCK) {
        const uint32_t size = magnitude_of(a[e]);
        mine = size > mine ? size : mine;
        sum += (double)a[e];
        sum2 += (double)a[e] * (double)a[e];
    }
    atomicMax(peak, mine);
    sum = block_sum(shared, sum);
    sum2 = block_sum(shared, sum2);
    out->sum_a = sum;
    out->sum_a2 = sum2;
    out->sum_delta2 = sum2;
    out->sum_error2 = out->sum_stored2 = 0.0;
    out->raw_reason = aq_codec_raw_reason(*peak, job.plain ? plan.raw_limit_plain : plan.raw_limit);
    out->raw_peak = __uint_as_float(*peak < 0x7f800000u ? *peak : 0x7f800000u);
}

/* |a - m'|^2 of a message in bf16, by one block: of the rows that are measured. */
static __device__ void measures_rounded(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_job &job,
                                        bool part, double *shared, struct aq_codec_result *out)
{
    const uint32_t rows = part ? 8 + (plan.rows - 8 + 3) / 8 : plan.rows;
    const double factor = later_weight(plan, part);
    double sum = 0.0;
    for (uint32_t i = 0; i < rows; i++) {
        const uint32_t row = part && i >= 8 ? 12 + 8 * (i - 8) : i;
        const double weight = row < 8 ? 1.0 : factor;
        for (uint32_t c = threadIdx.x; c < plan.columns; c += FINISH_BLOCK) {
            const uint64_t e = (uint64_t)row * plan.columns + c;
            const float m = value_read(plan.store, (const uint8_t *)job.m_out, plan.rows, e, 0.0f);
            const double left = (double)job.a[e] - (double)m;
            sum += weight * left * left;
        }
    }
    out->sum_stored2 = block_sum(shared, sum);
}

/* |a - m'|^2 of a message in Q, by one block. */
static __device__ void measures_stored(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_job &job,
                                       double *shared, struct aq_codec_result *out)
{
    const uint8_t *message = (const uint8_t *)job.m_out;
    const uint32_t bits = precision_bits(plan.packed);
    double sum = 0.0;
    for (uint64_t e = threadIdx.x; e < plan.values; e += FINISH_BLOCK) {
        float unit;
        (void)row_unit(plan.packed, message, (uint32_t)message_group(plan, e), &unit);
        const int i = (int)code_read(message + message_codes_at(plan), e, bits) - (1 << (bits - 1));
        const double left = (double)job.a[e] - (double)dequantize(i, unit, true);
        sum += left * left;
    }
    out->sum_stored2 = block_sum(shared, sum);
}

/* Grid (some, samples). */
__global__ void __launch_bounds__(FINISH_BLOCK)
    codec_finish_encode(CODEC_JOBS, struct aq_codec_result *results, bool part)
{
    AQ_SHARED(double, shared, [FINISH_BLOCK]);
    AQ_SHARED(uint32_t, peak, [1]);
    const struct aq_cuda_codec_job &job = list.jobs[blockIdx.y];
    const bool raw = mem.status[blockIdx.y] != 0, plain = job.plain != 0;
    for (uint64_t e = aq_thread_index(); raw && e < plan.values; e += (uint64_t)gridDim.x * FINISH_BLOCK) {
        bytes_write((uint8_t *)job.body + 4 * e, __float_as_uint(job.a[e]), 4);
        if (job.hat != NULL) job.hat[e] = job.a[e];
    }
    if (blockIdx.x != 0) return;
    struct aq_codec_result out;
    out.body_bytes = (uint32_t)(raw ? 4 * plan.values : plain ? plan.plain_bytes : plan.body_bytes);
    if (!raw && (plain ? plan.plain_varies : plan.varies)) out.body_bytes = mem.lengths[blockIdx.y];
    out.raw_reason = AQ_RAW_NOT;
    out.raw_peak = 0.0f;
    out.flags = raw ? (uint32_t)AQ_CODED_RAW : plain && plan.warm ? (uint32_t)AQ_CODED_KEYFRAME : 0;
    if (raw)
        measures_raw(plan, job, shared, peak, &out);
    else
        measures_sum(plan, mem, blockIdx.y, part, shared, &out);
    if (!raw && plan.packed != 0 && job.m_out != NULL) measures_stored(plan, job, shared, &out);
    if (!raw && plan.packed == 0 && plan.store == AQ_PRECISION_BF16 && job.m_out != NULL)
        measures_rounded(plan, job, part, shared, &out);
    if (threadIdx.x == 0) results[job.index] = out;
}

__global__ void codec_finish_decode(const __grid_constant__ struct aq_cuda_codec_scratch mem,
                                    const __grid_constant__ struct job_list list, uint32_t *corrupt)
{
    corrupt[list.jobs[threadIdx.x].index] = mem.status[threadIdx.x] != 0;
}

/* ---- the calls ---- */

static const struct {
    uint32_t kind;
    enum aq_status (*encode)(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem,
                             const struct job_list &list, struct CUstream_st *stream);
    enum aq_status (*decode)(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem,
                             const struct job_list &list, struct CUstream_st *stream);
} ways[] = {
#define AQ_CODEC_HOST(NAME, name, id)
#define AQ_CODEC(NAME, name, id) {id, codec_launch_encode_##name, codec_launch_decode_##name},
#include "aqsgd/codecs.def"
};

/* The codec's own, in `ways`. */
static uint32_t way_of(const struct aq_cuda_codec_plan &plan)
{
    uint32_t way = 0;
    while (ways[way].kind != plan.kind)
        way++;
    return way;
}

static enum aq_status encode_list(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem,
                                  const struct job_list &list, bool plain, struct CUstream_st *stream)
{
    if (!plain) return ways[way_of(plan)].encode(plan, mem, list, stream);
    if (plan.plain_varies) return codec_launch_encode_ec(plan, mem, list, stream);
    return codec_units_can(plan, list, true, false) ? codec_launch_encode_units(plan, mem, list, true, stream)
                                                    : codec_launch_encode_rows(plan, mem, list, true, stream);
}

static enum aq_status decode_list(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem,
                                  const struct job_list &list, bool plain, struct CUstream_st *stream)
{
    if (!plain) return ways[way_of(plan)].decode(plan, mem, list, stream);
    if (plan.plain_varies) return codec_launch_decode_ec(plan, mem, list, stream);
    return codec_units_can(plan, list, true, true) ? codec_launch_decode_units(plan, mem, list, true, stream)
                                                   : codec_launch_decode_rows(plan, mem, list, true, stream);
}

/* The outputs: `results` of encode, `corrupt` of decode. */
struct answers {
    struct aq_codec_result *results;
    uint32_t *corrupt;
};

/* The samples as they are coded where their messages are Q: with m and m' in fp32. */
static void unpacked_list(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem,
                          struct job_list *list)
{
    for (uint32_t i = 0; i < list->count; i++) {
        float *message = mem.messages + i * plan.values;
        list->jobs[i].m = message;
        list->jobs[i].m_out = list->jobs[i].hat != NULL ? list->jobs[i].hat : message;
    }
}

static enum aq_status run_list(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem,
                               const struct job_list &list, bool plain, const struct answers &answers,
                               struct CUstream_st *stream)
{
    const bool part = !plain && plan.measure_part, encode = answers.results != NULL;
    const cudaError_t error = cudaMemsetAsync(mem.status, 0, 4 * mem.jobs, stream);
    struct job_list inner = list;
    if (error != cudaSuccess) return aq_cuda_launched("memset", dim3(1), dim3(1), 0, error, stream);
    if (plan.packed != 0) unpacked_list(plan, mem, &inner);
    if (plan.packed != 0 && !plain) AQ_TRY(codec_launch_message_unpack(plan, mem, list, stream));
    AQ_TRY(encode ? encode_list(plan, mem, inner, plain, stream) : decode_list(plan, mem, inner, plain, stream));
    if (plan.packed != 0) AQ_TRY(codec_launch_message_pack(plan, mem, list, stream));
    if (!encode) return AQ_LAUNCH(codec_finish_decode, 1, list.count, 0, stream, mem, list, answers.corrupt);
    dim3 grid = aq_blocks(plan.values, FINISH_VALUES);
    grid.x = grid.x < FINISH_BLOCKS ? grid.x : (unsigned)FINISH_BLOCKS;
    grid.y = list.count;
    return AQ_LAUNCH(codec_finish_encode, grid, FINISH_BLOCK, 0, stream, plan, mem, list, answers.results, part);
}

static enum aq_status run_jobs(const struct aq_cuda_codec_plan *plan, const struct aq_cuda_codec_scratch *mem,
                               const struct aq_cuda_codec_job *jobs, uint32_t count, const struct answers &answers,
                               void *stream)
{
    for (uint32_t plain = 0; plain < 2; plain++) {
        struct job_list list;
        list.count = 0;
        for (uint32_t i = 0; i < count; i++) {
            if ((jobs[i].plain != 0) == (plain != 0)) list.jobs[list.count++] = jobs[i];
            if (list.count == 0 || (list.count < mem->jobs && i + 1 < count)) continue;
            AQ_TRY(run_list(*plan, *mem, list, plain != 0, answers, (struct CUstream_st *)stream));
            list.count = 0;
        }
    }
    return AQ_OK;
}

extern "C" enum aq_status aq_cuda_codec_encode(const struct aq_cuda_codec_plan *plan,
                                               const struct aq_cuda_codec_scratch *scratch,
                                               const struct aq_cuda_codec_job *jobs, uint32_t count,
                                               struct aq_codec_result *results, void *stream)
{
    return run_jobs(plan, scratch, jobs, count, {results, NULL}, stream);
}

extern "C" enum aq_status aq_cuda_codec_decode(const struct aq_cuda_codec_plan *plan,
                                               const struct aq_cuda_codec_scratch *scratch,
                                               const struct aq_cuda_codec_job *jobs, uint32_t count, uint32_t *corrupt,
                                               void *stream)
{
    return run_jobs(plan, scratch, jobs, count, {NULL, corrupt}, stream);
}
