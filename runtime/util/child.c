#include "child.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

enum { HIGH_FD = 16 }; /* above every descriptor that a child is given */

static bool limit(int what, uint64_t bytes)
{
    const struct rlimit most = {.rlim_cur = bytes, .rlim_max = bytes};
    return bytes == 0 || setrlimit(what, &most) == 0;
}

/* Any of our descriptors may have the number that another one gets, so all move to high numbers first. */
static bool descriptors(const struct aq_child *child)
{
    int high[AQ_CHILD_FDS];
    for (uint32_t i = 0; i < child->fd_count; i++) {
        const int ours = child->fds[i].ours;
        const int from = ours == AQ_CHILD_NULL ? open("/dev/null", O_RDONLY | O_CLOEXEC) : ours;
        if (from == -1 || (high[i] = fcntl(from, F_DUPFD_CLOEXEC, HIGH_FD)) == -1) return false;
    }
    for (uint32_t i = 0; i < child->fd_count; i++)
        if (dup2(high[i], child->fds[i].its) == -1) return false;
    return true;
}

/* Old kernels lack close_range: descriptors of this program close at exec by themselves. */
static void close_others(const struct aq_child *child)
{
    int last = 2;
    for (uint32_t i = 0; i < child->fd_count; i++)
        if (child->fds[i].its > last) last = child->fds[i].its;
    (void)close_range((unsigned)last + 1, ~0U, 0);
}

/* In the child: only what is safe between fork and exec. */
_Noreturn static void become(const struct aq_child *child, pid_t parent)
{
    const int failed = child->failed ? child->failed : AQ_CHILD_NO_PROGRAM;
    sigset_t none;
    sigemptyset(&none);
    if (child->dies_by && (prctl(PR_SET_PDEATHSIG, child->dies_by) != 0 || getppid() != parent)) _exit(failed);
    if (!limit(RLIMIT_DATA, child->data_max) || !limit(RLIMIT_FSIZE, child->files_max) || !descriptors(child))
        _exit(failed);
    if (child->session) (void)setsid();
    signal(SIGPIPE, SIG_DFL);
    signal(SIGTSTP, SIG_DFL);
    if (child->files_max) signal(SIGXFSZ, SIG_IGN);
    if (child->last && !child->last(child->context)) _exit(failed);
    if (child->alone) close_others(child);
    sigprocmask(SIG_SETMASK, &none, NULL);
    char *const *arguments = (char *const *)(uintptr_t)child->arguments;
    if (child->search)
        execvp(child->program, arguments);
    else
        execv(child->program, arguments);
    const int why = errno;
    if (child->failed_line) {
        const ssize_t written = write(2, child->failed_line, strlen(child->failed_line));
        (void)written;
    }
    _exit(why == ENOENT && child->missing ? child->missing : failed);
}

enum aq_status aq_child_start(const struct aq_child *child, const char *what, pid_t *pid)
{
    AQ_ASSERT(child->fd_count <= AQ_CHILD_FDS && child->arguments && child->arguments[0]);
    const pid_t parent = getpid();
    *pid = fork();
    if (*pid == 0) become(child, parent);
    if (*pid > 0) return AQ_OK;
    *pid = 0;
    return aq_fail_errno("process", "cannot start %s", what);
}
