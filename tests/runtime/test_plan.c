/*
 * test_plan.c -- the plan: an even cut, sums that add up, bytes by hand, a hash that sees what matters and nothing
 * else, and a prediction that is exact where it can be worked out.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "edge.h"
#include "log_capture.h"
#include "plan_kit.h"

enum { SETS_MAX = 8 };

static const char manifest[] = "model: {blocks: 6, channels: 64, heads: 4, context: 32, tied: untied}\n"
                               "data: {train: text.txt, heldout: text.txt, heldout_samples_max: 10}\n"
                               "train: {T: 32, batch: 8, micro_batch: 2, clip: 1, epochs: 3}\n"
                               "pipeline: {stages: 4}\n"
                               "edges: {forward: {codec: aqsgd, bits: 4}, backward: {codec: directq, bits: 8}}\n"
                               "link: {rate_mbps: 100}\n";

static void test_plan_counts_samples_steps_and_micro_batches(void **state)
{
    (void)state;
    struct aq_job *job;
    struct aq_plan *plan = plan_kit_plan(manifest, NULL, &job);
    /* 5000 tokens in blocks of 33 that overlap by one: (5000 - 1) / 32 = 156. */
    assert_int_equal(plan->facts.train_samples, 156);
    assert_int_equal(plan->facts.heldout_samples, 10);
    assert_int_equal(plan->facts.vocabulary, 256);
    assert_int_equal(plan->model.vocabulary, 256);
    assert_int_equal(plan->steps_per_epoch, 20);
    assert_int_equal(plan->steps, 60);
    assert_int_equal(plan->samples_last, 4);
    assert_int_equal(plan->micro_batches, 4);
    assert_int_equal(plan->micro_batches_last, 2);
    assert_int_equal(plan->stages[0].program.micro_batches, 4);
    assert_int_equal(plan->stages[0].program_last.micro_batches, 2);
    plan_kit_done(plan, job);
    static const char *const sets[] = {"train.steps_max=7", NULL};
    plan = plan_kit_plan(manifest, sets, &job);
    assert_int_equal(plan->steps, 7);
    plan_kit_done(plan, job);
}

static double stage_flops(const struct aq_plan *plan, uint32_t first, uint32_t end)
{
    struct aq_stage_config config = plan->stages[0].config;
    struct aq_stage_size size;
    config.layer_first = first;
    config.layer_end = end;
    config.slots = 1;
    assert_int_equal(aq_stage_measure(&config, &size), AQ_OK);
    return size.flops_forward + size.flops_backward;
}

/* All cuts of 8 layers into 4 are few: none has a cheaper dearest stage. */
static void test_plan_automatic_cut_is_the_evenest(void **state)
{
    (void)state;
    struct aq_job *job;
    struct aq_plan *plan = plan_kit_plan(manifest, NULL, &job);
    double worst = 0;
    assert_int_equal(plan->stages[0].layer_first, 0);
    assert_int_equal(plan->stages[3].layer_end, plan->layers);
    for (uint32_t s = 0; s < 4; s++) {
        const double flops = stage_flops(plan, plan->stages[s].layer_first, plan->stages[s].layer_end);
        if (s > 0) assert_int_equal(plan->stages[s].layer_first, plan->stages[s - 1].layer_end);
        if (flops > worst) worst = flops;
    }
    for (uint32_t a = 1; a < 6; a++)
        for (uint32_t b = a + 1; b < 7; b++)
            for (uint32_t c = b + 1; c < 8; c++) {
                const uint32_t cuts[5] = {0, a, b, c, 8};
                double other = 0;
                for (int s = 0; s < 4; s++) {
                    const double flops = stage_flops(plan, cuts[s], cuts[s + 1]);
                    if (flops > other) other = flops;
                }
                assert_true(other >= worst * (1 - 1e-12));
            }
    plan_kit_done(plan, job);
}

static void test_plan_memory_is_the_sum_of_its_lines(void **state)
{
    (void)state;
    struct aq_job *job;
    struct aq_plan *plan = plan_kit_plan(manifest, NULL, &job);
    uint64_t parameters = 0;
    for (uint32_t s = 0; s < plan->stage_count; s++) {
        const struct aq_plan_stage *stage = &plan->stages[s];
        uint64_t sum = 0;
        for (uint32_t i = 0; i < stage->line_count; i++) {
            assert_true(stage->lines[i].bytes > 0);
            sum += stage->lines[i].bytes;
        }
        assert_int_equal(sum, stage->memory_bytes);
        assert_true(sum >= stage->size.parameters * 16); /* weights, gradients, two of AdamW */
        assert_int_equal(stage->config.slots, stage->program.slots);
        parameters += stage->size.parameters;
        const uint64_t sides = s == 0 || s == 3 ? 1 : 2, message = plan->edges[0].size.message_bytes;
        assert_int_equal(stage->cache_bytes, 2 * sides * 156 * message); /* two versions between marks */
        assert_int_equal(stage->cache.samples_max, sides * 156);
        assert_int_equal(stage->cache.value_bytes_max, message);
        assert_true(stage->cache.depth <= stage->cache.slots);
    }
    assert_int_equal(parameters, plan->parameters);
    plan_kit_done(plan, job);
}

static uint64_t line_of(const struct aq_plan_stage *stage, const char *name);

/* What is frozen costs its values and nothing else: no gradient, optimizer, reduction, weight gradient. */
static void test_plan_knows_what_is_frozen(void **state)
{
    (void)state;
    static const char *const some[] = {"train.freeze=embedding, blocks 0-1, h.2.mlp", "pipeline.replicas=2", NULL};
    static const char *const none[] = {"pipeline.replicas=2", NULL};
    struct aq_job *job, *whole_job;
    struct aq_plan *plan = plan_kit_plan(manifest, some, &job), *whole = plan_kit_plan(manifest, none, &whole_job);
    assert_true(plan->frozen > 0 && whole->frozen == 0);
    assert_int_equal(plan->parameters + plan->frozen, whole->parameters);
    assert_true(plan->hash != whole->hash && plan->resume_hash != whole->resume_hash);
    for (uint32_t s = 0; s < plan->stage_count; s++) {
        const struct aq_plan_stage *stage = &plan->stages[s];
        assert_int_equal(line_of(stage, "parameters"), stage->size.parameters * sizeof(float));
        assert_int_equal(line_of(stage, "gradients"), stage->size.parameters * sizeof(float));
        assert_int_equal(line_of(stage, "frozen"), stage->size.frozen * sizeof(float));
        assert_int_equal(line_of(stage, "optimizer") > 0, stage->size.parameters > 0);
        assert_int_equal(aq_plan_reduce_bytes(plan, s) > 0, stage->size.parameters > 0);
    }
    struct aq_text text = {0};
    assert_int_equal(aq_plan_differences(plan, whole, true, &text), AQ_OK);
    assert_non_null(strstr(aq_text_of(&text), "train.freeze: \"embedding, blocks 0-1, h.2.mlp\" there, none here"));
    aq_text_deinit(&text);
    plan_kit_done(plan, job);
    plan_kit_done(whole, whole_job);
    /* Backward ends where nothing before trains: a stage that is all frozen has none. */
    static const char *const first[] = {"train.freeze='*, !head'", "pipeline.stages=2", NULL};
    plan = plan_kit_plan(manifest, first, &job);
    assert_true(plan->stages[0].size.flops_backward == 0.0 && plan->stages[0].size.parameters == 0);
    assert_true(plan->stages[1].size.flops_backward > 0.0);
    plan_kit_done(plan, job);
    /* The automatic cut gives more of what costs less. */
    static const char *const cheap[] = {"pipeline.stages=2", "train.freeze=embedding, blocks 0-3", NULL};
    static const char *const dear[] = {"pipeline.stages=2", NULL};
    plan = plan_kit_plan(manifest, cheap, &job);
    whole = plan_kit_plan(manifest, dear, &whole_job);
    assert_true(plan->stages[1].layer_first > whole->stages[1].layer_first);
    plan_kit_done(plan, job);
    plan_kit_done(whole, whole_job);
}

static uint64_t line_of(const struct aq_plan_stage *stage, const char *name)
{
    for (uint32_t i = 0; i < stage->line_count; i++)
        if (strcmp(stage->lines[i].name, name) == 0) return stage->lines[i].bytes;
    return 0;
}

/* What a GPU holds beside the model, known where there is none; a CPU has nothing of it. */
static void test_plan_of_a_gpu_has_its_scratch_and_two_of_each_boundary(void **state)
{
    (void)state;
    static const char *const sets[] = {
        "pipeline.stages=[{layers: 0-2, device: cuda}, {layers: 3-5, device: cuda}, {layers: 6-7, device: cpu}]", NULL};
    struct aq_job *job;
    struct aq_plan *plan = plan_kit_plan(manifest, sets, &job);
    const uint64_t boundary = 2 * 32 * 64 * sizeof(float); /* a micro-batch at a cut */
    for (uint32_t s = 0; s < 3; s++) {
        const struct aq_plan_stage *stage = &plan->stages[s];
        const uint64_t cuts = s == 1 ? 2 : 1, gpu = s < 2;
        assert_int_equal(line_of(stage, "boundary"), 2 * cuts * boundary * (1 + gpu));
        assert_int_equal(line_of(stage, "edge kernels"), gpu * cuts * plan->edges[0].size.device_bytes);
        assert_int_equal(line_of(stage, "device scratch"), gpu * 2 * aq_device_stream_bytes());
        assert_true(stage->device_bytes < stage->memory_bytes);
    }
    const uint64_t message = plan->edges[0].size.message_bytes, raw = 32 * 64 * sizeof(float);
    assert_true(plan->edges[0].size.device_bytes > 2 * (message + 2 * raw)); /* both works, and the kernels' own */
    plan_kit_done(plan, job);
}

static void test_plan_bytes_of_raw_edges_by_hand(void **state)
{
    (void)state;
    static const char *const sets[] = {"edges.forward={codec: raw}", "edges.backward={codec: raw, precision: bf16}",
                                       NULL};
    struct aq_job *job;
    struct aq_plan *plan = plan_kit_plan(manifest, sets, &job);
    const struct aq_plan_edge *edge = &plan->edges[1];
    assert_int_equal(edge->size.forward_warm_bytes, 32 * 64 * 4);
    assert_int_equal(edge->size.forward_cold_bytes, 32 * 64 * 4);
    assert_int_equal(edge->size.backward_bytes, 32 * 64 * 2);
    assert_int_equal(edge->size.message_bytes, 0);
    /* 4 frames of 128 + 2 rows of 48 + 2 bodies; on the loopback device one packet of 66 carries it. The first has a
     * digest of what is decoded, of 8 and a gap. */
    assert_int_equal(edge->step_forward_warm, 4 * (128 + 96 + 2 * 8192 + 66) + 16);
    assert_int_equal(edge->step_backward, 4 * (128 + 96 + 2 * 4096 + 66) + 16);
    assert_true(edge->size.body_bytes_max >= 96 + 2 * 8192);
    assert_int_equal(plan->stages[1].cache.slots, 0);
    assert_int_equal(plan->stages[1].program.window, 0);
    assert_int_equal(plan->stages[1].link_in.rank, 1);
    assert_int_equal(plan->stages[1].link_in.peer_rank, 0);
    assert_int_equal(plan->stages[1].link_in.edge, 0);
    assert_int_equal(plan->stages[1].link_out.edge, 1);
    assert_int_equal(plan->stages[1].link_out.plan_hash, plan->hash);
    plan_kit_done(plan, job);
    static const char *const far[] = {"edges.forward={codec: raw}", "link.host=10.0.0.1", "security.tls=off", NULL};
    plan = plan_kit_plan(manifest, far, &job); /* 16608 bytes are 12 packets of 1448 */
    assert_int_equal(plan->edges[1].step_forward_warm, 4 * (16608 + 12 * 66) + 16);
    plan_kit_done(plan, job);
}

/* What a run may go on with is the same but for its extent; with another count of replicas, but for that, too. */
static void test_plan_resume_hash_leaves_out_the_extent(void **state)
{
    (void)state;
    static const char *const extents[] = {"train.epochs=4", "train.steps_max=7", "train.evaluate_every=5 steps",
                                          "checkpoint.every=0"};
    static const char *const others[] = {"train.lr=2e-4", "edges.warmup_epochs=1", "pipeline.replicas=2"};
    struct aq_job *job, *job_other;
    struct aq_plan *plan = plan_kit_plan(manifest, NULL, &job);
    for (size_t i = 0; i < 7; i++) {
        const char *const sets[] = {i < 4 ? extents[i] : others[i - 4], NULL};
        struct aq_plan *other = plan_kit_plan(manifest, sets, &job_other);
        assert_true(other->hash != plan->hash);
        assert_int_equal(other->rank_hash == plan->rank_hash, i < 4);
        assert_int_equal(other->resume_hash == plan->resume_hash, i < 4 || i == 6);
        struct aq_text text = {0};
        assert_int_equal(aq_plan_differences(plan, other, true, &text), AQ_OK);
        assert_int_equal(text.used == 0, i < 4 || i == 6);
        aq_text_deinit(&text);
        assert_int_equal(aq_plan_differences(plan, other, false, &text), AQ_OK);
        if (strncmp(aq_text_of(&text), sets[0], strcspn(sets[0], "=")) != 0)
            fail_msg("%s: %s", sets[0], aq_text_of(&text));
        aq_text_deinit(&text);
        plan_kit_done(other, job_other);
    }
    plan_kit_done(plan, job);
}

/* A run that goes on has what became of its initial weights: their file may be gone. */
static void test_plan_goes_on_without_the_weights_file(void **state)
{
    (void)state;
    static const char *const sets[] = {"model.weights=/nonexistent/w.safetensors", "facts.weights_digest=5", NULL};
    struct aq_job *job;
    struct aq_plan *plan = plan_kit_plan(manifest, sets, &job);
    assert_int_equal(plan->facts.weights_digest, 5);
    assert_int_equal(plan->facts.train_samples, 156);
    plan_kit_done(plan, job);
}

static uint64_t hash_of(const char *set, uint64_t *digest)
{
    const char *const sets[] = {set, NULL};
    struct aq_job *job;
    struct aq_plan *plan = plan_kit_plan(manifest, sets, &job);
    const uint64_t hash = aq_plan_hash(plan);
    *digest = plan->job_digest;
    plan_kit_done(plan, job);
    return hash;
}

static void test_plan_hash_sees_what_matters_and_nothing_else(void **state)
{
    (void)state;
    static const char *const same[] = {"pipeline.threads=3",  "output.path=/elsewhere", "link.rate_mbps=5",
                                       "cache.kind=memory",   "job.name=other",         "checkpoint.keep=9",
                                       "link.host=127.0.0.9", "security.tls=off"};
    static const char *const other[] = {"train.lr=2e-4",
                                        "train.seed=7",
                                        "edges.forward.bits=3",
                                        "edges.backward.bits=6",
                                        "train.batch=16",
                                        "train.micro_batch=1",
                                        "train.clip=0",
                                        "train.epochs=4",
                                        "pipeline.stages=3",
                                        "pipeline.schedule=gpipe",
                                        "train.shuffle=false",
                                        "data.skip=3",
                                        "edges.forward.scale=search",
                                        "model.precision=bf16",
                                        "model.logits=fp32",
                                        "pipeline.in_flight=classic"};
    uint64_t digest, digest_same;
    const uint64_t hash = hash_of("job.name=job", &digest);
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        assert_true(hash_of(same[i], &digest_same) == hash);
        assert_true(digest_same == digest);
    }
    for (size_t i = 0; i < sizeof other / sizeof *other; i++)
        if (hash_of(other[i], &digest_same) == hash) fail_msg("the hash does not see %s", other[i]);
    static const char *const narrow[] = {"model.precision=bf16", "model.residual=bf16", NULL};
    struct aq_job *job;
    struct aq_plan *plan = plan_kit_plan(manifest, narrow, &job);
    assert_true(aq_plan_hash(plan) != hash_of("model.precision=bf16", &digest_same));
    plan_kit_done(plan, job);
    /* A cache goes on through another learning rate, not through another cut or another store. */
    (void)hash_of("train.lr=2e-4", &digest_same);
    assert_true(digest_same == digest);
    (void)hash_of("pipeline.stages=3", &digest_same);
    assert_true(digest_same != digest);
    (void)hash_of("edges.forward.store=q8", &digest_same);
    assert_true(digest_same != digest);
}

/* What the launcher sends: the same plan, without the data at hand. */
static void test_plan_manifest_gives_the_same_hash_without_the_data(void **state)
{
    (void)state;
    static const char *const sets[] = {"data.train=gone.txt", NULL};
    struct aq_job *job, *again = NULL, *gone;
    struct aq_plan *plan = plan_kit_plan(manifest, NULL, &job), *second = NULL;
    char *text, from[128], to[128];
    assert_int_equal(aq_plan_manifest(plan, &text), AQ_OK);
    snprintf(from, sizeof from, "%s/text.txt", plan_kit_folder);
    snprintf(to, sizeof to, "%s/moved.txt", plan_kit_folder);
    assert_int_equal(rename(from, to), 0);
    assert_int_equal(aq_job_parse(text, strlen(text), "manifest", "/", NULL, 0, &again), AQ_OK);
    const enum aq_status status = aq_plan_open(again, &second);
    assert_int_equal(rename(to, from), 0);
    assert_int_equal(status, AQ_OK);
    assert_true(aq_plan_hash(second) == aq_plan_hash(plan));
    assert_true(second->job_digest == plan->job_digest);
    aq_free(text);
    plan_kit_done(second, again);
    plan_kit_done(plan, job);
    gone = plan_kit_job(manifest, sets);
    capture_begin();
    assert_int_equal(aq_plan_open(gone, &second), AQ_NOTFOUND);
    capture_end();
    assert_true(captured_has("--set: data.train: cannot read"));
    assert_true(captured_has("gone.txt"));
    aq_job_close(gone);
}

static void test_plan_refuses_what_cannot_be(void **state)
{
    (void)state;
    static const struct {
        const char *set, *words;
    } cases[] = {{"cache.slots=3", "--set: cache.slots: 3, but stage"},
                 {"cache.bytes_max=1MB", "--set: cache.bytes_max:"},
                 {"data.train=missing.txt", "cannot read"},
                 {"model.weights=missing.safetensors", "model.weights: cannot read"},
                 {"train.T=5000", "train.T"},
                 {"data.train=/dev/null", "--set: data.train: /dev/null is a device, pipe or socket, not a file"},
                 {"data.heldout=/tmp", "--set: data.heldout: /tmp is a folder, not a file"},
                 {"edges.forward={codec: ec, bits: 4}", "--set edges.forward: edges.forward.bits: bits with ec is not"},
                 {"data.skip=100000", ""}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *const sets[] = {cases[i].set, NULL};
        struct aq_job *job = NULL;
        struct aq_plan *plan = NULL;
        capture_begin();
        enum aq_status status = aq_job_parse(manifest, sizeof manifest - 1, "job.yaml", plan_kit_folder, sets, 1, &job);
        if (status == AQ_OK) status = aq_plan_open(job, &plan);
        capture_end();
        assert_int_not_equal(status, AQ_OK);
        assert_null(plan);
        assert_true(captured_has(cases[i].words));
        aq_job_close(job);
    }
}

/* --- prediction: cases that can be worked out by hand ----------------------------------------------------------- */

static struct aq_plan_costs unit_costs(const struct aq_plan *plan, uint32_t cores)
{
    struct aq_plan_costs costs = {.origin = "test", .cores = cores};
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

/* Measured times are not alike: two steps that overlap may take turns, and the last one be shorter than the bound. */
static struct aq_plan_prediction predict_measured(const struct aq_plan *plan, const struct aq_plan_costs *costs)
{
    struct aq_plan_prediction prediction;
    assert_int_equal(aq_plan_predict(plan, costs, &prediction), AQ_OK);
    assert_true(prediction.step_s >= prediction.bound_s / 2);
    return prediction;
}

static bool near(double a, double b)
{
    return a > b * (1 - 1e-9) && a < b * (1 + 1e-9);
}

static void test_predict_flushed_pipeline_is_exact(void **state)
{
    (void)state;
    static const char *const gpipe[] = {"pipeline.schedule=gpipe", NULL}, *const classic[] = {
                                                                              "pipeline.in_flight=classic", NULL};
    struct aq_job *job;
    struct aq_plan *plan = plan_kit_plan(manifest, gpipe, &job);
    struct aq_plan_costs costs = unit_costs(plan, 16);
    /* Clipping flushes: M + P - 1 forwards and as many backwards, 2 (4 + 4 - 1). */
    struct aq_plan_prediction prediction = predict(plan, &costs);
    assert_true(near(prediction.step_s, 14));
    assert_true(near(prediction.bound_s, 8));
    assert_non_null(strstr(prediction.binds, "compute"));
    costs.step_s[2] = 3; /* an update on one stage that all wait for through the next step's flush */
    assert_true(near(predict(plan, &costs).compute_s[2], 11));
    plan_kit_done(plan, job);
    plan = plan_kit_plan(manifest, classic, &job);
    costs = unit_costs(plan, 16);
    assert_true(near(predict(plan, &costs).step_s, 14));
    plan_kit_done(plan, job);
}

/* 8 micro-batches of 3 s, F + B, and (P - 1) of waiting: F + B, or where half of B fills them F + B - 2 W. */
static void test_predict_weight_halves_fill_the_bubble(void **state)
{
    (void)state;
    static const char *const whole[] = {"train.batch=16", NULL}, *const split[] = {"train.batch=16",
                                                                                   "pipeline.schedule=zb-h1", NULL};
    struct aq_job *job;
    struct aq_plan *plan = plan_kit_plan(manifest, whole, &job);
    struct aq_plan_costs costs = unit_costs(plan, 16);
    for (uint32_t s = 0; s < 4; s++)
        costs.backward_s[s] = 2;
    assert_true(near(predict(plan, &costs).step_s, 33));
    plan_kit_done(plan, job);
    plan = plan_kit_plan(manifest, split, &job);
    costs = unit_costs(plan, 16);
    for (uint32_t s = 0; s < 4; s++)
        costs.weights_s[s] = 1;
    const struct aq_plan_prediction prediction = predict(plan, &costs);
    struct aq_plan_schedules by;
    assert_true(near(prediction.step_s, 27));
    assert_int_equal(aq_plan_schedules(plan, &costs, &by), AQ_OK); /* what the split plan is alike to, and what not */
    assert_int_equal(by.count, 3);
    for (uint32_t i = 0; i < by.count; i++)
        assert_true(near(by.of[i].step_s, strcmp(by.of[i].name, "zb-h1") == 0 ? 27 : 33));
    assert_true(near(prediction.bound_s, 24));
    assert_true(near(prediction.compute_s[2], 24));
    plan_kit_done(plan, job);
}

static void test_predict_shared_core_does_all_the_work(void **state)
{
    (void)state;
    struct aq_job *job;
    struct aq_plan *plan = plan_kit_plan(manifest, NULL, &job);
    struct aq_plan_costs costs = unit_costs(plan, 1);
    const struct aq_plan_prediction prediction = predict(plan, &costs);
    assert_true(near(prediction.step_s, 32)); /* 4 stages x 4 micro-batches x 2 s on one core that never idles */
    assert_true(near(prediction.bound_s, 32));
    assert_non_null(strstr(prediction.binds, "cores of this machine"));
    plan_kit_done(plan, job);
}

static void test_predict_slow_link_binds(void **state)
{
    (void)state;
    static const char *const sets[] = {"edges.forward={codec: raw}", "train.batch=64", NULL};
    struct aq_job *job;
    struct aq_plan *plan = plan_kit_plan(manifest, sets, &job);
    struct aq_plan_costs costs = unit_costs(plan, 16);
    for (uint32_t s = 0; s < 4; s++)
        costs.forward_s[s] = costs.backward_s[s] = 1e-6;
    costs.rate_mbps = (double)plan->edges[0].step_forward_warm / plan->micro_batches * 8e-6; /* a frame a second */
    const struct aq_plan_prediction prediction = predict(plan, &costs);
    assert_true(near(prediction.bound_s, 32));
    assert_string_equal(prediction.binds, "link 0-1 forward");
    assert_true(near(prediction.forward_s[2], 32));
    /* The first frame crosses three links, 32 go over each, and the gradient of the last comes back over three. */
    const double back = (double)plan->edges[0].step_backward / plan->micro_batches * 8 / (costs.rate_mbps * 1e6);
    assert_true(prediction.step_s > 34 && prediction.step_s < 34 + 3 * back + 0.01);
    plan_kit_done(plan, job);
}

static void test_predict_packed_bodies_take_their_share_of_a_link(void **state)
{
    (void)state;
    static const char *const sets[] = {"edges.forward={codec: raw}", "train.batch=64", NULL};
    struct aq_job *job;
    struct aq_plan *plan = plan_kit_plan(manifest, sets, &job);
    struct aq_plan_costs costs = unit_costs(plan, 16);
    for (uint32_t s = 0; s < 4; s++) {
        costs.forward_s[s] = costs.backward_s[s] = 1e-6;
        costs.forward_share[s] = 0.75;
    }
    costs.rate_mbps = (double)plan->edges[0].step_forward_warm / plan->micro_batches * 8e-6;
    assert_true(near(predict(plan, &costs).forward_s[2], 24));
    assert_true(near(predict(plan, &costs).bound_s, 24));
    plan_kit_done(plan, job);
}

/*
 * Two stages, four micro-batches; a forward and a backward take 1 s, coding what goes forward 1.5 s at either end. One
 * thread: the second stage begins at 2.5 and works 14 s on end, then the first has its last backward: 17.5.
 * On streams of its own codes are made from 1 to 7 and read from 2.5 to 8.5; the second stage's forwards begin at 4, 6,
 * 7 and 9 with backwards between them, the last of which ends at 12: 13. With one copy of values each forward would
 * wait for the code of the one before.
 */
static void test_predict_gpu_codes_beside_its_computing(void **state)
{
    (void)state;
#define TWO_STAGES(device, other)                                                                                      \
    "pipeline.stages=[{layers: 0-3, device: " device "}, {layers: 4-7, device: " other "}]", "pipeline.schedule=gpipe"
    static const char *const cpus[] = {TWO_STAGES("cpu", "cpu"), NULL},
                             *const gpus[] = {TWO_STAGES("cuda", "cuda, device_index: 1"), NULL},
                             *const nccl[] = {TWO_STAGES("cuda", "cuda, device_index: 1"), "link.transport=nccl", NULL},
                             *const one_gpu[] = {TWO_STAGES("cuda", "cuda"), NULL};
#undef TWO_STAGES
    static const struct {
        const char *const *sets;
        double step, busy;
    } cases[] = {{cpus, 17.5, 14}, {gpus, 13, 8}};
    struct aq_job *job;
    struct aq_plan *plan;
    struct aq_plan_costs costs;
    for (int i = 0; i < 2; i++) {
        plan = plan_kit_plan(manifest, cases[i].sets, &job);
        costs = unit_costs(plan, 16);
        costs.send_s[0] = costs.receive_s[0] = 1.5;
        assert_true(near(predict(plan, &costs).step_s, cases[i].step));
        assert_true(near(predict(plan, &costs).compute_s[0], cases[i].busy));
        plan_kit_done(plan, job);
    }
    /* A declared rate holds for links, not for what NCCL carries. */
    plan = plan_kit_plan(manifest, nccl, &job);
    costs = unit_costs(plan, 16);
    costs.send_s[0] = costs.receive_s[0] = 1.5;
    costs.rate_mbps = 1e-3;
    costs.forward_share[0] = 0.5;
    assert_true(near(predict(plan, &costs).step_s, 13));
    assert_true(predict(plan, &costs).forward_s[0] <= 0);
    plan_kit_done(plan, job);
    plan = plan_kit_plan(manifest, one_gpu, &job);
    costs = unit_costs(plan, 16);
    const struct aq_plan_prediction shared = predict(plan, &costs);
    assert_true(near(shared.bound_s, 16) && near(shared.step_s, 16)); /* it is never idle */
    assert_string_equal(shared.binds, "the GPU of stage 0");
    plan_kit_done(plan, job);
}

/* Averaging 5 s on the links and 1 s of packing; an update of 3 s: before it, or along with it. */
static void test_predict_reduction_before_or_in_the_update(void **state)
{
    (void)state;
    static const char *const adamw[] = {"pipeline.stages=1", "pipeline.replicas=2", NULL},
                             *const qadam[] = {"pipeline.stages=1", "pipeline.replicas=2", "train.optimizer=qadam",
                                               "optimizer.warmup_steps=1", NULL};
    struct aq_job *job;
    struct aq_plan *plan;
    for (int in_step = 0; in_step < 2; in_step++) {
        struct aq_plan_costs from;
        plan = plan_kit_plan(manifest, in_step ? qadam : adamw, &job);
        aq_plan_costs_assumed(plan, 100, 16, &from);
        assert_int_equal(from.reduce_in_step, in_step);
        struct aq_plan_costs costs = unit_costs(plan, 16);
        costs.reduce_in_step = from.reduce_in_step;
        costs.reduce_s[0] = 5;
        costs.pack_s[0] = 1;
        costs.step_s[0] = 3;
        const double chains = 2 * plan->micro_batches;
        assert_true(near(predict(plan, &costs).step_s, chains + (in_step ? 5 : 8)));
        costs.reduce_s[0] = 0.5;
        assert_true(near(predict(plan, &costs).step_s, chains + 4)); /* computing is the longer */
        plan_kit_done(plan, job);
    }
}

/* A pair of replicas has a link: three send each other twice what a link carries. */
static void test_reductions_use_all_links_of_a_replica(void **state)
{
    (void)state;
    static const char *const sets[] = {"pipeline.stages=1", "pipeline.replicas=3", "train.batch=12",
                                       "data.train_samples_max=150", NULL};
    struct aq_job *job;
    struct aq_plan *plan = plan_kit_plan(manifest, sets, &job);
    struct aq_plan_costs costs;
    aq_plan_costs_assumed(plan, 100, 16, &costs);
    assert_true(near(costs.reduce_s[0], (double)aq_plan_reduce_bytes(plan, 0) * 8 / (2 * 100e6)));
    costs.value_share[0] = 0.5;
    aq_plan_costs_reduce(plan, &costs);
    assert_true(near(costs.reduce_s[0], (double)aq_plan_reduce_bytes(plan, 0) * 8 / (4 * 100e6)));
    plan_kit_done(plan, job);
}

/* Local steps: what a round takes is shared out to its steps; memory has what the outer step wants. */
static void test_local_steps_share_out_their_reduction(void **state)
{
    (void)state;
    static const char *const each[] = {"pipeline.stages=2", "pipeline.replicas=2", "reduce.codec=q4", NULL};
    static const char *const local[] = {"pipeline.stages=2", "pipeline.replicas=2", "reduce.codec=q4", "reduce.every=8",
                                        NULL};
    struct aq_job *jobs[2];
    struct aq_plan *plans[] = {plan_kit_plan(manifest, each, &jobs[0]), plan_kit_plan(manifest, local, &jobs[1])};
    struct aq_plan_costs costs[2];
    const uint64_t n = plans[0]->stages[0].size.parameters, floats = n * sizeof(float);
    for (int i = 0; i < 2; i++)
        aq_plan_costs_assumed(plans[i], 100, 16, &costs[i]);
    assert_int_equal(aq_plan_reductions(plans[0]), plans[0]->steps);
    assert_int_equal(aq_plan_reductions(plans[1]), (plans[1]->steps + 7) / 8);
    assert_int_equal(aq_plan_reduce_bytes(plans[1], 0), aq_plan_reduce_bytes(plans[0], 0));
    assert_true(near(costs[1].reduce_s[0], costs[0].reduce_s[0] / 8));
    assert_true(costs[1].reduce_in_step && !costs[0].reduce_in_step);
    assert_true(predict(plans[1], &costs[1]).step_s < predict(plans[0], &costs[0]).step_s);
    /* Weights and momentum, and the errors of q4: a worker's of all, a server's of half. */
    assert_int_equal(aq_plan_outer_bytes(plans[0], n), 0);
    assert_true(aq_plan_outer_bytes(plans[1], n) >= 7 * floats / 2 && aq_plan_outer_bytes(plans[1], n) < 4 * floats);
    for (int i = 0; i < 2; i++)
        plan_kit_done(plans[i], jobs[i]);
}

static void test_predict_one_stage_is_its_compute(void **state)
{
    (void)state;
    static const char *const sets[] = {"pipeline.stages=1", NULL};
    struct aq_job *job;
    struct aq_plan *plan = plan_kit_plan(manifest, sets, &job);
    struct aq_plan_costs costs = unit_costs(plan, 2);
    costs.step_s[0] = 0.5;
    const struct aq_plan_prediction prediction = predict(plan, &costs);
    assert_true(near(prediction.step_s, 8.5));
    assert_true(near(prediction.bound_s, 8.5));
    plan_kit_done(plan, job);
}

static void test_predict_assumed_costs_follow_the_flops(void **state)
{
    (void)state;
    struct aq_job *job;
    struct aq_plan *plan = plan_kit_plan(manifest, NULL, &job);
    struct aq_plan_costs costs;
    aq_plan_costs_assumed(plan, 50, 4, &costs);
    assert_true(near(costs.forward_s[1], plan->stages[1].size.flops_forward / 50e9));
    assert_int_equal(costs.threads[1], 1);
    assert_true(costs.rate_mbps == 100);
    (void)predict(plan, &costs);
    plan_kit_done(plan, job);
}

static void test_measured_costs_are_positive(void **state)
{
    (void)state;
    static const char *const raw[] = {"edges.forward={codec: raw, precision: fp32}", NULL};
    struct aq_job *job;
    struct aq_plan *plan = plan_kit_plan(manifest, raw, &job);
    struct aq_plan_costs costs;
    assert_int_equal(aq_plan_costs_measured(plan, 2, &costs), AQ_OK);
    for (uint32_t s = 0; s < plan->stage_count; s++) {
        assert_true(costs.forward_s[s] > 0 && costs.backward_s[s] > 0 && costs.step_s[s] > 0);
        if (s + 1 == plan->stage_count) continue;
        assert_true(costs.send_s[s] > 0 && costs.receive_back_s[s] > 0);
        assert_true(costs.receive_s[s] > 0 && costs.send_back_s[s] > 0);
        /* fp32 of values whose exponents are alike, and 8 bits of some 4000 values. */
        assert_true(costs.forward_share[s] > 0.8 && costs.forward_share[s] < 0.98);
        assert_true(costs.backward_share[s] > 0.8 && costs.backward_share[s] <= 1);
    }
    assert_true(costs.packed);
    (void)predict_measured(plan, &costs);
    plan_kit_done(plan, job);
}

/* The same flops in two halves, and the memory of what waits between them; every stage has the slots of stage 0. */
static void test_split_backward_is_planned_and_measured(void **state)
{
    (void)state;
    static const char *const split[] = {"pipeline.schedule=zb-h1", NULL};
    struct aq_job *job, *other;
    struct aq_plan *whole = plan_kit_plan(manifest, NULL, &other), *plan = plan_kit_plan(manifest, split, &job);
    struct aq_plan_costs costs, halves;
    aq_plan_costs_assumed(whole, 100, 2, &costs);
    aq_plan_costs_assumed(plan, 100, 2, &halves);
    for (uint32_t s = 0; s < 4; s++) {
        assert_true(plan->stages[s].config.split && !whole->stages[s].config.split);
        assert_int_equal(plan->stages[s].config.slots, whole->stages[0].config.slots);
        assert_true(plan->stages[s].size.slot_bytes > whole->stages[s].size.slot_bytes);
        assert_true(costs.weights_s[s] == 0 && halves.weights_s[s] > 0.4 * costs.backward_s[s]);
        assert_true(near(halves.backward_s[s] + halves.weights_s[s], costs.backward_s[s]));
    }
    assert_int_equal(aq_plan_costs_measured(plan, 2, &costs), AQ_OK);
    for (uint32_t s = 0; s < 4; s++)
        assert_true(costs.backward_s[s] > 0 && costs.weights_s[s] > 0);
    const struct aq_plan_prediction prediction = predict_measured(plan, &costs);
    struct aq_text text = {0}, json = {0};
    assert_int_equal(aq_plan_print(plan, &costs, &prediction, 0, &text), AQ_OK);
    assert_non_null(strstr(aq_text_of(&text), "  weights"));
    assert_non_null(strstr(aq_text_of(&text), "half of a backward"));
    assert_non_null(strstr(aq_text_of(&text), "a step by schedule: gpipe"));
    assert_int_equal(aq_plan_print_json(plan, &costs, &prediction, &json), AQ_OK);
    assert_non_null(strstr(aq_text_of(&json), "\"weights_s\""));
    aq_text_deinit(&text);
    aq_text_deinit(&json);
    plan_kit_done(plan, job);
    plan_kit_done(whole, other);
}

static void test_print_names_what_it_must(void **state)
{
    (void)state;
    static const char *const words[] = {"156 samples", "4 micro-batches of 2", "stage 3  |", "optimizer",
                                        "bound",       "predicted step",       "cache",      "as above"};
    struct aq_job *job;
    struct aq_plan *plan = plan_kit_plan(manifest, NULL, &job);
    struct aq_plan_costs costs = unit_costs(plan, 2);
    const struct aq_plan_prediction prediction = predict(plan, &costs);
    struct aq_text text = {0}, json = {0};
    assert_int_equal(aq_plan_print(plan, &costs, &prediction, 0, &text), AQ_OK);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strstr(aq_text_of(&text), words[i])) fail_msg("'%s' is not in:\n%s", words[i], aq_text_of(&text));
    assert_int_equal(aq_plan_print_json(plan, &costs, &prediction, &json), AQ_OK);
    char hash[64];
    snprintf(hash, sizeof hash, "\"plan_hash\": \"%016llx\"", (unsigned long long)plan->hash);
    assert_non_null(strstr(aq_text_of(&json), hash));
    aq_text_deinit(&text);
    aq_text_deinit(&json);
    plan_kit_done(plan, job);
}

static void test_fits_adds_the_stages_of_this_machine(void **state)
{
    (void)state;
    static const char *const sets[] = {"pipeline.stages=[{layers: 0-3}, {layers: 4-7, host: 'tcp://far:1'}]",
                                       "security.tls=off", NULL};
    struct aq_job *job;
    struct aq_plan *plan = plan_kit_plan(manifest, NULL, &job);
    uint64_t sum = 0;
    for (uint32_t s = 0; s < plan->stage_count; s++)
        sum += plan->stages[s].memory_bytes;
    assert_int_equal(aq_plan_fits(plan, sum), AQ_OK);
    capture_begin();
    assert_int_equal(aq_plan_fits(plan, sum - 1), AQ_NOMEM);
    capture_end();
    assert_true(captured_has("job.yaml:4:12: pipeline.stages: the stages of this machine need"));
    plan_kit_done(plan, job);
    plan = plan_kit_plan(manifest, sets, &job);
    assert_int_equal(aq_plan_fits(plan, plan->stages[0].memory_bytes), AQ_OK);
    assert_true(aq_plan_memory_here() > 0);
    plan_kit_done(plan, job);
}

/* This test's build has no CUDA where AQ_WITH_CUDA is 0; another machine's build may have it. */
static void test_devices_are_those_of_this_build(void **state)
{
    (void)state;
    static const char *const here[] = {"pipeline.stages=[{layers: 0-3}, {layers: 4-7, device: cuda}]", NULL};
    static const char *const far[] = {
        "pipeline.stages=[{layers: 0-3}, {layers: 4-7, device: cuda, host: 'tcp://far:1'}]", "security.tls=off", NULL};
    struct aq_job *job;
    struct aq_plan *plan = plan_kit_plan(manifest, far, &job);
    assert_int_equal(aq_plan_devices_built(plan), AQ_OK);
    plan_kit_done(plan, job);
    plan = plan_kit_plan(manifest, here, &job);
    capture_begin();
    assert_int_equal(aq_plan_devices_built(plan), AQ_WITH_CUDA ? AQ_OK : AQ_NODEV);
    capture_end();
    if (!AQ_WITH_CUDA) assert_true(captured_has("stage 1: device: cuda is not in this build of aqpipe"));
    plan_kit_done(plan, job);
}

static void test_rank_fits_its_daemons_limit(void **state)
{
    (void)state;
    struct aq_job *job;
    struct aq_plan *plan = plan_kit_plan(manifest, NULL, &job);
    for (uint32_t r = 0; r < plan->ranks; r++) {
        const uint64_t bytes = plan->stages[r % plan->stage_count].memory_bytes;
        assert_int_equal(aq_plan_rank_fits(plan, r, bytes), AQ_OK);
        capture_begin();
        assert_int_equal(aq_plan_rank_fits(plan, r, bytes - 1), AQ_NOMEM);
        capture_end();
        assert_true(captured_has("by its plan, a worker may have"));
        assert_true(captured_has("--max-memory"));
    }
    /* What lies on a GPU, the first lines, is none of its memory, nor named as the largest part of it. */
    struct aq_plan_stage *stage = (struct aq_plan_stage *)(uintptr_t)plan->stages;
    const uint64_t host = stage->memory_bytes - stage->lines[0].bytes;
    stage->config.weights_16bit = true;
    stage->device_bytes = stage->lines[0].bytes;
    assert_int_equal(aq_plan_rank_fits(plan, 0, host), AQ_OK);
    capture_begin();
    assert_int_equal(aq_plan_rank_fits(plan, 0, host - 1), AQ_NOMEM);
    capture_end();
    assert_false(captured_has(stage->lines[0].name));
    plan_kit_done(plan, job);
}

static void test_disk_fits_counts_caches_of_this_machine(void **state)
{
    (void)state;
    /* More messages than any disk has room for: facts that are given are not looked up in files. */
    static const char *const vast[] = {"facts={vocabulary: 256, train_samples: 4000000000, train_digest: 1}",
                                       "train.epochs=1",
                                       "model={blocks: 6, channels: 8192, heads: 4, context: 1024}",
                                       "train.T=1024",
                                       "cache.path=/dev/shm/aq-test-none/caches",
                                       NULL};
    static const char *const in_memory[] = {"cache.kind=memory", NULL};
    struct aq_job *job;
    struct aq_plan *plan = plan_kit_plan(manifest, NULL, &job);
    assert_int_equal(aq_plan_disk_fits(plan, plan_kit_folder), AQ_OK);
    assert_int_equal(aq_plan_disk_fits(plan, "/dev/shm/aq-test-none/is/made/later"), AQ_OK);
    plan_kit_done(plan, job);
    plan = plan_kit_plan(manifest, vast, &job);
    capture_begin();
    assert_int_equal(aq_plan_disk_fits(plan, job->cache.path), AQ_NOSPC);
    capture_end();
    assert_true(captured_has("cache.path: the messages of this machine's stages need "));
    assert_true(captured_has(" in /dev/shm/aq-test-none/caches ("));
    capture_begin();
    assert_int_equal(aq_plan_disk_fits(plan, "/proc/none"), AQ_INVAL);
    capture_end();
    assert_true(captured_has("cache.path: no file can be created in /proc/none, because its file system is virtual;"));
    plan_kit_done(plan, job);
    plan = plan_kit_plan(manifest, in_memory, &job);
    assert_int_equal(aq_plan_disk_fits(plan, "/proc/none"), AQ_OK);
    plan_kit_done(plan, job);
}

static void test_open_survives_failing_allocations(void **state)
{
    (void)state;
    struct aq_job *job = plan_kit_job(manifest, NULL);
    bool opened = false;
    capture_begin();
    for (uint64_t n = 1; !opened && n < 500; n++) {
        struct aq_plan *plan = NULL;
        aq_memory_fail_at(n);
        const enum aq_status status = aq_plan_open(job, &plan);
        aq_memory_fail_at(0);
        assert_true(status == AQ_OK || status == AQ_NOMEM);
        opened = status == AQ_OK;
        aq_plan_close(plan);
    }
    capture_end();
    assert_true(opened);
    aq_job_close(job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan_counts_samples_steps_and_micro_batches),
        cmocka_unit_test(test_plan_automatic_cut_is_the_evenest),
        cmocka_unit_test(test_plan_memory_is_the_sum_of_its_lines),
        cmocka_unit_test(test_plan_knows_what_is_frozen),
        cmocka_unit_test(test_plan_of_a_gpu_has_its_scratch_and_two_of_each_boundary),
        cmocka_unit_test(test_plan_bytes_of_raw_edges_by_hand),
        cmocka_unit_test(test_plan_goes_on_without_the_weights_file),
        cmocka_unit_test(test_plan_resume_hash_leaves_out_the_extent),
        cmocka_unit_test(test_plan_hash_sees_what_matters_and_nothing_else),
        cmocka_unit_test(test_plan_manifest_gives_the_same_hash_without_the_data),
        cmocka_unit_test(test_plan_refuses_what_cannot_be),
        cmocka_unit_test(test_predict_flushed_pipeline_is_exact),
        cmocka_unit_test(test_predict_weight_halves_fill_the_bubble),
        cmocka_unit_test(test_predict_shared_core_does_all_the_work),
        cmocka_unit_test(test_predict_slow_link_binds),
        cmocka_unit_test(test_predict_packed_bodies_take_their_share_of_a_link),
        cmocka_unit_test(test_predict_gpu_codes_beside_its_computing),
        cmocka_unit_test(test_predict_reduction_before_or_in_the_update),
        cmocka_unit_test(test_reductions_use_all_links_of_a_replica),
        cmocka_unit_test(test_local_steps_share_out_their_reduction),
        cmocka_unit_test(test_predict_one_stage_is_its_compute),
        cmocka_unit_test(test_predict_assumed_costs_follow_the_flops),
        cmocka_unit_test(test_measured_costs_are_positive),
        cmocka_unit_test(test_split_backward_is_planned_and_measured),
        cmocka_unit_test(test_print_names_what_it_must),
        cmocka_unit_test(test_fits_adds_the_stages_of_this_machine),
        cmocka_unit_test(test_devices_are_those_of_this_build),
        cmocka_unit_test(test_rank_fits_its_daemons_limit),
        cmocka_unit_test(test_disk_fits_counts_caches_of_this_machine),
        cmocka_unit_test(test_open_survives_failing_allocations),
    };
    return cmocka_run_group_tests(tests, plan_kit_setup, plan_kit_teardown);
}
