/* worker_report.c -- a worker's reports over the control channel: each step, its trace, and how it ended. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker.h"

static double ratio(double part, double whole)
{
    return whole > 0 ? sqrt(part / whole) : 0;
}

/* The live measures of the edges that this stage sends over: activations on, gradients back. */
static void add_measures(json_t *line, const struct aq_edge_measures *m, const struct aq_edge_measures *in)
{
    if (in->gradient2 > 0)
        json_object_set_new(line, "gradient_error_ratio", aq_control_number(ratio(in->gradient_error2, in->gradient2)));
    if (in->raw_peak_back > 0) json_object_set_new(line, "backward_raw_peak", aq_control_number(in->raw_peak_back));
    if (in->wide_back > 0) json_object_set_new(line, "backward_wide", json_integer((json_int_t)in->wide_back));
    if (m->wide > 0) json_object_set_new(line, "wide", json_integer((json_int_t)m->wide));
    if (m->raw_peak > 0) json_object_set_new(line, "raw_peak", aq_control_number(m->raw_peak));
    if (m->warm_delta2 > 0)
        json_object_set_new(line, "contraction", aq_control_number(ratio(m->warm_error2, m->warm_delta2)));
    if (m->values <= 0) return;
    const double mean = m->sum_a / m->values, rms = sqrt(m->sum_a2 / m->values);
    json_object_set_new(line, "delta_ratio", aq_control_number(ratio(m->sum_delta2, m->sum_a2)));
    json_object_set_new(line, "error_ratio", aq_control_number(ratio(m->sum_error2, m->sum_delta2)));
    json_object_set_new(line, "common_mode", aq_control_number(rms > 0 ? fabs(mean) / rms : 0));
}

/* Of the link to the next stage, since the start: how often it was made again, and for how long it was down. */
static void add_outages(const struct aq_worker *worker, json_t *line)
{
    struct aq_link_stats out = {0};
    if (worker->pipeline.link_out) aq_link_stats(worker->pipeline.link_out, &out);
    json_object_set_new(line, "heals", json_integer((json_int_t)out.heals));
    json_object_set_new(line, "outage_ns", json_integer((json_int_t)out.outage_ns));
}

/* Ratio of packed to given bytes since the last line; if nothing was sent, the last ratio. */
static double left_of(const struct aq_link_bytes *now, struct aq_link_bytes *before, double last)
{
    const uint64_t body = now->body - before->body, packed = now->packed - before->packed;
    *before = *now;
    return body > 0 ? (double)packed / (double)body : last > 0 ? last : 1;
}

static void add_bytes(struct aq_link_bytes *sum, const struct aq_link_bytes *bytes)
{
    sum->body += bytes->body;
    sum->packed += bytes->packed;
}

/* Adds the bytes that went by NCCL, unpacked. */
static void add_carried(struct aq_link_bytes *sum, uint64_t bytes)
{
    sum->body += bytes;
    sum->packed += bytes;
}

static void add_packing(struct aq_worker *worker, json_t *line)
{
    struct aq_worker_packing *p = &worker->links.packing;
    struct aq_link_stats in = {0}, out = {0};
    struct aq_link_bytes gradient = worker->links.ended_gradient;
    if (worker->pipeline.link_in) aq_link_stats(worker->pipeline.link_in, &in);
    if (worker->pipeline.link_out) aq_link_stats(worker->pipeline.link_out, &out);
    uint64_t ns = in.packing_ns + out.packing_ns + worker->links.ended_packing_ns;
    struct aq_link_bytes *forward = &out.sent_kinds[AQ_FRAME_FORWARD - 16],
                         *backward = &in.sent_kinds[AQ_FRAME_BACKWARD - 16];
    if (worker->pipeline.out) add_carried(forward, aq_edge_carried_bytes(worker->pipeline.out));
    if (worker->pipeline.in) add_carried(backward, aq_edge_carried_bytes(worker->pipeline.in));
    p->forward_left = left_of(forward, &p->forward, p->forward_left);
    p->backward_left = left_of(backward, &p->backward, p->backward_left);
    for (uint32_t v = 0; worker->replicas.peers && v < worker->W; v++) {
        if (!worker->replicas.peers[v]) continue;
        aq_link_stats(worker->replicas.peers[v], &in);
        add_bytes(&gradient, &in.sent_kinds[AQ_FRAME_CHUNK - 16]);
        ns += in.packing_ns;
    }
    p->gradient_left = left_of(&gradient, &p->gradient, p->gradient_left);
    if (worker->pipeline.link_out) json_object_set_new(line, "forward_packed", aq_control_number(p->forward_left));
    if (worker->pipeline.link_in) json_object_set_new(line, "backward_packed", aq_control_number(p->backward_left));
    if (worker->W > 1) json_object_set_new(line, "gradient_packed", aq_control_number(p->gradient_left));
    json_object_set_new(line, "packing_ns", json_integer((json_int_t)(ns - p->ns)));
    p->ns = ns;
}

/* Time for checkpoints since the last line: the copy, and the wait for one that was still being written. */
static void add_marks(struct aq_worker *worker, json_t *line)
{
    json_object_set_new(line, "mark_ns", json_integer((json_int_t)worker->checkpoints.held_ns));
    json_object_set_new(line, "mark_wait_ns", json_integer((json_int_t)worker->checkpoints.wait_ns));
    worker->checkpoints.held_ns = worker->checkpoints.wait_ns = 0;
}

/* The codec of reductions, if it was chosen; and the measurements, in the step that chose. */
static void add_choice(struct aq_worker *worker, json_t *line)
{
    struct aq_worker_choice *choice = &worker->replicas.choice;
    if (choice->name) json_object_set_new(line, "reduce_codec", json_string(choice->name));
    if (!choice->measured) return;
    json_object_set_new(line, "reduce_rate_mbps", aq_control_number(choice->links.rate * 8e-6));
    json_object_set_new(line, "reduce_pack_seconds", aq_control_number(choice->chosen_pack_s));
    choice->measured = false;
}

/* Of the optimizer's last update, if it was one. */
static void add_figures(const struct aq_worker *worker, json_t *line)
{
    struct aq_optimizer_figure figures[AQ_OPTIMIZER_FIGURES_MAX];
    uint32_t count = 0;
    if (worker->optimizer) aq_optimizer_figures(worker->optimizer, figures, &count);
    for (uint32_t i = 0; i < count; i++)
        json_object_set_new(line, figures[i].name, aq_control_number(figures[i].value));
}

enum aq_status aq_worker_report_step(struct aq_worker *worker)
{
    const struct aq_worker_times *t = &worker->times;
    struct aq_edge_measures in = {0}, out = {0};
    if (worker->pipeline.in) aq_edge_measures(worker->pipeline.in, &in);
    if (worker->pipeline.out) aq_edge_measures(worker->pipeline.out, &out);
    const uint64_t now = aq_clock_ns(), done = worker->step + 1;
    const uint64_t epoch = aq_worker_global(worker, worker->step) / worker->plan->steps_per_epoch;
    const double lr = (double)aq_plan_learning_rate(worker->plan, aq_worker_global(worker, done));
    json_t *line = json_pack(
        "{s:s, s:I, s:I, s:f, s:f, s:o, s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b}", "event", "step",
        "step", (json_int_t)done, "epoch", (json_int_t)epoch, "seconds", (double)(now - t->begin_ns) * 1e-9, "lr", lr,
        "grad_norm", aq_control_number(t->gradient_norm), "samples",
        (int)(aq_rank_data_samples(&worker->data, worker->step) * worker->W), "compute_ns", (json_int_t)t->compute_ns,
        "codec_ns", (json_int_t)(in.codec_ns + out.codec_ns - in.cache_ns - out.cache_ns), "link_wait_ns",
        (json_int_t)t->link_wait_ns, "cache_wait_ns", (json_int_t)(in.cache_ns + out.cache_ns), "optimizer_ns",
        (json_int_t)t->optimizer_ns, "forward_bytes", (json_int_t)out.sent_bytes, "backward_bytes",
        (json_int_t)in.sent_bytes, "keyframes", (json_int_t)out.keyframes, "raws", (json_int_t)out.raws, "fetched",
        (json_int_t)(in.fetched + out.fetched), "skipped", t->skipped);
    if (!line) return aq_fail(AQ_NOMEM, "worker", "no memory for the line of a step");
    json_object_set_new(line, "wait_ns", json_integer((json_int_t)t->wait_ns));
    if (worker->pipeline.in) json_object_set_new(line, "in_wait_ns", json_integer((json_int_t)t->in_wait_ns));
    json_object_set_new(line, "backward_raws", json_integer((json_int_t)in.raws_back));
    if (t->own_norm >= 0) json_object_set_new(line, "stage_grad_norm", aq_control_number(t->own_norm));
    const struct aq_part_step from = {
        .in = &in, .out = &out, .links = {worker->pipeline.link_in, worker->pipeline.link_out}};
    aq_worker_parts_report(&worker->worker_parts, &from, line);
    add_outages(worker, line);
    add_packing(worker, line);
    add_marks(worker, line);
    if (worker->W > 1 || aq_job_global(worker->job)) {
        json_object_set_new(line, "reduce_ns", json_integer((json_int_t)t->reduce_ns));
        json_object_set_new(line, "gradient_bytes", json_integer((json_int_t)t->reduce_bytes));
        add_choice(worker, line);
    }
    if (aq_worker_is_tied(worker) && !worker->pipeline.tied.local)
        json_object_set_new(line, "tied_bytes", json_integer((json_int_t)t->tied_bytes));
    if (worker->position + 1 == worker->P && t->loss_targets > 0)
        json_object_set_new(line, "loss", aq_control_number(t->loss_sum / (double)t->loss_targets));
    add_measures(line, &out, &in);
    add_figures(worker, line);
    return aq_control_send(worker->control, line);
}

/* The largest resident set of this process, from /proc/self/status; 0 if it cannot be read. */
static uint64_t peak_memory(void)
{
    FILE *file = fopen("/proc/self/status", "r");
    if (!file) return 0;
    char line[256];
    unsigned long long kib = 0;
    while (fgets(line, sizeof line, file))
        if (strncmp(line, "VmHWM:", 6) == 0) kib = strtoull(line + 6, NULL, 10);
    fclose(file);
    return kib * 1024;
}

enum { CHUNK_BYTES = 256 << 10 };

static enum aq_status report_trace(struct aq_worker *worker)
{
    if (!worker->trace) return AQ_OK;
    char *text = NULL;
    size_t bytes = 0;
    FILE *memory = open_memstream(&text, &bytes);
    if (!memory) return aq_fail_errno("worker", "cannot keep the trace in memory");
    enum aq_status status = aq_trace_write(worker->trace, (int)worker->rank, worker->steps.go_ns, memory);
    if (fclose(memory) != 0 && status == AQ_OK) status = aq_fail_errno("worker", "cannot keep the trace in memory");
    size_t at = 0;
    while (status == AQ_OK && at < bytes) {
        size_t end = at + CHUNK_BYTES < bytes ? at + CHUNK_BYTES : bytes;
        while (end < bytes && text[end - 1] != '\n')
            end++; /* whole lines: chunks of ranks may be interleaved */
        status =
            aq_control_send(worker->control, json_pack("{s:s, s:s%}", "event", "trace", "text", text + at, end - at));
        at = end;
    }
    (free)(text); /* open_memstream's own memory */
    return status;
}

enum aq_status aq_worker_report_done(struct aq_worker *worker)
{
    AQ_TRY(report_trace(worker));
    struct aq_cache_stats cache = {0};
    if (worker->pipeline.cache) aq_cache_stats(worker->pipeline.cache, &cache);
    struct aq_link_stats in = {0}, out = {0};
    if (worker->pipeline.link_in) aq_link_stats(worker->pipeline.link_in, &in);
    if (worker->pipeline.link_out) aq_link_stats(worker->pipeline.link_out, &out);
    uint64_t wire_bytes = in.sent_wire_bytes + out.sent_wire_bytes + worker->links.ended_wire_bytes;
    for (uint32_t v = 0; worker->replicas.peers && v < worker->W; v++) {
        if (!worker->replicas.peers[v]) continue;
        aq_link_stats(worker->replicas.peers[v], &in);
        wire_bytes += in.sent_wire_bytes;
    }
    json_t *line = json_pack(
        "{s:s, s:I, s:f, s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "event", "done", "step",
        (json_int_t)worker->step, "seconds", (double)(aq_clock_ns() - worker->steps.go_ns) * 1e-9, "stopped",
        worker->steps.stopped, "cache_bytes", (json_int_t)cache.entry_bytes, "cache_file_bytes",
        (json_int_t)cache.file_bytes, "cache_entries", (json_int_t)cache.entries, "cache_hits", (json_int_t)cache.hits,
        "cache_colds", (json_int_t)cache.colds, "cache_corrupt", (json_int_t)cache.corrupt, "memory_bytes",
        (json_int_t)peak_memory(), "memory_planned", (json_int_t)worker->me->memory_bytes, "sent_wire_bytes",
        (json_int_t)wire_bytes, "cpu_ns", (json_int_t)aq_clock_cpu_ns(), "trace_dropped",
        (json_int_t)(worker->trace ? aq_trace_dropped(worker->trace) : 0));
    if (!line) return aq_fail(AQ_NOMEM, "worker", "no memory for the line of the end");
    add_outages(worker, line);
    return aq_control_send(worker->control, line);
}

void aq_worker_report_failed(const struct aq_worker *worker, enum aq_status status)
{
    const char *text = aq_error_text();
    json_t *line = json_pack("{s:s, s:s, s:s+}", "event", "failed", "status", aq_status_text(status), "text",
                             *text ? text : aq_status_text(status), "");
    if (worker->checkpoints.unreadable)
        json_object_set_new(line, "checkpoint", json_integer((json_int_t)worker->checkpoints.unreadable));
    /* If the channel is closed, too, only the exit status reports it. */
    if (aq_control_send(worker->control, line) == AQ_OK)
        (void)aq_control_flush(worker->control, aq_clock_after(2000000000u));
}
