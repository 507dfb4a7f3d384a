/*
 * test_control_group.c -- limits of control groups, read from folders as Linux lays them out: version 2, version 1, a
 * container that sees its own group only, and files that hold no number.
 */
#include "aqsgd/base/control_group.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "aqsgd/base/thread.h"
#include "remove_tree.h"

static char root[64];

static int setup(void **state)
{
    (void)state;
    snprintf(root, sizeof root, "/tmp/aqpipe-group-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    return remove_tree(root);
}

/* Writes `text` to root/name; the folders of the name are made. */
static void put(const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", root, name);
    for (char *slash = strchr(path + strlen(root) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(path, 0700);
        *slash = '/';
    }
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void expect(uint64_t memory_bytes, uint32_t cores)
{
    const struct aq_control_group group = aq_control_group(root);
    assert_int_equal(group.memory_bytes, memory_bytes);
    assert_int_equal(group.cores, cores);
}

static void test_nothing_to_read_is_no_limit(void **state)
{
    (void)state;
    expect(UINT64_MAX, UINT32_MAX);
    put("proc/self/cgroup", "0::/user.slice\n");
    expect(UINT64_MAX, UINT32_MAX);
    put("sys/fs/cgroup/user.slice/cpu.max", "max 100000\n");
    put("sys/fs/cgroup/user.slice/memory.max", "max\n");
    expect(UINT64_MAX, UINT32_MAX);
}

static void test_version_2_has_the_least_of_all_above(void **state)
{
    (void)state;
    put("proc/self/cgroup", "0::/system.slice/job.service/step\n");
    put("sys/fs/cgroup/system.slice/job.service/step/cpu.max", "max 100000\n");
    put("sys/fs/cgroup/system.slice/job.service/cpu.max", "150000 100000\n");
    put("sys/fs/cgroup/system.slice/cpu.max", "800000 100000\n");
    put("sys/fs/cgroup/system.slice/job.service/step/memory.max", "5000\n");
    put("sys/fs/cgroup/system.slice/memory.max", "4096\n");
    expect(4096, 2); /* 1.5 processors: two threads finish sooner than one */
    put("sys/fs/cgroup/system.slice/job.service/step/cpu.max", "20000 100000\n");
    expect(4096, 1);
}

static void test_version_1_has_a_mount_for_each_controller(void **state)
{
    (void)state;
    put("proc/self/cgroup", "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n1:name=systemd:/docker/abc\n");
    put("sys/fs/cgroup/cpu/docker/abc/cpu.cfs_quota_us", "-1\n");
    put("sys/fs/cgroup/cpu/docker/abc/cpu.cfs_period_us", "100000\n");
    put("sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "9223372036854771712\n");
    expect(9223372036854771712u, UINT32_MAX);
    put("sys/fs/cgroup/cpu/docker/abc/cpu.cfs_quota_us", "300000\n");
    put("sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "1073741824\n");
    expect(1073741824, 3);
}

/* The place is the host's; what is mounted is the container's own group. */
static void test_a_container_sees_its_group_at_the_mount(void **state)
{
    (void)state;
    put("proc/self/cgroup", "0::/../../kubepods/pod-7\n");
    put("sys/fs/cgroup/cpu.max", "400000 100000\n");
    put("sys/fs/cgroup/memory.max", "8192\n");
    expect(8192, 4);
    put("proc/self/cgroup", "4:cpu,cpuacct:/kubepods/pod-7\n");
    put("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "50000\n");
    put("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    expect(UINT64_MAX, 1);
}

static void test_bytes_that_are_no_limits(void **state)
{
    (void)state;
    char line[5000];
    memset(line, 'x', sizeof line - 1);
    line[sizeof line - 1] = '\0';
    memcpy(line, "0::/", 4);
    put("proc/self/cgroup", line);
    expect(UINT64_MAX, UINT32_MAX);
    put("proc/self/cgroup", "no colon\n:\n::\n0::\n0::relative\n4:cpu\n0::/a\n");
    put("sys/fs/cgroup/a/cpu.max", "0 0\n");
    put("sys/fs/cgroup/a/memory.max", "-7\n");
    expect(UINT64_MAX, UINT32_MAX);
    put("sys/fs/cgroup/a/cpu.max", "9223372036854775807 1\n");
    put("sys/fs/cgroup/a/memory.max", "99999999999999999999999999\n");
    expect(INT64_MAX, UINT32_MAX);
    put("sys/fs/cgroup/a/cpu.max", "5");
    expect(INT64_MAX, UINT32_MAX);
}

static void test_threads_are_no_more_than_this_machine_allows(void **state)
{
    (void)state;
    const struct aq_control_group group = aq_control_group("");
    for (int i = 0; i < 2; i++) { /* read, then kept */
        const struct aq_control_group here = aq_control_group_here();
        assert_int_equal(here.cores, group.cores);
        assert_int_equal(here.memory_bytes, group.memory_bytes);
    }
    assert_in_range(aq_thread_cores(), 1, group.cores);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_nothing_to_read_is_no_limit, setup, teardown),
        cmocka_unit_test_setup_teardown(test_version_2_has_the_least_of_all_above, setup, teardown),
        cmocka_unit_test_setup_teardown(test_version_1_has_a_mount_for_each_controller, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_container_sees_its_group_at_the_mount, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bytes_that_are_no_limits, setup, teardown),
        cmocka_unit_test(test_threads_are_no_more_than_this_machine_allows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
