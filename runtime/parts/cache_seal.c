/*
 * cache_seal.c -- the part of a worker for split.seal: the server's cache of a client is sealed.
 *
 * The server's stage gets the key from the client's first stage in each turn (edge_key.h), and it ends with this
 * process. The client's process has derived it (split_key.h) and put it into the line that starts its first stage. The
 * stage that takes the key opens its cache after its links, all others before them.
 */
#include <string.h>

#include "control.h"
#include "edge.h"
#include "edge_key.h"
#include "storage/cache.h"
#include "worker_parts.h"

enum { KEY_SECONDS = 120 }; /* the client's first stage sends it as soon as its links are there */

struct part {
    bool gives;                      /* the client's first stage; false: the server's, which takes it */
    uint8_t key[AQ_CACHE_KEY_BYTES]; /* on its way to the cache that it opens                         */
};

static bool part_wanted(const struct aq_plan *plan, uint32_t rank)
{
    return aq_job_sealed(plan->job) && rank % plan->stage_count < 2;
}

static enum aq_status part_open(void *self, const struct aq_plan *plan, uint32_t rank)
{
    struct part *part = self;
    part->gives = rank % plan->stage_count == 0;
    return AQ_OK;
}

static enum aq_status key_told(struct part *part, const json_t *start)
{
    const char *text = aq_control_text_or(start, "seal", "");
    if (!part->gives) return AQ_OK;
    if (aq_hex_read(text, AQ_CACHE_KEY_BYTES, part->key)) return AQ_OK;
    return aq_fail(AQ_PROTO, "worker", "received no key for the server's cache (%d hexadecimal digits)",
                   2 * AQ_CACHE_KEY_BYTES);
}

/* On the server's stage the key comes over the link from the client's. */
static enum aq_status key_take(struct part *part, struct aq_part_args *args)
{
    if (part->gives) return AQ_OK;
    if (!args->link_in) return AQ_AGAIN;
    AQ_TRY(aq_edge_take_key(args->link_in, args->events, aq_clock_after(KEY_SECONDS * 1000000000ull), part->key));
    args->key = part->key;
    return AQ_OK;
}

/* Neither stage needs it longer: the client's has sent it, the server's cache has it. */
static enum aq_status key_end(struct part *part, struct aq_edge *edge_out)
{
    const enum aq_status status = part->gives && edge_out ? aq_edge_send_key(edge_out, part->key) : AQ_OK;
    explicit_bzero(part->key, sizeof part->key);
    return status;
}

static enum aq_status part_on(void *self, enum aq_part_moment moment, struct aq_part_args *args)
{
    struct part *part = self;
    switch (moment) {
    case AQ_PART_START:
        return key_told(part, args->message);
    case AQ_PART_CACHE_OPEN:
        return key_take(part, args);
    case AQ_PART_EDGE_OPENED:
        return key_end(part, args->edge_out);
    default:
        return AQ_OK;
    }
}

static void part_close(void *self)
{
    struct part *part = self;
    explicit_bzero(part->key, sizeof part->key);
}

const struct aq_part_ops aq_part_seal = {.name = "seal",
                                         .bytes = sizeof(struct part),
                                         .wanted = part_wanted,
                                         .open = part_open,
                                         .on = part_on,
                                         .close = part_close};
