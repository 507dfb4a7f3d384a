/*
 * bench_trust.c -- the cost of not trusting peers: a step with and without TLS, and the digests of a step.
 * (bench_link.c has the cost of TLS per core at 1 Gbit/s.)
 *
 * TLS: two stages that send uncompressed fp32 both ways at 100 Mbit/s, by turns with and without; such a step waits for
 * the link, with more bytes per step than with any codec.
 *
 * Digests cannot be switched off, so their share is computed: the bytes that a stage between two others digests in a
 * step, at the rate that is measured here, against the step that is measured here. Of each sample these are, forward,
 * the body that comes and the one that goes, and for either edge m when it is read and m' when it is made; backward,
 * two bodies. In addition the checks of decoded values (edges.check: first) read one sample per step: the decoded and
 * the expected values, both ways.
 */
#include <stdio.h>
#include <time.h>

#include "bench_job.h"
#include "net/tls.h"
#include "plan.h"
#include "run_folder.h"

static enum aq_status make_keys(const char *keys)
{
    const int64_t now = (int64_t)time(NULL);
    AQ_TRY(aq_tls_make_authority(keys, "bench", now - 3600, now + 86400));
    for (uint32_t stage = 0; stage < 2; stage++)
        AQ_TRY(aq_tls_make(keys, AQ_TLS_STAGE, stage, now - 3600, now + 86400));
    return AQ_OK;
}

static enum aq_status bench_step(const struct aq_bench_options *options, const char *folder)
{
#define RAW                                                                                                            \
    "pipeline.stages=2", "edges.forward={codec: raw}", "edges.backward={codec: raw}", "train.batch=16",                \
        "data.train_samples_max=128", "train.epochs=5"
    char keys[AQ_BENCH_PATH_BYTES], set[AQ_BENCH_PATH_BYTES + 32];
    AQ_TRY(aq_run_path(folder, "keys", keys));
    AQ_TRY(make_keys(keys));
    snprintf(set, sizeof set, "security.keys=%s", keys);
    const char *const plain[] = {RAW, NULL}, *const sealed[] = {RAW, "security.tls=on", set, NULL};
#undef RAW
    double without, with;
    AQ_TRY(aq_bench_job_pair(options, folder, plain, sealed, &without, &with));
    aq_bench_emit(options, "job step raw 100mbit", without * 1e3, "ms");
    aq_bench_emit(options, "job step raw 100mbit tls", with * 1e3, "ms");
    aq_bench_emit(options, "job tls/plain", with / without, "ratio");
    return AQ_OK;
}

struct digests {
    const uint8_t *bytes;
    uint64_t piece, sum;
};
enum { PIECES = 256 };

static enum aq_status digests_run(void *context)
{
    struct digests *digests = context;
    for (uint64_t i = 0; i < PIECES; i++)
        digests->sum ^= aq_digest(digests->bytes + i * digests->piece, digests->piece);
    return AQ_OK;
}

/* Bytes a second of digests over pieces of this size, that do not lie in a cache; the best of some turns. */
static enum aq_status digest_rate(const struct aq_bench_options *options, uint64_t piece, double *bytes_per_s)
{
    void *memory;
    double seconds;
    AQ_TRY(aq_map(piece * PIECES, &memory));
    const struct aq_rng_key key = aq_rng_key(3, AQ_RNG_TEST, 0, 0);
    for (uint64_t i = 0; i < piece * PIECES / sizeof(uint32_t); i++)
        ((uint32_t *)memory)[i] = aq_rng_u32(&key, i);
    struct digests digests = {.bytes = memory, .piece = piece};
    const double bytes = (double)(piece * PIECES);
    const struct aq_bench_case one = {digests_run, &digests, 15, .amount = 1e-9 * bytes, .unit = "GB/s"};
    const enum aq_status status = aq_bench_case(options, &one, &seconds, "digest of a message");
    *bytes_per_s = bytes / seconds;
    aq_unmap(memory, piece * PIECES);
    aq_log("bench", 3, "digests=%llx", (unsigned long long)digests.sum); /* so that they are made */
    return status;
}

#define DIGESTS "digest of a message job digests of a step, one stage step digests/step, computed"

static enum aq_status bench_digests(const struct aq_bench_options *options, const char *folder)
{
    static const char *const as_is[] = {NULL};
    char manifest[AQ_BENCH_PATH_BYTES];
    struct aq_job *job = NULL;
    struct aq_plan *plan = NULL;
    double rate = 0, step = 0;
    enum aq_status status;
    AQ_TRY_GOTO(aq_run_path(folder, "job.yaml", manifest), out);
    AQ_TRY_GOTO(aq_job_load(manifest, NULL, 0, &job), out);
    AQ_TRY_GOTO(aq_plan_open(job, &plan), out);
    const struct aq_plan_edge *edge = &plan->edges[0];
    const uint64_t sample_bytes =
        2 * edge->size.forward_warm_bytes + 4 * edge->size.message_bytes + 2 * edge->size.backward_bytes;
    AQ_TRY_GOTO(digest_rate(options, edge->size.message_bytes, &rate), out);
    AQ_TRY_GOTO(aq_bench_job_run(folder, "digests", as_is, &step), out);
    const uint64_t check_bytes = 4 * edge->size.values_bytes;
    const double digest_s = (double)(sample_bytes * job->train.batch + check_bytes) / rate;
    aq_bench_emit(options, "job digests of a step, one stage", digest_s * 1e3, "ms");
    aq_bench_emit(options, "job step", step * 1e3, "ms");
    aq_bench_emit(options, "job digests/step, computed", digest_s / step, "ratio");
out:
    aq_plan_close(plan);
    aq_job_close(job);
    return status;
}

enum aq_status aq_bench_trust(const struct aq_bench_options *options)
{
    char folder[AQ_BENCH_PATH_BYTES];
    enum aq_status status = aq_bench_job_begin(folder);
    if (status == AQ_OK && aq_bench_wanted(options, "job step raw 100mbit tls tls/plain"))
        status = bench_step(options, folder);
    if (status == AQ_OK && aq_bench_wanted(options, DIGESTS)) status = bench_digests(options, folder);
    return aq_bench_job_end(folder, status);
}
