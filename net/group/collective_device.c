/*
 * collective_device.c -- what reduces, of a device's memory: the programs of collective_reduce.c and
 * collective_compressed.c with kernels in place of the pool, and the same bits.
 *
 * The group's kind defines the messages. Over NCCL they are device memory: sums are sent from where they lie and
 * results come into their places; packing is a kernel, and nothing here waits. Over links they are host memory: what is
 * packed is copied to pinned slots and waited for, what comes is copied to landing memory. Cut, order and bytes equal
 * those of the host's programs, so that a rank on a CPU and one on a GPU understand each other.
 */
#include <assert.h>

#include "aqsgd/grad_device.h"
#include "group.h"

static const char *const AREA = "group";

static_assert((int)AQ_SUM_RANKS_MAX >= (int)AQ_GROUP_SIZE_MAX, "a sum takes the parts of all ranks");

/* ---- between the device and messages ---- */

static enum aq_status to_slot(const struct aq_exchange *exchange, uint32_t to, uint64_t m, const void *from,
                              size_t bytes)
{
    const struct aq_group *group = exchange->group;
    return aq_device_copy(group->device, aq_group_slot(group, to, m), from, bytes, group->stream);
}

static void *landing(const struct aq_group *group, uint32_t rank)
{
    return group->landing + (size_t)rank * group->piece_bytes;
}

/* A message that came, where kernels can read it. */
static enum aq_status land(const struct aq_exchange *exchange, uint32_t from, size_t bytes, const void **out)
{
    const struct aq_group *group = exchange->group;
    *out = exchange->wires[from];
    if (group->wires_isolated) return AQ_OK;
    *out = landing(group, from);
    return aq_device_copy(group->device, landing(group, from), exchange->wires[from], bytes, group->stream);
}

/* Slots are packed, landing memory is free: messages of the host are lent and given back by whoever called. */
static enum aq_status settled(const struct aq_group *group)
{
    return group->wires_isolated ? AQ_OK : aq_device_stream_sync(group->device, group->stream);
}

/* ---- sums ---- */

static uint32_t sum_bytes(const struct aq_exchange *exchange, int phase, uint64_t first, uint64_t count)
{
    (void)exchange;
    (void)phase;
    (void)first;
    return (uint32_t)(count * sizeof(float));
}

static enum aq_status sum_pack(struct aq_exchange *exchange, uint64_t m)
{
    const struct aq_device_sum *sum = exchange->context;
    const struct aq_group *group = exchange->group;
    uint64_t first, count;
    for (uint32_t owner = 0; owner < group->size; owner++) {
        exchange->wires[owner] = NULL;
        if (owner == group->rank || !aq_exchange_span(exchange, owner, m, &first, &count)) continue;
        exchange->wires[owner] = sum->x + first;
        if (group->wires_isolated) continue;
        exchange->wires[owner] = aq_group_slot(group, owner, m);
        AQ_TRY(to_slot(exchange, owner, m, sum->x + first, count * sizeof(float)));
    }
    return settled(group);
}

static enum aq_status sum_reduce(struct aq_exchange *exchange, uint64_t m, uint64_t first, uint64_t count)
{
    const struct aq_device_sum *sum = exchange->context;
    const struct aq_group *group = exchange->group;
    struct aq_sum_ranks args = {
        .own = sum->x + first, .size = group->size, .rank = group->rank, .count = count, .scale = sum->scale};
    for (uint32_t rank = 0; rank < group->size; rank++) {
        const void *part = NULL;
        if (rank != group->rank) AQ_TRY(land(exchange, rank, count * sizeof(float), &part));
        args.parts[rank] = part;
    }
    AQ_TRY(aq_device_sum_ranks(group->device, &args, group->stream));
    exchange->result = args.own;
    if (group->wires_isolated) return AQ_OK;
    exchange->result = aq_group_slot(group, group->size, m);
    if (exchange->gather) AQ_TRY(to_slot(exchange, group->size, m, args.own, count * sizeof(float)));
    return settled(group);
}

static enum aq_status sum_unpack(struct aq_exchange *exchange, uint64_t m)
{
    const struct aq_device_sum *sum = exchange->context;
    const struct aq_group *group = exchange->group;
    uint64_t first, count;
    for (uint32_t owner = 0; owner < group->size; owner++) {
        if (!exchange->wires[owner] || !aq_exchange_span(exchange, owner, m, &first, &count)) continue;
        if (exchange->wires[owner] == sum->x + first) continue; /* it came into its place */
        AQ_TRY(aq_device_copy(group->device, sum->x + first, exchange->wires[owner], count * sizeof(float),
                              group->stream));
    }
    return settled(group);
}

static const struct aq_exchange_ops SUM_OPS = {
    .bytes = sum_bytes, .pack = sum_pack, .reduce = sum_reduce, .unpack = sum_unpack};

enum aq_status aq_device_sum_run(struct aq_exchange *exchange, struct aq_device_sum *sum, enum aq_collective collective)
{
    exchange->ops = &SUM_OPS;
    exchange->context = sum;
    if (exchange->group->wires_isolated) exchange->results = sum->x;
    return aq_exchange_run(exchange, collective, 0);
}

/* ---- through codecs ---- */

/* A codec with the messages of a buffer: the m-th of rank w's chunk is span w * messages + m. */
struct aq_device_coding {
    struct aq_grad_coder *coder;
    uint64_t count, unit, messages;
    float *errors; /* of a message, on the device, while it is packed: coded_pack */
};

static size_t errors_bytes(const struct aq_device_coding *coding)
{
    return coding->unit * sizeof *coding->errors;
}

void aq_device_coding_close(struct aq_group *group, struct aq_device_coding *coding)
{
    if (!coding) return;
    if (coding->errors) aq_device_free(group->device, AQ_MEMORY_DEVICE, coding->errors, errors_bytes(coding));
    aq_grad_coder_close(coding->coder);
    aq_free(coding);
}

enum aq_status aq_device_coding_open(struct aq_group *group, const struct aq_grad_codec *codec, uint64_t count,
                                     uint64_t unit, struct aq_device_coding **out)
{
    struct aq_exchange exchange = {.group = group, .count = count, .unit = unit};
    uint64_t first, chunk;
    struct aq_device_coding *coding;
    struct aq_grad_span *spans = NULL; /* zero: a chunk that has no such message */
    void *memory;
    aq_grad_chunk(count, group->size, 0, &first, &chunk);
    const uint64_t messages = (chunk + unit - 1) / unit, all = messages * group->size;
    if (all >= UINT32_MAX) return aq_fail(AQ_INVAL, AREA, "%llu messages are too many", (unsigned long long)all);
    AQ_TRY(AQ_NEW(1, &coding));
    *coding = (struct aq_device_coding){.count = count, .unit = unit, .messages = messages};
    enum aq_status status;
    AQ_TRY_GOTO(AQ_NEW(all + 1, &spans), out);
    for (uint64_t i = 0; i < all; i++)
        (void)aq_exchange_span(&exchange, (uint32_t)(i / messages), i % messages, &spans[i].first, &spans[i].count);
    AQ_TRY_GOTO(aq_grad_coder_open(group->device, codec, spans, (uint32_t)all, &coding->coder), out);
    if (!group->wires_isolated) { /* over NCCL nothing is packed before it is sure */
        AQ_TRY_GOTO(aq_device_alloc(group->device, AQ_MEMORY_DEVICE, errors_bytes(coding), &memory), out);
        coding->errors = memory;
    }
out:
    aq_free(spans);
    if (status == AQ_OK)
        *out = coding;
    else
        aq_device_coding_close(group, coding);
    return status;
}

struct coded {
    const struct aq_compressed *asked;
    struct aq_device_coding *worker, *server;
    uint64_t own_begin; /* of the own chunk */
};

static uint32_t coded_bytes(const struct aq_exchange *exchange, int phase, uint64_t first, uint64_t count)
{
    const struct aq_compressed *asked = ((const struct coded *)exchange->context)->asked;
    return (uint32_t)aq_grad_codec_bytes_pieces(phase == 0 ? asked->worker : asked->server, first, count);
}

static uint32_t span_of(const struct aq_device_coding *coding, uint32_t owner, uint64_t m)
{
    return (uint32_t)(owner * coding->messages + m);
}

/* A kernel packs message m to that rank (size: the result) there; then it is copied to the slot. */
static void *packed(const struct aq_group *group, uint32_t to, uint64_t m)
{
    if (group->wires_isolated) return aq_group_slot(group, to, m);
    return landing(group, to < group->size ? to : group->rank);
}

static enum aq_status ship(const struct aq_exchange *exchange, uint32_t to, uint64_t m, uint32_t bytes)
{
    const struct aq_group *group = exchange->group;
    return group->wires_isolated ? AQ_OK : to_slot(exchange, to, m, packed(group, to, m), bytes);
}

/* Of a reduction that may be void: what errors were is left in x (collective_compressed.c). */
static enum aq_status encode(const struct aq_exchange *exchange, uint32_t owner, uint64_t m, uint64_t first,
                             uint64_t count)
{
    const struct coded *coded = exchange->context;
    const struct aq_compressed *asked = coded->asked;
    const struct aq_group *group = exchange->group;
    float *error = asked->worker_error ? asked->worker_error + first : NULL, *kept = coded->worker->errors;
    const bool keep = exchange->unsure && error;
    if (keep) AQ_TRY(aq_device_copy(group->device, kept, error, count * sizeof *kept, group->stream));
    AQ_TRY(aq_grad_coder_encode(coded->worker->coder, span_of(coded->worker, owner, m), asked->x + first, error,
                                asked->step, packed(group, owner, m), group->stream));
    return keep ? aq_device_copy(group->device, asked->x + first, kept, count * sizeof *kept, group->stream) : AQ_OK;
}

static enum aq_status coded_pack(struct aq_exchange *exchange, uint64_t m)
{
    struct coded *coded = exchange->context;
    const struct aq_compressed *asked = coded->asked;
    const struct aq_group *group = exchange->group;
    uint64_t first, count;
    for (uint32_t owner = 0; owner < group->size; owner++) {
        exchange->wires[owner] = aq_group_slot(group, owner, m);
        if (!aq_exchange_span(exchange, owner, m, &first, &count)) continue;
        if (asked->before) AQ_TRY(asked->before(asked->work, first, count));
        AQ_TRY(encode(exchange, owner, m, first, count));
        AQ_TRY(ship(exchange, owner, m, coded_bytes(exchange, 0, first, count)));
    }
    return settled(group);
}

/* Adds what the server's codec has lost of message m, times the ranks, to the worker's error. The two sums have the
 * bits of the host's product and sum. */
static enum aq_status give_worker(const struct aq_group *group, float *lost, float *error, uint64_t count)
{
    const struct aq_sum_ranks product = {.own = lost, .size = 1, .count = count, .scale = (float)group->size},
                              sum = {.own = error, .parts = {NULL, lost}, .size = 2, .count = count, .scale = 1.0f};
    AQ_TRY(aq_device_sum_ranks(group->device, &product, group->stream));
    return aq_device_sum_ranks(group->device, &sum, group->stream);
}

/* As the host does it: the mean is made in x itself, whose own values have been coded by now. */
static enum aq_status coded_reduce(struct aq_exchange *exchange, uint64_t m, uint64_t first, uint64_t count)
{
    struct coded *coded = exchange->context;
    const struct aq_compressed *asked = coded->asked;
    const struct aq_group *group = exchange->group;
    const uint32_t span = span_of(coded->worker, group->rank, m), bytes = coded_bytes(exchange, 0, first, count);
    const float weight = aq_grad_codec_weight(asked->worker, group->size);
    const bool to_worker = aq_compressed_to_worker(group, asked);
    float *x = asked->x + first,
          *error = asked->server_error && !to_worker ? asked->server_error + (first - coded->own_begin) : NULL;
    exchange->wires[group->rank] = aq_group_slot(group, group->rank, m);
    for (uint32_t rank = 0; rank < group->size; rank++) {
        const void *wire;
        AQ_TRY(land(exchange, rank, bytes, &wire));
        AQ_TRY(aq_grad_coder_decode(coded->worker->coder, span, wire, weight, rank > 0, x, group->stream));
    }
    exchange->wires[group->rank] = NULL;
    void *wire = packed(group, group->size, m);
    if (to_worker) {
        error = coded->worker->errors; /* free: no message is being packed */
        AQ_TRY(aq_device_zero(group->device, error, count * sizeof *error, group->stream));
    }
    AQ_TRY(aq_grad_coder_encode(coded->server->coder, span, x, error, asked->step, wire, group->stream));
    if (to_worker) AQ_TRY(give_worker(group, error, asked->worker_error + first, count));
    AQ_TRY(aq_grad_coder_decode(coded->server->coder, span, wire, 1.0f, false, x, group->stream));
    if (asked->after) AQ_TRY(asked->after(asked->work, first, count));
    AQ_TRY(ship(exchange, group->size, m, coded_bytes(exchange, 1, first, count)));
    exchange->result = aq_group_slot(group, group->size, m);
    return settled(group);
}

static enum aq_status coded_unpack(struct aq_exchange *exchange, uint64_t m)
{
    struct coded *coded = exchange->context;
    const struct aq_group *group = exchange->group;
    uint64_t first, count;
    for (uint32_t owner = 0; owner < group->size; owner++) {
        const void *wire;
        if (!exchange->wires[owner] || !aq_exchange_span(exchange, owner, m, &first, &count)) continue;
        AQ_TRY(land(exchange, owner, coded_bytes(exchange, 1, first, count), &wire));
        AQ_TRY(aq_grad_coder_decode(coded->server->coder, span_of(coded->server, owner, m), wire, 1.0f, false,
                                    coded->asked->x + first, group->stream));
        if (coded->asked->after) AQ_TRY(coded->asked->after(coded->asked->work, first, count));
    }
    return settled(group);
}

static const struct aq_exchange_ops CODED_OPS = {
    .bytes = coded_bytes, .pack = coded_pack, .reduce = coded_reduce, .unpack = coded_unpack};

static bool is_prepared(const struct aq_exchange *exchange, const struct aq_grad_codec *codec)
{
    const struct aq_group *group = exchange->group;
    return group->coding && group->prepared == codec && group->coding->count == exchange->count &&
           group->coding->unit == exchange->unit;
}

static enum aq_status coding_for(struct aq_exchange *exchange, const struct aq_grad_codec *codec,
                                 struct aq_device_coding **out)
{
    if (is_prepared(exchange, codec)) {
        *out = exchange->group->coding;
        return AQ_OK;
    }
    return aq_device_coding_open(exchange->group, codec, exchange->count, exchange->unit, out);
}

/* The errors that the kernels met, once all of them have passed. */
static enum aq_status check(struct aq_group *group, const struct coded *coded)
{
    enum aq_status status = aq_grad_coder_check(coded->worker->coder, group->stream);
    if (status == AQ_OK && coded->server != coded->worker)
        status = aq_grad_coder_check(coded->server->coder, group->stream);
    return status;
}

enum aq_status aq_device_compressed_run(struct aq_exchange *exchange, const struct aq_compressed *asked)
{
    struct aq_group *group = exchange->group;
    struct coded coded = {.asked = asked};
    uint64_t mine;
    enum aq_status status;
    AQ_ASSERT(!aq_compressed_to_worker(group, asked) || !group->wires_isolated); /* over NCCL no group lacks a rank */
    exchange->ops = &CODED_OPS;
    exchange->context = &coded;
    aq_grad_chunk(asked->count, group->size, group->rank, &coded.own_begin, &mine);
    AQ_TRY_GOTO(coding_for(exchange, asked->worker, &coded.worker), out);
    coded.server = coded.worker;
    if (asked->server != asked->worker) {
        coded.server = NULL;
        AQ_TRY_GOTO(coding_for(exchange, asked->server, &coded.server), out);
    }
    AQ_TRY_GOTO(aq_exchange_run(exchange, AQ_COLLECTIVE_COMPRESSED, 0), out);
    AQ_TRY_GOTO(check(group, &coded), out);
out:
    if (status != AQ_OK && group->broken == AQ_OK && exchange->head.number) group->broken = status;
    if (status != AQ_OK)
        (void)aq_device_stream_sync(group->device, group->stream); /* nothing runs on what is dropped */
    if (coded.server != coded.worker && coded.server != group->coding) aq_device_coding_close(group, coded.server);
    if (coded.worker != group->coding) aq_device_coding_close(group, coded.worker);
    return status;
}
