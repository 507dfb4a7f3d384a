/*
 * test_cache_disk.c -- disks that are full, fail or lack a feature: the marked state stays whole, and work goes on.
 *
 * Each test runs in a child process, because limits, mounts and system call filters cannot be taken back.
 */
#include "cache_kit.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SAMPLES = 64 };

static char folder[KIT_PATH], path[KIT_PATH];

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (condition) break;                                                                                          \
        printf("%s:%d: %s; last error: %s\n", __FILE__, __LINE__, #condition, kit_log_last());                         \
        fflush(stdout);                                                                                                \
        _exit(1);                                                                                                      \
    } while (0)

static struct aq_cache *open_at(uint64_t mark)
{
    struct aq_cache_config config;
    struct aq_cache *cache = NULL;
    kit_config(folder, path, &config);
    config.mark = mark;
    CHECK(aq_cache_open(&config, &cache) == AQ_OK);
    return cache;
}

static void put_all(struct aq_cache *cache, uint64_t version)
{
    for (uint64_t sample = 0; sample < SAMPLES; ++sample)
        CHECK(kit_put(cache, sample, version, 10000) == AQ_OK);
}

static void same_all(struct aq_cache *cache, uint64_t count, uint64_t version)
{
    for (uint64_t sample = 0; sample < count; ++sample)
        CHECK(kit_same(cache, sample, version, 10000));
}

/* Two epochs and a resume: what every kind of disk must be able to do. */
static void work_through(void)
{
    struct aq_cache *cache = open_at(0);
    put_all(cache, 1);
    CHECK(kit_mark(cache, 1) == AQ_OK);
    same_all(cache, SAMPLES, 1);
    put_all(cache, 2);
    CHECK(kit_mark(cache, 2) == AQ_OK);
    put_all(cache, 3);
    aq_cache_close(cache);
    cache = open_at(2);
    same_all(cache, SAMPLES, 2);
    aq_cache_close(cache);
}

static void child_no_ring(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM), /* as container runtimes do */
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog program = {.len = sizeof(code) / sizeof(code[0]), .filter = code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == -1 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == -1) {
        _exit(77);
    }
    work_through();
    CHECK(kit_log_has("no io_uring here"));
}

static void child_no_locked_memory(void)
{
    const struct rlimit none = {0, 0};
    if (geteuid() != 0 || chmod(folder, 0777) == -1) _exit(77);
    CHECK(setrlimit(RLIMIT_MEMLOCK, &none) == 0);
    CHECK(setresgid(65534, 65534, 65534) == 0 && setresuid(65534, 65534, 65534) == 0);
    work_through();
    CHECK(kit_log_has("buffers are not registered") || kit_log_has("no io_uring here"));
}

static void child_memory_file_system(void)
{
    char own[KIT_PATH];
    if (access("/dev/shm", W_OK) == -1) _exit(77);
    kit_folder("/dev/shm", own);
    memcpy(folder, own, sizeof(own));
    work_through();
    const bool said = kit_log_has("does not support O_DIRECT");
    kit_remove(own);
    CHECK(said);
}

static void child_not_direct(void)
{
    struct aq_cache_config config;
    struct aq_cache *cache;
    kit_config(folder, path, &config);
    config.direct = false;
    CHECK(aq_cache_open(&config, &cache) == AQ_OK);
    put_all(cache, 1);
    same_all(cache, SAMPLES, 1);
    CHECK(kit_mark(cache, 1) == AQ_OK);
    aq_cache_close(cache);
    CHECK(!kit_log_has("O_DIRECT"));
    cache = open_at(1); /* and with it, the same files */
    same_all(cache, SAMPLES, 1);
    aq_cache_close(cache);
}

/* A file system of 1 MiB fills up. */
static void child_full_disk(void)
{
    struct aq_cache *cache;
    enum aq_status status = AQ_OK;
    uint64_t put = 0;
    if (unshare(CLONE_NEWNS) == -1 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == -1 ||
        mount("tmpfs", folder, "tmpfs", 0, "size=1m") == -1) {
        _exit(77);
    }
    cache = open_at(0);
    for (uint64_t sample = 0; sample < 30; ++sample)
        CHECK(kit_put(cache, sample, 1, 10000) == AQ_OK);
    CHECK(kit_mark(cache, 1) == AQ_OK);
    for (uint64_t round = 2; round < 10 && status == AQ_OK; ++round) {
        for (uint64_t sample = 0; sample < SAMPLES && status == AQ_OK; ++sample, ++put) {
            status = kit_put(cache, sample, round, 10000);
        }
        if (status == AQ_OK) status = kit_mark(cache, round);
    }
    CHECK(status == AQ_NOSPC && put > 10);
    CHECK(strstr(kit_log_last(), "full") != NULL || strstr(kit_log_last(), "space") != NULL);
    struct aq_cache_entry entry;
    for (uint64_t sample = 0; sample < 30; ++sample) { /* what was put before is still there, at its newest version */
        const struct aq_cache_key key = kit_key(sample);
        CHECK(aq_cache_peek(cache, &key, &entry) == AQ_OK);
        CHECK(kit_same(cache, sample, entry.version, 10000));
    }
    aq_cache_close(cache);
    cache = open_at(1);
    same_all(cache, 30, 1);
    for (uint64_t sample = 0; sample < 30; ++sample)
        CHECK(kit_put(cache, sample, 2, 10000) == AQ_OK);
    aq_cache_close(cache);
}

static void limit_set(rlim_t bytes)
{
    const struct rlimit limit = {bytes, RLIM_INFINITY};
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
}

/* Room was promised, but writes fail all the same: here, because a limit is lowered afterwards. */
static void child_write_fails(void)
{
    struct aq_cache_config config;
    struct aq_cache *cache;
    struct aq_cache_stats stats;
    enum aq_status status = AQ_OK;
    signal(SIGXFSZ, SIG_IGN);
    kit_config(folder, path, &config);
    config.bytes_max = 200 * UINT64_C(12288);
    CHECK(aq_cache_open(&config, &cache) == AQ_OK);
    for (uint64_t sample = 0; sample < 8; ++sample)
        CHECK(kit_put(cache, sample, 1, 10000) == AQ_OK);
    CHECK(kit_mark(cache, 1) == AQ_OK);
    limit_set(4096 + 12 * 12288); /* four more cells */
    for (uint64_t sample = 8; sample < 40 && status == AQ_OK; ++sample)
        status = kit_put(cache, sample, 1, 10000);
    CHECK(status != AQ_OK); /* an earlier write failed, told at a later put */
    for (int i = 0; i < 8; ++i)
        kit_put(cache, 50, 1, 10000); /* more fail */
    /* Not made while it names a message that was not written; made where every failure is known by now. */
    status = kit_mark(cache, 2);
    const uint64_t next = status == AQ_OK ? 3 : 2;
    same_all(cache, 8, 1);
    limit_set(RLIM_INFINITY);
    for (uint64_t sample = 0; sample < SAMPLES; ++sample) {
        if (kit_put(cache, sample, 5, 10000) != AQ_OK) CHECK(kit_put(cache, sample, 5, 10000) == AQ_OK);
    }
    status = kit_mark(cache, next); /* a mark that failed may be made again */
    if (status != AQ_OK) status = kit_mark(cache, next);
    CHECK(status == AQ_OK);
    aq_cache_stats(cache, &stats);
    CHECK(stats.entries == SAMPLES);
    CHECK(stats.lost);
    aq_cache_close(cache);
    cache = NULL;
    config.mark = next;
    CHECK(aq_cache_open(&config, &cache) == AQ_OK);
    aq_cache_stats(cache, &stats);
    CHECK(stats.lost); /* told by the mark */
    same_all(cache, SAMPLES, 5);
    aq_cache_close(cache);
    config.mark = next - 1;
    CHECK(aq_cache_open(&config, &cache) == AQ_OK);
    same_all(cache, 8, 1);
    aq_cache_close(cache);
}

static void run(const char *name, void (*child_main)(void), int *failed)
{
    int ended = 0;
    kit_folder(NULL, folder);
    kit_log_clear();
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        child_main();
        _exit(0);
    }
    waitpid(child, &ended, 0);
    kit_remove(folder);
    const int code = WIFEXITED(ended) ? WEXITSTATUS(ended) : 128 + WTERMSIG(ended);
    if (code == 77) {
        printf("%s: skipped, this machine or user cannot\n", name);
    } else {
        printf("%s: %s (%d)\n", name, code == 0 ? "ok" : "FAILED", code);
        if (code != 0) *failed = 1;
    }
}

int main(void)
{
    int failed = 0;
    kit_log_start();
    setenv("AQ_LOG", "1", 1);
    run("no io_uring", child_no_ring, &failed);
    run("no locked memory", child_no_locked_memory, &failed);
    run("memory file system", child_memory_file_system, &failed);
    run("through the page cache", child_not_direct, &failed);
    run("full disk", child_full_disk, &failed);
    run("failing writes", child_write_fails, &failed);
    return failed;
}
