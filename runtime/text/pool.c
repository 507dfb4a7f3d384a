/*
 * pool.c -- chunks in a list, each filled from its beginning. See pool.h.
 */
#include "pool.h"

#include <stdint.h>
#include <string.h>

enum { CHUNK_BYTES = 32 * 1024, PIECE_ALIGN = 16 };

struct aq_pool_chunk {
    struct aq_pool_chunk *next;
    size_t used, room;
    uint8_t bytes[];
};

enum aq_status aq_pool_take(struct aq_pool *pool, size_t bytes, void **out)
{
    AQ_ASSERT(bytes < SIZE_MAX / 2);
    bytes = (bytes + PIECE_ALIGN - 1) / PIECE_ALIGN * PIECE_ALIGN;
    struct aq_pool_chunk *chunk = pool->chunks;
    if (!chunk || chunk->room - chunk->used < bytes) {
        const size_t room = bytes > CHUNK_BYTES ? bytes : CHUNK_BYTES;
        AQ_TRY(aq_alloc_at(sizeof *chunk + PIECE_ALIGN + room, &chunk));
        chunk->used = (PIECE_ALIGN - (uintptr_t)chunk->bytes % PIECE_ALIGN) % PIECE_ALIGN;
        chunk->room = chunk->used + room;
        chunk->next = pool->chunks;
        pool->chunks = chunk;
    }
    *out = chunk->bytes + chunk->used;
    chunk->used += bytes;
    return AQ_OK;
}

enum aq_status aq_pool_text(struct aq_pool *pool, const char *text, size_t bytes, const char **out)
{
    void *memory = NULL;
    AQ_TRY(aq_pool_take(pool, bytes + 1, &memory));
    memcpy(memory, text, bytes);
    *out = memory;
    return AQ_OK;
}

void aq_pool_deinit(struct aq_pool *pool)
{
    while (pool->chunks) {
        struct aq_pool_chunk *next = pool->chunks->next;
        aq_free(pool->chunks);
        pool->chunks = next;
    }
}
