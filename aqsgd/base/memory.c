/*
 * memory.c -- the only room that asks the C library or the kernel for memory.
 *
 * aq_alloc keeps its size in front of the block, one cache line, so that what is out can be counted, and where the C
 * library's block begins.
 */
#include "aqsgd/base/memory.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static atomic_uint_fast64_t used;    /* a statistic: relaxed everywhere */
static atomic_uint_fast64_t fail_at; /* tests only: relaxed             */

static bool must_fail(void)
{
    uint_fast64_t left = atomic_load_explicit(&fail_at, memory_order_relaxed);
    if (left == 0) return false;
    return atomic_fetch_sub_explicit(&fail_at, 1, memory_order_relaxed) == 1;
}

struct head {
    size_t all;
    void *taken; /* from the C library */
};
static_assert(sizeof(struct head) <= AQ_ALIGN, "it is in front of a block");

enum { CLEARED_BYTES_MAX = 64 << 10 };

/* Zeroed and aligned, with its head. A large block is calloc's, which clears only what was used before: of a struct
 * of MiB, of which a small job uses KiB, the other pages are never touched. AddressSanitizer knows the exact end of a
 * block only if nothing is added to it. */
static uint8_t *zeroed(size_t all)
{
    struct head head = {.all = all};
    uint8_t *block;
#ifndef __SANITIZE_ADDRESS__
    if (all > CLEARED_BYTES_MAX) {
        block = head.taken = calloc(1, all + AQ_ALIGN);
        if (!block) return NULL;
        block += (AQ_ALIGN - (uintptr_t)block % AQ_ALIGN) % AQ_ALIGN;
        memcpy(block, &head, sizeof head);
        return block;
    }
#endif
    block = head.taken = aligned_alloc(AQ_ALIGN, all);
    if (!block) return NULL;
    memset(block, 0, all);
    memcpy(block, &head, sizeof head);
    return block;
}

enum aq_status aq_alloc(size_t bytes, void **out)
{
    if (bytes > SIZE_MAX / 2) return aq_fail(AQ_NOMEM, "memory", "cannot allocate %zu bytes", bytes);
    const size_t all = (bytes + 2 * AQ_ALIGN - 1) / AQ_ALIGN * AQ_ALIGN + (bytes == 0 ? AQ_ALIGN : 0);
    uint8_t *block = must_fail() ? NULL : zeroed(all);
    if (!block) return aq_fail(AQ_NOMEM, "memory", "cannot allocate %zu bytes", bytes);
    atomic_fetch_add_explicit(&used, all, memory_order_relaxed);
    *out = block + AQ_ALIGN;
    return AQ_OK;
}

enum aq_status aq_alloc_at(size_t bytes, void *out)
{
    void *memory = NULL; /* gcc 12 cannot see that success fills it */
    AQ_TRY(aq_alloc(bytes, &memory));
    memcpy(out, &memory, sizeof memory); /* a pointer of another type */
    return AQ_OK;
}

void aq_free(void *memory)
{
    if (!memory) return;
    struct head head;
    memcpy(&head, (uint8_t *)memory - AQ_ALIGN, sizeof head);
    atomic_fetch_sub_explicit(&used, head.all, memory_order_relaxed);
    free(head.taken);
}

enum aq_status aq_alloc_text(const char *text, char **out)
{
    const size_t bytes = strlen(text) + 1;
    AQ_TRY(AQ_NEW(bytes, out));
    memcpy(*out, text, bytes);
    return AQ_OK;
}

enum { PAGE_BYTES = 4096, HUGE_BYTES = 2 << 20 };

enum aq_status aq_map_untouched(size_t bytes, void **out)
{
    if (bytes == 0) bytes = 1;
    void *memory = MAP_FAILED;
    if (!must_fail())
        memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return aq_fail(AQ_NOMEM, "memory", "cannot map %zu bytes (%.1f MiB)", bytes,
                                             (double)bytes / 1048576.0);
    if (bytes >= HUGE_BYTES) madvise(memory, bytes, MADV_HUGEPAGE); /* a wish: pages come either way */
    atomic_fetch_add_explicit(&used, bytes, memory_order_relaxed);
    *out = memory;
    return AQ_OK;
}

enum aq_status aq_map(size_t bytes, void **out)
{
    void *memory = NULL;
    AQ_TRY(aq_map_untouched(bytes, &memory));
    for (size_t at = 0; at < bytes; at += PAGE_BYTES)
        ((volatile uint8_t *)memory)[at] = 0;
    *out = memory;
    return AQ_OK;
}

void aq_unmap(void *memory, size_t bytes)
{
    if (!memory) return;
    if (bytes == 0) bytes = 1;
    munmap(memory, bytes);
    atomic_fetch_sub_explicit(&used, bytes, memory_order_relaxed);
}

enum aq_status aq_pages_take(const struct aq_pages *pages, size_t bytes, void **out)
{
    return pages->take ? pages->take(pages->context, bytes, out) : aq_map(bytes, out);
}

enum aq_status aq_pages_take_untouched(const struct aq_pages *pages, size_t bytes, void **out)
{
    return pages->take ? pages->take(pages->context, bytes, out) : aq_map_untouched(bytes, out);
}

void aq_pages_give(const struct aq_pages *pages, void *memory, size_t bytes)
{
    if (!memory) return;
    if (pages->take)
        pages->give(pages->context, memory, bytes);
    else
        aq_unmap(memory, bytes);
}

void aq_memory_fail_at(uint64_t n)
{
    atomic_store_explicit(&fail_at, n, memory_order_relaxed);
}

uint64_t aq_memory_used(void)
{
    return atomic_load_explicit(&used, memory_order_relaxed);
}

void *aq_arena_take(struct aq_arena *arena, size_t bytes)
{
    const size_t at = (arena->used + AQ_ALIGN - 1) / AQ_ALIGN * AQ_ALIGN;
    arena->used = at + bytes;
    if (!arena->base) return NULL;
    AQ_ASSERT(arena->used <= arena->bytes);
    return arena->base + at;
}
