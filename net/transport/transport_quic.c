/*
 * transport_quic.c -- streams over QUIC's datagrams (RFC 9000, 9221): a lost packet delays no other.
 *
 * The library (ngtcp2) does what TCP does in the kernel: connections, congestion control (BBR), pacing, losses,
 * acknowledgements, size of packets. Bytes go as numbered pieces, one per datagram, repaired by parity and repeated
 * one by one (pieces.h). To all above it is a stream like TCP's.
 *
 * Identity is the filter tls+, as over TCP: mutual TLS 1.3 of the job's certificates goes over this stream. QUIC cannot
 * do without TLS; here its key is public, and a Diffie-Hellman exchange makes the session's. So nobody off the
 * path can forge or inject bytes. An ICMP error, which anyone can forge, cuts nothing while the peer answers.
 * Somebody on the path can do what he can do to TCP: delay, cut and damage, which tls+ finds. (OpenSSL 3.0 has no QUIC;
 * ngtcp2 comes with GnuTLS, docs/DECISIONS.md 0975.)
 *
 * Listening: a peer must echo a token before anything is allocated for it (Retry), so its address is real. Until the
 * link knows who it is (`trust`), it costs about 270 KB (test_quic prints it): windows are small, as in the kernel. The
 * listener of links bounds how many there are (AQ_HANDSHAKES). A dead peer is noticed after IDLE_S; an idle one keeps
 * alive. Each connection has a separate socket at the listener's port, connected to its peer, so that it is read and
 * waited for as any stream. An address that changes ends the connection, and the link heals.
 *
 * A stream is moved by its calls: each read takes packets, runs timers and sends what is due; each write sends. Parity
 * follows the losses of the last minute (rows_for); those of a full queue call for none. "quic://host:port?parity=0"
 * sends none; "segment=n": packets of 1200 bytes; "idle=n": it ends after n seconds without a packet of
 * the peer, if that is less than IDLE_S. The smaller time of both ends holds for both.
 * close drops what was not acknowledged. Locking: as any stream.
 */
#include "transport.h" /* without QUIC it is all there is */

#if AQ_QUIC
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "quic_stream.h"

enum {
    AROUND_BYTES = 48 + AQ_PIECE_HEAD_BYTES, /* QUIC's head, two frames and tag around a piece */
    SOCKET_BYTES = 4 << 20,                  /* the kernel takes as much of it as it may */
    SOCKET_BYTES_FIRST = 64 << 10,           /* of a peer that has not proved who it is */
    RECENT = 64                              /* connections of a listener whose first packet may come again */
};
static const uint64_t TOKEN_NS = 10000000000u;
static const double IDLE_S = 120; /* a process that is stopped, or a path that is gone, for so long */

struct quic_listener {
    struct sockaddr_storage here;
    socklen_t here_bytes;
    uint8_t secret[AQ_QUIC_SECRET_BYTES];
    ngtcp2_cid recent[RECENT];
    uint32_t recent_at;
};

static const struct aq_byte_stream_ops QUIC_OPS;

static struct quic_stream *of(struct aq_byte_stream *stream)
{
    return (struct quic_stream *)stream;
}

/* ---- life ---- */

static void quic_close(struct aq_byte_stream *stream);

const void *aq_quic_host_of(const struct sockaddr_storage *address, size_t *bytes)
{
    const struct sockaddr_in *four = (const struct sockaddr_in *)address;
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)address;
    *bytes = address->ss_family == AF_INET6 ? sizeof six->sin6_addr : sizeof four->sin_addr;
    return address->ss_family == AF_INET6 ? (const void *)&six->sin6_addr : (const void *)&four->sin_addr;
}

static void buffer(int fd, int bytes)
{
    if (setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes) == -1 ||
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes) == -1)
        aq_log("net", 1, "SO_RCVBUF or SO_SNDBUF of %d bytes refused: %s", bytes, strerror(errno));
}

/* The library finds the largest packets; the kernel would believe a forged ICMP message about them. */
static void ignore_path_mtu(int fd, int family)
{
    const int four = IP_PMTUDISC_PROBE, six = IPV6_PMTUDISC_PROBE;
    const int failed = family == AF_INET6 ? setsockopt(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, &six, sizeof six)
                                          : setsockopt(fd, IPPROTO_IP, IP_MTU_DISCOVER, &four, sizeof four);
    if (failed) aq_log("net", 1, "IP_MTU_DISCOVER refused: %s", strerror(errno));
}

/* A socket connected to that peer; bound first where `from` is given. */
static enum aq_status open_socket(const struct sockaddr_storage *from, const struct sockaddr *to, socklen_t bytes,
                                  int *out)
{
    const int on = 1;
    const int fd = socket(to->sa_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd == -1) return aq_fail_errno("net", "a socket of UDP");
    buffer(fd, SOCKET_BYTES_FIRST);
    ignore_path_mtu(fd, to->sa_family);
    if (from) {
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (bind(fd, (const struct sockaddr *)from, bytes) == -1) goto failed;
    }
    if (connect(fd, to, bytes) == -1) goto failed;
    *out = fd;
    return AQ_OK;
failed:;
    const int error = errno;
    close(fd);
    errno = error;
    return aq_byte_stream_errno(error);
}

/* Takes fd on success. */
static enum aq_status open_stream(int fd, const struct aq_address *address, struct quic_stream **out)
{
    double parity, idle_s;
    struct quic_stream *q;
    socklen_t here_bytes = sizeof((struct quic_stream *)0)->here, there_bytes = here_bytes;
    size_t bytes;
    AQ_TRY(aq_address_number(address, "parity", 1, &parity));
    AQ_TRY(aq_address_number(address, "idle", IDLE_S, &idle_s));
    AQ_TRY(AQ_NEW(1, &q));
    q->stream.ops = &QUIC_OPS;
    q->stream.alone = true;
    q->fd = -1;
    q->marks = -1;
    q->parity = parity > 0;
    q->idle_ns = idle_s > 0 && idle_s < IDLE_S ? (uint64_t)(idle_s * 1e9) : (uint64_t)(IDLE_S * 1e9);
    const enum aq_status status = aq_pieces_open(&q->pieces);
    if (status != AQ_OK || getsockname(fd, (struct sockaddr *)&q->here, &here_bytes) == -1 ||
        getpeername(fd, (struct sockaddr *)&q->there, &there_bytes) == -1) {
        aq_pieces_close(q->pieces);
        aq_free(q);
        return status != AQ_OK ? status : AQ_IO;
    }
    q->fd = fd;
    q->path.local = (ngtcp2_addr){.addr = (ngtcp2_sockaddr *)&q->here, .addrlen = here_bytes};
    q->path.remote = (ngtcp2_addr){.addr = (ngtcp2_sockaddr *)&q->there, .addrlen = there_bytes};
    aq_sockaddr_name((struct sockaddr *)&q->there, there_bytes, q->stream.name);
    const void *here = aq_quic_host_of(&q->here, &bytes), *there = aq_quic_host_of(&q->there, &bytes);
    q->stream.source = aq_source_of(there, bytes);
    q->stream.local = aq_endpoint_loopback_address((struct sockaddr *)&q->there) ||
                      (q->here.ss_family == q->there.ss_family && memcmp(here, there, bytes) == 0);
    *out = q;
    return AQ_OK;
}

/* ---- a stream's calls ---- */

static enum aq_status quic_connected(struct aq_byte_stream *stream)
{
    struct quic_stream *q = of(stream);
    aq_quic_move(q, true);
    if (q->ended != AQ_OK) return q->ended == AQ_CLOSED ? AQ_REFUSED : q->ended;
    return ngtcp2_conn_get_handshake_completed(q->conn) ? AQ_OK : AQ_AGAIN;
}

static enum aq_status quic_read(struct aq_byte_stream *stream, const struct iovec *iov, int count, size_t *got)
{
    struct quic_stream *q = of(stream);
    aq_quic_move(q, true);
    const enum aq_status status = q->ended == AQ_PROTO ? AQ_PROTO : aq_pieces_read(q->pieces, iov, count, got);
    return status == AQ_AGAIN && q->ended != AQ_OK ? q->ended : status;
}

static enum aq_status quic_write(struct aq_byte_stream *stream, const struct iovec *iov, int count, size_t *put)
{
    struct quic_stream *q = of(stream);
    const size_t room = ngtcp2_conn_get_path_max_tx_udp_payload_size(q->conn) - AROUND_BYTES;
    const uint32_t most = room < AQ_PIECE_BYTES ? (uint32_t)room : AQ_PIECE_BYTES;
    struct aq_pieces_stats stats;
    size_t taken = 0, offered = 0;
    aq_quic_move(q, false);
    if (q->ended != AQ_OK) return q->ended;
    for (int i = 0; i < count; i++) {
        for (size_t at = 0, bytes; at < iov[i].iov_len; at += bytes) {
            const struct iovec rest = {(uint8_t *)iov[i].iov_base + at, iov[i].iov_len - at};
            if (aq_pieces_write(q->pieces, &rest, 1, most, &bytes) != AQ_OK) break;
            taken += bytes;
            aq_quic_move(q, false);
        }
        offered += iov[i].iov_len;
        if (taken < offered) break;
    }
    if (offered == 0) {
        aq_pieces_flush(q->pieces);
        aq_quic_move(q, false);
    }
    aq_pieces_stats(q->pieces, &stats);
    stream->unsent = aq_pieces_open_block(q->pieces) || stats.unacked > 0 || aq_quic_something_due(q);
    *put = taken;
    return taken > 0 || (offered == 0 && !stream->unsent) ? AQ_OK : AQ_AGAIN;
}

static void quic_wait(struct aq_byte_stream *stream, bool write, struct aq_byte_stream_wait *out)
{
    struct quic_stream *q = of(stream);
    const uint64_t now_ns = aq_clock_ns();
    *out = (struct aq_byte_stream_wait){.fd = q->fd, .events = POLLIN, .wake_ns = aq_quic_wake_ns(q, now_ns)};
    if (write && q->packet_bytes > 0) out->events |= POLLOUT;
}

static enum aq_status quic_pace(struct aq_byte_stream *stream, double rate_mbps)
{
    of(stream)->ns_per_byte = 8e3 / rate_mbps;
    return AQ_OK;
}

static double quic_measure(struct aq_byte_stream *stream)
{
    struct quic_stream *q = of(stream);
    ngtcp2_conn_stat stat;
    ngtcp2_conn_get_conn_stat(q->conn, &stat);
    return q->ns_per_byte > 0 ? 0 : (double)stat.delivery_rate_sec * 8e-6;
}

static void quic_path(struct aq_byte_stream *stream, struct aq_path *out)
{
    const struct quic_stream *q = of(stream);
    ngtcp2_conn_stat stat;
    ngtcp2_conn_get_conn_stat(q->conn, &stat);
    const bool known = stat.min_rtt != UINT64_MAX;
    *out =
        (struct aq_path){.round_trip_ns = known ? stat.min_rtt : 0,
                         .queue_ns = known && stat.smoothed_rtt > stat.min_rtt ? stat.smoothed_rtt - stat.min_rtt : 0,
                         .steady = true,
                         .sent_bytes = q->sent_bytes,
                         .delivered_bytes = q->acked_bytes < q->sent_bytes ? q->acked_bytes : q->sent_bytes,
                         .again_bytes = q->lost_bytes,
                         .segment_bytes = AQ_PIECE_BYTES,
                         .window_bytes = stat.cwnd,
                         .flight_bytes = stat.bytes_in_flight,
                         .congestion = "bbr"};
}

static enum aq_status quic_congestion(struct aq_byte_stream *stream, const char *name)
{
    (void)stream;
    (void)name;
    return AQ_OK;
}

static enum aq_status quic_trust(struct aq_byte_stream *stream)
{
    struct quic_stream *q = of(stream);
    AQ_TRY(aq_pieces_grow(q->pieces));
    buffer(q->fd, SOCKET_BYTES);
    return AQ_OK;
}

static void quic_shut(struct aq_byte_stream *stream)
{
    struct quic_stream *q = of(stream);
    aq_pieces_end(q->pieces);
    aq_quic_move(q, false);
}

static void quic_close(struct aq_byte_stream *stream)
{
    struct quic_stream *q = of(stream);
    ngtcp2_connection_close_error reason;
    if (q->conn && q->session && q->ended == AQ_OK) {
        aq_quic_move(q, false);
        ngtcp2_connection_close_error_default(&reason);
        const ngtcp2_ssize bytes = ngtcp2_conn_write_connection_close(q->conn, NULL, NULL, q->packet, sizeof q->packet,
                                                                      &reason, aq_clock_ns());
        for (int i = 0; i < 2 && bytes > 0; i++) /* it is not repeated when it is lost */
            (void)aq_quic_send(q, (size_t)bytes);
    }
    ngtcp2_conn_del(q->conn);
    if (q->session) gnutls_deinit(q->session);
    if (q->client_key) gnutls_psk_free_client_credentials(q->client_key);
    if (q->server_key) gnutls_psk_free_server_credentials(q->server_key);
    if (q->fd != -1) close(q->fd);
    aq_pieces_close(q->pieces);
    aq_free(q);
}

static const struct aq_byte_stream_ops QUIC_OPS = {
    .connected = quic_connected,
    .read = quic_read,
    .write = quic_write,
    .wait = quic_wait,
    .direct = aq_filter_direct,
    .pace = quic_pace,
    .measure = quic_measure,
    .path = quic_path,
    .congestion = quic_congestion,
    .trust = quic_trust,
    .shut = quic_shut,
    .close = quic_close,
};

/* ---- connecting ---- */

static enum aq_status quic_connect(const struct aq_address *address, uint32_t attempt, bool is_paced,
                                   struct aq_byte_stream **out)
{
    struct addrinfo *info = NULL;
    struct quic_stream *q = NULL;
    double segment;
    int fd;
    (void)is_paced;
    AQ_TRY(aq_address_number(address, "segment", 0, &segment));
    AQ_TRY(aq_endpoint_resolve(&address->place, false, &info));
    uint32_t count = 0;
    for (const struct addrinfo *i = info; i; i = i->ai_next)
        count++;
    const struct addrinfo *to = info;
    for (uint32_t i = attempt % count; i > 0; i--)
        to = to->ai_next;
    enum aq_status status = open_socket(NULL, to->ai_addr, to->ai_addrlen, &fd);
    freeaddrinfo(info);
    if (status != AQ_OK) return status;
    status = open_stream(fd, address, &q);
    if (status != AQ_OK) {
        close(fd);
        return status;
    }
    status = aq_quic_begin_client(q, segment > 0);
    if (status == AQ_OK)
        *out = &q->stream;
    else
        quic_close(&q->stream);
    return status;
}

/* ---- listening ---- */

static enum aq_status quic_listen(struct aq_acceptor *acceptor)
{
    struct addrinfo *info = NULL;
    struct quic_listener *listener;
    const int on = 1, size = SOCKET_BYTES;
    enum aq_status status = AQ_OK;
    AQ_TRY(aq_endpoint_resolve(&acceptor->address.place, true, &info));
    const int fd = socket(info->ai_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd == -1) {
        status = aq_fail_errno("net", "listen at '%s': socket", acceptor->address.whole);
        goto out;
    }
    status = AQ_NEW(1, &listener);
    if (status != AQ_OK) {
        close(fd);
        goto out;
    }
    listener->here_bytes = sizeof listener->here;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
    /* Shared with its connections only, which bind to it later: a second listener is refused. */
    if (bind(fd, info->ai_addr, info->ai_addrlen) == -1 ||
        getsockname(fd, (struct sockaddr *)&listener->here, &listener->here_bytes) == -1 ||
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == -1) {
        const bool busy = errno == EADDRINUSE;
        status = aq_fail_errno("net", "cannot listen at '%s'%s", acceptor->address.whole,
                               busy ? " (another process has this port; choose another, or port 0)" : "");
        close(fd);
        aq_free(listener);
        goto out;
    }
    aq_quic_random(listener->secret, AQ_QUIC_SECRET_BYTES, NULL);
    acceptor->fd = fd;
    acceptor->state = listener;
    acceptor->port = ntohs(((struct sockaddr_in *)&listener->here)->sin_port); /* at the same place of sockaddr_in6 */
out:
    freeaddrinfo(info);
    return status;
}

/* Proof of its address, before anything is kept for it. */
static void send_retry(const struct aq_acceptor *acceptor, const ngtcp2_pkt_hd *head,
                       const struct sockaddr_storage *from, socklen_t from_bytes)
{
    const struct quic_listener *listener = acceptor->state;
    uint8_t token[NGTCP2_CRYPTO_MAX_RETRY_TOKENLEN], packet[AQ_QUIC_PACKET_BYTES_MIN];
    ngtcp2_cid id = {.datalen = AQ_QUIC_ID_BYTES};
    aq_quic_random(id.data, AQ_QUIC_ID_BYTES, NULL);
    const ngtcp2_ssize token_bytes =
        ngtcp2_crypto_generate_retry_token(token, listener->secret, AQ_QUIC_SECRET_BYTES, head->version,
                                           (const ngtcp2_sockaddr *)from, from_bytes, &id, &head->dcid, aq_clock_ns());
    if (token_bytes < 0) return;
    const ngtcp2_ssize bytes = ngtcp2_crypto_write_retry(packet, sizeof packet, head->version, &head->scid, &id,
                                                         &head->dcid, token, (size_t)token_bytes);
    if (bytes > 0)
        (void)sendto(acceptor->fd, packet, (size_t)bytes, MSG_DONTWAIT, (const struct sockaddr *)from, from_bytes);
}

/* A packet of a connection that this end has not any more: its peer should know. Shorter than what came, so that two
 * ends without connections fall silent. */
static void send_reset(const struct aq_acceptor *acceptor, const ngtcp2_version_cid *of_packet, ssize_t came,
                       const struct sockaddr_storage *from, socklen_t from_bytes)
{
    enum { RANDOM_BYTES = NGTCP2_MIN_STATELESS_RESET_RANDLEN + 16 };
    const struct quic_listener *listener = acceptor->state;
    uint8_t packet[RANDOM_BYTES + NGTCP2_STATELESS_RESET_TOKENLEN], token[NGTCP2_STATELESS_RESET_TOKENLEN];
    uint8_t noise[RANDOM_BYTES];
    ngtcp2_cid id;
    if (of_packet->dcidlen != AQ_QUIC_ID_BYTES || came <= (ssize_t)sizeof packet) return;
    ngtcp2_cid_init(&id, of_packet->dcid, AQ_QUIC_ID_BYTES);
    aq_quic_random(noise, sizeof noise, NULL);
    if (ngtcp2_crypto_generate_stateless_reset_token(token, listener->secret, AQ_QUIC_SECRET_BYTES, &id) != 0) return;
    const ngtcp2_ssize bytes = ngtcp2_pkt_write_stateless_reset(packet, sizeof packet, token, noise, sizeof noise);
    if (bytes > 0)
        (void)sendto(acceptor->fd, packet, (size_t)bytes, MSG_DONTWAIT, (const struct sockaddr *)from, from_bytes);
}

static bool seen(struct quic_listener *listener, const ngtcp2_cid *id)
{
    for (int i = 0; i < RECENT; i++)
        if (ngtcp2_cid_eq(&listener->recent[i], id)) return true;
    listener->recent[listener->recent_at++ % RECENT] = *id;
    return false;
}

/* A peer that has shown that its address is real. */
static enum aq_status take_peer(struct aq_acceptor *acceptor, const ngtcp2_pkt_hd *head, const ngtcp2_cid *original,
                                const struct sockaddr_storage *from, const uint8_t *packet, size_t bytes,
                                struct aq_byte_stream **out)
{
    struct quic_listener *listener = acceptor->state;
    struct quic_stream *q;
    int fd;
    if (open_socket(&listener->here, (const struct sockaddr *)from, listener->here_bytes, &fd) != AQ_OK)
        return aq_fail_errno("net", "accept at '%s'", acceptor->address.whole);
    enum aq_status status = open_stream(fd, &acceptor->address, &q);
    if (status != AQ_OK) {
        close(fd);
        return status;
    }
    status = aq_quic_begin_server(q, listener->secret, head, original);
    if (status != AQ_OK) {
        quic_close(&q->stream);
        return status;
    }
    aq_quic_take(q, packet, bytes, aq_clock_ns());
    aq_quic_move(q, true);
    *out = &q->stream;
    return AQ_OK;
}

static enum aq_status quic_accept(struct aq_acceptor *acceptor, struct aq_byte_stream **out)
{
    struct quic_listener *listener = acceptor->state;
    uint8_t packet[AQ_QUIC_READ_BYTES];
    struct sockaddr_storage from = {0};
    socklen_t from_bytes = sizeof from;
    ngtcp2_version_cid version;
    ngtcp2_pkt_hd head;
    ngtcp2_cid original;
    const ssize_t bytes =
        recvfrom(acceptor->fd, packet, sizeof packet, MSG_DONTWAIT, (struct sockaddr *)&from, &from_bytes);
    if (bytes <= 0) return AQ_AGAIN;
    if (ngtcp2_pkt_decode_version_cid(&version, packet, (size_t)bytes, AQ_QUIC_ID_BYTES) != 0) return AQ_AGAIN;
    if (version.version == 0) send_reset(acceptor, &version, bytes, &from, from_bytes);
    if (version.version == 0 || ngtcp2_accept(&head, packet, (size_t)bytes) != 0) return AQ_AGAIN;
    if (head.token.len == 0) {
        send_retry(acceptor, &head, &from, from_bytes);
        return AQ_AGAIN;
    }
    if (ngtcp2_crypto_verify_retry_token(&original, head.token.base, head.token.len, listener->secret,
                                         AQ_QUIC_SECRET_BYTES, head.version, (const ngtcp2_sockaddr *)&from, from_bytes,
                                         &head.dcid, TOKEN_NS, aq_clock_ns()) != 0 ||
        seen(listener, &head.dcid))
        return AQ_AGAIN;
    return take_peer(acceptor, &head, &original, &from, packet, (size_t)bytes, out);
}

static void quic_acceptor_close(struct aq_acceptor *acceptor)
{
    close(acceptor->fd);
    acceptor->fd = -1;
    aq_free(acceptor->state);
    acceptor->state = NULL;
}

static uint64_t quic_memory(void)
{
    return sizeof(struct quic_stream) + aq_pieces_measure();
}

const struct aq_transport aq_transport_quic = {.scheme = "quic",
                                               .listen = quic_listen,
                                               .accept = quic_accept,
                                               .shut = quic_acceptor_close,
                                               .measure = quic_memory,
                                               .connect = quic_connect};
#endif
