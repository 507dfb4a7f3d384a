/*
 * packer.h -- which bodies of a link are sent packed (link.entropy), and where the packed bytes lie meanwhile.
 *
 * `zstd` packs every body of AQ_PACK_BYTES_MIN to AQ_PACK_BYTES_MAX that gets smaller. `auto` asks for more: the saved
 * time on the wire must be longer than packing and unpacking, and at least 3 %. A kind of frame whose last body did not
 * save so much is not packed for 1, 2, 4, ... up to 64 frames, and then tried again: a rule of counts, so that the same
 * bodies give the same frames. `auto` packs nothing on links of more than AQ_PACK_RATE_MBPS_MAX. Where no rate is
 * declared, it packs nothing to a peer on this machine, takes a link to another one for AQ_PACK_RATE_MBPS, and then
 * measures: the link reports what the network is seen to carry (aq_packer_rate), and each trial how long the coder
 * takes on this machine as busy as it is. Then frames, but not what is in them, differ from run to run.
 *
 * Two buffers: one goes out while the next body is packed, so that the wire does not wait for the coder.
 * Locking: the loop's.
 */
#ifndef NET_PACKER_H
#define NET_PACKER_H

#include "entropy.h"
#include "frame.h"
#include "net/link.h"

enum { AQ_PACKER_BUFFERS = 2, AQ_PACKER_NONE = UINT8_MAX };

struct aq_packed { /* a body as it goes out */
    const uint8_t *bytes;
    uint32_t byte_count;
    uint32_t raw_bytes; /* 0: it is not packed, bytes is the caller's body */
    uint8_t buffer;     /* until aq_packer_release; AQ_PACKER_NONE: none   */
};

struct aq_packer {
    struct aq_entropy *entropy; /* NULL: nothing is packed */
    bool sparing;               /* auto */
    bool measures;              /* auto without a declared rate: the link calls aq_packer_rate before each body */
    double share_min;           /* of a body: what must be saved */
    double rate_mbps, byte_ns;  /* measures: of the network; of both ends' coders, a byte */
    uint8_t *buffers[AQ_PACKER_BUFFERS];
    bool taken[AQ_PACKER_BUFFERS];
    struct {
        uint8_t pause, left; /* frames not to pack: after the last trial, and remaining */
    } kinds[AQ_FRAME_KIND_LAST + 1 - AQ_FRAME_KIND_RUNTIME];
};

/* Cut the packer's memory (aq_arena twice: measuring, placing). */
void aq_packer_place(struct aq_packer *packer, struct aq_arena *arena, uint32_t body_bytes_max);
/* local: the peer is on this machine. entropy: borrowed while the link lives; NULL: nothing is packed. */
void aq_packer_start(struct aq_packer *packer, const struct aq_link_config *config, bool local,
                     struct aq_entropy *entropy);

/* measures: what the network carries now; 0: not known, which changes nothing. */
void aq_packer_rate(struct aq_packer *packer, double rate_mbps);

/* AQ_AGAIN: both buffers are on their way out. The body is borrowed while *out is in use. */
enum aq_status aq_packer_pack(struct aq_packer *packer, const struct aq_frame *frame, struct aq_packed *out);
void aq_packer_release(struct aq_packer *packer, uint8_t buffer); /* also AQ_PACKER_NONE */

#endif
