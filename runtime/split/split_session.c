/* split_session.c -- see the header: the lines that a client may send, and when. */
#include "split_session.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "control.h"
#include "control_socket.h"
#include "runtime_text.h"
#include "stages/dataset.h"

/* The largest train.T, and the tokens before a text. */
enum { PLACES_MAX = (1 << 20) + AQ_TOKENIZER_FRAME_MAX };

void aq_split_session_init(struct aq_split_session *s, const char *name, uint64_t samples_max, uint32_t ends)
{
    *s = (struct aq_split_session){.name = name, .samples_max = samples_max, .ends = ends};
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

/* A whole number of a line, up to `most`. */
static bool number(const json_t *line, const char *key, uint64_t most, uint64_t *out)
{
    const json_t *value = json_object_get(line, key);
    if (!json_is_integer(value) || json_integer_value(value) < 0 || (uint64_t)json_integer_value(value) > most)
        return false;
    *out = (uint64_t)json_integer_value(value);
    return true;
}

/* 16 hexadecimal digits. Not aq_control_get_hex: a stranger's line must not fill the log. */
static bool hex(const json_t *line, const char *key, uint64_t *out)
{
    const char *text = json_string_value(json_object_get(line, key));
    return text && aq_is_hex(text, 16) && aq_control_get_hex(line, key, out) == AQ_OK;
}

static enum aq_status hear_join(struct aq_split_session *s, const json_t *line, enum aq_split_act *act)
{
    struct aq_split_join join = {0};
    struct aq_job_facts *facts = &join.facts;
    const char *id = aq_control_text_or(line, "id", "");
    uint64_t protocol = 0, vocabulary, labels, places = 0;
    if (!number(line, "protocol", UINT32_MAX, &protocol) || protocol != AQ_SPLIT_PROTOCOL)
        return wrong(s, "speaks protocol %llu of split learning, this server %d", (unsigned long long)protocol,
                     AQ_SPLIT_PROTOCOL);
    if (!aq_tls_host_good(id) || strcmp(id, s->name) != 0)
        return wrong(s, "calls itself '%.63s', but its certificate names %s", id, s->name);
    if (!number(line, "train_samples", s->samples_max, &facts->train_samples) || facts->train_samples == 0 ||
        !number(line, "heldout_samples", s->samples_max, &facts->heldout_samples))
        return wrong(s, "has no count of samples from 1 to %llu (split.samples_max)",
                     (unsigned long long)s->samples_max);
    if (!number(line, "vocabulary", 1 << 20, &vocabulary) || !number(line, "labels", 1 << 20, &labels))
        return wrong(s, "has no count of tokens or labels up to %d", 1 << 20);
    if (json_object_get(line, "places") && !number(line, "places", PLACES_MAX, &places)) /* older clients: none */
        return wrong(s, "has samples of more than %d places", PLACES_MAX);
    if (!hex(line, "plan_hash", &join.plan_hash) || !hex(line, "train_digest", &facts->train_digest) ||
        !hex(line, "heldout_digest", &facts->heldout_digest) || !hex(line, "weights_digest", &facts->weights_digest))
        return wrong(s, "has no digest of its plan and data");
    if (json_object_get(line, "instance") && !hex(line, "instance", &join.instance))
        return wrong(s, "has an instance that is no number of 16 hexadecimal digits");
    facts->vocabulary = (uint32_t)vocabulary;
    facts->labels = (uint32_t)labels;
    facts->places = (uint32_t)places;
    memcpy(join.id, id, strlen(id) + 1);
    s->join = join;
    *act = AQ_SPLIT_JOIN;
    return AQ_OK;
}

/* Lines that were on their way when a turn ended: a limited count. */
static enum aq_status late(struct aq_split_session *s)
{
    return ++s->lines > AQ_CONTROL_VALUES_MAX ? wrong(s, "sends too much after its turn") : AQ_OK;
}

static enum aq_status hear_ready(struct aq_split_session *s, const json_t *line, enum aq_split_act *act)
{
    uint64_t told = s->told;
    const bool says = json_object_get(line, "told") != NULL;
    if (says && (!number(line, "told", s->told, &told) || told == 0))
        return wrong(s, "is ready for a turn that it was not offered");
    if (s->state == AQ_SPLIT_OFFERED && told == s->told) {
        *act = AQ_SPLIT_READY;
        return AQ_OK;
    }
    if (!says) return wrong(s, "sends 'ready' while it waits for its turn");
    return late(s); /* that turn was over before it was ready */
}

/* A line of its daemon, or of one of its two workers. The launcher checks its content (launcher_bounds.c). */
static enum aq_status hear_event(struct aq_split_session *s, const json_t *line, enum aq_split_act *act)
{
    uint64_t rank;
    const json_t *has = json_object_get(line, "rank");
    const char *event = aq_control_text_or(line, "event", "");
    if (++s->lines > AQ_SPLIT_TURN_LINES) return wrong(s, "sends more than %d lines in a turn", AQ_SPLIT_TURN_LINES);
    if (has && (!number(line, "rank", 2, &rank) || (rank != aq_split_rank(0) && rank != aq_split_rank(s->ends - 1))))
        return wrong(s, "speaks for a stage that is not its own");
    static const char *const its_own[] = {"opened", "refused", "beat"}; /* a daemon's word for itself */
    bool known = has != NULL;
    for (size_t i = 0; i < sizeof its_own / sizeof *its_own; i++)
        known |= strcmp(event, its_own[i]) == 0;
    if (!known) return wrong(s, "sends '%.32s' of no stage", event);
    *act = AQ_SPLIT_FORWARD;
    return AQ_OK;
}

static enum aq_status hear_ends(struct aq_split_session *s, const json_t *line, enum aq_split_act *act)
{
    uint64_t rank, offset, of;
    const char *data = json_string_value(json_object_get(line, "data"));
    if (!number(line, "rank", 2, &rank) || rank != aq_split_rank(s->end) ||
        !number(line, "offset", s->bytes_max[s->end], &offset) || !number(line, "of", s->bytes_max[s->end], &of) ||
        !data)
        return wrong(s, "sends no part of the file of stage %u, of at most %llu bytes", aq_split_rank(s->end),
                     (unsigned long long)s->bytes_max[s->end]);
    if (offset != s->at || of == 0 || (s->at > 0 && of != s->of))
        return wrong(s, "sends byte %llu of %llu of stage %u's file where byte %llu of %llu is due",
                     (unsigned long long)offset, (unsigned long long)of, aq_split_rank(s->end),
                     (unsigned long long)s->at, (unsigned long long)(s->at ? s->of : of));
    s->of = of;
    s->piece = (struct aq_split_piece){.end = s->end, .offset = offset, .of = of, .data = data};
    *act = AQ_SPLIT_PIECE;
    return AQ_OK;
}

/* The labels of its samples: as many as it announced. */
static enum aq_status hear_labels(struct aq_split_session *s, const json_t *line, enum aq_split_act *act)
{
    uint64_t rank, offset, of;
    const uint64_t due = s->bytes_max[s->end];
    const char *data = json_string_value(json_object_get(line, "data"));
    if (!number(line, "rank", 1, &rank) || rank != s->end || !number(line, "of", UINT32_MAX, &of) || of != due || !data)
        return wrong(s, "sends labels that are not those of its %s samples: %llu bytes are due",
                     s->end ? "held-out" : "training", (unsigned long long)due);
    if (!number(line, "offset", due, &offset) || offset != s->at)
        return wrong(s, "sends its labels out of order: byte %llu is due", (unsigned long long)s->at);
    s->of = of;
    s->piece = (struct aq_split_piece){.end = s->end, .offset = offset, .of = of, .data = data};
    *act = AQ_SPLIT_LABEL;
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

static enum aq_status hear_leave(struct aq_split_session *s, const json_t *line, enum aq_split_act *act)
{
    char text[AQ_SPLIT_WHY_BYTES];
    snprintf(text, sizeof text, "%s", aq_control_text_or(line, "text", "it gives no reason"));
    (void)aq_printable_text(text, s->why, sizeof s->why);
    *act = AQ_SPLIT_LEAVE;
    return AQ_OK;
}

#define IN(state) (1u << AQ_SPLIT_##state)

static const struct rule {
    const char *key, *word; /* word NULL: any */
    unsigned states;
    enum aq_status (*hear)(struct aq_split_session *s, const json_t *line, enum aq_split_act *act);
} rules[] = {
    {"op", "join", IN(JOINING), hear_join},
    {"op", "ready", IN(OFFERED) | IN(IDLE), hear_ready},
    {"op", "ends", IN(CLOSING), hear_ends},
    {"op", "labels", IN(LABELS), hear_labels},
    {"op", "leave", IN(JOINING) | IN(LABELS) | IN(IDLE) | IN(OFFERED) | IN(TRAINING) | IN(CLOSING), hear_leave},
    {"event", NULL, IN(TRAINING), hear_event},
};

/* Its daemon ends a moment after the turn did: its lines on the way are late, but no error. */
static bool is_late(const struct aq_split_session *s, const json_t *line)
{
    return (s->state == AQ_SPLIT_CLOSING || s->state == AQ_SPLIT_IDLE || s->state == AQ_SPLIT_OFFERED) &&
           json_is_string(json_object_get(line, "event"));
}

enum aq_status aq_split_hear(struct aq_split_session *s, const json_t *line, enum aq_split_act *act)
{
    static const char *const states[AQ_SPLIT_STATES] = {"joins",  "waits for its turn", "is offered a turn",
                                                        "trains", "closes its turn",    "sends its labels"};
    const char *word = NULL;
    *act = AQ_SPLIT_NOTHING;
    if (is_late(s, line)) return late(s);
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        const char *said = json_string_value(json_object_get(line, rules[i].key));
        if (!said) continue;
        word = said;
        if (rules[i].word && strcmp(rules[i].word, said) != 0) continue;
        if (rules[i].states & 1u << s->state) return rules[i].hear(s, line, act);
    }
    return wrong(s, "sends '%.32s' while it %s", word ? word : "nothing that is known", states[s->state]);
}
