/*
 * child.h -- starts another program as a child process.
 *
 * It forks and calls exec. posix_spawn offers neither a signal at the parent's death nor limits nor Landlock's rules,
 * and a worker needs all three.
 *
 * The child has the descriptors of `fds`, no blocked signal, the default action of SIGPIPE and SIGTSTP, and all else as
 * the caller. Every descriptor of this program is close-on-exec, so no other one reaches the child, unless this program
 * inherited it: `alone` closes those as well.
 *
 *     const struct aq_child child = {.program = "rsync", .search = true, .arguments = words, .failed = 127};
 *     pid_t pid;
 *     AQ_TRY(aq_child_start(&child, "rsync", &pid));
 *
 * The caller waits for the child. Locking: any thread.
 */
#ifndef RUNTIME_CHILD_H
#define RUNTIME_CHILD_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "aqsgd/base.h"

#define AQ_CHILD_NULL (-1) /* /dev/null, for reading */
enum { AQ_CHILD_FDS = 6, AQ_CHILD_NO_PROGRAM = 126 };

/* Descriptor `ours` is `its` in the child. The same `ours` may occur twice. */
struct aq_child_fd {
    int ours, its;
};

struct aq_child {
    const char *program;          /* a path; with `search` a name that PATH finds */
    const char *const *arguments; /* the program's, its name first; NULL at the end */
    struct aq_child_fd fds[AQ_CHILD_FDS];
    uint32_t fd_count;
    bool search;
    bool session;       /* a new session: the terminal's Ctrl-C does not reach it */
    bool alone;         /* no descriptor above the highest of `fds` */
    int dies_by;        /* the signal that it gets when the calling thread ends; 0: none */
    uint64_t data_max;  /* bytes of memory (RLIMIT_DATA); 0: as the caller */
    uint64_t files_max; /* bytes of a file that it writes (RLIMIT_FSIZE), no more is kept; 0: as the caller */
    /* Called last before exec, with all descriptors in place; false: the child ends with status `failed`. It may only
     * make system calls. NULL: none. */
    bool (*last)(void *context);
    void *context;
    const char *failed_line; /* written to its descriptor 2 when the program cannot be run; NULL: none */
    int failed;              /* the child's exit status then; 0: AQ_CHILD_NO_PROGRAM */
    int missing;             /* its exit status where there is no such program; 0: `failed` */
};

/* Starts it. what: names it in the error ("cannot start WHAT: ..."). *pid: at least 1; 0 where this fails. */
enum aq_status aq_child_start(const struct aq_child *child, const char *what, pid_t *pid);

#endif
