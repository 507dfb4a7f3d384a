/*
 * group_background.c -- see the header. The task and the group belong to the caller or to the thread: one atomic
 * state has which.
 */
#include "net/group_background.h"

#include <stdatomic.h>

/* Caller: IDLE to ASKED, DONE to IDLE. Thread: ASKED to DONE. Released by who writes it, acquired by who reads it. */
enum { STATE_IDLE, STATE_ASKED, STATE_DONE };

struct aq_group_background {
    atomic_int state;
    atomic_bool stop;                  /* release in stop, acquire in look and in the thread */
    atomic_bool broken;                /* of this task: release in break, acquire in look; begin clears it */
    uint64_t words[AQ_GROUP_SIZE_MAX]; /* of all ranks; links send from it  */
    struct aq_group_task task;
    struct aq_group_done done;
    enum aq_status status;              /* of done */
    struct aq_eventcount *asked, *told; /* told: the caller's */
    struct aq_thread *thread;
};

static int state_of(const struct aq_group_background *background)
{
    return atomic_load_explicit(&background->state, memory_order_acquire);
}

static bool stops(const struct aq_group_background *background)
{
    return atomic_load_explicit(&background->stop, memory_order_acquire);
}

static enum aq_status reduce(struct aq_group_background *background)
{
    const struct aq_group_task *task = &background->task;
    uint64_t *words = background->words;
    AQ_TRY(aq_all_gather(task->group, &task->word, sizeof task->word, words));
    if (task->mean.count > 0)
        AQ_TRY(task->mean.worker ? aq_compressed_allreduce(task->group, &task->mean)
                                 : aq_allreduce_mean(task->group, task->mean.x, task->mean.count));
    for (uint32_t w = 0; w < aq_group_size(task->group); w++)
        background->done.words |= words[w];
    return AQ_OK;
}

static void work(struct aq_group_background *background)
{
    const struct aq_group_task *task = &background->task;
    struct aq_group_stats before, after;
    background->done = (struct aq_group_done){.begin_ns = aq_clock_ns()};
    aq_group_stats(task->group, &before);
    background->status = reduce(background);
    aq_group_stats(task->group, &after);
    background->done.sent_bytes = after.sent_bytes - before.sent_bytes;
    background->done.end_ns = aq_clock_ns();
    atomic_store_explicit(&background->state, STATE_DONE, memory_order_release);
    aq_eventcount_notify(background->told);
}

static void run(void *context)
{
    struct aq_group_background *background = context;
    while (!stops(background)) {
        const uint32_t seen = aq_eventcount_read(background->asked);
        if (stops(background)) return;
        if (state_of(background) == STATE_ASKED)
            work(background);
        else
            (void)aq_eventcount_wait(background->asked, seen, AQ_NEVER);
    }
}

enum aq_status aq_group_background_open(struct aq_eventcount *eventcount, struct aq_group_background **out)
{
    struct aq_group_background *background;
    enum aq_status status;
    AQ_TRY(AQ_NEW(1, &background));
    atomic_init(&background->state, STATE_IDLE);
    atomic_init(&background->stop, false);
    atomic_init(&background->broken, false);
    background->told = eventcount;
    AQ_TRY_GOTO(aq_eventcount_open(&background->asked), out);
    AQ_TRY_GOTO(aq_thread_open("aq-average", run, background, &background->thread), out);
    *out = background;
    return AQ_OK;
out:
    aq_group_background_close(background);
    return status;
}

void aq_group_background_stop(struct aq_group_background *background)
{
    if (!background || !background->thread) return;
    atomic_store_explicit(&background->stop, true, memory_order_release);
    aq_eventcount_notify(background->asked);
    aq_thread_close(background->thread);
    background->thread = NULL;
    if (state_of(background) != STATE_ASKED) return;
    background->status = AQ_ABORTED; /* the thread had not begun */
    atomic_store_explicit(&background->state, STATE_DONE, memory_order_release);
}

void aq_group_background_close(struct aq_group_background *background)
{
    if (!background) return;
    aq_group_background_stop(background);
    aq_eventcount_close(background->asked);
    aq_free(background);
}

enum aq_status aq_group_background_look(void *context)
{
    const struct aq_group_background *background = context;
    const bool broken = atomic_load_explicit(&background->broken, memory_order_acquire);
    return stops(background) || broken ? AQ_ABORTED : AQ_AGAIN;
}

void aq_group_background_begin(struct aq_group_background *background, const struct aq_group_task *task)
{
    AQ_ASSERT(state_of(background) == STATE_IDLE);
    background->task = *task;
    atomic_store_explicit(&background->broken, false, memory_order_relaxed); /* the state's release comes after it */
    atomic_store_explicit(&background->state, STATE_ASKED, memory_order_release);
    aq_eventcount_notify(background->asked);
}

enum aq_status aq_group_background_state(const struct aq_group_background *background)
{
    const int state = state_of(background);
    return state == STATE_IDLE ? AQ_OK : state == STATE_ASKED ? AQ_AGAIN : background->status;
}

void aq_group_background_break(struct aq_group_background *background)
{
    atomic_store_explicit(&background->broken, true, memory_order_release);
    aq_eventcount_notify(background->told); /* a collective waits on it, too */
}

void aq_group_background_take(struct aq_group_background *background, struct aq_group_done *out)
{
    AQ_ASSERT(state_of(background) == STATE_DONE);
    *out = background->done;
    atomic_store_explicit(&background->state, STATE_IDLE, memory_order_release);
}
