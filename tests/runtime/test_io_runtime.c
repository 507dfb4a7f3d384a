/*
 * test_io_runtime.c -- the files of a run while their disk fails, at every call, and after a crash between any two:
 * small files, the note of the last checkpoint, weights, checkpoints by the thread beside the training, metrics.
 *
 * Each case has something old on the disk and writes something new. Whatever fails: the old or the new is there, whole,
 * and the new where it was told to be; what fails says why; no file is left half written beside it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
#include <fcntl.h>

#include "checkpoint.h"
#include "checkpoint_writer.h"
#include "io_fault.h"
#include "job.h"
#include "metrics.h"
#include "plan.h"
#include "run_folder.h"
#include "run_rewind.h"
#include "stages/weights.h"

enum { PATH_BYTES = 512, CALLS_MAX = 400, LINES = 3, FLOATS = 3000 };
enum what { OLD, NEW, BROKEN };

static char root[PATH_BYTES], copy[PATH_BYTES + 8], first_line[512];
static bool told, told_at_crash; /* the new was said to be there */
static uint64_t lines_told, lines_at_crash;

static void take_line(int level, const char *line, void *context)
{
    (void)context;
    if (level == 0 && !first_line[0]) snprintf(first_line, sizeof first_line, "%s", line);
}

static void on_crash(void)
{
    told_at_crash = told;
    lines_at_crash = lines_told;
}

static const char *in(const char *folder, const char *name)
{
    static char path[2][2 * PATH_BYTES];
    static int next;
    next = !next;
    snprintf(path[next], sizeof path[next], "%s/%s", folder, name);
    return path[next];
}

/* ---- a small file ---- */

static const char *const texts[] = {"{\"old\": 1}\n", "{\"and what is new\": [2, 3, 4, 5, 6, 7, 8, 9]}\n"};

static void text_old(void)
{
    assert_int_equal(aq_file_replace(NULL, in(root, "file"), 0600, texts[OLD], strlen(texts[OLD])), AQ_OK);
}

static enum aq_status text_new(void)
{
    return aq_file_replace(NULL, in(root, "file"), 0600, texts[NEW], strlen(texts[NEW]));
}

static enum what text_there(const char *folder)
{
    char *text;
    if (aq_file_load(NULL, in(folder, "file"), 4096, &text, NULL) != AQ_OK) return BROKEN;
    const enum what there = strcmp(text, texts[OLD]) == 0 ? OLD : strcmp(text, texts[NEW]) == 0 ? NEW : BROKEN;
    aq_free(text);
    return there;
}

/* ---- which checkpoint is the last ---- */

static void mark_old(void)
{
    const struct aq_run_mark mark = {.step = 3, .plan_hash = 5, .resume_hash = 7};
    assert_int_equal(aq_run_mark_write(root, &mark), AQ_OK);
}

static enum aq_status mark_new(void)
{
    const struct aq_run_mark mark = {.step = 6, .older = 3, .plan_hash = 5, .resume_hash = 7};
    return aq_run_mark_write(root, &mark);
}

static enum what mark_there(const char *folder)
{
    struct aq_run_mark mark;
    if (aq_run_mark_read(folder, &mark) != AQ_OK || mark.plan_hash != 5) return BROKEN;
    return mark.step == 3 && mark.older == 0 ? OLD : mark.step == 6 && mark.older == 3 ? NEW : BROKEN;
}

/* ---- weights ---- */

static float floats[FLOATS];

static enum aq_status weights_write(float value)
{
    const char *const metadata[] = {"value", value == 1 ? "old" : "new", NULL};
    const struct aq_weights_tensor tensors[] = {
        {.name = "a", .dimensions = 1, .shape = {FLOATS}, .values = floats},
        {.name = "b", .dimensions = 2, .shape = {2, 3}, .values = floats},
    };
    for (int i = 0; i < FLOATS; i++)
        floats[i] = value + (float)i;
    return aq_weights_write(in(root, "weights"), tensors, 2, metadata);
}

static void weights_old(void)
{
    assert_int_equal(weights_write(1), AQ_OK);
}

static enum aq_status weights_new(void)
{
    return weights_write(2);
}

static enum what weights_there(const char *folder)
{
    static float got[FLOATS];
    struct aq_weights *weights;
    uint32_t index;
    if (aq_weights_open(in(folder, "weights"), &weights) != AQ_OK) return BROKEN;
    enum what there = BROKEN;
    if (aq_weights_find(weights, "a", &index) == AQ_OK &&
        aq_weights_read(weights, index, false, got, FLOATS) == AQ_OK && (got[0] == 1 || got[0] == 2))
        there = got[0] == 1 ? OLD : NEW;
    for (int i = 0; i < FLOATS; i++)
        if (got[i] != got[0] + (float)i) there = BROKEN;
    aq_weights_close(weights);
    return there;
}

/* ---- a stage's checkpoint, by the thread beside the training ---- */

static const char manifest[] = "model: {blocks: 1, heads: 1, channels: 2, context: 4, vocabulary: 256, tied: false}\n"
                               "data: {train: nowhere.txt}\n"
                               "train: {T: 4, batch: 2, micro_batch: 1, epochs: 1}\n"
                               "pipeline: {stages: [{layers: 0-0}, {layers: 1-1}, {layers: 2-2}]}\n"
                               "facts: {vocabulary: 256, train_samples: 2, train_digest: 1, heldout_samples: 0}\n";

static struct aq_checkpoint checkpoint;
static struct aq_job *job;
static struct aq_plan *plan;

static void stage_open(void)
{
    struct aq_optimizer_tensor tensors[32];
    const struct aq_device_config config = {.kind = "cpu", .threads = 1};
    assert_int_equal(aq_job_parse(manifest, strlen(manifest), "io.yaml", "/", NULL, 0, &job), AQ_OK);
    assert_int_equal(aq_plan_open(job, &plan), AQ_OK);
    checkpoint = (struct aq_checkpoint){.folder = root, .rank = 1};
    aq_plan_checkpoint_run(plan, &checkpoint.run);
    assert_int_equal(aq_device_open(&config, &checkpoint.device), AQ_OK);
    assert_int_equal(aq_stage_open(checkpoint.device, &plan->stages[1].config, &checkpoint.stage), AQ_OK);
    const uint32_t count = aq_stage_tensor_count(checkpoint.stage);
    assert_in_range(count, 1, 32);
    for (uint32_t i = 0; i < count; i++) {
        struct aq_tensor_info info;
        aq_stage_tensor(checkpoint.stage, i, &info);
        tensors[i] = (struct aq_optimizer_tensor){.offset = info.offset, .count = info.count, .decay = info.decay};
    }
    assert_int_equal(aq_optimizer_open(checkpoint.device, &job->train.optimizer, tensors, count,
                                       aq_stage_parameter_count(checkpoint.stage), &checkpoint.optimizer),
                     AQ_OK);
}

static void stage_close(void)
{
    aq_optimizer_close(checkpoint.optimizer);
    aq_stage_close(checkpoint.stage);
    aq_device_close(checkpoint.device);
    aq_plan_close(plan);
    aq_job_close(job);
}

static void checkpoint_old(void)
{
    assert_int_equal(aq_stage_init(checkpoint.stage, 1), AQ_OK);
    checkpoint.folder = root;
    assert_int_equal(aq_checkpoint_write(&checkpoint, 3), AQ_OK);
}

/* A second one, as the run asks for it. */
static enum aq_status checkpoint_new(void)
{
    struct aq_checkpoint_writer *writer;
    struct aq_eventcount *eventcount;
    checkpoint.folder = root;
    assert_int_equal(aq_stage_init(checkpoint.stage, 2), AQ_OK);
    assert_int_equal(aq_eventcount_open(&eventcount), AQ_OK);
    assert_int_equal(aq_checkpoint_writer_open(&checkpoint, true, eventcount, &writer), AQ_OK);
    enum aq_status status = aq_checkpoint_writer_begin(writer, 6);
    while (status == AQ_OK && (status = aq_checkpoint_writer_done(writer)) == AQ_AGAIN) {
        status = AQ_OK;
        usleep(20);
    }
    aq_checkpoint_writer_close(writer);
    aq_eventcount_close(eventcount);
    return status;
}

static enum what checkpoint_there(const char *folder)
{
    checkpoint.folder = folder;
    enum what there = BROKEN;
    if (aq_checkpoint_read(&checkpoint, 3) == AQ_OK) there = OLD;
    const enum aq_status status = aq_checkpoint_read(&checkpoint, 6);
    if (there == OLD && status == AQ_OK) there = NEW;
    if (status != AQ_OK && status != AQ_NOTFOUND) there = BROKEN;
    return there;
}

/* ---- metrics: whole lines, each once, and those that were synced ---- */

static void metrics_old(void)
{
    lines_told = 0;
}

static enum aq_status metrics_new(void)
{
    struct aq_metrics *metrics;
    const struct aq_metrics_config config = {.path = in(root, "metrics.jsonl"), .stages = 1};
    enum aq_status status = aq_metrics_open(&config, &metrics);
    if (status != AQ_OK) return status;
    aq_metrics_go(metrics);
    for (int i = 0; i < LINES && status == AQ_OK; i++)
        status = aq_metrics_line(metrics, json_pack("{s:s, s:i}", "event", "line", "number", i));
    if (status != AQ_OK) /* and on, as a run that lives does */
        (void)aq_metrics_line(metrics, json_pack("{s:s, s:i}", "event", "line", "number", 99));
    if (status == AQ_OK) status = aq_metrics_sync(metrics);
    if (status == AQ_OK) lines_told = LINES;
    aq_metrics_close(metrics);
    return status;
}

static enum what metrics_there(const char *folder)
{
    json_int_t count = 0;
    bool broken = false;
    char *text;
    size_t bytes;
    const enum aq_status read = aq_file_load(NULL, in(folder, "metrics.jsonl"), 1 << 20, &text, &bytes);
    if (read == AQ_NOTFOUND) return OLD;
    if (read != AQ_OK) return BROKEN;
    for (char *at = text, *end = text; !broken && at < text + bytes; at = end ? end + 1 : NULL) {
        end = memchr(at, '\n', (size_t)(text + bytes - at));
        json_t *line = end ? json_loadb(at, (size_t)(end - at), 0, NULL) : NULL;
        const json_int_t number = json_integer_value(json_object_get(line, "number"));
        broken = !line || (number != count && number != 99);
        count += !broken;
        json_decref(line);
    }
    aq_free(text);
    /* A crash may leave half a line, or holes in what was not synced: whoever reads stops there. */
    if (broken && folder == root) return BROKEN;
    return count >= LINES ? NEW : OLD;
}

/* ---- metrics that go back to a checkpoint: restarts are never lost, and nothing before it is ---- */

#define KEPT  "{\"event\":\"start\"}\n{\"event\":\"step\",\"step\":1,\"time\":2}\n"
#define AGAIN "{\"event\":\"restart\",\"step\":1,\"cause\":\"%d\"}\n"
enum { LATER_STEPS = 150, LATER_BYTES = 60 + LATER_STEPS * 100 }; /* some blocks */

static void rewind_old(void)
{
    static char text[sizeof KEPT + LATER_BYTES];
    size_t at = (size_t)snprintf(text, sizeof text, KEPT);
    for (int i = 0; i < LATER_STEPS; i++)
        at += (size_t)snprintf(
            text + at, sizeof text - at,
            i % 50 == 20 ? AGAIN : "{\"event\":\"step\",\"step\":2,\"attempt\":%d,\"pad\":\"........\"}\n", i);
    assert_int_equal(aq_file_replace(NULL, in(root, "metrics.jsonl"), 0600, text, at), AQ_OK);
}

static enum aq_status rewind_new(void)
{
    double seconds = 0;
    return aq_run_rewind(in(root, "metrics.jsonl"), 1, sizeof KEPT - 1, &seconds);
}

static bool is_rewound(const char *folder)
{
    char wanted[sizeof KEPT + 256], *text;
    snprintf(wanted, sizeof wanted, KEPT AGAIN AGAIN AGAIN, 20, 70, 120);
    if (aq_file_load(NULL, in(folder, "metrics.jsonl"), 1 << 20, &text, NULL) != AQ_OK) return false;
    const bool same = strcmp(text, wanted) == 0;
    aq_free(text);
    return same;
}

static enum what rewind_there(const char *folder)
{
    double seconds = 0;
    const bool there = is_rewound(folder) && access(in(folder, "metrics.jsonl.tail"), F_OK) != 0;
    /* Whatever was left: the next launch makes the same of it. */
    if (aq_run_rewind(in(folder, "metrics.jsonl"), 1, sizeof KEPT - 1, &seconds) != AQ_OK || !is_rewound(folder) ||
        seconds != 2)
        return BROKEN;
    return there ? NEW : OLD;
}

/* ---- every call ---- */

static const struct io_case {
    const char *name;
    void (*old)(void);
    enum aq_status (*new)(void);
    enum what (*there)(const char *folder);
} cases[] = {
    {"text", text_old, text_new, text_there},
    {"mark", mark_old, mark_new, mark_there},
    {"weights", weights_old, weights_new, weights_there},
    {"checkpoint", checkpoint_old, checkpoint_new, checkpoint_there},
    {"metrics", metrics_old, metrics_new, metrics_there},
    {"rewind", rewind_old, rewind_new, rewind_there},
};

/* Names in the folder that end so. */
static int left(const char *folder)
{
    static const char *const ends[] = {"file.new",           "complete.new",
                                       "weights.partial",    "6/stage-1.safetensors.partial",
                                       "metrics.jsonl.tail", "metrics.jsonl.tail.new"};
    int count = 0;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        count += access(in(folder, ends[i]), F_OK) == 0;
    return count;
}

static bool one(const struct io_case *c, enum io_fault_kind kind, int error, uint64_t n)
{
    const char *base = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    snprintf(root, sizeof root, "%s/aqpipe-test-XXXXXX", base);
    assert_non_null(mkdtemp(root));
    snprintf(copy, sizeof copy, "%s-copy", root);
    told = told_at_crash = false;
    first_line[0] = 0;
    c->old();
    const int descriptors = io_fault_descriptors();
    io_fault_begin(root, kind, n, error, copy, on_crash);
    const enum aq_status status = c->new ();
    told = status == AQ_OK;
    const int after = open(in(root, "nothing"), O_RDONLY); /* one call more: a crash when all is done */
    if (after != -1) close(after);
    const bool fired = io_fault_end();
    const enum what there = c->there(root);
    const bool crashed = fired && kind >= IO_FAULT_KILL;
    const enum what after_crash = crashed ? c->there(copy) : NEW;
    const bool stays = strncmp(io_fault_call(), "unlink", 6) == 0; /* it could not be removed */
    const bool silent = fired && io_fault_must_be_told() && status == AQ_OK &&
                        !strstr(io_fault_call(), ".index"); /* that can be made again */
    const char *wrong = there == BROKEN                     ? "what is there is broken"
                        : told && there != NEW              ? "it was told, and is not there"
                        : silent                            ? "a failed call was passed over"
                        : status != AQ_OK && !first_line[0] ? "it failed and said nothing"
                        : status != AQ_OK && error && !strstr(first_line, strerror(error)) ? "another cause is said"
                        : status != AQ_OK && kind != IO_FAULT_ERROR && kind != IO_FAULT_FULL
                            ? "it failed without an error"
                        : io_fault_descriptors() != descriptors          ? "a descriptor is left open"
                        : !crashed && !(fired && stays) && left(root)    ? "a file is left beside it"
                        : after_crash == BROKEN                          ? "what a crash left is broken"
                        : crashed && told_at_crash && after_crash != NEW ? "a crash took what was told"
                                                                         : NULL;
    if (wrong)
        fail_msg("%s: %s: kind %d %s at call %llu (%s): %s; it said: %s", c->name, wrong, kind,
                 error ? strerror(error) : "", (unsigned long long)n, io_fault_call(), aq_status_text(status),
                 first_line);
    io_fault_remove(root);
    if (crashed) io_fault_remove(copy);
    return fired;
}

static void every_call(const struct io_case *c)
{
    static const struct {
        enum io_fault_kind kind;
        int error;
    } kinds[] = {{IO_FAULT_ERROR, EIO},   {IO_FAULT_ERROR, ENOSPC}, {IO_FAULT_INTERRUPT, 0}, {IO_FAULT_SHORT, 0},
                 {IO_FAULT_FULL, ENOSPC}, {IO_FAULT_KILL, 0},       {IO_FAULT_POWER, 0},     {IO_FAULT_MIXED, 0}};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (uint64_t n = 1; one(c, kinds[k].kind, kinds[k].error, n); n++)
            assert_true(n < CALLS_MAX);
}

static void test_every_call_fails_old_or_new(void **state)
{
    every_call(*state);
}

/* A file of another step, stage, plan or format, or with other bytes, under the name of ours: each refused by name. */
static void test_checkpoint_that_is_not_ours_is_refused(void **state)
{
    static const struct {
        const char *there, *here, *said; /* the same length */
        enum aq_status status;
    } changes[] = {
        {"\"step\":\"3\"", "\"step\":\"4\"", "step is 4", AQ_MISMATCH},
        {"\"stage\":\"1\"", "\"stage\":\"2\"", "stage is 2", AQ_MISMATCH},
        {"\"plan_hash\":\"", "\"plan_hash\":\"", "plan_hash is", AQ_MISMATCH},
        {"checkpoint 1", "checkpoint 3", "format is aqpipe checkpoint 3", AQ_MISMATCH},
        {"checkpoint 1", "checkpoint 2", "`updates` is 'missing'", AQ_CORRUPT},
        {"\"digest\":\"", "\"digest\":\"", "the file is damaged", AQ_CORRUPT},
    };
    char *bytes, path[PATH_BYTES + 64];
    size_t count;
    (void)state;
    snprintf(root, sizeof root, "/tmp/aqpipe-test-XXXXXX");
    assert_non_null(mkdtemp(root));
    checkpoint_old();
    snprintf(path, sizeof path, "%s/3/stage-1.safetensors", root);
    assert_int_equal(aq_file_load(NULL, path, 1 << 20, &bytes, &count), AQ_OK);
    assert_int_equal(aq_checkpoint_read(&checkpoint, 3), AQ_OK);
    /* One of the two hashes is enough: the plan's, or that of plans which make the same steps. */
    static const char *const hashes[] = {"\"plan_hash\":\"", "\"rank_hash\":\""};
    for (size_t i = 0; i < 2; i++) {
        char *digit = (char *)memmem(bytes, count, hashes[i], strlen(hashes[i])) + strlen(hashes[i]);
        const char before = *digit;
        *digit = before == 'f' ? '0' : 'f';
        assert_int_equal(aq_file_replace(NULL, path, 0600, bytes, count), AQ_OK);
        assert_int_equal(aq_checkpoint_read(&checkpoint, 3), AQ_OK);
        if (i == 0) *digit = before; /* the other one stays wrong */
    }
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        const size_t length = strlen(changes[i].there);
        char *at = memmem(bytes, count, changes[i].there, length), *digit = at + length;
        assert_non_null(at);
        memcpy(at, changes[i].here, length);
        const bool same = strcmp(changes[i].there, changes[i].here) == 0; /* then the first digit behind it */
        const char before = *digit;
        if (same) *digit = before == 'f' ? '0' : 'f';
        assert_int_equal(aq_file_replace(NULL, path, 0600, bytes, count), AQ_OK);
        first_line[0] = 0;
        assert_int_equal(aq_checkpoint_read(&checkpoint, 3), changes[i].status);
        if (!strstr(first_line, changes[i].said)) fail_msg("said: %s", first_line);
        memcpy(at, changes[i].there, length);
        *digit = before;
    }
    bytes[count - 1] ^= 1;
    assert_int_equal(aq_file_replace(NULL, path, 0600, bytes, count), AQ_OK);
    assert_int_equal(aq_checkpoint_read(&checkpoint, 3), AQ_CORRUPT);
    aq_free(bytes);
    io_fault_remove(root);
}

/* Change the text `there` of the file to `here`, of the same length. */
static void change(const char *path, const char *there, const char *here)
{
    char *bytes;
    size_t count;
    assert_int_equal(aq_file_load(NULL, path, 1 << 20, &bytes, &count), AQ_OK);
    char *at = memmem(bytes, count, there, strlen(there));
    assert_non_null(at);
    memcpy(at, here, strlen(there));
    assert_int_equal(aq_file_replace(NULL, path, 0600, bytes, count), AQ_OK);
    aq_free(bytes);
}

/* The updates that moments have had go with them, into a run that has done another number of steps. */
static void test_moments_bring_the_count_of_their_updates(void **state)
{
    char path[PATH_BYTES + 64], folder[PATH_BYTES + 8];
    int64_t ahead = 7;
    uint64_t updates = 0;
    (void)state;
    snprintf(root, sizeof root, "/tmp/aqpipe-test-XXXXXX");
    assert_non_null(mkdtemp(root));
    snprintf(folder, sizeof folder, "%s/3", root);
    snprintf(path, sizeof path, "%s/stage-1.safetensors", folder);
    checkpoint_old(); /* who counts nothing writes what older versions read */
    change(path, "checkpoint 1", "checkpoint 1");
    assert_int_equal(aq_checkpoint_updates(folder, 1, &updates), AQ_OK);
    assert_true(updates == AQ_UPDATES_UNKNOWN);
    checkpoint.updates_ahead = &ahead;
    assert_int_equal(aq_checkpoint_read(&checkpoint, 3), AQ_OK);
    assert_int_equal(ahead, 0); /* an older version's: its steps are its updates */
    ahead = 7;
    assert_int_equal(aq_checkpoint_adopt(&checkpoint, folder, 5), AQ_OK);
    assert_int_equal(ahead, 0);
    static const struct {
        int64_t ahead, adopted;
        const char *text;
    } counts[] = {{7, 5, "\"10\""}, {-2, -4, "\"1\""}, {0, -2, "\"3\""}};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        ahead = counts[i].ahead;
        assert_int_equal(aq_checkpoint_write(&checkpoint, 3), AQ_OK);
        char wanted[64];
        snprintf(wanted, sizeof wanted, "\"updates\":%s", counts[i].text);
        change(path, "checkpoint 2", "checkpoint 2");
        change(path, wanted, wanted);
        assert_int_equal(aq_checkpoint_updates(folder, 1, &updates), AQ_OK);
        assert_int_equal(updates, 3 + counts[i].ahead);
        ahead = 99;
        assert_int_equal(aq_checkpoint_read(&checkpoint, 3), AQ_OK);
        assert_int_equal(ahead, counts[i].ahead);
        assert_int_equal(aq_checkpoint_adopt(&checkpoint, folder, 5), AQ_OK);
        assert_int_equal(ahead, counts[i].adopted);
    }
    static const char *const wrong[] = {"\"x\"", "\"-\"", "\" \""};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char before[64], after[64];
        snprintf(before, sizeof before, "\"updates\":%s", i == 0 ? "\"3\"" : wrong[i - 1]);
        snprintf(after, sizeof after, "\"updates\":%s", wrong[i]);
        change(path, before, after);
        ahead = 99;
        assert_int_equal(aq_checkpoint_read(&checkpoint, 3), AQ_CORRUPT);
        assert_int_equal(aq_checkpoint_adopt(&checkpoint, folder, 5), AQ_CORRUPT);
        assert_int_equal(aq_checkpoint_updates(folder, 1, &updates), AQ_CORRUPT);
        assert_int_equal(ahead, 99);
    }
    checkpoint.updates_ahead = NULL;
    io_fault_remove(root);
}

int main(void)
{
    enum { CASES = sizeof cases / sizeof *cases };
    struct CMUnitTest tests[CASES + 2];
    tests[CASES] = (struct CMUnitTest)cmocka_unit_test(test_checkpoint_that_is_not_ours_is_refused);
    tests[CASES + 1] = (struct CMUnitTest)cmocka_unit_test(test_moments_bring_the_count_of_their_updates);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        tests[i] = (struct CMUnitTest){.name = cases[i].name,
                                       .test_func = test_every_call_fails_old_or_new,
                                       .initial_state = (void *)(uintptr_t)&cases[i]};
    aq_log_sink(take_line, NULL);
    stage_open();
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    stage_close();
    return failed;
}
