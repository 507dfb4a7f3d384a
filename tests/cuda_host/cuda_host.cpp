/*
 * cuda_host.cpp -- runs a grid: blocks one after another, the threads of a block in turns.
 *
 * Each thread of a block has a stack. The launcher goes round the block's threads, in the order drawn for this block,
 * and lets each run until it waits for its warp or its block, or returns. A thread that returns leaves its stack to the
 * next one of the round that has not begun; a thread that waits lets the next one of the round run. The last to arrive
 * at a meeting gives all their results and continues. A round in which nobody could run is a meeting that never
 * happens: an error.
 */
#include "cuda_host.h"
#undef memcpy
#undef memset

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <vector>

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cuda_host_switch.h"
#include "cuda_host_test.h"
#include "cuda_host_watch.h"

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
/* Threads take turns in one function: stacks a power of two apart would share the same few places of each cache. */
constexpr size_t STACK_APART = STACK_BYTES + 33 * 64;
constexpr size_t THREADS_MAX = 1024;
constexpr size_t STATIC_MAX = 48 << 10, SHARED_MAX = 227 << 10, GUARD = 1024, STATICS_BYTES = 2 * STATIC_MAX;
constexpr size_t STATICS_FROM = 2 * GUARD + (SHARED_MAX + GUARD - 1) / GUARD * GUARD;
constexpr size_t SHARED_BYTES = STATICS_FROM + STATICS_BYTES + GUARD; /* guard, dynamic, guard, static arrays, guard */
[[maybe_unused]] constexpr uint8_t GUARD_BYTE = 0xa5;
constexpr uint64_t STACK_END = 0x7374616b656e6421u; /* at the far end of each stack */

constexpr size_t WARPS_MAX = THREADS_MAX / 32;

enum class state : uint8_t { ready, at_warp, at_block, done };

struct copy {
    void *to;
    const void *from;
    size_t bytes;
};

/* What a switch needs of it is in one line of the cache. */
struct alignas(64) fiber {
    turn own;
    bool begun; /* its stack is in use, or was */
    uint3 thread;
    const site *at; /* where it waits, or waited last; NULL: nowhere yet */
    uint32_t mask;
    resolve_lanes resolve;
    std::vector<copy> copies; /* asynchronous, not waited for yet */
};

/* The lanes of a warp that wait for each other. */
struct meeting {
    uint32_t there, gone; /* who waits; who has returned, or is not in the block */
    bool alike;           /* all who wait do so at this place, with this mask: */
    const site *at;
    uint32_t mask;
    resolve_lanes resolve;
};

/* An array of shared memory of fixed size. */
struct fixed {
    const void *key;
    const char *name;
    uint8_t *memory;
    size_t bytes;
};

/* Where no test has said another (cuda_host_seed). */
uint64_t seed_at_start()
{
    const char *wish = std::getenv("CUDA_HOST_SEED");
    return wish ? std::strtoull(wish, nullptr, 10) : 1;
}

struct emulator {
    std::vector<fiber> fibers; /* of the block; THREADS_MAX stacks are made once */
    std::vector<lane> lanes;
    std::vector<uint32_t> order;
    state now[THREADS_MAX];
    uint16_t place[THREADS_MAX];      /* of a thread in the order */
    uint64_t ready[THREADS_MAX / 64]; /* a bit for each place: its thread's state is `ready` */
    meeting warps[WARPS_MAX];
    uint8_t *stacks = nullptr;
    turn launcher = {};
    fiber *current = nullptr;
    uint32_t index = 0; /* of the current fiber */
    size_t threads = 0, at_block = 0, done = 0;
    size_t from = 0, turns = 0;          /* a round begins at order[from]; so many of its turns are over */
    int block_sum = 0, block_result = 0; /* what was brought to the block's meeting; what came of the last */
    const site *block_at = nullptr;
    bool block_alike = true; /* all who wait for the block do so at block_at */
    const std::function<void()> *body = nullptr;
    const char *kernel = "";
    bool failed = false, progress = false;
    bool copies = false;       /* a thread of the block has some that are asynchronous */
    uint8_t *shared = nullptr; /* SHARED_BYTES */
    size_t shared_bytes = 0, statics_used = 0;
    std::vector<fixed> statics; /* of this launch */
    uint64_t seed = seed_at_start(), launches = 0, blocks = 0, draws = 0, poisons = 0;
    std::string error;
};

emulator only;

inline emulator &self()
{
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

void set_ready(uint32_t index)
{
    emulator &e = self();
    e.now[index] = state::ready;
    e.ready[e.place[index] / 64] |= (uint64_t)1 << e.place[index] % 64;
}

/* It waits, or has returned. */
void set_away(uint32_t index, state now)
{
    emulator &e = self();
    e.now[index] = now;
    e.ready[e.place[index] / 64] &= ~((uint64_t)1 << e.place[index] % 64);
}

void set_all_ready()
{
    emulator &e = self();
    std::memset(e.now, (int)state::ready, e.threads * sizeof e.now[0]);
    std::memset(e.ready, 0xff, e.threads / 64 * sizeof e.ready[0]);
    if (e.threads % 64) e.ready[e.threads / 64] = ((uint64_t)1 << e.threads % 64) - 1;
}

/* The first place from `from` on whose thread is ready, or `to`. */
size_t ready_place(size_t from, size_t to)
{
    emulator &e = self();
    while (from < to) {
        const uint64_t places = e.ready[from / 64] >> from % 64;
        if (places) return std::min(to, from + (size_t)__builtin_ctzll(places));
        from = (from / 64 + 1) * 64;
    }
    return to;
}

/* Who has the next turn of this round; NULL: the round is over. */
fiber *next_in_round()
{
    emulator &e = self();
    while (e.turns < e.threads) {
        const bool again = e.from + e.turns >= e.threads; /* from the beginning of the order */
        const size_t i = e.from + e.turns - (again ? e.threads : 0), end = again ? e.from : e.threads;
        const size_t found = ready_place(i, end);
        e.turns += found - i;
        if (found < end) return &e.fibers[e.order[found]];
    }
    return nullptr;
}

/* This thread of the block runs from here on. */
void take_turn(fiber *f)
{
    emulator &e = self();
    e.turns++;
    e.progress = true;
    e.current = f;
    e.index = index_of(*f);
    here.thread = f->thread;
    watch_thread(e.index);
}

/* Waits until somebody makes this thread ready again. A failed launch never continues. The next thread of the round
 * follows at once if it has a stack in use; the launcher starts the others. */
void wait()
{
    emulator &e = self();
    fiber *mine = e.current;
    do {
        fiber *next = e.failed ? nullptr : next_in_round();
        if (next && next->begun)
            take_turn(next);
        else
            next = nullptr;
        turn_switch(&mine->own, next ? &next->own : &e.launcher);
    } while (e.failed);
}

/* What a stack runs: one thread of the block, and those after it that have not begun, until one of them waits. */
[[noreturn]] void entry()
{
    emulator &e = self();
    turn_entered(&e.launcher);
    for (;;) {
        (*e.body)();
        fiber *done = e.current, *next = nullptr;
        set_away(e.index, state::done);
        e.warps[e.index / 32].gone |= 1u << e.index % 32;
        e.done++;
        if (!e.failed) next = next_in_round();
        if (next && next->begun) take_turn(next);
        if (!next || next->begun) {
            turn_leave(&done->own, next ? &next->own : &e.launcher);
            __builtin_trap();
        }
        std::swap(done->own, next->own); /* the stack is the next one's */
        next->begun = true;
        take_turn(next);
    }
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
        if (e.now[i] == state::done)
            done = &f;
        else if (!waiting)
            waiting = &f;
    }
    char returned[48] = "";
    if (done) std::snprintf(returned, sizeof returned, "; thread %u has returned", index_of(*done));
    for (size_t i = 0; i < e.threads; i++) {
        const fiber &f = e.fibers[i];
        if (e.now[i] == state::done || same(*f.at, *waiting->at)) continue;
        fail("thread %u waits in %s at %s:%d and thread %u in %s at %s:%d, so that neither ends%s", index_of(*waiting),
             waiting->at->what, file_of(*waiting->at), waiting->at->line, index_of(f), f.at->what, file_of(*f.at),
             f.at->line, returned);
        return;
    }
    fail("thread %u waits in %s at %s:%d for one that never comes%s", index_of(*waiting), waiting->at->what,
         file_of(*waiting->at), waiting->at->line, returned);
}

void stacks_make()
{
    emulator &e = self();
    if (e.stacks) return;
    void *memory = mmap(nullptr, THREADS_MAX * STACK_APART, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        std::fprintf(stderr, "cuda_host: no memory for %zu stacks\n", THREADS_MAX);
        std::abort();
    }
    e.stacks = static_cast<uint8_t *>(memory);
    e.fibers.resize(THREADS_MAX);
    e.lanes.resize(THREADS_MAX);
    for (size_t i = 0; i < THREADS_MAX; i++) {
        e.fibers[i].own.bottom = e.stacks + (i + 1) * STACK_APART - STACK_BYTES; /* the room is below it */
        e.fibers[i].own.bytes = STACK_BYTES;
        std::memcpy(e.fibers[i].own.bottom, &STACK_END, sizeof STACK_END);
    }
}

/* Whether a kernel may touch these bytes of shared memory. */
void touchable(uint8_t *memory, size_t bytes, bool yes)
{
    watch_forbid(memory, bytes, !yes);
#ifdef CUDA_HOST_ASAN
    if (yes)
        __asan_unpoison_memory_region(memory, bytes);
    else
        __asan_poison_memory_region(memory, bytes);
#endif
}

/* Unwritten memory holds something else in each block and each process: NaNs now, numbers then. */
void poison(uint8_t *memory, size_t bytes)
{
    emulator &e = self();
    static const uint64_t process = 0x9e3779b97f4a7c15u * (uint64_t)getpid();
    uint64_t word = (process ^ ++e.poisons) * 0xbf58476d1ce4e5b9u;
    word ^= word >> 31;
    if (e.poisons % 2) word |= 0xff81ff81ff81ff81u;
    size_t at = 0;
    for (; at + sizeof word <= bytes; at += sizeof word)
        std::memcpy(memory + at, &word, sizeof word);
    std::memcpy(memory + at, &word, bytes - at);
}

void shared_start(size_t bytes)
{
    emulator &e = self();
    if (!e.shared) {
        e.shared = static_cast<uint8_t *>(std::aligned_alloc(GUARD, SHARED_BYTES));
        watch_shared(e.shared, SHARED_BYTES);
        touchable(e.shared, SHARED_BYTES, false);
    }
    for (const fixed &one : e.statics)
        touchable(one.memory, one.bytes, false);
    e.statics.clear();
    e.statics_used = 0;
    if (bytes != e.shared_bytes) {
        touchable(e.shared + GUARD, std::max(bytes, e.shared_bytes), false);
        touchable(e.shared + GUARD, bytes, true);
    }
    e.shared_bytes = bytes;
}

/* Where nothing watches accesses, a write past the end shows afterwards. */
void guards_write()
{
#ifndef CUDA_HOST_ASAN
    emulator &e = self();
    std::memset(e.shared, GUARD_BYTE, GUARD);
    std::memset(e.shared + GUARD + e.shared_bytes, GUARD_BYTE, GUARD);
#endif
}

void guards_check()
{
#ifndef CUDA_HOST_ASAN
    emulator &e = self();
    static const std::vector<uint8_t> guard(GUARD, GUARD_BYTE);
    const uint8_t *past = e.shared + GUARD + e.shared_bytes;
    if (std::memcmp(e.shared, guard.data(), GUARD) != 0)
        fail("wrote before its %zu bytes of dynamic shared memory", e.shared_bytes);
    for (size_t i = 0; std::memcmp(past, guard.data(), GUARD) != 0 && i < GUARD; i++)
        if (past[i] != GUARD_BYTE)
            fail("wrote byte %zu past its %zu bytes of dynamic shared memory", i, e.shared_bytes);
#endif
}

void block_start()
{
    emulator &e = self();
    e.at_block = e.done = 0;
    e.block_sum = 0;
    e.block_alike = true;
    watch_block(e.threads);
    guards_write();
    poison(e.shared + GUARD, e.shared_bytes);
    for (const fixed &one : e.statics)
        poison(one.memory, one.bytes);
    shuffle_order(e.order, e.threads);
    for (size_t i = 0; i < e.threads; i++) {
        fiber &f = e.fibers[i];
        e.place[e.order[i]] = (uint16_t)i;
        f.begun = false;
        f.at = nullptr;
    }
    for (size_t i = 0; e.copies && i < e.threads; i++)
        e.fibers[i].copies.clear();
    e.copies = false;
    set_all_ready();
    for (size_t i = 0; 32 * i < e.threads; i++)
        e.warps[i] = {0, e.threads - 32 * i < 32 ? ~(uint32_t)0 << (e.threads - 32 * i) : 0, true, nullptr, 0, nullptr};
}

void block_end()
{
    emulator &e = self();
    guards_check();
    size_t bytes = 0;
    for (const fixed &seen : e.statics)
        bytes += seen.bytes;
    if (bytes > STATIC_MAX) fail("%zu bytes of static shared memory: at most %zu", bytes, STATIC_MAX);
    if (bytes + e.shared_bytes > SHARED_MAX)
        fail("%zu bytes of shared memory: at most %zu", bytes + e.shared_bytes, SHARED_MAX);
}

/* After all blocks of a launch: each look at the far end of a stack costs a page of its own. */
void stacks_check()
{
    emulator &e = self();
    for (size_t i = 0; i < e.threads; i++) {
        uint64_t end;
        uint8_t *bottom = e.fibers[i].own.bottom;
        std::memcpy(&end, bottom, sizeof end);
        if (end == STACK_END) continue;
        fail("thread %zu, here or in an earlier block, ran over its stack of %zu bytes", i, STACK_BYTES);
        std::memcpy(bottom, &STACK_END, sizeof STACK_END);
    }
}

void stack_start(fiber *f)
{
    turn_start(&f->own, entry);
    f->begun = true;
}

void block_run()
{
    emulator &e = self();
    block_start();
    while (e.done < e.threads && !e.failed) {
        e.from = e.seed ? draw() % e.threads : 0; /* each round begins elsewhere */
        e.turns = 0;
        e.progress = false;
        for (fiber *f; !e.failed && (f = next_in_round());) {
            if (!f->begun) stack_start(f);
            take_turn(f);
            turn_switch(&e.launcher, &f->own);
        }
        if (!e.progress && e.done < e.threads && !e.failed) describe_stuck();
    }
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
    return self().lanes[self().index];
}

uint64_t exchange(const site &at, uint32_t mask, resolve_lanes resolve, uint64_t in, int source)
{
    lane &own = mine();
    own.in[0] = in;
    own.source = source;
    meet_warp(at, mask, resolve);
    return own.out[0];
}

/* Ends the launch: the mask names a lane that does not come. */
static void fail_of_lane(const site &at, uint32_t mask, uint32_t thread)
{
    fail("%s at %s:%d: mask %08x names lane %u, which %s", at.what, file_of(at), at.line, mask, thread % 32,
         thread < self().threads ? "has returned" : "the block does not have");
}

/* Of lanes that do not all wait at one place: are all of this one's mask there? No, too, if the launch ends. */
static bool are_there(const site &at, uint32_t mask, resolve_lanes resolve)
{
    emulator &e = self();
    const uint32_t own = e.index % 32, first = e.index - own;
    const meeting &m = e.warps[e.index / 32];
    for (uint32_t i = 0; i < 32; i++) {
        if (!(mask >> i & 1)) continue;
        if (m.gone >> i & 1) {
            fail_of_lane(at, mask, first + i);
            return false;
        }
        if (!(m.there >> i & 1)) return false;
        const fiber &other = e.fibers[first + i];
        if (other.mask != mask && !(other.mask >> own & 1)) return false; /* it meets others first */
        if (!same(*other.at, at) || other.mask != mask || other.resolve != resolve) {
            fail("lane %u is in %s at %s:%d with mask %08x, lane %u in %s at %s:%d with mask %08x", own, at.what,
                 file_of(at), at.line, mask, i, other.at->what, file_of(*other.at), other.at->line, other.mask);
            return false;
        }
    }
    return true;
}

void meet_warp(const site &at, uint32_t mask, resolve_lanes resolve)
{
    emulator &e = self();
    fiber &f = *e.current;
    const uint32_t index = e.index, own = 1u << index % 32;
    meeting &m = e.warps[index / 32];
    f.at = &at;
    f.mask = mask;
    f.resolve = resolve;
    set_away(index, state::at_warp);
    if (m.there == 0) {
        m.at = &at;
        m.mask = mask;
        m.resolve = resolve;
        m.alike = true;
    } else if (m.at != &at || m.mask != mask || m.resolve != resolve) {
        m.alike = false;
    }
    m.there |= own;
    if (!(mask & own)) {
        fail("%s at %s:%d: lane %u is not in its own mask %08x", at.what, file_of(at), at.line, index % 32, mask);
        return wait();
    }
    const uint32_t missing = mask & ~m.there;
    if (m.alike && missing) {
        const uint32_t next = (uint32_t)__builtin_ctz(missing);
        if (m.gone >> next & 1) fail_of_lane(at, mask, index / 32 * 32 + next);
        return wait();
    }
    if (!m.alike && !are_there(at, mask, resolve)) return wait();
    if (resolve == resolve_nothing) watch_warp_met(index / 32, mask);
    resolve(&e.lanes[index / 32 * 32], mask);
    m.there &= ~mask;
    for (uint32_t lanes = mask; lanes; lanes &= lanes - 1)
        set_ready(index / 32 * 32 + (uint32_t)__builtin_ctz(lanes));
}

int meet_block(const site &at, int value)
{
    emulator &e = self();
    e.current->at = &at;
    set_away(e.index, state::at_block);
    e.block_sum += value;
    if (e.at_block == 0)
        e.block_at = &at;
    else if (e.block_at != &at)
        e.block_alike = false;
    if (++e.at_block < e.threads) {
        wait();
        return e.block_result;
    }
    for (size_t i = 0; !e.block_alike && i < e.threads; i++) {
        const site &other = *e.fibers[i].at;
        if (same(other, at)) continue;
        fail("divergent barrier: thread %u is in %s at %s:%d, thread %zu in %s at %s:%d", e.index, at.what, file_of(at),
             at.line, i, other.what, file_of(other), other.line);
        wait();
    }
    set_all_ready();
    watch_block_met();
    e.block_result = e.block_sum; /* nobody meets again before all have read it */
    e.at_block = 0;
    e.block_sum = 0;
    e.block_alike = true;
    return e.block_result;
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

void *shared_static(const void *key, const char *name, size_t bytes, size_t align)
{
    emulator &e = self();
    for (const fixed &seen : e.statics)
        if (seen.key == key) return seen.memory;
    const size_t grain = std::max(align, (size_t)16), from = (e.statics_used + grain - 1) / grain * grain;
    if (bytes > STATICS_BYTES - from) {
        fail("%s: %zu bytes of static shared memory: at most %zu", name, bytes, STATIC_MAX);
        wait();
    }
    uint8_t *memory = e.shared + STATICS_FROM + from;
    e.statics.push_back({key, name, memory, bytes});
    e.statics_used = from + bytes + 16; /* with a gap */
    touchable(memory, bytes, true);
    poison(memory, bytes);
    return memory;
}

std::string shared_place(uintptr_t address)
{
    emulator &e = self();
    char text[160];
    const size_t at = address - reinterpret_cast<uintptr_t>(e.shared);
    if (at < GUARD) {
        std::snprintf(text, sizeof text, "byte %zu before its %zu bytes of dynamic shared memory", GUARD - at,
                      e.shared_bytes);
        return text;
    }
    fixed place = {nullptr, "dynamic shared memory", e.shared + GUARD, e.shared_bytes};
    for (const fixed &one : e.statics)
        if (reinterpret_cast<uintptr_t>(one.memory) <= address && one.memory > place.memory) place = one;
    const size_t byte = address - reinterpret_cast<uintptr_t>(place.memory);
    if (byte < place.bytes)
        std::snprintf(text, sizeof text, "byte %zu of its %zu bytes of %s", byte, place.bytes, place.name);
    else
        std::snprintf(text, sizeof text, "byte %zu past its %zu bytes of %s", byte - place.bytes, place.bytes,
                      place.name);
    return text;
}

/* "file:line" of an instruction, by the program's line table, or its place in the program. */
static std::string line_of(const void *code)
{
    Dl_info info;
    const auto address = reinterpret_cast<uintptr_t>(code) - 1; /* in the call */
    if (!dladdr(code, &info)) return "an unknown place";
    char command[256], line[256] = "";
    std::snprintf(command, sizeof command, "addr2line -s -e /proc/%d/exe %#zx 2>/dev/null", (int)getpid(),
                  (size_t)(address - reinterpret_cast<uintptr_t>(info.dli_fbase)));
    FILE *pipe = popen(command, "r");
    if (pipe && std::fgets(line, sizeof line, pipe)) line[std::strcspn(line, " \n")] = 0;
    if (pipe) (void)pclose(pipe);
    if (line[0] && line[0] != '?') return line;
    std::snprintf(line, sizeof line, "+%#zx (no addr2line)",
                  (size_t)(address - reinterpret_cast<uintptr_t>(info.dli_fbase)));
    return line;
}

void watch_failed(const void *code, const char *text)
{
    emulator &e = self();
    const auto frame = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
    if (frame - reinterpret_cast<uintptr_t>(e.stacks) >= THREADS_MAX * STACK_APART) {
        std::fprintf(stderr, "cuda_host: %s, code of the host: %s\n", line_of(code).c_str(), text);
        std::abort();
    }
    const site *met = e.current->at;
    char since[128] = "";
    if (met) std::snprintf(since, sizeof since, ", after %s at %s:%d", met->what, file_of(*met), met->line);
    fail("%s: %s%s", line_of(code).c_str(), text, since);
    for (;;)
        wait();
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
    self().copies = true;
}

void copies_wait()
{
    std::vector<copy> &copies = self().current->copies;
    for (const copy &one : copies) {
        watch_write(one.to, one.bytes);
        if (one.from) watch_read(one.from, one.bytes);
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

static void (*longer)(uint64_t ns);

/* Those that CUDA_HOST_SLOW names take a second more by the clock of events. */
static void slow_down(const char *kernel)
{
    const char *slow = std::getenv("CUDA_HOST_SLOW");
    if (longer && slow && *slow && std::strstr(kernel, slow)) longer(1000000000);
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
    for (unsigned i = 0; i < e.threads; i++)
        e.fibers[i].thread = {i % block.x, i / block.x % block.y, i / block.x / block.y};
    shared_start(shared);
    here.block_size = block;
    here.grid_size = grid;
    std::vector<uint64_t> order;
    shuffle_order(order, (size_t)grid.x * grid.y * grid.z);
    for (size_t i = 0; i < order.size() && !e.failed; i++) {
        const uint64_t at = order[i];
        here.block = {(unsigned)(at % grid.x), (unsigned)(at / grid.x % grid.y), (unsigned)(at / grid.x / grid.y)};
        e.blocks++;
        block_run();
    }
    if (!e.failed) stacks_check();
    slow_down(kernel);
    return e.failed ? cudaErrorLaunchFailure : cudaSuccess;
}

static int (*taker)(void *stream, cuda_host_work work);
static void (*copier)(void *to, const void *from, size_t bytes);
static void (*setter)(void *to, int value, size_t bytes);

static int held_run(void *context)
{
    auto *work = static_cast<std::function<cudaError_t()> *>(context);
    const cudaError_t error = (*work)();
    if (error != cudaSuccess) std::fprintf(stderr, "cuda_host: %s\n", self().error.c_str());
    return error;
}

static void held_drop(void *context)
{
    delete static_cast<std::function<cudaError_t()> *>(context);
}

cudaError_t enqueue(void *stream, const std::function<cudaError_t()> &work)
{
    if (!taker || !stream) return work();
    return static_cast<cudaError_t>(taker(stream, {held_run, held_drop, new std::function<cudaError_t()>(work)}));
}

cudaError_t enqueue_set(void *stream, void *to, int value, size_t bytes)
{
    return enqueue(stream, [=]() {
        if (setter)
            setter(to, value, bytes);
        else
            std::memset(to, value, bytes);
        return cudaSuccess;
    });
}

cudaError_t enqueue_copy(void *stream, void *to, const void *from, size_t bytes)
{
    return enqueue(stream, [=]() {
        if (copier)
            copier(to, from, bytes);
        else
            std::memmove(to, from, bytes);
        return cudaSuccess;
    });
}

} // namespace cuda_host

void cuda_host_later(int (*take)(void *stream, struct cuda_host_work work),
                     void (*copy)(void *to, const void *from, size_t bytes),
                     void (*set)(void *to, int value, size_t bytes), void (*take_longer)(uint64_t ns))
{
    cuda_host::taker = take;
    cuda_host::copier = copy;
    cuda_host::setter = set;
    cuda_host::longer = take_longer;
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
