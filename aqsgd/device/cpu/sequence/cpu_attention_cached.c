/*
 * cpu_attention_cached.c -- attention of new tokens over keys and values that are kept: what a step of generation does.
 *
 * A piece is one head of one new token: a dot product for each key, their softmax, a sum of the values by its weights.
 */
#include <math.h>
#include <string.h>

#include "cpu_device.h"

enum { D_MAX = 4096 };

struct cached {
    struct cpu_device *cpu;
    const struct aq_attention_cached *args;
    float scale;
};

/* Columns of a row of the cache. */
static uint64_t cache_width(const struct aq_attention_cached *args)
{
    return 2 * args->kv_heads * args->D;
}

static float scale_of(const struct aq_attention_cached *args)
{
    return args->scale != 0.0f ? args->scale : 1.0f / sqrtf((float)args->D);
}

/* Keys and values of the new tokens are adjacent in a row of qkv, as they do in the cache. */
static void keep(const struct aq_attention_cached *args)
{
    const uint64_t width = cache_width(args), own = args->H * args->D;
    for (uint64_t sample = 0; sample < args->samples; sample++)
        for (uint64_t t = 0; t < args->T; t++)
            memcpy(cpu_at_w(args->cache, args->type, (sample * args->rows + args->first + t) * width),
                   cpu_at(args->qkv, args->type, (sample * args->T + t) * (own + width) + own),
                   width * aq_element_bytes(args->type));
}

static void cached_piece(uint64_t piece, uint32_t worker, void *context)
{
    const struct cached *self = context;
    const struct aq_attention_cached *args = self->args;
    const struct cpu_rows *rows = self->cpu->rows;
    const uint64_t D = args->D, head = piece % args->H, row = piece / args->H, width = cache_width(args);
    const uint64_t end = args->first + row % args->T + 1;
    const uint64_t begin = args->window && end > args->window ? end - args->window : 0, keys = end - begin;
    const uint64_t first = (row / args->T * args->rows + begin) * width;
    const uint64_t k = first + head / (args->H / args->kv_heads) * D, v = k + args->kv_heads * D;
    float *q = cpu_scratch(self->cpu, worker) + CPU_GEMM_FLOATS, *sums = q + D_MAX, *scores = sums + D_MAX;
    for (uint64_t d = 0; d < D; d++)
        q[d] = cpu_load(args->qkv, args->type, row * (args->H * D + width) + head * D + d);
    rows->dots(q, cpu_at(args->cache, args->type, k), width, args->type, D, keys, scores);
    const float scale = args->cap > 0.0f ? 1.0f : self->scale;
    if (args->cap > 0.0f) rows->cap(scores, keys, self->scale / args->cap, args->cap);
    const float sum = rows->exp_sum(scores, keys, scale, rows->max(scores, keys) * scale);
    memset(sums, 0, D * sizeof *sums);
    rows->combine(scores, cpu_at(args->cache, args->type, v), width, args->type, D, keys, sums);
    rows->scale(sums, D, 1.0f / sum, cpu_at_w(args->out, args->type, (row * args->H + head) * D), args->type);
}

enum aq_status cpu_attention_cached(struct aq_device *device, const struct aq_attention_cached *args,
                                    struct aq_stream *stream)
{
    struct cached self = {.cpu = cpu_device_of(device), .args = args, .scale = scale_of(args)};
    (void)stream;
    if (args->D > D_MAX || args->first + args->T > CPU_ATTENTION_FLOATS)
        return aq_fail(AQ_INVAL, "device",
                       "attention over %llu cached tokens with %llu channels per head exceeds the limits of %d and %d",
                       (unsigned long long)(args->first + args->T), (unsigned long long)args->D, CPU_ATTENTION_FLOATS,
                       D_MAX);
    keep(args);
    if (args->out) cpu_pool_run(self.cpu->pool, args->samples * args->T * args->H, cached_piece, &self);
    return AQ_OK;
}
