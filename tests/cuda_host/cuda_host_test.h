/*
 * cuda_host_test.h -- how a test drives the launch emulation of cuda_host.h. Plain C.
 *
 * Blocks of a grid, and threads of a block between two meeting points, run in an order drawn from the seed; a test that
 * gives the same bits under several seeds has shown that its kernels do not depend on it.
 */
#ifndef AQ_CUDA_HOST_TEST_H
#define AQ_CUDA_HOST_TEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The order of blocks and threads from now on; 0: ascending. At the start: CUDA_HOST_SEED in the environment, or 1. */
void cuda_host_seed(uint64_t seed);

/* What was wrong with the last launch that failed, "" where none has since cuda_host_error_clear(). */
const char *cuda_host_error(void);
void cuda_host_error_clear(void);

/* Launches, and blocks, since the start. */
uint64_t cuda_host_launches(void);
uint64_t cuda_host_blocks(void);

/*
 * Launches, copies and sets that name a stream go to `take` from now on, which runs them when the stream gets there, as
 * often as it likes, and drops them after that. They answer what take answers; what it runs answers 0 or a cudaError_t.
 * copy and set are how memory is copied and set then. CUDA_HOST_SLOW in the environment: while a kernel runs whose name
 * contains it, take_longer is told a second, for a clock of events.
 */
struct cuda_host_work {
    int (*run)(void *context);
    void (*drop)(void *context);
    void *context;
};
void cuda_host_later(int (*take)(void *stream, struct cuda_host_work work),
                     void (*copy)(void *to, const void *from, size_t bytes),
                     void (*set)(void *to, int value, size_t bytes), void (*take_longer)(uint64_t ns));

/*
 * Device memory, and what is known of each byte. NONE is not allocated; FRESH holds anything; PROMISED is zero by
 * an API's word, which the memory does not keep; READABLE is what was written. The region is told once, before all.
 */
enum cuda_host_state { CUDA_HOST_NONE = 0, CUDA_HOST_FRESH, CUDA_HOST_PROMISED, CUDA_HOST_READABLE };
bool cuda_host_device_memory(const void *region, size_t bytes); /* false: no memory for states */
bool cuda_host_is_device(const void *memory);
void cuda_host_mark(const void *memory, size_t bytes, enum cuda_host_state state);
bool cuda_host_all(const void *memory, size_t bytes, enum cuda_host_state state); /* is each of them that? */
void cuda_host_copied(const void *to, const void *from, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
