/*
 * frame.c -- writes and reads the bytes of docs/FRAME.md.
 *
 * Header (128 bytes): 0 magic, 4 version, 6 kind, 8 flags, 10 link_flags, 12 body_bytes, 16 from, 20 edge, 24
 * plan_hash, 32 sequence, 40 acknowledge, 48 credit, 52 micro_batch, 56 step, 64 argument, 72 body_digest, 80
 * raw_bytes, 84 part_bytes, 88 reserved, 120 digest. A gap (24 bytes): 0 acknowledge, 8 credit, 12 flags, 16 digest.
 * The head of a stripe (16 bytes): 0 number, 8 bytes, 10 place, 11 sum, 12 digest.
 * The struct below is the first table once more, so that the compiler checks size and offsets; it is never cast onto
 * the wire.
 */
#include "frame.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "net/link.h"
#include "net_limits.h"

struct header_layout {
    uint8_t magic[4];
    uint16_t version, kind, flags, link_flags;
    uint32_t body_bytes, from, edge;
    uint64_t plan_hash, sequence, acknowledge;
    uint32_t credit, micro_batch;
    uint64_t step, argument, body_digest;
    uint32_t raw_bytes, part_bytes;
    uint8_t reserved[32];
    uint64_t header_digest;
};
#define AT(field, offset) static_assert(offsetof(struct header_layout, field) == (offset), "docs/FRAME.md")
static_assert(sizeof(struct header_layout) == AQ_FRAME_HEADER_BYTES, "docs/FRAME.md");
AT(version, 4);
AT(kind, 6);
AT(flags, 8);
AT(link_flags, 10);
AT(body_bytes, 12);
AT(from, 16);
AT(edge, 20);
AT(plan_hash, 24);
AT(sequence, 32);
AT(acknowledge, 40);
AT(credit, 48);
AT(micro_batch, 52);
AT(step, 56);
AT(argument, 64);
AT(body_digest, 72);
AT(raw_bytes, 80);
AT(part_bytes, 84);
AT(reserved, 88);
AT(header_digest, AQ_FRAME_DIGEST_OFFSET);

struct hello_layout {
    uint64_t job_digest, plan_hash;
    uint32_t rank, peer_rank, edge, body_bytes_max, receive_slots, features;
    uint64_t session, resume_sequence;
    uint8_t reserved[40];
};
static_assert(sizeof(struct hello_layout) == AQ_FRAME_HELLO_BYTES, "docs/FRAME.md");
static_assert(offsetof(struct hello_layout, features) == 36, "docs/FRAME.md");
static_assert(offsetof(struct hello_layout, reserved) == 56, "docs/FRAME.md");

static const uint8_t MAGIC[4] = {'A', 'Q', 'P', 'F'};

static void put(uint8_t *at, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        at[i] = (uint8_t)(value >> (8 * i));
}

static uint64_t get(const uint8_t *at, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++)
        value |= (uint64_t)at[i] << (8 * i);
    return value;
}

static bool all_zero(const uint8_t *bytes, size_t count)
{
    uint8_t any = 0;
    for (size_t i = 0; i < count; i++)
        any |= bytes[i];
    return any == 0;
}

const char *aq_frame_kind_text(uint16_t kind)
{
    switch (kind) {
    case AQ_FRAME_HELLO:
        return "HELLO";
    case AQ_FRAME_CREDIT:
        return "CREDIT";
    case AQ_FRAME_PING:
        return "PING";
    case AQ_FRAME_BYE:
        return "BYE";
    case AQ_FRAME_ABORT:
        return "ABORT";
    case AQ_FRAME_PONG:
        return "PONG";
    case AQ_FRAME_FORWARD:
        return "FORWARD";
    case AQ_FRAME_BACKWARD:
        return "BACKWARD";
    case AQ_FRAME_NORM:
        return "NORM";
    case AQ_FRAME_EVAL:
        return "EVAL";
    case AQ_FRAME_FETCH:
        return "FETCH";
    case AQ_FRAME_MESSAGE:
        return "MESSAGE";
    case AQ_FRAME_CONTROL:
        return "CONTROL";
    case AQ_FRAME_CHUNK:
        return "CHUNK";
    case AQ_FRAME_PROBE:
        return "PROBE";
    case AQ_FRAME_MIRROR:
        return "MIRROR";
    case AQ_FRAME_SHARED:
        return "SHARED";
    default:
        return "frame";
    }
}

void aq_header_encode(const struct aq_header *header, uint8_t out[AQ_FRAME_HEADER_BYTES])
{
    memset(out, 0, AQ_FRAME_HEADER_BYTES);
    memcpy(out, MAGIC, sizeof MAGIC);
    put(out + 4, AQ_FRAME_VERSION, 2);
    put(out + 6, header->kind, 2);
    put(out + 8, header->flags, 2);
    put(out + 10, header->raw_bytes > 0 ? AQ_LINK_FLAG_PACKED : 0, 2);
    put(out + 12, header->body_bytes, 4);
    put(out + 16, header->from, 4);
    put(out + 20, header->edge, 4);
    put(out + 24, header->plan_hash, 8);
    put(out + 32, header->sequence, 8);
    put(out + 40, header->acknowledge, 8);
    put(out + 48, header->credit, 4);
    put(out + 52, header->micro_batch, 4);
    put(out + 56, header->step, 8);
    put(out + 64, header->argument, 8);
    put(out + 72, header->body_digest, 8);
    put(out + 80, header->raw_bytes, 4);
    put(out + 84, header->part_bytes, 4);
    put(out + AQ_FRAME_DIGEST_OFFSET, aq_digest(out, AQ_FRAME_DIGEST_OFFSET), 8);
}

enum aq_status aq_header_sniff(const uint8_t *bytes, size_t count, char text[AQ_TEXT_BYTES])
{
    if (memcmp(bytes, MAGIC, count < sizeof MAGIC ? count : sizeof MAGIC) == 0) return AQ_OK;
    char shown[17];
    size_t used = 0;
    for (; used < count && used < sizeof shown - 1; used++)
        shown[used] = bytes[used] >= ' ' && bytes[used] < 127 ? (char)bytes[used] : '.';
    shown[used] = '\0';
    snprintf(text, AQ_TEXT_BYTES, "speaks another protocol: its first bytes are \"%s\", not \"AQPF\"", shown);
    return AQ_PROTO;
}

static bool kind_known(uint16_t kind)
{
    return (kind >= AQ_FRAME_HELLO && kind <= AQ_FRAME_PONG) ||
           (kind >= AQ_FRAME_KIND_RUNTIME && kind <= AQ_FRAME_KIND_LAST);
}

enum aq_status aq_header_decode(const uint8_t bytes[AQ_FRAME_HEADER_BYTES], struct aq_header *out,
                                char text[AQ_TEXT_BYTES])
{
    AQ_TRY(aq_header_sniff(bytes, AQ_FRAME_HEADER_BYTES, text));
    const unsigned version = (unsigned)get(bytes + 4, 2);
    if (version != AQ_FRAME_VERSION) {
        snprintf(text, AQ_TEXT_BYTES,
                 "speaks protocol version %u, this end version %d: install the same aqpipe on both", version,
                 AQ_FRAME_VERSION);
        return AQ_MISMATCH;
    }
    const uint64_t digest = aq_digest(bytes, AQ_FRAME_DIGEST_OFFSET);
    if (digest != get(bytes + AQ_FRAME_DIGEST_OFFSET, 8)) {
        snprintf(text, AQ_TEXT_BYTES, "a header arrived broken: digest %016llx, computed %016llx",
                 (unsigned long long)get(bytes + AQ_FRAME_DIGEST_OFFSET, 8), (unsigned long long)digest);
        return AQ_CORRUPT;
    }
    struct aq_header h = {
        .version = (uint16_t)version,
        .kind = (uint16_t)get(bytes + 6, 2),
        .flags = (uint16_t)get(bytes + 8, 2),
        .body_bytes = (uint32_t)get(bytes + 12, 4),
        .from = (uint32_t)get(bytes + 16, 4),
        .edge = (uint32_t)get(bytes + 20, 4),
        .plan_hash = get(bytes + 24, 8),
        .sequence = get(bytes + 32, 8),
        .acknowledge = get(bytes + 40, 8),
        .credit = (uint32_t)get(bytes + 48, 4),
        .micro_batch = (uint32_t)get(bytes + 52, 4),
        .step = get(bytes + 56, 8),
        .argument = get(bytes + 64, 8),
        .body_digest = get(bytes + 72, 8),
        .raw_bytes = (uint32_t)get(bytes + 80, 4),
        .part_bytes = (uint32_t)get(bytes + 84, 4),
    };
    const uint64_t link_flags = get(bytes + 10, 2);
    const bool own = h.kind < AQ_FRAME_KIND_RUNTIME;
    if (!kind_known(h.kind)) {
        snprintf(text, AQ_TEXT_BYTES, "sent a frame of kind %u, which version %d does not know", h.kind,
                 AQ_FRAME_VERSION);
        return AQ_PROTO;
    }
    if (link_flags != (h.raw_bytes > 0 ? AQ_LINK_FLAG_PACKED : 0) || !all_zero(bytes + 88, 32) ||
        (h.body_bytes == 0 && (h.body_digest != 0 || h.raw_bytes != 0)) || (own && h.raw_bytes != 0) ||
        (own && (h.flags != 0 || h.micro_batch != 0 || h.step != 0))) {
        snprintf(text, AQ_TEXT_BYTES, "sent a %s header with reserved bytes that are not zero",
                 aq_frame_kind_text(h.kind));
        return AQ_PROTO;
    }
    if (h.part_bytes > 0 && (own || h.part_bytes < AQ_FRAME_PART_BYTES || h.part_bytes >= h.body_bytes)) {
        snprintf(text, AQ_TEXT_BYTES, "sent a %s of %u bytes in parts of %u; a part has at least %d, and less than all",
                 aq_frame_kind_text(h.kind), h.body_bytes, h.part_bytes, AQ_FRAME_PART_BYTES);
        return AQ_PROTO;
    }
    *out = h;
    return AQ_OK;
}

void aq_gap_encode(const struct aq_gap *gap, uint64_t sequence, uint8_t out[AQ_FRAME_GAP_BYTES])
{
    put(out + 0, gap->acknowledge, 8);
    put(out + 8, gap->credit, 4);
    put(out + 12, gap->cut ? AQ_GAP_FLAG_CUT : 0, 4);
    put(out + AQ_FRAME_GAP_DIGEST_OFFSET, aq_digest_seeded(out, AQ_FRAME_GAP_DIGEST_OFFSET, sequence), 8);
}

enum aq_status aq_gap_decode(const uint8_t bytes[AQ_FRAME_GAP_BYTES], uint64_t sequence, struct aq_gap *out,
                             char text[AQ_TEXT_BYTES])
{
    const uint64_t digest = aq_digest_seeded(bytes, AQ_FRAME_GAP_DIGEST_OFFSET, sequence);
    const uint64_t flags = get(bytes + 12, 4);
    if (digest != get(bytes + AQ_FRAME_GAP_DIGEST_OFFSET, 8)) {
        snprintf(text, AQ_TEXT_BYTES, "a gap of frame %llu arrived broken: digest %016llx, computed %016llx",
                 (unsigned long long)sequence, (unsigned long long)get(bytes + AQ_FRAME_GAP_DIGEST_OFFSET, 8),
                 (unsigned long long)digest);
        return AQ_CORRUPT;
    }
    if ((flags & ~(uint64_t)AQ_GAP_FLAG_CUT) != 0) {
        snprintf(text, AQ_TEXT_BYTES, "sent a gap with flags %llx, of which version %d knows bit 0",
                 (unsigned long long)flags, AQ_FRAME_VERSION);
        return AQ_PROTO;
    }
    *out = (struct aq_gap){
        .acknowledge = get(bytes + 0, 8), .credit = (uint32_t)get(bytes + 8, 4), .cut = flags & AQ_GAP_FLAG_CUT};
    return AQ_OK;
}

static uint32_t stripe_digest(const uint8_t *bytes, uint64_t bundle)
{
    return (uint32_t)aq_digest_seeded(bytes, 12, bundle);
}

void aq_stripe_encode(const struct aq_stripe *stripe, uint64_t bundle, uint8_t out[AQ_STRIPE_HEAD_BYTES])
{
    put(out + 0, stripe->number, 8);
    put(out + 8, stripe->bytes, 2);
    put(out + 10, stripe->place, 1);
    put(out + 11, stripe->sum, 1);
    put(out + 12, stripe_digest(out, bundle), 4);
}

enum aq_status aq_stripe_decode(const uint8_t bytes[AQ_STRIPE_HEAD_BYTES], uint64_t bundle, struct aq_stripe *out,
                                char text[AQ_TEXT_BYTES])
{
    const struct aq_stripe stripe = {.number = get(bytes + 0, 8),
                                     .bytes = (uint32_t)get(bytes + 8, 2),
                                     .place = (uint8_t)get(bytes + 10, 1),
                                     .sum = (uint8_t)get(bytes + 11, 1)};
    if (get(bytes + 12, 4) != stripe_digest(bytes, bundle)) {
        snprintf(text, AQ_TEXT_BYTES, "the head of a stripe arrived broken: digest %08x, computed %08x",
                 (unsigned)get(bytes + 12, 4), stripe_digest(bytes, bundle));
        return AQ_CORRUPT;
    }
    if (stripe.bytes > AQ_STRIPE_BYTES_MAX) {
        snprintf(text, AQ_TEXT_BYTES, "sent a stripe of %u bytes; the limit is %d", stripe.bytes, AQ_STRIPE_BYTES_MAX);
        return AQ_PROTO;
    }
    const bool sum = stripe.sum > 0 && (stripe.bytes <= AQ_SUM_HEAD_BYTES || stripe.place > 0);
    if (sum || stripe.place >= AQ_GROUP_STRIPES_MAX || stripe.place > stripe.number ||
        stripe.sum > AQ_GROUP_STRIPES_MAX || stripe.sum > stripe.number + 1) {
        snprintf(text, AQ_TEXT_BYTES, "sent stripe %llu of %u bytes at place %u of a group, sum of %u",
                 (unsigned long long)stripe.number, stripe.bytes, stripe.place, stripe.sum);
        return AQ_PROTO;
    }
    *out = stripe;
    return AQ_OK;
}

void aq_hello_encode(const struct aq_hello *hello, uint8_t out[AQ_FRAME_HELLO_BYTES])
{
    memset(out, 0, AQ_FRAME_HELLO_BYTES);
    put(out + 0, hello->job_digest, 8);
    put(out + 8, hello->plan_hash, 8);
    put(out + 16, hello->rank, 4);
    put(out + 20, hello->peer_rank, 4);
    put(out + 24, hello->edge, 4);
    put(out + 28, hello->body_bytes_max, 4);
    put(out + 32, hello->receive_slots, 4);
    put(out + 36, hello->features, 4);
    put(out + 40, hello->session, 8);
    put(out + 48, hello->resume_sequence, 8);
    put(out + 56, hello->streams, 4);
    put(out + 60, hello->stream, 4);
    put(out + 64, hello->bundle, 8);
}

enum aq_status aq_hello_decode(const uint8_t bytes[AQ_FRAME_HELLO_BYTES], struct aq_hello *out,
                               char text[AQ_TEXT_BYTES])
{
    const struct aq_hello hello = {
        .job_digest = get(bytes + 0, 8),
        .plan_hash = get(bytes + 8, 8),
        .rank = (uint32_t)get(bytes + 16, 4),
        .peer_rank = (uint32_t)get(bytes + 20, 4),
        .edge = (uint32_t)get(bytes + 24, 4),
        .body_bytes_max = (uint32_t)get(bytes + 28, 4),
        .receive_slots = (uint32_t)get(bytes + 32, 4),
        .features = (uint32_t)get(bytes + 36, 4),
        .session = get(bytes + 40, 8),
        .resume_sequence = get(bytes + 48, 8),
        .streams = (uint32_t)get(bytes + 56, 4),
        .stream = (uint32_t)get(bytes + 60, 4),
        .bundle = get(bytes + 64, 8),
    };
    const bool several = hello.features & AQ_FEATURE_STREAMS;
    const uint32_t known =
        AQ_FEATURE_HEAL | AQ_FEATURE_PACK | AQ_FEATURE_PARTS | AQ_FEATURE_STREAMS | AQ_FEATURE_COPIES;
    if ((hello.features & ~known) != 0 || !all_zero(bytes + 72, AQ_FRAME_HELLO_BYTES - 72) ||
        (!several && !all_zero(bytes + 56, 16))) {
        snprintf(text, AQ_TEXT_BYTES, "asks in its HELLO for features that version %d does not have", AQ_FRAME_VERSION);
        return AQ_PROTO;
    }
    if ((hello.features & AQ_FEATURE_COPIES) && !several) {
        snprintf(text, AQ_TEXT_BYTES, "asks in its HELLO for copies without streams");
        return AQ_PROTO;
    }
    if (several && (hello.streams == 0 || hello.streams > AQ_LINK_STREAMS_MAX || hello.stream >= hello.streams ||
                    (hello.stream > 0 && hello.bundle == 0))) {
        snprintf(text, AQ_TEXT_BYTES,
                 "sent a HELLO of stream %u of %u; at most %d streams are allowed, each in a bundle", hello.stream,
                 hello.streams, AQ_LINK_STREAMS_MAX);
        return AQ_PROTO;
    }
    if ((hello.session != 0 && !(hello.features & AQ_FEATURE_HEAL)) || (hello.resume_sequence != 0 && !hello.session)) {
        snprintf(text, AQ_TEXT_BYTES, "sent a HELLO that resumes a link that cannot be healed");
        return AQ_PROTO;
    }
    *out = hello;
    return AQ_OK;
}

uint32_t aq_abort_encode(enum aq_status cause, const char *text, uint8_t out[AQ_FRAME_CONTROL_BYTES_MAX])
{
    const size_t length = strnlen(text, AQ_FRAME_ABORT_TEXT_MAX);
    put(out, (uint64_t)cause, 4);
    memcpy(out + 4, text, length);
    return (uint32_t)(4 + length);
}

enum aq_status aq_abort_decode(const uint8_t *body, uint32_t body_bytes, char text[AQ_TEXT_BYTES])
{
    if (body_bytes < 4) {
        snprintf(text, AQ_TEXT_BYTES, "gave no reason");
        return AQ_ABORTED;
    }
    const uint64_t cause = get(body, 4);
    size_t used = 0;
    for (uint32_t i = 4; i < body_bytes && used < AQ_TEXT_BYTES - 1; i++)
        text[used++] = body[i] < ' ' || body[i] == 127 ? '.' : (char)body[i];
    text[used] = '\0';
    if (used == 0) snprintf(text, AQ_TEXT_BYTES, "gave no reason");
    return cause > 0 && cause < AQ_STATUS_COUNT ? (enum aq_status)cause : AQ_ABORTED;
}
