/*
 * worker_seal.c -- split.seal: the server's stage keeps its cache of a client sealed, under a key that it gets from
 * the client's first stage in each turn (edge_key.h) and that ends with this process.
 *
 * The client's process has derived the key (runtime/split/split_key.h) and put it into the line that starts its first
 * stage. The stage that takes it opens its cache behind its links, all others before them.
 */
#include <string.h>

#include "edge_key.h"
#include "worker.h"

enum { KEY_SECONDS = 120 }; /* the client's first stage sends it as soon as its links are there */

bool aq_worker_takes_key(const struct aq_worker *w)
{
    return aq_job_sealed(w->job) && w->position == 1;
}

bool aq_worker_gives_key(const struct aq_worker *w)
{
    return aq_job_sealed(w->job) && w->position == 0;
}

static uint8_t digit(char c)
{
    return (uint8_t)(c <= '9' ? c - '0' : c - 'a' + 10);
}

enum aq_status aq_worker_key_told(struct aq_worker *w, const json_t *start)
{
    const char *text = aq_control_text_or(start, "seal", "");
    if (!aq_worker_gives_key(w)) return AQ_OK;
    if (!aq_is_hex(text, (size_t)2 * AQ_CACHE_KEY_BYTES))
        return aq_fail(AQ_PROTO, "worker", "received no key for the server's cache (%d hexadecimal digits)",
                       2 * AQ_CACHE_KEY_BYTES);
    for (size_t i = 0; i < AQ_CACHE_KEY_BYTES; i++)
        w->cache_key[i] = (uint8_t)(digit(text[2 * i]) << 4 | digit(text[2 * i + 1]));
    return AQ_OK;
}

enum aq_status aq_worker_key_give(struct aq_worker *w)
{
    const enum aq_status status = aq_edge_send_key(w->pipeline.out, w->cache_key);
    explicit_bzero(w->cache_key, sizeof w->cache_key);
    return status;
}

enum aq_status aq_worker_key_take(struct aq_worker *w)
{
    return aq_edge_take_key(w->pipeline.link_in, w->eventcount, aq_clock_after(KEY_SECONDS * 1000000000ull),
                            w->cache_key);
}
