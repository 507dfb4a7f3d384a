/*
 * device_ops.h -- the table of functions that a backend fills; private to this folder.
 *
 * A new backend is one file that defines `const struct aq_device_ops aq_device_NAME` and one line in devices.def. Every
 * slot but `codec`, `grad`, `stream_native` and those of graphs is mandatory. A backend's device starts with struct
 * aq_device. Slots mean the same as the functions of that name in device.h, device_graph.h and device_math.h; device.c
 * has already done their checks.
 */
#ifndef AQ_DEVICE_OPS_H
#define AQ_DEVICE_OPS_H

#include "aqsgd/device.h"
#include "aqsgd/device_graph.h"
#include "aqsgd/device_math.h"

struct aq_codec_launchers; /* codec/codec_internal.h */
struct aq_grad_launchers;  /* grad/grad_launchers.h  */

enum { AQ_DEVICE_STREAM_BYTES = (4 * 32 << 20) + 512 }; /* on a GPU: the parts are in device_cuda.c, which asserts it */

struct aq_device_ops {
    const char *kind;
    const struct aq_codec_launchers *codec; /* its own kernels for codecs; NULL: the CPU's, by way of the host */
    const struct aq_grad_launchers *grad;   /* what replicas reduce with; NULL where memory is the host's */
    void *(*stream_native)(struct aq_device *device, struct aq_stream *stream); /* NULL: no native stream */
    bool (*present)(uint32_t index); /* of a kind that auto takes: is there one on this machine? NULL on a CPU */
    enum aq_status (*open)(const struct aq_device_config *config, struct aq_device **out);
    void (*close)(struct aq_device *device);
    void (*info)(const struct aq_device *device, struct aq_device_info *out);

    enum aq_status (*reserve)(struct aq_device *device, uint64_t bytes, const char *what);
    enum aq_status (*memory)(struct aq_device *device, struct aq_device_memory *out); /* NULL: no separate memory */
    enum aq_status (*alloc)(struct aq_device *device, enum aq_memory_kind kind, size_t bytes, void **out);
    void (*free)(struct aq_device *device, enum aq_memory_kind kind, void *memory, size_t bytes);
    enum aq_status (*stream_open)(struct aq_device *device, bool light, struct aq_stream **out);
    void (*stream_close)(struct aq_device *device, struct aq_stream *stream);
    enum aq_status (*stream_sync)(struct aq_device *device, struct aq_stream *stream);
    enum aq_status (*event_open)(struct aq_device *device, bool timed, struct aq_event **out);
    void (*event_close)(struct aq_device *device, struct aq_event *event);
    enum aq_status (*event_record)(struct aq_device *device, struct aq_event *event, struct aq_stream *stream);
    enum aq_status (*event_wait)(struct aq_device *device, struct aq_event *event, struct aq_stream *stream);
    enum aq_status (*event_query)(struct aq_device *device, struct aq_event *event);
    enum aq_status (*event_elapsed)(struct aq_device *device, struct aq_event *first, struct aq_event *last,
                                    uint64_t *ns);
    enum aq_status (*graph_open)(struct aq_device *device, struct aq_graph **out); /* NULL: no graphs */
    void (*graph_close)(struct aq_device *device, struct aq_graph *graph);
    enum aq_status (*graph_begin)(struct aq_device *device, struct aq_graph *graph, struct aq_stream *stream);
    bool (*graph_again)(struct aq_device *device, struct aq_graph *graph, enum aq_status *status);
    enum aq_status (*copy)(struct aq_device *device, void *to, const void *from, size_t bytes,
                           struct aq_stream *stream);
    enum aq_status (*zero)(struct aq_device *device, void *to, size_t bytes, struct aq_stream *stream);
    void (*parallel)(struct aq_device *device, uint32_t pieces, void (*run)(uint32_t piece, void *context),
                     void *context);

#define AQ_MATH(name, type, ...)                                                                                       \
    enum aq_status (*name)(struct aq_device * device, const struct type *args, struct aq_stream *stream);
#include "aqsgd/math.def"
    enum aq_status (*squares)(struct aq_device *device, const float *x, const struct aq_range *spans, uint32_t count,
                              double *sums, struct aq_stream *stream);
};

struct aq_device {
    const struct aq_device_ops *ops;
};

/* One more backend, which a test program brings itself; found before those of devices.def. Before threads start. */
void aq_device_register(const struct aq_device_ops *ops);

#endif
