/*
 * seal.c -- see the header. A sealed file (docs/FORMAT.md, "Sealed copies"), little-endian:
 *
 *     offset bytes
 *          0    16  "aqpipe mirror 1\n"
 *         16     8  resume_hash of the plan (plan.h)
 *         24     8  step
 *         32     8  bytes of the file
 *         40     4  rank
 *         44     4  bytes of a chunk: 65536
 *         48    32  salt: random
 *         80        chunks, each with 16 bytes of tag behind it; the last is as long as what is left
 *
 * Each file has its own key, HKDF-SHA256 of the owner's key with the salt and bytes 0 to 47: no nonce is ever used
 * twice under one key, for any number of files. A chunk's nonce is its number (8 bytes), 1 for the last and else 0 (1
 * byte), and zeros (3 bytes); the head is authenticated with every chunk.
 */
#include "seal.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <openssl/rand.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "run_folder.h"

static const char AREA[] = "mirror", MAGIC[] = "aqpipe mirror 1\n";

enum { MAGIC_BYTES = 16, ABOUT_BYTES = 48, SALT_BYTES = 32, NONCE_BYTES = 12 };
static_assert(sizeof MAGIC == MAGIC_BYTES + 1, "the head begins with it");
static_assert((int)ABOUT_BYTES + (int)SALT_BYTES == (int)AQ_SEAL_HEAD_BYTES, "nothing else is in the head");

/* ---- hashes ---- */

struct aq_hash {
    EVP_MD_CTX *context;
    bool wrong; /* the library has refused: the text will be none */
};

enum aq_status aq_hash_open(struct aq_hash **out)
{
    struct aq_hash *hash;
    AQ_TRY(AQ_NEW(1, &hash));
    hash->context = EVP_MD_CTX_new();
    if (!hash->context || EVP_DigestInit_ex(hash->context, EVP_sha256(), NULL) != 1) {
        aq_hash_close(hash);
        return aq_fail(AQ_NOMEM, AREA, "no memory for SHA-256");
    }
    *out = hash;
    return AQ_OK;
}

void aq_hash_close(struct aq_hash *hash)
{
    if (!hash) return;
    EVP_MD_CTX_free(hash->context);
    aq_free(hash);
}

void aq_hash_begin(struct aq_hash *hash)
{
    hash->wrong = EVP_DigestInit_ex(hash->context, EVP_sha256(), NULL) != 1;
}

void aq_hash_add(struct aq_hash *hash, const void *bytes, size_t count)
{
    if (EVP_DigestUpdate(hash->context, bytes, count) != 1) hash->wrong = true;
}

void aq_hash_end(struct aq_hash *hash, char text[AQ_HASH_TEXT_BYTES])
{
    uint8_t bytes[EVP_MAX_MD_SIZE];
    unsigned count = 0;
    const bool good = EVP_DigestFinal_ex(hash->context, bytes, &count) == 1 && !hash->wrong;
    aq_hex(bytes, good ? (AQ_HASH_TEXT_BYTES - 1) / 2 : 0, text);
}

bool aq_hash_is(const char *text)
{
    return aq_is_hex(text, AQ_HASH_TEXT_BYTES - 1);
}

/* ---- seals ---- */

struct aq_seal {
    EVP_CIPHER_CTX *context;
    EVP_KDF *kdf;
    bool seals; /* false: opens */
    uint8_t head[AQ_SEAL_HEAD_BYTES];
    uint64_t file_bytes, done; /* of the file        */
    uint64_t number;           /* of the next chunk  */
};

static void put(uint8_t *at, uint64_t value, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        at[i] = (uint8_t)(value >> (8 * i));
}

static uint64_t take(const uint8_t *at, unsigned bytes)
{
    uint64_t value = 0;
    for (unsigned i = 0; i < bytes; i++)
        value |= (uint64_t)at[i] << (8 * i);
    return value;
}

enum aq_status aq_seal_new(struct aq_seal **out)
{
    struct aq_seal *seal;
    AQ_TRY(AQ_NEW(1, &seal));
    seal->context = EVP_CIPHER_CTX_new();
    seal->kdf = EVP_KDF_fetch(NULL, "HKDF", NULL);
    if (!seal->context || !seal->kdf) {
        aq_seal_close(seal);
        return aq_fail(AQ_NOMEM, AREA, "no memory to seal checkpoints, or this OpenSSL has no HKDF");
    }
    *out = seal;
    return AQ_OK;
}

void aq_seal_close(struct aq_seal *seal)
{
    if (!seal) return;
    EVP_CIPHER_CTX_free(seal->context); /* clears its key */
    EVP_KDF_free(seal->kdf);
    aq_free(seal);
}

uint64_t aq_seal_bytes(uint64_t file_bytes)
{
    const uint64_t chunks = (file_bytes + AQ_SEAL_CHUNK_BYTES - 1) / AQ_SEAL_CHUNK_BYTES;
    return AQ_SEAL_HEAD_BYTES + file_bytes + chunks * AQ_SEAL_TAG_BYTES;
}

bool aq_seal_is(const uint8_t head[AQ_SEAL_HEAD_BYTES])
{
    return memcmp(head, MAGIC, MAGIC_BYTES) == 0;
}

bool aq_seal_is_of(const uint8_t head[AQ_SEAL_HEAD_BYTES], uint64_t resume_hash)
{
    return aq_seal_is(head) && take(head + 16, 8) == resume_hash;
}

static enum aq_status refused(const char *what)
{
    return aq_fail(AQ_IO, AREA, "OpenSSL does not %s", what);
}

/* HKDF-SHA256 of a key; salt_bytes may be 0. */
static bool derive(EVP_KDF *kdf, const uint8_t *key, const uint8_t *salt, size_t salt_bytes, const void *info,
                   size_t info_bytes, uint8_t out[AQ_SEAL_KEY_BYTES])
{
    char sha256[] = "SHA256";
    uint8_t copy[AQ_SEAL_KEY_BYTES];
    memcpy(copy, key, sizeof copy);
    const OSSL_PARAM parameters[] = {
        OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, sha256, 0),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, copy, sizeof copy),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, (void *)(uintptr_t)info, info_bytes),
        salt_bytes ? OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_SALT, (void *)(uintptr_t)salt, salt_bytes)
                   : OSSL_PARAM_construct_end(),
        OSSL_PARAM_construct_end()};
    EVP_KDF_CTX *context = EVP_KDF_CTX_new(kdf);
    const bool good = context && EVP_KDF_derive(context, out, AQ_SEAL_KEY_BYTES, parameters) == 1;
    EVP_KDF_CTX_free(context);
    OPENSSL_cleanse(copy, sizeof copy);
    return good;
}

enum aq_status aq_seal_key_derive(const uint8_t key[AQ_SEAL_KEY_BYTES], const char *about,
                                  uint8_t out[AQ_SEAL_KEY_BYTES])
{
    EVP_KDF *kdf = EVP_KDF_fetch(NULL, "HKDF", NULL);
    const bool good = kdf && derive(kdf, key, NULL, 0, about, strlen(about), out);
    EVP_KDF_free(kdf);
    return good ? AQ_OK : refused("derive a key");
}

/* The key of this file, and a context that has it. */
static enum aq_status file_key(struct aq_seal *seal, const uint8_t *key)
{
    uint8_t own[AQ_SEAL_KEY_BYTES];
    const bool derived = derive(seal->kdf, key, seal->head + ABOUT_BYTES, SALT_BYTES, seal->head, ABOUT_BYTES, own);
    const bool set = derived && EVP_CipherInit_ex(seal->context, EVP_aes_256_gcm(), NULL, own, NULL, seal->seals) == 1;
    OPENSSL_cleanse(own, sizeof own);
    seal->file_bytes = take(seal->head + 32, 8);
    seal->done = seal->number = 0;
    return set ? AQ_OK : refused("take the key of a checkpoint");
}

enum aq_status aq_seal_begin(struct aq_seal *seal, const uint8_t key[AQ_SEAL_KEY_BYTES],
                             const struct aq_seal_about *about, uint8_t head[AQ_SEAL_HEAD_BYTES])
{
    AQ_ASSERT(about->file_bytes > 0);
    memcpy(seal->head, MAGIC, MAGIC_BYTES);
    put(seal->head + 16, about->resume_hash, 8);
    put(seal->head + 24, about->step, 8);
    put(seal->head + 32, about->file_bytes, 8);
    put(seal->head + 40, about->rank, 4);
    put(seal->head + 44, AQ_SEAL_CHUNK_BYTES, 4);
    if (RAND_bytes(seal->head + ABOUT_BYTES, SALT_BYTES) != 1) return refused("give random numbers");
    seal->seals = true;
    AQ_TRY(file_key(seal, key));
    memcpy(head, seal->head, AQ_SEAL_HEAD_BYTES);
    return AQ_OK;
}

enum aq_status aq_seal_open(struct aq_seal *seal, const uint8_t key[AQ_SEAL_KEY_BYTES],
                            const struct aq_seal_about *about, const uint8_t head[AQ_SEAL_HEAD_BYTES])
{
    const uint64_t resume_hash = take(head + 16, 8), step = take(head + 24, 8), bytes = take(head + 32, 8);
    const uint32_t rank = (uint32_t)take(head + 40, 4), chunk = (uint32_t)take(head + 44, 4);
    if (!aq_seal_is(head) || resume_hash != about->resume_hash || step != about->step || rank != about->rank)
        return aq_fail(
            AQ_CORRUPT, AREA,
            "the copy is of stage %u, step %llu, plan %016llx; expected is stage %u, step %llu, plan %016llx", rank,
            (unsigned long long)step, (unsigned long long)resume_hash, about->rank, (unsigned long long)about->step,
            (unsigned long long)about->resume_hash);
    if (bytes == 0 || bytes > about->file_bytes || chunk != AQ_SEAL_CHUNK_BYTES)
        return aq_fail(AQ_CORRUPT, AREA, "the copy is of %llu bytes in chunks of %u; at most %llu in chunks of %d",
                       (unsigned long long)bytes, chunk, (unsigned long long)about->file_bytes, AQ_SEAL_CHUNK_BYTES);
    memcpy(seal->head, head, AQ_SEAL_HEAD_BYTES);
    seal->seals = false;
    return file_key(seal, key);
}

uint32_t aq_seal_next(const struct aq_seal *seal)
{
    const uint64_t left = seal->file_bytes - seal->done;
    return left < AQ_SEAL_CHUNK_BYTES ? (uint32_t)left : AQ_SEAL_CHUNK_BYTES;
}

/* The nonce of the next chunk, and the head as what is authenticated with it. */
static bool chunk_begin(struct aq_seal *seal)
{
    uint8_t nonce[NONCE_BYTES] = {0};
    int count;
    put(nonce, seal->number, 8);
    nonce[8] = seal->done + aq_seal_next(seal) == seal->file_bytes;
    return EVP_CipherInit_ex(seal->context, NULL, NULL, NULL, nonce, seal->seals) == 1 &&
           EVP_CipherUpdate(seal->context, NULL, &count, seal->head, AQ_SEAL_HEAD_BYTES) == 1;
}

static void chunk_end(struct aq_seal *seal)
{
    seal->done += aq_seal_next(seal);
    seal->number++;
}

enum aq_status aq_seal_chunk(struct aq_seal *seal, const uint8_t *plain, uint8_t *box)
{
    const uint32_t bytes = aq_seal_next(seal);
    int count, more;
    AQ_ASSERT(seal->seals && bytes > 0);
    if (!chunk_begin(seal) || EVP_CipherUpdate(seal->context, box, &count, plain, (int)bytes) != 1 ||
        EVP_CipherFinal_ex(seal->context, box + count, &more) != 1 ||
        EVP_CIPHER_CTX_ctrl(seal->context, EVP_CTRL_AEAD_GET_TAG, AQ_SEAL_TAG_BYTES, box + bytes) != 1)
        return refused("seal a chunk");
    chunk_end(seal);
    return AQ_OK;
}

enum aq_status aq_seal_unchunk(struct aq_seal *seal, const uint8_t *box, uint8_t *plain)
{
    const uint32_t bytes = aq_seal_next(seal);
    uint8_t tag[AQ_SEAL_TAG_BYTES];
    int count, more;
    AQ_ASSERT(!seal->seals && bytes > 0);
    memcpy(tag, box + bytes, sizeof tag);
    if (!chunk_begin(seal) || EVP_CipherUpdate(seal->context, plain, &count, box, (int)bytes) != 1 ||
        EVP_CIPHER_CTX_ctrl(seal->context, EVP_CTRL_AEAD_SET_TAG, AQ_SEAL_TAG_BYTES, tag) != 1 ||
        EVP_CipherFinal_ex(seal->context, plain + count, &more) != 1)
        return aq_fail(
            AQ_CORRUPT, AREA,
            "chunk %llu of the copy of step %llu is not what stage %llu sealed: forged, damaged, or sealed with "
            "another checkpoint.mirror_key",
            (unsigned long long)seal->number, (unsigned long long)take(seal->head + 24, 8),
            (unsigned long long)take(seal->head + 40, 4));
    chunk_end(seal);
    return AQ_OK;
}

/* ---- files of keys ---- */

static enum aq_status key_write(int fd, const char *path)
{
    uint8_t key[AQ_SEAL_KEY_BYTES];
    enum aq_status status = AQ_OK;
    if (RAND_priv_bytes(key, sizeof key) != 1)
        status = refused("give random numbers");
    else if (!aq_write_all(fd, key, sizeof key) || fsync(fd) != 0)
        status = aq_fail_errno("keys", "cannot write %s", path);
    OPENSSL_cleanse(key, sizeof key);
    return status;
}

enum aq_status aq_seal_key_make(const char *path)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd == -1 && errno == EEXIST)
        return aq_fail(
            AQ_REFUSED, "keys",
            "%s exists and is not replaced, because data that it sealed can be read only with it: name another file",
            path);
    if (fd == -1) return aq_fail_errno("keys", "cannot make %s", path);
    enum aq_status status = key_write(fd, path);
    if (close(fd) != 0 && status == AQ_OK) status = aq_fail_errno("keys", "cannot close %s", path);
    if (status == AQ_OK) status = aq_run_sync_folder_of(path);
    if (status != AQ_OK) (void)unlink(path);
    return status;
}

static enum aq_status key_check(const char *path, const struct stat *info)
{
    if (info->st_uid != geteuid() && info->st_uid != 0)
        return aq_fail(AQ_REFUSED, "keys", "%s belongs to another user: keys must be your own files", path);
    if (info->st_mode & 077)
        return aq_fail(AQ_REFUSED, "keys",
                       "%s holds a private key and may be read or written by others (mode %03o): chmod 600 %s", path,
                       (unsigned)(info->st_mode & 0777), path);
    if (info->st_size != AQ_SEAL_KEY_BYTES)
        return aq_fail(AQ_CORRUPT, "keys", "%s has %lld bytes, a key %d: aqpipe keys mirror makes one", path,
                       (long long)info->st_size, AQ_SEAL_KEY_BYTES);
    return AQ_OK;
}

enum aq_status aq_seal_key_load(const char *path, uint8_t key[AQ_SEAL_KEY_BYTES])
{
    struct stat info;
    int fd;
    enum aq_status status = aq_file_open(NULL, path, AQ_FILE_READ, &fd);
    if (status == AQ_NOTFOUND)
        return aq_fail(AQ_NOTFOUND, "keys", "there is no %s (checkpoint.mirror_key; aqpipe keys mirror makes it)",
                       path);
    AQ_TRY(status);
    status = fstat(fd, &info) == 0 ? key_check(path, &info) : aq_fail_errno("keys", "cannot look at %s", path);
    if (status == AQ_OK && aq_read_all(fd, key, AQ_SEAL_KEY_BYTES) != AQ_SEAL_KEY_BYTES)
        status = aq_fail_errno("keys", "cannot read %s", path);
    close(fd);
    return status;
}
