/*
 * processor.c -- the table of instruction sets, and what of it this processor has and AQ_CPU allows.
 */
#include "aqsgd/base/processor.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

static const struct {
    const char *name;
    uint32_t set; /* with what it builds on */
} levels[] = {{"plain", AQ_PLAIN},
              {"base", AQ_PLAIN | AQ_BASE},
              {"avx2", AQ_PLAIN | AQ_BASE | AQ_AVX2},
              {"avx512", AQ_PLAIN | AQ_BASE | AQ_AVX2 | AQ_AVX512},
              {"avx512bf16", AQ_PLAIN | AQ_BASE | AQ_AVX2 | AQ_AVX512 | AQ_AVX512_BF16},
              {"amx", AQ_PLAIN | AQ_BASE | AQ_AVX2 | AQ_AVX512 | AQ_AVX512_BF16 | AQ_AMX_BF16},
              {"vbmi", AQ_PLAIN | AQ_BASE | AQ_AVX2 | AQ_AVX512 | AQ_AVX512_VBMI}};
enum { LEVELS = sizeof levels / sizeof levels[0], TEXT_BYTES = 64 };

#if defined(__x86_64__)
/*
 * Tile registers add 8 KiB to the state that Linux keeps per thread. From 5.16 on Linux says whether it supports them,
 * and a process must request them (Documentation/arch/x86/xstate.rst). Linux refuses the request where a thread's
 * alternate signal stack is too small for that state.
 */
enum { TILES_SUPPORTED = 0x1021, TILES_REQUEST = 0x1023, TILE_DATA = 18 };

static bool tiles_supported(void)
{
    enum { BIT_BF16 = 1 << 22, BIT_TILE = 1 << 24 };
    unsigned a, b, c, d;
    uint64_t supported = 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & BIT_BF16) == 0 || (d & BIT_TILE) == 0) return false;
    return syscall(SYS_arch_prctl, TILES_SUPPORTED, &supported) == 0 && (supported >> TILE_DATA & 1);
}
#endif

bool aq_processor_request_tiles(void)
{
#if defined(__x86_64__)
    return syscall(SYS_arch_prctl, TILES_REQUEST, TILE_DATA) == 0;
#else
    return false;
#endif
}

static uint32_t look(void)
{
    uint32_t set = AQ_PLAIN | AQ_BASE;
#if defined(__x86_64__)
    unsigned a, b, c, d;
    const bool f16c = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0; /* not every compiler has its name */
    __builtin_cpu_init();
    if (!f16c || !__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("bmi2"))
        return set;
    set |= AQ_AVX2;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
        return set;
    set |= AQ_AVX512;
    if (__builtin_cpu_supports("avx512bf16")) set |= AQ_AVX512_BF16;
    if (__builtin_cpu_supports("avx512vbmi")) set |= AQ_AVX512_VBMI;
    if ((set & AQ_AVX512_BF16) && tiles_supported()) set |= AQ_AMX_BF16;
#endif
    return set;
}

uint32_t aq_processor_has(void)
{
    static _Atomic uint32_t known; /* every look finds the same: no order is needed */
    uint32_t set = atomic_load_explicit(&known, memory_order_relaxed);
    if (set == 0) {
        set = look();
        atomic_store_explicit(&known, set, memory_order_relaxed);
    }
    return set;
}

void aq_processor_text(uint32_t set, char text[64])
{
    int at = 0;
    text[0] = 0;
    for (int i = 0; i < LEVELS; i++)
        if ((levels[i].set & ~set) == 0 && at < TEXT_BYTES)
            at += snprintf(text + at, (size_t)(TEXT_BYTES - at), "%s%s", at > 0 ? " " : "", levels[i].name);
}

/* The sets that AQ_CPU allows and the processor has; 0: a name that is not in the table. */
static uint32_t allowed(const char *wanted)
{
    if (!wanted || !*wanted) return aq_processor_has();
    for (int i = 0; i < LEVELS; i++)
        if (strcmp(levels[i].name, wanted) == 0) return levels[i].set;
    return 0;
}

enum aq_status aq_processor_choose(uint32_t *set)
{
    const char *wanted = getenv("AQ_CPU");
    const uint32_t found = allowed(wanted);
    char names[64];
    aq_processor_text(aq_processor_has(), names);
    if (found == 0) return aq_fail(AQ_INVAL, "processor", "AQ_CPU=%s is unknown; this processor has %s", wanted, names);
    if (found & ~aq_processor_has())
        return aq_fail(AQ_NODEV, "processor", "AQ_CPU=%s: this processor does not have it; it has %s", wanted, names);
    *set = found;
    return AQ_OK;
}

uint32_t aq_processor_used(void)
{
    const uint32_t found = allowed(getenv("AQ_CPU"));
    return found != 0 && (found & ~aq_processor_has()) == 0 ? found : aq_processor_has();
}
