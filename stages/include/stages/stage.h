/*
 * stage.h -- a stage: a range of a model's layers with its parameters, forward and backward, on one device.
 *
 * Caveats first.
 * - Backward of a slot needs what forward of that slot kept: a slot is busy from its forward to its backward, and where
 *   backward is split to its weight half.
 * - Gradients are *added* to the gradient buffer, in the order of the calls; aq_stage_zero_grads clears it. The sums
 *   over micro-batches are therefore the same bits in every schedule that runs the backwards in order of micro-batches,
 *   and the weight halves, where there are some, in that order too.
 * - A model cut anywhere gives the same bits as uncut: every tensor's initial values depend only on (seed, its name),
 *   every kernel's result only on its operands (not on the number of threads). A head that is tied to the embedding
 *   needs the pipeline's help where a cut separates the two: see aq_stage_tied_floats.
 *
 * The residual stream of a stage may be bf16 (config.residual_bf16): what a layer gives the next, and the sum behind
 * the first branch of a block. Each sum is made in fp32 and rounded once, to nearest even. What comes in at a cut is
 * rounded, too; what goes out is the rounded stream, as fp32. So P stages are one stage, bit for bit, as without it.
 * The stream's gradient is fp32: it is one array per stage, not one per micro-batch, and its small sums would be lost.
 *
 * Dropout, where a model has it, is applied inside the layers: the residual stream crosses a cut without it. (The
 * embedding's own dropout is part of layer 0.) It is off by default, and off in every evaluation: with it on, a
 * sample's activation changes from visit to visit by the masks too, which AQ-SGD's deltas then have to carry.
 *
 * A model is a list of layers numbered 0 .. aq_model_layers()-1. For gpt2 with L blocks: layer 0 is the embedding, 1..L
 * are the blocks, L+1 is final norm, head and loss. The first layer takes tokens, the last needs targets.
 *
 * Tensors are of three kinds, in one fp32 allocation in this order, each kind sorted by layer:
 *
 *     parameters   trained: gradients lie in another buffer of the same layout, so that optimizers, reductions, norms
 *                  and compressors see one array that holds nothing else
 *     buffers      statistics: saved with the parameters, neither trained nor reduced
 *     frozen       given at the beginning and never changed: no gradient, no optimizer state, no weight decay, and
 *                  saved once for a run (runtime/checkpoint)
 *
 * `freeze` (aq_stage_config) lists the frozen tensors by patterns, separated by commas:
 *
 *     embedding, blocks 0-5    layers by their names (aq_model_layer_name); of several a range, or all: blocks
 *     wte, h.0-5.attn, bias    tensors that have these parts of their names, between dots, one after another; a part
 *                              may be a range of numbers, and have * for anything
 *     !h.5.attn                train again what a pattern before this one froze: "*, !head" trains only the head
 *
 * The last pattern that names a tensor decides. It is the tensors' names that decide, never the cut. The head's copy of
 * a tied table, behind a cut, is frozen if the embedding's table is; a pattern cannot name it. Buffers are not frozen:
 * statistics move in forward, whatever trains.
 *
 * Of a frozen tensor no gradient is computed. A layer's input gradient is computed where something before it trains, in
 * this stage or before: where nothing does, backward ends, and dx of a stage with layers before it is all zeroes. Such
 * layers keep nothing of forward for backward.
 *
 * A stage with a second version (config versions 2, train.staleness) has the parameters as they were before the last
 * update, too, and two buffers of gradients: aq_stage_use selects one of each.
 *
 * Locking: a stage is used from one thread.
 */
#ifndef STAGES_STAGE_H
#define STAGES_STAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "aqsgd/base.h"
#include "aqsgd/device.h"
#include "aqsgd/device_math.h"
#include "stages/batch.h"
#include "stages/task.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Of matrix products and the values between them; master weights are always fp32. */
enum aq_stage_precision {
    AQ_STAGE_FP32 = 1,
    AQ_STAGE_BF16 = 2,
    AQ_STAGE_TF32 = 3, /* fp32 values whose products read 10 bits of mantissa: GPUs alone (AQ_INVAL elsewhere) */
    AQ_STAGE_FP16 = 4  /* needs a scaled loss: see aq_stage_input.loss_factor */
};

/*
 * How frozen weights of linear layers are kept (frozen_stores.def). Products read the stored values, so the loss is
 * computed with them. All other frozen tensors (norms, biases, embeddings) are fp32.
 */
enum aq_frozen_store {
    AQ_FROZEN_FP32 = 0,
#define AQ_FROZEN_STORE(name, NAME, number) AQ_FROZEN_##NAME = number,
#include "stages/frozen_stores.def"
#undef AQ_FROZEN_STORE
};
const char *aq_frozen_store_name(enum aq_frozen_store store); /* as in the manifest: "fp32", "q8", ... */
const char *aq_frozen_store_type(enum aq_frozen_store store); /* of the values in files: "F32" or "BF16" */

enum { AQ_MODEL_OWN_MAX = 8 };
enum { AQ_TENSOR_DIMENSIONS_MAX = 4, AQ_TENSOR_NAME_MAX = 96 };

/*
 * Is the head the embedding's table? exact: one tensor, with the same bits wherever the model is cut. compressed: the
 * same, but where a cut separates the two the head's gradient is quantized on its way.
 */
enum aq_tied { AQ_TIED_NO = 0, AQ_TIED_EXACT = 1, AQ_TIED_COMPRESSED = 2 };

/*
 * The first layer of a residual network (He et al. 2016): a convolution of 3 x 3, as small images get, or the
 * published one for ImageNet, of 7 x 7 and stride 2 with a max pooling of 3 x 3 and stride 2.
 */
enum aq_stem { AQ_STEM_CIFAR = 0, AQ_STEM_IMAGENET = 1 };

/* One number per rotated pair of columns (RoPE); those behind count are 0. count 0: no numbers. */
enum { AQ_FACTORS_MAX = 128 };
struct aq_factors {
    uint32_t count;
    float of[AQ_FACTORS_MAX];
};

/* A model reads the fields that its keys name (aq_model_keys). */
struct aq_model_config {
    const char *kind;   /* a row of models.def                                                */
    uint32_t blocks;    /* L                                                                  */
    uint32_t heads;     /* H                                                                  */
    uint32_t kv_heads;  /* heads of keys and values, divides H; 0: H                          */
    uint32_t head_dim;  /* channels of a head; 0: C / H                                       */
    uint32_t mlp;       /* channels of an MLP; 0: 4 C                                         */
    uint32_t channels;  /* C                                                                  */
    uint32_t vocabulary;/* V: values that a target can have, tokens or classes                */
    uint32_t labels;    /* of a sample of tokens as a whole: its last layer is a classifier; 0: it is not */
    uint32_t context;   /* most tokens of a sequence: rows of the position table              */
    float dropout;      /* probability, on embedding, attention and residuals; 0: none        */
    bool new_head;      /* a classifier starts new, whatever a file of weights has (aq_weights_starts_new) */
    enum aq_tied tied;  /* head = embedding; deberta: one table of relative positions         */
    float init_std;     /* of the normal initial weights; residual projections / sqrt(2L)     */
    float norm_eps;     /* added to a norm's variance                                         */
    bool qkv_bias;      /* queries, keys and values have biases (where the kind leaves it open) */
    bool qk_norm;       /* heads of queries and keys are normalized                           */
    float rope_theta;   /* heads that turn: base of their frequencies                         */
    float rope_partial; /* how much of a head turns                                           */
    float rope_factor;  /* 1: frequencies as they are; else scaled as Llama 3 does, with:     */
    float rope_low, rope_high;
    uint32_t rope_original;
    float rope_linear;     /* frequencies are divided by it in blocks without a window; 0 or 1: as they are  */
    float rope_local;      /* as rope_theta, of blocks with a window; 0: rope_theta                          */
    uint32_t window;       /* tokens that a query sees in blocks that have a window; 0: none has             */
    uint32_t window_every; /* the last of that many blocks has none; 0: all have                             */
    bool window_first;     /* the first has none, not the last                                               */
    uint32_t window_from;  /* blocks before this one have none                                               */
    uint32_t query_scale;  /* scores are divided by its root; 0: the head's channels                         */
    bool out_bias;         /* attention's projection has a bias (if the kind leaves it open)                 */
    bool mlp_bias;         /* the products of a gated MLP have biases                                        */
    float rope_yarn;       /* YaRN: factor of the context; 0 or 1: none. Else with rope_original and:        */
    float rope_fast, rope_slow; /* rotations per context that bound the ramp (beta_fast, beta_slow)          */
    float rope_attention;  /* cosines and sines are multiplied by it; 0: 1                                   */
    uint32_t rope_every;   /* the last of that many blocks has no rotary embedding; 0: all have one          */
    struct aq_factors rope_short, rope_long; /* LongRoPE: frequencies are divided by the first up to rope_original
                              tokens a sample, by the second beyond; with rope_attention; count 0: as they are     */
    float query_beta;      /* queries beyond rope_original tokens are scaled (Ministral 3); 0: never         */
    float embedding_scale; /* rows of the embedding are multiplied by it; 0: as the form has it              */
    float score_scale;     /* of attention; 0: by query_scale                                                */
    float score_cap;       /* scores s of attention become cap tanh(s / cap); 0: as they are                  */
    float logit_cap;       /* the same of logits                                                             */
    float residual_scale;  /* what a branch adds is multiplied by it; 0: 1                                   */
    float logit_divisor;   /* logits are divided by it; 0: 1                                                 */
    uint32_t types;          /* token types, rows of their table                                              */
    uint32_t position_first; /* row of the position table that the first token has                            */
    bool pool_late;        /* an encoder's pooler reads all rows, and the mean is of what it gives             */
    bool pool_mean;        /* an encoder's classifier reads the mean of all real tokens, not the first token  */
    uint32_t conv_taps;    /* of convolutions in the blocks without attention; 0: all blocks have attention   */
    uint32_t attention_blocks, attention_blocks_high; /* then: bit b: block b, or block 32 + b, has attention   */
    bool conv_bias;        /* the products and the convolution of those blocks have biases                   */
    uint32_t own[AQ_MODEL_OWN_MAX]; /* of models that none of these serves                    */
};

/* A manifest key of a model: its field in struct aq_model_config, its type and its range. */
struct aq_model_key {
    const char *name; /* "model.blocks" */
    enum aq_model_key_kind {
        AQ_MODEL_U32,
        AQ_MODEL_F32,
        AQ_MODEL_BOOL,
        AQ_MODEL_TIED,
        AQ_MODEL_FACTORS,
        AQ_MODEL_STEM
    } kind;
    size_t offset; /* in struct aq_model_config */
    const char *unit;
    double min, max; /* max 0: no limit */
    const char *fallback, *help;
};

/* The kinds of models in order, NULL behind the last. */
const char *aq_model_kind(uint32_t index);
/* The keys that a model of that kind has, in order; none of an unknown kind. */
const struct aq_model_key *aq_model_keys(const char *kind, uint32_t *count);
/* Bytes of a key's value in struct aq_model_config. */
size_t aq_model_key_bytes(const struct aq_model_key *key);
/* The key of the number of values that a target can have: "model.vocabulary". */
const char *aq_model_outputs_key(const char *kind);
/* Tokens of a sample if the kind fixes them (1 for images); 0: the job sets them. */
uint32_t aq_model_tokens(const char *kind);
/* The side of the square images that it reads, in pixels; 0: it reads none. */
uint32_t aq_model_side(const struct aq_model_config *model);
/* "12 blocks, 12 heads, 768 channels, vocabulary 50257": for a plan's head. */
void aq_model_describe(const struct aq_model_config *model, char *text, size_t bytes);
/* All that identifies the model, kind first: part of a cache's identity. Never changes for a kind. */
void aq_model_identity(const struct aq_model_config *model, char *text, size_t bytes);
/*
 * Problem `index` of a configuration whose values are each in range, with samples of T tokens: the key to name and a
 * text. False: there is no such problem.
 */
bool aq_model_problem(const struct aq_model_config *model, uint32_t T, uint32_t index, const char **key, char *text,
                      size_t bytes);

/*
 * Gives the model the last layer that the task (NULL: its own) needs: if the task is one of whole samples and the model
 * reads tokens, a classifier with `labels` outputs (0: one); else labels becomes 0.
 */
void aq_model_use_task(struct aq_model_config *model, const char *task, uint32_t labels);

/* The name of the default task of a model of that kind; NULL: an unknown kind. */
const char *aq_model_task(const char *kind);

/* As its keys' fallbacks are. An unknown kind gives zeroes. */
void aq_model_config_default(struct aq_model_config *out, const char *kind);

/*
 * Can such a model (checked, except its vocabulary) learn such a task (NULL: its own) from samples with these fields?
 * False: the key to name and the reason.
 */
bool aq_model_fits(const struct aq_model_config *model, uint32_t T, const char *task, const struct aq_field *fields,
                   uint32_t count, const char **key, char *text, size_t bytes);

/* AQ_INVAL with a text that names the field. */
enum aq_status aq_model_config_check(const struct aq_model_config *model);

/* How many layers; 0 for an unknown kind. */
uint32_t aq_model_layers(const struct aq_model_config *model);

/* Can it compute tokens without computing those before them again (aq_stage_config.extends)? False: *kind cannot. */
bool aq_model_extends(const struct aq_model_config *model, const char **kind);

/* Can its residual stream be bf16 (aq_stage_config.residual_bf16)? False: the reason is in text. */
bool aq_model_residual_bf16(const struct aq_model_config *model, char *text, size_t bytes);

/* "embedding", "block 3", "head": for plan and errors. */
void aq_model_layer_name(const struct aq_model_config *model, uint32_t layer, char *text, size_t bytes);

/* The values of one sample that cross a cut: a (rows, columns) matrix of fp32. */
struct aq_cut_shape {
    uint32_t rows, columns;
};

/*
 * The shape at the cut behind layer layer_end - 1, of samples of `tokens` tokens. AQ_INVAL: an unknown kind, or no cut
 * between two layers.
 */
enum aq_status aq_model_cut(const struct aq_model_config *model, uint32_t layer_end, uint32_t tokens,
                            struct aq_cut_shape *out);

enum { AQ_FREEZE_PATTERNS_MAX = 64, AQ_FREEZE_PART_MAX = 96 };

/* A pattern of a list of what is frozen, as a model has it. */
struct aq_freeze_pattern {
    char text[AQ_FREEZE_PART_MAX]; /* as written, cut to fit                                              */
    uint32_t tensors;              /* that it names; 0: the list is refused                               */
    uint32_t named;                /* of targets: with those that can have no adapter                     */
    char unknown[AQ_FREEZE_PART_MAX]; /* then: the first of its words that no name has; "": none           */
    bool copy;                        /* then: it names only a tied head, which is the embedding's table    */
    float rate;                       /* of a list of rates; 0: it has no number above 0                    */
};

/* Pattern `index` of a list, of a model that was checked, with samples of T tokens. False: the list has no more. */
bool aq_model_freeze_pattern(const struct aq_model_config *model, uint32_t T, const char *freeze, uint32_t index,
                             struct aq_freeze_pattern *out);

/* The same of a list of learning rates: "PATTERN = RATE", the last that names a tensor decides (aq_tensor_info). */
bool aq_model_rate_pattern(const struct aq_model_config *model, uint32_t T, const char *rates, uint32_t index,
                           struct aq_freeze_pattern *out);

/* Words that patterns can have, of one layer, with blanks between: those of its name and of its tensors' names. */
void aq_model_freeze_words(const struct aq_model_config *model, uint32_t T, uint32_t layer, char *text, size_t bytes);

/*
 * Low-rank adapters (Hu et al. 2021, LoRA, section 4.1): a linear layer y = x W + b becomes
 *
 *     y = x W + b + (alpha / rank) (x A) B
 *
 * with alpha / sqrt(rank) in place of alpha / rank if `rslora` is set (Kalajdzievski 2023). With `dropout` an adapter
 * reads D(x) in place of x; masks are drawn as the model's own are, one for each adapter.
 *
 * A is stored (rank, in), B (out, rank), as PEFT has them: `TENSOR.lora_A.weight` and `TENSOR.lora_B.weight`. A starts
 * with normal numbers of variance 1 / (3 in), the variance of PEFT's uniform ones; B with zeroes.
 *
 * With adapters and `freeze` NULL, only the adapters and what starts untrained (a classification's head) train. A list
 * decides only about the model's own tensors: the adapters always train.
 *
 * With `dora` (Liu et al. 2024) each row of such a matrix, the weights of one output, has a length that trains, too:
 *
 *     y = x W' + b,    W'_j = m_j V_j / |V_j|,    V = W + (alpha / rank) (A B) as above
 *
 * m is stored as `TENSOR.lora_M.weight`, (out), and starts as the lengths of W's rows (aq_stage_magnitudes). Gradients
 * take |V_j| for a constant, as published and as PEFT has it. Adapters then have no dropout.
 *
 * `ranks` and `alphas` give single modules another rank or alpha (PEFT's rank_pattern and alpha_pattern). They are JSON
 * objects of numbers, as {"v_proj":2,"layers.0.self_attn.q_proj":6}. A name is a module's published name, or its end
 * behind a dot; "^" and "$" at its ends may anchor it. The first name that matches counts.
 *
 * `saved` lists modules of the model itself that train beside the adapters (PEFT's modules_to_save), with commas. A
 * name is the end of the published name of a module, or of one that contains it. They have no adapters.
 */
enum { AQ_LORA_RANK_MAX = 1024, AQ_LORA_ALPHA_MAX = 1000000 };
struct aq_lora_config {
    uint32_t rank;       /* 0: no adapters                                                                  */
    float alpha;         /* positive                                                                        */
    bool rslora;         /* the share is alpha / sqrt(rank), not alpha / rank                               */
    bool dora;           /* rows of the adapted matrices have lengths that train                            */
    float dropout;       /* of what each adapter reads, in training: 0 to below 1                           */
    const char *targets; /* which linear layers, by patterns as `freeze` has them; NULL: all that may have some */
    const char *ranks, *alphas; /* of single modules, see above; NULL: none                                 */
    const char *saved;          /* modules that train whole, see above; NULL: none                          */
};

/* The factor of an adapter's share. */
float aq_lora_scale(const struct aq_lora_config *lora);

/* *out: the same with the rank and alpha of one matrix's adapter, by the model's name of the matrix. */
void aq_lora_of(const struct aq_lora_config *lora, const struct aq_model_config *model, const char *tensor,
                struct aq_lora_config *out);

/* Is a tensor of the model in a module of `saved`? */
bool aq_lora_saves(const struct aq_lora_config *lora, const struct aq_model_config *model, const char *tensor);

/* The least and the largest rank of the adapters of a checked model with samples of T tokens. AQ_NOMEM. */
enum aq_status aq_lora_ranks(const struct aq_lora_config *lora, const struct aq_model_config *model, uint32_t T,
                             uint32_t *least, uint32_t *most);

/* Can `ranks` (or, not whole, `alphas`) be this text? Numbers above 0, at most `most`. False: text has the problem. */
bool aq_lora_numbers(const char *json, double most, bool whole, char *text, size_t bytes);

/* A name of ranks, alphas or saved, and what of the model it names. */
struct aq_lora_name {
    char text[AQ_FREEZE_PART_MAX];
    uint32_t adapters; /* of ranks and alphas: those of adapters                     */
    uint32_t tensors;  /* all others                                                 */
    bool copy;         /* of saved: a tied head, which is the embedding's table      */
};

/* Name `index` of one of these texts (borrowed), for a checked model. AQ_NOTFOUND (not logged): no more. AQ_NOMEM. */
enum aq_status aq_lora_name(const struct aq_lora_config *lora, const struct aq_model_config *model, uint32_t T,
                            const char *of, uint32_t index, struct aq_lora_name *out);

/*
 * DoRA's rows: the weights of one output each, of a matrix stored as (out, in), or as (in, out) if not out_in. Adds the
 * squares of values first, first + 1, ... of it to those of their outputs; a row in pieces has the sum of a row in one.
 */
void aq_lora_squares(const float *values, uint64_t first, uint64_t count, uint64_t in, uint64_t out, bool out_in,
                     double *squares);
/* The factor that gives a row with this sum of squares the length m; 0 for a row of zeros, which has no direction. */
float aq_lora_factor(double squares, float m);

/* As aq_model_freeze_pattern, of a list of targets: tensors counts linear layers. */
bool aq_model_lora_pattern(const struct aq_model_config *model, uint32_t T, const char *targets, uint32_t index,
                           struct aq_freeze_pattern *out);

/*
 * Is the head the embedding's table, with this list of what is frozen and adapters (NULL: none), and does it train?
 * table (or NULL): the tensor's name in the first layer; untouched where the answer is no.
 */
bool aq_model_ties(const struct aq_model_config *model, uint32_t T, const char *freeze,
                   const struct aq_lora_config *lora, char table[AQ_TENSOR_NAME_MAX]);

/* The name that a tied head's own tensor would have; "": the model has no such head, or it is not tied. */
void aq_model_tied_head(const struct aq_model_config *model, char head[AQ_TENSOR_NAME_MAX]);

/* Does any tensor of the layers before layer_end train, with this list (NULL: all do) and adapters (NULL: none)? */
bool aq_model_trains(const struct aq_model_config *model, uint32_t T, const char *freeze,
                     const struct aq_lora_config *lora, uint32_t layer_end);

/*
 * Is what the layers before layer_end make of a sample the same at its every visit? Nothing trains there, no mask is
 * drawn (dropout), and nothing is made from whatever samples come together (statistics of a batch).
 */
bool aq_model_frozen(const struct aq_model_config *model, uint32_t T, const char *freeze,
                     const struct aq_lora_config *lora, uint32_t layer_end);

/*
 * Does no layer but the last see tokens behind a token? Then padding behind a text changes none of the text's rows. The
 * last layer may read one row of each sample, its last token's.
 */
bool aq_model_causal(const struct aq_model_config *model);

/* Has any layer of it buffers: running statistics of a batch norm? */
bool aq_model_keeps_statistics(const struct aq_model_config *model, uint32_t T);

struct aq_stage_config {
    struct aq_model_config model;
    const char *task;                /* of tasks.def; NULL: the model's own                             */
    uint32_t layer_first, layer_end; /* [first, end)                                                    */
    uint32_t B;                      /* most samples of a micro-batch                                   */
    uint32_t T;                      /* tokens of a sample                                              */
    uint32_t slots;                  /* micro-batches in flight                                         */
    uint32_t versions;               /* of parameters and gradients: 0 or 1, or 2 (aq_stage_use)        */
    enum aq_stage_precision precision;
    bool residual_bf16;              /* the residual stream is bf16 inside the stage (aq_model_residual_bf16); only with
                                        precision bf16. Cuts and gradients are fp32                  */
    bool recompute;                  /* keep only each block's input, run its forward again in backward */
    bool inference;                  /* no gradients: no gradient buffer, backward is refused           */
    bool split;                      /* aq_stage_weights has the other half of backward; not with recompute */
    bool weights_16bit;              /* copies of the weights in 16 bits: counted for a device that needs them; of an
                                        inference's stage made on any device                         */
    bool extends;                    /* for generation: inputs may have tokens_before. Layers keep of each slot what
                                        later tokens need of earlier ones (keys, values); only for inference */
    bool lengths;                    /* samples may have fewer than T tokens: aq_batch.lengths           */
    bool parts;                      /* samples may have parts: aq_batch.starts                          */
    const char *freeze;              /* names of what is not trained, see above; NULL: none. Borrowed until open
                                        returns                                                         */
    const char *lr_patterns;         /* learning rates by tensor, see aq_model_rate_pattern; NULL: none. Borrowed until
                                        open returns                                                    */
    enum aq_frozen_store frozen_store; /* of frozen weights of linear layers                           */
    struct aq_lora_config lora;      /* its texts: borrowed until open returns                           */
    uint32_t logits_rows;            /* of logits that exist at a time; 0: as many as 256 MiB hold, on a GPU more where
                                        their gradient stays: half of its bytes, or all rows in 16 bits */
    bool logits_16bit;               /* logits leave their product in the precision's 16 bits, and their gradient is
                                        on them: on a GPU. aq_stage_open takes no notice on a CPU       */
    bool pads_vocabulary;            /* a head's products are of a multiple of 128 words (16 of a small vocabulary): on
                                        a GPU's tensor cores. aq_stage_open takes no notice elsewhere   */
    uint32_t tied_rows;              /* most rows of a tied table that the batches of one step name; 0: a head behind a
                                        cut is a separate tensor (aq_stage_tied_floats)                 */
};

struct aq_stage_size {
    uint64_t parameters;        /* count of floats that are trained                                    */
    uint64_t buffers;           /* count of floats that are saved and not trained                      */
    uint64_t frozen;            /* count of values that never change                                   */
    uint64_t packed;            /* of these, those that are kept in fewer bits (frozen_store)          */
    uint64_t parameter_bytes;   /* fp32 of all three but what is packed, copies in 16 bits of all but the buffers,
                                   what is packed, and room */
    uint64_t frozen_bytes;      /* of these, what frozen tensors take                                  */
    uint64_t packed_bytes;      /* of these, what packed ones take                                     */
    uint64_t previous_bytes;    /* the parameters before the last update, their copies, and room; 0: one version, or
                                   none trained */
    uint64_t gradient_bytes;    /* of all versions, with room                                          */
    uint64_t slot_bytes;        /* what one slot keeps between forward and backward                    */
    uint64_t workspace_bytes;   /* shared by all                                                       */
    uint64_t shared;            /* of the parameters: floats whose gradients are summed along the pipeline */
    uint64_t tied;              /* floats of the tied table where the stage has it, or a copy of it    */
    uint64_t copied;            /* of the buffers: those of the copy, which have gradients             */
    uint64_t room;              /* values behind weights and gradients that a head's products reach    */
    uint64_t host_bytes;        /* pinned, of all slots: what the host gives a device and gets from it */
    uint64_t x_bytes, y_bytes;  /* one micro-batch of fp32 values at the cut before and behind; 0: no cut */
    double flops_forward;       /* of one micro-batch: 2 a multiply-add                                */
    double flops_backward;
    double flops_weights;       /* of them: the weight half, where backward is split                   */
};

/* The sum that aq_stage_open will take, without taking it. AQ_INVAL. */
enum aq_status aq_stage_measure(const struct aq_stage_config *config, struct aq_stage_size *out);

struct aq_stage; /* opaque */
enum aq_status aq_stage_open(struct aq_device *device, const struct aq_stage_config *config, struct aq_stage **out);
void aq_stage_close(struct aq_stage *stage); /* NULL is fine */

struct aq_tensor_info {
    char name[AQ_TENSOR_NAME_MAX]; /* as Hugging Face names them: "h.3.attn.c_attn.weight"             */
    uint32_t layer;
    uint32_t dimensions;
    uint64_t shape[AQ_TENSOR_DIMENSIONS_MAX];
    uint64_t offset; /* in the flat buffers, in floats                                                 */
    uint64_t count;
    bool decay;      /* weight decay applies (not to bias and LayerNorm)                               */
    bool buffer;     /* statistics, and copies: saved, but without an optimizer                        */
    bool copy;       /* then: it has a gradient, and follows another stage's tensor, begins_as         */
    bool mirror;     /* a parameter that another stage has too and trains alike: no norm counts it here */
    bool frozen;     /* never changes: see above                                                       */
    float rate;      /* its peak learning rate by lr_patterns; 0: as all                               */
    enum aq_frozen_store packed; /* not fp32: kept so, and offset is only a name (aq_stage_put)        */
    bool adapter;    /* of struct aq_lora_config: no file of the model has it                          */
    bool adapts_out_in; /* then: the tensor that it adapts is stored (out, in), else (in, out)         */
    uint64_t shared_first, shared_count; /* floats that stages hold copies of; see aq_stage_shared */
    bool fresh;      /* of the task, not of the network: where a file of weights lacks it, it starts as it would
                        without the file                                                               */
    bool transposed; /* a matrix (in, out) that published files have as nn.Linear does: (out, in)      */
    uint32_t kernel; /* then, not 0: K of a convolution (K K C, N) that they have as nn.Conv2d does: (N, C, K, K) */
    char begins_as[AQ_TENSOR_NAME_MAX]; /* the tensor whose initial numbers it takes: mostly its own name */
};
/* Is it the name of an adapter's tensor? Then *which is 'A' or 'B', and `of` the name of the tensor that it adapts. */
bool aq_tensor_adapts(const char *name, char *which, char of[AQ_TENSOR_NAME_MAX]);
/* Parameters, in order of layers: their values lie so in the flat buffer, and those of the buffers behind them. */
uint32_t aq_stage_tensor_count(const struct aq_stage *stage);
void aq_stage_tensor(const struct aq_stage *stage, uint32_t index, struct aq_tensor_info *out);
/* The same of a stage that is not open: *out is an array of *count, which the caller frees (aq_free). AQ_INVAL,
 * AQ_NOMEM. */
enum aq_status aq_stage_list(const struct aq_stage_config *config, struct aq_tensor_info **out, uint32_t *count);
/* Saved tensors: parameters and buffers, in order of layers, so that files do not show where a model was cut. */
uint32_t aq_stage_saved_count(const struct aq_stage *stage);
void aq_stage_saved(const struct aq_stage *stage, uint32_t index, struct aq_tensor_info *out);
/* Frozen tensors, in order of layers, behind the saved ones; first those in fp32, then the packed ones. */
uint32_t aq_stage_frozen_count(const struct aq_stage *stage);
void aq_stage_frozen(const struct aq_stage *stage, uint32_t index, struct aq_tensor_info *out);
/* Floats of parameters; of parameters and buffers together; of frozen fp32 tensors, which lie behind those. */
uint64_t aq_stage_parameter_count(const struct aq_stage *stage);
uint64_t aq_stage_saved_floats(const struct aq_stage *stage);
uint64_t aq_stage_frozen_floats(const struct aq_stage *stage);
/*
 * Values of a tensor, packed or not, from the host and to it: `count` from value `first` on. A packed one is put whole,
 * and got from a multiple of AQ_STAGE_GROUP on. Both wait for the device. Low-precision copies are
 * not made again (aq_stage_parameters_changed, aq_stage_frozen_changed). AQ_NOMEM, or the device's status.
 */
enum { AQ_STAGE_GROUP = 64 };
enum aq_status aq_stage_put(struct aq_stage *stage, const struct aq_tensor_info *tensor, uint64_t first, uint64_t count,
                            const float *values);
enum aq_status aq_stage_get(const struct aq_stage *stage, const struct aq_tensor_info *tensor, uint64_t first,
                            uint64_t count, float *values);
/*
 * Initializes adapters with `dora`: m becomes the lengths of the weights' rows as they are now. Part of aq_stage_init;
 * call it again after weights were put. AQ_NOMEM.
 */
enum aq_status aq_stage_magnitudes(struct aq_stage *stage);
/*
 * Of a packed tensor whose values, put again, might be kept with other bits: the bytes that it takes as it is kept;
 * else 0. And these bytes, `count` from byte `first` on; put takes all. Both wait for the device. The device's status.
 */
uint64_t aq_stage_packed_bytes(const struct aq_tensor_info *tensor);
enum aq_status aq_stage_packed_get(const struct aq_stage *stage, const struct aq_tensor_info *tensor, uint64_t first,
                                   uint64_t count, uint8_t *bytes);
enum aq_status aq_stage_packed_put(struct aq_stage *stage, const struct aq_tensor_info *tensor, const uint8_t *bytes);
/* *digest, seeded with what it was, of all that is packed, as it is kept. */
enum aq_status aq_stage_packed_digest(const struct aq_stage *stage, uint64_t *digest);
/* What it learns. */
/* The model of which it is a stage: borrowed until close. */
const struct aq_model_config *aq_stage_model(const struct aq_stage *stage);
const struct aq_task *aq_stage_task(const struct aq_stage *stage);
float *aq_stage_parameters(struct aq_stage *stage); /* device memory, borrowed */
float *aq_stage_gradients(struct aq_stage *stage);  /* those in use; device memory, borrowed; NULL: none trained */
/*
 * The newest parameters' copy in 16 bits, and its type; NULL: none is kept. A caller that writes both need not call
 * aq_stage_parameters_changed.
 */
uint16_t *aq_stage_rounded(struct aq_stage *stage, enum aq_element *type);

/*
 * Which parameters and gradients are meant from now on, by forward, backward, and whatever reads or clears gradients.
 * previous: the parameters before the last aq_stage_keep; statistics have one version. A stage opens with the newest
 * and gradients 0. Work that is already enqueued keeps its selection.
 */
struct aq_stage_use {
    bool previous;
    uint32_t gradients; /* 0 .. versions - 1 */
};
void aq_stage_use(struct aq_stage *stage, const struct aq_stage_use *use);

/* Before an update: the parameters as they are become the previous ones. AQ_INVAL: the stage has one version. */
enum aq_status aq_stage_keep(struct aq_stage *stage, struct aq_stream *stream);

/* The previous parameters: device memory, borrowed; NULL: one version. */
float *aq_stage_previous(struct aq_stage *stage);

/* Initial weights from (seed, tensor name, element): the same however the model is cut. */
enum aq_status aq_stage_init(struct aq_stage *stage, uint64_t seed);
/* The same of one tensor, by its place; copies in 16 bits are not made again (aq_stage_parameters_changed). */
enum aq_status aq_stage_init_tensor(struct aq_stage *stage, const struct aq_tensor_info *tensor, uint64_t seed);

/* After the parameters were changed from outside (optimizer, load): refreshes low-precision and packed copies. */
enum aq_status aq_stage_parameters_changed(struct aq_stage *stage, struct aq_stream *stream);
/* The same for the previous ones (a checkpoint was read). */
enum aq_status aq_stage_previous_changed(struct aq_stage *stage, struct aq_stream *stream);

/* The same of frozen tensors, after they were given their values. */
enum aq_status aq_stage_frozen_changed(struct aq_stage *stage, struct aq_stream *stream);

struct aq_stage_input {
    const float *x;               /* (samples, rows, columns) device fp32 from the stage before; NULL on the first */
    const struct aq_batch *batch; /* first stage: what the model reads; last: what its task compares with, else no
                                     loss (generation). Its ids are the keys of the dropout masks                  */
    uint32_t tokens_used;         /* 0: all T. Generation: only the first that many positions are real             */
    /*
     * For a stage that extends, with one sample: that many of its tokens went through this slot before. Only the tokens
     * behind them, up to tokens_used, are computed: x and y have only their rows. The batch has all tokens.
     */
    uint32_t tokens_before;
    uint64_t seed, step;          /* keys of the dropout masks                                                     */
    bool evaluate;                /* no dropout; backward will not follow                                          */
    /*
     * The gradient of a target's loss: 1 / (targets of the whole batch), times a factor that keeps gradients within
     * fp16's range: every gradient comes out with it, and is infinite or NaN if it was too large.
     */
    float loss_factor;
};

/*
 * y     out, (samples, rows, columns) device fp32 to the stage after; NULL on the last stage.
 * loss  out, host; waits for the stream. NULL: not wanted, or asked for by aq_stage_loss, which waits for nothing.
 * AQ_INVAL: slot, samples or a token out of range (the text names it).
 */
enum aq_status aq_stage_forward(struct aq_stage *stage, uint32_t slot, const struct aq_stage_input *input, float *y,
                                struct aq_stage_loss *loss, struct aq_stream *stream);

/*
 * Last stage: the loss of the slot's last forward with targets, which the stream must have passed; before the slot's
 * next. AQ_INVAL: an inner stage's, or no such slot.
 */
enum aq_status aq_stage_loss(struct aq_stage *stage, uint32_t slot, struct aq_stage_loss *out);

/*
 * dy (samples, rows, columns) from the stage after, NULL on the last; dx to the stage before, NULL on the first: zeroes
 * where nothing before this stage trains.
 */
enum aq_status aq_stage_backward(struct aq_stage *stage, uint32_t slot, const float *dy, float *dx,
                                 struct aq_stream *stream);

/*
 * The weight half of a split backward, any time after the other: adds the gradients that are products of what forward
 * and backward kept in the slot. Backward itself adds the gradients that a layer computes in one pass with its input's
 * (norms, the biases that a norm sums on its way). AQ_INVAL: the stage is not split, or no backward of this slot went
 * before.
 */
enum aq_status aq_stage_weights(struct aq_stage *stage, uint32_t slot, struct aq_stream *stream);

/* Gradients = 0. AQ_INVAL: a stage for inference has none. */
enum aq_status aq_stage_zero_grads(struct aq_stage *stage, struct aq_stream *stream);

/*
 * A tensor that many layers read (a table of relative positions) belongs to the first one; where a model is cut, each
 * stage that reads it holds a copy under its name, and trains it alike: by the sum of all stages' gradients. The
 * pipeline sums them between the last backward and the first reader of the gradients:
 *
 *     from the last stage to the first: aq_stage_shared has the sum of the stages behind it (zeroes on the last), then
 *     aq_stage_shared_gather adds this stage's own, which become 0: the norm counts them once, on the first stage,
 *     which takes them back (aq_stage_shared_scatter); behind the norm, from the first stage to the last, each gets
 *     the first one's into aq_stage_shared, and takes them.
 *
 * The same floats in the same order on every stage that has any: aq_stage_size.shared of them, 0 where there is one
 * stage, or none of it trains.
 */
float *aq_stage_shared(struct aq_stage *stage); /* host */
enum aq_status aq_stage_shared_gather(struct aq_stage *stage, struct aq_stream *stream); /* waits for the stream */
enum aq_status aq_stage_shared_scatter(struct aq_stage *stage, struct aq_stream *stream); /* the same           */

/*
 * A head tied to the embedding's table (config.tied_rows > 0). The table is a parameter of the first stage. If a cut
 * separates the two and model.tied is exact, the last stage has a copy of it, a buffer that has a gradient: no
 * optimizer, reduction or norm knows it. The embedding's gradient is kept apart from the head's, as the rows that the
 * batches of the step name, and is added when the head's is complete. So the sum has the same bits with one stage and
 * with several. The pipeline does, in each step:
 *
 *     after the last backward   the last stage's aq_stage_tied_gradient goes to the first stage, which stores it in its
 *                               own; then aq_stage_tied_fold adds the embedding's rows there. One stage only folds.
 *     after the update          the first stage's aq_stage_tied_values go to the last stage, which stores them in its
 *                               own and calls aq_stage_parameters_changed
 *
 * Where model.tied is compressed, the last stage's tensor is a parameter (info.mirror), and a buffer as large has the
 * residual of its gradient's codec. Both stages fold the same rows into the same decoded gradient of the head,
 * and both update: aq_stage_tied_get has the first stage's rows and their tokens, aq_stage_tied_put gives them to the
 * last stage, before fold.
 *
 * aq_stage_tied_floats: floats of the table, on the first and the last stage; 0 elsewhere, and where nothing is tied.
 * The pointers are device memory; the gradient is the one in use (aq_stage_use); previous: the values before the last
 * aq_stage_keep. scale (a loss scale) multiplies what aq_stage_gradients does not reach, the rows and the copy's
 * gradient, and enqueues; fold waits for the stream. Both: the device's status.
 */
uint64_t aq_stage_tied_floats(const struct aq_stage *stage);
float *aq_stage_tied_values(struct aq_stage *stage, bool previous);
float *aq_stage_tied_gradient(struct aq_stage *stage);
float *aq_stage_tied_residual(struct aq_stage *stage); /* NULL: this stage has none */
uint32_t aq_stage_tied_count(const struct aq_stage *stage); /* rows that the step's batches have named so far */
/* Rows in host memory; both wait for the stream. put: AQ_PROTO: more rows than config.tied_rows, or of no tokens. */
enum aq_status aq_stage_tied_get(struct aq_stage *stage, int32_t *tokens, float *rows, struct aq_stream *stream);
enum aq_status aq_stage_tied_put(struct aq_stage *stage, const int32_t *tokens, const float *rows, uint32_t count,
                                 struct aq_stream *stream);
enum aq_status aq_stage_tied_scale(struct aq_stage *stage, float factor, struct aq_stream *stream);
enum aq_status aq_stage_tied_fold(struct aq_stage *stage, struct aq_stream *stream);

/*
 * *sum += |g|^2, tensor by tensor from the last to the first, each tensor's own sum in double in a fixed order: passing
 * *sum from the last stage to the first gives the same bits as one stage. Host result, waits for the stream.
 */
enum aq_status aq_stage_gradient_sum2(struct aq_stage *stage, double *sum, struct aq_stream *stream);

/* The same for each tensor: squares[i] = |g of tensor i|^2; the sum above adds them from the last to the first. */
enum aq_status aq_stage_gradient_squares(struct aq_stage *stage, double *squares, struct aq_stream *stream);

/* Last stage: the logits (V floats, host) of position `position` of sample 0, which the last forward has computed. */
enum aq_status aq_stage_logits(struct aq_stage *stage, uint32_t slot, uint32_t position, float *logits,
                               struct aq_stream *stream);

#ifdef __cplusplus
}
#endif
#endif
