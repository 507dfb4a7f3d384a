/*
 * transport_tls.c -- a filter that puts a stream under mutual TLS 1.3 (tls.h says who may talk to whom).
 *
 *     tls+tcp://host:port?peer=2         the other end must be stage 2 of this job; without peer: any stage of it
 *     tls+tcp://host:port?peer=1&or=3    stage 1 or stage 3
 *     tls+tcp://host:port?site=ward-7    the site of split learning of that name, which holds several stages
 *
 * A socket below goes to OpenSSL itself, so that the kernel may do the sealing; anything else is read and written
 * through its own calls. The certificates shake hands in the first reads and writes. Pacing is the stream's below.
 * Locking: as any stream.
 */
#include <math.h>
#include <poll.h>
#include <string.h>

#include "tls_private.h"

struct tls_stream {
    struct aq_byte_stream stream;
    struct aq_tls *tls;
    struct aq_tls_name expect;
    bool server;
    struct aq_tls_session *session; /* NULL: the stream below is not open yet */
};

static const struct aq_byte_stream_ops TLS_OPS;

static enum aq_status begin(struct tls_stream *tls)
{
    struct aq_byte_stream *below = tls->stream.next;
    const int fd = below->ops->direct(below);
    if (tls->session) return AQ_OK;
    if (fd == -1) return aq_tls_session_over(tls->tls, below, tls->server, &tls->expect, &tls->session);
    return aq_tls_session_open(tls->tls, fd, tls->server, &tls->expect, below->name, &tls->session);
}

/* The name of a site in the address; "": it names none. */
static enum aq_status expected_site(const struct aq_address *address, char out[AQ_TLS_HOST_BYTES])
{
    size_t bytes;
    const char *at = aq_address_value(address, "site", &bytes);
    out[0] = 0;
    if (!at) return AQ_OK;
    if (bytes < AQ_TLS_HOST_BYTES) {
        memcpy(out, at, bytes);
        out[bytes] = 0;
    }
    if (!aq_tls_host_good(out))
        return aq_fail(AQ_INVAL, "net", "address '%.*s': 'site' needs the name of a site",
                       aq_address_shown(address->whole), address->whole);
    return AQ_OK;
}

enum aq_status aq_tls_wrap(const struct aq_address *address, struct aq_tls *tls, bool server,
                           struct aq_byte_stream *below, struct aq_byte_stream **out)
{
    double peer, other;
    char site[AQ_TLS_HOST_BYTES];
    if (!tls)
        return aq_fail(AQ_INVAL, "net", "address '%.*s': tls+ needs keys (security.keys; aqpipe keys init makes them)",
                       aq_address_shown(address->whole), address->whole);
    AQ_TRY(aq_address_number(address, "peer", -1, &peer));
    AQ_TRY(aq_address_number(address, "or", peer, &other));
    if (peer != floor(peer) || peer >= AQ_TLS_ANY_STAGE || other != floor(other) || other >= AQ_TLS_ANY_STAGE ||
        (peer < 0 && other >= 0))
        return aq_fail(AQ_INVAL, "net", "address '%.*s': 'peer' and 'or' take numbers of stages",
                       aq_address_shown(address->whole), address->whole);
    AQ_TRY(expected_site(address, site));
    struct tls_stream *made;
    AQ_TRY(AQ_NEW(1, &made));
    made->stream.ops = &TLS_OPS;
    made->stream.next = below;
    memcpy(made->stream.name, below->name, sizeof made->stream.name);
    made->tls = tls;
    made->server = server;
    made->expect.role = site[0] ? AQ_TLS_SITE : AQ_TLS_STAGE;
    memcpy(made->expect.host, site, sizeof site);
    made->expect.stage = peer < 0 ? AQ_TLS_ANY_STAGE : (uint32_t)peer;
    made->expect.or_stage = peer < 0 ? 0 : (uint32_t)other;
    made->expect.either = peer >= 0 && other != peer;
    const enum aq_status status = server ? begin(made) : AQ_OK;
    if (status != AQ_OK)
        aq_free(made);
    else
        *out = &made->stream;
    return status;
}

static enum aq_status tls_connected(struct aq_byte_stream *stream)
{
    AQ_TRY(stream->next->ops->connected(stream->next));
    return begin((struct tls_stream *)stream);
}

static enum aq_status tls_read(struct aq_byte_stream *stream, const struct iovec *iov, int count, size_t *got)
{
    return aq_tls_session_read(((struct tls_stream *)stream)->session, iov, count, got);
}

static enum aq_status tls_write(struct aq_byte_stream *stream, const struct iovec *iov, int count, size_t *put)
{
    struct aq_byte_stream *below = stream->next;
    const enum aq_status status = count > 0
                                      ? aq_tls_session_write(((struct tls_stream *)stream)->session, iov, count, put)
                                      : below->ops->write(below, iov, 0, put);
    stream->unsent = below->unsent;
    return status;
}

static void tls_wait(struct aq_byte_stream *stream, bool write, struct aq_byte_stream_wait *out)
{
    const struct tls_stream *tls = (const struct tls_stream *)stream;
    if (tls->session) write = aq_tls_session_events(tls->session) == POLLOUT;
    stream->next->ops->wait(stream->next, write, out);
}

static void tls_shut(struct aq_byte_stream *stream)
{
    struct tls_stream *tls = (struct tls_stream *)stream;
    if (tls->session) aq_tls_session_shut(tls->session);
    stream->next->ops->shut(stream->next);
}

static void tls_close(struct aq_byte_stream *stream)
{
    aq_tls_session_close(((struct tls_stream *)stream)->session);
    aq_byte_stream_close(stream->next);
    aq_free(stream);
}

static const struct aq_byte_stream_ops TLS_OPS = {
    .connected = tls_connected,
    .read = tls_read,
    .write = tls_write,
    .wait = tls_wait,
    .direct = aq_filter_direct,
    .pace = aq_filter_pace,
    .measure = aq_filter_measure,
    .path = aq_filter_path,
    .congestion = aq_filter_congestion,
    .shut = tls_shut,
    .close = tls_close,
};

static const struct tls_stream *find(const struct aq_byte_stream *stream)
{
    while (stream && stream->ops != &TLS_OPS)
        stream = stream->next;
    return (const struct tls_stream *)stream;
}

const char *aq_byte_stream_refusal(const struct aq_byte_stream *stream)
{
    for (const struct aq_byte_stream *below = stream; below; below = below->next)
        if (below->broken) return below->broken;
    const struct tls_stream *tls = find(stream);
    return tls && tls->session ? aq_tls_session_text(tls->session) : "";
}

bool aq_byte_stream_proves(const struct aq_byte_stream *stream, uint32_t rank)
{
    const struct tls_stream *tls = find(stream);
    if (!tls) return true;
    const struct aq_tls_name *peer = tls->session ? aq_tls_session_peer(tls->session) : NULL;
    /* A site holds several stages; whose it is was decided by what the address expects. */
    return peer && (peer->role == AQ_TLS_SITE || (peer->role == AQ_TLS_STAGE && peer->stage == rank));
}

bool aq_byte_stream_proved(const struct aq_byte_stream *stream)
{
    const struct tls_stream *tls = find(stream);
    return tls && tls->session && aq_tls_session_peer(tls->session);
}
