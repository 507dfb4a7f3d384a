/*
 * split_ahead.c -- the client whose turn comes next gets its weights while the turn before is under way.
 *
 * At 20 Mbit/s the two files of a ResNet-34's ends take 20 s; a relay has them twice between two turns, up from the
 * one client and down to the next. They need not wait for each other:
 *
 *     splitfed1, splitfed2   the ends start with the round's weights, which are here: they are sent at once
 *     relay                  the ends of the turn before: each piece is passed on to the next client as it comes
 *
 * The next client gets the usual offer, takes its files, starts its daemon and sends `ready`; it does no more before
 * its turn is due. No worker runs for it yet at either end, so that server and client take no more memory than for one
 * turn. A relay passes files on before they are checked: if they are refused in the end (turn_check), or their client
 * leaves, the next client's turn is over before it started, and it gets another offer, with good weights. split.json
 * has nothing of it: a turn starts when it is due. A client that leaves, or fails, before that has lost no try; it gets
 * at most one such offer per round.
 */
#include <stdio.h>
#include <string.h>

#include "split_private.h"

bool ahead_is(const struct server *server, const struct site *site)
{
    return server->ahead.site == site;
}

void ahead_ends(struct server *server, const struct site *site)
{
    struct site *next = server->ahead.site;
    if (!next || (site != next && site != server->ahead.source)) return;
    server->ahead = (struct ahead){0};
    if (site == next) return; /* the caller sends it the reason */
    aq_split_out_close(&next->out);
    next->sends = false;
    next->deadline_ns = AQ_NEVER;
    if (turn_tell(server, next,
                  json_pack("{s:s, s:b, s:s}", "event", "over", "done", 0, "text",
                            "the turn before it left no weights: it starts again with others")))
        aq_split_session_go(&next->session, AQ_SPLIT_IDLE);
}

void ahead_committed(struct server *server, const struct site *site)
{
    if (server->ahead.source == site) server->ahead.source = NULL;
}

bool ahead_ready(struct server *server, struct site *site)
{
    if (!ahead_is(server, site)) return false;
    server->ahead.ready = true;
    aq_split_session_go(&site->session, AQ_SPLIT_IDLE);
    site->deadline_ns = AQ_NEVER;
    return true;
}

bool ahead_due(struct server *server, const struct site *site, bool *ready)
{
    *ready = false;
    if (server->ahead.source) ahead_ends(server, server->ahead.source); /* it was committed, or is of no use */
    if (!ahead_is(server, site)) return false;
    *ready = server->ahead.ready;
    server->ahead = (struct ahead){0};
    return true;
}

/* ---- a relay's files, as they come ---- */

enum aq_status ahead_out(struct server *server, struct site *site, uint32_t end)
{
    char path[AQ_RUN_PATH_BYTES], folder[AQ_RUN_PATH_BYTES], name[48];
    const struct site *source = server->ahead.source;
    const struct aq_split_session *from = &source->session;
    AQ_TRY(round_ends(server, source, folder));
    const bool whole = end < from->end;
    if (!whole && from->at == 0) return AQ_AGAIN;
    snprintf(name, sizeof name, "stage-%u.safetensors%s", aq_split_rank(end), whole ? "" : AQ_SPLIT_PART);
    AQ_TRY(aq_run_path(folder, name, path));
    AQ_TRY(aq_split_out_open(&site->out, path, "ends", aq_split_rank(end)));
    if (!whole) site->out.of = from->of;
    return AQ_OK;
}

bool ahead_waits(const struct server *server, const struct site *site)
{
    if (!ahead_is(server, site) || !server->ahead.source || site->out.fd == -1) return false;
    const struct aq_split_session *from = &server->ahead.source->session;
    const uint64_t left = site->out.of - site->out.at, take = left < AQ_SPLIT_PIECE_BYTES ? left : AQ_SPLIT_PIECE_BYTES;
    return site->out.rank == aq_split_rank(from->end) && site->out.at + take > from->at;
}

/* ---- who is next ---- */

/* Its turn is under way, and the next one's initial weights are known, or on their way. */
static bool leaves_way(const struct server *server, const struct site *site)
{
    if (!site->control || !site->offered) return false;
    if (server->job->split.mode == AQ_SPLIT_RELAY) return site->session.state == AQ_SPLIT_CLOSING;
    return site->session.state == AQ_SPLIT_TRAINING || site->session.state == AQ_SPLIT_CLOSING;
}

/* It waits for its turn, has none begun, and nothing went wrong so far. */
static bool may_begin(const struct server *server, const struct site *site)
{
    return site->control && site->session.state == AQ_SPLIT_IDLE && !site->offered && site->until == 0 &&
           site->tries == 0 && site->ahead_round < server->round && state_mark(server, site) < site->job.plan->steps;
}

void ahead_advance(struct server *server, struct site *const *due, uint32_t count)
{
    struct site *site = server->ahead.site;
    if (site && aq_clock_ns() > site->deadline_ns) turn_away(server, site, "it has not answered for too long");
    if (server->over || server->ahead.site) return;
    uint32_t first = 0;
    while (first < count && due[first]->offered && leaves_way(server, due[first]))
        first++;
    /* The first that has no turn yet, behind those that have: there is one at once, or split.parallel of them. */
    if (first == 0 || first == count || due[first]->offered || !may_begin(server, due[first])) return;
    site = due[first];
    server->ahead.site = site;
    server->ahead.source = server->job->split.mode == AQ_SPLIT_RELAY ? due[0] : NULL;
    site->ahead_round = server->round;
    turn_offer_ahead(server, site);
}
