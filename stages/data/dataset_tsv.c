/*
 * dataset_tsv.c -- tables of texts with a label: rows of a TSV, as GLUE has them, of a CSV, or JSON objects
 * (data_record.h).
 *
 * A sample is a line: its text, or a pair of texts, cut to T tokens from the longer text's end, with the tokens of the
 * tokenizer's own template around them ([CLS] and [SEP]); without a template, the end-of-text token (or else a line
 * feed) separates two; `labels`, one number. Columns are named by the first line, or (a file without names) numbered
 * from 1 on, as `cut -f` numbers them. If the task asks for `scores`, the label is a decimal number, as in STS-B, and
 * `labels` is -1; else `scores` is NaN. Other lines are bad ones (data_faults.h). The columns of JSON objects are their
 * members: texts, or numbers.
 *
 * `types` are the types of tokens that the template gives the second text of a pair and what is behind it; all others
 * are 0.
 *
 * Samples have lengths: behind a sample's tokens is padding by the end-of-text token, which is never read. The meaning
 * of an id depends only on files, columns, tokenizer and T.
 */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data_faults.h"
#include "data_label.h"
#include "data_record.h"
#include "dataset_kind.h"
#include "tokenizer.h"

#define AREA   DATASET_AREA
#define SCORES "scores"

enum { SCORE_BYTES = 64, FIELDS_MAX = DATA_FIELDS_MAX, NAME_BYTES = 64, SHOWN = 40 };
enum { NUMBER_BYTES = 40 };

union label {
    int32_t number;
    float score;
};
static_assert(sizeof(union label) == 4, "labels are digested and copied");

struct tsv {
    struct aq_token_list tokens; /* of all samples, one behind the other */
    uint64_t *starts;            /* of each sample in tokens, and the end */
    uint32_t *lengths, *seconds; /* seconds: the first token of each sample's second text */
    int32_t second_type, last_type;
    uint32_t last_count; /* tokens behind a pair */
    union label *labels;
    uint64_t samples, room;
    bool scored;
    uint32_t T, outputs;
    int32_t padding;
};

/* One of the columns that are used, in the current file. */
struct column {
    const char *key, *name; /* name NULL: not wanted */
    uint32_t index;         /* from 0 on             */
};

enum { TEXT, PAIR, LABEL, COLUMNS };

/* State of reading a file. */
struct reader {
    const struct aq_dataset_config *config;
    const struct aq_tokenizer *tokenizer;
    struct tsv *tsv;
    struct column columns[COLUMNS];
    struct aq_tokenizer_frame frame;
    bool named; /* columns are named: each file's first line has the names */
    const char *path;
    uint64_t line;
    bool found; /* where the columns are, in this file */
    struct data_faults faults;
    struct data_cell cells[COLUMNS]; /* of the record in hand */
    char numbers[COLUMNS][NUMBER_BYTES];
};

static uint32_t fields(uint32_t T, const struct aq_dataset_image *image, struct aq_field out[AQ_BATCH_FIELDS_MAX])
{
    (void)image;
    out[0] = (struct aq_field){.name = "tokens", .type = AQ_FIELD_I32, .count = T};
    out[1] = (struct aq_field){.name = "labels", .type = AQ_FIELD_I32, .count = 1};
    out[2] = (struct aq_field){.name = SCORES, .type = AQ_FIELD_F32, .count = 1};
    out[3] = (struct aq_field){.name = "types", .type = AQ_FIELD_I32, .count = T};
    return 4;
}

/* A number of 1 to 6 digits; 0: another text. */
static uint32_t number_of(const char *text)
{
    const size_t digits = strspn(text, "0123456789");
    return digits > 0 && digits < 7 && !text[digits] ? (uint32_t)strtoul(text, NULL, 10) : 0;
}

static enum aq_status columns_of(struct reader *reader)
{
    const struct aq_dataset_columns *asked = &reader->config->columns;
    reader->columns[TEXT] = (struct column){.key = "data.text_column", .name = asked->text};
    reader->columns[PAIR] = (struct column){.key = "data.pair_column", .name = asked->pair};
    reader->columns[LABEL] = (struct column){.key = "data.label_column", .name = asked->label};
    bool numbered = false;
    for (int i = 0; i < COLUMNS; i++) {
        struct column *column = &reader->columns[i];
        if (!column->name && i == PAIR) continue;
        if (!column->name)
            return aq_fail(
                AQ_INVAL, AREA,
                "%s is missing: name the column of %s by its title in the first line, or by its number from 1",
                column->key, reader->config->paths[0]);
        const uint32_t number = number_of(column->name);
        numbered = numbered || number;
        reader->named = reader->named || !number;
        column->index = number ? number - 1 : 0;
        if (number > FIELDS_MAX) return aq_fail(AQ_INVAL, AREA, "%s: %u, at most %d", column->key, number, FIELDS_MAX);
    }
    if (numbered && reader->named)
        return aq_fail(AQ_INVAL, AREA, "data.text_column, pair_column and label_column: names or numbers, not both");
    return AQ_OK;
}

static enum aq_status column_missing(const struct reader *reader, const struct column *column, uint32_t width,
                                     const struct data_cell *first)
{
    return aq_fail(AQ_CORRUPT, AREA, "%s:%llu: %s: there is no column %.*s; the line has %u, the first is \"%.*s\"%s",
                   reader->path, reader->named ? 1ull : (unsigned long long)reader->line, column->key, NAME_BYTES,
                   column->name, width, (int)(first->bytes < SHOWN ? first->bytes : SHOWN), first->at,
                   width > 1                               ? ""
                   : memchr(first->at, ';', first->bytes)  ? " (with ; between: save it with commas)"
                   : memchr(first->at, '\t', first->bytes) ? " (with tabs between: name it .tsv)"
                                                           : "");
}

/* Finds the columns, by the names of the first row or by their numbers. */
static enum aq_status columns_find(struct reader *reader, const struct data_cell *names, uint32_t width)
{
    for (int i = 0; i < COLUMNS; i++) {
        struct column *column = &reader->columns[i];
        if (!column->name) continue;
        uint32_t at = reader->named ? 0 : number_of(column->name) - 1;
        while (reader->named && at < width &&
               (names[at].bytes != strlen(column->name) || memcmp(names[at].at, column->name, names[at].bytes) != 0))
            at++;
        if (at >= width) return column_missing(reader, column, width, &names[0]);
        column->index = at;
    }
    reader->found = true;
    return AQ_OK;
}

static enum aq_status cells_of_row(struct reader *reader, const struct data_record *record)
{
    for (int i = 0; i < COLUMNS; i++)
        if (reader->columns[i].name) reader->cells[i] = record->cells[reader->columns[i].index];
    return AQ_OK;
}

/* The members of an object that are wanted, as texts. */
static enum aq_status cells_of_object(struct reader *reader, const json_t *object)
{
    for (int i = 0; i < COLUMNS; i++) {
        const char *name = reader->columns[i].name;
        const json_t *member = name ? json_object_get(object, name) : NULL;
        char *number = reader->numbers[i];
        if (!name) continue;
        if (json_is_integer(member))
            snprintf(number, NUMBER_BYTES, "%lld", (long long)json_integer_value(member));
        else if (json_is_real(member))
            snprintf(number, NUMBER_BYTES, "%.17g", json_real_value(member));
        else if (!json_is_string(member))
            return aq_fail(AQ_CORRUPT, AREA, "%s:%llu: has no \"%.*s\" that is a text or a number (%s)", reader->path,
                           (unsigned long long)reader->line, NAME_BYTES, name, reader->columns[i].key);
        reader->cells[i] = json_is_string(member)
                               ? (struct data_cell){json_string_value(member), json_string_length(member)}
                               : (struct data_cell){number, strlen(number)};
    }
    return AQ_OK;
}

/* A decimal number, as it is in a table: no blanks, no hexadecimal one, not infinite. */
static enum aq_status score_of(const struct reader *reader, const struct data_cell *field, float *out)
{
    char text[SCORE_BYTES];
    char *end = text;
    if (field->bytes == 0 || field->bytes >= sizeof text)
        return data_label_refuse(reader->path, reader->line, field, "not a number");
    memcpy(text, field->at, field->bytes);
    text[field->bytes] = 0;
    const float value = strtof(text, &end);
    if (*end || strspn(text, "+-.0123456789eE") != field->bytes || !isfinite(value))
        return data_label_refuse(reader->path, reader->line, field, "not a number");
    *out = value;
    return AQ_OK;
}

static enum aq_status label_of(const struct reader *reader, union label *out)
{
    const struct data_cell *field = &reader->cells[LABEL];
    if (reader->tsv->scored) return score_of(reader, field, &out->score);
    return data_label_read(reader->path, reader->line, field, reader->config->columns.names, &out->number);
}

static enum aq_status grow(struct tsv *tsv)
{
    if (tsv->samples < tsv->room) return AQ_OK;
    const uint64_t room = tsv->room ? 2 * tsv->room : 1024;
    void *memory[4] = {NULL};
    const size_t sizes[4] = {sizeof *tsv->starts, sizeof *tsv->lengths, sizeof *tsv->labels, sizeof *tsv->seconds};
    void *const before[4] = {tsv->starts, tsv->lengths, tsv->labels, tsv->seconds};
    enum aq_status status = AQ_OK;
    for (int i = 0; i < 4 && status == AQ_OK; i++)
        status = aq_alloc((room + (i == 0)) * sizes[i], &memory[i]);
    for (int i = 0; i < 4 && status == AQ_OK; i++)
        if (tsv->samples) memcpy(memory[i], before[i], tsv->samples * sizes[i]);
    for (int i = 0; i < 4; i++)
        aq_free(status == AQ_OK ? before[i] : memory[i]);
    AQ_TRY(status);
    tsv->starts = memory[0];
    tsv->lengths = memory[1];
    tsv->labels = memory[2];
    tsv->seconds = memory[3];
    tsv->room = room;
    return AQ_OK;
}

/* The tokens around and between texts. */
static enum aq_status frame_of(struct reader *reader)
{
    const struct aq_tokenizer_frame *frame = aq_tokenizer_frame(reader->tokenizer);
    struct aq_tokenizer_frame *out = &reader->frame;
    *out = *frame;
    reader->tsv->second_type = frame->second_type;
    reader->tsv->last_type = frame->last_type;
    reader->tsv->last_count = frame->after_count;
    if (frame->before_count + frame->between_count + frame->after_count) return AQ_OK;
    out->between_count = 1;
    out->between[0] = reader->tsv->padding;
    if (out->between[0] >= 0) return AQ_OK;
    int32_t *tokens;
    size_t count;
    AQ_TRY(aq_tokenizer_encode(reader->tokenizer, "\n", 1, &tokens, &count));
    out->between_count = count < AQ_TOKENIZER_FRAME_MAX ? (uint32_t)count : AQ_TOKENIZER_FRAME_MAX;
    memcpy(out->between, tokens, out->between_count * sizeof *tokens);
    aq_free(tokens);
    return AQ_OK;
}

/* Number of tokens around and between texts, the same for each sample. */
static size_t frame_count(const struct reader *reader)
{
    const struct aq_tokenizer_frame *frame = &reader->frame;
    return frame->before_count + frame->after_count + (reader->columns[PAIR].name ? frame->between_count : 0);
}

/* Else every text would be cut to nothing, and all samples be alike. */
static enum aq_status check_room(const struct reader *reader)
{
    const size_t around = frame_count(reader), texts = reader->columns[PAIR].name ? 2 : 1;
    if (reader->tsv->T >= around + texts) return AQ_OK;
    return aq_fail(AQ_INVAL, AREA, "T=%u (train.T) has no room for a text: the tokenizer puts %zu tokens around it",
                   reader->tsv->T, around);
}

/* Appends them, as many as there is room for in a sample of T. */
static void put(struct tsv *tsv, const int32_t *tokens, size_t count, uint32_t *length)
{
    if (count > tsv->T - *length) count = tsv->T - *length;
    if (count) memcpy(tsv->tokens.at + tsv->tokens.count, tokens, count * sizeof *tokens);
    tsv->tokens.count += count;
    *length += (uint32_t)count;
}

/* The tokens of one or two texts behind those of the samples before, at most T. */
static enum aq_status tokens_add(struct reader *reader, uint32_t *length)
{
    struct tsv *tsv = reader->tsv;
    const struct aq_tokenizer_frame *frame = &reader->frame;
    const bool pair = reader->columns[PAIR].name != NULL;
    const size_t around = frame_count(reader);
    int32_t *tokens[2] = {NULL, NULL};
    size_t counts[2] = {0, 0};
    enum aq_status status = AQ_OK;
    for (int i = TEXT; i <= (pair ? PAIR : TEXT) && status == AQ_OK; i++) {
        const struct data_cell *field = &reader->cells[i];
        status = aq_tokenizer_encode(reader->tokenizer, field->at, field->bytes, &tokens[i], &counts[i]);
    }
    while (counts[0] + counts[1] + around > tsv->T && counts[0] + counts[1] > 0)
        counts[counts[1] > counts[0]]--;
    *length = 0;
    if (status == AQ_OK) status = aq_token_list_reserve(&tsv->tokens, counts[0] + counts[1] + around);
    if (status == AQ_OK) {
        put(tsv, frame->before, frame->before_count, length);
        put(tsv, tokens[0], counts[0], length);
        if (pair) put(tsv, frame->between, frame->between_count, length);
        tsv->seconds[tsv->samples] = pair ? *length : tsv->T;
        put(tsv, tokens[1], counts[1], length);
        put(tsv, frame->after, frame->after_count, length);
    }
    aq_free(tokens[0]);
    aq_free(tokens[1]);
    return status;
}

static enum aq_status add_row(struct reader *reader)
{
    struct tsv *tsv = reader->tsv;
    union label label = {.number = -1};
    AQ_TRY(label_of(reader, &label));
    for (int i = TEXT; i <= PAIR; i++)
        if (reader->columns[i].name && reader->cells[i].bytes == 0)
            return aq_fail(AQ_CORRUPT, AREA, "%s:%llu: its %s is empty", reader->path, (unsigned long long)reader->line,
                           i == TEXT ? "text" : "second text");
    AQ_TRY(grow(tsv));
    tsv->starts[tsv->samples] = tsv->tokens.count;
    AQ_TRY(tokens_add(reader, &tsv->lengths[tsv->samples]));
    if (tsv->lengths[tsv->samples] == 0)
        return aq_fail(AQ_CORRUPT, AREA, "%s:%llu: the tokenizer makes no token from its text", reader->path,
                       (unsigned long long)reader->line);
    tsv->labels[tsv->samples++] = label;
    tsv->starts[tsv->samples] = tsv->tokens.count;
    const uint32_t outputs = tsv->scored ? 1 : (uint32_t)label.number + 1;
    if (outputs > tsv->outputs) tsv->outputs = outputs;
    return AQ_OK;
}

/* The record's cells into reader->cells, and its row. */
static enum aq_status add_record(struct reader *reader, struct data_reader *file, const struct data_record *record,
                                 json_t **object)
{
    uint32_t width;
    const struct data_cell *names = data_reader_names(file, &width);
    if (!record->cells && !reader->named)
        return aq_fail(AQ_CORRUPT, AREA, "%s:%llu: the columns of JSON objects have names, not numbers (%s)",
                       reader->path, (unsigned long long)reader->line, reader->columns[TEXT].key);
    if (record->cells && !reader->found)
        AQ_TRY(columns_find(reader, reader->named ? names : record->cells, reader->named ? width : record->cell_count));
    if (record->cells) {
        AQ_TRY(cells_of_row(reader, record));
    } else {
        AQ_TRY(data_record_object(file, record, 0, object));
        AQ_TRY(cells_of_object(reader, *object));
    }
    return add_row(reader);
}

/* The next record, or *at_end. A bad one is noted. */
static enum aq_status next_record(struct reader *reader, struct data_reader *file, bool *at_end)
{
    struct aq_error_hold why;
    struct data_record record;
    json_t *object = NULL;
    bool ends;
    const uint64_t samples = reader->tsv->samples;
    const size_t tokens = reader->tsv->tokens.count;
    aq_error_hold(&why);
    enum aq_status status = data_reader_next(file, &record, &ends);
    reader->line = record.line;
    *at_end = status == AQ_OK && !record.at;
    if (status == AQ_OK && record.at) {
        status = add_record(reader, file, &record, &object);
        ends = record.cells && !reader->found;
    }
    aq_error_release(&why);
    json_decref(object);
    if (status == AQ_OK) return AQ_OK;
    reader->tsv->samples = samples;
    reader->tsv->tokens.count = tokens;
    if (ends || !data_fault_is(status)) return aq_fail(status, AREA, "%s", why.text);
    data_faults_note(&reader->faults, reader->path, reader->line, why.text);
    return AQ_OK;
}

static enum aq_status add_file(struct reader *reader)
{
    const struct data_how how = {.fallback = DATA_TSV, .quotes = reader->config->quotes, .named = reader->named};
    struct data_reader *file;
    enum aq_status status = AQ_OK;
    reader->found = false;
    AQ_TRY(data_reader_open(reader->path, &how, &file));
    for (bool at_end = false; status == AQ_OK && !at_end && !data_faults_over(&reader->faults);)
        status = next_record(reader, file, &at_end);
    if (status == AQ_OK && data_reader_quoted(file) > 0)
        aq_log(AREA, AQ_LOG_WARNING,
               "%s: %llu fields are in quotes, and the quotes are kept as text; data.quotes: true removes them",
               reader->path, (unsigned long long)data_reader_quoted(file));
    data_reader_close(file);
    return status;
}

static enum aq_status add_files(struct reader *reader)
{
    for (uint32_t i = 0; i < reader->config->path_count; i++) {
        reader->path = reader->config->paths[i];
        AQ_TRY(add_file(reader));
    }
    return data_faults_end(&reader->faults);
}

static void facts_of(const struct tsv *tsv, uint32_t vocabulary, struct dataset_facts *facts)
{
    const uint64_t tokens = aq_digest(tsv->tokens.at, tsv->tokens.count * sizeof *tsv->tokens.at);
    const uint64_t lengths = aq_digest_seeded(tsv->lengths, tsv->samples * sizeof *tsv->lengths, tokens);
    const uint64_t labels = aq_digest_seeded(tsv->labels, tsv->samples * sizeof *tsv->labels, lengths);
    *facts = (struct dataset_facts){.samples = tsv->samples,
                                    .digest = labels,
                                    .outputs = tsv->outputs,
                                    .vocabulary = vocabulary,
                                    .lengths = tsv->lengths};
}

static enum aq_status tsv_open(const struct aq_dataset_config *config, void **state, struct dataset_facts *facts)
{
    struct aq_tokenizer *own = NULL;
    void *memory;
    if (config->T == 0) return aq_fail(AQ_INVAL, AREA, "a sample must have room for at least 1 token, T is 0");
    AQ_TRY(aq_alloc(sizeof(struct tsv), &memory));
    struct tsv *tsv = *state = memory;
    struct reader *reader;
    AQ_TRY(AQ_NEW(1, &reader));
    *reader = (struct reader){.config = config, .tsv = tsv};
    reader->faults.allowed = config->skip_invalid;
    tsv->scored = config->field && strcmp(config->field, SCORES) == 0;
    enum aq_status status = AQ_OK;
    if (tsv->scored && config->columns.names)
        status = aq_fail(AQ_INVAL, AREA,
                         "data.labels: this task predicts a number, so labels have no names: leave the key out");
    if (status == AQ_OK) status = data_labels_check(config->columns.names);
    if (status == AQ_OK) status = columns_of(reader);
    if (status == AQ_OK && !config->tokenizer)
        status = aq_tokenizer_open(config->tokenizer_kind, config->tokenizer_path, &own);
    if (status == AQ_OK) {
        reader->tokenizer = own ? own : config->tokenizer;
        tsv->T = config->T;
        tsv->padding = aq_tokenizer_end_of_text(reader->tokenizer);
        status = frame_of(reader);
        if (status == AQ_OK) status = check_room(reader);
        if (status == AQ_OK) status = add_files(reader);
    }
    if (status == AQ_OK && tsv->samples == 0)
        status = aq_fail(AQ_INVAL, AREA, "%s: has no line with a sample", config->paths[0]);
    if (status == AQ_OK) {
        const uint32_t named = data_labels_count(config->columns.names);
        if (named > tsv->outputs) tsv->outputs = named; /* whether a file has them all or not */
        facts_of(tsv, dataset_vocabulary(config, reader->tokenizer), facts);
        status = aq_tokenizer_within(reader->tokenizer, tsv->tokens.at, tsv->tokens.count, config->tokens_max);
    }
    aq_tokenizer_close(own);
    aq_free(reader);
    return status;
}

static void tsv_close(void *state)
{
    struct tsv *tsv = state;
    aq_free(tsv->tokens.at);
    aq_free(tsv->starts);
    aq_free(tsv->lengths);
    aq_free(tsv->labels);
    aq_free(tsv->seconds);
    aq_free(tsv);
}

static void get(const void *state, uint64_t sample, void *const values[AQ_BATCH_FIELDS_MAX])
{
    const struct tsv *tsv = state;
    int32_t *tokens = values[0];
    const uint32_t length = tsv->lengths[sample];
    memcpy(tokens, tsv->tokens.at + tsv->starts[sample], length * sizeof *tokens);
    for (uint32_t t = length; t < tsv->T; t++)
        tokens[t] = tsv->padding > 0 ? tsv->padding : 0;
    *(int32_t *)values[1] = tsv->scored ? -1 : tsv->labels[sample].number;
    *(float *)values[2] = tsv->scored ? tsv->labels[sample].score : NAN;
    int32_t *types = values[3];
    for (uint32_t t = 0; t < tsv->T; t++)
        types[t] = t < tsv->seconds[sample] || t >= length ? 0
                   : t + tsv->last_count >= length         ? tsv->last_type
                                                           : tsv->second_type;
}

static uint64_t bytes(uint32_t T, const struct aq_dataset_image *image, uint64_t samples)
{
    (void)image;
    return samples * (T * sizeof(int32_t) + sizeof(uint64_t) + 2 * sizeof(uint32_t) + sizeof(int32_t));
}

extern const struct aq_dataset_kind aq_dataset_tsv;
const struct aq_dataset_kind aq_dataset_tsv = {.name = "tsv",
                                               .what = "row",
                                               .lengths = true,
                                               .fields = fields,
                                               .open = tsv_open,
                                               .close = tsv_close,
                                               .get = get,
                                               .bytes = bytes};
