/*
 * hostile.c -- a peer of a simulated world that belongs to nobody: it knocks at doors and lies, as long as it lives.
 *
 *     sim_hostile MS HOST:PORT...      one visit every MS at most, its kind and its target by the world's chance
 *
 * It says what it can know: the protocols' forms, and no secret. What it hears it throws away.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "frame.h"
#include "net/link.h"

enum { KEPT_MAX = 24, LINE_BYTES = 1 << 16 };

static int kept[KEPT_MAX]; /* connections that stay open and say nothing */

static uint32_t draw(uint32_t below)
{
    uint32_t number = 0;
    if (getrandom(&number, sizeof number, 0) != (ssize_t)sizeof number) return 0;
    return number % below;
}

static int dial(const char *target)
{
    struct sockaddr_in to = {.sin_family = AF_INET};
    char host[64];
    unsigned port;
    if (sscanf(target, "%63[^:]:%u", host, &port) != 2 || inet_pton(AF_INET, host, &to.sin_addr) != 1) return -1;
    to.sin_port = htons((uint16_t)port);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd == -1 || connect(fd, (struct sockaddr *)&to, sizeof to) == 0) return fd;
    close(fd);
    return -1;
}

static void say(int fd, const void *bytes, size_t count)
{
    const ssize_t sent = send(fd, bytes, count, MSG_NOSIGNAL | MSG_DONTWAIT);
    (void)sent; /* who hangs up has understood */
}

/* HELLO as an honest worker would, of a job that it does not know; now and then something is changed in it. */
static void say_hello(int fd)
{
    uint8_t out[AQ_FRAME_HEADER_BYTES + AQ_FRAME_HELLO_BYTES];
    struct aq_hello hello = {.job_digest = draw(UINT32_MAX),
                             .plan_hash = draw(UINT32_MAX),
                             .rank = draw(4),
                             .peer_rank = draw(4),
                             .edge = draw(4),
                             .body_bytes_max = draw(1 << 20),
                             .receive_slots = (uint16_t)draw(64)};
    struct aq_header header = {.kind = AQ_FRAME_HELLO, .body_bytes = AQ_FRAME_HELLO_BYTES};
    header.from = hello.rank;
    header.edge = hello.edge;
    header.plan_hash = hello.plan_hash;
    aq_hello_encode(&hello, out + AQ_FRAME_HEADER_BYTES);
    header.body_digest = aq_digest(out + AQ_FRAME_HEADER_BYTES, AQ_FRAME_HELLO_BYTES);
    aq_header_encode(&header, out);
    if (draw(3) == 0) out[draw(sizeof out)] ^= (uint8_t)(1u << draw(8));
    say(fd, out, draw(4) == 0 ? draw(sizeof out) : sizeof out);
}

/* A line of the control plane: whole, half, long, or no JSON. */
static void say_line(int fd)
{
    static const char *const lines[] = {"{\"op\":\"open\",\"job\":\"mine\",\"protocol\":1,\"version\":\"0\"}\n",
                                        "{\"op\":\"status\"}\n",
                                        "{\"op\":\"stop\"}\n",
                                        "{\"op\":\"hello\",\"proof\":\"0000000000000000000000000000000000000000\"}\n",
                                        "{\"op\":\"start\",\"rank\":0,\"stages\":1,\"manifest\":\"/etc/passwd\"}\n",
                                        "{\"op\":\"hello\"",
                                        "[[[[[[[[[[\n",
                                        "\n",
                                        "{\"event\":\"exited\",\"rank\":0}\n"};
    static char line[LINE_BYTES];
    const char *text = lines[draw(sizeof lines / sizeof *lines)];
    if (draw(6) == 0) {
        memset(line, 'x', sizeof line);
        say(fd, line, sizeof line);
    }
    say(fd, text, strlen(text));
}

static void say_noise(int fd)
{
    uint8_t bytes[512];
    const size_t count = 1 + draw(sizeof bytes);
    if (getrandom(bytes, count, 0) == (ssize_t)count) say(fd, bytes, count);
}

static void visit(const char *target)
{
    const uint32_t kind = draw(6), slot = draw(KEPT_MAX);
    const int fd = dial(target);
    if (fd == -1) return;
    if (kind == 0 || kind == 1) say_line(fd);
    if (kind == 2 || kind == 3) say_hello(fd);
    if (kind == 4) say_noise(fd);
    if (draw(2) == 0) { /* and leaves */
        close(fd);
        return;
    }
    if (kept[slot] > 0) close(kept[slot]);
    kept[slot] = fd;
}

int main(int count, char **arguments)
{
    if (count < 3) return 2;
    const uint32_t ms = (uint32_t)strtoul(arguments[1], NULL, 10);
    for (;;) {
        const uint32_t pause = draw(ms) + 1;
        const struct timespec moment = {.tv_sec = pause / 1000, .tv_nsec = (long)(pause % 1000) * 1000000};
        (void)nanosleep(&moment, NULL);
        for (uint32_t flood = draw(20) == 0 ? 30 : 1; flood > 0; flood--)
            visit(arguments[2 + draw((uint32_t)count - 2)]);
    }
}
