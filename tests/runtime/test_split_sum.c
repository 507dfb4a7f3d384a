/*
 * test_split_sum.c -- sums of gradients over clients: the mean by weights to the last bit, files that outlive a server,
 * what is not whole, and what is not needed any more.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "remove_tree.h"
#include "split_sum.h"

enum { VALUES = 1001 };

static char folder[] = "/tmp/aqpipe-sums-XXXXXX";

static int make_folder(void **state)
{
    (void)state;
    memcpy(folder + sizeof folder - 7, "XXXXXX", 6);
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    remove_tree(folder);
    return 0;
}

static struct aq_split_sum *opened(uint64_t first)
{
    struct aq_split_sum *sum;
    assert_int_equal(aq_split_sum_open(folder, VALUES, first, &sum), AQ_OK);
    return sum;
}

static float value_of(uint32_t client, uint64_t step, uint32_t i)
{
    return (float)((double)(client * 7919 + step * 104729 + i * 31 % 977) * 1e-4 - 3.0);
}

static void add(struct aq_split_sum *sum, uint32_t client, uint64_t weight)
{
    for (uint32_t i = 0; i < VALUES; i++)
        aq_split_sum_room(sum)[i] = value_of(client, aq_split_sum_step(sum), i);
    aq_split_sum_add(sum, weight);
}

static void read_back(const struct aq_split_sum *sum, uint64_t step, struct aq_sum_head *head, float *values)
{
    int fd;
    uint64_t bytes;
    assert_int_equal(aq_split_sum_file(sum, step, &fd, &bytes), AQ_OK);
    assert_int_equal(aq_pread_all(fd, head, sizeof *head, 0), sizeof *head);
    assert_int_equal(bytes, sizeof *head + head->values * sizeof(float));
    assert_int_equal(aq_pread_all(fd, values, head->values * sizeof(float), sizeof *head),
                     head->values * sizeof(float));
    close(fd);
    assert_int_equal(head->step, step);
}

static bool has(const struct aq_split_sum *sum, uint64_t step)
{
    int fd;
    uint64_t bytes;
    const bool there = aq_split_sum_file(sum, step, &fd, &bytes) == AQ_OK;
    if (there) close(fd);
    return there;
}

static void test_the_mean_is_by_weights_in_double(void **state)
{
    (void)state;
    static const uint64_t weights[] = {3, 0, 17};
    struct aq_sum_head head;
    float got[VALUES];
    struct aq_split_sum *sum = opened(0);
    for (uint32_t c = 0; c < 3; c++)
        add(sum, c, weights[c]);
    assert_int_equal(aq_split_sum_done(sum), AQ_OK);
    read_back(sum, 0, &head, got);
    assert_true(head.magic == AQ_SUM_MAGIC && head.what == AQ_SUM_SUM && head.flags == 0);
    assert_int_equal(head.weight, 20);
    for (uint32_t i = 0; i < VALUES; i++) {
        const double all = 3.0 * (double)value_of(0, 0, i) + 17.0 * (double)value_of(2, 0, i);
        const float want = (float)(all / 20.0);
        assert_memory_equal(&got[i], &want, sizeof want);
    }
    aq_split_sum_close(sum);
}

static void test_of_one_it_is_that_ones_and_of_equals_too(void **state)
{
    (void)state;
    struct aq_sum_head head;
    float got[VALUES];
    struct aq_split_sum *sum = opened(0);
    add(sum, 5, 4294967295u);
    assert_int_equal(aq_split_sum_done(sum), AQ_OK);
    for (uint64_t w = 1; w < 200; w += 3)
        add(sum, 5, w);
    assert_int_equal(aq_split_sum_done(sum), AQ_OK);
    for (uint64_t step = 0; step < 2; step++) {
        read_back(sum, step, &head, got);
        for (uint32_t i = 0; i < VALUES; i++) {
            const float want = value_of(5, step, i);
            assert_memory_equal(&got[i], &want, sizeof want);
        }
    }
    aq_split_sum_close(sum);
}

static void test_a_step_without_parts_is_void(void **state)
{
    (void)state;
    struct aq_sum_head head;
    float got[VALUES];
    struct aq_split_sum *sum = opened(7);
    aq_split_sum_add(sum, 0);
    assert_int_equal(aq_split_sum_done(sum), AQ_OK);
    read_back(sum, 7, &head, got);
    assert_true(head.flags == AQ_SUM_VOID && head.values == 0 && head.weight == 0);
    add(sum, 1, 2); /* and the next one is none */
    assert_int_equal(aq_split_sum_done(sum), AQ_OK);
    read_back(sum, 8, &head, got);
    assert_true(head.flags == 0 && head.values == VALUES && got[3] == value_of(1, 8, 3));
    aq_split_sum_close(sum);
}

static void test_it_goes_on_where_files_end(void **state)
{
    (void)state;
    char path[256];
    struct aq_split_sum *sum = opened(10);
    for (int i = 0; i < 5; i++) {
        add(sum, 1, 1);
        assert_int_equal(aq_split_sum_done(sum), AQ_OK);
    }
    add(sum, 2, 9); /* of a step that is not done: forgotten */
    aq_split_sum_close(sum);
    sum = opened(10);
    assert_int_equal(aq_split_sum_step(sum), 15);
    aq_split_sum_forget(sum, 12);
    assert_false(has(sum, 11));
    assert_true(has(sum, 12));
    aq_split_sum_close(sum);
    sum = opened(10);
    assert_int_equal(aq_split_sum_step(sum), 15);
    aq_split_sum_close(sum);
    /* One that a loss of power has cut, and what is behind it. */
    snprintf(path, sizeof path, "%s/sum-13", folder);
    assert_int_equal(truncate(path, 100), 0);
    sum = opened(10);
    assert_int_equal(aq_split_sum_step(sum), 13);
    assert_false(has(sum, 13));
    aq_split_sum_reach(sum, 12); /* it is further */
    assert_int_equal(aq_split_sum_step(sum), 13);
    aq_split_sum_reach(sum, 20);
    assert_int_equal(aq_split_sum_step(sum), 20);
    aq_split_sum_close(sum);
    /* The next round: files of the one before go, and those of nobody stay. */
    snprintf(path, sizeof path, "%s/summary", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fclose(file);
    sum = opened(30);
    assert_int_equal(aq_split_sum_step(sum), 30);
    aq_split_sum_close(sum);
    assert_int_equal(access(path, F_OK), 0);
    snprintf(path, sizeof path, "%s/sum-14", folder);
    assert_int_equal(access(path, F_OK), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_the_mean_is_by_weights_in_double, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_of_one_it_is_that_ones_and_of_equals_too, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_a_step_without_parts_is_void, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_it_goes_on_where_files_end, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
