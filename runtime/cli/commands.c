/* commands.c -- what the commands have in common. */
#include "commands.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "run_folder.h"

bool aq_program_beside(const char *name, char *path)
{
    const ssize_t count = readlink("/proc/self/exe", path, AQ_RUN_PATH_BYTES - 1);
    if (count <= 0) return false;
    path[count] = 0;
    char *slash = strrchr(path, '/');
    if (!slash || (size_t)(slash + 1 - path) + strlen(name) >= AQ_RUN_PATH_BYTES) return false;
    memcpy(slash + 1, name, strlen(name) + 1);
    return access(path, X_OK) == 0;
}

bool aq_absolute(const char *path, char *out)
{
    if (path[0] == '/') return snprintf(out, AQ_RUN_PATH_BYTES, "%s", path) < AQ_RUN_PATH_BYTES;
    if (!getcwd(out, AQ_RUN_PATH_BYTES)) return false;
    const size_t length = strlen(out);
    const int more = snprintf(out + length, AQ_RUN_PATH_BYTES - length, "/%s", path);
    return more > 0 && (size_t)more < AQ_RUN_PATH_BYTES - length;
}

int aq_command_end(const char *program, int code)
{
    errno = 0;
    const bool flushed = fflush(stdout) == 0;
    if (flushed && !ferror(stdout)) return code;
    fprintf(stderr, "%s: cannot write the output%s%s\n", program, errno ? ": " : "", errno ? strerror(errno) : "");
    return code == AQ_EXIT_DONE ? AQ_EXIT_FAILED : code;
}
