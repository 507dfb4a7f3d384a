/*
 * decoder.h -- what the layers of a language model, and of an encoder of the same blocks, share: private to stages/.
 *
 * A family of models is a constant form (struct decoder_form): which norms, which activation, how weights lie, and what
 * tensors are called. Sizes, and whether a configuration has biases of q, k, v or norms of heads, come from the
 * configuration. Both give the shape of a block (struct decoder_shape), computed again wherever it is needed.
 *
 *     GPT-2            layer norms, a table of positions, GELU, biases, weights (in, out)
 *     Llama and kin    RMS norms, heads that turn, a gate, no biases or those of q, k, v; weights (out, in)
 *     Gemma 3          the same with norms behind the branches, too, and weights of norms less 1; a scaled embedding
 *     Gemma 2          the same without norms of heads, with soft caps of scores and logits
 *     OLMo 2, EXAONE 4 the same with norms only behind the branches
 *     LFM2             the same, but most blocks have a short convolution in the place of attention
 *     Granite          Llama with four multipliers: of embedding, scores, branches and logits
 *     Qwen3.5          Qwen3 whose attention has a gate, in one block of several; the others have the gated delta rule
 *                      (decoder_delta.c); weights of norms less 1, except the norm behind the rule
 *     Phi-3 and 4      Llama with q, k, v in one tensor and gate, up in another, of whose heads a part may turn
 *     BERT, RoBERTa    layer norms of the sums that branches make, biases, the exact GELU, attention of both sides,
 *                      tables of positions and of token types
 *     EuroBERT         Llama's blocks with attention of both sides
 *     ModernBERT       layer norms without bias, heads that turn, q, k, v and gate, up in one tensor each, attention of
 *                      both sides: an encoder, whose rows of padding are not read
 */
#ifndef DECODER_H
#define DECODER_H

#include "linear.h"

/* The tensors of a block, in the order in which forward reads them: layer_goes_on counts on it. */
enum decoder_tensor {
    NORM1,
    NORM1_BIAS,
    QUERY, /* all three in one, where the form has them so */
    KEY,
    VALUE,
    QUERY_BIAS,
    KEY_BIAS,
    VALUE_BIAS,
    QUERY_NORM,
    KEY_NORM,
    DELTA_QKV, /* a block with the delta rule has these, and no tensor of attention before PROJECTION_BIAS */
    DELTA_TAPS,
    DELTA_B,
    DELTA_A,
    DELTA_SHIFT,
    DELTA_RATE,
    DELTA_Z,
    DELTA_NORM,
    DELTA_PROJECTION,
    CONV, /* of blocks with a convolution: QUERY is then the product before it, PROJECTION the one behind */
    CONV_BIAS,
    PROJECTION,
    PROJECTION_BIAS,
    POST1, /* norms of what the branches give, or of the sums that they make */
    POST1_BIAS,
    NORM2,
    NORM2_BIAS,
    GATE, /* or what GELU follows; gate and up in one, where the form has no name for UP */
    UP,
    GATE_BIAS,
    UP_BIAS,
    MLP,
    MLP_BIAS,
    POST2,
    POST2_BIAS,
    DECODER_TENSORS
};

struct decoder_form {
    bool rms;                            /* RMS norms without bias, else layer norms                       */
    bool out_in;                         /* weights lie as nn.Linear's                                     */
    bool turns;                          /* heads turn (model.rope_*), else a table of positions           */
    bool gated;                          /* gate(x Wg) (x Wu), else GELU(x W)                              */
    enum aq_gate gate;                   /* of a gate; without one, AQ_GATE_GELU_EXACT selects the exact GELU */
    bool sums;                           /* layer norms of what it adds to with what a branch gives        */
    bool posts;                          /* RMS norms of what the branches give; there is no dropout then  */
    float plus;                          /* RMS norms multiply by plus + weight, which starts as 1 - plus  */
    bool scaled;                         /* the embedding, by the root of its columns                      */
    bool qkv_one_tensor;                 /* q, k and v                                                     */
    bool biased;                         /* all products have biases; else the configuration decides       */
    bool heads_whole;                    /* norms of heads are of all heads at once; H is kv_heads then    */
    bool window_turns;                   /* if some blocks have windows, the others have no rotary embedding */
    bool both;                           /* attention sees both sides                                      */
    bool first_plain;                    /* block 0 has no norm before attention                           */
    bool local;                          /* blocks with a window have frequencies of model.rope_local      */
    bool head_gates;                     /* heads of queries have a gate behind each; all have norms then  */
    bool delta;                          /* blocks without attention (decoder_delta) have the delta rule   */
    const char *blocks;                  /* in front of a block's number: "layers"        */
    const char *tokens, *positions;      /* tables of the embedding; positions NULL: none */
    uint32_t position_first, type_count; /* what model.position_first and types are unless they are set */
    const char *types;                   /* a table of token types, or NULL               */
    const char *rows, *rows_bias;        /* a layer norm of its rows, or NULL; bias NULL: none */
    const char *norm, *norm_bias;        /* of the last layer; bias NULL: none            */
    const char *head, *score;            /* its weights: of a vocabulary, of labels       */
    const char *dense, *dense_bias;      /* of a pooler, before a classifier; bias NULL: none */
    const char *dense_norm;              /* NULL: none                                    */
    bool drops_first;                    /* a pooler drops what it reads, too             */
    const char *names[DECODER_TENSORS];  /* of a block's tensors; NULL: never there       */
    const char *const *conv_names;       /* the same of blocks with a convolution, or NULL */
};

/* Which of model.own a form with the delta rule has. */
enum {
    DELTA_OWN_EVERY,  /* the last of that many blocks has attention; 0: none has    */
    DELTA_OWN_KEYS,   /* heads of queries and keys                                  */
    DELTA_OWN_VALUES, /* heads of values                                            */
    DELTA_OWN_DK,     /* channels of a head of keys                                 */
    DELTA_OWN_DV,     /* channels of a head of values                               */
    DELTA_OWN_TAPS    /* tokens that the convolution sees, the token's own included */
};

/* Sizes of a block with the delta rule: heads of keys and of values, their channels, taps of the convolution. */
struct decoder_delta {
    uint64_t keys, values, Dk, Dv, taps;
    struct linear qkv, z, gates; /* gates: b and a */
};

struct decoder_shape {
    const struct decoder_form *form;
    const char *const *names;         /* the form's, of this block */
    uint64_t C, H, kv_heads, D, F, R; /* R: columns of a head that turn */
    uint64_t qkv;                     /* columns of q, k and v; of the delta rule its own        */
    uint64_t heads;                   /* columns of what gives them: more if queries have gates */
    uint64_t mixed;                   /* columns of what attention or the delta rule gives */
    bool has_delta;                   /* the delta rule, and no attention */
    bool opens;                       /* the projection reads that times a gate */
    struct decoder_delta delta;
    uint32_t taps;                    /* of a convolution, which has H 1, D C, qkv 3 C; 0: none */
    uint64_t window;                  /* 0: none                        */
    float score_scale;                /* 0: 1 / sqrt(D)                 */
    float score_cap;                  /* 0: none                    */
    float residual_scale;             /* of what a branch adds; 0: 1    */
    bool heads_normed;
    uint32_t tensor[DECODER_TENSORS];      /* the layer's number of each, or LAYER_NO_TENSOR */
    struct linear in, projection, up, mlp; /* in: q, k, v; up: gate and up */
};

/* decoder_shape.c: of a block. */
void decoder_shape(const struct layer *layer, const struct aq_model_config *model, struct decoder_shape *out);

/* decoder_shape.c: sizes of a configuration: columns of a head; heads of keys; columns with rotary embedding. */
uint32_t decoder_head_dim(const struct aq_model_config *model);
uint32_t decoder_kv_heads(const struct aq_model_config *model);
uint32_t decoder_rotary(const struct aq_model_config *model);

/* decoder_shape.c: has a block the delta rule? */
bool decoder_is_delta(const struct decoder_form *form, const struct aq_model_config *model, uint32_t block);

/* decoder_shape.c: has a block a convolution in the place of attention? */
bool decoder_convolves(const struct aq_model_config *model, uint32_t block);

/*
 * decoder_shape.c: the convolution of a block, of x (rows, 3 C) to y (rows, C). cache: of all tokens of the slot, or
 * NULL. Backward's operands are the caller's to add.
 */
struct aq_causal_conv decoder_conv(const struct layer_run *run, const struct decoder_shape *shape, const void *x,
                                   void *y, void *cache);

/* The row of the table of positions that the first token has; rows of the table of token types. */
static inline uint32_t decoder_position_first(const struct decoder_form *form, const struct aq_model_config *model)
{
    return model->position_first ? model->position_first : form->position_first;
}
static inline uint32_t decoder_types(const struct decoder_form *form, const struct aq_model_config *model)
{
    return model->types ? model->types : form->type_count;
}

/* decoder_shape.c: has a block a window? */
bool decoder_slides(const struct aq_model_config *model, uint32_t block);

/*
 * decoder_shape.c: the angles of R columns over T places, as aq_rope reads them: in single precision from the frequency
 * theta^(-2i/R), scaled as Llama 3 scales them where model.rope_factor is not 1, divided by model.rope_linear, or
 * scaled by YaRN (model.rope_yarn). local: of a block that has model.rope_local, and no scaling. In LongRoPE T chooses
 * the divisors of all places: model.rope_short up to model.rope_original, model.rope_long beyond.
 */
void decoder_angles(const struct aq_model_config *model, bool local, uint32_t T, float *table);

/*
 * The norm of a form: of rows x of the residual stream, y of the stage's type. gamma and beta are tensors of the layer;
 * RMS norms have no beta and no mean. The gradient: dx += . ending: made along, or NULL.
 */
struct decoder_norm {
    uint32_t gamma, beta;
    float *mean, *rstd;
};
/* The tensors of the last layer. RMS norms have no bias: its number is skipped. */
enum { DECODER_FINAL_NORM, DECODER_FINAL_NORM_BIAS, DECODER_HEAD };
void decoder_final_norm(const struct layer *layer, struct layer_list *list);
struct decoder_norm decoder_final_norm_of(float *mean, float *rstd);

enum aq_status decoder_norm(const struct layer_run *run, const struct decoder_norm *norm, uint64_t rows, const void *x,
                            void *y);
/* c = other + the norm of x (both fp32); other NULL: the norm, and only then it may be a layer norm. */
enum aq_status decoder_post_norm(const struct layer_run *run, const struct decoder_norm *norm, uint64_t rows,
                                 const float *x, const float *other, float *y);
enum aq_status decoder_norm_gradient(const struct layer_run *run, const struct decoder_norm *norm, uint64_t rows,
                                     const float *dy, const void *x, enum aq_element x_type, float *dx,
                                     const struct layer_ending *ending);

#endif
