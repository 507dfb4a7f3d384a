/*
 * test_image_memory.c -- no memory for libpng, libjpeg or what is around them, at every allocation in turn: it is told
 * as that in one line, never as damage of the file and never as a bad row; nothing is lost, and no pixel differs.
 *
 * malloc and its kin stand here under their own names, so that those of libraries pass here, too.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data_files.h"
#include "image_make.h"
#include "image_read.h"
#include "stages/dataset.h"

/* glibc's own names of them. */
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);
void *__libc_memalign(size_t align, size_t bytes);
void __libc_free(void *memory);

#define EXPORTED __attribute__((visibility("default"))) /* libraries find it */
EXPORTED void *malloc(size_t bytes);
EXPORTED void *calloc(size_t count, size_t bytes);
EXPORTED void *realloc(void *memory, size_t bytes);
EXPORTED void *aligned_alloc(size_t align, size_t bytes);
EXPORTED void free(void *memory);

enum { CALLS_MAX = 5000 };

static _Thread_local bool counts; /* calls of this thread */
static uint64_t left;             /* the call that fails; 0: none, or it has been */
static int64_t blocks;            /* taken, less those given back */

static bool fails(void)
{
    if (!counts || left == 0 || --left > 0) return false;
    errno = ENOMEM;
    return true;
}

static void *taken(void *memory)
{
    if (counts && memory) blocks++;
    return memory;
}

void *malloc(size_t bytes)
{
    return fails() ? NULL : taken(__libc_malloc(bytes));
}

void *calloc(size_t count, size_t bytes)
{
    return fails() ? NULL : taken(__libc_calloc(count, bytes));
}

void *realloc(void *memory, size_t bytes)
{
    if (fails()) return NULL;
    void *out = __libc_realloc(memory, bytes);
    return memory ? out : taken(out);
}

void *aligned_alloc(size_t align, size_t bytes)
{
    return fails() ? NULL : taken(__libc_memalign(align, bytes));
}

void free(void *memory)
{
    if (counts && memory) blocks--;
    __libc_free(memory);
}

/* From here on the n-th call fails. */
static void fault_begin(uint64_t n)
{
    left = n;
    blocks = 0;
    counts = true;
}

/* Was there an n-th call? */
static bool fault_end(void)
{
    counts = false;
    return left == 0;
}

static struct bytes files[7];
static const char *const names[] = {"grey.png", "rgb16.png", "palette.png",    "alpha.png",
                                    "grey.jpg", "rgb.jpg",   "progressive.jpg"};
enum { FILES = sizeof names / sizeof *names };

static void check_told(const char *name, uint64_t n, enum aq_status status)
{
    const char *text = aq_error_text();
    if (status != AQ_NOMEM || (!strstr(text, "memory") && !strstr(text, "cannot allocate")) || strchr(text, '\n'))
        fail_msg("%s, allocation %llu: status %d, \"%s\"", name, (unsigned long long)n, status, text);
}

static void test_each_allocation_of_a_decoder_is_told(void **state)
{
    (void)state;
    for (int f = 0; f < FILES; f++) {
        struct image whole, image;
        bool fired = true;
        assert_int_equal(image_decode(names[f], files[f].at, files[f].count, &whole), AQ_OK);
        const size_t bytes = (size_t)whole.height * whole.width * whole.colours * sizeof *whole.values;
        uint64_t n = 1;
        for (; fired; n++) {
            assert_true(n < CALLS_MAX);
            aq_error_clear();
            fault_begin(n);
            const enum aq_status status = image_decode(names[f], files[f].at, files[f].count, &image);
            counts = false;
            if (status != AQ_OK)
                check_told(names[f], n, status);
            else
                assert_memory_equal(image.values, whole.values, bytes);
            counts = true;
            if (status == AQ_OK) image_free(&image);
            fired = fault_end();
            if (blocks != 0)
                fail_msg("%s, allocation %llu: %lld blocks are lost", names[f], (unsigned long long)n,
                         (long long)blocks);
        }
        assert_true(n > 4); /* the libraries' calls are seen */
        image_free(&whole);
    }
}

/* Bad rows may be left out, and images for which there is no memory are none. */
static void test_each_allocation_of_a_table_is_told(void **state)
{
    (void)state;
    char folder[DATA_PATH_BYTES], table[DATA_PATH_BYTES], text[512] = "file,label\n";
    data_folder_open(folder);
    data_path(folder, "labels.csv", table);
    for (int f = 0; f < FILES; f++) {
        data_write(folder, names[f], files[f].at, files[f].count);
        snprintf(text + strlen(text), 64, "%s,%d\n", names[f], f % 3);
    }
    data_write_text(folder, "labels.csv", text);
    const char *const paths[] = {table};
    const struct aq_dataset_config config = {.kind = "image_files",
                                             .paths = paths,
                                             .path_count = 1,
                                             .threads = 1,
                                             .skip_invalid = FILES,
                                             .image = {.side = 4, .bits = 8}};
    struct aq_dataset *data;
    assert_int_equal(aq_dataset_open(&config, &data), AQ_OK);
    const uint64_t digest = aq_dataset_digest(data);
    aq_dataset_close(data);
    bool fired = true;
    uint64_t n = 1;
    for (; fired; n++) {
        assert_true(n < CALLS_MAX);
        aq_error_clear();
        fault_begin(n);
        const enum aq_status status = aq_dataset_open(&config, &data);
        counts = false;
        if (status != AQ_OK)
            check_told("labels.csv", n, status);
        else
            assert_true(aq_dataset_digest(data) == digest && aq_dataset_count(data) == FILES);
        counts = true;
        if (status == AQ_OK) aq_dataset_close(data);
        fired = fault_end();
        if (blocks != 0) fail_msg("allocation %llu: %lld blocks are lost", (unsigned long long)n, (long long)blocks);
    }
    assert_true(n > FILES); /* an allocation of each file at least was counted */
    data_folder_close(folder);
}

/* What a user has set for libjpeg, and what it needs beyond that, is no damage of a file. */
static void test_a_limit_of_libjpeg_is_no_damage(void **state)
{
    (void)state;
    static struct bytes file;
    struct image image;
    jpeg_make(3, JCS_RGB, 1, 500, &file);
    assert_int_equal(setenv("JPEGMEM", "1", 1), 0); /* of 1000 bytes */
    const enum aq_status status = image_decode(names[6], file.at, file.count, &image);
    assert_int_equal(unsetenv("JPEGMEM"), 0);
    check_told(names[6], 0, status);
}

static int begin(void **state)
{
    (void)state;
    data_be_quiet();
    png_make(PNG_COLOR_TYPE_GRAY, 8, 0, &files[0]);
    png_make(PNG_COLOR_TYPE_RGB, 16, 1, &files[1]);
    png_make(PNG_COLOR_TYPE_PALETTE, 8, 1, &files[2]);
    png_make(PNG_COLOR_TYPE_RGBA, 8, 0, &files[3]);
    jpeg_make(1, JCS_GRAYSCALE, 0, HEIGHT, &files[4]);
    jpeg_make(3, JCS_RGB, 0, HEIGHT, &files[5]);
    jpeg_make(3, JCS_RGB, 1, HEIGHT, &files[6]);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_allocation_of_a_decoder_is_told),
        cmocka_unit_test(test_each_allocation_of_a_table_is_told),
        cmocka_unit_test(test_a_limit_of_libjpeg_is_no_damage),
    };
    return cmocka_run_group_tests(tests, begin, NULL);
}
