/*
 * test_visit_reserve.c -- the part of a worker that counts visits before values leave: a step is counted at once, each
 * visit serves one micro-batch once, and whatever is sent, in whatever order, the ledger has at least that.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "edge.h"
#include "log_capture.h"
#include "plan_epsilon.h"
#include "plan_kit.h"
#include "remove_tree.h"
#include "stages/dataset.h"
#include "visit_ledger.h"
#include "worker_parts.h"

enum { TRAINED = 57, HELDOUT = 25, BATCH = 40, B = 10, SKIP = 3 };
static const char images[] = "model: {kind: pyramid, width: 8, levels: 4}\n"
                             "data: {kind: cifar10, train: none.bin, heldout: none.bin, skip: 3}\n"
                             "train: {batch: 40, micro_batch: 10, epochs: 6}\n"
                             "pipeline: {stages: 3}\n";

/* A client's stage with its part, and the ledgers as another process sees them. */
struct stand {
    char folder[64];
    struct aq_job *job;
    struct aq_plan *plan;
    struct aq_sampler *sampler;
    struct aq_part_worker worker;
    struct aq_cut_host host;
    struct aq_values values;
    void *part;
    struct aq_ledger *ledgers[2]; /* training samples, held-out ones */
    uint64_t ids[B];
};

static void tell(struct stand *stand, enum aq_part_moment moment, struct aq_part_args args)
{
    assert_int_equal(aq_part_privacy.on(stand->part, moment, &args), AQ_OK);
}

static void stand_open(struct stand *stand, uint32_t rank, const char *limit)
{
    const char *const sets[] = {
        "pipeline.stages=[{layers: 0-2, dials: true}, {layers: 3-10}, {layers: 11-13, dials: true}]",
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
        "facts.train_samples=57",
        "facts.train_digest=7",
        "facts.heldout_samples=25",
        "facts.heldout_digest=8",
        limit,
        NULL};
    struct aq_job *job;
    struct aq_plan *plan = plan_kit_plan(images, sets, &job);
    *stand = (struct stand){.plan = plan, .job = job};
    snprintf(stand->folder, sizeof stand->folder, "/tmp/aqpipe-reserve-XXXXXX");
    assert_non_null(mkdtemp(stand->folder));
    const struct aq_job_train *train = &stand->job->train;
    assert_int_equal(aq_sampler_open(TRAINED, BATCH, train->seed, train->shuffle, &stand->sampler), AQ_OK);
    stand->worker.sampler = stand->sampler;
    const struct aq_edge_shape *shape = &stand->plan->edges[rank ? rank - 1 : 0].shape;
    stand->host.bytes = (uint64_t)B * shape->rows * shape->columns * sizeof(float);
    stand->values.at = calloc(1, stand->host.bytes);
    stand->part = calloc(1, aq_part_privacy.bytes);
    assert_non_null(stand->part);
    for (int heldout = 0; heldout < 2; heldout++) {
        const uint64_t digest = aq_plan_epsilon_data(stand->plan, heldout);
        assert_int_equal(aq_ledger_make(stand->folder, digest), AQ_OK);
        assert_int_equal(
            aq_ledger_open(stand->folder, digest, heldout ? HELDOUT : SKIP + TRAINED, &stand->ledgers[heldout]), AQ_OK);
    }
    json_t *start = json_pack("{s:s}", "ledger", stand->folder);
    assert_int_equal(aq_part_privacy.open(stand->part, stand->plan, rank), AQ_OK);
    tell(stand, AQ_PART_START, (struct aq_part_args){.message = start});
    tell(stand, AQ_PART_JOINED, (struct aq_part_args){.worker = &stand->worker});
    json_decref(start);
}

static void stand_close(struct stand *stand)
{
    aq_part_privacy.close(stand->part);
    free(stand->part);
    free(stand->values.at);
    for (int i = 0; i < 2; i++)
        aq_ledger_close(stand->ledgers[i]);
    aq_sampler_close(stand->sampler);
    plan_kit_done(stand->plan, stand->job);
    assert_int_equal(remove_tree(stand->folder), 0);
    assert_int_equal(aq_memory_used(), 0);
}

/* What is to cross the cut: a micro-batch, or (AQ_PART_REMADE) one sample of it. */
struct crossing {
    enum aq_part_samples kind;
    uint64_t step;
    uint32_t micro_batch;
    uint16_t flags;
};

/* How many samples it has, whose ids are in stand->ids. */
static uint32_t crossing_ids(struct stand *stand, const struct crossing *it)
{
    const bool heldout = it->kind == AQ_PART_HELDOUT;
    const uint32_t all = heldout ? HELDOUT : aq_sampler_size(stand->sampler, it->step), first = it->micro_batch * B;
    const uint32_t samples = all - first < B ? all - first : B;
    for (uint32_t i = 0; i < samples; i++)
        stand->ids[i] = heldout ? first + i : SKIP + aq_sampler_at(stand->sampler, it->step, first + i);
    return it->kind == AQ_PART_REMADE ? 1 : samples;
}

static enum aq_status cross(struct stand *stand, const struct crossing *it, bool gradients)
{
    const struct aq_edge_batch batch = {.step = it->step,
                                        .micro_batch = it->micro_batch,
                                        .samples = crossing_ids(stand, it),
                                        .sample_ids = stand->ids,
                                        .flags = it->flags};
    const bool trains = it->kind == AQ_PART_TRAINED;
    const struct aq_part_cut cut = {.edge = &stand->plan->edges[gradients],
                                    .batch = &batch,
                                    .values = &stand->values,
                                    .host = &stand->host,
                                    .kind = it->kind,
                                    .trains = trains,
                                    .step_samples = trains ? aq_sampler_size(stand->sampler, it->step) : 0,
                                    .loss_factor = 1};
    struct aq_part_args args = {.cut = &cut};
    return aq_part_privacy.on(stand->part, gradients ? AQ_PART_CUT_GRADIENT_BACK : AQ_PART_CUT_OUTPUT, &args);
}

static struct aq_ledger *on_disk(struct stand *stand, bool heldout)
{
    assert_int_equal(aq_ledger_follow(stand->ledgers[heldout]), AQ_OK);
    return stand->ledgers[heldout];
}

/* Two steps of 40 and 17 samples, and an evaluation, by rank 0 and rank 2: each sample once, a record per step and size
 * of a micro-batch, all of it on disk before the first micro-batch leaves. */
static void test_a_step_is_counted_once_and_before_it_is_sent(void **state)
{
    (void)state;
    for (uint32_t rank = 0; rank < 3; rank += 2) {
        struct stand stand;
        stand_open(&stand, rank, "split.collect=false");
        const double visit = aq_plan_epsilon_visit(stand.plan, rank > 0, true, B);
        const double shorter = aq_plan_epsilon_visit(stand.plan, rank > 0, true, TRAINED % B);
        assert_true(visit > shorter); /* a batch norm */
        for (uint64_t step = 0; step < 2; step++) {
            const uint32_t samples = aq_sampler_size(stand.sampler, step);
            for (uint32_t m = 0; m * B < samples; m++) {
                const uint32_t at = rank ? (samples - 1) / B - m : m; /* any order */
                assert_int_equal(cross(&stand, &(struct crossing){AQ_PART_TRAINED, step, at, 0}, rank > 0), AQ_OK);
                if (step == 0) assert_int_equal(aq_ledger_visited(on_disk(&stand, false)), BATCH);
                if (step == 0) assert_int_equal(aq_ledger_place(stand.ledgers[0]).records, 1);
            }
        }
        assert_int_equal(aq_ledger_place(on_disk(&stand, false)).records, 3);
        for (uint32_t i = 0; i < TRAINED; i++) {
            const bool is_last = i >= TRAINED / B * B;
            const uint64_t sample = SKIP + aq_sampler_at(stand.sampler, i / BATCH, i % BATCH);
            assert_true(aq_ledger_sum(stand.ledgers[0], sample) == (is_last ? shorter : visit));
        }
        for (uint16_t pass = 0; rank == 0 && pass < 2; pass++) /* the last evaluation, and again with its codec */
            for (uint32_t m = 0; m * B < HELDOUT; m++)
                assert_int_equal(
                    cross(&stand, &(struct crossing){AQ_PART_HELDOUT, 2, m, pass ? AQ_EDGE_CODED : 0}, false), AQ_OK);
        if (rank == 0) assert_int_equal(aq_ledger_place(on_disk(&stand, true)).records, 4);
        for (uint32_t i = 0; rank == 0 && i < HELDOUT; i++)
            assert_true(aq_ledger_sum(stand.ledgers[1], i) == 2 * aq_plan_epsilon_visit(stand.plan, false, false, 1));
        stand_close(&stand);
    }
}

/* Micro-batches that are sent again, steps that begin again, lost messages and evaluations in any order: the ledger has
 * what was sent, or more. */
static void test_whatever_is_sent_is_counted(void **state)
{
    (void)state;
    static uint32_t sent[2][SKIP + TRAINED];
    uint64_t draw = 7;
    struct stand stand;
    stand_open(&stand, 0, "split.collect=false");
    for (int i = 0; i < 3; i++) { /* one micro-batch again and again */
        struct crossing it = {.kind = AQ_PART_TRAINED, .micro_batch = 1};
        assert_int_equal(cross(&stand, &it, false), AQ_OK);
        assert_true(aq_ledger_sum(on_disk(&stand, false), stand.ids[0]) ==
                    (i + 1) * aq_plan_epsilon_visit(stand.plan, false, true, B));
    }
    for (int i = 0; i < 500; i++) {
        draw = draw * 6364136223846793005 + 1442695040888963407;
        const uint32_t number = (uint32_t)(draw >> 33);
        struct crossing it = {.kind = (enum aq_part_samples[]){AQ_PART_TRAINED, AQ_PART_TRAINED, AQ_PART_HELDOUT,
                                                               AQ_PART_REMADE}[number % 4],
                              .step = number / 4 % 3,
                              .flags = 0};
        const bool heldout = it.kind == AQ_PART_HELDOUT;
        if (heldout && number / 64 % 2) it.flags = AQ_EDGE_CODED;
        const uint32_t all = heldout ? HELDOUT : aq_sampler_size(stand.sampler, it.step);
        it.micro_batch = number / 128 % ((all + B - 1) / B);
        assert_int_equal(cross(&stand, &it, false), AQ_OK);
        for (uint32_t k = 0; k < crossing_ids(&stand, &it); k++)
            sent[heldout][stand.ids[k]]++;
    }
    for (int heldout = 0; heldout < 2; heldout++)
        for (uint32_t i = 0; i < (heldout ? HELDOUT : SKIP + TRAINED); i++) {
            const double least = aq_plan_epsilon_visit(stand.plan, false, false, 1); /* of a micro-batch it is more */
            assert_true(aq_ledger_sum(on_disk(&stand, heldout), i) >= sent[heldout][i] * least);
        }
    stand_close(&stand);
}

/* One sample of the step has no room for another visit: no micro-batch of that step leaves. */
static void test_a_step_with_a_sample_at_its_limit_sends_nothing(void **state)
{
    (void)state;
    struct stand stand;
    stand_open(&stand, 0, "split.privacy.epsilon_max=60");
    struct crossing it = {.kind = AQ_PART_TRAINED};
    const double most = aq_plan_epsilon_most(stand.plan);
    const uint64_t sample = SKIP + aq_sampler_at(stand.sampler, 0, BATCH - 1); /* in the step's last micro-batch */
    assert_int_equal(aq_ledger_add(stand.ledgers[0], &(struct aq_ledger_batch){AQ_LEDGER_ACTIVATIONS, &sample, 1,
                                                                               most * 0.99, (double)INFINITY}),
                     AQ_OK);
    capture_begin();
    for (uint32_t m = 0; m < BATCH / B; m++) {
        it.micro_batch = m;
        assert_int_equal(cross(&stand, &it, false), AQ_REFUSED);
    }
    capture_end();
    assert_true(captured_has("so nothing of it is sent"));
    assert_int_equal(aq_ledger_place(on_disk(&stand, false)).records, 1);
    it = (struct crossing){.kind = AQ_PART_TRAINED, .step = 1};
    assert_int_equal(cross(&stand, &it, false), AQ_OK);
    stand_close(&stand);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_step_is_counted_once_and_before_it_is_sent),
        cmocka_unit_test(test_whatever_is_sent_is_counted),
        cmocka_unit_test(test_a_step_with_a_sample_at_its_limit_sends_nothing),
    };
    return cmocka_run_group_tests(tests, plan_kit_setup, plan_kit_teardown);
}
