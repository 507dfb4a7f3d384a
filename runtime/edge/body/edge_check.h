/*
 * edge_check.h -- what was decoded is what was sent: digests of decoded values (edges.check).
 *
 * The sender of a body knows what its receiver will compute with: the values x^ that encode writes next to the body. A
 * checked frame carries the digest of those values behind its rows. The receiver compares it with the digest of what it
 * has decoded. So it finds a fault on either side that changes a value without breaking the body: a wrong byte by the
 * compiler, a kernel that differs between two devices, memory that flips a bit.
 *
 * The sender must not decode its own body for this: a body that was written wrong decodes alike at both ends.
 *
 * Forward and backward frames are checked; evaluation is not, and neither are edges where samples never change
 * (edge_cached.c), whose messages have their own digests.
 *
 * Locking: the exec thread.
 */
#ifndef RUNTIME_EDGE_CHECK_H
#define RUNTIME_EDGE_CHECK_H

#include "aqsgd/base.h"
#include "aqsgd/device.h"
#include "edge_batch.h"
#include "edge_row.h"
#include "edge_shape.h"

/* Memory of one direction's work. */
struct aq_edge_check {
    float *hat;  /* encode: device memory, where the codec writes x^; `count` samples */
    float *seen; /* host memory, where the values come to be digested; NULL: the host reads the device's */
    size_t sample_bytes, hat_bytes, seen_bytes;
    uint32_t count; /* samples that are looked at in one go: all that are checked, or one after another */
};

/* How many bodies a frame with these flags checks: its first ones. */
static inline uint32_t aq_edge_checks_of(const struct aq_edge_shape *shape, uint16_t flags, uint32_t samples)
{
    if (!(flags & AQ_EDGE_CHECKED)) return 0;
    return shape->check == AQ_CHECK_ALL ? samples : 1;
}

/* Bytes of a frame's rows and of the digests behind them. */
static inline uint32_t aq_edge_head_bytes(const struct aq_edge_shape *shape, uint16_t flags, uint32_t samples)
{
    return samples * AQ_EDGE_ROW_BYTES + aq_edge_checks_of(shape, flags, samples) * AQ_EDGE_CHECK_BYTES;
}

/* Offset of the digest of body i, in a frame of `samples` samples. */
static inline size_t aq_edge_check_at(uint32_t samples, uint32_t i)
{
    return (size_t)samples * AQ_EDGE_ROW_BYTES + (size_t)i * AQ_EDGE_CHECK_BYTES;
}

/* Host memory of an end for checks, and device memory where the device codes. */
uint64_t aq_edge_check_host_bytes(const struct aq_edge_shape *shape);
uint64_t aq_edge_check_device_bytes(const struct aq_edge_shape *shape);

/* Takes the memory of one direction: nothing where nothing is checked. on_device: the device codes micro-batches. */
enum aq_status aq_edge_check_open(struct aq_device *device, const struct aq_edge_shape *shape, bool encode,
                                  bool on_device, struct aq_edge_check *out);
void aq_edge_check_close(struct aq_device *device, struct aq_edge_check *check); /* zeroed is fine */

/* Buffer to which encode writes the x^ of body i; NULL: there is no memory for checks. */
float *aq_edge_check_hat(const struct aq_edge_check *check, uint32_t i);

/* Enqueues: `rows_bytes` of these values, of body i, to where the host can read them. */
enum aq_status aq_edge_check_down(struct aq_device *device, const struct aq_edge_check *check, uint32_t i,
                                  const float *values, size_t bytes, struct aq_stream *stream);

/* Their digest, when the stream has passed. */
uint64_t aq_edge_check_digest(const struct aq_edge_check *check, uint32_t i, const float *values, size_t bytes);

/* AQ_CORRUPT, with a text that has the cut, the direction, the sample, the step and the remedy. */
enum aq_status aq_edge_check_failed(const struct aq_edge_shape *shape, bool sender, const struct aq_edge_batch *batch,
                                    uint32_t i, const char *codec);

#endif
