/*
 * transport.c -- addresses, the table of transports, and the filters on top of them.
 */
#include "transport.h"

#include "net/link.h"

#include <errno.h>
#include <math.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct aq_transport *const TRANSPORTS[] = {
#define AQ_TRANSPORT(scheme) &aq_transport_##scheme,
#include "transports.def"
#undef AQ_TRANSPORT
};

static enum aq_status malformed(const char *text, const char *why)
{
    return aq_fail(AQ_INVAL, "net",
                   "address '%.*s': %s; write [tls+]tcp://host:port, quic in place of tcp, "
                   "relay://host:port?room=ID, or sim://name",
                   aq_address_shown(text), text, why);
}

/* Copy [from, to) into a field; false where it does not fit. */
static bool copy_part(char *field, size_t bytes, const char *from, const char *to)
{
    const size_t length = (size_t)(to - from);
    if (length >= bytes) return false;
    memcpy(field, from, length);
    field[length] = '\0';
    return true;
}

static bool filters_known(const char *filters)
{
    static const char *const known[] = {"fault", "tls", "tls+fault", "fault+tls"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(filters, known[i]) == 0) return true;
    return false;
}

static enum aq_status parse_host(const char *text, const char *host, const char *end, struct aq_address *a)
{
    char part[AQ_ENDPOINT_TEXT_BYTES];
    const char *why = NULL;
    if (strcmp(a->scheme, "tcp") == 0 || strcmp(a->scheme, "quic") == 0 || strcmp(a->scheme, "relay") == 0) {
        if (!copy_part(part, sizeof part, host, end)) return malformed(text, "the host is too long");
        if (strstr(part, "://") || aq_endpoint_parse(part, &a->place, &why) != AQ_OK)
            return malformed(text, why ? why : "two '://'");
        return a->place.name[0] ? malformed(text, "a link has no name before '@'") : AQ_OK;
    }
    if (host == end) return malformed(text, "no name");
    if (!copy_part(a->host, sizeof a->host, host, end)) return malformed(text, "the name is too long");
    return AQ_OK;
}

enum aq_status aq_address_parse(const char *text, struct aq_address *out)
{
    struct aq_address a = {0};
    const size_t length = strlen(text);
    if (!copy_part(a.whole, sizeof a.whole, text, text + length)) return malformed(text, "too long");
    const char *const colon = strstr(text, "://");
    if (!colon) return malformed(text, "no '://'");
    const char *const plus = memrchr(text, '+', (size_t)(colon - text));
    if (plus && !copy_part(a.filter, sizeof a.filter, text, plus)) return malformed(text, "unknown filter");
    if (!copy_part(a.scheme, sizeof a.scheme, plus ? plus + 1 : text, colon))
        return malformed(text, "unknown transport");
    if (plus && !filters_known(a.filter)) return malformed(text, "unknown filter before '+'");
    const char *const question = strchr(colon, '?');
    if (question) copy_part(a.query, sizeof a.query, question + 1, text + length);
    AQ_TRY(parse_host(text, colon + 3, question ? question : text + length, &a));
    *out = a;
    return AQ_OK;
}

int aq_address_shown(const char *address)
{
    const char *first = strstr(address, "?room="), *later = strstr(address, "&room=");
    const char *room = first && (!later || first < later) ? first : later;
    return (int)(room ? (size_t)(room - address) : strlen(address));
}

const char *aq_address_value(const struct aq_address *address, const char *key, size_t *bytes)
{
    const size_t length = strlen(key);
    for (const char *at = address->query; at && *at; at = strchr(at, '&') ? strchr(at, '&') + 1 : NULL) {
        if (strncmp(at, key, length) != 0 || at[length] != '=') continue;
        *bytes = strcspn(at + length + 1, "&");
        return at + length + 1;
    }
    return NULL;
}

enum aq_status aq_address_number(const struct aq_address *address, const char *key, double otherwise, double *out)
{
    size_t bytes;
    char *stop;
    const char *at = aq_address_value(address, key, &bytes);
    if (!at) {
        *out = otherwise;
        return AQ_OK;
    }
    errno = 0;
    const double value = strtod(at, &stop);
    if (bytes == 0 || stop != at + bytes || errno != 0 || !isfinite(value) || value < 0)
        return aq_fail(AQ_INVAL, "net", "address '%.*s': '%s' needs a number of at least 0",
                       aq_address_shown(address->whole), address->whole, key);
    *out = value;
    return AQ_OK;
}

static enum aq_status find_transport(const struct aq_address *address, const struct aq_transport **out)
{
    for (size_t i = 0; i < sizeof TRANSPORTS / sizeof *TRANSPORTS; i++)
        if (strcmp(TRANSPORTS[i]->scheme, address->scheme) == 0) {
            *out = TRANSPORTS[i];
            return AQ_OK;
        }
    return malformed(address->whole, "unknown transport");
}

/* Put the address's filters on top of a stream, the last one first; it is closed where that fails. */
static enum aq_status wrap(const struct aq_address *address, struct aq_tls *tls, bool server,
                           struct aq_byte_stream *below, struct aq_byte_stream **out)
{
    char filters[sizeof address->filter];
    memcpy(filters, address->filter, sizeof filters);
    while (filters[0] != '\0') {
        char *const plus = strrchr(filters, '+');
        const char *const last = plus ? plus + 1 : filters;
        struct aq_byte_stream *above = NULL;
        const enum aq_status status = strcmp(last, "tls") == 0 ? aq_tls_wrap(address, tls, server, below, &above)
                                                               : aq_fault_wrap(address, below, &above);
        if (status != AQ_OK) {
            aq_byte_stream_close(below);
            return status;
        }
        below = above;
        *(plus ? plus : filters) = '\0';
    }
    *out = below;
    return AQ_OK;
}

enum aq_status aq_acceptor_open(const char *address, struct aq_tls *tls, struct aq_acceptor *out)
{
    struct aq_acceptor acceptor = {.fd = -1, .tls = tls};
    AQ_TRY(aq_address_parse(address, &acceptor.address));
    AQ_TRY(find_transport(&acceptor.address, &acceptor.transport));
    if (strstr(acceptor.address.filter, "tls") && !tls)
        return aq_fail(AQ_INVAL, "net", "address '%.*s': tls+ needs keys (security.keys; aqpipe keys init makes them)",
                       aq_address_shown(address), address);
    AQ_TRY(acceptor.transport->listen(&acceptor));
    *out = acceptor;
    return AQ_OK;
}

enum aq_status aq_acceptor_accept(struct aq_acceptor *acceptor, struct aq_byte_stream **out)
{
    struct aq_byte_stream *stream;
    AQ_TRY(acceptor->transport->accept(acceptor, &stream));
    return wrap(&acceptor->address, acceptor->tls, true, stream, out);
}

void aq_acceptor_close(struct aq_acceptor *acceptor)
{
    acceptor->transport->shut(acceptor);
}

enum aq_status aq_transport_connect(const struct aq_address *address, uint32_t attempt, bool paced,
                                    struct aq_byte_stream **out)
{
    const struct aq_transport *transport = NULL;
    AQ_TRY(find_transport(address, &transport));
    return transport->connect(address, attempt, paced, out);
}

enum aq_status aq_byte_stream_connect(const char *address, struct aq_tls *tls, uint32_t attempt, bool paced,
                                      struct aq_byte_stream **out)
{
    struct aq_address parsed;
    struct aq_byte_stream *stream;
    AQ_TRY(aq_address_parse(address, &parsed));
    AQ_TRY(aq_transport_connect(&parsed, attempt, paced, &stream));
    return wrap(&parsed, tls, false, stream, out);
}

int aq_filter_direct(struct aq_byte_stream *stream)
{
    (void)stream;
    return -1;
}

enum aq_status aq_filter_pace(struct aq_byte_stream *stream, double rate_mbps)
{
    return stream->next->ops->pace(stream->next, rate_mbps);
}

double aq_filter_measure(struct aq_byte_stream *stream)
{
    return stream->next->ops->measure(stream->next);
}

void aq_filter_path(struct aq_byte_stream *stream, struct aq_path *out)
{
    stream->next->ops->path(stream->next, out);
}

enum aq_status aq_filter_congestion(struct aq_byte_stream *stream, const char *name)
{
    return stream->next->ops->congestion(stream->next, name);
}

void aq_filter_close(struct aq_byte_stream *stream)
{
    aq_byte_stream_close(stream->next);
    aq_free(stream);
}

bool aq_byte_stream_local(const struct aq_byte_stream *stream)
{
    while (stream->next)
        stream = stream->next;
    return stream->local;
}

enum aq_status aq_byte_stream_trust(struct aq_byte_stream *stream)
{
    while (stream->next)
        stream = stream->next;
    return stream->ops->trust ? stream->ops->trust(stream) : AQ_OK;
}

uint64_t aq_link_measure_stream(const char *scheme)
{
    const char *const plus = strrchr(scheme, '+'), *const name = plus ? plus + 1 : scheme;
    for (size_t i = 0; i < sizeof TRANSPORTS / sizeof *TRANSPORTS; i++)
        if (strncmp(name, TRANSPORTS[i]->scheme, strcspn(name, ":")) == 0)
            return TRANSPORTS[i]->measure ? TRANSPORTS[i]->measure() : 0;
    return 0;
}

uint64_t aq_byte_stream_source(const struct aq_byte_stream *stream)
{
    while (stream->next)
        stream = stream->next;
    return stream->source;
}

void aq_byte_stream_close(struct aq_byte_stream *stream)
{
    if (stream) stream->ops->close(stream);
}

enum aq_status aq_byte_stream_errno(int error)
{
    switch (error) {
    case EAGAIN:
    case EINTR:
        return AQ_AGAIN;
    case EPIPE:
    case ECONNRESET:
        return AQ_CLOSED;
    case ECONNREFUSED:
    case EHOSTUNREACH:
    case ENETUNREACH:
        return AQ_REFUSED;
    case ETIMEDOUT:
        return AQ_TIMEOUT;
    default:
        return AQ_IO;
    }
}

void aq_sockaddr_name(const struct sockaddr *address, socklen_t bytes, char *out)
{
    char host[64], port[8];
    if (getnameinfo(address, bytes, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        snprintf(out, AQ_NAME_BYTES, "(unknown)");
    else
        snprintf(out, AQ_NAME_BYTES, address->sa_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
}

uint64_t aq_sockaddr_source(const struct sockaddr *address)
{
    const struct sockaddr_in *four = (const struct sockaddr_in *)address;
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)address;
    return address->sa_family == AF_INET6 ? aq_source_of(&six->sin6_addr, sizeof six->sin6_addr)
                                          : aq_source_of(&four->sin_addr, sizeof four->sin_addr);
}
