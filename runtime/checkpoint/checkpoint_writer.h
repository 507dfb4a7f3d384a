/*
 * checkpoint_writer.h -- the thread that writes a stage's checkpoint to the disk while the stage trains.
 *
 * aq_checkpoint_writer_begin copies the state (one pass over memory: the only pause of training) and wakes the thread,
 * which computes the digest, writes, syncs and renames the file. One file at a time. A writer without a snapshot (a job
 * that keeps checkpoints only at its end) writes the stage's own values: its caller waits then.
 *
 *     AQ_TRY(aq_checkpoint_writer_begin(writer, step));
 *     ... train on; the event count is notified ...
 *     status = aq_checkpoint_writer_done(writer);      // AQ_AGAIN: not yet
 *
 * Locking: all calls from one thread (exec).
 */
#ifndef RUNTIME_CHECKPOINT_WRITER_H
#define RUNTIME_CHECKPOINT_WRITER_H

#include <stdbool.h>
#include <stdint.h>

#include "aqsgd/base.h"
#include "checkpoint.h"

struct aq_checkpoint_writer; /* opaque */

/* snapshot: take the memory for one. The event count is notified when a file is done. AQ_NOMEM. */
enum aq_status aq_checkpoint_writer_open(const struct aq_checkpoint *checkpoint, bool snapshot,
                                         struct aq_eventcount *eventcount, struct aq_checkpoint_writer **out);

/* Gives up what is being written: the file is whole or absent. NULL is fine. */
void aq_checkpoint_writer_close(struct aq_checkpoint_writer *writer);

/* Write the state as it is now, as that after `step` steps. None may be under way. AQ_NOMEM; a device's trouble. */
enum aq_status aq_checkpoint_writer_begin(struct aq_checkpoint_writer *writer, uint64_t step);

/* AQ_AGAIN: it is being written. AQ_OK: it is on the disk, or none was begun. Else as aq_checkpoint_write, told once.
 */
enum aq_status aq_checkpoint_writer_done(struct aq_checkpoint_writer *writer);

#endif
