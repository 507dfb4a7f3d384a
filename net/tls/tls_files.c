/*
 * tls_files.c -- folders of keys: who may read what, PEM in bounded memory, and the identity of this process.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "tls_private.h"

static const char *const AREA = "keys";

enum { CHAIN_BYTES_MAX = 16 << 10 }; /* what a peer may send of certificates; ours have 1 KB */

enum aq_status aq_tls_path(const char *folder, const char *name, char out[AQ_TLS_PATH_BYTES])
{
    if (snprintf(out, AQ_TLS_PATH_BYTES, "%s/%s", folder, name) >= AQ_TLS_PATH_BYTES)
        return aq_fail(AQ_INVAL, AREA, "the path of the folder of keys is too long");
    return AQ_OK;
}

static enum aq_status owner_check(const char *path, const struct stat *info)
{
    if (info->st_uid != geteuid() && info->st_uid != 0)
        return aq_fail(AQ_REFUSED, AREA, "%s belongs to another user: keys must be your own files", path);
    return AQ_OK;
}

enum aq_status aq_tls_folder_check(const char *folder)
{
    struct stat info;
    if (stat(folder, &info) != 0)
        return aq_fail_errno(AREA, "there is no folder of keys %s (aqpipe keys init makes one)", folder);
    if (!S_ISDIR(info.st_mode)) return aq_fail(AQ_INVAL, AREA, "%s is not a folder", folder);
    AQ_TRY(owner_check(folder, &info));
    if (info.st_mode & 022)
        return aq_fail(AQ_REFUSED, AREA, "%s may be written by others (mode %03o): chmod 700 %s", folder,
                       (unsigned)(info.st_mode & 0777), folder);
    return AQ_OK;
}

static enum aq_status mode_check(const char *path, const struct stat *info, bool secret)
{
    if (!S_ISREG(info->st_mode)) return aq_fail(AQ_INVAL, AREA, "%s is not a regular file", path);
    AQ_TRY(owner_check(path, info));
    if (secret && (info->st_mode & 077))
        return aq_fail(AQ_REFUSED, AREA,
                       "%s holds a private key and may be read or written by others (mode %03o): "
                       "chmod 600 %s",
                       path, (unsigned)(info->st_mode & 0777), path);
    if (info->st_mode & 022)
        return aq_fail(AQ_REFUSED, AREA, "%s may be written by others (mode %03o): chmod 644 %s", path,
                       (unsigned)(info->st_mode & 0777), path);
    return AQ_OK;
}

/* Which command makes the file of keys that is not there, by its name. Only a folder with the authority's key can. */
static enum aq_status absent(const char *path)
{
    char key[AQ_TLS_PATH_BYTES + 32], how[2 * AQ_TLS_PATH_BYTES];
    const int error = errno;
    const char *const slash = strrchr(path, '/'), *const name = slash ? slash + 1 : path;
    const int folder = slash ? (int)(slash - path) : 1;
    const char *const in = slash ? path : ".";
    const size_t bytes = strlen(name);
    const int inner = bytes > 4 && strcmp(name + bytes - 4, ".pem") == 0 ? (int)bytes - 4 : 0;
    snprintf(key, sizeof key, "%.*s/authority-key.pem", folder, in);
    const bool here = access(key, F_OK) == 0;
    const char *const where = here ? in : "DIR";
    const int shown = here ? folder : 3;
    if (inner > 6 && strncmp(name, "stage-", 6) == 0)
        snprintf(how, sizeof how, "init %.*s --renew --stages %lu", shown, where, strtoul(name + 6, NULL, 10) + 1);
    else if (inner > 7 && strncmp(name, "daemon-", 7) == 0)
        snprintf(how, sizeof how, "add-host %.*s %.*s", shown, where, inner - 7, name + 7);
    else if (inner > 5 && strncmp(name, "site-", 5) == 0)
        snprintf(how, sizeof how, "enroll %.*s --site %.*s --out FOLDER", shown, where, inner - 5, name + 5);
    else if (here || strcmp(name, "launcher.pem") == 0)
        snprintf(how, sizeof how, "init %.*s --renew --stages N", shown, where);
    else
        return aq_fail(AQ_NOTFOUND, AREA,
                       "there is no %s: copy it from the folder that has authority-key.pem, or make new keys (aqpipe "
                       "keys init %.*s --job NAME --stages N)",
                       path, folder, in);
    errno = error;
    return aq_fail_errno(AREA, "cannot open %s (aqpipe keys %s makes it%s)", path, how,
                         here ? "" : " in the folder that has authority-key.pem: copy it from there");
}

/* The file's bytes, at most AQ_TLS_PEM_BYTES_MAX, and whether there is a private key among them: then its mode must be
 * 600. */
static enum aq_status read_file(const char *path, char *bytes, int *count, bool *secret)
{
    struct stat info;
    enum aq_status status = AQ_OK;
    ssize_t got = 0;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd == -1 && errno == ENOENT) return absent(path);
    if (fd == -1) return aq_fail_errno(AREA, "cannot open %s", path);
    if (fstat(fd, &info) != 0)
        status = aq_fail_errno(AREA, "%s", path);
    else
        status = mode_check(path, &info, false);
    if (status == AQ_OK && (got = aq_read_all(fd, bytes, AQ_TLS_PEM_BYTES_MAX + 1)) < 0)
        status = aq_fail_errno(AREA, "cannot read %s", path);
    close(fd);
    AQ_TRY(status);
    if (got > AQ_TLS_PEM_BYTES_MAX) return aq_fail(AQ_CORRUPT, AREA, "%s is not a file of keys: it is too long", path);
    bytes[got] = 0;
    *secret = strlen(bytes) != (size_t)got || strstr(bytes, "PRIVATE KEY") != NULL;
    *count = (int)got;
    return mode_check(path, &info, *secret);
}

/* OpenSSL would ask the terminal for the pass phrase of an encrypted key. */
static int no_pass_phrase(char *buffer, int bytes, int writing, void *context)
{
    (void)buffer;
    (void)bytes;
    (void)writing;
    (void)context;
    return -1;
}

static enum aq_status parse(const char *path, const char *bytes, int count, X509 **certificate, EVP_PKEY **key)
{
    enum aq_status status = AQ_OK;
    X509 *first = NULL;
    BIO *memory = BIO_new_mem_buf(bytes, count);
    if (!memory) return aq_fail(AQ_NOMEM, AREA, "no memory to read %s", path);
    ERR_clear_error();
    first = certificate ? PEM_read_bio_X509(memory, NULL, no_pass_phrase, NULL) : NULL;
    if (certificate && !first)
        status = aq_fail(AQ_CORRUPT, AREA,
                         "%s holds no complete certificate in PEM form (%s): copy it again, or make a new one with "
                         "aqpipe keys init --renew",
                         path, aq_tls_reason());
    if (status == AQ_OK && key) {
        (void)BIO_reset(memory);
        *key = PEM_read_bio_PrivateKey(memory, NULL, no_pass_phrase, NULL);
        if (!*key)
            status = aq_fail(AQ_CORRUPT, AREA,
                             "%s holds no complete private key in PEM form (%s): copy it again, or make a new one with "
                             "aqpipe keys init --renew",
                             path, aq_tls_reason());
    }
    BIO_free(memory);
    if (status != AQ_OK)
        X509_free(first);
    else if (certificate)
        *certificate = first;
    return status;
}

static enum aq_status load(const char *path, X509 **certificate, EVP_PKEY **key, bool *secret)
{
    void *memory;
    int count = 0;
    AQ_TRY(aq_alloc(AQ_TLS_PEM_BYTES_MAX + 2, &memory));
    enum aq_status status = read_file(path, memory, &count, secret);
    if (status == AQ_OK) status = parse(path, memory, count, certificate, key);
    OPENSSL_cleanse(memory, AQ_TLS_PEM_BYTES_MAX + 2);
    aq_free(memory);
    return status;
}

enum aq_status aq_tls_load(const char *path, X509 **certificate, EVP_PKEY **key)
{
    bool secret;
    return load(path, certificate, key, &secret);
}

int64_t aq_tls_seconds(const ASN1_TIME *time)
{
    struct tm parts;
    return time && ASN1_TIME_to_tm(time, &parts) == 1 ? (int64_t)timegm(&parts) : 0;
}

enum aq_status aq_tls_describe(const char *path, struct aq_tls_facts *out)
{
    struct aq_tls_facts facts = {0};
    X509 *certificate = NULL;
    AQ_TRY(load(path, &certificate, NULL, &facts.key));
    const bool named = aq_tls_name_of(certificate, &facts.name);
    aq_tls_print(certificate, facts.print);
    aq_tls_serial(X509_get0_serialNumber(certificate), facts.serial);
    facts.from = aq_tls_seconds(X509_get0_notBefore(certificate));
    facts.until = aq_tls_seconds(X509_get0_notAfter(certificate));
    X509_free(certificate);
    if (!named) return aq_fail(AQ_CORRUPT, AREA, "%s is a certificate without an aqpipe:// name", path);
    *out = facts;
    return AQ_OK;
}

enum aq_status aq_tls_check_key(const char *path)
{
    EVP_PKEY *key = NULL;
    const enum aq_status status = aq_tls_load(path, NULL, &key);
    EVP_PKEY_free(key);
    return status;
}

enum aq_status aq_tls_copy(const char *folder, const char *file, const char *to)
{
    char path[AQ_TLS_PATH_BYTES];
    void *memory;
    bool secret = false;
    int count = 0;
    AQ_TRY(aq_tls_path(folder, file, path));
    if (mkdir(to, 0700) != 0 && errno != EEXIST) return aq_fail_errno(AREA, "cannot make the folder %s", to);
    AQ_TRY(aq_tls_folder_check(to));
    AQ_TRY(aq_alloc(AQ_TLS_PEM_BYTES_MAX + 2, &memory));
    enum aq_status status = read_file(path, memory, &count, &secret);
    if (status == AQ_OK) status = aq_tls_save(to, file, memory, (size_t)count, secret);
    OPENSSL_cleanse(memory, AQ_TLS_PEM_BYTES_MAX + 2);
    aq_free(memory);
    return status;
}

static int in_order(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* The NAMEs of <begin>NAME.pem. */
static enum aq_status names_in(const char *folder, const char *begin, struct aq_tls_hosts *out)
{
    static const char END[] = ".pem";
    const size_t before = strlen(begin);
    struct aq_tls_hosts hosts = {0};
    char host[AQ_TLS_HOST_BYTES];
    DIR *entries = opendir(folder);
    if (!entries) return aq_fail_errno(AREA, "cannot read the folder of keys %s", folder);
    for (const struct dirent *entry; (entry = readdir(entries)) && hosts.count < AQ_TLS_HOSTS_MAX;) {
        const size_t edges = before + sizeof END - 1, bytes = strlen(entry->d_name);
        if (bytes <= edges || bytes - edges >= sizeof host || strncmp(entry->d_name, begin, before) != 0 ||
            strcmp(entry->d_name + bytes - (sizeof END - 1), END) != 0)
            continue;
        memcpy(host, entry->d_name + before, bytes - edges);
        host[bytes - edges] = 0;
        if (aq_tls_host_good(host)) memcpy(hosts.of[hosts.count++], host, sizeof host);
    }
    closedir(entries);
    qsort(hosts.of, hosts.count, sizeof *hosts.of, in_order);
    *out = hosts;
    return AQ_OK;
}

enum aq_status aq_tls_hosts(const char *folder, struct aq_tls_hosts *out)
{
    return names_in(folder, "daemon-", out);
}

enum aq_status aq_tls_sites(const char *folder, struct aq_tls_hosts *out)
{
    return names_in(folder, "site-", out);
}

/* ---- the identity of this process ---- */

/* The fault that peers would find in this certificate. */
static enum aq_status self_check(struct aq_tls *tls, const char *path, X509 *certificate, EVP_PKEY *key)
{
    char why[AQ_TLS_WHY_BYTES];
    enum aq_status status = AQ_OK;
    if (X509_check_private_key(certificate, key) != 1)
        return aq_fail(AQ_TLSERR, AREA, "%s: the private key is not the certificate's (%s)", path, aq_tls_reason());
    X509_STORE_CTX *check = X509_STORE_CTX_new();
    if (!check || X509_STORE_CTX_init(check, SSL_CTX_get_cert_store(tls->context), certificate, NULL) != 1)
        status = aq_fail(AQ_NOMEM, AREA, "no memory to check %s", path);
    else if (X509_verify_cert(check) != 1)
        status = aq_fail(AQ_TLSERR, AREA,
                         "%s is not valid: %s (aqpipe keys show prints its details, aqpipe keys init "
                         "--renew makes new ones)",
                         path, X509_verify_cert_error_string(X509_STORE_CTX_get_error(check)));
    X509_STORE_CTX_free(check);
    if (status == AQ_OK && aq_tls_revoked(tls, certificate, why) != AQ_TLS_GOOD)
        status = aq_fail(AQ_TLSERR, AREA,
                         "%s is a certificate %s: its authority makes a new one (aqpipe keys init --renew)", path, why);
    return status;
}

static enum aq_status trust(struct aq_tls *tls, const char *folder)
{
    char path[AQ_TLS_PATH_BYTES], print[AQ_TLS_PRINT_BYTES];
    X509 *authority = NULL;
    AQ_TRY(aq_tls_path(folder, "authority.pem", path));
    AQ_TRY(aq_tls_load(path, &authority, NULL));
    aq_tls_print(authority, print);
    snprintf(tls->authority, sizeof tls->authority, "%.16s", print);
    const int added = X509_STORE_add_cert(SSL_CTX_get_cert_store(tls->context), authority);
    enum aq_status status = added == 1 ? AQ_OK : aq_fail(AQ_TLSERR, AREA, "%s: %s", path, aq_tls_reason());
    if (status == AQ_OK) status = aq_tls_watch_open(folder, authority, &tls->watch);
    X509_free(authority);
    return status;
}

static enum aq_status identify(struct aq_tls *tls, const char *folder, const struct aq_tls_name *want)
{
    char path[AQ_TLS_PATH_BYTES], file[AQ_TLS_FILE_BYTES], have[AQ_TLS_URI_BYTES], wanted[AQ_TLS_URI_BYTES];
    X509 *certificate = NULL;
    EVP_PKEY *key = NULL;
    AQ_TRY(aq_tls_path(folder, aq_tls_file(want, file), path));
    AQ_TRY(aq_tls_load(path, &certificate, &key));
    enum aq_status status = AQ_OK;
    const bool named = aq_tls_name_of(certificate, &tls->name);
    struct aq_tls_name expected = *want;
    memcpy(expected.job, tls->name.job, sizeof expected.job);
    if (!named)
        status = aq_fail(AQ_TLSERR, AREA, "%s is a certificate without an aqpipe:// name", path);
    else if (tls->name.role != want->role || tls->name.stage != want->stage || strcmp(tls->name.host, want->host) != 0)
        status = aq_fail(AQ_TLSERR, AREA, "%s is the certificate of %s, not of %s", path, aq_tls_uri(&tls->name, have),
                         aq_tls_uri(&expected, wanted));
    if (status == AQ_OK) status = self_check(tls, path, certificate, key);
    if (status == AQ_OK &&
        (SSL_CTX_use_certificate(tls->context, certificate) != 1 || SSL_CTX_use_PrivateKey(tls->context, key) != 1))
        status = aq_fail(AQ_TLSERR, AREA, "%s: %s", path, aq_tls_reason());
    EVP_PKEY_free(key);
    X509_free(certificate);
    return status;
}

/* Only TLS 1.3; no resumption (it would admit a peer that was revoked since), no early data, no compression.
 * AES-128-GCM comes first: it is the fastest, and kernels know it. */
static enum aq_status make_context(struct aq_tls *tls)
{
    tls->context = SSL_CTX_new(TLS_method());
    if (!tls->context || SSL_CTX_set_min_proto_version(tls->context, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_max_proto_version(tls->context, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_ciphersuites(tls->context, "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:"
                                               "TLS_CHACHA20_POLY1305_SHA256") != 1 ||
        SSL_CTX_set_num_tickets(tls->context, 0) != 1)
        return aq_fail(AQ_TLSERR, AREA, "OpenSSL has no TLS 1.3 here: %s", aq_tls_reason());
    SSL_CTX_set_session_cache_mode(tls->context, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_options(tls->context, SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION | SSL_OP_ENABLE_KTLS |
                                          SSL_OP_CIPHER_SERVER_PREFERENCE);
    SSL_CTX_set_mode(tls->context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_verify_depth(tls->context, 1);
    SSL_CTX_set_max_cert_list(tls->context, CHAIN_BYTES_MAX);
    SSL_CTX_set_read_ahead(tls->context, 1);
    SSL_CTX_set_default_read_buffer_len(tls->context, 128 << 10);
    return AQ_OK;
}

static void ignore_sigpipe(void)
{
    struct sigaction action;
    if (sigaction(SIGPIPE, NULL, &action) == 0 && action.sa_handler == SIG_DFL && signal(SIGPIPE, SIG_IGN) == SIG_ERR)
        aq_log(AREA, 1, "SIGPIPE cannot be ignored: %s", strerror(errno));
}

static enum aq_status open_name(const char *folder, const struct aq_tls_name *want, struct aq_tls **out)
{
    char uri[AQ_TLS_URI_BYTES];
    enum aq_status status;
    AQ_TRY(aq_tls_folder_check(folder));
    struct aq_tls *tls;
    AQ_TRY(AQ_NEW(1, &tls));
    AQ_TRY_GOTO(make_context(tls), out);
    AQ_TRY_GOTO(trust(tls, folder), out);
    AQ_TRY_GOTO(identify(tls, folder, want), out);
    ignore_sigpipe();
    aq_log(AREA, 2, "%s of the authority %s", aq_tls_uri(&tls->name, uri), tls->authority);
    *out = tls;
    return AQ_OK;
out:
    aq_tls_close(tls);
    return status;
}

enum aq_status aq_tls_open(const char *folder, enum aq_tls_role role, uint32_t stage, struct aq_tls **out)
{
    const struct aq_tls_name want = {.role = role, .stage = role == AQ_TLS_STAGE ? stage : 0};
    AQ_ASSERT(role == AQ_TLS_STAGE || role == AQ_TLS_LAUNCHER);
    return open_name(folder, &want, out);
}

static bool has(const struct aq_tls_hosts *hosts, const char *host)
{
    for (uint32_t i = 0; host && i < hosts->count; i++)
        if (strcmp(hosts->of[i], host) == 0) return true;
    return false;
}

enum aq_status aq_tls_open_daemon(const char *folder, const char *host, const char *listen, struct aq_tls **out)
{
    char old[AQ_TLS_PATH_BYTES];
    struct aq_tls_name want = {.role = AQ_TLS_DAEMON};
    struct aq_tls_hosts hosts;
    struct stat info;
    AQ_TRY(aq_tls_folder_check(folder));
    AQ_TRY(aq_tls_hosts(folder, &hosts));
    AQ_TRY(aq_tls_path(folder, "daemon.pem", old));
    if (host && !aq_tls_host_good(host)) return aq_fail(AQ_INVAL, AREA, "'%.80s' is not a host name", host);
    if (!host && has(&hosts, listen)) host = listen;
    if (!host && hosts.count == 1) host = hosts.of[0];
    if (!host && hosts.count > 1)
        return aq_fail(AQ_REFUSED, AREA, "%s has the keys of the daemons of %s, %s%s: choose this host's (--host)",
                       folder, hosts.of[0], hosts.of[1], hosts.count > 2 ? ", ..." : "");
    if (!host && lstat(old, &info) == 0)
        return aq_fail(AQ_REFUSED, AREA,
                       "%s is of an older version: any host could pose as another with it; make one for this host "
                       "(aqpipe keys add-host) where authority-key.pem is, and copy it here",
                       old);
    if (!host)
        return aq_fail(AQ_NOTFOUND, AREA, "there is no daemon-HOST.pem in %s (aqpipe keys add-host makes it)", folder);
    memcpy(want.host, host, strlen(host) + 1);
    return open_name(folder, &want, out);
}

enum aq_status aq_tls_open_site(const char *folder, const char *site, struct aq_tls **out)
{
    struct aq_tls_name want = {.role = AQ_TLS_SITE};
    if (!aq_tls_host_good(site))
        return aq_fail(AQ_INVAL, AREA, "'%.80s' is not a site name: use 1 to 63 of a-z 0-9 . _ - :", site);
    memcpy(want.host, site, strlen(site) + 1);
    return open_name(folder, &want, out);
}

void aq_tls_close(struct aq_tls *tls)
{
    if (!tls) return;
    SSL_CTX_free(tls->context);
    aq_tls_watch_close(tls->watch);
    aq_free(tls);
}

const struct aq_tls_name *aq_tls_name(const struct aq_tls *tls)
{
    return &tls->name;
}
