/*
 * launch_bring.h -- what the hosts of a job need before it starts there: `aqpipe launch --host A,B [--copy]`.
 *
 * Each host whose agent is started by ssh gets its share of the folder of keys (authority.pem, the stage-N.pem of its
 * stages, revoked.pem) and, on request, the model folder and the data, by rsync over ssh, at the paths that they have
 * here. rsync sends only what changed. authority-key.pem and the keys of others stay here.
 *
 * Locking: one thread.
 */
#ifndef RUNTIME_LAUNCH_BRING_H
#define RUNTIME_LAUNCH_BRING_H

#include "job.h"
#include "progress.h"

/* files: the model and the data, too. AQ_NOTFOUND: no rsync here; AQ_IO: rsync failed (it prints why on standard
 * error). Both are logged with the remedy. */
enum aq_status aq_bring(const struct aq_job *job, bool files, struct aq_progress *progress);

/* Fetches the checkpoint of that step, of the stages that ran by ssh, into the folder `checkpoint` here, so that this
 * machine can write the model. As aq_bring. */
enum aq_status aq_bring_back(const struct aq_job *job, const char *checkpoint, uint64_t step,
                             struct aq_progress *progress);

#endif
