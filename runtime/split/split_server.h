/*
 * split_server.h -- the server of split learning: whose turn it is, and the weights between turns
 * (docs/SPLIT.md).
 *
 * A turn is a run of three stages by the launcher and workers of any job, in its own process (`aqpipe split-turn`): the
 * middle stage here, the other two at the client, whose daemon is at the other end of the client's connection. The
 * server admits clients, offers turns, carries lines between a turn's launcher and its client, and keeps the newest
 * weights: those of the middle stage, and those of the ends, which the next client starts with.
 *
 * The folder of a server (output.path):
 *     split.json            round, and of each client how far it is; written whole, after each turn
 *     weights/0, weights/1  the newest weights and those before: stage-0, stage-1, stage-2.safetensors
 *     round/NAME/           what a turn of this round of SplitFed left, until all are averaged
 *     turns/NAME.yaml       the manifest of that client's turns
 *     clients/NAME/         its run: checkpoints and caches of the middle stage, metrics, logs
 *     logs/NAME.log         what the launchers of its turns wrote
 *
 * Locking: one thread, which blocks signals (aq_launch_signals) before it calls.
 */
#ifndef RUNTIME_SPLIT_SERVER_H
#define RUNTIME_SPLIT_SERVER_H

#include <stdint.h>

#include "aqsgd/base.h"
#include "progress.h"

struct aq_split_server_config {
    const char *manifest;
    const char *const *sets;
    uint32_t set_count;
    const char *program;   /* this one: it becomes the launcher of a turn */
    const char *port_file; /* gets the port once it listens; NULL: none   */
    int signals;           /* signalfd                                    */
    struct aq_progress *progress;
};

/* As the exit statuses of commands.h. SPENT: only of a client. */
enum aq_split_end { AQ_SPLIT_DONE = 0, AQ_SPLIT_FAILED = 1, AQ_SPLIT_STOPPED = 3, AQ_SPLIT_SPENT = 4 };

/*
 * Until the last round is over, or a signal. The text of a failure is aq_error_text(). AQ_INVAL, AQ_MISMATCH: the job.
 * AQ_ABORTED: all rounds are over, and no turn of any client was trained.
 */
enum aq_status aq_split_serve(const struct aq_split_server_config *config, enum aq_split_end *end);

#endif
