/*
 * test_device_training_cuda.c -- test_device_training.c with the CUDA backend in the table, over the runtime of
 * cuda_host/runtime.
 */
#undef AQ_WITH_CUDA
#define AQ_WITH_CUDA 1

#include "aqsgd/test_device_training.c"
