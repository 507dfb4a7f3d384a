/*
 * plan_loss.c -- what lost packets cost, in the plan's simulation (docs/NETWORKS.md, "Lost packets").
 *
 * A packet that is lost is missed when those behind it arrive, and sent again: it comes a round trip late, and what is
 * behind it on its link waits for it, for TCP hands over in order. If it is lost again, it comes another round trip
 * later. A frame of n packets is late by j round trips with the probability that the worst of its packets is lost j
 * times: that is drawn from a counter by (edge, direction, frame), so that a plan is the same everywhere.
 *
 * BBR keeps its rate. Reno's window halves at each loss: 1.22 / sqrt(loss) packets a round trip (Mathis et al.,
 * 1997); CUBIC's is that or 1.054 (round trip / loss)^3/4, the larger (RFC 8312, equation 6: C 0.4, beta 0.7). Each of
 * a link's connections has such a window. `auto` is taken for BBR on far links, `link.streams: auto` as net/link
 * chooses.
 *
 * Sums (link.copies) make good what one connection holds back: over c connections a frame is late only where packets of
 * two of them are lost, by the second latest. They take their part of the rate.
 *
 * Over QUIC (link.protocol) a block of 24 packets has rows of parity by the loss, as net/transport/transport_quic.c
 * chooses: a frame is late only where more packets of one of its blocks are lost than that.
 */
#include <math.h>
#include <string.h>

#include "plan_private.h"

#define MATHIS       1.22
#define CUBIC        1.054
#define CUBIC_POWER  0.75
#define FAR_S        2.5e-3 /* half a round trip, as net/transport/net_limits.h has far */
#define STREAM_BYTES (24.0 * 1024)
enum {
    STREAMS_MAX = 16,
    ROUND_TRIPS_MAX = 20,
    GROUP = 4, /* stripes that have a sum */
    BLOCK = 24 /* packets of QUIC that have rows of parity */
};

/* Does it go by what arrives, not by what is lost? A near link's window is back before that matters. */
static bool steady(const struct aq_job_link *link, double latency_s)
{
    const char *name = link->congestion ? link->congestion : "auto";
    return latency_s < FAR_S || strcmp(name, "auto") == 0 || strncmp(name, "bbr", 3) == 0;
}

static double streams_of(const struct aq_job_link *link, double rate_mbps, double round_trip_s)
{
    const double least = link->copies == AQ_LINK_COPIES_OFF ? 1 : GROUP + 1;
    if (link->streams) return link->streams;
    if (round_trip_s < 2 * FAR_S) return 1;
    if (steady(link, round_trip_s / 2)) return least;
    const double bytes = (rate_mbps > 0 ? rate_mbps : AQ_PLAN_RATE_ASSUMED) * 1e6 / 8 * round_trip_s;
    return fmin(fmax(floor(bytes / STREAM_BYTES + 1), least), STREAMS_MAX);
}

/* Stripes of a group; 0: there are no sums. */
static double group_of(const struct aq_job_link *link, double streams)
{
    return streams < 2 || link->copies == AQ_LINK_COPIES_OFF ? 0 : fmin(streams - 1, GROUP);
}

static double parity_rows(double loss)
{
    return loss < 0.0015 ? 1 : loss < 0.012 ? 2 : 3;
}

/* Probability that more of a block's packets are lost than its parity repairs, for any of the frame's blocks. */
static double beyond_repair(double packets, double lost)
{
    const double rows = parity_rows(lost), all = fmin(packets, BLOCK) + rows;
    double within = 0, term = pow(1 - lost, all);
    for (double k = 0; k <= rows; k++) {
        within += term;
        term *= (all - k) / (k + 1) * lost / (1 - lost);
    }
    return 1 - pow(fmin(within, 1), ceil(packets / BLOCK));
}

double aq_plan_lossy_rate(const struct aq_plan *plan, const struct aq_plan_costs *costs, uint32_t e)
{
    const struct aq_job_link *link = &plan->job->link;
    const double loss = costs->loss[e], round_trip_s = 2 * costs->latency_s[e], rate = costs->rate_mbps;
    if (costs->edge_mbps[e] > 0) return costs->edge_mbps[e];
    if (!(loss > 0)) return rate;
    if (link->protocol == AQ_PROTOCOL_QUIC) return rate * BLOCK / (BLOCK + parity_rows(loss));
    const double streams = streams_of(link, rate, round_trip_s), group = group_of(link, streams);
    const double share = group > 0 ? group / (group + 1) : 1;
    if (steady(link, costs->latency_s[e])) return rate * share;
    double packets = MATHIS / sqrt(loss);
    if (strcmp(link->congestion, "cubic") == 0) packets = fmax(packets, CUBIC * pow(round_trip_s / loss, CUBIC_POWER));
    const double most = streams * packets * AQ_WIRE_SEGMENT_BYTES * 8 / round_trip_s * 1e-6;
    return share * (rate > 0 ? fmin(rate, most) : most);
}

/* Probability that a frame of `packets` packets waits, if each is lost with probability `lost`. */
static double waits(double packets, double lost, double streams, double group)
{
    if (!(group > 0)) return -expm1(packets * log1p(-lost));
    const double held = -expm1(packets * (1 + 1 / group) / streams * log1p(-lost)); /* one of the connections */
    return 1 - pow(1 - held, streams) - streams * held * pow(1 - held, streams - 1);
}

double aq_plan_lost_s(const struct aq_plan *plan, const struct aq_plan_costs *costs, uint32_t e, bool forward,
                      double frame_bytes, uint64_t number)
{
    const struct aq_job_link *link = &plan->job->link;
    const double loss = costs->loss[e];
    if (!(loss > 0)) return 0;
    const struct aq_rng_key key = aq_rng_key(1, AQ_RNG_TEST, e, forward);
    const double packets = ceil(frame_bytes / AQ_WIRE_SEGMENT_BYTES), lot = (double)aq_rng_uniform(&key, number);
    const double streams = streams_of(link, costs->rate_mbps, 2 * costs->latency_s[e]);
    const double group = group_of(link, streams);
    double lost = loss; /* that often or more, one packet */
    uint32_t times = 0;
    if (link->protocol == AQ_PROTOCOL_QUIC) return lot < beyond_repair(packets, loss) ? 2 * costs->latency_s[e] : 0;
    while (times < ROUND_TRIPS_MAX && lot < waits(packets, lost, streams, group)) {
        lost *= loss;
        times++;
    }
    return times * 2 * costs->latency_s[e];
}
