/*
 * command_cache.c -- `aqpipe cache stat|verify|compact|wipe`: message caches that no run has open.
 *
 * A path names a cache, a folder of caches, or a run folder, whose caches lie in cache/. stat and verify write nothing.
 */
#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "commands.h"
#include "control.h"
#include "json_text.h"
#include "options.h"
#include "out.h"
#include "run_folder.h"
#include "runtime_text.h"
#include "storage/cache.h"

enum { BAD_SHOWN = 1000 };

struct asked {
    const char *verb;
    bool verify, json;
    uint64_t mark;
    uint32_t caches; /* found so far */
    int code;
};

/* Sums of one side of one edge; the walk comes edge by edge, side by side. */
struct group {
    uint32_t edge;
    uint16_t side;
    uint64_t messages, bytes;
};

static const char *side_name(uint16_t side)
{
    return side == 0 ? "sent" : side == 1 ? "received" : "unknown side";
}

/* For people texts, for programs arrays. */
struct sums {
    uint64_t messages, bytes, bad;
    struct aq_text groups, broken;
    json_t *groups_json, *broken_json;
};

static void group_end(const struct asked *asked, const struct group *group, struct sums *sums)
{
    char size[AQ_TEXT_NUMBER];
    if (group->messages == 0) return;
    if (asked->json)
        json_array_append_new(sums->groups_json,
                              json_pack("{s:I, s:s, s:I, s:I}", "edge", (json_int_t)group->edge, "side",
                                        side_name(group->side), "messages", (json_int_t)group->messages, "bytes",
                                        (json_int_t)group->bytes));
    else
        aq_text_add(&sums->groups, "  edge %-5" PRIu32 " %-9s %" PRIu64 " messages, %s\n", group->edge,
                    side_name(group->side), group->messages, aq_text_size(group->bytes, size));
}

static void bad_add(const struct asked *asked, const char *path, const struct aq_cache_visit *visit, struct sums *sums)
{
    const struct aq_cache_key *key = &visit->key;
    if (sums->bad++ >= BAD_SHOWN) return;
    if (asked->json)
        json_array_append_new(sums->broken_json,
                              json_pack("{s:I, s:s, s:I, s:I, s:I}", "edge", (json_int_t)key->edge, "side",
                                        side_name(key->side), "sample", (json_int_t)key->sample, "variant",
                                        (json_int_t)key->variant, "version", (json_int_t)visit->version));
    else
        aq_text_add(&sums->broken, "%s: edge %" PRIu32 " %s, sample %" PRIu64 ", variant %u, version %" PRIu64 ": %s\n",
                    path, key->edge, side_name(key->side), key->sample, key->variant, visit->version,
                    visit->byte_count ? "its bytes have changed since they were written" : "its index entry is broken");
}

static enum aq_status walk_all(const struct asked *asked, const char *path, struct aq_cache_walk *walk,
                               struct sums *sums)
{
    struct group group = {0};
    struct aq_cache_visit visit;
    enum aq_status status;
    while ((status = aq_cache_walk_next(walk, &visit)) == AQ_OK) {
        if (visit.status != AQ_OK) bad_add(asked, path, &visit, sums);
        if (visit.key.edge != group.edge || visit.key.side != group.side) {
            group_end(asked, &group, sums);
            group = (struct group){.edge = visit.key.edge, .side = visit.key.side};
        }
        group.messages++;
        group.bytes += visit.byte_count;
        sums->messages++;
        sums->bytes += visit.byte_count;
    }
    group_end(asked, &group, sums);
    return status == AQ_NOTFOUND ? AQ_OK : status;
}

static uint64_t file_bytes(const char *folder, const char *name)
{
    char path[AQ_RUN_PATH_BYTES];
    struct stat about;
    if (aq_run_path(folder, name, path) != AQ_OK || stat(path, &about) != 0) return 0;
    return (uint64_t)about.st_size;
}

/* The job's name is of a file: what is no printable character is not printed, what JSON marks with is not let through.
 */
static const char *name_clean(const struct aq_cache_info *info, char out[sizeof info->job_name])
{
    size_t i = 0;
    for (; info->job_name[i] && i + 1 < sizeof info->job_name; i++) {
        const unsigned char c = (unsigned char)info->job_name[i];
        out[i] = c < ' ' || c > '~' || c == '"' || c == '\\' ? '?' : (char)c;
    }
    out[i] = 0;
    return out;
}

static enum aq_status show_json(const struct asked *asked, const char *path, const struct aq_cache_info *info,
                                struct sums *sums)
{
    char name[sizeof info->job_name], shown[AQ_RUN_PATH_BYTES];
    struct aq_text text = {0};
    json_t *cache = json_pack(
        "{s:s, s:s, s:o, s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:O, s:I, s:O}", "path",
        aq_printable_text(path, shown, sizeof shown), "job", name_clean(info, name), "job_digest",
        aq_control_hex(info->job_digest), "sealed", info->sealed, "format", (json_int_t)info->format, "mark_last",
        (json_int_t)info->mark_last, "mark_previous", (json_int_t)info->mark_previous, "mark", (json_int_t)info->mark,
        "messages", (json_int_t)sums->messages, "bytes", (json_int_t)sums->bytes, "message_bytes_max",
        (json_int_t)info->value_bytes_max, "slab_bytes", (json_int_t)file_bytes(path, "slab"), "index_bytes",
        (json_int_t)file_bytes(path, "index.mdb"), "cells", (json_int_t)info->cells, "cell_bytes",
        (json_int_t)info->cell_bytes, "edges", sums->groups_json, asked->verify ? "bad" : "bad_entries",
        (json_int_t)sums->bad, "bad_messages", sums->broken_json);
    enum aq_status status = aq_json_text(cache, JSON_COMPACT, &text);
    json_decref(cache);
    if (status == AQ_OK) (void)(aq_out_raw(aq_text_of(&text)) && aq_out_raw("\n"));
    aq_text_deinit(&text);
    return status;
}

static enum aq_status show_text(const struct asked *asked, const char *path, const struct aq_cache_info *info,
                                struct sums *sums)
{
    char size[AQ_TEXT_NUMBER], slab[AQ_TEXT_NUMBER], index[AQ_TEXT_NUMBER], most[AQ_TEXT_NUMBER];
    char name[sizeof info->job_name];
    if (asked->verify) {
        aq_out("%s: mark %" PRIu64 ", %" PRIu64 " messages, %s read, %" PRIu64 " broken\n", path, info->mark,
               sums->messages, aq_text_size(sums->bytes, size), sums->bad);
    } else {
        aq_out("%s\n  job        \"%s\", digest %016" PRIx64 ", format %" PRIu32 "%s\n", path, name_clean(info, name),
               info->job_digest, info->format, info->sealed ? ", sealed: its client has the key" : "");
        if (info->mark_previous)
            aq_out("  marks      %" PRIu64 " (newest), %" PRIu64 "\n", info->mark_last, info->mark_previous);
        else
            aq_out("  marks      %s%" PRIu64 "\n", info->mark_last ? "" : "none: ", info->mark_last);
        aq_out("  at %-7" PRIu64 " %" PRIu64 " messages, %s\n%s", info->mark, sums->messages,
               aq_text_size(sums->bytes, size), aq_text_of(&sums->groups));
        aq_out("  files      slab %s (%" PRIu64 " cells of %s), index %s\n",
               aq_text_size(file_bytes(path, "slab"), slab), info->cells, aq_text_size(info->cell_bytes, most),
               aq_text_size(file_bytes(path, "index.mdb"), index));
        if (sums->bad) aq_out("  broken     %" PRIu64 " entries of the index\n", sums->bad);
    }
    aq_out_text(aq_text_of(&sums->broken));
    if (sums->bad > BAD_SHOWN) aq_out("%s: and %" PRIu64 " more\n", path, sums->bad - BAD_SHOWN);
    return AQ_OK;
}

static enum aq_status look(struct asked *asked, const char *path)
{
    struct aq_cache_walk *walk;
    struct aq_cache_info info;
    struct sums sums = {0};
    AQ_TRY(aq_cache_walk_open(path, asked->mark, asked->verify, &walk));
    aq_cache_walk_info(walk, &info);
    sums.groups_json = json_array();
    sums.broken_json = json_array();
    enum aq_status status = walk_all(asked, path, walk, &sums);
    aq_cache_walk_close(walk);
    if (status == AQ_OK) status = sums.groups.status != AQ_OK ? sums.groups.status : sums.broken.status;
    if (status == AQ_OK) status = (asked->json ? show_json : show_text)(asked, path, &info, &sums);
    if (sums.bad) asked->code = AQ_EXIT_FAILED;
    aq_text_deinit(&sums.groups);
    aq_text_deinit(&sums.broken);
    json_decref(sums.groups_json);
    json_decref(sums.broken_json);
    return status;
}

/* {"path": ..., "freed": bytes} */
static void show_freed(const char *path, uint64_t bytes)
{
    char shown[AQ_RUN_PATH_BYTES];
    json_t *line =
        json_pack("{s:s, s:I}", "path", aq_printable_text(path, shown, sizeof shown), "freed", (json_int_t)bytes);
    json_dumpf(line, stdout, JSON_COMPACT | JSON_ENSURE_ASCII);
    (void)aq_out_raw("\n");
    json_decref(line);
}

static enum aq_status compact(const struct asked *asked, const char *path)
{
    uint64_t freed;
    char size[AQ_TEXT_NUMBER], left[AQ_TEXT_NUMBER];
    AQ_TRY(aq_cache_compact(path, &freed));
    if (asked->json) {
        show_freed(path, freed);
        return AQ_OK;
    }
    aq_out("%s: %s freed, %s left\n", path, aq_text_size(freed, size), aq_text_size(file_bytes(path, "slab"), left));
    return AQ_OK;
}

static enum aq_status wipe(const struct asked *asked, const char *path)
{
    uint64_t bytes;
    char size[AQ_TEXT_NUMBER];
    AQ_TRY(aq_cache_wipe(path, &bytes));
    if (asked->json) {
        show_freed(path, bytes);
        return AQ_OK;
    }
    aq_out("%s: wiped, %s\n", path, aq_text_size(bytes, size));
    return AQ_OK;
}

static void one(struct asked *asked, const char *path)
{
    asked->caches++;
    const enum aq_status status = strcmp(asked->verb, "compact") == 0 ? compact(asked, path)
                                  : strcmp(asked->verb, "wipe") == 0  ? wipe(asked, path)
                                                                      : look(asked, path);
    if (status != AQ_OK) asked->code = AQ_EXIT_FAILED;
}

static bool is_cache(const char *path)
{
    return file_bytes(path, "index.mdb") > 0 || file_bytes(path, "slab") > 0;
}

static int by_name(const struct dirent **left, const struct dirent **right)
{
    return strverscmp((*left)->d_name, (*right)->d_name);
}

/* The caches of a folder of caches. */
static uint32_t every(struct asked *asked, const char *folder)
{
    struct dirent **names;
    const uint32_t before = asked->caches;
    const int count = scandir(folder, &names, NULL, by_name);
    for (int i = 0; i < count; i++) {
        char path[AQ_RUN_PATH_BYTES];
        if (names[i]->d_name[0] != '.' && aq_run_path(folder, names[i]->d_name, path) == AQ_OK && is_cache(path))
            one(asked, path);
        (free)(names[i]); /* scandir's own memory */
    }
    if (count >= 0) (free)(names);
    return asked->caches - before;
}

static void path_do(struct asked *asked, const char *path)
{
    char inner[AQ_RUN_PATH_BYTES];
    if (is_cache(path)) {
        one(asked, path);
        return;
    }
    if (every(asked, path) > 0) return;
    if (aq_run_path(path, "cache", inner) == AQ_OK && every(asked, inner) > 0) return;
    (void)aq_fail(AQ_NOTFOUND, "cache", "%s: there is no cache here or in cache/ below it", path);
    if (asked->code == AQ_EXIT_DONE) asked->code = AQ_EXIT_USAGE;
}

static const struct aq_option options[] = {
    AQ_ROW_VERB("stat", "PATH...", "whose it is, its marks, and what its messages and files take",
                "Prints whose the cache is, its marks (each goes with the checkpoint of the same step), messages and "
                "bytes of every edge (sent, received), and what the files take. It reads only the index."),
    AQ_ROW_VERB("verify", "PATH...", "read every message and compare it with its digest",
                "Reads every message, compares it with its digest and names each that is broken. A broken message "
                "costs a run some bytes (it is fetched from the neighbour, or sent whole), never a wrong number."),
    AQ_ROW_VERB("compact", "PATH...", "make the files smaller",
                "Moves the messages of the two newest marks to the head of the slab and cuts off the rest. Both marks "
                "are kept: a run whose stages were killed between two checkpoints returns to the older one."),
    AQ_ROW_VERB("wipe", "PATH...", "remove the cache's files",
                "Removes the cache's files (unlinked, not overwritten). A run that continues fetches its messages from "
                "the neighbour: more bytes, the same numbers."),
    AQ_ROW_MORE(U64, struct asked, mark, "mark", "N",
                "the cache as it was at this mark (one of the two); default: the newest", .min = 1, .max = 1e18,
                .of = "stat verify"),
    AQ_ROW(FLAG, struct asked, json, "json", NULL, "one JSON object per cache, one per line; errors, too"),
    {0}};

static const struct aq_command_line line = {
    "aqpipe cache", "stat|verify|compact|wipe PATH...",
    "A stage keeps, for every training sample, the message that its neighbour holds too: the next change is coded "
    "against it. These commands work on such caches while no run has them open. PATH is one cache "
    "(out/cache/stage-0), a folder of caches, or a run folder.",
    options,
    "Exit status: 0 all is well; 1 a message is broken, or a cache is in use or cannot be read; 2 wrong command "
    "line or path."};

int aq_command_cache(int argc, char **argv)
{
    struct asked asked = {0};
    struct aq_arguments rest;
    const int code = aq_options_read(&line, argc, argv, &asked, &rest);
    if (code != AQ_OPTIONS_READ) return code;
    if (rest.count == 0) return aq_options_wrong(line.name, "name one of stat, verify, compact and wipe");
    asked.verb = rest.of[0];
    asked.verify = strcmp(asked.verb, "verify") == 0;
    const bool changes = strcmp(asked.verb, "compact") == 0 || strcmp(asked.verb, "wipe") == 0;
    if (!asked.verify && !changes && strcmp(asked.verb, "stat") != 0)
        return aq_options_wrong(line.name, "'%s' is not one of stat, verify, compact and wipe", asked.verb);
    if (rest.count == 1) return aq_options_wrong(line.name, "no path is given: name a cache, or a run folder");
    for (uint32_t i = 1; i < rest.count; i++)
        path_do(&asked, rest.of[i]);
    if (fflush(stdout) != 0) return AQ_EXIT_FAILED;
    return asked.code;
}
