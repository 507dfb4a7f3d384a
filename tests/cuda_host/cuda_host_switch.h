/*
 * cuda_host_switch.h -- stacks that take turns on one thread: what the launch emulation runs a block's threads on.
 *
 * On x86-64 a switch saves the six registers that a call keeps and swaps the stack pointer: some nanoseconds, where
 * ucontext asks the kernel each time. Elsewhere, or with CUDA_HOST_UCONTEXT, it is ucontext. AddressSanitizer is told
 * of every switch.
 */
#ifndef AQ_CUDA_HOST_SWITCH_H
#define AQ_CUDA_HOST_SWITCH_H

#include <cstddef>
#include <cstdint>

#if defined(__SANITIZE_ADDRESS__)
#define CUDA_HOST_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define CUDA_HOST_ASAN 1
#endif
#endif
#ifdef CUDA_HOST_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if !defined(__x86_64__) && !defined(CUDA_HOST_UCONTEXT)
#define CUDA_HOST_UCONTEXT 1
#endif
#ifdef CUDA_HOST_UCONTEXT
#include <ucontext.h>
#endif

namespace cuda_host
{

/* One stack's state while it does not run. bottom NULL: the stack of whoever launches. */
struct turn {
    uint8_t *bottom;
    size_t bytes;
#ifdef CUDA_HOST_UCONTEXT
    ucontext_t context;
#else
    void *pointer;
#endif
    void *fake; /* AddressSanitizer's */
    bool left;  /* its last thread did not return: a launch failed */
};

/* Makes `self` start at `entry`, on its stack, at the first switch to it. entry never returns. */
void turn_start(turn *self, void (*entry)());

/* Leaves `from`, goes on in `to`; returns when somebody switches to `from` again. */
void turn_switch(turn *from, turn *to);

/* As turn_switch, from a stack that never runs again. (Not [[noreturn]]: AddressSanitizer cleans the stack before each
 * call of such a function, by asking the kernel.) */
void turn_leave(turn *from, turn *to);

/* The first thing that entry does. `from` is who switched to it. */
void turn_entered(turn *from);

} // namespace cuda_host

#endif
