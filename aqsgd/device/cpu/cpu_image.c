/*
 * cpu_image.c -- what networks of images add to the mathematics beside convolutions (cpu_conv.c): ReLU, batch
 * normalization, means of rows, the class of a row. Plain C for every processor.
 *
 * Sums over rows go in two phases: groups of rows add up in double, then the groups' sums are added in order. How rows
 * are grouped depends on the extents alone.
 */
#include <math.h>

#include "cpu_device.h"

enum { FLAT = 64 << 10, ROWS = 64 };

static void relu_piece(uint64_t piece, uint32_t worker, void *context)
{
    (void)worker;
    const struct aq_relu *args = context;
    for (uint64_t i = piece * FLAT; i < end_of(piece, args->count, FLAT); i++)
        args->y[i] = args->x[i] < 0.0f ? 0.0f : args->x[i];
}

enum aq_status cpu_relu(struct aq_device *device, const struct aq_relu *args, struct aq_stream *stream)
{
    (void)stream;
    struct aq_relu own = *args;
    cpu_pool_run(cpu_device_of(device)->pool, pieces_of(args->count, FLAT), relu_piece, &own);
    return AQ_OK;
}

static void relu_backward_piece(uint64_t piece, uint32_t worker, void *context)
{
    (void)worker;
    const struct aq_relu_backward *args = context;
    for (uint64_t i = piece * FLAT; i < end_of(piece, args->count, FLAT); i++)
        args->dx[i] = args->y[i] > 0.0f ? args->dy[i] : 0.0f;
}

enum aq_status cpu_relu_backward(struct aq_device *device, const struct aq_relu_backward *args,
                                 struct aq_stream *stream)
{
    (void)stream;
    struct aq_relu_backward own = *args;
    cpu_pool_run(cpu_device_of(device)->pool, pieces_of(args->count, FLAT), relu_backward_piece, &own);
    return AQ_OK;
}

/* --- batch normalization ---------------------------------------------------------------------------------------- */

enum sums {
    SUMS_OF_X,      /* first = sum of x */
    SUMS_OF_SPREAD, /* first = sum of (x - mean)^2 */
    SUMS_BACKWARD   /* first = sum of dy, second = sum of dy (x - mean) rstd */
};

struct column_sums {
    enum sums kind;
    uint64_t rows, C, group;
    const float *x, *dy, *mean, *rstd;
    const struct aq_batch_norm_backward *relu; /* backward behind a ReLU, or NULL */
    double *partial;                           /* of each group: C firsts, C seconds */
};

/* What a batch norm gave before its ReLU, made as forward makes it; c: the column, at: of the matrix. */
static inline float unrectified(const struct aq_batch_norm_backward *args, uint64_t at, uint64_t c)
{
    const float z = (args->x[at] - args->mean[c]) * args->rstd[c] * args->gamma[c] + args->beta[c];
    return args->add ? z + args->add[at] : z;
}

static void column_sums_piece(uint64_t piece, uint32_t worker, void *context)
{
    (void)worker;
    const struct column_sums *self = context;
    const uint64_t C = self->C;
    double *first = self->partial + piece * 2 * C, *second = first + C;
    for (uint64_t c = 0; c < 2 * C; c++)
        first[c] = 0.0;
    for (uint64_t r = piece * self->group; r < end_of(piece, self->rows, self->group); r++) {
        const float *x = self->x + r * C;
        for (uint64_t c = 0; c < C; c++) {
            if (self->kind == SUMS_OF_X) {
                first[c] += x[c];
            } else if (self->kind == SUMS_OF_SPREAD) {
                const double apart = (double)x[c] - self->mean[c];
                first[c] += apart * apart;
            } else {
                const bool off = self->relu && !(unrectified(self->relu, r * C + c, c) > 0.0f);
                const float dy = off ? 0.0f : self->dy[r * C + c];
                first[c] += dy;
                second[c] += (double)dy * ((x[c] - self->mean[c]) * self->rstd[c]);
            }
        }
    }
}

/* The sums of the columns, in the first group's place. */
static double *column_sums_run(struct cpu_device *cpu, struct column_sums *self)
{
    self->partial = (double *)(void *)cpu_shared(cpu);
    self->group = ROWS;
    while (pieces_of(self->rows, self->group) * 2 * self->C * sizeof(double) > CPU_SHARED_BYTES &&
           self->group < self->rows)
        self->group *= 2;
    AQ_ASSERT(2 * self->C * sizeof(double) <= CPU_SHARED_BYTES);
    const uint64_t groups = pieces_of(self->rows, self->group);
    cpu_pool_run(cpu->pool, groups, column_sums_piece, self);
    for (uint64_t group = 1; group < groups; group++)
        for (uint64_t c = 0; c < 2 * self->C; c++)
            self->partial[c] += self->partial[group * 2 * self->C + c];
    return self->partial;
}

static void batch_norm_statistics(struct cpu_device *cpu, const struct aq_batch_norm *args)
{
    const double rows = (double)args->rows, unbiased = args->rows > 1 ? rows / (rows - 1.0) : 1.0;
    struct column_sums sums = {.kind = SUMS_OF_X, .rows = args->rows, .C = args->C, .x = args->x, .mean = args->mean};
    const double *first = column_sums_run(cpu, &sums);
    for (uint64_t c = 0; c < args->C; c++)
        args->mean[c] = (float)(first[c] / rows);
    sums.kind = SUMS_OF_SPREAD;
    first = column_sums_run(cpu, &sums);
    for (uint64_t c = 0; c < args->C; c++) {
        const double variance = first[c] / rows;
        args->rstd[c] = (float)(1.0 / sqrt(variance + args->epsilon));
        if (!args->running_mean) continue;
        args->running_mean[c] += args->momentum * (args->mean[c] - args->running_mean[c]);
        args->running_variance[c] += args->momentum * ((float)(variance * unbiased) - args->running_variance[c]);
    }
}

static void batch_norm_piece(uint64_t piece, uint32_t worker, void *context)
{
    (void)worker;
    const struct aq_batch_norm *args = context;
    const uint64_t C = args->C;
    for (uint64_t r = piece * ROWS; r < end_of(piece, args->rows, ROWS); r++)
        for (uint64_t c = 0; c < C; c++) {
            const float mean = args->training ? args->mean[c] : args->running_mean[c];
            const float rstd = args->training ? args->rstd[c] : 1.0f / sqrtf(args->running_variance[c] + args->epsilon);
            float z = (args->x[r * C + c] - mean) * rstd * args->gamma[c] + args->beta[c];
            if (args->add) z += args->add[r * C + c];
            args->y[r * C + c] = args->relu && z < 0.0f ? 0.0f : z;
        }
}

enum aq_status cpu_batch_norm(struct aq_device *device, const struct aq_batch_norm *args, struct aq_stream *stream)
{
    (void)stream;
    struct cpu_device *cpu = cpu_device_of(device);
    struct aq_batch_norm own = *args;
    if (args->training) batch_norm_statistics(cpu, args);
    cpu_pool_run(cpu->pool, pieces_of(args->rows, ROWS), batch_norm_piece, &own);
    return AQ_OK;
}

struct batch_norm_backward {
    const struct aq_batch_norm_backward *args;
    const double *sums; /* of dy, then of dy h */
};

/* With h = (x - mean) rstd:  dx = gamma rstd (dy - mean(dy) - h mean(dy h)). */
static void batch_norm_backward_piece(uint64_t piece, uint32_t worker, void *context)
{
    (void)worker;
    const struct batch_norm_backward *self = context;
    const struct aq_batch_norm_backward *args = self->args;
    const uint64_t C = args->C;
    const double rows = (double)args->rows;
    for (uint64_t r = piece * ROWS; r < end_of(piece, args->rows, ROWS); r++)
        for (uint64_t c = 0; c < C; c++) {
            const uint64_t at = r * C + c;
            const float h = (args->x[at] - args->mean[c]) * args->rstd[c];
            const float mean_dy = (float)(self->sums[c] / rows), mean_dyh = (float)(self->sums[C + c] / rows);
            const float dy = args->relu && !(unrectified(args, at, c) > 0.0f) ? 0.0f : args->dy[at];
            args->dx[at] = args->gamma[c] * args->rstd[c] * (dy - mean_dy - h * mean_dyh);
            if (args->dz) args->dz[at] = dy;
        }
}

enum aq_status cpu_batch_norm_backward(struct aq_device *device, const struct aq_batch_norm_backward *args,
                                       struct aq_stream *stream)
{
    (void)stream;
    struct cpu_device *cpu = cpu_device_of(device);
    struct column_sums sums = {.kind = SUMS_BACKWARD,
                               .rows = args->rows,
                               .C = args->C,
                               .x = args->x,
                               .dy = args->dy,
                               .mean = args->mean,
                               .rstd = args->rstd,
                               .relu = args->relu ? args : NULL};
    struct batch_norm_backward self = {.args = args, .sums = column_sums_run(cpu, &sums)};
    for (uint64_t c = 0; c < args->C; c++) {
        if (args->dbeta) args->dbeta[c] += (float)self.sums[c];
        if (args->dgamma) args->dgamma[c] += (float)self.sums[args->C + c];
    }
    cpu_pool_run(cpu->pool, pieces_of(args->rows, ROWS), batch_norm_backward_piece, &self);
    return AQ_OK;
}

/* --- means of rows ------------------------------------------------------------------------------------------------ */

static void row_mean_piece(uint64_t sample, uint32_t worker, void *context)
{
    (void)worker;
    const struct aq_row_mean *args = context;
    for (uint64_t c = 0; c < args->C; c++) {
        double sum = 0.0;
        for (uint64_t t = 0; t < args->T; t++)
            sum += (double)args->x[(sample * args->T + t) * args->C + c];
        args->y[sample * args->C + c] = (float)(sum / (double)args->T);
    }
}

enum aq_status cpu_row_mean(struct aq_device *device, const struct aq_row_mean *args, struct aq_stream *stream)
{
    (void)stream;
    struct aq_row_mean own = *args;
    cpu_pool_run(cpu_device_of(device)->pool, args->samples, row_mean_piece, &own);
    return AQ_OK;
}

static void row_mean_backward_piece(uint64_t sample, uint32_t worker, void *context)
{
    (void)worker;
    const struct aq_row_mean_backward *args = context;
    for (uint64_t t = 0; t < args->T; t++)
        for (uint64_t c = 0; c < args->C; c++)
            args->dx[(sample * args->T + t) * args->C + c] = args->dy[sample * args->C + c] / (float)args->T;
}

enum aq_status cpu_row_mean_backward(struct aq_device *device, const struct aq_row_mean_backward *args,
                                     struct aq_stream *stream)
{
    (void)stream;
    struct aq_row_mean_backward own = *args;
    cpu_pool_run(cpu_device_of(device)->pool, args->samples, row_mean_backward_piece, &own);
    return AQ_OK;
}

/* --- classes ---------------------------------------------------------------------------------------------------- */

static void argmax_piece(uint64_t piece, uint32_t worker, void *context)
{
    (void)worker;
    const struct aq_argmax *args = context;
    for (uint64_t r = piece * ROWS; r < end_of(piece, args->rows, ROWS); r++) {
        const float *x = args->x + r * args->stride;
        uint64_t best = 0;
        for (uint64_t c = 1; c < args->C; c++)
            if (x[c] > x[best]) best = c;
        args->index[r] = (int32_t)best;
    }
}

enum aq_status cpu_argmax(struct aq_device *device, const struct aq_argmax *args, struct aq_stream *stream)
{
    (void)stream;
    struct aq_argmax own = *args;
    cpu_pool_run(cpu_device_of(device)->pool, pieces_of(args->rows, ROWS), argmax_piece, &own);
    return AQ_OK;
}
