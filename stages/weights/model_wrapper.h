/*
 * model_wrapper.h -- folders of models of texts and images, of which the text model is read; private to stages/.
 *
 * Their config.json has the text model's keys under `text_config`. Their tensors have `language_model.` in their names.
 */
#ifndef MODEL_WRAPPER_H
#define MODEL_WRAPPER_H

#include <jansson.h>

/*
 * The text model's keys as a separate config.json, with model_type and the wrapper's keys of tied tables. The caller's;
 * NULL: the object is no wrapper that is read, or there is no memory.
 */
json_t *model_wrapper_text(const json_t *config);

/* The keys of a text model, `own`, into those of a wrapper. */
void model_wrapper_merge(json_t *wrapper, const json_t *own);

/* The prefix of a text model's tensor in such a folder: "language_model.model."; "": none. */
const char *model_wrapper_front(const char *name);

#endif
