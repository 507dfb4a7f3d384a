/*
 * heal.h -- how a link gets its next stream: a mailbox between the net loop and the healer's thread.
 *
 * The loop owns the link, the healer owns acceptors, dialling and handshakes (they may block: names, TLS). There are
 * two healers: the dialler, one thread for each link that was made by connecting, and the porter, one thread for each
 * listener that its caller has closed, or lets rest, while links made through it live. `phase` names the mailbox's
 * owner:
 *
 *     STANDING  the loop's: the link has a stream                 -> PARKED by the loop, ASKED by the porter
 *     ASKED     the loop's: the peer came again, give up the old  -> PARKED by the loop
 *     PARKED    the healer's: position and slots stand still      -> GIVEN by the healer
 *     GIVEN     the loop's: a stream and the peer's position      -> STANDING by the loop
 *     OVER      nobody's: the link has ended                      <- from any, by the loop
 *
 * Every change is a release and every look an acquire, so that what was written before it comes along. Locking: the
 * phase; the rest is fixed, or belongs to the owner that the phase names.
 */
#ifndef NET_HEAL_H
#define NET_HEAL_H

#include <stdatomic.h>

#include "frame.h"
#include "net/link.h"
#include "transport.h"

enum aq_heal_phase { HEAL_STANDING, HEAL_ASKED, HEAL_PARKED, HEAL_GIVEN, HEAL_OVER };

struct aq_heal {
    /* Fixed. */
    struct aq_net *net;
    struct aq_link_config config;
    uint64_t session;
    uint32_t peer_rank;
    int wake_fd;                    /* an eventfd on which the healer sleeps     */
    char address[AQ_ADDRESS_BYTES]; /* the dialler's                             */
    struct aq_thread *thread;       /* the dialler's; the caller's to close      */
    struct aq_listener *listener;   /* the porter's; the caller's to count       */
    struct aq_heal *next;           /* the listener's list                       */

    atomic_int phase;

    /* Written by the loop before PARKED. */
    uint64_t position;    /* the next sequence that this end expects */
    uint32_t slots;       /* free here                               */
    uint64_t deadline_ns; /* of the outage                           */
    bool outlasted;       /* written before OVER: the link has ended because the outage was too long */
    bool fruitless;       /* over the stream that was lost nothing of what was due has gone */

    /* Written by the healer before GIVEN. */
    struct aq_byte_stream *stream; /* NULL: the peer refuses for good: status and text have the reason */
    uint64_t peer_position;
    uint32_t peer_slots;
    enum aq_status status;
    char text[AQ_TEXT_BYTES];
};

static inline int aq_heal_phase(struct aq_heal *heal)
{
    return atomic_load_explicit(&heal->phase, memory_order_acquire);
}

/* From one phase to another; false: it was another one already (OVER). */
static inline bool aq_heal_turn(struct aq_heal *heal, int from, int to)
{
    return atomic_compare_exchange_strong_explicit(&heal->phase, &from, to, memory_order_acq_rel, memory_order_acquire);
}

/* healer.c, any thread. */
void aq_heal_wake(int wake_fd);

/* healer.c, the caller's thread: the dialler of a link. close: after the link is detached; NULL is fine. */
enum aq_status aq_dialler_open(struct aq_net *net, const struct aq_link_config *config, const char *address,
                               uint64_t session, struct aq_heal **out);
enum aq_status aq_dialler_start(struct aq_heal *heal);
void aq_dialler_close(struct aq_heal *heal);

/* healer.c, the caller's thread: the porter of a listener. Returns when the thread has ended. */
enum aq_status aq_acceptor_thread_start(struct aq_listener *listener);
/* The work of the thread between two sleeps: it accepts pending connections and continues all handshakes. */
void aq_acceptor_thread_turn(struct aq_listener *listener, uint64_t *again_ns);

/* handshake.c: a link that was made through this listener has ended. */
void aq_listener_link_gone(struct aq_listener *listener);

#endif
