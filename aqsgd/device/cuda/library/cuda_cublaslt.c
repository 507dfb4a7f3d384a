/*
 * cuda_cublaslt.c -- cuBLASLt's functions under their own names, each a call of the library that was found at run time.
 *
 * Nothing is linked. A function that is called before cuda_cublaslt_open succeeded returns
 * CUBLAS_STATUS_NOT_INITIALIZED.
 */
#include <stdint.h>
#include <stdio.h>
#include <threads.h>

#include <cublasLt.h>

#include "aqsgd/gpu_library.h"
#include "cuda_cublaslt.h"

#define AQ_GPU_FUNCTIONS_CUBLASLT
enum {
#define AQ_GPU_FUNCTION(type, name, parameters, arguments, otherwise) AT_##name,
#include "aqsgd/gpu_functions.def"
#undef AQ_GPU_FUNCTION
    FUNCTIONS
};

static const char *const lt_names[FUNCTIONS] = {
#define AQ_GPU_FUNCTION(type, name, parameters, arguments, otherwise) #name,
#include "aqsgd/gpu_functions.def"
#undef AQ_GPU_FUNCTION
};

static void *lt_addresses[FUNCTIONS]; /* written once, by lt_load */
static once_flag lt_once = ONCE_FLAG_INIT;
static enum aq_status lt_status;
static struct aq_error_hold lt_failure;

static void lt_load(void)
{
    aq_error_hold(&lt_failure);
    lt_status = aq_gpu_library_open(AQ_GPU_CUBLASLT, lt_names, lt_addresses, FUNCTIONS);
    aq_error_release(&lt_failure);
}

enum aq_status cuda_cublaslt_open(void)
{
    call_once(&lt_once, lt_load);
    return lt_status == AQ_OK ? AQ_OK : aq_fail(lt_status, "device", "%s", lt_failure.text);
}

#define AQ_GPU_FUNCTION(type, name, parameters, arguments, otherwise)                                                  \
    type name parameters                                                                                               \
    {                                                                                                                  \
        type(*call) parameters;                                                                                        \
        *(void **)&call = lt_addresses[AT_##name];                                                                     \
        return call ? call arguments : otherwise;                                                                      \
    }
#include "aqsgd/gpu_functions.def"
