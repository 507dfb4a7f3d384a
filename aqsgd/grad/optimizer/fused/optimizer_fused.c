/*
 * optimizer_fused.c -- the instruction set of kernels in host memory, and the places of their arrays. The choice
 * changes the speed and no bit.
 */
#include "optimizer_fused.h"

#include <string.h>

static const struct {
    const char *name;
    enum aq_instructions needs;
    aq_fused_run *const *runs;
} tables[] = { /* the best first */
#if defined(__x86_64__)
    {"avx512", AQ_AVX512, aq_fused_runs_avx512},
    {"avx2", AQ_AVX2, aq_fused_runs_avx2},
#endif
    {"plain", AQ_PLAIN, aq_fused_runs_plain}};
enum { TABLES = sizeof tables / sizeof tables[0] };

aq_fused_run *const *aq_fused_runs_named(const char *name)
{
    for (int i = 0; i < TABLES; i++)
        if (strcmp(tables[i].name, name) == 0) return aq_processor_has() & tables[i].needs ? tables[i].runs : NULL;
    return NULL;
}

aq_fused_run *const *aq_fused_runs_best(void)
{
    const uint32_t used = aq_processor_used();
    int i = 0;
    while (!(used & tables[i].needs))
        i++;
    return tables[i].runs;
}

void aq_fused_piece(const struct aq_fused *kernel, uint32_t index)
{
    AQ_ASSERT(kernel->kind > AQ_FUSED_NONE && kernel->kind < AQ_FUSED_KINDS);
    kernel->runs[kernel->kind](kernel, index);
}

void aq_fused_pieces(const struct aq_fused *kernel)
{
    for (uint32_t i = 0; i < kernel->piece_count; i++)
        aq_fused_piece(kernel, kernel->piece_first + i);
}

void aq_fused_move(struct aq_fused *kernel, void *(*to)(const void *context, const void *pointer), const void *context)
{
    kernel->pieces = to(context, kernel->pieces);
    kernel->values = to(context, kernel->values);
    kernel->sums = to(context, kernel->sums);
    kernel->g = to(context, kernel->g);
    kernel->p = to(context, kernel->p);
    kernel->m = to(context, kernel->m);
    kernel->v = to(context, kernel->v);
    kernel->last = to(context, kernel->last);
    kernel->frozen = to(context, kernel->frozen);
    kernel->cleared = to(context, kernel->cleared);
    kernel->rounded = to(context, kernel->rounded);
    kernel->worker_error = to(context, kernel->worker_error);
    kernel->server_error = to(context, kernel->server_error);
    kernel->mask = to(context, kernel->mask);
    kernel->sent_at = to(context, kernel->sent_at);
    kernel->sent = to(context, kernel->sent);
    kernel->sent_g = to(context, kernel->sent_g);
    kernel->c = to(context, kernel->c);
    kernel->codes = to(context, kernel->codes);
    kernel->lanes = to(context, kernel->lanes);
    kernel->rows = to(context, kernel->rows);
    kernel->used = to(context, kernel->used);
    kernel->matrices = to(context, kernel->matrices);
    kernel->factor_p = to(context, kernel->factor_p);
    kernel->factor_q = to(context, kernel->factor_q);
    kernel->out = to(context, kernel->out);
}
