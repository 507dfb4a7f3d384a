/*
 * cpu_magnitude.c -- rows with a learnt length (struct aq_magnitude), a piece of rows after the other. Sums go in LANES
 * partial ones in order of columns, which are added in order: the same bits for any number of threads.
 */
#include <math.h>

#include "cpu_device.h"

enum { ROWS = 16, LANES = 8 };

struct magnitude {
    uint64_t rows, C;
    const void *w;
    enum aq_element w_type;
    bool w_transposed;
    float *d;
    const float *m;
    const struct aq_magnitude *forward; /* or NULL: */
    const struct aq_magnitude_backward *backward;
};

static double dot(const float *a, const float *b, uint64_t C)
{
    double lanes[LANES] = {0}, sum = 0;
    uint64_t c = 0;
    for (; c + LANES <= C; c += LANES)
        for (int i = 0; i < LANES; i++)
            lanes[i] += (double)a[c + i] * (double)b[c + i];
    for (; c < C; c++)
        lanes[0] += (double)a[c] * (double)b[c];
    for (int i = 0; i < LANES; i++)
        sum += lanes[i];
    return sum;
}

/* d += w, of these rows; of a turned w, whose columns they are, side by side. */
static void add(const struct magnitude *own, uint64_t first, uint64_t end)
{
    const uint64_t C = own->C;
    for (uint64_t r = first; !own->w_transposed && r < end; r++)
        for (uint64_t c = 0; c < C; c++)
            own->d[r * C + c] += cpu_load(own->w, own->w_type, r * C + c);
    for (uint64_t c = 0; own->w_transposed && c < C; c++)
        for (uint64_t r = first; r < end; r++)
            own->d[r * C + c] += cpu_load(own->w, own->w_type, c * own->rows + r);
}

static void piece_of(uint64_t piece, uint32_t worker, void *context)
{
    (void)worker;
    const struct magnitude *own = context;
    const uint64_t C = own->C, first = piece * ROWS, end = end_of(piece, own->rows, ROWS);
    add(own, first, end);
    for (uint64_t r = first; r < end; r++) {
        const float *v = own->d + r * C;
        const float n = (float)sqrt(dot(v, v, C)), factor = n > 0 ? own->m[r] / n : 0;
        for (uint64_t c = 0; own->forward && c < C; c++)
            cpu_store(own->forward->y, own->forward->y_type, r * C + c, factor * v[c]);
        if (own->forward) continue;
        float *g = own->backward->g + r * C;
        const double along = dot(g, v, C);
        if (n > 0) own->backward->dm[r] += (float)(along / (double)n);
        for (uint64_t c = 0; c < C; c++)
            g[c] *= own->backward->scale * factor;
    }
}

enum aq_status cpu_magnitude(struct aq_device *device, const struct aq_magnitude *args, struct aq_stream *stream)
{
    (void)stream;
    struct magnitude own = {.rows = args->rows,
                            .C = args->C,
                            .w = args->w,
                            .w_type = args->w_type,
                            .w_transposed = args->w_transposed,
                            .d = args->d,
                            .m = args->m,
                            .forward = args};
    cpu_pool_run(cpu_device_of(device)->pool, pieces_of(args->rows, ROWS), piece_of, &own);
    return AQ_OK;
}

enum aq_status cpu_magnitude_backward(struct aq_device *device, const struct aq_magnitude_backward *args,
                                      struct aq_stream *stream)
{
    (void)stream;
    struct magnitude own = {.rows = args->rows,
                            .C = args->C,
                            .w = args->w,
                            .w_type = args->w_type,
                            .w_transposed = args->w_transposed,
                            .d = args->d,
                            .m = args->m,
                            .backward = args};
    cpu_pool_run(cpu_device_of(device)->pool, pieces_of(args->rows, ROWS), piece_of, &own);
    return AQ_OK;
}
