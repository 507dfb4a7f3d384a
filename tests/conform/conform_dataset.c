/*
 * conform_dataset.c -- what every kind of data set promises: stable ids, parts of the samples, the same digest for the
 * same bytes, damaged files refused with their name, nothing lost where memory ends.
 *
 * A new kind is named in datasets.def, and says here how to make a file of it, and a damaged one.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "data_files.h"
#include "stages/dataset.h"

enum { SAMPLES = 7, T = 4, PIXEL_BYTES = 3072, RECORD_MAX = 2 + PIXEL_BYTES, ROOM = 4096 };

static const struct aq_dataset_image image = {.side = 5};
static long place; /* of a byte of `samples` that may be another one */
static char folder[DATA_PATH_BYTES], path[DATA_PATH_BYTES], damaged[DATA_PATH_BYTES];

/* SAMPLES samples to `path`, and what must be refused to `damaged`. */
static void text_make(void)
{
    char text[SAMPLES * T + 2];
    for (int i = 0; i <= SAMPLES * T; i++)
        text[i] = (char)('a' + i % 26);
    data_write(folder, "samples", text, SAMPLES * T + 1);
    data_write(folder, "damaged", text, T); /* no whole sample */
}

/* Answers of four places each: none fits beside another. */
static void instruct_make(void)
{
    char text[1024] = "";
    place = 11; /* in the first prompt */
    for (int i = 0; i < SAMPLES; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "{\"prompt\":\"p%d\",\"response\":\"r%c\"}\n", i,
                 'a' + i);
    data_write(folder, "samples", text, strlen(text));
    data_write(folder, "damaged", text, strlen(text) - 3);
}

/* The text in column 1, the label in column 2; texts of one to five tokens, of which T are taken. */
static void tsv_make(void)
{
    static const char rows[] = "abcdefg\t0\nb\t1\ncd\t0\ndef\t1\nefgh\t0\nfghij\t1\ng h\t0\n";
    data_write(folder, "samples", rows, sizeof rows - 1);
    data_write(folder, "damaged", rows, sizeof rows - 3); /* no label in the last row */
}

/* Of image_records.h: that many labels, of which the last is 9 - i, in front of the pixels. */
static void records_make(int labels)
{
    static uint8_t records[SAMPLES * RECORD_MAX];
    const int record = labels + PIXEL_BYTES, bytes = SAMPLES * record;
    for (int i = 0; i < bytes; i++)
        records[i] = i % record < labels ? 0 : (uint8_t)(i * 7 + i / record);
    for (int i = 0; i < SAMPLES; i++)
        records[i * record + labels - 1] = (uint8_t)(9 - i);
    data_write(folder, "samples", records, (size_t)bytes);
    data_write(folder, "damaged", records, (size_t)bytes - 1);
}

/* Arrays of NumPy, and a table of them; "!.npy" is another image than "1.npy". */
static void image_files_make(void)
{
    static const char head[] = "{'descr': '|u1', 'fortran_order': False, 'shape': (5, 5, 3), }\n";
    char table[256] = "file,label\n", name[16];
    uint8_t file[10 + sizeof head - 1 + 75];
    memcpy(file, "\x93NUMPY\x01\x00", 8);
    file[8] = sizeof head - 1;
    file[9] = 0;
    memcpy(file + 10, head, sizeof head - 1);
    for (int i = 0; i <= SAMPLES; i++) {
        for (int p = 0; p < 75; p++)
            file[10 + sizeof head - 1 + p] = (uint8_t)(i * 31 + p);
        snprintf(name, sizeof name, i < SAMPLES ? "%d.npy" : "!.npy", i);
        data_write(folder, name, file, sizeof file);
        if (i == 1) place = (long)strlen(table);
        if (i < SAMPLES) snprintf(table + strlen(table), 32, "%s,%d\n", name, i % 3);
    }
    data_write(folder, "samples", table, strlen(table));
    data_write(folder, "damaged", "file,label\nnone.npy,0\n", 22);
}

static void cifar10_make(void)
{
    records_make(1);
}

static void cifar100_make(void)
{
    records_make(2);
}

static void label_file_make(void)
{
    static uint8_t file[16 + 4 * SAMPLES];
    memcpy(file, "aqpipe labels 1\n", 16);
    for (int i = 0; i < SAMPLES; i++)
        file[16 + 4 * i] = (uint8_t)(9 - i);
    place = 16 + 4; /* the second label */
    data_write(folder, "samples", file, sizeof file);
    data_write(folder, "damaged", file, sizeof file - 1);
}

static const struct kind {
    const char *name;
    void (*make)(void);
} kinds[] = {
#define AQ_DATASET(name) {#name, name##_make},
#include "stages/datasets.def"
#undef AQ_DATASET
};

enum { KINDS = sizeof kinds / sizeof kinds[0] };

/* Images have names of columns. */
static const char *label_column(const char *kind)
{
    return strcmp(kind, "tsv") == 0 ? "2" : NULL;
}

static struct aq_dataset *data_open(const char *kind, const char *file, uint64_t skip, uint64_t most,
                                    enum aq_status wanted)
{
    const char *const paths[] = {file};
    const struct aq_dataset_config config = {.kind = kind,
                                             .paths = paths,
                                             .path_count = 1,
                                             .tokenizer_kind = "bytes",
                                             .T = T,
                                             .columns = {.text = "1", .label = label_column(kind)},
                                             .image = image,
                                             .samples_max = most,
                                             .skip = skip};
    struct aq_dataset *data = NULL;
    assert_int_equal(aq_dataset_open(&config, &data), wanted);
    return data;
}

/* All values of a sample, field after field, with what lies behind them. */
static void sample_get(const char *kind, const struct aq_dataset *data, uint64_t index, uint32_t values[ROOM])
{
    struct aq_field fields[AQ_BATCH_FIELDS_MAX];
    void *to[AQ_BATCH_FIELDS_MAX] = {NULL};
    const uint32_t count = aq_dataset_fields(kind, T, &image, fields);
    uint32_t at = 0;
    memset(values, 0x5a, ROOM * sizeof *values);
    for (uint32_t i = 0; i < count; i++) {
        to[i] = values + at;
        at += fields[i].count;
    }
    assert_true(at < ROOM);
    assert_int_equal(aq_dataset_get(data, index, to), AQ_OK);
    assert_int_equal(values[at], 0x5a5a5a5a);
}

static void test_fields_have_names_and_targets_are_in_range(void **state)
{
    (void)state;
    for (int k = 0; k < KINDS; k++) {
        struct aq_field fields[AQ_BATCH_FIELDS_MAX];
        const uint32_t count = aq_dataset_fields(kinds[k].name, T, &image, fields);
        assert_true(count >= 1 && count <= AQ_BATCH_FIELDS_MAX); /* labels alone are one */
        kinds[k].make();
        struct aq_dataset *data = data_open(kinds[k].name, path, 0, 0, AQ_OK);
        uint32_t values[ROOM], at = 0;
        const bool masks = aq_dataset_masks(data);
        sample_get(kinds[k].name, data, 0, values);
        for (uint32_t i = 0; i < count; i++) {
            assert_true(strlen(fields[i].name) < AQ_FIELD_NAME_MAX && fields[i].count > 0);
            const bool token = strcmp(fields[i].name, "tokens") == 0;
            const uint32_t bound = token ? aq_dataset_vocabulary(data) : aq_dataset_outputs(data);
            for (uint32_t j = 0; j < fields[i].count && fields[i].type == AQ_FIELD_I32; j++)
                assert_true(values[at + j] < bound || (masks && !token && values[at + j] == UINT32_MAX));
            at += fields[i].count;
        }
        aq_dataset_close(data);
    }
    assert_int_equal(aq_dataset_fields("no such", T, &image, (struct aq_field[AQ_BATCH_FIELDS_MAX]){{0}}), 0);
}

static void test_a_part_has_the_ids_and_values_of_the_whole(void **state)
{
    (void)state;
    for (int k = 0; k < KINDS; k++) {
        uint32_t all[ROOM], part[ROOM];
        kinds[k].make();
        struct aq_dataset *whole = data_open(kinds[k].name, path, 0, 0, AQ_OK);
        struct aq_dataset *some = data_open(kinds[k].name, path, 2, 3, AQ_OK);
        assert_int_equal(aq_dataset_count(whole), SAMPLES);
        assert_int_equal(aq_dataset_count(some), 3);
        assert_true(aq_dataset_digest(whole) == aq_dataset_digest(some)); /* of the files: the part is the job's */
        for (uint64_t i = 0; i < 3; i++) {
            sample_get(kinds[k].name, whole, i + 2, all);
            sample_get(kinds[k].name, some, i, part);
            assert_memory_equal(all, part, sizeof all);
        }
        void *const nowhere[AQ_BATCH_FIELDS_MAX] = {NULL};
        assert_int_equal(aq_dataset_get(some, 3, nowhere), AQ_INVAL);
        aq_dataset_close(whole);
        aq_dataset_close(some);
        assert_null(data_open(kinds[k].name, path, SAMPLES, 0, AQ_INVAL));
    }
}

static void test_a_batch_has_the_samples_in_their_places(void **state)
{
    (void)state;
    for (int k = 0; k < KINDS; k++) {
        struct aq_batch batch = {.samples = 2};
        batch.field_count = aq_dataset_fields(kinds[k].name, T, &image, batch.fields);
        kinds[k].make();
        struct aq_dataset *data = data_open(kinds[k].name, path, 0, 0, AQ_OK);
        for (uint32_t i = 0; i < batch.field_count; i++)
            assert_int_equal(aq_alloc(2ul * batch.fields[i].count * AQ_FIELD_BYTES, &batch.fields[i].values), AQ_OK);
        assert_int_equal(aq_dataset_put(data, 5, &batch, 1), AQ_OK);
        assert_int_equal(aq_dataset_put(data, 3, &batch, 0), AQ_OK);
        for (uint32_t position = 0; position < 2; position++) {
            uint32_t values[ROOM], at = 0;
            sample_get(kinds[k].name, data, position ? 5 : 3, values);
            for (uint32_t i = 0; i < batch.field_count; i++) {
                const struct aq_field *field = &batch.fields[i];
                const uint32_t *here = aq_batch_find(&batch, field->name, field->type, field->count);
                assert_memory_equal(here + (size_t)position * field->count, values + at, field->count * 4ul);
                at += field->count;
            }
        }
        for (uint32_t i = 0; i < batch.field_count; i++)
            aq_free(batch.fields[i].values);
        aq_dataset_close(data);
    }
}

static void test_another_byte_gives_another_digest(void **state)
{
    (void)state;
    for (int k = 0; k < KINDS; k++) {
        place = 3;
        kinds[k].make();
        struct aq_dataset *data = data_open(kinds[k].name, path, 0, 0, AQ_OK);
        const uint64_t before = aq_dataset_digest(data);
        aq_dataset_close(data);
        FILE *file = fopen(path, "r+b");
        assert_non_null(file);
        assert_int_equal(fseek(file, place, SEEK_SET), 0);
        assert_int_equal(fputc('!', file), '!');
        assert_int_equal(fclose(file), 0);
        data = data_open(kinds[k].name, path, 0, 0, AQ_OK);
        assert_true(aq_dataset_digest(data) != before);
        aq_dataset_close(data);
    }
}

static void test_damaged_files_are_refused_by_name(void **state)
{
    (void)state;
    const uint64_t used = aq_memory_used();
    for (int k = 0; k < KINDS; k++) {
        const char *const paths[] = {path, damaged};
        kinds[k].make();
        struct aq_dataset_config config = {.kind = kinds[k].name,
                                           .paths = paths + 1,
                                           .path_count = 1,
                                           .tokenizer_kind = "bytes",
                                           .T = T,
                                           .image = image,
                                           .columns = {.text = "1", .label = label_column(kinds[k].name)}};
        struct aq_dataset *data = NULL;
        aq_error_clear();
        const enum aq_status status = aq_dataset_open(&config, &data);
        assert_true(status == AQ_INVAL || status == AQ_CORRUPT);
        assert_non_null(strstr(aq_error_text(), damaged));
        config.paths = paths;
        for (uint64_t n = 1; n <= 40; n++) { /* and a whole file where memory ends */
            aq_memory_fail_at(n);
            const enum aq_status out = aq_dataset_open(&config, &data);
            aq_memory_fail_at(0);
            if (out == AQ_OK) aq_dataset_close(data);
            assert_int_equal(aq_memory_used(), used);
            if (out == AQ_OK) break;
            assert_int_equal(out, AQ_NOMEM);
        }
    }
}

struct published {
    const char *kind;
    size_t labels; /* bytes in front of the pixels */
    const char *names[2];
    int classes[2];
};
static const struct published published[] = {{"cifar10", 1, {"label"}, {10}},
                                             {"cifar100", 2, {"coarse label", "fine label"}, {20, 100}}};

/* Three records in two files, the last with these labels, and of the second file `bytes` of its two; NULL: refused. */
static struct aq_dataset *published_open(const struct published *of, const uint8_t labels[2], size_t bytes)
{
    static uint8_t records[2 * RECORD_MAX];
    const char *const paths[] = {damaged, path};
    const struct aq_dataset_config config = {.kind = of->kind, .paths = paths, .path_count = 2};
    const size_t record = of->labels + PIXEL_BYTES;
    struct aq_dataset *data = NULL;
    memset(records, 0, sizeof records);
    memcpy(records + record, labels, of->labels);
    uint8_t *pixels = records + record + of->labels;
    pixels[0] = 255;        /* red of the first pixel    */
    pixels[1024 + 33] = 51; /* green, second row, second */
    pixels[3071] = 102;     /* blue of the last          */
    data_write(folder, "damaged", records, record);
    data_write(folder, "samples", records, bytes);
    aq_error_clear();
    const enum aq_status status = aq_dataset_open(&config, &data);
    assert_int_equal(status, data ? AQ_OK : AQ_CORRUPT);
    return data;
}

/* The published shape: labels and colours. */
static void test_image_records_are_as_published(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof published / sizeof *published; k++) {
        const struct published *of = published + k;
        static float images[PIXEL_BYTES];
        int32_t label = -1;
        const uint8_t labels[2] = {6, 99};
        struct aq_dataset *data = published_open(of, labels, 2 * (of->labels + PIXEL_BYTES));
        assert_int_equal(aq_dataset_count(data), 3);
        assert_int_equal(aq_dataset_outputs(data), of->classes[of->labels - 1]);
        assert_int_equal(aq_dataset_get(data, 2, (void *const[AQ_BATCH_FIELDS_MAX]){images, &label}), AQ_OK);
        assert_int_equal(label, labels[of->labels - 1]);
        assert_float_equal(images[0], 1.0f, 0);
        assert_float_equal(images[1], -1.0f, 0);
        assert_float_equal(images[33 * 3 + 1], 51 / 127.5f - 1.0f, 0);
        assert_float_equal(images[3071], 102 / 127.5f - 1.0f, 0);
        assert_int_equal(aq_dataset_get(data, 0, (void *const[AQ_BATCH_FIELDS_MAX]){images, &label}), AQ_OK);
        assert_true(label == 0 && images[0] == -1.0f);
        assert_int_equal(aq_dataset_bytes(of->kind, 1, &image, 3), 3 * (of->labels + PIXEL_BYTES));
        aq_dataset_close(data);
    }
}

static void assert_said(const char *wanted)
{
    if (!strstr(aq_error_text(), path) || !strstr(aq_error_text(), wanted))
        fail_msg("%s: not %s: %s", aq_error_text(), path, wanted);
}

/* Labels that no class has, sizes that no records have: file and record are named. */
static void test_image_records_that_are_damaged_are_refused(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof published / sizeof *published; k++) {
        const struct published *of = published + k;
        const size_t record = of->labels + PIXEL_BYTES;
        char wanted[80];
        for (size_t i = 0; i < of->labels; i++)
            for (int label = of->classes[i] - 1; label < 256; label++) {
                uint8_t labels[2] = {0, 0};
                labels[i] = (uint8_t)label;
                struct aq_dataset *data = published_open(of, labels, 2 * record);
                assert_int_equal(data != NULL, label < of->classes[i]);
                snprintf(wanted, sizeof wanted, "record 1 has %s %d,", of->names[i], label);
                if (!data) assert_said(wanted);
                aq_dataset_close(data);
            }
        for (size_t left = 0; left < record; left += left ? 512 : 1) {
            const size_t whole = left ? record : 0;
            assert_null(published_open(of, (const uint8_t[2]){0, 0}, whole + left));
            snprintf(wanted, sizeof wanted, "record %d has %zu bytes, ", left > 0, left);
            assert_said(wanted);
        }
        assert_null(published_open(of, (const uint8_t[2]){0, 0}, 2 * (PIXEL_BYTES + 3 - of->labels))); /* the other's */
    }
}

/* A text a line, an end behind each; a broken line is said by its number. */
static void test_jsonl_gives_the_texts_of_its_lines(void **state)
{
    (void)state;
    static const struct {
        const char *file, *part;
    } broken[] = {{"{\"text\": \"ab\"}\n{\"text\": 7}\n", "lines.jsonl:2:"},
                  {"{\"text\": \"ab\"}\n\n{\"text\": \"c\"\n", "lines.jsonl:3:"},
                  {"[1]\n", "lines.jsonl:1:"}};
    char lines[DATA_PATH_BYTES];
    int32_t tokens[T], targets[T];
    data_path(folder, "lines.jsonl", lines);
    data_write_text(folder, "lines.jsonl", "{\"id\": 1, \"text\": \"ab\"}\n\n{\"text\": \"c\\u00e9\"}\r\n");
    struct aq_dataset *data = data_open("text", lines, 0, 0, AQ_OK); /* a b LF c 0xc3 0xa9 LF */
    assert_int_equal(aq_dataset_get(data, 0, (void *const[AQ_BATCH_FIELDS_MAX]){tokens, targets}), AQ_OK);
    assert_memory_equal(tokens, ((const int32_t[]){'a', 'b', '\n', 'c'}), sizeof tokens);
    assert_int_equal(targets[3], 0xc3);
    assert_int_equal(aq_dataset_dropped(data), 2);
    aq_dataset_close(data);
    for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++) {
        data_write_text(folder, "lines.jsonl", broken[i].file);
        aq_error_clear();
        assert_null(data_open("text", lines, 0, 0, AQ_CORRUPT));
        if (!strstr(aq_error_text(), broken[i].part)) fail_msg("%s: not %s", aq_error_text(), broken[i].part);
    }
}

static int open_folder(void **state)
{
    (void)state;
    data_folder_open(folder);
    data_path(folder, "samples", path);
    data_path(folder, "damaged", damaged);
    return 0;
}

static int close_folder(void **state)
{
    (void)state;
    data_folder_close(folder);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fields_have_names_and_targets_are_in_range),
        cmocka_unit_test(test_a_part_has_the_ids_and_values_of_the_whole),
        cmocka_unit_test(test_a_batch_has_the_samples_in_their_places),
        cmocka_unit_test(test_another_byte_gives_another_digest),
        cmocka_unit_test(test_damaged_files_are_refused_by_name),
        cmocka_unit_test(test_image_records_are_as_published),
        cmocka_unit_test(test_image_records_that_are_damaged_are_refused),
        cmocka_unit_test(test_jsonl_gives_the_texts_of_its_lines),
    };
    return cmocka_run_group_tests(tests, open_folder, close_folder);
}
