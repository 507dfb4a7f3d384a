/*
 * fuzz_split.c -- a client of split learning that says anything, to the server's state machine (split_session.h); and a
 * server that says anything, to a client's gate (split_gate.h).
 *
 * An input: lines. Each goes to the session as a client's, and to the gate as a server's. What the session tells the
 * server to do is done as split_server.c and split_turn.c do it; a line ">n" is the server's own: the turn goes on to
 * the
 * state n, as far as a server would. Whatever comes: no act that the state does not have, no byte beyond a file's
 * bounds, a reason where it is refused, and past the gate no path, manifest or plan but the client's.
 */
#include <jansson.h>
#include <string.h>

#include "control.h"
#include "fuzz.h"
#include "lengths.h"
#include "split_gate.h"
#include "split_session.h"

enum { LINES_MAX = 64, END_BYTES = 3 << 20, SAMPLES = 1000 };

static const uint64_t plan_hash = 0x0123456789abcdefULL;

static const struct aq_split_gate gate = {.run = "/own/run",
                                          .checkpoint = "/own/run/checkpoint",
                                          .cache = "/own/run/cache",
                                          .manifest = "own: manifest",
                                          .lengths = "own",
                                          .ends = AQ_SPLIT_ENDS,
                                          .plan_hash = 0x0123456789abcdefULL};

/* Which acts a state has: a bit each. */
static const unsigned acts[AQ_SPLIT_STATES] = {
    [AQ_SPLIT_JOINING] = 1u << AQ_SPLIT_JOIN | 1u << AQ_SPLIT_LEAVE,
    [AQ_SPLIT_LABELS] = 1u << AQ_SPLIT_LABEL | 1u << AQ_SPLIT_LEAVE,
    [AQ_SPLIT_LENGTHS] = 1u << AQ_SPLIT_LENGTH | 1u << AQ_SPLIT_LEAVE,
    [AQ_SPLIT_IDLE] = 1u << AQ_SPLIT_NOTHING | 1u << AQ_SPLIT_LEAVE,
    [AQ_SPLIT_OFFERED] = 1u << AQ_SPLIT_NOTHING | 1u << AQ_SPLIT_READY | 1u << AQ_SPLIT_LEAVE,
    [AQ_SPLIT_TRAINING] = 1u << AQ_SPLIT_FORWARD | 1u << AQ_SPLIT_LEAVE,
    [AQ_SPLIT_CLOSING] = 1u << AQ_SPLIT_NOTHING | 1u << AQ_SPLIT_PIECE | 1u << AQ_SPLIT_LEAVE,
};

static void joined(struct aq_split_session *session)
{
    AQ_ASSERT(strcmp(session->join.id, session->name) == 0);
    AQ_ASSERT(session->join.facts.train_samples >= 1 && session->join.facts.train_samples <= SAMPLES);
    AQ_ASSERT(!session->join.facts.lengths_digest == !session->join.facts.lengths_mean);
    AQ_ASSERT(session->join.facts.lengths_digest || !session->join.facts.parts);
    session->bytes_max[0] = session->bytes_max[1] = END_BYTES;
    aq_split_session_go(session, AQ_SPLIT_IDLE);
}

/* A piece, as if its text stood for one byte a character. False: it is refused. */
static bool piece(struct aq_split_session *session)
{
    const struct aq_split_piece *piece = &session->piece;
    bool whole;
    AQ_ASSERT(piece->end < AQ_SPLIT_ENDS && piece->offset == session->at && piece->of <= END_BYTES);
    if (aq_split_took(session, strlen(piece->data), &whole) != AQ_OK) return false;
    AQ_ASSERT(session->at <= END_BYTES && session->end <= AQ_SPLIT_ENDS);
    AQ_ASSERT(!whole || session->state == AQ_SPLIT_IDLE);
    return true;
}

/* False: the connection ends. */
static bool say(struct aq_split_session *session, const json_t *line)
{
    enum aq_split_act act;
    const enum aq_split_state state = session->state;
    session->why[0] = 0;
    if (aq_split_hear(session, line, &act) != AQ_OK) {
        AQ_ASSERT(session->why[0]);
        return false;
    }
    AQ_ASSERT(acts[state] & 1u << act);
    if (act == AQ_SPLIT_JOIN) joined(session);
    if (act == AQ_SPLIT_READY) {
        AQ_ASSERT(aq_control_u64_or(line, "told", session->told) == session->told); /* for no turn that is over */
        aq_split_session_go(session, AQ_SPLIT_TRAINING);
    }
    if (act == AQ_SPLIT_LENGTH) {
        AQ_ASSERT(strlen(session->piece.data) <= AQ_LENGTHS_TEXT_MAX);
        aq_split_session_go(session, AQ_SPLIT_IDLE);
    }
    if (act == AQ_SPLIT_PIECE || act == AQ_SPLIT_LABEL) return piece(session);
    return act != AQ_SPLIT_LEAVE;
}

/* What a server does by itself: it offers, a turn's run ends well or not. */
static void server_goes(struct aq_split_session *session, uint8_t to)
{
    static const unsigned next[AQ_SPLIT_STATES] = {
        [AQ_SPLIT_IDLE] = 1u << AQ_SPLIT_OFFERED | 1u << AQ_SPLIT_CLOSING |
                          1u << AQ_SPLIT_LABELS |  /* or it wants labels */
                          1u << AQ_SPLIT_LENGTHS | /* or lengths */
                          1u << AQ_SPLIT_TRAINING, /* who was ready ahead */
        [AQ_SPLIT_OFFERED] = 1u << AQ_SPLIT_IDLE,
        [AQ_SPLIT_TRAINING] = 1u << AQ_SPLIT_IDLE | 1u << AQ_SPLIT_CLOSING,
        [AQ_SPLIT_CLOSING] = 1u << AQ_SPLIT_IDLE,
        [AQ_SPLIT_LENGTHS] = 1u << AQ_SPLIT_IDLE | 1u << AQ_SPLIT_LABELS,
    };
    const unsigned state = (unsigned)(to - '0');
    if (state >= AQ_SPLIT_STATES || !(next[session->state] & 1u << state)) return;
    session->told += state == AQ_SPLIT_OFFERED;
    aq_split_session_go(session, (enum aq_split_state)state);
}

static bool is(const json_t *line, const char *key, const char *want)
{
    return strcmp(aq_control_text_or(line, key, ""), want) == 0;
}

static void pass(json_t *line)
{
    static const char *const turn[] = {"open", "start",  "connect", "go",        "marked",
                                       "stop", "forget", "beat",    "evaluated", "abort"}; /* all that a turn needs */
    bool known = false;
    uint64_t hash;
    if (aq_split_pass(&gate, line) != AQ_OK) return;
    for (size_t i = 0; i < sizeof turn / sizeof *turn; i++)
        known |= is(line, "op", turn[i]);
    AQ_ASSERT(known);
    const bool open = is(line, "op", "open"), start = is(line, "op", "start");
    if (!open && !start) return;
    AQ_ASSERT(is(line, "run", gate.run) && is(line, "checkpoint", gate.checkpoint));
    AQ_ASSERT(aq_control_get_hex(line, "plan_hash", &hash) == AQ_OK && hash == plan_hash);
    AQ_ASSERT(!json_object_get(line, "cache") || !open || is(line, "cache", gate.cache));
    AQ_ASSERT(!start || (is(line, "manifest", gate.manifest) && !json_object_get(line, "adopt")));
    AQ_ASSERT(!start || is(line, "lengths", gate.lengths));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_piece rest = {data, size};
    struct aq_split_session session;
    bool stands = true;
    fuzz_quiet();
    aq_split_session_init(&session, "ward-7", SAMPLES, AQ_SPLIT_ENDS);
    for (int i = 0; i < LINES_MAX && rest.count > 0 && stands; i++) {
        const struct fuzz_piece text = fuzz_cut(&rest, '\n');
        if (text.count == 2 && text.bytes[0] == '>') {
            server_goes(&session, text.bytes[1]);
            continue;
        }
        json_t *line =
            text.count ? json_loadb((const char *)text.bytes, text.count, JSON_REJECT_DUPLICATES, NULL) : NULL;
        stands = json_is_object(line) && say(&session, line);
        if (json_is_object(line)) pass(line);
        json_decref(line);
    }
    fuzz_told(stands && session.state != AQ_SPLIT_JOINING);
    return 0;
}
