/*
 * fuzz_mirror.c -- any sequence of frames as what the neighbour of a stage says of copies of checkpoints, while this
 * stage sends its own, fetches it, trains or waits: no assertion, and nothing on the disk but copies that were due.
 *
 * The link is played by this file (its calls are wrapped by the linker), the mirror's thread is waited for after each
 * move (pushes to its rings are counted), so that an input does the same each time.
 *
 * Byte 0: bit 0 the stage, bit 1 whether it goes on from step 6, bit 2 whether it has lost its file and fetches it, bit
 * 3 whether copies are sealed. Then moves of 5 bytes: what, step, how, length (2 bytes), and behind them the body.
 */
#include <dirent.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "edge.h"
#include "fuzz.h"
#include "job.h"
#include "mirror.h"
#include "plan.h"
#include "seal.h"

enum { TOKENS_MAX = 64, MOVE_BYTES = 5, OWN_BYTES = 3000, STEPS = 3, BYTES_MAX = 1 << 20 };
enum { PIECE = 1, TAKEN, END, KEPT, WANT, DUE = 8, TRAIN, SEND };

static const char manifest[] = "model: {blocks: 2, heads: 2, channels: 6, context: 4, vocabulary: 256, tied: false}\n"
                               "data: {train: nowhere.txt}\n"
                               "train: {T: 4, batch: 6, micro_batch: 3, epochs: 5}\n"
                               "pipeline: {stages: 2}\n"
                               "edges: {forward: {codec: directq, bits: 4}, backward: {codec: directq, bits: 8}}\n"
                               "link: {send_frames: 4, receive_slots: 2}\n"
                               "checkpoint: {mirror: true}\n"
                               "facts: {vocabulary: 256, train_samples: 6, train_digest: 1, heldout_samples: 0}\n";
static const uint64_t steps[STEPS] = {6, 12, 18};

static struct aq_plan *plan;
static struct aq_device *device;
static struct aq_eventcount *eventcount;

/* --- the link, and the rings of the thread --- */

static struct {
    struct aq_frame frame; /* the next one, once */
    bool there;
    uint32_t out; /* bodies that the mirror holds */
    uint64_t tokens[TOKENS_MAX];
    uint32_t token_count;
} wire;
static atomic_uint pushes; /* two for each job: there and back. Release and acquire: what a job did is seen then */

enum aq_status __wrap_aq_link_poll(struct aq_link *link, struct aq_link_event *out);
enum aq_status __wrap_aq_link_send(struct aq_link *link, const struct aq_frame *frame, uint64_t token);
void __wrap_aq_link_release(struct aq_link *link, const void *body);
bool __real_aq_ring_push(struct aq_ring *ring, uint64_t token);
bool __wrap_aq_ring_push(struct aq_ring *ring, uint64_t token);

bool __wrap_aq_ring_push(struct aq_ring *ring, uint64_t token)
{
    const bool pushed = __real_aq_ring_push(ring, token);
    atomic_fetch_add_explicit(&pushes, 1, memory_order_release);
    return pushed;
}

enum aq_status __wrap_aq_link_poll(struct aq_link *link, struct aq_link_event *out)
{
    (void)link;
    if (wire.token_count > 0) {
        *out = (struct aq_link_event){.kind = AQ_LINK_SENT, .token = wire.tokens[--wire.token_count]};
        return AQ_OK;
    }
    if (!wire.there) return AQ_AGAIN;
    wire.there = false;
    *out = (struct aq_link_event){.kind = AQ_LINK_RECEIVED, .frame = wire.frame};
    if (out->frame.body) wire.out++;
    return AQ_OK;
}

enum aq_status __wrap_aq_link_send(struct aq_link *link, const struct aq_frame *frame, uint64_t token)
{
    (void)link;
    if (wire.token_count == TOKENS_MAX) return AQ_AGAIN;
    AQ_ASSERT(frame->body_bytes == 0 || frame->body);
    wire.tokens[wire.token_count++] = token;
    return AQ_OK;
}

void __wrap_aq_link_release(struct aq_link *link, const void *body)
{
    (void)link;
    AQ_ASSERT(body && wire.out > 0);
    wire.out--;
}

/* --- the disk --- */

static void name_of(char name[64], uint64_t step, const char *file, uint32_t stage)
{
    snprintf(name, 64, "%" PRIu64 "/%sstage-%u.safetensors", step, file, stage);
}

/* What is there, all of it removed; nothing but files of the three steps, no more than copies can be long. */
static void disk_check(void)
{
    DIR *top = opendir(fuzz_folder());
    uint64_t bytes = 0;
    const struct dirent *folder, *file;
    while (top && (folder = readdir(top))) {
        char path[512], below[1024];
        if (folder->d_name[0] == '.') continue;
        const bool ours =
            strcmp(folder->d_name, "6") == 0 || strcmp(folder->d_name, "12") == 0 || strcmp(folder->d_name, "18") == 0;
        AQ_ASSERT(ours);
        snprintf(path, sizeof path, "%s/%s", fuzz_folder(), folder->d_name);
        DIR *open = opendir(path);
        while (open && (file = readdir(open))) {
            struct stat info;
            if (file->d_name[0] == '.') continue;
            snprintf(below, sizeof below, "%s/%.200s", path, file->d_name);
            if (lstat(below, &info) == 0) bytes += (uint64_t)info.st_size;
            unlink(below);
        }
        if (open) closedir(open);
        rmdir(path);
    }
    if (top) closedir(top);
    AQ_ASSERT(bytes < BYTES_MAX);
}

static void start(void)
{
    struct aq_job *job; /* the plan borrows it; both live as long as the process */
    const struct aq_device_config config = {.kind = "cpu", .threads = 1};
    if (device) return;
    AQ_ASSERT(aq_device_open(&config, &device) == AQ_OK);
    AQ_ASSERT(aq_eventcount_open(&eventcount) == AQ_OK);
    AQ_ASSERT(aq_job_parse(manifest, sizeof manifest - 1, "fuzz.yaml", "/", NULL, 0, &job) == AQ_OK);
    AQ_ASSERT(aq_plan_open(job, &plan) == AQ_OK);
    fuzz_quiet();
}

/* --- the input --- */

struct state {
    struct aq_edge *edge;
    struct aq_mirror *mirror;
    uint64_t at, digest; /* of the copy that the neighbour is sending: what would be right next */
    bool sent;           /* this stage's own file, of a step: each once */
};

/* The thread has done what it was given, and the mirror has taken it up. */
static enum aq_status settle(struct state *state)
{
    do {
        while (atomic_load_explicit(&pushes, memory_order_acquire) % 2 == 1) {
            const uint32_t seen = aq_eventcount_read(eventcount);
            if (atomic_load_explicit(&pushes, memory_order_acquire) % 2 == 1)
                (void)aq_eventcount_wait(eventcount, seen, aq_clock_after(1000000));
        }
        AQ_TRY(aq_edge_pump(state->edge));
        AQ_TRY(aq_mirror_pump(state->mirror, true));
    } while (atomic_load_explicit(&pushes, memory_order_acquire) % 2 == 1 || wire.token_count > 0);
    return AQ_OK;
}

static enum aq_status say(struct state *state, uint8_t what, uint64_t step, uint8_t how, struct fuzz_piece body)
{
    wire.frame = (struct aq_frame){.kind = AQ_FRAME_MIRROR,
                                   .flags = what % 8,
                                   .step = step,
                                   .body = body.count ? body.bytes : NULL,
                                   .body_bytes = (uint32_t)body.count};
    if (what == PIECE) {
        wire.frame.argument = how % 4 ? state->at : how;
        state->at += body.count;
        state->digest = aq_digest_seeded(body.bytes, body.count, state->digest);
    } else if (what == END) {
        wire.frame.argument = how % 4 ? state->digest : how;
        state->at = state->digest = 0;
    }
    wire.there = true;
    return AQ_OK;
}

static enum aq_status move(struct state *state, struct fuzz_piece *rest)
{
    const uint8_t what = fuzz_byte(rest) % 16, which = fuzz_byte(rest), how = fuzz_byte(rest);
    const uint64_t step = which < 192 ? steps[which % STEPS] : which;
    uint32_t bytes = fuzz_byte(rest);
    bytes |= (uint32_t)fuzz_byte(rest) << 8;
    if (bytes > rest->count) bytes = (uint32_t)rest->count;
    if (bytes > plan->edges[0].size.body_bytes_max)
        bytes = (uint32_t)plan->edges[0].size.body_bytes_max; /* the link's own promise */
    if (what == DUE)
        aq_mirror_due(state->mirror, steps[which % STEPS], how % 2 ? steps[how / 2 % STEPS] : 0);
    else if (what == TRAIN)
        aq_mirror_train(state->mirror);
    else if (what == SEND && !state->sent && aq_mirror_done(state->mirror) != AQ_AGAIN) {
        state->sent = true;
        aq_mirror_send(state->mirror, steps[which % STEPS]);
        const enum aq_status status = aq_mirror_done(state->mirror);
        if (status != AQ_AGAIN) AQ_TRY(status);
    } else if (what < DUE) {
        AQ_TRY(say(state, what, step, how, (struct fuzz_piece){rest->bytes, bytes}));
        rest->bytes += bytes;
        rest->count -= bytes;
    }
    return settle(state);
}

static enum aq_status play(struct state *state, struct fuzz_piece rest, bool fetch)
{
    if (fetch) AQ_TRY(aq_mirror_fetch(state->mirror, 6));
    AQ_TRY(settle(state));
    while (rest.count >= MOVE_BYTES)
        AQ_TRY(move(state, &rest));
    return AQ_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint8_t own[OWN_BYTES] = {1, 2, 3}, key[AQ_SEAL_KEY_BYTES] = {4};
    struct fuzz_piece rest = {data, size};
    struct state state = {0};
    char name[64], hash[AQ_HASH_TEXT_BYTES];
    struct aq_hash *made;
    start();
    const uint8_t which = fuzz_byte(&rest);
    const uint32_t stage = which % 2;
    memset(&wire, 0, sizeof wire);
    AQ_ASSERT(aq_hash_open(&made) == AQ_OK);
    aq_hash_begin(made);
    aq_hash_add(made, own, sizeof own);
    aq_hash_end(made, hash);
    aq_hash_close(made);
    for (int i = 0; i < 2; i++) { /* one's own files, and the copy of a neighbour's */
        snprintf(name, sizeof name, "%" PRIu64, steps[i]);
        fuzz_make_folder(name);
        name_of(name, steps[i], i ? "" : "mirror-", i ? stage : 1 - stage);
        fuzz_write(name, own, sizeof own);
    }
    const struct aq_edge_config edge = {.device = device,
                                        .shape = &plan->edges[0].shape,
                                        .sender = stage == 0,
                                        .eventcount = eventcount,
                                        .mirror = true};
    AQ_ASSERT(aq_edge_open(&edge, &state.edge) == AQ_OK);
    struct aq_mirror_config config = {.folder = fuzz_folder(),
                                      .in = stage == 1 ? state.edge : NULL,
                                      .out = stage == 0 ? state.edge : NULL,
                                      .eventcount = eventcount,
                                      .resumed = which / 2 % 2 ? 6 : 0,
                                      .key = which / 8 % 2 ? key : NULL,
                                      .hash = hash};
    aq_plan_mirror_shape(plan, stage, &config.shape);
    AQ_ASSERT(aq_mirror_open(&config, &state.mirror) == AQ_OK);
    fuzz_told(play(&state, rest, which / 4 % 2) == AQ_OK);
    aq_mirror_close(state.mirror);
    atomic_store_explicit(&pushes, 0, memory_order_release); /* jobs that nobody waits for any more */
    aq_edge_close(state.edge);
    disk_check();
    return 0;
}
