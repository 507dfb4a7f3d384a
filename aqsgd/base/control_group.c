/*
 * control_group.c -- see the header. A group's folder is the place in /proc/self/cgroup below the mount of its
 * controllers. In a container that place may name a folder of the host, which is not there: the mount itself is then
 * the container's group. So each folder from the place up to the mount is asked, and those that are missing are passed.
 */
#include "aqsgd/base/control_group.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { PATH_BYTES = 4096, LINE_BYTES = 4096 };

/* The numbers at the beginning of `folder`/`name`: how many of two there are. "max" is none. */
static int numbers(const char *folder, const char *name, long long found[2])
{
    char path[PATH_BYTES];
    const int bytes = snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = bytes > 0 && bytes < PATH_BYTES ? fopen(path, "re") : NULL;
    if (!file) return 0;
    const int count = fscanf(file, "%lld %lld", &found[0], &found[1]);
    fclose(file);
    return count < 0 ? 0 : count;
}

static void least_memory(struct aq_control_group *group, long long bytes)
{
    if (bytes >= 0 && (uint64_t)bytes < group->memory_bytes) group->memory_bytes = (uint64_t)bytes;
}

static void least_cores(struct aq_control_group *group, long long quota, long long period)
{
    if (quota <= 0 || period <= 0) return; /* version 1 writes -1 where there is no limit */
    const long long cores = quota / period + (quota % period != 0);
    if (cores < (long long)group->cores) group->cores = (uint32_t)cores;
}

typedef void ask_fn(const char *folder, struct aq_control_group *group);

/* Version 2 has both in one folder. */
static void ask_both(const char *folder, struct aq_control_group *group)
{
    long long found[2];
    if (numbers(folder, "memory.max", found) >= 1) least_memory(group, found[0]);
    if (numbers(folder, "cpu.max", found) == 2) least_cores(group, found[0], found[1]);
}

/* Version 1 has each below the mount of its controller. */
static void ask_memory(const char *folder, struct aq_control_group *group)
{
    long long found[2];
    if (numbers(folder, "memory.limit_in_bytes", found) >= 1) least_memory(group, found[0]);
}

static void ask_cores(const char *folder, struct aq_control_group *group)
{
    long long quota[2], period[2];
    if (numbers(folder, "cpu.cfs_quota_us", quota) >= 1 && numbers(folder, "cpu.cfs_period_us", period) >= 1)
        least_cores(group, quota[0], period[0]);
}

static void climb(const char *mount, const char *place, ask_fn *ask, struct aq_control_group *group)
{
    char folder[PATH_BYTES];
    const int above = snprintf(folder, sizeof folder, "%s", mount);
    if (above <= 0 || above >= PATH_BYTES) return;
    /* "/..": outside of what this process may see. "/" is the mount itself. */
    const bool inside = place[0] == '/' && place[1] != '\0' && !strstr(place, "/..");
    if (inside && snprintf(folder + above, sizeof folder - (size_t)above, "%s", place) >= PATH_BYTES - above) return;
    for (;;) {
        ask(folder, group);
        char *slash = strrchr(folder + above, '/');
        if (!slash) return;
        *slash = '\0';
    }
}

/* A line of proc/self/cgroup: "0::/place" in version 2, "4:cpu,cpuacct:/place" in version 1. */
static void take_line(const char *root, char *line, struct aq_control_group *group)
{
    char mount[PATH_BYTES];
    char *kinds = strchr(line, ':'), *place = kinds ? strchr(kinds + 1, ':') : NULL;
    if (!place) return;
    *place++ = '\0';
    place[strcspn(place, "\n")] = '\0';
    if (kinds[1] == '\0') {
        static const char *const mounts[] = {"sys/fs/cgroup", "sys/fs/cgroup/unified"};
        for (size_t i = 0; i < sizeof mounts / sizeof *mounts; i++) {
            if (snprintf(mount, sizeof mount, "%s/%s", root, mounts[i]) < PATH_BYTES)
                climb(mount, place, ask_both, group);
        }
        return;
    }
    char *rest = kinds + 1;
    for (const char *kind; (kind = strsep(&rest, ",")) != NULL;) {
        ask_fn *const ask = strcmp(kind, "cpu") == 0 ? ask_cores : strcmp(kind, "memory") == 0 ? ask_memory : NULL;
        if (ask && snprintf(mount, sizeof mount, "%s/sys/fs/cgroup/%s", root, kind) < PATH_BYTES)
            climb(mount, place, ask, group);
    }
}

struct aq_control_group aq_control_group(const char *root)
{
    struct aq_control_group group = {.memory_bytes = UINT64_MAX, .cores = UINT32_MAX};
    char path[PATH_BYTES], line[LINE_BYTES];
    const int bytes = snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *file = bytes > 0 && bytes < PATH_BYTES ? fopen(path, "re") : NULL;
    if (!file) return group;
    while (fgets(line, sizeof line, file))
        take_line(root, line, &group);
    fclose(file);
    return group;
}

struct aq_control_group aq_control_group_here(void)
{
    static _Atomic uint64_t memory_bytes;
    static _Atomic uint32_t cores; /* 0: not read yet. Threads that come together all read. */
    struct aq_control_group group = {.cores = atomic_load_explicit(&cores, memory_order_acquire)};
    if (group.cores == 0) {
        group = aq_control_group("");
        atomic_store_explicit(&memory_bytes, group.memory_bytes, memory_order_relaxed);
        atomic_store_explicit(&cores, group.cores, memory_order_release);
    }
    group.memory_bytes = atomic_load_explicit(&memory_bytes, memory_order_relaxed);
    return group;
}
