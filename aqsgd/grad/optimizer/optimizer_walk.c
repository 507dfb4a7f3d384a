/*
 * optimizer_walk.c -- which instruction set walks of host memory run on, and a walk's arrays. The choice changes the
 * speed and no bit.
 */
#include "optimizer_walk.h"

#include <string.h>

#include "codec_internal.h"

aq_walk_run *const *aq_walk_runs_named(const char *name)
{
    if (strcmp(name, "plain") == 0) return aq_walk_runs_plain;
#if defined(__x86_64__)
    /* The codecs' own tables want the same instructions and more: where they run, these do. */
    if (strcmp(name, "avx2") == 0 && aq_codec_kernels_named("avx2")) return aq_walk_runs_avx2;
    if (strcmp(name, "avx512") == 0 && aq_codec_kernels_named("avx512")) return aq_walk_runs_avx512;
#endif
    return NULL;
}

aq_walk_run *const *aq_walk_runs_best(void)
{
    const char *name = aq_codec_kernels_best()->name;
    aq_walk_run *const *found = aq_walk_runs_named(strcmp(name, "vbmi") == 0 ? "avx512" : name);
    return found ? found : aq_walk_runs_plain;
}

void aq_walk_piece(const struct aq_walk *walk, uint32_t index)
{
    AQ_ASSERT(walk->kind > AQ_WALK_NONE && walk->kind < AQ_WALK_KINDS);
    walk->runs[walk->kind](walk, index);
}

void aq_walk_pieces(const struct aq_walk *walk)
{
    for (uint32_t i = 0; i < walk->piece_count; i++)
        aq_walk_piece(walk, walk->piece_first + i);
}

void aq_walk_move(struct aq_walk *walk, void *(*to)(const void *context, const void *pointer), const void *context)
{
    walk->pieces = to(context, walk->pieces);
    walk->values = to(context, walk->values);
    walk->sums = to(context, walk->sums);
    walk->g = to(context, walk->g);
    walk->p = to(context, walk->p);
    walk->m = to(context, walk->m);
    walk->v = to(context, walk->v);
    walk->last = to(context, walk->last);
    walk->frozen = to(context, walk->frozen);
    walk->worker_error = to(context, walk->worker_error);
    walk->server_error = to(context, walk->server_error);
    walk->mask = to(context, walk->mask);
    walk->sent_at = to(context, walk->sent_at);
    walk->sent = to(context, walk->sent);
    walk->sent_g = to(context, walk->sent_g);
    walk->c = to(context, walk->c);
    walk->codes = to(context, walk->codes);
    walk->lanes = to(context, walk->lanes);
    walk->rows = to(context, walk->rows);
    walk->used = to(context, walk->used);
    walk->matrices = to(context, walk->matrices);
    walk->factor_p = to(context, walk->factor_p);
    walk->factor_q = to(context, walk->factor_q);
    walk->out = to(context, walk->out);
}
