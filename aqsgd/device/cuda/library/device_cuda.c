/*
 * device_cuda.c -- the CUDA backend's memory, streams and events.
 *
 * Streams do not wait for the default stream and nothing here waits for the whole device; a caller orders its work by
 * events. Device memory is one allocation from the plan (aq_device_reserve), cut in the order of the asking and given
 * back as a whole; without a plan (benches, tests) every piece is its own.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cublasLt.h>

#include "cuda_device.h"

#include "aqsgd/device_owner.h"
#if AQ_WITH_CUDNN
#include "cuda_cudnn.h"
#endif

static const size_t SCRATCH_BYTES = (size_t)CUDA_PARTS * CUDA_PART_BYTES + CUDA_GRAIN;
static_assert(CUDA_PARTS * CUDA_PART_BYTES + CUDA_GRAIN + CUDA_WORKSPACE_BYTES == AQ_DEVICE_STREAM_BYTES,
              "what a plan reckons with");

/*
 * Queues by which work reaches a GPU, the most that CUDA has: it makes 8, and streams beyond them share one, so that
 * one whose kernel waits for another rank holds up another's. A stage has compute, send and receive, the device's own,
 * two of NCCL per edge and one per group: up to 9. A variable that the user has set is kept.
 */
static const char CONNECTIONS[] = "32";

struct aq_event {
    cudaEvent_t at;
};

extern const struct aq_device_ops aq_device_cuda;

static _Thread_local int current = -1;

cudaError_t cuda_use(const struct cuda_device *cuda)
{
    if (current == cuda->probe.index) return cudaSuccess;
    const cudaError_t error = cudaSetDevice(cuda->probe.index);
    current = error == cudaSuccess ? cuda->probe.index : -1;
    return error;
}

enum aq_status cuda_check(const struct cuda_device *cuda, const struct aq_stream *stream, const char *what)
{
    if (!cuda->check) return AQ_OK;
    const cudaError_t error = cudaStreamSynchronize(stream->at);
    return error == cudaSuccess ? AQ_OK : cuda_failed(error, what, "AQ_SYNC", 1);
}

/* --- memory ----------------------------------------------------------------------------------------------------- */

static uint64_t grains(uint64_t bytes)
{
    return (bytes / CUDA_GRAIN + 1) *
           CUDA_GRAIN; /* at least a byte behind the last: kernels may look ahead by one load */
}

static void hold(struct cuda_device *cuda, uint64_t bytes, bool take)
{
    aq_mutex_lock(cuda->lock);
    AQ_ASSERT(take || cuda->held >= bytes);
    cuda->held = take ? cuda->held + bytes : cuda->held - bytes;
    aq_mutex_unlock(cuda->lock);
}

static enum aq_status cuda_memory(struct aq_device *device, struct aq_device_memory *out)
{
    struct cuda_device *cuda = cuda_device_of(device);
    size_t free = 0, all = 0;
    AQ_CUDA(cuda_use(cuda));
    AQ_CUDA(cudaMemGetInfo(&free, &all));
    aq_mutex_lock(cuda->lock);
    *out = (struct aq_device_memory){.all = all, .free = free, .held = cuda->held};
    aq_mutex_unlock(cuda->lock);
    return AQ_OK;
}

/* what: its user and the remedy; NULL: the device itself, or a use outside the plan. */
static enum aq_status no_memory(struct cuda_device *cuda, uint64_t bytes, const char *what)
{
    struct aq_device_memory now = {0};
    (void)cudaGetLastError(); /* dealt with */
    (void)cuda_memory(&cuda->base, &now);
    const uint64_t ours = now.free + now.held, beside = now.all > ours ? now.all - ours : 0;
    return aq_fail(AQ_NOMEM, "device",
                   "GPU %d (%s): needs %.2f GiB, %.2f of %.2f GiB are free; this process holds %.2f, and %.2f are the "
                   "CUDA context's, libraries' and other processes' (nvidia-smi lists those); %s",
                   cuda->probe.index, cuda->probe.name, (double)bytes / 0x1p30, (double)now.free / 0x1p30,
                   (double)now.all / 0x1p30, (double)now.held / 0x1p30, (double)beside / 0x1p30,
                   what ? what : "take another GPU (device_index), or put less on this one");
}

static enum aq_status cuda_reserve(struct aq_device *device, uint64_t bytes, const char *what)
{
    struct cuda_device *cuda = cuda_device_of(device);
    void *memory = NULL;
    AQ_ASSERT(!cuda->arena);
    bytes += bytes / 256 + 64 * CUDA_GRAIN; /* the pieces' ends: some dozens */
    AQ_CUDA(cuda_use(cuda));
    if (cudaMalloc(&memory, bytes) != cudaSuccess) return no_memory(cuda, bytes, what);
    hold(cuda, bytes, true);
    cuda->arena = memory;
    cuda->arena_bytes = bytes;
    return AQ_OK;
}

/* A piece of the arena; NULL where it is used up or was never taken. */
static void *arena_cut(struct cuda_device *cuda, uint64_t bytes)
{
    void *piece = NULL;
    aq_mutex_lock(cuda->lock);
    if (cuda->arena_bytes - cuda->arena_used >= bytes) {
        piece = cuda->arena + cuda->arena_used;
        cuda->arena_used += bytes;
        cuda->arena_pieces++;
    }
    aq_mutex_unlock(cuda->lock);
    return piece;
}

/* True where the piece was the arena's. The arena starts again when its last piece has been returned. */
static bool arena_return(struct cuda_device *cuda, const void *memory)
{
    const uintptr_t at = (uintptr_t)memory, base = (uintptr_t)cuda->arena;
    if (!cuda->arena || at < base || at >= base + cuda->arena_bytes) return false;
    aq_mutex_lock(cuda->lock);
    AQ_ASSERT(cuda->arena_pieces > 0);
    if (--cuda->arena_pieces == 0) cuda->arena_used = 0;
    aq_mutex_unlock(cuda->lock);
    return true;
}

static uint64_t cuda_bytes_of(enum aq_memory_kind kind, uint64_t bytes)
{
    const uint64_t shared = AQ_DEVICE_SHARED_GRAIN;
    return kind == AQ_MEMORY_SHARED ? (bytes + shared - 1) / shared * shared : grains(bytes);
}

/*
 * Pinned memory at a multiple of AQ_PINNED_ALIGN, zeroed. The word before it holds what cudaHostAlloc returned, which
 * is aligned to less: cudaFreeHost needs that address.
 */
static enum aq_status pinned_alloc(uint64_t bytes, void **out)
{
    void *memory = NULL;
    if (cudaHostAlloc(&memory, bytes + sizeof memory + AQ_PINNED_ALIGN, cudaHostAllocPortable) != cudaSuccess) {
        (void)cudaGetLastError();
        return aq_fail(AQ_NOMEM, "device", "cannot pin %.1f MiB of the host's memory; see ulimit -l",
                       (double)bytes / 0x1p20);
    }
    const uintptr_t after = (uintptr_t)memory + sizeof memory + AQ_PINNED_ALIGN - 1;
    uint8_t *const aligned = (uint8_t *)(after - after % AQ_PINNED_ALIGN);
    memcpy(aligned - sizeof memory, &memory, sizeof memory);
    memset(aligned, 0, bytes);
    *out = aligned;
    return AQ_OK;
}

static void pinned_free(const void *aligned)
{
    void *memory = NULL;
    memcpy(&memory, (const uint8_t *)aligned - sizeof memory, sizeof memory);
    (void)cudaFreeHost(memory);
}

static enum aq_status cuda_alloc(struct aq_device *device, enum aq_memory_kind kind, size_t bytes, void **out)
{
    struct cuda_device *cuda = cuda_device_of(device);
    void *memory = NULL;
    const uint64_t whole = cuda_bytes_of(kind, bytes);
    AQ_TRY(cuda_outside_graphs("an allocation"));
    AQ_CUDA(cuda_use(cuda));
    if (kind == AQ_MEMORY_PINNED) return pinned_alloc(whole, out);
    if (kind == AQ_MEMORY_DEVICE) memory = arena_cut(cuda, whole);
    if (!memory) {
        if (cuda->arena && kind == AQ_MEMORY_DEVICE)
            aq_log("device", 1, "GPU %d: %llu bytes beyond the plan's %llu", cuda->probe.index,
                   (unsigned long long)whole, (unsigned long long)cuda->arena_bytes);
        if (cudaMalloc(&memory, whole) != cudaSuccess) return no_memory(cuda, whole, NULL);
        hold(cuda, whole, true);
    }
    AQ_CUDA(cudaMemsetAsync(memory, 0, whole, cuda->own->at));
    AQ_CUDA(cudaStreamSynchronize(cuda->own->at));
    *out = memory;
    return AQ_OK;
}

static void cuda_free(struct aq_device *device, enum aq_memory_kind kind, void *memory, size_t bytes)
{
    struct cuda_device *cuda = cuda_device_of(device);
    if (kind == AQ_MEMORY_PINNED) {
        pinned_free(memory);
    } else if (!arena_return(cuda, memory)) {
        (void)cudaFree(memory);
        hold(cuda, cuda_bytes_of(kind, bytes), false);
    }
}

static enum aq_status cuda_copy(struct aq_device *device, void *to, const void *from, size_t bytes,
                                struct aq_stream *stream)
{
    struct cuda_device *cuda = cuda_device_of(device);
    stream = cuda_stream_of(cuda, stream);
    const uint64_t all[3] = {(uintptr_t)to, (uintptr_t)from, bytes};
    bool only;
    AQ_TRY(aq_cuda_list_call("copy", all, sizeof all, stream->at, &only));
    if (only) return AQ_OK;
    AQ_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream->at));
    return cuda_check(cuda, stream, "copy");
}

static enum aq_status cuda_zero(struct aq_device *device, void *to, size_t bytes, struct aq_stream *stream)
{
    struct cuda_device *cuda = cuda_device_of(device);
    stream = cuda_stream_of(cuda, stream);
    const uint64_t all[2] = {(uintptr_t)to, bytes};
    bool only;
    AQ_TRY(aq_cuda_list_call("zero", all, sizeof all, stream->at, &only));
    if (only) return AQ_OK;
    AQ_CUDA(cudaMemsetAsync(to, 0, bytes, stream->at));
    return cuda_check(cuda, stream, "zero");
}

/* --- streams and events ----------------------------------------------------------------------------------------- */

static void cuda_stream_close(struct aq_device *device, struct aq_stream *stream)
{
    if (stream->at) {
        (void)cudaStreamSynchronize(stream->at);
        (void)cudaStreamDestroy(stream->at);
    }
    if (stream->scratch) cuda_free(device, AQ_MEMORY_DEVICE, stream->scratch, SCRATCH_BYTES);
    if (stream->workspace) cuda_free(device, AQ_MEMORY_DEVICE, stream->workspace, CUDA_WORKSPACE_BYTES);
    if (stream->sums) (void)cudaFreeHost(stream->sums);
    aq_free(stream);
}

/* The stream's own memory comes with it: two streams never share scratch. */
static enum aq_status stream_fill(struct aq_device *device, struct aq_stream *stream)
{
    void *memory = NULL;
    AQ_TRY(cuda_alloc(device, AQ_MEMORY_DEVICE, SCRATCH_BYTES, &memory));
    stream->scratch = memory;
    AQ_TRY(cuda_alloc(device, AQ_MEMORY_DEVICE, CUDA_WORKSPACE_BYTES, &memory));
    stream->workspace = memory;
    AQ_CUDA(cudaHostAlloc(&memory, CUDA_SUMS * sizeof *stream->sums, cudaHostAllocPortable));
    stream->sums = memory;
    return AQ_OK;
}

static enum aq_status cuda_stream_open(struct aq_device *device, bool light, struct aq_stream **out)
{
    struct cuda_device *cuda = cuda_device_of(device);
    struct aq_stream *stream;
    AQ_TRY(AQ_NEW(1, &stream));
    stream->device = cuda;
    if (!cuda->own) cuda->own = stream; /* the first: memory is cleared on it */
    cudaError_t error = cuda_use(cuda);
    if (error == cudaSuccess) error = cudaStreamCreateWithFlags(&stream->at, cudaStreamNonBlocking);
    enum aq_status status = error == cudaSuccess ? AQ_OK : cuda_failed(error, "cudaStreamCreate", __FILE__, __LINE__);
    if (status == AQ_OK && !light) status = stream_fill(device, stream);
    if (status == AQ_OK) {
        *out = stream;
        return AQ_OK;
    }
    if (cuda->own == stream) cuda->own = NULL;
    cuda_stream_close(device, stream);
    return status;
}

static enum aq_status cuda_stream_sync(struct aq_device *device, struct aq_stream *stream)
{
    AQ_TRY(cuda_outside_graphs("a wait for the stream"));
    AQ_CUDA(cudaStreamSynchronize(cuda_stream_of(cuda_device_of(device), stream)->at));
    return AQ_OK;
}

static void *cuda_stream_native(struct aq_device *device, struct aq_stream *stream)
{
    return cuda_stream_of(cuda_device_of(device), stream)->at;
}

static enum aq_status cuda_event_open(struct aq_device *device, bool timed, struct aq_event **out)
{
    struct aq_event *event;
    AQ_TRY(AQ_NEW(1, &event));
    cudaError_t error = cuda_use(cuda_device_of(device));
    if (error == cudaSuccess)
        error = cudaEventCreateWithFlags(&event->at, timed ? cudaEventDefault : cudaEventDisableTiming);
    if (error != cudaSuccess) {
        aq_free(event);
        return cuda_failed(error, "cudaEventCreateWithFlags", __FILE__, __LINE__);
    }
    *out = event;
    return AQ_OK;
}

static void cuda_event_close(struct aq_device *device, struct aq_event *event)
{
    (void)device;
    (void)cudaEventDestroy(event->at);
    aq_free(event);
}

static enum aq_status cuda_event_record(struct aq_device *device, struct aq_event *event, struct aq_stream *stream)
{
    AQ_TRY(cuda_outside_graphs("an event"));
    AQ_CUDA(cudaEventRecord(event->at, cuda_stream_of(cuda_device_of(device), stream)->at));
    return AQ_OK;
}

static enum aq_status cuda_event_wait(struct aq_device *device, struct aq_event *event, struct aq_stream *stream)
{
    AQ_TRY(cuda_outside_graphs("a wait for an event"));
    AQ_CUDA(cudaStreamWaitEvent(cuda_stream_of(cuda_device_of(device), stream)->at, event->at, 0));
    return AQ_OK;
}

static enum aq_status cuda_event_query(struct aq_device *device, struct aq_event *event)
{
    (void)device;
    AQ_TRY(cuda_outside_graphs("a look at an event"));
    const cudaError_t error = cudaEventQuery(event->at);
    if (error == cudaErrorNotReady) {
        (void)cudaGetLastError(); /* an answer, no error */
        return AQ_AGAIN;
    }
    return error == cudaSuccess ? AQ_OK : cuda_failed(error, "cudaEventQuery", __FILE__, __LINE__);
}

static enum aq_status cuda_event_elapsed(struct aq_device *device, struct aq_event *first, struct aq_event *last,
                                         uint64_t *ns)
{
    float milliseconds = 0;
    (void)device;
    const cudaError_t error = cudaEventElapsedTime(&milliseconds, first->at, last->at);
    if (error == cudaErrorNotReady) {
        (void)cudaGetLastError(); /* an answer, no error */
        return AQ_AGAIN;
    }
    if (error != cudaSuccess) return cuda_failed(error, "cudaEventElapsedTime", __FILE__, __LINE__);
    *ns = milliseconds > 0 ? (uint64_t)((double)milliseconds * 1e6) : 0;
    return AQ_OK;
}

/* Work on host memory is done only by the calling thread: a GPU has no pool. */
static void cuda_parallel(struct aq_device *device, uint32_t pieces, void (*run)(uint32_t piece, void *context),
                          void *context)
{
    (void)device;
    for (uint32_t piece = 0; piece < pieces; piece++)
        run(piece, context);
}

/* --- the device ------------------------------------------------------------------------------------------------- */

static void cuda_close(struct aq_device *device)
{
    struct cuda_device *cuda = cuda_device_of(device);
    cuda_matmul_close(cuda->matmul);
#if AQ_WITH_CUDNN
    cuda_cudnn_close(cuda->cudnn);
#endif
    if (cuda->own) cuda_stream_close(device, cuda->own);
    if (cuda->arena) (void)cudaFree(cuda->arena);
    aq_mutex_close(cuda->lock);
    if (cuda->owner_fd >= 0) close(cuda->owner_fd);
    aq_free(cuda);
}

/* The context is made here: what a probe cannot see (exclusive mode) shows now. */
static enum aq_status context_open(struct cuda_device *cuda)
{
    current = -1; /* asked again: the device may have been closed since, and its memory freed */
    const cudaError_t error = cuda_use(cuda);
    if (error == cudaSuccess) return AQ_OK;
    if (error == cudaErrorMemoryAllocation)
        return aq_fail(AQ_NOMEM, "device",
                       "GPU %d (%s) has no memory left for a context: other processes hold it; see "
                       "nvidia-smi, or take another GPU",
                       cuda->probe.index, cuda->probe.name);
    if (error == cudaErrorDevicesUnavailable || error == cudaErrorDeviceUninitialized)
        return aq_fail(AQ_REFUSED, "device",
                       "GPU %d (%s) is in exclusive mode and another process has it; see nvidia-smi, or take "
                       "another GPU",
                       cuda->probe.index, cuda->probe.name);
    return cuda_failed(error, "cudaSetDevice", __FILE__, __LINE__);
}

static enum aq_status way_asked(const char *variable, enum cuda_way *way)
{
    static const char *const words[] = {[CUDA_OWN] = "own", [CUDA_CUDNN] = "cudnn", [CUDA_FASTEST] = "fastest"};
    const char *word = getenv(variable);
    *way = CUDA_OWN;
    if (!word || !*word) return AQ_OK;
    for (int i = CUDA_OWN; i <= CUDA_FASTEST; i++)
        if (strcmp(word, words[i]) == 0) {
            *way = (enum cuda_way)i;
            return AQ_OK;
        }
    return aq_fail(AQ_INVAL, "device", "%s is \"%.40s\"; it must be own, cudnn or fastest", variable, word);
}

/* Other kernels than our own, where the environment asks for them. */
static enum aq_status cudnn_open(struct cuda_device *cuda)
{
    enum cuda_way attention, convolution;
    AQ_TRY(way_asked("AQ_GPU_ATTENTION", &attention));
    AQ_TRY(way_asked("AQ_GPU_CONVOLUTION", &convolution));
#if AQ_WITH_CUDNN
    return cuda_cudnn_open(cuda, attention, convolution, &cuda->cudnn);
#else
    (void)cuda;
    if (attention == CUDA_OWN && convolution == CUDA_OWN) return AQ_OK;
    const char *variable = attention == CUDA_OWN ? "AQ_GPU_CONVOLUTION" : "AQ_GPU_ATTENTION";
    return aq_fail(AQ_NODEV, "device",
                   "%s is \"%s\", and this aqpipe was built without cuDNN: unset it, or build with cuDNN's headers "
                   "(-DAQ_CUDNN=ON)",
                   variable, getenv(variable));
#endif
}

/* As cuda_open decides for auto. */
static bool cuda_present(uint32_t index)
{
    struct cuda_probe probe;
    char why[CUDA_TEXT_BYTES];
    return cuda_probe(index, &probe, why) != AQ_NOTFOUND;
}

static enum aq_status cuda_open(const struct aq_device_config *config, struct aq_device **out)
{
    const bool wanted = config->kind && strcmp(config->kind, "cuda") == 0;
    const char *check = getenv("AQ_SYNC");
    struct cuda_probe probe;
    char why[CUDA_TEXT_BYTES];
    int fd = -1;
    (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", CONNECTIONS, 0); /* read when the driver starts: at the first probe */
    enum aq_status status = cuda_probe(config->index, &probe, why);
    if (status == AQ_OK) status = cuda_take(&probe, config->owner, aq_device_owner(), &fd, why);
    if (status == AQ_NOTFOUND && !wanted) {
        aq_log("device", 1, "device: auto: uses the CPU: %s", why + strlen(CUDA_WANTED));
        return status;
    }
    if (status != AQ_OK) return aq_fail(status == AQ_NOTFOUND ? AQ_NODEV : status, "device", "%s", why);
    void *memory = NULL;
    status = aq_alloc(sizeof(struct cuda_device), &memory);
    if (status != AQ_OK) {
        if (fd >= 0) close(fd);
        return status;
    }
    struct cuda_device *cuda = memory;
    cuda->base.ops = &aq_device_cuda;
    cuda->probe = probe;
    cuda->owner_fd = fd;
    cuda->conv_bytes = CUDA_PART_BYTES;
    cuda->check = check && strcmp(check, "1") == 0;
    AQ_TRY_GOTO(cuda_graph_wanted(&cuda->graphs), out);
    AQ_TRY_GOTO(context_open(cuda), out);
    AQ_TRY_GOTO(aq_mutex_open(&cuda->lock), out);
    AQ_TRY_GOTO(cuda_stream_open(&cuda->base, false, &cuda->own), out);
    AQ_TRY_GOTO(cuda_matmul_open(cuda, &cuda->matmul), out);
    AQ_TRY_GOTO(cudnn_open(cuda), out);
    snprintf(cuda->name, sizeof cuda->name, "cuda %d: %.60s, sm_%d%d, %d processors, %.1f GiB", probe.index, probe.name,
             probe.major, probe.minor, probe.processors, (double)probe.memory_bytes / 0x1p30);
    aq_log("device", 2, "%s", cuda->name);
    *out = &cuda->base;
    return AQ_OK;
out:
    cuda_close(&cuda->base);
    return status;
}

static void cuda_info(const struct aq_device *device, struct aq_device_info *out)
{
    const struct cuda_device *cuda = (const struct cuda_device *)device;
    *out = (struct aq_device_info){.memory_bytes = cuda->probe.memory_bytes,
                                   .threads = 1,
                                   .host_memory = false,
                                   .bf16 = true,
                                   .tf32 = true,
                                   .rounds = true};
    snprintf(out->name, sizeof out->name, "%s", cuda->name);
    snprintf(out->uuid, sizeof out->uuid, "%s", cuda->probe.uuid);
    snprintf(out->rounding, sizeof out->rounding, "%.64s, sm_%d%d, %d processors, cuBLASLt %zu", cuda->probe.name,
             cuda->probe.major, cuda->probe.minor, cuda->probe.processors, cublasLtGetVersion());
#if AQ_WITH_CUDNN
    if (cuda->cudnn) cuda_cudnn_rounding(cuda->cudnn, out->rounding, sizeof out->rounding);
#endif
}

const struct aq_device_ops aq_device_cuda = {.kind = "cuda",
                                             .codec = &aq_codec_launchers_cuda,
                                             .grad = &aq_grad_launchers_cuda,
                                             .stream_native = cuda_stream_native,
                                             .present = cuda_present,
                                             .open = cuda_open,
                                             .close = cuda_close,
                                             .info = cuda_info,
                                             .reserve = cuda_reserve,
                                             .memory = cuda_memory,
                                             .alloc = cuda_alloc,
                                             .free = cuda_free,
                                             .stream_open = cuda_stream_open,
                                             .stream_close = cuda_stream_close,
                                             .stream_sync = cuda_stream_sync,
                                             .event_open = cuda_event_open,
                                             .event_close = cuda_event_close,
                                             .event_record = cuda_event_record,
                                             .event_wait = cuda_event_wait,
                                             .event_query = cuda_event_query,
                                             .event_elapsed = cuda_event_elapsed,
                                             .graph_open = cuda_graph_open,
                                             .graph_close = cuda_graph_close,
                                             .graph_begin = cuda_graph_begin,
                                             .graph_again = cuda_graph_again,
                                             .copy = cuda_copy,
                                             .zero = cuda_zero,
                                             .parallel = cuda_parallel,
#define AQ_MATH(name, ...) .name = cuda_##name,
#include "aqsgd/math.def"
                                             .squares = cuda_squares};
