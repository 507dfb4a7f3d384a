/*
 * codec_common.h -- what the codec tests share: data, a sender with a receiver, the tables of kernels of this machine.
 */
#ifndef CODEC_COMMON_H
#define CODEC_COMMON_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "codec_internal.h"

enum shape { SHAPE_GAUSS, SHAPE_LAPLACE, SHAPE_STUDENT3 };

struct aq_rng_key test_key(uint64_t number);
void fill(float *x, size_t n, enum shape shape, float scale, uint64_t number);

/* The tables that this machine can run: `plain` first. Returns how many. */
size_t tables(const struct aq_codec_kernels *out[4]);

/* One end of an edge: memory for one sample, with a canary behind the body and behind the message. */
struct end {
    struct aq_codec *codec;
    size_t values;
    float *a, *hat;
    uint8_t *body, *m;
};

void end_open(struct end *end, const struct aq_codec_config *config, uint32_t rows, uint32_t columns);
void end_close(struct end *end);
void end_check(const struct end *end); /* are the canaries alive? */

void quiet_begin(void); /* expected errors are not shown */
void quiet_end(void);

double relative(double error2, double signal2);

#endif
