/*
 * cuda_codec_ec_chunks.cu -- codes to words of rANS and back, a warp per chunk: a lane of the warp is a lane of rANS.
 *
 * One step of a chunk needs the step before it, and a chunk has about 1,000 steps. So nothing of a step may wait for
 * global memory: codes are loaded BATCH steps ahead, and words pass through a ring in shared memory, one piece ahead.
 * Escaped pairs wait in shared memory until they fill a warp; then each lane writes or reads the numbers of one pair.
 *
 * Encode does not know the places of a chunk's words and escapes in the body before all chunks are coded. Both are put
 * aside, each written downwards from its end, and codec_ec_join copies them.
 *
 * Any bytes may come in. Every index into shared memory is taken modulo its size, every load from the body is checked
 * against the end of its part, and what was decoded counts only if all parts end where they must.
 */
#include "cuda_codec_ec.cuh"

enum {
    JOIN_BLOCK = 256,
    BATCH = 16,
    WAITING = 2 * BATCH * WARP, /* escaped pairs: those of BATCH steps, and a warp's rest; a power of two */
    RING = 512,                 /* words of 16 bits: two pieces */
    PIECE = RING / 2,
    WINDOW = 8 * WARP /* bytes: the numbers of 32 pairs, of 4 bytes each at most */
};

/* The sum of all lanes before this one, and of all. */
static __device__ __forceinline__ uint32_t warp_before(uint32_t mine, uint32_t *all)
{
    const uint32_t lane = threadIdx.x % WARP;
    uint32_t through = mine;
    for (uint32_t by = 1; by < WARP; by *= 2) {
        const uint32_t before = __shfl_up_sync(WHOLE_WARP, through, by);
        if (lane >= by) through += before;
    }
    *all = __shfl_sync(WHOLE_WARP, through, WARP - 1);
    return through - mine;
}

static __device__ __forceinline__ uint64_t warp_total(uint64_t x)
{
    for (int lanes = WARP / 2; lanes > 0; lanes /= 2)
        x += __shfl_xor_sync(WHOLE_WARP, x, lanes);
    return x;
}

/* ---- out ---- */

/* The end of the words of a chunk until they are joined, at a multiple of 16. Escapes end behind its `beyond`. */
static __device__ __forceinline__ uint8_t *words_end(const struct aq_cuda_codec_plan &plan,
                                                     const struct aq_cuda_codec_scratch &mem, uint32_t sample,
                                                     uint32_t number, const struct ec_chunk &chunk)
{
    const uint64_t chunks = aq_ec_chunk_count(plan.rows, plan.columns);
    const uint64_t from = sample * (plan.values + AQ_CUDA_CODEC_EC_STAGE * chunks) + chunk.begin +
                          (uint64_t)AQ_CUDA_CODEC_EC_STAGE * number;
    return mem.staged + (from + chunk.values + 2 * AQ_RANS_GROUP + 15) / 16 * 16;
}

static __device__ __forceinline__ uint64_t chunk_index(const struct aq_cuda_codec_plan &plan, uint32_t sample,
                                                       uint32_t number)
{
    return (uint64_t)sample * aq_ec_chunk_count(plan.rows, plan.columns) + number;
}

/* A number of an escape: seven bits a byte, the sign lowest. */
static __device__ __forceinline__ uint32_t number_word(int q)
{
    return ((uint32_t)q << 1) ^ (uint32_t)(q < 0 ? -1 : 0);
}

static __device__ __forceinline__ uint32_t number_bytes(uint32_t word)
{
    return 1u + (word > 127u) + (word >= 1u << 14) + (word >= 1u << 21);
}

static __device__ __forceinline__ uint8_t *number_put(uint32_t word, uint8_t *out)
{
    for (; word > 127; word >>= 7)
        *out++ = (uint8_t)((word & 127) | 128);
    *out++ = (uint8_t)word;
    return out;
}

/* The escaped pairs that wait, in a ring: pair << 8 | symbol on the way out, the pair on the way in. */
struct waiting {
    uint64_t *pairs;
    uint32_t first, count;
};

/*
 * Numbers of as many waiting pairs as a warp takes, a lane per pair, the chunk's last one first; they end at `end`.
 * Returns their start.
 *
 * They take the place of `beyond`. A pair has 8 bytes there and as many numbers' bytes at most; the last one of an odd
 * chunk has 4 and up to 5, for which the spare number is. So what is written covers only pairs that have been read.
 */
static __device__ uint8_t *escapes_put(struct waiting *waiting, const int *beyond, uint8_t *end)
{
    const uint32_t lane = threadIdx.x % WARP, count = waiting->count < WARP ? waiting->count : (uint32_t)WARP;
    uint32_t one = 0, other = 0, bytes = 0, all;
    __syncwarp();
    if (lane < count) {
        const uint64_t entry = waiting->pairs[(waiting->first + lane) % WAITING], at = 2 * (entry >> 8);
        const uint32_t low = entry & 15, high = entry >> 4 & 15;
        one = number_word(low == 0 ? beyond[at] : (int)low - AQ_RANS_CODE_ZERO);
        other = number_word(high == 0 ? beyond[at + 1] : (int)high - AQ_RANS_CODE_ZERO);
        bytes = number_bytes(one) + number_bytes(other);
    }
    const uint32_t before = warp_before(bytes, &all);
    if (lane < count) (void)number_put(other, number_put(one, end - before - bytes));
    waiting->first += count;
    waiting->count -= count;
    __syncwarp();
    return end - all;
}

/* The codes of the pair at `at`, low | high << 8; those behind the last value are of zero. even: of the address. */
static __device__ __forceinline__ uint32_t pair_load(const uint8_t *codes, uint64_t at, uint64_t values, bool even)
{
    if (even && at + 1 < values) return *(const uint16_t *)(codes + at);
    const uint32_t low = at < values ? codes[at] : (uint32_t)AQ_RANS_CODE_ZERO;
    const uint32_t high = at + 1 < values ? codes[at + 1] : (uint32_t)AQ_RANS_CODE_ZERO;
    return low | high << 8;
}

/*
 * A symbol into a state that has room for it: x / slots << 12 | x % slots + first, without a division.
 *
 * x is below 2^31, and inverse is 2^(32 + shift) / slots rounded up, with slots in (2^shift, 2^(shift + 1)]: so the
 * quotient is exact (F. Giesen, ryg_rans, rans_byte.h). Of one slot it is x - 1, which `first` makes up for.
 */
static __device__ __forceinline__ uint32_t rans_put(uint32_t x, uint32_t slots, uint32_t first, uint32_t inverse)
{
    const uint32_t shift = slots == 1 ? 0 : 31u - (uint32_t)__clz((int)(slots - 1));
    const uint32_t quotient = __umulhi(x, inverse) >> shift;
    return x + first + (slots == 1 ? AQ_RANS_SLOTS - 1u : 0u) + quotient * (AQ_RANS_SLOTS - slots);
}

__global__ void __launch_bounds__(WARP) codec_ec_chunks_out(CODEC_PLAN)
{
    AQ_SHARED(uint32_t, encode, [256]);
    AQ_SHARED(uint32_t, inverse, [256]);
    AQ_SHARED(uint64_t, pairs, [WAITING]);
    const uint32_t sample = blockIdx.y, lane = threadIdx.x, below = (1u << lane) - 1u;
    if (is_over(plan, mem, sample)) return;
    const struct ec_whole *whole = whole_of(plan, mem, sample);
    const struct ec_chunk chunk = chunk_of(plan, blockIdx.x);
    const uint64_t index = chunk_index(plan, sample, blockIdx.x);
    const uint8_t *const codes = mem.codes + sample * plan.values + chunk.begin;
    const bool even = (uintptr_t)codes % 2 == 0;
    int *const beyond = beyond_of(plan, mem, sample, blockIdx.x) + chunk.begin;
    uint8_t *const escapes_end = (uint8_t *)(beyond + chunk.values + 1), *escapes = escapes_end;
    uint8_t *const end = words_end(plan, mem, sample, blockIdx.x, chunk), *words = end;
    const uint32_t groups = (uint32_t)((chunk.values + AQ_RANS_GROUP - 1) / AQ_RANS_GROUP);
    struct waiting waiting = {pairs, 0, 0};
    uint32_t x = 1u << AQ_RANS_STATE_BITS, coming[BATCH];
    for (uint32_t i = lane; i < 256; i += WARP) {
        encode[i] = whole->encode[i];
        inverse[i] = whole->inverse[i];
    }
    UNROLL
    for (uint32_t i = 0; i < BATCH; i++)
        coming[i] = i < groups
                        ? pair_load(codes, (uint64_t)(groups - 1 - i) * AQ_RANS_GROUP + 2 * lane, chunk.values, even)
                        : 0;
    __syncwarp();
    for (uint32_t begin = 0; begin < groups; begin += BATCH) { /* from the last group on */
        uint32_t now[BATCH];
        UNROLL
        for (uint32_t i = 0; i < BATCH; i++) {
            const uint32_t next = begin + BATCH + i;
            now[i] = coming[i];
            if (next < groups)
                coming[i] =
                    pair_load(codes, (uint64_t)(groups - 1 - next) * AQ_RANS_GROUP + 2 * lane, chunk.values, even);
        }
        UNROLL
        for (uint32_t i = 0; i < BATCH; i++) {
            if (begin + i >= groups) break;
            const uint32_t symbol = (now[i] | now[i] >> 4) & 255, entry = encode[symbol];
            const uint32_t slots = entry & (ESCAPED - 1);
            const bool full = x >= slots << (AQ_RANS_STATE_BITS + 16 - AQ_RANS_SLOT_BITS);
            const uint32_t mask = __ballot_sync(WHOLE_WARP, full);
            const uint32_t escaped = __ballot_sync(WHOLE_WARP, (entry & ESCAPED) != 0);
            words -= 2 * __popc((int)mask);
            if (full) {
                ((uint16_t *)words)[__popc((int)(mask & below))] = (uint16_t)x;
                x >>= 16;
            }
            x = rans_put(x, slots, entry >> 16, inverse[symbol]);
            if ((entry & ESCAPED) != 0) {
                const uint32_t behind = waiting.first + waiting.count + __popc((int)(escaped & ~below & ~(1u << lane)));
                pairs[behind % WAITING] = ((uint64_t)(groups - 1 - begin - i) * WARP + lane) << 8 | symbol;
            }
            waiting.count += __popc((int)escaped);
        }
        while (waiting.count >= WARP)
            escapes = escapes_put(&waiting, beyond, escapes);
    }
    if (waiting.count > 0) escapes = escapes_put(&waiting, beyond, escapes);
    const uint32_t bytes = (uint32_t)(end - words), more = (uint32_t)(escapes_end - escapes);
    const uint64_t room = 4 * chunk.values + AQ_EC_CHUNK_SLACK - AQ_EC_STATE_BYTES;
    const bool good = bytes + (uint64_t)more + aq_ec_cells_bytes(chunk.values, whole->grid.refine) <= room;
    mem.chunk_states[WARP * index + lane] = x;
    if (lane != 0) return;
    mem.chunk_sizes[2 * index] = bytes;
    mem.chunk_sizes[2 * index + 1] = more;
    if (!good) atomicOr(&mem.status[sample], STEP_FAILED);
}

/* `bytes` bytes by a block, four at a time where `out` allows; from: read four by four as well, one word past each end
 * at most but none without a byte that is copied. */
static __device__ void block_copy(uint8_t *out, const uint8_t *from, uint32_t bytes)
{
    const uint32_t gap = (uint32_t)(-(uintptr_t)out % 4), head = gap < bytes ? gap : bytes;
    const uint32_t words = (bytes - head) / 4, tail = head + 4 * words;
    const uint8_t *const source = from + head;
    const uint32_t skew = (uint32_t)((uintptr_t)source % 4);
    const uint32_t *const aligned = (const uint32_t *)(source - skew);
    uint32_t *const to = (uint32_t *)(out + head);
    if (threadIdx.x < head) out[threadIdx.x] = from[threadIdx.x];
    for (uint32_t first = threadIdx.x; first < words; first += 4 * JOIN_BLOCK) {
        uint32_t low[4], high[4];
        UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t k = first + i * JOIN_BLOCK;
            low[i] = k < words ? aligned[k] : 0;
            high[i] = k < words && skew != 0 ? aligned[k + 1] : 0;
        }
        UNROLL
        for (uint32_t i = 0; i < 4; i++)
            if (first + i * JOIN_BLOCK < words) to[first + i * JOIN_BLOCK] = __funnelshift_r(low[i], high[i], 8 * skew);
    }
    if (threadIdx.x < bytes - tail) out[tail + threadIdx.x] = from[tail + threadIdx.x];
}

/* Eight cells of the values at `at`, refine bits each, as a word. */
static __device__ __forceinline__ uint64_t cells_load(const uint8_t *cells, uint64_t at, uint64_t values,
                                                      uint32_t refine)
{
    uint64_t word = 0;
    if (at + 8 <= values && (uintptr_t)(cells + at) % 8 == 0) {
        const uint64_t eight = *(const uint64_t *)(cells + at);
        for (uint32_t i = 0; i < 8; i++)
            word |= (eight >> 8 * i & 255u) << i * refine;
        return word;
    }
    for (uint32_t i = 0; i < 8 && at + i < values; i++)
        word |= (uint64_t)cells[at + i] << i * refine;
    return word;
}

__global__ void __launch_bounds__(JOIN_BLOCK) codec_ec_join(CODEC_JOBS)
{
    const uint32_t sample = blockIdx.y, chunks = gridDim.x, number = blockIdx.x, lane = threadIdx.x % WARP;
    if (is_over(plan, mem, sample)) return;
    const struct ec_whole *whole = whole_of(plan, mem, sample);
    const struct ec_chunk chunk = chunk_of(plan, number);
    const uint64_t index = chunk_index(plan, sample, number);
    const uint32_t *const sizes = mem.chunk_sizes + 2 * chunk_index(plan, sample, 0);
    const uint32_t refine = whole->grid.refine, words = sizes[2 * number], escapes = sizes[2 * number + 1];
    uint8_t *const body = (uint8_t *)list.jobs[sample].body;
    uint64_t before = 0;
    for (uint32_t k = lane; k < number; k += WARP)
        before += AQ_EC_STATE_BYTES + sizes[2 * k] + (uint64_t)sizes[2 * k + 1] +
                  aq_ec_cells_bytes(chunk_of(plan, k).values, refine);
    uint8_t *out = body + aq_ec_chunks_from(plan.rows, plan.columns, marks_of(whole)) + warp_total(before);
    if (threadIdx.x < WARP) bytes_write(out + 4 * lane, mem.chunk_states[WARP * index + lane], 4);
    out += AQ_EC_STATE_BYTES;
    block_copy(out, words_end(plan, mem, sample, number, chunk) - words, words);
    out += words;
    const int *const beyond = beyond_of(plan, mem, sample, number) + chunk.begin;
    block_copy(out, (const uint8_t *)(beyond + chunk.values + 1) - escapes, escapes);
    out += escapes;
    const uint8_t *cells = mem.cells + sample * plan.values + chunk.begin;
    for (uint64_t u = threadIdx.x; refine > 0 && u < (chunk.values + 7) / 8; u += JOIN_BLOCK) {
        const uint64_t word = cells_load(cells, 8 * u, chunk.values, refine);
        for (uint32_t k = 0; k < refine; k++)
            out[u * refine + k] = (uint8_t)(word >> 8 * k);
    }
    if (threadIdx.x != 0) return;
    bytes_write(body + AQ_EC_HEAD_BYTES + (uint64_t)number * AQ_EC_CHUNK_ENTRY, words, 4);
    bytes_write(body + AQ_EC_HEAD_BYTES + (uint64_t)number * AQ_EC_CHUNK_ENTRY + 4, escapes, 4);
    out += aq_ec_cells_bytes(chunk.values, refine);
    if (number + 1 == chunks) mem.lengths[sample] = (uint32_t)(out - body);
}

/* ---- in ---- */

/* A part of a body on its way into the ring: a lane has 16 bytes of each piece. */
struct stream {
    const uint8_t *at, *end; /* of this lane's next bytes, at a multiple of 16; of the part */
    uint32_t held[4], last;  /* what was loaded and has not gone into the ring; and the byte before the next piece */
    bool odd;                /* words are at odd addresses: in the ring they are one byte further on */
};

/* Bytes at or past the end are zero and are not read. */
static __device__ __forceinline__ void stream_load(struct stream *s)
{
    const uint64_t left = s->at < s->end ? (uint64_t)(s->end - s->at) : 0;
    if (left >= 16) {
        const uint4 held = *(const uint4 *)s->at;
        s->held[0] = held.x;
        s->held[1] = held.y;
        s->held[2] = held.z;
        s->held[3] = held.w;
    } else {
        UNROLL
        for (uint32_t i = 0; i < 4; i++)
            s->held[i] = 0;
        UNROLL
        for (uint32_t i = 0; i < 16; i++)
            if (i < left) s->held[i / 4] |= (uint32_t)s->at[i] << i % 4 * 8;
    }
    s->at += left > 0 ? 2 * PIECE : 0;
}

/* The held piece goes to its place, all lanes together; the next one is on its way. */
static __device__ __forceinline__ void stream_put(struct stream *s, uint4 *place)
{
    const uint32_t lane = threadIdx.x % WARP, before = __shfl_up_sync(WHOLE_WARP, s->held[3], 1);
    const uint32_t last = __shfl_sync(WHOLE_WARP, s->held[3], WARP - 1) >> 24;
    uint4 out = make_uint4(s->held[0], s->held[1], s->held[2], s->held[3]);
    if (s->odd) {
        out.x = s->held[0] << 8 | (lane == 0 ? s->last : before >> 24);
        out.y = __funnelshift_l(s->held[0], s->held[1], 8);
        out.z = __funnelshift_l(s->held[1], s->held[2], 8);
        out.w = __funnelshift_l(s->held[2], s->held[3], 8);
    }
    s->last = last;
    place[lane] = out;
    stream_load(s);
}

/* The reader of the escapes of a chunk. */
struct numbers {
    const uint8_t *at, *end;
    uint8_t *window; /* WINDOW bytes */
    uint16_t *ends;  /* of 2 WARP numbers */
};

/* q of as many waiting pairs as a warp takes, a lane per pair. False to a lane whose numbers are malformed. */
static __device__ bool escapes_take(struct waiting *waiting, struct numbers *in, int *beyond, uint64_t values)
{
    const uint32_t lane = threadIdx.x % WARP, count = waiting->count < WARP ? waiting->count : (uint32_t)WARP;
    const uint64_t left = (uint64_t)(in->end - in->at);
    uint32_t stops = 0, all;
    __syncwarp();
    UNROLL
    for (uint32_t b = 0; b < 8; b++) {
        const uint32_t byte = 8 * lane + b < left ? in->at[8 * lane + b] : 128u; /* no number ends past the end */
        in->window[8 * lane + b] = (uint8_t)byte;
        stops |= (uint32_t)(byte < 128) << b;
    }
    uint32_t number = warp_before((uint32_t)__popc((int)stops), &all);
    for (; stops != 0 && number < 2 * WARP; stops &= stops - 1)
        in->ends[number++] = (uint16_t)(8 * lane + (uint32_t)__ffs((int)stops) - 1);
    __syncwarp();
    bool good = all >= 2 * count;
    for (uint32_t k = 0; good && lane < count && k < 2; k++) {
        const uint32_t mine = 2 * lane + k, from = mine == 0 ? 0 : in->ends[mine - 1] + 1u, end = in->ends[mine] + 1u;
        const uint64_t e = 2 * waiting->pairs[(waiting->first + lane) % (2 * WARP)] + k;
        uint32_t word = 0;
        good = end - from <= 4;
        for (uint32_t i = 0; good && i < end - from; i++)
            word |= (uint32_t)(in->window[from + i] & 127) << 7 * i;
        const int q = (int)(word >> 1) ^ -(int)(word & 1);
        if (e < values)
            beyond[e] = q;
        else
            good = good && q == 0; /* half of an odd chunk's last pair is nothing */
    }
    if (all >= 2 * count && count > 0) in->at += in->ends[2 * count - 1] + 1u;
    waiting->first += count;
    waiting->count -= count;
    __syncwarp();
    return good;
}

/* A chunk's codes to memory. Returns false to a lane whose symbols are behind the last value. */
static __device__ __forceinline__ bool pair_store(uint8_t *codes, uint64_t at, uint64_t values, bool even, uint32_t low,
                                                  uint32_t high)
{
    if (at + 1 < values) {
        if (even) {
            *(uint16_t *)(codes + at) = (uint16_t)(low | high << 8);
        } else {
            codes[at] = (uint8_t)low;
            codes[at + 1] = (uint8_t)high;
        }
        return true;
    }
    if (at < values) codes[at] = (uint8_t)low;
    return (at < values || low == AQ_RANS_CODE_ZERO) &&
           (high == AQ_RANS_CODE_ZERO || (at + 1 == values && high == 0)); /* half of a pair that is escaped */
}

__global__ void __launch_bounds__(WARP) codec_ec_chunks_in(CODEC_JOBS)
{
    AQ_SHARED(uint4, table, [AQ_RANS_SLOTS / 4]);
    AQ_SHARED(uint4, ring, [RING / 8]);
    AQ_SHARED(uint64_t, pairs, [2 * WARP]);
    AQ_SHARED(uint8_t, window, [WINDOW]);
    AQ_SHARED(uint16_t, ends, [2 * WARP]);
    const uint32_t sample = blockIdx.y, lane = threadIdx.x, below = (1u << lane) - 1u;
    if (sample_failed(mem, sample)) return;
    const struct ec_whole *whole = whole_of(plan, mem, sample);
    const struct ec_chunk chunk = chunk_of(plan, blockIdx.x);
    const uint8_t *const body = (const uint8_t *)list.jobs[sample].body, *const sizes = body + AQ_EC_HEAD_BYTES;
    const uint32_t refine = whole->grid.refine;
    uint64_t before = 0;
    for (uint32_t k = lane; k < blockIdx.x; k += WARP) {
        const uint8_t *entry = sizes + (uint64_t)k * AQ_EC_CHUNK_ENTRY;
        before += AQ_EC_STATE_BYTES + bytes_read(entry, 4) + (uint64_t)bytes_read(entry + 4, 4) +
                  aq_ec_cells_bytes(chunk_of(plan, k).values, refine);
    }
    const uint8_t *const states =
        body + aq_ec_chunks_from(plan.rows, plan.columns, marks_of(whole)) + warp_total(before);
    const uint8_t *const entry = sizes + (uint64_t)blockIdx.x * AQ_EC_CHUNK_ENTRY;
    const uint32_t word_bytes = bytes_read(entry, 4);
    const uint8_t *const words = states + AQ_EC_STATE_BYTES, *const end = words + word_bytes;
    struct numbers numbers = {end, end + bytes_read(entry + 4, 4), window, ends};
    struct waiting waiting = {pairs, 0, 0};
    const uint32_t skip = (uint32_t)((uintptr_t)words % 16);
    struct stream stream = {words - skip + 16 * lane, end, {0, 0, 0, 0}, 0, skip % 2 != 0};
    stream_load(&stream);
    stream_put(&stream, ring);
    stream_put(&stream, ring + RING / 16);
    for (uint32_t i = lane; i < AQ_RANS_SLOTS / 4; i += 8 * WARP) {
        uint4 four[8];
        UNROLL
        for (uint32_t k = 0; k < 8; k++)
            four[k] = whole->decode[i + k * WARP];
        UNROLL
        for (uint32_t k = 0; k < 8; k++)
            table[i + k * WARP] = four[k];
    }
    uint32_t x = bytes_read(states + 4 * lane, 4);
    bool good = __all_sync(WHOLE_WARP, x >= 1u << AQ_RANS_STATE_BITS && x < 1u << 31);
    const uint32_t groups = good ? (uint32_t)((chunk.values + AQ_RANS_GROUP - 1) / AQ_RANS_GROUP) : 0;
    uint8_t *const codes = mem.codes + sample * plan.values + chunk.begin;
    int *const beyond = beyond_of(plan, mem, sample, blockIdx.x) + chunk.begin;
    const bool even = (uintptr_t)codes % 2 == 0;
    const uint32_t from = (skip + 1) / 2;
    uint32_t at = from, put = PIECE; /* words of the stream: the next one; those behind the first piece */
    __syncwarp();
    for (uint32_t group = 0; group < groups; group++) {
        const uint32_t found = ((const uint32_t *)table)[x & (AQ_RANS_SLOTS - 1)], low = found & 15,
                       high = found >> 4 & 15;
        x = (x >> AQ_RANS_SLOT_BITS) * (found >> 8 & (AQ_RANS_SLOTS - 1)) + (found >> 20);
        const bool empty = x < 1u << AQ_RANS_STATE_BITS;
        const uint32_t mask = __ballot_sync(WHOLE_WARP, empty);
        if (empty) x = x << 16 | ((const uint16_t *)ring)[(at + __popc((int)(mask & below))) % RING];
        at += __popc((int)mask);
        good = pair_store(codes, (uint64_t)group * AQ_RANS_GROUP + 2 * lane, chunk.values, even, low, high) && good;
        const bool pair = low == 0 && (uint64_t)group * AQ_RANS_GROUP + 2 * lane < chunk.values;
        const uint32_t escaped = __ballot_sync(WHOLE_WARP, pair);
        if (escaped != 0) {
            if (pair)
                pairs[(waiting.first + waiting.count + __popc((int)(escaped & below))) % (2 * WARP)] =
                    (uint64_t)group * WARP + lane;
            waiting.count += __popc((int)escaped);
            if (waiting.count >= WARP) good = escapes_take(&waiting, &numbers, beyond, chunk.values) && good;
        }
        if (at >= put) { /* the first piece of the ring is used up */
            __syncwarp();
            stream_put(&stream, ring + (put / PIECE + 1) % 2 * (RING / 16));
            put += PIECE;
            __syncwarp();
        }
    }
    if (waiting.count > 0) good = escapes_take(&waiting, &numbers, beyond, chunk.values) && good;
    good =
        good && x == 1u << AQ_RANS_STATE_BITS && word_bytes == 2 * (uint64_t)(at - from) && numbers.at == numbers.end;
    good = __all_sync(WHOLE_WARP, good);
    if (lane != 0) return;
    mem.chunk_sizes[2 * chunk_index(plan, sample, blockIdx.x)] = (uint32_t)(numbers.end - body);
    if (!good) atomicOr(&mem.status[sample], SAMPLE_FAILED);
}

/* ---- the launchers ---- */

enum aq_status codec_launch_ec_chunks_out(const struct aq_cuda_codec_plan &plan,
                                          const struct aq_cuda_codec_scratch &mem, const struct job_list &list,
                                          struct CUstream_st *stream)
{
    const dim3 chunks(aq_ec_chunk_count(plan.rows, plan.columns), list.count);
    AQ_TRY(AQ_LAUNCH(codec_ec_chunks_out, chunks, WARP, 0, stream, plan, mem));
    return AQ_LAUNCH(codec_ec_join, chunks, JOIN_BLOCK, 0, stream, plan, mem, list);
}

enum aq_status codec_launch_ec_chunks_in(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem,
                                         const struct job_list &list, struct CUstream_st *stream)
{
    const dim3 chunks(aq_ec_chunk_count(plan.rows, plan.columns), list.count);
    return AQ_LAUNCH(codec_ec_chunks_in, chunks, WARP, 0, stream, plan, mem, list);
}
