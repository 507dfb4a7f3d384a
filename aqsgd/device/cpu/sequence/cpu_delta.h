/*
 * cpu_delta.h -- one chunk of the gated delta rule (struct aq_delta), as its two ways of computing it read it; private
 * to this room.
 *
 *     cpu_delta_plain    token by token, as the rule is written: the truth (AQ_CPU=plain)
 *     cpu_delta_chunked  products of matrices of the whole chunk
 */
#ifndef AQ_CPU_DELTA_H
#define AQ_CPU_DELTA_H

#include "cpu_device.h"

enum {
    CPU_DELTA_TOKENS = AQ_DELTA_CHUNK,
    CPU_DELTA_ROWS = CPU_DELTA_TOKENS * AQ_DELTA_HEAD_MAX,   /* values of a chunk's rows of one kind */
    CPU_DELTA_PAIRS = CPU_DELTA_TOKENS * CPU_DELTA_TOKENS,   /* pairs of a chunk's tokens            */
    CPU_DELTA_STATE = AQ_DELTA_HEAD_MAX * AQ_DELTA_HEAD_MAX, /* a head's state                       */
    CPU_DELTA_ROOM = 4 * CPU_DELTA_ROWS + 6 * CPU_DELTA_PAIRS /* what a way needs, in floats         */
};

/* Matrices lie row by row, without gaps. S and dS are (Dk, Dv). */
struct cpu_delta_chunk {
    uint64_t n, Dk, Dv;
    float *q, *k; /* (n, Dk), normalized; q divided by the root of Dk */
    float *v;     /* (n, Dv); backward: becomes its gradient          */
    float beta[CPU_DELTA_TOKENS], decay[CPU_DELTA_TOKENS]; /* decay: e^g */
    float *S;     /* the state before the chunk                       */
    float *out;   /* (n, Dv)                                          */
    /* Backward: of out, which is used up; of the state behind the chunk, which becomes that of the state before it. */
    float *dout, *dS;
    float *dq, *dk; /* += */
    float dbeta[CPU_DELTA_TOKENS], dg[CPU_DELTA_TOKENS];
    float *room; /* CPU_DELTA_ROOM floats */
    struct cpu_device *cpu;
    float *scratch; /* of cpu->gemm */
};

struct cpu_delta_way {
    void (*forward)(struct cpu_delta_chunk *c);  /* S becomes the state behind the chunk */
    void (*backward)(struct cpu_delta_chunk *c); /* S is used up                         */
};

extern const struct cpu_delta_way cpu_delta_plain, cpu_delta_chunked;

#endif
