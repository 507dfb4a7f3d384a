/*
 * weights_set.c -- the weights of a published folder: one file, or several with an index of tensors and files.
 *
 *     model.safetensors                   all of it, or
 *     model.safetensors.index.json        {"metadata": {"total_size": bytes}, "weight_map": {"name": "shard", ...}}
 *
 * The shards must agree with the index: a name that it places in a shard is in no other one. Names that no shard has,
 * and a wrong total_size, give a log line. Shards are names in the folder, never paths. A stage that needs some tensors
 * opens only their shards; checks over all shards run only if all are opened.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "aqsgd/base/given_file.h"
#include "dataset_file.h"
#include "python_json.h"
#include "weights_file.h"

#define AREA    "weights"
#define SINGLE  "model.safetensors"
#define INDEX   SINGLE ".index.json"
#define PICKLE  "pytorch_model.bin"
#define PICKLES PICKLE ".index.json"

enum { PATH_BYTES = 4096, INDEX_BYTES_MAX = 64 << 20, SHARDS_MAX = 4096, SHARD_NAME_MAX = 200 };

/* A quote would end the quoted path in the command: such a path is left out of the line. */
enum aq_status aq_weights_pickle(const char *path)
{
    const char *slash = strrchr(path, '/');
    const bool plain = !strpbrk(path, "'\"\\$`"), several = strcmp(slash ? slash + 1 : path, PICKLES) == 0;
    const char *folder = !plain ? "FOLDER" : slash ? path : ".", *file = plain ? path : "FILE";
    const int bytes = plain && slash ? (int)(slash - path) : (int)strlen(folder);
    if (several)
        return aq_fail(AQ_CORRUPT, AREA,
                       "%s: pickles are programs, and are not read; make safetensors of them: python3 -c \"from "
                       "transformers import AutoModelForCausalLM as M; M.from_pretrained('%.*s').save_pretrained("
                       "'%.*s-safetensors')\"",
                       path, bytes, folder, bytes, folder);
    return aq_fail(
        AQ_CORRUPT, AREA,
        "%s: a pickle is a program, and is not read; make safetensors of it: python3 -c \"import torch; from "
        "safetensors.torch import save_file as s; w = torch.load('%s', map_location='cpu', "
        "weights_only=True); s({k: v.clone().contiguous() for k, v in w.items()}, '%.*s/" SINGLE
        "', {'format': 'pt'})\"",
        path, file, bytes, folder);
}

/* ---- files ---- */

static enum aq_status path_of(const char *folder, const char *name, char path[PATH_BYTES])
{
    const int bytes = snprintf(path, PATH_BYTES, "%s/%s", folder, name);
    if (bytes > 0 && bytes < PATH_BYTES) return AQ_OK;
    return aq_fail(AQ_INVAL, AREA, "the path %.80s/%.80s is too long", folder, name);
}

static bool there(const char *folder, const char *name)
{
    char path[PATH_BYTES];
    const int bytes = snprintf(path, sizeof path, "%s/%s", folder, name);
    return bytes > 0 && bytes < PATH_BYTES && access(path, F_OK) == 0;
}

/* Open folder/name as the set's next file; its links are followed: the folder is the user's. */
static enum aq_status open_next(const char *folder, const char *name, struct aq_weights *weights)
{
    char path[PATH_BYTES];
    AQ_TRY(path_of(folder, name, path));
    int file;
    if (access(path, F_OK) != 0 && errno == ENOENT)
        return aq_fail(AQ_NOTFOUND, AREA, "%s: there is no such file, which " INDEX " names", path);
    AQ_TRY(aq_given_open(AREA, path, &file));
    return aq_weights_file_open(file, path, &weights->files[weights->file_count++]);
}

/* ---- the index ---- */

struct index {
    char path[PATH_BYTES];
    json_t *json, *map; /* map: borrowed from json */
};

/* A name in the folder: no path, nothing that a terminal acts on. */
static bool shard_name(const char *name)
{
    const size_t bytes = name ? strlen(name) : 0, end = strlen(".safetensors");
    if (bytes <= end || bytes > SHARD_NAME_MAX || strcmp(name + bytes - end, ".safetensors") != 0) return false;
    for (const char *at = name; *at; at++)
        if (*at == '/' || *at == '\\' || *at < 0x20 || *at == 0x7f) return false;
    return name[0] != '.';
}

static enum aq_status index_read(const char *folder, struct index *index)
{
    uint8_t *bytes = NULL;
    size_t count;
    json_error_t error;
    const char *name;
    json_t *shard;
    AQ_TRY(path_of(folder, INDEX, index->path));
    AQ_TRY(aq_file_read(AREA, index->path, INDEX_BYTES_MAX, &bytes, &count));
    if (aq_file_check(AREA, index->path, bytes, count) != AQ_OK) {
        aq_free(bytes);
        return AQ_CORRUPT;
    }
    index->json = python_json_load((const char *)bytes, count, JSON_REJECT_DUPLICATES, &error);
    aq_free(bytes);
    if (!index->json)
        return aq_fail(AQ_CORRUPT, AREA, "%s:%d:%d: %s", index->path, error.line, error.column, error.text);
    index->map = json_object_get(index->json, "weight_map");
    if (!json_is_object(index->map))
        return aq_fail(AQ_CORRUPT, AREA, "%s: \"weight_map\" does not map names to files", index->path);
    AQ_TRY(aq_weights_names_renew(index->path, index->map));
    json_object_foreach(index->map, name, shard)
    {
        if (!shard_name(json_string_value(shard)))
            return aq_fail(
                AQ_CORRUPT, AREA,
                "%s: \"%.128s\" should be in \"%.128s\", which is not the name of a .safetensors file in the folder",
                index->path, name, json_is_string(shard) ? json_string_value(shard) : "");
    }
    return AQ_OK;
}

/* The shards that have something that is wanted, each once, in order of names. */
static enum aq_status index_shards(const struct index *index, aq_weights_wants *wants, void *context, json_t *shards)
{
    const char *name;
    json_t *shard;
    json_object_foreach(index->map, name, shard)
    {
        if (wants && !wants(context, aq_weights_bare_name(name))) continue;
        if (json_object_set(shards, json_string_value(shard), json_null()) != 0)
            return aq_fail(AQ_NOMEM, AREA, "%s: no memory for its shards", index->path);
    }
    if (json_object_size(shards) > SHARDS_MAX)
        return aq_fail(AQ_CORRUPT, AREA, "%s: names %zu files; at most %d are read", index->path,
                       json_object_size(shards), SHARDS_MAX);
    return AQ_OK;
}

static int by_text(const void *left, const void *right)
{
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

static enum aq_status open_shards(const char *folder, const json_t *shards, struct aq_weights *weights)
{
    const size_t count = json_object_size(shards);
    const char *name, **names;
    json_t *value;
    size_t at = 0;
    AQ_TRY(AQ_NEW(count + 1, &weights->files));
    AQ_TRY(AQ_NEW(count + 1, &names));
    json_object_foreach((json_t *)(uintptr_t)shards, name, value) names[at++] = name;
    if (count) qsort(names, count, sizeof *names, by_text);
    enum aq_status status = AQ_OK;
    for (size_t i = 0; i < count && status == AQ_OK; i++)
        status = open_next(folder, names[i], weights);
    aq_free(names);
    return status;
}

static const char *name_of(const struct aq_weights_file *file)
{
    return strrchr(file->path, '/') + 1;
}

/* A shard must have only tensors that the index places there. */
static enum aq_status check_shard(const struct index *index, const struct aq_weights_file *file, uint64_t *bytes)
{
    for (uint32_t i = 0; i < file->count; i++) {
        const struct aq_weights_entry *entry = &file->entries[i];
        const char *placed = json_string_value(json_object_get(index->map, entry->name));
        /* One that the index does not name is as good as the others: a shard is read as a whole elsewhere. */
        if (placed && strcmp(placed, name_of(file)) != 0)
            return aq_fail(AQ_CORRUPT, AREA, "%s: has \"%.128s\", which by %s is in %s", file->path, entry->name,
                           index->path, placed);
        *bytes += entry->end - entry->begin;
    }
    return AQ_OK;
}

static bool file_has(const struct aq_weights_file *file, const char *name)
{
    return json_object_get(file->header, name) != NULL;
}

/*
 * Logs, in one line, the names that the index places in an open shard that lacks them: reading fails later if the model
 * needs one. `open`: shards by their names, and their numbers.
 */
static void tell_ghosts(const struct index *index, const struct aq_weights *weights, const json_t *open)
{
    const char *name, *first = NULL;
    json_t *shard;
    size_t count = 0;
    json_object_foreach(index->map, name, shard)
    {
        const json_t *number = json_object_get(open, json_string_value(shard));
        const struct aq_weights_file *file = number ? &weights->files[json_integer_value(number)] : NULL;
        if (!file || file_has(file, name)) continue;
        first = first ? first : name;
        count++;
    }
    if (count)
        aq_log(AREA, AQ_LOG_WARNING, "%s: names %zu tensor%s that no shard has: %.128s%s", index->path, count,
               count == 1 ? "" : "s", first, count == 1 ? "" : ", ...");
}

/* metadata.total_size, which nothing is computed from: a number, or its text. */
static void check_size(const struct index *index, uint64_t bytes)
{
    const json_t *size = json_object_get(json_object_get(index->json, "metadata"), "total_size");
    const double said = json_is_string(size) ? strtod(json_string_value(size), NULL) : json_number_value(size);
    if (!size || said == (double)bytes) return;
    aq_log(AREA, AQ_LOG_WARNING, "%s: metadata.total_size is %.0f, the tensors have %llu bytes", index->path, said,
           (unsigned long long)bytes);
}

/* Of the shards that are open: none has what the index places in another one. */
static enum aq_status check_shards(const struct index *index, const struct aq_weights *weights, bool all)
{
    uint64_t bytes = 0;
    for (uint32_t f = 0; f < weights->file_count; f++)
        AQ_TRY(check_shard(index, &weights->files[f], &bytes));
    json_t *open = json_object();
    enum aq_status status = AQ_OK;
    for (uint32_t f = 0; f < weights->file_count && status == AQ_OK; f++)
        if (json_object_set_new(open, name_of(&weights->files[f]), json_integer(f)) != 0)
            status = aq_fail(AQ_NOMEM, AREA, "%s: no memory for its shards", index->path);
    if (status == AQ_OK && all) {
        tell_ghosts(index, weights, open);
        check_size(index, bytes);
    }
    json_decref(open);
    return status;
}

/* ---- the folder ---- */

static enum aq_status nothing_there(const char *folder)
{
    char path[PATH_BYTES];
    const char *pickle = there(folder, PICKLES) ? PICKLES : there(folder, PICKLE) ? PICKLE : NULL;
    if (!pickle) return aq_fail(AQ_NOTFOUND, AREA, "%s: there are no weights: neither " SINGLE " nor " INDEX, folder);
    AQ_TRY(path_of(folder, pickle, path));
    return aq_weights_pickle(path);
}

static enum aq_status open_indexed(const char *folder, aq_weights_wants *wants, void *context,
                                   struct aq_weights *weights)
{
    struct index index = {.json = NULL};
    json_t *shards = json_object();
    enum aq_status status = index_read(folder, &index);
    if (status == AQ_OK) status = index_shards(&index, wants, context, shards);
    if (status == AQ_OK) status = open_shards(folder, shards, weights);
    if (status == AQ_OK) status = check_shards(&index, weights, wants == NULL);
    json_decref(shards);
    json_decref(index.json);
    return status;
}

enum aq_status aq_weights_set_open(const char *folder, aq_weights_wants *wants, void *context,
                                   struct aq_weights *weights)
{
    if (there(folder, SINGLE) && there(folder, INDEX) && !wants)
        aq_log(AREA, AQ_LOG_WARNING, "%s: has both " SINGLE " and " INDEX "; the first is read, as transformers does",
               folder);
    if (!there(folder, SINGLE) && there(folder, INDEX)) return open_indexed(folder, wants, context, weights);
    if (!there(folder, SINGLE)) return nothing_there(folder);
    AQ_TRY(AQ_NEW(1, &weights->files));
    return open_next(folder, SINGLE, weights);
}
