/* model_folder_private.h -- an open model folder; private to this folder. */
#ifndef MODEL_FOLDER_PRIVATE_H
#define MODEL_FOLDER_PRIVATE_H

#include <jansson.h>

#include "stages/model_folder.h"

enum { MODEL_FOLDER_PATH_BYTES = 4096 };

struct aq_model_folder {
    char file[MODEL_FOLDER_PATH_BYTES]; /* config.json, as errors name it */
    json_t *config;
    json_t *text; /* of a wrapper: the text model's keys; else NULL */
    struct aq_model_config model;
    const char *type, *architecture; /* of the row that reads it */
};

/* The object of generation_config.json, its path into `file`; *out NULL: there is no such file. The caller's. */
enum aq_status model_folder_generation(const struct aq_model_folder *folder, char file[MODEL_FOLDER_PATH_BYTES + 32],
                                       json_t **out);

#endif
