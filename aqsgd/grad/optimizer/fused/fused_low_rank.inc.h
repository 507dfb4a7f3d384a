/* fused_low_rank.inc.h -- PowerSGD: values[4] is set if a tensor is sent whole; [1] to [3] are the update's. */
AQ_FUSED(LOW_RANK_ADD, 0, 0, false)
AQ_FUSED_ROWS(LOW_RANK_REBUILD)

#ifdef AQ_BODY
AQ_BODY(LOW_RANK_ADD)
{
    if (values[4] == 0.0f) w.worker_error[i] += w.g[i];
}
#endif
