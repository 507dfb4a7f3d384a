/*
 * sum_line.h -- messages between the server's stages and the split-server about sums of gradients
 * (docs/SPLIT-INTERNALS.md section 6), over one Unix socket on one machine, so numbers have this machine's byte order.
 *
 * A stage connects, sends HELLO once, and then for each step in order PART, and receives SUM. A step's sum is over the
 * parts of the round's clients, value by value, in order of their names:
 *
 *     (float)((w1 g1 + w2 g2 + ...) / (w1 + w2 + ...))     in double, w the targets of a client's part
 *
 * so that the sum of one client equals its values, bit for bit, and the sum of all is the mean over the batch. A part
 * without targets, or with values that are not finite (the stage sets a flag), has no values and no weight. If no part
 * has values the sum is void: it has no values, and the step changes nothing (as one with a gradient that is not
 * finite).
 *
 * Locking: none; these are bytes.
 */
#ifndef RUNTIME_SUM_LINE_H
#define RUNTIME_SUM_LINE_H

#include <stdint.h>

enum aq_sum_what { AQ_SUM_HELLO = 1, AQ_SUM_PART = 2, AQ_SUM_SUM = 3 };

enum {
    AQ_SUM_NOT_FINITE = 1, /* PART: there were values that are no numbers: none follow, and the weight is 0 */
    AQ_SUM_VOID = 2,       /* SUM: no client had a part: no values follow                                 */
    AQ_SUM_NAME_BYTES = 64
};

#define AQ_SUM_MAGIC 0x31736d7573716141ull /* "Aaqsums1" */

/* Before every message; what follows is `values` floats, of HELLO the name. */
struct aq_sum_head {
    uint64_t magic;
    uint32_t what;
    uint32_t flags;
    uint64_t step;   /* PART, SUM: from 0, over all rounds; HELLO: the first step with a PART                    */
    uint64_t weight; /* PART: targets of this client in the step; SUM: of all clients in it                      */
    uint64_t values; /* floats that follow: 0, or those of all stages in order (HELLO: of each later sum); */
};

/* Behind the head of HELLO: the client whose stage this is, ended by a zero. */
struct aq_sum_hello {
    char name[AQ_SUM_NAME_BYTES];
};

#endif
