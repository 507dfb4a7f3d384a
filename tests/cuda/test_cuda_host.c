/*
 * test_cuda_host.c -- the launch emulation itself: what it computes, in which orders, and which mistakes it finds.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "aqsgd/base.h"
#include "cuda_host_test.h"

enum aq_status cuda_host_tree_sum(const float *x, uint64_t rows, float *sums);
enum aq_status cuda_host_warp_functions(uint32_t *out);
enum aq_status cuda_host_coordinates(uint32_t *counts, uint32_t *order);
enum aq_status cuda_host_forgets_barrier(float *out);
enum aq_status cuda_host_fences(int kind, float *out);
enum aq_status cuda_host_mistake(int kind, unsigned threads, float *out);

static const uint64_t seeds[] = {0, 1, 2, 3};
enum { SEEDS = sizeof seeds / sizeof seeds[0] };

static void test_tree_sums_are_exact_under_every_seed(void **state)
{
    (void)state;
    enum { ROWS = 7 };
    static float x[ROWS * 256];
    for (int i = 0; i < ROWS * 256; i++)
        x[i] = (float)(i % 97);
    for (int s = 0; s < SEEDS; s++) {
        cuda_host_seed(seeds[s]);
        float sums[ROWS] = {0};
        assert_int_equal(cuda_host_tree_sum(x, ROWS, sums), AQ_OK);
        for (int r = 0; r < ROWS; r++) {
            float expected = 0.0f;
            for (int i = 0; i < 256; i++)
                expected += x[r * 256 + i];
            assert_true(sums[r] == expected);
        }
    }
}

static void test_warp_functions_give_what_the_manual_says(void **state)
{
    (void)state;
    for (int s = 0; s < SEEDS; s++) {
        cuda_host_seed(seeds[s]);
        uint32_t out[32][16];
        assert_int_equal(cuda_host_warp_functions(&out[0][0]), AQ_OK);
        for (uint32_t i = 0; i < 32; i++) {
            assert_int_equal(out[i][0], 50);
            assert_int_equal(out[i][1], (i / 8 * 8 + 3) * 10);
            assert_int_equal(out[i][2], i < 3 ? i : i - 3);
            assert_int_equal(out[i][3], i % 8 < 3 ? i : i - 3);
            assert_int_equal(out[i][4], i + 5 > 31 ? i : i + 5);
            assert_int_equal(out[i][5], i ^ 21);
            assert_int_equal(out[i][6], 0x49249249u);
            assert_int_equal(out[i][7], 2);
            assert_int_equal(out[i][8], 2);
            uint32_t equal = 0;
            for (uint32_t j = 0; j < 32; j++)
                equal |= (uint32_t)(j / 5 == i / 5) << j;
            assert_int_equal(out[i][9], equal);
            assert_int_equal(out[i][10], 496);
            assert_int_equal((int32_t)out[i][11], -20);
            assert_int_equal(out[i][12], 31);
            assert_int_equal(out[i][13], i < 16 ? i ^ 1 : 0);
            assert_int_equal(out[i][14], 0);
            assert_int_equal(out[i][15], 0x3ff00000u);
        }
    }
}

static void test_every_thread_runs_once_in_an_order_of_the_seed(void **state)
{
    (void)state;
    enum { BLOCKS = 24, THREADS = 30 };
    uint32_t orders[SEEDS][BLOCKS];
    for (int s = 0; s < SEEDS; s++) {
        uint32_t counts[BLOCKS * THREADS + 1] = {0};
        cuda_host_seed(seeds[s]);
        assert_int_equal(cuda_host_coordinates(counts, orders[s]), AQ_OK);
        for (int i = 0; i < BLOCKS * THREADS; i++)
            assert_int_equal(counts[i], 1);
        assert_int_equal(counts[BLOCKS * THREADS], BLOCKS);
        cuda_host_seed(seeds[s]);
        uint32_t again[BLOCKS];
        memset(counts, 0, sizeof counts);
        assert_int_equal(cuda_host_coordinates(counts, again), AQ_OK);
        assert_memory_equal(again, orders[s], sizeof again);
    }
    for (uint32_t b = 0; b < BLOCKS; b++)
        assert_int_equal(orders[0][b], b);
    for (int s = 1; s < SEEDS; s++)
        assert_true(memcmp(orders[s], orders[s - 1], sizeof orders[s]) != 0);
}

#ifdef __SANITIZE_ADDRESS__ /* accesses are ASan's, and nobody else is told of them */
static const bool watched = false;
#else
static const bool watched = true;
#endif

static void test_a_missing_barrier_shows(void **state)
{
    (void)state;
    float results[SEEDS][64];
    for (int s = 0; s < SEEDS; s++) {
        cuda_host_seed(seeds[s]);
        cuda_host_error_clear();
        assert_int_equal(cuda_host_forgets_barrier(results[s]), watched ? AQ_CUDAERR : AQ_OK);
        if (!watched) continue;
        assert_non_null(strstr(cuda_host_error(), "forgets_barrier, block (0,0,0): test_cuda_host.cu:"));
        assert_non_null(strstr(cuda_host_error(), "of its 256 bytes of tile, which "));
    }
    if (!watched) assert_true(memcmp(results[1], results[2], sizeof results[1]) != 0);
}

static void test_memory_between_threads_without_a_fence_is_found(void **state)
{
    (void)state;
    static const char *const words[] = {NULL,
                                        NULL,
                                        NULL,
                                        "with no __syncwarp or __syncthreads between, after __all_sync at test_cuda",
                                        "wrote, with no __syncthreads between, after __syncwarp at test_cuda",
                                        "with no __syncwarp or __syncthreads between, after __syncthreads at test_cuda",
                                        "wrote, with no __syncwarp or __syncthreads between, after __syncwarp",
                                        "of tile, which nobody wrote",
                                        "of its 256 bytes of tile, which thread ",
                                        "bytes of votes, which thread ",
                                        "byte 0 past its 256 bytes of tile"};
    for (int kind = 0; kind < (int)(sizeof words / sizeof words[0]); kind++) {
        for (int s = 0; s < SEEDS; s++) {
            float out[128];
            cuda_host_seed(seeds[s]);
            cuda_host_error_clear();
            const enum aq_status status = cuda_host_fences(kind, out);
            if (!watched && words[kind]) break;
            if (status != (words[kind] ? AQ_CUDAERR : AQ_OK) ||
                (words[kind] && !strstr(cuda_host_error(), words[kind])))
                fail_msg("kind %d: \"%s\", not \"%s\"", kind, cuda_host_error(), words[kind] ? words[kind] : "");
        }
    }
}

static void expect_mistake(int kind, unsigned threads, const char *words)
{
    float out[1024];
    for (int s = 0; s < SEEDS; s++) {
        cuda_host_seed(seeds[s]);
        cuda_host_error_clear();
        const enum aq_status status = cuda_host_mistake(kind, threads, out);
        if (!words) {
            assert_int_equal(status, AQ_OK);
            assert_string_equal(cuda_host_error(), "");
            continue;
        }
        assert_int_equal(status, AQ_CUDAERR);
        if (!strstr(cuda_host_error(), words)) fail_msg("mistake %d: \"%s\", not %s", kind, cuda_host_error(), words);
    }
}

static void test_mistakes_are_found_and_named(void **state)
{
    (void)state;
    expect_mistake(0, 64, NULL);
    expect_mistake(1, 64, "divergent barrier");
    expect_mistake(2, 64, "divergent barrier");
    expect_mistake(3, 64, "neither ends");
    expect_mistake(4, 64, "not in its own mask");
#ifndef __SANITIZE_ADDRESS__ /* which ends the process at the very write */
    expect_mistake(5, 64, "past its 256 bytes");
#endif
    expect_mistake(6, 64, "has returned");
    expect_mistake(7, 64, "lane");
    expect_mistake(8, 64, "ran over its stack");
    expect_mistake(0, 0, "1 to 1024");
    expect_mistake(0, 1025, "1 to 1024");
    expect_mistake(3, 48, "mask");
    expect_mistake(0, 1024, NULL); /* an error leaves nothing behind */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tree_sums_are_exact_under_every_seed),
        cmocka_unit_test(test_warp_functions_give_what_the_manual_says),
        cmocka_unit_test(test_every_thread_runs_once_in_an_order_of_the_seed),
        cmocka_unit_test(test_a_missing_barrier_shows),
        cmocka_unit_test(test_memory_between_threads_without_a_fence_is_found),
        cmocka_unit_test(test_mistakes_are_found_and_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
