/*
 * cuda_table.c -- choices by the clock that are kept in a file. See cuda_table.h.
 */
#include "cuda_table.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "aqsgd/base/file.h"

enum {
    TABLE_BYTES_MAX = 1 << 20, /* over 3000 lines; products have about 40 for a model, cuDNN 138 for ResNet-50 */
    BEGIN_BYTES = 64,
    ROUNDS = 3, /* the best of 3 ...        */
    RUNS = 8    /* ... times 8, one warm-up */
};

enum aq_status cuda_table_path(const struct cuda_device *cuda, const char *kind, size_t version, char **path)
{
    const char *folder = getenv("AQ_GPU_TABLE");
    char name[sizeof cuda->probe.name];
    *path = NULL;
    if (!folder || !*folder) return AQ_OK;
    snprintf(name, sizeof name, "%s", cuda->probe.name);
    for (char *at = name; *at; at++)
        if (!isalnum((unsigned char)*at)) *at = '-';
    const size_t bytes = strlen(folder) + strlen(kind) + sizeof name + 64;
    AQ_TRY(AQ_NEW(bytes, path));
    snprintf(*path, bytes, "%s/%s-%s-%d-%zu", folder, kind, name, cuda->probe.processors, version);
    return AQ_OK;
}

/* --- the file --------------------------------------------------------------------------------------------------- */

static void table_begin(const char *kind, char begin[BEGIN_BYTES])
{
    snprintf(begin, BEGIN_BYTES, "aqpipe %s 1\n", kind);
}

/* Behind its last "\n" a text has what a crash has left of a line. */
static void text_cut(char *text)
{
    char *const last = strrchr(text, '\n');
    if (last) last[1] = 0;
}

static enum aq_status table_load(struct cuda_table *table)
{
    char begin[BEGIN_BYTES];
    struct stat info;
    size_t count = 0;
    table_begin(table->kind, begin);
    if (flock(table->fd, LOCK_EX) == -1 || fstat(table->fd, &info) == -1)
        return aq_fail_errno("device", "%s", table->path);
    if (info.st_size > TABLE_BYTES_MAX)
        return aq_fail(AQ_NOSPC, "device", "%s has %lld bytes, more than a table of %s may have (%d): remove it",
                       table->path, (long long)info.st_size, table->kind, TABLE_BYTES_MAX);
    AQ_TRY(aq_file_load(NULL, table->path, TABLE_BYTES_MAX, &table->text, &count));
    const bool begins = count == 0 || strncmp(table->text, begin, strlen(begin)) == 0;
    if (!begins || strlen(table->text) != count)
        return aq_fail(AQ_CORRUPT, "device", "%s is not a table of %s: remove it", table->path, table->kind);
    text_cut(table->text);
    return AQ_OK;
}

enum aq_status cuda_table_open(const char *path, const char *kind, struct cuda_table *out)
{
    *out = (struct cuda_table){.path = path, .kind = kind, .fd = -1};
    AQ_TRY(aq_file_open(NULL, path, AQ_FILE_KEEP, &out->fd));
    const enum aq_status status = table_load(out);
    if (status != AQ_OK) cuda_table_close(out);
    return status;
}

void cuda_table_close(struct cuda_table *table)
{
    aq_free(table->text);
    close(table->fd); /* and its lock */
}

const char *cuda_table_find(const char *text, const char *begin, size_t least)
{
    const size_t length = strlen(begin);
    for (const char *at = strstr(text, begin); at; at = strstr(at + 1, begin)) {
        const bool starts = at == text || at[-1] == '\n';
        const size_t count = strcspn(at, "\n");
        if (starts && at[count] == '\n' && count >= length + least) return at + length;
    }
    return NULL;
}

enum aq_status cuda_table_add(const struct cuda_table *table, const char *line)
{
    char begin[BEGIN_BYTES], bytes[BEGIN_BYTES + CUDA_TABLE_LINE_BYTES];
    const size_t have = strlen(table->text);
    table_begin(table->kind, begin);
    AQ_ASSERT(strlen(line) < CUDA_TABLE_LINE_BYTES);
    const int count = snprintf(bytes, sizeof bytes, "%s%s", have == 0 ? begin : "", line);
    if (ftruncate(table->fd, (off_t)have) == -1 || !aq_pwrite_all(table->fd, bytes, (size_t)count, have) ||
        fdatasync(table->fd) == -1)
        return aq_fail_errno("device", "%s", table->path);
    return have == 0 ? aq_file_sync_folder(NULL, table->path) : AQ_OK;
}

/* --- the clock -------------------------------------------------------------------------------------------------- */

static enum aq_status round_time(const struct aq_stream *stream, cuda_timed *call, void *context, cudaEvent_t events[2],
                                 double *us)
{
    float ms = 0;
    AQ_CUDA(cudaEventRecord(events[0], stream->at));
    for (int run = 0; run < RUNS; run++)
        AQ_TRY(call(context));
    AQ_CUDA(cudaEventRecord(events[1], stream->at));
    AQ_CUDA(cudaStreamSynchronize(stream->at));
    AQ_CUDA(cudaEventElapsedTime(&ms, events[0], events[1]));
    *us = (double)ms * 1e3 / RUNS;
    return AQ_OK;
}

static enum aq_status rounds_time(const struct aq_stream *stream, cuda_timed *call, void *context,
                                  cudaEvent_t events[2], double *us)
{
    double each = 0;
    for (int i = 0; i < 2; i++)
        AQ_CUDA(cudaEventCreateWithFlags(&events[i], cudaEventDefault));
    AQ_TRY(call(context));
    for (int round = 0; round < ROUNDS; round++) {
        AQ_TRY(round_time(stream, call, context, events, &each));
        if (round == 0 || each < *us) *us = each;
    }
    return AQ_OK;
}

enum aq_status cuda_table_time(const struct aq_stream *stream, cuda_timed *call, void *context, double *us)
{
    cudaEvent_t events[2] = {NULL, NULL};
    struct aq_cuda_list *const list = aq_cuda_list();
    aq_cuda_list_use(NULL);
    const enum aq_status status = rounds_time(stream, call, context, events, us);
    aq_cuda_list_use(list);
    for (int i = 0; i < 2; i++)
        if (events[i]) (void)cudaEventDestroy(events[i]);
    return status;
}
