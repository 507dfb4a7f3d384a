/*
 * worker_hosted.c -- values at a cut where the host may read and change them, for split.privacy and split.capture.
 *
 * If device memory is host memory, they are read in place. On a GPU they are copied to pinned memory behind all that
 * the compute stream has, and exec waits for that stream; what the host has changed is copied back on the same stream,
 * before the values are handed on (aq_values_write_end) or computed with. So plain C does the same everywhere, with the
 * same bits of the same values, and other streams see no more than before: their events come after the copy.
 *
 * One buffer is enough: whoever gets it has waited for the compute stream, on which all earlier copies to and from it
 * were. That exec waits is the price: nothing is issued ahead of a stage that looks at its values.
 */
#include "worker.h"

enum aq_status aq_worker_hosted_open(struct aq_worker *w)
{
    const uint64_t bytes = aq_plan_hosted_bytes(w->plan, w->position);
    struct aq_device_info info;
    void *memory;
    aq_device_info(w->device, &info);
    if (bytes == 0 || info.host_memory) return AQ_OK;
    AQ_TRY(aq_device_alloc(w->device, AQ_MEMORY_PINNED, bytes, &memory));
    w->hosted = memory;
    return AQ_OK;
}

void aq_worker_hosted_close(struct aq_worker *w)
{
    if (w->hosted) aq_device_free(w->device, AQ_MEMORY_PINNED, w->hosted, aq_plan_hosted_bytes(w->plan, w->position));
    w->hosted = NULL;
}

enum aq_status aq_worker_hosted(struct aq_worker *w, const struct aq_values *values, uint64_t count, float **out)
{
    if (w->hosted) {
        AQ_ASSERT(count * sizeof(float) <= aq_plan_hosted_bytes(w->plan, w->position));
        AQ_TRY(aq_device_copy(w->device, w->hosted, values->at, count * sizeof(float), w->stream));
        AQ_TRY(aq_device_stream_sync(w->device, w->stream));
    }
    *out = w->hosted ? w->hosted : values->at;
    return AQ_OK;
}

enum aq_status aq_worker_hosted_back(struct aq_worker *w, const struct aq_values *values, uint64_t count)
{
    return w->hosted ? aq_device_copy(w->device, values->at, w->hosted, count * sizeof(float), w->stream) : AQ_OK;
}
