/*
 * test_images.c -- image files and tables of them: what is read of each format, and that whatever is damaged, too
 * large, missing or there twice is refused with file, cause and remedy. Pixels against libpng's and libjpeg's own
 * writers; resizing against PyTorch is in tests/test_image_files.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "data_files.h"
#include "image_make.h"
#include "image_read.h"
#include "stages/dataset.h"

static char folder[DATA_PATH_BYTES], table[DATA_PATH_BYTES];

static size_t npy_make(const char *type, const char *shape, size_t values, struct bytes *out)
{
    char head[128];
    const int bytes =
        snprintf(head, sizeof head, "{'descr': '%s', 'fortran_order': False, 'shape': %s, }\n", type, shape);
    memcpy(out->at, "\x93NUMPY\x01\x00", 8);
    out->at[8] = (uint8_t)bytes;
    out->at[9] = 0;
    memcpy(out->at + 10, head, (size_t)bytes);
    for (size_t i = 0; i < values; i++)
        out->at[10 + (size_t)bytes + i] = (uint8_t)(i * 37);
    out->count = 10 + (size_t)bytes + values;
    return 10 + (size_t)bytes;
}

/* An input of memory that ends where it ends: a read beyond it is seen. */
static enum aq_status decode(const struct bytes *file, size_t count, struct image *out)
{
    uint8_t *own = malloc(count ? count : 1);
    memcpy(own, file->at, count);
    aq_error_clear();
    const enum aq_status status = image_decode("an.image", own, count, out);
    free(own);
    assert_true(status == AQ_OK || strncmp(aq_error_text(), "an.image: ", 10) == 0);
    return status;
}

static void test_png_files_of_every_type_are_read(void **state)
{
    (void)state;
    static const struct {
        int type, depth;
    } forms[] = {{PNG_COLOR_TYPE_GRAY, 1}, {PNG_COLOR_TYPE_GRAY, 2},    {PNG_COLOR_TYPE_GRAY, 4},
                 {PNG_COLOR_TYPE_GRAY, 8}, {PNG_COLOR_TYPE_GRAY, 16},   {PNG_COLOR_TYPE_RGB, 8},
                 {PNG_COLOR_TYPE_RGB, 16}, {PNG_COLOR_TYPE_PALETTE, 8}, {PNG_COLOR_TYPE_GA, 8},
                 {PNG_COLOR_TYPE_GA, 16},  {PNG_COLOR_TYPE_RGBA, 8},    {PNG_COLOR_TYPE_RGBA, 16}};
    for (size_t f = 0; f < sizeof forms / sizeof *forms; f++)
        for (int interlace = 0; interlace < 2; interlace++) {
            static struct bytes file;
            struct image image;
            const int type = forms[f].type, depth = forms[f].depth;
            const bool colour = type & PNG_COLOR_MASK_COLOR, palette = type == PNG_COLOR_TYPE_PALETTE;
            png_make(type, depth, interlace, &file);
            assert_int_equal(decode(&file, file.count, &image), AQ_OK);
            assert_int_equal(image.height, HEIGHT);
            assert_int_equal(image.width, WIDTH);
            assert_int_equal(image.colours, colour ? 3 : 1);
            assert_int_equal(image.most, depth == 16 ? 65535 : 255);
            for (uint32_t i = 0; i < HEIGHT * WIDTH * image.colours; i++) {
                const uint32_t at = i / image.colours, c = i % image.colours, most = (1u << depth) - 1;
                const uint32_t in = pixel(at / WIDTH, at % WIDTH, palette ? 0 : c, most);
                const uint32_t shown = palette ? (c == 0 ? in : c == 1 ? 255 - in : in / 2) : in * image.most / most;
                assert_int_equal(image.values[i], shown);
            }
            image_free(&image);
        }
}

static void test_jpeg_files_are_read(void **state)
{
    (void)state;
    for (int form = 0; form < 4; form++) {
        static struct bytes file;
        struct image image;
        const int colours = form & 1 ? 3 : 1;
        jpeg_make(colours, colours == 3 ? JCS_RGB : JCS_GRAYSCALE, form & 2, HEIGHT, &file);
        assert_int_equal(decode(&file, file.count, &image), AQ_OK);
        assert_true(image.height == HEIGHT && image.width == WIDTH && image.most == 255);
        assert_int_equal(image.colours, colours);
        for (int i = 0; i < HEIGHT * WIDTH * colours; i++) {
            const int at = i / colours, wanted = 20 * (at / WIDTH) + 8 * (at % WIDTH) + 10 * (i % colours);
            assert_in_range(image.values[i] + 6, wanted, wanted + 12);
        }
        image_free(&image);
    }
    static struct bytes file;
    struct image image;
    jpeg_make(4, JCS_CMYK, 0, HEIGHT, &file);
    assert_int_equal(decode(&file, file.count, &image), AQ_CORRUPT);
    assert_non_null(strstr(aq_error_text(), "CMYK"));
}

static void test_npy_files_are_read(void **state)
{
    (void)state;
    static const struct {
        const char *type, *shape;
        uint32_t colours, each;
    } forms[] = {{"|u1", "(6, 9)", 1, 1},
                 {"|u1", "(6,9,1)", 1, 1},
                 {"|u1", "(6, 9, 3)", 3, 1},
                 {"<u2", "(6, 9)", 1, 2},
                 {">u2", "( 6 , 9 , 3 , )", 3, 2}};
    for (size_t f = 0; f < sizeof forms / sizeof *forms; f++) {
        static struct bytes file;
        struct image image;
        const size_t values = (size_t)HEIGHT * WIDTH * forms[f].colours;
        const size_t first = npy_make(forms[f].type, forms[f].shape, values * forms[f].each, &file);
        assert_int_equal(decode(&file, file.count, &image), AQ_OK);
        assert_true(image.height == HEIGHT && image.width == WIDTH && image.colours == forms[f].colours);
        for (size_t i = 0; i < values; i++) {
            const uint8_t *at = file.at + first + i * forms[f].each;
            const bool high = forms[f].type[0] == '>';
            assert_int_equal(image.values[i], forms[f].each == 1 ? at[0] : at[high] | at[!high] << 8);
        }
        image_free(&image);
    }
    static const char *const wrong[][3] = {
        {"<f4", "(6, 9)", "uint8 or uint16"}, {"|u1", "(6, 9, 4)", "is no array of"},
        {"|u1", "(54,)", "is no array of"},   {"|u1", "(6, 9", "is damaged"},
        {"|u1", "(6, 8)", "its shape needs"}, {"|u1", "(99999, 1)", "at most 67 million"},
        {"|u1", "(0, 9)", "no pixels"}};
    for (size_t f = 0; f < sizeof wrong / sizeof *wrong; f++) {
        static struct bytes file;
        struct image image;
        npy_make(wrong[f][0], wrong[f][1], HEIGHT * WIDTH, &file);
        assert_true(decode(&file, file.count, &image) != AQ_OK);
        if (!strstr(aq_error_text(), wrong[f][2])) fail_msg("%s: not %s", aq_error_text(), wrong[f][2]);
    }
}

/* Cut short anywhere, or with any byte changed: refused, or an image of its size; never more. */
static void test_damaged_files_are_refused(void **state)
{
    (void)state;
    static struct bytes files[4], damaged;
    struct image image;
    png_make(PNG_COLOR_TYPE_RGB, 8, 0, &files[0]);
    png_make(PNG_COLOR_TYPE_GRAY, 16, 1, &files[1]);
    jpeg_make(3, JCS_RGB, 0, HEIGHT, &files[2]);
    jpeg_make(3, JCS_RGB, 1, HEIGHT, &files[3]);
    for (int f = 0; f < 4; f++) {
        for (size_t count = 0; count + 2 < files[f].count; count++) /* two: a JPEG's end marker */
            if (decode(&files[f], count, &image) == AQ_OK) fail_msg("file %d of %zu bytes is read", f, count);
        for (size_t i = 0; i < files[f].count; i++)
            for (int bit = 0; bit < 8; bit += 3) {
                damaged = files[f];
                damaged.at[i] ^= (uint8_t)(1 << bit);
                if (decode(&damaged, damaged.count, &image) == AQ_OK) image_free(&image);
            }
    }
}

/* A file of some bytes that states 64,000 x 1,000 pixels: nothing of that size is taken. */
static void test_a_bomb_is_refused_before_memory_is_taken(void **state)
{
    (void)state;
    static struct bytes file;
    struct image image;
    for (int extent = 0; extent < 2; extent++) {
        png_make(PNG_COLOR_TYPE_RGB, 8, 0, &file);
        const uint32_t width = extent ? 64000 : 70000, height = 1000;
        for (int i = 0; i < 4; i++) {
            file.at[16 + i] = (uint8_t)(width >> (24 - 8 * i));
            file.at[20 + i] = (uint8_t)(height >> (24 - 8 * i));
        }
        const uint32_t crc = (uint32_t)crc32(0, file.at + 12, 17);
        for (int i = 0; i < 4; i++)
            file.at[29 + i] = (uint8_t)(crc >> (24 - 8 * i));
        aq_memory_fail_at(1);
        assert_true(decode(&file, file.count, &image) != AQ_OK);
        aq_memory_fail_at(0);
        assert_true(strstr(aq_error_text(), "damaged") || strstr(aq_error_text(), "at most 67 million"));
    }
}

/* A blank image of two colours: its pixels take 24 x 1032 times its bytes where it is large. */
static void test_an_image_that_packs_well_is_read(void **state)
{
    (void)state;
    enum { SIDE = 1000 };
    static struct bytes file;
    static png_byte row[SIDE / 8];
    png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, NULL, NULL, NULL);
    png_infop info = png_create_info_struct(png);
    const png_color palette[2] = {{9, 8, 7}, {255, 255, 255}};
    struct image image;
    file.count = 0;
    png_set_write_fn(png, &file, put_bytes, NULL);
    png_set_compression_level(png, 9);
    png_set_IHDR(png, info, SIDE, SIDE, 1, PNG_COLOR_TYPE_PALETTE, PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT,
                 PNG_FILTER_TYPE_DEFAULT);
    png_set_PLTE(png, info, palette, 2);
    png_write_info(png, info);
    for (int y = 0; y < SIDE; y++)
        png_write_row(png, row);
    png_write_end(png, info);
    png_destroy_write_struct(&png, &info);
    assert_in_range(file.count, 1, SIDE * SIDE * 3 / 1032 / 8);
    assert_int_equal(decode(&file, file.count, &image), AQ_OK);
    for (uint32_t i = 0; i < SIDE * SIDE * 3; i++)
        assert_true(image.values[i] == 9 - i % 3);
    image_free(&image);
}

/* ---- tables ---- */

static enum aq_status table_open(const char *text, struct aq_dataset_config *more, struct aq_dataset **out)
{
    const char *const paths[] = {table};
    struct aq_dataset_config config = *more;
    data_write_text(folder, "labels.csv", text);
    config.kind = "image_files";
    config.paths = paths;
    config.path_count = 1;
    if (!config.image.side) config.image.side = 4;
    aq_error_clear();
    return aq_dataset_open(&config, out);
}

static void write_image(const char *name, int shade)
{
    static struct bytes file;
    char shape[] = "(6, 9)";
    const size_t first = npy_make("|u1", shape, HEIGHT * WIDTH, &file);
    memset(file.at + first, shade, HEIGHT * WIDTH);
    data_write(folder, name, file.at, file.count);
}

static void test_bad_rows_name_file_line_and_cause(void **state)
{
    (void)state;
    static const struct {
        const char *text, *wanted;
    } cases[] = {{"", "has no row with an image"},
                 {"file,label\n", "has no row with an image"},
                 {"image,label\na.npy,0\n", "labels.csv:1: has no column file"},
                 {"file,class\na.npy,0\n", "labels.csv:1: has no column label"},
                 {"file,label\na.npy,0\nc.npy,0\n", "labels.csv:3: "},
                 {"file,label\na.npy,0\nc.npy,0\n", "c.npy: there is no such file"},
                 {"file,label\na.npy,0\n.,1\n", "is no file"},
                 {"file,label\n,0\n", "labels.csv:2: names no file"},
                 {"file,label\na.npy,\n", "labels.csv:2: the label \"\" is not a number"},
                 {"file,label\na.npy,x\n",
                  "labels.csv:2: the label \"x\" is not a number from 0; name the labels in data.labels"},
                 {"file,label\na.npy,-1\n", "is not a number from 0"},
                 {"file,label\na.npy,99999999\n", "is not a number from 0 to 1048575"},
                 {"file,label\n../a.npy,0\n", "names a file outside of the table's folder"},
                 {"file,label\n/etc/passwd,0\n", "names a file outside of the table's folder"},
                 {"file,label\na.npy,0\n./a.npy,1\n", "labels.csv:3: "},
                 {"file,label\na.npy,0\n./a.npy,1\n", "labels.csv line 2, too"},
                 {"file,label\na.npy,0\n.//././a.npy,1\n", "labels.csv line 2, too"},
                 {"file,label\na.npy/b.npy,0\n", "b.npy: there is no such file"},
                 {"file,label\na.npy\n", "labels.csv:2: "},
                 {"file,label\nlabels.csv,0\n", "is no PNG, JPEG or NPY file: convert it to PNG"},
                 {"file,label\nempty.png,0\n", "empty.png: is empty"},
                 {"file,label\nx.npy,0\ny.npy,0\n", "the first of 2 bad lines"}};
    struct aq_dataset *data = NULL;
    write_image("a.npy", 10);
    data_write(folder, "empty.png", "", 0);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        assert_true(table_open(cases[c].text, &(struct aq_dataset_config){0}, &data) != AQ_OK);
        if (!strstr(aq_error_text(), cases[c].wanted)) fail_msg("%s: not %s", aq_error_text(), cases[c].wanted);
    }
    struct aq_dataset_config named = {.columns = {.names = "cat, dog", .label = "animal"}};
    assert_int_equal(table_open("animal,file,x\nbird,a.npy,\n", &named, &data), AQ_CORRUPT);
    assert_non_null(strstr(aq_error_text(), "labels.csv:2: the label \"bird\" is not in data.labels"));
    assert_int_equal(table_open("animal,file,x\ndog,a.npy,\n", &named, &data), AQ_OK);
    assert_int_equal(aq_dataset_outputs(data), 2);
    aq_dataset_close(data);
}

static void test_bad_rows_are_skipped_where_that_is_asked(void **state)
{
    (void)state;
    static float pixels[48];
    int32_t label;
    struct aq_dataset *data;
    write_image("a.npy", 0);
    write_image("b.npy", 255);
    data_write_text(folder, "bad.png", "\x89PNG\r\n\x1a\n and no more");
    struct aq_dataset_config config = {.skip_invalid = 4};
    assert_int_equal(
        table_open("file,label\nbad.png,3\na.npy,1\nnone.png,0\na.npy,1\nb.npy,x\nb.npy,2\n", &config, &data), AQ_OK);
    assert_int_equal(aq_dataset_count(data), 2);
    assert_int_equal(aq_dataset_outputs(data), 4);
    assert_int_equal(aq_dataset_get(data, 1, (void *const[AQ_BATCH_FIELDS_MAX]){pixels, &label}), AQ_OK);
    assert_true(label == 2 && pixels[0] == 1.0f && pixels[47] == 1.0f);
    aq_dataset_close(data);
    config.skip_invalid = 3;
    assert_int_equal(
        table_open("file,label\nbad.png,3\na.npy,1\nnone.png,0\na.npy,1\nb.npy,x\nb.npy,2\n", &config, &data),
        AQ_CORRUPT);
}

static void test_mean_and_std_are_of_each_colour(void **state)
{
    (void)state;
    static float pixels[48];
    int32_t label;
    struct aq_dataset *data;
    write_image("a.npy", 51);
    struct aq_dataset_config config = {.image = {.mean = {3, {0.5f, 0.25f, 0.2f}}, .std = {1, {0.5f}}}};
    assert_int_equal(table_open("file,label\na.npy,0\n", &config, &data), AQ_OK);
    assert_int_equal(aq_dataset_get(data, 0, (void *const[AQ_BATCH_FIELDS_MAX]){pixels, &label}), AQ_OK);
    for (int i = 0; i < 48; i++)
        assert_float_equal(pixels[i], (i % 3 == 0 ? -0.6f : i % 3 == 1 ? -0.1f : 0.0f), 1e-6f);
    aq_dataset_close(data);
    config.image.bits = 16;
    assert_int_equal(table_open("file,label\na.npy,0\n", &config, &data), AQ_OK);
    assert_int_equal(aq_dataset_get(data, 0, (void *const[AQ_BATCH_FIELDS_MAX]){pixels, &label}), AQ_OK);
    for (int i = 0; i < 48; i++)
        assert_float_equal(pixels[i], (i % 3 == 0 ? -0.6f : i % 3 == 1 ? -0.1f : 0.0f), 1e-6f);
    aq_dataset_close(data);
    config.image.mean.count = 2;
    assert_int_equal(table_open("file,label\na.npy,0\n", &config, &data), AQ_INVAL);
    config.image.mean.count = 0;
    config.image.std.of[0] = 0;
    assert_int_equal(table_open("file,label\na.npy,0\n", &config, &data), AQ_INVAL);
}

static void times_set(const char *name, long seconds)
{
    char path[DATA_PATH_BYTES];
    const struct timespec times[2] = {{seconds, 0}, {seconds, 0}};
    assert_int_equal(utimensat(AT_FDCWD, data_path(folder, name, path), times, 0), 0);
}

/* Whatever the threads and the cache, the same records; they are read again where an image has changed. */
static void test_a_cache_keeps_the_decoded_images(void **state)
{
    (void)state;
    char text[1024] = "file,label\n", name[16];
    struct aq_dataset *data;
    for (int i = 0; i < 40; i++) {
        snprintf(name, sizeof name, "i%d.npy", i);
        write_image(name, 6 * i);
        times_set(name, 1000);
        snprintf(text + strlen(text), 32, "%s,%d\n", name, i % 5);
    }
    struct aq_dataset_config config = {.threads = 1};
    assert_int_equal(table_open(text, &config, &data), AQ_OK);
    const uint64_t digest = aq_dataset_digest(data);
    aq_dataset_close(data);
    config.cache = folder;
    for (config.threads = 0; config.threads < 4; config.threads++) {
        assert_int_equal(table_open(text, &config, &data), AQ_OK);
        assert_int_equal(aq_dataset_digest(data), digest);
        assert_int_equal(aq_dataset_count(data), 40);
        aq_dataset_close(data);
    }
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL); /* clocks of files have steps of some ms */
    write_image("i7.npy", 200);
    times_set("i7.npy", 1000); /* as before, as programs that restore files do: only its time of change differs */
    assert_int_equal(table_open(text, &config, &data), AQ_OK);
    assert_true(aq_dataset_digest(data) != digest);
    aq_dataset_close(data);
    config.samples_max = 3;
    config.skip = 2;
    assert_int_equal(table_open(text, &config, &data), AQ_OK);
    assert_int_equal(aq_dataset_count(data), 3);
    assert_int_equal(aq_dataset_outputs(data), 5);
    aq_dataset_close(data);
}

/* Records that were made without some images serve no job that allows no bad rows. */
static void test_a_cache_knows_how_many_bad_rows_were_allowed(void **state)
{
    (void)state;
    const char *text = "file,label\nbad.png,0\na.npy,1\n";
    struct aq_dataset_config config = {.cache = folder, .skip_invalid = 1};
    struct aq_dataset *data;
    write_image("a.npy", 0);
    data_write_text(folder, "bad.png", "\x89PNG\r\n\x1a\n and no more");
    assert_int_equal(table_open(text, &config, &data), AQ_OK);
    assert_int_equal(aq_dataset_count(data), 1);
    aq_dataset_close(data);
    config.skip_invalid = 0;
    assert_int_equal(table_open(text, &config, &data), AQ_CORRUPT);
}

static int begin(void **state)
{
    (void)state;
    data_folder_open(folder);
    data_path(folder, "labels.csv", table);
    data_be_quiet();
    return 0;
}

static int end(void **state)
{
    (void)state;
    data_folder_close(folder);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_png_files_of_every_type_are_read),
        cmocka_unit_test(test_jpeg_files_are_read),
        cmocka_unit_test(test_npy_files_are_read),
        cmocka_unit_test(test_damaged_files_are_refused),
        cmocka_unit_test(test_a_bomb_is_refused_before_memory_is_taken),
        cmocka_unit_test(test_an_image_that_packs_well_is_read),
        cmocka_unit_test(test_bad_rows_name_file_line_and_cause),
        cmocka_unit_test(test_bad_rows_are_skipped_where_that_is_asked),
        cmocka_unit_test(test_mean_and_std_are_of_each_colour),
        cmocka_unit_test(test_a_cache_keeps_the_decoded_images),
        cmocka_unit_test(test_a_cache_knows_how_many_bad_rows_were_allowed),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
