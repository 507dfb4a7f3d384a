/*
 * control.h -- the control channel: JSON objects, one a line, over a stream socket (docs/CONTROL.md lists the
 * messages).
 *
 * Caveats first.
 * - Bytes from the peer never reach an assertion: a line that is no JSON object, or that is longer than the limit,
 * closes the channel with AQ_PROTO and one line in the log. One that is not whole when the peer closes is dropped: a
 * process that is killed while it writes has ended like any other, and says nothing wrong.
 * - A line is measured before it is parsed: at most AQ_CONTROL_VALUES_MAX values, AQ_CONTROL_DEPTH_MAX deep, so that
 * the memory it costs is a small multiple of its bytes, which the channel's state bounds (aq_control_limit).
 * - aq_control_send takes the reference of the message whatever it answers. It copies the line into a buffer of fixed
 * size and gives the socket what it takes; only when the buffer is full does it block, at most for the channel's
 * patience. A channel with aq_control_queue never blocks: its buffer grows, up to a bound, and shrinks again.
 * - Sending takes no aq_alloc, and receiving none for lines up to 64 KiB: both are allowed while RUNNING (memory.h).
 * jansson takes its own memory.
 * - JSON has no NaN and no infinity: aq_control_number makes null of them, and aq_control_get_number reads null as NaN.
 *
 *     aq_control_open(3, &control);
 *     aq_control_send(control, json_pack("{s:s, s:s}", "event", "listening", "address", address));
 *     json_t *message;
 *     if (aq_control_receive(control, deadline_ns, &message) == AQ_OK) { ...; json_decref(message); }
 *
 * A sleeper that has other things to wait for polls aq_control_fd for POLLIN (and for POLLOUT while
 * aq_control_pending), and then calls aq_control_receive with deadline 0 until AQ_AGAIN: lines that lie in the buffer
 * ring no poll.
 *
 * Locking: one thread per channel.
 */
#ifndef RUNTIME_CONTROL_H
#define RUNTIME_CONTROL_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "aqsgd/base.h"

enum {
    AQ_CONTROL_FD = 3,                   /* where a worker finds its channel                                    */
    AQ_CONTROL_LINE_BYTES_MAX = 3 << 20, /* a manifest (256 KiB), every byte of it escaped as \\u00xx, lengths (1 MiB),
                                            with room                                                          */
    AQ_CONTROL_VALUES_MAX = 16384,       /* of a line: a step line has about 50, and jansson takes 100 bytes each */
    AQ_CONTROL_DEPTH_MAX = 16,
    AQ_CONTROL_STRANGER_BYTES = 4096,
    AQ_CONTROL_BUFFER_BYTES = 256 << 10 /* out: about a hundred step lines, so a busy peer delays no caller    */
};

struct aq_control;     /* opaque */
struct aq_tls_session; /* net/tls.h */

/* Takes the fd (a connected stream socket), makes it non-blocking and close-on-exec. On failure the fd stays the
 * caller's: AQ_NOMEM, AQ_INVAL (no socket there). */
enum aq_status aq_control_open(int fd, struct aq_control **out);

/* The same for a peer that is not authenticated yet, or one of many: a few KiB, which grow when they must; sends
 * never block (aq_control_queue of AQ_CONTROL_STRANGER_BYTES), and lines have at most AQ_CONTROL_STRANGER_BYTES,
 * until the caller raises the limits. */
enum aq_status aq_control_open_stranger(int fd, struct aq_control **out);

/* Sends nothing more; what is still in the buffer is dropped (aq_control_flush first). NULL is fine. */
void aq_control_close(struct aq_control *control);

/* From now on (nothing has been sent or received) the channel is under TLS; takes the session, which is on its fd. A
 * peer that is not the one expected ends the channel with AQ_TLSERR, logged. */
void aq_control_secure(struct aq_control *control, struct aq_tls_session *session);

/* Is the peer's certificate still good? For channels with little traffic; cheap. AQ_TLSERR (logged): it has been
 * revoked, and the channel takes no more. */
enum aq_status aq_control_check(struct aq_control *control);

int aq_control_fd(const struct aq_control *control);

/* Lines of at most `bytes` are taken from now on (up to AQ_CONTROL_LINE_BYTES_MAX, the default). */
void aq_control_limit(struct aq_control *control, size_t bytes);

/* How long a send may block when the buffer is full. The default is 60 s. */
void aq_control_patience(struct aq_control *control, uint64_t ns);

/* From now on no send blocks: what the socket does not take is kept, up to `bytes`; a line that does not fit ends the
 * channel with AQ_TIMEOUT. It takes memory, and gives it back when all is sent. */
void aq_control_queue(struct aq_control *control, size_t bytes);

/* For how long the peer has taken nothing of what waits for it; 0: nothing waits. */
uint64_t aq_control_stuck_ns(const struct aq_control *control, uint64_t now_ns);

/* Bytes that the socket has not taken. */
size_t aq_control_waiting(const struct aq_control *control);

/* Has the peer shown a certificate that we take? */
bool aq_control_certified(const struct aq_control *control);

/* Whom its certificate names; NULL: it has shown none, or there is no TLS. Borrowed. */
struct aq_tls_name;
const struct aq_tls_name *aq_control_peer(const struct aq_control *control);

/* Takes the reference, also on failure; NULL (a json_pack that failed) is AQ_NOMEM. AQ_CLOSED: the peer has closed
 * (not logged). AQ_TIMEOUT: it takes nothing. After a failure the channel takes no more. */
enum aq_status aq_control_send(struct aq_control *control, json_t *message);

/* Give the socket what it takes now. AQ_OK: the buffer is empty; AQ_AGAIN: it is not; AQ_CLOSED. */
enum aq_status aq_control_push(struct aq_control *control);

/* Wait until all is sent. AQ_TIMEOUT (logged), AQ_CLOSED. */
enum aq_status aq_control_flush(struct aq_control *control, uint64_t deadline_ns);

/* Is there something in the buffer that waits for POLLOUT? */
bool aq_control_pending(const struct aq_control *control);
/* Bytes that fit into AQ_CONTROL_BUFFER_BYTES, whatever the queue may take beyond them. */
size_t aq_control_room(const struct aq_control *control);

/*
 * The next object; its reference is the caller's. Pushes the out buffer while it waits.
 * deadline 0: do not wait (AQ_AGAIN when there is no whole line). AQ_TIMEOUT: none came in time (not logged).
 * AQ_CLOSED: the peer has closed (not logged). AQ_PROTO: see the caveats. AQ_NOMEM. All but AQ_AGAIN and
 * AQ_TIMEOUT are for ever.
 */
enum aq_status aq_control_receive(struct aq_control *control, uint64_t deadline_ns, json_t **out);

/*
 * Typed fields of an object. A missing field, or one of another type or range, is AQ_PROTO and one log line that names
 * the field. Texts are borrowed from the message. The *_or twins answer `otherwise` where the field is missing, null or
 * of another type, and never fail.
 */
enum aq_status aq_control_get_text(const json_t *message, const char *key, const char **out);
enum aq_status aq_control_get_u64(const json_t *message, const char *key, uint64_t *out);
enum aq_status aq_control_get_u32(const json_t *message, const char *key, uint32_t *out);
enum aq_status aq_control_get_number(const json_t *message, const char *key, double *out); /* null: NaN */
const char *aq_control_text_or(const json_t *message, const char *key, const char *otherwise);
uint64_t aq_control_u64_or(const json_t *message, const char *key, uint64_t otherwise);
int64_t aq_control_i64_or(const json_t *message, const char *key, int64_t otherwise);
double aq_control_number_or(const json_t *message, const char *key, double otherwise);
double aq_control_number_at(const json_t *message, const char *key, size_t i); /* of an array; NaN: it is none */
double aq_control_number_in(const json_t *message, const char *outer, const char *key); /* of an object in it; so */

/* The bytes that a link carried of `bytes` that it was given, if packing left this share of them. 0 for no number of
 * bytes; a share that is unknown (NaN), or no share, counts as 1. */
double aq_control_carried(double bytes, double left);
bool aq_control_bool_or(const json_t *message, const char *key, bool otherwise);

/* Is message[key] this very text? For dispatch on "op" and "event". */
bool aq_control_is(const json_t *message, const char *key, const char *text);

/* A number, or null where it is not finite. A fresh reference. */
json_t *aq_control_number(double value);

/* A 64-bit word as 16 hexadecimal digits and back (JSON numbers are signed): AQ_PROTO names the key. */
json_t *aq_control_hex(uint64_t value);
enum aq_status aq_control_get_hex(const json_t *message, const char *key, uint64_t *out);

#endif
