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
#include <sys/socket.h>
#include <sys/stat.h>

#include "link_pair.h"
#include "log_capture.h"
#include "tls_talk.h"

static char ours[KEYS_PATH_BYTES], theirs[KEYS_PATH_BYTES];

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
    refuse(&s, "presents aqpipe://demo/stage/1, which is not valid (");
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

static void extend(X509 *certificate, X509 *issuer, int nid, const char *value)
{
    X509V3_CTX context;
    X509V3_set_ctx(&context, issuer, certificate, NULL, NULL, 0);
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, &context, nid, value);
    assert_non_null(extension);
    assert_int_equal(X509_add_ext(certificate, extension, -1), 1);
    X509_EXTENSION_free(extension);
}

/* A file that our authority signs, with these alternative names, which the project itself would not write. */
static void certify(const char *file, const char *names)
{
    BIO *bio = BIO_new_file(file_in(ours, "authority.pem"), "r");
    X509 *authority = PEM_read_bio_X509(bio, NULL, NULL, NULL), *made = X509_new();
    BIO_free(bio);
    bio = BIO_new_file(file_in(ours, "authority-key.pem"), "r");
    EVP_PKEY *authority_key = PEM_read_bio_PrivateKey(bio, NULL, NULL, NULL), *key = EVP_EC_gen("P-256");
    BIO_free(bio);
    assert_true(authority && authority_key && made && key);
    assert_int_equal(X509_set_version(made, X509_VERSION_3), 1);
    assert_int_equal(ASN1_INTEGER_set(X509_get_serialNumber(made), 99), 1);
    assert_int_equal(X509_set_issuer_name(made, X509_get_subject_name(authority)), 1);
    assert_non_null(X509_gmtime_adj(X509_getm_notBefore(made), -3600));
    assert_non_null(X509_gmtime_adj(X509_getm_notAfter(made), 3600));
    assert_int_equal(X509_set_pubkey(made, key), 1);
    extend(made, authority, NID_basic_constraints, "critical,CA:FALSE");
    extend(made, authority, NID_key_usage, "critical,digitalSignature");
    extend(made, authority, NID_subject_key_identifier, "hash");
    extend(made, authority, NID_authority_key_identifier, "keyid:always");
    extend(made, authority, NID_subject_alt_name, names);
    extend(made, authority, NID_ext_key_usage, "clientAuth,serverAuth");
    assert_true(X509_sign(made, authority_key, EVP_sha256()) > 0);
    bio = BIO_new_file(file_in(ours, file), "w");
    assert_int_equal(PEM_write_bio_X509(bio, made), 1);
    assert_int_equal(PEM_write_bio_PKCS8PrivateKey(bio, key, NULL, NULL, 0, NULL, NULL), 1);
    BIO_free(bio);
    EVP_PKEY_free(key);
    EVP_PKEY_free(authority_key);
    X509_free(made);
    X509_free(authority);
}

static void refuse_named(const char *names, const char *words)
{
    struct stranger s = {.folder = ours, .certificate = "odd.pem", .version = TLS1_3_VERSION};
    certify("odd.pem", names);
    refuse(&s, words);
    assert_int_equal(unlink(file_in(ours, "odd.pem")), 0);
}

/* One authority may sign for two jobs: who belongs to the other is still a stranger. */
static void test_accept_certificate_of_another_job_is_refused(void **state)
{
    (void)state;
    refuse_named("URI:aqpipe://demo2/stage/1", "presents aqpipe://demo2/stage/1, expected aqpipe://demo/stage/1 of");
    refuse_named("URI:aqpipe://dem/stage/1", "presents aqpipe://dem/stage/1, expected aqpipe://demo/stage/1 of");
}

/* Who has two names has none, in whatever order they stand. */
static void test_accept_certificate_of_two_names_is_refused(void **state)
{
    static const char WORDS[] = "presents a certificate without an aqpipe:// name, expected aqpipe://demo/stage/1 of";
    (void)state;
    refuse_named("URI:aqpipe://demo/stage/1,URI:aqpipe://demo/stage/3", WORDS);
    refuse_named("URI:aqpipe://demo/stage/3,URI:aqpipe://demo/stage/1", WORDS);
    refuse_named("URI:aqpipe://demo/stage/1,URI:https://demo/stage/1", WORDS);
    refuse_named("DNS:demo", WORDS);
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
    meet(&another_authority, AQ_TLSERR, "presents aqpipe://demo/stage/2, which is not valid (");
}

/* Without a stage in the address the certificate must be that of the rank in the HELLO. */
static void test_hello_of_another_rank_than_the_certificate_is_refused(void **state)
{
    (void)state;
    const struct meeting liar = {ours, ours, "?peer=2", 2, 3};
    meet(&liar, AQ_MISMATCH, "claims to be rank 1, but its certificate is another stage's");
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

/* ---- daemons ---- */

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

/* A site of this file, at a stage that expects `wanted` ("": any): is it taken? */
static bool enters(const char *site, const char *wanted)
{
    struct aq_tls_name expected = {.role = AQ_TLS_SITE};
    const struct aq_tls_name stage = {.role = AQ_TLS_STAGE, .stage = 1};
    struct aq_tls *server, *client;
    struct talk talk;
    snprintf(expected.host, sizeof expected.host, "%s", wanted);
    assert_int_equal(aq_tls_open_site(ours, site, &client), AQ_OK);
    assert_int_equal(aq_tls_open(ours, AQ_TLS_STAGE, 1, &server), AQ_OK);
    talk_begin(&talk, client, &stage, server, &expected);
    talk_once(&talk);
    const bool good = talk.status[0] == AQ_OK && talk.status[1] == AQ_OK;
    if (!good) assert_non_null(strstr(aq_tls_session_text(talk.end[1]), "expected aqpipe://demo/site/"));
    talk_end(&talk);
    aq_tls_close(server);
    aq_tls_close(client);
    return good;
}

static void test_site_is_taken_for_itself_alone(void **state)
{
    (void)state;
    const int64_t now = (int64_t)time(NULL);
    struct aq_tls_hosts sites;
    struct aq_tls *tls;
    assert_int_equal(aq_tls_make_site(ours, "ward-7", now - 3600, now + 86400), AQ_OK);
    assert_true(enters("ward-7", "ward-7"));
    assert_true(enters("ward-7", ""));
    assert_false(enters("ward-7", "ward-8"));
    assert_false(enters("ward-7", "ward-"));
    assert_false(meets("here", "ward-7", "presents aqpipe://demo/daemon/here"));
    assert_int_equal(aq_tls_sites(ours, &sites), AQ_OK);
    assert_int_equal(sites.count, 1);
    assert_string_equal(sites.of[0], "ward-7");
    capture_begin();
    assert_int_equal(aq_tls_open_site(ours, "../x", &tls), AQ_INVAL);
    assert_int_equal(aq_tls_open_site(ours, "ward-9", &tls), AQ_NOTFOUND);
    assert_true(captured_has("aqpipe keys enroll ") && captured_has(" --site ward-9 --out FOLDER makes it)"));
    assert_int_equal(aq_tls_make_site(ours, "Ward", now, now + 1), AQ_INVAL);
    capture_end();
    assert_int_equal(unlink(file_in(ours, "site-ward-7.pem")), 0);
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
    assert_true(captured_has("the daemons of here, there: choose this host's (--host)"));
    assert_int_equal(aq_tls_open_daemon(ours, "elsewhere", "there", &tls), AQ_NOTFOUND);
    assert_true(captured_has(" elsewhere makes it)") && captured_has("aqpipe keys add-host "));
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
    assert_true(captured_has("any host could pose as another"));
    capture_end();
    assert_int_equal(rename(file_in(ours, "daemon.pem"), here), 0);
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
    open_fails(AQ_NOTFOUND, " --renew --stages 3 makes it)");
    char key[KEYS_PATH_BYTES + 32], away[KEYS_PATH_BYTES + 32];
    snprintf(key, sizeof key, "%s/authority-key.pem", ours);
    snprintf(away, sizeof away, "%s/away", ours);
    assert_int_equal(rename(key, away), 0); /* as in a bundle: nothing can be made here */
    open_fails(AQ_NOTFOUND, "keys init DIR --renew --stages 3 makes it in the folder that has authority-key.pem");
    assert_int_equal(rename(away, key), 0);
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
        cmocka_unit_test(test_accept_certificate_of_another_job_is_refused),
        cmocka_unit_test(test_accept_certificate_of_two_names_is_refused),
        cmocka_unit_test(test_connect_wrong_listener_is_refused),
        cmocka_unit_test(test_hello_of_another_rank_than_the_certificate_is_refused),
        cmocka_unit_test(test_connect_without_keys_is_refused),
        cmocka_unit_test(test_site_is_taken_for_itself_alone),
        cmocka_unit_test(test_daemon_of_another_host_is_refused),
        cmocka_unit_test(test_open_daemon_wants_its_own_host),
        cmocka_unit_test(test_open_loose_permissions_are_refused),
        cmocka_unit_test(test_open_file_of_another_stage_is_refused),
        cmocka_unit_test(test_open_damaged_pem_is_refused),
        cmocka_unit_test(test_uri_only_its_one_form_is_read),
    };
    return cmocka_run_group_tests(tests, make_folders, remove_folders);
}
