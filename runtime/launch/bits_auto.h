/*
 * bits_auto.h -- edges.bits: auto: which rung of its ladder each direction of each cut has, epoch by epoch.
 *
 * The plan's simulation decides (aq_plan_rungs): before the first epoch with the costs that it assumes and keyframes on
 * the links; before each later one with what the stages were measured to compute and to code in the epoch before. The
 * rate of links is the manifest's, or where it says none what each link was seen to carry in the epoch before: bytes of
 * bodies that came, over the time in which they were coming (a link that is slower than its sender; one that waits for
 * its sender has a lower figure than it could, which gives fewer bits and never a longer step). Then the first epoch
 * has the manifest's bits, and one before which nothing was measured those of the epoch before. The launcher tells each
 * worker its own (docs/CONTROL.md, section 4), the same in all replicas, and workers wait for it where an epoch begins;
 * frames say the rung, as a guard's do.
 *
 * What was measured once is not measured alike again. So what is decided is on disk before anybody hears of it, in
 * RUN/bits.json, and a run that goes on from a checkpoint does what the one before it did:
 *
 *     {"0": [0,0,0,1], "1": [...]}    by epoch; of edge e forward 2e, backward 2e + 1
 *
 * Locking: the launcher's thread.
 */
#ifndef RUNTIME_BITS_AUTO_H
#define RUNTIME_BITS_AUTO_H

#include <jansson.h>

#include "plan.h"

struct aq_bits;

/*
 * run: the folder of bits.json, which is read where the run goes on and written anew where it does not. NULL: the job
 * has edges.bits: fixed. AQ_CORRUPT: the file says what no run of this plan can have decided.
 */
enum aq_status aq_bits_open(const struct aq_plan *plan, const char *run, bool goes_on, struct aq_bits **out);
void aq_bits_close(struct aq_bits *bits); /* NULL is fine */

/* A rank's line of a step: what it measured. */
void aq_bits_step(struct aq_bits *bits, uint32_t rank, const json_t *line);

/* Of that epoch, which begins; what is measured from here on is of it. AQ_IO and such: the file cannot be written. */
enum aq_status aq_bits_decide(struct aq_bits *bits, uint64_t epoch, uint32_t rungs[2 * AQ_JOB_STAGES_MAX]);

#endif
