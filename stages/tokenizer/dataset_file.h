/*
 * dataset_file.h -- a file as bytes in memory.
 *
 * Read, not mapped: a file that shrinks under a mapping kills the process, one that shrinks under read() is a status.
 */
#ifndef STAGES_DATASET_FILE_H
#define STAGES_DATASET_FILE_H

#include "aqsgd/base.h"

/*
 * All bytes of a regular file, with a zero byte behind them, into memory of aq_alloc. AQ_NOTFOUND: no such file.
 * AQ_IO: it cannot be read, is no regular file, or changed its length meanwhile. AQ_INVAL: more than bytes_max. All
 * name the file.
 */
enum aq_status aq_file_read(const char *area, const char *path, uint64_t bytes_max, uint8_t **out, size_t *bytes);

/*
 * Is it the file itself? AQ_CORRUPT: a Git LFS pointer or a web page; the text has the command that downloads the file.
 * For files that are neither text nor XML themselves.
 */
enum aq_status aq_file_check(const char *area, const char *path, const uint8_t *bytes, size_t count);

#endif
