/*
 * checkpoint_writer.c -- see the header. A request is a token in one ring and comes back in another; the file and its
 * status belong to whoever had the token last.
 */
#include "checkpoint_writer.h"

#include <stdatomic.h>

#include "heartbeat.h"

enum { RING_SLOTS = 2 };

struct aq_checkpoint_writer {
    struct aq_checkpoint checkpoint;
    float *snapshot;       /* NULL: the stage's own values are written    */
    struct aq_pages pages; /* where it is: pinned, where a GPU copies into it */
    uint64_t snapshot_bytes;
    struct aq_eventcount *caller;     /* notified when a file is done */
    struct aq_eventcount *eventcount; /* the thread sleeps on it  */
    struct aq_ring *asked, *told;
    struct aq_thread *thread;
    atomic_bool stop; /* release in close, acquire in the thread */
    bool busy;        /* exec's: a token is out                  */
    struct aq_checkpoint_file *file;
    enum aq_status status;
};

static bool stopped(const struct aq_checkpoint_writer *writer)
{
    return atomic_load_explicit(&writer->stop, memory_order_acquire);
}

static enum aq_status write_file(struct aq_checkpoint_writer *writer)
{
    enum aq_status status = AQ_AGAIN;
    while (status == AQ_AGAIN) {
        if (stopped(writer)) return AQ_ABORTED;
        status = aq_checkpoint_file_piece(writer->file);
        aq_heartbeat_work();
    }
    return status;
}

/* Pinned, if a GPU copies to it during training; if that much cannot be pinned, plain memory serves, slower. */
static enum aq_status snapshot_take(struct aq_checkpoint_writer *writer)
{
    void *memory = NULL;
    writer->snapshot_bytes = aq_checkpoint_floats(&writer->checkpoint) * sizeof(float);
    writer->pages = aq_device_pages(writer->checkpoint.device);
    enum aq_status status = aq_pages_take(&writer->pages, writer->snapshot_bytes, &memory);
    if (status == AQ_NOMEM && writer->pages.take) {
        aq_log("checkpoint", AQ_LOG_WARNING, "the snapshot's %.2f GiB could not be pinned: copies to it take longer",
               (double)writer->snapshot_bytes / 0x1p30);
        writer->pages = (struct aq_pages){0};
        status = aq_pages_take(&writer->pages, writer->snapshot_bytes, &memory);
    }
    writer->snapshot = memory;
    return status;
}

static void run(void *context)
{
    struct aq_checkpoint_writer *writer = context;
    for (;;) {
        const uint32_t seen = aq_eventcount_read(writer->eventcount);
        uint64_t token;
        if (stopped(writer)) return;
        if (!aq_ring_pop(writer->asked, &token)) {
            (void)aq_eventcount_wait(writer->eventcount, seen, AQ_NEVER);
            continue;
        }
        writer->status = write_file(writer);
        aq_checkpoint_file_close(writer->file);
        writer->file = NULL;
        AQ_ASSERT(aq_ring_push(writer->told, token)); /* one token is out at most */
        aq_eventcount_notify(writer->caller);
    }
}

enum aq_status aq_checkpoint_writer_open(const struct aq_checkpoint *checkpoint, bool snapshot,
                                         struct aq_eventcount *eventcount, struct aq_checkpoint_writer **out)
{
    struct aq_checkpoint_writer *writer;
    AQ_TRY(AQ_NEW(1, &writer));
    writer->checkpoint = *checkpoint;
    writer->caller = eventcount;
    enum aq_status status;
    if (snapshot) AQ_TRY_GOTO(snapshot_take(writer), out);
    AQ_TRY_GOTO(aq_eventcount_open(&writer->eventcount), out);
    AQ_TRY_GOTO(aq_ring_open(RING_SLOTS, &writer->asked), out);
    AQ_TRY_GOTO(aq_ring_open(RING_SLOTS, &writer->told), out);
    AQ_TRY_GOTO(aq_thread_open("aq-checkpoint", run, writer, &writer->thread), out);
    *out = writer;
    return AQ_OK;
out:
    aq_checkpoint_writer_close(writer);
    return status;
}

void aq_checkpoint_writer_close(struct aq_checkpoint_writer *writer)
{
    if (!writer) return;
    atomic_store_explicit(&writer->stop, true, memory_order_release);
    aq_eventcount_notify(writer->eventcount);
    aq_thread_close(writer->thread);
    aq_checkpoint_file_close(writer->file); /* asked for, and not taken up */
    aq_ring_close(writer->asked);
    aq_ring_close(writer->told);
    aq_eventcount_close(writer->eventcount);
    aq_pages_give(&writer->pages, writer->snapshot, writer->snapshot_bytes);
    aq_free(writer);
}

enum aq_status aq_checkpoint_writer_begin(struct aq_checkpoint_writer *writer, uint64_t step)
{
    AQ_ASSERT(!writer->busy);
    if (writer->snapshot) AQ_TRY(aq_checkpoint_snapshot(&writer->checkpoint, writer->snapshot));
    AQ_TRY(aq_checkpoint_file_open(&writer->checkpoint, step, writer->snapshot, &writer->file));
    writer->busy = true;
    AQ_ASSERT(aq_ring_push(writer->asked, step)); /* one token is out at most */
    aq_eventcount_notify(writer->eventcount);
    return AQ_OK;
}

enum aq_status aq_checkpoint_writer_done(struct aq_checkpoint_writer *writer)
{
    uint64_t token;
    if (!writer->busy) return AQ_OK;
    if (!aq_ring_pop(writer->told, &token)) return AQ_AGAIN;
    writer->busy = false;
    return writer->status;
}
