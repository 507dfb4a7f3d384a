/*
 * test_control.c -- the control channel: whole lines whatever the socket does, and a status for any bytes.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "aqsgd/base.h"
#include "control.h"
#include "progress.h"
#include "report.h"
#include "runtime_text.h"

enum { SECOND = 1000000000 };

static char last_line[2048];

static void quiet(int level, const char *line, void *context)
{
    (void)level;
    (void)context;
    snprintf(last_line, sizeof last_line, "%s", line);
}

struct pair {
    struct aq_control *a; /* the side under test */
    int fd;               /* the other, raw      */
};

static int setup(void **state)
{
    static struct pair pair;
    int fds[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds) != 0) return -1;
    if (aq_control_open(fds[0], &pair.a) != AQ_OK) return -1;
    pair.fd = fds[1];
    aq_log_sink(quiet, NULL);
    last_line[0] = 0;
    *state = &pair;
    return 0;
}

static int teardown(void **state)
{
    struct pair *pair = *state;
    aq_control_close(pair->a);
    close(pair->fd);
    aq_log_sink(NULL, NULL);
    return aq_memory_used() == 0 ? 0 : -1;
}

static void put(int fd, const char *text)
{
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
}

static void test_lines_arrive_whole_and_in_order(void **state)
{
    struct pair *pair = *state;
    json_t *message;
    assert_int_equal(aq_control_receive(pair->a, 0, &message), AQ_AGAIN);
    put(pair->fd, "{\"op\":\"go\"}\n{\"op\":");
    assert_int_equal(aq_control_receive(pair->a, aq_clock_after(120ULL * SECOND), &message), AQ_OK);
    assert_true(aq_control_is(message, "op", "go"));
    assert_false(aq_control_is(message, "event", "go"));
    json_decref(message);
    assert_int_equal(aq_control_receive(pair->a, 0, &message), AQ_AGAIN);
    assert_int_equal(aq_control_receive(pair->a, aq_clock_after(SECOND / 50), &message), AQ_TIMEOUT);
    put(pair->fd, "\"stop\",\"n\":7}\n");
    assert_int_equal(aq_control_receive(pair->a, 0, &message), AQ_OK);
    assert_true(aq_control_is(message, "op", "stop"));
    json_decref(message);
    close(pair->fd);
    assert_int_equal(aq_control_receive(pair->a, AQ_NEVER, &message), AQ_CLOSED);
    assert_int_equal(aq_control_receive(pair->a, AQ_NEVER, &message), AQ_CLOSED);
    pair->fd = dup(0);
}

/* Each of these ends the channel with AQ_PROTO and a sentence. */
static void test_bytes_that_are_no_message_close_it(void **state)
{
    static const char *const bad[] = {
        "hello\n", "[1,2]\n", "{\"a\":1,\"a\":2}\n",    "\n",     "{\"a\":\n",
        "{} {}\n", "7\n",     "{\"a\":\"\xff\xfe\"}\n", "null\n",
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int fds[2];
        struct aq_control *control;
        json_t *message;
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
        assert_int_equal(aq_control_open(fds[0], &control), AQ_OK);
        put(fds[1], bad[i]);
        last_line[0] = 0;
        assert_int_equal(aq_control_receive(control, aq_clock_after(120ULL * SECOND), &message), AQ_PROTO);
        assert_non_null(strstr(last_line, "control"));
        put(fds[1], "{}\n");
        assert_int_equal(aq_control_receive(control, 0, &message), AQ_PROTO);
        aq_control_close(control);
        close(fds[1]);
    }
}

/* As of a process that was killed while it wrote: what was whole is taken, the rest is no line and no fault. */
static void test_line_that_ends_early_is_dropped(void **state)
{
    struct pair *pair = *state;
    json_t *message;
    put(pair->fd, "{\"op\":\"go\"}\n{\"op\":\"stop\"}");
    close(pair->fd);
    last_line[0] = 0;
    assert_int_equal(aq_control_receive(pair->a, AQ_NEVER, &message), AQ_OK);
    assert_true(aq_control_is(message, "op", "go"));
    json_decref(message);
    assert_int_equal(aq_control_receive(pair->a, AQ_NEVER, &message), AQ_CLOSED);
    assert_int_equal(aq_control_receive(pair->a, AQ_NEVER, &message), AQ_CLOSED);
    assert_string_equal(last_line, "");
    pair->fd = dup(0);
}

static void test_limit_of_a_line_holds(void **state)
{
    struct pair *pair = *state;
    json_t *message;
    aq_control_limit(pair->a, 64);
    put(pair->fd, "{\"op\":\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"");
    assert_int_equal(aq_control_receive(pair->a, aq_clock_after(120ULL * SECOND), &message), AQ_PROTO);
    assert_non_null(strstr(last_line, "longer than 64 bytes"));
}

/* What a line costs is measured before it is parsed: 2 bytes can make 100 of memory. */
static void test_values_and_depth_of_a_line_are_bounded(void **state)
{
    (void)state;
    static char line[4 * AQ_CONTROL_VALUES_MAX];
    const struct {
        int deep, values;
        bool taken;
    } cases[] = {{AQ_CONTROL_DEPTH_MAX - 2, 1, true},
                 {AQ_CONTROL_DEPTH_MAX, 1, false},
                 {2000, 1, false},
                 {1, AQ_CONTROL_VALUES_MAX - 8, true},
                 {1, AQ_CONTROL_VALUES_MAX + 1, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int fds[2];
        struct aq_control *control;
        json_t *message = NULL;
        const int big = 1 << 20;
        size_t at = (size_t)sprintf(line, "{\"t\":\"[[{,:\\\"[[{\",\"a\":");
        for (int d = 0; d < cases[i].deep; d++)
            line[at++] = '[';
        for (int v = 0; v < cases[i].values; v++)
            at += (size_t)sprintf(line + at, v ? ",1" : "1");
        for (int d = 0; d < cases[i].deep; d++)
            line[at++] = ']';
        at += (size_t)sprintf(line + at, "}\n");
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
        assert_int_equal(setsockopt(fds[1], SOL_SOCKET, SO_SNDBUF, &big, sizeof big), 0);
        assert_int_equal(aq_control_open(fds[0], &control), AQ_OK);
        assert_int_equal(write(fds[1], line, at), (ssize_t)at);
        assert_int_equal(aq_control_receive(control, aq_clock_after(120ULL * SECOND), &message),
                         cases[i].taken ? AQ_OK : AQ_PROTO);
        if (!cases[i].taken) assert_non_null(strstr(last_line, "values"));
        json_decref(message);
        aq_control_close(control);
        close(fds[1]);
    }
}

/* A channel with a queue: no send waits, memory stays below the bound and goes back. */
static void test_queue_never_blocks_and_is_bounded(void **state)
{
    struct pair *pair = *state;
    enum { QUEUE = 1 << 20, BYTES = 100000 };
    const uint64_t before = aq_memory_used();
    void *text;
    assert_int_equal(aq_alloc(BYTES + 1, &text), AQ_OK);
    memset(text, 'x', BYTES);
    aq_control_queue(pair->a, QUEUE);
    int sent = 0;
    enum aq_status status;
    while ((status = aq_control_send(pair->a, json_pack("{s:s}", "text", (const char *)text))) == AQ_OK)
        assert_true(++sent < 100);
    assert_int_equal(status, AQ_TIMEOUT);
    assert_true(sent >= 10);
    assert_true(aq_memory_used() <= before + QUEUE + 2 * BYTES);
    assert_int_equal(aq_control_send(pair->a, json_object()), AQ_TIMEOUT);
    assert_non_null(strstr(last_line, "does not read"));
    aq_free(text);
}

struct drain {
    int fd;
    uint64_t bytes;
    uint64_t lines;
};

static void drain(void *context)
{
    struct drain *d = context;
    static char buffer[70000];
    for (;;) {
        const ssize_t count = read(d->fd, buffer, sizeof buffer);
        if (count <= 0) return;
        d->bytes += (uint64_t)count;
        for (ssize_t i = 0; i < count; i++)
            d->lines += buffer[i] == '\n';
    }
}

/* Far more than the buffer: the sender blocks, nothing is lost. */
static void test_messages_larger_than_the_buffer_get_through(void **state)
{
    struct pair *pair = *state;
    enum { BYTES = 3 << 19 };
    struct drain d = {.fd = pair->fd};
    struct aq_thread *thread;
    assert_int_equal(aq_thread_open("drain", drain, &d, &thread), AQ_OK);
    void *text;
    assert_int_equal(aq_alloc(BYTES + 1, &text), AQ_OK);
    memset(text, 'x', BYTES);
    for (int i = 0; i < 3; i++)
        assert_int_equal(aq_control_send(pair->a, json_pack("{s:s}", "text", (const char *)text)), AQ_OK);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(aq_control_send(pair->a, json_pack("{s:i}", "i", i)), AQ_OK);
    assert_int_equal(aq_control_flush(pair->a, aq_clock_after(120ULL * SECOND)), AQ_OK);
    shutdown(aq_control_fd(pair->a), SHUT_WR);
    aq_thread_close(thread);
    aq_free(text);
    assert_int_equal(d.lines, 1003);
    assert_int_equal(d.bytes, 3 * (BYTES + 12) + 10 * 8 + 90 * 9 + 900 * 10);
}

static void test_peer_that_takes_nothing_times_out(void **state)
{
    struct pair *pair = *state;
    aq_control_patience(pair->a, SECOND / 20);
    enum aq_status status = AQ_OK;
    static char text[60000];
    memset(text, 'y', sizeof text - 1);
    for (int i = 0; i < 100 && status == AQ_OK; i++)
        status = aq_control_send(pair->a, json_pack("{s:s}", "t", text));
    assert_int_equal(status, AQ_TIMEOUT);
    assert_int_equal(aq_control_send(pair->a, json_object()), AQ_TIMEOUT);
}

/* A peer that is gone: sending says so, and what it had sent before is still read. */
static void test_lines_of_a_dead_peer_are_still_read(void **state)
{
    struct pair *pair = *state;
    json_t *message;
    put(pair->fd, "{\"event\":\"failed\"}\n");
    close(pair->fd);
    assert_int_equal(aq_control_send(pair->a, json_object()), AQ_CLOSED);
    assert_int_equal(aq_control_receive(pair->a, AQ_NEVER, &message), AQ_OK);
    assert_true(aq_control_is(message, "event", "failed"));
    json_decref(message);
    assert_int_equal(aq_control_receive(pair->a, AQ_NEVER, &message), AQ_CLOSED);
    pair->fd = dup(0);
}

static void test_fields_are_typed(void **state)
{
    (void)state;
    json_t *m = json_pack("{s:s, s:i, s:f, s:b, s:n, s:I}", "op", "x", "i", 5, "f", 0.5, "b", 1, "null", "big",
                          (json_int_t)1 << 40);
    uint64_t u;
    uint32_t v;
    double d;
    const char *t;
    assert_int_equal(aq_control_get_u64(m, "big", &u), AQ_OK);
    assert_true(u == 1ULL << 40);
    assert_int_equal(aq_control_get_u32(m, "big", &v), AQ_PROTO);
    assert_non_null(strstr(last_line, "'big'"));
    assert_int_equal(aq_control_get_u32(m, "i", &v), AQ_OK);
    assert_int_equal(v, 5);
    assert_int_equal(aq_control_get_u64(m, "op", &u), AQ_PROTO);
    assert_int_equal(aq_control_get_u64(m, "none", &u), AQ_PROTO);
    assert_int_equal(aq_control_get_text(m, "op", &t), AQ_OK);
    assert_string_equal(t, "x");
    assert_int_equal(aq_control_get_text(m, "i", &t), AQ_PROTO);
    assert_int_equal(aq_control_get_number(m, "null", &d), AQ_OK);
    assert_true(isnan(d));
    assert_int_equal(aq_control_get_number(m, "f", &d), AQ_OK);
    assert_true(d == 0.5);
    assert_true(aq_control_bool_or(m, "b", false));
    assert_true(aq_control_bool_or(m, "op", true));
    assert_int_equal(aq_control_u64_or(m, "f", 9), 9);
    json_object_set_new(m, "nan", aq_control_number((double)NAN));
    assert_true(json_is_null(json_object_get(m, "nan")));
    const uint64_t words[] = {0, 1, UINT64_MAX, 0x0123456789abcdefULL};
    for (int i = 0; i < 4; i++) {
        json_object_set_new(m, "hex", aq_control_hex(words[i]));
        assert_int_equal(aq_control_get_hex(m, "hex", &u), AQ_OK);
        assert_true(u == words[i]);
    }
    const char *const bad[] = {"", "123", "0123456789abcdef0", "0123456789abcdeg", "0123456789ABCDEF"};
    for (int i = 0; i < 5; i++) {
        json_object_set_new(m, "hex", json_string(bad[i]));
        assert_int_equal(aq_control_get_hex(m, "hex", &u), AQ_PROTO);
    }
    json_decref(m);
}

/* Any bytes in any pieces: statuses, never a crash; what parses is an object. */
static void test_random_bytes_give_statuses(void **state)
{
    (void)state;
    static const char alphabet[] = "{}[]\",:\\u0aef19.-+ \n\n\ntruefalsenull\"op\"";
    for (uint64_t round = 0; round < 400; round++) {
        const struct aq_rng_key key = aq_rng_key(7, AQ_RNG_TEST, 1, round);
        int fds[2];
        struct aq_control *control;
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
        assert_int_equal(aq_control_open(fds[0], &control), AQ_OK);
        enum aq_status status = AQ_AGAIN;
        for (uint64_t piece = 0; piece < 20 && status == AQ_AGAIN; piece++) {
            char bytes[40];
            const uint64_t count = 1 + aq_rng_below(&key, piece * 64, sizeof bytes);
            for (uint64_t i = 0; i < count; i++)
                bytes[i] = round % 4 == 0 ? (char)aq_rng_u32(&key, piece * 64 + i + 1)
                                          : alphabet[aq_rng_below(&key, piece * 64 + i + 1, sizeof alphabet - 1)];
            assert_int_equal(write(fds[1], bytes, count), (ssize_t)count);
            json_t *message;
            while ((status = aq_control_receive(control, 0, &message)) == AQ_OK) {
                assert_true(json_is_object(message));
                json_decref(message);
            }
        }
        assert_true(status == AQ_AGAIN || status == AQ_PROTO);
        aq_control_close(control);
        close(fds[1]);
    }
}

static const char nasty[] = "\x1b]0;x\x07 \xc2\x9b[31m \xe2\x80\xae\x7f\r\nmore";

/* A cause that a peer has written, as `aqpipe launch` says it: one line, and no escape. */
static void test_progress_says_printable_lines(void **state)
{
    (void)state;
    struct aq_progress progress = {.off = true};
    int fds[2];
    char said[512] = "";
    assert_int_equal(pipe(fds), 0);
    const int before = dup(STDERR_FILENO);
    dup2(fds[1], STDERR_FILENO);
    aq_progress_say(&progress, "stage 1 failed: %s", nasty);
    dup2(before, STDERR_FILENO);
    close(before);
    close(fds[1]);
    const ssize_t count = read(fds[0], said, sizeof said - 1);
    close(fds[0]);
    assert_true(count > 0);
    assert_ptr_equal(strchr(said, '\n'), said + count - 1);
    for (ssize_t i = 0; i + 1 < count; i++)
        assert_true(said[i] >= ' ' && said[i] <= '~');
    assert_non_null(strstr(said, "\\xc2\\x9b[31m"));
}

/* What metrics say of a run may have been said by a peer: every column and every line below them. */
static void test_table_of_runs_is_printable(void **state)
{
    (void)state;
    struct aq_text text = {0};
    json_t *runs =
        json_pack("[{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:i, s:i, s:f, s:i, s:[s, s]}]", "name", nasty, "run", nasty,
                  "folder", nasty, "optimizer", nasty, "reduce", nasty, "codec", nasty, "state", nasty,
                  "restarts", 2, "steps_skipped", 3, "loss_scale", 8.0, "stages", 2, "reduce_codec", nasty, "int8");
    assert_non_null(runs);
    aq_report_table(runs, 0, &text);
    const char *shown = aq_text_of(&text);
    assert_non_null(strstr(shown, "averaged"));
    assert_non_null(strstr(shown, "skipped"));
    for (const char *c = shown; *c; c++)
        assert_true(*c == '\n' || (*c >= ' ' && *c <= '~'));
    aq_text_deinit(&text);
    json_decref(runs);
}

static void test_words_for_a_shell_are_quoted_where_they_must(void **state)
{
    (void)state;
    static const struct {
        const char *word, *quoted;
    } cases[] = {{"job.yaml", "job.yaml"},
                 {"train.lr=1e-4", "train.lr=1e-4"},
                 {"output.path=my runs/a", "'output.path=my runs/a'"},
                 {"it's", "'it'\\''s'"},
                 {"'", "''\\'''"},
                 {"$(reboot);`x`\n", "'$(reboot);`x`\n'"},
                 {"", "''"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct aq_text text = {0};
        aq_text_shell(&text, cases[i].word);
        assert_string_equal(aq_text_of(&text), cases[i].quoted);
        aq_text_deinit(&text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_lines_arrive_whole_and_in_order, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bytes_that_are_no_message_close_it, setup, teardown),
        cmocka_unit_test_setup_teardown(test_line_that_ends_early_is_dropped, setup, teardown),
        cmocka_unit_test_setup_teardown(test_limit_of_a_line_holds, setup, teardown),
        cmocka_unit_test_setup_teardown(test_values_and_depth_of_a_line_are_bounded, setup, teardown),
        cmocka_unit_test_setup_teardown(test_queue_never_blocks_and_is_bounded, setup, teardown),
        cmocka_unit_test_setup_teardown(test_messages_larger_than_the_buffer_get_through, setup, teardown),
        cmocka_unit_test_setup_teardown(test_peer_that_takes_nothing_times_out, setup, teardown),
        cmocka_unit_test_setup_teardown(test_lines_of_a_dead_peer_are_still_read, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fields_are_typed, setup, teardown),
        cmocka_unit_test_setup_teardown(test_random_bytes_give_statuses, setup, teardown),
        cmocka_unit_test_setup_teardown(test_progress_says_printable_lines, setup, teardown),
        cmocka_unit_test_setup_teardown(test_table_of_runs_is_printable, setup, teardown),
        cmocka_unit_test(test_words_for_a_shell_are_quoted_where_they_must),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
