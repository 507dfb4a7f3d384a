/*
 * clients_world.h -- what the server of split learning sees of the world in fuzz_clients.c: connections, certificates,
 * launchers of turns, the clock, split.json and files of weights, all in memory.
 *
 * The functions that reach them are replaced at link time (tests/fuzz.cmake has the list). They assert what must hold
 * whenever they are called. Locking: one thread.
 */
#ifndef TESTS_FUZZ_CLIENTS_WORLD_H
#define TESTS_FUZZ_CLIENTS_WORLD_H

#include "split_private.h"

enum {
    SLOTS = 7,
    NAMES = 4, /* a, b, c, d */
    QUEUE = 24,
    ROUNDS = 2,
    SAMPLES = 4, /* of an honest client */
    SAMPLES_MAX = 1000,
    BATCH = 2,
    FILE_BYTES = 5,
    BYTES_MAX = (2 << 20) + 40, /* of a stage's file */
    CHILDREN = 64,
    FD_SIGNALS = (1 << 20) - 2
};

/* The client's end of a connection. Its certificate is certificates[k]. */
struct slot {
    struct aq_control *control; /* the server's end; NULL: it has closed it, or has not accepted it */
    bool open, waits;           /* waits: to be accepted */
    bool deaf;                  /* it reads nothing */
    json_t *queue[QUEUE];       /* lines that the server has not read */
    uint32_t count;
};

/* The launcher of a turn. */
struct child {
    char of; /* 0: the server has waited for it */
    bool lives;
};

struct world {
    struct slot slots[SLOTS];
    struct child children[CHILDREN];
    uint32_t child_count;
    struct aq_control *launches[NAMES]; /* the server's ends of their channels */
    uint64_t marks[NAMES];              /* newest checkpoints */
    uint64_t untils[NAMES];             /* ends of the turns that were last offered */
    uint32_t files[NAMES];              /* turns whose files were taken whole */
    json_t *state;                      /* split.json; NULL: none */
    uint32_t disk_fails;                /* at the write of this number from now on; 0: never */
    uint32_t dies;                      /* the server is killed behind the write of this number from now on; 0: never */
    bool dead;                          /* it was: nothing that it does counts any more */
    bool disk_failed, refuse_files, stop_asked;
    struct aq_job job;
};

extern struct world world;
/* c and d have two connections and one; 's' has the certificate of a stage, and 0 has none. */
extern const char certificates[SLOTS];
extern const uint64_t plan_hash;
extern const char root[]; /* output.path of the server */

int world_index(char name);
void world_begin(void); /* as new */
void world_over(void);  /* the server has ended: no connection and no launcher is left */
void slot_open(int k);
void slot_say(int k, json_t *line); /* takes the line; NULL is fine */
void launch_says(char name);        /* a line of the launcher of its turn */
struct child *child_running(char name);
struct child *child_of(pid_t pid);
char control_name(const struct aq_control *control); /* of its certificate */

/* fuzz_clients.c: a client is told a line. */
void world_hears(int k, const json_t *line);

#endif
