/*
 * cpu_delta.c -- the gated delta rule (struct aq_delta): pieces, chunks, what comes before the rule and behind it.
 *
 * A piece is one head of queries and keys of one sample, with all heads of values that share it: the gradients of q and
 * k are sums over these, in one order. A part of a sample is cut into chunks from its first token on, so that both
 * directions find the same chunks.
 */
#include <math.h>
#include <string.h>

#include "cpu_delta.h"

/* Memory of a worker, behind what its products need. */
struct memory {
    float q[CPU_DELTA_ROWS], k[CPU_DELTA_ROWS], dq[CPU_DELTA_ROWS], dk[CPU_DELTA_ROWS];
    float v[CPU_DELTA_ROWS], out[CPU_DELTA_ROWS]; /* backward: its gradient           */
    float S[CPU_DELTA_STATE];                     /* backward                         */
    float states[AQ_DELTA_GROUP_MAX];             /* of all heads; backward: of their gradients */
    float room[CPU_DELTA_ROOM];
    float q_factor[CPU_DELTA_TOKENS], k_factor[CPU_DELTA_TOKENS]; /* 1 / the root of squares and epsilon */
};

_Static_assert(sizeof(struct memory) + CPU_GEMM_FLOATS * sizeof(float) <= CPU_WORKER_BYTES, "memory of a worker");

struct delta {
    struct cpu_device *cpu;
    const struct aq_delta *args;
    const struct cpu_delta_way *way;
};

/* A chunk of a sample: tokens first .. end - 1, in a part that begins at `part`. */
struct span {
    uint64_t sample, first, end, part;
};

static uint64_t part_of(const struct aq_delta *args, uint64_t sample, uint64_t t)
{
    return args->starts ? args->starts[sample * args->T + t] : 0;
}

/* Does a part end behind token end - 1? */
static bool part_ends(const struct aq_delta *args, uint64_t sample, uint64_t end)
{
    return end == args->T || part_of(args, sample, end) == end;
}

static struct span span_from(const struct aq_delta *args, uint64_t sample, uint64_t first)
{
    uint64_t end = first + 1;
    while (end < first + AQ_DELTA_CHUNK && !part_ends(args, sample, end))
        end++;
    return (struct span){sample, first, end, part_of(args, sample, first)};
}

static struct span span_before(const struct aq_delta *args, uint64_t sample, uint64_t end)
{
    const uint64_t part = part_of(args, sample, end - 1);
    return (struct span){sample, part + (end - 1 - part) / AQ_DELTA_CHUNK * AQ_DELTA_CHUNK, end, part};
}

/* Where head `head`'s state before the chunk is kept; NULL: nowhere, it is zero. */
static float *kept_state(const struct aq_delta *args, const struct span *at, uint64_t head)
{
    if (!args->states || at->first == at->part) return NULL;
    const uint64_t number = at->sample * aq_delta_states(args->T) + at->first / AQ_DELTA_CHUNK - 1;
    return args->states + (number * args->H + head) * args->Dk * args->Dv;
}

static uint64_t row_of(const struct delta *self, const struct span *at, uint64_t i)
{
    return at->sample * self->args->T + at->first + i;
}

static uint64_t width_of(const struct aq_delta *args)
{
    return 2 * args->K * args->Dk + args->H * args->Dv;
}

/* Columns of queries and of keys of head `key`, and of values of `head`. */
static uint64_t column_q(const struct aq_delta *args, uint64_t key)
{
    return key * args->Dk;
}

static uint64_t column_k(const struct aq_delta *args, uint64_t key)
{
    return (args->K + key) * args->Dk;
}

static uint64_t column_v(const struct aq_delta *args, uint64_t head)
{
    return 2 * args->K * args->Dk + head * args->Dv;
}

/* ---- What comes before the rule. */

static void load(const struct delta *self, const struct span *at, uint64_t column, uint64_t D, float *to)
{
    for (uint64_t i = 0; i < at->end - at->first; i++)
        for (uint64_t d = 0; d < D; d++)
            to[i * D + d] =
                cpu_load(self->args->qkv, self->args->type, row_of(self, at, i) * width_of(self->args) + column + d);
}

/* x, times `scale`, over the root of its squares and epsilon. */
static void load_normalized(const struct delta *self, const struct span *at, uint64_t column, float scale, float *to,
                            float *factors)
{
    const uint64_t D = self->args->Dk;
    load(self, at, column, D, to);
    for (uint64_t i = 0; i < at->end - at->first; i++) {
        const float squares = self->cpu->rows->dot(to + i * D, to + i * D, AQ_F32, D);
        factors[i] = 1.0f / sqrtf(squares + self->args->epsilon);
        self->cpu->rows->scale(to + i * D, D, factors[i] * scale, to + i * D, AQ_F32);
    }
}

static float query_scale(const struct aq_delta *args)
{
    return 1.0f / sqrtf((float)args->Dk);
}

static float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

static float softplus(float x)
{
    return x > 20.0f ? x : log1pf(expf(x));
}

/* b and a of a token, with the shift; and g. */
struct gates {
    float b, a, rate, g;
};

static struct gates gates_of(const struct aq_delta *args, uint64_t row, uint64_t head)
{
    const float *gates = args->gates + row * 2 * args->H;
    const float a = gates[args->H + head] + args->shift[head], rate = -expf(args->rate[head]);
    return (struct gates){.b = gates[head], .a = a, .rate = rate, .g = rate * softplus(a)};
}

static struct cpu_delta_chunk chunk_of(const struct delta *self, const struct span *at, struct memory *memory,
                                       float *scratch)
{
    return (struct cpu_delta_chunk){.n = at->end - at->first,
                                    .Dk = self->args->Dk,
                                    .Dv = self->args->Dv,
                                    .q = memory->q,
                                    .k = memory->k,
                                    .v = memory->v,
                                    .out = memory->out,
                                    .dout = memory->out,
                                    .dq = memory->dq,
                                    .dk = memory->dk,
                                    .room = memory->room,
                                    .cpu = self->cpu,
                                    .scratch = scratch};
}

static void load_head(const struct delta *self, const struct span *at, uint64_t head, struct cpu_delta_chunk *c)
{
    load(self, at, column_v(self->args, head), c->Dv, c->v);
    for (uint64_t i = 0; i < c->n; i++) {
        const struct gates gates = gates_of(self->args, row_of(self, at, i), head);
        c->beta[i] = sigmoid(gates.b);
        c->decay[i] = expf(gates.g);
    }
}

static void load_keys(const struct delta *self, const struct span *at, uint64_t key, struct memory *memory)
{
    load_normalized(self, at, column_q(self->args, key), query_scale(self->args), memory->q, memory->q_factor);
    load_normalized(self, at, column_k(self->args, key), 1.0f, memory->k, memory->k_factor);
}

static struct memory *memory_of(const struct delta *self, uint32_t worker)
{
    return (struct memory *)(void *)(cpu_scratch(self->cpu, worker) + CPU_GEMM_FLOATS);
}

static enum aq_status delta_init(struct delta *self, struct aq_device *device, const struct aq_delta *args)
{
    const uint64_t group = args->H / args->K, states = group * args->Dk * args->Dv;
    *self = (struct delta){.cpu = cpu_device_of(device), .args = args};
    self->way = self->cpu->gemm == &cpu_gemm_plain ? &cpu_delta_plain : &cpu_delta_chunked;
    if (args->Dk <= AQ_DELTA_HEAD_MAX && args->Dv <= AQ_DELTA_HEAD_MAX && states <= AQ_DELTA_GROUP_MAX) return AQ_OK;
    return aq_fail(AQ_INVAL, "device",
                   "a delta rule with heads of %llu and %llu channels, %llu value heads per key head, exceeds the "
                   "limits of %d channels and %d state values",
                   (unsigned long long)args->Dk, (unsigned long long)args->Dv, (unsigned long long)group,
                   AQ_DELTA_HEAD_MAX, AQ_DELTA_GROUP_MAX);
}

/* ---- Forward. */

/* head: of values. S: its state, from chunk to chunk. */
static void forward_head(const struct delta *self, const struct span *at, uint64_t head, struct cpu_delta_chunk *c)
{
    const struct aq_delta *args = self->args;
    const uint64_t values = c->Dk * c->Dv;
    float *kept = kept_state(args, at, head);
    const float *before = args->continues && at->first == 0
                              ? args->carried + (at->sample * args->H + head) * values
                              : NULL;
    if (before)
        memcpy(c->S, before, values * sizeof *c->S);
    else if (at->first == at->part)
        memset(c->S, 0, values * sizeof *c->S);
    if (kept) memcpy(kept, c->S, values * sizeof *kept);
    load_head(self, at, head, c);
    self->way->forward(c);
    for (uint64_t i = 0; i < c->n; i++)
        memcpy(args->out + (row_of(self, at, i) * args->H + head) * c->Dv, c->out + i * c->Dv, c->Dv * sizeof *c->out);
    if (args->carried && at->end == args->T)
        memcpy(args->carried + (at->sample * args->H + head) * values, c->S, values * sizeof *c->S);
}

static void forward_piece(uint64_t piece, uint32_t worker, void *context)
{
    const struct delta *self = context;
    const struct aq_delta *args = self->args;
    const uint64_t sample = piece / args->K, key = piece % args->K, group = args->H / args->K;
    struct memory *memory = memory_of(self, worker);
    struct span at = {.end = 0};
    while (at.end < args->T) {
        at = span_from(args, sample, at.end);
        struct cpu_delta_chunk c = chunk_of(self, &at, memory, cpu_scratch(self->cpu, worker));
        load_keys(self, &at, key, memory);
        for (uint64_t head = 0; head < group; head++) {
            c.S = memory->states + head * c.Dk * c.Dv;
            forward_head(self, &at, key * group + head, &c);
        }
    }
}

enum aq_status cpu_delta(struct aq_device *device, const struct aq_delta *args, struct aq_stream *stream)
{
    struct delta self;
    (void)stream;
    AQ_TRY(delta_init(&self, device, args));
    cpu_pool_run(self.cpu->pool, args->samples * args->K, forward_piece, &self);
    return AQ_OK;
}

/* ---- Backward. */

static void store(const struct delta *self, const struct span *at, uint64_t column, uint64_t D, const float *from)
{
    for (uint64_t i = 0; i < at->end - at->first; i++)
        for (uint64_t d = 0; d < D; d++)
            cpu_store(self->args->dqkv, self->args->type, row_of(self, at, i) * width_of(self->args) + column + d,
                      from[i * D + d]);
}

/* With x' = scale factor x of load_normalized:  dx = factor (scale dx' - x' (x' . dx') / scale). */
static void store_normalized(const struct delta *self, const struct span *at, uint64_t column, float scale,
                             const float *normalized, const float *factors, float *gradient)
{
    const uint64_t D = self->args->Dk;
    for (uint64_t i = 0; i < at->end - at->first; i++) {
        const float *x = normalized + i * D;
        float *dx = gradient + i * D;
        const float along = self->cpu->rows->dot(x, dx, AQ_F32, D) / scale;
        for (uint64_t d = 0; d < D; d++)
            dx[d] = factors[i] * (scale * dx[d] - x[d] * along);
    }
    store(self, at, column, D, gradient);
}

static void gates_backward(const struct delta *self, const struct span *at, uint64_t head,
                           const struct cpu_delta_chunk *c)
{
    const struct aq_delta *args = self->args;
    for (uint64_t i = 0; i < c->n; i++) {
        const uint64_t row = row_of(self, at, i);
        const struct gates gates = gates_of(args, row, head);
        float *dgates = args->dgates + row * 2 * args->H;
        dgates[head] = c->dbeta[i] * c->beta[i] * (1.0f - c->beta[i]);
        dgates[args->H + head] = c->dg[i] * gates.rate * sigmoid(gates.a);
        args->drates[row * args->H + head] = c->dg[i] * gates.g;
    }
}

static void backward_head(const struct delta *self, const struct span *at, uint64_t head, struct cpu_delta_chunk *c)
{
    const struct aq_delta *args = self->args;
    const uint64_t values = c->Dk * c->Dv;
    const float *kept = kept_state(args, at, head);
    if (part_ends(args, at->sample, at->end)) memset(c->dS, 0, values * sizeof *c->dS);
    if (kept)
        memcpy(c->S, kept, values * sizeof *c->S);
    else
        memset(c->S, 0, values * sizeof *c->S);
    load_head(self, at, head, c);
    for (uint64_t i = 0; i < c->n; i++)
        memcpy(c->dout + i * c->Dv, args->dout + (row_of(self, at, i) * args->H + head) * c->Dv,
               c->Dv * sizeof *c->dout);
    self->way->backward(c);
    store(self, at, column_v(args, head), c->Dv, c->v);
    gates_backward(self, at, head, c);
}

static void backward_piece(uint64_t piece, uint32_t worker, void *context)
{
    const struct delta *self = context;
    const struct aq_delta *args = self->args;
    const uint64_t sample = piece / args->K, key = piece % args->K, group = args->H / args->K;
    struct memory *memory = memory_of(self, worker);
    for (uint64_t end = args->T; end > 0;) {
        const struct span at = span_before(args, sample, end);
        struct cpu_delta_chunk c = chunk_of(self, &at, memory, cpu_scratch(self->cpu, worker));
        load_keys(self, &at, key, memory);
        memset(memory->dq, 0, c.n * c.Dk * sizeof *memory->dq);
        memset(memory->dk, 0, c.n * c.Dk * sizeof *memory->dk);
        c.S = memory->S;
        for (uint64_t head = 0; head < group; head++) {
            c.dS = memory->states + head * c.Dk * c.Dv;
            backward_head(self, &at, key * group + head, &c);
        }
        store_normalized(self, &at, column_q(args, key), query_scale(args), memory->q, memory->q_factor, memory->dq);
        store_normalized(self, &at, column_k(args, key), 1.0f, memory->k, memory->k_factor, memory->dk);
        end = at.first;
    }
}

enum aq_status cpu_delta_backward(struct aq_device *device, const struct aq_delta *args, struct aq_stream *stream)
{
    struct delta self;
    (void)stream;
    AQ_TRY(delta_init(&self, device, args));
    cpu_pool_run(self.cpu->pool, args->samples * args->K, backward_piece, &self);
    return AQ_OK;
}
