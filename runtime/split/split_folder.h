/*
 * split_folder.h -- what the folder of a split-server or of a split-client has of its job: for `aqpipe status`,
 * `aqpipe report`, and the server's own report.json.
 *
 * Of a server: split.json (rounds, and how far each client is), clients/NAME (the run of its turns: bytes, loss and
 * metrics), status.json (what the server does now: split_board.c). Of a client: client.json (split_seen.h),
 * privacy.json (split_visits.h). A server's figures are those of all that is on disk, also while it runs or after a
 * crash.
 *
 * Caveat: the files may be anybody's: texts are as they came, and figures may be missing.
 *
 * Locking: one thread; nothing is written, and nothing that runs is disturbed.
 */
#ifndef RUNTIME_SPLIT_FOLDER_H
#define RUNTIME_SPLIT_FOLDER_H

#include <jansson.h>

#include "aqsgd/base.h"
#include "runtime_text.h"

enum aq_split_role { AQ_SPLIT_NO_FOLDER, AQ_SPLIT_OF_SERVER, AQ_SPLIT_OF_CLIENT };

/* By the files that it has: split.json, or client.json. */
enum aq_split_role aq_split_folder_role(const char *folder);

/*
 * May this role of this job have the folder? Its files are the role's own, and of this job and, of a client, of its id;
 * a file that is damaged does not say. A client that has had no turn has nothing to lose: it may get another job or id.
 * AQ_SPLIT_NO_FOLDER: for a run of no role. AQ_INVAL, logged with the remedy: it holds another's, whose figures would
 * be lost.
 */
enum aq_status aq_split_folder_check(const char *folder, enum aq_split_role role, const char *job, const char *client);

/* The figures of the job (docs/JSON.md). AQ_NOTFOUND: neither kind of folder. AQ_CORRUPT: its file is no JSON object.
 * AQ_IO and its like, AQ_NOMEM. */
enum aq_status aq_split_folder_report(const char *folder, json_t **out);

/* The same, with `state`, `pid`, `waits_for`, and of each client what it does now. As report. */
enum aq_status aq_split_folder_status(const char *folder, json_t **out);

/* A client's line of a server's report, from its line of split.json. NULL: its name is none, or no memory. */
json_t *aq_split_folder_client(const char *folder, const json_t *site);

/* Either of them for people: some lines and, of a server, a table of its clients. columns: as aq_table_print. */
void aq_split_folder_text(const json_t *figures, unsigned columns, struct aq_text *text);

#endif
