/*
 * split_client.h -- a client of split learning: its data, its two stages, and its own daemon that runs them.
 *
 * It connects to the server and retries. The server may request only one thing: a turn of the plan that both have (its
 * worker gets the manifest that was planned here, never the server's), in its own folder, with its own keys. Every
 * other line ends the connection (split_gate.c). Its daemon is confined to that folder, the data and the keys where the
 * kernel can (aqpiped --allow-run, --allow-data).
 *
 * The folder of a client (output.path): run/ (checkpoints and caches of its stages, logs), begin/ (a turn's initial
 * weights), privacy.json (split_visits.h).
 *
 * Locking: one thread, which blocks signals (aq_launch_signals) before it calls.
 */
#ifndef RUNTIME_SPLIT_CLIENT_H
#define RUNTIME_SPLIT_CLIENT_H

#include <stdint.h>

#include "aqsgd/base.h"
#include "progress.h"
#include "split_server.h"

struct aq_split_client_config {
    const char *manifest;
    const char *const *sets;
    uint32_t set_count;
    const char *id;
    const char *data, *heldout; /* files; NULL: as the manifest has them */
    const char *daemon;         /* the program                           */
    uint64_t patience_ns;       /* how long the server may be away       */
    int signals;
    struct aq_progress *progress;
};

/*
 * Returns when the server ends the job, at a signal, or (AQ_SPLIT_SPENT) before a turn that split.privacy.epsilon_max
 * does not allow. AQ_REFUSED, AQ_MISMATCH: the server does not take it.
 * AQ_ABORTED: the job is over, and no client has trained anything.
 */
enum aq_status aq_split_follow(const struct aq_split_client_config *config, enum aq_split_end *end);

/* Writes this client's samples (split_samples.h), and connects to nobody. As aq_split_job_open and
 * aq_split_samples_write. */
enum aq_status aq_split_samples(const struct aq_split_client_config *config, const char *path);

#endif
