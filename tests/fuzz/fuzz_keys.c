/*
 * fuzz_keys.c -- any bytes as what proves who somebody is: files of certificates and keys, names in certificates, token
 * files, lists of revoked certificates (as they come, and signed by the authority), addresses. The first byte says
 * which.
 */
#include <string.h>
#include <time.h>

#include <openssl/evp.h>
#include <openssl/pem.h>

#include "control_token.h"
#include "fuzz.h"
#include "net/endpoint.h"
#include "net/tls.h"
#include "tls_private.h"

enum { BYTES_MAX = 1 << 16, STAGE = 1 };
enum { AS_PEM, AS_DER, AS_EDITS, AS_NAME, AS_TOKEN, AS_LIST, AS_SIGNED_LIST, AS_ISSUED, AS_ADDRESS, KINDS };

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

/* revoked.pem is there: the list as `keys show` reads it, and as whoever opens an identity does. */
static bool read_list_file(void)
{
    static struct aq_tls_list list;
    struct aq_tls *tls;
    fuzz_write("keys/stage-1.pem", own, own_bytes);
    const enum aq_status told = aq_tls_list_read(fuzz_path("keys"), &list);
    if (told == AQ_OK) {
        AQ_ASSERT(list.number > 0 && list.count <= AQ_TLS_LIST_MAX);
        for (uint32_t i = 0; i < list.count; i++)
            AQ_ASSERT(memchr(list.of[i].serial, 0, AQ_TLS_SERIAL_BYTES) && memchr(list.of[i].uri, 0, AQ_TLS_URI_BYTES));
    }
    const enum aq_status opened = aq_tls_open(fuzz_path("keys"), AQ_TLS_STAGE, STAGE, &tls);
    AQ_ASSERT(told == AQ_OK || opened != AQ_OK); /* a list that cannot be read lets nobody begin */
    if (opened == AQ_OK) aq_tls_close(tls);
    AQ_ASSERT(remove(fuzz_path("keys/revoked.pem")) == 0);
    return told == AQ_OK;
}

static bool read_as_list(const uint8_t *bytes, size_t count)
{
    fuzz_write("keys/revoked.pem", bytes, count);
    return read_list_file();
}

/* The bytes as a list in DER, with the authority's name and signature, so that what is in it is believed. */
static bool read_as_signed_list(const uint8_t *bytes, size_t count)
{
    static uint8_t pem[4 * BYTES_MAX];
    struct aq_tls_name name;
    X509 *authority = NULL;
    EVP_PKEY *key = NULL;
    X509_CRL *list = d2i_X509_CRL(NULL, &bytes, (long)count);
    BIO *memory = BIO_new(BIO_s_mem());
    AQ_ASSERT(memory && aq_tls_authority(fuzz_path("keys"), &name, &authority, &key) == AQ_OK);
    int length = 0;
    if (list && X509_CRL_set_issuer_name(list, X509_get_subject_name(authority)) == 1 &&
        X509_CRL_sign(list, key, EVP_sha256()) > 0 && PEM_write_bio_X509_CRL(memory, list) == 1)
        length = BIO_read(memory, pem, sizeof pem);
    BIO_free(memory);
    X509_CRL_free(list);
    X509_free(authority);
    EVP_PKEY_free(key);
    return length > 0 && read_as_list(pem, (size_t)length);
}

/* What was written down of certificates; a list is made by it. */
static bool read_as_issued(const uint8_t *bytes, size_t count)
{
    const struct aq_tls_name name = {.role = AQ_TLS_STAGE, .stage = STAGE};
    uint32_t added = 0;
    fuzz_write("keys/stage-1.pem", own, own_bytes);
    fuzz_write("keys/issued", bytes, count);
    const bool made = aq_tls_revoke(fuzz_path("keys"), &name, NULL, &added) == AQ_OK;
    AQ_ASSERT(!made || added > 0);
    if (made) AQ_ASSERT(read_list_file());
    AQ_ASSERT(remove(fuzz_path("keys/issued")) == 0);
    return made;
}

static bool read_as_address(const uint8_t *bytes, size_t count)
{
    char text[1024], again[AQ_ENDPOINT_TEXT_BYTES], name[AQ_ENDPOINT_NAME_BYTES];
    struct aq_endpoint endpoint, same;
    const char *why = NULL;
    if (count >= sizeof text) return false;
    memcpy(text, bytes, count);
    text[count] = 0;
    (void)aq_endpoint_parse_host(text, &endpoint, &why);
    if (aq_endpoint_parse(text, &endpoint, &why) != AQ_OK) {
        AQ_ASSERT(why);
        return false;
    }
    AQ_ASSERT(aq_endpoint_parse(aq_endpoint_text(&endpoint, endpoint.port, again), &same, &why) == AQ_OK);
    AQ_ASSERT(strcmp(same.host, endpoint.host) == 0 && same.port == endpoint.port && same.v6 == endpoint.v6);
    AQ_ASSERT(aq_endpoint_loopback(&same) == aq_endpoint_loopback(&endpoint));
    if (aq_endpoint_identity(&endpoint, name)) AQ_ASSERT(aq_tls_host_good(name));
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
    case AS_TOKEN:
        fuzz_told(read_as_token(bytes, count));
        break;
    case AS_LIST:
        fuzz_told(read_as_list(bytes, count));
        break;
    case AS_SIGNED_LIST:
        fuzz_told(read_as_signed_list(bytes, count));
        break;
    case AS_ISSUED:
        fuzz_told(read_as_issued(bytes, count));
        break;
    default:
        fuzz_told(read_as_address(bytes, count));
        break;
    }
    AQ_ASSERT(aq_memory_used() == 0);
    return 0;
}
