/*
 * cuda_host_watch.h -- sees each load and store of a kernel that runs under the launch emulation.
 *
 * Kernels are compiled with -fsanitize=thread, but ThreadSanitizer is not linked: the functions that the compiler calls
 * before each access are those of cuda_host_watch.cpp. (AddressSanitizer excludes this; its preset checks more.)
 *
 * Shared memory has a shadow per byte: who wrote it last and who read it last. An access is an error if another thread
 * wrote the byte, or read it before this write, and no fence stands between the two: __syncthreads for the block,
 * __syncwarp for the lanes in its mask. Shuffles and votes order no memory (CUDA's manual), so they do not count. Two
 * atomics are always in order. A read of a byte that nobody wrote in this block is an error, too.
 *
 * Device memory of the emulated runtime (cuda_memory_host.c) has a state per byte: an access outside an allocation is
 * an error, and so is a read of a byte that no kernel, copy or memset has written. Other memory is the host's, in tests
 * that hand their own arrays to a kernel; nothing is known of it. CUDA_HOST_WATCH=0 in the environment: no access is
 * looked at.
 */
#ifndef AQ_CUDA_HOST_WATCH_H
#define AQ_CUDA_HOST_WATCH_H

#include <string>

#include "cuda_host.h"

namespace cuda_host
{

/* Where shared memory of all kinds lies, its ends included. */
struct watched_memory {
    uintptr_t from;
    size_t bytes;
};
extern watched_memory watched_shared;

/* Tells where shared memory lies; once. */
void watch_shared(void *memory, size_t bytes);

/* Nobody may touch these bytes of shared memory, or may again. */
void watch_forbid(const void *memory, size_t bytes, bool forbid);

/* A block of so many threads begins: nothing of its shared memory is written. */
void watch_block(size_t threads);

/* This thread of the block runs now. */
void watch_thread(uint32_t thread);

/* All threads of the block have met; lanes of a warp have met in __syncwarp. */
void watch_block_met();
void watch_warp_met(uint32_t warp, uint32_t mask);

/* An access by the running thread, where the emulation itself does it. */
void watch_read(const void *from, size_t bytes);
void watch_write(const void *to, size_t bytes);

/* From cuda_host.cpp. The first ends the launch: `code` is what follows the access. The second: "byte 3 of ...". */
[[noreturn]] void watch_failed(const void *code, const char *text);
std::string shared_place(uintptr_t address);

} // namespace cuda_host

#endif
