/* remove_tree.h -- a test's own folder, with all that is in it. Library code has nothing that does this (tests/tidy).
 */
#ifndef TESTS_REMOVE_TREE_H
#define TESTS_REMOVE_TREE_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

static inline int remove_tree_at(int parent, const char *name)
{
    if (unlinkat(parent, name, 0) == 0 || errno == ENOENT) return 0;
    const int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *folder = fd == -1 ? NULL : fdopendir(fd);
    if (!folder) return -1;
    const struct dirent *entry;
    while ((entry = readdir(folder)))
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            (void)remove_tree_at(fd, entry->d_name);
    closedir(folder);
    return unlinkat(parent, name, AT_REMOVEDIR);
}

/* 0: it is gone. */
static inline int remove_tree(const char *path)
{
    return remove_tree_at(AT_FDCWD, path);
}

#endif
