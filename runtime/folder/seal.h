/*
 * seal.h -- a checkpoint's file on a disk that is not its owner's: a hash that detects changes, and a seal that keeps
 * others from reading it.
 *
 * Two independent things. A *hash* (SHA-256) of the whole file, made while its bytes pass; the holder of the 32 bytes
 * recognizes the file, wherever it has been. And a *seal*: the file in chunks, each encrypted and authenticated
 * (AES-256-GCM), under a key that its keeper does not have. A chunk's number, whether it is the last, and the file's
 * identity (plan, rank, step, length) are authenticated with it. This detects chunks that were changed, left out, put
 * in another order or taken from another file, and a file of another step or stage.
 *
 *     aq_seal_begin(seal, key, &about, head);                        // write head, then
 *     aq_seal_chunk(seal, plain, aq_seal_next(seal), box);           // write box, until aq_seal_next is 0
 *
 *     aq_seal_open(seal, key, &about, head);                         // read head, then
 *     aq_seal_unchunk(seal, box, aq_seal_next(seal), plain);         // of as many bytes and AQ_SEAL_TAG_BYTES more
 *
 * The layout is in docs/FORMAT.md, "Sealed copies".
 *
 * Locking: one object, one thread at a time.
 */
#ifndef RUNTIME_SEAL_H
#define RUNTIME_SEAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "aqsgd/base.h"

enum {
    AQ_SEAL_KEY_BYTES = 32,
    AQ_SEAL_HEAD_BYTES = 80,
    AQ_SEAL_CHUNK_BYTES = 64 << 10,
    AQ_SEAL_TAG_BYTES = 16,
    AQ_SEAL_BOX_BYTES = AQ_SEAL_CHUNK_BYTES + AQ_SEAL_TAG_BYTES,
    AQ_HASH_TEXT_BYTES = 65 /* 64 hex digits and a zero */
};

struct aq_hash; /* opaque */

/* AQ_NOMEM. begin: starts a file; end: gives the hash of all bytes that were added since. */
enum aq_status aq_hash_open(struct aq_hash **out);
void aq_hash_close(struct aq_hash *hash); /* NULL is fine */
void aq_hash_begin(struct aq_hash *hash);
void aq_hash_add(struct aq_hash *hash, const void *bytes, size_t count);
void aq_hash_end(struct aq_hash *hash, char text[AQ_HASH_TEXT_BYTES]);

/* Is that text a hash: 64 digits of hex in lower case? */
bool aq_hash_is(const char *text);

struct aq_seal_about {
    uint64_t resume_hash; /* of the plan (plan.h) */
    uint64_t step;
    uint64_t file_bytes; /* of the file, at least 1; when it is opened: the most that it may have */
    uint32_t rank;
};

struct aq_seal; /* opaque */

/* AQ_NOMEM. */
enum aq_status aq_seal_new(struct aq_seal **out);
void aq_seal_close(struct aq_seal *seal); /* NULL is fine; forgets the key */

/* Bytes of a file once it is sealed. */
uint64_t aq_seal_bytes(uint64_t file_bytes);

/* Is this the head of a sealed file? */
bool aq_seal_is(const uint8_t head[AQ_SEAL_HEAD_BYTES]);

/* And does it name this run (without proof: good enough to remove such files)? */
bool aq_seal_is_of(const uint8_t head[AQ_SEAL_HEAD_BYTES], uint64_t resume_hash);

/* Seal a file: its head. AQ_IO: there are no random numbers. */
enum aq_status aq_seal_begin(struct aq_seal *seal, const uint8_t key[AQ_SEAL_KEY_BYTES],
                             const struct aq_seal_about *about, uint8_t head[AQ_SEAL_HEAD_BYTES]);

/* Open one. AQ_CORRUPT: of another plan, step, rank or format, or longer than it may be; `about` has the expected
 * values.
 */
enum aq_status aq_seal_open(struct aq_seal *seal, const uint8_t key[AQ_SEAL_KEY_BYTES],
                            const struct aq_seal_about *about, const uint8_t head[AQ_SEAL_HEAD_BYTES]);

/* Bytes of the file that the next chunk has; 0: it is whole. */
uint32_t aq_seal_next(const struct aq_seal *seal);

/* The next chunk, of aq_seal_next() bytes, there and back. unchunk: AQ_CORRUPT: it is not what was sealed with this
 * key.
 */
enum aq_status aq_seal_chunk(struct aq_seal *seal, const uint8_t *plain, uint8_t *box);
enum aq_status aq_seal_unchunk(struct aq_seal *seal, const uint8_t *box, uint8_t *plain);

/*
 * A file of a key: 32 random bytes, mode 600. make: AQ_REFUSED: there is a file already. load: AQ_REFUSED: others may
 * read or write it, or it is another user's; AQ_CORRUPT, AQ_INVAL, AQ_IO. Both name the file and what to do.
 */
enum aq_status aq_seal_key_make(const char *path);
enum aq_status aq_seal_key_load(const char *path, uint8_t key[AQ_SEAL_KEY_BYTES]);

/* Derives another key for the purpose `about`, by HKDF-SHA256: it does not reveal the first one. AQ_IO. */
enum aq_status aq_seal_key_derive(const uint8_t key[AQ_SEAL_KEY_BYTES], const char *about,
                                  uint8_t out[AQ_SEAL_KEY_BYTES]);

#endif
