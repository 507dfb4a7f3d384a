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

#include "congestion.h"
#include "net_limits.h"

static const char *const AREA = "net";

struct part {
    struct aq_byte_stream *below;
    uint8_t head[AQ_STRIPE_HEAD_BYTES]; /* that this connection is at */
    uint32_t head_have;
    struct aq_stripe stripe; /* of that head, when it is whole                       */
    uint32_t left;           /* of its bytes                                         */
    bool gathers;            /* they go to in.kept or in.sum, to make a sum          */
    uint64_t sent_bytes;     /* when losses were looked for last                     */
    int armed[2];            /* descriptors in poll[]; -1: none                      */
    uint8_t out[AQ_STRIPE_HEAD_BYTES + AQ_SUM_HEAD_BYTES + AQ_STRIPE_BYTES]; /* one on its way: [begin, end) is left */
    uint32_t out_begin, out_end;
    bool marked, shut; /* its last stripe, the mark of the end, was cut; its stream below is shut */
};

struct kept {               /* a stripe that came before its turn, or was made from a sum */
    uint64_t number, first; /* of its group */
    uint32_t bytes;         /* 0: none      */
    uint8_t body[AQ_STRIPE_BYTES_MAX];
};

struct sums_in {                           /* what it takes to make a stripe that does not come */
    uint64_t first;                        /* of the group that the due stripe, or the one before it, is of */
    uint32_t lengths, taken_bytes;         /* of those of it that were taken: exclusive or, and the longest */
    uint8_t taken[AQ_STRIPE_BYTES_MAX];    /* their bytes, exclusive or                            */
    struct aq_stripe of;                   /* the sum at hand; bytes 0: none                       */
    bool of_whole;                         /* all of it is here                                    */
    uint8_t sum[AQ_STRIPE_BYTES_MAX];      /* its bytes                                            */
    struct kept kept[AQ_LINK_STREAMS_MAX]; /* by number                                            */
};

struct group { /* of outgoing stripes, to make their sum */
    bool on;
    uint32_t count, used; /* that many, over the connections of these bits */
    uint32_t bytes;       /* of the longest                              */
    uint32_t lengths;     /* exclusive or                                */
    uint8_t sum[AQ_STRIPE_BYTES];
};

struct stripes {
    struct aq_byte_stream stream;
    struct aq_stripes_config config;
    uint64_t in_number, out_number; /* the next stripe to come, and to go                            */
    uint32_t in_bytes, in_taken;    /* of the stripe that comes, once some of it was taken           */
    uint32_t dropped;               /* in this read; drops_on: and there was more                    */
    bool drops_on;
    bool stuck;                                    /* in this read: nobody has what is due, so sums are looked for  */
    uint32_t in_at, out_at;                        /* the part to look at first                                     */
    int poll[2];                                   /* epoll for reading, for writing                                */
    bool crowded;                                  /* there were bytes to write and no part had room for them       */
    double ns_per_byte;                            /* paced; 0: not                                                 */
    uint64_t line_free_ns;                         /* when what was written has gone at that pace                   */
    uint64_t pace_wake_ns;                         /* when the pace lets more go; AQ_NEVER: it does                 */
    uint64_t look_ns, lossy_until_ns, again_bytes; /* AQ_LINK_COPIES_AUTO: when losses are looked for next; sums go
                                                      until then; what had been sent again             */
    uint64_t full_until_ns;                        /* until then losses count as those of a full queue              */
    bool ends;                                     /* it has been shut: each part gets its mark, and is shut */
    bool lone;                                     /* then: without sums all goes over the first part  */
    struct group group;
    uint32_t group_most;      /* stripes of a group */
    struct sums_in *in;       /* NULL: AQ_LINK_COPIES_OFF */
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
    void *memory, *in = NULL;
    struct stripes *s = NULL;
    enum aq_status status = aq_alloc(sizeof *s + count * sizeof s->parts[0], &memory);
    if (status == AQ_OK) {
        s = memory;
        s->poll[0] = epoll_create1(EPOLL_CLOEXEC);
        s->poll[1] = epoll_create1(EPOLL_CLOEXEC);
        if (s->poll[0] == -1 || s->poll[1] == -1) status = aq_fail_errno(AREA, "epoll for %u streams", count);
    }
    if (status == AQ_OK && config->copies != AQ_LINK_COPIES_OFF) status = aq_alloc(sizeof(struct sums_in), &in);
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
    s->in = in;
    s->count = count;
    s->group_most = count - 1 < AQ_GROUP_STRIPES ? count - 1 : AQ_GROUP_STRIPES;
    s->pace_wake_ns = AQ_NEVER;
    for (uint32_t i = 0; i < count; i++) {
        s->parts[i].below = parts[i];
        s->parts[i].armed[0] = s->parts[i].armed[1] = -1;
    }
    *out = &s->stream;
    return AQ_OK;
}

/* The stream is broken; its reason is the part's, or is in s->text already. */
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
    const uint64_t soon_ns = aq_clock_after(AQ_BACK_OFF_NS_MIN); /* out of memory: tried again by the clock */
    part->armed[way] = -1;
    if (soon_ns < *wake_ns) *wake_ns = soon_ns;
}

/* ---- in ---- */

static bool known(const struct part *part)
{
    return part->head_have == AQ_STRIPE_HEAD_BYTES;
}

/* Is it past what is due, or at its end? A sum is, unless the due stripe is one of those it is of. */
static bool ahead(const struct stripes *s, const struct part *part)
{
    return known(part) && (part->stripe.bytes == 0 || part->stripe.number > s->in_number || part->stripe.sum > 0);
}

static bool due(const struct stripes *s, const struct part *part)
{
    return known(part) && !part->gathers && part->stripe.bytes > 0 && part->stripe.sum == 0 &&
           part->stripe.number == s->in_number;
}

/* It came too late: its bytes are not needed any more. */
static bool stale(const struct stripes *s, const struct part *part)
{
    return part->stripe.bytes > 0 && part->stripe.number < s->in_number;
}

/* Its bytes help to make the stripe that is due: a sum of it and others, or another of its group. */
static bool helps(const struct stripes *s, const struct part *part)
{
    const struct aq_stripe *stripe = &part->stripe;
    if (!s->in || stripe->bytes == 0) return false;
    if (stripe->sum > 0) return s->in->of.bytes == 0 && stripe->number + 1 - stripe->sum <= s->in_number;
    return stripe->number > s->in_number && stripe->number - stripe->place <= s->in_number;
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
    const struct aq_stripe *stripe = &part->stripe;
    AQ_TRY(aq_stripe_decode(part->head, s->config.bundle, &part->stripe, s->text));
    part->left = stripe->bytes;
    if (!s->in && (stripe->sum > 0 || stripe->place > 0)) {
        snprintf(s->text, sizeof s->text, "sent a stripe of a group; the handshake did not agree to any");
        return AQ_PROTO;
    }
    if (stripe->number >= s->in_number || (s->in && stripe->bytes > 0)) return AQ_OK;
    snprintf(s->text, sizeof s->text, "sent stripe %llu again; %llu is expected", (unsigned long long)stripe->number,
             (unsigned long long)s->in_number);
    return AQ_PROTO;
}

/* Reads the rest of its stripe, which is not needed. */
static enum aq_status drop(struct stripes *s, struct part *part)
{
    uint8_t away[4096];
    while (part->left > 0) {
        size_t got;
        const struct iovec iov = {.iov_base = away, .iov_len = part->left < sizeof away ? part->left : sizeof away};
        s->drops_on = s->dropped >= AQ_STRIPES_DROP_BYTES;
        if (s->drops_on) return AQ_AGAIN; /* the loop has other links; wait_to_read comes back at once */
        AQ_TRY(part->below->ops->read(part->below, &iov, 1, &got));
        part->left -= (uint32_t)got;
        s->dropped += (uint32_t)got;
    }
    return AQ_OK;
}

/* Reads what is left of its stripe or sum, to keep it. */
static enum aq_status gather(struct stripes *s, struct part *part)
{
    const struct aq_stripe *stripe = &part->stripe;
    struct kept *kept = &s->in->kept[stripe->number % AQ_LINK_STREAMS_MAX];
    uint8_t *to = stripe->sum > 0 ? s->in->sum : kept->body;
    if (!part->gathers && stripe->sum > 0) { /* at most one is under way */
        s->in->of = *stripe;
        s->in->of_whole = false;
    }
    part->gathers = true;
    while (part->left > 0) {
        size_t got;
        const struct iovec iov = {.iov_base = to + (stripe->bytes - part->left), .iov_len = part->left};
        AQ_TRY(part->below->ops->read(part->below, &iov, 1, &got));
        part->left -= (uint32_t)got;
    }
    part->gathers = false;
    if (stripe->sum > 0) {
        s->in->of_whole = true;
        return AQ_OK;
    }
    kept->number = stripe->number;
    kept->first = stripe->number - stripe->place;
    kept->bytes = stripe->bytes;
    return AQ_OK;
}

/* To its next byte that is wanted, if it has one: else it is ahead. */
static enum aq_status advance(struct stripes *s, struct part *part)
{
    for (;;) {
        if (!known(part)) AQ_TRY(read_head(s, part));
        if (stale(s, part)) {
            part->gathers = false;
            AQ_TRY(drop(s, part));
        } else if (part->gathers || (s->stuck && helps(s, part))) {
            AQ_TRY(gather(s, part));
        } else {
            return AQ_OK;
        }
        part->head_have = 0;
    }
}

static void add_to(uint8_t *restrict sum, const uint8_t *restrict bytes, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        sum[i] ^= bytes[i];
}

/* The next bytes of the stripe that is due have gone to the link, into iov. */
static void count_taken(struct stripes *s, const struct iovec *iov, uint32_t count)
{
    for (uint32_t here = 0; count > 0; iov++, count -= here) {
        here = iov->iov_len < count ? (uint32_t)iov->iov_len : count;
        if (s->in) add_to(s->in->taken + s->in_taken, iov->iov_base, here);
        s->in_taken += here;
    }
    if (s->in && s->in->taken_bytes < s->in_taken) s->in->taken_bytes = s->in_taken;
    if (s->in_taken < s->in_bytes) return;
    if (s->in) s->in->lengths ^= s->in_bytes;
    if (s->in && s->in->of.number == s->in_number) s->in->of.bytes = 0;
    s->in_number++;
    s->in_taken = 0;
}

/* The due stripe is of the group that starts with `first`. */
static enum aq_status enter_group(struct stripes *s, uint64_t first)
{
    if (!s->in || first == s->in->first) return AQ_OK;
    if (first != s->in_number) {
        snprintf(s->text, sizeof s->text,
                 "sent stripe %llu as part of a group that starts with %llu, which was in another",
                 (unsigned long long)s->in_number, (unsigned long long)first);
        return AQ_PROTO;
    }
    s->in->first = first;
    memset(s->in->taken, 0, s->in->taken_bytes);
    s->in->lengths = s->in->taken_bytes = 0;
    return AQ_OK;
}

/* The due stripe continues where it was left, with the same length. */
static enum aq_status same_stripe(struct stripes *s, uint32_t bytes, uint32_t at)
{
    if (s->in_taken == at && (at == 0 || bytes == s->in_bytes)) return AQ_OK;
    snprintf(s->text, sizeof s->text, "sent stripe %llu on two streams, of %u and %u bytes",
             (unsigned long long)s->in_number, s->in_bytes, bytes);
    return AQ_PROTO;
}

static enum aq_status take(struct stripes *s, struct part *part, const struct iovec *iov, int count, size_t *got)
{
    struct iovec some[2];
    int pieces = 0;
    AQ_TRY(same_stripe(s, part->stripe.bytes, part->stripe.bytes - part->left));
    for (size_t left = part->left; pieces < count && pieces < 2 && left > 0; pieces++) {
        some[pieces] = iov[pieces];
        if (some[pieces].iov_len > left) some[pieces].iov_len = left;
        left -= some[pieces].iov_len;
    }
    AQ_TRY(enter_group(s, part->stripe.number - part->stripe.place));
    AQ_TRY(part->below->ops->read(part->below, some, pieces, got));
    AQ_ASSERT(*got <= part->left);
    part->left -= (uint32_t)*got;
    s->in_bytes = part->stripe.bytes;
    count_taken(s, some, (uint32_t)*got);
    s->in_at = (uint32_t)(part - s->parts);
    if (part->left > 0) return AQ_OK;
    part->head_have = 0;
    s->in_at = (s->in_at + 1) % s->count;
    return AQ_OK;
}

static struct kept *kept_due(struct stripes *s)
{
    struct kept *kept = s->in ? &s->in->kept[s->in_number % AQ_LINK_STREAMS_MAX] : NULL;
    return kept && kept->bytes > 0 && kept->number == s->in_number ? kept : NULL;
}

static enum aq_status take_kept(struct stripes *s, struct kept *kept, const struct iovec *iov, int count, size_t *got)
{
    const uint32_t from = s->in_taken;
    uint32_t at = from;
    AQ_TRY(same_stripe(s, kept->bytes, from));
    AQ_TRY(enter_group(s, kept->first));
    for (int i = 0; i < count && at < kept->bytes; i++) {
        const uint32_t left = kept->bytes - at, here = iov[i].iov_len < left ? (uint32_t)iov[i].iov_len : left;
        memcpy(iov[i].iov_base, kept->body + at, here);
        at += here;
    }
    *got = at - from;
    s->in_bytes = kept->bytes;
    if (at == kept->bytes) kept->bytes = 0;
    count_taken(s, iov, at - from);
    return AQ_OK;
}

/* Makes the stripe that is due from the sum of its group, where all others are here. It is kept then. */
static enum aq_status make_stripe(struct stripes *s)
{
    struct sums_in *in = s->in;
    struct kept *made = &in->kept[s->in_number % AQ_LINK_STREAMS_MAX];
    if (in->of.bytes == 0 || !in->of_whole) return AQ_OK;
    for (uint64_t n = s->in_number + 1; n <= in->of.number; n++) {
        const struct kept *kept = &in->kept[n % AQ_LINK_STREAMS_MAX];
        if (kept->bytes == 0 || kept->number != n) return AQ_OK;
    }
    AQ_TRY(enter_group(s, in->of.number + 1 - in->of.sum));
    uint32_t bytes = (in->sum[0] | (uint32_t)in->sum[1] << 8) ^ in->lengths;
    const uint32_t most = in->of.bytes - AQ_SUM_HEAD_BYTES;
    memcpy(made->body, in->sum + AQ_SUM_HEAD_BYTES, most);
    add_to(made->body, in->taken, in->taken_bytes < most ? in->taken_bytes : most);
    for (uint64_t n = s->in_number + 1; n <= in->of.number; n++) {
        const struct kept *kept = &in->kept[n % AQ_LINK_STREAMS_MAX];
        add_to(made->body, kept->body, kept->bytes < most ? kept->bytes : most);
        bytes ^= kept->bytes;
    }
    if (bytes == 0 || bytes > most) {
        snprintf(s->text, sizeof s->text, "sent a sum of %u bytes by which stripe %llu had %u", in->of.bytes,
                 (unsigned long long)s->in_number, bytes);
        return AQ_PROTO;
    }
    made->number = s->in_number;
    made->first = in->first;
    made->bytes = bytes;
    return AQ_OK;
}

/* Once through all parts. AQ_AGAIN: none has the next bytes; *heads of them are past them, *ends at their end. */
static enum aq_status read_parts(struct stripes *s, const struct iovec *iov, int count, size_t *got, uint32_t *heads,
                                 uint32_t *ends)
{
    const uint32_t first = s->in_at;
    *heads = *ends = 0;
    for (uint32_t i = 0; i < s->count; i++) {
        struct part *part = &s->parts[(first + i) % s->count];
        enum aq_status status = advance(s, part);
        if (status == AQ_OK && ahead(s, part)) {
            ++*heads;
            *ends += part->stripe.bytes == 0 && part->stripe.number == s->in_number;
            continue;
        }
        if (status == AQ_OK) status = take(s, part, iov, count, got);
        if (status == AQ_OK) return AQ_OK;
        if (status != AQ_AGAIN) return broken(s, part, status);
    }
    return AQ_AGAIN;
}

/* From whichever part has the next bytes; where none has, from a sum. AQ_AGAIN; AQ_CLOSED: those were the last. */
static enum aq_status stripes_read(struct aq_byte_stream *stream, const struct iovec *iov, int count, size_t *got)
{
    struct stripes *s = of(stream);
    uint32_t heads = 0, ends = 0;
    hear(s, 0);
    s->dropped = 0;
    s->drops_on = false;
    for (int pass = 0; pass < (s->in ? 2 : 1); pass++) {
        s->stuck = pass > 0;
        enum aq_status status = kept_due(s) ? AQ_AGAIN : read_parts(s, iov, count, got, &heads, &ends);
        if (status != AQ_AGAIN) return status;
        if (s->stuck && !kept_due(s)) status = make_stripe(s);
        if (kept_due(s))
            status = take_kept(s, kept_due(s), iov, count, got);
        else if (status == AQ_OK)
            status = AQ_AGAIN;
        if (status == AQ_OK) return AQ_OK;
        if (status != AQ_AGAIN) return broken(s, NULL, status);
    }
    if (ends == s->count) return AQ_CLOSED;
    if (heads < s->count) return AQ_AGAIN;
    snprintf(s->text, sizeof s->text, "left out stripe %llu: all streams are past it",
             (unsigned long long)s->in_number);
    return broken(s, NULL, AQ_PROTO);
}

/* Right after a read that returned AQ_AGAIN: each part that is waited for has been asked. */
static void wait_to_read(struct stripes *s, struct aq_byte_stream_wait *out)
{
    struct part *const first = &s->parts[s->in_at];
    const bool alone = !s->in && due(s, first);
    for (uint32_t i = 0; i < s->count; i++) {
        struct part *part = &s->parts[i];
        struct aq_byte_stream_wait wait;
        if (alone ? part != first : ahead(s, part) && !part->gathers && !stale(s, part)) continue;
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

/* Parts that stripes go to now. */
static uint32_t in_use(const struct stripes *s)
{
    return s->lone && !s->group.on ? 1 : s->count;
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

/* In how many round trips a stripe would be there that is written now: what is before it goes a window a round trip. */
static uint64_t trips_of(const struct part *part)
{
    struct aq_path path;
    bottom(part)->ops->path(bottom(part), &path);
    return path.window_bytes ? (path.flight_bytes + AQ_STRIPE_BYTES) / path.window_bytes : 0;
}

/*
 * For the next stripe, or the sum of a group: one that has none of the group, and of those that have room the one over
 * which it is there first, in turn where several are alike. A connection that lost a packet has a small window for long
 * under Reno and CUBIC, and takes what it is given all the same: what goes there waits for it.
 */
static struct part *next_with_room(struct stripes *s, uint64_t now_ns)
{
    const uint32_t count = in_use(s);
    uint32_t best = s->count;
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < count && least > 0; i++) {
        const uint32_t at = (s->out_at + i) % count;
        if ((s->group.used >> at & 1) || !has_room(&s->parts[at], now_ns)) continue;
        const uint64_t trips = count > 1 ? trips_of(&s->parts[at]) : 0; /* a single one: the kernel need not be asked */
        if (trips >= least) continue;
        least = trips;
        best = at;
    }
    if (best == s->count) return NULL;
    s->out_at = (best + 1) % s->count;
    return &s->parts[best];
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

static void send_out(struct stripes *s, struct part *part, const struct aq_stripe *stripe)
{
    aq_stripe_encode(stripe, s->config.bundle, part->out);
    part->out_begin = 0;
    part->out_end = AQ_STRIPE_HEAD_BYTES + stripe->bytes;
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
    const struct aq_stripe stripe = {.number = s->out_number, .bytes = bytes, .place = (uint8_t)s->group.count};
    send_out(s, part, &stripe);
    return bytes;
}

/* Do groups have sums now? True where packets are lost on the path. Under BBR, which fills no queue by itself, a
 * loss is not one of a full queue. */
static bool sums_now(struct stripes *s, uint64_t now_ns)
{
    if (s->config.copies != AQ_LINK_COPIES_AUTO) return s->config.copies == AQ_LINK_COPIES_ON;
    if (now_ns < s->look_ns) return now_ns < s->lossy_until_ns;
    uint64_t again_bytes = 0, queue_ns = 0, round_trip_ns = UINT64_MAX;
    bool steady = true;
    for (uint32_t i = 0; i < s->count; i++) {
        struct part *part = &s->parts[i];
        struct aq_path path;
        part->below->ops->path(part->below, &path);
        /* The way and its queue are theirs together; one that has sent nothing knows of a queue that was. */
        if (path.sent_bytes != part->sent_bytes && path.queue_ns > queue_ns) queue_ns = path.queue_ns;
        if (path.round_trip_ns < round_trip_ns) round_trip_ns = path.round_trip_ns;
        part->sent_bytes = path.sent_bytes;
        again_bytes += path.again_bytes;
        steady = steady && path.steady;
    }
    s->lone = s->config.spare && steady;
    const struct aq_path all = {.steady = steady, .round_trip_ns = round_trip_ns, .queue_ns = queue_ns};
    if (aq_path_full(&all)) s->full_until_ns = now_ns + round_trip_ns + AQ_QUEUE_KEEP_NS;
    if (again_bytes > s->again_bytes && now_ns >= s->full_until_ns) s->lossy_until_ns = now_ns + AQ_COPIES_KEEP_NS;
    s->again_bytes = again_bytes;
    s->look_ns = now_ns + AQ_COPIES_LOOK_NS;
    return now_ns < s->lossy_until_ns;
}

/* The newest stripe, which the part has, is of the group. */
static void join_group(struct group *group, const struct stripes *s, const struct part *part)
{
    const uint32_t bytes = part->out_end - AQ_STRIPE_HEAD_BYTES;
    add_to(group->sum, part->out + AQ_STRIPE_HEAD_BYTES, bytes);
    if (bytes > group->bytes) group->bytes = bytes;
    group->lengths ^= bytes;
    group->used |= 1u << (part - s->parts);
    group->count++;
}

static void forget_group(struct group *group)
{
    memset(group->sum, 0, group->bytes);
    group->count = group->used = group->bytes = group->lengths = 0;
}

/* The sum goes over a connection that has none of the group's stripes; where all of those are stalled, no sum is
 * sent. */
static enum aq_status end_group(struct stripes *s, uint64_t now_ns)
{
    struct group *group = &s->group;
    struct part *part = next_with_room(s, now_ns);
    for (uint32_t i = 0; !part && i < s->count; i++) {
        struct part *one = &s->parts[(s->out_at + i) % s->count];
        if (!(group->used >> (one - s->parts) & 1) && !pending(one)) part = one;
    }
    if (part) {
        const struct aq_stripe stripe = {
            .number = s->out_number - 1, .bytes = AQ_SUM_HEAD_BYTES + group->bytes, .sum = (uint8_t)group->count};
        part->out[AQ_STRIPE_HEAD_BYTES] = (uint8_t)group->lengths;
        part->out[AQ_STRIPE_HEAD_BYTES + 1] = (uint8_t)(group->lengths >> 8);
        memcpy(part->out + AQ_STRIPE_HEAD_BYTES + AQ_SUM_HEAD_BYTES, group->sum, group->bytes);
        send_out(s, part, &stripe);
        count_pace(s, part->out_end, now_ns);
        s->out_at = (uint32_t)(part - s->parts + 1) % s->count;
    }
    forget_group(group);
    return part ? flush(s, part) : AQ_OK;
}

static size_t bytes_of(const struct iovec *iov, int count)
{
    size_t bytes = 0;
    for (int i = 0; i < count; i++)
        bytes += iov[i].iov_len;
    return bytes;
}

/*
 * The part of the next stripe; a group ends where all that have room have one of it. NULL: none has room. A busy link
 * has room on one connection at a time: a sum for each stripe or two would take up to as many bytes again, so that such
 * a short group gets none.
 */
static enum aq_status choose_part(struct stripes *s, uint64_t now_ns, struct part **out)
{
    if (s->group.count == 0) s->group.on = sums_now(s, now_ns);
    *out = next_with_room(s, now_ns);
    if (*out || s->group.count == 0) return AQ_OK;
    if (2 * s->group.count > s->group_most)
        AQ_TRY(end_group(s, now_ns));
    else
        forget_group(&s->group);
    s->group.on = sums_now(s, now_ns);
    *out = next_with_room(s, now_ns);
    return AQ_OK;
}

static enum aq_status write_stripes(struct stripes *s, const struct iovec *iov, int count, size_t offered,
                                    uint64_t now_ns, size_t *taken)
{
    while (*taken < offered && pace_permits(s, now_ns)) {
        struct part *part;
        AQ_TRY(choose_part(s, now_ns, &part));
        s->crowded = !part;
        if (!part) break;
        *taken += cut_stripe(s, part, iov, count, *taken);
        s->out_number++;
        count_pace(s, part->out_end, now_ns);
        if (s->group.on) join_group(&s->group, s, part);
        AQ_TRY(flush(s, part));
        if (s->group.count == s->group_most) AQ_TRY(end_group(s, now_ns));
    }
    return AQ_OK;
}

static bool any_pending(const struct stripes *s)
{
    bool any = false;
    for (uint32_t i = 0; i < s->count; i++)
        any = any || pending(&s->parts[i]);
    return any;
}

/* Each part marks the end before its stream is shut: one that ends without the mark is known to be lost, and with it
 * what the others still carry. Where a write fails, the peer takes the connection for lost, as it is. */
static void end_parts(struct stripes *s)
{
    for (uint32_t i = 0; i < s->count; i++) {
        struct part *part = &s->parts[i];
        if (flush(s, part) != AQ_OK || pending(part) || part->shut) continue;
        if (!part->marked) (void)cut_stripe(s, part, NULL, 0, 0);
        part->marked = true;
        if (flush(s, part) != AQ_OK || pending(part)) continue;
        part->below->ops->shut(part->below);
        part->shut = true;
    }
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
    AQ_TRY(write_stripes(s, iov, count, offered, now_ns, &taken));
    if (offered == 0 && s->group.count > 0) AQ_TRY(end_group(s, now_ns));
    if (s->ends) end_parts(s);
    stream->unsent = s->group.count > 0 || any_pending(s);
    *put = taken;
    return taken > 0 || (offered == 0 && !stream->unsent) ? AQ_OK : AQ_AGAIN;
}

/* Right after a write that returned AQ_AGAIN. Where only the pace holds it back, no descriptor reports that: the
 * clock does. */
static void wait_to_write(struct stripes *s, struct aq_byte_stream_wait *out)
{
    bool any = false;
    out->wake_ns = s->pace_wake_ns;
    for (uint32_t i = 0; i < s->count; i++) {
        struct part *part = &s->parts[i];
        struct aq_byte_stream_wait wait;
        if (!pending(part) && !(s->crowded && i < in_use(s))) continue;
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

/* Each part may use the whole rate, because the others may be stalled; together they keep to it here. */
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
        out->window_bytes += other.window_bytes;
        out->flight_bytes += other.flight_bytes;
        out->steady = out->steady && other.steady;
        if (strcmp(out->congestion, other.congestion) != 0) snprintf(out->congestion, sizeof out->congestion, "mixed");
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

static void stripes_shut(struct aq_byte_stream *stream)
{
    struct stripes *s = of(stream);
    s->ends = true;
    end_parts(s);
    stream->unsent = any_pending(s); /* a mark for which there is no room yet goes out with the next write */
}

static void stripes_close(struct aq_byte_stream *stream)
{
    struct stripes *s = of(stream);
    close(s->poll[0]);
    close(s->poll[1]);
    for (uint32_t i = 0; i < s->count; i++)
        aq_byte_stream_close(s->parts[i].below);
    aq_free(s->in);
    aq_free(s);
}

static const struct aq_byte_stream_ops STRIPES_OPS = {.connected = stripes_connected,
                                                      .read = stripes_read,
                                                      .write = stripes_write,
                                                      .wait = stripes_wait,
                                                      .direct = aq_filter_direct,
                                                      .pace = stripes_pace,
                                                      .measure = stripes_measure,
                                                      .path = stripes_path,
                                                      .congestion = stripes_congestion,
                                                      .shut = stripes_shut,
                                                      .close = stripes_close};
