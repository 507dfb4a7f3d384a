/*
 * net.c -- the world's network: streams between hosts, in shared memory.
 *
 * A segment sent at t by a host arrives at t' = max(t, line free) + bytes / rate + latency + jitter, never before one
 * that was sent earlier on its stream. While a line is cut nothing arrives, ends of streams neither; when it is mended,
 * all that was on its way arrives then (TCP has sent it again). A host without power is silent: its streams end for
 * nobody until it is back and answers with resets. One frame in flip_every gets a bit flipped, on links alone (ports
 * from flip_port_first on): the control plane has nothing to notice it by but TLS.
 */
#include <errno.h>
#include <poll.h>
#include <string.h>

#include "world.h"

static void set_bit(uint64_t set[SIM_TASK_WORDS], int task, bool on)
{
    const uint64_t bit = 1ULL << (task % 64);
    if (on)
        set[task / 64] |= bit;
    else
        set[task / 64] &= ~bit;
}

struct sim_sock *sim_sock_of(int process, int fd)
{
    if (fd < 0 || fd >= SIM_FDS) return NULL;
    const uint16_t sock = sim->process[process].sock[fd];
    return sock ? &sim->sock[sock - 1] : NULL;
}

int sim_sock_make(enum sim_kind kind, int host)
{
    for (int i = 0; i < SIM_SOCKS; i++) {
        if (sim->sock[i].refs > 0) continue;
        sim->sock[i] = (struct sim_sock){.kind = (uint32_t)kind, .conn = -1, .host = host};
        return i;
    }
    sim_die("too many sockets", SIM_SOCKS);
}

void sim_sock_put(int process, int fd, int sock, bool on_exec)
{
    if (fd < 0 || fd >= SIM_FDS) sim_die("a descriptor beyond the table", fd);
    sim->process[process].sock[fd] = (uint16_t)(sock + 1);
    sim->process[process].on_exec[fd] = on_exec;
    sim->sock[sock].refs++;
}

static struct sim_line *line_of(const struct sim_conn *conn, int to_side)
{
    return &sim->line[conn->host[1 - to_side]][conn->host[to_side]];
}

/* When what is due at at_ns is seen by this side: SIM_NEVER while the line is cut. */
static uint64_t seen_at(const struct sim_conn *conn, int side, uint64_t at_ns)
{
    if (conn->local || at_ns == SIM_NEVER) return at_ns;
    const struct sim_line *line = line_of(conn, side);
    if (line->cut) return SIM_NEVER;
    return at_ns > line->healed_ns ? at_ns : line->healed_ns;
}

/* Tasks that look at what this side reads, and those that wait to write to it. */
static void wake_half(struct sim_half *half)
{
    sim_wake_set(half->readers);
    sim_wake_set(half->writers);
}

static int conn_make(int from, int to, uint16_t from_port, uint16_t to_port)
{
    for (int i = 0; i < SIM_CONNS; i++) {
        struct sim_conn *conn = &sim->conn[i];
        if (conn->used) continue;
        *conn = (struct sim_conn){
            .used = true, .open = {true, true}, .host = {from, to}, .port = {from_port, to_port}, .local = from < 0};
        for (int s = 0; s < 2; s++)
            conn->half[s].fin_ns = conn->half[s].reset_ns = SIM_NEVER;
        return i;
    }
    sim_die("too many streams", SIM_CONNS);
}

/* This side is gone. What it never read is answered with a reset, as TCP does. */
static void conn_close(int number, int side)
{
    struct sim_conn *conn = &sim->conn[number];
    struct sim_half *theirs = &conn->half[1 - side], *mine = &conn->half[side];
    if (!conn->open[side]) return;
    conn->open[side] = false;
    sim_record(SIM_EVENT_CLOSE, (uint64_t)number, (uint64_t)side);
    const uint64_t at = sim->now_ns + (conn->local ? 0 : line_of(conn, 1 - side)->latency_ns);
    if (mine->used > 0 && theirs->reset_ns == SIM_NEVER)
        theirs->reset_ns = at > theirs->last_ns ? at : theirs->last_ns;
    else if (theirs->fin_ns == SIM_NEVER)
        theirs->fin_ns = at > theirs->last_ns ? at : theirs->last_ns;
    wake_half(theirs);
    wake_half(mine);
    if (!conn->open[0] && !conn->open[1]) conn->used = false;
}

static void sock_close(int number, bool silent)
{
    struct sim_sock *sock = &sim->sock[number];
    if (sock->kind == SIM_SOCK_STREAM && silent && !sim->conn[sock->conn].local) {
        sim->conn[sock->conn].silent[sock->side] = true;
    } else if (sock->kind == SIM_SOCK_STREAM) {
        conn_close(sock->conn, sock->side);
    }
    for (uint32_t i = 0; sock->kind == SIM_SOCK_DOOR && i < sock->waiting; i++) {
        struct sim_conn *conn = &sim->conn[sock->backlog[i].conn];
        if (conn->half[0].reset_ns == SIM_NEVER) conn->half[0].reset_ns = sim->now_ns;
        conn_close(sock->backlog[i].conn, 1);
    }
    sock->kind = SIM_SOCK_NEW;
}

void sim_sock_drop(int process, int fd)
{
    struct sim_process *p = &sim->process[process];
    if (fd < 0 || fd >= SIM_FDS || !p->sock[fd]) return;
    const int sock = p->sock[fd] - 1;
    p->sock[fd] = 0;
    if (--sim->sock[sock].refs == 0) sock_close(sock, false);
}

void sim_process_drop(int process, bool silent)
{
    struct sim_process *p = &sim->process[process];
    for (int fd = 0; fd < SIM_FDS; fd++) {
        if (!p->sock[fd]) continue;
        const int sock = p->sock[fd] - 1;
        p->sock[fd] = 0;
        if (--sim->sock[sock].refs == 0) sock_close(sock, silent);
    }
}

void sim_pair(int out[2])
{
    const int conn = conn_make(-1, -1, 0, 0);
    for (int s = 0; s < 2; s++) {
        out[s] = sim_sock_make(SIM_SOCK_STREAM, -1);
        sim->sock[out[s]].conn = conn;
        sim->sock[out[s]].side = s;
        sim->sock[out[s]].refs++; /* until it has a descriptor */
    }
    sim->sock[out[0]].refs = sim->sock[out[1]].refs = 0;
}

static struct sim_sock *acceptor_at(int host, uint16_t port)
{
    for (int i = 0; i < SIM_SOCKS; i++) {
        struct sim_sock *sock = &sim->sock[i];
        if (sock->refs > 0 && sock->kind == SIM_SOCK_DOOR && sock->host == host && sock->port == port) return sock;
    }
    return NULL;
}

int sim_listen(struct sim_sock *sock, int host, uint16_t port)
{
    while (port == 0 || (port == sim->port_next && acceptor_at(host, port)))
        port = sim->port_next++;
    if (acceptor_at(host, port)) return EADDRINUSE;
    sock->kind = SIM_SOCK_DOOR;
    sock->host = host;
    sock->port = port;
    return 0;
}

int sim_connect(struct sim_sock *sock, int from, int to, uint16_t port)
{
    struct sim_sock *acceptor = acceptor_at(to, port);
    const struct sim_line *there = &sim->line[from][to], *back = &sim->line[to][from];
    const int number = conn_make(from, to, sim->port_next++, port);
    struct sim_conn *conn = &sim->conn[number];
    sim->connects++;
    conn->up_ns = sim->now_ns + there->latency_ns + back->latency_ns;
    conn->refused = !acceptor || acceptor->waiting == SIM_BACKLOG;
    sock->kind = SIM_SOCK_STREAM;
    sock->conn = number;
    sock->side = 0;
    sim_record(SIM_EVENT_CONNECT, (uint64_t)to << 16 | port, conn->refused);
    if (conn->refused) {
        conn->open[1] = false;
        return 0;
    }
    acceptor->backlog[acceptor->waiting].conn = number;
    acceptor->backlog[acceptor->waiting++].at_ns = sim->now_ns + there->latency_ns;
    sim_wake_set(acceptor->readers);
    return 0;
}

/* When the oldest connection of a door is there. */
static uint64_t acceptor_at_ns(const struct sim_sock *acceptor)
{
    uint64_t first = SIM_NEVER;
    for (uint32_t i = 0; i < acceptor->waiting; i++) {
        const uint64_t at = seen_at(&sim->conn[acceptor->backlog[i].conn], 1, acceptor->backlog[i].at_ns);
        if (at < first) first = at;
    }
    return first;
}

int sim_accept(struct sim_sock *acceptor, int *conn)
{
    for (uint32_t i = 0; i < acceptor->waiting; i++) {
        if (seen_at(&sim->conn[acceptor->backlog[i].conn], 1, acceptor->backlog[i].at_ns) > sim->now_ns) continue;
        *conn = acceptor->backlog[i].conn;
        memmove(&acceptor->backlog[i], &acceptor->backlog[i + 1],
                (--acceptor->waiting - i) * sizeof acceptor->backlog[0]);
        return 0;
    }
    return EAGAIN;
}

/* When the connecting side learns how its connect has ended. */
static uint64_t up_at(const struct sim_conn *conn, int side)
{
    if (conn->local || side == 1 || conn->up) return 0;
    const uint64_t at = sim->line[conn->host[0]][conn->host[1]].cut ? SIM_NEVER : seen_at(conn, 0, conn->up_ns);
    if (at <= sim->now_ns) sim->conn[conn - sim->conn].up = true; /* for good, whatever happens to the line */
    return at;
}

static void note(uint64_t at_ns, uint64_t *next_ns)
{
    if (at_ns > sim->now_ns && at_ns < *next_ns) *next_ns = at_ns;
}

static short stream_ready(const struct sim_conn *conn, int side, short events, uint64_t *next_ns)
{
    const struct sim_half *mine = &conn->half[side], *theirs = &conn->half[1 - side];
    const uint64_t up = up_at(conn, side), now = sim->now_ns, reset = seen_at(conn, side, mine->reset_ns),
                   fin = seen_at(conn, side, mine->fin_ns);
    short got = 0;
    note(up, next_ns);
    if (up > now) return 0;
    if (conn->refused) return (short)(POLLERR | POLLHUP | (events & (POLLIN | POLLOUT)));
    note(reset, next_ns);
    if (reset <= now) return (short)(POLLERR | POLLHUP | (events & (POLLIN | POLLOUT)));
    if (mine->count > 0) {
        const uint64_t at = seen_at(conn, side, mine->segment[mine->first].at_ns);
        note(at, next_ns);
        if (at <= now) got = (short)(got | (events & POLLIN));
    }
    note(fin, next_ns);
    if (fin <= now) got = (short)(got | (events & (POLLIN | POLLRDHUP)));
    if (fin <= now && (conn->sent_fin[side] || !conn->open[1 - side])) got = (short)(got | POLLHUP);
    const bool room = theirs->used <= SIM_RING / 4 * 3 && theirs->count < SIM_SEGMENTS - 1;
    if (room || conn->sent_fin[side]) got = (short)(got | (events & POLLOUT));
    return got;
}

short sim_ready(const struct sim_sock *sock, short events, uint64_t *next_ns)
{
    if (sock->kind == SIM_SOCK_STREAM) return stream_ready(&sim->conn[sock->conn], sock->side, events, next_ns);
    if (sock->kind == SIM_SOCK_NEW) return POLLHUP;
    const uint64_t at = acceptor_at_ns(sock);
    note(at, next_ns);
    return at <= sim->now_ns ? (short)(events & POLLIN) : 0;
}

void sim_watch(struct sim_sock *sock, short events, int task, bool on)
{
    if (sock->kind == SIM_SOCK_DOOR) set_bit(sock->readers, task, on);
    if (sock->kind != SIM_SOCK_STREAM) return;
    struct sim_conn *conn = &sim->conn[sock->conn];
    set_bit(conn->half[sock->side].readers, task, on);
    if (events & POLLOUT) set_bit(conn->half[1 - sock->side].writers, task, on);
}

/* Of what arrives when: the line carries one thing after the other. */
static uint64_t arrival(const struct sim_conn *conn, int to_side, size_t bytes)
{
    struct sim_half *half = &sim->conn[conn - sim->conn].half[to_side];
    uint64_t at = sim->now_ns;
    if (!conn->local) {
        const struct sim_line *line = line_of(conn, to_side);
        if (half->busy_ns > at) at = half->busy_ns;
        at += bytes * line->byte_ps / 1000;
        half->busy_ns = at;
        at += line->latency_ns + sim_draw(line->jitter_ns);
    }
    if (at < half->last_ns) at = half->last_ns;
    half->last_ns = at;
    return at;
}

/* One frame in so many has a bit that is not what was sent. */
static void flip(const struct sim_conn *conn, int to_side, uint32_t from, size_t bytes)
{
    if (!sim->flip_every || conn->local || conn->port[1] < sim->flip_port_first || bytes == 0) return;
    if (sim_draw(sim->flip_every) != 0) return;
    const uint64_t bit = sim_draw(bytes * 8);
    sim->ring[conn - sim->conn][to_side][(from + bit / 8) % SIM_RING] ^= (uint8_t)(1u << (bit % 8));
    sim->flips++;
    sim_record(SIM_EVENT_FAULT, (uint64_t)(conn - sim->conn), bit);
}

/* The other end is closed: it answers with a reset, when it has heard. */
static ssize_t send_to_nobody(const struct sim_conn *conn, int side, size_t count)
{
    struct sim_half *mine = &sim->conn[conn - sim->conn].half[side];
    if (mine->reset_ns == SIM_NEVER) mine->reset_ns = sim->now_ns + 2 * line_of(conn, side)->latency_ns;
    sim_wake_set(mine->readers);
    return (ssize_t)count;
}

/* Bytes taken, or -errno. */
ssize_t sim_send(struct sim_sock *sock, const uint8_t *bytes, size_t count)
{
    if (sock->kind != SIM_SOCK_STREAM) return -ENOTCONN;
    struct sim_conn *conn = &sim->conn[sock->conn];
    const int to = 1 - sock->side;
    struct sim_half *half = &conn->half[to];
    if (up_at(conn, sock->side) > sim->now_ns) return -EAGAIN;
    if (conn->refused || seen_at(conn, sock->side, conn->half[sock->side].reset_ns) <= sim->now_ns) return -ECONNRESET;
    if (conn->sent_fin[sock->side] || (conn->local && !conn->open[to])) return -EPIPE;
    if (!conn->open[to]) return send_to_nobody(conn, sock->side, count);
    const size_t room = SIM_RING - half->used, takes = count < room ? count : room;
    if (takes == 0 || half->count == SIM_SEGMENTS) return -EAGAIN;
    const uint32_t begin = (half->head + half->used) % SIM_RING, front = SIM_RING - begin;
    uint8_t *ring = sim->ring[sock->conn][to];
    memcpy(ring + begin, bytes, takes < front ? takes : front);
    if (takes > front) memcpy(ring, bytes + front, takes - front);
    flip(conn, to, begin, takes);
    half->used += (uint32_t)takes;
    half->segment[(half->first + half->count++) % SIM_SEGMENTS] =
        (struct sim_segment){.at_ns = arrival(conn, to, takes), .bytes = (uint32_t)takes};
    sim->sent_bytes += takes;
    sim_record(SIM_EVENT_SEND, (uint64_t)sock->conn << 1 | (uint64_t)to, takes);
    sim_wake_set(half->readers);
    return (ssize_t)takes;
}

/* Bytes given, 0 at the end, or -errno. */
ssize_t sim_receive(struct sim_sock *sock, uint8_t *bytes, size_t count, bool peek)
{
    if (sock->kind != SIM_SOCK_STREAM) return -ENOTCONN;
    const struct sim_conn *conn = &sim->conn[sock->conn];
    struct sim_half *half = &sim->conn[sock->conn].half[sock->side];
    size_t given = 0;
    uint32_t head = half->head, first = half->first, left = half->count;
    if (up_at(conn, sock->side) > sim->now_ns) return -EAGAIN;
    if (conn->refused) return -ECONNREFUSED;
    while (left > 0 && given < count && seen_at(conn, sock->side, half->segment[first].at_ns) <= sim->now_ns) {
        struct sim_segment *segment = &half->segment[first];
        const size_t some = segment->bytes < count - given ? segment->bytes : count - given, front = SIM_RING - head;
        const uint8_t *ring = sim->ring[sock->conn][sock->side];
        memcpy(bytes + given, ring + head, some < front ? some : front);
        if (some > front) memcpy(bytes + given + front, ring, some - front);
        given += some;
        head = (head + (uint32_t)some) % SIM_RING;
        if (peek && some < segment->bytes) break;
        if (!peek) segment->bytes -= (uint32_t)some;
        if (peek || segment->bytes == 0) {
            first = (first + 1) % SIM_SEGMENTS;
            left--;
        }
    }
    if (!peek && given > 0) {
        half->head = head;
        half->first = first;
        half->count = left;
        half->used -= (uint32_t)given;
        sim_record(SIM_EVENT_RECEIVE, (uint64_t)sock->conn << 1 | (uint64_t)sock->side, given);
        sim_wake_set(half->writers);
    }
    if (given > 0 || count == 0) return (ssize_t)given;
    if (seen_at(conn, sock->side, half->reset_ns) <= sim->now_ns) return -ECONNRESET; /* behind what had come before */
    return half->count == 0 && seen_at(conn, sock->side, half->fin_ns) <= sim->now_ns ? 0 : -EAGAIN;
}

void sim_shut(struct sim_sock *sock)
{
    if (sock->kind != SIM_SOCK_STREAM) return;
    struct sim_conn *conn = &sim->conn[sock->conn];
    struct sim_half *theirs = &conn->half[1 - sock->side];
    if (conn->sent_fin[sock->side]) return;
    conn->sent_fin[sock->side] = true;
    if (theirs->fin_ns == SIM_NEVER) theirs->fin_ns = arrival(conn, 1 - sock->side, 0);
    wake_half(theirs);
    wake_half(&conn->half[sock->side]);
}

static bool between(const struct sim_conn *conn, int a, int b)
{
    return ((a < 0 || conn->host[0] == a) && (b < 0 || conn->host[1] == b)) ||
           ((a < 0 || conn->host[1] == a) && (b < 0 || conn->host[0] == b));
}

/* Both ends learn at once that their stream is gone: a box between them has forgotten it. */
void sim_reset_between(int a, int b)
{
    for (int i = 0; i < SIM_CONNS; i++) {
        struct sim_conn *conn = &sim->conn[i];
        if (!conn->used || conn->local || conn->refused || !between(conn, a, b)) continue;
        for (int s = 0; s < 2; s++) {
            if (conn->half[s].reset_ns == SIM_NEVER) conn->half[s].reset_ns = sim->now_ns;
            wake_half(&conn->half[s]);
        }
    }
}

void sim_cut(int from, int to, bool on)
{
    for (int a = 0; a < SIM_HOSTS; a++)
        for (int b = 0; b < SIM_HOSTS; b++) {
            if (a == b || (from >= 0 && from != a) || (to >= 0 && to != b)) continue;
            sim->line[a][b].cut = on;
            if (!on) sim->line[a][b].healed_ns = sim->now_ns + sim->line[a][b].latency_ns + sim_draw(200 * SIM_MS);
        }
    for (int i = 1; i < sim->task_end; i++)
        if (sim->task[i].state == SIM_WAITING && sim->task[i].why == SIM_FOR_POLL) sim_wake(i);
}

uint64_t sim_queued(const struct sim_sock *sock)
{
    return sock->kind == SIM_SOCK_STREAM ? sim->conn[sock->conn].half[1 - sock->side].used : 0;
}
