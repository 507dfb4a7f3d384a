/* calls_process.c -- processes: the kernel's own, with numbers and ends of the world. See calls.h. */
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "calls.h"

long sim_kernel(long number, long a, long b, long c, long d, long e, long f);

EXPORTED pid_t getpid(void)
{
    if (!sim_here()) return (pid_t)sim_kernel(SYS_getpid, 0, 0, 0, 0, 0, 0);
    return SIM_PID_FIRST + sim_self();
}

/* Of whoever has lost its parent: 1. */
EXPORTED pid_t getppid(void)
{
    if (!sim_here()) return (pid_t)sim_kernel(SYS_getppid, 0, 0, 0, 0, 0, 0);
    const int parent = sim->process[sim_self()].parent;
    return parent >= 0 && sim->process[parent].state == SIM_READY ? SIM_PID_FIRST + parent : 1;
}

EXPORTED pid_t fork(void)
{
    REAL(fork);
    if (!sim_here()) return real();
    const int self = sim_self(), process = sim_process_make(self, sim->process[self].host, sim->process[self].name);
    const int task = sim_task_make(process, "main");
    for (int fd = 0; fd < SIM_FDS; fd++)
        if (sim->process[self].sock[fd])
            sim_sock_put(process, fd, sim->process[self].sock[fd] - 1, sim->process[self].on_exec[fd]);
    const pid_t pid = real();
    if (pid == -1) sim_die("fork", errno);
    if (pid == 0) {
        sim_me = task;
        sim_await_turn();
        return 0;
    }
    sim->process[process].pid = pid;
    sim_record(SIM_EVENT_FORK, (uint64_t)process, 0);
    sim_yield();
    return SIM_PID_FIRST + process;
}

static void before_exec(const char *path, char *const arguments[])
{
    struct sim_process *process = &sim->process[sim_self()];
    const char *slash = strrchr(path, '/');
    for (int fd = 0; fd < SIM_FDS; fd++)
        if (process->sock[fd] && process->on_exec[fd]) sim_sock_drop(sim_self(), fd);
    snprintf(process->name, sizeof process->name, "%.20s_%.20s", slash ? slash + 1 : path,
             arguments[0] && arguments[1] ? arguments[1] : "");
    sim_record(SIM_EVENT_EXEC, (uint64_t)sim_self(), strlen(process->name));
}

EXPORTED int execv(const char *path, char *const arguments[])
{
    REAL(execv);
    if (sim_here()) before_exec(path, arguments);
    return real(path, arguments);
}

EXPORTED int execvp(const char *path, char *const arguments[])
{
    REAL(execvp);
    if (sim_here()) before_exec(path, arguments);
    return real(path, arguments);
}

EXPORTED int prctl(int option, ...)
{
    unsigned long a[4];
    va_list arguments;
    va_start(arguments, option);
    for (int i = 0; i < 4; i++)
        a[i] = va_arg(arguments, unsigned long);
    va_end(arguments);
    if (sim_here() && option == PR_SET_PDEATHSIG) {
        sim->process[sim_self()].death_signal = (int32_t)a[0]; /* the driver sees to it */
        return 0;
    }
    return (int)sim_kernel(SYS_prctl, option, (long)a[0], (long)a[1], (long)a[2], (long)a[3], 0);
}

EXPORTED int kill(pid_t pid, int number)
{
    if (!sim_here()) return (int)sim_kernel(SYS_kill, pid, number, 0, 0, 0, 0);
    const int process = pid - SIM_PID_FIRST;
    if (pid <= 0 || process < 0 || process >= sim->process_end) return (int)sim_result(-ESRCH);
    const struct sim_process *to = &sim->process[process];
    if (to->pid <= 0) return (int)sim_result(-ESRCH); /* it has been waited for; 0 would be this whole group */
    const bool alive = to->state == SIM_READY;
    const bool fatal = alive && number && sim_is_fatal(to->pid, number);
    if ((int)sim_kernel(SYS_kill, to->pid, number, 0, 0, 0, 0) != 0) return -1;
    if (fatal)
        sim_to_driver(process);
    else
        sim_wake_kernel(process);
    return 0;
}

static pid_t reap(pid_t pid, int *how)
{
    int process = pid > 0 ? pid - SIM_PID_FIRST : -1;
    if (pid > 0 && (process < 0 || process >= sim->process_end)) return (pid_t)sim_result(-ECHILD);
    const pid_t got =
        (pid_t)sim_kernel(SYS_wait4, pid > 0 ? sim->process[process].pid : pid, (long)how, WNOHANG, 0, 0, 0);
    if (got <= 0) return got;
    for (process = 0; process < sim->process_end && sim->process[process].pid != got; process++)
        continue;
    sim->process[process].pid = 0; /* the kernel may give it again */
    return SIM_PID_FIRST + process;
}

EXPORTED pid_t wait4(pid_t pid, int *how, int options, struct rusage *usage)
{
    int status = 0;
    if (!sim_here()) return (pid_t)sim_kernel(SYS_wait4, pid, (long)how, options, (long)usage, 0, 0);
    for (;;) {
        const pid_t got = reap(pid, &status);
        if (got > 0 && how) *how = status;
        if (usage) *usage = (struct rusage){.ru_maxrss = 1 << 15};
        if (got != 0 || options & WNOHANG) {
            if (got == 0) sim_yield();
            return got;
        }
        sim->task[sim_me].kernel = true;
        (void)sim_sleep(SIM_FOR_CHILD, (uint64_t)pid, SIM_NEVER);
        sim->task[sim_me].kernel = false;
    }
}

EXPORTED pid_t waitpid(pid_t pid, int *how, int options)
{
    return wait4(pid, how, options, NULL);
}

EXPORTED pid_t wait(int *how)
{
    return wait4(-1, how, 0, NULL);
}
