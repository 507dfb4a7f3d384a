/* stage_magnitude.c -- adapters whose rows have trained lengths start as the matrices that they adapt. */
#include <math.h>
#include <string.h>

#include "stage_model.h"

void aq_lora_squares(const float *values, uint64_t first, uint64_t count, uint64_t in, uint64_t out, bool out_in,
                     double *squares)
{
    uint64_t o = out_in ? first / in : first % out, i = out_in ? first % in : 0;
    for (uint64_t k = 0; k < count; k++) {
        squares[o] += (double)values[k] * (double)values[k];
        if (!out_in) {
            o = o + 1 < out ? o + 1 : 0;
        } else if (++i == in) {
            i = 0;
            o++;
        }
    }
}

float aq_lora_factor(double squares, float m)
{
    return squares > 0 ? m / (float)sqrt(squares) : 0;
}

static enum aq_status magnitude_begin(struct aq_stage *stage, const struct aq_tensor_info *m,
                                      const struct aq_tensor_info *w)
{
    void *memory, *sums;
    const uint64_t out = m->count, in = w->count / out;
    AQ_TRY(aq_alloc((w->count + out) * sizeof(float), &memory));
    float *values = memory, *lengths = values + w->count;
    enum aq_status status = aq_alloc(out * sizeof(double), &sums);
    if (status != AQ_OK) sums = NULL;
    if (status == AQ_OK) status = aq_stage_get(stage, w, 0, w->count, values);
    if (status == AQ_OK) {
        double *squares = sums;
        memset(squares, 0, out * sizeof *squares);
        aq_lora_squares(values, 0, w->count, in, out, m->adapts_out_in, squares);
        for (uint64_t o = 0; o < out; o++)
            lengths[o] = (float)sqrt(squares[o]);
        status = aq_stage_put(stage, m, 0, out, lengths);
    }
    aq_free(sums);
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
