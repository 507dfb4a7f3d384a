/*
 * cuda_host_switch.cpp -- see cuda_host_switch.h.
 */
#include "cuda_host_switch.h"

#ifndef CUDA_HOST_UCONTEXT
/* System V: rbx, rbp and r12..r15 belong to the caller; everything else is its own loss. */
asm(".text\n"
    ".type cuda_host_swap, @function\n"
    "cuda_host_swap:\n"
    "    pushq %rbp\n"
    "    pushq %rbx\n"
    "    pushq %r12\n"
    "    pushq %r13\n"
    "    pushq %r14\n"
    "    pushq %r15\n"
    "    movq %rsp, (%rdi)\n"
    "    movq %rsi, %rsp\n"
    "    popq %r15\n"
    "    popq %r14\n"
    "    popq %r13\n"
    "    popq %r12\n"
    "    popq %rbx\n"
    "    popq %rbp\n"
    "    ret\n"
    ".size cuda_host_swap, .-cuda_host_swap\n");
extern "C" void cuda_host_swap(void **from, void *to);
#endif

namespace cuda_host
{

void turn_start(turn *self, void (*entry)())
{
#ifdef CUDA_HOST_ASAN
    /* What returned has cleaned up behind itself; only a stack that was left in the middle keeps forbidden places. */
    if (self->left) __asan_unpoison_memory_region(self->bottom, self->bytes);
    self->left = true;
#endif
    self->fake = nullptr;
#ifdef CUDA_HOST_UCONTEXT
    getcontext(&self->context);
    self->context.uc_stack.ss_sp = self->bottom;
    self->context.uc_stack.ss_size = self->bytes;
    self->context.uc_link = nullptr;
    makecontext(&self->context, entry, 0);
#else
    /* Six registers, then where to go; at entry the stack is 8 past a multiple of 16, as after a call. */
    void **top = reinterpret_cast<void **>(self->bottom + self->bytes - 16);
    *--top = nullptr;
    *--top = reinterpret_cast<void *>(entry);
    for (int i = 0; i < 6; i++)
        *--top = nullptr;
    self->pointer = top;
#endif
}

void turn_switch(turn *from, turn *to)
{
#ifdef CUDA_HOST_ASAN
    __sanitizer_start_switch_fiber(&from->fake, to->bottom, to->bytes);
#endif
#ifdef CUDA_HOST_UCONTEXT
    swapcontext(&from->context, &to->context);
#else
    cuda_host_swap(&from->pointer, to->pointer);
#endif
#ifdef CUDA_HOST_ASAN
    __sanitizer_finish_switch_fiber(from->fake, nullptr, nullptr);
#endif
}

void turn_leave(turn *from, turn *to)
{
#ifdef CUDA_HOST_ASAN
    from->left = false;
    __sanitizer_start_switch_fiber(nullptr, to->bottom, to->bytes);
#endif
#ifdef CUDA_HOST_UCONTEXT
    setcontext(&to->context);
    (void)from;
#else
    cuda_host_swap(&from->pointer, to->pointer);
#endif
}

void turn_entered(turn *from)
{
#ifdef CUDA_HOST_ASAN
    const void *bottom = nullptr;
    __sanitizer_finish_switch_fiber(nullptr, &bottom, &from->bytes);
    from->bottom = const_cast<uint8_t *>(static_cast<const uint8_t *>(bottom));
#else
    (void)from;
#endif
}

} // namespace cuda_host
