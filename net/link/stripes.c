/*
 * stripes.c -- see stripes.h.
 *
 * Readiness of many sockets is handed to the loop as one descriptor: an epoll each way, in which a part is armed for
 * one event (EPOLLONESHOT) when it is waited for, so that a part whose stripe is not due does not wake the loop.
 */
#include "stripes.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "net_limits.h"

static const char *const AREA = "net";

struct part {
    struct aq_byte_stream *below;
    uint8_t head[AQ_STRIPE_HEAD_BYTES]; /* that this connection is at */
    uint32_t head_have;
    struct aq_stripe stripe;                             /* of that head, when it is whole                       */
    uint32_t left;                                       /* of its bytes                                         */
    int armed[2];                                        /* descriptors in poll[]; -1: none                      */
    uint8_t out[AQ_STRIPE_HEAD_BYTES + AQ_STRIPE_BYTES]; /* a stripe on its way out: [begin, end) is left */
    uint32_t out_begin, out_end;
};

struct stripes {
    struct aq_byte_stream stream;
    uint64_t bundle;
    uint64_t in_number, out_number; /* the next stripe to come, and to go                            */
    uint32_t in_at, out_at;         /* the part to look at first                                     */
    int poll[2];                    /* epoll for reading, for writing                                */
    bool crowded;                   /* there were bytes to write and no part had room for them       */
    double ns_per_byte;             /* paced; 0: not                                                 */
    uint64_t line_free_ns;          /* when what was written has gone at that pace                   */
    uint64_t pace_wake_ns;          /* when the pace lets more go; AQ_NEVER: it does                 */
    char text[AQ_TEXT_BYTES];       /* stream.broken                                                 */
    uint32_t count;
    struct part parts[];
};

static const struct aq_byte_stream_ops STRIPES_OPS;

static struct stripes *of(struct aq_byte_stream *stream)
{
    return (struct stripes *)stream;
}

enum aq_status aq_stripes_open(struct aq_byte_stream *const *parts, uint32_t count, uint64_t bundle,
                               struct aq_byte_stream **out)
{
    void *memory;
    struct stripes *s = NULL;
    enum aq_status status = aq_alloc(sizeof *s + count * sizeof s->parts[0], &memory);
    if (status == AQ_OK) {
        s = memory;
        s->poll[0] = epoll_create1(EPOLL_CLOEXEC);
        s->poll[1] = epoll_create1(EPOLL_CLOEXEC);
        if (s->poll[0] == -1 || s->poll[1] == -1) status = aq_fail_errno(AREA, "epoll for %u streams", count);
    }
    if (status != AQ_OK) {
        for (uint32_t i = 0; i < count; i++)
            aq_byte_stream_close(parts[i]);
        for (int i = 0; s && i < 2; i++)
            if (s->poll[i] != -1) close(s->poll[i]);
        aq_free(s);
        return status;
    }
    s->stream.ops = &STRIPES_OPS;
    s->stream.next = parts[0];
    memcpy(s->stream.name, parts[0]->name, sizeof s->stream.name);
    s->bundle = bundle;
    s->count = count;
    s->pace_wake_ns = AQ_NEVER;
    for (uint32_t i = 0; i < count; i++) {
        s->parts[i].below = parts[i];
        s->parts[i].armed[0] = s->parts[i].armed[1] = -1;
    }
    *out = &s->stream;
    return AQ_OK;
}

/* The stream is broken; what there is to say about it is the part's, or in s->text already. */
static enum aq_status broken(struct stripes *s, const struct part *part, enum aq_status status)
{
    if (status == AQ_TLSERR) snprintf(s->text, sizeof s->text, "%s", aq_byte_stream_refusal(part->below));
    if (s->text[0] != '\0') s->stream.broken = s->text;
    return status;
}

/* A descriptor was ready: it has been heard, and is asked again when it is waited for. */
static void hear(const struct stripes *s, int way)
{
    struct epoll_event events[AQ_LINK_STREAMS_MAX];
    while (epoll_wait(s->poll[way], events, AQ_LINK_STREAMS_MAX, 0) == AQ_LINK_STREAMS_MAX)
        ;
}

static void arm(const struct stripes *s, struct part *part, int way, const struct aq_byte_stream_wait *wait,
                uint64_t *wake_ns)
{
    if (wait->wake_ns < *wake_ns) *wake_ns = wait->wake_ns;
    if (wait->fd == -1) return;
    struct epoll_event event = {.events = (wait->events == POLLOUT ? EPOLLOUT : EPOLLIN) | EPOLLONESHOT};
    const int op = part->armed[way] == wait->fd ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
    part->armed[way] = wait->fd;
    if (epoll_ctl(s->poll[way], op, wait->fd, &event) == 0) return;
    const uint64_t soon_ns = aq_clock_after(AQ_BACK_OFF_NS_MIN); /* for want of memory: asked again by the clock */
    part->armed[way] = -1;
    if (soon_ns < *wake_ns) *wake_ns = soon_ns;
}

/* ---- in ---- */

static bool known(const struct part *part)
{
    return part->head_have == AQ_STRIPE_HEAD_BYTES;
}

static bool due(const struct stripes *s, const struct part *part)
{
    return known(part) && part->stripe.bytes > 0 && part->stripe.number == s->in_number;
}

static enum aq_status read_head(struct stripes *s, struct part *part)
{
    while (!known(part)) {
        size_t got;
        const struct iovec iov = {.iov_base = part->head + part->head_have,
                                  .iov_len = AQ_STRIPE_HEAD_BYTES - part->head_have};
        AQ_TRY(part->below->ops->read(part->below, &iov, 1, &got));
        part->head_have += (uint32_t)got;
    }
    AQ_TRY(aq_stripe_decode(part->head, s->bundle, &part->stripe, s->text));
    part->left = part->stripe.bytes;
    if (part->stripe.number >= s->in_number) return AQ_OK;
    snprintf(s->text, sizeof s->text, "sent stripe %llu again; %llu is due", (unsigned long long)part->stripe.number,
             (unsigned long long)s->in_number);
    return AQ_PROTO;
}

/* The part whose stripe is due. AQ_AGAIN: it is not here yet; AQ_CLOSED: that was the last one. */
static enum aq_status find(struct stripes *s, struct part **out)
{
    uint32_t heads = 0, ends = 0;
    for (uint32_t i = 0; i < s->count; i++) {
        struct part *part = &s->parts[(s->in_at + i) % s->count];
        if (!known(part)) {
            const enum aq_status status = read_head(s, part);
            if (status == AQ_AGAIN) continue;
            if (status != AQ_OK) return broken(s, part, status);
        }
        if (due(s, part)) {
            s->in_at = (uint32_t)(part - s->parts);
            *out = part;
            return AQ_OK;
        }
        heads++;
        ends += part->stripe.bytes == 0 && part->stripe.number == s->in_number;
    }
    if (ends == s->count) return AQ_CLOSED;
    if (heads < s->count) return AQ_AGAIN;
    snprintf(s->text, sizeof s->text, "left out stripe %llu: all streams are past it",
             (unsigned long long)s->in_number);
    return broken(s, NULL, AQ_PROTO);
}

static enum aq_status stripes_read(struct aq_byte_stream *stream, const struct iovec *iov, int count, size_t *got)
{
    struct stripes *s = of(stream);
    struct part *part = NULL;
    struct iovec some[2];
    int pieces = 0;
    hear(s, 0);
    AQ_TRY(find(s, &part));
    for (size_t left = part->left; pieces < count && pieces < 2 && left > 0; pieces++) {
        some[pieces] = iov[pieces];
        if (some[pieces].iov_len > left) some[pieces].iov_len = left;
        left -= some[pieces].iov_len;
    }
    const enum aq_status status = part->below->ops->read(part->below, some, pieces, got);
    if (status != AQ_OK) return status == AQ_AGAIN ? status : broken(s, part, status);
    AQ_ASSERT(*got <= part->left);
    part->left -= (uint32_t)*got;
    if (part->left > 0) return AQ_OK;
    part->head_have = 0;
    s->in_number++;
    s->in_at = (s->in_at + 1) % s->count;
    return AQ_OK;
}

/* Right after a read that said AQ_AGAIN: each part that is waited for has been asked. */
static void wait_to_read(struct stripes *s, struct aq_byte_stream_wait *out)
{
    struct part *const first = &s->parts[s->in_at];
    for (uint32_t i = 0; i < s->count; i++) {
        struct part *part = &s->parts[i];
        struct aq_byte_stream_wait wait;
        if (due(s, first) ? part != first : known(part)) continue;
        part->below->ops->wait(part->below, false, &wait);
        arm(s, part, 0, &wait, &out->wake_ns);
    }
}

/* ---- out ---- */

static bool pending(const struct part *part)
{
    return part->out_begin < part->out_end;
}

/* The stream at the bottom, which knows whether there is room before it is asked to write. */
static struct aq_byte_stream *bottom(const struct part *part)
{
    struct aq_byte_stream *stream = part->below;
    while (stream->next)
        stream = stream->next;
    return stream;
}

static bool has_room(const struct part *part, uint64_t now_ns)
{
    struct aq_byte_stream_wait wait;
    if (pending(part)) return false;
    bottom(part)->ops->wait(bottom(part), true, &wait);
    if (wait.wake_ns <= now_ns) return true;
    struct pollfd room = {.fd = wait.fd, .events = wait.events};
    return wait.fd != -1 && poll(&room, 1, 0) > 0;
}

static enum aq_status flush(struct stripes *s, struct part *part)
{
    while (pending(part)) {
        size_t put;
        const struct iovec iov = {.iov_base = part->out + part->out_begin, .iov_len = part->out_end - part->out_begin};
        const enum aq_status status = part->below->ops->write(part->below, &iov, 1, &put);
        if (status != AQ_OK) return status == AQ_AGAIN ? AQ_OK : broken(s, part, status);
        part->out_begin += (uint32_t)put;
    }
    return AQ_OK;
}

static struct part *next_with_room(struct stripes *s, uint64_t now_ns)
{
    for (uint32_t i = 0; i < s->count; i++) {
        const uint32_t at = (s->out_at + i) % s->count;
        if (!has_room(&s->parts[at], now_ns)) continue;
        s->out_at = (at + 1) % s->count;
        return &s->parts[at];
    }
    return NULL;
}

/* May more go now? Some milliseconds ahead, for the kernel to send while this thread sleeps. */
static bool pace_permits(struct stripes *s, uint64_t now_ns)
{
    const bool permits = s->ns_per_byte == 0 || s->line_free_ns <= now_ns + AQ_STRIPES_AHEAD_NS;
    s->pace_wake_ns = permits ? AQ_NEVER : s->line_free_ns - AQ_STRIPES_AHEAD_NS;
    return permits;
}

static void count_pace(struct stripes *s, uint32_t bytes, uint64_t now_ns)
{
    const uint64_t begin_ns = s->line_free_ns > now_ns ? s->line_free_ns : now_ns;
    s->line_free_ns = begin_ns + (uint64_t)(s->ns_per_byte * bytes);
}

/* A stripe of the next bytes, from `skip` on in iov; 0 bytes: the end of this direction. Returns how many it has. */
static uint32_t cut_stripe(struct stripes *s, struct part *part, const struct iovec *iov, int count, size_t skip)
{
    uint32_t bytes = 0;
    for (int i = 0; i < count && bytes < AQ_STRIPE_BYTES; i++) {
        if (skip >= iov[i].iov_len) {
            skip -= iov[i].iov_len;
            continue;
        }
        const size_t left = iov[i].iov_len - skip, room = AQ_STRIPE_BYTES - bytes;
        const size_t piece = left < room ? left : room;
        memcpy(part->out + AQ_STRIPE_HEAD_BYTES + bytes, (const uint8_t *)iov[i].iov_base + skip, piece);
        bytes += (uint32_t)piece;
        skip = 0;
    }
    const struct aq_stripe stripe = {.number = s->out_number, .bytes = bytes};
    aq_stripe_encode(&stripe, s->bundle, part->out);
    part->out_begin = 0;
    part->out_end = AQ_STRIPE_HEAD_BYTES + bytes;
    return bytes;
}

static size_t bytes_of(const struct iovec *iov, int count)
{
    size_t bytes = 0;
    for (int i = 0; i < count; i++)
        bytes += iov[i].iov_len;
    return bytes;
}

static enum aq_status stripes_write(struct aq_byte_stream *stream, const struct iovec *iov, int count, size_t *put)
{
    struct stripes *s = of(stream);
    const size_t offered = bytes_of(iov, count);
    const uint64_t now_ns = aq_clock_ns();
    size_t taken = 0;
    hear(s, 1);
    s->crowded = false;
    s->pace_wake_ns = AQ_NEVER;
    for (uint32_t i = 0; i < s->count; i++)
        AQ_TRY(flush(s, &s->parts[i]));
    while (taken < offered && pace_permits(s, now_ns)) {
        struct part *part = next_with_room(s, now_ns);
        s->crowded = !part;
        if (!part) break;
        taken += cut_stripe(s, part, iov, count, taken);
        s->out_number++;
        count_pace(s, part->out_end, now_ns);
        AQ_TRY(flush(s, part));
    }
    stream->unsent = false;
    for (uint32_t i = 0; i < s->count; i++)
        stream->unsent |= pending(&s->parts[i]);
    *put = taken;
    return taken > 0 || (offered == 0 && !stream->unsent) ? AQ_OK : AQ_AGAIN;
}

/* Right after a write that said AQ_AGAIN. Where the pace alone holds it back no descriptor will tell, but the clock. */
static void wait_to_write(struct stripes *s, struct aq_byte_stream_wait *out)
{
    bool any = false;
    out->wake_ns = s->pace_wake_ns;
    for (uint32_t i = 0; i < s->count; i++) {
        struct part *part = &s->parts[i];
        struct aq_byte_stream_wait wait;
        if (!pending(part) && !s->crowded) continue;
        struct aq_byte_stream *asked = pending(part) ? part->below : bottom(part);
        asked->ops->wait(asked, true, &wait);
        arm(s, part, 1, &wait, &out->wake_ns);
        any = true;
    }
    if (!any) out->fd = -1;
}

/* ---- the rest of a stream ---- */

static enum aq_status stripes_connected(struct aq_byte_stream *stream)
{
    (void)stream;
    return AQ_OK;
}

static void stripes_wait(struct aq_byte_stream *stream, bool write, struct aq_byte_stream_wait *out)
{
    struct stripes *s = of(stream);
    *out = (struct aq_byte_stream_wait){.fd = s->poll[write], .events = POLLIN, .wake_ns = AQ_NEVER};
    if (write)
        wait_to_write(s, out);
    else
        wait_to_read(s, out);
}

static int stripes_direct(struct aq_byte_stream *stream)
{
    (void)stream;
    return -1;
}

/* Each part alone may use the whole rate, as the others may stand still; together they keep to it here. */
static enum aq_status stripes_pace(struct aq_byte_stream *stream, double rate_mbps)
{
    struct stripes *s = of(stream);
    for (uint32_t i = 0; i < s->count; i++)
        AQ_TRY(s->parts[i].below->ops->pace(s->parts[i].below, rate_mbps));
    s->ns_per_byte = 8e3 / rate_mbps;
    return AQ_OK;
}

static double stripes_measure(struct aq_byte_stream *stream)
{
    const struct stripes *s = of(stream);
    double rate_mbps = 0;
    for (uint32_t i = 0; i < s->count; i++)
        rate_mbps += s->parts[i].below->ops->measure(s->parts[i].below);
    return rate_mbps;
}

static void stripes_path(struct aq_byte_stream *stream, struct aq_path *out)
{
    const struct stripes *s = of(stream);
    s->parts[0].below->ops->path(s->parts[0].below, out);
    for (uint32_t i = 1; i < s->count; i++) {
        struct aq_path other;
        s->parts[i].below->ops->path(s->parts[i].below, &other);
        out->sent_bytes += other.sent_bytes;
        out->again_bytes += other.again_bytes;
        out->delivered_bytes += other.delivered_bytes;
    }
    out->streams = s->count;
}

static enum aq_status stripes_congestion(struct aq_byte_stream *stream, const char *name)
{
    const struct stripes *s = of(stream);
    for (uint32_t i = 0; i < s->count; i++)
        AQ_TRY(s->parts[i].below->ops->congestion(s->parts[i].below, name));
    return AQ_OK;
}

/* Each part says that this is the end, so that one which ends without is known to be lost. */
static void stripes_shut(struct aq_byte_stream *stream)
{
    struct stripes *s = of(stream);
    for (uint32_t i = 0; i < s->count; i++) {
        struct part *part = &s->parts[i];
        if (!pending(part)) {
            (void)cut_stripe(s, part, NULL, 0, 0);
            (void)flush(s, part); /* where it fails, the peer takes the connection for lost, as it is */
        }
        part->below->ops->shut(part->below);
    }
}

static void stripes_close(struct aq_byte_stream *stream)
{
    struct stripes *s = of(stream);
    close(s->poll[0]);
    close(s->poll[1]);
    for (uint32_t i = 0; i < s->count; i++)
        aq_byte_stream_close(s->parts[i].below);
    aq_free(s);
}

static const struct aq_byte_stream_ops STRIPES_OPS = {.connected = stripes_connected,
                                                      .read = stripes_read,
                                                      .write = stripes_write,
                                                      .wait = stripes_wait,
                                                      .direct = stripes_direct,
                                                      .pace = stripes_pace,
                                                      .measure = stripes_measure,
                                                      .path = stripes_path,
                                                      .congestion = stripes_congestion,
                                                      .shut = stripes_shut,
                                                      .close = stripes_close};
