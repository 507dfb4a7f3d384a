/* library_settings.c -- "codec=aqsgd bits=4" to a codec's config: a table of keys, and one line for what is wrong. */
#include "library_settings.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WORD_BYTES = 64 };

enum setting_kind { SETTING_NAME, SETTING_COUNT, SETTING_SHIFT, SETTING_FLOAT, SETTING_BOOL };

struct setting_name {
    const char *name;
    int value;
};

struct setting {
    const char *key;
    enum setting_kind kind;
    size_t offset; /* in struct aq_codec_config; names are of enums, which are ints */
    const struct setting_name *names;
};

static const struct setting_name kinds[] = {
#define AQ_CODEC(NAME, name, id) {#name, id},
#include "aqsgd/codecs.def"
    {NULL, 0}};
static const struct setting_name precisions[] = {{"fp32", AQ_PRECISION_FP32}, {"fp16", AQ_PRECISION_FP16},
                                                 {"bf16", AQ_PRECISION_BF16}, {"q8", AQ_PRECISION_Q8},
                                                 {"q4", AQ_PRECISION_Q4},     {"q2", AQ_PRECISION_Q2},
                                                 {"ec", AQ_PRECISION_EC},     {"none", AQ_PRECISION_NONE},
                                                 {NULL, 0}};
static const struct setting_name grids[] = {
    {"midrise", AQ_GRID_MIDRISE}, {"midtread", AQ_GRID_MIDTREAD}, {"signed", AQ_GRID_SIGNED}, {NULL, 0}};
static const struct setting_name groups[] = {
    {"tensor", AQ_PER_TENSOR}, {"row", AQ_PER_ROW}, {"channel", AQ_PER_CHANNEL}, {"tile", AQ_PER_TILE}, {NULL, 0}};
static const struct setting_name scales[] = {{"absmax", AQ_SCALE_ABSMAX},
                                             {"rms", AQ_SCALE_RMS},
                                             {"search", AQ_SCALE_SEARCH},
                                             {"auto", AQ_SCALE_AUTO},
                                             {NULL, 0}};
static const struct setting_name formats[] = {
    {"fp16", AQ_SCALE_FP16}, {"bf16", AQ_SCALE_BF16}, {"fp32", AQ_SCALE_FP32}, {"pow2", AQ_SCALE_POW2}, {NULL, 0}};
static const struct setting_name roundings[] = {
    {"nearest", AQ_ROUND_NEAREST}, {"stochastic", AQ_ROUND_STOCHASTIC},
    {"half_dither", AQ_ROUND_HALF_DITHER}, {NULL, 0}};

#define SETTING(key_, kind_, member_, names_)                                                                          \
    {                                                                                                                  \
        .key = (key_), .kind = SETTING_##kind_, .offset = offsetof(struct aq_codec_config, member_), .names = (names_) \
    }
static const struct setting settings[] = {
    SETTING("codec", NAME, kind, kinds),
    SETTING("bits", COUNT, bits, NULL),
    SETTING("rate", FLOAT, rate, NULL),
    SETTING("error", FLOAT, error, NULL),
    SETTING("rank", COUNT, rank, NULL),
    SETTING("precision", NAME, raw, precisions),
    SETTING("grid", NAME, grid, grids),
    SETTING("group", NAME, group, groups),
    SETTING("tile", COUNT, tile, NULL),
    SETTING("scale", NAME, scale, scales),
    SETTING("scale_format", NAME, scale_format, formats),
    SETTING("rounding", NAME, rounding, roundings),
    SETTING("hadamard", BOOL, hadamard, NULL),
    SETTING("top_k", FLOAT, top_k, NULL),
    SETTING("prescale_log2", SHIFT, prescale_log2, NULL),
    SETTING("store", NAME, store, precisions),
    SETTING("store_group", NAME, store_group, groups),
    SETTING("keyframe", NAME, keyframe, precisions),
    SETTING("keyframe_rate", FLOAT, keyframe_rate, NULL),
};
enum { SETTINGS = sizeof settings / sizeof *settings };

static bool value_read(const struct setting *setting, const char *text, struct aq_codec_config *config)
{
    char *to = (char *)config + setting->offset, *end = NULL;
    if (setting->kind == SETTING_NAME) {
        for (const struct setting_name *name = setting->names; name->name; name++)
            if (strcmp(name->name, text) == 0) {
                memcpy(to, &name->value, sizeof name->value);
                return true;
            }
        return false;
    }
    if (setting->kind == SETTING_BOOL) {
        *(bool *)to = strcmp(text, "true") == 0;
        return *(bool *)to || strcmp(text, "false") == 0;
    }
    errno = 0;
    if (setting->kind == SETTING_FLOAT) {
        const float value = strtof(text, &end);
        memcpy(to, &value, sizeof value);
        return end != text && !*end && isfinite(value);
    }
    const long value = strtol(text, &end, 10);
    const int32_t number = (int32_t)value;
    memcpy(to, &number, sizeof number); /* bits and tile are unsigned, and not negative here */
    return end != text && !*end && errno == 0 && value <= INT32_MAX && value >= INT32_MIN &&
           (setting->kind == SETTING_SHIFT || value >= 0);
}

/* One "key=value"; `defaults`: only "codec" and "bits", for the defaults. */
static enum aq_status word_read(const char *word, bool defaults, struct aq_codec_config *config)
{
    const char *equals = strchr(word, '=');
    const size_t bytes = equals ? (size_t)(equals - word) : 0;
    for (int s = 0; s < SETTINGS && bytes > 0; s++) {
        if (strncmp(settings[s].key, word, bytes) != 0 || settings[s].key[bytes]) continue;
        if (defaults && settings[s].names != kinds && strcmp(settings[s].key, "bits") != 0) return AQ_OK;
        if (value_read(&settings[s], equals + 1, config)) return AQ_OK;
        return aq_fail(AQ_INVAL, "codec", "%s: '%.40s' is not one of its values", settings[s].key, equals + 1);
    }
    return aq_fail(AQ_INVAL, "codec",
                   "'%.60s' is not a setting: write key=value, separated by blanks, as in codec=aqsgd bits=4", word);
}

static enum aq_status words_read(const char *text, bool defaults, struct aq_codec_config *config)
{
    while (*(text += strspn(text, " \t\n,"))) {
        char word[WORD_BYTES];
        const size_t bytes = strcspn(text, " \t\n,");
        if (bytes >= sizeof word) return aq_fail(AQ_INVAL, "codec", "'%.40s...' is too long for a setting", text);
        memcpy(word, text, bytes);
        word[bytes] = 0;
        AQ_TRY(word_read(word, defaults, config));
        text += bytes;
    }
    return AQ_OK;
}

enum aq_status aq_library_settings(const char *text, struct aq_codec_config *out)
{
    struct aq_codec_config first = {.kind = aq_codec_kind_usual(false), .bits = 4};
    AQ_TRY(words_read(text, true, &first));
    if (first.bits < 1 || first.bits > 8) return aq_fail(AQ_INVAL, "codec", "bits is %u, must be 1 to 8", first.bits);
    aq_codec_config_default(out, first.kind, first.bits);
    return words_read(text, false, out);
}
