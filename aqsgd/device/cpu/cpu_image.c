/*
 * cpu_image.c -- the mathematics of image networks, except convolutions (cpu_conv.c): ReLU, batch and group
 * normalization (a row at a time: cpu_columns.inc.h), means of rows, the class of a row. Plain C for every processor.
 *
 * Sums over rows go in two phases: groups of rows add up in double, then the groups' sums are added in order. The
 * grouping depends only on the extents.
 */
#include <math.h>

#include "cpu_device.h"

enum { FLAT = 64 << 10, ROWS = 64 };

static void relu_piece(struct cpu_device *cpu, const struct aq_relu *args, uint64_t piece)
{
    (void)cpu;
    for (uint64_t i = piece * FLAT; i < end_of(piece, args->count, FLAT); i++)
        args->y[i] = args->x[i] < 0.0f ? 0.0f : args->x[i];
}

CPU_PIECES(relu, aq_relu, pieces_of(args->count, FLAT))

static void relu_backward_piece(struct cpu_device *cpu, const struct aq_relu_backward *args, uint64_t piece)
{
    (void)cpu;
    for (uint64_t i = piece * FLAT; i < end_of(piece, args->count, FLAT); i++)
        args->dx[i] = args->y[i] > 0.0f ? args->dy[i] : 0.0f;
}

CPU_PIECES(relu_backward, aq_relu_backward, pieces_of(args->count, FLAT))

/* --- batch normalization ---------------------------------------------------------------------------------------- */

enum sums {
    SUMS_OF_X,      /* first = sum of x */
    SUMS_OF_SPREAD, /* first = sum of (x - mean)^2 */
    SUMS_BACKWARD   /* first = sum of dy, second = sum of dy (x - mean) rstd */
};

struct column_sums {
    enum sums kind;
    const struct cpu_rows *kernels;
    struct cpu_columns columns;
    uint64_t rows, group;
    const float *x, *add, *dy;
    double *partial; /* of each group: C firsts, C seconds */
};

static void column_sums_piece(uint64_t piece, uint32_t worker, void *context)
{
    (void)worker;
    const struct column_sums *self = context;
    const struct cpu_columns *of = &self->columns;
    const uint64_t C = of->n;
    double *first = self->partial + piece * 2 * C, *second = first + C;
    for (uint64_t c = 0; c < 2 * C; c++)
        first[c] = 0.0;
    for (uint64_t r = piece * self->group; r < end_of(piece, self->rows, self->group); r++) {
        const float *x = self->x + r * C;
        if (self->kind == SUMS_OF_X)
            self->kernels->columns_sum(x, C, first);
        else if (self->kind == SUMS_OF_SPREAD)
            self->kernels->columns_spread(x, of->mean, C, first);
        else
            self->kernels->columns_back_sums(of, x, self->add ? self->add + r * C : NULL, self->dy + r * C, first,
                                             second);
    }
}

/* The sums of the columns, in the first group's place. */
static double *column_sums_run(struct cpu_device *cpu, struct column_sums *self)
{
    const uint64_t C = self->columns.n;
    self->kernels = cpu->rows;
    self->partial = (double *)(void *)cpu_shared(cpu);
    self->group = ROWS;
    while (pieces_of(self->rows, self->group) * 2 * C * sizeof(double) > CPU_SHARED_BYTES && self->group < self->rows)
        self->group *= 2;
    AQ_ASSERT(4 * C * sizeof(double) <= CPU_SHARED_BYTES); /* and means of them (below) */
    const uint64_t groups = pieces_of(self->rows, self->group);
    cpu_pool_run(cpu->pool, groups, column_sums_piece, self);
    for (uint64_t group = 1; group < groups; group++)
        for (uint64_t c = 0; c < 2 * C; c++)
            self->partial[c] += self->partial[group * 2 * C + c];
    return self->partial;
}

static void batch_norm_statistics(struct cpu_device *cpu, const struct aq_batch_norm *args)
{
    const double rows = (double)args->rows, unbiased = args->rows > 1 ? rows / (rows - 1.0) : 1.0;
    struct column_sums sums = {
        .kind = SUMS_OF_X, .columns = {.n = args->C, .mean = args->mean}, .rows = args->rows, .x = args->x};
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

struct batch_norm {
    const struct cpu_rows *kernels;
    struct cpu_columns columns;
    uint64_t rows;
    const float *x, *add, *dy;
    float *y, *dx, *dz;
};

static void batch_norm_piece(uint64_t piece, uint32_t worker, void *context)
{
    (void)worker;
    const struct batch_norm *self = context;
    const uint64_t C = self->columns.n;
    for (uint64_t r = piece * ROWS; r < end_of(piece, self->rows, ROWS); r++)
        self->kernels->columns_norm(&self->columns, self->x + r * C, self->add ? self->add + r * C : NULL,
                                    self->y + r * C);
}

enum aq_status cpu_batch_norm(struct aq_device *device, const struct aq_batch_norm *args, struct aq_stream *stream)
{
    (void)stream;
    struct cpu_device *cpu = cpu_device_of(device);
    float *rstd = (float *)(void *)cpu_shared(cpu); /* where it is of the running variance */
    struct batch_norm self = {.kernels = cpu->rows, .rows = args->rows, .x = args->x, .add = args->add, .y = args->y};
    AQ_ASSERT(args->C * sizeof(double) <= CPU_SHARED_BYTES);
    if (args->training) batch_norm_statistics(cpu, args);
    for (uint64_t c = 0; !args->training && c < args->C; c++)
        rstd[c] = 1.0f / sqrtf(args->running_variance[c] + args->epsilon);
    self.columns = (struct cpu_columns){.n = args->C,
                                        .relu = args->relu,
                                        .mean = args->training ? args->mean : args->running_mean,
                                        .rstd = args->training ? args->rstd : rstd,
                                        .gamma = args->gamma,
                                        .beta = args->beta};
    cpu_pool_run(cpu->pool, pieces_of(args->rows, ROWS), batch_norm_piece, &self);
    return AQ_OK;
}

/* With h = (x - mean) rstd:  dx = gamma rstd (dy - mean(dy) - h mean(dy h)). */
static void batch_norm_backward_piece(uint64_t piece, uint32_t worker, void *context)
{
    (void)worker;
    const struct batch_norm *self = context;
    const uint64_t C = self->columns.n;
    for (uint64_t r = piece * ROWS; r < end_of(piece, self->rows, ROWS); r++)
        self->kernels->columns_back(&self->columns, self->x + r * C, self->add ? self->add + r * C : NULL,
                                    self->dy + r * C, self->dx + r * C, self->dz ? self->dz + r * C : NULL);
}

enum aq_status cpu_batch_norm_backward(struct aq_device *device, const struct aq_batch_norm_backward *args,
                                       struct aq_stream *stream)
{
    (void)stream;
    struct cpu_device *cpu = cpu_device_of(device);
    const uint64_t C = args->C;
    const float *add = args->relu ? args->add : NULL;
    struct column_sums sums = {.kind = SUMS_BACKWARD,
                               .columns = {.n = C,
                                           .relu = args->relu,
                                           .mean = args->mean,
                                           .rstd = args->rstd,
                                           .gamma = args->gamma,
                                           .beta = args->beta},
                               .rows = args->rows,
                               .x = args->x,
                               .add = add,
                               .dy = args->dy};
    const double *first = column_sums_run(cpu, &sums), *second = first + C;
    float *means =
        (float *)(void *)(sums.partial + 2 * C); /* the other groups' sums are added up: their place is free */
    for (uint64_t c = 0; c < C; c++) {
        if (args->dbeta) args->dbeta[c] += (float)first[c];
        if (args->dgamma) args->dgamma[c] += (float)second[c];
        means[c] = (float)(first[c] / (double)args->rows);
        means[C + c] = (float)(second[c] / (double)args->rows);
    }
    struct batch_norm self = {.kernels = cpu->rows,
                              .columns = sums.columns,
                              .rows = args->rows,
                              .x = args->x,
                              .add = add,
                              .dy = args->dy,
                              .dx = args->dx,
                              .dz = args->dz};
    self.columns.mean_dy = means;
    self.columns.mean_dyh = means + C;
    cpu_pool_run(cpu->pool, pieces_of(args->rows, ROWS), batch_norm_backward_piece, &self);
    return AQ_OK;
}

/* --- group normalization: a sample at a time, row by row, each column with its group's mean and spread ------------ */

struct group_norm {
    struct cpu_device *cpu;
    struct cpu_columns columns; /* except mean, rstd and the means of dy: a sample's */
    uint64_t samples, T, groups, chunk;
    float epsilon;
    const float *x, *add, *dy;
    float *y, *dx, *dz, *mean, *rstd;
    double *partial; /* of each chunk of samples: C sums of dy, C of dy h */
};

/* The part of a worker's scratch that a sample's piece uses. */
struct group_scratch {
    double *first, *second;                  /* C each */
    float *mean, *rstd, *mean_dy, *mean_dyh; /* C each */
};

static struct group_scratch group_scratch_of(const struct group_norm *self, uint32_t worker)
{
    const uint64_t C = self->columns.n;
    AQ_ASSERT(C * (2 * sizeof(double) + 4 * sizeof(float)) <= CPU_WORKER_BYTES);
    double *first = (double *)(void *)cpu_scratch(self->cpu, worker);
    float *mean = (float *)(void *)(first + 2 * C);
    return (struct group_scratch){first, first + C, mean, mean + C, mean + 2 * C, mean + 3 * C};
}

/* The sum of a group's columns, each times its gamma where there is one. */
static double group_sum(const double *of, const float *gamma, uint64_t first, uint64_t count)
{
    double sum = 0.0;
    for (uint64_t c = first; c < first + count; c++)
        sum += gamma ? of[c] * gamma[c] : of[c];
    return sum;
}

/* A value of each group to all of its columns: the sum of them over what a group has of values. */
static void group_means(const struct group_norm *self, const double *sums, const float *gamma, float *out)
{
    const uint64_t D = self->columns.n / self->groups;
    for (uint64_t g = 0; g < self->groups; g++) {
        const float mean = (float)(group_sum(sums, gamma, g * D, D) / (double)(self->T * D));
        for (uint64_t c = g * D; c < (g + 1) * D; c++)
            out[c] = mean;
    }
}

static void group_norm_piece(uint64_t sample, uint32_t worker, void *context)
{
    const struct group_norm *self = context;
    const struct cpu_rows *kernels = self->cpu->rows;
    const struct group_scratch scratch = group_scratch_of(self, worker);
    const uint64_t C = self->columns.n, D = C / self->groups, from = sample * self->T * C;
    struct cpu_columns columns = self->columns;
    for (uint64_t c = 0; c < 2 * C; c++)
        scratch.first[c] = 0.0;
    for (uint64_t t = 0; t < self->T; t++)
        kernels->columns_sum(self->x + from + t * C, C, scratch.first);
    group_means(self, scratch.first, NULL, scratch.mean);
    for (uint64_t t = 0; t < self->T; t++)
        kernels->columns_spread(self->x + from + t * C, scratch.mean, C, scratch.second);
    for (uint64_t g = 0; g < self->groups; g++) {
        const double variance = group_sum(scratch.second, NULL, g * D, D) / (double)(self->T * D);
        const float rstd = (float)(1.0 / sqrt(variance + self->epsilon));
        for (uint64_t c = g * D; c < (g + 1) * D; c++)
            scratch.rstd[c] = rstd;
        if (!self->mean) continue;
        self->mean[sample * self->groups + g] = scratch.mean[g * D];
        self->rstd[sample * self->groups + g] = rstd;
    }
    columns.mean = scratch.mean;
    columns.rstd = scratch.rstd;
    for (uint64_t at = from; at < from + self->T * C; at += C)
        kernels->columns_norm(&columns, self->x + at, self->add ? self->add + at : NULL, self->y + at);
}

enum aq_status cpu_group_norm(struct aq_device *device, const struct aq_group_norm *args, struct aq_stream *stream)
{
    (void)stream;
    struct cpu_device *cpu = cpu_device_of(device);
    struct group_norm self = {.cpu = cpu,
                              .columns = {.n = args->C, .relu = args->relu, .gamma = args->gamma, .beta = args->beta},
                              .samples = args->samples,
                              .T = args->T,
                              .groups = args->groups,
                              .epsilon = args->epsilon,
                              .x = args->x,
                              .add = args->add,
                              .y = args->y,
                              .mean = args->mean,
                              .rstd = args->rstd};
    cpu_pool_run(cpu->pool, args->samples, group_norm_piece, &self);
    return AQ_OK;
}

/* With h = (x - mean) rstd:  dx = rstd (gamma dy - mean(gamma dy) - h mean(gamma dy h)), means over a group. */
static void group_norm_backward_sample(const struct group_norm *self, uint64_t sample, uint32_t worker, double *all)
{
    const struct cpu_rows *kernels = self->cpu->rows;
    const struct group_scratch scratch = group_scratch_of(self, worker);
    const uint64_t C = self->columns.n, D = C / self->groups, from = sample * self->T * C, end = from + self->T * C;
    struct cpu_columns columns = self->columns;
    for (uint64_t c = 0; c < C; c++) {
        scratch.first[c] = scratch.second[c] = 0.0;
        scratch.mean[c] = self->mean[sample * self->groups + c / D];
        scratch.rstd[c] = self->rstd[sample * self->groups + c / D];
    }
    columns.mean = scratch.mean;
    columns.rstd = scratch.rstd;
    columns.mean_dy = scratch.mean_dy;
    columns.mean_dyh = scratch.mean_dyh;
    for (uint64_t at = from; at < end; at += C)
        kernels->columns_back_sums(&columns, self->x + at, self->add ? self->add + at : NULL, self->dy + at,
                                   scratch.first, scratch.second);
    group_means(self, scratch.first, columns.gamma, scratch.mean_dy);
    group_means(self, scratch.second, columns.gamma, scratch.mean_dyh);
    for (uint64_t c = 0; c < 2 * C; c++)
        all[c] += scratch.first[c]; /* `second` follows it */
    for (uint64_t at = from; at < end; at += C)
        kernels->columns_back_grouped(&columns, self->x + at, self->add ? self->add + at : NULL, self->dy + at,
                                      self->dx + at, self->dz ? self->dz + at : NULL);
}

static void group_norm_backward_piece(uint64_t piece, uint32_t worker, void *context)
{
    const struct group_norm *self = context;
    double *all = self->partial + piece * 2 * self->columns.n;
    for (uint64_t c = 0; c < 2 * self->columns.n; c++)
        all[c] = 0.0;
    for (uint64_t sample = piece * self->chunk; sample < end_of(piece, self->samples, self->chunk); sample++)
        group_norm_backward_sample(self, sample, worker, all);
}

enum aq_status cpu_group_norm_backward(struct aq_device *device, const struct aq_group_norm_backward *args,
                                       struct aq_stream *stream)
{
    (void)stream;
    struct cpu_device *cpu = cpu_device_of(device);
    const uint64_t C = args->C;
    struct group_norm self = {.cpu = cpu,
                              .columns = {.n = C, .relu = args->relu, .gamma = args->gamma, .beta = args->beta},
                              .samples = args->samples,
                              .T = args->T,
                              .groups = args->groups,
                              .chunk = 1,
                              .x = args->x,
                              .add = args->relu ? args->add : NULL,
                              .dy = args->dy,
                              .dx = args->dx,
                              .dz = args->dz,
                              .mean = (float *)(uintptr_t)args->mean, /* read here, written in forward */
                              .rstd = (float *)(uintptr_t)args->rstd,
                              .partial = (double *)(void *)cpu_shared(cpu)};
    AQ_ASSERT(2 * C * sizeof(double) <= CPU_SHARED_BYTES);
    while (pieces_of(args->samples, self.chunk) * 2 * C * sizeof(double) > CPU_SHARED_BYTES)
        self.chunk *= 2;
    const uint64_t chunks = pieces_of(args->samples, self.chunk);
    cpu_pool_run(cpu->pool, chunks, group_norm_backward_piece, &self);
    for (uint64_t c = 0; c < C; c++) {
        double first = 0.0, second = 0.0;
        for (uint64_t chunk = 0; chunk < chunks; chunk++) {
            first += self.partial[chunk * 2 * C + c];
            second += self.partial[chunk * 2 * C + C + c];
        }
        if (args->dbeta) args->dbeta[c] += (float)first;
        if (args->dgamma) args->dgamma[c] += (float)second;
    }
    return AQ_OK;
}

/* --- means of rows ------------------------------------------------------------------------------------------------ */

static void row_mean_piece(struct cpu_device *cpu, const struct aq_row_mean *args, uint64_t sample)
{
    (void)cpu;
    for (uint64_t c = 0; c < args->C; c++) {
        double sum = 0.0;
        for (uint64_t t = 0; t < args->T; t++)
            sum += (double)args->x[(sample * args->T + t) * args->C + c];
        args->y[sample * args->C + c] = (float)(sum / (double)args->T);
    }
}

CPU_PIECES(row_mean, aq_row_mean, args->samples)

static void row_mean_backward_piece(struct cpu_device *cpu, const struct aq_row_mean_backward *args, uint64_t sample)
{
    (void)cpu;
    for (uint64_t t = 0; t < args->T; t++)
        for (uint64_t c = 0; c < args->C; c++)
            args->dx[(sample * args->T + t) * args->C + c] = args->dy[sample * args->C + c] / (float)args->T;
}

CPU_PIECES(row_mean_backward, aq_row_mean_backward, args->samples)

/* --- classes ---------------------------------------------------------------------------------------------------- */

static void argmax_piece(struct cpu_device *cpu, const struct aq_argmax *args, uint64_t piece)
{
    (void)cpu;
    for (uint64_t r = piece * ROWS; r < end_of(piece, args->rows, ROWS); r++) {
        const float *x = args->x + r * args->stride;
        uint64_t best = 0;
        for (uint64_t c = 1; c < args->C; c++)
            if (x[c] > x[best]) best = c;
        args->index[r] = (int32_t)best;
    }
}

CPU_PIECES(argmax, aq_argmax, pieces_of(args->rows, ROWS))
