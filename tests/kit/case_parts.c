/*
 * case_parts.c -- the cases of a test in several tests of ctest, which can run at once (PARTS in tests/CMakeLists.txt).
 *
 * AQ_TEST_PART=I/N in the environment: only cases I, I + N, I + 2N ... of each group run, from 1 on. The linker hands
 * calls of cmocka_run_group_tests to this file (--wrap). A part without a case is an error: it would test nothing.
 *
 * Tests run without huge pages. A test opens hundreds of devices and touches a few KiB of the scratch of each: with
 * huge pages the kernel clears 2 MiB at each first touch (docs/DECISIONS.md 1197). Programs that a test starts inherit
 * it. Freed memory stays with the program for the next case, in place of new pages from the kernel.
 */
#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>

#include <cmocka.h>

int __real__cmocka_run_group_tests(const char *name, const struct CMUnitTest *tests, size_t count,
                                   CMFixtureFunction setup, CMFixtureFunction teardown);
int __wrap__cmocka_run_group_tests(const char *name, const struct CMUnitTest *tests, size_t count,
                                   CMFixtureFunction setup, CMFixtureFunction teardown);

int __wrap__cmocka_run_group_tests(const char *name, const struct CMUnitTest *tests, size_t count,
                                   CMFixtureFunction setup, CMFixtureFunction teardown)
{
    (void)prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0); /* a wish: a kernel without it is slower */
    (void)mallopt(M_MMAP_THRESHOLD, 32 << 20);   /* so are these */
    (void)mallopt(M_TRIM_THRESHOLD, 1 << 30);
    (void)mallopt(M_TOP_PAD, 4 << 20);
    const char *wish = getenv("AQ_TEST_PART");
    unsigned part, parts;
    size_t chosen = 0;
    if (!wish) return __real__cmocka_run_group_tests(name, tests, count, setup, teardown);
    if (sscanf(wish, "%u/%u", &part, &parts) != 2 || part < 1 || part > parts || part > count) {
        fprintf(stderr, "AQ_TEST_PART=%s: not a part I/N of %zu cases\n", wish, count);
        return 1;
    }
    struct CMUnitTest *own = malloc(count * sizeof *own);
    if (!own) abort();
    for (size_t i = part - 1; i < count; i += parts)
        own[chosen++] = tests[i];
    const int failed = __real__cmocka_run_group_tests(name, own, chosen, setup, teardown);
    free(own);
    return failed;
}
