/*
 * fuzz_frame.c -- any bytes into the frame reader: a status or whole checked frames, never a crash, never past a slot.
 *
 * Packed bodies and bodies in parts too: what unpacks has the size that its header says. The input is a script: bytes 0
 * and 1 say how the stream is cut, the rest is the stream. Where the first byte is odd, every header in it is sealed
 * again (digests, sequence), so that the fuzzer gets past the digest to the checks behind it.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "net/link.h"
#include "reader.h"

enum { BODY_MAX = 2500, SLOTS = 3, INPUT_MAX = 8192 };

static void put(uint8_t *at, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        at[i] = (uint8_t)(value >> (8 * i));
}

/* The same for a body in parts, as far as it goes: its gaps, and the digest of what is between them. Returns its bytes
 * with the gaps; 0: it is no such body. */
static size_t seal_parts(uint8_t *h, uint32_t body_bytes, size_t left, uint64_t sequence)
{
    static uint8_t body[INPUT_MAX];
    uint8_t *const begin = h + AQ_FRAME_HEADER_BYTES, *const end = begin + left, *at = begin;
    uint32_t part_bytes = 0, got = 0;
    for (int i = 0; i < 4; i++)
        part_bytes |= (uint32_t)h[84 + i] << (8 * i);
    if (part_bytes < AQ_FRAME_PART_BYTES || part_bytes >= body_bytes || body_bytes > INPUT_MAX) return 0;
    for (;;) {
        const uint32_t part = body_bytes - got < part_bytes ? body_bytes - got : part_bytes;
        if (part > (size_t)(end - at)) return left + 1;
        memcpy(body + got, at, part);
        got += part;
        at += part;
        if (got == body_bytes) break;
        if (AQ_FRAME_GAP_BYTES > end - at) return left + 1;
        put(at + AQ_FRAME_GAP_DIGEST_OFFSET, aq_digest_seeded(at, AQ_FRAME_GAP_DIGEST_OFFSET, sequence), 8);
        at += AQ_FRAME_GAP_BYTES;
        if (at[-AQ_FRAME_GAP_BYTES + 12] & AQ_GAP_FLAG_CUT) return (size_t)(at - begin); /* an ABORT may follow */
    }
    put(h + 72, aq_digest(body, body_bytes), 8);
    return (size_t)(at - begin);
}

/* Make sequence numbers and digests right along the stream, taking body_bytes as they stand. */
static void seal(uint8_t *stream, size_t size)
{
    uint64_t sequence = 1;
    for (size_t at = 0; at + AQ_FRAME_HEADER_BYTES <= size; sequence++) {
        uint8_t *h = stream + at;
        uint32_t body_bytes = 0;
        for (int i = 0; i < 4; i++)
            body_bytes |= (uint32_t)h[12 + i] << (8 * i);
        const size_t left = size - at - AQ_FRAME_HEADER_BYTES;
        const size_t parts = seal_parts(h, body_bytes, left, sequence);
        if (parts == 0 && body_bytes <= left)
            put(h + 72, body_bytes > 0 ? aq_digest(h + AQ_FRAME_HEADER_BYTES, body_bytes) : 0, 8);
        put(h + 32, sequence, 8);
        put(h + AQ_FRAME_DIGEST_OFFSET, aq_digest(h, AQ_FRAME_DIGEST_OFFSET), 8);
        if (parts > 0 ? parts > left : body_bytes > left) return;
        at += AQ_FRAME_HEADER_BYTES + (parts > 0 ? parts : body_bytes);
    }
}

/* Every byte of a body has been written: a sanitizer would see one that was not. */
static void touch(const uint8_t *body, uint32_t count)
{
    static volatile uint8_t sum;
    for (uint32_t i = 0; i < count; i++)
        sum = (uint8_t)(sum + body[i]);
}

/* Give the reader its input in pieces; check every frame it hands out. */
static void drive(struct aq_reader *reader, const uint8_t *stream, size_t size, unsigned cut)
{
    struct aq_reader_frame frame;
    struct iovec iov[2];
    uint32_t held[SLOTS], held_count = 0;
    size_t at = 0;
    while (at < size) {
        const int count = aq_reader_room(reader, iov);
        size_t piece = 1 + (cut * 37u + at * 11u) % (cut + 1u), got = 0;
        for (int i = 0; i < count && got < piece && at < size; i++) {
            size_t part = iov[i].iov_len < piece - got ? iov[i].iov_len : piece - got;
            if (part > size - at) part = size - at;
            memcpy(iov[i].iov_base, stream + at, part);
            at += part;
            got += part;
            if (part < iov[i].iov_len) break;
        }
        aq_reader_filled(reader, got);
        reader->sent_sequence = 3;
        reader->credit_max = 2;
        enum aq_status status;
        while ((status = aq_reader_next(reader, &frame)) == AQ_OK) {
            fuzz_told(true);
            AQ_ASSERT(frame.header.from == 1 && frame.header.edge == 2 && frame.header.plan_hash == 3);
            AQ_ASSERT(frame.body_bytes <= (frame.slot == UINT32_MAX ? AQ_FRAME_CONTROL_BYTES_MAX : BODY_MAX));
            AQ_ASSERT(frame.header.raw_bytes == 0 || frame.header.body_bytes < frame.body_bytes);
            AQ_ASSERT((frame.body != NULL) == (frame.body_bytes > 0));
            AQ_ASSERT(!frame.body || frame.header.raw_bytes > 0 ||
                      aq_digest(frame.body, frame.body_bytes) == frame.header.body_digest);
            touch(frame.body, frame.body_bytes);
            if (frame.slot == UINT32_MAX) continue;
            held[held_count++] = frame.slot;
            if (cut % 2 == 0 || held_count == SLOTS) /* an even cut gives back at once, an odd one when all are out */
                while (held_count > 0)
                    aq_reader_release(reader, held[--held_count]);
        }
        if (status == AQ_AGAIN) continue;
        AQ_ASSERT(status == AQ_PROTO || status == AQ_CORRUPT || status == AQ_MISMATCH);
        AQ_ASSERT(reader->text[0] != '\0');
        fuzz_told(false);
        return;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct aq_reader reader;
    static uint8_t stream[INPUT_MAX];
    if (size < 2 || size - 2 > INPUT_MAX) return 0;
    if (!reader.slots) {
        struct aq_arena arena = {0};
        void *memory;
        aq_reader_place(&reader, &arena, BODY_MAX, SLOTS, true);
        if (aq_alloc(arena.used, &memory) != AQ_OK) abort();
        arena = (struct aq_arena){.base = memory, .bytes = arena.used};
        aq_reader_place(&reader, &arena, BODY_MAX, SLOTS, true);
        reader.from = 1;
        reader.edge = 2;
        reader.plan_hash = 3;
        reader.body_bytes_max = BODY_MAX;
        reader.parts = true;
        if (aq_entropy_open(&reader.entropy) != AQ_OK) abort();
    }
    aq_reader_start(&reader);
    memcpy(stream, data + 2, size - 2);
    if (data[0] & 1) seal(stream, size - 2);
    drive(&reader, stream, size - 2, data[1] | (unsigned)(data[0] & 0xfe) << 7);

    struct aq_hello hello;
    char text[AQ_TEXT_BYTES];
    if (size - 2 >= AQ_FRAME_HELLO_BYTES) (void)aq_hello_decode(data + 2, &hello, text);
    (void)aq_abort_decode(data + 2, (uint32_t)(size - 2), text);
    return 0;
}
