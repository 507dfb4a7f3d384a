/*
 * index_check.h -- is this file an LMDB file as the index writes them, so that LMDB may be let loose upon it?
 *
 * LMDB trusts its file: a wrong page number or offset in it is a wild read or write in our process. So every page that
 * LMDB could reach is checked first. Locking: a pure function of the file.
 */
#ifndef STORAGE_INDEX_CHECK_H
#define STORAGE_INDEX_CHECK_H

#include "store.h"

/* AQ_NOTFOUND: no such file (not logged). AQ_CORRUPT (logs page and reason), AQ_NOMEM, AQ_IO, AQ_REFUSED. */
enum aq_status aq_index_check(const char *path);

#endif
