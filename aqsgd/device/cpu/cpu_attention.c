/*
 * cpu_attention.c -- causal attention in blocks of query rows, forward and backward.
 *
 * Forward keeps one number a row (lse, the log of the sum of exponentials); backward makes the weights again from it,
 * block by block, as Dao et al. 2022 ("FlashAttention") do. A piece of forward is one block of queries of one head; a
 * piece of backward is one head, because dk and dv are sums over all its queries and must be added in one order.
 *
 * With S = scale q k^T, P = softmax(S), M the dropout mask with its factor, O = (P M) v and delta = rowsum(O dO):
 *     dv = (P M)^T dO,   dP = (dO v^T) M,   dS = P (dP - delta) scale,   dq = dS k,   dk = dS^T q.
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
    float scale;
};

static uint64_t row_stride(uint64_t keys)
{
    return (keys + 15) / 16 * 16;
}

static enum aq_status attention_init(struct attention *self, struct aq_device *device, const struct aq_attention *args)
{
    uint64_t rows = CPU_ATTENTION_FLOATS / row_stride(args->T);
    if (rows == 0)
        return aq_fail(AQ_INVAL, "device", "attention over %llu tokens: at most %d", (unsigned long long)args->T,
                       CPU_ATTENTION_FLOATS);
    if (args->D > CPU_ATTENTION_FLOATS / BLOCK_ROWS)
        return aq_fail(AQ_INVAL, "device", "attention with %llu channels a head: at most %d",
                       (unsigned long long)args->D, CPU_ATTENTION_FLOATS / BLOCK_ROWS);
    if (rows > BLOCK_ROWS) rows = BLOCK_ROWS;
    *self = (struct attention){.cpu = cpu_device_of(device),
                               .args = args,
                               .rows = rows,
                               .blocks = (args->T + rows - 1) / rows,
                               .scale = 1.0f / sqrtf((float)args->D)};
    return AQ_OK;
}

/* q (part 0), k (1) or v (2) of one head, from token `first`. */
static struct cpu_operand part_of(const struct aq_attention *args, uint64_t sample, uint64_t head, int part,
                                  uint64_t first, bool transposed)
{
    const uint64_t C = args->H * args->D;
    const uint64_t at = (sample * args->T + first) * 3 * C + (uint64_t)part * C + head * args->D;
    return (struct cpu_operand){
        .data = cpu_at(args->qkv, args->type, at), .stride = 3 * C, .type = args->type, .transposed = transposed};
}

static struct cpu_operand block_of(const float *scores, uint64_t stride, bool transposed)
{
    return (struct cpu_operand){.data = scores, .stride = stride, .type = AQ_F32, .transposed = transposed};
}

static struct cpu_mask mask_of(const struct aq_attention *args, uint64_t sample, uint64_t head, uint64_t query)
{
    return cpu_mask_of(&args->dropout, sample, (head * args->T_mask + query) * args->T_mask);
}

/* The heaviest blocks, the last ones, are handed out first. */
static void forward_piece(uint64_t piece, uint32_t worker, void *context)
{
    const struct attention *self = context;
    const struct aq_attention *args = self->args;
    const struct cpu_rows *rows = self->cpu->rows;
    const uint64_t heads = args->samples * args->H, C = args->H * args->D;
    const uint64_t sample = piece % heads / args->H, head = piece % heads % args->H;
    const uint64_t first = (self->blocks - 1 - piece / heads) * self->rows;
    const uint64_t end = first + self->rows < args->T ? first + self->rows : args->T;
    const uint64_t stride = row_stride(end);
    float *scratch = cpu_scratch(self->cpu, worker);
    float *scores = scratch + CPU_GEMM_FLOATS, *sums = scores + CPU_ATTENTION_FLOATS;
    float factor[BLOCK_ROWS];

    const struct cpu_operand q = part_of(args, sample, head, 0, first, false);
    const struct cpu_operand k = part_of(args, sample, head, 1, 0, true);
    self->cpu->gemm->run(end - first, end, args->D, &q, &k, args->type, scores, stride, false, scratch);
    for (uint64_t r = 0; r < end - first; r++) {
        float *row = scores + r * stride;
        const uint64_t keys = first + r + 1;
        const float top = rows->max(row, keys) * self->scale;
        const float sum = rows->exp_sum(row, keys, self->scale, top);
        args->lse[(sample * args->H + head) * args->T + first + r] = top + logf(sum);
        factor[r] = 1.0f / sum;
        const struct cpu_mask mask = mask_of(args, sample, head, first + r);
        if (mask.key) rows->mask(row, keys, &mask, row, AQ_F32);
        memset(row + keys, 0, (end - keys) * sizeof *row);
    }
    const struct cpu_operand p = block_of(scores, stride, false), v = part_of(args, sample, head, 2, 0, false);
    self->cpu->gemm->run(end - first, args->D, end, &p, &v, args->type, sums, args->D, false, scratch);
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

static void backward_rows(const struct attention *self, uint64_t sample, uint64_t head, uint64_t first, uint64_t end,
                          uint64_t stride, float *p, float *ds)
{
    const struct aq_attention *args = self->args;
    const uint64_t C = args->H * args->D;
    for (uint64_t query = first; query < end; query++) {
        float *p_row = p + (query - first) * stride, *ds_row = ds + (query - first) * stride;
        const uint64_t at = (sample * args->T + query) * C + head * args->D, keys = query + 1;
        const float delta = self->cpu->rows->dot(cpu_at(args->out, args->type, at), cpu_at(args->dout, args->type, at),
                                                 args->type, args->D);
        const float lse = args->lse[(sample * args->H + head) * args->T + query];
        const struct cpu_mask mask = mask_of(args, sample, head, query);
        self->cpu->rows->softmax_backward(p_row, ds_row, keys, self->scale, lse, delta, &mask);
        memset(p_row + keys, 0, (end - keys) * sizeof *p_row);
        memset(ds_row + keys, 0, (end - keys) * sizeof *ds_row);
    }
}

/* Blocks from the last to the first: the last one sees every key, so that it writes dk and dv and the others add. */
static void backward_piece(uint64_t piece, uint32_t worker, void *context)
{
    const struct attention *self = context;
    const struct aq_attention *args = self->args;
    const struct cpu_gemm *gemm = self->cpu->gemm;
    const uint64_t sample = piece / args->H, head = piece % args->H, C = args->H * args->D, D = args->D;
    float *scratch = cpu_scratch(self->cpu, worker);
    float *p = scratch + CPU_GEMM_FLOATS, *ds = p + CPU_ATTENTION_FLOATS;
    float *dq = args->dqkv + sample * args->T * 3 * C + head * D, *dk = dq + C, *dv = dk + C;

    for (uint64_t block = self->blocks; block-- > 0;) {
        const uint64_t first = block * self->rows;
        const uint64_t end = first + self->rows < args->T ? first + self->rows : args->T;
        const uint64_t n = end - first, stride = row_stride(end);
        const bool add = block + 1 < self->blocks;
        const struct cpu_operand q = part_of(args, sample, head, 0, first, false);
        const struct cpu_operand kt = part_of(args, sample, head, 1, 0, true);
        const struct cpu_operand vt = part_of(args, sample, head, 2, 0, true);
        const struct cpu_operand k = part_of(args, sample, head, 1, 0, false);
        const uint64_t at = (sample * args->T + first) * C + head * D;
        const struct cpu_operand dout = {
            .data = cpu_at(args->dout, args->type, at), .stride = C, .type = args->type};
        gemm->run(n, end, D, &q, &kt, args->type, p, stride, false, scratch);
        gemm->run(n, end, D, &dout, &vt, args->type, ds, stride, false, scratch);
        backward_rows(self, sample, head, first, end, stride, p, ds);
        const struct cpu_operand p_t = block_of(p, stride, true), ds_t = block_of(ds, stride, true);
        const struct cpu_operand ds_n = block_of(ds, stride, false);
        gemm->run(end, D, n, &p_t, &dout, args->type, dv, 3 * C, add, scratch);
        gemm->run(end, D, n, &ds_t, &q, args->type, dk, 3 * C, add, scratch);
        gemm->run(n, D, end, &ds_n, &k, args->type, dq + first * 3 * C, 3 * C, false, scratch);
    }
    for (uint64_t row = 0; args->dqkv_rounded && row < 3 * args->T; row++) /* q, k and v of a token after one another */
        self->cpu->rows->scale(dq + row * C, D, 1.0f, args->dqkv_rounded + (dq - args->dqkv) + row * C, args->type);
}

enum aq_status cpu_attention_backward(struct aq_device *device, const struct aq_attention *args,
                                      struct aq_stream *stream)
{
    (void)stream;
    struct attention self;
    AQ_TRY(attention_init(&self, device, args));
    cpu_pool_run(self.cpu->pool, args->samples * args->H, backward_piece, &self);
    return AQ_OK;
}
