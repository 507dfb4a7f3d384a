/*
 * faulty_worker.c -- the program aqpipe as a worker of tests: links that break, slow checkpoints, stops at a step.
 *
 * Linked with runtime/cli/main_aqpipe.c into bin/aqpipe_faulty, which daemons start where AQPIPE_WORKER names it
 * (tests/jobs.py, faulty). The linker puts these functions before the project's (--wrap), so that the shipped programs
 * hold no hook. Environment:
 *
 *     FAULTY_LINKS=query       every connection that this process makes goes through the filter fault with this query
 *                              (net/transport/transport_fault.c): seed=1&cut_every=6000
 *     FAULTY_CHECKPOINT=ms     so long before each piece of a checkpoint's file (a tensor, or 4 MiB of one)
 *     FAULTY_VALUES="activation|gradient nan|inf FIRST COUNT"
 *                              the first value that leaves a stage for the next one, or for the one before, is none,
 *                              from the FIRST pass on (from 0, those before step 1 counted), COUNT times; of a stage
 *                              whose values are on the host
 *     FAULTY_SLOW="RANK MS"    that rank takes so much longer for each forward: a stage on a slow machine
 *     FAULTY_HOLD=folder       workers stop where a file of this folder asks for it (below)
 *
 * Holds. A test that acts on a run at a certain step does not race with it: the worker stops there until the test has
 * acted. The file <folder>/RANK.STEP.PHASE asks for a hold. The worker that arrives writes its process id into
 * <folder>/RANK.STEP.PHASE.held, and goes on when the test removes the file that asked. Steps count from 1, as the
 * launcher prints them. After a restart a worker stops at the same place again while the file is there. Phases:
 *
 *     starts     STEP is 0: a worker of a replica that returns (reduce.patience), before it opens anything
 *     begin      before anything of the step is computed; rank 0 also goes on when it has been told to stop (Ctrl-C)
 *     forward    at the first micro-batch's forward
 *     backward   at the first micro-batch's backward (never on a stage whose layers are all frozen)
 *     noised     at the first micro-batch's cut: split.privacy has counted its visits, and nothing of it is sent
 *     joins, parts, sums, results, mean
 *                of an average (reduce.patience) of the round that ends with STEP, whichever step is trained meanwhile:
 *                before a connection to another replica is begun; before the first part leaves; when parts have left
 *                and come, before the first sum does; when sums have left, before the first of another rank is taken;
 *                and when the mean is there, and the launcher does not know it
 *     gives      in the thread that sends RANK its file of the checkpoint STEP, behind the first piece
 *     takes      RANK has asked for that file, and the one that sends it is connected
 *     end        after the update, before the step is reported
 *     write      in the thread that writes checkpoint STEP: the file is begun, and not yet whole
 *
 * <folder>/RANK.STEP.damage holds nobody: a byte of that file is changed on its way.
 *
 * Only computing stops: links, checkpoints and the control connection work on, as on a slow machine. A test that dies
 * leaves no worker behind: the file or the folder goes, or the hold ends as a failure after HOLD_SECONDS.
 */
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "checkpoint.h"
#include "control.h"
#include "group.h"
#include "net/group_background.h"
#include "stages/stage.h"
#include "transfer.h"
#include "transport.h"
#include "worker.h"

enum { HOLD_SECONDS = 400, PATH_BYTES = 4096 }; /* longer than a test waits for anything (tests/jobs.py, PATIENCE) */

#define HOLD_LOOK_NS (2ull * 1000 * 1000)

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
enum aq_status __real_aq_checkpoint_file_open(const struct aq_checkpoint *checkpoint, uint64_t step,
                                              const float *snapshot, struct aq_checkpoint_file **out);
enum aq_status __wrap_aq_checkpoint_file_open(const struct aq_checkpoint *checkpoint, uint64_t step,
                                              const float *snapshot, struct aq_checkpoint_file **out);
enum aq_status __real_aq_worker_step(struct aq_worker *worker);
enum aq_status __wrap_aq_worker_step(struct aq_worker *worker);
enum aq_status __real_aq_worker_forward(struct aq_worker *worker, const struct aq_worker_run *run,
                                        const struct aq_instruction *instruction);
enum aq_status __wrap_aq_worker_forward(struct aq_worker *worker, const struct aq_worker_run *run,
                                        const struct aq_instruction *instruction);
enum aq_status __real_aq_worker_parts_on(struct aq_worker_parts *parts, enum aq_part_moment moment,
                                         struct aq_part_args *args);
enum aq_status __wrap_aq_worker_parts_on(struct aq_worker_parts *parts, enum aq_part_moment moment,
                                         struct aq_part_args *args);
enum aq_status __real_aq_worker_group_perform(struct aq_worker *worker, const struct aq_reduce *asked);
enum aq_status __wrap_aq_worker_group_perform(struct aq_worker *worker, const struct aq_reduce *asked);
void __real_aq_group_background_take(struct aq_group_background *background, struct aq_group_done *out);
void __wrap_aq_group_background_take(struct aq_group_background *background, struct aq_group_done *out);
enum aq_status __real_aq_group_post(struct aq_group *group, uint32_t to, const struct aq_chunk *chunk,
                                    const void *body);
enum aq_status __wrap_aq_group_post(struct aq_group *group, uint32_t to, const struct aq_chunk *chunk,
                                    const void *body);
enum aq_status __real_aq_group_take(struct aq_group *group, uint32_t from, const struct aq_chunk *expected,
                                    const void **body);
enum aq_status __wrap_aq_group_take(struct aq_group *group, uint32_t from, const struct aq_chunk *expected,
                                    const void **body);
enum aq_status __real_aq_transfer_read(const struct aq_transfer_file *file, int fd, uint8_t *bytes, uint32_t count,
                                       uint64_t offset);
enum aq_status __wrap_aq_transfer_read(const struct aq_transfer_file *file, int fd, uint8_t *bytes, uint32_t count,
                                       uint64_t offset);
enum aq_status __real_aq_transfer_receive(struct aq_link *link, struct aq_eventcount *eventcount,
                                          const struct aq_transfer_file *file);
enum aq_status __wrap_aq_transfer_receive(struct aq_link *link, struct aq_eventcount *eventcount,
                                          const struct aq_transfer_file *file);
enum aq_status __real_aq_worker_backward(struct aq_worker *worker, const struct aq_worker_run *run,
                                         const struct aq_instruction *instruction);
enum aq_status __wrap_aq_worker_backward(struct aq_worker *worker, const struct aq_worker_run *run,
                                         const struct aq_instruction *instruction);

/* One place where a worker may be held; a thread has its own. */
struct hold {
    char said[PATH_BYTES]; /* the last .held written */
    uint64_t deadline;     /* of that one            */
};

static void nap(void)
{
    (void)nanosleep(&(struct timespec){.tv_nsec = (long)HOLD_LOOK_NS}, NULL);
}

/* Write the process id into PATH.held, which is there as a whole or not at all. */
static enum aq_status hold_say(const char *path)
{
    char held[PATH_BYTES + 8], partial[PATH_BYTES + 32];
    snprintf(held, sizeof held, "%s.held", path);
    snprintf(partial, sizeof partial, "%s.%ld.partial", path, (long)getpid());
    FILE *file = fopen(partial, "w");
    if (!file) return access(path, F_OK) == 0 ? aq_fail_errno("faulty", "%s cannot be written", partial) : AQ_OK;
    fprintf(file, "%ld\n", (long)getpid());
    if (fclose(file) != 0 || rename(partial, held) != 0)
        return access(path, F_OK) == 0 ? aq_fail_errno("faulty", "%s cannot be written", held) : AQ_OK;
    return AQ_OK;
}

/* AQ_OK: go on. AQ_AGAIN: a hold is asked for here, and said. AQ_TIMEOUT: nobody ends it. AQ_IO: it cannot be said. */
static enum aq_status hold_look(struct hold *hold, uint32_t rank, uint64_t step, const char *phase)
{
    char path[PATH_BYTES];
    const char *folder = getenv("FAULTY_HOLD");
    if (!folder) return AQ_OK;
    snprintf(path, sizeof path, "%s/%" PRIu32 ".%" PRIu64 ".%s", folder, rank, step, phase);
    if (access(path, F_OK) != 0) return AQ_OK;
    if (strcmp(hold->said, path) != 0) {
        AQ_TRY(hold_say(path));
        snprintf(hold->said, sizeof hold->said, "%s", path);
        hold->deadline = aq_clock_after(HOLD_SECONDS * 1000000000ull);
    }
    if (aq_clock_ns() < hold->deadline) return AQ_AGAIN;
    return aq_fail(AQ_TIMEOUT, "faulty", "held for %d s, and %s is still there", HOLD_SECONDS, path);
}

/* Between steps: all that comes meanwhile is served. */
static enum aq_status hold_serving(struct aq_worker *worker, uint64_t step, const char *phase)
{
    static struct hold hold;
    enum aq_status status;
    while ((status = hold_look(&hold, worker->rank, step, phase)) == AQ_AGAIN) {
        const uint32_t seen = aq_eventcount_read(worker->eventcount);
        AQ_TRY(aq_worker_serve(worker));
        AQ_TRY(aq_worker_control_poll(worker));
        if (worker->steps.stop_asked) return AQ_OK;
        (void)aq_eventcount_wait(worker->eventcount, seen, aq_clock_after(HOLD_LOOK_NS));
    }
    return status;
}

/* Within a step: AQ_AGAIN, and the step's own loop serves what comes, and asks again soon. */
static enum aq_status hold_within(struct aq_worker *worker, uint64_t step, uint32_t micro_batch, const char *phase)
{
    static struct hold hold;
    if (micro_batch > 0) return AQ_OK;
    const enum aq_status status = hold_look(&hold, worker->rank, step + 1, phase);
    if (status != AQ_AGAIN) return status;
    nap();
    aq_eventcount_notify(worker->eventcount);
    return AQ_AGAIN;
}

static struct aq_worker *_Atomic stepping; /* the worker whose step runs; reduce.delay's thread reads it, too */
static _Atomic pthread_t stepper;          /* its thread: others make links again */

enum aq_status __wrap_aq_worker_step(struct aq_worker *worker)
{
    stepping = worker;
    stepper = pthread_self();
    AQ_TRY(hold_serving(worker, worker->step + 1, "begin"));
    AQ_TRY(__real_aq_worker_step(worker));
    return hold_serving(worker, worker->step + 1, "end");
}

enum aq_status __wrap_aq_worker_forward(struct aq_worker *worker, const struct aq_worker_run *run,
                                        const struct aq_instruction *instruction)
{
    AQ_TRY(hold_within(worker, run->step, instruction->micro_batch, "forward"));
    return __real_aq_worker_forward(worker, run, instruction);
}

/* Blocks the thread: the values that the parts have seen are sent only after it. */
static enum aq_status hold_noised(const struct aq_part_cut *cut)
{
    static struct hold hold;
    enum aq_status status = AQ_OK;
    while (cut->trains && cut->batch->micro_batch == 0 &&
           (status = hold_look(&hold, stepping->rank, cut->batch->step + 1, "noised")) == AQ_AGAIN)
        nap();
    return status;
}

/* Blocks a worker that returns, before it opens anything. */
static enum aq_status hold_starts(const json_t *start)
{
    static struct hold hold;
    enum aq_status status = AQ_OK;
    while (aq_control_bool_or(start, "returns", false) &&
           (status = hold_look(&hold, (uint32_t)aq_control_u64_or(start, "rank", 0), 0, "starts")) == AQ_AGAIN)
        nap();
    return status;
}

/* A forward that a part may do in place of the stage (frozen_prefix.c). */
enum aq_status __wrap_aq_worker_parts_on(struct aq_worker_parts *parts, enum aq_part_moment moment,
                                         struct aq_part_args *args)
{
    const struct aq_edge_batch *batch = moment == AQ_PART_INSTRUCTION ? args->turn->batch : NULL;
    if (batch && args->turn->op == AQ_OP_FORWARD)
        AQ_TRY(hold_within(stepping, batch->step, batch->micro_batch, "forward"));
    if (moment == AQ_PART_START) AQ_TRY(hold_starts(args->message));
    AQ_TRY(__real_aq_worker_parts_on(parts, moment, args));
    return moment == AQ_PART_CUT_OUTPUT || moment == AQ_PART_CUT_GRADIENT_BACK ? hold_noised(args->cut) : AQ_OK;
}

enum aq_status __wrap_aq_worker_backward(struct aq_worker *worker, const struct aq_worker_run *run,
                                         const struct aq_instruction *instruction)
{
    AQ_TRY(hold_within(worker, run->step, instruction->micro_batch, "backward"));
    return __real_aq_worker_backward(worker, run, instruction);
}

/* Blocks the thread in the midst of an average of weights. */
static enum aq_status hold_averaging(bool here, const char *phase)
{
    static struct hold hold;
    enum aq_status status = AQ_OK;
    while (here && stepping && stepping->job->reduce.patience_ns > 0 &&
           (status = hold_look(&hold, stepping->rank, stepping->replicas.rounds.step, phase)) == AQ_AGAIN)
        nap();
    return status;
}

/* reduce.delay: the mean that the background's thread has made, in the worker's own thread. */
void __wrap_aq_group_background_take(struct aq_group_background *background, struct aq_group_done *out)
{
    if (aq_group_background_state(background) == AQ_OK && hold_averaging(true, "mean") != AQ_OK) abort();
    __real_aq_group_background_take(background, out);
}

enum aq_status __wrap_aq_worker_group_perform(struct aq_worker *worker, const struct aq_reduce *asked)
{
    AQ_TRY(__real_aq_worker_group_perform(worker, asked));
    return hold_averaging(true, "mean");
}

enum aq_status __wrap_aq_group_post(struct aq_group *group, uint32_t to, const struct aq_chunk *chunk, const void *body)
{
    AQ_TRY(hold_averaging(chunk->piece == 0, chunk->phase == 0 ? "parts" : "sums"));
    return __real_aq_group_post(group, to, chunk, body);
}

enum aq_status __wrap_aq_group_take(struct aq_group *group, uint32_t from, const struct aq_chunk *expected,
                                    const void **body)
{
    AQ_TRY(hold_averaging(expected->piece == 0 && expected->phase == 1, "results"));
    return __real_aq_group_take(group, from, expected, body);
}

enum aq_status __wrap_aq_byte_stream_connect(const char *address, struct aq_tls *tls, uint32_t attempt, bool paced,
                                             struct aq_byte_stream **out)
{
    struct aq_address fault = {.whole = "FAULTY_LINKS"};
    const char *query = getenv("FAULTY_LINKS");
    AQ_TRY(hold_averaging(stepping && pthread_equal(stepper, pthread_self()), "joins"));
    AQ_TRY(__real_aq_byte_stream_connect(address, tls, attempt, paced, out));
    if (!query) return AQ_OK;
    snprintf(fault.query, sizeof fault.query, "%s", query);
    return aq_fault_wrap(&fault, *out, out);
}

/* The file that is being written: one at a time (checkpoint_writer.c). */
static struct {
    uint32_t rank, pieces;
    uint64_t step;
} written;

enum aq_status __wrap_aq_checkpoint_file_open(const struct aq_checkpoint *checkpoint, uint64_t step,
                                              const float *snapshot, struct aq_checkpoint_file **out)
{
    written.rank = checkpoint->rank;
    written.step = step;
    written.pieces = 0;
    return __real_aq_checkpoint_file_open(checkpoint, step, snapshot, out);
}

enum aq_status __wrap_aq_checkpoint_file_piece(struct aq_checkpoint_file *file)
{
    static struct hold hold;
    const char *asked = getenv("FAULTY_CHECKPOINT");
    const long ms = asked ? strtol(asked, NULL, 10) : 0;
    const struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    if (ms > 0) (void)nanosleep(&pause, NULL);
    enum aq_status status = AQ_OK;
    while (written.pieces == 1 && (status = hold_look(&hold, written.rank, written.step, "write")) == AQ_AGAIN)
        nap();
    AQ_TRY(status);
    written.pieces++;
    return __real_aq_checkpoint_file_piece(file);
}

enum aq_status __wrap_aq_transfer_read(const struct aq_transfer_file *file, int fd, uint8_t *bytes, uint32_t count,
                                       uint64_t offset)
{
    struct hold hold = {.deadline = 0}; /* of this thread */
    char path[PATH_BYTES];
    const char *folder = getenv("FAULTY_HOLD");
    enum aq_status status = AQ_OK;
    while (offset > 0 && (status = hold_look(&hold, file->rank, file->step, "gives")) == AQ_AGAIN)
        nap();
    AQ_TRY(status);
    AQ_TRY(__real_aq_transfer_read(file, fd, bytes, count, offset));
    if (!folder) return AQ_OK;
    snprintf(path, sizeof path, "%s/%" PRIu32 ".%" PRIu64 ".damage", folder, file->rank, file->step);
    if (access(path, F_OK) == 0) bytes[count / 2] ^= 1;
    return AQ_OK;
}

enum aq_status __wrap_aq_transfer_receive(struct aq_link *link, struct aq_eventcount *eventcount,
                                          const struct aq_transfer_file *file)
{
    static struct hold hold;
    enum aq_status status = AQ_OK;
    while ((status = hold_look(&hold, file->rank, file->step, "takes")) == AQ_AGAIN)
        nap();
    AQ_TRY(status);
    return __real_aq_transfer_receive(link, eventcount, file);
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

static void slow_down(void)
{
    unsigned rank, ms;
    const char *asked = getenv("FAULTY_SLOW");
    if (!asked || !stepping || sscanf(asked, "%u %u", &rank, &ms) != 2 || rank != stepping->rank) return;
    (void)nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000}, NULL);
}

enum aq_status __wrap_aq_stage_forward(struct aq_stage *stage, uint32_t slot, const struct aq_stage_input *input,
                                       float *y, struct aq_stage_loss *loss, struct aq_stream *stream)
{
    static uint32_t passes;
    slow_down();
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
