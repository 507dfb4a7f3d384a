/*
 * codec_member.h -- the seam behind aq_codec_encode and aq_codec_decode: a codec is a row of codecs.def and one file.
 *
 * Common work is done for all codecs: keyframes (a sample without a reference, in config.keyframe), the raw fallback
 * where a value cannot be coded or stored, bodies' lengths, messages in config.store, x^ where a was, batches, staging.
 * A member gives the length of a body and codes its contents: a delta or, without messages, the values.
 *
 * To add one: codec_<name>.c with a const struct aq_codec_member aq_codec_<name>, cuda_codec_<name>.cu with its
 * launchers (cuda_codec_launch.cuh), a line in codecs.def, its bytes in docs/FORMAT.md. The suites over the table
 * (conform_codec, test_cuda_codec, test_codec_quality, test_edge, fuzz_codec) run it unasked; codec_sign.c is a short
 * one.
 */
#ifndef AQSGD_CODEC_MEMBER_H
#define AQSGD_CODEC_MEMBER_H

#include "codec_internal.h"

enum { AQ_CODEC_WORDS = 12 };

struct aq_codec_member {
    struct aq_codec_about about;
    bool on_host; /* AQ_CODEC_HOST in codecs.def: it has no kernels on a GPU */
    /* Sets what differs from the common defaults (aq_codec_config_default); NULL: nothing. */
    void (*defaults)(struct aq_codec_config *config);
    /* Can it be? AQ_INVAL by aq_codec_refuse. Store and keyframe have been checked where it keeps messages. */
    enum aq_status (*check)(const struct aq_codec_config *config);
    /* Fills in the layout except values and kept, which are set; messages and bound are derived. */
    void (*layout)(const struct aq_codec_config *config, uint32_t rows, uint32_t columns, struct aq_codec_layout *out);
    /* Once its memory is there; what it opens is codec->inner. NULL: nothing. */
    enum aq_status (*open)(struct aq_codec *codec);
    /* The settings that decode reads, into words[2..]; store and keyframe are in the last one. */
    void (*digest)(const struct aq_codec_config *config, uint32_t words[AQ_CODEC_WORDS]);
    /* "directq 8 bits mid-rise ...", for people. */
    void (*text)(const struct aq_codec_config *config, char *text, size_t bytes);
    /* The body, x^ and m' of a sample that is no keyframe; false: it goes raw. NULL: bodies are plain values. */
    bool (*encode)(struct aq_codec_encoder *job);
    /* And back; lengths and flags have been checked. */
    enum aq_status (*decode)(struct aq_codec_decoder *job);
    /* The parameters of its kernels on a GPU, in addition to the layout; NULL: nothing. */
    void (*plan)(const struct aq_codec *codec, struct aq_cuda_codec_plan *out);
};

/* The row of that kind; NULL: no such kind. */
const struct aq_codec_member *aq_codec_member_of(enum aq_codec_kind kind);

/* AQ_INVAL: "FIELD is not possible: WHAT IT MAY BE". */
enum aq_status aq_codec_refuse(const char *field, const char *may);

/* Words of settings for texts: "fp16", "mid-rise". */
const char *aq_codec_precision_word(enum aq_codec_precision precision);

/* " store fp16 keyframe fp16" where it keeps messages, else nothing. */
void aq_codec_messages_text(const struct aq_codec_config *config, char *text, size_t bytes);

/* --- row by row: codec_encode.c, codec_decode.c ------------------------------------------------------------------- */

/*
 * The scales of a row into the body and its quantizers (layout.groups_row of them), on the way out and on the way in.
 * span is of the whole row, whose values to be coded are in the piece's scratch. False: a scale cannot be written; is
 * not a scale.
 */
typedef bool aq_codec_scale_choose(struct aq_codec_encoder *job, uint32_t piece, uint32_t row,
                                   const struct aq_span *span, const struct aq_quant **quants);
typedef bool aq_codec_scale_take(const struct aq_codec_decoder *job, uint32_t piece, uint32_t row,
                                 const struct aq_quant **quants);

/* Every row, with these scales and codes of config.bits from layout.codes_at on. */
bool aq_codec_encode_rows(struct aq_codec_encoder *job, aq_codec_scale_choose *scale);
enum aq_status aq_codec_decode_rows(struct aq_codec_decoder *job, aq_codec_scale_take *scale);

/* codec_ec.c: entropy-coded bodies, for keyframes of any codec, too (config.keyframe AQ_PRECISION_EC): those are what
 * has no reference, at config.keyframe_rate. layout: keyframe_bytes, keyframe_most and at least that much scratch. */
bool aq_ec_encode(struct aq_codec_encoder *job);
enum aq_status aq_ec_decode(struct aq_codec_decoder *job);
void aq_ec_keyframe_layout(const struct aq_codec_config *config, uint32_t rows, uint32_t columns,
                           struct aq_codec_layout *out);
enum aq_status aq_ec_keyframe_check(const struct aq_codec_config *config);

/* Of a codec with a grid (codec_encode.c, codec_decode.c, codec_quantizer.c): what directq and aqsgd share. */
enum aq_status aq_quantizer_check(const struct aq_codec_config *config);
void aq_quantizer_layout(const struct aq_codec_config *config, uint32_t rows, uint32_t columns,
                         struct aq_codec_layout *out);
void aq_quantizer_digest(const struct aq_codec_config *config, uint32_t words[AQ_CODEC_WORDS]);
void aq_quantizer_text(const struct aq_codec_config *config, const char *name, char *text, size_t bytes);
bool aq_quantizer_encode(struct aq_codec_encoder *job);
enum aq_status aq_quantizer_decode(struct aq_codec_decoder *job);
void aq_quantizer_plan(const struct aq_codec *codec, struct aq_cuda_codec_plan *out);

#endif
