/*
 * checkpoint.h -- one stage's part of a checkpoint: weights and optimizer state after a step, in one safetensors file.
 *
 * <checkpoint folder>/<step>/stage-<rank>.safetensors holds the stage's tensors under their names and
 * "optimizer.<name>", the flat state arrays. These include the states of the worker's parts (worker_parts.def),
 * "optimizer.guard" if the cut behind the stage has a guard (edge_guard.h), and for a stage of two versions
 * "optimizer.previous", the parameters before the last update, at which the next step's gradients are taken. Its
 * metadata has format, plan hash, job digest, step, stage, the digest of all tensor bytes, on a GPU the facts that
 * decide its sums' bits and, if moments go from one run to another, their count of updates (docs/FORMAT.md). The file
 * is written under a temporary name, synced and renamed: it is whole or absent. The caches' part is a mark of the same
 * number (storage/cache.h); everything else that a run consists of (order, random keys, learning rate) follows from
 * step and seed.
 *
 * A checkpoint is complete when the launcher has noted it (docs/CONTROL.md section 7).
 *
 * Training need not wait for the disk: a snapshot is taken between two steps, and the file is written from it piece by
 * piece on another thread (checkpoint_writer.h).
 *
 * Locking: the exec thread, except aq_checkpoint_file_piece and _close: one thread at a time.
 */
#ifndef RUNTIME_CHECKPOINT_H
#define RUNTIME_CHECKPOINT_H

#include <stdbool.h>
#include <stdint.h>

#include "aqsgd/base.h"
#include "aqsgd/device.h"
#include "aqsgd/grad.h"
#include "stages/stage.h"
#include "stages/weights.h"

/* The run that a checkpoint is of (aq_plan_checkpoint_run). */
struct aq_checkpoint_run {
    uint64_t plan_hash, job_digest;
    uint64_t rank_hash;        /* a file of another is refused                 */
    uint64_t resume_hash;      /* of another count of replicas: it is re-sharded */
    uint32_t stages, replicas; /* a rank is replica x stages + stage           */
};

enum { AQ_CHECKPOINT_STATES_MAX = 8 };

/* A few floats that a part of the worker keeps over a restart, and that are the same on every replica of the stage. */
struct aq_checkpoint_state {
    const char *name; /* of its tensor: "optimizer.guard" */
    float *values;    /* borrowed as long as the checkpoint    */
    uint32_t count;
    bool optional; /* an older file may lack it: the values stay as they are */
    enum aq_status (*check)(const float *values, uint32_t count); /* of what a file brought; AQ_CORRUPT */
};

struct aq_checkpoint {
    const char *folder; /* of all checkpoints */
    struct aq_checkpoint_run run;
    uint32_t rank;
    struct aq_device *device;
    struct aq_stage *stage;
    struct aq_optimizer *optimizer; /* NULL: weights only */
    struct aq_checkpoint_state states[AQ_CHECKPOINT_STATES_MAX]; /* of host memory, in the order of the file */
    uint32_t state_count;
    uint64_t frozen_digest; /* of the stage's frozen tensors; 0: it has none                     */
    /*
     * Split learning hands the optimizer's moments from client to client: the updates that they have had, less the
     * steps of this run. Written with the file, set by read and adopt. NULL: the moments are of this run's steps.
     */
    int64_t *updates_ahead;
    bool own_statistics; /* adopt leaves the stage's buffers as they are (split.statistics: local) */
    float pending;       /* aq_optimizer_config_pending: what residuals move the weights by   */
    bool stands_in;      /* writes the file of a rank that is lost: the errors of its codec are zero */
    uint64_t caches;     /* then: the mark at which that rank opens its message cache; 0: it starts empty */
};

/* Write the state after `step` steps. AQ_NOSPC, AQ_IO, AQ_REFUSED: names the file; what was there before still is. */
enum aq_status aq_checkpoint_write(const struct aq_checkpoint *checkpoint, uint64_t step);

/* Copy the weights and the optimizer's state, as they are now, into aq_checkpoint_floats() floats of host memory. */
uint64_t aq_checkpoint_floats(const struct aq_checkpoint *checkpoint);
enum aq_status aq_checkpoint_snapshot(const struct aq_checkpoint *checkpoint, float *snapshot);

/* As aq_checkpoint_write, of the values of a snapshot. */
enum aq_status aq_checkpoint_write_values(const struct aq_checkpoint *checkpoint, uint64_t step, const float *snapshot);

/*
 * The file of step `step`, piece by piece. Values come from the snapshot, or the stage itself (NULL): neither may
 * change before close, and stage and optimizer stay open until then. open touches no disk. piece: AQ_AGAIN while there
 * is more; AQ_OK: the file is on the disk under its name; others as aq_checkpoint_write. close before that gives up,
 * and leaves an earlier file as it was.
 */
struct aq_checkpoint_file; /* opaque */
enum aq_status aq_checkpoint_file_open(const struct aq_checkpoint *checkpoint, uint64_t step, const float *snapshot,
                                       struct aq_checkpoint_file **out);
enum aq_status aq_checkpoint_file_piece(struct aq_checkpoint_file *file);
void aq_checkpoint_file_close(struct aq_checkpoint_file *file); /* NULL is fine */

/*
 * Read it back. AQ_NOTFOUND; AQ_CORRUPT: structure or digest; AQ_MISMATCH: of another plan, stage or step (names both).
 */
enum aq_status aq_checkpoint_read(const struct aq_checkpoint *checkpoint, uint64_t step);

/*
 * Take over the weights, statistics and optimizer state of <from>/stage-<rank>.safetensors, which another run of the
 * same stages wrote at any step: split learning goes from client to client so. With own_statistics the file's
 * statistics are checked and not used. Others made the file, so each value is checked. `step`: steps that this run has
 * done. If the file lacks the count of updates of its moments (an older version's), updates_ahead becomes 0.
 * AQ_NOTFOUND, AQ_CORRUPT (structure, digest, a value that is not finite), AQ_MISMATCH (another stage, or tensors of
 * other sizes).
 */
enum aq_status aq_checkpoint_adopt(const struct aq_checkpoint *checkpoint, const char *from, uint64_t step);

/*
 * The updates that the moments of <from>/stage-<rank>.safetensors have had; AQ_UPDATES_UNKNOWN: the file lacks it. As
 * aq_weights_open; AQ_CORRUPT: not a number of updates.
 */
#define AQ_UPDATES_UNKNOWN UINT64_MAX
enum aq_status aq_checkpoint_updates(const char *from, uint32_t rank, uint64_t *updates);

/*
 * The mark at which the rank's cache is opened, where another rank wrote the file of `step` in its place and the cache
 * has no mark of that step. 0: it starts empty, or the rank wrote its file itself. As aq_checkpoint_open; AQ_CORRUPT:
 * no step before this one.
 */
enum aq_status aq_checkpoint_caches(const struct aq_checkpoint *checkpoint, uint64_t step, uint64_t *mark);

/* Of the file of a rank, into path (4096 bytes). AQ_INVAL: too long. */
enum aq_status aq_checkpoint_path(const char *folder, uint64_t step, uint32_t rank, char *path);

/*
 * checkpoint_frozen.c: the frozen tensors of a stage are in no checkpoint, but in one file per run,
 * <folder>/frozen-stage-<rank>.safetensors. All four do nothing if nothing is frozen.
 *
 * digest: of the values as they are in the stage, 0: none. Each checkpoint has it, and is refused if it differs. write:
 * AQ_NOSPC, AQ_IO, AQ_REFUSED. read: into the stage; AQ_NOTFOUND, AQ_CORRUPT, AQ_MISMATCH: their values are undefined
 * now, and the caller sets them as at the start of the run and writes the file again. open: to join checkpoints.
 */
enum aq_status aq_checkpoint_frozen_digest(const struct aq_checkpoint *checkpoint, uint64_t *digest);
enum aq_status aq_checkpoint_frozen_write(const struct aq_checkpoint *checkpoint);
enum aq_status aq_checkpoint_frozen_read(const struct aq_checkpoint *checkpoint);
enum aq_status aq_checkpoint_frozen_open(const char *folder, uint32_t rank, struct aq_weights **out);

/* checkpoint.c: was a checkpoint made with these frozen tensors? AQ_MISMATCH: names path, digests and remedy. */
enum aq_status aq_checkpoint_frozen_check(const struct aq_checkpoint *checkpoint, const struct aq_weights *weights,
                                          const char *path);

/* Open that file; no part of its name below `folder` may be a link. As aq_weights_open_in. */
enum aq_status aq_checkpoint_open(const char *folder, uint64_t step, uint32_t rank, struct aq_weights **out);

/* checkpoint_reshard.c: the replicas of the run that wrote this checkpoint, if it differs from this run only in
 * their count; 0: it does not, or is not here. */
uint32_t aq_checkpoint_replicas(const struct aq_checkpoint *checkpoint, uint64_t step);

/*
 * checkpoint_reshard.c: read the state that `replicas` replicas wrote, for this run's. AQ_NOTFOUND: the file of one of
 * them is not here; AQ_CORRUPT; AQ_MISMATCH.
 */
enum aq_status aq_checkpoint_reshard(const struct aq_checkpoint *checkpoint, uint64_t step, uint32_t replicas);

/*
 * Load weights by name from a published file (a model to start from). A head that is not in the file is the embedding
 * (tied). Adapters, and a task's own tensors that the file lacks, start from `seed`. AQ_NOTFOUND names the missing
 * tensor, AQ_MISMATCH its shape.
 */
enum aq_status aq_checkpoint_import(const struct aq_checkpoint *checkpoint, const char *path, uint64_t seed);

/* checkpoint_join.c: the weights of all stages' files of one step, as others read them. */
struct aq_join {
    const char *checkpoint; /* folder */
    uint64_t step;
    uint32_t stages;
    const struct aq_model_config *model;
    bool tied;                         /* a tied head has no own tensor, wherever the model was cut           */
    const struct aq_lora_config *lora; /* of the run                                                      */
    const char *adapter_folder;        /* adapters are written there too, as PEFT has them; NULL: nowhere */
    const char *base;                  /* what the model began as, for that folder; or NULL               */
    const char *wrapper;               /* a folder of a model of texts and images that it began as: its names are used,
                                          and its other tensors are written, too; NULL: it began as none      */
    const char *folder;                /* that model.safetensors, or its shards and their index, is written to */
    const char *type;                  /* of the values there: "F32", "BF16", "F16"                            */
    uint64_t file_bytes_max;           /* of tensors in one file; 0: no limit                                  */
    const char *const *metadata;       /* as aq_weights_write                                                  */
    const struct aq_gguf *gguf;        /* then one GGUF file is written instead, under the name gguf_name; NULL */
    const char *gguf_name;
    void (*progress)(void *context, uint64_t done, uint64_t total); /* bytes; or NULL                    */
    void *context;
};
/* AQ_NOTFOUND: a stage's file is not here. Statuses of reading those, and of aq_weights_write. */
enum aq_status aq_checkpoint_join(const struct aq_join *asked);

#endif
