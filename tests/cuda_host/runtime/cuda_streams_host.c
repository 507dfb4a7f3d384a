/*
 * cuda_streams_host.c -- CUDA's streams, events and copies on the host: work that is done as late as it may.
 *
 * A stream only notes what it is told: copies, products, launches of kernels. It runs when somebody waits for it: sync,
 * an event of it that another stream waits for, one of the next looks at an event, or memory that is freed. After how
 * many looks (1 to LOOKS_MAX, or as many as CUDA_HOST_LOOKS says) is drawn from a fixed sequence, so that streams
 * overtake each other in many ways. So operands that are reused too early, results that are read too early and events
 * that are missing show as wrong numbers. CUDA_HOST_STREAMS=early in the environment runs everything at once: a program
 * that waits where it must gives the same bits either way. With CUDA_HOST_COPY_MS=N each copy from the memory of
 * another process takes N ms, one after another, to those who look: who tells that process too early reads what it
 * writes next.
 *
 * What NCCL has put on a stream (nccl_host.c) may have to wait for another rank: who only looks is told that it is not
 * ready, and who waits for it without an end is shown.
 *
 * Locking: a stream and its events belong to the thread that made them; memory that is freed waits for those alone.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "aqsgd/base.h"
#include "cuda_host_test.h"
#include "cuda_runtime_api.h"

enum {
    WORKS_MAX = 8192, /* of a stream, noted and not yet done; then the oldest is done */
    LOOKS_MAX = 9
};

struct work {
    int (*run)(void *context);
    void *context;
    bool foreign; /* another rank's: it may take for ever */
};

struct CUstream_st {
    struct CUstream_st *next; /* of all ever made: events may name one that is destroyed */
    const void *owner;        /* a thread */
    int gpu;
    uint64_t noted, done; /* works, ever */
    cudaError_t error;    /* the first; stays */
    uint64_t due_ns;      /* when the last copy from another process has had its time */
    struct work works[WORKS_MAX];
};

struct CUevent_st {
    cudaStream_t stream; /* NULL: never recorded */
    int gpu;
    uint64_t position, passed_ns, due_ns;
    bool timed;
    uint32_t looks; /* that are still told that it is not there */
};

static cudaStream_t streams;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the list */
static _Thread_local char self;

static uint32_t looks_drawn(void)
{
    static _Thread_local uint32_t sequence = 1;
    const char *wish = getenv("CUDA_HOST_LOOKS");
    if (wish) return (uint32_t)strtoul(wish, NULL, 10);
    sequence = sequence * 1664525u + 1013904223u;
    return 1 + (sequence >> 16) % LOOKS_MAX;
}

static bool early(void)
{
    const char *wish = getenv("CUDA_HOST_STREAMS");
    return wish && strcmp(wish, "early") == 0;
}

/* As far as it gets. Waits point backwards in time only, so that this ends. */
static cudaError_t stream_run(cudaStream_t stream, uint64_t position)
{
    while (stream->done < position) {
        const struct work work = stream->works[stream->done % WORKS_MAX];
        const cudaError_t error = (cudaError_t)work.run(work.context);
        if (error == cudaErrorNotReady) return error;
        stream->done++;
        if (stream->error == cudaSuccess) stream->error = error;
    }
    return stream->error;
}

/* The same to the end: who would wait for another rank, with no deadline, is a mistake. */
static cudaError_t stream_finish(cudaStream_t stream, uint64_t position, const char *what)
{
    const cudaError_t error = stream_run(stream, position);
    if (error != cudaErrorNotReady) return error;
    fprintf(stderr, "%s waits without an end for what NCCL has not done\n", what);
    abort();
}

static cudaError_t all_run(void)
{
    (void)pthread_mutex_lock(&lock);
    cudaStream_t stream = streams;
    (void)pthread_mutex_unlock(&lock);
    for (; stream; stream = stream->next)
        if (stream->owner == &self) (void)stream_finish(stream, stream->noted, "cudaFree");
    return cudaSuccess;
}

/* Takes the context. */
static int note_work(cudaStream_t stream, struct work work)
{
    if (stream->noted - stream->done == WORKS_MAX) (void)stream_finish(stream, stream->done + 1, "a full stream");
    stream->works[stream->noted++ % WORKS_MAX] = work;
    const cudaError_t error = early() ? stream_run(stream, stream->noted) : cudaSuccess;
    return error == cudaErrorNotReady ? cudaSuccess : error;
}

static int note(void *stream, int (*run)(void *context), void *context)
{
    return note_work(stream, (struct work){run, context, false});
}

/* Copies may go to the stream of any GPU; a kernel only to one of the thread's own (CUDA's guide, multi-device). */
static int note_kernel(void *stream, int (*run)(void *context), void *context)
{
    if (((cudaStream_t)stream)->gpu == cuda_runtime_host_current()) return note(stream, run, context);
    fprintf(stderr, "a kernel for the stream of GPU %d while the thread's is GPU %d\n", ((cudaStream_t)stream)->gpu,
            cuda_runtime_host_current());
    return cudaErrorInvalidResourceHandle;
}

cudaError_t cuda_runtime_host_pending(cudaStream_t stream, int (*run)(void *context), void *context)
{
    return (cudaError_t)note_work(stream, (struct work){run, context, true});
}

bool cuda_runtime_host_waits(void)
{
    (void)pthread_mutex_lock(&lock);
    cudaStream_t stream = streams;
    (void)pthread_mutex_unlock(&lock);
    for (; stream; stream = stream->next)
        for (uint64_t i = stream->done; stream->owner == &self && i < stream->noted; i++)
            if (stream->works[i % WORKS_MAX].foreign) return true;
    return false;
}

cudaError_t cuda_runtime_host_later(cudaStream_t stream, int (*run)(void *context), const void *context, size_t bytes)
{
    if (!stream) return cudaErrorInvalidValue; /* the backend never uses the legacy stream */
    void *copy = malloc(bytes);
    if (!copy) return cudaErrorMemoryAllocation;
    memcpy(copy, context, bytes);
    return (cudaError_t)note(stream, run, copy);
}

cudaError_t cuda_runtime_host_finish(void)
{
    return all_run();
}

/* --- copies ----------------------------------------------------------------------------------------------------- */

struct copy {
    void *to;
    const void *from; /* NULL: set */
    size_t bytes;
    int value;
};

static int copy_run(void *context)
{
    const struct copy *copy = context;
    if (copy->from)
        cuda_runtime_host_copy(copy->to, copy->from, copy->bytes);
    else
        cuda_runtime_host_set(copy->to, copy->value, copy->bytes);
    free(context);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    (void)kind;
    const struct copy copy = {.to = to, .from = from, .bytes = bytes};
    const char *wish = getenv("CUDA_HOST_COPY_MS");
    if (wish && stream && cuda_ipc_host_is_mapped(from)) {
        const uint64_t now = aq_clock_ns();
        stream->due_ns = (stream->due_ns > now ? stream->due_ns : now) + strtoul(wish, NULL, 10) * 1000000;
    }
    return cuda_runtime_host_later(stream, copy_run, &copy, sizeof copy);
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
    const struct copy copy = {.to = to, .bytes = bytes, .value = value};
    return cuda_runtime_host_later(stream, copy_run, &copy, sizeof copy);
}

/* --- streams and events ----------------------------------------------------------------------------------------- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    if (flags != cudaStreamNonBlocking) return cudaErrorInvalidValue;
    *out = calloc(1, sizeof **out);
    if (!*out) return cudaErrorMemoryAllocation;
    (void)pthread_mutex_lock(&lock);
    (*out)->next = streams;
    (*out)->owner = &self;
    (*out)->gpu = cuda_runtime_host_current();
    streams = *out;
    (void)pthread_mutex_unlock(&lock);
    cuda_host_later(note_kernel, cuda_runtime_host_copy, cuda_runtime_host_set);
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    return stream_finish(stream, stream->noted, "cudaStreamDestroy");
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    return stream ? stream_finish(stream, stream->noted, "cudaStreamSynchronize") : cudaErrorInvalidValue;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    if (flags != cudaEventDisableTiming && flags != cudaEventDefault) return cudaErrorInvalidValue;
    *out = calloc(1, sizeof **out);
    if (!*out) return cudaErrorMemoryAllocation;
    (*out)->timed = flags == cudaEventDefault;
    (*out)->gpu = cuda_runtime_host_current();
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    if (event->stream) (void)stream_finish(event->stream, event->position, "cudaEventDestroy");
    free(event);
    return cudaSuccess;
}

static _Thread_local uint64_t longer_ns;

void cuda_runtime_host_longer(uint64_t ns)
{
    longer_ns += ns;
}

static int stamp_run(void *context)
{
    cudaEvent_t event;
    memcpy(&event, context, sizeof(cudaEvent_t));
    event->passed_ns = aq_clock_ns() + longer_ns;
    free(context);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    if (!stream || !event) return cudaErrorInvalidValue;
    if (event->gpu != stream->gpu) return cudaErrorInvalidResourceHandle;
    if (event->timed) (void)cuda_runtime_host_later(stream, stamp_run, &event, sizeof(cudaEvent_t));
    event->stream = stream;
    event->position = stream->noted;
    event->due_ns = stream->due_ns;
    event->looks = looks_drawn();
    return cudaSuccess;
}

struct wait {
    cudaStream_t stream;
    uint64_t position;
};

static int wait_run(void *context)
{
    const struct wait wait = *(const struct wait *)context;
    const cudaError_t error = stream_run(wait.stream, wait.position);
    if (error != cudaErrorNotReady) free(context);
    return (int)error;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    if (!stream || !event || flags != 0) return cudaErrorInvalidValue;
    if (!event->stream) return cudaSuccess;
    const struct wait wait = {.stream = event->stream, .position = event->position};
    return cuda_runtime_host_later(stream, wait_run, &wait, sizeof wait);
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    if (!event) return cudaErrorInvalidValue;
    if (!event->stream) return cudaSuccess;
    const bool done = event->stream->done >= event->position;
    if (!done && aq_clock_ns() < event->due_ns) return cudaErrorNotReady;
    if (!done && event->looks > 0) {
        event->looks--;
        return cudaErrorNotReady;
    }
    return stream_run(event->stream, event->position);
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t first, cudaEvent_t last)
{
    if (!first->timed || !last->timed || !first->stream || !last->stream) return cudaErrorInvalidValue;
    if (first->stream->done < first->position || last->stream->done < last->position) return cudaErrorNotReady;
    *milliseconds = (float)((double)last->passed_ns - (double)first->passed_ns) * 1e-6f;
    return cudaSuccess;
}
