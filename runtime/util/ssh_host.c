/* ssh_host.c -- see the header. */
#include "ssh_host.h"

#include <string.h>

static const char scheme[] = "ssh://";
static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";

bool aq_ssh_is(const char *address)
{
    return address && strncmp(address, scheme, sizeof scheme - 1) == 0;
}

static bool read_user(const char *text, size_t bytes, struct aq_ssh_host *out)
{
    if (bytes == 0 || bytes >= sizeof out->user || text[0] == '-') return false;
    memcpy(out->user, text, bytes);
    return strspn(out->user, letters) == bytes;
}

/* A port behind the host: behind "]" of an IPv6 address, or behind the only colon. */
static bool has_port(const char *text)
{
    const char *colon = strrchr(text, ':'), *bracket = strchr(text, ']');
    if (!colon) return false;
    return bracket ? colon > bracket : strchr(text, ':') == colon;
}

enum aq_status aq_ssh_parse(const char *text, struct aq_ssh_host *out, const char **why)
{
    if (aq_ssh_is(text)) text += sizeof scheme - 1;
    memset(out, 0, sizeof *out);
    const char *at = strchr(text, '@');
    *why = "the user before '@' has only letters, digits, '.', '_' and '-', and starts with a letter, digit or '_'";
    if (at && !read_user(text, (size_t)(at - text), out)) return AQ_INVAL;
    if (at) text = at + 1;
    *why = "it starts with '-', or has a second '@'";
    if (text[0] == '-' || strchr(text, '@')) return AQ_INVAL;
    if (!has_port(text)) return aq_endpoint_parse_host(text, &out->host, why);
    if (aq_endpoint_parse(text, &out->host, why) != AQ_OK) return AQ_INVAL;
    out->port = out->host.port;
    *why = "the port of ssh is 1 to 65535";
    return out->port ? AQ_OK : AQ_INVAL;
}
