/*
 * split_gate.h -- what of the server's lines reaches a client's daemon: the messages that a turn needs (GUEST in
 * messages.def), and in them nothing that names a path, a manifest or another's stage.
 *
 * Locking: pure functions.
 */
#ifndef RUNTIME_SPLIT_GATE_H
#define RUNTIME_SPLIT_GATE_H

#include <jansson.h>
#include <stdint.h>

#include "aqsgd/base.h"

/* Values that this client puts into the lines, in place of the server's. */
struct aq_split_gate {
    const char *run, *checkpoint, *cache; /* its folders, absolute                           */
    const char *manifest;                 /* its own, as it planned it                       */
    const char *begin;                    /* the folder of this turn's initial weights; NULL: none */
    const char *lengths;                  /* of its samples, as text (lengths.h); NULL: all alike      */
    const char *seal;                     /* the first stage's key of the server's cache; NULL: none          */
    const char *ledger;                   /* folder of its ledgers of visits; NULL: none                      */
    const char *hosts[3];                 /* allowed peers of its stages, by its manifest; NULL: none         */
    uint32_t ends;                        /* stages that it has                              */
    uint64_t plan_hash;                   /* of it                                           */
};

/* May the line pass? It is changed. AQ_PROTO (logged): it may not. */
enum aq_status aq_split_pass(const struct aq_split_gate *gate, json_t *line);

#endif
