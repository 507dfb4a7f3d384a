/*
 * dataset_text.c -- text files as blocks of T tokens with stable ids: `tokens`, and the same one further, `targets`.
 *
 * A file whose name ends in .jsonl is an object a line: the string `text` of each is a text of its own, and the
 * tokenizer's end-of-text token (a line feed where it has none) stands behind it. Empty lines are passed over.
 *
 * All tokens lie in one array; block i is tokens[i*T .. i*T+T], the last of which is only a target, so that N tokens
 * give (N-1)/T blocks. What the ids mean depends on files, tokenizer and T alone.
 */
#include <jansson.h>
#include <string.h>

#include "dataset_kind.h"
#include "tokenizer.h"

#define AREA           DATASET_AREA
#define FILE_BYTES_MAX (UINT64_C(1) << 40) /* a TiB: beyond any memory, and far from running over a size_t */

struct text {
    int32_t *tokens;
    uint32_t T;
};

static uint32_t fields(uint32_t T, struct aq_field out[AQ_BATCH_FIELDS_MAX])
{
    out[0] = (struct aq_field){.name = "tokens", .type = AQ_FIELD_I32, .count = T};
    out[1] = (struct aq_field){.name = "targets", .type = AQ_FIELD_I32, .count = T};
    return 2;
}

static enum aq_status add_tokens(const struct aq_tokenizer *tokenizer, const char *text, size_t bytes,
                                 struct aq_token_list *all)
{
    size_t count = 0;
    int32_t *tokens = NULL;
    enum aq_status status;
    AQ_TRY(aq_tokenizer_encode(tokenizer, text, bytes, &tokens, &count));
    if (!all->at) { /* the first text's tokens are not copied: often there is no other */
        *all = (struct aq_token_list){.at = tokens, .count = count, .capacity = count};
        return AQ_OK;
    }
    AQ_TRY_GOTO(aq_token_list_reserve(all, count), out);
    memcpy(all->at + all->count, tokens, count * sizeof(int32_t));
    all->count += count;
out:
    aq_free(tokens);
    return status;
}

static enum aq_status add_end(const struct aq_tokenizer *tokenizer, struct aq_token_list *all)
{
    const int32_t end = aq_tokenizer_end_of_text(tokenizer);
    if (end < 0) return add_tokens(tokenizer, "\n", 1, all);
    AQ_TRY(aq_token_list_reserve(all, 1));
    all->at[all->count++] = end;
    return AQ_OK;
}

/* The `text` of one line of a .jsonl file, and the end of a text behind it. */
static enum aq_status add_line(const struct aq_tokenizer *tokenizer, const char *path, uint64_t number,
                               const char *line, size_t bytes, struct aq_token_list *all)
{
    json_error_t error;
    json_t *object = json_loadb(line, bytes, JSON_ALLOW_NUL, &error);
    const json_t *text = json_object_get(object, "text");
    enum aq_status status;
    if (!object)
        status = aq_fail(AQ_CORRUPT, AREA, "%s:%llu: no JSON: %s", path, (unsigned long long)number, error.text);
    else if (!json_is_string(text))
        status = aq_fail(AQ_CORRUPT, AREA, "%s:%llu: has no \"text\" that is a string; each line is an object with one",
                         path, (unsigned long long)number);
    else
        status = add_tokens(tokenizer, json_string_value(text), json_string_length(text), all);
    json_decref(object);
    return status == AQ_OK ? add_end(tokenizer, all) : status;
}

static enum aq_status add_lines(const struct aq_tokenizer *tokenizer, const char *path, const char *text, size_t bytes,
                                struct aq_token_list *all)
{
    uint64_t number = 1;
    for (size_t at = 0; at < bytes; number++) {
        const char *end = memchr(text + at, '\n', bytes - at);
        const size_t line = end ? (size_t)(end - text) - at : bytes - at;
        if (line > strspn(text + at, " \t\r")) AQ_TRY(add_line(tokenizer, path, number, text + at, line, all));
        at += line + 1;
    }
    return AQ_OK;
}

/* Appends the tokens of one file. */
static enum aq_status add_file(const struct aq_dataset_config *config, const struct aq_tokenizer *tokenizer,
                               const char *path, struct aq_token_list *all)
{
    uint8_t *text;
    size_t bytes;
    const size_t before = all->count, length = strlen(path);
    const bool lines = length > 6 && strcmp(path + length - 6, ".jsonl") == 0;
    AQ_TRY(aq_file_read(AREA, path, FILE_BYTES_MAX, &text, &bytes));
    enum aq_status status = lines ? add_lines(tokenizer, path, (const char *)text, bytes, all)
                                  : add_tokens(tokenizer, (const char *)text, bytes, all);
    aq_free(text);
    AQ_TRY(status);
    if (config->end_of_text && !lines) AQ_TRY(add_end(tokenizer, all));
    aq_log(AREA, 2, "file=%s bytes=%zu tokens=%zu", path, bytes, all->count - before);
    return AQ_OK;
}

static enum aq_status check_config(const struct aq_dataset_config *config, const struct aq_tokenizer *tokenizer)
{
    if (config->T == 0) return aq_fail(AQ_INVAL, AREA, "a block must have at least 1 token, T is 0");
    if (config->end_of_text && aq_tokenizer_end_of_text(tokenizer) < 0)
        return aq_fail(AQ_INVAL, AREA, "the tokenizer has no end-of-text token to put between files");
    return AQ_OK;
}

static enum aq_status read_files(const struct aq_dataset_config *config, const struct aq_tokenizer *tokenizer,
                                 struct text *text, struct dataset_facts *facts)
{
    AQ_TRY(check_config(config, tokenizer));
    struct aq_token_list all = {0};
    enum aq_status status = AQ_OK;
    for (uint32_t i = 0; i < config->path_count && status == AQ_OK; i++)
        status = add_file(config, tokenizer, config->paths[i], &all);
    text->tokens = all.at;
    text->T = config->T;
    AQ_TRY(status);
    const uint64_t blocks = all.count ? (all.count - 1) / config->T : 0;
    if (blocks <= config->skip)
        return aq_fail(AQ_INVAL, AREA,
                       "%s%s: %llu tokens make %llu blocks of T=%u (each takes T+1), %llu left out: none remains",
                       config->paths[0], config->path_count > 1 ? " and others" : "", (unsigned long long)all.count,
                       (unsigned long long)blocks, (unsigned)config->T, (unsigned long long)config->skip);
    *facts = (struct dataset_facts){.samples = blocks,
                                    .digest = aq_digest(all.at, all.count * sizeof(int32_t)),
                                    .dropped = all.count - 1 - blocks * config->T,
                                    .outputs = aq_tokenizer_vocabulary(tokenizer)};
    aq_log(AREA, 2, "tokens=%zu samples=%llu dropped_tokens=%llu", all.count, (unsigned long long)blocks,
           (unsigned long long)facts->dropped);
    return AQ_OK;
}

static enum aq_status text_open(const struct aq_dataset_config *config, void **state, struct dataset_facts *facts)
{
    struct aq_tokenizer *own = NULL;
    void *memory;
    AQ_TRY(aq_alloc(sizeof(struct text), &memory));
    *state = memory;
    if (!config->tokenizer) AQ_TRY(aq_tokenizer_open(config->tokenizer_kind, config->tokenizer_path, &own));
    const enum aq_status status = read_files(config, own ? own : config->tokenizer, memory, facts);
    aq_tokenizer_close(own);
    return status;
}

static void text_close(void *state)
{
    struct text *text = state;
    aq_free(text->tokens);
    aq_free(text);
}

static void get(const void *state, uint64_t sample, void *const values[AQ_BATCH_FIELDS_MAX])
{
    const struct text *text = state;
    const int32_t *block = text->tokens + sample * text->T;
    memcpy(values[0], block, text->T * sizeof(int32_t));
    memcpy(values[1], block + 1, text->T * sizeof(int32_t));
}

/* Samples overlap by one token. */
static uint64_t bytes(uint32_t T, uint64_t samples)
{
    return (samples * T + 2) * sizeof(int32_t);
}

extern const struct aq_dataset_kind aq_dataset_text;
const struct aq_dataset_kind aq_dataset_text = {.name = "text",
                                                .what = "block",
                                                .fields = fields,
                                                .open = text_open,
                                                .close = text_close,
                                                .get = get,
                                                .bytes = bytes};
