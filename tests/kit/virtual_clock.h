/*
 * virtual_clock.h -- the time of a simulation: a test that links virtual_clock.c has it in the place of base/clock.c.
 *
 * Locking: virtual_clock only before threads start.
 */
#ifndef TESTS_VIRTUAL_CLOCK_H
#define TESTS_VIRTUAL_CLOCK_H

#include <stdint.h>

/* Take the time from source, or from the system again (NULL). */
void virtual_clock(uint64_t (*source)(void *context), void *context);

#endif
