/*
 * data_label.h -- the label of a row, as a number: by the list of names of data.labels, or written as a number from 0;
 * private to stages/data.
 *
 * names: "negative, positive" are labels 0 and 1; NULL: rows have numbers.
 *
 * Locking: pure functions.
 */
#ifndef DATA_LABEL_H
#define DATA_LABEL_H

#include "dataset_kind.h"

/* A cell of a table. */
struct data_cell {
    const char *at;
    size_t bytes;
};

/* AQ_INVAL: a name is empty, or comes twice. */
enum aq_status data_labels_check(const char *names);
/* How many there are; 0: names is NULL. */
uint32_t data_labels_count(const char *names);

/* AQ_CORRUPT: the cell is no such name, or no number from 0 to 1048575; names file and line. */
enum aq_status data_label_read(const char *path, uint64_t line, const struct data_cell *cell, const char *names,
                               int32_t *out);
/* AQ_CORRUPT: "PATH:LINE: the label "CELL" is PROBLEM". */
enum aq_status data_label_refuse(const char *path, uint64_t line, const struct data_cell *cell, const char *problem);

#endif
