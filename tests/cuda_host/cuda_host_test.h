/*
 * cuda_host_test.h -- how a test drives the launch emulation of cuda_host.h. Plain C.
 *
 * Blocks of a grid, and threads of a block between two meeting points, run in an order drawn from the seed; a test that
 * gives the same bits under several seeds has shown that its kernels do not depend on it.
 */
#ifndef AQ_CUDA_HOST_TEST_H
#define AQ_CUDA_HOST_TEST_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The order of blocks and threads from now on; 0 (as at the start): ascending. */
void cuda_host_seed(uint64_t seed);

/* What was wrong with the last launch that failed, "" where none has since cuda_host_error_clear(). */
const char *cuda_host_error(void);
void cuda_host_error_clear(void);

/* Launches, and blocks, since the start. */
uint64_t cuda_host_launches(void);
uint64_t cuda_host_blocks(void);

/*
 * Launches that name a stream go to `take` from now on, which runs them (once; the context is theirs) when the stream
 * gets there. They answer what take answers; what it runs answers 0 or a cudaError_t.
 */
void cuda_host_later(int (*take)(void *stream, int (*run)(void *context), void *context));

#ifdef __cplusplus
}
#endif
#endif
