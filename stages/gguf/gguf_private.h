/*
 * gguf_private.h -- the parts of a GGUF file; private to stages/gguf/.
 *
 *     gguf.c            opens and closes; the list of what is refused
 *     gguf_keys.c       pairs of key and value, as bytes
 *     gguf_model.c      the table of families: architecture, its keys, names and order of tensors
 *     gguf_tokens.c     the tokens of a vocabulary, its merges and special tokens
 *     gguf_pre.c        pre-tokenizers and normalizers by the names that llama.cpp has for them
 *     gguf_write.c      the file: header, tensors, their types
 *
 * Locking: as gguf.h.
 */
#ifndef GGUF_PRIVATE_H
#define GGUF_PRIVATE_H

#include <jansson.h>

#include "decoder.h"
#include "stages/gguf.h"
#include "stages/weights.h"

#define GGUF_AREA "gguf"

enum { GGUF_VERSION = 3, GGUF_ALIGNMENT = 32, GGUF_NAME_BYTES = 64, GGUF_KEY_BYTES = 128 };

/* ---- Keys and values: bytes that grow. The first error stays, and everything behind it is skipped. */

enum gguf_kind { GGUF_U32 = 4, GGUF_I32 = 5, GGUF_F32 = 6, GGUF_BOOL = 7, GGUF_STRING = 8, GGUF_ARRAY = 9 };

struct gguf_keys {
    uint8_t *at;
    size_t count, capacity;
    uint64_t pairs;
    const char *arch; /* in front of a key whose first character is a dot */
    enum aq_status status;
};
void gguf_keys_free(struct gguf_keys *keys);
void gguf_bytes(struct gguf_keys *keys, const void *bytes, size_t count);
void gguf_text(struct gguf_keys *keys, const char *text, size_t bytes); /* its length and its bytes */
void gguf_u32(struct gguf_keys *keys, const char *key, uint32_t value);
void gguf_f32(struct gguf_keys *keys, const char *key, float value);
void gguf_bool(struct gguf_keys *keys, const char *key, bool value);
void gguf_string(struct gguf_keys *keys, const char *key, const char *text, size_t bytes);
/* The head of an array; `count` values of the kind follow. */
void gguf_array(struct gguf_keys *keys, const char *key, enum gguf_kind kind, uint64_t count);

/* ---- Families. */

/* An architecture's support of windows. */
enum gguf_windows {
    GGUF_WINDOWS_CAP, /* it has none, and is exact for a context as long as the window */
    GGUF_WINDOWS_SOME,
    GGUF_WINDOWS_ALWAYS, /* without any it computes something else */
    GGUF_WINDOWS_NEVER
};

struct gguf_family {
    const char *type, *arch; /* model_type of transformers, general.architecture */
    bool turns_pairs;        /* rotates neighbours, not halves: rows of q and k change their order */
    bool in_out;             /* matrices of blocks are published as (in, out)     */
    enum gguf_windows windows;
    bool local; /* blocks with a window have their own theta         */
    bool biases_out, biases_mlp;
    uint32_t rope_every; /* the only one that it has */
    bool multiplied;     /* Granite's four multipliers */
    bool factors;        /* it reads rope_freqs.weight: factors that divide frequencies (Llama 3) */
    bool partial;        /* a part of a head may turn */
    bool square;         /* heads have model.channels channels together */
    bool capped;         /* soft caps of scores and logits, always */
    bool tied;           /* the head is the embedding, always */
    const char *norm;    /* the last norm's name; NULL: "output_norm.weight" */
    const char *norm2;   /* the same before a block's MLP; NULL: "ffn_norm.weight" */
    uint32_t scores_of;  /* with that many blocks, scores are divided by the root of channels / heads */
};

/* AQ_INVAL: no architecture of llama.cpp computes this model; names the obstacle. */
enum aq_status gguf_family_find(const struct aq_model_config *model, const struct gguf_family **out);
void gguf_family_keys(const struct gguf_family *family, const struct aq_model_config *model, struct gguf_keys *keys);

/*
 * Rows (or columns) that change their order. From `first` on they are sets of `groups` groups of `items` items of
 * `rows` rows; in the file each set has `items` times one item of each group. groups 0: all stay.
 */
struct gguf_order {
    uint64_t first;
    uint32_t groups, items, rows;
};

/* general.name, which chooses how llama.cpp reads some tokenizers: `strips` as gguf_tokens has it. */
void gguf_name(const char *name, bool strips, struct gguf_keys *keys);

/* A tensor's name in the file, and the changes of its values. */
struct gguf_place {
    char name[GGUF_NAME_BYTES];
    struct gguf_order order, columns;
    float plus; /* added to every value                          */
    bool turn;  /* against the published orientation             */
    bool plain; /* F32, whatever the type of the others          */
    bool decay; /* x is written as -exp(x) */
};
/* AQ_INVAL: the table has no name for it. */
enum aq_status gguf_place(const struct gguf_family *family, const struct aq_model_config *model, const char *tensor,
                          struct gguf_place *out);
/*
 * The tensors that follow from the configuration: factors that divide frequencies (Llama 3, LongRoPE). Tensor `index`
 * of at most GGUF_FACTOR_LISTS: its name, and its values to `most` floats; how many, 0: there is no such tensor.
 */
enum { GGUF_FACTOR_LISTS = 2 };
uint32_t gguf_rope_factors(const struct gguf_family *family, const struct aq_model_config *model, uint32_t index,
                           const char **name, float *out, uint32_t most);

/* ---- Tokenizers. */

/* Pre-tokenizer and normalizer of a tokenizer.json: as llama.cpp has them. */
struct gguf_pre {
    const char *name;  /* tokenizer.ggml.pre, of a byte-level BPE; NULL: a BPE of characters */
    bool space_before; /* of characters: a text starts with a space                          */
};
/* AQ_INVAL: llama.cpp has none that does the same. */
enum aq_status gguf_pre_find(const char *path, const json_t *root, struct gguf_pre *out);

/* strips: added tokens take the spaces behind them as Phi-3's do (gguf_name). */
enum aq_status gguf_tokens(const struct aq_gguf_about *about, struct gguf_keys *keys, bool *strips);

/* ---- The file. */

struct aq_gguf {
    struct aq_model_config model;
    const struct gguf_family *family;
    struct gguf_keys keys;
    bool q8; /* matrices are Q8_0, else F16 */
};

#endif
