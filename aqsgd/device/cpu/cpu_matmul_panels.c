/*
 * cpu_matmul_panels.c -- a matrix product from packed panels, cut into pieces for the pool.
 *
 * The operand on the shorter side of c is "common": packed once, by all threads, into the shared scratch, for as much
 * of k as fits. Then c is cut along its longer side; a piece packs its own lanes of the other operand into its thread's
 * scratch, and runs over all common panels. So each operand is packed once, whatever the number of threads:
 *
 *     for each range of common lanes, for each span of k:   pool: pack common     pool: pieces
 *     piece:  for each chunk of k:   pack own lanes;   for each common panel, for each own panel:   tile
 *
 * Sums are added up in c, chunk after chunk; the last chunk does the epilogue. A c of 16 bits cannot hold sums: a piece
 * then packs its own lanes for all of k first, and each tile's chunks are summed in a buffer.
 */
#include "cpu_gemm_panels.h"
#include "cpu_matmul.h"

enum {
    SHARED_UNITS = CPU_SHARED_BYTES / 4,
    COMMON_LANES = 4032, /* a multiple of all panels; 512 units of k of them fit the shared scratch */
    OWN_UNITS = CPU_GEMM_FLOATS - 64 * 1024, /* a piece's own lanes */
    PACK_LANES = 96, /* common lanes of a packing piece: a multiple of all panels */
};

struct plan {
    const struct cpu_product *product;
    const struct cpu_panels *panels;
    bool common_rows; /* the common operand is a */
    bool whole_k;     /* own lanes are packed for all of k, tiles are summed in a buffer */
    uint64_t chunk;   /* values of k */
    uint64_t own_lanes;
    /* of this round */
    uint64_t lane, lanes; /* common */
    uint64_t k, span;
};

static uint64_t units_of(const struct plan *plan, uint64_t depth)
{
    return (depth + plan->panels->unit - 1) / plan->panels->unit;
}

static uint64_t common_panel(const struct plan *plan)
{
    return plan->common_rows ? plan->panels->rows : PANEL_COLUMNS;
}

static uint64_t own_panel(const struct plan *plan)
{
    return plan->common_rows ? PANEL_COLUMNS : plan->panels->rows;
}

/*
 * Lanes of an operand for a range of k, packed one chunk after another; chunk i's panels start at i * chunk units *
 * padded.
 */
static void pack_lanes(const struct plan *plan, bool rows, uint64_t first, uint64_t lanes, uint64_t k, uint64_t depth,
                       uint32_t *out)
{
    const struct cpu_product *product = plan->product;
    if (rows)
        plan->panels->pack_rows(&product->a, first, lanes, k, depth, out);
    else
        plan->panels->pack_columns(&product->b, first, lanes, k, depth, out);
}

static void pack_piece(uint64_t piece, uint32_t worker, void *context)
{
    (void)worker;
    const struct plan *plan = context;
    const uint64_t padded = panel_up(plan->lanes, common_panel(plan)), first = piece * PACK_LANES;
    const uint64_t lanes = panel_least(plan->lanes - first, PACK_LANES);
    uint32_t *shared = (uint32_t *)(void *)cpu_shared(plan->product->cpu);
    for (uint64_t k = 0; k < plan->span; k += plan->chunk) {
        const uint64_t depth = panel_least(plan->span - k, plan->chunk);
        uint32_t *out = shared + units_of(plan, k) * padded + first * units_of(plan, depth);
        pack_lanes(plan, plan->common_rows, plan->lane + first, lanes, plan->k + k, depth, out);
    }
}

/* The place of a tile in c. */
struct tile {
    uint64_t m, n, rows, columns;
};

static struct tile tile_of(const struct plan *plan, uint64_t common, uint64_t own)
{
    const struct aq_matmul *args = plan->product->args;
    const uint64_t m = plan->common_rows ? common : own, n = plan->common_rows ? own : common;
    return (struct tile){.m = m,
                         .n = n,
                         .rows = panel_least(args->M - m, plan->panels->rows),
                         .columns = panel_least(args->N - n, PANEL_COLUMNS)};
}

/* The kernel takes microseconds, memory a tenth of one: ask for what the end of a tile will read before it starts. */
static void prefetch(const void *x, enum aq_element type, uint64_t stride, const struct tile *at)
{
    enum { LINE = 64 };
    for (uint64_t r = 0; r < at->rows; r++) {
        const uint8_t *row = cpu_at(x, type, (at->m + r) * stride + at->n);
        for (uint64_t i = 0; i < at->columns * aq_element_bytes(type); i += LINE) __builtin_prefetch(row + i, 1);
        __builtin_prefetch(row + at->columns * aq_element_bytes(type) - 1, 1);
    }
}

/* All tiles of a piece for one chunk of k, summed in c. */
static void chunk_in_place(const struct plan *plan, uint64_t own_first, uint64_t own_lanes, uint64_t k,
                           const uint32_t *own)
{
    const struct aq_matmul *args = plan->product->args;
    const uint64_t depth = panel_least(plan->span - k, plan->chunk), units = units_of(plan, depth);
    const uint32_t *shared = (const uint32_t *)(const void *)cpu_shared(plan->product->cpu) +
                             units_of(plan, k) * panel_up(plan->lanes, common_panel(plan));
    const bool add = args->accumulate || plan->k + k > 0;
    const bool last = plan->k + k + depth == args->K && !cpu_product_is_sums(args);
    float *c = args->c;
    for (uint64_t i = 0; i < plan->lanes; i += common_panel(plan)) {
        for (uint64_t j = 0; j < own_lanes; j += own_panel(plan)) {
            const struct tile at = tile_of(plan, plan->lane + i, own_first + j);
            const uint32_t *a = plan->common_rows ? shared + i * units : own + j * units;
            const uint32_t *b = plan->common_rows ? own + j * units : shared + i * units;
            float *sums = c + at.m * args->c_stride + at.n;
            if (add) prefetch(c, AQ_F32, args->c_stride, &at);
            if (last && args->other) prefetch(args->other, AQ_F32, args->c_stride, &at);
            plan->panels->tile(units, a, b, sums, args->c_stride, at.rows, at.columns, add);
            if (last) cpu_product_finish(plan->product, at.m, at.rows, at.n, at.columns, sums, args->c_stride);
        }
    }
}

/* All tiles of a piece for all of k, each summed in a buffer; own holds all chunks. */
static void tiles_of_whole_k(const struct plan *plan, uint64_t own_first, uint64_t own_lanes, const uint32_t *own)
{
    const uint64_t K = plan->product->args->K;
    const uint64_t common_padded = panel_up(plan->lanes, common_panel(plan));
    const uint64_t own_padded = panel_up(own_lanes, own_panel(plan));
    const uint32_t *shared = (const uint32_t *)(const void *)cpu_shared(plan->product->cpu);
    float sums[PANEL_ROWS_MAX * PANEL_COLUMNS] __attribute__((aligned(64)));
    const struct aq_matmul *args = plan->product->args;
    for (uint64_t i = 0; i < plan->lanes; i += common_panel(plan)) {
        for (uint64_t j = 0; j < own_lanes; j += own_panel(plan)) {
            const struct tile at = tile_of(plan, plan->lane + i, own_first + j);
            prefetch(args->c, args->c_type, args->c_stride, &at);
            if (args->other) prefetch(args->other, args->c_type, args->c_stride, &at);
            for (uint64_t k = 0; k < K; k += plan->chunk) {
                const uint64_t units = units_of(plan, panel_least(K - k, plan->chunk)), before = units_of(plan, k);
                const uint32_t *common = shared + before * common_padded + i * units;
                const uint32_t *mine = own + before * own_padded + j * units;
                plan->panels->tile(units, plan->common_rows ? common : mine, plan->common_rows ? mine : common, sums,
                                   PANEL_COLUMNS, at.rows, at.columns, k > 0);
            }
            cpu_product_finish(plan->product, at.m, at.rows, at.n, at.columns, sums, PANEL_COLUMNS);
        }
    }
}

static uint64_t own_extent(const struct plan *plan)
{
    return plan->common_rows ? plan->product->args->N : plan->product->args->M;
}

static void product_piece(uint64_t piece, uint32_t worker, void *context)
{
    const struct plan *plan = context;
    const uint64_t first = piece * plan->own_lanes, lanes = panel_least(own_extent(plan) - first, plan->own_lanes);
    const uint64_t padded = panel_up(lanes, own_panel(plan));
    uint32_t *own = (uint32_t *)(void *)cpu_scratch(plan->product->cpu, worker);
    panels_begin(plan->panels);
    for (uint64_t k = 0; k < plan->span; k += plan->chunk) {
        const uint64_t depth = panel_least(plan->span - k, plan->chunk);
        uint32_t *out = own + (plan->whole_k ? units_of(plan, k) * padded : 0);
        pack_lanes(plan, !plan->common_rows, first, lanes, plan->k + k, depth, out);
        if (!plan->whole_k) chunk_in_place(plan, first, lanes, k, own);
    }
    if (plan->whole_k) tiles_of_whole_k(plan, first, lanes, own);
    panels_end(plan->panels);
}

/*
 * Lanes of a piece: an eighth of the extent, so that a few threads get even shares, but no more than keeps own lanes of
 * a chunk in the second-level cache (192 lanes of 512 units are 384 KiB), and no fewer than make packing worth it. Two
 * wide panels divide the extents of common models, 768 and 3072 among them, evenly.
 */
static uint64_t own_lanes_choose(const struct plan *plan, uint64_t whole_units)
{
    const uint64_t most = plan->common_rows ? 2 * PANEL_COLUMNS : 4 * PANEL_COLUMNS, panel = own_panel(plan);
    uint64_t lanes = panel_up((own_extent(plan) + 7) / 8, panel);
    if (lanes > most) lanes = most;
    const uint64_t fewest = panel_up(PANEL_COLUMNS, panel);
    if (lanes < fewest) lanes = fewest;
    if (plan->whole_k)
        while (lanes > panel && lanes * whole_units > OWN_UNITS) lanes -= panel;
    return lanes;
}

enum aq_status cpu_matmul_panels(const struct cpu_product *product, const struct cpu_panels *panels)
{
    const struct aq_matmul *args = product->args;
    struct plan plan = {.product = product,
                        .panels = panels,
                        .common_rows = args->M <= args->N,
                        .whole_k = args->c_type != AQ_F32,
                        .chunk = panel_chunk(args->K, panels)};
    AQ_ASSERT(panels->rows <= PANEL_ROWS_MAX && PACK_LANES % panels->rows == 0);
    const uint64_t whole_units = panel_up(units_of(&plan, args->K), 16);
    plan.own_lanes = own_lanes_choose(&plan, whole_units);
    const uint64_t common = plan.common_rows ? args->M : args->N;
    uint64_t lanes_most = COMMON_LANES;
    if (plan.whole_k) {
        const uint64_t most = panel_least(OWN_UNITS / own_panel(&plan), SHARED_UNITS / PACK_LANES) / 16 * 16;
        if (whole_units > most)
            return aq_fail(AQ_INVAL, "device", "a product over %llu values into 16 bits exceeds the limit of %llu",
                           (unsigned long long)args->K, (unsigned long long)(most * panels->unit));
        lanes_most = panel_least(SHARED_UNITS / whole_units / PACK_LANES * PACK_LANES, COMMON_LANES);
    }
    struct cpu_pool *pool = product->cpu->pool;
    for (plan.lane = 0; plan.lane < common; plan.lane += plan.lanes) {
        plan.lanes = panel_least(common - plan.lane, lanes_most);
        const uint64_t padded = panel_up(plan.lanes, common_panel(&plan));
        /* In whole chunks; all of k where tiles need it, for which there is room (lanes_most). */
        const uint64_t span =
            plan.whole_k ? args->K : SHARED_UNITS / padded * panels->unit / plan.chunk * plan.chunk;
        for (plan.k = 0; plan.k < args->K; plan.k += plan.span) {
            plan.span = panel_least(args->K - plan.k, span);
            cpu_pool_run(pool, (plan.lanes + PACK_LANES - 1) / PACK_LANES, pack_piece, &plan);
            cpu_pool_run(pool, (own_extent(&plan) + plan.own_lanes - 1) / plan.own_lanes, product_piece, &plan);
        }
    }
    return AQ_OK;
}
