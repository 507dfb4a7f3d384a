/* edge_check.c -- see the header. */
#include "edge_check.h"

uint32_t aq_edge_checks_most(const struct aq_edge_shape *shape)
{
    if (shape->still || shape->check == AQ_CHECK_NONE) return 0;
    return shape->check == AQ_CHECK_ALL ? shape->micro_batch : 1;
}

static size_t sample_bytes_of(const struct aq_edge_shape *shape)
{
    return (size_t)shape->rows * shape->columns * sizeof(float);
}

/* Values that the host compares, of both directions. */
uint64_t aq_edge_check_host_bytes(const struct aq_edge_shape *shape)
{
    return 2 * (uint64_t)aq_edge_checks_most(shape) * sample_bytes_of(shape);
}

/* x^ of what is sent. */
uint64_t aq_edge_check_device_bytes(const struct aq_edge_shape *shape)
{
    return (uint64_t)aq_edge_checks_most(shape) * sample_bytes_of(shape);
}

enum aq_status aq_edge_check_open(struct aq_device *device, const struct aq_edge_shape *shape, bool encode,
                                  bool on_device, struct aq_edge_check *out)
{
    const uint32_t most = aq_edge_checks_most(shape);
    struct aq_device_info info;
    void *memory;
    *out = (struct aq_edge_check){0};
    if (most == 0) return AQ_OK;
    aq_device_info(device, &info);
    const uint32_t count = on_device ? most : 1;
    const size_t each = sample_bytes_of(shape);
    if (encode) {
        AQ_TRY(aq_device_alloc(device, AQ_MEMORY_DEVICE, count * each, &memory));
        out->hat = memory;
        out->hat_bytes = count * each;
    }
    if (on_device || !info.host_memory) { /* in order of the stream: whoever has the values next may change them */
        AQ_TRY(aq_device_alloc(device, AQ_MEMORY_PINNED, count * each, &memory));
        out->seen = memory;
        out->seen_bytes = count * each;
    }
    out->sample_bytes = each;
    out->count = count;
    return AQ_OK;
}

void aq_edge_check_close(struct aq_device *device, struct aq_edge_check *check)
{
    if (check->hat) aq_device_free(device, AQ_MEMORY_DEVICE, check->hat, check->hat_bytes);
    if (check->seen) aq_device_free(device, AQ_MEMORY_PINNED, check->seen, check->seen_bytes);
    *check = (struct aq_edge_check){0};
}

static float *sample_at(const struct aq_edge_check *check, float *base, uint32_t i)
{
    return base + i % check->count * (check->sample_bytes / sizeof *base);
}

float *aq_edge_check_hat(const struct aq_edge_check *check, uint32_t i)
{
    return check->hat ? sample_at(check, check->hat, i) : NULL;
}

enum aq_status aq_edge_check_down(struct aq_device *device, const struct aq_edge_check *check, uint32_t i,
                                  const float *values, size_t bytes, struct aq_stream *stream)
{
    AQ_ASSERT(bytes <= check->sample_bytes);
    if (!check->seen) return AQ_OK;
    return aq_device_copy(device, sample_at(check, check->seen, i), values, bytes, stream);
}

uint64_t aq_edge_check_digest(const struct aq_edge_check *check, uint32_t i, const float *values, size_t bytes)
{
    return aq_digest(check->seen ? sample_at(check, check->seen, i) : values, bytes);
}

enum aq_status aq_edge_check_failed(const struct aq_edge_shape *shape, bool sender, const struct aq_edge_batch *batch,
                                    uint32_t i, const char *codec)
{
    const uint32_t here = shape->edge + (sender ? 0 : 1), there = shape->edge + (sender ? 1 : 0);
    return aq_fail(AQ_CORRUPT, "edge",
                   "cut %u %s, step %llu, sample %llu: stage %u decoded other values than stage %u sent (codec %s). "
                   "One of the two computes wrong: compare `aqpipe doctor` on both hosts, build both from one source "
                   "with one CUDA, test their memory; to continue, name another codec in edges.%s, or run one of "
                   "them with device: cpu",
                   shape->edge, sender ? "backward" : "forward", (unsigned long long)batch->step,
                   (unsigned long long)batch->sample_ids[i], here, there, codec, sender ? "backward" : "forward");
}
