/*
 * deberta.h -- what the layers of DeBERTa v2 and v3 share (He et al. 2021), published as
 * DebertaV2ForSequenceClassification; private to stages/.
 *
 * The model's own fields, and the relative positions: a distance between two tokens has a row of a table that all
 * blocks read. The table has 2 S rows, S the span; a distance's row is S + its bucket, clamped to the table. Buckets
 * are the distances themselves, or (position_buckets > 0, then S is that many) up to S / 2 the distances and from
 * there on logarithmic, so that distances up to `context` fall into S.
 *
 * Samples of T tokens have distances -(T - 1) .. T - 1: only their rows, which follow each other, are normalized,
 * projected and trained.
 */
#ifndef DEBERTA_H
#define DEBERTA_H

#include "linear.h"

/* Of aq_model_config.own, behind those of other models: a manifest's defaults are filled in for all of them. */
enum deberta_own {
    DEBERTA_INNER = 3, /* width of a block's MLP, 0: 4 C                                  */
    DEBERTA_BUCKETS,   /* position_buckets; 0: none                                       */
    DEBERTA_KERNEL = 6, /* tokens that v2's convolution in the first block sees; 0: none     */
    DEBERTA_EMBEDDING, /* width of the embedding, projected where it is not C; 0: C       */
};

static inline uint32_t deberta_inner(const struct aq_model_config *model)
{
    return model->own[DEBERTA_INNER] ? model->own[DEBERTA_INNER] : 4 * model->channels;
}

static inline uint32_t deberta_embedding(const struct aq_model_config *model)
{
    return model->own[DEBERTA_EMBEDDING] ? model->own[DEBERTA_EMBEDDING] : model->channels;
}

/* Of every layer norm, as published. */
static const float DEBERTA_EPSILON = 1e-7f;

/* Half of the table's rows. */
static inline uint32_t deberta_span(const struct aq_model_config *model)
{
    return model->own[DEBERTA_BUCKETS] ? model->own[DEBERTA_BUCKETS] : model->context;
}

/* layer_deberta_block.c: the row of a distance, query - key. */
uint32_t deberta_row(const struct aq_model_config *model, int32_t distance);

/* The three tensors of the positions, that the first layer has and the blocks share: the table and its layer norm's. */
enum { DEBERTA_TABLE, DEBERTA_TABLE_NORM, DEBERTA_TABLE_NORM_BIAS, DEBERTA_SHARED };

/* layer_deberta_embedding.c: their names in the first layer, and their shapes. */
struct deberta_shared {
    const char *name, *own; /* own: of a block that has its own, behind the block's number */
    uint64_t rows;          /* 0: a vector                                                 */
    float std, value;
    uint64_t first, count; /* floats that samples of T tokens read */
};
void deberta_shared(const struct aq_stage_config *config, struct deberta_shared out[DEBERTA_SHARED]);

/* layer_deberta_block.c: rows of the table that samples of T tokens use. */
struct deberta_used {
    uint32_t first, count;
};
struct deberta_used deberta_used(const struct aq_stage_config *config);

/* x of `rows` rows as products read it: itself where they read fp32, else rounded to `rounded`. */
enum aq_status deberta_operand(const struct layer_run *run, uint64_t count, const float *x, void *rounded,
                               const void **out);

/* Layer norm of `rows` rows of the layer's output's columns, with tensors weight and weight + 1. */
enum aq_status deberta_norm(const struct layer_run *run, uint64_t rows, const float *x, uint32_t weight, void *y,
                            enum aq_element type, float *mean, float *rstd);
/* dx, written. */
enum aq_status deberta_norm_gradient(const struct layer_run *run, uint64_t rows, const float *dy, const float *x,
                                     uint32_t weight, const float *mean, const float *rstd, float *dx);

#endif
