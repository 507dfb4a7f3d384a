/*
 * worker_links.h -- what all links of a worker stand on, and how long it waits for those at their other ends.
 *
 * Locking: everything here belongs to the exec thread.
 */
#ifndef RUNTIME_WORKER_LINKS_H
#define RUNTIME_WORKER_LINKS_H

#include <stdbool.h>
#include <stdint.h>

#include "aqsgd/base.h"
#include "net/link.h"

struct aq_tls;    /* net/tls.h */
struct aq_worker; /* worker.h */

/* Bytes that links have packed (link.entropy) up to the last line of metrics. */
struct aq_worker_packing {
    struct aq_link_bytes forward, backward, gradient;
    double forward_left, backward_left, gradient_left; /* of the bodies between the last two lines: packed / given */
    uint64_t ns;
};

enum { AQ_LINK_TOLD_BYTES = 256 };

struct aq_worker_links {
    struct aq_tls *tls; /* NULL: links are not under TLS */
    struct aq_net *net;
    char told[AQ_LINK_TOLD_BYTES]; /* where this rank listens, as its `listening` has it */
    uint64_t silence_ns;           /* longest wait for a neighbour */
    uint64_t outages_ns;           /* all links, one after the other: how long outages may last */
    struct aq_worker_packing packing;
    struct aq_link_bytes ended_gradient; /* what links to replicas that were lost have done: sums never fall */
    uint64_t ended_packing_ns, ended_wire_bytes;
};

/* worker_links.c: who we are under TLS, the loop, and a link to each neighbour. */
enum aq_status aq_worker_links_open(struct aq_worker *worker);
/* Its parts: our identity and the loop, if they are not open; one port for all neighbours that connect, or for this
 * peer only; the launcher is told of it, for all of them; is this peer one of them? */
enum aq_status aq_worker_net_open(struct aq_worker *worker);
#define AQ_WORKER_ALL_PEERS UINT32_MAX
enum aq_status aq_worker_listen(struct aq_worker *worker, uint32_t peer, struct aq_listener **listener);
enum aq_status aq_worker_listens_all(const struct aq_worker *worker);
bool aq_worker_listens_for(const struct aq_worker *worker, uint32_t peer);
/* What a link to that peer dials; to: as the peer's `listening` or `fetch` has it. */
void aq_worker_address(const struct aq_worker *worker, const char *to, uint32_t peer, struct aq_text *out);

/* worker_links.c: the link to the same stage of another replica: accept it, or connect to that address. */
enum aq_status aq_worker_replica_accept(struct aq_worker *worker, struct aq_listener *listener, uint32_t replica,
                                        uint64_t deadline_ns);
enum aq_status aq_worker_replica_connect(struct aq_worker *worker, const char *address, uint32_t replica);
/* Of a link to it over which a checkpoint's file goes (transfer.h). */
struct aq_link_config aq_worker_transfer_link(const struct aq_worker *worker, uint32_t replica);
/* And close it, if it is open. */
void aq_worker_replica_close(struct aq_worker *worker, uint32_t replica);

/* worker_links.c: finish all links in good order, by the deadline, and flush the control channel. */
enum aq_status aq_worker_drain(struct aq_worker *worker, uint64_t deadline);
enum aq_status aq_worker_leave(struct aq_worker *worker, uint64_t deadline);

/* worker_links.c: all links: send why the run failed, by the deadline; let nothing more go; close them and what they
 * stand on. Those that are not open are fine. */
void aq_worker_links_abort(struct aq_worker *worker, enum aq_status status, uint64_t deadline);
void aq_worker_links_halt(struct aq_worker *worker);
void aq_worker_links_close(struct aq_worker *worker);

/* worker_links.c: the round trip to the next stage, where it is far and the plan does not know of so much; else 0. */
double aq_worker_distance_ms(const struct aq_worker *worker);

#endif
