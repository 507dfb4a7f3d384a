/*
 * fuzz_records.c -- any bytes as a data file of each form: packed or not, records are read to the end or refused, and
 * what a kind of data set makes of them has lengths and tokens in range, alike when it is read again.
 *
 * Byte 0: the name's ending (% 8), quotes (8), named columns (16), text (32), instruct (64), tsv (128); byte 1: bad
 * lines that are skipped; then the file.
 */
#include <string.h>

#include "data_record.h"
#include "data_roles.h"
#include "fuzz.h"
#include "stages/dataset.h"

enum { BYTES_MAX = 1 << 15, RECORDS_MAX = 1 << 20, T = 32 };

static struct aq_tokenizer *tokenizer;

static void start(void)
{
    if (tokenizer) return;
    fuzz_quiet();
    AQ_ASSERT(aq_tokenizer_open("bytes", NULL, &tokenizer) == AQ_OK);
}

static void read_records(const char *path, uint8_t how)
{
    const struct data_how asked = {.fallback = (enum data_form)(how % 5), .quotes = how & 8, .named = how & 16};
    struct data_reader *reader;
    uint64_t line = 0, records = 0;
    bool ends = false;
    if (data_reader_open(path, &asked, &reader) != AQ_OK) return;
    while (!ends) {
        struct data_record record;
        json_t *object = NULL;
        const enum aq_status status = data_reader_next(reader, &record, &ends);
        AQ_ASSERT(record.line >= line && ++records < RECORDS_MAX);
        line = record.line;
        if (status != AQ_OK) continue;
        if (!record.at) break;
        for (uint32_t i = 0; i < record.cell_count; i++)
            AQ_ASSERT(record.cells[i].at >= record.at &&
                      record.cells[i].at + record.cells[i].bytes <= record.at + record.bytes);
        if (data_record_object(reader, &record, 0, &object) == AQ_OK) AQ_ASSERT(json_is_object(object));
        json_decref(object);
    }
    data_reader_close(reader);
}

/* The digest of the data set, 0 where it is refused. */
static uint64_t open_set(const struct aq_dataset_config *config)
{
    struct aq_dataset *dataset;
    const enum aq_status status = aq_dataset_open(config, &dataset);
    fuzz_told(status == AQ_OK);
    if (status != AQ_OK) return 0;
    const uint32_t *lengths = aq_dataset_lengths(dataset);
    for (uint64_t i = 0; lengths && i < aq_dataset_count(dataset); i++)
        AQ_ASSERT(lengths[i] >= 1 && lengths[i] <= T);
    const uint64_t digest = aq_dataset_digest(dataset);
    aq_dataset_close(dataset);
    return digest;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"r.jsonl", "r.json",     "r.csv",      "r.tsv",
                                        "r.txt",   "r.jsonl.gz", "r.json.zst", "r.csv.gz"};
    struct fuzz_piece rest = {data, size};
    char why[256];
    start();
    if (size > BYTES_MAX) return 0;
    const uint8_t how = fuzz_byte(&rest), skipped = fuzz_byte(&rest);
    const char *path = fuzz_path(names[how % 8]);
    fuzz_write(names[how % 8], rest.bytes, rest.count);
    read_records(path, how);
    struct aq_dataset_config config = {.paths = &path,
                                       .path_count = 1,
                                       .tokenizer = tokenizer,
                                       .T = T,
                                       .threads = 1,
                                       .quotes = how & 8,
                                       .skip_invalid = skipped,
                                       .columns = {.text = how & 16 ? "text" : "1", .label = how & 16 ? "label" : "2"}};
    const char *kind = aq_dataset_recognise(&config, why, sizeof why);
    config.kind = how & 32 ? "text" : how & 64 ? "instruct" : how & 128 ? "tsv" : kind;
    if (strncmp(config.kind, "cifar", 5) == 0) return 0;
    AQ_ASSERT(open_set(&config) == open_set(&config));
    return 0;
}
