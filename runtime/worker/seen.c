/* seen.c -- see the header. */
#include "seen.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "aqsgd/base/file.h"

/*
 * Offsets of a record's head; numbers are little-endian.
 *
 *    0  4  kind        enum aq_seen_kind
 *    4  4  rows
 *    8  4  columns
 *   12  4  zero
 *   16  8  step
 *   24  8  sample
 *   32     values      rows times columns, fp32
 */
enum { HEAD_BYTES = 16, RECORD_BYTES = 32, NAME_BYTES = 40 };
static const char head[HEAD_BYTES + 1] = "aqpipe seen 1\n\0";

static void put(unsigned char *at, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        at[i] = (unsigned char)(value >> 8 * i);
}

static enum aq_status write_to(struct aq_seen *seen, const void *bytes, size_t count)
{
    if (aq_write_all(seen->fd, bytes, count)) return AQ_OK;
    return aq_fail_errno("worker", "split.capture: cannot write the captured values");
}

enum aq_status aq_seen_open(const char *run, uint64_t step, uint64_t bytes_max, struct aq_seen *seen)
{
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "seen/%" PRIu64 ".bin", step);
    *seen = (struct aq_seen){.fd = -1};
    AQ_TRY(aq_file_make_folder(run, "seen"));
    AQ_TRY(aq_file_open(run, name, AQ_FILE_ANEW, &seen->fd));
    seen->bytes_left = bytes_max > HEAD_BYTES ? bytes_max - HEAD_BYTES : 0;
    return write_to(seen, head, HEAD_BYTES);
}

enum aq_status aq_seen_add(struct aq_seen *seen, const struct aq_seen_record *record, const float *values)
{
    unsigned char bytes[RECORD_BYTES] = {0};
    const uint64_t count = (uint64_t)record->rows * record->columns * sizeof *values;
    if (seen->fd == -1) return AQ_OK;
    if (RECORD_BYTES + count > seen->bytes_left) {
        aq_log("worker", 1, "split.capture: full after %" PRIu64 " records; what comes is not written", seen->records);
        aq_seen_close(seen);
        return AQ_OK;
    }
    put(bytes, (uint64_t)record->kind, 4);
    put(bytes + 4, record->rows, 4);
    put(bytes + 8, record->columns, 4);
    put(bytes + 16, record->step, 8);
    put(bytes + 24, record->sample, 8);
    AQ_TRY(write_to(seen, bytes, sizeof bytes));
    AQ_TRY(
        write_to(seen, values, (size_t)count)); /* as they lie: every machine that this is built for is little-endian */
    seen->bytes_left -= RECORD_BYTES + count;
    seen->records++;
    return AQ_OK;
}

void aq_seen_close(struct aq_seen *seen)
{
    if (seen->fd != -1) close(seen->fd);
    seen->fd = -1;
}
