/* launch_mpi.c -- see the header. A rank's work is a script, as Slurm's is; it is passed to bash, not to a file. */
#include "launch_mpi.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "commands.h"
#include "launch_slurm.h"
#include "process_begin.h"
#include "run_folder.h"

enum { START_CHARS_MAX = 100 };

/* Programs that start ranks, and their variables. Slurm's own variables are set under mpirun, too: they come last. */
static const struct starter {
    const char *rank, *size, *start, *step;
} starters[] = {
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMIX_NAMESPACE", NULL},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_MCA_ess_base_jobid", NULL},
    {"PMIX_RANK", "SLURM_NTASKS", "SLURM_JOB_ID", "SLURM_STEP_ID"},
    {"PMI_RANK", "PMI_SIZE", "PMI_JOBID", NULL},
    {"PMI_RANK", "PMI_SIZE", "SLURM_JOB_ID", "SLURM_STEP_ID"},
    {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_JOB_ID", "SLURM_STEP_ID"},
};

static bool number_of(const char *name, uint32_t *out)
{
    const char *text = getenv(name);
    char *end;
    if (!text || *text < '0' || *text > '9') return false;
    const unsigned long long value = strtoull(text, &end, 10);
    if (*end || value > UINT32_MAX) return false;
    *out = (uint32_t)value;
    return true;
}

/* The name of this start, a word that is valid in a path: the same for all of its ranks and for no other start. */
static bool start_of(const struct starter *from, char out[2 * START_CHARS_MAX + 2])
{
    const char *const parts[] = {getenv(from->start), from->step ? getenv(from->step) : NULL};
    size_t used = 0;
    if (!parts[0] || !*parts[0] || (from->step && !parts[1])) return false;
    for (int i = 0; i < 2; i++) {
        if (!parts[i]) continue;
        if (i > 0) out[used++] = '.';
        for (const char *at = parts[i]; *at && used < START_CHARS_MAX * (size_t)(i + 1); at++)
            out[used++] =
                (*at >= '0' && *at <= '9') || (*at >= 'a' && *at <= 'z') || (*at >= 'A' && *at <= 'Z') ? *at : '_';
    }
    out[used] = 0;
    return true;
}

static enum aq_status find_self(uint32_t *rank, uint32_t *size, char start[2 * START_CHARS_MAX + 2])
{
    for (size_t i = 0; i < sizeof starters / sizeof *starters; i++)
        if (number_of(starters[i].rank, rank) && number_of(starters[i].size, size) && start_of(&starters[i], start))
            return AQ_OK;
    return aq_fail(AQ_INVAL, "launch",
                   "--on mpi: the environment names no rank (OMPI_COMM_WORLD_RANK, PMIX_RANK, PMI_RANK, SLURM_PROCID): "
                   "start it as `mpirun -np N aqpipe launch JOB --on mpi`, or by srun");
}

/* Addresses first, then keys for them, then daemons; each waits for what the other makes. Rank 0 takes the address of
 * its default route, the others theirs on the route to it (endpoint.h). An address is written where none was (set -C):
 * the meeting folder of a start that runs is left as it is, whoever comes with the same name. */
static const char meeting[] =
    "set -u\n"
    "umask 077\n"
    "work=$run.mpi/$start signalled= launcher= daemon= made=\n"
    "pass_on() { signalled=$1; [ -z \"$launcher\" ] || kill -$1 \"$launcher\" 2>/dev/null; }\n"
    "trap 'pass_on USR1' USR1\n"
    "trap 'pass_on TERM' TERM\n"
    "fail() { echo \"aqpipe on mpi, rank $rank: $*\" >&2; [ -z \"$daemon\" ] || kill \"$daemon\" 2>/dev/null\n"
    "    ((rank > 0)) || { echo failed > \"$work/over\"; [ -z \"$made\" ] || rm -rf \"$work/keys\"; }; exit 1; }\n"
    "mkdir -p \"$work\" || fail \"cannot make $work\"\n"
    "[ ! -e \"$work/over\" ] || fail \"$work is of an earlier start: remove it\"\n"
    "await() { local tries; for ((tries = 0; tries < 600; tries++)); do\n"
    "        [ -s \"$1\" ] && return; [ ! -e \"$work/over\" ] || exit 1; sleep 0.2; done\n"
    "    fail \"$2 after 120 s\"; }\n"
    "put() { echo \"$2\" > \"$1.new\" && mv \"$1.new\" \"$1\" || fail \"cannot write $1\"; }\n"
    "at=${AQPIPE_MPI_ADDRESS:-}\n"
    "peer='*'\n"
    "((rank == 0)) || [ -n \"$at\" ] || { await \"$work/address-0\" \"rank 0 has not come\"; "
    "peer=$(cat \"$work/address-0\"); }\n"
    "[ -n \"$at\" ] || at=$(\"$aqpiped\" --own-address \"$peer\") || { "
    "((rank == 0)) || fail \"no route to rank 0\"; at=127.0.0.1; put \"$work/alone\" \"$(hostname)\"; }\n"
    "[ ! -e \"$work/alone\" ] || [ \"$(cat \"$work/alone\")\" = \"$(hostname)\" ] || "
    "fail \"rank 0 has found no address of its own: set AQPIPE_MPI_ADDRESS on each host\"\n"
    "case $at in *:*) at=${at#[} at=[${at%]}];; esac\n"
    "(set -C; echo \"$at\" > \"$work/address-$rank\") 2>/dev/null || {\n"
    "    [ -s \"$work/address-$rank\" ] || fail \"cannot write $work/address-$rank\"\n"
    "    echo \"aqpipe on mpi, rank $rank: $work is of another start: choose another name if that one runs, "
    "or remove the folder if it was killed\" >&2; exit 1; }\n"
    "if ((rank == 0)); then\n"
    "    for ((r = 0; r < ranks; r++)); do await \"$work/address-$r\" \"rank $r has not come\"; done\n"
    "    hosts=$(cat \"$work\"/address-* | sort -u | paste -sd,)\n"
    "    \"$aqpipe\" keys init \"$work/keys\" --job \"$name\" --stages \"$ranks\" --hosts \"$hosts\" >/dev/null || "
    "fail \"no keys\"\n"
    "    made=yes\n"
    "    put \"$work/keys-made\" yes\n"
    "fi\n"
    "await \"$work/keys-made\" \"rank 0 has made no keys\"\n"
    "(trap '' USR1; " AQ_PROCESS_PARENT "=$$ exec \"$aqpiped\" --listen \"$at:0\" --host \"$at\" --keys \"$work/keys\" "
    "--port-file \"$work/port-$rank\") &\n"
    "daemon=$!\n";

/* Rank 0 handles signals, which come only to it or, as under mpirun, to all processes of all ranks: daemons ignore
 * USR1, and a second one has no effect (launcher.c). Daemons live until rank 0 ends the job, or has not been seen
 * for 120 s, or their rank's script is killed: AQ_PROCESS_PARENT ties them, and the launcher, to it. */
static const char follows[] =
    "if ((rank > 0)); then\n"
    "    seen= unseen=0\n"
    "    while [ ! -e \"$work/over\" ]; do\n"
    "        sleep 0.5\n"
    "        now=$(cat \"$work/alive\" 2>/dev/null)\n"
    "        if [ \"$now\" = \"$seen\" ]; then unseen=$((unseen + 1)); else unseen=0 seen=$now; fi\n"
    "        ((unseen < 240)) || fail \"rank 0 has ended\"\n"
    "        kill -0 $daemon 2>/dev/null || fail \"its daemon has ended\"\n"
    "    done\n"
    "    kill $daemon 2>/dev/null; wait $daemon 2>/dev/null\n"
    "    rm -f \"$work/port-$rank\" \"$work/address-$rank\"\n"
    "    exit 0\n"
    "fi\n"
    "for ((r = 0; r < ranks; r++)); do await \"$work/port-$r\" \"the daemon of rank $r does not listen\"; done\n";

/* `wait` returns at a signal: only the wait after the launcher's end has its status. */
static const char ends[] =
    "launcher=$!\n"
    "[ -z \"$signalled\" ] || kill -$signalled $launcher\n"
    "beats=0\n"
    "(trap '' USR1 TERM; while kill -0 $launcher 2>/dev/null; do put \"$work/alive\" $((++beats)); sleep 1; done) &\n"
    "alive=$!\n"
    "while kill -0 $launcher 2>/dev/null; do wait $launcher; done\n"
    "wait $launcher\n"
    "code=$?\n"
    "wait $alive 2>/dev/null\n"
    "echo $code > \"$work/over\"\n"
    "kill $daemon 2>/dev/null; wait $daemon 2>/dev/null\n"
    "rm -rf \"$work/keys\" \"$work/address-0\"\n"
    "for ((tries = 0; tries < 50; tries++)); do\n"
    "    compgen -G \"$work/address-*\" >/dev/null || { rm -f \"$work\"/{port-*,keys-made,alive,alone,over}; "
    "rmdir \"$work\" \"$run.mpi\" 2>/dev/null; break; }\n"
    "    sleep 0.2\n"
    "done\n"
    "exit $code\n";

static enum aq_status script_of(const struct aq_mpi *mpi, uint32_t rank, const char *start, struct aq_text *out)
{
    static char aqpipe[AQ_RUN_PATH_BYTES], aqpiped[AQ_RUN_PATH_BYTES], manifest[AQ_RUN_PATH_BYTES];
    const struct aq_job *job = mpi->job;
    const char *const words[][2] = {
        {"aqpipe", aqpipe}, {"aqpiped", aqpiped}, {"run", job->output.path}, {"name", job->name}, {"start", start}};
    if (!aq_program_beside("aqpipe", aqpipe))
        return aq_fail(AQ_NOTFOUND, "launch", "the file of this program is missing");
    AQ_TRY(aq_daemon_program(aqpiped));
    if (!aq_absolute(mpi->manifest, manifest)) return aq_fail(AQ_INVAL, "launch", "the manifest's path is too long");
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        aq_text_add(out, "%s=", words[i][0]);
        aq_text_shell(out, words[i][1]);
        aq_text_add(out, "\n");
    }
    aq_text_add(out, "rank=%u ranks=%u stages=%u listed=%d\n%s%s%s", rank, aq_job_ranks(job), job->pipeline.stage_count,
                job->pipeline.listed, meeting, follows, aq_slurm_places);
    aq_text_add(out, AQ_PROCESS_PARENT "=$$ \"$aqpipe\" launch ");
    aq_text_shell(out, manifest);
    aq_text_add(out, " --run \"$run\" \"${resume[@]}\" --no-progress --restarts %u", mpi->restarts);
    for (uint32_t i = 0; i < mpi->sets->count; i++) {
        aq_text_add(out, " --set ");
        aq_text_shell(out, mpi->sets->of[i]);
    }
    aq_text_add(out, " \"${sets[@]}\" &\n%s", ends);
    return out->status;
}

int aq_mpi_become(const struct aq_mpi *mpi)
{
    const uint32_t ranks = aq_job_ranks(mpi->job);
    char start[2 * START_CHARS_MAX + 2];
    uint32_t rank = 0, size = 0;
    struct aq_text script = {0};
    enum aq_status status = find_self(&rank, &size, start);
    if (status == AQ_OK && size != ranks) {
        if (rank == 0)
            (void)aq_fail(AQ_INVAL, "launch",
                          "--on mpi: %u ranks were started, and the job has %u workers (%u stages x "
                          "%u replicas): mpirun -np %u",
                          size, ranks, mpi->job->pipeline.stage_count, mpi->job->pipeline.replicas, ranks);
        status = AQ_INVAL;
    }
    if (status == AQ_OK) status = script_of(mpi, rank, start, &script);
    if (status == AQ_OK) {
        execlp("bash", "bash", "-c", aq_text_of(&script), (char *)NULL);
        status = aq_fail(AQ_NOTFOUND, "launch", "--on mpi: there is no bash here: %s", strerror(errno));
    }
    aq_text_deinit(&script);
    return status == AQ_INVAL ? AQ_EXIT_USAGE : AQ_EXIT_FAILED;
}
