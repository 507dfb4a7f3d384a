/* commands.c -- what the commands have in common. */
#include "commands.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "job.h"
#include "lr_ends.h"
#include "net/tls.h"
#include "options.h"
#include "out.h"
#include "run_folder.h"
#include "security.h"
#include "ssh_host.h"
#include "trackers.h"

bool aq_program_beside(const char *name, char *path)
{
    const ssize_t count = readlink("/proc/self/exe", path, AQ_RUN_PATH_BYTES - 1);
    if (count <= 0) return false;
    path[count] = 0;
    char *slash = strrchr(path, '/');
    if (!slash || (size_t)(slash + 1 - path) + strlen(name) >= AQ_RUN_PATH_BYTES) return false;
    memcpy(slash + 1, name, strlen(name) + 1);
    return access(path, X_OK) == 0;
}

enum aq_status aq_daemon_program(char *path)
{
    const char *named = getenv("AQPIPE_DAEMON");
    if (named && aq_absolute(named, path) && access(path, X_OK) == 0) return AQ_OK;
    if (!named && aq_program_beside("aqpiped", path)) return AQ_OK;
    return aq_fail(AQ_NOTFOUND, "launch", "there is no program %s", named ? named : "aqpiped next to aqpipe");
}

/* Is the file of the owner of this program, or root's? Another user's must not run in this one's name. */
static bool is_trusted(const char *path)
{
    struct stat own, file;
    return stat("/proc/self/exe", &own) == 0 && stat(path, &file) == 0 && S_ISREG(file.st_mode) &&
           (file.st_uid == own.st_uid || file.st_uid == 0);
}

void aq_follow_config(const struct aq_job *job, char *program, struct aq_trackers_config *out)
{
    /* Of a package; of one with a C library of its own (lib/aqpipe); of a build in its source tree. */
    static const char *const places[] = {"../share/aqpipe/tools/follow", "../../share/aqpipe/tools/follow",
                                         "../../../tools/follow"};
    const char *named = getenv("AQPIPE_FOLLOW"), *python = getenv("AQPIPE_PYTHON");
    char wrong[8], near[AQ_RUN_PATH_BYTES];
    *out = (struct aq_trackers_config){.python = python && *python ? python : "python3", .run = job->output.path};
    (void)aq_trackers_read(job->output.report_to, &out->wanted, wrong, sizeof wrong); /* checked with the manifest */
    if (named && *named) {
        if (aq_absolute(named, program) && access(program, R_OK) == 0) out->program = program;
        return;
    }
    for (size_t i = 0; i < sizeof places / sizeof *places && !out->program; i++)
        if (aq_program_beside(places[i], near) && realpath(near, program) && is_trusted(program))
            out->program = program;
}

enum aq_status aq_launcher_keys(const struct aq_job *job, struct aq_tls **out)
{
    bool listening = false;
    for (uint32_t r = 0; r < aq_job_ranks(job); r++)
        listening |= job->pipeline.stages[r].host && !aq_ssh_is(job->pipeline.stages[r].host);
    *out = NULL;
    if (!listening || !aq_security_on(job)) return AQ_OK;
    return aq_tls_open(job->security.keys, AQ_TLS_LAUNCHER, 0, out);
}

bool aq_absolute(const char *path, char *out)
{
    if (path[0] == '/') return snprintf(out, AQ_RUN_PATH_BYTES, "%s", path) < AQ_RUN_PATH_BYTES;
    if (!getcwd(out, AQ_RUN_PATH_BYTES)) return false;
    const size_t length = strlen(out);
    const int more = snprintf(out + length, AQ_RUN_PATH_BYTES - length, "/%s", path);
    return more > 0 && (size_t)more < AQ_RUN_PATH_BYTES - length;
}

enum aq_status aq_run_set(const char *run, char out[AQ_RUN_SET_BYTES])
{
    size_t at = (size_t)snprintf(out, AQ_RUN_SET_BYTES, "output.path='");
    for (; *run && at + 3 < AQ_RUN_SET_BYTES; run++) {
        if (*run == '\'') out[at++] = '\'';
        out[at++] = *run;
    }
    out[at++] = '\'';
    out[at] = 0;
    return *run ? aq_fail(AQ_INVAL, "launch", "the path of the run folder is too long") : AQ_OK;
}

const char *aq_option_schedule(const char *text, void *to)
{
    return aq_lr_choice_named(text, to) ? NULL : "must be extend, continue or restart";
}

int aq_exit_of(enum aq_status status)
{
    if (status == AQ_OK) return AQ_EXIT_DONE;
    const bool given =
        status == AQ_INVAL || status == AQ_NOTFOUND || status == AQ_MISMATCH || status == AQ_CORRUPT;
    return given ? AQ_EXIT_USAGE : AQ_EXIT_FAILED;
}

static bool json_done;

void aq_command_json_done(void)
{
    json_done = true;
}

/* {"event": "error", "exit": 2, "error": "..."}: the last line of a command that failed under --json. */
static void end_json(int code)
{
    const char *text = *aq_options_said() ? aq_options_said() : aq_error_text();
    if (json_done || !aq_options_json() || (code != AQ_EXIT_FAILED && code != AQ_EXIT_USAGE) || !*text) return;
    char shown[AQ_ERROR_BYTES];
    json_t *line = json_pack("{s:s, s:i, s:s}", "event", "error", "exit", code, "error",
                             aq_printable_text(text, shown, sizeof shown));
    json_dumpf(line, stdout, JSON_COMPACT | JSON_ENSURE_ASCII);
    (void)aq_out_raw("\n");
    json_decref(line);
}

int aq_command_end(const char *program, int code)
{
    end_json(code);
    errno = 0;
    const bool flushed = fflush(stdout) == 0;
    if (flushed && !ferror(stdout)) return code;
    fprintf(stderr, "%s: cannot write the output%s%s\n", program, errno ? ": " : "", errno ? strerror(errno) : "");
    return code == AQ_EXIT_DONE ? AQ_EXIT_FAILED : code;
}
