/*
 * launcher_reach.c -- a daemon that is lost while other replicas train (reduce.patience) is tried until it answers.
 *
 *     here --its connection ends, or control.silence_max--> lost: the replicas that have a stage there are
 *     lost --REACH_FIRST_MS later--> a try --it takes the job--> here: those replicas start again (launcher_return.c)
 *                                      |
 *                                      +--no answer, or a refusal--> the next try, after twice the pause before
 *
 * A whole machine is what is lost most: its power, its network. The daemon that answers may be another process, which
 * knows of no job; it may also be the old one, which refuses a job until it has noticed that its launcher's connection
 * has ended, and has reaped its workers. Either way it takes the job anew, and its workers are new ones.
 *
 * Nothing here waits: the other daemons are heard meanwhile. The exceptions are a name server, if the address has a
 * name, and the end of an ssh process, for 1 s at most: when the agent is lost (death_of), and when it has not taken
 * the job (agent_why).
 * The loss of the private daemon is that of the whole run. The user is told of the loss, of each new reason why a try
 * fails, and of the end of it.
 */
#include <poll.h>
#include <string.h>

#include "launcher_private.h"
#include "ssh_host.h"

enum { REACH_FIRST_MS = 500, REACH_MS_MAX = 30000, REACH_MEET_S = 15, REACH_ANSWER_S = 15, REACH_AGENT_S = 45 };

static const uint64_t second_ns = 1000ULL * 1000 * 1000;

static bool has_stage(const struct launcher *launcher, const struct host *host, uint32_t replica)
{
    const uint32_t P = launcher->launch->stages;
    for (uint32_t r = replica * P; r < (replica + 1) * P; r++)
        if (&launcher->hosts[launcher->stages[r].host] == host) return true;
    return false;
}

bool launcher_reach_all(const struct launcher *launcher, uint32_t replica)
{
    for (uint32_t i = 0; i < launcher->host_count; i++)
        if (!launcher->hosts[i].control && has_stage(launcher, &launcher->hosts[i], replica)) return false;
    return true;
}

/* Will a replica start there, as soon as it can? */
static bool is_wanted(const struct launcher *launcher, const struct host *host)
{
    if (launcher->aborting || launcher->cause != CAUSE_NONE) return false;
    for (uint32_t w = 0; w < launcher->launch->replicas; w++) {
        const enum replica_state state = launcher->rounds.replicas[w].state;
        if ((state == REPLICA_ENDS || state == REPLICA_AWAY) && has_stage(launcher, host, w)) return true;
    }
    return false;
}

void launcher_reach_close(struct host *host)
{
    aq_control_meeting_end(host->reach.meeting);
    host->reach.meeting = NULL;
    aq_control_close(host->reach.control);
    host->reach.control = NULL;
}

static void pause_next(struct host *host)
{
    uint64_t pause_ms = REACH_FIRST_MS;
    for (uint32_t i = 0; i < host->reach.tries && pause_ms < REACH_MS_MAX; i++)
        pause_ms *= 2;
    if (pause_ms > REACH_MS_MAX) pause_ms = REACH_MS_MAX;
    host->reach.due_ns = aq_clock_after(pause_ms * 1000 * 1000);
}

bool launcher_reach_lost(struct launcher *launcher, struct host *host, const char *why)
{
    const uint32_t P = launcher->launch->stages;
    char text[800];
    bool told = false;
    if (!host->address || strcmp(host->address, AQ_LAUNCH_GUEST) == 0) return false; /* the private one */
    snprintf(text, sizeof text, "is lost (%s)", why);
    host->reach = (struct host_reach){.lost_ns = launcher->watch.clock.now_ns};
    pause_next(host);
    for (uint32_t w = 0; w < launcher->launch->replicas; w++) {
        if (!has_stage(launcher, host, w)) continue;
        uint32_t rank = w * P;
        while (&launcher->hosts[launcher->stages[rank].host] != host)
            rank++;
        if (launcher_return_exited(launcher, rank)) continue; /* it was lost before */
        told |= !launcher_is_ignored(launcher, rank);
        if (!launcher_rounds_lose(launcher, rank, text)) return false;
    }
    if (!told && !launcher->aborting) aq_progress_say(launcher->launch->progress, "%s", why);
    if (is_wanted(launcher, host))
        aq_progress_say(launcher->launch->progress,
                        "the daemon of %s is tried again until it answers; the other replicas train", host->address);
    return true;
}

static void try_failed(struct launcher *launcher, struct host *host, const char *why)
{
    launcher_reach_close(host);
    agent_end(host);
    host->reach.tries++;
    pause_next(host);
    if (strncmp(host->reach.why, why, sizeof host->reach.why - 1) == 0) return;
    snprintf(host->reach.why, sizeof host->reach.why, "%.*s", REACH_WHY_BYTES - 1, why);
    aq_progress_say(launcher->launch->progress, "the daemon of %s is not back (%s)", host->address, host->reach.why);
}

/* It has been greeted, or started: asks it to take the job. */
static enum aq_status ask(struct launcher *launcher, struct host *host, struct aq_control *control)
{
    host->reach.control = control;
    host->reach.deadline_ns = aq_clock_after((aq_ssh_is(host->address) ? REACH_AGENT_S : REACH_ANSWER_S) * second_ns);
    const enum aq_status status = host_ask(launcher, control, true);
    return status == AQ_CLOSED ? AQ_OK : status; /* it may have sent the cause */
}

static enum aq_status begin(struct launcher *launcher, struct host *host)
{
    const struct aq_launch *launch = launcher->launch;
    if (!aq_ssh_is(host->address))
        return aq_control_meeting_begin(host->address, launch->token, launch->tls,
                                        aq_clock_after(REACH_MEET_S * second_ns), &host->reach.meeting);
    agent_end(host);
    const enum aq_status status = agent_start(host);
    struct aq_control *control = host->control;
    host->control = NULL; /* it has not taken the job yet */
    if (status != AQ_OK) {
        aq_control_close(control);
        return status;
    }
    return ask(launcher, host, control);
}

/* AQ_OK: host->control is there, and the daemon has taken the job. */
static enum aq_status hear(struct launcher *launcher, struct host *host, struct aq_error_hold *hold)
{
    json_t *message;
    enum aq_status status = aq_control_receive(host->reach.control, 0, &message);
    if (status == AQ_AGAIN && aq_clock_ns() > host->reach.deadline_ns) status = AQ_TIMEOUT;
    if (status == AQ_AGAIN) return status;
    if (status != AQ_OK && aq_ssh_is(host->address)) {
        char text[AQ_ERROR_BYTES];
        snprintf(text, sizeof text, "%s", hold->text);
        hold->text[0] = '\0';       /* the next one contains it, and a hold keeps the first */
        launcher_reach_close(host); /* else ssh does not end, and is waited for */
        return agent_why(host, status, text);
    }
    if (status != AQ_OK)
        return aq_fail(status, "launch", "the daemon of %s does not accept the job (%s)", host->address,
                       aq_status_text(status));
    status = host_answered(launcher, host, message);
    json_decref(message);
    AQ_TRY(status);
    host->control = host->reach.control;
    host->reach.control = NULL;
    return AQ_OK;
}

static enum aq_status advance(struct launcher *launcher, struct host *host, struct aq_error_hold *hold)
{
    struct aq_control *control;
    if (host->reach.control) return hear(launcher, host, hold);
    if (!host->reach.meeting) return aq_clock_ns() < host->reach.due_ns ? AQ_AGAIN : begin(launcher, host);
    AQ_TRY(aq_control_meeting_turn(host->reach.meeting, &control));
    aq_control_meeting_end(host->reach.meeting);
    host->reach.meeting = NULL;
    return ask(launcher, host, control);
}

static void turn(struct launcher *launcher, struct host *host)
{
    struct aq_error_hold hold;
    if (!is_wanted(launcher, host)) {
        launcher_reach_close(host);
        return;
    }
    aq_error_hold(&hold);
    const enum aq_status status = advance(launcher, host, &hold);
    aq_error_release(&hold);
    if (status != AQ_OK && status != AQ_AGAIN)
        try_failed(launcher, host, hold.text[0] ? hold.text : aq_status_text(status));
    if (!host->control) return;
    watch_heard(launcher, host);
    aq_progress_say(launcher->launch->progress, "the daemon of %s answers again", host->address);
    launcher_return_reached(launcher);
}

void launcher_reach_turn(struct launcher *launcher)
{
    for (uint32_t i = 0; i < launcher->host_count; i++)
        if (!launcher->hosts[i].control) turn(launcher, &launcher->hosts[i]);
}

int launcher_reach_fd(const struct host *host, short *events)
{
    if (host->reach.meeting) {
        *events = aq_control_meeting_events(host->reach.meeting);
        return aq_control_meeting_fd(host->reach.meeting);
    }
    if (!host->reach.control) return -1;
    *events = aq_control_pending(host->reach.control) ? POLLIN | POLLOUT : POLLIN;
    return aq_control_fd(host->reach.control);
}
