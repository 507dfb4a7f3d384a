/*
 * split_session.h -- one client's conversation with the server of split learning, as the server sees it
 * (docs/SPLIT.md).
 *
 * The state of the conversation decides which lines are valid (messages.def). A line that is not valid, or a field that
 * is missing, of another type or out of range, is AQ_PROTO with one sentence of why; the server then
 * ends the connection, and with it the client's turn, and nothing else. Nothing here touches a file, a socket or
 * another client: it is a pure state machine, and fuzzed as one (tests/fuzz/fuzz_split.c).
 *
 * Bytes from outside never reach an assertion. They are kept only in this struct, whose size is fixed.
 *
 * Locking: one thread.
 */
#ifndef RUNTIME_SPLIT_SESSION_H
#define RUNTIME_SPLIT_SESSION_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "aqsgd/base.h"
#include "job.h"
#include "net/tls.h"

enum {
    AQ_SPLIT_PROTOCOL = 1,
    AQ_SPLIT_ENDS = 2,    /* most stages of a client: its first and its last, or (labels at the server) its first     */
    AQ_SPLIT_FILES = 2,   /* of labels: of training and held-out samples                          */
    AQ_SPLIT_SERVERS = 1, /* the rank of the server's stage                                       */
    AQ_SPLIT_WHY_BYTES = 256,
    AQ_SPLIT_PIECE_BYTES = 1 << 20, /* of a file, in one line: 1.4 MB of base64                              */
    AQ_SPLIT_TEXT_BYTES = 400,      /* of a reason that the other end gives                                  */
    AQ_SPLIT_TURN_LINES = 1 << 24   /* of one turn: a step has five, and a turn some thousand steps          */
};

enum aq_split_state {
    AQ_SPLIT_JOINING = 0, /* it has shown its certificate and nothing else  */
    AQ_SPLIT_IDLE,        /* it waits for its turn                          */
    AQ_SPLIT_OFFERED,     /* it was offered a turn, and gets its ends ready */
    AQ_SPLIT_TRAINING,    /* its daemon's lines go to the turn's launcher   */
    AQ_SPLIT_CLOSING,     /* it sends the ends that it has trained          */
    AQ_SPLIT_LABELS,      /* it sends the labels of its samples             */
    AQ_SPLIT_LENGTHS,     /* it sends the lengths of its samples            */
    AQ_SPLIT_STATES
};

/* The server's action for a line. */
enum aq_split_act {
    AQ_SPLIT_NOTHING = 0,
    AQ_SPLIT_JOIN,    /* session->join has its facts                    */
    AQ_SPLIT_READY,   /* start the turn                                 */
    AQ_SPLIT_FORWARD, /* the line goes to the turn's launcher           */
    AQ_SPLIT_PIECE,   /* session->piece is the next part of a file      */
    AQ_SPLIT_LABEL,   /* the same, of a file of labels                  */
    AQ_SPLIT_LENGTH,  /* session->piece.data is the text of all lengths */
    AQ_SPLIT_LEAVE    /* it goes; session->why is its reason, printable */
};

/* A client's facts of itself. Its name must equal its certificate's. */
struct aq_split_join {
    char id[AQ_TLS_HOST_BYTES];
    uint64_t plan_hash;
    uint64_t instance; /* of the folder that it runs in (output.path); 0: an older client */
    struct aq_job_facts facts;
};

/* A part of the file of one of its stages, as text yet: split_piece.h reads it. Borrowed from the line. */
struct aq_split_piece {
    uint32_t end; /* 0: its first stage, 1: its last; of labels 0: of training, 1: of held-out samples */
    uint64_t offset, of;
    const char *data;
};

struct aq_split_session {
    enum aq_split_state state;
    const char *name;                  /* of its certificate, borrowed */
    uint64_t samples_max;              /* that a client may have       */
    uint32_t ends;                     /* stages that it has           */
    uint64_t bytes_max[AQ_SPLIT_ENDS]; /* of the files of its ends; the exact size for files of labels */
    uint64_t told;                     /* turns offered to it over this connection */
    uint64_t lines;                    /* of this turn                 */
    uint32_t end;                      /* CLOSING, LABELS: the file under way */
    uint64_t at, of;                   /* and how far it is            */
    double epsilon, delta;             /* of the client, as it said last; NaN: it has said none */
    struct aq_split_join join;
    struct aq_split_piece piece;
    char why[AQ_SPLIT_WHY_BYTES];
};

void aq_split_session_init(struct aq_split_session *session, const char *name, uint64_t samples_max, uint32_t ends);

/* From here on it is in that state. */
void aq_split_session_go(struct aq_split_session *session, enum aq_split_state state);

/* One line of the client: what to do about it. AQ_PROTO (not logged): session->why has the fault. */
enum aq_status aq_split_hear(struct aq_split_session *session, const json_t *line, enum aq_split_act *act);

/* The piece was taken, and had this many bytes. AQ_PROTO: the size is wrong. *whole: both files are complete. */
enum aq_status aq_split_took(struct aq_split_session *session, uint64_t bytes, bool *whole);

/* The rank of a client's end in a turn's pipeline of three stages: 0 and 2. */
uint32_t aq_split_rank(uint32_t end);

#endif
