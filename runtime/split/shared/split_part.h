/*
 * split_part.h -- a stage of the plan with its optimizer, opened to look at its file, to make one, to average some.
 * Nothing is computed with it.
 *
 * Locking: one object, one thread.
 */
#ifndef RUNTIME_SPLIT_PART_H
#define RUNTIME_SPLIT_PART_H

#include "checkpoint.h"
#include "plan.h"

struct aq_split_part {
    struct aq_device *device;
    struct aq_stage *stage;
    struct aq_optimizer *optimizer;
    struct aq_checkpoint checkpoint; /* of these, in the folder given */
    int64_t updates_ahead;           /* its, where the job counts updates */
};

/* Close it in any case. AQ_NOMEM, AQ_INVAL. */
enum aq_status aq_split_part_open(const struct aq_plan *plan, uint32_t rank, const char *folder,
                                  struct aq_split_part *part);
void aq_split_part_close(struct aq_split_part *part);

/*
 * A stage's file in `from` without its running statistics: <to>/0/stage-<rank>.safetensors, with the initial statistics
 * instead. As aq_checkpoint_adopt and aq_checkpoint_write.
 */
enum aq_status aq_split_part_without_statistics(const struct aq_plan *plan, uint32_t rank, const char *from,
                                                const char *to);

/*
 * Bytes that the file of a stage may have: its weights, as many again four times over for an optimizer, twice more for
 * other versions of them (train.staleness), and its head.
 */
uint64_t aq_split_part_bytes_max(const struct aq_plan *plan, uint32_t rank);

#endif
