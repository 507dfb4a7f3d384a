/*
 * launcher_probe.c -- see the header. Start all ranks, wait until each listens, then ask one pair after the other, both
 * of its ends at once; where large packets seem to vanish, once more with small ones.
 *
 * Workers run on others' machines: a line that was not asked for, or is out of bounds, ends the probe with the rank's
 * name. A rank that fails by itself (its keys, its address) only fails its own pairs.
 */
#include "launcher_probe.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "launcher_private.h"

static const uint64_t second_ns = 1000ULL * 1000 * 1000;
enum { READY_S = 60, TICK_MS = 200, TURN_LINES = 64 };
static const double moved_ms = 5, moved_times = 2;

static bool refuse(struct probe *probe, uint32_t rank, const char *what)
{
    char who[RANK_NAME_BYTES];
    launcher_fail(&probe->launcher, CAUSE_OWN, AQ_PROTO, "%s breaks the protocol: it %s",
                  rank_name(&probe->launcher, rank, who), what);
    return false;
}

static enum aq_status status_of(const char *text)
{
    for (int i = 1; i < AQ_STATUS_COUNT; i++)
        if (strcmp(text, aq_status_text((enum aq_status)i)) == 0) return (enum aq_status)i;
    return AQ_IO;
}

/* ---- what workers say ---- */

static bool on_listening(struct probe *probe, uint32_t rank, const struct aq_message *message)
{
    struct probe_rank *r = &probe->ranks[rank];
    if (r->ready) return refuse(probe, rank, "listens, and was ready already");
    snprintf(r->address, sizeof r->address, "%s", message->listening.address);
    return true;
}

static struct probe_answer *answer_of(struct probe *probe, uint32_t rank, uint64_t peer)
{
    const struct aq_probe_pair *pair = probe->pair;
    if (!pair || (rank != pair->from && rank != pair->to)) return NULL;
    struct probe_answer *answer = &probe->answers[rank == pair->to];
    return answer->asked && !answer->come && peer == (rank == pair->to ? pair->from : pair->to) ? answer : NULL;
}

/* A worker answers in order: what it owes comes first, of a pair that was given up. */
static bool was_owed(struct probe *probe, uint32_t rank)
{
    struct probe_rank *r = &probe->ranks[rank];
    if (r->owed == 0) return false;
    r->owed--;
    return true;
}

static bool on_probed(struct probe *probe, uint32_t rank, const struct aq_message *message)
{
    struct probe_answer *answer = answer_of(probe, rank, message->probed.peer);
    if (!answer) return refuse(probe, rank, "has measured what it was not asked to");
    struct aq_probe_figures *figures = &probe->pair->figures[rank == probe->pair->to];
    if (aq_probe_figures_take(message, rank != probe->pair->listener, figures) != AQ_OK)
        return refuse(probe, rank, "reports impossible figures");
    answer->come = answer->measured = true;
    return true;
}

static bool on_unprobed(struct probe *probe, uint32_t rank, const struct aq_message *message)
{
    const struct aq_message_unprobed *unprobed = &message->unprobed;
    struct probe_answer *answer = answer_of(probe, rank, unprobed->peer);
    if (!answer) return refuse(probe, rank, "has not measured what it was not asked to");
    const char *text = unprobed->text ? unprobed->text : "";
    answer->come = true;
    answer->phase = (uint32_t)unprobed->phase;
    answer->status = status_of(unprobed->status ? unprobed->status : "");
    (void)aq_printable(text, strlen(text), true, answer->text, sizeof answer->text);
    return true;
}

static void on_failed(struct probe *probe, uint32_t rank, const char *text)
{
    struct probe_rank *r = &probe->ranks[rank];
    if (r->failed) return;
    r->failed = true;
    if (!text || !*text) text = "its worker ended";
    char cut[AQ_PROBE_TEXT_CHARS + 1];
    snprintf(cut, sizeof cut, "%s", text);
    (void)aq_printable(cut, strlen(cut), true, r->why, sizeof r->why);
}

bool probe_event(struct probe *probe, const struct host *host, const json_t *line)
{
    struct launcher *launcher = &probe->launcher;
    const char *event = aq_control_text_or(line, "event", "");
    struct aq_message message;
    struct aq_message_wrong wrong;
    uint32_t rank;
    if (strcmp(event, "beat") == 0 || strcmp(event, "stop-asked") == 0) return true;
    if (aq_control_get_u32(line, "rank", &rank) != AQ_OK || rank >= launcher->ranks ||
        &launcher->hosts[launcher->stages[rank].host] != host) {
        launcher_fail(launcher, CAUSE_OWN, AQ_PROTO,
                      "the daemon of %s breaks the protocol: its line '%.32s' is of no rank that it runs",
                      host->address ? host->address : "this machine", event);
        return false;
    }
    enum aq_message_id id = aq_message_find(line, AQ_END_WORKER, AQ_END_LAUNCHER);
    if (strcmp(event, "exited") == 0) id = AQ_MESSAGE_exited; /* the daemon's own */
    const bool answers = id == AQ_MESSAGE_probed || id == AQ_MESSAGE_unprobed;
    if (answers && was_owed(probe, rank)) return true;
    if (id == AQ_MESSAGES || !aq_message_allowed(id, AQ_STATE_MEASURING) ||
        (id == AQ_MESSAGE_ready && probe->ranks[rank].ready))
        return refuse(probe, rank, "sent an event that is not due in a measurement");
    if (!aq_message_read(id, line, NULL, &message, &wrong)) return refuse(probe, rank, wrong.text);
    if (id == AQ_MESSAGE_failed || id == AQ_MESSAGE_exited)
        on_failed(probe, rank, id == AQ_MESSAGE_failed ? message.failed.text : message.exited.last);
    if (id == AQ_MESSAGE_listening) return on_listening(probe, rank, &message);
    if (id == AQ_MESSAGE_probed) return on_probed(probe, rank, &message);
    if (id == AQ_MESSAGE_unprobed) return on_unprobed(probe, rank, &message);
    if (id == AQ_MESSAGE_ready) probe->ranks[rank].ready = true;
    return true;
}

static void read_host(struct probe *probe, struct host *host)
{
    struct launcher *launcher = &probe->launcher;
    for (int i = 0; i < TURN_LINES && host->control && launcher->cause == CAUSE_NONE; i++) {
        json_t *message;
        const enum aq_status status = aq_control_receive(host->control, 0, &message);
        const enum aq_status lost = status == AQ_AGAIN ? host->broken : status;
        if (lost != AQ_OK) host_lost(launcher, host, lost, NULL);
        if (status != AQ_OK) return;
        (void)probe_event(probe, host, message);
        json_decref(message);
    }
}

/* ---- waiting ---- */

/* One turn of the loop. False: a daemon is lost, or a peer broke the protocol. */
static bool turn(struct probe *probe)
{
    struct launcher *launcher = &probe->launcher;
    struct pollfd fds[AQ_JOB_RANKS_MAX];
    nfds_t count = 0;
    for (uint32_t i = 0; i < launcher->host_count; i++) {
        struct aq_control *control = launcher->hosts[i].control;
        if (control)
            fds[count++] = (struct pollfd){.fd = aq_control_fd(control),
                                           .events = aq_control_pending(control) ? POLLIN | POLLOUT : POLLIN};
    }
    if (poll(fds, count, TICK_MS) < 0 && errno != EINTR)
        launcher_fail(launcher, CAUSE_OWN, AQ_IO, "poll: errno %d", errno);
    for (uint32_t i = 0; i < launcher->host_count; i++)
        read_host(probe, &launcher->hosts[i]);
    aq_progress_tick(launcher->launch->progress);
    return launcher->cause == CAUSE_NONE;
}

static bool all_ready(const struct probe *probe)
{
    for (uint32_t r = 0; r < probe->launcher.ranks; r++)
        if (!probe->ranks[r].ready && !probe->ranks[r].failed) return false;
    return true;
}

static bool await_ready(struct probe *probe)
{
    const uint64_t deadline = aq_clock_after(READY_S * second_ns);
    aq_progress_phase(probe->launcher.launch->progress, "waits until %u workers listen", probe->launcher.ranks);
    while (!all_ready(probe) && aq_clock_ns() < deadline)
        if (!turn(probe)) return false;
    for (uint32_t r = 0; r < probe->launcher.ranks; r++) {
        struct probe_rank *rank = &probe->ranks[r];
        if (rank->ready || rank->failed) continue;
        rank->failed = true;
        snprintf(rank->why, sizeof rank->why, "its worker was not ready within %d s", READY_S);
    }
    return probe->launcher.cause == CAUSE_NONE;
}

static bool answered(const struct probe *probe, int end)
{
    const uint32_t rank = end ? probe->pair->to : probe->pair->from;
    return probe->answers[end].come || probe->ranks[rank].failed;
}

/* ---- one pair ---- */

static void ask(struct probe *probe, uint32_t rank, uint32_t peer, uint32_t segment)
{
    const bool connects = rank != probe->pair->listener;
    json_t *message = json_pack("{s:s, s:I, s:I, s:I}", "op", "probe", "rank", (json_int_t)rank, "peer",
                                (json_int_t)peer, "segment", (json_int_t)segment);
    if (message && connects) json_object_set_new(message, "address", json_string(probe->ranks[peer].address));
    probe->answers[rank == probe->pair->to].asked = true;
    stage_send(&probe->launcher, rank, message);
}

void probe_give_up(struct probe *probe)
{
    const uint32_t ends[2] = {probe->pair->from, probe->pair->to};
    for (int i = 0; i < 2; i++)
        if (probe->answers[i].asked && !probe->answers[i].come && !probe->ranks[ends[i]].failed)
            probe->ranks[ends[i]].owed++;
}

/* Both ends have answered, or will not any more. */
static bool ask_both(struct probe *probe, uint32_t segment)
{
    const struct aq_probe_pair *pair = probe->pair;
    const uint32_t connector = pair->listener == pair->to ? pair->from : pair->to;
    const uint64_t deadline = aq_clock_after(AQ_PROBE_PAIR_S * second_ns);
    memset(probe->answers, 0, sizeof probe->answers);
    ask(probe, pair->listener, connector, segment);
    ask(probe, connector, pair->listener, segment);
    while (probe->launcher.cause == CAUSE_NONE && !(answered(probe, 0) && answered(probe, 1)) &&
           aq_clock_ns() < deadline)
        (void)turn(probe);
    probe_give_up(probe);
    return probe->launcher.cause == CAUSE_NONE;
}

/* The reason why it was not measured: a rank's failure, else the answer of the end that connects. */
static void explain(const struct probe *probe, struct aq_probe_pair *pair)
{
    const uint32_t ends[2] = {pair->from, pair->to};
    char who[RANK_NAME_BYTES];
    for (int i = 0; i < 2; i++) {
        if (!probe->ranks[ends[i]].failed) continue;
        pair->status = AQ_CLOSED;
        snprintf(pair->text, sizeof pair->text, "%s: %s", rank_name(&probe->launcher, ends[i], who),
                 probe->ranks[ends[i]].why);
        return;
    }
    const int connector = pair->listener == pair->from;
    const int which = probe->answers[connector].measured ? !connector : connector;
    const struct probe_answer *answer = &probe->answers[which];
    pair->status = answer->come ? answer->status : AQ_TIMEOUT;
    snprintf(pair->text, sizeof pair->text, "%s: %s", rank_name(&probe->launcher, ends[which], who),
             answer->come ? answer->text : "no answer in time");
}

static bool both_measured(const struct probe *probe)
{
    return probe->answers[0].measured && probe->answers[1].measured;
}

/* Somebody waited in vain, and both workers live. */
static bool worth_small(const struct probe *probe)
{
    const struct aq_probe_pair *pair = probe->pair;
    const bool connects_from = pair->listener == pair->to;
    const struct probe_answer *connector = &probe->answers[connects_from ? 0 : 1];
    return !probe->ranks[pair->from].failed && !probe->ranks[pair->to].failed && connector->come &&
           (connector->measured || connector->status == AQ_TIMEOUT);
}

static void conclude(struct probe *probe, enum aq_probe_outcome outcome)
{
    struct aq_probe_pair *pair = probe->pair;
    const char *differ = aq_probe_figures_differ(&pair->figures[0], &pair->figures[1]);
    pair->outcome = outcome;
    pair->trips = &pair->figures[pair->listener == pair->from];
    if (!differ) return;
    pair->outcome = AQ_PROBE_FAILED;
    pair->status = AQ_PROTO;
    snprintf(pair->text, sizeof pair->text, "%s", differ);
}

/* False: the probe is over. */
static bool measure(struct probe *probe, struct aq_probe_pair *pair)
{
    probe->pair = pair;
    memset(probe->answers, 0, sizeof probe->answers);
    pair->outcome = AQ_PROBE_FAILED;
    const bool lives = !probe->ranks[pair->from].failed && !probe->ranks[pair->to].failed;
    if (lives && !ask_both(probe, 0)) return false;
    if (lives && both_measured(probe)) {
        conclude(probe, AQ_PROBE_MEASURED);
        return true;
    }
    explain(probe, pair);
    if (!lives || !worth_small(probe)) return true;
    if (!ask_both(probe, AQ_PROBE_SEGMENT_SMALL)) return false;
    if (!both_measured(probe)) return true;
    conclude(probe, AQ_PROBE_BLACK_HOLE);
    if (pair->outcome != AQ_PROBE_BLACK_HOLE) return true;
    /* Was it an outage that is over? Then large packets come through now. */
    const struct aq_probe_figures small[2] = {pair->figures[0], pair->figures[1]};
    if (!ask_both(probe, 0)) return false;
    if (both_measured(probe))
        conclude(probe, AQ_PROBE_MEASURED);
    else
        memcpy(pair->figures, small, sizeof small);
    return true;
}

enum aq_status aq_probe_run(const struct aq_launch *launch, struct aq_probe_pair *pairs, uint32_t count, char *cause,
                            size_t bytes)
{
    struct aq_launch_result result = {0};
    AQ_ASSERT(launch->probe && launch->stages * launch->replicas <= AQ_JOB_RANKS_MAX);
    struct probe *probe;
    AQ_TRY(AQ_NEW(1, &probe));
    struct launcher *launcher = &probe->launcher;
    launcher->launch = launch;
    launcher->ranks = launch->stages * launch->replicas;
    launcher->result = &result;
    watch_open(launcher);
    enum aq_status status = hosts_open(launcher);
    if (status != AQ_OK) launcher_fail(launcher, CAUSE_OWN, status, "%s", aq_error_text());
    if (status == AQ_OK) hosts_start(launcher);
    if (launcher->cause == CAUSE_NONE && await_ready(probe))
        for (uint32_t i = 0; i < count; i++) {
            aq_progress_phase(launch->progress, "measures rank %u to rank %u (%u of %u)", pairs[i].from, pairs[i].to,
                              i + 1, count);
            if (!measure(probe, &pairs[i])) break;
        }
    hosts_close(launcher);
    status = launcher->cause == CAUSE_NONE ? AQ_OK : result.status;
    snprintf(cause, bytes, "%s", result.cause);
    aq_free(probe);
    return status;
}

bool aq_probe_moved(const struct aq_probe_pair *pair)
{
    const double before = pair->trips->rtt_ms, after = pair->trips->rtt_after_ms;
    const double less = fmin(before, after), more = fmax(before, after);
    return more - less >= moved_ms && more >= moved_times * less;
}
