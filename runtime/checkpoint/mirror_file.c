/*
 * mirror_file.c -- files of the copies of checkpoints, as the thread of mirror.c reads and writes them.
 *
 * A keeper stores and sends what it was given, whatever that is. The owner makes the hash of its file while it goes out
 * (the launcher keeps it, docs/CONTROL.md) and, where there is a key, sends it sealed; what it fetches it opens, and
 * takes only if the hash is the one that the launcher has kept. A copy that is not sealed is taken all the same: a key
 * may have come later than the copy, and it is the hash that proves the file.
 */
#include <inttypes.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "mirror_private.h"

/*
 * Removes the partial copy of an earlier step: only the file that this module makes, and its folder if it is empty
 * then. Best effort: leftovers are harmless.
 */
static void remove_leftovers(const struct lane *lane)
{
    uint64_t steps[STEPS_MAX];
    uint32_t count = 0;
    char name[NAME_BYTES];
    int file;
    if (lane->own || aq_run_marks(lane->folder, steps, STEPS_MAX, &count) != AQ_OK) return;
    for (uint32_t i = 0; i < count; i++) {
        if (steps[i] >= lane->step) continue;
        snprintf(name, sizeof name, "%" PRIu64 "/mirror-stage-%u.safetensors.partial", steps[i], lane->peer);
        if (aq_file_open(lane->folder, name, AQ_FILE_READ, &file) != AQ_OK) continue;
        close(file);
        if (aq_file_remove(lane->folder, name) != AQ_OK) continue;
        *strchr(name, '/') = 0;
        (void)aq_file_remove_folder(lane->folder, name);
    }
}

/* ---- opening ---- */

static enum aq_status open_to_read(struct lane *lane)
{
    struct mirror_own *own = lane->file_own;
    struct stat info;
    AQ_TRY(aq_file_open(lane->folder, lane->name, AQ_FILE_READ, &lane->file));
    if (fstat(lane->file, &info) != 0) return aq_fail_errno("mirror", "cannot read %s/%s", lane->folder, lane->name);
    lane->size = (uint64_t)info.st_size;
    if (!lane->own) return AQ_OK;
    own->about.file_bytes = lane->size;
    if (own->seal && lane->size > 0) lane->size = aq_seal_bytes(lane->size);
    return AQ_OK;
}

static enum aq_status open_to_write(struct lane *lane)
{
    char step[24];
    snprintf(step, sizeof step, "%" PRIu64, lane->step);
    AQ_TRY(aq_file_make_folder(lane->folder, step));
    remove_leftovers(lane);
    return aq_file_open(lane->folder, lane->partial, AQ_FILE_ANEW, &lane->file);
}

static enum aq_status lane_open_file(struct lane *lane)
{
    struct mirror_own *own = lane->file_own;
    if (lane->file >= 0) return AQ_OK;
    lane->digest = 0;
    if (lane->own) {
        aq_hash_begin(own->hash);
        own->about.step = lane->step;
        own->box_at = own->box_end = 0;
        own->plain_at = 0;
        own->begun = own->open = false;
    }
    return lane->sends ? open_to_read(lane) : open_to_write(lane);
}

/* ---- reading ---- */

/* So many bytes of the file from `offset` on, fewer at its end. */
static enum aq_status read_at(const struct lane *lane, uint8_t *bytes, uint64_t offset, uint32_t *count)
{
    const ssize_t got = aq_pread_all(lane->file, bytes, *count, offset);
    if (got < 0) return aq_fail_errno("mirror", "cannot read %s/%s", lane->folder, lane->name);
    *count = (uint32_t)got;
    return AQ_OK;
}

/* The next part of the sealed file, into the box: the head, then a chunk. Nothing: it is whole. */
static enum aq_status box_fill(const struct lane *lane, struct mirror_own *own)
{
    own->box_at = own->box_end = 0;
    if (!own->begun) {
        AQ_TRY(aq_seal_begin(own->seal, own->key, &own->about, own->box));
        own->begun = true;
        own->box_end = AQ_SEAL_HEAD_BYTES;
        return AQ_OK;
    }
    const uint32_t want = aq_seal_next(own->seal);
    uint32_t have = want;
    if (want == 0) return AQ_OK;
    AQ_TRY(read_at(lane, own->plain, own->plain_at, &have));
    if (have != want)
        return aq_fail(AQ_IO, "mirror", "%s/%s has changed while it was copied", lane->folder, lane->name);
    aq_hash_add(own->hash, own->plain, have);
    own->plain_at += have;
    AQ_TRY(aq_seal_chunk(own->seal, own->plain, own->box));
    own->box_end = have + AQ_SEAL_TAG_BYTES;
    return AQ_OK;
}

/* A piece of the file as it travels into the job's bytes; less than asked for, or nothing, at its end. */
static enum aq_status read_piece(struct lane *lane, struct job *job)
{
    struct mirror_own *own = lane->file_own;
    if (lane->own && own->seal && lane->size > 0) {
        uint32_t have = 0;
        while (have < job->count) {
            if (own->box_at == own->box_end) AQ_TRY(box_fill(lane, own));
            const uint32_t there = own->box_end - own->box_at, room = job->count - have,
                           some = there < room ? there : room;
            if (some == 0) break;
            memcpy(job->bytes + have, own->box + own->box_at, some);
            own->box_at += some;
            have += some;
        }
        job->count = have;
    } else {
        AQ_TRY(read_at(lane, job->bytes, job->offset, &job->count));
        if (lane->own) aq_hash_add(own->hash, job->bytes, job->count);
    }
    lane->digest = aq_digest_seeded(job->bytes, job->count, lane->digest);
    if (lane->own && job->offset + job->count == lane->size) aq_hash_end(own->hash, own->text);
    return AQ_OK;
}

/* ---- writing ---- */

static enum aq_status write_all(const struct lane *lane, const uint8_t *bytes, uint32_t count)
{
    if (!aq_write_all(lane->file, bytes, count))
        return aq_fail_errno("mirror", "%s/%s: cannot be written", lane->folder, lane->partial);
    return AQ_OK;
}

/* Bytes of one's own file, as it was before it was sealed. */
static enum aq_status write_own(const struct lane *lane, struct mirror_own *own, const uint8_t *bytes, uint32_t count)
{
    aq_hash_add(own->hash, bytes, count);
    return write_all(lane, bytes, count);
}

/* The first bytes of a copy are in the box: is it sealed? */
static enum aq_status copy_begun(const struct lane *lane, struct mirror_own *own)
{
    own->begun = true;
    own->open = !aq_seal_is(own->box);
    if (own->open) return write_own(lane, own, own->box, own->box_end);
    if (!own->seal)
        return aq_fail(AQ_INVAL, "mirror",
                       "the copy of step %" PRIu64 " at stage %u is sealed: name the key in checkpoint.mirror_key",
                       lane->step, lane->peer);
    return aq_seal_open(own->seal, own->key, &own->about, own->box);
}

/* A part of the copy is whole in the box: a head or a chunk. */
static enum aq_status box_done(const struct lane *lane, struct mirror_own *own)
{
    const uint32_t bytes = own->begun ? aq_seal_next(own->seal) : 0;
    if (!own->begun)
        AQ_TRY(copy_begun(lane, own));
    else {
        AQ_TRY(aq_seal_unchunk(own->seal, own->box, own->plain));
        AQ_TRY(write_own(lane, own, own->plain, bytes));
    }
    own->box_end = 0;
    return AQ_OK;
}

/* One's own file comes back, piece by piece, cut wherever. */
static enum aq_status copy_in(const struct lane *lane, struct mirror_own *own, const uint8_t *bytes, uint32_t count)
{
    while (count > 0) {
        if (own->open) return write_own(lane, own, bytes, count);
        const uint32_t next = own->begun ? aq_seal_next(own->seal) : 0,
                       whole = own->begun ? next + AQ_SEAL_TAG_BYTES : AQ_SEAL_HEAD_BYTES;
        if (own->begun && next == 0)
            return aq_fail(AQ_CORRUPT, "mirror", "the copy of step %" PRIu64 " at stage %u has bytes after its end",
                           lane->step, lane->peer);
        const uint32_t room = whole - own->box_end, some = count < room ? count : room;
        memcpy(own->box + own->box_end, bytes, some);
        own->box_end += some;
        bytes += some;
        count -= some;
        if (own->box_end == whole) AQ_TRY(box_done(lane, own));
    }
    return AQ_OK;
}

static enum aq_status write_piece(struct lane *lane, const struct job *job)
{
    lane->digest = aq_digest_seeded(job->body, job->count, lane->digest);
    return lane->own ? copy_in(lane, lane->file_own, job->body, job->count) : write_all(lane, job->body, job->count);
}

/* All of one's own file has come: does it match the launcher's hash? */
static enum aq_status own_check(const struct lane *lane, struct mirror_own *own)
{
    if (!own->begun) AQ_TRY(write_own(lane, own, own->box, own->box_end)); /* shorter than any head */
    if (own->begun && !own->open && (aq_seal_next(own->seal) > 0 || own->box_end > 0))
        return aq_fail(AQ_CORRUPT, "mirror", "the copy of step %" PRIu64 " at stage %u is cut off", lane->step,
                       lane->peer);
    aq_hash_end(own->hash, own->text);
    if (own->want && strcmp(own->text, own->want) == 0) return AQ_OK;
    return aq_fail(AQ_CORRUPT, "mirror",
                   "the copy of step %" PRIu64
                   " at stage %u is not the file that this stage wrote: SHA-256 %.16s..., the "
                   "launcher has %.16s...",
                   lane->step, lane->peer, own->text, own->want ? own->want : "none");
}

/* The file is whole: is it what was sent? Then it gets its name. */
static enum aq_status finish_file(struct lane *lane)
{
    if (lane->digest != lane->end_digest)
        return aq_fail(AQ_CORRUPT, "mirror", "%s/%s: its bytes have digest %016" PRIx64 ", stage %u sent %016" PRIx64,
                       lane->folder, lane->partial, lane->digest, lane->peer, lane->end_digest);
    if (lane->own) AQ_TRY(own_check(lane, lane->file_own));
    if (fsync(lane->file) != 0) return aq_fail_errno("mirror", "%s/%s: cannot be synced", lane->folder, lane->partial);
    const int closed = close(lane->file);
    lane->file = -1;
    if (closed != 0) return aq_fail_errno("mirror", "%s/%s: cannot be closed", lane->folder, lane->partial);
    AQ_TRY(aq_file_rename(lane->folder, lane->partial, lane->name));
    return aq_file_sync_folder(lane->folder, lane->name);
}

enum aq_status mirror_job(struct lane *lane, struct job *job)
{
    AQ_TRY(lane_open_file(lane));
    switch (job->kind) {
    case JOB_READ:
        return read_piece(lane, job);
    case JOB_WRITE:
        return write_piece(lane, job);
    default:
        return finish_file(lane);
    }
}

/* ---- one's own ---- */

enum aq_status mirror_own_open(const struct aq_mirror_config *config, uint8_t *memory, struct mirror_own **out)
{
    struct mirror_own *own;
    AQ_TRY(AQ_NEW(1, &own));
    own->about = (struct aq_seal_about){.resume_hash = config->shape.resume_hash, .rank = config->shape.rank};
    own->want = config->hash;
    own->box = memory;
    own->plain = memory + MIRROR_OWN_BYTES / 2;
    enum aq_status status = aq_hash_open(&own->hash);
    if (status == AQ_OK && config->key) {
        memcpy(own->key, config->key, sizeof own->key);
        status = aq_seal_new(&own->seal);
    }
    if (status == AQ_OK)
        *out = own;
    else
        mirror_own_close(own);
    return status;
}

void mirror_own_close(struct mirror_own *own)
{
    if (!own) return;
    aq_hash_close(own->hash);
    aq_seal_close(own->seal);
    OPENSSL_cleanse(own->key, sizeof own->key);
    aq_free(own);
}
