/*
 * neighbour_kit.h -- an edge, and where wanted the copies of checkpoints, of one stage, and beside it a neighbour that
 * says whatever a test wants: the bare other end of the link.
 *
 * The victim is stage 1 of two (it receives activations, keeps the copies of stage 0, and has its own there) or stage 0
 * (the other way round). Deadlines are PAIR_PATIENCE: what is awaited comes soon or never.
 */
#ifndef TESTS_NEIGHBOUR_KIT_H
#define TESTS_NEIGHBOUR_KIT_H

#include <dirent.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "edge_private.h"
#include "job.h"
#include "link_pair.h"
#include "mirror.h"
#include "plan.h"

enum { KIT_B = 3, KIT_T = 4, KIT_C = 6, KIT_N = KIT_T * KIT_C, KIT_SAMPLES = 6, KIT_PATH = 256 };

static const char kit_manifest[] =
    "model: {blocks: 2, heads: 2, channels: 6, context: 4, vocabulary: 4096, tied: false}\n"
    "data: {train: nowhere.txt}\n"
    "train: {T: 4, batch: 6, micro_batch: 3, epochs: 9}\n"
    "pipeline: {stages: 2}\n"
    "edges: {forward: {codec: %s}, backward: {codec: directq, bits: 8}}\n"
    "link: {send_frames: 4, receive_slots: 3}\n"
    "cache: {kind: memory, slots: 32}\n"
    "checkpoint: {mirror: true, every: 6 steps}\n"
    "facts: {vocabulary: 4096, train_samples: 6, train_digest: 1, heldout_samples: 6, "
    "heldout_digest: 2}\n";

static uint64_t kit_shared;     /* floats of gradients that both ends share */
static uint64_t kit_tied;       /* words of a tied table                     */
static uint64_t kit_summed;     /* and of those that are summed over clients */
static uint64_t kit_silence_ns; /* that a victim bears; 0: PAIR_PATIENCE */

struct kit {
    uint32_t stage; /* the victim's */
    const char *codec, *device_kind;
    struct aq_job *job;
    struct aq_plan *plan;
    struct aq_device *device;
    struct link_pair pair; /* 0: the victim, 1: the neighbour */
    struct aq_cache *cache;
    struct aq_edge *edge;
    struct aq_mirror *mirror; /* NULL: none wanted */
    char folder[KIT_PATH];
};

static inline void kit_plan(struct kit *kit)
{
    char text[2048];
    const int bytes = snprintf(text, sizeof text, kit_manifest, kit->codec ? kit->codec : "aqsgd, bits: 4");
    assert_int_equal(aq_job_parse(text, (size_t)bytes, "test.yaml", "/", NULL, 0, &kit->job), AQ_OK);
    assert_int_equal(aq_plan_open(kit->job, &kit->plan), AQ_OK);
}

/* The victim's edge, and the link to a neighbour that has said who it is. */
static inline void kit_open(struct kit *kit)
{
    const struct aq_device_config device = {.kind = kit->device_kind ? kit->device_kind : "cpu", .threads = 1};
    kit_plan(kit);
    const struct aq_plan_stage *stages = kit->plan->stages;
    assert_int_equal(aq_device_open(&device, &kit->device), AQ_OK);
    kit->pair.config[kit->stage == 0 ? 0 : 1] = stages[0].link_out;
    kit->pair.config[kit->stage == 0 ? 1 : 0] = stages[1].link_in;
    kit->pair.config[1].send_frames = 64;
    kit->pair.config[1].receive_slots = 16;
    kit->pair.config[1].silence_ns_max = kit->pair.config[1].outage_ns_max = 0;
    kit->pair.config[0].silence_ns_max = kit->pair.config[0].outage_ns_max = 0;
    kit->pair.config[0].send_frames += 8 + AQ_MIRROR_FRAMES;
    pair_open(&kit->pair, "sim", "");
    if (kit->plan->edges[0].size.message_bytes) {
        struct aq_cache_config cache = stages[kit->stage].cache;
        cache.eventcount = kit->pair.eventcount;
        cache.job_name = "test";
        assert_int_equal(aq_cache_open(&cache, &kit->cache), AQ_OK);
    }
    struct aq_edge_shape shape = kit->plan->edges[0].shape;
    shape.shared = kit_shared;
    shape.tied = kit_tied;
    shape.summed = kit_summed;
    const struct aq_edge_config edge = {.device = kit->device,
                                        .shape = &shape,
                                        .sender = kit->stage == 0,
                                        .link = kit->pair.link[0],
                                        .cache = kit->cache,
                                        .eventcount = kit->pair.eventcount,
                                        .silence_ns = kit_silence_ns ? kit_silence_ns : PAIR_PATIENCE * 1000000000ull,
                                        .mirror = true};
    assert_int_equal(aq_edge_open(&edge, &kit->edge), AQ_OK);
    aq_error_clear();
}

/* The neighbour is gone, and what the victim has lent to its link is its own again: only then its memory may go. */
static inline void kit_hang_up(struct kit *kit)
{
    struct aq_link_event event = {0};
    if (!kit->pair.link[1]) return;
    aq_link_close(kit->pair.link[1]);
    kit->pair.link[1] = NULL;
    while (kit->edge->ended == AQ_OK && event.kind != AQ_LINK_CLOSED) {
        const uint32_t seen = aq_eventcount_read(kit->pair.eventcount);
        if (aq_link_poll(kit->pair.link[0], &event) == AQ_AGAIN)
            assert_int_equal(aq_eventcount_wait(kit->pair.eventcount, seen, PAIR_SECONDS(PAIR_PATIENCE)), AQ_OK);
        else if (event.kind == AQ_LINK_RECEIVED && event.frame.body)
            aq_link_release(kit->pair.link[0], event.frame.body);
    }
    aq_link_halt(kit->pair.link[0]); /* it may still read the edge's bodies */
}

static inline void kit_close(struct kit *kit)
{
    kit_hang_up(kit);
    aq_mirror_close(kit->mirror);
    aq_edge_close(kit->edge);
    pair_close(&kit->pair);
    aq_cache_close(kit->cache);
    aq_device_close(kit->device);
    aq_plan_close(kit->plan);
    aq_job_close(kit->job);
}

/* The neighbour says something. */
static inline void kit_say(struct kit *kit, const struct aq_frame *frame)
{
    struct aq_link_event event;
    for (;;) {
        const uint32_t seen = aq_eventcount_read(kit->pair.eventcount);
        const enum aq_status status = aq_link_send(kit->pair.link[1], frame, 0);
        if (status != AQ_AGAIN) return; /* a link that has ended takes no more, which is as good */
        while (aq_link_poll(kit->pair.link[1], &event) == AQ_OK)
            if (event.kind == AQ_LINK_RECEIVED && event.frame.body)
                aq_link_release(kit->pair.link[1], event.frame.body);
        if (aq_link_send(kit->pair.link[1], frame, 0) != AQ_AGAIN) return;
        assert_int_equal(aq_eventcount_wait(kit->pair.eventcount, seen, PAIR_SECONDS(PAIR_PATIENCE)), AQ_OK);
    }
}

/* One turn of the victim. */
static inline enum aq_status kit_turn(struct kit *kit)
{
    AQ_TRY(aq_edge_pump(kit->edge));
    return kit->mirror ? aq_mirror_pump(kit->mirror, true) : AQ_OK;
}

/* The next frame from the victim, which goes on meanwhile; or why it ended. */
static inline enum aq_status kit_hear(struct kit *kit, struct aq_frame *frame)
{
    struct aq_link_event event;
    for (;;) {
        const uint32_t seen = aq_eventcount_read(kit->pair.eventcount);
        AQ_TRY(kit_turn(kit));
        while (aq_link_poll(kit->pair.link[1], &event) == AQ_OK) {
            assert_int_not_equal(event.kind, AQ_LINK_CLOSED);
            if (event.kind != AQ_LINK_RECEIVED) continue;
            *frame = event.frame;
            return AQ_OK;
        }
        assert_int_equal(aq_eventcount_wait(kit->pair.eventcount, seen, PAIR_SECONDS(PAIR_PATIENCE)), AQ_OK);
    }
}

/* Has the victim taken what it should refuse? Other frames are passed over. */
static inline bool kit_took(struct kit *kit)
{
    enum { TAKEN = 2, KEPT = 4 };
    struct aq_link_event event;
    bool took = false;
    while (aq_link_poll(kit->pair.link[1], &event) == AQ_OK) {
        if (event.kind != AQ_LINK_RECEIVED) continue;
        const struct aq_frame *frame = &event.frame;
        took |= frame->kind == AQ_FRAME_MIRROR && (frame->flags == TAKEN || frame->flags == KEPT);
        if (frame->body) aq_link_release(kit->pair.link[1], frame->body);
    }
    return took;
}

/* The victim goes on until it refuses; its line says all of what is wanted (NULL: nothing more). */
static inline void kit_refuses(struct kit *kit, enum aq_status want, const char *one, const char *other)
{
    enum aq_status status = AQ_OK;
    for (;;) {
        const uint32_t seen = aq_eventcount_read(kit->pair.eventcount);
        status = kit_turn(kit);
        if (status != AQ_OK) break;
        assert_false(kit_took(kit));
        assert_int_equal(aq_eventcount_wait(kit->pair.eventcount, seen, PAIR_SECONDS(PAIR_PATIENCE)), AQ_OK);
    }
    const char *text = aq_error_text();
    if (status != want || (one && !strstr(text, one)) || (other && !strstr(text, other)))
        fail_msg("status %d (%s), wanted %d with '%s' and '%s'", status, text, want, one ? one : "",
                 other ? other : "");
    assert_null(strchr(text, '\n'));
}

/* ---- a folder of this process ---- */

static inline void kit_folder(struct kit *kit)
{
    const char *shared = getenv("TMPDIR");
    snprintf(kit->folder, sizeof kit->folder, "%s/aq-neighbour-XXXXXX", shared ? shared : "/tmp");
    assert_non_null(mkdtemp(kit->folder));
}

static inline void kit_path(const struct kit *kit, const char *name, char *path)
{
    assert_true(snprintf(path, KIT_PATH, "%s/%s", kit->folder, name) < KIT_PATH);
}

static inline bool kit_there(const struct kit *kit, const char *name)
{
    char path[KIT_PATH];
    struct stat info;
    kit_path(kit, name, path);
    return lstat(path, &info) == 0;
}

/* A file, or (bytes NULL) a folder. */
static inline void kit_put(const struct kit *kit, const char *name, const void *bytes, size_t count)
{
    char path[KIT_PATH];
    kit_path(kit, name, path);
    if (!bytes) {
        assert_int_equal(mkdir(path, 0700), 0);
        return;
    }
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

static inline size_t kit_get(const struct kit *kit, const char *name, void *bytes, size_t room)
{
    char path[KIT_PATH];
    kit_path(kit, name, path);
    FILE *file = fopen(path, "re");
    if (!file) return 0;
    const size_t count = fread(bytes, 1, room, file);
    fclose(file);
    return count;
}

/* Files below the folder, two levels; with `remove` they go. *bytes gets what they hold. */
static inline unsigned kit_files(const char *folder, bool remove, uint64_t *bytes)
{
    unsigned count = 0;
    DIR *open = opendir(folder);
    const struct dirent *entry;
    while (open && (entry = readdir(open))) {
        char path[2 * KIT_PATH];
        struct stat info;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        assert_true(snprintf(path, sizeof path, "%s/%s", folder, entry->d_name) < (int)sizeof path);
        assert_int_equal(lstat(path, &info), 0);
        if (S_ISDIR(info.st_mode)) {
            count += kit_files(path, remove, bytes);
            continue;
        }
        count++;
        *bytes += (uint64_t)info.st_size;
        if (remove) unlink(path);
    }
    if (open) closedir(open);
    if (remove) rmdir(folder);
    return count;
}

#endif
