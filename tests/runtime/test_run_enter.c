/*
 * test_run_enter.c -- what a launch does with a run folder that holds something: it begins, goes on, goes further,
 * throws away or refuses, and a refusal names the keys that differ.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "log_capture.h"
#include "remove_tree.h"
#include "run_enter.h"

static char root[64];

static const char manifest[] = "job: {name: demo}\n"
                               "model: {blocks: 2, channels: 8, heads: 2, context: 8}\n"
                               "data: {train: text.txt}\n"
                               "train: {T: 8, batch: 4, lr: 0.0002, decay: constant}\n"
                               "pipeline: {stages: 2}\n"
                               "output: {path: run}\n";

static int setup(void **state)
{
    (void)state;
    char path[128];
    snprintf(root, sizeof root, "/tmp/aqpipe-enter-XXXXXX");
    if (!mkdtemp(root)) return -1;
    snprintf(path, sizeof path, "%s/text.txt", root);
    FILE *file = fopen(path, "w");
    if (!file) return -1;
    for (int i = 0; i < 320; i++)
        fputc("the quick brown fox\n"[i % 20], file);
    return fclose(file);
}

static int teardown(void **state)
{
    (void)state;
    return remove_tree(root) == 0 && aq_memory_used() == 0 ? 0 : -1;
}

static void put(const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", root, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static bool there(const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", root, name);
    return access(path, F_OK) == 0;
}

enum how { LAUNCH, RESUME, FRESH };

/* Enters the folder with these settings (up to NULL), and leaves it. extended: NULL, or as long as the entry's. */
static enum aq_status enter(enum how how, const char *const *sets, uint64_t *step, char *extended)
{
    struct aq_job *job = NULL;
    struct aq_plan *plan = NULL;
    char *text;
    uint32_t count = 0;
    while (sets && sets[count])
        count++;
    assert_int_equal(aq_job_parse(manifest, sizeof manifest - 1, "job.yaml", root, sets, count, &job), AQ_OK);
    assert_int_equal(aq_plan_open(job, &plan), AQ_OK);
    assert_int_equal(aq_plan_manifest(plan, &text), AQ_OK);
    static struct aq_run_entry entry;
    entry = (struct aq_run_entry){.plan = plan, .manifest = text, .resume = how == RESUME, .fresh = how == FRESH};
    assert_int_equal(aq_run_path(job->output.path, "checkpoint", entry.checkpoint), AQ_OK);
    capture_begin();
    const enum aq_status status = aq_run_enter(&entry);
    capture_end();
    if (step) *step = entry.finished ? UINT64_MAX : entry.resume_step;
    if (extended) memcpy(extended, entry.extended, sizeof entry.extended);
    aq_run_leave(&entry);
    aq_free(text);
    aq_plan_close(plan);
    aq_job_close(job);
    return status;
}

/* As if so many steps had been made, and a checkpoint written. */
static void train(uint64_t steps)
{
    char text[4096];
    int used = 0;
    for (uint64_t s = 1; s <= steps; s++)
        used +=
            snprintf(text + used, sizeof text - (size_t)used, "{\"event\":\"step\",\"step\":%d,\"time\":1}\n", (int)s);
    put("run/metrics.jsonl", text);
    char *identity;
    size_t count;
    snprintf(text, sizeof text, "%s/run/run.json", root);
    assert_int_equal(aq_file_load(NULL, text, 4096, &identity, &count), AQ_OK);
    struct aq_run_mark mark = {.step = steps, .metrics = (uint64_t)used, .kept_count = 1, .kept = {steps}};
    mark.plan_hash = strtoull(strstr(identity, "plan_hash") + 12, NULL, 16);
    mark.resume_hash = strtoull(strstr(identity, "resume_hash") + 14, NULL, 16);
    aq_free(identity);
    snprintf(text, sizeof text, "%s/run/checkpoint", root);
    assert_int_equal(aq_run_mark_write(text, &mark), AQ_OK);
}

static const char *const other_rate[] = {"train.lr=0.001", "train.clip=1", NULL}, *const two_epochs[] = {
                                                                                      "train.epochs=2", NULL};

static void test_run_without_a_step_gives_way(void **state)
{
    (void)state;
    assert_int_equal(enter(LAUNCH, NULL, NULL, NULL), AQ_OK);
    put("run/metrics.jsonl", "{\"event\":\"start\"}\n{\"event\":\"end\",\"state\":\"failed\"}\n");
    put("run/notes", "theirs");
    assert_int_equal(enter(LAUNCH, other_rate, NULL, NULL), AQ_OK);
    assert_false(there("run/metrics.jsonl"));
    assert_true(there("run/notes"));
    assert_int_equal(enter(RESUME, two_epochs, NULL, NULL), AQ_OK); /* nothing to go on from: it begins */
}

static void test_refusal_names_the_keys_that_differ(void **state)
{
    (void)state;
    for (enum how how = LAUNCH; how <= RESUME; how++) {
        if (how == LAUNCH) assert_int_equal(enter(LAUNCH, NULL, NULL, NULL), AQ_OK);
        train(3);
        assert_int_equal(enter(how, other_rate, NULL, NULL), AQ_MISMATCH);
        assert_non_null(strstr(aq_error_text(),
                               "holds the run 'demo' of another plan: train.lr: 0.0002 there, 0.001 here; "
                               "train.clip: 0 there, 1 here. To continue it, undo that"));
        assert_non_null(strstr(aq_error_text(), "--fresh"));
    }
    char path[128];
    snprintf(path, sizeof path, "%s/run/metrics.jsonl", root);
    assert_int_equal(unlink(path), 0); /* its checkpoint is still something to lose */
    assert_int_equal(enter(LAUNCH, other_rate, NULL, NULL), AQ_MISMATCH);
    put("text.txt",
        "another text, which is as long as it has to be for one batch of samples at the very least, and a bit");
    assert_int_equal(enter(RESUME, NULL, NULL, NULL), AQ_MISMATCH);
    assert_non_null(strstr(aq_error_text(), "data.train: 39 samples (digest "));
    snprintf(path, sizeof path, "%s/run/manifest.yaml", root);
    assert_int_equal(unlink(path), 0); /* then only the hashes are left to tell of */
    assert_int_equal(enter(LAUNCH, other_rate, NULL, NULL), AQ_MISMATCH);
    assert_non_null(strstr(aq_error_text(), "its hash is "));
}

static void test_fresh_throws_away_a_run_of_this_name_alone(void **state)
{
    (void)state;
    static const char *const other_job[] = {"job.name=other", "train.lr=0.001", NULL};
    assert_int_equal(enter(LAUNCH, NULL, NULL, NULL), AQ_OK);
    train(3);
    assert_int_equal(enter(FRESH, other_job, NULL, NULL), AQ_MISMATCH);
    assert_null(strstr(aq_error_text(), "--fresh"));
    assert_true(there("run/checkpoint/complete"));
    assert_int_equal(enter(FRESH, other_rate, NULL, NULL), AQ_OK);
    assert_false(there("run/checkpoint/complete"));
    assert_false(there("run/metrics.jsonl"));
    assert_int_equal(enter(LAUNCH, two_epochs, NULL, NULL), AQ_OK); /* begun anew, it has made no step */
}

static void test_resume_goes_further(void **state)
{
    (void)state;
    static const char *const linear[] = {"train.decay=linear", NULL},
                             *const linear_two[] = {"train.decay=linear", "train.epochs=2", NULL},
                             *const saves[] = {"train.epochs=2", "checkpoint.every=2 steps", "train.evaluate_every=0",
                                               NULL},
                             *const few[] = {"train.steps_max=2", NULL};
    char extended[sizeof((struct aq_run_entry){0}.extended)];
    uint64_t step = 0;
    assert_int_equal(enter(LAUNCH, NULL, NULL, NULL), AQ_OK);
    train(9);
    assert_int_equal(enter(RESUME, two_epochs, &step, extended), AQ_OK);
    assert_int_equal(step, 9);
    assert_string_equal(extended, "it ends at step 20, not 10");
    assert_int_equal(enter(RESUME, saves, &step, extended), AQ_OK);
    assert_int_equal(step, 9);
    assert_string_equal(extended, "");
    assert_int_equal(enter(RESUME, few, NULL, NULL), AQ_REFUSED);
    assert_non_null(strstr(aq_error_text(), "has made 9 steps already, and this plan ends at step 2"));
    assert_int_equal(enter(LAUNCH, two_epochs, NULL, NULL), AQ_MISMATCH); /* not unasked */
    assert_non_null(strstr(aq_error_text(), "checkpoint.every: 2 steps there, 1 epoch here. --resume continues it"));
    assert_int_equal(enter(FRESH, linear, NULL, NULL), AQ_OK);
    train(10);
    assert_int_equal(enter(RESUME, linear_two, &step, extended), AQ_OK);
    assert_non_null(strstr(extended, "it ends at step 20, not 10; train.schedule: extend: train.decay goes by the end, "
                                     "so that the learning rate was 2e-05 at step 10 and is 0.0001 at the next"));
}

static void remove_at(const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", root, name);
    if (there(name)) assert_int_equal(remove_tree(path), 0);
}

#define STEP(step, time) "{\"event\":\"step\",\"step\":" #step ",\"time\":" #time "}\n"
#define END              "{\"event\":\"end\",\"state\":\"done\"}\n"

/* A run that was trained so long has had a checkpoint: if its folder is gone, the run must not start from nothing. */
static void test_run_whose_checkpoints_are_gone_does_not_begin_again(void **state)
{
    (void)state;
    static const char *const timed[] = {"checkpoint.every=30min", NULL}, *const at_end[] = {"checkpoint.every=0", NULL},
                             *const counted[] = {"checkpoint.every=2 steps", NULL};
    static const struct {
        const char *const *sets;
        const char *metrics;
        bool refused;
    } cases[] = {
        {timed, STEP(5, 1799), false},   {timed, STEP(5, 1800), true},    {timed, STEP(10, 9) END, true},
        {at_end, STEP(9, 99999), false}, {at_end, STEP(10, 9) END, true}, {counted, STEP(1, 99999), false},
        {counted, STEP(2, 1), true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        remove_at("run");
        assert_int_equal(enter(LAUNCH, cases[i].sets, NULL, NULL), AQ_OK);
        put("run/metrics.jsonl", cases[i].metrics);
        remove_at("run/checkpoint");
        remove_at("run/cache");
        remove_at("run/" AQ_OWNED_MARKER); /* as a version left the folder that had no markers */
        const enum aq_status status = enter(RESUME, cases[i].sets, NULL, NULL);
        if (status != (cases[i].refused ? AQ_REFUSED : AQ_OK)) fail_msg("case %zu: %s", i, aq_error_text());
        if (cases[i].refused) assert_non_null(strstr(aq_error_text(), "is its disk mounted?"));
        if (cases[i].refused) assert_int_equal(enter(FRESH, cases[i].sets, NULL, NULL), AQ_OK);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_run_without_a_step_gives_way, setup, teardown),
        cmocka_unit_test_setup_teardown(test_refusal_names_the_keys_that_differ, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fresh_throws_away_a_run_of_this_name_alone, setup, teardown),
        cmocka_unit_test_setup_teardown(test_resume_goes_further, setup, teardown),
        cmocka_unit_test_setup_teardown(test_run_whose_checkpoints_are_gone_does_not_begin_again, setup, teardown),
    };
    return cmocka_run_group_tests_name("run enter", tests, NULL, NULL);
}
