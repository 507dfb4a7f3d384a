/* transfer_private.h -- what both ends of a transfer share (transfer.c, transfer_give.c). */
#ifndef RUNTIME_TRANSFER_PRIVATE_H
#define RUNTIME_TRANSFER_PRIVATE_H

#include "transfer.h"

enum {
    TRANSFER_NAME_BYTES = 64,
    TRANSFER_EDGE = 0x20000, /* of its links: no edge's and no group's number (plan.h) */
    TRANSFER_PIECE = 1,      /* flags of its frames (docs/FRAME.md, MIRROR)            */
    TRANSFER_SILENCE_S = 120 /* a piece takes less at 5 kbit/s                         */
};

/* Below the folder of all checkpoints. */
void transfer_name(const struct aq_transfer_file *file, char name[TRANSFER_NAME_BYTES]);

/* The link has ended, or is silent: fails with how far it came. */
enum aq_status transfer_ended(const struct aq_link_event *event, uint64_t have, uint64_t bytes);
enum aq_status transfer_silent(uint64_t have, uint64_t bytes);

#endif
