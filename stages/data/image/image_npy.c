/*
 * image_npy.c -- NumPy's files of one array (format 1.0 to 3.0). See image_read.h.
 *
 *     offset 0    6 bytes   "\x93NUMPY"
 *            6    2         version, 1.0 to 3.0
 *            8    2, or 4   length of the header, little-endian; 4 from version 2 on
 *                 then      a Python dictionary, as {'descr': '|u1', 'fortran_order': False, 'shape': (32, 32, 3), }
 *                 then      the values
 */
#include <stdio.h>
#include <string.h>

#include "dataset_kind.h"
#include "image_read.h"

#define AREA DATASET_AREA

enum { START_BYTES = 8, HEAD_BYTES_MAX = 1 << 16, WORD_BYTES = 32, DIMENSIONS_MAX = 3 };

struct head {
    const char *at, *end; /* of the dictionary, not read yet */
    char type[WORD_BYTES];
    bool fortran, typed, ordered, shaped;
    uint32_t dimensions;
    uint64_t shape[DIMENSIONS_MAX];
};

static bool skip(struct head *head, char wanted)
{
    while (head->at < head->end && strchr(" \t\r\n", *head->at) && *head->at)
        head->at++;
    if (head->at == head->end || *head->at != wanted) return false;
    head->at++;
    return true;
}

/* A text in quotes of either kind. */
static bool read_text(struct head *head, char out[WORD_BYTES])
{
    const char quote = skip(head, '\'') ? '\'' : skip(head, '"') ? '"' : 0;
    const char *end = quote ? memchr(head->at, quote, (size_t)(head->end - head->at)) : NULL;
    if (!end || end - head->at >= WORD_BYTES) return false;
    memcpy(out, head->at, (size_t)(end - head->at));
    out[end - head->at] = 0;
    head->at = end + 1;
    return true;
}

static bool read_word(struct head *head, const char *word)
{
    const size_t bytes = strlen(word);
    (void)skip(head, 0); /* blanks */
    if ((size_t)(head->end - head->at) < bytes || memcmp(head->at, word, bytes) != 0) return false;
    head->at += bytes;
    return true;
}

static bool read_number(struct head *head, uint64_t *out)
{
    uint64_t value = 0;
    int digits = 0;
    (void)skip(head, 0);
    for (; head->at < head->end && *head->at >= '0' && *head->at <= '9' && digits < 10; digits++)
        value = 10 * value + (uint64_t)(*head->at++ - '0');
    *out = value;
    return digits > 0;
}

/* "(32, 32, 3)", "(32,)". More numbers than there is room for are counted. */
static bool read_shape(struct head *head)
{
    if (!skip(head, '(')) return false;
    while (!skip(head, ')')) {
        uint64_t extent;
        if (!read_number(head, &extent)) return false;
        if (head->dimensions < DIMENSIONS_MAX) head->shape[head->dimensions] = extent;
        head->dimensions++;
        if (!skip(head, ',')) return skip(head, ')');
    }
    return true;
}

static bool read_head(struct head *head)
{
    char key[WORD_BYTES];
    if (!skip(head, '{')) return false;
    while (!skip(head, '}')) {
        if (!read_text(head, key) || !skip(head, ':')) return false;
        if (strcmp(key, "descr") == 0) {
            if (head->typed || !read_text(head, head->type)) return false;
            head->typed = true;
        } else if (strcmp(key, "fortran_order") == 0) {
            head->fortran = read_word(head, "True");
            if (head->ordered || (!head->fortran && !read_word(head, "False"))) return false;
            head->ordered = true;
        } else if (strcmp(key, "shape") == 0) {
            if (head->shaped || !read_shape(head)) return false;
            head->shaped = true;
        } else {
            return false;
        }
        if (!skip(head, ',')) return skip(head, '}') && head->typed && head->ordered && head->shaped;
    }
    return head->typed && head->ordered && head->shaped;
}

/* The dictionary: *first is where the values begin. */
static enum aq_status find_head(const char *path, const uint8_t *bytes, size_t count, struct head *head, size_t *first)
{
    const bool wide = count > START_BYTES && bytes[6] >= 2;
    const size_t from = START_BYTES + (wide ? 4 : 2);
    size_t length = 0;
    if (count >= from && (bytes[6] < 1 || bytes[6] > 3))
        return aq_fail(AQ_CORRUPT, AREA, "%s: is of version %u of NPY, 1 to 3 are read", path, bytes[6]);
    for (int i = wide ? 3 : 1; count >= from && i >= 0; i--)
        length = length << 8 | bytes[START_BYTES + i];
    if (count < from || length > HEAD_BYTES_MAX || length > count - from)
        return aq_fail(AQ_CORRUPT, AREA, "%s: the NPY file is cut short", path);
    *first = from + length;
    head->at = (const char *)bytes + from;
    head->end = head->at + length;
    return read_head(head) ? AQ_OK : aq_fail(AQ_CORRUPT, AREA, "%s: the header of the NPY file is damaged", path);
}

enum aq_status image_npy(const char *path, const uint8_t *bytes, size_t count, struct image *out)
{
    struct head head = {.at = NULL};
    size_t first = 0;
    AQ_TRY(find_head(path, bytes, count, &head, &first));
    const bool narrow = strcmp(head.type, "|u1") == 0, wide = strcmp(head.type, "<u2") == 0;
    const bool turned = strcmp(head.type, ">u2") == 0;
    if (!narrow && !wide && !turned)
        return aq_fail(AQ_CORRUPT, AREA, "%s: has values of type %s: save it as uint8 or uint16", path, head.type);
    const uint64_t colours = head.dimensions == 3 ? head.shape[2] : 1;
    if (head.fortran || head.dimensions < 2 || head.dimensions > 3 || (colours != 1 && colours != 3))
        return aq_fail(AQ_CORRUPT, AREA,
                       "%s: is no array of (height, width), (height, width, 1) or (height, width, 3) in "
                       "C's order",
                       path);
    AQ_TRY(image_check(path, head.shape[0], head.shape[1]));
    const size_t values = (size_t)(head.shape[0] * head.shape[1] * colours), each = narrow ? 1 : 2;
    if (count - first != values * each)
        return aq_fail(AQ_CORRUPT, AREA, "%s: has %zu bytes of values, its shape needs %zu: the NPY file is damaged",
                       path, count - first, values * each);
    AQ_TRY(image_begin(path, head.shape[0], head.shape[1], (uint32_t)colours, narrow ? UINT8_MAX : UINT16_MAX, out));
    const uint8_t *at = bytes + first;
    for (size_t i = 0; i < values; i++, at += each)
        out->values[i] = narrow ? at[0] : (uint16_t)(wide ? at[0] | at[1] << 8 : at[0] << 8 | at[1]);
    return AQ_OK;
}
