/*
 * huggingface.h -- the parts of tokenizer.json's reader; private to tokenizer_huggingface.c and huggingface_*.c.
 *
 * Locking: pure functions over a JSON value of the caller's.
 */
#ifndef STAGES_HUGGINGFACE_H
#define STAGES_HUGGINGFACE_H

#include "bpe.h"

/* A JSON object from a file; the caller's to json_decref. AQ_NOTFOUND, AQ_IO, AQ_CORRUPT: path, line, column. */
enum aq_status huggingface_load(const char *path, json_t **out);

/*
 * `normalizer` and `pre_tokenizer` of the file become the engine's. *bytes: words are sequences of bytes (ByteLevel).
 * AQ_INVAL: a part is not supported; names type and place. AQ_CORRUPT: it lacks what its type must have.
 */
enum aq_status huggingface_steps(const char *path, json_t *root, struct aq_bpe *bpe, bool *bytes);

/*
 * `model`: its type and, of Unigram, its list of pieces, which becomes an object of ids like that of the other types.
 * Then, behind added tokens and steps, all of it. bytes: words are sequences of bytes. AQ_INVAL, AQ_CORRUPT: place,
 * cause and remedy are named.
 */
enum aq_status huggingface_model_begin(const char *path, json_t *model, struct aq_bpe *bpe);
enum aq_status huggingface_model(const char *path, json_t *model, bool bytes, const struct aq_bpe_added *added,
                                 uint32_t added_count, struct aq_bpe *bpe);

/* `decoder`, of a vocabulary of characters: what the tokens are as text. As huggingface_steps. */
enum aq_status huggingface_decoder(const char *path, json_t *decoder, struct aq_bpe_vocabulary *vocabulary);

/*
 * `post_processor`: what it puts around a text and between two; nothing for what puts nothing. AQ_INVAL also: a
 * template that no frame can express (a pair in another order, other tokens around a pair than around one text).
 */
enum aq_status huggingface_frame(const char *path, json_t *post_processor, uint32_t vocabulary,
                                 struct aq_tokenizer_frame *frame);

/* NULL, or one of these types, or a Sequence with a list of them under `list`. AQ_INVAL names type and place. */
struct huggingface_reader; /* the caller's own */
struct huggingface_type {
    const char *name;
    enum aq_status (*read)(const char *place, json_t *one, struct huggingface_reader *reader);
};
enum aq_status huggingface_types(const char *place, json_t *value, const char *list,
                                 const struct huggingface_type *types, int depth, struct huggingface_reader *reader);

enum { HUGGINGFACE_PLACE_BYTES = 4096 + 256 };

/*
 * The pattern that UnicodeScripts leaves out at the start of a piece; the runs of one script (terminated, appended to
 * out).
 */
extern const char huggingface_script_any[];
enum aq_status huggingface_script_runs(struct aq_bpe_text *out);

/* Of an object: `pattern`, {"Regex": "..."} or {"String": "..."}; and prepend_scheme, or the older add_prefix_space. */
enum aq_status huggingface_pattern(const char *place, json_t *one, struct aq_bpe_pattern **out);
enum aq_status huggingface_scheme(const char *place, json_t *one, enum aq_bpe_scheme *out);

#endif
