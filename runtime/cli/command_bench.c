/*
 * command_bench.c -- `aqpipe bench`: starts the program aqpipe-bench (tools/bench), which is in the folder of this one.
 *
 * The benches are no part of this program. It becomes aqpipe-bench, so output, signals and exit status are that
 * program's. Only its part of a completion script is printed by a child, because other commands have parts, too.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "child.h"
#include "commands.h"
#include "options.h"
#include "run_folder.h"

static const char PROGRAM[] = "aqpipe-bench";

static int bench_completes(const char *program, char **argv)
{
    const struct aq_child child = {.program = program, .arguments = (const char *const *)argv};
    int code;
    pid_t pid;
    if (fflush(stdout) != 0 || aq_child_start(&child, PROGRAM, &pid) != AQ_OK) return AQ_EXIT_FAILED;
    while (waitpid(pid, &code, 0) < 0)
        if (errno != EINTR) return AQ_EXIT_FAILED;
    return WIFEXITED(code) ? WEXITSTATUS(code) : AQ_EXIT_FAILED;
}

int aq_command_bench(int argc, char **argv)
{
    static const char option[] = "--completion=";
    char program[AQ_RUN_PATH_BYTES] = "aqpipe-bench";
    const bool there = aq_program_beside(PROGRAM, program);
    if (argc == 2 && strncmp(argv[1], option, sizeof option - 1) == 0)
        return there ? bench_completes(program, argv) : AQ_EXIT_DONE; /* a program that is missing has no options */
    if (there) execv(program, argv);
    const int error = errno;
    aq_options_json_find(argc, argv);
    if (there) return aq_command_failed("bench: cannot start %s: %s", program, strerror(error));
    return aq_command_failed("bench: there is no program %s, which has the benches: install the whole package of "
                             "aqpipe, or build it (cmake --build --preset release)",
                             program);
}
