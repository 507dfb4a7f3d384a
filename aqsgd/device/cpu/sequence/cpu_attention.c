/*
 * cpu_attention.c -- attention, causal or of both sides, in blocks of query rows, forward and backward.
 *
 * Forward keeps one number a row (lse, the log of the sum of exponentials); backward makes the weights again from it,
 * block by block, as Dao et al. 2022 ("FlashAttention") do. A piece of forward is one block of queries of one head; a
 * piece of backward is one head of keys, because dk and dv are sums over all its queries and must be added in one
 * order. A block meets the keys from the first that its first query sees to the last that its last one does; those that
 * a row does not see have weights of 0. Nothing is computed for rows of padding.
 *
 * With S = scale q k^T, P = softmax(S), M the dropout mask with its factor, O = (P M) v and delta = rowsum(O dO):
 *     dv = (P M)^T dO,   dP = (dO v^T) M,   dS = P (dP - delta) scale,   dq = dS k,   dk = dS^T q.
 * With a cap S = cap tanh(scale q k^T / cap), and dS has the factor 1 - (S / cap)^2, too.
 */
#include <math.h>
#include <string.h>

#include "cpu_device.h"

enum { BLOCK_ROWS = 64 };

struct attention {
    struct cpu_device *cpu;
    const struct aq_attention *args;
    uint64_t rows;   /* queries of a block */
    uint64_t blocks; /* of a head */
    float scale, after; /* of a product; of what softmax reads: 1 if the cap has scaled it */
};

/* The first key that a query sees. It never goes back from query to query. */
static uint64_t first_key(const struct aq_attention *args, uint64_t sample, uint64_t query)
{
    const uint64_t start = args->starts ? args->starts[sample * args->T + query] : 0;
    const uint64_t seen = args->window && query >= args->window ? query - args->window + 1 : 0;
    return seen > start ? seen : start;
}

/* Tokens of a sample that are real; and the end of the keys that one of them sees. */
static uint64_t length_of(const struct aq_attention *args, uint64_t sample)
{
    return args->lengths && args->lengths[sample] < args->T ? args->lengths[sample] : args->T;
}

static uint64_t end_key(const struct aq_attention *args, uint64_t sample, uint64_t query)
{
    const uint64_t length = length_of(args, sample);
    if (!args->both) return query + 1;
    return args->window && args->window < length - query ? query + args->window : length;
}

static enum aq_status attention_init(struct attention *self, struct aq_device *device, const struct aq_attention *args)
{
    /* A block of BLOCK_ROWS queries meets no more keys than these. */
    const uint64_t seen = args->window < args->T ? args->window * (args->both ? 2 : 1) : 0;
    const bool narrow = seen && seen < args->T && args->T - seen > BLOCK_ROWS;
    const uint64_t keys = narrow ? seen + BLOCK_ROWS : args->T;
    uint64_t rows = CPU_ATTENTION_FLOATS / cpu_score_stride(keys);
    if (rows == 0)
        return aq_fail(AQ_INVAL, "device", "attention over %llu tokens exceeds the limit of %d",
                       (unsigned long long)keys, CPU_ATTENTION_FLOATS);
    if (args->D > CPU_ATTENTION_FLOATS / BLOCK_ROWS)
        return aq_fail(AQ_INVAL, "device", "attention with %llu channels per head exceeds the limit of %d",
                       (unsigned long long)args->D, CPU_ATTENTION_FLOATS / BLOCK_ROWS);
    if (rows > BLOCK_ROWS) rows = BLOCK_ROWS;
    *self = (struct attention){.cpu = cpu_device_of(device),
                               .args = args,
                               .rows = rows,
                               .blocks = (args->T + rows - 1) / rows,
                               .scale = args->scale > 0.0f ? args->scale : 1.0f / sqrtf((float)args->D)};
    self->after = args->cap > 0.0f ? 1.0f : self->scale;
    return AQ_OK;
}

/* Columns of a row of qkv. */
static uint64_t width_of(const struct aq_attention *args)
{
    return (args->H + 2 * args->kv_heads) * args->D;
}

/* The first column, in a row of qkv, of q (part 0) of one head, or of the k (1) or v (2) that it uses. */
static uint64_t column_of(const struct aq_attention *args, uint64_t head, uint64_t part)
{
    if (part == 0) return head * args->D;
    return (args->H + (part - 1) * args->kv_heads + head / (args->H / args->kv_heads)) * args->D;
}

/* q (part 0), k (1) or v (2) of one head of queries, from token `first`. */
static struct cpu_operand part_of(const struct aq_attention *args, uint64_t sample, uint64_t head, int part,
                                  uint64_t first, bool transposed)
{
    const uint64_t stride = width_of(args);
    const uint64_t at = (sample * args->T + first) * stride + column_of(args, head, (uint64_t)part);
    return (struct cpu_operand){
        .data = cpu_at(args->qkv, args->type, at), .stride = stride, .type = args->type, .transposed = transposed};
}

static struct cpu_mask mask_of(const struct aq_attention *args, uint64_t sample, uint64_t head, uint64_t query,
                               uint64_t key)
{
    return cpu_mask_of(&args->dropout, sample, (head * args->T_mask + query) * args->T_mask + key);
}

/* Of a row of `all` weights, those before and behind the `keys` that are seen become 0. */
static void row_hide(float *row, uint64_t before, uint64_t keys, uint64_t all)
{
    memset(row, 0, before * sizeof *row);
    memset(row + before + keys, 0, (all - before - keys) * sizeof *row);
}

static void forward_padding(const struct aq_attention *args, uint64_t sample, uint64_t head, uint64_t first,
                            uint64_t end)
{
    for (uint64_t query = first; query < end; query++) {
        const uint64_t at = (sample * args->T + query) * args->H * args->D + head * args->D;
        memset(cpu_at_w(args->out, args->type, at), 0, args->D * aq_element_bytes(args->type));
        args->lse[(sample * args->H + head) * args->T + query] = 0.0f;
    }
}

/* The heaviest blocks of causal attention, the last ones, are handed out first. */
static void forward_piece(uint64_t piece, uint32_t worker, void *context)
{
    const struct attention *self = context;
    const struct aq_attention *args = self->args;
    const struct cpu_rows *rows = self->cpu->rows;
    const uint64_t heads = args->samples * args->H, C = args->H * args->D;
    const uint64_t sample = piece % heads / args->H, head = piece % heads % args->H;
    const uint64_t first = (self->blocks - 1 - piece / heads) * self->rows, length = length_of(args, sample);
    const uint64_t last = first + self->rows < args->T ? first + self->rows : args->T;
    const uint64_t end = last < length ? last : length;
    if (end < last) forward_padding(args, sample, head, first < end ? end : first, last);
    if (first >= end) return;
    const uint64_t from = first_key(args, sample, first), all = end_key(args, sample, end - 1) - from;
    const uint64_t stride = cpu_score_stride(all);
    float *scratch = cpu_scratch(self->cpu, worker);
    float *scores = scratch + CPU_GEMM_FLOATS, *sums = scores + CPU_ATTENTION_FLOATS;
    float factor[BLOCK_ROWS];

    const struct cpu_operand q = part_of(args, sample, head, 0, first, false);
    const struct cpu_operand k = part_of(args, sample, head, 1, from, true);
    self->cpu->gemm->run(end - first, all, args->D, &q, &k, args->type, scores, stride, false, scratch);
    for (uint64_t r = 0; r < end - first; r++) {
        const uint64_t before = first_key(args, sample, first + r) - from;
        const uint64_t keys = end_key(args, sample, first + r) - from - before;
        float *row = scores + r * stride + before;
        if (args->cap > 0.0f) rows->cap(row, keys, self->scale / args->cap, args->cap);
        const float top = rows->max(row, keys) * self->after;
        const float sum = rows->exp_sum(row, keys, self->after, top);
        args->lse[(sample * args->H + head) * args->T + first + r] = top + logf(sum);
        factor[r] = 1.0f / sum;
        const struct cpu_mask mask = mask_of(args, sample, head, first + r, from + before);
        if (mask.key) rows->mask(row, keys, &mask, row, AQ_F32);
        row_hide(scores + r * stride, before, keys, all);
    }
    const struct cpu_operand p = cpu_score_block(scores, stride, false),
                             v = part_of(args, sample, head, 2, from, false);
    self->cpu->gemm->run(end - first, args->D, all, &p, &v, args->type, sums, args->D, false, scratch);
    for (uint64_t r = 0; r < end - first; r++) {
        const uint64_t at = (sample * args->T + first + r) * C + head * args->D;
        rows->scale(sums + r * args->D, args->D, factor[r], cpu_at_w(args->out, args->type, at), args->type);
    }
}

enum aq_status cpu_attention(struct aq_device *device, const struct aq_attention *args, struct aq_stream *stream)
{
    (void)stream;
    struct attention self;
    AQ_TRY(attention_init(&self, device, args));
    cpu_pool_run(self.cpu->pool, self.blocks * args->samples * args->H, forward_piece, &self);
    return AQ_OK;
}

/* p: products in, weights out; ds: gradient of the weights in, of the products out. capped: room for a row, a cap's. */
static void backward_rows(const struct attention *self, uint64_t sample, uint64_t head, uint64_t first, uint64_t end,
                          uint64_t stride, float *p, float *ds, float *capped)
{
    const struct aq_attention *args = self->args;
    const struct cpu_rows *rows = self->cpu->rows;
    const uint64_t C = args->H * args->D, from = first_key(args, sample, first);
    const uint64_t all = end_key(args, sample, end - 1) - from;
    for (uint64_t query = first; query < end; query++) {
        float *p_row = p + (query - first) * stride, *ds_row = ds + (query - first) * stride;
        const uint64_t at = (sample * args->T + query) * C + head * args->D;
        const uint64_t before = first_key(args, sample, query) - from;
        const uint64_t keys = end_key(args, sample, query) - from - before;
        const float delta = rows->dot(cpu_at(args->out, args->type, at), cpu_at(args->dout, args->type, at),
                                      args->type, args->D);
        const float lse = args->lse[(sample * args->H + head) * args->T + query];
        const struct cpu_mask mask = mask_of(args, sample, head, query, from + before);
        if (args->cap > 0.0f) {
            rows->cap(p_row + before, keys, self->scale / args->cap, args->cap);
            memcpy(capped, p_row + before, keys * sizeof *capped);
        }
        rows->softmax_backward(p_row + before, ds_row + before, keys, self->after, lse, delta, &mask);
        if (args->cap > 0.0f) rows->cap_slope(capped, keys, self->scale, args->cap, ds_row + before);
        row_hide(p_row, before, keys, all);
        row_hide(ds_row, before, keys, all);
    }
}

/* D columns of the tokens from `first` on become 0. */
static void rows_zero(const struct aq_attention *args, float *rows, uint64_t first)
{
    const uint64_t width = width_of(args);
    for (uint64_t token = first; token < args->T; token++)
        memset(rows + token * width, 0, args->D * sizeof *rows);
}

/*
 * One head of queries: dq, and its share of dk and dv. Blocks from the last to the first: the last one sees every key,
 * so that it writes dk and dv, unless another head has (`add`), and the others add. With a window, parts or padding
 * there may be no such block: both start as 0.
 */
static void backward_head(const struct attention *self, uint64_t sample, uint64_t head, bool add, float *scratch)
{
    const struct aq_attention *args = self->args;
    const struct cpu_gemm *gemm = self->cpu->gemm;
    const uint64_t C = args->H * args->D, D = args->D, width = width_of(args), length = length_of(args, sample);
    float *p = scratch + CPU_GEMM_FLOATS, *ds = p + CPU_ATTENTION_FLOATS, *row = args->dqkv + sample * args->T * width;
    float *dq = row + column_of(args, head, 0), *dk = row + column_of(args, head, 1);
    float *dv = row + column_of(args, head, 2);

    if ((args->both || first_key(args, sample, args->T - 1) > 0) && !add) {
        rows_zero(args, dk, 0);
        rows_zero(args, dv, 0);
        add = true;
    }
    rows_zero(args, dq, length);
    for (uint64_t block = (length + self->rows - 1) / self->rows; block-- > 0; add = true) {
        const uint64_t first = block * self->rows;
        const uint64_t end = first + self->rows < length ? first + self->rows : length;
        const uint64_t from = first_key(args, sample, first), n = end - first;
        const uint64_t keys = end_key(args, sample, end - 1) - from;
        const uint64_t stride = cpu_score_stride(keys);
        const struct cpu_operand q = part_of(args, sample, head, 0, first, false);
        const struct cpu_operand kt = part_of(args, sample, head, 1, from, true);
        const struct cpu_operand vt = part_of(args, sample, head, 2, from, true);
        const struct cpu_operand k = part_of(args, sample, head, 1, from, false);
        const uint64_t at = (sample * args->T + first) * C + head * D;
        const struct cpu_operand dout = {
            .data = cpu_at(args->dout, args->type, at), .stride = C, .type = args->type};
        gemm->run(n, keys, D, &q, &kt, args->type, p, stride, false, scratch);
        gemm->run(n, keys, D, &dout, &vt, args->type, ds, stride, false, scratch);
        backward_rows(self, sample, head, first, end, stride, p, ds, scratch); /* between products it is free */
        const struct cpu_operand p_t = cpu_score_block(p, stride, true), ds_t = cpu_score_block(ds, stride, true);
        const struct cpu_operand ds_n = cpu_score_block(ds, stride, false);
        gemm->run(keys, D, n, &p_t, &dout, args->type, dv + from * width, width, add, scratch);
        gemm->run(keys, D, n, &ds_t, &q, args->type, dk + from * width, width, add, scratch);
        gemm->run(n, D, keys, &ds_n, &k, args->type, dq + first * width, width, false, scratch);
    }
}

static void backward_piece(uint64_t piece, uint32_t worker, void *context)
{
    const struct attention *self = context;
    const struct aq_attention *args = self->args;
    const uint64_t sample = piece / args->kv_heads, group = args->H / args->kv_heads;
    const uint64_t first = piece % args->kv_heads * group, width = width_of(args);
    const uint64_t counts[] = {group * args->D, args->D, args->D};
    for (uint64_t head = first; head < first + group; head++)
        backward_head(self, sample, head, head > first, cpu_scratch(self->cpu, worker));
    for (uint64_t token = 0; args->dqkv_rounded && token < args->T; token++)
        for (uint64_t part = 0; part < 3; part++) {
            const uint64_t at = (sample * args->T + token) * width + column_of(args, first, part);
            self->cpu->rows->scale(args->dqkv + at, counts[part], 1.0f, args->dqkv_rounded + at, args->type);
        }
}

enum aq_status cpu_attention_backward(struct aq_device *device, const struct aq_attention *args,
                                      struct aq_stream *stream)
{
    (void)stream;
    struct attention self;
    AQ_TRY(attention_init(&self, device, args));
    cpu_pool_run(self.cpu->pool, args->samples * args->kv_heads, backward_piece, &self);
    return AQ_OK;
}
