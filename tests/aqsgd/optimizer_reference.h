/*
 * optimizer_reference.h -- each optimizer's paper in double: what test_optimizer_ranks.c and test_optimizer_slamb.c
 * compare the product with, step by step and state by state.
 *
 * The reference shares no code with the product. Before each step it takes over the product's parameters and state,
 * makes the step in double, and compares all of them. A value that lies on the border of two codes may fall to either
 * side: a handful of mismatches in a thousand is allowed, where something is quantized. Each file uses some of it.
 */
#ifndef TESTS_OPTIMIZER_REFERENCE_H
#define TESTS_OPTIMIZER_REFERENCE_H

#pragma GCC diagnostic ignored "-Wunused-function"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "optimizer_ranks.h"

enum { N = RANK_FLOATS, ARRAYS = 10, STEPS = 10 };

typedef double vector[N];

/* What the reference works on. */
static vector P[RANKS_MAX], G[RANKS_MAX], A[ARRAYS][RANKS_MAX];
static struct ranks ranks;
static const struct aq_optimizer_config *C;
static double LR;
static uint64_t STEP;

static vector *array(const char *name)
{
    return A[ranks_state(&ranks, name)];
}

static uint64_t chunk_first(uint32_t w)
{
    const uint64_t each = ((N + ranks.W - 1) / ranks.W + 63) / 64 * 64;
    return each * w < N ? each * w : N;
}

static uint64_t chunk_end(uint32_t w)
{
    return w + 1 < ranks.W ? chunk_first(w + 1) : N;
}

/* ---- the codecs in double: y of one tensor's part of one chunk ---- */

typedef void (*code)(const double *y, uint64_t n, double *decoded);

static void code_sign_l2(const double *y, uint64_t n, double *decoded)
{
    double square = 0;
    for (uint64_t i = 0; i < n; i++)
        square += y[i] * y[i];
    for (uint64_t i = 0; i < n; i++)
        decoded[i] = (y[i] >= 0 ? 1 : -1) * sqrt(square / (double)n);
}

static void code_4_bits(const double *y, uint64_t n, double *decoded)
{
    for (uint64_t b = 0; b < n; b += 512) {
        double peak = 0;
        for (uint64_t i = b; i < n && i < b + 512; i++)
            peak = fmax(peak, fabs(y[i]));
        for (uint64_t i = b; i < n && i < b + 512; i++)
            decoded[i] = peak > 0 ? rint(y[i] * 7 / peak) * peak / 7 : 0;
    }
}

static void code_vote(const double *y, uint64_t n, double *decoded)
{
    for (uint64_t i = 0; i < n; i++)
        decoded[i] = y[i] > 0 || (y[i] == 0 && STEP % 2 == 1) ? 1 : -1;
}

/* decoded = C(x + error), error = what is left; by tensor; what is no tensor's is 0. */
static void compress(code codec, uint64_t first, uint64_t end, const double *x, double *error, double *decoded)
{
    double y[N];
    memset(decoded, 0, (end - first) * sizeof *decoded);
    for (int t = 0; t < RANK_TENSORS; t++) {
        uint64_t from = rank_tensors[t].offset, to = from + rank_tensors[t].count;
        from = from < first ? first : from;
        to = to > end ? end : to;
        if (from >= to) continue;
        for (uint64_t i = from; i < to; i++)
            y[i - from] = x[i - first] + (error ? error[i - first] : 0);
        codec(y, to - from, decoded + (from - first));
        for (uint64_t i = from; i < to && error; i++)
            error[i - first] = y[i - from] - decoded[i - first];
    }
}

/* The compressed allreduce of 1-bit Adam's lines 7 to 13. */
static void reduce(code codec, vector *x, vector *worker, vector *server)
{
    static vector mean, part, result;
    for (uint32_t owner = 0; owner < ranks.W; owner++) {
        const uint64_t first = chunk_first(owner), end = chunk_end(owner);
        memset(mean, 0, sizeof mean);
        for (uint32_t w = 0; w < ranks.W; w++) {
            compress(codec, first, end, x[w] + first, worker ? worker[w] + first : NULL, part);
            for (uint64_t i = 0; i < end - first; i++)
                mean[i] += codec == code_vote ? part[i] : part[i] / ranks.W; /* a tie is zero for every W */
        }
        compress(codec, first, end, mean, server ? server[owner] : NULL, result + first);
    }
    for (uint32_t w = 0; w < ranks.W; w++)
        memcpy(x[w], result, sizeof result);
}

static void mean_of(vector *x, uint64_t first, uint64_t count)
{
    for (uint64_t i = first; i < first + count; i++) {
        double sum = 0;
        for (uint32_t w = 0; w < ranks.W; w++)
            sum += x[w][i];
        for (uint32_t w = 0; w < ranks.W; w++)
            x[w][i] = sum / ranks.W;
    }
}

/* For every float of every tensor on every rank: w, t, i. */
#define EACH(w, t, i)                                                                                                  \
    for (uint32_t w = 0; w < ranks.W; w++)                                                                             \
        for (int t = 0; t < RANK_TENSORS; t++)                                                                         \
            for (uint64_t i = rank_tensors[t].offset; i < rank_tensors[t].offset + rank_tensors[t].count; i++)

static double decay_of(int t)
{
    return rank_tensors[t].decay ? (double)C->weight_decay : 0;
}

static double corrected(float beta, uint64_t step)
{
    return 1 - pow((double)beta, (double)step);
}

/* ---- the optimizers ---- */

static void adam_moments(bool with_v)
{
    vector *m = array("m"), *v = array("v");
    const double b1 = (double)C->beta1, b2 = (double)C->beta2;
    EACH(w, t, i)
    {
        m[w][i] = b1 * m[w][i] + (1 - b1) * G[w][i];
        if (with_v) v[w][i] = b2 * v[w][i] + (1 - b2) * G[w][i] * G[w][i];
    }
}

static void adamw_step(void)
{
    vector *m = array("m"), *v = array("v");
    adam_moments(true);
    EACH(w, t, i)
    {
        const double u =
            m[w][i] / corrected(C->beta1, STEP) / (sqrt(v[w][i] / corrected(C->beta2, STEP)) + (double)C->epsilon);
        P[w][i] -= LR * (u + decay_of(t) * P[w][i]);
    }
}

static void ref_adamw(void)
{
    mean_of(G, 0, N);
    adamw_step();
}

static void ref_adamw_4_bits(void)
{
    reduce(code_4_bits, G, array("worker_error"), array("server_error"));
    adamw_step();
}

static void ref_sgd_sign_no_errors(void)
{
    vector *velocity = array("velocity");
    reduce(code_sign_l2, G, NULL, NULL);
    EACH(w, t, i)
    {
        velocity[w][i] = (double)C->momentum * velocity[w][i] + G[w][i];
        P[w][i] -= LR * (velocity[w][i] + decay_of(t) * P[w][i]);
    }
}

/* Where v is zero the momentum and the errors are wiped off. */
static void wipe(vector *v)
{
    EACH(w, t, i)
    {
        if (v[w][i] != 0) continue;
        array("m")[w][i] = 0;
        if (ranks.W > 1) array("worker_error")[w][i] = 0;
    }
    for (uint32_t w = 0; w < ranks.W && ranks.W > 1; w++) {
        for (uint64_t i = chunk_first(w); i < chunk_end(w); i++)
            if (v[w][i] == 0) array("server_error")[w][i - chunk_first(w)] = 0;
    }
}

static void ref_qadam(void)
{
    vector *m = array("m"), *v = array("v");
    const bool warm = STEP <= C->warmup_steps;
    if (warm) mean_of(G, 0, N);
    adam_moments(warm);
    if (!warm && ranks.W > 1) reduce(code_4_bits, m, array("worker_error"), array("server_error"));
    if (!warm) wipe(v);
    EACH(w, t, i)
    {
        const bool holds = C->form && strcmp(C->form, "paper") == 0 && !warm;
        const double size = LR * sqrt(corrected(C->beta2, holds ? C->warmup_steps : STEP)) / corrected(C->beta1, STEP);
        P[w][i] -= size * m[w][i] / (sqrt(v[w][i]) + (double)C->epsilon);
        P[w][i] -= LR * decay_of(t) * P[w][i];
    }
}

/* The switch: at warmup_steps where freeze_ratio is 0; else by the paper's ratio, from a history of its own. */
static double norms[64];

static void consider_freezing(vector *v, vector *frozen)
{
    if (C->freeze_ratio == 0) {
        for (uint32_t w = 0; w < ranks.W && STEP >= C->warmup_steps; w++)
            frozen[w][0] = (double)STEP;
        return;
    }
    const uint64_t interval = (uint64_t)rint(1 / (1 - (double)C->beta2));
    norms[STEP] = 0;
    for (uint64_t i = 0; i < N; i++)
        norms[STEP] += fabs(v[0][i]);
    /* What is known when a step begins is the norm after the one before; behind the count of updates in two floats. */
    for (uint32_t w = 0; w < ranks.W; w++) {
        array("norms")[w][0] = (double)STEP;
        array("norms")[w][2 + (STEP - 1) % interval] = STEP > 1 ? norms[STEP - 1] : 0;
    }
    if (STEP - 1 <= interval || STEP < C->warmup_steps) return;
    const double ratio = norms[STEP - 1 - interval] / norms[STEP - 1];
    for (uint32_t w = 0; w < ranks.W && fmin(ratio, 1 / ratio) >= (double)C->freeze_ratio; w++)
        frozen[w][0] = (double)STEP;
}

static void ref_onebit_adam(void)
{
    vector *m = array("m"), *v = array("v"), *frozen = array("frozen_at");
    const uint64_t at = (uint64_t)frozen[0][0];
    if (at == 0) mean_of(G, 0, N);
    adam_moments(at == 0);
    if (at > 0 && ranks.W > 1) reduce(code_sign_l2, m, array("worker_error"), array("server_error"));
    if (at > 0) wipe(v);
    const double k1 = C->bias_correction ? corrected(C->beta1, STEP) : 1;
    const double k2 = C->bias_correction ? corrected(C->beta2, at ? at : STEP) : 1;
    EACH(w, t, i)
    {
        const double u = m[w][i] / k1 / (sqrt(v[w][i] / k2) + (double)C->epsilon);
        P[w][i] -= LR * (u + decay_of(t) * P[w][i]);
    }
    if (at == 0) consider_freezing(v, frozen);
}

static double clip(double x, double least, double most)
{
    return x < least ? least : x > most ? most : x;
}

static double phi(double x2, double u2)
{
    if (C->form && strcmp(C->form, "norm") == 0)
        return u2 > 0 ? clip(sqrt(x2), (double)C->coefficient_min, (double)C->coefficient_max) / sqrt(u2) : 1;
    if (x2 == 0 || u2 == 0) return 1;
    return clip(sqrt(x2 / u2), (double)C->coefficient_min, (double)C->coefficient_max);
}

/* LAMB's u and what it does; c comes back by tensor, that of tensors without floats is 0. */
static void lamb_step(bool correct, double c[RANK_TENSORS])
{
    vector *m = array("m"), *v = array("v");
    static vector u[RANKS_MAX];
    double x2[RANKS_MAX][RANK_TENSORS] = {{0}}, u2[RANKS_MAX][RANK_TENSORS] = {{0}};
    adam_moments(true);
    EACH(w, t, i)
    {
        const double k1 = correct ? corrected(C->beta1, STEP) : 1, k2 = correct ? corrected(C->beta2, STEP) : 1;
        u[w][i] = m[w][i] / k1 / (sqrt(v[w][i] / k2) + (double)C->epsilon) + decay_of(t) * P[w][i];
        x2[w][t] += P[w][i] * P[w][i];
        u2[w][t] += u[w][i] * u[w][i];
    }
    EACH(w, t, i)
    {
        P[w][i] -= LR * phi(x2[w][t], u2[w][t]) * u[w][i];
    }
    for (int t = 0; t < RANK_TENSORS && c; t++)
        c[t] = rank_tensors[t].count ? phi(x2[0][t], u2[0][t]) : 0;
}

static void ref_lamb(void)
{
    mean_of(G, 0, N);
    lamb_step(C->bias_correction, NULL);
}

/* State by tensor leaves out tensors without floats: here tensor 3. */
static int place_of(int t)
{
    return t < 3 ? t : t - 1;
}

static void onebit_lamb_warm(void)
{
    double c[RANK_TENSORS], rms[RANK_TENSORS] = {0}, mean = 0;
    mean_of(G, 0, N);
    lamb_step(false, c);
    for (uint32_t w = 0; w < ranks.W; w++) {
        for (int t = 0; t < RANK_TENSORS; t++) {
            if (rank_tensors[t].count == 0) continue;
            double *average = &array("coefficient")[w][place_of(t)];
            *average = (double)C->beta3 * *average + (1 - (double)C->beta3) * c[t];
        }
    }
    if (STEP < C->warmup_steps) return;
    for (int t = 0; t < RANK_TENSORS; t++) {
        for (uint64_t i = 0; i < rank_tensors[t].count; i++)
            rms[t] += pow(array("m")[0][rank_tensors[t].offset + i], 2) / (double)rank_tensors[t].count;
        rms[t] = sqrt(rms[t]);
        mean += rms[t] / (RANK_TENSORS - 1);
    }
    for (uint32_t w = 0; w < ranks.W; w++) {
        memcpy(array("v_frozen")[w], array("v")[w], sizeof(vector));
        array("frozen_at")[w][0] = (double)STEP;
        for (int t = 0; t < RANK_TENSORS; t++)
            if (rank_tensors[t].count) array("momentum_scale")[w][place_of(t)] = rms[t] > 0 ? mean / rms[t] : 1;
    }
}

/* Lines 17 to 19. */
static double next_ratio(double last, double most, double plain2, double decayed2, bool decays)
{
    const double low = (1 - (double)C->ratio_threshold) * last, high = (1 + (double)C->ratio_threshold) * last;
    const double least = (double)C->ratio_min, top = (double)C->ratio_max;
    if (most == 0) return last;
    if (strcmp(C->form, "paper") == 0) return clip(clip(most, low, high), least, top);
    if (decays) {
        const double share = fmin(1, sqrt(plain2 / decayed2));
        most = most * share + 1 - share;
    }
    return clip(clip(most, least, top), low, high);
}

static void ref_onebit_lamb(void)
{
    static vector before[RANKS_MAX];
    double most[RANKS_MAX][RANK_TENSORS] = {{0}}, plain[RANKS_MAX][RANK_TENSORS] = {{0}};
    double decayed[RANKS_MAX][RANK_TENSORS] = {{0}};
    vector *m = array("m"), *v = array("v"), *frozen = array("v_frozen"), *ratio = array("ratio");
    const double b1 = (double)C->beta1, b2 = (double)C->beta2, eps = (double)C->epsilon;
    if (array("frozen_at")[0][0] == 0) {
        onebit_lamb_warm();
        return;
    }
    memcpy(before, m, sizeof before);
    adam_moments(false);
    if (ranks.W > 1) {
        vector *scale = array("momentum_scale");
        EACH(w, t, i)
        {
            m[w][i] *= scale[w][place_of(t)];
        }
        reduce(code_sign_l2, m, array("worker_error"), array("server_error"));
        EACH(w, t, i)
        {
            m[w][i] /= scale[w][place_of(t)];
        }
    }
    wipe(frozen);
    EACH(w, t, i)
    {
        if (frozen[w][i] == 0) continue;
        const double g = (m[w][i] - b1 * before[w][i]) / (1 - b1);
        v[w][i] = b2 * v[w][i] + (1 - b2) * g * g;
        const bool paper = strcmp(C->form, "paper") == 0;
        const double r = paper ? frozen[w][i] / v[w][i] : (sqrt(frozen[w][i]) + eps) / (sqrt(v[w][i]) + eps);
        const double u = m[w][i] / (sqrt(frozen[w][i]) + eps), with = u + decay_of(t) * P[w][i];
        most[w][t] = fmax(most[w][t], r);
        plain[w][t] += u * u;
        decayed[w][t] += with * with;
    }
    for (uint32_t w = 0; w < ranks.W; w++) {
        for (int t = 0; t < RANK_TENSORS; t++) {
            if (rank_tensors[t].count == 0) continue;
            double *r = &ratio[w][place_of(t)];
            *r = next_ratio(*r, most[w][t], plain[w][t], decayed[w][t], decay_of(t) > 0);
        }
    }
    EACH(w, t, i)
    {
        const double c = ratio[w][place_of(t)] * array("coefficient")[w][place_of(t)];
        P[w][i] -= LR * c * (m[w][i] / (sqrt(frozen[w][i]) + eps) + decay_of(t) * P[w][i]);
    }
}

static double sign_of(double x)
{
    return x > 0 ? 1 : x < 0 ? -1 : 0;
}

static void lion_step(vector *c)
{
    vector *m = array("m");
    const double b2 = (double)C->beta2;
    EACH(w, t, i)
    {
        P[w][i] -= LR * (sign_of(c[w][i]) + decay_of(t) * P[w][i]);
        m[w][i] = b2 * m[w][i] + (1 - b2) * G[w][i];
    }
}

static void lion_vector(vector *c)
{
    vector *m = array("m");
    const double b1 = (double)C->beta1;
    memset(c, 0, sizeof(vector) * ranks.W);
    EACH(w, t, i)
    {
        c[w][i] = b1 * m[w][i] + (1 - b1) * G[w][i];
    }
}

static void ref_lion(void)
{
    static vector c[RANKS_MAX];
    mean_of(G, 0, N);
    lion_vector(c);
    lion_step(c);
}

static void sync_momentum(void)
{
    if (C->momentum_every == 0 || STEP % C->momentum_every != 0) return;
    mean_of(array("m"), rank_tensors[0].offset, rank_tensors[0].count); /* wte */
    mean_of(array("m"), rank_tensors[5].offset, rank_tensors[5].count); /* head */
}

static void ref_lioncub_votes(void)
{
    static vector c[RANKS_MAX];
    lion_vector(c);
    if (ranks.W > 1) reduce(code_vote, c, NULL, NULL);
    lion_step(c);
    sync_momentum();
}

/* S = sum of Q(c): K as the lanes allow; without one, votes. */
static void ref_lioncub_lanes(void)
{
    static vector c[RANKS_MAX], sum;
    const bool votes = strcmp(C->reduce.kind, "vote") == 0;
    const double K = votes ? 0 : fmin(floor((pow(2, C->lane_bits) - 1) / (2 * ranks.W)), 127);
    double M[RANKS_MAX][RANK_TENSORS] = {{0}};
    lion_vector(c);
    if (ranks.W == 1) {
        lion_step(c);
        return;
    }
    const double norm = (double)C->reduce.norm;
    const bool geometric = C->reduce.norm == AQ_GRAD_NORM_L0;
    double counts[RANKS_MAX][RANK_TENSORS] = {{0}};
    EACH(w, t, i)
    {
        if (!geometric) M[w][t] += pow(fabs(c[w][i]), norm) / (double)rank_tensors[t].count;
        if (geometric && c[w][i] != 0) M[w][t] += log(fabs(c[w][i]));
        counts[w][t] += c[w][i] != 0;
    }
    for (uint32_t w = 0; w < RANKS_MAX; w++)
        for (int t = 0; t < RANK_TENSORS; t++)
            M[w][t] = !geometric ? pow(M[w][t], 1 / norm) : counts[w][t] > 0 ? exp(M[w][t] / counts[w][t]) : 0;
    memset(sum, 0, sizeof sum);
    EACH(w, t, i)
    {
        double q = c[w][i] > 0 || (c[w][i] == 0 && STEP % 2 == 1) ? 1 : -1;
        if (K > 0) q = M[w][t] > 0 ? clip(rint(K / (2 * M[w][t]) * c[w][i]), -K, K) : 0;
        sum[i] += q;
    }
    for (uint32_t w = 0; w < ranks.W; w++)
        memcpy(c[w], sum, sizeof sum);
    lion_step(c);
    sync_momentum();
}

static bool masked(uint64_t i)
{
    /* The mask's definition is the generator's: one word of Philox a parameter. */
    const struct aq_rng_key key = aq_rng_key(C->seed, AQ_RNG_REDUCE, STEP, 0);
    for (int t = 0; t < RANK_TENSORS; t++) {
        if (i >= rank_tensors[t].offset && i - rank_tensors[t].offset < rank_tensors[t].count &&
            rank_tensors[t].count < C->dense_below)
            return true;
    }
    const double first = STEP < C->density_steps ? (double)STEP / (double)C->density_steps : 1;
    return ranks.W == 1 || (double)aq_rng_uniform(&key, i) < (double)(float)pow((double)C->density, first);
}

/* To the nearest number of so many bits of mantissa and this least exponent: fp16 has 11 and -14, bf16 8 and -126. */
static double rounded(double x, int bits, int least)
{
    int exponent;
    (void)frexp(x, &exponent);
    const double unit = ldexp(1, (exponent - 1 < least ? least : exponent - 1) - bits + 1);
    return rint(x / unit) * unit;
}

/* The mean of masked values as they travel: each rank's rounded, and the mean. */
static void mean_sent(vector *x, uint64_t i)
{
    const char *kind = C->reduce.kind;
    const bool half = kind && strcmp(kind, "fp16") == 0, brain = kind && strcmp(kind, "bf16") == 0;
    const int bits = half ? 11 : 8, least = half ? -14 : -126;
    for (uint32_t w = 0; w < ranks.W && (half || brain); w++)
        x[w][i] = rounded(x[w][i], bits, least);
    mean_of(x, i, 1);
    for (uint32_t w = 0; w < ranks.W && (half || brain); w++)
        x[w][i] = rounded(x[w][i], bits, least);
}

/* Of a part of a tensor: `otherwise` where it is empty or zero, and everything is clipped. */
static double phi_part(double x2, double u2, double otherwise, double least)
{
    if (strcmp(C->form, "paper") == 0 && x2 == 0 && u2 > 0) return least; /* phi(0) = min(max(0, a), b) */
    return clip(x2 > 0 && u2 > 0 ? sqrt(x2 / u2) : otherwise, least, (double)C->coefficient_max);
}

static void ref_slamb(void)
{
    vector *m = array("m"), *v = array("v"), *c = array("staleness");
    static vector u[RANKS_MAX];
    static bool in[N];
    double s[RANKS_MAX][RANK_TENSORS][5] = {{{0}}};
    const double b1 = (double)C->beta1, b2 = (double)C->beta2;
    for (uint64_t i = 0; i < N; i++)
        in[i] = masked(i);
    EACH(w, t, i)
    {
        m[w][i] = b1 * m[w][i] + (1 - b1) * G[w][i];
    }
    for (uint64_t i = 0; i < N; i++) {
        if (in[i] && ranks.W > 1) mean_sent(m, i);
        if (in[i] && ranks.W > 1 && C->sync_gradient) mean_sent(G, i);
    }
    EACH(w, t, i)
    {
        v[w][i] = b2 * v[w][i] + (1 - b2) * G[w][i] * G[w][i];
        c[w][i] = in[i] ? 1 : (double)C->beta3 * c[w][i];
        u[w][i] =
            m[w][i] / corrected(C->beta1, STEP) / (sqrt(v[w][i] / corrected(C->beta2, STEP)) + (double)C->epsilon) +
            decay_of(t) * P[w][i];
        s[w][t][in[i] ? 0 : 2] += P[w][i] * P[w][i];
        s[w][t][in[i] ? 1 : 3] += u[w][i] * u[w][i];
        s[w][t][4] += u[w][i] * u[w][i];
    }
    EACH(w, t, i)
    {
        const bool algorithm = strcmp(C->form, "algorithm") == 0, split = strcmp(C->form, "code") == 0;
        const double all = algorithm && s[w][t][4] > 0 ? s[w][t][4] : 1, stale = 1 - c[w][i], low = LR / sqrt(ranks.W);
        const double most = phi_part(s[w][t][0] * all, s[w][t][1], 1, (double)C->coefficient_min);
        const double least =
            phi_part(s[w][t][2] * all, s[w][t][3], split ? 0 : 1, split ? 0 : (double)C->coefficient_min);
        if (split)
            P[w][i] -= LR * most * c[w][i] * u[w][i] + low * least * stale * u[w][i];
        else
            P[w][i] -= (LR * c[w][i] + low * stale) * (most * c[w][i] + least * stale) * u[w][i] / sqrt(all);
    }
    if (ranks.W > 1 && (STEP % C->sync_every == 0 || STEP == C->total_steps)) mean_of(P, 0, N);
}

/* PowerSGD on the two matrices of 40 x 30 and 30 x 30, rank 2; the rest goes whole. */
static void power_matrix(int t, vector *error)
{
    enum { R = 2 };
    const uint64_t at = rank_tensors[t].offset, rows = rank_tensors[t].rows, columns = rank_tensors[t].count / rows;
    vector *q = array("low_rank_q");
    const uint64_t q_at = t == 0 ? 0 : 30 * R;
    double p[40][R] = {{0}}, next[R][30] = {{0}};
    for (uint32_t w = 0; w < ranks.W; w++) {
        for (uint64_t i = 0; i < rank_tensors[t].count; i++)
            error[w][at + i] += G[w][at + i];
        for (uint64_t i = 0; i < rows; i++)
            for (uint64_t j = 0; j < columns; j++)
                for (int k = 0; k < R; k++)
                    p[i][k] += error[w][at + i * columns + j] * q[w][q_at + k * columns + j] / ranks.W;
    }
    for (int k = 0; k < R; k++) {
        double norm = 0, dot = 0;
        for (uint64_t i = 0; i < rows && k > 0; i++)
            dot += p[i][0] * p[i][k];
        for (uint64_t i = 0; i < rows && k > 0; i++)
            p[i][k] -= dot * p[i][0];
        for (uint64_t i = 0; i < rows; i++)
            norm += p[i][k] * p[i][k];
        for (uint64_t i = 0; i < rows; i++)
            p[i][k] /= sqrt(norm);
    }
    for (uint32_t w = 0; w < ranks.W; w++)
        for (uint64_t i = 0; i < rows; i++)
            for (uint64_t j = 0; j < columns; j++)
                for (int k = 0; k < R; k++)
                    next[k][j] += error[w][at + i * columns + j] * p[i][k] / ranks.W;
    for (uint32_t w = 0; w < ranks.W; w++) {
        for (uint64_t j = 0; j < columns; j++)
            for (int k = 0; k < R; k++)
                q[w][q_at + k * columns + j] = next[k][j];
        for (uint64_t i = 0; i < rows; i++)
            for (uint64_t j = 0; j < columns; j++) {
                const uint64_t e = at + i * columns + j;
                G[w][e] = p[i][0] * next[0][j] + p[i][1] * next[1][j];
                error[w][e] -= G[w][e];
            }
    }
}

static void ref_adamw_low_rank(void)
{
    mean_of(G, rank_tensors[1].offset, rank_tensors[1].count);
    mean_of(G, rank_tensors[4].offset, rank_tensors[4].count);
    mean_of(G, rank_tensors[5].offset, rank_tensors[5].count);
    power_matrix(0, array("worker_error"));
    power_matrix(2, array("worker_error"));
    adamw_step();
}

/* ---- the comparison ---- */

static bool start_at_zero; /* the third tensor */

static void take_over(double grad_scale)
{
    for (uint32_t w = 0; w < ranks.W; w++) {
        for (uint64_t i = 0; i < N; i++) {
            P[w][i] = (double)ranks.parameters[w][i];
            G[w][i] = (double)ranks.gradients[w][i] * grad_scale;
        }
        for (uint32_t a = 0; a < aq_optimizer_state_count(ranks.optimizers[w]); a++) {
            struct aq_optimizer_state_info info;
            aq_optimizer_state_info(ranks.optimizers[w], a, &info);
            assert_true(a < ARRAYS);
            for (uint64_t i = 0; i < info.count; i++)
                A[a][w][i] = (double)aq_optimizer_state(ranks.optimizers[w], a)[i];
        }
    }
}

/* How many floats are not what they should be: beyond rounding of the value, or of the array as a whole. */
static uint64_t off_by(const float *got, const double *expected, uint64_t n)
{
    double square = 0;
    uint64_t off = 0;
    for (uint64_t i = 0; i < n; i++)
        square += expected[i] * expected[i] / (double)(n + 1);
    for (uint64_t i = 0; i < n; i++)
        off += !(fabs((double)got[i] - expected[i]) <= 2e-5 * fabs(expected[i]) + 4e-6 * sqrt(square));
    return off;
}

/* allowed: of an array as long as the parameters, where a code beside a boundary may fall to either side; few are
 * exact. */
static void compare(uint64_t allowed)
{
    for (uint32_t w = 0; w < ranks.W; w++) {
        const uint64_t off = off_by(ranks.parameters[w], P[w], N);
        if (off > allowed) fail_msg("step %d, rank %d: %d parameters are off", (int)STEP, (int)w, (int)off);
        for (uint32_t a = 0; a < aq_optimizer_state_count(ranks.optimizers[w]); a++) {
            struct aq_optimizer_state_info info;
            aq_optimizer_state_info(ranks.optimizers[w], a, &info);
            const uint64_t wrong = off_by(aq_optimizer_state(ranks.optimizers[w], a), A[a][w], info.count);
            if (wrong > (info.count < N / RANKS_MAX ? 0 : allowed))
                fail_msg("step %d, rank %d: %d of %s are off", (int)STEP, (int)w, (int)wrong, info.name);
        }
    }
}

static void expect_as_published(const struct aq_optimizer_config *config, uint32_t W, void (*reference)(void),
                                uint64_t allowed)
{
    C = config;
    ranks_open(&ranks, config, W);
    for (uint32_t w = 0; w < W && start_at_zero; w++)
        memset(ranks.parameters[w] + rank_tensors[2].offset, 0, rank_tensors[2].count * sizeof(float));
    for (STEP = 1; STEP <= STEPS; STEP++) {
        const float lr = 0.01f / (float)STEP;
        const float scale = STEP % 3 ? 1.0f : 0.25f;
        /* Gradients that are averaged are scaled afterwards, which error feedback would see. */
        const bool early = config->error_feedback && config->low_rank > 0;
        const bool errors = early || (ranks_has_state(&ranks, "worker_error") && config->warmup_steps == 0 &&
                                      config->freeze_ratio == 0.0f);
        LR = (double)lr;
        ranks_gradients(&ranks, 21, STEP);
        take_over(errors ? 1.0 : (double)scale);
        reference();
        ranks_step(&ranks, lr, errors ? 1.0f : scale, STEP);
        compare(allowed);
    }
    ranks_close(&ranks);
}

static const uint32_t widths[] = {1, 2, 3, 4, 6, 8, 10, 12};
enum { WIDTHS = sizeof widths / sizeof widths[0] };

#endif
