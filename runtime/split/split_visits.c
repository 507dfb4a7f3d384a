/* split_visits.c -- see the header. */
#include "split_visits.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "aqsgd/base/file.h"
#include "control.h"
#include "epsilon.h"
#include "json_text.h"
#include "plan_epsilon.h"
#include "run_folder.h"
#include "stages/dataset.h"
#include "visit_ledger.h"

static const char *const AREA = "privacy";
enum { STATE_BYTES_MAX = 1 << 16 };
static const double ROUNDING = 1 + 0x1p-40; /* a ledger adds visit by visit: up to 2^32 roundings of 2^-53 */

/* A data set. */
struct set {
    const char *name; /* in privacy.json */
    uint64_t digest, samples;
    struct aq_ledger *ledger; /* NULL: there are no such samples */
};

struct aq_split_visits {
    const struct aq_plan *plan;
    char folder[AQ_RUN_PATH_BYTES], state[AQ_RUN_PATH_BYTES];
    struct set sets[2]; /* training samples, held-out ones */
    struct aq_sampler *sampler;
    double *due; /* of each training sample: what a turn adds to mu^2 */
};

/* ---- where ---- */

static enum aq_status folder_default(char out[AQ_RUN_PATH_BYTES])
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    if (state && state[0] == '/') return aq_run_path(state, "aqpipe/ledgers", out);
    if (home && home[0] == '/') return aq_run_path(home, ".local/state/aqpipe/ledgers", out);
    return aq_fail(AQ_INVAL, AREA,
                   "neither HOME nor XDG_STATE_HOME is set, so there is no place for the ledgers of visits "
                   "(split.privacy.noise): set split.privacy.ledger to a folder that stays");
}

/* A new run may remove its folder, and with it what was counted. folder: as realpath gives it. */
static enum aq_status outside(const char *folder, const char *run)
{
    char there[AQ_RUN_PATH_BYTES];
    if (!realpath(run, there)) return aq_fail_errno(AREA, "cannot find %s", run);
    const size_t length = strlen(there);
    if (strncmp(folder, there, length) != 0 || (folder[length] != '/' && folder[length] != 0)) return AQ_OK;
    return aq_fail(
        AQ_INVAL, AREA,
        "split.privacy.ledger: %s lies in output.path, which a new run may remove: set a folder outside of it", folder);
}

static enum aq_status folder_open(struct aq_split_visits *visits)
{
    const struct aq_job *job = visits->plan->job;
    char path[AQ_RUN_PATH_BYTES];
    if (!job->split.privacy.ledger)
        AQ_TRY(folder_default(path));
    else if (snprintf(path, sizeof path, "%s", job->split.privacy.ledger) >= (int)sizeof path)
        return aq_fail(AQ_INVAL, AREA, "split.privacy.ledger is too long");
    AQ_TRY(aq_run_make_folder(path));
    if (!realpath(path, visits->folder)) return aq_fail_errno(AREA, "cannot find %s", path);
    return outside(visits->folder, job->output.path);
}

/* ---- the ledgers, and what privacy.json knows of them ---- */

/* What this folder's last turn left in that ledger. */
static enum aq_status known_place(const struct aq_split_visits *visits, const struct set *set,
                                  struct aq_ledger_place *out)
{
    char *text;
    size_t count;
    *out = (struct aq_ledger_place){0};
    const enum aq_status status = aq_file_load(NULL, visits->state, STATE_BYTES_MAX, &text, &count);
    if (status == AQ_NOTFOUND) return AQ_OK;
    AQ_TRY(status);
    json_t *all = json_loadb(text, count, 0, NULL);
    aq_free(text);
    const json_t *ledgers = json_object_get(all, "ledgers"), *line = json_object_get(ledgers, set->name);
    if (json_is_object(ledgers) && !line) { /* it had no such samples */
        json_decref(all);
        return AQ_OK;
    }
    uint64_t digest = 0;
    const bool good = json_is_object(line) && aq_control_get_hex(line, "digest", &digest) == AQ_OK &&
                      aq_control_get_hex(line, "instance", &out->instance) == AQ_OK &&
                      aq_control_get_u64(line, "records", &out->records) == AQ_OK;
    json_decref(all);
    if (!good)
        return aq_fail(
            AQ_CORRUPT, AREA,
            "%s is damaged: it has which ledgers of visits this client wrote. Remove it if the ledgers in %s "
            "are as its last turn left them",
            visits->state, visits->folder);
    if (digest != set->digest) *out = (struct aq_ledger_place){0}; /* of other data, which had its own */
    return AQ_OK;
}

static enum aq_status set_open(const struct aq_split_visits *visits, struct set *set)
{
    struct aq_ledger_place known;
    char name[AQ_LEDGER_NAME_BYTES];
    if (set->samples == 0) return AQ_OK;
    aq_ledger_name(set->digest, name);
    AQ_TRY(known_place(visits, set, &known));
    if (known.instance == 0) AQ_TRY(aq_ledger_make(visits->folder, set->digest));
    const enum aq_status status = aq_ledger_open(visits->folder, set->digest, set->samples, &set->ledger);
    if (status != AQ_OK && status != AQ_NOTFOUND) return status;
    const struct aq_ledger_place place = set->ledger ? aq_ledger_place(set->ledger) : (struct aq_ledger_place){0};
    if (known.instance == 0 || (place.instance == known.instance && place.records >= known.records)) return AQ_OK;
    return aq_fail(AQ_CORRUPT, AREA,
                   "%s/%s %s: after this client's last turn it had %" PRIu64 " records, so nothing is sent; bring it "
                   "back. If it is lost, remove %s: counting then begins at zero, and no epsilon covers what was sent "
                   "before",
                   visits->folder, name,
                   !set->ledger                       ? "is gone"
                   : place.instance != known.instance ? "is another one"
                                                      : "is an older copy",
                   known.records, visits->state);
}

static enum aq_status sampler_open(struct aq_split_visits *visits)
{
    const struct aq_plan *plan = visits->plan;
    const struct aq_job_train *train = &plan->job->train;
    AQ_TRY(AQ_NEW(plan->facts.train_samples, &visits->due));
    return aq_sampler_open(plan->facts.train_samples, plan->batch, train->seed, train->shuffle, &visits->sampler);
}

static enum aq_status open_all(struct aq_split_visits *visits)
{
    AQ_TRY(folder_open(visits));
    AQ_TRY(aq_run_path(visits->plan->job->output.path, "privacy.json", visits->state));
    for (int i = 0; i < 2; i++)
        AQ_TRY(set_open(visits, &visits->sets[i]));
    return sampler_open(visits);
}

enum aq_status aq_split_visits_open(const struct aq_plan *plan, struct aq_split_visits **out)
{
    struct aq_split_visits *visits;
    *out = NULL;
    if (!aq_plan_epsilon_counts(plan)) return AQ_OK;
    AQ_TRY(AQ_NEW(1, &visits));
    visits->plan = plan;
    visits->sets[0] = (struct set){.name = "training",
                                   .digest = aq_plan_epsilon_data(plan, false),
                                   .samples = plan->job->data.skip + plan->facts.train_samples};
    visits->sets[1] = (struct set){
        .name = "heldout", .digest = aq_plan_epsilon_data(plan, true), .samples = plan->facts.heldout_samples};
    const enum aq_status status = open_all(visits);
    if (status == AQ_OK)
        *out = visits;
    else
        aq_split_visits_close(visits);
    return status;
}

void aq_split_visits_close(struct aq_split_visits *visits)
{
    if (!visits) return;
    for (int i = 0; i < 2; i++)
        aq_ledger_close(visits->sets[i].ledger);
    aq_sampler_close(visits->sampler);
    aq_free(visits->due);
    aq_free(visits);
}

const char *aq_split_visits_folder(const struct aq_split_visits *visits)
{
    return visits->folder;
}

/* ---- figures ---- */

static enum aq_status follow(struct aq_split_visits *visits)
{
    for (int i = 0; i < 2; i++)
        if (visits->sets[i].ledger) AQ_TRY(aq_ledger_follow(visits->sets[i].ledger));
    return AQ_OK;
}

static enum aq_status state_write(const struct aq_split_visits *visits, const struct aq_split_epsilon *now)
{
    const struct aq_job_privacy *privacy = &visits->plan->job->split.privacy;
    json_t *ledgers = json_object();
    for (int i = 0; i < 2; i++) {
        const struct set *set = &visits->sets[i];
        if (!set->ledger) continue;
        const struct aq_ledger_place place = aq_ledger_place(set->ledger);
        json_object_set_new(ledgers, set->name,
                            json_pack("{s:o, s:o, s:I}", "digest", aq_control_hex(set->digest), "instance",
                                      aq_control_hex(place.instance), "records", (json_int_t)place.records));
    }
    json_t *all =
        json_pack("{s:i, s:f, s:o, s:o, s:I, s:s, s:s, s:o}", "format", 1, "epsilon", now->epsilon, "delta",
                  aq_control_number(now->delta), "epsilon_max",
                  privacy->epsilon_max > 0 ? aq_control_number((double)privacy->epsilon_max) : json_null(), "visits",
                  (json_int_t)now->visits, "of", now->heldout ? "a held-out sample" : "a training sample", "folder",
                  visits->folder, "ledgers", ledgers);
    return aq_json_replace(visits->state, all, JSON_INDENT(1));
}

enum aq_status aq_split_visits_now(struct aq_split_visits *visits, struct aq_split_epsilon *out)
{
    struct aq_ledger_most most = {0};
    bool heldout = false;
    AQ_TRY(follow(visits));
    for (int i = 0; i < 2; i++) {
        if (!visits->sets[i].ledger) continue;
        const struct aq_ledger_most here = aq_ledger_most(visits->sets[i].ledger);
        if (i > 0 && here.sum <= most.sum) continue;
        most = here;
        heldout = i > 0;
    }
    const double delta = (double)visits->plan->job->split.privacy.delta;
    const uint32_t visited = most.visits[0] > most.visits[1] ? most.visits[0] : most.visits[1];
    *out = (struct aq_split_epsilon){aq_epsilon(sqrt(most.sum), delta), delta, visited, heldout};
    return state_write(visits, out);
}

/* The largest sum of any training sample after these steps. passes: what their evaluations add to a held-out one. */
static double training_after(struct aq_split_visits *visits, uint64_t mark, uint64_t until, double passes)
{
    const struct aq_plan *plan = visits->plan;
    const uint64_t samples = plan->facts.train_samples, shared = aq_plan_epsilon_shared(plan);
    const uint32_t B = plan->stages[0].config.B;
    const double visit = aq_plan_epsilon_visit(plan, false, true, B), back = aq_plan_epsilon_visit(plan, true, true, B);
    double most = 0;
    for (uint64_t i = 0; i < samples; i++)
        visits->due[i] = i < shared ? passes : 0;
    for (uint64_t step = mark; step < until; step++)
        for (uint32_t i = 0; i < aq_sampler_size(visits->sampler, step); i++)
            visits->due[aq_sampler_at(visits->sampler, step, i)] +=
                back + (aq_plan_epsilon_sends(plan, step) ? visit : 0);
    for (uint64_t i = 0; i < samples; i++) {
        const double due = visits->due[i];
        const double sum = due > 0 ? aq_ledger_sum(visits->sets[0].ledger, plan->job->data.skip + i) + due : 0;
        if (sum > most) most = sum;
    }
    return most;
}

/* The same of a held-out sample; of its file others may have more. */
static double heldout_after(const struct aq_split_visits *visits, double passes)
{
    double most = 0;
    if (!visits->sets[1].ledger || !(passes > 0)) return 0;
    for (uint64_t i = 0; i < visits->plan->facts.heldout_samples; i++) {
        const double sum = aq_ledger_sum(visits->sets[1].ledger, i);
        if (sum > most) most = sum;
    }
    return most + passes;
}

enum aq_status aq_split_visits_fit(struct aq_split_visits *visits, uint64_t mark, uint64_t until, bool *fits,
                                   double *after)
{
    const struct aq_plan *plan = visits->plan;
    AQ_TRY(follow(visits));
    const double passes = (double)aq_plan_epsilon_passes(plan, mark, until, until == plan->steps) *
                          aq_plan_epsilon_visit(plan, false, false, 1);
    const double trained = training_after(visits, mark, until, passes), held = heldout_after(visits, passes);
    const double most = trained > held ? trained : held;
    *fits = most * ROUNDING <= aq_plan_epsilon_most(plan);
    *after = aq_epsilon(sqrt(most), (double)plan->job->split.privacy.delta);
    return AQ_OK;
}
