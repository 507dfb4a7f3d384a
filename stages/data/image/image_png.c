/* image_png.c -- PNG files, by libpng. See image_read.h. */
#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <png.h>

#include "dataset_kind.h"
#include "image_read.h"

#define AREA DATASET_AREA

enum { ZLIB_RATIO_MAX = 1032, GROWTH_MAX = 24, WHY_BYTES = 160, CHUNKS_MAX = 64, CHUNK_BYTES_MAX = 1 << 20 };

struct reader {
    const char *path;
    const uint8_t *at;
    size_t left;
    png_structp png;
    png_infop info;
    struct image *out;
    enum aq_status status;
    char why[WHY_BYTES];
};

static void on_error(png_structp png, png_const_charp why)
{
    struct reader *reader = png_get_error_ptr(png);
    snprintf(reader->why, sizeof reader->why, "%s", why);
    png_longjmp(png, 1);
}

static void on_warning(png_structp png, png_const_charp why)
{
    (void)png;
    (void)why;
}

static void read_bytes(png_structp png, png_bytep out, size_t count)
{
    struct reader *reader = png_get_io_ptr(png);
    if (count > reader->left) png_error(png, "it is cut short");
    memcpy(out, reader->at, count);
    reader->at += count;
    reader->left -= count;
}

/* As rows of grey or of three colours, in 8 or 16 bits of this machine's order. */
static void transform(struct reader *reader)
{
    const int type = png_get_color_type(reader->png, reader->info),
              depth = png_get_bit_depth(reader->png, reader->info);
    if (type == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(reader->png);
    if (type == PNG_COLOR_TYPE_GRAY && depth < 8) png_set_expand_gray_1_2_4_to_8(reader->png);
    png_set_strip_alpha(reader->png); /* also what a palette has of it */
    if (depth == 16) png_set_swap(reader->png);
}

static void read_rows(struct reader *reader, int passes)
{
    const struct image *image = reader->out;
    const size_t row = (size_t)image->width * image->colours;
    for (int pass = 0; pass < passes; pass++)
        for (uint32_t y = 0; y < image->height; y++)
            png_read_row(reader->png,
                         image->most > UINT8_MAX ? (png_bytep)(image->values + y * row) : image_row_bytes(image, y),
                         NULL);
    for (uint32_t y = 0; y < image->height && image->most == UINT8_MAX; y++)
        image_row_widen(image, y);
}

/* libpng comes back here from its errors: nothing that changes behind setjmp is read then but what `reader` has. */
static void read_image(struct reader *reader)
{
    if (setjmp(png_jmpbuf(reader->png))) {
        const bool full = strstr(reader->why, "ut of memory") || strstr(reader->why, "insufficient memory");
        reader->status = full ? aq_fail(AQ_NOMEM, AREA, "%s: no memory for libpng", reader->path)
                              : aq_fail(AQ_CORRUPT, AREA, "%s: the PNG file is damaged: %s", reader->path, reader->why);
        return;
    }
    png_set_read_fn(reader->png, reader, read_bytes);
    png_set_user_limits(reader->png, IMAGE_EXTENT_MAX, IMAGE_EXTENT_MAX);
    png_set_chunk_cache_max(reader->png, CHUNKS_MAX);
    png_set_chunk_malloc_max(reader->png, CHUNK_BYTES_MAX);
    png_read_info(reader->png, reader->info);
    transform(reader);
    const int passes = png_set_interlace_handling(reader->png);
    png_read_update_info(reader->png, reader->info);
    /* zlib packs no more than 1032 to 1, and a palette's bit becomes 3 bytes: a short file that states a large image is
     * damaged, or a trap. */
    const uint64_t rows =
        (uint64_t)png_get_image_height(reader->png, reader->info) * png_get_rowbytes(reader->png, reader->info);
    if (reader->left < rows / ZLIB_RATIO_MAX / GROWTH_MAX) png_error(reader->png, "it is cut short");
    reader->status =
        image_begin(reader->path, png_get_image_height(reader->png, reader->info),
                    png_get_image_width(reader->png, reader->info), png_get_channels(reader->png, reader->info),
                    png_get_bit_depth(reader->png, reader->info) == 16 ? UINT16_MAX : UINT8_MAX, reader->out);
    if (reader->status != AQ_OK) return;
    read_rows(reader, passes);
    png_read_end(reader->png, NULL);
}

enum aq_status image_png(const char *path, const uint8_t *bytes, size_t count, struct image *out)
{
    struct reader reader = {.path = path, .at = bytes, .left = count, .out = out, .status = AQ_NOMEM};
    reader.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &reader, on_error, on_warning);
    if (reader.png) reader.info = png_create_info_struct(reader.png);
    if (reader.info)
        read_image(&reader);
    else
        (void)aq_fail(AQ_NOMEM, AREA, "%s: no memory for libpng", path);
    png_destroy_read_struct(&reader.png, &reader.info, NULL);
    return reader.status;
}
