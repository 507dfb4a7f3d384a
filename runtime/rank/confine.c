/*
 * confine.c -- see the header. Landlock and seccomp by their system calls: glibc has no names for them.
 *
 * Landlock denies whatever right it handles and no rule grants; each version knows more rights, and a kernel refuses
 * those it does not know. A path in /dev or /etc that is not there gets no rule.
 */
#include "confine.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "aqsgd/gpu_library.h"

/* Of Landlock's rights, by bit as the kernel has them (a header may be older than the kernel). */
#define RIGHT_EXECUTE   (1ULL << 0)
#define RIGHT_WRITE     (1ULL << 1)
#define RIGHT_READ      (1ULL << 2)
#define RIGHT_READ_DIR  (1ULL << 3)
#define RIGHT_TRUNCATE  (1ULL << 14)
#define RIGHT_IOCTL     (1ULL << 15)
#define RIGHTS_READ     (RIGHT_READ | RIGHT_READ_DIR)
#define RIGHTS_OF_FILES (RIGHT_EXECUTE | RIGHT_WRITE | RIGHT_READ | RIGHT_TRUNCATE | RIGHT_IOCTL)

enum { GPUS_MAX = 64 }; /* devices of NVIDIA's driver on one machine */

enum aq_status aq_confine_allow(struct aq_confine_list *list, const char *folder)
{
    struct stat info;
    char path[AQ_CONFINE_PATH_BYTES];
    if (list->count == AQ_CONFINE_FOLDERS_MAX)
        return aq_fail(AQ_NOSPC, "daemon", "at most %d folders can be allowed", AQ_CONFINE_FOLDERS_MAX);
    if (!realpath(folder, path)) return aq_fail_errno("daemon", "cannot find the folder %s", folder);
    if (stat(path, &info) != 0 || !S_ISDIR(info.st_mode))
        return aq_fail(AQ_INVAL, "daemon", "%s is not a folder", folder);
    memcpy(list->folders[list->count++], path, sizeof path);
    return AQ_OK;
}

static bool within(const struct aq_confine_list *list, const char *path)
{
    for (uint32_t i = 0; i < list->count; i++) {
        const size_t length = strlen(list->folders[i]);
        if (strcmp(list->folders[i], "/") == 0) return true;
        if (strncmp(list->folders[i], path, length) == 0 && (path[length] == 0 || path[length] == '/')) return true;
    }
    return false;
}

bool aq_confine_below(const struct aq_confine_list *list, const char *path)
{
    char head[AQ_CONFINE_PATH_BYTES], real[AQ_CONFINE_PATH_BYTES];
    if (path[0] != '/' || strlen(path) >= sizeof head) return false;
    for (const char *at = path; (at = strstr(at, "/..")) != NULL; at += 3)
        if (at[3] == 0 || at[3] == '/') return false;
    snprintf(head, sizeof head, "%s", path);
    while (!realpath(head, real)) { /* the deepest folder that is there */
        struct stat info;
        char *slash = strrchr(head, '/');
        if (errno != ENOENT || lstat(head, &info) == 0 || !slash) return false; /* a symlink to nowhere is no path */
        if (slash == head) return within(list, "/");
        *slash = 0;
    }
    return within(list, real);
}

/* ---- Landlock ---- */

static int landlock_version(void)
{
    return (int)syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);
}

bool aq_confine_able(void)
{
    return landlock_version() >= 1;
}

static uint64_t rights_of_version(int version)
{
    const int bits = version >= 5 ? 16 : version >= 3 ? 15 : version == 2 ? 14 : 13;
    return (1ULL << bits) - 1;
}

/* Grants rights below a path that may be absent. */
static bool grant(int ruleset, const char *path, uint64_t rights)
{
    struct stat info;
    const int fd = open(path, O_PATH | O_CLOEXEC);
    if (fd == -1) return errno == ENOENT || errno == ENOTDIR;
    if (fstat(fd, &info) == 0 && !S_ISDIR(info.st_mode)) rights &= RIGHTS_OF_FILES;
    const struct landlock_path_beneath_attr rule = {.allowed_access = rights, .parent_fd = fd};
    const bool done = syscall(SYS_landlock_add_rule, ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0) == 0;
    const int error = errno;
    close(fd);
    errno = error;
    return done;
}

/* By name: a confined daemon, which makes its workers' rules, may not list /dev. */
static bool grant_devices(int ruleset, uint64_t handled)
{
    static const char *const names[] = {"null",       "zero",      "full",       "urandom",          "random",
                                        "shm",        "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset",
                                        "nvidia-caps"};
    char path[64];
    bool done = true;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "/dev/%s", names[i]);
        done = grant(ruleset, path, handled & ~RIGHT_EXECUTE) && done;
    }
    for (int gpu = 0; gpu < GPUS_MAX; gpu++) {
        snprintf(path, sizeof path, "/dev/nvidia%d", gpu);
        done = grant(ruleset, path, handled & ~RIGHT_EXECUTE) && done;
    }
    return done;
}

/*
 * The folders of LD_LIBRARY_PATH, where a worker's libraries may lie (an unpacked archive, conda, a virtual
 * environment). Relative folders and "/" are left out: they would grant what happens to be in the daemon's working
 * folder, or everything.
 */
static bool grant_libraries(int ruleset)
{
    char folder[AQ_CONFINE_PATH_BYTES];
    bool done = true;
    for (const char *at = getenv("LD_LIBRARY_PATH"), *end = NULL; at && *at; at = *end ? end + 1 : end) {
        end = strchrnul(at, ':');
        const size_t bytes = (size_t)(end - at);
        if (*at != '/' || bytes >= sizeof folder || strspn(at, "/") >= bytes) continue;
        memcpy(folder, at, bytes);
        folder[bytes] = 0;
        done = grant(ruleset, folder, RIGHT_EXECUTE | RIGHTS_READ) && done;
    }
    return done;
}

/* lib/aqpipe next to the programs' bin, where packages put the libraries that they bring. `folder` is bin. */
static bool grant_packaged(int ruleset, const char *folder)
{
    char path[AQ_CONFINE_PATH_BYTES + 32];
    snprintf(path, sizeof path, "%s/../lib/aqpipe", folder);
    return grant(ruleset, path, RIGHT_EXECUTE | RIGHTS_READ);
}

struct gpu_grant {
    int ruleset;
    bool done;
};

/* A folder in which CUDA's libraries may be. */
static void grant_gpu_folder(void *context, const char *folder)
{
    struct gpu_grant *gpu = context;
    gpu->done = grant(gpu->ruleset, folder, RIGHT_EXECUTE | RIGHTS_READ) && gpu->done;
}

static bool grant_all(int ruleset, const struct aq_confine *confine, const char *worker, const char *keys,
                      uint64_t handled)
{
    static const char *const programs[] = {"/usr", "/lib", "/lib64", "/opt"};
    static const char *const readable[] = {"/proc",
                                           "/sys",
                                           "/etc/ld.so.cache",
                                           "/etc/localtime",
                                           "/etc/nsswitch.conf",
                                           "/etc/hosts",
                                           "/etc/resolv.conf",
                                           "/etc/host.conf",
                                           "/etc/gai.conf",
                                           "/etc/ssl/openssl.cnf"};
    char folder[AQ_CONFINE_PATH_BYTES];
    bool done = true;
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++)
        done = done && grant(ruleset, programs[i], RIGHT_EXECUTE | RIGHTS_READ);
    for (size_t i = 0; i < sizeof readable / sizeof *readable; i++)
        done = done && grant(ruleset, readable[i], RIGHTS_READ);
    done = done && grant_libraries(ruleset);
    if (!realpath(worker, folder)) return false;
    const char *programs_folder = dirname(folder);
    done = done && grant(ruleset, programs_folder, RIGHT_EXECUTE | RIGHTS_READ);
    done = done && grant_packaged(ruleset, programs_folder);
    struct gpu_grant gpu = {ruleset, true};
    aq_gpu_library_folders(grant_gpu_folder, &gpu);
    done = done && gpu.done;
    if (keys) done = done && grant(ruleset, keys, RIGHTS_READ);
    static const char *const written[] = {"AQ_GPU_LOCKS", /* of GPUs; else they are in /dev/shm */
                                          "AQ_GPU_TABLE"};
    for (size_t i = 0; i < sizeof written / sizeof *written; i++) {
        const char *path = getenv(written[i]);
        if (path && *path) done = done && grant(ruleset, path, handled & ~RIGHT_EXECUTE);
    }
    for (uint32_t i = 0; i < confine->data.count; i++)
        done = done && grant(ruleset, confine->data.folders[i], RIGHTS_READ);
    for (uint32_t i = 0; i < confine->run.count; i++)
        done = done && grant(ruleset, confine->run.folders[i], handled & ~RIGHT_EXECUTE);
    return done && grant_devices(ruleset, handled);
}

/* Rules that are not in force yet, as a file descriptor; the caller closes it. */
static enum aq_status rules_make(const struct aq_confine *confine, const char *worker, const char *keys, int *out)
{
    const int version = landlock_version();
    if (version < 1)
        return aq_fail(AQ_NODEV, "daemon",
                       "this kernel has no Landlock (Linux 5.13, lsm=landlock): --allow-run and --allow-data cannot be "
                       "kept");
    const uint64_t handled = rights_of_version(version);
    const struct landlock_ruleset_attr attributes = {.handled_access_fs = handled};
    const int ruleset = (int)syscall(SYS_landlock_create_ruleset, &attributes, sizeof attributes.handled_access_fs, 0);
    if (ruleset == -1) return aq_fail_errno("daemon", "Landlock takes no rules");
    if (!grant_all(ruleset, confine, worker, keys, handled)) {
        const int error = errno;
        close(ruleset);
        errno = error;
        return aq_fail_errno("daemon", "Landlock refuses a rule for --allow-run and --allow-data");
    }
    *out = ruleset;
    return AQ_OK;
}

static bool confines_folders(const struct aq_confine *confine)
{
    return confine->run.count + confine->data.count > 0;
}

/* Files below this folder of /proc may be written. */
static bool grant_proc(int ruleset, const char *folder)
{
    return grant(ruleset, folder, rights_of_version(landlock_version()) & (RIGHT_WRITE | RIGHT_TRUNCATE));
}

enum aq_status aq_confine_enter(const struct aq_confine *confine, const char *worker, const char *keys)
{
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return aq_fail_errno("daemon", "no_new_privs");
    if (!confines_folders(confine) || confine->unenforced) return AQ_OK;
    int ruleset = -1;
    AQ_TRY(rules_make(confine, worker, keys, &ruleset));
    enum aq_status status = AQ_OK;
    if ((confine->gpus && !grant_proc(ruleset, "/proc")) || syscall(SYS_landlock_restrict_self, ruleset, 0) != 0)
        status = aq_fail_errno("daemon", "Landlock refuses the rules for --allow-run and --allow-data");
    close(ruleset);
    if (status == AQ_OK)
        aq_log("daemon", 1, "Landlock %d: this daemon and its workers write below %u folders and read %u more",
               landlock_version(), confine->run.count, confine->data.count);
    return status;
}

enum aq_status aq_confine_rules(const struct aq_confine *confine, const char *worker, const char *keys, int *out)
{
    *out = -1;
    if (!confine->gpus || !confines_folders(confine) || confine->unenforced) return AQ_OK;
    return rules_make(confine, worker, keys, out);
}

bool aq_confine_follow(int rules)
{
    return rules == -1 || (grant_proc(rules, "/proc/self/task") && syscall(SYS_landlock_restrict_self, rules, 0) == 0);
}

/* ---- seccomp ---- */

#if defined __x86_64__
#define ARCH AUDIT_ARCH_X86_64
#elif defined __aarch64__
#define ARCH AUDIT_ARCH_AARCH64
#endif

/* LeakSanitizer looks at its own process so. */
#if defined __SANITIZE_ADDRESS__
#define PTRACE_CALL
#elif defined __has_feature
#if __has_feature(address_sanitizer)
#define PTRACE_CALL
#endif
#endif
#ifndef PTRACE_CALL
#define PTRACE_CALL SYS_ptrace,
#endif

bool aq_confine_worker(void)
{
#ifdef ARCH
    static const int denied[] = {SYS_execve,
                                 SYS_execveat,
                                 PTRACE_CALL SYS_process_vm_readv,
                                 SYS_process_vm_writev,
                                 SYS_mount,
                                 SYS_umount2,
                                 SYS_pivot_root,
                                 SYS_chroot,
                                 SYS_setns,
                                 SYS_unshare,
                                 SYS_bpf,
                                 SYS_perf_event_open,
                                 SYS_init_module,
                                 SYS_finit_module,
                                 SYS_delete_module,
                                 SYS_kexec_load,
                                 SYS_reboot,
                                 SYS_swapon,
                                 SYS_swapoff,
                                 SYS_settimeofday,
                                 SYS_clock_settime,
                                 SYS_sethostname,
                                 SYS_setdomainname,
                                 SYS_keyctl,
                                 SYS_add_key,
                                 SYS_request_key,
                                 SYS_userfaultfd};
    enum { COUNT = sizeof denied / sizeof *denied };
    const struct sock_filter deny = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
    struct sock_filter code[8 + 2 * COUNT];
    unsigned short at = 0;
    code[at++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch));
    code[at++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCH, 1, 0);
    code[at++] = deny; /* calls of another kind of program: their numbers mean other things */
    code[at++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    code[at++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 0x40000000, 0, 1);
    code[at++] = deny; /* likewise: x32 */
    for (int i = 0; i < COUNT; i++) {
        code[at++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)denied[i], 0, 1);
        code[at++] = deny;
    }
    code[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    const struct sock_fprog program = {.len = at, .filter = code};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
#else
    return false;
#endif
}
