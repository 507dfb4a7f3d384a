/* visit_ledger.c -- see the header, which has the table of bytes. */
#include "visit_ledger.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "aqsgd/base/file.h"

static const char *const AREA = "privacy";
static const char magic[] = "aqvisits";
static const char prefix[] = "visits-"; /* of a file's name */

struct head {
    char magic[8];
    uint32_t format, zero;
    uint64_t digest, zeros, instance, check;
};
static_assert(sizeof(struct head) == 48 && offsetof(struct head, check) == 40, "the head of a file");

struct record {
    uint64_t number;
    double each;
    uint32_t count, cut;
    uint64_t check, samples_check;
};
static_assert(sizeof(struct record) == 40 && offsetof(struct record, check) == 24, "the head of a record");

struct aq_ledger {
    int fd;
    char path[512]; /* for people; cut off where it is longer */
    struct head head;
    uint64_t at; /* the byte behind the last whole record  */
    uint64_t records;
    uint64_t chain; /* the digest that the next record's is seeded with */
    uint64_t most;  /* the sample whose sum is largest */
    uint32_t ids[AQ_LEDGER_RECORD_SAMPLES];
    uint64_t samples; /* that it knows: 0 .. samples - 1 */
    uint64_t ids_end; /* the largest id in the file, and 1 */
    double *sums;     /* of each sample, behind this struct */
    uint32_t *visits[AQ_LEDGER_CUTS];
};

void aq_ledger_name(uint64_t digest, char name[AQ_LEDGER_NAME_BYTES])
{
    snprintf(name, AQ_LEDGER_NAME_BYTES, "%s%016" PRIx64 ".ledger", prefix, digest);
}

uint64_t aq_ledger_bytes(uint64_t samples)
{
    return sizeof(struct aq_ledger) + samples * (sizeof(double) + AQ_LEDGER_CUTS * sizeof(uint32_t));
}

static enum aq_status damaged(const struct aq_ledger *ledger, uint64_t at, const char *what)
{
    return aq_fail(AQ_CORRUPT, AREA,
                   "%s is damaged at byte %" PRIu64 " (%s): what was sent of each sample cannot be counted, so nothing "
                   "is sent; restore a copy made after the last turn. Without one remove the file and privacy.json in "
                   "the client's output.path: counting then begins at zero, and no epsilon covers what was sent before",
                   ledger->path, at, what);
}

static uint64_t head_check(const struct head *head)
{
    return aq_digest(head, offsetof(struct head, check));
}

/* ---- a new file ---- */

static enum aq_status make(const char *folder, const char *name, uint64_t digest)
{
    int fd;
    const enum aq_status status = aq_file_open(folder, name, AQ_FILE_READ, &fd);
    if (status == AQ_OK) close(fd);
    if (status != AQ_NOTFOUND) return status;
    struct head head = {.format = 1, .digest = digest};
    memcpy(head.magic, magic, sizeof head.magic);
    if (getrandom(&head.instance, sizeof head.instance, 0) != (ssize_t)sizeof head.instance)
        return aq_fail_errno(AREA, "getrandom");
    head.check = head_check(&head);
    return aq_file_replace(folder, name, 0600, &head, sizeof head);
}

enum aq_status aq_ledger_make(const char *folder, uint64_t digest)
{
    char name[AQ_LEDGER_NAME_BYTES];
    int fd;
    aq_ledger_name(digest, name);
    AQ_TRY(aq_file_open_folder(folder, "", &fd));
    enum aq_status status = AQ_OK;
    if (flock(fd, LOCK_EX) != 0) status = aq_fail_errno(AREA, "cannot lock %s", folder);
    if (status == AQ_OK) status = make(folder, name, digest);
    close(fd);
    return status;
}

/* ---- reading ---- */

static enum aq_status read_at(const struct aq_ledger *ledger, void *out, size_t count, uint64_t at, bool *whole)
{
    const ssize_t got = aq_pread_all(ledger->fd, out, count, at);
    if (got < 0) return aq_fail_errno(AREA, "cannot read %s", ledger->path);
    *whole = (size_t)got == count;
    return AQ_OK;
}

static enum aq_status lock(const struct aq_ledger *ledger, int how)
{
    while (flock(ledger->fd, how) != 0)
        if (errno != EINTR) return aq_fail_errno(AREA, "cannot lock %s", ledger->path);
    return AQ_OK;
}

static void count_visits(struct aq_ledger *ledger, const struct record *record)
{
    for (uint32_t i = 0; i < record->count; i++) {
        const uint32_t id = ledger->ids[i];
        if (id >= ledger->ids_end) ledger->ids_end = (uint64_t)id + 1;
        if (id >= ledger->samples) continue;
        uint32_t *visits = &ledger->visits[record->cut][id];
        ledger->sums[id] += record->each;
        if (*visits < UINT32_MAX) ++*visits;
        if (ledger->sums[id] > ledger->sums[ledger->most]) ledger->most = id;
    }
}

/* What stands in the record, if its digests are right: a program that is not this one may have written them. */
static enum aq_status record_check(const struct aq_ledger *ledger, const struct record *record)
{
    if (record->check != aq_digest_seeded(record, offsetof(struct record, check), ledger->chain))
        return damaged(ledger, ledger->at, "a record's digest");
    if (record->number != ledger->records + 1 || record->count == 0 || record->count > AQ_LEDGER_RECORD_SAMPLES ||
        record->cut >= AQ_LEDGER_CUTS || !isfinite(record->each) || !(record->each > 0))
        return damaged(ledger, ledger->at, "a record");
    return AQ_OK;
}

static enum aq_status samples_check(const struct aq_ledger *ledger, const struct record *record)
{
    const uint64_t check = aq_digest_seeded(ledger->ids, record->count * sizeof *ledger->ids, record->check);
    return record->samples_check == check
               ? AQ_OK
               : damaged(ledger, ledger->at + sizeof *record, "the digest of a record's samples");
}

static void advance(struct aq_ledger *ledger, const struct record *record)
{
    count_visits(ledger, record);
    ledger->records++;
    ledger->chain = record->samples_check;
    ledger->at += sizeof *record + record->count * sizeof *ledger->ids;
}

/* With the lock: nobody is writing, so a record that the end cuts off is one of a crash. */
static enum aq_status read_records(struct aq_ledger *ledger)
{
    struct record record;
    bool whole = false;
    for (;;) {
        AQ_TRY(read_at(ledger, &record, sizeof record, ledger->at, &whole));
        if (!whole) return AQ_OK;
        AQ_TRY(record_check(ledger, &record));
        AQ_TRY(read_at(ledger, ledger->ids, record.count * sizeof *ledger->ids, ledger->at + sizeof record, &whole));
        if (!whole) return AQ_OK;
        AQ_TRY(samples_check(ledger, &record));
        advance(ledger, &record);
    }
}

/* The file was longer when it was read last: it was cut off since. */
static enum aq_status length_check(const struct aq_ledger *ledger)
{
    struct stat about;
    if (fstat(ledger->fd, &about) != 0) return aq_fail_errno(AREA, "cannot look at %s", ledger->path);
    if (about.st_nlink == 0 || (uint64_t)about.st_size < ledger->at)
        return damaged(ledger, (uint64_t)about.st_size, about.st_nlink ? "its end" : "it was removed");
    return AQ_OK;
}

static enum aq_status follow_locked(struct aq_ledger *ledger)
{
    AQ_TRY(length_check(ledger));
    return read_records(ledger);
}

enum aq_status aq_ledger_follow(struct aq_ledger *ledger)
{
    AQ_TRY(lock(ledger, LOCK_SH));
    const enum aq_status status = follow_locked(ledger);
    (void)lock(ledger, LOCK_UN);
    return status;
}

static enum aq_status head_read(const struct aq_ledger *ledger, uint64_t digest, struct head *head)
{
    bool whole = false;
    AQ_TRY(read_at(ledger, head, sizeof *head, 0, &whole));
    if (!whole || memcmp(head->magic, magic, sizeof head->magic) != 0 || head->check != head_check(head))
        return damaged(ledger, 0, "its head");
    if (head->format != 1 || head->digest != digest)
        return damaged(ledger, 0, "it is of other data, or of another version");
    return AQ_OK;
}

/* What to open: to write, the one of `digest` in `folder`; to read, the file `path`. */
struct opening {
    const char *folder, *path; /* one of them is NULL */
    uint64_t digest;
};

static enum aq_status open_file(const struct opening *opening, struct aq_ledger *file)
{
    char name[AQ_LEDGER_NAME_BYTES];
    aq_ledger_name(opening->digest, name);
    if (opening->path)
        snprintf(file->path, sizeof file->path, "%s", opening->path);
    else
        snprintf(file->path, sizeof file->path, "%s/%s", opening->folder, name);
    AQ_TRY(aq_file_open(opening->folder, opening->path ? opening->path : name,
                        opening->path ? AQ_FILE_READ : AQ_FILE_UPDATE, &file->fd));
    return head_read(file, opening->digest, &file->head);
}

static enum aq_status open_of(const struct opening *opening, uint64_t samples, struct aq_ledger **out)
{
    struct aq_ledger *ledger;
    AQ_TRY(aq_alloc_at(aq_ledger_bytes(samples), &ledger));
    ledger->fd = -1;
    ledger->samples = samples;
    ledger->sums = (double *)(ledger + 1);
    ledger->visits[0] = (uint32_t *)(ledger->sums + samples);
    ledger->visits[1] = ledger->visits[0] + samples;
    enum aq_status status = open_file(opening, ledger);
    ledger->at = sizeof ledger->head;
    ledger->chain = ledger->head.check;
    if (status == AQ_OK) status = aq_ledger_follow(ledger);
    if (status == AQ_OK)
        *out = ledger;
    else
        aq_ledger_close(ledger);
    return status;
}

static enum aq_status open_whole(const struct opening *opening, uint64_t samples, struct aq_ledger **out)
{
    struct aq_ledger *first;
    AQ_TRY(open_of(opening, 1, &first)); /* which samples it has */
    const uint64_t end = first->ids_end > samples ? first->ids_end : samples;
    aq_ledger_close(first);
    return open_of(opening, end > 0 ? end : 1, out);
}

enum aq_status aq_ledger_open(const char *folder, uint64_t digest, uint64_t samples, struct aq_ledger **out)
{
    const struct opening opening = {.folder = folder, .digest = digest};
    return open_whole(&opening, samples, out);
}

enum aq_status aq_ledger_open_read(const char *path, struct aq_ledger **out)
{
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    const size_t before = strlen(prefix);
    struct opening opening = {.path = path};
    char name[AQ_LEDGER_NAME_BYTES] = "";
    if (strncmp(base, prefix, before) == 0) {
        opening.digest = strtoull(base + before, NULL, 16);
        aq_ledger_name(opening.digest, name);
    }
    if (strcmp(base, name) != 0 || !name[0])
        return aq_fail(AQ_INVAL, AREA, "%s is no ledger of visits: their names are visits-DIGEST.ledger", path);
    return open_whole(&opening, 0, out);
}

void aq_ledger_close(struct aq_ledger *ledger)
{
    if (!ledger) return;
    if (ledger->fd != -1) close(ledger->fd);
    aq_free(ledger);
}

/* ---- writing ---- */

/* Not AQ_REFUSED, which says that a sample would pass the limit: a file system that turns read-only gives it, too. */
static enum aq_status cannot(const struct aq_ledger *ledger, const char *what)
{
    const enum aq_status status = aq_fail_errno(AREA, "cannot %s %s, so nothing is sent", what, ledger->path);
    return status == AQ_REFUSED ? AQ_IO : status;
}

static enum aq_status write_record(struct aq_ledger *ledger, const struct aq_ledger_batch *batch, uint32_t from)
{
    const uint32_t left = batch->count - from;
    struct record record = {.number = ledger->records + 1,
                            .each = batch->each,
                            .count = left < AQ_LEDGER_RECORD_SAMPLES ? left : AQ_LEDGER_RECORD_SAMPLES,
                            .cut = batch->cut};
    for (uint32_t i = 0; i < record.count; i++)
        ledger->ids[i] = (uint32_t)batch->ids[from + i];
    record.check = aq_digest_seeded(&record, offsetof(struct record, check), ledger->chain);
    record.samples_check = aq_digest_seeded(ledger->ids, record.count * sizeof *ledger->ids, record.check);
    if (!aq_pwrite_all(ledger->fd, &record, sizeof record, ledger->at) ||
        !aq_pwrite_all(ledger->fd, ledger->ids, record.count * sizeof *ledger->ids, ledger->at + sizeof record))
        return cannot(ledger, "write");
    advance(ledger, &record);
    return AQ_OK;
}

static enum aq_status add_locked(struct aq_ledger *ledger, const struct aq_ledger_batch *batch)
{
    AQ_TRY(follow_locked(ledger));
    for (uint32_t i = 0; i < batch->count; i++)
        if (!(ledger->sums[batch->ids[i]] + batch->each <= batch->most)) return AQ_REFUSED;
    if (ftruncate(ledger->fd, (off_t)ledger->at) != 0) /* what a crash left of a record */
        return cannot(ledger, "write");
    for (uint32_t from = 0; from < batch->count; from += AQ_LEDGER_RECORD_SAMPLES)
        AQ_TRY(write_record(ledger, batch, from));
    if (fdatasync(ledger->fd) != 0) return cannot(ledger, "sync");
    return AQ_OK;
}

enum aq_status aq_ledger_add(struct aq_ledger *ledger, const struct aq_ledger_batch *batch)
{
    AQ_ASSERT(batch->count > 0 && batch->cut < AQ_LEDGER_CUTS);
    AQ_ASSERT(batch->each > 0 && isfinite(batch->each));
    for (uint32_t i = 0; i < batch->count; i++)
        AQ_ASSERT(batch->ids[i] < ledger->samples);
    AQ_TRY(lock(ledger, LOCK_EX));
    const enum aq_status status = add_locked(ledger, batch);
    (void)lock(ledger, LOCK_UN);
    return status;
}

double aq_ledger_sum(const struct aq_ledger *ledger, uint64_t sample)
{
    AQ_ASSERT(sample < ledger->samples);
    return ledger->sums[sample];
}

uint64_t aq_ledger_visited(const struct aq_ledger *ledger)
{
    uint64_t count = 0;
    for (uint64_t i = 0; i < ledger->samples; i++)
        count += ledger->sums[i] > 0;
    return count;
}

struct aq_ledger_most aq_ledger_most(const struct aq_ledger *ledger)
{
    const uint64_t id = ledger->most;
    return (struct aq_ledger_most){ledger->sums[id], id, {ledger->visits[0][id], ledger->visits[1][id]}};
}

struct aq_ledger_place aq_ledger_place(const struct aq_ledger *ledger)
{
    return (struct aq_ledger_place){ledger->head.instance, ledger->records};
}
