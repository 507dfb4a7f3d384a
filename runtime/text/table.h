/*
 * table.h -- an aligned table that fits the width of a terminal: a cell is text, the widths follow from the cells.
 *
 * If not all columns fit in one line, the table continues below in another block that repeats the first columns (the
 * row's keys): no figure is left out and no line is folded. Without a limit there is one block.
 *
 *     struct aq_table table = {.columns = 3, .left = 1, .keys = 1};
 *     aq_table_cell(&table, "stage"); ...                     row by row, the heads first
 *     aq_table_figure(&table, seconds, 2, "");                "-" where there is no figure
 *     aq_table_print(&table, aq_text_columns(STDOUT_FILENO), &text);
 *     aq_table_deinit(&table);
 *
 * Locking: one thread per table.
 */
#ifndef RUNTIME_TABLE_H
#define RUNTIME_TABLE_H

#include "runtime_text.h"

enum { AQ_TABLE_COLUMNS_MAX = 300, AQ_TABLE_CELL_BYTES = 64 };

struct aq_table {
    uint32_t columns; /* of a row                                            */
    uint64_t left;    /* bit c: the cells of column c are words, to the left */
    uint32_t keys;    /* this many first columns are in each block           */
    uint32_t count;   /* of cells so far; this and what follows: the table's */
    uint8_t widths[AQ_TABLE_COLUMNS_MAX];
    struct aq_text cells; /* each with its terminator */
};

/* The next cell, of at most AQ_TABLE_CELL_BYTES - 1 bytes: what is longer is cut. */
void aq_table_cell(struct aq_table *table, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A figure with `decimals` decimals and its unit; "-": it is not finite. */
void aq_table_figure(struct aq_table *table, double value, int decimals, const char *unit);
/* A count of bytes, as aq_text_size; "-": it is not finite. */
void aq_table_size(struct aq_table *table, double bytes);

/* columns: that a line may have, 0: any number. Rows must be whole. */
void aq_table_print(const struct aq_table *table, unsigned columns, struct aq_text *text);
/* One row as a list, a line per column: its name, and the cell; without those that are "-" or empty. names: of all
 * columns. */
void aq_table_list(const struct aq_table *table, uint32_t row, const char *const *names, struct aq_text *text);
void aq_table_deinit(struct aq_table *table);

#endif
