/*
 * fuzz_keys.c -- any bytes as what proves who somebody is: files of certificates and keys, names in certificates, token
 * files. The first byte says which.
 */
#include <string.h>
#include <time.h>

#include <openssl/evp.h>
#include <openssl/pem.h>

#include "control_token.h"
#include "fuzz.h"
#include "net/tls.h"
#include "tls_private.h"

enum { BYTES_MAX = 1 << 16, STAGE = 1 };
enum { AS_PEM, AS_DER, AS_EDITS, AS_NAME, AS_TOKEN, KINDS };

static uint8_t own[BYTES_MAX]; /* a good file of certificate and key */
static size_t own_bytes;

static void start(void)
{
    if (own_bytes > 0) return;
    const int64_t now = (int64_t)time(NULL);
    fuzz_quiet();
    fuzz_make_folder("keys");
    AQ_ASSERT(aq_tls_make_authority(fuzz_path("keys"), "fuzz", now - 3600, now + 86400) == AQ_OK);
    AQ_ASSERT(aq_tls_make(fuzz_path("keys"), AQ_TLS_STAGE, STAGE, now - 3600, now + 86400) == AQ_OK);
    FILE *file = fopen(fuzz_path("keys/stage-1.pem"), "rb");
    AQ_ASSERT(file);
    own_bytes = fread(own, 1, sizeof own, file);
    fclose(file);
}

static bool read_as_file(const uint8_t *bytes, size_t count)
{
    struct aq_tls_facts facts;
    struct aq_tls *tls;
    fuzz_write("keys/stage-1.pem", bytes, count);
    const enum aq_status told = aq_tls_describe(fuzz_path("keys/stage-1.pem"), &facts);
    if (told == AQ_OK) {
        AQ_ASSERT(memchr(facts.print, 0, sizeof facts.print) && memchr(facts.name.job, 0, sizeof facts.name.job));
        AQ_ASSERT(facts.name.role == AQ_TLS_AUTHORITY || aq_tls_job_good(facts.name.job));
    }
    (void)aq_tls_check_key(fuzz_path("keys/stage-1.pem"));
    const enum aq_status opened = aq_tls_open(fuzz_path("keys"), AQ_TLS_STAGE, STAGE, &tls);
    if (opened == AQ_OK) {
        AQ_ASSERT(aq_tls_name(tls)->role == AQ_TLS_STAGE && aq_tls_name(tls)->stage == STAGE);
        aq_tls_close(tls);
    }
    return told == AQ_OK;
}

/* The bytes as a certificate that has been put into PEM form, so that mutations hit the certificate and not base64. */
static bool read_as_der(const uint8_t *bytes, size_t count)
{
    static uint8_t pem[2 * BYTES_MAX];
    BIO *memory = BIO_new(BIO_s_mem());
    AQ_ASSERT(memory);
    const bool written = PEM_write_bio(memory, PEM_STRING_X509, "", bytes, (long)count) > 0; /* of nothing: not */
    const int length = written ? BIO_read(memory, pem, sizeof pem) : 0;
    BIO_free(memory);
    return length > 0 && read_as_file(pem, (size_t)length);
}

/* The good file with bytes set: triples of place (two bytes) and value. */
static bool read_edited(const uint8_t *bytes, size_t count)
{
    static uint8_t edited[BYTES_MAX];
    memcpy(edited, own, own_bytes);
    for (size_t i = 0; i + 3 <= count; i += 3)
        edited[(size_t)(bytes[i] << 8 | bytes[i + 1]) % own_bytes] = bytes[i + 2];
    return read_as_file(edited, own_bytes);
}

static bool read_as_name(const uint8_t *bytes, size_t count)
{
    struct aq_tls_name name;
    char again[AQ_TLS_URI_BYTES];
    if (!aq_tls_uri_read((const char *)bytes, count, &name)) return false;
    AQ_ASSERT(aq_tls_job_good(name.job) && strlen(aq_tls_uri(&name, again)) == count);
    AQ_ASSERT(memcmp(again, bytes, count) == 0);
    return true;
}

static bool read_as_token(const uint8_t *bytes, size_t count)
{
    static struct aq_token token;
    char proof[AQ_PROOF_CHARS + 1];
    fuzz_write("token", bytes, count);
    if (aq_token_load(fuzz_path("token"), &token) != AQ_OK) return false;
    AQ_ASSERT(token.bytes >= AQ_TOKEN_BYTES_MIN && token.bytes <= AQ_TOKEN_BYTES_MAX);
    AQ_ASSERT(!memchr(token.secret, '\n', token.bytes));
    AQ_ASSERT(aq_token_proof(&token, "client", "a", "b", proof) == AQ_OK && aq_token_proves(proof, proof));
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1 || size > BYTES_MAX) return 0;
    start();
    const uint8_t *bytes = data + 1;
    const size_t count = size - 1;
    switch (data[0] % KINDS) {
    case AS_PEM:
        fuzz_told(read_as_file(bytes, count));
        break;
    case AS_DER:
        fuzz_told(read_as_der(bytes, count));
        break;
    case AS_EDITS:
        fuzz_told(read_edited(bytes, count));
        break;
    case AS_NAME:
        fuzz_told(read_as_name(bytes, count));
        break;
    default:
        fuzz_told(read_as_token(bytes, count));
        break;
    }
    AQ_ASSERT(aq_memory_used() == 0);
    return 0;
}
