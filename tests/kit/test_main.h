/*
 * test_main.h -- included before a test that shares its program with others (-include, tests/CMakeLists.txt): its main
 * becomes a static function and one entry of the table that test_program.c searches.
 *
 * The linker collects the entries: they stand in a section of their own. A test's main takes no arguments or two, so
 * its type has no prototype here.
 */
#ifndef TESTS_TEST_MAIN_H
#define TESTS_TEST_MAIN_H

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wstrict-prototypes"
struct test_entry {
    const char *name;
    int (*run)(); /* (void), or (int, char **) */
};

#ifdef AQ_TEST_NAME
static int test_main();
__attribute__((used, section("aq_tests"))) static const struct test_entry test_entry_here = {AQ_TEST_NAME, test_main};
#define main static test_main
#endif
#pragma GCC diagnostic pop

/* gcc warns of a static main that has no prototype and whose "static" comes second; clang keeps the check. */
#if defined AQ_TEST_NAME && !defined __clang__
#pragma GCC diagnostic ignored "-Wold-style-declaration"
#pragma GCC diagnostic ignored "-Wmissing-prototypes"
#endif

#endif
