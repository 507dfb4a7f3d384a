/*
 * cuda_probe.c -- which GPU there is, and in one line why there is none that can be used.
 *
 * The program links CUDA's runtime statically, so that it starts on any machine; whether there is a driver shows here.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cuda_device.h"

enum aq_status cuda_failed(cudaError_t error, const char *call, const char *file, int line)
{
    if (error == cudaErrorMemoryAllocation)
        return aq_fail(AQ_NOMEM, "device",
                       "%s:%d: %s: the GPU's memory ran out beside the plan, where the CUDA context, libraries and "
                       "other processes take theirs; see nvidia-smi, take another GPU, or lower train.micro_batch",
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
                             "later, or say device: cpu",
                 want);
    else if (error == cudaErrorInsufficientDriver)
        snprintf(why, CUDA_TEXT_BYTES,
                 CUDA_WANTED "the driver is for CUDA %s, this build for %s; install a later driver, build with "
                             "that toolkit, or say device: cpu",
                 have, want);
    else if (none)
        snprintf(why, CUDA_TEXT_BYTES,
                 CUDA_WANTED "the driver (CUDA %s) shows no GPU; see nvidia-smi and CUDA_VISIBLE_DEVICES, or say "
                             "device: cpu",
                 have);
    else
        snprintf(why, CUDA_TEXT_BYTES, CUDA_WANTED "the driver (CUDA %s) says: %s; see nvidia-smi", have,
                 cudaGetErrorString(error));
    return none ? AQ_NOTFOUND : AQ_NODEV;
}

/*
 * Does a build for this list ("80-real,90-real,100") run there? Machine code does on its own major number from its own
 * minor number on; PTX, which comes along where the list does not say real, on all that is newer.
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
                         "-DCMAKE_CUDA_ARCHITECTURES=%d%d where the toolkit still has it, or say device: cpu",
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

/*
 * The lock file of a GPU is one byte long for each owner there can be. Who wants it holds a shared lock on the byte of
 * its owner, and gets it where nobody holds any other; the looking is done under an exclusive lock of the file as such
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
 * The file, made where there is none. Not by O_CREAT alone: in a sticky folder (/tmp) the kernel refuses that for a
 * file of another user (fs.protected_regular), whoever may write it.
 */
static int lock_file(const char *path)
{
    enum { TURNS = 8 }; /* of files that come and go between the two calls */
    for (int turn = 0; turn < TURNS; turn++) {
        int file = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
        if (file >= 0 || errno != ENOENT) return file;
        file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
        if (file >= 0) (void)fchmod(file, 0666); /* of whoever comes first: others must be able to lock it too */
        if (file >= 0 || errno != EEXIST) return file;
    }
    return -1;
}

enum aq_status cuda_take_file(const char *path, uint64_t owner, int *fd)
{
    bool taken = false;
    const int file = lock_file(path);
    if (file < 0) return aq_fail_errno("device", "%s", path);
    enum aq_status status = AQ_OK;
    while (flock(file, LOCK_EX) == -1 && status == AQ_OK)
        if (errno != EINTR) status = aq_fail_errno("device", "%s", path);
    if (status == AQ_OK) status = take_locked(file, 1 + (owner & (UINT64_MAX >> 2)), &taken);
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

enum aq_status cuda_take(const struct cuda_probe *probe, uint64_t owner, int *fd, char *why)
{
    char path[256];
    *fd = -1;
    if (owner == 0) return AQ_OK;
    snprintf(path, sizeof path, "%s/aqpipe-gpu-%s.lock", cuda_locks_folder(), probe->uuid);
    const enum aq_status status = cuda_take_file(path, owner, fd);
    if (status == AQ_REFUSED)
        snprintf(why, CUDA_TEXT_BYTES,
                 "device_index: %d: GPU %d (%s) is in use by another job (%s); stop that one (aqpipe status), or take "
                 "another GPU",
                 probe->index, probe->index, probe->name, path);
    else if (status != AQ_OK)
        snprintf(why, CUDA_TEXT_BYTES, "device_index: %d: the lock file %s of GPU %d cannot be used", probe->index,
                 path, probe->index);
    return status;
}
