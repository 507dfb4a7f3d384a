/* fused_shared.inc.h -- kernels that several optimizers have, and what their bodies share. */
AQ_FUSED(MOMENTUM, 0, 0, false)
AQ_FUSED(NORM1, 1, 0, false)
AQ_FUSED(SQUARES, 1, 0, false)
AQ_FUSED(NOISE, 1, 0, false)

#ifdef AQ_BODY
/* m = b1 m + (1 - b1) g, on this rank. */
AQ_ELEMENT void element_momentum(const struct aq_fused w, uint64_t i)
{
    w.m[i] = w.b1 * w.m[i] + w.c1 * (w.g[i] * w.scale);
}

/* v = b2 v + (1 - b2) g g. */
AQ_ELEMENT void element_variance(const struct aq_fused w, uint64_t i)
{
    const float g = w.g[i] * w.scale;
    w.v[i] = w.b2 * w.v[i] + w.c2 * g * g;
}

/*
 * A parameter whose frozen v is zero has no gradient (aq_optimizer_noise_drop). The values that compression leaves in
 * its momentum and errors belong to its neighbours, and a division by eps would magnify them. So both become zero.
 */
AQ_ELEMENT void element_mask(const struct aq_fused w, uint64_t i)
{
    if (w.frozen[i] != 0.0f) return;
    w.m[i] = 0.0f;
    if (w.worker_error) w.worker_error[i] = 0.0f;
    if (w.server_error && i - w.chunk_first < w.chunk) w.server_error[i - w.chunk_first] = 0.0f; /* wraps below */
}

AQ_BODY(MOMENTUM)
{
    element_momentum(w, i);
}

AQ_BODY(NORM1)
{
    terms[0] = fabs((double)w.v[i]);
}

AQ_BODY(SQUARES)
{
    terms[0] = (double)w.m[i] * (double)w.m[i];
}

/* values[AQ_FUSED_NOISE_BELOW]: variances below it become zero. The sum counts them. */
AQ_BODY(NOISE)
{
    const float v = w.v[i];
    const bool noise = v < values[AQ_FUSED_NOISE_BELOW];
    terms[0] = noise && v != 0.0f ? 1.0 : 0.0;
    w.v[i] = noise ? 0.0f : v;
}
#endif
