/*
 * model_hub.c -- a model by its name on the Hugging Face Hub (hf://ORG/NAME): where `hf download` has put it.
 *
 *     HF_HUB_CACHE (or its older name HUGGINGFACE_HUB_CACHE), or HF_HOME/hub, or XDG_CACHE_HOME/huggingface/hub,
 *     or ~/.cache/huggingface/hub
 *         models--ORG--NAME/refs/main            a commit
 *         models--ORG--NAME/snapshots/COMMIT/    the folder
 *
 * Nothing is downloaded here.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dataset_file.h"
#include "stages/model_folder.h"

#define AREA   "folder"
#define SCHEME "hf://"

enum { PATH_BYTES = 4096, NAME_MAX_BYTES = 96, COMMIT_BYTES = 64 };

/* As many characters as a part of such a name has at the beginning of a text. */
static size_t part(const char *text)
{
    size_t bytes = 0;
    while (isalnum((unsigned char)text[bytes]) || (text[bytes] && strchr("._-", text[bytes])))
        bytes++;
    return bytes <= NAME_MAX_BYTES && text[0] != '.' ? bytes : 0;
}

bool aq_model_hub_name(const char *text)
{
    const size_t owner = part(text);
    if (owner == 0 || text[owner] != '/') return false;
    const size_t name = part(text + owner + 1);
    return name > 0 && text[owner + 1 + name] == 0;
}

bool aq_model_hub_is(const char *text)
{
    return strncmp(text, SCHEME, strlen(SCHEME)) == 0;
}

static bool cache_folder(char *out, size_t bytes)
{
    static const struct {
        const char *variable, *behind;
    } places[] = {{"HF_HUB_CACHE", ""},
                  {"HUGGINGFACE_HUB_CACHE", ""},
                  {"HF_HOME", "/hub"},
                  {"XDG_CACHE_HOME", "/huggingface/hub"},
                  {"HOME", "/.cache/huggingface/hub"}};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const char *value = getenv(places[i].variable);
        if (!value || !*value) continue;
        const int length = snprintf(out, bytes, "%s%s", value, places[i].behind);
        return length > 0 && (size_t)length < bytes;
    }
    return false;
}

/* The commit that refs/main names, without white space behind it. */
static bool read_commit(const char *folder, char commit[COMMIT_BYTES + 1])
{
    char path[PATH_BYTES];
    struct aq_error_hold none;
    uint8_t *bytes;
    size_t count;
    const int length = snprintf(path, sizeof path, "%s/refs/main", folder);
    if (length < 0 || (size_t)length >= sizeof path || access(path, F_OK) != 0) return false;
    aq_error_hold(&none);
    const bool read = aq_file_read(AREA, path, COMMIT_BYTES, &bytes, &count) == AQ_OK;
    aq_error_release(&none);
    if (!read) return false;
    size_t used = 0;
    while (used < count && isxdigit(bytes[used]))
        used++;
    memcpy(commit, bytes, used);
    commit[used] = 0;
    aq_free(bytes);
    return used > 0;
}

enum aq_status aq_model_hub_path(const char *text, char *out, size_t bytes)
{
    const char *name = text + strlen(SCHEME);
    char cache[PATH_BYTES] = "no HOME is set", folder[PATH_BYTES], commit[COMMIT_BYTES + 1];
    if (!aq_model_hub_is(text) || !aq_model_hub_name(name))
        return aq_fail(AQ_INVAL, AREA,
                       "%.128s: is not the name of a model: write hf://ORG/NAME, as in hf://Qwen/Qwen3-0.6B", text);
    const size_t owner = part(name);
    bool found = cache_folder(cache, sizeof cache);
    int length =
        snprintf(folder, sizeof folder, "%s/models--%.*s--%s", found ? cache : "", (int)owner, name, name + owner + 1);
    found = found && length > 0 && (size_t)length < sizeof folder && read_commit(folder, commit);
    if (found) {
        length = snprintf(out, bytes, "%s/snapshots/%s", folder, commit);
        if (length > 0 && (size_t)length < bytes && aq_model_folder_is(out)) return AQ_OK;
    }
    return aq_fail(AQ_NOTFOUND, AREA, "%s: is not in the Hugging Face cache (%s): `hf download %s` puts it there", text,
                   cache, name);
}
