/*
 * plan_loss.c -- what lost packets cost, in the plan's simulation (docs/NETWORKS.md, "Lost packets").
 *
 * A packet that is lost is missed when those behind it arrive, and sent again: it comes a round trip late, and what
 * is behind it on its link waits for it, for TCP hands over in order. What is lost again comes another round trip late.
 * A frame of n packets is late by j round trips with the probability that the worst of its packets is lost j times:
 * that is drawn from a counter by (edge, direction, frame), so that a plan is the same everywhere.
 *
 * BBR keeps its rate. Reno's window halves at each loss: 1.22 / sqrt(loss) packets a round trip (Mathis et al.,
 * 1997); CUBIC's is that or 1.054 (round trip / loss)^3/4, the larger (RFC 8312, equation 6: C 0.4, beta 0.7). Each of
 * a link's connections has such a window. `auto` is taken for BBR on far links, `link.streams: auto` as net/link
 * chooses.
 */
#include <math.h>
#include <string.h>

#include "plan_private.h"

#define MATHIS       1.22
#define CUBIC        1.054
#define CUBIC_POWER  0.75
#define FAR_S        2.5e-3 /* half a round trip, as net/transport/net_limits.h has far */
#define STREAM_BYTES (24.0 * 1024)
#define RATE_ASSUMED 200.0 /* Mbit/s, where links are not paced */
enum { STREAMS_MAX = 16, ROUND_TRIPS_MAX = 20 };

/* Does it go by what arrives, not by what is lost? A near link's window is back before that matters. */
static bool steady(const struct aq_job_link *link, double latency_s)
{
    const char *name = link->congestion ? link->congestion : "auto";
    return latency_s < FAR_S || strcmp(name, "auto") == 0 || strncmp(name, "bbr", 3) == 0;
}

static double streams_of(const struct aq_job_link *link, double rate_mbps, double round_trip_s)
{
    if (link->streams) return link->streams;
    const double bytes = (rate_mbps > 0 ? rate_mbps : RATE_ASSUMED) * 1e6 / 8 * round_trip_s;
    return fmin(floor(bytes / STREAM_BYTES + 1), STREAMS_MAX);
}

double aq_plan_lossy_rate(const struct aq_plan *plan, const struct aq_plan_costs *costs, uint32_t e)
{
    const struct aq_job_link *link = &plan->job->link;
    const double loss = costs->loss[e], round_trip_s = 2 * costs->latency_s[e], rate = costs->rate_mbps;
    if (!(loss > 0) || steady(link, costs->latency_s[e])) return rate;
    double packets = MATHIS / sqrt(loss);
    if (strcmp(link->congestion, "cubic") == 0) packets = fmax(packets, CUBIC * pow(round_trip_s / loss, CUBIC_POWER));
    const double most =
        streams_of(link, rate, round_trip_s) * packets * AQ_WIRE_SEGMENT_BYTES * 8 / round_trip_s * 1e-6;
    return rate > 0 ? fmin(rate, most) : most;
}

double aq_plan_lost_s(const struct aq_plan_costs *costs, uint32_t e, bool forward, double frame_bytes, uint64_t number)
{
    const double loss = costs->loss[e];
    if (!(loss > 0)) return 0;
    const struct aq_rng_key key = aq_rng_key(1, AQ_RNG_TEST, e, forward);
    const double packets = ceil(frame_bytes / AQ_WIRE_SEGMENT_BYTES), lot = (double)aq_rng_uniform(&key, number);
    double lost = loss; /* that often or more, one packet */
    uint32_t times = 0;
    while (times < ROUND_TRIPS_MAX && lot < -expm1(packets * log1p(-lost))) {
        lost *= loss;
        times++;
    }
    return times * 2 * costs->latency_s[e];
}
