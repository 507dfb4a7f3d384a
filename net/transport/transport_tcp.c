/*
 * transport_tcp.c -- streams over TCP: sockets that the loop may drive directly.
 *
 * Sockets stay blocking and every call here passes MSG_DONTWAIT: io_uring arms its own poll on a blocking socket, but
 * gives up with EAGAIN on one with O_NONBLOCK. Pacing is the kernel's (SO_MAX_PACING_RATE; docs/DECISIONS.md
 * 0010):
 * - TCP_MAXSEG 1448 before the connection stands, because the kernel lets the first ten segments go unpaced, and
 *   loopback's are of 64 KB; where only the listener paces, the link's small writes (link_send.c) keep those ten small;
 * - TCP_NOTSENT_LOWAT of 10 ms, so that what waits in the kernel is bounded and back-pressure reaches the link: poll()
 *   lets more in when half of that has gone, and a busy machine has the other half to come back in time. Only poll()
 *   goes by it: a write is also taken as long as it fits the last buffer of 64 KB (105 ms at 5 Mbit/s), so that a paced
 *   stream polls before it writes.
 *
 * A stream that is not paced gets a limit on its pacing rate under BBR, once a full queue on the way drops its packets
 * (limit_rate below; docs/DECISIONS.md 0920).
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/inet_diag.h>
#include <linux/tcp.h> /* the C library's own knows no delivery rate */
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "congestion.h"
#include "transport.h"

enum {
    BACKLOG = 4096,             /* connections that the kernel holds until the next accept: its own usual most   */
    IDLE_S = 30,                /* then the kernel asks: connections that wait for losses stay known to routers */
    PACED_SEGMENT_BYTES = 1448, /* of an Ethernet path: 1500 less IP, TCP and time stamps                        */
    SEGMENT_BYTES_MAX = 32767,  /* the kernel's                                                                  */
    PACED_QUEUE_NS = 10000000,  /* bytes not yet sent that the kernel takes, as time at the rate                 */
    PACED_QUEUE_BYTES_MIN = 4096,
    PACED_QUEUE_BYTES_MAX = 1 << 20,
    QUEUE_BYTES = 256 << 10, /* the same without pacing, where nothing is known                               */
    QUEUE_BYTES_MIN = 16 << 10
};

struct tcp_stream {
    struct aq_byte_stream stream;
    int fd;
    bool connecting, paced;
    int queue_bytes; /* TCP_NOTSENT_LOWAT */
    struct aq_rate_limit limit;
    /* As the kernel reported it; "": not asked since it was set. Nobody else can change it of this connection. */
    char congestion[sizeof((struct aq_path *)0)->congestion];
};

static const struct aq_byte_stream_ops TCP_OPS;

/* The other end is at this end's own address. */
static bool own(int fd)
{
    struct sockaddr_storage here = {0}, there = {0};
    socklen_t here_bytes = sizeof here, there_bytes = sizeof there;
    if (getsockname(fd, (struct sockaddr *)&here, &here_bytes) == -1 ||
        getpeername(fd, (struct sockaddr *)&there, &there_bytes) == -1 || here.ss_family != there.ss_family)
        return false;
    const struct sockaddr_in *four[] = {(const struct sockaddr_in *)&here, (const struct sockaddr_in *)&there};
    const struct sockaddr_in6 *six[] = {(const struct sockaddr_in6 *)&here, (const struct sockaddr_in6 *)&there};
    return here.ss_family == AF_INET6 ? memcmp(&six[0]->sin6_addr, &six[1]->sin6_addr, sizeof six[0]->sin6_addr) == 0
                                      : four[0]->sin_addr.s_addr == four[1]->sin_addr.s_addr;
}

static enum aq_status wrap_socket(int fd, const struct sockaddr *peer, socklen_t bytes, struct aq_byte_stream **out)
{
    const int on = 1, queue = QUEUE_BYTES, idle_s = IDLE_S;
    struct tcp_stream *tcp;
    AQ_TRY(AQ_NEW(1, &tcp));
    tcp->stream.ops = &TCP_OPS;
    tcp->fd = fd;
    aq_sockaddr_name(peer, bytes, tcp->stream.name);
    tcp->stream.local = aq_endpoint_loopback_address(peer) || own(fd);
    tcp->stream.source = aq_sockaddr_source(peer);
    tcp->queue_bytes = queue;
    if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == -1 ||
        setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &queue, sizeof queue) == -1)
        aq_log("net", 1, "peer=%s TCP_NODELAY or TCP_NOTSENT_LOWAT refused: %s", tcp->stream.name, strerror(errno));
    if (setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s) == -1 ||
        setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on) == -1)
        aq_log("net", 1, "peer=%s SO_KEEPALIVE refused: %s", tcp->stream.name, strerror(errno));
    *out = &tcp->stream;
    return AQ_OK;
}

static enum aq_status tcp_listen(struct aq_acceptor *acceptor)
{
    struct addrinfo *info = NULL;
    struct sockaddr_storage bound;
    socklen_t bytes = sizeof bound;
    const int on = 1;
    enum aq_status status = AQ_OK;
    AQ_TRY(aq_endpoint_resolve(&acceptor->address.place, true, &info));
    const int fd = socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd == -1) {
        status = aq_fail_errno("net", "listen at '%s': socket", acceptor->address.whole);
        goto out;
    }
    /* Lets a restarted worker have its port back at once; two listeners at one port are still refused. */
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, info->ai_addr, info->ai_addrlen) == -1 || listen(fd, BACKLOG) == -1 ||
        getsockname(fd, (struct sockaddr *)&bound, &bytes) == -1) {
        const bool busy = errno == EADDRINUSE;
        status = aq_fail_errno("net", "cannot listen at '%s'%s", acceptor->address.whole,
                               busy ? " (another process has this port; choose another, or port 0)" : "");
        close(fd);
        goto out;
    }
    acceptor->fd = fd;
    acceptor->port = ntohs(bound.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&bound)->sin6_port
                                                       : ((struct sockaddr_in *)&bound)->sin_port);
out:
    freeaddrinfo(info);
    return status;
}

static enum aq_status tcp_accept(struct aq_acceptor *acceptor, struct aq_byte_stream **out)
{
    struct sockaddr_storage peer;
    socklen_t bytes = sizeof peer;
    const int fd = accept4(acceptor->fd, (struct sockaddr *)&peer, &bytes, SOCK_CLOEXEC);
    if (fd == -1) {
        /* A connection that was reset before we took it is not our trouble. */
        if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return AQ_AGAIN;
        return aq_fail_errno("net", "accept at '%s'", acceptor->address.whole);
    }
    const enum aq_status status = wrap_socket(fd, (struct sockaddr *)&peer, bytes, out);
    if (status != AQ_OK) close(fd);
    return status;
}

static void tcp_acceptor_close(struct aq_acceptor *acceptor)
{
    close(acceptor->fd);
    acceptor->fd = -1;
}

static enum aq_status tcp_connect(const struct aq_address *address, uint32_t attempt, bool paced,
                                  struct aq_byte_stream **out)
{
    struct addrinfo *list = NULL;
    uint32_t count = 0;
    double segment_wanted;
    AQ_TRY(aq_address_number(address, "segment", paced ? PACED_SEGMENT_BYTES : 0, &segment_wanted));
    AQ_TRY(aq_endpoint_resolve(&address->place, false, &list));
    for (const struct addrinfo *at = list; at; at = at->ai_next)
        count++;
    const struct addrinfo *info = list;
    for (uint32_t i = attempt % count; i > 0; i--)
        info = info->ai_next;

    enum aq_status status = AQ_OK;
    struct aq_byte_stream *stream = NULL;
    const int fd = socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd == -1) {
        status = aq_fail_errno("net", "connect to '%s': socket", address->whole);
        goto out;
    }
    AQ_TRY_GOTO(wrap_socket(fd, info->ai_addr, info->ai_addrlen, &stream), out);
    ((struct tcp_stream *)stream)->connecting = true;
    const int segment = segment_wanted < SEGMENT_BYTES_MAX ? (int)segment_wanted : SEGMENT_BYTES_MAX;
    if (segment > 0 && setsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &segment, sizeof segment) == -1)
        aq_log("net", 1, "peer=%s TCP_MAXSEG refused: %s", stream->name, strerror(errno));
    if (connect(fd, info->ai_addr, info->ai_addrlen) == -1 && errno != EINPROGRESS) {
        aq_log("net", 2, "connect to %s: %s", stream->name, strerror(errno));
        status = AQ_REFUSED;
        goto out;
    }
    *out = stream;
out:
    if (status != AQ_OK && stream)
        aq_byte_stream_close(stream);
    else if (status != AQ_OK && fd != -1)
        close(fd);
    freeaddrinfo(list);
    return status;
}

static enum aq_status tcp_connected(struct aq_byte_stream *stream)
{
    struct tcp_stream *tcp = (struct tcp_stream *)stream;
    int error = 0;
    socklen_t bytes = sizeof error;
    if (!tcp->connecting) return AQ_OK;
    struct pollfd ready = {.fd = tcp->fd, .events = POLLOUT};
    if (poll(&ready, 1, 0) == 0) return AQ_AGAIN;
    if (getsockopt(tcp->fd, SOL_SOCKET, SO_ERROR, &error, &bytes) == -1) error = errno;
    if (error != 0) return aq_byte_stream_errno(error);
    /* A port of this machine can connect to itself when no process listens there; that counts as no peer. */
    struct sockaddr_storage here = {0}, there = {0};
    socklen_t here_bytes = sizeof here, there_bytes = sizeof there;
    if (getsockname(tcp->fd, (struct sockaddr *)&here, &here_bytes) == 0 &&
        getpeername(tcp->fd, (struct sockaddr *)&there, &there_bytes) == 0 && here_bytes == there_bytes &&
        memcmp(&here, &there, here_bytes) == 0)
        return AQ_REFUSED;
    tcp->stream.local |= own(tcp->fd);
    const int flags = fcntl(tcp->fd, F_GETFL);
    if (flags == -1 || fcntl(tcp->fd, F_SETFL, flags & ~O_NONBLOCK) == -1) return AQ_IO;
    tcp->connecting = false;
    return AQ_OK;
}

static enum aq_status tcp_read(struct aq_byte_stream *stream, const struct iovec *iov, int count, size_t *got)
{
    struct msghdr message = {.msg_iov = (struct iovec *)iov, .msg_iovlen = (size_t)count};
    const ssize_t n = recvmsg(((struct tcp_stream *)stream)->fd, &message, MSG_DONTWAIT);
    if (n == -1) return aq_byte_stream_errno(errno);
    if (n == 0) return AQ_CLOSED;
    *got = (size_t)n;
    return AQ_OK;
}

static enum aq_status tcp_write(struct aq_byte_stream *stream, const struct iovec *iov, int count, size_t *put)
{
    const struct tcp_stream *tcp = (const struct tcp_stream *)stream;
    struct msghdr message = {.msg_iov = (struct iovec *)iov, .msg_iovlen = (size_t)count};
    struct pollfd room = {.fd = tcp->fd, .events = POLLOUT};
    if (tcp->paced && poll(&room, 1, 0) == 0) return AQ_AGAIN;
    const ssize_t n = sendmsg(tcp->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n == -1) return aq_byte_stream_errno(errno);
    *put = (size_t)n;
    return AQ_OK;
}

static void tcp_wait(struct aq_byte_stream *stream, bool write, struct aq_byte_stream_wait *out)
{
    *out = (struct aq_byte_stream_wait){
        .fd = ((struct tcp_stream *)stream)->fd, .events = write ? POLLOUT : POLLIN, .wake_ns = AQ_NEVER};
}

static int tcp_direct(struct aq_byte_stream *stream)
{
    return ((struct tcp_stream *)stream)->fd;
}

static enum aq_status tcp_pace(struct aq_byte_stream *stream, double rate_mbps)
{
    const int fd = ((struct tcp_stream *)stream)->fd;
    const double bytes_per_s = rate_mbps * 1e6 / 8;
    const uint64_t rate = (uint64_t)bytes_per_s;
    const double ahead = bytes_per_s * PACED_QUEUE_NS * 1e-9;
    const int queue = ahead < PACED_QUEUE_BYTES_MIN   ? PACED_QUEUE_BYTES_MIN
                      : ahead > PACED_QUEUE_BYTES_MAX ? PACED_QUEUE_BYTES_MAX
                                                      : (int)ahead;
    if (setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof rate) == -1 ||
        setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &queue, sizeof queue) == -1)
        return aq_fail_errno("net", "%s: the kernel does not pace to %g Mbit/s", stream->name, rate_mbps);
    ((struct tcp_stream *)stream)->paced = true;
    return AQ_OK;
}

/* BBR's estimate of the bottleneck, in bytes per second: the largest rate of ten round trips. 0: unknown. */
static double bbr_bytes_per_s(int fd)
{
    union tcp_cc_info cc = {0};
    socklen_t bytes = sizeof cc;
    if (getsockopt(fd, IPPROTO_TCP, TCP_CC_INFO, &cc, &bytes) == -1 || bytes < sizeof cc.bbr) return 0;
    return (double)((uint64_t)cc.bbr.bbr_bw_hi << 32 | cc.bbr.bbr_bw_lo);
}

/*
 * A pipeline's bursts are short, so that BBR takes the sender for the limit and stays in its startup: it paces at 2.9
 * times the rate of the way, and each burst overflows the queue. Its estimate of the rate is right, though.
 */
static void limit_rate(struct tcp_stream *tcp)
{
    struct aq_path path;
    TCP_OPS.path(&tcp->stream, &path);
    const bool asks = tcp->limit.bytes_per_s > 0 || path.again_bytes > tcp->limit.again_bytes;
    if (!path.steady || !asks) return;
    if (!aq_rate_limit_update(&tcp->limit, &path, path.again_bytes, bbr_bytes_per_s(tcp->fd), aq_clock_ns()))
        return;
    const uint64_t rate = tcp->limit.bytes_per_s > 0 ? (uint64_t)tcp->limit.bytes_per_s : UINT64_MAX;
    if (setsockopt(tcp->fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof rate) == -1)
        aq_log("net", 1, "peer=%s SO_MAX_PACING_RATE refused: %s", tcp->stream.name, strerror(errno));
}

/* The kernel's: of the last flight that the sender was not short of bytes for, or of a quicker one. */
static double tcp_measure(struct aq_byte_stream *stream)
{
    struct tcp_stream *tcp = (struct tcp_stream *)stream;
    struct tcp_info info = {0};
    socklen_t bytes = sizeof info;
    if (tcp->paced || getsockopt(tcp->fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) == -1) return 0;
    const double bytes_per_s = (double)info.tcpi_delivery_rate; /* 0 where the kernel is older than 4.9 */
    if (bytes_per_s == 0) return 0;
    limit_rate(tcp);
    const double ahead = bytes_per_s * PACED_QUEUE_NS * 1e-9;
    const int queue = ahead < QUEUE_BYTES_MIN ? QUEUE_BYTES_MIN : ahead > QUEUE_BYTES ? QUEUE_BYTES : (int)ahead;
    const int apart = queue > tcp->queue_bytes ? queue - tcp->queue_bytes : tcp->queue_bytes - queue;
    if (apart > tcp->queue_bytes / 2 && setsockopt(tcp->fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &queue, sizeof queue) == 0)
        tcp->queue_bytes = queue;
    return bytes_per_s * 8e-6;
}

static void tcp_path(struct aq_byte_stream *stream, struct aq_path *out)
{
    struct tcp_stream *tcp = (struct tcp_stream *)stream;
    struct tcp_info info = {0};
    *out = (struct aq_path){0};
    socklen_t bytes = sizeof info, name_bytes = sizeof tcp->congestion - 1;
    if (getsockopt(tcp->fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) == 0) {
        const uint64_t needless = (uint64_t)info.tcpi_dsack_dups * info.tcpi_snd_mss;
        out->round_trip_ns = UINT64_C(1000) * (info.tcpi_min_rtt > 0 ? info.tcpi_min_rtt : info.tcpi_rtt);
        if (info.tcpi_min_rtt > 0 && info.tcpi_rtt > info.tcpi_min_rtt)
            out->queue_ns = UINT64_C(1000) * (info.tcpi_rtt - info.tcpi_min_rtt);
        out->sent_bytes = info.tcpi_bytes_sent;
        out->again_bytes = info.tcpi_bytes_retrans > needless ? info.tcpi_bytes_retrans - needless : 0;
        out->segment_bytes = info.tcpi_snd_mss;
        out->window_bytes = (uint64_t)info.tcpi_snd_cwnd * info.tcpi_snd_mss;
        out->flight_bytes = (uint64_t)info.tcpi_unacked * info.tcpi_snd_mss + info.tcpi_notsent_bytes;
        /* The kernel counts packets, not all of them full: no more than was sent, each byte once. */
        const uint64_t whole = (uint64_t)info.tcpi_delivered * info.tcpi_snd_mss;
        const uint64_t once = info.tcpi_bytes_sent - info.tcpi_bytes_retrans;
        out->delivered_bytes = whole < once ? whole : once;
    }
    if (!tcp->congestion[0] && getsockopt(tcp->fd, IPPROTO_TCP, TCP_CONGESTION, tcp->congestion, &name_bytes) != 0)
        tcp->congestion[0] = 0;
    memcpy(out->congestion, tcp->congestion, sizeof out->congestion);
    out->steady = strncmp(out->congestion, "bbr", 3) == 0;
}

static enum aq_status tcp_congestion(struct aq_byte_stream *stream, const char *name)
{
    struct tcp_stream *tcp = (struct tcp_stream *)stream;
    tcp->congestion[0] = 0;
    if (setsockopt(tcp->fd, IPPROTO_TCP, TCP_CONGESTION, name, (socklen_t)strlen(name)) == 0) return AQ_OK;
    return errno == EPERM ? AQ_REFUSED : AQ_NODEV;
}

static void tcp_shut(struct aq_byte_stream *stream)
{
    shutdown(((struct tcp_stream *)stream)->fd, SHUT_WR); /* fails only where the peer has disconnected already */
}

static void tcp_close(struct aq_byte_stream *stream)
{
    close(((struct tcp_stream *)stream)->fd);
    aq_free(stream);
}

static const struct aq_byte_stream_ops TCP_OPS = {
    .connected = tcp_connected,
    .read = tcp_read,
    .write = tcp_write,
    .wait = tcp_wait,
    .direct = tcp_direct,
    .pace = tcp_pace,
    .measure = tcp_measure,
    .path = tcp_path,
    .congestion = tcp_congestion,
    .shut = tcp_shut,
    .close = tcp_close,
};

const struct aq_transport aq_transport_tcp = {
    .scheme = "tcp", .listen = tcp_listen, .accept = tcp_accept, .shut = tcp_acceptor_close, .connect = tcp_connect};
