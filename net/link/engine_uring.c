/*
 * engine_uring.c -- the engine over io_uring: one system call submits what is ready and sleeps for what comes back.
 *
 * Deferred task work (Linux 6.1) is asked for first, so that completions run when this thread waits and nowhere else;
 * older kernels get a plain ring. The submission queue is flushed when it is full, the completion queue is twice as
 * large as all operations and their cancellations together, so that nothing overflows.
 */
#include <errno.h>
#include <liburing.h>
#include <string.h>

#include "engine.h"

struct aq_engine {
    struct io_uring ring;
    uint32_t ops_max, busy_count;
};

static enum aq_status uring_open(uint32_t ops_max, struct aq_engine **out)
{
    uint32_t entries = 16;
    while (entries < ops_max * 2 && entries < 4096)
        entries *= 2;
    struct aq_engine *engine;
    AQ_TRY(AQ_NEW(1, &engine));
    int error = io_uring_queue_init(entries, &engine->ring, IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN);
    if (error == -EINVAL) error = io_uring_queue_init(entries, &engine->ring, 0);
    if (error == 0 && !(engine->ring.features & IORING_FEAT_EXT_ARG)) { /* no waiting with a deadline before 5.11 */
        io_uring_queue_exit(&engine->ring);
        error = -ENOSYS;
    }
    if (error != 0) {
        aq_free(engine);
        errno = -error;
        return AQ_NODEV;
    }
    engine->ops_max = ops_max;
    *out = engine;
    return AQ_OK;
}

static void uring_close(struct aq_engine *engine)
{
    io_uring_queue_exit(&engine->ring);
    aq_free(engine);
}

static struct io_uring_sqe *next_sqe(struct aq_engine *engine)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&engine->ring);
    if (!sqe) {
        io_uring_submit(&engine->ring);
        sqe = io_uring_get_sqe(&engine->ring);
    }
    AQ_ASSERT(sqe != NULL);
    return sqe;
}

static void uring_submit(struct aq_engine *engine, struct aq_io *op)
{
    AQ_ASSERT(!op->busy);
    AQ_ASSERT(engine->busy_count < engine->ops_max);
    struct io_uring_sqe *sqe = next_sqe(engine);
    if (op->kind == AQ_IO_RECEIVE)
        io_uring_prep_recvmsg(sqe, op->fd, &op->message, 0);
    else if (op->kind == AQ_IO_SEND)
        io_uring_prep_sendmsg(sqe, op->fd, &op->message, MSG_NOSIGNAL);
    else
        io_uring_prep_poll_add(sqe, op->fd, (unsigned)op->events);
    io_uring_sqe_set_data(sqe, op);
    op->busy = true;
    engine->busy_count++;
}

static void uring_cancel(struct aq_engine *engine, struct aq_io *op)
{
    struct io_uring_sqe *sqe = next_sqe(engine);
    io_uring_prep_cancel(sqe, op, 0);
    io_uring_sqe_set_data(sqe, NULL); /* the cancellation's completion is ignored: the operation's follows */
}

static uint32_t uring_wait(struct aq_engine *engine, uint64_t deadline_ns, struct aq_io **done, uint32_t count)
{
    struct io_uring_cqe *cqe;
    struct __kernel_timespec left = {0}, *timeout = NULL;
    if (deadline_ns != AQ_NEVER) {
        const uint64_t now = aq_clock_ns();
        const uint64_t ns = deadline_ns > now ? deadline_ns - now : 0;
        left.tv_sec = (long long)(ns / 1000000000u);
        left.tv_nsec = (long long)(ns % 1000000000u);
        timeout = &left;
    }
    /* -ETIME, -EINTR and -EAGAIN are no trouble: what has come back is looked at below in any case. */
    io_uring_submit_and_wait_timeout(&engine->ring, &cqe, 1, timeout, NULL);
    uint32_t n = 0, seen = 0;
    unsigned head;
    io_uring_for_each_cqe(&engine->ring, head, cqe)
    {
        if (n == count) break;
        seen++;
        struct aq_io *op = io_uring_cqe_get_data(cqe);
        if (!op) continue;
        op->result = cqe->res;
        op->busy = false;
        done[n++] = op;
    }
    io_uring_cq_advance(&engine->ring, seen);
    engine->busy_count -= n;
    return n;
}

const struct aq_engine_ops aq_engine_uring = {.name = "uring",
                                              .open = uring_open,
                                              .close = uring_close,
                                              .submit = uring_submit,
                                              .cancel = uring_cancel,
                                              .wait = uring_wait};
