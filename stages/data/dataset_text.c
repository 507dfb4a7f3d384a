/*
 * dataset_text.c -- text files as blocks of T tokens with stable ids: `tokens`, and the same one further, `targets`.
 *
 * In a file of records (data_record.h: .jsonl, .json, .csv and the like) the string `text` of each is one text,
 * followed by the tokenizer's end-of-text token (a line feed if it has none). Empty lines are passed over. Packed files
 * give the tokens, and the digest, of what they hold.
 *
 * Texts are mapped, tokenized on all cores and, if there is a cache folder, kept there for the next run with the same
 * texts and tokenizer: text_tokens.h. All tokens are in one array; block i is tokens[i*T .. i*T+T], the last of which
 * is only a target, so that N tokens give (N-1)/T blocks. The meaning of an id depends only on files, tokenizer and T.
 *
 * If the tokenizer starts texts with special tokens (data.bos), each block has them in front of its T tokens, in places
 * whose targets are -1. With places_max the block has as many fewer tokens of the text. The cache folder has only the
 * tokens of the text.
 *
 * If the texts are much longer than samples_max needs, only their start is read, into memory (tokens_wanted): 100 GB
 * are not read for a thousand samples. Count and digest then cover the tokens that are used.
 */
#include <string.h>
#include <unistd.h>

#include "aqsgd/base/given_file.h"
#include "data_record.h"
#include "dataset_kind.h"
#include "text_tokens.h"
#include "tokenizer.h"

#define AREA DATASET_AREA

/* Texts of fewer bytes are read whole in a second or two, and more tokens than these are kept in a file. */
enum { LONG_BYTES = 64 << 20, WANTED_MAX = 16 << 20, BYTES_A_TOKEN = 16 /* more than texts have */ };
enum { LOOK_BYTES = 64 << 10 };

struct text {
    struct text_ids ids;
    uint32_t T; /* tokens of the text in a block; `ahead` tokens are put in front of them */
    uint32_t ahead;
    int32_t before[AQ_TOKENIZER_FRAME_MAX];
};

/*
 * The form of a mapped file, and whether it is packed. A packed one's form follows from its name and, if that is .json,
 * from its unpacked start.
 */
static enum aq_status form_of(const char *path, const struct text_map *map, enum data_form *form, bool *packed)
{
    const struct data_how how = {.fallback = DATA_TEXT, .named = true};
    const size_t head = map->bytes < DATA_HEAD_BYTES ? map->bytes : DATA_HEAD_BYTES;
    struct data_reader *reader;
    *packed = data_is_packed(map->at, head);
    if (!*packed) {
        *form = data_form_of(path, map->at, head, DATA_TEXT);
        return data_check_format(path, map->at, head);
    }
    AQ_TRY(data_reader_open(path, &how, &reader));
    *form = data_reader_form(reader);
    data_reader_close(reader);
    return AQ_OK;
}

/* Source of the tokens and settings. */
struct job {
    const struct aq_dataset_config *config;
    const struct aq_tokenizer *tokenizer;
    struct data_roles roles;
    struct data_faults faults;
};

static enum aq_status add_records(struct job *job, const struct text_how *how, const char *path, struct text_sink *sink)
{
    const struct data_how asked = {.fallback = DATA_TEXT, .quotes = job->config->quotes, .named = true};
    struct data_reader *reader;
    AQ_TRY(data_reader_open(path, &asked, &reader));
    const enum aq_status status = text_records(how, reader, path, sink);
    data_reader_close(reader);
    return status;
}

/* A text or lines of JSON, in pieces. */
static enum aq_status add_pieces(const struct text_how *how, const char *path, const struct text_map *map, bool packed,
                                 struct text_sink *sink)
{
    struct text_source source;
    if (packed)
        AQ_TRY(text_source_packed(path, &source));
    else
        text_source_mapped(path, map, &source);
    if (!how->lines && data_looks_like_lines(source.at, source.bytes < LOOK_BYTES ? source.bytes : LOOK_BYTES))
        aq_log(AREA, AQ_LOG_WARNING,
               "%s: its lines are JSON objects and are trained as plain text, with braces and quotes; rename it to "
               ".jsonl to train only the texts in them",
               path);
    const enum aq_status status = text_tokens(how, &source, sink);
    text_source_close(&source);
    return status;
}

/* Tokens of one file to the sink. */
static enum aq_status add_file(struct job *job, const char *path, struct text_sink *sink)
{
    const struct aq_dataset_config *config = job->config;
    struct text_map map;
    enum data_form form;
    bool packed;
    const uint64_t before = sink->count;
    const int32_t end = aq_tokenizer_end_of_text(job->tokenizer);
    AQ_TRY(text_map_open(path, &map));
    const size_t bytes = map.bytes;
    enum aq_status status = form_of(path, &map, &form, &packed);
    const struct text_how how = {.tokenizer = job->tokenizer,
                                 .lines = form == DATA_LINES,
                                 .threads = config->threads,
                                 .roles = &job->roles,
                                 .faults = &job->faults};
    if (status == AQ_OK)
        status = form == DATA_TEXT || form == DATA_LINES ? add_pieces(&how, path, &map, packed, sink)
                                                         : add_records(job, &how, path, sink);
    text_map_close(&map);
    if (status == AQ_OK && config->end_of_text && form == DATA_TEXT) status = text_sink_add(sink, &end, 1);
    AQ_TRY(status);
    aq_log(AREA, 2, "file=%s form=%s bytes=%zu tokens=%llu", path, data_form_name(form), bytes,
           (unsigned long long)(sink->count - before));
    return AQ_OK;
}

static enum aq_status add_all(struct job *job, struct text_sink *sink)
{
    const struct aq_dataset_config *config = job->config;
    for (uint32_t i = 0; i < config->path_count && !(sink->limit && sink->count >= sink->limit); i++)
        AQ_TRY(add_file(job, config->paths[i], sink));
    return data_faults_end(&job->faults);
}

static enum aq_status add_files(const struct aq_dataset_config *config, const struct aq_tokenizer *tokenizer,
                                struct text_sink *sink)
{
    struct job job = {.config = config, .tokenizer = tokenizer, .faults = {.allowed = config->skip_invalid}};
    enum aq_status status = data_roles_open(config->names, &job.roles);
    if (status == AQ_OK) status = add_all(&job, sink);
    data_roles_close(&job.roles);
    return status;
}

/* The number of tokens that samples_max needs of long texts; 0: they are read whole. Only the sizes of files decide. */
static enum aq_status tokens_wanted(const struct aq_dataset_config *config, uint32_t T, uint64_t *out)
{
    uint64_t bytes = 0;
    *out = 0;
    if (!config->samples_max || config->samples_max > WANTED_MAX || config->skip > WANTED_MAX) return AQ_OK;
    const uint64_t wanted = (config->samples_max + config->skip) * T + 1;
    for (uint32_t i = 0; i < config->path_count; i++) {
        struct text_map map;
        AQ_TRY(text_map_open(config->paths[i], &map));
        bytes += map.bytes;
        text_map_close(&map);
    }
    if (bytes > LONG_BYTES && wanted <= WANTED_MAX && wanted < bytes / BYTES_A_TOKEN) *out = wanted;
    return AQ_OK;
}

/* Of everything that the tokens follow from. A byte order mark is no part of a text. */
static enum aq_status key_of(const struct aq_dataset_config *config, const struct aq_tokenizer *tokenizer,
                             uint64_t *key)
{
    AQ_TRY(aq_tokenizer_digest(tokenizer, key));
    *key = aq_digest_seeded(&config->end_of_text, sizeof config->end_of_text, *key);
    if (config->names) *key = aq_digest_seeded(config->names, strlen(config->names), *key);
    if (config->skip_invalid) *key = aq_digest_seeded(&config->skip_invalid, sizeof config->skip_invalid, *key);
    if (config->quotes) *key = aq_digest_seeded(&config->quotes, sizeof config->quotes, *key);
    for (uint32_t i = 0; i < config->path_count; i++) {
        struct text_map map;
        enum data_form form;
        bool packed;
        AQ_TRY(text_map_open(config->paths[i], &map));
        const enum aq_status status = form_of(config->paths[i], &map, &form, &packed);
        const size_t mark = data_mark(map.at, map.bytes);
        const uint64_t about[2] = {map.bytes - mark, (uint64_t)form + (packed ? 16 : 0)};
        if (status == AQ_OK)
            *key = aq_digest_seeded(map.at + mark, map.bytes - mark, aq_digest_seeded(about, sizeof about, *key));
        text_map_close(&map);
        AQ_TRY(status);
    }
    return AQ_OK;
}

static enum aq_status tokens_in_memory(const struct aq_dataset_config *config, const struct aq_tokenizer *tokenizer,
                                       uint64_t limit, struct text_ids *out)
{
    struct text_sink sink = {.file = -1, .limit = limit};
    const enum aq_status status = add_files(config, tokenizer, &sink);
    const size_t count = limit && sink.list.count > limit ? (size_t)limit : sink.list.count; /* whatever the cores */
    *out = (struct text_ids){.at = sink.list.at, .count = count, .owned = sink.list.at};
    return status;
}

/* Tokens of another text under this key would be found again by every later run. */
static enum aq_status check_unchanged(const struct aq_dataset_config *config, const struct aq_tokenizer *tokenizer,
                                      uint64_t key)
{
    uint64_t now;
    AQ_TRY(key_of(config, tokenizer, &now));
    if (now == key) return AQ_OK;
    return aq_fail(AQ_CORRUPT, AREA, "%s%s: changed while it was read; start again when no program writes to it",
                   config->paths[0], config->path_count > 1 ? " and others" : "");
}

/* Made and put into the cache; *kept false: that cannot be written. */
static enum aq_status tokens_keep(const struct aq_dataset_config *config, const struct aq_tokenizer *tokenizer,
                                  uint64_t key, struct text_ids *out, bool *kept)
{
    struct text_sink sink;
    *kept = false;
    if (text_cache_begin(config->cache, key, &sink) != AQ_OK) return AQ_OK;
    enum aq_status status = add_files(config, tokenizer, &sink);
    if (status == AQ_OK) status = check_unchanged(config, tokenizer, key);
    if (status != AQ_OK) {
        text_cache_drop(config->cache, &sink);
        return sink.unwritten ? AQ_OK : status;
    }
    *kept = text_cache_end(config->cache, key, &sink) == AQ_OK && text_cache_get(config->cache, key, out) == AQ_OK;
    return AQ_OK;
}

/* From the cache, or made and put there. If it cannot be written, the run continues without it. */
static enum aq_status tokens_by_cache(const struct aq_dataset_config *config, const struct aq_tokenizer *tokenizer,
                                      struct text_ids *out)
{
    uint64_t key;
    bool kept;
    AQ_TRY(key_of(config, tokenizer, &key));
    if (text_cache_get(config->cache, key, out) == AQ_OK) return AQ_OK;
    AQ_TRY(tokens_keep(config, tokenizer, key, out, &kept));
    if (kept) return AQ_OK;
    aq_log(AREA, AQ_LOG_WARNING, "cannot store tokens in %s (data.cache): this process tokenizes again", config->cache);
    aq_error_clear();
    return tokens_in_memory(config, tokenizer, 0, out);
}

static enum aq_status check_config(const struct aq_dataset_config *config, const struct aq_tokenizer *tokenizer)
{
    if (config->T == 0) return aq_fail(AQ_INVAL, AREA, "a block must have at least 1 token, T is 0");
    if (config->end_of_text && aq_tokenizer_end_of_text(tokenizer) < 0)
        return aq_fail(AQ_INVAL, AREA, "the tokenizer has no end-of-text token to put between files");
    return AQ_OK;
}

/* The tokens in front of a block, and how many tokens of the text it has room for. */
static enum aq_status choose_block(const struct aq_dataset_config *config, const struct aq_tokenizer *tokenizer,
                                   struct text *text)
{
    AQ_TRY(check_config(config, tokenizer));
    AQ_TRY(aq_tokenizer_begins(tokenizer, config->begin, text->before, &text->ahead));
    text->T = config->T;
    if (!config->places_max || text->T + text->ahead <= config->places_max) return AQ_OK;
    const uint32_t most = config->places_max > config->T ? config->places_max : config->T;
    if (most <= text->ahead)
        return aq_fail(AQ_INVAL, AREA, "T=%u (train.T) leaves no room for text after the %u tokens at the start",
                       (unsigned)config->T, (unsigned)text->ahead);
    text->T = most - text->ahead;
    return AQ_OK;
}

static uint64_t digest_of(const struct text *text)
{
    const uint64_t digest = aq_digest(text->ids.at, text->ids.count * sizeof(int32_t));
    return text->ahead ? aq_digest_seeded(text->before, text->ahead * sizeof(int32_t), digest) : digest;
}

/* Texts that are read whole must not be sparse files: terabytes of zeroes that take no disk. */
static enum aq_status check_whole(const struct aq_dataset_config *config)
{
    for (uint32_t i = 0; i < config->path_count; i++) {
        int file;
        AQ_TRY(aq_given_open(AREA, config->paths[i], &file));
        const enum aq_status status = aq_given_whole(AREA, config->paths[i], file);
        close(file);
        AQ_TRY(status);
    }
    return AQ_OK;
}

static enum aq_status read_files(const struct aq_dataset_config *config, const struct aq_tokenizer *tokenizer,
                                 struct text *text, struct dataset_facts *facts)
{
    AQ_TRY(choose_block(config, tokenizer, text));
    const uint32_t T = text->T;
    uint64_t wanted;
    AQ_TRY(tokens_wanted(config, T, &wanted));
    if (!wanted) AQ_TRY(check_whole(config));
    AQ_TRY(config->cache && config->cache[0] && !wanted ? tokens_by_cache(config, tokenizer, &text->ids)
                                                        : tokens_in_memory(config, tokenizer, wanted, &text->ids));
    const struct text_ids all = text->ids;
    AQ_TRY(aq_tokenizer_within(tokenizer, all.at, all.count, config->tokens_max));
    AQ_TRY(aq_tokenizer_within(tokenizer, text->before, text->ahead, config->tokens_max));
    const uint64_t blocks = all.count ? (all.count - 1) / T : 0;
    if (all.count == 0)
        return aq_fail(AQ_INVAL, AREA, "%s%s: there is no text to learn from: is the file empty?", config->paths[0],
                       config->path_count > 1 ? " and others" : "");
    if (blocks <= config->skip)
        return aq_fail(
            AQ_INVAL, AREA,
            "%s%s: %llu tokens make %llu blocks of T=%u (each takes T+1), and %llu are left out, so no sample "
            "remains: name more text, or lower train.T",
            config->paths[0], config->path_count > 1 ? " and others" : "", (unsigned long long)all.count,
            (unsigned long long)blocks, (unsigned)T, (unsigned long long)config->skip);
    *facts = (struct dataset_facts){.samples = blocks,
                                    .digest = digest_of(text),
                                    .dropped = all.count - 1 - blocks * T,
                                    .places = T + text->ahead,
                                    .targets = T,
                                    .outputs = dataset_vocabulary(config, tokenizer),
                                    .vocabulary = dataset_vocabulary(config, tokenizer)};
    aq_log(AREA, 2, "tokens=%llu samples=%llu dropped_tokens=%llu", (unsigned long long)all.count,
           (unsigned long long)blocks, (unsigned long long)facts->dropped);
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
    text_ids_close(&text->ids);
    aq_free(text);
}

static void get(const void *state, uint64_t sample, void *const values[AQ_BATCH_FIELDS_MAX])
{
    const struct text *text = state;
    const int32_t *block = text->ids.at + sample * text->T;
    int32_t *tokens = values[0], *targets = values[1];
    for (uint32_t i = 0; i < text->ahead; i++) {
        tokens[i] = text->before[i];
        targets[i] = -1;
    }
    memcpy(tokens + text->ahead, block, text->T * sizeof(int32_t));
    memcpy(targets + text->ahead, block + 1, text->T * sizeof(int32_t));
}

/* Samples overlap by one token. */
static uint64_t bytes(uint32_t T, const struct aq_dataset_image *image, uint64_t samples)
{
    (void)image;
    return (samples * T + 2) * sizeof(int32_t);
}

extern const struct aq_dataset_kind aq_dataset_text;
const struct aq_dataset_kind aq_dataset_text = {.name = "text",
                                                .what = "block",
                                                .fields = data_text_fields,
                                                .open = text_open,
                                                .close = text_close,
                                                .get = get,
                                                .bytes = bytes};
