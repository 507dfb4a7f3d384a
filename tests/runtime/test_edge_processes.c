/*
 * test_edge_processes.c -- every codec from edge to edge between two GPUs, each end in a process of its own.
 *
 * The ends are the edges that workers have (edge_sides.h), joined by TCP: the sender codes, the receiver decodes and
 * answers with gradients, both keep messages in a cache. So what one process holds by chance the other one does not.
 * Every stateful codec meets every store, every rounding and every keyframe; every other codec of the table goes either
 * way. Samples are cold in the first epoch and warm after it, three to a call, with and without channel means. Digests
 * of what was decoded, of gradients and of messages must be those of a run on CPUs.
 *
 * On hardware (label gpu) both processes share one GPU where there is one. AQ_GPU=required: a missing GPU is a failure.
 */
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "edge_sides.h"

enum { CASES_MAX = 96 };

static const struct edge_case {
    const char *forward, *backward;
} hand_made[] = {
    {"codec: ec", "codec: ec"}, /* the defaults */
    {"codec: ec, error: 0.1, keyframe: ec", "codec: ec, rate: 3"},
    {"codec: aqsgd, bits: 1", "codec: directq, bits: 2, scale: search"},
    {"codec: aqsgd, bits: 3, group: tile, tile: 32, hadamard: true", "codec: directq, bits: 4, rounding: stochastic"},
    {"codec: aqsgd, bits: 5, store: q4, group: channel", "codec: directq, bits: 8, group: tensor"},
    {"codec: aqsgd, bits: 6, grid: midtread, scale_format: pow2", "codec: raw, precision: fp32"},
    {"codec: aqsgd, bits: 8, scale_format: fp32", "codec: raw, precision: bf16"},
    {"codec: directq, bits: 3", "codec: directq, bits: 8"},
    {"codec: raw, precision: fp32", "codec: raw, precision: fp16"},
};

/* What both processes and the CPUs run, in this order. */
static struct edge_cases {
    char forward[CASES_MAX][128], backward[CASES_MAX][128];
    int count;
} cases;

static void case_add(const char *forward, const char *back)
{
    assert_true(cases.count < CASES_MAX);
    snprintf(cases.forward[cases.count], sizeof cases.forward[0], "%s", forward);
    snprintf(cases.backward[cases.count++], sizeof cases.backward[0], "%s", back);
}

static void cases_make(void)
{
    static const char *const stores[] = {"fp32", "fp16", "bf16", "q8", "q4", "q2"};
    static const char *const keyframes[] = {"ec", "fp16", "bf16", "fp32", "q8"};
    static const char *const kinds[][2] = {{"codec: aqsgd, bits: 4", "nearest"},
                                           {"codec: aqsgd, bits: 2", "stochastic"},
                                           {"codec: ec, rate: 2.5", "nearest"},
                                           {"codec: ec, rate: 2", "stochastic"},
                                           {"codec: ec, rate: 3", "half_dither"}};
    static const char *const backs[] = {"codec: ec", "codec: directq, bits: 8"};
    char text[128];
    enum aq_codec_kind codec;
    for (size_t i = 0; i < sizeof hand_made / sizeof hand_made[0]; i++)
        case_add(hand_made[i].forward, hand_made[i].backward);
    for (size_t i = 0; i < 5 * 6; i++) {
        snprintf(text, sizeof text, "%s, rounding: %s, store: %s, keyframe: %s", kinds[i % 5][0], kinds[i % 5][1],
                 stores[i / 5], keyframes[(i + i / 5) % 5]);
        case_add(text, backs[i % 2]);
    }
    for (uint32_t i = 0; aq_codec_kind_at(i, &codec); i++) {
        const struct aq_codec_about *about = aq_codec_about(codec);
        snprintf(text, sizeof text, "codec: %s", about->name);
        case_add(about->activations ? text : "codec: directq, bits: 4", about->activations ? "codec: ec" : text);
    }
}

/* What the processes share; nothing of it is a pointer. */
static struct shared {
    _Atomic int port[CASES_MAX];
    struct side ends[2][CASES_MAX];
    char why[2][512];
} * shared;

/* One case on one end. false: it failed, and shared->why says how. */
static bool end_run(bool sender, int i)
{
    struct side *s = &shared->ends[sender][i];
    struct sides sides;
    kind = "cuda";
    backward = cases.backward[i];
    means = i % 2 ? 6.0f : 0.0f;
    sides_open(cases.forward[i], NOTHING, WELL, &sides);
    *s = sides.side;
    s->sender = sender;
    s->index = sender ? 0 : 1;
    s->port = &shared->port[i];
    snprintf(s->address, sizeof s->address, "tcp://127.0.0.1:0");
    const uint64_t deadline = aq_clock_after(60000000000u);
    while (sender && atomic_load_explicit(s->port, memory_order_acquire) == 0 && aq_clock_ns() < deadline)
        (void)usleep(200);
    if (sender) snprintf(s->address, sizeof s->address, "tcp://127.0.0.1:%d", atomic_load(s->port));
    side_run(s);
    if (s->status != AQ_OK)
        snprintf(shared->why[sender], sizeof shared->why[0], "%s, gradients %s: %s", cases.forward[i],
                 cases.backward[i], aq_error_text());
    sides_close(&sides);
    return s->status == AQ_OK;
}

static pid_t end_start(bool sender)
{
    const pid_t pid = fork(); /* before either has asked for a GPU */
    if (pid != 0) return pid;
    for (int i = 0; i < cases.count; i++)
        if (!end_run(sender, i)) _exit(1);
    _exit(0);
}

static void test_every_codec_between_processes_has_the_bits_of_the_cpu(void **state)
{
    (void)state;
    static struct result here;
    const pid_t pids[2] = {end_start(false), end_start(true)};
    for (int end = 0; end < 2; end++) {
        int status = -1;
        assert_int_equal(waitpid(pids[end], &status, 0), pids[end]);
        if (status != 0)
            printf("the %s ended with status %#x: %s\n", end ? "sender" : "receiver", (unsigned)status,
                   shared->why[end]);
    }
    for (int i = 0; i < cases.count; i++) {
        const struct side *receiver = &shared->ends[0][i], *sender = &shared->ends[1][i];
        if (shared->why[0][0] || shared->why[1][0]) fail_msg("%s; %s", shared->why[0], shared->why[1]);
        kind = "cpu";
        backward = cases.backward[i];
        means = i % 2 ? 6.0f : 0.0f;
        run(cases.forward[i], NOTHING, &here);
        const char *odd = NULL;
        if (memcmp(receiver->decoded, here.receiver.decoded, sizeof here.receiver.decoded) != 0)
            odd = "what was decoded";
        else if (memcmp(sender->gradients, here.sender.gradients, sizeof here.sender.gradients) != 0)
            odd = "gradients";
        else if (memcmp(sender->messages, here.sender.messages, sizeof here.sender.messages) != 0)
            odd = "the sender's messages";
        else if (memcmp(receiver->messages, here.sender.messages, sizeof here.sender.messages) != 0)
            odd = "the receiver's messages";
        if (odd) fail_msg("%s, gradients %s: %s: not the bits of the CPU", cases.forward[i], cases.backward[i], odd);
        assert_int_equal(sender->measures.keyframes, here.sender.measures.keyframes);
        assert_int_equal(sender->measures.fetched + receiver->measures.fetched, 0);
        assert_memory_equal(sender->versions, here.sender.versions, sizeof here.sender.versions);
    }
}

/* Asked of a process that ends: this one must have no CUDA when it forks. */
static bool gpu_here(void)
{
    const pid_t pid = fork();
    if (pid == 0) {
        const struct aq_device_config config = {.kind = "cuda", .threads = 1};
        struct aq_device *device = NULL;
        const enum aq_status status = aq_device_open(&config, &device);
        aq_device_close(device);
        _exit(status == AQ_OK ? 0 : 1);
    }
    int status = -1;
    return waitpid(pid, &status, 0) == pid && status == 0;
}

int main(void)
{
    const char *gpu = getenv("AQ_GPU");
    if (!gpu_here() && !(gpu && strcmp(gpu, "required") == 0)) {
        printf("skipped: no GPU\n");
        return 77;
    }
    void *memory = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 1;
    shared = memory;
    cases_make();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_codec_between_processes_has_the_bits_of_the_cpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
