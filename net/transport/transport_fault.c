/*
 * transport_fault.c -- a filter that breaks what passes through it, the same way every time: for tests.
 *
 *     fault+tcp://host:port?seed=1&split=7&...          what is given; everything else stays whole
 *
 *     split=n        every read and write moves 1 to n bytes
 *     flip=p         in each 1024 bytes written, one bit is flipped with probability p
 *     drop=p         in each 1024 bytes written, one byte is lost with probability p
 *     flip_after=n   one bit of byte n (counted from 0) of what is written
 *     cut_after=n    after n bytes written the connection is cut
 *     cut_every=n    the connection is cut after some n/2 to 3n/2 bytes in both directions; a later connection of this
 *                    process is cut at another place
 *     cut_while=path the connection is cut while there is such a file
 *     stall_after=n  after n bytes written nothing moves any more, in either direction (a half-open connection)
 *     delay_ms=t     one write in eight is put off by t milliseconds
 *
 * Each decision is a function of the seed and the place in the stream, not of time or of how the bytes were cut.
 * Locking: as any stream.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "transport.h"

enum { BLOCK_BYTES = 1024, BOUNCE_BYTES = 16384 };

struct fault_stream {
    struct aq_byte_stream stream;
    struct aq_rng_key key, drop_key, split_key, delay_key;
    double split, flip, drop, flip_after, cut_after, stall_after, delay_ms;
    uint64_t written, got, reads, writes;
    uint64_t cut_at;             /* bytes in both directions; 0: never */
    uint64_t hold_ns;            /* no write before */
    char down[AQ_ADDRESS_BYTES]; /* cut while there is such a file; "": never */
    bool write_held;
    uint8_t bounce[BOUNCE_BYTES];
};

static const struct aq_byte_stream_ops FAULT_OPS;
static atomic_uint_fast64_t cuts; /* streams with cut_every so far: relaxed, it only numbers them */

static uint64_t place_of_cut(double seed, double every)
{
    if (every < 1) return 0;
    const struct aq_rng_key key = aq_rng_key((uint64_t)seed, AQ_RNG_TEST, 5, 0);
    const uint64_t number = atomic_fetch_add_explicit(&cuts, 1, memory_order_relaxed);
    return (uint64_t)(every / 2) + 1 + aq_rng_below(&key, number, (uint64_t)every);
}

enum aq_status aq_fault_wrap(const struct aq_address *address, struct aq_byte_stream *below,
                             struct aq_byte_stream **out)
{
    double seed, cut_every;
    struct fault_stream read = {0};
    AQ_TRY(aq_address_number(address, "seed", 0, &seed));
    AQ_TRY(aq_address_number(address, "split", 0, &read.split));
    AQ_TRY(aq_address_number(address, "flip", 0, &read.flip));
    AQ_TRY(aq_address_number(address, "drop", 0, &read.drop));
    AQ_TRY(aq_address_number(address, "flip_after", -1, &read.flip_after));
    AQ_TRY(aq_address_number(address, "cut_after", -1, &read.cut_after));
    AQ_TRY(aq_address_number(address, "stall_after", -1, &read.stall_after));
    AQ_TRY(aq_address_number(address, "delay_ms", 0, &read.delay_ms));
    AQ_TRY(aq_address_number(address, "cut_every", 0, &cut_every));
    struct fault_stream *fault;
    AQ_TRY(AQ_NEW(1, &fault));
    *fault = read;
    size_t down_bytes;
    const char *down = aq_address_value(address, "cut_while", &down_bytes);
    if (down) snprintf(fault->down, sizeof fault->down, "%.*s", (int)down_bytes, down);
    fault->cut_at = place_of_cut(seed, cut_every);
    fault->key = aq_rng_key((uint64_t)seed, AQ_RNG_TEST, 1, 0);
    fault->drop_key = aq_rng_key((uint64_t)seed, AQ_RNG_TEST, 2, 0);
    fault->split_key = aq_rng_key((uint64_t)seed, AQ_RNG_TEST, 3, 0);
    fault->delay_key = aq_rng_key((uint64_t)seed, AQ_RNG_TEST, 4, 0);
    fault->stream.ops = &FAULT_OPS;
    fault->stream.next = below;
    memcpy(fault->stream.name, below->name, sizeof fault->stream.name);
    *out = &fault->stream;
    return AQ_OK;
}

static bool stalled(const struct fault_stream *fault)
{
    return fault->stall_after >= 0 && (double)fault->written >= fault->stall_after;
}

static bool cut(const struct fault_stream *fault)
{
    if (fault->down[0] && access(fault->down, F_OK) == 0) return true;
    if (fault->cut_at > 0 && fault->written + fault->got >= fault->cut_at) return true;
    return fault->cut_after >= 0 && (double)fault->written >= fault->cut_after;
}

/* Is the byte at this place of the stream the one of its block that is hit? */
static bool hit(const struct aq_rng_key *key, double probability, uint64_t place)
{
    const uint64_t block = place / BLOCK_BYTES;
    if (probability <= 0 || (double)aq_rng_uniform(key, 2 * block) >= probability) return false;
    return aq_rng_u32(key, 2 * block + 1) % BLOCK_BYTES == place % BLOCK_BYTES;
}

static size_t piece(const struct fault_stream *fault, uint64_t turn, size_t bytes)
{
    if (fault->split < 1) return bytes;
    const size_t most = 1 + aq_rng_below(&fault->split_key, turn, (uint64_t)fault->split);
    return bytes < most ? bytes : most;
}

static enum aq_status fault_connected(struct aq_byte_stream *stream)
{
    return stream->next->ops->connected(stream->next);
}

static enum aq_status fault_read(struct aq_byte_stream *stream, const struct iovec *iov, int count, size_t *got)
{
    struct fault_stream *fault = (struct fault_stream *)stream;
    if (cut(fault)) return AQ_CLOSED;
    if (stalled(fault)) return AQ_AGAIN;
    const bool whole = fault->split < 1;
    const struct iovec part = {.iov_base = iov[0].iov_base, .iov_len = piece(fault, 2 * fault->reads, iov[0].iov_len)};
    const enum aq_status status = stream->next->ops->read(stream->next, whole ? iov : &part, whole ? count : 1, got);
    if (status == AQ_OK) {
        fault->reads++;
        fault->got += *got;
    }
    return status;
}

/* Copy the next bytes to the bounce buffer, broken as they should be; up to the next byte that is to be lost. */
static size_t prepare(struct fault_stream *fault, const uint8_t *from, size_t bytes)
{
    const bool by_bytes = fault->drop > 0 || fault->flip > 0 || fault->flip_after >= 0 || fault->cut_after >= 0 ||
                          fault->stall_after >= 0;
    if (!by_bytes) {
        memcpy(fault->bounce, from, bytes);
        return bytes;
    }
    for (size_t i = 0; i < bytes; i++) {
        const uint64_t place = fault->written + i;
        if (hit(&fault->drop_key, fault->drop, place) || (i > 0 && (double)place == fault->cut_after) ||
            (i > 0 && (double)place == fault->stall_after))
            return i;
        fault->bounce[i] = from[i];
        if (hit(&fault->key, fault->flip, place) || (double)place == fault->flip_after)
            fault->bounce[i] ^= 1 << (place % 8);
    }
    return bytes;
}

static enum aq_status fault_write(struct aq_byte_stream *stream, const struct iovec *iov, int count, size_t *put)
{
    struct fault_stream *fault = (struct fault_stream *)stream;
    fault->write_held = false;
    if (cut(fault)) {
        stream->next->ops->shut(stream->next);
        return AQ_CLOSED;
    }
    const uint64_t now = aq_clock_ns();
    if (count == 0 && !stalled(fault)) { /* what was taken, and is not on its way */
        const enum aq_status pending = stream->next->ops->write(stream->next, iov, 0, put);
        stream->unsent = stream->next->unsent;
        return pending;
    }
    fault->write_held = stalled(fault) || now < fault->hold_ns;
    if (fault->write_held) return AQ_AGAIN;
    const uint64_t turn = fault->writes++;
    if (fault->delay_ms > 0 && aq_rng_u32(&fault->delay_key, turn) % 8 == 0) {
        fault->hold_ns = now + (uint64_t)(fault->delay_ms * 1e6);
        fault->write_held = true;
        return AQ_AGAIN;
    }
    size_t bytes = iov[0].iov_len < BOUNCE_BYTES ? iov[0].iov_len : BOUNCE_BYTES;
    bytes = prepare(fault, iov[0].iov_base, piece(fault, 2 * turn + 1, bytes));
    enum aq_status status = AQ_OK;
    if (bytes == 0)
        *put = 1; /* the lost byte */
    else {
        const struct iovec part = {.iov_base = fault->bounce, .iov_len = bytes};
        status = stream->next->ops->write(stream->next, &part, 1, put);
    }
    if (status == AQ_OK) fault->written += *put;
    stream->unsent = stream->next->unsent;
    return status;
}

static void fault_wait(struct aq_byte_stream *stream, bool write, struct aq_byte_stream_wait *out)
{
    const struct fault_stream *fault = (const struct fault_stream *)stream;
    if (stalled(fault))
        *out = (struct aq_byte_stream_wait){.fd = -1, .wake_ns = AQ_NEVER};
    else if (write && fault->write_held)
        *out = (struct aq_byte_stream_wait){.fd = -1, .wake_ns = fault->hold_ns};
    else
        stream->next->ops->wait(stream->next, write, out);
}

static void fault_shut(struct aq_byte_stream *stream)
{
    if (!stalled((struct fault_stream *)stream)) stream->next->ops->shut(stream->next);
}

static const struct aq_byte_stream_ops FAULT_OPS = {
    .connected = fault_connected,
    .read = fault_read,
    .write = fault_write,
    .wait = fault_wait,
    .direct = aq_filter_direct,
    .pace = aq_filter_pace,
    .measure = aq_filter_measure,
    .path = aq_filter_path,
    .congestion = aq_filter_congestion,
    .shut = fault_shut,
    .close = aq_filter_close,
};
