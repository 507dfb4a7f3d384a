/*
 * cuda_probe.c -- which GPU there is, or one line with the reason why none can be used.
 *
 * The program links CUDA's runtime statically, so that it starts on any machine; whether there is a driver shows here.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#include "cuda_device.h"

enum aq_status cuda_failed(cudaError_t error, const char *call, const char *file, int line)
{
    if (error == cudaErrorMemoryAllocation)
        return aq_fail(AQ_NOMEM, "device",
                       "%s:%d: %s: the GPU has no memory left for what the CUDA context, libraries and other processes "
                       "take in addition to the plan; see nvidia-smi, take another GPU, or lower train.micro_batch",
                       file, line, call);
    return aq_fail(AQ_CUDAERR, "device", "%s:%d: %s: %s (%s)", file, line, call, cudaGetErrorString(error),
                   cudaGetErrorName(error));
}

/* "13.0" of 13000 */
static void version_text(int version, char text[16])
{
    snprintf(text, 16, "%d.%d", version / 1000, version % 1000 / 10);
}

/* Is there a driver, is it young enough, and how many GPUs does it show? */
static enum aq_status probe_driver(int *count, char *why)
{
    int driver = 0;
    char have[16], want[16];
    if (cudaDriverGetVersion(&driver) != cudaSuccess) driver = 0;
    version_text(driver, have);
    version_text(CUDART_VERSION, want);
    const cudaError_t error = cudaGetDeviceCount(count);
    if (error == cudaSuccess && *count > 0) return AQ_OK;
    const bool none = driver == 0 || error == cudaSuccess || error == cudaErrorNoDevice;
    if (driver == 0)
        snprintf(why, CUDA_TEXT_BYTES,
                 CUDA_WANTED "there is no NVIDIA driver here (no libcuda.so.1); install the driver for CUDA %s or "
                             "later, or set device: cpu",
                 want);
    else if (error == cudaErrorInsufficientDriver)
        snprintf(why, CUDA_TEXT_BYTES,
                 CUDA_WANTED "the driver is for CUDA %s, this build for %s; install a later driver, build with "
                             "that toolkit, or set device: cpu",
                 have, want);
    else if (none)
        snprintf(why, CUDA_TEXT_BYTES,
                 CUDA_WANTED "the driver (CUDA %s) shows no GPU; see nvidia-smi and CUDA_VISIBLE_DEVICES, or set "
                             "device: cpu",
                 have);
    else
        snprintf(why, CUDA_TEXT_BYTES, CUDA_WANTED "the driver (CUDA %s) reports: %s; see nvidia-smi", have,
                 cudaGetErrorString(error));
    return none ? AQ_NOTFOUND : AQ_NODEV;
}

/*
 * Does a build for this list ("80-real,90-real,100") run there? Machine code does on its own major number from its own
 * minor number on; PTX, which is included where the list lacks "real", on all that is newer.
 */
bool cuda_architecture_fits(const char *list, int major, int minor)
{
    for (const char *at = list; *at; at += strcspn(at, ","), at += *at == ',') {
        char *end;
        const long number = strtol(at, &end, 10);
        const bool real = strncmp(end, "-virtual", 8) != 0 && *end != 'f', ptx = strncmp(end, "-real", 5) != 0;
        if (real && number / 10 == major && number % 10 <= minor) return true;
        if (ptx && *end != 'a' && number <= major * 10 + minor) return true;
    }
    return false;
}

static enum aq_status probe_architecture(const struct cuda_probe *probe, char *why)
{
    const bool enough = probe->major >= CUDA_MAJOR_MIN;
    if (enough && cuda_architecture_fits(AQ_CUDA_ARCHITECTURES, probe->major, probe->minor)) return AQ_OK;
    snprintf(why, CUDA_TEXT_BYTES,
             CUDA_WANTED "GPU %d (%s) has compute capability %d.%d; this build is for sm_%s; build with "
                         "-DCMAKE_CUDA_ARCHITECTURES=%d%d if the toolkit still has it, or set device: cpu",
             probe->index, probe->name, probe->major, probe->minor, AQ_CUDA_ARCHITECTURES, probe->major, probe->minor);
    return AQ_NODEV;
}

enum aq_status cuda_probe(uint32_t index, struct cuda_probe *out, char *why)
{
    int count = 0;
    AQ_TRY(probe_driver(&count, why));
    if (index >= (uint32_t)count) {
        snprintf(why, CUDA_TEXT_BYTES, "device_index: %u: this machine has GPUs 0 to %d", index, count - 1);
        return AQ_NODEV;
    }
    struct cudaDeviceProp properties;
    int mode = cudaComputeModeDefault;
    cudaError_t error = cudaGetDeviceProperties(&properties, (int)index);
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&mode, cudaDevAttrComputeMode, (int)index);
    if (error != cudaSuccess) {
        snprintf(why, CUDA_TEXT_BYTES, "device_index: %u: GPU %u does not answer: %s; see nvidia-smi", index, index,
                 cudaGetErrorString(error));
        return AQ_NODEV;
    }
    *out = (struct cuda_probe){.index = (int)index,
                               .major = properties.major,
                               .minor = properties.minor,
                               .processors = properties.multiProcessorCount,
                               .memory_bytes = properties.totalGlobalMem};
    snprintf(out->name, sizeof out->name, "%.79s", properties.name);
    const unsigned char *u = (const unsigned char *)properties.uuid.bytes;
    snprintf(out->uuid, sizeof out->uuid, "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0],
             u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
    if (mode == cudaComputeModeProhibited) {
        snprintf(why, CUDA_TEXT_BYTES,
                 "device_index: %u: GPU %u (%s) is in compute mode PROHIBITED; nvidia-smi -i %u -c DEFAULT frees it",
                 index, index, out->name, index);
        return AQ_NODEV;
    }
    return probe_architecture(out, why);
}

enum { LOCK_PATH_BYTES = 256 };
#define LOCK_WAIT_NS UINT64_C(1000000000)

/*
 * The lock file of a GPU is one byte long for each owner there can be. A process holds a shared lock on the byte of its
 * owner, and gets it if no process holds another byte; the check is done under an exclusive lock of the file as such
 * (flock, which the others do not see), so that two cannot come at once. The kernel drops both with the process.
 */
static enum aq_status take_locked(int fd, uint64_t byte, bool *taken)
{
    struct flock mine = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = (off_t)byte, .l_len = 1};
    struct flock below = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = (off_t)byte};
    struct flock above = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)byte + 1};
    AQ_SYS(fcntl(fd, F_OFD_GETLK, &below)); /* byte is at least 1: a length of 0 would be the whole file */
    AQ_SYS(fcntl(fd, F_OFD_GETLK, &above));
    *taken = below.l_type == F_UNLCK && above.l_type == F_UNLCK;
    if (*taken) AQ_SYS(fcntl(fd, F_OFD_SETLK, &mine));
    return AQ_OK;
}

/*
 * The file, created if it does not exist. Not just by O_CREAT: in a sticky folder (/tmp) the kernel refuses that for a
 * file of another user (fs.protected_regular), with just EACCES.
 */
static int lock_file(const char *path)
{
    enum { TURNS = 8 }; /* of files that come and go between the two calls */
    for (int turn = 0; turn < TURNS; turn++) {
        int file = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
        if (file >= 0 || errno != ENOENT) return file;
        file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (file >= 0 || errno != EEXIST) return file;
    }
    return -1;
}

/* Another user may create the file before us, in a folder that all may write to. Such a file is refused. */
static enum aq_status lock_file_is_ours(const char *path, int file)
{
    struct stat about = {0};
    if (file >= 0) {
        AQ_SYS(fstat(file, &about));
    } else if (errno != EACCES || lstat(path, &about) == -1) {
        return aq_fail_errno("device", "%s", path);
    }
    if (file >= 0 && S_ISREG(about.st_mode) && about.st_uid == geteuid() && (about.st_mode & 022) == 0) return AQ_OK;
    return aq_fail(AQ_IO, "device",
                   "the lock file %s belongs to user %u with mode %03o, not to user %u only: remove it, or set "
                   "AQ_GPU_LOCKS to your own folder",
                   path, (unsigned)about.st_uid, (unsigned)about.st_mode & 0777u, (unsigned)geteuid());
}

/* "job NAME, process PID", for people, of the last holder. */
static void holder_write(int file, const char *name)
{
    char text[CUDA_HOLDER_BYTES];
    const int bytes = snprintf(text, sizeof text, "%ld %.*s\n", (long)getpid(), CUDA_HOLDER_BYTES - 24, name);
    const bool written = aq_pwrite_all(file, text, (size_t)bytes, 0);
    (void)(ftruncate(file, written ? bytes : 0) == 0); /* the lock holds without the text */
}

void cuda_holder_text(const char *path, char *out, size_t bytes)
{
    char text[CUDA_HOLDER_BYTES] = "", *name = NULL;
    const int file = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    const ssize_t got = file >= 0 ? pread(file, text, sizeof text - 1, 0) : -1;
    if (file >= 0) close(file);
    text[got > 0 ? got : 0] = 0;
    text[strcspn(text, "\n")] = 0;
    const long pid = strtol(text, &name, 10);
    for (char *c = name; *c; c++)
        if (*c < ' ' || *c > '~') *c = '?';
    if (pid <= 0 || *name != ' ')
        snprintf(out, bytes, "see lsof");
    else if (kill((pid_t)pid, 0) == 0 || errno == EPERM)
        snprintf(out, bytes, "%s, process %ld", name + 1, pid);
    else
        snprintf(out, bytes, "%s; process %ld, which took it last, has ended, others of the job hold it: see lsof",
                 name + 1, pid);
}

/* While the bytes are looked at: a moment. Only this user's processes can open the file, and one may be stopped. */
static enum aq_status lock_whole(const char *path, int file)
{
    const uint64_t deadline = aq_clock_after(LOCK_WAIT_NS);
    while (flock(file, LOCK_EX | LOCK_NB) == -1) {
        const struct timespec moment = {.tv_nsec = 2000000};
        if (errno == EINTR) continue;
        if (errno != EWOULDBLOCK) return aq_fail_errno("device", "%s", path);
        if (aq_clock_ns() > deadline)
            return aq_fail(
                AQ_IO, "device",
                "the lock file %s is held by another process of this user for %u s: `fuser %s` names it; end "
                "it",
                path, (unsigned)(LOCK_WAIT_NS / 1000000000u), path);
        nanosleep(&moment, NULL);
    }
    return AQ_OK;
}

enum aq_status cuda_take_file(const char *path, uint64_t owner, const char *name, int *fd)
{
    bool taken = false;
    const int file = lock_file(path);
    enum aq_status status = lock_file_is_ours(path, file);
    if (file < 0) return status;
    if (status == AQ_OK) status = lock_whole(path, file);
    if (status == AQ_OK) status = take_locked(file, 1 + (owner & (UINT64_MAX >> 2)), &taken);
    if (status == AQ_OK && taken) holder_write(file, name ? name : "a job without a name");
    (void)flock(file, LOCK_UN);
    if (status == AQ_OK && taken) {
        *fd = file;
        return AQ_OK;
    }
    close(file);
    return status == AQ_OK ? AQ_REFUSED : status;
}

/* All users of a machine may write to /dev/shm, and so may a daemon that is confined to its folders (Landlock). */
const char *cuda_locks_folder(void)
{
    const char *folder = getenv("AQ_GPU_LOCKS");
    if (folder && *folder) return folder;
    return access("/dev/shm", F_OK) == 0 ? "/dev/shm" : "/tmp";
}

/*
 * The first folder in which the name is free or this user's. In a folder that all may write to, another user may have
 * taken it; then every process of this user takes the next.
 */
static enum aq_status take_somewhere(const struct cuda_probe *probe, uint64_t owner, const char *name, int *fd,
                                     char path[LOCK_PATH_BYTES])
{
    const char *const folders[] = {cuda_locks_folder(), "/tmp", "/var/tmp"};
    const bool chosen = getenv("AQ_GPU_LOCKS") && *getenv("AQ_GPU_LOCKS");
    const size_t count = chosen ? 1 : sizeof folders / sizeof *folders;
    enum aq_status status = AQ_IO;
    for (size_t i = 0; i < count; i++) {
        struct aq_error_hold hold;
        snprintf(path, LOCK_PATH_BYTES, "%s/aqpipe-gpu-%u-%s.lock", folders[i], (unsigned)geteuid(), probe->uuid);
        if (i + 1 == count) return cuda_take_file(path, owner, name, fd);
        aq_error_hold(&hold);
        status = cuda_take_file(path, owner, name, fd);
        aq_error_release(&hold);
        if (status == AQ_OK || status == AQ_REFUSED) break;
    }
    return status;
}

/* Does a process hold a lock of the kernel's on this file? `locks`: /proc/locks, which every user may read. */
static bool is_locked(const char *locks, const struct stat *about)
{
    char name[64];
    const int bytes = snprintf(name, sizeof name, " %02x:%02x:%llu ", major(about->st_dev), minor(about->st_dev),
                               (unsigned long long)about->st_ino);
    return bytes > 0 && bytes < (int)sizeof name && strstr(locks, name) != NULL;
}

/* "aqpipe-gpu-USER-UUID.lock" of a file that belongs to that other user, who alone can open it, and so lock it. */
static bool is_others(int folder, const char *file, const char *uuid, struct stat *about)
{
    static const char begin[] = "aqpipe-gpu-";
    char end[96], *rest;
    if (strncmp(file, begin, sizeof begin - 1) != 0) return false;
    snprintf(end, sizeof end, "-%.80s.lock", uuid);
    const unsigned long user = strtoul(file + sizeof begin - 1, &rest, 10);
    return strcmp(rest, end) == 0 && fstatat(folder, file, about, AT_SYMLINK_NOFOLLOW) == 0 &&
           S_ISREG(about->st_mode) && about->st_uid == user && about->st_uid != geteuid() &&
           (about->st_mode & 077) == 0;
}

bool cuda_other_user(const char *folder, const char *uuid, uid_t *user)
{
    enum { LOCKS_BYTES = 256 << 10 };
    struct stat about;
    void *locks = NULL;
    bool found = false;
    DIR *files = opendir(folder);
    const int fd = open("/proc/locks", O_RDONLY | O_CLOEXEC);
    ssize_t got = -1;
    if (files && fd >= 0 && aq_alloc(LOCKS_BYTES, &locks) == AQ_OK) got = aq_read_all(fd, locks, LOCKS_BYTES - 1);
    if (got > 0) ((char *)locks)[got] = 0;
    for (const struct dirent *file; got > 0 && !found && (file = readdir(files));) {
        found = is_others(dirfd(files), file->d_name, uuid, &about) && is_locked(locks, &about);
        if (found) *user = about.st_uid;
    }
    aq_free(locks);
    if (fd >= 0) close(fd);
    if (files) closedir(files);
    return found;
}

/* It is said, and no more: a lock that another user could hold against this one would keep this one off for ever. */
static void look_for_others(const struct cuda_probe *probe)
{
    uid_t user;
    if (!cuda_other_user(cuda_locks_folder(), probe->uuid, &user)) return;
    aq_log("device", AQ_LOG_WARNING,
           "GPU %d (%s) is also in use by a job of user %u: both share its time and memory; agree with that user, or "
           "take another GPU",
           probe->index, probe->name, (unsigned)user);
}

enum aq_status cuda_take(const struct cuda_probe *probe, uint64_t owner, const char *name, int *fd, char *why)
{
    char path[LOCK_PATH_BYTES], holder[2 * CUDA_HOLDER_BYTES];
    *fd = -1;
    if (owner == 0) return AQ_OK;
    const enum aq_status status = take_somewhere(probe, owner, name, fd, path);
    if (status == AQ_OK) look_for_others(probe);
    if (status == AQ_REFUSED) {
        cuda_holder_text(path, holder, sizeof holder);
        snprintf(why, CUDA_TEXT_BYTES,
                 "device_index: %d: GPU %d (%s) is in use by another job: %.180s (%.120s); stop that one (aqpipe "
                 "status), or take another GPU",
                 probe->index, probe->index, probe->name, holder, path);
    } else if (status != AQ_OK)
        snprintf(why, CUDA_TEXT_BYTES, "device_index: %d: the lock file %.200s of GPU %d cannot be used", probe->index,
                 path, probe->index);
    return status;
}
