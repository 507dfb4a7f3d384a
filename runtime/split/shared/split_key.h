/*
 * split_key.h -- the key of a client's cache at its server: 32 random bytes in a file of the client's own, from which
 * the key for each authority (so each job) and name is derived.
 *
 * Locking: pure functions.
 */
#ifndef RUNTIME_SPLIT_KEY_H
#define RUNTIME_SPLIT_KEY_H

#include <stdbool.h>

#include "aqsgd/base.h"

enum { AQ_SPLIT_KEY_TEXT_BYTES = 65 }; /* 64 hexadecimal digits and a zero */

/*
 * The key in `file`, which is made if it is missing (*made). It belongs to `name` in the job whose authority's
 * certificate is in the folder `keys`. AQ_REFUSED, AQ_CORRUPT: the file belongs to another user, others may read it, or
 * it is no key; the line names it. AQ_IO, AQ_NOMEM, AQ_INVAL.
 */
enum aq_status aq_split_key(const char *file, const char *keys, const char *name, bool *made,
                            char out[AQ_SPLIT_KEY_TEXT_BYTES]);

#endif
