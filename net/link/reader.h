/*
 * reader.h -- bytes of a stream in, whole checked frames out; and the link's receive slots.
 *
 * The reader never allocates because of bytes from the wire: slots are taken when the link is opened, and a header
 * whose body finds no free slot ends the link. It knows no sockets, so that a fuzzer can drive it.
 *
 *     count = aq_reader_room(&r, iov);          where the next bytes go
 *     aq_reader_filled(&r, got);
 *     while ((status = aq_reader_next(&r, &frame)) == AQ_OK) ...      AQ_AGAIN: more bytes; else r.text says why
 *
 * Locking: the loop's.
 */
#ifndef NET_READER_H
#define NET_READER_H

#include <sys/uio.h>

#include "entropy.h"
#include "frame.h"

enum {
    AQ_READER_STAGE_BYTES = 16384, /* headers and small bodies are read together: 128 empty frames in one go         */
    AQ_READER_CHUNK_MAX = 1 << 20  /* bytes of a large body in one go, so that other links have their turn           */
};

struct aq_reader {
    /* The values that a frame must have. */
    uint32_t from, edge, body_bytes_max;
    uint64_t plan_hash;
    uint64_t
        sent_sequence;     /* of my last frame: no acknowledge may be above it; set by the link before aq_reader_next */
    uint32_t credit_max;   /* credits that the peer may still give back; set by the link likewise                     */
    uint32_t slots_untold; /* free slots not yet announced to the peer by a credit; set by the link likewise         */
    uint64_t sequence;     /* of the last frame received and checked                                                  */

    uint8_t *slots; /* slot_count times slot_bytes */
    uint32_t slot_bytes, slot_count;
    uint32_t *slot_free; /* a stack of free slots       */
    uint32_t slot_free_count;

    uint8_t *stage; /* AQ_READER_STAGE_BYTES: bytes read and not yet parsed are in [begin, end)                   */
    uint32_t begin, end;
    uint8_t *packed; /* aq_packed_bytes_max: packed bodies come here first; NULL: none were agreed             */
    struct aq_entropy *entropy; /* unpacks them; the link's to set                                                */
    uint64_t packing_ns;        /* spent on that                                                                   */
    uint8_t *control; /* AQ_FRAME_CONTROL_BYTES_MAX: bodies of the link's own kinds                                 */

    bool parts; /* bodies may come in parts: they were agreed; the link's to set */
    bool in_body;
    bool gap_due;            /* the next bytes are a gap of that body */
    bool cut;                /* a body was, and only an ABORT may follow */
    struct aq_header header; /* of the body that is being read */
    uint8_t *body;
    uint32_t slot; /* of that body; UINT32_MAX: control */
    uint32_t body_got;
    uint64_t begun_ns; /* when that body's header was seen  */
    char text[AQ_TEXT_BYTES];
};

struct aq_reader_frame {
    struct aq_header header; /* of a gap: a CREDIT, which is all that it contains */
    uint32_t body_bytes;     /* of body; header.body_bytes is what came: fewer where it was packed                */
    const uint8_t *body;     /* NULL: none. Of the link's own kinds: until the next call of aq_reader_next       */
    uint32_t slot;           /* of a runtime frame with a body, until aq_reader_release; UINT32_MAX: none        */
    uint64_t begun_ns;
};

/* Cut the reader's memory (aq_arena twice: measuring, placing). packs: packed bodies may come. */
void aq_reader_place(struct aq_reader *reader, struct aq_arena *arena, uint32_t body_bytes_max, uint32_t slots,
                     bool packs);
/* All slots free, nothing read. from, edge, plan_hash and body_bytes_max are the caller's to set. */
void aq_reader_start(struct aq_reader *reader);

/* The stream has been lost: forget what has been read of frames that are not whole and checked, keep the sequence. */
void aq_reader_cut(struct aq_reader *reader);

/* One or two pieces of memory for the next bytes; never 0 bytes. */
int aq_reader_room(struct aq_reader *reader, struct iovec iov[2]);
void aq_reader_filled(struct aq_reader *reader, size_t got);
enum aq_status aq_reader_next(struct aq_reader *reader, struct aq_reader_frame *out);
void aq_reader_release(struct aq_reader *reader, uint32_t slot);

#endif
