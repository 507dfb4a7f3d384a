/*
 * optimizer_flat.c -- walks over the flat buffer on the CPU pool. A piece belongs to one tensor and its cut depends on
 * the tensors alone, so that sums by piece, folded in order, do not depend on the number of threads.
 */
#include <math.h>

#include "grad/grad_internal.h"
#include "optimizer.h"

static uint64_t pieces_of(const struct aq_optimizer *optimizer)
{
    uint64_t pieces = 0;
    for (uint32_t t = 0; t < optimizer->tensor_count; t++)
        pieces += (optimizer->tensors[t].count + AQ_FLAT_PIECE - 1) / AQ_FLAT_PIECE;
    return pieces;
}

enum aq_status aq_optimizer_cut(struct aq_optimizer *optimizer)
{
    const uint64_t pieces = pieces_of(optimizer);
    void *memory, *sums;
    if (pieces > UINT32_MAX)
        return aq_fail(AQ_INVAL, "optimizer", "%llu pieces of %d parameters are too many", (unsigned long long)pieces,
                       AQ_FLAT_PIECE);
    AQ_TRY(aq_optimizer_scratch(optimizer, (size_t)pieces * sizeof(struct aq_flat_piece), &memory));
    AQ_TRY(aq_optimizer_scratch(optimizer, (size_t)pieces * AQ_FLAT_SUMS * sizeof(double), &sums));
    optimizer->pieces = memory;
    optimizer->piece_sums = sums;
    optimizer->piece_count = (uint32_t)pieces;
    if (optimizer->measuring) return AQ_OK;
    struct aq_flat_piece *piece = optimizer->pieces;
    for (uint32_t t = 0; t < optimizer->tensor_count; t++) {
        const struct aq_optimizer_tensor *tensor = &optimizer->tensors[t];
        for (uint64_t at = 0; at < tensor->count; at += AQ_FLAT_PIECE) {
            const uint64_t left = tensor->count - at;
            *piece++ = (struct aq_flat_piece){.first = tensor->offset + at,
                                              .count = left < AQ_FLAT_PIECE ? (uint32_t)left : AQ_FLAT_PIECE,
                                              .tensor = t};
        }
    }
    return AQ_OK;
}

struct each {
    struct aq_optimizer *optimizer;
    aq_flat_run *run;
};

static void run_piece(uint32_t piece, void *context)
{
    const struct each *each = context;
    each->run(each->optimizer, &each->optimizer->pieces[piece], piece);
}

void aq_optimizer_each(struct aq_optimizer *optimizer, aq_flat_run *run)
{
    struct each each = {.optimizer = optimizer, .run = run};
    if (optimizer->piece_count == 0) return;
    aq_device_parallel(optimizer->device, optimizer->piece_count, run_piece, &each);
}

/* Floats first..first + count - 1, but what lies between tensors. */
static void run_range(struct aq_optimizer *optimizer, aq_flat_run *run, uint64_t first, uint64_t count)
{
    const uint64_t end = first + count;
    for (uint32_t t = aq_grad_tensor_at(optimizer->tensors, optimizer->tensor_count, first);
         t < optimizer->tensor_count; t++) {
        const struct aq_optimizer_tensor *tensor = &optimizer->tensors[t];
        const uint64_t stop = tensor->offset + tensor->count < end ? tensor->offset + tensor->count : end;
        for (uint64_t at = tensor->offset > first ? tensor->offset : first; at < stop; at += AQ_FLAT_PIECE) {
            const uint64_t left = stop - at;
            const struct aq_flat_piece piece = {
                .first = at, .count = left < AQ_FLAT_PIECE ? (uint32_t)left : AQ_FLAT_PIECE, .tensor = t};
            run(optimizer, &piece, 0);
        }
        if (stop == end) return;
    }
}

static void go_before(void *work, uint64_t first, uint64_t count)
{
    struct aq_optimizer *optimizer = work;
    run_range(optimizer, optimizer->call.before, first, count);
}

static void go_after(void *work, uint64_t first, uint64_t count)
{
    struct aq_optimizer *optimizer = work;
    run_range(optimizer, optimizer->call.after, first, count);
}

void aq_optimizer_ask_along(struct aq_optimizer *optimizer, float *x, aq_flat_run *before, aq_flat_run *after,
                            struct aq_reduce *out)
{
    struct aq_optimizer_call *call = &optimizer->call;
    aq_optimizer_ask(optimizer, x, out);
    call->before = before;
    call->after = after;
    if (out->kind != AQ_REDUCE_COMPRESSED) {
        if (before) aq_optimizer_each(optimizer, before);
        return;
    }
    out->before = before ? go_before : NULL;
    out->after = after ? go_after : NULL;
    out->work = optimizer;
}

void aq_optimizer_asked(struct aq_optimizer *optimizer)
{
    if (!optimizer->codec && optimizer->call.after) aq_optimizer_each(optimizer, optimizer->call.after);
}

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

float aq_optimizer_correct(const struct aq_optimizer *optimizer, float beta, uint64_t step)
{
    if (!optimizer->config.bias_correction) return 1.0f;
    return (float)(1.0 / (1.0 - pow((double)beta, (double)step)));
}
