/* commands.c -- what the commands have in common. */
#include "commands.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "run_folder.h"

enum { NAME_MAX_COMPARED = 32 };

/* Levenshtein's distance, one row at a time. */
static int distance(const char *a, const char *b)
{
    const size_t n = strlen(b);
    int row[NAME_MAX_COMPARED + 1];
    if (n > NAME_MAX_COMPARED) return NAME_MAX_COMPARED;
    for (size_t j = 0; j <= n; j++)
        row[j] = (int)j;
    for (size_t i = 1; a[i - 1]; i++) {
        int diagonal = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= n; j++) {
            const int above = row[j];
            int best = diagonal + (a[i - 1] != b[j - 1]);
            if (above + 1 < best) best = above + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            diagonal = above;
            row[j] = best;
        }
    }
    return row[n];
}

const char *aq_command_nearest(const struct aq_command *commands, size_t count, const char *name)
{
    const char *nearest = NULL;
    int least = 3;
    if (strlen(name) > NAME_MAX_COMPARED) return NULL;
    for (size_t i = 0; i < count; i++) {
        if (!commands[i].help) continue;
        const int d = distance(name, commands[i].name);
        if (d < least) {
            least = d;
            nearest = commands[i].name;
        }
    }
    return nearest;
}

int aq_usage(const char *command, const char *format, ...)
{
    va_list arguments;
    fprintf(stderr, "aqpipe %s: ", command);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, " (aqpipe %s --help tells more)\n", command);
    return AQ_EXIT_USAGE;
}

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
