/*
 * cuda_memory_host.c -- CUDA's memory on the host, no kinder than a GPU's.
 *
 * Device memory is aligned to 256 bytes, as CUDA's manual promises, and to no more; pinned memory to 512 and never to a
 * page. Fresh memory holds another pattern in each allocation and in each process: NaNs in one, numbers in the next.
 * Every allocation has pages of its own with one before and behind it that nobody may touch; freed memory may not be
 * touched again. For the kernels, cuda_host_watch.h knows of each byte whether anything was written to it.
 *
 * aq_device_alloc promises zeroes. With CUDA_HOST_FRESH=poison in the environment it breaks the promise: the first
 * memset to zero of memory that nobody has written does nothing, so that its bytes differ between processes. It is for
 * tests of code which must not rely on the promise: their two ends compare what they computed.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cuda_host_test.h"
#include "cuda_runtime_api.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(memory, bytes)   ((void)(memory), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(memory, bytes) ((void)(memory), (void)(bytes))
#endif

enum { DEVICE_ALIGN = 256, PINNED_ALIGN = 512, PAGE = 4096 };
static const size_t REGION = (size_t)1 << 37; /* addresses, of which each is used once */

static size_t memory_all = (size_t)1 << 36;
static _Atomic size_t memory_used;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint8_t *region, *pinned_region;
static size_t region_used, pinned_used;

void cuda_runtime_host_memory(size_t bytes)
{
    memory_all = bytes;
}

size_t cuda_runtime_host_used(void)
{
    return memory_used;
}

size_t cuda_runtime_host_all(void)
{
    const char *text = getenv("CUDA_HOST_MIB");
    const long mib = text ? strtol(text, NULL, 10) : 0;
    return mib > 0 ? (size_t)mib << 20 : memory_all;
}

static uint8_t *addresses(void)
{
    void *memory = mmap(NULL, REGION, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return NULL;
    (void)madvise(memory, REGION, MADV_DONTDUMP);
    return memory;
}

static bool regions_open(void)
{
    if (pinned_region) return true;
    if (!region) region = addresses();
    if (!region || !cuda_host_device_memory(region, REGION)) return false;
    pinned_region = addresses();
    return pinned_region != NULL;
}

static size_t pages_of(size_t bytes, size_t align)
{
    return (align + bytes + PAGE - 1) / PAGE * PAGE;
}

/*
 * Of an allocation as large as this only the ends are filled: a stream's scratch is 96 MiB, mostly never used. Where
 * the promise is broken a codec's scratch is filled, too (13 MiB).
 */
enum { LARGE = 4 << 20, VERY_LARGE = 16 << 20, LARGE_END = 256 << 10 };

/* CUDA_HOST_FRESH=poison: see above. */
static bool breaks_promise(void)
{
    const char *wish = getenv("CUDA_HOST_FRESH");
    return wish && strcmp(wish, "poison") == 0;
}

/* Zeroes; whole pages of many are given back to the kernel, which has such. */
static void clear(uint8_t *memory, size_t bytes)
{
    const size_t head = (PAGE - (uintptr_t)memory % PAGE) % PAGE;
    const size_t whole = bytes > head ? (bytes - head) / PAGE * PAGE : 0;
    if (bytes < LARGE || madvise(memory + head, whole, MADV_DONTNEED) != 0) {
        memset(memory, 0, bytes);
        return;
    }
    memset(memory, 0, head);
    memset(memory + head + whole, 0, bytes - head - whole);
}

/* What fresh memory holds: another pattern each time. The odd ones are NaNs of every type of float. */
static void poison(uint8_t *memory, size_t bytes)
{
    static atomic_uint_fast64_t serial;
    const uint64_t count = atomic_fetch_add(&serial, 1) + 1;
    uint64_t word = (UINT64_C(0x9e3779b97f4a7c15) * (uint64_t)getpid() ^ count) * UINT64_C(0xbf58476d1ce4e5b9);
    word ^= word >> 31;
    if (count % 2) word |= UINT64_C(0xff81ff81ff81ff81);
    uint64_t piece[512];
    for (size_t i = 0; i < sizeof piece / sizeof *piece; i++)
        piece[i] = word;
    for (size_t at = 0; at < bytes; at += sizeof piece)
        memcpy(memory + at, piece, bytes - at < sizeof piece ? bytes - at : sizeof piece);
}

/* Its size stands at the beginning of its first page. */
static uint8_t *pages_take(uint8_t **base, size_t *used, size_t bytes, size_t align)
{
    const size_t whole = pages_of(bytes, align);
    uint8_t *page = NULL;
    (void)pthread_mutex_lock(&lock);
    if (regions_open() && REGION - *used > whole + 2 * PAGE) {
        page = *base + *used + PAGE;
        *used += whole + PAGE;
    }
    (void)pthread_mutex_unlock(&lock);
    if (!page || mprotect(page, whole, PROT_READ | PROT_WRITE) != 0) return NULL;
    if (whole >= (size_t)2 << 20) (void)madvise(page, whole, MADV_HUGEPAGE); /* its first touch is what it costs */
    memcpy(page, &bytes, sizeof bytes);
    if (bytes < (breaks_promise() ? VERY_LARGE : LARGE)) {
        poison(page + align, bytes);
    } else {
        poison(page + align, LARGE_END);
        poison(page + align + bytes - LARGE_END, LARGE_END);
    }
    ASAN_POISON_MEMORY_REGION(page, align);
    ASAN_POISON_MEMORY_REGION(page + align + bytes, whole - align - bytes);
    return page + align;
}

static void pages_return(uint8_t *memory, size_t bytes, size_t align)
{
    const size_t whole = pages_of(bytes, align);
    ASAN_UNPOISON_MEMORY_REGION(memory - align, whole);
    (void)mmap(memory - align, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    /* Like its neighbours, so that the kernel joins them: it allows some 65,000 mappings per process. */
    (void)madvise(memory - align, whole, MADV_DONTDUMP);
}

static size_t size_of(const uint8_t *memory, size_t align)
{
    size_t bytes;
    ASAN_UNPOISON_MEMORY_REGION(memory - align, align);
    memcpy(&bytes, memory - align, sizeof bytes);
    return bytes;
}

bool cuda_runtime_host_pinned(const void *memory)
{
    const uint8_t *at = memory;
    return pinned_region && at >= pinned_region && at < pinned_region + REGION;
}

size_t cuda_runtime_host_size(const void *memory)
{
    return size_of(memory, DEVICE_ALIGN);
}

cudaError_t cudaMalloc(void **out, size_t bytes)
{
    if (cuda_runtime_host_unsafe() != cudaSuccess) return cudaErrorStreamCaptureUnsupported;
    if (bytes > cuda_runtime_host_all() - memory_used) return cudaErrorMemoryAllocation;
    uint8_t *memory = pages_take(&region, &region_used, bytes, DEVICE_ALIGN);
    if (!memory) return cudaErrorMemoryAllocation;
    cuda_host_mark(memory, bytes, CUDA_HOST_FRESH);
    memory_used += bytes;
    *out = memory;
    return cudaSuccess;
}

cudaError_t cudaFree(void *memory)
{
    if (!memory) return cudaSuccess;
    if (cuda_runtime_host_unsafe() != cudaSuccess) return cudaErrorStreamCaptureUnsupported;
    (void)cuda_runtime_host_finish(); /* as CUDA's waits */
    const size_t bytes = size_of(memory, DEVICE_ALIGN);
    memory_used -= bytes;
    (void)cuda_ipc_host_export_ends(memory);
    cuda_host_mark(memory, bytes, CUDA_HOST_NONE);
    pages_return(memory, bytes, DEVICE_ALIGN);
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned flags)
{
    (void)flags;
    if (cuda_runtime_host_unsafe() != cudaSuccess) return cudaErrorStreamCaptureUnsupported;
    *out = pages_take(&pinned_region, &pinned_used, bytes, PINNED_ALIGN);
    return *out ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaFreeHost(void *memory)
{
    if (!memory) return cudaSuccess;
    if (cuda_runtime_host_unsafe() != cudaSuccess) return cudaErrorStreamCaptureUnsupported;
    (void)cuda_runtime_host_finish();
    pages_return(memory, size_of(memory, PINNED_ALIGN), PINNED_ALIGN);
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *left, size_t *all)
{
    *all = cuda_runtime_host_all();
    *left = *all - memory_used;
    return cudaSuccess;
}

/* --- what is known of each byte --------------------------------------------------------------------------------- */

void cuda_runtime_host_wrote(void *memory, size_t bytes)
{
    if (cuda_host_is_device(memory)) cuda_host_mark(memory, bytes, CUDA_HOST_READABLE);
}

void cuda_runtime_host_copy(void *to, const void *from, size_t bytes)
{
    if (cuda_host_is_device(to) && cuda_host_is_device(from))
        cuda_host_copied(to, from, bytes);
    else
        cuda_runtime_host_wrote(to, bytes);
    memmove(to, from, bytes);
}

void cuda_runtime_host_set(void *to, int value, size_t bytes)
{
    const bool first = value == 0 && cuda_host_is_device(to) && cuda_host_all(to, bytes, CUDA_HOST_FRESH);
    if (first && breaks_promise()) {
        cuda_host_mark(to, bytes, CUDA_HOST_PROMISED);
        return;
    }
    cuda_runtime_host_wrote(to, bytes);
    if (first)
        clear(to, bytes); /* no file is in its place: cuda_ipc_host.c */
    else
        memset(to, value, bytes);
}
