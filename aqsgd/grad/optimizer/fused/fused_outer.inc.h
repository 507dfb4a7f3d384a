/*
 * fused_outer.inc.h -- the outer step of local steps (optimizer_outer.c): `last` is the other version of the weights, m
 * the outer momentum, b1 its factor, size the outer rate.
 */
AQ_FUSED(OUTER_MOVED, 0, 0, false)
AQ_FUSED(OUTER_STEP, 0, 0, false)
AQ_FUSED(OUTER_STEP_MOMENTUM, 0, 0, false)

#ifdef AQ_BODY
/* The pseudo-gradient, in the weights' place. A value that is not finite counts as not moved, so that it affects no
 * other rank. */
AQ_BODY(OUTER_MOVED)
{
    const float moved = w.last[i] - w.p[i];
    w.p[i] = moved - moved == 0.0f ? moved : 0.0f;
}

AQ_ELEMENT void element_outer_step(const struct aq_fused w, uint64_t i, float direction)
{
    const float x = element_fma(-w.size, direction, w.last[i]);
    w.last[i] = x;
    w.p[i] = x;
}

AQ_BODY(OUTER_STEP)
{
    element_outer_step(w, i, w.p[i]);
}

AQ_BODY(OUTER_STEP_MOMENTUM)
{
    const float moved = w.p[i], m = element_fma(w.b1, w.m[i], moved);
    w.m[i] = m;
    element_outer_step(w, i, element_fma(w.b1, m, moved));
}
#endif
