/*
 * cpu_conv_dnnl.c -- convolutions by oneDNN's primitives, on pieces of the batch, one thread each.
 *
 * Images have oneDNN's layout nhwc, weights its hwio: both are read as they are. A primitive needs the weights in its
 * own order; they are reordered once per call, in the shared scratch. The cut of the batch depends only on the extents,
 * and so do the bits:
 *
 *     forward, backward   pieces of G images, at least PIXELS output pixels where G divides the batch
 *     weights             S groups of images, and O ranges of output channels where S is small: each a piece that sums
 *                         in the shared scratch; then the groups are added in order
 *
 * Primitives are made by the calling thread, and run by others: their scratch is ours (oneDNN's own would belong to the
 * thread that made them). oneDNN keeps the last 1,024. Written for oneDNN 2's C interface: with another one the general
 * way is taken.
 */
#include <oneapi/dnnl/dnnl.h>
#include <oneapi/dnnl/dnnl_version.h>
#include <string.h>

#include "cpu_conv.h"

#if DNNL_VERSION_MAJOR == 2

enum { PIXELS = 256, GROUPS = 16, GROUPS_FEW = 4, RANGES = 8, LANES = 4096 };

/* A primitive, and the layout of its weights. */
struct work {
    dnnl_engine_t engine;
    dnnl_primitive_desc_t about;
    dnnl_primitive_t run;
    dnnl_memory_desc_t x, y, weights, plain; /* plain: in our layout */
    dnnl_memory_desc_t scratch;
    size_t scratch_bytes;
};

static void work_close(struct work *work)
{
    if (work->run) dnnl_primitive_destroy(work->run);
    if (work->about) dnnl_primitive_desc_destroy(work->about);
    if (work->engine) dnnl_engine_destroy(work->engine);
}

/* oneDNN's operation on `samples` images and N of the output channels. */
static bool describe(const struct aq_conv_shape *shape, uint64_t samples, uint64_t N, struct work *work)
{
    const dnnl_dim_t height = (dnnl_dim_t)aq_conv_out(shape->height, shape->stride);
    const dnnl_dim_t width = (dnnl_dim_t)aq_conv_out(shape->width, shape->stride), K = (dnnl_dim_t)shape->K;
    const dnnl_dims_t x = {(dnnl_dim_t)samples, (dnnl_dim_t)shape->C, (dnnl_dim_t)shape->height,
                           (dnnl_dim_t)shape->width};
    const dnnl_dims_t y = {(dnnl_dim_t)samples, (dnnl_dim_t)N, height, width};
    const dnnl_dims_t weights = {(dnnl_dim_t)N, (dnnl_dim_t)shape->C, K, K};
    return dnnl_engine_create(&work->engine, dnnl_cpu, 0) == dnnl_success &&
           dnnl_memory_desc_init_by_tag(&work->x, 4, x, dnnl_f32, dnnl_nhwc) == dnnl_success &&
           dnnl_memory_desc_init_by_tag(&work->y, 4, y, dnnl_f32, dnnl_nhwc) == dnnl_success &&
           dnnl_memory_desc_init_by_tag(&work->weights, 4, weights, dnnl_f32, dnnl_format_tag_any) == dnnl_success &&
           dnnl_memory_desc_init_by_tag(&work->plain, 4, weights, dnnl_f32, dnnl_hwio) == dnnl_success;
}

enum direction { FORWARD, BACKWARD, WEIGHTS };

static bool work_open(const struct aq_conv_shape *shape, enum direction direction, uint64_t samples, uint64_t N,
                      struct work *work)
{
    const dnnl_dim_t stride = (dnnl_dim_t)shape->stride, half = (dnnl_dim_t)(shape->K / 2);
    const dnnl_dims_t strides = {stride, stride}, before = {half, half};
    /* The padding behind the last output pixel: only the zeroes that it still reads. */
    const dnnl_dim_t rows = (dnnl_dim_t)(aq_conv_out(shape->height, shape->stride) - 1) * stride;
    const dnnl_dim_t columns = (dnnl_dim_t)(aq_conv_out(shape->width, shape->stride) - 1) * stride;
    const dnnl_dims_t after = {rows + (dnnl_dim_t)shape->K - half - (dnnl_dim_t)shape->height,
                               columns + (dnnl_dim_t)shape->K - half - (dnnl_dim_t)shape->width};
    dnnl_convolution_desc_t forward, backward;
    dnnl_primitive_desc_t hint = NULL;
    dnnl_primitive_attr_t ours = NULL;
    dnnl_status_t status;
    cpu_dnnl_one_thread();
    *work = (struct work){0};
    if (!describe(shape, samples, N, work)) return false;
    status = dnnl_primitive_attr_create(&ours);
    if (status == dnnl_success) status = dnnl_primitive_attr_set_scratchpad_mode(ours, dnnl_scratchpad_mode_user);
    if (status == dnnl_success)
        status = dnnl_convolution_forward_desc_init(&forward, dnnl_forward_training, dnnl_convolution_direct, &work->x,
                                                    &work->weights, NULL, &work->y, strides, before, after);
    if (status == dnnl_success) status = dnnl_primitive_desc_create(&hint, &forward, ours, work->engine, NULL);
    if (status == dnnl_success && direction == BACKWARD)
        status = dnnl_convolution_backward_data_desc_init(&backward, dnnl_convolution_direct, &work->x, &work->weights,
                                                          &work->y, strides, before, after);
    if (status == dnnl_success && direction == WEIGHTS)
        status = dnnl_convolution_backward_weights_desc_init(&backward, dnnl_convolution_direct, &work->x,
                                                             &work->weights, NULL, &work->y, strides, before, after);
    if (direction == FORWARD) {
        work->about = hint;
    } else {
        if (status == dnnl_success)
            status = dnnl_primitive_desc_create(&work->about, &backward, ours, work->engine, hint);
        if (hint) dnnl_primitive_desc_destroy(hint);
    }
    if (ours) dnnl_primitive_attr_destroy(ours);
    if (status == dnnl_success) status = dnnl_primitive_create(&work->run, work->about);
    if (status != dnnl_success) return false;
    work->scratch = *dnnl_primitive_desc_query_md(work->about, dnnl_query_scratchpad_md, 0);
    work->scratch_bytes = dnnl_memory_desc_get_size(&work->scratch);
    work->weights = *dnnl_primitive_desc_query_md(
        work->about, direction == WEIGHTS ? dnnl_query_diff_weights_md : dnnl_query_weights_md, 0);
    return true;
}

struct operand {
    int argument;
    const dnnl_memory_desc_t *form;
    const void *at;
};

/* On this thread, until it is done. */
static void perform(dnnl_engine_t engine, dnnl_primitive_t primitive, const struct operand *operands, int count)
{
    dnnl_exec_arg_t arguments[4];
    dnnl_stream_t stream;
    cpu_dnnl_one_thread();
    dnnl_status_t status = dnnl_stream_create(&stream, engine, dnnl_stream_default_flags);
    for (int i = 0; i < count && status == dnnl_success; i++) {
        arguments[i].arg = operands[i].argument;
        status = dnnl_memory_create(&arguments[i].memory, operands[i].form, engine, (void *)(uintptr_t)operands[i].at);
    }
    if (status == dnnl_success) status = dnnl_primitive_execute(primitive, stream, count, arguments);
    if (status == dnnl_success) status = dnnl_stream_wait(stream);
    AQ_ASSERT(status == dnnl_success); /* all that may be refused was, when the primitive was made */
    for (int i = 0; i < count; i++)
        dnnl_memory_destroy(arguments[i].memory);
    dnnl_stream_destroy(stream);
}

/* Values from one order to another; add: += . */
static bool reorder(const struct work *work, const dnnl_memory_desc_t *from_form, const float *from,
                    const dnnl_memory_desc_t *to_form, float *to, bool add)
{
    dnnl_primitive_attr_t attributes = NULL;
    dnnl_post_ops_t after = NULL;
    dnnl_primitive_desc_t about = NULL;
    dnnl_primitive_t run = NULL;
    dnnl_status_t status = dnnl_primitive_attr_create(&attributes);
    if (status == dnnl_success && add) status = dnnl_post_ops_create(&after);
    if (status == dnnl_success && add) status = dnnl_post_ops_append_sum(after, 1.0f);
    if (status == dnnl_success && add) status = dnnl_primitive_attr_set_post_ops(attributes, after);
    if (status == dnnl_success)
        status = dnnl_reorder_primitive_desc_create(&about, from_form, work->engine, to_form, work->engine, attributes);
    if (status == dnnl_success) status = dnnl_primitive_create(&run, about);
    if (status == dnnl_success) {
        const struct operand operands[] = {{DNNL_ARG_FROM, from_form, from}, {DNNL_ARG_TO, to_form, to}};
        perform(work->engine, run, operands, 2);
    }
    if (run) dnnl_primitive_destroy(run);
    if (about) dnnl_primitive_desc_destroy(about);
    if (after) dnnl_post_ops_destroy(after);
    if (attributes) dnnl_primitive_attr_destroy(attributes);
    return status == dnnl_success;
}

static uint64_t divisor_below(uint64_t count, uint64_t most)
{
    uint64_t best = count < most ? count : most;
    while (best > 1 && count % best)
        best--;
    return best;
}

/* --- forward and backward --------------------------------------------------------------------------------------- */

struct images {
    struct cpu_device *cpu;
    struct work work;
    enum direction direction;
    const float *in, *weights;
    float *out;
    uint64_t in_values, out_values; /* of a piece */
};

static void images_piece(uint64_t piece, uint32_t worker, void *context)
{
    const struct images *self = context;
    const bool forward = self->direction == FORWARD;
    const struct operand operands[] = {{forward ? DNNL_ARG_SRC : DNNL_ARG_DIFF_DST,
                                        forward ? &self->work.x : &self->work.y, self->in + piece * self->in_values},
                                       {DNNL_ARG_WEIGHTS, &self->work.weights, self->weights},
                                       {forward ? DNNL_ARG_DST : DNNL_ARG_DIFF_SRC,
                                        forward ? &self->work.y : &self->work.x, self->out + piece * self->out_values},
                                       {DNNL_ARG_SCRATCHPAD, &self->work.scratch, cpu_scratch(self->cpu, worker)}};
    perform(self->work.engine, self->work.run, operands, 4);
}

static bool images_run(struct cpu_device *cpu, const struct aq_conv_shape *shape, enum direction direction,
                       const float *in, const float *weights, float *out)
{
    const uint64_t pixels = aq_conv_out(shape->height, shape->stride) * aq_conv_out(shape->width, shape->stride);
    const uint64_t each = divisor_below(shape->samples, (PIXELS + pixels - 1) / pixels);
    const uint64_t x = each * shape->height * shape->width * shape->C, y = each * pixels * shape->N;
    struct images self = {.cpu = cpu,
                          .direction = direction,
                          .in = in,
                          .weights = cpu_shared(cpu),
                          .out = out,
                          .in_values = direction == FORWARD ? x : y,
                          .out_values = direction == FORWARD ? y : x};
    bool can = work_open(shape, direction, each, shape->N, &self.work) && self.work.scratch_bytes <= CPU_WORKER_BYTES &&
               dnnl_memory_desc_get_size(&self.work.weights) <= CPU_SHARED_BYTES &&
               reorder(&self.work, &self.work.plain, weights, &self.work.weights, cpu_shared(cpu), false);
    if (can) cpu_pool_run(cpu->pool, shape->samples / each, images_piece, &self);
    work_close(&self.work);
    return can;
}

bool cpu_conv_dnnl(struct cpu_device *cpu, const struct aq_conv *args)
{
    return images_run(cpu, &args->shape, FORWARD, args->x, args->w, args->y);
}

bool cpu_conv_backward_dnnl(struct cpu_device *cpu, const struct aq_conv_backward *args)
{
    return images_run(cpu, &args->shape, BACKWARD, args->dy, args->w, args->dx);
}

/* --- weights ---------------------------------------------------------------------------------------------------- */

struct sums {
    struct cpu_device *cpu;
    const struct aq_conv_weights *args;
    struct work work;
    uint64_t groups, ranges; /* pieces: group x ranges + range */
    uint64_t each;           /* images of a group              */
    uint64_t channels;       /* of a range                     */
    uint64_t pixels;         /* of an output image             */
    uint64_t stride;         /* floats of a piece's sums       */
    uint64_t copied;         /* floats of gradients in the worker's scratch: of a range, or 0 */
};

static void sums_piece(uint64_t piece, uint32_t worker, void *context)
{
    const struct sums *self = context;
    const struct aq_conv_shape *shape = &self->args->shape;
    const uint64_t group = piece / self->ranges, range = piece % self->ranges, rows = self->each * self->pixels;
    const float *dy = self->args->dy + group * rows * shape->N;
    if (self->ranges > 1) { /* only these channels, side by side */
        float *mine = cpu_scratch(self->cpu, worker);
        for (uint64_t row = 0; row < rows; row++)
            memcpy(mine + row * self->channels, dy + row * shape->N + range * self->channels,
                   self->channels * sizeof *dy);
        dy = mine;
    }
    const struct operand operands[] = {
        {DNNL_ARG_SRC, &self->work.x, self->args->x + group * self->each * shape->height * shape->width * shape->C},
        {DNNL_ARG_DIFF_DST, &self->work.y, dy},
        {DNNL_ARG_DIFF_WEIGHTS, &self->work.weights, cpu_shared(self->cpu) + piece * self->stride},
        {DNNL_ARG_SCRATCHPAD, &self->work.scratch, cpu_scratch(self->cpu, worker) + self->copied}};
    perform(self->work.engine, self->work.run, operands, 4);
}

/* Group after group into the first one's place: LANES floats of all ranges. */
static void sums_add(uint64_t piece, uint32_t worker, void *context)
{
    (void)worker;
    const struct sums *self = context;
    const uint64_t floats = self->ranges * self->stride;
    float *to = cpu_shared(self->cpu);
    for (uint64_t group = 1; group < self->groups; group++)
        for (uint64_t i = piece * LANES; i < end_of(piece, floats, LANES); i++)
            to[i] += to[group * floats + i];
}

/* Few groups where the weights are large: then ranges of channels, which must fit a worker's scratch. */
static bool sums_cut(struct sums *self)
{
    const struct aq_conv_shape *shape = &self->args->shape;
    const uint64_t bytes = shape->K * shape->K * shape->C * shape->N * sizeof(float);
    const uint64_t fit = CPU_SHARED_BYTES / (bytes + bytes / 4); /* its own order may need a little more */
    const uint64_t most = fit < GROUPS ? fit : GROUPS;
    if (fit == 0) return false;
    self->groups = divisor_below(shape->samples, most);
    self->ranges = self->groups < GROUPS_FEW && shape->N % (RANGES * RANGES) == 0 ? RANGES : 1;
    self->each = shape->samples / self->groups;
    self->channels = shape->N / self->ranges;
    self->pixels = aq_conv_out(shape->height, shape->stride) * aq_conv_out(shape->width, shape->stride);
    const uint64_t line = AQ_ALIGN / sizeof(float);
    if (self->ranges > 1) self->copied = (self->each * self->pixels * self->channels + line - 1) / line * line;
    return true;
}

bool cpu_conv_weights_dnnl(struct cpu_device *cpu, const struct aq_conv_weights *args)
{
    struct sums self = {.cpu = cpu, .args = args};
    if (!sums_cut(&self)) return false;
    bool can = work_open(&args->shape, WEIGHTS, self.each, self.channels, &self.work);
    if (can) {
        const uint64_t line = AQ_ALIGN / sizeof(float);
        self.stride = (dnnl_memory_desc_get_size(&self.work.weights) / sizeof(float) + line - 1) / line * line;
        can = self.groups * self.ranges * self.stride * sizeof(float) <= CPU_SHARED_BYTES &&
              self.copied * sizeof(float) + self.work.scratch_bytes <= CPU_WORKER_BYTES;
    }
    if (can) {
        cpu_pool_run(cpu->pool, self.groups * self.ranges, sums_piece, &self);
        if (self.groups > 1) cpu_pool_run(cpu->pool, pieces_of(self.ranges * self.stride, LANES), sums_add, &self);
        dnnl_memory_desc_t part;
        const dnnl_dims_t extent = {(dnnl_dim_t)self.channels, (dnnl_dim_t)args->shape.C, (dnnl_dim_t)args->shape.K,
                                    (dnnl_dim_t)args->shape.K};
        const dnnl_dims_t strides = {1, (dnnl_dim_t)args->shape.N,
                                     (dnnl_dim_t)(args->shape.K * args->shape.C * args->shape.N),
                                     (dnnl_dim_t)(args->shape.C * args->shape.N)};
        can = dnnl_memory_desc_init_by_strides(&part, 4, extent, dnnl_f32, strides) == dnnl_success;
        for (uint64_t range = 0; range < self.ranges && can; range++) {
            can = reorder(&self.work, &self.work.weights, cpu_shared(cpu) + range * self.stride, &part,
                          args->dw + range * self.channels, true);
            AQ_ASSERT(can || range == 0);
        }
    }
    work_close(&self.work);
    return can;
}

#else

bool cpu_conv_dnnl(struct cpu_device *cpu, const struct aq_conv *args)
{
    (void)cpu;
    (void)args;
    return false;
}

bool cpu_conv_backward_dnnl(struct cpu_device *cpu, const struct aq_conv_backward *args)
{
    (void)cpu;
    (void)args;
    return false;
}

bool cpu_conv_weights_dnnl(struct cpu_device *cpu, const struct aq_conv_weights *args)
{
    (void)cpu;
    (void)args;
    return false;
}

#endif
