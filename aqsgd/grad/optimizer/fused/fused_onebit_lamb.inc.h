/* fused_onebit_lamb.inc.h -- 1-bit LAMB: values[1] is r c_avg, [2] the momentum's scale, [3] one over it, [4] what
 * errors are multiplied by. */
AQ_FUSED(ONEBIT_LAMB_SCALE, 0, 0, false)
AQ_FUSED(ONEBIT_LAMB_REBUILD, 1, 1, true)
AQ_FUSED(ONEBIT_LAMB_REBUILD_ROOT, 3, 1, true)
AQ_FUSED(ONEBIT_LAMB_STEP, 0, 0, false)
AQ_FUSED(ONEBIT_LAMB_ERRORS, 0, 0, false)

#ifdef AQ_BODY
AQ_BODY(ONEBIT_LAMB_SCALE)
{
    w.last[i] = w.m[i];
    w.m[i] = (w.b1 * w.m[i] + w.c1 * (w.g[i] * w.scale)) * values[2];
}

/* r, and with root |u|^2 without and with decay. */
AQ_ELEMENT void element_onebit_lamb_rebuild(bool root, bool masks, const struct aq_fused w, const float *values,
                                            uint64_t i, double *terms)
{
    const float frozen = w.frozen[i];
    for (int k = 0; k < (root ? 3 : 1); k++)
        terms[k] = 0.0;
    if (masks) element_mask(w, i);
    if (masks && frozen == 0.0f) return; /* m is 0, v stays as it is */
    const float m = w.m[i] * values[3], g = (m - w.b1 * w.last[i]) * (1.0f / w.c1);
    const float v = w.b2 * w.v[i] + w.c2 * g * g;
    w.m[i] = m;
    w.v[i] = v;
    if (!root) {
        terms[0] = (double)(frozen / v);
        return;
    }
    const float under = sqrtf(frozen + w.inside) + w.eps, u = m / under, with = u + values[0] * w.p[i];
    terms[0] = (double)(under / (sqrtf(v + w.inside) + w.eps));
    terms[1] = (double)u * (double)u;
    terms[2] = (double)with * (double)with;
}

AQ_BODY(ONEBIT_LAMB_REBUILD)
{
    element_onebit_lamb_rebuild(false, masks, w, values, i, terms);
}

AQ_BODY(ONEBIT_LAMB_REBUILD_ROOT)
{
    element_onebit_lamb_rebuild(true, masks, w, values, i, terms);
}

AQ_BODY(ONEBIT_LAMB_ERRORS)
{
    if (w.worker_error) w.worker_error[i] *= values[4];
    if (w.server_error && i - w.chunk_first < w.chunk) w.server_error[i - w.chunk_first] *= values[4];
}

AQ_BODY(ONEBIT_LAMB_STEP)
{
    const float size = w.lr * values[1];
    w.p[i] -= size * (w.m[i] / (sqrtf(w.frozen[i] + w.inside) + w.eps) + values[0] * w.p[i]);
}
#endif
