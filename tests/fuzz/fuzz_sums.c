/*
 * fuzz_sums.c -- the socket of sums of split.mode: global (split_sums.c), with stages that say anything.
 *
 * An input is acts, a byte each with what they need behind it: stages connect, say HELLO and PART with any field, send
 * any bytes, close, and read what comes; clients' turns begin, end, and are missed. After each act the server serves.
 * Whatever comes: a stage hears nothing but sums of steps that are done, each of the same bytes for everybody, and no
 * step is done twice.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "fuzz.h"
#include "split_adder.h"
#include "split_private.h"
#include "sum_line.h"

enum { SITES = 3, PEERS = 6, VALUES = 5, ACTS_MAX = 400, BATCH = 4, STEPS = 3, ROUND = 2, SUM_BYTES = 1 << 12 };

void __wrap_turn_miss(struct server *server, struct site *site, const char *why);
void __wrap_server_fails(struct server *server, const char *why);
uint64_t __wrap_state_mark(const struct server *server, const struct site *site);
void __wrap_aq_progress_say(struct aq_progress *progress, const char *format, ...);
void __real_aq_split_adder_add(struct aq_split_adder *adder, struct aq_split_sum *sum, uint64_t weight);
void __wrap_aq_split_adder_add(struct aq_split_adder *adder, struct aq_split_sum *sum, uint64_t weight);
void __real_aq_split_adder_done(struct aq_split_adder *adder, struct aq_split_sum *sum);
void __wrap_aq_split_adder_done(struct aq_split_adder *adder, struct aq_split_sum *sum);

/* A turn that is over in one way or another. */
static void over(struct server *server, struct site *site)
{
    site->round = server->round;
    site->pid = 0;
    site->until = 0;
}

void __wrap_turn_miss(struct server *server, struct site *site, const char *why)
{
    AQ_ASSERT(why[0]);
    over(server, site);
}

void __wrap_server_fails(struct server *server, const char *why)
{
    (void)why;
    server->over = true;
}

uint64_t __wrap_state_mark(const struct server *server, const struct site *site)
{
    (void)server;
    return site->mark;
}

void __wrap_aq_progress_say(struct aq_progress *progress, const char *format, ...)
{
    (void)progress;
    AQ_ASSERT(format[0]);
}

/* The thread that adds has done what it was asked when the server goes on: no result depends on its speed. */
static void wait_for(struct aq_split_adder *adder)
{
    struct pollfd done = {.fd = aq_split_adder_fd(adder), .events = POLLIN};
    while (poll(&done, 1, -1) != 1)
        AQ_ASSERT(errno == EINTR);
}

void __wrap_aq_split_adder_add(struct aq_split_adder *adder, struct aq_split_sum *sum, uint64_t weight)
{
    __real_aq_split_adder_add(adder, sum, weight);
    wait_for(adder);
}

void __wrap_aq_split_adder_done(struct aq_split_adder *adder, struct aq_split_sum *sum)
{
    __real_aq_split_adder_done(adder, sum);
    wait_for(adder);
}

struct stage {
    int fd; /* -1: none */
    uint8_t head[sizeof(struct aq_sum_head) + VALUES * sizeof(float)];
    size_t have;
};

static struct server *server;
static struct aq_job job;
static struct aq_plan plan;
static struct aq_plan_stage stages[3];
static struct stage peers[PEERS];
static uint8_t answers[STEPS][SUM_BYTES]; /* of each step that somebody has heard */
static size_t answer_bytes[STEPS];
static bool heard;

static void begin(void)
{
    static struct server memory;
    static struct aq_split_server_config config;
    static char folder[512];
    if (!folder[0]) snprintf(folder, sizeof folder, "%s", fuzz_folder());
    job = (struct aq_job){.output.path = folder};
    job.split.mode = AQ_SPLIT_GLOBAL;
    job.split.rounds = ROUND;
    job.split.epochs = 1;
    job.split.wait_ns = AQ_NEVER / 4;
    job.train.batch = BATCH;
    for (int i = 0; i < 3; i++)
        stages[i].size.parameters = i == 1 ? VALUES - 2 : 1;
    plan = (struct aq_plan){.stage_count = 3, .stages = stages};
    memory = (struct server){.config = &config,
                             .job = &job,
                             .listener = -1,
                             .lock = -1,
                             .round = ROUND,
                             .drawn = ROUND,
                             .site_count = SITES,
                             .all_samples = BATCH * STEPS};
    for (int i = 0; i < SITES; i++) {
        struct site *site = &memory.sites[i];
        *site = (struct site){
            .name = {(char)('a' + i)}, .round = ROUND - 1, .pid = 1 << 30, .until = STEPS, .samples = BATCH};
        site->job.plan = &plan;
    }
    for (int i = 0; i < PEERS; i++)
        peers[i] = (struct stage){.fd = -1};
    memset(answer_bytes, 0, sizeof answer_bytes);
    server = &memory;
    heard = false;
    AQ_ASSERT(sums_open(server) == AQ_OK);
}

static void leave(void)
{
    for (int i = 0; i < PEERS; i++)
        if (peers[i].fd != -1) close(peers[i].fd);
    sums_forget(server);
    sums_close(server);
}

static void connect_to(struct stage *stage)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%.100s", fuzz_path("sums.sock"));
    if (stage->fd != -1) close(stage->fd);
    *stage = (struct stage){.fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
    AQ_ASSERT(stage->fd != -1 && connect(stage->fd, (struct sockaddr *)&address, sizeof address) == 0);
}

static void say(const struct stage *stage, const void *bytes, size_t count)
{
    if (stage->fd != -1 && count > 0) (void)!send(stage->fd, bytes, count, MSG_NOSIGNAL);
}

/* The first step of the round, as all count them. */
static uint64_t first(void)
{
    return (ROUND - 1) * round_steps(server);
}

static void say_hello(const struct stage *stage, struct fuzz_piece *rest)
{
    const uint8_t who = fuzz_byte(rest), odd = fuzz_byte(rest);
    struct aq_sum_head head = {
        .magic = AQ_SUM_MAGIC, .what = odd == 1 ? AQ_SUM_PART : AQ_SUM_HELLO, .step = first(), .values = VALUES};
    struct aq_sum_hello hello = {.name = {(char)('a' + who % (SITES + 1))}};
    if (odd == 2) head.values = odd;
    if (odd == 3) memset(hello.name, 'a', sizeof hello.name);
    say(stage, &head, sizeof head);
    say(stage, &hello, sizeof hello);
}

static void say_part(const struct stage *stage, struct fuzz_piece *rest)
{
    float values[VALUES];
    const uint8_t step = fuzz_byte(rest), weight = fuzz_byte(rest), odd = fuzz_byte(rest);
    struct aq_sum_head head = {.magic = AQ_SUM_MAGIC,
                               .what = AQ_SUM_PART,
                               .flags = weight == 0 && (odd & 1) ? AQ_SUM_NOT_FINITE : 0,
                               .step = first() + step % (STEPS + 1),
                               .weight = weight,
                               .values = weight ? VALUES : 0};
    if (odd == 2) head.values++;
    if (odd == 4) head.step = step % 2 ? 0 : UINT64_MAX;
    if (odd == 6) head.weight = UINT64_MAX;
    if (odd == 8) head.flags = UINT32_MAX;
    for (int i = 0; i < VALUES; i++)
        values[i] = (float)(fuzz_byte(rest) - 128);
    say(stage, &head, sizeof head);
    if (weight) say(stage, values, sizeof values - (odd == 10 ? 3 : 0));
}

/* A whole answer: a sum of a step of this round, the same whoever hears it. */
static void check_answer(const struct stage *stage)
{
    struct aq_sum_head head;
    memcpy(&head, stage->head, sizeof head);
    const uint64_t at = head.step - first();
    AQ_ASSERT(head.magic == AQ_SUM_MAGIC && head.what == AQ_SUM_SUM && at < STEPS);
    AQ_ASSERT((head.weight == 0) == (head.flags == AQ_SUM_VOID) && (head.weight > 0 || head.values == 0));
    if (answer_bytes[at] == 0) memcpy(answers[at], stage->head, stage->have);
    if (answer_bytes[at] == 0) answer_bytes[at] = stage->have;
    AQ_ASSERT(answer_bytes[at] == stage->have && memcmp(answers[at], stage->head, stage->have) == 0);
    heard = true;
}

static void read_answers(struct stage *stage)
{
    while (stage->fd != -1) {
        size_t want = sizeof(struct aq_sum_head);
        struct aq_sum_head head;
        if (stage->have >= want) {
            memcpy(&head, stage->head, sizeof head);
            AQ_ASSERT(head.values == 0 || head.values == VALUES);
            want += head.values * sizeof(float);
        }
        if (stage->have == want && want >= sizeof head) {
            check_answer(stage);
            stage->have = 0;
            continue;
        }
        const ssize_t got = recv(stage->fd, stage->head + stage->have, want - stage->have, 0);
        if (got <= 0) {
            if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
                close(stage->fd);
                *stage = (struct stage){.fd = -1};
            }
            return;
        }
        stage->have += (size_t)got;
        if (stage->have == sizeof head) { /* of a void step nothing follows */
            memcpy(&head, stage->head, sizeof head);
            if (head.values == 0) check_answer(stage);
            if (head.values == 0) stage->have = 0;
        }
    }
}

static void act(struct fuzz_piece *rest)
{
    const uint8_t what = fuzz_byte(rest);
    struct stage *stage = &peers[(what >> 4) % PEERS];
    struct site *site = &server->sites[(what >> 4) % SITES];
    switch (what & 15) {
    case 0:
        connect_to(stage);
        break;
    case 1:
        say_hello(stage, rest);
        break;
    case 2:
    case 3:
        say_part(stage, rest);
        break;
    case 4: {
        const size_t count = fuzz_byte(rest);
        const size_t take = count < rest->count ? count : rest->count;
        say(stage, rest->bytes, take);
        rest->bytes += take;
        rest->count -= take;
        break;
    }
    case 5:
        if (stage->fd != -1) close(stage->fd);
        *stage = (struct stage){.fd = -1};
        break;
    case 6:
        read_answers(stage);
        break;
    case 7:
        over(server, site);
        break;
    case 8:
        site->pid = site->round < server->round ? 1 << 30 : 0;
        break; /* its launcher was started again */
    case 9:
        site->mark = fuzz_byte(rest) % (STEPS + 1);
        break;
    default:
        connect_to(stage), say_hello(stage, rest);
        break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_piece rest = {data, size};
    struct pollfd fds[SPLIT_SUMS_POLLS];
    fuzz_quiet();
    (void)signal(SIGPIPE, SIG_IGN); /* as every program of this project */
    begin();
    for (int i = 0; i < ACTS_MAX && rest.count > 0 && !server->over; i++) {
        act(&rest);
        sums_serve(server);
        AQ_ASSERT(sums_polls(server, fds) <= SPLIT_SUMS_POLLS);
    }
    for (int i = 0; i < 2 * PEERS && !server->over; i++) /* what has come is added, and answered */
        sums_serve(server);
    for (int i = 0; i < PEERS; i++)
        read_answers(&peers[i]);
    AQ_ASSERT(!server->over);
    fuzz_told(heard);
    leave();
    return 0;
}
