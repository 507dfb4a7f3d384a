/*
 * launcher_steps.c -- reduce.steps: speed: how many steps of a round each replica trains.
 *
 * Replicas of different speed do not wait for each other. With t_r the seconds of a step of replica r, and L the steps
 * of the next round (reduce.every; the last round may be shorter), replica r trains
 *
 *     h_r = L min(t) / t_r, rounded to the nearest, 1 at least
 *
 * (dynamic local updates: Liu et al. 2024, arXiv:2401.09135, section 5). t_r is the median of its steps in the round
 * before, which its ranks report with `round`; the slowest rank's counts. Who is not known yet trains L steps: in the
 * first round all do. So a late replica is not left out there (launcher_rounds.c): nobody knows how long it takes.
 *
 * Steps keep their numbers. A replica trains the last h_r steps of the round, and none of those before: its first step
 * follows at once, with a larger number. So learning rates, checkpoints, evaluations and the end of the run are at the
 * same numbers for all. Its samples follow without a gap, too: `position` counts the batches that it has trained, and
 * the next one is the next of its own part of the data, whichever number the step has. A batch of a round that was
 * dropped (a lost or late replica) does not count, and is trained when the replica is back. Bias corrections go by
 * `updates`: those that its moments have had. A replica that returns has the moments of the first member.
 *
 * The mean of the movements counts each replica alike, so each step of each replica counts alike: the noise of a mean
 * of gradients is the least then for the length that it moves (docs/DECISIONS.md 1110).
 *
 * The line `round` of metrics.jsonl has all three numbers for each replica. A run that resumes reads the line of its
 * checkpoint's step; one that is repeated (launch->rounds) takes `steps` from each line, and counts the others itself.
 */
#include <inttypes.h>
#include <math.h>

#include "launcher_private.h"
#include "run_lines.h"

static struct launcher_share *share_of(struct launcher *launcher, uint32_t replica)
{
    return &launcher->rounds.replicas[replica].share;
}

static bool is_on(const struct launcher *launcher)
{
    return launcher->launch->bounds.by_speed;
}

/* Steps of the round after the one that ends with this step; after the last one as if there were another. */
static uint64_t length_after(const struct launcher *launcher, uint64_t step)
{
    const uint64_t end = launcher_rounds_after(launcher, step);
    return end > step ? end - step : launcher->launch->bounds.round_steps;
}

/* Its steps of the next round are the last ones; nobody waits for lines of the others. */
static void place(struct launcher *launcher, uint32_t replica, uint64_t step, uint64_t steps)
{
    const struct launcher_replica *of = &launcher->rounds.replicas[replica];
    struct launcher_share *share = share_of(launcher, replica);
    const uint64_t length = length_after(launcher, step);
    const uint32_t P = launcher->launch->stages;
    share->steps = steps < length ? steps : length;
    share->after = step;
    share->before = step + length - share->steps;
    for (uint32_t r = replica * P; r < (replica + 1) * P && !of->lost; r++)
        aq_metrics_without(launcher->launch->metrics, r, of->member ? step : 0, share->before);
}

/* UINT64_MAX: there is none. */
static uint64_t number_of(const json_t *line, const char *key, uint32_t replica)
{
    const json_t *number = json_array_get(json_object_get(line, key), replica);
    return json_is_integer(number) && json_integer_value(number) >= 0 ? (uint64_t)json_integer_value(number)
                                                                      : UINT64_MAX;
}

bool launcher_steps_named(const struct launcher *launcher, const json_t *line)
{
    if (!is_on(launcher)) return true;
    if (json_array_size(json_object_get(line, "steps")) != launcher->launch->replicas) return false;
    for (uint32_t w = 0; w < launcher->launch->replicas; w++) {
        const uint64_t steps = number_of(line, "steps", w);
        if (steps == 0 || steps > launcher->launch->bounds.round_steps) return false;
    }
    return true;
}

/* Of the fastest of those that train the next round; 0: nobody is known. */
static double fastest(const struct launcher *launcher)
{
    double least = 0;
    for (uint32_t w = 0; w < launcher->launch->replicas; w++) {
        const double seconds = launcher->rounds.replicas[w].share.step_seconds;
        if (launcher->rounds.replicas[w].lost || seconds <= 0) continue;
        if (least == 0 || seconds < least) least = seconds;
    }
    return least;
}

static uint64_t chosen(const struct launcher *launcher, uint32_t replica, uint64_t step)
{
    const uint64_t length = length_after(launcher, step);
    const json_t *line = launcher_rounds_logged(launcher, step);
    const double own = launcher->rounds.replicas[replica].share.step_seconds, least = fastest(launcher);
    if (line) return number_of(line, "steps", replica);
    if (own <= 0 || least <= 0) return length;
    const double steps = floor((double)length * least / own + 0.5);
    return steps < 1 ? 1 : steps < (double)length ? (uint64_t)steps : length;
}

/* What the round has brought to its count of batches and updates. */
static void count(struct launcher *launcher, uint64_t members)
{
    uint64_t first = 0;
    for (uint32_t w = launcher->launch->replicas; w-- > 0;) {
        struct launcher_share *share = share_of(launcher, w);
        if (!(members >> w & 1)) continue;
        share->position += share->steps;
        share->updates += share->steps;
        first = share->updates;
    }
    for (uint32_t w = 0; w < launcher->launch->replicas; w++)
        if (!(members >> w & 1)) share_of(launcher, w)->updates = first;
}

static void measure(struct launcher *launcher, uint64_t members)
{
    const uint32_t P = launcher->launch->stages;
    for (uint32_t w = 0; w < launcher->launch->replicas; w++) {
        double most = 0;
        for (uint32_t r = w * P; r < (w + 1) * P; r++)
            if (launcher->stages[r].step_seconds > most) most = launcher->stages[r].step_seconds;
        if ((members >> w & 1) && most > 0) share_of(launcher, w)->step_seconds = most;
    }
}

void launcher_steps_next(struct launcher *launcher, uint64_t step, uint64_t members)
{
    if (!is_on(launcher)) return;
    if (launcher->rounds.log && !launcher_rounds_logged(launcher, step)) {
        launcher_fail(launcher, CAUSE_OWN, AQ_MISMATCH, "%s has no line of the round that ends with step %" PRIu64,
                      launcher->launch->rounds, step);
        return;
    }
    count(launcher, members);
    measure(launcher, members);
    for (uint32_t w = 0; w < launcher->launch->replicas; w++)
        place(launcher, w, step, chosen(launcher, w, step));
}

bool launcher_steps_known(const struct launcher *launcher, uint32_t replica)
{
    return !is_on(launcher) || launcher->rounds.replicas[replica].share.step_seconds > 0;
}

uint64_t launcher_steps_due(const struct launcher *launcher, uint32_t rank)
{
    const struct launcher_share *share = &launcher->rounds.replicas[rank / launcher->launch->stages].share;
    const uint64_t step = launcher->stages[rank].step, round = launcher->stages[rank].round;
    if (round > step) return round; /* its end is reported before the step itself, and the next share comes between */
    return step == share->after ? share->before + 1 : step + 1;
}

void launcher_steps_add(const struct launcher *launcher, uint32_t rank, json_t *message)
{
    const struct launcher_share *share = &launcher->rounds.replicas[rank / launcher->launch->stages].share;
    if (!is_on(launcher)) return;
    json_object_set_new(message, "steps", json_integer((json_int_t)share->steps));
    json_object_set_new(message, "position", json_integer((json_int_t)share->position));
    json_object_set_new(message, "updates", json_integer((json_int_t)share->updates));
}

void launcher_steps_note(const struct launcher *launcher, json_t *line)
{
    if (!is_on(launcher)) return;
    json_t *steps = json_array(), *position = json_array(), *updates = json_array();
    for (uint32_t w = 0; w < launcher->launch->replicas; w++) {
        const struct launcher_share *share = &launcher->rounds.replicas[w].share;
        json_array_append_new(steps, json_integer((json_int_t)share->steps));
        json_array_append_new(position, json_integer((json_int_t)share->position));
        json_array_append_new(updates, json_integer((json_int_t)share->updates));
    }
    json_object_set_new(line, "steps", steps);
    json_object_set_new(line, "position", position);
    json_object_set_new(line, "updates", updates);
}

/* ---- a run that resumes ---- */

/*
 * The newest line of the round that ends with the step that the run resumes from; NULL: there is none. From the file's
 * end, which is near: the line is behind that of the step before.
 */
static enum aq_status find_line(const char *path, uint64_t step, json_t **out)
{
    uint64_t end = UINT64_MAX;
    *out = NULL;
    for (;;) {
        char *text;
        size_t count;
        const enum aq_status status = aq_run_line_before(path, end, &text, &count, &end);
        if (status == AQ_NOTFOUND) return AQ_OK;
        AQ_TRY(status);
        json_t *line = json_loadb(text, count, 0, NULL);
        aq_free(text);
        const uint64_t of = aq_control_u64_or(line, "step", 0);
        if (aq_control_is(line, "event", "round") && of == step) {
            *out = line;
            return AQ_OK;
        }
        const bool past = aq_control_is(line, "event", "step") && of < step;
        json_decref(line);
        if (past) return AQ_OK;
    }
}

static enum aq_status resume(struct launcher *launcher, const json_t *line, const char *path)
{
    const uint64_t step = launcher->launch->resume;
    const size_t count = json_array_size(json_object_get(line, "steps"));
    if (count > 0 && count != launcher->launch->replicas) return AQ_OK; /* of other replicas: their samples move */
    bool good = line && launcher_steps_named(launcher, line);
    for (uint32_t w = 0; w < launcher->launch->replicas && good; w++) {
        struct launcher_share *share = share_of(launcher, w);
        share->position = number_of(line, "position", w);
        share->updates = number_of(line, "updates", w);
        good = share->position <= step && share->updates > 0 && share->updates <= step;
        place(launcher, w, step, number_of(line, "steps", w));
    }
    if (good) return AQ_OK;
    return aq_fail(AQ_MISMATCH, "launch",
                   "%s has no whole line of the round that ends with step %" PRIu64
                   ", which names the steps of the next one (reduce.steps: speed): put the file back, or start again "
                   "with --fresh",
                   path, step);
}

enum aq_status launcher_steps_open(struct launcher *launcher)
{
    const struct aq_launch *launch = launcher->launch;
    json_t *line;
    char path[AQ_RUN_PATH_BYTES];
    if (!is_on(launcher)) return AQ_OK;
    for (uint32_t w = 0; w < launch->replicas; w++) {
        share_of(launcher, w)->position = share_of(launcher, w)->updates = launch->resume;
        place(launcher, w, launch->resume, launch->bounds.round_steps);
    }
    if (launch->resume == 0) return AQ_OK;
    AQ_TRY(aq_run_path(launch->run, "metrics.jsonl", path));
    AQ_TRY(find_line(path, launch->resume, &line));
    const enum aq_status status = resume(launcher, line, path);
    json_decref(line);
    return status;
}
