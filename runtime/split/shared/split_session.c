/* split_session.c -- see the header: the lines that a client may send, and when. */
#include "split_session.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "control.h"
#include "message.h"
#include "runtime_text.h"

void aq_split_session_init(struct aq_split_session *s, const char *name, uint64_t samples_max, uint32_t ends)
{
    *s = (struct aq_split_session){
        .name = name, .samples_max = samples_max, .ends = ends, .epsilon = (double)NAN, .delta = (double)NAN};
}

void aq_split_session_go(struct aq_split_session *s, enum aq_split_state state)
{
    s->state = state;
    s->lines = 0;
    s->end = 0;
    s->at = s->of = 0;
}

uint32_t aq_split_rank(uint32_t end)
{
    return 2 * end;
}

static enum aq_status wrong(struct aq_split_session *s, const char *format, ...) __attribute__((format(printf, 2, 3)));

static enum aq_status wrong(struct aq_split_session *s, const char *format, ...)
{
    char text[AQ_SPLIT_WHY_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    (void)aq_printable_text(text, s->why, sizeof s->why);
    return AQ_PROTO;
}

static enum aq_status hear_join(struct aq_split_session *s, const struct aq_message *message, enum aq_split_act *act)
{
    const struct aq_message_join *said = &message->join;
    if (!aq_tls_host_good(said->id) || strcmp(said->id, s->name) != 0)
        return wrong(s, "calls itself '%.63s', but its certificate names %s", said->id, s->name);
    if (AQ_MESSAGE_HAS(message, join, lengths_digest) &&
        (said->lengths_digest == 0 || !AQ_MESSAGE_HAS(message, join, lengths_mean)))
        return wrong(s, "has no digest and mean of the lengths of its samples");
    s->join = (struct aq_split_join){.plan_hash = said->plan_hash,
                                     .instance = said->instance,
                                     .facts = {.train_samples = said->train_samples,
                                               .heldout_samples = said->heldout_samples,
                                               .vocabulary = (uint32_t)said->vocabulary,
                                               .labels = (uint32_t)said->labels,
                                               .places = (uint32_t)said->places,
                                               .ends = {(uint32_t)said->end, (uint32_t)said->end_other},
                                               .train_digest = said->train_digest,
                                               .heldout_digest = said->heldout_digest,
                                               .weights_digest = said->weights_digest}};
    if (AQ_MESSAGE_HAS(message, join, lengths_digest)) { /* samples of several lengths */
        s->join.facts.lengths_digest = said->lengths_digest;
        s->join.facts.lengths_mean = (uint32_t)said->lengths_mean;
        s->join.facts.parts = AQ_MESSAGE_HAS(message, join, parts) ? said->parts : 0;
    }
    memcpy(s->join.id, said->id, strlen(said->id) + 1);
    *act = AQ_SPLIT_JOIN;
    return AQ_OK;
}

/* Lines that were on their way when a turn ended: a limited count. */
static enum aq_status late(struct aq_split_session *s)
{
    return ++s->lines > AQ_CONTROL_VALUES_MAX ? wrong(s, "sends too much after its turn") : AQ_OK;
}

/* Its own figures of itself, for the report. */
static void hear_epsilon(struct aq_split_session *s, double epsilon, double delta)
{
    s->epsilon = epsilon;
    s->delta = delta;
}

static enum aq_status hear_ready(struct aq_split_session *s, const struct aq_message *message, enum aq_split_act *act)
{
    const bool names = AQ_MESSAGE_HAS(message, turn_ready, told);
    if (AQ_MESSAGE_HAS(message, turn_ready, epsilon) && AQ_MESSAGE_HAS(message, turn_ready, delta))
        hear_epsilon(s, message->turn_ready.epsilon, message->turn_ready.delta);
    if (s->state == AQ_SPLIT_OFFERED && (!names || message->turn_ready.told == s->told)) {
        *act = AQ_SPLIT_READY;
        return AQ_OK;
    }
    if (!names) return wrong(s, "sends 'ready' while it waits for its turn");
    return late(s); /* that turn was over before it was ready */
}

/* A line of its daemon, or of one of its two workers. The launcher checks its content (launcher_bounds.c). */
static enum aq_status hear_event(struct aq_split_session *s, const json_t *line, enum aq_split_act *act)
{
    const json_t *has = json_object_get(line, "rank");
    const uint64_t rank = aq_control_u64_or(line, "rank", UINT64_MAX);
    const char *event = aq_control_text_or(line, "event", "");
    if (++s->lines > AQ_SPLIT_TURN_LINES) return wrong(s, "sends more than %d lines in a turn", AQ_SPLIT_TURN_LINES);
    if (has && rank != aq_split_rank(0) && rank != aq_split_rank(s->ends - 1))
        return wrong(s, "speaks for a stage that is not its own");
    static const char *const its_own[] = {"opened", "refused", "beat"}; /* a daemon's word for itself */
    bool known = has != NULL;
    for (size_t i = 0; i < sizeof its_own / sizeof *its_own; i++)
        known |= strcmp(event, its_own[i]) == 0;
    if (!known) return wrong(s, "sends '%.32s' of no stage", event);
    *act = AQ_SPLIT_FORWARD;
    return AQ_OK;
}

static enum aq_status hear_ends(struct aq_split_session *s, const struct aq_message *message, enum aq_split_act *act)
{
    const struct aq_message_ends *piece = &message->ends;
    if (AQ_MESSAGE_HAS(message, ends, epsilon) && AQ_MESSAGE_HAS(message, ends, delta))
        hear_epsilon(s, piece->epsilon, piece->delta);
    if (piece->rank != aq_split_rank(s->end))
        return wrong(s, "sends no part of the file of stage %u, of at most %llu bytes", aq_split_rank(s->end),
                     (unsigned long long)s->bytes_max[s->end]);
    if (piece->offset != s->at || (s->at > 0 && piece->of != s->of))
        return wrong(s, "sends byte %llu of %llu of stage %u's file where byte %llu of %llu is due",
                     (unsigned long long)piece->offset, (unsigned long long)piece->of, aq_split_rank(s->end),
                     (unsigned long long)s->at, (unsigned long long)(s->at ? s->of : piece->of));
    s->of = piece->of;
    s->piece = (struct aq_split_piece){.end = s->end, .offset = piece->offset, .of = piece->of, .data = piece->data};
    *act = AQ_SPLIT_PIECE;
    return AQ_OK;
}

/* The labels of its samples: as many as it announced. */
static enum aq_status hear_labels(struct aq_split_session *s, const struct aq_message *message, enum aq_split_act *act)
{
    const struct aq_message_labels *piece = &message->labels;
    const uint64_t due = s->bytes_max[s->end];
    if (piece->rank != s->end || piece->of != due)
        return wrong(s, "sends labels that are not those of its %s samples: %llu bytes are due",
                     s->end ? "held-out" : "training", (unsigned long long)due);
    if (piece->offset != s->at)
        return wrong(s, "sends its labels out of order: byte %llu is due", (unsigned long long)s->at);
    s->of = piece->of;
    s->piece = (struct aq_split_piece){.end = s->end, .offset = piece->offset, .of = piece->of, .data = piece->data};
    *act = AQ_SPLIT_LABEL;
    return AQ_OK;
}

/* The lengths of its samples, all in one line; split_lengths.h reads them. */
static enum aq_status hear_lengths(struct aq_split_session *s, const struct aq_message *message, enum aq_split_act *act)
{
    s->piece = (struct aq_split_piece){.data = message->lengths.lengths};
    *act = AQ_SPLIT_LENGTH;
    return AQ_OK;
}

enum aq_status aq_split_took(struct aq_split_session *s, uint64_t bytes, bool *whole)
{
    *whole = false;
    const uint64_t left = s->of - s->at, due = left < AQ_SPLIT_PIECE_BYTES ? left : AQ_SPLIT_PIECE_BYTES;
    if (bytes != due)
        return wrong(s, "sends %llu bytes of a file where %llu are due", (unsigned long long)bytes,
                     (unsigned long long)due);
    s->at += bytes;
    if (s->at < s->of) return AQ_OK;
    s->at = s->of = 0;
    *whole = ++s->end == (s->state == AQ_SPLIT_LABELS ? AQ_SPLIT_FILES : s->ends);
    if (*whole) aq_split_session_go(s, AQ_SPLIT_IDLE);
    return AQ_OK;
}

static enum aq_status hear_leave(struct aq_split_session *s, const struct aq_message *message, enum aq_split_act *act)
{
    char text[AQ_SPLIT_WHY_BYTES];
    if (AQ_MESSAGE_HAS(message, leave, epsilon) && AQ_MESSAGE_HAS(message, leave, delta))
        hear_epsilon(s, message->leave.epsilon, message->leave.delta);
    snprintf(text, sizeof text, "%s", message->leave.text ? message->leave.text : "it gives no reason");
    (void)aq_printable_text(text, s->why, sizeof s->why);
    *act = AQ_SPLIT_LEAVE;
    return AQ_OK;
}

/* What the table of messages cannot show: order, and what the client announced. */
static enum aq_status (*const hears[AQ_MESSAGES])(struct aq_split_session *, const struct aq_message *,
                                                  enum aq_split_act *) = {
    [AQ_MESSAGE_join] = hear_join,     [AQ_MESSAGE_turn_ready] = hear_ready, [AQ_MESSAGE_ends] = hear_ends,
    [AQ_MESSAGE_labels] = hear_labels, [AQ_MESSAGE_leave] = hear_leave,      [AQ_MESSAGE_lengths] = hear_lengths,
};

static_assert(AQ_STATE_LENGTHS == AQ_STATE_JOINING + (int)AQ_SPLIT_LENGTHS, "states in the order of messages.def");

static enum aq_message_state state_of(const struct aq_split_session *s)
{
    return (enum aq_message_state)(AQ_STATE_JOINING + (int)s->state);
}

/* Its daemon ends a moment after the turn did: its lines on the way are late, but no error. */
static bool is_late(const struct aq_split_session *s, const json_t *line)
{
    return (s->state == AQ_SPLIT_CLOSING || s->state == AQ_SPLIT_IDLE || s->state == AQ_SPLIT_OFFERED) &&
           json_is_string(json_object_get(line, "event"));
}

enum aq_status aq_split_hear(struct aq_split_session *s, const json_t *line, enum aq_split_act *act)
{
    const enum aq_message_id id = aq_message_find(line, AQ_END_CLIENT, AQ_END_SERVER);
    const char *op = aq_control_text_or(line, "op", NULL), *event = aq_control_text_or(line, "event", NULL);
    struct aq_message_limits limits = {.most = {[AQ_LIMIT_SAMPLES] = s->samples_max, [AQ_LIMIT_TOLD] = s->told}};
    struct aq_message message;
    struct aq_message_wrong fault;
    *act = AQ_SPLIT_NOTHING;
    if (is_late(s, line)) return late(s);
    const bool allowed = id < AQ_MESSAGES && aq_message_allowed(id, state_of(s));
    if (!allowed && event && s->state == AQ_SPLIT_TRAINING) return hear_event(s, line, act);
    if (!allowed)
        return wrong(s, "sends '%.32s' while it %s",
                     event ? event
                     : op  ? op
                           : "nothing that is known",
                     aq_message_state_text(state_of(s)));
    const uint64_t protocol = aq_control_u64_or(line, "protocol", 0); /* another one may have other fields */
    if (id == AQ_MESSAGE_join && protocol != AQ_SPLIT_PROTOCOL)
        return wrong(s, "speaks protocol %llu of split learning, this server %d", (unsigned long long)protocol,
                     AQ_SPLIT_PROTOCOL);
    limits.most[AQ_LIMIT_FILE] = s->end < AQ_SPLIT_ENDS ? s->bytes_max[s->end] : 0;
    if (!aq_message_read(id, line, &limits, &message, &fault)) return wrong(s, "%s", fault.text);
    return hears[id](s, &message, act);
}
