/*
 * healer.c -- the threads that make lost connections again: dialler and porter (heal.h).
 *
 * They sleep in poll() on an eventfd that the loop and the caller ring, and on what a handshake waits for; they touch
 * only their mailboxes and streams, never a link.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "congestion.h"
#include "handshake.h"
#include "heal.h"
#include "link_state.h"

static const char *const AREA = "net";

void aq_heal_wake(int wake_fd)
{
    const uint64_t one = 1;
    if (write(wake_fd, &one, sizeof one) == -1) aq_log(AREA, 0, "a healer cannot be woken: %s", strerror(errno));
}

/* Before phases and `stop` are looked at, so that no ring is missed. */
static void hear(int wake_fd)
{
    uint64_t level;
    if (read(wake_fd, &level, sizeof level) == -1 && errno != EAGAIN)
        aq_log(AREA, 0, "the wake-up of a healer cannot be read: %s", strerror(errno));
}

/* To the loop: a stream (taken, also where the link has ended), or why there will be none. False: no memory. */
static bool give(struct aq_heal *heal, struct aq_byte_stream *stream, const struct aq_hello *peer,
                 enum aq_status status, const char *text)
{
    if (stream && aq_byte_stream_trust(stream) != AQ_OK) { /* it was logged, and the next try may have it */
        aq_byte_stream_close(stream);
        return false;
    }
    if (stream && heal->config.rate_mbps > 0 && stream->ops->pace(stream, heal->config.rate_mbps) != AQ_OK)
        aq_log(AREA, 1, "the new connection to rank %u is not paced", heal->config.peer_rank);
    heal->stream = stream;
    heal->peer_position = peer->resume_sequence;
    heal->peer_slots = peer->receive_slots;
    heal->status = status;
    snprintf(heal->text, sizeof heal->text, "%s", text);
    /* Pairs with the loop's look in aq_link_heal_work, or with its exchange in aq_link_heal_over. */
    if (aq_heal_turn(heal, HEAL_PARKED, HEAL_GIVEN))
        aq_net_wake(heal->net);
    else
        aq_byte_stream_close(stream);
    return true;
}

static struct aq_hello hello_that_resumes(const struct aq_heal *heal)
{
    struct aq_hello hello = aq_hello_of(&heal->config);
    hello.session = heal->session;
    hello.resume_sequence = heal->position;
    hello.receive_slots = heal->slots;
    return hello;
}

/* ---- the dialler ---- */

/* Is a stream still wanted? A ring alone is no answer: that of the loop may come after the phase was seen. */
static enum aq_status still_parked(void *context)
{
    struct aq_heal *heal = context;
    hear(heal->wake_fd);
    return aq_heal_phase(heal) == HEAL_PARKED ? AQ_AGAIN : AQ_CLOSED;
}

/* Until a stream is given, the peer refuses for good, or the link has ended. */
static void dial_again(struct aq_heal *heal)
{
    struct aq_handshake h;
    const struct aq_hello hello = hello_that_resumes(heal);
    uint64_t back_off_ns = AQ_BACK_OFF_NS_MIN;
    bool small = heal->fruitless;
    for (uint32_t attempt = 0;; attempt++) {
        char address[AQ_ADDRESS_BYTES];
        hear(heal->wake_fd);
        if (aq_heal_phase(heal) != HEAL_PARKED || aq_handshake_address(heal->address, small, address) != AQ_OK) return;
        const enum aq_status status =
            aq_handshake_try(heal->net, &h, address, attempt, &heal->config, &hello, heal->wake_fd, heal->deadline_ns);
        if (status == AQ_OK) {
            if (small) aq_handshake_small_said(heal->address);
            if (give(heal, h.stream, &h.hello, AQ_OK, "")) return;
            aq_handshake_sleep(heal->wake_fd, aq_clock_after(AQ_BACK_OFF_NS_MAX));
            continue;
        }
        if (aq_heal_phase(heal) != HEAL_PARKED) { /* its ring may have been read already: no sleep here would end */
            aq_handshake_drop(&h);
            return;
        }
        const char *text = aq_handshake_try_text(&h, status);
        aq_log(AREA, 2, "dial %.*s attempt=%u: the peer %s", aq_address_shown(address), address, attempt + 1, text);
        small = !small && aq_handshake_stuck(&h, status);
        aq_handshake_drop(&h);
        if (status == AQ_MISMATCH) {
            (void)give(heal, NULL, &hello, status, text);
            return;
        }
        aq_handshake_sleep(heal->wake_fd, aq_clock_after(back_off_ns));
        back_off_ns = back_off_ns * 2 < AQ_BACK_OFF_NS_MAX ? back_off_ns * 2 : AQ_BACK_OFF_NS_MAX;
    }
}

static void dialler_run(void *context)
{
    struct aq_heal *heal = context;
    for (;;) {
        hear(heal->wake_fd);
        const int phase = aq_heal_phase(heal);
        if (phase == HEAL_OVER) return;
        if (phase == HEAL_PARKED)
            dial_again(heal);
        else
            aq_handshake_sleep(heal->wake_fd, AQ_NEVER);
    }
}

enum aq_status aq_dialler_open(struct aq_net *net, const struct aq_link_config *config, const char *address,
                               uint64_t session, struct aq_heal **out)
{
    struct aq_heal *heal;
    AQ_TRY(AQ_NEW(1, &heal));
    heal->net = net;
    heal->config = *config;
    heal->config.meanwhile = still_parked; /* the caller's is asked in its own thread only */
    heal->config.context = heal;
    heal->session = session;
    snprintf(heal->address, sizeof heal->address, "%s", address);
    atomic_init(&heal->phase, HEAL_STANDING);
    heal->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (heal->wake_fd == -1) {
        aq_free(heal);
        return aq_fail_errno(AREA, "eventfd for the dialler of a link");
    }
    *out = heal;
    return AQ_OK;
}

enum aq_status aq_dialler_start(struct aq_heal *heal)
{
    return aq_thread_open("aq-dial", dialler_run, heal, &heal->thread);
}

void aq_dialler_close(struct aq_heal *heal)
{
    if (!heal) return;
    aq_thread_close(heal->thread); /* it ends by itself: the phase is OVER */
    close(heal->wake_fd);
    aq_free(heal);
}

/* ---- the porter ---- */

/* The mailbox that this HELLO is for. AQ_MISMATCH: no such link; text names the reason. */
static enum aq_status find(struct aq_listener *listener, struct aq_handshake *h, struct aq_heal **out)
{
    for (struct aq_heal *heal = listener->heals; heal; heal = heal->next) {
        if (h->hello.session != heal->session) continue;
        const enum aq_status status = aq_handshake_match(h, &heal->config);
        if (status == AQ_OK && h->hello.rank != heal->peer_rank) {
            snprintf(h->text, sizeof h->text, "(rank %u) resumes the link of rank %u", h->hello.rank, heal->peer_rank);
            return AQ_MISMATCH;
        }
        if (status == AQ_OK && h->hello.resume_sequence == 0) {
            snprintf(h->text, sizeof h->text, "(rank %u) names a session, but no frame to resume from", h->hello.rank);
            return AQ_PROTO;
        }
        *out = heal;
        return status == AQ_OK ? AQ_OK : AQ_MISMATCH;
    }
    /* The caller comes back for new links; an answer to one may have been lost (session_of in handshake.c). */
    if (listener->rests && h->hello.resume_sequence <= 1)
        return aq_handshake_match(h, &listener->heals->config) == AQ_MISMATCH ? AQ_MISMATCH : AQ_AGAIN;
    if (h->hello.session == 0)
        snprintf(h->text, sizeof h->text, "(rank %u, edge %d) asks for a new link, but this end has all its links",
                 h->hello.rank, (int)h->hello.edge);
    else
        snprintf(
            h->text, sizeof h->text,
            "(rank %u, edge %d) resumes session %016llx, which this end does not have: was one of the two restarted?",
            h->hello.rank, (int)h->hello.edge, (unsigned long long)h->hello.session);
    return AQ_MISMATCH;
}

/* The peer has come again: what it tried before is dead. */
static void drop_earlier(struct aq_listener *listener, const struct aq_handshake *latest)
{
    for (uint32_t i = 0; i < AQ_HANDSHAKES; i++) {
        struct aq_handshake *h = &listener->hands[i];
        if (h != latest && h->stage != STAGE_NONE && h->hello_read && h->hello.session == latest->hello.session)
            aq_handshake_drop(h);
    }
}

/* As far as it goes now. AQ_OK: STAGE_DONE; AQ_AGAIN; else it is to be refused. */
static enum aq_status advance(struct aq_listener *listener, struct aq_handshake *h, struct aq_heal **out)
{
    if (h->stage == STAGE_READING && !h->hello_read) {
        AQ_TRY(aq_handshake_read(h, true));
        h->hello_read = true;
        if (h->hello.stream > 0) return aq_streams_join(listener, h);
        AQ_TRY(find(listener, h, out));
        drop_earlier(listener, h);
    }
    if (h->hello.stream > 0) return aq_streams_join(listener, h);
    AQ_TRY(find(listener, h, out));
    struct aq_heal *heal = *out;
    if (h->stage == STAGE_READING) {
        if (aq_heal_turn(heal, HEAL_STANDING, HEAL_ASKED)) aq_net_wake(heal->net);
        const int phase = aq_heal_phase(heal);
        if (phase == HEAL_OVER && heal->outlasted) { /* its own outage is as old: it ends by that, not by our word */
            snprintf(h->text, sizeof h->text, "(rank %u) resumes a link that this end gave up after a long outage",
                     h->hello.rank);
            return AQ_TIMEOUT;
        }
        if (phase == HEAL_OVER) {
            snprintf(h->text, sizeof h->text, "(rank %u) resumes a link that this end has closed", h->hello.rank);
            return AQ_MISMATCH;
        }
        if (phase != HEAL_PARKED) return AQ_AGAIN; /* the loop rings when it is */
        if (!aq_streams_place(listener)) return AQ_AGAIN;
        aq_congestion_choose(h->stream, heal->config.congestion, &heal->net->slowed);
        struct aq_hello hello = hello_that_resumes(heal);
        hello.features &= h->hello.features & ~AQ_FEATURE_STREAMS;
        aq_streams_answer(listener, h, &heal->config, &hello);
        aq_handshake_say(h, &heal->config, &hello);
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

static void one_hand(struct aq_listener *listener, struct aq_handshake *h, uint64_t now)
{
    struct aq_heal *heal = listener->heals;
    enum aq_status status = advance(listener, h, &heal);
    if (status == AQ_OK) {
        const struct aq_hello hello = h->hello;
        struct aq_byte_stream *stream;
        if (aq_streams_take(listener, &heal->config, h, &stream) == AQ_OK) (void)give(heal, stream, &hello, AQ_OK, "");
        return; /* where there was no memory (reported already), the peer comes again */
    }
    if (status == AQ_AGAIN && now < h->deadline_ns) return;
    status = aq_handshake_failed(h, status);
    aq_handshake_log(listener, h);
    aq_handshake_refuse(h, &heal->config, status);
}

void aq_acceptor_thread_turn(struct aq_listener *listener, uint64_t *again_ns)
{
    (void)aq_listener_let_in(listener, again_ns); /* tried again, but not at once */
    for (uint32_t i = 0; i < AQ_HANDSHAKES; i++) {
        struct aq_handshake *h = &listener->hands[i];
        if (!aq_handshake_due(h, aq_clock_ns())) continue;
        h->ready = false;
        one_hand(listener, h, aq_clock_ns());
    }
}

static void porter_run(void *context)
{
    struct aq_listener *listener = context;
    for (;;) {
        hear(listener->wake_fd);
        if (atomic_load_explicit(&listener->stop, memory_order_acquire)) return; /* pairs with thread_end */
        uint64_t again_ns;
        aq_acceptor_thread_turn(listener, &again_ns);
        aq_listener_sleep(listener, again_ns, AQ_NEVER);
    }
}

enum aq_status aq_acceptor_thread_start(struct aq_listener *listener)
{
    return aq_thread_open("aq-porter", porter_run, listener, &listener->thread);
}
