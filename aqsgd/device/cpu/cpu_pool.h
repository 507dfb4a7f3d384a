/*
 * cpu_pool.h -- the one pool of threads of a CPU device; private to this folder.
 *
 * cpu_pool_run(pool, n, run, context) calls run(piece, worker, context) for every piece of 0..n-1; worker
 * (0..threads-1) selects the caller's own scratch memory. Pieces are handed out one by one, so a descheduled thread
 * holds up only the piece in its hands. Which worker takes which piece is open; a piece's result must not depend on it.
 *
 * Locking: cpu_pool_run from one thread at a time, never from inside a piece.
 */
#ifndef AQ_CPU_POOL_H
#define AQ_CPU_POOL_H

#include "aqsgd/base.h"

struct cpu_pool;
typedef void cpu_pool_piece(uint64_t piece, uint32_t worker, void *context);

enum aq_status cpu_pool_open(uint32_t threads, struct cpu_pool **out);
void cpu_pool_close(struct cpu_pool *pool); /* NULL is fine */
uint32_t cpu_pool_threads(const struct cpu_pool *pool);
void cpu_pool_run(struct cpu_pool *pool, uint64_t pieces, cpu_pool_piece *run, void *context);

#endif
