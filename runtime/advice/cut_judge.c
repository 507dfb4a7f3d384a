/* cut_judge.c -- see the header. */
#include "cut_judge.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "control.h"
#include "edge_guard.h"

enum { ERROR_STEPS = 8, IDLE_STEPS = 20, RAW_SAMPLES_LEAST = 32, LOST_STEPS = 16, LOST_EPOCHS = 5 };
static const double error_most = 0.5, raw_share_most = 0.01, lost_most = 0.15;
static const double fp16_most = 65504;

struct way { /* of a cut */
    double raws, samples, peak;
    uint32_t lossy; /* steps in a row whose error was above error_most */
    bool raw_said, error_said, wide_said;
};

struct aq_cut_judge {
    const struct aq_plan *plan;
    uint32_t stages, ranks;
    struct way ways[AQ_JOB_STAGES_MAX][2]; /* forward, backward */
    uint32_t idle[AQ_JOB_STAGES_MAX];      /* steps in a row    */
    bool idle_said[AQ_JOB_STAGES_MAX];
    uint64_t lossy; /* steps in a row whose activations lost more than lost_most */
    bool lost_said;
};

enum aq_status aq_cut_judge_open(const struct aq_plan *plan, struct aq_cut_judge **out)
{
    AQ_TRY(AQ_NEW(1, out));
    **out = (struct aq_cut_judge){.plan = plan, .stages = plan->stage_count, .ranks = plan->ranks};
    return AQ_OK;
}

void aq_cut_judge_close(struct aq_cut_judge *judge)
{
    aq_free(judge);
}

void aq_cut_judge_begin(struct aq_cut_judge *judge)
{
    const bool ends = judge && judge->plan->job->train.idle_stage == AQ_IDLE_ERROR;
    if (!judge) return;
    judge->lossy = 0;
    for (uint32_t s = 0; s < judge->stages; s++) {
        judge->idle[s] = 0;
        judge->idle_said[s] = judge->idle_said[s] && !ends; /* it ends each time */
        for (int w = 0; w < 2; w++) {
            struct way *way = &judge->ways[s][w];
            *way = (struct way){.raw_said = way->raw_said, .error_said = way->error_said, .wide_said = way->wide_said};
        }
    }
}

static double item(const json_t *line, const char *key, uint32_t rank)
{
    const json_t *value = json_array_get(json_object_get(line, key), rank);
    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

/* The sum, or the most, of a key over the replicas of a stage; NaN: none has it. */
static double of_stage(const struct aq_cut_judge *judge, const json_t *line, const char *key, uint32_t stage, bool most)
{
    double all = (double)NAN;
    for (uint32_t r = stage; r < judge->ranks; r += judge->stages) {
        const double value = item(line, key, r);
        if (isnan(value)) continue;
        all = isnan(all) ? value : most ? fmax(all, value) : all + value;
    }
    return all;
}

static const char *way_name(bool backward)
{
    return backward ? "backward" : "forward";
}

static const struct aq_codec_config *codec_of(const struct aq_cut_judge *judge, uint32_t cut, bool backward)
{
    const struct aq_edge_shape *shape = &judge->plan->edges[cut].shape;
    return backward ? &shape->backward : &shape->forward;
}

/* The keys to change from fp16 to bf16, because values do not fit into fp16. */
static void range_remedy(const struct aq_codec_config *codec, bool backward, char out[AQ_NOTICE_TEXT])
{
    const struct aq_codec_about *about = aq_codec_about(codec->kind);
    char keys[96] = "";
    size_t used = 0;
    if (about->plain && codec->raw == AQ_PRECISION_FP16)
        used += (size_t)snprintf(keys + used, sizeof keys - used, ", precision: bf16");
    if (!about->plain && !about->stateless && codec->store == AQ_PRECISION_FP16)
        used += (size_t)snprintf(keys + used, sizeof keys - used, ", store: bf16");
    if (!about->plain && !about->stateless && codec->keyframe == AQ_PRECISION_FP16)
        used += (size_t)snprintf(keys + used, sizeof keys - used, ", keyframe: bf16");
    if (about->grid && codec->scale_format == AQ_SCALE_FP16)
        (void)snprintf(keys + used, sizeof keys - used, ", scale_format: bf16");
    if (*keys)
        snprintf(out, AQ_NOTICE_TEXT, "edges.%s: {%s}", way_name(backward), keys + 2);
    else
        snprintf(out, AQ_NOTICE_TEXT, "edges.%s: another codec (aqpipe help keys lists them)", way_name(backward));
}

static void say_raw(const struct aq_cut_judge *judge, uint32_t cut, bool backward, struct aq_notice *out)
{
    const struct way *way = &judge->ways[cut][backward];
    const struct aq_codec_config *codec = codec_of(judge, cut, backward);
    const bool scaled = codec->prescale_log2 != 0;
    const double limit = scaled ? fp16_most / exp2(codec->prescale_log2) : fp16_most;
    const int used =
        snprintf(out->text, sizeof out->text,
                 "cut %u %s: %.0f of %.0f samples went as 32-bit floats, because their values do not fit the "
                 "codec %s",
                 cut, way_name(backward), way->raws, way->samples, aq_codec_about(codec->kind)->name);
    if (way->peak > limit) {
        snprintf(out->text + used, sizeof out->text - (size_t)used, ": the largest is %.3g, fp16 ends at %.3g",
                 way->peak, limit);
        range_remedy(codec, backward, out->remedy);
    } else {
        snprintf(out->remedy, sizeof out->remedy, "edges.%s: a higher rate or more bits, or codec: directq",
                 way_name(backward));
    }
}

/* Not an error: a notice, because bf16 keeps fewer digits than fp16. */
static void say_wide(const struct aq_cut_judge *judge, uint32_t cut, bool backward, struct aq_notice *out)
{
    const struct aq_codec_config *codec = codec_of(judge, cut, backward);
    const struct aq_codec_about *about = aq_codec_about(codec->kind);
    const bool keyframe = codec->keyframe == AQ_PRECISION_FP16;
    snprintf(out->text, sizeof out->text,
             "cut %u %s: there are values that fp16 cannot hold; their samples have bf16 in its place", cut,
             way_name(backward));
    snprintf(out->remedy, sizeof out->remedy, "nothing to do; for more digits and bytes edges.%s: {%s}",
             way_name(backward),
             about->plain       ? "precision: fp32"
             : about->stateless ? "scale_format: fp32"
             : keyframe         ? "store: fp32, keyframe: fp32"
                                : "store: fp32");
}

/* A guard gets its time: it has three more levels, and looks at each for as long. */
static uint32_t error_steps(const struct aq_cut_judge *judge)
{
    return judge->plan->job->guard ? 4 * ERROR_STEPS : ERROR_STEPS;
}

static void say_error(const struct aq_cut_judge *judge, uint32_t cut, double error, struct aq_notice *out)
{
    const struct aq_codec_config *codec = codec_of(judge, cut, true);
    const struct aq_codec_about *about = aq_codec_about(codec->kind);
    snprintf(out->text, sizeof out->text,
             "cut %u backward: %u steps in a row lost more than half of the gradients (error %.2f of their size): the "
             "stages before the cut learn little",
             cut, error_steps(judge), error);
    const char *guard = judge->plan->job->guard ? "" : "; or edges.guard: true";
    if (about->varies && codec->error > 0)
        snprintf(out->remedy, sizeof out->remedy, "edges.backward: a smaller error than %g, or codec: directq, bits: 8",
                 (double)codec->error);
    else if (about->varies)
        snprintf(out->remedy, sizeof out->remedy,
                 "edges.backward: a higher rate than %g, or error: 0.05, or codec: directq, bits: 8%s",
                 (double)codec->rate, guard);
    else
        snprintf(out->remedy, sizeof out->remedy, "edges.backward: more bits than %u%s%s", codec->bits,
                 codec->top_k > 0 && codec->top_k < 1 ? " or a larger top_k" : "", guard);
}

static struct aq_notice *notice_add(struct aq_notice *out, uint32_t *count, const char *cause, uint32_t at,
                                    bool backward)
{
    struct aq_notice *notice = &out[(*count)++];
    *notice = (struct aq_notice){.cause = cause, .at = at, .backward = backward};
    return notice;
}

static void judge_way(struct aq_cut_judge *judge, const json_t *line, uint32_t cut, bool backward,
                      struct aq_notice *out, uint32_t *count)
{
    struct way *way = &judge->ways[cut][backward];
    const uint32_t sender = backward ? cut + 1 : cut;
    const double raws = of_stage(judge, line, backward ? "backward_raws" : "raws", sender, false);
    const double peak = of_stage(judge, line, backward ? "backward_raw_peak" : "raw_peak", sender, true);
    const double error = backward ? of_stage(judge, line, "gradient_error_ratio", sender, true) : (double)NAN;
    const double wide = of_stage(judge, line, backward ? "backward_wide" : "wide", sender, false);
    const double samples = aq_control_number_or(line, "samples", 0);
    if (raws >= 0) way->raws += raws;
    if (peak > way->peak) way->peak = peak;
    if (samples > 0) way->samples += samples;
    way->lossy = error > error_most ? way->lossy + 1 : 0;
    if (!way->raw_said && way->samples >= RAW_SAMPLES_LEAST && way->raws > raw_share_most * way->samples &&
        *count < AQ_NOTICES_AT_ONCE) {
        way->raw_said = true;
        say_raw(judge, cut, backward, notice_add(out, count, "raw", cut, backward));
    }
    if (!way->wide_said && wide > 0 && *count < AQ_NOTICES_AT_ONCE) {
        way->wide_said = true;
        say_wide(judge, cut, backward, notice_add(out, count, "wide", cut, backward));
    }
    if (!way->error_said && way->lossy >= error_steps(judge) && *count < AQ_NOTICES_AT_ONCE) {
        way->error_said = true;
        say_error(judge, cut, error, notice_add(out, count, "error", cut, backward));
    }
}

/*
 * The loss of all cuts on the activations of warm samples, relative to their size: independent errors, so the root of
 * the sum of squares. *cut: the one that lost most. NaN: no cut keeps messages, or none of the samples was seen before.
 */
static double lost_of(const struct aq_cut_judge *judge, const json_t *line, uint32_t *cut)
{
    double squares = (double)NAN, largest = 0;
    for (uint32_t c = 0; c + 1 < judge->stages; c++) {
        const double change = of_stage(judge, line, "delta_ratio", c, true);
        const double lost = change * of_stage(judge, line, "error_ratio", c, true);
        if (isnan(lost)) continue;
        squares = isnan(squares) ? lost * lost : squares + lost * lost;
        if (lost > largest) *cut = c;
        largest = fmax(largest, lost);
    }
    return sqrt(squares);
}

/* Samples change much in the first visits of a run from scratch, and their loss is soon recovered. */
static uint64_t lost_steps(const struct aq_cut_judge *judge)
{
    const uint64_t steps = LOST_EPOCHS * judge->plan->steps_per_epoch;
    return steps < LOST_STEPS ? LOST_STEPS : steps;
}

static void say_lost(const struct aq_cut_judge *judge, uint32_t cut, double lost, struct aq_notice *out)
{
    const struct aq_codec_config *codec = codec_of(judge, cut, false);
    snprintf(
        out->text, sizeof out->text,
        "%llu steps in a row the cuts lost %.0f %% of the activations (most at cut %u): samples change much between "
        "epochs, and the loss can end higher than without compression",
        (unsigned long long)lost_steps(judge), 100 * lost, cut);
    const struct aq_codec_about *about = aq_codec_about(codec->kind);
    struct aq_codec_config levels[AQ_EDGE_LEVELS];
    const uint32_t count = aq_edge_level_list(codec, levels);
    const char *key = about->varies ? "rate" : "bits";
    if (about->varies && codec->error > 0)
        snprintf(out->remedy, sizeof out->remedy, "edges.forward: a smaller error than %g, or a lower train.lr",
                 (double)codec->error);
    else if (count > 1) /* one bit more, where there is so much */
        snprintf(out->remedy, sizeof out->remedy, "edges.forward: %s: %g in place of %g, or a lower train.lr", key,
                 aq_edge_level_bits(&levels[about->varies && count > 2 ? 2 : 1]), aq_edge_level_bits(codec));
    else
        snprintf(out->remedy, sizeof out->remedy,
                 "edges.forward: a codec with less error than %s, as {codec: ec, rate: 3.5}, or a lower train.lr",
                 about->name);
}

static void judge_activations(struct aq_cut_judge *judge, const json_t *line, struct aq_notice *out, uint32_t *count)
{
    uint32_t cut = 0;
    const double lost = lost_of(judge, line, &cut);
    judge->lossy = lost > lost_most ? judge->lossy + 1 : 0;
    if (judge->lost_said || judge->lossy < lost_steps(judge) || *count == AQ_NOTICES_AT_ONCE) return;
    judge->lost_said = true;
    say_lost(judge, cut, lost, notice_add(out, count, "activations", cut, false));
}

/* Counts the step; true: this stage's gradient has been 0 for IDLE_STEPS. A stage without tensors to train never is. */
static bool is_idle(struct aq_cut_judge *judge, const json_t *line, uint32_t stage)
{
    const double own = of_stage(judge, line, "stage_grad_norm", stage, true);
    const double loss = aq_control_number_or(line, "loss", (double)NAN);
    judge->idle[stage] = own == 0 && isfinite(loss) && loss != 0 ? judge->idle[stage] + 1 : 0;
    return judge->idle[stage] >= IDLE_STEPS;
}

/* The cause, which stops gradients, is behind the last idle stage. */
static void say_idle(const struct aq_cut_judge *judge, uint32_t first, uint32_t last, double loss,
                     struct aq_notice *out)
{
    out->ends = judge->plan->job->train.idle_stage == AQ_IDLE_ERROR;
    if (first == last)
        snprintf(out->text, sizeof out->text,
                 "stage %u has trained nothing in %d steps: its gradient is 0, and the loss is %.4g", last, IDLE_STEPS,
                 loss);
    else
        snprintf(out->text, sizeof out->text,
                 "stages %u to %u have trained nothing in %d steps: their gradients are 0, and the loss is %.4g", first,
                 last, IDLE_STEPS, loss);
    const char *go_on = out->ends ? "; train.idle_stage: warn continues" : "";
    if (last + 1 < judge->stages)
        snprintf(out->remedy, sizeof out->remedy,
                 "does cut %u lose the gradients? edges.backward: {codec: raw} shows it%s", last, go_on);
    else
        snprintf(out->remedy, sizeof out->remedy,
                 "does the model give the same for every sample? Look at the data, "
                 "model.weights and what is frozen%s",
                 go_on);
}

static void judge_stages(struct aq_cut_judge *judge, const json_t *line, struct aq_notice *out, uint32_t *count)
{
    uint32_t first = judge->stages, last = 0;
    bool fresh = false;
    for (uint32_t s = 0; s < judge->stages; s++) {
        if (!is_idle(judge, line, s)) continue;
        first = s < first ? s : first;
        last = s;
        fresh = fresh || !judge->idle_said[s];
    }
    if (!fresh || judge->plan->job->train.idle_stage == AQ_IDLE_IGNORE || *count == AQ_NOTICES_AT_ONCE) return;
    for (uint32_t s = first; s <= last; s++)
        judge->idle_said[s] = true;
    say_idle(judge, first, last, aq_control_number_or(line, "loss", 0), notice_add(out, count, "idle", last, true));
}

uint32_t aq_cut_judge_step(struct aq_cut_judge *judge, const json_t *line, struct aq_notice out[AQ_NOTICES_AT_ONCE])
{
    uint32_t count = 0;
    if (!judge) return 0;
    for (uint32_t cut = 0; cut + 1 < judge->stages; cut++)
        for (int backward = 0; backward < 2; backward++)
            judge_way(judge, line, cut, backward, out, &count);
    judge_activations(judge, line, out, &count);
    judge_stages(judge, line, out, &count);
    return count;
}

json_t *aq_notice_line(const struct aq_notice *notice, uint64_t step)
{
    const bool stage = strcmp(notice->cause, "idle") == 0;
    json_t *line = json_pack("{s:s, s:I, s:s, s:I}", "event", "notice", "step", (json_int_t)step, "cause",
                             notice->cause, stage ? "stage" : "cut", (json_int_t)notice->at);
    if (!line) return NULL;
    if (!stage) json_object_set_new(line, "way", json_string(way_name(notice->backward)));
    json_object_set_new(line, "text", json_string(notice->text));
    json_object_set_new(line, "remedy", json_string(notice->remedy));
    return line;
}
