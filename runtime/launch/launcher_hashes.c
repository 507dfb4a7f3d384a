/*
 * launcher_hashes.c -- the SHA-256 of every stage's checkpoint, kept by the launcher: RUN/hashes.json, written before
 * checkpoint/complete names the step. A stage that has lost its file gets the hash at `start`, and refuses a copy with
 * another: the keeper of the copy cannot forge it. With reduce.patience, of files that another rank has written: so a
 * later launch knows who has them.
 *
 *     {"24": ["8a2f...", ...], "30": [...]}             by step, then by rank; "" without a hash
 *     {"by": 0, "bytes": 81234, "sha256": "8a2f..."}    in place of a hash: rank 0 has written the file
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
    aq_log("launch", AQ_LOG_WARNING, "%s is damaged: files of its checkpoints cannot be fetched from other ranks",
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

/* Is that an entry of a rank of the same stage, in another replica? */
static bool has_writer(const struct launcher *launcher, uint32_t rank, const json_t *entry)
{
    const uint32_t P = launcher->launch->stages;
    const json_int_t by = json_integer_value(json_object_get(entry, "by"));
    const char *hash = json_string_value(json_object_get(entry, "sha256"));
    return json_is_integer(json_object_get(entry, "by")) && by >= 0 && by < (json_int_t)launcher->ranks &&
           (uint32_t)by % P == rank % P && (uint32_t)by != rank && hash && aq_hash_is(hash) &&
           json_integer_value(json_object_get(entry, "bytes")) > 0;
}

bool launcher_hash_stood_in(struct launcher *launcher, uint64_t step, uint32_t rank)
{
    struct stage *stage = &launcher->stages[rank];
    char name[24];
    step_name(step, name);
    const json_t *all = json_object_get(launcher->hashes, name), *entry = json_array_get(all, rank);
    if (json_array_size(all) != launcher->ranks || !has_writer(launcher, rank, entry)) return false;
    stage->file.step = step;
    stage->file.by = (uint32_t)json_integer_value(json_object_get(entry, "by"));
    stage->file.bytes = (uint64_t)json_integer_value(json_object_get(entry, "bytes"));
    stage->file.asked = false;
    memcpy(stage->file.hash, json_string_value(json_object_get(entry, "sha256")), AQ_HASH_TEXT_BYTES);
    return true;
}

static json_t *entry_of(const struct stage *stage, uint64_t step)
{
    if (stage->file.step != step) return json_string(stage->hash);
    return json_pack("{s:I, s:I, s:s}", "by", (json_int_t)stage->file.by, "bytes", (json_int_t)stage->file.bytes,
                     "sha256", stage->file.hash);
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
        any |= launcher->stages[r].hash[0] != 0 || launcher->stages[r].file.step == step;
    if (!any && !launcher->hashes) return AQ_OK;
    json_t *all = json_object(), *now = json_array();
    step_name(older, name);
    json_t *before = json_object_get(launcher->hashes, name);
    if (older && before) json_object_set(all, name, before);
    for (uint32_t r = 0; r < launcher->ranks; r++)
        json_array_append_new(now, entry_of(&launcher->stages[r], step));
    step_name(step, name);
    json_object_set_new(all, name, now);
    json_decref(launcher->hashes);
    launcher->hashes = all;
    AQ_TRY(aq_run_path(launcher->launch->run, "hashes.json", path));
    return aq_json_replace(path, json_incref(all), JSON_COMPACT | JSON_SORT_KEYS);
}
