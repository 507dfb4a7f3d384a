/* conform_device_unpack.h -- weights of 8 and 4 bits against the truth; part of conform_device.c. */
#ifndef CONFORM_DEVICE_UNPACK_H
#define CONFORM_DEVICE_UNPACK_H

static enum aq_status unpack_call(struct aq_device *where, struct array *arrays, const void *context)
{
    const struct rows_case *x = context;
    const struct aq_unpack args = {
        .count = x->T, .x = arrays[0].at, .scales = arrays[1].at, .y = arrays[2].at, .y_type = x->type};
    return aq_device_unpack(where, &args, NULL);
}

/* Codes times scales of 16 bits of mantissa: the same bits everywhere, and those of the product in double. */
static void test_unpacked_weights_match_truth(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {4, 63, 64, 65, 1000, 70004};
    for (size_t s = 0; s < TYPES * sizeof sizes / sizeof sizes[0]; s++) {
        const struct rows_case x = {.T = sizes[s / TYPES], .type = types[s % TYPES]};
        const uint64_t groups = (x.T + AQ_UNPACK_GROUP - 1) / AQ_UNPACK_GROUP, words = (x.T + 3) / 4;
        struct array arrays[3] = {{AQ_F32, words, help_alloc(words * 4), NOT_COMPARED, NULL, {0}},
                                  {AQ_F32, groups, random_of(AQ_F32, groups, 1, 0.01f), NOT_COMPARED, NULL, {0}},
                                  {x.type, x.T, NULL, EXACT, NULL, {0}}};
        int8_t *codes = arrays[0].host;
        float *scales = arrays[1].host;
        for (uint64_t i = 0; i < x.T; i++)
            codes[i] = (int8_t)((int)(i * 2654435761u >> 7 & 0xff) % 255 - 127);
        for (uint64_t g = 0; g < groups; g++) {
            uint32_t bits;
            memcpy(&bits, &scales[g], sizeof bits);
            bits &= 0x7fffff00;
            memcpy(&scales[g], &bits, sizeof bits);
        }
        if (x.type == AQ_F32) {
            float *y = help_alloc(x.T * sizeof *y);
            const struct aq_unpack args = {.count = x.T, .x = codes, .scales = scales, .y = y};
            assert_int_equal(aq_device_unpack(truth, &args, NULL), AQ_OK);
            for (uint64_t i = 0; i < x.T; i++)
                assert_true((double)y[i] == (double)codes[i] * (double)scales[i / AQ_UNPACK_GROUP]);
            aq_free(y);
        }
        both("unpack", arrays, 3, unpack_call, &x);
    }
}

struct nf4_case {
    struct rows_case rows;
    bool twice; /* scales are quantized, too */
};

static enum aq_status nf4_call(struct aq_device *where, struct array *arrays, const void *context)
{
    const struct nf4_case *x = context;
    const struct aq_unpack_nf4 args = {.count = x->rows.T,
                                       .x = arrays[0].at,
                                       .scales = arrays[1].at,
                                       .scale_codes = x->twice ? arrays[2].at : NULL,
                                       .map = x->twice ? arrays[3].at : NULL,
                                       .y = arrays[4].at,
                                       .y_type = x->rows.type};
    return aq_device_unpack_nf4(where, &args, NULL);
}

/* Values of the table times scales, each operation rounded: the same bits everywhere. */
static void test_unpacked_nf4_matches_truth(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {1, 4, 63, 64, 65, 1000, 70004};
    static const float table[] = {AQ_NF4_VALUES};
    for (size_t s = 0; s < 2 * TYPES * sizeof sizes / sizeof sizes[0]; s++) {
        const struct nf4_case x = {.rows = {.T = sizes[s / TYPES / 2], .type = types[s % TYPES]},
                                   .twice = s / TYPES % 2};
        const uint64_t T = x.rows.T, groups = (T + AQ_UNPACK_GROUP - 1) / AQ_UNPACK_GROUP;
        const uint64_t scales = x.twice ? (groups + AQ_NF4_SCALES - 1) / AQ_NF4_SCALES : groups;
        struct array arrays[5] = {
            {AQ_F32, (T + 7) / 8, help_alloc((T + 7) / 8 * 4), NOT_COMPARED, NULL, {0}},
            {AQ_F32, scales, random_of(AQ_F32, scales, 1, 0.01f), NOT_COMPARED, NULL, {0}},
            {AQ_F32, (groups + 3) / 4, help_alloc((groups + 3) / 4 * 4), NOT_COMPARED, NULL, {0}},
            {AQ_F32, AQ_NF4_MAP, random_of(AQ_F32, AQ_NF4_MAP, 2, 1.0f), NOT_COMPARED, NULL, {0}},
            {x.rows.type, T, NULL, EXACT, NULL, {0}}};
        uint8_t *codes = arrays[0].host, *of_scales = arrays[2].host;
        const float *map = arrays[3].host, *steps = arrays[1].host;
        for (uint64_t i = 0; i < (T + 7) / 8 * 4; i++)
            codes[i] = (uint8_t)(i * 2654435761u >> 7);
        for (uint64_t g = 0; g < (groups + 3) / 4 * 4; g++)
            of_scales[g] = (uint8_t)(g * 2654435761u >> 9);
        if (x.rows.type == AQ_F32) {
            float *y = help_alloc(T * sizeof *y);
            const struct aq_unpack_nf4 args = {.count = T,
                                               .x = codes,
                                               .scales = steps,
                                               .scale_codes = x.twice ? of_scales : NULL,
                                               .map = x.twice ? map : NULL,
                                               .y = y};
            assert_int_equal(aq_device_unpack_nf4(truth, &args, NULL), AQ_OK);
            for (uint64_t i = 0; i < T; i++) {
                const uint64_t g = i / AQ_UNPACK_GROUP;
                const volatile float product = map[of_scales[g]] * steps[x.twice ? g / AQ_NF4_SCALES : 0];
                const float scale = x.twice ? product + map[AQ_NF4_MAP - 1] : steps[g];
                const volatile float value = table[codes[i / 2] >> (i % 2 ? 0 : 4) & 0xf] * scale;
                assert_true(y[i] == value);
            }
            aq_free(y);
        }
        both("unpack_nf4", arrays, 5, nf4_call, &x);
    }
}

#endif
