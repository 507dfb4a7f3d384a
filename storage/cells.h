/*
 * cells.h -- which cells of the slab are free, and which must wait until no kept mark needs them any more.
 *
 * The slab is a pool of cells of one size. A cell is written once for one version of one message and never again while
 * a kept mark may refer to it. The two newest marks are kept: a job's checkpoint is one only when every stage has made
 * it, so that a stage that made mark k may still be asked for the one before.
 *
 * Time is counted in periods: period p starts with mark number p. A cell born in period p and replaced in period q is
 * seen by the marks p+1 .. q. With q = p no mark saw it: it is free at once. Otherwise mark q is the last that needs
 * it, and once marks q+1 and q+2 are there it is free. So the cells replaced in a period wait in one of three lists.
 * Locking: one thread.
 */
#ifndef STORAGE_CELLS_H
#define STORAGE_CELLS_H

#include "store.h"

struct aq_cells {
    uint32_t *next; /* the lists: per cell the next one   */
    uint32_t *born; /* per cell the period of its writing */
    uint32_t count; /* cells that the slab file has       */
    uint32_t capacity;
    uint32_t free_head, free_count;
    uint32_t waiting[3]; /* heads, by period modulo 3 */
    uint32_t period;
};

/* Places the bookkeeping for at most `capacity` cells; none exist yet. The period is 1: marks 1 and 0 may be there. */
void aq_cells_place(struct aq_cells *cells, struct aq_arena *arena, uint32_t capacity);

/* Cells count .. count + more - 1 exist now and are free. */
void aq_cells_grow(struct aq_cells *cells, uint32_t more);

/* A free cell, born now; AQ_STORE_NONE: no cell is free. */
uint32_t aq_cells_take(struct aq_cells *cells);

/* A cell that was taken and never came to hold a message: free at once. */
void aq_cells_give(struct aq_cells *cells, uint32_t cell);

/* A cell's message was replaced or dropped: true where it is free at once (it is given back), false where it waits. */
bool aq_cells_retire(struct aq_cells *cells, uint32_t cell);

/* Would aq_cells_retire free it at once? */
bool aq_cells_unseen(const struct aq_cells *cells, uint32_t cell);

void aq_cells_mark_begun(struct aq_cells *cells);
void aq_cells_mark_made(struct aq_cells *cells);   /* frees what only the mark before the last needed */
void aq_cells_mark_failed(struct aq_cells *cells); /* as if it had not been begun                      */

/*
 * At open: cells 0 .. count-1 exist, and claim[cell] is their use (AQ_CELLS_FREE, _HELD by a message, _OLD: only the
 * mark before the last needs it; _DOUBLE, of a broken index, must not come here).
 */
enum aq_cells_claim { AQ_CELLS_FREE = 0, AQ_CELLS_HELD = 1, AQ_CELLS_OLD = 2, AQ_CELLS_DOUBLE = 3 };
void aq_cells_load(struct aq_cells *cells, uint32_t count, const uint8_t *claim);

#endif
