/*
 * test_pair_ipc.c -- bytes from one GPU to another by CUDA IPC: two processes, each with a way out and a way in, over
 * the CUDA of cuda_host/runtime, whose copies run as late as they may. What a link would say goes through a socket.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "aqsgd/device.h"
#include "cuda_runtime_api.h"
#include "net/pair.h"

enum { SLOTS = 2, SLOT_BYTES = 8192, WAY_BYTES = SLOTS * SLOT_BYTES, MOVES = 24, NEVER_S = 50 };

/* What the second end does otherwise. */
enum odd { WELL, ONE_GPU, OFFERS_NOTHING, OFFERS_LESS, SILENT, DIES };

struct end {
    int socket;
    bool second;
    enum odd odd;
    struct aq_device *device;
    struct aq_stream *stream;
    uint8_t *out, *in; /* slots */
    struct aq_pair *sends, *receives;
    uint64_t heard; /* bodies that the other end has given */
    bool unmapped;  /* it has */
};

static void nap(void)
{
    (void)nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
}

static size_t bytes_of(uint64_t move)
{
    return 1 + move * move * 7919 % SLOT_BYTES;
}

static uint8_t value_of(bool second, uint64_t move, size_t i)
{
    return (uint8_t)(i * 31 + move * 7 + second * 101u);
}

static enum aq_status lost(const char *what)
{
    return aq_fail(AQ_CLOSED, "test", "the other end is gone: %s", what);
}

/* --- what a link says: (what, number) --- */

enum says { GIVEN = 1, TAKEN, UNMAPPED };

static enum aq_status tell(const struct end *end, enum says what, uint64_t number)
{
    const uint64_t words[2] = {what, number};
    return send(end->socket, words, sizeof words, MSG_NOSIGNAL) == sizeof words ? AQ_OK : lost("tell");
}

/* All that has come; behind UNMAPPED the other end may close. */
static enum aq_status hear(struct end *end)
{
    struct pollfd ready = {.fd = end->socket, .events = POLLIN};
    while (!end->unmapped && poll(&ready, 1, 0) == 1) {
        uint64_t words[2];
        if (recv(end->socket, words, sizeof words, MSG_WAITALL) != sizeof words) return lost("hear");
        if (words[0] == GIVEN) end->heard = words[1];
        if (words[0] == UNMAPPED) end->unmapped = true;
        if (words[0] == TAKEN) AQ_TRY(aq_pair_taken(end->sends, words[1]));
    }
    return AQ_OK;
}

static enum aq_status swap(const struct end *end, const void *mine, void *theirs, size_t bytes)
{
    if (send(end->socket, mine, bytes, MSG_NOSIGNAL) != (ssize_t)bytes) return lost("swap");
    return recv(end->socket, theirs, bytes, MSG_WAITALL) == (ssize_t)bytes ? AQ_OK : lost("swap");
}

/* --- the two ends --- */

static enum aq_status open_memory(struct end *end)
{
    const struct aq_device_config config = {.kind = "cuda", .index = end->second && end->odd != ONE_GPU};
    void *memory;
    AQ_TRY(aq_device_open(&config, &end->device));
    AQ_TRY(aq_device_stream_open_light(end->device, &end->stream));
    AQ_TRY(aq_device_alloc(end->device, AQ_MEMORY_SHARED, WAY_BYTES, &memory));
    end->out = memory;
    AQ_TRY(aq_device_alloc(end->device, AQ_MEMORY_DEVICE, WAY_BYTES, &memory));
    end->in = memory;
    return AQ_OK;
}

static enum aq_status open_pairs(struct end *end)
{
    struct aq_pair_offer mine, theirs;
    const bool odd = end->second;
    if (odd && end->odd == OFFERS_NOTHING)
        memset(&mine, 0, sizeof mine);
    else
        AQ_TRY(aq_pair_offer(end->out, odd && end->odd == OFFERS_LESS ? WAY_BYTES - 1 : WAY_BYTES, &mine));
    AQ_TRY(swap(end, &mine, &theirs, sizeof mine));
    struct aq_pair_config config = {.offer = &mine,
                                    .memory = end->out,
                                    .memory_bytes = WAY_BYTES,
                                    .name = "the way out",
                                    .sends = true,
                                    .silence_ns = UINT64_C(1000000000) * (end->odd == SILENT ? 1 : NEVER_S)};
    AQ_TRY(aq_pair_open(&config, &end->sends));
    config.offer = &theirs;
    config.memory = end->in;
    config.name = "the way in";
    config.sends = false;
    return aq_pair_open(&config, &end->receives);
}

/* Both ways: what is heard is copied, what is copied is told. */
static enum aq_status turn(struct end *end)
{
    AQ_TRY(hear(end));
    AQ_TRY(aq_pair_poll(end->sends));
    AQ_TRY(aq_pair_poll(end->receives));
    nap();
    return AQ_OK;
}

static enum aq_status give(struct end *end, uint64_t n)
{
    uint8_t host[SLOT_BYTES], *slot = end->out + n % SLOTS * SLOT_BYTES;
    while (aq_pair_noted(end->sends) - aq_pair_passed(end->sends) == SLOTS)
        AQ_TRY(turn(end));
    for (size_t i = 0; i < bytes_of(n); i++)
        host[i] = value_of(end->second, n, i);
    AQ_TRY(aq_device_copy(end->device, slot, host, bytes_of(n), end->stream));
    AQ_TRY(aq_device_stream_sync(end->device, end->stream));
    aq_pair_move(end->sends, slot, bytes_of(n));
    return tell(end, GIVEN, n);
}

static enum aq_status take(struct end *end, uint64_t n)
{
    uint8_t host[SLOT_BYTES], *slot = end->in + n % SLOTS * SLOT_BYTES;
    while (end->heard < n)
        AQ_TRY(turn(end));
    aq_pair_move(end->receives, slot, bytes_of(n));
    while (aq_pair_passed(end->receives) < n)
        AQ_TRY(turn(end));
    AQ_TRY(tell(end, TAKEN, n));
    AQ_TRY(aq_device_copy(end->device, host, slot, bytes_of(n), end->stream));
    AQ_TRY(aq_device_stream_sync(end->device, end->stream));
    for (size_t i = 0; i < bytes_of(n); i++)
        if (host[i] != value_of(!end->second, n, i))
            return aq_fail(AQ_CORRUPT, "test", "move %d: byte %d is %d", (int)n, (int)i, host[i]);
    return AQ_OK;
}

static enum aq_status exchange(struct end *end)
{
    for (uint64_t n = 1; n <= MOVES; n++) {
        if (n == 3 && end->second && end->odd == DIES) return aq_fail(AQ_ABORTED, "test", "it dies");
        AQ_TRY(give(end, n));
        if (end->second && end->odd == SILENT) (void)nanosleep(&(struct timespec){.tv_sec = 3}, NULL);
        AQ_TRY(take(end, n));
    }
    while (aq_pair_passed(end->sends) < MOVES)
        AQ_TRY(turn(end));
    return AQ_OK;
}

static enum aq_status run_end(struct end *end)
{
    enum aq_status status = open_memory(end);
    if (status == AQ_OK) status = open_pairs(end);
    if (status == AQ_OK) status = exchange(end);
    aq_pair_close(end->receives);
    if (status == AQ_OK) status = tell(end, UNMAPPED, 0);
    for (; status == AQ_OK && !end->unmapped; nap()) /* neither frees what the other has mapped */
        status = hear(end);
    aq_pair_close(end->sends);
    if (end->device) {
        aq_device_free(end->device, AQ_MEMORY_SHARED, end->out, WAY_BYTES);
        aq_device_free(end->device, AQ_MEMORY_DEVICE, end->in, WAY_BYTES);
        aq_device_stream_close(end->device, end->stream);
        aq_device_close(end->device);
    }
    close(end->socket);
    return status;
}

/* Runs both; the first end's status, the second's as its exit. */
static enum aq_status run(enum odd odd, enum aq_status *second)
{
    int sockets[2], exit_status = 0;
    aq_error_clear();
    cuda_runtime_host_driver(13000, 2, 9, 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct end end = {.socket = sockets[1], .second = true, .odd = odd};
        close(sockets[0]);
        (void)alarm(2 * NEVER_S);
        _exit((int)run_end(&end));
    }
    close(sockets[1]);
    struct end end = {.socket = sockets[0], .odd = odd};
    const enum aq_status status = run_end(&end);
    assert_int_equal(waitpid(child, &exit_status, 0), child);
    if (!WIFEXITED(exit_status)) fail_msg("the second end died of signal %d", WTERMSIG(exit_status));
    *second = (enum aq_status)WEXITSTATUS(exit_status);
    assert_int_equal(cuda_runtime_host_used(), 0);
    return status;
}

static void expect(enum odd odd, enum aq_status first, enum aq_status second, const char *text)
{
    enum aq_status other;
    const enum aq_status status = run(odd, &other);
    const bool both = second == AQ_OK ? other == AQ_OK : other != AQ_OK; /* who hears of it first differs */
    if (status != first || !both || (text && !strstr(aq_error_text(), text)))
        fail_msg("%s and %s, wanted %s and %s; '%s'", aq_status_text(status), aq_status_text(other),
                 aq_status_text(first), aq_status_text(second), aq_error_text());
}

static void test_bytes_come_as_they_went_both_ways_at_once(void **state)
{
    (void)state;
    expect(WELL, AQ_OK, AQ_OK, NULL);
    expect(ONE_GPU, AQ_OK, AQ_OK, NULL); /* which NCCL refuses */
}

static void test_what_cannot_be_mapped_is_said_and_is_no_error_of_cuda(void **state)
{
    (void)state;
    expect(OFFERS_NOTHING, AQ_NODEV, AQ_NODEV, "the way in: the other end offers no memory");
    expect(OFFERS_LESS, AQ_NODEV, AQ_NODEV, "the way in: the other end offers 16383 bytes, but 16384 are needed");
}

static void test_an_end_that_takes_nothing_times_out(void **state)
{
    (void)state;
    enum aq_status other;
    assert_int_equal(run(SILENT, &other), AQ_TIMEOUT);
    assert_non_null(strstr(aq_error_text(), " s for a body that is to be taken: the other end is stuck"));
}

static void test_an_end_that_dies_leaves_nothing_that_waits(void **state)
{
    (void)state;
    enum aq_status other;
    assert_int_equal(run(DIES, &other), AQ_CLOSED); /* its link says so; the pair has nothing to abort */
    assert_int_equal(other, AQ_ABORTED);
}

/* One process: nothing is mapped, and a sender alone counts. */
static void test_counts_and_places_are_checked(void **state)
{
    (void)state;
    struct end end = {.socket = -1};
    struct aq_pair_offer offer;
    struct aq_pair *none = NULL;
    cuda_runtime_host_driver(13000, 2, 9, 0);
    assert_int_equal(open_memory(&end), AQ_OK);
    assert_int_equal(aq_pair_offer(end.out + 512, WAY_BYTES, &offer), AQ_NODEV); /* not where an allocation begins */
    assert_int_equal(aq_pair_offer(end.in, WAY_BYTES, &offer), AQ_NODEV);        /* with others in its piece       */
    assert_int_equal(aq_pair_offer(end.out, WAY_BYTES, &offer), AQ_OK);
    struct aq_pair_config config = {.offer = &offer,
                                    .memory = end.out,
                                    .memory_bytes = WAY_BYTES,
                                    .name = "alone",
                                    .sends = true,
                                    .silence_ns = UINT64_MAX};
    assert_int_equal(aq_pair_open(&config, &end.sends), AQ_OK);
    aq_pair_move(end.sends, end.out, 10);
    aq_pair_move(end.sends, end.out + SLOT_BYTES, 10);
    assert_int_equal(aq_pair_taken(end.sends, 3), AQ_PROTO);
    assert_int_equal(aq_pair_taken(end.sends, 1), AQ_OK);
    assert_int_equal(aq_pair_taken(end.sends, 0), AQ_PROTO);
    assert_int_equal(aq_pair_passed(end.sends), 1);
    config.sends = false;
    assert_int_equal(aq_pair_open(&config, &none), AQ_NODEV); /* this very process's */
    memset(offer.bytes + 8, 0xff, 64);
    assert_int_equal(aq_pair_open(&config, &none), AQ_NODEV); /* no handle of anybody's */
    aq_pair_close(end.sends);
    aq_device_free(end.device, AQ_MEMORY_SHARED, end.out, WAY_BYTES);
    aq_device_free(end.device, AQ_MEMORY_DEVICE, end.in, WAY_BYTES);
    aq_device_stream_close(end.device, end.stream);
    aq_device_close(end.device);
    assert_int_equal(cuda_runtime_host_used(), 0);
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
        cmocka_unit_test(test_what_cannot_be_mapped_is_said_and_is_no_error_of_cuda),
        cmocka_unit_test(test_an_end_that_takes_nothing_times_out),
        cmocka_unit_test(test_an_end_that_dies_leaves_nothing_that_waits),
        cmocka_unit_test(test_counts_and_places_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
