/*
 * command_asked.h -- what the commands status, top, stop and logs are asked for: a run folder on this machine, or a
 * daemon.
 *
 * Locking: none; a command is one thread.
 */
#ifndef RUNTIME_COMMAND_ASKED_H
#define RUNTIME_COMMAND_ASKED_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "aqsgd/base.h"
#include "options.h"

struct aq_asked {
    const char *daemon, *token_file, *keys; /* daemon NULL: a run folder */
    const char *folder;
    const char *client; /* whose run the folder is, of a split-server's clients; NULL: another run */
    uint32_t rank;
    bool has_rank, json, once, follow;
    uint32_t lines; /* of each log; 0: its last bytes */
    double seconds;
};

#define AQ_ASKED_OPTIONS                                                                                               \
    AQ_ROW(TEXT, struct aq_asked, daemon, "daemon", "HOST:PORT", "ask the aqpiped there"),                             \
        AQ_ROW(TEXT, struct aq_asked, token_file, "token-file", "FILE",                                                \
               "the secret shared with it (AQPIPE_TOKEN_FILE)"),                                                       \
        AQ_ROW(TEXT, struct aq_asked, keys, "keys", "DIR",                                                             \
               "authority.pem and launcher.pem of aqpipe keys init (AQPIPE_KEYS)"),                                    \
        AQ_ROW(FLAG, struct aq_asked, json, "json", NULL, "as JSON; errors, too")

/* Options, the folder and, if the line's arguments have one, a STAGE. AQ_OPTIONS_READ: continue; else the exit
 * status. */
int aq_asked_read(struct aq_asked *asked, const struct aq_command_line *line, int argc, char **argv);

/* Sends the question (taken) to the daemon; *answer, the caller's, is its line of that event. Failures are reported. */
enum aq_status aq_asked_daemon(const struct aq_asked *asked, json_t *question, const char *event, json_t **answer);

/* One line of JSON; takes value. */
void aq_asked_print(json_t *value);

#endif
