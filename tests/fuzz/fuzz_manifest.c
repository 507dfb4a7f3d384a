/*
 * fuzz_manifest.c -- any bytes as a manifest: a job or a status, never more. What parses must survive the way back.
 *
 * A last line with an = in it is an override, as of --set.
 */
#include <stdint.h>
#include <string.h>

#include "fuzz.h"
#include "job.h"

static void one(const char *text, size_t bytes, const char *set)
{
    struct aq_job *job = NULL, *again = NULL;
    const enum aq_status status = aq_job_parse(text, bytes, "fuzz.yaml", "/fuzz", &set, set ? 1 : 0, &job);
    fuzz_told(status == AQ_OK);
    if (status != AQ_OK) {
        AQ_ASSERT(status == AQ_INVAL && !job);
        return;
    }
    char *canonical, *second;
    AQ_ASSERT(aq_job_canonical(job, &canonical) == AQ_OK);
    AQ_ASSERT(aq_job_parse(canonical, strlen(canonical), "again", "/", NULL, 0, &again) == AQ_OK);
    AQ_ASSERT(aq_job_canonical(again, &second) == AQ_OK);
    AQ_ASSERT(strcmp(canonical, second) == 0);
    aq_free(canonical);
    aq_free(second);
    aq_job_close(job);
    aq_job_close(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    static char set[256];
    fuzz_quiet();
    const uint8_t *last = count ? memrchr(bytes, '\n', count) : NULL;
    const size_t length = last ? (size_t)(bytes + count - last - 1) : 0;
    if (length > 0 && length < sizeof set && memchr(last + 1, '=', length)) {
        memcpy(set, last + 1, length);
        set[length] = 0;
        one((const char *)bytes, count - length, set);
    }
    one((const char *)bytes, count, NULL);
    return 0;
}
