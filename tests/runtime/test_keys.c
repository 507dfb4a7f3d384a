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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_keys_give_the_hashes_and_errors_that_they_gave)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
