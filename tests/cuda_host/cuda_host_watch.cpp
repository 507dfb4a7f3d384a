/*
 * cuda_host_watch.cpp -- see cuda_host_watch.h.
 *
 * A *segment* is what one thread does between two fences. Each byte of shared memory keeps the segment of its last
 * write and of its last read; segments are numbered through, so that those of earlier blocks are older than the block's
 * first. One reader a byte is kept, the last: who reads before it may be missed under one seed and found under another.
 */
#include "cuda_host_watch.h"
#undef memcpy
#undef memset

#include <cstdio>
#include <cstdlib>
#include <vector>

#include <sys/mman.h>

#include "cuda_host_test.h"

namespace cuda_host
{

watched_memory watched_shared;

namespace
{

/* CUDA_HOST_WATCH=0: nothing is looked at. For whole jobs, whose kernels other tests watch: it halves their time. */
bool is_blind()
{
    const char *wish = std::getenv("CUDA_HOST_WATCH");
    return wish && std::strcmp(wish, "0") == 0;
}

constexpr uint32_t FORBIDDEN = ~(uint32_t)0, SEGMENTS_MAX = FORBIDDEN - (1u << 24);
constexpr size_t THREADS_MAX = 1024, WARPS_MAX = THREADS_MAX / 32;

struct segment {
    uint16_t thread;
    bool atomic;
    uint32_t epoch, time; /* meetings of the block, of the warp, before it */
};

/* Meetings of a warp in __syncwarp, counted. known[a][b]: what lane b did before that time is over for lane a. */
struct warp {
    uint32_t time, all; /* all: for all lanes of one another */
    bool parted;        /* some met without the others: known counts */
};
using warp_known = uint32_t[32][32];

/* What is known of four bytes: the segment of each one's last write, and of its last read. */
struct alignas(32) cell {
    uint32_t writes[4], reads[4];
};

struct watcher {
    std::vector<cell> cells;       /* of shared memory */
    std::vector<segment> segments; /* of this block, from `first` on */
    uint32_t first = 1, epoch = 1, thread = 0, threads = 0;
    uint32_t since = 1;            /* the first segment since all threads met: older ones are in order */
    uint32_t mine[THREADS_MAX][2]; /* the running segments, of plain and of atomic accesses; 0: none yet */
    warp warps[WARPS_MAX];
    warp_known known[WARPS_MAX];
};

watcher only;

uint32_t segment_of_thread(bool atomic)
{
    watcher &w = only;
    uint32_t &mine = w.mine[w.thread][atomic];
    if (mine == 0) {
        mine = w.first + (uint32_t)w.segments.size();
        w.segments.push_back({(uint16_t)w.thread, atomic, w.epoch, w.warps[w.thread / 32].time});
    }
    return mine;
}

/* Is what segment `other` did over, for what `own` does? */
bool ordered(uint32_t other, uint32_t own)
{
    watcher &w = only;
    const segment &then = w.segments[other - w.first], &now = w.segments[own - w.first];
    if (then.thread == now.thread || then.epoch < w.epoch) return true;
    if (then.atomic && now.atomic) return true;
    if (then.thread / 32 != now.thread / 32) return false;
    const warp &both = w.warps[then.thread / 32];
    const warp_known &known = w.known[then.thread / 32];
    return then.time < both.all || (both.parted && then.time < known[now.thread % 32][then.thread % 32]);
}

[[noreturn]] void tell(const void *code, uintptr_t at, const char *does, uint32_t other, const char *did)
{
    watcher &w = only;
    char text[400];
    const std::string place = shared_place(at);
    int used = std::snprintf(text, sizeof text, "thread %u %s %s", w.thread, does, place.c_str());
    if (other != FORBIDDEN && other < w.first)
        std::snprintf(text + used, sizeof text - (size_t)used, ", which nobody wrote");
    else if (other != FORBIDDEN)
        std::snprintf(text + used, sizeof text - (size_t)used, ", which thread %u %s, with no %s__syncthreads between",
                      (unsigned)w.segments[other - w.first].thread, did,
                      w.segments[other - w.first].thread / 32 == w.thread / 32 ? "__syncwarp or " : "");
    watch_failed(code, text);
}

void shared_access(const void *code, uintptr_t at, size_t bytes, bool write, bool atomic)
{
    watcher &w = only;
    const size_t offset = at - watched_shared.from;
    const uint32_t own = segment_of_thread(atomic);
    uint32_t seen_write = own, seen_read = own;
    for (size_t i = 0; i < bytes; i++) {
        cell &four = w.cells[(offset + i) / 4];
        uint32_t &wrote = four.writes[(offset + i) % 4], &read = four.reads[(offset + i) % 4];
        if (wrote != seen_write) {
            seen_write = wrote;
            const bool known = seen_write >= w.first && seen_write != FORBIDDEN;
            if (known ? !ordered(seen_write, own) : !write || atomic || seen_write == FORBIDDEN)
                tell(code, at + i, write ? "writes" : "reads", seen_write, "wrote");
        }
        if (!write) {
            read = own;
            continue;
        }
        if (read != seen_read && (seen_read = read) >= w.first && !ordered(seen_read, own))
            tell(code, at + i, "writes", seen_read, "read");
        wrote = own;
    }
}

/* A state for each page of the region; MIXED where its bytes have states of their own. */
constexpr size_t PAGE = 4096;
constexpr uint8_t MIXED = 0xff;
uintptr_t device_from;
size_t device_bytes, watched_bytes; /* the second: none where nothing is looked at */
uint8_t *page_states, *byte_states;

uint8_t state_of(size_t offset)
{
    return page_states[offset / PAGE] == MIXED ? byte_states[offset] : page_states[offset / PAGE];
}

void mark(size_t offset, size_t bytes, uint8_t state)
{
    while (bytes > 0) {
        const size_t begin = offset % PAGE, part = std::min(bytes, PAGE - begin);
        uint8_t &page = page_states[offset / PAGE];
        if (part == PAGE) {
            page = state;
        } else if (page != state) {
            if (page != MIXED) std::memset(byte_states + offset - begin, page, PAGE);
            page = MIXED;
            std::memset(byte_states + offset, state, part);
        }
        offset += part;
        bytes -= part;
    }
}

void device_access(const void *code, size_t offset, size_t bytes, bool write, bool atomic)
{
    const uint8_t least = write && !atomic ? CUDA_HOST_FRESH : CUDA_HOST_PROMISED;
    for (size_t i = 0; i < bytes; i++) {
        const uint8_t state = state_of(offset + i);
        if (state >= least) continue;
        char text[200];
        std::snprintf(text, sizeof text, "thread %u %s the byte of device memory at %#zx, which %s", only.thread,
                      write ? "writes" : "reads", (size_t)(device_from + offset + i),
                      state == CUDA_HOST_NONE ? "is in no allocation" : "nothing has written");
        watch_failed(code, text);
    }
    if (write) mark(offset, bytes, CUDA_HOST_READABLE);
}

using of_bytes = uint32_t (cell::*)[4]; /* &cell::writes or &cell::reads */

/* Of N bytes from byte `begin` of a cell on: the segment that all of them name, or FORBIDDEN. */
template <size_t N> inline uint32_t segment_of(const cell *four, size_t begin, of_bytes kind)
{
    const uint32_t first = (four->*kind)[begin];
    uint32_t differ = 0;
    for (size_t i = 1; i < N; i++)
        differ |= (four[i / 4].*kind)[(begin + i) % 4] ^ first;
    return differ ? FORBIDDEN : first;
}

/* Most accesses are of an aligned value that one thread wrote: itself, or any before all threads met. Is this one? */
template <size_t N> inline bool value_is_in_order(size_t offset, bool write)
{
    watcher &w = only;
    const uint32_t own = w.mine[w.thread][0];
    const size_t begin = N < 4 ? offset % 4 : 0;
    if (own == 0 || (N < 4 ? begin + N > 4 : offset % 4 != 0)) return false;
    cell *four = &w.cells[offset / 4];
    const uint32_t wrote = segment_of<N>(four, begin, &cell::writes);
    if (wrote != own && (wrote >= w.since || (!write && wrote < w.first))) return false;
    if (write) {
        const uint32_t read = segment_of<N>(four, begin, &cell::reads);
        if (read != own && read >= w.since) return false;
    }
    const of_bytes kind = write ? &cell::writes : &cell::reads;
    for (size_t i = 0; i < N; i++)
        (four[i / 4].*kind)[(begin + i) % 4] = own;
    return true;
}

/* Are all N bytes within a page, and is each known as written? */
template <size_t N> inline bool all_readable(size_t offset)
{
    if (offset % PAGE + N > PAGE) return false;
    const uint8_t page = page_states[offset / PAGE];
    if (page != MIXED) return page == CUDA_HOST_READABLE;
    uint8_t differ = 0;
    for (size_t i = 0; i < N; i++)
        differ |= (uint8_t)(byte_states[offset + i] ^ CUDA_HOST_READABLE);
    return differ == 0;
}

inline void access(const void *code, const void *address, size_t bytes, bool write, bool atomic = false)
{
    const uintptr_t at = reinterpret_cast<uintptr_t>(address);
    if (at - watched_shared.from < watched_shared.bytes) return shared_access(code, at, bytes, write, atomic);
    const size_t offset = at - device_from;
    if (offset >= watched_bytes) return;
    if (page_states[offset / PAGE] == CUDA_HOST_READABLE && offset % PAGE + bytes <= PAGE) return;
    device_access(code, offset, bytes, write, atomic);
}

template <size_t N> __attribute__((noinline)) void access_watched(const void *code, const void *address, bool write)
{
    const uintptr_t at = reinterpret_cast<uintptr_t>(address);
    const size_t shared = at - watched_shared.from, device = at - device_from;
    if (shared >= watched_shared.bytes ? all_readable<N>(device) : value_is_in_order<N>(shared, write)) return;
    access(code, address, N, write);
}

template <size_t N> __attribute__((always_inline)) inline void access(const void *code, const void *address, bool write)
{
    const uintptr_t at = reinterpret_cast<uintptr_t>(address);
    if (at - watched_shared.from < watched_shared.bytes || at - device_from < watched_bytes)
        access_watched<N>(code, address, write); /* mostly not: a thread's own */
}

} // namespace

void watch_shared(void *memory, size_t bytes)
{
    watched_shared = {reinterpret_cast<uintptr_t>(memory), is_blind() ? 0 : bytes};
    only.cells.assign(bytes / 4, {{FORBIDDEN, FORBIDDEN, FORBIDDEN, FORBIDDEN}, {0, 0, 0, 0}});
}

void watch_forbid(const void *memory, size_t bytes, bool forbid)
{
    const size_t offset = reinterpret_cast<uintptr_t>(memory) - watched_shared.from;
    for (size_t i = offset; i < offset + bytes; i++)
        only.cells[i / 4].writes[i % 4] = forbid ? FORBIDDEN : 0;
}

void watch_block(size_t threads)
{
    watcher &w = only;
    w.first += (uint32_t)w.segments.size();
    w.segments.clear();
    if (w.first > SEGMENTS_MAX) {
        for (cell &four : w.cells) {
            for (uint32_t &wrote : four.writes)
                wrote = wrote == FORBIDDEN ? FORBIDDEN : 0;
            std::fill_n(four.reads, 4, 0);
        }
        w.first = 1;
    }
    w.since = w.first;
    w.threads = (uint32_t)threads;
    std::memset(w.mine, 0, threads * sizeof w.mine[0]);
    for (size_t i = 0; 32 * i < threads; i++)
        w.warps[i].time = w.warps[i].all = w.warps[i].parted = 0;
}

void watch_thread(uint32_t thread)
{
    only.thread = thread;
}

void watch_block_met()
{
    watcher &w = only;
    w.epoch++;
    w.since = w.first + (uint32_t)w.segments.size();
    std::memset(w.mine, 0, w.threads * sizeof w.mine[0]);
}

void watch_warp_met(uint32_t index, uint32_t mask)
{
    watcher &w = only;
    warp &warp = w.warps[index];
    warp_known &known = w.known[index];
    const uint32_t first = 32 * index, lanes = std::min(w.threads - first, 32u);
    const bool everyone = mask == (lanes == 32 ? ~(uint32_t)0 : (1u << lanes) - 1);
    warp.time++;
    if (!everyone && !warp.parted) {
        for (auto &row : known)
            std::fill_n(row, 32, warp.all);
        warp.parted = true;
    }
    uint32_t joined[32] = {0};
    for (uint32_t lane = 0; lane < lanes; lane++) {
        if (!(mask >> lane & 1)) continue;
        w.mine[first + lane][0] = w.mine[first + lane][1] = 0;
        for (uint32_t other = 0; !everyone && other < lanes; other++)
            joined[other] = std::max(joined[other], mask >> other & 1 ? warp.time : known[lane][other]);
    }
    if (everyone) {
        warp.all = warp.time;
        return;
    }
    for (uint32_t lane = 0; lane < lanes; lane++)
        if (mask >> lane & 1) std::memcpy(known[lane], joined, sizeof joined);
}

void watch_read(const void *from, size_t bytes)
{
    access(__builtin_return_address(0), from, bytes, false);
}

void watch_write(const void *to, size_t bytes)
{
    access(__builtin_return_address(0), to, bytes, true);
}

} // namespace cuda_host

using namespace cuda_host;

bool cuda_host_device_memory(const void *region, size_t bytes)
{
    const int protection = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *states = mmap(nullptr, bytes + bytes / PAGE, protection, flags, -1, 0);
    if (states == MAP_FAILED) return false;
    (void)madvise(states, bytes + bytes / PAGE, MADV_DONTDUMP);
    byte_states = static_cast<uint8_t *>(states);
    page_states = byte_states + bytes;
    device_from = reinterpret_cast<uintptr_t>(region);
    device_bytes = bytes;
    watched_bytes = is_blind() ? 0 : bytes;
    return true;
}

bool cuda_host_is_device(const void *memory)
{
    return reinterpret_cast<uintptr_t>(memory) - device_from < device_bytes;
}

void cuda_host_mark(const void *memory, size_t bytes, enum cuda_host_state state)
{
    mark(reinterpret_cast<uintptr_t>(memory) - device_from, bytes, (uint8_t)state);
}

bool cuda_host_all(const void *memory, size_t bytes, enum cuda_host_state state)
{
    size_t offset = reinterpret_cast<uintptr_t>(memory) - device_from;
    for (const size_t end = offset + bytes; offset < end;) {
        if (state_of(offset) != state) return false;
        offset += page_states[offset / PAGE] == MIXED ? 1 : PAGE - offset % PAGE;
    }
    return true;
}

void cuda_host_copied(const void *to, const void *from, size_t bytes)
{
    if (cuda_host_all(from, bytes, CUDA_HOST_READABLE)) return cuda_host_mark(to, bytes, CUDA_HOST_READABLE);
    const size_t source = reinterpret_cast<uintptr_t>(from) - device_from;
    for (size_t i = 0; i < bytes; i++)
        mark(reinterpret_cast<uintptr_t>(to) - device_from + i, 1, state_of(source + i));
}

/* What the compiler calls. */
#define CUDA_HOST_SEES(name, bytes, write)                                                                             \
    extern "C" void name(void *at)                                                                                     \
    {                                                                                                                  \
        cuda_host::access<bytes>(__builtin_return_address(0), at, write);                                              \
    }
CUDA_HOST_SEES(__tsan_read1, 1, false)
CUDA_HOST_SEES(__tsan_read2, 2, false)
CUDA_HOST_SEES(__tsan_read4, 4, false)
CUDA_HOST_SEES(__tsan_read8, 8, false)
CUDA_HOST_SEES(__tsan_read16, 16, false)
CUDA_HOST_SEES(__tsan_unaligned_read2, 2, false)
CUDA_HOST_SEES(__tsan_unaligned_read4, 4, false)
CUDA_HOST_SEES(__tsan_unaligned_read8, 8, false)
CUDA_HOST_SEES(__tsan_unaligned_read16, 16, false)
CUDA_HOST_SEES(__tsan_write1, 1, true)
CUDA_HOST_SEES(__tsan_write2, 2, true)
CUDA_HOST_SEES(__tsan_write4, 4, true)
CUDA_HOST_SEES(__tsan_write8, 8, true)
CUDA_HOST_SEES(__tsan_write16, 16, true)
CUDA_HOST_SEES(__tsan_unaligned_write2, 2, true)
CUDA_HOST_SEES(__tsan_unaligned_write4, 4, true)
CUDA_HOST_SEES(__tsan_unaligned_write8, 8, true)
CUDA_HOST_SEES(__tsan_unaligned_write16, 16, true)

/* Only atomicAdd and its like use these (cuda_host_math.h). Nothing else runs meanwhile. */
#define CUDA_HOST_ATOMIC_CELL(bits)                                                                                    \
    extern "C" uint##bits##_t __tsan_atomic##bits##_load(const volatile uint##bits##_t *at, int)                       \
    {                                                                                                                  \
        cuda_host::access(__builtin_return_address(0), const_cast<const uint##bits##_t *>(at), bits / 8, true, true);  \
        return *at;                                                                                                    \
    }                                                                                                                  \
    extern "C" void __tsan_atomic##bits##_store(volatile uint##bits##_t *at, uint##bits##_t value, int)                \
    {                                                                                                                  \
        *at = value;                                                                                                   \
    }
CUDA_HOST_ATOMIC_CELL(32)
CUDA_HOST_ATOMIC_CELL(64)

extern "C" void __tsan_read_range(void *at, unsigned long bytes)
{
    cuda_host::access(__builtin_return_address(0), at, bytes, false);
}

extern "C" void __tsan_write_range(void *at, unsigned long bytes)
{
    cuda_host::access(__builtin_return_address(0), at, bytes, true);
}

extern "C" void __tsan_init()
{
}
