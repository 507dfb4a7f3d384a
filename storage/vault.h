/*
 * vault.h -- the cells of a sealed cache: messages encrypted and authenticated under a key that is not kept here.
 *
 * A cell's bytes are docs/FORMAT.md, "Sealed caches": the message, a random nonce, a tag. The identity of a cell
 * (message, version, length, cell and job) is authenticated with it, so that nothing on the disk can replace anything
 * else. Digests in the index are masked, because a digest of a message confirms a guess of it.
 *
 * Only this object has the keys; they are cleared when it is closed. OpenSSL is behind this one file of storage/.
 *
 * Locking: aq_vault_seal and aq_vault_unseal from one thread (the storage thread), the rest from one other.
 */
#ifndef STORAGE_VAULT_H
#define STORAGE_VAULT_H

#include "record.h"

struct aq_vault; /* opaque */

/* What a cell is of. */
struct aq_vault_about {
    struct aq_cache_key key;
    uint64_t version;
    uint32_t bytes; /* of the message */
    uint32_t cell;
};

/* A salt for a new cache. AQ_IO: no random numbers are available. */
enum aq_status aq_vault_salt(uint8_t out[AQ_RECORD_SALT_BYTES]);

/* The key is borrowed until this returns. AQ_NOMEM, AQ_IO. */
enum aq_status aq_vault_open(const uint8_t key[AQ_CACHE_KEY_BYTES], const uint8_t salt[AQ_RECORD_SALT_BYTES],
                             uint64_t job_digest, struct aq_vault **out);
void aq_vault_close(struct aq_vault *vault); /* forgets the keys; NULL is fine */

/* The check in the head of a cache of this key and salt: another key gives another one. */
uint64_t aq_vault_check(const struct aq_vault *vault);

/* box: about->bytes + AQ_RECORD_SEAL_BYTES. AQ_IO: no random numbers are to be had. */
enum aq_status aq_vault_seal(struct aq_vault *vault, const struct aq_vault_about *about, const uint8_t *message,
                             uint8_t *box);

/* In place: box starts with the message then. AQ_CORRUPT (not logged): it is not what was sealed as that. */
enum aq_status aq_vault_unseal(struct aq_vault *vault, const struct aq_vault_about *about, uint8_t *box);

/* The mask of a record's digest of that message and version, by exclusive or. AQ_IO. */
enum aq_status aq_vault_mask(struct aq_vault *vault, const struct aq_cache_key *key, uint64_t version, uint64_t *out);

#endif
