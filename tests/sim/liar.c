/*
 * liar.c -- a peer of a simulated world with good certificates that lies: between a client of split learning and its
 * server.
 *
 *     sim_liar PORT SERVER KEYS BUNDLE NAME client|server EVERY AFTER
 *
 * It listens on PORT as the server (KEYS: a folder with launcher.pem), and joins SERVER as the client NAME (BUNDLE). Of
 * the lines of the client, or of the server, one in EVERY is dropped, repeated, exchanged or changed, by the world's
 * chance: those behind the server's event AFTER ("-": all).
 */
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "aqsgd/base.h"
#include "control.h"
#include "control_socket.h"
#include "net/tls.h"

enum { SIDES = 2, PAIRS = 8, KEPT = 8, WAIT_MS = 1000, QUEUE_BYTES = 8 << 20 };

static const uint64_t second_ns = 1000ULL * 1000 * 1000;

/* A client and its server. */
struct pair {
    struct aq_control *side[SIDES]; /* 0: the client, 1: the server; NULL: none */
    bool lies;
    json_t *kept[KEPT]; /* lines of before */
    uint32_t kept_count;
};

static struct pair pairs[PAIRS];
static struct aq_tls *door_tls, *site_tls;
static const char *server;
static const char *after;
static int liar; /* the side whose lines are changed */
static uint32_t every;

static uint32_t draw(uint32_t below)
{
    uint32_t number = 0;
    if (getrandom(&number, sizeof number, 0) != (ssize_t)sizeof number) return 0;
    return number % below;
}

static void pair_close(struct pair *pair)
{
    for (int i = 0; i < SIDES; i++)
        aq_control_close(pair->side[i]);
    for (uint32_t i = 0; i < pair->kept_count; i++)
        json_decref(pair->kept[i]);
    *pair = (struct pair){0};
}

static enum aq_status meet(int fd, struct aq_tls *tls, bool accepts, struct aq_control **out)
{
    const struct aq_tls_name peer = {.role = accepts ? AQ_TLS_SITE : AQ_TLS_LAUNCHER};
    struct aq_tls_session *session;
    enum aq_status status = aq_control_open(fd, out);
    if (status != AQ_OK) {
        close(fd);
        return status;
    }
    AQ_TRY(aq_tls_session_open(tls, fd, accepts, &peer, "the liar's peer", &session));
    aq_control_secure(*out, session);
    aq_control_limit(*out, AQ_CONTROL_LINE_BYTES_MAX);
    aq_control_queue(*out, QUEUE_BYTES);
    return AQ_OK;
}

static void accept_one(int listener)
{
    struct pair *place = NULL;
    const int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    int other;
    if (fd == -1) return;
    for (int i = 0; i < PAIRS && !place; i++)
        if (!pairs[i].side[0]) place = &pairs[i];
    if (!place || aq_control_connect(server, aq_clock_after(10 * second_ns), &other) != AQ_OK) {
        close(fd);
        return;
    }
    place->lies = strcmp(after, "-") == 0;
    if (meet(fd, door_tls, true, &place->side[0]) != AQ_OK || meet(other, site_tls, false, &place->side[1]) != AQ_OK)
        pair_close(place);
}

static json_t *some_value(const json_t *was)
{
    static const char *const texts[] = {
        "", "../../../../etc/passwd", "\x1b]0;own\x07", "a", "[::1]:1", "ffffffffffffffff", "%s%n"};
    static const json_int_t numbers[] = {0, 1, -1, 2, 7, 1 << 20, 1LL << 32, (1LL << 53) - 1, INT64_MAX};
    if (json_is_string(was)) return json_string(texts[draw(sizeof texts / sizeof *texts)]);
    return json_integer(numbers[draw(sizeof numbers / sizeof *numbers)]);
}

static const char *some_word(int side)
{
    static const char *const words[SIDES][8] = {
        {"join", "ready", "ends", "labels", "leave", "ready", "ends", "leave"},
        {"joined", "together", "turn", "ends", "over", "closed", "end", "refused"}};
    return words[side][draw(8)];
}

/* Another line in its place, a new reference; NULL: none. */
static json_t *changed(const struct pair *pair, int side, json_t *line)
{
    const uint32_t kind = draw(6);
    if (kind == 0) return NULL;
    if (kind == 1 && pair->kept_count > 0) return json_incref(pair->kept[draw(pair->kept_count)]);
    json_t *out = json_copy(line);
    uint32_t at = draw((uint32_t)json_object_size(line) + 1);
    void *key = json_object_iter(out);
    while (at-- > 1 && json_object_iter_next(out, key))
        key = json_object_iter_next(out, key);
    if (!key) return out;
    char name[64];
    snprintf(name, sizeof name, "%s", json_object_iter_key(key));
    if (kind == 2) {
        json_object_set_new(out, json_object_get(line, "op") ? "op" : "event", json_string(some_word(side)));
    } else if (kind == 3) {
        json_object_del(out, name);
    } else {
        json_object_set_new(out, name, some_value(json_object_get(line, name)));
    }
    return out;
}

static void keep(struct pair *pair, json_t *line)
{
    if (pair->kept_count == KEPT) json_decref(pair->kept[0]);
    if (pair->kept_count == KEPT) memmove(pair->kept, pair->kept + 1, --pair->kept_count * sizeof *pair->kept);
    pair->kept[pair->kept_count++] = json_incref(line);
}

/* A line of one side to the other. Takes the line. False: the other side is gone. */
static bool pass(struct pair *pair, int side, json_t *line)
{
    struct aq_control *to = pair->side[1 - side];
    pair->lies |= side == 1 && aq_control_is(line, "event", after);
    if (side != liar || !pair->lies) return aq_control_send(to, line) == AQ_OK;
    keep(pair, line);
    json_t *out = draw(every) == 0 ? changed(pair, side, line) : json_incref(line);
    if (draw(5 * every) == 0 && aq_control_send(to, json_incref(line)) != AQ_OK) {
        json_decref(line);
        json_decref(out);
        return false;
    }
    json_decref(line);
    return !out || aq_control_send(to, out) == AQ_OK;
}

static bool serve(struct pair *pair, int side)
{
    json_t *line;
    enum aq_status status = AQ_OK;
    for (int i = 0; i < 64; i++) {
        (void)aq_control_push(pair->side[side]);
        status = aq_control_receive(pair->side[side], 0, &line);
        if (status != AQ_OK) break;
        if (!pass(pair, side, line)) return false;
    }
    return status == AQ_OK || status == AQ_AGAIN;
}

static void turn(int listener)
{
    struct pollfd fds[1 + SIDES * PAIRS] = {{.fd = listener, .events = POLLIN}};
    nfds_t count = 1;
    for (int i = 0; i < PAIRS; i++)
        for (int side = 0; side < SIDES && pairs[i].side[0]; side++) {
            const struct aq_control *control = pairs[i].side[side];
            const int events = aq_control_pending(control) ? POLLIN | POLLOUT : POLLIN;
            fds[count++] = (struct pollfd){.fd = aq_control_fd(control), .events = (short)events};
        }
    (void)poll(fds, count, WAIT_MS);
    accept_one(listener);
    for (int i = 0; i < PAIRS; i++)
        for (int side = 0; side < SIDES && pairs[i].side[0]; side++)
            if (!serve(&pairs[i], side)) pair_close(&pairs[i]);
}

int main(int count, char **words)
{
    char address[64];
    uint16_t port;
    int listener;
    if (count != 9) return 2;
    (void)signal(SIGPIPE, SIG_IGN);
    snprintf(address, sizeof address, "127.0.0.1:%.16s", words[1]);
    server = words[2];
    liar = strcmp(words[6], "server") == 0;
    every = (uint32_t)strtoul(words[7], NULL, 10);
    after = words[8];
    if (aq_tls_open(words[3], AQ_TLS_LAUNCHER, 0, &door_tls) != AQ_OK ||
        aq_tls_open_site(words[4], words[5], &site_tls) != AQ_OK ||
        aq_control_listen(address, true, &listener, &port) != AQ_OK) {
        fprintf(stderr, "sim_liar: %s\n", aq_error_text());
        return 1;
    }
    for (;;)
        turn(listener);
}
