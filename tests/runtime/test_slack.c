/*
 * test_slack.c -- bits that cost no time: where links have room cuts get them, elsewhere not; and what is said, taken,
 * has the step that was said.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "bits_auto.h"
#include "edge.h"
#include "advice.h"

static const char manifest[] = "model: {blocks: 6, channels: 64, heads: 4, context: 32, vocabulary: 256, tied: false}\n"
                               "data: {train: nowhere.txt}\n"
                               "train: {T: 32, batch: 8, micro_batch: 2, clip: 1, epochs: 3}\n"
                               "pipeline: {stages: 4}\n"
                               "edges: {forward: {codec: aqsgd, bits: 4}, backward: {codec: directq, bits: 8}}\n"
                               "facts: {vocabulary: 256, train_samples: 160, train_digest: 1, heldout_samples: 0}\n";

/* With the sets given up to NULL. */
static struct aq_plan *plan_of(const char *const *sets, struct aq_job **job)
{
    struct aq_plan *plan = NULL;
    uint32_t count = 0;
    while (sets[count])
        count++;
    assert_int_equal(aq_job_parse(manifest, sizeof manifest - 1, "job.yaml", "/", sets, count, job), AQ_OK);
    assert_int_equal(aq_plan_open(*job, &plan), AQ_OK);
    return plan;
}

static struct aq_plan_prediction predict(const struct aq_plan *plan, const struct aq_plan_costs *costs)
{
    struct aq_plan_prediction prediction;
    assert_int_equal(aq_plan_predict(plan, costs, &prediction), AQ_OK);
    return prediction;
}

/* The slack of a job; what it says is taken as it is, and the step is as long as it was told. */
static struct aq_plan_slack slack_of(const char *rate, double forward_s, const char *more)
{
    const char *sets[] = {rate, more, NULL, NULL};
    struct aq_plan_costs costs;
    struct aq_plan_slack slack;
    struct aq_text text = {0};
    struct aq_job *job;
    struct aq_plan *plan = plan_of(sets, &job);
    aq_plan_costs_assumed(plan, 1e6, 4, &costs);
    for (uint32_t s = 0; s < plan->stage_count; s++) {
        costs.forward_s[s] = forward_s;
        aq_plan_costs_backward(plan, s, 2 * forward_s, &costs);
    }
    assert_int_equal(aq_plan_slack(plan, &costs, &slack), AQ_OK);
    assert_true(slack.before_s == predict(plan, &costs).step_s && slack.step_s <= 1.01 * slack.before_s);
    aq_plan_slack_text(plan, &slack, &text);
    aq_plan_close(plan);
    aq_job_close(job);
    sets[more ? 2 : 1] = aq_text_of(&text);
    plan = plan_of(sets, &job);
    assert_true(predict(plan, &costs).step_s == slack.step_s);
    for (uint32_t e = 0; e + 1 < plan->stage_count; e++) {
        assert_int_equal(job->edges[e].forward.bits, slack.forward[e].bits);
        assert_int_equal(job->edges[e].backward.bits, slack.backward[e].bits);
        assert_true(job->edges[e].forward.rate == slack.forward[e].rate);
    }
    aq_plan_close(plan);
    aq_job_close(job);
    aq_text_deinit(&text);
    return slack;
}

static void test_slack_gives_bits_where_links_have_room(void **state)
{
    (void)state;
    const struct aq_plan_slack narrow = slack_of("link.rate_mbps=10", 1e-5, NULL);
    assert_int_equal(narrow.raised, 0); /* the links are the step */
    const struct aq_plan_slack wide = slack_of("link.rate_mbps=1000", 0.05, NULL);
    assert_int_equal(wide.raised, 3); /* backward has 8 already */
    for (int e = 0; e < 3; e++)
        assert_true(wide.forward[e].bits == 8 && wide.backward[e].bits == 8);
    const struct aq_plan_slack coded = slack_of("link.rate_mbps=1000", 0.05, "edges.forward={codec: ec, rate: 2}");
    assert_true(coded.raised == 3 && coded.forward[2].rate == 8.0f);
    const struct aq_plan_slack even =
        slack_of("link.rate_mbps=1000", 0.05, "edges.forward={codec: ec, rate: 2, error: 0.05}");
    assert_int_equal(even.raised, 0); /* the rate decides nothing */
    const struct aq_plan_slack raw = slack_of("link.rate_mbps=1000", 0.05, "edges.forward={codec: raw}");
    assert_int_equal(raw.raised, 0);
    uint32_t last = 0;
    static const char *const rates[] = {"link.rate_mbps=20", "link.rate_mbps=60", "link.rate_mbps=200"};
    for (size_t i = 0; i < 3; i++) {
        const struct aq_plan_slack some = slack_of(rates[i], 4e-3, "edges.forward={codec: aqsgd, bits: 2}");
        uint32_t bits = 0;
        for (int e = 0; e < 3; e++)
            bits += some.forward[e].bits;
        assert_true(bits >= last);
        last = bits;
    }
    assert_true(last > 6);
}

/* By levels: none where links are the step, the highest where they idle, and with them taken the step is as told. */
static void test_levels_are_what_links_have_room_for(void **state)
{
    (void)state;
    static const char *const rates[] = {"link.rate_mbps=10", "link.rate_mbps=60", "link.rate_mbps=1000"};
    uint32_t sums[3] = {0};
    for (int i = 0; i < 3; i++) {
        const char *sets[] = {rates[i], "edges.bits=auto", "edges.forward={codec: aqsgd, bits: 2}",
                              "edges.backward={codec: directq, bits: 4}", NULL};
        struct aq_plan_costs costs;
        struct aq_plan_levels levels;
        struct aq_job *job;
        struct aq_plan *plan = plan_of(sets, &job);
        aq_plan_costs_assumed(plan, 1e6, 4, &costs);
        for (uint32_t s = 0; s < plan->stage_count; s++) {
            costs.forward_s[s] = i == 0 ? 1e-5 : 4e-3;
            aq_plan_costs_backward(plan, s, 2 * costs.forward_s[s], &costs);
        }
        assert_int_equal(aq_plan_levels(plan, &costs, &levels), AQ_OK);
        assert_true(levels.before_s == predict(plan, &costs).step_s && levels.step_s <= 1.01 * levels.before_s);
        for (uint32_t w = 0; w < 6; w++) {
            assert_true(levels.of[w] < 4 && plan->edges[w / 2].shape.level_lists);
            sums[i] += levels.of[w];
        }
        aq_plan_close(plan);
        aq_job_close(job);
    }
    assert_true(sums[0] == 0 && sums[0] <= sums[1] && sums[1] <= sums[2] && sums[2] == 18);
}

/* A rank's line of a step: what it computed, and of what came from the stages beside it the bytes in a second. */
static void step_say(struct aq_bits *bits, uint32_t rank, json_int_t in_bytes, json_int_t out_bytes)
{
    const json_int_t second = 1000000000;
    json_t *line = json_pack("{s:I, s:I}", "compute_ns", 64 * second / 1000, "codec_ns", second / 1000000);
    if (in_bytes > 0) json_object_set_new(line, "in_link_bytes", json_integer(in_bytes));
    if (in_bytes > 0) json_object_set_new(line, "in_link_ns", json_integer(second));
    if (out_bytes > 0) json_object_set_new(line, "out_link_bytes", json_integer(out_bytes));
    if (out_bytes > 0) json_object_set_new(line, "out_link_ns", json_integer(second));
    aq_bits_step(bits, rank, line);
    json_decref(line);
}

/* Edge 1 is slow in the one direction; the others are not. */
static void epoch_say(struct aq_bits *bits, json_int_t slow)
{
    const json_int_t quick = 125000000;
    step_say(bits, 0, 0, quick);
    step_say(bits, 1, quick, quick);
    step_say(bits, 2, slow, quick);
    step_say(bits, 3, quick, 0);
}

static void levels_are(struct aq_bits *bits, uint64_t epoch, uint32_t slow_edge, uint32_t others)
{
    uint32_t levels[2 * AQ_JOB_STAGES_MAX];
    assert_int_equal(aq_bits_decide(bits, epoch, levels), AQ_OK);
    for (uint32_t w = 0; w < 6; w++)
        assert_int_equal(levels[w], w / 2 == 1 ? slow_edge : others);
}

/* No rate is declared: the first epoch has the manifest's bits, later ones go by what each link was seen to carry, and
 * what was decided stays so for who goes on. */
static void test_levels_go_by_what_links_were_seen_to_carry(void **state)
{
    (void)state;
    const char *sets[] = {"edges.bits=auto", "edges.forward={codec: aqsgd, bits: 2}",
                          "edges.backward={codec: directq, bits: 4}", NULL};
    char run[] = "/tmp/aqpipe-slack-XXXXXX", path[64];
    struct aq_bits *bits;
    struct aq_job *job;
    struct aq_plan *plan = plan_of(sets, &job);
    assert_non_null(mkdtemp(run));
    assert_int_equal(aq_bits_open(plan, run, false, &bits), AQ_OK);
    levels_are(bits, 0, 0, 0);
    levels_are(bits, 1, 0, 0); /* nobody has measured */
    epoch_say(bits, 25000);
    levels_are(bits, 2, 0, 3);
    levels_are(bits, 3, 0, 3); /* nobody has, again */
    epoch_say(bits, 0);       /* nothing came over one direction */
    levels_are(bits, 4, 0, 3);
    epoch_say(bits, 125000000);
    levels_are(bits, 5, 3, 3);
    aq_bits_close(bits);
    assert_int_equal(aq_bits_open(plan, run, true, &bits), AQ_OK);
    epoch_say(bits, 125000000);
    levels_are(bits, 2, 0, 3);
    levels_are(bits, 0, 0, 0);
    aq_bits_close(bits);
    snprintf(path, sizeof path, "%s/bits.json", run);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(run), 0);
    aq_plan_close(plan);
    aq_job_close(job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_levels_go_by_what_links_were_seen_to_carry),
                                       cmocka_unit_test(test_slack_gives_bits_where_links_have_room),
                                       cmocka_unit_test(test_levels_are_what_links_have_room_for)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
