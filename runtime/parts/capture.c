/*
 * capture.c -- split.capture: what a server of split learning sees of a client, written down for tools/split-audit.
 *
 * A part of the worker (worker_parts.h): a file of activations and gradients as the server's stage got them, decoded,
 * before it computes with them, and how each image was seen that was cropped or flipped (data.augment). It is a copy of
 * private features, so both ends' manifests must ask for it. The layout is docs/FORMAT.md, "What a server saw". The
 * file is <run>/seen/<step>.bin; `step` is the stage's first one.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "aqsgd/base/file.h"
#include "worker_parts.h"

enum kind { ACTIVATION = 1, GRADIENT = 2, HELDOUT = 3, VIEW = 4 };

/* Of a file's head. */
enum flag { PADDED = 1, AUGMENTED = 2 };

struct record {
    enum kind kind;
    uint32_t rows, columns;
    uint64_t step, sample; /* its place in the client's data */
};

struct part {
    const struct aq_job *job;
    int fd;              /* -1: nothing is written */
    uint64_t bytes_left; /* a record that does not fit ends it, once and for all */
    uint64_t records;
};

/*
 * Offsets of a record's head; numbers are little-endian.
 *
 *    0  4  kind        enum kind
 *    4  4  rows
 *    8  4  columns
 *   12  4  zero
 *   16  8  step
 *   24  8  sample
 *   32     values      rows times columns, fp32
 */
enum { HEAD_BYTES = 16, RECORD_BYTES = 32, NAME_BYTES = 40, FLAGS_AT = 14 };
static const char head[HEAD_BYTES + 1] = "aqpipe seen 2\n\0";

/* Of a VIEW: aq_view. Places of holes are 32 bits wide, which a float does not hold: upper half, lower half. */
enum {
    VIEW_DOWN,
    VIEW_RIGHT,
    VIEW_FLIPPED,
    VIEW_HOLE,
    VIEW_HOLE_DOWN,
    VIEW_HOLE_RIGHT = VIEW_HOLE_DOWN + 2,
    VIEW_VALUES = VIEW_HOLE_RIGHT + 2
};

static void put(unsigned char *at, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        at[i] = (unsigned char)(value >> 8 * i);
}

static enum aq_status write_to(struct part *part, const void *bytes, size_t count)
{
    if (aq_write_all(part->fd, bytes, count)) return AQ_OK;
    return aq_fail_errno("worker", "split.capture: cannot write the captured values");
}

static enum aq_status file_open(struct part *part, const char *run, uint64_t step, uint64_t bytes_max)
{
    char name[NAME_BYTES], flagged[HEAD_BYTES];
    snprintf(name, sizeof name, "seen/%" PRIu64 ".bin", step);
    memcpy(flagged, head, sizeof flagged);
    flagged[FLAGS_AT] =
        (char)((part->job->split.pad ? PADDED : 0) | (aq_augment_any(&part->job->data.augment) ? AUGMENTED : 0));
    AQ_TRY(aq_file_make_folder(run, "seen"));
    AQ_TRY(aq_file_open(run, name, AQ_FILE_ANEW, &part->fd));
    part->bytes_left = bytes_max > HEAD_BYTES ? bytes_max - HEAD_BYTES : 0;
    return write_to(part, flagged, sizeof flagged);
}

static void part_close(void *self)
{
    struct part *part = self;
    if (part->fd != -1) close(part->fd);
    part->fd = -1;
}

/* values: rows times columns floats. Nothing, once a record did not fit. */
static enum aq_status record_add(struct part *part, const struct record *record, const float *values)
{
    unsigned char bytes[RECORD_BYTES] = {0};
    const uint64_t count = (uint64_t)record->rows * record->columns * sizeof *values;
    if (part->fd == -1) return AQ_OK;
    if (RECORD_BYTES + count > part->bytes_left) {
        aq_log("worker", 1, "split.capture: full after %" PRIu64 " records; later ones are not written", part->records);
        part_close(part);
        return AQ_OK;
    }
    put(bytes, (uint64_t)record->kind, 4);
    put(bytes + 4, record->rows, 4);
    put(bytes + 8, record->columns, 4);
    put(bytes + 16, record->step, 8);
    put(bytes + 24, record->sample, 8);
    AQ_TRY(write_to(part, bytes, sizeof bytes));
    AQ_TRY(
        write_to(part, values, (size_t)count)); /* as they lie: every machine that this is built for is little-endian */
    part->bytes_left -= RECORD_BYTES + count;
    part->records++;
    return AQ_OK;
}

/* How the client saw that image, in front of its activation. The server knows it: a view follows from the seed. */
static enum aq_status view_add(struct part *part, const struct aq_edge_batch *batch, uint32_t i, uint64_t sample)
{
    const struct aq_view *view = &batch->views[i];
    const struct record record = {
        .kind = VIEW, .rows = 1, .columns = VIEW_VALUES, .step = batch->step, .sample = sample};
    float values[VIEW_VALUES];
    values[VIEW_DOWN] = view->down;
    values[VIEW_RIGHT] = view->right;
    values[VIEW_FLIPPED] = view->flipped;
    values[VIEW_HOLE] = (float)view->hole;
    values[VIEW_HOLE_DOWN] = (float)(view->hole_down >> 16);
    values[VIEW_HOLE_DOWN + 1] = (float)(view->hole_down & 0xffff);
    values[VIEW_HOLE_RIGHT] = (float)(view->hole_right >> 16);
    values[VIEW_HOLE_RIGHT + 1] = (float)(view->hole_right & 0xffff);
    return record_add(part, &record, values);
}

static bool part_wanted(const struct aq_plan *plan, uint32_t rank)
{
    return plan->job->split.capture > 0 && plan->job->split.client && !aq_job_at_client(plan->job, rank);
}

static void part_memory(const struct aq_plan *plan, uint32_t s, struct aq_plan_part *out)
{
    const struct aq_stage_size *size = &plan->stages[s].size;
    out->cut_bytes = size->x_bytes > size->y_bytes ? size->x_bytes : size->y_bytes;
}

static enum aq_status part_open(void *self, const struct aq_plan *plan, uint32_t rank)
{
    (void)rank;
    *(struct part *)self = (struct part){.job = plan->job, .fd = -1};
    return AQ_OK;
}

static enum aq_status capture(struct part *part, enum kind kind, const struct aq_part_cut *cut)
{
    if (part->fd == -1) return AQ_OK;
    const struct aq_edge_shape *shape = &cut->edge->shape;
    const struct aq_edge_batch *batch = cut->batch;
    const uint64_t each = (uint64_t)shape->rows * shape->columns;
    const uint64_t skip = kind == HELDOUT ? 0 : part->job->data.skip;
    float *at;
    AQ_TRY(aq_cut_host_read(cut->host, cut->values, batch->samples * each, &at));
    for (uint32_t i = 0; i < batch->samples; i++) {
        const struct record record = {.kind = kind,
                                      .rows = batch->lengths ? batch->lengths[i] : shape->rows, /* no padding */
                                      .columns = shape->columns,
                                      .step = batch->step,
                                      .sample = batch->sample_ids[i] - skip};
        if (kind == ACTIVATION && batch->views) AQ_TRY(view_add(part, batch, i, record.sample));
        AQ_TRY(record_add(part, &record, at + i * each));
    }
    return AQ_OK;
}

static enum aq_status part_on(void *self, enum aq_part_moment moment, struct aq_part_args *args)
{
    struct part *part = self;
    switch (moment) {
    case AQ_PART_RUN_BEGIN:
        return file_open(part, args->run_folder, args->step, part->job->split.capture);
    case AQ_PART_CUT_INPUT:
        if (args->cut->trains) return capture(part, ACTIVATION, args->cut);
        /* At the end held-out samples pass a second time, through the codec: those are not written. */
        return args->cut->batch->flags & AQ_EDGE_CODED ? AQ_OK : capture(part, HELDOUT, args->cut);
    case AQ_PART_CUT_GRADIENT:
        return capture(part, GRADIENT, args->cut);
    default:
        return AQ_OK;
    }
}

const struct aq_part_ops aq_part_capture = {.name = "capture",
                                            .bytes = sizeof(struct part),
                                            .uses_cuts = true,
                                            .wanted = part_wanted,
                                            .memory = part_memory,
                                            .open = part_open,
                                            .on = part_on,
                                            .close = part_close};
