/*
 * doctor_job.c -- of a job, as far as this machine is in it: memory, disk, ports, certificates, daemons.
 *
 * Links are looked at from one end: can this stage's address be listened at, does the other machine's daemon answer,
 * how far is it. A single end cannot measure the rate of a whole link.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "aqsgd/base.h"
#include "commands.h"
#include "control_socket.h"
#include "doctor.h"
#include "job.h"
#include "net/tls.h"
#include "plan.h"
#include "run_folder.h"
#include "runtime_text.h"
#include "security.h"
#include "ssh_host.h"
#include "trackers.h"

enum { PATH_BYTES = 4096, TRIAL_PIECES = 64, PIECE_BYTES = 1 << 20, MEETS = 5, MEET_S = 5 };
enum { SOON_S = 30 * 86400 };
static const double second_ns = 1e9, slow_mb_s = 100;

/* --- memory and disk ---------------------------------------------------------------------------------------------- */

static void memory_look(struct doctor *doctor, const struct aq_plan *plan)
{
    if (aq_plan_devices_built(plan) != AQ_OK) {
        doctor_failed(doctor, "job devices", NULL);
        return;
    }
    if (aq_plan_fits(plan, aq_plan_memory_here()) == AQ_OK)
        doctor_found(doctor, DOCTOR_WELL, "job memory", NULL, "the stages of this machine fit");
    else
        doctor_failed(doctor, "job memory", NULL);
}

/* Past the page cache, where the file system takes that. */
static void direct(int fd)
{
    const int flags = fcntl(fd, F_GETFL);
    if (flags != -1) (void)fcntl(fd, F_SETFL, flags | O_DIRECT);
}

static enum aq_status trial_write(const char *folder, const char *name, const void *piece, double *seconds)
{
    int fd;
    bool well = true;
    AQ_TRY(aq_file_open(folder, name, AQ_FILE_ANEW, &fd));
    direct(fd);
    const uint64_t begin = aq_clock_ns();
    for (int i = 0; i < TRIAL_PIECES && well; i++)
        well = aq_write_all(fd, piece, PIECE_BYTES);
    well = well && fdatasync(fd) == 0;
    *seconds = (double)(aq_clock_ns() - begin) / second_ns;
    const enum aq_status status = well ? AQ_OK : aq_fail_errno("doctor", "cannot write %s/%s", folder, name);
    close(fd);
    return status;
}

static enum aq_status trial_read(const char *folder, const char *name, void *piece, double *seconds)
{
    int fd;
    bool well = true;
    AQ_TRY(aq_file_open(folder, name, AQ_FILE_READ, &fd));
    direct(fd);
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    const uint64_t begin = aq_clock_ns();
    for (int i = 0; i < TRIAL_PIECES && well; i++)
        well = pread(fd, piece, PIECE_BYTES, (off_t)i * PIECE_BYTES) == PIECE_BYTES;
    *seconds = (double)(aq_clock_ns() - begin) / second_ns;
    const enum aq_status status = well ? AQ_OK : aq_fail_errno("doctor", "cannot read %s/%s", folder, name);
    close(fd);
    return status;
}

static enum aq_status disk_measure(struct doctor *doctor, const char *folder)
{
    char name[32];
    void *memory;
    double write_s = 0, read_s = 0;
    snprintf(name, sizeof name, "aqpipe-doctor-%d", (int)getpid());
    AQ_TRY(aq_map(PIECE_BYTES, &memory));
    memset(memory, 0x5a, PIECE_BYTES);
    enum aq_status status = trial_write(folder, name, memory, &write_s);
    if (status == AQ_OK) status = trial_read(folder, name, memory, &read_s);
    const enum aq_status removed = aq_file_remove(folder, name);
    aq_unmap(memory, PIECE_BYTES);
    AQ_TRY(status);
    AQ_TRY(removed);
    const double megabytes = (double)TRIAL_PIECES * PIECE_BYTES * 1e-6;
    const double written = megabytes / write_s, read = megabytes / read_s;
    const bool slow = written < slow_mb_s || read < slow_mb_s;
    doctor_found(doctor, slow ? DOCTOR_DOUBTFUL : DOCTOR_WELL, "disk speed",
                 slow ? "cache.path on a faster disk, or cache.kind: memory" : NULL,
                 "%s: writes %.0f MB/s, reads %.0f MB/s", folder, written, read);
    return AQ_OK;
}

/* The nearest folder above that is there: launch makes the rest. */
static bool folder_there(const char *path, char out[PATH_BYTES])
{
    if (snprintf(out, PATH_BYTES, "%s", path) >= PATH_BYTES) return false;
    while (access(out, F_OK) != 0) {
        char *slash = strrchr(out, '/');
        if (!slash) return snprintf(out, PATH_BYTES, ".") > 0;
        if (slash == out) return snprintf(out, PATH_BYTES, "/") > 0;
        *slash = 0;
    }
    return true;
}

static void disk_look(struct doctor *doctor, const struct aq_job *job, const struct aq_plan *plan)
{
    char folder[PATH_BYTES], text[AQ_TEXT_NUMBER];
    struct statvfs about;
    char caches[AQ_RUN_PATH_BYTES];
    const char *wanted = job->cache.path;
    if (!wanted && aq_run_path(job->output.path, "cache", caches) == AQ_OK) wanted = caches;
    if (!wanted || !folder_there(wanted, folder)) return;
    if (aq_plan_disk_fits(plan, wanted) != AQ_OK)
        doctor_failed(doctor, "disk room", NULL);
    else if (statvfs(folder, &about) == 0)
        doctor_found(doctor, DOCTOR_WELL, "disk room", NULL, "%s: the caches of this machine fit into %s free", folder,
                     aq_text_size((uint64_t)about.f_bavail * about.f_frsize, text));
    if (disk_measure(doctor, folder) != AQ_OK)
        doctor_failed(doctor, "disk speed", "a folder that this user may write to, with 64 MiB free");
}

/* --- network ------------------------------------------------------------------------------------------------------ */

static void port_look(struct doctor *doctor, const struct aq_job *job, uint32_t rank)
{
    char address[AQ_ADDRESS_BYTES];
    const struct aq_job_stage *stage = &job->pipeline.stages[rank];
    uint16_t port;
    int fd;
    if (stage->address)
        snprintf(address, sizeof address, "%s", stage->address);
    else if (job->link.port_first)
        snprintf(address, sizeof address, "%s:%u", job->link.host, job->link.port_first + rank);
    else
        return; /* the system chooses */
    if (aq_control_listen(address, true, &fd, &port) != AQ_OK) {
        doctor_failed(doctor, "port", "end what listens there (ss -ltnp names it), or another address for this stage");
        return;
    }
    close(fd);
    doctor_found(doctor, DOCTOR_WELL, "port", NULL, "stage %u can listen at %s", rank, address);
}

/* The relay, if two neighbours meet there. */
static void relay_look(struct doctor *doctor, const struct aq_job *job)
{
    static const uint64_t patience_ns = 5000000000u;
    int fd;
    bool used = false;
    for (uint32_t a = 0; a < aq_job_ranks(job); a++)
        for (uint32_t b = a + 1; b < aq_job_ranks(job); b++)
            used |= aq_job_relayed(job, a, b);
    if (!used || !job->link.relay) return;
    const enum aq_status status = aq_control_connect(job->link.relay, aq_clock_after(patience_ns), &fd);
    if (status == AQ_NOTFOUND) {
        doctor_failed(doctor, "relay", "correct link.relay, or the name server of this machine");
        return;
    }
    if (status != AQ_OK) {
        aq_error_clear(); /* its text is of a daemon */
        doctor_found(doctor, DOCTOR_BAD, "relay",
                     "start aqpiped --relay HOST:PORT there, and let firewalls pass its port",
                     "cannot reach the relay %s: %s", job->link.relay, aq_status_text(status));
        return;
    }
    close(fd);
    doctor_found(doctor, DOCTOR_WELL, "relay", NULL, "the relay %s can be reached from here", job->link.relay);
}

static void certificate_look(struct doctor *doctor, const char *folder, const struct aq_tls_name *name)
{
    char path[AQ_TLS_PATH_BYTES], file[AQ_TLS_FILE_BYTES];
    struct aq_tls_facts facts;
    const int64_t now = (int64_t)time(NULL);
    if (snprintf(path, sizeof path, "%s/%s", folder, aq_tls_file(name, file)) >= (int)sizeof path) return;
    if (access(path, F_OK) != 0) return; /* not this machine's */
    if (aq_tls_describe(path, &facts) != AQ_OK)
        doctor_failed(doctor, "certificate", "aqpipe keys makes a new one");
    else if (now > facts.until || now < facts.from)
        doctor_found(doctor, DOCTOR_BAD, "certificate", "set the clock right, or make a new one with aqpipe keys",
                     "%s is %s", path, now < facts.from ? "not good yet" : "expired");
    else
        doctor_found(doctor, facts.until - now < SOON_S ? DOCTOR_DOUBTFUL : DOCTOR_WELL, "certificate",
                     facts.until - now < SOON_S ? "make a new one with aqpipe keys" : NULL, "%s is good for %lld days",
                     path, (long long)((facts.until - now) / 86400));
}

static void certificates_look(struct doctor *doctor, const struct aq_job *job)
{
    const char *const folder = aq_security_folder(job);
    static struct aq_tls_hosts hosts;
    if (!aq_security_on(job)) return;
    if (!folder) {
        doctor_found(doctor, DOCTOR_BAD, "certificate", "aqpipe keys init KEYS, and security.keys: KEYS",
                     "the job's links are under TLS, and security.keys names no folder");
        return;
    }
    certificate_look(doctor, folder, &(struct aq_tls_name){.role = AQ_TLS_AUTHORITY});
    certificate_look(doctor, folder, &(struct aq_tls_name){.role = AQ_TLS_LAUNCHER});
    for (uint32_t rank = 0; rank < aq_job_ranks(job); rank++)
        certificate_look(doctor, folder, &(struct aq_tls_name){.role = AQ_TLS_STAGE, .stage = rank});
    if (aq_tls_hosts(folder, &hosts) != AQ_OK) {
        doctor_failed(doctor, "certificate", NULL);
        return;
    }
    for (uint32_t i = 0; i < hosts.count; i++) {
        struct aq_tls_name name = {.role = AQ_TLS_DAEMON};
        snprintf(name.host, sizeof name.host, "%s", hosts.of[i]);
        certificate_look(doctor, folder, &name);
    }
}

/* The least of some connections' times: what the way takes. */
static enum aq_status round_trip(const char *address, double *ms)
{
    *ms = 1e30;
    for (int i = 0; i < MEETS; i++) {
        int fd;
        const uint64_t begin = aq_clock_ns();
        AQ_TRY(aq_control_connect(address, aq_clock_after((uint64_t)(MEET_S * second_ns)), &fd));
        const double took = (double)(aq_clock_ns() - begin) * 1e-6;
        close(fd);
        if (took < *ms) *ms = took;
    }
    return AQ_OK;
}

static void daemon_look(struct doctor *doctor, const struct aq_job *job, const char *address, struct aq_tls *tls)
{
    struct aq_token token = {0};
    struct aq_control *control;
    double ms = 0;
    enum aq_status status = round_trip(address, &ms);
    if (status != AQ_OK) {
        doctor_failed(doctor, "daemon", "start aqpiped there, and let its port through the firewalls on the way");
        return;
    }
    if (doctor->token_file) status = aq_token_load(doctor->token_file, &token);
    if (status == AQ_OK)
        status = aq_control_meet(address, &token, tls, aq_clock_after((uint64_t)(MEET_S * second_ns)), &control);
    if (status != AQ_OK) {
        doctor_failed(doctor, "daemon", "the keys and the token that it was started with");
        return;
    }
    aq_control_close(control);
    const double said = (double)job->link.rtt_ms;
    const bool far = ms > 5 && (said < 0.5 * ms || said > 2 * ms);
    char remedy[128];
    snprintf(remedy, sizeof remedy, "link.rtt_ms: %.0f, if links go the same way (aqpipe plan --probe measures them)",
             ms);
    doctor_found(doctor, far ? DOCTOR_DOUBTFUL : DOCTOR_WELL, "daemon", far ? remedy : NULL,
                 "%s answers; the way there and back takes %.1f ms%s", address, ms,
                 far ? ", which the manifest does not know" : "");
}

static void daemons_look(struct doctor *doctor, const struct aq_job *job)
{
    const char *const folder = aq_security_folder(job);
    const uint32_t ranks = aq_job_ranks(job);
    struct aq_tls *tls = NULL;
    bool any = false;
    for (uint32_t rank = 0; rank < ranks; rank++)
        any = any || (job->pipeline.stages[rank].host && !aq_ssh_is(job->pipeline.stages[rank].host));
    if (!any) return;
    if (folder && aq_tls_open(folder, AQ_TLS_LAUNCHER, 0, &tls) != AQ_OK) {
        doctor_failed(doctor, "daemon", "run this where the launcher's key is");
        return;
    }
    for (uint32_t rank = 0; rank < ranks; rank++) {
        const char *const host = job->pipeline.stages[rank].host;
        uint32_t before = 0;
        while (before < rank &&
               (!host || !job->pipeline.stages[before].host || strcmp(host, job->pipeline.stages[before].host) != 0))
            before++;
        if (host && !aq_ssh_is(host) && before == rank) daemon_look(doctor, job, host, tls);
    }
    aq_tls_close(tls);
}

/* ---- output.report_to ---- */

/* Each tracker whose package is missing. A job runs without it, so that is doubtful, not bad. */
static void trackers_look(struct doctor *doctor, const struct aq_job *job)
{
    static const char check[] = "trackers";
    struct aq_trackers_config config;
    char program[PATH_BYTES], text[1024];
    aq_follow_config(job, program, &config);
    if (!config.wanted) return;
    const enum aq_status status = aq_trackers_check(&config, text, sizeof text);
    if (status == AQ_OK)
        doctor_found(doctor, DOCTOR_WELL, check, NULL, "output.report_to: %s can run", job->output.report_to);
    else if (status != AQ_NOTFOUND)
        doctor_failed(doctor, check, "AQPIPE_PYTHON names another Python 3");
    for (char *rest = text, *told; status == AQ_NOTFOUND && (told = strsep(&rest, "\n")) != NULL;) {
        static const char before[] = "installed: "; /* "wandb: its package is not installed: python3 -m pip ..." */
        char *remedy = strstr(told, before);
        if (remedy) remedy[sizeof before - 3] = 0;
        if (*told)
            doctor_found(doctor, DOCTOR_DOUBTFUL, check, remedy ? remedy + sizeof before - 1 : NULL,
                         "output.report_to: %s", told);
    }
}

void doctor_job(struct doctor *doctor, const struct aq_job *job, const struct aq_plan *plan)
{
    memory_look(doctor, plan);
    if (aq_plan_links_fit(plan) != AQ_OK) doctor_failed(doctor, "job links", NULL);
    disk_look(doctor, job, plan);
    for (uint32_t rank = 0; rank < aq_job_ranks(job); rank++)
        if (!job->pipeline.stages[rank].host && !job->pipeline.stages[rank].dials && aq_job_listens(job, rank))
            port_look(doctor, job, rank);
    relay_look(doctor, job);
    certificates_look(doctor, job);
    daemons_look(doctor, job);
    trackers_look(doctor, job);
}
