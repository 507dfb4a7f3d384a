/*
 * mirror.c -- see the header. An edge has two lanes, one for what goes over it and one for what comes; each moves one
 * file at a time:
 *
 *     sender     read a piece -> PIECE -> ... -> END(digest) -> wait for KEPT
 *     receiver   PIECE -> write it -> TAKEN ... END -> compare, sync, rename -> KEPT
 *
 * A stage that has lost its file sends WANT, and the keeper answers with the same sequence, or with NONE.
 *
 * Exec owns lanes and frames; the thread (mirror_file.c) gets tokens (lane * JOBS + job) and owns a lane's file and
 * digest while one of the lane's jobs is out. Jobs of a lane are done in the order they were given.
 */
#include "mirror.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "aqsgd/grad.h"
#include "edge_mirror.h"
#include "mirror_private.h"

struct aq_mirror {
    struct aq_mirror_config config;
    uint64_t due, due_next; /* aq_mirror_due */
    bool training;
    uint32_t piece_bytes[2]; /* by edge: in, out */
    struct lane lanes[LANES];
    enum aq_status done; /* of the last send or fetch of one's own file */
    struct mirror_own *own;
    struct aq_ring *asked, *told;
    struct aq_eventcount *eventcount; /* the thread sleeps on it */
    struct aq_thread *thread;
    atomic_bool stop; /* release in close, acquire in the thread */
    uint64_t memory_bytes;
    void *memory;
};

/* ---- the thread ---- */

static void run(void *context)
{
    struct aq_mirror *mirror = context;
    for (;;) {
        const uint32_t seen = aq_eventcount_read(mirror->eventcount);
        uint64_t token;
        if (atomic_load_explicit(&mirror->stop, memory_order_acquire)) return;
        if (!aq_ring_pop(mirror->asked, &token)) {
            (void)aq_eventcount_wait(mirror->eventcount, seen, AQ_NEVER);
            continue;
        }
        struct lane *lane = &mirror->lanes[token / JOBS];
        struct job *job = &lane->jobs[token % JOBS];
        job->status = mirror_job(lane, job);
        AQ_ASSERT(aq_ring_push(mirror->told, token)); /* the ring holds every job */
        aq_eventcount_notify(mirror->config.eventcount);
    }
}

/* ---- lanes ---- */

static void job_give(struct aq_mirror *mirror, struct lane *lane, const struct job *job)
{
    AQ_ASSERT(lane->jobs_out < JOBS);
    const uint32_t number = lane->job_count++ % JOBS;
    lane->jobs[number] = *job;
    lane->jobs_out++;
    AQ_ASSERT(aq_ring_push(mirror->asked, (uint64_t)(lane - mirror->lanes) * JOBS + number));
    aq_eventcount_notify(mirror->eventcount);
}

static enum aq_status lane_begin(struct aq_mirror *mirror, struct lane *lane, bool own, uint64_t step)
{
    /* Copies are at their keeper, which sends and stores them under a name with "mirror-". */
    const char *kind = own ? "" : "mirror-";
    const uint32_t rank = own ? mirror->config.shape.rank : lane->peer;
    AQ_ASSERT(!lane->active && lane->jobs_out == 0 && lane->file < 0);
    lane->folder = mirror->config.folder;
    snprintf(lane->name, sizeof lane->name, "%" PRIu64 "/%sstage-%u.safetensors", step, kind, rank);
    snprintf(lane->partial, sizeof lane->partial, "%" PRIu64 "/%sstage-%u.safetensors.partial", step, kind, rank);
    lane->active = true;
    lane->own = own;
    lane->step = step;
    lane->total = UNKNOWN;
    lane->asked = lane->read = lane->sent = lane->taken = lane->next = 0;
    lane->end_sent = lane->ending = false;
    return AQ_OK;
}

static void lane_end(struct aq_mirror *mirror, struct lane *lane, enum aq_status status)
{
    if (lane->file >= 0) close(lane->file);
    lane->file = -1;
    lane->active = false;
    if (lane->own) mirror->done = status;
}

static enum aq_status say(struct lane *lane, enum op op, uint64_t argument)
{
    const struct aq_frame frame = {
        .kind = AQ_FRAME_MIRROR, .flags = (uint16_t)op, .step = lane->step, .argument = argument};
    return aq_edge_send_mirror(lane->edge, &frame, AQ_EDGE_MIRROR_NO_PIECE);
}

static struct lane *lane_of(struct aq_mirror *mirror, uint32_t side, bool sends)
{
    return &mirror->lanes[2 * side + (sends ? 0 : 1)];
}

/* The sender's next moves: read ahead into free places, send the pieces that are read, send END when all are taken. */
static enum aq_status lane_send(struct aq_mirror *mirror, struct lane *lane, bool hurry)
{
    const uint32_t piece_bytes = mirror->piece_bytes[(lane - mirror->lanes) / 2];
    while (lane->asked < lane->taken + AQ_MIRROR_WINDOW && lane->asked < lane->total) {
        const uint32_t place = lane->asked % AQ_MIRROR_WINDOW;
        if (lane->lent >> place & 1) break;
        if (lane->asked > 0 && lane->total == UNKNOWN) break; /* reading the first piece gives the size */
        const struct job job = {.kind = JOB_READ,
                                .bytes = lane->places + (size_t)place * AQ_MIRROR_PIECE_BYTES_MAX,
                                .offset = lane->asked * piece_bytes,
                                .count = piece_bytes};
        job_give(mirror, lane, &job);
        lane->asked++;
    }
    while (lane->sent < lane->read && (hurry || (lane->lent == 0 && aq_edge_mirror_turn(lane->edge)))) {
        const uint32_t place = lane->sent % AQ_MIRROR_WINDOW;
        const struct aq_frame frame = {.kind = AQ_FRAME_MIRROR,
                                       .flags = OP_PIECE,
                                       .step = lane->step,
                                       .argument = lane->sent * piece_bytes,
                                       .body_bytes = lane->place_bytes[place],
                                       .body = lane->places + (size_t)place * AQ_MIRROR_PIECE_BYTES_MAX};
        AQ_TRY(aq_edge_send_mirror(lane->edge, &frame, place));
        lane->lent |= 1u << place;
        lane->sent++;
    }
    if (lane->end_sent || lane->taken != lane->total) return AQ_OK;
    lane->end_sent = true;
    return say(lane, OP_END, lane->digest);
}

/* Result of the thread for the sender: a piece is read. */
static enum aq_status read_done(struct aq_mirror *mirror, struct lane *lane, const struct job *job)
{
    const uint32_t piece_bytes = mirror->piece_bytes[(lane - mirror->lanes) / 2];
    if (job->status == AQ_NOTFOUND && !lane->own) {
        AQ_TRY(say(lane, OP_NONE, 0));
        lane_end(mirror, lane, AQ_NOTFOUND);
        return AQ_OK;
    }
    if (job->status == AQ_NOTFOUND)
        return aq_fail(AQ_IO, "mirror", "%s/%s was removed before it was copied to stage %u", lane->folder, lane->name,
                       lane->peer);
    AQ_TRY(job->status);
    lane->total = (lane->size + piece_bytes - 1) / piece_bytes;
    const uint64_t left = lane->size - lane->read * piece_bytes;
    if (lane->total > 0 && job->count != (left < piece_bytes ? left : piece_bytes))
        return aq_fail(AQ_IO, "mirror", "%s/%s has changed while it was copied to stage %u", lane->folder, lane->name,
                       lane->peer);
    lane->place_bytes[lane->read % AQ_MIRROR_WINDOW] = job->count;
    if (lane->total > 0) lane->read++;
    return AQ_OK;
}

static enum aq_status jobs_done(struct aq_mirror *mirror)
{
    uint64_t token;
    while (aq_ring_pop(mirror->told, &token)) {
        struct lane *lane = &mirror->lanes[token / JOBS];
        const struct job *job = &lane->jobs[token % JOBS];
        lane->jobs_out--;
        if (job->kind == JOB_READ) {
            AQ_TRY(read_done(mirror, lane, job));
            continue;
        }
        if (job->kind == JOB_WRITE) aq_edge_mirror_release(lane->edge, job->body);
        if (lane->own && job->status != AQ_OK) mirror->done = job->status;
        AQ_TRY(job->status);
        AQ_TRY(say(lane, job->kind == JOB_WRITE ? OP_TAKEN : OP_KEPT, 0));
        if (job->kind == JOB_FINISH) {
            aq_log("mirror", 2, "stage %u's checkpoint of step %" PRIu64 " is here",
                   lane->own ? mirror->config.shape.rank : lane->peer, lane->step);
            if (!lane->own) lane->kept = lane->step;
            lane_end(mirror, lane, AQ_OK);
        }
    }
    return AQ_OK;
}

/* ---- frames ---- */

uint64_t aq_mirror_file_bytes(uint64_t values_bytes, uint32_t layers)
{
    return aq_seal_bytes(values_bytes + HEADER_BYTES + (uint64_t)layers * LAYER_BYTES);
}

uint32_t aq_mirror_keeper(uint32_t rank, uint32_t stages)
{
    return rank % stages + 1 < stages ? rank + 1 : rank - 1;
}

/* Does this stage keep the copies of that neighbour? */
static bool keeps(const struct aq_mirror *mirror, const struct lane *lane)
{
    return aq_mirror_keeper(lane->peer, mirror->config.shape.stages) == mirror->config.shape.rank;
}

static enum aq_status wrong(const struct lane *lane, const struct aq_frame *frame)
{
    if (frame->body) aq_edge_mirror_release(lane->edge, frame->body);
    return aq_fail(AQ_PROTO, "mirror",
                   "stage %u sent an unexpected frame of a checkpoint (%u, step %" PRIu64 ", %" PRIu64 ", %u bytes)",
                   lane->peer, frame->flags, frame->step, frame->argument, frame->body_bytes);
}

/* The step of the copy that may come in this lane now; 0: none. The one before it must be here first. */
static uint64_t lane_due(const struct aq_mirror *mirror, const struct lane *lane)
{
    if (lane->kept < mirror->due) return mirror->due;
    return lane->kept < mirror->due_next ? mirror->due_next : 0;
}

/* A neighbour's copy starts: is it one that this stage keeps, and due? */
static enum aq_status copy_begin(struct aq_mirror *mirror, struct lane *lane, const struct aq_frame *frame)
{
    const uint64_t due = lane_due(mirror, lane);
    if (!keeps(mirror, lane) || frame->argument != 0) return wrong(lane, frame);
    if (due == 0 || frame->step != due) {
        if (frame->body) aq_edge_mirror_release(lane->edge, frame->body);
        return aq_fail(AQ_PROTO, "mirror",
                       "stage %u sends its checkpoint of step %" PRIu64 " to stage %u, where %s%.0" PRIu64 " is due",
                       lane->peer, frame->step, mirror->config.shape.rank, due ? "that of step " : "none", due);
    }
    return lane_begin(mirror, lane, false, frame->step);
}

static enum aq_status piece_in(struct aq_mirror *mirror, struct lane *lane, const struct aq_frame *frame)
{
    const uint32_t side = (uint32_t)(lane - mirror->lanes) / 2, piece_bytes = mirror->piece_bytes[side];
    if (!lane->active) AQ_TRY(copy_begin(mirror, lane, frame));
    const uint64_t file_bytes_max = mirror->config.shape.file_bytes_max[lane->own ? 1 : 2 * side];
    /* Only the last piece is shorter: a piece after it would not start at a multiple. */
    if (lane->ending || frame->body_bytes == 0 || frame->body_bytes > piece_bytes || frame->step != lane->step ||
        frame->argument != lane->next || lane->next % piece_bytes != 0 ||
        lane->next + frame->body_bytes > file_bytes_max || lane->jobs_out >= AQ_MIRROR_WINDOW)
        return wrong(lane, frame);
    const struct job job = {.kind = JOB_WRITE, .body = frame->body, .count = frame->body_bytes};
    lane->next += frame->body_bytes;
    job_give(mirror, lane, &job);
    return AQ_OK;
}

/* The neighbour asks for the copy of its file: only of the step from which all resume, before training, once. */
static enum aq_status want_in(struct aq_mirror *mirror, struct lane *lane, const struct aq_frame *frame)
{
    const struct aq_mirror_config *config = &mirror->config;
    if (lane->active || lane->wanted || mirror->training || frame->body_bytes || config->resumed == 0 ||
        frame->step != config->resumed || !keeps(mirror, lane))
        return wrong(lane, frame);
    lane->wanted = true;
    return lane_begin(mirror, lane, false, frame->step);
}

static enum aq_status end_in(struct aq_mirror *mirror, struct lane *lane, const struct aq_frame *frame)
{
    /* The sender has heard that every piece was written: nothing is out. */
    if (!lane->active || lane->ending || frame->body_bytes || frame->step != lane->step || lane->next == 0 ||
        lane->jobs_out)
        return wrong(lane, frame);
    const struct job job = {.kind = JOB_FINISH};
    lane->ending = true;
    lane->end_digest = frame->argument;
    job_give(mirror, lane, &job);
    return AQ_OK;
}

static enum aq_status frame_in(struct aq_mirror *mirror, uint32_t side, const struct aq_frame *frame)
{
    struct lane *to = lane_of(mirror, side, true), *from = lane_of(mirror, side, false);
    switch (frame->flags) {
    case OP_PIECE:
        return piece_in(mirror, from, frame);
    case OP_END:
        return end_in(mirror, from, frame);
    case OP_TAKEN:
        if (!to->active || frame->body_bytes || frame->step != to->step || to->taken == to->sent) break;
        to->taken++;
        return AQ_OK;
    case OP_KEPT:
        if (!to->active || frame->body_bytes || frame->step != to->step || !to->end_sent) break;
        lane_end(mirror, to, AQ_OK);
        return AQ_OK;
    case OP_WANT:
        return want_in(mirror, to, frame);
    case OP_NONE:
        if (!from->active || !from->own || frame->body_bytes || frame->step != from->step || from->next > 0) break;
        lane_end(mirror, from, AQ_NOTFOUND);
        return AQ_OK;
    default:
        break;
    }
    return wrong(from, frame);
}

enum aq_status aq_mirror_pump(struct aq_mirror *mirror, bool hurry)
{
    AQ_TRY(jobs_done(mirror));
    for (uint32_t side = 0; side < 2; side++) {
        struct lane *to = lane_of(mirror, side, true);
        struct aq_frame frame;
        if (!to->edge) continue;
        to->lent &= ~aq_edge_mirror_sent(to->edge);
        while (aq_edge_mirror_next(to->edge, &frame))
            AQ_TRY(frame_in(mirror, side, &frame));
        if (to->active) AQ_TRY(lane_send(mirror, to, hurry));
    }
    return AQ_OK;
}

static uint32_t side_of_keeper(const struct aq_mirror_config *config)
{
    return aq_mirror_keeper(config->shape.rank, config->shape.stages) > config->shape.rank ? 1 : 0;
}

void aq_mirror_send(struct aq_mirror *mirror, uint64_t step)
{
    const struct aq_mirror_config *config = &mirror->config;
    struct lane *lane = lane_of(mirror, side_of_keeper(config), true);
    AQ_ASSERT(mirror->done != AQ_AGAIN);
    if (lane->active) /* it asked for its copy before the first step, and does not take it */
        mirror->done = aq_fail(AQ_PROTO, "mirror", "stage %u fetches a copy while checkpoints are made", lane->peer);
    else
        mirror->done = lane_begin(mirror, lane, true, step);
    if (mirror->done == AQ_OK) mirror->done = AQ_AGAIN;
}

enum aq_status aq_mirror_fetch(struct aq_mirror *mirror, uint64_t step)
{
    const struct aq_mirror_config *config = &mirror->config;
    struct lane *lane = lane_of(mirror, side_of_keeper(config), false);
    AQ_ASSERT(mirror->done != AQ_AGAIN);
    AQ_TRY(lane_begin(mirror, lane, true, step));
    mirror->done = AQ_AGAIN;
    return say(lane, OP_WANT, 0);
}

void aq_mirror_due(struct aq_mirror *mirror, uint64_t now, uint64_t next)
{
    mirror->due = now;
    mirror->due_next = next;
}

void aq_mirror_train(struct aq_mirror *mirror)
{
    mirror->training = true;
}

enum aq_status aq_mirror_done(const struct aq_mirror *mirror)
{
    return mirror->done;
}

const char *aq_mirror_hash(const struct aq_mirror *mirror)
{
    return mirror->own->text;
}

/* ---- opening and closing ---- */

/* Small against the link's rate, so that a training frame waits for no more than PIECE_MS. */
static uint32_t piece_size(const struct aq_mirror_shape *shape, uint32_t side)
{
    uint64_t bytes = AQ_MIRROR_PIECE_BYTES_MAX;
    const double rate = shape->rate_mbps, paced = rate * 1e6 / 8 * 1e-3 * PIECE_MS;
    if (rate > 0 && paced < (double)bytes) bytes = paced > PIECE_BYTES_MIN ? (uint64_t)paced : PIECE_BYTES_MIN;
    return (uint32_t)(bytes < shape->body_bytes_max[side] ? bytes : shape->body_bytes_max[side]);
}

enum aq_status aq_mirror_open(const struct aq_mirror_config *config, struct aq_mirror **out)
{
    struct aq_mirror *mirror;
    AQ_TRY(AQ_NEW(1, &mirror));
    struct aq_edge *const edges[] = {config->in, config->out};
    enum aq_status status;
    mirror->config = *config;
    for (uint32_t i = 0; i < LANES; i++)
        mirror->lanes[i] = (struct lane){.edge = edges[i / 2],
                                         .folder = config->folder,
                                         .peer = config->shape.rank + (i / 2 ? 1 : -1u),
                                         .sends = i % 2 == 0,
                                         .file = -1};
    mirror->memory_bytes = aq_mirror_measure((config->in != NULL) + (config->out != NULL));
    AQ_TRY_GOTO(aq_map(mirror->memory_bytes, &mirror->memory), out);
    uint8_t *places = mirror->memory;
    AQ_TRY_GOTO(mirror_own_open(config, places, &mirror->own), out);
    mirror->own->about.file_bytes = config->shape.file_bytes_max[1]; /* of what may come back */
    places += MIRROR_OWN_BYTES;
    for (uint32_t i = 0; i < LANES; i++)
        mirror->lanes[i].file_own = mirror->own;
    for (uint32_t side = 0; side < 2; side++) {
        if (!edges[side]) continue;
        mirror->piece_bytes[side] = piece_size(&config->shape, side);
        lane_of(mirror, side, true)->places = places;
        places += AQ_MIRROR_WINDOW * AQ_MIRROR_PIECE_BYTES_MAX;
    }
    AQ_TRY_GOTO(aq_eventcount_open(&mirror->eventcount), out);
    AQ_TRY_GOTO(aq_ring_open(RING_SLOTS, &mirror->asked), out);
    AQ_TRY_GOTO(aq_ring_open(RING_SLOTS, &mirror->told), out);
    AQ_TRY_GOTO(aq_thread_open("aq-mirror", run, mirror, &mirror->thread), out);
    *out = mirror;
    return AQ_OK;
out:
    aq_mirror_close(mirror);
    return status;
}

void aq_mirror_close(struct aq_mirror *mirror)
{
    if (!mirror) return;
    atomic_store_explicit(&mirror->stop, true, memory_order_release);
    aq_eventcount_notify(mirror->eventcount);
    aq_thread_close(mirror->thread);
    for (uint32_t i = 0; i < LANES; i++) {
        struct lane *lane = &mirror->lanes[i];
        if (lane->file >= 0) close(lane->file);
        if (lane->active && !lane->sends) (void)aq_file_remove(lane->folder, lane->partial);
    }
    aq_ring_close(mirror->asked);
    aq_ring_close(mirror->told);
    aq_eventcount_close(mirror->eventcount);
    mirror_own_close(mirror->own);
    aq_unmap(mirror->memory, mirror->memory_bytes);
    aq_free(mirror);
}

uint64_t aq_mirror_measure(uint32_t neighbours)
{
    return (uint64_t)neighbours * AQ_MIRROR_WINDOW * AQ_MIRROR_PIECE_BYTES_MAX + MIRROR_OWN_BYTES;
}
