/*
 * collective.h -- a group: W ranks that reduce together, and the collectives that they call in the same order.
 *
 * Caveats first.
 * - Every rank of the group calls the same collectives in the same order with the same counts. What differs is found
 *   out by the first frame that comes (each names its collective, kind, count and piece) and ends the call with
 *   AQ_MISMATCH and one line that says what each side was doing.
 * - After an error the group is broken: every later call answers the same status, and what was passed to the failed
 *   call stays lent to the links until they are aborted or closed. The other ranks learn of it when the links of this
 *   one end: call aq_link_abort on each with the first cause. All links of a group are polled while any is waited for,
 *   so that a rank that dies ends the call on every other at once.
 * - The group polls its links: no other caller may, and only the group's frames may arrive over them.
 * - Results do not depend on what arrives first: a sum is made in the order of ranks, ((x0 + x1) + x2) + ..., by the
 * one rank that owns the element, and its bits are copied to all. They do not depend either on how a buffer is cut into
 *   calls, and a NaN of one rank is the same NaN on all. (Codecs with a scale a piece do depend on the cut.)
 *
 * How. The buffer is cut into W chunks, rank w owns the w-th (aq_grad_chunk). Each rank sends every other its part of
 * the other's chunk, the owner sums what came, and sends the result to all: 2 (W - 1) / W of the buffer leave each rank
 * and as much comes, which is the least there is (Thakur, Rabenseifner and Gropp 2005). Chunks go in messages of at
 * most piece_bytes; packing the next, the wire, summing and unpacking overlap, so that the slowest of them sets the
 * time, not their sum. docs/FRAME.md, "Chunks", has the order of messages.
 *
 * On a GPU. A group whose device has its own memory takes device pointers for floats (allreduce, mean, reduce-scatter,
 * compressed and its errors), packs and sums there with the same bits as the CPU, and only enqueues the last kernels:
 * results are ready in the order of config.stream. Everything else (lanes, bytes that only move, agree) is host memory.
 * Over links, only packed bytes cross to the host and back; with NCCL (aq_group_open_nccl) they go from GPU to GPU.
 * Ranks of one group of links may differ: one on a CPU, the next on a GPU.
 *
 * W = 1: every call answers at once and changes nothing.
 *
 *     aq_group_link_config(piece_bytes, &link_config);          and connect one link to each other rank
 *     aq_group_open_links(&config, &group);
 *     aq_allreduce(group, gradients, count);                    on every rank
 *     aq_group_close(group);
 *
 * Locking: one thread, the one that polls the links.
 */
#ifndef NET_COLLECTIVE_H
#define NET_COLLECTIVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "aqsgd/base.h"
#include "aqsgd/device.h"
#include "aqsgd/grad_codec.h"
#include "net/link.h"

#ifdef __cplusplus
extern "C" {
#endif

struct aq_group; /* opaque */

enum {
    AQ_GROUP_SIZE_MAX = 64,           /* one link to each other rank: beyond that a mesh is not the way */
    AQ_GROUP_PIECE_BYTES = 256 << 10, /* a good piece_bytes: fits a coded piece of AQ_GRAD_PIECE values in fp32 */
};

struct aq_group_config {
    uint32_t rank, size;
    struct aq_link *const *links; /* [size] by rank, own NULL; the pointers are copied, the links borrowed until close;
                                         their own ranks need not be the group's, but come in the same order */
    struct aq_eventcount *eventcount; /* the one that the links' net rings */
    struct aq_device *device; /* whose pool packs and sums. NULL: the calling thread alone. One with memory of its
                                     own (a GPU): what is reduced lies there, and is reduced there */
    struct aq_stream *stream; /* of such a device: what is reduced is ready, and gets ready, in its order. NULL: the
                                     device's own */
    uint64_t silence_ns;      /* a rank that is waited for and sends nothing for so long: AQ_TIMEOUT */
    uint32_t piece_bytes;     /* of a message at most; the same on all ranks */
    uint64_t values;          /* floats of the longest buffer that will be reduced, the same on all ranks: as long are
                                     messages over NCCL as is worth it for that; 0: as those of links */
    /*
     * Called while a collective over links waits for another rank, and its pool is idle: AQ_OK, something else was
     * done; AQ_AGAIN: there is nothing to do; others end the collective. On the thread that called it, outside of any
     * lock. It calls no collective. NULL: the wait is slept through.
     */
    enum aq_status (*meanwhile)(void *context);
    void *context;    /* of meanwhile */
    uint64_t look_ns; /* of a group over links: meanwhile is called so often, too, where nothing happens; 0: not */
    /*
     * The number before that of the first collective, the same on all ranks. Frames of this number and below are what
     * is left of an earlier group over the same links (aq_group_leave), and are dropped.
     */
    uint64_t first;
};

/* Sets what the links of a group need: body_bytes_max, send_frames and receive_slots. The rest of config is kept. */
void aq_group_link_config(uint32_t piece_bytes, struct aq_link_config *config);

/* AQ_INVAL: size, rank, a link that is missing or leads to another rank, or is smaller than aq_group_link_config asks
 * (at either end). AQ_NOMEM. */
enum aq_status aq_group_open_links(const struct aq_group_config *config, struct aq_group **out);

/*
 * The same between GPUs, by NCCL, above a group of links whose device is a GPU: it carries NCCL's id and the ranks'
 * agreement, moves host memory, and ends the group when a rank dies. The new group takes it; where this fails it did
 * not. NCCL's own connections are neither encrypted nor authenticated. All ranks call it together; what they find to
 * differ is the same line on all. AQ_NODEV: a rank has no NCCL, has no GPU, or shares one with another rank.
 * AQ_MISMATCH: ranks with different versions of NCCL. AQ_NCCLERR: NCCL refused. AQ_TIMEOUT: it did not come up within
 * silence_ns. W = 1 opens a communicator, too.
 *
 * NCCL is never waited for: each call looks at its state, at the links and at the clock, and a rank that is missing,
 * silent or dead ends the call on all others (ncclCommAbort).
 */
enum aq_status aq_group_open_nccl(struct aq_group *links, struct aq_group **out);

/* What all ranks find out together, before they choose: may aq_group_open_nccl be asked? */
struct aq_nccl_facts {
    bool built;         /* every rank was built with NCCL and is on a GPU            */
    bool distinct_gpus; /* no two are on one GPU                                     */
    bool one_machine;   /* all are on one machine                                    */
    uint32_t gpus;      /* ranks that are on one                                     */
    uint32_t rank;      /* the first of which `built` or `distinct_gpus` is not true */
};
/* Over any group; the same on all ranks. device: this rank's. */
enum aq_status aq_nccl_facts(struct aq_group *group, const struct aq_device *device, struct aq_nccl_facts *out);

/*
 * A group of `count` ranks of another one, in ascending order and with the caller's among them; their place in `ranks`
 * is their rank in the part. Parts share the whole's links and own only buffers. So all ranks call the collectives of
 * the whole and of the parts that they are in in one order; an error breaks the whole with the part. Close it before
 * the whole. AQ_INVAL: ranks; a part of a part. AQ_NODEV: the whole is of GPUs. AQ_NOMEM.
 */
enum aq_status aq_group_open_part(struct aq_group *whole, const uint32_t *ranks, uint32_t count, struct aq_group **out);

/*
 * The links stay open. After a call that failed they may still be sending from the group's memory, and from the
 * caller's: halt them first (aq_link_halt). NULL is fine.
 */
void aq_group_close(struct aq_group *group);

/*
 * A collective of a group over links has failed, and links that still work are to be used by another group. Halt first
 * those to ranks that are given up. AQ_AGAIN: something is still lent to a link that works; call again when the event
 * count has changed. AQ_OK: nothing is; close the group then. *ended: a bit for each rank whose link has ended.
 *
 * All ranks must have left before one opens the next group, whose config.first is at least aq_group_number of this one
 * on each of them.
 */
enum aq_status aq_group_leave(struct aq_group *group, uint64_t *ended);

/* Of the collectives begun: the last one's number. */
uint64_t aq_group_number(const struct aq_group *group);

/* Which rank this one is, and of how many. */
uint32_t aq_group_rank(const struct aq_group *group);
uint32_t aq_group_size(const struct aq_group *group);

/* Is what is reduced carried by NCCL? */
bool aq_group_is_nccl(const struct aq_group *group);

/* Bytes of RAM that a group of this config takes in addition to its links; `aqpipe plan` prints them. */
uint64_t aq_group_measure(const struct aq_group_config *config);
/* Of a device with separate memory: by links, and NCCL above them. NCCL's own buffers are not counted. */
uint64_t aq_group_measure_device(const struct aq_group_config *config);

/*
 * Keep what compressed reductions of this codec and count need on a device, so that none allocates. Once a group; the
 * codec is borrowed until close. Other reductions make and drop it each time. Nothing where memory is the host's.
 * AQ_NODEV: the device has no kernels for that codec; the line lists those that it has.
 */
enum aq_status aq_group_prepare(struct aq_group *group, const struct aq_grad_codec *codec, uint64_t count);

/*
 * What all collectives below answer: AQ_OK; AQ_MISMATCH, a rank is in another collective; AQ_PROTO, a frame that no
 * group sends; AQ_TIMEOUT, nothing came for silence_ns; AQ_CLOSED, a rank left; AQ_ABORTED, AQ_IO, ...: why a link
 * ended. Give up then. Buffers belong to the caller and are lent until the call returns AQ_OK. Nothing is allocated.
 */

/* x[i] = sum over ranks of x[i], in the order of ranks; the same bits on every rank. */
enum aq_status aq_allreduce(struct aq_group *group, float *x, uint64_t count);

/* The mean: the same sum times 1 / W, which the owner of an element multiplies by. */
enum aq_status aq_allreduce_mean(struct aq_group *group, float *x, uint64_t count);

/* The sum of only the own chunk: x[*first .. *first + *mine) is the sum; the rest of x is as it was. first and mine
 * may be NULL. */
enum aq_status aq_reduce_scatter(struct aq_group *group, float *x, uint64_t count, uint64_t *first, uint64_t *mine);

/* all[w * bytes ..] = what rank w has in mine. mine may lie in its own place of all. A ring: each rank hands on to the
 * next what came from the one before it; blocks of one message go to everybody directly. */
enum aq_status aq_all_gather(struct aq_group *group, const void *mine, size_t bytes, void *all);

/* received[w * block_bytes ..] = block number `rank` of what rank w has in send. Pairwise. The two may not overlap. */
enum aq_status aq_all_to_all(struct aq_group *group, const void *send, void *received, size_t block_bytes);

/* bytes[0 .. count) of root, everywhere. A chain from root on, message by message. AQ_INVAL: no such root. */
enum aq_status aq_broadcast(struct aq_group *group, uint32_t root, void *bytes, size_t count);

/*
 * Sums unsigned integers that are packed into 64-bit words, as the p-bit allreduce of Lion Cub does (section 3.1 and
 * appendix D): lane i is in word i / n at bit (i % n) * lane_bits, where n = 64 / lane_bits, so that no lane crosses a
 * word and words can simply be added. lane_bits: 1 to 8, or 16. Unused bits are zero. AQ_INVAL: lane_bits; or a lane
 * ran over (seen by the rank that owns it): W * (levels - 1) must be below 2^lane_bits.
 */
enum aq_status aq_allreduce_lanes(struct aq_group *group, uint64_t *lanes, uint64_t count, uint32_t lane_bits);

/* Words that count lanes take (of 2, 4, 8 and 16 bits: the bytes of aq_lanes_bytes / 8). */
uint64_t aq_lane_words(uint64_t count, uint32_t lane_bits);

/*
 * The mean over the ranks through codecs, with error feedback on both sides: x = deq(server(mean of deq(worker(x +
 * worker_error)) + server_error)), chunk by chunk, as 1-bit Adam's compressed allreduce (Tang et al. 2021, Algorithm 1,
 * section 6.1). The same bits on every rank. Both codecs are for a buffer of count floats, the same on all ranks. Bytes
 * that leave a rank: its parts of the others' chunks, and W - 1 times its own result, each piece of AQ_GRAD_PIECE
 * values coded by itself (aq_grad_codec_bytes_pieces). W = 1: x stays as it is, nothing is quantized. AQ_INVAL: a coded
 * piece does not fit the group's piece_bytes (256 KiB and a little fit every codec of AQ_GRAD_PIECE values).
 * AQ_CORRUPT: bytes that no encoder writes, or a scale that is not finite: check gradients first.
 */
struct aq_compressed {
    const struct aq_grad_codec *worker, *server;
    float *x;
    uint64_t count;
    float *worker_error; /* count floats, or NULL: what is lost is lost        */
    float *server_error; /* as many as aq_grad_chunk gives this rank, or NULL  */
    /*
     * Ranks of the group whose chunks server_error is of; 0: this one. If this group has fewer, server_error stays as
     * it is, and what the server's codec loses of this rank's chunk is added to worker_error there, times the ranks, so
     * that the next mean has it. So ranks * mean + the sum over ranks of worker_error = the sum over ranks of x +
     * worker_error as it was, to rounding. Needs worker_error; not over NCCL.
     */
    uint32_t whole;
    uint64_t step; /* for aq_grad_encode: the same on all ranks          */
    /*
     * Work on x on the way, on the pool, range by range while it is in the cache: `before` makes x of a range before
     * anything reads it, `after` uses what it has become, once nothing here needs x or the errors of it any more.
     * Ranges are apart and together all of x; both are called only for W > 1. For a device's memory they are called
     * here and only enqueue, on the group's stream. Their status ends the call. NULL: none.
     */
    enum aq_status (*before)(void *work, uint64_t first, uint64_t count);
    enum aq_status (*after)(void *work, uint64_t first, uint64_t count);
    void *work;
};
enum aq_status aq_compressed_allreduce(struct aq_group *group, const struct aq_compressed *asked);

/*
 * A word of each rank to all, which travels with the next reduction: say, reduce, hear. The words leave before its
 * first messages and are taken before these are used, so that they cost no extra trip. Between the two calls only
 * reductions may be called.
 *
 * stops: where the word of any rank has one of these bits, the first reduction between the two is void on all ranks: it
 * answers AQ_OK, errors are what they were, x is undefined, and `before` and `after` have not been called. A rank whose
 * own word has one may pass values that are not finite. The second call answers any & stops.
 *
 * A reduction that has `before`, is over NCCL, over a part of the group, or a reduce-scatter hears the words first:
 * that is a trip, as is a hear without a reduction. W = 1: any is the own word.
 */
enum aq_status aq_group_say(struct aq_group *group, uint64_t word, uint64_t stops);
/* any: the words of all ranks since they were last sent, or-ed. May be called again. */
enum aq_status aq_group_hear(struct aq_group *group, uint64_t *any);

/* Do all ranks have the same digest? what: its name in the log line. AQ_MISMATCH on every rank, which names the
 * ranks that differ from rank 0. */
enum aq_status aq_group_agree(struct aq_group *group, uint64_t digest, const char *what);

struct aq_group_stats {
    uint64_t collectives;
    uint64_t sent_bytes, received_bytes; /* bodies: by the formula; frame headers are the link's (128 bytes each) */
    uint64_t wait_ns;                    /* asleep, waiting for another rank or for the own links               */
    uint64_t pack_ns, sum_ns, unpack_ns; /* of the exec thread, between the waits                               */
};
/* A snapshot of the sums since the group was opened. */
void aq_group_stats(const struct aq_group *group, struct aq_group_stats *out);

#ifdef __cplusplus
}
#endif
#endif
