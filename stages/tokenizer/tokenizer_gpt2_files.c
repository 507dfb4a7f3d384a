/*
 * tokenizer_gpt2_files.c -- GPT-2's vocab.json and merges.txt, checked and turned into tables.
 *
 * Both files write bytes as printable characters, so that they are valid text: a byte that Latin-1 prints stands for
 * itself, the other 68 (controls, space, soft hyphen) are the characters U+0100, U+0101, ... in order. "Ġ" is a space.
 *
 * Invariants: the ids are exactly 0..count-1; no two tokens are alike (JSON keys differ, and the writing is one to
 * one); every single byte is a token, so that any text can be encoded; each merge joins two tokens to a third.
 */
#include "tokenizer_gpt2.h"

#include <jansson.h>
#include <string.h>
#include <unistd.h>

#include "dataset_file.h"

#define AREA "tokenizer"

/* A file's bytes at most (GPT-2's have 1 MB and 0.5 MB), and a token's, in its file's writing. */
enum { FILE_BYTES_MAX = 256 << 20, TOKEN_BYTES_MAX = 1 << 16, TOKENS_MAX = 1 << 24, PATH_BYTES_MAX = 4096 };

static bool stands_for_itself(unsigned byte)
{
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

/* The byte of each character U+0000..U+0143, or -1. */
static void character_bytes(int16_t out[324])
{
    unsigned next = 256;
    for (unsigned i = 0; i < 324; i++) out[i] = -1;
    for (unsigned byte = 0; byte < 256; byte++) out[stands_for_itself(byte) ? byte : next++] = (int16_t)byte;
    AQ_ASSERT(next == 324);
}

/* The bytes that `count` bytes of a file's writing stand for; out has room for as many. False: a foreign character. */
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

/* Token numbers by their bytes, while the merges are read. */
struct name_table {
    uint32_t *slots; /* token + 1; 0 is free */
    uint64_t count;  /* a power of two, at least twice the tokens */
};

static uint64_t power_of_two(uint64_t least)
{
    uint64_t count = 16;
    while (count < least) count *= 2;
    return count;
}

static bool token_is(const struct aq_gpt2_vocabulary *v, uint32_t token, const uint8_t *bytes, size_t count)
{
    return v->start[token + 1] - v->start[token] == count && memcmp(v->bytes + v->start[token], bytes, count) == 0;
}

static enum aq_status name_table_open(const struct aq_gpt2_vocabulary *v, struct name_table *out)
{
    out->count = power_of_two((uint64_t)v->count * 2);
    void *memory;
    AQ_TRY(aq_alloc(out->count * sizeof(uint32_t), &memory));
    out->slots = memory;
    for (uint32_t token = 0; token < v->count; token++) {
        uint64_t slot = aq_digest(v->bytes + v->start[token], v->start[token + 1] - v->start[token]);
        while (out->slots[slot & (out->count - 1)]) slot++;
        out->slots[slot & (out->count - 1)] = token + 1;
    }
    return AQ_OK;
}

static bool name_table_find(const struct name_table *table, const struct aq_gpt2_vocabulary *v, const uint8_t *bytes,
                            size_t count, uint32_t *token)
{
    for (uint64_t slot = aq_digest(bytes, count);; slot++) {
        uint32_t found = table->slots[slot & (table->count - 1)];
        if (found == 0) return false;
        if (token_is(v, found - 1, bytes, count)) {
            *token = found - 1;
            return true;
        }
    }
}

/* names[id] = the token's writing, borrowed from the JSON object; checks that the ids are 0..count-1, each once. */
static enum aq_status vocabulary_names(const char *path, json_t *object, uint32_t count, const char **names,
                                       size_t *bytes)
{
    const char *name;
    json_t *value;
    *bytes = 0;
    json_object_foreach(object, name, value) {
        json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
        size_t length = strlen(name);
        if (id < 0 || id >= (json_int_t)count)
            return aq_fail(AQ_CORRUPT, AREA, "%s: token \"%.64s\" has no id in 0..%u", path, name, (unsigned)count - 1);
        if (names[id])
            return aq_fail(AQ_CORRUPT, AREA, "%s: tokens \"%.64s\" and \"%.64s\" have the same id %lld", path,
                           names[id], name, (long long)id);
        if (length == 0 || length > TOKEN_BYTES_MAX)
            return aq_fail(AQ_CORRUPT, AREA, "%s: the token of id %lld has %zu bytes, 1 to %d may be", path,
                           (long long)id, length, (int)TOKEN_BYTES_MAX);
        names[id] = name;
        *bytes += length;
    }
    return AQ_OK;
}

/* The tokens' bytes, from their names in order of ids. */
static enum aq_status vocabulary_fill(const char *path, const char *const *names, struct aq_gpt2_vocabulary *v)
{
    int16_t of_character[324];
    character_bytes(of_character);
    uint32_t used = 0;
    for (uint32_t token = 0; token < v->count; token++) {
        size_t length = 0;
        v->start[token] = used;
        if (!bytes_of_writing(of_character, names[token], strlen(names[token]), v->bytes + used, &length))
            return aq_fail(AQ_CORRUPT, AREA, "%s: token %u \"%.64s\" has a character that stands for no byte", path,
                           (unsigned)token, names[token]);
        used += (uint32_t)length;
        v->start[token + 1] = used;
    }
    return AQ_OK;
}

static enum aq_status vocabulary_from_json(const char *path, json_t *object, struct aq_gpt2_vocabulary *v)
{
    if (!json_is_object(object) || json_object_size(object) < 256 || json_object_size(object) > TOKENS_MAX)
        return aq_fail(AQ_CORRUPT, AREA, "%s: is no JSON object of 256 to %d tokens", path, (int)TOKENS_MAX);
    v->count = (uint32_t)json_object_size(object);
    void *memory;
    AQ_TRY(aq_alloc(v->count * sizeof(char *), &memory));
    const char **names = memory;
    size_t bytes = 0;
    enum aq_status status;
    AQ_TRY_GOTO(vocabulary_names(path, object, v->count, names, &bytes), out);
    AQ_ASSERT(bytes <= FILE_BYTES_MAX); /* so that the starts fit 32 bits */
    AQ_TRY_GOTO(aq_alloc(((size_t)v->count + 1) * sizeof(uint32_t), &memory), out);
    v->start = memory;
    AQ_TRY_GOTO(aq_alloc(bytes, &memory), out);
    v->bytes = memory;
    AQ_TRY_GOTO(vocabulary_fill(path, names, v), out);
out:
    aq_free(names);
    return status;
}

static enum aq_status read_vocabulary(const char *path, struct aq_gpt2_vocabulary *v)
{
    uint8_t *text;
    size_t bytes;
    AQ_TRY(aq_file_read(AREA, path, FILE_BYTES_MAX, &text, &bytes));
    json_error_t error;
    json_t *object = json_loadb((const char *)text, bytes, JSON_REJECT_DUPLICATES, &error);
    enum aq_status status;
    if (!object)
        status = aq_fail(AQ_CORRUPT, AREA, "%s:%d:%d: %s", path, error.line, error.column, error.text);
    else
        status = vocabulary_from_json(path, object, v);
    json_decref(object);
    aq_free(text);
    return status;
}

/* One line "left right" becomes a slot of the table. */
static enum aq_status add_merge(const char *path, uint32_t line, const struct name_table *names, const uint8_t *left,
                                size_t left_bytes, size_t bytes, uint32_t rank, struct aq_gpt2_vocabulary *v)
{
    uint32_t a, b, joined;
    if (!name_table_find(names, v, left, left_bytes, &a) ||
        !name_table_find(names, v, left + left_bytes, bytes - left_bytes, &b) ||
        !name_table_find(names, v, left, bytes, &joined))
        return aq_fail(AQ_CORRUPT, AREA, "%s:%u: merges what is no token; are both files of one model?",
                       path, (unsigned)line);
    uint64_t pair = (uint64_t)a << 32 | b, slot = aq_gpt2_slot(pair, v->merge_slots);
    while (v->merges[slot].pair != AQ_GPT2_EMPTY) {
        if (v->merges[slot].pair == pair)
            return aq_fail(AQ_CORRUPT, AREA, "%s:%u: this merge stands further up already", path, (unsigned)line);
        slot = (slot + 1) & (v->merge_slots - 1);
    }
    v->merges[slot] = (struct aq_gpt2_merge){.pair = pair, .rank = rank, .token = joined};
    return AQ_OK;
}

static enum aq_status parse_merges(const char *path, const char *text, size_t bytes, const struct name_table *names,
                                   uint8_t *scratch, struct aq_gpt2_vocabulary *v)
{
    int16_t of_character[324];
    character_bytes(of_character);
    uint32_t rank = 0, line = 0;
    const char *end = text + bytes;
    for (const char *at = text, *next; at < end; at = next) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        next = stop ? stop + 1 : end;
        if (!stop) stop = end;
        if (stop > at && stop[-1] == '\r') stop--;
        line++;
        if (stop == at || (line == 1 && stop - at >= 8 && memcmp(at, "#version", 8) == 0)) continue;
        const char *space = memchr(at, ' ', (size_t)(stop - at));
        size_t left, right;
        if (!space || space == at || space + 1 == stop || stop - at > TOKEN_BYTES_MAX ||
            !bytes_of_writing(of_character, at, (size_t)(space - at), scratch, &left) ||
            !bytes_of_writing(of_character, space + 1, (size_t)(stop - space - 1), scratch + left, &right))
            return aq_fail(AQ_CORRUPT, AREA, "%s:%u: is not two tokens with a space between", path, (unsigned)line);
        AQ_TRY(add_merge(path, line, names, scratch, left, left + right, rank, v));
        rank++;
    }
    return AQ_OK;
}

static enum aq_status read_merges(const char *path, const struct name_table *names, struct aq_gpt2_vocabulary *v)
{
    uint8_t *text;
    size_t bytes;
    void *memory, *scratch = NULL;
    AQ_TRY(aq_file_read(AREA, path, FILE_BYTES_MAX, &text, &bytes));
    uint64_t lines = 1;
    for (size_t i = 0; i < bytes; i++) lines += text[i] == '\n';
    v->merge_slots = power_of_two(lines * 2);
    enum aq_status status;
    AQ_TRY_GOTO(aq_alloc(v->merge_slots * sizeof(struct aq_gpt2_merge), &memory), out);
    v->merges = memory;
    for (uint64_t i = 0; i < v->merge_slots; i++) v->merges[i].pair = AQ_GPT2_EMPTY;
    AQ_TRY_GOTO(aq_alloc(TOKEN_BYTES_MAX, &scratch), out);
    AQ_TRY_GOTO(parse_merges(path, (const char *)text, bytes, names, scratch, v), out);
out:
    aq_free(scratch);
    aq_free(text);
    return status;
}

/* path of folder/first or folder/second, whichever is there. */
static enum aq_status find_file(const char *folder, const char *first, const char *second, char path[PATH_BYTES_MAX])
{
    const char *const names[] = {first, second};
    if (!folder) return aq_fail(AQ_INVAL, AREA, "the gpt2 tokenizer needs the folder of its %s", first);
    for (int i = 0; i < 2; i++) {
        int length = snprintf(path, PATH_BYTES_MAX, "%s/%s", folder, names[i]);
        if (length < 0 || length >= PATH_BYTES_MAX)
            return aq_fail(AQ_INVAL, AREA, "the folder's name \"%.64s...\" is too long", folder);
        if (access(path, F_OK) == 0) return AQ_OK;
    }
    return aq_fail(AQ_NOTFOUND, AREA, "%s: has neither %s nor %s", folder, first, second);
}

enum aq_status aq_gpt2_published(const char *folder, uint32_t index, char *from, size_t bytes, const char **name)
{
    char path[PATH_BYTES_MAX];
    *name = NULL;
    if (index > 1) return AQ_OK;
    AQ_TRY(index == 0 ? find_file(folder, "vocab.json", "encoder.json", path)
                      : find_file(folder, "merges.txt", "vocab.bpe", path));
    snprintf(from, bytes, "%s", path);
    *name = index == 0 ? "vocab.json" : "merges.txt";
    return AQ_OK;
}

/* The tokens with a meaning: single bytes, which must all be there, and the end of a text. */
static enum aq_status find_special(const char *path, const struct name_table *names, struct aq_gpt2_vocabulary *v)
{
    static const char end_of_text[] = "<|endoftext|>";
    for (unsigned i = 0; i < 256; i++) {
        uint8_t byte = (uint8_t)i;
        if (!name_table_find(names, v, &byte, 1, &v->byte_token[i]))
            return aq_fail(AQ_CORRUPT, AREA, "%s: has no token for the byte %u", path, i);
    }
    uint32_t token;
    bool found = name_table_find(names, v, (const uint8_t *)end_of_text, sizeof end_of_text - 1, &token);
    v->end_of_text = found ? (int32_t)token : -1;
    return AQ_OK;
}

enum aq_status aq_gpt2_vocabulary_open(const char *folder, struct aq_gpt2_vocabulary *out)
{
    struct aq_gpt2_vocabulary v = {.end_of_text = -1};
    struct name_table names = {0};
    char path[PATH_BYTES_MAX];
    enum aq_status status;
    AQ_TRY_GOTO(find_file(folder, "vocab.json", "encoder.json", path), out);
    AQ_TRY_GOTO(read_vocabulary(path, &v), out);
    AQ_TRY_GOTO(name_table_open(&v, &names), out);
    AQ_TRY_GOTO(find_special(path, &names, &v), out);
    AQ_TRY_GOTO(find_file(folder, "merges.txt", "vocab.bpe", path), out);
    AQ_TRY_GOTO(read_merges(path, &names, &v), out);
out:
    aq_free(names.slots);
    if (status != AQ_OK) aq_gpt2_vocabulary_close(&v);
    if (status == AQ_OK) *out = v;
    return status;
}

void aq_gpt2_vocabulary_close(struct aq_gpt2_vocabulary *vocabulary)
{
    aq_free(vocabulary->start);
    aq_free(vocabulary->bytes);
    aq_free(vocabulary->merges);
    *vocabulary = (struct aq_gpt2_vocabulary){.end_of_text = -1};
}
