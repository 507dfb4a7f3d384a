/*
 * bench.h -- shared by all of `aqpipe bench`. Each bench is in bench_<module>.c.
 *
 * A bench prints figures and judges nothing; its first line names the machine. With --json every case is one line:
 * {"case": "...", "value": ..., "unit": "..."}, the machine (whose value are its cores) as well. The bench has the work
 * of a case; bench_case.c has the choice of cases, the repeats, the figure from the repeats and its output:
 * aq_bench_case if the figure follows from the time of a run, aq_bench_emit for any other.
 */
#ifndef TOOLS_BENCH_H
#define TOOLS_BENCH_H

#include <stdbool.h>
#include <stdint.h>

#include "aqsgd/base.h"
#include "aqsgd/device_math.h"

struct aq_bench_options {
    bool json;             /* one JSON object a line instead of a table                */
    bool quick;            /* smaller and fewer repeats, as a quick check              */
    uint32_t threads;      /* of the CPU pool; 0: every core this process may use      */
    const char *device;    /* "cpu" or "cuda": of stage, device and allreduce          */
    uint32_t device_index; /* which GPU                                                */
    bool full;             /* allreduce: nothing is made smaller to save time          */
    const char *only;      /* aq_bench_wanted                                          */
    uint64_t parameters;   /* allreduce: floats; 0: those of GPT-2 124M                */
    const char *text;      /* tokenize: a file, and                                    */
    const char *tokenizer; /* the folder of a tokenizer; NULL: it is left out          */
};

/* Print one figure. name is the case's, for ever: scripts look for it. */
void aq_bench_emit(const struct aq_bench_options *options, const char *name, double value, const char *unit);

/* The same, and how the link was shaped and how many floats there were. */
void aq_bench_emit_by(const struct aq_bench_options *options, const char *name, double value, const char *unit,
                      const char *by, uint64_t parameters);

/* A child of this process has printed figures. */
void aq_bench_emitted(void);

/* --only: does this name (of cases that share work: their names' words) contain every word of its text? Ask before
 * any work for the case. False, too, if the benches must end. */
bool aq_bench_wanted(const struct aq_bench_options *options, const char *name);

/* A run, and the figure computed from its seconds. */
struct aq_bench_case {
    enum aq_status (*run)(void *context);
    void *context;
    uint32_t repeats;         /* a quarter of them with --quick                                                    */
    struct aq_device *device; /* its median (below); NULL: the best by the clock: other programs only slow it down */
    struct aq_stream *stream; /* of the device                                                                     */
    double amount;            /* of one run: the figure is so much a second; 0: it is a time,                      */
    double scale;             /* in seconds times this                                                             */
    const char *unit;         /* NULL: nothing is printed                                                          */
    bool makes;               /* what later cases read: it is run once where --only leaves it out                  */
};

/* Measures it and prints its figure, unless --only leaves it out. name: printf's. *seconds (or NULL): 0 if left out. */
enum aq_status aq_bench_case(const struct aq_bench_options *options, const struct aq_bench_case *one, double *seconds,
                             const char *name, ...) __attribute__((format(printf, 4, 5)));

/* An interrupt, or a closed output, ends the benches before the next case, so that they clean up; a second interrupt
 * ends them at once. */
void aq_bench_begin(void);
/* The result: AQ_ABORTED in these cases, AQ_INVAL if --only matched no case. */
enum aq_status aq_bench_end(const struct aq_bench_options *options);

/* Sorts the values; the one in the middle. */
double aq_bench_middle(double *values, size_t count);

/*
 * The median time of `run` on the device, of `repeats` repeats after two that do not count: between two events, and, if
 * memory is not the host's, of three runs in a row, so that the host's part is hidden except the first.
 */
enum aq_status aq_bench_median(struct aq_device *device, struct aq_stream *stream, uint32_t repeats,
                               enum aq_status (*run)(void *context), void *context, double *seconds);

/* The part of aq_bench_stage on images. */
enum aq_status aq_bench_stage_images(const struct aq_bench_options *options, struct aq_device *device);

/* Operations a second of a product M x N x K of random operands of `type`; the result is of it, too, in 16 bits. */
enum aq_status aq_bench_product(struct aq_device *device, enum aq_element type, enum aq_element compute, uint64_t M,
                                uint64_t N, uint64_t K, double *rate);

/* Flushes the output; if it was closed, the benches end. */
void aq_bench_flush(void);

/* The header of all figures: processor, cores, kernel, this version, and the libraries that are loaded. */
void aq_bench_machine(const struct aq_bench_options *options);

/* One core packs signs in its cache and in memory: the last cases of allreduce. */
enum aq_status aq_bench_pack_signs(const struct aq_bench_options *options);

#define AQ_BENCH(name, help) enum aq_status aq_bench_##name(const struct aq_bench_options *options);
#include "benches.def"

#endif
