/*
 * launcher_hashes.c -- the SHA-256 of every stage's checkpoint, kept by the launcher: RUN/hashes.json, written before
 * checkpoint/complete names the step. A stage that has lost its file gets the hash at `start`, and refuses a copy with
 * another: the keeper of the copy cannot forge it.
 *
 *     {"24": ["8a2f...", ...], "30": [...]}      by step, then by rank; "" without a hash
 */
#include <string.h>

#include "json_text.h"
#include "launcher_private.h"
#include "seal.h"

enum { BYTES_MAX = 1 << 20 };

/* A run without copies has no file. A damaged file counts as missing, because it is needed only if a disk is lost. */
enum aq_status launcher_hashes_load(struct launcher *launcher)
{
    char path[AQ_RUN_PATH_BYTES], *text;
    size_t count;
    AQ_TRY(aq_run_path(launcher->launch->run, "hashes.json", path));
    const enum aq_status status = aq_file_load(NULL, path, BYTES_MAX, &text, &count);
    if (status == AQ_NOTFOUND) return AQ_OK;
    AQ_TRY(status);
    launcher->hashes = json_loadb(text, count, JSON_REJECT_DUPLICATES, NULL);
    aq_free(text);
    if (json_is_object(launcher->hashes)) return AQ_OK;
    json_decref(launcher->hashes);
    launcher->hashes = NULL;
    aq_log("launch", AQ_LOG_WARNING, "%s is damaged: copies of its checkpoints cannot be fetched from neighbours",
           path);
    return AQ_OK;
}

static void step_name(uint64_t step, char name[24])
{
    snprintf(name, 24, "%llu", (unsigned long long)step);
}

const char *launcher_hash(const struct launcher *launcher, uint64_t step, uint32_t rank)
{
    char name[24];
    step_name(step, name);
    const json_t *all = json_object_get(launcher->hashes, name);
    const char *hash = json_string_value(json_array_get(all, rank));
    return json_array_size(all) == launcher->ranks && hash && aq_hash_is(hash) ? hash : NULL;
}

bool launcher_hash_told(struct launcher *launcher, uint32_t rank, const char *hash)
{
    char *mine = launcher->stages[rank].hash;
    if (*hash && !aq_hash_is(hash)) return false;
    memcpy(mine, hash, strlen(hash) + 1);
    return true;
}

enum aq_status launcher_hashes_note(struct launcher *launcher, uint64_t step, uint64_t older)
{
    char path[AQ_RUN_PATH_BYTES], name[24];
    bool any = false;
    for (uint32_t r = 0; r < launcher->ranks; r++)
        any |= launcher->stages[r].hash[0] != 0;
    if (!any && !launcher->hashes) return AQ_OK;
    json_t *all = json_object(), *now = json_array();
    step_name(older, name);
    json_t *before = json_object_get(launcher->hashes, name);
    if (older && before) json_object_set(all, name, before);
    for (uint32_t r = 0; r < launcher->ranks; r++)
        json_array_append_new(now, json_string(launcher->stages[r].hash));
    step_name(step, name);
    json_object_set_new(all, name, now);
    json_decref(launcher->hashes);
    launcher->hashes = all;
    AQ_TRY(aq_run_path(launcher->launch->run, "hashes.json", path));
    return aq_json_replace(path, json_incref(all), JSON_COMPACT | JSON_SORT_KEYS);
}
