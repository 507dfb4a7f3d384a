/*
 * tls.h -- who is who: a job's authority, its certificates, and mutual TLS 1.3 sessions between their holders.
 *
 * A job has one authority. It signs one certificate a stage, one for launchers, one for each host's daemon and one for
 * each site of split learning; the purpose of a certificate is its only subject alternative name, a URI:
 * aqpipe://JOB/stage/3, aqpipe://JOB/launcher, aqpipe://JOB/daemon/10.0.0.5, aqpipe://JOB/site/ward-7. Answers of name
 * servers mean nothing. A session is open when both ends have shown a certificate of the same authority and job, with
 * the role (and stage, or host) that the other end expects; until then neither takes a byte of the other's. A host has
 * the name that its launcher dials (net/endpoint.h).
 *
 * A folder of keys (`aqpipe keys init` makes it):
 *     authority.pem       the authority's certificate: public, and all that a host needs of it
 *     authority-key.pem   its private key, mode 600: stays where certificates are made
 *     stage-3.pem, launcher.pem, daemon-HOST.pem, site-NAME.pem    a certificate and its private key, mode 600
 *     issued              beside the authority's key: the serial number of each certificate, and whose it is
 *     revoked.pem         the list of revoked certificates, where there is one; public
 *
 * Caveats first.
 * - A file with a private key that anybody but its owner may read, that belongs to somebody else (but root) or that is
 *   no regular file is refused; so are authority.pem and the folder where others may write them.
 * - aq_tls_open makes the process ignore SIGPIPE where it is not handled: OpenSSL writes to sockets with write().
 * - Texts about a peer hold printable characters only, whatever its certificate contains; nothing logs a key.
 *
 * Revocation. The authority's folder may have a list of revoked certificates, revoked.pem (aq_tls_revoke); carried into
 * another folder of keys it holds there. It is read in every handshake, and every AQ_TLS_CHECK_S seconds by open
 * sessions, when they read or write: a revoked peer's ends with AQ_TLSERR. A list that is damaged, over, missing, older
 * than it was or not the authority's lets no new peer in; open sessions continue.
 *
 * Locking: an aq_tls is used by any thread (its list has its own lock); a session by one thread at a time.
 */
#ifndef NET_TLS_H
#define NET_TLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "aqsgd/base.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    AQ_TLS_JOB_BYTES = 65, /* a job's name in certificates: 1 to 64 of A-Z a-z 0-9 . _ -, and the zero */
    AQ_TLS_HOST_BYTES =
        64, /* a host's, a site's: 1 to 63 of a-z 0-9 . _ - :, the first a letter, a digit or ':'             */
    AQ_TLS_URI_BYTES = 160,
    AQ_TLS_PRINT_BYTES = 65, /* SHA-256 in hexadecimal digits, and the zero */
    AQ_TLS_TEXT_BYTES = 512,
    AQ_TLS_PATH_BYTES = 4096,
    AQ_TLS_FILE_BYTES = 80, /* daemon-HOST.pem */
    AQ_TLS_HOSTS_MAX = 64,  /* the most stages of a job, and sites of a server of split learning */
    AQ_TLS_SERIAL_BYTES = 48,
    AQ_TLS_LIST_MAX = 1024,
    AQ_TLS_CHECK_S = 2 /* how often an open session checks that its peer is still valid */
};

enum aq_tls_role { AQ_TLS_AUTHORITY = 0, AQ_TLS_STAGE = 1, AQ_TLS_LAUNCHER = 2, AQ_TLS_DAEMON = 3, AQ_TLS_SITE = 4 };
#define AQ_TLS_ANY_STAGE UINT32_MAX

struct aq_tls_name {
    char job[AQ_TLS_JOB_BYTES];
    enum aq_tls_role role;
    uint32_t stage;               /* of AQ_TLS_STAGE; as an expectation also AQ_TLS_ANY_STAGE */
    char host[AQ_TLS_HOST_BYTES]; /* of AQ_TLS_DAEMON; "" in certificates of older versions: no peer expects it. Of
                                     AQ_TLS_SITE the site's name; as an expectation "" is any site */
    bool either;                  /* as an expectation of AQ_TLS_STAGE: or_stage will do, too */
    uint32_t or_stage;
};

/* The URI of a name; an authority's is "aqpipe://JOB". */
const char *aq_tls_uri(const struct aq_tls_name *name, char out[AQ_TLS_URI_BYTES]);
/* And back, of `bytes` bytes. False: not of this form, to the letter. */
bool aq_tls_uri_read(const char *text, size_t bytes, struct aq_tls_name *out);
/* May a job, or a daemon's host or a site, be called so in certificates? */
bool aq_tls_job_good(const char *job);
bool aq_tls_host_good(const char *host);
/* The file of a name in a folder: "stage-3.pem". */
const char *aq_tls_file(const struct aq_tls_name *name, char out[AQ_TLS_FILE_BYTES]);

/* The hosts whose daemon-HOST.pem lie in a folder, in order. AQ_NOTFOUND, AQ_IO: the folder cannot be read. */
struct aq_tls_hosts {
    uint32_t count;
    char of[AQ_TLS_HOSTS_MAX][AQ_TLS_HOST_BYTES];
};
enum aq_status aq_tls_hosts(const char *folder, struct aq_tls_hosts *out);
/* The same of sites, and their site-NAME.pem. */
enum aq_status aq_tls_sites(const char *folder, struct aq_tls_hosts *out);

/* ---- identities ---- */

struct aq_tls; /* opaque: one identity, and the authority that it trusts */

/* AQ_NOTFOUND, AQ_REFUSED (loose permissions), AQ_CORRUPT (no PEM), AQ_TLSERR (expired, of another authority, of
 * another role or stage, the key is not the certificate's). Each is logged with its remedy. */
enum aq_status aq_tls_open(const char *folder, enum aq_tls_role role, uint32_t stage, struct aq_tls **out);
/* Of a host's daemon. host NULL: the only one in the folder, or `listen` where that has a file; AQ_REFUSED: there are
 * several, or only a daemon.pem of an older version, with which any host could pose as every other. */
enum aq_status aq_tls_open_daemon(const char *folder, const char *host, const char *listen, struct aq_tls **out);
/* Of a site. AQ_INVAL: no name of one; and as aq_tls_open. */
enum aq_status aq_tls_open_site(const char *folder, const char *site, struct aq_tls **out);
void aq_tls_close(struct aq_tls *tls); /* after its sessions. NULL is fine */
const struct aq_tls_name *aq_tls_name(const struct aq_tls *tls);

/* The facts of one file of a folder of keys. */
struct aq_tls_facts {
    struct aq_tls_name name;
    char print[AQ_TLS_PRINT_BYTES];   /* SHA-256 of the certificate    */
    char serial[AQ_TLS_SERIAL_BYTES]; /* its number, hexadecimal       */
    int64_t from, until;              /* seconds since 1970         */
    bool key;                         /* its private key is with it */
};
/* path: a certificate, with its key or without. As aq_tls_open, but does not ask who signed it nor whether it is
 * over. */
enum aq_status aq_tls_describe(const char *path, struct aq_tls_facts *out);

/* May this file that is only a private key (authority-key.pem) be used? Statuses as aq_tls_open. */
enum aq_status aq_tls_check_key(const char *path);

/* ---- revocation ---- */

/* Put a certificate into the folder's list of revoked ones, revoked.pem, which the authority signs: that of the file
 * `path`, or, where `what` is not NULL, all that were ever made for this name (its job is the authority's). The list
 * is replaced whole. *added: how many were not in it yet. AQ_NOTFOUND: no certificate has that name; and as
 * aq_tls_make. */
enum aq_status aq_tls_revoke(const char *folder, const struct aq_tls_name *what, const char *path, uint32_t *added);

struct aq_tls_list_entry {
    char serial[AQ_TLS_SERIAL_BYTES];
    char uri[AQ_TLS_URI_BYTES]; /* "": only the authority's folder knows */
    int64_t when;
};
struct aq_tls_list {
    int64_t number, from, until; /* the first list is number 1 */
    uint32_t count;
    struct aq_tls_list_entry of[AQ_TLS_LIST_MAX]; /* the first so many */
};
/* The list of a folder, by its authority.pem. AQ_NOTFOUND (not logged): it has none. AQ_CORRUPT. */
enum aq_status aq_tls_list_read(const char *folder, struct aq_tls_list *out);

/* ---- sessions ---- */

struct aq_tls_session; /* opaque */

/* On a connected socket that stays the caller's and becomes non-blocking. expect: role and stage of the other end (its
 * job is ours); peer: what to call it in the log. */
enum aq_status aq_tls_session_open(struct aq_tls *tls, int fd, bool server, const struct aq_tls_name *expect,
                                   const char *peer, struct aq_tls_session **out);
void aq_tls_session_close(struct aq_tls_session *session); /* NULL is fine */

/*
 * As a stream: what can be done at once. The first calls shake hands. AQ_OK: *done > 0. AQ_AGAIN: wait for
 * aq_tls_session_events of the socket. AQ_CLOSED, AQ_IO. AQ_TLSERR: it is not the expected peer, or not our TLS 1.3;
 * aq_tls_session_text is the end of a sentence "the peer ...". Failures are for ever, and not logged.
 */
enum aq_status aq_tls_session_read(struct aq_tls_session *session, const struct iovec *iov, int count, size_t *done);
enum aq_status aq_tls_session_write(struct aq_tls_session *session, const struct iovec *iov, int count, size_t *done);
/* Is the peer still good, where AQ_TLS_CHECK_S have passed since that was asked? AQ_TLSERR, as by reading. */
enum aq_status aq_tls_session_check(struct aq_tls_session *session);
short aq_tls_session_events(const struct aq_tls_session *session);
const char *aq_tls_session_text(const struct aq_tls_session *session);               /* "" where nothing is wrong */
const char *aq_tls_session_with(const struct aq_tls_session *session);               /* `peer` of open */
const struct aq_tls_name *aq_tls_session_peer(const struct aq_tls_session *session); /* NULL: not proved yet */
void aq_tls_session_shut(struct aq_tls_session *session); /* announce the end, as far as that is possible */

/* ---- making them ---- */

/* A new authority in a folder that has none (made where absent, mode 700). AQ_REFUSED: there is one already. */
enum aq_status aq_tls_make_authority(const char *folder, const char *job, int64_t from, int64_t until);
/* One certificate with its key, signed by the folder's authority; an old one of this name is replaced. */
enum aq_status aq_tls_make(const char *folder, enum aq_tls_role role, uint32_t stage, int64_t from, int64_t until);
enum aq_status aq_tls_make_daemon(const char *folder, const char *host, int64_t from, int64_t until);
enum aq_status aq_tls_make_site(const char *folder, const char *site, int64_t from, int64_t until);
/* Carry one file of a folder to another one (made where absent, mode 700). As aq_tls_open says, and AQ_IO. */
enum aq_status aq_tls_copy(const char *folder, const char *file, const char *to);

#ifdef __cplusplus
}
#endif
#endif
