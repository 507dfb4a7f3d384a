/* gguf.c -- the metadata of a GGUF file, and what cannot be written as one. See gguf.h. */
#include <string.h>

#include "gguf_private.h"
#include "stages/chat.h"

const char aq_gguf_types[] = "f16|q8_0";

/* llama_ftype: what most tensors are. */
static const struct {
    const char *name;
    uint32_t number;
    bool q8;
} types[] = {{"f16", 1, false}, {"q8_0", 7, true}};

enum { TYPES = sizeof types / sizeof types[0] };

static uint32_t type_find(const char *name)
{
    uint32_t type = 0;
    while (type < TYPES && strcmp(types[type].name, name) != 0)
        type++;
    return type;
}

bool aq_gguf_type_is(const char *type)
{
    return type_find(type) < TYPES;
}

static enum aq_status put_chat(const char *folder, struct gguf_keys *keys)
{
    struct aq_error_hold none;
    char *text;
    size_t bytes;
    if (!folder) return AQ_OK;
    aq_error_hold(&none);
    const enum aq_status status = aq_chat_source(folder, &text, &bytes);
    aq_error_release(&none);
    if (status == AQ_NOTFOUND) return AQ_OK;
    if (status != AQ_OK) return aq_fail(status, GGUF_AREA, "%s", none.text);
    gguf_string(keys, "tokenizer.chat_template", text, bytes);
    aq_free(text);
    return AQ_OK;
}

static enum aq_status put_keys(const struct aq_gguf_about *about, uint32_t type, struct aq_gguf *gguf)
{
    struct gguf_keys *keys = &gguf->keys;
    bool strips = false;
    keys->arch = gguf->family->arch;
    gguf_string(keys, "general.architecture", keys->arch, strlen(keys->arch));
    gguf_string(keys, "general.type", "model", strlen("model"));
    gguf_u32(keys, "general.file_type", types[type].number);
    gguf_u32(keys, "general.quantization_version", 2);
    gguf_u32(keys, "general.alignment", GGUF_ALIGNMENT);
    gguf_family_keys(gguf->family, about->model, keys);
    AQ_TRY(gguf_tokens(about, keys, &strips));
    gguf_name(about->name, strips, keys);
    AQ_TRY(put_chat(about->chat, keys));
    return keys->status;
}

enum aq_status aq_gguf_open(const struct aq_gguf_about *about, struct aq_gguf **out)
{
    const uint32_t type = type_find(about->type);
    const struct gguf_family *family = NULL;
    if (type == TYPES)
        return aq_fail(AQ_INVAL, GGUF_AREA, "type %s: a GGUF file has %s here", about->type, aq_gguf_types);
    AQ_TRY(gguf_family_find(about->model, &family));
    struct aq_gguf *gguf;
    AQ_TRY(AQ_NEW(1, &gguf));
    *gguf = (struct aq_gguf){.model = *about->model, .family = family, .q8 = types[type].q8};
    const enum aq_status status = put_keys(about, type, gguf);
    if (status != AQ_OK)
        aq_gguf_close(gguf);
    else
        *out = gguf;
    return status;
}

void aq_gguf_close(struct aq_gguf *gguf)
{
    if (!gguf) return;
    gguf_keys_free(&gguf->keys);
    aq_free(gguf);
}
