/*
 * bench.h -- what every `aqpipe bench` has in common. Each bench lives in bench_<room>.c.
 *
 * A bench prints figures and judges nothing; its first line says on what machine. With --json every case is one line:
 * {"case": "...", "value": ..., "unit": "..."}, the machine (whose value are its cores) as well. What a case does is
 * the bench's; which cases run, how often, what of the repeats counts and how the figure is printed are bench_case.c's.
 */
#ifndef RUNTIME_BENCH_H
#define RUNTIME_BENCH_H

#include <stdbool.h>
#include <stdint.h>

#include "aqsgd/base.h"
#include "aqsgd/device_math.h"

struct aq_bench_options {
    bool json;             /* one JSON object a line instead of a table                */
    bool quick;            /* smaller and fewer repeats, for a look                    */
    uint32_t threads;      /* of the CPU pool; 0: every core this process may use      */
    const char *device;    /* "cpu" or "cuda": of stage, device and allreduce          */
    uint32_t device_index; /* which GPU                                                */
    bool full;             /* allreduce: nothing is made smaller to save time          */
    const char *only;      /* aq_bench_wanted                                          */
    uint64_t parameters;   /* allreduce: floats; 0: those of GPT-2 124M                */
};

/* Print one figure. name is the case's, for ever: scripts look for it. */
void aq_bench_emit(const struct aq_bench_options *options, const char *name, double value, const char *unit);

/* The same, and how the link was shaped and how many floats there were. */
void aq_bench_emit_by(const struct aq_bench_options *options, const char *name, double value, const char *unit,
                      const char *by, uint64_t parameters);

/* --only: does every word of its text stand in this name? Whoever has made nothing for the case asks first. */
bool aq_bench_wanted(const struct aq_bench_options *options, const char *name);

/* The best of so many repeats, in seconds: for work that other programs can only slow down. */
enum aq_status aq_bench_best(uint32_t repeats, enum aq_status (*run)(void *context), void *context, double *seconds);

/* Sorts the values; the one in the middle. */
double aq_bench_middle(double *values, size_t count);

/*
 * The median time that `run` takes the device, of so many repeats after two that do not count: between two events, and,
 * where memory is not the host's, of three runs after one another, so that the host's part is hidden but for its first.
 */
enum aq_status aq_bench_median(struct aq_device *device, struct aq_stream *stream, uint32_t repeats,
                               enum aq_status (*run)(void *context), void *context, double *seconds);

/* Operations a second of a product M x N x K of random operands of `type`; the result is of it, too, in 16 bits. */
enum aq_status aq_bench_product(struct aq_device *device, enum aq_element type, enum aq_element compute, uint64_t M,
                                uint64_t N, uint64_t K, double *rate);

/* What stands before all figures: processor, cores, kernel, this version, and the libraries that are loaded. */
void aq_bench_machine(const struct aq_bench_options *options);

enum aq_status aq_bench_stage(const struct aq_bench_options *options);
enum aq_status aq_bench_codec(const struct aq_bench_options *options);
enum aq_status aq_bench_pack(const struct aq_bench_options *options);
enum aq_status aq_bench_cache(const struct aq_bench_options *options);
enum aq_status aq_bench_link(const struct aq_bench_options *options);
enum aq_status aq_bench_device(const struct aq_bench_options *options);
enum aq_status aq_bench_allreduce(const struct aq_bench_options *options);
enum aq_status aq_bench_job(const struct aq_bench_options *options);
enum aq_status aq_bench_trust(const struct aq_bench_options *options);

#endif
