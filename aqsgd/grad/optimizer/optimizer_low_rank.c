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
 * products M Q and M' P are the device's; P Q' has to be the same on every rank and is a fused kernel. P is
 * orthogonalized by the host, column after column.
 */
#include "optimizer_low_rank.h"

#include <math.h>

struct matrix {
    uint64_t offset, rows, columns, p_at, q_at;
};

struct aq_low_rank {
    struct matrix *matrices;
    uint32_t count;
    uint32_t rank;
    uint64_t p_floats, sent_floats, q_floats; /* sent: P and then the tensors that go whole */
    float *p, *q, *error;
    float *p_here;                                  /* P where the host reaches it */
    float *whole;                                   /* by tensor: 1 where it goes whole */
    struct aq_fused_matrix *factors, *factors_there; /* by tensor */
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
            if (low->whole) low->whole[t] = 1.0f;
            continue;
        }
        const uint64_t columns = tensor->count / tensor->rows;
        if (low->factors)
            low->factors[t] = (struct aq_fused_matrix){
                .offset = tensor->offset, .columns = columns, .p_at = low->p_floats, .q_at = low->q_floats};
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

void aq_low_rank_traffic(const struct aq_optimizer_sent *sent, struct aq_optimizer_traffic *out)
{
    const uint64_t r = sent->config->low_rank;
    uint64_t floats = 0;
    for (uint32_t t = 0; t < sent->tensor_count; t++) {
        const struct aq_optimizer_tensor *tensor = &sent->tensors[t];
        const bool factors = compresses(tensor, sent->config->low_rank);
        floats += factors ? r * (tensor->rows + tensor->count / tensor->rows) : tensor->count;
    }
    out->warmup_steps = sent->config->low_rank_start;
    out->step_bytes = floats * sizeof(float);
}

/* The first Q: normal, the same on every rank and after every restart. */
static enum aq_status fill_q(const struct aq_optimizer *optimizer, const struct aq_low_rank *low)
{
    void *memory;
    AQ_TRY(aq_alloc((size_t)low->q_floats * sizeof(float), &memory));
    float *q = memory;
    for (uint32_t i = 0; i < low->count; i++) {
        const struct matrix *matrix = &low->matrices[i];
        const struct aq_rng_key key = aq_rng_key(optimizer->config.seed, AQ_RNG_REDUCE, 0, 1 + matrix->offset);
        for (uint64_t e = 0; e < matrix->columns * low->rank; e++)
            q[matrix->q_at + e] = aq_rng_normal(&key, e);
    }
    enum aq_status status = aq_device_copy(optimizer->device, low->q, q, (size_t)low->q_floats * sizeof(float), NULL);
    if (status == AQ_OK) status = aq_device_stream_sync(optimizer->device, NULL);
    aq_free(memory);
    return status;
}

/* Only for a device: P for the host, and the places of factors. */
static enum aq_status place_isolated(struct aq_optimizer *optimizer, struct aq_low_rank *low)
{
    const size_t bytes = optimizer->tensor_count * sizeof *low->factors;
    void *memory;
    AQ_TRY(aq_optimizer_scratch_pinned(optimizer, (size_t)low->p_floats * sizeof(float), &memory));
    low->p_here = memory;
    AQ_TRY(aq_optimizer_scratch_device(optimizer, bytes, &memory));
    low->factors_there = memory;
    AQ_TRY(aq_device_copy(optimizer->device, memory, low->factors, bytes, NULL));
    return aq_device_stream_sync(optimizer->device, NULL);
}

enum aq_status aq_low_rank_place(struct aq_optimizer *optimizer)
{
    struct aq_low_rank size = {.rank = optimizer->config.low_rank}, *low;
    const size_t tensors = optimizer->tensor_count;
    void *memory;
    lay_out(optimizer, &size);
    const size_t matrices = size.count * sizeof(struct matrix), factors = tensors * sizeof *size.factors;
    AQ_TRY(aq_optimizer_scratch(optimizer, sizeof *low + matrices + factors + tensors * sizeof(float), &memory));
    low = memory;
    if (low) {
        *low = (struct aq_low_rank){.rank = size.rank};
        low->matrices = (struct matrix *)(low + 1);
        low->factors_there = low->factors = (struct aq_fused_matrix *)(low->matrices + size.count);
        low->whole = (float *)(low->factors + tensors);
        lay_out(optimizer, low);
        optimizer->low_rank = low;
    }
    AQ_TRY(aq_optimizer_scratch_device(optimizer, (size_t)size.sent_floats * sizeof(float), &memory));
    if (low) low->p_here = low->p = memory;
    float *q, *error = NULL;
    AQ_TRY(aq_optimizer_take(optimizer, "low_rank_q", size.q_floats, AQ_STATE_REPLICATED, &q));
    if (optimizer->config.error_feedback)
        AQ_TRY(aq_optimizer_take(optimizer, "worker_error", optimizer->parameters, AQ_STATE_WORKER_ERROR, &error));
    if (!low) return AQ_OK;
    low->q = q;
    low->error = error;
    if (optimizer->isolated) AQ_TRY(place_isolated(optimizer, low));
    AQ_TRY(aq_optimizer_values(optimizer, 4, low->whole));
    AQ_TRY(aq_device_stream_sync(optimizer->device, NULL));
    return fill_q(optimizer, low);
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

static struct aq_fused kernel_of(const struct aq_optimizer *optimizer, enum aq_fused_kind kind, float *gradients)
{
    const struct aq_low_rank *low = optimizer->low_rank;
    struct aq_fused kernel = aq_optimizer_fused_of(optimizer, kind);
    kernel.g = kernel.out = gradients;
    kernel.worker_error = low->error;
    kernel.matrices = low->factors_there;
    kernel.factor_p = low->p;
    kernel.factor_q = low->q;
    kernel.rank = low->rank;
    return kernel;
}

/* Between the tensors that go whole and the end of the buffer of P. */
static enum aq_status copy_whole(const struct aq_optimizer *optimizer, float *gradients, bool back)
{
    const struct aq_low_rank *low = optimizer->low_rank;
    float *at = low->p + low->p_floats;
    for (uint32_t t = 0; t < optimizer->tensor_count; t++) {
        const struct aq_optimizer_tensor *tensor = &optimizer->tensors[t];
        float *there = gradients + tensor->offset;
        if (low->whole[t] == 0.0f) continue;
        AQ_TRY(aq_device_copy(optimizer->device, back ? there : at, back ? at : there,
                              (size_t)tensor->count * sizeof *at, optimizer->call.stream));
        at += tensor->count;
    }
    return AQ_OK;
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

static enum aq_status orthogonalize_all(const struct aq_optimizer *optimizer)
{
    const struct aq_low_rank *low = optimizer->low_rank;
    const size_t bytes = (size_t)low->p_floats * sizeof(float);
    if (optimizer->isolated) {
        AQ_TRY(aq_device_copy(optimizer->device, low->p_here, low->p, bytes, optimizer->call.stream));
        AQ_TRY(aq_device_stream_sync(optimizer->device, optimizer->call.stream));
    }
    for (uint32_t i = 0; i < low->count; i++)
        orthogonalize(low->p_here + low->matrices[i].p_at, low->matrices[i].rows, low->rank);
    if (!optimizer->isolated) return AQ_OK;
    return aq_device_copy(optimizer->device, low->p, low->p_here, bytes, optimizer->call.stream);
}

static enum aq_status factor_q(struct aq_optimizer *optimizer, const float *values)
{
    const struct aq_low_rank *low = optimizer->low_rank;
    for (uint32_t i = 0; i < low->count; i++) {
        const struct matrix *matrix = &low->matrices[i];
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

enum aq_status aq_low_rank_round(struct aq_optimizer *optimizer, float *gradients, uint32_t round,
                                 struct aq_reduce *out)
{
    struct aq_low_rank *low = optimizer->low_rank;
    const float *values = low->error ? low->error : gradients;
    *out = (struct aq_reduce){.kind = AQ_REDUCE_MEAN, .step = optimizer->call.step};
    if (round == 0) {
        /* M: the error's place where there is one, which takes up the gradient; else the gradient itself. */
        const struct aq_fused add = kernel_of(optimizer, AQ_FUSED_LOW_RANK_ADD, gradients);
        if (low->error) AQ_TRY(aq_optimizer_fused(optimizer, &add));
        AQ_TRY(copy_whole(optimizer, gradients, false));
        AQ_TRY(factor_p(optimizer, values));
        out->x = low->p;
        out->count = low->sent_floats;
    } else if (round == 1) {
        AQ_TRY(copy_whole(optimizer, gradients, true));
        AQ_TRY(orthogonalize_all(optimizer));
        AQ_TRY(factor_q(optimizer, values));
        out->x = low->q;
        out->count = low->q_floats;
    } else {
        const struct aq_fused rebuild = kernel_of(optimizer, AQ_FUSED_LOW_RANK_REBUILD, gradients);
        AQ_TRY(aq_optimizer_fused(optimizer, &rebuild));
        out->kind = AQ_REDUCE_NONE;
    }
    return AQ_OK;
}
