/*
 * mirror.h -- copies of a stage's checkpoints at its neighbour: sent over the links during training, fetched back when
 * the stage's own disk is lost.
 *
 * The keeper of stage s is stage s + 1 of the same replica; that of the last stage is the one before it. A file travels
 * as it is on the disk, or sealed (seal.h), in pieces, and is stored as <checkpoint
 * folder>/<step>/mirror-stage-<rank>.safetensors: written under a temporary name, compared with the sender's digest,
 * synced, renamed. A checkpoint of a job with checkpoint.mirror is complete when every file and every copy is durable.
 *
 * The owner need not trust the keeper: the launcher has the SHA-256 of the owner's file, and a fetched copy must match
 * it. With a key (checkpoint.mirror_key) the keeper cannot read it either.
 *
 * Pieces are small against the link's rate, and one goes only when no training frame is on its way (or after several of
 * them, so that a busy link does not starve it); a stage that waits sends as fast as the link goes. Only a thread of
 * this module touches the disk.
 *
 * Frames are of kind MIRROR (docs/FRAME.md). Every frame is checked: the step that is due, order, bounds, digest. A
 * neighbour that sends anything else gets an ABORT and the run ends (AQ_PROTO). Each neighbour can write only one file
 * per due step to this disk, no longer than its checkpoint in the plan.
 *
 * Locking: all calls from the exec thread.
 */
#ifndef RUNTIME_MIRROR_H
#define RUNTIME_MIRROR_H

#include <stdbool.h>
#include <stdint.h>

#include "aqsgd/base.h"
#include "edge.h"

struct aq_mirror; /* opaque */

enum {
    AQ_MIRROR_WINDOW = 4,  /* pieces on their way at once: as many receive slots more a link has  */
    AQ_MIRROR_FRAMES = 16, /* frames of this room that may be queued at once on a link            */
    AQ_MIRROR_PIECE_BYTES_MAX = 256 << 10
};

/* Properties of a rank's files and links; the plan makes it. Neighbours are of the same replica. */
struct aq_mirror_shape {
    uint64_t resume_hash;       /* of the plan: a sealed copy names its run by it                             */
    uint32_t rank, stages;      /* P, at least two                                                            */
    double rate_mbps;           /* of the links; 0: no limit                                                  */
    uint64_t file_bytes_max[3]; /* that travel of the file of the stage before, of this one, and of the next  */
    uint32_t body_bytes_max[2]; /* of a frame to the stage before and to the next                             */
};

/* The most bytes that travel of a stage's file, with `layers` layers and `values_bytes` bytes of weights and state. */
uint64_t aq_mirror_file_bytes(uint64_t values_bytes, uint32_t layers);

struct aq_mirror_config {
    struct aq_mirror_shape shape;
    const char *folder;       /* of all checkpoints; borrowed, as all pointers here */
    struct aq_edge *in, *out; /* NULL: no neighbour there */
    struct aq_eventcount *eventcount; /* notified when the disk is done */
    uint64_t resumed;         /* the step from which all stages resume, and may fetch copies; 0: no such step */
    const uint8_t *key; /* AQ_SEAL_KEY_BYTES (seal.h): copies are sealed with it; NULL: they go in the clear. Copied */
    const char *hash;   /* of this stage's file of `resumed`, as the launcher has kept it; NULL: it has none */
};

/* The rank that keeps the copies of this one: a neighbour in the same replica of a pipeline of `stages` stages. */
uint32_t aq_mirror_keeper(uint32_t rank, uint32_t stages);

/* At least one edge. AQ_NOMEM. */
enum aq_status aq_mirror_open(const struct aq_mirror_config *config, struct aq_mirror **out);
void aq_mirror_close(struct aq_mirror *mirror); /* gives up what is on its way; NULL is fine */

/*
 * The copies that neighbours may send: of `now`, the checkpoint that this stage started last, and when that has come of
 * `next`, which may start before the next call. 0: no such step. Each is taken once.
 */
void aq_mirror_due(struct aq_mirror *mirror, uint64_t now, uint64_t next);

/* The first step starts: from now on no copy can be fetched. */
void aq_mirror_train(struct aq_mirror *mirror);

/* Send this stage's file of `step`, which is on the disk, to its keeper. None may be on its way. */
void aq_mirror_send(struct aq_mirror *mirror, uint64_t step);

/* Fetch this stage's file of `step` from its keeper, to where it was. */
enum aq_status aq_mirror_fetch(struct aq_mirror *mirror, uint64_t step);

/*
 * Of the last of these two: AQ_AGAIN; AQ_OK: durable there, or here. Of a fetch: AQ_NOTFOUND (not logged): the keeper
 * has none; AQ_CORRUPT: what it has is not this stage's file.
 */
enum aq_status aq_mirror_done(const struct aq_mirror *mirror);

/* SHA-256 of the last file sent whole, 64 hex digits: what the launcher keeps, so that a fetched copy proves itself. */
const char *aq_mirror_hash(const struct aq_mirror *mirror);

/*
 * Handle the frames that the edges have received, serve the neighbours, and send; hurry: this stage has nothing else to
 * do. AQ_NOSPC, AQ_IO, ...: the disk, naming the file; AQ_PROTO, AQ_CORRUPT: what a neighbour sent.
 */
enum aq_status aq_mirror_pump(struct aq_mirror *mirror, bool hurry);

/* Bytes of RAM for the pieces of a stage with `neighbours` neighbours, which `aqpipe plan` prints. Slots are the
 * links'. */
uint64_t aq_mirror_measure(uint32_t neighbours);

#endif
