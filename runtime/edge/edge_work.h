/*
 * edge_work.h -- the work of a direction, shared by edge_work.c (coding and decoding micro-batches) and
 * edge_work_open.c (the memory for it).
 *
 * Locking: the exec thread.
 */
#ifndef RUNTIME_EDGE_WORK_H
#define RUNTIME_EDGE_WORK_H

#include "edge_private.h"

/* One direction's: what is coded and sent, or received and decoded. */
struct aq_edge_work {
    /* Of each sample. */
    struct aq_edge_reference *references; /* of a codec with messages */
    struct aq_edge_row *rows;
    uint64_t *sample_ids;
    uint32_t *lengths;
    struct aq_view *views; /* at this cut */
    struct aq_codec_sample *samples; /* encode: of those that are coded; decode: of all */
    uint32_t *place;                 /* encode: of each sample among those that are coded: held ones have none */
    uint32_t coded;
    struct aq_rng_key *keys;
    bool *wide; /* of each sample: it goes by the wide codec (edge_wide.c) */
    void *own;
    /* Of the micro-batch. */
    struct aq_codec *codec;
    struct aq_edge_batch batch;
    enum aq_frame_kind kind;
    bool forward, remembered;
    struct aq_stream *stream;
    struct aq_values values;
    uint32_t first, end; /* of its samples: the group that is issued */
    uint32_t body_bytes; /* encode: length up to the end of the group; decode: offset of the next body */
    uint32_t begin_bytes; /* encode: length before the group */
    /* Output of the codec. */
    struct aq_codec_result *results;
    uint32_t *corrupt;
    struct aq_edge_check check; /* memory of checks */
    uint32_t checks;            /* bodies of this micro-batch that are checked: its first ones */
    uint8_t *crops; /* windows of messages of images that are cropped, as long as messages; NULL: none are */
    size_t crop_stride, crop_bytes; /* 0: one serves all samples in turn; of all */
    /* The rest is for a device that codes. Its memory of each sample: the body, the message (of forward codecs). */
    uint8_t *memory;
    size_t memory_bytes, body_stride, message_stride;
    void *told; /* pinned: results, corrupt */
    size_t told_bytes;
    struct aq_event *begun, *ended; /* timed; NULL: the host codes */
    /* On its way. */
    bool pending;
    bool settled;                /* encode: bodies have been copied by their real lengths */
    bool widened;                /* encode: what fp16 could not hold has been coded again  */
    uint8_t *spare;              /* encode, of a device that codes: values of a sample that is coded again */
    size_t spare_bytes;
    uint32_t body;               /* encode: index of the send buffer            */
    uint8_t *bodies;             /* encode: of the device, where NCCL carries them; NULL: in the send buffer */
    struct aq_edge_received got; /* decode: the frame                           */
    uint64_t issued_ns, since_ns, host_ns; /* when; since when this thread is at it, and how long it was before */
};

struct aq_edge_works {
    struct aq_edge_work encode, decode;
};

/* A device's memory of sample i: its body, and the message behind that. */
static inline uint8_t *aq_edge_body_at(const struct aq_edge_work *work, uint32_t i)
{
    return work->memory + i * (work->body_stride + work->message_stride);
}

static inline uint8_t *aq_edge_message_at(const struct aq_edge_work *work, uint32_t i)
{
    return aq_edge_body_at(work, i) + work->body_stride;
}

/* edge_work.c: whatever is still ours goes back; after a failure all of it, when the stream has let go. */
enum aq_status aq_edge_work_end(struct aq_edge *edge, struct aq_edge_work *work, enum aq_status status);

#endif
