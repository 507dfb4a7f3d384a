/*
 * transport_sim.c -- streams inside this process, by name, with a rate and a latency: no socket, no kernel buffers.
 *
 *     sim://name?rate_mbps=100&latency_ms=5      (both optional; those of the connector win over those of the listener)
 *
 * Each direction is a pipe: a ring of bytes, and a ring of chunks with the time until which their bytes are on the
 * wire. A chunk occupies the line for its bytes at the rate, one after the other, and arrives latency later. The writer
 * is held back when the line is 2 ms ahead, so that what is under way is bounded as with the kernel's pacing.
 *
 * Locking: one mutex a pair, held for a copy of at most a pipe; one for the table of names.
 */
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "net_limits.h"
#include "transport.h"

enum {
    PIPE_BYTES = 256 << 10,    /* and what the line holds on top                 */
    PIPE_BYTES_FREE = 4 << 20, /* the line without a rate, but with a latency    */
    PIPE_BYTES_MAX = 64 << 20,
    LINE_AHEAD_NS = 2000000,
    LINE_CHUNK_BYTES = 4096, /* the least that is put on the line at once      */
    DOOR_WAITING = 64        /* as TCP's backlog                               */
};

struct chunk {
    uint64_t end; /* of its last byte in the pipe's count of all bytes */
    uint64_t arrival_ns;
};

struct sim_pipe {
    uint8_t *bytes;
    uint64_t capacity, head, tail; /* counts of all bytes read and written */
    struct chunk chunks[AQ_SIM_CHUNKS];
    uint32_t chunk_head, chunk_tail;
    double ns_per_byte; /* 0: no rate */
    uint64_t latency_ns, line_free_ns;
    bool ended, deaf; /* the writer, the reader has gone */
    int readable_fd, writable_fd;
};

struct sim_pair {
    struct aq_mutex *mutex;
    uint32_t ends; /* still open */
    struct sim_pipe pipes[2];
};

struct sim_stream {
    struct aq_byte_stream stream;
    struct sim_pair *pair;
    struct sim_pipe *in, *out;
    uint64_t read_wake_ns, write_wake_ns;
    struct sim_stream *waiting; /* the next at the acceptor */
};

struct sim_acceptor {
    char name[128];
    struct sim_stream *first, *last;
    uint32_t count;
    int fd;
    double rate_mbps, latency_ms;
    struct sim_acceptor *next;
};

static const struct aq_byte_stream_ops SIM_OPS;
static _Atomic(struct aq_mutex *) table_mutex; /* opened by whoever comes first: release there, acquire everywhere */
static struct sim_acceptor *table;             /* under table_mutex */

static enum aq_status lock_table(void)
{
    struct aq_mutex *mutex = atomic_load_explicit(&table_mutex, memory_order_acquire);
    if (!mutex) {
        struct aq_mutex *mine;
        AQ_TRY(aq_mutex_open(&mine));
        if (atomic_compare_exchange_strong_explicit(&table_mutex, &mutex, mine, memory_order_acq_rel,
                                                    memory_order_acquire))
            mutex = mine;
        else
            aq_mutex_close(mine);
    }
    aq_mutex_lock(mutex);
    return AQ_OK;
}

static void unlock_table(void)
{
    aq_mutex_unlock(atomic_load_explicit(&table_mutex, memory_order_acquire));
}

static void signal_fd(int fd)
{
    const uint64_t one = 1;
    if (write(fd, &one, sizeof one) == -1) aq_log("net", 0, "an event of sim:// cannot be signaled");
}

static void clear_fd(int fd)
{
    uint64_t count;
    if (read(fd, &count, sizeof count) == -1) return; /* it was not notified */
}

static void free_pair(struct sim_pair *pair)
{
    for (int i = 0; i < 2; i++) {
        struct sim_pipe *pipe = &pair->pipes[i];
        aq_unmap(pipe->bytes, pipe->capacity);
        if (pipe->readable_fd > 0) close(pipe->readable_fd);
        if (pipe->writable_fd > 0) close(pipe->writable_fd);
    }
    aq_mutex_close(pair->mutex);
    aq_free(pair);
}

static enum aq_status open_pipe(struct sim_pipe *pipe, double rate_mbps, double latency_ms)
{
    void *memory;
    double line = rate_mbps * 1e6 / 8 * latency_ms * 1e-3;
    if (rate_mbps == 0 && latency_ms > 0) line = PIPE_BYTES_FREE;
    const uint64_t capacity = line < PIPE_BYTES_MAX ? PIPE_BYTES + (uint64_t)line : PIPE_BYTES_MAX;
    AQ_TRY(aq_map(capacity, &memory));
    pipe->bytes = memory;
    pipe->capacity = capacity;
    pipe->ns_per_byte = rate_mbps > 0 ? 8e3 / rate_mbps : 0;
    pipe->latency_ns = (uint64_t)(latency_ms * 1e6);
    pipe->readable_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    pipe->writable_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (pipe->readable_fd == -1 || pipe->writable_fd == -1) return aq_fail_errno("net", "eventfd for sim://");
    return AQ_OK;
}

static enum aq_status open_pair(double rate_mbps, double latency_ms, struct sim_pair **out)
{
    struct sim_pair *pair;
    AQ_TRY(AQ_NEW(1, &pair));
    enum aq_status status = aq_mutex_open(&pair->mutex);
    for (int i = 0; i < 2 && status == AQ_OK; i++)
        status = open_pipe(&pair->pipes[i], rate_mbps, latency_ms);
    if (status != AQ_OK)
        free_pair(pair);
    else
        *out = pair;
    return status;
}

static enum aq_status open_end(struct sim_pair *pair, int side, const char *name, struct sim_stream **out)
{
    struct sim_stream *sim;
    AQ_TRY(AQ_NEW(1, &sim));
    sim->stream.ops = &SIM_OPS;
    sim->stream.local = true;
    snprintf(sim->stream.name, sizeof sim->stream.name, "sim://%.80s", name);
    sim->pair = pair;
    sim->out = &pair->pipes[side];
    sim->in = &pair->pipes[1 - side];
    pair->ends++;
    *out = sim;
    return AQ_OK;
}

static enum aq_status sim_listen(struct aq_acceptor *acceptor)
{
    double rate_mbps, latency_ms;
    AQ_TRY(aq_address_number(&acceptor->address, "rate_mbps", 0, &rate_mbps));
    AQ_TRY(aq_address_number(&acceptor->address, "latency_ms", 0, &latency_ms));
    struct sim_acceptor *mine;
    AQ_TRY(AQ_NEW(1, &mine));
    memcpy(mine->name, acceptor->address.host, sizeof mine->name);
    mine->rate_mbps = rate_mbps;
    mine->latency_ms = latency_ms;
    mine->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    enum aq_status status =
        mine->fd == -1 ? aq_fail_errno("net", "eventfd for '%s'", acceptor->address.whole) : lock_table();
    if (status == AQ_OK) {
        for (const struct sim_acceptor *at = table; at; at = at->next)
            if (strcmp(at->name, mine->name) == 0)
                status = aq_fail(AQ_REFUSED, "net",
                                 "cannot listen at '%s': another listener of this process has this address",
                                 acceptor->address.whole);
        if (status == AQ_OK) {
            mine->next = table;
            table = mine;
        }
        unlock_table();
    }
    if (status != AQ_OK) {
        if (mine->fd != -1) close(mine->fd);
        aq_free(mine);
        return status;
    }
    acceptor->state = mine;
    acceptor->fd = mine->fd;
    return AQ_OK;
}

static enum aq_status sim_accept(struct aq_acceptor *acceptor, struct aq_byte_stream **out)
{
    struct sim_acceptor *mine = acceptor->state;
    AQ_TRY(lock_table());
    struct sim_stream *sim = mine->first;
    if (sim) {
        mine->first = sim->waiting;
        mine->count--;
    } else
        clear_fd(mine->fd);
    unlock_table();
    if (!sim) return AQ_AGAIN;
    *out = &sim->stream;
    return AQ_OK;
}

static void sim_close_acceptor(struct aq_acceptor *acceptor)
{
    struct sim_acceptor *mine = acceptor->state;
    struct aq_byte_stream *stream;
    while (sim_accept(acceptor, &stream) == AQ_OK)
        aq_byte_stream_close(stream);
    if (lock_table() != AQ_OK) return;
    struct sim_acceptor **at = &table;
    while (*at != mine)
        at = &(*at)->next;
    *at = mine->next;
    unlock_table();
    while (mine->first) { /* who came between the two locks */
        struct sim_stream *late = mine->first;
        mine->first = late->waiting;
        aq_byte_stream_close(&late->stream);
    }
    close(mine->fd);
    aq_free(mine);
}

/* Under the table's lock: both ends of a new pair, the other one waiting at the acceptor. */
static enum aq_status knock(struct sim_acceptor *at, const struct aq_address *address, struct aq_byte_stream **out)
{
    double rate_mbps, latency_ms;
    struct sim_pair *pair;
    struct sim_stream *mine, *theirs;
    if (at->count == DOOR_WAITING) return AQ_REFUSED;
    AQ_TRY(aq_address_number(address, "rate_mbps", at->rate_mbps, &rate_mbps));
    AQ_TRY(aq_address_number(address, "latency_ms", at->latency_ms, &latency_ms));
    AQ_TRY(open_pair(rate_mbps, latency_ms, &pair));
    enum aq_status status = open_end(pair, 0, address->host, &mine);
    if (status == AQ_OK) {
        status = open_end(pair, 1, address->host, &theirs);
        if (status != AQ_OK) aq_free(mine);
    }
    if (status != AQ_OK) {
        free_pair(pair);
        return status;
    }
    if (at->first)
        at->last->waiting = theirs;
    else
        at->first = theirs;
    at->last = theirs;
    at->count++;
    signal_fd(at->fd);
    *out = &mine->stream;
    return AQ_OK;
}

static enum aq_status sim_connect(const struct aq_address *address, uint32_t attempt, bool paced,
                                  struct aq_byte_stream **out)
{
    enum aq_status status = AQ_REFUSED;
    (void)attempt;
    (void)paced;
    AQ_TRY(lock_table());
    for (struct sim_acceptor *at = table; at; at = at->next)
        if (strcmp(at->name, address->host) == 0) status = knock(at, address, out);
    unlock_table();
    return status;
}

static enum aq_status sim_connected(struct aq_byte_stream *stream)
{
    (void)stream;
    return AQ_OK;
}

/* Bytes of the pipe that have arrived; *wake_ns: when the next ones will. */
static uint64_t arrived(struct sim_pipe *pipe, uint64_t now_ns, uint64_t *wake_ns)
{
    uint64_t end = pipe->head;
    *wake_ns = AQ_NEVER;
    for (uint32_t i = pipe->chunk_head; i != pipe->chunk_tail; i++) {
        const struct chunk *chunk = &pipe->chunks[i % AQ_SIM_CHUNKS];
        if (chunk->arrival_ns > now_ns) {
            *wake_ns = chunk->arrival_ns;
            break;
        }
        end = chunk->end;
    }
    return end - pipe->head;
}

static void copy_out(struct sim_pipe *pipe, uint8_t *to, size_t bytes)
{
    const size_t at = pipe->head % pipe->capacity;
    const size_t first = bytes < pipe->capacity - at ? bytes : pipe->capacity - at;
    memcpy(to, pipe->bytes + at, first);
    memcpy(to + first, pipe->bytes, bytes - first);
    pipe->head += bytes;
    while (pipe->chunk_head != pipe->chunk_tail && pipe->chunks[pipe->chunk_head % AQ_SIM_CHUNKS].end <= pipe->head)
        pipe->chunk_head++;
}

static enum aq_status sim_read(struct aq_byte_stream *stream, const struct iovec *iov, int count, size_t *got)
{
    struct sim_stream *sim = (struct sim_stream *)stream;
    struct sim_pipe *pipe = sim->in;
    enum aq_status status = AQ_OK;
    aq_mutex_lock(sim->pair->mutex);
    uint64_t ready = arrived(pipe, aq_clock_ns(), &sim->read_wake_ns);
    if (ready == 0) {
        status = pipe->ended && pipe->head == pipe->tail ? AQ_CLOSED : AQ_AGAIN;
        clear_fd(pipe->readable_fd);
    } else {
        size_t total = 0;
        for (int i = 0; i < count && ready > 0; i++) {
            const size_t part = iov[i].iov_len < ready ? iov[i].iov_len : ready;
            copy_out(pipe, iov[i].iov_base, part);
            ready -= part;
            total += part;
        }
        *got = total;
        signal_fd(pipe->writable_fd);
    }
    aq_mutex_unlock(sim->pair->mutex);
    return status;
}

/* How many bytes the line and the pipe take now; 0: *wake_ns is the time to ask again (or ask when the reader has
 * read). */
static uint64_t line_room(struct sim_pipe *pipe, uint64_t now_ns, uint64_t *wake_ns)
{
    uint64_t room = pipe->capacity - (pipe->tail - pipe->head);
    *wake_ns = AQ_NEVER;
    if (pipe->chunk_tail - pipe->chunk_head == AQ_SIM_CHUNKS) return 0;
    if (pipe->ns_per_byte > 0) {
        const uint64_t chunk = (uint64_t)(LINE_AHEAD_NS / pipe->ns_per_byte);
        const uint64_t most = chunk > LINE_CHUNK_BYTES ? chunk : LINE_CHUNK_BYTES;
        if (room > most) room = most;
        if (pipe->line_free_ns > now_ns + LINE_AHEAD_NS) {
            *wake_ns = pipe->line_free_ns - LINE_AHEAD_NS;
            return 0;
        }
    }
    return room;
}

static void copy_in(struct sim_pipe *pipe, const uint8_t *from, size_t bytes)
{
    const size_t at = pipe->tail % pipe->capacity;
    const size_t first = bytes < pipe->capacity - at ? bytes : pipe->capacity - at;
    memcpy(pipe->bytes + at, from, first);
    memcpy(pipe->bytes, from + first, bytes - first);
    pipe->tail += bytes;
}

static enum aq_status sim_write(struct aq_byte_stream *stream, const struct iovec *iov, int count, size_t *put)
{
    struct sim_stream *sim = (struct sim_stream *)stream;
    struct sim_pipe *pipe = sim->out;
    enum aq_status status = AQ_OK;
    aq_mutex_lock(sim->pair->mutex);
    const uint64_t now_ns = aq_clock_ns();
    uint64_t room = line_room(pipe, now_ns, &sim->write_wake_ns);
    if (pipe->deaf)
        status = AQ_CLOSED;
    else if (room == 0) {
        status = AQ_AGAIN;
        clear_fd(pipe->writable_fd);
    } else {
        size_t total = 0;
        for (int i = 0; i < count && room > 0; i++) {
            const size_t part = iov[i].iov_len < room ? iov[i].iov_len : room;
            copy_in(pipe, iov[i].iov_base, part);
            room -= part;
            total += part;
        }
        const uint64_t begin = pipe->line_free_ns > now_ns ? pipe->line_free_ns : now_ns;
        pipe->line_free_ns = begin + (uint64_t)(pipe->ns_per_byte * (double)total);
        pipe->chunks[pipe->chunk_tail++ % AQ_SIM_CHUNKS] =
            (struct chunk){.end = pipe->tail, .arrival_ns = pipe->line_free_ns + pipe->latency_ns};
        *put = total;
        signal_fd(pipe->readable_fd);
    }
    aq_mutex_unlock(sim->pair->mutex);
    return status;
}

static void sim_wait(struct aq_byte_stream *stream, bool write, struct aq_byte_stream_wait *out)
{
    const struct sim_stream *sim = (const struct sim_stream *)stream;
    *out = (struct aq_byte_stream_wait){.fd = write ? sim->out->writable_fd : sim->in->readable_fd,
                                        .events = POLLIN,
                                        .wake_ns = write ? sim->write_wake_ns : sim->read_wake_ns};
}

static enum aq_status sim_pace(struct aq_byte_stream *stream, double rate_mbps)
{
    struct sim_stream *sim = (struct sim_stream *)stream;
    const double asked = 8e3 / rate_mbps;
    aq_mutex_lock(sim->pair->mutex);
    if (asked > sim->out->ns_per_byte) sim->out->ns_per_byte = asked;
    aq_mutex_unlock(sim->pair->mutex);
    return AQ_OK;
}

static double sim_measure(struct aq_byte_stream *stream)
{
    (void)stream;
    return 0;
}

static void sim_path(struct aq_byte_stream *stream, struct aq_path *out)
{
    *out = (struct aq_path){.round_trip_ns = 2 * ((struct sim_stream *)stream)->out->latency_ns, .steady = true};
}

static enum aq_status sim_congestion(struct aq_byte_stream *stream, const char *name)
{
    (void)stream, (void)name;
    return AQ_OK;
}

static void sim_shut(struct aq_byte_stream *stream)
{
    struct sim_stream *sim = (struct sim_stream *)stream;
    aq_mutex_lock(sim->pair->mutex);
    sim->out->ended = true;
    signal_fd(sim->out->readable_fd);
    aq_mutex_unlock(sim->pair->mutex);
}

static void sim_close(struct aq_byte_stream *stream)
{
    struct sim_stream *sim = (struct sim_stream *)stream;
    struct sim_pair *pair = sim->pair;
    aq_mutex_lock(pair->mutex);
    sim->out->ended = sim->in->deaf = true;
    signal_fd(sim->out->readable_fd);
    signal_fd(sim->in->writable_fd);
    const bool last = --pair->ends == 0;
    aq_mutex_unlock(pair->mutex);
    if (last) free_pair(pair);
    aq_free(sim);
}

static const struct aq_byte_stream_ops SIM_OPS = {
    .connected = sim_connected,
    .read = sim_read,
    .write = sim_write,
    .wait = sim_wait,
    .direct = aq_filter_direct,
    .pace = sim_pace,
    .measure = sim_measure,
    .path = sim_path,
    .congestion = sim_congestion,
    .shut = sim_shut,
    .close = sim_close,
};

const struct aq_transport aq_transport_sim = {
    .scheme = "sim", .listen = sim_listen, .accept = sim_accept, .shut = sim_close_acceptor, .connect = sim_connect};
