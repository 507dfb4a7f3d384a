/*
 * edge_shared.c -- gradients of tensors that several stages hold copies of, summed along the pipeline: fp32, in frames
 * of the edge's own length, once a step each way (docs/FRAME.md, "SHARED").
 *
 * A received piece is copied at once and its slot given back: these frames never hold a slot that training waits for.
 */
#include <string.h>

#include "edge_private.h"

/* Floats of a frame. */
static uint64_t piece_of(const struct aq_edge *edge, uint64_t at)
{
    const uint64_t most = edge->size.body_bytes_max / sizeof(float), left = edge->shape.shared - at;
    return left < most ? left : most;
}

enum aq_status aq_edge_send_shared(struct aq_edge *edge, uint64_t step, const float *values)
{
    while (edge->shared_sent < edge->shape.shared) {
        const uint64_t count = piece_of(edge, edge->shared_sent);
        uint32_t index;
        AQ_TRY(aq_edge_body_take(edge, &index));
        memcpy(aq_edge_body(edge, index), values + edge->shared_sent, count * sizeof *values);
        const struct aq_frame frame = {.kind = AQ_FRAME_SHARED,
                                       .step = step,
                                       .argument = edge->shared_sent,
                                       .body_bytes = (uint32_t)(count * sizeof *values),
                                       .body = aq_edge_body(edge, index)};
        AQ_TRY(aq_edge_post(edge, &frame, index));
        edge->shared_sent += count;
    }
    edge->shared_sent = 0;
    return AQ_OK;
}

enum aq_status aq_edge_shared_in(struct aq_edge *edge, const struct aq_frame *frame)
{
    const uint64_t here = edge->shared_here;
    const bool wanted = here < edge->shape.shared && frame->argument == here &&
                        frame->body_bytes == piece_of(edge, here) * sizeof(float) &&
                        (here == 0 || frame->step == edge->shared_step);
    if (wanted) {
        memcpy(edge->shared + here, frame->body, frame->body_bytes);
        edge->shared_here += frame->body_bytes / sizeof(float);
        edge->shared_step = frame->step;
    }
    if (frame->body) aq_link_release(edge->config.link, frame->body);
    if (wanted) return AQ_OK;
    return aq_fail(AQ_PROTO, "edge",
                   "edge %u: %u bytes of shared gradients from value %llu on in step %llu, while %llu of %llu are here",
                   edge->shape.edge, frame->body_bytes, (unsigned long long)frame->argument,
                   (unsigned long long)frame->step, (unsigned long long)here, (unsigned long long)edge->shape.shared);
}

enum aq_status aq_edge_receive_shared(struct aq_edge *edge, uint64_t step, float *values)
{
    if (edge->shape.shared == 0) return AQ_OK;
    if (edge->shared_here < edge->shape.shared) return AQ_AGAIN;
    if (edge->shared_step != step)
        return aq_fail(AQ_PROTO, "edge", "edge %u: shared gradients of step %llu came in step %llu", edge->shape.edge,
                       (unsigned long long)edge->shared_step, (unsigned long long)step);
    memcpy(values, edge->shared, edge->shape.shared * sizeof *values);
    edge->shared_here = 0;
    return AQ_OK;
}
