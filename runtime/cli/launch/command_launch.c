/*
 * command_launch.c -- `aqpipe launch` and `aqpipe resume`: from a manifest, or a run folder, to a model and a report.
 *
 * The order: plan (a bad manifest ends here, with 2), the run folder (its lock, what may be in it), the run
 * (launcher.h), and what it leaves: metrics, report, model, trace.
 */
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bits_auto.h"
#include "commands.h"
#include "control.h"
#include "cut.h"
#include "cut_judge.h"
#include "kept_errors.h"
#include "launch_bring.h"
#include "launch_k8s.h"
#include "launch_models.h"
#include "launch_mpi.h"
#include "launch_slurm.h"
#include "launch_ssh.h"
#include "launcher.h"
#include "lengths.h"
#include "metrics_index.h"
#include "net/tls.h"
#include "next_step.h"
#include "options.h"
#include "page.h"
#include "plan.h"
#include "report.h"
#include "restart.h"
#include "resume_schedule.h"
#include "run_enter.h"
#include "run_rewind.h"
#include "split_folder.h"
#include "stages/weights.h"

enum {
    READY_S = 900,
    WARNING_S = 120, /* of Slurm, before its time limit */
    SETS_OWN = 5     /* that options stand for */
};

struct command {
    const char *run, *token_file;
    const char *on; /* "slurm", "k8s": whose job it becomes; "ssh": who starts the agents; NULL: none */
    const char *image, *claim, *mount; /* of --on k8s                                                  */
    bool bring, copy;                  /* keys to the hosts of --hosts; model and data, too */
    const char *hosts;                 /* of --on ssh; NULL: those of the manifest                                  */
    struct aq_arguments sets, wishes;
    double warning_s;
    bool print;
    bool go_on; /* `aqpipe resume`: the manifest is the run's own */
    bool turn;  /* `aqpipe split-turn`                            */
    int guest;  /* the client's daemon, of a turn                 */
    const char *adopt, *sums, *lengths_file, *rounds;
    uint64_t until, shift, updates, steps;
    uint32_t epochs;            /* new total; 0: as before                        */
    enum aq_lr_choice schedule; /* of the learning rate beyond the old end */
    char manifest_path[AQ_RUN_PATH_BYTES], daemon[AQ_RUN_PATH_BYTES];
    struct aq_run_entry entry;
    struct aq_progress progress;
    struct aq_job *job;
    struct aq_plan *plan;
    char *manifest, *lengths;
    bool best_left; /* the folder 'best' is written */
    struct aq_token token;
    struct aq_tls *tls;
    int signals;
    uint64_t begin_ns; /* when this command began */
    struct aq_restart restart;
    struct aq_metrics *metrics;
    struct aq_bits *bits;
    struct aq_cut_judge *judge;
    struct aq_board *board; /* NULL: no page */
    struct aq_page *page;
    struct aq_trackers trackers;
    char follow[AQ_RUN_PATH_BYTES]; /* their program */
    struct aq_kept_errors errors;
};

/* ---- the command line ---- */

/* Options of both launch and resume. */
#define OPTIONS_OF_BOTH                                                                                                \
    AQ_ROW(LIST, struct command, sets, "set", "KEY=VALUE", "set a key of the manifest; may be given several times"),   \
        AQ_ROW_RANGE(U32, struct command, restart.max, "restarts", "N", 0, AQ_RESTARTS_MAX,                            \
                     "restart from the last checkpoint after a failure, at most N times without a new one (3)"),       \
        AQ_ROW(FLAG, struct command, progress.json, "json", NULL, "print metrics and errors, a JSON object per line"), \
        AQ_ROW(FLAG, struct command, progress.off, "no-progress", NULL, "print nothing while all is well"),            \
        AQ_ROW(TEXT, struct command, token_file, "token-file", "FILE",                                                 \
               "the secret shared with the daemons of other machines (AQPIPE_TOKEN_FILE)")

static const char after[] =
    "`aqpipe help keys [SECTION | KEY]` explains the keys of a manifest; a path in --set is relative to the current "
    "folder. AQPIPE_DAEMON names another aqpiped than the one next to this program, AQPIPE_SSH_DAEMON that of hosts "
    "ssh://HOST.\nExit status: 0 done; 1 failed; 2 wrong command line, manifest or path; 3 stopped by the user, with a "
    "checkpoint.";

static const struct aq_option launch_options[] = {
    AQ_ROW(TEXT, struct command, run, "run", "DIR", "the run folder (output.path)"),
    AQ_ROW(FLAG, struct command, entry.resume, "resume", NULL, "continue the run that is in the run folder"),
    AQ_ROW(FLAG, struct command, entry.fresh, "fresh", NULL,
           "remove what an earlier run of this job.name left in the folder, and start again"),
    AQ_ROW(TEXT, struct command, on, "on", "slurm|ssh|k8s|mpi",
           "slurm: submit a batch script. ssh: start an agent on each host. k8s: write manifests of Kubernetes. "
           "mpi: be one of the ranks of mpirun or srun (docs/CLUSTERS.md)"),
    AQ_ROW(TEXT, struct command, hosts, "hosts", "A,B",
           "[USER@]HOST[:PORT] of each stage; brings their keys and starts agents by ssh"),
    AQ_ROW(FLAG, struct command, copy, "copy", NULL, "copy model and data to the hosts of ssh, too (rsync)"),
    AQ_ROW(LIST, struct command, wishes, "slurm", "OPTION",
           "slurm: an option for sbatch, as in --slurm=--partition=gpu"),
    AQ_ROW(TEXT, struct command, image, "image", "IMAGE", "k8s: a container image that has this aqpipe"),
    AQ_ROW(TEXT, struct command, claim, "claim", "NAME", "k8s: PersistentVolumeClaim of manifest, data and run folder"),
    AQ_ROW(TEXT, struct command, mount, "mount", "DIR", "k8s: where pods mount it (the manifest's folder)"),
    AQ_ROW_RANGE(TIME, struct command, warning_s, "warning", "TIME", 1, 86400,
                 "slurm, k8s: time for a checkpoint before the limit, as in 5min (120)"),
    AQ_ROW(FLAG, struct command, print, "print", NULL,
           "start nothing: print the script or manifests of slurm and k8s, else the plan"),
    AQ_ROW(TEXT, struct command, rounds, "rounds", "FILE", "reduce.patience: repeat a run by its metrics.jsonl"),
    OPTIONS_OF_BOTH,
    {0}};

static const struct aq_option resume_options[] = {
    AQ_ROW_RANGE(U32, struct command, epochs, "epochs", "N", 1, 1e6, "train until every sample was seen N times"),
    AQ_ROW_RANGE(U64, struct command, steps, "steps", "N", 1, 1e18,
                 "train until step N, or to the end of train.epochs"),
    AQ_ROW_READ(aq_option_schedule, struct command, schedule, "schedule", "extend|continue|restart",
                "the learning rate beyond the old end. extend: decay is stretched to the new end, so the rate jumps "
                "up. continue: the rate stays what it was at the old end (step and exponential decay continue). "
                "restart: warm-up and decay start again. Later resumes keep it; default: the last choice, else extend"),
    OPTIONS_OF_BOTH,
    {0}};

static const struct aq_option turn_options[] = {
    AQ_ROW(TEXT, struct command, run, "run", "DIR", "the client's folder at the server"),
    AQ_ROW(FLAG, struct command, entry.resume, "resume", NULL, "go on from its newest complete checkpoint"),
    AQ_ROW(TEXT, struct command, adopt, "adopt", "DIR", "begin with the weights and optimizer states in DIR"),
    AQ_ROW(TEXT, struct command, sums, "sums", "PATH", "global sampling: the socket of the server's sums of gradients"),
    AQ_ROW(TEXT, struct command, lengths_file, "lengths", "FILE", "the lengths of the client's samples"),
    AQ_ROW_READ(aq_steps_read, struct command, shift, "shift", "N",
                "global sampling: the steps of all are N more than this client's own (or fewer: -N)"),
    AQ_ROW_READ(aq_steps_read, struct command, updates, "updates", "N",
                "and the optimizer's moments have had N more updates than this client's own steps"),
    AQ_ROW_RANGE(U64, struct command, until, "until", "N", 1, 1e18, "the turn's last step"),
    AQ_ROW_READ(aq_descriptor_read, struct command, guest, "guest", "FD",
                "the connected socket of the client's daemon"),
    OPTIONS_OF_BOTH,
    {0}};

static const struct aq_command_line turn_line = {"aqpipe split-turn", "JOB.yaml",
                                                 "One turn of a client, for `aqpipe split-server`, which starts this.",
                                                 turn_options, NULL};

static const struct aq_command_line launch_line = {
    "aqpipe launch", "JOB.yaml",
    "Trains the job: starts one worker per stage, here or through the aqpiped that a stage's `host` names. The run "
    "folder gets model.safetensors, report.json, metrics.jsonl, checkpoints and logs. Ctrl-C stops after the current "
    "step with a checkpoint; a second one stops at once.",
    launch_options, after};

static const struct aq_command_line resume_line = {
    "aqpipe resume", "RUN",
    "Continues the run in the folder RUN from its newest complete checkpoint, with its manifest and settings. --epochs "
    "or --steps trains a run that ended for longer, with its optimizer state and caches. A change of steps that were "
    "already made (train.lr, the cut, the data) is refused.",
    resume_options, after};

static bool is_ssh(const struct command *command)
{
    return command->on && strcmp(command->on, "ssh") == 0;
}

static bool is_k8s(const struct command *command)
{
    return command->on && strcmp(command->on, "k8s") == 0;
}

static bool is_mpi(const struct command *command)
{
    return command->on && strcmp(command->on, "mpi") == 0;
}

static int parse(struct command *command, int argc, char **argv)
{
    const struct aq_command_line *line = command->turn ? &turn_line : command->go_on ? &resume_line : &launch_line;
    struct aq_arguments rest;
    command->token_file = getenv("AQPIPE_TOKEN_FILE");
    const int code = aq_options_read(line, argc, argv, command, &rest);
    if (code != AQ_OPTIONS_READ) return code;
    if (rest.count != 1)
        return aq_options_wrong(line->name, "%s needs one %s", command->go_on ? "resume" : "launch",
                                command->go_on ? "run folder" : "manifest");
    if (command->entry.resume && command->entry.fresh)
        return aq_options_wrong(line->name, "use --resume or --fresh, not both");
    const bool shorthand = command->hosts && !command->on; /* --host A,B alone */
    command->bring = command->copy || shorthand;
    if (shorthand) command->on = "ssh";
    const bool ssh = is_ssh(command), k8s = is_k8s(command), mpi = is_mpi(command),
               slurm = command->on && !ssh && !k8s && !mpi;
    if (slurm && strcmp(command->on, "slurm") != 0)
        return aq_options_wrong(line->name, "--on: '%.40s' is not one of slurm, ssh, k8s and mpi", command->on);
    if (!slurm && command->wishes.count > 0) return aq_options_wrong(line->name, "--slurm needs --on slurm");
    if (command->print && ((ssh && !shorthand) || mpi))
        return aq_options_wrong(line->name, "--print does not go with --on ssh or mpi");
    if (!k8s && (command->image || command->claim || command->mount))
        return aq_options_wrong(line->name, "--image, --claim and --mount need --on k8s");
    if (!ssh && command->hosts) return aq_options_wrong(line->name, "--hosts needs --on ssh");
    if ((slurm || k8s || mpi) && command->entry.fresh)
        return aq_options_wrong(line->name, "--on slurm, k8s or mpi always resumes what is there: leave out --fresh");
    if (command->schedule && !command->epochs && !command->steps)
        return aq_options_wrong(line->name, "--schedule needs --epochs or --steps");
    struct stat about;
    const bool folder = stat(rest.of[0], &about) == 0 && S_ISDIR(about.st_mode);
    if (folder && !command->go_on)
        return aq_options_wrong(line->name, "%s is a folder, not a manifest: `aqpipe resume %s` continues a run",
                                rest.of[0], rest.of[0]);
    if (command->go_on) {
        command->entry.resume = true;
        command->run = rest.of[0];
    }
    const int bytes = snprintf(command->manifest_path, sizeof command->manifest_path, "%s%s", rest.of[0],
                               command->go_on ? "/manifest.yaml" : "");
    if (bytes >= (int)sizeof command->manifest_path) return aq_options_wrong(line->name, "the path is too long");
    if (command->go_on && access(command->manifest_path, F_OK) != 0)
        return aq_options_wrong(line->name,
                                errno == ENOTDIR ? "%s is a file: `aqpipe launch %s --resume` takes a manifest"
                                                 : "%s is not a run folder: there is no %s",
                                command->run, errno == ENOTDIR ? command->run : command->manifest_path);
    return AQ_OPTIONS_READ;
}

/* --on ssh: the settings of --hosts come after all others, because they need the job's counts. */
static enum aq_status place_agents(struct command *command, const char **sets, uint32_t count)
{
    struct aq_text places = {0};
    enum aq_status status = AQ_OK;
    char *lines = NULL;
    if (!command->hosts) return aq_ssh_check(command->job);
    AQ_TRY_GOTO(aq_ssh_settings(command->job, command->hosts, command->bring, &places), out);
    AQ_TRY_GOTO(aq_text_take(&places, &lines), out);
    for (char *line = lines, *end; (end = strchr(line, '\n')); line = end + 1) {
        *end = 0;
        sets[count++] = line;
    }
    aq_job_close(command->job);
    command->job = NULL;
    status = aq_job_load(command->manifest_path, sets, count, &command->job);
out:
    aq_text_deinit(&places);
    aq_free(lines);
    return status;
}

/* The manifest, with the settings of --set, and then of other options. */
static enum aq_status load_job(struct command *command)
{
    const char *sets[AQ_ARGUMENTS_MAX + SETS_OWN + 2 * AQ_JOB_STAGES_MAX];
    char run[AQ_RUN_SET_BYTES], epochs[48], steps[48], schedule[AQ_RESUME_SCHEDULE_BYTES];
    uint32_t count = command->sets.count;
    memcpy(sets, command->sets.of, count * sizeof *sets);
    if (command->run) {
        AQ_TRY(aq_run_set(command->run, run));
        sets[count++] = run;
    }
    snprintf(epochs, sizeof epochs, "train.epochs=%u", command->epochs);
    snprintf(steps, sizeof steps, "train.steps_max=%llu", (unsigned long long)command->steps);
    if (command->epochs) sets[count++] = epochs;
    if (command->epochs || command->steps) sets[count++] = steps; /* 0: epochs decide */
    if (command->epochs || command->steps) {
        AQ_TRY(aq_resume_schedule(command->manifest_path, command->schedule, schedule));
        sets[count++] = schedule;
    }
    if (command->go_on) sets[count++] = "facts.train_samples=0"; /* the data is read again: is it what it was? */
    AQ_TRY(aq_job_load(command->manifest_path, sets, count, &command->job));
    return is_ssh(command) ? place_agents(command, sets, count) : AQ_OK;
}

/* Names go to daemons in JSON, which is UTF-8. */
static enum aq_status check_names(const struct command *command)
{
    const char *const names[][2] = {{"the run folder (--run, output.path)", command->job->output.path},
                                    {"the folder of checkpoints (checkpoint.path)", command->entry.checkpoint},
                                    {"the folder of caches (cache.path)", command->job->cache.path}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        json_t *text = names[i][1] ? json_string(names[i][1]) : json_null();
        if (!text) return aq_fail(AQ_INVAL, "launch", "the name of %s is not UTF-8: choose another one", names[i][0]);
        json_decref(text);
    }
    return AQ_OK;
}

/* A run that resumes keeps its cut; a new one's layers may be measured first. */
static enum aq_status cut(struct command *command)
{
    const struct aq_job *job = command->job;
    const bool goes_on =
        command->entry.resume && (!job->pipeline.automatic || aq_cut_of_run(&command->plan, job->output.path));
    struct aq_text told = {0};
    enum aq_status status = goes_on || !job->pipeline.automatic
                                ? aq_cut_compare(command->plan, aq_thread_cores(), &told)
                                : aq_cut_measured(&command->plan, aq_thread_cores(), &told);
    if (status == AQ_OK && told.used > 0) aq_progress_say(&command->progress, "%s", aq_text_of(&told));
    aq_text_deinit(&told);
    return status;
}

/* Of the data; in a turn of split learning, of the file that the client's lengths are in. */
static enum aq_status lengths(struct command *command)
{
    if (!command->lengths_file) return aq_plan_lengths(command->plan, &command->lengths);
    AQ_TRY(aq_file_load(NULL, command->lengths_file, AQ_LENGTHS_TEXT_MAX, &command->lengths, NULL));
    return aq_plan_lengths_check(command->plan, command->lengths);
}

static enum aq_status prepare(struct command *command)
{
    AQ_TRY(load_job(command));
    AQ_TRY(aq_plan_open(command->job, &command->plan));
    AQ_TRY(cut(command));
    AQ_TRY(aq_plan_manifest(command->plan, &command->manifest));
    AQ_TRY(lengths(command));
    if (command->token_file) AQ_TRY(aq_token_load(command->token_file, &command->token));
    AQ_TRY(aq_launcher_keys(command->job, &command->tls));
    AQ_TRY(aq_daemon_program(command->daemon));
    if ((int64_t)command->shift > 0 && command->shift >= command->plan->steps)
        return aq_fail(AQ_INVAL, "launch", "--shift: the job has fewer steps");
    if (command->turn != (command->job->split.clients > 0))
        return aq_fail(AQ_INVAL, "launch", "a job of split learning is trained by aqpipe split-server");
    if (command->job->checkpoint.path)
        snprintf(command->entry.checkpoint, sizeof command->entry.checkpoint, "%s", command->job->checkpoint.path);
    else
        AQ_TRY(aq_run_path(command->job->output.path, "checkpoint", command->entry.checkpoint));
    command->entry.plan = command->plan;
    command->entry.shift = command->shift;
    command->entry.manifest = command->manifest;
    if (command->rounds && command->job->train.optimizer.reduce_automatic)
        return aq_fail(AQ_INVAL, "launch",
                       "--rounds: reduce.codec auto measures and chooses again: set the codec that was chosen");
    return check_names(command);
}

/* All of them, one after another: what is read here is in the page cache when the stages read it. */
static enum aq_status values_fit(struct command *command)
{
    struct aq_weights *weights;
    if (!command->job->model.weights || command->entry.resume) return AQ_OK;
    if (command->progress.terminal && !command->progress.off)
        aq_progress_say(&command->progress, "looks at the weights in %s", command->job->model.weights);
    AQ_TRY(aq_weights_open(command->job->model.weights, &weights));
    const enum aq_status status = aq_weights_check_values(weights, &command->plan->model);
    aq_weights_close(weights);
    return status;
}

/* Before anything is started or written: weights that are no numbers, what this machine has no memory or disk for. */
static enum aq_status fits(struct command *command)
{
    struct aq_text why = {0};
    AQ_TRY(values_fit(command));
    AQ_TRY(aq_plan_here(command->plan));
    if (aq_plan_never_compresses(command->plan, &why)) aq_log("plan", AQ_LOG_WARNING, "%s", aq_text_of(&why));
    aq_text_deinit(&why);
    return AQ_OK;
}

/* ---- the run ---- */

static json_t *start_line(const struct command *command)
{
    const struct aq_plan *plan = command->plan;
    char text[200], name[96];
    json_t *edges = json_array(), *memory = json_array();
    for (uint32_t e = 0; e + 1 < plan->stage_count; e++) {
        aq_codec_config_text(&plan->edges[e].shape.forward, text, sizeof text);
        json_t *edge = json_pack("{s:I, s:s}", "edge", (json_int_t)e, "forward", text);
        aq_codec_config_text(&plan->edges[e].shape.backward, text, sizeof text);
        json_object_set_new(edge, "backward", json_string(text));
        json_array_append_new(edges, edge);
    }
    for (uint32_t r = 0; r < plan->ranks; r++)
        json_array_append_new(memory, json_integer((json_int_t)plan->stages[r % plan->stage_count].memory_bytes));
    aq_report_codec(plan, name, sizeof name);
    json_t *line =
        json_pack("{s:s, s:s, s:s, s:o, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:I, s:o, s:o}", "event", "start",
                  "name", command->job->name, "codec", name, "plan_hash", aq_control_hex(aq_plan_hash(plan)), "version",
                  AQ_VERSION, "stages", (json_int_t)plan->stage_count, "replicas", (json_int_t)plan->replicas,
                  "steps_planned", (json_int_t)plan->steps, "steps_per_epoch", (json_int_t)plan->steps_per_epoch,
                  "parameters", (json_int_t)(plan->parameters + plan->frozen), "resumed",
                  (json_int_t)command->entry.resume_step, "rate_mbps", command->job->link.rate_mbps, "batch",
                  (json_int_t)command->job->train.batch, "edges", edges, "memory_planned", memory);
    if (command->page) json_object_set_new(line, "status_page", json_string(aq_page_url(command->page)));
    if (plan->frozen) json_object_set_new(line, "parameters_frozen", json_integer((json_int_t)plan->frozen));
    aq_report_start(plan, line);
    return line;
}

/* Before anything is started or written: a port that is taken ends the launch here. */
static enum aq_status open_page(struct command *command)
{
    const struct aq_job_status *status = &command->job->status;
    if (!status->listen || command->guest > 0) return AQ_OK; /* of a turn: the split-server has it */
    AQ_TRY(aq_board_open(&command->board));
    const struct aq_page_config config = {.listen = status->listen,
                                          .token_file = status->token_file,
                                          .certificate = status->certificate,
                                          .key = status->key,
                                          .client_authority = status->client_authority};
    AQ_TRY(aq_page_open(&config, command->board, &command->page));
    command->progress.board = command->board;
    aq_progress_say(&command->progress, "status page: %s", aq_page_url(command->page));
    return AQ_OK;
}

/* Into metrics.jsonl, and to standard output with --json. Takes the reference. */
static enum aq_status write_line(struct command *command, json_t *line)
{
    const enum aq_status status = aq_metrics_line(command->metrics, json_incref(line));
    if (status == AQ_OK) aq_progress_json(&command->progress, line);
    json_decref(line);
    return status;
}

static enum aq_status open_metrics(struct command *command)
{
    char path[AQ_RUN_PATH_BYTES];
    AQ_TRY(aq_run_path(command->job->output.path, "metrics.jsonl", path));
    aq_board_run(command->board, command->job->output.path);
    const struct aq_metrics_config config = {
        .path = path,
        .stages = command->plan->ranks,
        .step = command->entry.resume_step,
        .seconds = command->entry.seconds,
        .board = command->board,
        .mark_every = aq_job_every_steps(&command->job->checkpoint.every, command->plan->steps_per_epoch),
        .mark_timed = command->job->checkpoint.every.ns > 0};
    AQ_TRY(aq_metrics_open(&config, &command->metrics));
    return write_line(command, start_line(command));
}

static struct aq_launch_bounds bounds_of(const struct command *command)
{
    const struct aq_plan *plan = command->plan;
    return (struct aq_launch_bounds){
        .steps = plan->steps - command->shift,
        .shift = command->shift,
        .mark_every = aq_job_every_steps(&plan->job->checkpoint.every, plan->steps_per_epoch),
        .mark_timed = plan->job->checkpoint.every.ns > 0,
        .evaluate_every = aq_job_every_steps(&plan->job->train.evaluate_every, plan->steps_per_epoch),
        .round_steps = aq_plan_reduce_every(plan),
        .votes_travel = aq_plan_reduce_delay(plan) > 0 && plan->job->reduce.patience_ns == 0,
        .patience_ns = plan->job->reduce.patience_ns,
        .delay = aq_plan_reduce_delay(plan),
        .by_speed = plan->job->reduce.steps == AQ_STEPS_SPEED,
        .evaluates = plan->facts.heldout_samples > 0,
        .trace_bytes =
            plan->job->output.trace ? (AQ_PLAN_TRACE_RECORDS + AQ_TRACE_NAMES_MAX) * AQ_TRACE_LINE_BYTES_MAX : 0};
}

static void run_once(struct command *command, struct aq_launch_result *result)
{
    const struct aq_job *job = command->job;
    const char *hosts[AQ_JOB_RANKS_MAX];
    char trace[AQ_RUN_PATH_BYTES];
    for (uint32_t r = 0; r < command->plan->ranks; r++)
        hosts[r] = aq_job_at_client(job, r) ? AQ_LAUNCH_GUEST : job->pipeline.stages[r].host;
    const bool traced = job->output.trace && aq_run_path(job->output.path, "trace.json", trace) == AQ_OK;
    const struct aq_launch launch = {.name = job->name,
                                     .stages = command->plan->stage_count,
                                     .replicas = command->plan->replicas,
                                     .hosts = hosts,
                                     .guest = command->guest,
                                     .until = command->until,
                                     .adopt = command->adopt,
                                     .returns = aq_restart_returns(&command->restart, job),
                                     .fetches = aq_restart_reaches(job),
                                     .rounds = command->rounds,
                                     .sums = command->sums,
                                     .shift = command->shift,
                                     .updates = command->updates,
                                     .manifest = command->manifest,
                                     .lengths = command->lengths,
                                     .plan_hash = aq_plan_hash(command->plan),
                                     .resume_hash = command->plan->resume_hash,
                                     .resume = command->entry.resume_step,
                                     .resume_bytes = command->entry.resume_bytes,
                                     .run = job->output.path,
                                     .checkpoint = command->entry.checkpoint,
                                     .cache = command->entry.folders.cache,
                                     .id = command->entry.owner.id,
                                     .resumed = command->entry.resume || command->restart.total > 0,
                                     .fresh = command->entry.fresh && command->restart.total == 0,
                                     .trace = traced ? trace : NULL,
                                     .daemon = command->daemon,
                                     .keep = job->checkpoint.keep,
                                     .best = aq_best_figure(job),
                                     .early_stop = job->train.early_stop,
                                     .time_end_ns =
                                         job->train.time_ns_max ? command->begin_ns + job->train.time_ns_max : 0,
                                     .bounds = bounds_of(command),
                                     .ready_ns_max = (uint64_t)READY_S * 1000000000,
                                     .begin_ns = command->restart.total > 0 ? aq_clock_ns() : command->begin_ns,
                                     .again = command->restart.total > 0,
                                     .token = &command->token,
                                     .tls = command->tls,
                                     .watch = aq_watch_of_plan(command->plan),
                                     .bits = command->bits,
                                     .judge = command->judge,
                                     .epoch_steps = command->plan->steps_per_epoch,
                                     .metrics = command->metrics,
                                     .progress = &command->progress,
                                     .board = command->board,
                                     .trackers = &command->trackers,
                                     .signals = command->signals};
    aq_cut_judge_begin(command->judge);
    aq_launch_run(&launch, result);
    aq_progress_end(&command->progress);
}

/* Back to the checkpoint of `step`: rewinds the metrics to it, and adds a line `restart`. */
static enum aq_status roll_back(struct command *command, const struct aq_launch_result *result, uint64_t step)
{
    char path[AQ_RUN_PATH_BYTES];
    struct aq_run_mark mark;
    struct aq_metrics *before = command->metrics;
    AQ_TRY(aq_run_path(command->job->output.path, "metrics.jsonl", path));
    const bool marked = step > 0 && aq_run_mark_read(command->entry.checkpoint, &mark) == AQ_OK && mark.step == step;
    command->entry.resume_bytes = marked ? mark.metrics : 0;
    AQ_TRY(aq_run_rewind(path, step, command->entry.resume_bytes, &command->entry.seconds));
    command->entry.resume_step = step;
    AQ_TRY(open_metrics(command)); /* on failure the old ones stay: there must be some to end with */
    aq_metrics_close(before);
    return write_line(command, json_pack("{s:s, s:I, s:I, s:s}", "event", "restart", "step", (json_int_t)step,
                                         "restarts", (json_int_t)command->restart.total, "cause", result->cause));
}

/* The run, begun again from the last checkpoint as often as that may help. */
static void run(struct command *command, struct aq_launch_result *result)
{
    uint64_t step;
    for (;;) {
        run_once(command, result);
        if (!aq_restart_due(&command->restart, result, command->entry.checkpoint, &step)) return;
        if (roll_back(command, result, step) != AQ_OK) return;
        aq_progress_say(&command->progress, "%s: restarts from %s step %llu (restart %u)", result->cause,
                        result->unreadable ? "the older checkpoint of" : "the checkpoint of", (unsigned long long)step,
                        command->restart.total);
        aq_restart_pause(&command->restart, command->signals);
        json_decref(result->stages);
        command->errors.count = 0;
        aq_error_clear();
    }
}

/* ---- what it leaves ---- */

static enum aq_status leave_report(struct command *command)
{
    char path[AQ_RUN_PATH_BYTES];
    json_t *report;
    if (!command->job->output.report) return AQ_OK;
    AQ_TRY(aq_report_run(command->job->output.path, &report));
    AQ_TRY(aq_run_path(command->job->output.path, "report.json", path));
    return aq_report_write(json_pack("[o]", report), path);
}

/* The command that resumes this run, from any folder: everything except the token's file is in the run's. */
static void say_resume(struct command *command, const char *before, uint64_t step, const char *behind)
{
    struct aq_text text = {0};
    char token[AQ_RUN_PATH_BYTES];
    aq_text_shell(&text, command->job->output.path);
    if (command->restart.max != AQ_RESTARTS_DEFAULT) aq_text_add(&text, " --restarts %u", command->restart.max);
    if (command->token_file && aq_absolute(command->token_file, token)) {
        aq_text_add(&text, " --token-file ");
        aq_text_shell(&text, token);
    }
    aq_progress_say(&command->progress, "%s %llu%s; continue with: aqpipe resume %s", before, (unsigned long long)step,
                    behind, aq_text_of(&text));
    aq_text_deinit(&text);
}

static void say_end(struct command *command, const struct aq_launch_result *result)
{
    json_t *report = NULL;
    struct aq_text table = {0};
    if (command->progress.off || command->progress.json) return;
    if (aq_report_run(command->job->output.path, &report) == AQ_OK) {
        json_t *runs = json_pack("[O]", report);
        aq_report_table(runs, aq_text_columns(STDERR_FILENO), &table);
        fputs(aq_text_of(&table), stderr);
        json_decref(runs);
    }
    aq_text_deinit(&table);
    json_decref(report);
    if (result->outcome == AQ_LAUNCH_STOPPED)
        say_resume(command, "stopped after step", result->mark, "");
    else
        aq_next_step_say(&command->progress, command->job);
    if (command->best_left)
        aq_progress_say(&command->progress, "the best %s, %.6g, was at step %llu: %s/best", result->best.figure,
                        result->best.value, (unsigned long long)result->best.step, command->job->output.path);
}

/* status: of what was written at the end. The exit status of the command. */
static int tell_end(struct command *command, const struct aq_launch_result *result, enum aq_status status)
{
    const bool failed = result->outcome == AQ_LAUNCH_FAILED;
    aq_kept_errors_show(&command->errors, failed ? result->cause : "");
    if (failed) {
        aq_progress_say(&command->progress, "%s", result->cause);
        if (result->mark > 0) say_resume(command, "the checkpoint of step", result->mark, " is kept");
    }
    if (failed || status != AQ_OK) return AQ_EXIT_FAILED;
    say_end(command, result);
    return result->outcome == AQ_LAUNCH_STOPPED ? AQ_EXIT_STOPPED : AQ_EXIT_DONE;
}

static int conclude(struct command *command, struct aq_launch_result *result)
{
    char path[AQ_RUN_PATH_BYTES];
    const struct aq_launch_models models = {.job = command->job,
                                            .plan = command->plan,
                                            .checkpoint = command->entry.checkpoint,
                                            .brought = command->bring,
                                            .resumed = command->go_on,
                                            .progress = &command->progress};
    aq_board_phase(command->board, "writes the model and the report");
    /* The model comes first: a run that is marked done has one, even if this process is killed. */
    if (result->outcome == AQ_LAUNCH_DONE && result->mark > 0 &&
        aq_launch_models_write(&models, result, &command->best_left) != AQ_OK) {
        result->outcome = AQ_LAUNCH_FAILED;
        snprintf(result->cause, sizeof result->cause, "%s", aq_error_text());
    }
    const bool failed = result->outcome == AQ_LAUNCH_FAILED;
    const char *state = failed ? "failed" : result->outcome == AQ_LAUNCH_DONE ? "done" : "stopped";
    json_t *best = result->best.step == 0
                       ? NULL
                       : json_pack("{s:I, s:s, s:o}", "step", (json_int_t)result->best.step, "figure",
                                   result->best.figure, "value", aq_control_number(result->best.value));
    json_t *end = json_pack("{s:s, s:s, s:O, s:I, s:s*, s:o*}", "event", "end", "state", state, "stages",
                            result->stages ? result->stages : json_null(), "mark", (json_int_t)result->mark, "cause",
                            failed ? result->cause : NULL, "best", best);
    const int kept = command->errors.count;
    enum aq_status status = write_line(command, end);
    if (status == AQ_OK) status = aq_metrics_sync(command->metrics);
    if (status == AQ_OK) status = leave_report(command);
    if (failed) command->errors.count = kept; /* one line has the cause */
    const int code = tell_end(command, result, status);
    aq_trackers_end(&command->trackers, &command->progress, command->signals);
    if (code != AQ_EXIT_DONE || command->job->output.metrics) return code;
    if (aq_run_path(command->job->output.path, "metrics.jsonl", path) != AQ_OK) return code;
    (void)aq_file_remove(NULL, path);
    aq_metrics_index_cut(path, 0);
    return code;
}

static void say_finished(struct command *command)
{
    const struct aq_run_entry *entry = &command->entry;
    const char *run = command->job->output.path;
    const unsigned long long step = entry->resume_step;
    if (entry->early)
        aq_progress_say(
            &command->progress,
            "%s is finished: step %llu, %u evaluations after the best one (raise train.early_stop to continue)", run,
            step, entry->best.since);
    else
        aq_progress_say(&command->progress,
                        "%s is finished: step %llu of %llu (aqpipe resume --epochs N, or --steps N, continues)", run,
                        step, (unsigned long long)command->plan->steps);
}

/* The job is checked here, so that its faults are printed before it waits in a queue. */
static int hand_over(struct command *command)
{
    if (load_job(command) != AQ_OK) return AQ_EXIT_USAGE;
    if (is_mpi(command)) { /* rank 0 plans when it launches, the others need not */
        const struct aq_mpi mpi = {.job = command->job,
                                   .manifest = command->manifest_path,
                                   .sets = &command->sets,
                                   .restarts = command->restart.max};
        return aq_mpi_become(&mpi);
    }
    if (aq_plan_open(command->job, &command->plan) != AQ_OK) return AQ_EXIT_USAGE;
    if (is_k8s(command)) {
        if (command->job->train.time_ns_max) {
            (void)aq_fail(AQ_INVAL, "launch",
                          "--on k8s starts a stopped launch again, so train.time_max would never end it: "
                          "leave it out and set activeDeadlineSeconds");
            return AQ_EXIT_USAGE;
        }
        const struct aq_k8s k8s = {.plan = command->plan,
                                   .manifest = command->manifest_path,
                                   .sets = &command->sets,
                                   .image = command->image,
                                   .claim = command->claim,
                                   .mount = command->mount,
                                   .restarts = command->restart.max,
                                   .warning_s = (uint32_t)ceil(command->warning_s),
                                   .print = command->print};
        return aq_k8s_write(&k8s);
    }
    const struct aq_slurm slurm = {.job = command->job,
                                   .plan = command->plan,
                                   .manifest = command->manifest_path,
                                   .sets = &command->sets,
                                   .wishes = &command->wishes,
                                   .restarts = command->restart.max,
                                   .warning_s = (uint32_t)ceil(command->warning_s),
                                   .print = command->print};
    return aq_slurm_submit(&slurm);
}

/* --dry-run: the output of `aqpipe plan` for the same job. */
static int dry_run(const struct command *command)
{
    static char name[] = "plan", json[] = "--json", set[] = "--set";
    char run[AQ_RUN_SET_BYTES], *argv[2 * AQ_ARGUMENTS_MAX + 8] = {name, (char *)(uintptr_t)command->manifest_path};
    int argc = 2;
    if (command->progress.json) argv[argc++] = json;
    for (uint32_t i = 0; i < command->sets.count; i++) {
        argv[argc++] = set;
        argv[argc++] = (char *)(uintptr_t)command->sets.of[i];
    }
    if (command->run) {
        if (aq_run_set(command->run, run) != AQ_OK) return AQ_EXIT_USAGE;
        argv[argc++] = set;
        argv[argc++] = run;
    }
    return aq_command_plan(argc, argv);
}

/* output.report_to: not of a turn, whose folder is one of many. */
static void start_trackers(struct command *command)
{
    struct aq_trackers_config config;
    aq_follow_config(command->job, command->follow, &config);
    if (command->guest <= 0) aq_trackers_start(&command->trackers, &config, &command->progress);
}

static int launch(struct command *command)
{
    struct aq_launch_result result = {0};
    aq_progress_begin(&command->progress);
    if (command->progress.terminal && !command->progress.off)
        aq_progress_say(&command->progress, "reads the data and plans the job");
    if (prepare(command) != AQ_OK) return AQ_EXIT_USAGE;
    enum aq_status status = fits(command);
    if (status == AQ_OK) status = open_page(command);
    if (status != AQ_OK) return aq_exit_of(status);
    status = command->bring ? aq_bring(command->job, command->copy, &command->progress) : AQ_OK;
    if (status != AQ_OK) return AQ_EXIT_FAILED;
    status = aq_split_folder_check(command->job->output.path, AQ_SPLIT_NO_FOLDER, command->job->name, NULL);
    if (status == AQ_OK) status = aq_run_enter(&command->entry);
    if (status != AQ_OK) return status == AQ_REFUSED ? AQ_EXIT_USAGE : aq_exit_of(status);
    if (command->entry.finished) {
        if (command->job->output.metrics && leave_report(command) != AQ_OK) return AQ_EXIT_FAILED;
        say_finished(command);
        return AQ_EXIT_DONE;
    }
    command->progress.steps = command->plan->steps - command->shift;
    command->progress.stages = command->plan->stage_count;
    const bool goes_on = command->entry.resume_step > 0;
    if (aq_bits_open(command->plan, command->job->output.path, goes_on, &command->bits) != AQ_OK ||
        aq_cut_judge_open(command->plan, &command->judge) != AQ_OK || open_metrics(command) != AQ_OK ||
        aq_launch_signals(&command->signals) != AQ_OK)
        return AQ_EXIT_FAILED;
    if (command->plan->samples_dropped)
        aq_progress_say(&command->progress,
                        "the last %llu samples of data.train are left out, so that %u replicas have the same number",
                        (unsigned long long)command->plan->samples_dropped, command->plan->replicas);
    if (command->entry.resume)
        aq_progress_say(&command->progress,
                        command->entry.resume_step ? "continues after step %llu"
                                                   : "there is no checkpoint yet: starts at step %llu",
                        (unsigned long long)command->entry.resume_step);
    if (*command->entry.extended) aq_progress_say(&command->progress, "%s", command->entry.extended);
    start_trackers(command);
    aq_log_sink(aq_kept_errors_take, &command->errors);
    if (command->entry.early)
        result = (struct aq_launch_result){.outcome = AQ_LAUNCH_DONE,
                                           .mark = command->entry.resume_step,
                                           .best = command->entry.best,
                                           .early_step = command->entry.resume_step};
    else
        run(command, &result);
    const int code = conclude(command, &result);
    json_decref(result.stages);
    return code;
}

static int run_command(bool go_on, bool turn, int argc, char **argv)
{
    struct command *command;
    if (AQ_NEW(1, &command) != AQ_OK) return AQ_EXIT_FAILED;
    command->entry.lock = command->entry.checkpoint_lock = command->signals = -1;
    command->begin_ns = aq_clock_ns();
    command->restart.max = AQ_RESTARTS_DEFAULT;
    command->warning_s = WARNING_S;
    command->go_on = go_on;
    command->turn = turn;
    int code = parse(command, argc, argv);
    if (code == AQ_OPTIONS_READ)
        code = command->on && !is_ssh(command) ? hand_over(command)
               : command->print                ? dry_run(command)
                                               : launch(command);
    aq_metrics_close(command->metrics);
    aq_bits_close(command->bits);
    aq_cut_judge_close(command->judge);
    aq_page_close(command->page);
    aq_board_close(command->board);
    aq_tls_close(command->tls);
    aq_free(command->manifest);
    aq_free(command->lengths);
    aq_plan_close(command->plan);
    aq_job_close(command->job);
    if (command->signals != -1) close(command->signals);
    aq_run_leave(&command->entry);
    aq_free(command);
    return code;
}

int aq_command_launch(int argc, char **argv)
{
    return run_command(false, false, argc, argv);
}

int aq_command_resume(int argc, char **argv)
{
    return run_command(true, false, argc, argv);
}

int aq_command_split_turn(int argc, char **argv)
{
    return run_command(false, true, argc, argv);
}
