/*
 * seen.h -- what a server of split learning sees of a client, written down for tools/split-audit (split.capture).
 *
 * A file of activations and gradients as the server's stage got them: decoded, before it computes with them. The layout
 * is docs/FORMAT.md, "What a server saw". It is a copy of private features: made where both ends' manifests ask for it.
 *
 * Locking: one thread.
 */
#ifndef RUNTIME_SEEN_H
#define RUNTIME_SEEN_H

#include <stdbool.h>
#include <stdint.h>

#include "aqsgd/base.h"

enum aq_seen_kind { AQ_SEEN_ACTIVATION = 1, AQ_SEEN_GRADIENT = 2, AQ_SEEN_HELDOUT = 3 };

struct aq_seen {
    int fd;              /* -1: nothing is written */
    uint64_t bytes_left; /* a record that does not fit ends it, once and for all */
    uint64_t records;
};

struct aq_seen_record {
    enum aq_seen_kind kind;
    uint32_t rows, columns;
    uint64_t step, sample; /* its place in the client's data */
};

/* Creates or truncates <run>/seen/<step>.bin, of at most bytes_max bytes. step: the stage's first one. AQ_IO,
 * AQ_NOSPC, and the errors of aq_file_open. */
enum aq_status aq_seen_open(const char *run, uint64_t step, uint64_t bytes_max, struct aq_seen *seen);

/* values: rows times columns floats in host memory. Nothing where nothing is written. AQ_IO, AQ_NOSPC: the disk. */
enum aq_status aq_seen_add(struct aq_seen *seen, const struct aq_seen_record *record, const float *values);

void aq_seen_close(struct aq_seen *seen); /* also one that was never opened: {.fd = -1} */

#endif
