/* chat_variables.c -- see the header. */
#include "chat_variables.h"

#include <jansson.h>
#include <string.h>

#include "json_text.h"

static json_t *value_of(const char *text)
{
    json_t *value = json_loads(text, JSON_DECODE_ANY, NULL);
    return value ? value : json_string(text);
}

enum aq_status aq_named_values(const char *option, const char *run, const struct aq_arguments *asked,
                               struct aq_text *out)
{
    enum aq_status status = AQ_OK;
    if (!run && asked->count == 0) return AQ_OK;
    json_t *all = run ? json_loads(run, 0, NULL) : json_object();
    for (uint32_t i = 0; i < asked->count && status == AQ_OK; i++) {
        const char *one = asked->of[i], *equals = strchr(one, '=');
        if (!equals || equals == one)
            status =
                aq_fail(AQ_INVAL, "chat", "%s %.64s is not NAME=VALUE", option, one);
        else if (json_object_setn_new(all, one, (size_t)(equals - one), value_of(equals + 1)) != 0)
            status = aq_fail(AQ_INVAL, "chat", "%s %.64s is not UTF-8", option, one);
    }
    if (status == AQ_OK) status = aq_json_text(all, JSON_COMPACT, out);
    json_decref(all);
    return status;
}
