/*
 * bits_auto.h -- edges.bits: auto: the level of each direction of each cut, epoch by epoch.
 *
 * The plan's simulation decides (aq_plan_levels): before the first epoch with the costs that it assumes and keyframes
 * on the links; before each later one with what the stages were measured to compute and to code in the epoch before.
 * The rate of links is the manifest's, or if it sets none, the rate measured in the epoch before: bytes of bodies
 * received, over the time that they took (if a link waits for its sender, the figure is too low, which gives fewer
 * bits and never a longer step). Then the first epoch has the manifest's bits, and an epoch after one without
 * measurements has the same bits as that one. The launcher sends each worker its own levels (docs/CONTROL.md, section
 * 4), the same in all replicas, and workers wait for them at an epoch's start; frames carry the level, as a guard's
 * do.
 *
 * A second measurement differs from the first. So a decision is on disk, in RUN/bits.json, before it is sent, and a run
 * that resumes from a checkpoint decides the same:
 *
 *     {"0": [0,0,0,1], "1": [...]}    by epoch; of edge e forward 2e, backward 2e + 1
 *
 * Locking: the launcher's thread.
 */
#ifndef RUNTIME_BITS_AUTO_H
#define RUNTIME_BITS_AUTO_H

#include <jansson.h>

#include "advice.h"

struct aq_bits;

/*
 * run: the folder of bits.json, which is read if the run resumes, and else written again. NULL: the job has edges.bits:
 * fixed. AQ_CORRUPT: the file has levels that this plan cannot have.
 */
enum aq_status aq_bits_open(const struct aq_plan *plan, const char *run, bool goes_on, struct aq_bits **out);
void aq_bits_close(struct aq_bits *bits); /* NULL is fine */

/* A rank's line of a step: what it measured. */
void aq_bits_step(struct aq_bits *bits, uint32_t rank, const json_t *line);

/* Decides for the epoch that now starts; later measurements belong to it. AQ_IO and such: the file cannot be
 * written. */
enum aq_status aq_bits_decide(struct aq_bits *bits, uint64_t epoch, uint32_t levels[2 * AQ_JOB_STAGES_MAX]);

#endif
