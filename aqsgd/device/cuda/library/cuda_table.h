/*
 * cuda_table.h -- choices by the clock that are kept in a file: what the table of products (cuda_table_products.c) and
 * that of attention and convolutions by cuDNN (cuda_cudnn_choose.c) share.
 *
 * Two ways to compute the same differ in rounding. So a choice by the clock is made once for all stages and all
 * restarts of a job, or its bits are not reproducible. It is kept in the folder that AQ_GPU_TABLE names, in a file per
 * kind of choice, GPU model and version of the library: KIND-<GPU>-<processors>-<version>. Copy the file to have the
 * same choices on another machine.
 *
 *     line 1     "aqpipe KIND 1"
 *     each more  what the file of that kind says at its top
 *
 * A crash can cut off the end of the last line: what is behind the last "\n" is ignored, and the next line takes its
 * place. Other malformed lines are ignored, too. A file with another first line is refused and stays as it is.
 * Processes that share a GPU take turns under flock: one's load does not disturb the other's timing, and the second
 * reads the results of the first.
 */
#ifndef AQ_CUDA_TABLE_H
#define AQ_CUDA_TABLE_H

#include "cuda_device.h"

enum { CUDA_TABLE_LINE_BYTES = 512 };
static const double CUDA_TABLE_GAIN = 0.98; /* another way is worth it from 2 % on: less is the clock's error */

/* The file's path; *path is NULL if AQ_GPU_TABLE names no folder. AQ_NOMEM. */
enum aq_status cuda_table_path(const struct cuda_device *cuda, const char *kind, size_t version, char **path);

/* A file whose lock is held, and its text. */
struct cuda_table {
    const char *path, *kind;
    int fd;
    char *text;
};

/*
 * Opens the file (made if missing), and waits for its lock. The text ends with its last whole line. AQ_NOTFOUND: the
 * folder is missing; AQ_CORRUPT: it is no such table; AQ_NOSPC: it is too large; AQ_IO, AQ_NOMEM. Logged.
 */
enum aq_status cuda_table_open(const char *path, const char *kind, struct cuda_table *out);
void cuda_table_close(struct cuda_table *table);

/* Behind the first whole line of the text that starts with `begin` and has `least` characters more. NULL: none. */
const char *cuda_table_find(const char *text, const char *begin, size_t least);

/* Adds a line of less than CUDA_TABLE_LINE_BYTES, "\n" at its end; once per turn. AQ_IO, AQ_NOTFOUND. Logged. */
enum aq_status cuda_table_add(const struct cuda_table *table, const char *line);

/*
 * Microseconds of a call that enqueues on the stream and may be repeated: the best of 3 rounds of 8, after one to warm
 * up. Nothing of it enters the thread's list of launches. The call's own failure; AQ_CUDAERR: the clock's, logged.
 */
typedef enum aq_status cuda_timed(void *context);
enum aq_status cuda_table_time(const struct aq_stream *stream, cuda_timed *call, void *context, double *us);

#endif
