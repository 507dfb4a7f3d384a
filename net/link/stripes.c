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
    uint64_t queue[AQ_COPIES_KEPT]; /* stripes that it copies, in order: [queue_begin, queue_end), modulo */
    uint64_t queue_begin, queue_end;
};

struct kept { /* a stripe, for its copies */
    uint32_t bytes;
    uint8_t stripe[AQ_STRIPE_HEAD_BYTES + AQ_STRIPE_BYTES];
};

struct stripes {
    struct aq_byte_stream stream;
    struct aq_stripes_config config;
    uint64_t in_number, out_number; /* the next stripe to come, and to go                            */
    uint32_t in_bytes, in_taken;    /* of the stripe that comes, once some of it was taken           */
    uint32_t dropped;               /* in this read; drops_on: and there was more                    */
    bool drops_on;
    uint32_t in_at, out_at;         /* the part to look at first                                     */
    int poll[2];                    /* epoll for reading, for writing                                */
    bool crowded;                   /* there were bytes to write and no part had room for them       */
    double ns_per_byte;             /* paced; 0: not                                                 */
    uint64_t line_free_ns;          /* when what was written has gone at that pace                   */
    uint64_t pace_wake_ns;          /* when the pace lets more go; AQ_NEVER: it does                 */
    struct {
        uint64_t look_ns, looked_ns; /* when to look at the path again, and when that was last       */
        uint64_t again_bytes;        /* that had been sent again then                                */
        uint64_t full_since_ns; /* there were bytes and no room for them; 0: there is               */
        uint64_t full_ns;       /* how long, since looked_ns                                        */
        uint64_t lossy_until_ns, full_until_ns;
        bool go; /* they go now */
    } copies;                 /* AQ_LINK_COPIES_AUTO */
    struct kept *kept;        /* AQ_COPIES_KEPT, the last ones, by number; NULL: AQ_LINK_COPIES_OFF */
    char text[AQ_TEXT_BYTES]; /* stream.broken       */
    uint32_t count;
    struct part parts[];
};

static const struct aq_byte_stream_ops STRIPES_OPS;

static struct stripes *of(struct aq_byte_stream *stream)
{
    return (struct stripes *)stream;
}

enum aq_status aq_stripes_open(struct aq_byte_stream *const *parts, uint32_t count,
                               const struct aq_stripes_config *config, struct aq_byte_stream **out)
{
    void *memory, *kept = NULL;
    struct stripes *s = NULL;
    enum aq_status status = aq_alloc(sizeof *s + count * sizeof s->parts[0], &memory);
    if (status == AQ_OK) {
        s = memory;
        s->poll[0] = epoll_create1(EPOLL_CLOEXEC);
        s->poll[1] = epoll_create1(EPOLL_CLOEXEC);
        if (s->poll[0] == -1 || s->poll[1] == -1) status = aq_fail_errno(AREA, "epoll for %u streams", count);
    }
    if (status == AQ_OK && config->copies != AQ_LINK_COPIES_OFF)
        status = aq_alloc(AQ_COPIES_KEPT * sizeof(struct kept), &kept);
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
    s->config = *config;
    s->kept = kept;
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

/* Is it past what is due, or at its end? */
static bool ahead(const struct stripes *s, const struct part *part)
{
    return known(part) && (part->stripe.bytes == 0 || part->stripe.number > s->in_number);
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
    AQ_TRY(aq_stripe_decode(part->head, s->config.bundle, &part->stripe, s->text));
    part->left = part->stripe.bytes;
    const bool copies = s->config.copies != AQ_LINK_COPIES_OFF && part->stripe.bytes > 0;
    if (part->stripe.number >= s->in_number || copies) return AQ_OK;
    snprintf(s->text, sizeof s->text, "sent stripe %llu again; %llu is due", (unsigned long long)part->stripe.number,
             (unsigned long long)s->in_number);
    return AQ_PROTO;
}

/* Reads so many of its stripe's bytes, which another connection has brought. */
static enum aq_status drop(struct stripes *s, struct part *part, uint32_t bytes)
{
    uint8_t away[4096];
    while (bytes > 0) {
        size_t got;
        const struct iovec iov = {.iov_base = away, .iov_len = bytes < sizeof away ? bytes : sizeof away};
        s->drops_on = s->dropped >= AQ_STRIPES_DROP_BYTES;
        if (s->drops_on) return AQ_AGAIN; /* the loop has other links; wait_to_read comes back at once */
        AQ_TRY(part->below->ops->read(part->below, &iov, 1, &got));
        part->left -= (uint32_t)got;
        bytes -= (uint32_t)got;
        s->dropped += (uint32_t)got;
    }
    return AQ_OK;
}

/* To its next byte that is wanted, if it has one: else it is ahead. */
static enum aq_status advance(struct stripes *s, struct part *part)
{
    for (;;) {
        if (!known(part)) AQ_TRY(read_head(s, part));
        if (ahead(s, part)) return AQ_OK;
        if (due(s, part)) break;
        AQ_TRY(drop(s, part, part->left));
        part->head_have = 0;
    }
    if (s->in_taken == 0) return AQ_OK;
    if (part->stripe.bytes != s->in_bytes) {
        snprintf(s->text, sizeof s->text, "sent stripe %llu with %u bytes on one stream and %u on another",
                 (unsigned long long)s->in_number, s->in_bytes, part->stripe.bytes);
        return AQ_PROTO;
    }
    const uint32_t at = part->stripe.bytes - part->left;
    return at < s->in_taken ? drop(s, part, s->in_taken - at) : AQ_OK;
}

static enum aq_status take(struct stripes *s, struct part *part, const struct iovec *iov, int count, size_t *got)
{
    struct iovec some[2];
    int pieces = 0;
    for (size_t left = part->left; pieces < count && pieces < 2 && left > 0; pieces++) {
        some[pieces] = iov[pieces];
        if (some[pieces].iov_len > left) some[pieces].iov_len = left;
        left -= some[pieces].iov_len;
    }
    AQ_TRY(part->below->ops->read(part->below, some, pieces, got));
    AQ_ASSERT(*got <= part->left);
    part->left -= (uint32_t)*got;
    s->in_bytes = part->stripe.bytes;
    s->in_taken = part->stripe.bytes - part->left;
    s->in_at = (uint32_t)(part - s->parts);
    if (part->left > 0) return AQ_OK;
    part->head_have = 0;
    s->in_number++;
    s->in_taken = 0;
    s->in_at = (s->in_at + 1) % s->count;
    return AQ_OK;
}

/* From whichever part has the next bytes. AQ_AGAIN: none has; AQ_CLOSED: those were the last. */
static enum aq_status stripes_read(struct aq_byte_stream *stream, const struct iovec *iov, int count, size_t *got)
{
    struct stripes *s = of(stream);
    uint32_t heads = 0, ends = 0;
    const uint32_t first = s->in_at;
    hear(s, 0);
    s->dropped = 0;
    s->drops_on = false;
    for (uint32_t i = 0; i < s->count; i++) {
        struct part *part = &s->parts[(first + i) % s->count];
        enum aq_status status = advance(s, part);
        if (status == AQ_OK && ahead(s, part)) {
            heads++;
            ends += part->stripe.bytes == 0 && part->stripe.number == s->in_number;
            continue;
        }
        if (status == AQ_OK) status = take(s, part, iov, count, got);
        if (status == AQ_OK) return AQ_OK;
        if (status != AQ_AGAIN) return broken(s, part, status);
    }
    if (ends == s->count) return AQ_CLOSED;
    if (heads < s->count) return AQ_AGAIN;
    snprintf(s->text, sizeof s->text, "left out stripe %llu: all streams are past it",
             (unsigned long long)s->in_number);
    return broken(s, NULL, AQ_PROTO);
}

/* Right after a read that said AQ_AGAIN: each part that is waited for has been asked. */
static void wait_to_read(struct stripes *s, struct aq_byte_stream_wait *out)
{
    struct part *const first = &s->parts[s->in_at];
    const bool alone = s->config.copies == AQ_LINK_COPIES_OFF && due(s, first);
    for (uint32_t i = 0; i < s->count; i++) {
        struct part *part = &s->parts[i];
        struct aq_byte_stream_wait wait;
        if (alone ? part != first : ahead(s, part)) continue;
        part->below->ops->wait(part->below, false, &wait);
        arm(s, part, 0, &wait, &out->wake_ns);
    }
    if (s->drops_on) out->wake_ns = 0;
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

static bool copies_left(const struct part *part)
{
    return part->queue_begin < part->queue_end;
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
        if (copies_left(&s->parts[at]) || !has_room(&s->parts[at], now_ns)) continue; /* numbers rise */
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
    aq_stripe_encode(&stripe, s->config.bundle, part->out);
    part->out_begin = 0;
    part->out_end = AQ_STRIPE_HEAD_BYTES + bytes;
    return bytes;
}

static void stripes_path(struct aq_byte_stream *stream, struct aq_path *out);

/* Where packets are lost, unless the bytes themselves want the link for more than half of the time. */
static bool copies_now(struct stripes *s, uint64_t now_ns)
{
    struct aq_path path;
    if (s->config.copies != AQ_LINK_COPIES_AUTO) return s->config.copies == AQ_LINK_COPIES_ON;
    if (now_ns >= s->copies.look_ns) {
        stripes_path(&s->stream, &path);
        if (path.again_bytes > s->copies.again_bytes) s->copies.lossy_until_ns = now_ns + AQ_COPIES_KEEP_NS;
        const bool full = 2 * s->copies.full_ns > now_ns - s->copies.looked_ns;
        if (full) s->copies.full_until_ns = now_ns + (s->copies.go ? AQ_COPIES_PAUSE_NS : AQ_COPIES_LOOK_NS);
        s->copies.again_bytes = path.again_bytes;
        s->copies.full_ns = 0;
        s->copies.looked_ns = now_ns;
        s->copies.look_ns = now_ns + AQ_COPIES_LOOK_NS;
    }
    s->copies.go = now_ns < s->copies.lossy_until_ns && now_ns >= s->copies.full_until_ns;
    return s->copies.go;
}

/* What it is to copy, as far as it has room; what is not kept any more is passed over. */
static enum aq_status copies_out(struct stripes *s, struct part *part, uint64_t now_ns)
{
    while (copies_left(part) && has_room(part, now_ns)) {
        const uint64_t number = part->queue[part->queue_begin++ % AQ_COPIES_KEPT];
        const struct kept *kept = &s->kept[number % AQ_COPIES_KEPT];
        if (s->out_number - number > AQ_COPIES_KEPT) continue;
        memcpy(part->out, kept->stripe, kept->bytes);
        part->out_begin = 0;
        part->out_end = kept->bytes;
        count_pace(s, kept->bytes, now_ns);
        AQ_TRY(flush(s, part));
    }
    return AQ_OK;
}

/* The newest stripe, which the part has, over that of the others which is the least behind. */
static enum aq_status copy_stripe(struct stripes *s, const struct part *part, uint64_t now_ns)
{
    const uint64_t number = s->out_number - 1;
    struct part *other = NULL;
    for (uint32_t i = 1; i < s->count; i++) {
        struct part *one = &s->parts[((uint32_t)(part - s->parts) + i) % s->count];
        if (!other || one->queue_end - one->queue_begin < other->queue_end - other->queue_begin) other = one;
    }
    struct kept *kept = &s->kept[number % AQ_COPIES_KEPT];
    kept->bytes = part->out_end;
    memcpy(kept->stripe, part->out, kept->bytes);
    if (other->queue_end - other->queue_begin == AQ_COPIES_KEPT) other->queue_begin++; /* it stands still */
    other->queue[other->queue_end++ % AQ_COPIES_KEPT] = number;
    return copies_out(s, other, now_ns);
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
    if (s->copies.full_since_ns > 0) s->copies.full_ns += now_ns - s->copies.full_since_ns;
    const bool copies = copies_now(s, now_ns);
    s->crowded = false;
    s->pace_wake_ns = AQ_NEVER;
    for (uint32_t i = 0; i < s->count; i++)
        AQ_TRY(flush(s, &s->parts[i]));
    for (uint32_t i = 0; i < s->count; i++)
        AQ_TRY(copies_out(s, &s->parts[i], now_ns));
    while (taken < offered && pace_permits(s, now_ns)) {
        struct part *part = next_with_room(s, now_ns);
        s->crowded = !part;
        if (!part) break;
        taken += cut_stripe(s, part, iov, count, taken);
        s->out_number++;
        count_pace(s, part->out_end, now_ns);
        if (copies) AQ_TRY(copy_stripe(s, part, now_ns)); /* before it goes out and gives its place away */
        AQ_TRY(flush(s, part));
    }
    s->copies.full_since_ns = taken < offered ? now_ns : 0;
    stream->unsent = false;
    for (uint32_t i = 0; i < s->count; i++)
        stream->unsent |= pending(&s->parts[i]) || copies_left(&s->parts[i]);
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
        if (!pending(part) && !copies_left(part) && !s->crowded) continue;
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
    aq_free(s->kept);
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
