/*
 * decoder_json.h -- what the decoders with turning heads have in common of their keys, of a published config.json and
 * of the way back; private to stages/.
 *
 * Windows. transformers lists which blocks slide (`layer_types`), or derives it from a number. Here it is a rule of
 * three numbers (decoder_slides): other patterns are refused.
 */
#ifndef DECODER_JSON_H
#define DECODER_JSON_H

#include "stage_model.h"

/* A value that config_check finds out of its range: AQ_INVAL. */
enum aq_status decoder_range(const char *field, double value, double least, double most);
enum aq_status decoder_range_whole(const char *field, uint64_t value, uint64_t least, uint64_t most);
/* Those of the common fields, except heads' sizes that do not fit each other (decoder_wrong). */
enum aq_status decoder_ranges(const struct aq_model_config *model);

/* Problem `index` between keys that are each in range: the key and its text; false: no such problem. */
bool decoder_wrong(const struct aq_model_config *model, uint32_t index, const char **key, char *text, size_t bytes);
/* The same, and samples of T tokens behind it: stage_model.problem. */
bool decoder_problem(const struct aq_model_config *model, uint32_t T, uint32_t index, const char **key, char *text,
                     size_t bytes);

/* A number as fp32. */
enum aq_status decoder_read_number(const struct config_json *config, const char *key, double least, double most,
                                   double fallback, float *out);

/*
 * Which blocks of out->blocks slide, into the three numbers: by layer_types, or else all from block `from` on, except
 * the last of every `every` (0: without exception). window 0: none may.
 */
enum aq_status decoder_read_windows(const struct config_json *config, uint32_t window, uint32_t every, uint32_t from,
                                    struct aq_model_config *out);

/*
 * layer_types of a config.json: `blocks` words that are each `full` or `other`. *out is the list, borrowed from config.
 * AQ_MISMATCH: another list, or none.
 */
enum aq_status decoder_read_types(const struct config_json *config, const char *full, const char *other,
                                  uint32_t blocks, const json_t **out);
/* Has the block of that list the word? */
bool decoder_type_is(const json_t *types, uint32_t block, const char *word);

/* The shortest number that reads as that float. */
json_t *decoder_number(float value);
/* layer_types, of all blocks. */
json_t *decoder_layer_types(const struct aq_model_config *model);
/* config.json, written to *json and freed. AQ_NOMEM. */
enum aq_status decoder_write(json_t *config, char *json, size_t *count);

#endif
