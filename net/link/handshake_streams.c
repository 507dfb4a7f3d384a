/*
 * handshake_streams.c -- a link over several connections: how many, and how they find each other at a listener.
 *
 * The first connection shakes hands as ever; its HELLOs agree on a number of streams, and the answer names the bundle.
 * The connector confirms, dials the others at once, and each sends one HELLO with bundle and number, which is not
 * answered. The listener has made the link when the first is confirmed and the others are there. One that fits no
 * bundle in hand is let go without a word: it is late, and who dialled it has lost the link already.
 */
#include <poll.h>
#include <stdio.h>

#include "congestion.h"
#include "handshake.h"
#include "link_state.h"
#include "stripes.h"

/* Does its transport repair by itself, so that one connection is all there is? */
static bool alone(const struct aq_byte_stream *stream)
{
    while (stream->next)
        stream = stream->next;
    return stream->alone;
}

/* By what the path holds, and what a window halved by a loss now and then fills of it; enough for groups with a sum. */
static uint32_t wish(const struct aq_link_config *config, const struct aq_path *path)
{
    if (config->streams > 0) return config->streams;
    const uint32_t least = config->copies == AQ_LINK_COPIES_OFF ? 1 : AQ_GROUP_STRIPES + 1;
    if (path->round_trip_ns < AQ_FAR_NS) return 1;
    if (path->steady) return least;
    const double rate_mbps = config->rate_mbps > 0 ? config->rate_mbps : AQ_PACK_RATE_MBPS;
    const double bytes = rate_mbps * 1e6 / 8 * (double)path->round_trip_ns * 1e-9;
    const double streams = bytes / AQ_STREAM_WINDOW_BYTES + 1;
    if (streams < least) return least;
    return streams < AQ_LINK_STREAMS_MAX ? (uint32_t)streams : AQ_LINK_STREAMS_MAX;
}

void aq_streams_ask(const struct aq_link_config *config, struct aq_byte_stream *stream, struct aq_hello *hello)
{
    struct aq_path path;
    stream->ops->path(stream, &path);
    if (config->streams == 1 || alone(stream) || (config->streams == 0 && path.round_trip_ns < AQ_FAR_NS)) return;
    hello->features |= AQ_FEATURE_STREAMS | (config->copies == AQ_LINK_COPIES_OFF ? 0u : AQ_FEATURE_COPIES);
    hello->streams = wish(config, &path);
}

void aq_streams_answer(struct aq_listener *listener, struct aq_handshake *h, const struct aq_link_config *config,
                       struct aq_hello *hello)
{
    struct aq_path path;
    h->streams = 1;
    if (config->streams == 1 || alone(h->stream) || !(h->hello.features & AQ_FEATURE_STREAMS)) return;
    h->stream->ops->path(h->stream, &path);
    const uint32_t mine = wish(config, &path);
    h->streams = mine > h->hello.streams ? mine : h->hello.streams;
    if (h->streams == 1) return;
    const uint64_t parts[3] = {listener->secret[0], listener->secret[1], ++listener->bundles};
    h->bundle = aq_digest(parts, sizeof parts) | 1;
    hello->features |= AQ_FEATURE_STREAMS;
    hello->streams = h->streams;
    hello->bundle = h->bundle;
    h->copies = h->hello.features & AQ_FEATURE_COPIES ? config->copies : AQ_LINK_COPIES_OFF;
    if (h->copies != AQ_LINK_COPIES_OFF) hello->features |= AQ_FEATURE_COPIES;
}

enum aq_status aq_streams_check(struct aq_handshake *h, const struct aq_hello *asked)
{
    const struct aq_hello *p = &h->hello;
    const uint32_t least = asked->streams > 2 ? asked->streams : 2;
    if (!(p->features & AQ_FEATURE_STREAMS)) return AQ_OK;
    if (p->features & ~asked->features & AQ_FEATURE_COPIES) {
        snprintf(h->text, sizeof h->text, "answers with copies that were not asked for");
        return AQ_PROTO;
    }
    if ((asked->features & AQ_FEATURE_STREAMS) && p->streams >= least && p->stream == 0 && p->bundle != 0) return AQ_OK;
    snprintf(h->text, sizeof h->text, "answers with %u streams where %u were asked for", p->streams, asked->streams);
    return AQ_PROTO;
}

/* ---- the connector ---- */

/* One of the others as far as it goes now. */
static enum aq_status advance(struct aq_net *net, struct aq_handshake *h, const struct aq_link_config *config,
                              const struct aq_hello *hello)
{
    if (h->stage == STAGE_CONNECTING) {
        h->writing_now = true;
        AQ_TRY(h->stream->ops->connected(h->stream));
        aq_congestion_choose(h->stream, config->congestion, &net->slowed);
        aq_handshake_say(h, config, hello);
        h->stage = STAGE_WRITING;
    }
    AQ_TRY(aq_handshake_write(h));
    h->stage = STAGE_DONE;
    return AQ_OK;
}

/* All that are not done, as far as they go. AQ_AGAIN: fds and *wake_ns hold what to wait for. */
static enum aq_status advance_all(struct aq_net *net, struct aq_handshake *hands, const struct aq_link_config *config,
                                  struct aq_hello *hello, struct pollfd *fds, uint64_t *wake_ns)
{
    enum aq_status all = AQ_OK;
    for (uint32_t i = 0; i + 1 < hello->streams; i++) {
        struct aq_byte_stream_wait wait;
        fds[i].fd = -1;
        if (hands[i].stage == STAGE_DONE) continue;
        struct aq_hello mine = *hello;
        mine.stream = i + 1;
        const enum aq_status status = advance(net, &hands[i], config, &mine);
        if (status == AQ_OK) continue;
        if (status == AQ_TLSERR) (void)aq_handshake_failed(&hands[i], status);
        if (status != AQ_AGAIN) return status;
        all = AQ_AGAIN;
        hands[i].stream->ops->wait(hands[i].stream, hands[i].writing_now, &wait);
        fds[i] = (struct pollfd){.fd = wait.fd, .events = wait.events};
        if (wait.wake_ns < *wake_ns) *wake_ns = wait.wake_ns;
    }
    return all;
}

static enum aq_status dial_all(struct aq_net *net, struct aq_handshake *h, struct aq_handshake *hands,
                               const char *address, uint32_t attempt, const struct aq_link_config *config, int wake_fd)
{
    struct aq_hello hello = aq_hello_of(config);
    hello.features |= AQ_FEATURE_STREAMS | (h->hello.session ? AQ_FEATURE_HEAL : 0u);
    hello.session = h->hello.session;
    hello.streams = h->hello.streams;
    hello.bundle = h->hello.bundle;
    const uint32_t others = hello.streams - 1;
    for (uint32_t i = 0; i < others; i++) {
        hands[i].stage = STAGE_CONNECTING;
        AQ_TRY(aq_byte_stream_connect(address, net->config.tls, attempt, config->rate_mbps > 0, &hands[i].stream));
    }
    for (;;) {
        struct pollfd fds[AQ_LINK_STREAMS_MAX];
        uint64_t wake_ns = h->deadline_ns;
        const enum aq_status status = advance_all(net, hands, config, &hello, fds, &wake_ns);
        if (status != AQ_AGAIN) return status;
        const uint64_t now = aq_clock_ns();
        if (now >= h->deadline_ns) {
            snprintf(h->text, sizeof h->text, "does not accept all of %u streams", hello.streams);
            return AQ_TIMEOUT;
        }
        const enum aq_status asked = aq_handshake_asked(config);
        if (asked != AQ_AGAIN) return asked;
        wake_ns = aq_handshake_until(config, wake_fd, wake_ns);
        const uint64_t ns = wake_ns > now ? wake_ns - now : 0;
        const struct timespec left = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
        fds[others] = (struct pollfd){.fd = wake_fd, .events = POLLIN};
        ppoll(fds, others + 1, &left, NULL);
    }
}

enum aq_status aq_streams_dial(struct aq_net *net, struct aq_handshake *h, const char *address, uint32_t attempt,
                               const struct aq_link_config *config, int wake_fd)
{
    struct aq_byte_stream *parts[AQ_LINK_STREAMS_MAX] = {h->stream};
    const uint32_t others = h->hello.streams - 1;
    struct aq_handshake *hands;
    AQ_TRY(AQ_NEW(others, &hands));
    enum aq_status status = dial_all(net, h, hands, address, attempt, config, wake_fd);
    for (uint32_t i = 0; i < others; i++) {
        parts[i + 1] = hands[i].stream;
        if (hands[i].text[0] != '\0') snprintf(h->text, sizeof h->text, "%s", hands[i].text);
    }
    if (status == AQ_OK) {
        h->stream = NULL; /* taken, also where it fails */
        const struct aq_stripes_config stripes = {.bundle = h->hello.bundle,
                                                  .copies = h->hello.features & AQ_FEATURE_COPIES ? config->copies
                                                                                                  : AQ_LINK_COPIES_OFF,
                                                  .spare = config->streams == 0};
        status = aq_stripes_open(parts, others + 1, &stripes, &h->stream);
    } else
        for (uint32_t i = 1; i <= others; i++)
            aq_byte_stream_close(parts[i]);
    aq_free(hands);
    return status;
}

/* ---- the listener ---- */

static bool joined(const struct aq_handshake *h, const struct aq_handshake *first)
{
    return h->stage == STAGE_READING && h->joined && h->hello.bundle == first->bundle;
}

enum aq_status aq_streams_join(struct aq_listener *listener, struct aq_handshake *h)
{
    const struct aq_hello *p = &h->hello;
    struct aq_handshake *first = NULL;
    for (uint32_t i = 0; i < AQ_HANDSHAKES; i++) {
        struct aq_handshake *c = &listener->hands[i];
        if (c != h && c->stage > STAGE_READING && c->streams > 1 && c->bundle == p->bundle) first = c;
    }
    const struct aq_hello *f = first ? &first->hello : NULL;
    if (!f || p->stream >= first->streams || p->streams != first->streams || p->job_digest != f->job_digest ||
        p->plan_hash != f->plan_hash || p->rank != f->rank || p->edge != f->edge ||
        !aq_byte_stream_proves(h->stream, p->rank)) {
        snprintf(h->text, sizeof h->text, "(rank %u, edge %d) opens stream %u of a link that this end is not opening",
                 p->rank, (int)p->edge, p->stream);
        return AQ_MISMATCH;
    }
    if (h->joined) return AQ_AGAIN;
    for (uint32_t i = 0; i < AQ_HANDSHAKES; i++)
        if (joined(&listener->hands[i], first) && listener->hands[i].hello.stream == p->stream) {
            snprintf(h->text, sizeof h->text, "(rank %u) opens stream %u a second time", p->rank, p->stream);
            return AQ_MISMATCH;
        }
    h->joined = true;
    first->ready = true;
    return AQ_AGAIN;
}

enum aq_status aq_streams_complete(const struct aq_listener *listener, const struct aq_handshake *first)
{
    uint32_t count = 1;
    for (uint32_t i = 0; first->streams > 1 && i < AQ_HANDSHAKES; i++)
        count += joined(&listener->hands[i], first);
    return count == first->streams ? AQ_OK : AQ_AGAIN;
}

bool aq_streams_place(const struct aq_listener *listener)
{
    uint32_t promised = AQ_LINK_STREAMS_MAX;
    for (uint32_t i = 0; i < AQ_HANDSHAKES; i++)
        if (listener->hands[i].stage > STAGE_READING) promised += listener->hands[i].streams;
    return promised <= AQ_HANDSHAKES / 2;
}

enum aq_status aq_streams_take(struct aq_listener *listener, const struct aq_link_config *config,
                               struct aq_handshake *first, struct aq_byte_stream **out)
{
    struct aq_byte_stream *parts[AQ_LINK_STREAMS_MAX] = {first->stream};
    const uint32_t count = first->streams;
    const struct aq_stripes_config stripes = {
        .bundle = first->bundle, .copies = first->copies, .spare = config->streams == 0};
    for (uint32_t i = 0; count > 1 && i < AQ_HANDSHAKES; i++) {
        struct aq_handshake *h = &listener->hands[i];
        if (!joined(h, first)) continue;
        AQ_ASSERT(h->hello.stream < count && !parts[h->hello.stream]);
        aq_congestion_choose(h->stream, config->congestion, &listener->net->slowed); /* as the first has it already */
        parts[h->hello.stream] = h->stream;
        *h = (struct aq_handshake){0};
    }
    *first = (struct aq_handshake){0};
    if (count > 1) return aq_stripes_open(parts, count, &stripes, out);
    *out = parts[0];
    return AQ_OK;
}
