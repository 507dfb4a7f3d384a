/*
 * timed_worker.c -- the program aqpipe as a worker whose stage takes as long as it is told, whatever the machine.
 *
 * Linked with runtime/cli/main_aqpipe.c into bin/aqpipe_timed, which daemons start where AQPIPE_WORKER names it
 * (tools/scale --check). A stage computes its small model in truth, and then sleeps until the time is over that it was
 * told: so many stages share few cores and still work at once, as on machines of their own. Codecs, updates, links and
 * the order of everything are the real ones. Environment:
 *
 *     TIMED_FORWARD_MS=X, TIMED_BACKWARD_MS=Y    of one pass of the stage; both, or nothing is timed
 *
 * A pass that took longer than its time is one line on standard error, "timed: ...", which is in the worker's log: the
 * machine had no core for it, and the step says nothing about links.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "aqsgd/base/clock.h"
#include "stages/stage.h"

enum aq_status __real_aq_stage_forward(struct aq_stage *stage, uint32_t slot, const struct aq_stage_input *input,
                                       float *y, struct aq_stage_loss *loss, struct aq_stream *stream);
enum aq_status __wrap_aq_stage_forward(struct aq_stage *stage, uint32_t slot, const struct aq_stage_input *input,
                                       float *y, struct aq_stage_loss *loss, struct aq_stream *stream);
enum aq_status __real_aq_stage_backward(struct aq_stage *stage, uint32_t slot, const float *dy, float *dx,
                                        struct aq_stream *stream);
enum aq_status __wrap_aq_stage_backward(struct aq_stage *stage, uint32_t slot, const float *dy, float *dx,
                                        struct aq_stream *stream);

/* Sleep until the pass that began then has taken what `name` says. */
static void fill(const char *name, uint64_t began_ns)
{
    const char *asked = getenv(name);
    if (!asked) return;
    const double ms = strtod(asked, NULL);
    const uint64_t took_ns = aq_clock_ns() - began_ns, wanted_ns = (uint64_t)(ms * 1e6);
    if (took_ns > wanted_ns) {
        fprintf(stderr, "timed: %s is %.1f, and the pass took %.1f ms\n", name, ms, (double)took_ns * 1e-6);
        return;
    }
    const uint64_t left_ns = wanted_ns - took_ns;
    const struct timespec pause = {.tv_sec = (time_t)(left_ns / 1000000000), .tv_nsec = (long)(left_ns % 1000000000)};
    (void)nanosleep(&pause, NULL);
}

enum aq_status __wrap_aq_stage_forward(struct aq_stage *stage, uint32_t slot, const struct aq_stage_input *input,
                                       float *y, struct aq_stage_loss *loss, struct aq_stream *stream)
{
    const uint64_t began_ns = aq_clock_ns();
    AQ_TRY(__real_aq_stage_forward(stage, slot, input, y, loss, stream));
    if (!input->evaluate) fill("TIMED_FORWARD_MS", began_ns);
    return AQ_OK;
}

enum aq_status __wrap_aq_stage_backward(struct aq_stage *stage, uint32_t slot, const float *dy, float *dx,
                                        struct aq_stream *stream)
{
    const uint64_t began_ns = aq_clock_ns();
    AQ_TRY(__real_aq_stage_backward(stage, slot, dy, dx, stream));
    fill("TIMED_BACKWARD_MS", began_ns);
    return AQ_OK;
}
