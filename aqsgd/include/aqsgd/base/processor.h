/*
 * processor.h -- which instructions this processor has, and which of them are used: one table for devices, codecs,
 * gradient codecs and optimizers.
 *
 * AQ_CPU in the environment narrows the choice, for tests and for the hunt of a bug: plain, base, avx2, avx512,
 * avx512bf16, amx or vbmi, each with all that it builds on. Without it everything that the processor has is used. The
 * choice changes no bit of a codec, a message or an update; sums of the device's mathematics have the bits of their
 * level.
 *
 *     plain       the readable truth, loops in C
 *     base        any processor: the same, with oneDNN's matrix products
 *     avx2        and FMA, F16C, BMI2
 *     avx512      F, BW, DQ and VL
 *     avx512bf16  avx512 and BF16: products of bf16
 *     amx         avx512bf16 and AMX-BF16: products of bf16 on tiles (Linux from 5.16)
 *     vbmi        avx512 and VBMI: codes of any width packed in registers
 *
 * Processors that are not x86-64 have plain and base.
 *
 * Locking: any thread.
 */
#ifndef AQSGD_BASE_PROCESSOR_H
#define AQSGD_BASE_PROCESSOR_H

#include <stdbool.h>
#include <stdint.h>

#include "aqsgd/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum aq_instructions {
    AQ_PLAIN = 1 << 0,
    AQ_BASE = 1 << 1,
    AQ_AVX2 = 1 << 2,
    AQ_AVX512 = 1 << 3,
    AQ_AVX512_BF16 = 1 << 4,
    AQ_AVX512_VBMI = 1 << 5,
    AQ_AMX_BF16 = 1 << 6
};

/* A set of enum aq_instructions. */
uint32_t aq_processor_has(void);

/*
 * The set that is used: AQ_CPU's, or all. AQ_INVAL: AQ_CPU is no name of the table. AQ_NODEV: this processor does not
 * have it. The line lists the possible names. Programs ask first, and end there.
 */
enum aq_status aq_processor_choose(uint32_t *set);

/* The same for later callers that cannot fail: all, if AQ_CPU cannot be used. */
uint32_t aq_processor_used(void);

/*
 * Ask Linux for tile registers, for this process and all of its threads; before the first use. A second request is
 * fine. It has a side effect: from then on sigaltstack refuses stacks below about 12 KiB (AT_MINSIGSTKSZ). false:
 * refused, and errno says why.
 */
bool aq_processor_request_tiles(void);

/* "plain base avx2 avx512 avx512bf16 amx vbmi": the names of a set. */
void aq_processor_text(uint32_t set, char text[64]);

#ifdef __cplusplus
}
#endif
#endif
