/*
 * tokenizer_huggingface.c -- tokenizer.json, the one file in which Hugging Face's `tokenizers` keeps all of a
 * tokenizer.
 *
 *     added_tokens    found in the text itself                          bpe_added.c
 *     normalizer      a text into another                               huggingface_steps.c
 *     pre_tokenizer   a text into words                                 huggingface_steps.c
 *     model           a word into tokens                                huggingface_model.c
 *     post_processor  tokens around a text                              huggingface_frame.c
 *     decoder         tokens into a text; over bytes nothing is to do   huggingface_decoder.c
 *
 * Each of these files has a table of the types that it reads; docs/TOKENIZERS.md lists them. Another type is refused by
 * its name and place. `truncation` and `padding` are matters of a batch and not read. The end of a text is
 * tokenizer_config.json's eos_token, else the first of some names that is there.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "dataset_file.h"
#include "huggingface.h"
#include "python_json.h"

enum { PATH_BYTES_MAX = 4096 };

/* ---- added tokens ---- */

static enum aq_status read_added(const char *path, json_t *root, struct aq_bpe_added **out, uint32_t *count)
{
    json_t *list = json_object_get(root, "added_tokens"), *one, *vocab;
    size_t i;
    void *memory;
    vocab = json_object_get(json_object_get(root, "model"), "vocab");
    if (!list || json_is_null(list)) return AQ_OK;
    if (!json_is_array(list) || json_array_size(list) > AQ_BPE_TOKENS_MAX)
        return aq_fail(AQ_CORRUPT, AQ_BPE_AREA, "%s: added_tokens is not a list", path);
    AQ_TRY(aq_alloc(json_array_size(list) * sizeof(struct aq_bpe_added), &memory));
    struct aq_bpe_added *added = *out = memory;
    json_array_foreach(list, i, one)
    {
        const json_t *content = json_object_get(one, "content"), *id = json_object_get(one, "id");
        if (!json_is_string(content) || !json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) >= AQ_BPE_TOKENS_MAX || json_string_length(content) == 0)
            return aq_fail(AQ_CORRUPT, AQ_BPE_AREA, "%s: added_tokens[%zu] has no content, or no id in 0..%d", path, i,
                           AQ_BPE_TOKENS_MAX - 1);
        added[i] = (struct aq_bpe_added){
            .content = json_string_value(content),
            .bytes = (uint32_t)json_string_length(content),
            .token = (uint32_t)json_integer_value(id),
            .single_word = json_is_true(json_object_get(one, "single_word")),
            .strip_left = json_is_true(json_object_get(one, "lstrip")),
            .strip_right = json_is_true(json_object_get(one, "rstrip")),
            .normalized = json_is_true(json_object_get(one, "normalized")),
        };
        const json_t *known = json_object_get(vocab, added[i].content);
        if (known && (!json_is_integer(known) || json_integer_value(known) != (json_int_t)added[i].token))
            return aq_fail(AQ_CORRUPT, AQ_BPE_AREA,
                           "%s: added_tokens[%zu] \"%.64s\" has the id %u, and another one in model.vocab", path, i,
                           added[i].content, (unsigned)added[i].token);
        *count = (uint32_t)i + 1;
    }
    return AQ_OK;
}

/* ---- the beginning and the end of a text ---- */

static int32_t token_named(const char *name, const struct aq_bpe *bpe, const struct aq_bpe_added *added, uint32_t count)
{
    for (uint32_t i = 0; name && i < count; i++)
        if (strcmp(added[i].content, name) == 0) return (int32_t)added[i].token;
    const uint32_t token = name ? aq_bpe_vocabulary_find(&bpe->vocabulary, name, strlen(name)) : AQ_BPE_NONE;
    return token == AQ_BPE_NONE ? -1 : (int32_t)token;
}

/* The token that a key of tokenizer_config.json names, as a text or as an object with its content; -1: none. */
static int32_t token_of(const json_t *settings, const char *key, const struct aq_bpe *bpe,
                        const struct aq_bpe_added *added, uint32_t count)
{
    const json_t *value = json_object_get(settings, key);
    return token_named(json_string_value(json_is_object(value) ? json_object_get(value, "content") : value), bpe, added,
                       count);
}

static enum aq_status find_marks(const char *folder, const struct aq_bpe *bpe, const struct aq_bpe_added *added,
                                 uint32_t count, struct aq_tokenizer *tokenizer)
{
    static const char *const names[] = {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]"};
    char path[PATH_BYTES_MAX];
    json_t *settings = NULL;
    int length = snprintf(path, sizeof path, "%s/tokenizer_config.json", folder);
    if (length < (int)sizeof path && access(path, F_OK) == 0) AQ_TRY(huggingface_load(path, &settings));
    int32_t end = token_of(settings, "eos_token", bpe, added, count);
    tokenizer->begin = token_of(settings, "bos_token", bpe, added, count);
    json_decref(settings);
    for (size_t i = 0; end < 0 && i < sizeof names / sizeof names[0]; i++)
        end = token_named(names[i], bpe, added, count);
    tokenizer->end_of_text = end;
    return AQ_OK;
}

/* ---- all of it ---- */

enum aq_status huggingface_load(const char *path, json_t **out)
{
    uint8_t *text;
    size_t bytes;
    json_error_t error;
    AQ_TRY(aq_file_read(AQ_BPE_AREA, path, AQ_BPE_FILE_BYTES_MAX, &text, &bytes));
    if (aq_file_check(AQ_BPE_AREA, path, text, bytes) != AQ_OK) {
        aq_free(text);
        return AQ_CORRUPT;
    }
    json_t *root = python_json_load((const char *)text, bytes, JSON_REJECT_DUPLICATES, &error);
    aq_free(text);
    if (!root) return aq_fail(AQ_CORRUPT, AQ_BPE_AREA, "%s:%d:%d: %s", path, error.line, error.column, error.text);
    if (!json_is_object(root)) {
        json_decref(root);
        return aq_fail(AQ_CORRUPT, AQ_BPE_AREA, "%s: is not a JSON object", path);
    }
    *out = root;
    return AQ_OK;
}

static enum aq_status note_specials(json_t *root, const struct aq_bpe_added *added, uint32_t count,
                                    struct aq_tokenizer *tokenizer)
{
    const json_t *list = json_object_get(root, "added_tokens");
    for (uint32_t i = 0; i < count; i++)
        if (json_is_true(json_object_get(json_array_get(list, i), "special")))
            AQ_TRY(aq_tokenizer_note_special(tokenizer, (int32_t)added[i].token));
    return AQ_OK;
}

static enum aq_status read_all(const char *folder, const char *path, json_t *root, struct aq_bpe_added **added,
                               struct aq_tokenizer *tokenizer)
{
    struct aq_bpe *bpe = tokenizer->state;
    uint32_t count = 0;
    bool bytes = false;
    AQ_TRY(huggingface_model_begin(path, json_object_get(root, "model"), bpe));
    AQ_TRY(read_added(path, root, added, &count));
    AQ_TRY(huggingface_steps(path, root, bpe, &bytes));
    AQ_TRY(huggingface_model(path, json_object_get(root, "model"), bytes, *added, count, bpe));
    if (!bytes) AQ_TRY(huggingface_decoder(path, json_object_get(root, "decoder"), &bpe->vocabulary));
    AQ_TRY(aq_bpe_finder_open(bpe, *added, count, false, &bpe->raw));
    AQ_TRY(aq_bpe_finder_open(bpe, *added, count, true, &bpe->normalized));
    tokenizer->vocabulary = bpe->vocabulary.count;
    AQ_TRY(note_specials(root, *added, count, tokenizer));
    AQ_TRY(huggingface_frame(path, json_object_get(root, "post_processor"), tokenizer->vocabulary, &tokenizer->frame));
    return find_marks(folder, bpe, *added, count, tokenizer);
}

static void huggingface_close(struct aq_tokenizer *tokenizer)
{
    aq_bpe_close(tokenizer->state);
    aq_free(tokenizer->state);
}

static enum aq_status huggingface_open(struct aq_tokenizer *tokenizer, const char *folder)
{
    char path[PATH_BYTES_MAX];
    struct aq_bpe_added *added = NULL;
    json_t *root = NULL;
    if (!folder) return aq_fail(AQ_INVAL, AQ_BPE_AREA, "this tokenizer needs the folder of its tokenizer.json");
    const int length = snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    if (length < 0 || length >= (int)sizeof path)
        return aq_fail(AQ_INVAL, AQ_BPE_AREA, "the folder's name \"%.64s...\" is too long", folder);
    AQ_TRY(huggingface_load(path, &root));
    enum aq_status status = aq_alloc(sizeof(struct aq_bpe), &tokenizer->state);
    if (status == AQ_OK) {
        status = read_all(folder, path, root, &added, tokenizer);
        if (status != AQ_OK) huggingface_close(tokenizer);
    }
    aq_free(added);
    json_decref(root);
    return status;
}

static enum aq_status published(const char *folder, uint32_t index, char *from, size_t bytes, const char **name)
{
    static const char *const names[] = {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"};
    uint32_t there = 0;
    *name = NULL;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const int length = snprintf(from, bytes, "%s/%s", folder, names[i]);
        if (length < 0 || (size_t)length >= bytes)
            return aq_fail(AQ_INVAL, AQ_BPE_AREA, "the folder's name \"%.64s...\" is too long", folder);
        if (access(from, F_OK) != 0 || there++ != index) continue;
        *name = names[i];
        break;
    }
    return AQ_OK;
}

const struct aq_tokenizer_kind aq_tokenizer_huggingface = {
    .about = {.name = "huggingface", .files = "tokenizer.json", .marks = "tokenizer.json"},
    .open = huggingface_open,
    .close = huggingface_close,
    .encode = aq_bpe_encode,
    .token = aq_bpe_token,
    .first = aq_bpe_first_token,
    .cut = aq_bpe_cut_whole,
    .published = published,
};
