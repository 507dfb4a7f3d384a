/*
 * disk.c -- the storage thread's loop: take requests, submit up to the depth, sleep in the ring, reap many, hand back.
 *
 * The thread sleeps in the kernel's ring. A request made meanwhile wakes it through an eventfd that the ring polls; the
 * exec thread makes that system call only when the `asleep` flag is set.
 */
#include "disk.h"

#include <inttypes.h>
#include <liburing.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum op { OP_READ = 1, OP_WRITE = 2, OP_MARK = 3, OP_STOP = 4 };
enum mark_state { MARK_NONE, MARK_DRAINING, MARK_SYNCING };

/* user_data of what is no slot */
enum { TAG_WAKE = 0x7ffffffe, TAG_SYNC = 0x7fffffff };
#define SLEEP_NS UINT64_C(1000000000) /* every wait has an end; this one only guards against a lost wake-up */

/* A slot's request; the storage thread's from request to event. */
struct request {
    struct aq_vault_about about;
    uint64_t offset;
    uint64_t bytes;
    uint64_t moved;
    uint64_t begin_ns;
    uint32_t next;   /* in a queue */
    uint32_t buffer; /* the slot's own, or where its sealed bytes are */
    enum op op;
    uint8_t phase; /* writes: which mark they belong to */
    enum aq_status status;
};

struct queue {
    uint32_t head, tail;
};

struct aq_disk {
    struct aq_disk_config config;
    struct io_uring ring;
    bool ring_open, registered;
    int wake_fd;
    struct aq_thread *thread;
    struct aq_ring *asked, *done;
    struct aq_eventcount *eventcount;
    _Atomic uint32_t asleep;
    struct request *requests;
    uint32_t *boxes; /* buffers behind the slots that are free */
    uint32_t box_count;

    /* The content of one mark: written by the exec thread before its token, and by the storage thread before the event.
     */
    struct aq_disk_mark mark;
    enum aq_status mark_status;

    /* the storage thread's own */
    struct queue reads, writes;
    uint32_t in_flight;
    uint32_t outstanding[2];  /* writes asked for and not finished, by phase */
    enum aq_status failed[2]; /* the newest failure, by phase */
    uint64_t failures[2];     /* how many, since the mark before */
    uint64_t failures_before; /* how many until then            */
    uint8_t phase;
    enum mark_state mark_state;
    uint64_t mark_begin_ns;
    bool stopping, wake_armed;
};

static void queue_push(struct aq_disk *disk, struct queue *queue, uint32_t slot)
{
    disk->requests[slot].next = AQ_STORE_NONE;
    if (queue->head == AQ_STORE_NONE)
        queue->head = slot;
    else
        disk->requests[queue->tail].next = slot;
    queue->tail = slot;
}

static uint32_t queue_pop(struct aq_disk *disk, struct queue *queue)
{
    const uint32_t slot = queue->head;
    AQ_ASSERT(slot != AQ_STORE_NONE);
    queue->head = disk->requests[slot].next;
    return slot;
}

static void event_push(struct aq_disk *disk, uint32_t slot)
{
    AQ_ASSERT(aq_ring_push(disk->done, slot)); /* the ring holds every slot and a mark */
    aq_eventcount_notify(disk->eventcount);
    aq_eventcount_notify(disk->config.eventcount);
}

static uint8_t *buffer_bytes(const struct aq_disk *disk, uint32_t buffer)
{
    return disk->config.memory + disk->config.slot_bytes * buffer;
}

uint64_t aq_disk_buffers(bool sealed, uint32_t slots, uint32_t depth)
{
    return (uint64_t)slots + (sealed ? depth : 0);
}

/* A write starts: its message is sealed into a box, of which there are as many as writes may be in flight. */
static enum aq_status box_fill(struct aq_disk *disk, uint32_t slot)
{
    struct request *request = &disk->requests[slot];
    const uint64_t end = request->about.bytes + AQ_RECORD_SEAL_BYTES;
    AQ_ASSERT(disk->box_count > 0);
    const uint32_t box = disk->boxes[--disk->box_count];
    request->buffer = box;
    memset(buffer_bytes(disk, box) + end, 0, request->bytes - end); /* no old bytes go to disk */
    return aq_vault_seal(disk->config.vault, &request->about, buffer_bytes(disk, slot), buffer_bytes(disk, box));
}

static void request_finish(struct aq_disk *disk, uint32_t slot, enum aq_status status)
{
    struct request *request = &disk->requests[slot];
    request->status = status;
    const bool write = request->op == OP_WRITE;
    if (request->buffer != slot) disk->boxes[disk->box_count++] = request->buffer;
    if (write) {
        AQ_ASSERT(disk->outstanding[request->phase] > 0);
        --disk->outstanding[request->phase];
        if (status != AQ_OK) {
            disk->failed[request->phase] = status;
            ++disk->failures[request->phase];
        }
    }
    aq_trace_add(disk->config.trace, "cache", write ? "write" : "read", request->begin_ns, aq_clock_ns(), 0, 0);
    event_push(disk, slot);
}

/* A read or write moved `result` bytes (or failed with -errno): true where it is finished. */
static bool request_moved(struct aq_disk *disk, uint32_t slot, int64_t result)
{
    struct request *request = &disk->requests[slot];
    const char *verb = request->op == OP_WRITE ? "write" : "read";
    enum aq_status status = AQ_OK;
    if (result == -EINTR || result == -EAGAIN) return false;
    if (result < 0) {
        errno = (int)-result;
        status = aq_fail_errno("cache", "%s: %s of %" PRIu64 " bytes at %" PRIu64, disk->config.path, verb,
                               request->bytes, request->offset);
    } else if (result == 0) {
        status =
            aq_fail(request->op == OP_WRITE ? AQ_NOSPC : AQ_CORRUPT, "cache", "%s: %s at %" PRIu64 " moved nothing: %s",
                    disk->config.path, verb, request->offset + request->moved,
                    request->op == OP_WRITE ? "the disk is full" : "the file ends before it");
    } else {
        request->moved += (uint64_t)result;
        if (request->moved < request->bytes) {
            request->moved -= request->moved % AQ_STORE_BLOCK; /* O_DIRECT continues only at a whole block */
            return false;
        }
    }
    if (disk->config.vault && request->op == OP_READ && status == AQ_OK)
        status = aq_vault_unseal(disk->config.vault, &request->about, buffer_bytes(disk, slot));
    request_finish(disk, slot, status);
    return true;
}

/* Without a ring: all of it, now. */
static void request_run(struct aq_disk *disk, uint32_t slot)
{
    struct request *request = &disk->requests[slot];
    int64_t result;
    do {
        uint8_t *bytes = buffer_bytes(disk, request->buffer) + request->moved;
        const size_t rest = request->bytes - request->moved;
        const off_t offset = (off_t)(request->offset + request->moved);
        result = request->op == OP_WRITE ? pwrite(disk->config.fd, bytes, rest, offset)
                                         : pread(disk->config.fd, bytes, rest, offset);
        if (result == -1) result = -errno;
    } while (!request_moved(disk, slot, result));
}

static struct io_uring_sqe *entry_of(struct aq_disk *disk)
{
    struct io_uring_sqe *entry = io_uring_get_sqe(&disk->ring);
    AQ_ASSERT(entry != NULL); /* the ring has room for the depth, the sync and the wake-up */
    return entry;
}

static void request_submit(struct aq_disk *disk, uint32_t slot)
{
    struct request *request = &disk->requests[slot];
    uint8_t *bytes = buffer_bytes(disk, request->buffer) + request->moved;
    const unsigned rest = (unsigned)(request->bytes - request->moved);
    const uint64_t offset = request->offset + request->moved;
    struct io_uring_sqe *entry = entry_of(disk);
    const int fd = disk->config.fd;
    if (request->op == OP_WRITE && disk->registered)
        io_uring_prep_write_fixed(entry, fd, bytes, rest, offset, (int)request->buffer);
    else if (request->op == OP_WRITE)
        io_uring_prep_write(entry, fd, bytes, rest, offset);
    else if (disk->registered)
        io_uring_prep_read_fixed(entry, fd, bytes, rest, offset, (int)slot);
    else
        io_uring_prep_read(entry, fd, bytes, rest, offset);
    entry->user_data = slot;
    ++disk->in_flight;
}

static void queues_submit(struct aq_disk *disk)
{
    const uint32_t depth = disk->config.depth;
    while (disk->in_flight < depth) {
        const bool writes_wait = disk->writes.head != AQ_STORE_NONE;
        const uint32_t reads_depth = writes_wait && depth > 1 ? depth - (depth + 3) / 4 : depth;
        struct queue *queue = NULL;
        if (disk->reads.head != AQ_STORE_NONE && (disk->in_flight < reads_depth || !writes_wait))
            queue = &disk->reads;
        else if (writes_wait)
            queue = &disk->writes;
        if (queue == NULL) return;
        const uint32_t slot = queue_pop(disk, queue);
        disk->requests[slot].begin_ns = aq_clock_ns();
        const bool seals = disk->config.vault && disk->requests[slot].op == OP_WRITE;
        const enum aq_status status = seals ? box_fill(disk, slot) : AQ_OK;
        if (status != AQ_OK) {
            request_finish(disk, slot, status);
            continue;
        }
        if (disk->ring_open)
            request_submit(disk, slot);
        else
            request_run(disk, slot);
    }
}

static void mark_finish(struct aq_disk *disk, enum aq_status status)
{
    if (status == AQ_OK) {
        const struct aq_disk_mark *mark = &disk->mark;
        status = aq_index_mark(disk->config.index, mark->mark, mark->changes, mark->count, mark->entries,
                               mark->lost);
    }
    disk->mark_state = MARK_NONE;
    disk->mark_status = status;
    aq_trace_add(disk->config.trace, "cache", "mark", disk->mark_begin_ns, aq_clock_ns(), 0, 0);
    event_push(disk, AQ_DISK_MARK);
}

static enum aq_status sync_status(const struct aq_disk *disk, int error)
{
    errno = error;
    return error == 0 ? AQ_OK
                      : aq_fail_errno("cache", "%s: sync for mark %" PRIu64, disk->config.path, disk->mark.mark);
}

/* Drained: the slab is synced, then the index commits. */
static void mark_advance(struct aq_disk *disk)
{
    const uint8_t phase = disk->phase ^ 1; /* writes since the mark have the other phase */
    if (disk->mark_state != MARK_DRAINING || disk->outstanding[phase] > 0) return;
    disk->failures_before += disk->failures[phase];
    disk->failures[phase] = 0;
    if (disk->failures_before != disk->mark.failures_known) { /* the changes speak of a message that was not written */
        mark_finish(disk, disk->failed[phase]);
    } else if (disk->ring_open) {
        struct io_uring_sqe *entry = entry_of(disk);
        io_uring_prep_fsync(entry, disk->config.fd, IORING_FSYNC_DATASYNC);
        entry->user_data = TAG_SYNC;
        disk->mark_state = MARK_SYNCING;
    } else {
        mark_finish(disk, sync_status(disk, fdatasync(disk->config.fd) == -1 ? errno : 0));
    }
}

static void token_take(struct aq_disk *disk, uint64_t token)
{
    const enum op op = (enum op)(token >> 32);
    const uint32_t slot = (uint32_t)token;
    if (op == OP_STOP) {
        disk->stopping = true;
    } else if (op == OP_MARK) {
        AQ_ASSERT(disk->mark_state == MARK_NONE);
        disk->mark_state = MARK_DRAINING;
        disk->mark_begin_ns = aq_clock_ns();
        disk->phase ^= 1;
    } else {
        disk->requests[slot].phase = disk->phase;
        if (op == OP_WRITE) ++disk->outstanding[disk->phase];
        queue_push(disk, op == OP_WRITE ? &disk->writes : &disk->reads, slot);
    }
}

static void tokens_take(struct aq_disk *disk)
{
    uint64_t token;
    while (aq_ring_pop(disk->asked, &token))
        token_take(disk, token);
}

static void wake_drain(struct aq_disk *disk)
{
    uint64_t count;
    const ssize_t got = read(disk->wake_fd, &count, sizeof(count)); /* non-blocking: nothing there is fine */
    (void)got;
}

static void entry_reap(struct aq_disk *disk, uint64_t tag, int result)
{
    if (tag == TAG_WAKE) {
        disk->wake_armed = false;
        wake_drain(disk);
    } else if (tag == TAG_SYNC) {
        mark_finish(disk, sync_status(disk, -result));
    } else {
        --disk->in_flight;
        if (!request_moved(disk, (uint32_t)tag, result)) request_submit(disk, (uint32_t)tag);
    }
}

/* Is it safe to sleep? Says so to the exec thread, which then wakes us for its next token. */
static bool sleep_begin(struct aq_disk *disk)
{
    /* Paired with wake(): both exchange, and exchanges have one order. If ours is first, it sees the flag; if its is
     * first, ours acquires the token that it released. */
    atomic_exchange_explicit(&disk->asleep, 1, memory_order_acq_rel);
    return aq_ring_count(disk->asked) == 0;
}

static void ring_wait(struct aq_disk *disk)
{
    struct io_uring_cqe *entries[32];
    struct __kernel_timespec timeout = {.tv_sec = (long long)(SLEEP_NS / 1000000000)};
    if (!disk->wake_armed) {
        struct io_uring_sqe *entry = entry_of(disk);
        io_uring_prep_poll_add(entry, disk->wake_fd, POLLIN);
        entry->user_data = TAG_WAKE;
        disk->wake_armed = true;
    }
    if (sleep_begin(disk)) {
        struct io_uring_cqe *first;
        const int result = io_uring_submit_and_wait_timeout(&disk->ring, &first, 1, &timeout, NULL);
        if (result < 0 && result != -ETIME && result != -EINTR && result != -EAGAIN && result != -EBUSY) {
            errno = -result;
            aq_fail_errno("cache", "%s: io_uring", disk->config.path);
            AQ_ASSERT(!"io_uring_enter refused a ring that it made");
        }
    }
    atomic_store_explicit(&disk->asleep, 0, memory_order_relaxed); /* a late wake-up costs one empty turn */
    unsigned count;
    while ((count = io_uring_peek_batch_cqe(&disk->ring, entries, 32)) > 0) {
        for (unsigned i = 0; i < count; ++i)
            entry_reap(disk, entries[i]->user_data, entries[i]->res);
        io_uring_cq_advance(&disk->ring, count);
    }
}

static void file_wait(struct aq_disk *disk)
{
    if (sleep_begin(disk)) {
        struct pollfd wake = {.fd = disk->wake_fd, .events = POLLIN};
        poll(&wake, 1, (int)(SLEEP_NS / 1000000));
    }
    atomic_store_explicit(&disk->asleep, 0, memory_order_relaxed); /* as in ring_wait */
    wake_drain(disk);
}

static void disk_run(void *context)
{
    struct aq_disk *disk = context;
    for (;;) {
        tokens_take(disk);
        queues_submit(disk);
        mark_advance(disk);
        const bool idle = disk->in_flight == 0 && disk->reads.head == AQ_STORE_NONE &&
                          disk->writes.head == AQ_STORE_NONE && disk->mark_state == MARK_NONE;
        if (idle && disk->stopping) return;
        if (disk->ring_open)
            ring_wait(disk);
        else if (idle)
            file_wait(disk);
    }
}

static void wake(struct aq_disk *disk)
{
    /* Paired with sleep_begin(): the token was pushed before. */
    if (atomic_exchange_explicit(&disk->asleep, 0, memory_order_acq_rel) == 0) return;
    const uint64_t one = 1;
    const ssize_t put = write(disk->wake_fd, &one, sizeof(one));
    (void)put; /* the count can only be full, and then it wakes as well */
}

static void ask(struct aq_disk *disk, enum op op, uint32_t slot)
{
    AQ_ASSERT(aq_ring_push(disk->asked, (uint64_t)op << 32 | slot)); /* one token a slot, a mark and a stop fit */
    wake(disk);
}

static void transfer_ask(struct aq_disk *disk, enum op op, uint32_t slot, uint64_t offset,
                         const struct aq_vault_about *about)
{
    const uint64_t bytes = aq_record_blocks(disk->config.vault != NULL, about->bytes);
    AQ_ASSERT(slot < disk->config.slots && bytes > 0 && bytes <= disk->config.slot_bytes);
    AQ_ASSERT(offset % AQ_STORE_BLOCK == 0);
    disk->requests[slot] =
        (struct request){.about = *about, .offset = offset, .bytes = bytes, .op = op, .buffer = slot};
    ask(disk, op, slot);
}

void aq_disk_read(struct aq_disk *disk, uint32_t slot, uint64_t offset, const struct aq_vault_about *about)
{
    transfer_ask(disk, OP_READ, slot, offset, about);
}

void aq_disk_write(struct aq_disk *disk, uint32_t slot, uint64_t offset, const struct aq_vault_about *about)
{
    transfer_ask(disk, OP_WRITE, slot, offset, about);
}

void aq_disk_mark(struct aq_disk *disk, const struct aq_disk_mark *mark)
{
    disk->mark = *mark;
    ask(disk, OP_MARK, 0);
}

bool aq_disk_poll(struct aq_disk *disk, struct aq_disk_event *out)
{
    uint64_t token;
    if (!aq_ring_pop(disk->done, &token)) return false;
    out->slot = (uint32_t)token;
    out->status = out->slot == AQ_DISK_MARK ? disk->mark_status : disk->requests[out->slot].status;
    return true;
}

enum aq_status aq_disk_wait(struct aq_disk *disk, uint64_t deadline_ns)
{
    const uint32_t seen = aq_eventcount_read(disk->eventcount);
    if (aq_ring_count(disk->done) > 0) return AQ_OK;
    return aq_eventcount_wait(disk->eventcount, seen, deadline_ns);
}

/* Registered buffers spare the kernel the pinning of 1600 pages for each message: a tenth of the CPU time
 * (docs/DECISIONS.md 0003). */
static enum aq_status buffers_register(struct aq_disk *disk)
{
    const uint32_t count = disk->config.slots + disk->box_count;
    struct iovec *buffers;
    AQ_TRY(AQ_NEW(count, &buffers));
    for (uint32_t i = 0; i < count; ++i) {
        buffers[i] = (struct iovec){.iov_base = buffer_bytes(disk, i), .iov_len = disk->config.slot_bytes};
    }
    const int result = io_uring_register_buffers(&disk->ring, buffers, count);
    aq_free(buffers);
    disk->registered = result == 0;
    if (result != 0) {
        aq_log("cache", 1,
               "%s: buffers are not registered (%s; raise the limit of locked memory): reads cost more CPU time",
               disk->config.path, strerror(-result));
    }
    return AQ_OK;
}

static enum aq_status ring_make(struct aq_disk *disk)
{
    const int result = io_uring_queue_init(disk->config.depth + 8, &disk->ring, 0);
    if (result < 0) { /* an old kernel, forbidden, or no locked memory is allowed */
        aq_log("cache", 1, "no io_uring here (%s): messages are read and written one at a time", strerror(-result));
        return AQ_OK;
    }
    disk->ring_open = true;
    return buffers_register(disk);
}

enum aq_status aq_disk_open(const struct aq_disk_config *config, struct aq_disk **out)
{
    enum aq_status status = AQ_OK;
    uint32_t tokens = 4;
    AQ_ASSERT((uintptr_t)config->memory % AQ_STORE_BLOCK == 0 && config->slots <= AQ_STORE_SLOTS_MAX);
    while (tokens < config->slots + 4)
        tokens *= 2;
    struct aq_disk *disk;
    AQ_TRY(AQ_NEW(1, &disk));
    disk->config = *config;
    disk->wake_fd = -1;
    disk->reads.head = disk->writes.head = AQ_STORE_NONE;
    AQ_TRY_GOTO(AQ_NEW(config->slots, &disk->requests), out);
    if (config->vault) {
        AQ_TRY_GOTO(AQ_NEW(config->depth, &disk->boxes), out);
        for (uint32_t i = 0; i < config->depth; ++i)
            disk->boxes[disk->box_count++] = config->slots + i;
    }
    disk->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (disk->wake_fd == -1) {
        status = aq_fail_errno("cache", "eventfd");
        goto out;
    }
    AQ_TRY_GOTO(aq_ring_open(tokens, &disk->asked), out);
    AQ_TRY_GOTO(aq_ring_open(tokens, &disk->done), out);
    AQ_TRY_GOTO(aq_eventcount_open(&disk->eventcount), out);
    AQ_TRY_GOTO(ring_make(disk), out);
    AQ_TRY_GOTO(aq_thread_open("aq-cache", disk_run, disk, &disk->thread), out);
    *out = disk;
    return AQ_OK;
out:
    aq_disk_close(disk);
    return status;
}

void aq_disk_close(struct aq_disk *disk)
{
    if (disk == NULL) return;
    if (disk->thread != NULL) {
        ask(disk, OP_STOP, 0);
        aq_thread_close(disk->thread);
    }
    if (disk->ring_open) io_uring_queue_exit(&disk->ring);
    if (disk->wake_fd != -1) close(disk->wake_fd);
    aq_ring_close(disk->asked);
    aq_ring_close(disk->done);
    aq_eventcount_close(disk->eventcount);
    aq_free(disk->requests);
    aq_free(disk->boxes);
    aq_free(disk);
}
