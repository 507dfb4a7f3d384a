/*
 * fused_versions.inc.h -- other versions of the weights than the parameters (optimizer_versions.c): `last` is one.
 */
AQ_FUSED(SWAP, 0, 0, false)
AQ_FUSED(PREDICT, 0, 0, false)

#ifdef AQ_BODY
AQ_BODY(SWAP)
{
    const float x = w.p[i];
    w.p[i] = w.last[i];
    w.last[i] = x;
}

/*
 * The weights from before the update give way to the new ones; the parameters go as far again. The same on any machine.
 */
AQ_BODY(PREDICT)
{
    const float x = w.p[i], moved = x - w.last[i];
    w.last[i] = x;
    w.p[i] = x + moved;
}
#endif
