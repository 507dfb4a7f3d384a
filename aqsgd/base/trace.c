/* trace.c -- spans in memory, a Chrome trace at the end. */
#include "aqsgd/base/trace.h"

#include <stdatomic.h>

#include "aqsgd/base/memory.h"

struct span {
    const char *lane, *name;
    uint64_t begin_ns, end_ns;
    uint32_t step, micro_batch;
};

struct aq_trace {
    uint32_t capacity;
    atomic_uint_fast64_t count; /* tickets: relaxed; readers run after all writers have been joined */
    struct span *spans;
};

enum aq_status aq_trace_open(uint32_t records, struct aq_trace **out)
{
    void *memory, *spans;
    AQ_TRY(aq_alloc(sizeof(struct aq_trace), &memory));
    const enum aq_status status = aq_map(records * sizeof(struct span), &spans);
    if (status != AQ_OK) {
        aq_free(memory);
        return status;
    }
    struct aq_trace *trace = memory;
    trace->capacity = records;
    trace->spans = spans;
    *out = trace;
    return AQ_OK;
}

void aq_trace_close(struct aq_trace *trace)
{
    if (!trace) return;
    aq_unmap(trace->spans, trace->capacity * sizeof(struct span));
    aq_free(trace);
}

void aq_trace_add(struct aq_trace *trace, const char *lane, const char *name, uint64_t begin_ns, uint64_t end_ns,
                  uint32_t step, uint32_t micro_batch)
{
    if (!trace) return;
    const uint64_t ticket = atomic_fetch_add_explicit(&trace->count, 1, memory_order_relaxed);
    if (ticket >= trace->capacity) return;
    trace->spans[ticket] = (struct span){lane, name, begin_ns, end_ns, step, micro_batch};
}

uint64_t aq_trace_dropped(const struct aq_trace *trace)
{
    const uint64_t count = atomic_load_explicit(&trace->count, memory_order_relaxed);
    return count > trace->capacity ? count - trace->capacity : 0;
}

enum aq_status aq_trace_write(const struct aq_trace *trace, int rank, uint64_t zero_ns, FILE *file)
{
    const uint64_t count = atomic_load_explicit(&trace->count, memory_order_relaxed);
    const uint64_t kept = count > trace->capacity ? trace->capacity : count;
    if (fprintf(file, "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"args\":{\"name\":\"stage %d\"}},\n", rank,
                rank) < 0)
        return aq_fail_errno("trace", "cannot write the trace");
    for (uint64_t i = 0; i < kept; i++) {
        const struct span *s = &trace->spans[i];
        const double begin = ((double)s->begin_ns - (double)zero_ns) * 1e-3;
        const double length = (double)(s->end_ns - s->begin_ns) * 1e-3;
        if (fprintf(file,
                    "{\"ph\":\"X\",\"name\":\"%s\",\"cat\":\"%s\",\"pid\":%d,\"tid\":\"%s\",\"ts\":%.3f,\"dur\":%.3f,"
                    "\"args\":{\"step\":%u,\"micro_batch\":%u}},\n",
                    s->name, s->lane, rank, s->lane, begin, length, s->step, s->micro_batch) < 0)
            return aq_fail_errno("trace", "cannot write the trace");
    }
    return AQ_OK;
}
