/*
 * grad_choice.h -- `reduce.codec: auto`: the codec of the replicas' averages, chosen by the rate of their links, the
 * cost of packing and the computation of a step.
 *
 * Candidates, the most exact first: fp32, bf16, uniform of 8 and of 4 bits, sign (only with error feedback). A
 * reduction in a candidate takes the longer of its time on the links and its packing, because the two overlap, and
 * twice the links' latency. Chosen is the most exact candidate that takes no longer than
 *
 *     max(AQ_CHOICE_SHARE x what a step computes, AQ_CHOICE_SLACK x what the fastest candidate takes)
 *
 * The first is too short to be noticed; if even the coarsest candidate takes longer, exactness may cost a quarter of
 * its time.
 *
 * A choice is a candidate's number, which a checkpoint keeps (aq_optimizer_chosen): numbers are never reused.
 *
 * Locking: pure functions.
 */
#ifndef AQSGD_GRAD_CHOICE_H
#define AQSGD_GRAD_CHOICE_H

#include <stdint.h>

#include "aqsgd/grad.h"
#include "aqsgd/grad_codec.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { AQ_GRAD_CANDIDATES_MAX = 5 };

#define AQ_CHOICE_SHARE 0.1
#define AQ_CHOICE_SLACK 1.25

struct aq_grad_candidate {
    const char *name; /* as a manifest names it: "q4"                                   */
    struct aq_grad_codec_config config;
};

/* Those of an optimizer whose codec is chosen; bucket, grid and scale come from config->reduce. Returns their
 * number. */
uint32_t aq_grad_candidates(const struct aq_optimizer_config *config,
                            struct aq_grad_candidate out[AQ_GRAD_CANDIDATES_MAX]);

/* Of one reduction in one candidate, on one rank. */
struct aq_grad_cost {
    uint64_t bytes; /* that it sends                                                    */
    double pack_s;  /* encoding, adding up, decoding                                    */
};

/* The conditions of reductions. */
struct aq_grad_scene {
    double rate;      /* bytes per second that leave a rank; 0: links take no time      */
    double latency_s; /* of a message; a reduction waits for two                        */
    double compute_s; /* of a step; 0: not known                                        */
};

/* Of a reduction. */
double aq_grad_cost_seconds(const struct aq_grad_cost *cost, const struct aq_grad_scene *scene);

/* The rule above. count >= 1 costs, the most exact first; answers an index. */
uint32_t aq_grad_choose(const struct aq_grad_cost *costs, uint32_t count, const struct aq_grad_scene *scene);

#ifdef __cplusplus
}
#endif
#endif
