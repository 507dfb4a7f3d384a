/*
 * cpu_winograd.inc.h -- the transforms and products of cpu_winograd.h in vectors; included by the files that are
 * compiled for AVX2 and AVX-512, which define how many rows of sums stay in registers: PATCH_ROWS of products,
 * INPUT_ROWS of sums over patches.
 *
 * A vector holds one place of a patch for LANES channels.
 */
#include "cpu_vector.h"
#include "cpu_winograd.h"

#define ALWAYS static inline __attribute__((always_inline))

enum { SIDE = 4, TAPS = 3 };

ALWAYS vf get(const float *x)
{
    return v_load(x, LANES);
}

ALWAYS void put(float *x, vf value)
{
    v_store(x, value, LANES);
}

/* --- transforms of a column or a row ------------------------------------------------------------------------------ */

/* B' d */
ALWAYS void input_line(vf d0, vf d1, vf d2, vf d3, vf out[SIDE])
{
    out[0] = v_sub(d0, d2);
    out[1] = v_add(d1, d2);
    out[2] = v_sub(d2, d1);
    out[3] = v_sub(d1, d3);
}

/* A d */
ALWAYS void gradient_line(vf d0, vf d1, vf out[SIDE])
{
    out[0] = d0;
    out[1] = v_add(d0, d1);
    out[2] = v_sub(d0, d1);
    out[3] = v_sub(v_set(0.0f), d1);
}

/* A' m */
ALWAYS void output_line(vf m0, vf m1, vf m2, vf m3, vf out[2])
{
    out[0] = v_add(v_add(m0, m1), m2);
    out[1] = v_sub(v_sub(m1, m2), m3);
}

/* G g */
ALWAYS void filter_line(vf g0, vf g1, vf g2, vf out[SIDE])
{
    const vf half = v_set(0.5f), ends = v_add(g0, g2);
    out[0] = g0;
    out[1] = v_mul(half, v_add(ends, g1));
    out[2] = v_mul(half, v_sub(ends, g1));
    out[3] = g2;
}

/* G' s */
ALWAYS void filter_gradient_line(vf s0, vf s1, vf s2, vf s3, vf out[TAPS])
{
    const vf half = v_set(0.5f), both = v_mul(half, v_add(s1, s2));
    out[0] = v_add(s0, both);
    out[1] = v_mul(half, v_sub(s1, s2));
    out[2] = v_add(both, s3);
}

/* --- images ------------------------------------------------------------------------------------------------------- */

/* The place of a patch: its image's first pixel, and its row and column. */
struct patch {
    uint64_t image, row, column; /* in patches */
};

static struct patch patch_of(const struct cpu_patches *at, uint64_t index)
{
    const uint64_t across = at->width / 2, down = at->height / 2;
    return (struct patch){index / (across * down), index / across % down, index % across};
}

/* The patches of a line from `index` on, none beyond the end. */
static uint64_t patches_in_line(const struct cpu_patches *at, const struct patch *patch, uint64_t index)
{
    const uint64_t line = at->width / 2 - patch->column, left = at->first + at->count - index;
    return line < left ? line : left;
}

/* The four rows of pixels that a line of patches reads, from the pixel left of the image on; NULL: zeroes. */
struct pixel_rows {
    const float *row[SIDE];
    uint64_t width, C;
};

ALWAYS void input_column(const struct pixel_rows *rows, int64_t column, uint64_t channel, vf out[SIDE])
{
    const bool inside = column >= 0 && (uint64_t)column < rows->width;
    vf d[SIDE];
    _Pragma("GCC unroll 4") for (int i = 0; i < SIDE; i++) d[i] =
        inside && rows->row[i] ? get(rows->row[i] + (uint64_t)column * rows->C + channel) : v_set(0.0f);
    input_line(d[0], d[1], d[2], d[3], out);
}

/* Patches of one line for one block of channels: a column of pixels is transformed once for the two that read it. */
static void input_of_line(const struct pixel_rows *rows, uint64_t column, uint64_t count, uint64_t channel,
                          uint64_t plane, float *planes)
{
    vf e[SIDE][SIDE], f[SIDE]; /* e: by column */
    int64_t from = 2 * (int64_t)column - 1;
    input_column(rows, from, channel, e[0]);
    input_column(rows, from + 1, channel, e[1]);
    for (uint64_t p = 0; p < count; p++, from += 2, planes += LANES) {
        input_column(rows, from + 2, channel, e[2]);
        input_column(rows, from + 3, channel, e[3]);
        _Pragma("GCC unroll 4") for (uint64_t i = 0; i < SIDE; i++)
        {
            input_line(e[0][i], e[1][i], e[2][i], e[3][i], f);
            _Pragma("GCC unroll 4") for (uint64_t j = 0; j < SIDE; j++) put(planes + (i * SIDE + j) * plane, f[j]);
        }
        _Pragma("GCC unroll 4") for (int i = 0; i < SIDE; i++)
        {
            e[0][i] = e[2][i];
            e[1][i] = e[3][i];
        }
    }
}

static void input(const struct cpu_patches *at, const float *x, float *planes)
{
    for (uint64_t index = at->first, count; index < at->first + at->count; index += count) {
        const struct patch patch = patch_of(at, index);
        const float *image = x + patch.image * at->height * at->width * at->C;
        struct pixel_rows rows = {.width = at->width, .C = at->C};
        count = patches_in_line(at, &patch, index);
        for (uint64_t i = 0; i < SIDE; i++) {
            const uint64_t row = 2 * patch.row + i; /* of the image, and one */
            rows.row[i] = row == 0 || row > at->height ? NULL : image + (row - 1) * at->width * at->C;
        }
        for (uint64_t b = 0; b < at->channels / LANES; b++)
            input_of_line(&rows, patch.column, count, at->channel + b * LANES, at->plane,
                          planes + b * at->block + (index - at->first) * LANES);
    }
}

static void gradient(const struct cpu_patches *at, const float *dy, float *planes)
{
    const uint64_t line = at->width * at->C;
    for (uint64_t index = at->first; index < at->first + at->count; index++) {
        const struct patch patch = patch_of(at, index);
        const float *pixels = dy + (patch.image * at->height + 2 * patch.row) * line + 2 * patch.column * at->C;
        for (uint64_t b = 0; b < at->channels / LANES; b++) {
            const float *from = pixels + at->channel + b * LANES;
            float *to = planes + b * at->block + (index - at->first) * LANES;
            vf left[SIDE], right[SIDE], f[SIDE];
            gradient_line(get(from), get(from + line), left);
            gradient_line(get(from + at->C), get(from + line + at->C), right);
            _Pragma("GCC unroll 4") for (uint64_t i = 0; i < SIDE; i++)
            {
                gradient_line(left[i], right[i], f);
                _Pragma("GCC unroll 4") for (uint64_t j = 0; j < SIDE; j++) put(to + (i * SIDE + j) * at->plane, f[j]);
            }
        }
    }
}

static void output(const struct cpu_patches *at, const float *planes, float *y)
{
    const uint64_t line = at->width * at->C, plane = at->plane;
    for (uint64_t index = at->first; index < at->first + at->count; index++) {
        const struct patch patch = patch_of(at, index);
        float *pixels = y + (patch.image * at->height + 2 * patch.row) * line + 2 * patch.column * at->C;
        for (uint64_t b = 0; b < at->channels / LANES; b++) {
            const float *from = planes + b * at->block + (index - at->first) * LANES;
            float *to = pixels + at->channel + b * LANES;
            vf e[SIDE][2], f[2];
            _Pragma("GCC unroll 4") for (uint64_t j = 0; j < SIDE; j++)
                output_line(get(from + j * plane), get(from + (SIDE + j) * plane), get(from + (2 * SIDE + j) * plane),
                            get(from + (3 * SIDE + j) * plane), e[j]);
            _Pragma("GCC unroll 2") for (uint64_t i = 0; i < 2; i++)
            {
                output_line(e[0][i], e[1][i], e[2][i], e[3][i], f);
                put(to + i * line, f[0]);
                put(to + i * line + at->C, f[1]);
            }
        }
    }
}

/* --- weights ------------------------------------------------------------------------------------------------------ */

/* 9 taps of LANES filters. A filter that is turned by half a circle has the same places, in another order. */
ALWAYS void filter_places(const vf g[TAPS * TAPS], bool transposed, uint64_t plane, float *to)
{
    static const uint64_t turn[SIDE] = {3, 1, 2, 0};
    vf e[TAPS][SIDE], f[SIDE];
    _Pragma("GCC unroll 3") for (int v = 0; v < TAPS; v++) filter_line(g[v], g[TAPS + v], g[2 * TAPS + v], e[v]);
    _Pragma("GCC unroll 4") for (uint64_t i = 0; i < SIDE; i++)
    {
        filter_line(e[0][i], e[1][i], e[2][i], f);
        _Pragma("GCC unroll 4") for (uint64_t j = 0; j < SIDE; j++)
            put(to + (transposed ? turn[i] * SIDE + turn[j] : i * SIDE + j) * plane, f[j]);
    }
}

static void filter(const float *w, uint64_t C, uint64_t N, uint64_t block, bool transposed, float *planes)
{
    enum { ALL = TAPS * TAPS };
    vf rows[ALL][LANES], g[ALL];
    for (uint64_t n = 0; n < N; n += LANES) {
        for (uint64_t tap = 0; tap < ALL; tap++) {
            const float *from = w + (tap * C + block * LANES) * N + n;
            _Pragma("GCC unroll 16") for (uint64_t i = 0; i < LANES; i++) rows[tap][i] = get(from + i * N);
            if (transposed) v_transpose(rows[tap]);
        }
        /* [block of outputs][input][lane]; turned: inputs are the N, outputs the C */
        float *to = planes + (transposed ? (block * N + n) * LANES : n * C + block * LANES * LANES);
        for (uint64_t i = 0; i < LANES; i++) {
            for (uint64_t tap = 0; tap < ALL; tap++)
                g[tap] = rows[tap][i];
            filter_places(g, transposed, C * N, to + i * LANES);
        }
    }
}

static void filter_gradient(const float *sums, uint64_t plane, uint64_t C, uint64_t N, float *dw)
{
    for (uint64_t n = 0; n < N; n += LANES) {
        vf e[SIDE][TAPS], f[TAPS];
        const float *from = sums + n;
        _Pragma("GCC unroll 4") for (uint64_t j = 0; j < SIDE; j++)
            filter_gradient_line(get(from + j * plane), get(from + (SIDE + j) * plane),
                                 get(from + (2 * SIDE + j) * plane), get(from + (3 * SIDE + j) * plane), e[j]);
        _Pragma("GCC unroll 3") for (uint64_t u = 0; u < TAPS; u++)
        {
            filter_gradient_line(e[0][u], e[1][u], e[2][u], e[3][u], f);
            _Pragma("GCC unroll 3") for (uint64_t v = 0; v < TAPS; v++)
            {
                float *to = dw + (u * TAPS + v) * C * N + n;
                put(to, v_add(get(to), f[v]));
            }
        }
    }
}

/* --- products ----------------------------------------------------------------------------------------------------- */

/* Rows of one block of patches for the inputs of `blocks` blocks: to = that, or += . */
ALWAYS void product_rows(const float *x, uint64_t x_block, uint64_t blocks, const float *w, uint64_t w_block, float *to,
                         uint64_t to_block, bool add, const uint64_t rows)
{
    vf sums[PATCH_ROWS][WINOGRAD_BLOCKS], y[WINOGRAD_BLOCKS];
    _Pragma("GCC unroll 12") for (uint64_t r = 0; r < rows; r++)
        _Pragma("GCC unroll 2") for (uint64_t j = 0; j < WINOGRAD_BLOCKS; j++) sums[r][j] =
            add ? get(to + j * to_block + r * LANES) : v_set(0.0f);
    for (uint64_t b = 0; b < blocks; b++, x += x_block)
        for (uint64_t k = 0; k < LANES; k++, w += LANES) {
            _Pragma("GCC unroll 2") for (uint64_t j = 0; j < WINOGRAD_BLOCKS; j++) y[j] = get(w + j * w_block);
            _Pragma("GCC unroll 12") for (uint64_t r = 0; r < rows; r++)
            {
                const vf each = v_set(x[r * LANES + k]);
                _Pragma("GCC unroll 2") for (uint64_t j = 0; j < WINOGRAD_BLOCKS; j++) sums[r][j] =
                    v_fma(each, y[j], sums[r][j]);
            }
        }
    _Pragma("GCC unroll 12") for (uint64_t r = 0; r < rows; r++)
        _Pragma("GCC unroll 2") for (uint64_t j = 0; j < WINOGRAD_BLOCKS; j++)
            put(to + j * to_block + r * LANES, sums[r][j]);
}

/* Inputs in chunks, so that w's stay in the first-level cache for all patches. */
static void product(const float *x, uint64_t x_block, uint64_t blocks, uint64_t patches, const float *w,
                    uint64_t w_block, float *to, uint64_t to_block)
{
    enum { FEW = 4, CHUNK = 128 / LANES };
    for (uint64_t b = 0; b < blocks; b += CHUNK) {
        const uint64_t some = blocks - b < CHUNK ? blocks - b : CHUNK;
        const float *from = x + b * x_block, *by = w + b * LANES * LANES;
        uint64_t p = 0;
        for (; p + PATCH_ROWS <= patches; p += PATCH_ROWS)
            product_rows(from + p * LANES, x_block, some, by, w_block, to + p * LANES, to_block, b > 0, PATCH_ROWS);
        for (; p + FEW <= patches; p += FEW)
            product_rows(from + p * LANES, x_block, some, by, w_block, to + p * LANES, to_block, b > 0, FEW);
        for (; p < patches; p++)
            product_rows(from + p * LANES, x_block, some, by, w_block, to + p * LANES, to_block, b > 0, 1);
    }
}

ALWAYS void sums_rows(const float *x, uint64_t patches, const float *dy, uint64_t dy_block, float *to, uint64_t N,
                      bool add)
{
    vf all[INPUT_ROWS][WINOGRAD_BLOCKS], y[WINOGRAD_BLOCKS];
    _Pragma("GCC unroll 8") for (uint64_t r = 0; r < INPUT_ROWS; r++)
        _Pragma("GCC unroll 2") for (uint64_t j = 0; j < WINOGRAD_BLOCKS; j++) all[r][j] = v_set(0.0f);
    for (uint64_t p = 0; p < patches; p++, x += LANES, dy += LANES) {
        _Pragma("GCC unroll 2") for (uint64_t j = 0; j < WINOGRAD_BLOCKS; j++) y[j] = get(dy + j * dy_block);
        _Pragma("GCC unroll 8") for (int r = 0; r < INPUT_ROWS; r++)
        {
            const vf each = v_set(x[r]);
            _Pragma("GCC unroll 2") for (int j = 0; j < WINOGRAD_BLOCKS; j++) all[r][j] = v_fma(each, y[j], all[r][j]);
        }
    }
    _Pragma("GCC unroll 8") for (uint64_t r = 0; r < INPUT_ROWS; r++)
        _Pragma("GCC unroll 2") for (uint64_t j = 0; j < WINOGRAD_BLOCKS; j++)
    {
        float *at = to + r * N + j * LANES;
        put(at, add ? v_add(get(at), all[r][j]) : all[r][j]);
    }
}

static void sums(const float *x, uint64_t x_block, uint64_t blocks, uint64_t patches, const float *dy,
                 uint64_t dy_block, float *to, uint64_t N, bool add)
{
    for (uint64_t b = 0; b < blocks; b++, x += x_block)
        for (uint64_t c = 0; c < LANES; c += INPUT_ROWS, to += INPUT_ROWS * N)
            sums_rows(x + c, patches, dy, dy_block, to, N, add);
}

#define CPU_WINOGRAD_TABLE                                                                                             \
    {                                                                                                                  \
        .lanes = LANES, .input = input, .gradient = gradient, .output = output, .filter = filter,                      \
        .filter_gradient = filter_gradient, .product = product, .sums = sums                                           \
    }
