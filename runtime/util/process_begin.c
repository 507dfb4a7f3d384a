/* process_begin.c -- see the header. */
#include "process_begin.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { STACK_BYTES = 8 << 20, STACK_BYTES_MIN = 1 << 20 };

static void signals_begin(void)
{
    static const int defaults[] = {SIGCHLD, SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGALRM, SIGXCPU};
    sigset_t none;
    for (size_t i = 0; i < sizeof defaults / sizeof *defaults; i++)
        (void)signal(defaults[i], SIG_DFL);
    /* Schedulers of clusters send these to all processes of a job. The launcher waits for them (launcher.c). */
    (void)signal(SIGUSR1, SIG_IGN);
    (void)signal(SIGUSR2, SIG_IGN);
    (void)signal(SIGXFSZ, SIG_IGN); /* a file over its limit is a failed write (EFBIG), which has a name */
    sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
}

/* Messages would be written into a file that got the number of a closed standard stream. */
static void descriptors_begin(void)
{
    int fd;
    do
        fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= 2);
    if (fd > 2) close(fd);
}

static enum aq_status stack_begin(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= STACK_BYTES)
        return AQ_OK;
    limit.rlim_cur = limit.rlim_max < STACK_BYTES ? limit.rlim_max : STACK_BYTES;
    (void)setrlimit(RLIMIT_STACK, &limit);
    if (limit.rlim_cur >= STACK_BYTES_MIN) return AQ_OK;
    return aq_fail(AQ_INVAL, "process", "the stack may have %llu KiB, %d are needed: raise the limit (ulimit -s %d)",
                   (unsigned long long)limit.rlim_cur >> 10, STACK_BYTES_MIN >> 10, STACK_BYTES >> 10);
}

/* The parent is compared after prctl: one that died before was not noticed. */
static enum aq_status parent_begin(void)
{
    const char *asked = getenv(AQ_PROCESS_PARENT);
    char parent[32];
    if (!asked) return AQ_OK;
    if (prctl(PR_SET_PDEATHSIG, SIGTERM) != 0)
        return aq_fail_errno("process", "cannot be tied to the process that started this one");
    (void)snprintf(parent, sizeof parent, "%ld", (long)getppid());
    if (strcmp(parent, asked) != 0)
        return aq_fail(AQ_ABORTED, "process", "process %.20s, which started this one, has ended", asked);
    (void)unsetenv(AQ_PROCESS_PARENT); /* the processes that this one starts have another parent */
    return AQ_OK;
}

enum aq_status aq_process_begin(void)
{
    signals_begin();
    descriptors_begin();
    (void)umask(umask(077) | 022);
    AQ_TRY(parent_begin());
    return stack_begin();
}
