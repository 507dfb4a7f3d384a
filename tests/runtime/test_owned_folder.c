/*
 * test_owned_folder.c -- whose a folder is, and that only what is ours is ever removed from one.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "log_capture.h"
#include "owned_folder.h"
#include "remove_tree.h"
#include "run_folder.h"
#include "seal.h"
#include "stages/weights.h"

static char root[64];
static const struct aq_owner ours = {.job = "demo", .id = 7, .resume_hash = 0xabc, .plan_hash = 0xdef};
static const struct aq_owner theirs = {.job = "other", .id = 8, .resume_hash = 0xabc, .plan_hash = 0xdef};

static int setup(void **state)
{
    (void)state;
    snprintf(root, sizeof root, "/tmp/aqpipe-owned-XXXXXX");
    capture_begin();
    return mkdtemp(root) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    capture_end();
    return remove_tree(root) == 0 && aq_memory_used() == 0 ? 0 : -1;
}

static const char *in(const char *name)
{
    static char paths[8][AQ_RUN_PATH_BYTES];
    static int next;
    char *path = paths[next++ % 8];
    assert_int_equal(aq_run_path(root, name, path), AQ_OK);
    return path;
}

static void put(const char *name, const char *text)
{
    FILE *file = fopen(in(name), "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static bool there(const char *name)
{
    struct stat info;
    return lstat(in(name), &info) == 0;
}

/* A checkpoint's file; resume_hash "" leaves its metadata out. */
static void put_checkpoint(const char *name, const char *resume_hash)
{
    static const float values[2] = {1, 2};
    const struct aq_weights_tensor tensor = {.name = "w", .dimensions = 1, .shape = {2}, .values = values};
    const char *const metadata[] = {"format",    "aqpipe checkpoint 1", "resume_hash", resume_hash,
                                    "plan_hash", "0000000000000001",    NULL};
    assert_int_equal(aq_weights_write(in(name), &tensor, 1, *resume_hash ? metadata : NULL), AQ_OK);
}

static const char *const hash_ours = "0000000000000abc", *const hash_theirs = "0000000000000abd";

static void test_a_folder_is_ours_when_it_was_made_or_empty(void **state)
{
    (void)state;
    enum aq_owned_state is;
    assert_int_equal(aq_owned_look(in("a"), AQ_OWNED_CHECKPOINT, &ours, &is), AQ_OK);
    assert_int_equal(is, AQ_OWNED_MISSING);
    assert_int_equal(aq_owned_claim(in("a/b"), AQ_OWNED_CHECKPOINT, AQ_OWNED_MAKE_ALL, &ours), AQ_OK);
    assert_int_equal(aq_owned_claim(in("a/b"), AQ_OWNED_CHECKPOINT, AQ_OWNED_MAKE_NONE, &ours), AQ_OK);
    assert_int_equal(aq_owned_check(in("a/b"), AQ_OWNED_CHECKPOINT, ours.id), AQ_OK);
    assert_int_equal(mkdir(in("empty"), 0700), 0);
    assert_int_equal(mkdir(in("empty/lost+found"), 0700), 0);
    assert_int_equal(aq_owned_look(in("empty"), AQ_OWNED_CACHE, &ours, &is), AQ_OK);
    assert_int_equal(is, AQ_OWNED_EMPTY);
    assert_int_equal(aq_owned_claim(in("empty"), AQ_OWNED_CACHE, AQ_OWNED_MAKE_NONE, &ours), AQ_OK);
    /* Whoever was killed in the middle of its claim has left the marker aside, whole or not. */
    static const char *const killed[] = {"killed-run", "killed-checkpoint", "killed-cache"}; /* by kind */
    for (enum aq_owned_kind kind = AQ_OWNED_RUN; kind <= AQ_OWNED_CACHE; kind++) {
        struct aq_owner owner = {.job = "demo"};
        char name[64];
        assert_int_equal(mkdir(in(killed[kind]), 0700), 0);
        snprintf(name, sizeof name, "%s/" AQ_OWNED_MARKER ".new", killed[kind]);
        put(name, "{\"form");
        assert_int_equal(aq_owned_look(in(killed[kind]), kind, &ours, &is), AQ_OK);
        assert_int_equal(is, AQ_OWNED_EMPTY);
        if (kind == AQ_OWNED_RUN)
            assert_int_equal(aq_owned_claim_run(in(killed[kind]), AQ_OWNED_MAKE_ALL, &owner, NULL), AQ_OK);
        else
            assert_int_equal(aq_owned_claim(in(killed[kind]), kind, AQ_OWNED_MAKE_ALL, &ours), AQ_OK);
    }
    /* Another run of the very same job, and another kind of folder, are named and refused. */
    assert_int_equal(aq_owned_claim(in("a/b"), AQ_OWNED_CHECKPOINT, AQ_OWNED_MAKE_ALL, &theirs), AQ_REFUSED);
    assert_true(captured_has("'demo'"));
    assert_int_equal(aq_owned_claim(in("a/b"), AQ_OWNED_CACHE, AQ_OWNED_MAKE_ALL, &ours), AQ_REFUSED);
    assert_int_equal(aq_owned_check(in("a/b"), AQ_OWNED_CHECKPOINT, theirs.id), AQ_REFUSED);
    assert_int_equal(aq_owned_check(root, AQ_OWNED_CHECKPOINT, ours.id), AQ_NOTFOUND);
}

/* Killed between making the folder and naming its marker: the next start goes on. */
static void test_a_marker_that_was_not_finished_counts_as_none(void **state)
{
    (void)state;
    assert_int_equal(mkdir(in("cut"), 0700), 0);
    put("cut/aqpipe-folder.json.new", "{\"format\": \"aqp");
    assert_int_equal(aq_owned_claim(in("cut"), AQ_OWNED_CHECKPOINT, AQ_OWNED_MAKE_ALL, &ours), AQ_OK);
    assert_true(there("cut/aqpipe-folder.json") && !there("cut/aqpipe-folder.json.new"));
    assert_int_equal(mkdir(in("full"), 0700), 0);
    put("full/aqpipe-folder.json.new", "");
    put("full/thesis.txt", "mine");
    assert_int_equal(aq_owned_claim(in("full"), AQ_OWNED_CHECKPOINT, AQ_OWNED_MAKE_ALL, &ours), AQ_REFUSED);
    assert_true(there("full/thesis.txt"));
}

static void test_a_folder_of_somebody_else_is_left_alone(void **state)
{
    (void)state;
    struct aq_owner owner = {.job = "demo"};
    put("photo.jpg", "theirs");
    for (enum aq_owned_kind kind = AQ_OWNED_RUN; kind <= AQ_OWNED_CACHE; kind++) {
        capture_begin();
        if (kind == AQ_OWNED_RUN)
            assert_int_equal(aq_owned_claim_run(root, AQ_OWNED_MAKE_ALL, &owner, NULL), AQ_REFUSED);
        else
            assert_int_equal(aq_owned_claim(root, kind, AQ_OWNED_MAKE_ALL, &ours), AQ_REFUSED);
        assert_true(captured_has("photo.jpg"));
        assert_int_equal(aq_owned_forget(root, &ours, 1), AQ_NOTFOUND);
        assert_int_equal(aq_owned_clear_checkpoints(root, &ours), AQ_NOTFOUND);
        assert_int_equal(aq_owned_clear_run(root, &ours), AQ_NOTFOUND);
        assert_int_not_equal(aq_owned_scratch_remove(root, NULL), AQ_OK);
        assert_false(there(AQ_OWNED_MARKER));
        assert_true(there("photo.jpg"));
    }
    static const char *const damaged[] = {"", "{}", "[]", "{\"format\":\"aqpipe folder 1\"}",
                                          "{\"format\":\"aqpipe folder 2\",\"id\":\"0000000000000007\"}"};
    for (size_t i = 0; i < sizeof damaged / sizeof *damaged; i++) {
        put(AQ_OWNED_MARKER, damaged[i]);
        assert_int_equal(aq_owned_claim(root, AQ_OWNED_CACHE, AQ_OWNED_MAKE_ALL, &ours), AQ_CORRUPT);
        assert_int_equal(aq_owned_forget(root, &ours, 1), AQ_CORRUPT);
    }
    unlink(in(AQ_OWNED_MARKER));
    assert_int_equal(symlink("/nowhere", in(AQ_OWNED_MARKER)), 0);
    assert_int_equal(aq_owned_claim(root, AQ_OWNED_CACHE, AQ_OWNED_MAKE_ALL, &ours), AQ_REFUSED);
}

static void test_a_disk_that_is_gone_is_not_made_anew(void **state)
{
    (void)state;
    assert_int_equal(aq_owned_claim(in("gone"), AQ_OWNED_CHECKPOINT, AQ_OWNED_MAKE_NONE, &ours), AQ_NOTFOUND);
    assert_int_equal(aq_owned_claim(in("gone/run/ckpt"), AQ_OWNED_CHECKPOINT, AQ_OWNED_MAKE_LAST, &ours), AQ_NOTFOUND);
    assert_true(captured_has("mounted"));
    assert_false(there("gone"));
    assert_int_equal(aq_owned_claim(in("ckpt"), AQ_OWNED_CHECKPOINT, AQ_OWNED_MAKE_LAST, &ours), AQ_OK);
    assert_true(there("ckpt/" AQ_OWNED_MARKER));
}

static void test_a_runs_id_is_kept_and_its_first_checkpoint_noted(void **state)
{
    (void)state;
    struct aq_owner first = {.job = "demo", .resume_hash = 1}, second = {.job = "demo", .resume_hash = 1};
    bool checkpointed = true;
    assert_int_equal(aq_owned_claim_run(in("run"), AQ_OWNED_MAKE_ALL, &first, &checkpointed), AQ_OK);
    assert_true(first.id != 0 && !checkpointed);
    assert_int_equal(aq_owned_note(in("run"), &first, true), AQ_OK);
    assert_int_equal(aq_owned_claim_run(in("run"), AQ_OWNED_MAKE_NONE, &second, &checkpointed), AQ_OK);
    assert_true(second.id == first.id && checkpointed);
    struct aq_owner third = {.job = "demo", .id = first.id + 1};
    assert_int_equal(aq_owned_claim_run(in("run"), AQ_OWNED_MAKE_NONE, &third, NULL), AQ_REFUSED);
    struct aq_owner fourth = {.job = "demo"};
    assert_int_equal(aq_owned_claim_run(in("run2"), AQ_OWNED_MAKE_ALL, &fourth, NULL), AQ_OK);
    assert_true(fourth.id != first.id);
}

static void test_folders_from_before_markers_need_proof(void **state)
{
    (void)state;
    struct aq_owner run = {.job = "demo"}, later = ours;
    enum aq_owned_state is;
    assert_int_equal(mkdir(in("run"), 0700), 0);
    put("run/run.json", "{\"name\":\"demo\",\"plan_hash\":\"0000000000000def\"}");
    put("run/metrics.jsonl", "");
    assert_int_equal(aq_owned_claim_run(in("run"), AQ_OWNED_MAKE_NONE, &run, NULL), AQ_OK);
    assert_true(there("run/" AQ_OWNED_MARKER));
    /* Checkpoints: what the launcher noted there, or on another machine a file of the step to go on from. */
    assert_int_equal(mkdir(in("c"), 0700), 0);
    assert_int_equal(mkdir(in("c/12"), 0700), 0);
    put("c/complete", "{\"step\":12,\"plan_hash\":\"0000000000000abd\"}");
    assert_int_equal(aq_owned_look(in("c"), AQ_OWNED_CHECKPOINT, &ours, &is), AQ_OK);
    assert_int_equal(is, AQ_OWNED_OTHERS);
    put("c/complete", "{\"step\":12,\"plan_hash\":\"0000000000000def\"}");
    assert_int_equal(aq_owned_look(in("c"), AQ_OWNED_CHECKPOINT, &ours, &is), AQ_OK);
    assert_int_equal(is, AQ_OWNED_OLD);
    unlink(in("c/complete"));
    put_checkpoint("c/12/stage-1.safetensors", hash_theirs);
    later.resume = 12;
    assert_int_equal(aq_owned_claim(in("c"), AQ_OWNED_CHECKPOINT, AQ_OWNED_MAKE_NONE, &later), AQ_REFUSED);
    put_checkpoint("c/12/stage-1.safetensors", hash_ours);
    put("c/notes", "theirs");
    assert_int_equal(aq_owned_claim(in("c"), AQ_OWNED_CHECKPOINT, AQ_OWNED_MAKE_NONE, &ours), AQ_REFUSED);
    unlink(in("c/notes"));
    assert_int_equal(aq_owned_look(in("c"), AQ_OWNED_CHECKPOINT, &ours, &is), AQ_OK);
    assert_int_equal(is, AQ_OWNED_OLD);
    put("c/12/notes", "theirs");
    assert_int_equal(aq_owned_claim(in("c"), AQ_OWNED_CHECKPOINT, AQ_OWNED_MAKE_NONE, &ours), AQ_REFUSED);
    assert_int_equal(aq_owned_claim(in("c"), AQ_OWNED_CHECKPOINT, AQ_OWNED_MAKE_NONE, &later), AQ_OK);
    /* Caches: their names; each has a head of its own that says whose it is. */
    assert_int_equal(aq_run_make_folder(in("k/stage-0")), AQ_OK);
    assert_int_equal(aq_owned_claim(in("k"), AQ_OWNED_CACHE, AQ_OWNED_MAKE_NONE, &ours), AQ_OK);
    assert_int_equal(aq_run_make_folder(in("m/stage-x")), AQ_OK);
    assert_int_equal(aq_owned_claim(in("m"), AQ_OWNED_CACHE, AQ_OWNED_MAKE_NONE, &ours), AQ_REFUSED);
    /* A daemon's run folder, which has no run.json. */
    assert_int_equal(aq_run_make_folder(in("d/logs")), AQ_OK);
    assert_int_equal(aq_owned_claim_run(in("d"), AQ_OWNED_MAKE_NONE, &run, NULL), AQ_REFUSED);
    assert_int_equal(aq_owned_claim_run(in("d"), AQ_OWNED_MAKE_NONE, &later, NULL), AQ_OK);
}

static void test_only_our_checkpoints_are_forgotten(void **state)
{
    (void)state;
    char victim[96];
    assert_int_equal(aq_owned_claim(in("c"), AQ_OWNED_CHECKPOINT, AQ_OWNED_MAKE_ALL, &ours), AQ_OK);
    for (int step = 1; step <= 5; step++) {
        char name[64];
        snprintf(name, sizeof name, "c/%d", step);
        assert_int_equal(mkdir(in(name), 0700), 0);
        snprintf(name, sizeof name, "c/%d/stage-0.safetensors", step);
        put_checkpoint(name, step == 5 ? hash_theirs : hash_ours);
    }
    put_checkpoint("c/1/mirror-stage-12.safetensors", hash_ours);
    put("c/1/stage-3.safetensors.partial", "half");
    put("c/2/notes.txt", "theirs");
    put("c/2/stage-1.safetensors", "no checkpoint of ours");
    put_checkpoint("c/2/stage-2.safetensors", "");
    put("c/2/stage-1.safetensors.bak", "theirs");
    assert_int_equal(mkdir(in("c/20231105"), 0700), 0);
    assert_int_equal(mkdir(in("c/77"), 0700), 0);
    put("c/20231105/photo", "theirs");
    snprintf(victim, sizeof victim, "%s", in("victim"));
    assert_int_equal(mkdir(victim, 0700), 0);
    put_checkpoint("victim/stage-0.safetensors", hash_ours);
    assert_int_equal(symlink(victim, in("c/6")), 0);

    assert_int_equal(aq_owned_forget(in("c"), &theirs, 1), AQ_REFUSED);
    assert_true(there("c/1/stage-0.safetensors"));
    assert_int_equal(aq_owned_forget(in("c"), &ours, 1), AQ_OK);
    assert_false(there("c/1"));
    assert_int_equal(aq_owned_forget(in("c"), &ours, 2), AQ_OK);
    assert_false(there("c/2/stage-0.safetensors"));
    assert_true(there("c/2/notes.txt") && there("c/2/stage-1.safetensors") && there("c/2/stage-2.safetensors"));
    assert_true(there("c/2/stage-1.safetensors.bak"));
    assert_int_equal(aq_owned_forget(in("c"), &ours, 5), AQ_OK);
    assert_true(there("c/5/stage-0.safetensors"));
    assert_int_equal(aq_owned_forget(in("c"), &ours, 6), AQ_OK);
    assert_int_equal(aq_owned_forget(in("c"), &ours, 20231105), AQ_OK);
    assert_int_equal(aq_owned_forget(in("c"), &ours, 77), AQ_OK);
    assert_int_equal(aq_owned_forget(in("c"), &ours, 999), AQ_OK);
    assert_true(there("c/20231105/photo") && there("c/77") && there("victim/stage-0.safetensors") && there("c/6"));

    put("c/complete", "x");
    put("c/other", "theirs");
    assert_int_equal(aq_owned_clear_checkpoints(in("c"), &ours), AQ_OK);
    assert_false(there("c/3") || there("c/4") || there("c/complete"));
    assert_true(there("c/20231105/photo") && there("c/77") && there("victim/stage-0.safetensors") && there("c/other"));
    assert_true(there("c/5/stage-0.safetensors") && there("c/2/notes.txt") && there("c/" AQ_OWNED_MARKER));
}

/* Where a folder of checkpoints is shared, all who write there forget the same step at the same time. */
static void test_two_forget_the_same_steps(void **state)
{
    (void)state;
    enum { STEPS = 200 };
    char name[64];
    assert_int_equal(aq_owned_claim(in("c"), AQ_OWNED_CHECKPOINT, AQ_OWNED_MAKE_ALL, &ours), AQ_OK);
    for (int step = 1; step <= STEPS; step++) {
        snprintf(name, sizeof name, "c/%d", step);
        assert_int_equal(mkdir(in(name), 0700), 0);
        for (int rank = 0; rank < 4; rank++) {
            snprintf(name, sizeof name, "c/%d/stage-%d.safetensors", step, rank);
            put_checkpoint(name, hash_ours);
        }
    }
    const pid_t child = fork();
    assert_true(child >= 0);
    int failed = 0;
    for (uint64_t step = 1; step <= STEPS; step++)
        failed += aq_owned_forget(in("c"), &ours, step) != AQ_OK;
    failed += captured_has("keeps 'stage-");
    if (child == 0) _exit(failed != 0);
    int ended;
    assert_int_equal(waitpid(child, &ended, 0), child);
    assert_int_equal(failed, 0);
    assert_true(WIFEXITED(ended) && WEXITSTATUS(ended) == 0);
    assert_false(there("c/7"));
}

static void put_sealed(const char *name, uint64_t resume_hash)
{
    static const uint8_t key[AQ_SEAL_KEY_BYTES] = {1};
    const struct aq_seal_about about = {.resume_hash = resume_hash, .step = 1, .file_bytes = 10};
    uint8_t head[AQ_SEAL_HEAD_BYTES];
    struct aq_seal *seal;
    assert_int_equal(aq_seal_new(&seal), AQ_OK);
    assert_int_equal(aq_seal_begin(seal, key, &about, head), AQ_OK);
    aq_seal_close(seal);
    assert_int_equal(aq_file_replace(NULL, in(name), 0600, (const char *)head, sizeof head), AQ_OK);
}

/* A neighbour's copy that this host cannot read says of which run it is; one's own file is never sealed. */
static void test_sealed_copies_of_our_run_are_forgotten(void **state)
{
    (void)state;
    assert_int_equal(aq_owned_claim(in("c"), AQ_OWNED_CHECKPOINT, AQ_OWNED_MAKE_ALL, &ours), AQ_OK);
    assert_int_equal(mkdir(in("c/1"), 0700), 0);
    put_sealed("c/1/mirror-stage-0.safetensors", ours.resume_hash);
    put_sealed("c/1/mirror-stage-1.safetensors", ours.resume_hash + 1);
    put_sealed("c/1/stage-2.safetensors", ours.resume_hash);
    assert_int_equal(aq_owned_forget(in("c"), &ours, 1), AQ_OK);
    assert_false(there("c/1/mirror-stage-0.safetensors"));
    assert_true(there("c/1/mirror-stage-1.safetensors") && there("c/1/stage-2.safetensors"));
}

static void test_a_run_is_cleared_of_its_own_names(void **state)
{
    (void)state;
    struct aq_owner owner = {.job = "demo"};
    assert_int_equal(aq_owned_claim_run(in("run"), AQ_OWNED_MAKE_ALL, &owner, NULL), AQ_OK);
    assert_int_equal(mkdir(in("run/logs"), 0700), 0);
    put("run/metrics.jsonl", "");
    put("run/model.safetensors", "");
    put("run/logs/stage-0.log", "");
    put("run/logs/stage-0.log.1", "");
    put("run/thesis.tex", "theirs");
    put("run/model-1.safetensors", "theirs");
    put("run/model-00001-of-00002.safetensors.bak", "theirs");
    put("run/model-00001-of-00002.safetensors", "");
    put("run/model-00002-of-00002.safetensors.partial", "");
    put("run/model.safetensors.index.json", "");
    put("run/chat_template.jinja", "");
    put("run/generation_config.json.new", "");
    assert_int_equal(mkdir(in("run/adapter"), 0700), 0);
    assert_int_equal(mkdir(in("run/best"), 0700), 0);
    assert_int_equal(mkdir(in("run/best/adapter"), 0700), 0);
    put("run/adapter/adapter_config.json", "");
    put("run/adapter/adapter_model.safetensors", "");
    put("run/best/adapter/adapter_model.safetensors.partial", "");
    put("run/best/model.safetensors", "");
    put("run/best/thesis.tex", "theirs");
    assert_int_equal(aq_owned_clear_run(in("run"), &owner), AQ_OK);
    assert_false(there("run/adapter") || there("run/best/adapter") || there("run/best/model.safetensors"));
    assert_true(there("run/best/thesis.tex"));
    assert_false(there("run/metrics.jsonl") || there("run/model.safetensors") || there("run/logs"));
    assert_false(there("run/model-00001-of-00002.safetensors") || there("run/model.safetensors.index.json") ||
                 there("run/model-00002-of-00002.safetensors.partial") || there("run/chat_template.jinja") ||
                 there("run/generation_config.json.new"));
    assert_true(there("run/thesis.tex") && there("run/model-1.safetensors") &&
                there("run/model-00001-of-00002.safetensors.bak"));
    assert_int_equal(mkdir(in("run/logs"), 0700), 0);
    put("run/logs/stage-0.log", "");
    put("run/logs/diary.log", "theirs");
    assert_int_equal(aq_owned_clear_run(in("run"), &owner), AQ_OK);
    assert_true(there("run/logs/diary.log") && !there("run/logs/stage-0.log"));
    assert_int_equal(remove_tree(in("run/logs")), 0);
    assert_int_equal(mkdir(in("victim"), 0700), 0);
    put("victim/stage-0.log", "theirs");
    put("victim/model.safetensors", "theirs");
    assert_int_equal(symlink(in("victim"), in("run/adapter")), 0);
    assert_int_equal(aq_owned_clear_run(in("run"), &owner), AQ_REFUSED);
    assert_true(there("victim/model.safetensors"));
    assert_int_equal(remove(in("run/adapter")), 0);
    assert_int_equal(symlink(in("victim"), in("run/logs")), 0);
    assert_int_equal(aq_owned_clear_run(in("run"), &owner), AQ_REFUSED);
    assert_true(there("victim/stage-0.log"));
}

/* W&B keeps a folder per run, and links into the newest. The id in report_to.json tells which are this run's. */
static void test_a_run_is_cleared_of_what_wandb_was_sent(void **state)
{
    static const char *const folders[] = {"run/wandb", "run/wandb/offline-run-20261128_111540-a1b2",
                                          "run/wandb/offline-run-20261128_111540-a1b2/files",
                                          "run/wandb/run-20261128_121540-a1b2", "run/wandb/run-20261128_121540-a1b2x"};
    (void)state;
    struct aq_owner owner = {.job = "demo"};
    assert_int_equal(aq_owned_claim_run(in("run"), AQ_OWNED_MAKE_ALL, &owner, NULL), AQ_OK);
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
        assert_int_equal(mkdir(in(folders[i]), 0700), 0);
    put("run/wandb/offline-run-20261128_111540-a1b2/files/config.yaml", "");
    put("run/wandb/run-20261128_121540-a1b2x/output.log", "theirs");
    assert_int_equal(symlink("run-20261128_121540-a1b2", in("run/wandb/latest-run")), 0);
    assert_int_equal(symlink("run-20261128_121540-a1b2x/output.log", in("run/wandb/debug.log")), 0);
    assert_int_equal(aq_owned_clear_run(in("run"), &owner), AQ_OK);
    assert_true(there("run/wandb/offline-run-20261128_111540-a1b2")); /* no id: nothing shows that it is ours */
    put("run/report_to.json", "{\"wandb\": {\"id\": \"../run\"}}");
    assert_int_equal(aq_owned_clear_run(in("run"), &owner), AQ_OK);
    put("run/report_to.json", "{\"wandb\": {\"id\": \"a1b2\", \"project\": \"aqpipe\"}}");
    assert_int_equal(aq_owned_clear_run(in("run"), &owner), AQ_OK);
    assert_false(there("run/wandb/offline-run-20261128_111540-a1b2") || there("run/wandb/run-20261128_121540-a1b2"));
    assert_false(there("run/wandb/latest-run") || there("run/report_to.json"));
    assert_true(there("run/wandb/run-20261128_121540-a1b2x/output.log") && there("run/wandb/debug.log"));
    assert_int_equal(remove_tree(in("run/wandb/run-20261128_121540-a1b2x")), 0);
    assert_int_equal(remove(in("run/wandb/debug.log")), 0);
    assert_int_equal(mkdir(in("run/wandb/run-20261128_121540-a1b2"), 0700), 0);
    put("run/report_to.json", "{\"wandb\": {\"id\": \"a1b2\"}}");
    assert_int_equal(aq_owned_clear_run(in("run"), &owner), AQ_OK);
    assert_false(there("run/wandb")); /* empty */
    assert_int_equal(mkdir(in("scratch"), 0700), 0); /* a link leads to a folder that is not the run's */
    assert_int_equal(mkdir(in("scratch/run-20261128_121540-a1b2"), 0700), 0);
    assert_int_equal(symlink("../scratch", in("run/wandb")), 0);
    put("run/report_to.json", "{\"wandb\": {\"id\": \"a1b2\"}}");
    assert_int_equal(aq_owned_clear_run(in("run"), &owner), AQ_OK);
    assert_true(there("scratch/run-20261128_121540-a1b2") && there("run/wandb") && !there("run/report_to.json"));
}

static void test_scratch_folders_alone_are_removed_whole(void **state)
{
    (void)state;
    char path[128];
    snprintf(path, sizeof path, "%s/scratch-XXXXXX", root);
    assert_int_equal(aq_owned_scratch_make(path), AQ_OK);
    const char *name = path + strlen(root) + 1;
    char inner[160];
    snprintf(inner, sizeof inner, "%s/a/b/c", name);
    assert_int_equal(aq_run_make_folder(in(inner)), AQ_OK);
    put("outside", "stays");
    snprintf(inner, sizeof inner, "%s/a/link", name);
    assert_int_equal(symlink(root, in(inner)), 0);
    assert_int_equal(aq_owned_scratch_remove(path, "a"), AQ_OK);
    snprintf(inner, sizeof inner, "%s/a", name);
    assert_true(there(name) && !there(inner) && there("outside"));
    assert_int_equal(aq_owned_scratch_remove(path, NULL), AQ_OK);
    assert_false(there(name));
    assert_int_equal(aq_owned_claim(in("c"), AQ_OWNED_CHECKPOINT, AQ_OWNED_MAKE_ALL, &ours), AQ_OK);
    assert_int_equal(aq_owned_scratch_remove(in("c"), NULL), AQ_REFUSED);
    assert_true(there("c"));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_a_folder_is_ours_when_it_was_made_or_empty),
        TEST(test_a_marker_that_was_not_finished_counts_as_none),
        TEST(test_a_folder_of_somebody_else_is_left_alone),
        TEST(test_a_disk_that_is_gone_is_not_made_anew),
        TEST(test_a_runs_id_is_kept_and_its_first_checkpoint_noted),
        TEST(test_folders_from_before_markers_need_proof),
        TEST(test_only_our_checkpoints_are_forgotten),
        TEST(test_two_forget_the_same_steps),
        TEST(test_sealed_copies_of_our_run_are_forgotten),
        TEST(test_a_run_is_cleared_of_its_own_names),
        TEST(test_a_run_is_cleared_of_what_wandb_was_sent),
        TEST(test_scratch_folders_alone_are_removed_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
