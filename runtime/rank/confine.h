/*
 * confine.h -- what a daemon and its workers may touch: who holds launcher.pem runs jobs, and gets no account with it.
 *
 * Of the daemon (and so of the workers it starts, which inherit it): no new privileges; with --allow-run and
 * --allow-data the kernel (Landlock) lets them write only below the run folders, and read only below both and what
 * programs need (libraries, /proc, /sys, GPUs). Of a worker: no program can be started, nor anything of the machine's
 * set up be changed (a seccomp filter), and with --max-memory no more memory be had (RLIMIT_DATA).
 *
 * Caveats: RLIMIT_DATA counts a process's own memory, also what it has asked for and not touched; not mapped files.
 * Folders must be there when the daemon starts. The network is not confined: links need it.
 *
 * Locking: called once at the start, before threads; aq_confine_below is a pure question to the file system.
 */
#ifndef RUNTIME_CONFINE_H
#define RUNTIME_CONFINE_H

#include <stdbool.h>
#include <stdint.h>

#include "aqsgd/base.h"

enum { AQ_CONFINE_FOLDERS_MAX = 16, AQ_CONFINE_PATH_BYTES = 4096 };

struct aq_confine_list {
    uint32_t count;
    char folders[AQ_CONFINE_FOLDERS_MAX][AQ_CONFINE_PATH_BYTES]; /* without symlinks */
};

struct aq_confine {
    struct aq_confine_list run, data; /* both empty: anywhere       */
    uint64_t memory_bytes_max;        /* of a worker; 0: as it likes */
    bool unenforced;                  /* paths of jobs are checked, and the kernel is not asked */
    bool gpus;                        /* NVIDIA GPUs are here: CUDA must write /proc/self/task/N/comm */
};

/* One more allowed folder. AQ_NOTFOUND, AQ_INVAL (no folder), AQ_NOSPC (too many). */
enum aq_status aq_confine_allow(struct aq_confine_list *list, const char *folder);

/* Does this absolute path, of which the end may not exist yet, lie in one of the folders, symlinks followed? */
bool aq_confine_below(const struct aq_confine_list *list, const char *path);

/* Has this kernel Landlock, so that folders can be given? */
bool aq_confine_able(void);

/* For the rest of this process and of those it starts. `worker`: its program; keys: may be NULL. AQ_NODEV: folders are
 * given, and this kernel has no Landlock. */
enum aq_status aq_confine_enter(const struct aq_confine *confine, const char *worker, const char *keys);

/*
 * A second, narrower set of rules for a worker of a confined daemon, only if confine->gpus: CUDA's driver ends if
 * it cannot name its threads, so that the daemon's own rules must let processes write below /proc. The worker's rules
 * allow only its own /proc/self/task.
 *
 * aq_confine_rules makes them, in the daemon, before the fork: *out is a file descriptor to close, or -1 if none is
 * needed. aq_confine_follow puts them on the calling process, between fork and exec: it makes system calls only. False:
 * the kernel refused.
 */
enum aq_status aq_confine_rules(const struct aq_confine *confine, const char *worker, const char *keys, int *out);
bool aq_confine_follow(int rules);

/* A worker's part, before it reads what it is to do: the filter. False: this machine has none, and nothing is lost but
 * that. */
bool aq_confine_worker(void);

#endif
