/*
 * bpe_budget.c -- what one text may cost: how long it may become, how many steps and how much CPU time patterns may
 * take.
 *
 * Steps are counted, so that a text is refused or taken alike on every machine. Scanning within a step has no count
 * (PCRE2 counts none), so CPU time bounds it; no published tokenizer comes near.
 */
#include "bpe.h"

#include <string.h>
#include <time.h>

/* ---- text that grows ---- */

enum aq_status aq_bpe_text_add(struct aq_bpe_text *text, const void *bytes, size_t count)
{
    if (text->bytes_max && count > text->bytes_max - text->count)
        return aq_fail(AQ_INVAL, AQ_BPE_AREA,
                       "%s makes a text longer than %zu bytes. A text may become %d times as long and %d bytes longer, "
                       "up to %zu bytes: remove this part from the tokenizer, or use another one",
                       text->place ? text->place : "the tokenizer", text->bytes_max, (int)AQ_BPE_GROWTH,
                       (int)AQ_BPE_GROWN_MIN, AQ_BPE_GROWN_MAX);
    if (count > text->capacity - text->count) {
        size_t capacity = text->count + count + text->count / 2 + 64;
        void *memory;
        if (count > SIZE_MAX / 4 || text->count > SIZE_MAX / 4)
            return aq_fail(AQ_NOMEM, AQ_BPE_AREA, "a text of %zu bytes does not fit the address space", count);
        AQ_TRY(aq_alloc(capacity, &memory));
        if (text->count) memcpy(memory, text->at, text->count);
        aq_free(text->at);
        text->at = memory;
        text->capacity = capacity;
    }
    if (count) memcpy(text->at + text->count, bytes, count);
    text->count += count;
    return AQ_OK;
}

void aq_bpe_text_free(struct aq_bpe_text *text)
{
    aq_free(text->at);
    *text = (struct aq_bpe_text){0};
}

/* ---- budget ---- */

enum { LOOK_NS = 10000000 };

static uint64_t thread_cpu_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void aq_bpe_budget_begin(struct aq_bpe_budget *budget, size_t bytes)
{
    const size_t most = AQ_BPE_GROWN_MAX < SIZE_MAX / 64 ? AQ_BPE_GROWN_MAX : SIZE_MAX / 64;
    const size_t grown = bytes < most / AQ_BPE_GROWTH ? bytes * AQ_BPE_GROWTH + AQ_BPE_GROWN_MIN : most;
    *budget = (struct aq_bpe_budget){
        .first = true,
        .grown_max = grown < bytes + AQ_BPE_GROWN_MIN ? bytes + AQ_BPE_GROWN_MIN : grown,
        .steps = AQ_BPE_STEPS_MIN + AQ_BPE_STEPS_PER_BYTE * (uint64_t)bytes,
        .cpu_end_ns = thread_cpu_ns() + AQ_BPE_CPU_NS_MIN + AQ_BPE_CPU_NS_PER_BYTE * bytes,
    };
}

struct aq_bpe_text aq_bpe_text_within(const struct aq_bpe_budget *budget, const char *place)
{
    return (struct aq_bpe_text){.bytes_max = budget->grown_max, .place = place};
}

bool aq_bpe_budget_take(struct aq_bpe_budget *budget, uint64_t steps)
{
    if (steps > budget->steps) return false;
    budget->steps -= steps;
    if (++budget->looked & 15) return true;
    const uint64_t now = aq_clock_ns(); /* 20 ns; the thread's own time is a system call */
    if (now < budget->look_ns) return true;
    budget->look_ns = now + LOOK_NS;
    return thread_cpu_ns() < budget->cpu_end_ns;
}
