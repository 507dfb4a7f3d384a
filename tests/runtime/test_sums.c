/*
 * test_sums.c -- split.mode: global at the server's stage: what it is told, what it says to the split-server and makes
 * of the answers, right ones and others. The server is a thread of this test, on a socket of a path too long for one.
 */
#include <math.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "advice.h"
#include "sum_line.h"
#include "worker.h"
#include "worker_parts.h"

enum { SAMPLES = 7, ALL = 40, FIRST = 11, BATCH = 10, T = 4, SHIFT = 3, VALUES_MAX = 1 << 16, PATH = 512, NANS = 3 };

static const char manifest[] =
    "model: {blocks: 4, heads: 2, channels: 6, context: 4, vocabulary: 256, tied: false}\n"
    "data: {train: nowhere.txt}\n"
    "train: {T: 4, batch: 10, micro_batch: 5, epochs: 5, skips_max: 3}\n"
    "pipeline: {stages: [{layers: 0-1, dials: true}, {layers: 2-3}, {layers: 4-5, dials: true}]}\n"
    "edges: {forward: {codec: directq, bits: 8}, backward: {codec: directq, bits: 8}}\n"
    "split: {clients: 2, client: ann, mode: global, rounds: 5, seal: false}\n"
    "security: {keys: /nowhere}\n"
    "facts: {vocabulary: 256, train_samples: 7, train_digest: 1, heldout_samples: 0, all_samples: 40, first_sample: "
    "11}\n";

/* How a server answers a part. */
enum answer {
    DOUBLED, /* the values twice as large: what sums may be */
    NONE,    /* void                                        */
    OTHER_MAGIC,
    OTHER_WHAT,
    OTHER_STEP,
    OTHER_COUNT,
    NO_VALUES, /* and not void                                */
    VOID_VALUES,
    VOID_WEIGHT,
    NO_WEIGHT,
    OTHER_FLAGS,
    HALF, /* of the values, then it goes                 */
    GONE, /* at once                                     */
    SILENT
};

static struct {
    char folder[PATH], path[PATH + 16];
    int listener;
    struct aq_thread *thread;
    enum answer answer;
    uint32_t parts; /* that it answers */
    /* What it has heard. */
    struct aq_sum_head hello, part;
    struct aq_sum_hello name;
    float values[VALUES_MAX];
} server;
static struct aq_worker w;
static struct aq_part_worker lent;
static struct aq_part_reduced reduced; /* what came of the last reduction */
static int64_t shift;                  /* that the last start line told */
static uint64_t count;                 /* of gradients */

/* --- the server --- */

static bool take(int fd, void *bytes, size_t size)
{
    uint8_t *at = bytes;
    for (size_t have = 0; have < size;) {
        const ssize_t got = recv(fd, at + have, size - have, 0);
        if (got <= 0) return false;
        have += (size_t)got;
    }
    return true;
}

static bool give(int fd, const void *bytes, size_t size)
{
    const uint8_t *at = bytes;
    for (size_t have = 0; have < size;) {
        const ssize_t gone = send(fd, at + have, size - have, MSG_NOSIGNAL);
        if (gone <= 0) return false;
        have += (size_t)gone;
    }
    return true;
}

/* False: it has no more to say. */
static bool answer(int fd)
{
    const enum answer how = server.answer;
    const bool none = how == NONE || how == VOID_VALUES || how == VOID_WEIGHT;
    struct aq_sum_head head = {.magic = AQ_SUM_MAGIC + (how == OTHER_MAGIC),
                               .what = how == OTHER_WHAT ? AQ_SUM_PART : AQ_SUM_SUM,
                               .flags = none                 ? AQ_SUM_VOID
                                        : how == OTHER_FLAGS ? 4
                                                             : 0,
                               .step = server.part.step + (how == OTHER_STEP),
                               .weight = how == NONE || how == VOID_VALUES || how == NO_WEIGHT ? 0 : 40,
                               .values = how == NONE || how == VOID_WEIGHT || how == NO_VALUES ? 0 : count};
    if (how == SILENT) { /* until the other side has enough of it */
        struct pollfd end = {.fd = fd, .events = POLLIN};
        (void)poll(&end, 1, 60000);
        return false;
    }
    if (how == GONE) return false;
    if (how == OTHER_COUNT) head.values--;
    for (uint64_t i = 0; i < count; i++)
        server.values[i] = server.part.values ? 2 * server.values[i] : 5;
    if (!give(fd, &head, sizeof head) || !give(fd, server.values, head.values * sizeof(float) / (how == HALF ? 2 : 1)))
        return false;
    return how != HALF;
}

static void serve(void *unused)
{
    (void)unused;
    const int fd = accept(server.listener, NULL, NULL);
    bool more = take(fd, &server.hello, sizeof server.hello) && take(fd, &server.name, sizeof server.name);
    for (uint32_t i = 0; more && i < server.parts; i++) {
        struct aq_sum_head part = {0};
        more = take(fd, &part, sizeof part) && part.values <= VALUES_MAX;
        server.part = part; /* the test has read the one before: it has said this one since */
        more = more && take(fd, server.values, part.values * sizeof(float));
        more = more && answer(fd);
    }
    close(fd);
}

static void server_begin(enum answer how, uint32_t parts)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "sums.sock"};
    char here[PATH];
    assert_non_null(getcwd(here, sizeof here));
    assert_int_equal(chdir(server.folder), 0);
    (void)unlink(address.sun_path);
    server.listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(server.listener, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(server.listener, 1), 0);
    assert_int_equal(chdir(here), 0);
    server.answer = how;
    server.parts = parts;
    assert_int_equal(aq_thread_open("server", serve, NULL, &server.thread), AQ_OK);
}

static enum aq_status part_on(enum aq_part_moment moment)
{
    struct aq_part_args args = {.worker = &lent, .step = w.step};
    const enum aq_status status = aq_worker_parts_on(&w.worker_parts, moment, &args);
    reduced = args.reduced;
    return status;
}

static void server_end(void)
{
    assert_int_equal(part_on(AQ_PART_EDGES_CLOSE), AQ_OK);
    aq_thread_close(server.thread);
    close(server.listener);
}

/* --- the stage --- */

static json_t *start_line(void)
{
    json_t *line = json_pack("{s:s, s:s, s:i}", "op", "start", "sums", server.path, "shift", SHIFT);
    assert_non_null(line);
    return line;
}

static enum aq_status told(json_t *line)
{
    struct aq_part_args args = {.message = line};
    aq_error_clear();
    aq_worker_parts_close(&w.worker_parts);
    assert_int_equal(aq_worker_parts_open(&w.worker_parts, w.plan, w.rank), AQ_OK);
    const enum aq_status status = aq_worker_parts_on(&w.worker_parts, AQ_PART_START, &args);
    shift = args.shift;
    json_decref(line);
    return status;
}

static enum aq_status nothing(void *self)
{
    assert_ptr_equal(self, &w);
    return AQ_OK;
}

/* A worker that has no neighbours: what its stage alone has is what is summed. */
static int worker_open(void **state)
{
    (void)state;
    const struct aq_device_config device = {.kind = "cpu", .threads = 1};
    const struct aq_sampler_part part = {.all = ALL, .first = FIRST, .count = SAMPLES, .shift = SHIFT};
    w = (struct aq_worker){.rank = 1, .position = 1, .P = 3, .W = 1};
    AQ_TRY(aq_job_parse(manifest, strlen(manifest), "test.yaml", "/", NULL, 0, &w.job));
    AQ_TRY(aq_plan_open(w.job, &w.plan));
    w.me = &w.plan->stages[1];
    AQ_TRY(aq_eventcount_open(&w.eventcount));
    AQ_TRY(aq_device_open(&device, &w.device));
    AQ_TRY(aq_device_stream_open(w.device, &w.stream));
    AQ_TRY(aq_stage_open(w.device, &w.me->config, &w.stage));
    AQ_TRY(aq_sampler_open_part(&part, w.plan->batch, w.job->train.seed, true, &w.data.sampler));
    lent = (struct aq_part_worker){.device = w.device,
                                   .stage = w.stage,
                                   .sampler = w.data.sampler,
                                   .compute = w.stream,
                                   .events = w.eventcount,
                                   .silence_ns = UINT64_C(60000000000),
                                   .self = &w,
                                   .pump = nothing};
    count = aq_stage_parameter_count(w.stage);
    assert_true(count > 10 && count <= VALUES_MAX);
    assert_int_equal(w.plan->steps_per_epoch, ALL / BATCH);
    assert_int_equal(w.plan->edges[0].shape.summed, w.plan->stages[0].size.parameters);
    assert_int_equal(w.plan->edges[1].shape.summed, w.plan->stages[2].size.parameters);
    return 0;
}

static int worker_close(void **state)
{
    (void)state;
    aq_worker_parts_close(&w.worker_parts);
    aq_sampler_close(w.data.sampler);
    aq_stage_close(w.stage);
    aq_device_stream_close(w.device, w.stream);
    aq_device_close(w.device);
    aq_eventcount_close(w.eventcount);
    aq_plan_close(w.plan);
    aq_job_close(w.job);
    return 0;
}

/* The next step in which this client has samples, or has none. */
static void go_to(bool samples)
{
    while ((aq_sampler_size(w.data.sampler, w.step) > 0) != samples)
        w.step++;
}

static void gradients(float first)
{
    float *own = aq_stage_gradients(w.stage);
    for (uint64_t i = 0; i < count; i++)
        own[i] = i == 0 ? first : (float)i;
}

static void connected(enum answer how, uint32_t parts)
{
    server_begin(how, parts);
    assert_int_equal(told(start_line()), AQ_OK);
    w.step = 0;
    assert_int_equal(part_on(AQ_PART_JOINED), AQ_OK);
}

/* --- the tests --- */

static void test_a_stage_that_is_told_too_little_is_refused(void **state)
{
    static const struct {
        const char *key;
        const char *text; /* NULL: a number */
        uint64_t number;
        const char *says;
    } odds[] = {{"sums", "run/sums.sock", 0, "an absolute path"},
                {"shift", NULL, 21, ", 21 steps before those of all: the job has 20"},
                {"until", NULL, 18, "up to 18"},
                {"resume", NULL, 18, "from step 18 up to"}};
    (void)state;
    for (size_t i = 0; i < sizeof odds / sizeof *odds; i++) {
        json_t *line = start_line();
        json_object_set_new(line, odds[i].key,
                            odds[i].text ? json_string(odds[i].text) : json_integer((json_int_t)odds[i].number));
        assert_int_equal(told(line), AQ_PROTO);
        assert_non_null(strstr(aq_error_text(), odds[i].says));
    }
    json_t *line = start_line();
    json_object_del(line, "sums");
    assert_int_equal(told(line), AQ_PROTO);
    assert_non_null(strstr(aq_error_text(), "no path where gradients are summed"));
    w.plan->facts.all_samples = 0;
    assert_int_equal(told(start_line()), AQ_PROTO);
    w.plan->facts.all_samples = ALL;
    line = start_line(); /* an end needs no path; the last step may be said */
    json_object_del(line, "sums");
    json_object_set_new(line, "until", json_integer(17));
    w.rank = 0;
    assert_int_equal(told(line), AQ_OK);
    w.rank = 1;
    assert_int_equal(shift, SHIFT);
    w.steps.shift = (uint64_t)shift;
    assert_int_equal(aq_worker_steps_end(&w), 17);
    assert_int_equal(aq_worker_global(&w, 4), 7);
}

/* What sums and orders of all take is in the plan; an edge has room for its end's gradients. */
static void test_memory_of_sums_is_planned(void **state)
{
    const struct aq_sampler_part part = {.all = ALL, .first = FIRST, .count = SAMPLES};
    (void)state;
    for (uint32_t s = 0; s < 3; s++) {
        const struct aq_plan_stage *stage = &w.plan->stages[s];
        uint64_t order = 0;
        for (uint32_t i = 0; i < stage->line_count; i++)
            if (strcmp(stage->lines[i].name, "order of samples") == 0) order = stage->lines[i].bytes;
        assert_int_equal(order, aq_sampler_part_bytes(&part, BATCH));
    }
    for (uint32_t e = 0; e < 2; e++) {
        struct aq_edge_shape shape = w.plan->edges[e].shape;
        struct aq_edge_size without;
        const uint64_t summed = shape.summed;
        shape.summed = 0;
        assert_int_equal(aq_edge_size_of(&shape, &without), AQ_OK);
        assert_int_equal(w.plan->edges[e].size.host_bytes, without.host_bytes + summed * sizeof(float));
    }
}

static void test_a_part_is_said_and_the_sum_taken(void **state)
{
    (void)state;
    connected(DOUBLED, 3);
    go_to(true);
    const float *own = aq_stage_gradients(w.stage);
    gradients(0.5f);
    assert_int_equal(part_on(AQ_PART_REDUCE), AQ_OK);
    assert_int_equal(server.hello.what, AQ_SUM_HELLO);
    assert_int_equal(server.hello.step, SHIFT);
    assert_int_equal(server.hello.values, count);
    assert_string_equal(server.name.name, "ann");
    assert_int_equal(server.part.what, AQ_SUM_PART);
    assert_int_equal(server.part.flags, 0);
    assert_int_equal(server.part.step, w.step + SHIFT);
    assert_int_equal(server.part.weight, aq_sampler_size(w.data.sampler, w.step) * T);
    assert_int_equal(server.part.values, count);
    assert_true(own[0] == 1 && own[1] == 2 && own[count - 1] == 2 * (float)(count - 1));
    assert_false(reduced.is_void);
    assert_int_equal(reduced.bytes, 0); /* this stage has no neighbour */
    w.step++;
    go_to(false); /* nothing of it is here: the others' sum is taken all the same */
    gradients(0);
    assert_int_equal(part_on(AQ_PART_REDUCE), AQ_OK);
    assert_int_equal(server.part.step, w.step + SHIFT);
    assert_int_equal(server.part.flags, 0);
    assert_int_equal(server.part.weight, 0);
    assert_int_equal(server.part.values, 0);
    assert_true(own[0] == 5 && own[count - 1] == 5);
    w.step++;
    go_to(true);
    gradients(1);
    assert_int_equal(part_on(AQ_PART_REDUCE), AQ_OK);
    assert_true(own[0] == 2);
    server_end();
}

/* The step counts, and is the others'; after skips_max in a row this run ends. One that is a number ends the row. */
static void test_gradients_that_are_no_numbers_are_left_out(void **state)
{
    (void)state;
    const float *own = aq_stage_gradients(w.stage);
    connected(DOUBLED, 2 + 1 + NANS);
    for (int i = 0; i < 3 + NANS; i++, w.step++) {
        const bool odd = i != 2;
        go_to(true);
        gradients(!odd ? 1 : i % 2 ? (float)NAN : INFINITY);
        assert_int_equal(part_on(AQ_PART_REDUCE), i < 2 + NANS ? AQ_OK : AQ_INVAL);
        assert_int_equal(server.part.flags, odd ? AQ_SUM_NOT_FINITE : 0);
        assert_int_equal(server.part.weight > 0, !odd);
        assert_int_equal(server.part.values, odd ? 0 : count);
        assert_true(own[0] == (odd ? 5 : 2));
        assert_false(reduced.is_void);
    }
    assert_non_null(strstr(aq_error_text(), "3 steps in a row without a finite gradient of this client"));
    server_end();
}

static void test_a_step_that_nobody_has_a_part_in_is_void(void **state)
{
    (void)state;
    connected(NONE, NANS);
    for (int i = 0; i < NANS; i++, w.step++) { /* and does not count as one without a finite gradient */
        go_to(false);
        gradients(0.25f);
        assert_int_equal(part_on(AQ_PART_REDUCE), AQ_OK);
        assert_true(reduced.is_void);
        assert_true(aq_stage_gradients(w.stage)[0] == 0.25f);
    }
    server_end();
}

static void test_answers_that_are_none_end_the_run(void **state)
{
    static const struct {
        enum answer how;
        enum aq_status want;
    } odds[] = {{OTHER_MAGIC, AQ_PROTO}, {OTHER_WHAT, AQ_PROTO},  {OTHER_STEP, AQ_PROTO},  {OTHER_COUNT, AQ_PROTO},
                {NO_VALUES, AQ_PROTO},   {VOID_VALUES, AQ_PROTO}, {VOID_WEIGHT, AQ_PROTO}, {NO_WEIGHT, AQ_PROTO},
                {OTHER_FLAGS, AQ_PROTO}, {HALF, AQ_CLOSED},       {GONE, AQ_CLOSED}};
    (void)state;
    for (size_t i = 0; i < sizeof odds / sizeof *odds; i++) {
        connected(odds[i].how, 1);
        go_to(true);
        gradients(1);
        assert_int_equal(part_on(AQ_PART_REDUCE), odds[i].want);
        assert_non_null(strstr(aq_error_text(), odds[i].want == AQ_PROTO ? "was awaited" : "split-server has ended"));
        server_end();
    }
}

static void test_a_server_that_says_nothing_is_waited_for_so_long(void **state)
{
    (void)state;
    connected(SILENT, 1);
    lent.silence_ns = 200000000;
    go_to(true);
    gradients(1);
    assert_int_equal(part_on(AQ_PART_REDUCE), AQ_TIMEOUT);
    assert_non_null(strstr(aq_error_text(), "from the split-server"));
    lent.silence_ns = UINT64_C(60000000000);
    server_end();
    assert_int_equal(told(start_line()), AQ_OK); /* and who listens nowhere is told so */
    assert_int_equal(unlink(server.path), 0);
    assert_int_equal(part_on(AQ_PART_JOINED), AQ_NOTFOUND);
    assert_non_null(strstr(aq_error_text(), "is the split-server up?"));
    assert_int_equal(part_on(AQ_PART_EDGES_CLOSE), AQ_OK);
}

static int folder_open(void **state)
{
    const char *all = getenv("TMPDIR");
    snprintf(server.folder, sizeof server.folder, "%s/aq-sums-XXXXXX", all ? all : "/tmp");
    if (!mkdtemp(server.folder)) return -1;
    for (int i = 0; i < 3; i++) { /* longer than a socket's path may be */
        const size_t have = strlen(server.folder);
        snprintf(server.folder + have, sizeof server.folder - have, "/%048d", i);
        if (mkdir(server.folder, 0700) != 0) return -1;
    }
    snprintf(server.path, sizeof server.path, "%s/sums.sock", server.folder);
    return worker_open(state);
}

static int folder_close(void **state)
{
    for (int i = 0; i < 4; i++) {
        if (rmdir(server.folder) != 0) return -1;
        *strrchr(server.folder, '/') = 0;
    }
    return worker_close(state);
}

/* A job's plan tells it before any client is there. */
static void test_a_plan_tells_what_sums_cost(void **state)
{
    (void)state;
    struct aq_job *job;
    struct aq_plan *plan;
    struct aq_text text = {0};
    struct aq_plan_totals with, without;
    char wanted[160];
    char *alone = strdup(manifest);
    memset(strstr(alone, "client: ann,"), ' ', strlen("client: ann,"));
    assert_int_equal(aq_job_parse(alone, strlen(alone), "test.yaml", "/", NULL, 0, &job), AQ_OK);
    assert_int_equal(aq_plan_open(job, &plan), AQ_OK);
    assert_int_equal(aq_plan_print(plan, NULL, NULL, 0, &text), AQ_OK);
    for (uint32_t e = 0; e < 2; e++) {
        snprintf(wanted, sizeof wanted, "edge %u besides: ", e);
        assert_non_null(strstr(aq_text_of(&text), wanted));
        assert_int_equal(plan->edges[e].shape.summed, plan->stages[2 * e].size.parameters);
    }
    assert_non_null(strstr(aq_text_of(&text), "of memory of the split-server, and"));
    assert_int_equal(aq_plan_totals(plan, NULL, NULL, &with), AQ_OK);
    job->split.mode = AQ_SPLIT_FED1;
    struct aq_plan *other;
    assert_int_equal(aq_plan_open(job, &other), AQ_OK);
    assert_int_equal(aq_plan_totals(other, NULL, NULL, &without), AQ_OK);
    const uint64_t ends = plan->stages[0].size.parameters + plan->stages[2].size.parameters;
    assert_int_equal(with.sent_bytes, without.sent_bytes + 2 * plan->steps * ends * sizeof(float));
    aq_plan_close(other);
    aq_plan_close(plan);
    aq_job_close(job);
    aq_text_deinit(&text);
    free(alone);
}

/* The launcher of a job without sums tells of none. */
static void test_a_job_without_global_sampling_takes_no_sums(void **state)
{
    (void)state;
    struct aq_worker other = {0};
    char *text, hash[17];
    struct aq_job *job;
    struct aq_plan *plan;
    w.job->split.mode = AQ_SPLIT_FED1;
    assert_int_equal(aq_plan_manifest(w.plan, &text), AQ_OK);
    w.job->split.mode = AQ_SPLIT_GLOBAL;
    assert_int_equal(aq_job_parse(text, strlen(text), "manifest", "/", NULL, 0, &job), AQ_OK);
    assert_int_equal(aq_plan_open(job, &plan), AQ_OK);
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)aq_plan_hash(plan));
    json_t *line = json_pack("{s:s, s:s, s:s, s:i, s:i}", "manifest", text, "run", "/", "plan_hash", hash, "rank", 1,
                             "shift", SHIFT);
    aq_error_clear();
    assert_int_equal(aq_worker_plan_open(&other, line), AQ_PROTO);
    assert_non_null(strstr(aq_error_text(), "without split.mode: global"));
    aq_error_clear();
    json_decref(line);
    aq_plan_close(other.plan);
    aq_job_close(other.job);
    aq_free(other.checkpoints.run_folder);
    aq_plan_close(plan);
    aq_job_close(job);
    aq_free(text);
}

/* Somebody else's client may be away for as long as the server waits, which may be longer than a link's silence. */
static void test_others_clients_are_waited_for_as_long_as_by_the_server(void **state)
{
    (void)state;
    struct aq_worker other = {0};
    char *text, hash[17];
    w.job->split.wait_ns = UINT64_C(86400000000000);
    assert_int_equal(aq_plan_manifest(w.plan, &text), AQ_OK);
    struct aq_job *job;
    struct aq_plan *plan;
    assert_int_equal(aq_job_parse(text, strlen(text), "manifest", "/", NULL, 0, &job), AQ_OK);
    assert_int_equal(job->split.wait_ns, UINT64_C(86400000000000));
    assert_int_equal(aq_plan_open(job, &plan), AQ_OK);
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)aq_plan_hash(plan));
    json_t *line = json_pack("{s:s, s:s, s:s, s:i}", "manifest", text, "run", "/", "plan_hash", hash, "rank", 1);
    assert_int_equal(aq_worker_plan_open(&other, line), AQ_OK);
    assert_true(other.links.silence_ns > 3 * job->split.wait_ns); /* one after the other */
    json_decref(line);
    aq_plan_close(other.plan);
    aq_job_close(other.job);
    aq_free(other.checkpoints.run_folder);
    aq_plan_close(plan);
    aq_job_close(job);
    aq_free(text);
}

static void test_more_samples_than_can_be_put_in_order_are_refused(void **state)
{
    (void)state;
    struct aq_plan *plan;
    w.job->facts.all_samples = UINT64_C(1) << 32;
    assert_int_equal(aq_plan_open(w.job, &plan), AQ_INVAL);
    assert_non_null(strstr(aq_error_text(), "all clients have 4294967296 samples"));
    w.job->facts.all_samples = ALL;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_plan_tells_what_sums_cost),
        cmocka_unit_test(test_a_job_without_global_sampling_takes_no_sums),
        cmocka_unit_test(test_others_clients_are_waited_for_as_long_as_by_the_server),
        cmocka_unit_test(test_more_samples_than_can_be_put_in_order_are_refused),
        cmocka_unit_test(test_a_stage_that_is_told_too_little_is_refused),
        cmocka_unit_test(test_memory_of_sums_is_planned),
        cmocka_unit_test(test_a_part_is_said_and_the_sum_taken),
        cmocka_unit_test(test_gradients_that_are_no_numbers_are_left_out),
        cmocka_unit_test(test_a_step_that_nobody_has_a_part_in_is_void),
        cmocka_unit_test(test_answers_that_are_none_end_the_run),
        cmocka_unit_test(test_a_server_that_says_nothing_is_waited_for_so_long),
    };
    return cmocka_run_group_tests(tests, folder_open, folder_close);
}
