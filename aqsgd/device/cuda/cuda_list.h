/*
 * cuda_list.h -- the list of a graph (cuda_graph.c): what a thread enqueues while it has one, as bytes that are equal
 * only if the work is: all kernels, extents and arguments. Launches of kernels add themselves (cuda_launch.cuh);
 * copies, zeroes and calls of libraries do by aq_cuda_list_call. Plain C.
 *
 * Locking: a list belongs to one thread.
 */
#ifndef AQ_CUDA_LIST_H
#define AQ_CUDA_LIST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "aqsgd/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st; /* cudaStream_t is a pointer to it */

struct aq_cuda_list {
    struct CUstream_st *stream; /* nothing may go to another */
    uint8_t *bytes;
    size_t used, room;
    uint32_t launches;
    bool enqueues; /* else launches are only listed */
    bool full;     /* it had no room for all bytes */
    bool unmade;   /* a library's call has not been prepared: the work ended there with AQ_AGAIN */
};
struct aq_cuda_list *aq_cuda_list(void);          /* the thread's, or NULL */
void aq_cuda_list_use(struct aq_cuda_list *list); /* NULL: none from here on */
void aq_cuda_list_put(struct aq_cuda_list *list, const void *bytes, size_t count);

/*
 * A call that is no launch of AQ_LAUNCH, before it is made: its name, and all that it depends on, `count` bytes.
 * *only: it is listed, and must not be made. AQ_INVAL: it is for another stream than the list's. Without a list: AQ_OK.
 */
enum aq_status aq_cuda_list_call(const char *name, const void *bytes, size_t count, struct CUstream_st *stream,
                                 bool *only);

#ifdef __cplusplus
}
#endif
#endif
