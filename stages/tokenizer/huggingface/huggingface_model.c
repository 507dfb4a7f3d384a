/*
 * huggingface_model.c -- model of tokenizer.json: how a word becomes tokens.
 *
 *     BPE        vocab, merges                 over bytes (with ByteLevel) or characters (byte_fallback, fuse_unk)
 *     Unigram    vocab: [[piece, score], ...]  unk_id, byte_fallback
 *     WordPiece  vocab                         unk_token, continuing_subword_prefix, max_input_chars_per_word
 *     WordLevel  vocab                         unk_token
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "huggingface.h"

enum { MODEL_PLACE_BYTES = 4096 + 64 };

/* ---- BPE ---- */

static enum aq_status begin_merges(const char *path, json_t *model, struct aq_bpe *bpe)
{
    static const char *const empty[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const json_t *dropout = json_object_get(model, "dropout");
    (void)bpe;
    if (json_is_number(dropout) && json_number_value(dropout) != 0)
        return aq_fail(AQ_INVAL, AQ_BPE_AREA, "%s: model.dropout is not supported", path);
    for (size_t i = 0; i < sizeof empty / sizeof empty[0]; i++)
        if (json_string_length(json_object_get(model, empty[i])) > 0)
            return aq_fail(AQ_INVAL, AQ_BPE_AREA, "%s: model.%s is not supported", path, empty[i]);
    return AQ_OK;
}

static enum aq_status read_merges(const char *path, json_t *list, struct aq_bpe_vocabulary *v)
{
    char place[MODEL_PLACE_BYTES];
    size_t i;
    json_t *one;
    snprintf(place, sizeof place, "%s: model.merges", path);
    if (!json_is_array(list)) return aq_fail(AQ_CORRUPT, AQ_BPE_AREA, "%s is not a list", place);
    AQ_TRY(aq_bpe_merges_open(v, json_array_size(list)));
    json_array_foreach(list, i, one)
    {
        json_t *left = json_array_get(one, 0), *right = json_array_get(one, 1);
        const char *text = json_string_value(one), *space = text ? strchr(text, ' ') : NULL;
        if (json_array_size(one) == 2 && json_is_string(left) && json_is_string(right)) {
            AQ_TRY(aq_bpe_merges_add(place, json_string_value(left), json_string_length(left), json_string_value(right),
                                     json_string_length(right), i + 1, v));
        } else if (space) {
            AQ_TRY(aq_bpe_merges_add(place, text, (size_t)(space - text), space + 1, strlen(space + 1), i + 1, v));
        } else
            return aq_fail(AQ_CORRUPT, AQ_BPE_AREA, "%s:%zu: is not two tokens with a space between", place, i + 1);
    }
    return AQ_OK;
}

/* The tokens of single bytes, by their names. */
static void find_byte_tokens(json_t *model, struct aq_bpe_vocabulary *v)
{
    char name[8];
    v->fallback = json_is_true(json_object_get(model, "byte_fallback"));
    for (unsigned i = 0; i < 256; i++) {
        snprintf(name, sizeof name, "<0x%02X>", i);
        v->byte_token[i] = aq_bpe_vocabulary_find(v, name, 6);
    }
}

/* Of characters: what becomes of those that are no tokens. */
static enum aq_status read_unknown(const char *path, json_t *model, struct aq_bpe_vocabulary *v)
{
    const json_t *unknown = json_object_get(model, "unk_token");
    v->fuse_unknown = json_is_true(json_object_get(model, "fuse_unk"));
    find_byte_tokens(model, v);
    if (!json_is_string(unknown)) return AQ_OK;
    v->unknown = aq_bpe_vocabulary_find(v, json_string_value(unknown), json_string_length(unknown));
    if (v->unknown == AQ_BPE_NONE)
        return aq_fail(AQ_CORRUPT, AQ_BPE_AREA, "%s: model.unk_token \"%.64s\" is not in model.vocab", path,
                       json_string_value(unknown));
    return AQ_OK;
}

static enum aq_status finish_merges(const char *path, json_t *model, struct aq_bpe *bpe)
{
    char place[MODEL_PLACE_BYTES];
    struct aq_bpe_vocabulary *v = &bpe->vocabulary;
    snprintf(place, sizeof place, "%s: model.vocab", path);
    AQ_TRY(v->characters ? read_unknown(path, model, v) : aq_bpe_vocabulary_bytes(place, v));
    AQ_TRY(read_merges(path, json_object_get(model, "merges"), v));
    bpe->whole_words = json_is_true(json_object_get(model, "ignore_merges"));
    return AQ_OK;
}

/* ---- Unigram ---- */

/* A character that is no piece has the least score of all, and so much less. */
static const double unknown_penalty = 10;

static enum aq_status take_piece(const char *path, json_t *entry, size_t i, json_t *names, double *score)
{
    const json_t *name = json_array_get(entry, 0), *value = json_array_get(entry, 1);
    if (json_array_size(entry) != 2 || !json_is_string(name) || json_string_length(name) == 0)
        return aq_fail(AQ_CORRUPT, AQ_BPE_AREA,
                       "%s: model.vocab[%zu] is not a piece and its score, [\"the\", -3.5]. Save the tokenizer again",
                       path, i);
    if (!json_is_number(value) || !isfinite(json_number_value(value)))
        return aq_fail(AQ_CORRUPT, AQ_BPE_AREA,
                       "%s: model.vocab[%zu]: the score of the piece \"%.64s\" is not a finite number. Set it, or save "
                       "the tokenizer again",
                       path, i, json_string_value(name));
    const json_t *known = json_object_get(names, json_string_value(name));
    if (known)
        return aq_fail(AQ_CORRUPT, AQ_BPE_AREA,
                       "%s: model.vocab[%zu] and model.vocab[%lld] are the same piece \"%.64s\". Rename the one that "
                       "is not used",
                       path, i, (long long)json_integer_value(known), json_string_value(name));
    if (json_object_set_new(names, json_string_value(name), json_integer((json_int_t)i)) != 0)
        return aq_fail(AQ_NOMEM, AQ_BPE_AREA, "%s: no memory for the pieces", path);
    *score = json_number_value(value);
    return AQ_OK;
}

static enum aq_status begin_unigram(const char *path, json_t *model, struct aq_bpe *bpe)
{
    json_t *list = json_object_get(model, "vocab"), *entry, *names;
    size_t i;
    double least = INFINITY;
    enum aq_status status = AQ_OK;
    if (!json_is_array(list) || json_array_size(list) == 0 || json_array_size(list) > AQ_BPE_TOKENS_MAX)
        return aq_fail(AQ_CORRUPT, AQ_BPE_AREA,
                       "%s: model.vocab is not a list of 1 to %d pieces with their scores. Save the tokenizer again",
                       path, (int)AQ_BPE_TOKENS_MAX);
    if (json_is_number(json_object_get(model, "alpha")) || json_is_number(json_object_get(model, "nbest_size")))
        return aq_fail(
            AQ_INVAL, AQ_BPE_AREA,
            "%s: model.alpha and model.nbest_size draw pieces at random, which is not supported. Remove them", path);
    AQ_TRY(AQ_NEW(json_array_size(list), &bpe->pieces.scores));
    names = json_object();
    json_array_foreach(list, i, entry)
    {
        AQ_TRY_GOTO(take_piece(path, entry, i, names, &bpe->pieces.scores[i]), out);
        least = bpe->pieces.scores[i] < least ? bpe->pieces.scores[i] : least;
    }
    bpe->pieces.unknown_score = least - unknown_penalty;
    if (json_object_set(model, "vocab", names) != 0) status = aq_fail(AQ_NOMEM, AQ_BPE_AREA, "%s: no memory", path);
out:
    json_decref(names);
    return status;
}

static enum aq_status finish_unigram(const char *path, json_t *model, struct aq_bpe *bpe)
{
    struct aq_bpe_vocabulary *v = &bpe->vocabulary;
    const json_t *unknown = json_object_get(model, "unk_id");
    const json_int_t pieces = (json_int_t)json_object_size(json_object_get(model, "vocab"));
    if (unknown && !json_is_null(unknown)) {
        if (!json_is_integer(unknown) || json_integer_value(unknown) < 0 || json_integer_value(unknown) >= pieces)
            return aq_fail(AQ_CORRUPT, AQ_BPE_AREA,
                           "%s: model.unk_id is not one of the %lld pieces of model.vocab. Set it to the place of the "
                           "unknown token in that list, from 0 on",
                           path, (long long)pieces);
        v->unknown = (uint32_t)json_integer_value(unknown);
    }
    if (v->characters) find_byte_tokens(model, v);
    if (!v->characters && json_is_true(json_object_get(model, "byte_fallback")))
        return aq_fail(AQ_INVAL, AQ_BPE_AREA,
                       "%s: model.byte_fallback with ByteLevel is not supported. Set it to false", path);
    return aq_bpe_pieces_open(bpe);
}

/* ---- WordPiece, WordLevel ---- */

static enum aq_status begin_words(const char *path, json_t *model, struct aq_bpe *bpe)
{
    (void)path, (void)model, (void)bpe; /* what they have is looked at behind the vocabulary */
    return AQ_OK;
}

static enum aq_status finish_words(const char *path, json_t *model, struct aq_bpe *bpe)
{
    struct aq_bpe_vocabulary *v = &bpe->vocabulary;
    const json_t *given = json_object_get(model, "unk_token");
    const char *unknown = given ? json_string_value(given) : bpe->model == AQ_BPE_WORDS ? "<unk>" : "[UNK]";
    v->unknown = unknown ? aq_bpe_vocabulary_find(v, unknown, strlen(unknown)) : AQ_BPE_NONE;
    if (v->unknown == AQ_BPE_NONE)
        return aq_fail(
            AQ_CORRUPT, AQ_BPE_AREA,
            "%s: model.unk_token \"%.64s\" is not in model.vocab. Add it there, or name the token for unknown "
            "words",
            path, unknown ? unknown : "");
    return AQ_OK;
}

static enum aq_status finish_wordpiece(const char *path, json_t *model, struct aq_bpe *bpe)
{
    const json_t *given = json_object_get(model, "continuing_subword_prefix");
    const json_t *most = json_object_get(model, "max_input_chars_per_word");
    const char *prefix = given ? json_string_value(given) : "##";
    struct aq_bpe_pieces *pieces = &bpe->pieces;
    AQ_TRY(finish_words(path, model, bpe));
    if (!prefix || (most && (!json_is_integer(most) || json_integer_value(most) < 0)))
        return aq_fail(AQ_CORRUPT, AQ_BPE_AREA, "%s: model.%s. Save the tokenizer again", path,
                       prefix ? "max_input_chars_per_word is not a number of characters"
                              : "continuing_subword_prefix is not a string");
    const json_int_t characters = most ? json_integer_value(most) : 100;
    pieces->characters_max = characters < UINT32_MAX ? (uint32_t)characters : UINT32_MAX;
    AQ_TRY(aq_bpe_pieces_open(bpe));
    bool there = true;
    for (; *prefix && there; prefix++) {
        pieces->continuing = aq_piece_trie_next(pieces->trie, pieces->continuing, (uint8_t)*prefix);
        there = pieces->continuing != 0;
    }
    if (!there) pieces->continuing = AQ_PIECE_NONE;
    return AQ_OK;
}

/* ---- all of them ---- */

struct model_type {
    const char *name;
    enum aq_bpe_model model;
    enum aq_status (*begin)(const char *path, json_t *model, struct aq_bpe *bpe);
    enum aq_status (*finish)(const char *path, json_t *model, struct aq_bpe *bpe); /* the vocabulary is there */
};

static const struct model_type types[] = {{"BPE", AQ_BPE_MERGES, begin_merges, finish_merges},
                                          {"Unigram", AQ_BPE_UNIGRAM, begin_unigram, finish_unigram},
                                          {"WordPiece", AQ_BPE_WORDPIECE, begin_words, finish_wordpiece},
                                          {"WordLevel", AQ_BPE_WORDS, begin_words, finish_words}};

/* Files of the first versions have no type. */
static const char *type_of(const json_t *model)
{
    const json_t *type = json_object_get(model, "type");
    if (type) return json_string_value(type);
    if (json_object_get(model, "merges")) return "BPE";
    if (json_is_array(json_object_get(model, "vocab"))) return "Unigram";
    return json_object_get(model, "continuing_subword_prefix") ? "WordPiece" : NULL;
}

static enum aq_status find_type(const char *path, json_t *model, const struct model_type **out)
{
    const char *name = type_of(model);
    if (!json_is_object(model))
        return aq_fail(AQ_CORRUPT, AQ_BPE_AREA, "%s: has no model. Save the tokenizer again", path);
    for (size_t i = 0; name && i < sizeof types / sizeof types[0]; i++) {
        if (strcmp(types[i].name, name) != 0) continue;
        *out = &types[i];
        return AQ_OK;
    }
    return aq_fail(AQ_INVAL, AQ_BPE_AREA,
                   "%s: model.type is %.40s, which is not supported; these are: BPE Unigram WordPiece WordLevel", path,
                   name ? name : "not set");
}

enum aq_status huggingface_model_begin(const char *path, json_t *model, struct aq_bpe *bpe)
{
    const struct model_type *type = NULL;
    AQ_TRY(find_type(path, model, &type));
    bpe->model = type->model;
    return type->begin(path, model, bpe);
}

enum aq_status huggingface_model(const char *path, json_t *model, bool bytes, const struct aq_bpe_added *added,
                                 uint32_t added_count, struct aq_bpe *bpe)
{
    char place[MODEL_PLACE_BYTES];
    const struct model_type *type = types; /* found by begin, which may have changed the keys */
    while (type->model != bpe->model)
        type++;
    snprintf(place, sizeof place, "%s: model.vocab", path);
    AQ_TRY(
        aq_bpe_vocabulary_open(place, json_object_get(model, "vocab"), !bytes, added, added_count, &bpe->vocabulary));
    return type->finish(path, model, bpe);
}
