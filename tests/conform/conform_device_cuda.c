/*
 * conform_device_cuda.c -- conform_device.c with the CUDA backend in the table, over the runtime of cuda_host/runtime.
 */
#undef AQ_WITH_CUDA
#define AQ_WITH_CUDA 1

#include "conform_device.c"
