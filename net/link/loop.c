/*
 * loop.c -- the net loop: one thread that owns every socket of a net and sleeps in the engine.
 *
 * Each turn: take commands, let every link do what it can without waiting (and say when it wants to be looked at
 * again), then submit and sleep until something is done, the next timer, or the wake-up. The work of one link in one
 * turn is bounded (net_limits.h), so that large frames of one link do not starve small ones of another.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "link_state.h"

static enum aq_status open_engine(struct aq_net *net)
{
    const char *forced = getenv("AQ_NET_ENGINE");
    const uint32_t ops = 2 * net->config.links_max + 1;
    if (forced && strcmp(forced, "uring") != 0 && strcmp(forced, "poll") != 0)
        return aq_fail(AQ_INVAL, "net", "AQ_NET_ENGINE=%s is unknown: use uring or poll", forced);
    if (!forced || strcmp(forced, "uring") == 0) {
        const enum aq_status status = aq_engine_uring.open(ops, &net->engine);
        net->engine_ops = &aq_engine_uring;
        if (status != AQ_NODEV) return status;
        if (forced) return aq_fail_errno("net", "AQ_NET_ENGINE=uring, but the kernel does not permit io_uring");
        aq_log("net", 1, "io_uring is not permitted here (%s): the net loop uses poll()", strerror(errno));
    }
    net->engine_ops = &aq_engine_poll;
    return aq_engine_poll.open(ops, &net->engine);
}

static void take_commands(struct aq_net *net)
{
    uint64_t token;
    while (aq_ring_pop(net->commands, &token)) {
        struct aq_link *link = (struct aq_link *)(uintptr_t)(token & ~(uint64_t)1);
        if (token & 1)
            aq_link_leave(link);
        else {
            AQ_ASSERT(net->work_count < net->config.links_max);
            net->work[net->work_count++] = link;
        }
    }
}

/* Links whose caller closed them and whose operations are back go from the list; the caller frees them. */
static void sweep(struct aq_net *net)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < net->work_count; i++) {
        struct aq_link *link = net->work[i];
        if (link->leave && link->state == LINK_ENDED) {
            atomic_store_explicit(&link->detached, true, memory_order_release); /* pairs with aq_net_detach */
            aq_eventcount_notify(net->call_eventcount);
        } else
            net->work[kept++] = link;
    }
    net->work_count = kept;
}

static void turn(struct aq_net *net)
{
    struct aq_io *done[AQ_NET_REAP];
    uint64_t next_ns = AQ_NEVER;
    take_commands(net);
    const uint64_t now_ns = aq_clock_ns();
    for (uint32_t i = 0; i < net->work_count; i++)
        aq_link_work(net->work[i], now_ns, &next_ns);
    sweep(net);
    const uint32_t count = net->engine_ops->wait(net->engine, next_ns, done, AQ_NET_REAP);
    for (uint32_t i = 0; i < count; i++) {
        if (done[i] != &net->wake_op) {
            aq_link_done(done[i]->owner, done[i]);
            continue;
        }
        uint64_t level;
        if (read(net->wake_fd, &level, sizeof level) == -1 && errno != EAGAIN)
            aq_log("net", 0, "the wake-up of the net loop cannot be read: %s", strerror(errno));
        /* Whoever pushes after this exchange writes to the event again; what was pushed before is seen next turn. */
        atomic_exchange_explicit(&net->wake_pending, false, memory_order_acq_rel);
        net->engine_ops->submit(net->engine, &net->wake_op);
    }
}

static void run(void *context)
{
    struct aq_net *net = context;
    const enum aq_status status = open_engine(net);
    atomic_store_explicit(&net->started, (int)status, memory_order_release); /* pairs with aq_net_open */
    aq_eventcount_notify(net->call_eventcount);
    if (status != AQ_OK) return;
    net->wake_op = (struct aq_io){.kind = AQ_IO_POLL, .fd = net->wake_fd, .events = POLLIN, .owner = net};
    net->engine_ops->submit(net->engine, &net->wake_op);
    /* Every link has been detached before stop is set. */
    while (!atomic_load_explicit(&net->stop, memory_order_acquire))
        turn(net);
    net->engine_ops->close(net->engine);
}

void aq_net_wake(struct aq_net *net)
{
    const uint64_t one = 1;
    if (atomic_exchange_explicit(&net->wake_pending, true, memory_order_acq_rel)) return;
    if (write(net->wake_fd, &one, sizeof one) == -1)
        aq_log("net", 0, "the net loop cannot be woken: %s", strerror(errno));
}

void aq_net_add(struct aq_net *net, struct aq_link *link)
{
    const bool pushed = aq_ring_push(net->commands, (uint64_t)(uintptr_t)link);
    AQ_ASSERT(pushed);
    aq_net_wake(net);
}

void aq_net_detach(struct aq_net *net, struct aq_link *link)
{
    const uint64_t deadline_ns = aq_clock_after(AQ_DETACH_NS);
    const bool pushed = aq_ring_push(net->commands, (uint64_t)(uintptr_t)link | 1);
    AQ_ASSERT(pushed);
    aq_net_wake(net);
    for (;;) {
        const uint32_t seen = aq_eventcount_read(net->call_eventcount);
        if (atomic_load_explicit(&link->detached, memory_order_acquire)) return; /* pairs with sweep */
        const enum aq_status status = aq_eventcount_wait(net->call_eventcount, seen, deadline_ns);
        AQ_ASSERT(status == AQ_OK);
    }
}

static enum aq_status start(struct aq_net *net)
{
    uint32_t slots = 4;
    while (slots < 4 * net->config.links_max)
        slots *= 2;
    AQ_TRY(aq_ring_open(slots, &net->commands));
    AQ_TRY(aq_eventcount_open(&net->call_eventcount));
    AQ_TRY(AQ_NEW(net->config.links_max, &net->work));
    net->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (net->wake_fd == -1) return aq_fail_errno("net", "eventfd for the net loop");
    AQ_TRY(aq_thread_open("aq-net", run, net, &net->thread));
    for (;;) {
        const uint32_t seen = aq_eventcount_read(net->call_eventcount);
        const int started = atomic_load_explicit(&net->started, memory_order_acquire); /* pairs with run */
        if (started >= 0) return (enum aq_status)started;
        const enum aq_status status = aq_eventcount_wait(net->call_eventcount, seen, aq_clock_after(AQ_DETACH_NS));
        AQ_ASSERT(status == AQ_OK);
    }
}

enum aq_status aq_net_open(const struct aq_net_config *config, struct aq_net **out)
{
    if (config->links_max == 0 || config->links_max > AQ_NET_LINKS_MAX)
        return aq_fail(AQ_INVAL, "net", "links_max %u: must be 1 to %d", config->links_max, AQ_NET_LINKS_MAX);
    struct aq_net *net;
    AQ_TRY(AQ_NEW(1, &net));
    net->config = *config;
    net->wake_fd = -1;
    atomic_init(&net->started, -1);
    const enum aq_status status = start(net);
    if (status != AQ_OK)
        aq_net_close(net);
    else
        *out = net;
    return status;
}

void aq_net_close(struct aq_net *net)
{
    if (!net) return;
    while (net->links)
        aq_link_close(net->links);
    while (net->listeners)
        aq_listener_close(net->listeners);
    if (net->thread) {
        atomic_store_explicit(&net->stop, true, memory_order_release); /* pairs with run */
        aq_net_wake(net);
    }
    aq_thread_close(net->thread);
    if (net->wake_fd != -1) close(net->wake_fd);
    aq_entropy_close(net->entropy);
    aq_free(net->work);
    aq_eventcount_close(net->call_eventcount);
    aq_ring_close(net->commands);
    aq_free(net);
}
