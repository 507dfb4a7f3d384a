/*
 * keys.c -- the table made from keys.def, and one value at a time: text to value and back. See keys.h.
 */
#include "keys.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <threads.h>

#include "alias.h"
#include "nearest.h"

enum { NUMBER_BYTES = 48 };

static const double often_ns_max = 31536e12; /* a year, as train.time_max */

static const struct aq_key_name frozen_names[] = {
    {"fp32", AQ_FROZEN_FP32},
#define AQ_FROZEN_STORE(name, NAME, number) {#name, number},
#include "stages/frozen_stores.def"
#undef AQ_FROZEN_STORE
    {NULL, 0}};
static const struct aq_key_name tokenizer_names[] = {
#define AQ_TOKENIZER(name) {#name, 0},
#include "stages/tokenizers.def"
#undef AQ_TOKENIZER
    {NULL, 0}};
static const struct aq_key_name dataset_names[] = {
#define AQ_DATASET(name) {#name, 0},
#define AQ_DATASET_INTERNAL(name) {#name, AQ_KEY_NAME_INTERNAL},
#include "stages/datasets.def"
#undef AQ_DATASET
    {NULL, 0}};
static const struct aq_key_name task_names[] = {
#define AQ_TASK(name) {#name, 0},
#include "stages/tasks.def"
#undef AQ_TASK
    {NULL, 0}};
static const struct aq_key_name optimizer_names[] = {
#define AQ_OPTIMIZER(name) {#name, 0},
#include "aqsgd/optimizers.def"
    {NULL, 0}};
#define BITS(prefix, bits)                                                                                             \
    {                                                                                                                  \
#prefix #bits, 0                                                                                               \
    }
static const struct aq_key_name reduce_names[] = {
#define AQ_GRAD_CODEC(name) {#name, 0},
#define AQ_GRAD_CODEC_BITS(kind, prefix)                                                                               \
    BITS(prefix, 8), BITS(prefix, 7), BITS(prefix, 6), BITS(prefix, 5), BITS(prefix, 4), BITS(prefix, 3),              \
        BITS(prefix, 2),
#include "aqsgd/grad_codecs.def"
    {"powersgd", 0}, {"auto", 0}, {NULL, 0}};
static const struct aq_key_name stem_names[] = {{"cifar", AQ_STEM_CIFAR}, {"imagenet", AQ_STEM_IMAGENET}, {NULL, 0}};
static const struct aq_key_name tied_names[] = {
    {"exact", AQ_TIED_EXACT}, {"compressed", AQ_TIED_COMPRESSED}, {"untied", AQ_TIED_NO}, {NULL, 0}};
static const struct aq_key_name bos_names[] = {
    {"auto", AQ_BEGIN_AUTO}, {"true", AQ_BEGIN_ALWAYS}, {"false", AQ_BEGIN_NONE}, {NULL, 0}};
static const struct aq_key_name schedule_names[] = {{"auto", AQ_SCHEDULE_AUTO},
#define AQ_SCHEDULE(name, id, text) {text, id},
#include "schedules.def"
                                                    {NULL, 0}};
static const struct aq_key_name codec_names[] = {
#define AQ_CODEC(NAME, name, id) {#name, id},
#include "aqsgd/codecs.def"
    {NULL, 0}};
static const struct aq_key_name bf16_names[] = {
    {"auto", AQ_BF16_AUTO}, {"on", AQ_BF16_ON}, {"off", AQ_BF16_OFF}, {NULL, 0}};

/* Words of keys.def. */
#define NAMES(...) (const struct aq_key_name[]){__VA_ARGS__, {NULL, 0}}
#define RULES(...) (const struct aq_key_rule[]){__VA_ARGS__, {.other = NULL}}
/* clang-format off */
static const struct aq_key job_keys[] = {
#define AQ_KEY(name, kind, member, names, unit, min, max, fallback, scope, since, needs, conflicts, help) \
    {name, AQ_KEY_##kind, offsetof(struct aq_job, member), names, unit, min, max, fallback, AQ_SCOPE_##scope, \
     AQ_SINCE_##since, needs, conflicts, help, false},
#include "keys.def"
};
static const struct aq_key stage_keys[] = {
#define AQ_STAGE_KEY(name, kind, member, names, unit, min, max, fallback, scope, since, needs, conflicts, help) \
    {name, AQ_KEY_##kind, offsetof(struct aq_job_stage, member), names, unit, min, max, fallback, AQ_SCOPE_##scope, \
     AQ_SINCE_##since, needs, conflicts, help, false},
#include "keys.def"
};
static const struct aq_key codec_keys[] = {
#define AQ_CODEC_KEY(name, kind, member, names, unit, min, max, fallback, scope, since, needs, conflicts, help) \
    {name, AQ_KEY_##kind, offsetof(struct aq_codec_config, member), names, unit, min, max, fallback, AQ_SCOPE_##scope, \
     AQ_SINCE_##since, needs, conflicts, help, false},
#include "keys.def"
};
static const struct aq_key edge_keys[] = {
#define AQ_EDGE_KEY(name, kind, member, names, unit, min, max, fallback, scope, since, needs, conflicts, help) \
    {name, AQ_KEY_##kind, offsetof(struct aq_job_edge, member), names, unit, min, max, fallback, AQ_SCOPE_##scope, \
     AQ_SINCE_##since, needs, conflicts, help, false},
#include "keys.def"
};
/* clang-format on */
static const struct aq_key_section sections[] = {
#define AQ_SECTION(name, help) {name, help},
#include "keys.def"
};

#define TABLE(array)                                                                                                   \
    (struct aq_key_table)                                                                                              \
    {                                                                                                                  \
        array, (uint32_t)(sizeof array / sizeof *array)                                                                \
    }

enum { MODEL_KEYS_MAX = 128 };

static const char of_models[] = "model."; /* the row of keys.def whose place the models' own keys take */

/* keys.def with the models' own keys in their place: made once, by whoever asks first. */
static struct aq_key all_keys[sizeof job_keys / sizeof *job_keys + MODEL_KEYS_MAX];
static uint32_t all_count;
static once_flag all_once = ONCE_FLAG_INIT;

/* The columns of a model's key: a row of its own, or that of all. */
static const struct aq_key *model_columns(const char *name)
{
    const struct aq_key *all = NULL;
    for (size_t i = 0; i < sizeof job_keys / sizeof *job_keys; i++) {
        if (job_keys[i].kind != AQ_KEY_OF_MODEL) continue;
        if (strcmp(job_keys[i].name, name) == 0) return &job_keys[i];
        if (strcmp(job_keys[i].name, of_models) == 0) all = &job_keys[i];
    }
    AQ_ASSERT(all);
    return all;
}

static void add_model_key(const struct aq_model_key *from)
{
    static const enum aq_key_kind kinds[] = {
        [AQ_MODEL_U32] = AQ_KEY_U32,   [AQ_MODEL_F32] = AQ_KEY_F32,         [AQ_MODEL_BOOL] = AQ_KEY_BOOL,
        [AQ_MODEL_TIED] = AQ_KEY_ENUM, [AQ_MODEL_FACTORS] = AQ_KEY_FACTORS, [AQ_MODEL_STEM] = AQ_KEY_ENUM};
    const struct aq_key_name *const names[] = {[AQ_MODEL_TIED] = tied_names, [AQ_MODEL_STEM] = stem_names};
    const size_t offset = offsetof(struct aq_job, model.config) + from->offset;
    for (uint32_t i = 0; i < all_count; i++) {
        if (strcmp(all_keys[i].name, from->name) != 0) continue;
        AQ_ASSERT(all_keys[i].of_model && all_keys[i].offset == offset); /* models share a key as it is, or not */
        return;
    }
    AQ_ASSERT(all_count < sizeof all_keys / sizeof *all_keys);
    const struct aq_key *columns = model_columns(from->name);
    all_keys[all_count++] =
        (struct aq_key){.name = from->name,
                        .kind = kinds[from->kind],
                        .offset = offset,
                        .names = from->kind < sizeof names / sizeof *names ? names[from->kind] : NULL,
                        .unit = from->unit,
                        .min = from->min,
                        .max = from->max,
                        .fallback = from->fallback,
                        .scope = columns->scope,
                        .since = columns->since,
                        .needs = columns->needs,
                        .conflicts = columns->conflicts,
                        .help = from->help,
                        .of_model = true};
}

static void all_make(void)
{
    for (size_t i = 0; i < sizeof job_keys / sizeof *job_keys; i++) {
        if (job_keys[i].kind != AQ_KEY_OF_MODEL) {
            all_keys[all_count++] = job_keys[i];
            continue;
        }
        if (strcmp(job_keys[i].name, of_models) != 0) continue;
        const char *kind;
        for (uint32_t m = 0; (kind = aq_model_kind(m)) != NULL; m++) {
            uint32_t count;
            const struct aq_model_key *keys = aq_model_keys(kind, &count);
            for (uint32_t k = 0; k < count; k++)
                add_model_key(&keys[k]);
        }
    }
}

struct aq_key_table aq_keys_job(void)
{
    call_once(&all_once, all_make);
    return (struct aq_key_table){all_keys, all_count};
}

bool aq_key_applies(const struct aq_key *key, const char *model_kind)
{
    uint32_t count;
    const struct aq_model_key *keys = aq_model_keys(model_kind, &count);
    for (uint32_t i = 0; key->of_model && i < count; i++)
        if (strcmp(keys[i].name, key->name) == 0) return true;
    return !key->of_model;
}

struct aq_key_table aq_keys_stage(void)
{
    return TABLE(stage_keys);
}

struct aq_key_table aq_keys_codec(void)
{
    return TABLE(codec_keys);
}

struct aq_key_table aq_keys_edge(void)
{
    return TABLE(edge_keys);
}

const struct aq_key_section *aq_keys_sections(uint32_t *count)
{
    *count = (uint32_t)(sizeof sections / sizeof *sections);
    return sections;
}

const struct aq_key *aq_key_find(struct aq_key_table table, const char *name)
{
    for (uint32_t i = 0; i < table.count; i++)
        if (strcmp(table.keys[i].name, name) == 0) return &table.keys[i];
    return NULL;
}

bool aq_key_is_scalar(const struct aq_key *key)
{
    return key->kind < AQ_KEY_LAYERS && key->kind != AQ_KEY_PATHS;
}

/* --- one value from text ---------------------------------------------------------------------------------------- */

static enum aq_status whole(const char *text, uint64_t *out)
{
    if (*text < '0' || *text > '9') return AQ_INVAL;
    char *end;
    errno = 0;
    const unsigned long long value = strtoull(text, &end, 10);
    if (errno || *end) return AQ_INVAL;
    *out = value;
    return AQ_OK;
}

/* A finite decimal number at the beginning of text; *rest: what follows it, blanks skipped. */
static enum aq_status decimal(const char *text, double *out, const char **rest)
{
    const char *digits = text + (*text == '-' || *text == '+');
    if ((*digits < '0' || *digits > '9') && *digits != '.') return AQ_INVAL; /* no "inf", "nan" */
    if (digits[0] == '0' && (digits[1] == 'x' || digits[1] == 'X')) return AQ_INVAL;
    char *end;
    const double value = strtod(text, &end);
    if (end == text || !isfinite(value)) return AQ_INVAL;
    while (*end == ' ')
        end++;
    *out = value;
    *rest = end;
    return AQ_OK;
}

struct unit {
    const char *name;
    double factor;
};

static const struct unit byte_units[] = {{"", 1},
                                         {"B", 1},
                                         {"kB", 1e3},
                                         {"KB", 1e3},
                                         {"MB", 1e6},
                                         {"GB", 1e9},
                                         {"TB", 1e12},
                                         {"KiB", 1024},
                                         {"MiB", 1 << 20},
                                         {"GiB", 1 << 30},
                                         {"TiB", 1099511627776.0},
                                         {NULL, 0}};
static const struct unit rate_units[] = {{"", 1},          {"kbit", 1e-3}, {"mbit", 1},     {"gbit", 1e3},
                                         {"kbit/s", 1e-3}, {"mbit/s", 1},  {"gbit/s", 1e3}, {"Mbit/s", 1},
                                         {"Gbit/s", 1e3},  {"mbps", 1},    {"gbps", 1e3},   {"Mbps", 1},
                                         {"Gbps", 1e3},    {"Mbit", 1},    {"Gbit", 1e3},   {NULL, 0}};
static const struct unit time_units[] = {{"", 1e9},     {"ns", 1},      {"us", 1e3},   {"ms", 1e6},
                                         {"s", 1e9},    {"sec", 1e9},   {"min", 60e9}, {"m", 60e9},
                                         {"h", 3600e9}, {"d", 86400e9}, {NULL, 0}};

static enum aq_status with_unit(const char *text, const struct unit *units, double *out)
{
    const char *rest;
    double value;
    AQ_TRY(decimal(text, &value, &rest));
    if (value < 0) return AQ_INVAL;
    for (; units->name; units++)
        if (strcmp(rest, units->name) == 0) {
            *out = value * units->factor;
            return isfinite(*out) ? AQ_OK : AQ_INVAL;
        }
    return AQ_INVAL;
}

/* A size or a duration: exact where the text is a plain count of the base unit. */
static enum aq_status count_with_unit(const char *text, const struct unit *units, const char *base, uint64_t *out)
{
    char digits[NUMBER_BYTES];
    const size_t bytes = strspn(text, "0123456789");
    const char *unit = text + bytes + strspn(text + bytes, " ");
    if (bytes > 0 && bytes < sizeof digits && strcmp(unit, base) == 0) {
        memcpy(digits, text, bytes);
        digits[bytes] = 0;
        return whole(digits, out);
    }
    double value;
    AQ_TRY(with_unit(text, units, &value));
    if (value >= 9e18) return AQ_INVAL;
    *out = (uint64_t)(value + 0.5);
    return AQ_OK;
}

static enum aq_status read_every(const char *text, struct aq_job_every *out)
{
    char digits[NUMBER_BYTES];
    const size_t bytes = strspn(text, "0123456789");
    if (strcmp(text, "never") == 0) {
        *out = (struct aq_job_every){0};
        return AQ_OK;
    }
    if (bytes == 0 || bytes >= sizeof digits) return AQ_INVAL;
    memcpy(digits, text, bytes);
    digits[bytes] = 0;
    struct aq_job_every every = {0};
    AQ_TRY(whole(digits, &every.count));
    const char *unit = text + bytes + strspn(text + bytes, " ");
    every.epochs = strcmp(unit, "epoch") == 0 || strcmp(unit, "epochs") == 0;
    if (!every.epochs && *unit && strcmp(unit, "step") != 0 && strcmp(unit, "steps") != 0) return AQ_INVAL;
    if (every.count == 0) every.epochs = false;
    *out = every;
    return AQ_OK;
}

/* An interval, or a time with its unit: a plain number is one of steps. */
static enum aq_status read_often(const struct aq_key *key, const char *text, struct aq_job_every *out)
{
    struct aq_job_every every = {0};
    if (read_every(text, &every) == AQ_OK) {
        *out = every;
        return (double)every.count <= key->max ? AQ_OK : AQ_INVAL;
    }
    AQ_TRY(count_with_unit(text, time_units, "ns", &every.ns));
    if (every.ns == 0 || (double)every.ns > often_ns_max) return AQ_INVAL;
    *out = every;
    return AQ_OK;
}

static enum aq_status read_bool(const char *text, bool *out)
{
    static const char *const words[] = {"false", "true", "no", "yes", "off", "on"};
    bool none;
    text = aq_alias_word(text, &none);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(text, words[i]) == 0) {
            *out = i % 2 == 1;
            return AQ_OK;
        }
    return AQ_INVAL;
}

static enum aq_status read_name(const struct aq_key *key, const char *text, void *to)
{
    bool yes, none;
    if (key->names == bos_names) text = aq_alias_word(text, &none);
    if (key->names == tied_names && read_bool(text, &yes) == AQ_OK) { /* as it was written before */
        *(int *)to = yes ? AQ_TIED_EXACT : AQ_TIED_NO;
        return AQ_OK;
    }
    for (const struct aq_key_name *name = key->names; name->name; name++) {
        if (strcmp(text, name->name) != 0) continue;
        if (key->kind == AQ_KEY_CHOICE)
            *(const char **)to = name->name;
        else
            *(int *)to = name->value; /* every enum of the job is an int here, see the static assert below */
        return AQ_OK;
    }
    return AQ_INVAL;
}
_Static_assert(sizeof(enum aq_codec_kind) == sizeof(int), "enums are written as ints");
_Static_assert(sizeof(enum aq_lr_decay) == sizeof(int), "enums are written as ints");

static bool within(const struct aq_key *key, double value)
{
    return value >= key->min && (key->max <= 0 ? key->min >= 0 || value <= key->max : value <= key->max);
}

static const struct {
    const char *name;
    uint32_t value;
} flights[] = {{"auto", AQ_IN_FLIGHT_AUTO}, {"default", AQ_IN_FLIGHT_DEFAULT}, {"classic", AQ_IN_FLIGHT_CLASSIC}};

/* "20ms", "0.1s" of a key whose unit is ms; a plain number is milliseconds. */
static bool is_time(const struct aq_key *key, const char *text, double *ms)
{
    const char *rest;
    double ns;
    if (strcmp(key->unit, "ms") != 0 || decimal(text, ms, &rest) != AQ_OK || !*rest) return false;
    if (with_unit(text, time_units, &ns) != AQ_OK) return false;
    *ms = ns * 1e-6;
    return true;
}

static enum aq_status read_number(const struct aq_key *key, const char *text, void *to)
{
    uint64_t count = 0;
    double value = 0;
    const char *rest = "";
    switch (key->kind) {
    case AQ_KEY_IN_FLIGHT:
        for (size_t i = 0; i < sizeof flights / sizeof *flights; i++) {
            if (strcmp(text, flights[i].name) != 0) continue;
            *(uint32_t *)to = flights[i].value;
            return AQ_OK;
        }
        /* fall through */
    case AQ_KEY_COUNT:
    case AQ_KEY_WINDOW:
        if ((key->kind == AQ_KEY_COUNT || key->kind == AQ_KEY_WINDOW) && strcmp(text, "auto") == 0) {
            *(uint32_t *)to = key->kind == AQ_KEY_COUNT ? 0 : AQ_WINDOW_AUTO;
            return AQ_OK;
        }
        /* fall through */
    case AQ_KEY_U32:
        if (whole(text, &count) != AQ_OK || count > UINT32_MAX || !within(key, (double)count)) return AQ_INVAL;
        *(uint32_t *)to = (uint32_t)count;
        return AQ_OK;
    case AQ_KEY_U64:
        if (whole(text, &count) != AQ_OK || !within(key, (double)count)) return AQ_INVAL;
        *(uint64_t *)to = count;
        return AQ_OK;
    case AQ_KEY_I32:
        if (decimal(text, &value, &rest) != AQ_OK || *rest || value != floor(value) || !within(key, value))
            return AQ_INVAL;
        *(int32_t *)to = (int32_t)value;
        return AQ_OK;
    case AQ_KEY_SCALE:
        if (strcmp(text, "auto") == 0) {
            *(float *)to = 0.0f;
            return AQ_OK;
        }
        /* fall through */
    case AQ_KEY_F32:
        if (isinf(key->max) && strcmp(text, "inf") == 0) {
            *(float *)to = INFINITY;
            return AQ_OK;
        }
        if (!is_time(key, text, &value) && (decimal(text, &value, &rest) != AQ_OK || *rest)) return AQ_INVAL;
        if (!within(key, value)) return AQ_INVAL;
        if (value > 0 && (float)value <= 0) return AQ_INVAL; /* 0 is off for many a key: nothing becomes it unsaid */
        *(float *)to = (float)value;
        return AQ_OK;
    case AQ_KEY_RATE:
        if (with_unit(text, rate_units, &value) != AQ_OK || !within(key, value)) return AQ_INVAL;
        *(double *)to = value;
        return AQ_OK;
    case AQ_KEY_BYTES:
        if (count_with_unit(text, byte_units, "", &count) != AQ_OK || !within(key, (double)count)) return AQ_INVAL;
        *(uint64_t *)to = count;
        return AQ_OK;
    case AQ_KEY_DURATION:
        if (count_with_unit(text, time_units, "ns", &count) != AQ_OK || !within(key, (double)count)) return AQ_INVAL;
        *(uint64_t *)to = count;
        return AQ_OK;
    default:
        return AQ_INVAL;
    }
}

static enum aq_status read_factors(const struct aq_key *key, const char *text, struct aq_factors *out)
{
    struct aq_factors factors = {0};
    for (const char *rest = strcmp(text, "none") == 0 ? "" : text; *rest; factors.count++) {
        double value;
        if (factors.count == AQ_FACTORS_MAX || decimal(rest, &value, &rest) != AQ_OK || !within(key, value))
            return AQ_INVAL;
        factors.of[factors.count] = (float)value;
        if (*rest == ',') rest += 1 + strspn(rest + 1, " ");
    }
    *out = factors;
    return AQ_OK;
}

enum aq_status aq_key_read(const struct aq_key *key, const char *text, bool quoted, void *base)
{
    void *to = (char *)base + key->offset;
    switch (key->kind) {
    case AQ_KEY_TEXT:
    case AQ_KEY_PATH:
        *(const char **)to = *text ? text : NULL;
        return AQ_OK;
    case AQ_KEY_ENUM:
    case AQ_KEY_CHOICE:
        return read_name(key, text, to);
    case AQ_KEY_EVERY: {
        struct aq_job_every every;
        if (read_every(text, &every) != AQ_OK || !within(key, (double)every.count)) return AQ_INVAL;
        memcpy(to, &every, sizeof every);
        return AQ_OK;
    }
    case AQ_KEY_OFTEN: {
        struct aq_job_every every;
        AQ_TRY(read_often(key, text, &every));
        memcpy(to, &every, sizeof every);
        return AQ_OK;
    }
    case AQ_KEY_FACTORS:
        return read_factors(key, text, to);
    case AQ_KEY_BOOL:
        return quoted ? AQ_INVAL : read_bool(text, to);
    case AQ_KEY_BYTES:
    case AQ_KEY_RATE:
    case AQ_KEY_DURATION:
    case AQ_KEY_COUNT:
    case AQ_KEY_WINDOW:
    case AQ_KEY_IN_FLIGHT:
    case AQ_KEY_SCALE:
        return read_number(key, text, to);
    default:
        return quoted ? AQ_INVAL : read_number(key, text, to);
    }
}

/* --- one value to text ------------------------------------------------------------------------------------------ */

void aq_key_quote(const char *text, struct aq_text *out)
{
    aq_text_bytes(out, "\"", 1);
    for (const unsigned char *at = (const unsigned char *)text; *at; at++) {
        if (*at == '"' || *at == '\\')
            aq_text_add(out, "\\%c", *at);
        else if (*at < 0x20 || *at == 0x7f)
            aq_text_add(out, "\\x%02x", *at);
        else
            aq_text_bytes(out, (const char *)at, 1);
    }
    aq_text_bytes(out, "\"", 1);
}

static bool write_name(const struct aq_key *key, int value, struct aq_text *out)
{
    for (const struct aq_key_name *name = key->names; name->name; name++)
        if (name->value == value) {
            aq_text_add(out, "%s", name->name);
            return true;
        }
    return false;
}

static bool write_every(const struct aq_job_every *every, struct aq_text *out)
{
    if (every->ns > 0)
        aq_text_add(out, "%lluns", (unsigned long long)every->ns);
    else if (every->count == 0)
        aq_text_add(out, "0");
    else
        aq_text_add(out, "%llu %s%s", (unsigned long long)every->count, every->epochs ? "epoch" : "step",
                    every->count == 1 ? "" : "s");
    return true;
}

/* The shortest that reads to the same bits: 0.0002, not 0.000199999995. */
static void write_float(float value, struct aq_text *out)
{
    char text[NUMBER_BYTES];
    int digits = 6;
    do {
        snprintf(text, sizeof text, "%.*g", digits, (double)value);
    } while ((float)strtod(text, NULL) != value && ++digits <= 9); /* as aq_key_read does */
    aq_text_add(out, "%s", text);
}

static bool write_factors(const struct aq_factors *factors, struct aq_text *out)
{
    if (factors->count == 0) aq_text_add(out, "none");
    for (uint32_t i = 0; i < factors->count; i++) {
        if (i > 0) aq_text_add(out, " ");
        write_float(factors->of[i], out);
    }
    return true;
}

static bool write_flight(uint32_t count, struct aq_text *out)
{
    for (size_t i = 0; i < sizeof flights / sizeof *flights; i++) {
        if (flights[i].value != count) continue;
        aq_text_add(out, "%s", flights[i].name);
        return true;
    }
    aq_text_add(out, "%u", count);
    return true;
}

bool aq_key_write(const struct aq_key *key, const void *base, struct aq_text *out)
{
    const void *from = (const char *)base + key->offset;
    uint32_t count;
    switch (key->kind) {
    case AQ_KEY_MAP: /* JSON is YAML */
        if (!*(const char *const *)from) return false;
        aq_text_add(out, "%s", *(const char *const *)from);
        return true;
    case AQ_KEY_TEXT:
    case AQ_KEY_PATH:
    case AQ_KEY_CHOICE:
        if (!*(const char *const *)from) return false;
        aq_key_quote(*(const char *const *)from, out);
        return true;
    case AQ_KEY_ENUM:
        return write_name(key, *(const int *)from, out);
    case AQ_KEY_BOOL:
        aq_text_add(out, *(const bool *)from ? "true" : "false");
        return true;
    case AQ_KEY_U32:
        count = *(const uint32_t *)from;
        if (!within(key, (double)count)) return false;
        aq_text_add(out, "%u", count);
        return true;
    case AQ_KEY_COUNT:
    case AQ_KEY_WINDOW:
        count = *(const uint32_t *)from;
        if (count == (key->kind == AQ_KEY_COUNT ? 0 : AQ_WINDOW_AUTO))
            aq_text_add(out, "auto");
        else
            aq_text_add(out, "%u", count);
        return true;
    case AQ_KEY_IN_FLIGHT:
        return write_flight(*(const uint32_t *)from, out);
    case AQ_KEY_FACTORS:
        return write_factors(from, out);
    case AQ_KEY_I32:
        aq_text_add(out, "%d", *(const int32_t *)from);
        return true;
    case AQ_KEY_SCALE:
        if (*(const float *)from == 0.0f) {
            aq_text_add(out, "auto");
            return true;
        }
        /* fall through */
    case AQ_KEY_F32:
        write_float(*(const float *)from, out);
        return true;
    case AQ_KEY_RATE:
        aq_text_add(out, "%.17g", *(const double *)from);
        return true;
    case AQ_KEY_U64:
    case AQ_KEY_BYTES:
        aq_text_add(out, "%llu", (unsigned long long)*(const uint64_t *)from);
        return true;
    case AQ_KEY_DURATION:
        aq_text_add(out, "%lluns", (unsigned long long)*(const uint64_t *)from);
        return true;
    case AQ_KEY_EVERY:
    case AQ_KEY_OFTEN:
        return write_every(from, out);
    default:
        return false;
    }
}

bool aq_word_listed(const char *list, const char *word, size_t bytes)
{
    for (const char *at = list; *at; at += strcspn(at, " "), at += *at == ' ')
        if (strcspn(at, " ") == bytes && strncmp(at, word, bytes) == 0) return true;
    return false;
}

/* --- names near each other -------------------------------------------------------------------------------------- */

const char *aq_key_nearest(struct aq_key_table table, const char *name)
{
    const char *last = strrchr(name, '.'), *nearest = NULL;
    uint32_t best = UINT32_MAX;
    for (uint32_t i = 0; i < table.count; i++) {
        const char *key = table.keys[i].name, *key_last = strrchr(key, '.');
        uint32_t distance = 2 * aq_word_distance(name, key);
        /* The right word in the wrong section is nearer than a wrong word. */
        if (last && key_last && strcmp(last, key_last) == 0 && distance > 1) distance = 1;
        if (distance < best) {
            best = distance;
            nearest = key;
        }
    }
    const size_t bytes = strlen(last ? last + 1 : name);
    return best <= 2 * (bytes / 3 + 1) ? nearest : NULL;
}
