/*
 * config_json.h -- a published config.json while a model reads it; private to stages/.
 *
 * A model's read_config (stage_model.h) asks for its keys by name. A wrong key or value ends the reading with one line:
 * file, key, the value and the expected one.
 *
 *     AQ_TRY(config_json_u32(config, "n_embd", 1, 65536, &out->channels));
 *     AQ_TRY(config_json_one_of(config, "activation_function", "gelu_new", "gelu_new|gelu_pytorch_tanh", NULL));
 *     AQ_TRY(config_json_only(config, "scale_attn_by_inverse_layer_idx", false));
 *
 * A key whose value is null is a key that is not there, as with those who write such files. Every call: AQ_MISMATCH,
 * with that line; *out is written only on success.
 */
#ifndef CONFIG_JSON_H
#define CONFIG_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "aqsgd/base.h"

struct config_json {
    const char *file;     /* for errors: "qwen/config.json"                                             */
    const char *within;   /* for errors, of an object in it: "rope_scaling."; else ""                     */
    const json_t *object; /* borrowed                                                                    */
};

/* Is the key there, with a value that is not null? */
bool config_json_has(const struct config_json *config, const char *key);

/* A whole number from least to most. */
enum aq_status config_json_u32(const struct config_json *config, const char *key, uint32_t least, uint32_t most,
                               uint32_t *out);
/* The same where the key may be missing. */
enum aq_status config_json_u32_or(const struct config_json *config, const char *key, uint32_t least, uint32_t most,
                                  uint32_t fallback, uint32_t *out);

/* A number from least to most; `fallback` where the key is missing. */
enum aq_status config_json_number_or(const struct config_json *config, const char *key, double least, double most,
                                     double fallback, double *out);

enum aq_status config_json_bool_or(const struct config_json *config, const char *key, bool fallback, bool *out);

/* A text, borrowed from the object; `fallback` (may be NULL) where the key is missing. */
enum aq_status config_json_text_or(const struct config_json *config, const char *key, const char *fallback,
                                   const char **out);

/* A text that is one of `words`, "silu|swish"; *index, or NULL: which. fallback: where the key is missing. */
enum aq_status config_json_one_of(const struct config_json *config, const char *key, const char *fallback,
                                  const char *words, uint32_t *index);

/* A switch with only one supported value: missing, or `wanted`. */
enum aq_status config_json_only(const struct config_json *config, const char *key, bool wanted);

/* A number with only one supported value: missing, or `wanted` (to six digits). */
enum aq_status config_json_only_number(const struct config_json *config, const char *key, double wanted);

/* The object of that key, into *out; out->object NULL: the key is missing. `within` is "key.": out borrows it. */
enum aq_status config_json_object(const struct config_json *config, const char *key, const char *within,
                                  struct config_json *out);

/*
 * For writing: the keys that all models of texts share. labels: 0, or of a classifier; end_of_text: a token, or -1. It
 * is also the padding behind a sample, before which a classifier finds the last real token.
 */
void config_json_put_ends(json_t *config, uint32_t labels, int32_t end_of_text);
/* The names of a classifier's labels, both ways. */
void config_json_put_labels(json_t *config, uint32_t labels);

/* Refuse the value of a key: "FILE: KEY: found VALUE, expected ...". AQ_MISMATCH. */
enum aq_status config_json_refuse(const struct config_json *config, const char *key, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
