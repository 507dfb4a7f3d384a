/*
 * split_adder.h -- the thread that adds parts to a sum (split_sum.h) and writes its file, so that the split-server's
 * loop serves its clients meanwhile: for the gradients of a ResNet-34 one part takes 0.1 s.
 *
 *     aq_split_adder_add(adder, sum, weight);         until it is taken, nothing else is asked, and of the sum
 *     ... poll aq_split_adder_fd ...                  only aq_split_sum_file is called
 *     if (aq_split_adder_take(adder, why) != AQ_AGAIN) ...
 *
 * Locking: all calls are of one thread; the adder's own takes over the sum from add or done until take.
 */
#ifndef RUNTIME_SPLIT_ADDER_H
#define RUNTIME_SPLIT_ADDER_H

#include "split_session.h"
#include "split_sum.h"

struct aq_split_adder; /* opaque */

/* AQ_NOMEM, AQ_IO: the system gives no thread or no descriptor. */
enum aq_status aq_split_adder_open(struct aq_split_adder **out);
void aq_split_adder_close(struct aq_split_adder *adder); /* waits for what was asked; NULL is fine */

/* Is it asked for something that was not taken yet? */
bool aq_split_adder_busy(const struct aq_split_adder *adder);
/* Readable when what was asked is done. */
int aq_split_adder_fd(const struct aq_split_adder *adder);

/* aq_split_sum_add and aq_split_sum_done of a sum that is lent until take. It must not be busy. */
void aq_split_adder_add(struct aq_split_adder *adder, struct aq_split_sum *sum, uint64_t weight);
void aq_split_adder_done(struct aq_split_adder *adder, struct aq_split_sum *sum);

/* The status of what was asked; a failure has its cause in `why`. AQ_AGAIN: it is not done, or nothing was asked. */
enum aq_status aq_split_adder_take(struct aq_split_adder *adder, char why[AQ_SPLIT_TEXT_BYTES]);

/* Waits until it is done, and drops the result. */
void aq_split_adder_wait(struct aq_split_adder *adder);

#endif
