/*
 * launcher_bounds.c -- the lines that a worker may send, and when: any line that the plan does not allow ends the run.
 *
 * A worker runs on another's machine and has only proved that it holds a key. Its lines are written into metrics.jsonl
 * and trace.json and decide when a checkpoint is complete and a job is done: so each is checked before it is used. The
 * first invalid line is the run's cause, with the rank and the expectation; neither it nor any later line of the rank
 * is written. A daemon's own line (`exited`) is not a worker's.
 *
 * One row an event below: in which states it may come, and its check.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "launcher_private.h"

enum {
    FIELDS_MAX = 64,         /* of a line: 38 in the longest, that of a step with replicas that chose a codec */
    FIELD_NAME_MAX = 32,     /* longest: reduce_pack_seconds                                                 */
    FIELD_TEXT_MAX = 64,     /* longest: the name of a gradient codec                                        */
    ADDRESS_CHARS_MAX = 255, /* a name of 253 characters at most would not fit with its port: none does      */
    RTT_MS_MAX = 3600000     /* an hour: no connection has such a round trip                                */
};
static const double exact_max = 9007199254740992.0; /* 2^53: a count in a double is exact below */

static bool refuse(struct launcher *launcher, uint32_t rank, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static bool refuse(struct launcher *launcher, uint32_t rank, const char *format, ...)
{
    char text[400], who[RANK_NAME_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    launcher->stages[rank].distrusted = true;
    launcher_fail(launcher, CAUSE_OWN, AQ_PROTO, "%s breaks the protocol: it %s", rank_name(launcher, rank, who), text);
    return false;
}

/* A line that is kept has few fields, and in each a number or a name. */
static bool check_fields(struct launcher *launcher, uint32_t rank, const char *event, const json_t *message)
{
    const char *key;
    json_t *value;
    if (json_object_size(message) > FIELDS_MAX)
        return refuse(launcher, rank, "sends a line '%s' of %zu fields; at most %d are known", event,
                      json_object_size(message), FIELDS_MAX);
    json_object_foreach((json_t *)(uintptr_t)message, key, value)
    {
        const bool plain = json_is_number(value) || json_is_boolean(value) || json_is_null(value) ||
                           (json_is_string(value) && json_string_length(value) <= FIELD_TEXT_MAX);
        if (strlen(key) > FIELD_NAME_MAX || !plain)
            return refuse(launcher, rank, "sends a line '%s' whose field '%.32s' is neither a number nor a name", event,
                          key);
    }
    return true;
}

/* Links: to the stages before and after in a replica, and to the same stage of others (aq_job_linked). */
static bool linked(const struct launcher *launcher, uint32_t a, uint32_t b)
{
    const uint32_t P = launcher->launch->stages;
    return a / P == b / P ? a + 1 == b || b + 1 == a : a % P == b % P;
}

bool launcher_is_due(uint64_t every, uint64_t step, uint64_t steps)
{
    return step == steps || (every > 0 && step % every == 0);
}

/* Returns the word, and in *bit the bit, that is set once `rank` has reported that it listens for `peer`. */
static uint64_t *listens_word(struct launcher *launcher, uint64_t rank, uint64_t peer, uint64_t *bit)
{
    *bit = 1ull << peer % 64;
    return &launcher->stages[rank].listens[peer / 64];
}

static bool check_listening(struct launcher *launcher, uint32_t rank, const json_t *message)
{
    const uint64_t peer = aq_control_u64_or(message, "peer", (uint64_t)rank + 1);
    uint64_t bit, back;
    const char *address = aq_control_text_or(message, "address", "");
    const size_t length = strlen(address);
    if (peer >= launcher->ranks || !linked(launcher, rank, (uint32_t)peer))
        return refuse(launcher, rank, "listens for rank %llu, to which it has no link", (unsigned long long)peer);
    uint64_t *own = listens_word(launcher, rank, peer, &bit);
    if (*own & bit || *listens_word(launcher, peer, rank, &back) & back)
        return refuse(launcher, rank, "listens for rank %llu, between which and itself that is settled",
                      (unsigned long long)peer);
    for (size_t i = 0; i < length; i++)
        if (address[i] <= ' ' || address[i] > '~') return refuse(launcher, rank, "listens at no address");
    if (length == 0 || length > ADDRESS_CHARS_MAX) return refuse(launcher, rank, "listens at no address");
    *own |= bit;
    return true;
}

static bool check_phase(struct launcher *launcher, uint32_t rank, const json_t *message)
{
    struct stage *stage = &launcher->stages[rank];
    const uint64_t phase = aq_control_u64_or(message, "doing", 0);
    if (phase < AQ_PHASE_DEVICE || phase >= AQ_PHASES || phase <= stage->phase)
        return refuse(launcher, rank, "starts part %llu of its start, which is not due now", (unsigned long long)phase);
    stage->phase = (enum aq_phase)phase;
    return true;
}

static bool check_ready(struct launcher *launcher, uint32_t rank, const json_t *message)
{
    const char *device = aq_control_text_or(message, "device", "");
    const struct aq_launch *launch = launcher->launch;
    if (launch->ask && aq_control_u64_or(message, "answers", 0) != launch->vocabulary)
        return refuse(launcher, rank, "does not answer as this version of aqpipe asks: another one on its host?");
    if (strlen(device) > 4 * FIELD_TEXT_MAX || strlen(aq_control_text_or(message, "on", "")) > 4 * FIELD_TEXT_MAX)
        return refuse(launcher, rank, "is ready on a device without a name");
    const double rtt_ms = aq_control_number_or(message, "rtt_ms", 0);
    if (!(rtt_ms >= 0 && rtt_ms <= RTT_MS_MAX)) return refuse(launcher, rank, "is ready at no distance");
    return true;
}

static bool check_step(struct launcher *launcher, uint32_t rank, const json_t *message)
{
    struct stage *stage = &launcher->stages[rank];
    const uint64_t all = launcher->launch->bounds.steps, until = launcher->launch->until;
    const uint64_t steps = until && until < all ? until : all, step = aq_control_u64_or(message, "step", 0);
    if (stage->step >= steps)
        return refuse(launcher, rank, "reports step %llu, and step %llu was the last one", (unsigned long long)step,
                      (unsigned long long)steps);
    if (step != stage->step + 1)
        return refuse(launcher, rank, "reports step %llu while step %llu is due", (unsigned long long)step,
                      (unsigned long long)stage->step + 1);
    if (aq_control_u64_or(message, "epoch", 0) > step) return refuse(launcher, rank, "reports an epoch without steps");
    if (!check_fields(launcher, rank, "step", message)) return false;
    stage->step = step;
    return true;
}

static bool check_eval(struct launcher *launcher, uint32_t rank, const json_t *message)
{
    const struct aq_launch *launch = launcher->launch;
    struct stage *stage = &launcher->stages[rank];
    const uint64_t step = aq_control_u64_or(message, "step", 0);
    const double targets = aq_control_number_or(message, "targets", 0);
    if (rank % launch->stages + 1 != launch->stages || !launch->bounds.evaluates)
        return refuse(launcher, rank, "evaluates, which the plan does not have it do");
    if (step != stage->step || step == stage->evaluated ||
        !launcher_is_due(launch->bounds.evaluate_every, step + launch->bounds.shift,
                         launch->bounds.steps + launch->bounds.shift))
        return refuse(launcher, rank, "evaluates after step %llu, having trained %llu: no evaluation is due",
                      (unsigned long long)step, (unsigned long long)stage->step);
    if (!(targets >= 0 && targets <= exact_max)) return refuse(launcher, rank, "evaluates no count of targets");
    if (!check_fields(launcher, rank, "eval", message)) return false;
    stage->evaluated = step;
    return true;
}

static bool check_mark(struct launcher *launcher, uint32_t rank, const json_t *message)
{
    const struct aq_launch *launch = launcher->launch;
    const struct stage *stage = &launcher->stages[rank];
    const uint64_t step = aq_control_u64_or(message, "step", 0), complete = launcher->result->mark;
    char who[RANK_NAME_BYTES];
    if (stage->mark > complete)
        return refuse(launcher, rank, "has a checkpoint of step %llu while that of step %llu is not complete",
                      (unsigned long long)step, (unsigned long long)stage->mark);
    if (step > stage->step || step <= complete)
        return refuse(launcher, rank,
                      "has a checkpoint of step %llu, having trained %llu; that of step %llu is complete",
                      (unsigned long long)step, (unsigned long long)stage->step, (unsigned long long)complete);
    if (!launcher->stopping && step != launch->until && !launch->bounds.mark_timed &&
        !launcher_is_due(launch->bounds.mark_every, step, launch->bounds.steps))
        return refuse(launcher, rank, "has a checkpoint of step %llu, at which none is due", (unsigned long long)step);
    /* A rank starts no checkpoint before the last one is complete: those under way are of one step. */
    for (uint32_t r = 0; r < launcher->ranks; r++)
        if (launcher->stages[r].mark > complete && launcher->stages[r].mark != step)
            return refuse(launcher, rank, "has a checkpoint of step %llu while %s has one of step %llu",
                          (unsigned long long)step, rank_name(launcher, r, who),
                          (unsigned long long)launcher->stages[r].mark);
    return true;
}

static bool check_trace(struct launcher *launcher, uint32_t rank, const json_t *message)
{
    struct stage *stage = &launcher->stages[rank];
    const json_t *text = json_object_get(message, "text");
    const char *bytes = json_string_value(text);
    const size_t count = json_string_length(text);
    for (size_t i = 0; i < count; i++)
        if (bytes[i] != '\n' && (bytes[i] < ' ' || bytes[i] > '~'))
            return refuse(launcher, rank, "sends a trace that is no text");
    if (count > launcher->launch->bounds.trace_bytes - stage->trace_bytes)
        return refuse(launcher, rank, "sends more than the %llu bytes that its trace may have",
                      (unsigned long long)launcher->launch->bounds.trace_bytes);
    stage->trace_bytes += count;
    return true;
}

static bool check_stopping(struct launcher *launcher, uint32_t rank, const json_t *message)
{
    struct stage *stage = &launcher->stages[rank];
    const uint64_t step = aq_control_u64_or(message, "step", 0);
    if (rank != 0 || !launcher->stopping || stage->stopping)
        return refuse(launcher, rank, "answers which step is the last one, but was not asked");
    if (step < stage->step || step > launcher->launch->bounds.steps)
        return refuse(launcher, rank, "answers that step %llu is the last one after step %llu",
                      (unsigned long long)step, (unsigned long long)stage->step);
    stage->stopping = true;
    return true;
}

static bool check_token(struct launcher *launcher, uint32_t rank, const json_t *message)
{
    const struct aq_launch *launch = launcher->launch;
    const uint64_t token = aq_control_u64_or(message, "token", UINT64_MAX);
    if (!launcher->token_due || rank + 1 != launch->stages)
        return refuse(launcher, rank, "draws a token, and was not asked to");
    if (token >= launch->vocabulary) return refuse(launcher, rank, "draws a token that the model does not have");
    return true;
}

static bool check_done(struct launcher *launcher, uint32_t rank, const json_t *message)
{
    const struct stage *stage = &launcher->stages[rank];
    const uint64_t steps = launcher->launch->bounds.steps;
    const bool stopped = aq_control_bool_or(message, "stopped", false);
    const bool reached = launcher->launch->until && stage->step == launcher->launch->until;
    if (launcher->launch->ask && !launcher->ending) return refuse(launcher, rank, "is done before it was asked to end");
    if (stopped && !launcher->stopping && !reached) return refuse(launcher, rank, "has stopped without being asked");
    const uint64_t early = launcher->result->early_step;
    if (!stopped && stage->step != steps && !(early && stage->step == early))
        return refuse(launcher, rank, "is done after step %llu of %llu", (unsigned long long)stage->step,
                      (unsigned long long)steps);
    return check_fields(launcher, rank, "done", message);
}

enum { STARTING = 1, RUNNING = 2, ENDED = 4 };

static const struct expected {
    const char *event;
    int when;
    bool (*check)(struct launcher *launcher, uint32_t rank, const json_t *message); /* NULL: nothing more */
} expected[] = {
    {"listening", STARTING, check_listening},
    {"doing", STARTING, check_phase},
    {"ready", STARTING, check_ready},
    {"step", RUNNING, check_step},
    {"eval", RUNNING, check_eval},
    {"mark", RUNNING, check_mark},
    {"stopping", RUNNING, check_stopping},
    {"trace", RUNNING, check_trace},
    {"token", RUNNING, check_token},
    {"done", RUNNING, check_done},
    {"failed", STARTING | RUNNING | ENDED, NULL},
    {"exited", STARTING | RUNNING | ENDED, NULL}, /* the daemon's line: it accepts none from a worker */
};

static int state_of(const struct launcher *launcher, const struct stage *stage)
{
    if (stage->state == STAGE_STARTED) return STARTING;
    if (stage->state == STAGE_READY) return launcher->gone ? RUNNING : 0;
    return stage->state == STAGE_DONE ? ENDED : 0;
}

bool launcher_expects(struct launcher *launcher, uint32_t rank, const char *event, const json_t *message)
{
    static const char *const states[] = {
        [0] = "waits for the others", [STARTING] = "starts", [RUNNING] = "trains", [ENDED] = "is done"};
    const struct stage *stage = &launcher->stages[rank];
    const int state = state_of(launcher, stage);
    if (strcmp(event, "exited") == 0) return true;
    if (stage->distrusted || stage->state == STAGE_NONE || stage->state == STAGE_EXITED) return false;
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        if (strcmp(event, expected[i].event) != 0) continue;
        if (strcmp(event, "failed") == 0) return !stage->failed;
        if (!(expected[i].when & state)) return refuse(launcher, rank, "sends '%s' while it %s", event, states[state]);
        return !expected[i].check || expected[i].check(launcher, rank, message);
    }
    return refuse(launcher, rank, "sent '%.32s', which is not a worker's event", event);
}
