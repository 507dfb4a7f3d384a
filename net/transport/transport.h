/*
 * transport.h -- the seam below the link: streams of bytes, made by listening or connecting, stackable.
 *
 * A transport is a const table. A stream is non-blocking: read and write do what can be done at once and answer
 * AQ_AGAIN, and `wait` gives the descriptor or time to sleep on before trying again. A filter (fault, tls) is a stream
 * that owns the stream below it (`next`) and may pass every call through. A stream that is only a socket sets `direct`,
 * and the loop then hands reads and writes to io_uring itself.
 *
 * A transport never calls upward, takes no lock that is held while waiting, and logs nothing that it returns as a text.
 * Ownership: whoever opens closes; a filter closes its `next`. On failure nothing was made.
 * Locking: one stream is used by one thread at a time: first by the caller's (handshake), then by the net loop.
 */
#ifndef NET_TRANSPORT_H
#define NET_TRANSPORT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "aqsgd/base.h"
#include "net/endpoint.h"

struct aq_tls; /* net/tls.h */

enum { AQ_ADDRESS_BYTES = 256, AQ_NAME_BYTES = 96 };

/* An address, cut into its parts; what is not there is "". "fault+sim://name?rate_mbps=10&seed=1". */
struct aq_address {
    char whole[AQ_ADDRESS_BYTES];
    char filter[16]; /* "tls", "fault", or two: "tls+fault", the first on top */
    char scheme[16];
    char host[128];           /* of sim: the name */
    struct aq_endpoint place; /* of tcp, quic, and of relay the relay's */
    char query[AQ_ADDRESS_BYTES];
};

enum aq_status aq_address_parse(const char *text,
                                struct aq_address *out); /* AQ_INVAL, logged with the form of an address */
/* What follows "key=" in the query, *bytes of it, borrowed; NULL: the query has no such key. */
const char *aq_address_value(const struct aq_address *address, const char *key, size_t *bytes);
/* The number after "key=" in the query, or otherwise. AQ_INVAL: not a number >= 0. */
enum aq_status aq_address_number(const struct aq_address *address, const char *key, double otherwise, double *out);

/* How many characters of an address may be logged: all, but of a relay not the room's name, which is a secret. */
int aq_address_shown(const char *address);

/* The condition to sleep on: events (POLLIN, POLLOUT) of fd, or the time, whichever is first. fd -1: only the time. */
struct aq_byte_stream_wait {
    int fd;
    short events;
    uint64_t wake_ns;
};

/* The facts that a stream has about the path to its peer. */
struct aq_path {
    uint64_t round_trip_ns;   /* the least; 0: not known, or none */
    uint64_t queue_ns;        /* by which round trips are longer now: packets wait somewhere on the way             */
    bool steady;              /* a single lost packet does not slow writes: its congestion control is BBR */
    uint64_t sent_bytes;      /* packets' contents, all that were ever sent                                       */
    uint64_t delivered_bytes; /* that the peer has, in order or not                                           */
    uint64_t again_bytes;     /* of them again; without those that the peer reported as needless                  */
    uint32_t segment_bytes;   /* of the largest packets' contents; 0: there are no packets                        */
    uint32_t streams;         /* connections; 0: one                                                              */
    uint64_t window_bytes;    /* that congestion control lets be on their way now; 0: not known                   */
    uint64_t flight_bytes;    /* written and not acknowledged                                                     */
    char congestion[16];      /* "": not known; "mixed": of connections that differ                               */
};

struct aq_byte_stream {
    const struct aq_byte_stream_ops *ops;
    struct aq_byte_stream *next; /* of a filter: the stream below, owned                  */
    bool local;                  /* the peer is on this machine (below a filter: ask aq_byte_stream_local) */
    bool alone;                  /* a lost packet delays nothing else: other connections beside it bring nothing */
    bool unsent; /* bytes that write has taken wait for room below: they go out with the next write, also of nothing */
    const char *broken; /* why the stream itself refused what came, as the end of "the peer ..."; NULL: it did not */
    uint64_t source;    /* of the peer's address, for aq_admit (below a filter: aq_byte_stream_source) */
    char name[AQ_NAME_BYTES]; /* the peer, for people                                  */
};

struct aq_byte_stream_ops {
    /* Of a connecting stream: AQ_OK it is open, AQ_AGAIN (wait for write), AQ_REFUSED no listener, AQ_TIMEOUT,
     * AQ_IO. */
    enum aq_status (*connected)(struct aq_byte_stream *stream);
    /* *got > 0 on AQ_OK. AQ_AGAIN; AQ_CLOSED: the peer ended its direction; AQ_IO: broken; AQ_TLSERR:
     * aq_byte_stream_refusal has the reason. Never logs. */
    enum aq_status (*read)(struct aq_byte_stream *stream, const struct iovec *iov, int count, size_t *got);
    /* *put > 0 on AQ_OK. AQ_AGAIN; AQ_CLOSED: the peer has left; AQ_IO. Never logs. */
    enum aq_status (*write)(struct aq_byte_stream *stream, const struct iovec *iov, int count, size_t *put);
    /* After AQ_AGAIN of read (or write): until when to sleep. */
    void (*wait)(struct aq_byte_stream *stream, bool write, struct aq_byte_stream_wait *out);
    /* The socket that the loop may read and write without asking the stream; -1: none. */
    int (*direct)(struct aq_byte_stream *stream);
    /* Pace what is written to rate_mbps 10^6 bit/s, and keep what is queued below to some milliseconds of it. */
    enum aq_status (*pace)(struct aq_byte_stream *stream, double rate_mbps);
    /* Of a stream that is not paced: 10^6 bit/s that the network has last been seen to carry; 0: not known, or there
     * is no network. The queue below is kept to some milliseconds of it. */
    double (*measure)(struct aq_byte_stream *stream);
    /* Of a stream that stands. */
    void (*path)(struct aq_byte_stream *stream, struct aq_path *out);
    /* From now on the kernel's congestion control of this name. AQ_NODEV: it has none such; AQ_REFUSED: it has, but not
     * for this process. Never logs. A stream that has no congestion control is content with any. */
    enum aq_status (*congestion)(struct aq_byte_stream *stream, const char *name);
    /* The peer has proved who it is: the stream may take all the memory that its work needs. NULL: there is nothing to
     * take. AQ_NOMEM: logged. Called once. */
    enum aq_status (*trust)(struct aq_byte_stream *stream);
    /* No more writes, but of nothing while there is something unsent: the peer reads an end. */
    void (*shut)(struct aq_byte_stream *stream);
    void (*close)(struct aq_byte_stream *stream);
};

/* For a filter that leaves them to the stream below; it has no socket of its own. */
int aq_filter_direct(struct aq_byte_stream *stream);
enum aq_status aq_filter_pace(struct aq_byte_stream *stream, double rate_mbps);
double aq_filter_measure(struct aq_byte_stream *stream);
void aq_filter_path(struct aq_byte_stream *stream, struct aq_path *out);
enum aq_status aq_filter_congestion(struct aq_byte_stream *stream, const char *name);
void aq_filter_close(struct aq_byte_stream *stream); /* for one that holds nothing else; it is of AQ_NEW */

/* An acceptor: where streams come in. */
struct aq_acceptor {
    const struct aq_transport *transport;
    struct aq_address address;
    struct aq_tls *tls; /* of tls+: who we are; the caller's. NULL: nobody */
    uint16_t port;
    int fd;      /* readable when a connection is pending */
    void *state; /* the transport's */
};

struct aq_transport {
    const char *scheme;
    /* Fills acceptor (transport and address are set). AQ_REFUSED: in use; AQ_INVAL. Logged. */
    enum aq_status (*listen)(struct aq_acceptor *acceptor);
    enum aq_status (*accept)(struct aq_acceptor *acceptor, struct aq_byte_stream **out); /* AQ_AGAIN; else logged */
    void (*shut)(struct aq_acceptor *acceptor);
    /* Start; ops->connected answers when it is open. attempt numbers the tries (a name may have several addresses);
     * paced: ops->pace will be called, so that its options are set before the connection opens. AQ_REFUSED: no
     * listener. AQ_INVAL, AQ_NOTFOUND (no such name): logged. */
    enum aq_status (*connect)(const struct aq_address *address, uint32_t attempt, bool paced,
                              struct aq_byte_stream **out);
    uint64_t (*measure)(void); /* bytes that a trusted stream takes; NULL: some hundreds */
};

/* Through the table transports.def, with the filter that the address asks for on top. */
enum aq_status aq_acceptor_open(const char *address, struct aq_tls *tls, struct aq_acceptor *out);
enum aq_status aq_acceptor_accept(struct aq_acceptor *acceptor, struct aq_byte_stream **out);
void aq_acceptor_close(struct aq_acceptor *acceptor);
enum aq_status aq_byte_stream_connect(const char *address, struct aq_tls *tls, uint32_t attempt, bool paced,
                                      struct aq_byte_stream **out);
/* The same without filters: what is below them. */
enum aq_status aq_transport_connect(const struct aq_address *address, uint32_t attempt, bool paced,
                                    struct aq_byte_stream **out);
void aq_byte_stream_close(struct aq_byte_stream *stream); /* NULL is fine */
bool aq_byte_stream_local(const struct aq_byte_stream *stream);
enum aq_status aq_byte_stream_trust(struct aq_byte_stream *stream); /* of the stream below all filters */
uint64_t aq_byte_stream_source(const struct aq_byte_stream *stream);

/* For streams that are sockets: the status of a failed read or write. EPIPE, ECONNRESET: AQ_CLOSED. */
enum aq_status aq_byte_stream_errno(int error);

/* transport_fault.c: put the filter on top; takes `below` on success. */
enum aq_status aq_fault_wrap(const struct aq_address *address, struct aq_byte_stream *below,
                             struct aq_byte_stream **out);

/* transport_tls.c: the same, with an identity (NULL: AQ_INVAL, logged). */
enum aq_status aq_tls_wrap(const struct aq_address *address, struct aq_tls *tls, bool server,
                           struct aq_byte_stream *below, struct aq_byte_stream **out);
/* After AQ_TLSERR, AQ_PROTO or AQ_CORRUPT of a stream: why, as the end of "the peer ...". "": nothing is wrong, or no
 * TLS is there. */
const char *aq_byte_stream_refusal(const struct aq_byte_stream *stream);
/* Is the peer's certificate that of this rank? Also where there is no TLS. */
bool aq_byte_stream_proves(const struct aq_byte_stream *stream, uint32_t rank);
/* Has the peer shown a certificate of this job? Never where there is no TLS. */
bool aq_byte_stream_proved(const struct aq_byte_stream *stream);

#define AQ_TRANSPORT(scheme) extern const struct aq_transport aq_transport_##scheme;
#include "transports.def"
#undef AQ_TRANSPORT

/* "192.0.2.1:4000", "[2001:db8::1]:4000": of AQ_NAME_BYTES. */
void aq_sockaddr_name(const struct sockaddr *address, socklen_t bytes, char *out);
/* aq_source_of its host, IPv4 or IPv6. */
uint64_t aq_sockaddr_source(const struct sockaddr *address);

#endif
