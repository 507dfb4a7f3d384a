/*
 * virtual_clock.c -- aqsgd/base/clock.c with a source that a test may change: found by the linker before the library's.
 */
#define aq_clock_ns    system_clock_ns
#define aq_clock_after system_clock_after
#include "clock.c"
#undef aq_clock_ns
#undef aq_clock_after

#include <stddef.h>

#include "virtual_clock.h"

static uint64_t (*virtual_source)(void *context);
static void *virtual_context;

uint64_t aq_clock_ns(void);
uint64_t aq_clock_after(uint64_t ns);

uint64_t aq_clock_ns(void)
{
    return virtual_source ? virtual_source(virtual_context) : system_clock_ns();
}

uint64_t aq_clock_after(uint64_t ns)
{
    const uint64_t now = aq_clock_ns();
    return ns > AQ_NEVER - now ? AQ_NEVER : now + ns;
}

void virtual_clock(uint64_t (*source)(void *context), void *context)
{
    virtual_context = context;
    virtual_source = source;
}
