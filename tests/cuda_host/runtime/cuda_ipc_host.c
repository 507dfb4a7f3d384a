/*
 * cuda_ipc_host.c -- CUDA's memory between processes, on the host: as strict as NVIDIA's manual.
 *
 * What is exported becomes a memory file in its place, so that its address stays. Its handle names an abstract socket
 * of this machine, whose thread hands the file's descriptor to whoever connects; who has mapped it keeps the connection
 * open. Only the beginning of an allocation of whole pieces of 2 MiB has a handle; the process that made it cannot open
 * it; memory that is freed while another process has it mapped is told on stderr, for that is undefined on a GPU.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "cuda_runtime_api.h"

enum { EXPORTS_MAX = 64, GUESTS_MAX = 16, HEAD_BYTES = 256, PAGE_BYTES = 4096, PIECE_BYTES = 2 << 20 };

struct handle {
    int pid, serial;
    uint64_t bytes;
};

struct export
{
    void *memory; /* NULL: free */
    struct handle handle;
    int file, listener, guests[GUESTS_MAX];
    int guest_count;
    pthread_t thread;
};

static struct mapping {
    void *memory;
    size_t bytes;
    int connection;
} mappings[EXPORTS_MAX];
static struct export exports[EXPORTS_MAX];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_int serials;

static bool is_off(void)
{
    const char *wish = getenv("CUDA_HOST_IPC");
    return wish && strcmp(wish, "0") == 0;
}

static socklen_t address_of(const struct handle *handle, struct sockaddr_un *out)
{
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    const int bytes =
        snprintf(out->sun_path + 1, sizeof out->sun_path - 1, "cuda-ipc-%d-%d", handle->pid, handle->serial);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)bytes);
}

static bool hand_over(int guest, int file)
{
    char byte = 1;
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {{0}};
    struct iovec data = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof file);
    memcpy(CMSG_DATA(head), &file, sizeof file);
    return sendmsg(guest, &message, MSG_NOSIGNAL) == 1;
}

static void *serve(void *context)
{
    struct export *export = context;
    for (;;) {
        const int guest = accept(export->listener, NULL, NULL);
        if (guest < 0) return NULL; /* it was shut down */
        (void)pthread_mutex_lock(&lock);
        if (export->guest_count < GUESTS_MAX && hand_over(guest, export->file))
            export->guests[export->guest_count++] = guest;
        else
            close(guest);
        (void)pthread_mutex_unlock(&lock);
    }
}

/* The memory, as a file in its place: its pages whole, of which it is all but the first HEAD_BYTES and a rest. */
static bool become_file(struct export *export, void *memory, size_t bytes)
{
    cuda_runtime_host_wrote(memory, bytes); /* by others, it may be */
    memory = (char *)memory - HEAD_BYTES;
    bytes += PAGE_BYTES;
    export->file = memfd_create("cuda-ipc", MFD_CLOEXEC);
    if (export->file < 0 || ftruncate(export->file, (off_t)bytes) != 0) return false;
    for (size_t at = 0; at < bytes;) {
        const ssize_t n = pwrite(export->file, (const char *)memory + at, bytes - at, (off_t)at);
        if (n <= 0) return false;
        at += (size_t)n;
    }
    return mmap(memory, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, export->file, 0) == memory;
}

static bool export_begin(struct export *export, void *memory, size_t bytes)
{
    struct sockaddr_un address;
    *export = (struct export){.handle = {(int)getpid(), atomic_fetch_add(&serials, 1), bytes}};
    const socklen_t length = address_of(&export->handle, &address);
    export->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (export->listener < 0 || bind(export->listener, (struct sockaddr *)&address, length) != 0 ||
        listen(export->listener, GUESTS_MAX) != 0)
        return false;
    export->memory = memory;
    return become_file(export, memory, bytes) && pthread_create(&export->thread, NULL, serve, export) == 0;
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *memory)
{
    size_t bytes;
    struct export *export = NULL;
    if (is_off() || !memory || (uintptr_t)memory % PAGE_BYTES != HEAD_BYTES) return cudaErrorInvalidValue;
    (void)cuda_runtime_host_finish();
    bytes = cuda_runtime_host_size(memory);
    if (bytes == 0 || bytes % PIECE_BYTES) return cudaErrorInvalidValue;
    (void)pthread_mutex_lock(&lock);
    for (int i = 0; i < EXPORTS_MAX && !export; i++)
        if (exports[i].memory == memory) export = &exports[i];
    for (int i = 0; i < EXPORTS_MAX && !export; i++)
        if (!exports[i].memory && export_begin(&exports[i], memory, bytes)) export = &exports[i];
    (void)pthread_mutex_unlock(&lock);
    if (!export) return cudaErrorMemoryAllocation;
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &export->handle, sizeof export->handle);
    return cudaSuccess;
}

static int take_over(int connection)
{
    char byte;
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {{0}};
    struct iovec data = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    int file = -1;
    if (recvmsg(connection, &message, MSG_CMSG_CLOEXEC) != 1) return -1;
    const struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    if (head && head->cmsg_type == SCM_RIGHTS) memcpy(&file, CMSG_DATA(head), sizeof file);
    return file;
}

static cudaError_t map(const struct handle *handle, struct mapping *mapping)
{
    struct sockaddr_un address;
    const socklen_t length = address_of(handle, &address);
    const int connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connection < 0) return cudaErrorMemoryAllocation;
    const int file = connect(connection, (struct sockaddr *)&address, length) == 0 ? take_over(connection) : -1;
    void *memory = MAP_FAILED;
    if (file >= 0) memory = mmap(NULL, handle->bytes + PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (file >= 0) close(file);
    if (memory == MAP_FAILED) {
        close(connection);
        return cudaErrorMapBufferObjectFailed;
    }
    *mapping = (struct mapping){(char *)memory + HEAD_BYTES, handle->bytes, connection};
    return cudaSuccess;
}

cudaError_t cudaIpcOpenMemHandle(void **out, cudaIpcMemHandle_t handle, unsigned flags)
{
    struct handle named;
    struct mapping mapping;
    memcpy(&named, &handle, sizeof named);
    if (is_off() || flags != cudaIpcMemLazyEnablePeerAccess || named.bytes == 0 || named.bytes % PIECE_BYTES)
        return cudaErrorInvalidValue;
    if (named.pid == (int)getpid()) return cudaErrorDeviceUninitialized; /* "invalid device context" */
    cudaError_t error = map(&named, &mapping); /* outside of the lock: the other process may be mapping ours */
    if (error != cudaSuccess) return error;
    error = cudaErrorMemoryAllocation;
    (void)pthread_mutex_lock(&lock);
    for (int i = 0; i < EXPORTS_MAX && error != cudaSuccess; i++) {
        if (mappings[i].memory) continue;
        mappings[i] = mapping;
        *out = mapping.memory;
        error = cudaSuccess;
    }
    (void)pthread_mutex_unlock(&lock);
    return error;
}

cudaError_t cudaIpcCloseMemHandle(void *memory)
{
    cudaError_t error = cudaErrorInvalidValue;
    (void)cuda_runtime_host_finish(); /* copies from it */
    (void)pthread_mutex_lock(&lock);
    for (int i = 0; i < EXPORTS_MAX && memory; i++) {
        if (mappings[i].memory != memory) continue;
        (void)munmap((char *)memory - HEAD_BYTES, mappings[i].bytes + PAGE_BYTES);
        close(mappings[i].connection);
        mappings[i] = (struct mapping){0};
        error = cudaSuccess;
    }
    (void)pthread_mutex_unlock(&lock);
    return error;
}

static int mapped(const struct export *export)
{
    int count = 0;
    for (int i = 0; i < export->guest_count; i++) {
        char byte;
        count += recv(export->guests[i], &byte, 1, MSG_DONTWAIT) != 0; /* 0: it has gone */
    }
    return count;
}

bool cuda_ipc_host_export_ends(void *memory)
{
    struct export *export = NULL;
    (void)pthread_mutex_lock(&lock);
    for (int i = 0; i < EXPORTS_MAX && !export; i++)
        if (exports[i].memory == memory) export = &exports[i];
    (void)pthread_mutex_unlock(&lock);
    if (!export) return false;
    (void)shutdown(export->listener, SHUT_RDWR);
    (void)pthread_join(export->thread, NULL);
    const int others = mapped(export);
    if (others) fprintf(stderr, "cudaFree: %d processes have mapped memory that is freed\n", others);
    for (int i = 0; i < export->guest_count; i++)
        close(export->guests[i]);
    close(export->listener);
    close(export->file);
    (void)pthread_mutex_lock(&lock);
    *export = (struct export){0};
    (void)pthread_mutex_unlock(&lock);
    return others == 0;
}

bool cuda_ipc_host_is_mapped(const void *memory)
{
    bool found = false;
    (void)pthread_mutex_lock(&lock);
    for (int i = 0; i < EXPORTS_MAX; i++)
        found |= mappings[i].memory && (uintptr_t)memory - (uintptr_t)mappings[i].memory < mappings[i].bytes;
    (void)pthread_mutex_unlock(&lock);
    return found;
}
