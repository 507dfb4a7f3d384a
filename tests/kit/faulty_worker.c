/*
 * faulty_worker.c -- the program aqpipe as a worker of tests: links that break, checkpoints that are slow.
 *
 * Linked with runtime/cli/main_aqpipe.c into bin/aqpipe_faulty, which daemons start where AQPIPE_WORKER names it
 * (tests/jobs.py, faulty). The linker puts these functions before the house's (--wrap), so that the shipped programs
 * hold no hook. Environment:
 *
 *     FAULTY_LINKS=query       every connection that this process makes goes through the filter fault with this query
 *                              (net/transport/transport_fault.c): seed=1&cut_every=6000
 *     FAULTY_CHECKPOINT=ms     so long before each piece of a checkpoint's file (a tensor, or 4 MiB of one)
 *     FAULTY_VALUES="activation|gradient nan|inf FIRST COUNT"
 *                              the first value that leaves a stage for the next one, or for the one before, is none,
 *                              from the FIRST pass on (from 0, those before step 1 counted), COUNT times; of a stage
 *                              whose values are on the host
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "checkpoint.h"
#include "stages/stage.h"
#include "transport.h"

enum aq_status __real_aq_byte_stream_connect(const char *address, struct aq_tls *tls, uint32_t attempt, bool paced,
                                             struct aq_byte_stream **out);
enum aq_status __wrap_aq_byte_stream_connect(const char *address, struct aq_tls *tls, uint32_t attempt, bool paced,
                                             struct aq_byte_stream **out);
enum aq_status __real_aq_checkpoint_file_piece(struct aq_checkpoint_file *file);
enum aq_status __wrap_aq_checkpoint_file_piece(struct aq_checkpoint_file *file);
enum aq_status __real_aq_stage_forward(struct aq_stage *stage, uint32_t slot, const struct aq_stage_input *input,
                                       float *y, struct aq_stage_loss *loss, struct aq_stream *stream);
enum aq_status __wrap_aq_stage_forward(struct aq_stage *stage, uint32_t slot, const struct aq_stage_input *input,
                                       float *y, struct aq_stage_loss *loss, struct aq_stream *stream);
enum aq_status __real_aq_stage_backward(struct aq_stage *stage, uint32_t slot, const float *dy, float *dx,
                                        struct aq_stream *stream);
enum aq_status __wrap_aq_stage_backward(struct aq_stage *stage, uint32_t slot, const float *dy, float *dx,
                                        struct aq_stream *stream);

enum aq_status __wrap_aq_byte_stream_connect(const char *address, struct aq_tls *tls, uint32_t attempt, bool paced,
                                             struct aq_byte_stream **out)
{
    struct aq_address fault = {.whole = "FAULTY_LINKS"};
    const char *query = getenv("FAULTY_LINKS");
    AQ_TRY(__real_aq_byte_stream_connect(address, tls, attempt, paced, out));
    if (!query) return AQ_OK;
    snprintf(fault.query, sizeof fault.query, "%s", query);
    return aq_fault_wrap(&fault, *out, out);
}

enum aq_status __wrap_aq_checkpoint_file_piece(struct aq_checkpoint_file *file)
{
    const char *asked = getenv("FAULTY_CHECKPOINT");
    const long ms = asked ? strtol(asked, NULL, 10) : 0;
    const struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    if (ms > 0) (void)nanosleep(&pause, NULL);
    return __real_aq_checkpoint_file_piece(file);
}

/* A pass of that kind has left its values: is one of them to be none? */
static void spoil(const char *kind, uint32_t *passes, float *values)
{
    char which[16], what[8];
    unsigned first, count;
    const char *asked = getenv("FAULTY_VALUES");
    if (!asked || !values || sscanf(asked, "%15s %7s %u %u", which, what, &first, &count) != 4 ||
        strcmp(which, kind) != 0)
        return;
    const uint32_t pass = (*passes)++;
    if (pass >= first && pass - first < count) values[0] = strcmp(what, "nan") == 0 ? NAN : INFINITY;
}

enum aq_status __wrap_aq_stage_forward(struct aq_stage *stage, uint32_t slot, const struct aq_stage_input *input,
                                       float *y, struct aq_stage_loss *loss, struct aq_stream *stream)
{
    static uint32_t passes;
    AQ_TRY(__real_aq_stage_forward(stage, slot, input, y, loss, stream));
    if (!input->evaluate) spoil("activation", &passes, y);
    return AQ_OK;
}

enum aq_status __wrap_aq_stage_backward(struct aq_stage *stage, uint32_t slot, const float *dy, float *dx,
                                        struct aq_stream *stream)
{
    static uint32_t passes;
    AQ_TRY(__real_aq_stage_backward(stage, slot, dy, dx, stream));
    spoil("gradient", &passes, dx);
    return AQ_OK;
}
