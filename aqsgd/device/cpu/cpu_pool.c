/*
 * cpu_pool.c -- threads that sleep until there are pieces, and take them one by one.
 *
 * The ticket is one 64-bit word: | generation 24 | pieces 20 | next 20 |. A piece is claimed by compare-and-swap of
 * next+1, so that a claim is always one of the job whose count it was compared with. run and context are written before
 * the ticket and stay until `left` is 0, and a claimed piece keeps `left` above 0: whoever holds a claim reads the
 * right job.
 *
 * A thread out of work looks at the ticket for a few microseconds (the next phase of a product follows that fast; a
 * wake by the kernel costs more than that), then sleeps on an event count.
 */
#include "cpu_pool.h"

#include <stdatomic.h>

#include "aqsgd/device.h"

enum {
    INDEX_BITS = 20,      /* pieces of one hand-out; more are handed out in several rounds                        */
    LOOKS = 400,          /* pauses of about 10 to 40 ns each before a thread sleeps: below 20 microseconds */
    SLEEP_NS = 1000000000 /* every wait has a deadline: look again once a second                                  */
};
#define INDEX_MASK (((uint64_t)1 << INDEX_BITS) - 1)

struct worker {
    struct cpu_pool *pool;
    struct aq_thread *thread;
    uint32_t index;
};

struct cpu_pool {
    uint32_t threads;
    atomic_uint_fast64_t ticket; /* release in start, acquire in claim                                      */
    uint8_t pad0[56];
    atomic_uint_fast64_t left; /* pieces not finished: release in finish, acquire in the caller             */
    uint8_t pad1[56];
    atomic_bool stop; /* release in close, acquire in worker_main                                           */
    cpu_pool_piece *run;
    void *context;
    struct aq_eventcount *work; /* notified when the ticket or stop changes */
    struct aq_eventcount *done; /* notified when left gets 0                */
    struct worker workers[AQ_DEVICE_THREADS_MAX];
};

static void pause_a_moment(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* The next piece of whatever job is current, or false. */
static bool claim(struct cpu_pool *pool, uint64_t *piece)
{
    uint_fast64_t ticket = atomic_load_explicit(&pool->ticket, memory_order_acquire); /* pairs with start's release */
    for (;;) {
        const uint64_t next = ticket & INDEX_MASK;
        if (next >= ((ticket >> INDEX_BITS) & INDEX_MASK)) return false;
        if (atomic_compare_exchange_weak_explicit(&pool->ticket, &ticket, ticket + 1, memory_order_acquire,
                                                  memory_order_acquire)) { /* pairs with start's release */
            *piece = next;
            return true;
        }
    }
}

static void work(struct cpu_pool *pool, uint32_t index)
{
    uint64_t piece;
    while (claim(pool, &piece)) {
        pool->run(piece, index, pool->context);
        if (atomic_fetch_sub_explicit(&pool->left, 1, memory_order_acq_rel) == 1) /* pairs with the caller's acquire */
            aq_eventcount_notify(pool->done);
    }
}

static bool has_work(struct cpu_pool *pool)
{
    const uint_fast64_t ticket = atomic_load_explicit(&pool->ticket, memory_order_relaxed); /* a hint: claim decides */
    return (ticket & INDEX_MASK) < ((ticket >> INDEX_BITS) & INDEX_MASK);
}

static void worker_main(void *context)
{
    struct worker *worker = context;
    struct cpu_pool *pool = worker->pool;
    while (!atomic_load_explicit(&pool->stop, memory_order_acquire)) { /* pairs with close's release */
        const uint32_t seen = aq_eventcount_read(pool->work);
        work(pool, worker->index);
        for (int i = 0; i < LOOKS && !has_work(pool); i++) pause_a_moment();
        if (has_work(pool) || atomic_load_explicit(&pool->stop, memory_order_acquire)) continue;
        aq_eventcount_wait(pool->work, seen, aq_clock_after(SLEEP_NS));
    }
}

enum aq_status cpu_pool_open(uint32_t threads, struct cpu_pool **out)
{
    const uint32_t cores = threads ? 0 : aq_thread_cores();
    if (threads == 0) threads = cores < AQ_DEVICE_THREADS_MAX ? cores : AQ_DEVICE_THREADS_MAX;
    if (threads > AQ_DEVICE_THREADS_MAX)
        return aq_fail(AQ_INVAL, "device", "device.threads is %u; at most %d are possible", threads,
                       AQ_DEVICE_THREADS_MAX);
    struct cpu_pool *pool;
    AQ_TRY(AQ_NEW(1, &pool));
    enum aq_status status = AQ_OK;
    pool->threads = 1;
    AQ_TRY_GOTO(aq_eventcount_open(&pool->work), out);
    AQ_TRY_GOTO(aq_eventcount_open(&pool->done), out);
    for (uint32_t i = 1; i < threads; i++) {
        pool->workers[i] = (struct worker){.pool = pool, .index = i};
        AQ_TRY_GOTO(aq_thread_open("aq-pool", worker_main, &pool->workers[i], &pool->workers[i].thread), out);
        pool->threads = i + 1;
    }
    *out = pool;
    return AQ_OK;
out:
    cpu_pool_close(pool);
    return status;
}

void cpu_pool_close(struct cpu_pool *pool)
{
    if (!pool) return;
    atomic_store_explicit(&pool->stop, true, memory_order_release); /* pairs with worker_main's acquire */
    aq_eventcount_notify(pool->work);
    for (uint32_t i = 1; i < pool->threads; i++) aq_thread_close(pool->workers[i].thread);
    aq_eventcount_close(pool->work);
    aq_eventcount_close(pool->done);
    aq_free(pool);
}

uint32_t cpu_pool_threads(const struct cpu_pool *pool)
{
    return pool->threads;
}

static void run_round(struct cpu_pool *pool, uint64_t pieces)
{
    const uint64_t generation = (atomic_load_explicit(&pool->ticket, memory_order_relaxed) >> (2 * INDEX_BITS)) + 1;
    atomic_store_explicit(&pool->left, pieces, memory_order_relaxed); /* published by the ticket below */
    atomic_store_explicit(&pool->ticket, generation << (2 * INDEX_BITS) | pieces << INDEX_BITS, memory_order_release);
    aq_eventcount_notify(pool->work);
    work(pool, 0);
    for (int i = 0; i < LOOKS && atomic_load_explicit(&pool->left, memory_order_acquire); i++) pause_a_moment();
    for (;;) {
        const uint32_t seen = aq_eventcount_read(pool->done);
        if (atomic_load_explicit(&pool->left, memory_order_acquire) == 0) break; /* pairs with work's release */
        aq_eventcount_wait(pool->done, seen, aq_clock_after(SLEEP_NS));
    }
}

struct shifted {
    cpu_pool_piece *run;
    void *context;
    uint64_t first;
};

static void run_shifted(uint64_t piece, uint32_t worker, void *context)
{
    const struct shifted *shifted = context;
    shifted->run(shifted->first + piece, worker, shifted->context);
}

void cpu_pool_run(struct cpu_pool *pool, uint64_t pieces, cpu_pool_piece *run, void *context)
{
    if (pool->threads == 1 || pieces == 1) {
        for (uint64_t i = 0; i < pieces; i++) run(i, 0, context);
        return;
    }
    for (uint64_t first = 0; first < pieces; first += INDEX_MASK) {
        struct shifted shifted = {run, context, first};
        pool->run = run_shifted;
        pool->context = &shifted;
        run_round(pool, pieces - first < INDEX_MASK ? pieces - first : INDEX_MASK);
    }
}
