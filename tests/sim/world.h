/*
 * world.h -- the simulator's world: shared memory of all processes of one simulated run, in which one thread runs at a
 * time.
 *
 * The programs are the shipped ones, unchanged. Each is a real process with sim_calls (calls_*.c) preloaded: what a
 * thread asks of the kernel that could wait, tell the time, draw chance or reach another process goes through here.
 * A task is a thread. Exactly one runs; it hands the turn on (sim_hand_on) where it would wait, and sometimes where
 * it need not (sim_yield). Who is next is drawn by the seed; where nobody can run, the clock goes to the earliest
 * deadline.
 * Nothing here is guarded by a lock: whoever has the turn may change anything.
 *
 *     clock       world->now_ns: what clock_gettime says; computing takes no time, a turn takes a few microseconds
 *     network     net.c: streams between hosts with latency, rate, partitions, resets and flipped bits
 *     processes   a table of ours with numbers of ours; fork, exec, death and SIGKILL are the kernel's own
 *     driver      task 0: the program simulator.c, which starts, kills, cuts, freezes and buries by a plan
 *
 * The trace is a digest of every turn, message and chance. Two runs of a seed have the same one, or the world leaks.
 */
#ifndef TESTS_SIM_WORLD_H
#define TESTS_SIM_WORLD_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define SIM_NEVER     UINT64_MAX
#define SIM_MS        1000000ULL
#define SIM_S         1000000000ULL
#define SIM_EPOCH_S   1800000000ULL /* what the wall clock says at the beginning */
#define SIM_PID_FIRST 1000

enum {
    SIM_PROCESSES = 2048, /* of one run, the ended ones counted         */
    SIM_TASKS = 1024,
    SIM_TASK_WORDS = SIM_TASKS / 64,
    SIM_FDS = 512, /* of one process */
    SIM_SOCKS = 4096,
    SIM_CONNS = 1024,
    SIM_RING = 1 << 18, /* bytes on their way in one direction of a stream */
    SIM_SEGMENTS = 256,
    SIM_BACKLOG = 64,
    SIM_HOSTS = 16,
    SIM_EVENTS = 1 << 19 /* of the trace that are kept */
};

enum sim_state { SIM_FREE, SIM_READY, SIM_WAITING, SIM_DEAD };

/* Why a task waits: for the report of a hang. */
enum sim_why {
    SIM_FOR_START,
    SIM_FOR_POLL,
    SIM_FOR_FUTEX,
    SIM_FOR_MUTEX,
    SIM_FOR_THREAD,
    SIM_FOR_CHILD,
    SIM_FOR_TIME,
    SIM_FOR_DISK,
    SIM_FOR_BURIAL,
    SIM_FOR_NOBODY
};

/* Kinds of a trace's events. */
enum sim_event {
    SIM_EVENT_TURN,
    SIM_EVENT_CLOCK,
    SIM_EVENT_SEND,
    SIM_EVENT_RECEIVE,
    SIM_EVENT_CONNECT,
    SIM_EVENT_CLOSE,
    SIM_EVENT_FORK,
    SIM_EVENT_EXEC,
    SIM_EVENT_DEATH,
    SIM_EVENT_FAULT,
    SIM_EVENT_FILE,
    SIM_EVENT_CHANCE
};

struct sim_task {
    uint32_t turn; /* a futex: 1, it is this task's */
    uint32_t state;
    int32_t process;
    bool begun, woken,
        kernel; /* begun: it has had a turn (exec goes on in it); kernel: it waits for descriptors of the kernel, too */
    uint32_t why;
    uint64_t wake_ns, key; /* key: the address of a futex or mutex, a thread's number */
    char name[16];
};

struct sim_process {
    uint32_t state; /* SIM_FREE, SIM_READY (it lives), SIM_DEAD */
    pid_t pid;      /* the kernel's */
    int32_t parent, host, death_signal;
    uint64_t frozen_until_ns;
    char name[48];
    uint16_t sock[SIM_FDS]; /* 0: none of ours, else the number of a sock plus 1 */
    bool on_exec[SIM_FDS];  /* closed by exec */
};

struct sim_segment {
    uint64_t at_ns;
    uint32_t bytes;
};

/* Bytes in one direction. */
struct sim_half {
    uint32_t head, used, first, count; /* of the ring; of the segments */
    struct sim_segment segment[SIM_SEGMENTS];
    uint64_t last_ns, busy_ns, fin_ns, reset_ns; /* SIM_NEVER: none */
    uint64_t readers[SIM_TASK_WORDS], writers[SIM_TASK_WORDS];
};

struct sim_conn {
    bool used, open[2], sent_fin[2], silent[2]; /* silent: this side's host is without power */
    bool local;                                 /* a socketpair */
    int32_t host[2];
    uint16_t port[2];
    uint64_t up_ns; /* when the connecting side learns that it stands */
    bool up, refused;
    struct sim_half half[2]; /* half[s]: what side s reads */
};

enum sim_kind { SIM_SOCK_NEW, SIM_SOCK_DOOR, SIM_SOCK_STREAM, SIM_SOCK_EPOLL };

struct sim_sock {
    uint32_t kind, refs;
    bool nonblocking;
    int32_t conn, side, host, error;
    uint16_t port;
    uint32_t waiting; /* of a door: connections, oldest first */
    struct {
        int32_t conn;
        uint64_t at_ns;
    } backlog[SIM_BACKLOG];
    uint64_t readers[SIM_TASK_WORDS];
};

struct sim_line {
    uint64_t latency_ns, jitter_ns, byte_ps; /* byte_ps: picoseconds a byte takes, 0 none */
    bool cut;
    uint64_t healed_ns;
};

struct sim_record {
    uint64_t now_ns;
    uint32_t task, kind;
    uint64_t a, b;
};

struct sim_world {
    uint64_t seed, rng[2], now_ns, digest, turns, horizon_ns;
    uint64_t yield_every, stall_every, stall_ns_max; /* one call in so many hands the turn on, or stalls; 0: none */
    uint64_t flip_every;                             /* one frame in so many has a bit flipped */
    uint64_t disk_ns_max, lose_sync_every, fail_disk_every; /* of hosts whose disk is so */
    uint32_t flip_port_first;
    pid_t driver;
    int32_t running, task_end, process_end, bury; /* bury: of this process; -1 none */
    uint32_t bell;                                /* a futex: the driver is to look */
    uint32_t verdict;                             /* SIM_ENDED.. below */
    uint64_t sync_alarm;                          /* at the sync of this number the driver is woken */
    uint16_t port_next;
    uint64_t losts, flips, syncs, sent_bytes, connects;
    uint64_t record_count;
    struct sim_line line[SIM_HOSTS][SIM_HOSTS]; /* from, to */
    struct sim_process process[SIM_PROCESSES];
    struct sim_task task[SIM_TASKS];
    struct sim_sock sock[SIM_SOCKS];
    struct sim_conn conn[SIM_CONNS];
    uint8_t ring[SIM_CONNS][2][SIM_RING];
    struct sim_record record[SIM_EVENTS];
};

enum sim_verdict { SIM_RUNS, SIM_ENDED, SIM_HANGS, SIM_TOO_LONG };

extern struct sim_world *sim; /* NULL: this process is in no world */
extern __thread int sim_me;   /* the task of this thread */

/* sched.c */
uint64_t sim_draw(uint64_t below); /* 0 <= . < below */
void sim_record(enum sim_event kind, uint64_t a, uint64_t b);
int sim_task_make(int process, const char *name); /* ready from the start */
void sim_task_end(int task);
void sim_wake(int task);
void sim_wake_set(const uint64_t set[SIM_TASK_WORDS]);
void sim_wake_kernel(int process);                                 /* -1: of all processes */
bool sim_sleep(enum sim_why why, uint64_t key, uint64_t until_ns); /* false: the time has come */
void sim_yield(void);                                              /* perhaps */
void sim_hand_on(void); /* choose the next one and give it the turn; returns at once */
void sim_await_turn(void);
void sim_to_driver(int bury); /* until it has done it */
_Noreturn void sim_die(const char *text, long number);
int sim_process_make(int parent, int host, const char *name);
int sim_self(void); /* the process of this task */
/* Does this signal end that process at once? Of one that is blocked, caught or ignored: no. */
bool sim_is_fatal(pid_t pid, int number);

/* net.c: what a descriptor's sock can do. Statuses are errno values, 0 good. */
struct sim_sock *sim_sock_of(int process, int fd);
int sim_sock_make(enum sim_kind kind, int host);
void sim_sock_put(int process, int fd, int sock, bool on_exec); /* takes a reference */
void sim_sock_drop(int process, int fd);
void sim_process_drop(int process, bool silent); /* all its descriptors, at its death */
void sim_pair(int out[2]);
int sim_listen(struct sim_sock *sock, int host, uint16_t port);
int sim_connect(struct sim_sock *sock, int from, int to, uint16_t port);
int sim_accept(struct sim_sock *acceptor, int *conn);
short sim_ready(const struct sim_sock *sock, short events, uint64_t *next_ns);
void sim_watch(struct sim_sock *sock, short events, int task, bool on);
ssize_t sim_send(struct sim_sock *sock, const uint8_t *bytes, size_t count);
ssize_t sim_receive(struct sim_sock *sock, uint8_t *bytes, size_t count, bool peek);
void sim_shut(struct sim_sock *sock);
void sim_reset_between(int a, int b); /* -1: any host */
void sim_cut(int from, int to, bool on);
uint64_t sim_queued(const struct sim_sock *sock); /* sent and not yet taken */

#endif
