/*
 * launcher_bounds.c -- a worker's lines, checked before use: any line that the plan does not allow ends the run.
 *
 * A worker runs on another's machine and has only proved that it holds a key. Its lines are written into metrics.jsonl
 * and trace.json. They decide when a checkpoint is complete and a job is done. The first invalid line is the run's
 * cause, with the rank and the expectation; neither it nor any later line of the rank is written.
 *
 * messages.def says which messages there are, in which states, and the types and bounds of their fields. Here is what
 * one line alone cannot show: its order among the others, and the plan.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "launcher_private.h"

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

uint64_t launcher_peer(uint32_t rank, const struct aq_message *message)
{
    return AQ_MESSAGE_HAS(message, listening, peer) ? message->listening.peer : (uint64_t)rank + 1;
}

static bool check_listening(struct launcher *launcher, uint32_t rank, const struct aq_message *message)
{
    const uint64_t peer = launcher_peer(rank, message);
    uint64_t bit, back;
    if (peer >= launcher->ranks || !linked(launcher, rank, (uint32_t)peer))
        return refuse(launcher, rank, "listens for rank %llu, to which it has no link", (unsigned long long)peer);
    uint64_t *own = listens_word(launcher, rank, peer, &bit);
    /* Of two replicas that return both listen: their links are made later. */
    const bool later = launcher->gone && rank / launcher->launch->stages != peer / launcher->launch->stages;
    if (*own & bit || (!later && *listens_word(launcher, peer, rank, &back) & back))
        return refuse(launcher, rank, "listens for rank %llu, between which and itself that is settled",
                      (unsigned long long)peer);
    *own |= bit;
    return true;
}

static bool check_phase(struct launcher *launcher, uint32_t rank, const struct aq_message *message)
{
    struct stage *stage = &launcher->stages[rank];
    const uint64_t phase = message->phase.phase;
    if (phase <= stage->phase)
        return refuse(launcher, rank, "starts part %llu of its start, which is not due now", (unsigned long long)phase);
    stage->phase = (enum aq_phase)phase;
    return true;
}

static bool check_ready(struct launcher *launcher, uint32_t rank, const struct aq_message *message)
{
    const struct aq_launch *launch = launcher->launch;
    if (launcher->gone && launcher->rounds.replicas[rank / launch->stages].state != REPLICA_ENTERS)
        return refuse(launcher, rank, "is ready to return, and was not told from which step");
    if (launch->ask && message->ready.answers != launch->vocabulary)
        return refuse(launcher, rank, "does not answer as this version of aqpipe asks: another one on its host?");
    return true;
}

/* May a rank report this step, the last one of a round or a later one, before all have the mean of that round? */
static bool is_beside(const struct launcher *launcher, uint64_t step)
{
    const struct launcher_rounds *rounds = &launcher->rounds;
    return rounds->averaging && rounds->travels && step < rounds->averaging + launcher->launch->bounds.delay;
}

static bool check_step(struct launcher *launcher, uint32_t rank, const struct aq_message *message)
{
    struct stage *stage = &launcher->stages[rank];
    const uint64_t all = launcher->launch->bounds.steps, until = launcher->launch->until;
    const uint64_t steps = until && until < all ? until : all, step = message->step.step;
    if (stage->step >= steps)
        return refuse(launcher, rank, "reports step %llu, and step %llu was the last one", (unsigned long long)step,
                      (unsigned long long)steps);
    if (step != launcher_steps_due(launcher, rank))
        return refuse(launcher, rank, "reports step %llu while step %llu is due", (unsigned long long)step,
                      (unsigned long long)launcher_steps_due(launcher, rank));
    const bool open = launcher->rounds.averaging && step >= launcher->rounds.averaging;
    const bool undecided = launcher_rounds_due(launcher, step) && launcher->rounds.decided < step;
    if ((undecided || open) && !is_beside(launcher, step))
        return refuse(launcher, rank, "reports step %llu, and not all have the average of its round",
                      (unsigned long long)step);
    if (message->step.epoch > step + launcher->launch->bounds.shift) /* epochs are the plan's */
        return refuse(launcher, rank, "reports an epoch without steps");
    stage->step = step;
    return true;
}

static bool check_eval(struct launcher *launcher, uint32_t rank, const struct aq_message *message)
{
    const struct aq_launch *launch = launcher->launch;
    struct stage *stage = &launcher->stages[rank];
    const uint64_t step = message->eval.step;
    if (rank % launch->stages + 1 != launch->stages || !launch->bounds.evaluates)
        return refuse(launcher, rank, "evaluates, which the plan does not have it do");
    if (step != stage->step || step == stage->evaluated ||
        !launcher_is_due(launch->bounds.evaluate_every, step + launch->bounds.shift,
                         launch->bounds.steps + launch->bounds.shift))
        return refuse(launcher, rank, "evaluates after step %llu, having trained %llu: no evaluation is due",
                      (unsigned long long)step, (unsigned long long)stage->step);
    stage->evaluated = step;
    return true;
}

static bool check_mark(struct launcher *launcher, uint32_t rank, const struct aq_message *message)
{
    const struct aq_launch *launch = launcher->launch;
    const struct stage *stage = &launcher->stages[rank];
    const uint64_t step = message->mark.step, complete = launcher->result->mark;
    char who[RANK_NAME_BYTES];
    if (stage->mark > complete)
        return refuse(launcher, rank, "has a checkpoint of step %llu while that of step %llu is not complete",
                      (unsigned long long)step, (unsigned long long)stage->mark);
    if (step > stage->step || step <= complete)
        return refuse(launcher, rank,
                      "has a checkpoint of step %llu, having trained %llu; that of step %llu is complete",
                      (unsigned long long)step, (unsigned long long)stage->step, (unsigned long long)complete);
    const bool asked = launcher->stopping || step == launch->until || step == launcher->rounds.without;
    if (!asked && !launch->bounds.mark_timed && !launcher_is_due(launch->bounds.mark_every, step, launch->bounds.steps))
        return refuse(launcher, rank, "has a checkpoint of step %llu, at which none is due", (unsigned long long)step);
    /* A rank starts no checkpoint before the last one is complete: those under way are of one step. */
    for (uint32_t r = 0; r < launcher->ranks; r++)
        if (launcher->stages[r].mark > complete && launcher->stages[r].mark != step)
            return refuse(launcher, rank, "has a checkpoint of step %llu while %s has one of step %llu",
                          (unsigned long long)step, rank_name(launcher, r, who),
                          (unsigned long long)launcher->stages[r].mark);
    return true;
}

static bool check_round(struct launcher *launcher, uint32_t rank, const struct aq_message *message)
{
    struct stage *stage = &launcher->stages[rank];
    const uint64_t step = message->round_end.step;
    if (step != launcher_steps_due(launcher, rank) || step <= stage->round || !launcher_rounds_due(launcher, step))
        return refuse(launcher, rank, "comes to a round's end at step %llu, having trained %llu: none is there",
                      (unsigned long long)step, (unsigned long long)stage->step);
    stage->round = step;
    stage->step_seconds = message->round_end.step_seconds;
    return true;
}

static bool check_averaged(struct launcher *launcher, uint32_t rank, const struct aq_message *message)
{
    const struct launcher_rounds *rounds = &launcher->rounds;
    const uint64_t step = message->averaged.step, attempt = message->averaged.attempt;
    const bool member = rounds->averaging && (rounds->named >> rank / launcher->launch->stages & 1);
    if (!member || step != rounds->averaging || attempt != rounds->attempt ||
        launcher->stages[rank].averaged != AVERAGE_NONE)
        return refuse(launcher, rank, "ends attempt %llu to average the round of step %llu, which it was not asked for",
                      (unsigned long long)attempt, (unsigned long long)step);
    return true;
}

/* Of the round that has just ended: its first member, for the same stage of a replica that was none of its members. */
static bool check_stood_in(struct launcher *launcher, uint32_t rank, const struct aq_message *message)
{
    const uint32_t P = launcher->launch->stages;
    const struct launcher_rounds *rounds = &launcher->rounds;
    const uint64_t step = message->stood_in.step, to = message->stood_in.to;
    const bool first = rounds->named && rank / P == (uint32_t)__builtin_ctzll(rounds->named);
    const bool missing = to < launcher->ranks && to % P == rank % P && !(rounds->named >> to / P & 1);
    if (!first || !missing || step == 0 || step != rounds->decided || !aq_hash_is(message->stood_in.sha256))
        return refuse(launcher, rank, "has written the file of step %llu for rank %llu, which was not asked for",
                      (unsigned long long)step, (unsigned long long)to);
    return true;
}

static bool check_fetch(struct launcher *launcher, uint32_t rank, const struct aq_message *message)
{
    const struct launcher_replica *of = &launcher->rounds.replicas[rank / launcher->launch->stages];
    const struct stage *stage = &launcher->stages[rank];
    const uint64_t step = message->fetch.step;
    const bool enters = of->state == REPLICA_ENTERS && step == of->from && stage->mark == step;
    const bool starts = launcher->rounds.gathers && stage->phase < AQ_PHASE_WEIGHTS;
    if (!(enters || starts) || stage->file.step != step || stage->file.asked)
        return refuse(launcher, rank, "asks for its file of step %llu, which it was not told to read",
                      (unsigned long long)step);
    return true;
}

static bool check_trace(struct launcher *launcher, uint32_t rank, const struct aq_message *message)
{
    struct stage *stage = &launcher->stages[rank];
    const size_t count = message->trace.text ? strlen(message->trace.text) : 0;
    if (count > launcher->launch->bounds.trace_bytes - stage->trace_bytes)
        return refuse(launcher, rank, "sends more than the %llu bytes that its trace may have",
                      (unsigned long long)launcher->launch->bounds.trace_bytes);
    stage->trace_bytes += count;
    return true;
}

static bool check_stopping(struct launcher *launcher, uint32_t rank, const struct aq_message *message)
{
    struct stage *stage = &launcher->stages[rank];
    const uint64_t step = message->stopping.step;
    if (rank != 0 || !launcher->stopping || stage->stopping)
        return refuse(launcher, rank, "answers which step is the last one, but was not asked");
    if (step < stage->step || step > launcher->launch->bounds.steps)
        return refuse(launcher, rank, "answers that step %llu is the last one after step %llu",
                      (unsigned long long)step, (unsigned long long)stage->step);
    stage->stopping = true;
    return true;
}

static bool check_token(struct launcher *launcher, uint32_t rank, const struct aq_message *message)
{
    (void)message;
    if (!launcher->token_due || rank + 1 != launcher->launch->stages)
        return refuse(launcher, rank, "draws a token, and was not asked to");
    return true;
}

static bool check_done(struct launcher *launcher, uint32_t rank, const struct aq_message *message)
{
    const struct stage *stage = &launcher->stages[rank];
    const uint64_t steps = launcher->launch->bounds.steps;
    const bool stopped = message->done.stopped;
    const bool reached = launcher->launch->until && stage->step == launcher->launch->until;
    if (launcher->launch->ask && !launcher->ending) return refuse(launcher, rank, "is done before it was asked to end");
    if (stopped && !launcher->stopping && !reached) return refuse(launcher, rank, "has stopped without being asked");
    const uint64_t early = launcher->result->early_step;
    if (!stopped && stage->step != steps && !(early && stage->step == early))
        return refuse(launcher, rank, "is done after step %llu of %llu", (unsigned long long)stage->step,
                      (unsigned long long)steps);
    return true;
}

/* What the table cannot show. NULL: nothing more. */
static bool (*const checks[AQ_MESSAGES])(struct launcher *, uint32_t rank, const struct aq_message *) = {
    [AQ_MESSAGE_listening] = check_listening, [AQ_MESSAGE_phase] = check_phase,
    [AQ_MESSAGE_ready] = check_ready,         [AQ_MESSAGE_step] = check_step,
    [AQ_MESSAGE_eval] = check_eval,           [AQ_MESSAGE_mark] = check_mark,
    [AQ_MESSAGE_stopping] = check_stopping,   [AQ_MESSAGE_trace] = check_trace,
    [AQ_MESSAGE_token] = check_token,         [AQ_MESSAGE_done] = check_done,
    [AQ_MESSAGE_round_end] = check_round,     [AQ_MESSAGE_averaged] = check_averaged,
    [AQ_MESSAGE_stood_in] = check_stood_in,   [AQ_MESSAGE_fetch] = check_fetch,
};

static enum aq_message_state state_of(const struct launcher *launcher, const struct stage *stage)
{
    if (stage->state == STAGE_STARTED) return AQ_STATE_STARTING;
    if (stage->state == STAGE_READY && launcher->gone) return AQ_STATE_RUNNING;
    return stage->state == STAGE_DONE ? AQ_STATE_ENDED : AQ_STATE_WAITING;
}

bool launcher_expects(struct launcher *launcher, uint32_t rank, json_t *line, struct aq_message *out)
{
    const struct stage *stage = &launcher->stages[rank];
    const enum aq_message_state state = state_of(launcher, stage);
    const enum aq_message_id id = aq_message_find(line, AQ_END_WORKER, AQ_END_LAUNCHER);
    struct aq_message_limits limits = {0};
    struct aq_message_wrong wrong;
    if (stage->distrusted || stage->state == STAGE_NONE || stage->state == STAGE_EXITED) return false;
    if (id == AQ_MESSAGES)
        return refuse(launcher, rank, "sent '%.32s', which is not a worker's event",
                      aq_control_text_or(line, "event", ""));
    if (!aq_message_allowed(id, state))
        return refuse(launcher, rank, "sends '%s' while it %s", aq_message_word(id), aq_message_state_text(state));
    if (id == AQ_MESSAGE_failed && stage->failed) return false; /* its first one counts */
    limits.most[AQ_LIMIT_VOCABULARY] = launcher->launch->vocabulary ? launcher->launch->vocabulary - 1 : 0;
    if (!aq_message_read(id, line, &limits, out, &wrong)) return refuse(launcher, rank, "%s", wrong.text);
    return !checks[id] || checks[id](launcher, rank, out);
}
