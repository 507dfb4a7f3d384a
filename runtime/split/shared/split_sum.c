/* split_sum.c -- see the header. */
#include "split_sum.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const AREA = "split";
enum { NAME_BYTES = 40 };

struct aq_split_sum {
    const char *folder;
    uint64_t values, step;
    uint64_t kept; /* the first step that may have a file */
    uint64_t weight;
    float *room; /* values */
    double *sum; /* values */
};

static void name_of(uint64_t step, const char *ending, char name[NAME_BYTES])
{
    snprintf(name, NAME_BYTES, "sum-%" PRIu64 "%s", step, ending);
}

/* The step of one of our file names. */
static bool step_of(const char *name, uint64_t *step)
{
    char *end, again[NAME_BYTES];
    if (strncmp(name, "sum-", 4) != 0) return false;
    errno = 0;
    *step = strtoull(name + 4, &end, 10);
    name_of(*step, end, again); /* no other way of writing the number */
    return errno == 0 && strcmp(again, name) == 0 && (!*end || strcmp(end, ".new") == 0);
}

static bool head_is(const struct aq_split_sum *sum, const struct aq_sum_head *head, uint64_t step)
{
    const bool is_void = head->flags == AQ_SUM_VOID;
    return head->magic == AQ_SUM_MAGIC && head->what == AQ_SUM_SUM && head->step == step &&
           (is_void || head->flags == 0) && head->values == (is_void ? 0 : sum->values);
}

enum aq_status aq_split_sum_file(const struct aq_split_sum *sum, uint64_t step, int *fd, uint64_t *bytes)
{
    char name[NAME_BYTES];
    struct aq_sum_head head;
    struct stat about;
    name_of(step, "", name);
    AQ_TRY(aq_file_open(sum->folder, name, AQ_FILE_READ, fd));
    if (aq_pread_all(*fd, &head, sizeof head, 0) == (ssize_t)sizeof head && head_is(sum, &head, step) &&
        fstat(*fd, &about) == 0 && (uint64_t)about.st_size == sizeof head + head.values * sizeof(float)) {
        *bytes = (uint64_t)about.st_size;
        return AQ_OK;
    }
    close(*fd);
    return AQ_NOTFOUND; /* a loss of power left a part of it */
}

static bool is_whole(const struct aq_split_sum *sum, uint64_t step)
{
    int fd;
    uint64_t bytes;
    struct aq_error_hold hold;
    aq_error_hold(&hold);
    const enum aq_status status = aq_split_sum_file(sum, step, &fd, &bytes);
    aq_error_release(&hold);
    if (status == AQ_OK) close(fd);
    return status == AQ_OK;
}

/* Ours in the folder: those of steps before `first` go; of the others the least, and the one behind the largest. */
static enum aq_status look(const struct aq_split_sum *sum, uint64_t first, uint64_t *first_found, uint64_t *last)
{
    DIR *folder = opendir(sum->folder);
    if (!folder) return aq_fail_errno(AREA, "cannot read %s", sum->folder);
    enum aq_status status = AQ_OK;
    for (const struct dirent *each = readdir(folder); each && status == AQ_OK; each = readdir(folder)) {
        uint64_t step;
        if (!step_of(each->d_name, &step)) continue;
        if (step < first || strchr(each->d_name, '.')) {
            status = aq_file_remove(sum->folder, each->d_name);
            continue;
        }
        if (step < *first_found) *first_found = step;
        if (step >= *last) *last = step + 1;
    }
    closedir(folder);
    return status;
}

enum aq_status aq_split_sum_open(const char *folder, uint64_t values, uint64_t first, struct aq_split_sum **out)
{
    void *memory;
    uint64_t found = UINT64_MAX, last = first;
    struct aq_split_sum *sum;
    AQ_TRY(AQ_NEW(1, &sum));
    enum aq_status status;
    *sum = (struct aq_split_sum){.folder = folder, .values = values};
    AQ_TRY_GOTO(aq_map(values * sizeof(float), &memory), out);
    sum->room = memory;
    AQ_TRY_GOTO(aq_map(values * sizeof(double), &memory), out);
    sum->sum = memory;
    AQ_TRY_GOTO(look(sum, first, &found, &last), out);
    sum->kept = sum->step = found == UINT64_MAX ? first : found;
    while (sum->step < last && is_whole(sum, sum->step))
        sum->step++;
    if (sum->step < last)
        aq_log(AREA, AQ_LOG_WARNING, "the sum of step %" PRIu64 " is incomplete: it is made again", sum->step);
    *out = sum;
    return AQ_OK;
out:
    aq_split_sum_close(sum);
    return status;
}

void aq_split_sum_close(struct aq_split_sum *sum)
{
    if (!sum) return;
    aq_unmap(sum->room, sum->values * sizeof(float));
    aq_unmap(sum->sum, sum->values * sizeof(double));
    aq_free(sum);
}

uint64_t aq_split_sum_step(const struct aq_split_sum *sum)
{
    return sum->step;
}

void aq_split_sum_reach(struct aq_split_sum *sum, uint64_t step)
{
    if (step <= sum->step) return;
    sum->step = step;
    sum->weight = 0;
}

float *aq_split_sum_room(struct aq_split_sum *sum)
{
    return sum->room;
}

void aq_split_sum_add(struct aq_split_sum *sum, uint64_t weight)
{
    const double w = (double)weight;
    const bool first = sum->weight == 0;
    if (weight == 0) return;
    sum->weight += weight;
    for (uint64_t i = 0; i < sum->values; i++)
        sum->sum[i] = first ? w * (double)sum->room[i] : sum->sum[i] + w * (double)sum->room[i];
}

enum aq_status aq_split_sum_done(struct aq_split_sum *sum)
{
    char name[NAME_BYTES], aside[NAME_BYTES];
    int fd;
    const bool is_void = sum->weight == 0;
    const struct aq_sum_head head = {.magic = AQ_SUM_MAGIC,
                                     .what = AQ_SUM_SUM,
                                     .flags = is_void ? AQ_SUM_VOID : 0,
                                     .step = sum->step,
                                     .weight = sum->weight,
                                     .values = is_void ? 0 : sum->values};
    for (uint64_t i = 0; i < head.values; i++)
        sum->room[i] = (float)(sum->sum[i] / (double)sum->weight);
    name_of(sum->step, "", name);
    name_of(sum->step, ".new", aside);
    AQ_TRY(aq_file_open(sum->folder, aside, AQ_FILE_ANEW, &fd));
    const bool written =
        aq_write_all(fd, &head, sizeof head) && aq_write_all(fd, sum->room, head.values * sizeof *sum->room);
    const enum aq_status status =
        written ? AQ_OK : aq_fail_errno(AREA, "cannot write the sum of a step into %s", sum->folder);
    close(fd);
    AQ_TRY(status);
    AQ_TRY(aq_file_rename(sum->folder, aside, name));
    sum->step++;
    sum->weight = 0;
    return AQ_OK;
}

void aq_split_sum_forget(struct aq_split_sum *sum, uint64_t step)
{
    char name[NAME_BYTES];
    for (; sum->kept < step && sum->kept < sum->step; sum->kept++) {
        name_of(sum->kept, "", name);
        (void)aq_file_remove(sum->folder, name);
    }
}

void aq_split_sum_clear(const char *path)
{
    DIR *folder = opendir(path);
    if (!folder) return;
    for (const struct dirent *each = readdir(folder); each; each = readdir(folder)) {
        uint64_t step;
        if (step_of(each->d_name, &step)) (void)aq_file_remove(path, each->d_name);
    }
    closedir(folder);
}
