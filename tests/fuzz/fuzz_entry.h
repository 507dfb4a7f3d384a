/*
 * fuzz_entry.h -- included before a fuzz target that is replayed (-include, tests/fuzz.cmake): its function gets a name
 * of its own and one entry of the table that fuzz_driver.c searches. The linker collects the entries.
 */
#ifndef TESTS_FUZZ_ENTRY_H
#define TESTS_FUZZ_ENTRY_H

#include <stddef.h>
#include <stdint.h>

struct fuzz_entry {
    const char *reader;
    int (*input)(const uint8_t *data, size_t size);
};

#ifdef AQ_FUZZ_NAME
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
__attribute__((used, section("fuzz_entries"))) static const struct fuzz_entry fuzz_entry_here = {
    AQ_FUZZ_NAME, LLVMFuzzerTestOneInput};
#endif

#endif
