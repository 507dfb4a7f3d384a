/* pulse.c -- see the header. */
#include "pulse.h"

#include <assert.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* All numbers are written and read relaxed: each is looked at by itself. */
struct aq_pulse_page {
    _Atomic uint64_t beats; /* of the worker's thread                   */
    _Atomic uint64_t work;  /* done by exec and the checkpoint's writer */
    _Atomic uint64_t rings; /* of the bell, which wraps                 */
    _Atomic uint64_t step;
    _Atomic uint32_t doing;
    uint32_t reserved;
    uint64_t interval_ns; /* the daemon's, before the worker is there */
};
static_assert(sizeof(struct aq_pulse_page) == 48, "one page, both sides of one build");

enum { PAGE_BYTES = 4096 };

static struct {
    struct aq_pulse_page nobody;        /* counts where nobody looks                            */
    struct aq_pulse_page *_Atomic page; /* NULL: nobody's                                       */
    struct aq_bell *stop_bell;
    atomic_bool stop; /* release in close, acquire in the thread */
    struct aq_mutex *mutex;
    struct aq_bell *bell; /* under the mutex: exec closes it  */
    struct aq_thread *thread;
} pulse;

const char *aq_doing_text(enum aq_doing doing)
{
    static const char *const texts[AQ_DOINGS] = {[AQ_DOING_START] = "reads its plan",
                                                 [AQ_DOING_GO] = "waits for the others to be ready",
                                                 [AQ_DOING_COMPUTE] = "computes",
                                                 [AQ_DOING_NEIGHBOUR] = "waits for its neighbours",
                                                 [AQ_DOING_REDUCE] = "averages with its replicas",
                                                 [AQ_DOING_UPDATE] = "updates its weights",
                                                 [AQ_DOING_EVALUATE] = "evaluates",
                                                 [AQ_DOING_MARK] = "waits for a checkpoint",
                                                 [AQ_DOING_END] = "ends",
                                                 [AQ_DOING_DEVICE] = "opens its device and takes its memory",
                                                 [AQ_DOING_DATA] = "reads and tokenizes the data",
                                                 [AQ_DOING_WEIGHTS] = "loads its weights",
                                                 [AQ_DOING_CACHE] = "opens its cache",
                                                 [AQ_DOING_CONNECT] = "connects to its neighbours",
                                                 [AQ_DOING_MEASURE] = "measures its links",
                                                 [AQ_DOING_SUMS] = "waits for the other clients' gradients"};
    return (unsigned)doing < AQ_DOINGS ? texts[doing] : "does something";
}

/* ---- the daemon's ---- */

enum aq_status aq_pulse_make(uint64_t interval_ns, int *fd, struct aq_pulse_page **out)
{
    const int made = memfd_create("aq-pulse", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (made == -1) return aq_fail_errno("pulse", "no memory for a worker's pulse");
    void *memory = MAP_FAILED;
    if (ftruncate(made, PAGE_BYTES) == 0 && fcntl(made, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
        memory = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, made, 0);
    if (memory == MAP_FAILED) {
        const enum aq_status status = aq_fail_errno("pulse", "no memory for a worker's pulse");
        close(made);
        return status;
    }
    *out = memory;
    (*out)->interval_ns = interval_ns;
    *fd = made;
    return AQ_OK;
}

void aq_pulse_free(struct aq_pulse_page *page)
{
    if (page) (void)munmap(page, PAGE_BYTES);
}

static uint64_t get(const _Atomic uint64_t *number)
{
    return atomic_load_explicit(number, memory_order_relaxed);
}

void aq_pulse_read(const struct aq_pulse_page *page, struct aq_pulse_reading *out)
{
    const uint32_t doing = atomic_load_explicit(&page->doing, memory_order_relaxed);
    *out = (struct aq_pulse_reading){.beats = get(&page->beats),
                                     .work = (get(&page->work) + get(&page->rings)) & INT64_MAX,
                                     .step = get(&page->step) & INT64_MAX,
                                     .doing = doing < AQ_DOINGS ? (enum aq_doing)doing : AQ_DOING_START};
}

/* ---- the worker's ---- */

static struct aq_pulse_page *mine(void)
{
    struct aq_pulse_page *page = atomic_load_explicit(&pulse.page, memory_order_acquire);
    return page ? page : &pulse.nobody;
}

static void beat(void *context)
{
    struct aq_pulse_page *page = context;
    for (;;) {
        const uint32_t seen = aq_bell_count(pulse.stop_bell);
        if (atomic_load_explicit(&pulse.stop, memory_order_acquire)) return;
        aq_mutex_lock(pulse.mutex);
        if (pulse.bell) atomic_store_explicit(&page->rings, aq_bell_count(pulse.bell), memory_order_relaxed);
        aq_mutex_unlock(pulse.mutex);
        atomic_fetch_add_explicit(&page->beats, 1, memory_order_relaxed);
        (void)aq_bell_wait(pulse.stop_bell, seen, aq_clock_after(page->interval_ns / 2));
    }
}

enum aq_status aq_pulse_open(void)
{
    struct stat info;
    const int seals = fcntl(AQ_PULSE_FD, F_GET_SEALS);
    if (seals == -1 || !(seals & F_SEAL_SHRINK) || fstat(AQ_PULSE_FD, &info) != 0 || info.st_size != PAGE_BYTES)
        return AQ_OK; /* started by a program that does not read it */
    void *memory = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, AQ_PULSE_FD, 0);
    if (memory == MAP_FAILED) return aq_fail_errno("pulse", "the pulse's page");
    close(AQ_PULSE_FD);
    struct aq_pulse_page *page = memory;
    AQ_TRY(aq_bell_open(&pulse.stop_bell));
    AQ_TRY(aq_mutex_open(&pulse.mutex));
    atomic_store_explicit(&pulse.page, page, memory_order_release);
    return page->interval_ns ? aq_thread_open("aq-pulse", beat, page, &pulse.thread) : AQ_OK;
}

void aq_pulse_close(void)
{
    atomic_store_explicit(&pulse.stop, true, memory_order_release);
    if (pulse.stop_bell) aq_bell_ring(pulse.stop_bell);
    aq_thread_close(pulse.thread);
    aq_mutex_close(pulse.mutex);
    aq_bell_close(pulse.stop_bell);
    struct aq_pulse_page *page = atomic_exchange_explicit(&pulse.page, NULL, memory_order_acq_rel);
    aq_pulse_free(page);
    pulse.thread = NULL;
    pulse.mutex = NULL;
    pulse.stop_bell = NULL;
}

void aq_pulse_bell(struct aq_bell *bell)
{
    if (!pulse.mutex) return;
    aq_mutex_lock(pulse.mutex);
    pulse.bell = bell;
    aq_mutex_unlock(pulse.mutex);
}

void aq_pulse_work(void)
{
    atomic_fetch_add_explicit(&mine()->work, 1, memory_order_relaxed);
}

void aq_pulse_step(uint64_t step)
{
    atomic_store_explicit(&mine()->step, step, memory_order_relaxed);
}

void aq_pulse_doing(enum aq_doing doing)
{
    atomic_store_explicit(&mine()->doing, (uint32_t)doing, memory_order_relaxed);
}
