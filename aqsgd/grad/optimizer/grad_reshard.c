/*
 * grad_reshard.c -- the state of W ranks as that of another number of them, with the residuals of their codecs kept.
 */
#include <string.h>

#include "optimizer.h"

/* The mean in double, rounded once; then rank 0 takes what the size of the group would multiply of the rounding. */
static void take_mean(uint64_t of, uint32_t old_size, const float *const *old, uint32_t size, bool exact, float *out)
{
    for (uint64_t i = 0; i < of; i++) {
        double sum = 0.0;
        for (uint32_t w = 0; w < old_size; w++)
            sum += (double)old[w][i];
        const double mean = sum / old_size;
        out[i] = (float)mean;
        if (exact) out[i] = (float)(mean * size - (double)(float)mean * (size - 1));
    }
}

/* Float `at` of the buffer that the chunks are of. */
static void cut_chunk(uint64_t of, uint32_t old_size, const float *const *old, uint64_t at, uint64_t end, float *out)
{
    for (uint32_t w = 0; w < old_size; w++) {
        uint64_t first, chunk;
        aq_grad_chunk(of, old_size, w, &first, &chunk);
        const uint64_t from = first > at ? first : at, to = first + chunk < end ? first + chunk : end;
        if (from < to) memcpy(out + (from - at), old[w] + (from - first), (size_t)(to - from) * sizeof *out);
    }
}

enum aq_status aq_grad_reshard(enum aq_state_class belongs, uint64_t of, uint32_t old_size, const float *const *old,
                               uint32_t size, uint32_t rank, float *out)
{
    if (old_size == 0 || size == 0 || rank >= size)
        return aq_fail(AQ_INVAL, "grad", "rank %u of %u replicas, from %u", (unsigned)rank, (unsigned)size,
                       (unsigned)old_size);
    const bool same = old_size == size;
    uint64_t first, chunk;
    switch (belongs) {
    case AQ_STATE_REPLICATED:
        memcpy(out, old[0], (size_t)of * sizeof *out);
        return AQ_OK;
    case AQ_STATE_SERVER_ERROR:
        aq_grad_chunk(of, size, rank, &first, &chunk);
        cut_chunk(of, old_size, old, first, first + chunk, out);
        return AQ_OK;
    case AQ_STATE_LOCAL:
    case AQ_STATE_WORKER_ERROR:
        if (same)
            memcpy(out, old[rank], (size_t)of * sizeof *out);
        else
            take_mean(of, old_size, old, size, belongs == AQ_STATE_WORKER_ERROR && rank == 0, out);
        return AQ_OK;
    }
    return aq_fail(AQ_INVAL, "grad", "there is no class %d of state", (int)belongs);
}

enum aq_status aq_grad_pending(uint64_t of, uint32_t old_size, const float *const *worker, const float *const *server,
                               float *out)
{
    if (old_size == 0) return aq_fail(AQ_INVAL, "grad", "no replica has residuals");
    memset(out, 0, (size_t)of * sizeof *out);
    if (worker) take_mean(of, old_size, worker, 1, false, out);
    for (uint32_t w = 0; w < old_size && server; w++) {
        uint64_t first, chunk;
        aq_grad_chunk(of, old_size, w, &first, &chunk);
        for (uint64_t i = 0; i < chunk; i++)
            out[first + i] += server[w][i];
    }
    return AQ_OK;
}

float aq_optimizer_absorbs_gradient(const struct aq_optimizer *optimizer, uint32_t t)
{
    (void)t;
    return 1.0f - optimizer->config.beta1;
}

float aq_optimizer_absorbs_momentum(const struct aq_optimizer *optimizer, uint32_t t)
{
    (void)optimizer;
    (void)t;
    return 1.0f;
}

/* A stretch of the first array at a time, as it may be memory that the host cannot reach. */
static enum aq_status absorb_tensor(struct aq_optimizer *optimizer, const struct aq_optimizer_tensor *tensor,
                                    float share, const float *pending, float *some)
{
    float *first = optimizer->states[0].values;
    for (uint64_t at = 0; at < tensor->count; at += AQ_FLAT_PIECE) {
        const uint64_t left = tensor->count - at, n = left < AQ_FLAT_PIECE ? left : AQ_FLAT_PIECE;
        float *there = first + tensor->offset + at;
        AQ_TRY(aq_device_copy(optimizer->device, some, there, n * sizeof *some, NULL));
        AQ_TRY(aq_device_stream_sync(optimizer->device, NULL));
        for (uint64_t i = 0; i < n; i++)
            some[i] += share * pending[tensor->offset + at + i];
        AQ_TRY(aq_device_copy(optimizer->device, there, some, n * sizeof *some, NULL));
        AQ_TRY(aq_device_stream_sync(optimizer->device, NULL));
    }
    return AQ_OK;
}

enum aq_status aq_optimizer_absorb(struct aq_optimizer *optimizer, const float *pending)
{
    enum aq_status status = AQ_OK;
    void *some;
    if (!optimizer->kind->absorbs || optimizer->state_count == 0)
        return aq_fail(AQ_INVAL, "optimizer", "%s has no momentum that takes up the residuals of its replicas",
                       optimizer->kind->name);
    AQ_TRY(aq_alloc(AQ_FLAT_PIECE * sizeof(float), &some));
    for (uint32_t t = 0; t < optimizer->tensor_count && status == AQ_OK; t++)
        status =
            absorb_tensor(optimizer, &optimizer->tensors[t], optimizer->kind->absorbs(optimizer, t), pending, some);
    aq_free(some);
    return status;
}
