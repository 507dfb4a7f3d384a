/* heartbeat.c -- see the header. */
#include "heartbeat.h"

#include <assert.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* All numbers are written and read relaxed: each is looked at by itself. */
struct aq_heartbeat_page {
    _Atomic uint64_t beats; /* of the worker's thread                   */
    _Atomic uint64_t work;  /* done by exec and the checkpoint's writer */
    _Atomic uint64_t rings; /* of the event count, which wraps                 */
    _Atomic uint64_t step;
    _Atomic uint32_t phase;
    uint32_t reserved;
    uint64_t interval_ns; /* the daemon's, before the worker is there */
};
static_assert(sizeof(struct aq_heartbeat_page) == 48, "one page, both sides of one build");

enum { PAGE_BYTES = 4096 };

static struct {
    struct aq_heartbeat_page nobody;        /* counts where nobody looks                            */
    struct aq_heartbeat_page *_Atomic page; /* NULL: nobody's                                       */
    struct aq_eventcount *stop_eventcount;
    atomic_bool stop; /* release in close, acquire in the thread */
    struct aq_mutex *mutex;
    struct aq_eventcount *eventcount; /* under the mutex: exec closes it  */
    struct aq_thread *thread;
} heartbeat;

const char *aq_phase_text(enum aq_phase phase)
{
    static const char *const texts[AQ_PHASES] = {[AQ_PHASE_START] = "reads its plan",
                                                 [AQ_PHASE_GO] = "waits for the others to be ready",
                                                 [AQ_PHASE_COMPUTE] = "computes",
                                                 [AQ_PHASE_NEIGHBOUR] = "waits for its neighbours",
                                                 [AQ_PHASE_REDUCE] = "averages with its replicas",
                                                 [AQ_PHASE_UPDATE] = "updates its weights",
                                                 [AQ_PHASE_EVALUATE] = "evaluates",
                                                 [AQ_PHASE_MARK] = "waits for a checkpoint",
                                                 [AQ_PHASE_END] = "ends",
                                                 [AQ_PHASE_DEVICE] = "opens its device and takes its memory",
                                                 [AQ_PHASE_DATA] = "reads the data",
                                                 [AQ_PHASE_WEIGHTS] = "loads its weights",
                                                 [AQ_PHASE_CACHE] = "opens its cache",
                                                 [AQ_PHASE_CONNECT] = "connects to its neighbours",
                                                 [AQ_PHASE_MEASURE] = "measures its links",
                                                 [AQ_PHASE_SUMS] = "waits for the other clients' gradients"};
    return (unsigned)phase < AQ_PHASES ? texts[phase] : "does something";
}

/* ---- the daemon's ---- */

enum aq_status aq_heartbeat_make(uint64_t interval_ns, int *fd, struct aq_heartbeat_page **out)
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

void aq_heartbeat_free(struct aq_heartbeat_page *page)
{
    if (page) (void)munmap(page, PAGE_BYTES);
}

static uint64_t get(const _Atomic uint64_t *number)
{
    return atomic_load_explicit(number, memory_order_relaxed);
}

void aq_heartbeat_read(const struct aq_heartbeat_page *page, struct aq_heartbeat_reading *out)
{
    const uint32_t phase = atomic_load_explicit(&page->phase, memory_order_relaxed);
    *out = (struct aq_heartbeat_reading){.beats = get(&page->beats),
                                         .work = (get(&page->work) + get(&page->rings)) & INT64_MAX,
                                         .step = get(&page->step) & INT64_MAX,
                                         .phase = phase < AQ_PHASES ? (enum aq_phase)phase : AQ_PHASE_START};
}

/* ---- the worker's ---- */

static struct aq_heartbeat_page *mine(void)
{
    struct aq_heartbeat_page *page = atomic_load_explicit(&heartbeat.page, memory_order_acquire);
    return page ? page : &heartbeat.nobody;
}

static void beat(void *context)
{
    struct aq_heartbeat_page *page = context;
    for (;;) {
        const uint32_t seen = aq_eventcount_read(heartbeat.stop_eventcount);
        if (atomic_load_explicit(&heartbeat.stop, memory_order_acquire)) return;
        aq_mutex_lock(heartbeat.mutex);
        if (heartbeat.eventcount)
            atomic_store_explicit(&page->rings, aq_eventcount_read(heartbeat.eventcount), memory_order_relaxed);
        aq_mutex_unlock(heartbeat.mutex);
        atomic_fetch_add_explicit(&page->beats, 1, memory_order_relaxed);
        (void)aq_eventcount_wait(heartbeat.stop_eventcount, seen, aq_clock_after(page->interval_ns / 2));
    }
}

enum aq_status aq_heartbeat_open(void)
{
    struct stat info;
    const int seals = fcntl(AQ_HEARTBEAT_FD, F_GET_SEALS);
    if (seals == -1 || !(seals & F_SEAL_SHRINK) || fstat(AQ_HEARTBEAT_FD, &info) != 0 || info.st_size != PAGE_BYTES)
        return AQ_OK; /* started by a program that does not read it */
    void *memory = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, AQ_HEARTBEAT_FD, 0);
    if (memory == MAP_FAILED) return aq_fail_errno("pulse", "the pulse's page");
    close(AQ_HEARTBEAT_FD);
    struct aq_heartbeat_page *page = memory;
    AQ_TRY(aq_eventcount_open(&heartbeat.stop_eventcount));
    AQ_TRY(aq_mutex_open(&heartbeat.mutex));
    atomic_store_explicit(&heartbeat.page, page, memory_order_release);
    return page->interval_ns ? aq_thread_open("aq-pulse", beat, page, &heartbeat.thread) : AQ_OK;
}

void aq_heartbeat_close(void)
{
    atomic_store_explicit(&heartbeat.stop, true, memory_order_release);
    if (heartbeat.stop_eventcount) aq_eventcount_notify(heartbeat.stop_eventcount);
    aq_thread_close(heartbeat.thread);
    aq_mutex_close(heartbeat.mutex);
    aq_eventcount_close(heartbeat.stop_eventcount);
    struct aq_heartbeat_page *page = atomic_exchange_explicit(&heartbeat.page, NULL, memory_order_acq_rel);
    aq_heartbeat_free(page);
    heartbeat.thread = NULL;
    heartbeat.mutex = NULL;
    heartbeat.stop_eventcount = NULL;
}

void aq_heartbeat_eventcount(struct aq_eventcount *eventcount)
{
    if (!heartbeat.mutex) return;
    aq_mutex_lock(heartbeat.mutex);
    heartbeat.eventcount = eventcount;
    aq_mutex_unlock(heartbeat.mutex);
}

void aq_heartbeat_work(void)
{
    atomic_fetch_add_explicit(&mine()->work, 1, memory_order_relaxed);
}

void aq_heartbeat_step(uint64_t step)
{
    atomic_store_explicit(&mine()->step, step, memory_order_relaxed);
}

void aq_heartbeat_phase(enum aq_phase phase)
{
    atomic_store_explicit(&mine()->phase, (uint32_t)phase, memory_order_relaxed);
}
