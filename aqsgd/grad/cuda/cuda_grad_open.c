/*
 * cuda_grad_open.c -- the gradient codecs' kernels as the CUDA backend offers them: its streams and memory on the one
 * side, cuda_grad.h's launchers on the other.
 *
 * The tables of all spans are in one piece of device memory; a word behind them is set if corrupt bytes were found.
 */
#include <string.h>

#include "cuda_device.h"
#include "cuda_grad.h"
#include "grad_launchers.h"

struct cuda_coder {
    struct aq_grad_coder base;
    struct aq_cuda_grad_tables *tables; /* by span */
    uint8_t *memory;                    /* device: of the tables, then the word */
    size_t bytes;
    uint32_t *corrupt; /* device */
    uint32_t *seen;    /* pinned */
};

static void *native_of(struct aq_device *device, struct aq_stream *stream)
{
    return cuda_stream_of(cuda_device_of(device), stream)->at;
}

static void coder_close(struct aq_grad_coder *base)
{
    struct cuda_coder *coder = (struct cuda_coder *)base;
    aq_device_free(base->device, AQ_MEMORY_DEVICE, coder->memory, coder->bytes);
    aq_device_free(base->device, AQ_MEMORY_PINNED, coder->seen, sizeof *coder->seen);
    aq_free(coder->tables);
    aq_free(coder);
}

static size_t aligned(size_t bytes)
{
    return (bytes + 7) / 8 * 8;
}

/* Makes the tables in `host`, whose bytes then go to the device. */
static enum aq_status fill(struct cuda_coder *coder, const struct aq_grad_span *spans, uint8_t *host)
{
    size_t at = 0;
    for (uint32_t i = 0; i < coder->base.span_count; i++) {
        size_t bytes;
        AQ_TRY(aq_cuda_grad_tables_bytes(coder->base.codec, spans[i].first, spans[i].count, &bytes));
        AQ_TRY(
            aq_cuda_grad_tables_fill(coder->base.codec, spans[i].first, spans[i].count, host + at, &coder->tables[i]));
        aq_cuda_grad_tables_at(&coder->tables[i], coder->memory + at);
        at += aligned(bytes);
    }
    AQ_TRY(aq_device_copy(coder->base.device, coder->memory, host, at, NULL));
    return aq_device_stream_sync(coder->base.device, NULL);
}

static enum aq_status coder_open(struct aq_device *device, const struct aq_grad_codec *codec,
                                 const struct aq_grad_span *spans, uint32_t span_count, struct aq_grad_coder **out)
{
    size_t tables = 0, bytes;
    void *memory = NULL, *host = NULL;
    enum aq_status status;
    AQ_TRY(aq_alloc(sizeof(struct cuda_coder), &memory));
    struct cuda_coder *coder = memory;
    coder->base = (struct aq_grad_coder){.device = device, .codec = codec, .span_count = span_count};
    AQ_TRY_GOTO(aq_alloc((span_count + 1) * sizeof *coder->tables, &memory), out);
    coder->tables = memory;
    for (uint32_t i = 0; i < span_count; i++) {
        AQ_TRY_GOTO(aq_cuda_grad_tables_bytes(codec, spans[i].first, spans[i].count, &bytes), out);
        tables += aligned(bytes);
    }
    coder->bytes = tables + sizeof *coder->corrupt;
    AQ_TRY_GOTO(aq_alloc(tables + 1, &host), out);
    AQ_TRY_GOTO(aq_device_alloc(device, AQ_MEMORY_DEVICE, coder->bytes, &memory), out);
    coder->memory = memory;
    coder->corrupt = (uint32_t *)(void *)(coder->memory + tables);
    AQ_TRY_GOTO(aq_device_alloc(device, AQ_MEMORY_PINNED, sizeof *coder->seen, &memory), out);
    coder->seen = memory;
    AQ_TRY_GOTO(fill(coder, spans, host), out);
out:
    aq_free(host);
    if (status == AQ_OK)
        *out = &coder->base;
    else
        coder_close(&coder->base);
    return status;
}

static enum aq_status coder_encode(struct aq_grad_coder *base, uint32_t span, const float *x, float *error,
                                   uint64_t step, void *wire, struct aq_stream *stream)
{
    const struct cuda_coder *coder = (const struct cuda_coder *)base;
    return aq_cuda_grad_encode(&coder->tables[span], x, error, step, wire, native_of(base->device, stream));
}

static enum aq_status coder_decode(struct aq_grad_coder *base, uint32_t span, const void *wire, float weight, bool add,
                                   float *sum, struct aq_stream *stream)
{
    const struct cuda_coder *coder = (const struct cuda_coder *)base;
    return aq_cuda_grad_decode(&coder->tables[span], wire, weight, add, sum, coder->corrupt,
                               native_of(base->device, stream));
}

static enum aq_status coder_check(struct aq_grad_coder *base, struct aq_stream *stream)
{
    struct cuda_coder *coder = (struct cuda_coder *)base;
    AQ_TRY(aq_device_copy(base->device, coder->seen, coder->corrupt, sizeof *coder->seen, stream));
    AQ_TRY(aq_device_zero(base->device, coder->corrupt, sizeof *coder->corrupt, stream));
    AQ_TRY(aq_device_stream_sync(base->device, stream));
    if (!*coder->seen) return AQ_OK;
    return aq_fail(AQ_CORRUPT, "grad", "%s: an impossible scale: are the gradients finite?",
                   aq_grad_codec_config_of(base->codec)->kind);
}

static enum aq_status sum_ranks(struct aq_device *device, const struct aq_sum_ranks *args, struct aq_stream *stream)
{
    return aq_cuda_sum_ranks(args, native_of(device, stream));
}

static enum aq_status fused(struct aq_device *device, const struct aq_fused *args, struct aq_stream *stream)
{
    return aq_cuda_fused(args, native_of(device, stream));
}

const struct aq_grad_launchers aq_grad_launchers_cuda = {.check_config = aq_grad_codec_config_check_device,
                                                         .open = coder_open,
                                                         .close = coder_close,
                                                         .encode = coder_encode,
                                                         .decode = coder_decode,
                                                         .check = coder_check,
                                                         .sum_ranks = sum_ranks,
                                                         .fused = fused};
