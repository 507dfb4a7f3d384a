/*
 * manifest_rules.c -- keys that need or exclude other keys, as the columns `needs` and `conflicts` of keys.def state.
 *
 * A check that computes something stands in the module of its subject; manifest_check.c has the table of them.
 */
#include <string.h>

#include "manifest.h"

enum { REPORTED_MAX = 64 };

struct rules {
    struct aq_manifest *manifest;
    struct aq_job defaults;          /* only what is_default reads into it */
    struct aq_text value, fallback;  /* of the key that is looked at */
    const char *texts[REPORTED_MAX]; /* of the errors so far */
    uint32_t count;
};

/* The value as a user writes it, without quotes; "none": no text. Of lists, how many entries. */
static void value_text(const struct aq_key *key, const struct aq_job *job, struct aq_text *out)
{
    const char *const *text = (const char *const *)((const char *)job + key->offset);
    out->used = 0;
    if (out->bytes) out->bytes[0] = '\0';
    switch (key->kind) {
    case AQ_KEY_PATHS:
        aq_text_add(out, "%u", *(const uint32_t *)(const void *)(text + 1)); /* the count follows the list */
        break;
    case AQ_KEY_STAGES:
        aq_text_add(out, "%u", job->pipeline.stage_count);
        break;
    case AQ_KEY_TEXT:
    case AQ_KEY_PATH:
    case AQ_KEY_CHOICE:
        aq_text_add(out, "%s", *text ? *text : "none");
        break;
    default:
        if (!aq_key_write(key, job, out)) aq_text_add(out, "none");
    }
}

static bool is_default(struct rules *rules, const struct aq_key *key, const char *value)
{
    if (!*key->fallback) return strcmp(value, "none") == 0 || strcmp(value, "0") == 0;
    if (!aq_key_is_scalar(key)) return strcmp(value, key->fallback) == 0;
    if (aq_key_read(key, key->fallback, false, &rules->defaults) != AQ_OK) return false;
    value_text(key, &rules->defaults, &rules->fallback);
    return strcmp(value, aq_text_of(&rules->fallback)) == 0;
}

/* Has the key one of these values? NULL: any but its default. */
static bool has(struct rules *rules, const struct aq_key *key, const char *values)
{
    const struct aq_job *job = &rules->manifest->job;
    const struct aq_job_every *often = (const void *)((const char *)job + key->offset);
    if (values && key->kind == AQ_KEY_OFTEN && often->ns > 0) return aq_word_listed(values, "time", strlen("time"));
    value_text(key, job, &rules->value);
    const char *text = aq_text_of(&rules->value);
    return values ? aq_word_listed(values, text, strlen(text)) : !is_default(rules, key, text);
}

/* Has at least one of the keys in a list one of the values? */
static bool any_has(struct rules *rules, const char *names, const char *values)
{
    const struct aq_key_table keys = aq_keys_job();
    for (uint32_t i = 0; i < keys.count; i++)
        if (aq_word_listed(names, keys.keys[i].name, strlen(keys.keys[i].name)) && has(rules, &keys.keys[i], values))
            return true;
    return false;
}

static bool holds(struct rules *rules, const struct aq_key *key, const struct aq_key_rule *rule)
{
    const bool inverted = rule->where && rule->where[0] == '!';
    if (!has(rules, key, rule->when)) return false;
    return !rule->where || any_has(rules, rule->where + inverted, NULL) != inverted;
}

/* Keys with the same text have one cause: the first is named. Without memory the values are unknown. */
static void report(struct rules *rules, const struct aq_key *key, const char *text)
{
    if (rules->value.status != AQ_OK || rules->fallback.status != AQ_OK) return;
    for (uint32_t i = 0; i < rules->count; i++)
        if (strcmp(rules->texts[i], text) == 0) return;
    if (rules->count < REPORTED_MAX) rules->texts[rules->count++] = text;
    aq_manifest_error(rules->manifest, key->name, "%s", text);
}

static void check_key(struct rules *rules, const struct aq_key *key)
{
    for (const struct aq_key_rule *rule = key->needs; rule && rule->other; rule++)
        if (holds(rules, key, rule) && !any_has(rules, rule->other, rule->values)) report(rules, key, rule->text);
    for (const struct aq_key_rule *rule = key->conflicts; rule && rule->other; rule++)
        if (holds(rules, key, rule) && any_has(rules, rule->other, rule->values)) report(rules, key, rule->text);
}

enum aq_status aq_manifest_rules(struct aq_manifest *manifest)
{
    struct rules rules = {.manifest = manifest};
    const struct aq_key_table keys = aq_keys_job();
    for (uint32_t i = 0; i < keys.count; i++)
        if (aq_key_applies(&keys.keys[i], manifest->job.model.config.kind)) check_key(&rules, &keys.keys[i]);
    const enum aq_status status = rules.value.status != AQ_OK ? rules.value.status : rules.fallback.status;
    aq_text_deinit(&rules.value);
    aq_text_deinit(&rules.fallback);
    return status;
}
