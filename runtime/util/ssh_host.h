/*
 * ssh_host.h -- "ssh://[USER@]HOST[:PORT]": a stage's host whose agent the launcher starts by ssh.
 *
 * The parts become arguments of ssh and words of messages: HOST is a host of net/endpoint.h, USER has letters, digits,
 * '.', '_' and '-', and neither starts with '-', which ssh would read as an option.
 *
 * Locking: pure functions.
 */
#ifndef RUNTIME_SSH_HOST_H
#define RUNTIME_SSH_HOST_H

#include <stdbool.h>
#include <stdint.h>

#include "net/endpoint.h"

enum { AQ_SSH_USER_BYTES = 64 };

struct aq_ssh_host {
    char user[AQ_SSH_USER_BYTES]; /* "": ssh chooses                    */
    struct aq_endpoint host;
    uint16_t port; /* 0: ssh chooses                     */
};

/* Does it begin as one? NULL does not. */
bool aq_ssh_is(const char *address);

/* With "ssh://" or without. AQ_INVAL: *why (a constant) is the end of "... is no host: ". Not logged. */
enum aq_status aq_ssh_parse(const char *text, struct aq_ssh_host *out, const char **why);

#endif
