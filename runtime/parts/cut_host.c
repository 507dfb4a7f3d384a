/* cut_host.c -- see the header. */
#include "cut_host.h"

enum aq_status aq_cut_host_open(struct aq_device *device, struct aq_stream *stream, uint64_t bytes,
                                struct aq_cut_host *out)
{
    struct aq_device_info info;
    void *memory;
    *out = (struct aq_cut_host){.device = device, .stream = stream, .bytes = bytes};
    aq_device_info(device, &info);
    if (bytes == 0 || info.host_memory) return AQ_OK;
    AQ_TRY(aq_device_alloc(device, AQ_MEMORY_PINNED, bytes, &memory));
    out->pinned = memory;
    return AQ_OK;
}

void aq_cut_host_close(struct aq_cut_host *host)
{
    if (host->pinned) aq_device_free(host->device, AQ_MEMORY_PINNED, host->pinned, host->bytes);
    host->pinned = NULL;
}

enum aq_status aq_cut_host_read(struct aq_cut_host *host, const struct aq_values *values, uint64_t count, float **out)
{
    AQ_ASSERT(count * sizeof(float) <= host->bytes);
    if (host->pinned) {
        AQ_TRY(aq_device_copy(host->device, host->pinned, values->at, count * sizeof(float), host->stream));
        AQ_TRY(aq_device_stream_sync(host->device, host->stream));
    }
    *out = host->pinned ? host->pinned : values->at;
    return AQ_OK;
}

enum aq_status aq_cut_host_write(struct aq_cut_host *host, const struct aq_values *values, uint64_t count)
{
    return host->pinned ? aq_device_copy(host->device, values->at, host->pinned, count * sizeof(float), host->stream)
                        : AQ_OK;
}
