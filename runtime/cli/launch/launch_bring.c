/* launch_bring.c -- see the header. */
#include "launch_bring.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "checkpoint.h"
#include "child.h"
#include "run_folder.h"
#include "runtime_text.h"
#include "security.h"
#include "ssh_host.h"
#include "stages/dataset.h"

enum { ARGUMENTS_MAX = AQ_JOB_RANKS_MAX + 16, NO_RSYNC = 127 };

/* One host that agents run on: its ranks are those whose `host` is the same text. */
struct there {
    const struct aq_job *job;
    const char *address; /* "ssh://..." */
    struct aq_ssh_host ssh;
    char target[AQ_SSH_USER_BYTES + AQ_ENDPOINT_HOST_BYTES + 4]; /* of rsync */
    char shell[128];                                             /* of rsync's -e */
};

/* rsync with these arguments. `what` names it in messages. */
static enum aq_status run_rsync(const struct there *there, const char *const *arguments, const char *what)
{
    int how = 0;
    pid_t pid;
    const struct aq_child child = {.program = "rsync", .search = true, .arguments = arguments, .missing = NO_RSYNC};
    AQ_TRY(aq_child_start(&child, "rsync", &pid));
    while (waitpid(pid, &how, 0) == -1 && errno == EINTR)
        continue;
    if (WIFEXITED(how) && WEXITSTATUS(how) == 0) return AQ_OK;
    if (WIFEXITED(how) && WEXITSTATUS(how) == NO_RSYNC)
        return aq_fail(AQ_NOTFOUND, "launch", "there is no rsync here: install it, or copy %s to %s by hand (scp -rp)",
                       what, there->target);
    return aq_fail(
        AQ_IO, "launch",
        "rsync could not copy %s to %s (status %d): rsync must be installed there, too, and `ssh -o BatchMode=yes "
        "%s true` must work without a question",
        what, there->target, WIFEXITED(how) ? WEXITSTATUS(how) : -1, there->target);
}

/* rsync SOURCES TARGET:FOLDER/, where FOLDER is made first. */
static enum aq_status copy(const struct there *there, const char *const *sources, uint32_t count, const char *folder,
                           bool secret)
{
    struct aq_text remote = {0}, to = {0};
    const char *arguments[ARGUMENTS_MAX];
    uint32_t n = 0;
    aq_text_add(&remote, "%smkdir -p ", secret ? "umask 077 && " : "");
    aq_text_shell(&remote, folder);
    aq_text_add(&remote, " && rsync");
    aq_text_add(&to, "%s:%s/", there->target, folder);
    arguments[n++] = "rsync";
    arguments[n++] = "-rlpts"; /* not -a: files belong to who receives them. s: the other end's shell reads no path */
    arguments[n++] = secret ? "--chmod=D700,F600" : "--copy-links";
    arguments[n++] = "-e";
    arguments[n++] = there->shell;
    arguments[n++] = "--rsync-path";
    arguments[n++] = aq_text_of(&remote);
    arguments[n++] = "--";
    for (uint32_t i = 0; i < count; i++)
        arguments[n++] = sources[i];
    arguments[n++] = aq_text_of(&to);
    arguments[n] = NULL;
    enum aq_status status = remote.status != AQ_OK ? remote.status : to.status;
    if (status == AQ_OK) status = run_rsync(there, arguments, sources[0]);
    aq_text_deinit(&remote);
    aq_text_deinit(&to);
    return status;
}

static bool is_here(const struct there *there, uint32_t rank)
{
    const char *host = there->job->pipeline.stages[rank].host;
    return host && strcmp(host, there->address) == 0;
}

/* authority.pem, those of its stages, and what is revoked, if there is a list. */
static enum aq_status bring_keys(const struct there *there)
{
    static char paths[AQ_JOB_RANKS_MAX + 2][AQ_RUN_PATH_BYTES];
    const char *sources[AQ_JOB_RANKS_MAX + 2], *folder = there->job->security.keys;
    uint32_t count = 0;
    char name[32];
    AQ_TRY(aq_run_path(folder, "authority.pem", paths[count++]));
    AQ_TRY(aq_run_path(folder, "revoked.pem", paths[count]));
    if (access(paths[count], F_OK) == 0) count++;
    for (uint32_t r = 0; r < aq_job_ranks(there->job); r++) {
        if (!is_here(there, r)) continue;
        snprintf(name, sizeof name, "stage-%u.pem", r);
        AQ_TRY(aq_run_path(folder, name, paths[count++]));
    }
    for (uint32_t i = 0; i < count; i++)
        sources[i] = paths[i];
    return copy(there, sources, count, folder, true);
}

/* A file or folder, at its own path. */
static enum aq_status bring_path(const struct there *there, const char *path)
{
    char folder[AQ_RUN_PATH_BYTES];
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    while (slash && slash > folder && !slash[1]) { /* "model/" is "model" */
        *slash = 0;
        slash = strrchr(folder, '/');
    }
    if (!slash) return aq_fail(AQ_INVAL, "launch", "'%.200s' is not an absolute path", path);
    char source[AQ_RUN_PATH_BYTES];
    snprintf(source, sizeof source, "%s", folder);
    *slash = 0;
    const char *const sources[] = {source};
    return copy(there, sources, 1, *folder ? folder : "/", false);
}

/* A table names files that are no part of the manifest. */
static enum aq_status check_files(const struct aq_job *job)
{
    if (!aq_dataset_kind_names_files(job->data.kind)) return AQ_OK;
    return aq_fail(AQ_INVAL, "launch",
                   "--copy brings the table of data.kind: %s, but not its images: copy the folder by hand (rsync -a), "
                   "and leave --copy out",
                   job->data.kind);
}

static enum aq_status bring_files(const struct there *there)
{
    const struct aq_job *job = there->job;
    const char *const single[] = {job->model.weights, job->train.lora_weights, job->data.tokenizer_path,
                                  job->data.chat};
    for (size_t i = 0; i < sizeof single / sizeof *single; i++)
        if (single[i]) AQ_TRY(bring_path(there, single[i]));
    for (uint32_t i = 0; i < job->data.train_count; i++)
        AQ_TRY(bring_path(there, job->data.train[i]));
    for (uint32_t i = 0; i < job->data.heldout_count; i++)
        AQ_TRY(bring_path(there, job->data.heldout[i]));
    return AQ_OK;
}

/* The target of ssh://..., and the shell of rsync. */
static enum aq_status meet(const struct aq_job *job, uint32_t rank, struct there *there)
{
    const char *why;
    *there = (struct there){.job = job, .address = job->pipeline.stages[rank].host};
    if (aq_ssh_parse(there->address, &there->ssh, &why) != AQ_OK)
        return aq_fail(AQ_INVAL, "launch", "'%.80s' is not a host: %s", there->address, why);
    const bool v6 = there->ssh.host.v6;
    snprintf(there->target, sizeof there->target, "%s%s%s%s%s", there->ssh.user, there->ssh.user[0] ? "@" : "",
             v6 ? "[" : "", there->ssh.host.host, v6 ? "]" : "");
    const int used = snprintf(there->shell, sizeof there->shell, "ssh -o BatchMode=yes -o ConnectTimeout=10");
    if (there->ssh.port) snprintf(there->shell + used, sizeof there->shell - (size_t)used, " -p %u", there->ssh.port);
    return AQ_OK;
}

enum aq_status aq_bring(const struct aq_job *job, bool files, struct aq_progress *progress)
{
    const bool keys = aq_security_on(job) && job->security.keys;
    for (uint32_t r = 0; r < aq_job_ranks(job) && (keys || files); r++) {
        struct there there;
        bool before = false;
        if (!aq_ssh_is(job->pipeline.stages[r].host)) continue;
        if (files) AQ_TRY(check_files(job));
        AQ_TRY(meet(job, r, &there));
        for (uint32_t other = 0; other < r; other++)
            before |= is_here(&there, other);
        if (before) continue;
        aq_progress_say(progress, "copies %s%s%s to %s", keys ? "keys" : "", keys && files ? ", " : "",
                        files ? "model and data" : "", there.target);
        if (keys) AQ_TRY(bring_keys(&there));
        if (files) AQ_TRY(bring_files(&there));
    }
    return AQ_OK;
}

/* HOST:PATH into a folder here; a missing file is no error. */
static enum aq_status fetch(const struct there *there, const char *path, const char *folder)
{
    struct aq_text from = {0}, to = {0};
    aq_text_add(&from, "%s:%s", there->target, path);
    aq_text_add(&to, "%s/", folder);
    const char *const arguments[] = {"rsync", "-rlpts",          "--ignore-missing-args", "-e", there->shell,
                                     "--",    aq_text_of(&from), aq_text_of(&to),         NULL};
    enum aq_status status = from.status != AQ_OK ? from.status : to.status;
    if (status == AQ_OK) status = run_rsync(there, arguments, path);
    aq_text_deinit(&from);
    aq_text_deinit(&to);
    return status;
}

enum aq_status aq_bring_back(const struct aq_job *job, const char *checkpoint, uint64_t step,
                             struct aq_progress *progress)
{
    char path[AQ_RUN_PATH_BYTES], folder[AQ_RUN_PATH_BYTES], name[48];
    snprintf(name, sizeof name, "%llu", (unsigned long long)step);
    AQ_TRY(aq_run_path(checkpoint, name, folder));
    for (uint32_t s = 0; s < job->pipeline.stage_count; s++) {
        struct there there;
        if (!aq_ssh_is(job->pipeline.stages[s].host)) continue;
        AQ_TRY(meet(job, s, &there));
        AQ_TRY(aq_run_make_folder(folder));
        aq_progress_say(progress, "fetches stage %u's checkpoint from %s", s, there.target);
        AQ_TRY(aq_checkpoint_path(checkpoint, step, s, path));
        AQ_TRY(fetch(&there, path, folder));
        snprintf(name, sizeof name, "frozen-stage-%u.safetensors", s); /* where weights are frozen */
        AQ_TRY(aq_run_path(checkpoint, name, path));
        AQ_TRY(fetch(&there, path, checkpoint));
    }
    return AQ_OK;
}
