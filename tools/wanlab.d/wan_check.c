/*
 * wan_check.c -- see wan_check.h. Two ends, asymmetric lines. For each figure a receiver and a sender are started, each
 * at its end; the receiver reports its counts over a pipe.
 *
 * Delay: the age of small datagrams, of which a tenth is younger (both ends have one clock; a receiver that waits for a
 * processor is late, never early, and that is not the lab's). Rate: what arrives of a third more datagrams than fit,
 * and of a TCP stream, whose packets come in runs and are paced one by one; the second half of each counts. Loss: the
 * missing part of 100,000 datagrams, with 5 % set; three standard deviations of that are 4 %.
 */
#include "wan_check.h"

#include <arpa/inet.h>
#include <math.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "commands.h"
#include "wan_lab.h"

enum {
    PORT = 7079,
    SKIPPED = 77,
    BODY_BYTES = 1472,
    SMALL_BYTES = 72,
    UDP_HEADS_BYTES = 28,
    IDLE_MS = 700,
    BUFFER_BYTES = 16 << 20,
    AGES = 200
};
static const double WITHIN = 0.05, RATE_MBPS[2] = {100, 20}, DELAY_MS[2] = {40, 15}, LOSS = 0.05;

struct flow { /* of datagrams, or of bytes */
    uint32_t from;
    bool stream;
    uint32_t count, bytes;
    double every_us; /* 0: as fast as the socket takes them */
};

struct seen {
    uint32_t count;
    uint64_t middle_ns, last_ns; /* when half of what was sent had come, and the last */
    uint64_t half;               /* how many (stream: bytes) came after the middle    */
    double age_ns;               /* the first decile of the first AGES                */
};

static struct sockaddr_in address(uint32_t end)
{
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons(PORT), .sin_addr.s_addr = htonl(0x0a4f0001 + end)};
}

static int open_socket(const struct flow *flow)
{
    const int fd = socket(AF_INET, (flow->stream ? SOCK_STREAM : SOCK_DGRAM) | SOCK_CLOEXEC, 0);
    const int on = 1, bytes = BUFFER_BYTES;
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0) return -1;
    if (flow->stream) return setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4) == 0 ? fd : -1;
    return setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes) == 0 ? fd : -1;
}

static void count_one(const struct flow *flow, struct seen *seen, double *ages, const uint8_t *bytes, uint64_t much,
                      uint64_t *sum)
{
    const uint64_t all = flow->stream ? (uint64_t)flow->count * flow->bytes : flow->count;
    uint64_t sent_ns;
    seen->last_ns = aq_clock_ns();
    seen->count++;
    *sum += much;
    if (seen->middle_ns) seen->half += much;
    if (!seen->middle_ns && *sum >= all / 2) seen->middle_ns = seen->last_ns;
    if (flow->stream || seen->count > AGES) return;
    memcpy(&sent_ns, bytes, sizeof sent_ns);
    ages[seen->count - 1] = (double)(seen->last_ns - sent_ns);
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double first_decile(double *values, size_t count)
{
    qsort(values, count, sizeof values[0], by_size);
    return values[count / 10];
}

static enum aq_status receive(const struct flow *flow, int out)
{
    static uint8_t bytes[1 << 16];
    static double ages[AGES];
    struct sockaddr_in here = address(1 - flow->from);
    struct seen seen = {0};
    uint64_t sum = 0;
    int fd = open_socket(flow);
    if (fd < 0 || bind(fd, (struct sockaddr *)&here, sizeof here) != 0)
        return aq_fail_errno("wanlab", "a socket to measure with");
    if (flow->stream && listen(fd, 1) != 0) return aq_fail_errno("wanlab", "cannot listen");
    if (!aq_write_all(out, "r", 1)) return AQ_IO;
    if (flow->stream) fd = accept(fd, NULL, NULL);
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    while (poll(&wait, 1, IDLE_MS) > 0) {
        const ssize_t count = recv(fd, bytes, sizeof bytes, 0);
        if (count <= 0) break;
        count_one(flow, &seen, ages, bytes, flow->stream ? (uint64_t)count : 1, &sum);
    }
    if (!flow->stream && seen.count > 0) seen.age_ns = first_decile(ages, seen.count < AGES ? seen.count : AGES);
    return aq_write_all(out, &seen, sizeof seen) ? AQ_OK : AQ_IO;
}

static enum aq_status transmit(const struct flow *flow)
{
    uint8_t bytes[BODY_BYTES] = {0};
    const struct sockaddr_in there = address(1 - flow->from);
    const int fd = open_socket(flow);
    if (fd < 0 || connect(fd, (const struct sockaddr *)&there, sizeof there) != 0)
        return aq_fail_errno("wanlab", "end %u does not reach the other", flow->from);
    const uint64_t begin_ns = aq_clock_ns();
    for (uint32_t i = 0; i < flow->count; i++) {
        const uint64_t at_ns = begin_ns + (uint64_t)(i * flow->every_us * 1e3), now_ns = aq_clock_ns();
        if (at_ns > now_ns + 200000) { /* some are sent at once: what is measured evens that out */
            const struct timespec wait = {0, (long)(at_ns - now_ns)};
            (void)nanosleep(&wait, NULL);
        }
        const uint64_t sent_ns = aq_clock_ns();
        memcpy(bytes, &sent_ns, sizeof sent_ns);
        if (send(fd, bytes, flow->bytes, 0) < 0) return aq_fail_errno("wanlab", "cannot send");
    }
    close(fd);
    return AQ_OK;
}

/* A child at that end. */
static pid_t start(const struct flow *flow, uint32_t end, bool sends, int out)
{
    const pid_t process = fork();
    if (process != 0) return process;
    const enum aq_status status =
        aq_wan_enter(end) == AQ_OK ? sends ? transmit(flow) : receive(flow, out) : AQ_NOTFOUND;
    _exit(status == AQ_OK ? 0 : 1);
}

static enum aq_status measure(const struct flow *flow, struct seen *seen)
{
    int ends[2], code;
    char ready;
    if (pipe(ends) != 0) return aq_fail_errno("wanlab", "a pipe");
    const pid_t receiver = start(flow, 1 - flow->from, false, ends[1]);
    close(ends[1]);
    bool good = receiver > 0 && aq_read_all(ends[0], &ready, 1) == 1;
    const pid_t sender = good ? start(flow, flow->from, true, -1) : -1;
    good = good && sender > 0 && aq_read_all(ends[0], seen, sizeof *seen) == (ssize_t)sizeof *seen;
    close(ends[0]);
    while (wait(&code) > 0)
        good = good && WIFEXITED(code) && WEXITSTATUS(code) == 0;
    return good ? AQ_OK : aq_fail(AQ_ABORTED, "wanlab", "what was sent from end %u could not be measured", flow->from);
}

static bool judge(const char *what, uint32_t from, double asked, double measured, const char *unit)
{
    const double ratio = measured / asked;
    const bool good = fabs(ratio - 1) <= WITHIN;
    printf("%-16s %u>%u  asked %7.2f  measured %7.2f %-7s %.3f %s\n", what, from, 1 - from, asked, measured, unit,
           ratio, good ? "ok" : "WRONG");
    return good;
}

static enum aq_status check_line(uint32_t from, bool *good)
{
    const double mbps = RATE_MBPS[from], wire_us = (BODY_BYTES + UDP_HEADS_BYTES) * 8 / mbps;
    const struct flow age = {.from = from, .count = AGES, .bytes = SMALL_BYTES, .every_us = 3000},
                      flood = {.from = from,
                               .count = (uint32_t)(1.5e6 / wire_us),
                               .bytes = BODY_BYTES,
                               .every_us = wire_us / 1.33},
                      stream = {
                          .from = from, .stream = true, .count = (uint32_t)(2.5e6 / wire_us), .bytes = BODY_BYTES};
    struct seen seen;
    AQ_TRY(measure(&age, &seen));
    *good &= judge("delay", from, DELAY_MS[from], seen.age_ns * 1e-6, "ms");
    AQ_TRY(measure(&flood, &seen));
    *good &= judge("rate, datagrams", from, mbps,
                   (double)seen.half * (BODY_BYTES + UDP_HEADS_BYTES) * 8e3 / (double)(seen.last_ns - seen.middle_ns),
                   "Mbit/s");
    AQ_TRY(measure(&stream, &seen));
    *good &= judge("rate, TCP", from, mbps * 1448 / 1500,
                   (double)seen.half * 8e3 / (double)(seen.last_ns - seen.middle_ns), "Mbit/s");
    return AQ_OK;
}

static enum aq_status check_loss(uint32_t from, bool *good)
{
    const struct flow flow = {.from = from, .count = 100000, .bytes = SMALL_BYTES, .every_us = 10};
    struct seen seen;
    AQ_TRY(measure(&flow, &seen));
    *good &= judge("loss", from, 100 * LOSS, 100 * (1 - (double)seen.count / flow.count), "percent");
    return AQ_OK;
}

/* At end 0. */
static int check(void *context)
{
    const struct aq_wan_change lossy = {.from = AQ_WAN_ALL,
                                        .to = AQ_WAN_ALL,
                                        .given = AQ_WAN_RATE | AQ_WAN_LOSS,
                                        .ahead.loss = LOSS,
                                        .back.loss = LOSS};
    bool good = true;
    (void)context;
    for (uint32_t from = 0; from < 2; from++)
        if (check_line(from, &good) != AQ_OK) return AQ_EXIT_FAILED;
    if (aq_wan_tell(&lossy) != AQ_OK) return AQ_EXIT_FAILED;
    for (uint32_t from = 0; from < 2; from++)
        if (check_loss(from, &good) != AQ_OK) return AQ_EXIT_FAILED;
    return good ? AQ_EXIT_DONE : AQ_EXIT_FAILED;
}

int aq_wan_check(void)
{
    static struct aq_wan_lab lab = {.ends = 2, .mtu = 1500, .seed = 1, .stats = true, .change_count = 1, .run = check};
    const char *cannot = aq_wan_lab_cannot();
    int code = AQ_EXIT_FAILED;
    if (cannot) {
        fprintf(stderr, "wanlab: %s\n", cannot);
        return SKIPPED;
    }
    /* A queue that holds a window: the stream never waits. */
    lab.changes[0] =
        (struct aq_wan_change){.from = AQ_WAN_ALL,
                               .to = AQ_WAN_ALL,
                               .given = AQ_WAN_RATE | AQ_WAN_DELAY | AQ_WAN_QUEUE,
                               .ahead = {.rate_mbps = RATE_MBPS[0], .delay_ms = DELAY_MS[0], .queue_ms = 4000},
                               .back = {.rate_mbps = RATE_MBPS[1], .delay_ms = DELAY_MS[1], .queue_ms = 4000}};
    return aq_wan_lab_run(&lab, &code) == AQ_OK ? code : AQ_EXIT_FAILED;
}
