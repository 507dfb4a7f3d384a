/*
 * fuzz_handshake.c -- any bytes from a stranger at a port under TLS, and from what answers a connection that we make:
 * both ends of the handshake, in pieces of any size. Never a crash, never a leak, and nobody is ever taken for a peer.
 */
#include <string.h>
#include <time.h>

#include "fuzz.h"
#include "tls_private.h"

enum { BYTES_MAX = 1 << 16 };

struct played { /* a stream that gives the input, and takes everything */
    struct aq_byte_stream stream;
    const uint8_t *bytes;
    size_t count, cut, taken;
};

static enum aq_status played_read(struct aq_byte_stream *stream, const struct iovec *iov, int count, size_t *got)
{
    struct played *played = (struct played *)stream;
    (void)count;
    size_t bytes = played->count < iov[0].iov_len ? played->count : iov[0].iov_len;
    if (bytes > played->cut) bytes = played->cut;
    if (bytes == 0) return AQ_CLOSED;
    memcpy(iov[0].iov_base, played->bytes, bytes);
    played->bytes += bytes;
    played->count -= bytes;
    *got = bytes;
    return AQ_OK;
}

static enum aq_status played_write(struct aq_byte_stream *stream, const struct iovec *iov, int count, size_t *put)
{
    struct played *played = (struct played *)stream;
    *put = 0;
    for (int i = 0; i < count; i++)
        *put += iov[i].iov_len;
    played->taken += *put;
    return AQ_OK;
}

static void played_wait(struct aq_byte_stream *stream, bool write, struct aq_byte_stream_wait *out)
{
    (void)stream, (void)write;
    *out = (struct aq_byte_stream_wait){.fd = -1, .wake_ns = 0};
}

static void played_shut(struct aq_byte_stream *stream)
{
    (void)stream;
}

static const struct aq_byte_stream_ops PLAYED = {
    .read = played_read, .write = played_write, .wait = played_wait, .shut = played_shut};

static struct aq_tls *identity(void)
{
    static struct aq_tls *tls;
    if (tls) return tls;
    const int64_t now = (int64_t)time(NULL);
    fuzz_quiet();
    fuzz_make_folder("keys");
    AQ_ASSERT(aq_tls_make_authority(fuzz_path("keys"), "fuzz", now - 3600, now + 86400) == AQ_OK);
    AQ_ASSERT(aq_tls_make(fuzz_path("keys"), AQ_TLS_STAGE, 1, now - 3600, now + 86400) == AQ_OK);
    AQ_ASSERT(aq_tls_open(fuzz_path("keys"), AQ_TLS_STAGE, 1, &tls) == AQ_OK);
    return tls;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t in[4096];
    if (size < 2 || size > BYTES_MAX) return 0;
    struct aq_tls *tls = identity();
    const bool server = data[0] & 1;
    const struct aq_tls_name expect = {.role = AQ_TLS_STAGE, .stage = 0, .either = (data[0] & 2) != 0, .or_stage = 2};
    struct played played = {
        .stream = {.ops = &PLAYED, .name = "fuzz"}, .bytes = data + 2, .count = size - 2, .cut = 1 + data[1] * 8u};
    struct aq_tls_session *session;
    AQ_ASSERT(aq_tls_session_over(tls, &played.stream, server, &expect, &session) == AQ_OK);
    const struct iovec iov = {.iov_base = in, .iov_len = sizeof in};
    enum aq_status status = AQ_AGAIN;
    size_t got;
    for (size_t turns = 0; status == AQ_AGAIN && turns < BYTES_MAX + 16; turns++)
        status = aq_tls_session_read(session, &iov, 1, &got);
    AQ_ASSERT(status == AQ_CLOSED || status == AQ_IO || status == AQ_TLSERR);
    AQ_ASSERT(!aq_tls_session_peer(session));
    AQ_ASSERT(status != AQ_TLSERR || aq_tls_session_text(session)[0] != '\0');
    fuzz_told(server && played.taken > 200); /* it has answered a HELLO of TLS with its own flight */
    aq_tls_session_close(session);
    return 0;
}
