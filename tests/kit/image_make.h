/*
 * image_make.h -- small PNG and JPEG files in memory, by libpng's and libjpeg's own writers.
 */
#ifndef KIT_IMAGE_MAKE_H
#define KIT_IMAGE_MAKE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#pragma push_macro("main") /* the kit's; jpeglib.h has members of that name */
#undef main
#include <jpeglib.h>
#pragma pop_macro("main")
#include <png.h>
#include <zlib.h>

enum { HEIGHT = 6, WIDTH = 9, FILE_BYTES = 1 << 16 };

static inline uint32_t pixel(uint32_t y, uint32_t x, uint32_t colour, uint32_t most)
{
    return (y * 7919u + x * 104729u + colour * 1299709u) % (most + 1);
}

struct bytes {
    uint8_t at[FILE_BYTES];
    size_t count;
};

static inline void put_bytes(png_structp png, png_bytep from, size_t count)
{
    struct bytes *out = png_get_io_ptr(png);
    assert_true(out->count + count <= FILE_BYTES);
    memcpy(out->at + out->count, from, count);
    out->count += count;
}

/* A PNG file of these pixels; alpha, where the type has it, is 1. */
static inline void png_make(int type, int depth, int interlace, struct bytes *out)
{
    png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, NULL, NULL, NULL);
    png_infop info = png_create_info_struct(png);
    png_bytep rows[HEIGHT];
    uint8_t memory[HEIGHT][WIDTH * 4 * 2];
    png_color palette[256];
    out->count = 0;
    png_set_write_fn(png, out, put_bytes, NULL);
    png_set_IHDR(png, info, WIDTH, HEIGHT, depth, type, interlace, PNG_COMPRESSION_TYPE_DEFAULT,
                 PNG_FILTER_TYPE_DEFAULT);
    for (uint32_t i = 0; i < 256; i++)
        palette[i] = (png_color){(png_byte)i, (png_byte)(255 - i), (png_byte)(i / 2)};
    const png_byte alphas[2] = {0, 128};
    if (type == PNG_COLOR_TYPE_PALETTE) {
        png_set_PLTE(png, info, palette, 256);
        png_set_tRNS(png, info, alphas, 2, NULL);
    }
    const int channels = type == PNG_COLOR_TYPE_RGB    ? 3
                         : type == PNG_COLOR_TYPE_RGBA ? 4
                         : type == PNG_COLOR_TYPE_GA   ? 2
                                                       : 1;
    for (uint32_t y = 0; y < HEIGHT; y++) {
        rows[y] = memory[y];
        memset(rows[y], 0, sizeof memory[y]);
        for (uint32_t v = 0; v < (uint32_t)(WIDTH * channels); v++) {
            const bool alpha = (channels & 1) == 0 && (int)v % channels == channels - 1;
            const uint32_t value =
                alpha ? 1 : pixel(y, v / (uint32_t)channels, v % (uint32_t)channels, (1u << depth) - 1);
            if (depth == 16) {
                rows[y][2 * v] = (png_byte)(value >> 8);
                rows[y][2 * v + 1] = (png_byte)value;
            } else {
                rows[y][v * (uint32_t)depth / 8] |= (png_byte)(value << (8 - depth - (int)(v * (uint32_t)depth % 8)));
            }
        }
    }
    png_set_rows(png, info, rows);
    png_write_png(png, info, PNG_TRANSFORM_IDENTITY, NULL);
    png_destroy_write_struct(&png, &info);
}

static inline void jpeg_make(int colours, J_COLOR_SPACE space, int progressive, uint32_t height, struct bytes *out)
{
    struct jpeg_compress_struct jpeg;
    struct jpeg_error_mgr errors;
    unsigned char *memory = NULL;
    unsigned long count = 0;
    uint8_t row[WIDTH * 4];
    jpeg.err = jpeg_std_error(&errors);
    jpeg_create_compress(&jpeg);
    jpeg_mem_dest(&jpeg, &memory, &count);
    jpeg.image_width = WIDTH;
    jpeg.image_height = height;
    jpeg.input_components = colours;
    jpeg.in_color_space = space;
    jpeg_set_defaults(&jpeg);
    jpeg_set_quality(&jpeg, 100, TRUE);
    if (progressive) jpeg_simple_progression(&jpeg);
    jpeg_start_compress(&jpeg, TRUE);
    while (jpeg.next_scanline < height) {
        for (int i = 0; i < WIDTH * colours; i++) /* smooth: JPEG keeps it */
            row[i] = (uint8_t)(20 * jpeg.next_scanline + 8 * (uint32_t)(i / colours) + 10 * (uint32_t)(i % colours));
        JSAMPROW rows[] = {row};
        jpeg_write_scanlines(&jpeg, rows, 1);
    }
    jpeg_finish_compress(&jpeg);
    jpeg_destroy_compress(&jpeg);
    assert_true(count <= FILE_BYTES);
    memcpy(out->at, memory, count);
    out->count = count;
    free(memory);
}

#endif
