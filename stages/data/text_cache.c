/* text_cache.c -- the file of tokens. See text_tokens.h. */
#include <assert.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dataset_kind.h"
#include "text_tokens.h"

#define AREA DATASET_AREA

enum { HEAD_BYTES = 64, NAME_BYTES = 48, VERSION = 1 };

static const char magic[8] = {'A', 'Q', 'T', 'O', 'K', 'E', 'N', 'S'};

struct head {
    char magic[8];
    uint32_t version, zero;
    uint64_t key, count, tokens_digest, digest, more[2];
};
static_assert(sizeof(struct head) == HEAD_BYTES, "the head's layout");
static_assert(offsetof(struct head, digest) == 40, "what is digested");

static void name_of(uint64_t key, char name[NAME_BYTES])
{
    snprintf(name, NAME_BYTES, "%016llx.tokens", (unsigned long long)key);
}

void text_ids_close(struct text_ids *ids)
{
    aq_free(ids->owned);
    if (ids->mapped) munmap(ids->mapped, ids->mapped_bytes);
    *ids = (struct text_ids){.at = NULL};
}

/* The problem of a mapped file, or NULL. */
static const char *problem_of(const struct text_ids *ids, uint64_t key)
{
    struct head head;
    memcpy(&head, ids->mapped, sizeof head);
    if (memcmp(head.magic, magic, sizeof magic) != 0) return "is not a file of tokens";
    if (head.digest != aq_digest(&head, offsetof(struct head, digest))) return "has a damaged header";
    if (head.version != VERSION || head.key != key) return "is of another version or text";
    if (head.count != (ids->mapped_bytes - HEAD_BYTES) / sizeof(int32_t) ||
        (ids->mapped_bytes - HEAD_BYTES) % sizeof(int32_t))
        return "has another length than its header states";
    if (head.tokens_digest != aq_digest(ids->mapped + HEAD_BYTES, ids->mapped_bytes - HEAD_BYTES))
        return "has damaged tokens";
    return NULL;
}

enum aq_status text_cache_get(const char *folder, uint64_t key, struct text_ids *out)
{
    char name[NAME_BYTES];
    int file;
    struct stat about;
    name_of(key, name);
    const enum aq_status status = aq_file_open(folder, name, AQ_FILE_READ, &file);
    if (status != AQ_OK) {
        aq_error_clear(); /* it is made again, which reports any lasting problem */
        return AQ_NOTFOUND;
    }
    struct text_ids ids = {.at = NULL};
    const char *problem = "is cut short";
    if (fstat(file, &about) == 0 && about.st_size >= HEAD_BYTES) {
        void *mapped = mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_SHARED, file, 0);
        if (mapped != MAP_FAILED) {
            ids.mapped = mapped;
            ids.mapped_bytes = (size_t)about.st_size;
        }
        problem = ids.mapped ? problem_of(&ids, key) : "cannot be mapped";
    }
    close(file);
    if (problem) {
        aq_log(AREA, AQ_LOG_WARNING, "%s/%s %s: it is made again", folder, name, problem);
        text_ids_close(&ids);
        return AQ_NOTFOUND;
    }
    ids.at = (const int32_t *)(const void *)(ids.mapped + HEAD_BYTES);
    ids.count = (ids.mapped_bytes - HEAD_BYTES) / sizeof(int32_t);
    *out = ids;
    return AQ_OK;
}

/* A file of that name that another program made stays. */
static enum aq_status check_ours(const char *folder, const char *name)
{
    char first[sizeof magic];
    int file;
    const enum aq_status status = aq_file_open(folder, name, AQ_FILE_READ, &file);
    if (status == AQ_NOTFOUND) return AQ_OK;
    AQ_TRY(status);
    const ssize_t got = aq_read_all(file, first, sizeof first);
    close(file);
    if (got == 0 || (got == (ssize_t)sizeof first && memcmp(first, magic, sizeof magic) == 0)) return AQ_OK;
    return aq_fail(AQ_REFUSED, AREA, "%s/%s is not a file of this program: name another folder (data.cache)", folder,
                   name);
}

/* Each writer has its own temporary file: the time separates processes of two containers with one number. */
static void aside_of(uint64_t key, struct text_sink *sink)
{
    const uint64_t who[3] = {(uint64_t)getpid(), (uint64_t)(uintptr_t)sink, aq_clock_ns()};
    snprintf(sink->aside, sizeof sink->aside, "%016llx.tokens.%016llx.new", (unsigned long long)key,
             (unsigned long long)aq_digest(who, sizeof who));
}

enum aq_status text_cache_begin(const char *folder, uint64_t key, struct text_sink *out)
{
    static const uint8_t zeroes[HEAD_BYTES];
    char name[NAME_BYTES];
    *out = (struct text_sink){.file = -1};
    name_of(key, name);
    aside_of(key, out);
    AQ_TRY(check_ours(folder, name));
    AQ_TRY(aq_file_open(folder, out->aside, AQ_FILE_ANEW, &out->file));
    if (aq_write_all(out->file, zeroes, sizeof zeroes)) return AQ_OK;
    const enum aq_status status = aq_fail_errno(AREA, "cannot write %s/%s", folder, out->aside);
    text_cache_drop(folder, out);
    return status;
}

void text_cache_drop(const char *folder, struct text_sink *sink)
{
    if (sink->file >= 0) close(sink->file);
    sink->file = -1;
    (void)aq_file_remove(folder, sink->aside);
}

/* The tokens as they are in the file now: what is digested is what will be read. */
static enum aq_status digest_of(const char *folder, const char *name, uint64_t count, uint64_t *out)
{
    const size_t bytes = HEAD_BYTES + count * sizeof(int32_t);
    int file;
    AQ_TRY(aq_file_open(folder, name, AQ_FILE_READ, &file));
    uint8_t *mapped = mmap(NULL, bytes, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (mapped == MAP_FAILED) return aq_fail_errno(AREA, "cannot map a file of %zu bytes of tokens", bytes);
    *out = aq_digest(mapped + HEAD_BYTES, bytes - HEAD_BYTES);
    munmap(mapped, bytes);
    return AQ_OK;
}

enum aq_status text_cache_end(const char *folder, uint64_t key, struct text_sink *sink)
{
    char name[NAME_BYTES];
    struct head head = {.version = VERSION, .key = key, .count = sink->count};
    enum aq_status status;
    name_of(key, name);
    memcpy(head.magic, magic, sizeof magic);
    AQ_TRY_GOTO(digest_of(folder, sink->aside, sink->count, &head.tokens_digest), out);
    head.digest = aq_digest(&head, offsetof(struct head, digest));
    if (!aq_pwrite_all(sink->file, &head, sizeof head, 0) || fsync(sink->file) != 0) {
        status = aq_fail_errno(AREA, "cannot write %s/%s", folder, sink->aside);
        goto out;
    }
    AQ_TRY_GOTO(aq_file_rename(folder, sink->aside, name), out);
    status = aq_file_sync_folder(folder, name);
out:
    if (status != AQ_OK) {
        text_cache_drop(folder, sink);
        return status;
    }
    close(sink->file);
    sink->file = -1;
    return AQ_OK;
}
