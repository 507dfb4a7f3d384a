/*
 * test_file.c -- files in folders where others may write: what was planted there is refused or replaced, never
 * followed, waited for, or written through.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "log_capture.h"
#include "remove_tree.h"

static char root[64], folder[80], outside[80];

static int setup(void **state)
{
    (void)state;
    snprintf(root, sizeof root, "/tmp/aqpipe-file-XXXXXX");
    if (!mkdtemp(root)) return -1;
    snprintf(folder, sizeof folder, "%s/ours", root);
    snprintf(outside, sizeof outside, "%s/victim", root);
    capture_begin();
    return mkdir(folder, 0700) == 0 && mkdir(outside, 0700) == 0 ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    capture_end();
    return remove_tree(root) == 0 && aq_memory_used() == 0 ? 0 : -1;
}

static const char *path_of(const char *parent, const char *name)
{
    static char paths[4][256];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", parent, name);
    return path;
}

static void put(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void assert_text(const char *path, const char *text)
{
    char got[64] = "";
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_true(fgets(got, sizeof got, file) || text[0] == 0);
    fclose(file);
    assert_string_equal(got, text);
}

/* Opens, writes a word, closes. */
static enum aq_status write_word(const char *where, const char *name, enum aq_file_how how)
{
    int fd;
    AQ_TRY(aq_file_open(where, name, how, &fd));
    assert_int_equal(fcntl(fd, F_GETFL) & O_NONBLOCK, 0);
    assert_int_equal(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    assert_int_equal(write(fd, "ours", 4), 4);
    close(fd);
    return AQ_OK;
}

static const enum aq_file_how every_way[] = {AQ_FILE_READ, AQ_FILE_UPDATE, AQ_FILE_KEEP, AQ_FILE_APPEND, AQ_FILE_ANEW};
enum { WAYS = sizeof every_way / sizeof *every_way };

static void test_links_are_never_followed(void **state)
{
    (void)state;
    int fd;
    put(path_of(outside, "file"), "theirs");
    for (int i = 0; i < WAYS; i++) {
        assert_int_equal(symlink(path_of(outside, "file"), path_of(folder, "link")), 0);
        assert_int_equal(symlink(path_of(outside, "made"), path_of(folder, "dangling")), 0);
        if (every_way[i] == AQ_FILE_ANEW) { /* the link's name is taken from it */
            assert_int_equal(write_word(folder, "link", every_way[i]), AQ_OK);
            assert_int_equal(write_word(NULL, path_of(folder, "dangling"), every_way[i]), AQ_OK);
        } else {
            capture_begin();
            assert_int_equal(aq_file_open(folder, "link", every_way[i], &fd), AQ_REFUSED);
            assert_true(captured_has("symbolic link"));
            assert_int_equal(aq_file_open(NULL, path_of(folder, "link"), every_way[i], &fd), AQ_REFUSED);
            assert_int_equal(aq_file_open(folder, "dangling", every_way[i], &fd), AQ_REFUSED);
        }
        assert_int_equal(aq_file_remove(folder, "link"), AQ_OK);
        assert_int_equal(aq_file_remove(folder, "dangling"), AQ_OK);
        assert_text(path_of(outside, "file"), "theirs");
        assert_int_not_equal(access(path_of(outside, "made"), F_OK), 0);
    }
}

static void test_folders_on_the_way_are_no_links(void **state)
{
    (void)state;
    int fd;
    put(path_of(outside, "file"), "theirs");
    assert_int_equal(symlink(outside, path_of(folder, "logs")), 0);
    for (int i = 0; i < WAYS; i++)
        assert_int_equal(aq_file_open(folder, "logs/file", every_way[i], &fd), AQ_REFUSED);
    assert_int_equal(aq_file_remove(folder, "logs/file"), AQ_REFUSED);
    assert_int_equal(aq_file_rename(folder, "logs/file", "logs/other"), AQ_REFUSED);
    assert_int_equal(aq_file_make_folder(folder, "logs"), AQ_REFUSED);
    assert_int_equal(aq_file_make_folder(folder, "logs/7"), AQ_REFUSED);
    assert_int_equal(aq_file_open_folder(folder, "logs", &fd), AQ_REFUSED);
    assert_int_equal(aq_file_sync_folder(folder, "logs/file"), AQ_REFUSED);
    assert_int_equal(aq_file_remove_folder(folder, "logs"), AQ_REFUSED);
    assert_text(path_of(outside, "file"), "theirs");
    /* The folder that somebody named may be a link. */
    assert_int_equal(write_word(path_of(folder, "logs"), "file", AQ_FILE_ANEW), AQ_OK);
    assert_text(path_of(outside, "file"), "ours");
    assert_int_equal(aq_file_make_folder(path_of(folder, "logs"), "7/8"), AQ_OK);
    assert_int_equal(aq_file_open_folder(path_of(folder, "logs"), "", &fd), AQ_OK);
    close(fd);
}

static void test_what_is_no_file_is_refused_at_once(void **state)
{
    (void)state;
    int fd;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const int listening = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path_of(folder, "socket"));
    assert_int_equal(bind(listening, (struct sockaddr *)&address, sizeof address), 0);
    close(listening);
    assert_int_equal(mkfifo(path_of(folder, "fifo"), 0600), 0);
    assert_int_equal(mkdir(path_of(folder, "folder"), 0700), 0);
    for (int i = 0; i < WAYS; i++) {
        const bool anew = every_way[i] == AQ_FILE_ANEW;
        assert_int_equal(aq_file_open(folder, "folder", every_way[i], &fd), AQ_REFUSED);
        if (anew) continue;
        assert_int_equal(aq_file_open(folder, "fifo", every_way[i], &fd), AQ_REFUSED);
        assert_int_equal(aq_file_open(folder, "socket", every_way[i], &fd), AQ_REFUSED);
        assert_int_equal(aq_file_open(NULL, "/dev/null", every_way[i], &fd), AQ_REFUSED);
    }
    assert_int_equal(write_word(folder, "fifo", AQ_FILE_ANEW), AQ_OK);
    assert_text(path_of(folder, "fifo"), "ours");
    assert_int_equal(aq_file_remove(folder, "folder"), AQ_REFUSED);
    assert_int_equal(aq_file_remove_folder(folder, "folder"), AQ_OK);
}

static void test_a_file_of_two_names_is_not_written_through(void **state)
{
    (void)state;
    int fd;
    put(path_of(outside, "file"), "theirs");
    assert_int_equal(link(path_of(outside, "file"), path_of(folder, "file")), 0);
    assert_int_equal(aq_file_open(folder, "file", AQ_FILE_APPEND, &fd), AQ_REFUSED);
    assert_int_equal(aq_file_open(folder, "file", AQ_FILE_KEEP, &fd), AQ_REFUSED);
    assert_int_equal(aq_file_open(folder, "file", AQ_FILE_UPDATE, &fd), AQ_REFUSED);
    assert_int_equal(aq_file_open(folder, "file", AQ_FILE_READ, &fd), AQ_OK);
    close(fd);
    assert_int_equal(write_word(folder, "file", AQ_FILE_ANEW), AQ_OK);
    assert_text(path_of(outside, "file"), "theirs");
    assert_text(path_of(folder, "file"), "ours");
}

static void test_what_is_made_is_private(void **state)
{
    (void)state;
    struct stat info;
    int fd;
    const mode_t before = umask(022);
    assert_int_equal(aq_file_make_folder(folder, "a/b"), AQ_OK);
    assert_int_equal(aq_file_make_folder(folder, "a/b"), AQ_OK);
    assert_int_equal(write_word(folder, "a/b/file", AQ_FILE_APPEND), AQ_OK);
    assert_int_equal(write_word(folder, "a/b/file", AQ_FILE_APPEND), AQ_OK);
    umask(before);
    assert_text(path_of(folder, "a/b/file"), "oursours");
    assert_int_equal(stat(path_of(folder, "a/b"), &info), 0);
    assert_int_equal(info.st_mode & 0777, 0700);
    assert_int_equal(stat(path_of(folder, "a/b/file"), &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
    assert_int_equal(aq_file_rename(folder, "a/b/file", "a/b/other"), AQ_OK);
    assert_int_equal(aq_file_sync_folder(folder, "a/b/other"), AQ_OK);
    assert_int_equal(aq_file_open(folder, "a/b/file", AQ_FILE_READ, &fd), AQ_NOTFOUND);
    assert_int_equal(aq_file_open(folder, "c/file", AQ_FILE_READ, &fd), AQ_NOTFOUND);
    assert_int_equal(aq_file_remove_folder(folder, "a/b"), AQ_REFUSED);
    assert_int_equal(aq_file_remove(folder, "a/b/other"), AQ_OK);
    assert_int_equal(aq_file_remove(folder, "a/b/other"), AQ_OK);
    assert_int_equal(aq_file_remove_folder(folder, "a/b"), AQ_OK);
    /* Above the folder that was named nothing is made. */
    assert_int_equal(aq_file_make_folder(path_of(root, "gone"), "7"), AQ_NOTFOUND);
    assert_int_equal(aq_file_open(path_of(root, "gone"), "7", AQ_FILE_ANEW, &fd), AQ_NOTFOUND);
    assert_int_not_equal(access(path_of(root, "gone"), F_OK), 0);
}

static void test_a_file_is_replaced_whole_or_not_at_all(void **state)
{
    (void)state;
    struct stat info;
    char *bytes;
    size_t count;
    const mode_t before = umask(022);
    put(path_of(folder, "file"), "before");
    assert_int_equal(aq_file_replace(folder, "file", 0644, "after", 5), AQ_OK);
    umask(before);
    assert_text(path_of(folder, "file"), "after");
    assert_int_equal(stat(path_of(folder, "file"), &info), 0);
    assert_int_equal(info.st_mode & 0777, 0644);
    assert_int_equal(aq_file_load(folder, "file", 5, &bytes, &count), AQ_OK);
    assert_int_equal(count, 5);
    assert_string_equal(bytes, "after");
    aq_free(bytes);
    assert_int_equal(aq_file_load(folder, "file", 4, &bytes, NULL), AQ_NOSPC);
    assert_int_equal(aq_file_load(folder, "none", 4, &bytes, NULL), AQ_NOTFOUND);
    /* What cannot take the name leaves nothing aside. */
    assert_int_equal(mkdir(path_of(folder, "other"), 0700), 0);
    assert_int_not_equal(aq_file_replace(folder, "other", 0600, "x", 1), AQ_OK);
    assert_int_not_equal(access(path_of(folder, "other.new"), F_OK), 0);
}

static void *write_pieces(void *fd)
{
    for (int i = 0; i < 100; i++)
        if (write(*(int *)fd, "0123456789", 10) != 10) break;
    close(*(int *)fd);
    return NULL;
}

static void test_all_bytes_move_in_pieces(void **state)
{
    (void)state;
    int ends[2];
    char bytes[1024];
    pthread_t thread;
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(pthread_create(&thread, NULL, write_pieces, &ends[1]), 0);
    assert_int_equal(aq_read_all(ends[0], bytes, 995), 995);
    assert_memory_equal(bytes + 990, "01234", 5);
    assert_int_equal(aq_read_all(ends[0], bytes, sizeof bytes), 5); /* what was left, and the end */
    pthread_join(thread, NULL);
    close(ends[0]);
    const int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
    assert_false(aq_write_all(full, "x", 1));
    assert_int_equal(errno, ENOSPC);
    close(full);
    assert_int_equal(aq_read_all(-1, bytes, 1), -1);
    char hex[7];
    assert_string_equal(aq_hex("\x00\xfa\x39", 3, hex), "00fa39");
    assert_true(aq_is_hex(hex, 6));
    assert_false(aq_is_hex(hex, 5));
    assert_false(aq_is_hex("00FA39", 6));
    uint8_t read[3] = {7, 7, 7};
    static const char *const bad[] = {"", "00fa3", "00fa390", "00fa3g", "00FA39"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(aq_hex_read(bad[i], sizeof read, read));
    assert_memory_equal(read, "\x07\x07\x07", sizeof read);
    assert_true(aq_hex_read(hex, sizeof read, read));
    assert_memory_equal(read, "\x00\xfa\x39", sizeof read);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_links_are_never_followed),
        TEST(test_folders_on_the_way_are_no_links),
        TEST(test_what_is_no_file_is_refused_at_once),
        TEST(test_a_file_of_two_names_is_not_written_through),
        TEST(test_what_is_made_is_private),
        TEST(test_a_file_is_replaced_whole_or_not_at_all),
        TEST(test_all_bytes_move_in_pieces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
