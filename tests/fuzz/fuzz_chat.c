/*
 * fuzz_chat.c -- any bytes as a chat template and as a conversation.
 *
 * Two pieces with ff between them (which neither takes): the template, and a line of JSON; without a line there is a
 * small one. Answers must lie in the text, in order.
 */
#include <string.h>

#include "fuzz.h"
#include "stages/chat.h"

static const char small[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \"Be.\"}, {\"role\": \"user\", \"content\": "
    "\"a\"}, {\"role\": \"assistant\", \"content\": \"b c\"}], \"tools\": [{\"name\": \"f\"}]}";

static void check(const struct aq_chat_text *text)
{
    size_t before = 0;
    AQ_ASSERT(text->text[text->bytes] == 0);
    for (uint32_t i = 0; i < text->answer_count; i++) {
        AQ_ASSERT(text->answers[i].begin >= before && text->answers[i].end > text->answers[i].begin);
        before = text->answers[i].end;
    }
    AQ_ASSERT(before <= text->bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct aq_chat_config config = aq_chat_config_default();
    struct aq_chat_template *template;
    struct aq_chat_text text = {0};
    fuzz_quiet();
    struct fuzz_piece rest = {data, size};
    const struct fuzz_piece source = fuzz_cut(&rest, 0xff);
    const bool own = rest.count > 0;
    const char *line = own ? (const char *)rest.bytes : small;
    const size_t bytes = own ? rest.count : strlen(small);
    config.steps_max = 1 << 16;
    enum aq_status status = aq_chat_parse((const char *)source.bytes, source.count, "fuzz",
                                          "{\"bos_token\": \"<s>\", \"eos_token\": \"</s>\"}", &template);
    if (status == AQ_OK) {
        status = aq_chat_render(template, line, bytes, &config, &text);
        if (status == AQ_OK) check(&text);
        aq_chat_text_free(&text);
        if (status == AQ_OK && aq_chat_answers(template, line, bytes, &config, &text) == AQ_OK) check(&text);
        aq_chat_text_free(&text);
        aq_chat_close(template);
    }
    fuzz_told(status == AQ_OK);
    AQ_ASSERT(status == AQ_OK || status == AQ_CORRUPT || status == AQ_INVAL || status == AQ_REFUSED ||
              status == AQ_NOSPC || status == AQ_MISMATCH);
    return 0;
}
