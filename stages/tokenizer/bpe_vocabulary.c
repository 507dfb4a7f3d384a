/*
 * bpe_vocabulary.c -- the tokens and merges of a byte-pair encoding, checked and turned into tables.
 *
 * A byte-level vocabulary writes bytes as printable characters, so that its file is valid text: a byte that is
 * printable in Latin-1 is written as itself, the other 68 (controls, space, soft hyphen) as the characters U+0100,
 * U+0101, ... in order. "Ġ" is a space.
 *
 * Invariants: the ids are exactly 0..count-1; no two tokens that merges can reach are alike (JSON keys differ, and the
 * writing is one to one); each merge joins two tokens to a third. A name with a character that encodes no byte
 * ("<｜end｜>") is reached by no merge: it keeps its text as its bytes, and is not in the table of names.
 */
#include "bpe.h"

#include <string.h>

static bool stands_for_itself(unsigned byte)
{
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

/* The byte of each character U+0000..U+0143, or -1. */
static void byte_characters(int16_t out[324])
{
    unsigned next = 256;
    for (unsigned i = 0; i < 324; i++)
        out[i] = -1;
    for (unsigned byte = 0; byte < 256; byte++)
        out[stands_for_itself(byte) ? byte : next++] = (int16_t)byte;
    AQ_ASSERT(next == 324);
}

/* Decodes `count` bytes of a file's byte-level writing; out has room for as many. False: a foreign character. */
static bool bytes_of_writing(const int16_t of_character[324], const char *writing, size_t count, uint8_t *out,
                             size_t *bytes)
{
    size_t done = 0;
    for (size_t i = 0; i < count;) {
        unsigned lead = (uint8_t)writing[i], character = lead;
        size_t length = 1;
        if (lead >= 0x80) {
            /* Two bytes reach U+07FF, further than any character of the writing. */
            if (lead < 0xC2 || lead > 0xDF || i + 1 >= count || ((uint8_t)writing[i + 1] & 0xC0) != 0x80) return false;
            character = (lead & 0x1F) << 6 | ((uint8_t)writing[i + 1] & 0x3F);
            length = 2;
        }
        if (character >= 324 || of_character[character] < 0) return false;
        out[done++] = (uint8_t)of_character[character];
        i += length;
    }
    *bytes = done;
    return true;
}

enum aq_status aq_bpe_write(const uint8_t *bytes, size_t count, struct aq_bpe_text *out)
{
    char writing[256][2];
    uint8_t length[256];
    unsigned next = 256;
    for (unsigned byte = 0; byte < 256; byte++) {
        const unsigned character = stands_for_itself(byte) ? byte : next++;
        length[byte] = character < 0x80 ? 1 : 2;
        writing[byte][0] = (char)(character < 0x80 ? character : 0xC0 | character >> 6);
        writing[byte][1] = (char)(0x80 | (character & 0x3F));
    }
    for (size_t i = 0; i < count; i++)
        AQ_TRY(aq_bpe_text_add(out, writing[bytes[i]], length[bytes[i]]));
    return AQ_OK;
}

enum aq_status aq_bpe_unwrite(const uint8_t *writing, size_t count, struct aq_bpe_text *out)
{
    int16_t of_character[324];
    void *memory;
    size_t bytes = 0;
    byte_characters(of_character);
    AQ_TRY(aq_alloc(count + 1, &memory));
    enum aq_status status = bytes_of_writing(of_character, (const char *)writing, count, memory, &bytes)
                                ? aq_bpe_text_add(out, memory, bytes)
                                : aq_fail(AQ_CORRUPT, AQ_BPE_AREA, "a piece after ByteLevel does not encode bytes");
    aq_free(memory);
    return status;
}

static uint64_t power_of_two(uint64_t least)
{
    uint64_t count = 16;
    while (count < least)
        count *= 2;
    return count;
}

uint32_t aq_bpe_vocabulary_find(const struct aq_bpe_vocabulary *v, const void *bytes, size_t count)
{
    for (uint64_t slot = aq_digest(bytes, count);; slot++) {
        const uint32_t found = v->names[slot & (v->name_slots - 1)];
        if (found == 0) return AQ_BPE_NONE;
        const uint32_t start = v->start[found - 1];
        if (v->start[found] - start == count && memcmp(v->bytes + start, bytes, count) == 0) return found - 1;
    }
}

static void name_put(struct aq_bpe_vocabulary *v, uint32_t token)
{
    uint64_t slot = aq_digest(v->bytes + v->start[token], v->start[token + 1] - v->start[token]);
    while (v->names[slot & (v->name_slots - 1)])
        slot++;
    v->names[slot & (v->name_slots - 1)] = token + 1;
}

/* Ids without a token that a vocabulary may have: published ones have some hundreds. */
enum { HOLES_MAX = 1 << 20 };

/* A token's name in the file. */
struct name {
    const char *text; /* borrowed from the JSON */
    uint32_t bytes;
    bool added; /* it is no token of the vocabulary */
};

static enum aq_status take_name(const char *place, const char *text, size_t bytes, int64_t id, uint32_t count,
                                bool added, struct name *names)
{
    if (id < 0 || id >= (int64_t)count)
        return aq_fail(AQ_CORRUPT, AQ_BPE_AREA, "%s: token \"%.64s\" has no id in 0..%u", place, text,
                       (unsigned)count - 1);
    if (names[id].text)
        return aq_fail(AQ_CORRUPT, AQ_BPE_AREA, "%s: tokens \"%.64s\" and \"%.64s\" have the same id %lld", place,
                       names[id].text, text, (long long)id);
    if (bytes == 0 || bytes > AQ_BPE_TOKEN_BYTES_MAX)
        return aq_fail(AQ_CORRUPT, AQ_BPE_AREA, "%s: the token of id %lld has %zu bytes, must have 1 to %d", place,
                       (long long)id, bytes, (int)AQ_BPE_TOKEN_BYTES_MAX);
    names[id] = (struct name){.text = text, .bytes = (uint32_t)bytes, .added = added};
    return AQ_OK;
}

/* All tokens by their ids, each once; an id of which there is no token is a hole, whose name is NULL. */
static enum aq_status take_names(const char *place, json_t *vocab, const struct aq_bpe_added *added,
                                 uint32_t added_count, uint32_t count, struct name *names)
{
    const char *text;
    json_t *value;
    json_object_foreach(vocab, text, value) AQ_TRY(take_name(
        place, text, strlen(text), json_is_integer(value) ? json_integer_value(value) : -1, count, false, names));
    for (uint32_t i = 0; i < added_count; i++)
        if (!json_object_get(vocab, added[i].content))
            AQ_TRY(take_name(place, added[i].content, added[i].bytes, added[i].token, count, true, names));
    return AQ_OK;
}

/* The tokens' bytes, in order of ids, and the table of names. */
static enum aq_status fill(const char *place, const struct name *names, bool characters, struct aq_bpe_vocabulary *v)
{
    int16_t of_character[324];
    byte_characters(of_character);
    uint32_t used = 0;
    for (uint32_t token = 0; token < v->count; token++) {
        const struct name *name = &names[token];
        size_t length = name->bytes;
        bool reached = !name->added;
        v->start[token] = v->start[token + 1] = used;
        if (!name->text) continue;
        if (characters || !reached ||
            !bytes_of_writing(of_character, name->text, name->bytes, v->bytes + used, &length)) {
            reached = reached && characters;
            memcpy(v->bytes + used, name->text, length = name->bytes);
        }
        if (length > UINT32_MAX - used) return aq_fail(AQ_CORRUPT, AQ_BPE_AREA, "%s: is too long", place);
        used += (uint32_t)length;
        v->start[token + 1] = used;
        if (reached) name_put(v, token);
    }
    return AQ_OK;
}

/* The largest id, and 1. */
static size_t ids_of(json_t *vocab, const struct aq_bpe_added *added, uint32_t added_count)
{
    const char *text;
    json_t *value;
    json_int_t most = 0;
    json_object_foreach(vocab, text, value) most = json_integer_value(value) > most ? json_integer_value(value) : most;
    for (uint32_t i = 0; i < added_count; i++)
        most = (json_int_t)added[i].token > most ? (json_int_t)added[i].token : most;
    return (size_t)most + 1;
}

enum aq_status aq_bpe_vocabulary_open(const char *place, json_t *vocab, bool characters,
                                      const struct aq_bpe_added *added, uint32_t added_count,
                                      struct aq_bpe_vocabulary *out)
{
    struct aq_bpe_vocabulary v = {.characters = characters, .unknown = AQ_BPE_NONE};
    size_t count = json_object_size(vocab), bytes = 0;
    if (!json_is_object(vocab) || count < 1 || count > AQ_BPE_TOKENS_MAX - added_count)
        return aq_fail(AQ_CORRUPT, AQ_BPE_AREA, "%s: is not a JSON object of 1 to %d tokens", place,
                       (int)AQ_BPE_TOKENS_MAX);
    for (uint32_t i = 0; i < added_count; i++)
        count += !json_object_get(vocab, added[i].content);
    const size_t most = count + HOLES_MAX < AQ_BPE_TOKENS_MAX ? count + HOLES_MAX : AQ_BPE_TOKENS_MAX;
    const size_t ids = ids_of(vocab, added, added_count);
    count = ids > count && ids <= most ? ids : count; /* others are refused by name */
    v.count = (uint32_t)count;
    struct name *names;
    AQ_TRY(AQ_NEW(count, &names));
    enum aq_status status;
    AQ_TRY_GOTO(take_names(place, vocab, added, added_count, v.count, names), out);
    for (uint32_t i = 0; i < v.count; i++)
        bytes += names[i].bytes;
    AQ_ASSERT(bytes <= 2 * (size_t)AQ_BPE_FILE_BYTES_MAX); /* so that the starts fit 32 bits */
    AQ_TRY_GOTO(AQ_NEW(count + 1, &v.start), out);
    AQ_TRY_GOTO(AQ_NEW(bytes, &v.bytes), out);
    v.name_slots = power_of_two(count * 2);
    AQ_TRY_GOTO(AQ_NEW(v.name_slots, &v.names), out);
    AQ_TRY_GOTO(fill(place, names, characters, &v), out);
    for (unsigned i = 0; i < 256; i++)
        v.byte_token[i] = AQ_BPE_NONE;
out:
    aq_free(names);
    if (status != AQ_OK) aq_bpe_vocabulary_close(&v);
    if (status == AQ_OK) *out = v;
    return status;
}

void aq_bpe_vocabulary_close(struct aq_bpe_vocabulary *vocabulary)
{
    aq_free(vocabulary->start);
    aq_free(vocabulary->bytes);
    aq_bpe_said_close(&vocabulary->said);
    aq_bpe_said_close(&vocabulary->said_first);
    aq_free(vocabulary->names);
    aq_free(vocabulary->merges);
    *vocabulary = (struct aq_bpe_vocabulary){0};
}

enum aq_status aq_bpe_vocabulary_bytes(const char *place, struct aq_bpe_vocabulary *v)
{
    for (unsigned i = 0; i < 256; i++) {
        const uint8_t byte = (uint8_t)i;
        v->byte_token[i] = aq_bpe_vocabulary_find(v, &byte, 1);
        if (v->byte_token[i] == AQ_BPE_NONE)
            return aq_fail(AQ_CORRUPT, AQ_BPE_AREA, "%s: has no token for the byte %u", place, i);
    }
    return AQ_OK;
}

enum aq_status aq_bpe_merges_open(struct aq_bpe_vocabulary *v, uint64_t count)
{
    v->merge_slots = power_of_two(count * 2 + 1);
    AQ_TRY(AQ_NEW(v->merge_slots, &v->merges));
    for (uint64_t i = 0; i < v->merge_slots; i++)
        v->merges[i].pair = AQ_BPE_EMPTY;
    return AQ_OK;
}

/* The token of a name as the file writes it; its bytes go to `out`. */
static uint32_t token_of_writing(const struct aq_bpe_vocabulary *v, const char *writing, size_t count, uint8_t *out,
                                 size_t *bytes)
{
    int16_t of_character[324];
    if (v->characters) {
        memcpy(out, writing, count);
        *bytes = count;
        return aq_bpe_vocabulary_find(v, out, count);
    }
    byte_characters(of_character);
    return bytes_of_writing(of_character, writing, count, out, bytes) ? aq_bpe_vocabulary_find(v, out, *bytes)
                                                                      : AQ_BPE_NONE;
}

enum aq_status aq_bpe_merges_add(const char *place, const char *left, size_t left_bytes, const char *right,
                                 size_t right_bytes, uint64_t number, struct aq_bpe_vocabulary *v)
{
    size_t a_bytes = 0, b_bytes = 0;
    if (left_bytes == 0 || right_bytes == 0 || left_bytes > AQ_BPE_TOKEN_BYTES_MAX ||
        right_bytes > AQ_BPE_TOKEN_BYTES_MAX)
        return aq_fail(AQ_CORRUPT, AQ_BPE_AREA, "%s:%llu: is not two tokens with a space between", place,
                       (unsigned long long)number);
    uint8_t few[256], *both = few;
    if (left_bytes + right_bytes > sizeof few) AQ_TRY(AQ_NEW(left_bytes + right_bytes, &both));
    const uint32_t a = token_of_writing(v, left, left_bytes, both, &a_bytes);
    const uint32_t b = token_of_writing(v, right, right_bytes, both + a_bytes, &b_bytes);
    const bool known = a != AQ_BPE_NONE && b != AQ_BPE_NONE;
    const uint32_t joined = known ? aq_bpe_vocabulary_find(v, both, a_bytes + b_bytes) : AQ_BPE_NONE;
    if (both != few) aq_free(both);
    if (joined == AQ_BPE_NONE)
        return aq_fail(AQ_CORRUPT, AQ_BPE_AREA, "%s:%llu: merges a text that is not a token (\"%.*s\" and \"%.*s\")",
                       place, (unsigned long long)number, left_bytes > 64 ? 64 : (int)left_bytes, left,
                       right_bytes > 64 ? 64 : (int)right_bytes, right);
    const uint64_t pair = (uint64_t)a << 32 | b;
    uint64_t slot = aq_bpe_slot(pair, v->merge_slots);
    while (v->merges[slot].pair != AQ_BPE_EMPTY && v->merges[slot].pair != pair)
        slot = (slot + 1) & (v->merge_slots - 1);
    /* Of duplicate merges the later one counts, as in `tokenizers`. */
    v->merges[slot] = (struct aq_bpe_merge){.pair = pair, .rank = v->merge_count++, .token = joined};
    return AQ_OK;
}
