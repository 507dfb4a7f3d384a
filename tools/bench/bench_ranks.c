/*
 * bench_ranks.c -- see bench_ranks.h. Each child talks to its parent over a socket pair: "here I am", its port, its
 * result; the parent answers with its next input.
 */
#include "bench_ranks.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *const AREA = "bench";

extern char **environ;

#define SECONDS(s) aq_clock_after((uint64_t)(s)*UINT64_C(1000000000))

enum { RESULT_BYTES_MAX = 4096, ARGUMENTS_MAX = 16 };

/*
 * Commands of the shell, with iproute2's names. 128 KiB of bucket let whole segments of TSO pass; 50 ms may wait. $1
 * rate in bit/s, then the processes of the ranks.
 */
static const char HUB_SCRIPT[] =
    "set -e; rate=$1; shift; n=0\n"
    "ip link add br0 type bridge; ip link set br0 up\n"
    "for process; do\n"
    "  ip link add h$n type veth peer name cable netns $process; ip link set h$n master br0 up\n"
    "  tc qdisc replace dev h$n root tbf rate ${rate}bit burst 128kb latency 50ms; n=$((n + 1))\n"
    "done";
/* $1 rate, $2 the last number of the address. */
static const char RANK_SCRIPT[] =
    "set -e; ip link set lo up; ip addr add 10.78.0.$2/24 dev cable; ip link set cable up\n"
    "tc qdisc replace dev cable root tbf rate ${1}bit burst 128kb latency 50ms";

struct child {
    pid_t process;
    int fd; /* the parent's end */
};

static enum aq_status put(int fd, const void *bytes, size_t count)
{
    for (size_t done = 0; done < count;) {
        const ssize_t sent = send(fd, (const uint8_t *)bytes + done, count - done, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0) return AQ_IO;
        done += (size_t)sent;
    }
    return AQ_OK;
}

/* AQ_CLOSED: the other end has closed. */
static enum aq_status get(int fd, void *bytes, size_t count)
{
    const ssize_t got = aq_read_all(fd, bytes, count);
    return got == (ssize_t)count ? AQ_OK : got < 0 ? AQ_IO : AQ_CLOSED;
}

/* AQ_NODEV if the script fails: `ip` or `tc` are missing, or the kernel does not permit it. */
static enum aq_status shell(const char *script, const char *const *arguments, int count)
{
    char *words[ARGUMENTS_MAX + 5] = {"sh", "-c", (char *)(uintptr_t)script, "sh"};
    AQ_ASSERT(count <= ARGUMENTS_MAX);
    for (int i = 0; i < count; i++)
        words[4 + i] = (char *)(uintptr_t)arguments[i];
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 2, "/dev/null", 1, 0);
    pid_t process;
    int code = -1;
    const int error = posix_spawn(&process, "/bin/sh", &files, NULL, words, environ);
    posix_spawn_file_actions_destroy(&files);
    if (error != 0) return AQ_NODEV;
    while (waitpid(process, &code, 0) < 0)
        if (errno != EINTR) return AQ_NODEV;
    return WIFEXITED(code) && WEXITSTATUS(code) == 0 ? AQ_OK : AQ_NODEV;
}

/* ---- in a rank's process ---- */

struct ends {
    struct aq_net *net;
    struct aq_listener *listener;
    struct aq_bench_rank rank;
};

static void link_config(const struct aq_bench_ranks *ranks, uint32_t rank, uint32_t peer, bool shaped,
                        struct aq_link_config *out)
{
    aq_link_config_default(out);
    out->rank = rank;
    out->peer_rank = peer;
    aq_group_link_config(ranks->piece_bytes, out);
    if (!shaped) out->rate_mbps = ranks->rate_mbps / (ranks->size - 1);
}

/* Every rank listens and reports its port; then connects to the lower ranks and accepts the higher ones. */
static enum aq_status meet(const struct aq_bench_ranks *ranks, struct ends *ends, int fd, bool shaped)
{
    const uint32_t me = ends->rank.rank;
    const struct aq_net_config net = {.eventcount = ends->rank.eventcount, .links_max = AQ_BENCH_RANKS_MAX + 1};
    struct aq_link_config config;
    struct aq_link *link;
    char address[64];
    uint16_t ports[AQ_BENCH_RANKS_MAX];
    AQ_TRY(aq_net_open(&net, &ends->net));
    snprintf(address, sizeof address, shaped ? "tcp://10.78.0.%u:0" : "tcp://127.0.0.1:0", me + 1);
    AQ_TRY(aq_link_listen(ends->net, address, &ends->listener, &ports[0]));
    AQ_TRY(put(fd, &ports[0], sizeof ports[0]));
    AQ_TRY(get(fd, ports, sizeof ports));
    for (uint32_t peer = 0; peer < me; peer++) {
        link_config(ranks, me, peer, shaped, &config);
        if (shaped)
            snprintf(address, sizeof address, "tcp://10.78.0.%u:%u", peer + 1, ports[peer]);
        else
            snprintf(address, sizeof address, "tcp://127.0.0.1:%u", ports[peer]);
        AQ_TRY(aq_link_connect(ends->net, address, &config, SECONDS(20), &ends->rank.links[peer]));
    }
    for (uint32_t peer = me + 1; peer < ranks->size; peer++) {
        link_config(ranks, me, UINT32_MAX, shaped, &config);
        AQ_TRY(aq_link_accept(ends->listener, &config, SECONDS(20), &link));
        ends->rank.links[aq_link_peer_rank(link)] = link;
    }
    return AQ_OK;
}

static enum aq_status rank_work(const struct aq_bench_ranks *ranks, struct ends *ends, int fd, bool shaped,
                                void *result)
{
    AQ_TRY(aq_eventcount_open(&ends->rank.eventcount));
    AQ_TRY(meet(ranks, ends, fd, shaped));
    AQ_TRY(ranks->run(&ends->rank, ranks->context, result));
    for (uint32_t peer = 0; peer < ranks->size; peer++)
        if (ends->rank.links[peer]) AQ_TRY(aq_link_finish(ends->rank.links[peer], SECONDS(20)));
    return AQ_OK;
}

/* Does not come back. The parent hears a status and, where that is AQ_OK, the result. */
static void rank_process(const struct aq_bench_ranks *ranks, uint32_t rank, int fd, bool shaped)
{
    struct ends ends = {.rank = {.rank = rank, .size = ranks->size, .piece_bytes = ranks->piece_bytes}};
    uint8_t result[RESULT_BYTES_MAX] = {0};
    char rate[32], number[16], go;
    const char *const arguments[] = {rate, number};
    snprintf(rate, sizeof rate, "%.0f", ranks->rate_mbps * 1e6);
    snprintf(number, sizeof number, "%u", rank + 1);
    int status = shaped && unshare(CLONE_NEWNET) != 0 ? AQ_NODEV : AQ_OK;
    if (put(fd, &status, sizeof status) != AQ_OK || get(fd, &go, 1) != AQ_OK) _exit(1);
    if (shaped) status = (int)shell(RANK_SCRIPT, arguments, 2);
    if (put(fd, &status, sizeof status) != AQ_OK || get(fd, &go, 1) != AQ_OK) _exit(1);
    status = (int)rank_work(ranks, &ends, fd, shaped, result);
    (void)put(fd, &status, sizeof status); /* no reader is left if the parent has ended */
    (void)put(fd, result, ranks->result_bytes);
    aq_net_close(ends.net);
    _exit(0);
}

/* The hub: a namespace with a bridge, for as long as the parent lives. */
static void hub_process(const struct aq_bench_ranks *ranks, const struct child *children, int fd)
{
    char words[AQ_BENCH_RANKS_MAX + 1][32], go;
    const char *arguments[AQ_BENCH_RANKS_MAX + 1];
    snprintf(words[0], sizeof words[0], "%.0f", ranks->rate_mbps * 1e6);
    for (uint32_t i = 0; i < ranks->size; i++)
        snprintf(words[i + 1], sizeof words[i + 1], "%ld", (long)children[i].process);
    for (uint32_t i = 0; i <= ranks->size; i++)
        arguments[i] = words[i];
    int status = unshare(CLONE_NEWNET) == 0 ? (int)shell(HUB_SCRIPT, arguments, (int)ranks->size + 1) : AQ_NODEV;
    if (put(fd, &status, sizeof status) == AQ_OK) (void)get(fd, &go, 1);
    _exit(0);
}

/* ---- in the parent ---- */

/* A child with a socket to it; 0 in the child, whose end is *fd. */
static enum aq_status start(struct child *child, int *fd)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        return aq_fail_errno(AREA, "a socket pair for a rank");
    const pid_t parent = getpid(), process = fork();
    if (process < 0) {
        close(ends[0]);
        close(ends[1]);
        return aq_fail_errno(AREA, "a process for a rank");
    }
    if (process == 0) {
        close(ends[0]);
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* whoever kills the bench ends its ranks */
        if (getppid() != parent) _exit(1);
        *fd = ends[1];
    } else {
        close(ends[1]);
        child->fd = ends[0];
    }
    child->process = process;
    return AQ_OK;
}

static void stop(struct child *child)
{
    if (child->fd > 0) close(child->fd);
    if (child->process > 0) {
        (void)kill(child->process, SIGKILL); /* it has sent its result */
        while (waitpid(child->process, NULL, 0) < 0 && errno == EINTR)
            continue;
    }
    *child = (struct child){0};
}

/* The next status of a child; a child that died has none. */
static enum aq_status hear(const struct child *child)
{
    int status;
    const enum aq_status got = get(child->fd, &status, sizeof status);
    return got != AQ_OK ? AQ_ABORTED : (enum aq_status)status;
}

static enum aq_status hear_all(const struct child *children, uint32_t size)
{
    for (uint32_t i = 0; i < size; i++)
        AQ_TRY(hear(&children[i]));
    return AQ_OK;
}

static enum aq_status tell_all(const struct child *children, uint32_t size, const void *bytes, size_t count)
{
    for (uint32_t i = 0; i < size; i++)
        AQ_TRY(put(children[i].fd, bytes, count));
    return AQ_OK;
}

/* From "here I am" to the results. AQ_NODEV: namespaces cannot be had. */
static enum aq_status conduct(const struct aq_bench_ranks *ranks, struct child *children, bool shaped, uint8_t *results)
{
    struct child *hub = &children[ranks->size];
    uint16_t ports[AQ_BENCH_RANKS_MAX] = {0};
    int fd = -1;
    AQ_TRY(hear_all(children, ranks->size));
    if (shaped) {
        AQ_TRY(start(hub, &fd));
        if (hub->process == 0) hub_process(ranks, children, fd);
        AQ_TRY(hear(hub));
    }
    AQ_TRY(tell_all(children, ranks->size, "g", 1));
    AQ_TRY(hear_all(children, ranks->size));
    AQ_TRY(tell_all(children, ranks->size, "g", 1));
    for (uint32_t i = 0; i < ranks->size; i++)
        AQ_TRY(get(children[i].fd, &ports[i], sizeof ports[i]));
    AQ_TRY(tell_all(children, ranks->size, ports, sizeof ports));
    enum aq_status status = AQ_OK;
    for (uint32_t i = 0; i < ranks->size; i++) {
        const enum aq_status heard = hear(&children[i]);
        if (status == AQ_OK) status = heard;
        if (get(children[i].fd, results + i * ranks->result_bytes, ranks->result_bytes) != AQ_OK && status == AQ_OK)
            status = AQ_ABORTED;
    }
    return status;
}

static enum aq_status run_once(const struct aq_bench_ranks *ranks, bool shaped, void *results)
{
    struct child children[AQ_BENCH_RANKS_MAX + 1] = {{0}};
    enum aq_status status = AQ_OK;
    for (uint32_t i = 0; i < ranks->size && status == AQ_OK; i++) {
        int fd = -1;
        status = start(&children[i], &fd);
        if (status == AQ_OK && children[i].process == 0) rank_process(ranks, i, fd, shaped);
    }
    if (status == AQ_OK) status = conduct(ranks, children, shaped, results);
    for (uint32_t i = 0; i <= ranks->size; i++)
        stop(&children[i]);
    return status;
}

enum aq_status aq_bench_ranks_run(const struct aq_bench_ranks *ranks, void *results, bool *shaped)
{
    static bool unshaped; /* once it could not be done it is not tried again */
    AQ_ASSERT(ranks->size >= 2 && ranks->size <= AQ_BENCH_RANKS_MAX && ranks->result_bytes <= RESULT_BYTES_MAX);
    fflush(stdout);
    if (!unshaped && ranks->rate_mbps > 0) {
        const enum aq_status status = run_once(ranks, true, results);
        *shaped = true;
        if (status != AQ_NODEV) return status;
        aq_log(AREA, 1, "no network namespaces here (root, iproute2 and sch_tbf are needed): links pace themselves");
        unshaped = true;
    }
    *shaped = false;
    return run_once(ranks, false, results);
}
