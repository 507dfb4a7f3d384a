/* report_sums.c -- one pass over metrics.jsonl adds up the report's sums. */
#include "report_sums.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "control.h"

/* As 16 digits a word. On another machine, or after a change of the struct, the size or the hello differ. */
enum { NOTICES_MAX = 64 }; /* of a file that anybody may have written */
enum { WORDS = sizeof(struct aq_report_numbers) / 8 };
static_assert(sizeof(struct aq_report_numbers) % 8 == 0, "words of 64 bits alone");

/* array[i] as a number, 0 if it is missing. */
static double item(const json_t *line, const char *key, size_t i)
{
    const json_t *value = json_array_get(json_object_get(line, key), i);
    return json_is_number(value) ? json_number_value(value) : 0;
}

/* Bytes and what packing left of them; a run from before packing left all. */
static double wire(const json_t *line, const char *bytes, const char *packed, size_t i)
{
    const double left = item(line, packed, i);
    return item(line, bytes, i) * (left > 0 && left <= 1 ? left : 1); /* sums say whether they are finite */
}

static void add_loss(struct aq_report_numbers *g, double loss)
{
    if (!isfinite(loss)) return;
    if (g->first_epoch.count == 0) g->loss_first = loss;
    g->loss_last = loss;
    if (g->epoch_last == g->epoch_first) {
        g->first_epoch.sum += loss;
        g->first_epoch.count++;
    }
    g->last_epoch.sum += loss;
    g->last_epoch.count++;
}

/* Of rank r, which is stage s; the stage behind the cut reports gradients. */
static void add_gauges(struct aq_report_numbers *g, const json_t *line, size_t r, size_t s)
{
    static const char *const keys[AQ_REPORT_GAUGES] = {AQ_REPORT_GAUGE_KEYS};
    enum { GRADIENT = 2 };
    for (size_t i = 0; i < AQ_REPORT_GAUGES; i++) {
        const json_t *value = json_array_get(json_object_get(line, keys[i]), r);
        if (!json_is_number(value) || (i == GRADIENT && s == 0)) continue;
        struct aq_report_gauge *gauge = &g->gauges[i == GRADIENT ? s - 1 : s][i];
        gauge->sum += json_number_value(value);
        gauge->most = fmax(gauge->most, json_number_value(value));
        gauge->count++;
    }
    const double bits = item(line, "forward_bits", r);
    g->bits[s] = r < g->stages ? bits : fmax(g->bits[s], bits);
    g->afresh += item(line, "afresh", r);
}

static void add_step(struct aq_report_numbers *g, const json_t *line)
{
    if (!json_object_get(line, "seconds")) return; /* a step that nobody trained (reduce.steps) */
    const int64_t epoch = (int64_t)aq_control_u64_or(line, "epoch", 0);
    if (g->epoch_first < 0) g->epoch_first = epoch;
    if (epoch != g->epoch_last) {
        g->last_epoch = (struct aq_report_curve){0};
        memset(g->gauges, 0, sizeof g->gauges);
    }
    g->epoch_last = epoch;
    const size_t ranks = json_array_size(json_object_get(line, "link_wait_ns"));
    if (g->stages == 0 && ranks <= AQ_JOB_STAGES_MAX) g->stages = ranks; /* no start line: one replica */
    struct aq_report_part *part = epoch == g->epoch_first ? &g->cold : &g->warm;
    const double seconds = aq_control_number_or(line, "seconds", 0);
    part->steps++;
    part->samples += aq_control_number_or(line, "samples", 0);
    part->seconds += seconds;
    g->skipped += aq_control_bool_or(line, "skipped", false);
    for (int i = 0; i < AQ_STEP_FIGURES; i++)
        g->figures[i] = aq_control_number_or(line, aq_step_figure(i)->name, g->figures[i]);
    for (size_t r = 0; r < ranks && r < AQ_JOB_RANKS_MAX && g->stages > 0; r++) {
        const size_t s = r % g->stages;
        part->forward[s] += item(line, "forward_bytes", r);
        if (s > 0) part->backward[s - 1] += item(line, "backward_bytes", r);
        part->gradient += item(line, "gradient_bytes", r);
        const double forward = wire(line, "forward_bytes", "forward_packed", r),
                     backward = wire(line, "backward_bytes", "backward_packed", r),
                     gradient = wire(line, "gradient_bytes", "gradient_packed", r);
        part->forward_wire += forward;
        part->backward_wire += backward;
        part->gradient_wire += gradient;
        g->sent[r] += forward + backward + gradient;
        g->compute_ns += item(line, "compute_ns", r);
        g->packing_ns += item(line, "packing_ns", r);
        g->reduce_ns += item(line, "reduce_ns", r);
        g->optimizer_ns += item(line, "optimizer_ns", r);
        part->keyframes += item(line, "keyframes", r);
        g->fetched += item(line, "fetched", r);
        g->link_wait_ns += item(line, "link_wait_ns", r);
        g->wait_ns += item(line, "wait_ns", r);
        g->stage_seconds += item(line, "stage_seconds", r);
        add_gauges(g, line, r, s);
    }
    g->step = aq_control_u64_or(line, "step", g->step);
    add_loss(g, aq_control_number_or(line, "loss", (double)NAN));
}

static void replace(json_t **slot, const json_t *line)
{
    json_decref(*slot);
    *slot = json_incref((json_t *)(uintptr_t)line);
}

static void add_choice(struct aq_report_sums *sums, const json_t *line)
{
    const json_t *codecs = json_object_get(line, "reduce_codec");
    if (codecs) replace(&sums->choice, codecs);
}

/* A restarted run may have two. */
static bool same_notice(const json_t *a, const json_t *b)
{
    static const char *const keys[] = {"cause", "cut", "stage", "way"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const json_t *one = json_object_get(a, keys[i]), *other = json_object_get(b, keys[i]);
        if (one != other && !json_equal(one, other)) return false;
    }
    return true;
}

void aq_report_notice_add(json_t **list, const json_t *line)
{
    const json_t *have;
    size_t i;
    if (!*list) *list = json_array();
    json_array_foreach(*list, i, have) if (same_notice(have, line)) return;
    if (json_array_size(*list) < NOTICES_MAX) json_array_append(*list, (json_t *)(uintptr_t)line);
}

enum aq_status aq_report_sums_add(const json_t *line, void *context)
{
    struct aq_report_sums *sums = context;
    struct aq_report_numbers *g = &sums->n;
    g->time = aq_control_number_or(line, "time", g->time);
    if (aq_control_is(line, "event", "start")) {
        const uint64_t stages = aq_control_u64_or(line, "stages", 0), replicas = aq_control_u64_or(line, "replicas", 1);
        replace(&sums->start, line);
        if (stages >= 1 && stages <= AQ_JOB_STAGES_MAX) g->stages = stages;
        if (replicas >= 1 && replicas <= AQ_JOB_RANKS_MAX) g->replicas = replicas;
    }
    if (aq_control_is(line, "event", "step")) add_choice(sums, line);
    if (aq_control_is(line, "event", "step"))
        add_step(g, line);
    else if (aq_control_is(line, "event", "notice"))
        aq_report_notice_add(&sums->notices, line);
    else if (aq_control_is(line, "event", "restart"))
        g->restarts++;
    else if (aq_control_is(line, "event", "eval"))
        replace(&sums->eval, line);
    else if (aq_control_is(line, "event", "end"))
        replace(&sums->end, line);
    return AQ_OK;
}

void aq_report_sums_init(struct aq_report_sums *sums)
{
    *sums = (struct aq_report_sums){.n = {.epoch_first = -1, .epoch_last = -1, .replicas = 1}};
}

void aq_report_sums_deinit(struct aq_report_sums *sums)
{
    json_decref(sums->start);
    json_decref(sums->eval);
    json_decref(sums->end);
    json_decref(sums->choice);
    json_decref(sums->notices);
    aq_report_sums_init(sums);
}

json_t *aq_report_sums_json(const struct aq_report_sums *sums)
{
    uint64_t words[WORDS];
    char text[16 * WORDS + 1];
    memcpy(words, &sums->n, sizeof words);
    for (size_t i = 0; i < WORDS; i++)
        snprintf(text + 16 * i, 17, "%016llx", (unsigned long long)words[i]);
    return json_pack("{s:s, s:s, s:O*, s:O*, s:O*, s:O*, s:O*}", "version", AQ_VERSION, "numbers", text, "start",
                     sums->start, "eval", sums->eval, "end", sums->end, "choice", sums->choice, "notices",
                     sums->notices);
}

static bool take_words(const char *text, uint64_t *words)
{
    if (!aq_is_hex(text, 16 * WORDS)) return false;
    for (size_t i = 0; i < 16 * WORDS; i++)
        words[i / 16] = words[i / 16] << 4 | (uint64_t)(text[i] <= '9' ? text[i] - '0' : text[i] - 'a' + 10);
    return true;
}

bool aq_report_sums_take(struct aq_report_sums *sums, const json_t *from)
{
    uint64_t words[WORDS] = {0};
    struct aq_report_sums got = {0};
    if (!aq_control_is(from, "version", AQ_VERSION)) return false;
    if (!take_words(aq_control_text_or(from, "numbers", ""), words)) return false;
    memcpy(&got.n, words, sizeof words);
    if (got.n.stages > AQ_JOB_STAGES_MAX || got.n.replicas > AQ_JOB_RANKS_MAX) return false;
    got.start = json_incref(json_object_get(from, "start"));
    got.eval = json_incref(json_object_get(from, "eval"));
    got.end = json_incref(json_object_get(from, "end"));
    got.choice = json_incref(json_object_get(from, "choice"));
    got.notices = json_incref(json_object_get(from, "notices"));
    *sums = got;
    return true;
}
