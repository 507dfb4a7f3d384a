/*
 * linear.h -- y = x W (+ b) as layers do it; private to stages/.
 *
 * Every product of a layer with its weights goes through these functions: forward, the gradient of x, the gradients of
 * W and b. Low-rank adapters (struct aq_lora_config, linear_adapter.c) are therefore wrapped around these, once for all
 * layers: forward adds s (x A) B before what comes after the product, the input's gradient s (dy B) A.
 *
 * W is one tensor of the layer, or several that read the same x and whose outputs lie side by side in y (q, k and v;
 * gate and up): its parts. Parts that lie one after another in memory are one product. If other tensors are between
 * them (train.freeze moves frozen ones) they are multiplied one by one: y and the gradients of W have the same bits, dx
 * is summed part by part. Only the tensors' names decide which, never the cut.
 *
 * Weights are stored (in, out), as GPT-2 has them, or (out, in), as nn.Linear has them (out_in). Several parts are
 * out_in.
 */
#ifndef LINEAR_H
#define LINEAR_H

#include "layer.h"

enum { LINEAR_PARTS_MAX = 3 };

struct linear_part {
    uint32_t weight, bias; /* tensors of the layer; bias LAYER_NO_TENSOR: none */
    uint64_t out;          /* columns of y                                     */
};

struct linear {
    uint64_t in;   /* columns of x                                                                   */
    uint64_t rows; /* 0: those of the samples; else at most that many, which are of no sample: their masks are the
                      first sample's                                                                 */
    bool out_in;
    uint32_t count;
    struct linear_part parts[LINEAR_PARTS_MAX];
};

/* A matrix: of x and dy the stage's type. stride 0: its rows lie one after another. */
struct linear_rows {
    const void *at;
    uint64_t stride;
};

/* A product's output and its epilogue (struct aq_matmul). stride 0: as above. */
struct linear_to {
    void *c;
    enum aq_element type;
    uint64_t stride;
    enum aq_matmul_after after;
    void *other;
    struct aq_dropout dropout;
    bool add; /* of an input's gradient: dx += , in fp32, and nothing comes after */
};

/* One tensor and its bias, or LAYER_NO_TENSOR. */
static inline struct linear linear_of(uint64_t in, uint64_t out, bool out_in, uint32_t weight, uint32_t bias)
{
    return (struct linear){.in = in, .out_in = out_in, .count = 1, .parts = {{weight, bias, out}}};
}

/* Columns of y. */
uint64_t linear_out(const struct linear *linear);

/* y = after(x W + b). After AQ_AFTER_RESIDUAL with dropout there is one part. */
enum aq_status linear_forward(const struct layer_run *run, const struct linear *linear, uint64_t rows,
                              struct linear_rows x, const struct linear_to *y);

/* Does anything before these weights need the gradient of x? */
static inline bool linear_goes_on(const struct layer *layer, const struct linear *linear)
{
    return layer_goes_on(layer, linear->parts[0].weight);
}

/* dx = after(dy W^T), written or added to. Of several parts dx is fp32 and nothing comes after. */
enum aq_status linear_input_gradient(const struct layer_run *run, const struct linear *linear, uint64_t rows,
                                     struct linear_rows dy, const struct linear_to *dx);

/* dW += x^T dy, of what trains. */
enum aq_status linear_weight_gradient(const struct layer_run *run, const struct linear *linear, uint64_t rows,
                                      struct linear_rows x, struct linear_rows dy);

/* The same, and db += the sums of dy's columns: in the product, where the device can. */
enum aq_status linear_gradients(const struct layer_run *run, const struct linear *linear, uint64_t rows,
                                struct linear_rows x, struct linear_rows dy);

/* Adds the operations of forward and backward of that many rows. */
void linear_flops(const struct layer *layer, const struct linear *linear, double rows, struct layer_flops *out);

/* The same of its adapters. */
void linear_adapter_flops(const struct layer *layer, const struct linear *linear, double rows,
                          const struct aq_lora_config *lora, struct layer_flops *out);

/* ---- what linear.c, linear_adapter.c and linear_magnitude.c share ---- */

/* Weights as a product reads them. */
struct linear_weights {
    const void *at;
    enum aq_element type;
    bool out_in;
};

/* Parts first .. first + count - 1, which are one product. */
struct linear_span {
    uint32_t first, count;
    uint64_t column, out; /* of y: the first, how many */
    uint32_t weight, bias;
};

/* Has the part's weight an adapter? Those of a span all have one, or none has. */
static inline bool linear_adapted(const struct layer *layer, const struct linear_part *part)
{
    return layer->adapted >> part->weight & 1;
}

/* Of its adapter: the rank, and the factor of its share. */
static inline uint32_t linear_rank(const struct layer *layer, const struct linear_part *part)
{
    return layer->ranks[part->weight];
}

static inline float linear_scale(const struct layer *layer, const struct linear_part *part)
{
    return layer->scales[part->weight];
}

/* Is the part's matrix made again for each product, with trained lengths of rows (aq_lora_config.dora)? */
static inline bool linear_magnified(const struct layer_run *run, const struct linear_part *part)
{
    return run->config->lora.dora && linear_adapted(run->layer, part);
}

/* The tensor A of a part's adapter; B and the magnitude are behind it. */
static inline uint32_t linear_a_of(const struct layer_run *run, const struct linear_part *part)
{
    return run->layer->adapters[part->weight];
}

/* linear_magnitude.c: *w, the part's weights, becomes W'. */
enum aq_status linear_magnify(const struct layer_run *run, const struct linear *linear, const struct linear_part *part,
                              struct linear_weights *w);

/* linear_magnitude.c: dA, dB, dm += of a part with the weights w. dy: its columns. Strides are not 0. */
enum aq_status linear_magnitude_gradients(const struct layer_run *run, const struct linear *linear,
                                          const struct linear_part *part, const struct linear_weights *w, uint64_t rows,
                                          struct linear_rows x, struct linear_rows dy);

/* If the parts of a span are adapted: the product adds the output of their adapters, with the bias, to y. */
enum aq_status linear_adapter_forward(const struct layer_run *run, const struct linear *linear,
                                      const struct linear_span *span, uint64_t rows, struct linear_rows x,
                                      struct aq_matmul *product);

/* If any part is adapted: the share of all adapters in dx is added first, or by the first product. */
enum aq_status linear_adapter_input_gradient(const struct layer_run *run, const struct linear *linear, uint64_t rows,
                                             struct linear_rows dy, struct aq_matmul *product);

/* dA, dB += of all adapted parts; of magnified ones nothing. Strides are not 0. */
enum aq_status linear_adapter_weight_gradient(const struct layer_run *run, const struct linear *linear, uint64_t rows,
                                              struct linear_rows x, struct linear_rows dy);

#endif
