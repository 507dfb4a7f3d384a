/* values.c -- see values.h. */
#include "values.h"

enum aq_status aq_values_open(struct aq_device *device, uint64_t bytes, struct aq_values *out)
{
    void *memory;
    AQ_TRY(aq_device_alloc(device, AQ_MEMORY_DEVICE, bytes, &memory));
    out->at = memory;
    AQ_TRY(aq_device_event_open(device, &out->written));
    return aq_device_event_open(device, &out->read);
}

void aq_values_close(struct aq_device *device, uint64_t bytes, struct aq_values *values)
{
    aq_device_free(device, AQ_MEMORY_DEVICE, values->at, bytes);
    aq_device_event_close(device, values->written);
    aq_device_event_close(device, values->read);
    *values = (struct aq_values){0};
}

enum aq_status aq_values_read_begin(struct aq_device *device, const struct aq_values *values, struct aq_stream *stream)
{
    return values->written ? aq_device_event_wait(device, values->written, stream) : AQ_OK;
}

enum aq_status aq_values_read_end(struct aq_device *device, const struct aq_values *values, struct aq_stream *stream)
{
    return values->read ? aq_device_event_record(device, values->read, stream) : AQ_OK;
}

enum aq_status aq_values_write_begin(struct aq_device *device, const struct aq_values *values, struct aq_stream *stream)
{
    return values->read ? aq_device_event_wait(device, values->read, stream) : AQ_OK;
}

enum aq_status aq_values_write_end(struct aq_device *device, const struct aq_values *values, struct aq_stream *stream)
{
    return values->written ? aq_device_event_record(device, values->written, stream) : AQ_OK;
}
