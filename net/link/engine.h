/*
 * engine.h -- how the net loop does its input and output: submit many operations, reap many.
 *
 * Two members with one contract: io_uring, and poll() where io_uring is not permitted (containers with a seccomp
 * filter). An operation belongs to the link that submits it, is in flight at most once (busy), and comes back from
 * `wait` exactly once, also after `cancel` (result -ECANCELED, or what it had become meanwhile). Locking: only the
 * loop's thread, also open and close.
 */
#ifndef NET_ENGINE_H
#define NET_ENGINE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "aqsgd/base.h"

enum aq_io_kind { AQ_IO_RECEIVE, AQ_IO_SEND, AQ_IO_POLL };

struct aq_io {
    enum aq_io_kind kind;
    int fd;
    short events;          /* POLL */
    struct msghdr message; /* RECEIVE, SEND: stays as it is while busy */
    int result;            /* bytes, or revents, or -errno             */
    bool busy;
    void *owner;    /* the submitter's */
    uint32_t place; /* the engine's    */
};

struct aq_engine; /* opaque */

struct aq_engine_ops {
    const char *name;
    enum aq_status (*open)(uint32_t ops_max, struct aq_engine **out); /* AQ_NODEV: not on this machine. Not logged */
    void (*close)(struct aq_engine *engine);
    void (*submit)(struct aq_engine *engine, struct aq_io *op); /* at most ops_max are busy */
    void (*cancel)(struct aq_engine *engine, struct aq_io *op); /* of a busy op             */
    /* Sleep until an operation is done or the absolute time; returns how many of done[] were filled. */
    uint32_t (*wait)(struct aq_engine *engine, uint64_t deadline_ns, struct aq_io **done, uint32_t count);
};

extern const struct aq_engine_ops aq_engine_uring;
extern const struct aq_engine_ops aq_engine_poll;

#endif
