/*
 * labels.h -- the kind of data set whose samples have a label and nothing else (datasets.def).
 *
 * Locking: a pure function.
 */
#ifndef STAGES_LABELS_H
#define STAGES_LABELS_H

/* Its name. There is one. */
const char *aq_labels_kind(void);

#endif
