/* conform_device_unpack.h -- weights of 8 bits against the truth; part of conform_device.c. */
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

#endif
