/*
 * doctor_machine.c -- of this machine: clock, memory, cores, GPU, io_uring, limits, sockets.
 */
#include <errno.h>
#include <linux/io_uring.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/timex.h>
#include <time.h>
#include <unistd.h>

#include "aqsgd/base/control_group.h"
#include "aqsgd/base.h"
#include "aqsgd/device.h"
#include "aqsgd/gpu_library.h"
#include "doctor.h"
#include "plan.h"
#include "runtime_text.h"

static const char sockets_memory[] = "/proc/sys/net/ipv4/tcp_rmem";
/* Bytes in flight of a link of 400 Mbit/s over 100 ms: a smaller kernel window would limit it. */
enum { WINDOW_BYTES = 5 << 20, FILES_LEAST = 1024, LOCKED_LEAST = 64 << 20 };

/* The first line of a file of the kernel's; "" without one. */
static const char *line_of(const char *path, char out[512])
{
    FILE *file = fopen(path, "re");
    if (!file || !fgets(out, 512, file)) out[0] = 0;
    if (file) fclose(file);
    out[strcspn(out, "\n")] = 0;
    return out;
}

static void clock_look(struct doctor *doctor)
{
    struct timex about = {0};
    const int state = adjtimex(&about);
    char now[32] = "?";
    struct tm parts;
    const time_t seconds = time(NULL);
    if (gmtime_r(&seconds, &parts)) (void)strftime(now, sizeof now, "%Y-%m-%d %H:%M:%S UTC", &parts);
    if (state == -1 || state == TIME_ERROR || (about.status & STA_UNSYNC))
        doctor_found(doctor, DOCTOR_DOUBTFUL, "clock",
                     "timedatectl set-ntp true, or compare `date -u` of all machines: certificates have dates, and "
                     "logs of several machines are read side by side",
                     "%s; the kernel does not know it to be synchronised", now);
    else
        doctor_found(doctor, DOCTOR_WELL, "clock", NULL, "%s, synchronised", now);
}

static void memory_look(struct doctor *doctor)
{
    char text[AQ_TEXT_NUMBER], line[512];
    const uint64_t bytes = aq_plan_memory_here();
    doctor_found(doctor, bytes ? DOCTOR_WELL : DOCTOR_DOUBTFUL, "memory", NULL, "%s for this process",
                 aq_text_size(bytes, text));
    line_of("/sys/kernel/mm/transparent_hugepage/enabled", line);
    if (strstr(line, "[never]"))
        doctor_found(doctor, DOCTOR_DOUBTFUL, "huge pages",
                     "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled (as root)",
                     "the kernel gives none: large products and caches are slower");
}

static void cores_look(struct doctor *doctor)
{
    char instructions[64], allowed[64] = "";
    const uint32_t cores = aq_thread_cores();
    aq_processor_text(aq_processor_used(), instructions);
    if (aq_control_group_here().cores == cores)
        snprintf(allowed, sizeof allowed, " (its control group allows %u)", cores);
    doctor_found(doctor, DOCTOR_WELL, "cores", NULL, "%u for this process%s, instructions %s", cores, allowed,
                 instructions);
}

static void gpu_look(struct doctor *doctor)
{
    const struct aq_device_config config = {.kind = "cuda"};
    struct aq_device_info info;
    struct aq_device *device;
    if (aq_device_open(&config, &device) == AQ_OK) {
        aq_device_info(device, &info);
        doctor_found(doctor, DOCTOR_WELL, "GPU", NULL, "%s", info.name);
        aq_device_close(device);
        return;
    }
    doctor_found(doctor, DOCTOR_WELL, "GPU", NULL, "none: %s", aq_error_text());
    aq_error_clear();
}

/* CUDA's libraries, which are found at run time: without cuBLASLt no GPU can be used. */
static void gpu_libraries_look(struct doctor *doctor)
{
    static const struct {
        enum aq_gpu_library which;
        const char *check;
        bool needed;
    } libraries[] = {{AQ_GPU_CUBLASLT, "cuBLASLt", true}, {AQ_GPU_NCCL, "NCCL", false}, {AQ_GPU_CUDNN, "cuDNN", false}};
    const bool present = aq_device_gpu_here(NULL, 0);
    char text[AQ_ERROR_BYTES];
    for (size_t i = 0; AQ_WITH_CUDA && i < sizeof libraries / sizeof *libraries; i++) {
        const bool found = aq_gpu_library_look(libraries[i].which, text, sizeof text);
        if (found || !present || !libraries[i].needed)
            doctor_found(doctor, DOCTOR_WELL, libraries[i].check, NULL, found ? "%s" : "none: %s", text);
        else
            doctor_found(doctor, DOCTOR_BAD, libraries[i].check,
                         "install it, or write device: cpu in the manifest: no stage can use this machine's GPU", "%s",
                         text);
    }
}

static void io_uring_look(struct doctor *doctor)
{
    struct io_uring_params parameters = {0};
    const long fd = syscall(SYS_io_uring_setup, 8, &parameters);
    if (fd >= 0) {
        close((int)fd);
        doctor_found(doctor, DOCTOR_WELL, "io_uring", NULL, "allowed");
        return;
    }
    doctor_found(doctor, DOCTOR_DOUBTFUL, "io_uring",
                 "sysctl kernel.io_uring_disabled=0, or allow io_uring_setup in the container's seccomp profile",
                 "not allowed here (%s): messages are read and written one at a time", strerror(errno));
}

static void limits_look(struct doctor *doctor)
{
    struct rlimit files = {0}, locked = {0};
    char text[AQ_TEXT_NUMBER];
    (void)getrlimit(RLIMIT_NOFILE, &files);
    (void)getrlimit(RLIMIT_MEMLOCK, &locked);
    if (files.rlim_cur < FILES_LEAST)
        doctor_found(doctor, DOCTOR_DOUBTFUL, "open files", "ulimit -n 4096", "at most %llu: few for many replicas",
                     (unsigned long long)files.rlim_cur);
    if (locked.rlim_cur != RLIM_INFINITY && locked.rlim_cur < LOCKED_LEAST)
        doctor_found(doctor, DOCTOR_DOUBTFUL, "locked memory",
                     "ulimit -l unlimited (LimitMEMLOCK=infinity for systemd)",
                     "at most %s: a large cache's buffers cannot be registered, reads cost more processor time",
                     aq_text_size(locked.rlim_cur, text));
}

static void sockets_look(struct doctor *doctor)
{
    char available[512], allowed[512], memory[512], text[AQ_TEXT_NUMBER];
    unsigned long long least, usual, most = 0;
    line_of("/proc/sys/net/ipv4/tcp_available_congestion_control", available);
    line_of("/proc/sys/net/ipv4/tcp_allowed_congestion_control", allowed);
    const bool has = strstr(available, "bbr") != NULL, may = strstr(allowed, "bbr") != NULL || geteuid() == 0;
    if (has && may)
        doctor_found(doctor, DOCTOR_WELL, "congestion", NULL, "bbr may be used for far links; the kernel has: %s",
                     available);
    else
        doctor_found(doctor, DOCTOR_DOUBTFUL, "congestion",
                     has ? "sysctl net.ipv4.tcp_allowed_congestion_control=\"reno cubic bbr\" (as root)"
                         : "modprobe tcp_bbr (as root), then sysctl "
                           "net.ipv4.tcp_allowed_congestion_control=\"reno cubic bbr\"",
                     "bbr is not %s: a lost packet slows a far link down; the kernel has: %s",
                     has ? "allowed to this user" : "loaded", available);
    line_of(sockets_memory, memory);
    if (sscanf(memory, "%llu %llu %llu", &least, &usual, &most) == 3 && most < WINDOW_BYTES)
        doctor_found(doctor, DOCTOR_DOUBTFUL, "TCP window",
                     "sysctl net.ipv4.tcp_rmem=\"4096 131072 16777216\" net.ipv4.tcp_wmem=\"4096 65536 16777216\"",
                     "a socket receives at most %s ahead: less than 400 Mbit/s over 100 ms have on their way",
                     aq_text_size(most, text));
    else if (most)
        doctor_found(doctor, DOCTOR_WELL, "TCP window", NULL, "up to %s", aq_text_size(most, text));
}

void doctor_machine(struct doctor *doctor)
{
    clock_look(doctor);
    cores_look(doctor);
    memory_look(doctor);
    gpu_look(doctor);
    gpu_libraries_look(doctor);
    io_uring_look(doctor);
    limits_look(doctor);
    sockets_look(doctor);
}
