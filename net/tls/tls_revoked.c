/*
 * tls_revoked.c -- certificates that are no longer good: the list (an X.509 CRL, revoked.pem) that the authority signs,
 * and that whoever holds keys reads while it runs.
 *
 * The file is looked at before each handshake, and every AQ_TLS_CHECK_S seconds of an open session; it is read again
 * where its stamp differs, was too young to tell, or where it was no good. A list admits no peer when it has
 * disappeared, is damaged, has expired, is older than one that was read before, or is not the authority's. So an
 * attacker gains nothing by removing it. A folder that never had a list revokes nothing.
 *
 * Serial numbers are 16 random bytes (tls_make.c): `issued`, next to the authority's key, records each certificate's
 * holder. So revoking a name revokes every certificate with that name, also one that was stolen before the renewal.
 */
#include <errno.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "tls_private.h"

static const char *const AREA = "keys", *const LIST = "revoked.pem", *const ISSUED = "issued";

enum { SETTLED_S = 2, ISSUED_BYTES_MAX = 1 << 20, LINE_BYTES = 256 };

struct stamp {
    dev_t device;
    ino_t file;
    off_t bytes;
    struct timespec written, changed;
};

struct aq_tls_watch {
    CRYPTO_RWLOCK *lock; /* around all below: healers and listeners shake hands in separate threads */
    char path[AQ_TLS_PATH_BYTES];
    X509 *authority;
    X509_CRL *list; /* NULL: none, or no good */
    int64_t number; /* of the newest list that was read */
    bool seen;      /* there has been a list            */
    struct stamp stamp;
    bool settled;      /* the stamp was old when the file was read: later writes must have another one */
    const char *wrong; /* a constant; NULL: the list is good, or there never was one */
    char bytes[AQ_TLS_PEM_BYTES_MAX + 1];
};

/* ---- reading a list ---- */

static struct stamp stamp_of(const struct stat *info)
{
    return (struct stamp){.device = info->st_dev,
                          .file = info->st_ino,
                          .bytes = info->st_size,
                          .written = info->st_mtim,
                          .changed = info->st_ctim};
}

static bool same_time(const struct timespec *a, const struct timespec *b)
{
    return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

static bool same_stamp(const struct stamp *a, const struct stamp *b)
{
    return a->device == b->device && a->file == b->file && a->bytes == b->bytes &&
           same_time(&a->written, &b->written) && same_time(&a->changed, &b->changed);
}

/* The bytes of a file that only its owner (we, or root) can have written. NULL, or what is wrong. */
static const char *read_quietly(const char *path, char *bytes, size_t most, size_t *count, struct stat *info)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd == -1) return "it cannot be opened";
    const char *wrong = NULL;
    if (fstat(fd, info) != 0 || !S_ISREG(info->st_mode))
        wrong = "it is not a regular file";
    else if (info->st_uid != geteuid() && info->st_uid != 0)
        wrong = "it belongs to another user";
    else if (info->st_mode & 022)
        wrong = "others may write it (chmod 644)";
    const ssize_t got = wrong ? 0 : aq_read_all(fd, bytes, most);
    if (got < 0) wrong = "it cannot be read";
    *count = got > 0 ? (size_t)got : 0;
    if (!wrong && *count == most) wrong = "it is too long";
    close(fd);
    return wrong;
}

static bool number_of(const X509_CRL *list, int64_t *out)
{
    ASN1_INTEGER *number = X509_CRL_get_ext_d2i(list, NID_crl_number, NULL, NULL);
    const bool read = number && ASN1_INTEGER_get_int64(out, number) == 1 && *out > 0;
    ASN1_INTEGER_free(number);
    return read;
}

/* NULL, or why a list is not to be believed, whatever the hour. */
static const char *check_list(X509_CRL *list, X509 *authority, int64_t *number)
{
    if (X509_NAME_cmp(X509_CRL_get_issuer(list), X509_get_subject_name(authority)) != 0 ||
        X509_CRL_verify(list, X509_get0_pubkey(authority)) != 1)
        return "it is not signed by the authority";
    if (X509_CRL_get_ext_by_critical(list, 1, -1) != -1) return "it is a list of another kind";
    if (!X509_CRL_get0_nextUpdate(list))
        return "it has no end"; /* X.509 allows it; whether it has expired is unknown */
    return number_of(list, number) ? NULL : "it has no number";
}

/* bytes[0, count) as a whole list. The caller frees *out. */
static const char *parse_list(const char *bytes, size_t count, X509 *authority, X509_CRL **out, int64_t *number)
{
    BIO *memory = BIO_new_mem_buf(bytes, (int)count);
    X509_CRL *list = memory ? PEM_read_bio_X509_CRL(memory, NULL, NULL, NULL) : NULL;
    BIO_free(memory);
    const char *wrong = list ? check_list(list, authority, number) : "it is damaged";
    ERR_clear_error();
    if (wrong)
        X509_CRL_free(list);
    else
        *out = list;
    return wrong;
}

/* Under the lock: read it where it is not what was read last. */
static const char *refresh(struct aq_tls_watch *watch)
{
    struct stat info;
    size_t count;
    int64_t number = 0;
    X509_CRL *list = NULL;
    if (stat(watch->path, &info) != 0) return errno == ENOENT && !watch->seen ? NULL : "it was removed";
    const struct stamp stamp = stamp_of(&info);
    if (watch->list && !watch->wrong && watch->settled && same_stamp(&stamp, &watch->stamp)) return NULL;
    const time_t before = time(NULL);
    watch->seen = true;
    const char *wrong = read_quietly(watch->path, watch->bytes, sizeof watch->bytes, &count, &info);
    if (!wrong) wrong = parse_list(watch->bytes, count, watch->authority, &list, &number);
    if (!wrong && number < watch->number) wrong = "it is older than the one that was there before";
    if (wrong) {
        X509_CRL_free(list);
        return wrong;
    }
    if (number != watch->number) aq_log(AREA, 2, "%s number %lld is read", watch->path, (long long)number);
    X509_CRL_free(watch->list);
    watch->list = list;
    watch->number = number;
    watch->stamp = stamp_of(&info); /* of what was read, not of what was looked at */
    watch->settled = watch->stamp.changed.tv_sec + SETTLED_S <= before;
    return NULL;
}

/* Under the lock. NULL: this list, or none, may be asked. */
static const char *look(struct aq_tls_watch *watch)
{
    const char *wrong = refresh(watch);
    if (!wrong && watch->list && X509_cmp_time(X509_CRL_get0_nextUpdate(watch->list), NULL) <= 0) wrong = "it is over";
    if (wrong && wrong != watch->wrong)
        (void)aq_fail(
            AQ_TLSERR, AREA,
            "the list of revoked certificates %s is not valid: %s; no peer is accepted until it is copied again from "
            "the authority's folder",
            watch->path, wrong);
    watch->wrong = wrong;
    return wrong;
}

enum aq_tls_verdict aq_tls_revoked(struct aq_tls *tls, X509 *certificate, char why[AQ_TLS_WHY_BYTES])
{
    struct aq_tls_watch *watch = tls->watch;
    X509_REVOKED *entry = NULL;
    struct tm parts;
    char when[32] = "?";
    if (CRYPTO_THREAD_write_lock(watch->lock) != 1) {
        snprintf(why, AQ_TLS_WHY_BYTES, "and our list of revoked certificates cannot be asked");
        return AQ_TLS_NO_LIST;
    }
    const char *wrong = look(watch);
    const bool listed = !wrong && watch->list && X509_CRL_get0_by_cert(watch->list, &entry, certificate) != 0;
    if (wrong)
        snprintf(why, AQ_TLS_WHY_BYTES, "and our list of revoked certificates is not valid (%s)", wrong);
    else if (listed && entry && ASN1_TIME_to_tm(X509_REVOKED_get0_revocationDate(entry), &parts) == 1 &&
             strftime(when, sizeof when, "%Y-%m-%d %H:%M UTC", &parts) > 0)
        snprintf(why, AQ_TLS_WHY_BYTES, "which was revoked on %s", when);
    else if (listed)
        snprintf(why, AQ_TLS_WHY_BYTES, "which is revoked");
    CRYPTO_THREAD_unlock(watch->lock);
    return wrong ? AQ_TLS_NO_LIST : listed ? AQ_TLS_REVOKED : AQ_TLS_GOOD;
}

enum aq_status aq_tls_watch_open(const char *folder, X509 *authority, struct aq_tls_watch **out)
{
    struct aq_tls_watch *watch;
    AQ_TRY(AQ_NEW(1, &watch));
    enum aq_status status = aq_tls_path(folder, LIST, watch->path);
    watch->lock = CRYPTO_THREAD_lock_new();
    if (status == AQ_OK && (!watch->lock || X509_up_ref(authority) != 1))
        status = aq_fail(AQ_NOMEM, AREA, "no memory for the list of revoked certificates");
    else if (status == AQ_OK)
        watch->authority = authority;
    if (status == AQ_OK && look(watch)) status = AQ_TLSERR; /* look has said why */
    if (status != AQ_OK)
        aq_tls_watch_close(watch);
    else
        *out = watch;
    return status;
}

void aq_tls_watch_close(struct aq_tls_watch *watch)
{
    if (!watch) return;
    X509_CRL_free(watch->list);
    X509_free(watch->authority);
    CRYPTO_THREAD_lock_free(watch->lock);
    aq_free(watch);
}

/* ---- what was issued ---- */

void aq_tls_serial(const ASN1_INTEGER *serial, char out[AQ_TLS_SERIAL_BYTES])
{
    const unsigned char *bytes = ASN1_STRING_get0_data(serial);
    const int count = ASN1_STRING_length(serial), most = (AQ_TLS_SERIAL_BYTES - 1) / 2;
    aq_hex(bytes, (size_t)(count < most ? count : most), out);
}

enum aq_status aq_tls_issued(const char *folder, X509 *certificate, const struct aq_tls_name *name)
{
    char path[AQ_TLS_PATH_BYTES], serial[AQ_TLS_SERIAL_BYTES], uri[AQ_TLS_URI_BYTES], line[LINE_BYTES];
    AQ_TRY(aq_tls_path(folder, ISSUED, path));
    aq_tls_serial(X509_get0_serialNumber(certificate), serial);
    const int count = snprintf(line, sizeof line, "%s %s\n", serial, aq_tls_uri(name, uri));
    const int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd == -1) return aq_fail_errno(AREA, "cannot write %s", path);
    const bool written = aq_write_all(fd, line, (size_t)count) && fsync(fd) == 0;
    const enum aq_status status = written ? AQ_OK : aq_fail_errno(AREA, "cannot write %s", path);
    close(fd);
    return status;
}

/* Of each line "SERIAL URI": to `each`, until it is false. No file: nothing was written down. */
static enum aq_status issued_each(const char *folder, bool (*each)(void *context, const char *serial, const char *uri),
                                  void *context)
{
    char path[AQ_TLS_PATH_BYTES], *next;
    struct stat info;
    size_t count = 0;
    AQ_TRY(aq_tls_path(folder, ISSUED, path));
    if (lstat(path, &info) != 0 && errno == ENOENT) return AQ_OK;
    char *text;
    AQ_TRY(AQ_NEW(ISSUED_BYTES_MAX + 1, &text));
    const char *wrong = read_quietly(path, text, ISSUED_BYTES_MAX, &count, &info);
    enum aq_status status = wrong ? aq_fail(AQ_CORRUPT, AREA, "%s: %s", path, wrong) : AQ_OK;
    text[wrong ? 0 : count] = 0;
    for (char *at = text; status == AQ_OK && *at; at = next) {
        char *end = strchr(at, '\n'), *space = strchr(at, ' ');
        next = end ? end + 1 : at + strlen(at);
        if (end) *end = 0;
        if (!space || (end && space > end)) continue;
        *space = 0;
        if (!each(context, at, space + 1))
            status = aq_fail(AQ_CORRUPT, AREA, "%s: the line of the serial number %.48s is damaged", path, at);
    }
    aq_free(text);
    return status;
}

/* ---- making a list ---- */

struct making {
    X509_CRL *list;
    const char *uri; /* of what is to be revoked */
    uint32_t added, known;
};

static bool add_serial(struct making *making, const ASN1_INTEGER *serial)
{
    X509_REVOKED *there = NULL;
    making->known++;
    if (X509_CRL_get0_by_serial(making->list, &there, (ASN1_INTEGER *)(uintptr_t)serial) != 0) return true;
    X509_REVOKED *entry = X509_REVOKED_new();
    ASN1_TIME *now = ASN1_TIME_set(NULL, time(NULL));
    const bool added = entry && now && X509_REVOKED_set_serialNumber(entry, (ASN1_INTEGER *)(uintptr_t)serial) == 1 &&
                       X509_REVOKED_set_revocationDate(entry, now) == 1 &&
                       X509_CRL_add0_revoked(making->list, entry) == 1;
    ASN1_TIME_free(now);
    if (!added) X509_REVOKED_free(entry);
    making->added += added;
    return added;
}

/* A line of `issued`; others' lines are passed over, one that is damaged and ours is not. */
static bool add_issued(void *context, const char *serial, const char *uri)
{
    struct making *making = context;
    BIGNUM *number = NULL;
    ASN1_INTEGER *integer = NULL;
    if (strcmp(uri, making->uri) != 0) return true;
    const bool read = aq_is_hex(serial, strlen(serial)) && BN_hex2bn(&number, serial) == (int)strlen(serial) &&
                      (integer = BN_to_ASN1_INTEGER(number, NULL));
    const bool added = read && add_serial(making, integer);
    ASN1_INTEGER_free(integer);
    BN_free(number);
    return added;
}

/* The list that is there, with its number; or a new one, number 0. */
static enum aq_status old_list(const char *folder, X509 *authority, X509_CRL **out, int64_t *number)
{
    char path[AQ_TLS_PATH_BYTES];
    struct stat info;
    size_t count = 0;
    void *memory;
    AQ_TRY(aq_tls_path(folder, LIST, path));
    *number = 0;
    if (lstat(path, &info) != 0 && errno == ENOENT) {
        *out = X509_CRL_new();
        return *out && X509_CRL_set_version(*out, 1) == 1 && /* 1 means version 2, which has extensions */
                       X509_CRL_set_issuer_name(*out, X509_get_subject_name(authority)) == 1
                   ? AQ_OK
                   : aq_fail(AQ_NOMEM, AREA, "no memory for a list of revoked certificates");
    }
    AQ_TRY(aq_alloc(AQ_TLS_PEM_BYTES_MAX + 1, &memory));
    const char *wrong = read_quietly(path, memory, AQ_TLS_PEM_BYTES_MAX + 1, &count, &info);
    if (!wrong) wrong = parse_list(memory, count, authority, out, number);
    aq_free(memory);
    return wrong ? aq_fail(AQ_CORRUPT, AREA, "%s: %s; copy a good one back, so that its certificates stay revoked",
                           path, wrong)
                 : AQ_OK;
}

static enum aq_status sign_list(const char *folder, X509_CRL *list, int64_t number, X509 *authority, EVP_PKEY *key)
{
    ASN1_TIME *now = ASN1_TIME_set(NULL, time(NULL));
    ASN1_INTEGER *next = ASN1_INTEGER_new();
    BIO *memory = BIO_new(BIO_s_mem());
    char *bytes;
    const bool made = now && next && memory && ASN1_INTEGER_set_int64(next, number + 1) == 1 &&
                      X509_CRL_set1_lastUpdate(list, now) == 1 &&
                      X509_CRL_set1_nextUpdate(list, X509_get0_notAfter(authority)) == 1 &&
                      X509_CRL_add1_ext_i2d(list, NID_crl_number, next, 0, X509V3_ADD_REPLACE) == 1 &&
                      X509_CRL_sort(list) == 1 && X509_CRL_sign(list, key, EVP_sha256()) > 0 &&
                      PEM_write_bio_X509_CRL(memory, list) == 1;
    const long count = made ? BIO_get_mem_data(memory, &bytes) : 0;
    enum aq_status status = AQ_OK;
    if (!made)
        status = aq_fail(AQ_TLSERR, AREA, "cannot make a list of revoked certificates: %s", aq_tls_reason());
    else if (count > AQ_TLS_PEM_BYTES_MAX)
        status = aq_fail(AQ_NOSPC, AREA, "the list of revoked certificates is full: make a new authority");
    else
        status = aq_tls_save(folder, LIST, bytes, (size_t)count, false);
    BIO_free(memory);
    ASN1_INTEGER_free(next);
    ASN1_TIME_free(now);
    return status;
}

enum aq_status aq_tls_revoke(const char *folder, const struct aq_tls_name *what, const char *path, uint32_t *added)
{
    char own[AQ_TLS_PATH_BYTES], file[AQ_TLS_FILE_BYTES], uri[AQ_TLS_URI_BYTES];
    struct aq_tls_name of, named;
    struct making making = {.uri = uri};
    struct stat info;
    X509 *authority = NULL, *certificate = NULL;
    EVP_PKEY *key = NULL;
    int64_t number = 0;
    enum aq_status status;
    AQ_TRY(aq_tls_authority(folder, &of, &authority, &key));
    AQ_TRY_GOTO(old_list(folder, authority, &making.list, &number), out);
    if (what) {
        named = *what;
        memcpy(named.job, of.job, sizeof named.job);
        aq_tls_uri(&named, uri);
        AQ_TRY_GOTO(issued_each(folder, add_issued, &making), out);
        AQ_TRY_GOTO(aq_tls_path(folder, aq_tls_file(&named, file), own), out);
        path = lstat(own, &info) == 0 ? own : NULL;
        if (path && making.known == 0)
            aq_log(AREA, 1,
                   "%s: made by an older version, which wrote down none: others of this name are good until "
                   "their own files are revoked",
                   path);
    }
    if (path) AQ_TRY_GOTO(aq_tls_load(path, &certificate, NULL), out);
    if (path && X509_verify(certificate, X509_get0_pubkey(authority)) != 1)
        status = aq_fail(AQ_INVAL, AREA, "%s is not of the authority in %s", path, folder);
    else if (path && (!aq_tls_name_of(certificate, &named) || named.role == AQ_TLS_AUTHORITY))
        status = aq_fail(AQ_INVAL, AREA, "%s: an authority cannot be revoked: make a new one in another folder", path);
    else if (path && !add_serial(&making, X509_get0_serialNumber(certificate)))
        status = aq_fail(AQ_NOMEM, AREA, "no memory for a list of revoked certificates");
    else if (making.known == 0)
        status = aq_fail(AQ_NOTFOUND, AREA, "%s has no certificate of %s, and none is on record: name its file", folder,
                         uri);
    if (status == AQ_OK) status = sign_list(folder, making.list, number, authority, key);
    if (status == AQ_OK) *added = making.added;
out:
    ERR_clear_error();
    X509_CRL_free(making.list);
    X509_free(certificate);
    X509_free(authority);
    EVP_PKEY_free(key);
    return status;
}

/* ---- showing a list ---- */

static bool name_serial(void *context, const char *serial, const char *uri)
{
    struct aq_tls_list *list = context;
    for (uint32_t i = 0; i < list->count; i++)
        if (strcmp(list->of[i].serial, serial) == 0) snprintf(list->of[i].uri, sizeof list->of[i].uri, "%.159s", uri);
    return true;
}

enum aq_status aq_tls_list_read(const char *folder, struct aq_tls_list *out)
{
    char path[AQ_TLS_PATH_BYTES];
    struct stat info;
    X509 *authority = NULL;
    X509_CRL *crl = NULL;
    AQ_TRY(aq_tls_path(folder, LIST, path));
    memset(out, 0, sizeof *out);
    if (lstat(path, &info) != 0 && errno == ENOENT) return AQ_NOTFOUND;
    AQ_TRY(aq_tls_path(folder, "authority.pem", path));
    AQ_TRY(aq_tls_load(path, &authority, NULL));
    const enum aq_status status = old_list(folder, authority, &crl, &out->number);
    X509_free(authority);
    AQ_TRY(status);
    out->from = aq_tls_seconds(X509_CRL_get0_lastUpdate(crl));
    out->until = aq_tls_seconds(X509_CRL_get0_nextUpdate(crl));
    STACK_OF(X509_REVOKED) *entries = X509_CRL_get_REVOKED(crl);
    for (int i = 0; i < sk_X509_REVOKED_num(entries) && out->count < AQ_TLS_LIST_MAX; i++) {
        const X509_REVOKED *entry = sk_X509_REVOKED_value(entries, i);
        struct aq_tls_list_entry *to = &out->of[out->count++];
        aq_tls_serial(X509_REVOKED_get0_serialNumber(entry), to->serial);
        to->when = aq_tls_seconds(X509_REVOKED_get0_revocationDate(entry));
    }
    X509_CRL_free(crl);
    return issued_each(folder, name_serial, out);
}
