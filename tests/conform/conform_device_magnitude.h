/* conform_device_magnitude.h -- rows with a length of their own, by their definition and against the truth; part of
 * conform_device.c. */
#ifndef CONFORM_DEVICE_MAGNITUDE_H
#define CONFORM_DEVICE_MAGNITUDE_H

static enum aq_status magnitude_call(struct aq_device *where, struct array *arrays, const void *context)
{
    const struct rows_case *x = context;
    const struct aq_magnitude args = {.rows = x->T,
                                      .C = x->D,
                                      .w = arrays[0].at,
                                      .w_type = arrays[0].type,
                                      .w_transposed = x->H,
                                      .d = arrays[1].at,
                                      .m = arrays[2].at,
                                      .y = arrays[3].at,
                                      .y_type = x->type};
    return aq_device_magnitude(where, &args, NULL);
}

static enum aq_status magnitude_backward_call(struct aq_device *where, struct array *arrays, const void *context)
{
    const struct rows_case *x = context;
    const struct aq_magnitude_backward args = {.rows = x->T,
                                               .C = x->D,
                                               .w = arrays[0].at,
                                               .w_type = arrays[0].type,
                                               .w_transposed = x->H,
                                               .d = arrays[1].at,
                                               .m = arrays[2].at,
                                               .g = arrays[3].at,
                                               .dm = arrays[4].at,
                                               .scale = 0.75f};
    return aq_device_magnitude_backward(where, &args, NULL);
}

static void test_magnitudes_match_truth(void **state)
{
    (void)state;
    static const uint64_t sizes[][2] = {{1, 1}, {3, 7}, {17, 64}, {40, 300}, {130, 33}};
    for (size_t s = 0; s < 2 * TYPES * sizeof sizes / sizeof sizes[0]; s++) {
        const uint64_t *size = sizes[s / (2 * TYPES)], N = size[0] * size[1];
        const struct rows_case x = {.T = size[0], .D = size[1], .H = s % 2, .type = types[s / 2 % TYPES]};
        struct array forward[4] = {{x.type, N, random_of(x.type, N, 1, 1.0f), NOT_COMPARED, NULL, {0}},
                                   {AQ_F32, N, random_of(AQ_F32, N, 2, 0.1f), EXACT, NULL, {0}},
                                   {AQ_F32, x.T, random_of(AQ_F32, x.T, 3, 1.0f), NOT_COMPARED, NULL, {0}},
                                   {x.type, N, NULL, COMPARED, NULL, {0}}};
        both("magnitude", forward, 4, magnitude_call, &x);
        struct array backward[5] = {{x.type, N, random_of(x.type, N, 1, 1.0f), NOT_COMPARED, NULL, {0}},
                                    {AQ_F32, N, random_of(AQ_F32, N, 2, 0.1f), EXACT, NULL, {0}},
                                    {AQ_F32, x.T, random_of(AQ_F32, x.T, 3, 1.0f), NOT_COMPARED, NULL, {0}},
                                    {AQ_F32, N, random_of(AQ_F32, N, 4, 1.0f), COMPARED, NULL, {0}},
                                    {AQ_F32, x.T, random_of(AQ_F32, x.T, 5, 1.0f), COMPARED, NULL, {0}}};
        both("magnitude backward", backward, 5, magnitude_backward_call, &x);
    }
}

/* V = (3, 4), (0, 0), (0, 2): lengths 5, 0 and 2, to be 10, 7 and -1. */
static void test_magnitude_is_its_definition(void **state)
{
    (void)state;
    const float w[6] = {1, 4, 2, -1, 0, 1}, turned[6] = {1, 2, 0, 4, -1, 1}, d[6] = {2, 0, -2, 1, 0, 1},
                m[3] = {10, 7, -1};
    const float g[6] = {1, 2, 3, 4, 5, 6}, dm[3] = {100, 200, 300};
    for (int turn = 0; turn < 2; turn++) {
        float y[6], v[6], back[6], length[3];
        float *on_w = on(device, turn ? turned : w, sizeof w), *on_d = on(device, d, sizeof d),
              *on_m = on(device, m, sizeof m);
        float *on_y = on(device, NULL, sizeof y), *on_g = on(device, g, sizeof g), *on_dm = on(device, dm, sizeof dm);
        const struct aq_magnitude args = {
            .rows = 3, .C = 2, .w = on_w, .w_transposed = turn, .d = on_d, .m = on_m, .y = on_y};
        assert_int_equal(aq_device_magnitude(device, &args, NULL), AQ_OK);
        off(device, on_d, v, sizeof v);
        off(device, on_y, y, sizeof y);
        const float lengthened[6] = {6, 8, 0, 0, 0, -1}, sums[6] = {3, 4, 0, 0, 0, 2};
        assert_memory_equal(v, sums, sizeof v);
        for (int i = 0; i < 6; i++)
            assert_true(y[i] == lengthened[i]);
        on_d = on(device, d, sizeof d);
        const struct aq_magnitude_backward backward = {.rows = 3,
                                                       .C = 2,
                                                       .w = on_w,
                                                       .w_transposed = turn,
                                                       .d = on_d,
                                                       .m = on_m,
                                                       .g = on_g,
                                                       .dm = on_dm,
                                                       .scale = 0.5f};
        assert_int_equal(aq_device_magnitude_backward(device, &backward, NULL), AQ_OK);
        off(device, on_g, back, sizeof back);
        off(device, on_dm, length, sizeof length);
        off(device, on_w, NULL, sizeof w);
        off(device, on_d, NULL, sizeof d);
        off(device, on_m, NULL, sizeof m);
        /* 10 / 5 / 2 = 1; nothing; -1 / 2 / 2. And (1 3 + 2 4) / 5, nothing, 6. */
        assert_true(back[0] == 1 && back[1] == 2 && back[2] == 0 && back[3] == 0 && back[4] == -1.25f &&
                    back[5] == -1.5f);
        assert_true(length[0] == 100 + 11.0f / 5 && length[1] == 200 && length[2] == 306);
    }
}

#endif
