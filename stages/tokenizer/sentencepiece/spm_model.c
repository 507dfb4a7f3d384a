/*
 * spm_model.c -- a SentencePiece model looked over, as sentencepiece_model.proto has it:
 *
 *     1 pieces (each: 1 piece, 2 score, 3 type)   2 trainer_spec   3 normalizer_spec   4 self_test_data
 *     5 denormalizer_spec; of 3 and 5: 2 precompiled_charsmap
 *
 * The library follows the charsmap's array and checks no bound, so that aq_charsmap_problem checks them first.
 */
#include <math.h>
#include <string.h>

#include "charsmap.h"
#include "spm.h"

#define AREA "tokenizer"

struct cursor {
    const uint8_t *at, *end;
};

struct field {
    uint32_t number, type; /* of the wire: 0 varint, 1 eight bytes, 2 a length and bytes, 5 four bytes */
    const uint8_t *bytes;
    size_t count;
};

static bool varint(struct cursor *c, uint64_t *out)
{
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64 && c->at < c->end; shift += 7) {
        const uint8_t byte = *c->at++;
        value |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) {
            *out = value;
            return true;
        }
    }
    return false;
}

/* The next field; false: no valid field. */
static bool next_field(struct cursor *c, struct field *out)
{
    uint64_t tag, count = 0;
    if (!varint(c, &tag) || tag >> 3 == 0 || tag >> 3 > UINT32_MAX) return false;
    *out = (struct field){.number = (uint32_t)(tag >> 3), .type = tag & 7, .bytes = c->at};
    switch (out->type) {
    case 0:
        if (!varint(c, &count)) return false;
        out->count = (size_t)(c->at - out->bytes);
        return true;
    case 1:
        count = 8;
        break;
    case 2:
        if (!varint(c, &count)) return false;
        break;
    case 5:
        count = 4;
        break;
    default:
        return false;
    }
    if (count > (uint64_t)(c->end - c->at)) return false;
    out->bytes = c->at;
    out->count = (size_t)count;
    c->at += count;
    return true;
}

static const char *piece_problem(const struct field *piece)
{
    struct cursor c = {piece->bytes, piece->bytes + piece->count};
    struct field field;
    bool named = false;
    while (c.at < c.end) {
        float score;
        if (!next_field(&c, &field)) return "is cut short";
        if (field.number == 1 && field.type == 2) named = field.count > 0 && !memchr(field.bytes, 0, field.count);
        if (field.number != 2 || field.type != 5) continue;
        const uint32_t bits = charsmap_word(field.bytes);
        memcpy(&score, &bits, sizeof score);
        if (!isfinite(score)) return "has a score that is not a number";
    }
    return named ? NULL : "has no text";
}

static const char *normalizer_problem(const struct field *spec)
{
    struct cursor c = {spec->bytes, spec->bytes + spec->count};
    struct field field;
    while (c.at < c.end) {
        if (!next_field(&c, &field)) return "is cut short";
        if (field.number != 2 || field.type != 2) continue;
        const char *problem = aq_charsmap_problem(field.bytes, field.count);
        if (problem) return problem;
    }
    return NULL;
}

enum aq_status aq_spm_check(const char *path, const uint8_t *bytes, size_t count)
{
    struct cursor c = {bytes, bytes + count};
    struct field field;
    uint32_t pieces = 0;
    while (c.at < c.end) {
        const size_t at = (size_t)(c.at - bytes);
        const char *problem = NULL, *what = "piece";
        if (!next_field(&c, &field))
            return aq_fail(AQ_CORRUPT, AREA, "%s: is not a SentencePiece model: no field at byte %zu", path, at);
        if ((field.number <= 5) != (field.type == 2 && field.number <= 5))
            return aq_fail(AQ_CORRUPT, AREA, "%s: is not a SentencePiece model: field %u at byte %zu has another type",
                           path, (unsigned)field.number, at);
        if (field.number == 1) {
            problem = piece_problem(&field);
            if (++pieces > AQ_SPM_PIECES_MAX)
                return aq_fail(AQ_CORRUPT, AREA, "%s: has more than %d pieces", path, (int)AQ_SPM_PIECES_MAX);
        }
        if (field.number == 3 || field.number == 5) {
            problem = normalizer_problem(&field);
            what = "normalizer";
        }
        if (problem)
            return aq_fail(AQ_CORRUPT, AREA, "%s: the %s at byte %zu (after %u pieces) is damaged: %s", path, what, at,
                           (unsigned)pieces, problem);
    }
    if (pieces == 0) return aq_fail(AQ_CORRUPT, AREA, "%s: is not a SentencePiece model: it has no pieces", path);
    return AQ_OK;
}
