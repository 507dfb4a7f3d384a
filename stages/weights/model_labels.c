/*
 * model_labels.c -- the names of a published classifier's labels (id2label of config.json), and a job's names in their
 * order. A head that was trained gives label i its row i: a job that lists the same names in another order means the
 * same labels.
 */
#include <stdio.h>
#include <string.h>

#include "model_folder_private.h"

#define AREA "folder"

enum { NAME_BYTES = 24, SHOWN_BYTES = 256 };

const char *aq_model_folder_label(const struct aq_model_folder *folder, uint32_t label)
{
    const json_t *names = json_object_get(folder->config, "id2label");
    const size_t count = json_object_size(names);
    const char *found = NULL;
    for (size_t i = 0; i < count; i++) {
        char number[NAME_BYTES], plain[NAME_BYTES + 8];
        snprintf(number, sizeof number, "%zu", i);
        snprintf(plain, sizeof plain, "LABEL_%s", number);
        const char *name = json_string_value(json_object_get(names, number));
        if (!name || strcmp(name, plain) == 0) return NULL;
        if (i == label) found = name;
    }
    return found;
}

/* The next name of a list with commas: its bytes, and the start of the one behind it. NULL: the end. */
static const char *name_next(const char **at, size_t *bytes)
{
    const char *name = *at + strspn(*at, " \t");
    if (!**at) return NULL;
    size_t count = strcspn(name, ",");
    *at = name + count + (name[count] == ',');
    while (count && strchr(" \t", name[count - 1]))
        count--;
    *bytes = count;
    return name;
}

/* The head's label of that name, or -1. */
static int64_t label_named(const struct aq_model_folder *folder, const char *name, size_t bytes)
{
    const char *own;
    for (uint32_t i = 0; (own = aq_model_folder_label(folder, i)) != NULL; i++)
        if (strlen(own) == bytes && memcmp(own, name, bytes) == 0) return i;
    return -1;
}

/* All of the head's names, with commas between. */
static bool names_join(const struct aq_model_folder *folder, char *out, size_t bytes)
{
    const char *own;
    size_t used = 0;
    out[0] = 0;
    for (uint32_t i = 0; (own = aq_model_folder_label(folder, i)) != NULL && used < bytes; i++)
        used += (size_t)snprintf(out + used, bytes - used, "%s%s", i ? ", " : "", own);
    return used < bytes;
}

enum aq_status aq_model_folder_order(const struct aq_model_folder *folder, const char *names, char *out, size_t bytes)
{
    const char *name, *at = names, *own;
    char head[SHOWN_BYTES];
    size_t length, count = 0, known = 0, moved = 0, labels = 0;
    bool commas = false;
    while ((own = aq_model_folder_label(folder, (uint32_t)labels)) != NULL) {
        commas = commas || strchr(own, ',');
        labels++;
    }
    for (; (name = name_next(&at, &length)) != NULL; count++) {
        const int64_t label = label_named(folder, name, length);
        known += label >= 0;
        moved += label >= 0 && label != (int64_t)count;
    }
    const int written = snprintf(out, bytes, "%s", names);
    if (moved == 0) return written >= 0 && (size_t)written < bytes ? AQ_OK : AQ_NOSPC;
    if (known == count && !commas) return names_join(folder, out, bytes) ? AQ_OK : AQ_NOSPC;
    (void)names_join(folder, head, sizeof head);
    return aq_fail(AQ_MISMATCH, AREA,
                   "%s names its labels '%.200s', and the job '%.200s': write them in the order of the head, or leave "
                   "the head out of the folder",
                   folder->file, head, names);
}
