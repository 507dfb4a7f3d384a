/*
 * control_token.h -- how a client and a daemon prove to each other that they hold the same token (docs/CONTROL.md
 * section 2).
 *
 * The token never travels: each side sends HMAC-SHA-256 over both sides' nonces. It keeps strangers out; it does not
 * hide or protect what follows.
 *
 * Locking: pure functions except the system's random numbers.
 */
#ifndef RUNTIME_CONTROL_TOKEN_H
#define RUNTIME_CONTROL_TOKEN_H

#include <stdbool.h>
#include <stddef.h>

#include "aqsgd/base.h"

enum { AQ_TOKEN_BYTES_MIN = 16, AQ_TOKEN_BYTES_MAX = 4096, AQ_NONCE_CHARS = 32, AQ_PROOF_CHARS = 64 };

struct aq_token {
    size_t bytes; /* 0: none; a daemon on loopback may need none */
    unsigned char secret[AQ_TOKEN_BYTES_MAX];
};

/* The first line of the file. AQ_REFUSED: others may read it, or it is another user's. AQ_INVAL: too short or long, no
 * regular file. AQ_NOTFOUND, AQ_IO. Texts never contain the token. */
enum aq_status aq_token_load(const char *path, struct aq_token *out);

/* 16 random bytes as text. AQ_IO: the system has none. */
enum aq_status aq_token_nonce(char out[AQ_NONCE_CHARS + 1]);

/* The proof of side "client" or "daemon". Nonces as they came: any text is safe. */
enum aq_status aq_token_proof(const struct aq_token *token, const char *side, const char *daemon_nonce,
                              const char *client_nonce, char out[AQ_PROOF_CHARS + 1]);

/* Is this the proof? In constant time for texts of the right length. */
bool aq_token_proves(const char *wanted, const char *got);

#endif
