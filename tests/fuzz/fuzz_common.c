/* fuzz_common.c -- fuzz.h: files, pieces, counts. */
#include "fuzz.h"

#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_BYTES = 256, PATHS = 4 };

static char folder[PATH_BYTES];
static uint64_t taken, refused;

static void drop(int level, const char *line, void *context)
{
    (void)level;
    (void)line;
    (void)context;
}

void fuzz_quiet(void)
{
    aq_log_sink(drop, NULL);
}

static int remove_one(const char *path, const struct stat *about, int kind, struct FTW *place)
{
    (void)about, (void)kind, (void)place;
    return remove(path);
}

static void remove_all(void)
{
    nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

const char *fuzz_folder(void)
{
    if (folder[0]) return folder;
    const char *below = getenv("AQ_FUZZ_FOLDER");
    if (!below) below = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    const int bytes = snprintf(folder, sizeof folder, "%.180s/aqpipe-fuzz-XXXXXX", below);
    if (bytes < 0 || !mkdtemp(folder)) {
        fprintf(stderr, "fuzz: no folder below %s\n", below);
        abort();
    }
    atexit(remove_all);
    return folder;
}

const char *fuzz_path(const char *name)
{
    static char paths[PATHS][2 * PATH_BYTES];
    static int next;
    char *path = paths[next++ % PATHS];
    if (snprintf(path, sizeof paths[0], "%s/%s", fuzz_folder(), name) >= (int)sizeof paths[0]) abort();
    return path;
}

void fuzz_write(const char *name, const void *bytes, size_t count)
{
    const int fd = open(fuzz_path(name), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd == -1 || (count > 0 && write(fd, bytes, count) != (ssize_t)count) || close(fd) != 0) {
        perror(fuzz_path(name));
        abort();
    }
}

void fuzz_make_folder(const char *name)
{
    if (mkdir(fuzz_path(name), 0700) != 0) abort();
}

struct fuzz_piece fuzz_cut(struct fuzz_piece *rest, uint8_t mark)
{
    const uint8_t *end = rest->count ? memchr(rest->bytes, mark, rest->count) : NULL;
    const size_t count = end ? (size_t)(end - rest->bytes) : rest->count;
    const struct fuzz_piece piece = {rest->bytes, count};
    const size_t gone = end ? count + 1 : count;
    rest->bytes += gone;
    rest->count -= gone;
    return piece;
}

uint8_t fuzz_byte(struct fuzz_piece *rest)
{
    if (rest->count == 0) return 0;
    rest->count--;
    return *rest->bytes++;
}

void fuzz_told(bool took)
{
    if (took)
        taken++;
    else
        refused++;
}

uint64_t fuzz_taken(void)
{
    return taken;
}

uint64_t fuzz_refused(void)
{
    return refused;
}
