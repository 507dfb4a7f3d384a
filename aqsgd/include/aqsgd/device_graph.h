/*
 * device_graph.h -- work that is enqueued again and again with the same arguments costs one launch. That needs a GPU
 * and AQ_GPU_GRAPHS=1 in the environment. Else *out of open is NULL, and with that the functions below do nothing.
 *
 *     AQ_TRY(aq_device_graph_begin(device, graph, stream));
 *     do
 *         status = enqueue(stream); // mathematics, copies of device and pinned memory, zeroes; all on this stream
 *     while (aq_device_graph_again(device, graph, &status));
 *
 * The device first only notes what is enqueued: every kernel with its extents and all bytes of its arguments. If a
 * graph of exactly these bytes was recorded, it is launched. If not, again returns true and the work runs as always; if
 * the same bytes come a second time, it is recorded while it is enqueued again. So a graph never has an argument of
 * another time, and whatever may change between two passes (addresses, sizes, factors) may be an argument. What the
 * host does in `enqueue` besides must have the same result if it is done twice.
 *
 * A graph belongs to the thread that uses it. It keeps the 256 lists that were used last, recorded or not.
 */
#ifndef AQSGD_DEVICE_GRAPH_H
#define AQSGD_DEVICE_GRAPH_H

#include "aqsgd/device.h"

#ifdef __cplusplus
extern "C" {
#endif

struct aq_graph; /* opaque */

/* AQ_INVAL: AQ_GPU_GRAPHS with AQ_SYNC, which waits after every kernel. AQ_NOMEM. */
enum aq_status aq_device_graph_open(struct aq_device *device, struct aq_graph **out);
void aq_device_graph_close(struct aq_device *device, struct aq_graph *graph); /* NULL is fine; waits for its launches */
enum aq_status aq_device_graph_begin(struct aq_device *device, struct aq_graph *graph, struct aq_stream *stream);
/*
 * *status: of what was enqueued, which is returned in it unless the graph failed. true: enqueue it once more. AQ_INVAL:
 * the work waits, uses an event or allocates. AQ_NOSPC: more than 4 MiB of arguments. AQ_MISMATCH: the second time it
 * was other work. AQ_CUDAERR, AQ_NOMEM: CUDA cannot record or launch it. All are logged; none is passed over by
 * enqueueing without a graph.
 */
bool aq_device_graph_again(struct aq_device *device, struct aq_graph *graph, enum aq_status *status);

#ifdef __cplusplus
}
#endif
#endif
