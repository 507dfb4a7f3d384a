/*
 * tls_name.c -- the names in certificates: aqpipe://JOB/stage/3, aqpipe://JOB/launcher, aqpipe://JOB/daemon/HOST,
 * aqpipe://JOB/site/NAME.
 *
 * Read to the letter: a name that could be written in two ways would be two names to some reader.
 */
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <string.h>

#include "tls_private.h"

static const char SCHEME[] = "aqpipe://";

bool aq_tls_job_good(const char *job)
{
    static const char GOOD[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    const size_t bytes = strlen(job);
    return bytes > 0 && bytes < AQ_TLS_JOB_BYTES && strspn(job, GOOD) == bytes;
}

bool aq_tls_host_good(const char *host)
{
    static const char GOOD[] = "abcdefghijklmnopqrstuvwxyz0123456789:._-";
    const size_t bytes = strlen(host);
    return bytes > 0 && bytes < AQ_TLS_HOST_BYTES && strspn(host, GOOD) == bytes && !strchr("._-", host[0]);
}

const char *aq_tls_uri(const struct aq_tls_name *name, char out[AQ_TLS_URI_BYTES])
{
    static const char *const roles[] = {"", "/stage/", "/launcher", "/daemon", "/site/"};
    char stage[AQ_TLS_HOST_BYTES + 8] = "";
    if (name->role == AQ_TLS_STAGE && name->stage == AQ_TLS_ANY_STAGE)
        snprintf(stage, sizeof stage, "(any)");
    else if (name->role == AQ_TLS_STAGE && name->either)
        snprintf(stage, sizeof stage, "%u or stage %u", name->stage, name->or_stage);
    else if (name->role == AQ_TLS_STAGE)
        snprintf(stage, sizeof stage, "%u", name->stage);
    else if (name->role == AQ_TLS_DAEMON && name->host[0])
        snprintf(stage, sizeof stage, "/%s", name->host);
    else if (name->role == AQ_TLS_SITE)
        snprintf(stage, sizeof stage, "%s", name->host[0] ? name->host : "(any)");
    snprintf(out, AQ_TLS_URI_BYTES, "%s%s%s%s", SCHEME, name->job, roles[name->role], stage);
    return out;
}

bool aq_tls_uri_read(const char *text, size_t bytes, struct aq_tls_name *out)
{
    char copy[AQ_TLS_URI_BYTES], again[AQ_TLS_URI_BYTES];
    struct aq_tls_name name = {0};
    if (bytes >= sizeof copy || memchr(text, 0, bytes)) return false;
    memcpy(copy, text, bytes);
    copy[bytes] = 0;
    if (strncmp(copy, SCHEME, sizeof SCHEME - 1) != 0) return false;
    char *job = copy + sizeof SCHEME - 1, *slash = strchr(job, '/');
    const size_t job_bytes = slash ? (size_t)(slash - job) : strlen(job);
    if (job_bytes >= sizeof name.job) return false;
    memcpy(name.job, job, job_bytes);
    if (!slash)
        name.role = AQ_TLS_AUTHORITY;
    else if (strcmp(slash, "/launcher") == 0)
        name.role = AQ_TLS_LAUNCHER;
    else if (strcmp(slash, "/daemon") == 0) /* of an older version */
        name.role = AQ_TLS_DAEMON;
    else if (strncmp(slash, "/daemon/", 8) == 0 && aq_tls_host_good(slash + 8))
        name.role = AQ_TLS_DAEMON;
    else if (strncmp(slash, "/site/", 6) == 0 && aq_tls_host_good(slash + 6))
        name.role = AQ_TLS_SITE;
    else if (strncmp(slash, "/stage/", 7) == 0 && strspn(slash + 7, "0123456789") == strlen(slash + 7) &&
             strlen(slash + 7) < 7 && sscanf(slash + 7, "%6u", &name.stage) == 1)
        name.role = AQ_TLS_STAGE;
    else
        return false;
    if (name.role == AQ_TLS_DAEMON && slash[7]) memcpy(name.host, slash + 8, strlen(slash + 8));
    if (name.role == AQ_TLS_SITE) memcpy(name.host, slash + 6, strlen(slash + 6));
    /* Written again it must be the same: no "stage/03". */
    if (!aq_tls_job_good(name.job) || strlen(aq_tls_uri(&name, again)) != bytes || memcmp(again, text, bytes) != 0)
        return false;
    *out = name;
    return true;
}

const char *aq_tls_file(const struct aq_tls_name *name, char out[AQ_TLS_FILE_BYTES])
{
    if (name->role == AQ_TLS_STAGE)
        snprintf(out, AQ_TLS_FILE_BYTES, "stage-%u.pem", name->stage);
    else if (name->role == AQ_TLS_DAEMON)
        snprintf(out, AQ_TLS_FILE_BYTES, "daemon%s%s.pem", name->host[0] ? "-" : "", name->host);
    else if (name->role == AQ_TLS_SITE)
        snprintf(out, AQ_TLS_FILE_BYTES, "site-%s.pem", name->host);
    else
        snprintf(out, AQ_TLS_FILE_BYTES, "%s.pem", name->role == AQ_TLS_LAUNCHER ? "launcher" : "authority");
    return out;
}

bool aq_tls_name_of(X509 *certificate, struct aq_tls_name *out)
{
    GENERAL_NAMES *names = X509_get_ext_d2i(certificate, NID_subject_alt_name, NULL, NULL);
    struct aq_tls_name name = {0};
    int found = 0;
    bool good = true;
    for (int i = 0; names && i < sk_GENERAL_NAME_num(names); i++) {
        const GENERAL_NAME *one = sk_GENERAL_NAME_value(names, i);
        if (one->type != GEN_URI) continue;
        const ASN1_IA5STRING *uri = one->d.uniformResourceIdentifier;
        found++;
        good &= aq_tls_uri_read((const char *)ASN1_STRING_get0_data(uri), (size_t)ASN1_STRING_length(uri), &name);
    }
    GENERAL_NAMES_free(names);
    if (found != 1 || !good) return false;
    *out = name;
    return true;
}

void aq_tls_print(X509 *certificate, char out[AQ_TLS_PRINT_BYTES])
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned bytes = 0;
    if (X509_digest(certificate, EVP_sha256(), digest, &bytes) != 1) bytes = 0;
    aq_hex(digest, bytes < 32 ? bytes : 32, out);
}

const char *aq_tls_reason(void)
{
    const char *text = ERR_reason_error_string(ERR_peek_error());
    ERR_clear_error();
    return text ? text : "OpenSSL gives no reason";
}
