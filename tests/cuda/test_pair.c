/*
 * test_pair.c -- pairs of GPUs over NCCL: bytes come as they went, and whatever the other end does, nobody hangs.
 *
 * GPU, CUDA and NCCL are those of cuda_host/runtime. The two ends are threads of this process, each with its GPU.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "cuda_runtime_api.h"
#include "nccl.h"
#include "net/pair.h"

enum { MOVES = 40, BYTES_MAX = 300000, SLOTS = 3, FEW_SECONDS = 50 };

enum odd { WELL, NEVER_COMES, DIES, SILENT, OTHER_COUNT, OTHER_VERSION, ONE_GPU };

struct end {
    bool receiver; /* of the first pair, and the odd one */
    enum odd odd;
    enum aq_status status, opened;
    struct aq_device *device;
    struct aq_stream *stream;
    struct aq_pair *pairs[2]; /* to the receiver, and back */
    uint8_t *memory;
};

static struct aq_nccl_id ids[2];

static void nap(void)
{
    (void)nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
}

static uint32_t bytes_of(uint64_t move)
{
    return (uint32_t)(1 + move * move * 7919 % BYTES_MAX);
}

static uint8_t value_of(int pair, uint64_t move, uint32_t i)
{
    return (uint8_t)(i * 31 + move * 7 + (uint64_t)pair * 101);
}

/* What is there moves while somebody looks, here as on a GPU that NCCL has yet to be told of. */
static enum aq_status pass(struct end *end, int pair, uint64_t count)
{
    for (;;) {
        for (int i = 0; i < 2; i++)
            AQ_TRY(aq_pair_poll(end->pairs[i]));
        if (aq_pair_passed(end->pairs[pair]) >= count) return AQ_OK;
        nap();
    }
}

static enum aq_status open_pairs(struct end *end, uint64_t silence_ns)
{
    for (int i = 0; i < 2; i++) {
        const struct aq_pair_config config = {.id = &ids[i],
                                              .name = i ? "the way back" : "the way there",
                                              .first = !end->receiver,
                                              .sends = (i == 0) != end->receiver,
                                              .silence_ns = silence_ns};
        enum aq_status status;
        AQ_TRY(aq_pair_open(&config, &end->pairs[i]));
        while ((status = aq_pair_poll(end->pairs[i])) == AQ_AGAIN)
            nap();
        AQ_TRY(status);
    }
    return AQ_OK;
}

/* Both ways at once: a move is noted in each pair, and then both are waited for. */
static enum aq_status exchange(struct end *end)
{
    static uint8_t host[2][BYTES_MAX];
    uint8_t *const mine = host[end->receiver];
    const int out = end->receiver ? 1 : 0;
    for (uint64_t n = 1; n <= MOVES; n++) {
        uint8_t *const sent = end->memory + n % SLOTS * BYTES_MAX, *const got = sent + SLOTS * BYTES_MAX;
        AQ_TRY(pass(end, out, n > SLOTS ? n - SLOTS : 0));
        for (uint32_t i = 0; i < bytes_of(n); i++)
            mine[i] = value_of(out, n, i);
        AQ_TRY(aq_device_copy(end->device, sent, mine, bytes_of(n), end->stream));
        AQ_TRY(aq_device_stream_sync(end->device, end->stream));
        aq_pair_move(end->pairs[out], sent, bytes_of(n));
        aq_pair_move(end->pairs[1 - out], got, bytes_of(n));
        AQ_TRY(pass(end, 1 - out, n));
        AQ_TRY(aq_device_copy(end->device, mine, got, bytes_of(n), end->stream));
        AQ_TRY(aq_device_stream_sync(end->device, end->stream));
        for (uint32_t i = 0; i < bytes_of(n); i++)
            if (mine[i] != value_of(1 - out, n, i))
                return aq_fail(AQ_CORRUPT, "test", "move %llu: byte %u is %u", (unsigned long long)n, i, mine[i]);
    }
    return pass(end, out, MOVES);
}

/* One move, to a receiver that is odd. */
static enum aq_status one_move(struct end *end)
{
    const bool odd = end->receiver;
    if (odd && end->odd == SILENT) {
        (void)nanosleep(&(struct timespec){.tv_sec = 3}, NULL);
        return AQ_TIMEOUT;
    }
    if (odd && end->odd == DIES) {
        (void)nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
        aq_pairs_abandon(end->pairs, 1);
        return aq_pair_poll(end->pairs[0]) == AQ_OK ? AQ_NOSPC : AQ_INVAL; /* nothing is asked of it any more */
    }
    aq_pair_move(end->pairs[0], end->memory, odd && end->odd == OTHER_COUNT ? 999 : 1000);
    return pass(end, 0, 1);
}

static enum aq_status work(struct end *end)
{
    const bool odd = end->receiver && end->odd != WELL;
    const struct aq_device_config config = {.kind = "cuda", .index = end->receiver && end->odd != ONE_GPU};
    void *memory;
    AQ_TRY(aq_device_open(&config, &end->device));
    AQ_TRY(aq_device_stream_open_light(end->device, &end->stream));
    AQ_TRY(aq_device_alloc(end->device, AQ_MEMORY_DEVICE, (size_t)2 * SLOTS * BYTES_MAX, &memory));
    end->memory = memory;
    if (odd && end->odd == NEVER_COMES) return AQ_NOSPC;
    if (odd && end->odd == OTHER_VERSION) nccl_host_version(22703);
    end->opened = open_pairs(end, end->odd == NEVER_COMES || end->odd == SILENT ? 1000000000 : 60000000000u);
    AQ_TRY(end->opened);
    return end->odd == WELL ? exchange(end) : one_move(end);
}

static void run_end(void *context)
{
    struct end *end = context;
    end->opened = AQ_AGAIN;
    end->status = work(end);
    for (int i = 0; i < 2; i++)
        if (end->status == AQ_NCCLERR && end->pairs[i] && aq_pair_poll(end->pairs[i]) == AQ_NCCLERR)
            (void)aq_pair_failed(end->pairs[i]);
    if (end->status != AQ_OK) aq_pairs_abandon(end->pairs, 2); /* before memory is freed */
    for (int i = 0; i < 2; i++)
        aq_pair_close(end->pairs[i]);
    if (end->memory) aq_device_free(end->device, AQ_MEMORY_DEVICE, end->memory, (size_t)2 * SLOTS * BYTES_MAX);
    if (end->stream) aq_device_stream_close(end->device, end->stream);
    aq_device_close(end->device);
}

/* Runs both ends; the sender's status. */
static enum aq_status run(enum odd odd, struct end ends[2])
{
    struct aq_thread *threads[2];
    const uint64_t begin_ns = aq_clock_ns();
    aq_error_clear();
    cuda_runtime_host_driver(13000, 2, 9, 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(aq_nccl_id(&ids[i]), AQ_OK);
        ends[i] = (struct end){.receiver = i == 1, .odd = odd};
    }
    for (int i = 0; i < 2; i++)
        assert_int_equal(aq_thread_open("end", run_end, &ends[i], &threads[i]), AQ_OK);
    for (int i = 0; i < 2; i++)
        aq_thread_close(threads[i]);
    assert_int_equal(nccl_host_open(), 0);
    assert_int_equal(cuda_runtime_host_used(), 0);
    assert_true(aq_clock_ns() - begin_ns < FEW_SECONDS * UINT64_C(1000000000));
    return ends[0].status;
}

static void expect(enum odd odd, enum aq_status wanted, const char *text)
{
    struct end ends[2];
    const enum aq_status status = run(odd, ends);
    if (status != wanted || !strstr(aq_error_text(), text))
        fail_msg("%s, wanted %s; '%s' is not in '%s'", aq_status_text(status), aq_status_text(wanted), text,
                 aq_error_text());
}

static void test_bytes_come_as_they_went_both_ways_at_once(void **state)
{
    (void)state;
    struct end ends[2];
    if (run(WELL, ends) != AQ_OK || ends[1].status != AQ_OK) fail_msg("%s", aq_error_text());
}

static void test_an_end_that_never_comes_times_out(void **state)
{
    (void)state;
    expect(NEVER_COMES, AQ_TIMEOUT, " s for NCCL, opening a communicator: another rank is stuck");
}

static void test_an_end_that_is_silent_times_out(void **state)
{
    (void)state;
    expect(SILENT, AQ_TIMEOUT, " s for NCCL, moving a body: another rank is stuck");
}

static void test_an_end_that_dies_ends_the_other(void **state)
{
    (void)state;
    expect(DIES, AQ_NCCLERR, "the way there, moving a body: NCCL: remote process exited");
}

static void test_another_count_fails(void **state)
{
    (void)state;
    struct end ends[2];
    (void)run(OTHER_COUNT, ends);
    assert_int_equal(ends[1].status, AQ_NCCLERR); /* who receives sees it; who sends hears that it is gone */
    assert_int_equal(ends[0].status, AQ_NCCLERR);
}

static void test_another_version_or_the_same_gpu_opens_nothing(void **state)
{
    (void)state;
    struct end ends[2];
    for (enum odd odd = OTHER_VERSION; odd <= ONE_GPU; odd++) {
        assert_int_equal(run(odd, ends), AQ_NCCLERR);
        assert_int_equal(ends[0].opened, AQ_NCCLERR);
    }
}

/* Why one communicator is one way: both ends send first, and neither gets on. */
struct facing {
    int rank;
    bool ended;
};
static ncclUniqueId facing_id;

static void run_facing(void *context)
{
    struct facing *facing = context;
    static uint8_t bytes[2][2][1000];
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclResult_t state = ncclInProgress;
    ncclComm_t comm;
    cudaStream_t stream;
    config.blocking = 0;
    (void)cudaSetDevice(facing->rank);
    (void)cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    (void)ncclCommInitRankConfig(&comm, 2, facing_id, facing->rank, &config);
    while (state == ncclInProgress)
        (void)ncclCommGetAsyncError(comm, &state);
    for (int i = 0; i < 2; i++) {
        (void)ncclGroupStart();
        if (i == 0) (void)ncclSend(bytes[facing->rank][0], 1000, ncclUint8, 1 - facing->rank, comm, stream);
        if (i == 1) (void)ncclRecv(bytes[facing->rank][1], 1000, ncclUint8, 1 - facing->rank, comm, stream);
        (void)ncclGroupEnd();
        (void)ncclCommGetAsyncError(comm, &state);
    }
    cudaEvent_t done;
    (void)cudaEventCreateWithFlags(&done, cudaEventDisableTiming);
    (void)cudaEventRecord(done, stream);
    for (int i = 0; i < 2000 && !facing->ended; i++) {
        facing->ended = cudaEventQuery(done) == cudaSuccess;
        nap();
    }
    (void)ncclCommAbort(comm);
    (void)cudaEventDestroy(done);
    (void)cudaStreamDestroy(stream);
}

static void test_two_that_send_first_on_one_communicator_wait_for_ever(void **state)
{
    (void)state;
    struct facing facing[2] = {{.rank = 0}, {.rank = 1}};
    struct aq_thread *threads[2];
    assert_int_equal(ncclGetUniqueId(&facing_id), ncclSuccess);
    for (int i = 0; i < 2; i++)
        assert_int_equal(aq_thread_open("end", run_facing, &facing[i], &threads[i]), AQ_OK);
    for (int i = 0; i < 2; i++)
        aq_thread_close(threads[i]);
    assert_false(facing[0].ended || facing[1].ended);
}

/* What is told of a rank decides alone, and every rank says the same line. */
static void refuses(const struct aq_nccl_rank all[2], enum aq_status wanted, const char *text)
{
    aq_error_clear();
    assert_int_equal(aq_nccl_refuse(all, 2, "stage", 3, "say something"), wanted);
    if (!strstr(aq_error_text(), text)) fail_msg("'%s' is not in '%s'", text, aq_error_text());
}

static void test_what_ranks_tell_decides(void **state)
{
    (void)state;
    struct aq_nccl_rank all[2] = {{.gpu = 5, .machine = 9, .built = 22809}, {.gpu = 7, .machine = 9, .built = 22809}};
    struct aq_nccl_facts facts;
    aq_nccl_judge(all, 2, &facts);
    assert_true(facts.built && facts.distinct_gpus && facts.one_machine && facts.gpus == 2 && facts.rank == UINT32_MAX);
    assert_int_equal(aq_nccl_refuse(all, 2, "stage", 3, "say something"), AQ_OK);
    all[1].machine = 8;
    aq_nccl_judge(all, 2, &facts);
    assert_true(facts.built && facts.distinct_gpus && !facts.one_machine);
    all[1].built = 22703;
    refuses(all, AQ_MISMATCH, "stage 4 has NCCL 22703, stage 3 has 22809: install the same version");
    all[1] = all[0];
    aq_nccl_judge(all, 2, &facts);
    assert_true(!facts.distinct_gpus && facts.rank == 1);
    refuses(all, AQ_NODEV,
            "stages 3 and 4 share a GPU, and NCCL needs one for each: give each its own, or say something");
    all[0].gpu = 0;
    aq_nccl_judge(all, 2, &facts);
    assert_true(!facts.built && facts.gpus == 1 && facts.rank == 0);
    refuses(all, AQ_NODEV, "stage 3 has no GPU, and NCCL needs one for each");
    all[0].built = 0;
    refuses(all, AQ_NODEV, "stage 3 has no NCCL");
}

/*
 * An abort that waits for the whole GPU ends when the other communicators there are aborted, too: one by one it never
 * does.
 */
static void test_communicators_are_given_up_together(void **state)
{
    (void)state;
    enum { PAIRS = 4 };
    struct aq_pair *pairs[PAIRS] = {NULL};
    for (int i = 0; i < PAIRS; i++) {
        struct aq_nccl_id id;
        const struct aq_pair_config config = {
            .id = &id, .name = "a pair", .first = true, .sends = i % 2, .silence_ns = UINT64_MAX};
        if (i == 2) continue; /* an edge that has none */
        assert_int_equal(aq_nccl_id(&id), AQ_OK);
        assert_int_equal(aq_pair_open(&config, &pairs[i]), AQ_OK);
    }
    nccl_host_abort_together(PAIRS - 1);
    aq_pairs_abandon(pairs, PAIRS);
    nccl_host_abort_together(0);
    assert_int_equal(nccl_host_open(), 0);
    aq_pairs_abandon(pairs, PAIRS); /* again is fine */
    for (int i = 0; i < PAIRS; i++)
        aq_pair_close(pairs[i]);
}

static void quiet(int level, const char *line, void *context)
{
    (void)level;
    (void)line;
    (void)context;
}

int main(void)
{
    aq_log_sink(quiet, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes_come_as_they_went_both_ways_at_once),
        cmocka_unit_test(test_an_end_that_never_comes_times_out),
        cmocka_unit_test(test_an_end_that_is_silent_times_out),
        cmocka_unit_test(test_an_end_that_dies_ends_the_other),
        cmocka_unit_test(test_another_count_fails),
        cmocka_unit_test(test_another_version_or_the_same_gpu_opens_nothing),
        cmocka_unit_test(test_two_that_send_first_on_one_communicator_wait_for_ever),
        cmocka_unit_test(test_communicators_are_given_up_together),
        cmocka_unit_test(test_what_ranks_tell_decides),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
