/* collective_cases.c -- see collective_cases.h. */
#include "collective_cases.h"

#include <math.h>
#include <string.h>

#include "aqsgd/device_math.h"
#include "sample.h"

/* Where what is reduced lies: NULL: in host memory (or a device whose memory the host reaches). Of this thread's rank.
 */
static _Thread_local struct aq_device *behind;
bool collective_cases_on_gpus;

enum { BUFFERS_MAX = 4 };

/* Buffers of floats as the group wants them: copies on the device, which come back. */
struct copies {
    struct {
        float *host, *device;
        uint64_t count;
    } of[BUFFERS_MAX];
    uint32_t count;
};

static enum aq_status copies_take(struct copies *copies, float **x, uint64_t count)
{
    void *memory;
    if (!behind || !*x) return AQ_OK;
    AQ_TRY(aq_device_alloc(behind, AQ_MEMORY_DEVICE, count * sizeof **x + 1, &memory));
    copies->of[copies->count].host = *x;
    copies->of[copies->count].device = memory;
    copies->of[copies->count++].count = count;
    AQ_TRY(aq_device_copy(behind, memory, *x, count * sizeof **x, NULL));
    *x = memory;
    return aq_device_stream_sync(behind, NULL);
}

static enum aq_status copies_return(struct copies *copies, enum aq_status status)
{
    for (uint32_t i = 0; i < copies->count; i++) {
        const uint64_t bytes = copies->of[i].count * sizeof(float);
        enum aq_status back = aq_device_copy(behind, copies->of[i].host, copies->of[i].device, bytes, NULL);
        if (back == AQ_OK) back = aq_device_stream_sync(behind, NULL);
        if (status == AQ_OK) status = back;
        aq_device_free(behind, AQ_MEMORY_DEVICE, copies->of[i].device, bytes + 1);
    }
    return status;
}

static enum aq_status allreduce(struct aq_group *group, float *x, uint64_t count)
{
    struct copies copies = {0};
    AQ_TRY(copies_take(&copies, &x, count));
    return copies_return(&copies, aq_allreduce(group, x, count));
}

static enum aq_status mean(struct aq_group *group, float *x, uint64_t count)
{
    struct copies copies = {0};
    AQ_TRY(copies_take(&copies, &x, count));
    return copies_return(&copies, aq_allreduce_mean(group, x, count));
}

static enum aq_status reduce_scatter(struct aq_group *group, float *x, uint64_t count, uint64_t *first, uint64_t *mine)
{
    struct copies copies = {0};
    AQ_TRY(copies_take(&copies, &x, count));
    return copies_return(&copies, aq_reduce_scatter(group, x, count, first, mine));
}

static enum aq_status take_asked(struct copies *copies, const struct aq_group *group, struct aq_compressed *asked)
{
    uint64_t first, chunk;
    aq_grad_chunk(asked->count, aq_group_size(group), aq_group_rank(group), &first, &chunk);
    AQ_TRY(copies_take(copies, &asked->x, asked->count));
    AQ_TRY(copies_take(copies, &asked->worker_error, asked->count));
    return copies_take(copies, &asked->server_error, chunk);
}

static enum aq_status compressed_allreduce(struct aq_group *group, const struct aq_compressed *asked)
{
    struct copies copies = {0};
    struct aq_compressed mine = *asked;
    AQ_TRY(take_asked(&copies, group, &mine));
    return copies_return(&copies, aq_compressed_allreduce(group, &mine));
}

/* 32 bits for a place: the finalizer of splitmix64 (Steele, Lea, Flood 2014). aq_rng_u32 takes ten times as long, and
 * was half of the suites' time. */
static uint32_t word_of(uint64_t series, uint32_t rank, uint64_t n, uint64_t i)
{
    uint64_t x = (i + (n << 32) + ((uint64_t)rank << 48) + (series << 56)) * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)(x >> 32);
}

/* What rank r has at place i of buffer number n: signs and sizes that make the order of a sum matter. */
static float value_of(uint32_t rank, uint64_t n, uint64_t i)
{
    const uint32_t word = word_of(11, rank, n, i);
    return (float)(int32_t)word / (float)(UINT64_C(1) << word % 40);
}

static uint8_t byte_of(uint32_t rank, uint64_t n, uint64_t i)
{
    return (uint8_t)(rank * 37 + n * 11 + i * 7 + i / 251);
}

static uint64_t count_of(uint32_t size, uint32_t n)
{
    /* None, fewer than ranks, borders of cuts (64 values), of messages (4096 floats here) and of chunks, many. */
    const uint64_t counts[] = {0,
                               1,
                               size - 1,
                               7,
                               63,
                               64 * (uint64_t)size,
                               64 * (uint64_t)size + 1,
                               4096 * (uint64_t)size - 1,
                               4096 * (uint64_t)size,
                               100003,
                               4096 * 9 * (uint64_t)size + 513};
    return n < sizeof counts / sizeof *counts ? counts[n] : UINT64_MAX;
}

static enum aq_status check_sum(const struct aq_group *group, const float *x, uint64_t first, uint64_t count,
                                uint32_t n)
{
    for (uint64_t i = 0; i < count; i++) {
        float sum = value_of(0, n, first + i);
        double exact = sum, scale = fabs(exact);
        for (uint32_t w = 1; w < aq_group_size(group); w++) {
            const float value = value_of(w, n, first + i);
            sum += value;
            exact += value;
            scale += fabs((double)value);
        }
        CASE_EXPECT(group, memcmp(&x[i], &sum, sizeof sum) == 0);
        CASE_EXPECT(group, fabs(x[i] - exact) <= 1e-6 * scale);
    }
    return AQ_OK;
}

static enum aq_status make(uint32_t rank, uint32_t n, uint64_t count, float **out)
{
    void *memory;
    AQ_TRY(aq_alloc(count * sizeof **out, &memory));
    *out = memory;
    for (uint64_t i = 0; i < count; i++)
        (*out)[i] = value_of(rank, n, i);
    return AQ_OK;
}

static enum aq_status run_allreduce(struct aq_group *group)
{
    uint64_t count;
    for (uint32_t n = 0; (count = count_of(aq_group_size(group), n)) != UINT64_MAX; n++) {
        float *x;
        AQ_TRY(make(aq_group_rank(group), n, count, &x));
        enum aq_status status = allreduce(group, x, count);
        if (status == AQ_OK) status = check_sum(group, x, 0, count, n);
        aq_free(x);
        AQ_TRY(status);
    }
    return AQ_OK;
}

/* A mean is the sum's bits, times 1 / W. */
static enum aq_status run_mean(struct aq_group *group)
{
    enum { COUNT = 70001 };
    const float share = 1.0f / (float)aq_group_size(group);
    float *x;
    AQ_TRY(make(aq_group_rank(group), 0, 2 * COUNT, &x));
    memcpy(x + COUNT, x, COUNT * sizeof *x);
    enum aq_status status = allreduce(group, x, COUNT);
    if (status == AQ_OK) status = mean(group, x + COUNT, COUNT);
    for (uint64_t i = 0; i < COUNT && status == AQ_OK; i++)
        if (x[COUNT + i] != x[i] * share) status = aq_fail(AQ_CORRUPT, "test", "mean %llu", (unsigned long long)i);
    aq_free(x);
    return status;
}

static enum aq_status run_reduce_scatter(struct aq_group *group)
{
    uint64_t count, first, mine;
    for (uint32_t n = 0; (count = count_of(aq_group_size(group), n)) != UINT64_MAX; n++) {
        float *x;
        AQ_TRY(make(aq_group_rank(group), n, count, &x));
        enum aq_status status = reduce_scatter(group, x, count, &first, &mine);
        if (status == AQ_OK) status = check_sum(group, x + first, first, mine, n);
        for (uint64_t i = 0; i < count && status == AQ_OK; i++)
            if ((i < first || i >= first + mine) && x[i] != value_of(aq_group_rank(group), n, i))
                status =
                    aq_fail(AQ_CORRUPT, "test", "place %llu of another's chunk was changed", (unsigned long long)i);
        aq_free(x);
        AQ_TRY(status);
    }
    return AQ_OK;
}

static const size_t BLOCKS[] = {0, 1, 8, 1000, CASE_PIECE_BYTES, CASE_PIECE_BYTES + 1, 7 * CASE_PIECE_BYTES + 333};
enum { BLOCK_COUNT = sizeof BLOCKS / sizeof *BLOCKS };

static enum aq_status run_all_gather(struct aq_group *group)
{
    const uint32_t size = aq_group_size(group);
    for (uint32_t n = 0; n < BLOCK_COUNT; n++) {
        const size_t bytes = BLOCKS[n];
        void *memory;
        AQ_TRY(aq_alloc((size + 1) * bytes, &memory));
        uint8_t *all = memory, *mine = all + size * bytes;
        for (size_t i = 0; i < bytes; i++)
            mine[i] = byte_of(aq_group_rank(group), n, i);
        enum aq_status status = aq_all_gather(group, mine, bytes, all);
        for (size_t i = 0; i < size * bytes && status == AQ_OK; i++)
            if (all[i] != byte_of((uint32_t)(i / bytes), n, i % bytes))
                status = aq_fail(AQ_CORRUPT, "test", "all-gather of %zu: byte %zu", bytes, i);
        aq_free(memory);
        AQ_TRY(status);
    }
    return AQ_OK;
}

static enum aq_status run_all_to_all(struct aq_group *group)
{
    const uint32_t size = aq_group_size(group);
    for (uint32_t n = 0; n < BLOCK_COUNT; n++) {
        const size_t bytes = BLOCKS[n];
        void *memory;
        AQ_TRY(aq_alloc(2 * size * bytes, &memory));
        uint8_t *send = memory, *received = send + size * bytes;
        for (size_t i = 0; i < size * bytes; i++)
            send[i] = byte_of(aq_group_rank(group), n, i);
        enum aq_status status = aq_all_to_all(group, send, received, bytes);
        for (size_t i = 0; i < size * bytes && status == AQ_OK; i++)
            if (received[i] != byte_of((uint32_t)(i / bytes), n, aq_group_rank(group) * bytes + i % bytes))
                status = aq_fail(AQ_CORRUPT, "test", "all-to-all of %zu: byte %zu", bytes, i);
        aq_free(memory);
        AQ_TRY(status);
    }
    return AQ_OK;
}

static enum aq_status run_broadcast(struct aq_group *group)
{
    for (uint32_t n = 0; n < BLOCK_COUNT; n++)
        for (uint32_t root = 0; root < aq_group_size(group); root++) {
            void *memory;
            AQ_TRY(aq_alloc(BLOCKS[n], &memory));
            uint8_t *bytes = memory;
            for (size_t i = 0; i < BLOCKS[n]; i++)
                bytes[i] = byte_of(aq_group_rank(group), n, i);
            enum aq_status status = aq_broadcast(group, root, bytes, BLOCKS[n]);
            for (size_t i = 0; i < BLOCKS[n] && status == AQ_OK; i++)
                if (bytes[i] != byte_of(root, n, i))
                    status = aq_fail(AQ_CORRUPT, "test", "broadcast of %zu from %u: byte %zu", BLOCKS[n], root, i);
            aq_free(memory);
            AQ_TRY(status);
        }
    return AQ_OK;
}

/* As much as every rank may put into a lane. */
static uint64_t lane_of(uint32_t size, uint32_t bits, uint32_t rank, uint64_t i)
{
    return word_of(13, rank, bits, i) % (((1u << bits) - 1) / size + 1);
}

static enum aq_status run_lanes(struct aq_group *group)
{
    const uint32_t size = aq_group_size(group);
    for (uint32_t bits = 3; bits <= 16; bits = bits == 8 ? 16 : bits + 1) {
        const uint64_t count = 30011, per_word = 64 / bits, words = aq_lane_words(count, bits);
        void *memory;
        AQ_TRY(aq_alloc(words * 8, &memory));
        uint64_t *lanes = memory;
        for (uint64_t i = 0; i < count; i++)
            lanes[i / per_word] |= lane_of(size, bits, aq_group_rank(group), i) << i % per_word * bits;
        enum aq_status status = aq_allreduce_lanes(group, lanes, count, bits);
        for (uint64_t i = 0; i < count && status == AQ_OK; i++) {
            uint64_t sum = 0;
            for (uint32_t w = 0; w < size; w++)
                sum += lane_of(size, bits, w, i);
            if ((lanes[i / per_word] >> i % per_word * bits & ((UINT64_C(1) << bits) - 1)) != sum)
                status = aq_fail(AQ_CORRUPT, "test", "lane %llu of %u bits", (unsigned long long)i, bits);
        }
        aq_free(memory);
        AQ_TRY(status);
    }
    return AQ_OK;
}

/* A NaN, its sign and payload, and both infinities: whatever the sum is, it is the same bits everywhere. */
static enum aq_status run_special(struct aq_group *group)
{
    static const uint32_t WORDS[] = {0x7fc00001, 0xffc12345, 0x7f800000, 0xff800000,
                                     0x80000000, 0x00000001, 0x7f7fffff};
    enum { COUNT = 10000, WORD_COUNT = sizeof WORDS / sizeof *WORDS };
    float x[COUNT];
    uint64_t all[CASE_RANKS_MAX];
    for (uint32_t i = 0; i < COUNT; i++)
        memcpy(&x[i], &WORDS[(i * (aq_group_rank(group) + 1) + i / 77) % WORD_COUNT], sizeof *x);
    AQ_TRY(allreduce(group, x, COUNT));
    const uint64_t digest = aq_digest(x, sizeof x);
    AQ_TRY(aq_all_gather(group, &digest, sizeof digest, all));
    for (uint32_t w = 0; w < aq_group_size(group); w++)
        CASE_EXPECT(group, all[w] == digest);
    CASE_EXPECT(group, isnan(x[0]));
    return aq_group_agree(group, digest, "the special sum");
}

/* ---- the compressed allreduce, against one process that does the work of all ranks piece by piece ---- */

/* Step TO_WORKER is that of a group that keeps no server errors; the next one has both again. */
enum { STEPS = 4, TO_WORKER = 3, TENSORS = 3 };

struct buffers { /* of one rank */
    float *x, *worker_error, *server_error;
};

/* What goes along with step ALONG: x is made of nothing before, and its sign turned after, each value once. */
enum { ALONG = 2 };

struct along {
    float *x, *gradient;
    uint8_t *made, *used; /* how often */
};

static float gradient_of(uint32_t rank, uint64_t step, uint64_t i)
{
    return (float)(int32_t)word_of(17, rank, step, i) * 0x1p-31f;
}

/* Where it lies on a device they are called by the rank itself, and enqueue. */
static enum aq_status make_range(void *work, uint64_t first, uint64_t count)
{
    const struct along *along = work;
    for (uint64_t i = first; i < first + count; i++)
        along->made[i]++;
    if (behind)
        return aq_device_copy(behind, along->x + first, along->gradient + first, count * sizeof *along->x, NULL);
    memcpy(along->x + first, along->gradient + first, count * sizeof *along->x);
    return AQ_OK;
}

static enum aq_status use_range(void *work, uint64_t first, uint64_t count)
{
    const struct along *along = work;
    for (uint64_t i = first; i < first + count; i++)
        along->used[i]++;
    const struct aq_scale negate = {.x = along->x + first, .count = count, .factor = -1.0f};
    if (behind) return aq_device_scale(behind, &negate, NULL);
    for (uint64_t i = first; i < first + count; i++)
        along->x[i] = -along->x[i];
    return AQ_OK;
}

static enum aq_status run_work(struct aq_group *group, struct aq_compressed *asked, struct along *along)
{
    struct copies copies = {0};
    struct aq_compressed mine = *asked;
    mine.before = make_range;
    mine.after = use_range;
    mine.work = along;
    AQ_TRY(copies_take(&copies, &along->gradient, asked->count));
    AQ_TRY(take_asked(&copies, group, &mine));
    along->x = mine.x;
    return copies_return(&copies, aq_compressed_allreduce(group, &mine));
}

static enum aq_status with_work(struct aq_group *group, struct aq_compressed *asked)
{
    void *memory;
    AQ_TRY(aq_alloc((2 + sizeof(float)) * asked->count, &memory));
    float *gradient = memory;
    uint8_t *times = (uint8_t *)(gradient + asked->count);
    struct along along = {.gradient = gradient, .made = times, .used = times + asked->count};
    for (uint64_t i = 0; i < asked->count; i++) {
        gradient[i] = gradient_of(aq_group_rank(group), ALONG, i);
        asked->x[i] = NAN; /* whoever reads it too early spoils the result */
    }
    enum aq_status status = run_work(group, asked, &along);
    for (uint64_t i = 0; i < asked->count && status == AQ_OK; i++) {
        asked->x[i] = -asked->x[i];
        if (along.made[i] != 1 || along.used[i] != 1)
            status = aq_fail(AQ_CORRUPT, "test", "value %llu was made %u times, used %u times", (unsigned long long)i,
                             along.made[i], along.used[i]);
    }
    aq_free(memory);
    return status;
}

static enum aq_status take_floats(uint64_t count, float **out)
{
    void *memory;
    AQ_TRY(aq_alloc(count * sizeof **out, &memory));
    *out = memory;
    return AQ_OK;
}

/* encode and decode of [first, first + count), piece by piece; the first into memory that holds any piece. */
static enum aq_status code(const struct aq_grad_codec *codec, uint64_t first, uint64_t count, const float *x,
                           float *error, uint64_t step, uint8_t *wire, float weight, bool add, float *sum)
{
    for (uint64_t at = 0; at < count; at += AQ_GRAD_PIECE) {
        const uint64_t values = count - at < AQ_GRAD_PIECE ? count - at : AQ_GRAD_PIECE;
        const size_t bytes = aq_grad_codec_bytes(codec, first + at, values);
        AQ_TRY(aq_grad_encode(codec, first + at, values, x + at, error + at, step, wire));
        AQ_TRY(aq_grad_decode(codec, first + at, values, wire, bytes, weight, add, sum + at));
    }
    return AQ_OK;
}

/* What the server's codec loses of step TO_WORKER, times the ranks, is the owner's own to send. */
static enum aq_status code_to_worker(const struct aq_grad_codec *codec, uint32_t size, uint64_t first, uint64_t chunk,
                                     uint64_t step, struct buffers *owner, uint8_t *wire, float *sum)
{
    float *lost = NULL;
    AQ_TRY(take_floats(chunk + 1, &lost));
    const enum aq_status status = code(codec, first, chunk, sum, lost, step, wire, 1.0f, false, sum);
    for (uint64_t i = 0; i < chunk; i++) {
        const float of_all = lost[i] * (float)size;
        owner->worker_error[first + i] += of_all;
    }
    aq_free(lost);
    return status;
}

/* What every rank's x, and the errors of all, are after this step. sum: count floats. */
static enum aq_status reference(const struct aq_grad_codec *codec, uint32_t size, uint64_t count, uint64_t step,
                                struct buffers *ranks, uint8_t *wire, float *sum)
{
    for (uint32_t owner = 0; owner < size; owner++) {
        uint64_t first, chunk;
        aq_grad_chunk(count, size, owner, &first, &chunk);
        for (uint32_t rank = 0; rank < size; rank++)
            AQ_TRY(code(codec, first, chunk, ranks[rank].x + first, ranks[rank].worker_error + first, step, wire,
                        aq_grad_codec_weight(codec, size), rank > 0, sum + first));
        AQ_TRY(step == TO_WORKER ? code_to_worker(codec, size, first, chunk, step, &ranks[owner], wire, sum + first)
                                 : code(codec, first, chunk, sum + first, ranks[owner].server_error, step, wire, 1.0f,
                                        false, sum + first));
    }
    return AQ_OK;
}

enum { WORD_STOPS = 2, WORD_LATER = 8 }; /* bits that ranks say in the cases below */

/* Which ranks' words stop void step n: one of them, or two, or all. */
static bool stops(uint32_t rank, uint32_t size, uint64_t n)
{
    return n % 3 == 0 || rank == n % size || (n % 3 == 2 && rank == 0);
}

/* What all ranks know after a reduction that went with words. */
static enum aq_status heard(struct aq_group *group, bool stopped)
{
    uint64_t any;
    AQ_TRY(aq_group_hear(group, &any));
    CASE_EXPECT(group, any == (stopped ? WORD_STOPS | WORD_LATER : WORD_LATER));
    AQ_TRY(aq_group_hear(group, &any)); /* once more */
    CASE_EXPECT(group, any == (stopped ? WORD_STOPS | WORD_LATER : WORD_LATER));
    return AQ_OK;
}

static enum aq_status say(struct aq_group *group, bool stop)
{
    const uint64_t later = aq_group_rank(group) == aq_group_size(group) - 1 ? WORD_LATER : 0;
    return aq_group_say(group, later | (stop ? WORD_STOPS : 0), WORD_STOPS);
}

/* A void step leaves no trace in the errors, whoever's gradient it was. */
static enum aq_status void_step(struct aq_group *group, struct aq_compressed asked, uint64_t n)
{
    const uint32_t size = aq_group_size(group), rank = aq_group_rank(group);
    uint64_t first, mine;
    float *worker_error = NULL, *server_error = NULL;
    enum aq_status status;
    aq_grad_chunk(asked.count, size, rank, &first, &mine);
    AQ_TRY_GOTO(take_floats(asked.count, &worker_error), out);
    AQ_TRY_GOTO(take_floats(asked.count, &server_error), out);
    memcpy(worker_error, asked.worker_error, asked.count * sizeof(float));
    memcpy(server_error, asked.server_error, mine * sizeof(float));
    for (uint64_t i = 0; i < asked.count; i++)
        asked.x[i] = stops(rank, size, n) && i % 3 == 0 ? NAN : 1000 + (float)i;
    AQ_TRY_GOTO(say(group, stops(rank, size, n)), out);
    AQ_TRY_GOTO(compressed_allreduce(group, &asked), out);
    AQ_TRY_GOTO(heard(group, true), out);
    if (memcmp(worker_error, asked.worker_error, asked.count * sizeof(float)) != 0 ||
        memcmp(server_error, asked.server_error, mine * sizeof(float)) != 0)
        status = aq_fail(AQ_CORRUPT, "test", "rank %u: void step %u has changed an error", rank, (unsigned)n);
out:
    aq_free(worker_error);
    aq_free(server_error);
    return status;
}

static enum aq_status compressed_steps(struct aq_group *group, const struct aq_grad_codec *codec, uint64_t count,
                                       struct buffers *own, struct buffers *all, uint8_t *wire, float *sum)
{
    const uint32_t size = aq_group_size(group), rank = aq_group_rank(group);
    uint64_t first, mine;
    aq_grad_chunk(count, size, rank, &first, &mine);
    for (uint64_t step = 1; step <= STEPS; step++) {
        struct aq_group_stats before, after;
        for (uint64_t i = 0; i < count; i++)
            own->x[i] = gradient_of(rank, step, i);
        struct aq_compressed asked = {.worker = codec,
                                      .server = codec,
                                      .x = own->x,
                                      .count = count,
                                      .worker_error = own->worker_error,
                                      .server_error = own->server_error,
                                      .step = step};
        const bool words = step > 1;                                /* also where something goes along */
        if (step == TO_WORKER && aq_group_is_nccl(group)) continue; /* no group over it lacks a rank */
        if (words) AQ_TRY(void_step(group, asked, step + count));
        if (step == TO_WORKER) asked.whole = size + 1;
        for (uint64_t i = 0; i < count; i++)
            own->x[i] = gradient_of(rank, step, i);
        if (words) AQ_TRY(say(group, false));
        aq_group_stats(group, &before);
        AQ_TRY(step == ALONG ? with_work(group, &asked) : compressed_allreduce(group, &asked));
        aq_group_stats(group, &after);
        if (words) AQ_TRY(heard(group, false));
        AQ_TRY(aq_group_agree(group, aq_digest(own->x, count * sizeof(float)), "the mean"));
        uint64_t bytes = (size - 1) * aq_grad_codec_bytes_pieces(codec, first, mine);
        for (uint32_t to = 0; to < size; to++) {
            uint64_t begin, chunk;
            aq_grad_chunk(count, size, to, &begin, &chunk);
            if (to != rank) bytes += aq_grad_codec_bytes_pieces(codec, begin, chunk);
        }
        CASE_EXPECT(group, after.sent_bytes - before.sent_bytes == bytes);
        if (!all) continue;
        for (uint32_t w = 0; w < size; w++)
            for (uint64_t i = 0; i < count; i++)
                all[w].x[i] = gradient_of(w, step, i);
        AQ_TRY(reference(codec, size, count, step, all, wire, sum));
        CASE_EXPECT(group, memcmp(sum, own->x, count * sizeof(float)) == 0);
        CASE_EXPECT(group, memcmp(all[rank].worker_error, own->worker_error, count * sizeof(float)) == 0);
        CASE_EXPECT(group, memcmp(all[rank].server_error, own->server_error, mine * sizeof(float)) == 0);
    }
    return AQ_OK;
}

static enum aq_status open_buffers(uint64_t count, struct buffers *out)
{
    AQ_TRY(take_floats(count, &out->x));
    AQ_TRY(take_floats(count, &out->worker_error));
    return take_floats(count, &out->server_error);
}

static void close_buffers(struct buffers *buffers)
{
    aq_free(buffers->x);
    aq_free(buffers->worker_error);
    aq_free(buffers->server_error);
}

/* checks: this rank compares with the reference; the others' bits are those of this one. */
static enum aq_status compressed_kind(struct aq_group *group, const char *kind, uint64_t count, bool checks)
{
    /* Three tensors, one that crosses pieces and chunks, and padding between them. */
    const struct aq_optimizer_tensor tensors[TENSORS] = {
        {.offset = 0, .count = 100}, {.offset = 128, .count = count - 1128}, {.offset = count - 1000, .count = 990}};
    struct aq_grad_codec_config config;
    struct aq_grad_codec *codec = NULL;
    struct buffers own = {0}, all[CASE_RANKS_MAX] = {{0}};
    float *wire = NULL, *sum = NULL;
    enum aq_status status;
    aq_grad_codec_config_default(&config, kind);
    AQ_TRY_GOTO(aq_grad_codec_open(&config, tensors, TENSORS, count, &codec), out);
    AQ_TRY_GOTO(open_buffers(count, &own), out);
    for (uint32_t w = 0; checks && w < aq_group_size(group); w++)
        AQ_TRY_GOTO(open_buffers(count, &all[w]), out);
    AQ_TRY_GOTO(take_floats(2 * AQ_GRAD_PIECE, &wire), out);
    AQ_TRY_GOTO(take_floats(count, &sum), out);
    AQ_TRY_GOTO(compressed_steps(group, codec, count, &own, checks ? all : NULL, (uint8_t *)wire, sum), out);
out:
    aq_free(wire);
    aq_free(sum);
    close_buffers(&own);
    for (uint32_t w = 0; w < CASE_RANKS_MAX; w++)
        close_buffers(&all[w]);
    aq_grad_codec_close(codec);
    return status;
}

static enum aq_status run_compressed(struct aq_group *group)
{
    const uint32_t size = aq_group_size(group);
    const char *kind;
    if (size == 1) { /* nothing is quantized, nothing is looked at */
        float x = 0.3f;
        const struct aq_compressed alone = {.x = &x, .count = 1};
        AQ_TRY(compressed_allreduce(group, &alone));
        CASE_EXPECT(group, x == 0.3f);
        return AQ_OK;
    }
    for (uint32_t i = 0; (kind = aq_grad_codec_kind(i)) != NULL; i++) {
        const struct aq_grad_codec_config config = {.kind = kind};
        if (collective_cases_on_gpus && !aq_grad_codec_config_on_gpu(&config)) continue;
        /* A sanitizer: half of the kinds in groups of 2, the others in groups of 3 (both have many pieces);
         * a quarter in larger groups. */
        if ((i + size) % sample_every(size <= CASE_CODED_RANKS ? 2 : 4) != 0) continue;
        AQ_TRY(compressed_kind(group, kind, 5000, aq_group_rank(group) == i % size));
        if (size <= CASE_CODED_RANKS)
            AQ_TRY(
                compressed_kind(group, kind, 3 * AQ_GRAD_PIECE * (uint64_t)size / 2 + 77, aq_group_rank(group) == 0));
    }
    return AQ_OK;
}

/* Words beside every kind of reduction, and beside none. */
static enum aq_status run_words(struct aq_group *group)
{
    enum { COUNT = 100003 };
    static float rows[CASE_RANKS_MAX][COUNT];
    static uint64_t lanes[CASE_RANKS_MAX][4];
    const uint32_t size = aq_group_size(group), rank = aq_group_rank(group);
    uint64_t first, mine;
    float *x = rows[rank];
    for (uint64_t n = 0; n < 4; n++) {
        const bool stopped = n != 1, late = n == 3;
        const uint64_t count = n == 2 ? 3 : COUNT; /* fewer values than ranks have chunks, or many messages */
        for (uint64_t i = 0; i < COUNT; i++)
            x[i] = value_of(rank, 1, i);
        AQ_TRY(say(group, stopped && stops(rank, size, n)));
        if (late) AQ_TRY(heard(group, stopped));
        AQ_TRY(allreduce(group, x, count));
        AQ_TRY(heard(group, stopped));
        if (!stopped || late || size == 1) AQ_TRY(check_sum(group, x, 0, count, 1));
    }
    for (uint64_t i = 0; i < COUNT; i++)
        x[i] = value_of(rank, 2, i);
    AQ_TRY(say(group, false));
    AQ_TRY(reduce_scatter(group, x, COUNT, &first, &mine));
    AQ_TRY(heard(group, false));
    AQ_TRY(check_sum(group, x + first, first, mine, 2));
    AQ_TRY(say(group, true));
    AQ_TRY(reduce_scatter(group, x, COUNT, NULL, NULL));
    AQ_TRY(heard(group, true));
    lanes[rank][3] = 1;
    AQ_TRY(say(group, false));
    AQ_TRY(aq_allreduce_lanes(group, lanes[rank], 4 * 16, 4));
    AQ_TRY(heard(group, false));
    CASE_EXPECT(group, lanes[rank][3] == size);
    return aq_group_agree(group, 6, "words");
}

static enum aq_status run_stats(struct aq_group *group)
{
    enum { COUNT = 50000 };
    static float rows[CASE_RANKS_MAX][COUNT];
    struct aq_group_stats before, stats;
    uint64_t first, mine;
    aq_group_stats(group, &before);
    aq_grad_chunk(COUNT, aq_group_size(group), aq_group_rank(group), &first, &mine);
    AQ_TRY(allreduce(group, rows[aq_group_rank(group)], COUNT));
    aq_group_stats(group, &stats);
    stats.sent_bytes -= before.sent_bytes;
    stats.received_bytes -= before.received_bytes;
    const uint64_t others = aq_group_size(group) - 1; /* the others' chunks to them, the own one's result to each */
    CASE_EXPECT(group, stats.collectives == before.collectives + 1);
    CASE_EXPECT(group, aq_group_size(group) == 1 || stats.sent_bytes == (COUNT - mine + others * mine) * sizeof(float));
    CASE_EXPECT(group,
                aq_group_size(group) == 1 || stats.received_bytes == (others * mine + COUNT - mine) * sizeof(float));
    return AQ_OK;
}

static const struct {
    const char *name;
    enum aq_status (*run)(struct aq_group *group);
} CASES[] = {{"counters", run_stats}, /* counts from nothing: the first */
             {"allreduce", run_allreduce},
             {"mean", run_mean},
             {"reduce-scatter", run_reduce_scatter},
             {"all-gather", run_all_gather},
             {"all-to-all", run_all_to_all},
             {"broadcast", run_broadcast},
             {"lanes", run_lanes},
             {"special values", run_special},
             {"words", run_words},
             {"compressed", run_compressed}};
enum { CASE_COUNT = sizeof CASES / sizeof *CASES };

enum aq_status collective_cases_run_behind(struct aq_group *group, struct aq_device *device)
{
    behind = device;
    return collective_cases_run(group);
}

enum aq_status collective_cases_run(struct aq_group *group)
{
    struct aq_group_stats stats;
    for (int i = 0; i < CASE_COUNT; i++) {
        aq_log("test", 2, "rank=%u case=\"%s\"", aq_group_rank(group), CASES[i].name);
        AQ_TRY(CASES[i].run(group));
    }
    aq_group_stats(group, &stats);
    CASE_EXPECT(group, stats.collectives > CASE_COUNT);
    return AQ_OK;
}
