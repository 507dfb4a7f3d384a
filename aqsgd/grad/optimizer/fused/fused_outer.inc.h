/*
 * fused_outer.inc.h -- the outer step of local steps (optimizer_outer.c): `last` is the other version of the weights, m
 * the outer momentum, b1 its factor, size the outer rate.
 *
 * With outer_delay movements travel in an array of their own: OUTER_LEFT keeps the weights at the round's end in v, and
 * the movement in m; OUTER_CAME takes the outer step of the mean in v; OUTER_ADDED has the end in v.
 */
AQ_FUSED(OUTER_MOVED, 0, 0, false)
AQ_FUSED(OUTER_STEP, 0, 0, false)
AQ_FUSED(OUTER_STEP_MOMENTUM, 0, 0, false)
AQ_FUSED(OUTER_LEFT, 0, 0, false)
AQ_FUSED(OUTER_CAME, 0, 0, false)
AQ_FUSED(OUTER_CAME_MOMENTUM, 0, 0, false)
AQ_FUSED(OUTER_ADDED, 0, 0, false)

#ifdef AQ_BODY
/* The pseudo-gradient, in the weights' place. A value that is not finite counts as not moved, so that it affects no
 * other rank. */
AQ_BODY(OUTER_MOVED)
{
    const float moved = w.last[i] - w.p[i];
    w.p[i] = moved - moved == 0.0f ? moved : 0.0f;
}

AQ_ELEMENT float element_outer(const struct aq_fused w, uint64_t i, float direction)
{
    const float x = element_fma(-w.size, direction, w.last[i]);
    w.last[i] = x;
    return x;
}

/* The direction of Nesterov's momentum. */
AQ_ELEMENT float element_outer_momentum(const struct aq_fused w, uint64_t i, float moved)
{
    const float m = element_fma(w.b1, w.m[i], moved);
    w.m[i] = m;
    return element_fma(w.b1, m, moved);
}

AQ_BODY(OUTER_STEP)
{
    w.p[i] = element_outer(w, i, w.p[i]);
}

AQ_BODY(OUTER_STEP_MOMENTUM)
{
    w.p[i] = element_outer(w, i, element_outer_momentum(w, i, w.p[i]));
}

AQ_BODY(OUTER_LEFT)
{
    const float x = w.p[i], moved = w.last[i] - x;
    w.v[i] = x;
    w.m[i] = moved - moved == 0.0f ? moved : 0.0f;
}

AQ_BODY(OUTER_CAME)
{
    (void)element_outer(w, i, w.v[i]);
}

AQ_BODY(OUTER_CAME_MOMENTUM)
{
    (void)element_outer(w, i, element_outer_momentum(w, i, w.v[i]));
}

/* The outer weights, and what the rank has moved since the round's end; nothing where that is not finite. */
AQ_BODY(OUTER_ADDED)
{
    const float since = w.p[i] - w.v[i], x = w.last[i];
    w.p[i] = since - since == 0.0f ? x + since : x;
}
#endif
