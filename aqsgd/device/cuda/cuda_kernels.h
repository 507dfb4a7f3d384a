/*
 * cuda_kernels.h -- the launchers of the mathematics' kernels: what device_cuda.c calls. Plain C.
 *
 * Caveats first. Everything only enqueues on its stream. Every pointer is device memory; the structs of arguments are
 * read before the launcher returns. Nothing here allocates: where a `scratch` is asked for it is device memory of
 * AQ_CUDA_SCRATCH_BYTES, aligned to 256 bytes, which belongs to the stream until it has passed; two streams need two.
 *
 * Results do not depend on the GPU, on how many blocks run at once or on their order: every sum is added in an order
 * that the extents give, and no kernel adds floats atomically. They agree with the plain CPU kernels
 * (cpu_rows_plain.c) within the limits that tests/conform/conform_device.c states; dropout masks, initial values,
 * optimizer updates and the embedding's gradients are the CPU's bits.
 *
 * Errors, of all: AQ_CUDAERR where CUDA refused the launch (logged with its text). Others are named below. Extents of
 * 0 launch nothing.
 *
 * Locking: none; launches of one stream come from one thread at a time.
 */
#ifndef AQ_CUDA_KERNELS_H
#define AQ_CUDA_KERNELS_H

#include "aqsgd/device_math.h"

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st; /* cudaStream_t is a pointer to it */

enum { AQ_CUDA_SCRATCH_BYTES = 32 << 20 };

/*
 * aq_cuda_NAME, as aq_device_NAME (device_math.h), for each row of math.def that no library of the GPU has.
 *
 *   attention   bf16 and fp16 with D of 64 or 128 go through the tensor cores, everything else through fp32
 *               multiply-adds. AQ_INVAL: D above 512, or (backward) H * T above 8388608.
 *   embedding_backward   AQ_INVAL: samples * T above 2^31 - 1.
 *   cross_entropy   reads a row of logits once where shared memory holds it, and of a longer row the rest twice.
 */
#define AQ_MATH_LIBRARY(...)
#define AQ_MATH(name, type, ...)                                                                                       \
    enum aq_status aq_cuda_##name(const struct type *args, void *scratch, struct CUstream_st *stream);
#include "aqsgd/math.def"

/* Our own attention, as the rows above; cuda_math.c may take cuDNN's instead. */
enum aq_status aq_cuda_attention(const struct aq_attention *args, void *scratch, struct CUstream_st *stream);
enum aq_status aq_cuda_attention_backward(const struct aq_attention *args, void *scratch, struct CUstream_st *stream);

/* After cuDNN's attention of 16 bits: rows of padding of out and lse, or (backward) of dqkv_rounded, become 0. */
enum aq_status aq_cuda_attention_padding(const struct aq_attention *args, bool backward, struct CUstream_st *stream);

/*
 * Convolutions, one thread per value: right for every shape, and slow. cuda_conv_product.c makes products of them where
 * it can. (A row's scratch is not used.)
 */
enum aq_status aq_cuda_conv(const struct aq_conv *args, void *scratch, struct CUstream_st *stream);
enum aq_status aq_cuda_conv_backward(const struct aq_conv_backward *args, void *scratch, struct CUstream_st *stream);
enum aq_status aq_cuda_conv_weights(const struct aq_conv_weights *args, void *scratch, struct CUstream_st *stream);

/*
 * The inputs of output pixels `first` to first + rows - 1 of a convolution, a row each (im2col): K K C values of x,
 * zeroes outside of the image, rounded to `type`. `stride` in elements; those between K K C and it are not written. All
 * pixels of the images, and the values of these rows, are less than 2^31.
 */
struct aq_cuda_columns {
    struct aq_conv_shape shape; /* N and compute are not read */
    const float *x;
    uint64_t first, rows;
    void *to;
    enum aq_element type;
    uint64_t stride;
};
enum aq_status aq_cuda_columns(const struct aq_cuda_columns *args, struct CUstream_st *stream);

/* The other way (col2im): dx of all samples = the sums of what their output pixels have read of them. dx is written. */
enum aq_status aq_cuda_columns_back(const struct aq_conv_shape *shape, const float *from, uint64_t stride, float *dx,
                                    struct CUstream_st *stream);

/* to (K K N, C), rows `stride` elements apart: w (K K C, N) with the places mirrored, and N before C; rounded. */
enum aq_status aq_cuda_weights_turn(const struct aq_conv_shape *shape, const float *w, void *to, enum aq_element type,
                                    uint64_t stride, struct CUstream_st *stream);

/* dw (columns, rows) += from (rows, columns) transposed. */
enum aq_status aq_cuda_weights_add(const float *from, uint64_t rows, uint64_t columns, float *dw,
                                   struct CUstream_st *stream);

/*
 * The epilogue of a matrix product, if the product itself could not do it: c = after(sums + bias), with args' c,
 * c_stride, c_type, other, bias, dropout and `after` (also AQ_AFTER_NONE: bias and conversion). sums is M x N of
 * `sums_type`, fp32 or c's; it may be c, element for element. first: rows of the product before these, for dropout's
 * mask.
 */
enum aq_status aq_cuda_matmul_finish(const struct aq_matmul *args, const void *sums, enum aq_element sums_type,
                                     uint64_t sums_stride, uint64_t first, struct CUstream_st *stream);

/*
 * As aq_device_fill_normal, except values whose last bit depends on the library: doubtful[0], which must be 0 before,
 * is their number, and their elements follow, the first `room` of them. Nothing is in doubt where std is 0.
 */
enum aq_status aq_cuda_fill_normal(const struct aq_fill_normal *args, uint64_t *doubtful, uint64_t room,
                                   struct CUstream_st *stream);

/* sums[i] += x[i] of fp32 values. */
enum aq_status aq_cuda_sums_add(const float *x, uint64_t count, float *sums, struct CUstream_st *stream);

/* As aq_device_squares, sums on the device. */
enum aq_status aq_cuda_squares(const float *x, const struct aq_range *spans, uint32_t count, double *sums,
                               void *scratch, struct CUstream_st *stream);

/* y = x, rows x columns, from one element type to another; strides in elements. y may be x where types and strides
 * are equal. */
enum aq_status aq_cuda_convert(const void *x, enum aq_element x_type, uint64_t x_stride, void *y,
                               enum aq_element y_type, uint64_t y_stride, uint64_t rows, uint64_t columns,
                               struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif
#endif
