/* image_jpeg.c -- JPEG files, by libjpeg-turbo. See image_read.h. */
#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <jpeglib.h>

#include <jerror.h>

#include "dataset_kind.h"
#include "image_read.h"

#define AREA DATASET_AREA

enum { SCANS_MAX = 500 }; /* of a progressive file: each takes time by the image's size, whatever its bytes */

struct reader {
    struct jpeg_error_mgr errors; /* first: libjpeg has the address of it */
    struct jpeg_progress_mgr progress;
    jmp_buf back;
    struct jpeg_decompress_struct jpeg;
    const char *path;
    const uint8_t *bytes;
    size_t count;
    struct image *out;
    enum aq_status status;
    bool full; /* no memory: that is no damage */
    char why[JMSG_LENGTH_MAX];
};

static void on_error(j_common_ptr jpeg)
{
    struct reader *reader = (struct reader *)(void *)jpeg->err;
    if (!reader->why[0]) jpeg->err->format_message(jpeg, reader->why);
    /* Beyond a limit that its user set (JPEGMEM) it would write to a disk, which it is not built for. */
    reader->full = jpeg->err->msg_code == JERR_OUT_OF_MEMORY || jpeg->err->msg_code == JERR_NO_BACKING_STORE;
    longjmp(reader->back, 1);
}

/* A warning is damage that libjpeg would fill with grey, except where it concerns no pixel. */
static void on_message(j_common_ptr jpeg, int level)
{
    const int code = jpeg->err->msg_code;
    if (level < 0 && code != JWRN_EXTRANEOUS_DATA && code != JWRN_ADOBE_XFORM && code != JWRN_JFIF_MAJOR)
        on_error(jpeg);
}

static void on_progress(j_common_ptr jpeg)
{
    struct reader *reader = (struct reader *)(void *)jpeg->err;
    if (((j_decompress_ptr)jpeg)->input_scan_number <= SCANS_MAX) return;
    snprintf(reader->why, sizeof reader->why, "it has more than %d scans", SCANS_MAX);
    on_error(jpeg);
}

static void read_image(struct reader *reader)
{
    struct jpeg_decompress_struct *jpeg = &reader->jpeg;
    if (setjmp(reader->back)) {
        reader->status = reader->full
                             ? aq_fail(AQ_NOMEM, AREA, "%s: no memory for libjpeg", reader->path)
                             : aq_fail(AQ_CORRUPT, AREA, "%s: the JPEG file is damaged: %s", reader->path, reader->why);
        return;
    }
    jpeg_create_decompress(jpeg);
    jpeg->progress = &reader->progress;
    jpeg_mem_src(jpeg, reader->bytes, reader->count);
    (void)jpeg_read_header(jpeg, TRUE);
    if (jpeg->jpeg_color_space == JCS_CMYK || jpeg->jpeg_color_space == JCS_YCCK) {
        reader->status =
            aq_fail(AQ_CORRUPT, AREA, "%s: is a JPEG file of four colours (CMYK): convert it to RGB", reader->path);
        return;
    }
    const uint32_t colours = jpeg->num_components == 1 ? 1 : 3;
    reader->status = image_begin(reader->path, jpeg->image_height, jpeg->image_width, colours, UINT8_MAX, reader->out);
    if (reader->status != AQ_OK) return;
    jpeg->out_color_space = colours == 1 ? JCS_GRAYSCALE : JCS_RGB;
    jpeg->dct_method = JDCT_ISLOW;
    (void)jpeg_start_decompress(jpeg);
    while (jpeg->output_scanline < jpeg->output_height) {
        const uint32_t y = jpeg->output_scanline;
        JSAMPROW row = image_row_bytes(reader->out, y);
        (void)jpeg_read_scanlines(jpeg, &row, 1);
        image_row_widen(reader->out, y);
    }
    (void)jpeg_finish_decompress(jpeg);
}

enum aq_status image_jpeg(const char *path, const uint8_t *bytes, size_t count, struct image *out)
{
    struct reader reader = {.path = path, .bytes = bytes, .count = count, .out = out, .status = AQ_NOMEM};
    reader.jpeg.err = jpeg_std_error(&reader.errors);
    reader.errors.error_exit = on_error;
    reader.errors.emit_message = on_message;
    reader.progress.progress_monitor = on_progress;
    read_image(&reader);
    jpeg_destroy_decompress(&reader.jpeg);
    return reader.status;
}
