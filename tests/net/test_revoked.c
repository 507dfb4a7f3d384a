/*
 * test_revoked.c -- the list of revoked certificates: who is refused by it and when, and what becomes of a list that is
 * no good.
 */
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include "link_pair.h"
#include "log_capture.h"
#include "tls_talk.h"
#include "virtual_clock.h"

static char theirs[KEYS_PATH_BYTES]; /* another authority, of the same job */

static int make_folder(void **state)
{
    (void)state;
    keys_make(theirs, "demo");
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    keys_remove(theirs);
    return 0;
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
    virtual_clock(later, NULL);
    const enum aq_status status = aq_tls_session_check(talk.end[1]);
    assert_int_equal(status, AQ_TLSERR);
    assert_non_null(strstr(aq_tls_session_text(talk.end[1]), "is aqpipe://demo/launcher, which was revoked on 20"));
    assert_int_equal(aq_tls_session_check(talk.end[0]), AQ_OK); /* the daemon is as good as it was */
    char byte;
    size_t done;
    const struct iovec iov = {.iov_base = &byte, .iov_len = 1};
    assert_int_equal(aq_tls_session_read(talk.end[1], &iov, 1, &done), AQ_TLSERR);
    assert_int_equal(aq_tls_session_write(talk.end[1], &iov, 1, &done), AQ_TLSERR);
    virtual_clock(NULL, NULL);
    talk_end(&talk);
    lasting_end(&lasting);
}

/* The same of a link: it ends with the line, and does not look for the peer again. */
static void test_revoked_link_that_stands_ends(void **state)
{
    (void)state;
    char folder[KEYS_PATH_BYTES];
    struct link_pair pair = {0};
    const struct aq_tls_name stage = {.role = AQ_TLS_STAGE, .stage = 1};
    uint16_t port;
    keys_make(folder, "demo");
    pair_config(&pair);
    for (uint32_t i = 0; i < 2; i++) {
        pair.config[i].rank = 2 - i;
        pair.config[i].peer_rank = 1 + i;
        pair.config[i].heartbeat_ns = 200000000;
        pair.config[i].outage_ns_max = 60000000000; /* which would be healed otherwise */
        assert_int_equal(aq_tls_open(folder, AQ_TLS_STAGE, 2 - i, &pair.tls[i]), AQ_OK);
    }
    pair_nets(&pair);
    assert_int_equal(aq_link_listen(pair.net[0], "tls+tcp://127.0.0.1:0?peer=1", &pair.listener, &port), AQ_OK);
    snprintf(pair.address, sizeof pair.address, "tls+tcp://127.0.0.1:%u?peer=2", port);
    pair_meet(&pair, PAIR_PATIENCE);
    assert_int_equal(pair.accepted, AQ_OK);
    capture_begin();
    revoke_name(folder, &stage, 1);
    const struct aq_link_event event = pair_event(&pair, 0, PAIR_PATIENCE);
    assert_int_equal(event.kind, AQ_LINK_CLOSED);
    assert_int_equal(event.status, AQ_TLSERR);
    assert_non_null(strstr(event.text, "the peer is aqpipe://demo/stage/1, which was revoked on 20"));
    capture_end();
    pair_close(&pair);
    aq_tls_close(pair.tls[0]);
    aq_tls_close(pair.tls[1]);
    keys_remove(folder);
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
                X509_CRL_set1_lastUpdate(list, from) == 1 && (until == 0 || X509_CRL_set1_nextUpdate(list, to) == 1));
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
    assert_refused(lasting, "and our list of revoked certificates is not valid (");
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
    write_list(lasting.folder, lasting.folder, NULL, ++number, 0);
    no_good(&lasting, &number, "it has no end");
    assert_int_equal(unlink(path), 0);
    no_good(&lasting, &number, "it was removed");
    assert_int_equal(chmod(path, 0666), 0);
    no_good(&lasting, &number, "others may write it");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0700), 0);
    captured.count = 0;
    assert_refused(&lasting, "it is not a regular file");
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
        if (text && !strstr(text, "our list of revoked certificates is not valid")) fail_msg("%s", text);
        whole[at] ^= 4;
        spill(path, whole, count);
        assert_meets(&lasting);
    }
    spill(path, whole, 0);
    no_good(&lasting, &number, "it is damaged");
    lasting_end(&lasting);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_revoked_is_refused_from_the_next_handshake_on),
        cmocka_unit_test(test_revoke_by_name_means_all_that_had_it),
        cmocka_unit_test(test_revoked_session_that_stands_ends),
        cmocka_unit_test(test_revoked_link_that_stands_ends),
        cmocka_unit_test(test_revoked_serial_is_compared_whole),
        cmocka_unit_test(test_list_that_is_no_good_lets_nobody_in),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
