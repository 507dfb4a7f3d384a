/*
 * test_keys.c -- what keys.def decides, compared with tests/golden/keys.txt: hashes of plans, and errors of keys that
 * do not fit each other.
 *
 * A row of the file is a base, settings on top of it, and the result: four hashes, or the error texts. A row that
 * begins with "base" defines one. AQ_GOLDEN=1 writes the results again: add a row without a result, and run the test.
 * A hash that changes for a row that was there makes older runs unable to resume.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "keys.h"
#include "log_capture.h"
#include "plan.h"

#define GOLDEN AQ_SOURCE_DIR "/tests/golden/keys.txt"

enum { BASES_MAX = 24, SETS_MAX = 64, FIELDS = 3, ROW_BYTES = 16384, RESULT_BYTES = 8192 };

static const char separator[] = " ; ";
static char bases[BASES_MAX][ROW_BYTES];
static uint32_t base_count;

/* Split a text at the separator, in place. */
static uint32_t split(char *text, const char **out, uint32_t count)
{
    for (char *end = text; end && *text; text = end) {
        end = strstr(text, separator);
        if (end) {
            *end = 0;
            end += sizeof separator - 1;
        }
        assert_true(count < SETS_MAX);
        out[count++] = text;
    }
    return count;
}

static int text_order(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* Error texts without what a log line has before them, sorted: several errors may come in any order. */
static void errors_text(char *out)
{
    size_t used = 0;
    *out = 0;
    qsort(captured.lines, captured.count, sizeof captured.lines[0], text_order);
    for (uint32_t i = 0; i < captured.count && used < RESULT_BYTES; i++) {
        const char *text = strstr(captured.lines[i], "error: ");
        used += (size_t)snprintf(out + used, RESULT_BYTES - used, "%s%s", used ? " // " : "", text ? text : "error");
    }
}

/* The result of a job: its plan's four hashes, 32 bits each, or the errors. */
static void result_of(const char *base, const char *more, char *out)
{
    static char texts[2][ROW_BYTES];
    const char *sets[SETS_MAX];
    struct aq_job *job = NULL;
    struct aq_plan *plan = NULL;
    snprintf(texts[0], ROW_BYTES, "%s", base);
    snprintf(texts[1], ROW_BYTES, "%s", more);
    const uint32_t count = split(texts[1], sets, split(texts[0], sets, 0));
    capture_begin();
    enum aq_status status = aq_job_parse("", 0, "job.yaml", "/folder", sets, count, &job);
    if (status == AQ_OK) status = aq_plan_open(job, &plan);
    capture_end();
    if (status == AQ_OK)
        snprintf(out, RESULT_BYTES, "%08x %08x %08x %08x", (uint32_t)plan->hash, (uint32_t)plan->rank_hash,
                 (uint32_t)plan->resume_hash, (uint32_t)plan->job_digest);
    else
        errors_text(out);
    aq_plan_close(plan);
    aq_job_close(job);
}

static const char *base_named(const char *name)
{
    for (uint32_t i = 0; i < base_count; i++)
        if (strcmp(bases[i], name) == 0) return bases[i] + strlen(name) + 1;
    fail_msg("keys.txt: there is no base %s above its rows", name);
    return NULL;
}

/* A row into its fields, parted by tabs; a field that is not there is empty. */
static void row_fields(char *row, char *fields[FIELDS])
{
    row[strcspn(row, "\n")] = 0;
    for (int i = 0; i < FIELDS; i++) {
        fields[i] = row;
        row += strcspn(row, "\t");
        if (*row) *row++ = 0;
    }
}

static void base_add(const char *name, const char *sets)
{
    assert_true(base_count < BASES_MAX);
    memcpy(bases[base_count], name, strlen(name) + 1); /* both are parts of one row */
    memcpy(bases[base_count++] + strlen(name) + 1, sets, strlen(sets) + 1);
}

/* A row: 1 if its result is another one. */
static int row_check(char *row, FILE *again)
{
    static char result[RESULT_BYTES];
    char *fields[FIELDS];
    if (*row == '#' || *row == '\n') {
        if (again) fputs(row, again);
        return 0;
    }
    row_fields(row, fields);
    if (strcmp(fields[0], "base") == 0) {
        base_add(fields[1], fields[2]);
        if (again) fprintf(again, "base\t%s\t%s\n", fields[1], fields[2]);
        return 0;
    }
    result_of(base_named(fields[0]), fields[1], result);
    if (again) fprintf(again, "%s\t%s\t%s\n", fields[0], fields[1], result);
    if (again || strcmp(result, fields[2]) == 0) return 0;
    print_error("%s, %s:\n  was %s\n  is  %s\n", fields[0], fields[1], fields[2], result);
    return 1;
}

static void test_keys_give_the_hashes_and_errors_that_they_gave(void **state)
{
    (void)state;
    static char row[ROW_BYTES];
    FILE *file = fopen(GOLDEN, "r"), *again = getenv("AQ_GOLDEN") ? fopen(GOLDEN ".new", "w") : NULL;
    int rows = 0, other = 0;
    assert_non_null(file);
    for (; fgets(row, sizeof row, file); rows++)
        other += row_check(row, again);
    fclose(file);
    if (again) {
        assert_int_equal(fclose(again), 0);
        assert_int_equal(rename(GOLDEN ".new", GOLDEN), 0);
    }
    assert_true(rows > 300);
    if (other) fail_msg("%d of %d rows of tests/golden/keys.txt have another result", other, rows);
}

/* Every word of a list, with blanks between. */
static void each_word(const char *list, void (*visit)(const char *word, const void *about), const void *about)
{
    char word[128];
    for (; list && *list; list += strcspn(list, " "), list += *list == ' ') {
        snprintf(word, sizeof word, "%.*s", (int)strcspn(list, " "), list);
        visit(word, about);
    }
}

static void word_is_key(const char *word, const void *about)
{
    if (!aq_key_find(aq_keys_job(), word))
        fail_msg("a rule of %s names %s, which is no key", (const char *)about, word);
}

static void word_is_value(const char *word, const void *about)
{
    const struct aq_key *key = about;
    struct aq_job scratch;
    const bool special = (key->kind == AQ_KEY_OFTEN && strcmp(word, "time") == 0) ||
                         ((key->kind == AQ_KEY_TEXT || key->kind == AQ_KEY_PATH) && strcmp(word, "none") == 0);
    if (!special && aq_key_read(key, word, false, &scratch) != AQ_OK)
        fail_msg("a rule has %s, which %s cannot be", word, key->name);
}

static void rules_are_sound(const struct aq_key *key, const struct aq_key_rule *rule)
{
    const struct aq_key_table keys = aq_keys_job();
    for (; rule && rule->other; rule++) {
        assert_true(rule->text && *rule->text);
        each_word(rule->other, word_is_key, key->name);
        each_word(rule->when, word_is_value, key);
        if (rule->values) each_word(rule->values, word_is_value, aq_key_find(keys, rule->other));
        if (rule->where) word_is_key(rule->where + (rule->where[0] == '!'), key->name);
    }
}

static void test_keys_rules_name_keys_and_values_that_are(void **state)
{
    (void)state;
    const struct aq_key_table keys = aq_keys_job();
    for (uint32_t i = 0; i < keys.count; i++) {
        rules_are_sound(&keys.keys[i], keys.keys[i].needs);
        rules_are_sound(&keys.keys[i], keys.keys[i].conflicts);
    }
}

/* A rule holds of a value in a file, too: its error is at the line. */
static void test_keys_rules_report_line_and_column(void **state)
{
    (void)state;
    static const char text[] = "data: {train: a.txt}\n"
                               "train:\n"
                               "  loss_scale: 64\n";
    struct aq_job *job = NULL;
    capture_begin();
    assert_int_equal(aq_job_parse(text, sizeof text - 1, "job.yaml", "/folder", NULL, 0, &job), AQ_INVAL);
    capture_end();
    assert_true(captured_has("job.yaml:3:3: train.loss_scale: applies only to fp16"));
}

/* A model that has none is refused by name, and so is another precision. */
static void test_keys_residual_reports_line_and_column(void **state)
{
    (void)state;
    static const struct {
        const char *text, *error;
    } cases[] = {{"data: {train: a.txt}\nmodel: {kind: llama, precision: fp16, residual: bf16}\n",
                  "job.yaml:2:39: model.residual: a residual stream in bf16 needs products in bf16: set"},
                 {"data: {train: a.txt}\nmodel:\n  kind: gemma3\n  precision: bf16\n  residual: bf16\n",
                  "job.yaml:5:3: model.residual: bf16 is not computed for gemma3, which has norms behind its"},
                 {"data: {train: a.txt}\nmodel: {residual: fp16}\n", "job.yaml:2:9: model.residual: 'fp16' is not"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct aq_job *job = NULL;
        capture_begin();
        assert_int_equal(aq_job_parse(cases[i].text, strlen(cases[i].text), "job.yaml", "/folder", NULL, 0, &job),
                         AQ_INVAL);
        capture_end();
        if (!captured_has(cases[i].error)) fail_msg("case %zu: %s", i, cases[i].error);
    }
}

static void test_help_prints_since_needs_and_conflicts(void **state)
{
    (void)state;
    static const struct {
        const char *key, *words;
    } cases[] = {{"status.key", "[needs status.listen; needs status.certificate]"},
                 {"model.logits", "[16bit needs model.precision: bf16 or fp16]"},
                 {"train.frozen_store", "[needs lora.rank or train.freeze]"},
                 {"lora.dropout", "[excludes lora.dora with lora.rank]"},
                 {"train.early_stop", "needs output.metrics: true without checkpoint.best;"},
                 {"train.staleness",
                  "[excluded by pipeline.flush: true; excluded by edges.bits: auto; excluded by split.mode: global]"},
                 {"split.labels", "[server needs split.clients; server excluded by split.privacy.gradient_clip; "},
                 {"split.rounds", "default 1; since 0.1"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *help, flat[4096];
        size_t used = 0;
        assert_int_equal(aq_keys_help(cases[i].key, &help), AQ_OK);
        for (const char *at = help; *at && used + 1 < sizeof flat; at++) /* lines are folded */
            if (*at != '\n' && (*at != ' ' || (used > 0 && flat[used - 1] != ' ')))
                flat[used++] = *at;
            else if (used > 0 && flat[used - 1] != ' ')
                flat[used++] = ' ';
        flat[used] = 0;
        if (!strstr(flat, cases[i].words)) fail_msg("help of %s lacks '%s': %s", cases[i].key, cases[i].words, flat);
        aq_free(help);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_keys_give_the_hashes_and_errors_that_they_gave),
                                       cmocka_unit_test(test_keys_rules_name_keys_and_values_that_are),
                                       cmocka_unit_test(test_keys_rules_report_line_and_column),
                                       cmocka_unit_test(test_keys_residual_reports_line_and_column),
                                       cmocka_unit_test(test_help_prints_since_needs_and_conflicts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
