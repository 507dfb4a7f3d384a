/* fused_lamb.inc.h -- LAMB: k1 and k2 are the corrections, values[1] is c. */
AQ_FUSED(LAMB_MOMENTS, 2, 0, false)
AQ_FUSED(LAMB_STEP, 0, 0, false)

#ifdef AQ_BODY
AQ_ELEMENT float element_lamb_direction(const struct aq_fused w, float decay, uint64_t i)
{
    return w.m[i] * w.k1 / (sqrtf(w.v[i] * w.k2 + w.inside) + w.eps) + decay * w.p[i];
}

/* |x|^2 and |u|^2. */
AQ_BODY(LAMB_MOMENTS)
{
    element_momentum(w, i);
    element_variance(w, i);
    const double x = (double)w.p[i], u = (double)element_lamb_direction(w, values[0], i);
    terms[0] = x * x;
    terms[1] = u * u;
}

AQ_BODY(LAMB_STEP)
{
    const float size = w.lr * values[1];
    w.p[i] -= size * element_lamb_direction(w, values[0], i);
}
#endif
