/*
 * plan_flight.c -- what follows from round trips (link.rtt_ms): the schedule, how many micro-batches are in flight, and
 * how many frames a link may have on its way.
 *
 * Choices are made by the simulation of plan_simulate.c with only the links: computing times are not in a manifest, and
 * stages faster than assumed would idle for lack of micro-batches in flight. So a choice is a pure function of the
 * manifest. Candidates are the schedules that may be taken, each with its own count of micro-batches in flight and with
 * twice as many, and so on up to a step's. Of those that take at most FLIGHT_BYTES more than the first, on every stage,
 * the one with least memory among the fastest is taken.
 *
 * On a line that two links share (aq_plan_line_shared) each of them sends at the line's rate, so what is in flight
 * beyond a round trip waits in the line's own queue, and overflows it. There the counts are tried in steps of an
 * eighth, and the one with least memory among those within ALIKE_SHARED is taken.
 *
 * A window of frames bounds a link to window / round trip. A window of all micro-batches in flight does not limit: it
 * is taken if it is cheap, else as many frames as a round trip holds at the link's rate. The same of messages that one
 * end has lost: as many are on their way from the other end as a round trip holds (each in a send buffer, of which they
 * have half: edge_heal.c), and the cache reads ahead so far and has the slots for what comes.
 */
#include <math.h>

#include "plan_private.h"
#include "schedule.h"

enum {
    CANDIDATES_MAX = 2 * 48, /* two schedules; doublings up to AQ_PLAN_SIMULATED_MOST are 8, growths by an eighth 38 */
    SEND_LEAST = 8,          /* windows of links without an rtt: a few frames of each direction in turn */
    RECEIVE_LEAST = 4,
    SEND_MOST = 256, /* as keys.def bounds them */
    RECEIVE_MOST = 252,
    ANSWERS = 2,     /* send buffers for messages that the other end has lost (edge_heal.c), however near it is */
    AHEAD = 4,       /* micro-batches that are read ahead from a near cache: some ms of an SSD  */
    AHEAD_MOST = 256 /* as keys.def bounds it */
};

#define ALIKE_SHARED 1.05                 /* of a step's time, for a shorter queue */
#define PACKED_SHARE 0.75                 /* of a body that packing was seen to leave of 4-bit values (0.78) */
#define FLIGHT_BYTES (UINT64_C(1) << 30)  /* of slots, a stage, that are taken without being asked for */
#define WINDOW_BYTES (UINT64_C(64) << 20) /* of buffers, a window, that are taken so                   */

struct candidate {
    enum aq_schedule_kind kind;
    uint32_t in_flight;
    double seconds;
    uint64_t bytes;
};

bool aq_plan_far(const struct aq_plan *plan)
{
    for (uint32_t e = 0; e + 1 < plan->stage_count; e++)
        if (plan->job->edges[e].rtt_ms > 0) return true;
    return false;
}

/* --- windows ---------------------------------------------------------------------------------------------------- */

/* Frames of this size that an edge's link carries in a round trip, plus two so that it never idles. */
static double round_trip_frames(const struct aq_plan *plan, uint32_t e, double frame_bytes)
{
    const double rate = plan->job->link.rate_mbps * 1e6 / 8, seconds = (double)plan->job->edges[e].rtt_ms * 1e-3;
    return rate > 0 && seconds > 0 ? ceil(rate * seconds / frame_bytes) + 2 : 0;
}

/* Messages of that edge that one end has lost, on their way from the other; 0: it is near, or has none. */
static double lost_messages(const struct aq_plan *plan, uint32_t e)
{
    const struct aq_plan_edge *edge = &plan->edges[e];
    const double rate = plan->job->link.rate_mbps > 0 ? plan->job->link.rate_mbps : AQ_PLAN_RATE_ASSUMED;
    const double seconds = (double)plan->job->edges[e].rtt_ms * 1e-3;
    const uint32_t window = plan->job->cache.window;
    if (edge->size.message_bytes == 0 || !(seconds > 0)) return 0;
    const double trip = ceil(rate * 1e6 / 8 * seconds / (double)aq_wire_bytes(edge->size.message_bytes, false)) + 2;
    return window == AQ_WINDOW_AUTO ? trip : fmin(trip, (double)window * plan->job->train.micro_batch);
}

/* Micro-batches whose messages are read ahead: AHEAD, or a round trip's in slots of WINDOW_BYTES at most. */
static uint32_t ahead_of(const struct aq_plan *plan)
{
    const uint32_t B = plan->job->train.micro_batch;
    double ahead = AHEAD;
    if (plan->job->cache.window != AQ_WINDOW_AUTO) return plan->job->cache.window;
    for (uint32_t e = 0; e + 1 < plan->stage_count; e++) {
        const double most = (double)(WINDOW_BYTES / (B * (plan->edges[e].size.message_bytes + 1)));
        ahead = fmax(ahead, fmin(ceil(lost_messages(plan, e) / B), most));
    }
    ahead = fmin(ahead, fmax(AHEAD, plan->micro_batches)); /* programs look no further than a step */
    return ahead < AHEAD_MOST ? (uint32_t)ahead : AHEAD_MOST;
}

static uint32_t frames_of(uint32_t asked, double wanted, double affordable, uint32_t least, uint32_t most)
{
    if (asked) return asked;
    const double frames = wanted < affordable ? wanted : affordable;
    return frames < least ? least : frames > most ? most : (uint32_t)frames;
}

static struct aq_plan_window window_of(const struct aq_plan *plan, uint32_t e, uint32_t in_flight, bool automatic)
{
    const struct aq_job_link *link = &plan->job->link;
    const struct aq_plan_edge *edge = &plan->edges[e];
    const uint64_t bytes =
        edge->step_forward_warm < edge->step_backward ? edge->step_forward_warm : edge->step_backward;
    const double trip = round_trip_frames(plan, e, (double)bytes / plan->micro_batches);
    const double evaluation = round_trip_frames(
        plan, e, (double)aq_wire_bytes(plan->job->train.micro_batch * edge->size.values_bytes, false));
    const double wanted = fmax(in_flight, evaluation), lost = lost_messages(plan, e);
    const double affordable = fmax((double)(WINDOW_BYTES / edge->size.body_bytes_max), trip);
    return (struct aq_plan_window){
        .send_frames = frames_of(automatic ? 0 : link->send_frames, fmax(wanted + ANSWERS, 2 * lost), affordable,
                                 SEND_LEAST, SEND_MOST),
        .receive_slots =
            frames_of(automatic ? 0 : link->receive_slots, wanted + lost, affordable, RECEIVE_LEAST, RECEIVE_MOST)};
}

/* --- a step, simulated ------------------------------------------------------------------------------------------ */

struct aq_schedule_request aq_plan_flight_request(const struct aq_plan *plan, uint32_t micro_batches,
                                                  enum aq_schedule_kind kind, uint32_t in_flight)
{
    return (struct aq_schedule_request){.kind = kind,
                                        .stages = plan->stage_count,
                                        .micro_batches = micro_batches,
                                        .in_flight = in_flight,
                                        .reduce = plan->replicas > 1 || aq_job_global(plan->job),
                                        .staleness = plan->job->train.staleness,
                                        .flush = plan->job->pipeline.flush};
}

static void windows_fill(const struct aq_plan *plan, const struct aq_schedule_request *request, bool automatic,
                         struct aq_plan_window *windows)
{
    for (uint32_t e = 0; e + 1 < plan->stage_count; e++)
        windows[e] = window_of(plan, e, aq_schedule_slots(request, e), automatic);
}

enum aq_status aq_plan_flight_seconds(const struct aq_plan *plan, const struct aq_plan_costs *costs,
                                      const struct aq_schedule_request *request, bool automatic, double *seconds)
{
    const uint32_t bound = aq_schedule_bound(request->micro_batches);
    struct aq_plan_scene scene;
    struct aq_plan_simulated simulated = {0};
    windows_fill(plan, request, automatic, scene.windows);
    struct aq_instruction *code;
    AQ_TRY(AQ_NEW((size_t)plan->stage_count * bound, &code));
    enum aq_status status = AQ_OK;
    for (uint32_t s = 0; s < plan->stage_count && status == AQ_OK; s++)
        status = aq_schedule_emit(request, s, code + (size_t)s * bound, bound, &scene.programs[s]);
    if (status == AQ_OK) status = aq_plan_simulate(plan, costs, &scene, &simulated);
    aq_free(code);
    *seconds = simulated.step_s;
    return status;
}

/* --- schedule and in_flight ------------------------------------------------------------------------------------- */

static uint64_t slots_bytes(const struct aq_plan *plan, const struct aq_schedule_request *request, uint32_t s)
{
    return aq_schedule_slots(request, s) * plan->stages[s].size.slot_bytes;
}

/* Does no stage take more slots than those of the first candidate and FLIGHT_BYTES? */
static bool affordable(const struct aq_plan *plan, const struct aq_schedule_request *first,
                       const struct aq_schedule_request *request)
{
    for (uint32_t s = 0; s < plan->stage_count; s++)
        if (slots_bytes(plan, request, s) > slots_bytes(plan, first, s) + FLIGHT_BYTES) return false;
    return true;
}

/* A schedule's own count, and twice as many, up to all of the steps under way. Returns the new count of candidates. */
static uint32_t candidates_add(const struct aq_plan *plan, uint32_t micro_batches, enum aq_schedule_kind kind,
                               uint32_t in_flight, struct candidate *out, uint32_t count)
{
    if (in_flight != AQ_IN_FLIGHT_AUTO) {
        out[count] = (struct candidate){.kind = kind, .in_flight = in_flight};
        return count + 1;
    }
    const struct aq_schedule_request own = aq_plan_flight_request(plan, micro_batches, kind, AQ_IN_FLIGHT_DEFAULT);
    const uint32_t all = aq_schedule_most(&own), most = all < AQ_PLAN_SIMULATED_MOST ? all : AQ_PLAN_SIMULATED_MOST;
    uint32_t flight = aq_schedule_slots(&own, 0);
    if (aq_plan_line_shared(plan) && flight > plan->stage_count)
        flight = plan->stage_count; /* gpipe's is all of them */
    out[count++] = (struct candidate){.kind = kind, .in_flight = AQ_IN_FLIGHT_DEFAULT};
    while (flight < most) {
        const uint32_t step = aq_plan_line_shared(plan) ? (flight + 7) / 8 : flight;
        flight = flight > most - step ? most : flight + step;
        AQ_ASSERT(count < CANDIDATES_MAX);
        out[count++] = (struct candidate){.kind = kind, .in_flight = flight};
    }
    return count;
}

/* What links will make of bodies is not in a manifest; frames that are smaller than planned need more in flight. */
static void packed_fill(const struct aq_plan *plan, struct aq_plan_costs *costs)
{
    if (plan->job->link.entropy == AQ_LINK_ENTROPY_OFF) return;
    for (uint32_t e = 0; e + 1 < plan->stage_count; e++) {
        const struct aq_edge_shape *shape = &plan->edges[e].shape;
        if (!aq_codec_about(shape->forward.kind)->varies) costs->forward_share[e] = PACKED_SHARE;
        if (!aq_codec_about(shape->backward.kind)->varies) costs->backward_share[e] = PACKED_SHARE;
    }
}

static enum aq_status choose(const struct aq_plan *plan, uint32_t micro_batches, bool automatic,
                             struct candidate *candidates, uint32_t count, struct aq_schedule_request *out)
{
    struct aq_plan_costs costs;
    const struct aq_schedule_request first =
        aq_plan_flight_request(plan, micro_batches, candidates[0].kind, candidates[0].in_flight);
    const double alike = aq_plan_line_shared(plan) ? ALIKE_SHARED : AQ_PLAN_ALIKE;
    double least = HUGE_VAL;
    aq_plan_costs_common(plan, 1, &costs);
    if (aq_plan_line_shared(plan)) packed_fill(plan, &costs);
    for (uint32_t i = 0; i < count; i++) {
        struct candidate *one = &candidates[i];
        const struct aq_schedule_request request =
            aq_plan_flight_request(plan, micro_batches, one->kind, one->in_flight);
        one->seconds = HUGE_VAL;
        if (!affordable(plan, &first, &request)) continue;
        struct aq_schedule_request simulated = request;
        if (simulated.micro_batches > AQ_PLAN_SIMULATED_MOST) simulated.micro_batches = AQ_PLAN_SIMULATED_MOST;
        AQ_TRY(aq_plan_flight_seconds(plan, &costs, &simulated, automatic, &one->seconds));
        for (uint32_t s = 0; s < plan->stage_count; s++)
            one->bytes += slots_bytes(plan, &request, s);
        if (one->seconds < least) least = one->seconds;
    }
    const struct candidate *chosen = NULL;
    for (uint32_t i = 0; i < count; i++)
        if (candidates[i].seconds <= least * alike && (!chosen || candidates[i].bytes < chosen->bytes))
            chosen = &candidates[i];
    *out = aq_plan_flight_request(plan, micro_batches, chosen->kind, chosen->in_flight);
    return AQ_OK;
}

enum aq_status aq_plan_flight_of(const struct aq_plan *plan, uint32_t micro_batches, enum aq_schedule_kind kind,
                                 uint32_t in_flight, bool automatic, struct aq_schedule_request *out)
{
    const enum aq_schedule_kind kinds[] = {kind == AQ_SCHEDULE_AUTO ? AQ_SCHEDULE_1F1B : kind, AQ_SCHEDULE_GPIPE};
    struct candidate candidates[CANDIDATES_MAX];
    uint32_t count = 0;
    if (!aq_plan_far(plan)) {
        *out = aq_plan_flight_request(plan, micro_batches, kinds[0],
                                      in_flight == AQ_IN_FLIGHT_AUTO ? AQ_IN_FLIGHT_DEFAULT : in_flight);
        return AQ_OK;
    }
    const bool both = kind == AQ_SCHEDULE_AUTO && in_flight == AQ_IN_FLIGHT_AUTO; /* a count that is set means 1f1b */
    for (uint32_t k = 0; k < (both ? 2 : 1); k++)
        count = candidates_add(plan, micro_batches, kinds[k], in_flight, candidates, count);
    if (count > 1) return choose(plan, micro_batches, automatic, candidates, count, out);
    *out = aq_plan_flight_request(plan, micro_batches, candidates[0].kind, candidates[0].in_flight);
    return AQ_OK;
}

enum aq_status aq_plan_flight(const struct aq_plan *plan, struct aq_plan_flight *out)
{
    const struct aq_job_pipeline *pipeline = &plan->job->pipeline;
    AQ_TRY(aq_plan_flight_of(plan, plan->micro_batches, pipeline->schedule, pipeline->in_flight, false, &out->request));
    windows_fill(plan, &out->request, false, out->windows);
    out->ahead = ahead_of(plan);
    return AQ_OK;
}
