/*
 * optimizer_ranks.h -- W replicas in one process: their optimizers, their gradients, and the reductions they ask for,
 * made here in plain C in the order of the ranks.
 *
 * Locking: one thread.
 */
#ifndef TESTS_OPTIMIZER_RANKS_H
#define TESTS_OPTIMIZER_RANKS_H

#include "aqsgd/grad.h"

enum { RANKS_MAX = 12, RANK_FLOATS = 3000, RANK_TENSORS = 6 };

extern const struct aq_optimizer_tensor rank_tensors[RANK_TENSORS];
extern const struct aq_optimizer_tensor *ranks_tensors; /* what ranks_open opens in their place; NULL: those */

struct ranks {
    uint32_t W;
    uint64_t floats; /* of each rank */
    struct aq_optimizer *optimizers[RANKS_MAX];
    float *parameters[RANKS_MAX], *gradients[RANKS_MAX]; /* `floats` each */
    uint64_t sent; /* bytes that one rank's x takes on the wire, one way, since the last ranks_step */
    uint32_t asked;
    bool late;  /* a reduction that has `later` is made when it is waited for, or by ranks_settle */
    bool holds; /* one is kept for that */
    struct aq_reduce held[RANKS_MAX];
    bool again; /* each reduction is made once, taken back (aq_optimizer_put_back), and made again */
    struct aq_device *device;
    void *memory;
    uint8_t *wires[RANKS_MAX]; /* a coded chunk of each rank */
};

/* Parameters are the same on all ranks. Fails the test where open does. */
void ranks_open(struct ranks *ranks, const struct aq_optimizer_config *config, uint32_t W);
/* The same of other tensors in a buffer of so many floats, which are zeros. */
void ranks_open_shapes(struct ranks *ranks, const struct aq_optimizer_config *config, uint32_t W,
                       const struct aq_optimizer_tensor *tensors, uint32_t tensor_count, uint64_t floats);
void ranks_close(struct ranks *ranks);
/*
 * Gradients of a step, of rank_tensors: a part that all ranks share, and noise of their own; tensors differ in size;
 * padding is 0.
 */
void ranks_gradients(struct ranks *ranks, uint64_t seed, uint64_t step);
/* average and begin with all their rounds. */
void ranks_step(struct ranks *ranks, float lr, float grad_scale, uint64_t step);
/* What is kept is made, and all ranks take its outer step. */
void ranks_settle(struct ranks *ranks);
/* A void step, with all its rounds. */
void ranks_void(struct ranks *ranks, uint64_t step);
/* Is this float of a tensor? */
bool ranks_is_in(uint64_t i);
/* Index of the state array of that name. Fails the test where there is none. */
uint32_t ranks_state(const struct ranks *ranks, const char *name);
bool ranks_has_state(const struct ranks *ranks, const char *name);
void ranks_expect_equal_parameters(const struct ranks *ranks);

#endif
