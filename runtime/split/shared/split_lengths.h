/*
 * split_lengths.h -- the lengths of a client's samples at the server, where samples have several lengths (data.kind:
 * tsv, instruct).
 *
 * The client sends them in one line after it has joined (docs/SPLIT-INTERNALS.md), as the text of lengths.h. Its plan's
 * hash has their digest, and the server checks them against it before the first turn. The launcher of a turn gives them
 * to the server's stage. The client's own stages get them from the client.
 *
 * Locking: functions of files.
 */
#ifndef RUNTIME_SPLIT_LENGTHS_H
#define RUNTIME_SPLIT_LENGTHS_H

#include "plan.h"
#include "split_session.h"

/*
 * Are these the lengths of this plan's samples? Then they become the file <folder>/<name>.txt. began: the client has
 * trained before, so that an earlier file must be equal. AQ_MISMATCH: they are refused; `why` has the cause, also sent
 * to the client. AQ_IO and its like: this machine's disk; AQ_NOMEM.
 */
enum aq_status aq_split_lengths_take(const struct aq_plan *plan, const char *text, const char *folder, const char *name,
                                     bool began, char why[AQ_SPLIT_TEXT_BYTES]);

#endif
