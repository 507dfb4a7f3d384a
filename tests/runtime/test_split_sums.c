/*
 * test_split_sums.c -- split.mode: global at the split-server: whose parts make a sum, in which order, which sums are
 * kept for whom, and who is waited for no more. Stages are sockets of this test, and launchers children that sleep. The
 * time is this test's, too: it passes where somebody waits.
 */
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "remove_tree.h"
#include "split_adder.h"
#include "split_private.h"
#include "sum_line.h"
#include "virtual_clock.h"

enum { CLIENTS = 3, EACH = 20, EPOCHS = 2, STEPS = EPOCHS * 6, ROUNDS = 3 };
#define MS UINT64_C(1000000)

static const char manifest[] =
    "model: {blocks: 4, heads: 2, channels: 6, context: 4, vocabulary: 256, tied: false}\n"
    "data: {train: nowhere.txt}\n"
    "train: {T: 4, batch: 10, micro_batch: 5, epochs: 6}\n"
    "pipeline: {stages: [{layers: 0-1, dials: true}, {layers: 2-3}, {layers: 4-5, dials: true}]}\n"
    "edges: {forward: {codec: directq, bits: 8}, backward: {codec: directq, bits: 8}}\n"
    "split: {clients: 3, client: mia, mode: global, rounds: 3, epochs: 2}\n"
    "security: {keys: /nowhere}\n"
    "facts: {vocabulary: 256, train_samples: 20, train_digest: 1, heldout_samples: 0, all_samples: 60, first_sample: "
    "0}\n";
/* In the order in which they joined, which is not that of names. */
static const char *const names[CLIENTS] = {"zoe", "ann", "mia"};
enum { ZOE, ANN, MIA };

static uint64_t test_ns = 1000000 * MS;
static char folder[64];
static struct server *server;
static struct aq_progress progress;
static struct aq_split_server_config config = {.progress = &progress};
static uint64_t count;
static float *values;

/* ---- the thread that adds: it is waited for when it is asked, unless a test holds it ---- */

static int gate_fd = -1; /* the thread waits for it before it adds; -1: it does not */
static long adds_tid;    /* who has added                                           */

void __real_aq_split_adder_add(struct aq_split_adder *adder, struct aq_split_sum *sum, uint64_t weight);
void __real_aq_split_adder_done(struct aq_split_adder *adder, struct aq_split_sum *sum);
void __real_aq_split_sum_add(struct aq_split_sum *sum, uint64_t weight);
void __wrap_aq_split_adder_add(struct aq_split_adder *adder, struct aq_split_sum *sum, uint64_t weight);
void __wrap_aq_split_adder_done(struct aq_split_adder *adder, struct aq_split_sum *sum);
void __wrap_aq_split_sum_add(struct aq_split_sum *sum, uint64_t weight);

static void await(const struct aq_split_adder *adder)
{
    struct pollfd fd = {.fd = aq_split_adder_fd(adder), .events = POLLIN};
    if (gate_fd == -1) assert_int_equal(poll(&fd, 1, 60000), 1);
}

void __wrap_aq_split_adder_add(struct aq_split_adder *adder, struct aq_split_sum *sum, uint64_t weight)
{
    __real_aq_split_adder_add(adder, sum, weight);
    await(adder);
}

void __wrap_aq_split_adder_done(struct aq_split_adder *adder, struct aq_split_sum *sum)
{
    __real_aq_split_adder_done(adder, sum);
    await(adder);
}

void __wrap_aq_split_sum_add(struct aq_split_sum *sum, uint64_t weight)
{
    struct pollfd gate = {.fd = gate_fd, .events = POLLIN};
    adds_tid = syscall(SYS_gettid);
    if (gate.fd != -1) (void)poll(&gate, 1, 60000);
    __real_aq_split_sum_add(sum, weight);
}

/* ---- the server ---- */

static pid_t sleeper(void)
{
    const pid_t pid = fork();
    if (pid == 0) {
        for (;;)
            pause();
    }
    return pid;
}

static void serve_begin(void)
{
    void *memory;
    assert_int_equal(aq_alloc(sizeof *server, &memory), AQ_OK);
    server = memory;
    server->config = &config;
    server->listener = server->lock = -1;
    assert_int_equal(aq_job_parse(manifest, strlen(manifest), "test.yaml", folder, NULL, 0, &server->job), AQ_OK);
    server->job->output.path = folder;
    server->job->split.wait_ns = 60000 * MS;
    server->round = server->drawn = 1;
    server->all_samples = CLIENTS * EACH;
    server->round_ns = aq_clock_ns();
    for (uint32_t i = 0; i < CLIENTS; i++) {
        struct site *site = state_site(server, names[i]);
        site->samples = EACH;
        site->until = STEPS;
        site->pid = sleeper();
    }
    assert_int_equal(aq_plan_open(server->job, &server->sites[ZOE].job.plan), AQ_OK);
    count = 0;
    for (uint32_t s = 0; s < 3; s++)
        count += server->sites[ZOE].job.plan->stages[s].size.parameters;
    assert_int_equal(sums_open(server), AQ_OK);
    sums_serve(server);
    assert_false(server->over);
}

static void serve_end(void)
{
    sums_close(server);
    for (uint32_t i = 0; i < CLIENTS; i++) {
        turn_halt(&server->sites[i]);
        aq_control_close(server->sites[i].control);
    }
    aq_plan_close(server->sites[ZOE].job.plan);
    server->job->output.path = NULL;
    aq_job_close(server->job);
    aq_free(server);
}

static int begin(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/aqpipe-split-sums-XXXXXX");
    if (!mkdtemp(folder)) return -1;
    serve_begin();
    values = malloc(count * sizeof *values);
    return values ? 0 : -1;
}

static int end(void **state)
{
    (void)state;
    serve_end();
    free(values);
    remove_tree(folder);
    return 0;
}

static uint64_t time_of(void *unused)
{
    (void)unused;
    return test_ns;
}

static void serve(uint64_t for_ms)
{
    for (uint64_t ms = 0; ms < for_ms; ms++) {
        test_ns += MS;
        sums_serve(server);
        assert_false(server->over);
    }
}

/* ---- stages ---- */

static int dial(void)
{
    char path[AQ_RUN_PATH_BYTES];
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    assert_int_equal(sums_path(server, path), AQ_OK);
    assert_true(strlen(path) < sizeof address.sun_path);
    memcpy(address.sun_path, path, strlen(path) + 1);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

/* All of it, while the server takes it; false: it has ended the connection. */
static bool put(int fd, const void *bytes, size_t size)
{
    for (size_t done = 0; done < size;) {
        const ssize_t gone = send(fd, (const uint8_t *)bytes + done, size - done, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (gone > 0) done += (size_t)gone;
        if (gone < 0 && errno != EAGAIN) return false;
        sums_serve(server);
    }
    return true;
}

static bool get(int fd, void *bytes, size_t size)
{
    const uint64_t until = aq_clock_after(5000 * MS);
    for (size_t done = 0; done < size && aq_clock_ns() < until; test_ns += MS) {
        const ssize_t got = recv(fd, (uint8_t *)bytes + done, size - done, MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno != EAGAIN)) return false;
        if (got > 0) done += (size_t)got;
        if (done == size) return true;
        sums_serve(server);
    }
    return false;
}

static int hello(const char *name)
{
    const struct aq_sum_head head = {.magic = AQ_SUM_MAGIC, .what = AQ_SUM_HELLO, .values = count};
    struct aq_sum_hello who = {0};
    const int fd = dial();
    snprintf(who.name, sizeof who.name, "%s", name);
    assert_true(put(fd, &head, sizeof head) && put(fd, &who, sizeof who));
    return fd;
}

/* A part whose values are all alike; `floats` of them are said. */
static bool some(int fd, uint64_t step, uint64_t weight, float value, uint64_t floats)
{
    const struct aq_sum_head head = {
        .magic = AQ_SUM_MAGIC, .what = AQ_SUM_PART, .step = step, .weight = weight, .values = weight ? count : 0};
    for (uint64_t i = 0; i < count; i++)
        values[i] = value;
    return put(fd, &head, sizeof head) && put(fd, values, floats * sizeof *values);
}

static void part(int fd, uint64_t step, uint64_t weight, float value)
{
    assert_true(some(fd, step, weight, value, weight ? count : 0));
}

static void sum(int fd, uint64_t step, uint64_t weight, float value)
{
    struct aq_sum_head head;
    assert_true(get(fd, &head, sizeof head) && get(fd, values, count * sizeof *values));
    assert_true(head.magic == AQ_SUM_MAGIC && head.what == AQ_SUM_SUM && head.flags == 0 && head.values == count);
    assert_int_equal(head.step, step);
    assert_int_equal(head.weight, weight);
    assert_true(values[0] == value && values[count - 1] == value);
}

static bool ended(int fd)
{
    uint8_t byte;
    const bool has = get(fd, &byte, 1);
    close(fd);
    return !has;
}

static void all_hello(int fds[CLIENTS])
{
    for (int i = 0; i < CLIENTS; i++)
        fds[i] = hello(names[i]);
}

static void all_close(const int fds[CLIENTS])
{
    for (int i = 0; i < CLIENTS; i++)
        close(fds[i]);
}

static void all_step(const int fds[CLIENTS], uint64_t step)
{
    for (int i = 0; i < CLIENTS; i++)
        part(fds[i], step, 1, (float)step);
    for (int i = 0; i < CLIENTS; i++)
        sum(fds[i], step, CLIENTS, (float)step);
}

static bool is_there(uint64_t step)
{
    char path[128];
    snprintf(path, sizeof path, "%s/sums/sum-%llu", folder, (unsigned long long)step);
    return access(path, F_OK) == 0;
}

static void mark(int i, uint64_t step)
{
    char path[AQ_RUN_PATH_BYTES];
    const struct aq_run_mark mark = {.step = step, .kept_count = 1, .kept = {step}};
    assert_int_equal(state_path(server, path, "clients/%s/checkpoint", names[i]), AQ_OK);
    assert_int_equal(aq_run_make_folder(path), AQ_OK);
    assert_int_equal(aq_run_mark_write(path, &mark), AQ_OK);
}

/* ---- the tests ---- */

/* Of these values no other order has this sum: 1e30 and its negative leave nothing of a one that came before. */
static void test_parts_are_summed_in_order_of_names(void **state)
{
    (void)state;
    int fds[CLIENTS];
    all_hello(fds);
    serve(5);
    const struct aq_sum_head head = {.magic = AQ_SUM_MAGIC, .what = AQ_SUM_PART, .weight = 1, .values = count};
    assert_true(put(fds[ZOE], &head, sizeof head)); /* who comes first is not who counts first */
    serve(5);
    part(fds[MIA], 0, 1, -1e30f);
    part(fds[ANN], 0, 1, 1e30f);
    for (uint64_t i = 0; i < count; i++)
        values[i] = 3;
    assert_true(put(fds[ZOE], values, count * sizeof *values));
    for (int i = 0; i < CLIENTS; i++)
        sum(fds[i], 0, 3, 1);
    all_close(fds);
}

static void test_a_part_that_is_said_again_counts_once(void **state)
{
    (void)state;
    int fds[CLIENTS];
    all_hello(fds);
    part(fds[ANN], 0, 2, 8);
    assert_true(some(fds[MIA], 0, 2, 1000, count / 2)); /* and goes in the middle of it */
    const int again = hello("ann"), other = hello("mia");
    assert_true(ended(fds[ANN]) && ended(fds[MIA])); /* each has one connection */
    fds[ANN] = again;
    fds[MIA] = other;
    part(fds[ANN], 0, 2, 8);
    part(fds[MIA], 0, 4, 2);
    part(fds[ZOE], 0, 0, 0); /* none of it is its own */
    for (int i = 0; i < CLIENTS; i++)
        sum(fds[i], 0, 6, 4);
    all_step(fds, 1); /* nor in the next step */
    all_close(fds);
}

static void test_sums_are_kept_for_whoever_is_furthest_behind(void **state)
{
    (void)state;
    int fds[CLIENTS];
    all_hello(fds);
    for (uint64_t step = 0; step < 4; step++) {
        if (step == 2) mark(ANN, 2);
        if (step == 3) mark(MIA, 3);
        all_step(fds, step);
    }
    assert_true(is_there(0) && is_there(1) && is_there(3)); /* zoe has no checkpoint yet */
    close(fds[ZOE]);
    fds[ZOE] = hello("zoe");
    for (uint64_t step = 0; step < 4; step++) {
        part(fds[ZOE], step, 1, 77);
        sum(fds[ZOE], step, CLIENTS, (float)step);
    }
    mark(ZOE, 1);
    all_step(fds, 4);
    assert_true(!is_there(0) && is_there(1));
    all_close(fds);

    struct server *before = server; /* one that was killed, and comes again */
    sums_close(before);
    assert_int_equal(sums_open(server), AQ_OK);
    serve(5);
    all_hello(fds);
    part(fds[ZOE], 1, 1, 77);
    sum(fds[ZOE], 1, CLIENTS, 1);
    all_step(fds, 5);
    all_close(fds);
}

static void test_nothing_is_left_when_a_round_is_over(void **state)
{
    (void)state;
    int fds[CLIENTS];
    char path[128];
    all_hello(fds);
    all_step(fds, 0);
    all_step(fds, 1);
    all_close(fds);
    sums_close(server); /* killed behind the round's last turn: nobody is there to say how large sums are */
    server->round = 0;
    assert_int_equal(sums_open(server), AQ_OK);
    serve(5);
    assert_true(is_there(0) && is_there(1));
    snprintf(path, sizeof path, "%s/sums/mine", folder);
    assert_int_equal(mkdir(path, 0700), 0);
    sums_forget(server);
    assert_true(!is_there(0) && !is_there(1));
    assert_int_equal(access(path, F_OK), 0); /* what is not ours stays */
}

static void test_what_is_no_part_ends_its_connection_alone(void **state)
{
    (void)state;
    const struct {
        uint64_t magic, step, weight, values;
        uint32_t what;
    } odds[] = {{AQ_SUM_MAGIC + 1, 0, 1, count, AQ_SUM_PART},
                {AQ_SUM_MAGIC, 0, 1, count, AQ_SUM_SUM},
                {AQ_SUM_MAGIC, 1, 1, count, AQ_SUM_PART},
                {AQ_SUM_MAGIC, STEPS, 1, count, AQ_SUM_PART},
                {AQ_SUM_MAGIC, 0, 1, count - 1, AQ_SUM_PART},
                {AQ_SUM_MAGIC, 0, 0, count, AQ_SUM_PART},
                {AQ_SUM_MAGIC, 0, 1, 0, AQ_SUM_PART},
                {AQ_SUM_MAGIC, 0, 1, count, AQ_SUM_HELLO},
                {AQ_SUM_MAGIC, 0, UINT64_MAX, count, AQ_SUM_PART}};
    int fds[CLIENTS];
    all_hello(fds);
    part(fds[ZOE], 0, 1, 5);
    for (size_t i = 0; i < sizeof odds / sizeof *odds; i++) {
        const struct aq_sum_head head = {.magic = odds[i].magic,
                                         .what = odds[i].what,
                                         .step = odds[i].step,
                                         .weight = odds[i].weight,
                                         .values = odds[i].values};
        const int odd = hello("ann");
        assert_true(put(odd, &head, sizeof head));
        assert_true(ended(odd));
    }
    assert_true(ended(hello("bob")));
    assert_true(ended(fds[ANN]));
    fds[ANN] = hello("ann");
    part(fds[ANN], 0, 1, 5);
    part(fds[MIA], 0, 1, 5);
    for (int i = 0; i < CLIENTS; i++)
        sum(fds[i], 0, CLIENTS, 5);
    all_close(fds);
}

static void here(int i)
{
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    assert_int_equal(aq_control_open(pair[0], &server->sites[i].control), AQ_OK);
    (void)pair[1]; /* it stays open until this process ends */
}

/* Meanwhile the loop takes heads and connections, reads no values, and counts nobody late who has sent its part. */
static void test_parts_are_added_by_another_thread(void **state)
{
    (void)state;
    int fds[CLIENTS];
    const int gate = eventfd(0, EFD_CLOEXEC);
    const uint64_t one = 1;
    all_hello(fds);
    gate_fd = gate;
    part(fds[ANN], 0, 1, 8); /* returns when the server has read it */
    serve(5);
    close(fds[ZOE]);
    fds[ZOE] = hello("zoe");
    part(fds[MIA], 0, 1, 2); /* lies in its socket */
    server->job->split.wait_ns = 100 * MS;
    serve(500);
    for (int i = 0; i < CLIENTS; i++)
        assert_int_equal(server->sites[i].missed, 0);
    assert_false(is_there(0));
    assert_int_not_equal(adds_tid, 0);
    assert_int_not_equal(adds_tid, syscall(SYS_gettid));
    assert_int_equal(write(gate, &one, sizeof one), sizeof one);
    server->job->split.wait_ns = 60000 * MS;
    struct pollfd done[SPLIT_SUMS_POLLS];
    while (sums_polls(server, done) > 0 && !server->sites[MIA].counted)
        serve(1);
    gate_fd = -1;
    part(fds[ZOE], 0, 2, 5);
    for (int i = 0; i < CLIENTS; i++)
        sum(fds[i], 0, 4, 5);
    all_close(fds);
    close(gate);
}

/* A server that ends, or a round that does, waits for the thread: no file of a sum comes afterwards. */
static void test_a_sum_under_way_is_waited_for(void **state)
{
    (void)state;
    int fds[CLIENTS];
    const int gate = eventfd(0, EFD_CLOEXEC);
    const uint64_t one = 1;
    all_hello(fds);
    gate_fd = gate;
    part(fds[ANN], 0, 1, 8);
    assert_int_equal(write(gate, &one, sizeof one), sizeof one);
    sums_close(server);
    gate_fd = -1;
    assert_false(is_there(0));
    assert_int_equal(sums_open(server), AQ_OK);
    serve(5);
    all_close(fds);
    all_hello(fds); /* none has counted in what was lost */
    all_step(fds, 0);
    all_close(fds);
    close(gate);
}

/* Both are waited for at the same time, and who has said its part is not. */
static void test_two_that_say_nothing_are_late_together(void **state)
{
    (void)state;
    int fds[CLIENTS];
    all_hello(fds);
    all_step(fds, 0);
    server->job->split.wait_ns = 300 * MS;
    const uint64_t since = aq_clock_ns();
    part(fds[MIA], 1, 1, 2);
    sum(fds[MIA], 1, 1, 2);
    const uint64_t took = aq_clock_ns() - since;
    assert_true(took >= 300 * MS && took < 400 * MS);
    assert_int_equal(server->sites[ANN].missed, 1);
    assert_int_equal(server->sites[ZOE].missed, 1);
    assert_int_equal(server->sites[MIA].missed, 0);
    assert_true(ended(hello("ann"))); /* it has no turn any more */
    all_close(fds);
}

/* Its turn does not begin: files that its link takes ever so slowly, or (begun) stages that take long to start. */
static void does_not_begin(bool begun)
{
    int fds[CLIENTS];
    if (!begun) turn_halt(&server->sites[ZOE]);
    here(ZOE);
    server->sites[ZOE].offered = true;
    fds[ANN] = hello("ann");
    fds[MIA] = hello("mia");
    server->job->split.wait_ns = 150 * MS;
    server->job->control.stall_ns_max = 150 * MS;
    part(fds[ANN], 0, 1, 2);
    part(fds[MIA], 0, 1, 2);
    serve(250);
    assert_int_equal(server->sites[ZOE].missed, 0);
    serve(100);
    assert_int_equal(server->sites[ZOE].missed, 1);
    sum(fds[ANN], 0, 2, 2);
    sum(fds[MIA], 0, 2, 2);
    close(fds[ANN]);
    close(fds[MIA]);
}

static void test_a_turn_that_does_not_begin_is_late(void **state)
{
    (void)state;
    does_not_begin(false);
}

static void test_stages_that_take_long_to_start_are_late_later(void **state)
{
    (void)state;
    does_not_begin(true);
}

/* No step is waited for, but the round's end is, by one that has missed it. */
static void test_a_turn_that_stands_still_alone_is_late(void **state)
{
    (void)state;
    int fds[CLIENTS];
    all_hello(fds);
    all_step(fds, 0);
    server->job->split.wait_ns = 150 * MS;
    server->job->control.stall_ns_max = 150 * MS;
    here(ZOE);
    server->sites[ZOE].offered = true;
    server->sites[ANN].round = server->sites[MIA].round = 1;
    serve(400);
    assert_int_equal(server->sites[ZOE].missed, 0); /* nobody is there who would wait */
    here(ANN);
    serve(20);
    assert_int_equal(server->sites[ZOE].missed, 1);
    all_close(fds);
}

/* All steps are made, and one turn neither fails nor ends. */
static void test_a_turn_that_does_not_end_is_late(void **state)
{
    (void)state;
    int fds[CLIENTS];
    all_hello(fds);
    for (uint64_t step = 0; step < STEPS; step++)
        all_step(fds, step);
    for (int i = 0; i < CLIENTS; i++) {
        here(i);
        server->sites[i].offered = true;
    }
    server->sites[ANN].round = server->sites[MIA].round = 1; /* these have ended well */
    server->job->split.wait_ns = 150 * MS;
    server->job->control.stall_ns_max = 0; /* for ever */
    serve(400);
    assert_int_equal(server->sites[ZOE].missed, 0);
    server->job->control.stall_ns_max = 300 * MS;
    serve(200);
    assert_int_equal(server->sites[ZOE].missed, 1);
    assert_int_equal(server->sites[ANN].missed, 0);
    all_close(fds);
}

/*
 * A round that starts while no client is here is missed by whoever was out before: its samples are in no batch of the
 * round, so a turn that it gets when it comes back alone would be of nothing. Clients that are in stay in.
 */
static void test_client_that_is_out_misses_a_round_without_clients(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < CLIENTS; i++) {
        turn_halt(&server->sites[i]);
        server->sites[i].until = 0;
        server->sites[i].round = 1;
    }
    server->round = 2;
    server->sites[MIA].absent = true;
    assert_false(join_gathered(server)); /* the others are waited for */
    assert_int_equal(server->sites[MIA].round, 1);
    test_ns += server->job->split.wait_ns + MS;
    assert_true(join_gathered(server));
    assert_int_equal(server->sites[MIA].round, 2);
    assert_int_equal(server->sites[MIA].missed, 1);
    assert_true(server->sites[MIA].absent);
    for (uint32_t i = ZOE; i <= ANN; i++) {
        assert_int_equal(server->sites[i].round, 1);
        assert_false(server->sites[i].absent);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_parts_are_summed_in_order_of_names, begin, end),
        cmocka_unit_test_setup_teardown(test_a_part_that_is_said_again_counts_once, begin, end),
        cmocka_unit_test_setup_teardown(test_sums_are_kept_for_whoever_is_furthest_behind, begin, end),
        cmocka_unit_test_setup_teardown(test_nothing_is_left_when_a_round_is_over, begin, end),
        cmocka_unit_test_setup_teardown(test_what_is_no_part_ends_its_connection_alone, begin, end),
        cmocka_unit_test_setup_teardown(test_parts_are_added_by_another_thread, begin, end),
        cmocka_unit_test_setup_teardown(test_a_sum_under_way_is_waited_for, begin, end),
        cmocka_unit_test_setup_teardown(test_two_that_say_nothing_are_late_together, begin, end),
        cmocka_unit_test_setup_teardown(test_a_turn_that_does_not_begin_is_late, begin, end),
        cmocka_unit_test_setup_teardown(test_stages_that_take_long_to_start_are_late_later, begin, end),
        cmocka_unit_test_setup_teardown(test_a_turn_that_stands_still_alone_is_late, begin, end),
        cmocka_unit_test_setup_teardown(test_a_turn_that_does_not_end_is_late, begin, end),
        cmocka_unit_test_setup_teardown(test_client_that_is_out_misses_a_round_without_clients, begin, end),
    };
    virtual_clock(time_of, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
