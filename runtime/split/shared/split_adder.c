/*
 * split_adder.c -- see the header. One atomic state says whose the request and the sum are: the caller's or the
 * thread's.
 */
#include "split_adder.h"

#include <stdatomic.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <unistd.h>

static const char *const AREA = "split";

/* Caller: IDLE to ASKED, DONE to IDLE, any to STOP. Thread: ASKED to DONE. Released by who writes it. */
enum { STATE_IDLE, STATE_ASKED, STATE_DONE, STATE_STOP };

struct aq_split_adder {
    atomic_int state; /* written with release, read with acquire */
    struct aq_split_sum *sum;
    uint64_t weight;
    bool ends; /* the step is to be ended; else a part to be added */
    enum aq_status status;
    char why[AQ_SPLIT_TEXT_BYTES];
    struct aq_eventcount *asked, *told;
    int wake_fd;
    struct aq_thread *thread;
};

static int state_of(const struct aq_split_adder *adder)
{
    return atomic_load_explicit(&adder->state, memory_order_acquire);
}

static void work(struct aq_split_adder *adder)
{
    const uint64_t one = 1;
    adder->status = AQ_OK;
    adder->why[0] = 0;
    if (!adder->ends)
        aq_split_sum_add(adder->sum, adder->weight);
    else if ((adder->status = aq_split_sum_done(adder->sum)) != AQ_OK)
        (void)aq_printable_text(aq_error_text(), adder->why, sizeof adder->why);
    atomic_store_explicit(&adder->state, STATE_DONE, memory_order_release);
    aq_eventcount_notify(adder->told);
    if (!aq_write_all(adder->wake_fd, &one, sizeof one)) /* its count never fills */
        aq_log(AREA, AQ_LOG_WARNING, "the thread of sums cannot wake the server; it looks again by itself");
}

static void run(void *context)
{
    struct aq_split_adder *adder = context;
    for (;;) {
        const uint32_t seen = aq_eventcount_read(adder->asked);
        const int state = state_of(adder);
        if (state == STATE_STOP) return;
        if (state == STATE_ASKED)
            work(adder);
        else
            (void)aq_eventcount_wait(adder->asked, seen, AQ_NEVER);
    }
}

enum aq_status aq_split_adder_open(struct aq_split_adder **out)
{
    struct aq_split_adder *adder;
    AQ_TRY(AQ_NEW(1, &adder));
    enum aq_status status;
    atomic_init(&adder->state, STATE_IDLE);
    adder->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (adder->wake_fd == -1) {
        status = aq_fail_errno(AREA, "no descriptor for the thread of sums");
        goto out;
    }
    AQ_TRY_GOTO(aq_eventcount_open(&adder->asked), out);
    AQ_TRY_GOTO(aq_eventcount_open(&adder->told), out);
    AQ_TRY_GOTO(aq_thread_open("aq-sums", run, adder, &adder->thread), out);
    *out = adder;
    return AQ_OK;
out:
    aq_split_adder_close(adder);
    return status;
}

void aq_split_adder_close(struct aq_split_adder *adder)
{
    if (!adder) return;
    if (adder->thread) {
        aq_split_adder_wait(adder);
        atomic_store_explicit(&adder->state, STATE_STOP, memory_order_release);
        aq_eventcount_notify(adder->asked);
        aq_thread_close(adder->thread);
    }
    aq_eventcount_close(adder->asked);
    aq_eventcount_close(adder->told);
    if (adder->wake_fd != -1) close(adder->wake_fd);
    aq_free(adder);
}

bool aq_split_adder_busy(const struct aq_split_adder *adder)
{
    return state_of(adder) != STATE_IDLE;
}

int aq_split_adder_fd(const struct aq_split_adder *adder)
{
    return adder->wake_fd;
}

static void ask(struct aq_split_adder *adder, struct aq_split_sum *sum, uint64_t weight, bool ends)
{
    AQ_ASSERT(state_of(adder) == STATE_IDLE);
    adder->sum = sum;
    adder->weight = weight;
    adder->ends = ends;
    atomic_store_explicit(&adder->state, STATE_ASKED, memory_order_release);
    aq_eventcount_notify(adder->asked);
}

void aq_split_adder_add(struct aq_split_adder *adder, struct aq_split_sum *sum, uint64_t weight)
{
    ask(adder, sum, weight, false);
}

void aq_split_adder_done(struct aq_split_adder *adder, struct aq_split_sum *sum)
{
    ask(adder, sum, 0, true);
}

enum aq_status aq_split_adder_take(struct aq_split_adder *adder, char why[AQ_SPLIT_TEXT_BYTES])
{
    uint64_t count;
    (void)!read(adder->wake_fd, &count, sizeof count); /* first: what comes later wakes a poll once more */
    if (state_of(adder) != STATE_DONE) return AQ_AGAIN;
    snprintf(why, AQ_SPLIT_TEXT_BYTES, "%s", adder->why);
    const enum aq_status status = adder->status;
    atomic_store_explicit(&adder->state, STATE_IDLE, memory_order_release);
    return status;
}

void aq_split_adder_wait(struct aq_split_adder *adder)
{
    char why[AQ_SPLIT_TEXT_BYTES];
    for (;;) {
        const uint32_t seen = aq_eventcount_read(adder->told);
        if (!aq_split_adder_busy(adder) || aq_split_adder_take(adder, why) != AQ_AGAIN) return;
        (void)aq_eventcount_wait(adder->told, seen, AQ_NEVER);
    }
}
