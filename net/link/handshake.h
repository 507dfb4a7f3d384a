/*
 * handshake.h -- one peer between its connection and its link, and the listener that has several of them in hand.
 *
 * handshake.c drives them in the caller's thread (accept, connect); healer.c drives the same machine in the healer's.
 * Locking: a listener and its hands are the caller's until aq_listener_close or aq_listener_rest, then the porter's,
 * after a rest until the next accept; the counts and the life of the memory stay the caller's.
 */
#ifndef NET_HANDSHAKE_H
#define NET_HANDSHAKE_H

#include <stdatomic.h>

#include "frame.h"
#include "net/link.h"
#include "net_limits.h"
#include "transport.h"

enum {
    AQ_HELLO_FRAME_BYTES = AQ_FRAME_HEADER_BYTES + AQ_FRAME_HELLO_BYTES,
    AQ_HANDSHAKE_IN_BYTES = AQ_FRAME_HEADER_BYTES + AQ_FRAME_CONTROL_BYTES_MAX
};

enum aq_stage_of_hand {
    STAGE_NONE,
    STAGE_CONNECTING,
    STAGE_WRITING,
    STAGE_READING,
    STAGE_CONFIRMING,
    STAGE_GATHERING,
    STAGE_DONE
};

struct aq_handshake {
    enum aq_stage_of_hand stage;
    struct aq_byte_stream *stream;
    uint64_t deadline_ns;
    uint64_t since_ns; /* when it came to the acceptor                         */
    bool writing_now;  /* which direction to wait for                      */
    bool ready;        /* may continue: something has happened since its last turn */
    uint8_t out[AQ_HELLO_FRAME_BYTES];
    uint32_t out_bytes, out_sent;
    uint8_t in[AQ_HANDSHAKE_IN_BYTES]; /* HELLO, or ABORT with its text                    */
    uint32_t in_have;
    bool hello_read; /* header and hello below are filled                */
    struct aq_header header;
    struct aq_hello hello;
    uint32_t streams;           /* a listener's: that were promised in the answer, this one included; 0: not answered */
    uint64_t bundle;            /* its name, where there are several                   */
    enum aq_link_copies copies; /* a listener's: OFF where the answer has none */
    bool joined;                /* this one is another stream of a bundle, and counted */
    char text[AQ_TEXT_BYTES];   /* why it failed, or why it is kept for another accept */
};

struct aq_listener {
    struct aq_net *net;
    struct aq_listener *next;
    struct aq_acceptor acceptor;
    struct aq_handshake hands[AQ_HANDSHAKES];
    struct aq_log_limit refusals; /* a stranger must not fill the log            */
    uint64_t secret[2];           /* numbers of sessions and bundles are made of it      */
    uint64_t bundles;             /* that have been promised so far                      */
    struct aq_heal *heals;        /* of the links that were made here and heal           */
    uint32_t living;              /* links of those that are not yet closed              */
    int wake_fd;                  /* wakes the porter                                    */
    atomic_bool stop;             /* release in the caller, acquire in the porter        */
    struct aq_thread *thread;
    bool given_up; /* by the caller: closed when the last of its links is                */
    bool rests;    /* the thread runs, and the caller comes back; fixed while it runs    */
};

/* The HELLO of a new link of this config; a caller that resumes fills in the rest. */
struct aq_hello aq_hello_of(const struct aq_link_config *config);
void aq_handshake_drop(struct aq_handshake *h);
/* Write config's HELLO next: with body, or the third message without. */
void aq_handshake_say(struct aq_handshake *h, const struct aq_link_config *config, const struct aq_hello *hello);
enum aq_status aq_handshake_write(struct aq_handshake *h);
/* One HELLO or ABORT, whole and checked. AQ_AGAIN; AQ_CLOSED and AQ_IO from the stream; else the reason is in text. */
enum aq_status aq_handshake_read(struct aq_handshake *h, bool with_body);
/* Is this the peer that config waits for? AQ_MISMATCH: of another job or plan, or for another rank than this. AQ_AGAIN:
 * of this job and for this rank, but another rank or edge than this accept is for. The text names both sides' values.
 */
enum aq_status aq_handshake_match(struct aq_handshake *h, const struct aq_link_config *config);
/* Tell the peer why, as far as that goes without waiting, and let it go. */
void aq_handshake_refuse(struct aq_handshake *h, const struct aq_link_config *config, enum aq_status status);
void aq_handshake_log(struct aq_listener *listener, const struct aq_handshake *h);

/* Accepts all pending connections, as far as aq_admit has places. AQ_NOMEM, AQ_IO (no descriptors left): logged
 * already; no connection is accepted until the time that is put in *again_ns (else 0). */
enum aq_status aq_listener_let_in(struct aq_listener *listener, uint64_t *again_ns);
/* Sleep until a connection is pending (not before again_ns), a handshake can continue, wake_fd is signalled, or a
 * deadline. */
void aq_listener_sleep(struct aq_listener *listener, uint64_t again_ns, uint64_t deadline_ns);
/* Is there anything to be done for this hand now? */
bool aq_handshake_due(const struct aq_handshake *h, uint64_t now_ns);
/* The reason why a handshake did not succeed, into `text` if that is empty; AQ_AGAIN: out of time. */
enum aq_status aq_handshake_failed(struct aq_handshake *h, enum aq_status status);

/* Asks the caller whether this wait is still of use. AQ_AGAIN: yes. */
static inline enum aq_status aq_handshake_asked(const struct aq_link_config *config)
{
    return config->meanwhile ? config->meanwhile(config->context) : AQ_AGAIN;
}

/* The time of the next such question, until_ns at the latest. With a wake_fd the caller is asked when that is written
 * to, and not by the clock. */
static inline uint64_t aq_handshake_until(const struct aq_link_config *config, int wake_fd, uint64_t until_ns)
{
    const uint64_t ask_ns = config->meanwhile && wake_fd == -1 ? aq_clock_after(AQ_MEANWHILE_NS) : until_ns;
    return ask_ns < until_ns ? ask_ns : until_ns;
}

/* One try to connect. AQ_REFUSED, AQ_CLOSED, AQ_IO, AQ_TIMEOUT: another may do better. With hello->session the HELLO
 * resumes. wake_fd: when it is written to, config->meanwhile is asked, and reads it; -1: none. */
enum aq_status aq_handshake_try(struct aq_net *net, struct aq_handshake *h, const char *address, uint32_t attempt,
                                const struct aq_link_config *config, const struct aq_hello *hello, int wake_fd,
                                uint64_t deadline_ns);
/* The address with small packets, where `small`; into out. AQ_INVAL (logged): too long. */
enum aq_status aq_handshake_address(const char *address, bool small, char out[AQ_ADDRESS_BYTES]);
/* Was it a connection over which nothing came? Then packets may be too large for the way: the next try has small ones,
 * and the one after that the usual. */
bool aq_handshake_stuck(const struct aq_handshake *h, enum aq_status status);
/* A link works only with small packets: logged. */
void aq_handshake_small_said(const char *address);
const char *aq_handshake_try_text(const struct aq_handshake *h, enum aq_status status);
/* ---- handshake_streams.c: links over several connections ---- */

/* The connector's: how many streams it asks for, in its HELLO. It asks for none if there is certainly one. */
void aq_streams_ask(const struct aq_link_config *config, struct aq_byte_stream *stream, struct aq_hello *hello);
/* The listener's: how many there will be (h->streams), in its answer. */
void aq_streams_answer(struct aq_listener *listener, struct aq_handshake *h, const struct aq_link_config *config,
                       struct aq_hello *hello);
/* Does the answer in h fit what was asked? AQ_PROTO. */
enum aq_status aq_streams_check(struct aq_handshake *h, const struct aq_hello *asked);
/* h is done and its answer has several streams: dial the others; h->stream is all of them then. As aq_handshake_try. */
enum aq_status aq_streams_dial(struct aq_net *net, struct aq_handshake *h, const char *address, uint32_t attempt,
                               const struct aq_link_config *config, int wake_fd);
/* h's HELLO has been read and is another stream's. AQ_AGAIN: it is kept with its bundle; AQ_MISMATCH: there is no
 * such bundle, or it has that stream. Asked each time. */
enum aq_status aq_streams_join(struct aq_listener *listener, struct aq_handshake *h);
/* Are all streams of this bundle here? AQ_AGAIN. */
enum aq_status aq_streams_complete(const struct aq_listener *listener, const struct aq_handshake *first);
/* May one more be answered? So many places are kept for the streams of those that were. */
bool aq_streams_place(const struct aq_listener *listener);
/* The stream of a handshake that is done: all of its bundle's, with the config's congestion control. Their hands are
 * free, also on failure (all closed). */
enum aq_status aq_streams_take(struct aq_listener *listener, const struct aq_link_config *config,
                               struct aq_handshake *first, struct aq_byte_stream **out);

/* Sleep until the time, or until wake_fd (-1: none) rings. */
void aq_handshake_sleep(int wake_fd, uint64_t when_ns);

#endif
