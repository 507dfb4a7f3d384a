/*
 * edge_carry.h -- what edge_carry.c (moving bodies from GPU to GPU) and edge_join.c (who does that, and how) share.
 *
 * Locking: the exec thread.
 */
#ifndef RUNTIME_EDGE_CARRY_H
#define RUNTIME_EDGE_CARRY_H

#include "edge_private.h"
#include "net/pair.h"

/* Flags of a CONTROL frame (docs/FRAME.md, "Bodies from GPU to GPU"). */
enum {
    AQ_EDGE_SAYS_FACTS = 1,   /* argument the GPU, step the machine, micro_batch NCCL's version       */
    AQ_EDGE_SAYS_PIECE = 2,   /* of an id or an offer: micro_batch which, step and argument its bytes */
    AQ_EDGE_SAYS_MAPPED = 3,  /* argument 1: the other end's memory is mapped; 0: it cannot be        */
    AQ_EDGE_SAYS_TAKEN = 4,   /* argument: bodies, ever                                               */
    AQ_EDGE_SAYS_UNMAPPED = 5 /* no more of them                                                      */
};

enum { AQ_EDGE_CARRY_BODIES = 1024 }; /* frames in both queues, and one that is being decoded */

struct aq_edge_landing { /* where the bodies start, and the end of the last */
    uint32_t rows, bytes;
};

struct aq_edge_way {
    struct aq_pair *pair;
    uint8_t *slots; /* AQ_EDGE_CARRY_SLOTS */
};

struct aq_edge_carry {
    bool ready; /* bodies go here; false: joining, or it is over */
    bool ipc;   /* by CUDA IPC; else over NCCL                   */
    struct aq_edge_way out, in;
    size_t slot_bytes, way_bytes;
    uint64_t sent_bytes;
    /* Bodies that come, by number from 1 on. */
    uint64_t arrived, released;
    struct aq_edge_landing landings[AQ_EDGE_CARRY_BODIES]; /* of number n: [n % AQ_EDGE_CARRY_BODIES] */
    uint64_t said_taken;                                   /* of them, to the other end                */
    bool unmapped_here, unmapped_said, unmapped_there;     /* at the end                               */
    /* Joining: properties and requests of both ends, and what the other has sent. */
    enum aq_transport_kind asked;
    struct aq_nccl_rank mine, theirs;
    bool told, answered, mapped_there;
    uint8_t pieces[AQ_NCCL_ID_BYTES];
    uint32_t piece_count;
};

/* edge_carry.c: memory for both ways, once. Opens one way: AQ_OK, or why it cannot be. */
enum aq_status aq_edge_carry_memory(struct aq_edge *edge);
enum aq_status aq_edge_way_open(struct aq_edge *edge, struct aq_edge_way *way);
/* Handles a CONTROL frame of a joined end. False: it is not such a frame; else *status has the result. */
bool aq_edge_carry_told(struct aq_edge *edge, const struct aq_frame *frame, enum aq_status *status);

/* edge_join.c: one turn of a wait for the other end, whom it is to `what`. */
enum aq_status aq_edge_join_wait(struct aq_edge *edge, uint64_t deadline_ns, const char *what);

#endif
