/*
 * split_sum.h -- global sampling: the sum of a step's gradients over the clients of a round, and the file of each sum.
 *
 * sum_line.h defines a sum. Sums are kept on disk, one file per step, in the form of the answers (a head, then values):
 * a client whose turn resumes from a checkpoint repeats the steps after it, and gets the same sums; so a killed client
 * or server costs time and changes no number. They are deleted when no checkpoint needs them.
 *
 * The files are not synced: after a loss of power some may be missing, and a turn that needs one is missed.
 *
 * Locking: one object, one thread.
 */
#ifndef RUNTIME_SPLIT_SUM_H
#define RUNTIME_SPLIT_SUM_H

#include "aqsgd/base.h"
#include "sum_line.h"

struct aq_split_sum; /* opaque */

/*
 * Sums of `values` floats, from step `first` on, in `folder`, which exists and is borrowed. Files of steps before it
 * are deleted; it continues after the complete ones. AQ_NOMEM, AQ_IO.
 */
enum aq_status aq_split_sum_open(const char *folder, uint64_t values, uint64_t first, struct aq_split_sum **out);
void aq_split_sum_close(struct aq_split_sum *sum); /* NULL is fine */

/* The step that is being summed: those before it are done. */
uint64_t aq_split_sum_step(const struct aq_split_sum *sum);

/* Steps before this one are done, with or without their files: a client has a checkpoint there. */
void aq_split_sum_reach(struct aq_split_sum *sum, uint64_t step);

/* Room for the values of one part, `values` floats: filled by whoever calls aq_split_sum_add next. */
float *aq_split_sum_room(struct aq_split_sum *sum);

/* The part in that room, with its weight; weight 0: it has none, and the room is not looked at. In order of names. */
void aq_split_sum_add(struct aq_split_sum *sum, uint64_t weight);

/* All parts are in: writes the step's file, and starts the next step. AQ_IO, AQ_NOSPC: neither is done. */
enum aq_status aq_split_sum_done(struct aq_split_sum *sum);

/* The file of a step that is done; *bytes: its length. AQ_NOTFOUND (not logged): it was deleted. */
enum aq_status aq_split_sum_file(const struct aq_split_sum *sum, uint64_t step, int *fd, uint64_t *bytes);

/* Files of steps before this one are not needed any more. */
void aq_split_sum_forget(struct aq_split_sum *sum, uint64_t step);

/* Nor is any file of a sum in that folder, which may be absent. */
void aq_split_sum_clear(const char *folder);

#endif
