/*
 * test_edge_key.c -- the key of a sealed cache on its way: it comes whole, and whatever else comes in its place ends
 * the turn with one line and gives no key. Keys in files: made once, one's own, and another for each job and name.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "edge_key.h"
#include "link_pair.h"
#include "split_key.h"

static const uint8_t untouched[AQ_CACHE_KEY_BYTES] = "a key that was there before.";

static void say(struct link_pair *pair, struct aq_frame frame)
{
    assert_int_equal(aq_link_send(pair->link[1], &frame, 0), AQ_OK);
}

/* Parts 0 and 1 of the key 00 01 .. 1f. */
static struct aq_frame part(uint32_t number)
{
    struct aq_frame frame = {.kind = AQ_FRAME_KEY, .flags = 1, .micro_batch = number};
    uint8_t bytes[16];
    for (uint8_t i = 0; i < 16; i++)
        bytes[i] = (uint8_t)(16 * number + i);
    memcpy(&frame.step, bytes, 8);
    memcpy(&frame.argument, bytes + 8, 8);
    return frame;
}

static void test_key_comes_whole(void **state)
{
    (void)state;
    struct link_pair pair = {0};
    uint8_t key[AQ_CACHE_KEY_BYTES];
    pair_config(&pair);
    pair_open(&pair, "sim", "");
    say(&pair, part(0));
    say(&pair, part(1));
    assert_int_equal(aq_edge_take_key(pair.link[0], pair.eventcount, PAIR_SECONDS(PAIR_PATIENCE), key), AQ_OK);
    for (uint8_t i = 0; i < AQ_CACHE_KEY_BYTES; i++)
        assert_int_equal(key[i], i);
    pair_close(&pair);
}

static void test_anything_else_is_refused(void **state)
{
    (void)state;
    static const uint8_t body[64];
    struct aq_frame wrong[6] = {part(1), part(0), part(0), part(0), part(2), {.kind = AQ_FRAME_FORWARD}};
    wrong[1].body = body;
    wrong[1].body_bytes = 32; /* a key in one body */
    wrong[2].flags = 0;
    wrong[3].body = body;
    wrong[3].body_bytes = 1;
    for (int after = 0; after < 2; after++) {
        for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
            struct link_pair pair = {0};
            uint8_t key[AQ_CACHE_KEY_BYTES];
            if (after && i == 0) continue; /* it is due there */
            memcpy(key, untouched, sizeof key);
            pair_config(&pair);
            pair_open(&pair, "sim", "");
            if (after) say(&pair, part(0));
            say(&pair, wrong[i]);
            assert_int_equal(aq_edge_take_key(pair.link[0], pair.eventcount, PAIR_SECONDS(PAIR_PATIENCE), key),
                             AQ_PROTO);
            assert_non_null(strstr(aq_error_text(), "of the key of its cache is expected"));
            assert_memory_equal(key, untouched, sizeof key);
            pair_close(&pair);
        }
    }
}

/* Half a key, and then nothing: a deadline; a peer that goes: why. */
static void test_half_a_key_is_none(void **state)
{
    (void)state;
    for (int goes = 0; goes < 2; goes++) {
        struct link_pair pair = {0};
        uint8_t key[AQ_CACHE_KEY_BYTES];
        memcpy(key, untouched, sizeof key);
        pair_config(&pair);
        pair_open(&pair, "sim", "");
        say(&pair, part(0));
        if (goes) {
            aq_link_close(pair.link[1]);
            pair.link[1] = NULL;
        }
        const enum aq_status status =
            aq_edge_take_key(pair.link[0], pair.eventcount, PAIR_SECONDS(goes ? 120 : 0.2), key);
        assert_int_not_equal(status, AQ_OK);
        if (!goes) assert_int_equal(status, AQ_TIMEOUT);
        assert_memory_equal(key, untouched, sizeof key);
        pair_close(&pair);
    }
}

static char folder[] = "/tmp/aqpipe-edge-key-XXXXXX";

static void file(const char *name, const char *text, size_t bytes, mode_t mode)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    (void)unlink(path);
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, mode);
    assert_true(fd != -1 && write(fd, text, bytes) == (ssize_t)bytes && fchmod(fd, mode) == 0);
    close(fd);
}

static void test_a_key_for_each_job_and_name(void **state)
{
    (void)state;
    char path[128], keys[4][AQ_SPLIT_KEY_TEXT_BYTES];
    struct stat about;
    bool made;
    char aside[128];
    snprintf(aside, sizeof aside, "%s/seal.key.new", folder);
    snprintf(path, sizeof path, "%s/seal.key", folder);
    file("authority.pem", "one", 3, 0600);
    file("seal.key.new", "cut sh", 6, 0600); /* of one that was killed */
    assert_int_equal(aq_split_key(path, folder, "a", &made, keys[0]), AQ_OK);
    assert_true(made && access(aside, F_OK) != 0 && stat(path, &about) == 0 && (about.st_mode & 0777) == 0600 &&
                about.st_size == 32);
    assert_int_equal(aq_split_key(path, folder, "a", &made, keys[1]), AQ_OK);
    assert_false(made);
    assert_string_equal(keys[0], keys[1]);
    assert_int_equal(strlen(keys[0]), 64);
    assert_int_equal(aq_split_key(path, folder, "b", &made, keys[1]), AQ_OK);
    file("authority.pem", "two", 3, 0600);
    assert_int_equal(aq_split_key(path, folder, "a", &made, keys[2]), AQ_OK);
    file("seal.key", "another key of thirty-two bytes.", 32, 0600);
    assert_int_equal(aq_split_key(path, folder, "a", &made, keys[3]), AQ_OK);
    for (int i = 0; i < 4; i++)
        for (int j = i + 1; j < 4; j++)
            assert_string_not_equal(keys[i], keys[j]);
    file("seal.key", "another key of thirty-two bytes.", 32, 0640);
    assert_int_equal(aq_split_key(path, folder, "a", &made, keys[0]), AQ_REFUSED);
    aq_error_clear(); /* the first one counts */
    file("seal.key", "short", 5, 0600);
    assert_int_equal(aq_split_key(path, folder, "a", &made, keys[0]), AQ_CORRUPT);
    assert_non_null(strstr(aq_error_text(), "seal.key has 5 bytes"));
    for (const char *const *name = (const char *const[]){"seal.key", "authority.pem", NULL}; *name; name++) {
        snprintf(path, sizeof path, "%s/%s", folder, *name);
        unlink(path);
    }
    rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_key_comes_whole),
        cmocka_unit_test(test_anything_else_is_refused),
        cmocka_unit_test(test_half_a_key_is_none),
        cmocka_unit_test(test_a_key_for_each_job_and_name),
    };
    if (!mkdtemp(folder)) return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
