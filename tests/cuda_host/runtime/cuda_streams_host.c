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
 * Graphs: a stream that records (cudaStreamBeginCapture) keeps its work for the graph instead, with arguments as they
 * are then. A launch of the graph puts all of it on a stream. What CUDA forbids meanwhile fails with CUDA's error and
 * makes the recording invalid: waits, looks at events, allocations, copies of pageable memory, events of other streams,
 * what NCCL does. Here all of that is forbidden to the recording thread, whatever the stream; CUDA allows some of it.
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
    void (*drop)(void *context); /* NULL: the context is somebody else's */
    void *context;
    bool foreign; /* another rank's: it may take for ever */
};

/* Work that was recorded; of a graph and of what is instantiated from it. */
struct CUgraph_st {
    uint32_t users;
    size_t count, room;
    struct work *works;
};

struct CUgraphExec_st {
    cudaGraph_t graph;
    cudaStream_t stream; /* of its last launch, which ends at */
    uint64_t position;
};

struct CUstream_st {
    struct CUstream_st *next; /* of all ever made: events may name one that is destroyed */
    const void *owner;        /* a thread */
    int gpu;
    uint64_t noted, done;  /* works, ever */
    cudaError_t error;     /* the first; stays */
    cudaGraph_t recording; /* NULL: it is not */
    bool invalid;          /* the recording */
    uint64_t due_ns;       /* when the last copy from another process has had its time */
    struct work works[WORKS_MAX];
};

struct CUevent_st {
    cudaStream_t stream; /* NULL: never recorded */
    int gpu;
    uint64_t position, passed_ns, due_ns;
    bool timed, recorded; /* recorded: in a graph */
    uint32_t looks;       /* that are still told that it is not there */
};

static cudaStream_t streams;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the list */
static _Thread_local char self;
static _Thread_local cudaStream_t recorder; /* the thread's stream that records */
static _Atomic uint64_t graph_launches, graph_works;
static bool graph_fails;

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
        if (work.drop) work.drop(work.context);
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

static void graph_leave(cudaGraph_t graph)
{
    if (--graph->users > 0) return;
    for (size_t i = 0; i < graph->count; i++)
        if (graph->works[i].drop) graph->works[i].drop(graph->works[i].context);
    free(graph->works);
    free(graph);
}

cudaError_t cuda_runtime_host_unsafe(void)
{
    if (!recorder) return cudaSuccess;
    recorder->invalid = true;
    return cudaErrorStreamCaptureUnsupported;
}

static int record(cudaStream_t stream, struct work work)
{
    cudaGraph_t graph = stream->recording;
    const bool bad = work.foreign || stream != recorder;
    if (stream->invalid || bad) {
        stream->invalid = true;
        if (work.drop) work.drop(work.context);
        return bad ? cudaErrorStreamCaptureUnsupported : cudaErrorStreamCaptureInvalidated;
    }
    if (graph->count == graph->room) {
        const size_t room = graph->room ? 2 * graph->room : 64;
        struct work *works = realloc(graph->works, room * sizeof *works);
        if (!works) abort();
        graph->works = works;
        graph->room = room;
    }
    graph->works[graph->count++] = work;
    return cudaSuccess;
}

/* Takes the context. */
static int note_work(cudaStream_t stream, struct work work)
{
    if (stream->recording) return record(stream, work);
    if (stream->noted - stream->done == WORKS_MAX) (void)stream_finish(stream, stream->done + 1, "a full stream");
    stream->works[stream->noted++ % WORKS_MAX] = work;
    const cudaError_t error = early() ? stream_run(stream, stream->noted) : cudaSuccess;
    return error == cudaErrorNotReady ? cudaSuccess : error;
}

/* Copies may go to the stream of any GPU; a kernel only to one of the thread's own (CUDA's guide, multi-device). */
static int note_kernel(void *stream, struct cuda_host_work work)
{
    if (((cudaStream_t)stream)->gpu == cuda_runtime_host_current())
        return note_work(stream, (struct work){work.run, work.drop, work.context, false});
    fprintf(stderr, "a kernel for the stream of GPU %d while the thread's is GPU %d\n", ((cudaStream_t)stream)->gpu,
            cuda_runtime_host_current());
    return cudaErrorInvalidResourceHandle;
}

cudaError_t cuda_runtime_host_pending(cudaStream_t stream, int (*run)(void *context), void *context)
{
    return (cudaError_t)note_work(stream, (struct work){run, NULL, context, true});
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

struct later {
    int (*run)(void *context);
    size_t bytes;
    max_align_t context[];
};

/* Each run has a copy of its own: a graph runs it again. */
static int later_run(void *context)
{
    struct later *later = context;
    void *copy = malloc(later->bytes);
    if (!copy) return cudaErrorMemoryAllocation;
    memcpy(copy, later->context, later->bytes);
    const int error = later->run(copy);
    if (error == cudaErrorNotReady) free(copy); /* it is asked again */
    return error;
}

cudaError_t cuda_runtime_host_later(cudaStream_t stream, int (*run)(void *context), const void *context, size_t bytes)
{
    if (!stream) return cudaErrorInvalidValue; /* the backend never uses the legacy stream */
    struct later *later = malloc(sizeof *later + bytes);
    if (!later) return cudaErrorMemoryAllocation;
    later->run = run;
    later->bytes = bytes;
    memcpy(later->context, context, bytes);
    return (cudaError_t)note_work(stream, (struct work){later_run, free, later, false});
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
    /* Of pageable memory CUDA takes a copy at once, or waits: no graph can. */
    const bool pageable = (!cuda_host_is_device(to) && !cuda_runtime_host_pinned(to)) ||
                          (!cuda_host_is_device(from) && !cuda_runtime_host_pinned(from));
    if (stream && stream->recording && pageable) return cuda_runtime_host_unsafe();
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
    if (cuda_runtime_host_unsafe() != cudaSuccess) return cudaErrorStreamCaptureUnsupported;
    if (flags != cudaStreamNonBlocking) return cudaErrorInvalidValue;
    *out = calloc(1, sizeof **out);
    if (!*out) return cudaErrorMemoryAllocation;
    (void)pthread_mutex_lock(&lock);
    (*out)->next = streams;
    (*out)->owner = &self;
    (*out)->gpu = cuda_runtime_host_current();
    streams = *out;
    (void)pthread_mutex_unlock(&lock);
    cuda_host_later(note_kernel, cuda_runtime_host_copy, cuda_runtime_host_set, cuda_runtime_host_longer);
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    if (cuda_runtime_host_unsafe() != cudaSuccess) return cudaErrorStreamCaptureUnsupported;
    return stream_finish(stream, stream->noted, "cudaStreamDestroy");
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    if (cuda_runtime_host_unsafe() != cudaSuccess) return cudaErrorStreamCaptureUnsupported;
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
    event->recorded = stream->recording != NULL; /* a node of the graph, which passes nothing yet */
    if (event->recorded) return stream->invalid ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
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
    if (event->recorded || (event->stream && stream->recording)) { /* what is not recorded, and what is, do not meet */
        if (recorder) recorder->invalid = true;
        return cudaErrorStreamCaptureIsolation;
    }
    if (!event->stream) return cudaSuccess;
    const struct wait wait = {.stream = event->stream, .position = event->position};
    return cuda_runtime_host_later(stream, wait_run, &wait, sizeof wait);
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    if (!event) return cudaErrorInvalidValue;
    if (event->recorded) return cudaErrorCapturedEvent;
    if (cuda_runtime_host_unsafe() != cudaSuccess) return cudaErrorStreamCaptureUnsupported;
    if (!event->stream) return cudaSuccess;
    const bool done = event->stream->done >= event->position;
    if (!done && aq_clock_ns() < event->due_ns) return cudaErrorNotReady;
    if (!done && event->looks > 0) {
        event->looks--;
        return cudaErrorNotReady;
    }
    return stream_run(event->stream, event->position);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    if (!event) return cudaErrorInvalidValue;
    if (event->recorded) return cudaErrorCapturedEvent;
    if (cuda_runtime_host_unsafe() != cudaSuccess) return cudaErrorStreamCaptureUnsupported;
    return event->stream ? stream_finish(event->stream, event->position, "cudaEventSynchronize") : cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t first, cudaEvent_t last)
{
    if (!first->timed || !last->timed || !first->stream || !last->stream) return cudaErrorInvalidValue;
    if (first->stream->done < first->position || last->stream->done < last->position) return cudaErrorNotReady;
    *milliseconds = (float)((double)last->passed_ns - (double)first->passed_ns) * 1e-6f;
    return cudaSuccess;
}

/* --- graphs ----------------------------------------------------------------------------------------------------- */

uint64_t cuda_runtime_host_graph_launches(void)
{
    return graph_launches;
}

uint64_t cuda_runtime_host_graph_works(void)
{
    return graph_works;
}

void cuda_runtime_host_graph_fails(void)
{
    graph_fails = true;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    if (!stream || mode != cudaStreamCaptureModeThreadLocal) return cudaErrorInvalidValue; /* others are for others */
    if (stream->recording || recorder) return cudaErrorIllegalState;
    stream->recording = calloc(1, sizeof *stream->recording);
    if (!stream->recording) return cudaErrorMemoryAllocation;
    stream->recording->users = 1;
    stream->invalid = false;
    recorder = stream;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out)
{
    *out = NULL;
    if (!stream || !stream->recording) return cudaErrorIllegalState;
    if (stream != recorder) return cudaErrorStreamCaptureWrongThread;
    cudaGraph_t graph = stream->recording;
    stream->recording = NULL;
    recorder = NULL;
    if (stream->invalid) {
        graph_leave(graph);
        return cudaErrorStreamCaptureInvalidated;
    }
    *out = graph;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags)
{
    if (!graph || flags != 0) return cudaErrorInvalidValue;
    if (cuda_runtime_host_unsafe() != cudaSuccess) return cudaErrorStreamCaptureUnsupported;
    if (graph_fails) {
        graph_fails = false;
        return cudaErrorMemoryAllocation;
    }
    *out = calloc(1, sizeof **out);
    if (!*out) return cudaErrorMemoryAllocation;
    (*out)->graph = graph;
    graph->users++;
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    if (!exec || !stream) return cudaErrorInvalidValue;
    if (stream->recording) return cuda_runtime_host_unsafe(); /* a child graph: nobody here makes one */
    int error = cudaSuccess;
    for (size_t i = 0; i < exec->graph->count && error == cudaSuccess; i++) {
        struct work work = exec->graph->works[i];
        work.drop = NULL;
        error = note_work(stream, work);
    }
    exec->stream = stream;
    exec->position = stream->noted;
    graph_launches++;
    graph_works += exec->graph->count;
    return (cudaError_t)error;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    if (!graph) return cudaErrorInvalidValue;
    graph_leave(graph);
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    if (!exec) return cudaErrorInvalidValue;
    if (exec->stream && exec->stream->done < exec->position) {
        fprintf(stderr, "cudaGraphExecDestroy of a graph that is running\n");
        abort();
    }
    graph_leave(exec->graph);
    free(exec);
    return cudaSuccess;
}
