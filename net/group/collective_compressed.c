/*
 * collective_compressed.c -- the compressed allreduce: the mean over the ranks, through gradient codecs, with what each
 * coding lost kept for the next time.
 *
 *     worker:  u = x + worker_error of the whole buffer;  w_j = C(u) of chunk j;  worker_error = u - deq(w);  w_j to
 * rank j server:  u = mean of what the W ranks sent of the own chunk + server_error;  r = C(u); server_error = u -
 * deq(r);  r to all all:     x = deq(r_0), deq(r_1), ...
 *
 * [Tang et al. 2021, 1-bit Adam, Algorithm 1 lines 7 to 11 and section 6.1; DeepSpeed's
 * NcclBackend.compressed_allreduce]
 *
 * It runs as the program of collective_reduce.c does: packing, wire and unpacking of successive messages overlap. A
 * message is a run of whole pieces of the codec (AQ_GRAD_PIECE values from the chunk's start), each coded by itself, so
 * that the pool can work on all pieces of all chunks of a step at once. The own part is coded as the others are, and
 * the own result decoded from its bytes: all ranks decode the same.
 *
 * Differs from the published code: no padding enters a scale (chunks are cut at values, not at multiples of 8 W), and
 * the mean is taken in the order of ranks.
 *
 * What makes x and what uses it (aq_compressed.before, after) goes along, piece by piece: an optimizer that reduces its
 * momentum computes it as it is packed, and steps as it is unpacked, so that both hide behind the wire.
 */
#include <stdatomic.h>
#include <string.h>

#include "group.h"

static const char *const AREA = "group";

struct compressed {
    const struct aq_compressed *asked;
    struct aq_exchange *exchange;
    uint64_t first, count, m; /* the own chunk's message at hand */
    uint64_t own_begin;       /* of the own chunk */
    uint32_t pieces;          /* of one message, at most */
    atomic_int status;        /* the first that failed, of any thread; read after the pool was waited for: relaxed */
};

/* Piece i of a message: its values, and where its bytes start. */
static bool piece_of(const struct aq_grad_codec *codec, uint64_t first, uint64_t count, uint32_t i,
                     uint64_t *piece_first, uint64_t *piece_count, uint64_t *offset)
{
    const uint64_t at = (uint64_t)i * AQ_GRAD_PIECE;
    if (at >= count) return false;
    *piece_first = first + at;
    *piece_count = count - at < AQ_GRAD_PIECE ? count - at : AQ_GRAD_PIECE;
    *offset = aq_grad_codec_bytes_pieces(codec, first, at);
    return true;
}

static void note(struct compressed *compressed, enum aq_status status)
{
    int none = AQ_OK;
    if (status != AQ_OK)
        atomic_compare_exchange_strong_explicit(&compressed->status, &none, (int)status, memory_order_relaxed,
                                                memory_order_relaxed);
}

static enum aq_status noted(const struct compressed *compressed)
{
    return (enum aq_status)atomic_load_explicit(&compressed->status, memory_order_relaxed);
}

static uint32_t wire_bytes(const struct aq_exchange *exchange, int phase, uint64_t first, uint64_t count)
{
    const struct compressed *compressed = exchange->context;
    const struct aq_compressed *asked = compressed->asked;
    return (uint32_t)aq_grad_codec_bytes_pieces(phase == 0 ? asked->worker : asked->server, first, count);
}

/* ---- the worker's half ---- */

/*
 * As aq_grad_encode, of a reduction that may be void: the earlier errors stay in x, which is not read again before
 * results are written there. Kept on the way in memory of this thread: 256 KiB of its stack.
 */
static enum aq_status encode_unsure(const struct aq_compressed *asked, uint64_t first, uint64_t count, void *wire)
{
    float errors[AQ_GRAD_PIECE];
    AQ_ASSERT(count <= AQ_GRAD_PIECE);
    memcpy(errors, asked->worker_error + first, count * sizeof *errors);
    AQ_TRY(
        aq_grad_encode(asked->worker, first, count, asked->x + first, asked->worker_error + first, asked->step, wire));
    memcpy(asked->x + first, errors, count * sizeof *errors);
    return AQ_OK;
}

/* Errors as they were before what was packed of a void reduction: see encode_unsure. */
static enum aq_status undo(const struct aq_exchange *exchange, const struct aq_compressed *asked)
{
    const struct aq_group *group = exchange->group;
    uint64_t first, count;
    if (!exchange->undo || !asked->worker_error) return AQ_OK;
    for (uint32_t owner = 0; owner < group->size; owner++)
        for (uint64_t m = 0; m <= AQ_GROUP_LAG && aq_exchange_span(exchange, owner, m, &first, &count); m++) {
            const size_t bytes = count * sizeof *asked->x;
            if (!group->isolated)
                memcpy(asked->worker_error + first, asked->x + first, bytes);
            else
                AQ_TRY(
                    aq_device_copy(group->device, asked->worker_error + first, asked->x + first, bytes, group->stream));
        }
    return AQ_OK;
}

static void encode_piece(uint32_t task, void *context)
{
    struct compressed *compressed = context;
    const struct aq_compressed *asked = compressed->asked;
    const uint32_t owner = task / compressed->pieces;
    uint64_t first, count, at, values, offset;
    if (!aq_exchange_span(compressed->exchange, owner, compressed->m, &first, &count)) return;
    if (!piece_of(asked->worker, first, count, task % compressed->pieces, &at, &values, &offset)) return;
    uint8_t *wire = aq_group_slot(compressed->exchange->group, owner, compressed->m);
    if (asked->before) note(compressed, asked->before(asked->work, at, values));
    if (compressed->exchange->unsure && asked->worker_error) {
        note(compressed, encode_unsure(asked, at, values, wire + offset));
        return;
    }
    note(compressed, aq_grad_encode(asked->worker, at, values, asked->x + at,
                                    asked->worker_error ? asked->worker_error + at : NULL, asked->step, wire + offset));
}

static enum aq_status pack(struct aq_exchange *exchange, uint64_t m)
{
    struct compressed *compressed = exchange->context;
    const struct aq_group *group = exchange->group;
    compressed->m = m;
    aq_group_parallel(group, group->size * compressed->pieces, encode_piece, compressed);
    for (uint32_t owner = 0; owner < group->size; owner++)
        exchange->wires[owner] = aq_group_slot(group, owner, m);
    return noted(compressed);
}

/* ---- the server's half: the mean is made in x itself, whose own values have been coded by now ---- */

bool aq_compressed_to_worker(const struct aq_group *group, const struct aq_compressed *asked)
{
    return asked->server_error && asked->whole > group->size;
}

/*
 * As aq_grad_encode of the mean, whose loss the worker's error takes up (aq_compressed.whole). Both are of the same
 * values: the own chunk's have been coded by now. 256 KiB of this thread's stack.
 */
static enum aq_status encode_to_worker(const struct aq_compressed *asked, uint64_t first, uint64_t count,
                                       uint32_t ranks, const float *x, void *wire)
{
    float lost[AQ_GRAD_PIECE];
    AQ_ASSERT(count <= AQ_GRAD_PIECE);
    memset(lost, 0, count * sizeof *lost);
    AQ_TRY(aq_grad_encode(asked->server, first, count, x, lost, asked->step, wire));
    for (uint64_t i = 0; i < count; i++) {
        const float of_all = lost[i] * (float)ranks;
        asked->worker_error[first + i] += of_all;
    }
    return AQ_OK;
}

static void reduce_piece(uint32_t task, void *context)
{
    struct compressed *compressed = context;
    const struct aq_compressed *asked = compressed->asked;
    const struct aq_group *group = compressed->exchange->group;
    uint64_t at, values, offset;
    if (!piece_of(asked->worker, compressed->first, compressed->count, task, &at, &values, &offset)) return;
    const size_t bytes = aq_grad_codec_bytes(asked->worker, at, values);
    const float weight = aq_grad_codec_weight(asked->worker, group->size);
    const bool to_worker = aq_compressed_to_worker(group, asked);
    float *x = asked->x + at,
          *error = asked->server_error && !to_worker ? asked->server_error + (at - compressed->own_begin) : NULL;
    for (uint32_t rank = 0; rank < group->size; rank++) {
        const uint8_t *wire = compressed->exchange->wires[rank];
        const enum aq_status status =
            aq_grad_decode(asked->worker, at, values, wire + offset, bytes, weight, rank > 0, x);
        note(compressed, status);
        if (status != AQ_OK) return;
    }
    (void)piece_of(asked->server, compressed->first, compressed->count, task, &at, &values, &offset);
    uint8_t *wire = (uint8_t *)aq_group_slot(group, group->size, compressed->m) + offset;
    enum aq_status status = to_worker ? encode_to_worker(asked, at, values, group->size, x, wire)
                                      : aq_grad_encode(asked->server, at, values, x, error, asked->step, wire);
    if (status == AQ_OK)
        status = aq_grad_decode(asked->server, at, values, wire, aq_grad_codec_bytes(asked->server, at, values), 1.0f,
                                false, x);
    note(compressed, status);
    if (asked->after && status == AQ_OK) note(compressed, asked->after(asked->work, at, values));
}

static enum aq_status reduce(struct aq_exchange *exchange, uint64_t m, uint64_t first, uint64_t count)
{
    struct compressed *compressed = exchange->context;
    const struct aq_group *group = exchange->group;
    compressed->m = m;
    compressed->first = first;
    compressed->count = count;
    exchange->wires[group->rank] = aq_group_slot(group, group->rank, m);
    aq_group_parallel(group, compressed->pieces, reduce_piece, compressed);
    exchange->wires[group->rank] = NULL;
    exchange->result = aq_group_slot(group, group->size, m);
    return noted(compressed);
}

/* ---- everybody ---- */

static void decode_piece(uint32_t task, void *context)
{
    struct compressed *compressed = context;
    const struct aq_compressed *asked = compressed->asked;
    const uint32_t owner = task / compressed->pieces;
    const uint8_t *wire = compressed->exchange->wires[owner];
    uint64_t first, count, at, values, offset;
    if (!wire || !aq_exchange_span(compressed->exchange, owner, compressed->m, &first, &count)) return;
    if (!piece_of(asked->server, first, count, task % compressed->pieces, &at, &values, &offset)) return;
    const enum aq_status status =
        aq_grad_decode(asked->server, at, values, wire + offset, aq_grad_codec_bytes(asked->server, at, values), 1.0f,
                       false, asked->x + at);
    note(compressed, status);
    if (asked->after && status == AQ_OK) note(compressed, asked->after(asked->work, at, values));
}

static enum aq_status unpack(struct aq_exchange *exchange, uint64_t m)
{
    struct compressed *compressed = exchange->context;
    compressed->m = m;
    aq_group_parallel(exchange->group, exchange->group->size * compressed->pieces, decode_piece, compressed);
    return noted(compressed);
}

static const struct aq_exchange_ops COMPRESSED_OPS = {
    .bytes = wire_bytes, .pack = pack, .reduce = reduce, .unpack = unpack};

/* ---- the cut into messages ---- */

/* Bytes of the largest piece of any chunk, of either codec. */
static uint64_t piece_bytes_max(const struct aq_group *group, const struct aq_compressed *asked)
{
    uint64_t first, mine, most = 1;
    for (uint32_t rank = 0; rank < group->size; rank++) {
        aq_grad_chunk(asked->count, group->size, rank, &first, &mine);
        for (uint64_t at = 0; at < mine; at += AQ_GRAD_PIECE) {
            const uint64_t count = mine - at < AQ_GRAD_PIECE ? mine - at : AQ_GRAD_PIECE;
            const uint64_t worker = aq_grad_codec_bytes(asked->worker, first + at, count);
            const uint64_t server = aq_grad_codec_bytes(asked->server, first + at, count);
            most = worker > most ? worker : most;
            most = server > most ? server : most;
        }
    }
    return most;
}

/* As many pieces as fit, but so that a chunk has some messages to overlap. */
static enum aq_status pieces_in_message(const struct aq_group *group, const struct aq_compressed *asked, uint32_t *out)
{
    uint64_t first, chunk;
    const uint64_t bytes = piece_bytes_max(group, asked), most = group->piece_bytes / bytes;
    const uint64_t few = AQ_GROUP_MESSAGE_BYTES_MIN / bytes > 1 ? AQ_GROUP_MESSAGE_BYTES_MIN / bytes : 1;
    aq_grad_chunk(asked->count, group->size, 0, &first, &chunk);
    if (most == 0)
        return aq_fail(
            AQ_INVAL, AREA,
            "a coded piece of %d values takes up to %llu bytes, a message of the group %u: raise its piece_bytes",
            AQ_GRAD_PIECE, (unsigned long long)bytes, group->piece_bytes);
    const uint64_t even = chunk / AQ_GRAD_PIECE / aq_group_messages_min(group);
    *out = (uint32_t)(even > most ? most : even < few ? few : even);
    return AQ_OK;
}

enum aq_status aq_compressed_allreduce(struct aq_group *group, const struct aq_compressed *asked)
{
    struct compressed compressed = {.asked = asked};
    uint64_t mine;
    AQ_ASSERT(!aq_compressed_to_worker(group, asked) || asked->worker_error);
    if (aq_group_size(group) == 1) return AQ_OK;
    AQ_TRY(pieces_in_message(group, asked, &compressed.pieces));
    aq_grad_chunk(asked->count, group->size, group->rank, &compressed.own_begin, &mine);
    struct aq_exchange exchange = {.group = group,
                                   .count = asked->count,
                                   .unit = (uint64_t)compressed.pieces * AQ_GRAD_PIECE,
                                   .gather = true,
                                   .sure = asked->before != NULL,
                                   .ops = &COMPRESSED_OPS,
                                   .context = &compressed};
    compressed.exchange = &exchange;
    if (group->isolated)
        AQ_TRY(aq_device_compressed_run(&exchange, asked));
    else
        AQ_TRY(aq_exchange_run(&exchange, AQ_COLLECTIVE_COMPRESSED, 0));
    return undo(&exchange, asked);
}

enum aq_status aq_group_prepare(struct aq_group *group, const struct aq_grad_codec *codec, uint64_t count)
{
    const struct aq_compressed asked = {.worker = codec, .server = codec, .count = count};
    uint32_t pieces;
    if (group->size == 1 || !group->isolated) return AQ_OK;
    AQ_ASSERT(!group->coding);
    AQ_TRY(pieces_in_message(group, &asked, &pieces));
    AQ_TRY(aq_device_coding_open(group, codec, count, (uint64_t)pieces * AQ_GRAD_PIECE, &group->coding));
    group->prepared = codec;
    return AQ_OK;
}
