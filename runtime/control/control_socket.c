/* control_socket.c -- see the header. getaddrinfo may ask a name server: only the launcher and the tools use names. */
#include "control_socket.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "aqsgd/base/file.h"
#include "net/endpoint.h"
#include "net/tls.h"

enum { BACKLOG = 1024 }; /* the kernel's own bound (somaxconn) may be lower */

static enum aq_status resolve(const char *address, bool passive, struct addrinfo **out)
{
    struct aq_endpoint endpoint;
    const char *why;
    if (aq_endpoint_parse(address, &endpoint, &why) != AQ_OK)
        return aq_fail(AQ_INVAL, "control", "'%.80s' is not an address: %s (write host:port or [v6]:port)", address,
                       why);
    if (passive && endpoint.name[0])
        return aq_fail(AQ_INVAL, "control", "'%.80s': an address to listen at has no name before '@'", address);
    if (!passive && endpoint.port == 0)
        return aq_fail(AQ_INVAL, "control", "'%.80s': port 0 cannot be reached", address);
    return aq_endpoint_resolve(&endpoint, passive, out);
}

static uint16_t port_of(int fd)
{
    struct sockaddr_storage bound = {0};
    socklen_t bytes = sizeof bound;
    if (getsockname(fd, (struct sockaddr *)&bound, &bytes) != 0) return 0;
    if (bound.ss_family == AF_INET6) return ntohs(((struct sockaddr_in6 *)(void *)&bound)->sin6_port);
    return ntohs(((struct sockaddr_in *)(void *)&bound)->sin_port);
}

enum aq_status aq_control_listen(const char *address, bool far, int *fd, uint16_t *port)
{
    struct addrinfo *list;
    AQ_TRY(resolve(address, true, &list));
    enum aq_status status = AQ_OK;
    int made = -1;
    if (!far && !aq_endpoint_loopback_address(list->ai_addr)) {
        status = aq_fail(AQ_INVAL, "control",
                         "will not listen on %s without keys (--keys DIR): others could read and change the traffic, "
                         "even with a token",
                         address);
        goto out;
    }
    made = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const int one = 1;
    if (made == -1 || setsockopt(made, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) != 0 ||
        bind(made, list->ai_addr, list->ai_addrlen) != 0 || listen(made, BACKLOG) != 0) {
        status = errno == EADDRINUSE
                     ? aq_fail(AQ_REFUSED, "control",
                               "cannot listen on %s: the port is taken by another program: take another one, or port 0 "
                               "(any that is free)",
                               address)
                     : aq_fail_errno("control", "cannot listen on %s", address);
        if (made != -1) close(made);
        goto out;
    }
    *port = port_of(made);
    *fd = made;
out:
    freeaddrinfo(list);
    return status;
}

enum aq_status aq_control_keep_alive(int fd)
{
    const int one = 1, idle = 15, interval = 5, count = 3;
    const unsigned int unanswered_ms = 30000;
    if (setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one) != 0 ||
        setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle) != 0 ||
        setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval) != 0 ||
        setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count) != 0 ||
        setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unanswered_ms, sizeof unanswered_ms) != 0 ||
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) != 0)
        return aq_fail_errno("control", "cannot set keep-alive on a connection");
    return AQ_OK;
}

/* Connect fd until the deadline; sets errno on failure. */
static bool connect_one(int fd, const struct addrinfo *to, uint64_t deadline_ns)
{
    if (connect(fd, to->ai_addr, to->ai_addrlen) == 0) return true;
    if (errno != EINPROGRESS) return false;
    for (;;) {
        const uint64_t now = aq_clock_ns();
        if (now >= deadline_ns) {
            errno = ETIMEDOUT;
            return false;
        }
        struct pollfd poller = {.fd = fd, .events = POLLOUT};
        const uint64_t left_ms = (deadline_ns - now) / 1000000 + 1;
        if (poll(&poller, 1, left_ms > 1000 ? 1000 : (int)left_ms) <= 0) continue;
        int error = 0;
        socklen_t bytes = sizeof error;
        if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0) return false;
        errno = error;
        return error == 0;
    }
}

uint64_t aq_control_source(const struct sockaddr *address, char text[64])
{
    const struct sockaddr_in *in = (const void *)address;
    const struct sockaddr_in6 *in6 = (const void *)address;
    const bool six = address && address->sa_family == AF_INET6,
               known = six || (address && address->sa_family == AF_INET);
    const void *bytes = six ? (const void *)&in6->sin6_addr : &in->sin_addr;
    char host[INET6_ADDRSTRLEN] = "?";
    if (known && text) inet_ntop(address->sa_family, bytes, host, sizeof host);
    if (text) snprintf(text, 64, "%s:%u", host, !known ? 0 : ntohs(six ? in6->sin6_port : in->sin_port));
    return known ? aq_source_of(bytes, six ? sizeof in6->sin6_addr : sizeof in->sin_addr) : 0;
}

enum aq_status aq_control_accept(int listener, int *fd, uint64_t *source, char peer[64])
{
    struct sockaddr_storage address = {0};
    socklen_t bytes = sizeof address;
    *fd = accept4(listener, (struct sockaddr *)&address, &bytes, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (*fd == -1)
        return errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS ? AQ_NOSPC : AQ_AGAIN;
    *source = aq_control_source((struct sockaddr *)&address, peer);
    return AQ_OK;
}

enum aq_status aq_control_connect(const char *address, uint64_t deadline_ns, int *fd)
{
    struct addrinfo *list;
    AQ_TRY(resolve(address, false, &list));
    int made = -1;
    errno = EADDRNOTAVAIL;
    for (const struct addrinfo *to = list; to; to = to->ai_next) {
        made = socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (made == -1) continue;
        if (connect_one(made, to, deadline_ns)) break;
        const int error = errno;
        close(made);
        made = -1;
        errno = error;
    }
    enum aq_status status = AQ_OK;
    if (made == -1)
        status =
            aq_fail_errno("control", "cannot reach the daemon at %s (start aqpiped there, or open its port)", address);
    freeaddrinfo(list);
    AQ_TRY(status);
    status = aq_control_keep_alive(made);
    if (status != AQ_OK) {
        close(made);
        return status;
    }
    *fd = made;
    return AQ_OK;
}

/* What came of the wait for one line of the greeting; whatever is not `event` is a refusal with the daemon's own text.
 * Takes the message, which is there with AQ_OK. */
static enum aq_status judge(enum aq_status status, const char *address, const char *event, json_t *message,
                            json_t **out)
{
    if (status == AQ_TIMEOUT)
        return aq_fail(status, "control", "%s does not answer: does an aqpiped run there?", address);
    if (status == AQ_CLOSED)
        return aq_fail(status, "control",
                       "%s closed the connection in the greeting (an aqpiped with --keys needs security.keys in the "
                       "job, and security.tls not off)",
                       address);
    AQ_TRY(status);
    if (aq_control_is(message, "event", event)) {
        *out = message;
        return AQ_OK;
    }
    const enum aq_status refused = aq_fail(AQ_REFUSED, "control", "the daemon at %s refuses: %.200s", address,
                                           aq_control_text_or(message, "text", "it is not an aqpiped"));
    json_decref(message);
    return refused;
}

/* Our answer to its `hello`, whose reference is taken; `wanted` is the proof that its `welcome` must have. */
static enum aq_status answer_hello(struct aq_control *control, const char *address, const struct aq_token *token,
                                   json_t *hello, char wanted[AQ_PROOF_CHARS + 1])
{
    char nonce[AQ_NONCE_CHARS + 1], proof[AQ_PROOF_CHARS + 1];
    const char *theirs;
    enum aq_status status = aq_token_nonce(nonce);
    const uint64_t protocol = aq_control_u64_or(hello, "protocol", 0);
    if (status == AQ_OK && protocol != AQ_CONTROL_PROTOCOL)
        status = aq_fail(AQ_MISMATCH, "control",
                         "the daemon at %s (version %.20s) speaks protocol %llu, this aqpipe %d", address,
                         aq_control_text_or(hello, "version", "?"), (unsigned long long)protocol, AQ_CONTROL_PROTOCOL);
    if (status == AQ_OK) status = aq_control_get_text(hello, "nonce", &theirs);
    if (status == AQ_OK) status = aq_token_proof(token, "client", theirs, nonce, proof);
    if (status == AQ_OK) status = aq_token_proof(token, "daemon", theirs, nonce, wanted);
    json_decref(hello);
    AQ_TRY(status);
    status =
        aq_control_send(control, json_pack("{s:s, s:i, s:s, s:s, s:s}", "op", "hello", "protocol", AQ_CONTROL_PROTOCOL,
                                           "version", AQ_VERSION, "nonce", nonce, "proof", proof));
    return status == AQ_CLOSED ? AQ_OK : status; /* a daemon that closed may have sent the cause; else report it */
}

/* Takes the reference of its `welcome`. */
static enum aq_status check_welcome(json_t *welcome, const char *address, const char *wanted)
{
    const char *got;
    enum aq_status status = aq_control_get_text(welcome, "proof", &got);
    if (status == AQ_OK && !aq_token_proves(wanted, got))
        status = aq_fail(AQ_REFUSED, "control", "the daemon at %s does not have our token", address);
    json_decref(welcome);
    return status;
}

/* The first thing on the socket, before the greeting. */
static enum aq_status secure(struct aq_control *control, struct aq_tls *tls, const char *address)
{
    struct aq_tls_name daemon = {.role = AQ_TLS_DAEMON};
    struct aq_tls_session *session;
    struct aq_endpoint endpoint;
    const char *why;
    if (!tls) return AQ_OK;
    if (aq_endpoint_parse(address, &endpoint, &why) != AQ_OK || !aq_endpoint_identity(&endpoint, daemon.host))
        return aq_fail(AQ_INVAL, "control", "no certificate can name the host of '%.80s': write name@host:port",
                       address);
    AQ_TRY(aq_tls_session_open(tls, aq_control_fd(control), false, &daemon, address, &session));
    aq_control_secure(control, session);
    return AQ_OK;
}

/* The channel on a connected socket, which is taken: keys are needed unless it stays inside this machine. */
static enum aq_status open_channel(int fd, const char *address, struct aq_tls *tls, struct aq_control **out)
{
    struct sockaddr_storage there = {0};
    socklen_t bytes = sizeof there;
    if (!tls && (getpeername(fd, (struct sockaddr *)&there, &bytes) != 0 ||
                 !aq_endpoint_loopback_address((const struct sockaddr *)&there))) {
        close(fd);
        return aq_fail(AQ_REFUSED, "control",
                       "will not talk to %s without keys (security.keys, --keys DIR): others on the network could read "
                       "and change the traffic; make keys with aqpipe keys, or use a tunnel to 127.0.0.1",
                       address);
    }
    struct aq_control *control;
    enum aq_status status = aq_control_open(fd, &control);
    if (status != AQ_OK) {
        close(fd);
        return status;
    }
    status = secure(control, tls, address);
    if (status != AQ_OK) {
        aq_control_close(control);
        return status;
    }
    *out = control;
    return AQ_OK;
}

struct aq_control_meeting {
    char address[AQ_ADDRESS_BYTES];
    const struct aq_token *token;
    struct aq_tls *tls;
    uint64_t deadline_ns;
    struct addrinfo *list, *next; /* its addresses, and those that were not tried yet */
    int fd;                       /* being connected; -1: none                        */
    int error;                    /* of the last that could not be                    */
    struct aq_control *control;   /* NULL: not connected yet                          */
    bool answered;                /* its `hello` was                                  */
    char wanted[AQ_PROOF_CHARS + 1];
};

enum aq_status aq_control_meeting_begin(const char *address, const struct aq_token *token, struct aq_tls *tls,
                                        uint64_t deadline_ns, struct aq_control_meeting **out)
{
    struct aq_control_meeting *meeting;
    AQ_TRY(AQ_NEW(1, &meeting));
    meeting->token = token;
    meeting->tls = tls;
    meeting->deadline_ns = deadline_ns;
    meeting->fd = -1;
    meeting->error = EADDRNOTAVAIL;
    snprintf(meeting->address, sizeof meeting->address, "%s", address);
    const enum aq_status status = resolve(address, false, &meeting->list);
    if (status != AQ_OK) {
        aq_free(meeting);
        return status;
    }
    meeting->next = meeting->list;
    *out = meeting;
    return AQ_OK;
}

int aq_control_meeting_fd(const struct aq_control_meeting *meeting)
{
    return meeting->control ? aq_control_fd(meeting->control) : meeting->fd;
}

short aq_control_meeting_events(const struct aq_control_meeting *meeting)
{
    if (!meeting->control) return POLLOUT;
    return aq_control_pending(meeting->control) ? POLLIN | POLLOUT : POLLIN;
}

static void drop_socket(struct aq_control_meeting *meeting, int error)
{
    if (meeting->fd != -1) close(meeting->fd);
    meeting->fd = -1;
    meeting->error = error;
}

static enum aq_status not_reached(const struct aq_control_meeting *meeting, int error)
{
    errno = error;
    return aq_fail_errno("control", "cannot reach the daemon at %s (start aqpiped there, or open its port)",
                         meeting->address);
}

/* AQ_OK: meeting->fd is connected. */
static enum aq_status connect_turn(struct aq_control_meeting *meeting)
{
    for (;;) {
        int error = 0;
        socklen_t bytes = sizeof error;
        if (meeting->fd != -1) {
            struct pollfd poller = {.fd = meeting->fd, .events = POLLOUT};
            if (poll(&poller, 1, 0) <= 0) return AQ_AGAIN;
            if (getsockopt(meeting->fd, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0) error = errno;
            if (error == 0) return AQ_OK;
            drop_socket(meeting, error);
        }
        const struct addrinfo *to = meeting->next;
        if (!to) break;
        meeting->next = to->ai_next;
        meeting->fd = socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (meeting->fd == -1 || (connect(meeting->fd, to->ai_addr, to->ai_addrlen) != 0 && errno != EINPROGRESS))
            drop_socket(meeting, errno);
    }
    return not_reached(meeting, meeting->error);
}

static enum aq_status meeting_turn(struct aq_control_meeting *meeting)
{
    json_t *message = NULL;
    if (!meeting->control) {
        AQ_TRY(connect_turn(meeting));
        AQ_TRY(aq_control_keep_alive(meeting->fd));
        const int fd = meeting->fd;
        meeting->fd = -1; /* taken */
        AQ_TRY(open_channel(fd, meeting->address, meeting->tls, &meeting->control));
    }
    for (;;) {
        const enum aq_status status = aq_control_receive(meeting->control, 0, &message);
        if (status == AQ_AGAIN) return status;
        AQ_TRY(judge(status, meeting->address, meeting->answered ? "welcome" : "hello", message, &message));
        if (meeting->answered) return check_welcome(message, meeting->address, meeting->wanted);
        AQ_TRY(answer_hello(meeting->control, meeting->address, meeting->token, message, meeting->wanted));
        meeting->answered = true;
    }
}

enum aq_status aq_control_meeting_turn(struct aq_control_meeting *meeting, struct aq_control **out)
{
    enum aq_status status = meeting_turn(meeting);
    if (status == AQ_AGAIN && aq_clock_ns() > meeting->deadline_ns)
        status = meeting->control ? judge(AQ_TIMEOUT, meeting->address, "", NULL, NULL)
                                  : not_reached(meeting, ETIMEDOUT);
    if (status != AQ_OK) return status;
    *out = meeting->control;
    meeting->control = NULL;
    return AQ_OK;
}

void aq_control_meeting_end(struct aq_control_meeting *meeting)
{
    if (!meeting) return;
    if (meeting->fd != -1) close(meeting->fd);
    aq_control_close(meeting->control);
    freeaddrinfo(meeting->list);
    aq_free(meeting);
}

enum aq_status aq_control_meet(const char *address, const struct aq_token *token, struct aq_tls *tls,
                               uint64_t deadline_ns, struct aq_control **out)
{
    struct aq_control_meeting *meeting;
    enum aq_status status;
    AQ_TRY(aq_control_meeting_begin(address, token, tls, deadline_ns, &meeting));
    while ((status = aq_control_meeting_turn(meeting, out)) == AQ_AGAIN) {
        struct pollfd poller = {.fd = aq_control_meeting_fd(meeting), .events = aq_control_meeting_events(meeting)};
        const uint64_t now = aq_clock_ns(), left_ms = deadline_ns > now ? (deadline_ns - now) / 1000000 + 1 : 0;
        (void)poll(&poller, 1, left_ms > 1000 ? 1000 : (int)left_ms);
    }
    aq_control_meeting_end(meeting);
    return status;
}

void aq_control_descriptors(uint64_t count)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur >= count) return;
    files.rlim_cur = files.rlim_max < count ? files.rlim_max : count;
    if (setrlimit(RLIMIT_NOFILE, &files) != 0)
        aq_log("control", AQ_LOG_WARNING, "the limit of descriptors cannot be raised: errno %d", errno);
}

enum aq_status aq_control_port_write(const char *path, uint16_t port)
{
    char text[16];
    if (!path) return AQ_OK;
    const int count = snprintf(text, sizeof text, "%u\n", port);
    return aq_file_replace(NULL, path, 0600, text, (size_t)count);
}
