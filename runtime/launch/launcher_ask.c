/* launcher_ask.c -- start the stages, and send `forward` to all of them until a token comes. See the header. */
#include "launcher_ask.h"

#include "launcher_private.h"
#include "lengths.h"

static const uint64_t second_ns = 1000ULL * 1000 * 1000;
enum { END_S = 10 };

struct aq_asking {
    struct launcher launcher;
    struct aq_launch launch;
    struct aq_launch_result result;
};

/* The error of the first cause, or a general one if no cause is known. */
static enum aq_status why(struct aq_asking *asking)
{
    const struct aq_launch_result *result = &asking->result;
    if (asking->launcher.cause == CAUSE_NONE) return aq_fail(AQ_CLOSED, "ask", "the stages have ended");
    return aq_fail(result->status, "ask", "%s", result->cause);
}

enum aq_status aq_asking_open(const struct aq_launch *launch, struct aq_asking **out)
{
    AQ_ASSERT(launch->probe && launch->ask && launch->stages <= AQ_JOB_RANKS_MAX && launch->replicas == 1);
    struct aq_asking *asking;
    AQ_TRY(AQ_NEW(1, &asking));
    struct launcher *launcher = &asking->launcher;
    asking->launch = *launch;
    launcher->launch = &asking->launch;
    launcher->result = &asking->result;
    launcher->ranks = launch->stages;
    launcher->ready_deadline_ns = aq_clock_after(launch->ready_ns_max);
    watch_open(launcher);
    enum aq_status status = hosts_open(launcher);
    if (status == AQ_OK) {
        hosts_start(launcher);
        while ((!launcher->gone || launcher->cause != CAUSE_NONE) && launcher_turn(launcher))
            continue;
        if (!launcher->gone || launcher->cause != CAUSE_NONE) status = why(asking);
    }
    if (status == AQ_OK)
        *out = asking;
    else
        aq_asking_close(asking);
    return status;
}

/* The fresh tokens as lengths, of which none is 0 (lengths.h): memory of aq_alloc. */
static enum aq_status tokens_text(const struct aq_asking_step *step, uint32_t vocabulary, char **text)
{
    if (step->count > aq_lengths_count_max(vocabulary))
        return aq_fail(AQ_NOSPC, "ask", "a prompt of %u tokens is too long: a stage takes at most %llu at once",
                       step->count, (unsigned long long)aq_lengths_count_max(vocabulary));
    uint32_t *numbers;
    AQ_TRY(AQ_NEW(step->count + 1, &numbers));
    for (uint32_t i = 0; i < step->count; i++)
        numbers[i] = (uint32_t)step->fresh[i] + 1;
    const enum aq_status status = aq_lengths_write(numbers, step->count, vocabulary, text);
    aq_free(numbers);
    return status;
}

static void say(struct launcher *launcher, const struct aq_asking_step *step, const char *tokens)
{
    for (uint32_t r = 0; r < launcher->ranks; r++) {
        json_t *message = json_pack("{s:s, s:I, s:I, s:I}", "op", "forward", "rank", (json_int_t)r, "before",
                                    (json_int_t)step->before, "used", (json_int_t)step->used);
        if (message && (r == 0 || r + 1 == launcher->ranks))
            json_object_set_new(message, "tokens", json_string(tokens));
        stage_send(launcher, r, message);
    }
}

enum aq_status aq_asking_next(struct aq_asking *asking, const struct aq_asking_step *step, int32_t *token)
{
    struct launcher *launcher = &asking->launcher;
    char *text;
    AQ_TRY(tokens_text(step, asking->launch.vocabulary, &text));
    launcher->token_due = true;
    say(launcher, step, text);
    aq_free(text);
    while (launcher->token_due && launcher_turn(launcher))
        continue;
    if (launcher->token_due) return why(asking);
    *token = (int32_t)launcher->token;
    return AQ_OK;
}

void aq_asking_close(struct aq_asking *asking)
{
    if (!asking) return;
    struct launcher *launcher = &asking->launcher;
    if (launcher->gone && launcher->cause == CAUSE_NONE) {
        const uint64_t deadline = aq_clock_after(END_S * second_ns);
        launcher->ending = true;
        say(launcher, &(struct aq_asking_step){0}, "");
        while (aq_clock_ns() < deadline && launcher_turn(launcher))
            continue;
    }
    hosts_close(launcher);
    for (uint32_t r = 0; r < launcher->ranks; r++)
        json_decref(launcher->stages[r].report);
    aq_free(asking);
}
