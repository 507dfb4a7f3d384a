/* json_text.c -- see the header. */
#include "json_text.h"

static int add_piece(const char *bytes, size_t count, void *text)
{
    aq_text_bytes(text, bytes, count);
    return ((struct aq_text *)text)->status == AQ_OK ? 0 : -1;
}

enum aq_status aq_json_text(const json_t *json, size_t flags, struct aq_text *text)
{
    if (!json || json_dump_callback(json, add_piece, text, flags | JSON_ENSURE_ASCII) != 0)
        return aq_fail(AQ_NOMEM, "json", "no memory to write a document");
    return AQ_OK;
}

enum aq_status aq_json_replace(const char *path, json_t *json, size_t flags)
{
    struct aq_text text = {0};
    enum aq_status status = aq_json_text(json, flags, &text);
    json_decref(json);
    aq_text_bytes(&text, "\n", 1);
    if (status == AQ_OK) status = text.status;
    if (status == AQ_OK) status = aq_file_replace(NULL, path, 0600, aq_text_of(&text), text.used);
    aq_text_deinit(&text);
    return status;
}
