/* test_client_plan.c -- the plan of a client's turns in split learning, as its server makes it. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "epsilon.h"
#include "log_capture.h"
#include "plan_epsilon.h"
#include "plan_kit.h"

static const char manifest[] = "model: {blocks: 6, channels: 64, heads: 4, context: 32, tied: untied}\n"
                               "data: {train: text.txt}\n"
                               "train: {T: 32, batch: 8, micro_batch: 2}\n"
                               "pipeline: {stages: 3}\n";

/* What a client's machine has is no matter of the server's. */
static void test_fits_leaves_out_the_stages_of_a_client(void **state)
{
    (void)state;
    static const char *const sets[] = {
        "pipeline.stages=[{layers: 0-2, dials: true}, {layers: 3-4}, {layers: 5-7, dials: true}]",
        "split.clients=1",
        "split.client=a",
        "split.server='127.0.0.1:7000'",
        "security.keys=keys",
        NULL};
    struct aq_job *job;
    struct aq_plan *plan = plan_kit_plan(manifest, sets, &job);
    const uint64_t middle = plan->stages[1].memory_bytes;
    assert_true(plan->stages[0].memory_bytes > middle);
    assert_int_equal(aq_plan_fits(plan, middle), AQ_OK);
    capture_begin();
    assert_int_equal(aq_plan_fits(plan, middle - 1), AQ_NOMEM);
    capture_end();
    assert_true(captured_has(" on stage 1: "));
    plan_kit_done(plan, job);
}

/* Each turn at once has a middle stage of its own on the server. */
static void test_fits_counts_the_turns_at_once(void **state)
{
    (void)state;
    static const char *const modes[2][2] = {{"split.mode=splitfed1", "split.parallel=3"},
                                            {"split.mode=global", "split.clients=3"}};
    for (int m = 0; m < 2; m++) {
        const char *const sets[] = {
            "pipeline.stages=[{layers: 0-2, dials: true}, {layers: 3-4}, {layers: 5-7, dials: true}]",
            "split.clients=1",
            "split.client=a",
            "split.server='127.0.0.1:7000'",
            "security.keys=keys",
            modes[m][0],
            modes[m][1],
            NULL};
        struct aq_job *job;
        struct aq_plan *plan = plan_kit_plan(manifest, sets, &job);
        const uint64_t middle = plan->stages[1].memory_bytes;
        assert_int_equal(aq_plan_fits(plan, 3 * middle), AQ_OK);
        capture_begin();
        assert_int_equal(aq_plan_fits(plan, 3 * middle - 1), AQ_NOMEM);
        capture_end();
        assert_true(captured_has("3 turns at once"));
        assert_true(captured_has(m == 0 ? "a smaller split.parallel" : "split.mode: splitfed1"));
        capture_begin();
        assert_int_equal(aq_plan_fits(plan, middle - 1), AQ_NOMEM);
        capture_end();
        assert_true(captured_has(" on stage 1: "));
        plan_kit_done(plan, job);
    }
}

static const char images[] = "model: {kind: pyramid, width: 8, levels: 4}\n"
                             "data: {kind: cifar10, train: none.bin, heldout: none.bin}\n"
                             "train: {batch: 20, micro_batch: 10, epochs: 6, evaluate_every: 2 steps}\n"
                             "edges: {forward: {codec: aqsgd, bits: 4}, backward: {codec: directq, bits: 8}}\n"
                             "pipeline: {stages: 3}\n";

static struct aq_plan *plan_with(const char *stages, const char *more, struct aq_job **job)
{
    const char *const sets[] = {stages,
                                more,
                                "split.clients=1",
                                "split.client=a",
                                "split.rounds=3",
                                "split.epochs=2",
                                "split.server='127.0.0.1:7000'",
                                "security.keys=keys",
                                "split.privacy.clip=1",
                                "split.privacy.noise=4",
                                "split.privacy.gradient_clip=1",
                                "split.privacy.gradient_noise=2",
                                "facts.vocabulary=10",
                                "facts.train_samples=60",
                                "facts.train_digest=7",
                                "facts.heldout_samples=40",
                                "facts.heldout_digest=8",
                                NULL};
    return plan_kit_plan(images, sets, job);
}

static const char plain[] =
    "pipeline.stages=[{layers: 0-1, dials: true}, {layers: 2-11}, {layers: 12-13, dials: true}]";

/* Worked by hand: three steps in an epoch, six in a turn. Evaluations after steps 2, 4, 6, and again with the codec. */
static void test_epsilon_counts_visits_and_passes(void **state)
{
    (void)state;
    struct aq_plan_epsilon_job job_epsilon;
    struct aq_job *job;
    struct aq_plan *plan = plan_with(plain, "split.collect=false", &job);
    assert_true(aq_plan_epsilon_counts(plan));
    assert_true(aq_plan_epsilon_visit(plan, false, true, 10) == 0.25 &&
                aq_plan_epsilon_visit(plan, true, true, 10) == 1);
    assert_true(aq_plan_epsilon_visit(plan, false, false, 10) == 0.25 &&
                aq_plan_epsilon_visit(plan, true, false, 10) == 0);
    assert_int_equal(aq_plan_epsilon_passes(plan, 0, 6, false), 4);
    assert_int_equal(aq_plan_epsilon_passes(plan, 4, 6, false), 2); /* resumed */
    assert_int_equal(aq_plan_epsilon_passes(plan, 0, 3, false), 1); /* a turn that ends between two evaluations */
    assert_int_equal(aq_plan_epsilon_passes(plan, 0, 3, true), 3);  /* and the run with it */
    assert_int_equal(aq_plan_epsilon_passes(plan, 6, 6, true), 0);
    aq_plan_epsilon_job(plan, &job_epsilon);
    assert_int_equal(job_epsilon.visits, 6);
    assert_int_equal(job_epsilon.passes, 12);
    assert_true(job_epsilon.training == aq_epsilon(sqrt(7.5), (double)job->split.privacy.delta));
    assert_true(job_epsilon.heldout == aq_epsilon(sqrt(3), (double)job->split.privacy.delta));
    assert_true(job_epsilon.stops == 0 && job_epsilon.ends_leave);
    assert_true(isinf(aq_plan_epsilon_most(plan)));
    plan_kit_done(plan, job);
    plan = plan_with(plain, "split.privacy.epsilon_max=10", &job); /* one round: mu^2 2.5, two: 5 */
    aq_plan_epsilon_job(plan, &job_epsilon);
    assert_int_equal(job_epsilon.stops, 2);
    plan_kit_done(plan, job);
}

/* Samples of one file that are trained on and held out cross in both: the plan counts both, as the client's ledger. */
static void test_epsilon_of_one_file_counts_its_passes(void **state)
{
    (void)state;
    struct aq_plan_epsilon_job found;
    struct aq_job *job;
    struct aq_plan *plan = plan_with(plain, "split.collect=false", &job);
    assert_int_equal(aq_plan_epsilon_shared(plan), 0);
    plan->facts.heldout_digest = plan->facts.train_digest;
    assert_int_equal(aq_plan_epsilon_shared(plan), 40);
    aq_plan_epsilon_job(plan, &found);
    assert_int_equal(found.passes, 12);
    assert_true(found.training == aq_epsilon(sqrt(7.5 + 3), (double)job->split.privacy.delta));
    assert_true(found.heldout == found.training);
    plan->facts.heldout_samples = 80; /* more than are trained on */
    assert_int_equal(aq_plan_epsilon_shared(plan), 60);
    plan_kit_done(plan, job);
}

/* A batch norm in the client's stage, and only there: a sample moves its whole micro-batch, but not when held out. */
static void test_a_batch_norm_multiplies_visits(void **state)
{
    (void)state;
    struct aq_job *job;
    struct aq_plan *plan =
        plan_with("pipeline.stages=[{layers: 0-2, dials: true}, {layers: 3-11}, {layers: 12-13, dials: true}]",
                  "split.pad=false", &job);
    assert_true(aq_plan_epsilon_visit(plan, false, true, 10) == 2.5 &&
                aq_plan_epsilon_visit(plan, false, true, 7) == 1.75);
    assert_true(aq_plan_epsilon_visit(plan, false, false, 10) == 0.25 &&
                aq_plan_epsilon_visit(plan, true, true, 10) == 1);
    plan_kit_done(plan, job);
    plan = plan_with("pipeline.stages=[{layers: 0-1, dials: true}, {layers: 2-10}, {layers: 11-13, dials: true}]",
                     "split.pad=false", &job);
    assert_true(aq_plan_epsilon_visit(plan, false, true, 10) == 0.25 &&
                aq_plan_epsilon_visit(plan, true, true, 10) == 10);
    plan_kit_done(plan, job);
}

/* Blocks of other lengths are other samples of one text; an image is the same one in each job. */
static void test_a_ledger_is_of_samples(void **state)
{
    (void)state;
    static const char *const ways[][3] = {{"train.T=32", "facts.train_digest=7", "facts.heldout_digest=8"},
                                          {"train.T=16", "facts.train_digest=7", "facts.heldout_digest=8"},
                                          {"train.T=16", "facts.train_digest=8", "facts.heldout_digest=7"}};
    uint64_t names[3][2];
    struct aq_job *job;
    for (int i = 0; i < 3; i++) {
        const char *const sets[] = {ways[i][0],
                                    ways[i][1],
                                    ways[i][2],
                                    "data.heldout=text.txt",
                                    "facts.vocabulary=256",
                                    "facts.train_samples=60",
                                    "facts.heldout_samples=40",
                                    NULL};
        struct aq_plan *plan = plan_kit_plan(manifest, sets, &job);
        names[i][0] = aq_plan_epsilon_data(plan, false);
        names[i][1] = aq_plan_epsilon_data(plan, true);
        plan_kit_done(plan, job);
    }
    assert_true(names[0][0] != names[0][1] && names[0][0] != names[1][0] && names[0][1] != names[1][1]);
    assert_true(names[2][0] == names[1][1] && names[2][1] == names[1][0]);
    struct aq_plan *plan = plan_with(plain, "split.pad=false", &job);
    assert_true(aq_plan_epsilon_data(plan, false) == 7 && aq_plan_epsilon_data(plan, true) == 8);
    plan_kit_done(plan, job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_fits_leaves_out_the_stages_of_a_client),
                                       cmocka_unit_test(test_fits_counts_the_turns_at_once),
                                       cmocka_unit_test(test_a_ledger_is_of_samples),
                                       cmocka_unit_test(test_epsilon_counts_visits_and_passes),
                                       cmocka_unit_test(test_epsilon_of_one_file_counts_its_passes),
                                       cmocka_unit_test(test_a_batch_norm_multiplies_visits)};
    return cmocka_run_group_tests(tests, plan_kit_setup, plan_kit_teardown);
}
