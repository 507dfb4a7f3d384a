/*
 * fuzz_page.c -- any bytes as what a browser, or somebody else, sends to the status page.
 *
 * The first byte chooses a page: one that asks for a token, or one of this machine's own that asks for none. The rest
 * goes over a connection, all at once. Whatever comes: an answer of a kind that the page has, or none; no document
 * without the token, or for a foreign name; the page serves the next one.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fuzz.h"
#include "page.h"

/* An answer comes in less than a millisecond. A request that is not whole has none, and is not waited for. */
enum { BYTES_MAX = 4096, ANSWER_BYTES = 1 << 16, WAIT_MS = 20, HEALTH_MS = 20000, HEALTH_EVERY = 64 };

static const char token[] = "a-token-of-a-good-length-7f";
static struct aq_page *pages[2];
static uint16_t ports[2];

static void open_pages(void)
{
    static struct aq_board *board;
    struct aq_page_config config = {.listen = "127.0.0.1:0"};
    if (pages[0]) return;
    fuzz_quiet();
    fuzz_write("token", token, sizeof token - 1);
    AQ_ASSERT(aq_board_open(&board) == AQ_OK);
    for (int i = 0; i < 2; i++) {
        config.token_file = i ? NULL : fuzz_path("token");
        if (aq_page_open(&config, board, &pages[i]) != AQ_OK) {
            fprintf(stderr, "fuzz: no page: %s\n", aq_error_text());
            abort();
        }
        ports[i] = (uint16_t)strtoul(strrchr(aq_page_url(pages[i]), ':') + 1, NULL, 10);
    }
}

static int connect_to(uint16_t port)
{
    const struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const struct linger at_once = {.l_onoff = 1}; /* no connection stays behind */
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    AQ_ASSERT(fd != -1 && connect(fd, (const struct sockaddr *)&address, sizeof address) == 0);
    (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    return fd;
}

/* What comes, until the end, or until nothing comes for so long. */
static size_t answer_of(int fd, int wait_ms, char *out, size_t room)
{
    size_t have = 0;
    while (have + 1 < room) {
        struct pollfd one = {.fd = fd, .events = POLLIN};
        if (poll(&one, 1, wait_ms) != 1) break;
        const ssize_t got = recv(fd, out + have, room - have - 1, 0);
        if (got <= 0) break;
        have += (size_t)got;
    }
    out[have] = 0;
    return have;
}

/* Whatever came before: a whole request has its answer. */
static void ask_health(void)
{
    static const char request[] = "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    static char answer[ANSWER_BYTES];
    const int fd = connect_to(ports[1]);
    AQ_ASSERT(send(fd, request, sizeof request - 1, MSG_NOSIGNAL) == (ssize_t)sizeof request - 1);
    AQ_ASSERT(answer_of(fd, HEALTH_MS, answer, sizeof answer) > 0 && strncmp(answer, "HTTP/1.1 200", 12) == 0);
    close(fd);
}

static bool has(const uint8_t *data, size_t size, const char *word)
{
    return memmem(data, size, word, strlen(word)) != NULL;
}

static bool has_name(const uint8_t *data, size_t size, const char *word)
{
    for (size_t i = 0; i + strlen(word) <= size; i++)
        if (strncasecmp((const char *)data + i, word, strlen(word)) == 0) return true;
    return false;
}

/* No answer is a document that the asker may not have. */
static void check(const char *answer, size_t count, int which, const uint8_t *data, size_t size)
{
    int status = 0;
    if (count == 0) return;
    AQ_ASSERT(sscanf(answer, "HTTP/1.%*1[01] %3d ", &status) == 1 && status >= 200 && status < 600);
    const bool document = status == 200 || status == 303;
    if (which == 0) AQ_ASSERT(!document || has(data, size, token));
    const bool own = has_name(data, size, "localhost") || has(data, size, "127.") || has(data, size, "::") ||
                     has(data, size, "["); /* spellings of ::1 are many */
    if (which == 1) AQ_ASSERT(!document || own || has(data, size, "HTTP/1.0"));
    AQ_ASSERT(status == 100 || !document || strstr(answer, "no-store"));
    fuzz_told(document);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char answer[ANSWER_BYTES];
    struct fuzz_piece rest = {data, size};
    open_pages();
    if (size > BYTES_MAX) return 0;
    const int which = fuzz_byte(&rest) & 1;
    static unsigned runs;
    static const char end[] = "\r\n\r\n"; /* most requests are whole then */
    if (runs++ % HEALTH_EVERY == 0) ask_health();
    const int fd = connect_to(ports[which]);
    if (rest.count > 0) (void)!send(fd, rest.bytes, rest.count, MSG_NOSIGNAL);
    (void)!send(fd, end, sizeof end - 1, MSG_NOSIGNAL);
    (void)shutdown(fd, SHUT_WR);
    const size_t count = answer_of(fd, WAIT_MS, answer, sizeof answer);
    check(answer, count, which, data, size);
    if (count == 0) fuzz_told(false);
    close(fd);
    return 0;
}
