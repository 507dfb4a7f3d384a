/*
 * control.c -- JSON lines over a non-blocking stream socket, with bounded buffers.
 *
 * Invariants: out[out_begin, out_end) is what the socket has not taken yet; in[in_begin, in_end) is what came and was
 * not yet given out, and in[in_begin, in_seen) is known to hold no newline. `ended` is the status that every later call
 * gets. A buffer that grew for one long line is given back when it is empty, so that memory is what is under way.
 */
#include "control.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "aqsgd/base.h"
#include "net/tls.h"

enum { IN_BYTES_FIRST = 64 << 10, IN_BYTES_STRANGER = 2048, OUT_BYTES_STRANGER = 512 };
static const uint64_t patience_default_ns = 60ULL * 1000 * 1000 * 1000;

struct aq_control {
    int fd;
    struct aq_tls_session *tls; /* NULL: in the clear */
    enum aq_status ended;
    size_t line_bytes_max;
    uint64_t patience_ns;
    bool queues;       /* sends never block                                    */
    uint64_t taken_ns; /* when the socket last took something, or all was sent */
    uint8_t *out;
    size_t out_bytes, out_bytes_first, out_bytes_max, out_begin, out_end;
    uint8_t *in;
    size_t in_bytes, in_bytes_first, in_begin, in_seen, in_end;
    bool peer_closed;
};

static enum aq_status open_sized(int fd, size_t in_bytes, size_t out_bytes, struct aq_control **out)
{
    const int flags = fcntl(fd, F_GETFL);
    if (flags == -1) return aq_fail_errno("control", "descriptor %d is not a control channel", fd);
    void *memory, *buffer = NULL, *in = NULL;
    enum aq_status status;
    AQ_TRY(aq_alloc(sizeof(struct aq_control), &memory));
    AQ_TRY_GOTO(aq_alloc(out_bytes, &buffer), out);
    AQ_TRY_GOTO(aq_alloc(in_bytes, &in), out);
    if (fcntl(fd, F_SETFL, flags | O_NONBLOCK) == -1 || fcntl(fd, F_SETFD, FD_CLOEXEC) == -1) {
        status = aq_fail_errno("control", "descriptor %d cannot be a control channel", fd);
        goto out;
    }
    struct aq_control *control = memory;
    *control = (struct aq_control){.fd = fd,
                                   .line_bytes_max = AQ_CONTROL_LINE_BYTES_MAX,
                                   .patience_ns = patience_default_ns,
                                   .taken_ns = aq_clock_ns(),
                                   .out = buffer,
                                   .out_bytes = out_bytes,
                                   .out_bytes_first = out_bytes,
                                   .out_bytes_max = out_bytes,
                                   .in = in,
                                   .in_bytes = in_bytes,
                                   .in_bytes_first = in_bytes};
    *out = control;
    return AQ_OK;
out:
    aq_free(in);
    aq_free(buffer);
    aq_free(memory);
    return status;
}

enum aq_status aq_control_open(int fd, struct aq_control **out)
{
    return open_sized(fd, IN_BYTES_FIRST, AQ_CONTROL_BUFFER_BYTES, out);
}

enum aq_status aq_control_open_stranger(int fd, struct aq_control **out)
{
    AQ_TRY(open_sized(fd, IN_BYTES_STRANGER, OUT_BYTES_STRANGER, out));
    aq_control_queue(*out, AQ_CONTROL_STRANGER_BYTES);
    aq_control_limit(*out, AQ_CONTROL_STRANGER_BYTES);
    return AQ_OK;
}

void aq_control_close(struct aq_control *control)
{
    if (!control) return;
    if (control->tls) aq_tls_session_shut(control->tls);
    aq_tls_session_close(control->tls);
    close(control->fd);
    aq_free(control->in);
    aq_free(control->out);
    aq_free(control);
}

void aq_control_secure(struct aq_control *control, struct aq_tls_session *session)
{
    AQ_ASSERT(!control->tls && control->out_end == 0 && control->in_end == 0);
    control->tls = session;
}

int aq_control_fd(const struct aq_control *control)
{
    return control->fd;
}

void aq_control_limit(struct aq_control *control, size_t bytes)
{
    AQ_ASSERT(bytes > 0 && bytes <= AQ_CONTROL_LINE_BYTES_MAX);
    control->line_bytes_max = bytes;
}

void aq_control_patience(struct aq_control *control, uint64_t ns)
{
    control->patience_ns = ns;
}

void aq_control_queue(struct aq_control *control, size_t bytes)
{
    control->queues = true;
    control->out_bytes_max = bytes > control->out_bytes ? bytes : control->out_bytes;
}

static bool unsent(const struct aq_control *control)
{
    return control->out_begin < control->out_end;
}

/* While the certificates shake hands, what is in the buffer may have to wait for the peer's bytes. */
static bool shaking(const struct aq_control *control)
{
    return control->tls && !aq_tls_session_peer(control->tls);
}

bool aq_control_pending(const struct aq_control *control)
{
    if (shaking(control) && aq_tls_session_events(control->tls) == POLLIN) return false;
    return unsent(control);
}

size_t aq_control_room(const struct aq_control *control)
{
    const size_t held = control->out_end - control->out_begin;
    return held < AQ_CONTROL_BUFFER_BYTES ? AQ_CONTROL_BUFFER_BYTES - held : 0;
}

uint64_t aq_control_stuck_ns(const struct aq_control *control, uint64_t now_ns)
{
    return unsent(control) && now_ns > control->taken_ns ? now_ns - control->taken_ns : 0;
}

size_t aq_control_waiting(const struct aq_control *control)
{
    return control->out_end - control->out_begin;
}

bool aq_control_certified(const struct aq_control *control)
{
    return control->tls && aq_tls_session_peer(control->tls);
}

const struct aq_tls_name *aq_control_peer(const struct aq_control *control)
{
    return control->tls ? aq_tls_session_peer(control->tls) : NULL;
}

static enum aq_status end(struct aq_control *control, enum aq_status status)
{
    control->ended = status;
    return status;
}

/* Sleep until the socket is ready for one of `events`. AQ_TIMEOUT: the deadline passed. */
static enum aq_status wait_ready(struct aq_control *control, short events, uint64_t deadline_ns)
{
    for (;;) {
        const uint64_t now = aq_clock_ns();
        if (now >= deadline_ns) return AQ_TIMEOUT;
        const uint64_t left_ms = (deadline_ns - now) / 1000000 + 1;
        if (shaking(control)) events = aq_tls_session_events(control->tls);
        struct pollfd fd = {.fd = control->fd, .events = events};
        const int ready = poll(&fd, 1, left_ms > 1000 ? 1000 : (int)left_ms);
        if (ready > 0) return AQ_OK;
        if (ready < 0 && errno != EINTR) return aq_fail_errno("control", "poll");
    }
}

/* The peer is not the expected one, or its TLS does not fit: logged once, here. */
static enum aq_status not_proved(struct aq_control *control)
{
    return end(control, aq_fail(AQ_TLSERR, "control", "refused peer=%s: the peer %s", aq_tls_session_with(control->tls),
                                aq_tls_session_text(control->tls)));
}

enum aq_status aq_control_check(struct aq_control *control)
{
    if (!control->tls || aq_tls_session_check(control->tls) != AQ_TLSERR) return AQ_OK;
    return not_proved(control);
}

static enum aq_status give_sealed(struct aq_control *control, const void *bytes, size_t count, size_t *sent)
{
    const struct iovec iov = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = count};
    const enum aq_status status = aq_tls_session_write(control->tls, &iov, 1, sent);
    if (status == AQ_OK || status == AQ_AGAIN) return status;
    return status == AQ_TLSERR ? not_proved(control) : end(control, AQ_CLOSED);
}

/* One attempt to give the socket `count` bytes; *sent gets how many it took. AQ_AGAIN: none now. */
static enum aq_status give(struct aq_control *control, const void *bytes, size_t count, size_t *sent)
{
    if (control->tls) return give_sealed(control, bytes, count, sent);
    const ssize_t taken = send(control->fd, bytes, count, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (taken >= 0) {
        *sent = (size_t)taken;
        return AQ_OK;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return AQ_AGAIN;
    if (errno == EPIPE || errno == ECONNRESET) return end(control, AQ_CLOSED);
    return end(control, aq_fail_errno("control", "cannot send"));
}

/* An empty buffer that grew goes back to its first size; where that cannot be had it stays. */
static void shrink(uint8_t **buffer, size_t *bytes, size_t first)
{
    void *memory;
    if (*bytes <= AQ_CONTROL_BUFFER_BYTES || *bytes <= first || aq_alloc(first, &memory) != AQ_OK) return;
    aq_free(*buffer);
    *buffer = memory;
    *bytes = first;
}

enum aq_status aq_control_push(struct aq_control *control)
{
    if (control->ended != AQ_OK) return control->ended;
    while (unsent(control)) {
        size_t sent = 0;
        AQ_TRY(give(control, control->out + control->out_begin, control->out_end - control->out_begin, &sent));
        control->out_begin += sent;
        control->taken_ns = aq_clock_ns();
    }
    control->out_begin = control->out_end = 0;
    shrink(&control->out, &control->out_bytes, control->out_bytes_first);
    return AQ_OK;
}

enum aq_status aq_control_flush(struct aq_control *control, uint64_t deadline_ns)
{
    for (;;) {
        enum aq_status status = aq_control_push(control);
        if (status != AQ_AGAIN) return status;
        status = wait_ready(control, POLLOUT, deadline_ns);
        if (status == AQ_TIMEOUT)
            return end(control, aq_fail(AQ_TIMEOUT, "control", "the other side of the control channel takes nothing"));
        AQ_TRY(status);
    }
}

/* Make room for `count` more bytes behind out_end, as far as the bound allows. */
static enum aq_status grow_out(struct aq_control *control, size_t count)
{
    const size_t held = control->out_end - control->out_begin;
    if (control->out_begin > 0 && control->out_end + count > control->out_bytes) {
        memmove(control->out, control->out + control->out_begin, held);
        control->out_end = held;
        control->out_begin = 0;
    }
    if (held + count <= control->out_bytes || control->out_bytes == control->out_bytes_max) return AQ_OK;
    size_t grown = control->out_bytes;
    while (grown < held + count && grown < control->out_bytes_max)
        grown = grown < control->out_bytes_max / 2 ? 2 * grown : control->out_bytes_max;
    void *memory;
    const enum aq_status status = aq_alloc(grown, &memory);
    if (status != AQ_OK) return end(control, status);
    memcpy(memory, control->out, control->out_end);
    aq_free(control->out);
    control->out = memory;
    control->out_bytes = grown;
    return AQ_OK;
}

/* Copy into the buffer what fits; for the rest wait until the socket has taken some, where the channel may wait. */
static enum aq_status append(struct aq_control *control, const char *bytes, size_t count, uint64_t deadline_ns)
{
    if (!unsent(control)) control->taken_ns = aq_clock_ns();
    while (count > 0) {
        AQ_TRY(grow_out(control, count));
        size_t fits = control->out_bytes - control->out_end;
        if (fits > count) fits = count;
        memcpy(control->out + control->out_end, bytes, fits);
        control->out_end += fits;
        bytes += fits;
        count -= fits;
        if (count == 0) return AQ_OK;
        if (!control->queues) {
            AQ_TRY(aq_control_flush(control, deadline_ns));
            continue;
        }
        const enum aq_status status = aq_control_push(control);
        if (status != AQ_OK && status != AQ_AGAIN) return status;
        if (control->out_end - control->out_begin >= control->out_bytes_max)
            return end(control, aq_fail(AQ_TIMEOUT, "control",
                                        "the other side of the control channel does not read: "
                                        "%zu bytes wait for it",
                                        control->out_bytes_max));
    }
    return AQ_OK;
}

struct dump {
    struct aq_control *control;
    uint64_t deadline_ns;
    size_t count;
    enum aq_status status;
};

static int dump_piece(const char *bytes, size_t count, void *context)
{
    struct dump *dump = context;
    dump->count += count;
    if (dump->count > AQ_CONTROL_LINE_BYTES_MAX)
        dump->status =
            end(dump->control, aq_fail(AQ_INVAL, "control", "a control message is over the limit of %d bytes",
                                       AQ_CONTROL_LINE_BYTES_MAX));
    else
        dump->status = append(dump->control, bytes, count, dump->deadline_ns);
    return dump->status == AQ_OK ? 0 : -1;
}

enum aq_status aq_control_send(struct aq_control *control, json_t *message)
{
    if (!message) return aq_fail(AQ_NOMEM, "control", "a control message could not be made");
    if (control->ended != AQ_OK) {
        json_decref(message);
        return control->ended;
    }
    struct dump dump = {.control = control, .deadline_ns = aq_clock_after(control->patience_ns)};
    const int written = json_dump_callback(message, dump_piece, &dump, JSON_COMPACT | JSON_ENSURE_ASCII);
    json_decref(message);
    AQ_TRY(dump.status);
    if (written != 0) /* the buffer may hold half a line: nothing may follow it */
        return end(control, aq_fail(AQ_INVAL, "control", "a control message could not be written out"));
    AQ_TRY(append(control, "\n", 1, dump.deadline_ns));
    const enum aq_status status = aq_control_push(control);
    return status == AQ_AGAIN ? AQ_OK : status;
}

/* Make room for at least one more byte behind in_end. */
static enum aq_status make_room(struct aq_control *control)
{
    if (control->in_begin > 0) {
        memmove(control->in, control->in + control->in_begin, control->in_end - control->in_begin);
        control->in_end -= control->in_begin;
        control->in_seen -= control->in_begin;
        control->in_begin = 0;
    }
    if (control->in_end < control->in_bytes) return AQ_OK;
    size_t grown = control->in_bytes * 2; /* never more than a line and its newline can need */
    if (grown > control->line_bytes_max + 1 && control->line_bytes_max + 1 > control->in_bytes)
        grown = control->line_bytes_max + 1;
    void *memory;
    const enum aq_status status = aq_alloc(grown, &memory);
    if (status != AQ_OK) return end(control, status);
    memcpy(memory, control->in, control->in_end);
    aq_free(control->in);
    control->in = memory;
    control->in_bytes = grown;
    return AQ_OK;
}

/*
 * Does a line have too many values? Each follows one of [ { , : or is at the front. Strings are skipped as JSON has
 * them; the parser refuses all that is no JSON.
 */
static bool too_many_values(const uint8_t *line, size_t count)
{
    size_t values = 1;
    int depth = 0;
    bool text = false;
    for (size_t i = 0; i < count; i++) {
        const uint8_t c = line[i];
        if (text) {
            if (c == '\\')
                i++;
            else if (c == '"')
                text = false;
            continue;
        }
        text = c == '"';
        if (c == '[' || c == '{')
            depth++;
        else if (c == ']' || c == '}')
            depth--;
        values += c == '[' || c == '{' || c == ',' || c == ':';
        if (depth > AQ_CONTROL_DEPTH_MAX || values > AQ_CONTROL_VALUES_MAX) return true;
    }
    return false;
}

static enum aq_status parse(struct aq_control *control, size_t count, json_t **out)
{
    json_error_t error;
    if (too_many_values(control->in + control->in_begin, count))
        return end(control, aq_fail(AQ_PROTO, "control",
                                    "a line of the control channel has more than %d values, or is "
                                    "more than %d deep",
                                    AQ_CONTROL_VALUES_MAX, AQ_CONTROL_DEPTH_MAX));
    json_t *message = json_loadb((const char *)control->in + control->in_begin, count, JSON_REJECT_DUPLICATES, &error);
    control->in_begin += count + 1;
    control->in_seen = control->in_begin;
    if (control->in_begin == control->in_end) {
        control->in_begin = control->in_seen = control->in_end = 0;
        shrink(&control->in, &control->in_bytes, control->in_bytes_first);
    }
    if (!message)
        return end(control, aq_fail(AQ_PROTO, "control", "a line of the control channel is not JSON: %s (byte %d)",
                                    error.text, error.position));
    if (!json_is_object(message)) {
        json_decref(message);
        return end(control, aq_fail(AQ_PROTO, "control", "a line of the control channel is not a JSON object"));
    }
    *out = message;
    return AQ_OK;
}

/* The next whole line of the buffer, if there is one. */
static enum aq_status take_line(struct aq_control *control, json_t **out)
{
    const uint8_t *newline = memchr(control->in + control->in_seen, '\n', control->in_end - control->in_seen);
    control->in_seen = control->in_end;
    const size_t held = (newline ? (size_t)(newline - control->in) : control->in_end) - control->in_begin;
    if (held > control->line_bytes_max)
        return end(control, aq_fail(AQ_PROTO, "control", "a line of the control channel is longer than %zu bytes",
                                    control->line_bytes_max));
    if (newline) return parse(control, held, out);
    return control->peer_closed ? end(control, AQ_CLOSED) : AQ_AGAIN; /* what came of a line is dropped */
}

static enum aq_status fill_sealed(struct aq_control *control)
{
    size_t got = 0;
    const struct iovec iov = {.iov_base = control->in + control->in_end,
                              .iov_len = control->in_bytes - control->in_end};
    const enum aq_status status = aq_tls_session_read(control->tls, &iov, 1, &got);
    control->in_end += got;
    if (status == AQ_OK || status == AQ_AGAIN) return status;
    if (status == AQ_TLSERR) return not_proved(control);
    control->peer_closed = true;
    return AQ_OK;
}

/* Read what is there. AQ_AGAIN: nothing was. */
static enum aq_status fill(struct aq_control *control)
{
    AQ_TRY(make_room(control));
    if (control->tls) return fill_sealed(control);
    const ssize_t count =
        recv(control->fd, control->in + control->in_end, control->in_bytes - control->in_end, MSG_DONTWAIT);
    if (count > 0) {
        control->in_end += (size_t)count;
        return AQ_OK;
    }
    if (count == 0 || errno == ECONNRESET) {
        control->peer_closed = true;
        return AQ_OK;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return AQ_AGAIN;
    return end(control, aq_fail_errno("control", "cannot receive"));
}

enum aq_status aq_control_receive(struct aq_control *control, uint64_t deadline_ns, json_t **out)
{
    for (;;) {
        /* A peer that takes no more may still have left lines to read: AQ_CLOSED is only final at the end of them. */
        if (control->ended != AQ_OK && control->ended != AQ_CLOSED && control->ended != AQ_TIMEOUT)
            return control->ended;
        const enum aq_status line = take_line(control, out);
        if (line != AQ_AGAIN) return line;
        const enum aq_status got = fill(control);
        if (got == AQ_OK) continue;
        if (got != AQ_AGAIN) return got;
        if (control->ended == AQ_OK) {
            const enum aq_status pushed = aq_control_push(control);
            if (pushed != AQ_OK && pushed != AQ_AGAIN && pushed != AQ_CLOSED) return pushed;
        }
        if (deadline_ns == 0) return AQ_AGAIN;
        AQ_TRY(wait_ready(control, aq_control_pending(control) && control->ended == AQ_OK ? POLLIN | POLLOUT : POLLIN,
                          deadline_ns));
    }
}
