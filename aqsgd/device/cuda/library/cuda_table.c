/*
 * cuda_table.c -- which of cuBLASLt's algorithms is the fastest for a kind of product, and whether its ending (a bias,
 * GELU, the residual, the sums of an operand) is faster in the product or after it: measured once, and kept.
 *
 * Off unless AQ_GPU_TABLE names a folder: two algorithms of one product round differently, so that a measured choice
 * must be made once for all stages and all restarts of a job, or its bits are not reproducible. The file makes it so on
 * one machine; for several, and to have the bits of another run, copy it. It is of one GPU model and one version of the
 * library, both in its name: products-<GPU>-<processors>-<cuBLASLt>.
 *
 *     line 1     "aqpipe products 1"
 *     each more  the key (struct cuda_key, 160 hexadecimal digits), 1 if fused else 0, the algorithm
 *                (cublasLtMatmulAlgo_t, 128 digits, opaque), microseconds of it with its ending, and of the heuristic's
 *                first. 0 with an ending: it is made after the product, by our kernels
 *
 * A crash can cut off the end of the last line. Malformed lines, and algorithms that cuBLASLt refuses, are ignored.
 * Processes that share a GPU take turns under flock, so that one's load does not disturb the other's timing, and the
 * second reads the results of the first.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "aqsgd/base/file.h"
#include "aqsgd/base/printable.h"
#include "cuda_plan.h"

enum {
    TABLE_BYTES_MAX = 1 << 20, /* about 3000 lines of 330 bytes: a model has about 40 kinds of products */
    KEY_DIGITS = 2 * sizeof(struct cuda_key),
    ALGORITHM_DIGITS = 2 * sizeof(cublasLtMatmulAlgo_t),
    LINE_BYTES = KEY_DIGITS + ALGORITHM_DIGITS + 64,
    ROUNDS = 3, /* the best of 3 ...                 */
    RUNS = 8    /* ... times 8 products with their endings, one warm-up */
};
static const char TABLE_BEGIN[] = "aqpipe products 1\n";
static const double TABLE_GAIN = 0.98; /* another than the first is worth it from 2 % on: less is the clock's */

enum aq_status cuda_table_path(const struct cuda_device *cuda, char **path)
{
    const char *folder = getenv("AQ_GPU_TABLE");
    char name[sizeof cuda->probe.name];
    *path = NULL;
    if (!folder || !*folder) return AQ_OK;
    snprintf(name, sizeof name, "%s", cuda->probe.name);
    for (char *at = name; *at; at++)
        if (!isalnum((unsigned char)*at)) *at = '-';
    const size_t bytes = strlen(folder) + sizeof name + 64;
    AQ_TRY(AQ_NEW(bytes, path));
    snprintf(*path, bytes, "%s/products-%s-%d-%zu", folder, name, cuda->probe.processors, cublasLtGetVersion());
    return AQ_OK;
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
    const char *at = strstr(text, begin);
    while (at && (strcspn(at, "\n") < KEY_DIGITS + 3 + ALGORITHM_DIGITS ||
                  !bytes_of(at + KEY_DIGITS + 3, &algorithm, sizeof algorithm)))
        at = strstr(at + 1, begin); /* a crash has cut that line off */
    if (!at || !strchr(at, '\n')) return false;
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
    if (*known || !plan->fused || !strstr(text, apart)) return AQ_OK;
    *known = cuda_plan_unfuse(matmul, plan) && table_find(matmul, plan, text);
    return *known ? AQ_OK : cuda_plan_remake(matmul, plan);
}

static enum aq_status table_add(int fd, const struct cuda_plan *plan, const char *text, double us, double first_us)
{
    char line[LINE_BYTES + sizeof TABLE_BEGIN];
    const size_t have = strlen(text);
    int at = snprintf(line, sizeof line, "%s", have == 0 ? TABLE_BEGIN : text[have - 1] == '\n' ? "" : "\n");
    line_begin(plan, plan->fused, line + at);
    at += KEY_DIGITS + 3;
    aq_hex(&plan->algorithms[plan->at], sizeof plan->algorithms[0], line + at);
    at += ALGORITHM_DIGITS;
    at += snprintf(line + at, sizeof line - (size_t)at, " %.2f %.2f\n", us, first_us);
    AQ_ASSERT((size_t)at < sizeof line);
    if (!aq_pwrite_all(fd, line, (size_t)at, have) || fdatasync(fd) == -1) return aq_fail_errno("device", "the table");
    return AQ_OK;
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
static bool timed_run(struct cuda_matmul *matmul, struct cuda_plan *plan, uint32_t which, const struct aq_matmul *args,
                      const struct aq_stream *stream)
{
    return cuda_plan_call(matmul, plan, which, args, stream) == CUBLAS_STATUS_SUCCESS &&
           cuda_plan_finish(plan, args, stream) == AQ_OK;
}

static bool time_one(struct cuda_matmul *matmul, struct cuda_plan *plan, uint32_t which, const struct aq_matmul *args,
                     const struct aq_stream *stream, cudaEvent_t events[2], double *us)
{
    bool good = timed_run(matmul, plan, which, args, stream);
    for (int round = 0; round < ROUNDS && good; round++) {
        float ms = 0;
        cudaError_t error = cudaEventRecord(events[0], stream->at);
        for (int run = 0; run < RUNS && good; run++)
            good = timed_run(matmul, plan, which, args, stream);
        if (error == cudaSuccess) error = cudaEventRecord(events[1], stream->at);
        if (error == cudaSuccess) error = cudaStreamSynchronize(stream->at);
        if (error == cudaSuccess) error = cudaEventElapsedTime(&ms, events[0], events[1]);
        if (error != cudaSuccess) return false;
        const double each = (double)ms * 1e3 / RUNS;
        if (round == 0 || each < *us) *us = each;
    }
    return good;
}

/* Times the algorithms of the plan as it is; the fastest goes into plan->at. False: the clock could not be asked. */
static bool time_all(struct cuda_matmul *matmul, struct cuda_plan *plan, const struct aq_matmul *args,
                     const struct aq_stream *stream, double *us, double *first_us)
{
    cudaEvent_t events[2] = {NULL, NULL};
    double each[CUDA_ALGORITHMS_MAX] = {0};
    struct aq_matmul timed;
    char text[CUDA_TEXT_BYTES];
    bool good = timing_args(args, stream, &timed);
    for (int i = 0; i < 2 && good; i++)
        good = cudaEventCreateWithFlags(&events[i], cudaEventDefault) == cudaSuccess;
    for (uint32_t i = 0; i < plan->found && good; i++) {
        if (!time_one(matmul, plan, i, &timed, stream, events, &each[i])) {
            (void)cudaGetLastError(); /* it is not taken, unless it is the only one: the product reports it */
            each[i] = 1e30;
        }
        if (each[i] < each[plan->at] * (plan->at == 0 ? TABLE_GAIN : 1.0)) plan->at = i;
    }
    for (int i = 0; i < 2; i++)
        if (events[i]) (void)cudaEventDestroy(events[i]);
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
    if (unfused && time_all(matmul, plan, args, stream, &apart, &ignored) && apart < TABLE_GAIN * *us) {
        *us = apart;
        return AQ_OK;
    }
    const enum aq_status status = cuda_plan_remake(matmul, plan);
    if (status == AQ_OK) plan->at = at;
    return status;
}

static enum aq_status table_turn(struct cuda_matmul *matmul, struct cuda_plan *plan, const struct aq_matmul *args,
                                 const struct aq_stream *stream, int fd)
{
    char *text = NULL;
    double us = 0, first_us = 0;
    bool known = false, timed = false;
    if (flock(fd, LOCK_EX) == -1) return aq_fail_errno("device", "%s", matmul->table);
    enum aq_status status = aq_file_load(NULL, matmul->table, TABLE_BYTES_MAX, &text, NULL);
    if (status == AQ_OK && text[0] && strncmp(text, TABLE_BEGIN, strlen(TABLE_BEGIN)) != 0)
        status = aq_fail(AQ_CORRUPT, "device", "%s is not a table of products: remove it", matmul->table);
    if (status == AQ_OK) status = table_ask(matmul, plan, text, &known);
    if (status == AQ_OK && !known) status = time_both(matmul, plan, args, stream, &us, &first_us, &timed);
    if (status == AQ_OK && timed) status = table_add(fd, plan, text, us, first_us);
    aq_free(text);
    return status;
}

void cuda_table_choose(struct cuda_matmul *matmul, struct cuda_plan *plan, const struct aq_matmul *args,
                       const struct aq_stream *stream)
{
    int fd = -1;
    enum aq_status status = aq_file_open(NULL, matmul->table, AQ_FILE_KEEP, &fd);
    if (status == AQ_OK) {
        status = table_turn(matmul, plan, args, stream, fd);
        close(fd); /* and its lock */
    }
    if (status == AQ_OK) return;
    aq_log("device", AQ_LOG_WARNING,
           "AQ_GPU_TABLE: %s cannot be used (%s): the heuristic chooses the algorithms of products", matmul->table,
           aq_status_text(status));
    aq_free(matmul->table);
    matmul->table = NULL;
}
