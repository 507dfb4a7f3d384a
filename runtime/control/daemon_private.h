/* daemon_private.h -- shared by daemon.c (the loop), daemon_connection.c (rights of peers) and daemon_worker.c
 * (processes). */
#ifndef RUNTIME_DAEMON_PRIVATE_H
#define RUNTIME_DAEMON_PRIVATE_H

#include <stdbool.h>
#include <sys/types.h>

#include "control.h"
#include "control_socket.h"
#include "daemon.h"
#include "heartbeat.h"
#include "job.h"
#include "owned_folder.h"
#include "run_folder.h"
#include "watch.h"

enum {
    DAEMON_CONNECTIONS_MAX = 512, /* about 4 KiB each until it has proved itself; half of them for one source */
    DAEMON_ACCEPTS_MAX = 64,      /* in a turn of the loop: others have a turn, too                          */
    DAEMON_WORKERS_MAX = AQ_JOB_RANKS_MAX,
    /* Of a worker: channel, output, log. Of a connection one. And some of our own. */
    DAEMON_DESCRIPTORS_MAX = 3 * DAEMON_WORKERS_MAX + DAEMON_CONNECTIONS_MAX + 64,
    DAEMON_TEXT_BYTES = 512,
    DAEMON_LOG_BYTES_MAX = 4 << 20,      /* of one of a worker's two log files                                   */
    DAEMON_ROOM = 64 << 10,              /* a worker is read only while the owner's buffer takes this much more  */
    DAEMON_LOOKER_BYTES_MAX = 32 << 10,  /* of a line of one that has no job: three paths and a name          */
    DAEMON_REPORT_BYTES_MAX = 512 << 10, /* of a line of a worker: 64 KiB of trace, escaped                   */
    /* Bytes that may wait for a proved peer: a report with every byte as \u00xx, or 256 KiB of a log likewise, after
     * a full buffer. For a worker: its start line after one. */
    DAEMON_QUEUE_BYTES_MAX = AQ_CONTROL_BUFFER_BYTES + 6 * DAEMON_REPORT_BYTES_MAX,
    DAEMON_LOOKERS_BYTES_MAX = 8 << 20, /* of all that wait for answers; then there are no logs for a while */
    DAEMON_STRANGER_LINES = 8,          /* of the log in 10 s about peers without a job      */
    DAEMON_OWNER_LINES = 64             /* about the one that has it                         */
};

enum connection_state {
    CONNECTION_FREE = 0,
    CONNECTION_GREETING, /* hello sent, proof awaited */
    CONNECTION_PROVED
};

struct connection {
    enum connection_state state;
    struct aq_control *control;
    uint64_t deadline_ns; /* of the greeting, and of silence of one that has no job */
    uint64_t since_ns;
    uint64_t source; /* aq_source_of its address */
    char nonce[AQ_NONCE_CHARS + 1];
    char peer[64];
};

struct worker {
    bool used;
    uint32_t rank;
    pid_t pid;   /* 0: reaped, or never started */
    bool reaped; /* waitpid has it; its last lines are still to be sent */
    int wait_status;
    bool killed;           /* by this daemon                                   */
    uint64_t memory_kills; /* of this cgroup when it was started               */
    uint64_t peak_bytes;   /* that it ever held, when it is reaped             */
    struct aq_heartbeat_page *heartbeat;
    uint64_t beats_told;        /* of its heartbeat                  */
    struct aq_control *control; /* NULL: closed                  */
    bool held;                  /* back-pressure has stopped its lines: there may be some that ring no poll */
    int output;                 /* its stdout and stderr; -1: closed */
    int log;                    /* -1: cannot be written             */
    uint64_t log_bytes;
    uint64_t since_ns;
    uint64_t kill_ns;             /* without a channel, it may live until then */
    char line[DAEMON_TEXT_BYTES]; /* the line that is coming in      */
    size_t line_bytes;
    char last[DAEMON_TEXT_BYTES]; /* the last whole line with a cause */
};

struct daemon {
    const struct aq_daemon_config *config;
    int signals;
    int listener; /* -1: private */
    bool ending;  /* SIGTERM without a job, or a second one */
    bool term_seen;
    bool children_due; /* a worker may have ended that was not asked after yet */
    uint64_t accept_paused_until_ns; /* no descriptors are left: no new connections until then */
    struct aq_log_limit strangers, owner_lines;
    struct connection connections[DAEMON_CONNECTIONS_MAX];
    struct connection *owner; /* whose job runs; NULL: none    */
    char job[DAEMON_TEXT_BYTES];
    char run[AQ_RUN_PATH_BYTES];
    char checkpoint[AQ_RUN_PATH_BYTES];
    struct aq_owner run_owner; /* whose these folders are; its job is the one above */
    bool probing;              /* no job: its owner measures the network. Folders: of the job before */
    uint64_t job_since_ns;
    uint64_t beat_ns, beat_due_ns;     /* ours to the owner; 0: none                             */
    uint64_t owner_silence_ns;         /* for so long the owner is waited for; 0: for ever       */
    struct aq_watch_clock owner_clock; /* of the owner's silence, while this process runs        */
    uint64_t owner_heard_ns;           /* on it                                                  */
    struct worker workers[DAEMON_WORKERS_MAX];
};

/* daemon_connection.c */
void connection_accept(struct daemon *daemon);
void connection_open_private(struct daemon *daemon, struct aq_control *control);
void connection_serve(struct daemon *daemon, struct connection *connection);
void connection_push(struct daemon *daemon, struct connection *connection); /* what waits for it */
void connection_close(struct daemon *daemon, struct connection *connection);
void connection_expire(struct daemon *daemon, uint64_t now_ns);
void connection_check(struct daemon *daemon); /* ends those whose certificates have been revoked */
/* The place of a new connection from `source`, by aq_admit: one of a connection that must leave, or a free one.
 * NULL: it is not admitted. */
struct connection *connection_place(struct daemon *daemon, uint64_t source, uint64_t now_ns);
/* To the owner, if there is one; takes the reference. A failure ends the connection. */
void owner_send(struct daemon *daemon, json_t *message);

/* daemon_beat.c: the owner's wish, from `open`; our beats and those of the workers, where they are due; its silence. */
void beat_open(struct daemon *daemon, const json_t *message);
void beat_heard(struct daemon *daemon);
void beat_advance(struct daemon *daemon, uint64_t now_ns);
int beat_tick_ms(const struct daemon *daemon, int most);

/* daemon_worker.c */
enum aq_status worker_start(struct daemon *daemon, uint32_t rank, json_t *message);
struct worker *worker_find(struct daemon *daemon, uint32_t rank);
void worker_serve(struct daemon *daemon, struct worker *worker);  /* lines of its channel  */
void worker_listen(struct daemon *daemon, struct worker *worker); /* its standard error    */
void worker_reap(struct daemon *daemon);                          /* after SIGCHLD, and at each turn */
void worker_kill(struct worker *worker);
void worker_kill_all(struct daemon *daemon);
bool worker_any(const struct daemon *daemon);
json_t *worker_status(const struct daemon *daemon);

#endif
