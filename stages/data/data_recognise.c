/*
 * data_recognise.c -- which kind of data set a file is, if the job sets none: by its form, and the members of its first
 * record. See stages/dataset.h.
 */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "data_bytes.h"
#include "data_record.h"
#include "data_roles.h"

enum { RECORDS_TRIED = 20, NAME_BYTES = 200 };

struct finding {
    const char *kind;
    const char *what; /* that was found */
};

static bool wants_labels(const struct aq_dataset_config *config)
{
    const struct aq_dataset_columns *columns = &config->columns;
    const bool task = config->field && (strcmp(config->field, "labels") == 0 || strcmp(config->field, "scores") == 0);
    return task || columns->text || columns->label;
}

/* The first record that is an object; NULL: none of the first ones is. */
static json_t *first_object(struct data_reader *reader)
{
    struct data_record record;
    json_t *object = NULL;
    bool ends = false;
    for (int i = 0; i < RECORDS_TRIED && !object && !ends; i++) {
        const enum aq_status status = data_reader_next(reader, &record, &ends);
        if (status == AQ_OK && !record.at) break;
        if (status == AQ_OK) (void)data_record_object(reader, &record, 0, &object);
    }
    return object;
}

/* A table whose columns have other names is of labels, unless the task learns words: then its names are asked for. */
static struct finding by_object(const struct aq_dataset_config *config, const struct data_roles *roles,
                                const json_t *object, bool table)
{
    const bool words = config->field && strcmp(config->field, "targets") == 0;
    const enum data_layout layout = data_layout_of(roles, object);
    if (json_is_string(data_role_of(roles, DATA_ROLE_TEXT, object))) return (struct finding){"text", "a text"};
    if (layout != DATA_LAYOUTS) return (struct finding){"instruct", data_layout_name(layout)};
    if (table && words) return (struct finding){"instruct", "rows, and the task has no labels"};
    return table ? (struct finding){"tsv", "rows"} : (struct finding){"text", NULL};
}

static struct finding by_bytes(const struct aq_dataset_config *config)
{
    static const struct {
        int bytes; /* of a record; a file that is a multiple of both is of the first kind, or refused by its labels */
        struct finding finding;
    } sizes[] = {{3073, {"cifar10", "records of 3073 bytes"}}, {3074, {"cifar100", "records of 3074 bytes"}}};
    const char *path = config->paths[0];
    struct stat about;
    if (data_name_ends(path, strlen(path), ".bin") && stat(path, &about) == 0 && S_ISREG(about.st_mode) &&
        about.st_size > 0)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            if (about.st_size % sizes[i].bytes == 0) return sizes[i].finding;
    if (config->columns.text && config->columns.label)
        return (struct finding){"tsv", "named columns (data.text_column)"};
    return (struct finding){"text", NULL};
}

static struct finding by_file(const struct aq_dataset_config *config, const struct data_roles *roles)
{
    const struct data_how how = {.fallback = DATA_TEXT, .quotes = config->quotes, .named = true};
    struct data_reader *reader;
    struct finding found = {"text", NULL};
    if (data_reader_open(config->paths[0], &how, &reader) != AQ_OK) return found;
    const enum data_form form = data_reader_form(reader);
    const bool table = form == DATA_CSV || form == DATA_TSV;
    if (form == DATA_TEXT) {
        found = by_bytes(config);
    } else if (wants_labels(config)) {
        json_t *object = config->columns.text ? NULL : first_object(reader);
        found = (struct finding){"tsv", "rows with labels"};
        if (config->image.side > 0 && json_is_string(json_object_get(object, "file")))
            found = (struct finding){"image_files", "rows with files"};
        json_decref(object);
    } else {
        json_t *object = first_object(reader);
        if (object || table) found = by_object(config, roles, object, table);
        json_decref(object);
    }
    data_reader_close(reader);
    return found;
}

const char *aq_dataset_recognise(const struct aq_dataset_config *config, char *why, size_t bytes)
{
    struct aq_error_hold hold;
    struct data_roles roles;
    struct finding found = {"text", NULL};
    if (bytes) why[0] = 0;
    if (config->path_count == 0) return found.kind;
    aq_error_hold(&hold);
    if (data_roles_open(config->names, &roles) == AQ_OK) found = by_file(config, &roles);
    data_roles_close(&roles);
    aq_error_release(&hold);
    if (found.what) snprintf(why, bytes, "%.*s has %s", NAME_BYTES, config->paths[0], found.what);
    return found.kind;
}

enum aq_status aq_dataset_text_check(const char *path)
{
    struct data_bytes *bytes;
    AQ_TRY(data_bytes_open(path, &bytes));
    data_bytes_close(bytes);
    return AQ_OK;
}
