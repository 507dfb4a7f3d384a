/*
 * congestion.c -- see congestion.h.
 */
#include "congestion.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net_limits.h"

static const char *const AREA = "net", *const BBR = "bbr";

/* One line of /proc; "" where it does not exist. */
static void read_line(const char *path, char *out, size_t bytes)
{
    out[0] = '\0';
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd == -1) return;
    const ssize_t n = read(fd, out, bytes - 1);
    close(fd);
    out[n > 0 ? n : 0] = '\0';
    out[strcspn(out, "\n")] = '\0';
}

/* The command by which an administrator allows it to this process. */
static void remedy(const char *name, enum aq_status status, char *out, size_t bytes)
{
    char allowed[256];
    read_line("/proc/sys/net/ipv4/tcp_allowed_congestion_control", allowed, sizeof allowed);
    if (status == AQ_REFUSED)
        snprintf(out, bytes,
                 "the kernel allows it only to root; sysctl -w net.ipv4.tcp_allowed_congestion_control=\"%s %s\"",
                 allowed, name);
    else
        snprintf(out, bytes, "the kernel does not have it (it has: %s); modprobe tcp_%s", allowed, name);
}

enum aq_status aq_congestion_check(const char *name)
{
    char what[512];
    if (name[0] == '\0' || strcmp(name, "auto") == 0) return AQ_OK;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd == -1) return aq_fail_errno(AREA, "link.congestion: socket");
    enum aq_status status = AQ_OK;
    if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, (socklen_t)strlen(name)) == -1)
        status = errno == EPERM ? AQ_REFUSED : AQ_NODEV;
    close(fd);
    if (status == AQ_OK) return AQ_OK;
    remedy(name, status, what, sizeof what);
    return aq_fail(AQ_INVAL, AREA, "link.congestion: %s: %s", name, what);
}

void aq_congestion_choose(struct aq_byte_stream *stream, const char *name, atomic_bool *told)
{
    char what[512];
    struct aq_path path = {0};
    if (name[0] == '\0') return;
    const bool automatic = strcmp(name, "auto") == 0;
    stream->ops->path(stream, &path);
    if (automatic && (path.steady || path.round_trip_ns < AQ_FAR_NS)) return;
    const enum aq_status status = stream->ops->congestion(stream, automatic ? BBR : name);
    if (status == AQ_OK || atomic_exchange_explicit(told, true, memory_order_relaxed)) return;
    remedy(automatic ? BBR : name, status, what, sizeof what);
    aq_log(AREA, 1, "link to %s: lost packets will slow it, because congestion control %s is not available: %s",
           stream->name, automatic ? BBR : name, what);
}

bool aq_path_full(const struct aq_path *path)
{
    return path->steady && path->queue_ns > path->round_trip_ns / 2 && path->queue_ns > AQ_QUEUE_FULL_NS;
}

bool aq_rate_limit_update(struct aq_rate_limit *limit, const struct aq_path *path, uint64_t again_bytes,
                          double bottleneck, uint64_t now_ns)
{
    const double before = limit->bytes_per_s;
    const bool dropped = again_bytes > limit->again_bytes && aq_path_full(path);
    limit->again_bytes = again_bytes;
    if (dropped && bottleneck > 0) {
        limit->bytes_per_s = bottleneck > AQ_RATE_LIMIT_MIN ? bottleneck : AQ_RATE_LIMIT_MIN;
        limit->since_ns = now_ns;
    } else if (before > 0 && now_ns >= limit->since_ns + AQ_RATE_LIMIT_NS) {
        limit->bytes_per_s = before > AQ_RATE_LIMIT_OFF * bottleneck ? 0 : before * AQ_RATE_LIMIT_GROWTH;
        limit->since_ns = now_ns;
    }
    return limit->bytes_per_s != before;
}
