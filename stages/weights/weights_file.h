/*
 * weights_file.h -- an open safetensors file, as its reader and its conversions see it.
 *
 *     offset 0        8 bytes   N, the header's length, little endian
 *     offset 8        N bytes   JSON: {"name": {"dtype", "shape", "data_offsets": [begin, end]}, ..., "__metadata__"}
 *     offset 8 + N    the rest  the tensors' bytes, row-major, little endian; offsets count from here
 *
 * Locking: as weights.h.
 */
#ifndef STAGES_WEIGHTS_FILE_H
#define STAGES_WEIGHTS_FILE_H

#include <assert.h>
#include <jansson.h>

#include "stages/weights.h"

enum { AQ_WEIGHTS_DIMENSIONS_MAX = 8 };
/* The bound of the safetensors project itself: a header of 100 MB. */
#define AQ_WEIGHTS_HEADER_BYTES_MAX UINT64_C(100000000)
/* As JSON a tensor takes about 1.2 KB of memory, and a number in a list 32 bytes: 160 and 130 MB at most. */
#define AQ_WEIGHTS_TENSORS_MAX      UINT64_C(131072)
#define AQ_WEIGHTS_ITEMS_MAX        (32 * AQ_WEIGHTS_TENSORS_MAX)

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tensor bytes are taken as they are");
static_assert(sizeof(float) == 4 && sizeof(double) == 8, "as in the file");

struct aq_weights_type {
    const char *name;
    uint32_t bytes;
    /* values: count of this type, of any alignment; NULL: the type is not read as fp32. */
    void (*to_float)(const uint8_t *values, uint64_t count, float *out);
    /* count floats to this type, in their place; false: one that is finite is too large. NULL: it is not written. */
    bool (*from_float)(float *values, uint64_t count);
    uint32_t bits; /* of a value, where that is no whole byte; such types are not read */
};
/* The type of that name, or NULL. */
const struct aq_weights_type *aq_weights_type_find(const char *name);

/* weights_values.c: can tensor `index` be read as fp32, and has it `count` values? */
bool aq_weights_readable(const struct aq_weights *weights, uint32_t index, uint64_t count);
/* weights_values.c: `count` values of a tensor that can, from `first` on. */
void aq_weights_floats(const struct aq_weights *weights, uint32_t index, uint64_t first, uint64_t count, float *out);

/* weights_values.c: the tensor leaves this process's memory. */
void aq_weights_forget(const struct aq_weights *weights, uint32_t index);

/*
 * weights_source.c: the values of a tensor that is to be written, as fp32. aq_weights_source_begin goes first; it needs
 * room for some floats. floats: `count` values from `first` on, in the source's orientation. rows: of a matrix, as it
 * is written, `turned` or not. The status of `fill`; the first also AQ_NOMEM.
 */
enum aq_status aq_weights_source_begin(const struct aq_weights_tensor *tensor, float *room, uint64_t floats);
enum aq_status aq_weights_source_floats(const struct aq_weights_tensor *tensor, uint64_t first, uint64_t count,
                                        float *out);
enum aq_status aq_weights_source_rows(const struct aq_weights_tensor *tensor, uint64_t row, uint64_t rows, float *out);

/* The name without what a model's published names may have in front (`base` of models.def): "transformer.", ... */
const char *aq_weights_bare_name(const char *name);

/*
 * weights_header.c: names of BERT's first files, "LayerNorm.gamma" and "LayerNorm.beta", become "LayerNorm.weight" and
 * "LayerNorm.bias", as transformers reads them. AQ_NOMEM.
 */
enum aq_status aq_weights_names_renew(const char *path, json_t *names);

struct aq_weights_file;

struct aq_weights_entry {
    const char *name; /* of the header */
    const struct aq_weights_file *file;
    const struct aq_weights_type *type;
    uint32_t dimensions;
    uint64_t shape[AQ_WEIGHTS_DIMENSIONS_MAX];
    uint64_t count;
    uint64_t begin, end; /* offsets in the file's data */
};

/* One file. */
struct aq_weights_file {
    char *path;
    uint8_t *file; /* mapped */
    size_t file_bytes;
    json_t *header; /* owns the names */
    const uint8_t *data;
    uint64_t data_bytes;
    struct aq_weights_entry *entries; /* in order of their bytes */
    uint32_t count;
};

/* weights_header.c: takes the descriptor, whatever it answers; close is due in any case. *out is zero. */
enum aq_status aq_weights_file_open(int file, const char *path, struct aq_weights_file *out);
void aq_weights_file_close(struct aq_weights_file *file);

/* weights_header.c: bytes that were read and are not wanted any more leave this process's memory. */
void aq_weights_release(const struct aq_weights_file *file, const uint8_t *bytes, uint64_t count);

/* weights_set.c: refuses a pickle, with the line that makes safetensors of it. AQ_CORRUPT. */
enum aq_status aq_weights_pickle(const char *path);

/* A file, or those of a folder. */
struct aq_weights {
    char *path; /* as it was asked for: errors name it */
    struct aq_weights_file *files;
    uint32_t file_count;
    const struct aq_weights_entry **entries; /* file after file, each in order of its bytes */
    const struct aq_weights_entry **sorted;  /* by name without base, then by name          */
    uint32_t count;
};

/* weights_set.c: the files of a folder. wants, context: as aq_weights_open_wanted. */
enum aq_status aq_weights_set_open(const char *folder, aq_weights_wants *wants, void *context,
                                   struct aq_weights *weights);

#endif
