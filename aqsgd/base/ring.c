/*
 * ring.c -- the single-producer single-consumer ring and the event count.
 *
 * Only the consumer writes head, only the producer tail; each has its own cache line. An event count is a 32-bit count
 * that sleepers wait on by futex: notify adds one and wakes; waiting re-checks the count in the kernel, so a
 * notification between "look" and "sleep" is never lost.
 */
#include "aqsgd/base/ring.h"

#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "aqsgd/base/clock.h"
#include "aqsgd/base/memory.h"

struct aq_ring {
    uint32_t mask;
    uint8_t pad0[60];
    atomic_uint head; /* next to pop: release in pop, acquire in push   */
    uint8_t pad1[60];
    atomic_uint tail; /* next to push: release in push, acquire in pop  */
    uint8_t pad2[60];
    uint64_t tokens[];
};

enum aq_status aq_ring_open(uint32_t slots, struct aq_ring **out)
{
    if (slots == 0 || slots > 65536 || (slots & (slots - 1)) != 0)
        return aq_fail(AQ_INVAL, "ring", "%u slots: must be a power of two up to 65536", slots);
    void *memory;
    AQ_TRY(aq_alloc(sizeof(struct aq_ring) + slots * sizeof(uint64_t), &memory));
    struct aq_ring *ring = memory;
    ring->mask = slots - 1;
    *out = ring;
    return AQ_OK;
}

void aq_ring_close(struct aq_ring *ring)
{
    aq_free(ring);
}

bool aq_ring_push(struct aq_ring *ring, uint64_t token)
{
    const unsigned tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);
    const unsigned head = atomic_load_explicit(&ring->head, memory_order_acquire); /* pairs with pop's release */
    if (tail - head > ring->mask) return false;
    ring->tokens[tail & ring->mask] = token;
    atomic_store_explicit(&ring->tail, tail + 1, memory_order_release); /* pairs with pop's acquire */
    return true;
}

bool aq_ring_pop(struct aq_ring *ring, uint64_t *token)
{
    const unsigned head = atomic_load_explicit(&ring->head, memory_order_relaxed);
    const unsigned tail = atomic_load_explicit(&ring->tail, memory_order_acquire); /* pairs with push's release */
    if (head == tail) return false;
    *token = ring->tokens[head & ring->mask];
    atomic_store_explicit(&ring->head, head + 1, memory_order_release); /* pairs with push's acquire */
    return true;
}

uint32_t aq_ring_count(const struct aq_ring *ring)
{
    const unsigned tail = atomic_load_explicit(&ring->tail, memory_order_acquire);
    return tail - atomic_load_explicit(&ring->head, memory_order_acquire);
}

struct aq_eventcount {
    atomic_uint count;    /* release in ring, acquire in count                           */
    atomic_uint sleepers; /* seq_cst with count: a ringer that sees 0 has been seen by the sleeper's re-check */
};

enum aq_status aq_eventcount_open(struct aq_eventcount **out)
{
    return AQ_NEW(1, out);
}

void aq_eventcount_close(struct aq_eventcount *eventcount)
{
    aq_free(eventcount);
}

void aq_eventcount_notify(struct aq_eventcount *eventcount)
{
    if (!eventcount) return;
    atomic_fetch_add_explicit(&eventcount->count, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&eventcount->sleepers, memory_order_seq_cst) == 0) return;
    syscall(SYS_futex, &eventcount->count, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

uint32_t aq_eventcount_read(const struct aq_eventcount *eventcount)
{
    return atomic_load_explicit(&eventcount->count, memory_order_acquire);
}

enum aq_status aq_eventcount_wait(struct aq_eventcount *eventcount, uint32_t seen, uint64_t deadline_ns)
{
    while (atomic_load_explicit(&eventcount->count, memory_order_acquire) == seen) {
        struct timespec left, *timeout = NULL;
        if (deadline_ns != AQ_NEVER) {
            const uint64_t now = aq_clock_ns();
            if (now >= deadline_ns) return AQ_TIMEOUT;
            left.tv_sec = (time_t)((deadline_ns - now) / 1000000000u);
            left.tv_nsec = (long)((deadline_ns - now) % 1000000000u);
            timeout = &left;
        }
        atomic_fetch_add_explicit(&eventcount->sleepers, 1, memory_order_seq_cst);
        syscall(SYS_futex, &eventcount->count, FUTEX_WAIT_PRIVATE, seen, timeout, NULL, 0);
        atomic_fetch_sub_explicit(&eventcount->sleepers, 1, memory_order_seq_cst);
    }
    return AQ_OK;
}
