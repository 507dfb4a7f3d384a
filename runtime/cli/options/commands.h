/*
 * commands.h -- the commands of `aqpipe`: each gets argv with its own name first and returns the exit status of the
 * process.
 *
 * 0 done; 1 failed; 2 what was given is wrong: the command line, a manifest, or a path that is not what it should be,
 * so that nothing was started; 3 stopped by the user, with a checkpoint; 4 (split-client) ended before it passed
 * split.privacy.epsilon_max. The same cause has the same status in every command (aq_exit_of; tests/test_exits).
 * docs/man/aqpipe.1 has them for people.
 */
#ifndef RUNTIME_COMMANDS_H
#define RUNTIME_COMMANDS_H

#include <stdbool.h>

#include "aqsgd/base.h"

enum { AQ_EXIT_DONE = 0, AQ_EXIT_FAILED = 1, AQ_EXIT_USAGE = 2, AQ_EXIT_STOPPED = 3, AQ_EXIT_SPENT = 4 };

int aq_command_plan(int argc, char **argv);
int aq_command_help_keys(int argc, char **argv); /* `aqpipe help keys`; argv[0] is "keys" */
int aq_command_launch(int argc, char **argv);
int aq_command_resume(int argc, char **argv);
int aq_command_report(int argc, char **argv);
int aq_command_plot(int argc, char **argv);
int aq_command_init(int argc, char **argv);
int aq_command_import(int argc, char **argv);
int aq_command_export(int argc, char **argv);
int aq_command_generate(int argc, char **argv);
int aq_command_eval(int argc, char **argv);
int aq_command_status(int argc, char **argv);
int aq_command_top(int argc, char **argv);
int aq_command_stop(int argc, char **argv);
int aq_command_logs(int argc, char **argv);
int aq_command_keys(int argc, char **argv);
int aq_command_bench(int argc, char **argv);
int aq_command_cache(int argc, char **argv);
int aq_command_doctor(int argc, char **argv);
int aq_command_epsilon(int argc, char **argv);
int aq_command_split_server(int argc, char **argv);
int aq_command_split_client(int argc, char **argv);
int aq_command_split_turn(int argc, char **argv); /* of the server alone */

/* One row of the table of commands. */
struct aq_command {
    const char *name;
    const char *help; /* one line; NULL: not for people */
    int (*run)(int argc, char **argv);
};

/* The exit status of a command that ends with this status while it looks at what it was given. AQ_INVAL, AQ_NOTFOUND,
 * AQ_MISMATCH and AQ_CORRUPT are AQ_EXIT_USAGE. */
int aq_exit_of(enum aq_status status);

/* The exit status of a program that ends with `code`: its output may still be in the buffer, and a full disk is then
 * a failure (reported). */
int aq_command_end(const char *program, int code);

/* The command has printed its error as JSON: aq_command_end need not. */
void aq_command_json_done(void);

/* The program `name` in the folder of this one, into path (4096 bytes); false: it does not exist. */
bool aq_program_beside(const char *name, char *path);

/* The program of private daemons: AQPIPE_DAEMON, else the aqpiped in this program's folder. AQ_NOTFOUND (logged). */
enum aq_status aq_daemon_program(char *path);

/* What a job's output.report_to asks for (trackers.h). The program is AQPIPE_FOLLOW, else tools/follow where this
 * program is installed or was built, if it belongs to this program's owner or to root. The interpreter is
 * AQPIPE_PYTHON, else python3. program: 4096 bytes that the config borrows. */
struct aq_trackers_config;
struct aq_job;
void aq_follow_config(const struct aq_job *job, char *program, struct aq_trackers_config *out);

/* The launcher's keys for daemons that listen; *out NULL: no daemon listens, or the job has no TLS. As aq_tls_open.
 */
struct aq_job;
struct aq_tls;
enum aq_status aq_launcher_keys(const struct aq_job *job, struct aq_tls **out);

/* The same as `aqpipe keys init` and `keys bundle --host HOST --stages STAGE` (net/tls.h); they print nothing.
 * hosts: "A,B" with daemons that get certificates, or NULL. AQ_INVAL: not the name of a host; AQ_REFUSED: the folder
 * has an authority; AQ_IO. */
enum aq_status aq_keys_make(const char *folder, const char *job, uint32_t stages, const char *hosts);
enum aq_status aq_keys_give(const char *folder, const char *out, const char *host, uint32_t stage);

/* path as an absolute one, into out (4096 bytes); it need not exist. False: too long. */
bool aq_absolute(const char *path, char *out);

/* The setting "output.path='DIR'", a YAML text in single quotes. AQ_INVAL: too long. */
enum { AQ_RUN_SET_BYTES = 4096 + 64 };
enum aq_status aq_run_set(const char *run, char out[AQ_RUN_SET_BYTES]);

/* Reads --schedule of `aqpipe resume` into an enum aq_lr_choice (options.h). */
const char *aq_option_schedule(const char *text, void *to);

#endif
