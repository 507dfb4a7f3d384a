/*
 * device.c -- the device seam's public functions: find the backend, check what callers must get right, pass on.
 */
#include "device_ops.h"

#include <assert.h>
#include <string.h>

#define AQ_DEVICE(name) extern const struct aq_device_ops aq_device_##name;
#include "devices.def"
#undef AQ_DEVICE

#define AQ_DEVICE(name) &aq_device_##name,
static const struct aq_device_ops *const backends[] = {
#include "devices.def"
};
#undef AQ_DEVICE

enum { BACKEND_COUNT = sizeof backends / sizeof backends[0] };

static const struct aq_device_ops *registered; /* a test program's */

void aq_device_register(const struct aq_device_ops *ops)
{
    registered = ops;
}

static const struct aq_device_ops *backend_find(const char *kind)
{
    if (registered && strcmp(registered->kind, kind) == 0) return registered;
    for (int i = 0; i < BACKEND_COUNT; i++)
        if (strcmp(backends[i]->kind, kind) == 0) return backends[i];
    return NULL;
}

enum aq_status aq_device_open(const struct aq_device_config *config, struct aq_device **out)
{
    AQ_ASSERT(config && out);
    const char *kind = config->kind ? config->kind : "auto";
    if (strcmp(kind, "auto") == 0) {
        const struct aq_device_ops *gpu = backend_find("cuda");
        const struct aq_device_config cpu = {.kind = "cpu", .threads = config->threads};
        const enum aq_status status = gpu ? gpu->open(config, out) : AQ_NOTFOUND;
        if (status != AQ_NOTFOUND) return status;
        if (!gpu) aq_log("device", 1, "device: auto: uses the CPU, because this build has no CUDA");
        return aq_device_open(&cpu, out);
    }
    AQ_TRY(aq_device_built(kind));
    return backend_find(kind)->open(config, out);
}

enum aq_status aq_device_built(const char *kind)
{
    if (!kind || strcmp(kind, "auto") == 0 || backend_find(kind)) return AQ_OK;
    if (strcmp(kind, "cuda") == 0)
        return aq_fail(AQ_NODEV, "device",
                       "device: cuda is not in this build; use device: cpu, or install a build with CUDA");
    return aq_fail(AQ_INVAL, "device", "device: %s is unknown; write cpu, cuda or auto", kind);
}

enum aq_device_gpu aq_device_gpu(const char *kind)
{
    if (!kind || strcmp(kind, "auto") == 0) return AQ_GPU_MAYBE;
    return strcmp(kind, "cuda") == 0 ? AQ_GPU_YES : AQ_GPU_NO;
}

bool aq_device_gpu_here(const char *kind, uint32_t index)
{
    const struct aq_device_ops *gpu = backend_find("cuda");
    const enum aq_device_gpu answer = aq_device_gpu(kind);
    return answer == AQ_GPU_MAYBE ? gpu && gpu->present && gpu->present(index) : answer == AQ_GPU_YES;
}

void aq_device_close(struct aq_device *device)
{
    if (device) device->ops->close(device);
}

void aq_device_info(const struct aq_device *device, struct aq_device_info *out)
{
    device->ops->info(device, out);
}

enum aq_status aq_device_reserve(struct aq_device *device, uint64_t bytes, const char *what)
{
    return bytes ? device->ops->reserve(device, bytes, what) : AQ_OK;
}

enum aq_status aq_device_memory(struct aq_device *device, struct aq_device_memory *out)
{
    *out = (struct aq_device_memory){0};
    return device->ops->memory ? device->ops->memory(device, out) : AQ_OK;
}

enum aq_status aq_device_alloc(struct aq_device *device, enum aq_memory_kind kind, size_t bytes, void **out)
{
    const uintptr_t align = kind == AQ_MEMORY_PINNED ? AQ_PINNED_ALIGN : AQ_DEVICE_ALIGN;
    AQ_TRY(device->ops->alloc(device, kind, bytes, out));
    AQ_ASSERT((uintptr_t)*out % align == 0);
    return AQ_OK;
}

void aq_device_free(struct aq_device *device, enum aq_memory_kind kind, void *memory, size_t bytes)
{
    if (memory) device->ops->free(device, kind, memory, bytes);
}

static enum aq_status pinned_take(void *context, size_t bytes, void **out)
{
    return aq_device_alloc(context, AQ_MEMORY_PINNED, bytes, out);
}

static void pinned_give(void *context, void *memory, size_t bytes)
{
    aq_device_free(context, AQ_MEMORY_PINNED, memory, bytes);
}

struct aq_pages aq_device_pages(struct aq_device *device)
{
    struct aq_device_info info;
    aq_device_info(device, &info);
    if (info.host_memory) return (struct aq_pages){0};
    return (struct aq_pages){.take = pinned_take, .give = pinned_give, .context = device};
}

void *aq_device_stream_native(struct aq_device *device, struct aq_stream *stream)
{
    return device->ops->stream_native ? device->ops->stream_native(device, stream) : NULL;
}

enum aq_status aq_device_stream_open(struct aq_device *device, struct aq_stream **out)
{
    return device->ops->stream_open(device, false, out);
}

enum aq_status aq_device_stream_open_light(struct aq_device *device, struct aq_stream **out)
{
    return device->ops->stream_open(device, true, out);
}

uint64_t aq_device_stream_bytes(void)
{
    return AQ_DEVICE_STREAM_BYTES;
}

void aq_device_stream_close(struct aq_device *device, struct aq_stream *stream)
{
    if (stream) device->ops->stream_close(device, stream);
}

enum aq_status aq_device_stream_sync(struct aq_device *device, struct aq_stream *stream)
{
    return device->ops->stream_sync(device, stream);
}

enum aq_status aq_device_event_open(struct aq_device *device, struct aq_event **out)
{
    return device->ops->event_open(device, false, out);
}

enum aq_status aq_device_event_open_timed(struct aq_device *device, struct aq_event **out)
{
    return device->ops->event_open(device, true, out);
}

enum aq_status aq_device_event_elapsed(struct aq_device *device, struct aq_event *first, struct aq_event *last,
                                       uint64_t *ns)
{
    return device->ops->event_elapsed(device, first, last, ns);
}

void aq_device_event_close(struct aq_device *device, struct aq_event *event)
{
    if (event) device->ops->event_close(device, event);
}

enum aq_status aq_device_event_record(struct aq_device *device, struct aq_event *event, struct aq_stream *stream)
{
    return device->ops->event_record(device, event, stream);
}

enum aq_status aq_device_event_wait(struct aq_device *device, struct aq_event *event, struct aq_stream *stream)
{
    return device->ops->event_wait(device, event, stream);
}

enum aq_status aq_device_event_query(struct aq_device *device, struct aq_event *event)
{
    return device->ops->event_query(device, event);
}

enum aq_status aq_device_graph_open(struct aq_device *device, struct aq_graph **out)
{
    *out = NULL;
    return device->ops->graph_open ? device->ops->graph_open(device, out) : AQ_OK;
}

void aq_device_graph_close(struct aq_device *device, struct aq_graph *graph)
{
    if (graph) device->ops->graph_close(device, graph);
}

enum aq_status aq_device_graph_begin(struct aq_device *device, struct aq_graph *graph, struct aq_stream *stream)
{
    return graph ? device->ops->graph_begin(device, graph, stream) : AQ_OK;
}

bool aq_device_graph_again(struct aq_device *device, struct aq_graph *graph, enum aq_status *status)
{
    return graph && device->ops->graph_again(device, graph, status);
}

enum aq_status aq_device_copy(struct aq_device *device, void *to, const void *from, size_t bytes,
                              struct aq_stream *stream)
{
    return bytes == 0 || to == from ? AQ_OK : device->ops->copy(device, to, from, bytes, stream);
}

enum aq_status aq_device_zero(struct aq_device *device, void *to, size_t bytes, struct aq_stream *stream)
{
    return bytes == 0 ? AQ_OK : device->ops->zero(device, to, bytes, stream);
}

void aq_device_parallel(struct aq_device *device, uint32_t pieces, void (*run)(uint32_t piece, void *context),
                        void *context)
{
    if (pieces) device->ops->parallel(device, pieces, run, context);
}

/* --- mathematics: a function for each row of math.def ----------------------------------------------------------- */

#define AQ_IN(member) AQ_ASSERT(args->member);
#define AQ_IN_OR_NULL(member)
#define AQ_OUT(member) AQ_OUT_OR_NULL(member) AQ_ASSERT(args->member);
/* A member that is written is no pointer to const. */
#define AQ_OUT_OR_NULL(member)                                                                                         \
    static_assert(_Generic(true ? args->member : nowhere, const void * : false, void * : true), #member);
#define AQ_MATH(name, type, work, legal, operands)                                                                     \
    enum aq_status aq_device_##name(struct aq_device *device, const struct type *args, struct aq_stream *stream)       \
    {                                                                                                                  \
        void *const nowhere = NULL;                                                                                    \
        (void)nowhere;                                                                                                 \
        AQ_ASSERT(legal);                                                                                              \
        if (!(work)) return AQ_OK;                                                                                     \
        operands return device->ops->name(device, args, stream);                                                       \
    }
#include "aqsgd/math.def"

enum aq_status aq_device_squares(struct aq_device *device, const float *x, const struct aq_range *spans, uint32_t count,
                                 double *sums, struct aq_stream *stream)
{
    return count ? device->ops->squares(device, x, spans, count, sums, stream) : AQ_OK;
}
