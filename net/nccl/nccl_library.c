/*
 * nccl_library.c -- NCCL's functions under their own names, each a call of the library that was found at run time.
 *
 * Nothing is linked. A function that is called before aq_nccl_library_open succeeded returns ncclSystemError.
 */
#include "nccl_channel.h"

#if AQ_WITH_NCCL

#include <threads.h>

#include "aqsgd/gpu_library.h"

#define AQ_GPU_FUNCTIONS_NCCL
enum {
#define AQ_GPU_FUNCTION(type, name, parameters, arguments, otherwise) AT_##name,
#include "aqsgd/gpu_functions.def"
#undef AQ_GPU_FUNCTION
    FUNCTIONS
};

static const char *const nccl_names[FUNCTIONS] = {
#define AQ_GPU_FUNCTION(type, name, parameters, arguments, otherwise) #name,
#include "aqsgd/gpu_functions.def"
#undef AQ_GPU_FUNCTION
};

static void *nccl_addresses[FUNCTIONS]; /* written once, by nccl_load */
static once_flag nccl_once = ONCE_FLAG_INIT;
static enum aq_status nccl_status;
static struct aq_error_hold nccl_failure;

static void nccl_load(void)
{
    aq_error_hold(&nccl_failure);
    nccl_status = aq_gpu_library_open(AQ_GPU_NCCL, nccl_names, nccl_addresses, FUNCTIONS);
    aq_error_release(&nccl_failure);
}

enum aq_status aq_nccl_library_open(void)
{
    call_once(&nccl_once, nccl_load);
    return nccl_status == AQ_OK ? AQ_OK : aq_fail(nccl_status, "nccl", "%s", nccl_failure.text);
}

#pragma GCC diagnostic ignored "-Wmissing-prototypes" /* nccl.h declares ncclGroupStart() as C did before prototypes */
#define AQ_GPU_FUNCTION(type, name, parameters, arguments, otherwise)                                                  \
    type name parameters                                                                                               \
    {                                                                                                                  \
        type(*call) parameters;                                                                                        \
        *(void **)&call = nccl_addresses[AT_##name];                                                                   \
        return call ? call arguments : otherwise;                                                                      \
    }
#include "aqsgd/gpu_functions.def"

#endif
