/*
 * worker_probe.c -- a worker that trains nothing: it measures the links of its rank (`aqpipe plan --probe`).
 *
 * Address, identity and congestion control are those that the job's worker would have. Each link is made when the
 * launcher asks, measured (probe_session.h) and closed again; one at a time.
 */
#include <stdio.h>
#include <string.h>

#include "probe_session.h"
#include "worker.h"

enum { IDLE_S = 600, TRIES = 3, CONNECT_S = 12, ACCEPT_S = 15, ADDRESS_CHARS_MAX = 255 };

/* A rank is asked nothing while all other pairs are measured, each as often and long as can be (launcher_probe.c). */
static uint64_t idle_end(const struct aq_job *job)
{
    return aq_worker_after_s(IDLE_S + (uint64_t)aq_job_links(job) * TRIES * AQ_PROBE_PAIR_S);
}

/* What the launcher asks. */
struct asked {
    uint32_t peer, segment;
    const char *address;
};

static enum aq_status read_asked(const struct aq_worker *w, const json_t *message, struct asked *out)
{
    AQ_TRY(aq_control_get_u32(message, "peer", &out->peer));
    AQ_TRY(aq_control_get_u32(message, "segment", &out->segment));
    out->address = aq_control_text_or(message, "address", "");
    if (out->peer >= w->plan->ranks || !aq_job_linked(w->job, w->rank, out->peer))
        return aq_fail(AQ_PROTO, "worker", "rank %u is asked to measure to rank %u, to which it has no link", w->rank,
                       out->peer);
    const size_t length = strlen(out->address);
    for (size_t i = 0; i < length; i++)
        if (out->address[i] <= ' ' || out->address[i] > '~' || out->address[i] == '&' ||
            (out->address[i] == '?' && !aq_job_relayed(w->job, w->rank, out->peer)) || length > ADDRESS_CHARS_MAX)
            return aq_fail(AQ_PROTO, "worker", "rank %u is asked to connect without an address", w->rank);
    return AQ_OK;
}

static struct aq_link_config config_to(const struct aq_worker *w, uint32_t peer)
{
    const bool stage = peer / w->P == w->replica;
    struct aq_link_config config = !stage ? w->me->link_group : peer < w->rank ? w->me->link_in : w->me->link_out;
    config.rank = w->rank;
    config.peer_rank = peer;
    aq_probe_link_config(&config);
    return config;
}

static enum aq_status open_link(struct aq_worker *w, struct aq_listener *listener, const struct asked *asked,
                                struct aq_link **out)
{
    const struct aq_link_config config = config_to(w, asked->peer);
    struct aq_text address = {0};
    if (aq_worker_listens_for(w, asked->peer))
        return aq_link_accept(listener, &config, aq_worker_after_s(ACCEPT_S), out);
    aq_worker_address(w, asked->address, asked->peer, &address);
    if (asked->segment)
        aq_text_add(&address, "%csegment=%u", strchr(aq_text_of(&address), '?') ? '&' : '?', asked->segment);
    const enum aq_status status =
        aq_link_connect(w->links.net, aq_text_of(&address), &config, aq_worker_after_s(CONNECT_S), out);
    aq_text_deinit(&address);
    return status;
}

/* One pair: whatever comes of it is a line for the launcher. */
static enum aq_status measure(struct aq_worker *w, struct aq_listener *listener, const json_t *message)
{
    struct asked asked;
    struct aq_probe_figures figures;
    struct aq_link *link = NULL;
    enum aq_probe_phase phase = AQ_PROBE_CONNECT;
    AQ_TRY(read_asked(w, message, &asked));
    aq_error_clear();
    enum aq_status status = open_link(w, listener, &asked, &link);
    if (status == AQ_OK)
        status = aq_probe_session(link, w->eventcount, !aq_worker_listens_for(w, asked.peer), &figures, &phase);
    aq_link_close(link);
    if (status == AQ_OK) return aq_control_send(w->control, aq_probe_figures_line(&figures, asked.peer));
    char text[AQ_PROBE_TEXT_CHARS + 1];
    (void)aq_printable(aq_error_text(), strlen(aq_error_text()), true, text, sizeof text);
    aq_error_clear();
    return aq_control_send(w->control,
                           json_pack("{s:s, s:I, s:s, s:s, s:i}", "event", "unprobed", "peer", (json_int_t)asked.peer,
                                     "status", aq_status_text(status), "text", text, "phase", (int)phase));
}

enum aq_status aq_worker_probe(struct aq_worker *w, const json_t *start)
{
    struct aq_listener *listener = NULL;
    enum aq_status status;
    AQ_TRY(aq_worker_plan_open(w, start));
    aq_log_init((int)w->rank);
    AQ_TRY(aq_eventcount_open(&w->eventcount));
    AQ_TRY(aq_worker_net_open(w));
    if (aq_job_listens(w->job, w->rank)) {
        AQ_TRY_GOTO(aq_worker_listen(w, AQ_WORKER_ALL_PEERS, &listener), out);
        AQ_TRY_GOTO(aq_worker_listens_all(w), out);
    }
    AQ_TRY_GOTO(aq_control_send(w->control, json_pack("{s:s}", "event", "ready")), out);
    for (;;) {
        json_t *message;
        AQ_TRY_GOTO(aq_worker_await(w, "probe", idle_end(w->job), &message), out);
        status = measure(w, listener, message);
        json_decref(message);
        if (status != AQ_OK) goto out;
    }
out:
    aq_listener_close(listener);
    return status;
}
