/*
 * endpoint_own.c -- this machine's address: asked of the routing table by a UDP socket that is connected and sends
 * nothing. Without a route to the peer, the interfaces are looked at.
 */
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net/endpoint.h"

enum { DISCARD_PORT = 9 };

static bool text_of(const struct sockaddr *address, char out[AQ_ENDPOINT_HOST_BYTES])
{
    const void *bytes = address->sa_family == AF_INET
                            ? (const void *)&((const struct sockaddr_in *)(const void *)address)->sin_addr
                            : (const void *)&((const struct sockaddr_in6 *)(const void *)address)->sin6_addr;
    return inet_ntop(address->sa_family, bytes, out, AQ_ENDPOINT_HOST_BYTES) != NULL;
}

/* Where would a datagram to `peer` leave from? No packet is sent. */
static bool by_route(const struct sockaddr *peer, socklen_t peer_bytes, char out[AQ_ENDPOINT_HOST_BYTES])
{
    struct sockaddr_storage from = {0};
    socklen_t bytes = sizeof from;
    const int fd = socket(peer->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd == -1) return false;
    const bool known = connect(fd, peer, peer_bytes) == 0 && getsockname(fd, (struct sockaddr *)&from, &bytes) == 0 &&
                       text_of((const struct sockaddr *)&from, out);
    close(fd);
    return known;
}

/* Networks of containers and virtual machines hang on a bridge of this machine: others do not reach them. They and
 * their ends are known by their names. */
static bool of_containers(const char *interface)
{
    static const char *const names[] = {"docker", "br-", "virbr", "veth", "cni", "flannel", "cali", "podman", "lxc"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strncmp(interface, names[i], strlen(names[i])) == 0) return true;
    return false;
}

/* A bridge of another name may be one of containers, too, or have the machine's card and its only address. */
static bool is_bridge(const char *interface)
{
    struct ethtool_drvinfo driver = {.cmd = ETHTOOL_GDRVINFO};
    struct ifreq request = {.ifr_data = (void *)&driver};
    const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd == -1) return false;
    snprintf(request.ifr_name, sizeof request.ifr_name, "%s", interface);
    const bool bridge = ioctl(fd, SIOCETHTOOL, &request) == 0 && strcmp(driver.driver, "bridge") == 0;
    close(fd);
    return bridge;
}

static bool outside(const struct ifaddrs *at)
{
    if (!at->ifa_addr || (at->ifa_addr->sa_family != AF_INET && at->ifa_addr->sa_family != AF_INET6)) return false;
    if (!(at->ifa_flags & IFF_UP) || (at->ifa_flags & IFF_LOOPBACK)) return false;
    if (at->ifa_addr->sa_family == AF_INET6 &&
        IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)(const void *)at->ifa_addr)->sin6_addr))
        return false;
    return !of_containers(at->ifa_name);
}

static int worth(const struct ifaddrs *at)
{
    return 1 + 2 * !is_bridge(at->ifa_name) + (at->ifa_addr->sa_family == AF_INET);
}

/* The first of the best: an interface that is no bridge before a bridge, IPv4 before IPv6. */
static bool by_interface(char out[AQ_ENDPOINT_HOST_BYTES])
{
    struct ifaddrs *all, *best = NULL;
    if (getifaddrs(&all) != 0) return false;
    for (struct ifaddrs *at = all; at; at = at->ifa_next)
        if (outside(at) && (!best || worth(at) > worth(best))) best = at;
    const bool known = best && text_of(best->ifa_addr, out);
    freeifaddrs(all);
    return known;
}

enum aq_status aq_endpoint_own(const char *peer, char out[AQ_ENDPOINT_HOST_BYTES])
{
    /* RFC 5737 keeps this network for examples: the default route leads there, and nobody is there. */
    const struct sockaddr_in anywhere = {
        .sin_family = AF_INET, .sin_port = htons(DISCARD_PORT), .sin_addr.s_addr = htonl(0xc0000201)};
    struct aq_endpoint endpoint;
    struct addrinfo *list;
    const char *why;
    bool known = false;
    if (!peer) {
        if (by_route((const struct sockaddr *)&anywhere, sizeof anywhere, out) || by_interface(out)) return AQ_OK;
        return aq_fail(AQ_NOTFOUND, "net",
                       "this machine has no address that other machines can reach, only loopback and bridges");
    }
    const enum aq_status status = aq_endpoint_parse_host(peer, &endpoint, &why);
    if (status != AQ_OK) return aq_fail(status, "net", "'%.80s' is not an address: %s", peer, why);
    endpoint.port = DISCARD_PORT;
    AQ_TRY(aq_endpoint_resolve(&endpoint, false, &list));
    for (const struct addrinfo *at = list; at && !known; at = at->ai_next)
        known = by_route(at->ai_addr, at->ai_addrlen, out);
    freeaddrinfo(list);
    if (!known) return aq_fail(AQ_NOTFOUND, "net", "no route leads from this machine to %.80s", peer);
    return AQ_OK;
}
