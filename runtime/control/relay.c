/* relay.c -- see the header. Both directions block, each in its own thread: neither can delay the other. */
#include "relay.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "aqsgd/base/file.h"
#include "aqsgd/base/thread.h"

enum { CARRIED_BYTES = 64 << 10 };

/* Until the end of `from`, or until `to` takes nothing any more. */
static void carry(int from, int to, char *buffer)
{
    for (;;) {
        const ssize_t got = read(from, buffer, CARRIED_BYTES);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0 || !aq_write_all(to, buffer, (size_t)got)) return;
    }
}

static void carry_in(void *context)
{
    static char buffer[CARRIED_BYTES];
    const int channel = *(const int *)context;
    carry(STDIN_FILENO, channel, buffer);
    (void)shutdown(channel, SHUT_WR); /* the launcher has gone: the daemon's job ends */
}

enum aq_status aq_relay_split(int *channel, pid_t *daemon)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        return aq_fail_errno("daemon", "cannot open a channel on standard input and output");
    const pid_t pid = fork();
    const int null = pid == 0 ? open("/dev/null", O_RDWR | O_CLOEXEC) : -1;
    if (pid == -1 || (pid == 0 && (null == -1 || dup2(null, 0) == -1 || dup2(null, 1) == -1))) {
        close(pair[0]);
        close(pair[1]);
        return aq_fail_errno("daemon", "cannot split into daemon and relay");
    }
    if (null != -1) close(null);
    close(pair[pid == 0]);
    *channel = pair[pid != 0];
    *daemon = pid;
    return AQ_OK;
}

int aq_relay_run(int channel, pid_t daemon)
{
    static char buffer[CARRIED_BYTES];
    struct aq_thread *thread;
    int how = 0;
    if (signal(SIGPIPE, SIG_IGN) == SIG_ERR || aq_thread_open("relay", carry_in, &channel, &thread) != AQ_OK)
        (void)kill(daemon, SIGTERM);
    else
        carry(channel, STDOUT_FILENO, buffer);
    (void)shutdown(channel, SHUT_RDWR); /* nobody hears it any more */
    while (waitpid(daemon, &how, 0) == -1 && errno == EINTR)
        continue;
    return WIFSIGNALED(how) ? 128 + WTERMSIG(how) : WEXITSTATUS(how); /* the thread ends with the process */
}
