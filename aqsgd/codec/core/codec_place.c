/*
 * codec_place.c -- the memory that a codec's kernels need on a GPU (cuda_codec.h). Here, not among the kernels, because
 * a plan states it on machines that have no CUDA.
 */
#include "codec_ec_choose.h"
#include "cuda_codec.h"

enum {
    WARPS_MAX = 132 * 16, /* rows on their way in the general kernels: sixteen on each of a large GPU's processors */
    SCRATCH_BYTES_MAX = 1 << 26, /* of their rows, and of each of the buffers that grow with the samples of a launch */
    CODED_BYTES_MAX = 3 << 27 /* those buffers, entropy coded: a chunk is one warp, and 800 of them fill a large GPU */
};

/* Of one warp: d, x and reference of a row, its steps and codes (row_place in cuda_codec_row.cuh). */
static uint64_t row_scratch_bytes(uint32_t columns)
{
    const uint64_t codes = ((uint64_t)columns + 15) / 16 * 16, steps = (uint64_t)columns / 32 + 1;
    return 3 * 4 * codes + (AQ_CUDA_CODEC_STEP_BYTES * steps + 15) / 16 * 16 + codes;
}

/* The next `bytes` at a multiple of 256. */
static uint8_t *take(uint8_t *base, size_t *used, uint64_t bytes)
{
    uint8_t *at = base == NULL ? NULL : base + *used;
    *used += (size_t)((bytes + 255) / 256 * 256);
    return at;
}

/* Are some of its bodies entropy coded? */
static bool is_coded(const struct aq_cuda_codec_plan *plan)
{
    return plan->varies || plan->plain_varies;
}

/* Bytes for one more sample in a launch in the buffers that hold a byte or more of each value. */
static uint64_t staged_bytes(const struct aq_cuda_codec_plan *plan)
{
    const bool channel = plan->group == AQ_PER_CHANNEL;
    const uint64_t errors =
        (uint64_t)plan->pieces * AQ_CUDA_CODEC_SHRINKS * 4 * (channel ? plan->columns : (uint32_t)AQ_CUDA_CODEC_WARP);
    uint64_t bytes = 0;
    if (plan->columns % 8 != 0 || plan->sparse || is_coded(plan)) bytes += plan->values;
    if (is_coded(plan)) bytes += 6 * plan->values + AQ_CUDA_CODEC_EC_BYTES;
    if (plan->packed != 0) bytes += 4 * plan->values;
    if (plan->sparse) bytes += 4 * plan->kept;
    if (channel && plan->hadamard) bytes += 4 * plan->values;
    if (plan->scale == AQ_SCALE_SEARCH) bytes += errors;
    return bytes;
}

static void place_samples(const struct aq_cuda_codec_plan *plan, uint8_t *base, size_t *used,
                          struct aq_cuda_codec_scratch *out)
{
    const uint64_t jobs = out->jobs, rows = plan->rows;
    const bool channel = plan->group == AQ_PER_CHANNEL, tensor = plan->group == AQ_PER_TENSOR;
    const bool waits = plan->columns % 8 != 0 || plan->sparse || is_coded(plan);
    const bool search = plan->scale == AQ_SCALE_SEARCH;
    const uint64_t spans = tensor ? rows + 1 : channel ? ((uint64_t)plan->pieces + 1) * plan->columns : 0;
    const uint64_t lanes = tensor ? (uint32_t)AQ_CUDA_CODEC_WARP : channel ? plan->columns : 0;
    const uint64_t bitmap = plan->sparse ? (plan->values + plan->kept + 31) / 32 + 2 : 0;
    out->status = (uint32_t *)take(base, used, 4 * jobs);
    out->sums = (float *)take(base, used, 16 * jobs * rows);
    out->stored = (double *)(void *)take(base, used, aq_codec_rounds_store(plan) ? 8 * jobs * rows : 0);
    out->quants = (float *)take(base, used, tensor || channel ? AQ_CUDA_CODEC_STEP_BYTES * jobs * plan->groups_row : 0);
    out->spans = (float *)take(base, used, AQ_CUDA_CODEC_SPAN_BYTES * jobs * spans);
    out->errors = (float *)take(base, used, search ? 4 * jobs * plan->pieces * AQ_CUDA_CODEC_SHRINKS * lanes : 0);
    out->codes = take(base, used, waits ? jobs * plan->values : 0);
    out->messages = (float *)take(base, used, plan->packed != 0 ? 4 * jobs * plan->values : 0);
    out->deltas = (float *)take(base, used, channel && plan->hadamard ? 4 * jobs * plan->values : 0);
    out->positions = (uint32_t *)take(base, used, 4 * jobs * bitmap);
    out->elements = (uint32_t *)take(base, used, plan->sparse ? 4 * jobs * plan->kept : 0);
    out->row_start = (uint32_t *)take(base, used, plan->sparse ? 4 * jobs * (rows + 1) : 0);
    out->ties = (uint32_t *)take(base, used, plan->sparse ? 4 * jobs * (rows + 1) : 0);
    out->chunks = (uint32_t *)take(base, used, plan->sparse ? 4 * jobs * (bitmap / 128 + 2) : 0);
    out->histogram = (uint32_t *)take(base, used, plan->sparse ? 4 * jobs * AQ_CUDA_CODEC_HISTOGRAM : 0);
    out->select = (uint64_t *)take(base, used, plan->sparse ? 16 * jobs : 0);
}

/* Of what is entropy coded (cuda_codec_ec.cu). */
static void place_coded(const struct aq_cuda_codec_plan *plan, uint8_t *base, size_t *used,
                        struct aq_cuda_codec_scratch *out)
{
    const uint64_t jobs = is_coded(plan) ? out->jobs : 0, row = (4 * (uint64_t)plan->columns + 255) / 256 * 256;
    const uint64_t chunks = aq_ec_chunk_count(plan->rows, plan->columns);
    out->wholes = take(base, used, jobs * (AQ_CUDA_CODEC_EC_BYTES + row));
    out->cells = take(base, used, jobs * plan->values);
    out->beyond = (int *)take(base, used, 4 * jobs * (plan->values + chunks));
    out->staged = take(base, used, jobs * (plan->values + AQ_CUDA_CODEC_EC_STAGE * chunks));
    out->chunk_states = (uint32_t *)take(base, used, 4 * AQ_CUDA_CODEC_WARP * jobs * chunks);
    out->chunk_sizes = (uint32_t *)take(base, used, 8 * jobs * chunks);
    out->lengths = (uint32_t *)take(base, used, 4 * jobs);
}

size_t aq_cuda_codec_place(const struct aq_cuda_codec_plan *plan, uint8_t *base, struct aq_cuda_codec_scratch *out)
{
    const uint64_t staged = staged_bytes(plan), row = row_scratch_bytes(plan->columns);
    const uint64_t most = is_coded(plan) ? CODED_BYTES_MAX : SCRATCH_BYTES_MAX;
    uint64_t jobs = staged == 0 ? (uint64_t)AQ_CUDA_CODEC_JOBS : most / staged;
    jobs = jobs < 1 ? 1 : jobs > AQ_CUDA_CODEC_JOBS ? (uint64_t)AQ_CUDA_CODEC_JOBS : jobs;
    uint64_t warps = SCRATCH_BYTES_MAX / row;
    warps = warps > WARPS_MAX ? (uint64_t)WARPS_MAX : warps;
    warps = warps > jobs * plan->rows ? jobs * plan->rows : warps;
    warps = warps < jobs ? jobs : warps; /* a warp per sample is what some kernels count on */
    size_t used = 0;
    *out = (struct aq_cuda_codec_scratch){0};
    out->jobs = (uint32_t)jobs;
    out->warps =
        (uint32_t)((warps + AQ_CUDA_CODEC_BLOCK_ROWS - 1) / (AQ_CUDA_CODEC_BLOCK_ROWS) * (AQ_CUDA_CODEC_BLOCK_ROWS));
    out->warp_bytes = row;
    out->rows = take(base, &used, out->warps * row);
    place_samples(plan, base, &used, out);
    place_coded(plan, base, &used, out);
    return used;
}
