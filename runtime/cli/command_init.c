/*
 * command_init.c -- `aqpipe init MODEL --data FILE`: from a model folder, a data file and hosts to a manifest, keys
 * and the next commands.
 *
 * Sizes, tokenizer, chat template and the kind of data come from the folder and the file. Paths are absolute, because
 * other hosts have the same files at the same paths.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "commands.h"
#include "job.h"
#include "keys.h"
#include "options.h"
#include "out.h"
#include "run_folder.h"
#include "ssh_host.h"
#include "stages/dataset.h"
#include "stages/model_folder.h"
#include "stages/weights.h"

enum { T_MAX = 512, STAGES_DEFAULT = 2, CONTROL_PORT = 7070, LINK_PORT = 7100, HOST_BYTES = 300 };

struct asked {
    const char *data, *heldout, *kind, *hosts, *folder;
    uint32_t lora, stages;
    bool daemons, json;
    /* What became of it: */
    const char *model;
    char weights[PATH_MAX], train[PATH_MAX], held[PATH_MAX], where[PATH_MAX];
    struct aq_ssh_host host[AQ_JOB_STAGES_MAX];
    uint32_t host_count;
};

static const struct aq_option options[] = {
    AQ_ROW(TEXT, struct asked, data, "data", "FILE", "the training data: text, or JSONL of texts or conversations"),
    AQ_ROW(TEXT, struct asked, heldout, "heldout", "FILE", "data to measure on, of the same kind"),
    AQ_ROW(TEXT, struct asked, kind, "kind", "KIND", "data.kind; default: as the first line of the data shows"),
    AQ_ROW_RANGE(U32, struct asked, lora, "lora", "RANK", 0, 4096, "train adapters of this rank; 0: all weights (0)"),
    AQ_ROW(TEXT, struct asked, hosts, "hosts", "A,B", "[USER@]HOST of each stage, as the others reach it; makes keys"),
    AQ_ROW_RANGE(U32, struct asked, stages, "stages", "N", 1, AQ_JOB_STAGES_MAX,
                 "stages on this machine, without --hosts (2)"),
    AQ_ROW(FLAG, struct asked, daemons, "daemons", NULL,
           "hosts run aqpiped, and ssh is not used: makes a bundle of keys for each"),
    AQ_ROW(TEXT, struct asked, folder, "dir", "DIR", "where job.yaml and keys go (the current folder)"),
    AQ_ROW(FLAG, struct asked, json, "json", NULL, "one JSON object: the files, and the commands that come next"),
    {0}};

static const struct aq_command_line line = {
    "aqpipe init", "MODEL --data FILE",
    "Makes a job: DIR/job.yaml, with --hosts also its keys in DIR/keys, and prints the commands that come next. MODEL "
    "is "
    "a folder of Hugging Face files, or hf://ORG/NAME in the cache of `hf download`. Existing files are not replaced.",
    options,
    "Examples:\n"
    "  aqpipe init Qwen3-0.6B --data train.jsonl --lora 16\n"
    "  aqpipe init Qwen3-0.6B --data train.jsonl --lora 16 --hosts 203.0.113.10,203.0.113.20"};

/* ---- facts of the files ---- */

static enum aq_status find_file(const char *option, const char *path, char out[PATH_MAX])
{
    if (realpath(path, out)) return AQ_OK;
    return aq_fail(errno == ENOENT ? AQ_NOTFOUND : AQ_INVAL, "init", "%s%.300s: %s", option, path, strerror(errno));
}

/* The folder of MODEL, looked into. */
static enum aq_status find_model(struct asked *asked, uint32_t *T)
{
    struct aq_model_folder *folder;
    char hub[AQ_RUN_PATH_BYTES];
    const char *path = asked->model;
    if (aq_model_hub_is(path)) {
        AQ_TRY(aq_model_hub_path(path, hub, sizeof hub));
        path = hub;
    }
    struct aq_weights *weights;
    AQ_TRY(aq_model_folder_open(path, &folder));
    const uint32_t context = aq_model_folder_model(folder)->context;
    *T = context && context < T_MAX ? context : T_MAX;
    aq_model_folder_close(folder);
    AQ_TRY(aq_weights_open(path, &weights)); /* whole, and not the pointers of Git LFS? */
    aq_weights_close(weights);
    return find_file("", path, asked->weights);
}

static bool is_text_kind(const char *kind)
{
    return strcmp(kind, "text") == 0 || strcmp(kind, aq_dataset_of_answers()) == 0;
}

/* Texts, or prompts with answers: as a job would recognise its data (data.kind). */
static enum aq_status find_kind(struct asked *asked)
{
    const char *paths[] = {asked->train}, *dot = strrchr(asked->train, '.');
    const struct aq_dataset_config config = {.paths = paths, .path_count = 1, .field = "targets"};
    char why[512];
    struct stat about;
    if (stat(asked->train, &about) == 0 && S_ISREG(about.st_mode) && about.st_size == 0)
        return aq_fail(AQ_INVAL, "init", "--data %.300s: the file is empty", asked->train);
    if (asked->kind && !is_text_kind(asked->kind))
        return aq_fail(AQ_INVAL, "init",
                       "--kind: '%.40s' is not text or %s; a job on other data names more keys: docs/TASKS.md",
                       asked->kind, aq_dataset_of_answers());
    AQ_TRY(aq_dataset_text_check(asked->train));
    if (asked->kind) return AQ_OK;
    asked->kind = aq_dataset_recognise(&config, why, sizeof why);
    if (!why[0] && dot && strcmp(dot, ".jsonl") == 0)
        return aq_fail(AQ_INVAL, "init", "--data %.300s:1: is not a JSON object; name its --kind", asked->train);
    if (is_text_kind(asked->kind)) return AQ_OK;
    return aq_fail(AQ_INVAL, "init", "--data %.300s: a job on data of kind %s names more keys: docs/TASKS.md",
                   asked->train, asked->kind);
}

static enum aq_status find_hosts(struct asked *asked)
{
    for (const char *at = asked->hosts; at;) {
        const char *comma = strchr(at, ','), *why = "it is too long";
        char text[HOST_BYTES];
        const size_t bytes = comma ? (size_t)(comma - at) : strlen(at);
        if (asked->host_count == AQ_JOB_STAGES_MAX)
            return aq_fail(AQ_INVAL, "init", "--hosts: at most %d", AQ_JOB_STAGES_MAX);
        snprintf(text, sizeof text, "%.*s", (int)(bytes < sizeof text ? bytes : sizeof text - 1), at);
        if (bytes >= sizeof text || aq_ssh_parse(text, &asked->host[asked->host_count++], &why) != AQ_OK)
            return aq_fail(AQ_INVAL, "init", "--hosts: '%.80s' is not a host: %s", text, why);
        at = comma ? comma + 1 : NULL;
    }
    if (asked->hosts && asked->host_count < 2)
        return aq_fail(AQ_INVAL, "init", "--hosts: name two or more, as in --hosts A,B; one machine needs none");
    if (asked->hosts) asked->stages = asked->host_count;
    return AQ_OK;
}

/* "203.0.113.10", "[::1]" */
static const char *host_text(const struct aq_ssh_host *host, char out[HOST_BYTES])
{
    snprintf(out, HOST_BYTES, "%s%s%s", host->host.v6 ? "[" : "", host->host.host, host->host.v6 ? "]" : "");
    return out;
}

/* ---- what it writes ---- */

static void add_path(struct aq_text *text, const char *before, const char *path)
{
    aq_text_add(text, "%s", before);
    aq_key_quote(path, text);
    aq_text_add(text, "\n");
}

static void add_stages(const struct asked *asked, struct aq_text *text)
{
    char host[HOST_BYTES];
    if (!asked->daemons) {
        aq_text_add(text, "pipeline:\n  stages: %u%s\n", asked->stages,
                    asked->hosts ? "   # --host names their machines" : "");
        return;
    }
    aq_text_add(text, "pipeline:\n  stages:\n");
    for (uint32_t i = 0; i < asked->host_count; i++) {
        host_text(&asked->host[i], host);
        aq_text_add(text, "    - {host: \"tcp://%s:%d\", address: \"%s:%d\"}\n", host, CONTROL_PORT, host, LINK_PORT);
    }
}

static enum aq_status write_manifest(const struct asked *asked, uint32_t T)
{
    struct aq_text text = {0};
    char path[AQ_RUN_PATH_BYTES];
    struct stat about;
    AQ_TRY(aq_run_path(asked->where, "job.yaml", path));
    if (lstat(path, &about) == 0)
        return aq_fail(AQ_INVAL, "init", "%s exists: remove it, or choose another --dir", path);
    aq_text_add(&text, "# Made by aqpipe init. `aqpipe plan` checks it, `aqpipe help keys` explains every key.\n"
                       "job: {name: fine-tune}\nmodel:\n");
    add_path(&text, "  weights: ", asked->weights);
    if (asked->lora) aq_text_add(&text, "lora: {rank: %u, alpha: %u}\n", asked->lora, 2 * asked->lora);
    aq_text_add(&text, "data:\n  kind: %s\n", asked->kind);
    add_path(&text, "  train: ", asked->train);
    if (*asked->held) add_path(&text, "  heldout: ", asked->held);
    aq_text_add(&text, "train: {T: %u, batch: 8, micro_batch: 1, epochs: 3, lr: %s, warmup_steps: 20, clip: 1}\n", T,
                asked->lora ? "2e-4" : "5e-5");
    add_stages(asked, &text);
    if (asked->hosts) aq_text_add(&text, "security: {keys: keys}\n");
    aq_text_add(&text, "output: {path: run}\n");
    enum aq_status status = text.status;
    if (status == AQ_OK) status = aq_file_replace(NULL, path, 0666, aq_text_of(&text), text.used);
    aq_text_deinit(&text);
    return status;
}

static enum aq_status write_keys(const struct asked *asked)
{
    char keys[AQ_RUN_PATH_BYTES], out[AQ_RUN_PATH_BYTES], name[HOST_BYTES + 8], host[HOST_BYTES];
    struct aq_text hosts = {0};
    if (!asked->hosts) return AQ_OK;
    AQ_TRY(aq_run_path(asked->where, "keys", keys));
    for (uint32_t i = 0; i < asked->host_count; i++)
        aq_text_add(&hosts, "%s%s", i ? "," : "", host_text(&asked->host[i], host));
    enum aq_status status = hosts.status;
    if (status == AQ_OK)
        status = aq_keys_make(keys, "fine-tune", asked->stages, asked->daemons ? aq_text_of(&hosts) : NULL);
    aq_text_deinit(&hosts);
    for (uint32_t i = 0; asked->daemons && i < asked->host_count && status == AQ_OK; i++) {
        snprintf(name, sizeof name, "for-%s", asked->host[i].host.host);
        status = aq_run_path(asked->where, name, out);
        if (status == AQ_OK) status = aq_keys_give(keys, out, host_text(&asked->host[i], host), i);
    }
    return status;
}

/* ---- what comes next ---- */

/* {"where": "here" or a host, "command": ...}, in order. */
static void add_command(json_t *commands, const char *where, struct aq_text *command)
{
    json_array_append_new(commands, json_pack("{s:s, s:s}", "where", where, "command", aq_text_of(command)));
    aq_text_deinit(command);
}

static void add_here(json_t *commands, const struct asked *asked, const char *verb, const char *more)
{
    struct aq_text text = {0};
    char path[AQ_RUN_PATH_BYTES];
    if (aq_run_path(asked->where, "job.yaml", path) != AQ_OK) return;
    aq_text_add(&text, "aqpipe %s ", verb);
    aq_text_shell(&text, asked->folder ? path : "job.yaml");
    aq_text_add(&text, "%s", more);
    add_command(commands, "here", &text);
}

/* Each host's keys and daemon. */
static void add_daemons(json_t *commands, const struct asked *asked)
{
    char host[HOST_BYTES], out[AQ_RUN_PATH_BYTES];
    for (uint32_t i = 0; i < asked->host_count; i++) {
        struct aq_text text = {0};
        char name[HOST_BYTES + 8];
        host_text(&asked->host[i], host);
        snprintf(name, sizeof name, "for-%s", asked->host[i].host.host);
        if (aq_run_path(asked->where, name, out) != AQ_OK) return;
        aq_text_add(&text, "scp -rp ");
        if (asked->host[i].port) aq_text_add(&text, "-P %u ", asked->host[i].port);
        aq_text_shell(&text, out);
        aq_text_add(&text, " %s%s%s:%s", asked->host[i].user, asked->host[i].user[0] ? "@" : "", host, name);
        add_command(commands, "here", &text);
        aq_text_add(&text, "aqpiped --listen %s:%d --keys %s", host, CONTROL_PORT, name);
        add_command(commands, host, &text);
    }
}

static json_t *next_commands(const struct asked *asked)
{
    json_t *commands = json_array();
    struct aq_text more = {0};
    const bool chat = strcmp(asked->kind, aq_dataset_of_answers()) == 0;
    if (asked->daemons) add_daemons(commands, asked);
    if (asked->hosts && !asked->daemons) {
        aq_text_add(&more, " --host ");
        aq_text_shell(&more, asked->hosts);
        aq_text_add(&more, " --copy");
    }
    add_here(commands, asked, "plan", asked->daemons ? " --probe" : "");
    add_here(commands, asked, "launch", aq_text_of(&more));
    aq_text_deinit(&more);
    struct aq_text last = {0};
    char run[AQ_RUN_PATH_BYTES];
    if (aq_run_path(asked->where, "run", run) == AQ_OK) {
        aq_text_add(&last, "aqpipe generate ");
        aq_text_shell(&last, asked->folder ? run : "run");
        aq_text_add(&last, chat ? " --chat 'Hello'" : " --prompt 'Once upon a time'");
        add_command(commands, "here", &last);
    }
    return commands;
}

static void tell(const struct asked *asked)
{
    json_t *commands = next_commands(asked);
    const json_t *command;
    size_t i;
    if (asked->json) {
        json_t *all = json_pack("{s:s, s:s, s:b, s:s, s:o}", "folder", asked->where, "manifest", "job.yaml", "keys",
                                asked->hosts != NULL, "kind", asked->kind, "commands", commands);
        json_dumpf(all, stdout, JSON_COMPACT | JSON_ENSURE_ASCII);
        (void)aq_out_raw("\n");
        json_decref(all);
        return;
    }
    aq_out("wrote job.yaml%s in %s (data.kind: %s)\n",
           asked->hosts ? asked->daemons ? ", keys and for-HOST" : " and keys" : "", asked->where, asked->kind);
    if (asked->hosts && !asked->daemons)
        aq_out("Each other host needs aqpipe " AQ_VERSION
               " in its PATH, rsync, and `ssh HOST true` without a question.\n");
    else if (asked->hosts)
        aq_out("Each host needs the model and the data at the same paths as here.\n");
    aq_out("Next:\n");
    json_array_foreach(commands, i, command)
    {
        const char *where = json_string_value(json_object_get(command, "where"));
        const bool here = strcmp(where, "here") == 0;
        aq_out("  %s%s%s%s\n", here ? "" : "on ", here ? "" : where, here ? "" : ":  ",
               json_string_value(json_object_get(command, "command")));
    }
    json_decref(commands);
}

static enum aq_status init(struct asked *asked)
{
    uint32_t T;
    AQ_TRY(find_hosts(asked));
    AQ_TRY(find_model(asked, &T));
    AQ_TRY(find_file("--data ", asked->data, asked->train));
    if (asked->heldout) AQ_TRY(find_file("--heldout ", asked->heldout, asked->held));
    AQ_TRY(find_kind(asked));
    if (asked->folder) AQ_TRY(aq_run_make_folder(asked->folder));
    AQ_TRY(find_file("--dir ", asked->folder ? asked->folder : ".", asked->where));
    AQ_TRY(write_manifest(asked, T));
    const enum aq_status status = write_keys(asked);
    if (status == AQ_OK)
        tell(asked);
    else /* else a second try would fail, because job.yaml exists */
        (void)aq_file_remove(asked->where, "job.yaml");
    return status;
}

int aq_command_init(int argc, char **argv)
{
    static struct asked asked = {.stages = STAGES_DEFAULT};
    struct aq_arguments rest;
    const int code = aq_options_read(&line, argc, argv, &asked, &rest);
    if (code != AQ_OPTIONS_READ) return code;
    if (rest.count != 1) return aq_options_wrong(line.name, "init needs one model folder");
    if (!asked.data) return aq_options_wrong(line.name, "--data FILE is missing");
    if (asked.daemons && !asked.hosts) return aq_options_wrong(line.name, "--daemons needs --hosts A,B");
    asked.model = rest.of[0];
    return aq_exit_of(init(&asked));
}
