/*
 * cuda_matmul.c -- matrix products on a GPU: cuBLASLt, one plan per shape (cuda_plan.h), and the epilogue in the same
 * pass where cuBLASLt can do that.
 *
 * cuBLASLt's matrices are stored by columns, ours by rows, so that it is asked for the transposed product: with X' the
 * same memory read by columns, C' = op(b)' op(a)', and its m is our N. Epilogues then run along our columns, as a bias
 * does.
 *
 * Tensor cores are fed 16 bytes at a time. If the operands' rows start at such a boundary but an extent along them does
 * not end at one, the product is made of parts: the whole pieces, and the rest, a sliver. A head's vocabulary has more
 * words than it needs instead (aq_stage_config.pads_vocabulary).
 *
 * Operands of another type than the product's (never those of a model: stages round theirs once) are converted in the
 * stream's scratch memory.
 */
#include "cuda_plan.h"

enum {
    PIECE_BYTES = CUDA_ALIGN_MAX,
    PART_MIN = 64 /* an extent below this is not worth two products */
};

/* An operand in the type of the product: itself, or a copy in part `part` of the scratch. rows x columns as stored. */
static enum aq_status operand(const struct aq_stream *stream, uint32_t part, enum aq_element want, uint64_t rows,
                              uint64_t columns, const void **at, enum aq_element type, uint64_t *stride)
{
    if (type == want) return AQ_OK;
    const uint64_t padded = (columns + 7) / 8 * 8, bytes = rows * padded * aq_element_bytes(want);
    if (bytes > CUDA_PART_BYTES)
        return aq_fail(AQ_INVAL, "device",
                       "a product of %llu x %llu values needs them in %zu bits: %llu bytes, there is room for %d",
                       (unsigned long long)rows, (unsigned long long)columns, 8 * aq_element_bytes(want),
                       (unsigned long long)bytes, CUDA_PART_BYTES);
    AQ_TRY(aq_cuda_convert(*at, type, *stride, cuda_part(stream, part), want, padded, rows, columns, stream->at));
    *at = cuda_part(stream, part);
    *stride = padded;
    return AQ_OK;
}

/*
 * Sums that go to 16 bits of another kind than the operands' pass through the scratch, as many rows at a time as it
 * holds; so do those that a residual of 16 bits is added to, if the product cannot add it: they are rounded once.
 */
static enum aq_status product_detour(struct cuda_device *cuda, const struct aq_matmul *args, enum aq_element want,
                                     const struct aq_stream *stream)
{
    const uint64_t room = CUDA_PART_BYTES / sizeof(float) / args->N;
    if (room == 0)
        return aq_fail(AQ_INVAL, "device", "a product with rows of %llu values has no room on its way to 16 bits",
                       (unsigned long long)args->N);
    for (uint64_t first = 0; first < args->M; first += room) {
        struct aq_matmul end = *args;
        struct cuda_plan *plan;
        end.M = args->M - first < room ? args->M - first : room;
        end.a =
            (const uint8_t *)args->a + (args->a_transposed ? first : first * args->a_stride) * aq_element_bytes(want);
        end.c = (uint16_t *)args->c + first * args->c_stride;
        if (args->other) end.other = (uint16_t *)args->other + first * args->c_stride;
        if (args->bias) end.bias = args->bias + first * args->bias_stride;
        const struct aq_matmul sums = {.M = end.M,
                                       .N = end.N,
                                       .K = end.K,
                                       .a = end.a,
                                       .b = end.b,
                                       .a_stride = end.a_stride,
                                       .b_stride = end.b_stride,
                                       .c_stride = end.N,
                                       .c_type = AQ_F32,
                                       .compute = end.compute,
                                       .a_transposed = end.a_transposed,
                                       .b_transposed = end.b_transposed,
                                       .c = cuda_part(stream, 0)};
        AQ_TRY(cuda_plan_of(cuda->matmul, &sums, want, stream, &plan));
        AQ_TRY(cuda_plan_run(cuda->matmul, plan, &sums, stream));
        AQ_TRY(aq_cuda_matmul_finish(&end, sums.c, AQ_F32, sums.c_stride, first, stream->at));
    }
    return cuda_check(cuda, stream, "product");
}

/* The sums over k that are asked for: `made` by the product, or by a kernel from the operand. */
static enum aq_status sums_add(const struct aq_matmul *args, bool made, enum aq_element type,
                               const struct aq_stream *stream)
{
    const bool of_a = args->sums_a != NULL;
    const struct aq_column_sum sums = {.rows = args->K,
                                       .C = of_a ? args->M : args->N,
                                       .stride = of_a ? args->a_stride : args->b_stride,
                                       .x = of_a ? args->a : args->b,
                                       .type = type,
                                       .sums = of_a ? args->sums_a : args->sums_b};
    if (made) return aq_cuda_sums_add(cuda_plan_sums(stream), sums.C, sums.sums, stream->at);
    return aq_cuda_column_sum(&sums, cuda_part(stream, 0), stream->at);
}

enum aq_status cuda_plan_finish(const struct cuda_plan *plan, const struct aq_matmul *args,
                                const struct aq_stream *stream)
{
    if (args->sums_a || args->sums_b) return sums_add(args, plan->fused, (enum aq_element)plan->key.in_type, stream);
    if (plan->fused) return AQ_OK;
    return aq_cuda_matmul_finish(args, args->c, args->c_type, args->c_stride, 0, stream->at);
}

static enum aq_status product_whole(struct cuda_device *cuda, const struct aq_matmul *args, enum aq_element want,
                                    const struct aq_stream *stream)
{
    const bool once = cuda_rounds_once(args);
    struct cuda_plan *plan;
    AQ_TRY(cuda_plan_of(cuda->matmul, args, want, stream, &plan));
    if (plan->fused || !once) AQ_TRY(cuda_plan_run(cuda->matmul, plan, args, stream));
    if (!plan->fused && once) return product_detour(cuda, args, want, stream);
    return cuda_plan_finish(plan, args, stream);
}

/* The part of an extent that is whole pieces, if the rest is worth its own product; else all of it. */
static uint64_t part_of(uint64_t extent, uint64_t piece, bool matters)
{
    return matters && extent >= PART_MIN ? extent - extent % piece : extent;
}

/* Values of a piece of 16 bytes; 0 where the product needs none: without tensor cores, or with rows that start
 * anywhere. */
static uint64_t piece_of(const struct aq_matmul *args, enum aq_element want)
{
    const uint64_t piece = PIECE_BYTES / aq_element_bytes(want);
    if (args->compute == AQ_F32 || args->after != AQ_AFTER_NONE || args->bias || args->K == 0) return 0;
    if (args->a_stride % piece || args->b_stride % piece) return 0;
    if (args->c_stride * aq_element_bytes(args->c_type) % PIECE_BYTES) return 0;
    const uintptr_t any = (uintptr_t)args->a | (uintptr_t)args->b | (uintptr_t)args->c;
    return any % PIECE_BYTES ? 0 : piece;
}

/*
 * The product in parts: each extent along which one of the three matrices is contiguous is cut at the end of its whole
 * pieces. N is along c and perhaps b; K along a or b, or neither; M along a, where it is transposed.
 */
static enum aq_status product_parts(struct cuda_device *cuda, const struct aq_matmul *args, enum aq_element want,
                                    const struct aq_stream *stream)
{
    const uint64_t piece = piece_of(args, want), bytes = aq_element_bytes(want);
    if (piece == 0) return product_whole(cuda, args, want, stream);
    const bool k_matters = (args->b_transposed || !args->a_transposed) && args->c_type == AQ_F32;
    const uint64_t M = part_of(args->M, piece, args->a_transposed), N = part_of(args->N, piece, true);
    const uint64_t K = part_of(args->K, piece, k_matters);
    for (uint64_t m = 0; m < args->M; m += M)
        for (uint64_t n = 0; n < args->N; n += N)
            for (uint64_t k = 0; k < args->K; k += K) {
                const uint64_t a = args->a_transposed ? k * args->a_stride + m : m * args->a_stride + k;
                const uint64_t b = args->b_transposed ? n * args->b_stride + k : k * args->b_stride + n;
                struct aq_matmul part = *args;
                part.M = m ? args->M - m : M;
                part.N = n ? args->N - n : N;
                part.K = k ? args->K - k : K;
                part.a = (const uint8_t *)args->a + a * bytes;
                part.b = (const uint8_t *)args->b + b * bytes;
                part.c = (uint8_t *)args->c + (m * args->c_stride + n) * aq_element_bytes(args->c_type);
                part.accumulate = args->accumulate || k > 0;
                AQ_TRY(product_whole(cuda, &part, want, stream));
            }
    return AQ_OK;
}

/*
 * May the product make the sums that are asked for? Not of an operand that was rounded for it, where the scratch is in
 * use as well, nor where the product is made in parts.
 */
static bool sums_fit(const struct aq_matmul *args, enum aq_element want)
{
    const uint64_t piece = piece_of(args, want);
    const bool k_matters = args->b_transposed || !args->a_transposed; /* as in product_parts */
    const bool whole = !piece || (args->M % piece == 0 && args->N % piece == 0 && (args->K % piece == 0 || !k_matters));
    return args->a_type == want && args->b_type == want && args->K && whole && args->c_type == AQ_F32 &&
           (args->sums_a ? args->M : args->N) <= CUDA_PART_BYTES / sizeof(float);
}

enum aq_status cuda_matmul(struct aq_device *device, const struct aq_matmul *args, struct aq_stream *stream)
{
    struct cuda_device *cuda = cuda_device_of(device);
    const enum aq_element want = aq_element_bytes(args->compute) == 2 ? args->compute : AQ_F32;
    struct aq_matmul mine = *args;
    stream = cuda_stream_of(cuda, stream);
    AQ_TRY(operand(stream, 1, want, args->a_transposed ? args->K : args->M, args->a_transposed ? args->M : args->K,
                   &mine.a, args->a_type, &mine.a_stride));
    AQ_TRY(operand(stream, 2, want, args->b_transposed ? args->N : args->K, args->b_transposed ? args->K : args->N,
                   &mine.b, args->b_type, &mine.b_stride));
    if ((args->sums_a || args->sums_b) && !sums_fit(args, want)) {
        AQ_TRY(sums_add(args, false, args->sums_a ? args->a_type : args->b_type, stream));
        mine.sums_a = mine.sums_b = NULL;
    }
    if (args->c_type != AQ_F32 && args->c_type != want) return product_detour(cuda, &mine, want, stream);
    AQ_TRY(product_parts(cuda, &mine, want, stream));
    return cuda_check(cuda, stream, "product");
}
