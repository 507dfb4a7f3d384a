/*
 * optimizer_ranks.c -- see optimizer_ranks.h.
 */
#include "optimizer_ranks.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* Matrices, vectors, a gap, a tail that no vector register fills, and one tensor that never has a gradient. */
const struct aq_optimizer_tensor rank_tensors[RANK_TENSORS] = {
    {.offset = 0, .count = 1200, .decay = true, .rows = 40, .name = "wte.weight"},
    {.offset = 1200, .count = 7, .decay = false, .name = "ln.bias"},
    {.offset = 1216, .count = 900, .decay = true, .rows = 30, .name = "h.0.weight"},
    {.offset = 2116, .count = 0, .decay = true, .name = "none"},
    {.offset = 2116, .count = 70, .decay = false, .name = "h.0.dead"},
    {.offset = 2186, .count = 799, .decay = true, .name = "head.weight"},
};
enum { DEAD = 4 };
const struct aq_optimizer_tensor *ranks_tensors;

bool ranks_is_in(uint64_t i)
{
    for (int t = 0; t < RANK_TENSORS; t++) {
        if (i >= rank_tensors[t].offset && i - rank_tensors[t].offset < rank_tensors[t].count) return true;
    }
    return false;
}

static void open_memory(struct ranks *ranks, uint32_t W, uint64_t floats)
{
    const struct aq_device_config cpu = {.kind = "cpu", .threads = 2};
    uint64_t first, chunk;
    *ranks = (struct ranks){.W = W, .floats = floats};
    assert_int_equal(aq_device_open(&cpu, &ranks->device), AQ_OK);
    aq_grad_chunk(floats, W, 0, &first, &chunk);
    const size_t wire = (size_t)chunk * 8 + 4096, values = 2 * (size_t)(W * floats) * sizeof(float);
    assert_int_equal(aq_alloc(values + W * wire, &ranks->memory), AQ_OK);
    memset(ranks->memory, 0, values);
    for (uint32_t w = 0; w < W; w++) {
        ranks->parameters[w] = (float *)ranks->memory + w * floats;
        ranks->gradients[w] = (float *)ranks->memory + (W + w) * floats;
        ranks->wires[w] = (uint8_t *)ranks->memory + values + w * wire;
    }
}

static void open_optimizers(struct ranks *ranks, const struct aq_optimizer_config *config,
                            const struct aq_optimizer_tensor *tensors, uint32_t tensor_count)
{
    for (uint32_t w = 0; w < ranks->W; w++) {
        const struct aq_optimizer_group group = {.rank = w, .size = ranks->W};
        assert_int_equal(aq_optimizer_open_group(ranks->device, config, tensors, tensor_count, ranks->floats, &group,
                                                 &ranks->optimizers[w]),
                         AQ_OK);
        assert_int_equal(aq_optimizer_versions_begin(ranks->optimizers[w], ranks->parameters[w], NULL), AQ_OK);
    }
}

/* Normal numbers of (seed, step, stream 0 to RANKS_MAX): made once and kept, because the suites ask for the same ones
 * again for each optimizer and each codec. Valid until the next call with another seed and step. */
static const float *normals_of(uint64_t seed, uint64_t step, uint32_t stream)
{
    enum { KEPT = 512 };
    static struct {
        uint64_t seed, step;
        float *values;
    } kept[KEPT][RANKS_MAX + 1];
    const uint64_t slot = (seed * 131 + step) % KEPT;
    float **values = &kept[slot][stream].values;
    if (*values && kept[slot][stream].seed == seed && kept[slot][stream].step == step) return *values;
    void *memory = *values;
    if (!memory) assert_int_equal(aq_alloc(RANK_FLOATS * sizeof(float), &memory), AQ_OK);
    *values = memory;
    kept[slot][stream].seed = seed;
    kept[slot][stream].step = step;
    const struct aq_rng_key key = aq_rng_key(seed, AQ_RNG_TEST, step, stream);
    for (uint64_t i = 0; i < RANK_FLOATS; i++)
        (*values)[i] = aq_rng_normal(&key, i);
    return *values;
}

void ranks_open(struct ranks *ranks, const struct aq_optimizer_config *config, uint32_t W)
{
    open_memory(ranks, W, RANK_FLOATS);
    for (uint32_t w = 0; w < W; w++)
        memcpy(ranks->parameters[w], normals_of(61, 0, 0), RANK_FLOATS * sizeof(float));
    open_optimizers(ranks, config, ranks_tensors ? ranks_tensors : rank_tensors, RANK_TENSORS);
}

void ranks_open_shapes(struct ranks *ranks, const struct aq_optimizer_config *config, uint32_t W,
                       const struct aq_optimizer_tensor *tensors, uint32_t tensor_count, uint64_t floats)
{
    open_memory(ranks, W, floats);
    open_optimizers(ranks, config, tensors, tensor_count);
}

void ranks_close(struct ranks *ranks)
{
    for (uint32_t w = 0; w < ranks->W; w++)
        aq_optimizer_close(ranks->optimizers[w]);
    aq_free(ranks->memory);
    aq_device_close(ranks->device);
}

void ranks_gradients(struct ranks *ranks, uint64_t seed, uint64_t step)
{
    const float *common = normals_of(seed, step, 0);
    for (uint32_t w = 0; w < ranks->W; w++) {
        const float *own = normals_of(seed, step, 1 + w);
        memset(ranks->gradients[w], 0, RANK_FLOATS * sizeof(float));
        for (int t = 0; t < RANK_TENSORS; t++) {
            const struct aq_optimizer_tensor *tensor = &rank_tensors[t];
            for (uint64_t i = tensor->offset; i < tensor->offset + tensor->count && t != DEAD; i++)
                ranks->gradients[w][i] = ldexpf(common[i] + own[i] + 0.3f, -2 * t);
        }
    }
}

static void reduce_mean(uint32_t W, const struct aq_reduce *reduce)
{
    for (uint64_t i = 0; i < reduce[0].count; i++) {
        float sum = reduce[0].x[i];
        for (uint32_t w = 1; w < W; w++)
            sum += reduce[w].x[i];
        for (uint32_t w = 0; w < W; w++)
            reduce[w].x[i] = sum * (1.0f / (float)W);
    }
}

/* What goes along, in ranges that begin and end within tensors and between them. */
static void by_ranges(enum aq_status (*run)(void *work, uint64_t first, uint64_t count), const struct aq_reduce *reduce)
{
    const uint64_t range = reduce->count > RANK_FLOATS ? 36037 : 37;
    for (uint64_t at = 0; run && at < reduce->count; at += range)
        assert_int_equal(run(reduce->work, at, reduce->count - at < range ? reduce->count - at : range), AQ_OK);
}

/* One piece of its owner's chunk. When it is coded on all ranks nobody needs what they had in it any more. */
static void reduce_piece(const struct ranks *ranks, const struct aq_reduce *reduce, uint32_t owner, uint64_t first,
                         uint64_t n, float *server_error)
{
    static float sum[AQ_GRAD_PIECE];
    const size_t bytes = aq_grad_codec_bytes(reduce[0].worker, first, n);
    for (uint32_t w = 0; w < ranks->W; w++) {
        float *error = reduce[w].worker_error ? reduce[w].worker_error + first : NULL;
        uint8_t *wire = ranks->wires[w];
        assert_int_equal(aq_grad_encode(reduce[w].worker, first, n, reduce[w].x + first, error, reduce[w].step, wire),
                         AQ_OK);
        assert_int_equal(aq_grad_decode(reduce[owner].worker, first, n, wire, bytes,
                                        aq_grad_codec_weight(reduce[owner].worker, ranks->W), w > 0, sum),
                         AQ_OK);
    }
    const size_t back = aq_grad_codec_bytes(reduce[owner].server, first, n);
    uint8_t *wire = ranks->wires[0];
    assert_int_equal(aq_grad_encode(reduce[owner].server, first, n, sum, server_error, reduce[owner].step, wire),
                     AQ_OK);
    for (uint32_t w = 0; w < ranks->W; w++)
        assert_int_equal(aq_grad_decode(reduce[0].server, first, n, wire, back, 1.0f, false, reduce[w].x + first),
                         AQ_OK);
}

/* The compressed allreduce as net/collective.h has it. */
static void reduce_compressed(const struct ranks *ranks, const struct aq_reduce *reduce)
{
    for (uint32_t w = 0; w < ranks->W; w++)
        by_ranges(reduce[w].before, &reduce[w]);
    for (uint32_t owner = 0; owner < ranks->W; owner++) {
        uint64_t first, chunk;
        aq_grad_chunk(reduce[0].count, ranks->W, owner, &first, &chunk);
        for (uint64_t at = 0; at < chunk; at += AQ_GRAD_PIECE)
            reduce_piece(ranks, reduce, owner, first + at, chunk - at < AQ_GRAD_PIECE ? chunk - at : AQ_GRAD_PIECE,
                         reduce[owner].server_error ? reduce[owner].server_error + at : NULL);
    }
    for (uint32_t w = 0; w < ranks->W; w++)
        by_ranges(reduce[w].after, &reduce[w]);
}

static void reduce_lanes(uint32_t W, const struct aq_reduce *reduce)
{
    const size_t bytes = aq_lanes_bytes(reduce[0].count, reduce[0].lane_bits);
    for (uint32_t w = 1; w < W; w++)
        aq_lanes_add(reduce[0].lanes, reduce[w].lanes, bytes);
    for (uint32_t w = 1; w < W; w++)
        memcpy(reduce[w].lanes, reduce[0].lanes, bytes);
}

static void reduce_once(struct ranks *ranks, const struct aq_reduce *reduce)
{
    if (reduce[0].kind == AQ_REDUCE_MEAN)
        reduce_mean(ranks->W, reduce);
    else if (reduce[0].kind == AQ_REDUCE_COMPRESSED)
        reduce_compressed(ranks, reduce);
    else
        reduce_lanes(ranks->W, reduce);
}

/* Two attempts that are taken back. */
static void reduce_in_vain(struct ranks *ranks, const struct aq_reduce *reduce, bool keep)
{
    for (uint32_t w = 0; w < ranks->W && keep; w++)
        assert_int_equal(aq_optimizer_keep(ranks->optimizers[w]), AQ_OK);
    for (int times = 0; times < 2; times++) {
        reduce_once(ranks, reduce);
        for (uint32_t w = 0; w < ranks->W; w++)
            assert_int_equal(aq_optimizer_put_back(ranks->optimizers[w]), AQ_OK);
    }
}

static void reduce_held(struct ranks *ranks)
{
    if (ranks->holds && ranks->again) reduce_in_vain(ranks, ranks->held, false);
    if (ranks->holds) reduce_once(ranks, ranks->held);
    ranks->holds = false;
}

void ranks_settle(struct ranks *ranks)
{
    reduce_held(ranks);
    for (uint32_t w = 0; w < ranks->W; w++) {
        assert_int_equal(aq_optimizer_settle(ranks->optimizers[w], NULL), AQ_OK);
        assert_false(aq_optimizer_travels(ranks->optimizers[w]));
    }
}

/* All rounds of what was begun on every rank. */
static void run_rounds(struct ranks *ranks)
{
    for (;;) {
        struct aq_reduce reduce[RANKS_MAX];
        for (uint32_t w = 0; w < ranks->W; w++) {
            assert_int_equal(aq_optimizer_round(ranks->optimizers[w], &reduce[w]), AQ_OK);
            assert_true(reduce[w].kind == reduce[0].kind && reduce[w].count == reduce[0].count);
        }
        if (reduce[0].kind == AQ_REDUCE_NONE) return;
        assert_true(ranks->W > 1);
        if (reduce[0].kind == AQ_REDUCE_WAIT) {
            reduce_held(ranks);
            continue;
        }
        ranks->asked++;
        if (reduce[0].kind == AQ_REDUCE_MEAN)
            ranks->sent += reduce[0].count * sizeof(float);
        else if (reduce[0].kind == AQ_REDUCE_COMPRESSED)
            ranks->sent += (aq_grad_codec_bytes(reduce[0].worker, 0, reduce[0].count) +
                            aq_grad_codec_bytes(reduce[0].server, 0, reduce[0].count)) /
                           2; /* a byte of either goes 2 (W - 1) / W times, there and back */
        else
            ranks->sent += aq_lanes_bytes(reduce[0].count, reduce[0].lane_bits);
        if (ranks->again) reduce_in_vain(ranks, reduce, true);
        if (reduce[0].later && ranks->late) {
            assert_false(ranks->holds);
            memcpy(ranks->held, reduce, sizeof reduce);
            ranks->holds = true;
            continue;
        }
        reduce_once(ranks, reduce);
    }
}

void ranks_step(struct ranks *ranks, float lr, float grad_scale, uint64_t step)
{
    ranks->sent = ranks->asked = 0;
    for (uint32_t w = 0; w < ranks->W; w++)
        assert_int_equal(aq_optimizer_average(ranks->optimizers[w], ranks->gradients[w], step, NULL), AQ_OK);
    run_rounds(ranks);
    if (ranks->W > 1) assert_true((ranks->asked > 0) == aq_optimizer_averages(ranks->optimizers[0], step));
    for (uint32_t w = 0; w < ranks->W; w++)
        assert_int_equal(aq_optimizer_begin(ranks->optimizers[w], ranks->parameters[w], ranks->gradients[w], lr,
                                            grad_scale, step, NULL),
                         AQ_OK);
    run_rounds(ranks);
}

void ranks_void(struct ranks *ranks, uint64_t step)
{
    ranks->sent = ranks->asked = 0;
    for (uint32_t w = 0; w < ranks->W; w++)
        assert_int_equal(aq_optimizer_begin_void(ranks->optimizers[w], ranks->parameters[w], step, NULL), AQ_OK);
    run_rounds(ranks);
}

bool ranks_has_state(const struct ranks *ranks, const char *name)
{
    for (uint32_t i = 0; i < aq_optimizer_state_count(ranks->optimizers[0]); i++) {
        if (strcmp(aq_optimizer_state_name(ranks->optimizers[0], i), name) == 0) return true;
    }
    return false;
}

uint32_t ranks_state(const struct ranks *ranks, const char *name)
{
    for (uint32_t i = 0; i < aq_optimizer_state_count(ranks->optimizers[0]); i++) {
        if (strcmp(aq_optimizer_state_name(ranks->optimizers[0], i), name) == 0) return i;
    }
    fail_msg("there is no state \"%s\"", name);
    return 0;
}

void ranks_expect_equal_parameters(const struct ranks *ranks)
{
    for (uint32_t w = 1; w < ranks->W; w++)
        assert_memory_equal(ranks->parameters[0], ranks->parameters[w], ranks->floats * sizeof(float));
}
