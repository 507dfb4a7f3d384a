/* command_epsilon.c -- `aqpipe epsilon`: what noise and visits come to, and what a ledger has counted. */
#include <math.h>
#include <stdio.h>

#include "commands.h"
#include "epsilon.h"
#include "json_text.h"
#include "options.h"
#include "out.h"
#include "visit_ledger.h"

struct asked {
    double noise, gradient_noise, delta;
    uint32_t visits, messages;
    bool json;
};

static const double DELTA = 1e-5;
enum { VISITS_MAX = 1000000000, MESSAGES_MAX = 65536 };

static const struct aq_option options[] = {
    AQ_ROW_RANGE(NUMBER, struct asked, noise, "noise", "N", 0, 1e6, "split.privacy.noise, in clips"),
    AQ_ROW_RANGE(NUMBER, struct asked, gradient_noise, "gradient-noise", "N", 0, 1e6,
                 "split.privacy.gradient_noise, in clips"),
    AQ_ROW_RANGE(U32, struct asked, visits, "visits", "T", 1, VISITS_MAX,
                 "how often the sample crosses the cuts: split.rounds times split.epochs, and what is sent again"),
    AQ_ROW_RANGE(U32, struct asked, messages, "batch-norm", "B", 1, MESSAGES_MAX,
                 "the client's stages have batch norms: a sample moves all B messages of its micro-batch (1)"),
    AQ_ROW_RANGE(NUMBER, struct asked, delta, "delta", "D", 1e-30, 0.5, "choose it far below 1 / samples (1e-5)"),
    AQ_ROW(FLAG, struct asked, json, "json", NULL, "one JSON object per line"),
    {0}};

static const struct aq_command_line line = {
    "aqpipe epsilon", "[LEDGER...]",
    "Prints the epsilon of one sample of a client of split learning, for any two data sets that differ in it: of the "
    "noise and the visits of the options, or of what ledgers of visits have counted (split.privacy.ledger, files "
    "visits-*.ledger). It covers what crosses the cuts, and no weights, losses or counts (docs/PRIVACY.md).",
    options, "Exit status: 0 printed; 2 wrong command line, or a ledger that is damaged."};

static bool say(const struct asked *asked, json_t *object, const char *text)
{
    struct aq_text out = {0};
    if (!asked->json) {
        aq_text_add(&out, "%s\n", text);
    } else if (aq_json_text(object, JSON_COMPACT, &out) == AQ_OK) {
        aq_text_add(&out, "\n");
    }
    const bool whole = out.status == AQ_OK && aq_out_text(aq_text_of(&out));
    aq_text_deinit(&out);
    json_decref(object);
    return whole;
}

static bool say_planned(const struct asked *asked, const char *of, double square)
{
    char text[256];
    const double epsilon = aq_epsilon(sqrt(square), asked->delta);
    snprintf(text, sizeof text, "%s: epsilon %.4g, delta %g, over %u visits of one sample%s", of, epsilon, asked->delta,
             asked->visits, asked->messages > 1 ? ", with batch norms" : "");
    return say(asked,
               json_pack("{s:s, s:f, s:f, s:I, s:I}", "of", of, "epsilon", epsilon, "delta", asked->delta, "visits",
                         (json_int_t)asked->visits, "batch_norm", (json_int_t)asked->messages),
               text);
}

static int planned(const struct asked *asked)
{
    double square = 0;
    bool whole = true;
    const double noises[] = {asked->noise, asked->gradient_noise};
    static const char *const names[] = {"activations", "gradients"};
    for (int i = 0; i < 2; i++) {
        if (!(noises[i] > 0)) continue;
        const double each = asked->visits * aq_epsilon_visit(noises[i], asked->messages);
        square += each;
        whole = whole && say_planned(asked, names[i], each);
    }
    if (noises[0] > 0 && noises[1] > 0) whole = whole && say_planned(asked, "both", square);
    return whole ? AQ_EXIT_DONE : AQ_EXIT_FAILED;
}

static enum aq_status counted(const struct asked *asked, const char *path, bool *whole)
{
    char text[512];
    struct aq_ledger *ledger;
    const enum aq_status status = aq_ledger_open_read(path, &ledger);
    if (status == AQ_NOTFOUND) return aq_fail(AQ_NOTFOUND, "privacy", "%s does not exist", path);
    AQ_TRY(status);
    const struct aq_ledger_most most = aq_ledger_most(ledger);
    const uint64_t visited = aq_ledger_visited(ledger);
    aq_ledger_close(ledger);
    const double epsilon = aq_epsilon(sqrt(most.sum), asked->delta);
    snprintf(text, sizeof text,
             "%.200s: epsilon %.4g, delta %g: %llu samples have visits; sample %llu has most, %u visits of activations "
             "and %u of "
             "gradients",
             path, epsilon, asked->delta, (unsigned long long)visited, (unsigned long long)most.sample,
             most.visits[AQ_LEDGER_ACTIVATIONS], most.visits[AQ_LEDGER_GRADIENTS]);
    *whole = say(asked,
                 json_pack("{s:s, s:f, s:f, s:I, s:I, s:I, s:I}", "ledger", path, "epsilon", epsilon, "delta",
                           asked->delta, "samples", (json_int_t)visited, "sample", (json_int_t)most.sample,
                           "visits_activations", (json_int_t)most.visits[AQ_LEDGER_ACTIVATIONS], "visits_gradients",
                           (json_int_t)most.visits[AQ_LEDGER_GRADIENTS]),
                 text);
    return AQ_OK;
}

int aq_command_epsilon(int argc, char **argv)
{
    struct asked asked = {.delta = DELTA};
    struct aq_arguments rest;
    bool whole = true;
    const int code = aq_options_read(&line, argc, argv, &asked, &rest);
    if (code != AQ_OPTIONS_READ) return code;
    const bool noised = asked.noise > 0 || asked.gradient_noise > 0;
    if (rest.count == 0 && !noised)
        return aq_options_wrong(line.name, "--noise or --gradient-noise is missing, or a ledger: without noise there "
                                           "is no epsilon");
    if (rest.count == 0 && asked.visits == 0) return aq_options_wrong(line.name, "--visits is missing");
    if (rest.count > 0 && (noised || asked.visits > 0 || asked.messages > 0))
        return aq_options_wrong(line.name, "a ledger has its own noise and visits: leave --noise, --gradient-noise, "
                                           "--visits and --batch-norm out");
    if (asked.messages == 0) asked.messages = 1;
    if (rest.count == 0) return planned(&asked);
    for (uint32_t i = 0; i < rest.count; i++) {
        const enum aq_status status = counted(&asked, rest.of[i], &whole);
        if (status != AQ_OK) return aq_exit_of(status);
    }
    return whole ? AQ_EXIT_DONE : AQ_EXIT_FAILED;
}
