/*
 * machine_groups.h -- reduce.machine_first: the replicas of a stage that share a machine average their gradients among
 * themselves before anything is made of them, and one of them, the leader, reduces with the leaders of the other
 * machines (SLAMB, appendix E).
 *
 * The replicas of a machine then have the same gradients, so that their optimizers do the same, bit for bit, and ask
 * for the same reductions; the optimizer's group is one of machines. The leader's result goes to the others as it is.
 *
 * Locking: none; the exec thread's.
 */
#ifndef RUNTIME_MACHINE_GROUPS_H
#define RUNTIME_MACHINE_GROUPS_H

#include <stdint.h>

#include "aqsgd/grad.h"
#include "job.h"

struct aq_group;          /* net/collective.h */
struct aq_machine_groups; /* opaque */

/* Of replica `replica`, over the group of all, which is borrowed: close it first. AQ_NODEV: it is of GPUs. AQ_NOMEM. */
enum aq_status aq_machine_groups_open(struct aq_group *all, const struct aq_job *job, uint32_t replica,
                                      struct aq_machine_groups **out);
void aq_machine_groups_close(struct aq_machine_groups *groups); /* NULL is fine */

/* x becomes the mean over the replicas of this machine. As collectives. */
enum aq_status aq_machine_groups_average(struct aq_machine_groups *groups, float *x, uint64_t count);

/* A reduction between machines, which all replicas of this one ask for alike. As collectives. */
enum aq_status aq_machine_groups_perform(struct aq_machine_groups *groups, const struct aq_reduce *asked);

/* The replicas of this machine. And one of each machine; NULL: this one is not it, or there is only one machine. */
struct aq_group *aq_machine_groups_local(const struct aq_machine_groups *groups);
struct aq_group *aq_machine_groups_leaders(const struct aq_machine_groups *groups);

#endif
