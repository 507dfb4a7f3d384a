/* test_client_plan.c -- the plan of a client's turns in split learning, as its server makes it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "log_capture.h"
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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_fits_leaves_out_the_stages_of_a_client)};
    return cmocka_run_group_tests(tests, plan_kit_setup, plan_kit_teardown);
}
