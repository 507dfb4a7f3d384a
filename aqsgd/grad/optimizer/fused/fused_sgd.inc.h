/* fused_sgd.inc.h -- SGD: b1 is the momentum, m the velocity. */
AQ_FUSED(SGD, 0, 0, false)
AQ_FUSED(SGD_MOMENTUM, 0, 0, false)

#ifdef AQ_BODY
AQ_ELEMENT void element_sgd_step(const struct aq_fused w, const float *values, uint64_t i, float u)
{
    const float decay = w.lr * values[0];
    w.p[i] = element_fma(-w.lr, u, element_fma(-decay, w.p[i], w.p[i]));
}

AQ_BODY(SGD)
{
    element_sgd_step(w, values, i, w.g[i] * w.scale);
}

AQ_BODY(SGD_MOMENTUM)
{
    w.m[i] = element_fma(w.b1, w.m[i], w.g[i] * w.scale);
    element_sgd_step(w, values, i, w.m[i]);
}
#endif
