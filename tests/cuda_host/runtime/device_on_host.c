/*
 * device_on_host.c -- the CUDA backend itself, compiled against the runtime of this folder: what stands here is found
 * before the library's device.c, which has no CUDA.
 */
#undef AQ_WITH_CUDA
#define AQ_WITH_CUDA          1
#undef AQ_WITH_CUDNN
#define AQ_WITH_CUDNN         1
#define AQ_CUDNN_LINKED
#define AQ_CUDA_ARCHITECTURES "80-real,90-real,100"

#include "device.c"

#include "cuda_conv_product.c"
#include "cuda_cudnn.c"
#include "cuda_cudnn_attention.c"
#include "cuda_cudnn_choose.c"
#include "cuda_cudnn_conv.c"
#include "cuda_cudnn_plan.c"
#include "cuda_graph.c"
#include "cuda_math.c"
#include "cuda_matmul.c"
#include "cuda_plan.c"
#include "cuda_probe.c"
#include "cuda_table.c"
#include "cuda_table_products.c"
#include "device_cuda.c"

#include "cuda_codec_open.c"
#include "cuda_grad_open.c"
