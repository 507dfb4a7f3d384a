/*
 * engine_poll.c -- the engine over poll(): for kernels and containers where io_uring is not permitted.
 *
 * An operation is tried when it is submitted and again whenever poll() reports its descriptor. Those that are done wait
 * in a list for the next `wait`. So they complete in the order of submission, and no link starves another.
 */
#include <errno.h>
#include <poll.h>
#include <string.h>

#include "engine.h"

struct aq_engine {
    uint32_t ops_max, busy_count, done_count;
    struct aq_io **busy; /* waiting for their fd              */
    struct aq_io **done; /* result is there, not yet reported */
    struct pollfd *fds;
};

static void place(struct aq_engine *engine, struct aq_arena *arena, uint32_t ops_max)
{
    engine->busy = aq_arena_take(arena, ops_max * sizeof *engine->busy);
    engine->done = aq_arena_take(arena, ops_max * sizeof *engine->done);
    engine->fds = aq_arena_take(arena, ops_max * sizeof *engine->fds);
}

static enum aq_status poll_open(uint32_t ops_max, struct aq_engine **out)
{
    struct aq_engine measured = {0};
    struct aq_arena arena = {0};
    void *memory;
    aq_arena_take(&arena, sizeof measured);
    place(&measured, &arena, ops_max);
    AQ_TRY(aq_alloc(arena.used, &memory));
    arena = (struct aq_arena){.base = memory, .bytes = arena.used};
    struct aq_engine *engine = aq_arena_take(&arena, sizeof *engine);
    place(engine, &arena, ops_max);
    engine->ops_max = ops_max;
    *out = engine;
    return AQ_OK;
}

static void poll_close(struct aq_engine *engine)
{
    aq_free(engine);
}

/* Try it now; true: result is set. revents: what poll() returned, 0 before the first poll. */
static bool attempt(struct aq_io *op, short revents)
{
    ssize_t n;
    if (op->kind == AQ_IO_POLL) {
        op->result = revents;
        return revents != 0;
    }
    if (op->kind == AQ_IO_RECEIVE)
        n = recvmsg(op->fd, &op->message, MSG_DONTWAIT);
    else
        n = sendmsg(op->fd, &op->message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n == -1 && (errno == EAGAIN || errno == EINTR)) return false;
    op->result = n == -1 ? -errno : (int)n;
    return true;
}

static void poll_submit(struct aq_engine *engine, struct aq_io *op)
{
    AQ_ASSERT(!op->busy);
    AQ_ASSERT(engine->busy_count + engine->done_count < engine->ops_max);
    op->busy = true;
    if (attempt(op, 0))
        engine->done[engine->done_count++] = op;
    else
        engine->busy[engine->busy_count++] = op;
}

static void poll_cancel(struct aq_engine *engine, struct aq_io *op)
{
    for (uint32_t i = 0; i < engine->busy_count; i++)
        if (engine->busy[i] == op) {
            memmove(engine->busy + i, engine->busy + i + 1, (engine->busy_count - i - 1) * sizeof *engine->busy);
            engine->busy_count--;
            op->result = -ECANCELED;
            engine->done[engine->done_count++] = op;
            return;
        }
}

static void sleep_and_attempt(struct aq_engine *engine, uint64_t deadline_ns)
{
    static const short EVENTS[] = {[AQ_IO_RECEIVE] = POLLIN, [AQ_IO_SEND] = POLLOUT};
    struct timespec left = {0}, *timeout = &left;
    const uint64_t now = aq_clock_ns();
    if (deadline_ns == AQ_NEVER)
        timeout = NULL;
    else if (engine->done_count == 0 && deadline_ns > now)
        left = (struct timespec){.tv_sec = (time_t)((deadline_ns - now) / 1000000000u),
                                 .tv_nsec = (long)((deadline_ns - now) % 1000000000u)};
    if (engine->done_count > 0) timeout = &left;
    for (uint32_t i = 0; i < engine->busy_count; i++) {
        struct aq_io *op = engine->busy[i];
        engine->fds[i] =
            (struct pollfd){.fd = op->fd, .events = op->kind == AQ_IO_POLL ? op->events : EVENTS[op->kind]};
    }
    if (ppoll(engine->fds, engine->busy_count, timeout, NULL) <= 0) return;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < engine->busy_count; i++) {
        struct aq_io *op = engine->busy[i];
        if (engine->fds[i].revents != 0 && attempt(op, engine->fds[i].revents))
            engine->done[engine->done_count++] = op;
        else
            engine->busy[kept++] = op;
    }
    engine->busy_count = kept;
}

static uint32_t poll_wait(struct aq_engine *engine, uint64_t deadline_ns, struct aq_io **done, uint32_t count)
{
    sleep_and_attempt(engine, deadline_ns);
    const uint32_t n = engine->done_count < count ? engine->done_count : count;
    for (uint32_t i = 0; i < n; i++) {
        done[i] = engine->done[i];
        done[i]->busy = false;
    }
    memmove(engine->done, engine->done + n, (engine->done_count - n) * sizeof *engine->done);
    engine->done_count -= n;
    return n;
}

const struct aq_engine_ops aq_engine_poll = {.name = "poll",
                                             .open = poll_open,
                                             .close = poll_close,
                                             .submit = poll_submit,
                                             .cancel = poll_cancel,
                                             .wait = poll_wait};
