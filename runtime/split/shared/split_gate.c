/* split_gate.c -- see the header. messages.def has which lines there are; here is what they may have in them. */
#include "split_gate.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "control.h"
#include "message.h"
#include "net/endpoint.h"
#include "split_session.h"

static const char *const AREA = "split";

static void put(json_t *line, const char *key, const char *value)
{
    if (value)
        json_object_set_new(line, key, json_string(value));
    else
        json_object_del(line, key);
}

static enum aq_status its_plan(const struct aq_split_gate *gate, uint64_t hash, bool more)
{
    if (more) return aq_fail(AQ_PROTO, AREA, "the server asks for more than a turn");
    return hash == gate->plan_hash ? AQ_OK : aq_fail(AQ_PROTO, AREA, "the server starts a turn of another plan");
}

static enum aq_status its_rank(const struct aq_split_gate *gate, const json_t *line)
{
    uint32_t rank;
    AQ_TRY(aq_control_get_u32(line, "rank", &rank));
    return rank == aq_split_rank(0) || rank == aq_split_rank(gate->ends - 1)
               ? AQ_OK
               : aq_fail(AQ_PROTO, AREA, "the server speaks to stage %u, which is not here", rank);
}

/* A stage of a client connects to the server that its own manifest names. Elsewhere might be inside its network. */
static enum aq_status its_address(const struct aq_split_gate *gate, const char *address)
{
    struct aq_endpoint asked, host;
    const char *why, *query;
    char text[AQ_ENDPOINT_TEXT_BYTES];
    query = strchr(address, '?');
    if (snprintf(text, sizeof text, "%.*s", query ? (int)(query - address) : (int)strlen(address), address) >=
            (int)sizeof text ||
        aq_endpoint_parse(text, &asked, &why) != AQ_OK)
        return aq_fail(AQ_PROTO, AREA, "the server sends an address that is not valid");
    for (size_t i = 0; i < sizeof gate->hosts / sizeof *gate->hosts; i++) {
        if (!gate->hosts[i] || (aq_endpoint_parse(gate->hosts[i], &host, &why) != AQ_OK &&
                                aq_endpoint_parse_host(gate->hosts[i], &host, &why) != AQ_OK))
            continue;
        if (strcasecmp(asked.host, host.host) == 0) return AQ_OK;
        const bool local = strcmp(asked.host, "127.0.0.1") == 0 || strcmp(asked.host, "::1") == 0;
        if (local && strcasecmp(host.host, "localhost") == 0) return AQ_OK;
    }
    char shown[AQ_ENDPOINT_TEXT_BYTES];
    return aq_fail(
        AQ_PROTO, AREA,
        "the server sends this client's stages to %s, and the job's split.server is %s; if its stage listens "
        "there, write pipeline.stages.1.address",
        aq_printable_text(text, shown, sizeof shown), gate->hosts[0] ? gate->hosts[0] : "none");
}

enum aq_status aq_split_pass(const struct aq_split_gate *gate, json_t *line)
{
    struct aq_message message;
    struct aq_message_wrong wrong;
    enum aq_message_id id = aq_message_find(line, AQ_END_LAUNCHER, AQ_END_WORKER);
    const bool to_worker = id < AQ_MESSAGES;
    if (!to_worker) id = aq_message_find(line, AQ_END_LAUNCHER, AQ_END_DAEMON);
    if (id == AQ_MESSAGES || !aq_message_guest(id))
        return aq_fail(AQ_PROTO, AREA, "the server sends '%.32s', which is not part of a turn",
                       aq_control_text_or(line, "op", ""));
    if (!aq_message_read(id, line, NULL, &message, &wrong)) return aq_fail(AQ_PROTO, AREA, "the server %s", wrong.text);
    if (to_worker) AQ_TRY(its_rank(gate, line));
    if (id == AQ_MESSAGE_connect) return its_address(gate, message.connect.address);
    if (id != AQ_MESSAGE_open && id != AQ_MESSAGE_start) return AQ_OK;
    const bool open = id == AQ_MESSAGE_open;
    AQ_TRY(open ? its_plan(gate, message.open.plan_hash, message.open.probe || message.open.fresh)
                : its_plan(gate, message.start.plan_hash,
                           message.start.probe || aq_control_bool_or(line, "fresh", false)));
    put(line, "run", gate->run);
    put(line, "checkpoint", gate->checkpoint);
    if (open) {
        put(line, "cache", message.open.cache ? gate->cache : NULL);
        return AQ_OK;
    }
    put(line, "manifest", gate->manifest);
    put(line, "lengths", gate->lengths);
    put(line, "adopt", gate->begin);
    put(line, "ledger", gate->ledger);
    put(line, "seal", message.start.rank == aq_split_rank(0) ? gate->seal : NULL);
    return AQ_OK;
}
