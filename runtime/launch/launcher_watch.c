/* launcher_watch.c -- beats both ways, and the reaction to a silent peer or a stuck job (watch.h). */
#include <signal.h>

#include "launcher_private.h"

void watch_open(struct launcher *launcher)
{
    aq_watch_init(&launcher->watch, &launcher->launch->watch, aq_clock_ns());
    launcher->beat_ns = aq_watch_interval(&launcher->launch->watch);
}

void watch_send(struct launcher *launcher)
{
    if (launcher->beat_ns == 0 || aq_clock_ns() < launcher->beat_due_ns) return;
    launcher->beat_due_ns = aq_clock_after(launcher->beat_ns);
    for (uint32_t i = 0; i < launcher->host_count; i++)
        if (launcher->hosts[i].beats) host_send(&launcher->hosts[i], json_pack("{s:s}", "op", "beat"));
}

void watch_heard(struct launcher *launcher, const struct host *host)
{
    if (host->beats) aq_watch_host_heard(&launcher->watch, (uint32_t)(host - launcher->hosts));
}

void watch_beat(struct launcher *launcher, const struct aq_message *message)
{
    const struct aq_message_beat *beat = &message->beat;
    struct stage *stage = &launcher->stages[beat->rank];
    if (stage->state == STAGE_NONE || stage->state == STAGE_EXITED) return;
    stage->pid = (int)beat->pid;
    aq_watch_stage_beat(&launcher->watch, (uint32_t)beat->rank, beat->work, beat->step,
                        beat->phase < AQ_PHASES ? (enum aq_phase)beat->phase : AQ_PHASE_START);
}

static void host_is_silent(struct launcher *launcher, const struct aq_watch_finding *finding)
{
    struct host *host = &launcher->hosts[finding->number];
    char pid[32] = "", why[200];
    if (host->pid > 0) snprintf(pid, sizeof pid, "(pid %d) ", (int)host->pid);
    snprintf(why, sizeof why,
             "%shas been silent for %.1f s (control.silence_max %.1f s): it is stopped, hangs or is out of reach", pid,
             (double)finding->since_ns * 1e-9, (double)finding->limit_ns * 1e-9);
    if (host->pid > 0) kill(host->pid, SIGKILL); /* its workers die with it */
    host_lost(launcher, host, AQ_TIMEOUT, why);
}

static void stage_is_silent(struct launcher *launcher, const struct aq_watch_finding *finding)
{
    const struct stage *stage = &launcher->stages[finding->number];
    char who[RANK_NAME_BYTES];
    if (launcher_rounds_lose(launcher, finding->number, "is silent (control.silence_max)")) return;
    if (launcher_fail(launcher, CAUSE_OWN, AQ_TIMEOUT,
                      "%s (pid %d) has been silent for %.1f s (limit %.1f s, control.silence_max): its process is "
                      "stopped or hangs",
                      rank_name(launcher, finding->number, who), stage->pid, (double)finding->since_ns * 1e-9,
                      (double)finding->limit_ns * 1e-9))
        launcher->result->transient = true;
}

static void job_is_stuck(struct launcher *launcher, const struct aq_watch_finding *finding)
{
    const struct aq_watch_stage *of = &launcher->watch.stages[finding->number];
    char who[RANK_NAME_BYTES];
    if (launcher_fail(launcher, CAUSE_OWN, AQ_TIMEOUT,
                      "no stage has made progress for %.1f s (limit %.1f s, control.stall_max): %s (pid %d) is alive, "
                      "but in step %llu it %s for %.1f s",
                      (double)finding->since_ns * 1e-9, (double)finding->limit_ns * 1e-9,
                      rank_name(launcher, finding->number, who), launcher->stages[finding->number].pid,
                      (unsigned long long)of->step, aq_phase_text(of->phase),
                      (double)(launcher->watch.clock.now_ns - of->changed_ns) * 1e-9))
        launcher->result->transient = true;
}

void watch_look(struct launcher *launcher)
{
    aq_watch_tick(&launcher->watch, aq_clock_ns());
    if (launcher->aborting) return;
    const struct aq_watch_finding finding = aq_watch_look(&launcher->watch);
    if (finding.kind == AQ_WATCH_HOST_SILENT) host_is_silent(launcher, &finding);
    if (finding.kind == AQ_WATCH_STAGE_SILENT) stage_is_silent(launcher, &finding);
    if (finding.kind == AQ_WATCH_STUCK) job_is_stuck(launcher, &finding);
}
