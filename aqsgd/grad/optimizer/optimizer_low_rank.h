/*
 * optimizer_low_rank.h -- PowerSGD behind optimizer_average.c.
 *
 * Locking: as grad.h.
 */
#ifndef AQSGD_GRAD_OPTIMIZER_LOW_RANK_H
#define AQSGD_GRAD_OPTIMIZER_LOW_RANK_H

#include "optimizer.h"

enum aq_status aq_low_rank_place(struct aq_optimizer *optimizer);
/* Rounds of one averaging of `gradients`, in place. */
enum aq_status aq_low_rank_round(struct aq_optimizer *optimizer, float *gradients, uint32_t round,
                                 struct aq_reduce *out);
/* The bytes of its steps, and those of the fp32 steps before it starts. */
void aq_low_rank_traffic(const struct aq_optimizer_sent *sent, struct aq_optimizer_traffic *out);

#endif
