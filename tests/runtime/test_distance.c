/*
 * test_distance.c -- round trips in a plan: steps worked out by hand, what is chosen where the manifest says auto, and
 * what is said of it.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "advice.h"
#include "plan_private.h"

enum { SETS_MAX = 8 };

static const char manifest[] = "model: {blocks: 6, channels: 64, heads: 4, context: 32, tied: false}\n"
                               "data: {train: gone.txt}\n"
                               "train: {T: 32, batch: 8, micro_batch: 2, clip: 1, epochs: 3}\n"
                               "pipeline: {stages: 4}\n"
                               "edges: {forward: {codec: aqsgd, bits: 4}, backward: {codec: directq, bits: 8}}\n"
                               "link: {rate_mbps: 100}\n"
                               "facts: {vocabulary: 256, train_samples: 512, train_digest: 1}\n"; /* no file is read */

/* With the sets given up to NULL. */
static struct aq_plan *plan_of(const char *const *sets, struct aq_job **job)
{
    struct aq_plan *plan = NULL;
    uint32_t count = 0;
    while (sets && sets[count])
        count++;
    assert_int_equal(aq_job_parse(manifest, sizeof manifest - 1, "job.yaml", "/", sets, count, job), AQ_OK);
    assert_int_equal(aq_plan_open(*job, &plan), AQ_OK);
    return plan;
}

static void done(struct aq_plan *plan, struct aq_job *job)
{
    aq_plan_close(plan);
    aq_job_close(job);
}

/* A second each for a forward and a backward, nothing for all else, and links without time. */
static struct aq_plan_costs unit_costs(const struct aq_plan *plan)
{
    struct aq_plan_costs costs = {.origin = "test", .cores = 16};
    for (uint32_t s = 0; s < plan->stage_count; s++) {
        costs.forward_s[s] = costs.backward_s[s] = 1;
        costs.threads[s] = 1;
        costs.forward_share[s] = costs.backward_share[s] = 1;
    }
    return costs;
}

static struct aq_plan_prediction predict(const struct aq_plan *plan, const struct aq_plan_costs *costs)
{
    struct aq_plan_prediction prediction;
    assert_int_equal(aq_plan_predict(plan, costs, &prediction), AQ_OK);
    assert_true(prediction.step_s >= prediction.bound_s * (1 - 1e-9));
    return prediction;
}

static bool near(double a, double b)
{
    return a > b * (1 - 1e-9) && a < b * (1 + 1e-9);
}

static double far_step(const char *const *sets, double latency_s)
{
    struct aq_job *job;
    struct aq_plan *plan = plan_of(sets, &job);
    struct aq_plan_costs costs = unit_costs(plan);
    for (uint32_t e = 0; e + 1 < plan->stage_count; e++)
        costs.latency_s[e] = latency_s;
    const double step_s = predict(plan, &costs).step_s;
    done(plan, job);
    return step_s;
}

/*
 * A forward and a backward take 1 s, a frame no time on the wire and 5 s on its way. Of two stages the second has the
 * first frame at 6.
 * All in flight: 2 (M + P - 1) of work and a round trip for each link, once.
 * One at a time: each of two micro-batches 4 s of work and a round trip: 28.
 * 1f1b with three of four: the fourth forward, at 14, comes after the first gradient, and its own is done at 28.
 * One credit: the second forward goes at 11 when the first one's credit is back, is there at 16 and computed at 18; its
 * gradient may go then (the first one's was taken at 13, its credit is back at 18), is there at 23: 24. One send buffer
 * that is kept until its frame is acknowledged: the same. One that is free when its frame has left: no wait.
 * Staleness, one micro-batch: two steps in the 14 s of one, where a second is in flight; else as without.
 */
static void test_predict_distance_by_hand(void **state)
{
    (void)state;
    static const struct {
        const char *sets[SETS_MAX];
        double seconds;
    } cases[] = {
        {{"pipeline.stages=2", "train.batch=2", "pipeline.schedule=gpipe"}, 2 * 2 + 10},
        {{"pipeline.stages=2", "train.batch=4", "pipeline.schedule=gpipe"}, 2 * 3 + 10},
        {{"pipeline.stages=2", "train.batch=8", "pipeline.schedule=gpipe"}, 2 * 5 + 10},
        {{"pipeline.stages=4", "train.batch=8", "pipeline.schedule=gpipe"}, 2 * 7 + 30},
        {{"pipeline.stages=2", "train.batch=4", "pipeline.in_flight=1"}, 28},
        {{"pipeline.stages=2", "train.batch=8", "pipeline.in_flight=default"}, 28},
        {{"pipeline.stages=2", "train.batch=4", "pipeline.schedule=gpipe", "link.receive_slots=1"}, 24},
        {{"pipeline.stages=2", "train.batch=4", "pipeline.schedule=gpipe", "link.receive_slots=2"}, 16},
        {{"pipeline.stages=2", "train.batch=8", "pipeline.schedule=gpipe", "link.receive_slots=4"}, 20},
        {{"pipeline.stages=2", "train.batch=4", "pipeline.schedule=gpipe", "link.send_frames=1"}, 24},
        {{"pipeline.stages=2", "train.batch=4", "pipeline.schedule=gpipe", "link.send_frames=1", "link.outage_max=0"},
         16},
        {{"pipeline.stages=2", "train.batch=2", "pipeline.schedule=gpipe", "train.staleness=1"}, 7},
        {{"pipeline.stages=2", "train.batch=2", "pipeline.in_flight=1", "train.staleness=1"}, 14},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const double seconds = far_step(cases[i].sets, 5);
        if (!near(seconds, cases[i].seconds)) fail_msg("case %zu: %g s, by hand %g s", i, seconds, cases[i].seconds);
    }
}

/*
 * Three stages and micro-batches, frames of 1 s, nothing else takes time. Frames A, B, C leave stage 0 at 0, 1, 2, and
 * A's way down both cuts and up the second is 0-1, 1-2, 2-3. On lines of their own B and C are one and two behind: the
 * step takes 6. A client's line carries C up beside A's gradient from 2 to 4, and C down beside A's gradient from 4 to
 * 6; B's gradient goes up 4-5 and down 6-7, C's 6-7 and 7-8: the step takes 8, and its bound is 6 frames up.
 */
static struct aq_plan *split_plan(const char *batch, const char *more, const char *and, const char *last,
                                  struct aq_job **job)
{
    const char *const sets[] = {
        batch,
        more,
        and,
        "pipeline.stages=[{layers: 0-2, dials: true}, {layers: 3-4}, {layers: 5-7, dials: true}]",
        "split.clients=1",
        "split.server='127.0.0.1:7000'",
        "security.keys=keys",
        last,
        NULL};
    return plan_of(sets, job);
}

/* Every frame takes a second on a line of its own, and nothing else takes time but the way. */
static struct aq_plan_costs second_frames(const struct aq_plan *plan, double latency_s)
{
    struct aq_plan_costs costs = {.origin = "test", .cores = 16, .threads = {1, 1, 1}, .rate_mbps = 1e6};
    for (uint32_t e = 0; e < 2; e++) { /* above 1: frames of a share below would take time to pack */
        const double second = 1e12 / 8 * plan->micro_batches;
        costs.forward_share[e] = second / (double)plan->edges[e].step_forward_warm;
        costs.backward_share[e] = second / (double)plan->edges[e].step_backward;
        costs.latency_s[e] = latency_s;
    }
    costs.forward_share[2] = costs.backward_share[2] = 1;
    return costs;
}

static void test_predict_a_shared_line_by_hand(void **state)
{
    (void)state;
    static const char *const own[] = {"train.batch=6", "pipeline.in_flight=3", "link.outage_max=0", "pipeline.stages=3",
                                      NULL};
    for (int shared = 0; shared < 2; shared++) {
        struct aq_job *job;
        struct aq_plan *plan = shared ? split_plan(own[0], own[1], own[2], NULL, &job) : plan_of(own, &job);
        const struct aq_plan_costs costs = second_frames(plan, 0);
        const struct aq_plan_prediction found = predict(plan, &costs);
        assert_int_equal(plan->micro_batches, 3);
        if (!near(found.step_s, shared ? 8 : 6)) fail_msg("shared %d: %g s", shared, found.step_s);
        assert_true(near(found.bound_s, shared ? 6 : 3));
        assert_string_equal(found.binds, shared ? "the client's line up" : "link 0-1 forward");
        done(plan, job);
    }
}

/* A line is busy from a step's begin on: 16 micro-batches are 32 frames up, and a round trip of 10 s remains. */
static void test_bound_of_a_shared_line_has_one_round_trip(void **state)
{
    (void)state;
    struct aq_job *job;
    struct aq_plan *plan = split_plan("train.batch=32", "pipeline.in_flight=16", "pipeline.schedule=1f1b", NULL, &job);
    const struct aq_plan_costs costs = second_frames(plan, 5);
    const struct aq_plan_prediction found = predict(plan, &costs);
    assert_true(near(found.bound_s, 42));
    assert_string_equal(found.binds, "the client's line up and a round trip");
    assert_true(found.step_s < 52); /* both round trips, and the line idle in one of them */
    done(plan, job);
}

/* The least count whose step is within a twentieth of the fastest: what is more fills the line's queue. */
static void test_a_shared_line_has_few_micro_batches_in_flight(void **state)
{
    (void)state;
    static const enum aq_schedule_kind kinds[] = {AQ_SCHEDULE_1F1B, AQ_SCHEDULE_GPIPE};
    struct aq_job *job;
    struct aq_plan *plan = split_plan("train.batch=64", "link.rate_mbps=1", "link.rtt_ms=80", "link.entropy=off", &job);
    struct aq_plan_costs costs;
    double least = HUGE_VAL, chosen, fewer;
    aq_plan_costs_common(plan, 1, &costs);
    for (int k = 0; k < 2; k++)
        for (uint32_t f = 3; f <= 32; f++) {
            const struct aq_schedule_request request = aq_plan_flight_request(plan, 32, kinds[k], f);
            double seconds;
            assert_int_equal(aq_plan_flight_seconds(plan, &costs, &request, false, &seconds), AQ_OK);
            least = fmin(least, seconds);
        }
    struct aq_schedule_request request = aq_plan_flight_request(plan, 32, plan->schedule, plan->in_flight);
    assert_int_equal(aq_plan_flight_seconds(plan, &costs, &request, false, &chosen), AQ_OK);
    request.in_flight--;
    assert_int_equal(aq_plan_flight_seconds(plan, &costs, &request, false, &fewer), AQ_OK);
    assert_true(plan->in_flight < 16 && chosen <= 1.05 * least && fewer > 1.05 * least);
    const uint32_t unpacked = plan->in_flight;
    done(plan, job);
    plan = split_plan("train.batch=64", "link.rate_mbps=1", "link.rtt_ms=80", NULL, &job);
    assert_true(plan->in_flight > unpacked && plan->in_flight < 16); /* frames that links pack are smaller */
    done(plan, job);
}

/* Replicas meet once: a round trip to average, on which they agree; half of one more for PowerSGD. */
static void test_predict_distance_of_replicas(void **state)
{
    (void)state;
    for (int factors = 0; factors < 2; factors++) {
        const char *const sets[] = {"pipeline.stages=1", "pipeline.replicas=2",
                                    factors ? "reduce.codec=powersgd" : "reduce.codec=fp32", NULL};
        struct aq_job *job;
        struct aq_plan *plan = plan_of(sets, &job);
        struct aq_plan_costs costs = unit_costs(plan);
        costs.group_latency_s = 5;
        assert_true(near(predict(plan, &costs).step_s, 2 * plan->micro_batches + 10 + 5 * factors));
        done(plan, job);
    }
}

/*
 * That one of c connections loses so much that a frame of so many packets waits: without sums the only one, with them
 * the second worst, of the packets that its part of the frame and of the sums has.
 */
static double waits_by_hand(double lost, double packets, uint32_t connections)
{
    if (connections == 1) return 1 - pow(1 - lost, packets);
    const double group = connections - 1 < 4 ? connections - 1 : 4, each = packets * (1 + 1 / group) / connections;
    const double none = pow(1 - lost, each * connections);
    return 1 - none - connections * (1 - pow(1 - lost, each)) * pow(1 - lost, each * (connections - 1));
}

/* Frames are late by round trips as often as they should be by hand; other edges and ways by other lots. */
static void test_loss_by_lot_is_as_often_as_it_should_be(void **state)
{
    (void)state;
    enum { FRAMES = 40000 };
    static const struct {
        double loss, packets;
        uint32_t connections;
        const char *sets[3];
    } cases[] = {{0.001, 20, 1, {"link.copies=off"}}, {0.01, 1, 1, {"link.copies=off"}},
                 {0.05, 40, 1, {"link.streams=1"}},   {0.3, 3, 1, {"link.copies=off"}},
                 {0.01, 40, 5, {"link.copies=auto"}}, {0.05, 20, 2, {"link.streams=2"}},
                 {0.01, 60, 8, {"link.streams=8"}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct aq_job *job;
        struct aq_plan *plan = plan_of(cases[i].sets, &job);
        struct aq_plan_costs costs = {.latency_s = {0.5, 0.5}, .loss = {cases[i].loss, cases[i].loss}};
        const double bytes = cases[i].packets * AQ_WIRE_SEGMENT_BYTES;
        double sum = 0, wanted = 0;
        uint32_t differ = 0;
        for (uint64_t f = 0; f < FRAMES; f++) {
            const double late = aq_plan_lost_s(plan, &costs, 0, true, bytes, f);
            sum += late;
            differ += late != aq_plan_lost_s(plan, &costs, 0, false, bytes, f);
            assert_true(late == aq_plan_lost_s(plan, &costs, 0, true, bytes, f) && fmod(late, 1) == 0);
        }
        for (double lost = cases[i].loss; lost > 1e-12; lost *= cases[i].loss)
            wanted += waits_by_hand(lost, cases[i].packets, cases[i].connections);
        if (fabs(sum / FRAMES - wanted) > 0.1 * wanted) fail_msg("case %zu: %g, not %g", i, sum / FRAMES, wanted);
        assert_true(differ > 0);
        costs.loss[0] = 0;
        assert_true(aq_plan_lost_s(plan, &costs, 0, true, bytes, 1) == 0);
        done(plan, job);
    }
}

/* One micro-batch, two stages: a step is its work, a round trip, and what its two frames are late. The mean of 64. */
static void test_predict_loss_by_hand(void **state)
{
    (void)state;
    static const char *const sets[] = {"pipeline.stages=2", "train.batch=2", "pipeline.schedule=gpipe",
                                       "link.copies=off", NULL};
    struct aq_job *job;
    struct aq_plan *plan = plan_of(sets, &job);
    struct aq_plan_costs costs = unit_costs(plan);
    double late = 0;
    costs.latency_s[0] = 5;
    costs.loss[0] = 0.05;
    for (uint64_t step = 2; step < 66; step++)
        late += aq_plan_lost_s(plan, &costs, 0, true, (double)plan->edges[0].step_forward_warm, step) +
                aq_plan_lost_s(plan, &costs, 0, false, (double)plan->edges[0].step_backward, step);
    assert_true(late > 0);
    const double seconds = predict(plan, &costs).step_s;
    if (fabs(seconds - (14 + late / 64)) > 1e-6) fail_msg("%g s, by hand %g s", seconds, 14 + late / 64);
    done(plan, job);
}

/* Packets of 1448 bytes, 80 ms, one in a thousand: Reno has 38.6 of them on their way, CUBIC the same or more. */
static void test_loss_bounds_the_windows_of_reno_and_cubic(void **state)
{
    (void)state;
    static const struct {
        const char *sets[SETS_MAX];
        double mbps;
    } cases[] = {
        {{"link.congestion=reno", "link.streams=1"}, 1.22 / 0.0316227766 * 1448 * 8 / 0.08 * 1e-6},
        {{"link.congestion=reno", "link.streams=4"}, 4 * 1.22 / 0.0316227766 * 1448 * 8 / 0.08 * 1e-6},
        {{"link.congestion=reno"}, 16 * 1.22 / 0.0316227766 * 1448 * 8 / 0.08 * 1e-6},
        {{"link.congestion=reno", "link.rate_mbps=0", "link.streams=2"},
         2 * 1.22 / 0.0316227766 * 1448 * 8 / 0.08 * 1e-6},
        {{"link.congestion=cubic", "link.streams=1", "link.rtt_ms=1000"}, 1.054 * 177.827941 * 1448 * 8 / 1 * 1e-6},
        {{"link.congestion=cubic", "link.streams=1"}, 1.22 / 0.0316227766 * 1448 * 8 / 0.08 * 1e-6},
        {{"link.congestion=reno", "link.rate_mbps=3"}, 3},
        {{"link.congestion=bbr", "link.streams=1"}, 100},
        {{"link.streams=1"}, 100},
        {{"link.copies=auto"}, 80}, /* sums take a fifth of it */
        {{"link.copies=auto", "link.streams=2"}, 50},
        {{"link.copies=auto", "link.streams=1"}, 100},
        {{"link.copies=auto", "link.congestion=reno"}, 0.8 * 16 * 1.22 / 0.0316227766 * 1448 * 8 / 0.08 * 1e-6},
        {{"link.congestion=reno", "link.loss=0"}, 100},
        {{"link.congestion=reno", "link.rtt_ms=0"}, 100},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *sets[SETS_MAX] = {"link.rtt_ms=80", "link.loss=0.001", "link.copies=off"};
        struct aq_job *job;
        struct aq_plan_costs costs;
        for (uint32_t k = 0; k + 4 < SETS_MAX && cases[i].sets[k]; k++)
            sets[3 + k] = cases[i].sets[k];
        struct aq_plan *plan = plan_of(sets, &job);
        aq_plan_costs_assumed(plan, 100, 4, &costs);
        const double mbps = aq_plan_lossy_rate(plan, &costs, 1);
        if (fabs(mbps - cases[i].mbps) > 1e-4 * mbps) fail_msg("case %zu: %g, not %g Mbit/s", i, mbps, cases[i].mbps);
        done(plan, job);
    }
}

/* An edge has its own loss, a worker is told it, and a step takes longer by it. */
static void test_loss_of_an_edge_is_said_and_costs(void **state)
{
    (void)state;
    static const char *const kept[] = {"link.rtt_ms=80", NULL}, *const lossy[] = {"link.rtt_ms=80", "link.copies=off",
                                                                                  "edges.list=[{edge: 1, loss: 0.01}]",
                                                                                  NULL};
    struct aq_job *job, *whole, *told;
    struct aq_plan *plan = plan_of(lossy, &job), *other = plan_of(kept, &whole);
    struct aq_plan_costs costs, none;
    struct aq_plan_distance distance;
    char *text;
    assert_true(near((double)job->edges[1].loss, (double)0.01F) && !(job->edges[0].loss > 0));
    assert_int_equal(aq_plan_manifest(plan, &text), AQ_OK);
    assert_int_equal(aq_job_parse(text, strlen(text), "worker", "/", NULL, 0, &told), AQ_OK);
    assert_true(told->edges[1].loss == job->edges[1].loss);
    aq_job_close(told);
    aq_free(text);
    aq_plan_costs_assumed(plan, 100, 4, &costs);
    aq_plan_costs_assumed(other, 100, 4, &none);
    assert_true(predict(plan, &costs).step_s > 1.02 * predict(other, &none).step_s);
    assert_int_equal(aq_plan_distance(plan, &costs, &distance), AQ_OK);
    assert_true(distance.loss_share > 0.02 && distance.loss_share < 0.9);
    assert_int_equal(aq_plan_distance(other, &none, &distance), AQ_OK);
    assert_true(distance.loss_share == 0);
    done(other, whole);
    done(plan, job);
}

/* A far plan: all micro-batches in flight where memory is no matter, and windows that hold them. */
static void test_distance_decides_what_is_automatic(void **state)
{
    (void)state;
    static const char *const far[] = {"link.rtt_ms=80", NULL},
                             *const one[] = {"edges.list=[{edge: 2, rtt_ms: 80}]", NULL},
                             *const gpipe[] = {"pipeline.schedule=gpipe", "pipeline.in_flight=default", NULL},
                             *const classic[] = {"link.rtt_ms=80", "pipeline.in_flight=classic", NULL},
                             *const many[] = {"link.rtt_ms=80", "train.batch=64", "link.rate_mbps=0", "cache.window=0",
                                              NULL};
    struct aq_job *job, *job_far;
    struct aq_plan *plan = plan_of(NULL, &job), *plan_far = plan_of(far, &job_far);
    assert_int_equal(plan->schedule, AQ_SCHEDULE_1F1B);
    assert_int_equal(plan->in_flight, AQ_IN_FLIGHT_DEFAULT);
    assert_int_equal(plan->edges[2].window.receive_slots, 4);
    assert_int_equal(plan_far->schedule, AQ_SCHEDULE_GPIPE);
    assert_true(plan_far->hash != plan->hash); /* ranks must agree on it */
    assert_true(plan_far->resume_hash == plan->resume_hash && plan_far->rank_hash == plan->rank_hash); /* bits do not */
    done(plan, job);
    plan = plan_of(gpipe, &job); /* as if it had been said */
    assert_true(plan_far->hash == plan->hash);
    done(plan, job);
    done(plan_far, job_far);
    plan = plan_of(one, &job);
    assert_true(near(job->edges[2].rtt_ms, 80) && !(job->edges[1].rtt_ms > 0));
    assert_int_equal(plan->schedule, AQ_SCHEDULE_GPIPE);
    done(plan, job);
    plan = plan_of(classic, &job); /* what is said is done */
    assert_int_equal(plan->schedule, AQ_SCHEDULE_1F1B);
    assert_int_equal(plan->stages[0].program.slots, 4);
    done(plan, job);
    plan = plan_of(many, &job);
    for (uint32_t e = 0; e < 3; e++) {
        assert_true(plan->edges[e].window.receive_slots >= plan->stages[e].program.slots);
        assert_true(plan->edges[e].window.send_frames > plan->stages[e].program.slots);
    }
    assert_true(plan->stages[0].program.slots > 16);
    done(plan, job);
}

/*
 * A lost cache is fetched by as many messages at once as fill a round trip, each in a send buffer, half of which they
 * have, and with a credit of its own; so the time of 1,000 messages is that of their bytes, and one round trip more.
 */
static void test_distance_decides_how_many_lost_messages_are_on_their_way(void **state)
{
    (void)state;
    static const struct {
        const char *sets[SETS_MAX];
        double rtt_s, mbps;
        uint32_t window; /* that is said; AQ_WINDOW_AUTO */
    } cases[] = {
        {{NULL}, 0, 100, AQ_WINDOW_AUTO},
        {{"link.rtt_ms=80"}, 80e-3, 100, AQ_WINDOW_AUTO},
        {{"link.rtt_ms=20"}, 20e-3, 100, AQ_WINDOW_AUTO},
        {{"link.rtt_ms=80", "model.channels=256", "train.T=256", "model.context=256"}, 80e-3, 100, AQ_WINDOW_AUTO},
        {{"link.rtt_ms=200", "link.rate_mbps=10"}, 200e-3, 10, AQ_WINDOW_AUTO},
        {{"link.rtt_ms=40", "link.rate_mbps=0"}, 40e-3, 200, AQ_WINDOW_AUTO},
        {{"link.rtt_ms=80", "cache.window=3"}, 80e-3, 100, 3},
        {{"cache.window=0"}, 0, 100, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct aq_job *job;
        struct aq_plan *plan = plan_of(cases[i].sets, &job);
        const struct aq_plan_edge *edge = &plan->edges[1];
        const uint32_t said = cases[i].window, B = job->train.micro_batch;
        const double message = (double)aq_wire_bytes(edge->size.message_bytes, false), rate = cases[i].mbps * 1e6 / 8;
        const double at_once = edge->window.send_frames / 2.0, trip = rate * cases[i].rtt_s;
        assert_true(edge->size.message_bytes > 0);
        assert_true(plan->stages[1].program.window <= plan->ahead);
        if (said != AQ_WINDOW_AUTO) assert_int_equal(plan->ahead, said);
        if (said == AQ_WINDOW_AUTO && !(trip > 0)) assert_int_equal(plan->ahead, 4);
        if (said != AQ_WINDOW_AUTO || !(trip > 0)) { /* no more than for a near link */
            assert_true(edge->window.send_frames <= (trip > 0 ? 255 : 8 + plan->stages[1].program.slots));
        } else {
            const double seconds = 1000 * message / rate; /* of 1,000 of them, alone */
            assert_true(at_once * message >= trip || edge->window.send_frames == 256);
            assert_true(1000 / at_once * cases[i].rtt_s <= 1.2 * seconds || edge->window.send_frames == 256);
            assert_true(edge->window.receive_slots >= trip / message || edge->window.receive_slots == 252);
            assert_true(plan->ahead >= 4 && (plan->ahead == plan->micro_batches || plan->ahead * B * message >= trip));
            assert_true(plan->stages[1].cache.slots >= B * plan->ahead);
        }
        done(plan, job);
    }
}

/* What a worker is sent has the choices in it: it makes none of its own. */
static void test_distance_travels_with_the_manifest(void **state)
{
    (void)state;
    static const char *const far[] = {"edges.list=[{edge: 2, rtt_ms: 80.5}]", NULL};
    struct aq_job *job, *again;
    struct aq_plan *plan = plan_of(far, &job), *second;
    char *text;
    assert_int_equal(aq_plan_manifest(plan, &text), AQ_OK);
    assert_non_null(strstr(text, "schedule: gpipe"));
    assert_int_equal(aq_job_parse(text, strlen(text), "manifest", "/", NULL, 0, &again), AQ_OK);
    assert_true(near(again->edges[2].rtt_ms, 80.5) && !(again->edges[1].rtt_ms > 0));
    assert_int_equal(aq_plan_open(again, &second), AQ_OK);
    assert_true(second->hash == plan->hash);
    for (uint32_t e = 0; e < 3; e++)
        assert_memory_equal(&second->edges[e].window, &plan->edges[e].window, sizeof plan->edges[e].window);
    done(second, again);
    done(plan, job);
    aq_free(text);
}

/* 6 s of 14 are three round trips of 2 s; with four times the micro-batches they are 6 of 38. */
static void test_distance_says_what_it_costs_and_what_helps(void **state)
{
    (void)state;
    static const char *const sets[] = {"link.rtt_ms=2000", "link.rate_mbps=0", NULL}, *const poor[] = {
                                                                                          "link.rtt_ms=2000",
                                                                                          "link.rate_mbps=0",
                                                                                          "pipeline.in_flight=1", NULL};
    struct aq_job *job;
    struct aq_plan *plan = plan_of(sets, &job);
    struct aq_plan_costs costs = unit_costs(plan);
    struct aq_plan_distance distance;
    for (uint32_t e = 0; e < 3; e++)
        costs.latency_s[e] = 1;
    assert_int_equal(aq_plan_distance(plan, &costs, &distance), AQ_OK);
    assert_true(near(distance.share, 6.0 / 20));
    assert_int_equal(distance.help_count, 2);
    assert_string_equal(distance.helps[0].change, "train.staleness 1");
    assert_true(distance.helps[0].step_s >= 10 && distance.helps[0].step_s <= 12); /* two in 20 s, or a little more */
    assert_string_equal(distance.helps[1].change, "train.batch 32");
    assert_true(near(distance.helps[1].share, 6.0 / 44));
    assert_true(near(distance.helps[1].step_s, 44));
    done(plan, job);
    plan = plan_of(poor, &job);
    assert_int_equal(aq_plan_distance(plan, &costs, &distance), AQ_OK);
    assert_int_equal(distance.help_count, 2);
    assert_string_equal(distance.helps[0].change, "auto in pipeline and link");
    assert_true(near(distance.helps[0].step_s, 20));
    done(plan, job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_predict_distance_by_hand),
        cmocka_unit_test(test_predict_a_shared_line_by_hand),
        cmocka_unit_test(test_bound_of_a_shared_line_has_one_round_trip),
        cmocka_unit_test(test_a_shared_line_has_few_micro_batches_in_flight),
        cmocka_unit_test(test_loss_by_lot_is_as_often_as_it_should_be),
        cmocka_unit_test(test_predict_loss_by_hand),
        cmocka_unit_test(test_loss_bounds_the_windows_of_reno_and_cubic),
        cmocka_unit_test(test_loss_of_an_edge_is_said_and_costs),
        cmocka_unit_test(test_predict_distance_of_replicas),
        cmocka_unit_test(test_distance_decides_what_is_automatic),
        cmocka_unit_test(test_distance_decides_how_many_lost_messages_are_on_their_way),
        cmocka_unit_test(test_distance_travels_with_the_manifest),
        cmocka_unit_test(test_distance_says_what_it_costs_and_what_helps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
