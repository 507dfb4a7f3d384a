/*
 * control_group.h -- how much memory and processor time the control group (cgroup) of this process allows.
 *
 * A container, a systemd unit or a Slurm job is a control group. It may allow 1.5 processors on a machine that has 64:
 * the kernel then stops every thread of the group for the rest of each period of 100 ms, and more threads only wait for
 * each other longer.
 *
 * Source: Linux, Documentation/admin-guide/cgroup-v2.rst (cpu.max, memory.max) and cgroup-v1 (cpu.cfs_quota_us,
 * cpu.cfs_period_us, memory.limit_in_bytes); cgroups(7) for /proc/self/cgroup.
 */
#ifndef AQSGD_BASE_CONTROL_GROUP_H
#define AQSGD_BASE_CONTROL_GROUP_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct aq_control_group {
    uint64_t memory_bytes; /* UINT64_MAX: no limit                                    */
    uint32_t cores;        /* whole processors, rounded up, at least 1; UINT32_MAX: no limit */
};

/*
 * The smallest limits of this process's group and of those above it. `root` is the folder that has proc/self/cgroup and
 * sys/fs/cgroup: "" for this machine, another one in tests. A file that is missing, cannot be read or holds no number
 * is no limit. Locking: any thread.
 */
struct aq_control_group aq_control_group(const char *root);

/*
 * The limits of this process on this machine. The first call reads them, and later ones return the same: a job asks
 * often, and each reading opens about ten files. Locking: any thread.
 */
struct aq_control_group aq_control_group_here(void);

#ifdef __cplusplus
}
#endif
#endif
