/* split_gate.c -- see the header. */
#include "split_gate.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "control.h"
#include "net/endpoint.h"
#include "runtime_text.h"
#include "split_session.h"

static const char *const AREA = "split";

static void put(json_t *line, const char *key, const char *value)
{
    if (value)
        json_object_set_new(line, key, json_string(value));
    else
        json_object_del(line, key);
}

static enum aq_status its_plan(const struct aq_split_gate *gate, const json_t *line)
{
    uint64_t hash;
    AQ_TRY(aq_control_get_hex(line, "plan_hash", &hash));
    if (aq_control_bool_or(line, "probe", false) || aq_control_bool_or(line, "fresh", false))
        return aq_fail(AQ_PROTO, AREA, "the server asks for more than a turn");
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
static enum aq_status its_address(const struct aq_split_gate *gate, const json_t *line)
{
    struct aq_endpoint asked, host;
    const char *address, *why, *query;
    char text[AQ_ENDPOINT_TEXT_BYTES];
    AQ_TRY(aq_control_get_text(line, "address", &address));
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
    static const char *const plain[] = {"abort", "beat", "forget"};
    static const char *const of_rank[] = {"connect", "go", "marked", "stop", "evaluated"};
    const char *op = aq_control_text_or(line, "op", "");
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (strcmp(op, plain[i]) == 0) return AQ_OK;
    for (size_t i = 0; i < sizeof of_rank / sizeof *of_rank; i++)
        if (strcmp(op, of_rank[i]) == 0) {
            AQ_TRY(its_rank(gate, line));
            return i == 0 ? its_address(gate, line) : AQ_OK;
        }
    const bool open = strcmp(op, "open") == 0;
    if (!open && strcmp(op, "start") != 0)
        return aq_fail(AQ_PROTO, AREA, "the server sends '%.32s', which is not part of a turn", op);
    AQ_TRY(its_plan(gate, line));
    put(line, "run", gate->run);
    put(line, "checkpoint", gate->checkpoint);
    if (open) {
        put(line, "cache", json_is_string(json_object_get(line, "cache")) ? gate->cache : NULL);
        return AQ_OK;
    }
    AQ_TRY(its_rank(gate, line));
    put(line, "manifest", gate->manifest);
    put(line, "adopt", gate->begin);
    put(line, "seal", aq_control_u64_or(line, "rank", UINT64_MAX) == aq_split_rank(0) ? gate->seal : NULL);
    return AQ_OK;
}
