/*
 * fuzz_images.c -- any bytes as an image file of each format, and as a table of images.
 *
 * Byte 0: of the table (bit 0) or a file; of a file which first bytes it has (bits 1 and 2: PNG, JPEG, NPY, or none);
 * fit (8); 16 bits (16); byte 1: the side. Then the bytes.
 */
#include <string.h>

#include "fuzz.h"
#include "image_read.h"
#include "stages/dataset.h"

enum { BYTES_MAX = 1 << 16, SIDE_MAX = 32, VALUES_MAX = SIDE_MAX * SIDE_MAX * 3 };

static void read_file(const uint8_t *bytes, size_t count, const struct aq_dataset_image *how)
{
    static uint16_t values[VALUES_MAX];
    struct image image;
    const uint32_t most = how->bits == 16 ? UINT16_MAX : UINT8_MAX;
    const enum aq_status status = image_decode("image", bytes, count, &image);
    fuzz_told(status == AQ_OK);
    if (status != AQ_OK) {
        AQ_ASSERT(status == AQ_CORRUPT || status == AQ_INVAL);
        return;
    }
    AQ_ASSERT(image_square(&image, how->side, how->fit, most, values) == AQ_OK);
    for (uint32_t i = 0; i < how->side * how->side * 3; i++)
        AQ_ASSERT(values[i] <= most);
    image_free(&image);
}

static void read_table(const uint8_t *bytes, size_t count, const struct aq_dataset_image *how)
{
    static const char npy[] =
        "\x93NUMPY\x01\x00\x3d\x00{'descr': '|u1', 'fortran_order': False, 'shape': (2, 2)}\n   abcd";
    static float pixels[VALUES_MAX];
    const char *paths[] = {fuzz_path("table.csv")};
    struct aq_dataset *data;
    int32_t label;
    fuzz_write("a", npy, sizeof npy - 1);
    fuzz_write("table.csv", bytes, count);
    const struct aq_dataset_config config = {
        .kind = "image_files", .paths = paths, .path_count = 1, .threads = 1, .image = *how};
    const enum aq_status status = aq_dataset_open(&config, &data);
    fuzz_told(status == AQ_OK);
    if (status != AQ_OK) {
        AQ_ASSERT(status == AQ_CORRUPT || status == AQ_INVAL);
        return;
    }
    for (uint64_t i = 0; i < aq_dataset_count(data); i++) {
        AQ_ASSERT(aq_dataset_get(data, i, (void *const[AQ_BATCH_FIELDS_MAX]){pixels, &label}) == AQ_OK);
        AQ_ASSERT(label >= 0 && (uint32_t)label < aq_dataset_outputs(data));
    }
    aq_dataset_close(data);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct fuzz_piece starts[] = {{(const uint8_t *)"\x89PNG\r\n\x1a\n", 8},
                                               {(const uint8_t *)"\xff\xd8\xff", 3},
                                               {(const uint8_t *)"\x93NUMPY", 6},
                                               {(const uint8_t *)"", 0}};
    static uint8_t file[BYTES_MAX + 8];
    struct fuzz_piece rest = {data, size};
    fuzz_quiet();
    if (size > BYTES_MAX) return 0;
    const uint8_t how = fuzz_byte(&rest), side = fuzz_byte(&rest);
    const struct aq_dataset_image image = {
        .side = 1 + side % SIDE_MAX, .bits = how & 16 ? 16 : 8, .fit = how & 8 ? AQ_DATASET_STRETCH : AQ_DATASET_CROP};
    if (how & 1) {
        read_table(rest.bytes, rest.count, &image);
        return 0;
    }
    const struct fuzz_piece *start = &starts[how >> 1 & 3];
    memcpy(file, start->bytes, start->count);
    if (rest.count) memcpy(file + start->count, rest.bytes, rest.count);
    read_file(file, start->count + rest.count, &image);
    return 0;
}
