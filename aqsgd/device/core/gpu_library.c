/*
 * gpu_library.c -- see the header. This file knows where CUDA's libraries are; gpu_functions.def knows what is taken.
 *
 * PyPI's packages for CUDA 13 put libraries in nvidia/cu13/lib, or in a folder of their own (nvidia/nccl/lib); those
 * for CUDA 12 always in the latter. The version of each library is 10000 major + 100 minor + patch.
 */
#include "aqsgd/gpu_library.h"

#include <dlfcn.h>
#include <glob.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu_search.h"

#ifndef AQ_CUDA_MAJOR
#define AQ_CUDA_MAJOR 13 /* of a build without CUDA: tests search with stand-ins */
#endif
#ifndef AQ_GPU_FOLDERS
#define AQ_GPU_FOLDERS "" /* where the build machine had them, separated by colons */
#endif
#define TEXT_OF_(number) #number
#define TEXT_OF(number)  TEXT_OF_(number)
#define CUDA             TEXT_OF(AQ_CUDA_MAJOR)
#if AQ_CUDA_MAJOR >= 13
#define CUBLAS_PACKAGE "nvidia-cublas"
#else
#define CUBLAS_PACKAGE "nvidia-cublas-cu" CUDA
#endif

enum { PATH_MAX_BYTES = 4096, TRIED_BYTES = 512, PATTERN_BYTES = 2 * PATH_MAX_BYTES + 128 };

static const struct {
    const char *name, *file, *folder, *package, *version;
} rows[AQ_GPU_LIBRARIES] = {
    [AQ_GPU_CUBLASLT] = {"cuBLASLt", "libcublasLt.so." CUDA, "cublas", CUBLAS_PACKAGE, "cublasLtGetVersion"},
    [AQ_GPU_NCCL] = {"NCCL", "libnccl.so.2", "nccl", "nvidia-nccl-cu" CUDA, "ncclGetVersion"},
    [AQ_GPU_CUDNN] = {"cuDNN", "libcudnn.so.9", "cudnn", "nvidia-cudnn-cu" CUDA, "cudnnGetVersion"},
};

/* ---- folders ---- */

/* Each absolute folder of a list that is separated by colons. */
static bool visit_list(const char *list, gpu_visit *visit, void *context)
{
    char folder[PATH_MAX_BYTES];
    for (const char *at = list, *end = NULL; at && *at; at = *end ? end + 1 : end) {
        end = strchrnul(at, ':');
        const size_t bytes = (size_t)(end - at);
        if (*at != '/' || bytes >= sizeof folder) continue;
        memcpy(folder, at, bytes);
        folder[bytes] = 0;
        if (visit(context, folder)) return true;
    }
    return false;
}

/* A pattern of glob(3), or the pattern itself where nothing fits it, so that a person reads where was looked. */
static bool visit_pattern(const char *pattern, gpu_visit *visit, void *context)
{
    glob_t found;
    bool stop = false;
    if (glob(pattern, GLOB_NOCHECK, NULL, &found) != 0) return visit(context, pattern);
    for (size_t i = 0; i < found.gl_pathc && !stop; i++)
        stop = visit(context, found.gl_pathv[i]);
    globfree(&found);
    return stop;
}

/* The pattern that only this path fits. False: the path is too long. */
static bool pattern_of(const char *path, char out[2 * PATH_MAX_BYTES])
{
    size_t used = 0;
    if (strlen(path) >= PATH_MAX_BYTES) return false;
    for (const char *at = path; *at; at++) {
        if (strchr("*?[]\\", *at)) out[used++] = '\\';
        out[used++] = *at;
    }
    out[used] = 0;
    return true;
}

/* PyPI's packages below a folder "nvidia" (a pattern): of this CUDA version, then the library's own. */
static bool visit_packages(const char *nvidia, const char *own, gpu_visit *visit, void *context)
{
    char pattern[PATTERN_BYTES];
    snprintf(pattern, sizeof pattern, "%.8240s/cu" CUDA "/lib", nvidia);
    if (visit_pattern(pattern, visit, context)) return true;
    snprintf(pattern, sizeof pattern, "%.8240s/%.40s/lib", nvidia, own);
    return visit_pattern(pattern, visit, context);
}

/* As in site-packages: aqpipe/bin/aqpipe, nvidia. */
bool gpu_beside_visit(const char *program, enum aq_gpu_library which, gpu_visit *visit, void *context)
{
    char path[PATH_MAX_BYTES], pattern[2 * PATH_MAX_BYTES], nvidia[PATTERN_BYTES];
    if (snprintf(path, sizeof path, "%s", program) >= (int)sizeof path) return false;
    for (int up = 0; up < 3; up++) { /* the program, bin, aqpipe */
        char *slash = strrchr(path, '/');
        if (!slash) return false;
        *slash = 0;
    }
    /* Elsewhere the folder around a package may be any user's, as /tmp is. */
    const char *name = strrchr(path, '/');
    if (!name || (strcmp(name, "/site-packages") != 0 && strcmp(name, "/dist-packages") != 0)) return false;
    snprintf(nvidia, sizeof nvidia, "%s/nvidia", path);
    if (access(nvidia, F_OK) != 0 || !pattern_of(path, pattern)) return false;
    snprintf(nvidia, sizeof nvidia, "%s/nvidia", pattern);
    return visit_packages(nvidia, rows[which].folder, visit, context);
}

static bool visit_beside(enum aq_gpu_library which, gpu_visit *visit, void *context)
{
    char path[PATH_MAX_BYTES];
    const ssize_t bytes = readlink("/proc/self/exe", path, sizeof path - 1);
    if (bytes <= 0) return false;
    path[bytes] = 0;
    return gpu_beside_visit(path, which, visit, context);
}

static bool visit_environments(const char *own, gpu_visit *visit, void *context)
{
    const char *const prefixes[] = {getenv("VIRTUAL_ENV"), getenv("CONDA_PREFIX")};
    char prefix[2 * PATH_MAX_BYTES], pattern[PATTERN_BYTES];
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        if (!prefixes[i] || prefixes[i][0] != '/' || !pattern_of(prefixes[i], prefix)) continue;
        snprintf(pattern, sizeof pattern, "%s/lib/python3*/site-packages/nvidia", prefix);
        if (visit_packages(pattern, own, visit, context)) return true;
        snprintf(pattern, sizeof pattern, "%s/lib", prefixes[i]);
        if (i == 1 && visit(context, pattern)) return true;
    }
    return false;
}

bool gpu_folders_visit(enum aq_gpu_library which, gpu_visit *visit, void *context)
{
    static const char toolkits[] = "/usr/local/cuda/lib64:/usr/local/cuda-" CUDA "/lib64:/opt/cuda/lib64";
    const char *own = rows[which].folder;
    return visit_list(getenv("AQ_CUDA_LIBRARIES"), visit, context) || visit_beside(which, visit, context) ||
           visit(context, NULL) || visit_environments(own, visit, context) || visit_list(toolkits, visit, context) ||
           visit_list(AQ_GPU_FOLDERS, visit, context);
}

/* ---- loading ---- */

struct search {
    enum aq_gpu_library which;
    const char *const *names;
    void **addresses;
    uint32_t count;
    void *handle;
    char tried[TRIED_BYTES];
};

static void tried_add(struct search *search, const char *what)
{
    const size_t used = strlen(search->tried), room = sizeof search->tried - used;
    if (strlen(what) + 3 > room) return;
    snprintf(search->tried + used, room, "%s%s", used ? ", " : "", what);
}

/* The name of a function that it has not; NULL: it has all. */
static const char *function_missing(const struct search *search, void *handle)
{
    for (uint32_t i = 0; i < search->count; i++)
        if (!dlsym(handle, search->names[i])) return search->names[i];
    return NULL;
}

/* One candidate: a folder, or NULL for the loader's own search. True: found. */
static bool candidate(void *context, const char *folder)
{
    struct search *search = context;
    const char *file = rows[search->which].file, *missing;
    char path[PATTERN_BYTES], text[PATTERN_BYTES + 64];
    snprintf(path, sizeof path, "%.4000s%s%s", folder ? folder : "", folder ? "/" : "", file);
    if (folder && access(path, F_OK) != 0) {
        tried_add(search, folder);
        return false;
    }
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        const char *why = dlerror();
        if (folder)
            tried_add(search, why ? why : path);
        else
            tried_add(search, "the loader's folders (LD_LIBRARY_PATH, ld.so.cache)");
        return false;
    }
    missing = function_missing(search, handle);
    if (missing) {
        snprintf(text, sizeof text, "%.300s (too old: it has no %.60s)", path, missing);
        tried_add(search, text);
        dlclose(handle);
        return false;
    }
    search->handle = handle;
    return true;
}

static enum aq_status search_run(struct search *search)
{
    if (gpu_folders_visit(search->which, candidate, search)) return AQ_OK;
    return aq_fail(AQ_NODEV, "device",
                   "%s is not on this machine (%s); tried: %s; pip install %s next to aqpipe, install the CUDA " CUDA
                   " toolkit, or set AQ_CUDA_LIBRARIES to its folder",
                   rows[search->which].name, rows[search->which].file, search->tried, rows[search->which].package);
}

enum aq_status aq_gpu_library_open(enum aq_gpu_library which, const char *const *names, void **addresses,
                                   uint32_t count)
{
    struct search search = {.which = which, .names = names, .count = count};
    AQ_TRY(search_run(&search));
    for (uint32_t i = 0; i < count; i++)
        addresses[i] = dlsym(search.handle, names[i]);
    return AQ_OK;
}

/* NCCL writes its version to an int; the others return a size_t. 0: unknown. */
static uint64_t version_of(enum aq_gpu_library which, void *handle)
{
    int (*written)(int *);
    size_t (*returned)(void);
    int version = 0;
    void *address = dlsym(handle, rows[which].version);
    if (!address) return 0;
    if (which != AQ_GPU_NCCL) {
        *(void **)&returned = address;
        return returned();
    }
    *(void **)&written = address;
    return written(&version) == 0 && version > 0 ? (uint64_t)version : 0;
}

bool aq_gpu_library_look(enum aq_gpu_library which, char *text, size_t bytes)
{
    struct search search = {.which = which, .names = &rows[which].version, .count = 1};
    struct aq_error_hold hold;
    struct link_map *map = NULL;
    aq_error_hold(&hold);
    const enum aq_status status = search_run(&search);
    aq_error_release(&hold);
    if (status != AQ_OK) {
        snprintf(text, bytes, "%s", hold.text);
        return false;
    }
    const uint64_t version = version_of(which, search.handle);
    const bool known = dlinfo(search.handle, RTLD_DI_LINKMAP, &map) == 0 && map;
    snprintf(text, bytes, "%s %u.%u.%u (%s)", rows[which].name, (unsigned)(version / 10000),
             (unsigned)(version / 100 % 100), (unsigned)(version % 100), known ? map->l_name : rows[which].file);
    return true;
}

/* ---- for confinement ---- */

struct visitor {
    void (*visit)(void *context, const char *folder);
    void *context;
};

static bool visit_existing(void *context, const char *folder)
{
    const struct visitor *visitor = context;
    if (folder && access(folder, F_OK) == 0) visitor->visit(visitor->context, folder);
    return false;
}

void aq_gpu_library_folders(void (*visit)(void *context, const char *folder), void *context)
{
    struct visitor visitor = {visit, context};
    for (int which = 0; AQ_WITH_CUDA && which < AQ_GPU_LIBRARIES; which++)
        (void)gpu_folders_visit((enum aq_gpu_library)which, visit_existing, &visitor);
}
