/*
 * cuda_cudnn_choose.c -- cuDNN or our own kernels for a shape of an operation (attention or a convolution, forward or
 * backward): by the clock, once, and kept in a table (cuda_table.h). The file's kind is "cudnn", its version cuDNN's.
 *
 *     line 1     "aqpipe cudnn 1"
 *     each more  the key (struct cudnn_key, 128 hexadecimal digits), "cudnn" or "own", microseconds of cuDNN and of our
 *                own kernels
 *
 * A shape for which cuDNN has no algorithm has no line: it is ours. A table that cannot be read or written ends the
 * job, because a choice that is not kept may be another one after a restart.
 */
#include <stdio.h>
#include <string.h>

#include "aqsgd/base/printable.h"
#include "cuda_cudnn_graph.h"

enum { CHOICE_DIGITS = 2 * sizeof(struct cudnn_key) };
static const char CHOICES[] = "cudnn";
static const char *const choice_words[] = {[CUDNN_IS_FASTER] = "cudnn ", [CUDNN_IS_SLOWER] = "own "};

/* One error, with the variable and the remedy. */
static enum aq_status choices_open(const char *path, struct cuda_table *table)
{
    struct aq_error_hold hold;
    aq_error_hold(&hold);
    const enum aq_status status = cuda_table_open(path, CHOICES, table);
    aq_error_release(&hold);
    if (status == AQ_OK) return AQ_OK;
    return aq_fail(status, "device",
                   "AQ_GPU_ATTENTION=fastest and AQ_GPU_CONVOLUTION=fastest keep their choices in the folder "
                   "AQ_GPU_TABLE: %s; or set them to own or cudnn",
                   hold.text);
}

enum aq_status cudnn_table_path(const struct cuda_device *cuda, size_t version, char **path)
{
    struct cuda_table table;
    AQ_TRY(cuda_table_path(cuda, CHOICES, version, path));
    if (!*path)
        return aq_fail(
            AQ_INVAL, "device",
            "AQ_GPU_ATTENTION=fastest and AQ_GPU_CONVOLUTION=fastest keep their choices in a folder, so that "
            "restarts have the same bits: set AQ_GPU_TABLE to one, for all stages of the job");
    AQ_TRY(choices_open(*path, &table)); /* now, not after the first steps */
    cuda_table_close(&table);
    return AQ_OK;
}

static enum cudnn_faster choice_of(const struct cuda_table *table, const struct cudnn_plan *plan)
{
    char begin[CHOICE_DIGITS + 2];
    aq_hex(&plan->key, sizeof plan->key, begin);
    snprintf(begin + CHOICE_DIGITS, 2, " ");
    for (const char *at = cuda_table_find(table->text, begin, 1); at; at = cuda_table_find(at, begin, 1))
        for (enum cudnn_faster way = CUDNN_IS_FASTER; way <= CUDNN_IS_SLOWER; way++)
            if (strncmp(at, choice_words[way], strlen(choice_words[way])) == 0) return way;
    return CUDNN_NOT_ASKED;
}

/* The log's one line about a shape. */
static void choice_log(const struct cudnn_plan *plan, const struct cudnn_contest *contest, const char *reason)
{
    char text[CUDA_TEXT_BYTES];
    contest->text_of(&plan->key, text, sizeof text);
    aq_log("device", 1, "%s: %s (%s)", text, plan->faster == CUDNN_IS_FASTER ? "cuDNN" : "our kernels", reason);
}

static enum aq_status clock_ask(const struct cuda_table *table, struct cudnn_plan *plan,
                                const struct cudnn_contest *contest, const struct aq_stream *stream)
{
    char line[CUDA_TABLE_LINE_BYTES], reason[CUDA_TEXT_BYTES];
    double own_us = 0, cudnn_us = 0;
    AQ_TRY(cuda_table_time(stream, contest->own, contest->context, &own_us));
    AQ_TRY(cuda_table_time(stream, contest->cudnn, contest->context, &cudnn_us));
    const enum cudnn_faster way = cudnn_us < CUDA_TABLE_GAIN * own_us ? CUDNN_IS_FASTER : CUDNN_IS_SLOWER;
    aq_hex(&plan->key, sizeof plan->key, line);
    snprintf(line + CHOICE_DIGITS, sizeof line - CHOICE_DIGITS, " %s%.2f %.2f\n", choice_words[way], cudnn_us, own_us);
    AQ_TRY(cuda_table_add(table, line));
    plan->faster = way;
    snprintf(reason, sizeof reason, "by the clock: cuDNN %.2f us, our kernels %.2f us", cudnn_us, own_us);
    choice_log(plan, contest, reason);
    return AQ_OK;
}

enum aq_status cudnn_choose(const char *path, struct cudnn_plan *plan, const struct cudnn_contest *contest,
                            const struct aq_stream *stream)
{
    struct aq_cuda_list *const list = aq_cuda_list();
    struct cuda_table table;
    if (plan->faster != CUDNN_NOT_ASKED) return AQ_OK;
    if (contest->obstacle) {
        plan->faster = CUDNN_IS_SLOWER;
        choice_log(plan, contest, contest->obstacle);
        return AQ_OK;
    }
    if (list && !list->enqueues) { /* what it reads may have to be written by the work before it */
        list->unmade = true;
        return AQ_AGAIN;
    }
    AQ_TRY(choices_open(path, &table));
    plan->faster = choice_of(&table, plan);
    enum aq_status status = AQ_OK;
    if (plan->faster == CUDNN_NOT_ASKED)
        status = clock_ask(&table, plan, contest, stream);
    else
        choice_log(plan, contest, "by the table");
    cuda_table_close(&table);
    return status;
}
