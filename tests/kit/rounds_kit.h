/*
 * rounds_kit.h -- launcher_kit.h with rounds (reduce.patience): sixteen steps, a round of four, a checkpoint every
 * eight.
 */
#ifndef TESTS_KIT_ROUNDS_KIT_H
#define TESTS_KIT_ROUNDS_KIT_H

#include "launcher_kit.h"

static void begin_rounds(uint64_t patience_ns)
{
    launch.bounds.steps = 16;
    launch.bounds.round_steps = 4;
    launch.bounds.mark_every = 8;
    launch.bounds.patience_ns = patience_ns;
    launch.manifest = "x";
    launch.ready_ns_max = NEVER_NS;
    aq_watch_init(&launcher.watch, &launch.watch, 1);
    assert_int_equal(launcher_rounds_open(&launcher), AQ_OK);
    begin();
}

/* Of one rank: it has the mean of the attempt under way, or not, and misses these replicas. */
static void say_averaged(uint32_t rank, bool whole, uint64_t ended)
{
    char line[200];
    snprintf(line, sizeof line,
             "{\"event\":\"averaged\",\"step\":%llu,\"attempt\":%u,\"whole\":%s,\"ended\":\"%016llx\"}",
             (unsigned long long)launcher.rounds.averaging, launcher.rounds.attempt, whole ? "true" : "false",
             (unsigned long long)ended);
    say(rank, line);
}

/* Replicas from `first` on come to the round's end, and have the mean of the attempt under way. */
static void average(uint32_t first)
{
    for (uint32_t r = first * P; r < RANKS; r++)
        say_averaged(r, true, 0);
}

__attribute__((unused)) static void exit_ranks(uint32_t first, uint32_t end)
{
    for (uint32_t r = first; r < end; r++)
        if (launcher.stages[r].state != STAGE_EXITED) say(r, "{\"event\":\"exited\",\"signal\":9,\"pid\":1}");
}

/* Replicas from `first` on train up to this step, with their rounds. */
__attribute__((unused)) static void train_rounds(uint32_t first, uint64_t last)
{
    for (uint64_t step = launcher.stages[first * P].step + 1; step <= last; step++) {
        for (uint32_t r = first * P; r < RANKS && step % 4 == 0; r++)
            say_step(r, step, "round");
        if (step % 4 == 0) average(first);
        for (uint32_t r = first * P; r < RANKS; r++) {
            say_step(r, step, "step");
            if (step % 3 == 0 && r % P == P - 1) say_step(r, step, "eval");
        }
    }
}

__attribute__((unused)) static void lose_first(uint64_t after)
{
    train_rounds(0, after);
    say(1, "{\"event\":\"exited\",\"signal\":9,\"pid\":1}");
}

/* The new processes of these ranks come to where they need weights. */
__attribute__((unused)) static void start_ranks(uint32_t first, uint32_t end)
{
    for (uint32_t r = first; r < end; r++)
        for (int phase = AQ_PHASE_DEVICE; phase <= AQ_PHASE_WEIGHTS; phase++) {
            char line[64];
            snprintf(line, sizeof line, "{\"event\":\"doing\",\"doing\":%d}", phase);
            say(r, line);
        }
}

__attribute__((unused)) static void assert_metrics_have(const char *line)
{
    char *text;
    assert_int_equal(aq_file_load(NULL, metrics_path, 1 << 20, &text, NULL), AQ_OK);
    assert_non_null(strstr(text, line));
    aq_free(text);
}

#endif
