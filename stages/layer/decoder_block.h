/*
 * decoder_block.h -- what the files of a decoder's block (layer_decoder.c, decoder_delta.c) share; private to them.
 */
#ifndef DECODER_BLOCK_H
#define DECODER_BLOCK_H

#include "decoder.h"

/* Values of forward that backward needs, besides the block's input. */
struct decoder_slot {
    void *norm1, *qkv, *attention, *norm2, *before, *after; /* the stage's type; before and after the activation */
    void *heads;                                            /* heads_normed: qkv as the product gave it          */
    float *mean1, *rstd1, *mean2, *rstd2, *lse;             /* means: of layer norms                             */
    float *rstd_heads;
    void *middle;             /* x', of the stream's type */
    float *post1, *post2;     /* what norms behind the branches, or of sums, read */
    float *rstd_post1, *rstd_post2;
    void *dprojection, *dmlp; /* split: what the branches' products gave, its gradient; the stage's type */
    void *cache;              /* extends: keys and values of all tokens so far; or the states of the delta rule */
    void *opened;             /* what attention or the delta rule gave, times its gate: the projection reads it */
    void *z;                  /* delta rule: its gate; backward: the gate's gradient                       */
    float *gates, *summed;    /* b and a (backward: their gradient, the stage's type); what the rule gave  */
    float *states;            /* as backward of the rule reads them                                        */
    void *taps;               /* extends: what the convolution reads of earlier tokens                     */
};

struct decoder_state {
    float *angles;      /* STAGE: of heads that turn                            */
    float *dnorm;       /* gradient of a norm's output                    */
    void *dattention;   /* gradient of attention's output, type           */
    void *dafter;       /* gradient behind a gate, type                   */
    void *du;           /* gradient before GELU, type                     */
    void *dqkv;         /* fp32                                         */
    void *dqkv_rounded; /* the same in 16 bits, where products are of them */
    void *dheads;       /* head_gates, delta rule: gradient of the product before, type */
    float *dsummed, *dnormed, *dgates, *drates; /* delta rule                           */
};

static inline struct linear_rows decoder_rows(const void *at)
{
    return (struct linear_rows){at, 0};
}

/* ---- decoder_delta.c: the replacement of attention in a block with the delta rule. */

/* Memory in addition to that of attention: LAYER_KEPT, LAYER_SLOT, LAYER_WORK. rows: of all samples. */
void decoder_delta_kept(const struct decoder_shape *shape, const struct aq_stage_config *config, struct aq_arena *arena,
                        struct decoder_slot *kept);
void decoder_delta_slot(const struct decoder_shape *shape, const struct aq_stage_config *config, struct aq_arena *arena,
                        struct decoder_slot *kept);
void decoder_delta_work(const struct decoder_shape *shape, uint64_t rows, struct aq_arena *arena,
                        struct decoder_state *work);

/* From kept->norm1 to kept->opened. */
enum aq_status decoder_delta_forward(const struct layer_run *run, const struct decoder_shape *shape);
/* From work->dattention, the gradient of opened, to work->dheads, and in the slot to z and gates. */
enum aq_status decoder_delta_backward(const struct layer_run *run, const struct decoder_shape *shape);
/* The gradients of its products' weights. dheads: as backward left it. */
enum aq_status decoder_delta_weights(const struct layer_run *run, const struct decoder_shape *shape,
                                     const void *dheads);
/* dnorm, fp32, is written: the gradient of norm1. */
enum aq_status decoder_delta_input(const struct layer_run *run, const struct decoder_shape *shape, const void *dheads,
                                   float *dnorm);
void decoder_delta_flops(const struct layer *layer, const struct decoder_shape *shape, double rows,
                         struct layer_flops *out);

/* opened = attention times the gates behind queries, in `heads`; and back, to dheads' columns of gates. */
enum aq_status decoder_open(const struct layer_run *run, const struct decoder_shape *shape);
enum aq_status decoder_open_backward(const struct layer_run *run, const struct decoder_shape *shape);

#endif
