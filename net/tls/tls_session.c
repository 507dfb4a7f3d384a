/*
 * tls_session.c -- one connection under TLS 1.3: the handshake, who the other end is, bytes in and out.
 *
 * OpenSSL sits on a socket where there is one (so that it can hand the cipher to the kernel), else on a stream below.
 * Whom we talk to is decided inside the handshake, in the check of the certificate: a peer that is not expected never
 * gets to the first byte. In TLS 1.3 a client's handshake is over before the server has looked at its certificate, so
 * a client hears of a refusal with its first read.
 *
 * A record that OpenSSL has sealed and the socket has not taken must be given again with the same length: `sealed`
 * remembers it. Small pieces (a header, the head of a body) are gathered into one record.
 */
#include <errno.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "tls_private.h"

enum { RECORD_BYTES = 16384, RECORDS_A_READ = 16 };

struct aq_tls_session {
    struct aq_tls *tls;
    SSL *ssl;
    struct aq_byte_stream *below; /* NULL: a socket */
    enum aq_status below_ended;
    struct aq_tls_name expect, peer;
    char peer_name[AQ_NAME_BYTES];
    bool proved;       /* the handshake is over, the peer is who it should be       */
    bool heard;        /* it has sent something since: it has taken our certificate */
    short events;      /* what the last call waits for                              */
    uint64_t check_ns; /* when the list of revoked certificates is asked again */
    enum aq_status ended;
    char text[AQ_TLS_TEXT_BYTES];
    const void *sealed;
    size_t sealed_bytes; /* 0: nothing is pending */
    uint8_t *record;     /* RECORD_BYTES, from the moment that it has proved itself: strangers cost less */
};

/* ---- who the peer is ---- */

/* The name that a certificate claims, in characters that are safe in a log. */
static void presented(X509 *certificate, char out[AQ_TLS_URI_BYTES])
{
    struct aq_tls_name name;
    if (aq_tls_name_of(certificate, &name))
        aq_tls_uri(&name, out);
    else
        snprintf(out, AQ_TLS_URI_BYTES, "a certificate without an aqpipe:// name");
}

static void expected(const struct aq_tls_session *s, char out[AQ_TLS_URI_BYTES + 48])
{
    char uri[AQ_TLS_URI_BYTES];
    snprintf(out, AQ_TLS_URI_BYTES + 48, "%s of the authority %s", aq_tls_uri(&s->expect, uri), s->tls->authority);
}

static bool is_expected(const struct aq_tls_session *s, const struct aq_tls_name *name)
{
    if (strcmp(name->job, s->expect.job) != 0 || name->role != s->expect.role) return false;
    if (name->role == AQ_TLS_SITE) return !s->expect.host[0] || strcmp(name->host, s->expect.host) == 0;
    if (name->role == AQ_TLS_DAEMON) return name->host[0] && strcmp(name->host, s->expect.host) == 0;
    return name->role != AQ_TLS_STAGE || s->expect.stage == AQ_TLS_ANY_STAGE || name->stage == s->expect.stage ||
           (s->expect.either && name->stage == s->expect.or_stage);
}

/* OpenSSL asks for every certificate of the chain: good is its own opinion; ours is added for the peer's own. */
static int look_at(int good, X509_STORE_CTX *chain)
{
    SSL *ssl = X509_STORE_CTX_get_ex_data(chain, SSL_get_ex_data_X509_STORE_CTX_idx());
    struct aq_tls_session *s = SSL_get_app_data(ssl);
    char have[AQ_TLS_URI_BYTES], want[AQ_TLS_URI_BYTES + 48], why[AQ_TLS_WHY_BYTES], when[32] = "?";
    X509 *leaf = X509_STORE_CTX_get0_cert(chain);
    presented(leaf, have);
    expected(s, want);
    if (!good) {
        const int error = X509_STORE_CTX_get_error(chain);
        struct tm parts;
        if (error == X509_V_ERR_CERT_HAS_EXPIRED &&
            ASN1_TIME_to_tm(X509_get0_notAfter(X509_STORE_CTX_get_current_cert(chain)), &parts) == 1 &&
            strftime(when, sizeof when, "%Y-%m-%d %H:%M UTC", &parts) > 0)
            snprintf(s->text, sizeof s->text, "presents %s, which expired on %s; expected %s", have, when, want);
        else
            snprintf(s->text, sizeof s->text, "presents %s, which is not valid (%s); expected %s", have,
                     X509_verify_cert_error_string(error), want);
        return 0;
    }
    if (X509_STORE_CTX_get_error_depth(chain) > 0) return 1;
    struct aq_tls_name name;
    const bool named = aq_tls_name_of(leaf, &name);
    if (named && is_expected(s, &name)) {
        if (aq_tls_revoked(s->tls, leaf, why) == AQ_TLS_GOOD) {
            s->peer = name;
            return 1;
        }
        snprintf(s->text, sizeof s->text, "presents %s, %s; expected %s", have, why, want);
        X509_STORE_CTX_set_error(chain, X509_V_ERR_CERT_REVOKED);
        return 0;
    }
    snprintf(s->text, sizeof s->text, "presents %s, expected %s%s", have, want,
             s->expect.role == AQ_TLS_DAEMON && named && name.role == AQ_TLS_DAEMON
                 ? " (in tcp://name@host:port name is what the certificate says)"
                 : "");
    X509_STORE_CTX_set_error(chain, X509_V_ERR_APPLICATION_VERIFICATION);
    return 0;
}

/* ---- OpenSSL on a stream ---- */

static int below_write(BIO *bio, const char *bytes, size_t count, size_t *done)
{
    struct aq_tls_session *s = BIO_get_data(bio);
    const struct iovec iov = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = count};
    BIO_clear_retry_flags(bio);
    const enum aq_status status = s->below->ops->write(s->below, &iov, 1, done);
    if (status == AQ_OK) return 1;
    if (status == AQ_AGAIN)
        BIO_set_retry_write(bio);
    else
        s->below_ended = status;
    *done = 0;
    return 0;
}

static int below_read(BIO *bio, char *bytes, size_t count, size_t *done)
{
    struct aq_tls_session *s = BIO_get_data(bio);
    const struct iovec iov = {.iov_base = bytes, .iov_len = count};
    BIO_clear_retry_flags(bio);
    const enum aq_status status = s->below->ops->read(s->below, &iov, 1, done);
    if (status == AQ_OK) return 1;
    if (status == AQ_AGAIN)
        BIO_set_retry_read(bio);
    else
        s->below_ended = status;
    *done = 0;
    return 0;
}

static long below_control(BIO *bio, int command, long number, void *pointer)
{
    (void)number;
    (void)pointer;
    const struct aq_tls_session *s = BIO_get_data(bio);
    if (command == BIO_CTRL_FLUSH) return 1;
    if (command == BIO_CTRL_EOF) return s->below_ended != AQ_OK;
    return 0;
}

static BIO_METHOD *below_method;
static CRYPTO_ONCE below_once = CRYPTO_ONCE_STATIC_INIT;

static void make_below_method(void)
{
    BIO_METHOD *method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "aq_byte_stream");
    if (!method) return;
    BIO_meth_set_write_ex(method, below_write);
    BIO_meth_set_read_ex(method, below_read);
    BIO_meth_set_ctrl(method, below_control);
    below_method = method; /* for the life of the process */
}

static BIO *below_bio(struct aq_tls_session *s)
{
    if (CRYPTO_THREAD_run_once(&below_once, make_below_method) != 1 || !below_method) return NULL;
    BIO *bio = BIO_new(below_method);
    if (!bio) return NULL;
    BIO_set_data(bio, s);
    BIO_set_init(bio, 1);
    return bio;
}

/* ---- life ---- */

static enum aq_status open_session(struct aq_tls *tls, struct aq_byte_stream *below, int fd, bool server,
                                   const struct aq_tls_name *expect, const char *peer, struct aq_tls_session **out)
{
    struct aq_tls_session *s;
    AQ_TRY(AQ_NEW(1, &s));
    s->tls = tls;
    s->below = below;
    s->expect = *expect;
    memcpy(s->expect.job, tls->name.job, sizeof s->expect.job);
    snprintf(s->peer_name, sizeof s->peer_name, "%s", peer);
    s->ssl = SSL_new(tls->context);
    BIO *bio = s->ssl ? below ? below_bio(s) : BIO_new_socket(fd, BIO_NOCLOSE) : NULL;
    if (!bio) {
        aq_tls_session_close(s);
        return aq_fail(AQ_NOMEM, "tls", "no session with %s: %s", peer, aq_tls_reason());
    }
    SSL_set_bio(s->ssl, bio, bio);
    SSL_set_app_data(s->ssl, s);
    SSL_set_verify(s->ssl, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, look_at);
    if (server)
        SSL_set_accept_state(s->ssl);
    else
        SSL_set_connect_state(s->ssl);
    *out = s;
    return AQ_OK;
}

enum aq_status aq_tls_session_open(struct aq_tls *tls, int fd, bool server, const struct aq_tls_name *expect,
                                   const char *peer, struct aq_tls_session **out)
{
    const int flags = fcntl(fd, F_GETFL);
    if (flags == -1 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) == -1)
        return aq_fail_errno("tls", "no session with %s", peer);
    return open_session(tls, NULL, fd, server, expect, peer, out);
}

enum aq_status aq_tls_session_over(struct aq_tls *tls, struct aq_byte_stream *below, bool server,
                                   const struct aq_tls_name *expect, struct aq_tls_session **out)
{
    return open_session(tls, below, -1, server, expect, below->name, out);
}

void aq_tls_session_close(struct aq_tls_session *session)
{
    if (!session) return;
    SSL_free(session->ssl); /* and its BIO */
    if (session->record) OPENSSL_cleanse(session->record, RECORD_BYTES);
    aq_free(session->record);
    aq_free(session);
}

/* ---- what went wrong ---- */

/* The end of "the peer ...", for a failure before the peer has proved itself or taken us. */
static void explain(struct aq_tls_session *s, int reason)
{
    char want[AQ_TLS_URI_BYTES + 48], uri[AQ_TLS_URI_BYTES];
    const char *words = ERR_reason_error_string(ERR_peek_error());
    if (s->text[0]) return; /* the check of its certificate has reported it */
    expected(s, want);
    if (reason >= SSL_AD_REASON_OFFSET && reason != SSL_R_TLSV1_ALERT_PROTOCOL_VERSION) {
        snprintf(s->text, sizeof s->text,
                 "refuses our certificate %s of the authority %s (%s); see its log for the reason",
                 aq_tls_uri(&s->tls->name, uri), s->tls->authority, words ? words : "no reason");
        return;
    }
    switch (reason) {
    case SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE:
        snprintf(s->text, sizeof s->text, "presents no certificate, expected %s", want);
        break;
    case SSL_R_UNSUPPORTED_PROTOCOL:
    case SSL_R_TLSV1_ALERT_PROTOCOL_VERSION:
        snprintf(s->text, sizeof s->text, "does not speak TLS 1.3, expected %s", want);
        break;
    case SSL_R_HTTP_REQUEST:
    case SSL_R_HTTPS_PROXY_REQUEST:
    case SSL_R_WRONG_VERSION_NUMBER:
    case SSL_R_PACKET_LENGTH_TOO_LONG:
    case SSL_R_BAD_RECORD_TYPE:
    case SSL_R_UNEXPECTED_MESSAGE:
        snprintf(s->text, sizeof s->text, "does not speak TLS, expected %s (does it run with security.tls: off?)",
                 want);
        break;
    default:
        snprintf(s->text, sizeof s->text, "fails the TLS handshake (%s), expected %s", words ? words : "no reason",
                 want);
    }
}

static enum aq_status end(struct aq_tls_session *s, enum aq_status status)
{
    s->ended = status;
    ERR_clear_error();
    return status;
}

/* After a call of OpenSSL that gave nothing. */
static enum aq_status failed(struct aq_tls_session *s, int result, int error_number)
{
    switch (SSL_get_error(s->ssl, result)) {
    case SSL_ERROR_WANT_READ:
        s->events = POLLIN;
        return AQ_AGAIN;
    case SSL_ERROR_WANT_WRITE:
        s->events = POLLOUT;
        return AQ_AGAIN;
    case SSL_ERROR_ZERO_RETURN:
        return end(s, AQ_CLOSED);
    case SSL_ERROR_SYSCALL:
        if (s->below_ended != AQ_OK) return end(s, s->below_ended);
        return end(s, error_number == 0 ? AQ_CLOSED : aq_byte_stream_errno(error_number));
    default:
        break;
    }
    const int reason = ERR_GET_REASON(ERR_peek_error());
    if (s->below_ended != AQ_OK) return end(s, s->below_ended);
    if (reason == SSL_R_UNEXPECTED_EOF_WHILE_READING) return end(s, AQ_CLOSED);
    if (s->heard) return end(s, AQ_IO); /* whole for a while, then broken on its way */
    explain(s, reason);
    return end(s, AQ_TLSERR);
}

/* ---- bytes ---- */

/* Of a session that stands. A damaged list ends no session: it may be about to be copied again. */
enum aq_status aq_tls_session_check(struct aq_tls_session *s)
{
    char uri[AQ_TLS_URI_BYTES], why[AQ_TLS_WHY_BYTES];
    if (s->ended != AQ_OK) return s->ended;
    const uint64_t now = aq_clock_ns();
    if (!s->proved || now < s->check_ns) return AQ_OK;
    s->check_ns = now + AQ_TLS_CHECK_S * 1000000000ull;
    X509 *certificate = SSL_get0_peer_certificate(s->ssl);
    if (!certificate || aq_tls_revoked(s->tls, certificate, why) != AQ_TLS_REVOKED) return AQ_OK;
    snprintf(s->text, sizeof s->text, "is %s, %s", aq_tls_uri(&s->peer, uri), why);
    return end(s, AQ_TLSERR);
}

static enum aq_status shake_hands(struct aq_tls_session *s)
{
    char uri[AQ_TLS_URI_BYTES];
    if (s->ended != AQ_OK) return s->ended;
    if (s->proved) return aq_tls_session_check(s);
    ERR_clear_error();
    errno = 0;
    const int result = SSL_do_handshake(s->ssl);
    if (result != 1) return failed(s, result, errno);
    void *record;
    if (aq_alloc(RECORD_BYTES, &record) != AQ_OK) return end(s, AQ_IO); /* said already */
    s->record = record;
    s->proved = true;
    s->check_ns = aq_clock_after(AQ_TLS_CHECK_S * 1000000000ull);
    aq_log("tls", 2, "peer=%s name=%s cipher=%s kernel=%s", s->peer_name, aq_tls_uri(&s->peer, uri),
           SSL_get_cipher_name(s->ssl),
           BIO_get_ktls_send(SSL_get_wbio(s->ssl)) > 0
               ? BIO_get_ktls_recv(SSL_get_rbio(s->ssl)) > 0 ? "both ways" : "sending"
               : "no");
    return AQ_OK;
}

enum aq_status aq_tls_session_read(struct aq_tls_session *session, const struct iovec *iov, int count, size_t *done)
{
    struct aq_tls_session *s = session;
    size_t total = 0, filled = 0;
    AQ_TRY(shake_hands(s));
    for (int i = 0, records = 0; i < count && records < RECORDS_A_READ; records++) {
        size_t got = 0;
        ERR_clear_error();
        errno = 0;
        const int result = SSL_read_ex(s->ssl, (char *)iov[i].iov_base + filled, iov[i].iov_len - filled, &got);
        if (result != 1) {
            if (total > 0 && SSL_want_read(s->ssl)) break;
            const enum aq_status status = failed(s, result, errno);
            if (total > 0) break; /* what came first is given first; the failure stays */
            return status;
        }
        s->heard = true;
        total += got;
        filled += got;
        if (filled < iov[i].iov_len) continue;
        filled = 0;
        i++;
    }
    *done = total;
    return AQ_OK;
}

/* The next record's bytes: a large piece is taken in place, small ones are gathered. */
static void seal(struct aq_tls_session *s, const struct iovec *iov, int count)
{
    s->sealed = iov[0].iov_base;
    s->sealed_bytes = iov[0].iov_len;
    if (s->sealed_bytes >= RECORD_BYTES || count == 1) {
        if (s->sealed_bytes > RECORD_BYTES) s->sealed_bytes = RECORD_BYTES;
        return;
    }
    s->sealed = s->record;
    s->sealed_bytes = 0;
    for (int i = 0; i < count && s->sealed_bytes < RECORD_BYTES; i++) {
        const size_t room = RECORD_BYTES - s->sealed_bytes;
        const size_t part = iov[i].iov_len < room ? iov[i].iov_len : room;
        memcpy(s->record + s->sealed_bytes, iov[i].iov_base, part);
        s->sealed_bytes += part;
    }
}

/* Nothing can be written any more: did the peer send a reason? Only a client that was never answered asks. */
static void hear_refusal(struct aq_tls_session *s)
{
    uint8_t byte;
    size_t got;
    ERR_clear_error();
    if (s->heard || SSL_read_ex(s->ssl, &byte, 1, &got) == 1) return;
    const int reason = ERR_GET_REASON(ERR_peek_error());
    if (reason < SSL_AD_REASON_OFFSET) return;
    explain(s, reason);
    (void)end(s, AQ_TLSERR);
}

enum aq_status aq_tls_session_write(struct aq_tls_session *session, const struct iovec *iov, int count, size_t *done)
{
    struct aq_tls_session *s = session;
    size_t put = 0;
    AQ_TRY(shake_hands(s));
    if (s->sealed_bytes == 0) seal(s, iov, count);
    ERR_clear_error();
    errno = 0;
    const int result = SSL_write_ex(s->ssl, s->sealed, s->sealed_bytes, &put);
    if (result == 1) {
        s->sealed_bytes = 0;
        *done = put;
        return AQ_OK;
    }
    const enum aq_status status = failed(s, result, errno);
    if (status == AQ_CLOSED || status == AQ_IO) hear_refusal(s);
    return status == AQ_AGAIN ? AQ_AGAIN : s->ended;
}

short aq_tls_session_events(const struct aq_tls_session *session)
{
    return session->events;
}

const char *aq_tls_session_text(const struct aq_tls_session *session)
{
    return session->text;
}

const char *aq_tls_session_with(const struct aq_tls_session *session)
{
    return session->peer_name;
}

const struct aq_tls_name *aq_tls_session_peer(const struct aq_tls_session *session)
{
    return session->proved ? &session->peer : NULL;
}

void aq_tls_session_shut(struct aq_tls_session *session)
{
    ERR_clear_error();
    if (session->proved && session->ended == AQ_OK && session->sealed_bytes == 0) (void)SSL_shutdown(session->ssl);
    ERR_clear_error();
}
