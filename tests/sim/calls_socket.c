/*
 * calls_socket.c -- descriptors: streams and doors are the world's, pipes, event counts and files the kernel's.
 *
 * Behind each descriptor of the world's stands one of the kernel's that nobody reads, so that its number is taken. See
 * calls.h.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "calls.h"

#ifndef SOL_TLS
#define SOL_TLS 282
#endif

enum type { TYPE_UNKNOWN, TYPE_FILE, TYPE_PIPE, TYPE_OWN }; /* OWN: nobody beyond this process is at its other end */
static uint8_t types[SIM_FDS];

struct sim_sock *sim_mine(int fd)
{
    return sim_here() ? sim_sock_of(sim_self(), fd) : NULL;
}

static enum type type_of(int fd)
{
    struct stat about;
    if (fd < 0 || fd >= SIM_FDS) return TYPE_FILE;
    if (types[fd] == TYPE_UNKNOWN && fstat(fd, &about) == 0)
        types[fd] = S_ISREG(about.st_mode) || S_ISDIR(about.st_mode) || S_ISCHR(about.st_mode) ? TYPE_FILE : TYPE_PIPE;
    return (enum type)types[fd];
}

void sim_tell_kernel(int fd)
{
    const enum type type = type_of(fd);
    if (type == TYPE_PIPE) sim_wake_kernel(-1);
    if (type == TYPE_OWN) sim_wake_kernel(sim_self());
}

static int placeholder(void)
{
    REAL(socket);
    const int fd = real(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || fd >= SIM_FDS) sim_die("no descriptor", fd);
    types[fd] = TYPE_UNKNOWN;
    return fd;
}

/* ---- poll ---- */

enum { POLLS_MAX = 256, EPOLLS_MAX = 8, EPOLL_FDS_MAX = 64 };

static struct epoll {
    int fd, count;
    struct {
        int fd;
        struct epoll_event event;
    } of[EPOLL_FDS_MAX];
} epolls[EPOLLS_MAX];

static struct epoll *epoll_of(int fd)
{
    for (int i = 0; i < EPOLLS_MAX; i++)
        if (epolls[i].fd == fd + 1) return &epolls[i];
    return NULL;
}

static int look_at_kernel(struct pollfd *fds, nfds_t count)
{
    REAL(poll);
    struct pollfd theirs[POLLS_MAX];
    nfds_t where[POLLS_MAX], some = 0;
    for (nfds_t i = 0; i < count; i++) {
        if (fds[i].fd < 0 || sim_mine(fds[i].fd) || epoll_of(fds[i].fd)) continue;
        if (some == POLLS_MAX) sim_die("too many descriptors in a poll", POLLS_MAX);
        where[some] = i;
        theirs[some++] = fds[i];
    }
    if (some > 0) (void)real(theirs, some, 0);
    for (nfds_t i = 0; i < some; i++)
        fds[where[i]].revents = theirs[i].revents;
    return (int)some;
}

/* How many are ready; *next_ns: when more could be, of what is known. */
static int look(struct pollfd *fds, nfds_t count, uint64_t *next_ns, bool *kernel)
{
    int ready = 0;
    *kernel = false;
    for (nfds_t i = 0; i < count; i++) {
        const struct sim_sock *sock = sim_mine(fds[i].fd);
        const struct epoll *epoll = fds[i].fd >= 0 ? epoll_of(fds[i].fd) : NULL;
        fds[i].revents = 0;
        if (sock)
            fds[i].revents = sim_ready(sock, fds[i].events, next_ns);
        else if (epoll)
            for (int k = 0; k < epoll->count; k++) {
                const struct sim_sock *below = sim_mine(epoll->of[k].fd);
                if (below && sim_ready(below, (short)epoll->of[k].event.events, next_ns)) fds[i].revents = POLLIN;
            }
        else if (fds[i].fd >= 0)
            *kernel = true;
    }
    if (*kernel) (void)look_at_kernel(fds, count);
    for (nfds_t i = 0; i < count; i++)
        ready += fds[i].revents != 0;
    return ready;
}

static void watch(const struct pollfd *fds, nfds_t count, bool on)
{
    for (nfds_t i = 0; i < count; i++) {
        struct sim_sock *sock = sim_mine(fds[i].fd);
        const struct epoll *epoll = fds[i].fd >= 0 ? epoll_of(fds[i].fd) : NULL;
        if (sock) sim_watch(sock, fds[i].events, sim_me, on);
        for (int k = 0; epoll && k < epoll->count; k++)
            if (sim_mine(epoll->of[k].fd)) sim_watch(sim_mine(epoll->of[k].fd), POLLIN | POLLOUT, sim_me, on);
    }
}

int sim_poll_until(struct pollfd *fds, nfds_t count, uint64_t until_ns)
{
    sim_yield();
    for (;;) {
        uint64_t next = until_ns;
        bool kernel;
        const int ready = look(fds, count, &next, &kernel);
        if (ready > 0 || sim->now_ns >= until_ns) return ready;
        watch(fds, count, true);
        sim->task[sim_me].kernel = kernel;
        (void)sim_sleep(SIM_FOR_POLL, count > 0 ? (uint64_t)fds[0].fd : 0, next);
        sim->task[sim_me].kernel = false;
        watch(fds, count, false);
    }
}

EXPORTED int poll(struct pollfd *fds, nfds_t count, int ms)
{
    REAL(poll);
    if (!sim_here()) return real(fds, count, ms);
    return sim_poll_until(fds, count, ms < 0 ? SIM_NEVER : sim->now_ns + (uint64_t)ms * SIM_MS);
}

EXPORTED int ppoll(struct pollfd *fds, nfds_t count, const struct timespec *left, const sigset_t *mask)
{
    REAL(ppoll);
    if (!sim_here()) return real(fds, count, left, mask);
    return sim_poll_until(fds, count, sim_until(left));
}

EXPORTED int epoll_create1(int flags)
{
    REAL(epoll_create1);
    const int fd = real(flags);
    for (int i = 0; sim_here() && fd >= 0 && i < EPOLLS_MAX; i++) {
        if (epolls[i].fd) continue;
        epolls[i] = (struct epoll){.fd = fd + 1};
        return fd;
    }
    if (sim_here()) sim_die("too many epolls", EPOLLS_MAX);
    return fd;
}

EXPORTED int epoll_ctl(int epfd, int op, int fd, struct epoll_event *event)
{
    REAL(epoll_ctl);
    struct epoll *epoll = sim_here() ? epoll_of(epfd) : NULL;
    if (!epoll) return real(epfd, op, fd, event);
    int at = 0;
    while (at < epoll->count && epoll->of[at].fd != fd)
        at++;
    if (op == EPOLL_CTL_ADD ? at < epoll->count : at == epoll->count)
        return (int)sim_result(op == EPOLL_CTL_ADD ? -EEXIST : -ENOENT);
    if (op == EPOLL_CTL_DEL) {
        epoll->of[at] = epoll->of[--epoll->count];
        return 0;
    }
    if (at == EPOLL_FDS_MAX) sim_die("too many descriptors of an epoll", at);
    epoll->of[at].fd = fd;
    epoll->of[at].event = *event;
    if (at == epoll->count) epoll->count++;
    return 0;
}

EXPORTED int epoll_wait(int epfd, struct epoll_event *events, int most, int ms)
{
    REAL(epoll_wait);
    struct epoll *epoll = sim_here() ? epoll_of(epfd) : NULL;
    struct pollfd whole = {.fd = epfd, .events = POLLIN};
    uint64_t next = SIM_NEVER;
    int count = 0;
    if (!epoll) return real(epfd, events, most, ms);
    if (poll(&whole, 1, ms) <= 0) return 0;
    for (int i = 0; i < epoll->count && count < most; i++) {
        const struct sim_sock *sock = sim_mine(epoll->of[i].fd);
        const short got = sock ? sim_ready(sock, (short)epoll->of[i].event.events, &next) : 0;
        if (!got) continue;
        events[count] = epoll->of[i].event;
        events[count++].events = (uint32_t)(uint16_t)got;
        if (epoll->of[i].event.events & EPOLLONESHOT) epoll->of[i].event.events = EPOLLONESHOT;
    }
    return count;
}

/* ---- sockets ---- */

static int new_sock(enum sim_kind kind, int type, int fd)
{
    const int sock = sim_sock_make(kind, sim->process[sim_self()].host);
    sim_sock_put(sim_self(), fd, sock, (type & SOCK_CLOEXEC) != 0);
    sim->sock[sock].nonblocking = (type & SOCK_NONBLOCK) != 0;
    return fd;
}

EXPORTED int socket(int family, int type, int protocol)
{
    REAL(socket);
    if (!sim_here() || (family != AF_INET && family != AF_INET6) || (type & 15) != SOCK_STREAM)
        return real(family, type, protocol);
    return new_sock(SIM_SOCK_NEW, type, placeholder());
}

EXPORTED int socketpair(int family, int type, int protocol, int out[2])
{
    REAL(socketpair);
    int sock[2];
    if (!sim_here()) return real(family, type, protocol, out);
    sim_pair(sock);
    for (int i = 0; i < 2; i++) {
        out[i] = placeholder();
        sim_sock_put(sim_self(), out[i], sock[i], (type & SOCK_CLOEXEC) != 0);
    }
    return 0;
}

EXPORTED int pipe2(int out[2], int flags)
{
    REAL(pipe2);
    const int result = real(out, flags);
    for (int i = 0; result == 0 && i < 2; i++)
        if (out[i] < SIM_FDS) types[out[i]] = TYPE_PIPE;
    return result;
}

EXPORTED int eventfd(unsigned first, int flags)
{
    REAL(eventfd);
    const int fd = real(first, flags);
    if (fd >= 0 && fd < SIM_FDS) types[fd] = TYPE_OWN;
    return fd;
}

/* 127.0.0.1 is the first host, 127.0.0.2 the next; any address of all is this one. */
static int host_of(const struct sockaddr *address, uint16_t *port)
{
    const struct sockaddr_in *four = (const struct sockaddr_in *)(const void *)address;
    const uint32_t number = ntohl(four->sin_addr.s_addr);
    *port = ntohs(four->sin_port);
    if (address->sa_family != AF_INET || number == 0) return sim->process[sim_self()].host;
    return number >> 8 == 0x7f0000 && (number & 255) >= 1 && (number & 255) <= SIM_HOSTS ? (int)(number & 255) - 1 : -1;
}

static void name_of(int host, uint16_t port, struct sockaddr *out, socklen_t *bytes)
{
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons(port)};
    four.sin_addr.s_addr = htonl(0x7f000001u + (uint32_t)host);
    if (!out) return;
    memcpy(out, &four, *bytes < sizeof four ? *bytes : sizeof four);
    *bytes = sizeof four;
}

EXPORTED int bind(int fd, __CONST_SOCKADDR_ARG address, socklen_t bytes)
{
    REAL(bind);
    struct sim_sock *sock = sim_mine(fd);
    if (!sock) return real(fd, address, bytes);
    sock->host = host_of(address.__sockaddr__, &sock->port);
    return sock->host == sim->process[sim_self()].host ? 0 : (int)sim_result(-EADDRNOTAVAIL);
}

EXPORTED int listen(int fd, int backlog)
{
    REAL(listen);
    struct sim_sock *sock = sim_mine(fd);
    if (!sock) return real(fd, backlog);
    return (int)sim_result(-sim_listen(sock, sock->host, sock->port));
}

EXPORTED int connect(int fd, __CONST_SOCKADDR_ARG address, socklen_t bytes)
{
    REAL(connect);
    struct sim_sock *sock = sim_mine(fd);
    uint16_t port;
    if (!sock) return real(fd, address, bytes);
    if (sock->kind != SIM_SOCK_NEW) return (int)sim_result(-EISCONN);
    const int to = host_of(address.__sockaddr__, &port);
    if (to < 0) return (int)sim_result(-ENETUNREACH);
    (void)sim_connect(sock, sim->process[sim_self()].host, to, port);
    sim_yield();
    if (sock->nonblocking) return (int)sim_result(-EINPROGRESS);
    struct pollfd ready = {.fd = fd, .events = POLLOUT};
    (void)sim_poll_until(&ready, 1, SIM_NEVER);
    return sim->conn[sock->conn].refused ? (int)sim_result(-ECONNREFUSED) : 0;
}

static bool waits(const struct sim_sock *sock, int flags)
{
    return !sock->nonblocking && !(flags & MSG_DONTWAIT);
}

static void wait_for(int fd, short events)
{
    struct pollfd ready = {.fd = fd, .events = events};
    (void)sim_poll_until(&ready, 1, SIM_NEVER);
}

EXPORTED int accept4(int fd, __SOCKADDR_ARG address, socklen_t *bytes, int flags)
{
    REAL(accept4);
    struct sim_sock *acceptor = sim_mine(fd);
    int conn;
    if (!acceptor) return real(fd, address, bytes, flags);
    if (acceptor->kind != SIM_SOCK_DOOR) return (int)sim_result(-EINVAL);
    while (sim_accept(acceptor, &conn) != 0) {
        if (!waits(acceptor, 0)) return (int)sim_result(-EAGAIN);
        wait_for(fd, POLLIN);
    }
    const int made = new_sock(SIM_SOCK_STREAM, flags, placeholder());
    struct sim_sock *sock = sim_mine(made);
    sock->conn = conn;
    sock->side = 1;
    name_of(sim->conn[conn].host[0], sim->conn[conn].port[0], address.__sockaddr__, bytes);
    return made;
}

EXPORTED int accept(int fd, __SOCKADDR_ARG address, socklen_t *restrict bytes)
{
    return accept4(fd, address, bytes, 0);
}

EXPORTED int getsockname(int fd, __SOCKADDR_ARG address, socklen_t *restrict bytes)
{
    REAL(getsockname);
    const struct sim_sock *sock = sim_mine(fd);
    if (!sock) return real(fd, address, bytes);
    const bool stream = sock->kind == SIM_SOCK_STREAM;
    name_of(stream ? sim->conn[sock->conn].host[sock->side] : sock->host,
            stream ? sim->conn[sock->conn].port[sock->side] : sock->port, address.__sockaddr__, bytes);
    return 0;
}

EXPORTED int getpeername(int fd, __SOCKADDR_ARG address, socklen_t *restrict bytes)
{
    REAL(getpeername);
    const struct sim_sock *sock = sim_mine(fd);
    if (!sock) return real(fd, address, bytes);
    if (sock->kind != SIM_SOCK_STREAM) return (int)sim_result(-ENOTCONN);
    const struct sim_conn *conn = &sim->conn[sock->conn];
    name_of(conn->host[1 - sock->side], conn->port[1 - sock->side], address.__sockaddr__, bytes);
    return 0;
}

/* What an application may wish of TCP changes nothing here. */
EXPORTED int setsockopt(int fd, int level, int name, const void *value, socklen_t bytes)
{
    REAL(setsockopt);
    const bool tls = level == SOL_TLS || (level == IPPROTO_TCP && name == TCP_ULP); /* the kernel's: it is not here */
    if (sim_mine(fd) && tls) return (int)sim_result(-ENOPROTOOPT);
    return sim_mine(fd) ? 0 : real(fd, level, name, value, bytes);
}

EXPORTED int getsockopt(int fd, int level, int name, void *restrict value, socklen_t *restrict bytes)
{
    REAL(getsockopt);
    const struct sim_sock *sock = sim_mine(fd);
    if (!sock) return real(fd, level, name, value, bytes);
    if (level != SOL_SOCKET || name != SO_ERROR || *bytes < sizeof(int)) return (int)sim_result(-ENOPROTOOPT);
    uint64_t next = SIM_NEVER;
    const short got = sim_ready(sock, POLLOUT, &next);
    *(int *)value = 0;
    if (sock->kind == SIM_SOCK_STREAM && got & POLLERR)
        *(int *)value = sim->conn[sock->conn].refused ? ECONNREFUSED : ECONNRESET;
    return 0;
}

EXPORTED int shutdown(int fd, int how)
{
    REAL(shutdown);
    struct sim_sock *sock = sim_mine(fd);
    if (!sock) return real(fd, how);
    if (how != SHUT_RD) sim_shut(sock);
    return 0;
}

/* ---- bytes ---- */

static ssize_t send_some(int fd, const void *bytes, size_t count, int flags)
{
    for (;;) {
        struct sim_sock *sock = sim_mine(fd);
        const ssize_t sent = sim_send(sock, bytes, count);
        if (sent != -EAGAIN || !waits(sock, flags)) {
            sim_yield();
            return sim_result(sent);
        }
        wait_for(fd, POLLOUT);
    }
}

static ssize_t receive_some(int fd, void *bytes, size_t count, int flags)
{
    for (;;) {
        struct sim_sock *sock = sim_mine(fd);
        const ssize_t got = sim_receive(sock, bytes, count, (flags & MSG_PEEK) != 0);
        if (got != -EAGAIN || !waits(sock, flags)) {
            sim_yield();
            return sim_result(got);
        }
        wait_for(fd, POLLIN);
    }
}

EXPORTED ssize_t send(int fd, const void *bytes, size_t count, int flags)
{
    REAL(send);
    return sim_mine(fd) ? send_some(fd, bytes, count, flags) : real(fd, bytes, count, flags);
}

EXPORTED ssize_t recv(int fd, void *bytes, size_t count, int flags)
{
    REAL(recv);
    return sim_mine(fd) ? receive_some(fd, bytes, count, flags) : real(fd, bytes, count, flags);
}

static ssize_t gather(int fd, const struct iovec *iov, size_t count, int flags, bool sends)
{
    ssize_t whole = 0;
    for (size_t i = 0; i < count; i++) {
        if (iov[i].iov_len == 0) continue;
        const int how = whole > 0 ? flags | MSG_DONTWAIT : flags;
        const ssize_t some = sends ? send_some(fd, iov[i].iov_base, iov[i].iov_len, how)
                                   : receive_some(fd, iov[i].iov_base, iov[i].iov_len, how);
        if (some < 0) return whole > 0 ? whole : some;
        whole += some;
        if ((size_t)some < iov[i].iov_len) break;
    }
    return whole;
}

EXPORTED ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    REAL(sendmsg);
    return sim_mine(fd) ? gather(fd, message->msg_iov, message->msg_iovlen, flags, true) : real(fd, message, flags);
}

EXPORTED ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
    REAL(recvmsg);
    if (!sim_mine(fd)) return real(fd, message, flags);
    message->msg_flags = 0;
    message->msg_controllen = 0;
    return gather(fd, message->msg_iov, message->msg_iovlen, flags, false);
}

/* A descriptor of the kernel's that would wait is waited for here first. */
static void wait_kernel(int fd, short events)
{
    if (sim_here() && type_of(fd) != TYPE_FILE && !(fcntl(fd, F_GETFL) & O_NONBLOCK)) wait_for(fd, events);
}

EXPORTED ssize_t read(int fd, void *bytes, size_t count)
{
    REAL(read);
    if (sim_mine(fd)) return receive_some(fd, bytes, count, 0);
    wait_kernel(fd, POLLIN);
    const ssize_t result = real(fd, bytes, count);
    if (sim_here() && result > 0 && type_of(fd) == TYPE_PIPE) sim_tell_kernel(fd);
    return result;
}

EXPORTED ssize_t write(int fd, const void *bytes, size_t count)
{
    REAL(write);
    if (sim_mine(fd)) return send_some(fd, bytes, count, 0);
    wait_kernel(fd, POLLOUT);
    if (sim_here() && type_of(fd) == TYPE_PIPE && count > 4096) count = 4096; /* as much as a pipe takes at once */
    const ssize_t result = real(fd, bytes, count);
    if (sim_here() && result > 0) sim_tell_kernel(fd);
    return result;
}

/* ---- numbers of descriptors ---- */

void sim_forget_fd(int fd)
{
    struct epoll *epoll = epoll_of(fd);
    if (epoll) epoll->fd = 0;
    for (int i = 0; i < EPOLLS_MAX; i++)
        for (int k = epolls[i].fd ? epolls[i].count - 1 : -1; k >= 0; k--)
            if (epolls[i].of[k].fd == fd) epolls[i].of[k] = epolls[i].of[--epolls[i].count];
    sim_sock_drop(sim_self(), fd);
    if (fd >= 0 && fd < SIM_FDS) types[fd] = TYPE_UNKNOWN;
}

EXPORTED int close(int fd)
{
    REAL(close);
    if (!sim_here()) return real(fd);
    const bool pipe = !sim_mine(fd) && fd >= 0 && fd < SIM_FDS && types[fd] == TYPE_PIPE;
    sim_forget_fd(fd);
    const int result = real(fd);
    if (pipe) sim_wake_kernel(-1);
    return result;
}

EXPORTED int close_range(unsigned first, unsigned last, int flags)
{
    REAL(close_range);
    for (unsigned fd = first; sim_here() && flags == 0 && fd <= last && fd < SIM_FDS; fd++)
        sim_forget_fd((int)fd);
    return real(first, last, flags);
}

static int same(int from, int to, bool on_exec)
{
    const struct sim_sock *sock = sim_mine(from);
    if (to < 0 || to >= SIM_FDS || !sim_here()) return to;
    types[to] = TYPE_UNKNOWN;
    if (sock) sim_sock_put(sim_self(), to, (int)(sock - sim->sock), on_exec);
    return to;
}

EXPORTED int dup2(int from, int to)
{
    REAL(dup2);
    if (sim_here() && from != to) sim_forget_fd(to);
    const int result = real(from, to);
    return from == to ? result : same(from, result, false);
}

EXPORTED int dup3(int from, int to, int flags)
{
    REAL(dup3);
    if (sim_here()) sim_forget_fd(to);
    return same(from, real(from, to, flags), (flags & O_CLOEXEC) != 0);
}

EXPORTED int fcntl(int fd, int command, ...)
{
    REAL(fcntl);
    va_list arguments;
    va_start(arguments, command);
    const long argument = va_arg(arguments, long);
    va_end(arguments);
    const int result = real(fd, command, argument);
    struct sim_sock *sock = sim_mine(fd);
    if (result >= 0 && (command == F_DUPFD || command == F_DUPFD_CLOEXEC))
        return same(fd, result, command == F_DUPFD_CLOEXEC);
    if (sock && result >= 0 && command == F_SETFL) sock->nonblocking = (argument & O_NONBLOCK) != 0;
    if (sock && result >= 0 && command == F_SETFD) sim->process[sim_self()].on_exec[fd] = (argument & FD_CLOEXEC) != 0;
    return result;
}
