/*
 * group.h -- the seam below the collectives: messages in order between each pair of ranks, by links or NCCL.
 *
 * A member is a const table over a struct that starts with struct aq_group. Both ends of a pair run the same program of
 * posts and takes, so that the next message of a rank is always the one that is expected; struct aq_chunk travels with
 * it only to be compared. Members neither check nor count: collective.c does.
 *
 * How much may be under way. Programs lag: a message is taken AQ_GROUP_LAG steps after it could first have come (twice
 * as many for results). A rank may therefore be at most LAG + 1 steps ahead of another, with 2 LAG + 2 messages of each
 * of the two phases not yet taken: AQ_GROUP_FRAMES in all. A link has as many receive slots, so that a post never has
 * to wait for a peer that is itself in a post.
 *
 * Memory of the device. If a group's device has its own memory (group->isolated), the buffers are there, and
 * collective_device.c packs and reduces them there. A member whose messages are host memory (links) has it copy packed
 * bytes to and fro; one whose messages are device memory (NCCL, group->wires_isolated) has not. NCCL must know each
 * message before it comes, and moves nothing until it knows all: expect and flush.
 */
#ifndef NET_GROUP_H
#define NET_GROUP_H

#include <assert.h>

#include "net/collective.h"

enum {
    AQ_GROUP_LAG =
        3, /* messages of each chunk that are on their way while one is summed: 3 pieces, 0.75 MB as a rule */
    AQ_GROUP_FRAMES = 4 * (AQ_GROUP_LAG + 1),
    AQ_GROUP_SLOTS = AQ_GROUP_LAG + 1,        /* packed messages to one rank that are not yet out of our hands */
    AQ_GROUP_CUT = 64,                        /* values: chunks (aq_grad_chunk) and messages start at a multiple */
    AQ_GROUP_MESSAGES_MIN = 32,               /* of a chunk: the first and the last one overlap with nothing */
    AQ_GROUP_MESSAGE_BYTES_MIN = 16 << 10,    /* but not for the price of too many headers and wake-ups: 128 in 16384 */
    AQ_GROUP_TASK_VALUES = 16 << 10,          /* one piece of work of the pool: 64 KiB, about 10 us */
    AQ_GROUP_COMING = 2 * (AQ_GROUP_LAG + 1), /* messages of one rank that are expected and not yet taken */
    /*
     * Over NCCL a message costs a launch and a poll by the host, about 50 us, in which NVLink moves about 16 MiB: that
     * is the size of one where two ranks reduce a large buffer, and a chunk has at least 8 of them. More ranks share
     * the memory: 7 MiB for 4 ranks and 3 MiB for 8, so that a step still moves about 20 MiB.
     */
    AQ_GROUP_NCCL_BYTES = 320 << 20, /* of GPU memory for all messages, as far as their least length allows */
    AQ_GROUP_NCCL_BYTES_MAX = 16 << 20,
    AQ_GROUP_NCCL_MESSAGES_MIN = 8
};

/* Kinds of collectives; their numbers never change (docs/FRAME.md). */
enum aq_collective {
    AQ_COLLECTIVE_ALLREDUCE = 1,
    AQ_COLLECTIVE_REDUCE_SCATTER = 2,
    AQ_COLLECTIVE_ALL_GATHER = 3,
    AQ_COLLECTIVE_ALL_TO_ALL = 4,
    AQ_COLLECTIVE_BROADCAST = 5,
    AQ_COLLECTIVE_LANES = 6,
    AQ_COLLECTIVE_COMPRESSED = 7,
    AQ_COLLECTIVE_AGREE = 8
};

struct aq_chunk {      /* names one message */
    uint64_t number;   /* of the collective in its group, from 1                                     */
    uint64_t argument; /* count, and above its 48 bits the root (broadcast) or the lane's bits        */
    uint32_t piece;    /* which message of its phase                                                  */
    uint32_t bytes;    /* of its body, never 0                                                        */
    uint8_t collective;
    uint8_t phase; /* 0: parts to their owner; 1: results                                             */
};

struct aq_group_ops {
    const char *name;
    /* Lend body until settled. Waits where too many are under way. */
    enum aq_status (*post)(struct aq_group *group, uint32_t to, const struct aq_chunk *chunk, const void *body);
    /* Until the first `count` messages ever posted to that rank are out of our hands. */
    enum aq_status (*settle)(struct aq_group *group, uint32_t to, uint64_t count);
    /* The next message from that rank; its body is borrowed until given back. */
    enum aq_status (*take)(struct aq_group *group, uint32_t from, struct aq_chunk *chunk, const void **body);
    void (*give)(struct aq_group *group, uint32_t from, const void *body);
    void (*close)(struct aq_group *group);
    /* Of members whose messages carry no chunk; NULL for the others. */
    enum aq_status (*meet)(struct aq_group *group, const struct aq_chunk *head); /* is everybody in this collective? */
    /* The next message from that rank, into its place or (NULL) the member's memory. */
    enum aq_status (*expect)(struct aq_group *group, uint32_t from, const struct aq_chunk *chunk, void *into);
    enum aq_status (*flush)(struct aq_group *group); /* everything posted and expected since the last one goes */
    void (*abandon)(struct aq_group *group);         /* a collective has failed: nothing may continue by itself */
};

/* The words that ranks exchange together with a reduction: group_word.c. */
struct aq_group_word {
    bool said;            /* ours is out, the others' have not been taken    */
    uint64_t mine, stops; /* stops: bits that make the reduction void        */
    uint64_t any;         /* those of all ranks, or-ed                       */
    uint64_t stopped;     /* bit w: rank w's word has one of `stops`         */
    struct aq_chunk head;
};

static_assert((int)AQ_GROUP_SIZE_MAX <= 64, "ranks are bits of a word");

struct aq_group {
    const struct aq_group_ops *ops;
    uint32_t rank, size;
    struct aq_device *device;
    uint64_t silence_ns;
    uint32_t piece_bytes;
    uint64_t values; /* aq_group_config */
    enum aq_status broken;
    struct aq_group *whole;             /* that this one is a part of; NULL: none */
    uint64_t number;                    /* of collectives begun */
    uint64_t posted[AQ_GROUP_SIZE_MAX]; /* messages, for settle  */
    struct aq_group_stats stats;
    struct aq_group_word word;
    uint8_t *slots; /* packed messages: aq_group_slot. Of the host (pinned where the device is apart), or the device */
    size_t slots_bytes;
    struct aq_group *host;    /* who moves host memory and agrees; NULL: this one itself */
    struct aq_stream *stream; /* on which reductions of device memory are enqueued       */
    bool isolated, wires_isolated;
    uint8_t *landing; /* apart, and wires are not: messages on their way, one for each rank, device memory */
    const struct aq_grad_codec *prepared;
    struct aq_device_coding *coding; /* of it: collective_device.c */
};

/*
 * The first part of every member's open; AQ_INVAL as for aq_group_open_links. wires_isolated: its messages are device
 * memory. aq_group_deinit frees what it took.
 */
enum aq_status aq_group_init(struct aq_group *group, const struct aq_group_ops *ops, bool wires_isolated,
                             const struct aq_group_config *config);
void aq_group_deinit(struct aq_group *group);

/* Memory for packed message m: those to rank `to`, or (to = size) those of results. */
void *aq_group_slot(const struct aq_group *group, uint32_t to, uint64_t m);

/* A collective's start and end. `detail` is in the bits above the count. A broken group answers why. */
enum aq_status aq_group_begin(struct aq_group *group, enum aq_collective collective, uint64_t detail, uint64_t count,
                              struct aq_chunk *out);
/* Waits until nothing is lent any more, where status is AQ_OK; else breaks the group. */
enum aq_status aq_group_end(struct aq_group *group, enum aq_status status);

/*
 * group_links.c: all links of this group of links are looked at; why one ended. For who waits for something else that
 * all ranks have begun: a rank that left in good order was through with it, and is no error.
 */
enum aq_status aq_group_links_watch(struct aq_group *group);

/* AQ_MISMATCH, with a line that names the position of both. */
enum aq_status aq_group_elsewhere(const struct aq_group *group, uint32_t peer, const struct aq_chunk *theirs,
                                  const struct aq_chunk *mine);

/* The table's calls, counted and checked: take answers AQ_MISMATCH where another message than `expected` comes. */
enum aq_status aq_group_post(struct aq_group *group, uint32_t to, const struct aq_chunk *chunk, const void *body);
enum aq_status aq_group_take(struct aq_group *group, uint32_t from, const struct aq_chunk *expected, const void **body);
void aq_group_give(struct aq_group *group, uint32_t from, const void *body);

/* How long the member slept. */
void aq_group_count_wait(struct aq_group *group, uint64_t begin_ns);
/* AQ_TIMEOUT, with a line that names the awaited rank and the position. */
enum aq_status aq_group_silent(const struct aq_group *group, uint32_t peer);

/*
 * exchange -- the program of everything that reduces: parts of each chunk to its owner, who reduces them, and the
 * result to all, message by message (collective_reduce.c).
 */
struct aq_exchange {
    struct aq_group *group;
    struct aq_chunk head;
    uint64_t count, unit; /* values: in all, of a message */
    bool gather;          /* the result goes to all, not only to its owner */
    const struct aq_exchange_ops *ops;
    void *context;
    const void *wires[AQ_GROUP_SIZE_MAX]; /* of the step at hand, by rank: what pack made, or what has come */
    const void *result;                   /* made by reduce */
    bool sure;                            /* nothing may be packed before it is known that the reduction is not void */
    bool unsure;                          /* set by the program while that is not known: pack keeps what it changes  */
    bool undo;                            /* the program has ended so: what was packed unsure is to be put back       */
    float *results; /* the whole buffer, where results may come into their places unpacked; NULL: they may not */
};

struct aq_exchange_ops {
    /* Bytes on the wire of these values: as a part (phase 0) or as a result (phase 1). */
    uint32_t (*bytes)(const struct aq_exchange *exchange, int phase, uint64_t first, uint64_t count);
    /* Message m of every chunk: sets wires. Slots for it are free. */
    enum aq_status (*pack)(struct aq_exchange *exchange, uint64_t m);
    /* All parts of message m of the own chunk are in wires, but wires[own], which is NULL: makes result. */
    enum aq_status (*reduce)(struct aq_exchange *exchange, uint64_t m, uint64_t first, uint64_t count);
    /* The results of message m of all other chunks are in wires; NULL where a chunk has no such message. */
    enum aq_status (*unpack)(struct aq_exchange *exchange, uint64_t m);
};

/* The values of message m of that rank's chunk; false: it has no values. */
bool aq_exchange_span(const struct aq_exchange *exchange, uint32_t owner, uint64_t m, uint64_t *first, uint64_t *count);

/* Runs it from start to end, given group, count, unit, gather, ops and context. */
enum aq_status aq_exchange_run(struct aq_exchange *exchange, enum aq_collective collective, uint64_t detail);

/*
 * group_word.c. begin: the first of the words that are on their way to this group, or to the one below it. *rides: the
 * exchange may start before they are here, and takes them before its first message; else they have been taken when this
 * returns. *stop: a rank's word makes the exchange void, and what the others have posted of it has been dropped.
 */
enum aq_status aq_group_words_begin(struct aq_exchange *exchange, bool *rides, bool *stop);
enum aq_status aq_group_words_hear(struct aq_exchange *exchange, bool *stop);

/* collective_compressed.c: does the worker's error take up what the server's codec loses? (aq_compressed.whole) */
bool aq_compressed_to_worker(const struct aq_group *group, const struct aq_compressed *asked);

/* The length of messages over NCCL, by the values of the longest buffer, and the memory that they take. */
uint32_t aq_group_nccl_piece(uint32_t size, uint64_t values);
uint64_t aq_group_nccl_bytes(uint32_t size, uint64_t values);

/* As many messages a chunk has at least, so that they overlap; but of AQ_GROUP_MESSAGE_BYTES_MIN. */
static inline uint32_t aq_group_messages_min(const struct aq_group *group)
{
    return group->wires_isolated ? AQ_GROUP_NCCL_MESSAGES_MIN : AQ_GROUP_MESSAGES_MIN;
}

/* ---- collective_device.c: the same of device memory ---- */
struct aq_device_sum {
    float *x;
    float scale;
};
enum aq_status aq_device_sum_run(struct aq_exchange *exchange, struct aq_device_sum *sum,
                                 enum aq_collective collective);
enum aq_status aq_device_compressed_run(struct aq_exchange *exchange, const struct aq_compressed *asked);
/* Keeps what compressed reductions of this codec and count need. */
enum aq_status aq_device_coding_open(struct aq_group *group, const struct aq_grad_codec *codec, uint64_t count,
                                     uint64_t unit, struct aq_device_coding **out);
void aq_device_coding_close(struct aq_group *group, struct aq_device_coding *coding); /* NULL is fine */

/* run(piece) on the group's pool, or here. */
void aq_group_parallel(const struct aq_group *group, uint32_t pieces, void (*run)(uint32_t piece, void *context),
                       void *context);

#endif
