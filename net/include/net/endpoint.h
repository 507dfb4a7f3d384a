/*
 * endpoint.h -- "host:port": the one reader of addresses, for manifests, daemons, launchers and links alike.
 *
 *     host:port           a name (letters, digits, '-', '_', '.'), four decimal numbers, or * for all addresses
 *     [v6]:port           an IPv6 address; [fe80::1%eth0]:port where it is link-local
 *     tcp://...           the same
 *     name@host:port      a daemon that is reached by way of another address (a tunnel): `name` is in its certificate
 *
 * Caveats first.
 * - What an address is, is read from the whole of it, never from its first characters: 127.0.0.1.example is a name.
 * - Spellings of IPv4 that some resolvers take and others do not (127.1, 0x7f000001, 0177.0.0.1, a dot at the end) are
 *   refused.
 * - The only name that is loopback is localhost, without a name server being asked; aq_endpoint_resolve refuses it
 *   where this machine gives it another address.
 *
 * Locking: pure functions; resolving may ask a name server, and then blocks.
 */
#ifndef NET_ENDPOINT_H
#define NET_ENDPOINT_H

#include <stdbool.h>
#include <stdint.h>

#include "aqsgd/base.h"

#ifdef __cplusplus
extern "C" {
#endif

struct addrinfo;
struct sockaddr;

enum {
    AQ_ENDPOINT_HOST_BYTES = 256,
    AQ_ENDPOINT_NAME_BYTES = 64, /* as AQ_TLS_HOST_BYTES */
    AQ_ENDPOINT_TEXT_BYTES = 272
};

struct aq_endpoint {
    char name[AQ_ENDPOINT_NAME_BYTES]; /* before '@', in small letters; "": no '@' */
    char host[AQ_ENDPOINT_HOST_BYTES]; /* without brackets                                */
    bool v6;                           /* host is an IPv6 address                         */
    uint16_t port;
};

/* AQ_INVAL: *why (a constant) is the end of "... is no address: ". Not logged. Port 0 is taken. */
enum aq_status aq_endpoint_parse(const char *text, struct aq_endpoint *out, const char **why);
/* A host without a port, an IPv6 address with brackets or without; port is 0. */
enum aq_status aq_endpoint_parse_host(const char *text, struct aq_endpoint *out, const char **why);

/* "host:port" or "[v6]:port", with this port. */
const char *aq_endpoint_text(const struct aq_endpoint *endpoint, uint16_t port, char out[AQ_ENDPOINT_TEXT_BYTES]);

/* Does it stay on this machine? 127.*, ::1, ::ffff:127.*, localhost. All addresses (0.0.0.0, ::, *) do not. */
bool aq_endpoint_loopback(const struct aq_endpoint *endpoint);
bool aq_endpoint_loopback_address(const struct sockaddr *address); /* of AF_INET or AF_INET6 */

/* The name that its daemon's certificate must have: the name before '@', else the host in small letters, an IPv6
 * address in its shortest form and without a scope. False: it is too long for a certificate, or no name of one. */
bool aq_endpoint_identity(const struct aq_endpoint *endpoint, char out[AQ_ENDPOINT_NAME_BYTES]);

/* getaddrinfo; whoever calls frees *out. AQ_NOTFOUND: no such name. AQ_REFUSED: localhost is not loopback here, or a
 * name to listen at (`passive`) is loopback on this machine alone: Debian's /etc/hosts gives a machine's own name
 * 127.0.1.1, where no other machine reaches it. All are logged. */
enum aq_status aq_endpoint_resolve(const struct aq_endpoint *endpoint, bool passive, struct addrinfo **out);

/*
 * This machine's address as `peer` (a host without a port) sees it when no address is translated between them: where
 * the route to it leaves. NULL: as most others see it, that of the default route, else that of the first interface that
 * is neither loopback nor of containers (a bridge of another name comes last). Without a scope. AQ_INVAL, AQ_NOTFOUND:
 * logged.
 */
enum aq_status aq_endpoint_own(const char *peer, char out[AQ_ENDPOINT_HOST_BYTES]);

#ifdef __cplusplus
}
#endif
#endif
