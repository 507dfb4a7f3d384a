/*
 * test_codec_gpu.c -- test_cuda_codec.c on a device of kind cuda: the whole table of codecs over the batch calls, a GPU
 * against the CPU, bit for bit.
 */
#define AQ_CODEC_ON_GPU
#include "test_cuda_codec.c"
