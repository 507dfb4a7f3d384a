/* fused_lion.inc.h -- Lion, and what Lion Cub has of it. */
AQ_FUSED(LION, 0, 0, false)

#ifdef AQ_BODY
AQ_ELEMENT float element_lion_vector(const struct aq_fused w, uint64_t i)
{
    return w.b1 * w.m[i] + w.c1 * (w.g[i] * w.scale);
}

AQ_ELEMENT void element_lion_step(const struct aq_fused w, const float *values, uint64_t i, float c)
{
    const float g = w.g[i] * w.scale;
    w.p[i] -= w.lr * ((float)((c > 0.0f) - (c < 0.0f)) + values[0] * w.p[i]);
    w.m[i] = w.b2 * w.m[i] + w.c2 * g;
}

AQ_BODY(LION)
{
    element_lion_step(w, values, i, element_lion_vector(w, i));
}
#endif
