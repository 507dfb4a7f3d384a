/* launch_slurm.c -- see the header. The script has all its steps inline, so that a reader of the queue sees them. */
#include "launch_slurm.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "commands.h"
#include "out.h"
#include "plan.h"
#include "run_folder.h"

/* An option of sbatch has its own line: it must not contain a newline. */
static enum aq_status check_wish(const char *wish)
{
    for (const char *at = wish; *at; at++)
        if ((unsigned char)*at < ' ')
            return aq_fail(AQ_INVAL, "launch", "--slurm: must be one line without control characters");
    if (wish[0] != '-')
        return aq_fail(AQ_INVAL, "launch",
                       "--slurm: '%.80s' is not an option of sbatch: write it as in --slurm=--partition=gpu", wish);
    return AQ_OK;
}

static void word(struct aq_text *out, const char *name, const char *value)
{
    aq_text_add(out, "%s=", name);
    aq_text_shell(out, value);
    aq_text_add(out, "\n");
}

static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/";

/* Memory for the largest stage, in MiB per core of its task: Slurm's own default is often less. An option of the user's
 * comes first: sbatch takes one of --mem, --mem-per-cpu and --mem-per-gpu. */
static void add_memory(const struct aq_slurm *slurm, uint32_t threads, struct aq_text *out)
{
    static const uint64_t mib = 1 << 20, beside = 256 << 20; /* the daemon, the program and its stacks */
    uint64_t most = 0;
    for (uint32_t i = 0; i < slurm->wishes->count; i++)
        if (strncmp(slurm->wishes->of[i], "--mem", 5) == 0) return;
    for (uint32_t s = 0; s < slurm->plan->stage_count; s++)
        if (slurm->plan->stages[s].memory_bytes > most) most = slurm->plan->stages[s].memory_bytes;
    const uint64_t cores = threads ? threads : 1;
    aq_text_add(out, "#SBATCH --mem-per-cpu=%lluM\n", (unsigned long long)((most + beside) / mib / cores + 1));
}

/* The request to Slurm: one task per rank, with its stage's cores and GPU. */
static enum aq_status add_demands(const struct aq_slurm *slurm, struct aq_text *out)
{
    const struct aq_job *job = slurm->job;
    const char *path = job->output.path;
    if (path[strspn(path, plain)])
        return aq_fail(AQ_INVAL, "launch",
                       "output.path: %.200s: for a Slurm job it can have only letters, digits and ._-/", path);
    uint32_t threads = job->pipeline.threads;
    bool gpus = false;
    for (uint32_t r = 0; r < aq_job_ranks(job); r++) {
        const struct aq_job_stage *stage = &job->pipeline.stages[r];
        if (stage->threads > threads) threads = stage->threads;
        gpus |= aq_device_gpu(stage->device) != AQ_GPU_NO;
    }
    aq_text_add(out, "#SBATCH --job-name=");
    for (const char *at = job->name; *at; at++) /* a word, whatever the name is */
        aq_text_add(out, "%c", strchr(plain, *at) ? *at : '_');
    aq_text_add(out, "\n#SBATCH --ntasks=%u\n", aq_job_ranks(job));
    if (threads) aq_text_add(out, "#SBATCH --cpus-per-task=%u\n", threads);
    if (gpus) aq_text_add(out, "#SBATCH --gpus-per-task=1\n");
    add_memory(slurm, threads, out);
    aq_text_add(out, "#SBATCH --signal=B:USR1@%u\n#SBATCH --requeue\n#SBATCH --open-mode=append\n", slurm->warning_s);
    aq_text_add(out, "#SBATCH --output=%s.slurm.log\n", job->output.path);
    for (uint32_t i = 0; i < slurm->wishes->count; i++) {
        AQ_TRY(check_wish(slurm->wishes->of[i]));
        aq_text_add(out, "#SBATCH %s\n", slurm->wishes->of[i]);
    }
    return AQ_OK;
}

/* Keys, a daemon in each task, and where they listen. */
static const char agents[] =
    "set -u\n"
    "umask 077\n"
    "signalled=0 launcher=\n"
    "trap 'signalled=1; [ -z \"$launcher\" ] || kill -TERM \"$launcher\" 2>/dev/null' USR1 TERM\n"
    "work=$run.slurm/$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}\n"
    "fail() { echo \"aqpipe on slurm: $*\" >&2; rm -rf \"$work/keys\"; exit 1; }\n"
    "mkdir -p \"$work\" || fail \"cannot make $work\"\n"
    "address() { scontrol show node -o \"$1\" | sed -n 's/.* NodeAddr=\\([^ ]*\\).*/\\1/p'; }\n"
    "export -f address\n"
    "hosts=$(for node in $(scontrol show hostnames \"$SLURM_JOB_NODELIST\"); do address \"$node\"; done | sort -u | "
    "paste -sd,)\n"
    "\"$aqpipe\" keys init \"$work/keys\" --job \"$name\" --stages \"$ranks\" --hosts \"$hosts\" >/dev/null || fail "
    "\"no keys\"\n"
    "agent='at=$(address \"$SLURMD_NODENAME\"); echo \"$at\" > \"$1/address-$SLURM_PROCID\"\n"
    "exec \"$2\" --listen \"$at:0\" --host \"$at\" --keys \"$1/keys\" --port-file \"$1/port-$SLURM_PROCID\"'\n"
    "srun --ntasks=\"$ranks\" bash -c \"$agent\" agent \"$work\" \"$aqpiped\" &\n"
    "agents=$!\n"
    "for ((tries = 0; ; tries++)); do\n"
    "    missing=\n"
    "    for ((r = 0; r < ranks; r++)); do [ -s \"$work/port-$r\" ] || missing=\"$missing $r\"; done\n"
    "    [ -z \"$missing\" ] && break\n"
    "    kill -0 $agents 2>/dev/null || fail \"the daemons of ranks$missing ended\"\n"
    "    ((tries < 600)) || fail \"the daemons of ranks$missing do not listen after 120 s\"\n"
    "    sleep 0.2\n"
    "done\n";

/* Which stage is where, as settings: of stages that the manifest lists, or of a count. */
const char aq_slurm_places[] =
    "sets=(--set \"security.keys=$work/keys\") entries=\n"
    "for ((s = 0; s < stages; s++)); do\n"
    "    host= at=\n"
    "    for ((r = s; r < ranks; r += stages)); do\n"
    "        there=$(<\"$work/address-$r\")\n"
    "        host+=\"${host:+, }\\\"tcp://$there:$(<\"$work/port-$r\")\\\"\" at+=\"${at:+, }\\\"$there:0\\\"\"\n"
    "    done\n"
    "    ((ranks == stages)) || host=\"[$host]\" at=\"[$at]\"\n"
    "    if ((listed)); then\n"
    "        sets+=(--set \"pipeline.stages.$s.host=$host\" --set \"pipeline.stages.$s.address=$at\")\n"
    "    else\n"
    "        entries+=\"${entries:+, }{host: $host, address: $at}\"\n"
    "    fi\n"
    "done\n"
    "resume=(); [ -d \"$run\" ] && resume=(--resume)\n"
    "((listed)) || sets+=(--set \"pipeline.stages=[$entries]\")\n";

/* `wait` returns at a signal: only the wait after the launcher's end has its status. */
static const char follow[] =
    "launcher=$!\n"
    "((signalled)) && kill -TERM $launcher\n"
    "while kill -0 $launcher 2>/dev/null; do wait $launcher; done\n"
    "wait $launcher\n"
    "code=$?\n"
    "scancel --signal=TERM \"$SLURM_JOB_ID.0\" 2>/dev/null || kill $agents 2>/dev/null\n"
    "wait $agents 2>/dev/null\n"
    "rm -rf \"$work/keys\"\n"
    "if ((signalled && code == 3)); then\n"
    "    echo \"aqpipe on slurm: stopped by a signal, with a checkpoint; back into the queue\"\n"
    "    scontrol requeue \"$SLURM_JOB_ID\" ||\n"
    "        echo \"aqpipe on slurm: Slurm does not requeue; sbatch $run.sbatch continues\" >&2\n"
    "fi\n"
    "exit $code\n";

enum aq_status aq_slurm_script(const struct aq_slurm *slurm, struct aq_text *out)
{
    static char aqpipe[AQ_RUN_PATH_BYTES], aqpiped[AQ_RUN_PATH_BYTES], manifest[AQ_RUN_PATH_BYTES];
    const struct aq_job *job = slurm->job;
    if (!aq_program_beside("aqpipe", aqpipe))
        return aq_fail(AQ_NOTFOUND, "launch", "the file of this program is missing");
    AQ_TRY(aq_daemon_program(aqpiped));
    if (!aq_absolute(slurm->manifest, manifest)) return aq_fail(AQ_INVAL, "launch", "the manifest's path is too long");
    aq_text_add(out, "#!/bin/bash\n");
    AQ_TRY(add_demands(slurm, out));
    aq_text_add(out,
                "# Written by aqpipe launch --on slurm, version %s; exit status: 0 done; 1 failed; 2 usage or "
                "manifest; 3 stopped, with a checkpoint.\n",
                AQ_VERSION);
    word(out, "aqpipe", aqpipe);
    word(out, "aqpiped", aqpiped);
    word(out, "run", job->output.path);
    word(out, "name", job->name);
    aq_text_add(out, "ranks=%u stages=%u listed=%d\n%s%s", aq_job_ranks(job), job->pipeline.stage_count,
                job->pipeline.listed, agents, aq_slurm_places);
    aq_text_add(out, "\"$aqpipe\" launch ");
    aq_text_shell(out, manifest);
    aq_text_add(out, " --run \"$run\" \"${resume[@]}\" --restarts %u", slurm->restarts);
    for (uint32_t i = 0; i < slurm->sets->count; i++) {
        aq_text_add(out, " --set ");
        aq_text_shell(out, slurm->sets->of[i]);
    }
    aq_text_add(out, " \"${sets[@]}\" &\n%s", follow);
    return out->status;
}

int aq_slurm_submit(const struct aq_slurm *slurm)
{
    static char path[AQ_RUN_PATH_BYTES];
    struct aq_text script = {0};
    enum aq_status status = aq_slurm_script(slurm, &script);
    if (status == AQ_OK && slurm->print) {
        aq_out_raw(aq_text_of(&script));
        aq_text_deinit(&script);
        return AQ_EXIT_DONE;
    }
    if (status == AQ_OK && snprintf(path, sizeof path, "%s.sbatch", slurm->job->output.path) >= (int)sizeof path)
        status = aq_fail(AQ_INVAL, "launch", "the path of the run folder is too long");
    if (status == AQ_OK) status = aq_file_replace(NULL, path, 0700, aq_text_of(&script), script.used);
    aq_text_deinit(&script);
    if (status != AQ_OK) return status == AQ_INVAL ? AQ_EXIT_USAGE : AQ_EXIT_FAILED;
    execlp("sbatch", "sbatch", path, (char *)NULL);
    (void)aq_fail(AQ_NOTFOUND, "launch", "%s is written, but there is no sbatch here: %s", path, strerror(errno));
    return AQ_EXIT_FAILED;
}
