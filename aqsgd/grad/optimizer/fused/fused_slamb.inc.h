/*
 * fused_slamb.inc.h -- SLAMB: values[1] is phi_max, [2] phi_min, [3] one over |u|, [4] the share that is masked; c is
 * the staleness.
 */
AQ_FUSED_MASK(SLAMB_MASK)
AQ_FUSED_SPARSE(SLAMB_GATHER, 0)
AQ_FUSED_SPARSE(SLAMB_MOMENTS, 4)
AQ_FUSED(SLAMB_STEP, 0, 0, false)
AQ_FUSED(SLAMB_STEP_CODE, 0, 0, false)

#ifdef AQ_BODY
/* Line 7; the mask itself is the kernel's. */
AQ_BODY(SLAMB_MASK)
{
    element_momentum(w, i);
}

AQ_BODY_PLACE(SLAMB_GATHER)
{
    if (in) w.sent[at] = w.m[i];
    if (in && w.sent_g) w.sent_g[at] = w.g[i] * w.scale;
    return 0.0f;
}

AQ_BODY_SPARSE(SLAMB_GATHER)
{
}

/* Line 8, and line 9: the gradient that v sees. */
AQ_BODY_PLACE(SLAMB_MOMENTS)
{
    if (in && w.sent) w.m[i] = w.sent[at];
    return in && w.sent_g ? w.sent_g[at] : w.g[i] * w.scale;
}

AQ_BODY_SPARSE(SLAMB_MOMENTS)
{
    w.v[i] = w.b2 * w.v[i] + w.c2 * g * g;
    w.c[i] = in ? 1.0f : w.b3 * w.c[i];
    const double x = (double)w.p[i], u = (double)element_lamb_direction(w, values[0], i);
    terms[0] = in ? x * x : 0.0;
    terms[1] = in ? u * u : 0.0;
    terms[2] = in ? 0.0 : x * x;
    terms[3] = in ? 0.0 : u * u;
}

AQ_BODY(SLAMB_STEP)
{
    const float c = w.c[i], u = element_lamb_direction(w, values[0], i);
    w.p[i] -= (w.lr * c + w.low * (1.0f - c)) * (values[1] * c + values[2] * (1.0f - c)) * values[3] * u;
}

AQ_BODY(SLAMB_STEP_CODE)
{
    const float c = w.c[i], u = element_lamb_direction(w, values[0], i);
    w.p[i] -= w.lr * values[1] * c * u + w.low * values[2] * (1.0f - c) * u;
}
#endif
