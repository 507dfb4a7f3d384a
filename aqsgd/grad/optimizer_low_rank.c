/*
 * optimizer_low_rank.c -- PowerSGD: Vogels, Karimireddy, Jaggi, "PowerSGD", NeurIPS 2019, Algorithms 1 and 2.
 *
 *     M = gradient + error          (rows x columns, each rank's own)
 *     P = mean of M Q               round 1; orthogonalized, the same on every rank
 *     Q = mean of M' P              round 2; kept for the next step (warm start)
 *     gradient = P Q',  error = M - P Q'
 *
 * A matrix is compressed where its factors have less than half of its floats, as in PyTorch's hook; all other tensors
 * travel whole, in the same round as P. Q is stored by columns of M (rank x columns), P by rows (rows x rank). The
 * products M Q and M' P are the device's; P Q' has to be the same on every rank and is made here, in plain C.
 */
#include "optimizer_low_rank.h"

#include <math.h>
#include <string.h>

struct matrix {
    uint64_t offset, rows, columns, p_at, q_at;
};

struct aq_low_rank {
    struct matrix *matrices;
    uint32_t count;
    uint32_t rank;
    uint64_t p_floats, sent_floats, q_floats; /* sent: P and then the tensors that go whole */
    float *p, *q, *error;
    bool *whole; /* by tensor */
};

static bool compresses(const struct aq_optimizer_tensor *tensor, uint32_t rank)
{
    if (tensor->rows < 2) return false;
    const uint64_t columns = tensor->count / tensor->rows;
    return columns > 1 && rank <= tensor->rows && rank <= columns &&
           2 * rank * (tensor->rows + columns) < tensor->count;
}

static void lay_out(const struct aq_optimizer *optimizer, struct aq_low_rank *low)
{
    const uint32_t r = low->rank;
    for (uint32_t t = 0; t < optimizer->tensor_count; t++) {
        const struct aq_optimizer_tensor *tensor = &optimizer->tensors[t];
        if (!compresses(tensor, r)) {
            low->sent_floats += tensor->count;
            if (low->whole) low->whole[t] = true;
            continue;
        }
        const uint64_t columns = tensor->count / tensor->rows;
        if (low->matrices)
            low->matrices[low->count] = (struct matrix){.offset = tensor->offset,
                                                        .rows = tensor->rows,
                                                        .columns = columns,
                                                        .p_at = low->p_floats,
                                                        .q_at = low->q_floats};
        low->count++;
        low->p_floats += tensor->rows * r;
        low->q_floats += columns * r;
    }
    low->sent_floats += low->p_floats;
}

/* The first Q: normal, the same on every rank and after every restart. */
static void fill_q(const struct aq_optimizer *optimizer, struct aq_low_rank *low)
{
    for (uint32_t i = 0; i < low->count; i++) {
        const struct matrix *matrix = &low->matrices[i];
        const struct aq_rng_key key = aq_rng_key(optimizer->config.seed, AQ_RNG_REDUCE, 0, 1 + matrix->offset);
        for (uint64_t e = 0; e < matrix->columns * low->rank; e++)
            low->q[matrix->q_at + e] = aq_rng_normal(&key, e);
    }
}

enum aq_status aq_low_rank_place(struct aq_optimizer *optimizer)
{
    struct aq_low_rank size = {.rank = optimizer->config.low_rank}, *low;
    void *memory;
    lay_out(optimizer, &size);
    const size_t matrices = size.count * sizeof(struct matrix);
    AQ_TRY(aq_optimizer_scratch(optimizer, sizeof *low + matrices + optimizer->tensor_count, &memory));
    low = memory;
    if (low) {
        *low = (struct aq_low_rank){.rank = size.rank};
        low->matrices = (struct matrix *)(low + 1);
        low->whole = (bool *)(low->matrices + size.count);
        lay_out(optimizer, low);
        optimizer->low_rank = low;
    }
    AQ_TRY(aq_optimizer_scratch(optimizer, (size_t)size.sent_floats * sizeof(float), &memory));
    if (low) low->p = memory;
    float *q, *error = NULL;
    AQ_TRY(aq_optimizer_take(optimizer, "low_rank_q", size.q_floats, AQ_STATE_REPLICATED, &q));
    if (optimizer->config.error_feedback)
        AQ_TRY(aq_optimizer_take(optimizer, "worker_error", optimizer->parameters, AQ_STATE_WORKER_ERROR, &error));
    if (!low) return AQ_OK;
    low->q = q;
    low->error = error;
    fill_q(optimizer, low);
    return AQ_OK;
}

/* Gram-Schmidt, column by column, each against those before it. A column that vanishes stays zero. */
static void orthogonalize(float *p, uint64_t rows, uint32_t rank)
{
    for (uint32_t k = 0; k < rank; k++) {
        for (uint32_t j = 0; j < k; j++) {
            double dot = 0.0;
            for (uint64_t i = 0; i < rows; i++)
                dot += (double)p[i * rank + j] * (double)p[i * rank + k];
            for (uint64_t i = 0; i < rows; i++)
                p[i * rank + k] = (float)((double)p[i * rank + k] - dot * (double)p[i * rank + j]);
        }
        double square = 0.0;
        for (uint64_t i = 0; i < rows; i++)
            square += (double)p[i * rank + k] * (double)p[i * rank + k];
        const double inverse = square > 0.0 ? 1.0 / sqrt(square) : 0.0;
        for (uint64_t i = 0; i < rows; i++)
            p[i * rank + k] = (float)((double)p[i * rank + k] * inverse);
    }
}

/* M: the error's place where there is one, which takes up the gradient; else the gradient itself. */
static void add_gradient(struct aq_optimizer *optimizer, const struct aq_flat_piece *piece, uint32_t index)
{
    const struct aq_low_rank *low = optimizer->low_rank;
    (void)index;
    if (low->whole[piece->tensor]) return;
    for (uint64_t i = piece->first; i < piece->first + piece->count; i++)
        low->error[i] += optimizer->call.gradients[i];
}

/* Between the tensors that go whole and the end of the buffer of P. */
static void copy_whole(const struct aq_optimizer *optimizer, float *gradients, bool back)
{
    const struct aq_low_rank *low = optimizer->low_rank;
    float *at = low->p + low->p_floats;
    for (uint32_t t = 0; t < optimizer->tensor_count; t++) {
        const struct aq_optimizer_tensor *tensor = &optimizer->tensors[t];
        if (!low->whole[t]) continue;
        if (back)
            memcpy(gradients + tensor->offset, at, (size_t)tensor->count * sizeof *at);
        else
            memcpy(at, gradients + tensor->offset, (size_t)tensor->count * sizeof *at);
        at += tensor->count;
    }
}

static enum aq_status factor_p(struct aq_optimizer *optimizer, const float *values)
{
    const struct aq_low_rank *low = optimizer->low_rank;
    for (uint32_t i = 0; i < low->count; i++) {
        const struct matrix *matrix = &low->matrices[i];
        const struct aq_matmul args = {.M = matrix->rows,
                                       .N = low->rank,
                                       .K = matrix->columns,
                                       .a = values + matrix->offset,
                                       .a_stride = matrix->columns,
                                       .b = low->q + matrix->q_at,
                                       .b_stride = matrix->columns,
                                       .b_transposed = true,
                                       .c = low->p + matrix->p_at,
                                       .c_stride = low->rank};
        AQ_TRY(aq_device_matmul(optimizer->device, &args, optimizer->call.stream));
    }
    return AQ_OK;
}

static enum aq_status factor_q(struct aq_optimizer *optimizer, const float *values)
{
    const struct aq_low_rank *low = optimizer->low_rank;
    for (uint32_t i = 0; i < low->count; i++) {
        const struct matrix *matrix = &low->matrices[i];
        orthogonalize(low->p + matrix->p_at, matrix->rows, low->rank);
        const struct aq_matmul args = {.M = low->rank,
                                       .N = matrix->columns,
                                       .K = matrix->rows,
                                       .a = low->p + matrix->p_at,
                                       .a_stride = low->rank,
                                       .a_transposed = true,
                                       .b = values + matrix->offset,
                                       .b_stride = matrix->columns,
                                       .c = low->q + matrix->q_at,
                                       .c_stride = matrix->columns};
        AQ_TRY(aq_device_matmul(optimizer->device, &args, optimizer->call.stream));
    }
    return AQ_OK;
}

/* Row i of P Q'. */
static void product_row(const struct aq_low_rank *low, const struct matrix *matrix, uint64_t i, float *out)
{
    const float *p = low->p + matrix->p_at + i * low->rank, *q = low->q + matrix->q_at;
    for (uint64_t j = 0; j < matrix->columns; j++)
        out[j] = p[0] * q[j];
    for (uint32_t k = 1; k < low->rank; k++) {
        for (uint64_t j = 0; j < matrix->columns; j++)
            out[j] += p[k] * q[k * matrix->columns + j];
    }
}

static void rebuild(struct aq_optimizer *optimizer, float *gradients)
{
    const struct aq_low_rank *low = optimizer->low_rank;
    for (uint32_t m = 0; m < low->count; m++) {
        const struct matrix *matrix = &low->matrices[m];
        for (uint64_t i = 0; i < matrix->rows; i++) {
            const uint64_t at = matrix->offset + i * matrix->columns;
            product_row(low, matrix, i, gradients + at);
            for (uint64_t j = 0; low->error && j < matrix->columns; j++)
                low->error[at + j] -= gradients[at + j];
        }
    }
}

enum aq_status aq_low_rank_round(struct aq_optimizer *optimizer, float *gradients, uint32_t round,
                                 struct aq_reduce *out)
{
    struct aq_low_rank *low = optimizer->low_rank;
    const float *values = low->error ? low->error : gradients;
    *out = (struct aq_reduce){.kind = AQ_REDUCE_MEAN, .step = optimizer->call.step};
    if (round == 0) {
        if (low->error) aq_optimizer_each(optimizer, add_gradient);
        copy_whole(optimizer, gradients, false);
        AQ_TRY(factor_p(optimizer, values));
        out->x = low->p;
        out->count = low->sent_floats;
    } else if (round == 1) {
        copy_whole(optimizer, gradients, true);
        AQ_TRY(factor_q(optimizer, values));
        out->x = low->q;
        out->count = low->q_floats;
    } else {
        rebuild(optimizer, gradients);
        out->kind = AQ_REDUCE_NONE;
    }
    return AQ_OK;
}
