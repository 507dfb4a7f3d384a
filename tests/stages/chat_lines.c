/*
 * chat_lines.c -- for test_chat_jinja and test_chat_transformers: renders requests from standard input, so that another
 * implementation can be asked the same.
 *
 * A line is {"template": text, "variables": {...}, "prompt": bool, "answers": bool, "line": text}; the answer is a line
 * {"status": n, "error": text} or {"status": 0, "text": text, "answers": [[begin, end], ...]} in bytes.
 * A line {"folder": path, "line": text} is answered by {"status": 0, "ids": [...], "marks": [...]}: tokens by the
 * folder's template and tokenizer.json.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "stages/chat.h"
#include "stages/dataset.h"

static char error[1024];

static void keep(int level, const char *line, void *context)
{
    (void)level, (void)context;
    if (!error[0]) snprintf(error, sizeof error, "%s", line);
}

static enum aq_status answer(const json_t *request, struct aq_chat_text *text)
{
    const json_t *source = json_object_get(request, "template"), *line = json_object_get(request, "line");
    struct aq_chat_config config = aq_chat_config_default();
    struct aq_chat_template *template;
    config.add_generation_prompt = json_is_true(json_object_get(request, "prompt"));
    char *variables = json_dumps(json_object_get(request, "variables"), JSON_COMPACT);
    enum aq_status status =
        aq_chat_parse(json_string_value(source), json_string_length(source), "template", variables, &template);
    free(variables);
    if (status != AQ_OK) return status;
    status = (json_is_true(json_object_get(request, "answers")) ? aq_chat_answers : aq_chat_render)(
        template, json_string_value(line), json_string_length(line), &config, text);
    aq_chat_close(template);
    return status;
}

static enum aq_status tokens(const json_t *request, struct aq_chat_tokens *out)
{
    const char *folder = json_string_value(json_object_get(request, "folder"));
    const json_t *line = json_object_get(request, "line");
    const struct aq_chat_config config = aq_chat_config_default();
    struct aq_chat_template *template = NULL;
    struct aq_tokenizer *tokenizer = NULL;
    enum aq_status status = aq_chat_open(folder, NULL, &template);
    if (status == AQ_OK) status = aq_tokenizer_open("huggingface", folder, &tokenizer);
    if (status == AQ_OK)
        status = aq_chat_tokenize(template, tokenizer, json_string_value(line), json_string_length(line), &config, out);
    aq_tokenizer_close(tokenizer);
    aq_chat_close(template);
    return status;
}

static json_t *tell_tokens(const json_t *request)
{
    struct aq_chat_tokens made = {0};
    const enum aq_status status = tokens(request, &made);
    json_t *ids = json_array(), *marks = json_array();
    for (size_t i = 0; i < made.count; i++) {
        json_array_append_new(ids, json_integer(made.tokens[i]));
        json_array_append_new(marks, json_integer(made.answer[i]));
    }
    aq_chat_tokens_free(&made);
    return json_pack("{s:i, s:s, s:o, s:o}", "status", (int)status, "error", error, "ids", ids, "marks", marks);
}

static json_t *tell_text(const json_t *request)
{
    struct aq_chat_text text = {0};
    const enum aq_status status = answer(request, &text);
    if (status != AQ_OK) return json_pack("{s:i, s:s}", "status", (int)status, "error", error);
    json_t *answers = json_array();
    for (uint32_t i = 0; i < text.answer_count; i++)
        json_array_append_new(answers,
                              json_pack("[I, I]", (json_int_t)text.answers[i].begin, (json_int_t)text.answers[i].end));
    json_t *out = json_pack("{s:i, s:s%, s:o}", "status", 0, "text", text.text, text.bytes, "answers", answers);
    aq_chat_text_free(&text);
    return out;
}

int main(void)
{
    char *line = NULL;
    size_t room = 0;
    aq_log_sink(keep, NULL);
    for (ssize_t bytes; (bytes = getline(&line, &room, stdin)) > 0;) {
        json_t *request = json_loadb(line, (size_t)bytes, JSON_ALLOW_NUL, NULL);
        error[0] = 0;
        json_t *out = !request ? NULL : json_object_get(request, "folder") ? tell_tokens(request) : tell_text(request);
        if (!out || json_dumpf(out, stdout, JSON_COMPACT) != 0 || putchar('\n') == EOF) return 1;
        json_decref(out);
        json_decref(request);
    }
    free(line);
    return fflush(stdout) == 0 ? 0 : 1;
}
