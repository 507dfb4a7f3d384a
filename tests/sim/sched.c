/* sched.c -- whose turn it is, chance, and the trace. See world.h. */
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "world.h"

struct sim_world *sim;
__thread int sim_me = -1;

long sim_kernel(long number, long a, long b, long c, long d, long e, long f);

static void futex(uint32_t *word, int op, uint32_t value)
{
    const struct timespec moment = {.tv_sec = 5}; /* of the kernel's: to see whether there is a driver still */
    sim_kernel(SYS_futex, (long)word, op, value, op == FUTEX_WAIT ? (long)&moment : 0, 0, 0);
}

_Noreturn void sim_die(const char *text, long number)
{
    char line[256];
    const int count = snprintf(line, sizeof line, "simulator: %s (%ld), task %d of process %d\n", text, number, sim_me,
                               sim && sim_me >= 0 ? sim->task[sim_me].process : -1);
    sim_kernel(SYS_write, 2, (long)line, count, 0, 0, 0);
    sim_kernel(SYS_exit_group, 99, 0, 0, 0, 0, 0);
    __builtin_unreachable();
}

int sim_self(void)
{
    return sim->task[sim_me].process;
}

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
}

/* xoroshiro128+: the world's only chance. */
uint64_t sim_draw(uint64_t below)
{
    uint64_t *s = sim->rng;
    const uint64_t out = s[0] + s[1], x = s[0] ^ s[1];
    s[0] = ((s[0] << 24) | (s[0] >> 40)) ^ x ^ (x << 16);
    s[1] = (x << 37) | (x >> 27);
    return below ? (out >> 11) % below : 0;
}

void sim_record(enum sim_event kind, uint64_t a, uint64_t b)
{
    sim->record[sim->record_count++ % SIM_EVENTS] =
        (struct sim_record){.now_ns = sim->now_ns, .task = (uint32_t)sim_me, .kind = (uint32_t)kind, .a = a, .b = b};
    sim->digest = mix(sim->digest ^ mix(sim->now_ns + 1)) + mix((uint64_t)sim_me << 32 | (uint64_t)kind) +
                  mix(a + 0x9e3779b97f4a7c15ULL) * 3 + mix(b ^ 0xd1b54a32d192ed03ULL) * 5;
}

/* A thread that has ended may still be joined, for as long as its process lives. */
static bool is_free(const struct sim_task *task)
{
    return task->state == SIM_FREE || (task->state == SIM_DEAD && sim->process[task->process].state == SIM_DEAD);
}

int sim_task_make(int process, const char *name)
{
    int task = 0;
    while (task < SIM_TASKS && !is_free(&sim->task[task]))
        task++;
    if (task == SIM_TASKS) sim_die("too many threads", SIM_TASKS);
    if (task >= sim->task_end) sim->task_end = task + 1;
    sim->task[task] = (struct sim_task){.state = SIM_READY, .process = process, .wake_ns = SIM_NEVER};
    strncpy(sim->task[task].name, name, sizeof sim->task[task].name - 1);
    return task;
}

void sim_task_end(int task)
{
    sim->task[task].state = SIM_DEAD;
    for (int i = 0; i < sim->task_end; i++) /* who joins it */
        if (sim->task[i].state == SIM_WAITING && sim->task[i].why == SIM_FOR_THREAD &&
            sim->task[i].key == (uint64_t)task)
            sim_wake(i);
}

int sim_process_make(int parent, int host, const char *name)
{
    if (sim->process_end == SIM_PROCESSES) sim_die("too many processes", SIM_PROCESSES);
    const int p = sim->process_end++;
    sim->process[p] = (struct sim_process){.state = SIM_READY, .parent = parent, .host = host};
    strncpy(sim->process[p].name, name, sizeof sim->process[p].name - 1);
    return p;
}

void sim_wake(int task)
{
    sim->task[task].woken = true;
}

void sim_wake_set(const uint64_t set[SIM_TASK_WORDS])
{
    for (int word = 0; word < SIM_TASK_WORDS; word++)
        for (uint64_t left = set[word]; left; left &= left - 1)
            sim_wake(word * 64 + __builtin_ctzll(left));
}

void sim_wake_kernel(int process)
{
    for (int i = 1; i < sim->task_end; i++)
        if (sim->task[i].state == SIM_WAITING && sim->task[i].kernel &&
            (process < 0 || sim->task[i].process == process))
            sim_wake(i);
}

/* When this task could run: now, or later; SIM_NEVER as things are. */
static uint64_t ripe(const struct sim_task *task)
{
    uint64_t at = SIM_NEVER;
    if (task->state == SIM_READY || (task->state == SIM_WAITING && task->woken)) at = sim->now_ns;
    if (task->state == SIM_WAITING && task->wake_ns < at) at = task->wake_ns;
    if (at == SIM_NEVER || task->process < 0) return at;
    const uint64_t frozen = sim->process[task->process].frozen_until_ns;
    return at > frozen ? at : frozen;
}

/* The next task: one of those that can run now, else the clock goes on. */
static int choose(void)
{
    for (;;) {
        uint64_t earliest = SIM_NEVER, others = SIM_NEVER;
        uint32_t can = 0;
        for (int i = 0; i < sim->task_end; i++) {
            const uint64_t at = ripe(&sim->task[i]);
            if (at <= sim->now_ns) can++;
            if (at < earliest) earliest = at;
            if (i > 0 && at < others) others = at;
        }
        if (sim->verdict != SIM_RUNS) return 0;
        if (sim->now_ns > sim->horizon_ns) {
            sim->verdict = SIM_TOO_LONG;
            return 0;
        }
        if (can > 0) {
            uint64_t which = sim_draw(can);
            for (int i = 0; i < sim->task_end; i++)
                if (ripe(&sim->task[i]) <= sim->now_ns && which-- == 0) return i;
        }
        if (earliest == SIM_NEVER) {
            sim->verdict = SIM_HANGS;
            return 0;
        }
        sim->now_ns = earliest;
    }
}

void sim_hand_on(void)
{
    sim->now_ns += 1000 + sim_draw(16000); /* nothing is for nothing */
    const int next = choose();
    sim->turns++;
    sim->running = next;
    sim->task[next].woken = false;
    sim->task[next].state = SIM_READY;
    sim_record(SIM_EVENT_TURN, (uint64_t)next, 0);
    __atomic_store_n(&sim->task[next].turn, 1, __ATOMIC_RELEASE);
    if (next == 0) {
        __atomic_add_fetch(&sim->bell, 1, __ATOMIC_RELEASE);
        futex(&sim->bell, FUTEX_WAKE, 1);
    } else if (next != sim_me) {
        futex(&sim->task[next].turn, FUTEX_WAKE, 1);
    }
}

void sim_await_turn(void)
{
    struct sim_task *task = &sim->task[sim_me];
    while (!__atomic_load_n(&task->turn, __ATOMIC_ACQUIRE)) {
        futex(&task->turn, FUTEX_WAIT, 0);
        if (sim_kernel(SYS_kill, sim->driver, 0, 0, 0, 0, 0) == -1 && errno == ESRCH)
            sim_kernel(SYS_exit_group, 99, 0, 0, 0, 0, 0); /* the world has ended without us */
    }
    __atomic_store_n(&task->turn, 0, __ATOMIC_RELAXED);
    task->begun = true;
}

bool sim_sleep(enum sim_why why, uint64_t key, uint64_t until_ns)
{
    struct sim_task *task = &sim->task[sim_me];
    task->why = (uint32_t)why;
    task->key = key;
    task->wake_ns = until_ns;
    task->woken = false;
    task->state = SIM_WAITING;
    sim_hand_on();
    sim_await_turn();
    task->wake_ns = SIM_NEVER;
    return sim->now_ns < until_ns;
}

void sim_yield(void)
{
    if (sim->stall_every && sim_draw(sim->stall_every) == 0) {
        (void)sim_sleep(SIM_FOR_TIME, 0, sim->now_ns + sim_draw(sim->stall_ns_max));
        return;
    }
    if (!sim->yield_every || sim_draw(sim->yield_every) != 0) return;
    sim_hand_on(); /* still ready */
    sim_await_turn();
}

void sim_to_driver(int bury)
{
    struct sim_task *task = &sim->task[sim_me];
    task->why = SIM_FOR_BURIAL;
    task->key = (uint64_t)bury;
    task->state = SIM_WAITING;
    task->woken = false;
    task->wake_ns = SIM_NEVER;
    sim->bury = bury;
    sim->running = 0;
    __atomic_store_n(&sim->task[0].turn, 1, __ATOMIC_RELEASE);
    __atomic_add_fetch(&sim->bell, 1, __ATOMIC_RELEASE);
    futex(&sim->bell, FUTEX_WAKE, 1);
    sim_await_turn();
    task->state = SIM_READY;
}

bool sim_is_fatal(pid_t pid, int number)
{
    static const char *const masks[] = {"SigBlk:", "SigIgn:", "SigCgt:"};
    char path[64], text[4096];
    if (number == SIGKILL) return true;
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    const long fd = sim_kernel(SYS_openat, AT_FDCWD, (long)path, O_RDONLY | O_CLOEXEC, 0, 0, 0);
    const long count = fd < 0 ? -1 : sim_kernel(SYS_read, fd, (long)text, sizeof text - 1, 0, 0, 0);
    if (fd >= 0) (void)sim_kernel(SYS_close, fd, 0, 0, 0, 0, 0);
    text[count > 0 ? count : 0] = 0;
    for (int i = 0; i < 3; i++) {
        const char *mask = strstr(text, masks[i]);
        if (mask && strtoull(mask + strlen(masks[i]), NULL, 16) >> (number - 1) & 1) return false;
    }
    return number != SIGCHLD && number != SIGCONT && number != SIGURG && number != SIGWINCH;
}
