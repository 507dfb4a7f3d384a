/* vault.c -- see the header; the bytes are docs/FORMAT.md, "Sealed caches". */
#include "vault.h"

#include <assert.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <openssl/rand.h>
#include <string.h>

enum {
    NONCE_BYTES = 12,
    TAG_BYTES = 16,
    CELL_KEY_BYTES = 32,
    MASK_KEY_BYTES = 32,
    CHECK_BYTES = 8,
    LABEL_BYTES = 16,
    INFO_BYTES = LABEL_BYTES + 8,
    ABOUT_BYTES = AQ_RECORD_KEY_BYTES + 8 + 4 + 4 + 8,
    MASKED_BYTES = AQ_RECORD_KEY_BYTES + 16
};
static_assert((int)NONCE_BYTES + (int)TAG_BYTES == (int)AQ_RECORD_SEAL_BYTES, "nothing else is behind a message");

static const char label[LABEL_BYTES] = "aqpipe cache 1";

struct aq_vault {
    EVP_CIPHER_CTX *seals, *opens, *masks;
    uint64_t job_digest, check;
};

static void put(uint8_t *at, uint64_t value, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        at[i] = (uint8_t)(value >> (8 * i));
}

static enum aq_status refused(const char *what)
{
    return aq_fail(AQ_IO, "cache", "OpenSSL does not %s", what);
}

enum aq_status aq_vault_salt(uint8_t out[AQ_RECORD_SALT_BYTES])
{
    return RAND_bytes(out, AQ_RECORD_SALT_BYTES) == 1 ? AQ_OK : refused("give random numbers");
}

static bool derive(const uint8_t *key, const uint8_t *salt, uint64_t job_digest, uint8_t *out, size_t bytes)
{
    uint8_t info[INFO_BYTES], secret[AQ_CACHE_KEY_BYTES], salted[AQ_RECORD_SALT_BYTES];
    char sha256[] = "SHA256";
    memcpy(info, label, sizeof label);
    put(info + LABEL_BYTES, job_digest, 8);
    memcpy(secret, key, sizeof secret);
    memcpy(salted, salt, sizeof salted);
    const OSSL_PARAM parameters[] = {OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, sha256, 0),
                                     OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, secret, sizeof secret),
                                     OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_SALT, salted, sizeof salted),
                                     OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, info, sizeof info),
                                     OSSL_PARAM_construct_end()};
    EVP_KDF *kdf = EVP_KDF_fetch(NULL, "HKDF", NULL);
    EVP_KDF_CTX *context = kdf ? EVP_KDF_CTX_new(kdf) : NULL;
    const bool good = context && EVP_KDF_derive(context, out, bytes, parameters) == 1;
    EVP_KDF_CTX_free(context);
    EVP_KDF_free(kdf);
    OPENSSL_cleanse(secret, sizeof secret);
    return good;
}

enum aq_status aq_vault_open(const uint8_t key[AQ_CACHE_KEY_BYTES], const uint8_t salt[AQ_RECORD_SALT_BYTES],
                             uint64_t job_digest, struct aq_vault **out)
{
    uint8_t keys[CELL_KEY_BYTES + MASK_KEY_BYTES + CHECK_BYTES];
    struct aq_vault *vault;
    AQ_TRY(AQ_NEW(1, &vault));
    vault->job_digest = job_digest;
    vault->seals = EVP_CIPHER_CTX_new();
    vault->opens = EVP_CIPHER_CTX_new();
    vault->masks = EVP_CIPHER_CTX_new();
    const bool good = vault->seals && vault->opens && vault->masks &&
                      derive(key, salt, job_digest, keys, sizeof keys) &&
                      EVP_EncryptInit_ex(vault->seals, EVP_aes_256_gcm(), NULL, keys, NULL) == 1 &&
                      EVP_DecryptInit_ex(vault->opens, EVP_aes_256_gcm(), NULL, keys, NULL) == 1 &&
                      EVP_EncryptInit_ex(vault->masks, EVP_aes_256_cbc(), NULL, keys + CELL_KEY_BYTES, NULL) == 1 &&
                      EVP_CIPHER_CTX_set_padding(vault->masks, 0) == 1;
    if (good) memcpy(&vault->check, keys + CELL_KEY_BYTES + MASK_KEY_BYTES, sizeof vault->check);
    OPENSSL_cleanse(keys, sizeof keys);
    if (!good) {
        aq_vault_close(vault);
        return refused("take the key of a cache");
    }
    *out = vault;
    return AQ_OK;
}

void aq_vault_close(struct aq_vault *vault)
{
    if (!vault) return;
    EVP_CIPHER_CTX_free(vault->seals); /* clears its key */
    EVP_CIPHER_CTX_free(vault->opens);
    EVP_CIPHER_CTX_free(vault->masks);
    aq_free(vault);
}

uint64_t aq_vault_check(const struct aq_vault *vault)
{
    return vault->check;
}

static void about_write(const struct aq_vault *vault, const struct aq_vault_about *about, uint8_t out[ABOUT_BYTES])
{
    aq_record_key(&about->key, out);
    put(out + 16, about->version, 8);
    put(out + 24, about->bytes, 4);
    put(out + 28, about->cell, 4);
    put(out + 32, vault->job_digest, 8);
}

enum aq_status aq_vault_seal(struct aq_vault *vault, const struct aq_vault_about *about, const uint8_t *message,
                             uint8_t *box)
{
    uint8_t named[ABOUT_BYTES], *nonce = box + about->bytes, *tag = nonce + NONCE_BYTES;
    int count, more;
    about_write(vault, about, named);
    if (RAND_bytes(nonce, NONCE_BYTES) != 1) return refused("give random numbers");
    if (EVP_EncryptInit_ex(vault->seals, NULL, NULL, NULL, nonce) != 1 ||
        EVP_EncryptUpdate(vault->seals, NULL, &count, named, sizeof named) != 1 ||
        EVP_EncryptUpdate(vault->seals, box, &count, message, (int)about->bytes) != 1 ||
        EVP_EncryptFinal_ex(vault->seals, tag, &more) != 1 || more != 0 ||
        EVP_CIPHER_CTX_ctrl(vault->seals, EVP_CTRL_AEAD_GET_TAG, TAG_BYTES, tag) != 1)
        return refused("seal a message");
    return AQ_OK;
}

enum aq_status aq_vault_unseal(struct aq_vault *vault, const struct aq_vault_about *about, uint8_t *box)
{
    uint8_t named[ABOUT_BYTES], none[EVP_MAX_BLOCK_LENGTH];
    uint8_t *nonce = box + about->bytes, *tag = nonce + NONCE_BYTES;
    int count, more;
    about_write(vault, about, named);
    if (EVP_DecryptInit_ex(vault->opens, NULL, NULL, NULL, nonce) != 1 ||
        EVP_DecryptUpdate(vault->opens, NULL, &count, named, sizeof named) != 1 ||
        EVP_DecryptUpdate(vault->opens, box, &count, box, (int)about->bytes) != 1 ||
        EVP_CIPHER_CTX_ctrl(vault->opens, EVP_CTRL_AEAD_SET_TAG, TAG_BYTES, tag) != 1 ||
        EVP_DecryptFinal_ex(vault->opens, none, &more) != 1)
        return AQ_CORRUPT;
    return AQ_OK;
}

enum aq_status aq_vault_mask(struct aq_vault *vault, const struct aq_cache_key *key, uint64_t version, uint64_t *out)
{
    static const uint8_t first[16];
    uint8_t bytes[MASKED_BYTES] = {0}, masked[MASKED_BYTES];
    int count;
    aq_record_key(key, bytes);
    put(bytes + AQ_RECORD_KEY_BYTES, version, 8);
    if (EVP_EncryptInit_ex(vault->masks, NULL, NULL, NULL, first) != 1 ||
        EVP_EncryptUpdate(vault->masks, masked, &count, bytes, sizeof bytes) != 1 || count != MASKED_BYTES)
        return refused("mask a digest");
    memcpy(out, masked + 16, sizeof *out);
    return AQ_OK;
}
