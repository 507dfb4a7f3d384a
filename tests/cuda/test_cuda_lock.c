/* test_cuda_lock.c -- whose a GPU is: another job's, another user's file, a killed process's, one that is stopped. */
#include "stage_help.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "aqsgd/device_owner.h"
#include "cuda_device.h"

static void test_gpu_is_for_one_owner_at_a_time(void **state)
{
    (void)state;
    char folder[] = "/tmp/aqpipe-gpu-XXXXXX";
    assert_non_null(mkdtemp(folder));
    setenv("AQ_GPU_LOCKS", folder, 1);
    struct aq_device *first = NULL, *second = NULL, *third = NULL;
    const struct aq_device_config mine = {.kind = "cuda", .owner = UINT64_MAX}, other = {.kind = "cuda", .owner = 5};
    const struct aq_device_config nobody = {.kind = "cuda"}, automatic = {.kind = "auto", .owner = 5, .threads = 1};
    aq_device_owner_set("runs/mine");
    assert_int_equal(aq_device_open(&mine, &first), AQ_OK);
    assert_int_equal(aq_device_open(&mine, &second), AQ_OK); /* another stage of the same job */
    aq_error_clear();
    assert_int_equal(aq_device_open(&other, &third), AQ_REFUSED);
    char words[96];
    snprintf(words, sizeof words, "is in use by another job: runs/mine, process %ld (", (long)getpid());
    if (!strstr(aq_error_text(), words)) fail_msg("\"%s\", not \"%s\"", aq_error_text(), words);
    assert_int_equal(aq_device_open(&nobody, &third), AQ_OK);
    aq_device_close(third);
    aq_device_close(first);
    assert_int_equal(aq_device_open(&other, &third), AQ_REFUSED);
    aq_error_clear();
    assert_int_equal(aq_device_open(&automatic, &third), AQ_REFUSED); /* there is a GPU: it is no case for the CPU */
    assert_non_null(strstr(aq_error_text(), "in use by another job"));
    aq_device_close(second);
    assert_int_equal(aq_device_open(&other, &third), AQ_OK);
    aq_device_close(third);
    char path[128];
    snprintf(path, sizeof path, "%s/aqpipe-gpu-%u-00010203-0405-0607-0809-0a0b0c0d0e00.lock", folder,
             (unsigned)geteuid());
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0);
    unsetenv("AQ_GPU_LOCKS");
    /* Where nobody says: where a daemon that is confined to its folders may write, too. */
    assert_string_equal(cuda_locks_folder(), access("/dev/shm", F_OK) == 0 ? "/dev/shm" : "/tmp");
}

/* In a folder that all may write to, another user may have been first: such a file neither holds a GPU nor frees it. */
static void test_a_lock_file_of_another_user_is_refused(void **state)
{
    (void)state;
    enum { SOMEBODY = 12345 };
    char folder[] = "/tmp/aqpipe-gpu-XXXXXX", path[64];
    int first = -1, second = -1;
    assert_non_null(mkdtemp(folder));
    assert_int_equal(chmod(folder, 01777), 0);
    snprintf(path, sizeof path, "%s/lock", folder);
    assert_int_equal(cuda_take_file(path, 1, NULL, &first), AQ_OK);
    struct stat about;
    assert_int_equal(stat(path, &about), 0);
    assert_int_equal(about.st_mode & 0777, 0600); /* nobody else can open it, let alone lock it */
    assert_int_equal(chmod(path, 0622), 0);
    assert_int_equal(cuda_take_file(path, 1, NULL, &second), AQ_IO);
    assert_int_equal(chmod(path, 0600), 0);
    if (geteuid() == 0) { /* only root can leave a file of somebody else's */
        aq_error_clear();
        assert_int_equal(chown(path, SOMEBODY, SOMEBODY), 0);
        assert_int_equal(cuda_take_file(path, 1, NULL, &second), AQ_IO);
        assert_non_null(strstr(aq_error_text(), "belongs to user 12345"));
        assert_non_null(strstr(aq_error_text(), "AQ_GPU_LOCKS"));
    }
    close(first);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0);
}

/* Only a process of this user can hold the file as such; nobody waits for it without an end, or without a word. */
static void test_a_lock_that_is_held_is_waited_for_a_while(void **state)
{
    (void)state;
    char folder[] = "/tmp/aqpipe-gpu-XXXXXX", path[64];
    int first = -1, second = -1;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/lock", folder);
    assert_int_equal(cuda_take_file(path, 1, NULL, &first), AQ_OK);
    const int holder = open(path, O_RDONLY | O_CLOEXEC);
    assert_int_equal(flock(holder, LOCK_EX), 0);
    aq_error_clear();
    const uint64_t begin = aq_clock_ns();
    assert_int_equal(cuda_take_file(path, 1, NULL, &second), AQ_IO);
    assert_true(aq_clock_ns() - begin < UINT64_C(20000000000));
    assert_non_null(strstr(aq_error_text(), "is held by another process"));
    close(holder);
    assert_int_equal(cuda_take_file(path, 1, NULL, &second), AQ_OK);
    close(first);
    close(second);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0);
}

/* A name that another user has taken where all may write: every process of this user goes on to the next folder. */
static void test_a_name_taken_by_another_user_keeps_nobody_off(void **state)
{
    (void)state;
    enum { SOMEBODY = 12345 };
    struct cuda_probe probe = {.index = 0, .name = "test", .uuid = ""};
    char path[128], next[128], why[CUDA_TEXT_BYTES] = "";
    int first = -1, second = -1;
    if (geteuid() != 0) { /* only root can leave a file of somebody else's */
        print_message("skipped: needs root\n");
        skip();
    }
    unsetenv("AQ_GPU_LOCKS");
    snprintf(probe.uuid, sizeof probe.uuid, "test-%ld", (long)getpid());
    snprintf(path, sizeof path, "%s/aqpipe-gpu-0-%s.lock", cuda_locks_folder(), probe.uuid);
    snprintf(next, sizeof next, "/tmp/aqpipe-gpu-0-%s.lock", probe.uuid);
    const int planted = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    assert_true(planted >= 0);
    assert_int_equal(fchown(planted, SOMEBODY, SOMEBODY), 0);
    assert_int_equal(flock(planted, LOCK_EX), 0);
    assert_int_equal(cuda_take(&probe, 1, "runs/mine", &first, why), AQ_OK);
    assert_int_equal(cuda_take(&probe, 2, "runs/other", &second, why), AQ_REFUSED);
    assert_non_null(strstr(why, "runs/mine, process "));
    close(first);
    close(planted);
    assert_int_equal(unlink(path), 0);
    if (strcmp(path, next) != 0) assert_int_equal(unlink(next), 0);
}

/* A job of another user on one GPU is named. A file that somebody made in another user's name counts for nothing. */
static void test_a_job_of_another_user_is_named(void **state)
{
    (void)state;
    enum { SOMEBODY = 12345 };
    char folder[] = "/tmp/aqpipe-gpu-XXXXXX", path[96];
    uid_t user = 0;
    int fd = -1;
    if (geteuid() != 0 || access("/proc/locks", R_OK) != 0) { /* only root can leave a file of somebody else's */
        print_message("skipped: needs root and /proc/locks\n");
        skip();
    }
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/aqpipe-gpu-%u-test-uuid.lock", folder, SOMEBODY);
    assert_int_equal(cuda_take_file(path, 7, "runs/theirs", &fd), AQ_OK);
    assert_false(cuda_other_user(folder, "test-uuid", &user)); /* the name is another's, and the file is not */
    assert_int_equal(chown(path, SOMEBODY + 1, SOMEBODY + 1), 0); /* nor is it of whom the name says */
    assert_false(cuda_other_user(folder, "test-uuid", &user));
    assert_int_equal(chown(path, SOMEBODY, SOMEBODY), 0);
    assert_true(cuda_other_user(folder, "test-uuid", &user));
    assert_int_equal(user, SOMEBODY);
    assert_false(cuda_other_user(folder, "other-uuid", &user));
    assert_int_equal(chmod(path, 0666), 0); /* anybody could hold it */
    assert_false(cuda_other_user(folder, "test-uuid", &user));
    assert_int_equal(chmod(path, 0600), 0);
    close(fd); /* its job has ended */
    assert_false(cuda_other_user(folder, "test-uuid", &user));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0);
}

/* A process that is killed leaves the file, and no lock: the next job has the GPU at once. */
static void test_a_killed_process_holds_no_gpu(void **state)
{
    (void)state;
    char folder[] = "/tmp/aqpipe-gpu-XXXXXX", path[64], text[2 * CUDA_HOLDER_BYTES];
    int ready[2], mine = -1;
    char byte = 0;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/lock", folder);
    assert_int_equal(pipe(ready), 0);
    const pid_t pid = fork();
    if (pid == 0) {
        int fd = -1;
        if (cuda_take_file(path, 7, "runs/killed", &fd) != AQ_OK || write(ready[1], &byte, 1) != 1) _exit(1);
        (void)pause();
        _exit(1);
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    assert_int_equal(cuda_take_file(path, 8, NULL, &mine), AQ_REFUSED);
    char words[64];
    snprintf(words, sizeof words, "runs/killed, process %ld", (long)pid);
    cuda_holder_text(path, text, sizeof text);
    assert_string_equal(text, words);
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_int_equal(cuda_take_file(path, 8, "runs/next", &mine), AQ_OK);
    close(mine);
    close(ready[0]);
    close(ready[1]);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpu_is_for_one_owner_at_a_time),
        cmocka_unit_test(test_a_lock_file_of_another_user_is_refused),
        cmocka_unit_test(test_a_lock_that_is_held_is_waited_for_a_while),
        cmocka_unit_test(test_a_name_taken_by_another_user_keeps_nobody_off),
        cmocka_unit_test(test_a_job_of_another_user_is_named),
        cmocka_unit_test(test_a_killed_process_holds_no_gpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
