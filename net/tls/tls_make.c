/*
 * tls_make.c -- making a job's authority and the certificates that it signs: EC P-256, X.509 version 3.
 *
 * A certificate holds what tls_name.c reads: one URI, and what its holder may be in TLS: a stage both client and
 * server, a launcher a client (the acceptor of a split-server shows it as a server's), a daemon a server, a site a
 * client. Files are written aside and renamed, private ones with mode 600 from their first byte on.
 */
#include <errno.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tls_private.h"

static const char *const AREA = "keys";

static enum aq_status failed(const char *what)
{
    return aq_fail(AQ_TLSERR, AREA, "cannot make %s: %s", what, aq_tls_reason());
}

static bool extend(X509 *certificate, X509 *issuer, int nid, const char *value)
{
    X509V3_CTX context;
    X509V3_set_ctx_nodb(&context);
    X509V3_set_ctx(&context, issuer, certificate, NULL, NULL, 0);
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, &context, nid, value);
    const bool added = extension && X509_add_ext(certificate, extension, -1) == 1;
    X509_EXTENSION_free(extension);
    return added;
}

static bool set_serial(X509 *certificate)
{
    unsigned char bytes[16];
    if (RAND_bytes(bytes, sizeof bytes) != 1) return false;
    bytes[0] = (unsigned char)((bytes[0] & 0x7f) | 0x40); /* positive, and of full length */
    BIGNUM *number = BN_bin2bn(bytes, sizeof bytes, NULL);
    const bool set = number && BN_to_ASN1_INTEGER(number, X509_get_serialNumber(certificate));
    BN_free(number);
    return set;
}

static bool set_subject(X509 *certificate, const struct aq_tls_name *name)
{
    char common[64]; /* X.509 has no longer ones: a long name of a host is cut */
    static const char *const roles[] = {"authority", "stage", "launcher", "daemon", "site"};
    X509_NAME *subject = X509_get_subject_name(certificate);
    if (name->role == AQ_TLS_STAGE)
        snprintf(common, sizeof common, "stage %u", name->stage);
    else if (name->role == AQ_TLS_DAEMON)
        snprintf(common, sizeof common, "daemon %.56s", name->host);
    else if (name->role == AQ_TLS_SITE)
        snprintf(common, sizeof common, "site %.56s", name->host);
    else
        snprintf(common, sizeof common, "%s", roles[name->role]);
    return X509_NAME_add_entry_by_txt(subject, "O", MBSTRING_ASC, (const unsigned char *)name->job, -1, -1, 0) == 1 &&
           X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, (const unsigned char *)common, -1, -1, 0) == 1;
}

/* issuer NULL: it signs itself. */
static enum aq_status certify(const struct aq_tls_name *name, EVP_PKEY *key, X509 *issuer, EVP_PKEY *issuer_key,
                              const int64_t span[2], X509 **out)
{
    static const char *const uses[] = {NULL, "clientAuth,serverAuth", "clientAuth,serverAuth", "serverAuth",
                                       "clientAuth"};
    char uri[AQ_TLS_URI_BYTES], alternative[AQ_TLS_URI_BYTES + 8];
    const bool authority = name->role == AQ_TLS_AUTHORITY;
    X509 *made = X509_new();
    if (!made) return failed("a certificate");
    snprintf(alternative, sizeof alternative, "URI:%s", aq_tls_uri(name, uri));
    X509 *by = issuer ? issuer : made;
    const bool good =
        X509_set_version(made, X509_VERSION_3) == 1 && set_serial(made) && set_subject(made, name) &&
        X509_set_issuer_name(made, X509_get_subject_name(by)) == 1 &&
        ASN1_TIME_set(X509_getm_notBefore(made), (time_t)span[0]) &&
        ASN1_TIME_set(X509_getm_notAfter(made), (time_t)span[1]) && X509_set_pubkey(made, key) == 1 &&
        extend(made, by, NID_basic_constraints, authority ? "critical,CA:TRUE,pathlen:0" : "critical,CA:FALSE") &&
        extend(made, by, NID_key_usage, authority ? "critical,keyCertSign,cRLSign" : "critical,digitalSignature") &&
        extend(made, by, NID_subject_key_identifier, "hash") &&
        extend(made, by, NID_authority_key_identifier, "keyid:always") &&
        extend(made, by, NID_subject_alt_name, alternative) &&
        (authority || extend(made, by, NID_ext_key_usage, uses[name->role])) &&
        X509_sign(made, issuer_key, EVP_sha256()) > 0;
    if (!good) {
        X509_free(made);
        return failed("a certificate");
    }
    *out = made;
    return AQ_OK;
}

/* ---- files ---- */

enum aq_status aq_tls_save(const char *folder, const char *name, const char *bytes, size_t count, bool secret)
{
    char path[AQ_TLS_PATH_BYTES];
    AQ_TRY(aq_tls_path(folder, name, path));
    return aq_file_replace(NULL, path, secret ? 0600 : 0644, bytes, count);
}

/* A certificate, a private key, or both, into folder/name. */
static enum aq_status save(const char *folder, const char *name, X509 *certificate, EVP_PKEY *key)
{
    char path[AQ_TLS_PATH_BYTES], *bytes;
    AQ_TRY(aq_tls_path(folder, name, path));
    BIO *memory = BIO_new(BIO_s_secmem());
    if (!memory || (certificate && PEM_write_bio_X509(memory, certificate) != 1) ||
        (key && PEM_write_bio_PKCS8PrivateKey(memory, key, NULL, NULL, 0, NULL, NULL) != 1)) {
        BIO_free(memory);
        return failed(path);
    }
    const long count = BIO_get_mem_data(memory, &bytes);
    const enum aq_status status = aq_tls_save(folder, name, bytes, (size_t)count, key != NULL);
    BIO_free(memory);
    return status;
}

static bool exists(const char *folder, const char *name)
{
    char path[AQ_TLS_PATH_BYTES];
    struct stat info;
    return aq_tls_path(folder, name, path) == AQ_OK && lstat(path, &info) == 0;
}

enum aq_status aq_tls_make_authority(const char *folder, const char *job, int64_t from, int64_t until)
{
    struct aq_tls_name name = {.role = AQ_TLS_AUTHORITY};
    const int64_t span[2] = {from, until};
    X509 *certificate = NULL;
    if (!aq_tls_job_good(job))
        return aq_fail(AQ_INVAL, AREA, "'%.80s' is not a name for certificates: use 1 to 64 of A-Z a-z 0-9 . _ -", job);
    snprintf(name.job, sizeof name.job, "%s", job);
    if (mkdir(folder, 0700) != 0 && errno != EEXIST) return aq_fail_errno(AREA, "cannot make the folder %s", folder);
    AQ_TRY(aq_tls_folder_check(folder));
    if (exists(folder, "authority.pem") || exists(folder, "authority-key.pem"))
        return aq_fail(AQ_REFUSED, AREA,
                       "%s has an authority already: `aqpipe keys init --renew` and `aqpipe keys add-host` make more "
                       "of its certificates; a new authority needs another folder",
                       folder);
    EVP_PKEY *key = EVP_EC_gen("P-256");
    if (!key) return failed("a private key");
    enum aq_status status = certify(&name, key, NULL, key, span, &certificate);
    if (status == AQ_OK) status = save(folder, "authority-key.pem", NULL, key);
    if (status == AQ_OK) status = save(folder, "authority.pem", certificate, NULL);
    X509_free(certificate);
    EVP_PKEY_free(key);
    return status;
}

enum aq_status aq_tls_authority(const char *folder, struct aq_tls_name *name, X509 **certificate, EVP_PKEY **key)
{
    char path[AQ_TLS_PATH_BYTES];
    X509 *authority = NULL;
    AQ_TRY(aq_tls_folder_check(folder));
    AQ_TRY(aq_tls_path(folder, "authority-key.pem", path));
    AQ_TRY(aq_tls_load(path, NULL, key));
    enum aq_status status = aq_tls_path(folder, "authority.pem", path);
    if (status == AQ_OK) status = aq_tls_load(path, &authority, NULL);
    if (status == AQ_OK && (!aq_tls_name_of(authority, name) || name->role != AQ_TLS_AUTHORITY))
        status = aq_fail(AQ_CORRUPT, AREA, "%s is not the authority of a job", path);
    if (status == AQ_OK && X509_check_private_key(authority, *key) != 1)
        status =
            aq_fail(AQ_TLSERR, AREA,
                    "%s: the authority-key.pem next to it belongs to another authority: put the right one there", path);
    if (status == AQ_OK) {
        *certificate = authority;
        return AQ_OK;
    }
    X509_free(authority);
    EVP_PKEY_free(*key);
    *key = NULL;
    return status;
}

/* want: all but the job. */
static enum aq_status make(const char *folder, const struct aq_tls_name *want, const int64_t span[2])
{
    char file[AQ_TLS_FILE_BYTES];
    struct aq_tls_name name = {0}, of;
    X509 *authority = NULL, *certificate = NULL;
    EVP_PKEY *authority_key = NULL, *key = NULL;
    AQ_TRY(aq_tls_authority(folder, &of, &authority, &authority_key));
    name = *want;
    memcpy(name.job, of.job, sizeof name.job);
    key = EVP_EC_gen("P-256");
    enum aq_status status =
        key ? certify(&name, key, authority, authority_key, span, &certificate) : failed("a private key");
    if (status == AQ_OK)
        status = aq_tls_issued(folder, certificate, &name); /* first: what is not known cannot be revoked */
    if (status == AQ_OK) status = save(folder, aq_tls_file(&name, file), certificate, key);
    X509_free(certificate);
    EVP_PKEY_free(key);
    EVP_PKEY_free(authority_key);
    X509_free(authority);
    return status;
}

enum aq_status aq_tls_make(const char *folder, enum aq_tls_role role, uint32_t stage, int64_t from, int64_t until)
{
    const struct aq_tls_name name = {.role = role, .stage = role == AQ_TLS_STAGE ? stage : 0};
    const int64_t span[2] = {from, until};
    AQ_ASSERT(role == AQ_TLS_STAGE || role == AQ_TLS_LAUNCHER);
    return make(folder, &name, span);
}

static enum aq_status make_named(const char *folder, enum aq_tls_role role, const char *host, const int64_t span[2])
{
    struct aq_tls_name name = {.role = role};
    if (!aq_tls_host_good(host))
        return aq_fail(AQ_INVAL, AREA,
                       "'%.80s' is not a %s name for certificates: use 1 to 63 of a-z 0-9 . _ - :", host,
                       role == AQ_TLS_SITE ? "site" : "host");
    memcpy(name.host, host, strlen(host));
    return make(folder, &name, span);
}

enum aq_status aq_tls_make_daemon(const char *folder, const char *host, int64_t from, int64_t until)
{
    return make_named(folder, AQ_TLS_DAEMON, host, (const int64_t[2]){from, until});
}

enum aq_status aq_tls_make_site(const char *folder, const char *site, int64_t from, int64_t until)
{
    return make_named(folder, AQ_TLS_SITE, site, (const int64_t[2]){from, until});
}
