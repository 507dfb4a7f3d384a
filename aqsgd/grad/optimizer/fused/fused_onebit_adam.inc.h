/* fused_onebit_adam.inc.h -- 1-bit Adam: k1 and k2 are the corrections. */
AQ_FUSED(ONEBIT_ADAM_WARM, 0, 0, false)
AQ_FUSED(ONEBIT_ADAM_FROZEN, 0, 0, true)
AQ_FUSED(ONEBIT_ADAM_ALONE, 0, 0, true)

#ifdef AQ_BODY
AQ_ELEMENT void element_onebit_adam(const struct aq_fused w, const float *values, uint64_t i)
{
    const float decay = w.lr * values[0];
    w.p[i] = w.p[i] - decay * w.p[i] - w.lr * (w.m[i] * w.k1) / (sqrtf(w.v[i] * w.k2) + w.eps);
}

AQ_BODY(ONEBIT_ADAM_WARM)
{
    element_momentum(w, i);
    element_variance(w, i);
    element_onebit_adam(w, values, i);
}

AQ_BODY(ONEBIT_ADAM_FROZEN)
{
    if (masks) element_mask(w, i);
    element_onebit_adam(w, values, i);
}

/* All of it, if no reduction is needed, so that a piece stays in the cache. */
AQ_BODY(ONEBIT_ADAM_ALONE)
{
    element_momentum(w, i);
    if (masks) element_mask(w, i);
    element_onebit_adam(w, values, i);
}
#endif
