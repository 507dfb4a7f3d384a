/* mirror_private.h -- what mirror.c (lanes and frames: exec's) and mirror_file.c (files: the thread's) share. */
#ifndef RUNTIME_MIRROR_PRIVATE_H
#define RUNTIME_MIRROR_PRIVATE_H

#include "mirror.h"
#include "run_folder.h"
#include "seal.h"

enum {
    LANES = 4,                 /* two edges, out and in                      */
    JOBS = 8,                  /* of a lane: a window, an opening, an ending */
    RING_SLOTS = LANES * JOBS, /* a power of two                             */
    HEADER_BYTES = 64 << 10,   /* at most, of a file without its values ...  */
    LAYER_BYTES = 16 << 10,    /* ... and of each layer: 64 tensors of 256   */
    PIECE_BYTES_MIN = 4096,    /* or what a body holds                       */
    NAME_BYTES = 80,
    PIECE_MS = 5,   /* of the link's rate                         */
    STEPS_MAX = 256 /* folders looked at for leftovers            */
};

enum op { OP_PIECE = 1, OP_TAKEN, OP_END, OP_KEPT, OP_WANT, OP_NONE };
enum job_kind { JOB_READ, JOB_WRITE, JOB_FINISH };

#define UNKNOWN UINT64_MAX

struct job {
    enum job_kind kind;
    const void *body; /* JOB_WRITE: of the frame */
    uint8_t *bytes;   /* JOB_READ                */
    uint64_t offset;
    uint32_t count;
    enum aq_status status;
};

/* Pieces are counted: piece i is in place i % AQ_MIRROR_WINDOW of the sender's memory. */
struct lane {
    struct aq_edge *edge; /* NULL: no neighbour there */
    uint32_t peer;
    bool sends, active;
    bool own; /* this stage's own file: sent to its keeper, or fetched back from there */
    uint64_t step;
    const char *folder;                         /* of all checkpoints */
    char name[NAME_BYTES], partial[NAME_BYTES]; /* below it           */
    /* The thread's while a job is out. */
    int file;
    uint64_t size, digest;       /* as they travel; the digest covers the bytes so far */
    struct mirror_own *file_own; /* of one's own files: their identity, hash and seal */
    uint64_t end_digest;         /* receiver: from END; set before the job that compares */
    /* Exec's. The sender's: */
    uint8_t *places;
    uint64_t total; /* pieces of the file; UNKNOWN until the first is read */
    uint64_t asked, read, sent, taken;
    uint32_t place_bytes[AQ_MIRROR_WINDOW];
    uint32_t lent; /* bits of the places that the link has */
    bool end_sent;
    /* The receiver's: */
    uint64_t next; /* offset of the next piece */
    uint64_t kept; /* step of the newest copy that the neighbour has brought to its end, of this process */
    bool ending;
    bool wanted; /* sender: the neighbour has fetched its copy: once is enough */
    struct job jobs[JOBS];
    uint32_t job_count, jobs_out;
};

/*
 * One's own file on its way, in either direction; there is one at a time. A file that is sealed is made, or taken
 * apart, chunk by chunk: `box` is the next one as it travels, `plain` as the file has it.
 */
struct mirror_own {
    struct aq_hash *hash;
    struct aq_seal *seal; /* NULL: no key                                             */
    uint8_t key[AQ_SEAL_KEY_BYTES];
    struct aq_seal_about about;    /* step as the lane has it                                  */
    const char *want;              /* what the file fetched must hash to; NULL: not known      */
    char text[AQ_HASH_TEXT_BYTES]; /* of the last file that has gone or come whole             */
    uint8_t *plain, *box;          /* AQ_SEAL_CHUNK_BYTES and AQ_SEAL_BOX_BYTES                */
    uint32_t box_at, box_end;      /* sending: what of the box is to go; receiving: 0 and have */
    uint64_t plain_at;             /* of the file, so far                                      */
    bool begun, open;              /* the head has passed; receiving: the file is not sealed   */
};

/* mirror_file.c: do one job of a lane, on the thread. AQ_NOTFOUND (not logged): the file that is to be sent is not
 * there. */
enum aq_status mirror_job(struct lane *lane, struct job *job);

/* mirror_file.c: of the config. AQ_NOMEM. memory: MIRROR_OWN_BYTES of it, for as long as it is open. */
enum { MIRROR_OWN_BYTES = 2 * (AQ_SEAL_BOX_BYTES + 4096) };
enum aq_status mirror_own_open(const struct aq_mirror_config *config, uint8_t *memory, struct mirror_own **out);
void mirror_own_close(struct mirror_own *own);

#endif
