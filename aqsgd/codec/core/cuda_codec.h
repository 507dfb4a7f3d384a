/*
 * cuda_codec.h -- the codec's kernels on a GPU: what their launchers take, and in which memory.
 *
 * Caveats first.
 * - Only *enqueues*. The jobs travel by value in the kernels' parameters, so that nothing of the host's is read later;
 *   their operands must stay until the stream has passed.
 * - Bodies, x^ and m' have the bits that the CPU's truth (codec_scalar.h, codec_scale.c, codec_store.c) gives, encode's
 *   bodies included: a sum has 32 partial sums, lane c%32, in the order of the columns, which is a warp's own order.
 *   The live measures agree to rounding only.
 * - hat must not overlap a (codec.h allows it for one sample at a time on a CPU). m_out may be m.
 * - A sample that encode had to send raw has AQ_CODED_RAW in its result's flags and 4 T C bytes of body; its m_out
 *   holds rubbish, as in codec.h. A body that decode refuses is marked corrupt; its hat and m_out hold rubbish.
 * - A launch takes at most AQ_CUDA_CODEC_JOBS samples and fewer where the scratch was cut for fewer; the launchers cut
 *   a longer list themselves.
 *
 * Two ways through memory, chosen by aq_cuda_codec_encode and _decode from the plan and the pointers:
 *   units   eight columns a thread, a row in the registers of one warp (or of a few), 16-byte loads and stores: one
 *           pass over memory for row and tile scales, two for tensor and channel. Needs whole units (C % 8 == 0),
 *           pointers at multiples of 16, no search and no top-k.
 *   rows    a warp per row with the row in scratch memory: everything else.
 * Messages in Q are unpacked to fp32 before and packed after (cuda_codec_store.cu).
 *
 * Needs compute capability 8.0. This header compiles as C and as CUDA C++; it knows no CUDA type.
 *
 * Locking: one thread for each scratch; a scratch is for one stream at a time.
 */
#ifndef AQSGD_CUDA_CODEC_H
#define AQSGD_CUDA_CODEC_H

#include "aqsgd/codec.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    AQ_CUDA_CODEC_JOBS = 48, /* samples of one launch: kernel parameters end at 4096 bytes */
    AQ_CUDA_CODEC_WARP = 32,
    AQ_CUDA_CODEC_SHRINKS = 8,    /* candidates of SEARCH                                       */
    AQ_CUDA_CODEC_STEP_BYTES = 8, /* of what the kernels keep of a scale, and of a group's span */
    AQ_CUDA_CODEC_SPAN_BYTES = 12,
    AQ_CUDA_CODEC_BLOCK_ROWS = 4,  /* rows of a block of the general kernels                     */
    AQ_CUDA_CODEC_HISTOGRAM = 2048, /* buckets of one level of the search for the K largest */
    AQ_CUDA_CODEC_EC_BYTES = 1 << 18, /* of a sample's counts and tables when it is entropy coded */
    AQ_CUDA_CODEC_EC_STAGE = 256      /* bytes of a chunk's words before they are joined, in addition to 1 per value */
};

/* All parameters of a codec for the kernels; by value in every launch. Words are as in codec_internal.h. */
struct aq_cuda_codec_plan {
    uint64_t values, kept;
    uint64_t positions_at, positions_bytes, codes_at;
    uint64_t body_bytes, plain_bytes; /* of a delta; of a keyframe or raw body */
    uint32_t rows, columns;
    uint32_t kind, grid, group, tile, scale, scale_format;
    uint32_t store; /* of m while a sample is coded: fp32, fp16 or bf16 */
    uint32_t packed; /* the Q in which messages are kept; 0: as in `store` */
    uint32_t plain; /* the precision of a body without a reference: keyframe or raw */
    uint32_t bits, half;
    uint32_t groups, groups_row, scale_bytes;
    uint32_t pieces, piece_rows; /* the CPU's pieces: the order of sums that run over rows */
    uint32_t limit;              /* |x^| from these bits on is refused */
    uint32_t raw_limit, raw_limit_plain; /* aq_codec_raw_limit */
    uint32_t low_bits;
    int32_t prescale_log2;
    float low, high;
    float gauss, laplace, shrink; /* of this grid and these bits: codec_scale.c */
    float rate, error, keyframe_rate; /* entropy coded */
    uint8_t stochastic, hadamard, rise, bitmap, sparse, warm /* messages are kept */;
    uint8_t half_dither; /* and stochastic: of what has a reference */
    uint8_t measure_part /* some rows only */, packed_channel /* a scale per channel, not a row */;
    uint8_t varies, plain_varies; /* entropy coded: a delta; a body without a reference */
};

/* One sample. encode: a, m, key in; body, hat, m_out out. decode: body, m in; hat, m_out out. NULL as in codec.h. */
struct aq_cuda_codec_job {
    const float *a;
    const void *m;
    void *body;
    float *hat;
    void *m_out;
    struct aq_rng_key key;
    uint32_t index; /* of its result */
    uint32_t plain; /* without a reference */
    uint32_t body_bytes; /* decode */
};

/* Device memory of one codec, cut by aq_cuda_codec_place. */
struct aq_cuda_codec_scratch {
    uint32_t jobs;        /* samples of one launch */
    uint32_t warps;       /* rows on their way in the general kernels */
    uint64_t warp_bytes;  /* scratch of each */
    uint8_t *rows;        /* warps * warp_bytes */
    uint32_t *status;     /* jobs, zero between launches */
    float *sums;          /* jobs * T * 4: a, a2, delta2, error2 of each row */
    double *stored;       /* jobs * T: |a - m'|^2 of each measured row, where m' is rounded (aq_codec_rounds_store) */
    float *quants;        /* jobs * groups_row * 2: unit and inverse, tensor and channel */
    float *spans;         /* jobs * max(T, pieces) * groups * 3: peak, sum_abs, sum_square */
    float *errors;        /* jobs * pieces * 8 * 32 (tensor) or C (channel): the candidates of SEARCH */
    uint8_t *codes;       /* jobs * N: codes that wait for their neighbours' row */
    float *messages;      /* jobs * N: m, and m' where hat is not wanted, of messages in Q */
    uint32_t *positions;  /* jobs * words of the positions' bitmap */
    uint32_t *elements;   /* jobs * K: the kept ones */
    uint32_t *row_start;  /* jobs * (T + 1): kept before each row */
    uint32_t *ties;       /* jobs * (T + 1): values of exactly the threshold before each row */
    float *deltas;        /* jobs * N: rotated d, channel groups with hadamard only */
    uint32_t *chunks;     /* jobs * (chunks + 1): ones before each chunk of a bitmap that is read */
    uint32_t *histogram;  /* jobs * AQ_CUDA_CODEC_HISTOGRAM */
    uint64_t *select;     /* jobs * 2: prefix, still wanted */
    uint8_t *wholes;      /* entropy coded: jobs * (AQ_CUDA_CODEC_EC_BYTES, and a row) */
    uint8_t *cells;       /* jobs * N */
    int *beyond;          /* jobs * (N + chunks): q beyond the table, one spare after each chunk; then escapes' bytes */
    uint8_t *staged;      /* jobs * (N + AQ_CUDA_CODEC_EC_STAGE * chunks): words */
    uint32_t *chunk_states, *chunk_sizes; /* jobs * chunks * 32; * 2: bytes of words and escapes, or where cells are */
    uint32_t *lengths;    /* jobs: of bodies */
};

#ifdef __CUDACC__
#define AQ_CODEC_ANYWHERE static __host__ __device__ inline
#else
#define AQ_CODEC_ANYWHERE static inline
#endif

/* Of a sample that is raw, by the bits of its largest magnitude and aq_codec_raw_limit. x^ may be larger than a by half
 * a step: a sixteenth below the limit counts as beyond it. */
AQ_CODEC_ANYWHERE uint32_t aq_codec_raw_reason(uint32_t peak, uint32_t limit)
{
    if (peak >= 0x7f800000u) return AQ_RAW_NOT_FINITE;
    return limit < 0x7f800000u && peak + 0x100000u >= limit ? AQ_RAW_STORE : AQ_RAW_SCALE;
}

/*
 * The rows of which a part of a sample's live measures is taken: all of a short sample; else the first eight, which
 * count only for themselves, because the first tokens of a text are not like the others (the very first has by far the
 * largest activation in many models), and one in eight later ones, which counts for its neighbours, too.
 */
enum { AQ_MEASURE_ROWS_MIN = 64, AQ_MEASURE_EACH = 8 };

AQ_CODEC_ANYWHERE bool aq_codec_is_measured(uint32_t rows, uint32_t row)
{
    return rows < AQ_MEASURE_ROWS_MIN || row < AQ_MEASURE_EACH || row % AQ_MEASURE_EACH == AQ_MEASURE_EACH / 2;
}

AQ_CODEC_ANYWHERE uint32_t aq_codec_measured_rows(uint32_t rows)
{
    if (rows < AQ_MEASURE_ROWS_MIN) return rows;
    return AQ_MEASURE_EACH + (rows - AQ_MEASURE_EACH + AQ_MEASURE_EACH / 2 - 1) / AQ_MEASURE_EACH;
}

/* Number `index` of them. */
AQ_CODEC_ANYWHERE uint32_t aq_codec_measured_row(uint32_t rows, uint32_t index)
{
    if (rows < AQ_MEASURE_ROWS_MIN || index < AQ_MEASURE_EACH) return index;
    return AQ_MEASURE_EACH * (index - AQ_MEASURE_EACH + 1) + AQ_MEASURE_EACH / 2;
}

/* How many rows each of them counts for after the first eight. */
AQ_CODEC_ANYWHERE double aq_codec_measured_weight(uint32_t rows)
{
    if (rows < AQ_MEASURE_ROWS_MIN) return 1.0;
    return (double)(rows - AQ_MEASURE_EACH) / (double)(aq_codec_measured_rows(rows) - AQ_MEASURE_EACH);
}

/* Is the rounding of stored messages a second error, which is measured? That of fp16 is 2^-12 of a value: left out. */
AQ_CODEC_ANYWHERE bool aq_codec_rounds_store(const struct aq_cuda_codec_plan *plan)
{
    return plan->warm != 0 && (plan->packed != 0 || plan->store == AQ_PRECISION_BF16);
}

/* The memory of a codec at base; NULL only measures. Returns the bytes. The memory must be zero at the first launch. */
size_t aq_cuda_codec_place(const struct aq_cuda_codec_plan *plan, uint8_t *base, struct aq_cuda_codec_scratch *out);

/*
 * Enqueue on `stream` (a cudaStream_t) the coding of `count` samples. results: by the jobs' index, in memory that the
 * device can write: device memory, or pinned host memory, which makes it the read-back; read them when the stream has
 * passed. AQ_CUDAERR: a launch failed.
 */
enum aq_status aq_cuda_codec_encode(const struct aq_cuda_codec_plan *plan, const struct aq_cuda_codec_scratch *scratch,
                                    const struct aq_cuda_codec_job *jobs, uint32_t count,
                                    struct aq_codec_result *results, void *stream);

/*
 * The other end. The bodies' lengths and flags have been checked by the caller; AQ_CODED_RAW ones are not for this.
 * corrupt: by the jobs' index, 0 or 1, in such memory as `results`.
 */
enum aq_status aq_cuda_codec_decode(const struct aq_cuda_codec_plan *plan, const struct aq_cuda_codec_scratch *scratch,
                                    const struct aq_cuda_codec_job *jobs, uint32_t count, uint32_t *corrupt,
                                    void *stream);

#ifdef __cplusplus
}
#endif
#endif
