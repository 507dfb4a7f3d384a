/*
 * packer.c -- see packer.h.
 */
#include "packer.h"

#include "net_limits.h"

void aq_packer_place(struct aq_packer *packer, struct aq_arena *arena, uint32_t body_bytes_max)
{
    for (uint32_t i = 0; i < AQ_PACKER_BUFFERS; i++)
        packer->buffers[i] = aq_arena_take(arena, aq_packed_bytes_max(body_bytes_max));
}

void aq_packer_start(struct aq_packer *packer, const struct aq_link_config *config, bool local,
                     struct aq_entropy *entropy)
{
    const double rate = config->rate_mbps;
    packer->sparing = config->entropy == AQ_LINK_ENTROPY_AUTO;
    const bool worth_trying = rate > 0 ? rate <= AQ_PACK_RATE_MBPS_MAX : !local;
    packer->entropy = !packer->sparing || worth_trying ? entropy : NULL;
    /* A byte takes 8000 / rate ns on the wire, and the coders AQ_LINK_PACK_BYTE_NS. */
    const double share = (rate > 0 ? rate : AQ_PACK_RATE_MBPS) * AQ_LINK_PACK_BYTE_NS / 8000;
    packer->share_min = !packer->sparing ? 0 : share > AQ_PACK_SHARE_MIN ? share : AQ_PACK_SHARE_MIN;
    packer->measures = packer->entropy && packer->sparing && rate == 0;
    packer->rate_mbps = 0;
    packer->byte_ns = AQ_LINK_PACK_BYTE_NS;
}

static void approach(double *mean, double now)
{
    *mean += (now - *mean) * AQ_PACK_MEAN_SHARE;
}

static void weigh(struct aq_packer *packer)
{
    if (packer->rate_mbps == 0) return;
    const double share = packer->rate_mbps * packer->byte_ns / 8000;
    packer->share_min = packer->rate_mbps > AQ_PACK_RATE_MBPS_MAX ? 1
                        : share > AQ_PACK_SHARE_MIN               ? share
                                                                  : AQ_PACK_SHARE_MIN;
}

void aq_packer_rate(struct aq_packer *packer, double rate_mbps)
{
    if (rate_mbps <= 0) return;
    if (packer->rate_mbps == 0)
        packer->rate_mbps = rate_mbps;
    else
        approach(&packer->rate_mbps, rate_mbps);
    weigh(packer);
}

/* The packing end has AQ_PACK_OWN_SHARE of what both take. One trial that lost its core for a while proves little. */
static void took(struct aq_packer *packer, uint32_t bytes, uint64_t ns)
{
    const double now = (double)ns / bytes / AQ_PACK_OWN_SHARE, most = AQ_PACK_SLOWER_MAX * AQ_LINK_PACK_BYTE_NS;
    approach(&packer->byte_ns, now < most ? now : most);
    weigh(packer);
}

/* How many bytes of a body must be saved for it to be sent packed. */
static uint32_t least_saved(const struct aq_packer *packer, uint32_t bytes)
{
    const double least = packer->share_min * bytes;
    return least < bytes ? 1 + (uint32_t)least : bytes;
}

static uint8_t free_buffer(const struct aq_packer *packer)
{
    for (uint8_t i = 0; i < AQ_PACKER_BUFFERS; i++)
        if (!packer->taken[i]) return i;
    return AQ_PACKER_NONE;
}

/* After a trial: a pause that doubles where it saved too little. */
static void learn(struct aq_packer *packer, uint32_t kind, bool saved)
{
    const uint32_t longer = 2u * packer->kinds[kind].pause;
    const uint32_t pause = saved || !packer->sparing ? 0
                           : longer == 0             ? 1
                           : longer > AQ_PACK_PAUSE  ? AQ_PACK_PAUSE
                                                     : longer;
    packer->kinds[kind].pause = packer->kinds[kind].left = (uint8_t)pause;
}

enum aq_status aq_packer_pack(struct aq_packer *packer, const struct aq_frame *frame, struct aq_packed *out)
{
    const uint32_t bytes = frame->body_bytes, kind = (uint32_t)frame->kind - AQ_FRAME_KIND_RUNTIME;
    *out = (struct aq_packed){.bytes = frame->body, .byte_count = bytes, .buffer = AQ_PACKER_NONE};
    if (!packer->entropy || bytes < AQ_PACK_BYTES_MIN || bytes > AQ_PACK_BYTES_MAX) return AQ_OK;
    if (packer->kinds[kind].left > 0) {
        packer->kinds[kind].left--;
        return AQ_OK;
    }
    const uint8_t buffer = free_buffer(packer);
    if (buffer == AQ_PACKER_NONE) return AQ_AGAIN;
    /* A measuring packer also tries what may not be worth it: else it would never find out that the coder is quick
     * again. */
    const uint32_t least = least_saved(packer, bytes);
    const uint32_t tried = packer->measures ? 1 + (uint32_t)(AQ_PACK_SHARE_MIN * bytes) : least;
    uint32_t packed = 0;
    if (tried < bytes) {
        const uint64_t begin_ns = packer->measures ? aq_clock_ns() : 0;
        packed = aq_entropy_pack(packer->entropy, frame->body, bytes, packer->buffers[buffer], bytes - tried);
        if (packer->measures) took(packer, bytes, aq_clock_ns() - begin_ns);
    }
    if (packed > bytes - least) packed = 0;
    learn(packer, kind, packed > 0);
    if (packed == 0) return AQ_OK;
    packer->taken[buffer] = true;
    *out = (struct aq_packed){
        .bytes = packer->buffers[buffer], .byte_count = packed, .raw_bytes = bytes, .buffer = buffer};
    return AQ_OK;
}

void aq_packer_release(struct aq_packer *packer, uint8_t buffer)
{
    if (buffer == AQ_PACKER_NONE) return;
    AQ_ASSERT(buffer < AQ_PACKER_BUFFERS && packer->taken[buffer]);
    packer->taken[buffer] = false;
}

enum aq_status aq_link_packed(const struct aq_link_config *config, bool local, const void *body, uint32_t body_bytes,
                              uint32_t *out)
{
    const struct aq_frame frame = {.kind = AQ_FRAME_FORWARD, .body = body, .body_bytes = body_bytes};
    struct aq_packer packer = {0};
    struct aq_arena arena = {0};
    struct aq_entropy *entropy = NULL;
    struct aq_packed packed = {.byte_count = body_bytes};
    void *memory = NULL;
    enum aq_status status = AQ_OK;
    if (config->entropy == AQ_LINK_ENTROPY_OFF) goto out;
    AQ_TRY_GOTO(aq_entropy_open(&entropy), out);
    aq_packer_place(&packer, &arena, body_bytes);
    AQ_TRY_GOTO(aq_alloc(arena.used, &memory), out);
    arena = (struct aq_arena){.base = memory, .bytes = arena.used};
    aq_packer_place(&packer, &arena, body_bytes);
    aq_packer_start(&packer, config, local, entropy);
    status = aq_packer_pack(&packer, &frame, &packed);
out:
    aq_free(memory);
    aq_entropy_close(entropy);
    if (status == AQ_OK) *out = packed.byte_count;
    return status;
}
