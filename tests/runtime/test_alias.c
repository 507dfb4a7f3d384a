/*
 * test_alias.c -- names that people type: each row of aliases.def leads to a key that there is, is taken where it means
 * the same, and is told where it does not; the kind of the data is recognised, and a launch says what to do next.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "alias.h"
#include "data_files.h"
#include "job.h"
#include "keys.h"
#include "next_step.h"

static char folder[DATA_PATH_BYTES], printed[8192];

static void keep_line(int level, const char *line, void *context)
{
    const size_t used = strlen(printed);
    (void)level;
    (void)context;
    snprintf(printed + used, sizeof printed - used, "%s\n", line);
}

static enum aq_status parse(const char *text, const char *set, struct aq_job **out)
{
    const char *const sets[] = {set};
    *out = NULL;
    return aq_job_parse(text, strlen(text), "job.yaml", folder, sets, set ? 1 : 0, out);
}

static void refused(const char *text, const char *set, const char *part)
{
    struct aq_job *job;
    printed[0] = 0;
    aq_log_sink(keep_line, NULL);
    const enum aq_status status = parse(text, set, &job);
    aq_log_sink(NULL, NULL);
    if (status != AQ_INVAL || !strstr(printed, part))
        fail_msg("%s: not '%s' but %s", text, part, printed);
}

static struct aq_job *taken(const char *text, const char *set, const char *part)
{
    struct aq_job *job;
    printed[0] = 0;
    aq_log_sink(keep_line, NULL);
    const enum aq_status status = parse(text, set, &job);
    aq_log_sink(NULL, NULL);
    if (status != AQ_OK || (part && !strstr(printed, part)))
        fail_msg("%s: not '%s' but %s", text, part ? part : "", printed);
    return job;
}

static void test_every_alias_leads_to_a_key(void **state)
{
    (void)state;
    static const char *const pairs[][2] = {
#define AQ_ALIAS(name, key) {name, key},
#define AQ_ALIAS_TOLD(name, answer) {name, NULL},
#include "aliases.def"
    };
    static const char *const values[][3] = {
#define AQ_ALIAS_VALUE(key, value, ours, needs) {key, ours, needs},
#include "aliases.def"
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        if (aq_key_find(aq_keys_job(), pairs[i][0])) fail_msg("%s is a key itself", pairs[i][0]);
        const bool field = pairs[i][1] && strncmp(pairs[i][1], "data.fields.", 12) == 0;
        if (pairs[i][1] && !field && !aq_key_find(aq_keys_job(), pairs[i][1])) fail_msg("no key %s", pairs[i][1]);
        for (size_t k = 0; k < i; k++)
            if (strcmp(pairs[i][0], pairs[k][0]) == 0) fail_msg("%s stands there twice", pairs[i][0]);
    }
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        struct aq_job job = {0};
        const struct aq_key *key = aq_key_find(aq_keys_job(), values[i][0]);
        if (!key || aq_key_read(key, values[i][1], !*values[i][1], &job) != AQ_OK)
            fail_msg("%s: %s is no value", values[i][0], values[i][1]);
        if (values[i][2] && !aq_key_find(aq_keys_job(), values[i][2])) fail_msg("no key %s", values[i][2]);
    }
}

static void test_names_that_mean_the_same_are_taken(void **state)
{
    (void)state;
    struct aq_job *job = taken("train: {learning_rate: 3e-3, max_length: 64, per_device_train_batch_size: 4, "
                               "batch: 8}\n"
                               "model: {blocks: 2, hidden_size: 64, num_attention_heads: 4, dtype: float32}\n"
                               "lora: {r: 4, lora_alpha: 8, target_modules: [attn, mlp]}\n"
                               "data: {train_file: a.txt, validation: b.txt, kind: ~}\n",
                               NULL, "job.yaml:1:9: train.learning_rate is train.lr here");
    assert_float_equal(job->train.lr, 3e-3f, 0);
    assert_int_equal(job->train.T, 64);
    assert_int_equal(job->train.micro_batch, 4);
    assert_int_equal(job->train.lora.rank, 4);
    assert_float_equal(job->train.lora.alpha, 8, 0);
    assert_string_equal(job->train.lora.targets, "attn, mlp");
    assert_int_equal(job->model.config.channels, 64);
    assert_int_equal(job->data.heldout_count, 1);
    assert_string_equal(job->data.kind, "text");
    aq_job_close(job);
}

static void test_the_command_line_wins_under_either_name(void **state)
{
    (void)state;
    struct aq_job *job = taken("train: {lr: 1e-3}\ndata: {train: a.txt}\n", "train.learning_rate=2e-3", NULL);
    assert_float_equal(job->train.lr, 2e-3f, 0);
    aq_job_close(job);
    job = taken("train: {learning_rate: 1e-3}\ndata: {train: a.txt}\n", "train.lr=2e-3", NULL);
    assert_float_equal(job->train.lr, 2e-3f, 0);
    aq_job_close(job);
    refused("train: {learning_rate: 1e-3, lr: 2e-3}\ndata: {train: a.txt}\n", NULL,
            "job.yaml:1:9: train.learning_rate: that is train.lr here, which is given, too; keep one");
}

static void test_names_that_mean_something_else_are_told(void **state)
{
    (void)state;
    refused("train: {gradient_accumulation_steps: 4}\ndata: {train: a.txt}\n", NULL,
            "job.yaml:1:9: train.gradient_accumulation_steps: that is in train.batch here");
    refused("learning_rate: 1e-3\ndata: {train: a.txt}\n", NULL, "did you mean the key train.lr?");
    refused("model: {learning_rate: 1e-3}\ndata: {train: a.txt}\n", NULL, "that is train.lr here");
    refused("model: {kind: qwen3}\ndata: {train: a.txt}\n", NULL,
            "model.kind: qwen3 is read as llama here, by its published folder: set model.weights to it");
    refused("train: {lr: fast}\ndata: {train: a.txt}\n", NULL, "'fast'");
    refused("data: {train: a.txt, fields: {question: prompt}}\n", NULL, "data.fields: 'question' is unknown");
}

/* checkpoint.every may be a time; the canonical text gives it back. */
static void test_checkpoints_come_after_a_time(void **state)
{
    (void)state;
    static const struct {
        const char *set;
        uint64_t ns, count;
    } rows[] = {{"checkpoint.every=30min", UINT64_C(1800000000000), 0},
                {"checkpoint.every=1.5h", UINT64_C(5400000000000), 0},
                {"checkpoint.every=200ns", 200, 0},
                {"checkpoint.every=30", 0, 30},
                {"checkpoint.every=0", 0, 0}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *text, wanted[48];
        struct aq_job *job = taken("data: {train: a.txt}\n", rows[i].set, NULL);
        assert_true(job->checkpoint.every.ns == rows[i].ns && job->checkpoint.every.count == rows[i].count);
        assert_int_equal(aq_job_canonical(job, &text), AQ_OK);
        snprintf(wanted, sizeof wanted, "every: %lluns", (unsigned long long)rows[i].ns);
        assert_true(rows[i].ns == 0 || strstr(text, wanted));
        aq_free(text);
        aq_job_close(job);
    }
}

static void test_words_of_yaml_are_read(void **state)
{
    (void)state;
    struct aq_job *job = taken("data: {train: a.txt, bos: False, heldout: null, labels: ~}\n"
                               "train: {shuffle: True, prediction: Off, seed: ~}\nmodel: {tied: False}\n",
                               NULL, NULL);
    assert_int_equal(job->data.bos, AQ_BEGIN_NONE);
    assert_int_equal(job->data.heldout_count, 0);
    assert_null(job->data.labels);
    assert_true(job->train.shuffle);
    assert_false(job->train.prediction);
    assert_int_equal(job->train.seed, 1);
    aq_job_close(job);
    refused("data: {train: a.txt}\ntrain: {shuffle: \"True\"}\n", NULL, "'True' in quotes is not");
    job = taken("data: {train: a.txt, chat_variables: {x: ~}}\njob: {name: True}\n", NULL, NULL);
    assert_string_equal(job->data.chat_variables, "{\"x\":null}");
    assert_string_equal(job->name, "True");
    aq_job_close(job);
}

/* What was recognised is in the manifest that stages and resumes read. */
static void test_the_kind_is_recognised_and_written(void **state)
{
    (void)state;
    char *text;
    struct aq_job *again;
    data_write_text(folder, "c.jsonl", "{\"question\": \"a\", \"answer\": \"b\"}\n");
    struct aq_job *job = taken("data: {train: c.jsonl, fields: {prompt: question, response: answer}, "
                               "skip_invalid: 2}\n",
                               NULL,
                               "data.kind: instruct, because ");
    assert_string_equal(job->data.kind, "instruct");
    assert_int_equal(aq_job_canonical(job, &text), AQ_OK);
    data_write_text(folder, "c.jsonl", "{\"text\": \"a\"}\n");
    again = taken(text, NULL, NULL);
    assert_string_equal(again->data.kind, "instruct");
    assert_string_equal(again->data.fields, "{\"prompt\":\"question\",\"response\":\"answer\"}");
    assert_int_equal(again->data.skip_invalid, 2);
    aq_job_close(again);
    aq_job_close(job);
    aq_free(text);
    job = taken("data: {train: c.jsonl, kind: sharegpt}\n", NULL, "data.kind: sharegpt is instruct here");
    assert_string_equal(job->data.kind, "instruct");
    aq_job_close(job);
}

/* wanted has RUN for the run's folder. */
static void expect_next(const struct aq_job *job, const char *wanted)
{
    struct aq_text next = {0}, text = {0};
    aq_next_step(job, &next);
    for (const char *at = wanted; *at; at++) {
        const bool run = strncmp(at, "RUN", 3) == 0;
        aq_text_bytes(&text, run ? folder : at, run ? strlen(folder) : 1);
        at += run ? 2 : 0;
    }
    assert_string_equal(next.used ? aq_text_of(&next) : "", text.used ? aq_text_of(&text) : "");
    aq_text_deinit(&next);
    aq_text_deinit(&text);
}

static void test_a_launch_says_what_to_do_next(void **state)
{
    (void)state;
    struct aq_job *job = taken("data: {train: a.txt}\n", NULL, NULL);
    job->output.path = folder;
    expect_next(job, "");
    data_write_text(folder, "model.safetensors", "x");
    expect_next(job, "wrote RUN/model.safetensors; try: aqpipe generate RUN --prompt \"...\"");
    data_write_text(folder, "chat_template.jinja", "{{ messages[0].content }}");
    data_write_text(folder, "adapter", "x");
    expect_next(job, "wrote RUN/model.safetensors and RUN/adapter; try: aqpipe generate RUN --chat \"...\"");
    job->model.task = "classification";
    data_write_text(folder, "adapter", "");
    assert_int_equal(remove(data_path(folder, "adapter", (char[DATA_PATH_BYTES]){0})), 0);
    expect_next(job, "wrote RUN/model.safetensors; try: aqpipe eval RUN --data FILE");
    aq_job_close(job);
}

int main(void)
{
    data_folder_open(folder);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_alias_leads_to_a_key),
        cmocka_unit_test(test_names_that_mean_the_same_are_taken),
        cmocka_unit_test(test_the_command_line_wins_under_either_name),
        cmocka_unit_test(test_names_that_mean_something_else_are_told),
        cmocka_unit_test(test_words_of_yaml_are_read),
        cmocka_unit_test(test_checkpoints_come_after_a_time),
        cmocka_unit_test(test_the_kind_is_recognised_and_written),
        cmocka_unit_test(test_a_launch_says_what_to_do_next),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    data_folder_close(folder);
    return failed;
}
