/* stop_signals.c -- SIGINT, SIGTERM and SIGHUP as a descriptor. */
#include "stop_signals.h"

#include <signal.h>
#include <sys/signalfd.h>

enum aq_status aq_stop_signals(const char *what, int more, int *fd)
{
    struct sigaction hangup;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    if (more) sigaddset(&set, more);
    if (sigaction(SIGHUP, NULL, &hangup) != 0) return aq_fail_errno(what, "sigaction");
    if (hangup.sa_handler != SIG_IGN) sigaddset(&set, SIGHUP);
    if (sigprocmask(SIG_BLOCK, &set, NULL) != 0) return aq_fail_errno(what, "sigprocmask");
    if (signal(SIGPIPE, SIG_IGN) == SIG_ERR) return aq_fail_errno(what, "signal");
    const int made = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (made == -1) return aq_fail_errno(what, "signalfd");
    *fd = made;
    return AQ_OK;
}
