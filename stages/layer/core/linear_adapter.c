/*
 * linear_adapter.c -- low-rank adapters of a layer's products (Hu et al. 2021, LoRA, section 4.1), wrapped around
 * linear.c. A is (rank, in), B (out, rank), s = alpha / rank, D dropout of lora.dropout. Rank and s are the layer's, by
 * tensor (struct layer):
 *
 *     y += s (D(x) A^T) B^T        dx += s D'((dy B) A)        dA += s (dy B)^T D(x)        dB += s dy^T (D(x) A^T)
 *
 * Forward and the input's gradient make their share first, fp32, and hand it to the product of the base weights as a
 * bias that has a row for each row (struct aq_matmul), so that it is added before what comes after the product. x A^T
 * is made again for the weights' gradients: it costs rank / out of the product, and a slot keeps nothing for it. So is
 * D(x): each adapter has its own mask, and draws it again.
 */
#include "linear.h"

/* A matrix as an operand of a product. */
struct factor {
    const void *at;
    enum aq_element type;
    uint64_t stride;
    bool transposed;
};

static struct factor rows_of(const struct layer_run *run, struct linear_rows rows, bool transposed)
{
    return (struct factor){rows.at, stage_type(run->config->precision), rows.stride, transposed};
}

static struct factor low_of(const struct layer_run *run, uint32_t rank, bool transposed)
{
    return (struct factor){layer_adapter_memory(run->stage).low, AQ_F32, rank, transposed};
}

/* A tensor of the layer, as products read it. */
static struct factor tensor_of(const struct layer_run *run, uint32_t tensor, uint64_t columns, bool transposed)
{
    struct factor factor = {.stride = columns, .transposed = transposed};
    factor.at = layer_operand(run, run->w[tensor], &factor.type);
    return factor;
}

/* to: where it goes (fp32), with its stride, its bias, whether it is added; sizes and operands are filled in. */
static enum aq_status product(const struct layer_run *run, uint64_t M, uint64_t N, uint64_t K, struct factor a,
                              struct factor b, struct aq_matmul to)
{
    to.M = M;
    to.N = N;
    to.K = K;
    to.a = a.at;
    to.a_type = a.type;
    to.a_stride = a.stride;
    to.a_transposed = a.transposed;
    to.b = b.at;
    to.b_type = b.type;
    to.b_stride = b.stride;
    to.b_transposed = b.transposed;
    to.compute = stage_compute(run->config->precision);
    to.c_type = AQ_F32;
    return aq_device_matmul(run->device, &to, run->stream);
}

/* low = s times rows (stride, K columns) op(factor), (rows, rank of the part's adapter). */
static enum aq_status lower(const struct layer_run *run, const struct linear_part *part, uint64_t rows, uint64_t K,
                            struct linear_rows x, struct factor by)
{
    const uint32_t rank = linear_rank(run->layer, part);
    float *low = layer_adapter_memory(run->stage).low;
    AQ_TRY(product(run, rows, rank, K, rows_of(run, x, false), by, (struct aq_matmul){.c = low, .c_stride = rank}));
    const struct aq_scale scale = {.x = low, .count = rows * rank, .factor = linear_scale(run->layer, part)};
    return scale.factor == 1.0f ? AQ_OK : aq_device_scale(run->device, &scale, run->stream);
}

/* The mask of a part's adapter; its keys are of this micro-batch. */
static struct aq_dropout mask_of(const struct layer_run *run, const struct linear *linear,
                                 const struct linear_part *part)
{
    if (!run->adapter_keys) return (struct aq_dropout){0};
    const uint64_t row = linear_a_of(run, part) - run->layer->adapter_first + (linear->rows ? 1 : 0);
    return (struct aq_dropout){.probability = run->config->lora.dropout,
                               .keys = run->adapter_keys + row * run->config->B};
}

/* Rows of one mask. */
static uint64_t mask_rows(const struct layer_run *run, const struct linear *linear, uint64_t rows)
{
    return linear->rows ? rows : run->tokens;
}

/* *x becomes what the part's adapter reads: D(x). */
static enum aq_status drop(const struct layer_run *run, const struct linear *linear, const struct linear_part *part,
                           uint64_t rows, struct linear_rows *x)
{
    const uint64_t of = mask_rows(run, linear, rows);
    const enum aq_element type = stage_type(run->config->precision);
    const struct aq_dropout_apply args = {.samples = rows / of,
                                          .sample_elements = of * linear->in,
                                          .x = x->at,
                                          .x_type = type,
                                          .y = layer_adapter_memory(run->stage).dropped,
                                          .y_type = type,
                                          .dropout = mask_of(run, linear, part)};
    if (!run->adapter_keys) return AQ_OK;
    AQ_ASSERT(x->stride == linear->in);
    x->at = args.y;
    return aq_device_dropout(run->device, &args, run->stream);
}

/* low = s x A^T, of what the adapter reads */
static enum aq_status lower_x(const struct layer_run *run, const struct linear *linear, const struct linear_part *part,
                              uint64_t rows, struct linear_rows x)
{
    return lower(run, part, rows, linear->in, x, tensor_of(run, linear_a_of(run, part), linear->in, true));
}

/* low = s dy B, dy from that column on */
static enum aq_status lower_dy(const struct layer_run *run, const struct linear_part *part, uint64_t rows,
                               struct linear_rows dy, uint64_t column)
{
    const size_t bytes = aq_element_bytes(stage_type(run->config->precision));
    const struct linear_rows of = {(const uint8_t *)dy.at + column * bytes, dy.stride};
    const uint32_t rank = linear_rank(run->layer, part);
    return lower(run, part, rows, part->out, of, tensor_of(run, linear_a_of(run, part) + 1, rank, false));
}

enum aq_status linear_adapter_forward(const struct layer_run *run, const struct linear *linear,
                                      const struct linear_span *span, uint64_t rows, struct linear_rows x,
                                      struct aq_matmul *with)
{
    float *sum = layer_adapter_memory(run->stage).sum;
    if (!linear_adapted(run->layer, &linear->parts[span->first]) || run->config->lora.dora) return AQ_OK;
    if (x.stride == 0) x.stride = linear->in;
    uint64_t column = 0;
    for (uint32_t i = span->first; i < span->first + span->count; i++) {
        const struct linear_part *part = &linear->parts[i];
        const uint32_t rank = linear_rank(run->layer, part);
        struct linear_rows read = x;
        AQ_TRY(drop(run, linear, part, rows, &read));
        AQ_TRY(lower_x(run, linear, part, rows, read));
        AQ_TRY(product(run, rows, part->out, rank, low_of(run, rank, false),
                       tensor_of(run, linear_a_of(run, part) + 1, rank, true),
                       (struct aq_matmul){.c = sum + column,
                                          .c_stride = span->out,
                                          .bias = part->bias == LAYER_NO_TENSOR ? NULL : run->w[part->bias]}));
        column += part->out;
    }
    with->bias = sum;
    with->bias_stride = span->out;
    with->bias_rounded = NULL;
    return AQ_OK;
}

/* Adds the share of `low` (s dy B) in the gradient of a part's input to c; the first one is written. */
static enum aq_status raise_x(const struct layer_run *run, const struct linear *linear, const struct linear_part *part,
                              uint64_t rows, bool first, struct aq_matmul to)
{
    const uint32_t rank = linear_rank(run->layer, part);
    const struct factor low = low_of(run, rank, false);
    const struct factor a = tensor_of(run, linear_a_of(run, part), linear->in, false);
    const uint64_t of = mask_rows(run, linear, rows);
    float *masked = layer_adapter_memory(run->stage).dropped;
    const struct aq_dropout_apply args = {.samples = rows / of,
                                          .sample_elements = of * linear->in,
                                          .x = masked,
                                          .y = to.c,
                                          .dropout = mask_of(run, linear, part),
                                          .add = !first};
    to.accumulate = !first;
    if (!run->adapter_keys) return product(run, rows, linear->in, rank, low, a, to);
    AQ_ASSERT(to.c_stride == linear->in);
    AQ_TRY(product(run, rows, linear->in, rank, low, a,
                   (struct aq_matmul){.c = masked, .c_stride = linear->in}));
    return aq_device_dropout(run->device, &args, run->stream);
}

enum aq_status linear_adapter_input_gradient(const struct layer_run *run, const struct linear *linear, uint64_t rows,
                                             struct linear_rows dy, struct aq_matmul *with)
{
    float *sum = layer_adapter_memory(run->stage).sum;
    const bool adds = with->accumulate; /* c holds a sum: theirs goes there, too */
    const struct aq_matmul to = {.c = adds ? with->c : sum, .c_stride = adds ? with->c_stride : linear->in};
    if (dy.stride == 0) dy.stride = linear_out(linear);
    uint64_t column = 0;
    bool any = false;
    for (uint32_t i = 0; i < linear->count; column += linear->parts[i++].out) {
        const struct linear_part *part = &linear->parts[i];
        if (!linear_adapted(run->layer, part) || run->config->lora.dora) continue;
        AQ_TRY(lower_dy(run, part, rows, dy, column));
        AQ_TRY(raise_x(run, linear, part, rows, !adds && !any, to));
        any = true;
    }
    if (!any || adds) return AQ_OK;
    with->bias = sum;
    with->bias_stride = linear->in;
    return AQ_OK;
}

enum aq_status linear_adapter_weight_gradient(const struct layer_run *run, const struct linear *linear, uint64_t rows,
                                              struct linear_rows x, struct linear_rows dy)
{
    const size_t bytes = aq_element_bytes(stage_type(run->config->precision));
    uint64_t column = 0;
    for (uint32_t i = 0; i < linear->count; column += linear->parts[i++].out) {
        const struct linear_part *part = &linear->parts[i];
        const uint32_t rank = linear_rank(run->layer, part);
        if (!linear_adapted(run->layer, part) || run->config->lora.dora) continue;
        const struct linear_rows of = {(const uint8_t *)dy.at + column * bytes, dy.stride};
        const uint32_t a = linear_a_of(run, part);
        struct linear_rows read = x;
        AQ_TRY(drop(run, linear, part, rows, &read));
        AQ_TRY(lower_x(run, linear, part, rows, read));
        AQ_TRY(product(run, part->out, rank, rows, rows_of(run, of, true), low_of(run, rank, false),
                       (struct aq_matmul){.c = run->g[a + 1], .c_stride = rank, .accumulate = true}));
        AQ_TRY(lower_dy(run, part, rows, dy, column));
        AQ_TRY(product(run, rank, linear->in, rows, low_of(run, rank, true), rows_of(run, read, false),
                       (struct aq_matmul){.c = run->g[a], .c_stride = linear->in, .accumulate = true}));
    }
    return AQ_OK;
}

/*
 * (x A) B; in backward the gradients of A and B, with x A and dy B once more, and (dy B) A if the gradient passes on.
 * With magnitudes A B wherever the matrix is wanted, and in backward the gradient of the matrix.
 */
void linear_adapter_flops(const struct layer *layer, const struct linear *linear, double rows,
                          const struct aq_lora_config *lora, struct layer_flops *out)
{
    const bool on = linear_goes_on(layer, linear);
    for (uint32_t i = 0; i < linear->count; i++) {
        if (!linear_adapted(layer, &linear->parts[i])) continue;
        const double rank = linear_rank(layer, &linear->parts[i]);
        const double low = 2.0 * rows * rank * (double)(linear->in + linear->parts[i].out);
        const double whole = 2.0 * (double)linear->in * (double)linear->parts[i].out, made = whole * rank;
        const double weights = lora->dora ? rows * whole + 3 * made : 2 * low;
        out->forward += lora->dora ? made : low;
        out->backward += weights + (on ? (lora->dora ? made : low) : 0);
        out->weights += weights;
    }
}
