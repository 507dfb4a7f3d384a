/*
 * quic_library.c -- what the QUIC library calls, its settings and its TLS (quic_stream.h).
 */
#include "transport.h" /* without QUIC it is all there is */

#if AQ_QUIC
#include <gnutls/crypto.h>
#include <ngtcp2/ngtcp2_crypto_gnutls.h>
#include <string.h>

#include "net_limits.h"
#include "quic_stream.h"

enum { MARKS = 64 << 10 }; /* bytes of the peer's stream that may be on their way */
static const char KEY_NAME[] = "aqpipe", KEY[] = "aqpipe: identity is above", PROTOCOL[] = "aqpipe";
static const char PRIORITY[] = "NORMAL:-VERS-ALL:+VERS-TLS1.3:-CIPHER-ALL:+AES-128-GCM:+CHACHA20-POLY1305:-GROUP-ALL:"
                               "+GROUP-X25519:+GROUP-SECP256R1:-KX-ALL:+ECDHE-PSK:%DISABLE_TLS13_COMPAT_MODE";
static const uint64_t KEEP_ALIVES = 6; /* packets of an idle connection within its idle time */

/* ---- what the library calls ---- */

static ngtcp2_conn *conn_of(ngtcp2_crypto_conn_ref *reference)
{
    return ((struct quic_stream *)reference->user_data)->conn;
}

void aq_quic_random(uint8_t *to, size_t bytes, const ngtcp2_rand_ctx *context)
{
    (void)context;
    if (gnutls_rnd(GNUTLS_RND_RANDOM, to, bytes) != 0) AQ_ASSERT(!"the system has no random numbers");
}

static int new_id(ngtcp2_conn *conn, ngtcp2_cid *id, uint8_t *token, size_t bytes, void *context)
{
    const struct quic_stream *q = context;
    (void)conn;
    id->datalen = bytes;
    aq_quic_random(id->data, bytes, NULL);
    aq_quic_random(token, NGTCP2_STATELESS_RESET_TOKENLEN, NULL);
    return q->server ? ngtcp2_crypto_generate_stateless_reset_token(token, q->secret, AQ_QUIC_SECRET_BYTES, id) : 0;
}

static int datagram_came(ngtcp2_conn *conn, uint32_t flags, const uint8_t *bytes, size_t count, void *context)
{
    struct quic_stream *q = context;
    (void)conn;
    (void)flags;
    aq_quic_heard(q);
    const enum aq_status status = aq_pieces_receive(q->pieces, bytes, count, &q->stream.broken);
    if (status != AQ_OK) q->ended = status;
    return 0;
}

static int datagram_acked(ngtcp2_conn *conn, uint64_t id, void *context)
{
    struct quic_stream *q = context;
    (void)conn;
    aq_quic_heard(q);
    q->acked_bytes += AQ_PIECE_BYTES;
    aq_pieces_acked(q->pieces, id);
    return 0;
}

/* Those that a full queue dropped count for nothing: more packets would not help. */
static int datagram_lost(ngtcp2_conn *conn, uint64_t id, void *context)
{
    struct quic_stream *q = context;
    const uint64_t now_ns = aq_clock_ns();
    struct aq_path path;
    (void)conn;
    q->stream.ops->path(&q->stream, &path);
    if (aq_path_full(&path)) q->full_until_ns = now_ns + path.round_trip_ns + AQ_QUEUE_KEEP_NS;
    q->lost_bytes += AQ_PIECE_BYTES;
    if (now_ns >= q->full_until_ns) {
        q->lost += 1;
        q->lossy_until_ns = now_ns + AQ_COPIES_KEEP_NS;
    }
    aq_pieces_lost(q->pieces, id);
    return 0;
}

/* Of the peer's marks. The library keeps bytes that come out of order, so that the window is small. */
static int mark_came(ngtcp2_conn *conn, uint32_t flags, int64_t id, uint64_t offset, const uint8_t *bytes, size_t count,
                     void *context, void *of_stream)
{
    (void)flags;
    (void)offset;
    (void)bytes;
    (void)context;
    (void)of_stream;
    ngtcp2_conn_extend_max_offset(conn, count);
    return ngtcp2_conn_extend_max_stream_offset(conn, id, count) == 0 ? 0 : NGTCP2_ERR_CALLBACK_FAILURE;
}

static int key_for(gnutls_session_t session, const char *name, gnutls_datum_t *key)
{
    (void)session;
    if (strcmp(name, KEY_NAME) != 0) return -1;
    key->data = gnutls_malloc(sizeof KEY - 1);
    if (!key->data) return -1;
    memcpy(key->data, KEY, sizeof KEY - 1);
    key->size = sizeof KEY - 1;
    return 0;
}

/* ---- a connection ---- */

/* QUIC's own TLS, with the key that everyone knows. */
static enum aq_status open_session(struct quic_stream *q, bool server)
{
    const gnutls_datum_t key = {.data = (uint8_t *)(uintptr_t)KEY, .size = sizeof KEY - 1},
                         protocol = {.data = (uint8_t *)(uintptr_t)PROTOCOL, .size = sizeof PROTOCOL - 1};
    int code = gnutls_init(&q->session, server ? GNUTLS_SERVER | GNUTLS_NO_AUTO_SEND_TICKET | GNUTLS_NO_TICKETS
                                               : GNUTLS_CLIENT | GNUTLS_NO_TICKETS);
    if (code == 0) code = gnutls_priority_set_direct(q->session, PRIORITY, NULL);
    if (code == 0)
        code = server ? gnutls_psk_allocate_server_credentials(&q->server_key)
                      : gnutls_psk_allocate_client_credentials(&q->client_key);
    if (code == 0 && server) gnutls_psk_set_server_credentials_function(q->server_key, key_for);
    if (code == 0 && !server)
        code = gnutls_psk_set_client_credentials(q->client_key, KEY_NAME, &key, GNUTLS_PSK_KEY_RAW);
    if (code == 0)
        code =
            gnutls_credentials_set(q->session, GNUTLS_CRD_PSK, server ? (void *)q->server_key : (void *)q->client_key);
    if (code == 0) code = gnutls_alpn_set_protocols(q->session, &protocol, 1, GNUTLS_ALPN_MANDATORY);
    if (code == 0)
        code = server ? ngtcp2_crypto_gnutls_configure_server_session(q->session)
                      : ngtcp2_crypto_gnutls_configure_client_session(q->session);
    if (code != 0) return aq_fail(AQ_TLSERR, "net", "quic to %s: %s", q->stream.name, gnutls_strerror(code));
    q->reference = (ngtcp2_crypto_conn_ref){.get_conn = conn_of, .user_data = q};
    gnutls_session_set_ptr(q->session, &q->reference);
    return AQ_OK;
}

static void common_settings(const struct quic_stream *q, bool small, ngtcp2_callbacks *calls, ngtcp2_settings *settings,
                            ngtcp2_transport_params *params)
{
    *calls = (ngtcp2_callbacks){.recv_crypto_data = ngtcp2_crypto_recv_crypto_data_cb,
                                .encrypt = ngtcp2_crypto_encrypt_cb,
                                .decrypt = ngtcp2_crypto_decrypt_cb,
                                .hp_mask = ngtcp2_crypto_hp_mask_cb,
                                .rand = aq_quic_random,
                                .get_new_connection_id = new_id,
                                .update_key = ngtcp2_crypto_update_key_cb,
                                .delete_crypto_aead_ctx = ngtcp2_crypto_delete_crypto_aead_ctx_cb,
                                .delete_crypto_cipher_ctx = ngtcp2_crypto_delete_crypto_cipher_ctx_cb,
                                .recv_stream_data = mark_came,
                                .recv_datagram = datagram_came,
                                .ack_datagram = datagram_acked,
                                .lost_datagram = datagram_lost,
                                .get_path_challenge_data = ngtcp2_crypto_get_path_challenge_data_cb,
                                .version_negotiation = ngtcp2_crypto_version_negotiation_cb};
    ngtcp2_settings_default(settings);
    settings->cc_algo = NGTCP2_CC_ALGO_BBR2;
    settings->initial_ts = aq_clock_ns();
    settings->max_tx_udp_payload_size = small ? AQ_QUIC_PACKET_BYTES_MIN : AQ_QUIC_PACKET_BYTES;
    settings->no_pmtud = small;
    ngtcp2_transport_params_default(params);
    params->max_datagram_frame_size = UINT16_MAX;
    params->max_idle_timeout = q->idle_ns;
    params->disable_active_migration = 1;
    params->initial_max_streams_uni = 1;
    params->initial_max_stream_data_uni = params->initial_max_data = MARKS;
}

enum aq_status aq_quic_begin_server(struct quic_stream *q, const uint8_t secret[AQ_QUIC_SECRET_BYTES],
                                    const ngtcp2_pkt_hd *head, const ngtcp2_cid *original)
{
    ngtcp2_callbacks calls;
    ngtcp2_settings settings;
    ngtcp2_transport_params params;
    ngtcp2_cid id = {.datalen = AQ_QUIC_ID_BYTES};
    common_settings(q, false, &calls, &settings, &params);
    calls.recv_client_initial = ngtcp2_crypto_recv_client_initial_cb;
    settings.token = head->token;
    params.original_dcid = *original;
    params.retry_scid = head->dcid;
    params.retry_scid_present = 1;
    q->server = true;
    memcpy(q->secret, secret, AQ_QUIC_SECRET_BYTES);
    if (new_id(NULL, &id, params.stateless_reset_token, AQ_QUIC_ID_BYTES, q) != 0) return AQ_NOMEM;
    params.stateless_reset_token_present = 1;
    if (ngtcp2_conn_server_new(&q->conn, &head->scid, &id, &q->path, head->version, &calls, &settings, &params, NULL,
                               q) != 0)
        return aq_fail(AQ_NOMEM, "net", "no connection with %s", q->stream.name);
    AQ_TRY(open_session(q, true));
    ngtcp2_conn_set_tls_native_handle(q->conn, q->session);
    ngtcp2_conn_set_keep_alive_timeout(q->conn, q->idle_ns / KEEP_ALIVES);
    return AQ_OK;
}

enum aq_status aq_quic_begin_client(struct quic_stream *q, bool small)
{
    ngtcp2_callbacks calls;
    ngtcp2_settings settings;
    ngtcp2_transport_params params;
    ngtcp2_cid mine = {.datalen = AQ_QUIC_ID_BYTES}, first = {.datalen = NGTCP2_MIN_INITIAL_DCIDLEN + 8};
    common_settings(q, small, &calls, &settings, &params);
    calls.client_initial = ngtcp2_crypto_client_initial_cb;
    calls.recv_retry = ngtcp2_crypto_recv_retry_cb;
    aq_quic_random(mine.data, mine.datalen, NULL);
    aq_quic_random(first.data, first.datalen, NULL);
    if (ngtcp2_conn_client_new(&q->conn, &first, &mine, &q->path, NGTCP2_PROTO_VER_V1, &calls, &settings, &params, NULL,
                               q) != 0)
        return aq_fail(AQ_NOMEM, "net", "no connection to %s", q->stream.name);
    AQ_TRY(open_session(q, false));
    ngtcp2_conn_set_tls_native_handle(q->conn, q->session);
    ngtcp2_conn_set_keep_alive_timeout(q->conn, q->idle_ns / KEEP_ALIVES);
    return AQ_OK;
}
#endif
