/*
 * cpu_disentangled.c -- disentangled attention in blocks of query rows, forward and backward; cpu_attention.c is its
 * plainer relative.
 *
 * A score is scale (q_i . k_j + q_i . K_r + k_j . Q_r) with r the row of the positions for the distance i - j. The two
 * relative terms are products first and looked up then: a tile of queries times keys has few rows r, which follow each
 * other, so that two small products (queries by K_r, keys by Q_r) hold every term of the tile. Backward scatters these
 * products' gradients the same way, and multiplies them once.
 *
 * Nothing is computed for rows of padding: their outputs and gradients are 0. A piece of forward is one block of
 * queries of one head; a piece of backward is one head of all samples, because the positions' gradient is a sum over
 * all of them and must be added in one order.
 */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "cpu_device.h"

enum { BLOCK_ROWS = 64, TILE = 64, SPAN = BLOCK_ROWS + TILE - 1 /* distances in a tile, and most rows of positions */ };

struct disentangled {
    struct cpu_device *cpu;
    const struct aq_disentangled *args;
    uint64_t rows, keys; /* queries of a block, keys of a tile    */
    uint64_t blocks;     /* of a sample of T tokens               */
};

/* One head of one sample. */
struct head {
    uint64_t sample, head, length;
};

/* A block of queries [first, end) by a tile of keys [key, key_end): the rows of the positions that it has. */
struct tile {
    uint64_t first, end, key, key_end;
    uint64_t row, count;
};

/* The most rows of the positions that `distances` consecutive distances span. The index rises with the distance. */
static uint64_t rows_of(const struct aq_disentangled *args, uint64_t distances)
{
    const uint64_t all = 2 * args->T - 1;
    uint64_t most = 0;
    for (uint64_t first = 0; first < all; first++) {
        const uint64_t last = first + distances < all ? first + distances - 1 : all - 1;
        const uint64_t count = (uint64_t)(args->index[last] - args->index[first]) + 1;
        if (count > most) most = count;
    }
    return most;
}

static enum aq_status disentangled_init(struct disentangled *self, struct aq_device *device,
                                        const struct aq_disentangled *args)
{
    uint64_t rows = CPU_ATTENTION_FLOATS / cpu_score_stride(args->T);
    if (rows == 0)
        return aq_fail(AQ_INVAL, "device", "attention over %llu tokens exceeds the limit of %d",
                       (unsigned long long)args->T, CPU_ATTENTION_FLOATS);
    if (args->D > CPU_ATTENTION_FLOATS / BLOCK_ROWS)
        return aq_fail(AQ_INVAL, "device", "attention with %llu channels per head exceeds the limit of %d",
                       (unsigned long long)args->D, CPU_ATTENTION_FLOATS / BLOCK_ROWS);
    if (rows > BLOCK_ROWS) rows = BLOCK_ROWS;
    /* Rarely, where buckets are nearly as many as distances, rows are between those of neighbours: smaller tiles. */
    uint64_t keys = TILE;
    while (rows_of(args, rows + keys - 1) > SPAN) {
        rows = (rows + 1) / 2;
        keys = (keys + 1) / 2;
    }
    *self = (struct disentangled){
        .cpu = cpu_device_of(device), .args = args, .rows = rows, .keys = keys, .blocks = (args->T + rows - 1) / rows};
    return AQ_OK;
}

static struct head head_of(const struct aq_disentangled *args, uint64_t sample, uint64_t head)
{
    const uint64_t length = args->lengths ? args->lengths[sample] : args->T;
    return (struct head){.sample = sample, .head = head, .length = length < args->T ? length : args->T};
}

/* q (part 0), k (1) or v (2) of one head, from token `first`. */
static struct cpu_operand part_of(const struct aq_disentangled *args, const struct head *head, int part, uint64_t first,
                                  bool transposed)
{
    const uint64_t C = args->H * args->D;
    const uint64_t at = (head->sample * args->T + first) * 3 * C + (uint64_t)part * C + head->head * args->D;
    return (struct cpu_operand){
        .data = cpu_at(args->qkv, args->type, at), .stride = 3 * C, .type = args->type, .transposed = transposed};
}

/* Rows of the positions from `row` on: Q (part 0) or K (1) of one head. */
static struct cpu_operand positions_of(const struct aq_disentangled *args, const struct head *head, int part,
                                       uint64_t row, bool transposed)
{
    const uint64_t C = args->H * args->D, at = row * 2 * C + (uint64_t)part * C + head->head * args->D;
    return (struct cpu_operand){
        .data = cpu_at(args->positions, args->type, at), .stride = 2 * C, .type = args->type, .transposed = transposed};
}

static struct cpu_mask mask_of(const struct aq_disentangled *args, const struct head *head, uint64_t query)
{
    return cpu_mask_of(&args->dropout, head->sample, (head->head * args->T_mask + query) * args->T_mask);
}

/* Rows of the positions at distance query - key; index[0] is of the keys' last place before the query. */
static const int32_t *index_of(const struct aq_disentangled *args, uint64_t query, uint64_t key)
{
    return args->index + (query + args->T - 1 - key);
}

static struct tile tile_of(const struct disentangled *self, uint64_t first, uint64_t end, uint64_t key, uint64_t length)
{
    const struct aq_disentangled *args = self->args;
    struct tile tile = {.first = first, .end = end, .key = key};
    tile.key_end = key + self->keys < length ? key + self->keys : length;
    tile.row = (uint64_t)*index_of(args, first, tile.key_end - 1); /* the index rises with the distance */
    tile.count = (uint64_t)*index_of(args, end - 1, key) - tile.row + 1;
    AQ_ASSERT(tile.count <= SPAN && tile.row + tile.count <= args->R);
    return tile;
}

/* The two relative terms of a tile, added to a block of scores. */
static void tile_add(const struct disentangled *self, const struct head *head, const struct tile *tile, float *scores,
                     uint64_t stride, float *by_query, float *by_key, float *scratch)
{
    const struct aq_disentangled *args = self->args;
    const struct cpu_gemm *gemm = self->cpu->gemm;
    const uint64_t queries = tile->end - tile->first, keys = tile->key_end - tile->key;
    const struct cpu_operand q = part_of(args, head, 0, tile->first, false),
                             k = part_of(args, head, 1, tile->key, false);
    const struct cpu_operand kr = positions_of(args, head, 1, tile->row, true);
    const struct cpu_operand qr = positions_of(args, head, 0, tile->row, true);
    gemm->run(queries, tile->count, args->D, &q, &kr, args->type, by_query, SPAN, false, scratch);
    gemm->run(keys, tile->count, args->D, &k, &qr, args->type, by_key, SPAN, false, scratch);
    for (uint64_t i = 0; i < queries; i++) {
        const int32_t *index = index_of(args, tile->first + i, tile->key);
        const float *of_query = by_query + i * SPAN;
        float *row = scores + i * stride + tile->key;
        for (uint64_t j = 0; j < keys; j++) {
            const uint64_t r = (uint64_t)index[-(int64_t)j] - tile->row;
            row[j] += of_query[r] + by_key[j * SPAN + r];
        }
    }
}

/* A worker's scratch behind that of its products. */
struct space {
    float *scratch, *p, *ds, *by_query, *by_key, *sums;
};

static struct space space_of(const struct disentangled *self, uint32_t worker)
{
    float *scratch = cpu_scratch(self->cpu, worker), *p = scratch + CPU_GEMM_FLOATS, *ds = p + CPU_ATTENTION_FLOATS;
    static_assert(CPU_GEMM_FLOATS + 3 * CPU_ATTENTION_FLOATS <= CPU_WORKER_BYTES / 4 &&
                      (BLOCK_ROWS + TILE) * SPAN <= CPU_ATTENTION_FLOATS,
                  "a worker's scratch");
    float *by_query = ds + CPU_ATTENTION_FLOATS;
    return (struct space){.scratch = scratch,
                          .p = p,
                          .ds = ds,
                          .by_query = by_query,
                          .by_key = by_query + BLOCK_ROWS * SPAN,
                          .sums = ds /* forward has no other use for it */};
}

/* Scores of the queries [first, end), not yet scaled. */
static void scores_make(const struct disentangled *self, const struct head *head, uint64_t first, uint64_t end,
                        uint64_t stride, const struct space *space)
{
    const struct aq_disentangled *args = self->args;
    const struct cpu_operand q = part_of(args, head, 0, first, false), k = part_of(args, head, 1, 0, true);
    self->cpu->gemm->run(end - first, head->length, args->D, &q, &k, args->type, space->p, stride, false,
                         space->scratch);
    for (uint64_t key = 0; key < head->length; key += self->keys) {
        const struct tile tile = tile_of(self, first, end, key, head->length);
        tile_add(self, head, &tile, space->p, stride, space->by_query, space->by_key, space->scratch);
    }
}

static void forward_padding(const struct aq_disentangled *args, const struct head *head, uint64_t first, uint64_t end)
{
    const uint64_t C = args->H * args->D;
    for (uint64_t query = first; query < end; query++) {
        const uint64_t at = (head->sample * args->T + query) * C + head->head * args->D;
        memset(cpu_at_w(args->out, args->type, at), 0, args->D * aq_element_bytes(args->type));
        args->lse[(head->sample * args->H + head->head) * args->T + query] = 0.0f;
    }
}

static void forward_piece(uint64_t piece, uint32_t worker, void *context)
{
    const struct disentangled *self = context;
    const struct aq_disentangled *args = self->args;
    const struct cpu_rows *rows = self->cpu->rows;
    const uint64_t heads = args->samples * args->H, C = args->H * args->D;
    const struct head head = head_of(args, piece % heads / args->H, piece % heads % args->H);
    const uint64_t first = piece / heads * self->rows, last = end_of(piece / heads, args->T, self->rows);
    const uint64_t end = last < head.length ? last : head.length, keys = head.length, stride = cpu_score_stride(keys);
    const struct space space = space_of(self, worker);
    float factor[BLOCK_ROWS];

    forward_padding(args, &head, first < end ? end : first, last);
    if (first >= end) return;
    scores_make(self, &head, first, end, stride, &space);
    for (uint64_t r = 0; r < end - first; r++) {
        float *row = space.p + r * stride;
        const float top = rows->max(row, keys) * args->scale;
        const float sum = rows->exp_sum(row, keys, args->scale, top);
        args->lse[(head.sample * args->H + head.head) * args->T + first + r] = top + logf(sum);
        factor[r] = 1.0f / sum;
        const struct cpu_mask mask = mask_of(args, &head, first + r);
        if (mask.key) rows->mask(row, keys, &mask, row, AQ_F32);
    }
    const struct cpu_operand p = cpu_score_block(space.p, stride, false), v = part_of(args, &head, 2, 0, false);
    self->cpu->gemm->run(end - first, args->D, keys, &p, &v, args->type, space.sums, args->D, false, space.scratch);
    for (uint64_t r = 0; r < end - first; r++) {
        const uint64_t at = (head.sample * args->T + first + r) * C + head.head * args->D;
        rows->scale(space.sums + r * args->D, args->D, factor[r], cpu_at_w(args->out, args->type, at), args->type);
    }
}

enum aq_status cpu_disentangled(struct aq_device *device, const struct aq_disentangled *args, struct aq_stream *stream)
{
    (void)stream;
    struct disentangled self;
    AQ_TRY(disentangled_init(&self, device, args));
    cpu_pool_run(self.cpu->pool, self.blocks * args->samples * args->H, forward_piece, &self);
    return AQ_OK;
}

/* The gradients of one head. */
struct gradients {
    float *dq, *dk, *dv;   /* of the sample's first token */
    float *dkr, *dqr;      /* of the positions' first row */
    uint64_t stride, rows; /* of the former; of the latter */
};

/* Adds a tile's gradients of scores to those of the relative terms, and these to those of their operands. */
static void tile_backward(const struct disentangled *self, const struct head *head, const struct tile *tile,
                          const struct gradients *to, uint64_t stride, const struct space *space)
{
    const struct aq_disentangled *args = self->args;
    const struct cpu_gemm *gemm = self->cpu->gemm;
    const uint64_t queries = tile->end - tile->first, keys = tile->key_end - tile->key, D = args->D;
    memset(space->by_query, 0, queries * SPAN * sizeof(float));
    memset(space->by_key, 0, keys * SPAN * sizeof(float));
    for (uint64_t i = 0; i < queries; i++) {
        const int32_t *index = index_of(args, tile->first + i, tile->key);
        const float *ds = space->ds + i * stride + tile->key;
        float *of_query = space->by_query + i * SPAN;
        for (uint64_t j = 0; j < keys; j++) {
            const uint64_t r = (uint64_t)index[-(int64_t)j] - tile->row;
            of_query[r] += ds[j];
            space->by_key[j * SPAN + r] += ds[j];
        }
    }
    const struct cpu_operand q = part_of(args, head, 0, tile->first, false),
                             k = part_of(args, head, 1, tile->key, false);
    const struct cpu_operand kr = positions_of(args, head, 1, tile->row, false);
    const struct cpu_operand qr = positions_of(args, head, 0, tile->row, false);
    const struct cpu_operand dqk = cpu_score_block(space->by_query, SPAN, false),
                             dkq = cpu_score_block(space->by_key, SPAN, false);
    const struct cpu_operand dqk_t = cpu_score_block(space->by_query, SPAN, true),
                             dkq_t = cpu_score_block(space->by_key, SPAN, true);
    float *const dq = to->dq + tile->first * to->stride, *const dk = to->dk + tile->key * to->stride;
    float *const dkr = to->dkr + tile->row * to->rows, *const dqr = to->dqr + tile->row * to->rows;
    gemm->run(queries, D, tile->count, &dqk, &kr, args->type, dq, to->stride, true, space->scratch);
    gemm->run(keys, D, tile->count, &dkq, &qr, args->type, dk, to->stride, true, space->scratch);
    gemm->run(tile->count, D, queries, &dqk_t, &q, args->type, dkr, to->rows, true, space->scratch);
    gemm->run(tile->count, D, keys, &dkq_t, &k, args->type, dqr, to->rows, true, space->scratch);
}

static void backward_rows(const struct disentangled *self, const struct head *head, uint64_t first, uint64_t end,
                          uint64_t stride, const struct space *space)
{
    const struct aq_disentangled *args = self->args;
    const uint64_t C = args->H * args->D;
    for (uint64_t query = first; query < end; query++) {
        const uint64_t at = (head->sample * args->T + query) * C + head->head * args->D;
        const float delta = self->cpu->rows->dot(cpu_at(args->out, args->type, at), cpu_at(args->dout, args->type, at),
                                                 args->type, args->D);
        const float lse = args->lse[(head->sample * args->H + head->head) * args->T + query];
        const struct cpu_mask mask = mask_of(args, head, query);
        self->cpu->rows->softmax_backward(space->p + (query - first) * stride, space->ds + (query - first) * stride,
                                          head->length, args->scale, lse, delta, &mask);
    }
}

static void backward_block(const struct disentangled *self, const struct head *head, uint64_t block,
                           const struct gradients *to, const struct space *space)
{
    const struct aq_disentangled *args = self->args;
    const struct cpu_gemm *gemm = self->cpu->gemm;
    const uint64_t first = block * self->rows, end = end_of(block, head->length, self->rows), n = end - first;
    const uint64_t C = args->H * args->D, D = args->D, keys = head->length, stride = cpu_score_stride(keys);
    const uint64_t at = (head->sample * args->T + first) * C + head->head * D;
    const struct cpu_operand q = part_of(args, head, 0, first, false), k = part_of(args, head, 1, 0, false);
    const struct cpu_operand vt = part_of(args, head, 2, 0, true);
    const struct cpu_operand dout = {.data = cpu_at(args->dout, args->type, at), .stride = C, .type = args->type};
    scores_make(self, head, first, end, stride, space);
    gemm->run(n, keys, D, &dout, &vt, args->type, space->ds, stride, false, space->scratch);
    backward_rows(self, head, first, end, stride, space);
    const struct cpu_operand p_t = cpu_score_block(space->p, stride, true),
                             ds_t = cpu_score_block(space->ds, stride, true);
    const struct cpu_operand ds = cpu_score_block(space->ds, stride, false);
    gemm->run(keys, D, n, &p_t, &dout, args->type, to->dv, to->stride, block > 0, space->scratch);
    gemm->run(keys, D, n, &ds_t, &q, args->type, to->dk, to->stride, block > 0, space->scratch);
    gemm->run(n, D, keys, &ds, &k, args->type, to->dq + first * to->stride, to->stride, false, space->scratch);
    for (uint64_t key = 0; key < keys; key += self->keys) {
        const struct tile tile = tile_of(self, first, end, key, keys);
        tile_backward(self, head, &tile, to, stride, space);
    }
}

static void backward_piece(uint64_t piece, uint32_t worker, void *context)
{
    const struct disentangled *self = context;
    const struct aq_disentangled *args = self->args;
    const uint64_t C = args->H * args->D, D = args->D;
    const struct space space = space_of(self, worker);
    struct gradients to = {.dqr = args->dpositions + piece * D, .stride = 3 * C, .rows = 2 * C};
    to.dkr = to.dqr + C;
    for (uint64_t row = 0; row < args->R; row++) {
        memset(to.dkr + row * to.rows, 0, D * sizeof(float));
        memset(to.dqr + row * to.rows, 0, D * sizeof(float));
    }
    for (uint64_t sample = 0; sample < args->samples; sample++) {
        const struct head head = head_of(args, sample, piece);
        to.dq = args->dqkv + sample * args->T * 3 * C + piece * D;
        to.dk = to.dq + C;
        to.dv = to.dk + C;
        for (uint64_t row = 3 * head.length; row < 3 * args->T; row++) /* q, k and v of a token after one another */
            memset(to.dq + row * C, 0, D * sizeof(float));
        for (uint64_t block = 0; block * self->rows < head.length; block++)
            backward_block(self, &head, block, &to, &space);
    }
}

enum aq_status cpu_disentangled_backward(struct aq_device *device, const struct aq_disentangled *args,
                                         struct aq_stream *stream)
{
    (void)stream;
    struct disentangled self;
    AQ_TRY(disentangled_init(&self, device, args));
    cpu_pool_run(self.cpu->pool, args->H, backward_piece, &self);
    return AQ_OK;
}
