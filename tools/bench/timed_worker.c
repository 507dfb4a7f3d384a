/*
 * timed_worker.c -- a stage that takes as long as it is told, whatever the machine. So many stages share few cores and
 * still work at once, as on machines of their own. Codecs, updates, links and the order of everything are real.
 *
 * Two programs link it with --wrap: aqpipe-bench, which `aqpipe bench wan` gives to its daemons as their worker, and
 * aqpipe_timed of the tests (tools/scale --check). Environment of the worker:
 *
 *     TIMED_FORWARD_MS=X, TIMED_BACKWARD_MS=Y    of one pass of the stage; both, or nothing is timed
 *     TIMED_SAMPLE_FLOATS=N                      the stage computes nothing: a pass is only a wait, and N floats per
 *                                                sample that cross a cut are noise. Losses mean nothing then
 *
 * Without TIMED_SAMPLE_FLOATS a stage computes its model, and then sleeps for the rest of the time. A pass that took
 * longer than its time is one line on standard error, "timed: ...", which is in the worker's log: the machine had no
 * core for it, and the step is no measure of links. With it, a pass that woke up late makes the next one shorter.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "aqsgd/base.h"
#include "stages/stage.h"

enum { NOISE_FLOATS = 1 << 16 };

/* The exec thread's. */
static struct {
    bool read;
    double forward_ms, backward_ms; /* 0: not timed */
    size_t sample_floats;           /* 0: computes  */
    uint32_t samples;               /* of the last forward */
    uint64_t late_ns;               /* by which the last wait was too long */
    uint64_t passes;
    float noise[2 * NOISE_FLOATS];
} timed;

enum aq_status __real_aq_stage_forward(struct aq_stage *stage, uint32_t slot, const struct aq_stage_input *input,
                                       float *y, struct aq_stage_loss *loss, struct aq_stream *stream);
enum aq_status __wrap_aq_stage_forward(struct aq_stage *stage, uint32_t slot, const struct aq_stage_input *input,
                                       float *y, struct aq_stage_loss *loss, struct aq_stream *stream);
enum aq_status __real_aq_stage_backward(struct aq_stage *stage, uint32_t slot, const float *dy, float *dx,
                                        struct aq_stream *stream);
enum aq_status __wrap_aq_stage_backward(struct aq_stage *stage, uint32_t slot, const float *dy, float *dx,
                                        struct aq_stream *stream);
enum aq_status __real_aq_stage_loss(struct aq_stage *stage, uint32_t slot, struct aq_stage_loss *out);
enum aq_status __wrap_aq_stage_loss(struct aq_stage *stage, uint32_t slot, struct aq_stage_loss *out);

static double asked(const char *name)
{
    const char *text = getenv(name);
    return text ? strtod(text, NULL) : 0;
}

static void read_environment(void)
{
    if (timed.read) return;
    timed.read = true;
    timed.forward_ms = asked("TIMED_FORWARD_MS");
    timed.backward_ms = asked("TIMED_BACKWARD_MS");
    timed.sample_floats = (size_t)asked("TIMED_SAMPLE_FLOATS");
    if (timed.sample_floats == 0) return;
    const struct aq_rng_key key = aq_rng_key(1, AQ_RNG_TEST, 0, 0);
    for (size_t i = 0; i < NOISE_FLOATS; i++)
        timed.noise[i] = timed.noise[i + NOISE_FLOATS] = aq_rng_normal(&key, i);
    (void)prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0);
}

/* Sleep until the pass that began then has taken so long. */
static void fill(double ms, uint64_t began_ns)
{
    const uint64_t took_ns = aq_clock_ns() - began_ns, wanted_ns = (uint64_t)(ms * 1e6);
    if (ms <= 0) return;
    if (took_ns > wanted_ns) {
        fprintf(stderr, "timed: a pass of %.1f ms took %.1f ms\n", ms, (double)took_ns * 1e-6);
        return;
    }
    const uint64_t left_ns = wanted_ns - took_ns;
    const struct timespec pause = {.tv_sec = (time_t)(left_ns / 1000000000), .tv_nsec = (long)(left_ns % 1000000000)};
    (void)nanosleep(&pause, NULL);
}

/* A pass that is only a wait; what crosses the cut is another part of the noise each time. */
static enum aq_status wait_only(double ms, float *values)
{
    const uint64_t wanted_ns = (uint64_t)(ms * 1e6), began_ns = aq_clock_ns();
    const uint64_t until_ns = began_ns + (wanted_ns > timed.late_ns ? wanted_ns - timed.late_ns : 0);
    const struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000), .tv_nsec = (long)(until_ns % 1000000000)};
    const size_t count = timed.samples * timed.sample_floats;
    for (size_t at = 0; values && at < count; timed.passes++) {
        const size_t left = count - at, here = left < NOISE_FLOATS ? left : NOISE_FLOATS;
        memcpy(values + at, timed.noise + timed.passes * 7919 % NOISE_FLOATS, here * sizeof *values);
        at += here;
    }
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
        ;
    timed.late_ns = aq_clock_ns() - until_ns;
    return AQ_OK;
}

enum aq_status __wrap_aq_stage_forward(struct aq_stage *stage, uint32_t slot, const struct aq_stage_input *input,
                                       float *y, struct aq_stage_loss *loss, struct aq_stream *stream)
{
    const uint64_t began_ns = aq_clock_ns();
    read_environment();
    timed.samples = input->batch->samples;
    if (timed.sample_floats && !input->evaluate) return wait_only(timed.forward_ms, y);
    AQ_TRY(__real_aq_stage_forward(stage, slot, input, y, loss, stream));
    if (!input->evaluate) fill(timed.forward_ms, began_ns);
    return AQ_OK;
}

enum aq_status __wrap_aq_stage_backward(struct aq_stage *stage, uint32_t slot, const float *dy, float *dx,
                                        struct aq_stream *stream)
{
    const uint64_t began_ns = aq_clock_ns();
    read_environment();
    if (timed.sample_floats) return wait_only(timed.backward_ms, dx);
    AQ_TRY(__real_aq_stage_backward(stage, slot, dy, dx, stream));
    fill(timed.backward_ms, began_ns);
    return AQ_OK;
}

enum aq_status __wrap_aq_stage_loss(struct aq_stage *stage, uint32_t slot, struct aq_stage_loss *out)
{
    if (!timed.sample_floats) return __real_aq_stage_loss(stage, slot, out);
    *out = (struct aq_stage_loss){.sum = timed.samples, .targets = timed.samples};
    return AQ_OK;
}
