/*
 * stand.c -- a library in the place of cuBLASLt or NCCL: the functions of gpu_functions.def. Those of cuBLASLt return
 * the number of their row (1, 2, ...), those of NCCL 0 or NULL. With STAND_OLD it is a cuBLASLt of one function.
 */
#include <stddef.h>
#include <stdint.h>

#define STAND __attribute__((visibility("default")))

#ifdef STAND_OLD
STAND size_t cublasLtGetVersion(void);
size_t cublasLtGetVersion(void)
{
    return 110000;
}
#else

#ifdef AQ_GPU_FUNCTIONS_CUBLASLT
#include "cublasLt.h"
#define RESULT(name) (uintptr_t)(ROW_##name + 1)
#else
#include "nccl.h"
#define RESULT(name) (uintptr_t)0
#endif

enum {
#define AQ_GPU_FUNCTION(type, name, parameters, arguments, otherwise) ROW_##name,
#include "aqsgd/gpu_functions.def"
#undef AQ_GPU_FUNCTION
};

#pragma GCC diagnostic ignored "-Wunused-parameter"
#define AQ_GPU_FUNCTION(type, name, parameters, arguments, otherwise)                                                  \
    STAND type name parameters                                                                                         \
    {                                                                                                                  \
        return (type)RESULT(name);                                                                                     \
    }
#include "aqsgd/gpu_functions.def"
#endif
