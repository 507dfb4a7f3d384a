/*
 * cuda_cublaslt.h -- cuBLASLt is loaded at run time, by the first device that is opened.
 */
#ifndef AQSGD_CUDA_CUBLASLT_H
#define AQSGD_CUDA_CUBLASLT_H

#include "aqsgd/base/status.h"

/* Before the first call of cuBLASLt; any thread, any number of times. AQ_NODEV: it is not on this machine. */
enum aq_status cuda_cublaslt_open(void);

#endif
