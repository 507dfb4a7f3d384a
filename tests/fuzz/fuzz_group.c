/*
 * fuzz_group.c -- a rank of a group whose two neighbours say what the input tells them to. What good neighbours say in
 * a program of all collectives was recorded from three real ranks when the target began; the input lets it come late,
 * in another order, twice, not at all, with other fields or bytes, or ends a link in the midst.
 *
 * A good recording gives the recorded results, bit for bit; any other chunk than the one that is due is a status; bytes
 * of sums may be anything. Never a crash, a hang, a message given back twice, or memory that stays.
 *
 * Links are stood in for (fuzz_link has them): what they promise, AQ_GROUP_FRAMES bodies at most, holds here as well.
 */
#include <string.h>

#include "fuzz.h"
#include "group.h"
#include "link_state.h"

enum { RANKS = 3, PIECE_BYTES = AQ_GROUP_MESSAGE_BYTES_MIN, VALUES = 13001, SAID_MAX = 512, INPUT_BYTES_MAX = 4096 };

struct said {
    struct aq_frame frame;
    uint8_t *bytes;
};

struct way { /* from one rank to another */
    struct said said[SAID_MAX];
    uint32_t count, read;
};

struct end { /* a rank's end of a link */
    struct aq_link link;
    uint32_t sent; /* to be told */
};

static struct way ways[RANKS][RANKS];
static struct end ends[RANKS][RANKS];
static struct aq_mutex *mutex;
static struct aq_eventcount *eventcounts[RANKS];
static bool recording = true;
static struct aq_grad_codec *codec;
static bool agreeing; /* the last of the program */

struct results {
    float sums[VALUES], scattered[VALUES], compressed[VALUES];
    uint64_t lanes[400];
    uint8_t gathered[RANKS * 40000], all[RANKS * 300], told[20000];
};
static struct results right; /* rank 0's */

/* ---- links that are not there ---- */

static struct {
    struct fuzz_piece rest;
    uint32_t late, changes, given[RANKS];
    bool wrong; /* a chunk came that was not the one that is due */
    const void *lent[RANKS][AQ_GROUP_FRAMES];
    bool ended[RANKS], told[RANKS]; /* the end of a link is told once */
    uint64_t slept_ns;              /* the time that waits would have taken */
} play;

static void find(const struct aq_link *link, uint32_t *me, uint32_t *peer)
{
    for (*me = 0; *me < RANKS; ++*me)
        for (*peer = 0; *peer < RANKS; ++*peer)
            if (link == &ends[*me][*peer].link) return;
    AQ_ASSERT(false);
}

enum aq_status __wrap_aq_link_send(struct aq_link *link, const struct aq_frame *frame, uint64_t token);
enum aq_status __wrap_aq_link_poll(struct aq_link *link, struct aq_link_event *out);
void __wrap_aq_link_release(struct aq_link *link, const void *body);
enum aq_status __wrap_aq_eventcount_wait(struct aq_eventcount *eventcount, uint32_t seen, uint64_t deadline_ns);
enum aq_status __real_aq_eventcount_wait(struct aq_eventcount *eventcount, uint32_t seen, uint64_t deadline_ns);
uint64_t __wrap_aq_clock_ns(void);
uint64_t __real_aq_clock_ns(void);

enum aq_status __wrap_aq_link_send(struct aq_link *link, const struct aq_frame *frame, uint64_t token)
{
    uint32_t me, peer;
    void *copy;
    (void)token;
    find(link, &me, &peer);
    ends[me][peer].sent++;
    if (!recording) return AQ_OK;
    AQ_ASSERT(aq_alloc(frame->body_bytes, &copy) == AQ_OK);
    memcpy(copy, frame->body, frame->body_bytes);
    aq_mutex_lock(mutex);
    struct way *way = &ways[me][peer];
    AQ_ASSERT(way->count < SAID_MAX);
    way->said[way->count] = (struct said){.frame = *frame, .bytes = copy};
    way->said[way->count++].frame.body = copy;
    aq_mutex_unlock(mutex);
    aq_eventcount_notify(eventcounts[peer]);
    return AQ_OK;
}

static bool next_recorded(struct way *way, struct aq_frame *out)
{
    bool some = false;
    aq_mutex_lock(mutex);
    if (way->read < way->count) {
        *out = way->said[way->read++].frame;
        some = true;
    }
    aq_mutex_unlock(mutex);
    return some;
}

/* What a frame becomes. False: nothing of it comes. */
static bool change(struct way *way, uint32_t peer, struct aq_frame *frame, uint8_t how)
{
    const uint8_t value = fuzz_byte(&play.rest);
    play.changes++;
    switch (how % 12) {
    case 0:
        return false;
    case 1:
        way->read--;
        break; /* it comes once more */
    case 2:
        frame->flags ^= (uint16_t)(1u << value % 16);
        break;
    case 3:
        frame->step += value ? value : UINT64_MAX;
        break;
    case 4:
        frame->micro_batch ^= 1u << value % 32;
        break;
    case 5:
        frame->argument ^= UINT64_C(1) << value % 64;
        break;
    case 6:
        frame->body_bytes = value % 2 ? frame->body_bytes - 1 : PIECE_BYTES;
        break;
    case 7:
        frame->kind = (uint16_t)(16 + value % 9);
        break;
    case 8:
        frame->body = NULL;
        frame->body_bytes = 0;
        break;
    case 9:
        *frame = ways[peer][0].said[value % ways[peer][0].count].frame;
        break; /* another one of its own */
    case 10:
        *frame = ways[RANKS - peer][0].said[value % ways[RANKS - peer][0].count].frame;
        break; /* of the other's */
    default:
        play.ended[peer] = true;
        return false;
    }
    return true;
}

/* The link's own memory for a body: as long as the longest, so that a sanitizer sees what reads beyond. */
static const void *lend(uint32_t peer, const struct aq_frame *frame, bool broken)
{
    void *copy;
    AQ_ASSERT(aq_alloc(PIECE_BYTES, &copy) == AQ_OK);
    const struct said *said = NULL;
    for (uint32_t from = 1; from < RANKS && !said; from++)
        for (uint32_t i = 0; i < ways[from][0].count; i++)
            if (ways[from][0].said[i].bytes == frame->body) said = &ways[from][0].said[i];
    memcpy(copy, frame->body, said->frame.body_bytes);
    if (broken) ((uint8_t *)copy)[fuzz_byte(&play.rest) * 37u % said->frame.body_bytes] ^= fuzz_byte(&play.rest);
    for (uint32_t i = 0; i < AQ_GROUP_FRAMES; i++)
        if (!play.lent[peer][i]) return play.lent[peer][i] = copy;
    AQ_ASSERT(false);
    return NULL;
}

static bool room(uint32_t peer)
{
    for (uint32_t i = 0; i < AQ_GROUP_FRAMES; i++)
        if (!play.lent[peer][i]) return true;
    return false;
}

static void compare(uint32_t peer, const struct aq_frame *frame)
{
    const struct way *way = &ways[peer][0];
    if (play.given[peer] == way->count) return; /* behind the last: nobody takes it */
    const struct aq_frame *due = &way->said[play.given[peer]++].frame;
    play.wrong |= frame->kind != due->kind || frame->flags != due->flags || frame->step != due->step ||
                  frame->micro_batch != due->micro_batch || frame->argument != due->argument ||
                  frame->body_bytes != due->body_bytes;
}

static enum aq_status played(uint32_t peer, struct aq_link_event *out)
{
    struct way *way = &ways[peer][0];
    if (play.told[peer]) return AQ_AGAIN;
    if (play.ended[peer]) {
        play.told[peer] = true;
        *out = (struct aq_link_event){
            .kind = AQ_LINK_CLOSED, .status = play.changes % 2 ? AQ_CLOSED : AQ_PROTO, .text = "ended"};
        return AQ_OK;
    }
    if (way->read == way->count || !room(peer)) return AQ_AGAIN;
    const uint8_t what = fuzz_byte(&play.rest); /* behind the input's end: as recorded */
    if (what >= 0xc0 && play.late < 64) {
        play.late++;
        return AQ_AGAIN;
    }
    *out = (struct aq_link_event){.kind = AQ_LINK_RECEIVED, .frame = way->said[way->read++].frame};
    const bool broken = what == 0x80;
    if (what > 0 && what < 0x20 && !change(way, peer, &out->frame, what)) return AQ_AGAIN;
    if (broken) play.changes++;
    compare(peer, &out->frame);
    if (out->frame.body) out->frame.body = lend(peer, &out->frame, broken);
    return AQ_OK;
}

enum aq_status __wrap_aq_link_poll(struct aq_link *link, struct aq_link_event *out)
{
    uint32_t me, peer;
    find(link, &me, &peer);
    if (ends[me][peer].sent > 0) {
        ends[me][peer].sent--;
        *out = (struct aq_link_event){.kind = AQ_LINK_SENT};
        return AQ_OK;
    }
    if (!recording) return played(peer, out);
    *out = (struct aq_link_event){.kind = AQ_LINK_RECEIVED};
    return next_recorded(&ways[peer][me], &out->frame) ? AQ_OK : AQ_AGAIN;
}

void __wrap_aq_link_release(struct aq_link *link, const void *body)
{
    uint32_t me, peer, i = 0;
    find(link, &me, &peer);
    if (recording) return;
    AQ_ASSERT(body != NULL);
    while (i < AQ_GROUP_FRAMES && play.lent[peer][i] != body)
        i++;
    AQ_ASSERT(i < AQ_GROUP_FRAMES); /* lent, and not yet given back */
    aq_free((void *)(uintptr_t)body);
    play.lent[peer][i] = NULL;
}

uint64_t __wrap_aq_clock_ns(void)
{
    return __real_aq_clock_ns() + play.slept_ns;
}

/* Nobody rings: it is either there, late, or never comes. Then the time is moved to the deadline: a group believes the
 * clock, not the answer. */
enum aq_status __wrap_aq_eventcount_wait(struct aq_eventcount *eventcount, uint32_t seen, uint64_t deadline_ns)
{
    if (recording) return __real_aq_eventcount_wait(eventcount, seen, deadline_ns);
    for (uint32_t peer = 1; peer < RANKS; peer++)
        if (!play.ended[peer] && play.late < 64 && ways[peer][0].read < ways[peer][0].count && room(peer) &&
            play.rest.count > 0)
            return AQ_OK;
    if (play.late < 65) {
        play.late = 65; /* from here on nothing is late */
        return AQ_OK;
    }
    if (play.late++ < 70) return AQ_OK;
    const uint64_t now_ns = __wrap_aq_clock_ns();
    if (now_ns < deadline_ns) play.slept_ns += deadline_ns - now_ns;
    return AQ_TIMEOUT;
}

/* ---- the program ---- */

static enum aq_status program(struct aq_group *group, struct results *r)
{
    const uint32_t rank = aq_group_rank(group);
    uint64_t first, mine;
    uint8_t own[40000], blocks[RANKS * 300];
    for (uint32_t i = 0; i < VALUES; i++)
        r->sums[i] = r->scattered[i] = r->compressed[i] = (float)((int)(i * (rank + 3) % 101) - 50);
    memset(own, (int)rank + 1, sizeof own);
    memset(blocks, (int)rank + 1, sizeof blocks);
    memset(r->told, (int)rank + 1, sizeof r->told);
    for (uint32_t i = 0; i < 400; i++)
        r->lanes[i] = rank + 1;
    AQ_TRY(aq_allreduce(group, r->sums, VALUES));
    AQ_TRY(aq_reduce_scatter(group, r->scattered, VALUES, &first, &mine));
    AQ_TRY(aq_all_gather(group, own, 100, r->gathered));
    AQ_TRY(aq_all_gather(group, own, sizeof own, r->gathered));
    AQ_TRY(aq_all_to_all(group, blocks, r->all, 300));
    AQ_TRY(aq_broadcast(group, 1, r->told, sizeof r->told));
    AQ_TRY(aq_allreduce_lanes(group, r->lanes, 400, 16));
    AQ_TRY(aq_allreduce_mean(group, r->compressed, 77));
    uint64_t any;
    AQ_TRY(aq_group_say(group, 1, 2));
    const struct aq_compressed asked = {
        .worker = codec, .server = codec, .x = r->compressed, .count = VALUES, .step = 3};
    AQ_TRY(aq_compressed_allreduce(group, &asked));
    AQ_TRY(aq_group_hear(group, &any));
    if (!recording) agreeing = true;
    return aq_group_agree(group, 5, "program");
}

static enum aq_status open_group(uint32_t rank, struct aq_group **out)
{
    struct aq_link *links[RANKS] = {NULL};
    for (uint32_t peer = 0; peer < RANKS; peer++)
        if (peer != rank) links[peer] = &ends[rank][peer].link;
    const struct aq_group_config config = {.rank = rank,
                                           .size = RANKS,
                                           .links = links,
                                           .eventcount = eventcounts[rank],
                                           .silence_ns = UINT64_C(60000000000),
                                           .piece_bytes = PIECE_BYTES};
    return aq_group_open_links(&config, out);
}

static struct results others[RANKS];

static void rank_run(void *context)
{
    const uint32_t rank = *(const uint32_t *)context;
    struct aq_group *group;
    AQ_ASSERT(open_group(rank, &group) == AQ_OK);
    AQ_ASSERT(program(group, &others[rank]) == AQ_OK);
    aq_group_close(group);
}

/* Three real ranks, once. */
static void record(void)
{
    static const uint32_t NUMBERS[RANKS] = {0, 1, 2};
    struct aq_thread *threads[RANKS];
    fuzz_quiet();
    struct aq_grad_codec_config config;
    const struct aq_optimizer_tensor tensor = {.count = VALUES};
    aq_grad_codec_config_default(&config, "sign");
    AQ_ASSERT(aq_grad_codec_open(&config, &tensor, 1, VALUES, &codec) == AQ_OK);
    AQ_ASSERT(aq_mutex_open(&mutex) == AQ_OK);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        AQ_ASSERT(aq_eventcount_open(&eventcounts[rank]) == AQ_OK);
        for (uint32_t peer = 0; peer < RANKS; peer++) {
            struct aq_link *link = &ends[rank][peer].link;
            aq_group_link_config(PIECE_BYTES, &link->config);
            link->config.rank = rank;
            link->peer =
                (struct aq_hello){.rank = peer, .body_bytes_max = PIECE_BYTES, .receive_slots = AQ_GROUP_FRAMES};
        }
    }
    for (uint32_t rank = 0; rank < RANKS; rank++)
        AQ_ASSERT(aq_thread_open("rank", rank_run, (void *)(uintptr_t)&NUMBERS[rank], &threads[rank]) == AQ_OK);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        aq_thread_close(threads[rank]);
    right = others[0];
    recording = false;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct aq_group *group;
    if (size > INPUT_BYTES_MAX) return 0;
    if (recording) record();
    memset(&play, 0, sizeof play);
    play.rest = (struct fuzz_piece){data, size};
    agreeing = false;
    for (uint32_t peer = 0; peer < RANKS; peer++)
        ends[0][peer].sent = ways[peer][0].read = 0;
    const uint64_t used = aq_memory_used();
    AQ_ASSERT(open_group(0, &group) == AQ_OK);
    const enum aq_status status = program(group, &others[0]);
    if (play.changes == 0) {
        AQ_ASSERT(status == AQ_OK);
        AQ_ASSERT(memcmp(&right, &others[0], sizeof right) == 0);
    }
    AQ_ASSERT(status != AQ_OK || !play.wrong);
    fuzz_told(status == AQ_OK);
    /* Broken for good, but for digests that came well and differ. */
    if (status != AQ_OK && !agreeing) AQ_ASSERT(aq_allreduce(group, others[0].sums, 1) == status);
    aq_group_close(group);
    for (uint32_t peer = 0; peer < RANKS; peer++)
        for (uint32_t i = 0; i < AQ_GROUP_FRAMES; i++) {
            aq_free(
                (void *)(uintptr_t)play.lent[peer][i]); /* a message at hand when it failed: the link's end frees it */
            play.lent[peer][i] = NULL;
        }
    AQ_ASSERT(aq_memory_used() == used);
    return 0;
}
