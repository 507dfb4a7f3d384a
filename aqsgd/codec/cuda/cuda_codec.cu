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

/* The live measures: of all rows, or of the measured ones (codec_encode.c, measure_factor). */
static __device__ void measures_sum(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem,
                                    uint32_t sample, bool part, double *shared, struct aq_codec_result *out)
{
    const double factor = part ? aq_codec_measured_weight(plan.rows) : 1.0;
    double sums[4] = {0.0, 0.0, 0.0, 0.0};
    for (uint32_t r = threadIdx.x; r < plan.rows; r += FINISH_BLOCK) {
        if (part && !aq_codec_is_measured(plan.rows, r)) continue;
        const double weight = r < AQ_MEASURE_EACH ? 1.0 : factor;
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

/* |a - m'|^2, by each warp alone, from the sums of codec_stored_rows: aq_store_error2 of codec_store.c, bit for bit. */
static __device__ double measures_stored(const struct aq_cuda_codec_plan &plan,
                                         const struct aq_cuda_codec_scratch &mem, uint32_t sample)
{
    const double *rows = mem.stored + (uint64_t)sample * plan.rows;
    const uint32_t count = aq_codec_measured_rows(plan.rows);
    const double later = aq_codec_measured_weight(plan.rows);
    double sum = 0.0;
    for (uint32_t i = threadIdx.x % WARP; i < count; i += WARP)
        sum = __dadd_rn(sum, __dmul_rn(i < AQ_MEASURE_EACH ? 1.0 : later, rows[aq_codec_measured_row(plan.rows, i)]));
    return warp_fold(sum);
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
    if (!raw && aq_codec_rounds_store(&plan) && job.m_out != NULL)
        out.sum_stored2 = measures_stored(plan, mem, blockIdx.y);
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
    if (aq_codec_rounds_store(&plan)) AQ_TRY(codec_launch_stored_rows(plan, mem, list, stream));
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
