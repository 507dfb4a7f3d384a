/*
 * test_dataset.c -- blocks of text and the order in which they are met.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "data_files.h"
#include "stages/dataset.h"

static char folder[DATA_PATH_BYTES], first[DATA_PATH_BYTES], second[DATA_PATH_BYTES];
static struct aq_tokenizer *bytes_tokenizer;

static struct aq_dataset *open_dataset(uint32_t path_count, uint32_t T, uint64_t skip, uint64_t samples_max)
{
    const char *paths[] = {first, second};
    struct aq_dataset_config config = {.paths = paths,
                                       .path_count = path_count,
                                       .tokenizer = bytes_tokenizer,
                                       .T = T,
                                       .samples_max = samples_max,
                                       .skip = skip};
    struct aq_dataset *dataset = NULL;
    assert_int_equal(aq_dataset_open(&config, &dataset), AQ_OK);
    return dataset;
}

static void expect_sample(const struct aq_dataset *dataset, uint64_t index, const char *text)
{
    int32_t tokens[16], targets[16];
    uint32_t T = aq_dataset_tokens(dataset);
    assert_int_equal(strlen(text), T + 1);
    assert_int_equal(aq_dataset_get(dataset, index, (void *const[AQ_BATCH_FIELDS_MAX]){tokens, targets}), AQ_OK);
    for (uint32_t i = 0; i < T; i++) {
        assert_int_equal(tokens[i], text[i]);
        assert_int_equal(targets[i], text[i + 1]);
    }
}

static void test_blocks_overlap_by_one_target(void **state)
{
    (void)state;
    data_write_text(folder, "first", "abcdefghijkl");
    struct aq_dataset *d = open_dataset(1, 4, 0, 0); /* 12 tokens: (12 - 1) / 4 = 2 blocks, j k l are left */
    assert_int_equal(aq_dataset_count(d), 2);
    assert_int_equal(aq_dataset_tokens(d), 4);
    assert_int_equal(aq_dataset_dropped(d), 3);
    expect_sample(d, 0, "abcde");
    expect_sample(d, 1, "efghi");
    int32_t tokens[4], targets[4];
    assert_int_equal(aq_dataset_get(d, 2, (void *const[AQ_BATCH_FIELDS_MAX]){tokens, targets}), AQ_INVAL);
    aq_dataset_close(d);
    data_write_text(folder, "first", "abcdefghi"); /* exactly two blocks */
    d = open_dataset(1, 4, 0, 0);
    assert_int_equal(aq_dataset_count(d), 2);
    assert_int_equal(aq_dataset_dropped(d), 0);
    aq_dataset_close(d);
}

/*
 * 100 GB, of which the first 5 MiB are there: for a thousand samples the beginning alone is read, with a cache folder
 * and without, and ids are those of a text that ends there. What is behind is anybody's.
 */
static void test_long_text_is_read_as_far_as_samples_max_wants(void **state)
{
    (void)state;
    enum { LINE = 64, LINES = 5 << 14 };
    FILE *file = fopen(first, "w");
    assert_non_null(file);
    for (int i = 0; i < LINES; i++)
        assert_int_equal(fprintf(file, "%063d\n", i), LINE);
    assert_int_equal(fclose(file), 0);
    struct aq_dataset *whole = open_dataset(1, 15, 7, 1000);
    assert_int_equal(truncate(first, INT64_C(100) << 30), 0);
    struct aq_dataset *d = open_dataset(1, 15, 7, 1000);
    assert_int_equal(aq_dataset_count(d), 1000);
    int32_t values[2][2][15];
    for (uint64_t i = 0; i < 1000; i++) {
        void *const a[AQ_BATCH_FIELDS_MAX] = {values[0][0], values[0][1]};
        void *const b[AQ_BATCH_FIELDS_MAX] = {values[1][0], values[1][1]};
        assert_int_equal(aq_dataset_get(d, i, a), AQ_OK);
        assert_int_equal(aq_dataset_get(whole, i, b), AQ_OK);
        assert_memory_equal(values[0], values[1], sizeof values[0]);
    }
    const char *const paths[] = {first};
    struct aq_dataset_config config = {.paths = paths,
                                       .path_count = 1,
                                       .tokenizer = bytes_tokenizer,
                                       .cache = folder,
                                       .T = 15,
                                       .threads = 2,
                                       .samples_max = 1000,
                                       .skip = 7};
    struct aq_dataset *kept;
    assert_int_equal(aq_dataset_open(&config, &kept), AQ_OK);
    assert_true(aq_dataset_digest(kept) == aq_dataset_digest(d));
    aq_dataset_close(kept);
    assert_int_equal(truncate(first, 1007 * 15 + 1), 0); /* no token more: whatever the cores have read */
    struct aq_dataset *exact = open_dataset(1, 15, 7, 1000);
    assert_true(aq_dataset_digest(exact) == aq_dataset_digest(d));
    aq_dataset_close(exact);
    aq_dataset_close(d);
    aq_dataset_close(whole);
    assert_int_equal(truncate(first, 0), 0);
}

static void test_skip_and_samples_max_keep_ids(void **state)
{
    (void)state;
    data_write_text(folder, "first", "abcdefghijklmnopq");
    struct aq_dataset *all = open_dataset(1, 4, 0, 0), *part = open_dataset(1, 4, 1, 2);
    assert_int_equal(aq_dataset_count(all), 4);
    assert_int_equal(aq_dataset_count(part), 2);
    expect_sample(part, 0, "efghi");
    expect_sample(part, 1, "ijklm");
    assert_true(aq_dataset_digest(all) == aq_dataset_digest(part));
    aq_dataset_close(all);
    aq_dataset_close(part);
}

static void test_files_are_joined_in_order(void **state)
{
    (void)state;
    data_write_text(folder, "first", "abc");
    data_write_text(folder, "second", "defg");
    struct aq_dataset *d = open_dataset(2, 3, 0, 0);
    assert_int_equal(aq_dataset_count(d), 2);
    expect_sample(d, 0, "abcd");
    expect_sample(d, 1, "defg");
    uint64_t digest = aq_dataset_digest(d);
    aq_dataset_close(d);
    data_write_text(folder, "second", "defG");
    d = open_dataset(2, 3, 0, 0);
    assert_true(digest != aq_dataset_digest(d));
    aq_dataset_close(d);
}

static void test_end_of_text_stands_behind_every_file(void **state)
{
    (void)state;
    static const char *const merges[] = {"a b"};
    const char *paths[] = {first, second};
    struct aq_tokenizer *t;
    struct aq_dataset *d;
    struct aq_dataset_config config = {.paths = paths, .path_count = 2, .T = 3, .end_of_text = true};
    int32_t tokens[3], targets[3];
    data_write_text(folder, "first", "ab");
    data_write_text(folder, "second", "ba");
    data_write_vocabulary(folder, merges, 1);
    assert_int_equal(aq_tokenizer_open("gpt2", folder, &t), AQ_OK);
    config.tokenizer = t;
    assert_int_equal(aq_dataset_open(&config, &d), AQ_OK); /* ab <end> b a <end> */
    assert_int_equal(aq_dataset_get(d, 0, (void *const[AQ_BATCH_FIELDS_MAX]){tokens, targets}), AQ_OK);
    const int32_t b = data_byte_token('b'), a = data_byte_token('a'), end = aq_tokenizer_end_of_text(t);
    assert_memory_equal(tokens, ((const int32_t[]){256, end, b}), sizeof tokens);
    assert_memory_equal(targets, ((const int32_t[]){end, b, a}), sizeof targets);
    assert_int_equal(aq_dataset_dropped(d), 1);
    aq_dataset_close(d);
    aq_tokenizer_close(t);
    config.tokenizer = bytes_tokenizer;
    assert_int_equal(aq_dataset_open(&config, &d), AQ_INVAL);
}

static void expect_fails(const struct aq_dataset_config *config, enum aq_status wanted, const char *part)
{
    struct aq_dataset *d = NULL;
    uint64_t used = aq_memory_used();
    aq_error_clear();
    assert_int_equal(aq_dataset_open(config, &d), wanted);
    if (!strstr(aq_error_text(), part)) fail_msg("\"%s\" does not say \"%s\"", aq_error_text(), part);
    assert_null(d);
    assert_int_equal(aq_memory_used(), used);
}

static void test_bad_input_names_the_file(void **state)
{
    (void)state;
    const char *paths[] = {first, second};
    char missing[DATA_PATH_BYTES];
    struct aq_dataset_config config = {.paths = paths, .path_count = 1, .tokenizer = bytes_tokenizer, .T = 4};
    data_write_text(folder, "first", "abcd");
    data_write_text(folder, "second", "efgh");
    expect_fails(&config, AQ_INVAL, "4 tokens make 0 blocks");
    data_write_text(folder, "first", "");
    expect_fails(&config, AQ_INVAL, "there is no text to learn from");
    data_write_text(folder, "first", "abcde");
    config.skip = 1;
    expect_fails(&config, AQ_INVAL, first);
    config.skip = UINT64_MAX;
    expect_fails(&config, AQ_INVAL, first);
    config.skip = 0;
    config.T = 0;
    expect_fails(&config, AQ_INVAL, "T is 0");
    config.T = UINT32_MAX;
    expect_fails(&config, AQ_INVAL, "make 0 blocks");
    config.T = 4;
    config.path_count = 0;
    expect_fails(&config, AQ_INVAL, "no file is given");
    config.path_count = 2;
    paths[1] = data_path(folder, "missing", missing);
    expect_fails(&config, AQ_NOTFOUND, missing);
    paths[1] = folder;
    expect_fails(&config, AQ_INVAL, folder);
    for (uint64_t n = 1; n <= 5; n++) {
        paths[1] = second;
        aq_memory_fail_at(n);
        expect_fails(&config, AQ_NOMEM, "");
        aq_memory_fail_at(0);
    }
}

static void test_sampler_order_is_a_permutation_of_each_epoch(void **state)
{
    (void)state;
    static const uint64_t counts[] = {1, 2, 7, 64, 1000};
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        for (uint32_t batch = 1; batch <= 9; batch += 4) {
            struct aq_sampler *s;
            assert_int_equal(aq_sampler_open(counts[c], batch, 5, true, &s), AQ_OK);
            uint64_t steps = aq_sampler_steps_per_epoch(s);
            assert_int_equal(steps, (counts[c] + batch - 1) / batch);
            for (uint64_t epoch = 0; epoch < 3; epoch++) {
                bool seen[1000] = {false};
                uint64_t met = 0;
                for (uint64_t step = epoch * steps; step < (epoch + 1) * steps; step++) {
                    for (uint32_t i = 0; i < aq_sampler_size(s, step); i++, met++) {
                        uint64_t index = aq_sampler_at(s, step, i);
                        assert_true(index < counts[c] && !seen[index]);
                        seen[index] = true;
                    }
                }
                assert_int_equal(met, counts[c]);
            }
            aq_sampler_close(s);
        }
    }
}

/* For ever: a job that is resumed by a later version meets its samples in the same order. */
static void test_sampler_order_is_the_golden_one(void **state)
{
    (void)state;
    static const uint8_t golden[2][10] = {{1, 5, 2, 9, 0, 4, 7, 3, 8, 6}, {9, 7, 0, 8, 1, 2, 3, 4, 6, 5}};
    struct aq_sampler *s;
    assert_int_equal(aq_sampler_open(10, 10, 1234, true, &s), AQ_OK);
    for (uint64_t epoch = 0; epoch < 2; epoch++) {
        for (uint32_t i = 0; i < 10; i++)
            assert_int_equal(aq_sampler_at(s, epoch, i), golden[epoch][i]);
    }
    aq_sampler_close(s);
}

static void test_sampler_order_does_not_depend_on_when_it_is_asked(void **state)
{
    (void)state;
    struct aq_sampler *forward, *other;
    struct aq_rng_key key = aq_rng_key(31, AQ_RNG_TEST, 0, 0);
    assert_int_equal(aq_sampler_open(100, 8, 9, true, &forward), AQ_OK);
    assert_int_equal(aq_sampler_open(100, 8, 9, true, &other), AQ_OK);
    uint64_t steps = aq_sampler_steps_per_epoch(forward);
    for (uint64_t step = 0; step < 4 * steps; step++) {
        /* The other is asked for something else in between: a later epoch, an earlier one. */
        (void)aq_sampler_at(other, aq_rng_below(&key, step, 10 * steps), 0);
        for (uint32_t i = 0; i < aq_sampler_size(forward, step); i++)
            assert_int_equal(aq_sampler_at(forward, step, i), aq_sampler_at(other, step, i));
    }
    aq_sampler_close(forward);
    aq_sampler_close(other);
}

static void test_sampler_epochs_and_seeds_differ(void **state)
{
    (void)state;
    struct aq_sampler *one, *two;
    assert_int_equal(aq_sampler_open(1000, 1000, 1, true, &one), AQ_OK);
    assert_int_equal(aq_sampler_open(1000, 1000, 2, true, &two), AQ_OK);
    int same_epoch = 0, same_seed = 0;
    for (uint32_t i = 0; i < 1000; i++) {
        same_epoch += aq_sampler_at(one, 0, i) == aq_sampler_at(one, 1, i);
        same_seed += aq_sampler_at(one, 0, i) == aq_sampler_at(two, 0, i);
    }
    assert_true(same_epoch < 10 && same_seed < 10); /* one is expected by chance */
    aq_sampler_close(one);
    aq_sampler_close(two);
}

static void test_sampler_partial_last_batch_and_plain_order(void **state)
{
    (void)state;
    struct aq_sampler *s;
    assert_int_equal(aq_sampler_open(10, 4, 1, false, &s), AQ_OK);
    assert_int_equal(aq_sampler_steps_per_epoch(s), 3);
    assert_int_equal(aq_sampler_size(s, 1), 4);
    assert_int_equal(aq_sampler_size(s, 2), 2);
    assert_int_equal(aq_sampler_size(s, 3), 4);
    assert_int_equal(aq_sampler_size(s, 5), 2);
    assert_int_equal(aq_sampler_at(s, 5, 1), 9);
    assert_int_equal(aq_sampler_at(s, 3, 0), 0);
    aq_sampler_close(s);
    assert_int_equal(aq_sampler_open(3, 8, 1, true, &s), AQ_OK);
    assert_int_equal(aq_sampler_steps_per_epoch(s), 1);
    assert_int_equal(aq_sampler_size(s, 7), 3);
    aq_sampler_close(s);
    assert_int_equal(aq_sampler_open(0, 8, 1, true, &s), AQ_INVAL);
    assert_int_equal(aq_sampler_open(8, 0, 1, true, &s), AQ_INVAL);
    assert_int_equal(aq_sampler_open(UINT64_C(1) << 32, 1, 1, true, &s), AQ_INVAL);
    aq_sampler_close(NULL);
    uint64_t used = aq_memory_used();
    for (uint64_t n = 1; n <= 3; n++) {
        aq_memory_fail_at(n);
        assert_int_equal(aq_sampler_open(8, 8, 1, true, &s), AQ_NOMEM);
        aq_memory_fail_at(0);
        assert_int_equal(aq_memory_used(), used);
    }
}

/* Every sample is in one part and always in that one; unshuffled, the parts' batches joined are the single run's. */
static void test_sampler_shards_divide_the_samples_for_ever(void **state)
{
    (void)state;
    enum { COUNT = 24, BATCH = 3 };
    for (uint32_t W = 1; W <= 4; W++) {
        int owner[COUNT];
        memset(owner, -1, sizeof owner);
        for (uint32_t w = 0; w < W; w++) {
            struct aq_sampler *s, *plain, *whole;
            assert_int_equal(aq_sampler_open_shard(COUNT, BATCH, 9, true, w, W, &s), AQ_OK);
            assert_int_equal(aq_sampler_open_shard(COUNT, BATCH, 9, false, w, W, &plain), AQ_OK);
            assert_int_equal(aq_sampler_open(COUNT, BATCH * W, 9, false, &whole), AQ_OK);
            const uint64_t steps = aq_sampler_steps_per_epoch(s);
            assert_int_equal(steps, (COUNT / W + BATCH - 1) / BATCH);
            assert_int_equal(steps, aq_sampler_steps_per_epoch(whole));
            for (uint64_t step = 0; step < 3 * steps; step++) {
                assert_int_equal(aq_sampler_size(s, step) * W, aq_sampler_size(whole, step));
                for (uint32_t i = 0; i < aq_sampler_size(s, step); i++) {
                    const uint64_t at = aq_sampler_at(s, step, i);
                    assert_true(at < COUNT && (owner[at] == -1 || owner[at] == (int)w));
                    owner[at] = (int)w;
                    assert_int_equal(aq_sampler_at(plain, step, i), aq_sampler_at(whole, step, i * W + w));
                }
            }
            aq_sampler_close(s);
            aq_sampler_close(plain);
            aq_sampler_close(whole);
        }
        for (int i = 0; i < COUNT; i++)
            assert_int_equal(owner[i], i % (int)W);
    }
    struct aq_sampler *s;
    assert_int_equal(aq_sampler_open_shard(COUNT, BATCH, 9, true, 0, 5, &s), AQ_INVAL);
    assert_int_equal(aq_sampler_open_shard(COUNT, BATCH, 9, true, 2, 2, &s), AQ_INVAL);
}

/* Replicas and epochs each have an order of their own: one for all would show some pairs of samples always together. */
static void test_sampler_replicas_and_epochs_shuffle_apart(void **state)
{
    enum { COUNT = 64, BATCH = 4, REPLICAS = 2, EPOCHS = 2 };
    uint64_t order[REPLICAS * EPOCHS][COUNT / REPLICAS];
    (void)state;
    for (uint32_t w = 0; w < REPLICAS; w++) {
        struct aq_sampler *s;
        assert_int_equal(aq_sampler_open_shard(COUNT, BATCH, 9, true, w, REPLICAS, &s), AQ_OK);
        for (uint64_t i = 0; i < EPOCHS * COUNT / REPLICAS; i++)
            order[w * EPOCHS + i / (COUNT / REPLICAS)][i % (COUNT / REPLICAS)] =
                aq_sampler_at(s, i / BATCH, i % BATCH) / REPLICAS;
        aq_sampler_close(s);
    }
    for (int a = 0; a < REPLICAS * EPOCHS; a++)
        for (int b = 0; b < a; b++)
            assert_memory_not_equal(order[a], order[b], sizeof order[a]);
}

/* One part that is all has the order of the plain sampler. */
static void test_sampler_part_of_all_is_the_plain_order(void **state)
{
    enum { COUNT = 23, BATCH = 5 };
    (void)state;
    for (int shuffle = 0; shuffle < 2; shuffle++) {
        const struct aq_sampler_part part = {.all = COUNT, .count = COUNT};
        struct aq_sampler *s, *plain;
        assert_int_equal(aq_sampler_open_part(&part, BATCH, 3, shuffle, &s), AQ_OK);
        assert_int_equal(aq_sampler_open(COUNT, BATCH, 3, shuffle, &plain), AQ_OK);
        assert_int_equal(aq_sampler_steps_per_epoch(s), aq_sampler_steps_per_epoch(plain));
        for (uint64_t step = 0; step < 4 * aq_sampler_steps_per_epoch(plain); step++) {
            assert_int_equal(aq_sampler_size(s, step), aq_sampler_size(plain, step));
            for (uint32_t i = 0; i < aq_sampler_size(s, step); i++)
                assert_int_equal(aq_sampler_at(s, step, i), aq_sampler_at(plain, step, i));
        }
        aq_sampler_close(s);
        aq_sampler_close(plain);
    }
}

/* Of one step of all: how its samples fall into three parts, each shifted by a number of steps of its own. */
static void check_parts(struct aq_sampler *plain, struct aq_sampler *const parts[3],
                        const struct aq_sampler_part ends[3], uint64_t step, uint64_t *empty)
{
    uint32_t met[3] = {0};
    for (uint32_t i = 0; i < aq_sampler_size(plain, step); i++) {
        const uint64_t sample = aq_sampler_at(plain, step, i);
        int p = 0;
        while (sample >= ends[p].first + ends[p].count)
            p++;
        assert_true(met[p] < aq_sampler_size(parts[p], step - ends[p].shift));
        assert_int_equal(aq_sampler_at(parts[p], step - ends[p].shift, met[p]++), sample - ends[p].first);
    }
    for (int p = 0; p < 3; p++) {
        assert_int_equal(aq_sampler_size(parts[p], step - ends[p].shift), met[p]);
        *empty += met[p] == 0;
    }
}

static void test_sampler_parts_share_every_batch(void **state)
{
    static const uint64_t counts[][3] = {{1, 1, 1}, {11, 1, 5}, {7, 13, 20}, {3, 100, 2}};
    static const uint32_t batches[] = {1, 4, 7, 1000};
    (void)state;
    uint64_t empty = 0;
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        for (size_t b = 0; b < 2 * sizeof batches / sizeof batches[0]; b++) {
            const uint64_t all = counts[c][0] + counts[c][1] + counts[c][2];
            const uint32_t batch = batches[b / 2];
            struct aq_sampler *plain, *parts[3];
            struct aq_sampler_part ends[3];
            assert_int_equal(aq_sampler_open(all, batch, 77, b % 2, &plain), AQ_OK);
            const uint64_t steps = aq_sampler_steps_per_epoch(plain);
            for (uint64_t p = 0, before = 0; p < 3; before += counts[c][p++]) {
                ends[p] = (struct aq_sampler_part){.all = all,
                                                   .first = before,
                                                   .count = counts[c][p],
                                                   .shift = p == 1   ? steps
                                                            : p == 2 ? 1
                                                                     : 0};
                assert_int_equal(aq_sampler_open_part(&ends[p], batch, 77, b % 2, &parts[p]), AQ_OK);
            }
            for (uint64_t step = steps; step < 4 * steps; step++)
                check_parts(plain, parts, ends, step, &empty);
            /* In any order: an epoch that is no longer kept is made again. */
            check_parts(plain, parts, ends, steps, &empty);
            aq_sampler_close(plain);
            for (int p = 0; p < 3; p++)
                aq_sampler_close(parts[p]);
        }
    }
    assert_true(empty > 0);
}

static void test_sampler_part_that_is_none_is_refused(void **state)
{
    static const struct aq_sampler_part wrong[] = {{.all = 8, .first = 8, .count = 1},
                                                   {.all = 8, .first = 3, .count = 6},
                                                   {.all = 8, .first = 3, .count = 0},
                                                   {.all = 8, .first = 1, .count = UINT64_MAX},
                                                   {.all = UINT64_C(1) << 32, .first = 1, .count = 1}};
    (void)state;
    struct aq_sampler *s = NULL;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_int_equal(aq_sampler_open_part(&wrong[i], 4, 1, true, &s), AQ_INVAL);
    const struct aq_sampler_part part = {.all = 8, .first = 3, .count = 2};
    assert_int_equal(aq_sampler_open_part(&part, 0, 1, true, &s), AQ_INVAL);
    const uint64_t used = aq_memory_used();
    for (uint64_t n = 1; n <= 6; n++) {
        aq_memory_fail_at(n);
        assert_int_equal(aq_sampler_open_part(&part, 4, 1, true, &s), AQ_NOMEM);
        aq_memory_fail_at(0);
        assert_int_equal(aq_memory_used(), used);
    }
    assert_int_equal(aq_sampler_open_part(&part, 4, 1, true, &s), AQ_OK);
    assert_true(aq_memory_used() - used >= aq_sampler_part_bytes(&part, 4));
    aq_sampler_close(s);
}

static int open_folder(void **state)
{
    (void)state;
    data_be_quiet();
    data_folder_open(folder);
    data_path(folder, "first", first);
    data_path(folder, "second", second);
    return aq_tokenizer_open("bytes", NULL, &bytes_tokenizer) != AQ_OK;
}

static int close_folder(void **state)
{
    (void)state;
    aq_tokenizer_close(bytes_tokenizer);
    data_folder_close(folder);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks_overlap_by_one_target),
        cmocka_unit_test(test_skip_and_samples_max_keep_ids),
        cmocka_unit_test(test_long_text_is_read_as_far_as_samples_max_wants),
        cmocka_unit_test(test_files_are_joined_in_order),
        cmocka_unit_test(test_end_of_text_stands_behind_every_file),
        cmocka_unit_test(test_bad_input_names_the_file),
        cmocka_unit_test(test_sampler_order_is_a_permutation_of_each_epoch),
        cmocka_unit_test(test_sampler_order_is_the_golden_one),
        cmocka_unit_test(test_sampler_order_does_not_depend_on_when_it_is_asked),
        cmocka_unit_test(test_sampler_epochs_and_seeds_differ),
        cmocka_unit_test(test_sampler_partial_last_batch_and_plain_order),
        cmocka_unit_test(test_sampler_shards_divide_the_samples_for_ever),
        cmocka_unit_test(test_sampler_replicas_and_epochs_shuffle_apart),
        cmocka_unit_test(test_sampler_part_of_all_is_the_plain_order),
        cmocka_unit_test(test_sampler_parts_share_every_batch),
        cmocka_unit_test(test_sampler_part_that_is_none_is_refused),
    };
    return cmocka_run_group_tests(tests, open_folder, close_folder);
}
