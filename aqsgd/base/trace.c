/* trace.c -- spans in memory, a Chrome trace at the end. */
#include "aqsgd/base/trace.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

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
    uint64_t crowded; /* did not find a row when they were written */
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
    /* The thread that ends a span may have read the clock before the one that started it: no span has a negative
     * length. */
    if (end_ns < begin_ns) end_ns = begin_ns;
    trace->spans[ticket] = (struct span){lane, name, begin_ns, end_ns, step, micro_batch};
}

uint64_t aq_trace_dropped(const struct aq_trace *trace)
{
    const uint64_t count = atomic_load_explicit(&trace->count, memory_order_relaxed);
    return (count > trace->capacity ? count - trace->capacity : 0) + trace->crowded;
}

/* ---- writing ---- */

enum { ROWS_MAX = AQ_TRACE_NAMES_MAX - 1, NESTED_MAX = 16 };

/* A line of the viewer: spans that follow each other or are nested. A lane whose spans overlap has several.
 */
struct row {
    const char *lane;
    uint32_t number; /* within its lane, from 1 */
    uint32_t open;
    uint64_t ends_ns[NESTED_MAX]; /* of spans that may contain the next one, the outermost first */
};

/* By lane, by start; of two that start together the longer one first, which may contain the other. */
static int by_place(const void *left, const void *right)
{
    const struct span *a = left, *b = right;
    const int lanes = strcmp(a->lane, b->lane);
    if (lanes != 0) return lanes;
    if (a->begin_ns != b->begin_ns) return a->begin_ns < b->begin_ns ? -1 : 1;
    if (a->end_ns != b->end_ns) return a->end_ns > b->end_ns ? -1 : 1;
    return 0;
}

static bool row_takes(struct row *row, const struct span *span)
{
    while (row->open > 0 && row->ends_ns[row->open - 1] <= span->begin_ns)
        row->open--;
    if (row->open == NESTED_MAX || (row->open > 0 && row->ends_ns[row->open - 1] < span->end_ns)) return false;
    row->ends_ns[row->open++] = span->end_ns;
    return true;
}

/* The row that the span goes to; UINT32_MAX: all are taken. */
static uint32_t row_of(struct row *rows, uint32_t *count, const struct span *span)
{
    uint32_t number = 1;
    for (uint32_t i = 0; i < *count; i++) {
        if (strcmp(rows[i].lane, span->lane) != 0) continue;
        if (row_takes(&rows[i], span)) return i;
        number++;
    }
    if (*count == ROWS_MAX) return UINT32_MAX;
    rows[*count] = (struct row){.lane = span->lane, .number = number};
    (void)row_takes(&rows[*count], span);
    return (*count)++;
}

static bool names_write(const struct row *rows, uint32_t count, int rank, FILE *file)
{
    bool good = fprintf(file, "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"args\":{\"name\":\"stage %d\"}},\n",
                        rank, rank) > 0;
    for (uint32_t i = 0; i < count; i++) {
        char number[16] = "";
        if (rows[i].number > 1) snprintf(number, sizeof number, " %u", rows[i].number);
        good = good &&
               fprintf(file,
                       "{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%u,\"args\":{\"name\":\"%s%s\"}},\n",
                       rank, i + 1, rows[i].lane, number) > 0;
    }
    return good;
}

/* Removes spans before time zero: viewers drop events of negative times. Returns how many are left. */
static uint64_t from_zero(struct span *spans, uint64_t count, uint64_t zero_ns)
{
    uint64_t kept = 0;
    for (uint64_t i = 0; i < count; i++) {
        if (spans[i].end_ns < zero_ns) continue;
        spans[kept] = spans[i];
        if (spans[kept].begin_ns < zero_ns) spans[kept].begin_ns = zero_ns;
        kept++;
    }
    return kept;
}

enum aq_status aq_trace_write(struct aq_trace *trace, int rank, uint64_t zero_ns, FILE *file)
{
    static struct row rows[ROWS_MAX]; /* one thread, see the header */
    const uint64_t count = atomic_load_explicit(&trace->count, memory_order_relaxed);
    const uint64_t kept = from_zero(trace->spans, count > trace->capacity ? trace->capacity : count, zero_ns);
    uint32_t row_count = 0;
    bool good = true;
    qsort(trace->spans, (size_t)kept, sizeof *trace->spans, by_place);
    for (uint64_t i = 0; i < kept && good; i++) {
        const struct span *s = &trace->spans[i];
        const uint32_t row = row_of(rows, &row_count, s);
        if (row == UINT32_MAX) {
            trace->crowded++;
            continue;
        }
        const double begin = ((double)s->begin_ns - (double)zero_ns) * 1e-3;
        const double length = (double)(s->end_ns - s->begin_ns) * 1e-3;
        const int written =
            fprintf(file,
                    "{\"ph\":\"X\",\"name\":\"%s\",\"cat\":\"%s\",\"pid\":%d,\"tid\":%u,\"ts\":%.3f,\"dur\":%.3f,"
                    "\"args\":{\"step\":%u,\"micro_batch\":%u}},\n",
                    s->name, s->lane, rank, row + 1, begin, length, s->step, s->micro_batch);
        good = written > 0;
        AQ_ASSERT(written <= AQ_TRACE_LINE_BYTES_MAX);
    }
    good = good && names_write(rows, row_count, rank, file);
    return good ? AQ_OK : aq_fail_errno("trace", "cannot write the trace");
}
