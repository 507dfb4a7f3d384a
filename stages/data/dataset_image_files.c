/*
 * dataset_image_files.c -- images of one's own: tables of image files and labels.
 *
 *     file,label              labels.csv, next to the images or above them
 *     cats/0001.png,cat       a PNG, JPEG or NPY file (image_read.h), by its path from the table's folder
 *     dogs/0007.jpg,dog       the label: a name of data.labels, or a number from 0
 *
 * The first row has the names of the columns: `file`, and data.label_column (by default `label`); others are left
 * alone. Tables are .csv or .tsv files, or JSON objects, as data_record.h reads them. A path that leaves the table's
 * folder is refused: a job reads what is below its own data. Symbolic links are followed. An image that comes twice is
 * a bad row, and so is one that is not there, damaged or too large; bad rows are reported together (data_faults.h).
 *
 * A sample has `images`, side x side pixels of 3 colours (image_square, pixel_values.h), and `labels`, one number. Its
 * id is its place among the rows that are good.
 *
 * Images are decoded once, by all cores, into records:
 *
 *     offset 0     4 bytes                    the label
 *            4     side side 3, each 1 or 2   values of colours, pixel by pixel (data.image.bits); zeroes up to a
 *                                             multiple of 4
 *
 * in memory or, with a cache folder, in a file there, in the form of text_tokens.h (a record is so many numbers of 4
 * bytes), which is mapped, and shared by all processes that read these data. Its key is a digest of the settings and of
 * each image's path, label, length and times of last change (of its bytes, and of its inode).
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "data_faults.h"
#include "data_label.h"
#include "data_record.h"
#include "dataset_kind.h"
#include "image_read.h"
#include "pixel_values.h"
#include "text_tokens.h"

#define AREA DATASET_AREA

enum { THREADS_MAX = 256, IMAGES_A_THREAD = 8, WHY_BYTES = 512, PATH_BYTES = 4096, RECORDS = 2 };

#define SAY_NS   UINT64_C(5000000000) /* between two lines about how far it is */
#define KEY_SEED UINT64_C(0x73656761) /* keeps its keys apart from those of texts */

static const char file_column[] = "file", label_column[] = "label";

struct images {
    struct text_ids records;
    uint64_t count;
    uint32_t side, record; /* record: numbers of 4 bytes */
    bool wide;             /* values of 2 bytes          */
    struct pixel_values values;
};

/* A good row of a table. */
struct row {
    const char *path; /* of the image, in `names` below */
    const char *table;
    uint64_t line;
    int32_t label;
    bool again; /* an earlier row has it */
};

struct reader {
    const struct aq_dataset_config *config;
    struct images *images;
    struct row *rows;
    uint64_t count, room;
    int32_t label_most;
    struct data_faults faults;
    const char *table;
    uint64_t line;
    int columns[2]; /* of file and label in this table; -1: not known yet */
};

static uint32_t record_numbers(const struct aq_dataset_image *image)
{
    const uint64_t bytes = (uint64_t)image->side * image->side * PIXEL_COLOURS * (image->bits == 16 ? 2 : 1);
    return (uint32_t)(1 + (bytes + sizeof(int32_t) - 1) / sizeof(int32_t));
}

static uint32_t fields(uint32_t T, const struct aq_dataset_image *image, struct aq_field out[AQ_BATCH_FIELDS_MAX])
{
    const uint32_t side = image ? image->side : 0;
    (void)T;
    out[0] = (struct aq_field){.name = "images", .type = AQ_FIELD_F32, .count = side * side * PIXEL_COLOURS};
    out[1] = (struct aq_field){.name = "labels", .type = AQ_FIELD_I32, .count = 1};
    return 2;
}

/* ---- tables ---- */

static const char *label_name(const struct reader *reader)
{
    return reader->config->columns.label ? reader->config->columns.label : label_column;
}

static enum aq_status columns_find(struct reader *reader, const struct data_cell *names, uint32_t width)
{
    const char *const wanted[2] = {file_column, label_name(reader)};
    for (int c = 0; c < 2; c++) {
        const size_t bytes = strlen(wanted[c]);
        reader->columns[c] = -1;
        for (uint32_t i = 0; i < width; i++)
            if (names[i].bytes == bytes && memcmp(names[i].at, wanted[c], bytes) == 0) reader->columns[c] = (int)i;
        if (reader->columns[c] < 0)
            return aq_fail(AQ_CORRUPT, AREA, "%s:1: has no column %s: the first row names the columns, file and %s%s",
                           reader->table, wanted[c], label_name(reader), c ? " (data.label_column)" : "");
    }
    return AQ_OK;
}

/* The cells of file and label. */
static enum aq_status cells_of(struct reader *reader, struct data_reader *file, const struct data_record *record,
                               json_t **object, char number[32], struct data_cell cells[2])
{
    const char *const wanted[2] = {file_column, label_name(reader)};
    uint32_t width;
    const struct data_cell *names = data_reader_names(file, &width);
    if (record->cells && reader->columns[0] < 0) AQ_TRY(columns_find(reader, names, width));
    if (!record->cells) AQ_TRY(data_record_object(file, record, 0, object));
    for (int c = 0; c < 2; c++) {
        const json_t *member = record->cells ? NULL : json_object_get(*object, wanted[c]);
        if (record->cells) {
            cells[c] = record->cells[reader->columns[c]];
        } else if (json_is_string(member)) {
            cells[c] = (struct data_cell){json_string_value(member), json_string_length(member)};
        } else if (c == 1 && json_is_integer(member)) {
            cells[c] =
                (struct data_cell){number, (size_t)snprintf(number, 32, "%lld", (long long)json_integer_value(member))};
        } else {
            return aq_fail(AQ_CORRUPT, AREA, "%s:%llu: has no \"%s\"", reader->table, (unsigned long long)reader->line,
                           wanted[c]);
        }
    }
    return AQ_OK;
}

/* The path of an image that a row names; memory of aq_alloc. */
static enum aq_status path_of(const struct reader *reader, const struct data_cell *cell, char **out)
{
    const char *slash = strrchr(reader->table, '/');
    const size_t folder = slash ? (size_t)(slash - reader->table) + 1 : 0;
    const bool fits = folder + cell->bytes < PATH_BYTES;
    char text[PATH_BYTES];
    size_t used = fits ? folder : 0;
    bool leaves = cell->bytes > 0 && cell->at[0] == '/';
    memcpy(text, reader->table, used);
    for (size_t i = 0, end; i < cell->bytes; i = end + 1) {
        for (end = i; end < cell->bytes && cell->at[end] != '/';)
            end++;
        leaves = leaves || (end - i == 2 && memcmp(cell->at + i, "..", 2) == 0);
        if (!fits || end == i || (end - i == 1 && cell->at[i] == '.')) continue; /* "a//b", "a/./b" are "a/b" */
        if (used > folder) text[used++] = '/';
        memcpy(text + used, cell->at + i, end - i);
        used += end - i;
    }
    text[used] = 0;
    const char *why = cell->bytes == 0                   ? "names no file"
                      : memchr(cell->at, 0, cell->bytes) ? "names a file with a zero byte"
                      : leaves                           ? "names a file outside of the table's folder: copy it there"
                      : !fits                            ? "names a file whose path is too long"
                                                         : NULL;
    if (why) return aq_fail(AQ_CORRUPT, AREA, "%s:%llu: %s", reader->table, (unsigned long long)reader->line, why);
    return aq_alloc_text(text, out);
}

static enum aq_status rows_grow(struct reader *reader)
{
    struct row *rows;
    if (reader->count < reader->room) return AQ_OK;
    const uint64_t room = reader->room ? 2 * reader->room : 1024;
    AQ_TRY(AQ_NEW(room, &rows));
    if (reader->count) memcpy(rows, reader->rows, reader->count * sizeof *rows);
    aq_free(reader->rows);
    reader->rows = rows;
    reader->room = room;
    return AQ_OK;
}

/* The image is there? Its decoder sees the rest. */
static enum aq_status check_file(const struct reader *reader, const char *path)
{
    struct stat about;
    const bool there = stat(path, &about) == 0;
    if (!there && (errno == ENOENT || errno == ENOTDIR || errno == ENAMETOOLONG || errno == ELOOP))
        return aq_fail(AQ_CORRUPT, AREA, "%s:%llu: %s: there is no such file", reader->table,
                       (unsigned long long)reader->line, path);
    if (!there) { /* an image that cannot be looked at may be good: it is no bad row */
        (void)aq_fail_errno(AREA, "%s:%llu: %s", reader->table, (unsigned long long)reader->line, path);
        return AQ_IO;
    }
    if (S_ISREG(about.st_mode)) return AQ_OK;
    return aq_fail(AQ_CORRUPT, AREA, "%s:%llu: %s: is no file", reader->table, (unsigned long long)reader->line, path);
}

static enum aq_status add_row(struct reader *reader, const struct data_cell cells[2])
{
    struct row row = {.table = reader->table, .line = reader->line};
    char *path = NULL;
    AQ_TRY(data_label_read(reader->table, reader->line, &cells[1], reader->config->columns.names, &row.label));
    AQ_TRY(path_of(reader, &cells[0], &path));
    enum aq_status status = check_file(reader, path);
    if (status == AQ_OK) status = rows_grow(reader);
    if (status != AQ_OK) {
        aq_free(path);
        return status;
    }
    row.path = path;
    reader->rows[reader->count++] = row;
    if (row.label > reader->label_most) reader->label_most = row.label;
    return AQ_OK;
}

/* The next row, or *at_end. A bad one is noted. */
static enum aq_status next_row(struct reader *reader, struct data_reader *file, bool *at_end)
{
    struct aq_error_hold why;
    struct data_record record;
    struct data_cell cells[2];
    char number[32];
    json_t *object = NULL;
    bool ends;
    aq_error_hold(&why);
    enum aq_status status = data_reader_next(file, &record, &ends);
    reader->line = record.line;
    *at_end = status == AQ_OK && !record.at;
    if (status == AQ_OK && record.at) {
        status = cells_of(reader, file, &record, &object, number, cells);
        ends = record.cells && (reader->columns[0] < 0 || reader->columns[1] < 0);
        if (status == AQ_OK) status = add_row(reader, cells);
    }
    aq_error_release(&why);
    json_decref(object);
    if (status == AQ_OK) return AQ_OK;
    if (ends || !data_fault_is(status)) return aq_fail(status, AREA, "%s", why.text);
    data_faults_note(&reader->faults, reader->table, reader->line, why.text);
    return AQ_OK;
}

static enum aq_status read_table(struct reader *reader, const char *path)
{
    const struct data_how how = {.fallback = DATA_CSV, .quotes = reader->config->quotes, .named = true};
    struct data_reader *file;
    enum aq_status status = AQ_OK;
    reader->table = path;
    reader->columns[0] = reader->columns[1] = -1;
    AQ_TRY(data_reader_open(path, &how, &file));
    for (bool at_end = false; status == AQ_OK && !at_end && !data_faults_over(&reader->faults);)
        status = next_row(reader, file, &at_end);
    data_reader_close(file);
    return status;
}

/* Marks the rows whose image an earlier one has: an open hash of the paths. */
static enum aq_status find_doubles(struct reader *reader)
{
    uint64_t places = 4, *first; /* of a path: the number of a row, plus one */
    while (places < 2 * reader->count)
        places *= 2;
    AQ_TRY(AQ_NEW(places, &first));
    for (uint64_t r = 0; r < reader->count; r++) {
        struct row *row = &reader->rows[r];
        uint64_t at = aq_digest(row->path, strlen(row->path)) & (places - 1);
        while (first[at] && strcmp(reader->rows[first[at] - 1].path, row->path) != 0)
            at = (at + 1) & (places - 1);
        row->again = first[at] != 0;
        if (row->again) {
            const struct row *before = &reader->rows[first[at] - 1];
            char why[WHY_BYTES];
            snprintf(why, sizeof why, "%s: the image is in %s line %llu, too", row->path, before->table,
                     (unsigned long long)before->line);
            data_faults_note(&reader->faults, row->table, row->line, why);
        } else {
            first[at] = r + 1;
        }
    }
    aq_free(first);
    return AQ_OK;
}

static enum aq_status read_tables(struct reader *reader)
{
    const struct aq_dataset_config *config = reader->config;
    for (uint32_t i = 0; i < config->path_count; i++)
        AQ_TRY(read_table(reader, config->paths[i]));
    AQ_TRY(find_doubles(reader));
    uint64_t good = 0;
    for (uint64_t r = 0; r < reader->count; r++) {
        if (reader->rows[r].again)
            aq_free((void *)(uintptr_t)reader->rows[r].path);
        else
            reader->rows[good++] = reader->rows[r];
    }
    reader->count = good;
    return AQ_OK;
}

/* ---- images ---- */

/* Some rows that are decoded at a time. */
struct piece {
    const struct reader *reader;
    const struct row *rows;
    uint32_t count;
    atomic_uint next; /* to be taken; relaxed: nothing else is published by it */
    int32_t *records;
    uint16_t *values; /* of each thread: a square of them */
    atomic_uint threads;
    struct outcome {
        enum aq_status status;
        char why[WHY_BYTES];
    } * outcomes;
};

static enum aq_status decode(const struct reader *reader, const struct row *row, uint16_t *values, int32_t *record)
{
    const struct aq_dataset_image *how = &reader->config->image;
    const size_t count = (size_t)how->side * how->side * PIXEL_COLOURS;
    const bool wide = reader->images->wide;
    struct image image;
    AQ_TRY(image_read(row->path, &image));
    const enum aq_status status = image_square(&image, how->side, how->fit, wide ? UINT16_MAX : UINT8_MAX, values);
    image_free(&image);
    AQ_TRY(status);
    memset(record, 0, reader->images->record * sizeof *record);
    record[0] = row->label;
    uint8_t *narrow = (uint8_t *)(record + 1);
    if (wide) memcpy(narrow, values, count * sizeof *values);
    for (size_t i = 0; i < count && !wide; i++)
        narrow[i] = (uint8_t)values[i];
    return AQ_OK;
}

static void run_piece(void *context)
{
    struct piece *piece = context;
    const struct aq_dataset_image *how = &piece->reader->config->image;
    const size_t square = (size_t)how->side * how->side * PIXEL_COLOURS;
    uint16_t *values = piece->values + atomic_fetch_add_explicit(&piece->threads, 1, memory_order_relaxed) * square;
    for (;;) {
        const unsigned i = atomic_fetch_add_explicit(&piece->next, 1, memory_order_relaxed);
        struct aq_error_hold why;
        if (i >= piece->count) return;
        aq_error_hold(&why);
        piece->outcomes[i].status =
            decode(piece->reader, &piece->rows[i], values, piece->records + (size_t)i * piece->reader->images->record);
        aq_error_release(&why);
        snprintf(piece->outcomes[i].why, WHY_BYTES, "%.*s", WHY_BYTES - 1, why.text);
    }
}

/* On all cores; the records that are good to the sink, in order. */
static enum aq_status piece_run(struct reader *reader, struct piece *piece, uint32_t threads, struct text_sink *sink)
{
    struct aq_thread *others[THREADS_MAX] = {NULL};
    atomic_store_explicit(&piece->next, 0, memory_order_relaxed);
    atomic_store_explicit(&piece->threads, 0, memory_order_relaxed);
    for (uint32_t i = 1; i < threads && i < piece->count; i++)
        if (aq_thread_open("images", run_piece, piece, &others[i]) != AQ_OK) break;
    run_piece(piece);
    for (uint32_t i = 1; i < threads; i++)
        aq_thread_close(others[i]);
    for (uint32_t i = 0; i < piece->count && !data_faults_over(&reader->faults); i++) {
        const struct outcome *outcome = &piece->outcomes[i];
        const struct row *row = &piece->rows[i];
        if (outcome->status == AQ_OK)
            AQ_TRY(text_sink_add(sink, piece->records + (size_t)i * reader->images->record, reader->images->record));
        else if (data_fault_is(outcome->status))
            data_faults_note(&reader->faults, row->table, row->line, outcome->why);
        else
            return aq_fail(outcome->status, AREA, "%s:%llu: %s", row->table, (unsigned long long)row->line,
                           outcome->why);
    }
    return AQ_OK;
}

static enum aq_status piece_open(const struct reader *reader, uint32_t threads, struct piece *piece)
{
    const size_t count = (size_t)threads * IMAGES_A_THREAD, side = reader->config->image.side;
    *piece = (struct piece){.reader = reader};
    AQ_TRY(AQ_NEW(count * reader->images->record, &piece->records));
    AQ_TRY(AQ_NEW(threads * side * side * PIXEL_COLOURS, &piece->values));
    return AQ_NEW(count, &piece->outcomes);
}

/* What a thread may take at most, as numbers of 4 bytes: 2 bytes per value of an image, 2 per coefficient of a
 * progressive JPEG file, and the file itself. */
static uint32_t thread_count(const struct reader *reader)
{
    const size_t each = (size_t)IMAGE_AREA_MAX * PIXEL_COLOURS + IMAGE_FILE_BYTES_MAX / sizeof(int32_t);
    const size_t most = text_numbers_max() / each; /* in half of this machine's memory */
    uint32_t threads = reader->config->threads ? reader->config->threads : aq_thread_cores();
    if (threads > THREADS_MAX) threads = THREADS_MAX;
    return threads <= most ? threads : most ? (uint32_t)most : 1;
}

static enum aq_status decode_all(struct reader *reader, struct text_sink *sink)
{
    const uint64_t began = aq_clock_ns();
    uint64_t told = began;
    const uint32_t threads = thread_count(reader);
    struct piece piece;
    enum aq_status status = piece_open(reader, threads, &piece);
    for (uint64_t done = 0; status == AQ_OK && done < reader->count && !data_faults_over(&reader->faults);) {
        const uint64_t left = reader->count - done;
        piece.rows = reader->rows + done;
        piece.count = left < threads * IMAGES_A_THREAD ? (uint32_t)left : threads * IMAGES_A_THREAD;
        status = piece_run(reader, &piece, threads, sink);
        done += piece.count;
        const uint64_t now = aq_clock_ns();
        if (now - told < SAY_NS) continue;
        told = now;
        aq_log(AREA, 1, "images of %s: %llu of %llu are read, %.0f per second", reader->config->paths[0],
               (unsigned long long)done, (unsigned long long)reader->count, 1e9 * (double)done / (double)(now - began));
    }
    aq_free(piece.records);
    aq_free(piece.values);
    aq_free(piece.outcomes);
    return status == AQ_OK ? data_faults_end(&reader->faults) : status;
}

/* Of what the records depend on. */
static uint64_t key_of(const struct reader *reader)
{
    const struct aq_dataset_image *how = &reader->config->image;
    const uint64_t settings[4] = {RECORDS, how->side, reader->images->wide, how->fit};
    const uint64_t skipped = reader->config->skip_invalid;
    uint64_t key = aq_digest_seeded(settings, sizeof settings, KEY_SEED);
    if (skipped) key = aq_digest_seeded(&skipped, sizeof skipped, key);
    for (uint64_t r = 0; r < reader->count; r++) {
        const struct row *row = &reader->rows[r];
        struct stat about = {0};
        (void)stat(row->path, &about); /* if it is gone its decoder says so */
        const int64_t facts[6] = {row->label,           about.st_size,
                                  about.st_mtim.tv_sec, about.st_mtim.tv_nsec,
                                  about.st_ctim.tv_sec, about.st_ctim.tv_nsec};
        key = aq_digest_seeded(row->path, strlen(row->path), aq_digest_seeded(facts, sizeof facts, key));
    }
    return key;
}

static enum aq_status records_in_memory(struct reader *reader, struct text_ids *out)
{
    struct text_sink sink = {.file = -1};
    const uint64_t numbers = reader->count * reader->images->record;
    if (numbers > text_numbers_max())
        return aq_fail(AQ_NOMEM, AREA,
                       "%s: its images take %llu MB, more than half of this machine's memory: name a folder in "
                       "data.cache, where they are kept on disk",
                       reader->config->paths[0], (unsigned long long)(numbers * sizeof(int32_t) / 1000000));
    enum aq_status status = aq_token_list_reserve(&sink.list, numbers);
    if (status == AQ_OK) status = decode_all(reader, &sink);
    *out = (struct text_ids){.at = sink.list.at, .count = sink.list.count, .owned = sink.list.at};
    return status;
}

/* Into the cache; *kept false: that cannot be written. */
static enum aq_status records_keep(struct reader *reader, const char *cache, uint64_t key, bool *kept)
{
    struct text_sink sink;
    *kept = false;
    if (text_cache_begin(cache, key, &sink) != AQ_OK) return AQ_OK;
    enum aq_status status = decode_all(reader, &sink);
    if (status == AQ_OK && key_of(reader) != key)
        status =
            aq_fail(AQ_CORRUPT, AREA, "%s%s: an image changed while it was read; start again when no program writes",
                    reader->config->paths[0], reader->config->path_count > 1 ? " and others" : "");
    if (status != AQ_OK) {
        text_cache_drop(cache, &sink);
        return sink.unwritten ? AQ_OK : status;
    }
    struct text_ids *out = &reader->images->records;
    *kept = text_cache_end(cache, key, &sink) == AQ_OK && text_cache_get(cache, key, out) == AQ_OK;
    return AQ_OK;
}

static enum aq_status records_read(struct reader *reader)
{
    struct text_ids *out = &reader->images->records;
    const char *cache = reader->config->cache;
    bool kept;
    if (!cache || !cache[0]) return records_in_memory(reader, out);
    const uint64_t key = key_of(reader);
    const struct data_faults faults = reader->faults; /* of the tables */
    if (text_cache_get(cache, key, out) == AQ_OK) return data_faults_end(&reader->faults);
    AQ_TRY(records_keep(reader, cache, key, &kept));
    if (kept) return AQ_OK;
    aq_log(AREA, AQ_LOG_WARNING, "cannot store images in %s (data.cache): this process decodes again", cache);
    aq_error_clear();
    reader->faults = faults;
    return records_in_memory(reader, out);
}

static enum aq_status read_all(struct reader *reader, struct dataset_facts *facts)
{
    const struct aq_dataset_config *config = reader->config;
    struct images *images = reader->images;
    AQ_TRY(data_labels_check(config->columns.names));
    AQ_TRY(aq_dataset_image_check(&config->image));
    AQ_TRY(read_tables(reader));
    AQ_TRY(records_read(reader));
    images->count = images->records.count / images->record;
    if (images->count == 0) return aq_fail(AQ_INVAL, AREA, "%s: has no row with an image", config->paths[0]);
    const uint32_t named = data_labels_count(config->columns.names);
    *facts = (struct dataset_facts){
        .samples = images->count,
        .digest = aq_digest(images->records.at, images->count * images->record * sizeof *images->records.at),
        .outputs = named ? named : (uint32_t)reader->label_most + 1};
    return AQ_OK;
}

static enum aq_status images_open(const struct aq_dataset_config *config, void **state, struct dataset_facts *facts)
{
    const struct aq_dataset_image *how = &config->image;
    void *memory;
    if (how->side == 0) return aq_fail(AQ_INVAL, AREA, "%s: the model reads no images", config->paths[0]);
    AQ_TRY(aq_alloc(sizeof(struct images), &memory));
    struct images *images = *state = memory;
    AQ_TRY(aq_alloc(sizeof(struct reader), &memory));
    struct reader *reader = memory;
    *images = (struct images){.side = how->side, .record = record_numbers(how), .wide = how->bits == 16};
    images->values = pixel_values_of(how, images->wide ? UINT16_MAX : UINT8_MAX);
    *reader = (struct reader){.config = config, .images = images};
    reader->faults.allowed = config->skip_invalid;
    const enum aq_status status = read_all(reader, facts);
    for (uint64_t r = 0; r < reader->count; r++)
        aq_free((void *)(uintptr_t)reader->rows[r].path);
    aq_free(reader->rows);
    aq_free(reader);
    return status;
}

static void images_close(void *state)
{
    struct images *images = state;
    text_ids_close(&images->records);
    aq_free(images);
}

static void get(const void *state, uint64_t sample, void *const values[AQ_BATCH_FIELDS_MAX])
{
    const struct images *images = state;
    const int32_t *record = images->records.at + sample * images->record;
    const uint8_t *narrow = (const uint8_t *)(record + 1);
    const uint32_t pixels = images->side * images->side;
    float *out = values[0];
    for (uint32_t i = 0; i < pixels * PIXEL_COLOURS; i++) {
        const uint32_t value = images->wide ? narrow[2 * i] | (uint32_t)narrow[2 * i + 1] << 8 : narrow[i];
        out[i] = pixel_value(&images->values, (int)(i % PIXEL_COLOURS), value);
    }
    *(int32_t *)values[1] = record[0];
}

static uint64_t bytes(uint32_t T, const struct aq_dataset_image *image, uint64_t samples)
{
    (void)T;
    return samples * record_numbers(image) * sizeof(int32_t);
}

extern const struct aq_dataset_kind aq_dataset_image_files;
const struct aq_dataset_kind aq_dataset_image_files = {.name = "image_files",
                                                       .what = "image",
                                                       .names_files = true,
                                                       .fields = fields,
                                                       .open = images_open,
                                                       .close = images_close,
                                                       .get = get,
                                                       .bytes = bytes};
