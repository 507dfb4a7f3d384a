/* fused_adamw.inc.h -- AdamW: k1 and k2 are the corrections; and what follows on an update, in the same pass. */
AQ_FUSED(ADAMW, 0, 0, false)
AQ_FUSED(ADAMW_CLEARS, 0, 0, false)
AQ_FUSED(ADAMW_ROUNDS, 0, 0, false)

#ifdef AQ_BODY
AQ_ELEMENT void element_adamw(const struct aq_fused w, const float *values, uint64_t i)
{
    const float g = w.g[i] * w.scale, decay = w.lr * values[0];
    const float m = element_fma(w.b1, w.m[i], w.c1 * g), v = element_fma(w.b2, w.v[i], w.c2 * g * g);
    const float step = m * w.k1 / (sqrtf(v * w.k2) + w.eps);
    w.m[i] = m;
    w.v[i] = v;
    w.p[i] = element_fma(-w.lr, step, element_fma(-decay, w.p[i], w.p[i]));
}

AQ_BODY(ADAMW)
{
    element_adamw(w, values, i);
}

AQ_BODY(ADAMW_CLEARS)
{
    element_adamw(w, values, i);
    w.cleared[i] = 0.0f;
}

AQ_BODY(ADAMW_ROUNDS)
{
    element_adamw(w, values, i);
    w.cleared[i] = 0.0f;
    w.rounded[i] = element_rounded(w.p[i], w.halves);
}
#endif
