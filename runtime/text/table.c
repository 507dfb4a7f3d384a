/* table.c -- see the header. Cells lie one behind the other, row by row; a block is one walk over them. */
#include "table.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { GAP = 2 };

void aq_table_cell(struct aq_table *table, const char *format, ...)
{
    char cell[AQ_TABLE_CELL_BYTES];
    va_list arguments;
    AQ_ASSERT(table->columns > table->keys && table->columns <= AQ_TABLE_COLUMNS_MAX);
    va_start(arguments, format);
    vsnprintf(cell, sizeof cell, format, arguments);
    va_end(arguments);
    uint8_t *width = &table->widths[table->count++ % table->columns];
    const size_t length = strlen(cell);
    if (length > *width) *width = (uint8_t)length;
    aq_text_bytes(&table->cells, cell, length + 1);
}

void aq_table_figure(struct aq_table *table, double value, int decimals, const char *unit)
{
    if (isfinite(value))
        aq_table_cell(table, "%.*f%s", decimals, value, unit);
    else
        aq_table_cell(table, "-");
}

void aq_table_size(struct aq_table *table, double bytes)
{
    char text[AQ_TEXT_NUMBER];
    if (bytes >= 0 && bytes < 1e18)
        aq_table_cell(table, "%s", aq_text_size((uint64_t)(bytes + 0.5), text));
    else
        aq_table_cell(table, "-");
}

/* Keys and one other column must fit in one line. */
static unsigned width_of(const struct aq_table *table, uint32_t column, unsigned most)
{
    return most > 0 && table->widths[column] > most ? most : table->widths[column];
}

static void put_cell(const struct aq_table *table, uint32_t column, const char *cell, unsigned most,
                     struct aq_text *line)
{
    char shown[AQ_TABLE_CELL_BYTES];
    const unsigned width = width_of(table, column, most);
    snprintf(shown, sizeof shown, "%.*s", (int)width, cell);
    if (strlen(cell) > width && width > 0) shown[width - 1] = '~'; /* cut */
    aq_text_add(line, column < 64 && table->left >> column & 1 ? "%s%-*s" : "%s%*s", line->used ? "  " : "", (int)width,
                shown);
}

/* The keys and the columns first .. end - 1 of all rows. */
static void put_block(const struct aq_table *table, uint32_t first, uint32_t end, unsigned most, struct aq_text *text)
{
    const char *cell = table->cells.bytes;
    for (uint32_t row = 0; row < table->count / table->columns; row++) {
        struct aq_text line = {0};
        for (uint32_t c = 0; c < table->columns; c++, cell += strlen(cell) + 1)
            if (c < table->keys || (c >= first && c < end)) put_cell(table, c, cell, most, &line);
        size_t used = line.used;
        while (used > 0 && line.bytes[used - 1] == ' ')
            used--;
        aq_text_bytes(text, aq_text_of(&line), used);
        aq_text_bytes(text, "\n", 1);
        if (line.status != AQ_OK) text->status = line.status;
        aq_text_deinit(&line);
    }
}

void aq_table_print(const struct aq_table *table, unsigned columns, struct aq_text *text)
{
    const unsigned gaps = GAP * table->keys;
    const unsigned most = columns == 0 ? 0 : columns > gaps + table->keys ? (columns - gaps) / (table->keys + 1) : 1;
    AQ_ASSERT(table->count % table->columns == 0);
    if (table->cells.status != AQ_OK) text->status = table->cells.status;
    if (table->cells.status != AQ_OK || table->count == 0) return;
    for (uint32_t first = table->keys, end; first < table->columns; first = end) {
        unsigned width = 0;
        for (uint32_t c = 0; c < table->keys; c++)
            width += width_of(table, c, most) + GAP;
        width += width_of(table, first, most);
        for (end = first + 1; end < table->columns; end++) {
            width += GAP + width_of(table, end, most);
            if (columns > 0 && width > columns) break;
        }
        if (first > table->keys) aq_text_bytes(text, "\n", 1);
        put_block(table, first, end, most, text);
    }
}

void aq_table_list(const struct aq_table *table, uint32_t row, const char *const *names, struct aq_text *text)
{
    size_t width = 0;
    AQ_ASSERT((row + 1) * table->columns <= table->count);
    if (table->cells.status != AQ_OK) text->status = table->cells.status;
    if (table->cells.status != AQ_OK) return;
    for (uint32_t c = 0; c < table->columns; c++)
        if (strlen(names[c]) > width) width = strlen(names[c]);
    const char *cell = aq_text_of(&table->cells);
    for (uint32_t i = 0; i < row * table->columns; i++)
        cell += strlen(cell) + 1;
    for (uint32_t c = 0; c < table->columns; c++, cell += strlen(cell) + 1)
        if (*cell && strcmp(cell, "-") != 0) aq_text_add(text, "%-*s  %s\n", (int)width, names[c], cell);
}

void aq_table_deinit(struct aq_table *table)
{
    aq_text_deinit(&table->cells);
    *table = (struct aq_table){0};
}
