/*
 * cuda_table_products.c -- which of cuBLASLt's algorithms is the fastest for a kind of product, and whether its ending
 * (a bias, GELU, the residual, the sums of an operand) is faster in the product or after it: measured once, and kept in
 * a table (cuda_table.h). Off unless AQ_GPU_TABLE names a folder. The file's kind is "products", its version
 * cuBLASLt's.
 *
 *     line 1     "aqpipe products 1"
 *     each more  the key (struct cuda_key, 160 hexadecimal digits), 1 if fused else 0, the algorithm
 *                (cublasLtMatmulAlgo_t, 128 digits, opaque), microseconds of it with its ending, and of the heuristic's
 *                first. 0 with an ending: it is made after the product, by our kernels
 *
 * Algorithms that cuBLASLt refuses are ignored, as malformed lines are.
 */
#include <stdio.h>
#include <string.h>

#include "aqsgd/base/printable.h"
#include "cuda_plan.h"
#include "cuda_table.h"

enum { KEY_DIGITS = 2 * sizeof(struct cuda_key), ALGORITHM_DIGITS = 2 * sizeof(cublasLtMatmulAlgo_t) };
static const char PRODUCTS[] = "products";

enum aq_status cuda_products_path(const struct cuda_device *cuda, char **path)
{
    return cuda_table_path(cuda, PRODUCTS, cublasLtGetVersion(), path);
}

/* --- lines ------------------------------------------------------------------------------------------------------ */

/* The `count` bytes of the digits at the start of a text; false: too few digits. */
static bool bytes_of(const char *digits, void *out, size_t count)
{
    char text[ALGORITHM_DIGITS + 1];
    AQ_ASSERT(2 * count < sizeof text);
    snprintf(text, 2 * count + 1, "%s", digits);
    return aq_hex_read(text, count, out);
}

/* The start of this plan's line, fused or apart. */
static void line_begin(const struct cuda_plan *plan, bool fused, char *line)
{
    aq_hex(&plan->key, sizeof plan->key, line);
    snprintf(line + KEY_DIGITS, 4, " %d ", fused);
}

/* The plan's algorithm, as the table has it; false: it has none that runs. */
static bool table_find(const struct cuda_matmul *matmul, struct cuda_plan *plan, const char *text)
{
    char begin[KEY_DIGITS + 4];
    cublasLtMatmulHeuristicResult_t check;
    cublasLtMatmulAlgo_t algorithm;
    line_begin(plan, plan->fused, begin);
    const char *at = cuda_table_find(text, begin, ALGORITHM_DIGITS);
    while (at && !bytes_of(at, &algorithm, sizeof algorithm))
        at = cuda_table_find(at, begin, ALGORITHM_DIGITS);
    if (!at) return false;
    const cublasStatus_t status = cublasLtMatmulAlgoCheck(matmul->handle, plan->product, plan->first, plan->second,
                                                          plan->result, plan->result, &algorithm, &check);
    if (status != CUBLAS_STATUS_SUCCESS || check.workspaceSize > CUDA_WORKSPACE_BYTES) return false;
    if (plan->found == CUDA_ALGORITHMS_MAX) plan->found--;
    memmove(plan->algorithms + 1, plan->algorithms, plan->found * sizeof plan->algorithms[0]);
    plan->algorithms[0] = algorithm;
    plan->found++;
    return true;
}

/* The same, also where the table has the ending apart. *known false: the plan is as it was. */
static enum aq_status table_ask(struct cuda_matmul *matmul, struct cuda_plan *plan, const char *text, bool *known)
{
    char apart[KEY_DIGITS + 4];
    *known = table_find(matmul, plan, text);
    line_begin(plan, false, apart);
    if (*known || !plan->fused || !cuda_table_find(text, apart, ALGORITHM_DIGITS)) return AQ_OK;
    *known = cuda_plan_unfuse(matmul, plan) && table_find(matmul, plan, text);
    return *known ? AQ_OK : cuda_plan_remake(matmul, plan);
}

static enum aq_status line_add(const struct cuda_table *table, const struct cuda_plan *plan, double us, double first_us)
{
    char line[CUDA_TABLE_LINE_BYTES];
    line_begin(plan, plan->fused, line);
    aq_hex(&plan->algorithms[plan->at], sizeof plan->algorithms[0], line + KEY_DIGITS + 3);
    const size_t at = KEY_DIGITS + 3 + ALGORITHM_DIGITS;
    snprintf(line + at, sizeof line - at, " %.2f %.2f\n", us, first_us);
    return cuda_table_add(table, line);
}

/* --- the clock -------------------------------------------------------------------------------------------------- */

/*
 * Memory that the product may be written to repeatedly: its destination; or, if it is added to it, scratch: all of it,
 * or a part without an operand.
 */
static bool timing_place(const struct aq_matmul *args, const struct aq_stream *stream, void **c)
{
    const uint64_t bytes = args->M * args->c_stride * sizeof(float), room = (uint64_t)CUDA_PARTS * CUDA_PART_BYTES;
    const uintptr_t scratch = (uintptr_t)cuda_part(stream, 0);
    const uint64_t a = (uintptr_t)args->a - scratch, b = (uintptr_t)args->b - scratch; /* below it: a large number */
    if (!args->accumulate) return true;
    *c = cuda_part(stream, 0);
    if (a >= room && b >= room) return bytes <= room;
    for (uint32_t part = 0; part < CUDA_PARTS; part++) {
        *c = cuda_part(stream, part);
        if (a / CUDA_PART_BYTES != part && b / CUDA_PART_BYTES != part) return bytes <= CUDA_PART_BYTES;
    }
    return false;
}

/* The product as it may be repeated, which leaves no trace: sums are added to scratch, too, whatever is there. */
static bool timing_args(const struct aq_matmul *args, const struct aq_stream *stream, struct aq_matmul *timed)
{
    *timed = *args;
    if (args->sums_a) timed->sums_a = cuda_part(stream, 2);
    if (args->sums_b) timed->sums_b = cuda_part(stream, 2);
    return timing_place(args, stream, &timed->c);
}

/* The product by one algorithm, and its ending. */
struct timed_product {
    struct cuda_matmul *matmul;
    struct cuda_plan *plan;
    uint32_t which;
    struct aq_matmul args;
    const struct aq_stream *stream;
};

static enum aq_status timed_run(void *context)
{
    const struct timed_product *timed = context;
    const cublasStatus_t status = cuda_plan_call(timed->matmul, timed->plan, timed->which, &timed->args, timed->stream);
    if (status != CUBLAS_STATUS_SUCCESS) return AQ_CUDAERR; /* unlogged: another may run */
    return cuda_plan_finish(timed->plan, &timed->args, timed->stream);
}

/* Times the algorithms of the plan as it is; the fastest goes into plan->at. False: none could be timed. */
static bool time_all(struct cuda_matmul *matmul, struct cuda_plan *plan, const struct aq_matmul *args,
                     const struct aq_stream *stream, double *us, double *first_us)
{
    double each[CUDA_ALGORITHMS_MAX] = {0};
    struct timed_product timed = {.matmul = matmul, .plan = plan, .stream = stream};
    char text[CUDA_TEXT_BYTES];
    const bool good = timing_args(args, stream, &timed.args);
    for (uint32_t i = 0; i < plan->found && good; i++) {
        timed.which = i;
        if (cuda_table_time(stream, timed_run, &timed, &each[i]) != AQ_OK) {
            (void)cudaGetLastError(); /* it is not taken, unless it is the only one: the product reports it */
            each[i] = 1e30;
        }
        if (each[i] < each[plan->at] * (plan->at == 0 ? CUDA_TABLE_GAIN : 1.0)) plan->at = i;
    }
    *us = each[plan->at];
    *first_us = each[0];
    cuda_plan_text(plan, text);
    if (good)
        aq_log("device", 2, "%s, %s: %.2f us, the heuristic's first %.2f us", text,
               plan->fused ? "fused" : "ending apart", *us, *first_us);
    return good && *us < 1e30;
}

/*
 * The same with the ending in the product and after it; the plan becomes the faster one. The ending stays in the
 * product unless it is slower by more than the clock's error, or would be rounded twice after it. *timed false: no
 * choice was made.
 */
static enum aq_status time_both(struct cuda_matmul *matmul, struct cuda_plan *plan, const struct aq_matmul *args,
                                const struct aq_stream *stream, double *us, double *first_us, bool *timed)
{
    double apart = 1e30, ignored;
    *timed = time_all(matmul, plan, args, stream, us, first_us);
    const uint32_t at = plan->at;
    if (!*timed || !plan->fused || cuda_rounds_once(args)) return AQ_OK;
    const bool unfused = cuda_plan_unfuse(matmul, plan);
    if (plan->fused) return AQ_OK; /* it has no ending */
    if (unfused && time_all(matmul, plan, args, stream, &apart, &ignored) && apart < CUDA_TABLE_GAIN * *us) {
        *us = apart;
        return AQ_OK;
    }
    const enum aq_status status = cuda_plan_remake(matmul, plan);
    if (status == AQ_OK) plan->at = at;
    return status;
}

static enum aq_status table_turn(struct cuda_matmul *matmul, struct cuda_plan *plan, const struct aq_matmul *args,
                                 const struct aq_stream *stream)
{
    struct cuda_table table;
    double us = 0, first_us = 0;
    bool known = false, timed = false;
    AQ_TRY(cuda_table_open(matmul->table, PRODUCTS, &table));
    enum aq_status status = table_ask(matmul, plan, table.text, &known);
    if (status == AQ_OK && !known) status = time_both(matmul, plan, args, stream, &us, &first_us, &timed);
    if (status == AQ_OK && timed) status = line_add(&table, plan, us, first_us);
    cuda_table_close(&table);
    return status;
}

void cuda_products_choose(struct cuda_matmul *matmul, struct cuda_plan *plan, const struct aq_matmul *args,
                          const struct aq_stream *stream)
{
    const enum aq_status status = table_turn(matmul, plan, args, stream);
    if (status == AQ_OK) return;
    aq_log("device", AQ_LOG_WARNING,
           "AQ_GPU_TABLE: %s cannot be used (%s): the heuristic chooses the algorithms of products", matmul->table,
           aq_status_text(status));
    aq_free(matmul->table);
    matmul->table = NULL;
}
