/* page.c -- see the header. */
#include "page.h"

#if AQ_MICROHTTPD

#include <microhttpd.h>
#include <openssl/crypto.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <gnutls/gnutls.h>
#include <gnutls/x509.h>

#include "board_text.h"
#include "control_socket.h"
#include "net/endpoint.h"

enum { PEM_BYTES_MAX = 1 << 20, REQUEST_BYTES = 32 << 10, COOKIE_BYTES = AQ_TOKEN_BYTES_MAX + 128 };

/* A served document: a text, or one that is made of a view. */
struct document {
    const char *path, *type;
    void (*make)(const struct aq_board_view *view, struct aq_text *out); /* NULL: `text` */
    const char *text;
};

static const char html[] = "text/html; charset=utf-8";
static const struct document documents[] = {
    {"/", html, aq_board_page, NULL},
    {"/body", html, aq_board_body, NULL},
    {"/status.json", "application/json", aq_board_json, NULL},
    {"/metrics", "application/openmetrics-text; version=1.0.0; charset=utf-8", aq_board_metrics, NULL},
    {"/page.css", "text/css", NULL, aq_board_css},
    {"/page.js", "text/javascript", NULL, aq_board_js}};
enum { DOCUMENTS = sizeof documents / sizeof *documents };

static const char *const headers[][2] = {
    {"Content-Security-Policy", "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
                                "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},
    {"X-Content-Type-Options", "nosniff"},
    {"Referrer-Policy", "no-referrer"},
    {"Cache-Control", "no-store"}};

struct made { /* a document of a view */
    struct aq_text text;
    uint64_t looked_ns; /* when that view was taken; 0: no document yet */
};

/* A connection, from its acceptance to its end. Of the server's thread. */
struct guest {
    int fd; /* -1: the place is free */
    uint64_t source, since_ns;
    bool asked, proved; /* it has made a whole request; it has shown a token or a certificate */
    bool leaves;        /* it was told to go */
};

/* Those that leave still have a descriptor until the server's thread comes to them. */
enum { GUESTS = 2 * AQ_PAGE_CONNECTIONS };

struct aq_page {
    struct guest guests[GUESTS];
    struct aq_board *board;
    struct MHD_Daemon *daemon;
    struct aq_board_view *view; /* the server thread's */
    uint64_t looked_ns;         /* when the view was taken; 0: not yet */
    struct made made[DOCUMENTS];
    bool own, tls, clients; /* on this machine's own address; under TLS; certificates of clients are looked at */
    size_t token_bytes;     /* 0: none is asked for */
    char token[AQ_TOKEN_BYTES_MAX + 1];
    char url[AQ_ADDRESS_BYTES + 16];
    char *certificate, *key, *authority; /* texts of PEM files, or NULL */
};

/* ---- answers ---- */

static enum MHD_Result answer(struct MHD_Connection *connection, unsigned status, const char *type, const char *bytes,
                              size_t count, const char *const more[2])
{
    struct MHD_Response *response =
        MHD_create_response_from_buffer(count, (void *)(uintptr_t)bytes, MHD_RESPMEM_MUST_COPY);
    if (!response) return MHD_NO;
    (void)MHD_add_response_header(response, "Content-Type", type);
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++)
        (void)MHD_add_response_header(response, headers[i][0], headers[i][1]);
    if (more) (void)MHD_add_response_header(response, more[0], more[1]);
    const enum MHD_Result result = MHD_queue_response(connection, status, response);
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result say(struct MHD_Connection *connection, unsigned status, const char *text,
                           const char *const more[2])
{
    return answer(connection, status, "text/plain; charset=utf-8", text, strlen(text), more);
}

/* Takes a view, at most once in AQ_PAGE_FRESH_MS for any count of requests: the board is copied for it. All documents
 * are of that one view: figures of one are not older than those of another that was served before. */
static void look(struct aq_page *page)
{
    const uint64_t now = aq_clock_ns();
    if (page->looked_ns != 0 && now - page->looked_ns <= AQ_PAGE_FRESH_MS * 1000000ULL) return;
    aq_board_look(page->board, page->view);
    page->looked_ns = now;
}

static enum MHD_Result serve(struct aq_page *page, struct MHD_Connection *connection, size_t which)
{
    const struct document *document = &documents[which];
    struct made *made = &page->made[which];
    if (!document->make)
        return answer(connection, MHD_HTTP_OK, document->type, document->text, strlen(document->text), NULL);
    look(page);
    if (made->looked_ns != page->looked_ns) {
        aq_text_deinit(&made->text);
        made->text = (struct aq_text){0};
        document->make(page->view, &made->text);
        made->looked_ns = made->text.status == AQ_OK ? page->looked_ns : 0;
    }
    if (made->looked_ns == 0) return say(connection, MHD_HTTP_SERVICE_UNAVAILABLE, "no memory\n", NULL);
    return answer(connection, MHD_HTTP_OK, document->type, aq_text_of(&made->text), made->text.used, NULL);
}

/* For probes: is the job well? Nothing that anybody else wrote is in it. */
static enum MHD_Result health(struct aq_page *page, struct MHD_Connection *connection)
{
    struct aq_board_finding findings[AQ_BOARD_FINDINGS_MAX];
    look(page);
    const uint32_t count = aq_board_findings(page->view, findings);
    bool bad = false;
    for (uint32_t i = 0; i < count; i++)
        bad = bad || findings[i].bad;
    char text[64];
    snprintf(text, sizeof text, "%s\n", bad ? "bad: see status.json" : aq_board_state_text(page->view->state));
    return say(connection, bad ? MHD_HTTP_SERVICE_UNAVAILABLE : MHD_HTTP_OK, text, NULL);
}

/* ---- who has a place ---- */

/* The server's thread closes it when it finds that its peer has left. */
static void guest_leave(struct guest *guest)
{
    (void)shutdown(guest->fd, SHUT_RDWR);
    guest->leaves = true;
}

/* Before a connection is taken: is there a place, or one that gives way? */
static enum MHD_Result on_accept(void *context, const struct sockaddr *address, socklen_t bytes)
{
    struct aq_page *page = context;
    struct aq_guest places[AQ_PAGE_CONNECTIONS];
    struct guest *of[AQ_PAGE_CONNECTIONS] = {NULL};
    const uint64_t now = aq_clock_ns();
    uint32_t count = 0, room = 0;
    (void)bytes;
    for (int i = 0; i < GUESTS; i++) {
        struct guest *guest = &page->guests[i];
        const uint64_t end_ns = guest->since_ns + AQ_PAGE_REQUEST_S * UINT64_C(1000000000);
        if (guest->fd != -1 && !guest->leaves && !guest->asked && now > end_ns) guest_leave(guest);
        room += guest->fd == -1;
        if (guest->fd == -1 || guest->leaves || count == AQ_PAGE_CONNECTIONS) continue;
        of[count] = guest;
        places[count++] = (struct aq_guest){.source = guest->source,
                                            .since_ns = guest->since_ns,
                                            .state = guest->proved ? AQ_GUEST_PROVED : AQ_GUEST_UNPROVED};
    }
    if (room == 0) return MHD_NO;
    while (count < AQ_PAGE_CONNECTIONS)
        places[count++] = (struct aq_guest){.state = AQ_GUEST_NONE};
    const uint32_t index = aq_admit(places, count, aq_control_source(address, NULL), now);
    if (index == AQ_ADMISSION_REFUSED) return MHD_NO;
    if (of[index]) guest_leave(of[index]);
    return MHD_YES;
}

static void on_connection(void *context, struct MHD_Connection *connection, void **mine,
                          enum MHD_ConnectionNotificationCode what)
{
    struct aq_page *page = context;
    struct guest *guest = *mine;
    if (what == MHD_CONNECTION_NOTIFY_CLOSED) {
        if (guest) *guest = (struct guest){.fd = -1};
        return;
    }
    const union MHD_ConnectionInfo *fd = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    const union MHD_ConnectionInfo *who = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    for (int i = 0; i < GUESTS && !guest && fd; i++)
        if (page->guests[i].fd == -1) guest = &page->guests[i];
    if (!guest) return;
    *guest = (struct guest){
        .fd = fd->connect_fd, .source = who ? aq_control_source(who->client_addr, NULL) : 0, .since_ns = aq_clock_ns()};
    *mine = guest;
}

/* A whole request has come; proved: with a token or a certificate. */
static void guest_asks(struct MHD_Connection *connection, bool proved)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct guest *guest = info ? info->socket_context : NULL;
    if (!guest) return;
    guest->asked = true;
    guest->proved |= proved;
}

/* ---- who may ask ---- */

static bool same(const struct aq_page *page, const char *text, size_t bytes)
{
    return bytes == page->token_bytes && CRYPTO_memcmp(text, page->token, bytes) == 0;
}

static bool has_certificate(const struct aq_page *page, struct MHD_Connection *connection)
{
    unsigned status = 1;
    gnutls_typed_vdata_st purpose = {.type = GNUTLS_DT_KEY_PURPOSE_OID,
                                     .data = (unsigned char *)(uintptr_t)GNUTLS_KP_TLS_WWW_CLIENT};
    if (!page->clients) return false;
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_GNUTLS_SESSION);
    return info && info->tls_session && gnutls_certificate_verify_peers(info->tls_session, &purpose, 1, &status) == 0 &&
           status == 0;
}

/* By `Authorization: Bearer`, or by the cookie that ?token= has set. */
static bool has_token(const struct aq_page *page, struct MHD_Connection *connection)
{
    static const char bearer[] = "Bearer ";
    const char *header = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_AUTHORIZATION);
    const char *cookie = MHD_lookup_connection_value(connection, MHD_COOKIE_KIND, "aqpipe_token");
    if (header && strncmp(header, bearer, sizeof bearer - 1) == 0)
        return same(page, header + sizeof bearer - 1, strlen(header + sizeof bearer - 1));
    return cookie && same(page, cookie, strlen(cookie));
}

/* Where no token is asked for, does the request name this machine's own address? Other sites' names may lead here. */
static bool names_this_machine(struct MHD_Connection *connection, const char *version)
{
    const char *host = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_HOST), *why;
    struct aq_endpoint endpoint;
    /* No browser speaks HTTP/1.0. Later ones: the library loses a name behind a header with a zero byte. */
    if (!host) return strcmp(version, MHD_HTTP_VERSION_1_0) == 0;
    const bool port = aq_endpoint_parse(host, &endpoint, &why) == AQ_OK;
    return (port || aq_endpoint_parse_host(host, &endpoint, &why) == AQ_OK) && aq_endpoint_loopback(&endpoint);
}

/* ?token=: a browser gets a cookie in its place, so that the token is in no address that is shown or kept. */
static enum MHD_Result take_token(const struct aq_page *page, struct MHD_Connection *connection)
{
    char cookie[COOKIE_BYTES];
    snprintf(cookie, sizeof cookie, "aqpipe_token=%s; HttpOnly; SameSite=Strict; Path=/%s", page->token,
             page->tls ? "; Secure" : "");
    struct MHD_Response *response = MHD_create_response_from_buffer(0, cookie, MHD_RESPMEM_MUST_COPY);
    if (!response) return MHD_NO;
    (void)MHD_add_response_header(response, "Location", "/");
    (void)MHD_add_response_header(response, "Set-Cookie", cookie);
    (void)MHD_add_response_header(response, "Cache-Control", "no-store");
    (void)MHD_add_response_header(response, "Referrer-Policy", "no-referrer");
    const enum MHD_Result result = MHD_queue_response(connection, MHD_HTTP_SEE_OTHER, response);
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result on_request(void *context, struct MHD_Connection *connection, const char *url, const char *method,
                                  const char *version, const char *upload, size_t *upload_bytes, void **state)
{
    static const char *const allow[2] = {"Allow", "GET, HEAD"};
    static const char *const wants[2] = {"WWW-Authenticate", "Bearer realm=\"aqpipe\""};
    struct aq_page *page = context;
    (void)upload, (void)upload_bytes, (void)state;
    guest_asks(connection, false);
    if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0)
        return say(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "this page is for reading\n", allow);
    if (page->token_bytes || page->clients) {
        const char *given = MHD_lookup_connection_value(connection, MHD_GET_ARGUMENT_KIND, "token");
        if (given && page->token_bytes && same(page, given, strlen(given))) {
            guest_asks(connection, true);
            return take_token(page, connection);
        }
        if (!has_certificate(page, connection) && !(page->token_bytes && has_token(page, connection)))
            return say(connection, MHD_HTTP_UNAUTHORIZED,
                       "a token is needed: Authorization: Bearer TOKEN, or once ?token=TOKEN (status.token_file)\n",
                       wants);
        guest_asks(connection, true);
    } else if (!names_this_machine(connection, version)) {
        return say(connection, MHD_HTTP_FORBIDDEN, "this page is for 127.0.0.1 and localhost (status.listen)\n", NULL);
    }
    if (strcmp(url, "/health") == 0) return health(page, connection);
    for (size_t i = 0; i < DOCUMENTS; i++)
        if (strcmp(url, documents[i].path) == 0) return serve(page, connection, i);
    return say(connection, MHD_HTTP_NOT_FOUND, "there is /, /status.json, /metrics and /health\n", NULL);
}

/* The library's lines are about peers: logged only with AQ_LOG=status:4. */
static void log_line(void *context, const char *format, va_list arguments)
{
    char text[512];
    (void)context;
    vsnprintf(text, sizeof text, format, arguments);
    text[strcspn(text, "\n")] = 0;
    aq_log("status", 4, "%s", text);
}

/* ---- life ---- */

static enum aq_status load_token(struct aq_page *page, const char *path)
{
    struct aq_token token;
    AQ_TRY(aq_token_load(path, &token));
    for (size_t i = 0; i < token.bytes; i++)
        if (token.secret[i] <= ' ' || token.secret[i] > '~' || strchr("\",;\\", token.secret[i]))
            return aq_fail(AQ_INVAL, "status",
                           "%s: a browser takes no token with such a character (number %zu): use letters, digits and "
                           "-._~+/=",
                           path, i + 1);
    memcpy(page->token, token.secret, token.bytes);
    page->token_bytes = token.bytes;
    return AQ_OK;
}

static enum aq_status load_pem(const char *key, const char *path, char **out)
{
    if (!path) return AQ_OK;
    const enum aq_status status = aq_file_load(NULL, path, PEM_BYTES_MAX, out, NULL);
    return status == AQ_NOTFOUND ? aq_fail(AQ_NOTFOUND, "status", "%s: there is no %s", key, path) : status;
}

/* As for the keys of links: a private key that others can read is refused. A link is followed (certbot makes some). */
static enum aq_status check_key(const char *path)
{
    struct stat about;
    if (!path || stat(path, &about) != 0) return AQ_OK; /* load_pem says what is wrong */
    if (!S_ISREG(about.st_mode)) return aq_fail(AQ_INVAL, "status", "status.key: %s is not a regular file", path);
    if ((about.st_uid == geteuid() || about.st_uid == 0) && (about.st_mode & 077) == 0) return AQ_OK;
    return aq_fail(AQ_INVAL, "status",
                   "status.key: %s is a private key of user %u with mode %03o: it must be yours and readable only by "
                   "you (chmod 600 %s)",
                   path, (unsigned)about.st_uid, (unsigned)about.st_mode & 0777u, path);
}

static enum aq_status check(const struct aq_page_config *config, struct aq_page *page)
{
    struct aq_endpoint endpoint;
    const char *why;
    if (aq_endpoint_parse(config->listen, &endpoint, &why) != AQ_OK)
        return aq_fail(AQ_INVAL, "status", "status.listen: '%s' is not an address: %s", config->listen, why);
    page->own = aq_endpoint_loopback(&endpoint);
    page->tls = config->certificate != NULL;
    page->clients = config->client_authority != NULL;
    if (page->tls && !MHD_is_feature_supported(MHD_FEATURE_SSL))
        return aq_fail(AQ_NODEV, "status", "status.certificate: this libmicrohttpd was built without TLS");
    if (!page->own && !config->token_file && !page->clients)
        return aq_fail(
            AQ_REFUSED, "status",
            "status.listen: %s can be reached from elsewhere: set status.token_file (a file with a secret), or "
            "listen on 127.0.0.1 and use ssh -L",
            config->listen);
    if (config->token_file) AQ_TRY(load_token(page, config->token_file));
    AQ_TRY(load_pem("status.certificate", config->certificate, &page->certificate));
    AQ_TRY(check_key(config->key));
    AQ_TRY(load_pem("status.key", config->key, &page->key));
    return load_pem("status.client_authority", config->client_authority, &page->authority);
}

static void set_url(const char *listen, uint16_t port, struct aq_page *page)
{
    struct aq_endpoint endpoint;
    char text[AQ_ENDPOINT_TEXT_BYTES];
    const char *why;
    if (aq_endpoint_parse(listen, &endpoint, &why) != AQ_OK) return; /* check has taken it */
    snprintf(page->url, sizeof page->url, "%s://%s/", page->tls ? "https" : "http",
             aq_endpoint_text(&endpoint, port, text));
}

static enum aq_status start(const struct aq_page_config *config, struct aq_page *page)
{
    struct MHD_OptionItem tls[5];
    static const char priorities[] = "NORMAL:-VERS-ALL:+VERS-TLS1.3";
    int count = 0, fd;
    uint16_t port;
    sigset_t all, before;
    AQ_TRY(aq_control_listen(config->listen, true, &fd, &port));
    set_url(config->listen, port, page);
    if (page->certificate) tls[count++] = (struct MHD_OptionItem){MHD_OPTION_HTTPS_MEM_CERT, 0, page->certificate};
    if (page->key) tls[count++] = (struct MHD_OptionItem){MHD_OPTION_HTTPS_MEM_KEY, 0, page->key};
    if (page->authority) tls[count++] = (struct MHD_OptionItem){MHD_OPTION_HTTPS_MEM_TRUST, 0, page->authority};
    if (page->tls)
        tls[count++] = (struct MHD_OptionItem){MHD_OPTION_HTTPS_PRIORITIES, 0, (void *)(uintptr_t)priorities};
    tls[count] = (struct MHD_OptionItem){MHD_OPTION_END, 0, NULL};
    for (int i = 0; i < GUESTS; i++)
        page->guests[i].fd = -1;
    sigfillset(&all);
    (void)sigprocmask(SIG_SETMASK, &all, &before); /* signals are the launcher's, not its thread's */
    page->daemon = MHD_start_daemon(MHD_USE_EPOLL_INTERNAL_THREAD | MHD_USE_ERROR_LOG | (page->tls ? MHD_USE_TLS : 0),
                                    0, on_accept, page, on_request, page, MHD_OPTION_EXTERNAL_LOGGER, log_line, NULL,
                                    MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT, (unsigned)GUESTS,
                                    MHD_OPTION_NOTIFY_CONNECTION, on_connection, page, MHD_OPTION_CONNECTION_TIMEOUT,
                                    (unsigned)AQ_PAGE_IDLE_S, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)REQUEST_BYTES,
                                    MHD_OPTION_ARRAY, tls, MHD_OPTION_END);
    (void)sigprocmask(SIG_SETMASK, &before, NULL);
    if (page->daemon) return AQ_OK; /* it closes the socket */
    close(fd);
    return aq_fail(AQ_INVAL, "status",
                   page->tls
                       ? "status.certificate and status.key do not make a TLS server (are they a PEM certificate and "
                         "its key?)"
                       : "the status page cannot be started (AQ_LOG=status:4 shows more)");
}

enum aq_status aq_page_open(const struct aq_page_config *config, struct aq_board *board, struct aq_page **out)
{
    void *memory = NULL, *view = NULL;
    AQ_TRY(aq_alloc(sizeof(struct aq_page), &memory));
    struct aq_page *page = memory;
    enum aq_status status = aq_alloc(sizeof(struct aq_board_view), &view);
    page->view = view;
    page->board = board;
    if (status == AQ_OK) status = check(config, page);
    if (status == AQ_OK) status = start(config, page);
    if (status != AQ_OK) {
        aq_page_close(page);
        return status;
    }
    if (!page->own && !page->tls)
        aq_log("status", AQ_LOG_WARNING,
               "%s is not encrypted, so anyone on the way can read the token: set status.certificate", page->url);
    *out = page;
    return AQ_OK;
}

void aq_page_close(struct aq_page *page)
{
    if (!page) return;
    if (page->daemon) MHD_stop_daemon(page->daemon);
    for (size_t i = 0; i < DOCUMENTS; i++)
        aq_text_deinit(&page->made[i].text);
    aq_free(page->certificate);
    aq_free(page->key);
    aq_free(page->authority);
    aq_free(page->view);
    aq_free(page);
}

const char *aq_page_url(const struct aq_page *page)
{
    return page->url;
}

#else

enum aq_status aq_page_open(const struct aq_page_config *config, struct aq_board *board, struct aq_page **out)
{
    (void)board, (void)out;
    return aq_fail(
        AQ_NODEV, "status",
        "status.listen: %s: this aqpipe was built without libmicrohttpd: apt-get install libmicrohttpd-dev, and "
        "build again (or leave status.listen out)",
        config->listen);
}

void aq_page_close(struct aq_page *page)
{
    (void)page;
}

const char *aq_page_url(const struct aq_page *page)
{
    (void)page;
    return "";
}

#endif
