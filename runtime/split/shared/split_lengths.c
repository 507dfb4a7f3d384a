/* split_lengths.c -- see the header. */
#include "split_lengths.h"

#include <stdio.h>
#include <string.h>

#include "lengths.h"
#include "run_folder.h"

/* Is there an earlier file of other lengths? */
static enum aq_status look_before(const char *folder, const char *name, const char *text, bool *other)
{
    char *before;
    size_t bytes;
    const enum aq_status status = aq_file_load(folder, name, AQ_LENGTHS_TEXT_MAX, &before, &bytes);
    *other = false;
    if (status != AQ_OK) return status == AQ_NOTFOUND ? AQ_OK : status;
    *other = bytes != strlen(text) || memcmp(before, text, bytes) != 0;
    aq_free(before);
    return AQ_OK;
}

enum aq_status aq_split_lengths_take(const struct aq_plan *plan, const char *text, const char *folder, const char *name,
                                     bool began, char why[AQ_SPLIT_TEXT_BYTES])
{
    struct aq_error_hold hold;
    bool other = false;
    aq_error_hold(&hold);
    const enum aq_status status = aq_plan_lengths_check(plan, text);
    aq_error_release(&hold);
    if (status == AQ_NOMEM) return status;
    if (status != AQ_OK) {
        snprintf(why, AQ_SPLIT_TEXT_BYTES, "its lengths are refused: %.300s", hold.text);
        return AQ_MISMATCH;
    }
    char file[AQ_RUN_PATH_BYTES]; /* with an end: "a.new", a client's name, is not the file "a" while it is written */
    snprintf(file, sizeof file, "%s.txt", name);
    AQ_TRY(aq_run_make_folder(folder));
    if (began) AQ_TRY(look_before(folder, file, text, &other));
    if (other) snprintf(why, AQ_SPLIT_TEXT_BYTES, "it comes with samples of other lengths than it began with");
    return other ? AQ_MISMATCH : aq_file_replace(folder, file, 0600, text, strlen(text));
}
