/*
 * split_sums.c -- global sampling: the middle stages of all clients' turns, which send their parts of a step and get
 * its sum (sum_line.h), over a Unix socket below output.path.
 *
 * One part is read at a time, in order of the clients' names, because that is the order of the sum: an early part waits
 * in its socket. A part counts when it is complete. Another thread adds it and writes the sum (split_adder.h);
 * meanwhile the loop reads no values. A repeated part (its turn resumed from a checkpoint) is read and
 * dropped: it has the same bits. A step is done when every client that the round still waits for has counted; one whose
 * turn is missed is not waited for any more.
 *
 * A client that stays silent for split.wait, while others wait for it, is late: its turn is missed. A repeated step
 * counts as a sign of life. Before its first part and after its last one, files cross its link, and it evaluates:
 * others wait for that by control.stall_max longer, and by the files' time at 1 Mbit/s, because only this limit ends an
 * endless turn: clients that are done with a round wait for its end, too.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "split_adder.h"
#include "split_private.h"

static const char *const AREA = "split", *const SOCKET = "sums.sock";
enum { PEERS_MAX = AQ_JOB_TURNS_MAX + 8, READ_BYTES = 4 << 20, DRAIN_BYTES = 256 << 10 };
_Static_assert(SPLIT_SUMS_POLLS == PEERS_MAX + 2, "a descriptor each, the one that listens, and the adder's");

/* A stage at the other end. */
struct peer {
    int fd;            /* -1: nobody */
    struct site *site; /* NULL: it has not sent its name                             */
    struct aq_sum_head head;
    uint32_t head_bytes; /* of it, that are here, with the name behind HELLO's        */
    struct aq_sum_hello hello;
    bool said;             /* the head of a part is here                                 */
    bool again;            /* of a step that is done, or in which it has counted         */
    uint64_t values_bytes; /* of the part's values, that are here                       */
    bool asks;             /* its part is here: it waits for the sum of head.step        */
    int file;              /* the answer under way; -1: none                             */
    uint64_t file_at, file_bytes;
};

struct sums {
    int listener;
    uint32_t round;      /* of which `sum` is; 0: none yet */
    uint64_t first, end; /* its steps              */
    uint64_t values;
    uint64_t said_ns; /* when the first part of the open step came; 0: none has */
    uint64_t open;    /* the step that is being summed */
    struct aq_split_sum *sum;
    struct aq_split_adder *adder; /* while it is busy, only files of the sum are read here */
    bool ends;                    /* it is busy with the end of the open step */
    char folder[AQ_RUN_PATH_BYTES];
    struct peer peers[PEERS_MAX];
    uint8_t drain[DRAIN_BYTES];
};

/* ---- the socket ---- */

/* A path of a socket has 108 bytes at most: through a descriptor of its folder it is always short. */
static enum aq_status listen_in(const char *folder, int *listener)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int at;
    AQ_TRY(aq_file_open_folder(folder, "", &at));
    snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/%s", at, SOCKET);
    enum aq_status status = aq_file_remove(folder, SOCKET);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (status == AQ_OK && (fd == -1 || bind(fd, (struct sockaddr *)&address, sizeof address) != 0 ||
                            fchmodat(at, SOCKET, 0600, 0) != 0 || listen(fd, PEERS_MAX) != 0))
        status = aq_fail_errno(AREA, "no socket for sums in %s", folder);
    close(at);
    if (status != AQ_OK && fd != -1) close(fd);
    if (status == AQ_OK) *listener = fd;
    return status;
}

static bool is_ours(int fd)
{
    struct ucred who;
    socklen_t bytes = sizeof who;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &bytes) == 0 && who.uid == geteuid();
}

static void peer_close(struct peer *peer)
{
    if (peer->fd != -1) close(peer->fd);
    if (peer->file != -1) close(peer->file);
    *peer = (struct peer){.fd = -1, .file = -1};
}

static void accept_some(struct sums *sums)
{
    for (int i = 0; i < PEERS_MAX; i++) {
        const int fd = accept4(sums->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        struct peer *place = NULL;
        if (fd == -1) return;
        for (int p = 0; p < PEERS_MAX && !place; p++)
            if (sums->peers[p].fd == -1) place = &sums->peers[p];
        if (!place || !is_ours(fd)) {
            close(fd);
            continue;
        }
        place->fd = fd;
    }
}

/* ---- whose part is next ---- */

/* A client that the round still waits for. */
static bool is_due(const struct server *server, const struct site *site)
{
    return site->round < server->round;
}

static bool has_counted(const struct server *server, const struct site *site)
{
    return site->counted == server->sums->open + 1;
}

/* The first by name that has not counted in the open step; NULL: all have. */
static struct site *next_part(const struct server *server)
{
    struct site *next = state_after(server, NULL);
    while (next && (!is_due(server, next) || has_counted(server, next)))
        next = state_after(server, next);
    return next;
}

/* ---- what comes ---- */

/* AQ_AGAIN: no more is here. AQ_CLOSED: it is gone. */
static enum aq_status read_some(int fd, void *to, uint64_t bytes, uint64_t *have)
{
    const ssize_t got = recv(fd, (uint8_t *)to + *have, bytes - *have, 0);
    if (got > 0) *have += (uint64_t)got;
    if (got > 0) return AQ_OK;
    return got < 0 && (errno == EAGAIN || errno == EINTR) ? AQ_AGAIN : AQ_CLOSED;
}

static enum aq_status wrong(const struct peer *peer, const char *what)
{
    return aq_fail(AQ_PROTO, AREA, "the stage of %s sent a part that %s (step %" PRIu64 ")",
                   peer->site ? peer->site->name : "nobody", what, peer->head.step);
}

static enum aq_status hear_hello(struct server *server, struct peer *peer)
{
    struct sums *sums = server->sums;
    struct site *site = NULL;
    peer->hello.name[AQ_SUM_NAME_BYTES - 1] = 0;
    for (uint32_t i = 0; i < server->site_count; i++)
        if (strcmp(server->sites[i].name, peer->hello.name) == 0) site = &server->sites[i];
    if (!site || site->pid == 0 || !is_due(server, site)) return wrong(peer, "belongs to no turn");
    if (peer->head.values != sums->values) return wrong(peer, "belongs to another network");
    for (int i = 0; i < PEERS_MAX; i++)
        if (sums->peers[i].site == site) peer_close(&sums->peers[i]); /* of the stage before this one */
    peer->site = site;
    peer->head_bytes = 0;
    site->sum_ns = aq_clock_ns();
    return AQ_OK;
}

/* The head of a part: of the open step, or of one that is done. */
static enum aq_status hear_head(struct server *server, struct peer *peer)
{
    struct sums *sums = server->sums;
    const struct aq_sum_head *head = &peer->head;
    if (head->magic != AQ_SUM_MAGIC || (peer->site ? AQ_SUM_PART : AQ_SUM_HELLO) != head->what)
        return wrong(peer, "is none");
    if (!peer->site) return AQ_OK;
    const uint64_t open = sums->open;
    const bool none = head->weight == 0;
    if (head->step < sums->first || head->step >= sums->end || head->step > open)
        return wrong(peer, "belongs to no open step");
    if (head->weight > UINT32_MAX || head->values != (none ? 0 : sums->values))
        return wrong(peer, "does not have the step's values");
    peer->said = true;
    peer->again = head->step < open || has_counted(server, peer->site);
    peer->values_bytes = 0;
    peer->site->sum_ns = aq_clock_ns();
    peer->site->summing = true;
    if (!peer->again && sums->said_ns == 0) sums->said_ns = peer->site->sum_ns;
    return AQ_OK;
}

/* All of a part is here. */
static void count(struct server *server, struct peer *peer)
{
    struct sums *sums = server->sums;
    if (!peer->again) {
        struct site *site = peer->site;
        if (peer->head.weight > 0) aq_split_adder_add(sums->adder, sums->sum, peer->head.weight);
        site->counted = sums->open + 1;
        if (peer->head.flags & AQ_SUM_NOT_FINITE)
            server_say(server, "step %" PRIu64 ": the gradients of %s are not finite: the step is without them",
                       peer->head.step + 1, site->name);
    }
    peer->said = false;
    peer->asks = true;
    peer->head_bytes = 0;
}

/* May it be read now? A part in order of names, when the one before it is added; what does not count at any time. */
static bool may_read(const struct server *server, const struct peer *peer)
{
    if (peer->fd == -1 || peer->asks) return false;
    if (!peer->said || peer->again) return true;
    return !aq_split_adder_busy(server->sums->adder) && peer->site == next_part(server);
}

/* Its head, and behind HELLO's the name. */
static enum aq_status read_head(struct server *server, struct peer *peer)
{
    const uint32_t head = sizeof peer->head, hello = head + sizeof peer->hello;
    uint64_t have = peer->head_bytes;
    if (have < head) {
        AQ_TRY(read_some(peer->fd, &peer->head, head, &have));
        peer->head_bytes = (uint32_t)have;
        return have == head ? hear_head(server, peer) : AQ_OK;
    }
    have -= head;
    AQ_TRY(read_some(peer->fd, &peer->hello, sizeof peer->hello, &have));
    peer->head_bytes = head + (uint32_t)have;
    return peer->head_bytes == hello ? hear_hello(server, peer) : AQ_OK;
}

static enum aq_status read_values(struct server *server, struct peer *peer)
{
    struct sums *sums = server->sums;
    const uint64_t bytes = peer->head.values * sizeof(float);
    uint64_t have = peer->values_bytes, none = 0;
    if (have < bytes && !peer->again) {
        AQ_TRY(read_some(peer->fd, aq_split_sum_room(sums->sum), bytes, &have));
    } else if (have < bytes) {
        const uint64_t left = bytes - have;
        AQ_TRY(read_some(peer->fd, sums->drain, left < DRAIN_BYTES ? left : DRAIN_BYTES, &none));
        have += none;
    }
    peer->values_bytes = have;
    peer->site->sum_ns = aq_clock_ns();
    if (have == bytes) count(server, peer);
    return AQ_OK;
}

/* A part that was begun counts before another's, but its site may have become one that is not waited for. */
static enum aq_status read_peer(struct server *server, struct peer *peer)
{
    enum aq_status status = AQ_OK;
    for (uint64_t i = 0; i < READ_BYTES / DRAIN_BYTES && status == AQ_OK && may_read(server, peer); i++) {
        if (peer->site && !is_due(server, peer->site)) return AQ_CLOSED;
        status = peer->said ? read_values(server, peer) : read_head(server, peer);
    }
    return status == AQ_AGAIN ? AQ_OK : status;
}

/* ---- the answers ---- */

/* AQ_CLOSED: it has disconnected, or its turn has ended. */
static enum aq_status answer(struct server *server, struct peer *peer)
{
    struct sums *sums = server->sums;
    if (!peer->asks || peer->head.step >= sums->open) return AQ_OK;
    if (peer->file == -1) {
        peer->file_at = 0;
        if (aq_split_sum_file(sums->sum, peer->head.step, &peer->file, &peer->file_bytes) != AQ_OK) {
            peer->file = -1;
            aq_error_clear();
            turn_miss(server, peer->site, "what the others have summed since its checkpoint is lost");
            return AQ_CLOSED;
        }
    }
    off_t at = (off_t)peer->file_at;
    const ssize_t sent = sendfile(peer->fd, peer->file, &at, READ_BYTES);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) return AQ_CLOSED;
    peer->file_at = (uint64_t)at;
    if (sent > 0) peer->site->sum_ns = aq_clock_ns();
    if (sent == 0 && peer->file_at < peer->file_bytes) return AQ_CLOSED; /* somebody has cut the file */
    if (peer->file_at < peer->file_bytes) return AQ_OK;
    close(peer->file);
    peer->file = -1;
    peer->asks = false;
    return AQ_OK;
}

/* ---- steps and rounds ---- */

/* The step of a client's newest checkpoint, in the steps of all. */
static uint64_t mark_of(const struct server *server, const struct site *site)
{
    return turn_shift(server, site) + state_mark(server, site);
}

/* The sum of the open step is in its file. */
static void step_done(struct server *server)
{
    struct sums *sums = server->sums;
    uint64_t needed = UINT64_MAX;
    sums->open = aq_split_sum_step(sums->sum);
    sums->said_ns = 0;
    for (uint32_t i = 0; i < server->site_count; i++) {
        const struct site *site = &server->sites[i];
        const uint64_t mark = is_due(server, site) ? site->until ? mark_of(server, site) : sums->first : UINT64_MAX;
        if (mark < needed) needed = mark;
    }
    if (needed != UINT64_MAX) aq_split_sum_forget(sums->sum, needed);
}

/* What the adder has done; and when all have counted, the step's end is its next work. */
static void add_some(struct server *server)
{
    struct sums *sums = server->sums;
    char why[AQ_SPLIT_TEXT_BYTES];
    const enum aq_status status = aq_split_adder_take(sums->adder, why);
    if (status != AQ_OK && status != AQ_AGAIN) {
        server_fails(server, why);
        return;
    }
    if (status == AQ_OK && sums->ends) step_done(server);
    if (status == AQ_OK) sums->ends = false;
    const bool began = sums->said_ns != 0;
    if (!began || sums->open >= sums->end || aq_split_adder_busy(sums->adder) || next_part(server)) return;
    sums->ends = true;
    aq_split_adder_done(sums->adder, sums->sum);
}

/* The time of its labels or its ends on a link of 1 Mbit/s. */
static uint64_t files_ns(const struct site *site)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < AQ_SPLIT_ENDS; i++)
        bytes += site->session.bytes_max[i];
    return bytes * 8000;
}

/* How long others wait for a silent client; AQ_NEVER: another limit applies. in_step: for a part of a step. */
static uint64_t patience_ns(struct server *server, const struct site *site, bool in_step)
{
    const uint64_t wait_ns = server->job->split.wait_ns, stall_ns = server->job->control.stall_ns_max;
    const struct sums *sums = server->sums;
    if (site->pid != 0 && site->summing && in_step) {
        bool held = false; /* by one before it, whose part is read first */
        for (int p = 0; p < PEERS_MAX; p++)
            held |= sums->peers[p].site == site && sums->peers[p].said && !sums->peers[p].again;
        return held && site != next_part(server) ? AQ_NEVER : wait_ns;
    }
    const bool has_turn = site->control && (site->offered || site->owed); /* who is away is split_turn.c's */
    return has_turn && stall_ns > 0 ? wait_ns + stall_ns + files_ns(site) : AQ_NEVER;
}

/* Does a client wait for the round's end? */
static bool some_wait(const struct server *server)
{
    bool any = false;
    for (uint32_t i = 0; i < server->site_count; i++)
        any |= server->sites[i].control && !is_due(server, &server->sites[i]);
    return any;
}

/* Ends the turn of a silent client for whose part, or end, others wait. One at a time: each may take a moment. */
static void look_for_late(struct server *server)
{
    struct sums *sums = server->sums;
    const uint64_t now = aq_clock_ns(), step = sums->open;
    const bool in_step = sums->said_ns != 0 && step < sums->end;
    if (!in_step && !some_wait(server)) return;
    if (aq_split_adder_busy(sums->adder)) return; /* what the others have sent waits for that */
    for (uint32_t i = 0; i < server->site_count; i++) {
        struct site *site = &server->sites[i];
        char why[112];
        if (!is_due(server, site) || (in_step && has_counted(server, site))) continue;
        const uint64_t most_ns = patience_ns(server, site, in_step);
        uint64_t since = site->sum_ns > sums->said_ns ? site->sum_ns : sums->said_ns;
        if (server->round_ns > since) since = server->round_ns;
        if (most_ns == AQ_NEVER || now < since + most_ns) continue;
        if (in_step)
            snprintf(why, sizeof why, "it is late: the others have waited for its part of step %" PRIu64 " (%s)",
                     step + 1, site->pid && site->summing ? "split.wait" : "split.wait and control.stall_max");
        else
            snprintf(why, sizeof why, "it is late: its turn does not end (split.wait and control.stall_max)");
        site->lates += !site->late;
        site->late = true;
        turn_miss(server, site, why);
        const uint64_t accept_paused_until_ns = aq_clock_ns() - now; /* in which nobody was heard */
        sums->said_ns += sums->said_ns ? accept_paused_until_ns : 0;
        for (uint32_t j = 0; j < server->site_count; j++)
            server->sites[j].sum_ns += server->sites[j].sum_ns ? accept_paused_until_ns : 0;
        return;
    }
}

static uint64_t values_of(const struct aq_plan *plan)
{
    uint64_t values = 0;
    for (uint32_t s = 0; s < plan->stage_count; s++)
        values += plan->stages[s].size.parameters;
    return values;
}

static void sum_close(struct sums *sums)
{
    aq_split_adder_wait(sums->adder);
    sums->ends = false;
    aq_split_sum_close(sums->sum);
    sums->sum = NULL;
}

/* Opens the sums of the present round. Without a connected client their size is unknown: later. */
static enum aq_status round_open(struct server *server)
{
    struct sums *sums = server->sums;
    const struct aq_plan *plan = NULL;
    if (sums->round == server->round) return AQ_OK;
    for (uint32_t i = 0; i < server->site_count && !plan; i++)
        plan = server->sites[i].job.plan;
    if (!plan) return AQ_OK;
    for (int i = 0; i < PEERS_MAX; i++)
        peer_close(&sums->peers[i]);
    sum_close(sums);
    const uint64_t steps = round_steps(server);
    sums->values = values_of(plan);
    sums->first = (server->round - 1) * steps;
    sums->end = sums->first + steps;
    AQ_TRY(state_path(server, sums->folder, "sums"));
    AQ_TRY(aq_run_make_folder(sums->folder));
    AQ_TRY(aq_split_sum_open(sums->folder, sums->values, sums->first, &sums->sum));
    for (uint32_t i = 0; i < server->site_count; i++) { /* after a loss of power checkpoints may be further */
        server->sites[i].counted = 0;
        if (is_due(server, &server->sites[i]) && server->sites[i].until)
            aq_split_sum_reach(sums->sum, mark_of(server, &server->sites[i]));
    }
    sums->open = aq_split_sum_step(sums->sum);
    sums->said_ns = 0;
    sums->round = server->round;
    return AQ_OK;
}

/* All that there is, also of a server before this one. */
void sums_forget(struct server *server)
{
    char folder[AQ_RUN_PATH_BYTES];
    if (server->sums) aq_split_adder_wait(server->sums->adder); /* it may be writing one */
    if (server->sums && state_path(server, folder, "sums") == AQ_OK) aq_split_sum_clear(folder);
}

/* ---- for the server's loop ---- */

enum aq_status sums_open(struct server *server)
{
    char folder[AQ_RUN_PATH_BYTES];
    if (server->job->split.mode != AQ_SPLIT_GLOBAL) return AQ_OK;
    AQ_TRY(AQ_NEW(1, &server->sums));
    server->sums->listener = -1;
    for (int i = 0; i < PEERS_MAX; i++)
        server->sums->peers[i] = (struct peer){.fd = -1, .file = -1};
    AQ_TRY(aq_split_adder_open(&server->sums->adder));
    AQ_TRY(state_path(server, folder, "."));
    return listen_in(folder, &server->sums->listener);
}

void sums_close(struct server *server)
{
    struct sums *sums = server->sums;
    if (!sums) return;
    for (int i = 0; i < PEERS_MAX; i++)
        peer_close(&sums->peers[i]);
    if (sums->listener != -1) {
        close(sums->listener);
        (void)aq_file_remove(server->job->output.path, SOCKET);
    }
    if (sums->adder) sum_close(sums);
    aq_split_adder_close(sums->adder);
    aq_free(sums);
    server->sums = NULL;
}

const struct site *sums_awaited(const struct server *server, uint64_t *step)
{
    const struct sums *sums = server->sums;
    if (!sums || !sums->sum || sums->round != server->round || sums->said_ns == 0 || sums->open >= sums->end)
        return NULL;
    *step = sums->open;
    return aq_split_adder_busy(sums->adder) ? NULL : next_part(server); /* the next part may be here, and waits */
}

bool sums_counted(const struct server *server, const struct site *site)
{
    return has_counted(server, site);
}

enum aq_status sums_path(const struct server *server, char out[AQ_RUN_PATH_BYTES])
{
    return state_path(server, out, "%s", SOCKET);
}

uint32_t sums_polls(struct server *server, struct pollfd *fds)
{
    struct sums *sums = server->sums;
    uint32_t count = 0;
    if (!sums || !sums->sum) return 0;
    fds[count++] = (struct pollfd){.fd = sums->listener, .events = POLLIN};
    if (aq_split_adder_busy(sums->adder))
        fds[count++] = (struct pollfd){.fd = aq_split_adder_fd(sums->adder), .events = POLLIN};
    for (int i = 0; i < PEERS_MAX; i++) {
        const struct peer *peer = &sums->peers[i];
        if (may_read(server, peer))
            fds[count++] = (struct pollfd){.fd = peer->fd, .events = POLLIN};
        else if (peer->fd != -1 && peer->asks && peer->head.step < sums->open)
            fds[count++] = (struct pollfd){.fd = peer->fd, .events = POLLOUT};
    }
    return count;
}

void sums_serve(struct server *server)
{
    struct sums *sums = server->sums;
    if (!sums || server->round == 0 || server->round > server->job->split.rounds || server->over) return;
    if (server->drawn < server->round) return; /* how many steps it has is not known */
    if (round_open(server) != AQ_OK) {
        server_fails(server, NULL);
        return;
    }
    if (!sums->sum) return;
    accept_some(sums);
    add_some(server);
    for (int i = 0; i < PEERS_MAX && !server->over; i++) {
        struct peer *peer = &sums->peers[i];
        if (peer->fd == -1) continue;
        enum aq_status status = read_peer(server, peer);
        if (status == AQ_OK) status = answer(server, peer);
        if (status != AQ_OK) peer_close(peer);
    }
    if (!server->over) add_some(server);
    if (!server->over) look_for_late(server);
}
