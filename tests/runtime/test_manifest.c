/*
 * test_manifest.c -- from YAML to a typed job: values, units, overrides, every refusal with its place, the way back.
 *
 * docs/MANIFEST.md is made anew by this test where AQ_GOLDEN is set.
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

#include "job.h"
#include "keys.h"
#include "log_capture.h"
#include "security.h"
#include "yaml_tree.h"

static const char good[] = "job:\n"                               /*  1 */
                           "  name: demo\n"                       /*  2 */
                           "model:\n"                             /*  3 */
                           "  blocks: 6\n"                        /*  4 */
                           "  channels: 128\n"                    /*  5 */
                           "  heads: 4\n"                         /*  6 */
                           "  context: 64\n"                      /*  7 */
                           "data:\n"                              /*  8 */
                           "  train: [a.txt, /b/c.txt]\n"         /*  9 */
                           "train:\n"                             /* 10 */
                           "  T: 64\n"                            /* 11 */
                           "  batch: 16\n"                        /* 12 */
                           "  micro_batch: 4\n"                   /* 13 */
                           "pipeline:\n"                          /* 14 */
                           "  stages:\n"                          /* 15 */
                           "    - {layers: 0-2, threads: 2}\n"    /* 16 */
                           "    - layers: 3-5\n"                  /* 17 */
                           "    - layers: 6-7\n"                  /* 18 */
                           "edges:\n"                             /* 19 */
                           "  forward: {codec: aqsgd, bits: 3}\n" /* 20 */
                           "  list:\n"                            /* 21 */
                           "    - edge: 1\n"                      /* 22 */
                           "      forward: {bits: 2}\n"           /* 23 */
                           "link:\n"                              /* 24 */
                           "  rate_mbps: 100mbit\n"               /* 25 */
                           "cache:\n"                             /* 26 */
                           "  bytes_max: 64MiB\n";                /* 27 */

static enum aq_status parse(const char *text, const char *const *sets, uint32_t count, struct aq_job **out)
{
    return aq_job_parse(text, strlen(text), "job.yaml", "/folder", sets, count, out);
}

static struct aq_job *parse_good(const char *const *sets, uint32_t count)
{
    struct aq_job *job = NULL;
    assert_int_equal(parse(good, sets, count, &job), AQ_OK);
    return job;
}

static void test_manifest_good_gives_its_values(void **state)
{
    (void)state;
    struct aq_job *job = parse_good(NULL, 0);
    assert_string_equal(job->name, "demo");
    assert_int_equal(job->model.config.blocks, 6);
    assert_string_equal(job->model.config.kind, "gpt2");
    assert_int_equal(job->data.train_count, 2);
    assert_string_equal(job->data.train[0], "/folder/a.txt");
    assert_string_equal(job->data.train[1], "/b/c.txt");
    assert_int_equal(job->data.heldout_count, 0);
    assert_int_equal(job->train.batch, 16);
    assert_int_equal(job->pipeline.stage_count, 3);
    assert_false(job->pipeline.automatic);
    assert_int_equal(job->pipeline.stages[1].layer_first, 3);
    assert_int_equal(job->pipeline.stages[1].layer_end, 6);
    assert_int_equal(job->pipeline.stages[0].threads, 2);
    assert_string_equal(job->pipeline.stages[2].device, "cpu");
    assert_int_equal(job->edges[0].forward.kind, AQ_CODEC_AQSGD);
    assert_int_equal(job->edges[0].forward.bits, 3);
    assert_int_equal(job->edges[1].forward.bits, 2);
    assert_int_equal(job->edges[0].backward.kind, AQ_CODEC_DIRECTQ);
    assert_int_equal(job->edges[0].backward.bits, 8);
    assert_int_equal(job->edges[0].backward.prescale_log2, 16);
    assert_true(job->link.rate_mbps == 100);
    assert_int_equal(job->cache.bytes_max, 64 << 20);
    assert_true(job->train.evaluate_every.epochs);
    assert_int_equal(job->train.evaluate_every.count, 1);
    assert_string_equal(job->output.path, "/folder/run");
    assert_null(job->model.weights);
    assert_int_equal(aq_job_threads(job, 0, 8), 2);
    assert_int_equal(aq_job_threads(job, 1, 8), 2); /* 8 cores by 3 stages */
    assert_int_equal(aq_job_threads(job, 1, 1), 1);
    assert_int_equal(aq_job_threads(job, 1, 900), 256); /* more a device refuses */
    assert_int_equal(aq_job_micro_batches(job, 9), 3);
    aq_job_close(job);
}

static void test_manifest_sets_win(void **state)
{
    (void)state;
    static const char *const sets[] = {"train.batch=32",          "data.train=[x.txt]",
                                       "output.path=out",         "pipeline.stages.1.threads=7",
                                       "edges.forward.codec=raw", "edges.list=[]",
                                       "link.rate_mbps=0.5gbit",  "train.lr=3e-4",
                                       "cache.kind=memory",       "checkpoint.every=250 steps",
                                       "link.silence_max=1500ms", "pipeline.in_flight=classic"};
    char before[4096];
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir("/tmp"), 0);
    struct aq_job *job = parse_good(sets, sizeof sets / sizeof *sets);
    assert_int_equal(chdir(before), 0);
    assert_int_equal(job->train.batch, 32);
    assert_int_equal(job->data.train_count, 1);
    assert_string_equal(job->data.train[0], "/tmp/x.txt"); /* typed: of the current folder */
    assert_string_equal(job->output.path, "/tmp/out");
    assert_int_equal(job->pipeline.stages[1].threads, 7);
    assert_int_equal(job->edges[0].forward.kind, AQ_CODEC_RAW);
    assert_true(job->link.rate_mbps == 500);
    assert_true(job->train.lr == 3e-4f);
    assert_string_equal(job->cache.kind, "memory");
    assert_int_equal(job->checkpoint.every.count, 250);
    assert_false(job->checkpoint.every.epochs);
    assert_int_equal(job->link.silence_ns_max, 1500000000);
    assert_int_equal(job->pipeline.in_flight, AQ_IN_FLIGHT_CLASSIC);
    char place[64];
    aq_job_place(job, "train.batch", place, sizeof place);
    assert_string_equal(place, "--set");
    aq_job_place(job, "train.T", place, sizeof place);
    assert_string_equal(place, "job.yaml:11:3");
    aq_job_close(job);
}

/* Lion Cub's own: p of its norm, 0 for L0, inf, and whose unused rows are masked. */
static void test_manifest_lioncub_has_a_norm_and_a_mask(void **state)
{
    (void)state;
    const char *sets[] = {"train.optimizer=lioncub", "optimizer.lane_bits=8", "reduce.codec=lp5",
                          "optimizer.mask_names=wpe", "reduce.norm=0"};
    struct aq_job *job = parse_good(sets, 4);
    assert_true(job->train.optimizer.reduce.norm == 1.0f);
    assert_string_equal(job->train.optimizer.mask_names, "wpe");
    aq_job_close(job);
    const float norms[] = {AQ_GRAD_NORM_L0, INFINITY, 0.5f};
    for (int i = 0; i < 3; i++) {
        sets[4] = i == 0 ? "reduce.norm=0" : i == 1 ? "reduce.norm=inf" : "reduce.norm=0.5";
        job = parse_good(sets, 5);
        assert_true(job->train.optimizer.reduce.norm == norms[i]);
        aq_job_close(job);
    }
}

static void test_manifest_stage_count_is_an_automatic_cut(void **state)
{
    (void)state;
    static const char *const sets[] = {"pipeline.stages=4", "edges.list=[]", "link.rtt_ms=0.02s"};
    struct aq_job *job = parse_good(sets, 3);
    assert_true(job->pipeline.automatic && job->link.rtt_ms == 20.0f);
    assert_int_equal(job->pipeline.stage_count, 4);
    assert_int_equal(job->edges[2].forward.bits, 3);
    aq_job_close(job);
}

/* One manifest (or one override of the good one) and what must stand in some error line. */
struct bad {
    const char *text; /* NULL: the good one            */
    const char *sets[3];
    const char *words;
};

static const struct bad bads[] = {
    {NULL, {"train.batch=33"}, "--set: train.batch: 33 is not a multiple of train.micro_batch (4); 36 would be"},
    {NULL, {"train.decay=step"}, "train.decay: this decay needs train.decay_every: '20 epochs', '520 steps'"},
    {NULL, {"split.privacy.klip=3"}, "split.privacy.klip: there is no such key; did you mean split.privacy.clip?"},
    {NULL, {"split.privacy=3"}, "split.privacy: must be a section of keys"},
    {NULL, {"split.privacy.noise=3"}, "split.privacy.noise: needs split.privacy.clip"},
    {NULL, {"split.privacy.clip=1e-50"}, "split.privacy.clip: '1e-50' is out of range: must be a number"},
    {NULL, {"split.privacy.clip=-1"}, "split.privacy.clip: '-1' is out of range: must be a number"},
    {NULL, {"train.lr_min=1"}, "train.lr_min: 1 is more than train.lr"},
    {NULL, {"train.batsh=3"}, "train.batsh: there is no such key; did you mean train.batch?"},
    {NULL, {"model.batch=3"}, "did you mean train.batch?"},
    {NULL, {"modle.blocks=3"}, "modle: there is no such section; did you mean model?"},
    {NULL, {"qqqqqqq.blocks=3"}, "aqpipe help keys"},
    {NULL, {"link.rtt_ms=20m/s"}, "'20m/s' is not a number, 0 to 60000 ms, as in 20ms, 0.1s"},
    {NULL, {"train.dropout_ms=1ms"}, "there is no such key"},
    {NULL, {"train.lr=1ms"}, "'1ms' is not a number"},
    {NULL, {"train.batch=eight"}, "--set: train.batch: 'eight' is not a whole number, 1 to 1048576 samples"},
    {NULL, {"train.batch=0"}, "'0' is out of range: must be a whole number"},
    {NULL, {"train.batch=-4"}, "'-4' is out of range"},
    {NULL, {"train.batch=4294967297"}, "is out of range"},
    {NULL, {"train.seed=18446744073709551616"}, "is out of range"},
    {NULL, {"train.batch=1e1"}, "is not a whole number"},
    {NULL, {"train.batch=0x10"}, "is not a whole number"},
    {NULL, {"train.lr=nan"}, "is not a number"},
    {NULL, {"train.lr=inf"}, "is not a number"},
    {NULL, {"train.lr=1e999"}, "is not a number"},
    {NULL, {"train.batch='8'"}, "in quotes is not"},
    {NULL, {"train.batch="}, "has no value"},
    {NULL, {"train.batch=[1, 2]"}, "is a list, but must be"},
    {NULL, {"train.batch"}, "is not key=value"},
    {NULL, {"train=5"}, "train: must be a section of keys"},
    {NULL, {"train.shuffle=maybe"}, "'maybe' is not true or false"},
    {NULL, {"pipeline.schedule=interleaved"}, "is not one of auto, gpipe, 1f1b"},
    {NULL, {"link.rate_mbps=fast"}, "is not a rate"},
    {NULL, {"link.rate_mbps=10 parsec"}, "is not a rate"},
    {NULL, {"link.silence_max=30 fortnights"}, "is not a duration"},
    {NULL, {"cache.bytes_max=64XB"}, "is not a size"},
    {NULL, {"train.evaluate_every=1 moon"}, "is not an interval"},
    {NULL, {"train.evaluate_every=30min"}, "is not an interval"},
    {NULL, {"checkpoint.every=30 moons"}, "is not an interval or duration"},
    {NULL, {"checkpoint.every=2000000h"}, "is not an interval or duration"},
    {NULL, {"model.heads=3"}, "3 heads do not divide 128 channels"},
    {NULL, {"train.T=65"}, "65 tokens, but the position table has 64 rows"},
    {NULL, {"data.tokenizer=gpt2"}, "gpt2 needs data.tokenizer_path"},
    {NULL, {"model.vocabulary=100"}, "less than the 256 tokens"},
    {NULL, {"model.kind=gpt7"}, "model.kind"},
    {NULL,
     {"train.freeze=embeding"},
     "'embeding' names nothing of the model: it has no 'embeding'; did you mean 'embedding'?"},
    {NULL,
     {"train.freeze=wte, h.0-3.atn"},
     "'h.0-3.atn' names nothing of the model: it has no 'atn'; did you mean 'attn'?"},
    {NULL,
     {"train.freeze='*, !blcok 5'"},
     "'!blcok 5' names nothing of the model: it has no 'blcok'; did you mean 'block'?"},
    {NULL,
     {"train.freeze=blocks 6-7"},
     "'blocks 6-7' names nothing of the model: write a layer as aqpipe plan prints it ('block 0')"},
    {NULL, {"train.freeze=h.1.c_fc"}, "'h.1.c_fc' names nothing of the model: write a layer"},
    {NULL, {"train.freeze='!'"}, "'!' names nothing of the model"},
    {NULL, {"train.freeze=lm_head", "model.tied=true"}, "'lm_head' is the embedding's table here (model.tied)"},
    {NULL,
     {"lora.targets=c_attn"},
     "lora.targets: names layers for adapters, but lora.rank is 0: there are no adapters"},
    {NULL, {"lora.rank=4", "lora.targets=ln_1"}, "lora.targets: 'ln_1' names no layer that can have adapters"},
    {NULL, {"lora.rank=4", "lora.targets='c_atn'"}, "it has no 'c_atn'; did you mean 'c_attn'?"},
    {NULL, {"lora.rank=2000"}, "lora.rank: '2000' is out of range: must be a whole number, 0 to 1024"},
    {NULL, {"lora.rank=4", "lora.alpha=0"}, "lora.alpha"},
    {NULL, {"train.freeze='*'"}, "train.freeze: freezes the whole model: nothing is left to train"},
    {NULL, {"train.freeze=[wte, [wpe]]"}, "train.freeze: is a list, but must be"},
    {NULL, {"pipeline.stages=9", "edges.list=[]"}, "9 stages, but this gpt2 has only 8 layers"},
    {NULL, {"pipeline.stages=0"}, "must be a count of stages, 1 to 128"},
    {NULL, {"pipeline.stages=[]"}, "0 entries"},
    {NULL, {"pipeline.stages.1.layers=4-5"}, "a gap: starts at layer 4, but no stage has layer 3"},
    {NULL, {"pipeline.stages.1.layers=2-5"}, "an overlap: layer 2 belongs to an earlier stage; start at layer 3"},
    {NULL, {"pipeline.stages.1.layers=0-5"}, "an overlap: layers 0-2 belong to an earlier stage"},
    {NULL, {"pipeline.stages.2.layers=6-6"}, "a gap: the last stage ends at layer 6, but no stage has layer 7"},
    {NULL, {"pipeline.stages.2.layers=6-8"}, "ends at layer 8, but 7 is the model's last"},
    {NULL, {"pipeline.stages.0.layers=1-2"}, "a gap: starts at layer 1, but no stage has layer 0"},
    {NULL, {"pipeline.stages.0.layers=2-1"}, "must be a range of layers"},
    {NULL, {"pipeline.stages.0.layers=x"}, "must be a range of layers"},
    {NULL, {"pipeline.stages.0.thread=1"}, "did you mean threads?"},
    {NULL, {"pipeline.stages.7.threads=1"}, "the list has no entry 7"},
    {NULL, {"pipeline.stages=[{host: x}, {layers: 0-7}]", "edges.list=[]"}, "layers is missing"},
    {NULL, {"link.loss=0.5"}, "link.loss: '0.5' is out of range: must be a number"},
    {NULL, {"model.precision=tf32"}, "model.precision: tf32 needs GPUs, and stage 0 is on the CPU"},
    {NULL, {"model.logits=16bit"}, "model.logits: 16bit follows model.precision, which has 32"},
    {NULL, {"model.logits=16bit", "model.precision=bf16"}, "model.logits: 16bit needs a GPU, and the last stage is on"},
    {NULL, {"model.logits=bf16"}, "model.logits: 'bf16' is not one of"},
    {NULL, {"train.loss_scale=8"}, "train.loss_scale: applies only to fp16 (model.precision)"},
    {NULL, {"train.loss_scale=0.5"}, "train.loss_scale: '0.5' is not a number or word, 1 to 1048576 factor, or 'auto'"},
    {NULL, {"model.precision=fp8"}, "model.precision: 'fp8' is not one of"},
    {NULL, {"edges.forward.bits=9"}, "edges.forward.bits: '9' is out of range: must be a whole number, 1 to 8 bits"},
    {NULL, {"edges.forward.bit=2"}, "edges.forward.bit: there is no such key; did you mean bits?"},
    {NULL, {"edges.backward.codec=aqsgd"}, "aqsgd is for activations"},
    {NULL, {"edges.backward.codec=sign", "edges.backward.store=fp16"}, "gradients keep no messages"},
    {NULL, {"edges.list.0.edge=2"}, "edge '2' is not one of the edges 0 to 1"},
    {NULL, {"edges.list=[{edge: 0}, {edge: 0}]"}, "edge 0 has an entry already"},
    {NULL, {"edges.list=[{forward: {bits: 2}}]"}, "an entry without 'edge: NUMBER'"},
    {NULL, {"edges.list=[{edge: 0, sideways: {}}]"}, "there is no such key; an entry has edge, forward, backward"},
    {NULL, {"pipeline.stages.0.send={bits: 5}"}, "edge 0: its ends differ: stage 0 sends"},
    {NULL, {"pipeline.stages.2.receive={codec: raw}"}, "edge 1: its ends differ"},
    {NULL, {"pipeline.stages.0.receive={codec: raw}"}, "the first stage receives nothing"},
    {NULL, {"pipeline.stages.2.send={codec: raw}"}, "the last stage sends nothing"},
    {NULL, {"edges.forward={group: tile, tile: 48}", "edges.list=[]"}, "must be 32, 64 or 128"},
    {NULL, {"edges.forward.top_k=0.5"}, "is for directq only"},
    {NULL,
     {"pipeline.stages.1.dials=true", "pipeline.stages.2.dials=true"},
     "--set: pipeline.stages.2.dials: stage 1 dials too, and of two neighbours one must "
     "listen"},
    {NULL,
     {"pipeline.stages.1.dials=true", "pipeline.stages.1.address=h:1"},
     "pipeline.stages.1.address: stage 1 dials: it listens nowhere"},
    {NULL, {"pipeline.stages.1.dials=maybe"}, "pipeline.stages.1.dials"},
    {NULL, {"link.port_first=65535"}, "3 stages need ports up to 65537"},
    {NULL, {"link.port_first=65534"}, "3 stages need ports up to 65536"},
    {NULL, {"pipeline.stages.0.address=h:1", "pipeline.stages.2.address=h:1"}, "h:1 is the address of stage 0 already"},
    {NULL,
     {"pipeline.replicas=3"},
     "train.batch: 16 is not a multiple of train.micro_batch (4) times pipeline.replicas (3); 24 would be"},
    {NULL, {"pipeline.replicas=0"}, "'0' is out of range: must be a whole number, 1 to 64 replicas"},
    {NULL, {"pipeline.replicas=2", "pipeline.stages.1.threads=[1, 2, 3]"}, "3 values for 2 replicas"},
    {NULL, {"pipeline.stages.1.threads=[1, 2]"}, "is a list, but must be"},
    {NULL, {"pipeline.replicas=2", "pipeline.stages.1.dials=true"}, "replicas 0 and 1 both dial"},
    {NULL, {"pipeline.replicas=2", "pipeline.stages.1.threads=[1, x]"}, "'x' is not a whole number"},
    {NULL,
     {"pipeline.replicas=2", "pipeline.stages.1.address='h:1'"},
     "is the address of replicas 0 and 1; write a list"},
    {NULL,
     {"pipeline.replicas=64", "train.batch=256", "pipeline.stages=17"},
     "64 replicas of 17 stages are 1088 workers; at most 1024 are possible"},
    {NULL, {"a.b.c.d.e.f.g.h.i.j.k.l.m.n.o.p.q.r=1"}, "too many dots"},
    {"train: {batch: 8}\n", {0}, "job.yaml: data.train: is missing"},
    {"", {0}, "data.train: is missing"},
    {"- a\n- b\n", {0}, "job.yaml:1:1: a manifest is sections of keys"},
    {"just a text", {0}, "a manifest is sections of keys"},
    {"train:\n  batch: 8\n  batch: 9\n", {0}, "job.yaml:3:3: batch: given twice (first at line 2)"},
    {"train:\n  batch: [8\n", {0}, "not YAML"},
    {"train:\n\tbatch: 8\n", {0}, "job.yaml:2:1: not YAML"},
    {"a: &x 1\nb: *x\n", {0}, "anchors"},
    {"b: *x\n", {0}, "aliases"},
    {"a: !!int 1\n", {0}, "tags"},
    {"a: &x {b: 1}\n", {0}, "anchors"},
    {"? {a: b}\n: c\n", {0}, "a key must be a plain text"},
    {"a: 1\n---\nb: 2\n", {0}, "a second document"},
    {"a: \"x\\0y\"\n", {0}, "zero byte"},
    {"a: [[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]\n", {0}, "nested too deep"},
    {"a: \xff\xfe\n", {0}, "not YAML"},
    {"a:\n\tb: 1\n", {0}, "indent with spaces, not with tabs"},
};

static void test_manifest_bad_is_refused_with_its_place(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bads / sizeof *bads; i++) {
        struct aq_job *job = NULL;
        uint32_t count = 0;
        while (count < 3 && bads[i].sets[count])
            count++;
        capture_begin();
        const enum aq_status status = parse(bads[i].text ? bads[i].text : good, bads[i].sets, count, &job);
        capture_end();
        if (status != AQ_INVAL || !captured_has(bads[i].words)) {
            print_error("case %zu (%s): wanted '%s', got status %d and:\n", i, count ? bads[i].sets[0] : bads[i].text,
                        bads[i].words, (int)status);
            for (uint32_t k = 0; k < captured.count; k++)
                print_error("  %s\n", captured.lines[k]);
        }
        assert_int_equal(status, AQ_INVAL);
        assert_true(captured_has(bads[i].words));
        assert_null(job);
    }
}

static void test_manifest_several_errors_are_told_at_once(void **state)
{
    (void)state;
    struct aq_job *job = NULL;
    capture_begin();
    assert_int_equal(parse("train: {batch: x, T: y, lr: z}\nmodel: {block: 3}\n", NULL, 0, &job), AQ_INVAL);
    capture_end();
    assert_int_equal(captured.count, 4);
    assert_true(captured_has("job.yaml:1:9: train.batch"));
    assert_true(captured_has("job.yaml:1:19: train.T"));
    assert_true(captured_has("job.yaml:2:9: model.block"));
    capture_begin();
    assert_int_equal(parse("data: {train: x}\ntrain: {a1: 1, a2: 1, a3: 1, a4: 1, a5: 1, a6: 1, a7: 1, a8: 1, a9: 1, "
                           "b1: 1, b2: 1, b3: 1}",
                           NULL, 0, &job),
                     AQ_INVAL);
    capture_end();
    assert_int_equal(captured.count, AQ_JOB_ERRORS_MAX + 1);
    assert_true(captured_has("2 more errors are not shown"));
    static const char *const sets[] = {"train.batsh=3", "train.batch=33", "pipeline.stages.1.layers=4-5"};
    capture_begin();
    assert_int_equal(parse(good, sets, 3, &job), AQ_INVAL);
    capture_end();
    assert_int_equal(captured.count, 3); /* a key that nobody knows hides no other error */
}

static void test_manifest_views_that_agree_make_the_edge(void **state)
{
    (void)state;
    static const char *const sets[] = {"pipeline.stages.0.send={bits: 5}", "pipeline.stages.1.receive={bits: 5}"};
    struct aq_job *job = parse_good(sets, 2);
    assert_int_equal(job->edges[0].forward.bits, 5);
    assert_int_equal(job->edges[1].forward.bits, 2);
    aq_job_close(job);
}

/* Scaled gradients are not scaled once more, unless somebody says so. */
/* What edge 1 has both ways: "kind rate-or-bits keyframe, kind rate-or-bits". */
static void codecs_are(const char *const *sets, uint32_t count, const char *want)
{
    static const char text[] = "model: {blocks: 4, channels: 8, heads: 2}\ndata: {train: a}\npipeline: {stages: 3}\n";
    struct aq_job *job;
    char found[160];
    assert_int_equal(aq_job_parse(text, sizeof text - 1, "job.yaml", "/", sets, count, &job), AQ_OK);
    const struct aq_codec_config *f = &job->edges[1].forward, *b = &job->edges[1].backward;
    const struct aq_codec_about *forward = aq_codec_about(f->kind), *backward = aq_codec_about(b->kind);
    snprintf(found, sizeof found, "%s %g %s, %s %g", forward->name, forward->varies ? (double)f->rate : (double)f->bits,
             f->keyframe == AQ_PRECISION_EC ? "ec" : "plain", backward->name,
             backward->varies ? (double)b->rate : (double)b->bits);
    aq_job_close(job);
    assert_string_equal(found, want);
}

/* A job that says nothing of codecs is entropy coded; one that says anything means what it always meant. */
static void test_manifest_that_says_nothing_of_codecs(void **state)
{
    (void)state;
    static const struct {
        const char *set, *want;
    } cases[] = {
        {"train.epochs=2", "ec 2.5 ec, ec 4"},
        {"edges.warmup_epochs=1", "ec 2.5 ec, ec 4"},
        {"edges.list=[{edge: 0, forward: {bits: 2}}, {edge: 1, rtt_ms: 5}]", "ec 2.5 ec, ec 4"},
        {"edges.list=[{edge: 1, forward: {rate: 3}}]", "ec 3 ec, ec 4"}, /* as plan --slack says it */
        {"edges.list=[{edge: 1, forward: {bits: 2}}]", "aqsgd 2 plain, ec 4"},
        {"edges.list=[{edge: 1, forward: {codec: ec}}]", "ec 2.5 plain, ec 4"},
        {"edges.forward.codec=aqsgd", "aqsgd 4 plain, directq 8"},
        {"edges.forward.bits=3", "aqsgd 3 plain, directq 8"},
        {"edges.forward.codec=ec", "ec 2.5 plain, directq 8"},
        {"edges.backward.bits=6", "aqsgd 4 plain, directq 6"},
        {"edges.backward.codec=ec", "aqsgd 4 plain, ec 3"},
        {"edges.forward.store=q8", "aqsgd 4 plain, directq 8"},
        {"pipeline.stages=[{layers: 0-1}, {layers: 2-3, send: {bits: 4}}, {layers: 4-5, receive: {bits: 4}}]",
         "aqsgd 4 plain, directq 8"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        codecs_are(&cases[i].set, 1, cases[i].want);
}

static void test_manifest_fp16_has_a_loss_scale(void **state)
{
    (void)state;
    static const char *const sets[] = {"model.precision=fp16", "edges.list=[{edge: 1, backward: {prescale_log2: 3}}]",
                                       "train.loss_scale=512"};
    struct aq_job *job = parse_good(sets, 0);
    assert_int_equal(job->edges[0].backward.prescale_log2, 16);
    aq_job_close(job);
    job = parse_good(sets, 2);
    assert_int_equal(job->edges[0].backward.prescale_log2, 0);
    assert_int_equal(job->edges[1].backward.prescale_log2, 3);
    assert_true(job->train.loss_scale == 0.0f && job->train.loss_scale_window == 2000);
    aq_job_close(job);
    job = parse_good(sets, 3);
    assert_true(job->train.loss_scale == 512.0f);
    aq_job_close(job);
}

static void test_canonical_parses_to_the_same_job(void **state)
{
    (void)state;
    static const char *const sets[][4] = {
        {"job.name='q\"uo\\te: {x} #'", "train.lr=0.1", "model.weights=w.safetensors", NULL},
        {"pipeline.stages=3", "edges.forward={codec: raw, precision: bf16}", "train.evaluate_every=0", NULL},
        {"pipeline.stages=1", "edges.list=[]", "pipeline.in_flight=5", NULL},
        {"edges.backward={codec: directq, bits: 4, top_k: 0.2, rounding: stochastic, prescale_log2: -3}",
         "edges.forward={codec: aqsgd, bits: 2, hadamard: true, group: tile, tile: 64, store: q8, keyframe: q8, "
         "scale_format: "
         "pow2, grid: midtread, scale: search}",
         "pipeline.stages.1.host=tcp://[::1]:7000", "train.seed=18446744073709551615"},
        {"pipeline.replicas=2", "pipeline.stages.1.host=['tcp://127.0.0.1:1', '']", "pipeline.stages.2.threads=[1, 2]",
         "pipeline.stages.0.device_index=[1, 1]"}};
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        uint32_t count = 0;
        while (count < 4 && sets[i][count])
            count++;
        struct aq_job *job = parse_good(sets[i], count), *again = NULL;
        char *text, *second;
        assert_int_equal(aq_job_canonical(job, &text), AQ_OK);
        assert_int_equal(aq_job_parse(text, strlen(text), "manifest", "/elsewhere", NULL, 0, &again), AQ_OK);
        assert_int_equal(aq_job_canonical(again, &second), AQ_OK);
        assert_string_equal(text, second);
        assert_string_equal(job->name, again->name);
        assert_memory_equal(&job->train.lr, &again->train.lr, sizeof job->train.lr);
        assert_int_equal(job->train.seed, again->train.seed);
        for (uint32_t e = 0; e + 1 < job->pipeline.stage_count; e++)
            assert_true(aq_codec_config_digest(&job->edges[e].forward) ==
                        aq_codec_config_digest(&again->edges[e].forward));
        aq_free(text);
        aq_free(second);
        aq_job_close(job);
        aq_job_close(again);
    }
}

/* A list gives each replica its own value; a single one is for all. */
static void test_manifest_replicas_have_their_own_places(void **state)
{
    (void)state;
    static const char *const sets[] = {"pipeline.replicas=2",
                                       "pipeline.stages.1.host=['tcp://127.0.0.1:1', 'tcp://127.0.0.1:2']",
                                       "pipeline.stages.0.threads=[3, 5]", "pipeline.stages.2.threads=7"};
    struct aq_job *job = parse_good(sets, 4);
    const struct aq_job_stage *stages = job->pipeline.stages;
    assert_int_equal(aq_job_ranks(job), 6);
    assert_int_equal(aq_job_links(job), 7); /* two in each pipeline, one between the replicas of each stage */
    assert_string_equal(stages[1].host, "tcp://127.0.0.1:1");
    assert_string_equal(stages[4].host, "tcp://127.0.0.1:2");
    assert_null(stages[3].host);
    assert_int_equal(stages[0].threads, 3);
    assert_int_equal(stages[3].threads, 5);
    assert_int_equal(stages[2].threads, 7);
    assert_int_equal(stages[5].threads, 7);
    for (uint32_t s = 0; s < 3; s++) {
        assert_int_equal(stages[s].layer_first, stages[3 + s].layer_first);
        assert_int_equal(stages[s].layer_end, stages[3 + s].layer_end);
    }
    aq_job_close(job);
}

static void check_fallbacks(struct aq_key_table table, void *base)
{
    for (uint32_t i = 0; i < table.count; i++) {
        const struct aq_key *key = &table.keys[i];
        assert_true(strlen(key->help) > 0);
        if (!aq_key_is_scalar(key) || !*key->fallback) continue;
        if (aq_key_read(key, key->fallback, false, base) != AQ_OK)
            fail_msg("the default of %s cannot be read", key->name);
    }
}

static void test_keys_table_is_sound(void **state)
{
    (void)state;
    static struct aq_job job;
    static struct aq_job_stage stage;
    static struct aq_codec_config codec;
    check_fallbacks(aq_keys_job(), &job);
    check_fallbacks(aq_keys_stage(), &stage);
    check_fallbacks(aq_keys_codec(), &codec);
    const struct aq_key_table keys = aq_keys_job();
    for (uint32_t i = 0; i < keys.count; i++)
        for (uint32_t k = 0; k < i; k++)
            assert_string_not_equal(keys.keys[i].name, keys.keys[k].name);
}

/* What the table says of a codec's defaults is what the codec's own room does. */
static void test_keys_codec_defaults_are_the_codecs(void **state)
{
    (void)state;
    struct aq_codec_config config;
    const struct aq_key_table keys = aq_keys_codec();
    aq_codec_config_default(&config, AQ_CODEC_AQSGD, 4);
    for (uint32_t i = 0; i < keys.count; i++) {
        struct aq_text text = {0};
        if (strcmp(keys.keys[i].name, "precision") == 0) continue; /* of raw */
        if (!aq_key_write(&keys.keys[i], &config, &text)) fail_msg("%s has no value", keys.keys[i].name);
        if (strcmp(aq_text_of(&text), keys.keys[i].fallback) != 0)
            fail_msg("keys.def says %s of %s, the codec has %s", keys.keys[i].fallback, keys.keys[i].name,
                     aq_text_of(&text));
        aq_text_deinit(&text);
    }
}

static void test_docs_manifest_is_up_to_date(void **state)
{
    (void)state;
    enum { PAGE_BYTES = 1 << 18 };
    static char page[PAGE_BYTES];
    char *want;
    assert_int_equal(aq_keys_markdown(&want), AQ_OK);
    FILE *file = fopen(AQ_SOURCE_DIR "/docs/MANIFEST.md", getenv("AQ_GOLDEN") ? "w+" : "r");
    if (file && getenv("AQ_GOLDEN")) {
        fputs(want, file);
        rewind(file);
    }
    if (!file) fail_msg("docs/MANIFEST.md is not there: aqpipe help keys --markdown > docs/MANIFEST.md");
    page[fread(page, 1, PAGE_BYTES - 1, file)] = 0;
    fclose(file);
    if (strcmp(page, want) != 0) fail_msg("docs/MANIFEST.md is old: aqpipe help keys --markdown > docs/MANIFEST.md");
    aq_free(want);
}

static void test_docs_manifest_has_common_keys_first_and_no_internal_ones(void **state)
{
    (void)state;
    char *page;
    assert_int_equal(aq_keys_markdown(&page), AQ_OK);
    const char *common = strstr(page, "## Common keys"), *end = strstr(page, "\n## job\n");
    uint32_t rows = 0;
    assert_true(common && end && common < end);
    for (const char *row = strstr(common, "\n| `"); row && row < end; row = strstr(row + 1, "\n| `"))
        rows++;
    assert_int_equal(rows, 25);
    assert_null(strstr(page, "`split.client`"));
    assert_null(strstr(page, "`facts.parts`"));
    assert_non_null(strstr(page, "`facts.vocabulary`"));
    aq_free(page);
}

static void test_help_names_every_key_with_range_and_default(void **state)
{
    (void)state;
    char *help;
    assert_int_equal(aq_keys_help(NULL, &help), AQ_OK);
    const struct aq_key_table keys = aq_keys_job();
    for (uint32_t i = 0; i < keys.count; i++)
        assert_non_null(strstr(help, keys.keys[i].name));
    assert_non_null(strstr(help, "a whole number, 1 to 1048576 samples; default 8"));
    aq_free(help);
}

static void test_load_names_the_file_that_is_not_there(void **state)
{
    (void)state;
    struct aq_job *job;
    capture_begin();
    assert_int_equal(aq_job_load("/nowhere/job.yaml", NULL, 0, &job), AQ_NOTFOUND);
    capture_end();
    assert_true(captured_has("/nowhere/job.yaml"));
}

/* Every allocation fails once: a status, no leak (the sanitizer looks), no crash. */
static void test_parse_survives_failing_allocations(void **state)
{
    (void)state;
    bool done = false;
    capture_begin();
    for (uint64_t n = 1; !done && n < 200; n++) {
        struct aq_job *job = NULL;
        aq_memory_fail_at(n);
        const enum aq_status status = parse(good, NULL, 0, &job);
        aq_memory_fail_at(0);
        assert_true(status == AQ_OK || status == AQ_NOMEM);
        done = status == AQ_OK;
        if (done) aq_job_close(job);
    }
    capture_end();
    assert_true(done);
}

/* What leaves the machine must be under TLS, or be said to go in the clear. */
static void test_manifest_outside_without_keys_is_refused(void **state)
{
    (void)state;
    static const char *const outside[] = {"link.host=10.0.0.9",
                                          "link.host='::'",
                                          "pipeline.stages=[{layers: 0-1}, {layers: 2-5, address: 'far:1'}]",
                                          "pipeline.stages=[{layers: 0-5, host: 'tcp://10.1.2.3:7'}]",
                                          "security.tls=on",
                                          "pipeline.stages=[{layers: 0-5, host: 'tcp://127.evil.example:7'}]",
                                          "link.host=127.evil.example",
                                          "pipeline.stages=[{layers: 0-1}, {layers: 2-5, address: 'localhost.evil:1'}]",
                                          "link.host=0.0.0.0"};
    static const char *const inside[] = {"link.host=127.3.2.1", "link.host=localhost",
                                         "pipeline.stages=[{layers: 0-1}, {layers: 2-5, address: '[::1]:1'}]",
                                         "pipeline.stages=[{layers: 0-5, host: 'tcp://127.0.0.1:7'}]",
                                         "security.tls=off"};
    static const char text[] = "model: {blocks: 4}\npipeline: {stages: 2}\ndata: {train: a}\n";
    struct aq_job *job;
    for (size_t i = 0; i < sizeof outside / sizeof *outside; i++) {
        const char *const sets[] = {outside[i], "security.keys=/k"}, *const off[] = {outside[i], "security.tls=off"};
        aq_error_clear();
        assert_int_equal(aq_job_parse(text, sizeof text - 1, "job.yaml", "/x", sets, 1, &job), AQ_INVAL);
        assert_non_null(strstr(aq_error_text(), "aqpipe keys init DIR"));
        const bool daemon = strstr(outside[i], "10.1.2.3"),
                   one = strstr(aq_error_text(), "--stages 1 --hosts 10.1.2.3)");
        assert_int_equal(daemon, one);
        assert_int_equal(aq_job_parse(text, sizeof text - 1, "job.yaml", "/x", sets, 2, &job), AQ_OK);
        assert_true(aq_security_on(job));
        assert_string_equal(job->security.keys, "/k");
        aq_job_close(job);
        assert_int_equal(aq_job_parse(text, sizeof text - 1, "job.yaml", "/", off, 2, &job), AQ_OK);
        assert_false(aq_security_on(job));
        aq_job_close(job);
    }
    for (size_t i = 0; i < sizeof inside / sizeof *inside; i++) {
        assert_int_equal(aq_job_parse(text, sizeof text - 1, "job.yaml", "/", &inside[i], 1, &job), AQ_OK);
        assert_false(aq_security_on(job));
        aq_job_close(job);
        const char *const keys[] = {inside[i], "security.keys=k"}; /* who names keys means them */
        assert_int_equal(aq_job_parse(text, sizeof text - 1, "job.yaml", "/", keys, 2, &job), AQ_OK);
        assert_int_equal(aq_security_on(job), strcmp(inside[i], "security.tls=off") != 0);
        aq_job_close(job);
    }
}

static void test_manifest_address_is_read_as_it_will_be_used(void **state)
{
    (void)state;
    static const struct {
        const char *set, *words;
    } bad[] = {
        {"link.host=127.1", "link.host: '127.1' is not a host"},
        {"link.host='a b'", "is not a host"},
        {"link.host=''", "is not a host"},
        {"pipeline.stages=[{layers: 0-5, host: 'tcp://127.0.0.1'}]", "pipeline.stages.0.host: 'tcp://127.0.0.1' is no"},
        {"pipeline.stages=[{layers: 0-5, host: 'tcp://127.0.0.1:0'}]", "port 0 cannot be reached"},
        {"pipeline.stages=[{layers: 0-5, host: '127.0.0.1:99999'}]", "the port is not a number"},
        {"pipeline.stages=[{layers: 0-1}, {layers: 2-5, address: '0x7f000001:1'}]", "pipeline.stages.1.address: "},
        {"pipeline.stages=[{layers: 0-1}, {layers: 2-5, address: 'a@b:1'}]", "is only for daemons"},
    };
    static const char text[] = "model: {blocks: 4}\npipeline: {stages: 2}\ndata: {train: a}\n";
    struct aq_job *job;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const char *const sets[] = {bad[i].set, "security.tls=off"};
        aq_error_clear();
        assert_int_equal(aq_job_parse(text, sizeof text - 1, "job.yaml", "/", sets, 2, &job), AQ_INVAL);
        if (!strstr(aq_error_text(), bad[i].words)) fail_msg("%s: %s", bad[i].set, aq_error_text());
    }
}

/* ---- published folders ---- */

static void write_config(const char *folder, const char *text)
{
    char path[128];
    snprintf(path, sizeof path, "%s/config.json", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static const char published[] = "{\"model_type\": \"gpt2\", \"n_layer\": 3, \"n_head\": 4, \"n_embd\": 32, "
                                "\"vocab_size\": 300, \"n_positions\": 64, \"resid_pdrop\": 0.1}";

/* A folder, adapters and sizes that cannot be: each is one line, with its place in the manifest and what was found. */
static void test_manifest_what_a_file_says_wrong_is_one_line(void **state)
{
    static const char *const files[] = {"config.json", "adapter_config.json"};
    static const char odd[] = "{\"model_type\": \"modernbert\", \"hidden_activation\": \"relu\", "
                              "\"peft_type\": \"LORA\", \"r\": 4, \"lora_alpha\": 8, \"use_qalora\": true}";
    static const char *const jobs[] = {"model: {weights: %s}\ndata: {train: a, tokenizer: bytes}\n",
                                       "model: {blocks: 2}\ndata: {train: a}\nlora: {weights: %s}\n",
                                       "model: {kind: llama, heads: 3, channels: 32}\ndata: {train: '%s'}\n"};
    static const char *const words[] = {"job.yaml:1:9: model.weights: ", "job.yaml:3:8: lora.weights: ", "model.heads"};
    static const char *const found[] = {"config.json: hidden_activation: found \"relu\", expected gelu",
                                        "adapter_config.json: use_qalora: found true, expected none",
                                        "3 heads do not divide 32 channels"};
    char folder[] = "/tmp/aq-manifest-XXXXXX", text[512], path[128];
    struct aq_job *job;
    (void)state;
    assert_non_null(mkdtemp(folder));
    write_config(folder, odd);
    snprintf(path, sizeof path, "%s/%s", folder, files[1]);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(odd, file) >= 0);
    assert_int_equal(fclose(file), 0);
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        snprintf(text, sizeof text, jobs[i], folder);
        capture_begin();
        assert_int_equal(parse(text, NULL, 0, &job), AQ_INVAL);
        capture_end();
        if (captured.count != 1 || !captured_has(words[i]) || !captured_has(found[i]))
            fail_msg("%u lines: %s", captured.count, captured.lines[0]);
    }
    for (size_t i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, files[i]);
        assert_int_equal(unlink(path), 0);
    }
    assert_int_equal(rmdir(folder), 0);
}

static void test_manifest_folder_says_every_size(void **state)
{
    char folder[] = "/tmp/aq-manifest-XXXXXX", text[512], path[128];
    struct aq_job *job;
    (void)state;
    assert_non_null(mkdtemp(folder));
    write_config(folder, published);
    snprintf(text, sizeof text,
             "model: {weights: %s, dropout: 0.2}\ndata: {train: a, tokenizer: bytes}\ntrain: {T: 64}\n", folder);
    assert_int_equal(parse(text, NULL, 0, &job), AQ_OK);
    const struct aq_model_config *model = &job->model.config;
    assert_string_equal(model->kind, "gpt2");
    assert_int_equal(model->blocks, 3);
    assert_int_equal(model->heads, 4);
    assert_int_equal(model->channels, 32);
    assert_int_equal(model->vocabulary, 300);
    assert_int_equal(model->context, 64);
    assert_true(model->tied && model->dropout == 0.2f); /* the job's choice */
    aq_job_close(job);

    /* The same said again; a vocabulary of whatever there is; the job's choices. */
    const char *const again[] = {"model.kind=gpt2", "model.blocks=3", "model.vocabulary=0", "model.tied=false"};
    assert_int_equal(parse(text, again, 4, &job), AQ_OK);
    assert_int_equal(job->model.config.vocabulary, 300);
    assert_false(job->model.config.tied);
    aq_job_close(job);

    /* The tokenizer is the folder's where there is one; else it must be named, unless bytes fill the vocabulary. */
    snprintf(text, sizeof text, "model: {weights: %s}\ndata: {train: a}\ntrain: {T: 64}\n", folder);
    aq_error_clear();
    assert_int_equal(parse(text, NULL, 0, &job), AQ_INVAL);
    assert_non_null(strstr(aq_error_text(), "has no tokenizer that is read here; name one"));
    static const struct {
        const char *file, *kind;
    } tokenizers[] = {{"merges.txt", "gpt2"}, {"tokenizer.json", "huggingface"}};
    for (size_t i = 0; i < 2; i++) { /* the later one before the earlier */
        snprintf(path, sizeof path, "%s/%s", folder, tokenizers[i].file);
        assert_int_equal(fclose(fopen(path, "w")), 0);
        assert_int_equal(parse(text, NULL, 0, &job), AQ_OK);
        assert_string_equal(job->data.tokenizer, tokenizers[i].kind);
        assert_string_equal(job->data.tokenizer_path, folder);
        aq_job_close(job);
    }
    const char *const other[] = {"data.tokenizer=gpt2"};
    assert_int_equal(parse(text, other, 1, &job), AQ_OK);
    assert_string_equal(job->data.tokenizer, "gpt2");
    assert_string_equal(job->data.tokenizer_path, folder);
    aq_job_close(job);
    for (size_t i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, tokenizers[i].file);
        assert_int_equal(unlink(path), 0);
    }

    /* What a launcher has resolved, with every key of the model, does not ask the folder. */
    const char *const facts[] = {"facts.train_samples=4", "data.tokenizer=bytes", "model.blocks=2",   "model.heads=4",
                                 "model.channels=32",     "model.vocabulary=300", "model.context=64", "model.dropout=0",
                                 "model.tied=exact",      "model.init_std=0.02"};
    assert_int_equal(parse(text, facts, sizeof facts / sizeof facts[0], &job), AQ_OK);
    assert_int_equal(job->model.config.blocks, 2);
    assert_int_equal(job->data.bos, AQ_BEGIN_NONE); /* no fact of places: an older version planned it */
    aq_job_close(job);

    /* The server of split learning has a client's facts and the manifest as it was written: the folder is asked. */
    assert_int_equal(parse(text, facts, 2, &job), AQ_OK);
    assert_int_equal(job->model.config.blocks, 3);
    aq_job_close(job);
    assert_int_equal(parse(text, facts, 3, &job), AQ_INVAL);
    snprintf(path, sizeof path, "%s/config.json", folder);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0);
}

static void test_manifest_that_contradicts_a_folder_is_refused(void **state)
{
    static const struct {
        const char *set, *says;
    } cases[] = {
        {"model.blocks=4", "--set: model.blocks: 4, but "},
        {"model.blocks=4", "/config.json (model.weights) has 3; leave the key out"},
        {"model.vocabulary=301", "model.vocabulary: 301, but "},
        {"model.kind=pyramid", "model.kind: pyramid, but "},
        {"train.T=65", "train.T: 65 tokens, but the position table has 64 rows"},
    };
    char folder[] = "/tmp/aq-manifest-XXXXXX", text[512], path[128];
    struct aq_job *job;
    (void)state;
    assert_non_null(mkdtemp(folder));
    write_config(folder, published);
    snprintf(text, sizeof text, "model: {weights: %s}\ndata: {train: a, tokenizer: bytes}\ntrain: {T: 64}\n", folder);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        aq_error_clear();
        assert_int_equal(parse(text, &cases[i].set, 1, &job), AQ_INVAL);
        if (!strstr(aq_error_text(), cases[i].says)) fail_msg("%s: %s", cases[i].set, aq_error_text());
    }
    write_config(folder, "{\"model_type\": \"gpt9\"}");
    aq_error_clear();
    assert_int_equal(parse(text, NULL, 0, &job), AQ_INVAL);
    assert_non_null(strstr(aq_error_text(), "gpt9 (gpt9) is not among"));
    snprintf(path, sizeof path, "%s/config.json", folder);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0);
}

static void test_examples_parse(void **state)
{
    (void)state;
    static const char *const names[] = {"bytes-4-stages.yaml",     "eight-stages.yaml",     "two-hosts.yaml",
                                        "gpt2-wikitext2/job.yaml", "gpt2-arxiv/job.yaml",   "gpt2-cola/job.yaml",
                                        "deberta-cola/job.yaml",   "deberta-qnli/job.yaml", "qwen3-sft-lora/job.yaml"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[512];
        struct aq_job *job = NULL;
        snprintf(path, sizeof path, "%s/examples/%s", AQ_SOURCE_DIR, names[i]);
        assert_int_equal(aq_job_load(path, NULL, 0, &job), AQ_OK);
        aq_job_close(job);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_manifest_good_gives_its_values),
        cmocka_unit_test(test_manifest_sets_win),
        cmocka_unit_test(test_manifest_lioncub_has_a_norm_and_a_mask),
        cmocka_unit_test(test_manifest_stage_count_is_an_automatic_cut),
        cmocka_unit_test(test_manifest_bad_is_refused_with_its_place),
        cmocka_unit_test(test_manifest_several_errors_are_told_at_once),
        cmocka_unit_test(test_manifest_views_that_agree_make_the_edge),
        cmocka_unit_test(test_manifest_that_says_nothing_of_codecs),
        cmocka_unit_test(test_manifest_fp16_has_a_loss_scale),
        cmocka_unit_test(test_canonical_parses_to_the_same_job),
        cmocka_unit_test(test_manifest_replicas_have_their_own_places),
        cmocka_unit_test(test_keys_table_is_sound),
        cmocka_unit_test(test_keys_codec_defaults_are_the_codecs),
        cmocka_unit_test(test_docs_manifest_is_up_to_date),
        cmocka_unit_test(test_docs_manifest_has_common_keys_first_and_no_internal_ones),
        cmocka_unit_test(test_help_names_every_key_with_range_and_default),
        cmocka_unit_test(test_load_names_the_file_that_is_not_there),
        cmocka_unit_test(test_parse_survives_failing_allocations),
        cmocka_unit_test(test_manifest_outside_without_keys_is_refused),
        cmocka_unit_test(test_manifest_address_is_read_as_it_will_be_used),
        cmocka_unit_test(test_manifest_what_a_file_says_wrong_is_one_line),
        cmocka_unit_test(test_manifest_folder_says_every_size),
        cmocka_unit_test(test_manifest_that_contradicts_a_folder_is_refused),
        cmocka_unit_test(test_examples_parse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
