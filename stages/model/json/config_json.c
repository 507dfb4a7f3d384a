/* config_json.c -- keys of a published config.json. See the header. */
#include "config_json.h"

#include "python_json.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define AREA "folder"

enum { VALUE_BYTES = 64, TEXT_BYTES = 256 };

static const json_t *value_of(const struct config_json *config, const char *key)
{
    const json_t *value = json_object_get(config->object, key);
    return json_is_null(value) ? NULL : value;
}

bool config_json_has(const struct config_json *config, const char *key)
{
    return value_of(config, key) != NULL;
}

/* As much of a value's text as fits. */
struct found {
    char text[VALUE_BYTES];
    size_t used;
    bool cut;
};

static int found_add(const char *text, size_t bytes, void *context)
{
    struct found *found = context;
    const size_t left = sizeof found->text - found->used;
    found->cut = found->cut || bytes > left;
    memcpy(found->text + found->used, text, bytes < left ? bytes : left);
    found->used += bytes < left ? bytes : left;
    return found->cut ? -1 : 0;
}

enum aq_status config_json_refuse(const struct config_json *config, const char *key, const char *format, ...)
{
    char expected[TEXT_BYTES], printable[4 * VALUE_BYTES + 1] = "nothing";
    struct found found = {.used = 0};
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(expected, sizeof expected, format, arguments);
    va_end(arguments);
    const json_t *value = json_object_get(config->object, key);
    const char *word = python_json_word(value);
    if (word)
        snprintf(printable, sizeof printable, "%s", word);
    else if (value) {
        (void)json_dump_callback(value, found_add, &found, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(6));
        aq_printable(found.text, found.used, false, printable, sizeof printable);
    }
    return aq_fail(AQ_MISMATCH, AREA, "%s: %s%.64s: found %s%s, expected %s", config->file, config->within, key,
                   printable, found.cut ? "..." : "", expected);
}

enum aq_status config_json_u32(const struct config_json *config, const char *key, uint32_t least, uint32_t most,
                               uint32_t *out)
{
    const json_t *value = value_of(config, key);
    const json_int_t number = json_is_integer(value) ? json_integer_value(value) : -1;
    if (number < (json_int_t)least || number > (json_int_t)most)
        return config_json_refuse(config, key, "a whole number from %u to %u", least, most);
    *out = (uint32_t)number;
    return AQ_OK;
}

enum aq_status config_json_u32_or(const struct config_json *config, const char *key, uint32_t least, uint32_t most,
                                  uint32_t fallback, uint32_t *out)
{
    if (value_of(config, key)) return config_json_u32(config, key, least, most, out);
    *out = fallback;
    return AQ_OK;
}

enum aq_status config_json_number_or(const struct config_json *config, const char *key, double least, double most,
                                     double fallback, double *out)
{
    const json_t *value = value_of(config, key);
    const double number = value ? json_number_value(value) : fallback;
    if (value && (!json_is_number(value) || !(number >= least && number <= most)))
        return config_json_refuse(config, key, "a number from %g to %g", least, most);
    *out = number;
    return AQ_OK;
}

enum aq_status config_json_bool_or(const struct config_json *config, const char *key, bool fallback, bool *out)
{
    const json_t *value = value_of(config, key);
    if (value && !json_is_boolean(value)) return config_json_refuse(config, key, "true or false");
    *out = value ? json_is_true(value) : fallback;
    return AQ_OK;
}

enum aq_status config_json_text_or(const struct config_json *config, const char *key, const char *fallback,
                                   const char **out)
{
    const json_t *value = value_of(config, key);
    if (value && !json_is_string(value)) return config_json_refuse(config, key, "a text");
    *out = value ? json_string_value(value) : fallback;
    return AQ_OK;
}

enum aq_status config_json_one_of(const struct config_json *config, const char *key, const char *fallback,
                                  const char *words, uint32_t *index)
{
    const char *text = NULL;
    uint32_t at = 0;
    AQ_TRY(config_json_text_or(config, key, fallback, &text));
    const size_t length = text ? strlen(text) : 0;
    for (const char *word = words;; at++) {
        const size_t bytes = strcspn(word, "|");
        if (length > 0 && bytes == length && memcmp(word, text, length) == 0) break;
        if (!word[bytes]) return config_json_refuse(config, key, "%s", words);
        word += bytes + 1;
    }
    if (index) *index = at;
    return AQ_OK;
}

enum aq_status config_json_only(const struct config_json *config, const char *key, bool wanted)
{
    const json_t *value = value_of(config, key);
    if (!value || (json_is_boolean(value) && json_is_true(value) == wanted)) return AQ_OK;
    return config_json_refuse(config, key, "%s (nothing else is supported)", wanted ? "true" : "false");
}

enum aq_status config_json_only_number(const struct config_json *config, const char *key, double wanted)
{
    const json_t *value = value_of(config, key);
    if (!value || (json_is_number(value) && fabs(json_number_value(value) - wanted) <= 1e-6 * fabs(wanted)))
        return AQ_OK;
    return config_json_refuse(config, key, "%g (nothing else is supported)", wanted);
}

enum aq_status config_json_object(const struct config_json *config, const char *key, const char *within,
                                  struct config_json *out)
{
    const json_t *value = value_of(config, key);
    if (value && !json_is_object(value)) return config_json_refuse(config, key, "an object of keys");
    *out = (struct config_json){.file = config->file, .within = within, .object = value};
    return AQ_OK;
}

void config_json_put_labels(json_t *config, uint32_t labels)
{
    json_t *names = json_object(), *numbers = json_object();
    for (uint32_t i = 0; i < labels; i++) {
        char number[16], name[24];
        snprintf(number, sizeof number, "%u", i);
        snprintf(name, sizeof name, "LABEL_%u", i);
        json_object_set_new(names, number, json_string(name));
        json_object_set_new(numbers, name, json_integer(i));
    }
    json_object_set_new(config, "id2label", names);
    json_object_set_new(config, "label2id", numbers);
    if (labels == 1) json_object_set_new(config, "problem_type", json_string("regression"));
}

void config_json_put_ends(json_t *config, uint32_t labels, int32_t end_of_text)
{
    for (uint32_t i = 0; i < labels; i++) {
        char number[16];
        snprintf(number, sizeof number, "%u", i);
        if (i == 0) json_object_set_new(config, "id2label", json_object());
        json_object_set_new(json_object_get(config, "id2label"), number, json_sprintf("LABEL_%u", i));
    }
    if (labels == 1) json_object_set_new(config, "problem_type", json_string("regression"));
    if (labels) json_object_set_new(config, "pad_token_id", json_integer(end_of_text >= 0 ? end_of_text : 0));
    for (int i = 0; i < 2; i++)
        json_object_set_new(config, i ? "eos_token_id" : "bos_token_id",
                            end_of_text >= 0 ? json_integer(end_of_text) : json_null());
}
