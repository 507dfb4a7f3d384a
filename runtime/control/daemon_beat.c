/*
 * daemon_beat.c -- beats: to the job's owner, of this daemon and its live workers; and the check that the owner lives.
 *
 * A worker's process beats into its page (heartbeat.h). Its beat is passed on only where the page has moved, so that a
 * process that is stopped is silent. A stopped owner is waited for AQ_WATCH_STARTS times as long as the owner waits for
 * us; TCP finds a lost machine within 30 s (control_socket.c).
 */
#include <math.h>

#include "daemon_private.h"

static const double seconds_max = 1e7, beat_s_min = 0.01;

/* Seconds from a message; 0 if the field is missing or invalid. */
static uint64_t seconds_of(const json_t *message, const char *key, double least)
{
    const double seconds = aq_control_number_or(message, key, 0);
    if (!isfinite(seconds) || seconds <= 0) return 0;
    return (uint64_t)((seconds < least ? least : seconds > seconds_max ? seconds_max : seconds) * 1e9);
}

void beat_open(struct daemon *daemon, const json_t *message)
{
    daemon->beat_ns = seconds_of(message, "beat_seconds", beat_s_min);
    daemon->owner_silence_ns = daemon->beat_ns ? seconds_of(message, "silence_seconds", beat_s_min) : 0;
    daemon->beat_due_ns = 0;
    aq_watch_clock_init(&daemon->owner_clock, daemon->owner_silence_ns, aq_clock_ns());
    daemon->owner_heard_ns = 0;
}

void beat_heard(struct daemon *daemon)
{
    daemon->owner_heard_ns = daemon->owner_clock.now_ns;
}

int beat_tick_ms(const struct daemon *daemon, int most)
{
    const uint64_t ms = daemon->owner ? daemon->beat_ns / 1000000 : 0;
    return ms && ms < (uint64_t)most ? (int)ms : most;
}

static void worker_beat(struct daemon *daemon, struct worker *worker)
{
    struct aq_heartbeat_reading reading;
    if (!worker->used || worker->pid <= 0 || !worker->heartbeat) return;
    aq_heartbeat_read(worker->heartbeat, &reading);
    if (reading.beats == worker->beats_told) return;
    worker->beats_told = reading.beats;
    owner_send(daemon, json_pack("{s:s, s:I, s:I, s:I, s:I, s:i}", "event", "beat", "rank", (json_int_t)worker->rank,
                                 "pid", (json_int_t)worker->pid, "work", (json_int_t)reading.work, "step",
                                 (json_int_t)reading.step, "doing", (int)reading.phase));
}

void beat_advance(struct daemon *daemon, uint64_t now_ns)
{
    aq_watch_clock_tick(&daemon->owner_clock, now_ns);
    if (!daemon->owner || daemon->beat_ns == 0) return;
    const uint64_t silent = daemon->owner_clock.now_ns - daemon->owner_heard_ns;
    if (daemon->owner_silence_ns && silent > daemon->owner_silence_ns) {
        aq_log("daemon", 0, "the launcher of job '%s' (%s) has been silent for %.1f s: its workers are ended",
               daemon->job, daemon->owner->peer, (double)silent * 1e-9);
        connection_close(daemon, daemon->owner);
        return;
    }
    /* The lines that fill the buffer also show that we live. */
    if (now_ns < daemon->beat_due_ns || aq_control_room(daemon->owner->control) < DAEMON_ROOM) return;
    daemon->beat_due_ns = now_ns + daemon->beat_ns;
    owner_send(daemon, json_pack("{s:s}", "event", "beat"));
    for (int i = 0; i < DAEMON_WORKERS_MAX; i++)
        worker_beat(daemon, &daemon->workers[i]);
}
