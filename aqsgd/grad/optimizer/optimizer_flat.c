/*
 * optimizer_flat.c -- fused kernels over the flat buffer: on the CPU pool, or on a GPU. A piece belongs to one tensor
 * and its cut depends only on the tensors, so that sums by piece, folded in order, do not depend on the number of
 * threads.
 */
#include <math.h>

#include "device_ops.h"
#include "grad_launchers.h"
#include "optimizer.h"

static uint64_t pieces_of(const struct aq_optimizer *optimizer)
{
    uint64_t pieces = 0;
    for (uint32_t t = 0; t < optimizer->tensor_count; t++)
        pieces += (optimizer->tensors[t].count + AQ_FLAT_PIECE - 1) / AQ_FLAT_PIECE;
    return pieces;
}

static void fill_tables(struct aq_optimizer *optimizer)
{
    struct aq_flat_piece *piece = optimizer->pieces;
    for (uint32_t t = 0; t < optimizer->tensor_count; t++) {
        const struct aq_optimizer_tensor *tensor = &optimizer->tensors[t];
        optimizer->values[(size_t)AQ_FUSED_VALUES * t] = aq_optimizer_decay(optimizer, t);
        for (uint64_t at = 0; at < tensor->count; at += AQ_FLAT_PIECE) {
            const uint64_t left = tensor->count - at;
            *piece++ = (struct aq_flat_piece){.first = tensor->offset + at,
                                              .count = left < AQ_FLAT_PIECE ? (uint32_t)left : AQ_FLAT_PIECE,
                                              .tensor = t};
        }
    }
}

/* The device's copies: what a plan has counted for the host's is about what they take there. */
static enum aq_status copy_tables(struct aq_optimizer *optimizer, size_t piece_bytes, size_t sum_bytes,
                                  size_t value_bytes)
{
    void *pieces, *sums, *values;
    AQ_TRY(aq_optimizer_scratch_device(optimizer, piece_bytes, &pieces));
    AQ_TRY(aq_optimizer_scratch_device(optimizer, sum_bytes, &sums));
    AQ_TRY(aq_optimizer_scratch_device(optimizer, value_bytes, &values));
    optimizer->there.pieces = pieces;
    optimizer->there.sums = sums;
    optimizer->there.values = values;
    AQ_TRY(aq_device_copy(optimizer->device, pieces, optimizer->pieces, piece_bytes, NULL));
    AQ_TRY(aq_device_copy(optimizer->device, values, optimizer->values, value_bytes, NULL));
    return aq_device_stream_sync(optimizer->device, NULL);
}

enum aq_status aq_optimizer_cut(struct aq_optimizer *optimizer)
{
    const uint64_t pieces = pieces_of(optimizer);
    const size_t piece_bytes = (size_t)pieces * sizeof(struct aq_flat_piece);
    const size_t sum_bytes = (size_t)pieces * AQ_FLAT_SUMS * sizeof(double);
    const size_t value_bytes = (size_t)optimizer->tensor_count * AQ_FUSED_VALUES * sizeof(float);
    void *memory, *sums, *values;
    if (pieces > UINT32_MAX)
        return aq_fail(AQ_INVAL, "optimizer", "%llu pieces of %d parameters are too many", (unsigned long long)pieces,
                       AQ_FLAT_PIECE);
    AQ_TRY(aq_optimizer_scratch_pinned(optimizer, piece_bytes, &memory));
    AQ_TRY(aq_optimizer_scratch_pinned(optimizer, sum_bytes, &sums));
    AQ_TRY(aq_optimizer_scratch_pinned(optimizer, value_bytes, &values));
    optimizer->there.pieces = optimizer->pieces = memory;
    optimizer->there.sums = optimizer->piece_sums = sums;
    optimizer->there.values = optimizer->values = values;
    optimizer->piece_count = (uint32_t)pieces;
    if (optimizer->measuring) return AQ_OK;
    fill_tables(optimizer);
    return optimizer->isolated ? copy_tables(optimizer, piece_bytes, sum_bytes, value_bytes) : AQ_OK;
}

/* ---- kernels ---- */

struct aq_fused aq_optimizer_fused_of(const struct aq_optimizer *optimizer, enum aq_fused_kind kind)
{
    const struct aq_optimizer_config *config = &optimizer->config;
    const struct aq_optimizer_call *call = &optimizer->call;
    const bool coded_here = !optimizer->outer.travel; /* else by the host, where the errors are */
    struct aq_fused kernel = {.kind = kind,
                              .runs = optimizer->runs,
                              .piece_count = optimizer->piece_count,
                              .end = optimizer->parameters,
                              .pieces = optimizer->there.pieces,
                              .values = optimizer->there.values,
                              .sums = optimizer->there.sums,
                              .g = call->update_gradients,
                              .p = call->parameters,
                              .worker_error = coded_here ? optimizer->worker_error : NULL,
                              .server_error = coded_here ? optimizer->server_error : NULL,
                              .b1 = config->beta1,
                              .c1 = 1.0f - config->beta1,
                              .b2 = config->beta2,
                              .c2 = 1.0f - config->beta2,
                              .eps = config->epsilon,
                              .lr = call->lr,
                              .scale = call->grad_scale};
    aq_grad_chunk(optimizer->parameters, optimizer->group.size, optimizer->group.rank, &kernel.chunk_first,
                  &kernel.chunk);
    return kernel;
}

/* The kernel with the learning rate of the tensor of a piece. */
static struct aq_fused rated(const struct aq_optimizer *optimizer, const struct aq_fused *kernel, uint32_t piece)
{
    struct aq_fused own = *kernel;
    const float rate = optimizer->tensors[optimizer->pieces[piece].tensor].rate;
    own.lr *= rate;
    own.low *= rate;
    return own;
}

/* Has each piece of it a tensor, whose rate may differ? */
static bool has_rates(const struct aq_optimizer *optimizer, const struct aq_fused *kernel)
{
    return optimizer->rated && aq_fused_of_tensors(kernel->kind);
}

static enum aq_status launch_once(struct aq_optimizer *optimizer, const struct aq_fused *kernel)
{
    return optimizer->device->ops->grad->fused(optimizer->device, kernel, optimizer->call.stream);
}

/* Once; where tensors have rates of their own, once for each run of pieces with one rate. */
static enum aq_status launch(struct aq_optimizer *optimizer, const struct aq_fused *kernel)
{
    const uint32_t end = kernel->piece_first + kernel->piece_count;
    if (!has_rates(optimizer, kernel)) return launch_once(optimizer, kernel);
    for (uint32_t first = kernel->piece_first, next; first < end; first = next) {
        struct aq_fused part = rated(optimizer, kernel, first);
        for (next = first + 1; next < end; next++)
            if (optimizer->tensors[optimizer->pieces[next].tensor].rate !=
                optimizer->tensors[optimizer->pieces[first].tensor].rate)
                break;
        part.piece_first = first;
        part.piece_count = next - first;
        AQ_TRY(launch_once(optimizer, &part));
    }
    return AQ_OK;
}

struct pieces {
    const struct aq_optimizer *optimizer;
    const struct aq_fused *kernel;
};

static void fused_piece(uint32_t piece, void *context)
{
    const struct pieces *pieces = context;
    if (!has_rates(pieces->optimizer, pieces->kernel)) {
        aq_fused_piece(pieces->kernel, piece);
        return;
    }
    const struct aq_fused own = rated(pieces->optimizer, pieces->kernel, piece);
    aq_fused_piece(&own, piece);
}

enum aq_status aq_optimizer_fused(struct aq_optimizer *optimizer, const struct aq_fused *kernel)
{
    struct pieces pieces = {.optimizer = optimizer, .kernel = kernel};
    if (kernel->piece_count == 0) return AQ_OK;
    if (!optimizer->isolated) {
        aq_device_parallel(optimizer->device, kernel->piece_count, fused_piece, &pieces);
        return AQ_OK;
    }
    AQ_TRY(launch(optimizer, kernel));
    if (aq_fused_sums(kernel->kind) == 0) return AQ_OK;
    AQ_TRY(aq_device_copy(optimizer->device, optimizer->piece_sums, optimizer->there.sums,
                          (size_t)optimizer->piece_count * AQ_FLAT_SUMS * sizeof(double), optimizer->call.stream));
    return aq_device_stream_sync(optimizer->device, optimizer->call.stream);
}

/* The first piece that ends behind float `at`. */
static uint32_t piece_at(const struct aq_optimizer *optimizer, uint64_t at)
{
    uint32_t low = 0, high = optimizer->piece_count;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (optimizer->pieces[middle].first + optimizer->pieces[middle].count <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Floats first..first + count - 1, except those between tensors; on this thread, or enqueued. */
static enum aq_status fused_range(struct aq_optimizer *optimizer, const struct aq_fused *whole, uint64_t first,
                                  uint64_t count)
{
    struct aq_fused kernel = *whole;
    struct pieces pieces = {.optimizer = optimizer, .kernel = &kernel};
    kernel.begin = first;
    kernel.end = first + count;
    kernel.piece_first = piece_at(optimizer, first);
    kernel.piece_count = 0;
    for (uint32_t i = kernel.piece_first; i < optimizer->piece_count && optimizer->pieces[i].first < kernel.end; i++) {
        kernel.piece_count++;
        if (!optimizer->isolated) fused_piece(i, &pieces);
    }
    return optimizer->isolated && kernel.piece_count > 0 ? launch(optimizer, &kernel) : AQ_OK;
}

static enum aq_status go_before(void *work, uint64_t first, uint64_t count)
{
    struct aq_optimizer *optimizer = work;
    return fused_range(optimizer, &optimizer->call.before, first, count);
}

static enum aq_status go_after(void *work, uint64_t first, uint64_t count)
{
    struct aq_optimizer *optimizer = work;
    return fused_range(optimizer, &optimizer->call.after, first, count);
}

enum aq_status aq_optimizer_ask_along(struct aq_optimizer *optimizer, float *x, const struct aq_fused *before,
                                      const struct aq_fused *after, struct aq_reduce *out)
{
    struct aq_optimizer_call *call = &optimizer->call;
    aq_optimizer_ask(optimizer, x, out);
    AQ_ASSERT(aq_fused_sums(before->kind) == 0 && aq_fused_sums(after->kind) == 0);
    call->before = *before;
    call->after = *after;
    call->after_waits = out->kind != AQ_REDUCE_COMPRESSED || optimizer->config.retries;
    if (call->after_waits) return before->kind ? aq_optimizer_fused(optimizer, before) : AQ_OK;
    out->before = before->kind ? go_before : NULL;
    out->after = after->kind ? go_after : NULL;
    out->work = optimizer;
    return AQ_OK;
}

enum aq_status aq_optimizer_asked(struct aq_optimizer *optimizer)
{
    if (!optimizer->call.after_waits || !optimizer->call.after.kind) return AQ_OK;
    return aq_optimizer_fused(optimizer, &optimizer->call.after);
}

enum aq_status aq_optimizer_values(struct aq_optimizer *optimizer, uint32_t which, const float *of)
{
    const size_t bytes = (size_t)optimizer->tensor_count * AQ_FUSED_VALUES * sizeof(float);
    bool changed = false;
    AQ_ASSERT(which >= 1 && which < AQ_FUSED_VALUES);
    for (uint32_t t = 0; t < optimizer->tensor_count; t++)
        changed = changed || optimizer->values[(size_t)AQ_FUSED_VALUES * t + which] != of[t];
    if (!changed) return AQ_OK;
    if (optimizer->isolated) AQ_TRY(aq_device_stream_sync(optimizer->device, optimizer->call.stream));
    for (uint32_t t = 0; t < optimizer->tensor_count; t++)
        optimizer->values[(size_t)AQ_FUSED_VALUES * t + which] = of[t];
    if (!optimizer->isolated) return AQ_OK;
    return aq_device_copy(optimizer->device, optimizer->there.values, optimizer->values, bytes, optimizer->call.stream);
}

/* ---- sums ---- */

void aq_optimizer_fold(const struct aq_optimizer *optimizer, uint32_t which, double *sums)
{
    for (uint32_t t = 0; t < optimizer->tensor_count; t++)
        sums[t] = 0.0;
    for (uint32_t i = 0; i < optimizer->piece_count; i++)
        sums[optimizer->pieces[i].tensor] += optimizer->piece_sums[(size_t)AQ_FLAT_SUMS * i + which];
}

void aq_optimizer_fold_max(const struct aq_optimizer *optimizer, uint32_t which, double *sums)
{
    for (uint32_t t = 0; t < optimizer->tensor_count; t++)
        sums[t] = 0.0;
    for (uint32_t i = 0; i < optimizer->piece_count; i++) {
        const double value = optimizer->piece_sums[(size_t)AQ_FLAT_SUMS * i + which];
        double *most = &sums[optimizer->pieces[i].tensor];
        if (value > *most) *most = value;
    }
}

float aq_optimizer_corrected(float beta, uint64_t step)
{
    return (float)(1.0 / (1.0 - pow((double)beta, (double)step)));
}

float aq_optimizer_correct(const struct aq_optimizer *optimizer, float beta, uint64_t step)
{
    return optimizer->config.bias_correction ? aq_optimizer_corrected(beta, step) : 1.0f;
}
