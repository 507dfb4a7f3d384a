/*
 * test_tls.c -- who gets in under TLS and who does not, each refused with its line; and files that are refused.
 *
 * The listener is stage 2, which waits for stage 1. Strangers are raw OpenSSL clients, or raw bytes, on a socket of
 * their own; after each of them the real stage 1 still gets its link.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "link_pair.h"
#include "log_capture.h"
#include "tls_keys.h"

static char ours[KEYS_PATH_BYTES], theirs[KEYS_PATH_BYTES];

static const char *file_in(const char *folder, const char *name)
{
    static char path[KEYS_PATH_BYTES + 32];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static int make_folders(void **state)
{
    (void)state;
    keys_make(ours, "demo");
    keys_make(theirs, "demo");
    return 0;
}

static int remove_folders(void **state)
{
    (void)state;
    keys_remove(ours);
    keys_remove(theirs);
    return 0;
}

/* ---- all lines of the log, whatever their level ---- */

static char all_lines[1 << 16];

static void keep(int level, const char *line, void *context)
{
    (void)level;
    (void)context;
    const size_t have = strlen(all_lines);
    snprintf(all_lines + have, sizeof all_lines - have, "%s\n", line);
}

static void lines_begin(void)
{
    all_lines[0] = 0;
    setenv("AQ_LOG", "net:1", 1);
    aq_log_init(-1);
    aq_log_sink(keep, NULL);
}

static void assert_line(const char *words)
{
    if (!strstr(all_lines, words)) fail_msg("no line says \"%s\" in:\n%s", words, all_lines);
}

/* ---- strangers ---- */

struct stranger {
    const char *folder, *certificate; /* NULL: shows none */
    int version;                      /* 0: sends `bytes` */
    const char *bytes;
    const char *peers; /* whom the listener expects; NULL: "peer=1" */
    uint16_t port;
    bool got_in;      /* it has read a byte of the other end's HELLO      */
    atomic_bool over; /* release by the stranger, acquire by who listens  */
};

static int dial(uint16_t port)
{
    const struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const struct timeval patience = {.tv_sec = PAIR_PATIENCE};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_not_equal(fd, -1);
    assert_int_equal(connect(fd, (const struct sockaddr *)&to, sizeof to), 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience), 0);
    return fd;
}

static void knock_once(struct stranger *s)
{
    char byte[64];
    const int fd = dial(s->port);
    if (s->version == 0) {
        (void)send(fd, s->bytes, strlen(s->bytes), MSG_NOSIGNAL);
        ssize_t got;
        while ((got = recv(fd, byte, sizeof byte, 0)) > 0)
            s->got_in |= memcmp(byte, "AQPF", 4) == 0;
        close(fd);
        return;
    }
    SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
    SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION);
    SSL_CTX_set_max_proto_version(ctx, s->version);
    if (s->certificate) {
        const char *path = file_in(s->folder, s->certificate);
        assert_int_equal(SSL_CTX_use_certificate_file(ctx, path, SSL_FILETYPE_PEM), 1);
        assert_int_equal(SSL_CTX_use_PrivateKey_file(ctx, path, SSL_FILETYPE_PEM), 1);
    }
    SSL *ssl = SSL_new(ctx);
    SSL_set_fd(ssl, fd);
    if (SSL_connect(ssl) == 1) {
        (void)SSL_write(ssl, "AQPF", 4);
        s->got_in = SSL_read(ssl, byte, 1) == 1;
    }
    SSL_free(ssl);
    SSL_CTX_free(ctx);
    ERR_clear_error();
    close(fd);
}

static void knock(void *context)
{
    struct stranger *s = context;
    knock_once(s);
    atomic_store_explicit(&s->over, true, memory_order_release);
}

/* Stage 2 listens; the stranger knocks; nothing is handed out, the log has these words, and stage 1 still gets in. */
static void refuse(struct stranger *stranger, const char *words)
{
    struct link_pair pair = {0};
    struct aq_thread *thread;
    pair_config(&pair);
    pair.config[0].rank = 2;
    pair.config[0].peer_rank = 1;
    pair.config[1].rank = 1;
    pair.config[1].peer_rank = 2;
    assert_int_equal(aq_tls_open(ours, AQ_TLS_STAGE, 2, &pair.tls[0]), AQ_OK);
    assert_int_equal(aq_tls_open(ours, AQ_TLS_STAGE, 1, &pair.tls[1]), AQ_OK);
    pair_nets(&pair);
    snprintf(pair.address, sizeof pair.address, "tls+tcp://127.0.0.1:0?%s",
             stranger->peers ? stranger->peers : "peer=1");
    assert_int_equal(aq_link_listen(pair.net[0], pair.address, &pair.listener, &stranger->port), AQ_OK);
    lines_begin();
    assert_int_equal(aq_thread_open("stranger", knock, stranger, &thread), AQ_OK);
    struct aq_link *none;
    do
        assert_int_equal(aq_link_accept(pair.listener, &pair.config[0], PAIR_SECONDS(0.1), &none), AQ_TIMEOUT);
    while (!atomic_load_explicit(&stranger->over, memory_order_acquire));
    aq_thread_close(thread);
    assert_false(stranger->got_in);
    assert_line("refused peer=127.0.0.1:");
    assert_line(words);
    snprintf(pair.address, sizeof pair.address, "tls+tcp://127.0.0.1:%u?peer=2", stranger->port);
    pair_meet(&pair, PAIR_PATIENCE);
    assert_int_equal(pair.accepted, AQ_OK);
    assert_int_equal(pair.connected, AQ_OK);
    capture_end();
    pair_close(&pair);
    aq_tls_close(pair.tls[0]);
    aq_tls_close(pair.tls[1]);
}

static void test_accept_certificate_of_another_authority_is_refused(void **state)
{
    (void)state;
    struct stranger s = {.folder = theirs, .certificate = "stage-1.pem", .version = TLS1_3_VERSION};
    refuse(&s, "presents aqpipe://demo/stage/1, which is no good (");
    assert_line("; expected aqpipe://demo/stage/1 of the authority ");
}

static void test_accept_certificate_of_another_stage_is_refused(void **state)
{
    (void)state;
    struct stranger s = {.folder = ours, .certificate = "stage-3.pem", .version = TLS1_3_VERSION};
    refuse(&s, "presents aqpipe://demo/stage/3, expected aqpipe://demo/stage/1 of the authority ");
    struct stranger launcher = {.folder = ours, .certificate = "launcher.pem", .version = TLS1_3_VERSION};
    refuse(&launcher, "presents aqpipe://demo/launcher, expected aqpipe://demo/stage/1 of the authority ");
}

/* A stage between two that dial listens for both, and for nobody else. */
static void test_accept_one_of_two_refuses_a_third(void **state)
{
    (void)state;
    struct stranger s = {
        .folder = ours, .certificate = "stage-3.pem", .version = TLS1_3_VERSION, .peers = "peer=0&or=1"};
    refuse(&s, "presents aqpipe://demo/stage/3, expected aqpipe://demo/stage/0 or stage 1 of the authority ");
}

static void test_accept_expired_certificate_is_refused(void **state)
{
    (void)state;
    const int64_t now = (int64_t)time(NULL);
    assert_int_equal(aq_tls_make(ours, AQ_TLS_STAGE, 1, now - 7200, now - 3600), AQ_OK);
    struct aq_tls *tls;
    capture_begin();
    assert_int_equal(aq_tls_open(ours, AQ_TLS_STAGE, 1, &tls), AQ_TLSERR);
    assert_true(captured_has("certificate has expired"));
    capture_end();
    char old[KEYS_PATH_BYTES + 32];
    snprintf(old, sizeof old, "%s/stage-0.pem", ours); /* of use to nobody else in these tests */
    assert_int_equal(rename(file_in(ours, "stage-1.pem"), old), 0);
    assert_int_equal(aq_tls_make(ours, AQ_TLS_STAGE, 1, now - 3600, now + 86400), AQ_OK);
    struct stranger s = {.folder = ours, .certificate = "stage-0.pem", .version = TLS1_3_VERSION};
    refuse(&s, "presents aqpipe://demo/stage/1, which expired on ");
}

static void test_accept_no_certificate_is_refused(void **state)
{
    (void)state;
    struct stranger s = {.version = TLS1_3_VERSION};
    refuse(&s, "presents no certificate, expected aqpipe://demo/stage/1 of the authority ");
}

static void test_accept_tls_1_2_is_refused(void **state)
{
    (void)state;
    struct stranger s = {.folder = ours, .certificate = "stage-1.pem", .version = TLS1_2_VERSION};
    refuse(&s, "does not speak TLS 1.3, expected aqpipe://demo/stage/1");
}

static void test_accept_plain_bytes_are_refused(void **state)
{
    (void)state;
    struct stranger plain = {.bytes =
                                 "AQPF\1\0 and what a peer without TLS would send, a hundred bytes and more of it"};
    refuse(&plain, "does not speak TLS, expected aqpipe://demo/stage/1");
    struct stranger browser = {.bytes = "GET / HTTP/1.1\r\nHost: here\r\n\r\n"};
    refuse(&browser, "does not speak TLS, expected aqpipe://demo/stage/1");
}

/* ---- what the connector sees ---- */

struct meeting {
    const char *listener_folder, *connector_folder, *address_query;
    uint32_t listener_stage, connector_stage;
};

static void meet(const struct meeting *meeting, enum aq_status status, const char *words)
{
    struct link_pair pair = {0};
    uint16_t port;
    pair_config(&pair);
    pair.config[0].rank = 2;
    pair.config[0].peer_rank = 1;
    pair.config[1].rank = 1;
    pair.config[1].peer_rank = 2;
    assert_int_equal(aq_tls_open(meeting->listener_folder, AQ_TLS_STAGE, meeting->listener_stage, &pair.tls[0]), AQ_OK);
    assert_int_equal(aq_tls_open(meeting->connector_folder, AQ_TLS_STAGE, meeting->connector_stage, &pair.tls[1]),
                     AQ_OK);
    pair_nets(&pair);
    assert_int_equal(aq_link_listen(pair.net[0], "tls+tcp://127.0.0.1:0", &pair.listener, &port), AQ_OK);
    snprintf(pair.address, sizeof pair.address, "tls+tcp://127.0.0.1:%u%s", port, meeting->address_query);
    lines_begin();
    pair_meet_refused(&pair);
    assert_int_equal(pair.connected, status);
    assert_line(words);
    capture_end();
    pair_close(&pair);
    aq_tls_close(pair.tls[0]);
    aq_tls_close(pair.tls[1]);
}

static void test_connect_wrong_listener_is_refused(void **state)
{
    (void)state;
    const struct meeting another_stage = {ours, ours, "?peer=2", 3, 1};
    meet(&another_stage, AQ_TLSERR, "presents aqpipe://demo/stage/3, expected aqpipe://demo/stage/2 of the authority ");
    const struct meeting another_authority = {theirs, ours, "?peer=2", 2, 1};
    meet(&another_authority, AQ_TLSERR, "presents aqpipe://demo/stage/2, which is no good (");
}

/* Without a stage in the address the certificate must be that of the rank in the HELLO. */
static void test_hello_of_another_rank_than_the_certificate_is_refused(void **state)
{
    (void)state;
    const struct meeting liar = {ours, ours, "?peer=2", 2, 3};
    meet(&liar, AQ_MISMATCH, "says it is rank 1, but its certificate is another stage's");
}

static void test_connect_without_keys_is_refused(void **state)
{
    (void)state;
    struct link_pair pair = {0};
    pair_config(&pair);
    pair_nets(&pair);
    capture_begin();
    assert_int_equal(
        aq_link_connect(pair.net[1], "tls+tcp://127.0.0.1:1", &pair.config[1], PAIR_SECONDS(1), &pair.link[1]),
        AQ_INVAL);
    assert_int_equal(aq_link_listen(pair.net[1], "tls+tcp://127.0.0.1:0", &pair.listener, NULL), AQ_INVAL);
    assert_true(captured_has("aqpipe keys init"));
    capture_end();
    pair_close(&pair);
}

/* ---- two sessions over a pair of sockets, by turns in one thread ---- */

struct talk {
    struct aq_tls_session *end[2]; /* the client, the server */
    int fd[2];
    enum aq_status status[2];
};

static void talk_begin(struct talk *talk, struct aq_tls *client, const struct aq_tls_name *server_is,
                       struct aq_tls *server, const struct aq_tls_name *client_is)
{
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, talk->fd), 0);
    assert_int_equal(aq_tls_session_open(client, talk->fd[0], false, server_is, "server", &talk->end[0]), AQ_OK);
    assert_int_equal(aq_tls_session_open(server, talk->fd[1], true, client_is, "client", &talk->end[1]), AQ_OK);
    talk->status[0] = talk->status[1] = AQ_AGAIN;
}

/* One byte there and one back; or how each end failed. */
static void talk_once(struct talk *talk)
{
    char byte = 'x';
    const struct iovec iov = {.iov_base = &byte, .iov_len = 1};
    bool sent[2] = {false, false}, got[2] = {false, false};
    for (int turn = 0; turn < 100; turn++)
        for (int i = 0; i < 2; i++) {
            size_t done;
            if (!sent[i]) {
                talk->status[i] = aq_tls_session_write(talk->end[i], &iov, 1, &done);
                sent[i] = talk->status[i] == AQ_OK;
            } else if (!got[i]) {
                talk->status[i] = aq_tls_session_read(talk->end[i], &iov, 1, &done);
                got[i] = talk->status[i] == AQ_OK;
            }
        }
}

static void talk_end(struct talk *talk)
{
    for (int i = 0; i < 2; i++) {
        aq_tls_session_close(talk->end[i]);
        close(talk->fd[i]);
    }
}

/* A daemon of this host's file, met as `dialled`: does the launcher take it? */
static bool meets(const char *host, const char *dialled, const char *words)
{
    struct aq_tls_name daemon = {.role = AQ_TLS_DAEMON};
    const struct aq_tls_name launcher = {.role = AQ_TLS_LAUNCHER};
    struct aq_tls *server, *client;
    struct talk talk;
    snprintf(daemon.host, sizeof daemon.host, "%s", dialled);
    assert_int_equal(aq_tls_open_daemon(ours, host, NULL, &server), AQ_OK);
    assert_int_equal(aq_tls_open(ours, AQ_TLS_LAUNCHER, 0, &client), AQ_OK);
    talk_begin(&talk, client, &daemon, server, &launcher);
    talk_once(&talk);
    const bool good = talk.status[0] == AQ_OK && talk.status[1] == AQ_OK;
    assert_true(good || talk.status[0] == AQ_TLSERR);
    if (!good && !strstr(aq_tls_session_text(talk.end[0]), words))
        fail_msg("'%s' is said, not '%s'", aq_tls_session_text(talk.end[0]), words);
    talk_end(&talk);
    aq_tls_close(server);
    aq_tls_close(client);
    return good;
}

static void test_daemon_of_another_host_is_refused(void **state)
{
    (void)state;
    const int64_t now = (int64_t)time(NULL);
    assert_int_equal(aq_tls_make_daemon(ours, "10.0.0.5", now - 3600, now + 86400), AQ_OK);
    assert_true(meets("here", "here", ""));
    assert_true(meets("10.0.0.5", "10.0.0.5", ""));
    static const char *const others[] = {"10.0.0.5", "her", "heree", "HERE", "here.", ""};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_false(meets("here", others[i], "presents aqpipe://demo/daemon/here, expected aqpipe://demo/daemon"));
    assert_int_equal(unlink(file_in(ours, "daemon-10.0.0.5.pem")), 0);
}

/* Which of a folder's identities is a daemon's own; one that is everybody's is none. */
static void test_open_daemon_wants_its_own_host(void **state)
{
    (void)state;
    const int64_t now = (int64_t)time(NULL);
    struct aq_tls *tls;
    assert_int_equal(aq_tls_open_daemon(ours, NULL, "0.0.0.0", &tls), AQ_OK); /* the only one */
    assert_string_equal(aq_tls_name(tls)->host, "here");
    aq_tls_close(tls);
    assert_int_equal(aq_tls_make_daemon(ours, "there", now - 3600, now + 86400), AQ_OK);
    assert_int_equal(aq_tls_open_daemon(ours, NULL, "there", &tls), AQ_OK);
    assert_string_equal(aq_tls_name(tls)->host, "there");
    aq_tls_close(tls);
    capture_begin();
    assert_int_equal(aq_tls_open_daemon(ours, NULL, "0.0.0.0", &tls), AQ_REFUSED);
    assert_true(captured_has("the daemons of here, there: say which host this is (--host)"));
    assert_int_equal(aq_tls_open_daemon(ours, "elsewhere", "there", &tls), AQ_NOTFOUND);
    assert_int_equal(aq_tls_open_daemon(ours, "../x", "there", &tls), AQ_INVAL);
    assert_int_equal(aq_tls_make_daemon(ours, "a b", now, now + 1), AQ_INVAL);
    assert_int_equal(aq_tls_make_daemon(ours, "", now, now + 1), AQ_INVAL);
    assert_int_equal(unlink(file_in(ours, "daemon-there.pem")), 0);
    char here[KEYS_PATH_BYTES + 32], other[KEYS_PATH_BYTES + 32];
    snprintf(here, sizeof here, "%s/daemon-here.pem", ours);
    snprintf(other, sizeof other, "%s/daemon-other.pem", ours);
    assert_int_equal(rename(here, other), 0); /* by another name it is nobody's */
    assert_int_equal(aq_tls_open_daemon(ours, NULL, NULL, &tls), AQ_TLSERR);
    assert_true(captured_has("is the certificate of aqpipe://demo/daemon/here, not of aqpipe://demo/daemon/other"));
    assert_int_equal(rename(other, file_in(ours, "daemon.pem")), 0);
    assert_int_equal(aq_tls_open_daemon(ours, NULL, NULL, &tls), AQ_REFUSED);
    assert_true(captured_has("any host could pose as every other"));
    capture_end();
    assert_int_equal(rename(file_in(ours, "daemon.pem"), here), 0);
}

/* ---- revocation ---- */

static size_t slurp(const char *path, char *out, size_t bytes)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    const size_t count = fread(out, 1, bytes, file);
    fclose(file);
    return count;
}

static void spill(const char *path, const char *bytes, size_t count)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

/* A daemon and a launcher of one folder that stay open while its list changes. */
struct lasting {
    char folder[KEYS_PATH_BYTES];
    struct aq_tls *launcher, *daemon;
};

static const struct aq_tls_name LAUNCHER = {.role = AQ_TLS_LAUNCHER};
static const struct aq_tls_name HERE = {.role = AQ_TLS_DAEMON, .host = "here"};

static void lasting_begin(struct lasting *lasting)
{
    keys_make(lasting->folder, "demo");
    assert_int_equal(aq_tls_open(lasting->folder, AQ_TLS_LAUNCHER, 0, &lasting->launcher), AQ_OK);
    assert_int_equal(aq_tls_open_daemon(lasting->folder, NULL, NULL, &lasting->daemon), AQ_OK);
    capture_begin();
}

static void lasting_end(struct lasting *lasting)
{
    capture_end();
    aq_tls_close(lasting->launcher);
    aq_tls_close(lasting->daemon);
    keys_remove(lasting->folder);
}

/* They meet. NULL: both take each other; else what is said by the end that does not. */
static const char *meeting_of(const struct lasting *lasting)
{
    static char text[AQ_TLS_TEXT_BYTES];
    struct talk talk;
    talk_begin(&talk, lasting->launcher, &HERE, lasting->daemon, &LAUNCHER);
    talk_once(&talk);
    const bool good = talk.status[0] == AQ_OK && talk.status[1] == AQ_OK;
    const int refuses = talk.status[1] == AQ_TLSERR && !strstr(aq_tls_session_text(talk.end[1]), "our certificate");
    snprintf(text, sizeof text, "%s", aq_tls_session_text(talk.end[refuses]));
    talk_end(&talk);
    assert_true(good || text[0]);
    return good ? NULL : text;
}

static void assert_meets(const struct lasting *lasting)
{
    const char *text = meeting_of(lasting);
    if (text) fail_msg("refused: %s", text);
}

static void assert_refused(const struct lasting *lasting, const char *words)
{
    const char *text = meeting_of(lasting);
    if (!text || !strstr(text, words)) fail_msg("'%s' is not said, but '%s'", words, text ? text : "(welcome)");
}

static void revoke_name(const char *folder, const struct aq_tls_name *name, uint32_t wanted)
{
    uint32_t added = 0;
    assert_int_equal(aq_tls_revoke(folder, name, NULL, &added), AQ_OK);
    assert_int_equal(added, wanted);
}

static void test_revoked_is_refused_from_the_next_handshake_on(void **state)
{
    (void)state;
    struct lasting lasting;
    const struct aq_tls_name stage = {.role = AQ_TLS_STAGE, .stage = 1};
    lasting_begin(&lasting);
    assert_meets(&lasting);
    revoke_name(lasting.folder, &stage, 1);
    assert_meets(&lasting); /* and the list has been read once */
    revoke_name(lasting.folder, &stage, 0);
    revoke_name(lasting.folder, &LAUNCHER, 1);
    assert_refused(&lasting, "presents aqpipe://demo/launcher, which was revoked on 20");
    struct aq_tls *tls;
    assert_int_equal(aq_tls_open(lasting.folder, AQ_TLS_LAUNCHER, 0, &tls), AQ_TLSERR);
    assert_true(captured_has("launcher.pem is a certificate which was revoked on 20"));
    const int64_t now = (int64_t)time(NULL);
    assert_int_equal(aq_tls_make(lasting.folder, AQ_TLS_LAUNCHER, 0, now - 3600, now + 86400), AQ_OK);
    aq_tls_close(lasting.launcher);
    assert_int_equal(aq_tls_open(lasting.folder, AQ_TLS_LAUNCHER, 0, &lasting.launcher), AQ_OK);
    assert_meets(&lasting); /* the new one is good */
    revoke_name(lasting.folder, &HERE, 1);
    assert_refused(&lasting, "presents aqpipe://demo/daemon/here, which was revoked on 20"); /* by the launcher */
    lasting_end(&lasting);
}

/* Whoever renews first and revokes then must hit the stolen one. */
static void test_revoke_by_name_means_all_that_had_it(void **state)
{
    (void)state;
    struct lasting lasting;
    uint32_t added;
    lasting_begin(&lasting);
    const int64_t now = (int64_t)time(NULL);
    assert_int_equal(aq_tls_make(lasting.folder, AQ_TLS_LAUNCHER, 0, now - 3600, now + 86400), AQ_OK);
    revoke_name(lasting.folder, &LAUNCHER, 2);
    assert_refused(&lasting, "which was revoked on 20");
    static struct aq_tls_list list;
    assert_int_equal(aq_tls_list_read(lasting.folder, &list), AQ_OK);
    assert_int_equal(list.count, 2);
    assert_int_equal(list.number, 1);
    assert_string_equal(list.of[0].uri, "aqpipe://demo/launcher");
    assert_int_equal(aq_tls_revoke(lasting.folder, NULL, file_in(lasting.folder, "stage-2.pem"), &added), AQ_OK);
    assert_int_equal(added, 1);
    assert_int_equal(aq_tls_revoke(lasting.folder, NULL, file_in(theirs, "stage-2.pem"), &added), AQ_INVAL);
    assert_true(captured_has("is not of the authority in"));
    assert_int_equal(aq_tls_revoke(lasting.folder, NULL, file_in(lasting.folder, "authority.pem"), &added), AQ_INVAL);
    const struct aq_tls_name nobody = {.role = AQ_TLS_STAGE, .stage = 60};
    assert_int_equal(aq_tls_revoke(lasting.folder, &nobody, NULL, &added), AQ_NOTFOUND);
    assert_int_equal(aq_tls_list_read(lasting.folder, &list), AQ_OK);
    assert_int_equal(list.count, 3);
    assert_int_equal(aq_tls_list_read(theirs, &list), AQ_NOTFOUND);
    lasting_end(&lasting);
}

/* A clock that goes on by more than AQ_TLS_CHECK_S whenever it is asked. */
static uint64_t later(void *context)
{
    static uint64_t now;
    (void)context;
    if (now == 0) now = UINT64_MAX / 2;
    return now += (AQ_TLS_CHECK_S + 1) * 1000000000ull;
}

/* A session that stands when its peer is revoked ends by itself; one whose list is damaged goes on. */
static void test_revoked_session_that_stands_ends(void **state)
{
    (void)state;
    struct lasting lasting;
    struct talk talk;
    lasting_begin(&lasting);
    talk_begin(&talk, lasting.launcher, &HERE, lasting.daemon, &LAUNCHER);
    talk_once(&talk);
    assert_int_equal(talk.status[1], AQ_OK);
    revoke_name(lasting.folder, &LAUNCHER, 1);
    assert_int_equal(aq_tls_session_check(talk.end[1]), AQ_OK); /* it was asked a moment ago */
    aq_clock_virtual(later, NULL);
    const enum aq_status status = aq_tls_session_check(talk.end[1]);
    assert_int_equal(status, AQ_TLSERR);
    assert_non_null(strstr(aq_tls_session_text(talk.end[1]), "is aqpipe://demo/launcher, which was revoked on 20"));
    assert_int_equal(aq_tls_session_check(talk.end[0]), AQ_OK); /* the daemon is as good as it was */
    char byte;
    size_t done;
    const struct iovec iov = {.iov_base = &byte, .iov_len = 1};
    assert_int_equal(aq_tls_session_read(talk.end[1], &iov, 1, &done), AQ_TLSERR);
    assert_int_equal(aq_tls_session_write(talk.end[1], &iov, 1, &done), AQ_TLSERR);
    aq_clock_virtual(NULL, NULL);
    talk_end(&talk);
    lasting_end(&lasting);
}

/* A list of our own making: these serial numbers, signed by the authority of `signer`. */
static void write_list(const char *folder, const char *signer, const ASN1_INTEGER *serial, int64_t number,
                       int64_t until)
{
    FILE *file = fopen(file_in(signer, "authority-key.pem"), "r");
    EVP_PKEY *key = PEM_read_PrivateKey(file, NULL, NULL, NULL);
    fclose(file);
    file = fopen(file_in(signer, "authority.pem"), "r");
    X509 *authority = PEM_read_X509(file, NULL, NULL, NULL);
    fclose(file);
    X509_CRL *list = X509_CRL_new();
    ASN1_TIME *from = ASN1_TIME_set(NULL, time(NULL) - 7200), *to = ASN1_TIME_set(NULL, (time_t)until);
    ASN1_INTEGER *count = ASN1_INTEGER_new();
    assert_true(key && authority && ASN1_INTEGER_set_int64(count, number) == 1 && X509_CRL_set_version(list, 1) == 1 &&
                X509_CRL_set_issuer_name(list, X509_get_subject_name(authority)) == 1 &&
                X509_CRL_set1_lastUpdate(list, from) == 1 && X509_CRL_set1_nextUpdate(list, to) == 1);
    if (number) assert_int_equal(X509_CRL_add1_ext_i2d(list, NID_crl_number, count, 0, 0), 1);
    if (serial) {
        X509_REVOKED *entry = X509_REVOKED_new();
        assert_int_equal(X509_REVOKED_set_serialNumber(entry, (ASN1_INTEGER *)(uintptr_t)serial), 1);
        assert_int_equal(X509_REVOKED_set_revocationDate(entry, from), 1);
        assert_int_equal(X509_CRL_add0_revoked(list, entry), 1);
    }
    assert_true(X509_CRL_sign(list, key, EVP_sha256()) > 0);
    file = fopen(file_in(folder, "new"), "w");
    assert_int_equal(PEM_write_X509_CRL(file, list), 1);
    assert_int_equal(fclose(file), 0);
    char made[KEYS_PATH_BYTES + 32];
    snprintf(made, sizeof made, "%s", file_in(folder, "new"));
    assert_int_equal(rename(made, file_in(folder, "revoked.pem")), 0);
    ASN1_INTEGER_free(count);
    ASN1_TIME_free(from);
    ASN1_TIME_free(to);
    X509_CRL_free(list);
    X509_free(authority);
    EVP_PKEY_free(key);
}

static void test_revoked_serial_is_compared_whole(void **state)
{
    (void)state;
    struct lasting lasting;
    lasting_begin(&lasting);
    FILE *file = fopen(file_in(lasting.folder, "launcher.pem"), "r");
    X509 *certificate = PEM_read_X509(file, NULL, NULL, NULL);
    fclose(file);
    const ASN1_INTEGER *own = X509_get0_serialNumber(certificate);
    const int bytes = ASN1_STRING_length(own), tomorrow = 86400;
    assert_int_equal(bytes, 16);
    int64_t number = 1;
    for (int cut = 1; cut < bytes; cut++) { /* the first bytes, and the last ones */
        ASN1_INTEGER *part = ASN1_INTEGER_new();
        assert_int_equal(ASN1_STRING_set(part, ASN1_STRING_get0_data(own), cut), 1);
        write_list(lasting.folder, lasting.folder, part, number++, time(NULL) + tomorrow);
        assert_meets(&lasting);
        if (own->data[cut] != 0) { /* DER writes no number with zeros before it */
            assert_int_equal(ASN1_STRING_set(part, ASN1_STRING_get0_data(own) + cut, bytes - cut), 1);
            write_list(lasting.folder, lasting.folder, part, number++, time(NULL) + tomorrow);
            assert_meets(&lasting);
        }
        ASN1_INTEGER_free(part);
    }
    ASN1_INTEGER *near = ASN1_INTEGER_dup(own);
    near->data[bytes - 1] ^= 1;
    write_list(lasting.folder, lasting.folder, near, number++, time(NULL) + tomorrow);
    assert_meets(&lasting);
    write_list(lasting.folder, lasting.folder, own, number, time(NULL) + tomorrow);
    assert_refused(&lasting, "which was revoked on 20");
    ASN1_INTEGER_free(near);
    X509_free(certificate);
    lasting_end(&lasting);
}

/* Each time: nobody new is let in, one line says why, a process that begins is refused, and a good list mends it. */
static void no_good(struct lasting *lasting, int64_t *number, const char *words)
{
    struct aq_tls *tls;
    captured.count = 0;
    assert_refused(lasting, "and our list of revoked certificates is no good (");
    assert_refused(lasting, words);
    assert_int_equal(captured.count, 1); /* by the launcher, who looks first, and once */
    assert_true(captured_has(words));
    const bool gone = access(file_in(lasting->folder, "revoked.pem"), F_OK) != 0;
    if (!gone && !strstr(words, "older")) { /* who has seen none believes what is signed */
        assert_int_equal(aq_tls_open(lasting->folder, AQ_TLS_STAGE, 0, &tls), AQ_TLSERR);
        assert_int_equal(captured.count, 2);
    }
    write_list(lasting->folder, lasting->folder, NULL, ++*number, time(NULL) + 86400);
    assert_meets(lasting);
}

static void test_list_that_is_no_good_lets_nobody_in(void **state)
{
    (void)state;
    struct lasting lasting;
    const time_t now = time(NULL);
    int64_t number = 7;
    char whole[4096];
    lasting_begin(&lasting);
    char path[KEYS_PATH_BYTES + 32];
    snprintf(path, sizeof path, "%s/revoked.pem", lasting.folder);
    assert_meets(&lasting);
    write_list(lasting.folder, theirs, NULL, number, now + 86400); /* the same names, another key */
    no_good(&lasting, &number, "it is not signed by the authority");
    write_list(lasting.folder, lasting.folder, NULL, ++number, now - 1);
    no_good(&lasting, &number, "it is over");
    write_list(lasting.folder, lasting.folder, NULL, number - 1, now + 86400);
    no_good(&lasting, &number, "it is older than the one that was there before");
    write_list(lasting.folder, lasting.folder, NULL, 0, now + 86400);
    no_good(&lasting, &number, "it has no number");
    assert_int_equal(unlink(path), 0);
    no_good(&lasting, &number, "it is gone");
    assert_int_equal(chmod(path, 0666), 0);
    no_good(&lasting, &number, "others may write it");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0700), 0);
    captured.count = 0;
    assert_refused(&lasting, "it is no regular file");
    assert_int_equal(rmdir(path), 0);
    write_list(lasting.folder, lasting.folder, NULL, ++number, now + 86400);
    assert_meets(&lasting);
    const size_t count = slurp(path, whole, sizeof whole);
    for (size_t cut = 0; cut < count - 4; cut += 37) { /* as a copy that is under way */
        spill(path, whole, cut);
        assert_refused(&lasting, "it is damaged");
    }
    for (size_t at = 0; at < count; at += 17) {
        whole[at] ^= 4;
        spill(path, whole, count);
        const char *text = meeting_of(&lasting);
        if (text && !strstr(text, "our list of revoked certificates is no good")) fail_msg("%s", text);
        whole[at] ^= 4;
        spill(path, whole, count);
        assert_meets(&lasting);
    }
    spill(path, whole, 0);
    no_good(&lasting, &number, "it is damaged");
    lasting_end(&lasting);
}

/* ---- files ---- */

static void open_fails(enum aq_status status, const char *words)
{
    struct aq_tls *tls = NULL;
    capture_begin();
    assert_int_equal(aq_tls_open(ours, AQ_TLS_STAGE, 2, &tls), status);
    if (!captured_has(words)) fail_msg("not said: %s", words);
    capture_end();
    assert_null(tls);
}

static void test_open_loose_permissions_are_refused(void **state)
{
    (void)state;
    const char *path = file_in(ours, "stage-2.pem");
    struct aq_tls_facts facts;
    static const mode_t loose[] = {0640, 0604, 0660, 0610, 0777};
    for (size_t i = 0; i < sizeof loose / sizeof *loose; i++) {
        assert_int_equal(chmod(path, loose[i]), 0);
        open_fails(AQ_REFUSED, "chmod 6");
        capture_begin();
        assert_int_equal(aq_tls_describe(path, &facts), AQ_REFUSED);
        capture_end();
    }
    assert_int_equal(chmod(path, 0600), 0);
    assert_int_equal(chmod(file_in(ours, "authority.pem"), 0666), 0);
    open_fails(AQ_REFUSED, "chmod 644");
    assert_int_equal(chmod(file_in(ours, "authority.pem"), 0644), 0);
    assert_int_equal(chmod(ours, 0777), 0);
    open_fails(AQ_REFUSED, "chmod 700");
    assert_int_equal(chmod(ours, 0720), 0);
    open_fails(AQ_REFUSED, "chmod 700");
    assert_int_equal(chmod(ours, 0700), 0);
    struct aq_tls *tls;
    assert_int_equal(aq_tls_open(ours, AQ_TLS_STAGE, 2, &tls), AQ_OK);
    aq_tls_close(tls);
}

static void test_open_file_of_another_stage_is_refused(void **state)
{
    (void)state;
    char kept[KEYS_PATH_BYTES + 32];
    snprintf(kept, sizeof kept, "%s/kept", ours);
    assert_int_equal(rename(file_in(ours, "stage-2.pem"), kept), 0);
    open_fails(AQ_NOTFOUND, "aqpipe keys init");
    char from[KEYS_PATH_BYTES + 32];
    snprintf(from, sizeof from, "%s/stage-3.pem", ours);
    assert_int_equal(link(from, file_in(ours, "stage-2.pem")), 0);
    open_fails(AQ_TLSERR, "is the certificate of aqpipe://demo/stage/3, not of aqpipe://demo/stage/2");
    assert_int_equal(rename(kept, file_in(ours, "stage-2.pem")), 0);
}

/* Cut at every 7th byte, and one bit of every 5th byte flipped: a status each time, never a crash, never a wrong key.
 */
static void test_open_damaged_pem_is_refused(void **state)
{
    (void)state;
    char whole[4096], broken[4096];
    char path[KEYS_PATH_BYTES + 32];
    uint32_t refused = 0, tried = 0;
    snprintf(path, sizeof path, "%s/stage-2.pem", ours);
    const size_t count = slurp(path, whole, sizeof whole);
    capture_begin();
    for (size_t i = 0; i + 2 < count; i++) {
        struct aq_tls *tls = NULL;
        if (i % 5 != 0 && i % 7 != 0) continue;
        memcpy(broken, whole, count);
        broken[i] ^= (char)(1 << (i % 7));
        spill(path, broken, i % 7 == 0 ? i : count);
        captured.count = 0;
        const enum aq_status status = aq_tls_open(ours, AQ_TLS_STAGE, 2, &tls);
        tried++;
        refused += status != AQ_OK;
        assert_int_equal(captured.count, status == AQ_OK ? 0 : 1);
        aq_tls_close(tls);
    }
    capture_end();
    assert_true(refused * 100 >= tried * 95); /* a flip in white space or in text between the blocks changes nothing */
    spill(path, "\0\0\0", 3);
    open_fails(AQ_CORRUPT, "copy it again");
    spill(path, whole, count);
}

static void test_uri_only_its_one_form_is_read(void **state)
{
    (void)state;
    struct aq_tls_name name;
    char uri[AQ_TLS_URI_BYTES];
    static const char *const good[] = {
        "aqpipe://j",        "aqpipe://a.b-c_9/stage/0",   "aqpipe://j/stage/63",      "aqpipe://j/launcher",
        "aqpipe://j/daemon", "aqpipe://j/daemon/10.0.0.5", "aqpipe://j/daemon/fe80::1"};
    static const char *const bad[] = {
        "",
        "aqpipe://",
        "aqpipe:///stage/1",
        "aqpipe://j/",
        "aqpipe://j/stage/",
        "aqpipe://j/stage/01",
        "aqpipe://j/stage/-1",
        "aqpipe://j/stage/1/",
        "aqpipe://j/stage/4294967296",
        "aqpipe://j/Launcher",
        "AQPIPE://j/daemon",
        "aqpipe://j k/daemon",
        "aqpipe://j/daemon ",
        "aqpipe://j/daemon/",
        "aqpipe://j/daemon/A",
        "aqpipe://j/daemon/a/b",
        "aqpipe://j/daemon/.a",
        "aqpipe://j/daemon/a b",
        "aqpipe://j/daemon/0123456789012345678901234567890123456789012345678901234567890123",
        "https://j/daemon"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_true(aq_tls_uri_read(good[i], strlen(good[i]), &name));
        assert_string_equal(aq_tls_uri(&name, uri), good[i]);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(aq_tls_uri_read(bad[i], strlen(bad[i]), &name));
    assert_false(aq_tls_uri_read("aqpipe://j/daemon\0x", 19, &name));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accept_certificate_of_another_authority_is_refused),
        cmocka_unit_test(test_accept_certificate_of_another_stage_is_refused),
        cmocka_unit_test(test_accept_one_of_two_refuses_a_third),
        cmocka_unit_test(test_accept_expired_certificate_is_refused),
        cmocka_unit_test(test_accept_no_certificate_is_refused),
        cmocka_unit_test(test_accept_tls_1_2_is_refused),
        cmocka_unit_test(test_accept_plain_bytes_are_refused),
        cmocka_unit_test(test_connect_wrong_listener_is_refused),
        cmocka_unit_test(test_hello_of_another_rank_than_the_certificate_is_refused),
        cmocka_unit_test(test_connect_without_keys_is_refused),
        cmocka_unit_test(test_daemon_of_another_host_is_refused),
        cmocka_unit_test(test_open_daemon_wants_its_own_host),
        cmocka_unit_test(test_revoked_is_refused_from_the_next_handshake_on),
        cmocka_unit_test(test_revoke_by_name_means_all_that_had_it),
        cmocka_unit_test(test_revoked_session_that_stands_ends),
        cmocka_unit_test(test_revoked_serial_is_compared_whole),
        cmocka_unit_test(test_list_that_is_no_good_lets_nobody_in),
        cmocka_unit_test(test_open_loose_permissions_are_refused),
        cmocka_unit_test(test_open_file_of_another_stage_is_refused),
        cmocka_unit_test(test_open_damaged_pem_is_refused),
        cmocka_unit_test(test_uri_only_its_one_form_is_read),
    };
    return cmocka_run_group_tests(tests, make_folders, remove_folders);
}
