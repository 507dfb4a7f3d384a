/*
 * page.h -- the status page: a small web server in a launch, by libmicrohttpd, which only page.c uses.
 *
 *     /              the page for people          /status.json   the same for programs
 *     /metrics       OpenMetrics                  /health        200 while the job is well, else 503, with a reason
 *
 * Caveats first.
 * - It reads only the board, and answers only GET and HEAD: nothing can be changed through it.
 * - Only TLS 1.3, a private key that no other user can read, and clients' certificates that are for clients.
 * - On an address that is not this machine's own it needs a token or a client's certificate (AQ_REFUSED without);
 *   without TLS a listener on the way can read the token. On this machine's own addresses a request must name such a
 *   host, so that no other site's page can have a browser ask for it (DNS rebinding).
 * - No peer can keep others out: of AQ_PAGE_CONNECTIONS places a source has half, and one that has shown no token or
 *   certificate gives way (aqsgd/base/admission.h). A connection ends after AQ_PAGE_IDLE_S without a byte; one that has
 *   not made a whole request AQ_PAGE_REQUEST_S after it came ends as soon as another comes.
 * - The board is copied AQ_PAGE_FRESH_MS apart, and all documents are of that copy. The page has its own thread: a
 *   browser that hangs, or a flood, costs the launcher only processor time.
 *
 * Locking: open and close by one thread.
 */
#ifndef RUNTIME_PAGE_H
#define RUNTIME_PAGE_H

#include "board.h"

enum { AQ_PAGE_CONNECTIONS = 48, AQ_PAGE_IDLE_S = 10, AQ_PAGE_REQUEST_S = 10, AQ_PAGE_FRESH_MS = 500 };

struct aq_page_config {
    const char *listen;           /* host:port; port 0: any that is free                          */
    const char *token_file;       /* NULL: none                                                    */
    const char *certificate;      /* PEM of the server, with its chain; NULL: no TLS               */
    const char *key;              /* PEM of its private key                                        */
    const char *client_authority; /* PEM: who holds a certificate of it needs no token; NULL: none */
};

struct aq_page; /* opaque */

/*
 * AQ_NODEV: built without libmicrohttpd (or this one has no TLS); AQ_REFUSED: the port is taken, or a token is wanted;
 * AQ_INVAL: an address, a token or a certificate that cannot be; AQ_NOTFOUND, AQ_IO: a file. All logged with a remedy.
 */
enum aq_status aq_page_open(const struct aq_page_config *config, struct aq_board *board, struct aq_page **out);
void aq_page_close(struct aq_page *page); /* NULL is fine */

/* "http://127.0.0.1:8080/" */
const char *aq_page_url(const struct aq_page *page);

#endif
