/*
 * test_program.c -- the main of a program that many tests share: PROGRAM NAME [ARGUMENT...] runs the test NAME.
 *
 * The test gets its arguments as if it were a program of its own: argv[0] is its name. Without a name, the program
 * prints the names it knows.
 */
#include <stdio.h>
#include <string.h>

#include "test_main.h"

extern const struct test_entry __start_aq_tests[], __stop_aq_tests[];

int main(int argc, char **argv)
{
    for (const struct test_entry *entry = __start_aq_tests; argc > 1 && entry < __stop_aq_tests; entry++)
        if (strcmp(entry->name, argv[1]) == 0) return entry->run(argc - 1, argv + 1);
    fprintf(stderr, "usage: %s TEST [ARGUMENT...]\n", argv[0]);
    for (const struct test_entry *entry = __start_aq_tests; entry < __stop_aq_tests; entry++)
        fprintf(stderr, "  %s\n", entry->name);
    return 2;
}
