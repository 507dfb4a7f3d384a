/*
 * run_rewind.h -- rewinds metrics.jsonl to a checkpoint: later lines are dropped, except restarts.
 *
 * A checkpoint has the file's size at its step (checkpoint/complete, `metrics`): only the part after it is read, and
 * the file is cut there. Lines of it that stay are saved first, in metrics.jsonl.tail, so that no kill and no loss of
 * power between the cut and the writing loses them. A checkpoint of version 0.1.0 has no size: then the whole file is
 * read, line by line, and written again.
 *
 * Locking: one thread, under the lock of the run folder.
 */
#ifndef RUNTIME_RUN_REWIND_H
#define RUNTIME_RUN_REWIND_H

#include <stdint.h>

#include "aqsgd/base.h"

/*
 * Drop from metrics.jsonl the lines after `step` (and a torn last line): step, eval and end lines; restarts stay,
 * because they happened. `bytes` is the file's size when the step was done, 0 if unknown. *seconds gets the "time" of
 * the last line kept. A missing file counts as empty. AQ_CORRUPT: the file is shorter than `bytes`, no line ends there,
 * or the line before is of a later step (it is not the file that the checkpoint was made with), or it is damaged before
 * the step's line.
 */
enum aq_status aq_run_rewind(const char *path, uint64_t step, uint64_t bytes, double *seconds);

#endif
