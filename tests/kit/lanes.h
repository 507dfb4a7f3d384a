/*
 * lanes.h -- connections in memory, one direction each way, that take and give as much as a test lets them.
 */
#ifndef TESTS_LANES_H
#define TESTS_LANES_H

#include <string.h>

#include "transport.h"

enum { LANES = 4, LANE_BYTES = 1 << 17 };

struct lane {
    struct aq_byte_stream stream;
    uint8_t bytes[LANE_BYTES]; /* what the reader may read lies in [begin, end) */
    size_t begin, end;
    size_t piece;      /* of one read or write at most; 0: all */
    size_t room;       /* bytes that it still takes */
    bool held;         /* what is in it is not there yet */
    bool ended, lost;  /* after what is in it: an end, an error */
    struct lane *peer; /* where writes go */
    struct aq_path path;
};

static inline enum aq_status lane_connected(struct aq_byte_stream *stream)
{
    (void)stream;
    return AQ_OK;
}

static inline enum aq_status lane_read(struct aq_byte_stream *stream, const struct iovec *iov, int count, size_t *got)
{
    struct lane *lane = (struct lane *)stream;
    size_t left = lane->end - lane->begin;
    if (lane->held) return AQ_AGAIN;
    if (left == 0) return lane->lost ? AQ_IO : lane->ended ? AQ_CLOSED : AQ_AGAIN;
    if (lane->piece > 0 && left > lane->piece) left = lane->piece;
    *got = 0;
    for (int i = 0; i < count && left > 0; i++) {
        const size_t part = iov[i].iov_len < left ? iov[i].iov_len : left;
        memcpy(iov[i].iov_base, lane->bytes + lane->begin, part);
        lane->begin += part;
        left -= part;
        *got += part;
    }
    return AQ_OK;
}

static inline enum aq_status lane_write(struct aq_byte_stream *stream, const struct iovec *iov, int count, size_t *put)
{
    struct lane *lane = (struct lane *)stream, *to = lane->peer;
    if (lane->lost) return AQ_CLOSED;
    if (to->begin == to->end) to->begin = to->end = 0;
    size_t left = LANE_BYTES - to->end < lane->room ? LANE_BYTES - to->end : lane->room;
    if (lane->piece > 0 && left > lane->piece) left = lane->piece;
    if (left == 0) return AQ_AGAIN;
    *put = 0;
    for (int i = 0; i < count && left > 0; i++) {
        const size_t part = iov[i].iov_len < left ? iov[i].iov_len : left;
        memcpy(to->bytes + to->end, iov[i].iov_base, part);
        to->end += part;
        left -= part;
        *put += part;
    }
    lane->room -= *put;
    return AQ_OK;
}

static inline void lane_wait(struct aq_byte_stream *stream, bool write, struct aq_byte_stream_wait *out)
{
    const struct lane *lane = (const struct lane *)stream;
    *out = (struct aq_byte_stream_wait){.fd = -1, .wake_ns = write && lane->room > 0 ? 0 : AQ_NEVER};
}

static inline int lane_direct(struct aq_byte_stream *stream)
{
    (void)stream;
    return -1;
}

static inline enum aq_status lane_pace(struct aq_byte_stream *stream, double rate_mbps)
{
    (void)stream, (void)rate_mbps;
    return AQ_OK;
}

static inline double lane_measure(struct aq_byte_stream *stream)
{
    (void)stream;
    return 3;
}

static inline void lane_path(struct aq_byte_stream *stream, struct aq_path *out)
{
    *out = ((const struct lane *)stream)->path;
}

static inline enum aq_status lane_congestion(struct aq_byte_stream *stream, const char *name)
{
    (void)stream;
    return strcmp(name, "nosuch") == 0 ? AQ_NODEV : AQ_OK;
}

static inline void lane_shut(struct aq_byte_stream *stream)
{
    ((struct lane *)stream)->peer->ended = true;
}

static inline void lane_close(struct aq_byte_stream *stream)
{
    ((struct lane *)stream)->peer->ended = true;
}

static const struct aq_byte_stream_ops LANE_OPS = {.connected = lane_connected,
                                                   .read = lane_read,
                                                   .write = lane_write,
                                                   .wait = lane_wait,
                                                   .direct = lane_direct,
                                                   .pace = lane_pace,
                                                   .measure = lane_measure,
                                                   .path = lane_path,
                                                   .congestion = lane_congestion,
                                                   .shut = lane_shut,
                                                   .close = lane_close};

/* ends[i][n]: connection n of end i. */
static inline void lanes_open(struct lane ends[2][LANES])
{
    for (int i = 0; i < 2; i++)
        for (int n = 0; n < LANES; n++) {
            struct lane *lane = &ends[i][n];
            memset(lane, 0, offsetof(struct lane, bytes));
            lane->stream.ops = &LANE_OPS;
            lane->begin = lane->end = lane->piece = 0;
            lane->room = LANE_BYTES;
            lane->path = (struct aq_path){0};
            lane->ended = lane->lost = lane->held = false;
            lane->peer = &ends[1 - i][n];
        }
}

#endif
