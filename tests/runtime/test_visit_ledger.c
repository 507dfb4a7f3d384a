/*
 * test_visit_ledger.c -- ledgers of visits: counts, limits, several processes, crashes at each byte, and damage at each
 * byte.
 */
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "log_capture.h"
#include "remove_tree.h"
#include "visit_ledger.h"

enum { SAMPLES = 10, BYTES_MAX = 1 << 16 };
static const uint64_t DIGEST = 0x1234abcd;
static char root[64];
static unsigned char bytes[BYTES_MAX];

static int setup(void **state)
{
    (void)state;
    snprintf(root, sizeof root, "/tmp/aqpipe-visits-XXXXXX");
    capture_begin();
    return mkdtemp(root) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    capture_end();
    return remove_tree(root) == 0 && aq_memory_used() == 0 ? 0 : -1;
}

static const char *path_of(void)
{
    static char path[128];
    char name[AQ_LEDGER_NAME_BYTES];
    aq_ledger_name(DIGEST, name);
    snprintf(path, sizeof path, "%s/%s", root, name);
    return path;
}

static size_t read_file(void)
{
    FILE *file = fopen(path_of(), "r");
    assert_non_null(file);
    const size_t count = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    return count;
}

static void write_file(size_t count)
{
    FILE *file = fopen(path_of(), "w");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    fclose(file);
}

static struct aq_ledger *open_ledger(void)
{
    struct aq_ledger *ledger = NULL;
    assert_int_equal(aq_ledger_make(root, DIGEST), AQ_OK);
    assert_int_equal(aq_ledger_open(root, DIGEST, SAMPLES, &ledger), AQ_OK);
    return ledger;
}

static enum aq_status add(struct aq_ledger *ledger, enum aq_ledger_cut cut, uint64_t first, uint32_t count, double each,
                          double most)
{
    uint64_t ids[SAMPLES];
    for (uint32_t i = 0; i < count; i++)
        ids[i] = first + i;
    return aq_ledger_add(ledger, &(struct aq_ledger_batch){cut, ids, count, each, most});
}

static void test_visits_are_there_after_it_is_opened_again(void **state)
{
    (void)state;
    struct aq_ledger *ledger = open_ledger();
    assert_true(aq_ledger_most(ledger).sum == 0);
    assert_int_equal(add(ledger, AQ_LEDGER_ACTIVATIONS, 0, 4, 0.5, (double)INFINITY), AQ_OK);
    assert_int_equal(add(ledger, AQ_LEDGER_GRADIENTS, 2, 4, 0.25, (double)INFINITY), AQ_OK);
    const struct aq_ledger_place place = aq_ledger_place(ledger);
    aq_ledger_close(ledger);
    ledger = open_ledger(); /* made already: it stays */
    assert_true(aq_ledger_sum(ledger, 0) == 0.5 && aq_ledger_sum(ledger, 3) == 0.75);
    assert_true(aq_ledger_sum(ledger, 5) == 0.25 && aq_ledger_sum(ledger, 6) == 0);
    const struct aq_ledger_most most = aq_ledger_most(ledger);
    assert_true(most.sum == 0.75 && most.sample == 2);
    assert_true(most.visits[AQ_LEDGER_ACTIVATIONS] == 1 && most.visits[AQ_LEDGER_GRADIENTS] == 1);
    assert_true(aq_ledger_place(ledger).instance == place.instance && aq_ledger_place(ledger).records == 2);
    aq_ledger_close(ledger);
}

/* The limit is of each sample; a batch with one that would pass it leaves no trace. */
static void test_a_limit_is_kept_and_never_passed(void **state)
{
    (void)state;
    struct aq_ledger *ledger = open_ledger();
    assert_int_equal(add(ledger, AQ_LEDGER_ACTIVATIONS, 0, 1, 1, 2), AQ_OK);
    assert_int_equal(add(ledger, AQ_LEDGER_ACTIVATIONS, 0, 4, 1, 2), AQ_OK); /* exactly */
    const size_t before = read_file();
    assert_int_equal(add(ledger, AQ_LEDGER_GRADIENTS, 0, 4, 1e-9, 2), AQ_REFUSED);
    assert_int_equal(read_file(), before);
    assert_true(aq_ledger_sum(ledger, 0) == 2 && aq_ledger_sum(ledger, 1) == 1);
    assert_int_equal(add(ledger, AQ_LEDGER_GRADIENTS, 1, 3, 1, 2), AQ_OK);
    aq_ledger_close(ledger);
}

/* Two workers of a client: each counts what the other wrote before it adds, so the sum is one. */
static void test_two_writers_agree(void **state)
{
    (void)state;
    struct aq_ledger *one = open_ledger(), *other = open_ledger();
    uint32_t done = 0;
    while (add(done % 2 ? one : other, done % 2 ? AQ_LEDGER_GRADIENTS : AQ_LEDGER_ACTIVATIONS, 3, 2, 1, 7) == AQ_OK)
        done++;
    assert_int_equal(done, 7);
    assert_int_equal(add(one, AQ_LEDGER_ACTIVATIONS, 3, 1, 1, 7), AQ_REFUSED);
    assert_int_equal(add(other, AQ_LEDGER_ACTIVATIONS, 4, 1, 1, 7), AQ_REFUSED);
    assert_int_equal(aq_ledger_follow(one), AQ_OK);
    assert_true(aq_ledger_most(one).sum == 7 && aq_ledger_most(one).visits[0] == 4);
    aq_ledger_close(one);
    aq_ledger_close(other);
}

static void test_processes_at_once_lose_no_visit(void **state)
{
    (void)state;
    enum { CHILDREN = 4, EACH = 50 };
    struct aq_ledger *ledger = open_ledger();
    pid_t children[CHILDREN];
    for (int c = 0; c < CHILDREN; c++) {
        children[c] = fork();
        assert_true(children[c] >= 0);
        if (children[c] > 0) continue;
        struct aq_ledger *mine = NULL;
        bool good = aq_ledger_open(root, DIGEST, SAMPLES, &mine) == AQ_OK;
        for (int i = 0; good && i < EACH; i++)
            good = add(mine, AQ_LEDGER_ACTIVATIONS, 0, SAMPLES, 1, (double)INFINITY) == AQ_OK;
        _exit(good ? 0 : 1);
    }
    for (int c = 0; c < CHILDREN; c++) {
        int how = 1;
        assert_int_equal(waitpid(children[c], &how, 0), children[c]);
        assert_int_equal(how, 0);
    }
    assert_int_equal(aq_ledger_follow(ledger), AQ_OK);
    assert_true(aq_ledger_most(ledger).sum == CHILDREN * EACH);
    assert_int_equal(aq_ledger_place(ledger).records, CHILDREN * EACH);
    aq_ledger_close(ledger);
}

/* Another job takes more of the same data: what this one knows is right, and who opens it later knows all. */
static void test_samples_that_only_others_have_are_left_to_them(void **state)
{
    (void)state;
    struct aq_ledger *few = open_ledger(), *many;
    assert_int_equal(aq_ledger_open(root, DIGEST, 1000, &many), AQ_OK);
    const uint64_t ids[] = {3, 999};
    assert_int_equal(aq_ledger_add(many, &(struct aq_ledger_batch){AQ_LEDGER_ACTIVATIONS, ids, 2, 1, 5}), AQ_OK);
    assert_int_equal(add(few, AQ_LEDGER_ACTIVATIONS, 3, 1, 2, 5), AQ_OK);
    assert_true(aq_ledger_sum(few, 3) == 3 && aq_ledger_visited(few) == 1);
    aq_ledger_close(few);
    aq_ledger_close(many);
    few = open_ledger();
    assert_true(aq_ledger_sum(few, 999) == 1 && aq_ledger_visited(few) == 2 && aq_ledger_most(few).sample == 3);
    aq_ledger_close(few);
}

/* More samples than a record has: several records, one answer. */
static void test_a_large_batch_is_several_records(void **state)
{
    (void)state;
    enum { MANY = 2 * AQ_LEDGER_RECORD_SAMPLES + 7 };
    static uint64_t ids[MANY];
    struct aq_ledger *ledger;
    for (uint32_t i = 0; i < MANY; i++)
        ids[i] = MANY - 1 - i;
    assert_int_equal(aq_ledger_make(root, 9), AQ_OK);
    assert_int_equal(aq_ledger_open(root, 9, MANY, &ledger), AQ_OK);
    const struct aq_ledger_batch batch = {AQ_LEDGER_ACTIVATIONS, ids, MANY, 2, 3};
    assert_int_equal(aq_ledger_add(ledger, &batch), AQ_OK);
    assert_int_equal(aq_ledger_add(ledger, &batch), AQ_REFUSED);
    assert_int_equal(aq_ledger_place(ledger).records, 3);
    aq_ledger_close(ledger);
    assert_int_equal(aq_ledger_open(root, 9, 0, &ledger), AQ_OK);
    assert_true(aq_ledger_visited(ledger) == MANY && aq_ledger_sum(ledger, 0) == 2 &&
                aq_ledger_sum(ledger, MANY - 1) == 2);
    aq_ledger_close(ledger);
}

static size_t three_records(size_t ends[4])
{
    struct aq_ledger *ledger = open_ledger();
    ends[0] = read_file();
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(add(ledger, i % 2 ? AQ_LEDGER_GRADIENTS : AQ_LEDGER_ACTIVATIONS, i, 3, 1, 100), AQ_OK);
        ends[i + 1] = read_file();
    }
    aq_ledger_close(ledger);
    return ends[3];
}

/* A crash leaves a part of the last record: what was synced before it counts, and the next record takes its place. */
static void test_a_crash_at_each_byte_keeps_what_was_synced(void **state)
{
    (void)state;
    size_t ends[4];
    const size_t all = three_records(ends);
    static unsigned char whole[BYTES_MAX];
    memcpy(whole, bytes, all);
    for (size_t cut = ends[0]; cut <= all; cut++) {
        struct aq_ledger *ledger;
        uint64_t records = 0;
        while (records < 3 && ends[records + 1] <= cut)
            records++;
        memcpy(bytes, whole, all);
        write_file(cut);
        assert_int_equal(aq_ledger_open(root, DIGEST, SAMPLES, &ledger), AQ_OK);
        assert_int_equal(aq_ledger_place(ledger).records, records);
        assert_int_equal(add(ledger, AQ_LEDGER_ACTIVATIONS, 9, 1, 4, 100), AQ_OK);
        aq_ledger_close(ledger);
        assert_int_equal(aq_ledger_open(root, DIGEST, SAMPLES, &ledger), AQ_OK);
        assert_int_equal(aq_ledger_place(ledger).records, records + 1);
        assert_true(aq_ledger_sum(ledger, 9) == 4);
        aq_ledger_close(ledger);
    }
    assert_int_equal(captured.count, 0);
}

/* Whatever byte is wrong: nothing is counted, the file is named, and so is the remedy. */
static void test_damage_at_each_byte_is_refused(void **state)
{
    (void)state;
    size_t ends[4];
    const size_t all = three_records(ends);
    static unsigned char whole[BYTES_MAX];
    memcpy(whole, bytes, all);
    for (size_t at = 0; at < all; at++) {
        for (int bit = 0; bit < 8; bit++) {
            struct aq_ledger *ledger = NULL;
            memcpy(bytes, whole, all);
            bytes[at] ^= (unsigned char)(1u << bit);
            write_file(all);
            captured.count = 0;
            assert_int_equal(aq_ledger_open(root, DIGEST, SAMPLES, &ledger), AQ_CORRUPT);
            assert_null(ledger);
            assert_int_equal(captured.count, 1);
            assert_non_null(strstr(captured.lines[0], path_of()));
            assert_non_null(strstr(captured.lines[0], "restore a copy"));
        }
    }
}

static void test_a_record_that_is_missing_in_the_middle_is_found(void **state)
{
    (void)state;
    size_t ends[4];
    struct aq_ledger *ledger;
    const size_t all = three_records(ends);
    memmove(bytes + ends[1], bytes + ends[2], all - ends[2]);
    write_file(all - (ends[2] - ends[1]));
    assert_int_equal(aq_ledger_open(root, DIGEST, SAMPLES, &ledger), AQ_CORRUPT);
    /* The first one twice. */
    memmove(bytes + ends[1], bytes + ends[0], ends[1] - ends[0]);
    write_file(ends[1] + (ends[1] - ends[0]));
    assert_int_equal(aq_ledger_open(root, DIGEST, SAMPLES, &ledger), AQ_CORRUPT);
}

static void test_a_file_that_shrinks_or_goes_while_it_is_open_is_found(void **state)
{
    (void)state;
    struct aq_ledger *ledger = open_ledger();
    assert_int_equal(add(ledger, AQ_LEDGER_ACTIVATIONS, 0, 3, 1, 100), AQ_OK);
    const size_t count = read_file();
    assert_int_equal(truncate(path_of(), (off_t)count - 1), 0);
    assert_int_equal(add(ledger, AQ_LEDGER_ACTIVATIONS, 0, 3, 1, 100), AQ_CORRUPT);
    write_file(count);
    assert_int_equal(add(ledger, AQ_LEDGER_ACTIVATIONS, 0, 3, 1, 100), AQ_OK);
    assert_int_equal(unlink(path_of()), 0);
    assert_int_equal(add(ledger, AQ_LEDGER_ACTIVATIONS, 0, 3, 1, 100), AQ_CORRUPT);
    aq_ledger_close(ledger);
    assert_int_equal(aq_ledger_open(root, DIGEST, SAMPLES, &ledger), AQ_NOTFOUND);
}

/* However few bytes fit: nothing of it counts, and what is added later stands where it would have. */
static void test_a_full_disk_leaves_no_trace(void **state)
{
    (void)state;
    struct aq_ledger *ledger = open_ledger();
    struct rlimit was, few;
    assert_int_equal(add(ledger, AQ_LEDGER_ACTIVATIONS, 0, 3, 1, 100), AQ_OK);
    const size_t before = read_file();
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    void (*const handler)(int) = signal(SIGXFSZ, SIG_IGN);
    for (size_t fit = 0; fit < 40 + 3 * 4; fit++) { /* a record of three samples */
        few = (struct rlimit){.rlim_cur = before + fit, .rlim_max = was.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &few), 0);
        const enum aq_status status = add(ledger, AQ_LEDGER_GRADIENTS, 0, 3, 8, 100);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
        assert_int_equal(status, AQ_NOSPC);
        assert_true(aq_ledger_sum(ledger, 0) == 1);
        assert_int_equal(aq_ledger_place(ledger).records, 1);
    }
    (void)signal(SIGXFSZ, handler);
    assert_true(captured_has("so nothing is sent"));
    assert_int_equal(add(ledger, AQ_LEDGER_GRADIENTS, 2, 3, 2, 100), AQ_OK);
    aq_ledger_close(ledger);
    ledger = open_ledger();
    assert_int_equal(aq_ledger_place(ledger).records, 2);
    assert_true(aq_ledger_sum(ledger, 0) == 1 && aq_ledger_sum(ledger, 2) == 3 && aq_ledger_sum(ledger, 4) == 2);
    aq_ledger_close(ledger);
}

/* A copy in a backup: its figures are read, and nothing can be written to it. */
static void test_what_is_opened_to_read_is_never_written(void **state)
{
    (void)state;
    struct aq_ledger *ledger = open_ledger();
    assert_int_equal(add(ledger, AQ_LEDGER_ACTIVATIONS, 7, 2, 1, 100), AQ_OK);
    aq_ledger_close(ledger);
    const size_t before = read_file();
    assert_int_equal(chmod(path_of(), 0400), 0);
    assert_int_equal(aq_ledger_open_read(path_of(), &ledger), AQ_OK);
    assert_true(aq_ledger_sum(ledger, 8) == 1 && aq_ledger_visited(ledger) == 2);
    assert_int_not_equal(add(ledger, AQ_LEDGER_ACTIVATIONS, 7, 2, 1, 100), AQ_OK);
    assert_int_equal(read_file(), before);
    aq_ledger_close(ledger);
}

/* A file is read by its path, and the digest of its data is in its name. */
static void test_a_path_with_another_name_is_refused(void **state)
{
    (void)state;
    static const char *const names[] = {"",
                                        "visits-",
                                        "visits-1.ledger",
                                        "visits--000000000000001.ledger",
                                        "visits-ffffffffffffffff.ledgers",
                                        "visits-FFFFFFFFFFFFFFFF.ledger"};
    char path[128];
    struct aq_ledger *ledger;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", root, names[i]);
        assert_int_equal(aq_ledger_open_read(path, &ledger), AQ_INVAL);
        assert_int_equal(aq_ledger_open_read(names[i], &ledger), AQ_INVAL);
    }
    assert_int_equal(aq_ledger_open_read("visits-ffffffffffffffff.ledger", &ledger), AQ_NOTFOUND);
}

static void test_other_data_and_a_link_are_refused(void **state)
{
    (void)state;
    struct aq_ledger *ledger = open_ledger();
    aq_ledger_close(ledger);
    char name[AQ_LEDGER_NAME_BYTES], path[128];
    aq_ledger_name(DIGEST + 1, name);
    snprintf(path, sizeof path, "%s/%s", root, name);
    assert_int_equal(rename(path_of(), path), 0);
    assert_int_equal(aq_ledger_open(root, DIGEST + 1, SAMPLES, &ledger), AQ_CORRUPT);
    assert_int_equal(symlink(path, path_of()), 0);
    assert_int_equal(aq_ledger_open(root, DIGEST, SAMPLES, &ledger), AQ_REFUSED);
}

#define ledger_test(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ledger_test(test_visits_are_there_after_it_is_opened_again),
        ledger_test(test_a_limit_is_kept_and_never_passed),
        ledger_test(test_two_writers_agree),
        ledger_test(test_processes_at_once_lose_no_visit),
        ledger_test(test_samples_that_only_others_have_are_left_to_them),
        ledger_test(test_a_large_batch_is_several_records),
        ledger_test(test_a_crash_at_each_byte_keeps_what_was_synced),
        ledger_test(test_damage_at_each_byte_is_refused),
        ledger_test(test_a_record_that_is_missing_in_the_middle_is_found),
        ledger_test(test_a_file_that_shrinks_or_goes_while_it_is_open_is_found),
        ledger_test(test_a_full_disk_leaves_no_trace),
        ledger_test(test_what_is_opened_to_read_is_never_written),
        ledger_test(test_a_path_with_another_name_is_refused),
        ledger_test(test_other_data_and_a_link_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
