/*
 * grad_device.h -- reductions of replicas on a device: gradient codecs over device memory, and sums in the order of
 * ranks.
 *
 * Caveats first.
 * - Only enqueues; everything stays until the stream has passed. Bytes, errors and sums have the bits of aq_grad_encode
 *   and aq_grad_decode piece by piece (grad_codec.h), and of a sum ((x0 + x1) + x2) + ... on the CPU.
 * - A coder knows the ranges that it will be asked for: the places of their scales and codes are computed once, and
 *   kept on the device (about 48 bytes for each scale).
 * - Only aq_grad_coder_check, which waits for the stream, reports bytes that no encoder writes.
 *
 *     aq_grad_coder_open(device, codec, spans, span_count, &coder);
 *     aq_grad_coder_encode(coder, i, x + spans[i].first, error + spans[i].first, step, wire, stream);
 *     aq_grad_coder_decode(coder, i, wire, 1.0f / W, true, sum, stream);
 *     aq_grad_coder_check(coder, stream);
 *
 * Locking: a coder is for one stream at a time.
 */
#ifndef AQSGD_GRAD_DEVICE_H
#define AQSGD_GRAD_DEVICE_H

#include "aqsgd/device.h"
#include "aqsgd/grad_codec.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { AQ_SUM_RANKS_MAX = 64 };

struct aq_grad_span {
    uint64_t first, count;
};

struct aq_grad_coder; /* opaque */

/* Has this device kernels for such codecs? AQ_NODEV with the reason. */
enum aq_status aq_grad_device_check(const struct aq_device *device, const struct aq_grad_codec_config *config);

/* The codec is borrowed until close; the spans are copied. AQ_NODEV: as check. AQ_INVAL: a span outside the buffer. */
enum aq_status aq_grad_coder_open(struct aq_device *device, const struct aq_grad_codec *codec,
                                  const struct aq_grad_span *spans, uint32_t span_count, struct aq_grad_coder **out);
void aq_grad_coder_close(struct aq_grad_coder *coder); /* NULL is fine; the streams have passed */
/* Device memory that a coder takes for a buffer of `count` values, at most. */
uint64_t aq_grad_coder_measure(const struct aq_grad_codec_config *config, uint64_t count, uint32_t tensors);

/* wire = C(x + error), error = what is lost; x, error: of span i. wire: aq_grad_codec_bytes_pieces. */
enum aq_status aq_grad_coder_encode(struct aq_grad_coder *coder, uint32_t span, const float *x, float *error,
                                    uint64_t step, void *wire, struct aq_stream *stream);
/* sum = (add ? sum : 0) + weight * decode(wire). */
enum aq_status aq_grad_coder_decode(struct aq_grad_coder *coder, uint32_t span, const void *wire, float weight,
                                    bool add, float *sum, struct aq_stream *stream);
/* Waits. AQ_CORRUPT: since the last check something was decoded whose scale no encoder writes. */
enum aq_status aq_grad_coder_check(struct aq_grad_coder *coder, struct aq_stream *stream);

/*
 * own[i] = scale * (((x0[i] + x1[i]) + x2[i]) + ...), where x of `rank` is own itself, and of any other parts[rank].
 * Scale 1 multiplies nothing.
 */
struct aq_sum_ranks {
    float *own;
    const float *parts[AQ_SUM_RANKS_MAX];
    uint32_t size, rank;
    uint64_t count;
    float scale;
};
enum aq_status aq_device_sum_ranks(struct aq_device *device, const struct aq_sum_ranks *args, struct aq_stream *stream);

#ifdef __cplusplus
}
#endif
#endif
