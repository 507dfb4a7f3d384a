/*
 * worker_ends.c -- split learning with both ends at the client: a tied table (worker_tied.c) goes from one worker to
 * the other through a socket in the run's folder, and nothing of it over a link.
 *
 * The first stage listens, the last connects. A message is a head and words of 4 bytes. While one waits for the other
 * the edges are pumped, so that a neighbour's end is seen.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "worker.h"

#define NAME "tied.socket"

enum { TURN_MS = 5, PIECE_BYTES = 4 << 20 };
static const uint64_t magic = UINT64_C(0x3164656974717161); /* "aqqtied1", little-endian */

struct head {
    uint64_t magic, run_id, step, words;
};

static bool is_first(const struct aq_worker *w)
{
    return w->position == 0;
}

/* A path of a socket has 108 bytes at most: through a descriptor of its folder it is always short. */
static enum aq_status address_of(int folder, struct sockaddr_un *out)
{
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    const int bytes = snprintf(out->sun_path, sizeof out->sun_path, "/proc/self/fd/%d/" NAME, folder);
    return bytes < (int)sizeof out->sun_path ? AQ_OK : AQ_INVAL;
}

static enum aq_status waited(struct aq_worker *w, uint64_t until, const char *what)
{
    AQ_TRY(aq_worker_pump(w));
    (void)poll(NULL, 0, TURN_MS);
    if (aq_clock_ns() < until) return AQ_OK;
    return aq_fail(AQ_TIMEOUT, "worker", "step %llu: the client's other end did not %s in time (tied head)",
                   (unsigned long long)w->step, what);
}

static enum aq_status listen_for(struct aq_worker *w, int folder, int *out)
{
    const uint64_t until = aq_clock_after(w->links.silence_ns);
    struct sockaddr_un address;
    AQ_TRY(address_of(folder, &address));
    AQ_TRY(aq_file_remove(w->checkpoints.run_folder, NAME)); /* of a run that was killed */
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd == -1) return aq_fail_errno("worker", "no socket for the client's other end");
    enum aq_status status = AQ_OK;
    int got = -1;
    if (bind(fd, (struct sockaddr *)&address, sizeof address) != 0 || listen(fd, 1) != 0)
        status = aq_fail_errno("worker", "the socket %s/" NAME, w->checkpoints.run_folder);
    while (status == AQ_OK && (got = accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) == -1)
        status = waited(w, until, "connect");
    if (status == AQ_OK) status = aq_file_remove(w->checkpoints.run_folder, NAME);
    close(fd);
    if (status == AQ_OK)
        *out = got;
    else if (got != -1)
        close(got);
    return status;
}

static enum aq_status connect_to(struct aq_worker *w, int folder, int *out)
{
    const uint64_t until = aq_clock_after(w->links.silence_ns);
    struct sockaddr_un address;
    AQ_TRY(address_of(folder, &address));
    for (;;) {
        const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd == -1) return aq_fail_errno("worker", "no socket for the client's other end");
        if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0) {
            *out = fd;
            return AQ_OK;
        }
        close(fd); /* it does not listen yet */
        AQ_TRY(waited(w, until, "listen"));
    }
}

/* All of it, either way, while edges are pumped. */
static enum aq_status carry(struct aq_worker *w, void *bytes, uint64_t count, bool sends)
{
    uint8_t *at = bytes;
    uint64_t moved_ns = aq_clock_ns();
    while (count > 0) {
        const size_t some = count < PIECE_BYTES ? (size_t)count : PIECE_BYTES;
        const ssize_t moved =
            sends ? send(w->pipeline.tied.fd, at, some, MSG_NOSIGNAL) : recv(w->pipeline.tied.fd, at, some, 0);
        if (moved > 0) {
            at += moved;
            count -= (uint64_t)moved;
            moved_ns = aq_clock_ns();
            continue;
        }
        if (moved == 0 || (errno != EAGAIN && errno != EINTR))
            return aq_fail(AQ_CLOSED, "worker", "step %llu: the client's other end has gone (tied head)",
                           (unsigned long long)w->step);
        struct pollfd fd = {.fd = w->pipeline.tied.fd, .events = sends ? POLLOUT : POLLIN};
        AQ_TRY(aq_worker_pump(w));
        (void)poll(&fd, 1, TURN_MS);
        if (aq_clock_ns() - moved_ns > w->links.silence_ns)
            return aq_fail(AQ_TIMEOUT, "worker", "step %llu: nothing came for %.0f s from the client's other end",
                           (unsigned long long)w->step, (double)w->links.silence_ns * 1e-9);
    }
    return AQ_OK;
}

enum aq_status aq_worker_ends_send(struct aq_worker *w, uint64_t words)
{
    struct head head = {.magic = magic, .run_id = w->checkpoints.run_id, .step = w->step, .words = words};
    AQ_TRY(carry(w, &head, sizeof head, true));
    return carry(w, w->pipeline.tied.host, words * sizeof(float), true);
}

enum aq_status aq_worker_ends_receive(struct aq_worker *w, uint64_t *words)
{
    const uint64_t most = aq_plan_tied_host_bytes(w->plan) / sizeof(float);
    struct head head;
    AQ_TRY(carry(w, &head, sizeof head, false));
    if (head.magic != magic || head.run_id != w->checkpoints.run_id || head.step != w->step || head.words > most)
        return aq_fail(AQ_PROTO, "worker", "step %llu: the client's other end is of another run or step (step %llu)",
                       (unsigned long long)w->step, (unsigned long long)head.step);
    AQ_TRY(carry(w, w->pipeline.tied.host, head.words * sizeof(float), false));
    *words = head.words;
    return AQ_OK;
}

enum aq_status aq_worker_ends_open(struct aq_worker *w)
{
    w->pipeline.tied.fd = -1;
    if (!aq_plan_tied_local(w->plan) || (!is_first(w) && w->position + 1 != w->P)) return AQ_OK;
    const int folder = open(w->checkpoints.run_folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (folder == -1) return aq_fail_errno("worker", "the run's folder %s", w->checkpoints.run_folder);
    const enum aq_status status =
        is_first(w) ? listen_for(w, folder, &w->pipeline.tied.fd) : connect_to(w, folder, &w->pipeline.tied.fd);
    close(folder);
    AQ_TRY(status);
    w->pipeline.tied.local = true;
    return aq_device_alloc(w->device, AQ_MEMORY_PINNED, aq_plan_tied_host_bytes(w->plan),
                           (void **)&w->pipeline.tied.host);
}

void aq_worker_ends_close(struct aq_worker *w)
{
    if (w->pipeline.tied.local && w->pipeline.tied.fd != -1) close(w->pipeline.tied.fd);
    w->pipeline.tied.local = false;
}
