/*
 * quic_packets.c -- packets of a stream over QUIC, in and out; its pace, and what is lost (quic_stream.h).
 */
#include "transport.h" /* without QUIC it is all there is */

#if AQ_QUIC
#include <errno.h>
#include <netinet/in.h>
#include <string.h>

#include "net_limits.h"
#include "quic_stream.h"

enum { PACKETS_A_READ = 64 };
static const uint64_t RATE_LOOK_NS = 5000000, RATE_TRIPS = 10;
/* After an ICMP error: the peer's time to answer, and between two questions, as parts of the idle time (10 s, 1 s). */
static const uint64_t DOUBTS = 12, ASKS = 120;
static const double COUNTED = 4096; /* datagrams by which losses are judged */

/* A failure of the library ends the stream. */
static void library_failed(struct quic_stream *q, int code)
{
    if (code == 0 || q->ended != AQ_OK) return;
    q->ended = code == NGTCP2_ERR_DRAINING || code == NGTCP2_ERR_CLOSING               ? AQ_CLOSED
               : code == NGTCP2_ERR_IDLE_CLOSE || code == NGTCP2_ERR_HANDSHAKE_TIMEOUT ? AQ_TIMEOUT
                                                                                       : AQ_IO;
}

/* False: the kernel took it not; it is kept. */
bool aq_quic_send(struct quic_stream *q, size_t bytes)
{
    if (send(q->fd, q->packet, bytes, MSG_DONTWAIT | MSG_NOSIGNAL) == -1) {
        q->refused |= errno == ECONNREFUSED;
        q->packet_bytes = errno == EAGAIN || errno == ENOBUFS ? bytes : 0; /* other errors: as if it were lost */
        return q->packet_bytes == 0;
    }
    q->packet_bytes = 0;
    q->sent_bytes += bytes;
    return true;
}

bool aq_quic_paced(const struct quic_stream *q, uint64_t now_ns)
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
    q->stream.ops->path(&q->stream, &path);
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
    if (!ngtcp2_conn_get_handshake_completed(q->conn) || aq_quic_paced(q, now_ns) || !aq_pieces_next(q->pieces, &out))
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
    if (q->ended != AQ_OK || (q->packet_bytes > 0 && !aq_quic_send(q, q->packet_bytes))) return;
    while (sent == 0 || sent < most) {
        const ngtcp2_ssize bytes = next_packet(q, now_ns);
        if (bytes < 0) library_failed(q, (int)bytes);
        if (bytes <= 0) break;
        sent += (size_t)bytes;
        if (!aq_quic_send(q, (size_t)bytes)) break;
    }
    if (q->ended == AQ_OK) ngtcp2_conn_update_pkt_tx_time(q->conn, now_ns);
}

static bool from_peer(const struct quic_stream *q, const struct sockaddr_storage *from)
{
    size_t bytes;
    const void *one = aq_quic_host_of(from, &bytes), *other = aq_quic_host_of(&q->there, &bytes);
    return from->ss_family == q->there.ss_family && memcmp(one, other, bytes) == 0 &&
           ((const struct sockaddr_in *)from)->sin_port == ((const struct sockaddr_in *)&q->there)->sin_port;
}

void aq_quic_take(struct quic_stream *q, const uint8_t *packet, size_t bytes, uint64_t now_ns)
{
    const ngtcp2_pkt_info info = {0};
    library_failed(q, ngtcp2_conn_read_pkt(q->conn, &q->path, &info, packet, bytes, now_ns));
}

/* Packets that came before the socket was connected may be anyone's. */
static void take_packets(struct quic_stream *q, uint64_t now_ns)
{
    uint8_t packet[AQ_QUIC_READ_BYTES];
    for (int i = 0; i < PACKETS_A_READ && q->ended == AQ_OK; i++) {
        struct sockaddr_storage from = {0};
        socklen_t from_bytes = sizeof from;
        const ssize_t bytes =
            recvfrom(q->fd, packet, sizeof packet, MSG_DONTWAIT, (struct sockaddr *)&from, &from_bytes);
        q->refused |= bytes == -1 && errno == ECONNREFUSED;
        if (bytes == -1 && errno == ECONNREFUSED) continue; /* the error only; packets may be there */
        if (bytes == -1) return;
        if (bytes > 0 && from_peer(q, &from)) aq_quic_take(q, packet, (size_t)bytes, now_ns);
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

void aq_quic_heard(struct quic_stream *q)
{
    q->doubt_until_ns = 0;
}

/*
 * "Nobody is at that port" comes as ICMP, which anyone can forge. Before the handshake it ends the attempt, which is
 * made again. Later the peer is asked: its answer, which nobody can forge, keeps the connection.
 */
static void look_into_refusal(struct quic_stream *q, uint64_t now_ns)
{
    if (q->refused && !ngtcp2_conn_get_handshake_completed(q->conn)) q->ended = AQ_REFUSED;
    if (q->refused && q->doubt_until_ns == 0) q->doubt_until_ns = now_ns + q->idle_ns / DOUBTS;
    q->refused = false;
    if (q->ended != AQ_OK || q->doubt_until_ns == 0) return;
    if (now_ns >= q->doubt_until_ns) q->ended = AQ_CLOSED;
    if (now_ns < q->ask_ns) return;
    q->ask_ns = now_ns + q->idle_ns / ASKS;
    aq_pieces_word(q->pieces);
}

uint64_t aq_quic_wake_ns(struct quic_stream *q, uint64_t now_ns)
{
    uint64_t wake_ns = ngtcp2_conn_get_expiry(q->conn);
    if (q->doubt_until_ns > 0 && q->ask_ns < wake_ns) wake_ns = q->ask_ns;
    if (aq_quic_paced(q, now_ns) && q->line_free_ns - AQ_STRIPES_AHEAD_NS < wake_ns && aq_quic_something_due(q))
        wake_ns = q->line_free_ns - AQ_STRIPES_AHEAD_NS;
    return q->ended != AQ_OK || q->refused ? now_ns : wake_ns;
}

void aq_quic_move(struct quic_stream *q, bool reads)
{
    const uint64_t now_ns = aq_clock_ns();
    if (q->ended != AQ_OK) return;
    if (reads) take_packets(q, now_ns);
    look_into_refusal(q, now_ns);
    if (q->ended == AQ_OK && ngtcp2_conn_get_expiry(q->conn) <= now_ns)
        library_failed(q, ngtcp2_conn_handle_expiry(q->conn, now_ns));
    if (q->ended == AQ_OK) find_unreported(q);
    limit_rate(q, now_ns);
    aq_pieces_parity(q->pieces, rows_for(q, now_ns));
    send_out(q, now_ns);
}

bool aq_quic_something_due(struct quic_stream *q)
{
    struct aq_piece_out out;
    return q->packet_bytes > 0 || aq_pieces_next(q->pieces, &out);
}
#endif
