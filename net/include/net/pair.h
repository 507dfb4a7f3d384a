/*
 * pair.h -- two GPUs, and bytes that go from the one to the other: the way of an edge's bodies where it is possible.
 * Either by CUDA IPC: the receiver maps the sender's memory and copies from it, by the copy engine; or over NCCL.
 *
 * Caveats first.
 * - Bytes go one way. NCCL does what it is told of one communicator one thing after the other, so that two ends that
 *   both send first would wait for each other: whoever wants both ways opens two pairs.
 * - Moves match only by their order, and both ends must name the same count: tell the other end of each move, in order,
 *   over something that can be checked (a link), and tell the pair nothing that has not been checked.
 * - Nothing is waited for in here. aq_pair_move only notes; aq_pair_poll looks at NCCL, at the clock and at events.
 *   Memory that is moved is lent until the move has *passed*: only then enqueue what reads or writes it. So a peer that
 *   never comes holds up the pair's own stream alone, and aq_pairs_abandon sets that free. Until then nothing that
 *   waits for the whole GPU (memory that is freed) may be called.
 * - By IPC no kernel runs and nothing ever waits on the GPU. But the sender cannot see what the receiver has taken: the
 *   receiver's caller tells it (over the link, too), and the sender's tells the pair, aq_pair_taken. The memory that is
 *   mapped is freed after the receiver's end is closed, where both live.
 * - NCCL's own connections are neither encrypted nor authenticated, and bytes have no digest of ours, either way.
 *
 *     both ends:   aq_nccl_rank_here(device, &mine);            exchange; all[0] sends, all[1] receives
 *     by IPC:      all[].gpu, and one machine?
 *     sender:      aq_pair_offer(memory, bytes, &offer);        and tells the receiver
 *                  aq_pair_open(&config, &pair);                with .offer at both ends; the receiver may fail
 *     over NCCL:   aq_nccl_judge(all, 2, &facts);               may it be?
 *                  aq_nccl_refuse(all, 2, "stage", 0, remedy);  else why it cannot
 *     one end:     aq_nccl_id(&id);                             and tells the other
 *     both ends:   aq_pair_open(&config, &pair);
 *                  while (aq_pair_poll(pair) == AQ_AGAIN) ...   until it stands
 *                  aq_pair_move(pair, at, bytes);
 *                  while (aq_pair_poll(pair) == AQ_OK && aq_pair_passed(pair) < n) ...
 *
 * Locking: one thread, the one that opened the device.
 */
#ifndef NET_PAIR_H
#define NET_PAIR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "aqsgd/base.h"
#include "aqsgd/device.h"
#include "net/collective.h"

#ifdef __cplusplus
extern "C" {
#endif

struct aq_pair; /* opaque */

/* The facts of a rank: only they decide whether NCCL may be used. */
struct aq_nccl_rank {
    uint64_t gpu, machine; /* digests; gpu 0: none */
    uint32_t built;        /* 0, or NCCL's version */
    uint32_t reserved;
};
/* device: NULL is none. */
void aq_nccl_rank_here(const struct aq_device *device, struct aq_nccl_rank *out);

/* The facts of all ranks after their exchange, the same on all. */
void aq_nccl_judge(const struct aq_nccl_rank *all, uint32_t count, struct aq_nccl_facts *out);

/*
 * AQ_OK where NCCL can join these ranks, else the same line on all of them, which calls rank i "`noun` first + i" and
 * ends, where two share a GPU, with the remedy. AQ_NODEV, AQ_MISMATCH (versions).
 */
enum aq_status aq_nccl_refuse(const struct aq_nccl_rank *all, uint32_t count, const char *noun, uint32_t first,
                              const char *remedy);

/* By which the ranks of one communicator find each other; whoever knows it may come. */
enum { AQ_NCCL_ID_BYTES = 128 };
struct aq_nccl_id {
    uint8_t bytes[AQ_NCCL_ID_BYTES];
};
/* AQ_NCCLERR; AQ_NODEV: built without. */
enum aq_status aq_nccl_id(struct aq_nccl_id *out);

/*
 * By which another process of this machine maps memory of kind AQ_MEMORY_SHARED, all of it; whoever knows it may. All
 * zeroes: none. AQ_NODEV: built without CUDA, or this GPU's driver offers none (the line names the cause).
 */
enum { AQ_PAIR_OFFER_BYTES = 128 };
struct aq_pair_offer {
    uint8_t bytes[AQ_PAIR_OFFER_BYTES];
};
enum aq_status aq_pair_offer(const void *memory, size_t memory_bytes, struct aq_pair_offer *out);

enum { AQ_PAIR_MOVES = 4 }; /* that are noted and have not passed */

struct aq_pair_config {
    const struct aq_nccl_id *id;       /* NULL: by IPC. Borrowed until open returns                         */
    const struct aq_pair_offer *offer; /* by IPC, of the end that sends. Borrowed likewise                  */
    void *memory;                      /* by IPC: where this end's moves lie, all at the places of the other
                                          end's, which are as far from the beginning of what it has offered */
    size_t memory_bytes;               /* of it, at both ends                                               */
    const char *name;                  /* for lines: "edge 2 forward"                                       */
    bool first, sends;                 /* rank 0 of the two; this end is where bytes come from              */
    uint64_t silence_ns;               /* longest that opening, or a move, may take; UINT64_MAX: no matter  */
};

/*
 * Starts: the pair is open when aq_pair_poll answers AQ_OK. AQ_NOMEM, AQ_CUDAERR, AQ_NCCLERR. AQ_NODEV: built without;
 * by IPC: this GPU cannot map that memory, or may not (the line has the reason), and nothing is open.
 */
enum aq_status aq_pair_open(const struct aq_pair_config *config, struct aq_pair **out);

/* In order where all moves have passed (waits 5 s at most for the other end), else abandoned. NULL is fine. */
void aq_pair_close(struct aq_pair *pair);

/*
 * Ends what is under way, here at once and there soon: the pairs are of no use any more. All that wait on one GPU in
 * one call, 4 at most: to end one may take that the others end too. NULL is fine.
 */
void aq_pairs_abandon(struct aq_pair *const *pairs, uint32_t count);

/* The next move: bytes (not 0) of device memory that are ready, or room for them. At most AQ_PAIR_MOVES at once. */
void aq_pair_move(struct aq_pair *pair, void *at, size_t bytes);

/*
 * Look. AQ_OK; AQ_AGAIN: it is not open yet. AQ_TIMEOUT: the other end takes too long. AQ_NCCLERR: NCCL has failed, and
 * nothing is logged yet, because the caller may know the cause from the other end: else aq_pair_failed logs it.
 * AQ_CUDAERR.
 */
enum aq_status aq_pair_poll(struct aq_pair *pair);
enum aq_status aq_pair_failed(const struct aq_pair *pair);

/*
 * By IPC, at the end that sends: the number of moves that the other end has taken in all. AQ_PROTO: fewer than before,
 * or more than there are.
 */
enum aq_status aq_pair_taken(struct aq_pair *pair, uint64_t moves);

/* Moves noted, and of them passed, ever. */
uint64_t aq_pair_noted(const struct aq_pair *pair);
uint64_t aq_pair_passed(const struct aq_pair *pair);

#ifdef __cplusplus
}
#endif
#endif
