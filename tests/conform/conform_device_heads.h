/*
 * conform_device_heads.h -- what decoders have beside layer norm and GELU against the truth; part of conform_device.c.
 */
#ifndef CONFORM_DEVICE_HEADS_H
#define CONFORM_DEVICE_HEADS_H

static enum aq_status rmsnorm_call(struct aq_device *where, struct array *arrays, const void *context)
{
    const struct rows_case *x = context;
    const float plus = x->H / 4 ? 1.0f : 0.0f;
    const bool added = x->H / 4 && x->type == AQ_F32; /* to what begins as dy */
    const struct aq_rmsnorm args = {.rows = x->T,
                                    .C = x->D,
                                    .epsilon = 1e-5f,
                                    .plus = plus,
                                    .x = arrays[0].at,
                                    .x_type = arrays[0].type,
                                    .gamma = arrays[1].at,
                                    .other = added ? arrays[4].at : NULL,
                                    .y = arrays[2].at,
                                    .y_type = x->type,
                                    .rstd = arrays[3].at};
    const enum aq_status status = aq_device_rmsnorm(where, &args, NULL);
    if (status != AQ_OK) return status;
    const struct aq_rmsnorm_backward back = {.rows = x->T,
                                             .C = x->D,
                                             .plus = plus,
                                             .dy = arrays[4].at,
                                             .x = arrays[0].at,
                                             .x_type = arrays[0].type,
                                             .gamma = arrays[1].at,
                                             .rstd = arrays[3].at,
                                             .dx = arrays[5].at,
                                             .dgamma = arrays[6].at,
                                             .rounded = x->H % 2 && x->type != AQ_F32 ? arrays[7].at : NULL,
                                             .rounded_type = x->type,
                                             .sums = x->H / 2 % 2 ? arrays[8].at : NULL};
    return aq_device_rmsnorm_backward(where, &back, NULL);
}

static void test_rmsnorm_matches_truth(void **state)
{
    (void)state;
    static const uint64_t sizes[][2] = {{1, 2},   {3, 4},    {8, 33},   {50, 64},  {131, 130},
                                        {7, 768}, {2, 1601}, {3, 2052}, {3, 4100}, {40, 576}};
    for (size_t s = 0; s < 8 * TYPES * sizeof sizes / sizeof sizes[0]; s++) {
        const struct rows_case x = {.T = sizes[s / TYPES / 8][0],
                                    .D = sizes[s / TYPES / 8][1],
                                    .type = types[s % TYPES],
                                    .bf16 = s / 4 % 2,
                                    .H = s / TYPES % 8}; /* what is asked for, and which form of gamma */
        if ((x.H % 2 && x.type == AQ_F32) || !runs(s, 8 * TYPES, 8)) continue;
        const uint64_t N = x.T * x.D;
        /* A row of few elements has a dx that cancels: nothing to measure its distance by. */
        const enum compare dx = x.D > 2 ? COMPARED : NOT_COMPARED, as_dx = x.D > 2 ? COMPARED_AS : NOT_COMPARED;
        const enum aq_element x_type = x.bf16 ? AQ_BF16 : AQ_F32;
        struct array arrays[9] = {{x_type, N, random_of(x_type, N, 1, 2.0f), NOT_COMPARED, NULL, {0}},
                                  {AQ_F32, x.D, random_of(AQ_F32, x.D, 2, 1.0f), NOT_COMPARED, NULL, {0}},
                                  {x.type, N, NULL, COMPARED, NULL, {0}},
                                  {AQ_F32, x.T, NULL, COMPARED, NULL, {0}},
                                  {AQ_F32, N, random_of(AQ_F32, N, 4, 1.0f), NOT_COMPARED, NULL, {0}},
                                  {AQ_F32, N, random_of(AQ_F32, N, 5, 1.0f), dx, NULL, {0}},
                                  {AQ_F32, x.D, random_of(AQ_F32, x.D, 6, 1.0f), COMPARED, NULL, {0}},
                                  {x.type, N, NULL, dx, NULL, {0}},
                                  {AQ_F32, x.D, random_of(AQ_F32, x.D, 8, 1.0f), as_dx, NULL, {0}}};
        both_as("rmsnorm", arrays, 9, rmsnorm_call, &x, x.type, TIMES);
    }
}

struct rope_case {
    struct rows_case rows;
    uint64_t kv_heads, R;
    bool normed, in_place, parts;
};

static enum aq_status rope_call(struct aq_device *where, struct array *arrays, const void *context)
{
    const struct rope_case *c = context;
    const struct rows_case *x = &c->rows;
    const bool in_place = c->in_place, over = in_place && x->type == AQ_F32;
    const struct aq_rope args = {.samples = x->samples,
                                 .T = x->T,
                                 .H = x->H,
                                 .kv_heads = c->kv_heads,
                                 .D = x->D,
                                 .R = c->R,
                                 .type = x->type,
                                 .x = in_place ? arrays[1].at : arrays[0].at,
                                 .y = arrays[1].at,
                                 .table = c->R ? arrays[2].at : NULL,
                                 .q_gamma = c->normed ? arrays[3].at : NULL,
                                 .k_gamma = c->normed ? arrays[4].at : NULL,
                                 .plus = 1.0f,
                                 .epsilon = 1e-6f,
                                 .rstd = c->normed ? arrays[5].at : NULL,
                                 .starts = c->parts ? arrays[10].at : NULL};
    const enum aq_status status = aq_device_rope(where, &args, NULL);
    if (status != AQ_OK) return status;
    const struct aq_rope_backward back = {.samples = x->samples,
                                          .T = x->T,
                                          .H = x->H,
                                          .kv_heads = c->kv_heads,
                                          .D = x->D,
                                          .R = c->R,
                                          .type = x->type,
                                          .dy = arrays[6].at,
                                          .dx = over ? arrays[6].at : arrays[7].at,
                                          .table = args.table,
                                          .x = c->normed ? arrays[0].at : NULL,
                                          .q_gamma = args.q_gamma,
                                          .k_gamma = args.k_gamma,
                                          .rstd = args.rstd,
                                          .plus = 1.0f,
                                          .dq_gamma = c->normed ? arrays[8].at : NULL,
                                          .dk_gamma = c->normed ? arrays[9].at : NULL,
                                          .starts = args.starts};
    return aq_device_rope_backward(where, &back, NULL);
}

/*
 * Columns that turn: none, some, all. Heads that share, and that do not. In place where nothing is normalized. Heads of
 * 16 columns and more take the wide kernels of a GPU, unless D or R is no multiple of what a lane has. From D 64 on a
 * row of heads fills less than a warp, several warps, or several blocks; {1, 4200, ...} has groups of 16 rows.
 */
static void test_heads_that_turn_match_truth(void **state)
{
    (void)state;
    static const uint64_t sizes[][6] = {
        {1, 1, 1, 1, 2, 2},       {2, 5, 2, 1, 8, 8},      {2, 17, 3, 3, 10, 4},   {1, 40, 4, 2, 64, 64},
        {2, 9, 6, 2, 33, 32},     {1, 33, 2, 1, 128, 128}, {3, 50, 1, 1, 100, 50}, {1, 4, 2, 2, 20, 0},
        {3, 11, 9, 3, 64, 64},    {2, 13, 5, 1, 80, 80},   {2, 7, 4, 4, 80, 32},   {2, 5, 4, 1, 256, 256},
        {1, 19, 16, 8, 128, 128}, {2, 3, 40, 8, 128, 64},  {1, 9, 3, 1, 96, 24},   {1, 6, 2, 1, 512, 128},
        {1, 4200, 1, 1, 16, 16},  {2, 3, 2, 1, 1026, 64},  {1, 3, 1, 1, 4096, 0}};
    for (size_t s = 0; s < 3 * TYPES * sizeof sizes / sizeof sizes[0]; s++) {
        if (!runs(s, 3 * TYPES, 4)) continue;
        const uint64_t *size = sizes[s / TYPES / 3];
        const struct rope_case c = {
            .rows = {.samples = size[0], .T = size[1], .H = size[2], .D = size[4], .type = types[s % TYPES]},
            .kv_heads = size[3],
            .R = size[5],
            .normed = s / TYPES % 3 == 1,
            .in_place = s / TYPES % 3 == 2,
            .parts = s / TYPES / 3 % 2};
        const struct rows_case *x = &c.rows;
        const uint64_t rows = x->samples * x->T, N = rows * (x->H + 2 * c.kv_heads) * x->D;
        const enum compare rstd = c.normed ? COMPARED : NOT_COMPARED;
        const bool over = c.in_place && x->type == AQ_F32;
        uint32_t *starts = help_alloc(rows * sizeof *starts);
        for (uint64_t r = 0; r < rows; r++)
            starts[r] = (uint32_t)(r % x->T / 3 * 3);
        struct array arrays[11] = {
            {x->type, N, random_of(x->type, N, 1, 1.0f), NOT_COMPARED, NULL, {0}},
            {x->type, N, c.in_place ? random_of(x->type, N, 1, 1.0f) : NULL, COMPARED, NULL, {0}},
            {AQ_F32, x->T * c.R + 1, random_of(AQ_F32, x->T * c.R + 1, 2, 1.0f), NOT_COMPARED, NULL, {0}},
            {AQ_F32, x->D, random_of(AQ_F32, x->D, 3, 0.3f), NOT_COMPARED, NULL, {0}},
            {AQ_F32, x->D, random_of(AQ_F32, x->D, 4, 0.3f), NOT_COMPARED, NULL, {0}},
            {AQ_F32, rows * (x->H + c.kv_heads), NULL, rstd, NULL, {0}},
            {AQ_F32, N, random_of(AQ_F32, N, 5, 1.0f), over ? COMPARED : NOT_COMPARED, NULL, {0}},
            {x->type, N, NULL, over || (c.normed && x->D == 2) ? NOT_COMPARED : COMPARED, NULL, {0}},
            {AQ_F32, x->D, random_of(AQ_F32, x->D, 6, 1.0f), COMPARED, NULL, {0}},
            {AQ_F32, x->D, random_of(AQ_F32, x->D, 7, 1.0f), COMPARED, NULL, {0}},
            {AQ_F32, rows, starts, NOT_COMPARED, NULL, {0}}};
        char text[128];
        snprintf(text, sizeof text,
                 "rope of %llu tokens, %llu heads, %llu of %llu turn, type %d, normed %d, in place %d",
                 (unsigned long long)x->T, (unsigned long long)x->H, (unsigned long long)c.R, (unsigned long long)x->D,
                 x->type, c.normed, c.in_place);
        both(text, arrays, 11, rope_call, &c);
    }
}

static enum aq_status gated_call(struct aq_device *where, struct array *arrays, const void *context)
{
    const struct rows_case *x = context;
    const enum aq_gate gate = (enum aq_gate)x->H;
    const struct aq_gated args = {
        .rows = x->T, .F = x->D, .gate = gate, .type = x->type, .x = arrays[0].at, .y = arrays[1].at};
    const enum aq_status status = aq_device_gated(where, &args, NULL);
    if (status != AQ_OK) return status;
    const struct aq_gated_backward back = {.rows = x->T,
                                           .F = x->D,
                                           .gate = gate,
                                           .type = x->type,
                                           .x = arrays[0].at,
                                           .dy = arrays[2].at,
                                           .dx = x->samples ? arrays[0].at : arrays[3].at};
    return aq_device_gated_backward(where, &back, NULL);
}

/* The gradient beside its operand, and in its place. */
static void test_gates_match_truth(void **state)
{
    (void)state;
    static const uint64_t sizes[][2] = {{1, 1}, {3, 5}, {17, 64}, {5, 1001}, {33, 96}};
    for (size_t s = 0; s < 6 * TYPES * sizeof sizes / sizeof sizes[0]; s++) {
        const uint64_t *size = sizes[s / TYPES / 6];
        const struct rows_case x = {
            .T = size[0], .D = size[1], .H = s / TYPES % 3, .samples = s / TYPES / 3 % 2, .type = types[s % TYPES]};
        const uint64_t N = x.T * x.D;
        struct array arrays[4] = {
            {x.type, 2 * N, random_of(x.type, 2 * N, 1, 4.0f), x.samples ? COMPARED : NOT_COMPARED, NULL, {0}},
            {x.type, N, NULL, COMPARED, NULL, {0}},
            {x.type, N, random_of(x.type, N, 2, 1.0f), NOT_COMPARED, NULL, {0}},
            {x.type, 2 * N, NULL, x.samples ? NOT_COMPARED : COMPARED, NULL, {0}}};
        both("gate", arrays, 4, gated_call, &x);
    }
}

#endif
