/*
 * test_child.c -- what a child process gets of its parent: descriptors, signals, limits; and how it ends.
 */
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "child.h"

/* Runs `script` in the shell with *child's settings, and its status; what it writes to descriptor 1 is in out. */
static int shell(struct aq_child child, const char *script, char out[4096])
{
    const char *const arguments[] = {"sh", "-c", script, NULL};
    int said[2], how;
    pid_t pid;
    assert_int_equal(pipe2(said, O_CLOEXEC), 0);
    if (!child.program) child.program = "/bin/sh";
    child.arguments = arguments;
    child.fds[child.fd_count++] = (struct aq_child_fd){said[1], 1};
    assert_int_equal(aq_child_start(&child, "the shell", &pid), AQ_OK);
    close(said[1]);
    size_t count = 0;
    for (ssize_t got; (got = read(said[0], out + count, 4095 - count)) > 0;)
        count += (size_t)got;
    out[count] = 0;
    close(said[0]);
    assert_int_equal(waitpid(pid, &how, 0), pid);
    return WIFEXITED(how) ? WEXITSTATUS(how) : -WTERMSIG(how);
}

/* A descriptor of a pipe that holds this text. */
static int holding(const char *text)
{
    int fd[2];
    assert_int_equal(pipe2(fd, O_CLOEXEC), 0);
    assert_int_equal(write(fd[1], text, strlen(text)), strlen(text));
    close(fd[1]);
    return fd[0];
}

static void test_descriptors_change_places(void **state)
{
    (void)state;
    char out[4096];
    const int one = holding("one"), two = holding("two");
    /* Each has the number that the other one gets. */
    const int three = fcntl(one, F_DUPFD_CLOEXEC, 3), four = fcntl(two, F_DUPFD_CLOEXEC, three + 1);
    close(one);
    close(two);
    const struct aq_child child = {.fds = {{AQ_CHILD_NULL, 0}, {three, four}, {four, three}}, .fd_count = 3};
    char script[128];
    snprintf(script, sizeof script, "cat; cat <&%d; echo; cat <&%d", three, four);
    assert_int_equal(shell(child, script, out), 0);
    assert_string_equal(out, "two\none");
    close(three);
    close(four);
}

/* The numbers of the open descriptors that the shell itself has, without those that `ls` opens. */
static const char *const listed = "cd /proc/$$/fd && echo *";

static void test_alone_closes_what_was_inherited(void **state)
{
    (void)state;
    char out[4096];
    /* Not close-on-exec, as from a careless parent. */
    const int inherited = dup(0), high = fcntl(inherited, F_DUPFD, 100);
    struct aq_child child = {.fds = {{AQ_CHILD_NULL, 0}, {2, 3}}, .fd_count = 2};
    assert_int_equal(shell(child, listed, out), 0);
    assert_non_null(strstr(out, " 100"));
    child.alone = true;
    assert_int_equal(shell(child, listed, out), 0);
    assert_null(strstr(out, "100"));
    assert_non_null(strstr(out, "0 1"));
    assert_non_null(strstr(out, "3"));
    close(high);
    close(inherited);
}

static void test_signals_are_as_at_a_login(void **state)
{
    (void)state;
    char out[4096];
    sigset_t usr1, before;
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    sigprocmask(SIG_BLOCK, &usr1, &before);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGTSTP, SIG_IGN);
    const struct aq_child child = {0};
    const int code = shell(child, "exec grep -E '^Sig(Blk|Ign)' /proc/self/status", out);
    signal(SIGPIPE, SIG_DFL);
    signal(SIGTSTP, SIG_DFL);
    sigprocmask(SIG_SETMASK, &before, NULL);
    assert_int_equal(code, 0);
    const unsigned long long ignored = strtoull(strstr(out, "SigIgn:") + 7, NULL, 16);
    assert_int_equal(strtoull(strstr(out, "SigBlk:") + 7, NULL, 16), 0);
    assert_int_equal(ignored & (1ull << (SIGPIPE - 1) | 1ull << (SIGTSTP - 1)), 0);
}

static void test_limits_hold(void **state)
{
    (void)state;
    char out[4096];
    const struct aq_child child = {.data_max = 64 << 20, .files_max = 1 << 20};
    assert_int_equal(shell(child, "ulimit -d; ulimit -f", out), 0);
    assert_string_equal(out, "65536\n2048\n"); /* KiB, and blocks of 512 */
}

static void test_session_of_its_own(void **state)
{
    (void)state;
    char out[4096];
    struct aq_child child = {0};
    const char *const leads = "read -r pid name state parent group session rest </proc/$$/stat; [ $session = $$ ]";
    assert_int_equal(shell(child, leads, out), 1);
    child.session = true;
    assert_int_equal(shell(child, leads, out), 0);
}

static bool refuses(void *context)
{
    return *(const bool *)context;
}

static void test_no_program(void **state)
{
    (void)state;
    char out[4096];
    int said[2];
    assert_int_equal(pipe2(said, O_CLOEXEC), 0);
    struct aq_child child = {.program = "/nowhere/program",
                             .fds = {{said[1], 2}},
                             .fd_count = 1,
                             .failed_line = "it cannot be run\n"};
    assert_int_equal(shell(child, "", out), AQ_CHILD_NO_PROGRAM);
    char line[64] = "";
    assert_int_equal(read(said[0], line, sizeof line - 1), strlen("it cannot be run\n"));
    assert_string_equal(line, "it cannot be run\n");
    child.failed = 124;
    assert_int_equal(shell(child, "", out), 124);
    child.missing = 127;
    assert_int_equal(shell(child, "", out), 127);
    child.program = "/"; /* is there, and no program */
    assert_int_equal(shell(child, "", out), 124);
    child.program = NULL;
    bool goes = false;
    child.last = refuses;
    child.context = &goes;
    assert_int_equal(shell(child, "exit 3", out), 124);
    goes = true;
    assert_int_equal(shell(child, "exit 3", out), 3);
    child.program = "sh";
    child.search = true;
    assert_int_equal(shell(child, "exit 5", out), 5);
    close(said[0]);
    close(said[1]);
}

/* The process between this one and the child ends, and the child with it: then no process holds the pipe. */
static void test_dies_with_its_parent(void **state)
{
    (void)state;
    int alive[2], how;
    assert_int_equal(pipe2(alive, O_CLOEXEC), 0);
    const pid_t between = fork();
    if (between == 0) {
        const char *const arguments[] = {"sleep", "300", NULL};
        const struct aq_child child = {.program = "sleep",
                                       .search = true,
                                       .arguments = arguments,
                                       .fds = {{alive[1], 5}},
                                       .fd_count = 1,
                                       .dies_by = SIGTERM};
        pid_t pid;
        _exit(aq_child_start(&child, "sleep", &pid) == AQ_OK ? 0 : 1);
    }
    close(alive[1]);
    assert_int_equal(waitpid(between, &how, 0), between);
    assert_true(WIFEXITED(how) && WEXITSTATUS(how) == 0);
    struct pollfd end = {.fd = alive[0]};
    assert_int_equal(poll(&end, 1, 60 * 1000), 1); /* POLLHUP */
    close(alive[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_descriptors_change_places), cmocka_unit_test(test_alone_closes_what_was_inherited),
        cmocka_unit_test(test_signals_are_as_at_a_login), cmocka_unit_test(test_limits_hold),
        cmocka_unit_test(test_session_of_its_own),        cmocka_unit_test(test_no_program),
        cmocka_unit_test(test_dies_with_its_parent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
