/*
 * codec_kernels.c -- which table of kernels this machine runs.
 *
 * The choice changes the speed and no bit. AQ_CPU=plain|avx2|avx512|vbmi in the environment narrows it, for tests and
 * for the hunt of a bug; a name that this machine cannot run is ignored.
 */
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <stdlib.h>

#include "codec_internal.h"

#if defined(__x86_64__)
/* Not every compiler of ours knows this one by name. */
static bool has_f16c(void)
{
    unsigned int a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2") &&
           has_f16c();
}

static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

static bool has_vbmi(void)
{
    return has_avx512() && __builtin_cpu_supports("avx512vbmi");
}
#endif

const struct aq_codec_kernels *aq_codec_kernels_named(const char *name)
{
    if (strcmp(name, "plain") == 0) return &aq_codec_kernels_plain;
#if defined(__x86_64__)
    if (strcmp(name, "avx2") == 0 && has_avx2()) return &aq_codec_kernels_avx2;
    if (strcmp(name, "avx512") == 0 && has_avx512()) return &aq_codec_kernels_avx512;
    if (strcmp(name, "vbmi") == 0 && has_vbmi()) return &aq_codec_kernels_vbmi;
#endif
    return NULL;
}

const struct aq_codec_kernels *aq_codec_kernels_best(void)
{
    static const char *const best_first[] = {"vbmi", "avx512", "avx2"};
    const char *wanted = getenv("AQ_CPU");
    if (wanted != NULL && strcmp(wanted, "avx512") != 0 && aq_codec_kernels_named(wanted) != NULL)
        return aq_codec_kernels_named(wanted);
    for (size_t i = 0; i < sizeof best_first / sizeof best_first[0]; i++) {
        const struct aq_codec_kernels *found = aq_codec_kernels_named(best_first[i]);
        if (found != NULL) return found;
    }
    return &aq_codec_kernels_plain;
}
