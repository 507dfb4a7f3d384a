/*
 * quic_stream.h -- the private header of streams over QUIC (transport_quic.c). quic_library.c has the callbacks of the
 * library, its settings and its TLS; quic_packets.c packets in and out, pace and losses; transport_quic.c sockets, the
 * stream's calls and listening.
 */
#ifndef NET_QUIC_STREAM_H
#define NET_QUIC_STREAM_H

#include <gnutls/gnutls.h>
#include <ngtcp2/ngtcp2.h>
#include <ngtcp2/ngtcp2_crypto.h>
#include <sys/socket.h>

#include "congestion.h"
#include "pieces.h"
#include "transport.h"

enum {
    AQ_QUIC_ID_BYTES = 8,            /* of a connection */
    AQ_QUIC_PACKET_BYTES = 1452,     /* of UDP: 1500 less IPv6 and UDP */
    AQ_QUIC_PACKET_BYTES_MIN = 1200, /* QUIC's least */
    AQ_QUIC_READ_BYTES = 65536 / 8,  /* of a packet that comes: more than any */
    AQ_QUIC_SECRET_BYTES = 32
};

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
    uint64_t idle_ns;                     /* without a packet from the peer it ends */
    bool refused;                         /* an ICMP error came: no program is at the peer's port */
    uint64_t doubt_until_ns;              /* if the peer does not answer until then, it is gone. 0: no doubt */
    uint64_t ask_ns;                      /* when it may be asked next */
    uint8_t secret[AQ_QUIC_SECRET_BYTES]; /* of its listener: it makes the reset tokens of its ids */
    uint8_t packet[AQ_QUIC_PACKET_BYTES]; /* that the kernel did not take */
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

/* ---- quic_library.c ---- */

void aq_quic_random(uint8_t *to, size_t bytes, const ngtcp2_rand_ctx *context);
/* The library's connection and its TLS session, of an open stream. small: packets of AQ_QUIC_PACKET_BYTES_MIN.
 * AQ_NOMEM, AQ_TLSERR: logged; whoever opened the stream closes it. */
enum aq_status aq_quic_begin_client(struct quic_stream *q, bool small);
/* secret: the listener's. original: the peer's first id, from its token. */
enum aq_status aq_quic_begin_server(struct quic_stream *q, const uint8_t secret[AQ_QUIC_SECRET_BYTES],
                                    const ngtcp2_pkt_hd *head, const ngtcp2_cid *original);

/* ---- quic_packets.c ---- */

/* The peer's packets answer ours: it is there. */
void aq_quic_heard(struct quic_stream *q);
/* What of the library's connection is due now: timers, packets out, and where it reads packets in. */
void aq_quic_move(struct quic_stream *q, bool reads);
/* One packet that has come. */
void aq_quic_take(struct quic_stream *q, const uint8_t *packet, size_t bytes, uint64_t now_ns);
/* When the next call is due, apart from packets. */
uint64_t aq_quic_wake_ns(struct quic_stream *q, uint64_t now_ns);
/* q->packet. False: the kernel did not take it; it is kept. */
bool aq_quic_send(struct quic_stream *q, size_t bytes);
bool aq_quic_paced(const struct quic_stream *q, uint64_t now_ns);
bool aq_quic_something_due(struct quic_stream *q);

/* ---- transport_quic.c ---- */

const void *aq_quic_host_of(const struct sockaddr_storage *address, size_t *bytes);

#endif
