/*
 * memory.h -- memory is measured from the plan and taken once.
 *
 * Caveats first. aq_alloc is for the time before RUNNING and for short-lived control work. Everything large comes from
 * aq_map (huge pages, touched, so that the first step does not pay for page faults at seconds per GiB) and is cut by an
 * arena.
 *
 * An arena is used twice with the same code: once with base NULL, which only adds up, once with the memory:
 *
 *     struct aq_arena a = {0};           place(&a, &thing);      // measuring: every pointer is NULL
 *     aq_map(a.used, &memory);
 *     a = (struct aq_arena){.base = memory, .bytes = a.used};    place(&a, &thing);
 *
 * Modules that know no devices allocate memory that a device copies from and to (slots, frames) through their config:
 * struct aq_pages.
 *
 * Locking: aq_alloc, aq_free, aq_map, aq_unmap from any thread; an arena belongs to one thread.
 */
#ifndef AQSGD_BASE_MEMORY_H
#define AQSGD_BASE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "aqsgd/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { AQ_ALIGN = 64 }; /* a cache line; every arena piece and aq_alloc starts on one */

/* Zeroed memory, aligned to AQ_ALIGN. AQ_NOMEM (logged). bytes 0 gives one byte. Free with aq_free. */
enum aq_status aq_alloc(size_t bytes, void **out);
void aq_free(void *memory); /* NULL is fine */

/*
 * The same for `count` objects of the type that *out points to, a pointer that gets the address, where it succeeds:
 *
 *     struct aq_net *net;
 *     AQ_TRY(AQ_NEW(1, &net));
 */
#define AQ_NEW(count, out) aq_alloc_at((count) * sizeof **(out), (out))
enum aq_status aq_alloc_at(size_t bytes, void *out);

/* A copy of text, of memory from aq_alloc. */
enum aq_status aq_alloc_text(const char *text, char **out);

/* Zeroed pages, huge where the kernel gives them, touched already. AQ_NOMEM (logged, with the bytes). */
enum aq_status aq_map(size_t bytes, void **out);
/* The same, but each page costs its page fault when it is first touched: for memory that a small job uses in part. */
enum aq_status aq_map_untouched(size_t bytes, void **out);
void aq_unmap(void *memory, size_t bytes); /* of both; NULL is fine */

/* The source of large memory. Zeroed: from aq_map. A device's pinned memory: aq_device_pages. */
struct aq_pages {
    enum aq_status (*take)(void *context, size_t bytes, void **out); /* zeroed, page-aligned; AQ_NOMEM (logged) */
    void (*give)(void *context, void *memory, size_t bytes);
    void *context; /* must outlive the memory */
};
enum aq_status aq_pages_take(const struct aq_pages *pages, size_t bytes, void **out);
/* The same, from aq_map_untouched where aq_pages_take has it from aq_map. */
enum aq_status aq_pages_take_untouched(const struct aq_pages *pages, size_t bytes, void **out);
void aq_pages_give(const struct aq_pages *pages, void *memory, size_t bytes); /* memory NULL is fine */

/* The n-th aq_alloc or aq_map from now fails with AQ_NOMEM (n = 1 is the next); 0 switches it off. For tests. */
void aq_memory_fail_at(uint64_t n);

/* Bytes that aq_alloc and aq_map have out at this moment. */
uint64_t aq_memory_used(void);

struct aq_arena {
    uint8_t *base; /* NULL while measuring */
    size_t used;
    size_t bytes;
};

/* The next `bytes` of the arena at a multiple of AQ_ALIGN; NULL while measuring. Running over is our bug: asserts. */
void *aq_arena_take(struct aq_arena *arena, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
