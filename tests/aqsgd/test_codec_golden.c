/*
 * test_codec_golden.c -- bodies and messages of this format for ever: golden/codec.txt must decode to the bits it
 * names.
 *
 *     test_codec_golden GOLDEN_FOLDER           every line, with every table of kernels
 *     test_codec_golden GOLDEN_FOLDER --write   make the file anew: only with a new version of the format
 *
 * A line: name, fourteen numbers (kind raw bits grid group tile scale_format hadamard top_k_bits prescale store
 * keyframe rows columns; store and 16: a scale a channel), flags, then m, body, x^ and m' in hexadecimal, "-" for
 * nothing. golden/codec_check.py decodes the same file by docs/FORMAT.md alone, in another language.
 */
#include <stdlib.h>

#include "codec_common.h"

enum { FIELDS = 14, LINE_MAX_BYTES = 1 << 16, BYTES_MAX = 1 << 14, CHANNEL = 16 };
enum { DITHERED = 126, LOW_RANK = 132, HALF = 138, LINES = 142 }; /* cases */

static char path[512];

static void set_config(const uint32_t *field, struct aq_codec_config *out)
{
    aq_codec_config_default(out, (enum aq_codec_kind)field[0], field[2]);
    out->raw = (enum aq_codec_precision)field[1];
    out->grid = (enum aq_codec_grid)field[3];
    out->group = (enum aq_codec_group)field[4];
    out->tile = field[5];
    out->scale_format = (enum aq_codec_scale_format)field[6];
    out->hadamard = field[7] != 0;
    out->top_k = aq_float_of(field[8]);
    out->prescale_log2 = (int32_t)field[9];
    out->store = (enum aq_codec_precision)(field[10] % CHANNEL);
    out->store_group = field[10] < CHANNEL ? AQ_PER_ROW : AQ_PER_CHANNEL;
    out->keyframe = (enum aq_codec_precision)field[11];
}

static size_t from_hex(const char *text, uint8_t *out)
{
    size_t count = 0;
    if (strcmp(text, "-") == 0) return 0;
    for (; text[0] != '\0' && text[1] != '\0'; text += 2) {
        const char pair[3] = {text[0], text[1], '\0'};
        assert_true(count < BYTES_MAX);
        out[count++] = (uint8_t)strtoul(pair, NULL, 16);
    }
    return count;
}

static void check_line(char *line, const struct aq_codec_kernels *kernels)
{
    static uint8_t m[BYTES_MAX], body[BYTES_MAX], hat[BYTES_MAX], m_after[BYTES_MAX];
    uint32_t field[FIELDS];
    struct aq_codec_config config;
    struct end end;
    char *save = NULL, *name = strtok_r(line, " \n", &save);
    for (int i = 0; i < FIELDS; i++)
        field[i] = (uint32_t)strtol(strtok_r(NULL, " ", &save), NULL, 10);
    const uint32_t flags = (uint32_t)strtoul(strtok_r(NULL, " ", &save), NULL, 10);
    const size_t m_bytes = from_hex(strtok_r(NULL, " ", &save), m),
                 body_bytes = from_hex(strtok_r(NULL, " ", &save), body);
    const size_t hat_bytes = from_hex(strtok_r(NULL, " ", &save), hat);
    const size_t after_bytes = from_hex(strtok_r(NULL, " \n", &save), m_after);
    set_config(field, &config);
    end_open(&end, &config, field[12], field[13]);
    end.codec->kernels = kernels;
    assert_int_equal(hat_bytes, 4 * end.values);
    assert_int_equal(after_bytes, aq_codec_message_bytes(end.codec));
    if (aq_codec_decode(end.codec, body, body_bytes, flags, m_bytes > 0 ? m : NULL, end.hat, end.m, NULL) != AQ_OK ||
        memcmp(hat, end.hat, hat_bytes) != 0 || memcmp(m_after, end.m, after_bytes) != 0) {
        print_error("%s with %s gives other bits\n", name, kernels->name);
        fail();
    }
    end_close(&end);
}

static void test_golden_bodies_decode_to_their_bits(void **state)
{
    (void)state;
    static char line[LINE_MAX_BYTES], copy[LINE_MAX_BYTES];
    const struct aq_codec_kernels *all[4];
    const size_t count = tables(all);
    uint32_t lines = 0;
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file) != NULL) {
        for (size_t t = 0; t < count; t++) {
            memcpy(copy, line, sizeof copy);
            check_line(copy, all[t]);
        }
        lines++;
    }
    fclose(file);
    assert_true(lines >= 60);
}

static void put_hex(FILE *file, const void *bytes, size_t count, char after)
{
    if (count == 0) fputc('-', file);
    for (size_t i = 0; i < count; i++)
        fprintf(file, "%02x", ((const uint8_t *)bytes)[i]);
    fputc(after, file);
}

/* Rates are the sender's business: no field has them. */
static void set_rate(uint32_t number, struct aq_codec_config *out)
{
    static const float rates[] = {1.5f, 2.5f, 3.5f, 4.0f, 5.5f, 8.0f};
    out->rate = rates[number % 6];
    out->keyframe_rate = rates[(number + 3) % 6];
}

static void write_line(FILE *file, uint32_t number, const uint32_t *field)
{
    struct aq_codec_config config;
    struct aq_codec_result result;
    struct end end;
    const struct aq_rng_key key = test_key(31);
    static uint8_t before[BYTES_MAX];
    set_config(field, &config);
    const bool coded = config.keyframe == AQ_PRECISION_EC;
    if (coded)
        set_rate(number, &config);
    else
        config.scale = (enum aq_codec_scale)(1 + number % 4);
    config.rounding = coded ? number >= DITHERED && number < LOW_RANK ? AQ_ROUND_STOCHASTIC : AQ_ROUND_NEAREST
                            : (enum aq_codec_rounding)(1 + number / 2 % 2);
    if (number >= HALF)
        config.rounding = AQ_ROUND_HALF_DITHER;
    else if (number >= LOW_RANK)
        config.rank = 2 + number % 3;
    if (aq_codec_config_check(&config, field[12], field[13]) != AQ_OK) return;
    end_open(&end, &config, field[12], field[13]);
    const size_t message = aq_codec_message_bytes(end.codec);
    fill(end.a, end.values, SHAPE_LAPLACE, 0.75f, number);
    for (size_t e = 0; coded && e < end.values; e++)
        end.a[e] += number % 2 ? 6.0f * sinf((float)(e % field[13])) : 0.0f;
    for (int warm = 0; warm < 2; warm++) {
        const bool keeps = message > 0, delta = warm == 1 && keeps;
        memcpy(before, end.m, message);
        assert_int_equal(aq_codec_encode(end.codec, end.a, delta ? end.m : NULL, &key, end.body,
                                         aq_codec_bound(end.codec), end.hat, end.m, &result, NULL),
                         AQ_OK);
        if ((keeps && warm == 0 && !coded && number % 6 != 0) || (!keeps && warm)) goto next;
        fprintf(file, "case%u%s", number, delta || !keeps ? "" : "-keyframe");
        for (int i = 0; i < FIELDS; i++)
            fprintf(file, " %d", (int)field[i]);
        fprintf(file, " %u ", result.flags);
        put_hex(file, before, delta ? message : 0, ' ');
        put_hex(file, end.body, result.body_bytes, ' ');
        put_hex(file, end.hat, 4 * end.values, ' ');
        put_hex(file, end.m, message, '\n');
    next:
        fill(end.a, end.values, SHAPE_LAPLACE, 0.8f, number);
        for (size_t e = 0; coded && e < end.values; e++)
            end.a[e] += number % 2 ? (number >= HALF ? 9.0f : 6.0f) * sinf((float)(e % field[13])) : 0.0f;
    }
    end_close(&end);
}

static int write_all(void)
{
    static const uint32_t tiles[] = {32, 64, 128};
    FILE *file = fopen(path, "w");
    if (file == NULL) return 1;
    quiet_begin();
    for (uint32_t n = 0; n < 108; n++) {
        const uint32_t kind = n < 6 ? AQ_CODEC_RAW : n % 3 == 0 ? AQ_CODEC_DIRECTQ : AQ_CODEC_AQSGD;
        const bool sparse = kind == AQ_CODEC_DIRECTQ && n % 2 == 0;
        const uint32_t field[FIELDS] = {kind,
                                        1 + n % 3,
                                        1 + n % 8,
                                        1 + n / 8 % 3,
                                        1 + n / 2 % 4,
                                        tiles[n / 5 % 3],
                                        1 + n / 3 % 4,
                                        !sparse && n / 7 % 2 == 1,
                                        sparse ? aq_bits_of(n % 4 == 0 ? 0.3f : 0.02f) : 0,
                                        n % 5 * 4,
                                        n < 96 ? 1 + n / 4 % 6 : CHANNEL + AQ_PRECISION_Q8 + n / 2 % 3,
                                        1 + n / 6 % 4,
                                        3,
                                        n % 2 ? 37 : 80};
        write_line(file, n, field);
    }
    for (uint32_t n = 108; n < 126; n++) { /* entropy coded: bodies, and keyframes of every codec that has some */
        static const uint32_t kinds[] = {AQ_CODEC_EC, AQ_CODEC_EC, AQ_CODEC_AQSGD};
        const uint32_t field[FIELDS] = {kinds[n % 3], 1, n % 3 == 2 ? 4 : 1, 1, 2, 64, 1, 0, 0, 0,
                                        n % 4 == 0 && n % 3 < 2 ? 0 : 1 + n % 3, AQ_PRECISION_EC, 40, n % 2 ? 37 : 7};
        write_line(file, n, field);
    }
    for (uint32_t n = DITHERED; n < LINES; n++) { /* ec with a dither; products of thin matrices; half a dither */
        const uint32_t kind = n < LOW_RANK || n >= HALF ? AQ_CODEC_EC : AQ_CODEC_LOWRANK;
        const uint32_t store = n >= HALF ? 1 + n % 2 : n % 3;
        const uint32_t field[FIELDS] = {kind, 1, 1, 1, 2, 64, 1, 0, 0, 0, store, AQ_PRECISION_EC, 40, n % 2 ? 37 : 7};
        write_line(file, n, field);
    }
    quiet_end();
    return fclose(file);
}

int main(int count, char **arguments)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_golden_bodies_decode_to_their_bits)};
    if (count < 2) return 2;
    snprintf(path, sizeof path, "%s/codec.txt", arguments[1]);
    if (count == 3 && strcmp(arguments[2], "--write") == 0) return write_all();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
