/*
 * transfer_give.c -- the end of a transfer that has the file (transfer.h): a thread that connects, sends, and ends.
 *
 * Pieces are read into places, and lent to the link from there until they have left (or, on a link that heals, until
 * the receiver has acknowledged them). `stop` ends it wherever it waits.
 */
#include <assert.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "transfer_private.h"

enum { LEAVE_S = 60, ADDRESS_BYTES = 512 }; /* LEAVE_S: the receiver syncs a large file */

static const char *const AREA = "checkpoint";

struct aq_transfer_give {
    struct aq_transfer_give_config config;
    char address[ADDRESS_BYTES];
    struct aq_eventcount *eventcount; /* of its net; close notifies it, too */
    struct aq_net *net;
    struct aq_link *link;
    uint8_t *places;
    uint64_t lent; /* a bit for each place that the link has */
    uint64_t sent; /* bytes given to the link */
    int fd;
    char text[AQ_ERROR_BYTES]; /* written before `done` */
    atomic_bool stop;          /* release in close, acquire in the thread */
    atomic_int done;           /* enum aq_status; release in the thread, acquire in done */
    struct aq_thread *thread;
};

static_assert(AQ_TRANSFER_PIECES == 64, "a bit of `lent` for each place");

static enum aq_status stopped(void *context)
{
    struct aq_transfer_give *give = context;
    if (!atomic_load_explicit(&give->stop, memory_order_acquire)) return AQ_AGAIN;
    return aq_fail(AQ_ABORTED, AREA, "the file is not needed any more");
}

/* As many pieces as there are places for. */
static enum aq_status send_pieces(struct aq_transfer_give *give)
{
    const struct aq_transfer_file *file = &give->config.file;
    while (give->sent < file->bytes && ~give->lent) {
        const uint32_t place = (uint32_t)__builtin_ctzll(~give->lent);
        const uint64_t left = file->bytes - give->sent;
        const uint32_t count = left < AQ_TRANSFER_PIECE_BYTES ? (uint32_t)left : AQ_TRANSFER_PIECE_BYTES;
        uint8_t *bytes = give->places + (size_t)place * AQ_TRANSFER_PIECE_BYTES;
        AQ_TRY(aq_transfer_read(file, give->fd, bytes, count, give->sent));
        const struct aq_frame frame = {.kind = AQ_FRAME_MIRROR,
                                       .flags = TRANSFER_PIECE,
                                       .step = file->step,
                                       .argument = give->sent,
                                       .body_bytes = count,
                                       .body = bytes};
        const enum aq_status status = aq_link_send(give->link, &frame, place);
        if (status == AQ_INVAL) return status;
        if (status != AQ_OK) return AQ_OK; /* the link has ended, and its last event has the reason */
        give->lent |= 1ull << place;
        give->sent += count;
    }
    return AQ_OK;
}

/* One event of the link, or a wait for one. */
static enum aq_status await(struct aq_transfer_give *give, uint64_t *silent_ns)
{
    const struct aq_transfer_file *file = &give->config.file;
    struct aq_link_event event;
    const uint32_t seen = aq_eventcount_read(give->eventcount);
    const enum aq_status asked = stopped(give), status = aq_link_poll(give->link, &event);
    if (asked != AQ_AGAIN) return asked;
    if (status == AQ_AGAIN && aq_clock_ns() > *silent_ns) return transfer_silent(give->sent, file->bytes);
    if (status == AQ_AGAIN) {
        (void)aq_eventcount_wait(give->eventcount, seen, *silent_ns);
        return AQ_OK;
    }
    AQ_TRY(status);
    *silent_ns = aq_clock_after(TRANSFER_SILENCE_S * 1000000000ull + give->config.link.outage_ns_max);
    if (event.kind == AQ_LINK_CLOSED) return transfer_ended(&event, give->sent, file->bytes);
    if (event.kind == AQ_LINK_SENT) {
        give->lent &= ~(1ull << event.token);
        return AQ_OK;
    }
    if (event.frame.body_bytes) aq_link_release(give->link, event.frame.body);
    return aq_fail(AQ_PROTO, AREA, "%s sent a frame where it only receives a file", aq_link_peer_name(give->link));
}

/*
 * Until the receiver has ended the link in good order, which our own BYE then answers by itself. What it makes of the
 * file it tells the launcher.
 */
static void leave(struct aq_transfer_give *give)
{
    const uint64_t end = aq_clock_after(LEAVE_S * 1000000000ull);
    struct aq_link_event event;
    while (stopped(give) == AQ_AGAIN && aq_clock_ns() < end) {
        const uint32_t seen = aq_eventcount_read(give->eventcount);
        const enum aq_status status = aq_link_poll(give->link, &event);
        if (status == AQ_AGAIN)
            (void)aq_eventcount_wait(give->eventcount, seen, end);
        else if (status != AQ_OK || event.kind != AQ_LINK_SENT)
            return;
    }
}

static enum aq_status send_all(struct aq_transfer_give *give)
{
    const struct aq_transfer_give_config *config = &give->config;
    char name[TRANSFER_NAME_BYTES];
    uint64_t silent_ns = aq_clock_after(TRANSFER_SILENCE_S * 1000000000ull + config->link.outage_ns_max);
    transfer_name(&config->file, name);
    const enum aq_status status = aq_file_open(config->file.folder, name, AQ_FILE_READ, &give->fd);
    if (status == AQ_NOTFOUND)
        return aq_fail(AQ_NOTFOUND, AREA, "%s/%s is not here any more", config->file.folder, name);
    AQ_TRY(status);
    const struct aq_net_config net = {.eventcount = give->eventcount, .links_max = 1, .tls = config->tls};
    AQ_TRY(aq_net_open(&net, &give->net));
    AQ_TRY(
        aq_link_connect(give->net, give->address, &config->link, aq_clock_after(config->connect_ns_max), &give->link));
    while (give->sent < config->file.bytes || give->lent) {
        AQ_TRY(send_pieces(give));
        AQ_TRY(await(give, &silent_ns));
    }
    aq_log(AREA, 1, "%s has gone to %s: %" PRIu64 " bytes", name, aq_link_peer_name(give->link), give->sent);
    leave(give);
    return AQ_OK;
}

static void run(void *context)
{
    struct aq_transfer_give *give = context;
    struct aq_error_hold hold; /* a file that does not leave is no failure of this process */
    aq_error_hold(&hold);
    const enum aq_status status = send_all(give);
    const bool tells = status != AQ_OK && give->link && !atomic_load_explicit(&give->stop, memory_order_acquire);
    if (tells) (void)aq_link_abort(give->link, status, hold.text, aq_clock_after(1000000000ull));
    (void)aq_printable_text(hold.text, give->text, sizeof give->text);
    aq_error_release(&hold);
    aq_link_close(give->link);
    aq_net_close(give->net);
    atomic_store_explicit(&give->done, (int)status, memory_order_release);
}

enum aq_status aq_transfer_give_open(const struct aq_transfer_give_config *config, struct aq_transfer_give **out)
{
    struct aq_transfer_give *give;
    void *places;
    enum aq_status status;
    AQ_TRY(AQ_NEW(1, &give));
    give->config = *config;
    give->fd = -1;
    atomic_init(&give->stop, false);
    atomic_init(&give->done, AQ_AGAIN);
    if (snprintf(give->address, sizeof give->address, "%s", config->address) >= (int)sizeof give->address) {
        status = aq_fail(AQ_INVAL, AREA, "the address of who receives a file is too long");
        goto out;
    }
    give->config.address = give->address;
    give->config.link.meanwhile = stopped;
    give->config.link.context = give;
    AQ_TRY_GOTO(aq_alloc((size_t)AQ_TRANSFER_PIECES * AQ_TRANSFER_PIECE_BYTES, &places), out);
    give->places = places;
    AQ_TRY_GOTO(aq_eventcount_open(&give->eventcount), out);
    AQ_TRY_GOTO(aq_thread_open("aq-transfer", run, give, &give->thread), out);
    *out = give;
    return AQ_OK;
out:
    aq_transfer_give_close(give);
    return status;
}

struct aq_transfer_file aq_transfer_give_file(const struct aq_transfer_give *give)
{
    return give->config.file;
}

enum aq_status aq_transfer_give_done(const struct aq_transfer_give *give, const char **text)
{
    *text = give->text;
    return (enum aq_status)atomic_load_explicit(&give->done, memory_order_acquire);
}

void aq_transfer_give_close(struct aq_transfer_give *give)
{
    if (!give) return;
    atomic_store_explicit(&give->stop, true, memory_order_release);
    if (give->eventcount) aq_eventcount_notify(give->eventcount);
    aq_thread_close(give->thread);
    if (give->fd >= 0) close(give->fd);
    aq_eventcount_close(give->eventcount);
    aq_free(give->places);
    aq_free(give);
}
