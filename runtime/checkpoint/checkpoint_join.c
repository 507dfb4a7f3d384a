/*
 * checkpoint_join.c -- the stages' files of one step as a model's weights: one safetensors file, or several with an
 * index, under published names. Values go from file to file piece by piece: none of them is held.
 */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "checkpoint.h"
#include "checkpoint_adapters.h"
#include "job.h"
#include "json_text.h"
#include "stages/gguf.h"
#include "stages/publish.h"
#include "stages/stage.h"

enum { NAME_BYTES = 64, FILES_MAX = 99999 };

#define SINGLE "model.safetensors"
#define INDEX  SINGLE ".index.json"

struct join {
    const struct aq_join *asked;
    struct aq_weights *files[AQ_JOB_STAGES_MAX], *frozen[AQ_JOB_STAGES_MAX]; /* frozen NULL: it has none */
    struct aq_weights_tensor *tensors;
    const char **own;                  /* their names in the stages         */
    char (*names)[AQ_TENSOR_NAME_MAX]; /* as published                      */
    bool *transposed;
    uint32_t *kernels;
    uint32_t count;
    struct aq_weights *wrapper;    /* of a model of texts and images: what it began as; else NULL */
    uint64_t total, done;          /* bytes      */
    struct aq_adapters *adapters;  /* NULL: the run has none */
    char head[AQ_TENSOR_NAME_MAX]; /* of a tied head, whose tensor is a copy; "": none */
};

/* U8: the bytes of frozen weights, whose values are in the same file. */
static bool of_model(const struct aq_weights_info *info)
{
    char which, of[AQ_TENSOR_NAME_MAX];
    if (strcmp(info->type, "U8") == 0) return false;
    return strncmp(info->name, "optimizer.", strlen("optimizer.")) != 0 && !aq_tensor_adapts(info->name, &which, of);
}

static uint64_t tensor_bytes(const struct join *join, uint32_t index)
{
    const struct aq_weights_tensor *tensor = &join->tensors[index];
    uint64_t bytes = strcmp(tensor->type, "F32") == 0 ? 4 : 2;
    for (uint32_t d = 0; d < tensor->dimensions; d++)
        bytes *= tensor->shape[d];
    return bytes;
}

/* Has an earlier stage the tensor, under this name or as the embedding's table? Then this one is a copy of it. */
static bool is_copy(const struct join *join, const char *name)
{
    if (join->asked->tied && strcmp(name, join->head) == 0) return true;
    for (uint32_t i = 0; i < join->count; i++)
        if (strcmp(join->own[i], name) == 0) return true;
    return false;
}

/* Append the model's tensors of one file; before there are tables, count them. */
static void join_file(struct join *join, const struct aq_weights *file)
{
    for (uint32_t i = 0; file && i < aq_weights_count(file); i++) {
        struct aq_weights_info info;
        aq_weights_info(file, i, &info);
        if (!of_model(&info)) continue;
        if (join->tensors && is_copy(join, info.name)) continue;
        const uint32_t to = join->count++;
        if (!join->tensors) continue;
        aq_publish_name(join->asked->model, info.name, join->names[to], AQ_TENSOR_NAME_MAX);
        join->own[to] = info.name;
        join->tensors[to] = (struct aq_weights_tensor){.name = join->names[to],
                                                       .dimensions = info.dimensions,
                                                       .from = file,
                                                       .index = i,
                                                       .type = join->asked->type};
        memcpy(join->tensors[to].shape, info.shape, sizeof info.shape);
        join->total += tensor_bytes(join, to);
    }
}

static void join_files(struct join *join)
{
    join->count = 0;
    for (uint32_t s = 0; s < join->asked->stages; s++) {
        join_file(join, join->files[s]);
        join_file(join, join->frozen[s]);
    }
}

/* The text model's tensors get the names that the wrapper has for them. */
static void name_wrapped(struct join *join)
{
    bool inside = false;
    struct aq_weights_info info;
    for (uint32_t i = 0; i < aq_weights_count(join->wrapper) && !inside; i++) {
        aq_weights_info(join->wrapper, i, &info);
        inside = strncmp(info.name, "language_model.", strlen("language_model.")) == 0;
    }
    for (uint32_t i = 0; i < join->count; i++) {
        uint32_t index;
        if (aq_weights_find(join->wrapper, join->own[i], &index) == AQ_OK) {
            aq_weights_info(join->wrapper, index, &info);
            snprintf(join->names[i], AQ_TENSOR_NAME_MAX, "%s", info.name);
        } else if (inside) { /* the head of tables that are tied no more */
            char published[AQ_TENSOR_NAME_MAX];
            aq_publish_name(join->asked->model, join->own[i], published, sizeof published);
            snprintf(join->names[i], AQ_TENSOR_NAME_MAX, "language_model.%.80s", published);
        }
    }
}

/* Is it a tensor of the text model, under whatever name? */
static bool is_own(const struct join *join, uint32_t index)
{
    struct aq_weights_info info, own;
    uint32_t found;
    aq_weights_info(join->wrapper, index, &info);
    for (uint32_t i = 0; i < join->count; i++) {
        if (aq_weights_find(join->wrapper, join->own[i], &found) != AQ_OK) continue;
        aq_weights_info(join->wrapper, found, &own);
        if (strcmp(own.name, info.name) == 0) return true;
    }
    return *join->head && aq_weights_find(join->wrapper, join->head, &found) == AQ_OK && found == index;
}

/* Behind the model's tensors, all others of the wrapper as they are there. `room`: of the tables. */
static enum aq_status join_wrapped(struct join *join, uint32_t room)
{
    const uint32_t own = join->count;
    uint32_t end = own;
    if (!join->wrapper) return AQ_OK;
    name_wrapped(join);
    for (uint32_t i = 0; i < aq_weights_count(join->wrapper); i++) {
        struct aq_weights_info info;
        if (is_own(join, i)) continue;
        AQ_ASSERT(end < room);
        aq_weights_info(join->wrapper, i, &info);
        if (strcmp(info.type, "F32") != 0 && strcmp(info.type, "BF16") != 0 && strcmp(info.type, "F16") != 0)
            return aq_fail(AQ_MISMATCH, "export", "%s: %s is of type %s: only F32, BF16 and F16 are carried", info.file,
                           info.name, info.type);
        join->tensors[end] = (struct aq_weights_tensor){
            .name = info.name, .dimensions = info.dimensions, .from = join->wrapper, .index = i, .type = info.type};
        memcpy(join->tensors[end].shape, info.shape, sizeof info.shape);
        join->total += tensor_bytes(join, end++);
    }
    join->count = end;
    return AQ_OK;
}

static enum aq_status join_open(struct join *join)
{
    const struct aq_join *asked = join->asked;
    if (asked->wrapper) AQ_TRY(aq_weights_open(asked->wrapper, &join->wrapper));
    for (uint32_t s = 0; s < asked->stages; s++) {
        AQ_TRY(aq_checkpoint_open(asked->checkpoint, asked->step, s, &join->files[s]));
        if (!aq_weights_metadata(join->files[s], "frozen")) continue;
        AQ_TRY(aq_checkpoint_frozen_open(asked->checkpoint, s, &join->frozen[s]));
    }
    join_files(join);
    AQ_TRY(AQ_NEW(join->count + 1, &join->names));
    AQ_TRY(AQ_NEW(join->count + 1, &join->own));
    AQ_TRY(AQ_NEW(join->count + 1, &join->transposed));
    AQ_TRY(AQ_NEW(join->count + 1, &join->kernels));
    const uint32_t room = join->count + 1 + (join->wrapper ? aq_weights_count(join->wrapper) : 0);
    AQ_TRY(AQ_NEW(room, &join->tensors));
    join_files(join);
    AQ_TRY(aq_publish_transposed(asked->model, join->own, join->count, join->transposed, join->kernels));
    if (asked->lora->rank)
        AQ_TRY(aq_adapters_open(join->files, asked->stages, asked->model, asked->lora, &join->adapters));
    for (uint32_t i = 0; i < join->count; i++) {
        join->tensors[i].transposed = join->transposed[i];
        join->tensors[i].kernel = join->kernels[i];
        join->tensors[i].plus = aq_adapters_of(join->adapters, join->own[i]);
    }
    return join_wrapped(join, room);
}

/* Tensors [first, end) fit into one file; at least one. */
static uint32_t file_end(const struct join *join, uint32_t first)
{
    const uint64_t most = join->asked->file_bytes_max;
    uint64_t bytes = 0;
    uint32_t end = first;
    for (; end < join->count; end++) {
        const uint64_t more = tensor_bytes(join, end);
        if (end > first && most > 0 && more > most - (bytes < most ? bytes : most)) break;
        bytes += more;
    }
    return end;
}

static enum aq_status write_file(struct join *join, const char *name, uint32_t first, uint32_t end)
{
    const struct aq_join *asked = join->asked;
    struct aq_weights_writer *writer;
    uint64_t bytes = 0;
    for (uint32_t i = first; i < end; i++)
        bytes += tensor_bytes(join, i);
    AQ_TRY(aq_weights_writer_open(asked->folder, name, join->tensors + first, end - first, asked->metadata, &writer));
    enum aq_status status;
    uint64_t done = 0;
    while ((status = aq_weights_writer_piece(writer)) == AQ_AGAIN) {
        done = done + AQ_WEIGHTS_PIECE_BYTES < bytes ? done + AQ_WEIGHTS_PIECE_BYTES : bytes; /* at most that */
        if (asked->progress) asked->progress(asked->context, join->done + done, join->total);
    }
    join->done += bytes;
    aq_weights_writer_close(writer);
    return status;
}

static enum aq_status write_index(const struct join *join, json_t *map)
{
    struct aq_text text = {0};
    json_t *index = json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)join->total, "weight_map", map);
    enum aq_status status = aq_json_text(index, JSON_INDENT(2) | JSON_SORT_KEYS, &text);
    json_decref(index);
    if (status == AQ_OK)
        status = aq_file_replace(join->asked->folder, INDEX, 0600, aq_text_of(&text), strlen(aq_text_of(&text)));
    aq_text_deinit(&text);
    return status;
}

/* The index comes when its files are there; the single file, which readers prefer, goes then, and the other way. */
static enum aq_status write_files(struct join *join)
{
    const char *folder = join->asked->folder;
    uint32_t files = 0;
    for (uint32_t first = 0; first < join->count; first = file_end(join, first))
        files++;
    if (files > FILES_MAX)
        return aq_fail(AQ_INVAL, "checkpoint", "%u files of %llu bytes: at most %d are possible", files,
                       (unsigned long long)join->asked->file_bytes_max, FILES_MAX);
    if (files <= 1) {
        AQ_TRY(write_file(join, SINGLE, 0, join->count));
        return aq_file_remove(folder, INDEX);
    }
    json_t *map = json_object();
    uint32_t first = 0;
    for (uint32_t f = 0; f < files; f++) {
        char name[NAME_BYTES];
        const uint32_t end = file_end(join, first);
        snprintf(name, sizeof name, "model-%05u-of-%05u.safetensors", f + 1, files);
        const enum aq_status status = write_file(join, name, first, end);
        if (status != AQ_OK) {
            json_decref(map);
            return status;
        }
        for (; first < end; first++)
            json_object_set_new(map, join->tensors[first].name, json_string(name));
    }
    AQ_TRY(write_index(join, map));
    return aq_file_remove(folder, SINGLE);
}

/* One GGUF file, whose names follow from those of the stages. */
static enum aq_status write_gguf(struct join *join)
{
    const struct aq_join *asked = join->asked;
    for (uint32_t i = 0; i < join->count; i++)
        join->tensors[i].name = join->own[i];
    return aq_gguf_write(asked->gguf, asked->folder, asked->gguf_name, join->tensors, join->count, asked->progress,
                         asked->context);
}

enum aq_status aq_checkpoint_join(const struct aq_join *asked)
{
    AQ_ASSERT(asked->stages <= AQ_JOB_STAGES_MAX);
    struct join join = {.asked = asked};
    if (asked->tied) aq_model_tied_head(asked->model, join.head);
    enum aq_status status = join_open(&join);
    if (status == AQ_OK) status = asked->gguf ? write_gguf(&join) : write_files(&join);
    if (status == AQ_OK && join.adapters && asked->adapter_folder)
        status = aq_adapters_write(join.adapters, asked->adapter_folder, asked->base);
    aq_adapters_close(join.adapters);
    for (uint32_t s = 0; s < asked->stages; s++) {
        aq_weights_close(join.files[s]);
        aq_weights_close(join.frozen[s]);
    }
    aq_weights_close(join.wrapper);
    aq_free(join.tensors);
    aq_free(join.names);
    aq_free(join.own);
    aq_free(join.transposed);
    aq_free(join.kernels);
    return status;
}
