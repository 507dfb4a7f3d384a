/*
 * test_stop_signals.c -- the signals that end a program come by the descriptor; SIGHUP does not after nohup.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <stdlib.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "stop_signals.h"

/* The signal that comes next; 0: none. */
static uint32_t next_of(int fd)
{
    struct signalfd_siginfo info;
    return read(fd, &info, sizeof info) == (ssize_t)sizeof info ? info.ssi_signo : 0;
}

static int opened(int more)
{
    int fd;
    assert_int_equal(aq_stop_signals("test", more, &fd), AQ_OK);
    assert_int_equal(next_of(fd), 0);
    return fd;
}

static int setup(void **state)
{
    static sigset_t before;
    *state = &before;
    return sigprocmask(SIG_BLOCK, NULL, &before);
}

static int teardown(void **state)
{
    signal(SIGHUP, SIG_DFL);
    signal(SIGPIPE, SIG_DFL);
    return sigprocmask(SIG_SETMASK, *state, NULL);
}

static void test_each_comes(void **state)
{
    (void)state;
    static const int all[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};
    signal(SIGHUP, SIG_DFL);
    const int fd = opened(SIGUSR1);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        assert_int_equal(raise(all[i]), 0);
        assert_int_equal(next_of(fd), all[i]);
    }
    assert_int_equal(raise(SIGPIPE), 0); /* it ends nothing */
    close(fd);
}

static void test_after_nohup_a_terminal_may_close(void **state)
{
    (void)state;
    signal(SIGHUP, SIG_IGN);
    const int fd = opened(0);
    assert_int_equal(raise(SIGHUP), 0);
    assert_int_equal(next_of(fd), 0);
    assert_int_equal(raise(SIGTERM), 0);
    assert_int_equal(next_of(fd), SIGTERM);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_each_comes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_after_nohup_a_terminal_may_close, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
