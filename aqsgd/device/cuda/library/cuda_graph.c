/*
 * cuda_graph.c -- a micro-batch's forward or backward as one launch: CUDA graphs that cannot be stale.
 *
 * A pass of a model is some hundred launches, of 2 to 5 us each on the host. A small model's kernels are shorter than
 * that. A graph launches them all at once, with the arguments that they had when it was recorded. The danger is an
 * argument that has changed since: an address, a size, a factor. So no graph is chosen by what we believe to matter.
 * The pass runs as always, and its launches are only listed (aq_cuda_list): kernels, extents and all bytes of the
 * arguments. The graph that is launched was recorded from exactly these bytes. What that costs on the host is the
 * layers' own code and a copy of the arguments.
 *
 *     phase      what enqueueing does                      then
 *     LISTS      adds to the list                          known and recorded: one launch, and the pass is over.
 *                                                          known: RECORDS. not known: it is kept, and RUNS.
 *                                                          a product has no plan yet: RUNS, nothing is kept
 *     RUNS       adds to the list, and enqueues            the list must be what it was
 *     RECORDS    adds to the list, and CUDA records        the list must be what it was; instantiate, one launch
 *
 * A list is recorded the second time that it comes: what comes once is not worth it, and the first time has loaded all
 * kernels, made all plans and timed them (cuda_table.h), which must not happen while CUDA records.
 *
 * Rejected: a key of what may differ (slot, shape, version, ...), because one that is forgotten is a wrong gradient;
 * recording each time with cudaGraphExecUpdate, because recording costs the host what launching does.
 *
 * Memory of a graph is CUDA's, outside of the plan (docs/LIMITS.md). docs/DECISIONS.md 1210.
 */
#include <stdlib.h>
#include <string.h>

#include "aqsgd/base/digest.h"
#include "cuda_device.h"

enum {
    GRAPHS_MAX = 256,     /* 64 slots with two buffers at a cut, forward and backward, of two versions of weights */
    LIST_BYTES = 4 << 20, /* 48 blocks have about 1,200 launches of 150 bytes: 180 KB */
};

enum graph_phase { GRAPH_CLOSED = 0, GRAPH_LISTS, GRAPH_RUNS, GRAPH_RECORDS };

/* A list that has come at least once. */
struct graph_known {
    uint8_t *bytes; /* NULL: none */
    size_t used;
    uint64_t digest;      /* of the bytes: most lists of a stage begin alike, and differ only near their ends */
    uint64_t last;        /* the pass that had it */
    cudaGraphExec_t exec; /* NULL: it has come once */
};

struct aq_graph {
    enum graph_phase phase;
    struct aq_cuda_list list;
    struct graph_known known[GRAPHS_MAX];
    struct graph_known *mine; /* of the list of this pass; NULL: it is not kept */
    cudaEvent_t passed;       /* the last launch */
    uint64_t passes, launched, recorded;
    struct aq_error_hold refused; /* what fails while CUDA records, to which the remedy is added */
};

#define GRAPH_OFF "; unset AQ_GPU_GRAPHS to launch kernels one by one"

enum aq_status cuda_graph_wanted(bool *wanted)
{
    const char *text = getenv("AQ_GPU_GRAPHS"), *sync = getenv("AQ_SYNC");
    *wanted = text && strcmp(text, "1") == 0;
    if (text && *text && !*wanted && strcmp(text, "0") != 0)
        return aq_fail(AQ_INVAL, "device", "AQ_GPU_GRAPHS is \"%.40s\"; it must be 0 or 1", text);
    if (*wanted && sync && sync[0] == '1')
        return aq_fail(AQ_INVAL, "device",
                       "AQ_SYNC=1 waits after every kernel, which a graph cannot; unset it, or "
                       "AQ_GPU_GRAPHS");
    return AQ_OK;
}

enum aq_status cuda_outside_graphs(const char *what)
{
    if (!aq_cuda_list()) return AQ_OK;
    return aq_fail(AQ_INVAL, "device", "%s cannot be part of a graph" GRAPH_OFF, what);
}

enum aq_status cuda_graph_open(struct aq_device *device, struct aq_graph **out)
{
    struct cuda_device *cuda = cuda_device_of(device);
    struct aq_graph *graph;
    void *memory = NULL;
    if (!cuda->graphs) return AQ_OK;
    AQ_TRY(AQ_NEW(1, &graph));
    enum aq_status status = aq_map_untouched(LIST_BYTES, &memory);
    graph->list.bytes = memory;
    graph->list.room = LIST_BYTES;
    if (status == AQ_OK) {
        cudaError_t error = cuda_use(cuda);
        if (error == cudaSuccess) error = cudaEventCreateWithFlags(&graph->passed, cudaEventDisableTiming);
        if (error != cudaSuccess) status = cuda_failed(error, "cudaEventCreateWithFlags", __FILE__, __LINE__);
    }
    if (status == AQ_OK)
        *out = graph;
    else
        cuda_graph_close(device, graph);
    return status;
}

static void known_drop(struct aq_graph *graph, struct graph_known *known)
{
    if (known->exec) {
        (void)cudaEventSynchronize(graph->passed); /* it may be running */
        (void)cudaGraphExecDestroy(known->exec);
    }
    aq_free(known->bytes);
    *known = (struct graph_known){0};
}

void cuda_graph_close(struct aq_device *device, struct aq_graph *graph)
{
    (void)device;
    if (graph->passes)
        aq_log("device", 1, "graphs: %llu of %llu passes were one launch; %llu were recorded",
               (unsigned long long)graph->launched, (unsigned long long)graph->passes,
               (unsigned long long)graph->recorded);
    for (uint32_t i = 0; i < GRAPHS_MAX; i++)
        known_drop(graph, &graph->known[i]);
    if (graph->passed) (void)cudaEventDestroy(graph->passed);
    aq_unmap(graph->list.bytes, LIST_BYTES);
    aq_free(graph);
}

static void phase_begin(struct aq_graph *graph, enum graph_phase phase)
{
    struct aq_cuda_list *list = &graph->list;
    graph->phase = phase;
    list->used = list->launches = 0;
    list->full = list->unmade = false;
    list->enqueues = phase != GRAPH_LISTS;
    aq_cuda_list_use(list);
}

enum aq_status cuda_graph_begin(struct aq_device *device, struct aq_graph *graph, struct aq_stream *stream)
{
    AQ_ASSERT(graph->phase == GRAPH_CLOSED && !aq_cuda_list());
    graph->list.stream = cuda_stream_of(cuda_device_of(device), stream)->at;
    graph->mine = NULL;
    graph->passes++;
    phase_begin(graph, GRAPH_LISTS);
    return AQ_OK;
}

/* --- the lists that have come ----------------------------------------------------------------------------------- */

static bool is_listed(const struct aq_graph *graph, const struct graph_known *known)
{
    const struct aq_cuda_list *list = &graph->list;
    return known->bytes && known->used == list->used && memcmp(known->bytes, list->bytes, list->used) == 0;
}

static struct graph_known *known_find(struct aq_graph *graph, uint64_t digest)
{
    for (uint32_t i = 0; i < GRAPHS_MAX; i++)
        if (graph->known[i].digest == digest && is_listed(graph, &graph->known[i])) return &graph->known[i];
    return NULL;
}

/* The list, in a free place or in that of the one whose use is longest ago. */
static enum aq_status known_keep(struct aq_graph *graph, uint64_t digest)
{
    struct graph_known *place = &graph->known[0];
    void *bytes = NULL;
    for (uint32_t i = 1; i < GRAPHS_MAX && place->bytes; i++)
        if (!graph->known[i].bytes || graph->known[i].last < place->last) place = &graph->known[i];
    known_drop(graph, place);
    AQ_TRY(aq_alloc(graph->list.used, &bytes));
    memcpy(bytes, graph->list.bytes, graph->list.used);
    *place = (struct graph_known){.bytes = bytes, .used = graph->list.used, .digest = digest};
    graph->mine = place;
    return AQ_OK;
}

/* --- the ends of the phases ------------------------------------------------------------------------------------- */

static enum aq_status graph_failed(cudaError_t error, const char *call)
{
    return aq_fail(error == cudaErrorMemoryAllocation ? AQ_NOMEM : AQ_CUDAERR, "device",
                   "%s (AQ_GPU_GRAPHS): %s (%s)" GRAPH_OFF, call, cudaGetErrorString(error), cudaGetErrorName(error));
}

static enum aq_status graph_launch(struct aq_graph *graph)
{
    const cudaError_t error = cudaGraphLaunch(graph->mine->exec, graph->list.stream);
    if (error != cudaSuccess) return graph_failed(error, "cudaGraphLaunch");
    AQ_CUDA(cudaEventRecord(graph->passed, graph->list.stream));
    graph->launched++;
    return AQ_OK;
}

static enum aq_status list_check(const struct aq_graph *graph)
{
    if (graph->list.full)
        return aq_fail(AQ_NOSPC, "device", "a pass has more than %d bytes of launches, too many for a graph" GRAPH_OFF,
                       LIST_BYTES);
    if (!graph->mine || is_listed(graph, graph->mine)) return AQ_OK;
    return aq_fail(AQ_MISMATCH, "device", "a pass of %u launches was not the same twice" GRAPH_OFF,
                   graph->list.launches);
}

/* true: the same work once more. */
static bool graph_listed(struct aq_graph *graph, enum aq_status *status)
{
    if (*status == AQ_AGAIN && graph->list.unmade) {
        phase_begin(graph, GRAPH_RUNS);
        return true;
    }
    if (*status == AQ_OK) *status = list_check(graph);
    if (*status != AQ_OK || graph->list.launches == 0) return false;
    const uint64_t digest = aq_digest(graph->list.bytes, graph->list.used);
    graph->mine = known_find(graph, digest);
    const bool again = graph->mine != NULL;
    if (!again) *status = known_keep(graph, digest);
    if (*status != AQ_OK) return false;
    graph->mine->last = graph->passes;
    if (graph->mine->exec) {
        *status = graph_launch(graph);
        return false;
    }
    const cudaError_t error =
        again ? cudaStreamBeginCapture(graph->list.stream, cudaStreamCaptureModeThreadLocal) : cudaSuccess;
    if (error != cudaSuccess) {
        *status = graph_failed(error, "cudaStreamBeginCapture");
        return false;
    }
    if (again) aq_error_hold(&graph->refused);
    phase_begin(graph, again ? GRAPH_RECORDS : GRAPH_RUNS);
    return true;
}

/* The recording has ended with this; what CUDA made of it becomes a graph. Takes it. */
static enum aq_status graph_recorded(struct aq_graph *graph, cudaGraph_t made, cudaError_t error)
{
    enum aq_status status = AQ_OK;
    if (error != cudaSuccess) status = graph_failed(error, "recording a graph");
    if (status == AQ_OK) status = list_check(graph);
    if (status == AQ_OK) {
        error = cudaGraphInstantiate(&graph->mine->exec, made, 0);
        if (error != cudaSuccess) {
            graph->mine->exec = NULL;
            status = graph_failed(error, "cudaGraphInstantiate");
        }
    }
    if (made) (void)cudaGraphDestroy(made);
    AQ_TRY(status);
    graph->recorded++;
    aq_log("device", 2, "graph %llu: %u launches, %zu bytes of arguments", (unsigned long long)graph->recorded,
           graph->list.launches, graph->list.used);
    return graph_launch(graph);
}

bool cuda_graph_again(struct aq_device *device, struct aq_graph *graph, enum aq_status *status)
{
    const enum graph_phase phase = graph->phase;
    cudaGraph_t made = NULL;
    (void)device;
    AQ_ASSERT(phase != GRAPH_CLOSED && aq_cuda_list() == &graph->list);
    aq_cuda_list_use(NULL);
    graph->phase = GRAPH_CLOSED;
    if (phase == GRAPH_LISTS) return graph_listed(graph, status);
    if (phase == GRAPH_RUNS) {
        if (*status == AQ_OK) *status = list_check(graph);
        return false;
    }
    const cudaError_t error = cudaStreamEndCapture(graph->list.stream, &made);
    aq_error_release(&graph->refused);
    if (*status == AQ_OK) {
        *status = graph_recorded(graph, made, error);
        return false;
    }
    if (made) (void)cudaGraphDestroy(made);
    *status = aq_fail(*status, "device", "recording a graph (AQ_GPU_GRAPHS): %s" GRAPH_OFF, graph->refused.text);
    return false;
}
