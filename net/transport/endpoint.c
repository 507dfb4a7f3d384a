/*
 * endpoint.c -- see endpoint.h. Read to the letter: what two readers could take for two addresses is refused.
 */
#include "net/endpoint.h"

#include <arpa/inet.h>
#include <assert.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#include "net/tls.h"

static_assert((int)AQ_ENDPOINT_NAME_BYTES == (int)AQ_TLS_HOST_BYTES,
              "a name before '@' is a daemon's name in certificates");

#define DIGITS  "0123456789"
#define LETTERS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

static enum aq_status wrong(const char **why, const char *text)
{
    *why = text;
    return AQ_INVAL;
}

static bool all_of(const char *text, const char *characters)
{
    return text[0] && strspn(text, characters) == strlen(text);
}

/* Does some resolver take it for an IPv4 address? So it is where its last label is a number, hexadecimal ones too. */
static bool ends_in_a_number(const char *host)
{
    char copy[AQ_ENDPOINT_HOST_BYTES];
    size_t bytes = strlen(host);
    if (bytes > 0 && host[bytes - 1] == '.') bytes--;
    memcpy(copy, host, bytes);
    copy[bytes] = 0;
    const char *dot = strrchr(copy, '.'), *label = dot ? dot + 1 : copy;
    return all_of(label, DIGITS) ||
           (strncasecmp(label, "0x", 2) == 0 && strspn(label + 2, DIGITS "abcdefABCDEF") == strlen(label + 2));
}

static enum aq_status check_name(const char *host, const char **why)
{
    struct in_addr four;
    if (strcmp(host, "*") == 0) return AQ_OK;
    if (!all_of(host, LETTERS DIGITS "-_."))
        return wrong(why,
                     "a host has only letters, digits, '-', '_' and '.'; an IPv6 address needs brackets, as in [::1]");
    if (ends_in_a_number(host))
        return inet_pton(AF_INET, host, &four) == 1
                   ? AQ_OK
                   : wrong(why, "an IPv4 address is four decimal numbers from 0 to 255, as in 127.0.0.1");
    if (host[0] == '.' || strstr(host, "..")) return wrong(why, "a part of the name is empty");
    return AQ_OK;
}

/* With or without %scope, which is copied no further than it is looked at. */
static bool read_six(const char *host, struct in6_addr *out, const char **scope)
{
    char digits[INET6_ADDRSTRLEN];
    const char *percent = strchr(host, '%');
    const size_t bytes = percent ? (size_t)(percent - host) : strlen(host);
    if (bytes >= sizeof digits) return false;
    memcpy(digits, host, bytes);
    digits[bytes] = 0;
    *scope = percent ? percent + 1 : NULL;
    return inet_pton(AF_INET6, digits, out) == 1;
}

static enum aq_status check_six(const char *host, const char **why)
{
    struct in6_addr six;
    const char *scope;
    if (!read_six(host, &six, &scope)) return wrong(why, "the text between the brackets is not an IPv6 address");
    if (!scope) return AQ_OK;
    if (!IN6_IS_ADDR_LINKLOCAL(&six)) return wrong(why, "only link-local addresses (fe80::) have a %scope");
    if (!all_of(scope, LETTERS DIGITS "-_.") || strlen(scope) >= IF_NAMESIZE)
        return wrong(why, "the scope after % is not the name of an interface");
    return AQ_OK;
}

/* text[0, bytes) as the host. */
static enum aq_status take_host(const char *text, size_t bytes, struct aq_endpoint *e, const char **why)
{
    e->v6 = bytes >= 2 && text[0] == '[' && text[bytes - 1] == ']';
    if (e->v6) {
        text++;
        bytes -= 2;
    }
    if (bytes == 0) return wrong(why, "the host is missing");
    if (bytes >= sizeof e->host) return wrong(why, "the host is too long");
    memcpy(e->host, text, bytes);
    e->host[bytes] = 0;
    return e->v6 ? check_six(e->host, why) : check_name(e->host, why);
}

static enum aq_status take_port(const char *text, struct aq_endpoint *e, const char **why)
{
    const size_t digits = strlen(text);
    uint32_t port = 0;
    if (!all_of(text, DIGITS) || digits > 5) return wrong(why, "the port is not a number from 0 to 65535");
    for (size_t i = 0; i < digits; i++)
        port = port * 10 + (uint32_t)(text[i] - '0');
    if (port > 65535) return wrong(why, "the port is not a number from 0 to 65535");
    e->port = (uint16_t)port;
    return AQ_OK;
}

static void small_letters(char *text)
{
    for (; *text; text++)
        if (*text >= 'A' && *text <= 'Z') *text = (char)(*text - 'A' + 'a');
}

enum aq_status aq_endpoint_parse(const char *text, struct aq_endpoint *out, const char **why)
{
    struct aq_endpoint e = {0};
    if (strncmp(text, "tcp://", 6) == 0) text += 6;
    if (strstr(text, "://")) return wrong(why, "only tcp:// is possible here");
    const char *const at = strchr(text, '@');
    if (at) {
        if (at == text || (size_t)(at - text) >= sizeof e.name)
            return wrong(why, "the text before '@' is not the name of a host");
        memcpy(e.name, text, (size_t)(at - text));
        small_letters(e.name);
        if (!aq_tls_host_good(e.name)) return wrong(why, "the text before '@' is not the name of a host");
        text = at + 1;
    }
    const char *const colon = strrchr(text, ':'), *const bracket = strrchr(text, ']');
    if (!colon || (bracket && bracket > colon)) return wrong(why, "the port is missing");
    AQ_TRY(take_port(colon + 1, &e, why));
    AQ_TRY(take_host(text, (size_t)(colon - text), &e, why));
    *out = e;
    return AQ_OK;
}

enum aq_status aq_endpoint_parse_host(const char *text, struct aq_endpoint *out, const char **why)
{
    struct aq_endpoint e = {0};
    char bracketed[AQ_ENDPOINT_HOST_BYTES + 2];
    const bool bare = text[0] != '[' && strchr(text, ':');
    if (bare && snprintf(bracketed, sizeof bracketed, "[%s]", text) >= (int)sizeof bracketed)
        return wrong(why, "the host is too long");
    if (bare) text = bracketed;
    AQ_TRY(take_host(text, strlen(text), &e, why));
    *out = e;
    return AQ_OK;
}

const char *aq_endpoint_text(const struct aq_endpoint *endpoint, uint16_t port, char out[AQ_ENDPOINT_TEXT_BYTES])
{
    snprintf(out, AQ_ENDPOINT_TEXT_BYTES, endpoint->v6 ? "[%s]:%u" : "%s:%u", endpoint->host, port);
    return out;
}

static bool loopback_four(uint32_t address)
{
    return address >> 24 == IN_LOOPBACKNET;
}

static bool loopback_six(const struct in6_addr *six)
{
    uint32_t four;
    memcpy(&four, &six->s6_addr[12], sizeof four);
    return IN6_IS_ADDR_LOOPBACK(six) || (IN6_IS_ADDR_V4MAPPED(six) && loopback_four(ntohl(four)));
}

bool aq_endpoint_loopback_address(const struct sockaddr *address)
{
    const struct sockaddr_in *four = (const void *)address;
    const struct sockaddr_in6 *six = (const void *)address;
    if (address->sa_family == AF_INET6) return loopback_six(&six->sin6_addr);
    return address->sa_family == AF_INET && loopback_four(ntohl(four->sin_addr.s_addr));
}

bool aq_endpoint_loopback(const struct aq_endpoint *endpoint)
{
    struct in_addr four;
    struct in6_addr six;
    const char *scope;
    if (endpoint->v6) return read_six(endpoint->host, &six, &scope) && !scope && loopback_six(&six);
    if (inet_pton(AF_INET, endpoint->host, &four) == 1) return loopback_four(ntohl(four.s_addr));
    return strcasecmp(endpoint->host, "localhost") == 0;
}

bool aq_endpoint_identity(const struct aq_endpoint *endpoint, char out[AQ_ENDPOINT_NAME_BYTES])
{
    char text[AQ_ENDPOINT_HOST_BYTES];
    struct in6_addr six;
    const char *scope;
    snprintf(text, sizeof text, "%s", endpoint->name[0] ? endpoint->name : endpoint->host);
    if (!endpoint->name[0] && endpoint->v6 &&
        (!read_six(endpoint->host, &six, &scope) || !inet_ntop(AF_INET6, &six, text, sizeof text)))
        return false;
    small_letters(text);
    if (!aq_tls_host_good(text)) return false;
    memcpy(out, text, strlen(text) + 1);
    return true;
}

/* Is every address loopback, although the name does not say so? */
static bool only_loopback(const struct addrinfo *list)
{
    for (const struct addrinfo *at = list; at; at = at->ai_next)
        if (!aq_endpoint_loopback_address(at->ai_addr)) return false;
    return list != NULL;
}

/* Names that say loopback besides localhost: those of Debian's /etc/hosts, and RFC 6761's. */
static bool names_loopback(const char *host)
{
    static const char end[] = ".localhost";
    const size_t bytes = strlen(host);
    return strcasecmp(host, "ip6-localhost") == 0 || strcasecmp(host, "ip6-loopback") == 0 ||
           strncasecmp(host, "localhost.", 10) == 0 ||
           (bytes >= sizeof end && strcasecmp(host + bytes - (sizeof end - 1), end) == 0);
}

static enum aq_status refuse_to_listen(const struct aq_endpoint *endpoint)
{
    char own[AQ_ENDPOINT_HOST_BYTES];
    struct aq_error_hold hold;
    aq_error_hold(&hold);
    const bool known = aq_endpoint_own(NULL, own) == AQ_OK;
    aq_error_release(&hold);
    return aq_fail(AQ_REFUSED, "net",
                   "'%s' is a loopback address on this machine, which other machines cannot reach: write another "
                   "address of this machine (%s), or correct /etc/hosts; 127.0.0.1 serves only this machine",
                   endpoint->host, known ? own : "see `ip address`");
}

enum aq_status aq_endpoint_resolve(const struct aq_endpoint *endpoint, bool passive, struct addrinfo **out)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV | (passive ? AI_PASSIVE : 0)};
    struct addrinfo *list;
    char port[8];
    snprintf(port, sizeof port, "%u", endpoint->port);
    const int error = getaddrinfo(strcmp(endpoint->host, "*") == 0 ? NULL : endpoint->host, port, &hints, &list);
    if (error != 0)
        return aq_fail(AQ_NOTFOUND, "net", "the host '%s' is not known: %s", endpoint->host, gai_strerror(error));
    for (const struct addrinfo *at = list; at && aq_endpoint_loopback(endpoint); at = at->ai_next) {
        if (aq_endpoint_loopback_address(at->ai_addr)) continue;
        freeaddrinfo(list);
        return aq_fail(AQ_REFUSED, "net",
                       "'%s' is not a loopback address on this machine: correct /etc/hosts, or write 127.0.0.1",
                       endpoint->host);
    }
    if (passive && !aq_endpoint_loopback(endpoint) && !names_loopback(endpoint->host) && only_loopback(list)) {
        freeaddrinfo(list);
        return refuse_to_listen(endpoint);
    }
    *out = list;
    return AQ_OK;
}
