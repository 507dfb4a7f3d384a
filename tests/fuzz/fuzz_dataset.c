/*
 * fuzz_dataset.c -- any bytes as the files of a data set: texts, cut into words and tokens and back, and into samples;
 * lines of JSON; CIFAR's records.
 *
 * Byte 0: T; byte 1: samples left out; byte 2: the most that are taken; byte 3: end-of-text tokens (1), lines of JSON
 * (2), records (4) of CIFAR-100 (16), zeros behind them up to a whole one (8), tables (16) with names of columns (32),
 * of labels (64), pairs (128) and labels that are numbers (8), or (16 and 2) conversations, each a sample of its own
 * (32); then the files, with ff between them (which is not UTF-8 and stands for nothing in a text).
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "data_files.h"
#include "fuzz.h"
#include "stages/dataset.h"

enum { FILES_MAX = 3, TOKENS_MAX = 256, BYTES_MAX = 1 << 16, PIXELS = 3072, RECORD_BYTES_MAX = 2 + PIXELS };

static struct aq_tokenizer *bytes_kind, *gpt2_kind;

static void start(void)
{
    static const char *const merges[] = {"h e", "l l", "he ll", "hell o", "\xC4\xA0 w", "o r", "a a", "aa a"};
    if (bytes_kind) return;
    fuzz_quiet();
    fuzz_make_folder("gpt2");
    data_write_vocabulary(fuzz_path("gpt2"), merges, sizeof merges / sizeof *merges);
    static const char chat[] = "{\"chat_template\": \"{% for m in messages %}<{{ m.role }}>{{ m.content }}!{% endfor %}"
                               "{% if add_generation_prompt %}<assistant>{% endif %}\"}";
    fuzz_make_folder("chat");
    fuzz_write("chat/tokenizer_config.json", chat, sizeof chat - 1);
    AQ_ASSERT(aq_tokenizer_open("bytes", NULL, &bytes_kind) == AQ_OK);
    AQ_ASSERT(aq_tokenizer_open("gpt2", fuzz_path("gpt2"), &gpt2_kind) == AQ_OK);
}

/* Whatever the bytes are, decoding gives them back. */
static void round_trip(const struct aq_tokenizer *tokenizer, struct fuzz_piece text)
{
    int32_t *tokens;
    size_t count, bytes;
    char *back;
    AQ_ASSERT(aq_tokenizer_encode(tokenizer, (const char *)text.bytes, text.count, &tokens, &count) == AQ_OK);
    AQ_ASSERT(count <= text.count);
    AQ_ASSERT(aq_tokenizer_decode(tokenizer, tokens, count, &back, &bytes) == AQ_OK);
    AQ_ASSERT(bytes == text.count && (bytes == 0 || memcmp(back, text.bytes, bytes) == 0));
    aq_free(tokens);
    aq_free(back);
}

static void samples_of(const struct aq_dataset_config *config)
{
    struct aq_dataset *dataset;
    int32_t tokens[TOKENS_MAX], targets[TOKENS_MAX];
    const enum aq_status status = aq_dataset_open(config, &dataset);
    fuzz_told(status == AQ_OK);
    if (status != AQ_OK) {
        AQ_ASSERT(status == AQ_INVAL || status == AQ_CORRUPT);
        return;
    }
    const uint64_t count = aq_dataset_count(dataset);
    for (uint64_t i = 0; i < count; i++) {
        AQ_ASSERT(aq_dataset_get(dataset, i, (void *const[AQ_BATCH_FIELDS_MAX]){tokens, targets}) == AQ_OK);
        AQ_ASSERT(memcmp(tokens + 1, targets, (config->T - 1) * sizeof *tokens) == 0);
    }
    AQ_ASSERT(aq_dataset_get(dataset, count, (void *const[AQ_BATCH_FIELDS_MAX]){tokens, targets}) == AQ_INVAL);
    aq_dataset_close(dataset);
}

/* Whatever opens has targets that are the next tokens, or none, and as many as it says. */
static void conversations_of(struct aq_dataset_config *config, uint8_t how)
{
    struct aq_dataset *dataset;
    int32_t tokens[TOKENS_MAX], targets[TOKENS_MAX];
    config->kind = "instruct";
    config->chat = fuzz_path("chat");
    config->whole = how & 32;
    const enum aq_status status = aq_dataset_open(config, &dataset);
    fuzz_told(status == AQ_OK);
    if (status != AQ_OK) return;
    for (uint64_t i = 0; i < aq_dataset_count(dataset); i++) {
        uint32_t counted = 0;
        const uint32_t length = aq_dataset_lengths(dataset)[i];
        AQ_ASSERT(length >= 1 && length <= config->T);
        AQ_ASSERT(aq_dataset_get(dataset, i, (void *const[AQ_BATCH_FIELDS_MAX]){tokens, targets}) == AQ_OK);
        for (uint32_t t = 0; t < config->T; t++) {
            AQ_ASSERT(targets[t] >= -1 && targets[t] < (int32_t)aq_dataset_vocabulary(dataset));
            AQ_ASSERT(targets[t] == -1 || t < length);
            counted += targets[t] >= 0;
        }
        AQ_ASSERT(counted >= 1 && counted == aq_dataset_targets(dataset, i, config->T));
    }
    aq_dataset_close(dataset);
}

/* Whatever opens has lengths, tokens and labels in range, and the same again for the same bytes. */
static void rows_of(struct aq_dataset_config *config, uint8_t how)
{
    struct aq_dataset *dataset;
    int32_t tokens[TOKENS_MAX], label, types[TOKENS_MAX];
    float score;
    void *const values[AQ_BATCH_FIELDS_MAX] = {tokens, &label, &score, types};
    config->kind = "tsv";
    config->field = how & 8 ? "scores" : NULL;
    config->columns = (struct aq_dataset_columns){
        .text = how & 32 ? "t" : "1", .label = how & 32 ? "l" : "2", .names = how & 64 ? "yes, no" : NULL};
    if (how & 128) config->columns.pair = how & 32 ? "p" : "3";
    const enum aq_status status = aq_dataset_open(config, &dataset);
    fuzz_told(status == AQ_OK);
    if (status != AQ_OK) {
        AQ_ASSERT(status == AQ_INVAL || status == AQ_CORRUPT);
        return;
    }
    for (uint64_t i = 0; i < aq_dataset_count(dataset); i++) {
        const uint32_t length = aq_dataset_lengths(dataset)[i];
        AQ_ASSERT(length >= 1 && length <= config->T);
        AQ_ASSERT(aq_dataset_get(dataset, i, values) == AQ_OK);
        const bool labelled = label >= 0 && (uint32_t)label < aq_dataset_outputs(dataset);
        AQ_ASSERT(config->field ? label == -1 && isfinite(score) : labelled);
        for (uint32_t t = 0; t < config->T; t++)
            AQ_ASSERT(tokens[t] >= 0 && (uint32_t)tokens[t] < aq_dataset_vocabulary(dataset));
    }
    aq_dataset_close(dataset);
}

/* Whatever opens has labels of the kind's classes and pixels of -1 to 1. */
static void records_of(const struct aq_dataset_config *config)
{
    const int32_t classes = strcmp(config->kind, "cifar10") == 0 ? 10 : 100;
    static float pixels[PIXELS];
    struct aq_dataset *dataset;
    int32_t label;
    const enum aq_status status = aq_dataset_open(config, &dataset);
    fuzz_told(status == AQ_OK);
    if (status != AQ_OK) {
        AQ_ASSERT(status == AQ_INVAL || status == AQ_CORRUPT);
        return;
    }
    for (uint64_t i = 0; i < aq_dataset_count(dataset); i++) {
        AQ_ASSERT(aq_dataset_get(dataset, i, (void *const[AQ_BATCH_FIELDS_MAX]){pixels, &label}) == AQ_OK);
        AQ_ASSERT(label >= 0 && label < classes);
        for (int p = 0; p < PIXELS; p++)
            AQ_ASSERT(pixels[p] >= -1.0f && pixels[p] <= 1.0f);
    }
    aq_dataset_close(dataset);
}

/* With zeros behind it, up to a multiple of `each`. */
static void write_file(const char *name, struct fuzz_piece piece, size_t each)
{
    static uint8_t padded[BYTES_MAX + RECORD_BYTES_MAX];
    const size_t whole = (piece.count + each - 1) / each * each;
    memset(padded, 0, whole);
    if (piece.count) memcpy(padded, piece.bytes, piece.count);
    fuzz_write(name, padded, whole);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[2][FILES_MAX] = {{"0.txt", "1.txt", "2.txt"}, {"0.jsonl", "1.jsonl", "2.txt"}};
    const char *paths[FILES_MAX];
    struct fuzz_piece rest = {data, size};
    start();
    if (size > BYTES_MAX) return 0;
    struct aq_dataset_config config = {.paths = paths};
    config.T = fuzz_byte(&rest) % TOKENS_MAX;
    config.skip = fuzz_byte(&rest);
    config.samples_max = fuzz_byte(&rest);
    const uint8_t how = fuzz_byte(&rest);
    const size_t each = PIXELS + (how & 16 ? 2 : 1); /* of a record */
    config.end_of_text = how & 1;
    if (!(how & 22)) round_trip(gpt2_kind, rest);
    while (config.path_count < FILES_MAX && (rest.count > 0 || config.path_count == 0)) {
        const char *name = names[(how & 2) != 0][config.path_count];
        write_file(name, fuzz_cut(&rest, 0xff), (how & 12) == 12 ? each : 1);
        paths[config.path_count++] = fuzz_path(name);
    }
    if (how & 4) {
        config.kind = how & 16 ? "cifar100" : "cifar10";
        records_of(&config);
        return 0;
    }
    config.tokenizer = gpt2_kind;
    if ((how & 18) == 18) {
        conversations_of(&config, how);
        return 0;
    }
    if (how & 16) {
        rows_of(&config, how);
        return 0;
    }
    samples_of(&config);
    config.tokenizer = bytes_kind;
    samples_of(&config);
    return 0;
}
