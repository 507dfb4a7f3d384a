/*
 * gpu_library.h -- CUDA's libraries (cuBLASLt, NCCL, cuDNN), found at run time: one build for all machines.
 *
 * Caveats first.
 * - Only a build with CUDA needs them, and only where a GPU is used. A machine without a GPU loads none of them.
 * - A library that was loaded stays until the process ends. CUDA's runtime is linked statically, and loads the driver.
 * - The folders are searched in this order; the first one whose library has all functions is taken:
 *     1. those in AQ_CUDA_LIBRARIES (absolute, separated by colons);
 *     2. PyPI's nvidia-* packages next to the Python package aqpipe (site-packages/nvidia, site-packages/aqpipe/bin);
 *     3. where the system's loader looks (LD_LIBRARY_PATH, ld.so.cache);
 *     4. the same packages in VIRTUAL_ENV and CONDA_PREFIX, and lib of CONDA_PREFIX;
 *     5. the toolkit: /usr/local/cuda, /usr/local/cuda-13, /opt/cuda, and the folders of the build machine's.
 *
 *     if (aq_gpu_library_open(AQ_GPU_NCCL, names, addresses, count) != AQ_OK) ...    the text says what was tried
 *
 * Locking: none; any thread. A caller that keeps the addresses sees to it that one thread writes them (call_once).
 */
#ifndef AQSGD_GPU_LIBRARY_H
#define AQSGD_GPU_LIBRARY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "aqsgd/base/status.h"

enum aq_gpu_library { AQ_GPU_CUBLASLT, AQ_GPU_NCCL, AQ_GPU_CUDNN, AQ_GPU_LIBRARIES };

/*
 * Loads a library that has all `count` functions; their addresses go to `addresses`, which is written on success only.
 * AQ_NODEV: no such library. The text names what was tried and the remedy.
 */
enum aq_status aq_gpu_library_open(enum aq_gpu_library which, const char *const *names, void **addresses,
                                   uint32_t count);

/*
 * For people: "cuBLASLt 13.0.2 (/usr/local/cuda/lib64/libcublasLt.so.13)", or the reason why it cannot be loaded.
 * `text` has `bytes` bytes. False: not loaded. A library stays loaded.
 */
bool aq_gpu_library_look(enum aq_gpu_library which, char *text, size_t bytes);

/*
 * Calls visit with each existing folder in which libraries are looked for by path, so that a confined process may read
 * them. The text is lent for the call. A build without CUDA has none.
 */
void aq_gpu_library_folders(void (*visit)(void *context, const char *folder), void *context);

#endif
