/*
 * worker_links.c -- a worker joins its neighbours: the stages before and after it, and its replicas.
 *
 * A worker listens at one address for all neighbours that connect, and reports it to the launcher, which passes it on.
 * It then makes its links in the order of the neighbours' ranks, whoever connects. That is an order of all links of the
 * job (by the lower rank, then by the higher), the same for everybody: of the links that are not made yet the first is
 * the next of both its ends, so that no circle of waits can be.
 */
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "net/endpoint.h"
#include "net/tls.h"
#include "security.h"
#include "transfer.h"
#include "worker.h"

enum {
    CONTROL_FRAMES = 8,  /* frames without a body, in addition to the send buffers: norms, a request that is due */
    START_SECONDS = 600, /* other stages may be loading                                             */
    FAR_MS = 5,          /* a round trip from which on a plan had better know of it */
    FARTHER = 2          /* and this many times what it knows                       */
};

/* Addresses of neighbours, as far as the launcher has sent them. */
struct addresses {
    char of[AQ_JOB_RANKS_MAX][AQ_ADDRESS_TEXT_BYTES];
};

static struct aq_link **link_to(struct aq_worker *w, uint32_t peer)
{
    if (peer / w->P != w->replica) return &w->replicas.peers[peer / w->P];
    return peer < w->rank ? &w->pipeline.link_in : &w->pipeline.link_out;
}

static struct aq_link_config config_to(const struct aq_worker *w, uint32_t peer)
{
    const bool stage = peer / w->P == w->replica;
    struct aq_link_config config = !stage ? w->me->link_group : peer < w->rank ? w->me->link_in : w->me->link_out;
    config.rank = w->rank;
    config.peer_rank = peer;
    if (stage) config.pages = aq_device_pages(w->device); /* bodies go between it and the device */
    if (stage) config.send_frames += CONTROL_FRAMES + AQ_EDGE_REQUESTS;
    if (stage) config.send_frames += w->worker_parts.frames;
    return config;
}

bool aq_worker_listens_for(const struct aq_worker *w, uint32_t peer)
{
    /* Replicas that train have closed their listeners: they connect to one that returns. */
    if (w->replicas.rounds.returns && peer / w->P != w->replica) return aq_job_linked(w->job, w->rank, peer);
    return aq_job_linked(w->job, w->rank, peer) && aq_job_listener(w->job, w->rank, peer) == w->rank;
}

enum { ROOM_BYTES = 16, ROOM_TEXT_BYTES = sizeof "?room=" + 2 * ROOM_BYTES };

/* A room of the relay that nobody else can know: the launcher passes its name on to those that call. */
static enum aq_status new_room(char out[ROOM_TEXT_BYTES])
{
    uint8_t bytes[ROOM_BYTES];
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        return aq_fail_errno("worker", "the system gave no random numbers for a room of the relay");
    memcpy(out, "?room=", sizeof "?room=" - 1);
    (void)aq_hex(bytes, sizeof bytes, out + sizeof "?room=" - 1);
    return AQ_OK;
}

/* Under TLS the peer's certificate must be an expected one: one or two named ones, else the one of its rank; in a
 * turn of split learning the client's. */
static void add_expected(const struct aq_worker *w, uint32_t only, struct aq_text *address)
{
    if (w->job->split.client) {
        aq_text_add(address, "?site=%s", w->job->split.client);
        return;
    }
    uint32_t peers[2], count = 0;
    for (uint32_t peer = 0; peer < w->P * w->W; peer++)
        if (only == AQ_WORKER_ALL_PEERS ? aq_worker_listens_for(w, peer) : peer == only) {
            if (count < 2) peers[count] = peer;
            count++;
        }
    if (count == 1 || count == 2)
        aq_text_add(address, "%cpeer=%u", strchr(aq_text_of(address), '?') ? '&' : '?', peers[0]);
    if (count == 2) aq_text_add(address, "&or=%u", peers[1]);
}

enum aq_status aq_worker_listen(struct aq_worker *w, uint32_t peer, struct aq_listener **listener)
{
    const struct aq_job_stage *place = &w->job->pipeline.stages[w->rank];
    const struct aq_job_link *link = &w->job->link;
    struct aq_text address = {0};
    struct aq_endpoint endpoint;
    char reached[AQ_ENDPOINT_TEXT_BYTES], room[ROOM_TEXT_BYTES] = "";
    const char *why;
    const bool relayed = place->dials; /* it listens nowhere else */
    if (relayed) AQ_TRY(new_room(room));
    enum aq_status status = relayed          ? aq_endpoint_parse(link->relay, &endpoint, &why)
                            : place->address ? aq_endpoint_parse(place->address, &endpoint, &why)
                                             : aq_endpoint_parse_host(link->host, &endpoint, &why);
    if (status != AQ_OK)
        return aq_fail(status, "worker", "'%.80s' is not an address: %s",
                       relayed          ? link->relay
                       : place->address ? place->address
                                        : link->host,
                       why);
    if (!place->address && !relayed && link->port_first) endpoint.port = (uint16_t)(link->port_first + w->rank);
    aq_text_add(&address, "%s%s%s", relayed ? AQ_JOB_RELAY_SCHEME : aq_job_link_scheme(w->job, w->links.tls != NULL),
                aq_endpoint_text(&endpoint, endpoint.port, reached), room);
    if (w->links.tls) add_expected(w, peer, &address);
    uint16_t port;
    status = aq_link_listen(w->links.net, aq_text_of(&address), listener, &port);
    if (status == AQ_OK) aq_endpoint_text(&endpoint, port, reached);
    if (status == AQ_OK)
        aq_log("worker", 1, "%s %s%s", relayed ? "waits at the relay" : "listens at", reached,
               w->links.tls ? ", by TLS" : "");
    if (status == AQ_OK && snprintf(w->links.told, sizeof w->links.told, "%s%s", reached, room) >= AQ_LINK_TOLD_BYTES)
        status = aq_fail(AQ_INVAL, "worker", "the address at which it listens is too long: %s", reached);
    aq_text_deinit(&address);
    return status;
}

enum aq_status aq_worker_listens_all(const struct aq_worker *w)
{
    for (uint32_t peer = 0; peer < w->P * w->W; peer++)
        if (aq_worker_listens_for(w, peer))
            AQ_TRY(aq_control_send(w->control, json_pack("{s:s, s:s, s:I}", "event", "listening", "address",
                                                         w->links.told, "peer", (json_int_t)peer)));
    return AQ_OK;
}

/* The launcher's word where a neighbour listens; they come in any order. */
static enum aq_status await_address(struct aq_worker *w, struct addresses *known, uint32_t peer, uint64_t deadline)
{
    while (!known->of[peer][0]) {
        json_t *message;
        const char *to;
        uint32_t from = 0;
        AQ_TRY(aq_worker_await(w, "connect", deadline, &message));
        enum aq_status status = aq_control_get_text(message, "address", &to);
        if (status == AQ_OK) status = aq_control_get_u32(message, "from", &from);
        if (status == AQ_OK && w->replicas.rounds.returns && from / w->P != w->replica) { /* it returns, too */
            status = aq_worker_rounds_address(w, message);
            json_decref(message);
            AQ_TRY(status);
            continue;
        }
        if (status == AQ_OK && (from >= w->P * w->W || !aq_job_linked(w->job, w->rank, from) ||
                                aq_worker_listens_for(w, from) || known->of[from][0]))
            status = aq_fail(AQ_PROTO, "worker", "rank %u is asked to connect to rank %u, to which it has no link",
                             w->rank, from);
        if (status == AQ_OK && snprintf(known->of[from], AQ_ADDRESS_TEXT_BYTES, "%s", to) >= AQ_ADDRESS_TEXT_BYTES)
            status = aq_fail(AQ_PROTO, "worker", "the address of rank %u is too long", from);
        json_decref(message);
        AQ_TRY(status);
    }
    return AQ_OK;
}

void aq_worker_address(const struct aq_worker *w, const char *to, uint32_t peer, struct aq_text *out)
{
    aq_text_add(out, "%s%s",
                aq_job_relayed(w->job, w->rank, peer) ? AQ_JOB_RELAY_SCHEME
                                                      : aq_job_link_scheme(w->job, w->links.tls != NULL),
                to);
    if (w->links.tls) aq_text_add(out, "%cpeer=%u", strchr(to, '?') ? '&' : '?', peer);
}

static enum aq_status connect_to(struct aq_worker *w, const char *to, uint32_t peer,
                                 enum aq_status (*meanwhile)(void *worker))
{
    struct aq_text address = {0};
    aq_worker_address(w, to, peer, &address);
    struct aq_link_config config = config_to(w, peer);
    config.meanwhile = meanwhile;
    config.context = w;
    const enum aq_status status = aq_link_connect(w->links.net, aq_text_of(&address), &config,
                                                  aq_clock_after(w->job->link.connect_ns_max), link_to(w, peer));
    aq_text_deinit(&address);
    return status;
}

enum aq_status aq_worker_replica_accept(struct aq_worker *w, struct aq_listener *listener, uint32_t replica,
                                        uint64_t deadline_ns)
{
    const uint32_t peer = replica * w->P + w->position;
    struct aq_link_config config = config_to(w, peer);
    config.meanwhile = aq_worker_rounds_look; /* who is awaited may be lost */
    config.context = w;
    AQ_TRY(aq_link_accept(listener, &config, deadline_ns, link_to(w, peer)));
    aq_log("worker", 1, "rank %u has connected", peer);
    return AQ_OK;
}

enum aq_status aq_worker_replica_connect(struct aq_worker *w, const char *address, uint32_t replica)
{
    const uint32_t peer = replica * w->P + w->position;
    AQ_TRY(connect_to(w, address, peer, aq_worker_rounds_look));
    aq_log("worker", 1, "connected to rank %u at %s", peer, address);
    return AQ_OK;
}

struct aq_link_config aq_worker_transfer_link(const struct aq_worker *w, uint32_t replica)
{
    struct aq_link_config config = config_to(w, replica * w->P + w->position);
    aq_transfer_link_config(&config);
    return config;
}

void aq_worker_replica_close(struct aq_worker *w, uint32_t replica)
{
    struct aq_link **link = &w->replicas.peers[replica];
    struct aq_link_stats stats;
    if (!*link) return;
    aq_link_stats(*link, &stats);
    w->links.ended_gradient.body += stats.sent_kinds[AQ_FRAME_CHUNK - 16].body;
    w->links.ended_gradient.packed += stats.sent_kinds[AQ_FRAME_CHUNK - 16].packed;
    w->links.ended_packing_ns += stats.packing_ns;
    w->links.ended_wire_bytes += stats.sent_wire_bytes;
    aq_link_close(*link);
    *link = NULL;
}

static enum aq_status join(struct aq_worker *w, struct aq_listener *listener, struct addresses *known)
{
    /* Of a replica that returns one stage may get its file much later than another: the launcher limits that. */
    const uint64_t deadline =
        w->replicas.rounds.returns ? AQ_NEVER : aq_clock_after((uint64_t)START_SECONDS * 1000000000u);
    for (uint32_t peer = 0; peer < w->P * w->W; peer++) {
        if (!aq_job_linked(w->job, w->rank, peer)) continue;
        if (w->replicas.rounds.returns && peer / w->P != w->replica) continue; /* at its first round's end */
        if (aq_worker_listens_for(w, peer)) { /* who comes out of turn is kept until it is its turn */
            const struct aq_link_config config = config_to(w, peer);
            AQ_TRY(aq_link_accept(listener, &config, deadline, link_to(w, peer)));
            aq_log("worker", 1, "rank %u has connected", peer);
        } else {
            AQ_TRY(await_address(w, known, peer, deadline));
            AQ_TRY(connect_to(w, known->of[peer], peer, NULL));
            aq_log("worker", 1, "connected to rank %u at %.*s", peer, (int)strcspn(known->of[peer], "?"),
                   known->of[peer]);
        }
    }
    return AQ_OK;
}

double aq_worker_distance_ms(const struct aq_worker *w)
{
    struct aq_link_stats stats;
    if (!w->pipeline.link_out) return 0;
    aq_link_stats(w->pipeline.link_out, &stats);
    const double rtt_ms = (double)stats.path_ns * 1e-6, known_ms = (double)w->job->edges[w->position].rtt_ms;
    return rtt_ms < FAR_MS || rtt_ms < FARTHER * known_ms ? 0 : rtt_ms;
}

enum aq_status aq_worker_net_open(struct aq_worker *w)
{
    if (w->links.net) return AQ_OK;
    if (aq_security_on(w->job) && w->plan->ranks > 1)
        AQ_TRY(aq_job_at_client(w->job, w->rank)
                   ? aq_tls_open_site(aq_security_folder(w->job), w->job->split.client, &w->links.tls)
                   : aq_tls_open(aq_security_folder(w->job), AQ_TLS_STAGE, w->rank, &w->links.tls));
    const struct aq_net_config net = {
        .eventcount = w->eventcount, .trace = w->trace, .links_max = 4 + w->W, .tls = w->links.tls};
    return aq_net_open(&net, &w->links.net);
}

enum aq_status aq_worker_links_open(struct aq_worker *w)
{
    void *memory;
    if (w->W > 1) {
        AQ_TRY(aq_alloc(w->W * sizeof(struct aq_link *), &memory));
        w->replicas.peers = memory;
    }
    if (w->W > 1 && w->job->reduce.patience_ns) {
        AQ_TRY(aq_alloc(w->W * sizeof *w->replicas.rounds.addresses, &memory));
        w->replicas.rounds.addresses = memory;
        AQ_TRY(AQ_NEW(w->W, &w->replicas.rounds.caches));
    }
    AQ_TRY(aq_worker_net_open(w));
    struct aq_listener *listener = NULL;
    enum aq_status status = AQ_OK;
    AQ_TRY(aq_alloc(sizeof(struct addresses), &memory));
    const bool listens = aq_job_listens(w->job, w->rank) || w->replicas.rounds.returns;
    if (listens) AQ_TRY_GOTO(aq_worker_listen(w, AQ_WORKER_ALL_PEERS, &listener), out);
    if (listens) AQ_TRY_GOTO(aq_worker_listens_all(w), out);
    status = join(w, listener, memory);
    /* The other replicas come at its first round's end. */
    if (status == AQ_OK && w->replicas.rounds.returns) status = aq_listener_rest(listener);
out:
    if (w->replicas.rounds.returns)
        w->replicas.rounds.listener = listener;
    else
        aq_listener_close(listener);
    aq_free(memory);
    return status;
}

/* --- the end --------------------------------------------------------------------------------------------------- */

/* Link `number`, 0 .. W + 1, of this worker, to close them all; some are NULL. */
static struct aq_link *link_number(const struct aq_worker *w, uint32_t number)
{
    if (number < 2) return number == 0 ? w->pipeline.link_out : w->pipeline.link_in;
    return w->replicas.peers ? w->replicas.peers[number - 2] : NULL;
}

enum aq_status aq_worker_drain(struct aq_worker *w, uint64_t deadline)
{
    if (w->pipeline.out) AQ_TRY(aq_edge_drain(w->pipeline.out, deadline));
    return w->pipeline.in ? aq_edge_drain(w->pipeline.in, deadline) : AQ_OK;
}

enum aq_status aq_worker_leave(struct aq_worker *w, uint64_t deadline)
{
    for (uint32_t i = 0; i < 2 + w->W; i++) {
        struct aq_link *link = link_number(w, i);
        const enum aq_status status = link ? aq_link_finish(link, deadline) : AQ_OK;
        if (status != AQ_CLOSED) AQ_TRY(status); /* closed: the neighbour finished first */
    }
    return aq_control_flush(w->control, deadline);
}

void aq_worker_links_abort(struct aq_worker *w, enum aq_status status, uint64_t deadline)
{
    for (uint32_t i = 0; i < 2 + w->W; i++)
        if (link_number(w, i)) (void)aq_link_abort(link_number(w, i), status, aq_error_text(), deadline);
}

void aq_worker_links_halt(struct aq_worker *w)
{
    for (uint32_t i = 0; i < 2 + w->W; i++)
        aq_link_halt(link_number(w, i));
}

void aq_worker_links_close(struct aq_worker *w)
{
    aq_worker_gives_close(w);
    aq_worker_rounds_close(w);
    for (uint32_t i = 0; i < 2 + w->W; i++)
        aq_link_close(link_number(w, i));
    aq_free((void *)w->replicas.peers);
    aq_free(w->replicas.rounds.addresses);
    aq_free(w->replicas.rounds.caches);
    aq_net_close(w->links.net);
    aq_tls_close(w->links.tls);
}
