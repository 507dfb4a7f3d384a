/*
 * handshake.c -- from an address to a link: listen, accept, connect, and the three messages of docs/FRAME.md.
 *
 * All of it runs in the caller's thread, on streams that no loop knows yet. A listener keeps up to AQ_HANDSHAKES peers
 * in hand at once, so that a silent one does not keep the others out. Each has 10 s. When there are too many, aq_admit
 * chooses which one to drop, never one that has proved itself. At most one of them has been answered (the candidate):
 * an answer is a promise.
 */
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include "congestion.h"
#include "handshake.h"
#include "heal.h"
#include "link_state.h"

static const char *const AREA = "net";

void aq_handshake_drop(struct aq_handshake *h)
{
    aq_byte_stream_close(h->stream);
    h->stream = NULL;
    h->stage = STAGE_NONE;
}

struct aq_hello aq_hello_of(const struct aq_link_config *config)
{
    return (struct aq_hello){.job_digest = config->job_digest,
                             .plan_hash = config->plan_hash,
                             .rank = config->rank,
                             .peer_rank = config->peer_rank,
                             .edge = config->edge,
                             .body_bytes_max = config->body_bytes_max,
                             .receive_slots = config->receive_slots,
                             .features = AQ_FEATURE_PARTS | (config->outage_ns_max > 0 ? AQ_FEATURE_HEAL : 0u) |
                                         (config->entropy != AQ_LINK_ENTROPY_OFF ? AQ_FEATURE_PACK : 0u)};
}

void aq_handshake_say(struct aq_handshake *h, const struct aq_link_config *config, const struct aq_hello *hello)
{
    struct aq_header header = {.kind = AQ_FRAME_HELLO,
                               .from = config->rank,
                               .edge = config->edge,
                               .plan_hash = config->plan_hash,
                               .body_bytes = hello ? AQ_FRAME_HELLO_BYTES : 0};
    if (hello) {
        aq_hello_encode(hello, h->out + AQ_FRAME_HEADER_BYTES);
        header.body_digest = aq_digest(h->out + AQ_FRAME_HEADER_BYTES, AQ_FRAME_HELLO_BYTES);
    }
    aq_header_encode(&header, h->out);
    h->out_bytes = AQ_FRAME_HEADER_BYTES + header.body_bytes;
    h->out_sent = 0;
}

enum aq_status aq_handshake_write(struct aq_handshake *h)
{
    h->writing_now = true;
    while (h->out_sent < h->out_bytes) {
        size_t put;
        const struct iovec iov = {.iov_base = h->out + h->out_sent, .iov_len = h->out_bytes - h->out_sent};
        AQ_TRY(h->stream->ops->write(h->stream, &iov, 1, &put));
        h->out_sent += (uint32_t)put;
    }
    return AQ_OK;
}

static enum aq_status read_to(struct aq_handshake *h, uint32_t want)
{
    h->writing_now = false;
    while (h->in_have < want) {
        size_t got;
        const struct iovec iov = {.iov_base = h->in + h->in_have, .iov_len = want - h->in_have};
        const enum aq_status status = h->stream->ops->read(h->stream, &iov, 1, &got);
        /* A stranger is recognized by its first bytes, before it has sent a whole header. */
        if (h->in_have > 0) AQ_TRY(aq_header_sniff(h->in, h->in_have, h->text));
        if (status != AQ_OK) return status;
        h->in_have += (uint32_t)got;
    }
    return AQ_OK;
}

enum aq_status aq_handshake_read(struct aq_handshake *h, bool with_body)
{
    AQ_TRY(read_to(h, AQ_FRAME_HEADER_BYTES));
    AQ_TRY(aq_header_decode(h->in, &h->header, h->text));
    const uint32_t body_bytes = h->header.body_bytes;
    const bool abort = h->header.kind == AQ_FRAME_ABORT && body_bytes <= AQ_HANDSHAKE_IN_BYTES - AQ_FRAME_HEADER_BYTES;
    if (!abort && (h->header.kind != AQ_FRAME_HELLO || body_bytes != (with_body ? AQ_FRAME_HELLO_BYTES : 0) ||
                   h->header.sequence != 0)) {
        snprintf(h->text, sizeof h->text, "sent a %s of %u bytes where a HELLO was expected",
                 aq_frame_kind_text(h->header.kind), body_bytes);
        return AQ_PROTO;
    }
    AQ_TRY(read_to(h, AQ_FRAME_HEADER_BYTES + body_bytes));
    const uint8_t *body = h->in + AQ_FRAME_HEADER_BYTES;
    if (body_bytes > 0 && aq_digest(body, body_bytes) != h->header.body_digest) {
        snprintf(h->text, sizeof h->text, "a %s arrived broken", aq_frame_kind_text(h->header.kind));
        return AQ_CORRUPT;
    }
    h->in_have = 0;
    if (abort) {
        const enum aq_status cause = aq_abort_decode(body, body_bytes, h->text);
        return cause == AQ_AGAIN || cause == AQ_CLOSED || cause == AQ_IO ? AQ_ABORTED : cause;
    }
    if (with_body) {
        AQ_TRY(aq_hello_decode(body, &h->hello, h->text));
        if (h->hello.rank != h->header.from || h->hello.edge != h->header.edge ||
            h->hello.plan_hash != h->header.plan_hash) {
            snprintf(h->text, sizeof h->text, "sent a HELLO whose header and body differ");
            return AQ_PROTO;
        }
    }
    return AQ_OK;
}

/* "rank 3", or "any rank", "no edge" for the number that means all or none. */
static const char *number_text(const char *what, const char *none, uint32_t value, char out[32])
{
    if (value == UINT32_MAX)
        snprintf(out, 32, "%s %s", none, what);
    else
        snprintf(out, 32, "%s %u", what, value);
    return out;
}

enum aq_status aq_handshake_match(struct aq_handshake *h, const struct aq_link_config *config)
{
    const struct aq_hello *p = &h->hello;
    char here[32], there[32];
    if (!aq_byte_stream_proves(h->stream, p->rank)) {
        snprintf(h->text, sizeof h->text, "claims to be rank %u, but its certificate is another stage's", p->rank);
        return AQ_MISMATCH;
    }
    if (p->job_digest != config->job_digest) {
        snprintf(h->text, sizeof h->text, "is of another job: %016llx there (rank %u), %016llx here (rank %u)",
                 (unsigned long long)p->job_digest, p->rank, (unsigned long long)config->job_digest, config->rank);
        return AQ_MISMATCH;
    }
    if (p->plan_hash != config->plan_hash) {
        snprintf(h->text, sizeof h->text,
                 "has another plan: %016llx there (rank %u), %016llx here (rank %u); start both with one manifest",
                 (unsigned long long)p->plan_hash, p->rank, (unsigned long long)config->plan_hash, config->rank);
        return AQ_MISMATCH;
    }
    if (p->peer_rank != UINT32_MAX && p->peer_rank != config->rank) {
        snprintf(h->text, sizeof h->text,
                 "(rank %u) expects rank %u at this address, but this is rank %u: correct the address", p->rank,
                 p->peer_rank, config->rank);
        return AQ_MISMATCH;
    }
    if (config->peer_rank != UINT32_MAX && p->rank != config->peer_rank) {
        snprintf(h->text, sizeof h->text, "is rank %u, but %s is expected", p->rank,
                 number_text("rank", "any", config->peer_rank, here));
        return AQ_AGAIN;
    }
    if (p->edge != config->edge) {
        snprintf(h->text, sizeof h->text, "(rank %u) connects %s, but %s is expected", p->rank,
                 number_text("edge", "no", p->edge, there), number_text("edge", "no", config->edge, here));
        return AQ_AGAIN;
    }
    return AQ_OK;
}

void aq_handshake_refuse(struct aq_handshake *h, const struct aq_link_config *config, enum aq_status status)
{
    uint8_t message[AQ_FRAME_HEADER_BYTES + AQ_FRAME_CONTROL_BYTES_MAX];
    if (h->hello_read && h->hello.stream > 0) { /* it listens to no answer */
        aq_handshake_drop(h);
        return;
    }
    uint8_t *body = message + AQ_FRAME_HEADER_BYTES;
    struct aq_header header = {
        .kind = AQ_FRAME_ABORT, .from = config->rank, .edge = config->edge, .plan_hash = config->plan_hash};
    char text[AQ_TEXT_BYTES + 64];
    snprintf(text, sizeof text, "refused by rank %u: the peer %s", config->rank, h->text);
    header.body_bytes = aq_abort_encode(status, text, body);
    header.body_digest = aq_digest(body, header.body_bytes);
    aq_header_encode(&header, message);
    const size_t bytes = AQ_FRAME_HEADER_BYTES + header.body_bytes;
    for (size_t sent = 0, put; sent < bytes; sent += put) {
        const struct iovec iov = {.iov_base = message + sent, .iov_len = bytes - sent};
        if (h->stream->ops->write(h->stream, &iov, 1, &put) != AQ_OK) break;
    }
    h->stream->ops->shut(h->stream);
    aq_handshake_drop(h);
}

/* ---- the listener ---- */

enum aq_status aq_link_listen(struct aq_net *net, const char *address, struct aq_listener **out, uint16_t *port)
{
    if (net->open_count == net->config.links_max)
        return aq_fail(AQ_NOSPC, AREA, "this net already has links_max = %u links and listeners", net->open_count);
    struct aq_listener *listener;
    AQ_TRY(AQ_NEW(1, &listener));
    listener->wake_fd = -1;
    enum aq_status status = aq_acceptor_open(address, net->config.tls, &listener->acceptor);
    if (status == AQ_OK) {
        listener->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (listener->wake_fd == -1 ||
            getrandom(listener->secret, sizeof listener->secret, 0) != (ssize_t)sizeof listener->secret) {
            status = aq_fail_errno(AREA, "cannot listen at '%.*s': the system gave no eventfd or no random numbers",
                                   aq_address_shown(address), address);
            if (listener->wake_fd != -1) close(listener->wake_fd);
            aq_acceptor_close(&listener->acceptor);
        }
    }
    if (status != AQ_OK) {
        aq_free(listener);
        return status;
    }
    listener->net = net;
    listener->next = net->listeners;
    net->listeners = listener;
    net->open_count++;
    if (port) *port = listener->acceptor.port;
    *out = listener;
    return AQ_OK;
}

static void thread_end(struct aq_listener *listener)
{
    if (!listener->thread) return;
    atomic_store_explicit(&listener->stop, true, memory_order_release); /* pairs with the porter */
    aq_heal_wake(listener->wake_fd);
    aq_thread_close(listener->thread);
    listener->thread = NULL;
    atomic_store_explicit(&listener->stop, false, memory_order_release); /* another one may follow */
}

enum aq_status aq_listener_rest(struct aq_listener *listener)
{
    if (listener->living == 0 || listener->rests) return AQ_OK;
    listener->rests = true;
    const enum aq_status status = aq_acceptor_thread_start(listener);
    if (status != AQ_OK) listener->rests = false; /* else the thread may read it already */
    return status;
}

/* Drops handshakes that were answered for a link which is not made now. */
static void drop_answered(struct aq_listener *listener)
{
    for (uint32_t i = 0; i < AQ_HANDSHAKES; i++)
        if (listener->hands[i].stage > STAGE_READING) aq_handshake_drop(&listener->hands[i]);
}

/* The caller is back. A link that was being made again starts over: what is in hand now is for new links. */
static void rest_end(struct aq_listener *listener)
{
    if (!listener->rests) return;
    thread_end(listener);
    listener->rests = false;
    drop_answered(listener);
}

static void listener_end(struct aq_listener *listener)
{
    thread_end(listener);
    while (listener->heals) {
        struct aq_heal *heal = listener->heals;
        listener->heals = heal->next;
        aq_free(heal);
    }
    close(listener->wake_fd);
    for (uint32_t i = 0; i < AQ_HANDSHAKES; i++)
        aq_handshake_drop(&listener->hands[i]);
    aq_acceptor_close(&listener->acceptor);
    struct aq_listener **at = &listener->net->listeners;
    while (*at != listener)
        at = &(*at)->next;
    *at = listener->next;
    listener->net->open_count--;
    aq_free(listener);
}

void aq_handshake_log(struct aq_listener *listener, const struct aq_handshake *h)
{
    aq_log_limited(&listener->refusals, AREA, 1, "refused peer=%s: the peer %s", h->stream->name, h->text);
}

/* How aq_admit sees a peer in hand: proved by its certificate, else by a HELLO of this job that is kept or answered.
 */
static enum aq_guest_state guest_state(const struct aq_handshake *h)
{
    if (h->stage == STAGE_NONE) return AQ_GUEST_NONE;
    return h->hello_read || aq_byte_stream_proved(h->stream) ? AQ_GUEST_PROVED : AQ_GUEST_UNPROVED;
}

/* A place for the pending connection. NULL: it has none. */
static struct aq_handshake *take_place(struct aq_listener *listener, const struct aq_byte_stream *pending)
{
    struct aq_guest guests[AQ_HANDSHAKES];
    for (uint32_t i = 0; i < AQ_HANDSHAKES; i++) {
        const struct aq_handshake *h = &listener->hands[i];
        guests[i] = (struct aq_guest){.since_ns = h->since_ns, .state = guest_state(h)};
        if (h->stage != STAGE_NONE) guests[i].source = aq_byte_stream_source(h->stream);
    }
    const uint32_t at = aq_admit(guests, AQ_HANDSHAKES, aq_byte_stream_source(pending), aq_clock_ns());
    if (at == AQ_ADMISSION_REFUSED) return NULL;
    struct aq_handshake *h = &listener->hands[at];
    if (h->stage == STAGE_NONE) return h;
    snprintf(h->text, sizeof h->text, "was dropped to make room: too many connections have not proved who they are");
    aq_handshake_log(listener, h);
    aq_handshake_drop(h);
    return h;
}

enum aq_status aq_listener_let_in(struct aq_listener *listener, uint64_t *again_ns)
{
    struct aq_byte_stream *stream;
    *again_ns = 0;
    aq_log_limit_tell(&listener->refusals);
    for (uint32_t i = 0; i < AQ_HANDSHAKES; i++) {
        const enum aq_status status = aq_acceptor_accept(&listener->acceptor, &stream);
        if (status == AQ_AGAIN) return AQ_OK;
        if (status != AQ_OK) { /* no descriptors left, or no memory: both may come back */
            *again_ns = aq_clock_after(AQ_BACK_OFF_NS_MAX);
            return status;
        }
        struct aq_handshake *h = take_place(listener, stream);
        if (!h) {
            aq_log_limited(&listener->refusals, AREA, 1,
                           "refused peer=%s: too many pending connections, from its address or in all", stream->name);
            aq_byte_stream_close(stream);
            continue;
        }
        *h = (struct aq_handshake){.stage = STAGE_READING,
                                   .stream = stream,
                                   .since_ns = aq_clock_ns(),
                                   .deadline_ns = aq_clock_after(AQ_HANDSHAKE_NS),
                                   .ready = true};
    }
    return AQ_OK;
}

bool aq_handshake_due(const struct aq_handshake *h, uint64_t now_ns)
{
    /* A peer whose HELLO has been read waits for another accept, its link or its bundle: checked each time. */
    return h->stage != STAGE_NONE &&
           (h->ready || now_ns >= h->deadline_ns || (h->stage == STAGE_READING && h->hello_read));
}

/* Why TLS refused, or was refused. Nothing: the status is the peer's own word, and so is the text. */
static void tell_refusal(struct aq_handshake *h)
{
    const char *refusal = aq_byte_stream_refusal(h->stream);
    if (refusal[0] != '\0') snprintf(h->text, sizeof h->text, "%s", refusal);
}

enum aq_status aq_handshake_failed(struct aq_handshake *h, enum aq_status status)
{
    if (status == AQ_AGAIN) {
        if (h->text[0] == '\0') snprintf(h->text, sizeof h->text, "did not finish its handshake in 10 s");
        return AQ_TIMEOUT; /* it may come again: an accept for it may be on its way */
    }
    if (status == AQ_CLOSED || status == AQ_IO)
        snprintf(h->text, sizeof h->text, "hung up during the handshake");
    else if (status == AQ_TLSERR || h->text[0] == '\0')
        tell_refusal(h);
    if (h->text[0] == '\0')
        snprintf(h->text, sizeof h->text, "%s during the handshake",
                 status == AQ_TIMEOUT ? "fell silent" : "could not be heard");
    return status;
}

/*
 * The session of the link that is made next for this rank and edge: the same until it is made, for an answer may have
 * been taken for a link by a connector whose confirmation was lost.
 */
static uint64_t session_of(const struct aq_listener *listener, const struct aq_link_config *config, uint32_t rank)
{
    uint64_t parts[5] = {listener->secret[0], listener->secret[1], rank, config->edge, 0};
    for (const struct aq_heal *heal = listener->heals; heal; heal = heal->next)
        parts[4] += heal->peer_rank == rank && heal->config.edge == config->edge;
    const uint64_t session = aq_digest(parts, sizeof parts);
    return session ? session : 1;
}

/* A HELLO that resumes: the link that was promised, or one for the porter. */
static enum aq_status match_session(const struct aq_listener *listener, struct aq_handshake *h,
                                    const struct aq_link_config *config)
{
    if (h->hello.session == 0) return AQ_OK;
    if (config->outage_ns_max > 0 && h->hello.session == session_of(listener, config, h->hello.rank) &&
        h->hello.resume_sequence == 1)
        return AQ_OK;
    snprintf(h->text, sizeof h->text, "(rank %u) resumes session %016llx, which this end does not have", h->hello.rank,
             (unsigned long long)h->hello.session);
    return AQ_AGAIN;
}

/* The peer has come again, while another connection of it waits for its other streams: they will not come. */
static void drop_earlier(struct aq_listener *listener, struct aq_handshake *latest)
{
    for (uint32_t i = 0; i < AQ_HANDSHAKES; i++) {
        struct aq_handshake *h = &listener->hands[i];
        if (h->stage != STAGE_GATHERING || h->since_ns >= latest->since_ns || h->hello.rank != latest->hello.rank ||
            h->hello.edge != latest->hello.edge)
            continue;
        aq_handshake_drop(h);
        latest->ready = true; /* it may be answered now */
    }
}

/* As far as it goes now. AQ_OK: STAGE_DONE is reached; AQ_AGAIN; else the peer is to be refused. */
static enum aq_status advance(struct aq_listener *listener, struct aq_handshake *h, const struct aq_link_config *config,
                              bool may_answer)
{
    if (h->stage == STAGE_READING) {
        if (!h->hello_read) {
            AQ_TRY(aq_handshake_read(h, true));
            h->hello_read = true;
            h->deadline_ns -= AQ_HANDSHAKE_SOONER_NS; /* so that the reason arrives before the peer gives up */
        }
        if (h->hello.stream > 0) return aq_streams_join(listener, h);
        AQ_TRY(aq_handshake_match(h, config));
        drop_earlier(listener, h);
        AQ_TRY(match_session(listener, h, config));
        if (!may_answer) return AQ_AGAIN;
        aq_congestion_choose(h->stream, config->congestion, &listener->net->slowed);
        struct aq_hello hello = aq_hello_of(config);
        hello.features &= h->hello.features & ~AQ_FEATURE_STREAMS;
        if (hello.features & AQ_FEATURE_HEAL) hello.session = session_of(listener, config, h->hello.rank);
        if (h->hello.session) hello.resume_sequence = 1;
        aq_streams_answer(listener, h, config, &hello);
        aq_handshake_say(h, config, &hello);
        h->stage = STAGE_WRITING;
    }
    if (h->stage == STAGE_WRITING) {
        AQ_TRY(aq_handshake_write(h));
        h->stage = STAGE_CONFIRMING;
    }
    if (h->stage == STAGE_CONFIRMING) {
        AQ_TRY(aq_handshake_read(h, false));
        h->stage = STAGE_GATHERING;
    }
    AQ_TRY(aq_streams_complete(listener, h));
    h->stage = STAGE_DONE;
    return AQ_OK;
}

/* One round over all peers in hand. AQ_OK: *out is at STAGE_DONE. */
static enum aq_status round_over(struct aq_listener *listener, const struct aq_link_config *config,
                                 struct aq_handshake **out)
{
    bool answered = false;
    const uint64_t now = aq_clock_ns();
    for (uint32_t i = 0; i < AQ_HANDSHAKES; i++)
        answered |= listener->hands[i].stage > STAGE_READING;
    for (uint32_t i = 0; i < AQ_HANDSHAKES; i++) {
        struct aq_handshake *h = &listener->hands[i];
        if (!aq_handshake_due(h, now)) continue;
        h->ready = false;
        const bool candidate = h->stage > STAGE_READING;
        enum aq_status status = advance(listener, h, config, candidate || !answered);
        if (status == AQ_OK) {
            *out = h;
            return AQ_OK;
        }
        answered |= h->stage > STAGE_READING;
        if (status == AQ_AGAIN && now < h->deadline_ns) continue;
        status = aq_handshake_failed(h, status);
        if (h->stage > STAGE_READING) answered = false;
        aq_handshake_log(listener, h);
        aq_handshake_refuse(h, config, status);
    }
    return AQ_AGAIN;
}

void aq_listener_sleep(struct aq_listener *listener, uint64_t again_ns, uint64_t deadline_ns)
{
    enum { DOOR, WAKE, OWN };
    struct pollfd fds[AQ_HANDSHAKES + OWN];
    uint32_t hands[AQ_HANDSHAKES + OWN];
    uint64_t wakes_ns[AQ_HANDSHAKES + OWN], wake_ns = deadline_ns;
    nfds_t count = OWN;
    fds[DOOR] = (struct pollfd){.fd = again_ns == 0 ? listener->acceptor.fd : -1, .events = POLLIN};
    fds[WAKE] = (struct pollfd){.fd = listener->wake_fd, .events = POLLIN};
    if (again_ns > 0 && again_ns < wake_ns) wake_ns = again_ns;
    for (uint32_t i = 0; i < AQ_HANDSHAKES; i++) {
        struct aq_handshake *h = &listener->hands[i];
        struct aq_byte_stream_wait wait;
        if (h->stage == STAGE_NONE) continue;
        if (h->deadline_ns < wake_ns) wake_ns = h->deadline_ns;
        if (h->ready) wake_ns = 0; /* another hand has brought what it waits for */
        /* Kept for its time: nothing to be read. */
        if ((h->stage == STAGE_READING && h->hello_read) || h->stage == STAGE_GATHERING) continue;
        h->stream->ops->wait(h->stream, h->writing_now, &wait);
        if (wait.wake_ns < wake_ns) wake_ns = wait.wake_ns;
        hands[count] = i;
        wakes_ns[count] = wait.wake_ns;
        fds[count++] = (struct pollfd){.fd = wait.fd, .events = wait.events};
    }
    const uint64_t now = aq_clock_ns();
    if (listener->refusals.held > 0 && wake_ns > now + AQ_REFUSALS_NS) wake_ns = now + AQ_REFUSALS_NS;
    const uint64_t ns = wake_ns > now ? wake_ns - now : 0;
    const struct timespec left = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
    const int some = ppoll(fds, count, &left, NULL);
    const uint64_t then = aq_clock_ns();
    for (nfds_t i = OWN; i < count; i++)
        if ((some > 0 && fds[i].revents != 0) || then >= wakes_ns[i]) listener->hands[hands[i]].ready = true;
}

/* The mailbox of a link that is about to be made: it stays in the list, so that the next session is another one. */
static enum aq_status add_heal(struct aq_listener *listener, const struct aq_link_config *config, uint32_t rank,
                               struct aq_heal **out)
{
    struct aq_heal *heal;
    AQ_TRY(AQ_NEW(1, &heal));
    heal->net = listener->net;
    heal->config = *config;
    heal->config.meanwhile = NULL; /* it is asked in the caller's thread only */
    heal->session = session_of(listener, config, rank);
    heal->peer_rank = rank;
    heal->wake_fd = listener->wake_fd;
    heal->listener = listener;
    atomic_init(&heal->phase, HEAL_STANDING);
    heal->next = listener->heals;
    listener->heals = heal;
    *out = heal;
    return AQ_OK;
}

enum aq_status aq_link_accept(struct aq_listener *listener, const struct aq_link_config *config, uint64_t deadline_ns,
                              struct aq_link **out)
{
    struct aq_handshake *done;
    AQ_TRY(aq_link_config_check(config));
    rest_end(listener);
    for (;;) {
        uint64_t again_ns;
        if (aq_listener_let_in(listener, &again_ns) == AQ_NOMEM) return AQ_NOMEM;
        if (round_over(listener, config, &done) == AQ_OK) break;
        if (aq_clock_ns() >= deadline_ns) {
            char rank[32];
            drop_answered(listener);
            return aq_fail(AQ_TIMEOUT, AREA, "no valid peer connected to '%.*s' in time; expected was %s, edge %d",
                           aq_address_shown(listener->acceptor.address.whole), listener->acceptor.address.whole,
                           number_text("rank", "any", config->peer_rank, rank), (int)config->edge);
        }
        const enum aq_status asked = aq_handshake_asked(config);
        if (asked != AQ_AGAIN) {
            drop_answered(listener);
            return asked;
        }
        aq_listener_sleep(listener, again_ns, aq_handshake_until(config, -1, deadline_ns));
    }
    struct aq_byte_stream *stream; /* aq_link_make takes it in any case */
    const struct aq_hello hello = done->hello;
    AQ_TRY(aq_streams_take(listener, config, done, &stream));
    struct aq_heal *heal = NULL;
    if (config->outage_ns_max > 0 && (hello.features & AQ_FEATURE_HEAL)) {
        const enum aq_status status = add_heal(listener, config, hello.rank, &heal);
        if (status != AQ_OK) {
            aq_byte_stream_close(stream);
            return status;
        }
    }
    const enum aq_status status = aq_link_make(listener->net, config, stream, &hello, heal, out);
    if (heal && status == AQ_OK) listener->living++;
    return status;
}

void aq_listener_close(struct aq_listener *listener)
{
    if (!listener) return;
    rest_end(listener);
    if (listener->living == 0) {
        listener_end(listener);
        return;
    }
    AQ_ASSERT(!listener->given_up);
    listener->given_up = true;
    /* An error has been reported already: the links work, but do not heal. */
    (void)aq_acceptor_thread_start(listener);
}

void aq_listener_link_gone(struct aq_listener *listener)
{
    AQ_ASSERT(listener->living > 0);
    if (--listener->living == 0 && listener->given_up) listener_end(listener);
}

/* ---- the connector ---- */

/* The listener's answer must fit the question. */
static enum aq_status check_answer(struct aq_handshake *h, const struct aq_hello *asked)
{
    const struct aq_hello *p = &h->hello;
    const bool fits = asked->session ? p->session == asked->session && p->resume_sequence > 0
                                     : p->resume_sequence == 0 && (!p->session || asked->features & AQ_FEATURE_HEAL);
    if (fits) return aq_streams_check(h, asked);
    snprintf(h->text, sizeof h->text, "answers with session %016llx frame %llu where session %016llx was asked for",
             (unsigned long long)p->session, (unsigned long long)p->resume_sequence,
             (unsigned long long)asked->session);
    return AQ_PROTO;
}

static enum aq_status advance_connector(struct aq_net *net, struct aq_handshake *h, const struct aq_link_config *config,
                                        struct aq_hello *hello)
{
    if (h->stage == STAGE_CONNECTING) {
        h->writing_now = true;
        AQ_TRY(h->stream->ops->connected(h->stream));
        aq_congestion_choose(h->stream, config->congestion, &net->slowed);
        aq_streams_ask(config, h->stream, hello);
        aq_handshake_say(h, config, hello);
        h->stage = STAGE_WRITING;
    }
    if (h->stage == STAGE_WRITING) {
        AQ_TRY(aq_handshake_write(h));
        h->stage = STAGE_READING;
    }
    if (h->stage == STAGE_READING) {
        AQ_TRY(aq_handshake_read(h, true));
        h->hello_read = true;
        const enum aq_status status = aq_handshake_match(h, config);
        if (status != AQ_OK) return AQ_MISMATCH; /* there is only this one link to make */
        AQ_TRY(check_answer(h, hello));
        aq_handshake_say(h, config, NULL);
        h->stage = STAGE_CONFIRMING;
    }
    if (h->stage == STAGE_CONFIRMING) AQ_TRY(aq_handshake_write(h));
    h->stage = STAGE_DONE;
    return AQ_OK;
}

enum aq_status aq_handshake_try(struct aq_net *net, struct aq_handshake *h, const char *address, uint32_t attempt,
                                const struct aq_link_config *config, const struct aq_hello *hello, int wake_fd,
                                uint64_t deadline_ns)
{
    struct aq_hello mine = *hello;
    *h = (struct aq_handshake){.stage = STAGE_CONNECTING};
    AQ_TRY(aq_byte_stream_connect(address, net->config.tls, attempt, config->rate_mbps > 0, &h->stream));
    const uint64_t own_ns = aq_clock_after(AQ_HANDSHAKE_NS);
    h->deadline_ns = own_ns < deadline_ns ? own_ns : deadline_ns;
    for (;;) {
        struct aq_byte_stream_wait wait;
        const enum aq_status status = advance_connector(net, h, config, &mine);
        if (status != AQ_OK && status != AQ_AGAIN && (status == AQ_TLSERR || h->text[0] == '\0')) tell_refusal(h);
        if (status == AQ_OK && (h->hello.features & AQ_FEATURE_STREAMS))
            return aq_streams_dial(net, h, address, attempt, config, wake_fd);
        if (status != AQ_AGAIN) return status;
        const uint64_t now = aq_clock_ns();
        if (now >= h->deadline_ns) {
            snprintf(h->text, sizeof h->text, h->stage == STAGE_CONNECTING ? "does not answer" : "sends no HELLO");
            return AQ_TIMEOUT;
        }
        const enum aq_status asked = aq_handshake_asked(config);
        if (asked != AQ_AGAIN) return asked;
        h->stream->ops->wait(h->stream, h->writing_now, &wait);
        const uint64_t ends = wait.wake_ns < h->deadline_ns ? wait.wake_ns : h->deadline_ns;
        const uint64_t until = aq_handshake_until(config, wake_fd, ends);
        const uint64_t ns = until > now ? until - now : 0;
        const struct timespec left = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
        struct pollfd fds[2] = {{.fd = wait.fd, .events = wait.events}, {.fd = wake_fd, .events = POLLIN}};
        ppoll(fds, 2, &left, NULL);
    }
}

const char *aq_handshake_try_text(const struct aq_handshake *h, enum aq_status status)
{
    if (h->text[0] != '\0') return h->text;
    return status == AQ_REFUSED                     ? "no program listens there"
           : status == AQ_CLOSED || status == AQ_IO ? "hung up before its HELLO"
                                                    : "did not answer";
}

enum aq_status aq_handshake_address(const char *address, bool small, char out[AQ_ADDRESS_BYTES])
{
    const int bytes = small ? snprintf(out, AQ_ADDRESS_BYTES, "%s%csegment=%d", address,
                                       strchr(address, '?') ? '&' : '?', AQ_SEGMENT_SMALL_BYTES)
                            : snprintf(out, AQ_ADDRESS_BYTES, "%s", address);
    return bytes < AQ_ADDRESS_BYTES
               ? AQ_OK
               : aq_fail(AQ_INVAL, AREA, "the address '%.*s' is too long", aq_address_shown(address), address);
}

bool aq_handshake_stuck(const struct aq_handshake *h, enum aq_status status)
{
    return status == AQ_TIMEOUT && h->stage > STAGE_CONNECTING;
}

void aq_handshake_small_said(const char *address)
{
    aq_log(AREA, 1,
           "link to %.*s: made with packets of %d bytes, because no larger ones arrived: an MTU black hole on the way? "
           "sysctl -w net.ipv4.tcp_mtu_probing=1 on both machines, or a lower MTU, or let ICMP through",
           aq_address_shown(address), address, AQ_SEGMENT_SMALL_BYTES);
}

static bool worth_another_try(enum aq_status status)
{
    return status == AQ_REFUSED || status == AQ_CLOSED || status == AQ_IO || status == AQ_TIMEOUT;
}

void aq_handshake_sleep(int wake_fd, uint64_t when_ns)
{
    const uint64_t now = aq_clock_ns();
    const uint64_t ns = when_ns > now ? when_ns - now : 0;
    const struct timespec left = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
    struct pollfd fd = {.fd = wake_fd, .events = POLLIN};
    ppoll(&fd, 1, &left, NULL);
}

/* The handshake is done: the link, and its dialler where both ends heal. */
static enum aq_status make_connected(struct aq_net *net, const char *address, const struct aq_link_config *config,
                                     struct aq_handshake *h, struct aq_link **out)
{
    struct aq_heal *heal = NULL;
    struct aq_link *link;
    enum aq_status status = AQ_OK;
    if (h->hello.session) status = aq_dialler_open(net, config, address, h->hello.session, &heal);
    if (status != AQ_OK) {
        aq_handshake_drop(h);
        return status;
    }
    status = aq_link_make(net, config, h->stream, &h->hello, heal, &link);
    if (status != AQ_OK) {
        aq_dialler_close(heal);
        return status;
    }
    if (heal) status = aq_dialler_start(heal);
    if (status != AQ_OK)
        aq_link_close(link);
    else
        *out = link;
    return status;
}

enum aq_status aq_link_connect(struct aq_net *net, const char *address, const struct aq_link_config *config,
                               uint64_t deadline_ns, struct aq_link **out)
{
    struct aq_handshake h;
    char dialled[AQ_ADDRESS_BYTES];
    uint64_t back_off_ns = AQ_BACK_OFF_NS_MIN;
    bool small = false;
    AQ_TRY(aq_link_config_check(config));
    const struct aq_hello hello = aq_hello_of(config);
    for (uint32_t attempt = 0;; attempt++) {
        AQ_TRY(aq_handshake_address(address, small, dialled));
        const enum aq_status status = aq_handshake_try(net, &h, dialled, attempt, config, &hello, -1, deadline_ns);
        if (status == AQ_OK && small) aq_handshake_small_said(address);
        if (status == AQ_OK) return make_connected(net, address, config, &h, out);
        const enum aq_status asked = aq_handshake_asked(config);
        if (asked != AQ_AGAIN) {
            aq_handshake_drop(&h);
            return asked;
        }
        /* A peer that does not heal measures the path first (probe_session.h). */
        small = !small && aq_handshake_stuck(&h, status) && config->outage_ns_max > 0;
        const bool began = h.stream != NULL || status == AQ_REFUSED;
        const enum aq_stage_of_hand stage = h.stage;
        if (h.stream && (status == AQ_MISMATCH || status == AQ_PROTO) && stage == STAGE_READING && h.hello_read)
            aq_handshake_refuse(&h, config, status);
        else
            aq_handshake_drop(&h);
        if (!began) return status; /* the address itself is wrong; reported already */
        if (!worth_another_try(status))
            return aq_fail(status, AREA, "connect to '%.*s' as rank %u: the peer %s", aq_address_shown(address),
                           address, config->rank, h.text);
        const uint64_t now = aq_clock_ns();
        if (now >= deadline_ns || deadline_ns - now <= back_off_ns)
            return aq_fail(
                AQ_TIMEOUT, AREA, "connect to '%.*s' as rank %u: gave up after %u tries; the last: the peer %s",
                aq_address_shown(address), address, config->rank, attempt + 1, aq_handshake_try_text(&h, status));
        aq_handshake_sleep(-1, now + back_off_ns);
        back_off_ns = back_off_ns * 2 < AQ_BACK_OFF_NS_MAX ? back_off_ns * 2 : AQ_BACK_OFF_NS_MAX;
    }
}
