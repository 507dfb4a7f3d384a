/*
 * group_background.h -- one reduction of a group at a time, made by another thread while the caller computes.
 *
 * Caveats first.
 * - While a task is under way the group and its links belong to the thread. The caller does not touch them, their
 *   counters (aq_link_stats may be read), or what the task names.
 * - A stop ends a collective that waits for a rank if the group's config has `aq_group_background_look` as meanwhile,
 *   the background as context, and a look_ns. Its device is NULL: a pool serves one thread.
 * - A reduction that failed, was broken off or was stopped breaks the group, as any collective does. Stop the
 *   background before the links are aborted, and close it when they are halted: until then they may send from its
 *   memory. Before another task over the same links: take, and aq_group_leave.
 *
 *     aq_group_background_open(eventcount, &background);
 *     config.meanwhile = aq_group_background_look; config.context = background; config.look_ns = 2000000;
 *     aq_group_open_links(&config, &group);
 *     aq_group_background_begin(background, &task);
 *     ... compute; until the event count changes: aq_group_background_state ...
 *     aq_group_background_take(background, &done);
 *
 * Locking: all but look from one thread.
 */
#ifndef NET_GROUP_BACKGROUND_H
#define NET_GROUP_BACKGROUND_H

#include "net/collective.h"

struct aq_group_background; /* opaque */

/* A word of each rank to all, then the mean of a buffer. Everything is borrowed until take. */
struct aq_group_task {
    struct aq_group *group;
    uint64_t word;
    struct aq_compressed mean; /* worker NULL: of x in fp32, as aq_allreduce_mean; count 0: none */
};

struct aq_group_done {
    uint64_t words;            /* those of all ranks, or-ed */
    uint64_t begin_ns, end_ns; /* aq_clock_ns */
    uint64_t sent_bytes;       /* as aq_group_stats */
};

/* eventcount: notified when a task has ended; borrowed. AQ_NOMEM. */
enum aq_status aq_group_background_open(struct aq_eventcount *eventcount, struct aq_group_background **out);

/* Ends the thread; a task that is under way fails with AQ_ABORTED. May be called again. NULL is fine. */
void aq_group_background_stop(struct aq_group_background *background);
/* Stops, and frees what links may send from. NULL is fine. */
void aq_group_background_close(struct aq_group_background *background);

/* For aq_group_config.meanwhile; context: the background. AQ_AGAIN, or AQ_ABORTED: it is being stopped, or the
 * task was broken off. */
enum aq_status aq_group_background_look(void *context);

/* Nothing is under way. */
void aq_group_background_begin(struct aq_group_background *background, const struct aq_group_task *task);

/* AQ_AGAIN: a task is under way. AQ_OK: none is, or it is done. Others: why it failed, as its collectives answer. */
enum aq_status aq_group_background_state(const struct aq_group_background *background);

/* The task that is under way, if there is one, fails with AQ_ABORTED when it next waits for a rank. */
void aq_group_background_break(struct aq_group_background *background);

/* A task has been begun, and state is not AQ_AGAIN: another one may be begun. Of a task that failed words are 0. */
void aq_group_background_take(struct aq_group_background *background, struct aq_group_done *out);

#endif
