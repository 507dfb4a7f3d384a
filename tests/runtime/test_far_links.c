/*
 * test_far_links.c -- what a manifest and a plan say of links over QUIC, and of neighbours that meet at a relay.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "plan_kit.h"
#include "security.h"

static const char manifest[] = "model: {blocks: 6, channels: 64, heads: 4, context: 32}\n"
                               "data: {train: text.txt}\n"
                               "train: {T: 32, batch: 8, micro_batch: 2}\n"
                               "pipeline: {stages: 3}\n";

#if AQ_QUIC
static uint64_t line_of(const struct aq_plan_stage *stage, const char *name)
{
    for (uint32_t i = 0; i < stage->line_count; i++)
        if (strcmp(stage->lines[i].name, name) == 0) return stage->lines[i].bytes;
    return 0;
}

/* Pieces that may be lost, of each link: to the stages beside it, and to the other replicas. */
static void test_plan_counts_the_memory_of_quic(void **state)
{
    static const char *const sets[] = {"link.protocol=quic", "pipeline.replicas=2", NULL};
    static const char *const none[] = {"pipeline.replicas=2", NULL};
    struct aq_job *job, *tcp_job;
    (void)state;
    struct aq_plan *plan = plan_kit_plan(manifest, sets, &job), *tcp = plan_kit_plan(manifest, none, &tcp_job);
    const uint64_t each = aq_link_measure_stream("tls+quic://");
    assert_true(each > 11000000 && aq_link_measure_stream("tcp://") == 0);
    for (uint32_t s = 0; s < plan->stage_count; s++) {
        const uint64_t links = (s == 0 || s + 1 == plan->stage_count ? 1 : 2) + 1;
        assert_int_equal(line_of(&plan->stages[s], "link streams"), links * each);
        assert_int_equal(plan->stages[s].memory_bytes, tcp->stages[s].memory_bytes + links * each);
    }
    plan_kit_done(plan, job);
    plan_kit_done(tcp, tcp_job);
}
#endif

#define DIALS(a, b, c)                                                                                                 \
    "pipeline.stages=[{layers: 0-2, dials: " a "}, {layers: 3-4, dials: " b "}, {layers: 5-7, dials: " c "}]"
#define RELAY "link.relay=relay.example:7900"

static void refused(const char *const *sets, uint32_t count, const char *words)
{
    struct aq_job *job;
    aq_error_clear();
    assert_int_equal(aq_job_parse(manifest, strlen(manifest), "job.yaml", plan_kit_folder, sets, count, &job),
                     AQ_INVAL);
    if (!strstr(aq_error_text(), words)) fail_msg("no \"%s\" in: %s", words, aq_error_text());
}

static void test_a_relay_needs_an_address_keys_and_tcp(void **state)
{
    static const struct {
        const char *sets[3], *words;
    } CASES[] = {
        {{"link.relay=relay.example"}, "link.relay: 'relay.example' is not an address"},
        {{"link.relay=relay.example:0"}, "link.relay: 'relay.example:0' is not the host:port of a relay"},
        {{"link.relay=name@relay.example:7"}, "is not the host:port of a relay"},
        {{"link.relay='*:7900'"}, "is not the host:port of a relay"},
        {{RELAY}, "link.relay: needs security.keys"},
        {{RELAY, "security.tls=on"}, "link.relay: needs security.keys"},
        {{RELAY, "security.tls=off", "security.keys=keys"}, "link.relay: needs security.keys"},
        {{DIALS("true", "true", "false")}, "or name a relay (link.relay: host:port)"},
#if AQ_QUIC
        {{RELAY, "security.keys=keys", "link.protocol=quic"}, "a relay carries TCP only"},
#endif
    };
    (void)state;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        uint32_t count = 0;
        while (count < 3 && CASES[i].sets[count])
            count++;
        refused(CASES[i].sets, count, CASES[i].words);
    }
}

/* Only neighbours that both dial meet there, and then the job is not of this machine alone. */
static void test_who_meets_at_the_relay(void **state)
{
    static const char *const two[] = {DIALS("true", "true", "false"), RELAY, "security.keys=keys", NULL};
    static const char *const none[] = {DIALS("true", "false", "true"), RELAY, "security.keys=keys", NULL};
    static const char *const replicas[] = {DIALS("true", "false", "true"), "pipeline.replicas=2", RELAY,
                                           "security.keys=keys", NULL};
    struct aq_job *job = plan_kit_job(manifest, two);
    (void)state;
    assert_true(aq_job_relayed(job, 0, 1) && aq_job_relayed(job, 1, 0));
    assert_false(aq_job_relayed(job, 1, 2) || aq_job_relayed(job, 0, 2));
    assert_int_equal(aq_job_listener(job, 0, 1), 0);
    assert_true(aq_job_listens(job, 0) && !aq_job_listens(job, 1) && aq_job_listens(job, 2));
    assert_string_equal(aq_security_outside(job), "relay.example:7900");
    aq_job_close(job);
    job = plan_kit_job(manifest, none);
    assert_false(aq_job_relayed(job, 0, 1) || aq_job_relayed(job, 1, 2));
    assert_null(aq_security_outside(job));
    aq_job_close(job);
    job = plan_kit_job(manifest, replicas);
    assert_true(aq_job_relayed(job, 0, 3) && !aq_job_relayed(job, 1, 4) && aq_job_relayed(job, 2, 5));
    aq_job_close(job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#if AQ_QUIC
        cmocka_unit_test(test_plan_counts_the_memory_of_quic),
#endif
        cmocka_unit_test(test_a_relay_needs_an_address_keys_and_tcp),
        cmocka_unit_test(test_who_meets_at_the_relay),
    };
    return cmocka_run_group_tests(tests, plan_kit_setup, plan_kit_teardown);
}
