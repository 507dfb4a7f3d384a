/*
 * conform_device_delta.h -- the gated delta rule by its definition and against the truth, and heads with gates; part of
 * conform_device.c.
 */
#ifndef CONFORM_DEVICE_DELTA_H
#define CONFORM_DEVICE_DELTA_H

#include <math.h>

struct delta_case {
    uint64_t samples, T, K, H, Dk, Dv;
    enum aq_element type;
    bool parts;
};

enum { DELTA_QKV, DELTA_GATES, DELTA_RATE, DELTA_SHIFT, DELTA_STARTS, DELTA_OUT, DELTA_STATES, DELTA_DOUT, DELTA_DQKV,
       DELTA_DGATES, DELTA_DRATES, DELTA_ARRAYS };

static struct aq_delta delta_args(const struct delta_case *x, const struct array *arrays)
{
    return (struct aq_delta){.samples = x->samples,
                             .T = x->T,
                             .K = x->K,
                             .H = x->H,
                             .Dk = x->Dk,
                             .Dv = x->Dv,
                             .epsilon = 1e-6f,
                             .type = x->type,
                             .qkv = arrays[DELTA_QKV].at,
                             .gates = arrays[DELTA_GATES].at,
                             .rate = arrays[DELTA_RATE].at,
                             .shift = arrays[DELTA_SHIFT].at,
                             .starts = x->parts ? arrays[DELTA_STARTS].at : NULL,
                             .out = arrays[DELTA_OUT].at,
                             .states = aq_delta_states(x->T) ? arrays[DELTA_STATES].at : NULL,
                             .dout = arrays[DELTA_DOUT].at,
                             .dqkv = arrays[DELTA_DQKV].at,
                             .dgates = arrays[DELTA_DGATES].at,
                             .drates = arrays[DELTA_DRATES].at};
}

static enum aq_status delta_call(struct aq_device *where, struct array *arrays, const void *context)
{
    const struct aq_delta args = delta_args(context, arrays);
    AQ_TRY(aq_device_delta(where, &args, NULL));
    return aq_device_delta_backward(where, &args, NULL);
}

/* Parts of 1, 2, 3 ... tokens, then one of the rest. */
static uint32_t *delta_starts(const struct delta_case *x)
{
    uint32_t *starts = help_alloc(x->samples * x->T * sizeof *starts);
    for (uint64_t s = 0; s < x->samples; s++)
        for (uint32_t t = 0, start = 0, length = 1; t < x->T; t++) {
            if (t == start + length && length < 6) {
                start = t;
                length++;
            }
            starts[s * x->T + t] = start;
        }
    return starts;
}

/* States of chunks that begin with a part are nobody's: where there are parts, they are not compared. */
static void delta_arrays(const struct delta_case *x, struct array *arrays)
{
    const uint64_t rows = x->samples * x->T, N = rows * (2 * x->K * x->Dk + x->H * x->Dv), V = rows * x->H * x->Dv;
    const uint64_t states = x->samples * aq_delta_states(x->T) * x->H * x->Dk * x->Dv + 1;
    const enum compare kept = x->parts ? NOT_COMPARED : COMPARED_AS;
    const struct array all[DELTA_ARRAYS] = {
        [DELTA_QKV] = {x->type, N, random_of(x->type, N, 1, 1.0f), NOT_COMPARED, NULL, {0}},
        [DELTA_GATES] = {AQ_F32, rows * 2 * x->H, random_of(AQ_F32, rows * 2 * x->H, 2, 1.0f), NOT_COMPARED, NULL, {0}},
        [DELTA_RATE] = {AQ_F32, x->H, random_of(AQ_F32, x->H, 3, 1.0f), NOT_COMPARED, NULL, {0}},
        [DELTA_SHIFT] = {AQ_F32, x->H, random_of(AQ_F32, x->H, 4, 2.0f), NOT_COMPARED, NULL, {0}},
        [DELTA_STARTS] = {AQ_F32, rows, delta_starts(x), NOT_COMPARED, NULL, {0}},
        [DELTA_OUT] = {AQ_F32, V, NULL, COMPARED, NULL, {0}},
        [DELTA_STATES] = {AQ_F32, states, NULL, kept, NULL, {0}},
        [DELTA_DOUT] = {AQ_F32, V, random_of(AQ_F32, V, 5, 1.0f), NOT_COMPARED, NULL, {0}},
        [DELTA_DQKV] = {x->type, N, NULL, COMPARED, NULL, {0}},
        [DELTA_DGATES] = {AQ_F32, rows * 2 * x->H, NULL, COMPARED, NULL, {0}},
        [DELTA_DRATES] = {AQ_F32, rows * x->H, NULL, COMPARED, NULL, {0}}};
    memcpy(arrays, all, sizeof all);
}

static void test_delta_rule_matches_truth(void **state)
{
    (void)state;
    static const uint64_t sizes[][6] = {{1, 1, 1, 1, 1, 1},   {2, 3, 1, 2, 4, 3},    {1, 64, 2, 2, 16, 8},
                                        {2, 70, 2, 4, 8, 16}, {1, 150, 1, 3, 33, 20}, {1, 200, 1, 1, 64, 128}};
    for (size_t s = 0; s < 2 * TYPES * sizeof sizes / sizeof sizes[0]; s++) {
        const uint64_t *size = sizes[s / TYPES / 2];
        if (!runs(s, 2 * TYPES, 3)) continue;
        const struct delta_case x = {.samples = size[0],
                                     .T = size[1],
                                     .K = size[2],
                                     .H = size[3],
                                     .Dk = size[4],
                                     .Dv = size[5],
                                     .type = types[s % TYPES],
                                     .parts = s / TYPES % 2};
        struct array arrays[DELTA_ARRAYS];
        char text[128];
        delta_arrays(&x, arrays);
        snprintf(text, sizeof text, "delta rule of %llu tokens, heads of %llu and %llu, type %d, parts %d",
                 (unsigned long long)x.T, (unsigned long long)x.Dk, (unsigned long long)x.Dv, x.type, x.parts);
        both_as(text, arrays, DELTA_ARRAYS, delta_call, &x, AQ_F32, 2);
    }
}

/* ---- By its definition, in double precision. */

enum { DEFINED_T = 70, DEFINED_K = 1, DEFINED_H = 2, DEFINED_DK = 3, DEFINED_DV = 2,
       DEFINED_WIDTH = 2 * DEFINED_K * DEFINED_DK + DEFINED_H * DEFINED_DV };

struct defined {
    double qkv[DEFINED_T * DEFINED_WIDTH], gates[DEFINED_T * 2 * DEFINED_H], rate[DEFINED_H], shift[DEFINED_H];
    double out[DEFINED_T * DEFINED_H * DEFINED_DV];
    uint32_t starts[DEFINED_T];
};

static void defined_normalized(const double *x, double scale, double *to)
{
    double squares = 1e-6;
    for (int d = 0; d < DEFINED_DK; d++)
        squares += x[d] * x[d];
    for (int d = 0; d < DEFINED_DK; d++)
        to[d] = x[d] / sqrt(squares) * scale;
}

static void defined_forward(struct defined *x)
{
    for (int h = 0; h < DEFINED_H; h++) {
        double S[DEFINED_DK][DEFINED_DV] = {{0}};
        for (uint32_t t = 0; t < DEFINED_T; t++) {
            const double *row = x->qkv + t * DEFINED_WIDTH, *v = row + 2 * DEFINED_DK + h * DEFINED_DV;
            const double beta = 1 / (1 + exp(-x->gates[t * 2 * DEFINED_H + h]));
            const double a = x->gates[t * 2 * DEFINED_H + DEFINED_H + h] + x->shift[h];
            const double decay = exp(-exp(x->rate[h]) * log1p(exp(a)));
            double q[DEFINED_DK], k[DEFINED_DK];
            defined_normalized(row, 1 / sqrt(DEFINED_DK), q);
            defined_normalized(row + DEFINED_DK, 1, k);
            if (x->starts[t] == t) memset(S, 0, sizeof S);
            for (int j = 0; j < DEFINED_DV; j++) {
                double held = 0, out = 0;
                for (int i = 0; i < DEFINED_DK; i++)
                    held += (S[i][j] *= decay) * k[i];
                for (int i = 0; i < DEFINED_DK; i++) {
                    S[i][j] += beta * k[i] * (v[j] - held);
                    out += S[i][j] * q[i];
                }
                x->out[(t * DEFINED_H + (uint32_t)h) * DEFINED_DV + (uint32_t)j] = out;
            }
        }
    }
}

static double defined_slope(struct defined *x, double *at, const float *dout)
{
    const double step = 1e-5, held = *at;
    double sums[2] = {0};
    for (int side = 0; side < 2; side++) {
        *at = held + (side ? step : -step);
        defined_forward(x);
        for (int i = 0; i < DEFINED_T * DEFINED_H * DEFINED_DV; i++)
            sums[side] += x->out[i] * (double)dout[i];
    }
    *at = held;
    return (sums[1] - sums[0]) / (2 * step);
}

/* Slopes of `count` values beside gradients. */
static void defined_near(const char *what, struct defined *x, double *values, const float *gradients, uint64_t count,
                         const float *dout)
{
    float *slopes = help_alloc(count * sizeof *slopes);
    for (uint64_t i = 0; i < count; i++)
        slopes[i] = (float)defined_slope(x, values + i, dout);
    near(what, gradients, slopes, AQ_F32, count, 1e-5);
    aq_free(slopes);
}

static void widen(const float *from, uint64_t count, double *to)
{
    for (uint64_t i = 0; i < count; i++)
        to[i] = from[i];
}

/* Columns of (T, stride), summed. */
static void columns_of(const float *x, uint64_t stride, uint64_t first, float *sums)
{
    for (int h = 0; h < DEFINED_H; h++) {
        double sum = 0;
        for (uint64_t t = 0; t < DEFINED_T; t++)
            sum += x[t * stride + first + (uint64_t)h];
        sums[h] = (float)sum;
    }
}

/* Chunks begin at 0 and 3, and inside a part at 67. The truth, and its chunked form, have the definition's slopes. */
static void test_delta_rule_is_its_definition(void **state)
{
    (void)state;
    const struct delta_case c = {1, DEFINED_T, DEFINED_K, DEFINED_H, DEFINED_DK, DEFINED_DV, AQ_F32, true};
    static struct defined x;
    struct array arrays[DELTA_ARRAYS];
    float *results[DELTA_ARRAYS], sums[DEFINED_H];
    delta_arrays(&c, arrays);
    for (uint32_t t = 0; t < DEFINED_T; t++)
        x.starts[t] = ((uint32_t *)arrays[DELTA_STARTS].host)[t] = t < 3 ? 0 : 3;
    widen(arrays[DELTA_QKV].host, DEFINED_T * DEFINED_WIDTH, x.qkv);
    widen(arrays[DELTA_GATES].host, DEFINED_T * 2 * DEFINED_H, x.gates);
    widen(arrays[DELTA_RATE].host, DEFINED_H, x.rate);
    widen(arrays[DELTA_SHIFT].host, DEFINED_H, x.shift);
    const float *dout = arrays[DELTA_DOUT].host;
    for (int i = 0; i < DELTA_ARRAYS; i++)
        arrays[i].at = on(device, arrays[i].host, bytes_of(AQ_F32, arrays[i].count));
    assert_int_equal(delta_call(device, arrays, &c), AQ_OK);
    for (int i = 0; i < DELTA_ARRAYS; i++) {
        results[i] = help_alloc(bytes_of(AQ_F32, arrays[i].count));
        off(device, arrays[i].at, results[i], bytes_of(AQ_F32, arrays[i].count));
    }
    defined_forward(&x);
    float out[DEFINED_T * DEFINED_H * DEFINED_DV];
    for (int i = 0; i < DEFINED_T * DEFINED_H * DEFINED_DV; i++)
        out[i] = (float)x.out[i];
    near("delta rule", results[DELTA_OUT], out, AQ_F32, DEFINED_T * DEFINED_H * DEFINED_DV, 1e-5);
    defined_near("of q, k, v", &x, x.qkv, results[DELTA_DQKV], DEFINED_T * DEFINED_WIDTH, dout);
    defined_near("of b and a", &x, x.gates, results[DELTA_DGATES], DEFINED_T * 2 * DEFINED_H, dout);
    columns_of(results[DELTA_DRATES], DEFINED_H, 0, sums);
    defined_near("of rates", &x, x.rate, sums, DEFINED_H, dout);
    columns_of(results[DELTA_DGATES], 2 * DEFINED_H, DEFINED_H, sums);
    defined_near("of shifts", &x, x.shift, sums, DEFINED_H, dout);
    for (int i = 0; i < DELTA_ARRAYS; i++) {
        aq_free(results[i]);
        aq_free(arrays[i].host);
    }
}

/* The first `T` tokens from `first` on of what the arrays have of one sample; carried goes from call to call. */
static void delta_carried(const struct delta_case *x, const struct array *arrays, uint64_t first, uint64_t T,
                          float *carried)
{
    struct aq_delta args = delta_args(x, arrays);
    args.T = T;
    args.qkv = (const float *)args.qkv + first * (2 * x->K * x->Dk + x->H * x->Dv);
    args.gates += first * 2 * x->H;
    args.out += first * x->H * x->Dv;
    args.states = NULL;
    args.carried = carried;
    args.continues = first > 0;
    assert_int_equal(aq_device_delta(device, &args, NULL), AQ_OK);
}

static void test_delta_rule_continues(void **state)
{
    (void)state;
    enum { T = 90 };
    const struct delta_case x = {1, T, 2, 4, 8, 5, AQ_F32, false};
    const uint64_t V = T * x.H * x.Dv, states = x.H * x.Dk * x.Dv;
    struct array arrays[DELTA_ARRAYS];
    float *whole = help_alloc(V * sizeof *whole), *pieces = help_alloc(V * sizeof *pieces);
    delta_arrays(&x, arrays);
    for (int i = 0; i < DELTA_ARRAYS; i++)
        arrays[i].at = on(device, arrays[i].host, bytes_of(AQ_F32, arrays[i].count));
    float *garbage = help_alloc(states * sizeof *garbage), *carried;
    for (uint64_t i = 0; i < states; i++)
        garbage[i] = NAN;
    carried = on(device, garbage, states * sizeof *garbage);
    assert_int_equal(delta_call(device, arrays, &x), AQ_OK);
    assert_int_equal(aq_device_copy(device, whole, arrays[DELTA_OUT].at, V * sizeof *whole, NULL), AQ_OK);
    delta_carried(&x, arrays, 0, 3, carried);
    delta_carried(&x, arrays, 3, 1, carried);
    delta_carried(&x, arrays, 4, T - 4, carried);
    off(device, carried, NULL, states * sizeof *garbage);
    off(device, arrays[DELTA_OUT].at, pieces, V * sizeof *pieces);
    near("a delta rule that continues", pieces, whole, AQ_F32, V, 3e-6);
    for (int i = 0; i < DELTA_ARRAYS; i++) {
        if (i != DELTA_OUT) off(device, arrays[i].at, NULL, bytes_of(AQ_F32, arrays[i].count));
        aq_free(arrays[i].host);
    }
    aq_free(garbage);
    aq_free(whole);
    aq_free(pieces);
}

/* Wider heads, or more of them to one of keys, than there is memory for. */
static void test_delta_rule_refuses_what_does_not_fit(void **state)
{
    (void)state;
    struct delta_case x = {1, 1, 1, 1, 257, 1, AQ_F32, false};
    struct aq_device_info info;
    aq_device_info(device, &info);
    if (strncmp(info.name, "isolated", 8) == 0) return; /* its answers come later */
    struct array arrays[DELTA_ARRAYS] = {{0}};
    void *memory = on(device, NULL, 64); /* nobody reads it */
    for (int i = 0; i < DELTA_ARRAYS; i++)
        arrays[i].at = memory;
    const struct aq_delta keys = delta_args(&x, arrays);
    assert_int_equal(aq_device_delta(device, &keys, NULL), AQ_INVAL);
    x = (struct delta_case){1, 1, 1, 3, 256, 256, AQ_F32, false};
    const struct aq_delta states = delta_args(&x, arrays);
    assert_int_equal(aq_device_delta_backward(device, &states, NULL), AQ_INVAL);
    off(device, memory, NULL, 64);
}

/* ---- Gates of heads. */

struct gating_case {
    uint64_t rows, H, D;
    bool interleaved, silu, wide; /* wide: dx in fp32 */
    enum aq_element type;
};

static enum aq_status gating_call(struct aq_device *where, struct array *arrays, const void *context)
{
    const struct gating_case *x = context;
    const uint64_t head = x->interleaved ? 2 * x->D : x->D, row = x->H * head;
    const struct aq_gating args = {.rows = x->rows,
                                   .H = x->H,
                                   .D = x->D,
                                   .g_row = row,
                                   .g_head = head,
                                   .kind = x->silu ? AQ_GATING_SILU : AQ_GATING_SIGMOID,
                                   .type = x->type,
                                   .g = arrays[0].at,
                                   .x = arrays[1].at,
                                   .y = arrays[2].at};
    const struct aq_gating_backward back = {.rows = x->rows,
                                            .H = x->H,
                                            .D = x->D,
                                            .g_row = row,
                                            .g_head = head,
                                            .kind = args.kind,
                                            .type = x->type,
                                            .dx_type = x->wide ? AQ_F32 : x->type,
                                            .g = args.g,
                                            .x = args.x,
                                            .dy = arrays[3].at,
                                            .dg = arrays[4].at,
                                            .dx = arrays[5].at};
    AQ_TRY(aq_device_gating(where, &args, NULL));
    return aq_device_gating_backward(where, &back, NULL);
}

static void test_heads_with_gates_match_truth(void **state)
{
    (void)state;
    static const uint64_t sizes[][3] = {{1, 1, 1}, {5, 3, 20}, {17, 2, 300}, {9, 4, 64}};
    for (size_t s = 0; s < 8 * TYPES * sizeof sizes / sizeof sizes[0]; s++) {
        const uint64_t *size = sizes[s / TYPES / 8];
        if (!runs(s, 8 * TYPES, 5)) continue;
        const struct gating_case x = {.rows = size[0],
                                      .H = size[1],
                                      .D = size[2],
                                      .type = types[s % TYPES],
                                      .interleaved = s / TYPES % 2,
                                      .silu = s / TYPES / 2 % 2,
                                      .wide = s / TYPES / 4 % 2};
        const uint64_t N = x.rows * x.H * x.D, G = x.interleaved ? 2 * N : N;
        struct array arrays[6] = {
            {x.type, G, random_of(x.type, G, 1, 2.0f), NOT_COMPARED, NULL, {0}},
            {x.type, N, random_of(x.type, N, 2, 1.0f), NOT_COMPARED, NULL, {0}},
            {x.type, N, NULL, COMPARED, NULL, {0}},
            {x.type, N, random_of(x.type, N, 3, 1.0f), NOT_COMPARED, NULL, {0}},
            {x.type, G, NULL, COMPARED, NULL, {0}},
            {x.wide ? AQ_F32 : x.type, N, NULL, COMPARED, NULL, {0}}};
        both("gates of heads", arrays, 6, gating_call, &x);
    }
}

/* Of g 0 and 1, x 3: sigmoid 0.5 and 0.7310586, its slope 0.25 and 0.1966119. */
static void test_gates_of_heads_are_their_definition(void **state)
{
    (void)state;
    const float g[4] = {0, 1, 77, 77}, x[2] = {3, 3}, dy[2] = {2, 2};
    for (int silu = 0; silu < 2; silu++) {
        float y[2], dg[4], dx[2];
        struct gating_case c = {.rows = 1, .H = 1, .D = 2, .interleaved = true, .silu = silu, .type = AQ_F32};
        struct array arrays[6] = {{.at = on(device, g, sizeof g)},    {.at = on(device, x, sizeof x)},
                                  {.at = on(device, NULL, sizeof y)}, {.at = on(device, dy, sizeof dy)},
                                  {.at = on(device, g, sizeof g)},    {.at = on(device, NULL, sizeof dx)}};
        assert_int_equal(gating_call(device, arrays, &c), AQ_OK);
        off(device, arrays[0].at, NULL, sizeof g);
        off(device, arrays[1].at, NULL, sizeof x);
        off(device, arrays[2].at, y, sizeof y);
        off(device, arrays[3].at, NULL, sizeof dy);
        off(device, arrays[4].at, dg, sizeof dg);
        off(device, arrays[5].at, dx, sizeof dx);
        const float s = 0.7310586f, slope = 0.1966119f;
        const float open[2] = {silu ? 0 : 0.5f, s}, slopes[2] = {silu ? 0.5f : 0.25f, silu ? s + slope : slope};
        for (int i = 0; i < 2; i++) {
            assert_true(fabsf(y[i] - 3 * open[i]) < 1e-6f && fabsf(dx[i] - 2 * open[i]) < 1e-6f);
            assert_true(fabsf(dg[i] - 6 * slopes[i]) < 2e-6f && dg[2 + i] == 77);
        }
    }
}

/* ---- Heads that turn, with a gate behind each query. */

struct turned_case {
    uint64_t rows, H, kv_heads, D;
    enum aq_element type;
    bool gated;
};

enum { TURNED_T = 3, TURNED_R = 4 };

static enum aq_status turned_call(struct aq_device *where, struct array *arrays, const void *context)
{
    const struct turned_case *x = context;
    const struct aq_rope args = {.samples = x->rows / TURNED_T,
                                 .T = TURNED_T,
                                 .H = x->H,
                                 .kv_heads = x->kv_heads,
                                 .D = x->D,
                                 .R = TURNED_R,
                                 .gated = x->gated,
                                 .type = x->type,
                                 .x = arrays[0].at,
                                 .y = arrays[1].at,
                                 .table = arrays[2].at,
                                 .q_gamma = arrays[3].at,
                                 .k_gamma = arrays[4].at,
                                 .plus = 1.0f,
                                 .epsilon = 1e-6f,
                                 .rstd = arrays[5].at};
    const struct aq_rope_backward back = {.samples = args.samples,
                                          .T = TURNED_T,
                                          .H = x->H,
                                          .kv_heads = x->kv_heads,
                                          .D = x->D,
                                          .R = TURNED_R,
                                          .gated = x->gated,
                                          .type = x->type,
                                          .dy = arrays[6].at,
                                          .dx = arrays[7].at,
                                          .table = args.table,
                                          .x = args.x,
                                          .q_gamma = args.q_gamma,
                                          .k_gamma = args.k_gamma,
                                          .rstd = args.rstd,
                                          .plus = 1.0f,
                                          .dq_gamma = arrays[8].at,
                                          .dk_gamma = arrays[9].at};
    AQ_TRY(aq_device_rope(where, &args, NULL));
    return aq_device_rope_backward(where, &back, NULL);
}

/* Queries with gates, which hold `fill`, and then the same rows without. */
static void *turned_rows(const struct turned_case *x, const void *plain, float fill)
{
    const uint64_t heads = x->H + 2 * x->kv_heads, bytes = x->D * aq_element_bytes(x->type);
    uint8_t *to = help_alloc(x->rows * (heads + x->H) * bytes), *at = to;
    for (uint64_t head = 0; head < x->rows * heads; head++) {
        memcpy(at, (const uint8_t *)plain + head * bytes, bytes);
        at += bytes;
        if (head % heads >= x->H) continue;
        for (uint64_t d = 0; d < x->D; d++)
            if (x->type == AQ_F32)
                ((float *)(void *)at)[d] = fill;
            else
                ((uint16_t *)(void *)at)[d] =
                    x->type == AQ_BF16 ? aq_bfloat_from_float(fill) : aq_half_from_float(fill);
        at += bytes;
    }
    return to;
}

/* The same as without gates, on each device, whose columns in dx stay as they were. */
static void test_heads_that_turn_leave_gates_alone(void **state)
{
    (void)state;
    for (size_t s = 0; s < TYPES; s++) {
        struct turned_case x = {.rows = 4 * TURNED_T, .H = 3, .kv_heads = 1, .D = 10, .type = types[s]};
        const uint64_t N = x.rows * (x.H + 2) * x.D, M = x.rows * (2 * x.H + 2) * x.D, table = TURNED_T * TURNED_R;
        void *plain = random_of(x.type, N, 1, 1.0f), *zero = turned_rows(&x, plain, 0.0f), *results[2][10];
        for (int gated = 0; gated < 2; gated++) {
            x.gated = gated;
            void *rows = gated ? turned_rows(&x, plain, 1e4f) : plain;
            struct array arrays[10] = {{x.type, gated ? M : N, rows, 0, NULL, {0}},
                                       {x.type, N, NULL, 0, NULL, {0}},
                                       {AQ_F32, table, random_of(AQ_F32, table, 2, 1.0f), 0, NULL, {0}},
                                       {AQ_F32, x.D, random_of(AQ_F32, x.D, 3, 0.3f), 0, NULL, {0}},
                                       {AQ_F32, x.D, random_of(AQ_F32, x.D, 4, 0.3f), 0, NULL, {0}},
                                       {AQ_F32, x.rows * (x.H + 1), NULL, 0, NULL, {0}},
                                       {AQ_F32, N, random_of(AQ_F32, N, 5, 1.0f), 0, NULL, {0}},
                                       {x.type, gated ? M : N, gated ? zero : NULL, 0, NULL, {0}},
                                       {AQ_F32, x.D, NULL, 0, NULL, {0}},
                                       {AQ_F32, x.D, NULL, 0, NULL, {0}}};
            for (int i = 0; i < 10; i++)
                arrays[i].at = on(device, arrays[i].host, bytes_of(arrays[i].type, arrays[i].count));
            assert_int_equal(turned_call(device, arrays, &x), AQ_OK);
            for (int i = 0; i < 10; i++) {
                results[gated][i] = help_alloc(bytes_of(arrays[i].type, arrays[i].count));
                off(device, arrays[i].at, results[gated][i], bytes_of(arrays[i].type, arrays[i].count));
                if (arrays[i].host != plain) aq_free(arrays[i].host);
            }
        }
        near("turned", results[1][1], results[0][1], x.type, N, near_of(x.type));
        void *wide = turned_rows(&x, results[0][7], 0.0f);
        near("its gradient", results[1][7], wide, x.type, M, near_of(x.type));
        near("of queries' gamma", results[1][8], results[0][8], AQ_F32, x.D, near_of(AQ_F32));
        near("of keys' gamma", results[1][9], results[0][9], AQ_F32, x.D, near_of(AQ_F32));
        for (int i = 0; i < 20; i++)
            aq_free(results[i / 10][i % 10]);
        aq_free(wide);
        aq_free(plain);
    }
}

#define DELTA_TESTS                                                                                                    \
    cmocka_unit_test(test_delta_rule_matches_truth), cmocka_unit_test(test_delta_rule_is_its_definition),              \
        cmocka_unit_test(test_delta_rule_continues), cmocka_unit_test(test_delta_rule_refuses_what_does_not_fit),      \
        cmocka_unit_test(test_heads_with_gates_match_truth),                                                           \
        cmocka_unit_test(test_gates_of_heads_are_their_definition),                                                    \
        cmocka_unit_test(test_heads_that_turn_leave_gates_alone)

#endif
