/*
 * device_math.h -- the mathematics that stages and optimizers are made of: a part of the device's table (device.h).
 *
 * Caveats first. Every function only enqueues on its stream (NULL: the device's own); operands are borrowed until the
 * stream has passed. Pointers are device memory unless a comment states host. Nothing here allocates: scratch memory of
 * fixed size is taken when the device is opened.
 *
 * Results do not depend on the number of threads: an element is computed by one piece of work, in one order, and only
 * the operands' extents decide how work is cut. On one machine a result is therefore the same bits every time.
 *
 * Every kernel has a plain C truth (device/cpu: cpu_rows_plain.c, cpu_gemm_plain.c). The best variant of the processor
 * is taken, or what AQ_CPU asks for (aqsgd/base/processor.h).
 *
 * An operation is a struct of arguments here and a row of math.def; to add one, see docs/ARCHITECTURE.md.
 *
 * Letters: rows = samples * T; C channels; H heads; D channels of a head; F channels of an MLP; V vocabulary.
 * bf16 values are uint16_t, the upper half of a float, rounded to nearest even; fp16 values are uint16_t too, IEEE
 * binary16, rounded so, and infinite beyond 65504: an overflow is never hidden.
 *
 * Locking: as in device.h, one thread at a time.
 */
#ifndef AQSGD_DEVICE_MATH_H
#define AQSGD_DEVICE_MATH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "aqsgd/base.h"
#include "aqsgd/device.h"

#ifdef __cplusplus
extern "C" {
#endif

enum aq_element {
    AQ_F32 = 0,
    AQ_BF16 = 1,
    AQ_TF32 = 2, /* only as a product's compute: fp32 operands, of which a GPU may use the first 10 bits of mantissa */
    AQ_F16 = 3
};

static inline size_t aq_element_bytes(enum aq_element type)
{
    return type == AQ_BF16 || type == AQ_F16 ? 2 : 4;
}

/*
 * Dropout: an element is kept with probability 1 - p and divided by that. Word `offset + element` of the stream of the
 * sample's key decides, so that a mask depends only on the sample, not on its micro-batch or cut.
 */
struct aq_dropout {
    float probability;             /* 0: none; below 1                                                */
    const struct aq_rng_key *keys; /* one for each sample, device memory; NULL where probability is 0 */
};

/* The epilogue of a matrix product, applied to its sums while they are in registers. */
enum aq_matmul_after {
    AQ_AFTER_NONE = 0,
    AQ_AFTER_GELU = 1,          /* other = sum + bias (kept for backward), c = gelu(other)             */
    AQ_AFTER_GELU_BACKWARD = 2, /* c = sum * gelu'(other)                                              */
    AQ_AFTER_RESIDUAL = 3       /* c = other + dropout(sum + bias)                                     */
};

/*
 * c = after(op(a) op(b) + bias), or c += op(a) op(b). Row-major; strides in elements. op(a) is M x K: stored so, or as
 * K x M where a_transposed; op(b) is K x N likewise. compute AQ_BF16 or AQ_F16 rounds both operands to it; sums are in
 * fp32. `other` has c's shape, stride and type. accumulate requires c in fp32, no bias and AQ_AFTER_NONE. c overlaps
 * nothing: a product may be timed several times. AQ_AFTER_RESIDUAL adds in fp32 and rounds once, to c's type.
 *
 * bias_stride: each row of c has its own bias, which is added before `after` (an adapter's share). A GPU's library has
 * no such epilogue: there it is a second pass.
 *
 * bias_rounded: the bias once more, in c's 16 bits, or NULL. A GPU's library adds a bias to 16 bits in the product
 * itself only where it has their type; without it there is a second pass. The CPU adds the fp32 one.
 *
 * sums_a, sums_b: at most one. Sums over k, of a transposed a (sums_a[m] +=) or of a b that is not (sums_b[n] +=): the
 * gradient of a bias along with that of its weights. They equal aq_device_column_sum of the operand as stored; a GPU's
 * library computes them while it reads the operand, where it can.
 */
struct aq_matmul {
    uint64_t M, N, K;
    const void *a, *b;
    uint64_t a_stride, b_stride, c_stride;
    enum aq_element a_type, b_type, c_type;
    enum aq_element compute;
    bool a_transposed, b_transposed;
    bool accumulate;
    enum aq_matmul_after after;
    void *c;
    const float *bias;    /* N, or NULL                                 */
    uint64_t bias_stride; /* 0: one row for all; else (M, N), a row each */
    const uint16_t *bias_rounded;
    void *other;
    struct aq_dropout dropout;    /* AFTER_RESIDUAL                                                     */
    uint64_t dropout_sample_rows; /* rows of c that belong to one sample                                */
    float *sums_a, *sums_b;       /* M, N floats, or NULL                                               */
};

/*
 * y = (x - mean) rstd gamma + beta, row by row; variance of the population, epsilon added before the root. beta may be
 * NULL: 0. x of a norm, here and below, is fp32 or bf16; all is computed in fp32.
 */
struct aq_layernorm {
    uint64_t rows, C;
    float epsilon;
    const void *x;
    enum aq_element x_type;
    const float *gamma, *beta;
    void *y;
    enum aq_element y_type;
    float *mean, *rstd; /* rows; out in forward, in in backward */
};

/*
 * dx += gradient (dx holds the residual's), dgamma += , dbeta += , each of the two where it is not NULL. It also writes
 * what the next layer's backward products need, if asked for: rounded, dx in 16 bits, and sums[c] += the sum over rows
 * of `rounded` (of dx, where it is NULL), as aq_device_column_sum.
 */
struct aq_layernorm_backward {
    uint64_t rows, C;
    const void *x;
    enum aq_element x_type;
    const float *dy, *gamma, *mean, *rstd;
    float *dx, *dgamma, *dbeta;
    uint16_t *rounded;            /* or NULL */
    enum aq_element rounded_type; /* AQ_BF16 or AQ_F16 */
    float *sums;                  /* or NULL */
};

/*
 * y = x rstd (plus + gamma), row by row; rstd = 1 / sqrt(mean of x^2 + epsilon). Zhang and Sennrich 2019. other: fp32
 * y = other + that; it is not y.
 */
struct aq_rmsnorm {
    uint64_t rows, C;
    float epsilon;
    float plus; /* 0; 1 where a model keeps its weights so */
    const void *x;
    enum aq_element x_type;
    const float *gamma;
    const float *other; /* or NULL */
    void *y;
    enum aq_element y_type;
    float *rstd; /* rows */
};

/* As aq_layernorm_backward. */
struct aq_rmsnorm_backward {
    uint64_t rows, C;
    float plus;
    const void *x;
    enum aq_element x_type;
    const float *dy, *gamma, *rstd;
    float *dx, *dgamma;
    uint16_t *rounded;            /* or NULL */
    enum aq_element rounded_type; /* AQ_BF16 or AQ_F16 */
    float *sums;                  /* or NULL */
};

/*
 * Heads on their way to attention. A row of x and y, one of `samples` times T, is H heads of queries, kv_heads of keys
 * and kv_heads of values, D columns each. A head of queries or keys is first normalized (as aq_rmsnorm, with q_gamma or
 * k_gamma, D each), where these are given; then its first R columns turn by the angles of the row's place in its sample
 * (Su et al. 2021), column i with column i + R / 2:
 *
 *     y[i] = x[i] cos - x[i + R/2] sin     y[i + R/2] = x[i + R/2] cos + x[i] sin
 *
 * Values are copied. y may be x where nothing is normalized. If `gated` is true, D columns of a gate follow each head
 * of queries in a row of x. They are not read, and y does not have them; y is not x.
 */
struct aq_rope {
    uint64_t samples, T, H, kv_heads, D, R;
    bool gated;
    enum aq_element type;
    const void *x;
    void *y;
    const float *table;             /* (T, R): of each place R/2 cosines, then R/2 sines; NULL: R is 0 */
    const float *q_gamma, *k_gamma; /* or NULL, both */
    float plus, epsilon;
    float *rstd; /* rows times H + kv_heads; with gammas */
    const uint32_t *starts; /* or NULL: parts of samples, see below */
};

/*
 * dx is written: of the type, and may be dy where that is fp32. dq_gamma += and dk_gamma += where they are not NULL. If
 * `gated` is true, x and dx have columns of gates, which are neither read nor written; dx is not dy.
 */
struct aq_rope_backward {
    uint64_t samples, T, H, kv_heads, D, R;
    bool gated;
    enum aq_element type; /* of x and dx */
    const float *dy;
    void *dx;
    const float *table;
    const void *x; /* with gammas, as rstd */
    const float *q_gamma, *k_gamma, *rstd;
    float plus;
    float *dq_gamma, *dk_gamma;
    const uint32_t *starts;
};

/* The function of a gate: x / (1 + e^-x), GELU as AQ_AFTER_GELU has it, or as struct aq_gelu (below). */
enum aq_gate { AQ_GATE_SILU = 0, AQ_GATE_GELU = 1, AQ_GATE_GELU_EXACT = 2 };

/* y = gate(g) u: a row of x is F columns g, then F columns u (Shazeer 2020). */
struct aq_gated {
    uint64_t rows, F;
    enum aq_gate gate;
    enum aq_element type; /* of all */
    const void *x;
    void *y;
};

/* dx, a row of x's shape, is written; it may be x. */
struct aq_gated_backward {
    uint64_t rows, F;
    enum aq_gate gate;
    enum aq_element type;
    const void *x, *dy;
    void *dx;
};

/*
 * Parts of a sample, in attention, rope and embedding: consecutive texts in it that do not see each other. `starts`
 * has, for each of `samples` times T tokens, the place in its sample at which the token's part starts: at most the
 * token's own place, and the same for all tokens of a part. A query sees no key before its start, and a token's place
 * is counted from there. NULL: a sample is one part. Masks of dropout are drawn by place in the sample whatever its
 * parts.
 */
static inline uint64_t aq_place_of(const uint32_t *starts, uint64_t row, uint64_t T)
{
    return row % T - (starts ? starts[row] : 0);
}

/*
 * Attention of `samples` sequences of T tokens. It is causal, or `both`: every query sees the keys behind it, too, of
 * which the first lengths[s] of a sample are real; of rows of padding out, lse and all gradients are 0, whatever qkv
 * has there. A row of qkv is H heads of queries, kv_heads of keys and kv_heads of values, D columns each; out has H*D.
 * H / kv_heads queries in a row share a head of keys and values. lse is the log of the sum of exponentials of (sample,
 * head, token), kept for backward; no T x T matrix outlives a block of rows. Dropout on the weights: element (h *
 * T_mask + query) * T_mask + key. T_mask >= T keeps a mask when T is cut short. With a window a query sees only the
 * last `window` keys up to its own, itself among them (Beltagy et al. 2020); with `both` those less than `window`
 * behind it, too. Scores are s = q . k times `scale`, or with a cap cap tanh(s / cap) (Gemma Team 2024). If the type
 * has 16 bits and dqkv_rounded is not NULL, backward gives dqkv in it; then dqkv is memory to work in.
 */
struct aq_attention {
    uint64_t samples, T, H, kv_heads, D, T_mask;
    uint64_t window;      /* 0: none */
    bool both;
    float scale;          /* 0: 1 / sqrt(D) */
    float cap;            /* 0: none */
    enum aq_element type; /* of qkv, out and dout, and of the products; dqkv is fp32 always */
    const void *qkv;
    void *out;
    float *lse;
    struct aq_dropout dropout;
    const uint32_t *starts;  /* or NULL: see above; not with `both`            */
    const uint32_t *lengths; /* of each sample, 1 to T, with `both`; NULL: all T */
    const void *dout; /* backward only, as dqkv */
    float *dqkv;
    uint16_t *dqkv_rounded;
};

/*
 * Causal attention of T tokens per sample behind `first` earlier ones whose keys and values are kept: only forward,
 * without dropout. A row of qkv is as aq_attention's, and there are rows of the T tokens only. cache has `rows` rows a
 * sample, of kv_heads heads of keys, then of values, D columns each: those of the T tokens are written to rows first ..
 * first + T - 1. Then token first + t sees those of tokens 0 .. first + t, or the last `window` of them. Sums are fp32
 * whatever the type. out has rows of H D columns; NULL: keys and values are kept, and that is all.
 */
struct aq_attention_cached {
    uint64_t samples, T, first, rows, H, kv_heads, D;
    uint64_t window;      /* 0: all                    */
    float scale;          /* of scores; 0: 1 / sqrt(D) */
    float cap;            /* as aq_attention's         */
    enum aq_element type; /* of qkv, cache and out     */
    const void *qkv;
    void *cache;
    void *out;
};

/*
 * A causal convolution along the tokens of each sample, every column for itself (Gu and Dao 2023):
 *
 *     s[t][c] = bias[c] + sum over k of w[c][k] u[t + k - (K - 1)][c]        y[t][c] = act(s[t][c])
 *
 * The last tap is of the token itself. u is 0 before the start of the token's part. act is SiLU, or the identity.
 * Without `gates`, u is x. With them a row of x is C columns b, then C columns g, then C columns x, and u = b x, y = g
 * act(s): the short convolution of LFM2 (Liquid AI 2025). y and dy have rows of C columns.
 *
 * For generation, `cache` keeps u of earlier tokens: token p of a sample is in row p % rows of its `rows` rows. The
 * tokens of this call are first .. first + T - 1. The call reads the last K - 1 tokens before them, and then keeps its
 * own. `rows` is K - 1 at least. If it is all tokens, a later call may start at any earlier token. No parts then.
 *
 * Backward reads x, w, bias, starts and dy. It writes dx, laid out as x, which is not x. dw += and dbias += where they
 * are not NULL.
 */
enum { AQ_CAUSAL_CONV_TAPS = 16 };
struct aq_causal_conv {
    uint64_t samples, T, C, K; /* K: 1 to AQ_CAUSAL_CONV_TAPS                         */
    bool gates, silu;
    enum aq_element type; /* of x, y, cache, dy and dx                                  */
    uint64_t stride;      /* elements from row to row of x and of dx: C or 3 C at least */
    const void *x;
    const float *w, *bias;  /* (C, K), C; bias may be NULL  */
    const uint32_t *starts; /* or NULL: see aq_place_of     */
    uint64_t first, rows;   /* with a cache                 */
    void *cache;            /* (samples, rows, C), or NULL  */
    void *y;
    const void *dy; /* backward only, as what follows */
    void *dx;
    float *dw, *dbias;
};

/*
 * The gated delta rule (Yang et al. 2025, "Gated Delta Networks"): a head of values has a state S of Dk rows and Dv
 * columns, which each token of a sample changes before it reads it:
 *
 *     S = e^g S        S = S + k (beta (v - S^T k))^T        out = S^T q
 *     g = -e^rate softplus(a + shift)        beta = 1 / (1 + e^-b)
 *
 * q and k are divided by the root of the sum of their squares plus epsilon, and q by the root of Dk. A row of qkv, one
 * of `samples` times T, is K heads of queries, K heads of keys, and H heads of values. Heads of queries and keys have
 * Dk columns, heads of values Dv. H / K heads of values in a row share a head of queries and keys. A row of gates is H
 * values b, then H values a.
 *
 * The state is zero before the first token of a sample, and of a part (starts, see above). If `continues` is true, the
 * state before token 0 is what `carried` has. If carried is not NULL, the state behind the last token is written to it.
 *
 * Tokens are computed in chunks: a part is cut into chunks of AQ_DELTA_CHUNK tokens, of which the last may have fewer.
 * Backward reads the state before each chunk, except the first of a part. `states` has them, for each sample
 * aq_delta_states(T) times H states: that of a chunk from token t on is number t / AQ_DELTA_CHUNK - 1. If states is
 * NULL, forward does not keep them. Backward has no `carried`. All sums are in fp32.
 *
 * AQ_INVAL: Dk or Dv above AQ_DELTA_HEAD_MAX, or H / K Dk Dv above AQ_DELTA_GROUP_MAX.
 */
enum { AQ_DELTA_CHUNK = 64, AQ_DELTA_HEAD_MAX = 256, AQ_DELTA_GROUP_MAX = 1 << 17 };

static inline uint64_t aq_delta_states(uint64_t T)
{
    return (T - 1) / AQ_DELTA_CHUNK;
}

struct aq_delta {
    uint64_t samples, T, K, H, Dk, Dv;
    float epsilon;
    enum aq_element type;      /* of qkv and dqkv                       */
    const void *qkv;           /* (samples T, 2 K Dk + H Dv)            */
    const float *gates;        /* (samples T, 2 H)                      */
    const float *rate, *shift; /* H each                                */
    const uint32_t *starts;    /* or NULL                               */
    float *out;                /* (samples T, H Dv); backward: not read */
    float *states;             /* backward reads it; NULL where aq_delta_states(T) is 0 */
    float *carried;            /* (samples, H, Dk, Dv), or NULL         */
    bool continues;
    const float *dout; /* backward only, as what follows; these are written */
    void *dqkv;
    float *dgates; /* (samples T, 2 H): of b, then of a; the sum of a column of a is the gradient of its shift */
    float *drates; /* (samples T, H): the sum of a column is the gradient of its rate                          */
};

/*
 * y = x gate(g), of heads: a row, one of `rows`, has H heads of D columns. x and y have one head after another. Head h
 * of row r of g starts at element r g_row + h g_head.
 */
enum aq_gating_kind { AQ_GATING_SIGMOID = 0, AQ_GATING_SILU = 1 };
struct aq_gating {
    uint64_t rows, H, D, g_row, g_head;
    enum aq_gating_kind kind;
    enum aq_element type; /* of all, but of dx */
    const void *g, *x;
    void *y;
};

/* dg has g's layout, and may be g. dx is written: of dx_type, the type or fp32; it may be dy where types are one. */
struct aq_gating_backward {
    uint64_t rows, H, D, g_row, g_head;
    enum aq_gating_kind kind;
    enum aq_element type, dx_type;
    const void *g, *x, *dy;
    void *dg, *dx;
};

/*
 * Disentangled attention (He et al. 2021, "DeBERTa") of `samples` sequences of T tokens, of which the first lengths[s]
 * are real; every query sees every real key. In addition to q and k there are the positions: R rows of Q and K of all
 * heads; index[query - key + T - 1] is the row of that distance. It never falls as the distance rises.
 *
 *     score = scale (q_i . k_j + q_i . K[index of i - j] + k_j . Q[index of i - j])
 *
 * Of rows of padding `out` and all gradients are 0, whatever qkv has there. lse, dropout and T_mask are as
 * aq_attention's. dqkv and dpositions are written, in fp32; rows of positions that no distance has get 0.
 */
struct aq_disentangled {
    uint64_t samples, T, H, D, T_mask, R;
    float scale;
    enum aq_element type;   /* of qkv, positions, out and dout, and of the products */
    const void *qkv;        /* (samples T, 3 H D)                                   */
    const void *positions;  /* (R, 2 H D): Q, then K                                */
    const int32_t *index;   /* 2 T - 1, each 0 to R - 1                             */
    const uint32_t *lengths; /* of each sample, 1 to T; NULL: all T                 */
    void *out;
    float *lse;
    struct aq_dropout dropout;
    const void *dout; /* backward only, as the two behind it */
    float *dqkv, *dpositions;
};

/*
 * GELU by the normal distribution itself (Hendrycks and Gimpel 2016), y = x Phi(x); AQ_AFTER_GELU is its tanh
 * approximation, up to 5e-4 apart. other: y = other + x Phi(x), in fp32. y may be x where types are one.
 */
struct aq_gelu {
    uint64_t count;
    enum aq_element type; /* of x, and of y where there is no other */
    const void *x;
    const float *other; /* or NULL */
    void *y;
};

/* dx = dy (Phi(x) + x phi(x)); dx may be dy. */
struct aq_gelu_backward {
    uint64_t count;
    enum aq_element type; /* of all */
    const void *x, *dy;
    void *dx;
};

/* y = tanh(x), of a pooler. y may be x. */
struct aq_tanh {
    uint64_t count;
    const float *x;
    float *y;
};

/* dx = dy (1 - y^2), y is forward's; dx may be dy. */
struct aq_tanh_backward {
    uint64_t count;
    const float *y, *dy;
    float *dx;
};

/*
 * Rows of a sample next to their neighbours, so that a product is a convolution over tokens: y[t][c K + k] = x[t + k -
 * K / 2][c], 0 where that is no real row. K is odd. Backward: dx[t][c] += what y's gradient has of it, of real rows.
 */
struct aq_unfold {
    uint64_t samples, T, C, K;
    const uint32_t *lengths; /* or NULL */
    const float *x;
    void *y;
    enum aq_element y_type;
};

struct aq_unfold_backward {
    uint64_t samples, T, C, K;
    const uint32_t *lengths; /* or NULL */
    const float *dy;
    float *dx;
};

/*
 * x[row] = token_table[tokens[row]] + position_table[row % T] (NULL: none), then dropout; add: x[row] += that. tokens
 * are in range (checked by the caller). scale: rows of tokens times that, where there are no positions and nothing is
 * added to. x is fp32, or bf16 if nothing is added to it: then each value is rounded once.
 */
struct aq_embedding {
    uint64_t samples, T, C;
    uint64_t V;
    bool add;
    const int32_t *tokens; /* device */
    const float *token_table, *position_table;
    float scale; /* 0: none */
    void *x;
    enum aq_element x_type;
    struct aq_dropout dropout;
    const uint32_t *starts; /* or NULL: parts of samples, see above */
};

/*
 * token_gradient[tokens[row]] += dropout'(dx[row]), position_gradient[row % T] += the same, rows in ascending order;
 * each where it is not NULL. scale: as forward's.
 */
struct aq_embedding_backward {
    uint64_t samples, T, C;
    uint64_t V;
    const int32_t *tokens;
    const float *dx;
    float *token_gradient, *position_gradient;
    float scale;
    struct aq_dropout dropout;
    const uint32_t *starts;
};

/*
 * Softmax and cross-entropy of rows of V logits (words of a vocabulary, classes of an image), which are used up.
 * losses[row] = log(sum exp) - logit[target] in nats, 0 where the target is -1. With gradient != NULL also
 * gradient[row][v] = scale * (softmax - one at the target), 0 where the target is -1; it may be logits itself, or an
 * array of 16 bits that starts at the same byte with twice the stride; columns V..stride-1 become 0. Logits of 16 bits
 * are widened first, and all else is in fp32: then the gradient has their type, and may be logits itself. cap: fp32
 * logits come from aq_device_cap with it, and the gradient is with respect to that function's input: it has the factor
 * 1 - (logit / cap)^2.
 */
struct aq_cross_entropy {
    uint64_t rows, V;
    void *logits;
    enum aq_element logits_type; /* AQ_F32, or gradient_type */
    uint64_t logits_stride;
    const int32_t *targets; /* device */
    float *losses;
    void *gradient;
    uint64_t gradient_stride;
    enum aq_element gradient_type;
    float scale;
    float cap; /* 0: none; only with fp32 logits */
};

/*
 * Squared error of rows that predict one number: losses[row] = (output - target)^2, 0 where the target is NaN: not
 * counted. With gradient != NULL also gradient[row][0] = scale * 2 (output - target), 0 where the target is NaN;
 * columns 1..gradient_stride-1 become 0. It may be outputs itself, or 16 bits from the same byte on with twice the
 * stride.
 */
struct aq_squared_error {
    uint64_t rows;
    float *outputs;
    uint64_t outputs_stride;
    const float *targets; /* device */
    float *losses;
    void *gradient;
    uint64_t gradient_stride;
    enum aq_element gradient_type;
    float scale;
};

/* sums[c] += sum over rows of x[row][c], rows in ascending order. */
struct aq_column_sum {
    uint64_t rows, C, stride;
    const void *x;
    enum aq_element type;
    float *sums;
};

/*
 * y = dropout(x) of (samples, sample_elements), as y_type; with probability 0 a copy or conversion. x is fp32 unless
 * x_type is set, and may be y where both types are one. add: y += that, in fp32.
 */
struct aq_dropout_apply {
    uint64_t samples, sample_elements;
    const void *x;
    void *y;
    enum aq_element y_type;
    struct aq_dropout dropout;
    enum aq_element x_type;
    bool add;
};

/*
 * Weights kept in 8 bits, as fp32 or rounded to 16 bits: y[i] = x[i] scales[i / AQ_UNPACK_GROUP]. A scale has at most
 * 16 bits of mantissa, so that the product is exact in fp32, on every device.
 */
enum { AQ_UNPACK_GROUP = 64 };
struct aq_unpack {
    uint64_t count;
    const int8_t *x;
    const float *scales;
    void *y;
    enum aq_element y_type;
};

/*
 * Weights kept in 4 bits (nf4 of QLoRA, Dettmers et al. 2023, as bitsandbytes keeps it): y[i] = AQ_NF4_VALUES[code i]
 * times scale i / AQ_UNPACK_GROUP, as fp32 or rounded to 16 bits. A byte of x has two codes: first the high half.
 *
 * A scale is scales[g]. With scale_codes (double quantization) it is map[scale_codes[g]] scales[g / AQ_NF4_SCALES] +
 * map[256]. Each product and each sum is rounded to fp32 on its own, so that all devices give the same bits.
 */
enum { AQ_NF4_SCALES = 256, AQ_NF4_MAP = 257 };
#define AQ_NF4_VALUES                                                                                                  \
    -0x1p+0f, -0x1.647362p-1f, -0x1.0cd66p-1f, -0x1.94654p-2f, -0x1.23449ap-2f, -0x1.7a6a7ep-3f, -0x1.74f0e2p-4f,      \
    0.0f, 0x1.45f5fep-4f, 0x1.4995c6p-3f, 0x1.f809bap-3f, 0x1.5a0674p-2f, 0x1.c3497p-2f, 0x1.200f56p-1f,               \
    0x1.722766p-1f, 0x1p+0f
struct aq_unpack_nf4 {
    uint64_t count;
    const uint8_t *x;
    const float *scales;
    const uint8_t *scale_codes; /* NULL: scales are as they are   */
    const float *map;           /* AQ_NF4_MAP floats, then        */
    void *y;
    enum aq_element y_type;
};

/* x = std * normal(key, element) for `count` elements; std 0 with a value: x = value. */
struct aq_fill_normal {
    float *x;
    uint64_t count;
    struct aq_rng_key key;
    float std, value;
};

/* y = max(x, 0); NaN stays NaN. y may be x. */
struct aq_relu {
    uint64_t count;
    const float *x;
    float *y;
};

/* dx = dy where y (forward's) is above 0, else 0. dx may be dy. */
struct aq_relu_backward {
    uint64_t count;
    const float *y, *dy;
    float *dx;
};

/*
 * Batch normalization of a rows x C matrix, column by column (Ioffe and Szegedy 2015, Algorithms 1 and 2; an image's
 * rows are its samples' pixels):
 *
 *     z = (x - mean) rstd gamma + beta + add,   rstd = 1 / sqrt(variance + epsilon),   y = z, or max(z, 0) with relu
 *
 * training: mean and variance (of the population) come from this call, are kept in mean and rstd for backward, and
 * update the running ones, where they are not NULL, as in PyTorch: running += momentum (this call's - running), with
 * the variance of the sample, rows / (rows - 1) times the population's (rows 1: the population's, 0). Not training: the
 * running ones are taken, and only y is written. y may be x only where no backward follows; y may be add.
 */
struct aq_batch_norm {
    uint64_t rows, C;
    bool training, relu;
    float epsilon, momentum;
    const float *x, *gamma, *beta;
    const float *add; /* rows x C: a shortcut's values; NULL: zeroes */
    float *y;
    float *mean, *rstd;                     /* C; training */
    float *running_mean, *running_variance; /* C; or NULL in training */
};

/*
 * dx is written, dgamma and dbeta, where not NULL, are added to; of a forward in training. With relu z is made again of
 * x, beta and add, and where it is not above 0 dy counts as 0; dz, where not NULL, is written: dy so counted, which is
 * the gradient of add, too. dx may be dy, or dz may.
 */
struct aq_batch_norm_backward {
    uint64_t rows, C;
    bool relu;
    const float *x, *dy, *gamma, *mean, *rstd;
    const float *beta, *add; /* relu: forward's; add NULL: there was none */
    float *dx, *dgamma, *dbeta;
    float *dz;
};

/*
 * Group normalization of samples of T x C (Wu and He 2018): the C columns are `groups` groups of C / groups adjacent
 * columns, and mean and variance (of the population) are taken over a group's values in a sample:
 *
 *     z = (x - mean) rstd gamma + beta + add,   rstd = 1 / sqrt(variance + epsilon),   y = z, or max(z, 0) with relu
 *
 * Training and evaluation are the same. mean and rstd are kept for backward, or NULL. y may be x only where no backward
 * follows; y may be add.
 */
struct aq_group_norm {
    uint64_t samples, T, C, groups;
    bool relu;
    float epsilon;
    const float *x, *gamma, *beta;
    const float *add; /* samples x T x C: a shortcut's values; NULL: zeroes */
    float *y;
    float *mean, *rstd; /* samples x groups; or NULL */
};

/* As aq_batch_norm_backward. */
struct aq_group_norm_backward {
    uint64_t samples, T, C, groups;
    bool relu;
    const float *x, *dy, *gamma, *mean, *rstd;
    const float *beta, *add; /* relu: forward's; add NULL: there was none */
    float *dx, *dgamma, *dbeta;
    float *dz;
};

/*
 * Convolution of images (their rows are pixels, line by line), with as many zeroes around an image as keep its size
 * where stride is 1: K is odd.
 *
 *     y[s][i][j][n] = sum over u, v < K and c of x[s][i stride + u - K/2][j stride + v - K/2][c] w[(u K + v) C + c][n]
 *
 * x (samples, height, width, C), w (K K C, N), y (samples, (height - 1) / stride + 1, (width - 1) / stride + 1, N), all
 * fp32; with compute AQ_BF16 or AQ_F16 both factors are rounded to it first.
 */
struct aq_conv_shape {
    uint64_t samples, height, width, C, N, K, stride;
    enum aq_element compute;
};

static inline uint64_t aq_conv_out(uint64_t extent, uint64_t stride)
{
    return (extent - 1) / stride + 1;
}

struct aq_conv {
    struct aq_conv_shape shape;
    const float *x, *w;
    float *y;
};

/* dx is written. */
struct aq_conv_backward {
    struct aq_conv_shape shape;
    const float *dy, *w;
    float *dx;
};

/* dw is added to. */
struct aq_conv_weights {
    struct aq_conv_shape shape;
    const float *x, *dy;
    float *dw;
};

/*
 * The largest value of each channel within a window of K x K pixels, K odd, as a convolution of that K and stride
 * would place it; nothing is around the image. Of equal ones the first in order of rows is taken, as PyTorch takes it;
 * a NaN is the largest.
 *
 *     y[s][i][j][c] = max over u, v < K of x[s][i stride + u - K/2][j stride + v - K/2][c]
 *
 * x (samples, height, width, C), y (samples, (height - 1) / stride + 1, (width - 1) / stride + 1, C).
 */
struct aq_pool_shape {
    uint64_t samples, height, width, C, K, stride;
};

struct aq_max_pool {
    struct aq_pool_shape shape;
    const float *x;
    float *y;
};

/* dx, written: of each pixel the sum of dy over the windows of which it is what was taken; x is forward's. */
struct aq_max_pool_backward {
    struct aq_pool_shape shape;
    const float *x, *dy;
    float *dx;
};

/* y[s] = the mean of sample s's T rows of x; x (samples, T, C), y (samples, C). */
struct aq_row_mean {
    uint64_t samples, T, C;
    const float *x;
    float *y;
};

/* dx[s][t] = dy[s] / T. */
struct aq_row_mean_backward {
    uint64_t samples, T, C;
    const float *dy;
    float *dx;
};

/* index[row] = the column of the row's largest value, the first of equal ones: the class that logits predict. */
struct aq_argmax {
    uint64_t rows, C, stride;
    const float *x;
    int32_t *index;
};

/*
 * Rows with a learnt length (Liu et al. 2024, DoRA, equation 5). V = w + d, which d becomes; n_j = |V_j|.
 *
 *     y_j = (m_j / n_j) V_j        a row of V that is all zeroes stays zeroes, whatever m_j
 *
 * w (rows, C), or as it is stored the other way round (C, rows): turned. d, m fp32.
 */
struct aq_magnitude {
    uint64_t rows, C;
    const void *w;
    enum aq_element w_type;
    bool w_transposed;
    float *d;
    const float *m;
    void *y; /* (rows, C) */
    enum aq_element y_type;
};

/*
 * Its gradients, n_j taken for a constant (ibid., section 4.3). g is the gradient of y and becomes `scale` times the
 * gradient of V:
 *
 *     dm_j += g_j . V_j / n_j        g_j = (scale m_j / n_j) g_j
 */
struct aq_magnitude_backward {
    uint64_t rows, C;
    const void *w;
    enum aq_element w_type;
    bool w_transposed;
    float *d; /* becomes V, as above */
    const float *m;
    float *g, *dm; /* (rows, C); rows */
    float scale;
};

/* x *= factor. Values that are not finite stay so. */
struct aq_scale {
    float *x;
    uint64_t count;
    float factor;
};

/* x = cap tanh(x / cap): a soft cap (Bello et al. 2016). NaN stays. */
struct aq_cap {
    float *x;
    uint64_t count;
    float cap; /* above 0 */
};

/*
 * The functions themselves, aq_device_NAME(device, args, stream): math.def has a row for each, with the conditions on
 * its arguments. NAME is the struct's, with these exceptions: aq_device_dropout takes struct aq_dropout_apply,
 * aq_device_attention_backward struct aq_attention.
 */
#define AQ_MATH(name, type, ...)                                                                                       \
    enum aq_status aq_device_##name(struct aq_device *device, const struct type *args, struct aq_stream *stream);
#include "aqsgd/math.def"

/* Elements `first` to first + count - 1 of an array. */
struct aq_range {
    uint64_t first, count;
};

/*
 * sums[i] (host, valid at return: waits for the stream, once) = sum of the squares of spans[i] of x, in double, in an
 * order that depends only on its count.
 */
enum aq_status aq_device_squares(struct aq_device *device, const float *x, const struct aq_range *spans, uint32_t count,
                                 double *sums, struct aq_stream *stream);

#ifdef __cplusplus
}
#endif
#endif
