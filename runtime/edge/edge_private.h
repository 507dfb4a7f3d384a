/*
 * edge_private.h -- the inside of an edge, shared by edge.c (open, pump, drain), edge_frames.c (channels of
 * micro-batches), edge_work.c (coding them), edge_reference.c (which message a sample is coded against), edge_heal.c
 * (lost messages), edge_cached.c (samples that never change), edge_view.c (images that are cropped) and edge_carry.c
 * (bodies from GPU to GPU).
 */
#ifndef RUNTIME_EDGE_PRIVATE_H
#define RUNTIME_EDGE_PRIVATE_H

#include "channel.h"
#include "edge.h"
#include "edge_check.h"
#include "edge_row.h"

enum { AQ_EDGE_ASKS_MAX = 256 }; /* messages asked for and not answered yet, each way */

/* The references that the sender keeps for one micro-batch in flight. */
struct aq_edge_held {
    uint32_t count;
    struct aq_cache_entry *entries; /* B of them; of a still edge without bytes: the cache has these */
    struct aq_cache_key *keys;
};

/* A frame that has been taken from its channel; its body is ours until aq_edge_received_release. */
struct aq_edge_received {
    struct aq_frame frame;
    bool spilled;          /* as in the channel                                                  */
    uint64_t carried;      /* number of the bodies that go from GPU to GPU; 0: they follow the rows */
    const uint8_t *bodies; /* what the rows count from: the frame's body, or a slot of the device */
    uint32_t bytes;        /* up to the end of the last                                           */
};

struct aq_edge_works;   /* edge_work.c: the micro-batches that are being coded and decoded */
struct aq_edge_carry;   /* edge_carry.h: bodies from GPU to GPU                       */

/* A message that one side asks the other for. */
struct aq_edge_fetch {
    struct aq_cache_key key; /* as this side has it */
    uint64_t version;        /* 0: any                                              */
    uint32_t bytes;          /* that it has; of what is asked by the other side: 0  */
    bool awaited;            /* of our requests: aq_edge_fetch waits for it; else it goes to the cache */
};

/* Our requests, in order: answers come as they were asked for. */
struct aq_edge_fetches {
    struct aq_edge_fetch items[AQ_EDGE_ASKS_MAX];
    uint32_t first, count;
};

/* The message that a sample is coded against, and where the message after goes. Zeroed: nothing yet. */
struct aq_edge_reference {
    bool held;    /* of a still edge: entry, without its bytes at the sender, is the activation */
    bool warm;    /* there is one: entry */
    bool fetched; /* entry's bytes are the other side's, in message; else the cache's */
    struct aq_cache_entry entry;
    struct aq_frame message;
    void *slot; /* of the cache; NULL: nothing is stored */
};

/* The codecs of one way. */
struct aq_edge_levels {
    struct aq_codec *codecs[AQ_EDGE_LEVELS];
    struct aq_codec *wide[AQ_EDGE_LEVELS]; /* of each: what codes samples that fp16 cannot hold; NULL: nothing does */
    uint32_t count, now;                   /* now: as aq_edge_levels was told */
};

struct aq_edge {
    struct aq_edge_config config;
    struct aq_edge_shape shape;
    struct aq_edge_size size;
    uint64_t values; /* from one sample to the next: rows x columns */
    struct aq_codec *forward, *backward, *raw; /* the lowest levels of both ways */
    struct aq_edge_levels forwards_by, backwards_by;
    struct aq_edge_works *works;
    uint64_t checked;                /* step, and one, of the last frame sent that carries a check: edge_check.h */
    bool on_device;                  /* the device codes; else this thread does */
    struct aq_edge_carry *carry;     /* NULL: bodies go over the link      */
    struct aq_channels *channels;    /* frames, either way                 */
    struct aq_pages pages;
    uint8_t *bodies; /* size.buffer_bytes: send buffers, vectors, the body of zeroes */
    enum aq_status ended; /* the link's end, or what went wrong in coding; AQ_OK while it lives */
    /* Healing. */
    struct aq_edge_held *held; /* shape.slots of them */
    void *held_memory;
    struct aq_edge_fetches asking;  /* of the other side, and not answered yet                             */
    uint64_t asks_left;             /* that the other side may have: what can be lost, and a little a frame */
    struct aq_edge_fetch remake;    /* the other side waits for it, and it is lost here too: edge_cached.c  */
    bool remaking;                  /* there is one                                                        */
    uint8_t *cached_body;           /* of zeroes, behind those: the change of what does not change      */
    struct aq_edge_measures measures;
};

static inline enum aq_status aq_edge_body_take(struct aq_edge *edge, uint32_t *index)
{
    return aq_channels_body_take(edge->channels, index);
}
static inline void aq_edge_body_return(struct aq_edge *edge, uint32_t index)
{
    aq_channels_body_return(edge->channels, index);
}
static inline uint8_t *aq_edge_body(struct aq_edge *edge, uint32_t index)
{
    return aq_channels_body(edge->channels, index);
}

/*
 * Post the coded micro-batch, of body_bytes bytes, in that send buffer: all of it, or with the flag AQ_EDGE_CARRIED
 * only its rows.
 */
enum aq_status aq_edge_post_batch(struct aq_edge *edge, enum aq_frame_kind kind, const struct aq_edge_batch *batch,
                                  uint32_t body_index, uint32_t body_bytes);

/* Handle only the link's events. */
enum aq_status aq_edge_link_pump(struct aq_edge *edge);

void aq_edge_received_release(struct aq_edge *edge, const struct aq_edge_received *got);

/* Device memory of an end that edge_work.c and edge_carry.c allocate; of the latter also the part that can be
 * mapped. */
uint64_t aq_edge_works_bytes(const struct aq_edge_shape *shape, const struct aq_edge_size *size);
/* And of the host, for the windows of images that are cropped: one, or one per sample if the device codes. */
uint64_t aq_edge_crop_bytes(const struct aq_edge_shape *shape, const struct aq_edge_size *size);
uint64_t aq_edge_carry_bytes(const struct aq_edge_size *size);
uint64_t aq_edge_carry_shared_bytes(const struct aq_edge_size *size);

/* --- edge_reference.c -------------------------------------------------------------------------------------------- */

struct aq_cache_key aq_edge_key(const struct aq_edge *edge, uint64_t sample, uint16_t variant);
struct aq_cache_key aq_edge_key_of(const struct aq_edge *edge, const struct aq_edge_batch *batch, uint32_t i);
/* Is this step one of the epochs that go uncompressed (edges.warmup_epochs)? */
bool aq_edge_warms_up(const struct aq_edge *edge, uint64_t step);
/* Rows that sample i has at this cut, and the bytes of its message. */
uint32_t aq_edge_rows(const struct aq_edge *edge, const struct aq_edge_batch *batch, uint32_t i);
uint32_t aq_edge_message_bytes(const struct aq_edge *edge, const struct aq_edge_batch *batch, uint32_t i);
/* The stream of random numbers of one sample in one direction. */
struct aq_rng_key aq_edge_round_key_of(const struct aq_edge_shape *shape, const struct aq_edge_batch *batch, uint32_t i,
                                    bool forward);
static inline struct aq_rng_key aq_edge_round_key(const struct aq_edge *edge, const struct aq_edge_batch *batch,
                                                  uint32_t i, bool forward)
{
    return aq_edge_round_key_of(&edge->shape, batch, i, forward);
}

/* AQ_NOTFOUND: cold; AQ_CORRUPT: lost. bytes: that the message must have; 0: any. */
enum aq_status aq_edge_cache_get(struct aq_edge *edge, const struct aq_cache_key *key, uint32_t bytes,
                                 struct aq_cache_entry *entry);

/*
 * The reference of a sample that is sent, or of a row that has come, and a slot for the message after. After a failure,
 * and when the sample is done, close gives back what is still ours; release only the reference.
 */
enum aq_status aq_edge_reference_send(struct aq_edge *edge, const struct aq_edge_batch *batch, uint32_t i,
                                      struct aq_edge_reference *out);
enum aq_status aq_edge_reference_receive(struct aq_edge *edge, const struct aq_edge_batch *batch, uint32_t i,
                                         const struct aq_edge_row *row, struct aq_edge_reference *out);
void aq_edge_reference_release(struct aq_edge *edge, struct aq_edge_reference *reference);
void aq_edge_reference_close(struct aq_edge *edge, struct aq_edge_reference *reference);

/*
 * A sample is coded: its message goes to the cache, its reference to those that are held; fills the row. And one is
 * decoded: AQ_CORRUPT where the message after is not the sender's. reference NULL: the codec keeps no messages.
 * body: of the sample, in host memory; NULL: it is not there.
 */
enum aq_status aq_edge_sent(struct aq_edge *edge, const struct aq_codec *codec, bool forward, bool wide,
                            const struct aq_edge_batch *batch, uint32_t i, const struct aq_codec_result *result,
                            const uint8_t *body, struct aq_edge_reference *reference, struct aq_edge_row *row);
enum aq_status aq_edge_received(struct aq_edge *edge, bool forward, const struct aq_edge_batch *batch, uint32_t i,
                                const struct aq_edge_row *row, struct aq_edge_reference *reference);

/* Everything about a row that can be known before its body is touched. codec: the frame's. */
enum aq_status aq_edge_row_check(const struct aq_edge *edge, const struct aq_edge_batch *batch, uint32_t i,
                                 const struct aq_codec *codec, const struct aq_edge_row *row, uint32_t at,
                                 uint32_t body_bytes, bool remembered);

/* --- edge_cached.c ------------------------------------------------------------------------------------------------ */

/*
 * The sender's: is sample i held by both ends (out->held), or must it be coded (a slot is taken)? Then its row, as
 * aq_edge_sent; its key is kept until the gradient's frame is back.
 */
enum aq_status aq_edge_cached_reference(struct aq_edge *edge, const struct aq_edge_batch *batch, uint32_t i,
                                        struct aq_edge_reference *out);
void aq_edge_cached_sent(struct aq_edge *edge, const struct aq_edge_batch *batch, uint32_t i,
                         const struct aq_edge_reference *reference, struct aq_edge_row *row);

/* The receiver's: the message that a row with AQ_EDGE_HELD names, its own or the sender's; row NULL: any. */
enum aq_status aq_edge_cached_held(struct aq_edge *edge, const struct aq_edge_batch *batch, uint32_t i,
                                   const struct aq_edge_row *row, struct aq_edge_reference *out);

/* Frames of gradients, which no stage upstream needs: no body. */
enum aq_status aq_edge_cached_back(struct aq_edge *edge, const struct aq_edge_batch *batch);

/* --- edge_view.c -------------------------------------------------------------------------------------------------- */

/* How sample i is seen at this cut; `moves` false: its message is not moved. */
struct aq_view aq_edge_view_of(const struct aq_edge *edge, const struct aq_edge_batch *batch, uint32_t i, bool moves);
static inline bool aq_edge_view_moves(const struct aq_view *view)
{
    return view->down != 0 || view->right != 0;
}

/*
 * A sample that is moved, and has a slot: before it is coded or decoded the slot gets its message and crop the window
 * of it (warm) which the codec then reads and writes; afterwards the window goes back into the slot.
 */
void aq_edge_view_begin(const struct aq_edge *edge, const struct aq_view *view,
                        const struct aq_edge_reference *reference, uint8_t *crop);
void aq_edge_view_end(const struct aq_edge *edge, const struct aq_view *view, const uint8_t *crop, void *slot);

/* --- edge_work.c -------------------------------------------------------------------------------------------------- */

/* edge_wide.c: what codes in place of this codec where fp16 does not do; NULL: nothing. */
struct aq_codec *aq_edge_wide_of(const struct aq_edge *edge, const struct aq_codec *codec);

enum aq_status aq_edge_works_open(struct aq_edge *edge);
void aq_edge_works_close(struct aq_edge *edge);

/*
 * Code a micro-batch and post it, or decode it. If the host codes, it is done when this returns; on a device it may be
 * on its way, and is done by a later aq_edge_works_advance. body, a send buffer, and got are taken, also on failure.
 * bodies: of aq_edge_carry_slot.
 */
enum aq_status aq_edge_encode_issue(struct aq_edge *edge, struct aq_codec *codec, enum aq_frame_kind kind,
                                    const struct aq_edge_batch *batch, const struct aq_values *values, uint32_t body,
                                    uint8_t *bodies, struct aq_stream *stream);
enum aq_status aq_edge_decode_issue(struct aq_edge *edge, struct aq_codec *codec, const struct aq_edge_batch *batch,
                                    const struct aq_edge_received *got, const struct aq_values *values,
                                    struct aq_stream *stream);
/* One sample without a reference, now: its message to `message`, host memory. wide: by the wide codec. */
enum aq_status aq_edge_encode_alone(struct aq_edge *edge, const struct aq_edge_batch *batch,
                                    const struct aq_values *values, bool wide, uint8_t *body, void *message,
                                    uint32_t *flags, struct aq_stream *stream);
/* The device's memory of the first sample of a direction, where nothing is on its way. message NULL: it has none. */
struct aq_edge_places {
    uint8_t *body, *message;
    float *hat; /* of checks; NULL: no checks */
    struct aq_codec_result *result;
    uint32_t *corrupt;
};
struct aq_edge_places aq_edge_places_of(const struct aq_edge *edge, bool forward);

bool aq_edge_encoding(const struct aq_edge *edge); /* one is on its way: issue no other */
bool aq_edge_decoding(const struct aq_edge *edge);
enum aq_status aq_edge_works_advance(struct aq_edge *edge);

/*
 * edge_carry.c: the slot for the bodies of the next micro-batch (NULL: the frame itself), or AQ_AGAIN. The bodies are
 * coded: they go, before their frame.
 */
enum aq_status aq_edge_carry_slot(struct aq_edge *edge, uint8_t **bodies);
/* head: bytes of rows and checks, which go in the frame. */
void aq_edge_carry_out(struct aq_edge *edge, uint8_t *bodies, uint32_t head, uint32_t bytes);
/* A frame has come: is it sound, and what number have its bodies? Are they here? Sets their address. */
enum aq_status aq_edge_carried_in(struct aq_edge *edge, const struct aq_frame *frame, uint64_t *number);
bool aq_edge_carried_here(const struct aq_edge *edge, uint64_t number);
enum aq_status aq_edge_carried_take(const struct aq_edge *edge, struct aq_edge_received *got);
void aq_edge_carried_release(struct aq_edge *edge, uint64_t number);
enum aq_status aq_edge_carry_advance(struct aq_edge *edge);
/* All has been sent and taken: the other end's memory is unmapped, and ours there. AQ_AGAIN: not yet, pump. */
enum aq_status aq_edge_carry_shutdown(struct aq_edge *edge);
void aq_edge_carry_close(struct aq_edge *edge);

/* Of a micro-batch in flight, modulo the slots: whatever steps are under way. */
static inline uint64_t aq_edge_number(const struct aq_edge_batch *batch)
{
    return batch->base + batch->micro_batch;
}

/* edge_heal.c */
/* Keep the references of a micro-batch (its number: aq_edge_number) until its gradient is back; takes them. */
void aq_edge_hold(struct aq_edge *edge, uint64_t number, const struct aq_cache_key *key,
                  const struct aq_cache_entry *entry);
void aq_edge_unhold(struct aq_edge *edge, uint64_t number);
/* A message to the cache, from memory that is not the cache's. AQ_AGAIN: no slot. */
enum aq_status aq_edge_keep(struct aq_edge *edge, const struct aq_cache_key *key, uint64_t version, uint64_t digest,
                            const void *bytes, uint32_t count);
/* What the other side asks for is answered in turn, when a send buffer is free for it. */
enum aq_status aq_edge_fetches_serve(struct aq_edge *edge);
/*
 * Ask the other side for a message of `bytes` bytes and wait. AQ_OK: *message has it (release with
 * aq_edge_message_release); AQ_NOTFOUND: it has none. version 0: any.
 */
enum aq_status aq_edge_fetch(struct aq_edge *edge, const struct aq_cache_key *key, uint64_t version, uint32_t bytes,
                             struct aq_frame *message);
void aq_edge_message_release(struct aq_edge *edge, struct aq_frame *message); /* once; later calls do nothing */

#endif
