/*
 * transfer.h -- the file of a checkpoint over a link of its own: from the rank that has written it for another one
 * (reduce.patience) to that one, whose disk does not have it.
 *
 * The receiver knows the length and the SHA-256 of the file before it begins: the launcher has them from the rank that
 * wrote it. It writes under a temporary name, compares, syncs and renames, so that the file is there as a whole or not
 * at all, and what had its name before stays until then. The sender has a thread and a network loop of its own:
 * training waits for neither its disk nor the line. The link is of the rank's usual kind (identity, pace, packing,
 * healing), with the number of no other edge. Its frames are of kind MIRROR (docs/FRAME.md).
 *
 * Bytes from the peer never reach an assertion: another kind of frame, another step, a gap, too many bytes, an early
 * end, and silence are one error each, and it is logged.
 *
 *     aq_transfer_look(&file);                             the writer: length and hash, for the launcher
 *     aq_transfer_give_open(&config, &give);               the writer, when it is asked for the file
 *     aq_transfer_link_config(&config); ... accept ...     the receiver
 *     aq_transfer_receive(link, eventcount, &file);
 *
 * Locking: look and receive: any one thread. give_*: one thread, which is not the give's own.
 */
#ifndef RUNTIME_TRANSFER_H
#define RUNTIME_TRANSFER_H

#include <stdbool.h>
#include <stdint.h>

#include "aqsgd/base.h"
#include "net/link.h"
#include "seal.h"

enum {
    AQ_TRANSFER_PIECE_BYTES = 64 << 10,
    AQ_TRANSFER_PIECES = 64 /* on their way at once: 4 MiB, which is 330 Mbit/s at 100 ms */
};

/* <folder>/<step>/stage-<rank>.safetensors */
struct aq_transfer_file {
    const char *folder; /* of all checkpoints; borrowed */
    uint64_t step;
    uint32_t rank;
    uint64_t bytes;
    char hash[AQ_HASH_TEXT_BYTES];
};

/* Length and hash of the file that is there. AQ_NOTFOUND (not logged); AQ_IO. */
enum aq_status aq_transfer_look(struct aq_transfer_file *file);

/* Is a file there that has this length and hash? */
bool aq_transfer_is_here(const struct aq_transfer_file *file);

/* What such a link needs, on top of what the rank's links have; and its bytes of RAM, with those of the sender. */
void aq_transfer_link_config(struct aq_link_config *config);
uint64_t aq_transfer_measure(const struct aq_link_config *config);

/*
 * The file comes over this link, whose other end gives it. AQ_OK: it is on the disk. AQ_CORRUPT: it has another hash;
 * AQ_PROTO, AQ_TIMEOUT: the peer; AQ_NOSPC, AQ_IO, AQ_REFUSED: the disk; or as the link ended. Nothing of it is left
 * then, and the peer has been told. The link must still be closed.
 */
enum aq_status aq_transfer_receive(struct aq_link *link, struct aq_eventcount *eventcount,
                                   const struct aq_transfer_file *file);

/* So many bytes of the open file into `bytes`. AQ_IO: fewer are there. */
enum aq_status aq_transfer_read(const struct aq_transfer_file *file, int fd, uint8_t *bytes, uint32_t count,
                                uint64_t offset);

/* ---- transfer_give.c: the other end ---- */

struct aq_transfer_give; /* opaque */

struct aq_transfer_give_config {
    struct aq_transfer_file file; /* hash: not used */
    const char *address;          /* where the receiver listens; copied, with the rest, but for `folder` and `tls` */
    struct aq_link_config link;
    struct aq_tls *tls; /* as in aq_net_config */
    uint64_t connect_ns_max;
};

/* Begins, on a thread of its own. AQ_NOMEM. */
enum aq_status aq_transfer_give_open(const struct aq_transfer_give_config *config, struct aq_transfer_give **out);

struct aq_transfer_file aq_transfer_give_file(const struct aq_transfer_give *give);

/* AQ_AGAIN; AQ_OK: all of it is at the receiver. Else *text (borrowed until close) has the reason. */
enum aq_status aq_transfer_give_done(const struct aq_transfer_give *give, const char **text);

/* Gives up what is on its way. NULL is fine. */
void aq_transfer_give_close(struct aq_transfer_give *give);

#endif
