/* fused_qadam.inc.h -- QuantizedAdam: low is the step, with both corrections. */
AQ_FUSED(QADAM_WARM, 0, 0, false)
AQ_FUSED(QADAM_FROZEN, 0, 0, true)
AQ_FUSED(QADAM_ALONE, 0, 0, true)

#ifdef AQ_BODY
AQ_ELEMENT void element_qadam(const struct aq_fused w, const float *values, uint64_t i)
{
    const float decay = w.lr * values[0];
    const float moved = w.p[i] - w.low * w.m[i] / (sqrtf(w.v[i]) + w.eps);
    w.p[i] = moved - decay * moved;
}

AQ_BODY(QADAM_WARM)
{
    element_momentum(w, i);
    element_variance(w, i);
    element_qadam(w, values, i);
}

AQ_BODY(QADAM_FROZEN)
{
    if (masks) element_mask(w, i);
    element_qadam(w, values, i);
}

/* All of it, if no reduction is needed, so that a piece stays in the cache. */
AQ_BODY(QADAM_ALONE)
{
    element_momentum(w, i);
    if (masks) element_mask(w, i);
    element_qadam(w, values, i);
}
#endif
