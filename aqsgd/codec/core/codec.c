/*
 * codec.c -- configuration, layout and life of a codec.
 *
 * Invariant: everything that decode reads of a config is in aq_codec_config_digest, and nothing else is.
 */
#include "codec_member.h"

#include <stdio.h>

#define AQ_CODEC(NAME, name, id) extern const struct aq_codec_member aq_codec_##name;
#include "aqsgd/codecs.def"

static const struct {
    enum aq_codec_kind kind;
    const struct aq_codec_member *member;
} members[] = {
#define AQ_CODEC(NAME, name, id) {AQ_CODEC_##NAME, &aq_codec_##name},
#include "aqsgd/codecs.def"
};

enum { MEMBERS = sizeof members / sizeof members[0] };

const struct aq_codec_member *aq_codec_member_of(enum aq_codec_kind kind)
{
    for (int i = 0; i < MEMBERS; i++)
        if (members[i].kind == kind) return members[i].member;
    return NULL;
}

bool aq_codec_kind_at(uint32_t number, enum aq_codec_kind *out)
{
    if (number >= MEMBERS) return false;
    *out = members[number].kind;
    return true;
}

const struct aq_codec_about *aq_codec_about(enum aq_codec_kind kind)
{
    const struct aq_codec_member *member = aq_codec_member_of(kind);
    return member == NULL ? NULL : &member->about;
}

enum aq_codec_kind aq_codec_kind_usual(bool gradients)
{
    int i = 0;
    while (i < MEMBERS && !members[i].member->about.usual[gradients])
        i++;
    AQ_ASSERT(i < MEMBERS);
    return members[i].kind;
}

void aq_codec_config_unsaid(struct aq_codec_config *out, bool gradients)
{
    int i = 0;
    while (i < MEMBERS && members[i].member->about.unsaid[gradients] <= 0.0f)
        i++;
    AQ_ASSERT(i < MEMBERS);
    aq_codec_config_default(out, members[i].kind, gradients ? 8 : 4);
    out->rate = members[i].member->about.unsaid[gradients];
    out->rounding = members[i].member->about.unsaid_rounding;
    out->keyframe = AQ_PRECISION_EC;
}

void aq_codec_config_default(struct aq_codec_config *out, enum aq_codec_kind kind, uint32_t bits)
{
    *out = (struct aq_codec_config){
        .kind = kind,
        .raw = AQ_PRECISION_FP32,
        .bits = bits,
        .rate = 2.5f,
        .rank = 16,
        .grid = AQ_GRID_MIDRISE,
        .group = AQ_PER_ROW,
        .tile = 64,
        /* In a closed loop what is clipped stays behind, visit after visit: docs/DECISIONS.md 0030. */
        .scale = bits >= 2 ? AQ_SCALE_ABSMAX : AQ_SCALE_AUTO,
        .scale_format = AQ_SCALE_FP16,
        .rounding = AQ_ROUND_NEAREST,
        .store = AQ_PRECISION_FP16,
        .store_group = AQ_PER_ROW,
        .keyframe = AQ_PRECISION_FP16,
        .keyframe_rate = 4.0f,
    };
    const struct aq_codec_member *member = aq_codec_member_of(kind);
    if (member != NULL && member->defaults != NULL) member->defaults(out);
}

void aq_codec_config_plain(struct aq_codec_config *out)
{
    int i = 0;
    while (i < MEMBERS && !members[i].member->about.plain)
        i++;
    AQ_ASSERT(i < MEMBERS);
    aq_codec_config_default(out, members[i].kind, 0);
}

enum aq_status aq_codec_refuse(const char *field, const char *may)
{
    return aq_fail(AQ_INVAL, "codec", "%s is not possible: %s", field, may);
}

static bool keeps(const struct aq_codec_member *member, const struct aq_codec_config *config)
{
    return !member->about.stateless && config->store != AQ_PRECISION_NONE;
}

static bool store_is_q(const struct aq_codec_config *config)
{
    return config->store >= AQ_PRECISION_Q8;
}

bool aq_codec_config_kept(const struct aq_codec_config *config, struct aq_codec_config *out)
{
    const struct aq_codec_member *member = aq_codec_member_of(config->kind);
    const bool keeping = member && keeps(member, config);
    enum aq_codec_kind kind;
    if (!keeping && !(member && member->about.plain)) return false;
    for (uint32_t i = 0; aq_codec_kind_at(i, &kind); i++) {
        if (aq_codec_about(kind)->stateless) continue;
        aq_codec_config_default(out, kind, 8); /* the first one that has messages, whatever codes the changes */
        out->store = keeping ? config->store : config->raw;
        /* Bits of a sample that is never refined are not worth saving. */
        out->keyframe = keeping ? config->keyframe : config->raw;
        if (out->keyframe == AQ_PRECISION_EC) out->keyframe = AQ_PRECISION_FP16;
        if (keeping) out->store_group = config->store_group;
        return true;
    }
    return false;
}

static enum aq_status check_messages(const struct aq_codec_config *config)
{
    if (config->store > AQ_PRECISION_Q2) return aq_codec_refuse("store", "fp32, fp16, bf16, q8, q4 or q2");
    const bool coded = config->keyframe == AQ_PRECISION_EC;
    if (!coded && (config->keyframe < AQ_PRECISION_FP32 || config->keyframe > AQ_PRECISION_Q8))
        return aq_codec_refuse("keyframe", "fp32, fp16, bf16, q8 or ec");
    if (coded) AQ_TRY(aq_ec_keyframe_check(config));
    if (config->store_group != AQ_PER_ROW && config->store_group != AQ_PER_CHANNEL)
        return aq_codec_refuse("store_group", "row or channel");
    return AQ_OK;
}

enum aq_status aq_codec_config_check(const struct aq_codec_config *config, uint32_t rows, uint32_t columns)
{
    const struct aq_codec_member *member = aq_codec_member_of(config->kind);
    if (member == NULL) return aq_codec_refuse("kind", "raw, directq or aqsgd");
    AQ_TRY(member->check(config));
    if (keeps(member, config)) AQ_TRY(check_messages(config));
    if (rows < 1 || rows > AQ_CODEC_ROWS_MAX) return aq_codec_refuse("rows", "1 to 2^20");
    if (columns < 1 || columns > AQ_CODEC_COLUMNS_MAX) return aq_codec_refuse("columns", "1 to 2^20");
    if ((uint64_t)rows * columns > AQ_CODEC_VALUES_MAX) return aq_codec_refuse("rows times columns", "at most 2^29");
    return AQ_OK;
}

/* Of one that is entropy coded, whose scratch and the member's are the same memory. */
static void keyframe_layout(const struct aq_codec_config *config, uint32_t rows, uint32_t columns,
                            struct aq_codec_layout *out)
{
    const uint64_t whole = out->whole_bytes, piece = out->piece_bytes;
    aq_ec_keyframe_layout(config, rows, columns, out);
    if (whole > out->whole_bytes) out->whole_bytes = whole;
    if (piece > out->piece_bytes) out->piece_bytes = piece;
}

void aq_codec_layout_of(const struct aq_codec_config *config, uint32_t rows, uint32_t columns,
                        struct aq_codec_layout *out)
{
    const struct aq_codec_member *member = aq_codec_member_of(config->kind);
    *out = (struct aq_codec_layout){.values = (uint64_t)rows * columns};
    out->kept = out->values;
    out->groups_row = 1;
    member->layout(config, rows, columns, out);
    if (keeps(member, config)) {
        if (config->keyframe == AQ_PRECISION_EC)
            keyframe_layout(config, rows, columns, out);
        else
            out->keyframe_bytes = aq_precision_bytes(config->keyframe, out->values, rows);
        out->message_bytes =
            aq_precision_bytes(config->store, out->values, config->store_group == AQ_PER_CHANNEL ? columns : rows);
    }
    out->bound = 4 * out->values;
    if (out->body_most > out->bound) out->bound = out->body_most;
    if (out->body_bytes > out->bound) out->bound = out->body_bytes;
    if (out->keyframe_bytes > out->bound) out->bound = out->keyframe_bytes;
    if (out->keyframe_most > out->bound) out->bound = out->keyframe_most;
}

uint64_t aq_codec_config_digest(const struct aq_codec_config *config)
{
    uint32_t words[AQ_CODEC_WORDS] = {1 /* of this layout of bodies */, (uint32_t)config->kind};
    const struct aq_codec_member *member = aq_codec_member_of(config->kind);
    if (member != NULL) member->digest(config, words);
    if (member != NULL && keeps(member, config)) {
        words[11] = (uint32_t)config->store << 8 | (uint32_t)config->keyframe;
        if (config->store > AQ_PRECISION_Q8)
            words[11] |= 1u << 16; /* s of Q4 and Q2 is the group's maximum; it was smaller once */
        if (store_is_q(config) && config->store_group == AQ_PER_CHANNEL) words[11] |= 1u << 17;
    }
    uint8_t bytes[sizeof words]; /* little endian, so that both ends agree on any machine */
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        for (size_t k = 0; k < 4; k++)
            bytes[4 * i + k] = (uint8_t)(words[i] >> (8 * k));
    }
    return aq_digest_seeded(bytes, sizeof bytes, UINT64_C(0x6171636f64656300)); /* "aqcodec" */
}

const char *aq_codec_precision_word(enum aq_codec_precision precision)
{
    static const char *const words[] = {"none", "fp32", "fp16", "bf16", "q8", "q4", "q2", "ec"};
    return (uint32_t)precision < sizeof words / sizeof words[0] ? words[precision] : "?";
}

void aq_codec_messages_text(const struct aq_codec_config *config, char *text, size_t bytes)
{
    const struct aq_codec_member *member = aq_codec_member_of(config->kind);
    char rate[24] = "";
    text[0] = '\0';
    if (!keeps(member, config)) return;
    if (config->keyframe == AQ_PRECISION_EC)
        snprintf(rate, sizeof rate, " %.3g bits", (double)config->keyframe_rate);
    snprintf(text, bytes, " store %s%s keyframe %s%s", aq_codec_precision_word(config->store),
             store_is_q(config) && config->store_group == AQ_PER_CHANNEL ? " a channel" : "",
             aq_codec_precision_word(config->keyframe), rate);
}

void aq_codec_config_text(const struct aq_codec_config *config, char *text, size_t bytes)
{
    const struct aq_codec_member *member = aq_codec_member_of(config->kind);
    if (bytes == 0) return;
    if (member == NULL)
        snprintf(text, bytes, "?");
    else
        member->text(config, text, bytes);
}

/* Called twice: to measure, and to cut the memory. */
static void place(struct aq_codec *codec, struct aq_arena *arena)
{
    const size_t row = (size_t)codec->columns * sizeof(float) + AQ_CODEC_PAD * sizeof(float);
    const size_t codes = (size_t)codec->columns + 2 * AQ_CODEC_PAD;
    const bool packs = aq_store_is_q(codec);
    const bool channel = codec->layout.groups_row == codec->columns && codec->config.group == AQ_PER_CHANNEL;
    const size_t groups_row = packs && codec->config.store_group == AQ_PER_CHANNEL ? codec->columns /* >= the body's */
                                                                                   : codec->layout.groups_row;
    const size_t errors = channel ? (size_t)AQ_CODEC_SHRINKS * codec->columns : AQ_CODEC_SHRINKS * AQ_LANES;
    for (uint32_t p = 0; p < codec->pieces; p++) {
        struct aq_codec_scratch *scratch = &codec->scratch[p];
        scratch->d = aq_arena_take(arena, row);         /* d, or kept values */
        scratch->levels = aq_arena_take(arena, row);    /* deq of a row */
        scratch->noise = aq_arena_take(arena, row);     /* u of a row */
        scratch->error = aq_arena_take(arena, errors * sizeof(float));
        scratch->spans = aq_arena_take(arena, groups_row * sizeof *scratch->spans);
        scratch->quants = aq_arena_take(arena, groups_row * sizeof *scratch->quants);
        scratch->columns = aq_arena_take(arena, row);
        scratch->codes = aq_arena_take(arena, codes);
        scratch->own = aq_arena_take(arena, codec->layout.piece_bytes);
    }
    const bool rounds = packs || (aq_codec_keeps(codec) && codec->store == AQ_PRECISION_BF16);
    codec->stored = aq_arena_take(arena, rounds ? codec->rows_max * sizeof *codec->stored : 0);
    codec->own = aq_arena_take(arena, codec->layout.whole_bytes);
    codec->spans = aq_arena_take(arena, groups_row * sizeof *codec->spans);
    codec->quants = aq_arena_take(arena, groups_row * sizeof *codec->quants);
    codec->old = aq_arena_take(arena, packs ? codec->layout.values * sizeof(float) : codec->layout.message_bytes);
}

void aq_codec_rows_use(struct aq_codec *codec, uint32_t rows)
{
    if (rows == 0) rows = codec->rows_max;
    AQ_ASSERT(rows <= codec->rows_max);
    if (rows == codec->rows) return;
    codec->rows = rows;
    codec->pieces = (rows + codec->piece_rows - 1) / codec->piece_rows; /* of as many rows: there is scratch for them */
    aq_codec_layout_of(&codec->config, rows, codec->columns, &codec->layout);
}

enum aq_status aq_codec_open(struct aq_device *device, const struct aq_codec_config *config, uint32_t rows,
                             uint32_t columns, struct aq_codec **out)
{
    enum { PIECE_VALUES = 32768 }; /* a piece lasts some microseconds: much longer than handing it out */
    enum aq_status status;
    void *memory = NULL;
    AQ_TRY(aq_codec_config_check(config, rows, columns));
    struct aq_codec *codec;
    AQ_TRY(AQ_NEW(1, &codec));
    codec->member = aq_codec_member_of(config->kind);
    codec->config = *config;
    codec->rows = codec->rows_max = rows;
    codec->columns = columns;
    codec->device = device;
    codec->kernels = aq_codec_kernels_best();
    aq_codec_layout_of(config, rows, columns, &codec->layout);
    codec->store = keeps(codec->member, config) && store_is_q(config) ? AQ_PRECISION_FP32 : config->store;
    uint32_t piece = (rows + AQ_CODEC_PIECES_MAX - 1) / AQ_CODEC_PIECES_MAX;
    if ((uint64_t)piece * columns < PIECE_VALUES) piece = (PIECE_VALUES + columns - 1) / columns;
    codec->piece_rows = (piece + AQ_CODEC_CHUNK_ROWS - 1) / AQ_CODEC_CHUNK_ROWS * AQ_CODEC_CHUNK_ROWS;
    codec->pieces = (rows + codec->piece_rows - 1) / codec->piece_rows;
    struct aq_arena arena = {0};
    place(codec, &arena);
    codec->memory_bytes = arena.used;
    AQ_TRY_GOTO(aq_map(arena.used, &codec->memory), out);
    arena = (struct aq_arena){.base = codec->memory, .bytes = arena.used};
    place(codec, &arena);
    struct aq_device_info info = {.host_memory = true};
    if (device) aq_device_info(device, &info);
    if (!info.host_memory) {
        AQ_TRY_GOTO(aq_device_alloc(device, AQ_MEMORY_PINNED, aq_codec_values_bytes(codec), &memory), out);
        codec->staging = memory;
    }
    if (codec->member->open != NULL) AQ_TRY_GOTO(codec->member->open(codec), out);
    *out = codec;
    return AQ_OK;
out:
    aq_codec_close(codec);
    return status;
}

void aq_codec_close(struct aq_codec *codec)
{
    if (codec == NULL) return;
    aq_codec_remote_close(codec);
    aq_codec_close(codec->inner);
    if (codec->staging) aq_device_free(codec->device, AQ_MEMORY_PINNED, codec->staging, aq_codec_values_bytes(codec));
    aq_unmap(codec->memory, codec->memory_bytes);
    aq_free(codec);
}

const struct aq_codec_config *aq_codec_config_of(const struct aq_codec *codec)
{
    return &codec->config;
}

size_t aq_codec_bound(const struct aq_codec *codec)
{
    return (size_t)codec->layout.bound;
}

size_t aq_codec_body_bytes(const struct aq_codec *codec, bool keyframe)
{
    const bool cold = keyframe && aq_codec_keeps(codec);
    return (size_t)(cold ? codec->layout.keyframe_bytes : codec->layout.body_bytes);
}

bool aq_codec_varies(const struct aq_codec *codec, bool keyframe)
{
    const bool cold = keyframe && aq_codec_keeps(codec);
    return cold ? codec->config.keyframe == AQ_PRECISION_EC : codec->member->about.varies;
}

bool aq_codec_is_plain(const struct aq_codec *codec)
{
    return codec->member->about.plain;
}

size_t aq_codec_message_bytes(const struct aq_codec *codec)
{
    return (size_t)codec->layout.message_bytes;
}

size_t aq_codec_body_bytes_of(const struct aq_codec *codec, uint32_t rows, bool keyframe)
{
    struct aq_codec_layout layout;
    if (rows == 0 || rows == codec->rows) return aq_codec_body_bytes(codec, keyframe);
    aq_codec_layout_of(&codec->config, rows, codec->columns, &layout);
    return (size_t)(keyframe && aq_codec_keeps(codec) ? layout.keyframe_bytes : layout.body_bytes);
}

size_t aq_codec_message_bytes_of(const struct aq_codec *codec, uint32_t rows)
{
    struct aq_codec_layout layout;
    if (rows == 0 || rows == codec->rows) return aq_codec_message_bytes(codec);
    aq_codec_layout_of(&codec->config, rows, codec->columns, &layout);
    return (size_t)layout.message_bytes;
}

void aq_codec_run(const struct aq_codec *codec, void (*run)(uint32_t piece, void *context), void *context)
{
    if (codec->device != NULL && codec->pieces > 1) {
        aq_device_parallel(codec->device, codec->pieces, run, context);
        return;
    }
    for (uint32_t piece = 0; piece < codec->pieces; piece++)
        run(piece, context);
}
