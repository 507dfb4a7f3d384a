/*
 * fuzz_dataset.c -- any bytes as the files of a data set: texts, cut into words and tokens and back, and into samples;
 * lines of JSON; CIFAR-10's records.
 *
 * Byte 0: T; byte 1: samples left out; byte 2: the most that are taken; byte 3: end-of-text tokens (1), lines of JSON
 * (2), records (4), zeros behind them up to a whole one (8); then the files, with ff between them (which is no UTF-8
 * and stands for nothing in a text).
 */
#include <stdio.h>
#include <string.h>

#include "data_files.h"
#include "fuzz.h"
#include "stages/dataset.h"

enum { FILES_MAX = 3, TOKENS_MAX = 256, BYTES_MAX = 1 << 16, RECORD_BYTES = 3073, PIXELS = 3072 };

static struct aq_tokenizer *bytes_kind, *gpt2_kind;

static void start(void)
{
    static const char *const merges[] = {"h e", "l l", "he ll", "hell o", "\xC4\xA0 w", "o r", "a a", "aa a"};
    if (bytes_kind) return;
    fuzz_quiet();
    fuzz_make_folder("gpt2");
    data_write_vocabulary(fuzz_path("gpt2"), merges, sizeof merges / sizeof *merges);
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
        AQ_ASSERT(aq_dataset_id(dataset, i) == config->skip + i);
    }
    AQ_ASSERT(aq_dataset_get(dataset, count, (void *const[AQ_BATCH_FIELDS_MAX]){tokens, targets}) == AQ_INVAL);
    aq_dataset_close(dataset);
}

/* Whatever opens has labels of ten classes and pixels of -1 to 1. */
static void records_of(const struct aq_dataset_config *config)
{
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
        AQ_ASSERT(label >= 0 && label < 10);
        for (int p = 0; p < PIXELS; p++)
            AQ_ASSERT(pixels[p] >= -1.0f && pixels[p] <= 1.0f);
    }
    aq_dataset_close(dataset);
}

static void write_file(const char *name, struct fuzz_piece piece, bool pad)
{
    static uint8_t padded[BYTES_MAX + RECORD_BYTES];
    const size_t whole = (piece.count + RECORD_BYTES - 1) / RECORD_BYTES * RECORD_BYTES;
    memset(padded, 0, pad ? whole : 0);
    if (piece.count) memcpy(padded, piece.bytes, piece.count);
    fuzz_write(name, padded, pad ? whole : piece.count);
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
    config.end_of_text = how & 1;
    if (!(how & 6)) round_trip(gpt2_kind, rest);
    while (config.path_count < FILES_MAX && (rest.count > 0 || config.path_count == 0)) {
        const char *name = names[(how & 2) != 0][config.path_count];
        write_file(name, fuzz_cut(&rest, 0xff), (how & 12) == 12);
        paths[config.path_count++] = fuzz_path(name);
    }
    if (how & 4) {
        config.kind = "cifar10";
        records_of(&config);
        return 0;
    }
    config.tokenizer = gpt2_kind;
    samples_of(&config);
    config.tokenizer = bytes_kind;
    samples_of(&config);
    return 0;
}
