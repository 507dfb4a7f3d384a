/*
 * data_bytes.h -- a data file as a stream of bytes: what gzip or zstd packed is unpacked.
 *
 *     struct data_bytes *bytes;
 *     AQ_TRY(data_bytes_open(path, &bytes));
 *     do AQ_TRY(data_bytes_read(bytes, buffer, sizeof buffer, &got)); while (got > 0);
 *     data_bytes_close(bytes);
 *
 * Caveats first. A packed file is a stranger's: the stream ends with AQ_INVAL where it grows beyond DATA_UNPACKED_MAX
 * bytes, or, behind its first DATA_RATIO_FREE bytes, beyond DATA_RATIO_MAX bytes for each packed one. Memory is two
 * windows of the library (zstd: 128 MiB at most) and 256 KiB, whatever the file.
 *
 * The packing is recognised by the first bytes, not by the name (data_packings in data_bytes.c: one row a packing).
 * Formats that are no text at all (Parquet, Arrow, zip, UTF-16 and their like) are refused with the command that
 * converts them.
 *
 * Locking: one thread a stream.
 */
#ifndef DATA_BYTES_H
#define DATA_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "aqsgd/base.h"

#define DATA_UNPACKED_MAX (UINT64_C(1) << 36)
#define DATA_RATIO_FREE   (UINT64_C(64) << 20)
#define DATA_RATIO_MAX    UINT64_C(1000)

struct data_bytes; /* opaque */

/*
 * AQ_NOTFOUND, AQ_IO: as aq_given_open. AQ_INVAL: a sparse file. AQ_CORRUPT: a format that is not read here, or a Git
 * LFS pointer; names the remedy. AQ_NODEV: a packing that this build lacks. All name the file.
 */
enum aq_status data_bytes_open(const char *path, struct data_bytes **out);
void data_bytes_close(struct data_bytes *bytes); /* NULL is fine */

/* Some bytes, at most `room` (at least 1); *got 0: the end. AQ_CORRUPT: damaged or cut short. AQ_INVAL: a bound. */
enum aq_status data_bytes_read(struct data_bytes *bytes, uint8_t *to, size_t room, size_t *got);

/* Is the file packed? */
bool data_bytes_packed(const struct data_bytes *bytes);

/* The bytes of a UTF-8 byte order mark at the beginning, 3 or 0. */
size_t data_mark(const uint8_t *head, size_t bytes);

/* Has a name one of these endings (".jsonl .ndjson"), in any case, and something before it? */
bool data_name_ends(const char *name, size_t bytes, const char *endings);
/* How much of a name is left before the endings of packings: 8 of "a.jsonl.gz" are 7. */
size_t data_name_bytes(const char *path);

/* Is it of a packing, by its first bytes? And is it a format that is refused: AQ_CORRUPT (names the remedy). */
bool data_is_packed(const uint8_t *head, size_t bytes);
enum aq_status data_check_format(const char *path, const uint8_t *head, size_t bytes);

enum { DATA_HEAD_BYTES = 512 }; /* that both look at */

#endif
