/*
 * pool.h -- memory for many small things that die together: the nodes, texts and arrays of one job.
 *
 * Locking: one thread.
 */
#ifndef RUNTIME_POOL_H
#define RUNTIME_POOL_H

#include <stddef.h>

#include "aqsgd/base.h"

struct aq_pool_chunk;
struct aq_pool {
    struct aq_pool_chunk *chunks;
};

/* Zeroed memory, aligned for anything. AQ_NOMEM. */
enum aq_status aq_pool_take(struct aq_pool *pool, size_t bytes, void **out);
/* A terminated copy of `bytes` bytes of text. */
enum aq_status aq_pool_text(struct aq_pool *pool, const char *text, size_t bytes, const char **out);
void aq_pool_deinit(struct aq_pool *pool);

#endif
