/*
 * edge_size.c -- what follows from the shape of an edge: bytes on the wire, of messages and of memory. See
 * edge_shape.h.
 */
#include "edge_private.h"

struct codec_bytes {
    uint64_t warm, cold, bound, message, kernel;
};

/* Opens a codec to get its sizes. */
static enum aq_status codec_bytes_of(const struct aq_edge_shape *shape, const struct aq_codec_config *config,
                                     struct codec_bytes *out)
{
    struct aq_codec *codec;
    AQ_TRY(aq_codec_open(NULL, config, shape->rows, shape->columns, &codec));
    *out = (struct codec_bytes){.warm = aq_codec_body_bytes_of(codec, shape->rows_mean, false),
                                .cold = aq_codec_body_bytes_of(codec, shape->rows_mean, true),
                                .bound = aq_codec_bound(codec),
                                .message = aq_codec_message_bytes(codec),
                                .kernel = aq_codec_kernel_bytes(codec)};
    aq_codec_close(codec);
    return AQ_OK;
}

static uint64_t largest(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static enum aq_status codec_add(const struct aq_edge_shape *shape, const struct aq_codec_config *config,
                                struct codec_bytes *all)
{
    struct codec_bytes more;
    AQ_TRY(codec_bytes_of(shape, config, &more));
    all->bound = largest(all->bound, more.bound);
    all->kernel = all->kernel && more.kernel ? all->kernel + more.kernel : 0;
    return AQ_OK;
}

/* Adds the needs of the higher bit levels, if there are any, and of all wide codecs to those of the first one. */
static enum aq_status codecs_add(const struct aq_edge_shape *shape, const struct aq_codec_config *config,
                                 bool level_list, bool wide, struct codec_bytes *all)
{
    struct aq_codec_config levels[AQ_EDGE_LEVELS] = {*config}, more;
    const uint32_t count = level_list ? aq_edge_level_list(config, levels) : 1;
    for (uint32_t i = 0; i < count; i++) {
        if (i > 0) AQ_TRY(codec_add(shape, &levels[i], all));
        if (wide && aq_edge_wide(&levels[i], &more)) AQ_TRY(codec_add(shape, &more, all));
    }
    return AQ_OK;
}

/* For a row, the gap behind a body, and the digest of each; the digest of a single body fits in the gap behind the
 * rows. */
static uint64_t sample_room(const struct aq_edge_shape *shape)
{
    const bool all = aq_edge_checks_most(shape) > 1;
    return AQ_EDGE_SAMPLE_BYTES + (all ? AQ_EDGE_BODY_ALIGN : 0);
}

uint64_t aq_edge_body_bytes(uint32_t samples, uint32_t checks, uint64_t coded)
{
    const uint64_t align = AQ_EDGE_BODY_ALIGN;
    const uint64_t head = (uint64_t)samples * AQ_EDGE_ROW_BYTES + (uint64_t)checks * AQ_EDGE_CHECK_BYTES;
    const uint64_t table = (head + align - 1) / align * align;
    return samples == 0 ? 0 : table + (samples - 1) * ((coded + align - 1) / align * align) + coded;
}

enum aq_status aq_edge_size_of(const struct aq_edge_shape *shape, struct aq_edge_size *out)
{
    struct aq_codec_config raw;
    struct codec_bytes forward, backward, evaluation;
    aq_codec_config_plain(&raw);
    AQ_TRY(codec_bytes_of(shape, &shape->forward, &forward));
    AQ_TRY(codecs_add(shape, &shape->forward, shape->guard || shape->level_lists, shape->wide, &forward));
    AQ_TRY(codec_bytes_of(shape, &shape->backward, &backward));
    AQ_TRY(codecs_add(shape, &shape->backward, shape->guard_back || shape->level_lists, shape->wide_back, &backward));
    AQ_TRY(codec_bytes_of(shape, &raw, &evaluation));
    const bool kernels = forward.kernel && backward.kernel && evaluation.kernel;
    const uint64_t bound = largest(largest(evaluation.bound, forward.bound), largest(backward.bound, forward.message));
    const uint32_t rows = shape->rows_mean ? shape->rows_mean : shape->rows;
    struct aq_edge_size size = {.values_bytes = (uint64_t)rows * shape->columns * sizeof(float),
                                .forward_warm_bytes = forward.warm,
                                .forward_cold_bytes = forward.cold,
                                .backward_bytes = backward.warm,
                                .forward_bound = forward.bound,
                                .backward_bound = backward.bound,
                                .raw_bound = evaluation.bound,
                                .kernel_bytes = kernels ? forward.kernel + backward.kernel + evaluation.kernel : 0,
                                .message_bytes = forward.message,
                                .body_bytes_max = shape->micro_batch * (sample_room(shape) + bound)};
    if (shape->still) {
        size.cached_bytes = (forward.bound + AQ_EDGE_BODY_ALIGN - 1) / AQ_EDGE_BODY_ALIGN * AQ_EDGE_BODY_ALIGN;
        size.forward_warm_bytes = size.backward_bytes = 0;
    }
    if (size.body_bytes_max > UINT32_MAX / 2)
        return aq_fail(AQ_INVAL, "edge",
                       "edge %u: a micro-batch of %u samples takes %llu bytes in a frame, 2 GiB is the most; lower "
                       "train.micro_batch or train.T",
                       shape->edge, shape->micro_batch, (unsigned long long)size.body_bytes_max);
    size.buffer_bytes = shape->send_frames * size.body_bytes_max +
                        (shape->shared + shape->summed + shape->tied) * sizeof(float) + size.cached_bytes;
    size.host_bytes = size.buffer_bytes + aq_edge_crop_bytes(shape, &size) + aq_edge_check_host_bytes(shape);
    const uint64_t spare_bytes = shape->wide || shape->wide_back ? size.raw_bound : 0; /* edge_work.c */
    const uint64_t work_bytes = aq_edge_works_bytes(shape, &size) + aq_edge_check_device_bytes(shape) + spare_bytes;
    size.device_bytes = kernels ? work_bytes : 0; /* else the host codes: edge_work.c */
    size.carry_bytes = aq_edge_carry_bytes(&size);
    size.shared_bytes = aq_edge_carry_shared_bytes(&size);
    *out = size;
    return AQ_OK;
}
