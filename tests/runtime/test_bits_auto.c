/*
 * test_bits_auto.c -- edges.bits: auto at the launcher: what was decided stands, on disk before it is told; what stages
 * measure decides of the next epoch; a file that no run of the plan has left is refused, and none is no harm.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "bits_auto.h"
#include "edge.h"

enum { WAYS = 6 };

static const char manifest[] = "model: {blocks: 6, channels: 64, heads: 4, context: 32, vocabulary: 256, tied: false}\n"
                               "data: {train: nowhere.txt}\n"
                               "train: {T: 32, batch: 8, micro_batch: 2, epochs: 9}\n"
                               "pipeline: {stages: 4}\n"
                               "edges: {bits: auto, forward: {codec: aqsgd, bits: 2}, backward: {bits: 4}}\n"
                               "link: {rate_mbps: 60}\n"
                               "facts: {vocabulary: 256, train_samples: 160, train_digest: 1, heldout_samples: 0}\n";

static struct aq_job *job;
static struct aq_plan *plan;
static char folder[] = "/tmp/aq-test-bits-XXXXXX";
static char path[64];

static int begin(void **state)
{
    (void)state;
    if (!mkdtemp(folder)) return -1;
    snprintf(path, sizeof path, "%s/bits.json", folder);
    if (aq_job_parse(manifest, sizeof manifest - 1, "job.yaml", "/", NULL, 0, &job) != AQ_OK) return -1;
    return aq_plan_open(job, &plan) == AQ_OK ? 0 : -1;
}

static int end(void **state)
{
    (void)state;
    aq_plan_close(plan);
    aq_job_close(job);
    (void)unlink(path);
    return rmdir(folder);
}

static struct aq_bits *open_bits(bool goes_on)
{
    struct aq_bits *bits = NULL;
    assert_int_equal(aq_bits_open(plan, folder, goes_on, &bits), AQ_OK);
    assert_non_null(bits);
    return bits;
}

/* A step of every stage that computes for so many seconds. */
static void steps(struct aq_bits *bits, double seconds)
{
    for (uint32_t r = 0; r < 4; r++) {
        json_t *line = json_pack("{s:f, s:f}", "compute_ns", seconds * 1e9, "codec_ns", 1e5);
        aq_bits_step(bits, r, line);
        json_decref(line);
    }
}

static uint32_t sum_of(struct aq_bits *bits, uint64_t epoch)
{
    uint32_t levels[2 * AQ_JOB_STAGES_MAX], sum = 0;
    assert_int_equal(aq_bits_decide(bits, epoch, levels), AQ_OK);
    for (int w = 0; w < WAYS; w++)
        sum += levels[w];
    return sum;
}

/* Stages that compute long leave links all the room, quick ones none; and each is measured for the next epoch alone. */
static void test_bits_follow_what_stages_compute(void **state)
{
    (void)state;
    struct aq_bits *bits = open_bits(false);
    (void)sum_of(bits, 0);
    steps(bits, 2.0);
    assert_int_equal(sum_of(bits, 1), 3 * WAYS);
    steps(bits, 1e-5);
    assert_int_equal(sum_of(bits, 2), 0);
    json_t *odd = json_pack("{s:f, s:s}", "compute_ns", -1.0, "codec_ns", "much"); /* a worker's word */
    aq_bits_step(bits, 1, odd);
    json_decref(odd);
    steps(bits, 2.0);
    assert_int_equal(sum_of(bits, 3), 3 * WAYS);
    aq_bits_close(bits);
}

static void test_bits_that_were_decided_stand(void **state)
{
    (void)state;
    struct aq_bits *bits = open_bits(false);
    (void)sum_of(bits, 0);
    steps(bits, 2.0);
    assert_int_equal(sum_of(bits, 1), 3 * WAYS);
    steps(bits, 1e-5);
    assert_int_equal(sum_of(bits, 1), 3 * WAYS); /* a restart in this launch */
    aq_bits_close(bits);
    bits = open_bits(true); /* and one in the next */
    steps(bits, 1e-5);
    assert_int_equal(sum_of(bits, 1), 3 * WAYS);
    steps(bits, 1e-5);
    assert_int_equal(sum_of(bits, 2), 0);
    aq_bits_close(bits);
    bits = open_bits(false); /* one that begins anew knows nothing of it */
    steps(bits, 1e-5);
    assert_int_equal(sum_of(bits, 1), 0);
    aq_bits_close(bits);
}

static void test_bits_of_no_run_are_refused(void **state)
{
    (void)state;
    static const char *const texts[] = {"",
                                        "{",
                                        "[]",
                                        "{\"1\": 3}",
                                        "{\"1\": []}",
                                        "{\"1\": [0,0,0,0,0]}",
                                        "{\"1\": [0,0,0,0,0,0,0]}",
                                        "{\"1\": [0,0,0,0,0,4]}",
                                        "{\"1\": [0,0,0,0,0,-1]}",
                                        "{\"1\": [0,0,0,0,0,0.5]}",
                                        "{\"1\": [0,0,0,0,0,\"1\"]}",
                                        "{\"1\": [0,0,0,0,0,0], \"1\": [0,0,0,0,0,0]}",
                                        "{\"1\": [0,0,0,0,0,9223372036854775807]}"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct aq_bits *bits = NULL;
        assert_int_equal(aq_file_replace(NULL, path, 0600, texts[i], strlen(texts[i])), AQ_OK);
        aq_error_clear();
        if (aq_bits_open(plan, folder, true, &bits) != AQ_CORRUPT) fail_msg("'%s' was taken", texts[i]);
        assert_null(bits);
        assert_non_null(strstr(aq_error_text(), "remove it"));
    }
    assert_int_equal(unlink(path), 0);
    struct aq_bits *bits = open_bits(true); /* removed: decided anew */
    (void)sum_of(bits, 5);
    aq_bits_close(bits);
}

/* Without link.rate_mbps links are what they were seen to carry: a worker's word, whatever it is, ends no run. */
static void test_bits_of_rates_that_are_none(void **state)
{
    (void)state;
    static const char *const sets[] = {"link.rate_mbps=0"};
    static const double words[][2] = {{0, 0},         {0, 1e9},  {1e6, 0},  {1e17, 1e-300},
                                      {1e-300, 1e17}, {1, 9e17}, {9e17, 1}, {1e9, 1e9}};
    struct aq_job *open_job;
    struct aq_plan *open_plan;
    assert_int_equal(aq_job_parse(manifest, sizeof manifest - 1, "job.yaml", "/", sets, 1, &open_job), AQ_OK);
    assert_int_equal(aq_plan_open(open_job, &open_plan), AQ_OK);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        struct aq_bits *bits = NULL;
        assert_int_equal(aq_bits_open(open_plan, folder, false, &bits), AQ_OK);
        assert_int_equal(sum_of(bits, 0), 0);
        for (uint32_t r = 0; r < 4; r++) {
            json_t *line = json_pack("{s:f, s:f, s:f, s:f, s:f, s:f}", "compute_ns", 1e9, "codec_ns", 1e5,
                                     "in_link_bytes", words[i][0], "in_link_ns", words[i][1], "out_link_bytes",
                                     words[i][0], "out_link_ns", words[i][1]);
            aq_bits_step(bits, r, line);
            json_decref(line);
        }
        const uint32_t sum = sum_of(bits, 1);
        if (sum != (words[i][0] == words[i][1] && words[i][0] > 0 ? 3 * WAYS : 0))
            fail_msg("%g bytes in %g ns: %u", words[i][0], words[i][1], sum);
        aq_bits_close(bits);
    }
    aq_plan_close(open_plan);
    aq_job_close(open_job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits_follow_what_stages_compute), cmocka_unit_test(test_bits_that_were_decided_stand),
        cmocka_unit_test(test_bits_of_no_run_are_refused), cmocka_unit_test(test_bits_of_rates_that_are_none)};
    return cmocka_run_group_tests(tests, begin, end);
}
