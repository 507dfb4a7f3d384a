/*
 * values.h -- activations or gradients of a micro-batch at a cut, in device memory, and when they may be touched.
 *
 * Streams work side by side: compute, send and receive each come to these values when they come to them. So whoever
 * writes them first waits until they have been read, and whoever reads them waits until they have been written; both
 * leave an event behind. All four calls only enqueue. Begin a read after the write it is of has been ended, and a write
 * after the read before it: the order in which the program's chains are issued.
 *
 *     aq_values_write_begin(device, &y, compute);
 *     forward(..., y.at, compute);
 *     aq_values_write_end(device, &y, compute);
 *     ...
 *     aq_values_read_begin(device, &y, send);
 *     encode(..., y.at, send);
 *     aq_values_read_end(device, &y, send);
 *
 * Locking: one thread.
 */
#ifndef RUNTIME_VALUES_H
#define RUNTIME_VALUES_H

#include "aqsgd/device.h"

struct aq_values {
    float *at;                       /* (B, T, C)                                                            */
    struct aq_event *written, *read; /* NULL: no other stream uses them, and the caller waits for the one stream */
};

/* at (bytes of device memory) and the events. AQ_NOMEM. Closing takes half-open ones. */
enum aq_status aq_values_open(struct aq_device *device, uint64_t bytes, struct aq_values *out);
void aq_values_close(struct aq_device *device, uint64_t bytes, struct aq_values *values);

/* Calls before and after the work that reads or writes them, on its stream. */
enum aq_status aq_values_read_begin(struct aq_device *device, const struct aq_values *values, struct aq_stream *stream);
enum aq_status aq_values_read_end(struct aq_device *device, const struct aq_values *values, struct aq_stream *stream);
enum aq_status aq_values_write_begin(struct aq_device *device, const struct aq_values *values,
                                     struct aq_stream *stream);
enum aq_status aq_values_write_end(struct aq_device *device, const struct aq_values *values, struct aq_stream *stream);

#endif
