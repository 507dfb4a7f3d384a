/*
 * fuzz_run.c -- any bytes as the files of a run folder: metrics.jsonl, run.json, its marker and checkpoint/complete, as
 * resume and report read them. What rewind leaves behind must be read without a complaint.
 *
 * Pieces with ff between them (which is not UTF-8): metrics, mark, run.json, and what may be beside the metrics, index
 * and tail.
 */
#include <string.h>
#include <unistd.h>

#include "fuzz.h"
#include "owned_folder.h"
#include "report.h"
#include "run_folder.h"
#include "run_lines.h"
#include "run_rewind.h"

enum { BYTES_MAX = 1 << 16, STEP = 2 };

static void start(void)
{
    static bool started;
    if (started) return;
    started = true;
    fuzz_quiet();
    fuzz_make_folder("checkpoint");
}

static enum aq_status count_line(const json_t *line, void *context)
{
    AQ_ASSERT(json_is_object(line));
    ++*(uint64_t *)context;
    return AQ_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_piece rest = {data, size};
    struct aq_run_mark mark;
    json_t *report = NULL;
    uint64_t lines = 0;
    double seconds = 0;
    start();
    if (size > BYTES_MAX) return 0;
    const struct fuzz_piece metrics = fuzz_cut(&rest, 0xff), complete = fuzz_cut(&rest, 0xff),
                            identity = fuzz_cut(&rest, 0xff), index = fuzz_cut(&rest, 0xff);
    fuzz_write("metrics.jsonl", metrics.bytes, metrics.count);
    fuzz_write("checkpoint/complete", complete.bytes, complete.count);
    fuzz_write("run.json", identity.bytes, identity.count);
    fuzz_write("metrics.jsonl.index", index.bytes, index.count);
    (void)unlink(fuzz_path("metrics.jsonl.tail"));
    if (rest.count > 0) fuzz_write("metrics.jsonl.tail", rest.bytes, rest.count);
    fuzz_write(AQ_OWNED_MARKER, identity.bytes, identity.count);
    const struct aq_owner owner = {.job = "fuzz", .id = 7, .resume = STEP};
    enum aq_owned_state state;
    for (enum aq_owned_kind kind = AQ_OWNED_RUN; kind <= AQ_OWNED_CACHE; kind++) {
        (void)aq_owned_look(fuzz_folder(), kind, &owner, &state);
        (void)aq_owned_look(fuzz_path("checkpoint"), kind, &owner, &state);
    }
    const bool marked = aq_run_mark_read(fuzz_path("checkpoint"), &mark) == AQ_OK;
    const enum aq_status status = aq_report_run(fuzz_folder(), &report);
    fuzz_told(status == AQ_OK);
    if (status == AQ_OK) json_decref(report);
    /* What stands before the bytes that a checkpoint knows is not looked at. */
    const uint64_t known = marked ? mark.metrics : 0;
    if (aq_run_rewind(fuzz_path("metrics.jsonl"), STEP, known, &seconds) == AQ_OK)
        AQ_ASSERT(aq_run_lines_from(fuzz_path("metrics.jsonl"), known, count_line, &lines) == AQ_OK);
    return 0;
}
