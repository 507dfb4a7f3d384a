/*
 * run_rewind.h -- metrics.jsonl goes back to a checkpoint: what came after it is dropped, restarts stay.
 *
 * A checkpoint knows how many bytes of the file it is with (checkpoint/complete, `metrics`): only what stands behind
 * them is read, and the file is cut there. What has to stay of that goes aside first, into metrics.jsonl.tail, so that
 * no kill and no loss of power between the cut and the writing loses it. A checkpoint of version 0.1.0 does not know:
 * then the whole file is read, line by line, and written anew.
 *
 * Locking: one thread, under the lock of the run folder.
 */
#ifndef RUNTIME_RUN_REWIND_H
#define RUNTIME_RUN_REWIND_H

#include <stdint.h>

#include "aqsgd/base.h"

/*
 * Drop from metrics.jsonl what comes after `step` (and a torn last line): step, eval and end lines; restarts stay, for
 * they happened. `bytes` is what the file had when the step was done, 0 where nobody knows. *seconds gets the "time" of
 * the last line kept. A missing file is an empty one. AQ_CORRUPT: the file is shorter than `bytes`, no line ends there,
 * or what stands before it is of a later step (it is not the file that the checkpoint was made with), or it is damaged
 * before the step's line.
 */
enum aq_status aq_run_rewind(const char *path, uint64_t step, uint64_t bytes, double *seconds);

#endif
