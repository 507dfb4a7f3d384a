/*
 * cuda_grad.h -- the gradient codecs' kernels on a GPU: a whole range of a flat buffer in two launches.
 *
 * Caveats first.
 * - A range is cut in pieces of AQ_GRAD_PIECE from its start, as all coders of a large buffer cut it
 *   (grad_codec.h); the wire is the pieces' bytes one behind the other, aq_grad_codec_bytes_pieces long. Bytes, errors
 *   and sums have the bits of the CPU's plain table: a sum is a warp's 32 partial sums, and lp's powers are
 *   grad_power.h's.
 * - Only enqueues. The offsets are in *tables* that the host makes once for each (codec, range) and copies to the
 *   device; they stay until the stream has passed.
 * - x, error, wire and sum are device memory, floats at multiples of 4; wire needs no alignment. x and error do not
 *   overlap.
 *
 *     aq_cuda_grad_tables_bytes(codec, first, count, &bytes);
 *     aq_cuda_grad_tables_fill(codec, first, count, host, &tables);       into host memory
 *     ... copy to the device, aq_cuda_grad_tables_at(&tables, device) ...
 *     aq_cuda_grad_encode(&tables, x, error, step, wire, stream);
 *     aq_cuda_grad_decode(&tables, wire, 1.0f / W, true, sum, corrupt, stream);
 *
 * This header compiles as C and as CUDA C++; it knows no CUDA type.
 *
 * Locking: tables are for one stream at a time: encode leaves its quantizers in them.
 */
#ifndef AQSGD_CUDA_GRAD_H
#define AQSGD_CUDA_GRAD_H

#include "aqsgd/grad_codec.h"
#include "aqsgd/grad_device.h"
#include "optimizer_fused.h"

#ifdef __cplusplus
extern "C" {
#endif

enum aq_cuda_grad_kind {
    AQ_CUDA_GRAD_FP32 = 1,
    AQ_CUDA_GRAD_FP16 = 2,
    AQ_CUDA_GRAD_BF16 = 3,
    AQ_CUDA_GRAD_SIGN = 4,
    AQ_CUDA_GRAD_UNIFORM = 5,
    AQ_CUDA_GRAD_LP = 6,
    AQ_CUDA_GRAD_VOTE = 7
};

/* Floats that share a scale, or padding that has none. */
struct aq_cuda_grad_bucket {
    uint64_t offset, count; /* from the range's first float */
    uint64_t scale_at;      /* in the wire */
    uint32_t head;          /* floats before the next whole byte of codes: the CPU adds them up apart (sign) */
    uint32_t padding;
};

struct aq_cuda_grad_piece {
    uint64_t codes_at;    /* in the wire */
    uint32_t count;       /* floats; AQ_GRAD_PIECE in all but the last */
    uint32_t first, last; /* buckets [first, last) */
    uint32_t reserved;
};

/* By value in every launch; the pointers lead into one block of memory. */
struct aq_cuda_grad_tables {
    uint32_t kind, bits, grid, half;
    uint32_t squares;  /* sign: root mean square, else mean magnitude */
    float norm;        /* lp: as in aq_grad_codec_config             */
    float low, high;
    uint64_t count;
    uint32_t piece_count, bucket_count;
    const struct aq_cuda_grad_piece *pieces;
    const struct aq_cuda_grad_bucket *buckets;
    float *steps; /* bucket_count * 2: unit and inverse; NaN where the values were not finite */
};

/* Bytes of the tables of a range. AQ_INVAL: a range outside the buffer. AQ_NODEV: as
 * aq_grad_codec_config_check_device. */
enum aq_status aq_cuda_grad_tables_bytes(const struct aq_grad_codec *codec, uint64_t first, uint64_t count,
                                         size_t *bytes);
/* Makes them in host memory of that size, at a multiple of 8. */
enum aq_status aq_cuda_grad_tables_fill(const struct aq_grad_codec *codec, uint64_t first, uint64_t count, void *memory,
                                        struct aq_cuda_grad_tables *out);
/* The same tables for a copy of that memory. */
void aq_cuda_grad_tables_at(struct aq_cuda_grad_tables *tables, void *memory);

/* As aq_grad_encode, piece by piece. stream: a cudaStream_t. error NULL: none. AQ_CUDAERR: a launch failed. */
enum aq_status aq_cuda_grad_encode(const struct aq_cuda_grad_tables *tables, const float *x, float *error,
                                   uint64_t step, void *wire, void *stream);

/*
 * As aq_grad_decode, piece by piece. The wire's length has been checked by the caller. corrupt: one word in memory that
 * the device can write, zero before; 1 when the stream has passed where a scale is one that no encoder writes, and sum
 * is then partly written.
 */
enum aq_status aq_cuda_grad_decode(const struct aq_cuda_grad_tables *tables, const void *wire, float weight, bool add,
                                   float *sum, uint32_t *corrupt, void *stream);

/* The kernel's pieces, arrays and sums in device memory: as aq_fused_piece of each of them. */
enum aq_status aq_cuda_fused(const struct aq_fused *kernel, void *stream);

/* As aq_device_sum_ranks: everything in device memory. */
enum aq_status aq_cuda_sum_ranks(const struct aq_sum_ranks *args, void *stream);

#ifdef __cplusplus
}
#endif
#endif
