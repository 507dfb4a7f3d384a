/*
 * client_sums.c -- the part of a worker for split.mode: global: gradients summed over all clients, in REDUCE.
 *
 * Each client's turn is a separate run, and all make every step together. A client's part of a step's batch is the
 * samples that are in its own data: their count changes from step to step and may be 0. When its chains are done each
 * end sends its gradients to the middle stage at the server (edge.h), which sends those of all three stages to the
 * split-server (sum_line.h, the socket of the start line's `sums`) and receives the mean over all clients, weighted by
 * targets. That overwrites the gradients of all stages, so that NORM and STEP are the same at every client.
 *
 * Gradients pass through the host's memory: those of the ends are in the edges' memory, those of this stage where they
 * are, or on a GPU in a copy. While one waits for the others edges are pumped, so that a neighbour's end is seen.
 *
 * A step in which no client has a part is void, as one whose gradient is not finite: the middle sends NaN in NORM. If
 * the own gradients are not finite but there is a sum, the step counts, and only many of them in a row end this run.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "aqsgd/device.h"
#include "control.h"
#include "edge_shared.h"
#include "heartbeat.h"
#include "stages/dataset.h"
#include "stages/stage.h"
#include "sum_line.h"
#include "worker_parts.h"

enum {
    VECTORS = 3,  /* the first stage's, the middle's, the last stage's  */
    TURN_MS = 20, /* between two looks at the edges, while the socket is waited for */
    CONNECT_SECONDS = 60,
    PIECE_BYTES = 4 << 20 /* read or written between two looks at the edges     */
};

/* Scatter/gather list of a socket transfer, with a cursor. */
struct span {
    void *bytes;
    uint64_t count;
};
struct talk {
    struct span spans[1 + VECTORS];
    uint32_t count, at;
    uint64_t done; /* of spans[at] */
    uint64_t moved_ns;
};

struct part {
    const struct aq_plan *plan;
    const struct aq_part_worker *worker;
    uint32_t rank, position;
    bool middle;                    /* this is the stage that sends its client's parts and receives sums */
    uint64_t step;                  /* the run's own; that of all clients is `shift` more               */
    uint64_t shift;                 /* modulo 2^64                                                      */
    char *path;                     /* the middle stage: of the socket where gradients are summed       */
    int fd;                         /* connected to it                                                  */
    float *copy;                    /* pinned: this stage's gradients, where they lie on a GPU          */
    uint32_t consecutive_nonfinite; /* steps in which this client's gradients were not finite           */
    struct aq_part_reduced reduced; /* of the step                                                      */
};

/* --- opening ---------------------------------------------------------------------------------------------------- */

static bool part_wanted(const struct aq_plan *plan, uint32_t rank)
{
    (void)rank;
    return aq_job_global(plan->job);
}

/* Of gradients on a GPU: a copy that the host reaches. */
static void part_memory(const struct aq_plan *plan, uint32_t s, struct aq_plan_part *out)
{
    const struct aq_plan_stage *stage = &plan->stages[s];
    if (s == 1 && stage->config.weights_16bit)
        *out = (struct aq_plan_part){.name = "sums", .bytes = stage->size.parameters * sizeof(float)};
}

static enum aq_status part_open(void *self, const struct aq_plan *plan, uint32_t rank)
{
    struct part *part = self;
    part->plan = plan;
    part->rank = rank;
    part->position = rank % plan->stage_count;
    part->middle = !aq_job_at_client(plan->job, rank);
    part->fd = -1;
    return AQ_OK;
}

/* The socket and the first step of the start line. AQ_PROTO: keys are missing, or steps are out of range. */
static enum aq_status start_told(struct part *part, struct aq_part_args *args)
{
    const json_t *start = args->message;
    const char *path = aq_control_text_or(start, "sums", NULL);
    const int64_t shift = aq_control_i64_or(start, "shift", 0);
    const uint64_t until = aq_control_u64_or(start, "until", 0), done = aq_control_u64_or(start, "resume", 0);
    if (part->plan->facts.all_samples == 0)
        return aq_fail(AQ_PROTO, "worker", "asked to train with global sampling, but without the clients' samples");
    if (part->middle && (!path || path[0] != '/'))
        return aq_fail(AQ_PROTO, "worker",
                       "no path where gradients are summed over clients (`sums`, an absolute path): split.mode: global "
                       "trains only at an aqpipe split-server");
    /* Own steps and the shift make a step of the plan: it is negative where rounds before had more steps than now. */
    const uint64_t steps = part->plan->steps, most = UINT64_MAX >> 2, last = until > done ? until : done;
    const bool far = shift > (int64_t)most || shift < -(int64_t)most || last > most;
    if (far || (int64_t)done + shift < 0 || (uint64_t)((int64_t)last + shift) > steps)
        return aq_fail(AQ_PROTO, "worker",
                       "asked to continue from step %" PRIu64 " up to %" PRIu64 ", %" PRId64
                       " steps before those of all: the job has %" PRIu64,
                       done, until, shift, steps);
    part->shift = (uint64_t)shift;
    args->shift = shift;
    args->updates = aq_control_i64_or(start, "updates", shift);
    return part->middle ? aq_alloc_text(path, &part->path) : AQ_OK;
}

/* The vectors of a step, in order of stages; an absent one has no values. */
static void vectors_of(const struct part *part, struct span out[VECTORS])
{
    struct aq_edge *const edges[2] = {part->worker->in, part->worker->out};
    float *own = part->copy ? part->copy : aq_stage_gradients(part->worker->stage);
    out[1] = (struct span){own, aq_stage_parameter_count(part->worker->stage) * sizeof(float)};
    for (uint32_t i = 0; i < 2; i++) {
        const uint64_t floats = edges[i] ? part->plan->edges[part->position - 1 + i].shape.summed : 0;
        out[2 * i] = (struct span){floats ? aq_edge_whole(edges[i], AQ_EDGE_SUMMED) : NULL, floats * sizeof(float)};
    }
}

static uint64_t values_of(const struct span vectors[VECTORS])
{
    uint64_t bytes = 0;
    for (int i = 0; i < VECTORS; i++)
        bytes += vectors[i].count;
    return bytes / sizeof(float);
}

/* A path of a socket has 108 bytes at most: through a descriptor of its folder it is always short. */
static enum aq_status connect_to(const char *path, int *out)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const uint64_t end = aq_clock_after(CONNECT_SECONDS * UINT64_C(1000000000));
    char folder[4096];
    const char *name = strrchr(path, '/') + 1;
    if (snprintf(folder, sizeof folder, "%.*s", (int)(name - path), path) >= (int)sizeof folder)
        return aq_fail(AQ_PROTO, "worker", "the path of the socket of sums is too long");
    const int at = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (at == -1) return aq_fail_errno("worker", "the folder of the socket of sums, %s", folder);
    const int bytes = snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/%s", at, name);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    enum aq_status status = fd == -1 ? aq_fail_errno("worker", "no socket for sums") : AQ_OK;
    if (status == AQ_OK && bytes >= (int)sizeof address.sun_path)
        status = aq_fail(AQ_PROTO, "worker", "the name of the socket of sums is too long: %s", name);
    while (status == AQ_OK && connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        if (errno != EAGAIN || aq_clock_ns() > end) /* EAGAIN: many wait there */
            status = aq_fail_errno("worker",
                                   "cannot connect to %s, where gradients are summed (is the split-server up?)", path);
        else
            (void)poll(NULL, 0, TURN_MS);
    }
    close(at);
    if (status != AQ_OK && fd != -1) close(fd);
    if (status == AQ_OK) *out = fd;
    return status;
}

/* --- the socket ------------------------------------------------------------------------------------------------- */

static enum aq_status lost(void)
{
    return aq_fail(AQ_CLOSED, "worker", "the split-server has ended the connection of sums: see its log");
}

/* Moves bytes of the next span, in pieces, so that edges are pumped often. AQ_AGAIN: the socket takes, or has, no
 * bytes. */
static enum aq_status move(int fd, struct talk *talk, bool write)
{
    const struct span *span = &talk->spans[talk->at];
    const uint64_t left = span->count - talk->done;
    const size_t count = left < PIECE_BYTES ? (size_t)left : PIECE_BYTES;
    uint8_t *at = (uint8_t *)span->bytes + talk->done;
    const ssize_t moved = write ? send(fd, at, count, MSG_NOSIGNAL) : recv(fd, at, count, 0);
    if (moved < 0 && (errno == EAGAIN || errno == EINTR)) return AQ_AGAIN;
    if (moved < 0 && errno != EPIPE && errno != ECONNRESET) return aq_fail_errno("worker", "the socket of sums");
    if (moved <= 0) return lost();
    talk->done += (uint64_t)moved;
    talk->moved_ns = aq_clock_ns();
    return AQ_OK;
}

/* All of it, while edges are pumped; as long as neighbours are waited for, the others' slowest may take. */
static enum aq_status carry(struct part *part, struct talk *talk, bool write)
{
    talk->moved_ns = aq_clock_ns();
    for (talk->at = 0; talk->at < talk->count; talk->at++) {
        for (talk->done = 0; talk->done < talk->spans[talk->at].count;) {
            AQ_TRY(part->worker->pump(part->worker->self));
            const enum aq_status status = move(part->fd, talk, write);
            if (status == AQ_OK) continue;
            if (status != AQ_AGAIN) return status;
            struct pollfd fd = {.fd = part->fd, .events = write ? POLLOUT : POLLIN};
            (void)poll(&fd, 1, TURN_MS);
            if (aq_clock_ns() - talk->moved_ns > part->worker->silence_ns)
                return aq_fail(AQ_TIMEOUT, "worker", "step %" PRIu64 ": nothing came for %.0f s from the split-server",
                               part->step, (double)part->worker->silence_ns * 1e-9);
        }
    }
    return AQ_OK;
}

static enum aq_status say_hello(struct part *part)
{
    struct span vectors[VECTORS];
    struct aq_sum_hello hello = {0};
    vectors_of(part, vectors);
    struct aq_sum_head head = {
        .magic = AQ_SUM_MAGIC, .what = AQ_SUM_HELLO, .step = part->step + part->shift, .values = values_of(vectors)};
    struct talk talk = {.spans = {{&head, sizeof head}, {&hello, sizeof hello}}, .count = 2};
    if (snprintf(hello.name, sizeof hello.name, "%s", part->plan->job->split.client) >= (int)sizeof hello.name)
        return aq_fail(AQ_INVAL, "worker", "split.client has more than %d bytes", AQ_SUM_NAME_BYTES - 1);
    return carry(part, &talk, true);
}

/* The server's stage connects. */
static enum aq_status sums_open(struct part *part, const struct aq_part_args *args)
{
    struct aq_device_info info;
    struct span vectors[VECTORS];
    part->worker = args->worker;
    part->step = args->step;
    if (!part->middle) return AQ_OK;
    aq_device_info(part->worker->device, &info);
    const uint64_t bytes = aq_stage_parameter_count(part->worker->stage) * sizeof(float);
    if (!info.host_memory && bytes > 0)
        AQ_TRY(aq_device_alloc(part->worker->device, AQ_MEMORY_PINNED, bytes, (void **)&part->copy));
    vectors_of(part, vectors);
    if (values_of(vectors) == 0) return AQ_OK; /* nothing is trained */
    AQ_TRY(connect_to(part->path, &part->fd));
    return say_hello(part);
}

static void sums_close(struct part *part)
{
    if (part->fd != -1) close(part->fd);
    part->fd = -1;
    if (part->copy)
        aq_device_free(part->worker->device, AQ_MEMORY_PINNED, part->copy,
                       aq_stage_parameter_count(part->worker->stage) * sizeof(float));
    part->copy = NULL;
}

/* --- gradients -------------------------------------------------------------------------------------------------- */

/* Between the stage's own and memory of the host, either way. */
static enum aq_status copy(struct part *part, void *to, const void *from)
{
    const uint64_t bytes = aq_stage_parameter_count(part->worker->stage) * sizeof(float);
    AQ_TRY(aq_device_copy(part->worker->device, to, from, bytes, part->worker->compute));
    return aq_device_stream_sync(part->worker->device, part->worker->compute);
}

/* Vectors that cross the edges before and behind this stage, one of which may be absent. */
struct crossing {
    struct aq_edge *edges[2]; /* NULL: nothing (more) */
    bool none;                /* there is no sum      */
};

static struct crossing crossing_of(const struct part *part, bool none)
{
    struct aq_edge *const edges[2] = {part->worker->in, part->worker->out};
    struct crossing out = {.none = none};
    for (uint32_t i = 0; i < 2; i++)
        if (edges[i] && part->plan->edges[part->position - 1 + i].shape.summed > 0) out.edges[i] = edges[i];
    return out;
}

/* AQ_AGAIN: something is left. */
static enum aq_status cross_some(const struct part *part, struct crossing *crossing, bool sends)
{
    enum aq_status all = AQ_OK;
    for (int i = 0; i < 2; i++) {
        struct aq_edge *edge = crossing->edges[i];
        if (!edge) continue;
        uint64_t words = crossing->none ? 0 : part->plan->edges[part->position - 1 + i].shape.summed;
        const enum aq_status status = sends ? aq_edge_whole_send(edge, AQ_EDGE_SUMMED, part->step, words)
                                            : aq_edge_whole_receive(edge, AQ_EDGE_SUMMED, part->step, &words);
        if (status == AQ_OK) {
            crossing->edges[i] = NULL;
            crossing->none = crossing->none || words == 0;
        } else if (status == AQ_AGAIN) {
            all = AQ_AGAIN;
        } else {
            return status;
        }
    }
    return all;
}

static enum aq_status cross(struct part *part, struct crossing *crossing, bool sends)
{
    for (;;) {
        const uint32_t seen = aq_eventcount_read(part->worker->events);
        AQ_TRY(part->worker->pump(part->worker->self));
        enum aq_status status = cross_some(part, crossing, sends);
        if (status != AQ_AGAIN) return status;
        status = aq_eventcount_wait(part->worker->events, seen, aq_clock_after(part->worker->silence_ns));
        if (status == AQ_TIMEOUT)
            return aq_fail(AQ_TIMEOUT, "worker", "step %" PRIu64 ": nothing came for %.0f s while waiting for %s",
                           part->step, (double)part->worker->silence_ns * 1e-9,
                           sends ? "room for gradients" : "gradients of the other side");
        AQ_TRY(status);
    }
}

/* A client's end: its own go, and the sum comes. */
static enum aq_status end_sums(struct part *part, bool has_part)
{
    struct aq_edge *edge = part->position == 0 ? part->worker->out : part->worker->in;
    float *own = aq_stage_gradients(part->worker->stage);
    struct crossing out = crossing_of(part, false), in = out;
    if (aq_stage_parameter_count(part->worker->stage) == 0) return AQ_OK; /* it is frozen */
    if (has_part) {
        AQ_TRY(aq_edge_whole_hold(edge, AQ_EDGE_SUMMED));
        AQ_TRY(copy(part, aq_edge_whole(edge, AQ_EDGE_SUMMED), own));
        AQ_TRY(cross(part, &out, true));
        part->reduced.bytes += aq_stage_parameter_count(part->worker->stage) * sizeof(float);
    }
    AQ_TRY(cross(part, &in, false));
    if (!in.none) AQ_TRY(copy(part, own, aq_edge_whole(edge, AQ_EDGE_SUMMED)));
    aq_edge_whole_release(edge, AQ_EDGE_SUMMED);
    return AQ_OK;
}

/* The ends' gradients are here, and nothing more of them may come before they have their answer. */
static enum aq_status gather(struct part *part, bool has_part)
{
    struct crossing in = crossing_of(part, false);
    for (int i = 0; i < 2 && !has_part; i++)
        if (in.edges[i]) AQ_TRY(aq_edge_whole_hold(in.edges[i], AQ_EDGE_SUMMED));
    if (has_part) AQ_TRY(cross(part, &in, false));
    if (in.none)
        return aq_fail(AQ_PROTO, "worker", "step %" PRIu64 ": an end of the client reports that there is no sum",
                       part->step);
    return has_part && part->copy ? copy(part, part->copy, aq_stage_gradients(part->worker->stage)) : AQ_OK;
}

static bool all_finite(const struct span vectors[VECTORS])
{
    for (int v = 0; v < VECTORS; v++) {
        const float *values = vectors[v].bytes;
        for (uint64_t i = 0; i < vectors[v].count / sizeof *values; i++)
            if (!isfinite(values[i])) return false;
    }
    return true;
}

/* Weight of this client's part of a step: the count of targets that its mean is over. */
static uint64_t weight_of(const struct part *part)
{
    struct aq_field fields[AQ_BATCH_FIELDS_MAX];
    const struct aq_job_data *data = &part->plan->job->data;
    const uint32_t count =
        aq_dataset_fields(data->kind, part->plan->stages[part->position].config.T, &data->image, fields);
    const struct aq_job_model *model = &part->plan->job->model;
    const char *field = aq_task_field(aq_task_find(model->task ? model->task : aq_model_task(model->config.kind)));
    uint32_t each = part->plan->stages[part->position].config.T;
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(fields[i].name, field) == 0) each = fields[i].count;
    return (uint64_t)aq_sampler_size(part->worker->sampler, part->step) * each;
}

/* Own gradients that are not finite do not void the step of other clients; many in a row end this run. */
static enum aq_status count_odd(struct part *part, bool odd)
{
    const struct aq_job_train *train = &part->plan->job->train;
    if (!odd) part->consecutive_nonfinite = 0;
    if (!odd || ++part->consecutive_nonfinite < train->skips_max) return AQ_OK;
    return aq_fail(AQ_INVAL, "worker",
                   "%u steps in a row without a finite gradient of this client (train.skips_max): lower train.lr (%g)",
                   train->skips_max, (double)train->lr);
}

/* Sends this step's part and receives the sum: its values, unless *none. */
static enum aq_status exchange(struct part *part, const struct span vectors[VECTORS], uint64_t weight, bool odd,
                               bool *none)
{
    const uint64_t step = part->step + part->shift, values = values_of(vectors);
    struct aq_sum_head head = {.magic = AQ_SUM_MAGIC,
                               .what = AQ_SUM_PART,
                               .flags = odd ? AQ_SUM_NOT_FINITE : 0,
                               .step = step,
                               .weight = weight,
                               .values = weight ? values : 0};
    struct talk talk = {.spans = {{&head, sizeof head}, vectors[0], vectors[1], vectors[2]}};
    talk.count = weight ? 1 + VECTORS : 1;
    AQ_TRY(carry(part, &talk, true));
    talk.count = 1;
    aq_heartbeat_phase(AQ_PHASE_SUMS);
    AQ_TRY(carry(part, &talk, false));
    aq_heartbeat_phase(AQ_PHASE_REDUCE);
    *none = head.flags == AQ_SUM_VOID;
    if (head.magic != AQ_SUM_MAGIC || head.what != AQ_SUM_SUM || head.step != step || (head.flags && !*none) ||
        (head.weight == 0) != *none || head.values != (*none ? 0 : values))
        return aq_fail(AQ_PROTO, "worker",
                       "the sum of step %" PRIu64 " was awaited, with %" PRIu64
                       " values; what came is %u, of step %" PRIu64 ", %" PRIu64 " values, weight %" PRIu64
                       ", flags %u",
                       step, values, head.what, head.step, head.values, head.weight, head.flags);
    struct talk sum = {.spans = {vectors[0], vectors[1], vectors[2]}, .count = *none ? 0 : VECTORS};
    return carry(part, &sum, false);
}

static enum aq_status middle_sums(struct part *part, bool has_part)
{
    struct span vectors[VECTORS];
    bool none;
    vectors_of(part, vectors);
    if (values_of(vectors) == 0) return AQ_OK;
    AQ_TRY(gather(part, has_part));
    const bool odd = has_part && !all_finite(vectors);
    AQ_TRY(exchange(part, vectors, has_part && !odd ? weight_of(part) : 0, odd, &none));
    if (!none && part->copy) AQ_TRY(copy(part, aq_stage_gradients(part->worker->stage), part->copy));
    struct crossing out = crossing_of(part, none);
    AQ_TRY(cross(part, &out, true));
    part->reduced.bytes += none ? 0 : vectors[0].count + vectors[2].count;
    part->reduced.is_void = none;
    return has_part ? count_odd(part, odd) : AQ_OK;
}

static enum aq_status reduce(struct part *part, struct aq_part_args *args)
{
    part->step = args->step;
    part->reduced = (struct aq_part_reduced){0};
    const bool has_part = aq_sampler_size(part->worker->sampler, part->step) > 0;
    AQ_TRY(part->middle ? middle_sums(part, has_part) : end_sums(part, has_part));
    args->reduced = part->reduced;
    return AQ_OK;
}

static enum aq_status part_on(void *self, enum aq_part_moment moment, struct aq_part_args *args)
{
    struct part *part = self;
    switch (moment) {
    case AQ_PART_START:
        return start_told(part, args);
    case AQ_PART_JOINED:
        return sums_open(part, args);
    case AQ_PART_REDUCE:
        return reduce(part, args);
    case AQ_PART_EDGES_CLOSE:
        sums_close(part);
        return AQ_OK;
    default:
        return AQ_OK;
    }
}

static void part_close(void *self)
{
    struct part *part = self;
    aq_free(part->path);
}

const struct aq_part_ops aq_part_sums = {.name = "sums",
                                         .bytes = sizeof(struct part),
                                         .wanted = part_wanted,
                                         .memory = part_memory,
                                         .open = part_open,
                                         .on = part_on,
                                         .close = part_close};
