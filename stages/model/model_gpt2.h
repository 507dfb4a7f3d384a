/*
 * model_gpt2.h -- what the files of the GPT-2 model share.
 *
 * One block, pre-LN (Radford et al. 2019), with D as dropout:
 *
 *     n1 = LN1(x)      qkv = n1 Wqkv + b      a = attention(qkv)      x' = x + D(a Wo + b)
 *     n2 = LN2(x')     u = n2 Wfc + b         g = gelu(u)             x'' = x' + D(g Wpr + b)
 *
 * Map: model_gpt2.c table, names and tensors; model_gpt2_memory.c where every buffer lies; model_gpt2_forward.c and
 * model_gpt2_backward.c the mathematics. "type" is fp32, bf16 or fp16: that of the operands of matrix products between
 * layers.
 */
#ifndef MODEL_GPT2_H
#define MODEL_GPT2_H

#include "stage_model.h"

enum gpt2_site {
    GPT2_SITE_ATTENTION = 0, /* the weights of attention (embedding: its sum) */
    GPT2_SITE_PROJECTION = 1,
    GPT2_SITE_MLP = 2,
    GPT2_SITES = 3
};

/* Parameters or gradients of one block. */
struct gpt2_block {
    float *norm1_weight, *norm1_bias, *qkv_weight, *qkv_bias, *projection_weight, *projection_bias;
    float *norm2_weight, *norm2_bias, *fc_weight, *fc_bias, *mlp_weight, *mlp_bias;
};

struct gpt2_tensors {
    float *token_table, *position_table; /* first stage */
    struct gpt2_block *blocks;
    float *norm_weight, *norm_bias, *head; /* last stage; head is token_table where tied */
};

/* What backward of one block wants from its forward, besides the block's input. */
struct gpt2_kept {
    void *norm1, *qkv, *attention, *norm2, *before_gelu, *after_gelu; /* type */
    float *mean1, *rstd1, *mean2, *rstd2, *lse;
    float *middle; /* x' */
};

struct gpt2_slot {
    float **x;              /* input of each block, then the input of what follows the last      */
    struct gpt2_kept *kept; /* of each block; all the same where it is made again in backward    */
    void *norm;             /* final norm, type */
    float *mean, *rstd, *losses;
    int32_t *tokens, *targets; /* device */
    struct aq_rng_key *keys;   /* (layer of the stage, site, sample): dropout, device */
    /* The same three in pinned memory: written here, copied by the stream, and not written again before it has passed.
     */
    int32_t *host_tokens, *host_targets;
    float *host_losses;
    struct aq_rng_key *host_keys;
    struct aq_event *copied;
    uint32_t samples, T; /* T: tokens of a sample in this forward */
    float loss_scale;
    bool dropped; /* dropout was on */
};

struct gpt2_work {
    float *dx;        /* gradient of the residual stream, where the caller gives no room */
    float *dnorm;     /* gradient of a layer norm's output                               */
    void *dout;       /* gradient of what a residual adds, type                          */
    void *dattention; /* gradient of attention's output, type                           */
    void *du;         /* gradient before GELU, type                                      */
    float *dqkv;
    uint16_t *dqkv_rounded; /* the same in 16 bits, where products are of them */
    float *logits; /* a chunk of rows; in backward their gradient */
    void *dlogits; /* the gradient of all rows, type, or NULL       */
};

struct gpt2 {
    struct aq_stage *stage;
    struct aq_device *device;
    bool first, last;
    uint32_t first_block, blocks; /* of the stage */
    enum aq_element type, compute; /* of what lies between products, and of the products */
    struct gpt2_tensors weights, gradients;
    struct gpt2_slot *slots;
    struct gpt2_work work;
    uint64_t head_rows, head_stride; /* rows of a chunk of logits; floats of a row */
    uint32_t logits_slot;            /* whose gradient of logits lies in the workspace, or UINT32_MAX */
    void *host;                      /* pinned: all of the slots' host_* */
    size_t host_bytes;
};

struct gpt2_shape {
    bool first, last, inference;
    bool shared; /* one set of kept activations serves all blocks */
    bool keeps_gradient; /* of all logits */
    uint32_t first_block, blocks;
    uint64_t B, T, C, H, V, rows;
    uint64_t head_rows, head_stride;
    enum aq_element type;
};
struct gpt2_shape gpt2_shape(const struct aq_stage_config *config);

/* Places one slot (its arrays x and kept exist already; NULL while measuring) or the workspace. */
void gpt2_place_slot(const struct gpt2_shape *shape, struct aq_arena *arena, struct gpt2_slot *slot,
                     const struct gpt2_kept *shared);
void gpt2_place_work(const struct gpt2_shape *shape, struct aq_arena *arena, struct gpt2_work *work,
                     struct gpt2_kept *shared);
/* Places a slot's pinned memory (slot NULL: only measures). */
void gpt2_place_host(const struct gpt2_shape *shape, struct aq_arena *arena, struct gpt2_slot *slot);
void gpt2_measure(const struct aq_stage_config *config, struct stage_memory *out);
void gpt2_publish_name(const char *tensor, char *out, size_t bytes);
enum aq_status gpt2_publish_config(const struct aq_model_config *model, bool tied, int32_t end_of_text, char *json,
                                   size_t *count);
enum aq_status gpt2_open(struct aq_stage *stage, void **state);
void gpt2_close(void *state);

/* The forward of one block: x in, y out, `kept` written. y NULL: only `kept`, for a backward that makes it again. */
enum aq_status gpt2_block_forward(const struct gpt2 *gpt2, const struct gpt2_slot *slot, uint32_t block, const float *x,
                                  float *y, const struct gpt2_kept *kept, struct aq_stream *stream);
struct aq_dropout gpt2_dropout(const struct gpt2 *gpt2, const struct gpt2_slot *slot, uint32_t layer,
                               enum gpt2_site site);

/* Where the gradient of the logits of row `first` on lies, and how many elements its rows are apart. */
void *gpt2_dlogits(const struct gpt2 *gpt2, uint64_t first, uint64_t *stride);
/* Logits of rows [first, first+rows) and their losses; their gradient too, where `gradient`. */
enum aq_status gpt2_head_chunk(const struct gpt2 *gpt2, const struct gpt2_slot *slot, uint64_t first, uint64_t rows,
                               bool gradient, struct aq_stream *stream);

enum aq_status gpt2_forward(void *state, uint32_t slot, const struct aq_stage_input *input, float *y,
                            struct aq_stage_loss *loss, struct aq_stream *stream);
enum aq_status gpt2_backward(void *state, uint32_t slot, const float *dy, float *dx, struct aq_stream *stream);
void gpt2_loss(void *state, uint32_t slot, struct aq_stage_loss *out);
enum aq_status gpt2_logits(void *state, uint32_t slot, uint32_t position, float *logits, struct aq_stream *stream);

/* Weights as products read them: fp32, or the device's copy in 16 bits. */
struct gpt2_operand {
    const void *at;
    enum aq_element type;
};

static inline struct gpt2_operand gpt2_operand(const struct gpt2 *gpt2, const float *weights)
{
    const struct aq_stage *stage = gpt2->stage;
    if (!stage->rounded) return (struct gpt2_operand){weights, AQ_F32};
    return (struct gpt2_operand){stage->rounded + (weights - stage->parameters), gpt2->type};
}

#endif
