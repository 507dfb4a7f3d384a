/*
 * pieces.h -- a stream of bytes over datagrams that may be lost, repeated or reordered: numbered pieces, repaired by
 * parity, repeated one by one.
 *
 * Written bytes are cut into pieces, one per datagram, numbered from 0. Up to AQ_PIECES_BLOCK consecutive pieces are a
 * block, and up to three parity datagrams follow it (aq_pieces_parity): the block is whole as soon as as many of its
 * datagrams are there as it has pieces, whichever they are. So a lost packet costs no round trip. What parity cannot
 * repair is sent again, piece by piece, when the layer below reports it as lost. The reader gives the bytes in order.
 *
 * No input, no output, no clock here: transport_quic.c moves the datagrams. Memory is fixed: AQ_PIECES_WINDOW_FIRST
 * pieces each way, and after aq_pieces_grow AQ_PIECES_WINDOW, and parity of AQ_PIECES_REPAIRS blocks. Each datagram
 * states which of the two its sender takes. The writer never exceeds the window that the reader reports; a peer
 * that does, or whose datagrams make no sense, is AQ_PROTO with a text. A datagram that came before changes nothing.
 * Parity that does not fit its pieces makes wrong bytes. The peer writes both; TLS or a frame's digest above refuses
 * them.
 *
 * Parity row r (0 to 2) is the sum of a^(r i) times piece i of the block, in GF(256) with the polynomial 0x11d and
 * a = 2: any three rows repair any three pieces (a Vandermonde matrix). Row 0 is the exclusive or. What is summed is a
 * piece's length and its bytes, with zeros behind them (docs/FRAME.md, "Pieces over datagrams").
 *
 *     aq_pieces_write(p, iov, count, most, &put);                cut a piece
 *     while (aq_pieces_next(p, &out)) send(out), aq_pieces_sent(p, &out);
 *     aq_pieces_receive(p, datagram, bytes, &text);              AQ_PROTO: the peer broke a rule
 *     aq_pieces_read(p, iov, count, &got);
 *
 * Locking: one thread at a time.
 */
#ifndef NET_PIECES_H
#define NET_PIECES_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "aqsgd/base.h"

enum {
    AQ_PIECE_HEAD_BYTES = 12,
    AQ_PIECE_BYTES = 1368, /* of a piece at most: a TLS record of 16 KiB fills 12, and a packet is within 1452 */
    AQ_PIECES_BLOCK = 24,  /* with 2 rows 8 % more bytes; at 0.5 % of loss 3 of 26 datagrams are lost in 1 of 3000 */
    AQ_PIECES_ROWS = 3,
    AQ_PIECES_WINDOW = 4096,     /* 5.6 MB: 100 Mbit/s over 400 ms; a power of two */
    AQ_PIECES_WINDOW_FIRST = 64, /* of a peer that has not proved who it is: 55 KB beyond what was read */
    AQ_PIECES_REPAIRS = 16       /* blocks whose parity waits for pieces; the oldest goes first, and is repeated then */
};

struct aq_pieces; /* opaque */

struct aq_piece_out { /* a datagram: head, then body */
    uint8_t head[AQ_PIECE_HEAD_BYTES];
    const uint8_t *body; /* until the next call that writes */
    uint32_t body_bytes;
    uint64_t id; /* for acked and lost */
    uint8_t kind;
};

/* About 181 KB. AQ_NOMEM; logged. Close: NULL is fine. */
enum aq_status aq_pieces_open(struct aq_pieces **out);
/* The peer has proved who it is: the whole window from now on, 11.5 MB more. AQ_NOMEM, logged: nothing has changed. */
enum aq_status aq_pieces_grow(struct aq_pieces *pieces);
uint64_t aq_pieces_measure(void); /* bytes of one that has grown */
void aq_pieces_close(struct aq_pieces *pieces);

/* Rows of parity of all later blocks, 0 to AQ_PIECES_ROWS. None while the peer takes none. */
void aq_pieces_parity(struct aq_pieces *pieces, uint32_t rows);

/* One piece of at most `most` bytes. AQ_AGAIN: the window is full, or what was cut has not been sent. */
enum aq_status aq_pieces_write(struct aq_pieces *pieces, const struct iovec *iov, int count, uint32_t most,
                               size_t *put);
void aq_pieces_flush(struct aq_pieces *pieces);            /* end the block: its parity is due. A burst ends here */
void aq_pieces_end(struct aq_pieces *pieces);              /* the end of this direction; no write after it */
bool aq_pieces_open_block(const struct aq_pieces *pieces); /* parity would be due at a flush */

/* The next datagram to send: repeated pieces, parity, the new piece, the window's word. False: nothing. */
bool aq_pieces_next(struct aq_pieces *pieces, struct aq_piece_out *out);
void aq_pieces_sent(struct aq_pieces *pieces, const struct aq_piece_out *out);
void aq_pieces_acked(struct aq_pieces *pieces, uint64_t id); /* any id; twice is fine */
void aq_pieces_lost(struct aq_pieces *pieces, uint64_t id);
void aq_pieces_word(struct aq_pieces *pieces);     /* send one datagram at least: a peer that lives acknowledges it */
void aq_pieces_lost_all(struct aq_pieces *pieces); /* nothing is on its way any more: what was not acked is lost */

/* A datagram of the peer. AQ_PROTO: *text (a constant) is the end of "the peer ...". */
enum aq_status aq_pieces_receive(struct aq_pieces *pieces, const uint8_t *datagram, size_t bytes, const char **text);

/* AQ_AGAIN: the next piece is not here. AQ_CLOSED: the peer ended its direction, and all before it was read. */
enum aq_status aq_pieces_read(struct aq_pieces *pieces, const struct iovec *iov, int count, size_t *got);

struct aq_pieces_stats {
    uint64_t repaired; /* pieces made from parity          */
    uint64_t repeated; /* pieces sent again                */
    uint32_t unacked;  /* pieces that are not known to be there */
};
void aq_pieces_stats(const struct aq_pieces *pieces, struct aq_pieces_stats *out);

#endif
