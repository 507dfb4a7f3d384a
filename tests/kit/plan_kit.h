/*
 * plan_kit.h -- plans of a manifest that a test has in memory. Its data is text.txt, some lines in a folder of the
 * test's own; setup and teardown make and remove that folder.
 */
#ifndef TESTS_PLAN_KIT_H
#define TESTS_PLAN_KIT_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "advice.h"

enum { PLAN_KIT_TEXT_BYTES = 5000 };

static char plan_kit_folder[] = "/tmp/aq-test-plan-XXXXXX";

static inline int plan_kit_setup(void **state)
{
    (void)state;
    char path[128];
    if (!mkdtemp(plan_kit_folder)) return -1;
    snprintf(path, sizeof path, "%s/text.txt", plan_kit_folder);
    FILE *file = fopen(path, "w");
    if (!file) return -1;
    for (int i = 0; i < PLAN_KIT_TEXT_BYTES; i++)
        fputc("the quick brown fox\n"[i % 20], file);
    return fclose(file);
}

static inline int plan_kit_teardown(void **state)
{
    (void)state;
    char path[128];
    snprintf(path, sizeof path, "%s/text.txt", plan_kit_folder);
    unlink(path);
    return rmdir(plan_kit_folder);
}

/* With the sets given up to NULL. */
static inline struct aq_job *plan_kit_job(const char *manifest, const char *const *sets)
{
    struct aq_job *job = NULL;
    uint32_t count = 0;
    while (sets && sets[count])
        count++;
    assert_int_equal(aq_job_parse(manifest, strlen(manifest), "job.yaml", plan_kit_folder, sets, count, &job), AQ_OK);
    return job;
}

static inline struct aq_plan *plan_kit_plan(const char *manifest, const char *const *sets, struct aq_job **job)
{
    struct aq_plan *plan = NULL;
    *job = plan_kit_job(manifest, sets);
    assert_int_equal(aq_plan_open(*job, &plan), AQ_OK);
    return plan;
}

static inline void plan_kit_done(struct aq_plan *plan, struct aq_job *job)
{
    aq_plan_close(plan);
    aq_job_close(job);
}

#endif
