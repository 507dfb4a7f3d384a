/*
 * split_labels.h -- the labels of a client's samples where the server is to have them (split.labels: server): two files
 * of the data set `label_file` (docs/FORMAT.md), of training and of held-out samples, by sample id.
 *
 * The client makes them of its data and sends them when it joins; the server looks at them before its stage reads them.
 *
 * Locking: functions of files.
 */
#ifndef RUNTIME_SPLIT_LABELS_H
#define RUNTIME_SPLIT_LABELS_H

#include "plan.h"
#include "split_session.h"

/* "train", "heldout". */
const char *aq_split_labels_name(uint32_t which);
/* Bytes of the file for this many samples. */
uint64_t aq_split_labels_bytes(uint64_t samples);

/* Of the data that this plan was made with, into <folder>/labels-<name>. Statuses of reading data and of writing. */
enum aq_status aq_split_labels_write(const struct aq_plan *plan, uint32_t which, const char *folder);

/*
 * Are the files <folder>/<name>.sent labels of this plan's samples, and equal to earlier ones, if any? Then they become
 * <folder>/<name>. AQ_MISMATCH, AQ_CORRUPT: `why` has the cause, also sent to the client.
 */
enum aq_status aq_split_labels_take(const struct aq_plan *plan, const char *folder, char why[AQ_SPLIT_TEXT_BYTES]);

#endif
