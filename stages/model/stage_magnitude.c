/* stage_magnitude.c -- adapters whose rows have lengths of their own begin as the matrices that they adapt. */
#include <math.h>
#include <string.h>

#include "stage_model.h"

/* The lengths of the rows of w, (out, in), or (in, out) where it is stored so. */
static void lengths_of(const float *w, uint64_t in, uint64_t out, bool out_in, float *lengths)
{
    for (uint64_t o = 0; o < out; o++) {
        double sum = 0;
        for (uint64_t i = 0; i < in; i++) {
            const double value = (double)w[out_in ? o * in + i : i * out + o];
            sum += value * value;
        }
        lengths[o] = (float)sqrt(sum);
    }
}

static enum aq_status magnitude_begin(struct aq_stage *stage, const struct aq_tensor_info *m,
                                      const struct aq_tensor_info *w)
{
    void *memory;
    const uint64_t out = m->count, in = w->count / out;
    AQ_TRY(aq_alloc((w->count + out) * sizeof(float), &memory));
    float *values = memory, *lengths = values + w->count;
    enum aq_status status = aq_stage_get(stage, w, 0, w->count, values);
    if (status == AQ_OK) {
        lengths_of(values, in, out, m->adapts_out_in, lengths);
        status = aq_stage_put(stage, m, 0, out, lengths);
    }
    aq_free(memory);
    return status;
}

enum aq_status aq_stage_magnitudes(struct aq_stage *stage)
{
    for (uint32_t i = 0; stage->config.lora.dora && i < stage->all_count; i++) {
        const struct aq_tensor_info *m = &stage->tensors[i].info;
        char which, of[AQ_TENSOR_NAME_MAX];
        uint32_t w = 0;
        if (!m->adapter || !aq_tensor_adapts(m->name, &which, of) || which != 'M') continue;
        while (w < stage->all_count && strcmp(stage->tensors[w].info.name, of) != 0)
            w++;
        AQ_ASSERT(w < stage->all_count); /* a layer has both */
        AQ_TRY(magnitude_begin(stage, m, &stage->tensors[w].info));
    }
    return AQ_OK;
}
