/*
 * cpu_conv_winograd.c -- convolutions of 3 x 3 in 16 products of transformed values (cpu_winograd.h), cut for the pool.
 *
 *     forward, backward   all of w, transformed, in the shared scratch; then pieces of patches, for all outputs: the
 *                         planes of x, and for two blocks of outputs at a time 16 products and the pixels of y
 *     weights             pieces of a group of patches and a range of inputs, summed in the shared scratch; then the
 *                         groups are added in order, and become gradients
 *
 * The cut depends only on the extents; a value's sum runs over channels, or over a group's patches, in order. So bits
 * depend on neither threads nor, forward and backward, on how many images there are.
 */
#include "cpu_conv.h"
#include "cpu_winograd.h"

enum {
    WORKER_FLOATS = CPU_WORKER_BYTES / 4,
    SHARED_FLOATS = CPU_SHARED_BYTES / 4,
    PLANES_FLOATS = 288 << 10, /* of a piece's planes of x: 1.1 MiB of a second-level cache  */
    PATCHES_UNIT = 12,         /* of a piece: whole products' rows                           */
    PATCHES_MIN = 24,
    PATCHES_MAX = 120,
    PATCHES = 128,            /* of gradients of weights, at a time                         */
    INPUTS = 64,              /* of a range of them                                         */
    PIECES = 16,              /* groups and ranges                                          */
    APART = 5 * AQ_ALIGN / 4, /* floats between planes: 16 planes would share a cache's set */
};

struct planes {
    float *at;
    uint64_t plane, block; /* floats from one to the next */
};

static uint64_t planes_floats(uint64_t channels, uint64_t patches)
{
    return WINOGRAD_PLANES * (channels * patches + APART);
}

static struct planes planes_in(float *at, uint64_t lanes, uint64_t channels, uint64_t patches)
{
    return (struct planes){.at = at, .plane = channels * patches + APART, .block = patches * lanes};
}

static uint64_t patches_of(const struct aq_conv_shape *shape)
{
    return shape->samples * (shape->height / 2) * (shape->width / 2);
}

static bool suits(const struct cpu_device *cpu, const struct aq_conv_shape *shape)
{
    if (!cpu->winograd || shape->K != 3 || shape->stride != 1) return false;
    const uint64_t wide = cpu->winograd->lanes * WINOGRAD_BLOCKS;
    return shape->height % 2 == 0 && shape->width % 2 == 0 && shape->C % wide == 0 && shape->N % wide == 0 &&
           WINOGRAD_PLANES * shape->C * shape->N <= SHARED_FLOATS;
}

/* --- forward and backward ----------------------------------------------------------------------------------------- */

struct images {
    struct cpu_device *cpu;
    const struct aq_conv_shape *shape;
    const float *x, *w;
    float *y;
    bool transposed;    /* backward: x is dy, y is dx */
    uint64_t C, N;      /* of x, of y                 */
    uint64_t each, all; /* patches, of a piece        */
};

static void filter_piece(uint64_t block, uint32_t worker, void *context)
{
    (void)worker;
    const struct images *self = context;
    self->cpu->winograd->filter(self->w, self->shape->C, self->shape->N, block, self->transposed,
                                cpu_shared(self->cpu));
}

static void images_piece(uint64_t piece, uint32_t worker, void *context)
{
    const struct images *self = context;
    const struct cpu_winograd *kernels = self->cpu->winograd;
    const uint64_t wide = kernels->lanes * WINOGRAD_BLOCKS, C = self->C, first = piece * self->each;
    const struct planes x = planes_in(cpu_scratch(self->cpu, worker), kernels->lanes, C, self->each);
    const struct planes y = planes_in(x.at + planes_floats(C, self->each), kernels->lanes, wide, self->each);
    struct cpu_patches patches = {.height = self->shape->height,
                                  .width = self->shape->width,
                                  .C = C,
                                  .channels = C,
                                  .first = first,
                                  .count = end_of(piece, self->all, self->each) - first,
                                  .plane = x.plane,
                                  .block = x.block};
    kernels->input(&patches, self->x, x.at);
    patches.C = self->N;
    patches.channels = wide;
    patches.plane = y.plane;
    patches.block = y.block;
    for (uint64_t n = 0; n < self->N; n += wide) {
        const float *w = cpu_shared(self->cpu) + n * C;
        for (uint64_t plane = 0; plane < WINOGRAD_PLANES; plane++)
            kernels->product(x.at + plane * x.plane, x.block, C / kernels->lanes, patches.count,
                             w + plane * C * self->N, C * kernels->lanes, y.at + plane * y.plane, y.block);
        patches.channel = n;
        kernels->output(&patches, y.at, self->y);
    }
}

static bool images_run(struct images *self)
{
    struct cpu_device *cpu = self->cpu;
    if (!suits(cpu, self->shape)) return false;
    const uint64_t fit = PLANES_FLOATS / WINOGRAD_PLANES / self->C, wide = cpu->winograd->lanes * WINOGRAD_BLOCKS;
    self->each = fit > PATCHES_MAX ? PATCHES_MAX : fit < PATCHES_MIN ? PATCHES_MIN : fit / PATCHES_UNIT * PATCHES_UNIT;
    self->all = patches_of(self->shape);
    if (planes_floats(self->C, self->each) + planes_floats(wide, self->each) > WORKER_FLOATS) return false;
    cpu_pool_run(cpu->pool, self->shape->C / cpu->winograd->lanes, filter_piece, self);
    cpu_pool_run(cpu->pool, pieces_of(self->all, self->each), images_piece, self);
    return true;
}

bool cpu_conv_winograd(struct cpu_device *cpu, const struct aq_conv *args)
{
    const struct aq_conv_shape *shape = &args->shape;
    struct images self = {
        .cpu = cpu, .shape = shape, .x = args->x, .w = args->w, .y = args->y, .C = shape->C, .N = shape->N};
    return images_run(&self);
}

bool cpu_conv_backward_winograd(struct cpu_device *cpu, const struct aq_conv_backward *args)
{
    const struct aq_conv_shape *shape = &args->shape;
    struct images self = {.cpu = cpu,
                          .shape = shape,
                          .x = args->dy,
                          .w = args->w,
                          .y = args->dx,
                          .transposed = true,
                          .C = shape->N,
                          .N = shape->C};
    return images_run(&self);
}

/* --- weights ------------------------------------------------------------------------------------------------------ */

struct sums {
    struct cpu_device *cpu;
    const struct aq_conv_weights *args;
    uint64_t groups, ranges; /* pieces: group x ranges + range      */
    uint64_t inputs;         /* of a range                          */
    uint64_t each, all;      /* patches: of a group, of all images  */
};

static void sums_piece(uint64_t piece, uint32_t worker, void *context)
{
    const struct sums *self = context;
    const struct aq_conv_shape *shape = &self->args->shape;
    const struct cpu_winograd *kernels = self->cpu->winograd;
    const uint64_t wide = kernels->lanes * WINOGRAD_BLOCKS, C = shape->C, N = shape->N;
    const uint64_t group = piece / self->ranges, input = piece % self->ranges * self->inputs;
    const uint64_t begin = group * self->each, end = end_of(group, self->all, self->each);
    const struct planes x = planes_in(cpu_scratch(self->cpu, worker), kernels->lanes, self->inputs, PATCHES);
    const struct planes dy = planes_in(x.at + planes_floats(self->inputs, PATCHES), kernels->lanes, wide, PATCHES);
    float *sums = cpu_shared(self->cpu) + group * WINOGRAD_PLANES * C * N + input * N;
    for (uint64_t first = begin; first < end; first += PATCHES) {
        struct cpu_patches patches = {.height = shape->height,
                                      .width = shape->width,
                                      .C = C,
                                      .channel = input,
                                      .channels = self->inputs,
                                      .first = first,
                                      .count = first + PATCHES < end ? PATCHES : end - first,
                                      .plane = x.plane,
                                      .block = x.block};
        kernels->input(&patches, self->args->x, x.at);
        patches.C = N;
        patches.channels = wide;
        patches.plane = dy.plane;
        patches.block = dy.block;
        for (uint64_t n = 0; n < N; n += wide) {
            patches.channel = n;
            kernels->gradient(&patches, self->args->dy, dy.at);
            for (uint64_t plane = 0; plane < WINOGRAD_PLANES; plane++)
                kernels->sums(x.at + plane * x.plane, x.block, self->inputs / kernels->lanes, patches.count,
                              dy.at + plane * dy.plane, dy.block, sums + plane * C * N + n, N, first > begin);
        }
    }
}

/* Groups in order into the first one's place, for one input; then its gradients. */
static void gradients_piece(uint64_t input, uint32_t worker, void *context)
{
    (void)worker;
    const struct sums *self = context;
    const uint64_t C = self->args->shape.C, N = self->args->shape.N;
    float *sums = cpu_shared(self->cpu) + input * N;
    for (uint64_t group = 1; group < self->groups; group++)
        for (uint64_t plane = 0; plane < WINOGRAD_PLANES; plane++)
            self->cpu->rows->add(sums + plane * C * N, sums + (group * WINOGRAD_PLANES + plane) * C * N, AQ_F32, N);
    self->cpu->winograd->filter_gradient(sums, C * N, C, N, self->args->dw + input * N);
}

bool cpu_conv_weights_winograd(struct cpu_device *cpu, const struct aq_conv_weights *args)
{
    const struct aq_conv_shape *shape = &args->shape;
    if (!suits(cpu, shape)) return false;
    struct sums self = {.cpu = cpu, .args = args, .all = patches_of(shape)};
    self.inputs = shape->C % INPUTS == 0 ? INPUTS : cpu->winograd->lanes * WINOGRAD_BLOCKS;
    self.ranges = shape->C / self.inputs;
    const uint64_t fit = SHARED_FLOATS / (WINOGRAD_PLANES * shape->C * shape->N),
                   wanted = pieces_of(PIECES, self.ranges);
    self.each = pieces_of(self.all, wanted < fit ? wanted : fit);
    self.groups = pieces_of(self.all, self.each);
    cpu_pool_run(cpu->pool, self.groups * self.ranges, sums_piece, &self);
    cpu_pool_run(cpu->pool, shape->C, gradients_piece, &self);
    return true;
}
