/*
 * fuzz_stripes.c -- two ends of a link's several connections, and the input between them: how much each of them takes
 * and gives when, what is damaged, said again, left out or made up, which one ends and how; with sums and without.
 *
 * What is read is always the beginning of what was written, byte for byte, unless bytes of a stripe themselves were
 * damaged (frames have digests for those). Where nothing was damaged all of it comes, and then the end. Never a
 * crash, a hang, or memory that stays.
 */
#include "fuzz.h"
#include "lanes.h"
#include "stripes.h"

enum { SAID_BYTES = 1 << 16, TURNS = 4096 };

static struct lane ends[2][LANES];
static uint8_t said[SAID_BYTES];

struct run {
    struct aq_byte_stream *end[2]; /* 0 writes, 1 reads */
    size_t written, heard;
    bool damaged, ended, refused, shut;
};

static void check(struct run *run, const uint8_t *bytes, size_t count)
{
    if (run->damaged) return;
    AQ_ASSERT(run->heard + count <= run->written);
    AQ_ASSERT(memcmp(bytes, said + run->heard, count) == 0);
    run->heard += count;
}

static bool read_some(struct run *run, uint8_t size)
{
    uint8_t bytes[20000];
    struct aq_byte_stream_wait wait;
    const size_t first = size % 7 == 0 ? 1 : (size_t)size * 60 + 1;
    const struct iovec iov[2] = {{bytes, first}, {bytes + first, sizeof bytes - first}};
    size_t got = 0;
    if (run->ended || run->refused) return false;
    const enum aq_status status = run->end[1]->ops->read(run->end[1], iov, 1 + (size & 1), &got);
    switch (status) {
    case AQ_OK:
        AQ_ASSERT(got > 0 && got <= sizeof bytes);
        check(run, bytes, got);
        return true;
    case AQ_AGAIN:
        run->end[1]->ops->wait(run->end[1], false, &wait);
        return false;
    case AQ_CLOSED:
    case AQ_IO:
        run->ended = true;
        return false;
    default:
        AQ_ASSERT(status == AQ_PROTO || status == AQ_CORRUPT);
        AQ_ASSERT(run->damaged && aq_byte_stream_refusal(run->end[1])[0] != '\0');
        run->refused = true;
        fuzz_told(false);
        return false;
    }
}

static void write_some(struct run *run, uint8_t size)
{
    const size_t most = (size_t)size * 97, left = SAID_BYTES - run->written, bytes = most < left ? most : left;
    const struct iovec iov[2] = {{said + run->written, bytes / 3},
                                 {said + run->written + bytes / 3, bytes - bytes / 3}};
    struct aq_byte_stream_wait wait;
    size_t put = 0;
    if (run->shut) return;
    const enum aq_status status = run->end[0]->ops->write(run->end[0], iov, 2, &put);
    if (status == AQ_OK) {
        AQ_ASSERT(put <= bytes);
        run->written += put;
        return;
    }
    if (status == AQ_AGAIN) {
        run->end[0]->ops->wait(run->end[0], true, &wait);
        return;
    }
    run->shut = true; /* a connection was lost: no more is said, and of the last bytes some may have gone */
    run->written = SAID_BYTES;
}

/* A head of the peer's, right or wrong, with its bundle's digest. */
static void forge(struct run *run, struct lane *to, uint8_t what)
{
    uint8_t head[AQ_STRIPE_HEAD_BYTES];
    const struct aq_stripe stripe = {.number = what % 32,
                                     .bytes = what % 5 == 0 ? 0 : AQ_STRIPE_BYTES_MAX - 2 + what % 5,
                                     .place = what % 3 == 1 ? what / 4 % 16 : 0,
                                     .sum = what % 3 == 2 ? what / 4 % 16 : 0};
    aq_stripe_encode(&stripe, what & 128 ? 78 : 77, head);
    if (LANE_BYTES - to->end < sizeof head) return;
    memcpy(to->bytes + to->end, head, sizeof head);
    to->end += sizeof head;
    run->damaged = true;
}

static void act(struct run *run, struct fuzz_piece *rest)
{
    const uint8_t op = fuzz_byte(rest), more = fuzz_byte(rest);
    struct lane *out = &ends[0][op / 16 % LANES], *in = &ends[1][op / 16 % LANES];
    switch (op % 16) {
    case 0:
    case 1:
    case 2:
        write_some(run, more);
        break;
    case 3:
    case 4:
    case 5:
        read_some(run, more);
        break;
    case 6:
        out->room = more;
        break;
    case 7:
        out->room = LANE_BYTES;
        break;
    case 8:
        in->held = more & 1;
        out->piece = more / 2;
        break;
    case 9:
        in->piece = more;
        break;
    case 10: /* a bit */
        if (in->end == in->begin) break;
        in->bytes[in->begin + more % (in->end - in->begin)] ^= 1 << (more & 7);
        run->damaged = true;
        break;
    case 11: /* bytes that are lost */
        if (in->end == in->begin) break;
        in->begin += more % (in->end - in->begin);
        run->damaged = true;
        break;
    case 12:
        forge(run, in, more);
        break;
    case 13: /* what one connection has, another says, too */
        if (in->end - in->begin == 0 || LANE_BYTES - ends[1][more % LANES].end < in->end - in->begin) break;
        memmove(ends[1][more % LANES].bytes + ends[1][more % LANES].end, in->bytes + in->begin, in->end - in->begin);
        ends[1][more % LANES].end += in->end - in->begin;
        run->damaged = true;
        break;
    case 14:
        if (more & 1) in->lost = true;
        if (more & 2) in->ended = true;
        if (more & 4) out->lost = true;
        break;
    default:
        if (run->end[0]->unsent) break; /* what the link does not do */
        run->end[0]->ops->shut(run->end[0]);
        run->shut = true;
        break;
    }
}

static void finish(struct run *run)
{
    bool whole = !run->damaged;
    for (int n = 0; n < LANES; n++) {
        whole &= !ends[0][n].lost && !ends[1][n].lost && (run->shut || !ends[1][n].ended);
        ends[0][n].room = LANE_BYTES;
        ends[1][n].held = false;
    }
    for (int i = 0; i < TURNS && run->end[0]->unsent && whole; i++) {
        write_some(run, 0);
        while (read_some(run, 255))
            ;
        for (int n = 0; n < LANES; n++)
            ends[0][n].room = LANE_BYTES;
    }
    while (read_some(run, 255))
        ;
    if (!whole) return;
    AQ_ASSERT(!run->refused && (run->heard == run->written || run->ended));
    if (!run->ended) fuzz_told(true);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_piece rest = {.bytes = data, .count = size < 4096 ? size : 4096};
    struct run run = {0};
    const uint64_t used = aq_memory_used();
    fuzz_quiet();
    for (size_t i = 0; said[1] == 0 && i < SAID_BYTES; i++)
        said[i] = (uint8_t)(i * 7 + (i >> 8) * 13 + 1);
    lanes_open(ends);
    for (int n = 0; n < LANES; n++)
        ends[0][n].path.again_bytes = 1; /* AUTO sums, too */
    for (int i = 0; i < 2; i++) {
        struct aq_byte_stream *parts[LANES];
        for (int n = 0; n < LANES; n++)
            parts[n] = &ends[i][n].stream;
        const struct aq_stripes_config config = {.bundle = 77, .copies = (enum aq_link_copies)(size % 3)};
        AQ_ASSERT(aq_stripes_open(parts, LANES, &config, &run.end[i]) == AQ_OK);
    }
    while (rest.count > 0)
        act(&run, &rest);
    finish(&run);
    aq_byte_stream_close(run.end[0]);
    aq_byte_stream_close(run.end[1]);
    AQ_ASSERT(aq_memory_used() == used);
    return 0;
}
