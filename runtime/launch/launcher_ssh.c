/*
 * launcher_ssh.c -- agents: `ssh HOST aqpiped --stdio`, one a host, that end with this launcher.
 *
 * ssh's standard input and output are a socket pair, as a private daemon's is: the control channel is the same. Its
 * standard error goes to a file in memory of at most AGENT_SAID_BYTES, whose last line is the reason if there is no
 * agent.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "child.h"
#include "launcher_private.h"
#include "runtime_text.h"
#include "ssh_host.h"

enum { AGENT_SAID_BYTES = 1 << 20, NO_SSH = 124, TAIL_BYTES = 512, END_TRIES = 100 };

/* The program to run there: found in that host's PATH, or set by the user. */
static const char *program_there(void)
{
    const char *named = getenv("AQPIPE_SSH_DAEMON");
    return named && named[0] ? named : "aqpiped";
}

enum aq_status agent_start(struct host *host)
{
    struct aq_ssh_host to;
    const char *why;
    char port[8], target[AQ_SSH_USER_BYTES + AQ_ENDPOINT_HOST_BYTES + 1];
    int channel[2];
    if (aq_ssh_parse(host->address, &to, &why) != AQ_OK)
        return aq_fail(AQ_INVAL, "launch", "'%.80s' is not a host: %s", host->address, why);
    snprintf(port, sizeof port, "%u", to.port);
    snprintf(target, sizeof target, "%s%s%s", to.user, to.user[0] ? "@" : "", to.host.host);
    struct aq_text command = {0};
    aq_text_add(&command, "exec ");
    aq_text_shell(&command, program_there());
    aq_text_add(&command, " --stdio");
    const char *arguments[16] = {
        "ssh", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=15"};
    size_t count = 8;
    if (to.port) arguments[count++] = "-p";
    if (to.port) arguments[count++] = port;
    arguments[count++] = "--";
    arguments[count++] = target;
    arguments[count] = aq_text_of(&command);
    enum aq_status status = command.status;
    const int said = memfd_create("aq-ssh", MFD_CLOEXEC);
    if (status == AQ_OK && (said == -1 || fcntl(said, F_SETFL, O_APPEND) != 0 ||
                            socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, channel) != 0))
        status = aq_fail_errno("launch", "cannot open a channel to ssh");
    if (status == AQ_OK && (status = aq_control_open(channel[0], &host->control)) != AQ_OK) {
        close(channel[0]);
        close(channel[1]);
    }
    if (status == AQ_OK) {
        const struct aq_child child = {.program = arguments[0],
                                       .arguments = arguments,
                                       .fds = {{channel[1], 0}, {channel[1], 1}, {said, 2}},
                                       .fd_count = 3,
                                       .search = true,
                                       .session = true, /* neither Ctrl-C nor a question for a password */
                                       .files_max = AGENT_SAID_BYTES,
                                       .failed = NO_SSH};
        status = aq_child_start(&child, "ssh", &host->pid);
        close(channel[1]);
    }
    aq_text_deinit(&command);
    if (host->said > 0) close(host->said);
    host->said = said == -1 ? 0 : said;
    return status;
}

/* The last non-empty line of standard error, from ssh or the agent. */
static void last_line(int said, char out[TAIL_BYTES])
{
    out[0] = 0;
    const off_t end = said > 0 ? lseek(said, 0, SEEK_END) : 0;
    const off_t from = end > TAIL_BYTES - 1 ? end - (TAIL_BYTES - 1) : 0;
    ssize_t got = said > 0 ? pread(said, out, TAIL_BYTES - 1, from) : 0;
    while (got > 0 && strchr("\r\n \t", out[got - 1]))
        got--;
    out[got > 0 ? got : 0] = 0;
    const char *line = strrchr(out, '\n');
    if (line) memmove(out, line + 1, strlen(line));
}

/* How ssh ended, within a second; 0 where it has not. */
static bool ended(struct host *host, int *how)
{
    const struct timespec moment = {.tv_nsec = 10 * 1000 * 1000};
    for (int i = 0; host->pid > 0 && i < END_TRIES; i++, nanosleep(&moment, NULL)) {
        if (waitpid(host->pid, how, WNOHANG) != host->pid) continue;
        host->pid = 0;
        return true;
    }
    return false;
}

enum aq_status agent_why(struct host *host, enum aq_status status, const char *text)
{
    char line[TAIL_BYTES];
    int how = 0;
    aq_control_close(host->control);
    host->control = NULL;
    if (status == AQ_PROTO) {
        agent_end(host);
        return aq_fail(status, "launch",
                       "the output of %s is not an agent's: the shell's start-up files there must print nothing (%s)",
                       host->address, text);
    }
    const bool over = ended(host, &how);
    last_line(host->said, line);
    const char *name = host->address, *said = line[0] ? line : "it prints nothing", *program = program_there();
    if (!over || !WIFEXITED(how)) {
        if (!over) agent_end(host);
        return aq_fail(status, "launch",
                       "the agent of %s does not answer (%s; %s): does `ssh -o BatchMode=yes HOST %s --version` print "
                       "'aqpiped " AQ_VERSION "' and nothing else?",
                       name, aq_status_text(status), said, program);
    }
    switch (WEXITSTATUS(how)) {
    case NO_SSH:
        return aq_fail(AQ_NOTFOUND, "launch", "there is no ssh here for %s: install openssh-client", name);
    case 255:
        return aq_fail(AQ_CLOSED, "launch",
                       "ssh cannot reach %s (%s): `ssh -o BatchMode=yes HOST true` must work, without a question", name,
                       said);
    case 126:
    case 127:
        return aq_fail(AQ_NOTFOUND, "launch",
                       "there is no program %s at %s (%s): install aqpipe " AQ_VERSION
                       " there, or name it with AQPIPE_SSH_DAEMON=/path/to/aqpiped",
                       program, name, said);
    case 2:
        return aq_fail(AQ_MISMATCH, "launch",
                       "%s at %s is of another version, without --stdio (%s): install aqpipe " AQ_VERSION " there",
                       program, name, said);
    default:
        return aq_fail(status, "launch", "%s at %s ended with code %d: %s", program, name, WEXITSTATUS(how), said);
    }
}

enum aq_status agent_check(const struct host *host, const char *version)
{
    if (strcmp(version, AQ_VERSION) == 0) return AQ_OK;
    return aq_fail(AQ_MISMATCH, "launch",
                   "%s at %s is version %.20s, this aqpipe " AQ_VERSION ": install the same version there",
                   program_there(), host->address, version);
}

void agent_end(struct host *host)
{
    if (host->pid > 0) {
        (void)kill(host->pid, SIGKILL); /* its agent's input ends, and with it the agent */
        while (waitpid(host->pid, NULL, 0) == -1 && errno == EINTR)
            continue;
    }
    host->pid = 0;
}

void agent_tail(const struct host *host, char *how, size_t bytes)
{
    char line[TAIL_BYTES];
    last_line(host->said, line);
    const size_t used = strlen(how);
    if (line[0]) snprintf(how + used, bytes - used, ": %.300s", line);
}
