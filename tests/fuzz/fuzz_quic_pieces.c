/*
 * fuzz_quic_pieces.c -- two ends of net/transport/pieces.h, and the input between them: what is written and read when,
 * which datagrams come, twice, late or never, which are damaged or made up, what is reported as lost or as there.
 *
 * What is read is always the beginning of what was written, byte for byte, unless a datagram was damaged. Where none
 * was, all of it comes as soon as what is lost is reported. Never a crash, a hang, or memory that stays.
 */
#include "fuzz.h"
#include "pieces.h"

#include <string.h>

enum { SAID_BYTES = 1 << 16, FLIGHT = 64, BYTES = AQ_PIECE_HEAD_BYTES + AQ_PIECE_BYTES + 2, TURNS = 20000 };

struct datagram {
    uint8_t bytes[BYTES];
    size_t count;
    uint64_t id;
    bool used;
};

struct run {
    struct aq_pieces *end[2]; /* 0 writes, 1 reads */
    struct datagram flight[2][FLIGHT];
    size_t written, heard;
    bool damaged, refused, shut, ended;
};

static uint8_t said[SAID_BYTES];

/* The next datagram of that end takes a place; where all are taken it is lost, and reported so. */
static bool send_one(struct run *run, int from)
{
    struct aq_piece_out out;
    if (!aq_pieces_next(run->end[from], &out)) return false;
    aq_pieces_sent(run->end[from], &out);
    for (int i = 0; i < FLIGHT; i++) {
        struct datagram *d = &run->flight[from][i];
        if (d->used) continue;
        memcpy(d->bytes, out.head, AQ_PIECE_HEAD_BYTES);
        if (out.body_bytes) memcpy(d->bytes + AQ_PIECE_HEAD_BYTES, out.body, out.body_bytes);
        d->count = AQ_PIECE_HEAD_BYTES + out.body_bytes;
        d->id = out.id;
        d->used = true;
        return true;
    }
    aq_pieces_lost(run->end[from], out.id);
    return false;
}

static void deliver(struct run *run, int from, struct datagram *d, bool again)
{
    const char *text = NULL;
    if (!d->used || run->refused) return;
    const enum aq_status status = aq_pieces_receive(run->end[1 - from], d->bytes, d->count, &text);
    AQ_ASSERT(status == AQ_OK || (status == AQ_PROTO && text && run->damaged));
    if (status != AQ_OK) {
        run->refused = true;
        fuzz_told(false);
    }
    if (again) return;
    aq_pieces_acked(run->end[from], d->id);
    d->used = false;
}

static bool read_some(struct run *run, uint8_t size)
{
    uint8_t bytes[20000];
    const size_t first = (size_t)size * 60 + 1;
    const struct iovec iov[2] = {{bytes, first}, {bytes + first, sizeof bytes - first}};
    size_t got = 0;
    const enum aq_status status = aq_pieces_read(run->end[1], iov, 1 + (size & 1), &got);
    if (status == AQ_CLOSED) {
        AQ_ASSERT(run->damaged || (run->shut && run->heard == run->written));
        run->ended = true;
    }
    if (status != AQ_OK) return false;
    AQ_ASSERT(got > 0 && got <= sizeof bytes);
    AQ_ASSERT(run->damaged || (run->heard + got <= run->written && memcmp(bytes, said + run->heard, got) == 0));
    run->heard += got;
    return true;
}

static void write_some(struct run *run, uint8_t size)
{
    const size_t most = (size_t)size * 17 + 1, left = SAID_BYTES - run->written, bytes = most < left ? most : left;
    const struct iovec iov[2] = {{said + run->written, bytes / 3},
                                 {said + run->written + bytes / 3, bytes - bytes / 3}};
    size_t put = 0;
    if (run->shut || aq_pieces_write(run->end[0], iov, 2, 1 + size * 5u, &put) != AQ_OK) return;
    AQ_ASSERT(put > 0 && put <= bytes);
    run->written += put;
}

static void act(struct run *run, struct fuzz_piece *rest)
{
    const uint8_t op = fuzz_byte(rest), more = fuzz_byte(rest);
    const int from = op / 16 % 8 == 7;
    struct datagram *d = &run->flight[from][more % FLIGHT];
    switch (op % 16) {
    case 0:
    case 1:
    case 2:
        write_some(run, more);
        (void)send_one(run, 0);
        break;
    case 3:
        (void)read_some(run, more);
        break;
    case 4:
        (void)send_one(run, from);
        break;
    case 5:
    case 6:
    case 7:
        deliver(run, from, d, false);
        break;
    case 8:
        deliver(run, from, d, true);
        break;
    case 9: /* lost, and known to be */
        if (d->used) aq_pieces_lost(run->end[from], d->id);
        d->used = false;
        break;
    case 10:
        aq_pieces_parity(run->end[0], more % (AQ_PIECES_ROWS + 1));
        break;
    case 11:
        aq_pieces_flush(run->end[0]);
        break;
    case 12: /* a bit */
        if (!d->used || d->count == 0) break;
        d->bytes[more % d->count] ^= 1 << (op / 16 % 8);
        run->damaged = true;
        break;
    case 13: /* made up */
        d->bytes[0] = more % 5;
        d->bytes[1] = op / 16;
        d->bytes[2] = fuzz_byte(rest);
        d->bytes[3] = more >> 6;
        d->bytes[4] = fuzz_byte(rest);
        d->count = fuzz_byte(rest) * 6u;
        d->used = true;
        run->damaged = true;
        break;
    case 14: /* reports that make no sense, or an end that takes its peer for known */
        if (more & 1)
            aq_pieces_lost(run->end[0], more * 7u);
        else
            AQ_ASSERT(aq_pieces_grow(run->end[more >> 1 & 1]) == AQ_OK);
        break;
    default:
        if (more < 240 || run->shut) break;
        aq_pieces_end(run->end[0]);
        run->shut = true;
        break;
    }
}

/* All that is on its way is reported as lost, and what is sent from now on comes. */
static void finish(struct run *run)
{
    if (run->damaged) return;
    for (int from = 0; from < 2; from++)
        for (int i = 0; i < FLIGHT; i++) {
            if (run->flight[from][i].used) aq_pieces_lost(run->end[from], run->flight[from][i].id);
            run->flight[from][i].used = false;
        }
    for (int turn = 0; turn < TURNS; turn++) {
        bool any = false;
        for (int from = 0; from < 2; from++)
            if (send_one(run, from)) {
                any = true;
                for (int i = 0; i < FLIGHT; i++)
                    deliver(run, from, &run->flight[from][i], false);
            }
        any |= read_some(run, 255);
        if (!any) break;
    }
    AQ_ASSERT(run->heard == run->written && run->ended == run->shut);
    fuzz_told(true);
}

/* Both take each other for known, and say so: from here on there is parity. */
static void meet(struct run *run)
{
    for (int i = 0; i < 2; i++) {
        struct aq_piece_out out;
        const char *text;
        AQ_ASSERT(aq_pieces_grow(run->end[i]) == AQ_OK);
        AQ_ASSERT(aq_pieces_next(run->end[i], &out) && out.body_bytes == 0);
        aq_pieces_sent(run->end[i], &out);
        AQ_ASSERT(aq_pieces_receive(run->end[1 - i], out.head, sizeof out.head, &text) == AQ_OK);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct run run;
    struct fuzz_piece rest = {.bytes = data, .count = size < 4096 ? size : 4096};
    const uint64_t used = aq_memory_used();
    fuzz_quiet();
    memset(&run, 0, sizeof run);
    for (size_t i = 0; said[1] == 0 && i < SAID_BYTES; i++)
        said[i] = (uint8_t)(i * 7 + (i >> 8) * 13 + 1);
    for (int i = 0; i < 2; i++)
        AQ_ASSERT(aq_pieces_open(&run.end[i]) == AQ_OK);
    if (size > 0 && (data[size - 1] & 3)) meet(&run); /* three of four */
    while (rest.count > 0)
        act(&run, &rest);
    finish(&run);
    for (int i = 0; i < 2; i++)
        aq_pieces_close(run.end[i]);
    AQ_ASSERT(aq_memory_used() == used);
    return 0;
}
