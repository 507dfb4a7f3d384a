/* watch.c -- see the header. */
#include "watch.h"

#include <string.h>

#include "aqsgd/base.h"

static const uint64_t second_ns = 1000ULL * 1000 * 1000;

/* Of silence_ns one look may count an eighth: six beats within it come before the time does. */
enum { LOOKS = 8, INTERVAL_S_MAX = 10 };
static const uint64_t interval_ns_min = 20ULL * 1000 * 1000;

void aq_watch_clock_init(struct aq_watch_clock *clock, uint64_t silence_ns, uint64_t now_ns)
{
    const uint64_t part = silence_ns / LOOKS;
    *clock = (struct aq_watch_clock){.last_ns = now_ns, .most_ns = part && part < second_ns ? part : second_ns};
}

void aq_watch_clock_tick(struct aq_watch_clock *clock, uint64_t now_ns)
{
    const uint64_t passed = now_ns > clock->last_ns ? now_ns - clock->last_ns : 0;
    clock->now_ns += passed < clock->most_ns ? passed : clock->most_ns;
    clock->last_ns = now_ns;
}

uint64_t aq_watch_interval(const struct aq_watch_config *config)
{
    const uint64_t least = config->silence_ns && (config->silence_ns < config->stall_ns || !config->stall_ns)
                               ? config->silence_ns
                               : config->stall_ns;
    const uint64_t interval = least / AQ_WATCH_BEATS;
    if (least == 0) return 0;
    if (interval < interval_ns_min) return interval_ns_min;
    return interval < INTERVAL_S_MAX * second_ns ? interval : INTERVAL_S_MAX * second_ns;
}

void aq_watch_init(struct aq_watch *watch, const struct aq_watch_config *config, uint64_t now_ns)
{
    memset(watch, 0, sizeof *watch);
    watch->config = *config;
    aq_watch_clock_init(&watch->clock, config->silence_ns, now_ns);
}

void aq_watch_tick(struct aq_watch *watch, uint64_t now_ns)
{
    aq_watch_clock_tick(&watch->clock, now_ns);
}

void aq_watch_host_heard(struct aq_watch *watch, uint32_t host)
{
    AQ_ASSERT(host < AQ_JOB_RANKS_MAX);
    if (host >= watch->host_count) watch->host_count = host + 1;
    watch->hosts[host] = (struct aq_watch_host){.watched = true, .heard_ns = watch->clock.now_ns};
}

void aq_watch_host_gone(struct aq_watch *watch, uint32_t host)
{
    watch->hosts[host].watched = false;
}

void aq_watch_stage_begin(struct aq_watch *watch, uint32_t stage, uint32_t host)
{
    AQ_ASSERT(stage < AQ_JOB_RANKS_MAX && host < AQ_JOB_RANKS_MAX);
    if (stage >= watch->stage_count) watch->stage_count = stage + 1;
    watch->stages[stage] = (struct aq_watch_stage){
        .watched = true, .host = host, .heard_ns = watch->clock.now_ns, .changed_ns = watch->clock.now_ns};
}

/* Progress. The pause that ended shows how slow this run may be. */
static void progress(struct aq_watch *watch)
{
    const uint64_t pause = watch->clock.now_ns - watch->progress_ns;
    if (watch->running && pause > watch->longest_ns) watch->longest_ns = pause;
    watch->progress_ns = watch->clock.now_ns;
}

void aq_watch_stage_heard(struct aq_watch *watch, uint32_t stage)
{
    struct aq_watch_stage *of = &watch->stages[stage];
    of->heard_ns = of->changed_ns = watch->clock.now_ns;
    progress(watch);
}

void aq_watch_stage_beat(struct aq_watch *watch, uint32_t stage, uint64_t work, uint64_t step, enum aq_phase phase)
{
    struct aq_watch_stage *of = &watch->stages[stage];
    const bool sums = watch->config.server > 0 && stage == watch->config.server && phase == AQ_PHASE_SUMS;
    const bool went_on = !of->beaten || of->work != work || of->step != step || sums;
    of->heard_ns = watch->clock.now_ns;
    of->beaten = true;
    of->work = work;
    of->step = step;
    of->phase = phase;
    if (!went_on) return;
    of->changed_ns = watch->clock.now_ns;
    progress(watch);
}

void aq_watch_stage_gone(struct aq_watch *watch, uint32_t stage)
{
    watch->stages[stage].watched = false;
    progress(watch);
}

void aq_watch_go(struct aq_watch *watch)
{
    watch->progress_ns = watch->clock.now_ns;
    watch->running = true;
}

static bool waits_for_others(enum aq_phase phase)
{
    return phase == AQ_PHASE_NEIGHBOUR || phase == AQ_PHASE_REDUCE || phase == AQ_PHASE_GO;
}

/* Of a stuck job: the stage that waits for no other and has been idle the longest. */
static uint32_t guilty(const struct aq_watch *watch)
{
    uint32_t found = 0;
    bool any = false, own = false;
    for (uint32_t s = 0; s < watch->stage_count; s++) {
        const struct aq_watch_stage *of = &watch->stages[s];
        if (!of->watched) continue;
        const bool mine = !waits_for_others(of->phase);
        const bool longer = any && mine == own && of->changed_ns < watch->stages[found].changed_ns;
        if (any && !longer && !(mine && !own)) continue;
        found = s;
        own = mine;
        any = true;
    }
    return found;
}

static bool is_marking(const struct aq_watch *watch)
{
    for (uint32_t s = 0; s < watch->stage_count; s++)
        if (watch->stages[s].watched && watch->stages[s].phase == AQ_PHASE_MARK) return true;
    return false;
}

static uint64_t stall_limit(const struct aq_watch *watch)
{
    const struct aq_watch_config *config = &watch->config;
    uint64_t limit = config->stall_ns;
    if (limit < AQ_WATCH_FACTOR * watch->longest_ns) limit = AQ_WATCH_FACTOR * watch->longest_ns;
    if (limit < config->first_ns) limit = config->first_ns;
    return limit + config->outage_ns + (is_marking(watch) ? config->mark_ns : 0);
}

struct aq_watch_finding aq_watch_look(const struct aq_watch *watch)
{
    const uint64_t silence = watch->config.silence_ns, now = watch->clock.now_ns;
    for (uint32_t h = 0; silence && h < watch->host_count; h++)
        if (watch->hosts[h].watched && now - watch->hosts[h].heard_ns > silence)
            return (struct aq_watch_finding){.kind = AQ_WATCH_HOST_SILENT,
                                             .number = h,
                                             .since_ns = now - watch->hosts[h].heard_ns,
                                             .limit_ns = silence};
    for (uint32_t s = 0; silence && s < watch->stage_count; s++) {
        const struct aq_watch_stage *of = &watch->stages[s];
        if (!of->watched || !watch->hosts[of->host].watched) continue;
        /* Up to its host's last line: a silent host hides all its stages. */
        const uint64_t told = watch->hosts[of->host].heard_ns;
        const uint64_t limit = of->beaten ? silence : AQ_WATCH_STARTS * silence;
        if (told > of->heard_ns && told - of->heard_ns > limit)
            return (struct aq_watch_finding){
                .kind = AQ_WATCH_STAGE_SILENT, .number = s, .since_ns = told - of->heard_ns, .limit_ns = limit};
    }
    const uint64_t limit = stall_limit(watch);
    if (watch->config.stall_ns && watch->running && now - watch->progress_ns > limit)
        return (struct aq_watch_finding){
            .kind = AQ_WATCH_STUCK, .number = guilty(watch), .since_ns = now - watch->progress_ns, .limit_ns = limit};
    return (struct aq_watch_finding){.kind = AQ_WATCH_WELL};
}
