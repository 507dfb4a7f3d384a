/*
 * test_split_seen.c -- what client.json says that a client does: the steps of its turn, or that it has none left.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "remove_tree.h"
#include "split_seen.h"

static char folder[] = "/tmp/aqpipe-seen-XXXXXX";

static int make_folder(void **state)
{
    (void)state;
    memcpy(folder + sizeof folder - 7, "XXXXXX", 6);
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    remove_tree(folder);
    return 0;
}

static void assert_says(struct aq_split_seen *seen, uint64_t begin, uint64_t until, const char *text)
{
    char path[sizeof folder + 16];
    aq_split_seen_turn(seen, 2, 3, begin, until);
    snprintf(path, sizeof path, "%s/client.json", folder);
    json_t *said = json_load_file(path, 0, NULL);
    assert_string_equal(json_string_value(json_object_get(said, "state")), "training");
    assert_string_equal(json_string_value(json_object_get(said, "waits_for")), text);
    assert_int_equal(json_integer_value(json_object_get(said, "round")), 2);
    json_decref(said);
}

static void test_turn_with_steps_names_them(void **state)
{
    (void)state;
    struct aq_job job = {.name = "job"};
    struct aq_split_seen *seen;
    job.output.path = folder;
    job.split.server = "127.0.0.1:1";
    assert_int_equal(aq_split_seen_open(&job, "a", &seen), AQ_OK);
    assert_says(seen, 80, 100, "trains steps 81 to 100");
    assert_says(seen, 99, 100, "trains steps 100 to 100");
    aq_split_seen_close(seen);
}

/* Its client was killed between its last step and the end of its turn. */
static void test_turn_without_steps_names_none(void **state)
{
    (void)state;
    struct aq_job job = {.name = "job"};
    struct aq_split_seen *seen;
    job.output.path = folder;
    job.split.server = "127.0.0.1:1";
    assert_int_equal(aq_split_seen_open(&job, "a", &seen), AQ_OK);
    assert_says(seen, 100, 100, "sends what it trained, up to step 100");
    aq_split_seen_close(seen);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_turn_with_steps_names_them, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_turn_without_steps_names_none, make_folder, remove_folder)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
