/*
 * cuda_host.cpp -- runs a grid: blocks one after another, the threads of a block in turns.
 *
 * Each thread of a block has a stack. The launcher goes round the block's threads, in the order drawn for this block,
 * and lets each run until it waits for its warp or its block, or returns. The last to arrive at a meeting gives all
 * their results and goes on. A round in which nobody could run is a meeting that never happens: an error.
 */
#include "cuda_host.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <vector>

#include <sys/mman.h>

#include "cuda_host_switch.h"
#include "cuda_host_test.h"

namespace cuda_host
{

place here;

namespace
{

#ifdef CUDA_HOST_ASAN
constexpr size_t STACK_BYTES = 256 << 10;
#else
constexpr size_t STACK_BYTES = 64 << 10;
#endif
constexpr size_t THREADS_MAX = 1024;
constexpr size_t STATIC_MAX = 48 << 10, SHARED_MAX = 227 << 10, GUARD = 1024;
constexpr uint8_t UNWRITTEN = 0xff, GUARD_BYTE = 0xa5;
constexpr uint64_t STACK_END = 0x7374616b656e6421u; /* at the far end of each stack */

enum class state { ready, at_warp, at_block, done };

struct copy {
    void *to;
    const void *from;
    size_t bytes;
};

struct fiber {
    turn own;
    state now;
    uint3 thread;
    site at; /* where it waits */
    uint32_t mask;
    resolve_lanes resolve;
    int value;                /* what it brought to the block's meeting, then what came of it */
    std::vector<copy> copies; /* asynchronous, not waited for yet */
};

struct emulator {
    std::vector<fiber> fibers; /* of the block; THREADS_MAX stacks are made once */
    std::vector<lane> lanes;
    std::vector<uint32_t> order;
    uint8_t *stacks = nullptr;
    turn launcher = {};
    fiber *current = nullptr;
    size_t threads = 0, at_block = 0;
    int block_sum = 0;
    const std::function<void()> *body = nullptr;
    const char *kernel = "";
    bool failed = false, progress = false;
    uint8_t *shared = nullptr; /* guard, dynamic shared memory, guard */
    size_t shared_bytes = 0;
    std::vector<std::pair<void *, size_t>> statics; /* seen in this block */
    uint64_t seed = 0, launches = 0, blocks = 0, draws = 0;
    std::string error;
};

emulator &self()
{
    static emulator only;
    return only;
}

/* The first error of a launch stands; the launch ends at the next switch. */
__attribute__((format(printf, 1, 2))) void fail(const char *format, ...)
{
    emulator &e = self();
    if (e.failed) return;
    char text[512];
    va_list list;
    va_start(list, format);
    std::vsnprintf(text, sizeof text, format, list);
    va_end(list);
    char head[160];
    std::snprintf(head, sizeof head, "%s, block (%u,%u,%u): ", e.kernel, here.block.x, here.block.y, here.block.z);
    e.error = std::string(head) + text;
    e.failed = true;
}

uint32_t index_of(const fiber &f)
{
    return (uint32_t)(&f - self().fibers.data());
}

/* Waits until somebody makes this thread ready again. A failed launch is never gone on with. */
void wait()
{
    emulator &e = self();
    fiber *mine = e.current;
    do
        turn_switch(&mine->own, &e.launcher);
    while (e.failed);
}

[[noreturn]] void entry()
{
    emulator &e = self();
    turn_entered(&e.launcher);
    (*e.body)();
    e.current->now = state::done;
    turn_leave(&e.current->own, &e.launcher);
    __builtin_trap();
}

/* splitmix64 (Steele, Lea, Flood 2014) of a counter: the order of things, nothing else. */
uint64_t draw()
{
    emulator &e = self();
    uint64_t x = e.seed + 0x9e3779b97f4a7c15u * ++e.draws;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

template <class T> void shuffle_order(std::vector<T> &order, size_t count)
{
    order.resize(count);
    for (size_t i = 0; i < count; i++)
        order[i] = (T)i;
    if (self().seed == 0) return;
    for (size_t i = count; i > 1; i--)
        std::swap(order[i - 1], order[draw() % i]);
}

const char *file_of(const site &at)
{
    const char *slash = std::strrchr(at.file, '/');
    return slash ? slash + 1 : at.file;
}

/* Mostly the same literal: threads meet very often, and AddressSanitizer looks at each letter that is read. */
bool same(const char *x, const char *y)
{
    return x == y || std::strcmp(x, y) == 0;
}

bool same(const site &x, const site &y)
{
    return x.line == y.line && same(x.what, y.what) && same(x.file, y.file);
}

void describe_stuck()
{
    emulator &e = self();
    const fiber *waiting = nullptr, *done = nullptr;
    for (size_t i = 0; i < e.threads; i++) {
        const fiber &f = e.fibers[i];
        if (f.now == state::done)
            done = &f;
        else if (!waiting)
            waiting = &f;
    }
    char returned[48] = "";
    if (done) std::snprintf(returned, sizeof returned, "; thread %u has returned", index_of(*done));
    for (size_t i = 0; i < e.threads; i++) {
        const fiber &f = e.fibers[i];
        if (f.now == state::done || same(f.at, waiting->at)) continue;
        fail("thread %u waits in %s at %s:%d and thread %u in %s at %s:%d, so that neither ends%s", index_of(*waiting),
             waiting->at.what, file_of(waiting->at), waiting->at.line, index_of(f), f.at.what, file_of(f.at), f.at.line,
             returned);
        return;
    }
    fail("thread %u waits in %s at %s:%d for one that never comes%s", index_of(*waiting), waiting->at.what,
         file_of(waiting->at), waiting->at.line, returned);
}

void stacks_make()
{
    emulator &e = self();
    if (e.stacks) return;
    void *memory = mmap(nullptr, THREADS_MAX * STACK_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        std::fprintf(stderr, "cuda_host: no memory for %zu stacks\n", THREADS_MAX);
        std::abort();
    }
    e.stacks = static_cast<uint8_t *>(memory);
    e.fibers.resize(THREADS_MAX);
    e.lanes.resize(THREADS_MAX);
    for (size_t i = 0; i < THREADS_MAX; i++) {
        e.fibers[i].own.bottom = e.stacks + i * STACK_BYTES;
        e.fibers[i].own.bytes = STACK_BYTES;
    }
}

/* Under AddressSanitizer the guards may not even be read. */
void guards_forbid(bool forbid)
{
#ifdef CUDA_HOST_ASAN
    emulator &e = self();
    if (forbid) {
        __asan_poison_memory_region(e.shared, GUARD);
        __asan_poison_memory_region(e.shared + GUARD + e.shared_bytes, GUARD);
    } else {
        __asan_unpoison_memory_region(e.shared, 2 * GUARD + e.shared_bytes);
    }
#else
    (void)forbid;
#endif
}

void block_start(dim3 block)
{
    emulator &e = self();
    e.at_block = 0;
    e.block_sum = 0;
    e.statics.clear();
    std::memset(e.shared, GUARD_BYTE, GUARD);
    std::memset(e.shared + GUARD, UNWRITTEN, e.shared_bytes);
    std::memset(e.shared + GUARD + e.shared_bytes, GUARD_BYTE, GUARD);
    guards_forbid(true);
    shuffle_order(e.order, e.threads);
    for (size_t i = 0; i < e.threads; i++) {
        fiber &f = e.fibers[i];
        std::memcpy(f.own.bottom, &STACK_END, sizeof STACK_END);
        turn_start(&f.own, entry);
        f.now = state::ready;
        f.copies.clear();
        f.thread = {(unsigned)i % block.x, (unsigned)i / block.x % block.y, (unsigned)i / block.x / block.y};
    }
}

void block_end()
{
    emulator &e = self();
    for (size_t i = 0; i < GUARD; i++) {
        if (e.shared[i] != GUARD_BYTE) fail("wrote before its %zu bytes of dynamic shared memory", e.shared_bytes);
        if (e.shared[GUARD + e.shared_bytes + i] != GUARD_BYTE)
            fail("wrote byte %zu past its %zu bytes of dynamic shared memory", i, e.shared_bytes);
    }
    size_t bytes = 0;
    for (const auto &seen : e.statics)
        bytes += seen.second;
    if (bytes > STATIC_MAX) fail("%zu bytes of static shared memory: at most %zu", bytes, STATIC_MAX);
    if (bytes + e.shared_bytes > SHARED_MAX)
        fail("%zu bytes of shared memory: at most %zu", bytes + e.shared_bytes, SHARED_MAX);
    for (size_t i = 0; i < e.threads; i++) {
        uint64_t end;
        std::memcpy(&end, e.fibers[i].own.bottom, sizeof end);
        if (end != STACK_END) fail("thread %zu ran over its stack of %zu bytes", i, STACK_BYTES);
    }
}

void block_run(dim3 block)
{
    emulator &e = self();
    block_start(block);
    for (size_t done = 0; done < e.threads && !e.failed;) {
        e.progress = false;
        done = 0;
        for (size_t i = 0; i < e.threads && !e.failed; i++) {
            fiber &f = e.fibers[e.order[i]];
            if (f.now == state::ready) {
                e.progress = true;
                e.current = &f;
                here.thread = f.thread;
                turn_switch(&e.launcher, &f.own);
            }
            done += f.now == state::done;
        }
        if (!e.progress && done < e.threads && !e.failed) describe_stuck();
    }
    guards_forbid(false);
    if (!e.failed) block_end();
}

bool grid_check(dim3 grid, dim3 block, size_t shared)
{
    const uint64_t threads = (uint64_t)block.x * block.y * block.z;
    here.block = {0, 0, 0};
    if (threads == 0 || threads > THREADS_MAX || block.z > 64)
        fail("a block of %u x %u x %u threads: 1 to %zu", block.x, block.y, block.z, THREADS_MAX);
    else if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535)
        fail("a grid of %u x %u x %u blocks: at least 1, at most 2^31-1 x 65535 x 65535", grid.x, grid.y, grid.z);
    else if (shared > SHARED_MAX)
        fail("%zu bytes of shared memory: at most %zu", shared, SHARED_MAX);
    return !self().failed;
}

} // namespace

lane &mine()
{
    return self().lanes[index_of(*self().current)];
}

void meet_warp(const site &at, uint32_t mask, resolve_lanes resolve)
{
    emulator &e = self();
    fiber &f = *e.current;
    const uint32_t index = index_of(f), first = index / 32 * 32;
    f.at = at;
    f.mask = mask;
    f.resolve = resolve;
    f.now = state::at_warp;
    if (!(mask >> (index % 32) & 1))
        fail("%s at %s:%d: lane %u is not in its own mask %08x", at.what, file_of(at), at.line, index % 32, mask);
    for (uint32_t i = 0; i < 32 && !e.failed; i++) {
        if (!(mask >> i & 1)) continue;
        const bool there = first + i < e.threads;
        if (!there || e.fibers[first + i].now == state::done) {
            fail("%s at %s:%d: mask %08x names lane %u, which %s", at.what, file_of(at), at.line, mask, i,
                 there ? "has returned" : "the block does not have");
            break;
        }
        const fiber &other = e.fibers[first + i];
        if (other.now != state::at_warp) return wait();
        if (other.mask != mask && !(other.mask >> (index % 32) & 1)) return wait(); /* it meets others first */
        if (!same(other.at, at) || other.mask != mask || other.resolve != resolve) {
            fail("lane %u is in %s at %s:%d with mask %08x, lane %u in %s at %s:%d with mask %08x", index % 32, at.what,
                 file_of(at), at.line, mask, i, other.at.what, file_of(other.at), other.at.line, other.mask);
            break;
        }
    }
    if (e.failed) return wait();
    resolve(&e.lanes[first], mask);
    for (uint32_t i = 0; i < 32; i++)
        if (mask >> i & 1) e.fibers[first + i].now = state::ready;
}

int meet_block(const site &at, int value)
{
    emulator &e = self();
    fiber &f = *e.current;
    f.at = at;
    f.now = state::at_block;
    e.block_sum += value;
    if (++e.at_block < e.threads) {
        wait();
        return f.value;
    }
    for (size_t i = 0; i < e.threads; i++) {
        fiber &other = e.fibers[i];
        if (!same(other.at, at)) {
            fail("divergent barrier: thread %u is in %s at %s:%d, thread %zu in %s at %s:%d", index_of(f), at.what,
                 file_of(at), at.line, i, other.at.what, file_of(other.at), other.at.line);
            wait();
        }
        other.value = e.block_sum;
        other.now = state::ready;
    }
    e.at_block = 0;
    e.block_sum = 0;
    return f.value;
}

void *shared_dynamic(size_t align)
{
    emulator &e = self();
    if (align > GUARD) {
        fail("dynamic shared memory is aligned to %zu bytes, not to %zu", GUARD, align);
        wait();
    }
    return e.shared + GUARD;
}

void shared_static(void *memory, size_t bytes)
{
    emulator &e = self();
    for (const auto &seen : e.statics)
        if (seen.first == memory) return;
    e.statics.emplace_back(memory, bytes);
    std::memset(memory, UNWRITTEN, bytes);
}

void complain(const site &at, const char *what)
{
    fail("thread %u, %s at %s:%d: %s", index_of(*self().current), at.what, file_of(at), at.line, what);
    wait();
}

void copy_later(void *to, const void *from, size_t bytes)
{
    if (reinterpret_cast<uintptr_t>(to) % bytes || reinterpret_cast<uintptr_t>(from) % bytes)
        complain({"an asynchronous copy", "cuda_mma.cuh", 0}, "not aligned to its size");
    self().current->copies.push_back({to, from, bytes});
}

void copies_wait()
{
    std::vector<copy> &copies = self().current->copies;
    for (const copy &one : copies) {
        if (one.from)
            std::memcpy(one.to, one.from, one.bytes);
        else
            std::memset(one.to, 0, one.bytes);
    }
    copies.clear();
}

void resolve_nothing(lane *, uint32_t)
{
}

void resolve_shuffle(lane *lanes, uint32_t mask)
{
    for (int i = 0; i < 32; i++) {
        if (!(mask >> i & 1)) continue;
        const int source = lanes[i].source & 31;
        lanes[i].out[0] = mask >> source & 1 ? lanes[source].in[0] : ~(uint64_t)0;
    }
}

void resolve_ballot(lane *lanes, uint32_t mask)
{
    uint32_t votes = 0;
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1) votes |= (uint32_t)(lanes[i].in[0] != 0) << i;
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1) lanes[i].out[0] = votes;
}

void resolve_match(lane *lanes, uint32_t mask)
{
    for (int i = 0; i < 32; i++) {
        if (!(mask >> i & 1)) continue;
        uint32_t equal = 0;
        for (int j = 0; j < 32; j++)
            if (mask >> j & 1) equal |= (uint32_t)(lanes[i].in[0] == lanes[j].in[0]) << j;
        lanes[i].out[0] = equal;
    }
}

cudaError_t run(const char *kernel, dim3 grid, dim3 block, size_t shared, const std::function<void()> &body)
{
    static std::mutex one; /* ranks may be threads: one kernel at a time */
    const std::lock_guard<std::mutex> turn(one);
    emulator &e = self();
    stacks_make();
    e.failed = false;
    e.kernel = kernel;
    e.body = &body;
    e.launches++;
    if (!grid_check(grid, block, shared)) return cudaErrorInvalidConfiguration;
    e.threads = (size_t)block.x * block.y * block.z;
    e.shared_bytes = shared;
    std::free(e.shared);
    e.shared = static_cast<uint8_t *>(std::aligned_alloc(GUARD, (shared + 3 * GUARD - 1) / GUARD * GUARD));
    here.block_size = block;
    here.grid_size = grid;
    std::vector<uint64_t> order;
    shuffle_order(order, (size_t)grid.x * grid.y * grid.z);
    for (size_t i = 0; i < order.size() && !e.failed; i++) {
        const uint64_t at = order[i];
        here.block = {(unsigned)(at % grid.x), (unsigned)(at / grid.x % grid.y), (unsigned)(at / grid.x / grid.y)};
        e.blocks++;
        block_run(block);
    }
    return e.failed ? cudaErrorLaunchFailure : cudaSuccess;
}

static int (*taker)(void *stream, int (*run)(void *context), void *context);

static int held_run(void *context)
{
    auto *work = static_cast<std::function<cudaError_t()> *>(context);
    const cudaError_t error = (*work)();
    delete work;
    return error;
}

cudaError_t enqueue(void *stream, const std::function<cudaError_t()> &work)
{
    if (!taker || !stream) return work();
    return static_cast<cudaError_t>(taker(stream, held_run, new std::function<cudaError_t()>(work)));
}

} // namespace cuda_host

void cuda_host_later(int (*take)(void *stream, int (*run)(void *context), void *context))
{
    cuda_host::taker = take;
}

void cuda_host_seed(uint64_t seed)
{
    cuda_host::self().seed = seed;
    cuda_host::self().draws = 0;
}

const char *cuda_host_error(void)
{
    return cuda_host::self().error.c_str();
}

void cuda_host_error_clear(void)
{
    cuda_host::self().error.clear();
}

uint64_t cuda_host_launches(void)
{
    return cuda_host::self().launches;
}

uint64_t cuda_host_blocks(void)
{
    return cuda_host::self().blocks;
}
