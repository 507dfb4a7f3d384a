/*
 * cpu_columns.inc.h -- batch and group normalization of one row, a column at a time; included by cpu_rows_plain.c and,
 * for vectors, by cpu_rows_vector.inc.h.
 *
 * The one source is plain C: columns do not meet, so a compiler's vectors of them give the bits of the plain loop
 * (nothing here is contracted). Conditions that are constant during a call are decided outside of the loops, or the
 * compiler vectorizes none of them. Arrays may be each other only element by element (aq_batch_norm), never shifted.
 */
enum { COLUMNS_CHUNK = 512 };

#if defined(__GNUC__) && !defined(__clang__)
#define COLUMNS_APART _Pragma("GCC ivdep")
#else
#define COLUMNS_APART
#endif

static void columns_sum(const float *x, uint64_t n, double *sum)
{
    COLUMNS_APART
    for (uint64_t c = 0; c < n; c++)
        sum[c] += x[c];
}

static void columns_spread(const float *x, const float *mean, uint64_t n, double *sum)
{
    COLUMNS_APART
    for (uint64_t c = 0; c < n; c++) {
        const double apart = (double)x[c] - mean[c];
        sum[c] += apart * apart;
    }
}

/* The result before the ReLU. */
static inline float column_z(const struct cpu_columns *of, const float *x, const float *add, bool adds, uint64_t c)
{
    const float z = (x[c] - of->mean[c]) * of->rstd[c] * of->gamma[c] + of->beta[c];
    return adds ? z + add[c] : z;
}

static inline void norm_loop(const struct cpu_columns *of, const float *x, const float *add, bool adds, bool relu,
                             float *y)
{
    COLUMNS_APART
    for (uint64_t c = 0; c < of->n; c++) {
        const float z = column_z(of, x, add, adds, c);
        y[c] = relu && z < 0.0f ? 0.0f : z;
    }
}

static void columns_norm(const struct cpu_columns *of, const float *x, const float *add, float *y)
{
    if (add && of->relu)
        norm_loop(of, x, add, true, true, y);
    else if (add)
        norm_loop(of, x, add, true, false, y);
    else
        norm_loop(of, x, add, false, of->relu, y);
}

/* dy, or 0 where the ReLU was off. It is read either way: a read under a condition keeps a loop from vectors. */
static inline float column_dy(const struct cpu_columns *of, const float *x, const float *add, const float *dy,
                              bool adds, bool relu, uint64_t c)
{
    const float all = dy[c];
    return relu && !(column_z(of, x, add, adds, c) > 0.0f) ? 0.0f : all;
}

/* In two loops: of one the compiler makes a branch around the sums of a zero, and no vectors. */
static inline void back_sums_loop(const struct cpu_columns *of, const float *x, const float *add, const float *dy,
                                  bool adds, bool relu, double *first, double *second)
{
    float kept[COLUMNS_CHUNK];
    for (uint64_t from = 0; from < of->n; from += COLUMNS_CHUNK) {
        const uint64_t count = of->n - from < COLUMNS_CHUNK ? of->n - from : COLUMNS_CHUNK;
        COLUMNS_APART
        for (uint64_t i = 0; i < count; i++)
            kept[i] = column_dy(of, x, add, dy, adds, relu, from + i);
        COLUMNS_APART
        for (uint64_t i = 0; i < count; i++) {
            const uint64_t c = from + i;
            first[c] += kept[i];
            second[c] += (double)kept[i] * ((x[c] - of->mean[c]) * of->rstd[c]);
        }
    }
}

static void columns_back_sums(const struct cpu_columns *of, const float *x, const float *add, const float *dy,
                              double *first, double *second)
{
    if (of->relu && add)
        back_sums_loop(of, x, add, dy, true, true, first, second);
    else if (of->relu)
        back_sums_loop(of, x, add, dy, false, true, first, second);
    else
        back_sums_loop(of, x, add, dy, false, false, first, second);
}

static inline void back_loop(const struct cpu_columns *of, const float *x, const float *add, const float *dy, bool adds,
                             bool relu, bool leaves, float *dx, float *dz)
{
    COLUMNS_APART
    for (uint64_t c = 0; c < of->n; c++) {
        const float h = (x[c] - of->mean[c]) * of->rstd[c];
        const float kept = column_dy(of, x, add, dy, adds, relu, c);
        dx[c] = of->gamma[c] * of->rstd[c] * (kept - of->mean_dy[c] - h * of->mean_dyh[c]);
        if (leaves) dz[c] = kept;
    }
}

static void columns_back(const struct cpu_columns *of, const float *x, const float *add, const float *dy, float *dx,
                         float *dz)
{
    if (of->relu && add && dz)
        back_loop(of, x, add, dy, true, true, true, dx, dz);
    else if (of->relu && !add && !dz)
        back_loop(of, x, add, dy, false, true, false, dx, dz);
    else if (!of->relu && !dz)
        back_loop(of, x, add, dy, false, false, false, dx, dz);
    else
        back_loop(of, x, add, dy, add != NULL, of->relu, dz != NULL, dx, dz);
}

/* Of a group norm, whose means are of dy gamma. dz NULL: nothing is left. */
static inline void back_grouped_loop(const struct cpu_columns *of, const float *x, const float *add, const float *dy,
                                     bool adds, bool relu, bool leaves, float *dx, float *dz)
{
    COLUMNS_APART
    for (uint64_t c = 0; c < of->n; c++) {
        const float h = (x[c] - of->mean[c]) * of->rstd[c];
        const float kept = column_dy(of, x, add, dy, adds, relu, c);
        dx[c] = of->rstd[c] * (of->gamma[c] * kept - of->mean_dy[c] - h * of->mean_dyh[c]);
        if (leaves) dz[c] = kept;
    }
}

static void columns_back_grouped(const struct cpu_columns *of, const float *x, const float *add, const float *dy,
                                 float *dx, float *dz)
{
    if (of->relu && add && dz)
        back_grouped_loop(of, x, add, dy, true, true, true, dx, dz);
    else if (of->relu && !add && !dz)
        back_grouped_loop(of, x, add, dy, false, true, false, dx, dz);
    else if (!of->relu && !dz)
        back_grouped_loop(of, x, add, dy, false, false, false, dx, dz);
    else
        back_grouped_loop(of, x, add, dy, add != NULL, of->relu, dz != NULL, dx, dz);
}
