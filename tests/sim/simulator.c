/*
 * simulator.c -- the driver of a simulated world: starts its processes, does to them what the plan says, buries them.
 *
 *     simulator --seed N --library FILES --horizon SECONDS [--KEY N ...] [--trace FILE] < PLAN
 *
 * The last line on standard output is a JSON object: how it ended, what its trace was. The exit code is 0 where the
 * main process has ended and nothing is left, 1 otherwise. Times of the plan are the world's, in ms. A line each:
 *
 *     line A B LATENCY_US JITTER_US MBPS     of hosts A and B, both ways; MBPS 0: no limit
 *     process NAME HOST LOG ARGUMENT...      what can be started (tab between arguments)
 *     start AT NAME                          as a child of the driver
 *     main NAME                              once no process runs whose name begins so, and none is to be started, the
 *                                            others are told to end (SIGTERM), and after a while the world ends
 *     kill AT NAME K                         SIGKILL to the K-th living process of that name (prefix; modulo the count)
 *     term AT NAME K                         SIGTERM
 *     freeze AT NAME K MS                    it gets no turn for that long
 *     cut AT A B MS                          nothing from host A gets to host B, for that long; -1: any host
 *     reset AT A B                           every stream between them breaks
 *     power AT HOST MS                       off; MS later the disk has what it has, the host's processes start again
 *                                            (of the main ones those called ...-again); AT sN: at the N-th sync
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "world.h"

enum { PROGRAMS_MAX = 64, ARGUMENTS_MAX = 48, FAULTS_MAX = 512, STUCK_S = 120 };
#define AFTER_MAIN_NS (600 * SIM_S) /* so long workers and daemons may take to notice that their launcher is gone */

struct program {
    char name[32], *log, *arguments[ARGUMENTS_MAX + 1];
    int host, process; /* -1: does not run */
    bool stays;        /* started by the plan: it comes back with its host */
};

struct fault {
    uint64_t at_ns, at_sync; /* 0: at a time */
    char what[12], name[32];
    long a, b, c;
    bool done;
};

static struct program programs[PROGRAMS_MAX];
static struct fault faults[FAULTS_MAX];
static int program_count, fault_count, exit_code = -1;
static char main_name[32];
static int pidfds[SIM_PROCESSES];
static char shared[64], environment_path[96];
static const char *library, *power_helper;

long sim_kernel(long number, long a, long b, long c, long d, long e, long f);

long sim_kernel(long number, long a, long b, long c, long d, long e, long f)
{
    return syscall(number, a, b, c, d, e, f);
}

static _Noreturn void wrong(const char *text, const char *what)
{
    fprintf(stderr, "simulator: %s '%s'\n", text, what);
    exit(2);
}

/* ---- the plan ---- */

static struct program *program_of(const char *name)
{
    for (int i = 0; i < program_count; i++)
        if (strcmp(programs[i].name, name) == 0) return &programs[i];
    wrong("no such process", name);
}

static void read_process(char *line)
{
    struct program *p = &programs[program_count++];
    char *save = NULL, *word = strtok_r(line, "\t", &save);
    int count = 0;
    char log[4096];
    if (program_count == PROGRAMS_MAX) wrong("too many processes", line);
    if (!word || sscanf(word, "process %31s %d %4095s", p->name, &p->host, log) != 3) wrong("no process", line);
    p->log = strdup(log);
    p->process = -1;
    while ((word = strtok_r(NULL, "\t", &save)) && count < ARGUMENTS_MAX)
        p->arguments[count++] = strdup(word);
}

static void read_line_of(const char *line)
{
    long a, b, latency, jitter;
    double mbps;
    if (sscanf(line, "line %ld %ld %ld %ld %lf", &a, &b, &latency, &jitter, &mbps) != 5 || a >= SIM_HOSTS ||
        b >= SIM_HOSTS || a < 0 || b < 0)
        wrong("no line", line);
    sim->line[a][b].latency_ns = (uint64_t)latency * 1000;
    sim->line[a][b].jitter_ns = (uint64_t)jitter * 1000;
    sim->line[a][b].byte_ps = mbps > 0 ? (uint64_t)(8e6 / mbps) : 0;
    sim->line[b][a] = sim->line[a][b];
}

static void read_fault(const char *line)
{
    struct fault *f = &faults[fault_count++];
    unsigned long long sync = 0;
    double at = 0;
    if (fault_count == FAULTS_MAX) wrong("too many faults", line);
    if (sscanf(line, "%11s s%llu", f->what, &sync) != 2 && sscanf(line, "%11s %lf", f->what, &at) != 2)
        wrong("no line of a plan", line);
    f->at_ns = (uint64_t)(at * 1e6);
    f->at_sync = sync;
    if (sync > 0) sim->sync_alarm = sync;
    const bool named = strcmp(f->what, "start") == 0 || strcmp(f->what, "kill") == 0 || strcmp(f->what, "term") == 0 ||
                       strcmp(f->what, "freeze") == 0;
    if (named ? sscanf(line, "%*s %*s %31s %ld %ld", f->name, &f->a, &f->b) < 1
              : sscanf(line, "%*s %*s %ld %ld %ld", &f->a, &f->b, &f->c) < 2)
        wrong("no line of a plan", line);
}

static void read_plan(void)
{
    static char line[1 << 16];
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        if (!line[0] || line[0] == '#') continue;
        if (strncmp(line, "line ", 5) == 0)
            read_line_of(line);
        else if (strncmp(line, "process ", 8) == 0)
            read_process(line);
        else if (strncmp(line, "main ", 5) == 0)
            snprintf(main_name, sizeof main_name, "%.31s", line + 5);
        else
            read_fault(line);
    }
    if (!main_name[0]) wrong("no main in the", "plan");
}

/* ---- processes ---- */

static void become(const struct program *p)
{
    const int null = open("/dev/null", O_RDONLY), log = open(p->log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    char path[128];
    sim->process[p->process].pid = getpid(); /* before it looks for itself */
    if (null == -1 || log == -1 || dup2(null, 0) == -1 || dup2(log, 1) == -1 || dup2(log, 2) == -1) _exit(125);
    (void)close_range(3, ~0U, 0);
    setenv("LD_PRELOAD", library, 1);
    setenv("AQ_SIM", environment_path, 1);
    snprintf(path, sizeof path, "POWER_ROOT_%d", p->host);
    if (getenv(path)) {
        setenv("POWER_LOSS_ROOT", getenv(path), 1);
        snprintf(path, sizeof path, "POWER_STORE_%d", p->host);
        setenv("POWER_LOSS_STORE", getenv(path) ? getenv(path) : "", 1);
    }
    execv(p->arguments[0], p->arguments);
    _exit(126);
}

static void start(struct program *p)
{
    p->process = sim_process_make(-1, p->host, p->name);
    (void)sim_task_make(p->process, "main");
    const pid_t pid = fork();
    if (pid == 0) become(p);
    sim->process[p->process].pid = pid;
    pidfds[p->process] = (int)syscall(SYS_pidfd_open, pid, 0);
    p->stays = true;
}

static bool is_main(const char *name)
{
    return strncmp(name, main_name, strlen(main_name)) == 0;
}

static bool is_over(int process)
{
    struct pollfd fd = {.events = POLLIN};
    if (sim->process[process].state != SIM_READY || sim->process[process].pid == 0) return false;
    if (pidfds[process] == 0) pidfds[process] = (int)syscall(SYS_pidfd_open, sim->process[process].pid, 0);
    fd.fd = pidfds[process];
    return fd.fd >= 0 ? poll(&fd, 1, 0) > 0 : errno == ESRCH;
}

static void await_end(int process)
{
    while (!is_over(process)) {
        const struct timespec moment = {.tv_nsec = 50000};
        nanosleep(&moment, NULL);
    }
}

static void bury(int process, bool silent);

/* Signal it; if that is its death, it is buried. */
static void end(int process, int number, bool silent)
{
    if (sim->process[process].pid <= 0) return;
    const bool fatal = sim_is_fatal(sim->process[process].pid, number);
    kill(sim->process[process].pid, number);
    if (fatal)
        bury(process, silent);
    else
        sim_wake_kernel(process);
}

/* It is dead in the kernel: let the world know, and take along whom it took along. */
static void bury(int process, bool silent)
{
    struct sim_process *p = &sim->process[process];
    int how = 0;
    await_end(process);
    p->state = SIM_DEAD;
    if (pidfds[process] > 0) close(pidfds[process]);
    pidfds[process] = -1;
    for (int i = 1; i < sim->task_end; i++)
        if (sim->task[i].process == process) sim->task[i].state = SIM_DEAD;
    sim_process_drop(process, silent);
    sim_record(SIM_EVENT_DEATH, (uint64_t)process, silent);
    const bool orphan = p->parent < 0 || sim->process[p->parent].state != SIM_READY;
    if (orphan && waitpid(p->pid, &how, 0) == p->pid) p->pid = 0;
    for (int i = 0; i < program_count; i++) {
        if (programs[i].process != process) continue;
        programs[i].process = -1;
        if (is_main(programs[i].name)) exit_code = WIFEXITED(how) ? WEXITSTATUS(how) : -WTERMSIG(how);
    }
    for (int i = 0; i < sim->process_end; i++) {
        struct sim_process *child = &sim->process[i];
        if (child->parent != process || child->pid == 0) continue;
        if (child->state == SIM_DEAD) { /* a zombie that nobody else waits for */
            if (waitpid(child->pid, &how, 0) == child->pid) child->pid = 0;
        } else if (child->death_signal) {
            end(i, child->death_signal, silent);
        }
    }
    sim_wake_kernel(-1);
}

static void bury_all(void)
{
    for (int i = 0; i < sim->process_end; i++)
        if (is_over(i)) bury(i, false);
}

static int living(const char *prefix, long number)
{
    int found[SIM_PROCESSES], count = 0;
    for (int i = 0; i < sim->process_end; i++)
        if (sim->process[i].state == SIM_READY && sim->process[i].pid > 0 &&
            strncmp(sim->process[i].name, prefix, strlen(prefix)) == 0)
            found[count++] = i;
    return count ? found[number % count] : -1;
}

/* ---- faults ---- */

static void later(const struct fault *f, const char *what, uint64_t ms)
{
    if (fault_count == FAULTS_MAX) wrong("too many faults", what);
    faults[fault_count] = *f;
    strncpy(faults[fault_count].what, what, sizeof f->what - 1);
    faults[fault_count].what[sizeof f->what - 1] = 0;
    faults[fault_count].done = false;
    faults[fault_count].at_sync = 0;
    faults[fault_count++].at_ns = sim->now_ns + ms * SIM_MS;
}

static void power_off(int host)
{
    for (int i = 0; i < sim->process_end; i++)
        if (sim->process[i].state == SIM_READY && sim->process[i].host == host && sim->process[i].pid > 0) {
            end(i, SIGKILL, true);
        }
}

/* The helper makes the host's folder anew from what its disk had, and prints the next store's path. */
static void power_on(int host)
{
    char command[8192], key[32], path[4096] = "";
    for (int i = 0; i < SIM_CONNS; i++)
        for (int s = 0; s < 2; s++) {
            struct sim_conn *conn = &sim->conn[i];
            if (!conn->used || !conn->silent[s] || conn->host[s] != host) continue;
            conn->half[1 - s].reset_ns = sim->now_ns + sim->line[host][conn->host[1 - s]].latency_ns;
            conn->open[s] = conn->silent[s] = false;
            sim_wake_set(conn->half[1 - s].readers);
            sim_wake_set(conn->half[s].writers);
            if (!conn->open[1 - s]) conn->used = false;
        }
    if (power_helper) {
        snprintf(command, sizeof command, "%s %d %llu", power_helper, host, (unsigned long long)sim_draw(1000000000));
        FILE *said = popen(command, "r");
        if (!said || !fgets(path, sizeof path, said) || pclose(said) != 0) wrong("the power helper failed", command);
        path[strcspn(path, "\n")] = 0;
        snprintf(key, sizeof key, "POWER_STORE_%d", host);
        setenv(key, path, 1);
    }
    for (int i = 0; i < program_count; i++)
        if (programs[i].host == host && programs[i].process < 0 &&
            (is_main(programs[i].name) ? strstr(programs[i].name, "-again") != NULL : programs[i].stays))
            start(&programs[i]);
}

static void do_fault(struct fault *f)
{
    const bool kills = strcmp(f->what, "kill") == 0, terms = strcmp(f->what, "term") == 0;
    sim_record(SIM_EVENT_FAULT, (uint64_t)f->what[0], (uint64_t)f->a);
    if (strcmp(f->what, "start") == 0) {
        if (program_of(f->name)->process < 0) start(program_of(f->name));
    } else if (kills || terms || strcmp(f->what, "freeze") == 0) {
        const int process = living(f->name, f->a);
        if (process < 0) return;
        fprintf(stderr, "simulator: %.3f s: %s %s (process %d)\n", (double)sim->now_ns * 1e-9, f->what,
                sim->process[process].name, process);
        if (!kills && !terms) {
            sim->process[process].frozen_until_ns = sim->now_ns + (uint64_t)f->b * SIM_MS;
            return;
        }
        end(process, kills ? SIGKILL : SIGTERM, false);
    } else if (strcmp(f->what, "cut") == 0 || strcmp(f->what, "mend") == 0) {
        const bool on = f->what[0] == 'c';
        sim_cut((int)f->a, (int)f->b, on);
        if (on) later(f, "mend", (uint64_t)f->c);
    } else if (strcmp(f->what, "reset") == 0) {
        sim_reset_between((int)f->a, (int)f->b);
    } else if (strcmp(f->what, "power") == 0) {
        power_off((int)f->a);
        later(f, "on", (uint64_t)f->b);
    } else if (strcmp(f->what, "on") == 0) {
        power_on((int)f->a);
    } else {
        wrong("no such fault", f->what);
    }
    if (f->what[0] != 's' && !kills && !terms)
        fprintf(stderr, "simulator: %.3f s: %s %ld %ld %ld\n", (double)sim->now_ns * 1e-9, f->what, f->a, f->b, f->c);
}

static bool main_over(void)
{
    for (int i = 0; i < program_count; i++)
        if (is_main(programs[i].name) && programs[i].process >= 0) return false;
    for (int i = 0; i < fault_count; i++)
        if (!faults[i].done &&
            (strcmp(faults[i].what, "on") == 0 || (strcmp(faults[i].what, "start") == 0 && is_main(faults[i].name))))
            return false;
    return exit_code != -1;
}

/* The others: daemons are asked to end, peers that are not ours are ended. */
static void end_others(void)
{
    for (int i = 0; i < program_count; i++)
        if (programs[i].process >= 0)
            end(programs[i].process, strncmp(programs[i].name, "hostile", 7) == 0 ? SIGKILL : SIGTERM, false);
}

static bool anyone(void)
{
    for (int i = 0; i < sim->process_end; i++)
        if (sim->process[i].state == SIM_READY && sim->process[i].pid > 0) return true;
    return false;
}

/* What is due now; when the next thing is. */
static uint64_t do_faults(void)
{
    uint64_t next = SIM_NEVER;
    for (int i = 0; i < fault_count; i++) {
        if (faults[i].done) continue;
        const bool by_sync = faults[i].at_sync > 0;
        if (by_sync ? faults[i].at_sync <= sim->syncs : faults[i].at_ns <= sim->now_ns) {
            faults[i].done = true;
            do_fault(&faults[i]);
        } else if (!by_sync && faults[i].at_ns < next) {
            next = faults[i].at_ns;
        }
    }
    return next;
}

/* ---- the loop ---- */

static void tell_waits(void)
{
    static const char *const whys[] = {"start", "poll", "futex", "mutex", "thread", "child", "time", "disk", "burial"};
    for (int i = 1; i < sim->task_end; i++) {
        const struct sim_task *t = &sim->task[i];
        if (t->state != SIM_READY && t->state != SIM_WAITING) continue;
        const double until = t->wake_ns == SIM_NEVER ? -1 : (double)t->wake_ns * 1e-9;
        fprintf(stderr, "simulator: task %d (%s of %d, %s): %s %#llx, until %.3f s\n", i, t->name, t->process,
                sim->process[t->process].name, t->state == SIM_READY ? "ready" : whys[t->why],
                (unsigned long long)t->key, until);
    }
}

/* Until it is the driver's turn. Meanwhile processes may die by themselves. */
static void await(void)
{
    uint64_t turns = sim->turns;
    for (int idle = 0;;) {
        const uint32_t bell = __atomic_load_n(&sim->bell, __ATOMIC_ACQUIRE);
        if (__atomic_load_n(&sim->task[0].turn, __ATOMIC_ACQUIRE)) break;
        const struct timespec moment = {.tv_nsec = 1000000};
        syscall(SYS_futex, &sim->bell, FUTEX_WAIT, bell, &moment, NULL, 0);
        if (__atomic_load_n(&sim->task[0].turn, __ATOMIC_ACQUIRE)) break;
        const int running = sim->running;
        if (running > 0 && is_over(sim->task[running].process)) { /* it has ended, and with it goes the turn */
            bury(sim->task[running].process, false);
            if (main_over()) break;
            sim_hand_on();
        }
        idle = turns == sim->turns ? idle + 1 : 0;
        turns = sim->turns;
        if (idle < STUCK_S * 1000) continue;
        fprintf(stderr, "simulator: task %d has not come back for %d s\n", running, STUCK_S);
        tell_waits();
        sim->verdict = SIM_HANGS;
        return;
    }
    __atomic_store_n(&sim->task[0].turn, 0, __ATOMIC_RELAXED);
}

static void run(void)
{
    uint64_t main_ended = SIM_NEVER;
    while (sim->verdict == SIM_RUNS) {
        uint64_t next = do_faults();
        bury_all();
        if (main_ended == SIM_NEVER && main_over()) {
            main_ended = sim->now_ns;
            end_others();
        }
        if (main_ended != SIM_NEVER && main_ended + AFTER_MAIN_NS < next) next = main_ended + AFTER_MAIN_NS;
        if (main_ended != SIM_NEVER && (sim->now_ns >= main_ended + AFTER_MAIN_NS || !anyone())) break;
        sim->task[0].state = SIM_WAITING;
        sim->task[0].woken = false;
        sim->task[0].wake_ns = next;
        sim_hand_on();
        await();
        if (sim->bury >= 0) {
            bury(sim->bury, false);
            sim->bury = -1;
            for (int i = 1; i < sim->task_end; i++)
                if (sim->task[i].state == SIM_WAITING && sim->task[i].why == SIM_FOR_BURIAL) sim_wake(i);
        }
    }
}

static void write_trace(const char *path)
{
    static const char *const kinds[] = {"turn", "clock", "send",  "receive", "connect", "close",
                                        "fork", "exec",  "death", "fault",   "file",    "chance"};
    FILE *file = fopen(path, "we");
    if (!file) wrong("cannot write", path);
    const uint64_t first = sim->record_count > SIM_EVENTS ? sim->record_count - SIM_EVENTS : 0;
    for (uint64_t i = first; i < sim->record_count; i++) {
        const struct sim_record *r = &sim->record[i % SIM_EVENTS];
        fprintf(file, "%llu %u %s %llu %llu\n", (unsigned long long)r->now_ns, r->task, kinds[r->kind],
                (unsigned long long)r->a, (unsigned long long)r->b);
    }
    fclose(file);
}

static void set(const char *key, const char *value)
{
    const struct {
        const char *key;
        uint64_t *to;
        double unit;
    } keys[] = {{"--seed", &sim->seed, 1},
                {"--horizon", &sim->horizon_ns, 1e9},
                {"--yield-every", &sim->yield_every, 1},
                {"--stall-every", &sim->stall_every, 1},
                {"--stall-ms", &sim->stall_ns_max, 1e6},
                {"--flip-every", &sim->flip_every, 1},
                {"--disk-ms", &sim->disk_ns_max, 1e6},
                {"--lose-sync-every", &sim->lose_sync_every, 1},
                {"--fail-disk-every", &sim->fail_disk_every, 1}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strcmp(key, keys[i].key) == 0) {
            *keys[i].to = (uint64_t)(strtod(value, NULL) * keys[i].unit);
            return;
        }
    wrong("no such option", key);
}

static void make_world(void)
{
    snprintf(shared, sizeof shared, "/aqsim-%d", (int)getpid());
    snprintf(environment_path, sizeof environment_path, "/dev/shm%s", shared);
    const int fd = shm_open(shared, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (fd == -1 || ftruncate(fd, sizeof *sim) != 0) wrong("cannot make", environment_path);
    sim = mmap(NULL, sizeof *sim, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (sim == MAP_FAILED) wrong("cannot map", environment_path);
    close(fd);
    sim_me = 0;
    sim->driver = getpid();
    sim->bury = -1;
    sim->port_next = 20000;
    sim->task[0].process = -1;
    sim->task[0].state = SIM_WAITING;
    sim->task_end = 1;
    strncpy(sim->task[0].name, "driver", sizeof sim->task[0].name - 1);
    sim->horizon_ns = 3600 * SIM_S;
    sim->yield_every = 8;
    sim->flip_port_first = 7100; /* links listen there or higher */
}

static void kill_all(void)
{
    for (int i = 0; i < sim->process_end; i++)
        if (sim->process[i].state == SIM_READY && sim->process[i].pid > 0) kill(sim->process[i].pid, SIGKILL);
    while (waitpid(-1, NULL, 0) > 0 || errno == EINTR)
        continue;
}

int main(int count, char **arguments)
{
    const char *trace = NULL;
    static const char *const verdicts[] = {"ended", "ended", "hangs", "takes too long"};
    if (!(personality(0xffffffff) & ADDR_NO_RANDOMIZE) && personality(ADDR_NO_RANDOMIZE) != -1)
        execv("/proc/self/exe", arguments);
    make_world();
    for (int i = 1; i + 1 < count; i += 2) {
        if (strcmp(arguments[i], "--library") == 0)
            library = arguments[i + 1];
        else if (strcmp(arguments[i], "--trace") == 0)
            trace = arguments[i + 1];
        else if (strcmp(arguments[i], "--power") == 0)
            power_helper = arguments[i + 1];
        else
            set(arguments[i], arguments[i + 1]);
    }
    sim->rng[0] = sim->seed * 0x9e3779b97f4a7c15ULL + 1;
    sim->rng[1] = sim->seed ^ 0xd1b54a32d192ed03ULL;
    for (int i = 0; i < 16; i++)
        (void)sim_draw(2);
    read_plan();
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET((size_t)sched_getcpu(), &one);
    (void)sched_setaffinity(0, sizeof one, &one); /* one runs at a time: on one core the turn is handed on faster */
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    run();
    const bool left = anyone();
    if (sim->verdict != SIM_RUNS || left) tell_waits();
    kill_all();
    if (trace) write_trace(trace);
    printf("{\"verdict\": \"%s\", \"exit\": %d, \"left\": %s, \"digest\": \"%016llx\", \"seconds\": %.3f, \"turns\": "
           "%llu, "
           "\"processes\": %d, \"sent\": %llu, \"connects\": %llu, \"flips\": %llu, \"syncs\": %llu, \"lost_syncs\": "
           "%llu}\n",
           verdicts[sim->verdict], exit_code, left ? "true" : "false", (unsigned long long)sim->digest,
           (double)sim->now_ns * 1e-9, (unsigned long long)sim->turns, sim->process_end,
           (unsigned long long)sim->sent_bytes, (unsigned long long)sim->connects, (unsigned long long)sim->flips,
           (unsigned long long)sim->syncs, (unsigned long long)sim->losts);
    shm_unlink(shared);
    return sim->verdict == SIM_RUNS && !left ? 0 : 1;
}
