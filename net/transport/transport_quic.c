/*
 * transport_quic.c -- streams over QUIC's datagrams (RFC 9000, 9221): a lost packet delays no other.
 *
 * The library (ngtcp2) does what TCP does in the kernel: connections, congestion control (BBR), pacing, losses,
 * acknowledgements, size of packets. Bytes go as numbered pieces, one per datagram, repaired by parity and repeated
 * one by one (pieces.h). To all above it is a stream like TCP's.
 *
 * Identity is the filter tls+, as over TCP: mutual TLS 1.3 of the job's certificates goes over this stream. QUIC cannot
 * do without TLS; here its key is public, and a Diffie-Hellman exchange makes the session's. So nobody off the
 * path can forge or inject bytes. A forged ICMP error (both ports must be known) cuts a link, which then heals.
 * Somebody on the path can do what he can do to TCP: delay, cut and damage, which tls+ finds. (OpenSSL 3.0 has no QUIC;
 * ngtcp2 comes with GnuTLS, docs/DECISIONS.md 0975.)
 *
 * Listening: a peer must echo a token before anything is allocated for it (Retry), so its address is real. Each
 * connection has a separate socket at the listener's port, connected to its peer, so that it is read and waited for
 * as any stream. An address that changes ends the connection, and the link heals.
 *
 * A stream is moved by its calls: each read takes packets, runs timers and sends what is due; each write sends. Parity
 * follows the losses of the last minute (rows_for); those of a full queue call for none. "quic://host:port?parity=0"
 * sends none; "segment=n": packets of 1200 bytes. close drops what was not acknowledged. Locking: as any stream.
 */
#include "transport.h" /* without QUIC it is all there is */

#if AQ_QUIC
#include <errno.h>
#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <netdb.h>
#include <netinet/in.h>
#include <ngtcp2/ngtcp2.h>
#include <ngtcp2/ngtcp2_crypto.h>
#include <ngtcp2/ngtcp2_crypto_gnutls.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "congestion.h"
#include "net_limits.h"
#include "pieces.h"

enum {
    ID_BYTES = 8,                            /* of a connection */
    PACKET_BYTES = 1452,                     /* of UDP: 1500 less IPv6 and UDP */
    PACKET_BYTES_MIN = 1200,                 /* QUIC's least */
    AROUND_BYTES = 48 + AQ_PIECE_HEAD_BYTES, /* QUIC's head, two frames and tag around a piece */
    MARKS = 64 << 10,                        /* bytes of the peer's stream that may be on their way */
    PACKETS_A_READ = 64,
    SOCKET_BYTES = 4 << 20, /* the kernel takes as much of it as it may */
    SECRET_BYTES = 32,
    RECENT = 64 /* connections of a listener whose first packet may come again */
};
static const char KEY_NAME[] = "aqpipe", KEY[] = "aqpipe: identity is above", PROTOCOL[] = "aqpipe";
static const char PRIORITY[] = "NORMAL:-VERS-ALL:+VERS-TLS1.3:-CIPHER-ALL:+AES-128-GCM:+CHACHA20-POLY1305:-GROUP-ALL:"
                               "+GROUP-X25519:+GROUP-SECP256R1:-KX-ALL:+ECDHE-PSK:%DISABLE_TLS13_COMPAT_MODE";
static const uint64_t TOKEN_NS = 10000000000u, IDLE_NS = 30000000000u;
static const uint64_t RATE_LOOK_NS = 5000000, RATE_TRIPS = 10;
static const double COUNTED = 4096; /* datagrams by which losses are judged */

struct quic_stream {
    struct aq_byte_stream stream;
    int fd;
    ngtcp2_conn *conn;
    gnutls_session_t session;
    gnutls_psk_client_credentials_t client_key;
    gnutls_psk_server_credentials_t server_key;
    ngtcp2_crypto_conn_ref reference;
    struct sockaddr_storage here, there;
    ngtcp2_path path;
    struct aq_pieces *pieces;
    int64_t marks;        /* a stream of which each packet has a byte: see add_mark. -1: not open */
    enum aq_status ended; /* AQ_OK: it lives */
    bool parity;
    bool server;
    uint8_t secret[SECRET_BYTES]; /* of its listener: it makes the reset tokens of its ids */
    uint8_t packet[PACKET_BYTES]; /* that the kernel did not take */
    size_t packet_bytes;
    double ns_per_byte; /* of its pace; 0: none */
    uint64_t line_free_ns;
    struct aq_rate_limit limit; /* where BBR overflows a queue (docs/DECISIONS.md 0920) */
    double rate[2];             /* bytes per second that arrived, the largest of this period and of the one before */
    uint64_t rate_until_ns, look_ns;
    uint64_t sent_bytes, lost_bytes, acked_bytes;
    double counted, lost; /* datagrams lately */
    uint64_t lossy_until_ns, full_until_ns;
};

struct quic_listener {
    struct sockaddr_storage here;
    socklen_t here_bytes;
    uint8_t secret[SECRET_BYTES];
    ngtcp2_cid recent[RECENT];
    uint32_t recent_at;
};

static const struct aq_byte_stream_ops QUIC_OPS;

static struct quic_stream *of(struct aq_byte_stream *stream)
{
    return (struct quic_stream *)stream;
}

/* ---- what the library calls ---- */

static ngtcp2_conn *conn_of(ngtcp2_crypto_conn_ref *reference)
{
    return ((struct quic_stream *)reference->user_data)->conn;
}

static void random_bytes(uint8_t *to, size_t bytes, const ngtcp2_rand_ctx *context)
{
    (void)context;
    if (gnutls_rnd(GNUTLS_RND_RANDOM, to, bytes) != 0) AQ_ASSERT(!"the system has no random numbers");
}

static int new_id(ngtcp2_conn *conn, ngtcp2_cid *id, uint8_t *token, size_t bytes, void *context)
{
    const struct quic_stream *q = context;
    (void)conn;
    id->datalen = bytes;
    random_bytes(id->data, bytes, NULL);
    random_bytes(token, NGTCP2_STATELESS_RESET_TOKENLEN, NULL);
    return q->server ? ngtcp2_crypto_generate_stateless_reset_token(token, q->secret, SECRET_BYTES, id) : 0;
}

static int datagram_came(ngtcp2_conn *conn, uint32_t flags, const uint8_t *bytes, size_t count, void *context)
{
    struct quic_stream *q = context;
    (void)conn;
    (void)flags;
    const enum aq_status status = aq_pieces_receive(q->pieces, bytes, count, &q->stream.broken);
    if (status != AQ_OK) q->ended = status;
    return 0;
}

static int datagram_acked(ngtcp2_conn *conn, uint64_t id, void *context)
{
    struct quic_stream *q = context;
    (void)conn;
    q->acked_bytes += AQ_PIECE_BYTES;
    aq_pieces_acked(q->pieces, id);
    return 0;
}

/* Those that a full queue dropped count for nothing: more packets would not help. */
static int datagram_lost(ngtcp2_conn *conn, uint64_t id, void *context)
{
    struct quic_stream *q = context;
    const uint64_t now_ns = aq_clock_ns();
    struct aq_path path;
    (void)conn;
    QUIC_OPS.path(&q->stream, &path);
    if (aq_path_full(&path)) q->full_until_ns = now_ns + path.round_trip_ns + AQ_QUEUE_KEEP_NS;
    q->lost_bytes += AQ_PIECE_BYTES;
    if (now_ns >= q->full_until_ns) {
        q->lost += 1;
        q->lossy_until_ns = now_ns + AQ_COPIES_KEEP_NS;
    }
    aq_pieces_lost(q->pieces, id);
    return 0;
}

/* Of the peer's marks. The library keeps bytes that come out of order, so that the window is small. */
static int mark_came(ngtcp2_conn *conn, uint32_t flags, int64_t id, uint64_t offset, const uint8_t *bytes, size_t count,
                     void *context, void *of_stream)
{
    (void)flags;
    (void)offset;
    (void)bytes;
    (void)context;
    (void)of_stream;
    ngtcp2_conn_extend_max_offset(conn, count);
    return ngtcp2_conn_extend_max_stream_offset(conn, id, count) == 0 ? 0 : NGTCP2_ERR_CALLBACK_FAILURE;
}

static int key_for(gnutls_session_t session, const char *name, gnutls_datum_t *key)
{
    (void)session;
    if (strcmp(name, KEY_NAME) != 0) return -1;
    key->data = gnutls_malloc(sizeof KEY - 1);
    if (!key->data) return -1;
    memcpy(key->data, KEY, sizeof KEY - 1);
    key->size = sizeof KEY - 1;
    return 0;
}

/* ---- life ---- */

static void quic_close(struct aq_byte_stream *stream);

static void name_of(const struct sockaddr *address, socklen_t bytes, char *out)
{
    char host[64], port[8];
    if (getnameinfo(address, bytes, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        snprintf(out, AQ_NAME_BYTES, "(unknown)");
    else
        snprintf(out, AQ_NAME_BYTES, address->sa_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
}

static const void *host_of(const struct sockaddr_storage *address, size_t *bytes)
{
    const struct sockaddr_in *four = (const struct sockaddr_in *)address;
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)address;
    *bytes = address->ss_family == AF_INET6 ? sizeof six->sin6_addr : sizeof four->sin_addr;
    return address->ss_family == AF_INET6 ? (const void *)&six->sin6_addr : (const void *)&four->sin_addr;
}

/* A socket connected to that peer; bound first where `from` is given. */
static enum aq_status open_socket(const struct sockaddr_storage *from, const struct sockaddr *to, socklen_t bytes,
                                  int *out)
{
    const int on = 1, size = SOCKET_BYTES;
    const int fd = socket(to->sa_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd == -1) return aq_fail_errno("net", "a socket of UDP");
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
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

static enum aq_status open_stream(int fd, bool parity, struct quic_stream **out)
{
    void *memory;
    socklen_t here_bytes = sizeof((struct quic_stream *)0)->here, there_bytes = here_bytes;
    size_t bytes;
    AQ_TRY(aq_alloc(sizeof(struct quic_stream), &memory));
    struct quic_stream *q = memory;
    q->stream.ops = &QUIC_OPS;
    q->stream.alone = true;
    q->fd = -1;
    q->marks = -1;
    q->parity = parity;
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
    name_of((struct sockaddr *)&q->there, there_bytes, q->stream.name);
    const void *here = host_of(&q->here, &bytes), *there = host_of(&q->there, &bytes);
    q->stream.source = aq_source_of(there, bytes);
    q->stream.local = aq_endpoint_loopback_address((struct sockaddr *)&q->there) ||
                      (q->here.ss_family == q->there.ss_family && memcmp(here, there, bytes) == 0);
    q->reference = (ngtcp2_crypto_conn_ref){.get_conn = conn_of, .user_data = q};
    *out = q;
    return AQ_OK;
}

/* QUIC's own TLS, with the key that everyone knows. */
static enum aq_status open_session(struct quic_stream *q, bool server)
{
    const gnutls_datum_t key = {.data = (uint8_t *)(uintptr_t)KEY, .size = sizeof KEY - 1},
                         protocol = {.data = (uint8_t *)(uintptr_t)PROTOCOL, .size = sizeof PROTOCOL - 1};
    int code = gnutls_init(&q->session, server ? GNUTLS_SERVER | GNUTLS_NO_AUTO_SEND_TICKET | GNUTLS_NO_TICKETS
                                               : GNUTLS_CLIENT | GNUTLS_NO_TICKETS);
    if (code == 0) code = gnutls_priority_set_direct(q->session, PRIORITY, NULL);
    if (code == 0)
        code = server ? gnutls_psk_allocate_server_credentials(&q->server_key)
                      : gnutls_psk_allocate_client_credentials(&q->client_key);
    if (code == 0 && server) gnutls_psk_set_server_credentials_function(q->server_key, key_for);
    if (code == 0 && !server)
        code = gnutls_psk_set_client_credentials(q->client_key, KEY_NAME, &key, GNUTLS_PSK_KEY_RAW);
    if (code == 0)
        code =
            gnutls_credentials_set(q->session, GNUTLS_CRD_PSK, server ? (void *)q->server_key : (void *)q->client_key);
    if (code == 0) code = gnutls_alpn_set_protocols(q->session, &protocol, 1, GNUTLS_ALPN_MANDATORY);
    if (code == 0)
        code = server ? ngtcp2_crypto_gnutls_configure_server_session(q->session)
                      : ngtcp2_crypto_gnutls_configure_client_session(q->session);
    if (code != 0) return aq_fail(AQ_TLSERR, "net", "quic to %s: %s", q->stream.name, gnutls_strerror(code));
    gnutls_session_set_ptr(q->session, &q->reference);
    return AQ_OK;
}

static void common_settings(bool small, ngtcp2_callbacks *calls, ngtcp2_settings *settings,
                            ngtcp2_transport_params *params)
{
    *calls = (ngtcp2_callbacks){.recv_crypto_data = ngtcp2_crypto_recv_crypto_data_cb,
                                .encrypt = ngtcp2_crypto_encrypt_cb,
                                .decrypt = ngtcp2_crypto_decrypt_cb,
                                .hp_mask = ngtcp2_crypto_hp_mask_cb,
                                .rand = random_bytes,
                                .get_new_connection_id = new_id,
                                .update_key = ngtcp2_crypto_update_key_cb,
                                .delete_crypto_aead_ctx = ngtcp2_crypto_delete_crypto_aead_ctx_cb,
                                .delete_crypto_cipher_ctx = ngtcp2_crypto_delete_crypto_cipher_ctx_cb,
                                .recv_stream_data = mark_came,
                                .recv_datagram = datagram_came,
                                .ack_datagram = datagram_acked,
                                .lost_datagram = datagram_lost,
                                .get_path_challenge_data = ngtcp2_crypto_get_path_challenge_data_cb,
                                .version_negotiation = ngtcp2_crypto_version_negotiation_cb};
    ngtcp2_settings_default(settings);
    settings->cc_algo = NGTCP2_CC_ALGO_BBR2;
    settings->initial_ts = aq_clock_ns();
    settings->max_tx_udp_payload_size = small ? PACKET_BYTES_MIN : PACKET_BYTES;
    settings->no_pmtud = small;
    ngtcp2_transport_params_default(params);
    params->max_datagram_frame_size = UINT16_MAX;
    params->disable_active_migration = 1;
    params->initial_max_streams_uni = 1;
    params->initial_max_stream_data_uni = params->initial_max_data = MARKS;
}

static enum aq_status begin_server(struct quic_stream *q, const struct quic_listener *listener,
                                   const ngtcp2_pkt_hd *head, const ngtcp2_cid *original)
{
    ngtcp2_callbacks calls;
    ngtcp2_settings settings;
    ngtcp2_transport_params params;
    ngtcp2_cid id = {.datalen = ID_BYTES};
    common_settings(false, &calls, &settings, &params);
    calls.recv_client_initial = ngtcp2_crypto_recv_client_initial_cb;
    settings.token = head->token;
    params.original_dcid = *original;
    params.retry_scid = head->dcid;
    params.retry_scid_present = 1;
    q->server = true;
    memcpy(q->secret, listener->secret, SECRET_BYTES);
    if (new_id(NULL, &id, params.stateless_reset_token, ID_BYTES, q) != 0) return AQ_NOMEM;
    params.stateless_reset_token_present = 1;
    if (ngtcp2_conn_server_new(&q->conn, &head->scid, &id, &q->path, head->version, &calls, &settings, &params, NULL,
                               q) != 0)
        return aq_fail(AQ_NOMEM, "net", "no connection with %s", q->stream.name);
    AQ_TRY(open_session(q, true));
    ngtcp2_conn_set_tls_native_handle(q->conn, q->session);
    ngtcp2_conn_set_keep_alive_timeout(q->conn, IDLE_NS);
    return AQ_OK;
}

static enum aq_status begin_client(struct quic_stream *q, bool small)
{
    ngtcp2_callbacks calls;
    ngtcp2_settings settings;
    ngtcp2_transport_params params;
    ngtcp2_cid mine = {.datalen = ID_BYTES}, first = {.datalen = NGTCP2_MIN_INITIAL_DCIDLEN + 8};
    common_settings(small, &calls, &settings, &params);
    calls.client_initial = ngtcp2_crypto_client_initial_cb;
    calls.recv_retry = ngtcp2_crypto_recv_retry_cb;
    random_bytes(mine.data, mine.datalen, NULL);
    random_bytes(first.data, first.datalen, NULL);
    if (ngtcp2_conn_client_new(&q->conn, &first, &mine, &q->path, NGTCP2_PROTO_VER_V1, &calls, &settings, &params, NULL,
                               q) != 0)
        return aq_fail(AQ_NOMEM, "net", "no connection to %s", q->stream.name);
    AQ_TRY(open_session(q, false));
    ngtcp2_conn_set_tls_native_handle(q->conn, q->session);
    ngtcp2_conn_set_keep_alive_timeout(q->conn, IDLE_NS);
    return AQ_OK;
}

/* ---- packets ---- */

/* A failure of the library ends the stream. */
static void library_failed(struct quic_stream *q, int code)
{
    if (code == 0 || q->ended != AQ_OK) return;
    q->ended = code == NGTCP2_ERR_DRAINING || code == NGTCP2_ERR_CLOSING               ? AQ_CLOSED
               : code == NGTCP2_ERR_IDLE_CLOSE || code == NGTCP2_ERR_HANDSHAKE_TIMEOUT ? AQ_TIMEOUT
                                                                                       : AQ_IO;
}

/* False: the kernel took it not; it is kept. */
static bool send_packet(struct quic_stream *q, size_t bytes)
{
    if (send(q->fd, q->packet, bytes, MSG_DONTWAIT | MSG_NOSIGNAL) == -1) {
        q->packet_bytes = errno == EAGAIN || errno == ENOBUFS ? bytes : 0; /* other errors: as if it were lost */
        return q->packet_bytes == 0;
    }
    q->packet_bytes = 0;
    q->sent_bytes += bytes;
    return true;
}

static bool paced(const struct quic_stream *q, uint64_t now_ns)
{
    return q->line_free_ns > now_ns + AQ_STRIPES_AHEAD_NS;
}

static void count_pace(struct quic_stream *q, size_t bytes, uint64_t now_ns)
{
    const uint64_t begin_ns = q->line_free_ns > now_ns ? q->line_free_ns : now_ns;
    const double limit = q->limit.bytes_per_s > 0 ? 1e9 / q->limit.bytes_per_s : 0;
    q->line_free_ns = begin_ns + (uint64_t)((q->ns_per_byte > limit ? q->ns_per_byte : limit) * (double)bytes);
}

/* A pipeline's bursts keep BBR in its startup, in which it sends at 2.9 times what arrives: its rate is limited. */
static void limit_rate(struct quic_stream *q, uint64_t now_ns)
{
    ngtcp2_conn_stat stat;
    struct aq_path path;
    if (now_ns < q->look_ns) return;
    q->look_ns = now_ns + RATE_LOOK_NS;
    ngtcp2_conn_get_conn_stat(q->conn, &stat);
    QUIC_OPS.path(&q->stream, &path);
    if (now_ns >= q->rate_until_ns) {
        q->rate[1] = q->rate[0];
        q->rate[0] = 0;
        q->rate_until_ns = now_ns + RATE_TRIPS * path.round_trip_ns;
    }
    if ((double)stat.delivery_rate_sec > q->rate[0]) q->rate[0] = (double)stat.delivery_rate_sec;
    (void)aq_rate_limit_update(&q->limit, &path, q->lost_bytes, q->rate[0] > q->rate[1] ? q->rate[0] : q->rate[1],
                               now_ns);
}

/*
 * Ends a packet with a datagram. The library probes for lost tails only while a packet of a stream is on its way, and
 * with datagrams alone it waits for ever when all acknowledgements are lost. So each packet has a byte of a stream.
 */
static ngtcp2_ssize add_mark(struct quic_stream *q, uint64_t now_ns)
{
    static const uint8_t MARK = 0;
    const ngtcp2_vec byte = {.base = (uint8_t *)(uintptr_t)&MARK, .len = 1};
    ngtcp2_ssize put, bytes = NGTCP2_ERR_STREAM_DATA_BLOCKED;
    if (q->marks != -1)
        bytes = ngtcp2_conn_writev_stream(q->conn, NULL, NULL, q->packet, sizeof q->packet, &put,
                                          NGTCP2_WRITE_STREAM_FLAG_NONE, q->marks, &byte, 1, now_ns);
    return bytes == NGTCP2_ERR_STREAM_DATA_BLOCKED
               ? ngtcp2_conn_write_pkt(q->conn, NULL, NULL, q->packet, sizeof q->packet, now_ns)
               : bytes;
}

/* The next packet: with a datagram where one is due and may go. 0: none. */
static ngtcp2_ssize next_packet(struct quic_stream *q, uint64_t now_ns)
{
    struct aq_piece_out out;
    int taken = 0;
    if (!ngtcp2_conn_get_handshake_completed(q->conn) || paced(q, now_ns) || !aq_pieces_next(q->pieces, &out))
        return ngtcp2_conn_write_pkt(q->conn, NULL, NULL, q->packet, sizeof q->packet, now_ns);
    if (q->marks == -1 && ngtcp2_conn_open_uni_stream(q->conn, &q->marks, NULL) != 0) q->marks = -1;
    const ngtcp2_vec parts[2] = {{.base = out.head, .len = sizeof out.head},
                                 {.base = (uint8_t *)(uintptr_t)out.body, .len = out.body_bytes}};
    ngtcp2_ssize bytes =
        ngtcp2_conn_writev_datagram(q->conn, NULL, NULL, q->packet, sizeof q->packet, &taken,
                                    NGTCP2_WRITE_DATAGRAM_FLAG_MORE, out.id, parts, out.body_bytes ? 2 : 1, now_ns);
    if (bytes == NGTCP2_ERR_WRITE_MORE) bytes = add_mark(q, now_ns);
    if (!taken || bytes < 0) return bytes;
    aq_pieces_sent(q->pieces, &out);
    count_pace(q, (size_t)bytes, now_ns);
    q->counted += 1;
    if (q->counted > COUNTED) {
        q->counted /= 2;
        q->lost /= 2;
    }
    return bytes;
}

/* All that may go now. */
static void send_out(struct quic_stream *q, uint64_t now_ns)
{
    const size_t most = ngtcp2_conn_get_send_quantum(q->conn);
    size_t sent = 0;
    if (q->ended != AQ_OK || (q->packet_bytes > 0 && !send_packet(q, q->packet_bytes))) return;
    while (sent == 0 || sent < most) {
        const ngtcp2_ssize bytes = next_packet(q, now_ns);
        if (bytes < 0) library_failed(q, (int)bytes);
        if (bytes <= 0) break;
        sent += (size_t)bytes;
        if (!send_packet(q, (size_t)bytes)) break;
    }
    if (q->ended == AQ_OK) ngtcp2_conn_update_pkt_tx_time(q->conn, now_ns);
}

static bool from_peer(const struct quic_stream *q, const struct sockaddr_storage *from)
{
    size_t bytes;
    const void *one = host_of(from, &bytes), *other = host_of(&q->there, &bytes);
    return from->ss_family == q->there.ss_family && memcmp(one, other, bytes) == 0 &&
           ((const struct sockaddr_in *)from)->sin_port == ((const struct sockaddr_in *)&q->there)->sin_port;
}

/* Packets that came before the socket was connected may be anyone's. */
static void take_packets(struct quic_stream *q, uint64_t now_ns)
{
    uint8_t packet[65536 / 8];
    const ngtcp2_pkt_info info = {0};
    for (int i = 0; i < PACKETS_A_READ && q->ended == AQ_OK; i++) {
        struct sockaddr_storage from = {0};
        socklen_t from_bytes = sizeof from;
        const ssize_t bytes =
            recvfrom(q->fd, packet, sizeof packet, MSG_DONTWAIT, (struct sockaddr *)&from, &from_bytes);
        if (bytes == -1 && errno == ECONNREFUSED) /* the peer's system: nobody is at that port */
            q->ended = ngtcp2_conn_get_handshake_completed(q->conn) ? AQ_CLOSED : AQ_REFUSED;
        if (bytes == -1) return;
        if (bytes > 0 && from_peer(q, &from))
            library_failed(q, ngtcp2_conn_read_pkt(q->conn, &q->path, &info, packet, (size_t)bytes, now_ns));
    }
}

/* Rows of parity by the share of lost datagrams: so that a block of 24 is beyond repair once in 1,000 or less. */
static uint32_t rows_for(const struct quic_stream *q, uint64_t now_ns)
{
    const double share = q->lost / (q->counted + COUNTED / 4);
    if (!q->parity || now_ns >= q->lossy_until_ns) return 0;
    return share < 0.0015 ? 1 : share < 0.012 ? 2 : 3;
}

/* The library reports no loss of a packet that it probed for. If nothing is on its way, such pieces are left. */
static void find_unreported(struct quic_stream *q)
{
    struct aq_pieces_stats pieces;
    ngtcp2_conn_stat stat;
    aq_pieces_stats(q->pieces, &pieces);
    if (pieces.unacked == 0) return;
    ngtcp2_conn_get_conn_stat(q->conn, &stat);
    if (stat.bytes_in_flight == 0) aq_pieces_lost_all(q->pieces);
}

static void move(struct quic_stream *q, bool reads)
{
    const uint64_t now_ns = aq_clock_ns();
    if (q->ended != AQ_OK) return;
    if (reads) take_packets(q, now_ns);
    if (q->ended == AQ_OK && ngtcp2_conn_get_expiry(q->conn) <= now_ns)
        library_failed(q, ngtcp2_conn_handle_expiry(q->conn, now_ns));
    if (q->ended == AQ_OK) find_unreported(q);
    limit_rate(q, now_ns);
    aq_pieces_parity(q->pieces, rows_for(q, now_ns));
    send_out(q, now_ns);
}

/* ---- a stream's calls ---- */

static enum aq_status quic_connected(struct aq_byte_stream *stream)
{
    struct quic_stream *q = of(stream);
    move(q, true);
    if (q->ended != AQ_OK) return q->ended == AQ_CLOSED ? AQ_REFUSED : q->ended;
    return ngtcp2_conn_get_handshake_completed(q->conn) ? AQ_OK : AQ_AGAIN;
}

static enum aq_status quic_read(struct aq_byte_stream *stream, const struct iovec *iov, int count, size_t *got)
{
    struct quic_stream *q = of(stream);
    move(q, true);
    const enum aq_status status = q->ended == AQ_PROTO ? AQ_PROTO : aq_pieces_read(q->pieces, iov, count, got);
    return status == AQ_AGAIN && q->ended != AQ_OK ? q->ended : status;
}

static bool something_due(struct quic_stream *q)
{
    struct aq_piece_out out;
    return q->packet_bytes > 0 || aq_pieces_next(q->pieces, &out);
}

static enum aq_status quic_write(struct aq_byte_stream *stream, const struct iovec *iov, int count, size_t *put)
{
    struct quic_stream *q = of(stream);
    const size_t room = ngtcp2_conn_get_path_max_tx_udp_payload_size(q->conn) - AROUND_BYTES;
    const uint32_t most = room < AQ_PIECE_BYTES ? (uint32_t)room : AQ_PIECE_BYTES;
    struct aq_pieces_stats stats;
    size_t taken = 0, offered = 0;
    move(q, false);
    if (q->ended != AQ_OK) return q->ended;
    for (int i = 0; i < count; i++) {
        for (size_t at = 0, bytes; at < iov[i].iov_len; at += bytes) {
            const struct iovec rest = {(uint8_t *)iov[i].iov_base + at, iov[i].iov_len - at};
            if (aq_pieces_write(q->pieces, &rest, 1, most, &bytes) != AQ_OK) break;
            taken += bytes;
            move(q, false);
        }
        offered += iov[i].iov_len;
        if (taken < offered) break;
    }
    if (offered == 0) {
        aq_pieces_flush(q->pieces);
        move(q, false);
    }
    aq_pieces_stats(q->pieces, &stats);
    stream->unsent = aq_pieces_open_block(q->pieces) || stats.unacked > 0 || something_due(q);
    *put = taken;
    return taken > 0 || (offered == 0 && !stream->unsent) ? AQ_OK : AQ_AGAIN;
}

static void quic_wait(struct aq_byte_stream *stream, bool write, struct aq_byte_stream_wait *out)
{
    struct quic_stream *q = of(stream);
    const uint64_t now_ns = aq_clock_ns();
    *out = (struct aq_byte_stream_wait){.fd = q->fd, .events = POLLIN, .wake_ns = ngtcp2_conn_get_expiry(q->conn)};
    if (write && q->packet_bytes > 0) out->events |= POLLOUT;
    if (paced(q, now_ns) && q->line_free_ns - AQ_STRIPES_AHEAD_NS < out->wake_ns && something_due(q))
        out->wake_ns = q->line_free_ns - AQ_STRIPES_AHEAD_NS;
    if (q->ended != AQ_OK) out->wake_ns = now_ns;
}

static int quic_direct(struct aq_byte_stream *stream)
{
    (void)stream;
    return -1;
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

static void quic_shut(struct aq_byte_stream *stream)
{
    struct quic_stream *q = of(stream);
    aq_pieces_end(q->pieces);
    move(q, false);
}

static void quic_close(struct aq_byte_stream *stream)
{
    struct quic_stream *q = of(stream);
    ngtcp2_connection_close_error reason;
    if (q->conn && q->session && q->ended == AQ_OK) {
        move(q, false);
        ngtcp2_connection_close_error_default(&reason);
        const ngtcp2_ssize bytes = ngtcp2_conn_write_connection_close(q->conn, NULL, NULL, q->packet, sizeof q->packet,
                                                                      &reason, aq_clock_ns());
        for (int i = 0; i < 2 && bytes > 0; i++) /* it is not repeated when it is lost */
            (void)send_packet(q, (size_t)bytes);
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
    .direct = quic_direct,
    .pace = quic_pace,
    .measure = quic_measure,
    .path = quic_path,
    .congestion = quic_congestion,
    .shut = quic_shut,
    .close = quic_close,
};

/* ---- connecting ---- */

static enum aq_status quic_connect(const struct aq_address *address, uint32_t attempt, bool is_paced,
                                   struct aq_byte_stream **out)
{
    struct addrinfo *info = NULL;
    struct quic_stream *q = NULL;
    double parity, segment;
    int fd;
    (void)is_paced;
    AQ_TRY(aq_address_number(address, "parity", 1, &parity));
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
    status = open_stream(fd, parity > 0, &q);
    if (status != AQ_OK) {
        close(fd);
        return status;
    }
    status = begin_client(q, segment > 0);
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
    void *memory;
    const int on = 1, size = SOCKET_BYTES;
    enum aq_status status = AQ_OK;
    AQ_TRY(aq_endpoint_resolve(&acceptor->address.place, true, &info));
    const int fd = socket(info->ai_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd == -1) {
        status = aq_fail_errno("net", "listen at '%s': socket", acceptor->address.whole);
        goto out;
    }
    status = aq_alloc(sizeof(struct quic_listener), &memory);
    if (status != AQ_OK) {
        close(fd);
        goto out;
    }
    struct quic_listener *listener = memory;
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
    random_bytes(listener->secret, SECRET_BYTES, NULL);
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
    uint8_t token[NGTCP2_CRYPTO_MAX_RETRY_TOKENLEN], packet[PACKET_BYTES_MIN];
    ngtcp2_cid id = {.datalen = ID_BYTES};
    random_bytes(id.data, ID_BYTES, NULL);
    const ngtcp2_ssize token_bytes =
        ngtcp2_crypto_generate_retry_token(token, listener->secret, SECRET_BYTES, head->version,
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
    if (of_packet->dcidlen != ID_BYTES || came <= (ssize_t)sizeof packet) return;
    ngtcp2_cid_init(&id, of_packet->dcid, ID_BYTES);
    random_bytes(noise, sizeof noise, NULL);
    if (ngtcp2_crypto_generate_stateless_reset_token(token, listener->secret, SECRET_BYTES, &id) != 0) return;
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
    const ngtcp2_pkt_info info = {0};
    double parity;
    int fd;
    AQ_TRY(aq_address_number(&acceptor->address, "parity", 1, &parity));
    if (open_socket(&listener->here, (const struct sockaddr *)from, listener->here_bytes, &fd) != AQ_OK)
        return aq_fail_errno("net", "accept at '%s'", acceptor->address.whole);
    enum aq_status status = open_stream(fd, parity > 0, &q);
    if (status != AQ_OK) {
        close(fd);
        return status;
    }
    status = begin_server(q, listener, head, original);
    if (status != AQ_OK) {
        quic_close(&q->stream);
        return status;
    }
    library_failed(q, ngtcp2_conn_read_pkt(q->conn, &q->path, &info, packet, bytes, aq_clock_ns()));
    move(q, true);
    *out = &q->stream;
    return AQ_OK;
}

static enum aq_status quic_accept(struct aq_acceptor *acceptor, struct aq_byte_stream **out)
{
    struct quic_listener *listener = acceptor->state;
    uint8_t packet[65536 / 8];
    struct sockaddr_storage from = {0};
    socklen_t from_bytes = sizeof from;
    ngtcp2_version_cid version;
    ngtcp2_pkt_hd head;
    ngtcp2_cid original;
    const ssize_t bytes =
        recvfrom(acceptor->fd, packet, sizeof packet, MSG_DONTWAIT, (struct sockaddr *)&from, &from_bytes);
    if (bytes <= 0) return AQ_AGAIN;
    if (ngtcp2_pkt_decode_version_cid(&version, packet, (size_t)bytes, ID_BYTES) != 0) return AQ_AGAIN;
    if (version.version == 0) send_reset(acceptor, &version, bytes, &from, from_bytes);
    if (version.version == 0 || ngtcp2_accept(&head, packet, (size_t)bytes) != 0) return AQ_AGAIN;
    if (head.token.len == 0) {
        send_retry(acceptor, &head, &from, from_bytes);
        return AQ_AGAIN;
    }
    if (ngtcp2_crypto_verify_retry_token(&original, head.token.base, head.token.len, listener->secret, SECRET_BYTES,
                                         head.version, (const ngtcp2_sockaddr *)&from, from_bytes, &head.dcid, TOKEN_NS,
                                         aq_clock_ns()) != 0 ||
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

const struct aq_transport aq_transport_quic = {.scheme = "quic",
                                               .listen = quic_listen,
                                               .accept = quic_accept,
                                               .shut = quic_acceptor_close,
                                               .connect = quic_connect};
#endif
