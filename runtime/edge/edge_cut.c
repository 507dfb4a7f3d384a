/* edge_cut.c -- encode and decode, one sample after another. See the header. */
#include "edge_cut.h"

#include "edge_private.h"

struct aq_cut {
    struct aq_edge_shape shape;
    struct aq_codec *codec, *wide; /* wide: of what fp16 cannot hold; NULL: none */
    void *body;
    size_t bound;
};

enum aq_status aq_cut_open(struct aq_device *device, const struct aq_edge_shape *shape, struct aq_cut **out)
{
    enum aq_status status;
    struct aq_cut *cut;
    AQ_TRY(AQ_NEW(1, &cut));
    *cut = (struct aq_cut){.shape = *shape};
    AQ_TRY_GOTO(aq_codec_open(device, &shape->forward, shape->rows, shape->columns, &cut->codec), out);
    struct aq_codec_config wide;
    if (shape->wide && aq_edge_wide(&shape->forward, &wide))
        AQ_TRY_GOTO(aq_codec_open(device, &wide, shape->rows, shape->columns, &cut->wide), out);
    cut->bound = aq_codec_bound(cut->codec);
    if (cut->wide && aq_codec_bound(cut->wide) > cut->bound) cut->bound = aq_codec_bound(cut->wide);
    AQ_TRY_GOTO(aq_alloc(cut->bound, &cut->body), out);
    *out = cut;
    return AQ_OK;
out:
    aq_cut_close(cut);
    return status;
}

void aq_cut_close(struct aq_cut *cut)
{
    if (!cut) return;
    aq_codec_close(cut->codec);
    aq_codec_close(cut->wide);
    aq_free(cut->body);
    aq_free(cut);
}

enum aq_status aq_cut_pass(struct aq_cut *cut, const struct aq_edge_batch *batch, float *values)
{
    const uint64_t each = (uint64_t)cut->shape.rows * cut->shape.columns;
    for (uint32_t i = 0; i < batch->samples; i++) {
        const struct aq_rng_key key = aq_edge_round_key_of(&cut->shape, batch, i, false);
        struct aq_codec_sample sample = {.a = values + i * each,
                                         .key = &key,
                                         .body = cut->body,
                                         .rows = batch->lengths ? batch->lengths[i] : cut->shape.rows};
        struct aq_codec_result result;
        uint32_t corrupt = 0;
        struct aq_codec *codec = cut->codec;
        AQ_TRY(aq_codec_encode_batch(codec, &sample, 1, &result, NULL));
        if (result.flags & AQ_CODED_RAW && cut->wide) {
            codec = cut->wide;
            AQ_TRY(aq_codec_encode_batch(codec, &sample, 1, &result, NULL));
        }
        sample.body_bytes = result.body_bytes;
        sample.flags = result.flags;
        sample.hat = values + i * each;
        AQ_TRY(aq_codec_decode_batch(codec, &sample, 1, &corrupt, NULL));
        if (corrupt)
            return aq_fail(AQ_CORRUPT, "edge", "edge %u: the codec cannot read its own body", cut->shape.edge);
    }
    return AQ_OK;
}
