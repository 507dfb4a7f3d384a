/*
 * grad_kernels.c -- which table of kernels this machine runs. The choice changes the speed and no bit. AQ_CPU=plain,
 * avx2 or avx512 in the environment narrows it, for tests and for the hunt of a bug.
 */
#include <stdlib.h>

#include "grad_internal.h"

const struct aq_grad_kernels *aq_grad_kernels_named(const char *name)
{
    if (strcmp(name, "plain") == 0) return &aq_grad_kernels_plain;
#if defined(__x86_64__)
    /* The codecs' own tables want the same instructions and more: where they run, these do. */
    if (strcmp(name, "avx2") == 0 && aq_codec_kernels_named("avx2")) return &aq_grad_kernels_avx2;
    if (strcmp(name, "avx512") == 0 && aq_codec_kernels_named("avx512")) return &aq_grad_kernels_avx512;
#endif
    return NULL;
}

const struct aq_grad_kernels *aq_grad_kernels_best(void)
{
    static const char *const best_first[] = {"avx512", "avx2"};
    const char *wanted = getenv("AQ_CPU");
    if (wanted != NULL && aq_grad_kernels_named(wanted) != NULL) return aq_grad_kernels_named(wanted);
    for (size_t i = 0; i < sizeof best_first / sizeof best_first[0]; i++) {
        const struct aq_grad_kernels *found = aq_grad_kernels_named(best_first[i]);
        if (found != NULL) return found;
    }
    return &aq_grad_kernels_plain;
}
