/*
 * cuda_cudnn_uids.h -- the numbers by which a plan's tensors get their addresses when it runs. Used only by
 * cuda_cudnn_plan.c and cuda_cudnn.c.
 */
#ifndef AQ_CUDA_CUDNN_UIDS_H
#define AQ_CUDA_CUDNN_UIDS_H

#include "cuda_cudnn.h"

enum { CUDNN_ALIGNMENT = 16 }; /* bytes: of all tensors in device memory */

enum {
    UID_Q = 1,
    UID_K,
    UID_V,
    UID_O,
    UID_LSE,
    UID_SCALE,
    UID_FILL,
    UID_WINDOW,
    UID_DO,
    UID_DQ,
    UID_DK,
    UID_DV,
    UID_SCORES = 32 /* and the two after it: before a mask, and behind each; in no memory */
};

#endif
