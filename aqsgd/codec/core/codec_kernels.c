/*
 * codec_kernels.c -- which table of kernels this machine runs. The choice changes the speed and no bit.
 */
#include "codec_internal.h"

static const struct {
    enum aq_instructions needs;
    const struct aq_codec_kernels *kernels;
} tables[] = {/* the best first */
#if defined(__x86_64__)
              {AQ_AVX512_VBMI, &aq_codec_kernels_vbmi},
              {AQ_AVX512, &aq_codec_kernels_avx512},
              {AQ_AVX2, &aq_codec_kernels_avx2},
#endif
              {AQ_PLAIN, &aq_codec_kernels_plain}};
enum { TABLES = sizeof tables / sizeof tables[0] };

const struct aq_codec_kernels *aq_codec_kernels_named(const char *name)
{
    for (int i = 0; i < TABLES; i++)
        if (strcmp(tables[i].kernels->name, name) == 0)
            return aq_processor_has() & tables[i].needs ? tables[i].kernels : NULL;
    return NULL;
}

const struct aq_codec_kernels *aq_codec_kernels_best(void)
{
    const uint32_t used = aq_processor_used();
    int i = 0;
    while (!(used & tables[i].needs))
        i++;
    return tables[i].kernels;
}
