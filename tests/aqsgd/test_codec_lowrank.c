/*
 * test_codec_lowrank.c -- products of thin matrices: what rank is found and what is lost of a sample, rates and errors,
 * symmetry, samples that are odd, bodies that no sender writes.
 */
#include <stdlib.h>

#include "codec_common.h"

enum { ROWS = 96, COLUMNS = 160, VALUES = ROWS * COLUMNS, HEAD = 4 };

struct coded {
    double bits, error; /* a number of the factors; |d - d^| of |d| */
    uint32_t rank;
    struct aq_codec_result result;
};

static struct aq_codec_config lowrank(uint32_t rank, float rate, float error, enum aq_codec_precision store)
{
    struct aq_codec_config config;
    aq_codec_config_default(&config, AQ_CODEC_LOWRANK, 4);
    config.rank = rank;
    config.rate = rate;
    config.error = error;
    config.store = store;
    return config;
}

/* a = sum over i < count of sizes[i] * x_i y_i', x_i and y_i orthonormal (cosines): its singular values are `sizes`. */
static void compose(float *a, const double *sizes, int count)
{
    for (int t = 0; t < ROWS; t++)
        for (int c = 0; c < COLUMNS; c++) {
            double sum = 0;
            for (int i = 0; i < count; i++)
                sum += sizes[i] * cos(M_PI * (t + 0.5) * (i + 1) / ROWS) * cos(M_PI * (c + 0.5) * (i + 1) / COLUMNS) *
                       2.0 / sqrt((double)ROWS * COLUMNS);
            a[t * COLUMNS + c] = (float)sum;
        }
}

static struct coded code(struct end *sender, const struct aq_codec_config *config, bool warm)
{
    struct end receiver;
    struct coded coded;
    double error2 = 0;
    end_open(&receiver, config, ROWS, COLUMNS);
    const size_t message = aq_codec_message_bytes(sender->codec);
    memcpy(receiver.m, sender->m, message);
    assert_int_equal(aq_codec_encode(sender->codec, sender->a, warm ? sender->m : NULL, NULL, sender->body,
                                     aq_codec_bound(sender->codec), sender->hat, sender->m, &coded.result, NULL),
                     AQ_OK);
    assert_int_equal(aq_codec_decode(receiver.codec, sender->body, coded.result.body_bytes, coded.result.flags,
                                     warm ? receiver.m : NULL, receiver.hat, receiver.m, NULL),
                     AQ_OK);
    assert_memory_equal(sender->hat, receiver.hat, 4 * sender->values);
    if (coded.result.flags == 0) assert_memory_equal(sender->m, receiver.m, message);
    for (size_t e = 0; e < sender->values; e++)
        error2 += pow((double)sender->a[e] - (double)sender->hat[e], 2);
    coded.error = coded.result.sum_delta2 > 0 ? sqrt(error2 / coded.result.sum_delta2) : 0.0;
    memcpy(&coded.rank, sender->body, sizeof coded.rank);
    if (coded.result.flags == 0) {
        assert_true(fabs(coded.result.sum_error2 - error2) <= 1e-2 * error2 + 1e-9 * coded.result.sum_a2);
        coded.bits = coded.rank == 0 ? 0.0 : 8.0 * coded.result.body_bytes / (coded.rank * (ROWS + COLUMNS));
    }
    end_check(sender);
    end_close(&receiver);
    return coded;
}

/* Few directions are all found, and no more are sent; what is lost is the step of the factors. */
static void test_the_rank_of_a_sample_is_found(void **state)
{
    (void)state;
    static const double sizes[] = {40, 25, 12, 9, 7, 6, 5, 4};
    static const int counts[] = {1, 3, 8};
    for (int i = 0; i < 3; i++) {
        const struct aq_codec_config config = lowrank(16, 6.0f, 0.0f, AQ_PRECISION_NONE);
        struct end end;
        end_open(&end, &config, ROWS, COLUMNS);
        compose(end.a, sizes, counts[i]);
        const struct coded coded = code(&end, &config, false);
        print_message("rank %d: %u sent, %.2f bits a number, error %.4f\n", counts[i], coded.rank, coded.bits,
                      coded.error);
        assert_int_equal(coded.rank, counts[i]);
        assert_true(coded.result.body_bytes < 230 + counts[i] * (ROWS + COLUMNS) * 6.1 / 8);
        assert_true(coded.error < 0.03);
        end_close(&end);
    }
}

/* Of singular values that fall slowly the largest are sent: what is lost is hardly more than all the others. */
static void test_the_cap_loses_what_lies_beyond_it(void **state)
{
    (void)state;
    double sizes[64], beyond = 0, all = 0;
    for (int i = 0; i < 64; i++) {
        sizes[i] = 30.0 / (1 + i);
        all += sizes[i] * sizes[i];
        if (i >= 8) beyond += sizes[i] * sizes[i];
    }
    const struct aq_codec_config config = lowrank(8, 7.0f, 0.0f, AQ_PRECISION_NONE);
    struct end end;
    end_open(&end, &config, ROWS, COLUMNS);
    compose(end.a, sizes, 64);
    const struct coded coded = code(&end, &config, false);
    print_message("cap 8 of 64: error %.4f, the best is %.4f\n", coded.error, sqrt(beyond / all));
    assert_int_equal(coded.rank, 8);
    assert_true(coded.error < 1.03 * sqrt(beyond / all) && coded.error > 0.999 * sqrt(beyond / all));
    end_close(&end);
}

static void test_an_error_is_kept(void **state)
{
    (void)state;
    static const float errors[] = {0.2f, 0.05f, 0.01f};
    double sizes[24], bytes = 0;
    for (int i = 0; i < 24; i++)
        sizes[i] = 20.0 * pow(0.75, i);
    for (int i = 0; i < 3; i++) {
        struct aq_codec_config config = lowrank(32, 4.0f, errors[i], AQ_PRECISION_NONE);
        struct end end;
        end_open(&end, &config, ROWS, COLUMNS);
        compose(end.a, sizes, 24);
        const struct coded coded = code(&end, &config, false);
        print_message("error %.3f: %.4f, rank %u, %u bytes\n", (double)errors[i], coded.error, coded.rank,
                      coded.result.body_bytes);
        assert_true(coded.error < 1.08 * (double)errors[i] && coded.error > 0.5 * (double)errors[i]);
        assert_true(coded.result.body_bytes > bytes);
        bytes = coded.result.body_bytes;
        end_close(&end);
    }
}

/* x^ of -a is -x^ of a, to the bit: what data does as often one way as the other has an error of mean zero. */
static void test_signs_change_nothing(void **state)
{
    (void)state;
    static const float rates[] = {2.0f, 4.0f};
    for (int i = 0; i < 2; i++) {
        const struct aq_codec_config config = lowrank(12, rates[i], 0.0f, AQ_PRECISION_NONE);
        struct end one, other;
        end_open(&one, &config, ROWS, COLUMNS);
        end_open(&other, &config, ROWS, COLUMNS);
        fill(one.a, VALUES, SHAPE_LAPLACE, 1.0f, 70);
        for (size_t e = 0; e < VALUES; e++)
            other.a[e] = -one.a[e];
        assert_int_equal(code(&one, &config, false).rank, 12);
        (void)code(&other, &config, false);
        double mean = 0, square = 0;
        for (size_t e = 0; e < VALUES; e++) {
            assert_true(other.hat[e] == -one.hat[e]);
            mean += (double)one.hat[e] - (double)one.a[e];
            square += pow((double)one.hat[e] - (double)one.a[e], 2);
        }
        assert_true(fabs(mean) < 4.5 * sqrt(square));
        end_close(&one);
        end_close(&other);
    }
}

/* A drift of few directions, visit after visit: the message follows, and stays with what is left. */
static void test_the_loop_closes(void **state)
{
    (void)state;
    struct aq_codec_config config = lowrank(6, 3.0f, 0.0f, AQ_PRECISION_FP16);
    struct end end;
    double last = 0;
    config.keyframe = AQ_PRECISION_EC;
    end_open(&end, &config, ROWS, COLUMNS);
    float *const base = malloc(4 * (size_t)VALUES), *const drift = malloc(4 * (size_t)VALUES);
    assert_true(base != NULL && drift != NULL);
    fill(base, VALUES, SHAPE_GAUSS, 1.0f, 71);
    for (int visit = 0; visit < 12; visit++) {
        const double sizes[] = {9.0 * visit, 5.0 * (visit % 3), 4.0, 2.0 * visit};
        compose(drift, sizes, 4);
        for (size_t e = 0; e < VALUES; e++)
            end.a[e] = base[e] + drift[e];
        const struct coded coded = code(&end, &config, visit > 0);
        assert_int_equal(coded.result.flags, visit > 0 ? 0 : AQ_CODED_KEYFRAME);
        last = sqrt(coded.result.sum_error2 / coded.result.sum_a2);
    }
    assert_true(last < 0.15); /* the keyframe's own, 4 bits, and no more */
    free(base);
    free(drift);
    end_close(&end);
}

static uint32_t encode_at(struct end *end, bool warm)
{
    struct aq_codec_result result;
    assert_int_equal(aq_codec_encode(end->codec, end->a, warm ? end->m : NULL, NULL, end->body,
                                     aq_codec_bound(end->codec), end->hat, end->m, &result, NULL),
                     AQ_OK);
    assert_int_equal(result.flags, warm ? 0 : AQ_CODED_KEYFRAME);
    return result.body_bytes;
}

/* A change is coded alike by a codec that has just been opened, as a run that goes on has one, and by one that has
 * coded keyframes and other changes before. Small and large: what they share of scratch differs. */
static void test_what_went_before_leaves_nothing(void **state)
{
    (void)state;
    static const uint32_t shapes[][2] = {{20, 24}, {32, 48}, {ROWS, COLUMNS}};
    for (int i = 0; i < 3; i++) {
        struct aq_codec_config config = lowrank(6, 4.0f, 0.0f, AQ_PRECISION_FP16);
        struct end old;
        config.keyframe = AQ_PRECISION_EC;
        end_open(&old, &config, shapes[i][0], shapes[i][1]);
        fill(old.a, old.values, SHAPE_GAUSS, 1.0f, 73);
        (void)encode_at(&old, false);
        for (uint64_t visit = 0; visit < 3; visit++) {
            struct end young;
            end_open(&young, &config, shapes[i][0], shapes[i][1]);
            fill(old.a, old.values, SHAPE_LAPLACE, 1.0f, 74 + visit);
            memcpy(young.a, old.a, 4 * old.values);
            memcpy(young.m, old.m, aq_codec_message_bytes(old.codec));
            const uint32_t bytes = encode_at(&old, true);
            assert_int_equal(encode_at(&young, true), bytes);
            assert_memory_equal(old.body, young.body, bytes);
            assert_memory_equal(old.m, young.m, aq_codec_message_bytes(old.codec));
            end_close(&young);
        }
        end_close(&old);
    }
}

static void test_odd_samples_come_back(void **state)
{
    (void)state;
    for (int i = 0; i < 5; i++) {
        const struct aq_codec_config config = lowrank(4, 4.0f, i % 2 ? 0.05f : 0.0f, AQ_PRECISION_FP32);
        struct end end;
        end_open(&end, &config, ROWS, COLUMNS);
        fill(end.a, VALUES, SHAPE_GAUSS, 1.0f, 72);
        (void)code(&end, &config, false);
        if (i < 2 || i == 4) memcpy(end.a, end.hat, 4 * (size_t)VALUES); /* no change at all */
        if (i == 2) end.a[77] = NAN;
        if (i == 3) end.a[77] = 3e38f; /* its square is infinite */
        if (i == 4)
            for (size_t e = 0; e < VALUES; e++)
                end.a[e] += 1e-30f * (float)(e % 7); /* below what moves a float of 1 */
        const struct coded coded = code(&end, &config, true);
        if (i < 2 || i == 4) assert_int_equal(coded.result.body_bytes, HEAD);
        if (i < 2) assert_memory_equal(end.hat, end.a, 4 * (size_t)VALUES);
        assert_int_equal(coded.result.flags, i == 2 || i == 3 ? AQ_CODED_RAW : 0);
        end_close(&end);
    }
}

static enum aq_status verdict(struct end *end, uint32_t bytes)
{
    quiet_begin();
    const enum aq_status status = aq_codec_decode(end->codec, end->body, bytes, 0, NULL, end->hat, NULL, NULL);
    quiet_end();
    return status;
}

static void test_bodies_that_no_sender_writes_are_corrupt(void **state)
{
    (void)state;
    static const double sizes[] = {40, 25, 12};
    const struct aq_codec_config config = lowrank(5, 4.0f, 0.0f, AQ_PRECISION_NONE);
    struct aq_codec_result result;
    struct end end;
    end_open(&end, &config, ROWS, COLUMNS);
    compose(end.a, sizes, 3);
    assert_int_equal(aq_codec_encode(end.codec, end.a, NULL, NULL, end.body, aq_codec_bound(end.codec), end.hat, NULL,
                                     &result, NULL),
                     AQ_OK);
    static const struct {
        uint32_t at;
        uint8_t value;
    } wrong[] = {{0, 6}, {0, 2}, {0, 4}, {0, 0}, {3, 0xff}, {HEAD + 3, 0xff}, {HEAD + 7, 0x80}, {HEAD + 12, 0}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        const uint8_t right = end.body[wrong[i].at];
        uint8_t rest[4];
        memcpy(rest, end.body + HEAD, sizeof rest);
        end.body[wrong[i].at] = wrong[i].value;
        if (wrong[i].at == HEAD + 12) memset(end.body + HEAD + 12, 0xff, 4); /* the step of the factors */
        if (wrong[i].at == HEAD + 12) assert_int_equal(verdict(&end, result.body_bytes), AQ_CORRUPT);
        if (wrong[i].at == HEAD + 12) break;
        assert_int_equal(verdict(&end, result.body_bytes), AQ_CORRUPT);
        end.body[wrong[i].at] = right;
        assert_memory_equal(rest, end.body + HEAD, sizeof rest);
    }
    for (uint32_t bytes = 0; bytes < result.body_bytes; bytes += bytes < 200 ? 1 : 97)
        assert_int_equal(verdict(&end, bytes), AQ_CORRUPT);
    end_close(&end);
}

static void test_settings_are_checked(void **state)
{
    (void)state;
    struct aq_codec_config config = lowrank(0, 4.0f, 0.0f, AQ_PRECISION_FP16);
    quiet_begin();
    assert_int_equal(aq_codec_config_check(&config, 4, 4), AQ_INVAL);
    config = lowrank(65, 4.0f, 0.0f, AQ_PRECISION_FP16);
    assert_int_equal(aq_codec_config_check(&config, 4, 4), AQ_INVAL);
    config = lowrank(16, 9.0f, 0.0f, AQ_PRECISION_FP16);
    assert_int_equal(aq_codec_config_check(&config, 4, 4), AQ_INVAL);
    quiet_end();
    config = lowrank(16, 4.0f, 0.0f, AQ_PRECISION_FP16);
    assert_int_equal(aq_codec_config_check(&config, 4, 4), AQ_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_rank_of_a_sample_is_found),
        cmocka_unit_test(test_the_cap_loses_what_lies_beyond_it),
        cmocka_unit_test(test_an_error_is_kept),
        cmocka_unit_test(test_signs_change_nothing),
        cmocka_unit_test(test_the_loop_closes),
        cmocka_unit_test(test_what_went_before_leaves_nothing),
        cmocka_unit_test(test_odd_samples_come_back),
        cmocka_unit_test(test_bodies_that_no_sender_writes_are_corrupt),
        cmocka_unit_test(test_settings_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
