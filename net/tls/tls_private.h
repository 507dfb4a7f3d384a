/* tls_private.h -- what the files of TLS share: identities, names in certificates, files, and sessions over streams. */
#ifndef NET_TLS_PRIVATE_H
#define NET_TLS_PRIVATE_H

#include <openssl/ssl.h>

#include "net/tls.h"
#include "transport.h"

struct aq_tls {
    SSL_CTX *context;
    struct aq_tls_name name;
    char authority[17]; /* the first half of a half of its fingerprint, for people */
    struct aq_tls_watch *watch;
};

/* ---- tls_revoked.c ---- */

enum { AQ_TLS_WHY_BYTES = 112, AQ_TLS_PEM_BYTES_MAX = 64 << 10 /* of a file: a list of a thousand */ };

/* The list of a folder, looked at now and then. AQ_TLSERR: there is one that is no good; logged. */
enum aq_status aq_tls_watch_open(const char *folder, X509 *authority, struct aq_tls_watch **out);
void aq_tls_watch_close(struct aq_tls_watch *watch); /* NULL is fine */
/* As the file is now. NO_LIST: there is one, and it is no good; `why` follows "presents NAME, ". Any thread. */
enum aq_tls_verdict { AQ_TLS_GOOD = 0, AQ_TLS_REVOKED, AQ_TLS_NO_LIST };
enum aq_tls_verdict aq_tls_revoked(struct aq_tls *tls, X509 *certificate, char why[AQ_TLS_WHY_BYTES]);

void aq_tls_serial(const ASN1_INTEGER *serial, char out[AQ_TLS_SERIAL_BYTES]);
/* Records whose the certificate is, next to the authority's key. */
enum aq_status aq_tls_issued(const char *folder, X509 *certificate, const struct aq_tls_name *name);

/* The only aqpipe:// name of a certificate. False: it has none, or two, or one that is no name. */
bool aq_tls_name_of(X509 *certificate, struct aq_tls_name *out);
void aq_tls_print(X509 *certificate, char out[AQ_TLS_PRINT_BYTES]);
int64_t aq_tls_seconds(const ASN1_TIME *time); /* since 1970; 0: it is no time */
/* Why OpenSSL failed last, and forget it. Valid until the next call on this thread. */
const char *aq_tls_reason(void);

/* The certificate and, where `key` is not NULL, the private key of a file, after its permissions were looked at. */
enum aq_status aq_tls_load(const char *path, X509 **certificate, EVP_PKEY **key);
/* folder/name; AQ_INVAL: too long. */
enum aq_status aq_tls_path(const char *folder, const char *name, char out[AQ_TLS_PATH_BYTES]);
/* A folder that others may write is refused. */
enum aq_status aq_tls_folder_check(const char *folder);

/* Write folder/name aside, and put it there whole: mode 600, or 644 where it is no secret. */
enum aq_status aq_tls_save(const char *folder, const char *name, const char *bytes, size_t count, bool secret);
/* The authority of a folder and its private key, which belong together. */
enum aq_status aq_tls_authority(const char *folder, struct aq_tls_name *name, X509 **certificate, EVP_PKEY **key);

/* A session on a stream below, which stays the caller's. */
enum aq_status aq_tls_session_over(struct aq_tls *tls, struct aq_byte_stream *below, bool server,
                                   const struct aq_tls_name *expect, struct aq_tls_session **out);

#endif
