/*
 * worker_sums.c -- split.mode: global: gradients summed over all clients, in REDUCE.
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

#include "heartbeat.h"
#include "sum_line.h"
#include "worker.h"

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

/* --- opening ---------------------------------------------------------------------------------------------------- */

/* Is this the stage that sends its client's parts and receives sums? */
static bool is_middle(const struct aq_worker *w)
{
    return aq_job_global(w->job) && !aq_job_at_client(w->job, w->rank);
}

enum aq_status aq_worker_sums_told(struct aq_worker *w, const json_t *start)
{
    const char *path = aq_control_text_or(start, "sums", NULL);
    const int64_t shift = aq_control_i64_or(start, "shift", 0);
    const uint64_t until = aq_control_u64_or(start, "until", 0), done = aq_control_u64_or(start, "resume", 0);
    const bool global = aq_job_global(w->job);
    w->sums.fd = -1;
    if (!global && (path || shift))
        return aq_fail(AQ_PROTO, "worker", "received sums in a job without split.mode: global");
    if (!global) return AQ_OK;
    if (w->plan->facts.all_samples == 0)
        return aq_fail(AQ_PROTO, "worker", "asked to train with global sampling, but without the clients' samples");
    if (is_middle(w) && (!path || path[0] != '/'))
        return aq_fail(AQ_PROTO, "worker",
                       "no path where gradients are summed over clients (`sums`, an absolute path): split.mode: global "
                       "trains only at an aqpipe split-server");
    /* Own steps and the shift make a step of the plan: it is negative where rounds before had more steps than now. */
    const uint64_t steps = w->plan->steps, most = UINT64_MAX >> 2, last = until > done ? until : done;
    const bool far = shift > (int64_t)most || shift < -(int64_t)most || last > most;
    if (far || (int64_t)done + shift < 0 || (uint64_t)((int64_t)last + shift) > steps)
        return aq_fail(AQ_PROTO, "worker",
                       "asked to continue from step %" PRIu64 " up to %" PRIu64 ", %" PRId64
                       " steps before those of all: the job has %" PRIu64,
                       done, until, shift, steps);
    w->sums.shift = (uint64_t)shift;
    w->checkpoints.updates_ahead = aq_control_i64_or(start, "updates", shift);
    return is_middle(w) ? aq_alloc_text(path, &w->sums.path) : AQ_OK;
}

/* The vectors of a step, in order of stages; an absent one has no values. */
static void vectors_of(const struct aq_worker *w, struct span out[VECTORS])
{
    struct aq_edge *const edges[2] = {w->pipeline.in, w->pipeline.out};
    float *own = w->sums.copy ? w->sums.copy : aq_stage_gradients(w->stage);
    out[1] = (struct span){own, aq_stage_parameter_count(w->stage) * sizeof(float)};
    for (uint32_t i = 0; i < 2; i++) {
        const uint64_t floats = edges[i] ? w->plan->edges[w->position - 1 + i].shape.summed : 0;
        out[2 * i] = (struct span){floats ? aq_edge_summed(edges[i]) : NULL, floats * sizeof(float)};
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
static enum aq_status carry(struct aq_worker *w, struct talk *talk, bool write)
{
    talk->moved_ns = aq_clock_ns();
    for (talk->at = 0; talk->at < talk->count; talk->at++) {
        for (talk->done = 0; talk->done < talk->spans[talk->at].count;) {
            AQ_TRY(aq_worker_pump(w));
            const enum aq_status status = move(w->sums.fd, talk, write);
            if (status == AQ_OK) continue;
            if (status != AQ_AGAIN) return status;
            struct pollfd fd = {.fd = w->sums.fd, .events = write ? POLLOUT : POLLIN};
            (void)poll(&fd, 1, TURN_MS);
            if (aq_clock_ns() - talk->moved_ns > w->silence_ns)
                return aq_fail(AQ_TIMEOUT, "worker", "step %" PRIu64 ": nothing came for %.0f s from the split-server",
                               w->step, (double)w->silence_ns * 1e-9);
        }
    }
    return AQ_OK;
}

static enum aq_status say_hello(struct aq_worker *w)
{
    struct span vectors[VECTORS];
    struct aq_sum_hello hello = {0};
    vectors_of(w, vectors);
    struct aq_sum_head head = {.magic = AQ_SUM_MAGIC,
                               .what = AQ_SUM_HELLO,
                               .step = aq_worker_global(w, w->step),
                               .values = values_of(vectors)};
    struct talk talk = {.spans = {{&head, sizeof head}, {&hello, sizeof hello}}, .count = 2};
    if (snprintf(hello.name, sizeof hello.name, "%s", w->job->split.client) >= (int)sizeof hello.name)
        return aq_fail(AQ_INVAL, "worker", "split.client has more than %d bytes", AQ_SUM_NAME_BYTES - 1);
    return carry(w, &talk, true);
}

enum aq_status aq_worker_sums_open(struct aq_worker *w)
{
    struct aq_device_info info;
    struct span vectors[VECTORS];
    if (!is_middle(w)) return AQ_OK;
    aq_device_info(w->device, &info);
    const uint64_t bytes = aq_stage_parameter_count(w->stage) * sizeof(float);
    if (!info.host_memory && bytes > 0)
        AQ_TRY(aq_device_alloc(w->device, AQ_MEMORY_PINNED, bytes, (void **)&w->sums.copy));
    vectors_of(w, vectors);
    if (values_of(vectors) == 0) return AQ_OK; /* nothing is trained */
    AQ_TRY(connect_to(w->sums.path, &w->sums.fd));
    return say_hello(w);
}

void aq_worker_sums_close(struct aq_worker *w)
{
    if (w->sums.path && w->sums.fd != -1) close(w->sums.fd);
    w->sums.fd = -1;
    if (w->sums.copy)
        aq_device_free(w->device, AQ_MEMORY_PINNED, w->sums.copy, aq_stage_parameter_count(w->stage) * sizeof(float));
    w->sums.copy = NULL;
    aq_free(w->sums.path);
}

/* --- gradients -------------------------------------------------------------------------------------------------- */

/* Between the stage's own and memory of the host, either way. */
static enum aq_status copy(struct aq_worker *w, void *to, const void *from)
{
    const uint64_t bytes = aq_stage_parameter_count(w->stage) * sizeof(float);
    AQ_TRY(aq_device_copy(w->device, to, from, bytes, w->stream));
    return aq_device_stream_sync(w->device, w->stream);
}

/* Vectors that cross the edges before and behind this stage, one of which may be absent. */
struct crossing {
    struct aq_edge *edges[2]; /* NULL: nothing (more) */
    bool none;                /* there is no sum      */
};

static struct crossing crossing_of(const struct aq_worker *w, bool none)
{
    struct aq_edge *const edges[2] = {w->pipeline.in, w->pipeline.out};
    struct crossing out = {.none = none};
    for (uint32_t i = 0; i < 2; i++)
        if (edges[i] && w->plan->edges[w->position - 1 + i].shape.summed > 0) out.edges[i] = edges[i];
    return out;
}

/* AQ_AGAIN: something is left. */
static enum aq_status cross_some(const struct aq_worker *w, struct crossing *crossing, bool sends)
{
    enum aq_status all = AQ_OK;
    for (int i = 0; i < 2; i++) {
        bool none = crossing->none;
        if (!crossing->edges[i]) continue;
        const enum aq_status status = sends ? aq_edge_send_summed(crossing->edges[i], w->step, none)
                                            : aq_edge_receive_summed(crossing->edges[i], w->step, &none);
        if (status == AQ_OK) {
            crossing->edges[i] = NULL;
            crossing->none = crossing->none || none;
        } else if (status == AQ_AGAIN) {
            all = AQ_AGAIN;
        } else {
            return status;
        }
    }
    return all;
}

static enum aq_status cross(struct aq_worker *w, struct crossing *crossing, bool sends)
{
    for (;;) {
        const uint32_t seen = aq_eventcount_read(w->eventcount);
        AQ_TRY(aq_worker_pump(w));
        enum aq_status status = cross_some(w, crossing, sends);
        if (status != AQ_AGAIN) return status;
        status = aq_eventcount_wait(w->eventcount, seen, aq_clock_after(w->silence_ns));
        if (status == AQ_TIMEOUT)
            return aq_fail(AQ_TIMEOUT, "worker", "step %" PRIu64 ": nothing came for %.0f s while waiting for %s",
                           w->step, (double)w->silence_ns * 1e-9,
                           sends ? "room for gradients" : "gradients of the other side");
        AQ_TRY(status);
    }
}

/* A client's end: its own go, and the sum comes. */
static enum aq_status end_sums(struct aq_worker *w, bool has_part)
{
    struct aq_edge *edge = w->position == 0 ? w->pipeline.out : w->pipeline.in;
    float *own = aq_stage_gradients(w->stage);
    struct crossing out = crossing_of(w, false), in = out;
    if (aq_stage_parameter_count(w->stage) == 0) return AQ_OK; /* it is frozen */
    if (has_part) {
        AQ_TRY(aq_edge_hold_summed(edge));
        AQ_TRY(copy(w, aq_edge_summed(edge), own));
        AQ_TRY(cross(w, &out, true));
        w->times.reduce_bytes += aq_stage_parameter_count(w->stage) * sizeof(float);
    }
    AQ_TRY(cross(w, &in, false));
    if (!in.none) AQ_TRY(copy(w, own, aq_edge_summed(edge)));
    aq_edge_release_summed(edge);
    return AQ_OK;
}

/* The ends' gradients are here, and nothing more of them may come before they have their answer. */
static enum aq_status gather(struct aq_worker *w, bool has_part)
{
    struct crossing in = crossing_of(w, false);
    for (int i = 0; i < 2 && !has_part; i++)
        if (in.edges[i]) AQ_TRY(aq_edge_hold_summed(in.edges[i]));
    if (has_part) AQ_TRY(cross(w, &in, false));
    if (in.none)
        return aq_fail(AQ_PROTO, "worker", "step %" PRIu64 ": an end of the client reports that there is no sum",
                       w->step);
    return has_part && w->sums.copy ? copy(w, w->sums.copy, aq_stage_gradients(w->stage)) : AQ_OK;
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
static uint64_t weight_of(const struct aq_worker *w)
{
    struct aq_field fields[AQ_BATCH_FIELDS_MAX];
    const uint32_t count = aq_dataset_fields(w->job->data.kind, w->me->config.T, fields);
    const struct aq_job_model *model = &w->job->model;
    const char *field = aq_task_field(aq_task_find(model->task ? model->task : aq_model_task(model->config.kind)));
    uint32_t each = w->me->config.T;
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(fields[i].name, field) == 0) each = fields[i].count;
    return (uint64_t)aq_sampler_size(w->sampler, w->step) * each;
}

/* Own gradients that are not finite do not void the step of other clients; many in a row end this run. */
static enum aq_status count_odd(struct aq_worker *w, bool odd)
{
    const struct aq_job_train *train = &w->job->train;
    if (!odd) w->sums.consecutive_nonfinite = 0;
    if (!odd || ++w->sums.consecutive_nonfinite < train->skips_max) return AQ_OK;
    return aq_fail(AQ_INVAL, "worker",
                   "%u steps in a row without a finite gradient of this client (train.skips_max): lower train.lr (%g)",
                   train->skips_max, (double)train->lr);
}

/* Sends this step's part and receives the sum: its values, unless *none. */
static enum aq_status exchange(struct aq_worker *w, const struct span vectors[VECTORS], uint64_t weight, bool odd,
                               bool *none)
{
    const uint64_t step = aq_worker_global(w, w->step), values = values_of(vectors);
    struct aq_sum_head head = {.magic = AQ_SUM_MAGIC,
                               .what = AQ_SUM_PART,
                               .flags = odd ? AQ_SUM_NOT_FINITE : 0,
                               .step = step,
                               .weight = weight,
                               .values = weight ? values : 0};
    struct talk talk = {.spans = {{&head, sizeof head}, vectors[0], vectors[1], vectors[2]}};
    talk.count = weight ? 1 + VECTORS : 1;
    AQ_TRY(carry(w, &talk, true));
    talk.count = 1;
    aq_heartbeat_phase(AQ_PHASE_SUMS);
    AQ_TRY(carry(w, &talk, false));
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
    return carry(w, &sum, false);
}

static enum aq_status middle_sums(struct aq_worker *w, bool has_part)
{
    struct span vectors[VECTORS];
    bool none;
    vectors_of(w, vectors);
    if (values_of(vectors) == 0) return AQ_OK;
    AQ_TRY(gather(w, has_part));
    const bool odd = has_part && !all_finite(vectors);
    AQ_TRY(exchange(w, vectors, has_part && !odd ? weight_of(w) : 0, odd, &none));
    if (!none && w->sums.copy) AQ_TRY(copy(w, aq_stage_gradients(w->stage), w->sums.copy));
    struct crossing out = crossing_of(w, none);
    AQ_TRY(cross(w, &out, true));
    w->times.reduce_bytes += none ? 0 : vectors[0].count + vectors[2].count;
    w->times.skipped = none;
    return has_part ? count_odd(w, odd) : AQ_OK;
}

enum aq_status aq_worker_sums(struct aq_worker *w)
{
    const uint64_t begin = aq_clock_ns();
    const bool has_part = aq_sampler_size(w->sampler, w->step) > 0;
    AQ_TRY(is_middle(w) ? middle_sums(w, has_part) : end_sums(w, has_part));
    const uint64_t end = aq_clock_ns();
    w->times.reduce_ns += end - begin;
    aq_trace_add(w->trace, "compute", "reduce", begin, end, (uint32_t)w->step, 0);
    return AQ_OK;
}
