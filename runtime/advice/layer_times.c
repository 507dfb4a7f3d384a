/*
 * layer_times.c -- see the header.
 */
#include "layer_times.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "json_text.h"
#include "run_folder.h"

enum { FILE_BYTES_MAX = 16 << 20, DIGITS = 9 };

static const char format_name[] = "aqpipe layers 1";

struct aq_layer_times {
    char folder[AQ_RUN_PATH_BYTES], path[AQ_RUN_PATH_BYTES];
    json_t *of;
    bool added;
};

/* "": there is none. */
static void path_fill(struct aq_layer_times *times)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char base[AQ_RUN_PATH_BYTES] = "";
    if (cache && cache[0] == '/')
        snprintf(base, sizeof base, "%s", cache);
    else if (!home || home[0] != '/' || aq_run_path(home, ".cache", base) != AQ_OK)
        base[0] = 0;
    const bool fits = base[0] && aq_run_path(base, "aqpipe", times->folder) == AQ_OK &&
                      aq_run_path(times->folder, "layers.json", times->path) == AQ_OK;
    if (!fits) times->path[0] = 0;
}

static void read_file(struct aq_layer_times *times)
{
    char *bytes = NULL;
    size_t count;
    const enum aq_status status =
        times->path[0] ? aq_file_load(NULL, times->path, FILE_BYTES_MAX, &bytes, &count) : AQ_NOTFOUND;
    if (status == AQ_NOTFOUND) return;
    json_t *file = status == AQ_OK ? json_loadb(bytes, count, 0, NULL) : NULL;
    const char *format = json_string_value(json_object_get(file, "format"));
    json_t *of = json_object_get(file, "times");
    if (json_is_object(of) && format && strcmp(format, format_name) == 0) {
        json_decref(times->of);
        times->of = json_incref(of);
    } else {
        aq_log("plan", AQ_LOG_WARNING, "%s is not a file of measured layers: they are measured again", times->path);
    }
    json_decref(file);
    aq_free(bytes);
}

enum aq_status aq_layer_times_open(struct aq_layer_times **out)
{
    struct aq_layer_times *times;
    AQ_TRY(AQ_NEW(1, &times));
    times->of = json_object();
    if (!times->of) {
        aq_free(times);
        return aq_fail(AQ_NOMEM, "plan", "no memory for measured layers");
    }
    path_fill(times);
    read_file(times);
    *out = times;
    return AQ_OK;
}

static void write_file(struct aq_layer_times *times)
{
    json_t *file = json_pack("{s:s, s:O}", "format", format_name, "times", times->of);
    const bool written =
        file && aq_run_make_folder(times->folder) == AQ_OK &&
        aq_json_replace(times->path, json_incref(file), JSON_INDENT(1) | JSON_REAL_PRECISION(DIGITS)) == AQ_OK;
    json_decref(file);
    if (written) return;
    aq_log("plan", AQ_LOG_WARNING, "%s cannot be written: layers are measured again the next time", times->path);
    aq_error_clear();
}

void aq_layer_times_close(struct aq_layer_times *times)
{
    if (!times) return;
    if (times->added && times->path[0]) write_file(times);
    json_decref(times->of);
    aq_free(times);
}

const char *aq_layer_times_path(const struct aq_layer_times *times)
{
    return times->path;
}

bool aq_layer_times_find(const struct aq_layer_times *times, const char *key, double *values, uint32_t count)
{
    double found[AQ_LAYER_TIMES_VALUES];
    const json_t *array = json_object_get(times->of, key);
    if (json_array_size(array) != count) return false;
    for (uint32_t i = 0; i < count; i++) {
        const json_t *value = json_array_get(array, i);
        found[i] = json_number_value(value);
        if (!json_is_number(value) || !isfinite(found[i]) || found[i] < 0) return false;
    }
    memcpy(values, found, count * sizeof *values);
    return true;
}

enum aq_status aq_layer_times_add(struct aq_layer_times *times, const char *key, const double *values, uint32_t count)
{
    json_t *array = json_array();
    AQ_ASSERT(count <= AQ_LAYER_TIMES_VALUES);
    for (uint32_t i = 0; i < count; i++)
        (void)json_array_append_new(array, json_real(values[i]));
    while (json_object_size(times->of) >= AQ_LAYER_TIMES_KEPT) /* the oldest go */
        json_object_del(times->of, json_object_iter_key(json_object_iter(times->of)));
    if (json_array_size(array) != count || json_object_set_new(times->of, key, array) != 0)
        return aq_fail(AQ_NOMEM, "plan", "no memory for measured layers");
    times->added = true;
    return AQ_OK;
}
