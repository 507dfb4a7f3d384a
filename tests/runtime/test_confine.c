/*
 * test_confine.c -- what a worker can no longer do once it has put the filter on itself, and what it still can. In
 * children: nobody takes a filter off again.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "aqsgd/base.h"
#include "confine.h"

enum { NO_FILTER = 101, FAILED = 102 };

/* A child says on standard error what is not as it should be. */
#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition)) fail_child(__LINE__, #condition);                                                            \
    } while (0)

static _Noreturn void fail_child(int line, const char *condition)
{
    dprintf(2, "test_confine.c:%d: in the child: %s (errno %d)\n", line, condition, errno);
    _exit(FAILED);
}

/* Runs it behind the filter. */
static void behind_the_filter(void (*check)(void))
{
    int how;
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        if (!aq_confine_worker()) _exit(NO_FILTER);
        check();
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &how, 0), pid);
    assert_true(WIFEXITED(how));
    if (WEXITSTATUS(how) == NO_FILTER) {
        print_message("this machine has no seccomp filter\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(how), 0);
}

static bool denied(long result)
{
    return result == -1 && errno == EPERM;
}

/* ---- what it cannot ---- */

/* `false`: a child that has become it ends with 1, and is noticed. */
static void starts_programs(void)
{
    char *const arguments[] = {(char *)(uintptr_t) "false", NULL}, *const environment[] = {NULL};
    EXPECT(denied(execve("/bin/false", arguments, environment)));
    EXPECT(denied(execve("/no/such/program", arguments, environment))); /* not even looked for */
    EXPECT(denied(syscall(SYS_execveat, AT_FDCWD, "/bin/false", arguments, environment, 0)));
    EXPECT(system("false") == 127 << 8);
    const pid_t pid = fork(); /* a child of it has it, too */
    if (pid == 0) _exit(denied(execve("/bin/false", arguments, environment)) ? 0 : FAILED);
    int how;
    EXPECT(waitpid(pid, &how, 0) == pid && how == 0);
}

static void test_no_program_is_started(void **state)
{
    (void)state;
    behind_the_filter(starts_programs);
}

static void touches_others(void)
{
    char bytes[8];
    struct iovec here = {bytes, sizeof bytes}, there = {bytes, sizeof bytes};
    /* Of itself, which it could read without the filter, so that EPERM is the filter's. */
    EXPECT(denied(process_vm_readv(getpid(), &here, 1, &there, 1, 0)));
    EXPECT(denied(process_vm_writev(getpid(), &here, 1, &there, 1, 0)));
#if !defined __SANITIZE_ADDRESS__ /* LeakSanitizer traces its own process */
    EXPECT(denied(ptrace(PTRACE_TRACEME, 0, NULL, NULL)));
#endif
}

static void test_no_other_process_is_read_or_traced(void **state)
{
    (void)state;
    behind_the_filter(touches_others);
}

static void changes_the_machine(void)
{
    /* Arguments that the kernel itself refuses with another error, whoever asks: EPERM is the filter's. */
    EXPECT(denied(syscall(SYS_unshare, -1)));
    EXPECT(denied(syscall(SYS_setns, -1, 0)));
    EXPECT(denied(syscall(SYS_keyctl, -1)));
    EXPECT(denied(syscall(SYS_add_key, NULL, NULL, NULL, 0, 0)));
    EXPECT(denied(syscall(SYS_mount, "/no", "/such", "place", 0, NULL)));
    EXPECT(denied(syscall(SYS_chroot, "/no/such/place")));
    EXPECT(denied(syscall(SYS_bpf, -1, NULL, 0)));
    EXPECT(denied(syscall(SYS_perf_event_open, NULL, 0, -1, -1, 0)));
#ifdef __x86_64__
    EXPECT(denied(syscall(0x40000000 + SYS_getpid))); /* a call of another kind of program */
#endif
}

static void test_machine_is_not_changed(void **state)
{
    (void)state;
    behind_the_filter(changes_the_machine);
}

static void tries_to_get_rid_of_it(void)
{
    EXPECT(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1);
    EXPECT(prctl(PR_SET_NO_NEW_PRIVS, 0, 0, 0, 0) == -1);
    EXPECT(prctl(PR_GET_SECCOMP, 0, 0, 0, 0) == 2);
    EXPECT(aq_confine_worker()); /* once more is no harm, and no way out */
    starts_programs();
}

static void test_filter_stays(void **state)
{
    (void)state;
    behind_the_filter(tries_to_get_rid_of_it);
}

/* ---- what it still can ---- */

static void count_up(void *context)
{
    *(int *)context += 1;
}

/* Threads, processes, memory, files, sockets and pipes: what a job is made of. */
static void works(void)
{
    int count = 0, how, fds[2];
    struct aq_thread *thread;
    EXPECT(aq_thread_open("aq-test", count_up, &count, &thread) == AQ_OK);
    aq_thread_close(thread);
    EXPECT(count == 1);
    const pid_t pid = fork();
    if (pid == 0) _exit(7);
    EXPECT(waitpid(pid, &how, 0) == pid && WIFEXITED(how) && WEXITSTATUS(how) == 7);
    char path[] = "/tmp/aq-confine-XXXXXX", bytes[4] = "";
    const int file = mkstemp(path);
    EXPECT(file >= 0 && write(file, "abc", 4) == 4 && fsync(file) == 0 && pread(file, bytes, 4, 0) == 4);
    EXPECT(strcmp(bytes, "abc") == 0);
    void *map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    EXPECT(ftruncate(file, 4096) == 0 && map != MAP_FAILED && memcmp(map, "abc", 4) == 0 && munmap(map, 4096) == 0);
    EXPECT(close(file) == 0 && unlink(path) == 0);
    EXPECT(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0 && send(fds[0], "x", 1, 0) == 1 &&
           recv(fds[1], bytes, 1, 0) == 1);
    const int door = socket(AF_INET, SOCK_STREAM, 0);
    EXPECT(door >= 0 && listen(door, 1) == 0);
    EXPECT(kill(getpid(), 0) == 0);
}

static void test_what_a_job_needs_goes_on(void **state)
{
    (void)state;
    behind_the_filter(works);
}

static char libraries[] = "/var/tmp/aq-confine-lib-XXXXXX", elsewhere[] = "/var/tmp/aq-confine-not-XXXXXX",
            run_folder[] = "/var/tmp/aq-confine-run-XXXXXX", locks[] = "/var/tmp/aq-confine-locks-XXXXXX",
            tables[] = "/var/tmp/aq-confine-tables-XXXXXX";

static int open_in(const char *folder, int flags)
{
    char path[128];
    snprintf(path, sizeof path, "%s/file", folder);
    return open(path, flags, 0600);
}

static void granted_folders(void)
{
    static struct aq_confine confine;
    char path[128];
    snprintf(path, sizeof path, "/:relative::%s/none:%s", elsewhere, libraries);
    EXPECT(setenv("LD_LIBRARY_PATH", path, 1) == 0 && setenv("AQ_GPU_LOCKS", locks, 1) == 0);
    EXPECT(setenv("AQ_GPU_TABLE", tables, 1) == 0);
    EXPECT(aq_confine_allow(&confine.run, run_folder) == AQ_OK);
    const enum aq_status status = aq_confine_enter(&confine, "/bin/true", NULL);
    if (status == AQ_NODEV) _exit(NO_FILTER);
    EXPECT(status == AQ_OK);
    EXPECT(open_in(libraries, O_RDONLY) >= 0);
    EXPECT(open_in(libraries, O_WRONLY) == -1 && errno == EACCES);
    EXPECT(open_in(elsewhere, O_RDONLY) == -1 && errno == EACCES);
    EXPECT(open_in(run_folder, O_RDWR | O_CREAT) >= 0);
    EXPECT(open_in(locks, O_RDWR | O_CREAT) >= 0);
    EXPECT(open_in(tables, O_RDWR | O_CREAT) >= 0);
}

/* Behind Landlock workers find libraries where LD_LIBRARY_PATH leads, lock GPUs where AQ_GPU_LOCKS is, and keep
 * choices where AQ_GPU_TABLE is; "/" and relative folders grant nothing. */
static void test_folders_of_the_environment_are_granted(void **state)
{
    int how;
    (void)state;
    char *const folders[] = {libraries, elsewhere, run_folder, locks, tables};
    enum { FOLDERS = sizeof folders / sizeof *folders };
    for (int i = 0; i < FOLDERS; i++) {
        assert_non_null(mkdtemp(folders[i]));
        const int file = open_in(folders[i], O_RDWR | O_CREAT);
        assert_true(file >= 0);
        close(file);
    }
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        granted_folders();
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &how, 0), pid);
    for (int i = 0; i < FOLDERS; i++) {
        char path[128];
        snprintf(path, sizeof path, "%s/file", folders[i]);
        assert_int_equal(unlink(path), 0);
        assert_int_equal(rmdir(folders[i]), 0);
    }
    assert_true(WIFEXITED(how));
    if (WEXITSTATUS(how) == NO_FILTER) {
        print_message("this kernel has no Landlock\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(how), 0);
}

/* Where GPUs are, a daemon's processes may name threads by /proc; a worker's rules allow its own threads only. */
static void names_threads(void)
{
    static struct aq_confine confine = {.gpus = true};
    int rules;
    EXPECT(aq_confine_allow(&confine.run, run_folder) == AQ_OK);
    const enum aq_status status = aq_confine_enter(&confine, "/bin/true", NULL);
    if (status == AQ_NODEV) _exit(NO_FILTER);
    EXPECT(status == AQ_OK && aq_confine_rules(&confine, "/bin/true", NULL, &rules) == AQ_OK && rules >= 0);
    char daemon[64], own[64];
    snprintf(daemon, sizeof daemon, "/proc/%d/task/%d/comm", (int)getpid(), (int)getpid());
    EXPECT(open(daemon, O_WRONLY | O_TRUNC) >= 0);
    int how;
    const pid_t worker = fork();
    EXPECT(worker >= 0);
    if (worker == 0) {
        EXPECT(aq_confine_follow(rules));
        snprintf(own, sizeof own, "/proc/self/task/%d/comm", (int)getpid());
        const int file = open(own, O_WRONLY | O_CREAT | O_TRUNC, 0666);
        EXPECT(file >= 0 && write(file, "named", 5) == 5);
        EXPECT(open(daemon, O_WRONLY) == -1 && errno == EACCES);
        EXPECT(open("/proc/sys/kernel/core_pattern", O_WRONLY) == -1 && errno == EACCES);
        _exit(0);
    }
    EXPECT(waitpid(worker, &how, 0) == worker && WIFEXITED(how) && WEXITSTATUS(how) == 0);
    confine.gpus = false;
    EXPECT(aq_confine_rules(&confine, "/bin/true", NULL, &rules) == AQ_OK && rules == -1 && aq_confine_follow(rules));
}

static void test_a_worker_names_its_own_threads_only(void **state)
{
    int how;
    (void)state;
    memcpy(run_folder + sizeof run_folder - 7, "XXXXXX", 6);
    assert_non_null(mkdtemp(run_folder));
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        names_threads();
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &how, 0), pid);
    assert_int_equal(rmdir(run_folder), 0);
    assert_true(WIFEXITED(how));
    if (WEXITSTATUS(how) == NO_FILTER) skip();
    assert_int_equal(WEXITSTATUS(how), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_program_is_started),    cmocka_unit_test(test_no_other_process_is_read_or_traced),
        cmocka_unit_test(test_machine_is_not_changed),   cmocka_unit_test(test_filter_stays),
        cmocka_unit_test(test_what_a_job_needs_goes_on),
        cmocka_unit_test(test_folders_of_the_environment_are_granted),
        cmocka_unit_test(test_a_worker_names_its_own_threads_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
