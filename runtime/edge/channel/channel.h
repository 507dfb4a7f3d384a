/*
 * channel.h -- the channels of an edge: one per kind of frame, and the send buffers that they share.
 *
 * All frames of an edge travel over one link. A channel is one kind of them: it knows which end may send it and whether
 * it has bodies, keeps frames that were received in order until they are taken, and counts frames that were posted
 * until the link returns them. Each kind is a row of channels.def, and a file with its typed functions:
 *
 *     post      hands a frame to the link; its body is lent until the link returns it
 *     ready     the next frame that was received, or NULL
 *     take      removes it from the channel; its body is the caller's
 *     release   returns its body
 *
 * A frame that its channel does not expect is the peer's fault: AQ_PROTO.
 *
 * Locking: the exec thread of the worker.
 */
#ifndef RUNTIME_CHANNEL_H
#define RUNTIME_CHANNEL_H

#include <stdbool.h>
#include <stdint.h>

#include "aqsgd/base.h"
#include "edge_shape.h"
#include "net/link.h"

struct aq_edge; /* edge.h */

enum aq_channel_id {
#define AQ_CHANNEL(name) AQ_CHANNEL_ID_##name,
#include "channels.def"
    AQ_CHANNELS
};

enum aq_channel_direction {
    AQ_CHANNEL_DOWN = 1, /* from the sender of activations to their receiver */
    AQ_CHANNEL_UP = 2,
    AQ_CHANNEL_BOTH = 3
};

enum {
    AQ_CHANNEL_BODIES_MAX = 256, /* send buffers: link.send_frames has the same bound           */
    AQ_CHANNEL_FRAMES_MAX = 256  /* that wait in a channel: bounded by the link's receive slots */
};
#define AQ_CHANNEL_BARE UINT32_MAX /* the place of a frame without a body */

struct aq_channel;

struct aq_channels_config {
    struct aq_edge *edge;              /* whose channels they are                                          */
    const struct aq_edge_shape *shape; /* borrowed                                                         */
    bool sender;                       /* of activations                                                   */
    struct aq_link *link;              /* borrowed                                                         */
    bool mirror;                       /* frames of mirrored checkpoints may come                          */
    uint8_t *bodies;                   /* shape->send_frames buffers of body_bytes each; borrowed          */
    uint64_t body_bytes;               /* of a frame, at most                                              */
    float *vectors;                    /* shape->shared + summed + tied of them; borrowed: edge_shared.c's */
};

struct aq_channel_type {
    enum aq_frame_kind kind;
    enum aq_channel_direction direction;
    bool bare;          /* its frames have no bodies                                               */
    size_t state_bytes; /* of aq_channel.state, zeroed at open                                     */
    /* Frames that may wait in it, at most AQ_CHANNEL_FRAMES_MAX; NULL: none may. */
    uint32_t (*bound)(const struct aq_channels_config *config);
    /* Prepares the state; NULL: zeroes are fine. */
    void (*open)(struct aq_channel *channel);
    /* A frame that may come has arrived; takes its body. NULL: aq_channel_keep, until it is taken. */
    enum aq_status (*arrived)(struct aq_channel *channel, const struct aq_frame *frame);
    /* The link has returned the body at this place. NULL: places are send buffers, and this one is free again. */
    void (*sent)(struct aq_channel *channel, uint32_t place);
    /* Is something here that the caller still takes after the link has ended in good order? NULL: never. */
    bool (*left)(const struct aq_channel *channel);
};

/* A frame in a channel. */
struct aq_channel_item {
    struct aq_frame frame;
    uint64_t note; /* the channel's own                                       */
    bool spilled;  /* its body is in memory of its own, not in a slot of the link */
};

struct aq_channel {
    const struct aq_channel_type *type;
    struct aq_channels *set;
    struct aq_channel_item *items; /* a ring of `bound` */
    uint32_t bound, first, count;
    uint32_t out, bodies_out; /* posted and not returned yet: frames; of these with bodies */
    uint64_t posted;          /* frames, ever */
    void *state;
};

struct aq_channels {
    struct aq_channels_config config;
    struct aq_channel all[AQ_CHANNELS];
    uint32_t out;    /* sums over all */
    uint64_t posted;
    uint32_t body_count, free_count;
    uint32_t free_bodies[AQ_CHANNEL_BODIES_MAX];
};

/* AQ_NOMEM. */
enum aq_status aq_channels_open(const struct aq_channels_config *config, struct aq_channels **out);
void aq_channels_close(struct aq_channels *channels); /* returns bodies that were received; NULL is fine */

/* edge.c: a channel of an edge. */
struct aq_channel *aq_edge_channel(const struct aq_edge *edge, enum aq_channel_id id);

/* The link has received a frame: to its channel. AQ_PROTO: it was not expected, or what is wrong with it. */
enum aq_status aq_channels_arrived(struct aq_channels *channels, const struct aq_frame *frame);
/* The link has returned a frame, which was posted with this token. */
void aq_channels_sent(struct aq_channels *channels, uint64_t token);

bool aq_channels_left(const struct aq_channels *channels); /* is it so of any? */

/* A free send buffer's index, or AQ_AGAIN. It is the caller's until it is posted or returned. */
enum aq_status aq_channels_body_take(struct aq_channels *channels, uint32_t *index);
void aq_channels_body_return(struct aq_channels *channels, uint32_t index);
static inline uint8_t *aq_channels_body(const struct aq_channels *channels, uint32_t index)
{
    return channels->config.bodies + (uint64_t)index * channels->config.body_bytes;
}

/*
 * Hand a frame of the channel's kind to the link, whose body is at this place (AQ_CHANNEL_BARE: it has none). A send
 * buffer is taken, also on failure. AQ_AGAIN: the link has no room; why the link ended.
 */
enum aq_status aq_channel_post(struct aq_channel *channel, const struct aq_frame *frame, uint32_t place);

/* Frame i of those that wait, i < count: 0 is the next. */
static inline struct aq_channel_item *aq_channel_at(const struct aq_channel *channel, uint32_t i)
{
    return &channel->items[(channel->first + i) % channel->bound];
}

/* The next frame, which stays; NULL: none waits. */
static inline const struct aq_frame *aq_channel_ready(const struct aq_channel *channel)
{
    return channel->count > 0 ? &aq_channel_at(channel, 0)->frame : NULL;
}

/* Does a frame wait? For types that have nothing else. */
bool aq_channel_left(const struct aq_channel *channel);

/* Removes the next frame, which must be there. */
struct aq_channel_item aq_channel_take(struct aq_channel *channel);
/* Returns the body of a frame that was taken. */
void aq_channel_release(struct aq_channel *channel, const struct aq_channel_item *item);

/* Adds a frame. AQ_PROTO: as many wait as may; its body is released. */
enum aq_status aq_channel_keep(struct aq_channel *channel, const struct aq_frame *frame, uint64_t note);

/* The failure of a frame that was not expected; releases its body. */
enum aq_status aq_channel_unexpected(const struct aq_channels *channels, const struct aq_frame *frame);

/* Moves bodies that wait in slots of the link to memory of their own, so that the peer has credits. AQ_NOMEM. */
enum aq_status aq_channel_spill(struct aq_channel *channel);

#define AQ_CHANNEL(name) extern const struct aq_channel_type aq_channel_##name;
#include "channels.def"

#endif
