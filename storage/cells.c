/*
 * cells.c -- four linked lists over an array: the free cells, and those waiting since one of the last three periods.
 *
 * Cells are handed out lowest first after growing and loading, so that a slab stays dense at its head.
 */
#include "cells.h"

void aq_cells_place(struct aq_cells *cells, struct aq_arena *arena, uint32_t capacity)
{
    *cells = (struct aq_cells){.capacity = capacity, .free_head = AQ_STORE_NONE, .period = 1};
    for (int i = 0; i < 3; ++i)
        cells->waiting[i] = AQ_STORE_NONE;
    cells->next = aq_arena_take(arena, sizeof(uint32_t) * capacity);
    cells->born = aq_arena_take(arena, sizeof(uint32_t) * capacity);
}

void aq_cells_give(struct aq_cells *cells, uint32_t cell)
{
    AQ_ASSERT(cell < cells->count);
    cells->next[cell] = cells->free_head;
    cells->free_head = cell;
    ++cells->free_count;
}

void aq_cells_grow(struct aq_cells *cells, uint32_t more)
{
    AQ_ASSERT(more <= cells->capacity - cells->count);
    const uint32_t first = cells->count;
    cells->count += more;
    for (uint32_t i = more; i-- > 0;)
        aq_cells_give(cells, first + i);
}

uint32_t aq_cells_take(struct aq_cells *cells)
{
    const uint32_t cell = cells->free_head;
    if (cell == AQ_STORE_NONE) return cell;
    cells->free_head = cells->next[cell];
    --cells->free_count;
    cells->born[cell] = cells->period;
    return cell;
}

bool aq_cells_unseen(const struct aq_cells *cells, uint32_t cell)
{
    AQ_ASSERT(cell < cells->count);
    return cells->born[cell] == cells->period;
}

bool aq_cells_retire(struct aq_cells *cells, uint32_t cell)
{
    if (aq_cells_unseen(cells, cell)) {
        aq_cells_give(cells, cell);
        return true;
    }
    uint32_t *head = &cells->waiting[cells->period % 3];
    cells->next[cell] = *head;
    *head = cell;
    return false;
}

void aq_cells_mark_begun(struct aq_cells *cells)
{
    ++cells->period;
    AQ_ASSERT(cells->waiting[cells->period % 3] == AQ_STORE_NONE);
}

void aq_cells_mark_made(struct aq_cells *cells)
{
    uint32_t *head = &cells->waiting[(cells->period - 2) % 3];
    while (*head != AQ_STORE_NONE) {
        const uint32_t cell = *head;
        *head = cells->next[cell];
        aq_cells_give(cells, cell);
    }
}

void aq_cells_mark_failed(struct aq_cells *cells)
{
    /* Cells replaced since the mark started may belong to the mark before: they wait with its cells. */
    uint32_t *from = &cells->waiting[cells->period % 3];
    uint32_t *into = &cells->waiting[(cells->period - 1) % 3];
    while (*from != AQ_STORE_NONE) {
        const uint32_t cell = *from;
        *from = cells->next[cell];
        cells->next[cell] = *into;
        *into = cell;
    }
    --cells->period;
    for (uint32_t i = 0; i < cells->count; ++i) {
        if (cells->born[i] > cells->period) cells->born[i] = cells->period;
    }
}

void aq_cells_load(struct aq_cells *cells, uint32_t count, const uint8_t *claim)
{
    AQ_ASSERT(count <= cells->capacity && cells->count == 0 && cells->period == 1);
    cells->count = count;
    for (uint32_t i = count; i-- > 0;) {
        cells->born[i] = 0;
        if (claim[i] == AQ_CELLS_FREE) aq_cells_give(cells, i);
        if (claim[i] == AQ_CELLS_OLD) {
            cells->next[i] = cells->waiting[0];
            cells->waiting[0] = i;
        }
    }
}
