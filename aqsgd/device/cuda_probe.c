/*
 * cuda_probe.c -- which GPU there is, and in one line why there is none that can be used.
 *
 * The program links CUDA's runtime statically, so that it starts on any machine; whether there is a driver shows here.
 */
#include <stdio.h>

#include "cuda_device.h"

enum aq_status cuda_failed(cudaError_t error, const char *call, const char *file, int line)
{
    return aq_fail(error == cudaErrorMemoryAllocation ? AQ_NOMEM : AQ_CUDAERR, "device", "%s:%d: %s: %s (%s)", file,
                   line, call, cudaGetErrorString(error), cudaGetErrorName(error));
}

/* "13.0" of 13000 */
static void version_text(int version, char text[16])
{
    snprintf(text, 16, "%d.%d", version / 1000, version % 1000 / 10);
}

/* Is there a driver, is it young enough, and how many GPUs does it show? */
static enum aq_status probe_driver(int *count, char *why)
{
    int driver = 0;
    char have[16], want[16];
    if (cudaDriverGetVersion(&driver) != cudaSuccess) driver = 0;
    version_text(driver, have);
    version_text(CUDART_VERSION, want);
    const cudaError_t error = cudaGetDeviceCount(count);
    if (error == cudaSuccess && *count > 0) return AQ_OK;
    if (driver == 0)
        snprintf(
            why, CUDA_TEXT_BYTES,
            "device.kind: cuda: there is no NVIDIA driver here (no libcuda.so.1); install the driver for CUDA %s or "
            "later, or say device: cpu",
            want);
    else if (error == cudaErrorInsufficientDriver)
        snprintf(why, CUDA_TEXT_BYTES,
                 "device.kind: cuda: the driver is for CUDA %s, this build for %s; install a later driver, build with "
                 "that toolkit, or say device: cpu",
                 have, want);
    else if (error == cudaSuccess || error == cudaErrorNoDevice)
        snprintf(
            why, CUDA_TEXT_BYTES,
            "device.kind: cuda: the driver (CUDA %s) shows no GPU; see nvidia-smi and CUDA_VISIBLE_DEVICES, or say "
            "device: cpu",
            have);
    else
        snprintf(why, CUDA_TEXT_BYTES, "device.kind: cuda: the driver (CUDA %s) says: %s; see nvidia-smi", have,
                 cudaGetErrorString(error));
    return AQ_NODEV;
}

/*
 * Machine code runs on its own major number from its own minor number on, and PTX (the last of the list) on whatever is
 * newer: CUDA itself knows best, once a context is there. What can be said before that is the least.
 */
static enum aq_status probe_architecture(const struct cuda_probe *probe, char *why)
{
    if (probe->major >= CUDA_MAJOR_MIN) return AQ_OK;
    snprintf(why, CUDA_TEXT_BYTES,
             "device.kind: cuda: GPU %d (%s) has compute capability %d.%d; this build is for sm_ %s; build with "
             "-DCMAKE_CUDA_ARCHITECTURES=%d%d where the toolkit still has it, or say device: cpu",
             probe->index, probe->name, probe->major, probe->minor, AQ_CUDA_ARCHITECTURES, probe->major, probe->minor);
    return AQ_NODEV;
}

enum aq_status cuda_probe(uint32_t index, struct cuda_probe *out, char *why)
{
    int count = 0;
    AQ_TRY(probe_driver(&count, why));
    if (index >= (uint32_t)count) {
        snprintf(why, CUDA_TEXT_BYTES, "device.index: %u: this machine has GPUs 0 to %d", index, count - 1);
        return AQ_NODEV;
    }
    struct cudaDeviceProp properties;
    int mode = cudaComputeModeDefault;
    cudaError_t error = cudaGetDeviceProperties(&properties, (int)index);
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&mode, cudaDevAttrComputeMode, (int)index);
    if (error != cudaSuccess) {
        snprintf(why, CUDA_TEXT_BYTES, "device.index: %u: GPU %u does not answer: %s; see nvidia-smi", index, index,
                 cudaGetErrorString(error));
        return AQ_NODEV;
    }
    *out = (struct cuda_probe){.index = (int)index,
                               .major = properties.major,
                               .minor = properties.minor,
                               .processors = properties.multiProcessorCount,
                               .memory_bytes = properties.totalGlobalMem};
    snprintf(out->name, sizeof out->name, "%.79s", properties.name);
    const unsigned char *u = (const unsigned char *)properties.uuid.bytes;
    snprintf(out->uuid, sizeof out->uuid, "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0],
             u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
    if (mode == cudaComputeModeProhibited) {
        snprintf(why, CUDA_TEXT_BYTES,
                 "device.index: %u: GPU %u (%s) is in compute mode PROHIBITED; nvidia-smi -i %u -c DEFAULT frees it",
                 index, index, out->name, index);
        return AQ_NODEV;
    }
    return probe_architecture(out, why);
}
