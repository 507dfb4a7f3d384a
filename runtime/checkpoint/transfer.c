/*
 * transfer.c -- see the header: the receiver, and what both ends share.
 *
 *     giver      PIECE(offset 0) PIECE ... PIECE -> BYE
 *     receiver   writes each, compares length and hash, syncs, renames -> BYE, or ABORT with the reason
 */
#include "transfer.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "transfer_private.h"

enum { LOOK_BYTES = 1 << 20, TOLD_S = 10, LEAVE_S = 10 };

static const char *const AREA = "checkpoint";

void transfer_name(const struct aq_transfer_file *file, char name[TRANSFER_NAME_BYTES])
{
    snprintf(name, TRANSFER_NAME_BYTES, "%" PRIu64 "/stage-%u.safetensors", file->step, file->rank);
}

/* ---- a file that is there ---- */

/* Adds all of the open file. */
static enum aq_status hash_all(const char *name, int fd, struct aq_hash *hash, uint64_t *bytes)
{
    void *memory;
    ssize_t got;
    AQ_TRY(aq_alloc(LOOK_BYTES, &memory));
    for (*bytes = 0; (got = aq_pread_all(fd, memory, LOOK_BYTES, *bytes)) > 0; *bytes += (uint64_t)got)
        aq_hash_add(hash, memory, (size_t)got);
    aq_free(memory);
    return got < 0 ? aq_fail_errno(AREA, "cannot read %s", name) : AQ_OK;
}

enum aq_status aq_transfer_look(struct aq_transfer_file *file)
{
    char name[TRANSFER_NAME_BYTES];
    struct aq_hash *hash;
    int fd;
    transfer_name(file, name);
    AQ_TRY(aq_file_open(file->folder, name, AQ_FILE_READ, &fd));
    enum aq_status status = aq_hash_open(&hash);
    if (status == AQ_OK) {
        aq_hash_begin(hash);
        status = hash_all(name, fd, hash, &file->bytes);
        aq_hash_end(hash, file->hash);
        aq_hash_close(hash);
    }
    close(fd);
    return status;
}

bool aq_transfer_is_here(const struct aq_transfer_file *file)
{
    struct aq_transfer_file here = *file;
    char name[TRANSFER_NAME_BYTES];
    struct stat info;
    int fd;
    transfer_name(file, name);
    if (aq_file_open(file->folder, name, AQ_FILE_READ, &fd) != AQ_OK) return false;
    const bool fits = fstat(fd, &info) == 0 && (uint64_t)info.st_size == file->bytes;
    close(fd);
    return fits && aq_transfer_look(&here) == AQ_OK && strcmp(here.hash, file->hash) == 0;
}

enum aq_status aq_transfer_read(const struct aq_transfer_file *file, int fd, uint8_t *bytes, uint32_t count,
                                uint64_t offset)
{
    char name[TRANSFER_NAME_BYTES];
    const ssize_t got = aq_pread_all(fd, bytes, count, offset);
    if (got == (ssize_t)count) return AQ_OK;
    transfer_name(file, name);
    if (got < 0) return aq_fail_errno(AREA, "cannot read %s/%s", file->folder, name);
    return aq_fail(AQ_IO, AREA, "%s/%s is shorter than when it was written", file->folder, name);
}

/* ---- the link ---- */

void aq_transfer_link_config(struct aq_link_config *config)
{
    config->edge = TRANSFER_EDGE;
    config->body_bytes_max = AQ_TRANSFER_PIECE_BYTES;
    config->send_frames = AQ_TRANSFER_PIECES;
    config->receive_slots = AQ_TRANSFER_PIECES;
    config->pages = (struct aq_pages){0};
}

uint64_t aq_transfer_measure(const struct aq_link_config *config)
{
    struct aq_link_config own = *config;
    aq_transfer_link_config(&own);
    return aq_link_measure(&own) + (uint64_t)AQ_TRANSFER_PIECES * AQ_TRANSFER_PIECE_BYTES;
}

enum aq_status transfer_ended(const struct aq_link_event *event, uint64_t have, uint64_t bytes)
{
    return aq_fail(event->status == AQ_CLOSED ? AQ_PROTO : event->status, AREA,
                   "the link ended after %" PRIu64 " of %" PRIu64 " bytes of the checkpoint's file: %s", have, bytes,
                   event->text);
}

enum aq_status transfer_silent(uint64_t have, uint64_t bytes)
{
    return aq_fail(AQ_TIMEOUT, AREA,
                   "nothing of the checkpoint's file came for %d s, after %" PRIu64 " of %" PRIu64 " bytes",
                   TRANSFER_SILENCE_S, have, bytes);
}

/* ---- the receiver ---- */

struct receiver {
    const struct aq_transfer_file *file;
    struct aq_link *link;
    struct aq_eventcount *eventcount;
    struct aq_hash *hash;
    char name[TRANSFER_NAME_BYTES], partial[TRANSFER_NAME_BYTES + 16];
    int fd;
    uint64_t have, begin_ns, told_ns;
};

static double mbps(const struct receiver *r)
{
    return (double)r->have * 8e3 / (double)(aq_clock_ns() - r->begin_ns + 1);
}

/* A piece is here: the next one, and no more than is due? */
static enum aq_status piece_take(struct receiver *r, const struct aq_frame *frame)
{
    const struct aq_transfer_file *file = r->file;
    if (frame->kind != AQ_FRAME_MIRROR || frame->flags != TRANSFER_PIECE || frame->step != file->step ||
        frame->argument != r->have || frame->body_bytes == 0 || frame->body_bytes > file->bytes - r->have)
        return aq_fail(AQ_PROTO, AREA,
                       "%s sent frame %u, flags %u, step %" PRIu64 ", offset %" PRIu64 ", %u bytes, where %" PRIu64
                       " of %" PRIu64 " bytes of the file of step %" PRIu64 " are here",
                       aq_link_peer_name(r->link), frame->kind, frame->flags, frame->step, frame->argument,
                       frame->body_bytes, r->have, file->bytes, file->step);
    aq_hash_add(r->hash, frame->body, frame->body_bytes);
    if (!aq_write_all(r->fd, frame->body, frame->body_bytes))
        return aq_fail_errno(AREA, "%s/%s: cannot be written", file->folder, r->partial);
    r->have += frame->body_bytes;
    return AQ_OK;
}

/* The log has how fast it is, now and then. */
static void tell(struct receiver *r)
{
    if (aq_clock_ns() < r->told_ns) return;
    r->told_ns = aq_clock_after(TOLD_S * 1000000000ull);
    aq_log(AREA, 1, "%" PRIu64 " of %" PRIu64 " bytes of %s have come, at %.2f Mbit/s", r->have, r->file->bytes,
           r->name, mbps(r));
}

/* One event of the link, or a wait for one. */
static enum aq_status receive_some(struct receiver *r, uint64_t *silent_ns)
{
    struct aq_link_event event;
    const uint32_t seen = aq_eventcount_read(r->eventcount);
    enum aq_status status = aq_link_poll(r->link, &event);
    if (status == AQ_AGAIN && aq_clock_ns() > *silent_ns) return transfer_silent(r->have, r->file->bytes);
    if (status == AQ_AGAIN) {
        (void)aq_eventcount_wait(r->eventcount, seen, *silent_ns);
        return AQ_OK;
    }
    AQ_TRY(status);
    if (event.kind != AQ_LINK_RECEIVED) return transfer_ended(&event, r->have, r->file->bytes);
    status = piece_take(r, &event.frame);
    if (event.frame.body_bytes) aq_link_release(r->link, event.frame.body);
    *silent_ns = aq_clock_after(TRANSFER_SILENCE_S * 1000000000ull);
    tell(r);
    return status;
}

/* All bytes are here: are they those that were written? */
static enum aq_status finish(struct receiver *r)
{
    const struct aq_transfer_file *file = r->file;
    char text[AQ_HASH_TEXT_BYTES];
    aq_hash_end(r->hash, text);
    if (strcmp(text, file->hash) != 0)
        return aq_fail(AQ_CORRUPT, AREA,
                       "%s came from %s with SHA-256 %.16s..., and was written with %.16s...: it is damaged there",
                       r->name, aq_link_peer_name(r->link), text, file->hash);
    if (fsync(r->fd) != 0) return aq_fail_errno(AREA, "%s/%s: cannot be synced", file->folder, r->partial);
    const int closed = close(r->fd);
    r->fd = -1;
    if (closed != 0) return aq_fail_errno(AREA, "%s/%s: cannot be closed", file->folder, r->partial);
    AQ_TRY(aq_file_rename(file->folder, r->partial, r->name));
    return aq_file_sync_folder(file->folder, r->name);
}

static enum aq_status receive_all(struct receiver *r)
{
    char step[24];
    uint64_t silent_ns = aq_clock_after(TRANSFER_SILENCE_S * 1000000000ull);
    snprintf(step, sizeof step, "%" PRIu64, r->file->step);
    AQ_TRY(aq_file_make_folder(r->file->folder, step));
    AQ_TRY(aq_file_open(r->file->folder, r->partial, AQ_FILE_ANEW, &r->fd));
    aq_hash_begin(r->hash);
    while (r->have < r->file->bytes)
        AQ_TRY(receive_some(r, &silent_ns));
    return finish(r);
}

enum aq_status aq_transfer_receive(struct aq_link *link, struct aq_eventcount *eventcount,
                                   const struct aq_transfer_file *file)
{
    struct receiver r = {.file = file, .link = link, .eventcount = eventcount, .fd = -1, .begin_ns = aq_clock_ns()};
    r.told_ns = aq_clock_after(TOLD_S * 1000000000ull);
    transfer_name(file, r.name);
    snprintf(r.partial, sizeof r.partial, "%s.partial", r.name);
    AQ_TRY(aq_hash_open(&r.hash));
    const enum aq_status status = receive_all(&r);
    aq_hash_close(r.hash);
    if (r.fd >= 0) close(r.fd);
    if (status == AQ_OK) {
        aq_log(AREA, 1, "%s came from %s: %" PRIu64 " bytes at %.2f Mbit/s", r.name, aq_link_peer_name(link),
               file->bytes, mbps(&r));
        (void)aq_link_finish(link, aq_clock_after(LEAVE_S * 1000000000ull)); /* the file is here, whatever it says */
        return AQ_OK;
    }
    (void)aq_link_abort(link, status, aq_error_text(), aq_clock_after(LEAVE_S * 100000000ull));
    if (r.fd != -1) (void)aq_file_remove(file->folder, r.partial);
    return status;
}
