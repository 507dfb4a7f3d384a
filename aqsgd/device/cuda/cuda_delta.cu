/*
 * cuda_delta.cu -- the gated delta rule (struct aq_delta). Truth: cpu_delta_plain.c; the formulas are those of
 * cpu_delta_chunked.c, in the same order and with the same names.
 *
 * A block has one head of queries and keys of one sample, with all heads of values that share it, and goes through its
 * chunks. Its matrices lie in the stream's scratch, a region for each block that may run at once; a block goes on to
 * the next head when it is done. Right for every shape, and simple: no tensor cores.
 */
#include "cuda_common.cuh"

constexpr unsigned THREADS = 256, TOKENS = AQ_DELTA_CHUNK, PAIRS = TOKENS * TOKENS;

/* A block's matrices of a chunk, row by row. */
struct room {
    float *q, *k, *dq, *dk, *part; /* (n, Dk) */
    float *v, *out, *P, *U, *dR;   /* (n, Dv) */
    float *D, *kk, *L, *M, *dL, *dM;
    float *S, *states;             /* states: of all heads of values; backward: their gradients */
};

/* What a block knows of the tokens of a chunk. */
struct tokens {
    float beta[TOKENS], decay[TOKENS], E[TOKENS], dbeta[TOKENS], q_factor[TOKENS], k_factor[TOKENS], dg[TOKENS];
    double log[TOKENS];
    float sums[THREADS];
};

struct chunk {
    uint64_t sample, first, end, part, n, Dk, Dv;
};

static uint64_t room_floats(const struct aq_delta *args)
{
    return TOKENS * 5 * (args->Dk + args->Dv) + 6 * PAIRS + (1 + args->H / args->K) * args->Dk * args->Dv;
}

static __forceinline__ __device__ struct room room_of(const struct aq_delta &args, float *at)
{
    const uint64_t keys = TOKENS * args.Dk, values = TOKENS * args.Dv;
    float *v = at + 5 * keys, *D = v + 5 * values, *S = D + 6 * PAIRS;
    const struct room room = {at, at + keys, at + 2 * keys, at + 3 * keys, at + 4 * keys,
                              v, v + values, v + 2 * values, v + 3 * values, v + 4 * values,
                              D, D + PAIRS, D + 2 * PAIRS, D + 3 * PAIRS, D + 4 * PAIRS, D + 5 * PAIRS,
                              S, S + args.Dk * args.Dv};
    return room;
}

static __forceinline__ __device__ uint64_t part_of(const struct aq_delta &args, uint64_t sample, uint64_t t)
{
    return args.starts ? args.starts[sample * args.T + t] : 0;
}

static __forceinline__ __device__ bool part_ends(const struct aq_delta &args, uint64_t sample, uint64_t end)
{
    return end == args.T || part_of(args, sample, end) == end;
}

static __forceinline__ __device__ struct chunk chunk_from(const struct aq_delta &args, uint64_t sample, uint64_t first)
{
    uint64_t end = first + 1;
    while (end < first + TOKENS && !part_ends(args, sample, end))
        end++;
    const struct chunk c = {sample, first, end, part_of(args, sample, first), end - first, args.Dk, args.Dv};
    return c;
}

static __forceinline__ __device__ struct chunk chunk_before(const struct aq_delta &args, uint64_t sample, uint64_t end)
{
    const uint64_t part = part_of(args, sample, end - 1), first = part + (end - 1 - part) / TOKENS * TOKENS;
    const struct chunk c = {sample, first, end, part, end - first, args.Dk, args.Dv};
    return c;
}

static __forceinline__ __device__ float *kept_state(const struct aq_delta &args, const struct chunk &c, uint64_t head)
{
    if (!args.states || c.first == c.part) return nullptr;
    const uint64_t states = (args.T - 1) / TOKENS; /* aq_delta_states, which is the host's */
    const uint64_t number = c.sample * states + c.first / TOKENS - 1;
    return args.states + (number * args.H + head) * c.Dk * c.Dv;
}

static __forceinline__ __device__ uint64_t row_of(const struct aq_delta &args, const struct chunk &c, uint64_t i)
{
    return c.sample * args.T + c.first + i;
}

static __forceinline__ __device__ uint64_t width_of(const struct aq_delta &args)
{
    return 2 * args.K * args.Dk + args.H * args.Dv;
}

/* ---- Of a whole block; each ends with a barrier. */

/* How a matrix is read: element (i, j) at i row + j column. */
struct view {
    const float *at;
    uint64_t row, column;
};

static __forceinline__ __device__ struct view plain(const float *at, uint64_t columns)
{
    const struct view view = {at, columns, 1};
    return view;
}

static __forceinline__ __device__ struct view transposed(const float *at, uint64_t columns)
{
    const struct view view = {at, 1, columns};
    return view;
}

/* c (M, N) = a b, or += . */
static __device__ void product(uint64_t M, uint64_t N, uint64_t K, struct view a, struct view b, float *c, bool add)
{
    for (uint64_t i = threadIdx.x; i < M * N; i += THREADS) {
        const float *x = a.at + i / N * a.row, *y = b.at + i % N * b.column;
        float sum = 0.0f;
        for (uint64_t k = 0; k < K; k++)
            sum = fmaf(x[k * a.column], y[k * b.row], sum);
        c[i] = add ? c[i] + sum : sum;
    }
    __syncthreads();
}

/* to = scale factors[i] times row i; factors NULL: 1. */
static __device__ void scaled(uint64_t rows, uint64_t columns, const float *x, const float *factors, float scale,
                              float *to)
{
    for (uint64_t i = threadIdx.x; i < rows * columns; i += THREADS)
        to[i] = x[i] * (factors ? factors[i / columns] * scale : scale);
    __syncthreads();
}

/* to += x, or = where add is not. */
static __device__ void added(uint64_t count, const float *x, float *to, bool add)
{
    for (uint64_t i = threadIdx.x; i < count; i += THREADS)
        to[i] = add ? to[i] + x[i] : x[i];
    __syncthreads();
}

static __device__ void zeroed(uint64_t count, float *to)
{
    for (uint64_t i = threadIdx.x; i < count; i += THREADS)
        to[i] = 0.0f;
    __syncthreads();
}

static __forceinline__ __device__ float dot(const float *x, const float *y, uint64_t n)
{
    float sum = 0.0f;
    for (uint64_t i = 0; i < n; i++)
        sum = fmaf(x[i], y[i], sum);
    return sum;
}

/* x . y of all threads, in every thread. */
static __device__ float block_dot(const float *x, const float *y, uint64_t n, struct tokens *tokens)
{
    float sum = 0.0f;
    for (uint64_t i = threadIdx.x; i < n; i += THREADS)
        sum = fmaf(x[i], y[i], sum);
    tokens->sums[threadIdx.x] = sum;
    __syncthreads();
    sum = 0.0f;
    for (unsigned i = 0; i < THREADS; i++)
        sum += tokens->sums[i];
    __syncthreads();
    return sum;
}

/* ---- What comes before the rule. */

static __forceinline__ __device__ float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

static __forceinline__ __device__ float softplus(float x)
{
    return x > 20.0f ? x : log1pf(expf(x));
}

struct gates {
    float b, a, rate, g;
};

static __forceinline__ __device__ struct gates gates_of(const struct aq_delta &args, uint64_t row, uint64_t head)
{
    const float *at = args.gates + row * 2 * args.H;
    const float a = at[args.H + head] + args.shift[head], rate = -expf(args.rate[head]);
    const struct gates gates = {at[head], a, rate, rate * softplus(a)};
    return gates;
}

template <typename T>
static __device__ void load(const struct aq_delta &args, const struct chunk &c, uint64_t column, uint64_t D, float *to)
{
    for (uint64_t i = threadIdx.x; i < c.n * D; i += THREADS)
        to[i] = aq_load(static_cast<const T *>(args.qkv) + row_of(args, c, i / D) * width_of(args) + column + i % D);
    __syncthreads();
}

template <typename T>
static __device__ void load_normalized(const struct aq_delta &args, const struct chunk &c, uint64_t column, float scale,
                                       float *to, float *factors)
{
    load<T>(args, c, column, c.Dk, to);
    if (threadIdx.x < c.n) {
        const float *x = to + threadIdx.x * c.Dk;
        factors[threadIdx.x] = 1.0f / sqrtf(dot(x, x, c.Dk) + args.epsilon);
    }
    __syncthreads();
    scaled(c.n, c.Dk, to, factors, scale, to);
}

template <typename T>
static __device__ void load_keys(const struct aq_delta &args, const struct chunk &c, uint64_t key,
                                 const struct room &room, struct tokens *tokens)
{
    const float scale = 1.0f / sqrtf(static_cast<float>(c.Dk));
    load_normalized<T>(args, c, key * c.Dk, scale, room.q, tokens->q_factor);
    load_normalized<T>(args, c, (args.K + key) * c.Dk, 1.0f, room.k, tokens->k_factor);
}

template <typename T>
static __device__ void load_head(const struct aq_delta &args, const struct chunk &c, uint64_t head,
                                 const struct room &room, struct tokens *tokens)
{
    if (threadIdx.x < c.n) {
        const struct gates gates = gates_of(args, row_of(args, c, threadIdx.x), head);
        tokens->beta[threadIdx.x] = sigmoid(gates.b);
        tokens->decay[threadIdx.x] = expf(gates.g);
    }
    load<T>(args, c, 2 * args.K * c.Dk + head * c.Dv, c.Dv, room.v);
}

/* ---- The rule. */

/* A thread has the pairs of one token with those behind it. */
static __device__ void pairs_make(const struct chunk &c, const struct room &room, struct tokens *tokens)
{
    const uint64_t n = c.n, j = threadIdx.x;
    product(n, n, c.Dk, plain(room.k, c.Dk), transposed(room.k, c.Dk), room.kk, false);
    product(n, n, c.Dk, plain(room.q, c.Dk), transposed(room.k, c.Dk), room.M, false);
    if (j < n) {
        float D = 0.0f;
        for (uint64_t i = 0; i < n; i++) {
            D = i == j ? 1.0f : D * tokens->decay[i];
            room.D[i * n + j] = D;
            room.L[i * n + j] = i > j ? tokens->beta[i] * D * room.kk[i * n + j] : 0.0f;
            room.M[i * n + j] *= D;
            if (j == 0) tokens->E[i] = D * tokens->decay[0];
        }
    }
    __syncthreads();
}

/* P = V - E (K S); U. A thread has columns. */
static __device__ void solve(const struct chunk &c, const struct room &room, const struct tokens *tokens)
{
    product(c.n, c.Dv, c.Dk, plain(room.k, c.Dk), plain(room.S, c.Dv), room.P, false);
    for (uint64_t v = threadIdx.x; v < c.Dv; v += THREADS)
        for (uint64_t i = 0; i < c.n; i++) {
            const uint64_t at = i * c.Dv + v;
            const float P = room.v[at] - tokens->E[i] * room.P[at];
            float u = tokens->beta[i] * P;
            for (uint64_t j = 0; j < i; j++)
                u = fmaf(-room.L[i * c.n + j], room.U[j * c.Dv + v], u);
            room.P[at] = P;
            room.U[at] = u;
        }
    __syncthreads();
}

static __device__ void rule_forward(const struct chunk &c, const struct room &room, struct tokens *tokens)
{
    const float *F = room.D + (c.n - 1) * c.n;
    pairs_make(c, room, tokens);
    solve(c, room, tokens);
    product(c.n, c.Dv, c.Dk, plain(room.q, c.Dk), plain(room.S, c.Dv), room.out, false);
    scaled(c.n, c.Dv, room.out, tokens->E, 1.0f, room.out);
    product(c.n, c.Dv, c.n, plain(room.M, c.n), plain(room.U, c.Dv), room.out, true);
    scaled(c.n, c.Dk, room.k, F, 1.0f, room.part);
    scaled(c.Dk, c.Dv, room.S, nullptr, tokens->E[c.n - 1], room.S);
    product(c.Dk, c.Dv, c.n, transposed(room.part, c.Dk), plain(room.U, c.Dv), room.S, true);
}

/* dR in the place of dU. A thread has columns. */
static __device__ void solve_back(const struct chunk &c, const struct room &room)
{
    for (uint64_t v = threadIdx.x; v < c.Dv; v += THREADS)
        for (uint64_t i = c.n; i-- > 0;) {
            float r = room.dR[i * c.Dv + v];
            for (uint64_t j = i + 1; j < c.n; j++)
                r = fmaf(-room.L[j * c.n + i], room.dR[j * c.Dv + v], r);
            room.dR[i * c.Dv + v] = r;
        }
    __syncthreads();
}

/* dbeta and log of a thread's token; then X in dL and Z in dM, which have signs as products gave them. */
static __device__ void pairs_back(const struct chunk &c, const struct room &room, struct tokens *tokens)
{
    const uint64_t n = c.n, i = threadIdx.x;
    if (i < n) {
        float beta = dot(room.dR + i * c.Dv, room.P + i * c.Dv, c.Dv);
        double log = 0.0;
        for (uint64_t j = 0; j < n; j++) {
            const uint64_t low = i > j ? i * n + j : j * n + i; /* the pair with the other token */
            const double both = static_cast<double>(room.dM[low] * room.M[low] - room.dL[low] * room.L[low]);
            if (j != i) log += j < i ? both : -both;
            if (j < i) beta -= room.dL[low] * room.D[low] * room.kk[low];
        }
        tokens->dbeta[i] = beta;
        tokens->log[i] = log;
    }
    __syncthreads();
    for (uint64_t at = threadIdx.x; at < n * n; at += THREADS) {
        const float D = room.D[at];
        room.dL[at] = at % n < at / n ? -tokens->beta[at / n] * D * room.dL[at] : 0.0f;
        room.dM[at] *= D;
    }
    __syncthreads();
}

/* log[i] += sign x_i . y_i of rows of Dk; `behind`: log[n - 1] has the opposite of all, too. */
static __device__ void log_add(const struct chunk &c, const float *x, const float *y, double sign, bool behind,
                               struct tokens *tokens)
{
    if (threadIdx.x < c.n) {
        const float along = dot(x + threadIdx.x * c.Dk, y + threadIdx.x * c.Dk, c.Dk);
        tokens->log[threadIdx.x] += sign * static_cast<double>(along);
        tokens->sums[threadIdx.x] = along;
    }
    __syncthreads();
    if (behind && threadIdx.x == 0)
        for (uint64_t i = 0; i < c.n; i++)
            tokens->log[c.n - 1] -= sign * static_cast<double>(tokens->sums[i]);
    __syncthreads();
}

/* dS: of this head. out: Y; P: W. */
static __device__ void states_back(const struct chunk &c, const struct room &room, struct tokens *tokens, float *dS)
{
    const uint64_t n = c.n, Dk = c.Dk, Dv = c.Dv;
    product(n, Dk, Dv, plain(room.out, Dv), transposed(room.S, Dv), room.part, false);
    log_add(c, room.q, room.part, 1.0, false, tokens);
    added(n * Dk, room.part, room.dq, true);
    product(n, Dk, Dv, plain(room.P, Dv), transposed(room.S, Dv), room.part, false);
    log_add(c, room.k, room.part, -1.0, false, tokens);
    scaled(n, Dk, room.part, nullptr, -1.0f, room.part);
    added(n * Dk, room.part, room.dk, true);
    product(n, Dk, Dv, plain(room.U, Dv), transposed(dS, Dv), room.part, false);
    scaled(n, Dk, room.part, room.D + (n - 1) * n, 1.0f, room.part);
    log_add(c, room.k, room.part, -1.0, true, tokens);
    added(n * Dk, room.part, room.dk, true);
    const float held = tokens->E[n - 1] * block_dot(room.S, dS, Dk * Dv, tokens);
    if (threadIdx.x == 0) tokens->log[n - 1] += static_cast<double>(held);
    scaled(Dk, Dv, dS, nullptr, tokens->E[n - 1], dS);
    product(Dk, Dv, n, transposed(room.q, Dk), plain(room.out, Dv), dS, true);
    scaled(n, Dv, room.P, nullptr, -1.0f, room.P);
    product(Dk, Dv, n, transposed(room.k, Dk), plain(room.P, Dv), dS, true);
}

static __device__ void rule_backward(const struct chunk &c, const struct room &room, struct tokens *tokens, float *dS)
{
    const uint64_t n = c.n, Dk = c.Dk, Dv = c.Dv;
    pairs_make(c, room, tokens);
    solve(c, room, tokens);
    scaled(n, Dk, room.k, room.D + (n - 1) * n, 1.0f, room.part);
    product(n, Dv, n, transposed(room.M, n), plain(room.out, Dv), room.dR, false);
    product(n, Dv, Dk, plain(room.part, Dk), plain(dS, Dv), room.dR, true);
    solve_back(c, room);
    product(n, n, Dv, plain(room.out, Dv), transposed(room.U, Dv), room.dM, false);
    product(n, n, Dv, plain(room.dR, Dv), transposed(room.U, Dv), room.dL, false);
    pairs_back(c, room, tokens);
    scaled(n, Dv, room.dR, tokens->beta, 1.0f, room.v);
    scaled(n, Dv, room.v, tokens->E, 1.0f, room.P);
    scaled(n, Dv, room.out, tokens->E, 1.0f, room.out);
    product(n, Dk, n, plain(room.dM, n), plain(room.k, Dk), room.dq, true);
    product(n, Dk, n, transposed(room.dM, n), plain(room.q, Dk), room.dk, true);
    product(n, Dk, n, plain(room.dL, n), plain(room.k, Dk), room.dk, true);
    product(n, Dk, n, transposed(room.dL, n), plain(room.k, Dk), room.dk, true);
    states_back(c, room, tokens, dS);
    if (threadIdx.x == 0) {
        double behind = 0.0;
        for (uint64_t i = n; i-- > 0;) {
            behind += tokens->log[i];
            tokens->dg[i] = static_cast<float>(behind);
        }
    }
    __syncthreads();
}

/* ---- Forward. */

template <typename T>
static __device__ void forward_head(const struct aq_delta &args, const struct chunk &c, uint64_t head,
                                    const struct room &room, struct tokens *tokens)
{
    const uint64_t values = c.Dk * c.Dv;
    float *carried = args.carried ? args.carried + (c.sample * args.H + head) * values : nullptr;
    float *kept = kept_state(args, c, head);
    if (args.continues && c.first == 0)
        added(values, carried, room.S, false);
    else if (c.first == c.part)
        zeroed(values, room.S);
    if (kept) added(values, room.S, kept, false);
    load_head<T>(args, c, head, room, tokens);
    rule_forward(c, room, tokens);
    for (uint64_t i = threadIdx.x; i < c.n * c.Dv; i += THREADS)
        args.out[(row_of(args, c, i / c.Dv) * args.H + head) * c.Dv + i % c.Dv] = room.out[i];
    __syncthreads();
    if (carried && c.end == args.T) added(values, room.S, carried, false);
}

template <typename T>
static __global__ void __launch_bounds__(THREADS) delta(struct aq_delta args, float *scratch, uint64_t floats)
{
    AQ_SHARED(struct tokens, tokens, [1]);
    const uint64_t group = args.H / args.K;
    for (uint64_t piece = blockIdx.x; piece < args.samples * args.K; piece += gridDim.x) {
        struct room room = room_of(args, scratch + blockIdx.x * floats);
        const uint64_t key = piece % args.K;
        for (uint64_t end = 0; end < args.T;) {
            const struct chunk c = chunk_from(args, piece / args.K, end);
            load_keys<T>(args, c, key, room, tokens);
            for (uint64_t head = 0; head < group; head++) {
                room.S = room.states + head * c.Dk * c.Dv;
                forward_head<T>(args, c, key * group + head, room, tokens);
            }
            end = c.end;
        }
    }
}

/* ---- Backward. */

template <typename T>
static __device__ void store(const struct aq_delta &args, const struct chunk &c, uint64_t column, uint64_t D,
                             const float *from)
{
    for (uint64_t i = threadIdx.x; i < c.n * D; i += THREADS)
        aq_store(static_cast<T *>(args.dqkv) + row_of(args, c, i / D) * width_of(args) + column + i % D, from[i]);
    __syncthreads();
}

/* A thread has a token. */
template <typename T>
static __device__ void store_normalized(const struct aq_delta &args, const struct chunk &c, uint64_t column,
                                        float scale, const float *normalized, const float *factors, float *gradient)
{
    if (threadIdx.x < c.n) {
        const float *x = normalized + threadIdx.x * c.Dk;
        float *dx = gradient + threadIdx.x * c.Dk;
        const float along = dot(x, dx, c.Dk) / scale;
        for (uint64_t d = 0; d < c.Dk; d++)
            dx[d] = factors[threadIdx.x] * (scale * dx[d] - x[d] * along);
    }
    __syncthreads();
    store<T>(args, c, column, c.Dk, gradient);
}

template <typename T>
static __device__ void backward_head(const struct aq_delta &args, const struct chunk &c, uint64_t head,
                                     const struct room &room, struct tokens *tokens, float *dS)
{
    const uint64_t values = c.Dk * c.Dv, i = threadIdx.x;
    const float *kept = kept_state(args, c, head);
    if (part_ends(args, c.sample, c.end)) zeroed(values, dS);
    if (kept)
        added(values, kept, room.S, false);
    else
        zeroed(values, room.S);
    load_head<T>(args, c, head, room, tokens);
    for (uint64_t at = threadIdx.x; at < c.n * c.Dv; at += THREADS)
        room.out[at] = args.dout[(row_of(args, c, at / c.Dv) * args.H + head) * c.Dv + at % c.Dv];
    __syncthreads();
    rule_backward(c, room, tokens, dS);
    store<T>(args, c, 2 * args.K * c.Dk + head * c.Dv, c.Dv, room.v);
    if (i < c.n) {
        const uint64_t row = row_of(args, c, i);
        const struct gates gates = gates_of(args, row, head);
        const float beta = tokens->beta[i];
        args.dgates[row * 2 * args.H + head] = tokens->dbeta[i] * beta * (1.0f - beta);
        args.dgates[row * 2 * args.H + args.H + head] = tokens->dg[i] * gates.rate * sigmoid(gates.a);
        args.drates[row * args.H + head] = tokens->dg[i] * gates.g;
    }
    __syncthreads();
}

template <typename T>
static __global__ void __launch_bounds__(THREADS) delta_backward(struct aq_delta args, float *scratch, uint64_t floats)
{
    AQ_SHARED(struct tokens, tokens, [1]);
    const uint64_t group = args.H / args.K;
    const float scale = 1.0f / sqrtf(static_cast<float>(args.Dk));
    for (uint64_t piece = blockIdx.x; piece < args.samples * args.K; piece += gridDim.x) {
        const struct room room = room_of(args, scratch + blockIdx.x * floats);
        const uint64_t key = piece % args.K;
        for (uint64_t end = args.T; end > 0;) {
            const struct chunk c = chunk_before(args, piece / args.K, end);
            load_keys<T>(args, c, key, room, tokens);
            zeroed(c.n * c.Dk, room.dq);
            zeroed(c.n * c.Dk, room.dk);
            for (uint64_t head = 0; head < group; head++)
                backward_head<T>(args, c, key * group + head, room, tokens, room.states + head * c.Dk * c.Dv);
            store_normalized<T>(args, c, key * c.Dk, scale, room.q, tokens->q_factor, room.dq);
            store_normalized<T>(args, c, (args.K + key) * c.Dk, 1.0f, room.k, tokens->k_factor, room.dk);
            end = c.first;
        }
    }
}

/* ---- Launches. */

static enum aq_status sizes_check(const struct aq_delta *args, unsigned *blocks, uint64_t *floats)
{
    const uint64_t group = args->H / args->K, states = group * args->Dk * args->Dv, pieces = args->samples * args->K;
    if (args->Dk > AQ_DELTA_HEAD_MAX || args->Dv > AQ_DELTA_HEAD_MAX || states > AQ_DELTA_GROUP_MAX)
        return aq_fail(AQ_INVAL, "device",
                       "a delta rule with heads of %llu and %llu channels, %llu value heads per key head, exceeds the "
                       "limits of %d channels and %d state values",
                       static_cast<unsigned long long>(args->Dk), static_cast<unsigned long long>(args->Dv),
                       static_cast<unsigned long long>(group), AQ_DELTA_HEAD_MAX, AQ_DELTA_GROUP_MAX);
    *floats = room_floats(args);
    const uint64_t regions = AQ_CUDA_SCRATCH_BYTES / sizeof(float) / *floats;
    *blocks = static_cast<unsigned>(pieces < regions ? pieces : regions);
    return AQ_OK;
}

enum aq_status aq_cuda_delta(const struct aq_delta *args, void *scratch, struct CUstream_st *stream)
{
    float *at = static_cast<float *>(scratch);
    unsigned blocks = 0;
    uint64_t floats = 0;
    AQ_TRY(sizes_check(args, &blocks, &floats));
    if (args->type == AQ_BF16) return AQ_LAUNCH(delta<uint16_t>, blocks, THREADS, 0, stream, *args, at, floats);
    if (args->type == AQ_F16) return AQ_LAUNCH(delta<aq_half>, blocks, THREADS, 0, stream, *args, at, floats);
    return AQ_LAUNCH(delta<float>, blocks, THREADS, 0, stream, *args, at, floats);
}

enum aq_status aq_cuda_delta_backward(const struct aq_delta *args, void *scratch, struct CUstream_st *stream)
{
    float *at = static_cast<float *>(scratch);
    unsigned blocks = 0;
    uint64_t floats = 0;
    AQ_TRY(sizes_check(args, &blocks, &floats));
    if (args->type == AQ_BF16)
        return AQ_LAUNCH(delta_backward<uint16_t>, blocks, THREADS, 0, stream, *args, at, floats);
    if (args->type == AQ_F16) return AQ_LAUNCH(delta_backward<aq_half>, blocks, THREADS, 0, stream, *args, at, floats);
    return AQ_LAUNCH(delta_backward<float>, blocks, THREADS, 0, stream, *args, at, floats);
}
