/*
 * gguf_tokens.c -- a tokenizer's files as the keys tokenizer.ggml.* that llama.cpp reads.
 *
 *     byte-level BPE        model "gpt2": tokens as the files write them, merges, the pre-tokenizer by its name
 *     BPE of characters     model "llama": tokens with scores; llama.cpp merges the pair whose result scores best
 *     "bytes", of aqpipe    model "gpt2" without merges: a token per byte
 *
 * Of "llama" a score is less the rank of the first merge that makes the token. That is the same encoding if every two
 * tokens that together are a token are a merge, and merges of a token follow each other, as in files made of
 * SentencePiece's models. It is checked; other merges are refused with the token.
 *
 * A row of the embedding without a token is "[PAD7]", of the kind unused. Tokens without a row are left out.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bpe.h"
#include "dataset_file.h"
#include "gguf_private.h"
#include "huggingface.h"

/* llama_token_type. */
enum token_type {
    TOKEN_NORMAL = 1,
    TOKEN_UNKNOWN = 2,
    TOKEN_CONTROL = 3,
    TOKEN_USER = 4,
    TOKEN_UNUSED = 5,
    TOKEN_BYTE = 6
};

enum { PATH_BYTES = 4096, HOLE_BYTES = 24 };

struct token {
    const char *text; /* NULL: a hole */
    int32_t type;
    float score;
};

struct words {
    char path[PATH_BYTES]; /* of the file, for messages */
    json_t *root;          /* of tokenizer.json or vocab.json, which own the texts */
    struct token *tokens;
    uint32_t count; /* rows of the embedding */
    struct gguf_pre pre;
    struct aq_bpe_text merges; /* "a b" with a zero behind each */
    uint32_t merge_count;
    bool strips;
};

static enum aq_status words_room(struct words *words, uint32_t count)
{
    AQ_TRY(AQ_NEW(count, &words->tokens));
    words->count = count;
    for (uint32_t i = 0; i < count; i++)
        words->tokens[i] = (struct token){.type = TOKEN_UNUSED};
    return AQ_OK;
}

static void words_free(struct words *words)
{
    json_decref(words->root);
    aq_free(words->tokens);
    aq_bpe_text_free(&words->merges);
}

/* A token by its number; one without a row is left out. */
static void take(struct words *words, const char *text, json_int_t id, enum token_type type)
{
    if (id < 0 || id >= (json_int_t)words->count) return;
    words->tokens[id].text = text;
    words->tokens[id].type = (int32_t)type;
}

static void take_vocabulary(struct words *words, json_t *vocab)
{
    const char *text;
    json_t *id;
    json_object_foreach(vocab, text, id) take(words, text, json_integer_value(id), TOKEN_NORMAL);
}

static enum aq_status add_merge(struct words *words, const char *left, size_t left_bytes, const char *right,
                                size_t right_bytes)
{
    AQ_TRY(aq_bpe_text_add(&words->merges, left, left_bytes));
    AQ_TRY(aq_bpe_text_add(&words->merges, " ", 1));
    AQ_TRY(aq_bpe_text_add(&words->merges, right, right_bytes));
    words->merge_count++;
    return aq_bpe_text_add(&words->merges, "", 1);
}

/* ---- tokenizer.json ---- */

static enum aq_status take_merges(struct words *words, const json_t *list)
{
    size_t i;
    json_t *one;
    json_array_foreach(list, i, one)
    {
        const json_t *left = json_array_get(one, 0), *right = json_array_get(one, 1);
        const char *text = json_string_value(one), *space = text ? strchr(text, ' ') : NULL;
        if (space)
            AQ_TRY(add_merge(words, text, (size_t)(space - text), space + 1, strlen(space + 1)));
        else
            AQ_TRY(add_merge(words, json_string_value(left), json_string_length(left), json_string_value(right),
                             json_string_length(right)));
    }
    return AQ_OK;
}

/* A token that merges can make stays one of the vocabulary, unless it is a special one. */
static void take_added(struct words *words, const json_t *list, const json_t *vocab)
{
    size_t i;
    json_t *one;
    json_array_foreach(list, i, one)
    {
        const char *text = json_string_value(json_object_get(one, "content"));
        if (!text) continue; /* the file has changed since it was checked */
        const bool special = json_is_true(json_object_get(one, "special"));
        const bool spaces = strstr(text, "\xE2\x96\x81") && json_object_get(vocab, text); /* never so in a text */
        if (special || !spaces)
            take(words, text, json_integer_value(json_object_get(one, "id")), special ? TOKEN_CONTROL : TOKEN_USER);
    }
}

/* Do added tokens take the spaces behind them as Phi-3's do? All special ones, except three that must be there. */
static bool strips_of(const json_t *list)
{
    static const char *const others[] = {"<unk>", "<s>", "<|endoftext|>"};
    uint32_t seen = 0, ends = 0;
    size_t i;
    json_t *one;
    json_array_foreach(list, i, one)
    {
        const char *text = json_string_value(json_object_get(one, "content"));
        bool other = false;
        for (size_t k = 0; k < sizeof others / sizeof others[0]; k++)
            other = other || strcmp(text, others[k]) == 0;
        if (json_is_true(json_object_get(one, "rstrip")) == other) return false;
        seen += other;
        ends += strcmp(text, "</s>") == 0;
    }
    return seen == sizeof others / sizeof others[0] && ends == 1;
}

/* The token of a merge's result. text: "a b". */
static json_int_t result_of(const json_t *vocab, const char *text, struct aq_bpe_text *joined)
{
    const char *space = strchr(text, ' ');
    joined->count = 0;
    if (aq_bpe_text_add(joined, text, (size_t)(space - text)) != AQ_OK ||
        aq_bpe_text_add(joined, space + 1, strlen(space + 1) + 1) != AQ_OK)
        return -1;
    const json_t *id = json_object_get(vocab, (const char *)joined->at);
    return id ? json_integer_value(id) : -1;
}

/* In how many ways are two tokens together this one? The text is cut between characters, and is whole again then. */
static uint64_t splits_of(const json_t *vocab, char *text)
{
    uint64_t count = 0;
    for (char *at = text + 1; *text && *at; at++) {
        const char first = *at;
        if (((uint8_t)first & 0xC0) == 0x80 || !json_object_get(vocab, at)) continue;
        *at = 0;
        count += json_object_get(vocab, text) != NULL;
        *at = first;
    }
    return count;
}

static enum aq_status refuse_merges(const struct words *words, const char *text)
{
    return aq_fail(AQ_INVAL, GGUF_AREA,
                   "%s: the tokenizer cannot be written as GGUF: llama.cpp merges tokens by scores, and the merges of "
                   "\"%.64s\" are not those of a SentencePiece model. Export it without --gguf",
                   words->path, text);
}

static enum aq_status check_splits(const struct words *words, const json_t *vocab, const char *text, uint64_t ways)
{
    char *copy;
    AQ_TRY(aq_alloc_text(text, &copy));
    const uint64_t splits = splits_of(vocab, copy);
    aq_free(copy);
    return splits == ways ? AQ_OK : refuse_merges(words, text);
}

/* Scores from merges: `ways` counts the merges of each token. */
static enum aq_status rank(struct words *words, const json_t *vocab, uint32_t *ways)
{
    struct aq_bpe_text joined = {.count = 0};
    json_int_t before = -1;
    const char *text = (const char *)words->merges.at;
    enum aq_status status = AQ_OK;
    for (uint32_t i = 0; i < words->merge_count && status == AQ_OK; i++, text += strlen(text) + 1) {
        const json_int_t id = result_of(vocab, text, &joined);
        if (id < 0 || id >= (json_int_t)words->count) continue; /* it has no row */
        if (ways[id] == 0)
            words->tokens[id].score = -(float)i;
        else if (before != id)
            status = refuse_merges(words, words->tokens[id].text);
        ways[id]++;
        before = id;
    }
    aq_bpe_text_free(&joined);
    return status;
}

static enum aq_status take_scores(struct words *words, const json_t *model)
{
    const json_t *vocab = json_object_get(model, "vocab"), *unknown = json_object_get(model, "unk_token");
    const char *unknown_text = json_string_value(unknown);
    unsigned byte;
    void *ways;
    AQ_TRY(aq_alloc(words->count * sizeof(uint32_t), &ways));
    enum aq_status status = rank(words, vocab, ways);
    for (uint32_t i = 0; i < words->count && status == AQ_OK; i++) {
        struct token *token = &words->tokens[i];
        if (!token->text) continue;
        if (unknown_text && strcmp(token->text, unknown_text) == 0) token->type = TOKEN_UNKNOWN;
        if (token->type != TOKEN_NORMAL) continue;
        if (strlen(token->text) == 6 && sscanf(token->text, "<0x%2X>", &byte) == 1)
            token->type = TOKEN_BYTE;
        else
            status = check_splits(words, vocab, token->text, ((const uint32_t *)ways)[i]);
    }
    aq_free(ways);
    return status;
}

static enum aq_status from_huggingface(const struct aq_gguf_about *about, struct words *words)
{
    snprintf(words->path, sizeof words->path, "%s/tokenizer.json", about->tokenizer_path);
    AQ_TRY(huggingface_load(words->path, &words->root));
    json_t *model = json_object_get(words->root, "model"), *vocab = json_object_get(model, "vocab");
    if (!json_is_object(vocab) || !json_is_array(json_object_get(model, "merges")))
        return aq_fail(AQ_INVAL, GGUF_AREA,
                       "%s: the tokenizer cannot be written as GGUF: model.type is not BPE. Export it without --gguf",
                       words->path);
    AQ_TRY(gguf_pre_find(words->path, words->root, &words->pre));
    take_vocabulary(words, vocab);
    take_added(words, json_object_get(words->root, "added_tokens"), vocab);
    words->strips = strips_of(json_object_get(words->root, "added_tokens"));
    AQ_TRY(take_merges(words, json_object_get(model, "merges")));
    return words->pre.name ? AQ_OK : take_scores(words, model);
}

/* ---- vocab.json and merges.txt ---- */

static enum aq_status take_lines(struct words *words, char *text)
{
    char *next, *space;
    for (char *line = text; line && *line; line = next) {
        next = strchr(line, '\n');
        if (next) *next++ = 0;
        line[strcspn(line, "\r")] = 0;
        space = strchr(line, ' ');
        if (!space || (line == text && strncmp(line, "#version", 8) == 0)) continue;
        AQ_TRY(add_merge(words, line, (size_t)(space - line), space + 1, strlen(space + 1)));
    }
    return AQ_OK;
}

static enum aq_status from_gpt2(const struct aq_gguf_about *about, struct words *words)
{
    const struct aq_tokenizer_kind *kind = aq_tokenizer_kind_find(about->tokenizer);
    const char *name;
    uint8_t *text;
    size_t bytes;
    AQ_TRY(kind->published(about->tokenizer_path, 0, words->path, sizeof words->path, &name));
    AQ_TRY(huggingface_load(words->path, &words->root));
    take_vocabulary(words, words->root);
    const json_t *end = json_object_get(words->root, "<|endoftext|>");
    if (end) take(words, "<|endoftext|>", json_integer_value(end), TOKEN_CONTROL);
    AQ_TRY(kind->published(about->tokenizer_path, 1, words->path, sizeof words->path, &name));
    AQ_TRY(aq_file_read(GGUF_AREA, words->path, AQ_BPE_FILE_BYTES_MAX, &text, &bytes));
    const enum aq_status status = take_lines(words, (char *)text);
    aq_free(text);
    words->pre.name = "gpt-2";
    return status;
}

/* ---- a token per byte ---- */

static enum aq_status from_bytes(const struct aq_gguf_about *about, struct words *words)
{
    struct aq_bpe_text text = {.count = 0};
    char writing[8];
    enum aq_status status = AQ_OK;
    (void)about;
    words->root = json_object();
    for (uint32_t byte = 0; byte < 256 && status == AQ_OK; byte++) {
        const uint8_t one = (uint8_t)byte;
        text.count = 0;
        status = aq_bpe_write(&one, 1, &text);
        if (status != AQ_OK) break;
        snprintf(writing, sizeof writing, "%.*s", (int)text.count, (const char *)text.at);
        if (json_object_set_new(words->root, writing, json_integer((json_int_t)byte)) != 0)
            status = aq_fail(AQ_NOMEM, GGUF_AREA, "no memory for the tokens of bytes");
    }
    aq_bpe_text_free(&text);
    AQ_TRY(status);
    take_vocabulary(words, words->root);
    words->pre.name = "gpt-2";
    return AQ_OK;
}

/* ---- all of them ---- */

static const struct {
    const char *kind;
    enum aq_status (*read)(const struct aq_gguf_about *about, struct words *words);
} readers[] = {{"huggingface", from_huggingface}, {"gpt2", from_gpt2}, {"bytes", from_bytes}};

static void put_tokens(const struct words *words, struct gguf_keys *keys)
{
    char hole[HOLE_BYTES];
    gguf_array(keys, "tokenizer.ggml.tokens", GGUF_STRING, words->count);
    for (uint32_t i = 0; i < words->count; i++) {
        const char *text = words->tokens[i].text;
        snprintf(hole, sizeof hole, "[PAD%u]", i);
        gguf_text(keys, text ? text : hole, strlen(text ? text : hole));
    }
    gguf_array(keys, "tokenizer.ggml.token_type", GGUF_I32, words->count);
    for (uint32_t i = 0; i < words->count; i++)
        gguf_bytes(keys, &words->tokens[i].type, sizeof(int32_t));
    if (!words->pre.name) {
        gguf_array(keys, "tokenizer.ggml.scores", GGUF_F32, words->count);
        for (uint32_t i = 0; i < words->count; i++)
            gguf_bytes(keys, &words->tokens[i].score, sizeof(float));
        return;
    }
    gguf_array(keys, "tokenizer.ggml.merges", GGUF_STRING, words->merge_count);
    const char *merge = (const char *)words->merges.at;
    for (uint32_t i = 0; i < words->merge_count; i++, merge += strlen(merge) + 1)
        gguf_text(keys, merge, strlen(merge));
}

/* The tokens that start and end a text; a token that ends only answers is llama.cpp's end of a turn. */
static void put_marks(const struct aq_gguf_about *about, const struct aq_tokenizer *tokenizer,
                      const struct words *words, struct gguf_keys *keys)
{
    const struct aq_tokenizer_frame *frame = aq_tokenizer_frame(tokenizer);
    const int32_t rows = (int32_t)words->count;
    const int32_t begin = frame->before_count ? frame->before[0] : tokenizer->begin;
    int32_t end = aq_tokenizer_end_of_text(tokenizer), turn = -1;
    for (uint32_t i = 0; i < about->end_count; i++)
        if (end < 0)
            end = about->ends[i];
        else if (about->ends[i] != end)
            turn = about->ends[i];
    if (begin >= 0 && begin < rows) gguf_u32(keys, "tokenizer.ggml.bos_token_id", (uint32_t)begin);
    if (end >= 0 && end < rows) gguf_u32(keys, "tokenizer.ggml.eos_token_id", (uint32_t)end);
    if (turn >= 0 && turn < rows) gguf_u32(keys, "tokenizer.ggml.eot_token_id", (uint32_t)turn);
    for (int32_t i = 0; i < rows; i++)
        if (words->tokens[i].type == TOKEN_UNKNOWN) gguf_u32(keys, "tokenizer.ggml.unknown_token_id", (uint32_t)i);
    gguf_bool(keys, "tokenizer.ggml.add_bos_token", frame->before_count == 1);
    gguf_bool(keys, "tokenizer.ggml.add_eos_token", frame->after_count == 1 && frame->after[0] == end);
}

static void put_words(const struct aq_gguf_about *about, const struct aq_tokenizer *tokenizer,
                      const struct words *words, struct gguf_keys *keys)
{
    const char *model = words->pre.name ? "gpt2" : "llama", *pre = words->pre.name ? words->pre.name : "default";
    gguf_string(keys, "tokenizer.ggml.model", model, strlen(model));
    gguf_string(keys, "tokenizer.ggml.pre", pre, strlen(pre));
    put_tokens(words, keys);
    if (!words->pre.name) gguf_bool(keys, "tokenizer.ggml.add_space_prefix", words->pre.space_before);
    put_marks(about, tokenizer, words, keys);
}

enum aq_status gguf_tokens(const struct aq_gguf_about *about, struct gguf_keys *keys, bool *strips)
{
    const size_t count = sizeof readers / sizeof readers[0];
    struct aq_tokenizer *tokenizer;
    struct words *words;
    size_t reader = 0;
    while (reader < count && strcmp(readers[reader].kind, about->tokenizer) != 0)
        reader++;
    if (reader == count)
        return aq_fail(AQ_INVAL, GGUF_AREA,
                       "tokenizer %s cannot be written as GGUF; these can: huggingface (BPE), gpt2, bytes. Save the "
                       "tokenizer as tokenizer.json, or export it without --gguf",
                       about->tokenizer);
    /* Opening it checks the files: what is read again below has its form. */
    AQ_TRY(aq_tokenizer_open(about->tokenizer, about->tokenizer_path, &tokenizer));
    enum aq_status status = AQ_NEW(1, &words);
    if (status == AQ_OK) {
        status = words_room(words, about->model->vocabulary);
        if (status == AQ_OK) status = readers[reader].read(about, words);
        if (status == AQ_OK) put_words(about, tokenizer, words, keys);
        *strips = words->strips;
        words_free(words);
        aq_free(words);
    }
    aq_tokenizer_close(tokenizer);
    return status == AQ_OK ? keys->status : status;
}
