/*
 * chat_answers.c -- a conversation's text, and which bytes of it are answers.
 *
 * Without {% generation %} in the template, four renderings locate answer i:
 *
 *     full    all messages
 *     head    messages before i, with the head of an answer (add_generation_prompt)
 *     bare    messages before i, without it: needed only where head is no beginning of full
 *     whole   messages up to i
 *
 * The answer starts at the end of head (or, if full has no such head, at the first difference behind bare) and ends at
 * the end of whole. Templates that leave the thinking out of earlier answers write less in full than in whole: then the
 * answer is the longest suffix of whole's answer, with all that follows the content, that full has at the answer's
 * start. An eos_token that a template puts only behind the last message is no part of an earlier answer.
 *
 * All renderings of a conversation share one bound of steps.
 */
#include "chat_private.h"

#include <string.h>

struct conversation {
    const struct aq_chat_template *template_;
    const struct aq_chat_config *config;
    const json_t *line, *variables; /* variables NULL: none */
    uint64_t steps;                 /* left */
};

struct aq_chat_config aq_chat_config_default(void)
{
    return (struct aq_chat_config){.add_generation_prompt = false};
}

void aq_chat_text_free(struct aq_chat_text *text)
{
    aq_free(text->text);
    aq_free(text->answers);
    *text = (struct aq_chat_text){0};
}

static enum aq_status fail(const struct conversation *c, enum aq_status status, const char *what)
{
    return aq_fail(status, JINJA_AREA, "%s%s%s", c->config->where ? c->config->where : "", c->config->where ? ": " : "",
                   what);
}

static enum aq_status fail_message(const struct conversation *c, size_t message, const char *what)
{
    return aq_fail(AQ_MISMATCH, JINJA_AREA,
                   "%s%s%s: cannot find the answer of messages[%zu] in the text: %s; put {%% generation %%} and "
                   "{%% endgeneration %%} around what the template writes of an answer",
                   c->config->where ? c->config->where : "", c->config->where ? ": " : "",
                   c->template_->program->called, message, what);
}

static enum aq_status set_json(struct jinja_run *run, const json_t *object)
{
    for (void *at = json_object_iter((json_t *)(uintptr_t)object); at;
         at = json_object_iter_next((json_t *)(uintptr_t)object, at)) {
        struct jinja_value value;
        AQ_TRY(jinja_from_json(run, json_object_iter_value(at), 0, &value));
        AQ_TRY(jinja_run_set(run, json_object_iter_key(at), value));
    }
    return AQ_OK;
}

/* A message's thinking goes by three names; the template is given the two that are read. */
static enum aq_status alias_reasoning(struct jinja_run *run, struct jinja_dict *message)
{
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    for (int i = 0; i < 3; i++) {
        const struct jinja_value *there = jinja_dict_get(message, names[i], strlen(names[i]));
        if (!there || there->kind == JINJA_NONE) continue;
        const struct jinja_value reasoning = *there;
        AQ_TRY(jinja_dict_set(run, message, jinja_borrow(names[0], strlen(names[0])), reasoning));
        if (!jinja_dict_get(message, names[1], strlen(names[1])))
            AQ_TRY(jinja_dict_set(run, message, jinja_borrow(names[1], strlen(names[1])), reasoning));
        break;
    }
    return AQ_OK;
}

static enum aq_status set_messages(struct jinja_run *run, const json_t *messages, size_t count)
{
    struct jinja_value list, message;
    AQ_TRY(jinja_list(run, JINJA_FORM_LIST, (uint32_t)count, &list));
    for (size_t i = 0; i < count; i++) {
        AQ_TRY(jinja_from_json(run, json_array_get(messages, i), 1, &message));
        AQ_TRY(alias_reasoning(run, message.dict));
        AQ_TRY(jinja_list_add(run, list.list, message));
    }
    return jinja_run_set(run, "messages", list);
}

static enum aq_status set_all(struct conversation *c, struct jinja_run *run, size_t count, bool prompt)
{
    static const char *const optional[] = {"tools", "documents"};
    struct jinja_value value;
    AQ_TRY(set_json(run, c->template_->variables));
    AQ_TRY(set_messages(run, json_object_get(c->line, "messages"), count));
    for (int i = 0; i < 2; i++) {
        const json_t *there = json_object_get(c->line, optional[i]);
        value = (struct jinja_value){.kind = JINJA_NONE};
        if (there) AQ_TRY(jinja_from_json(run, there, 0, &value));
        AQ_TRY(jinja_run_set(run, optional[i], value));
    }
    AQ_TRY(jinja_run_set(run, "add_generation_prompt", jinja_bool(prompt)));
    return c->variables ? set_json(run, c->variables) : AQ_OK;
}

/* The first `count` messages' text. */
static enum aq_status render(struct conversation *c, size_t count, bool prompt, bool mark, struct aq_chat_text *out)
{
    enum { DEFAULT_NOW = 1721952000 }; /* 2024-07-26 */
    struct jinja_run run = {.program = c->template_->program,
                            .where = c->config->where,
                            .now = c->config->now ? c->config->now : DEFAULT_NOW,
                            .steps = c->steps,
                            .mark_answers = mark};
    enum aq_status status;
    AQ_TRY_GOTO(jinja_run_begin(&run), out);
    AQ_TRY_GOTO(set_all(c, &run, count, prompt), out);
    AQ_TRY_GOTO(jinja_run_all(&run), out);
    *out = (struct aq_chat_text){run.out, run.out_bytes, run.answers, run.answer_count};
    run.out = NULL;
    run.answers = NULL;
out:
    c->steps = run.steps;
    jinja_run_end(&run);
    return status;
}

/* ---- answers by comparing ---- */

static size_t common(const struct aq_chat_text *a, const struct aq_chat_text *b)
{
    size_t bytes = 0;
    while (bytes < a->bytes && bytes < b->bytes && a->text[bytes] == b->text[bytes])
        bytes++;
    return bytes;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/*
 * Runs text past a pattern (Knuth, Morris, Pratt: linear, whatever both are). *last: the end of the last whole match,
 * or 0; *open: the length of the longest prefix of the pattern that ends the text.
 */
static enum aq_status match(const char *pattern, size_t length, const char *text, size_t bytes, size_t *last,
                            size_t *open)
{
    size_t k = 0;
    *last = *open = 0;
    if (length == 0) return AQ_OK;
    size_t *back; /* of i: the longest beginning that ends pattern[0, i] and is not all of it */
    AQ_TRY(AQ_NEW(length, &back));
    for (size_t i = 1; i < length; i++) {
        while (k > 0 && pattern[i] != pattern[k])
            k = back[k - 1];
        k += pattern[i] == pattern[k];
        back[i] = k;
    }
    k = 0;
    for (size_t i = 0; i < bytes; i++) {
        if (k == length) k = back[k - 1];
        while (k > 0 && text[i] != pattern[k])
            k = back[k - 1];
        k += text[i] == pattern[k];
        if (k == length) *last = i + 1;
    }
    *open = k;
    aq_free(back);
    return AQ_OK;
}

/* How many bytes of an answer follow this text, less the white space around the text. 0: it is not in there. */
static enum aq_status behind(const char *text, size_t length, const char *answer, size_t bytes, size_t *out)
{
    size_t last, open;
    while (length > 0 && is_space(text[length - 1]))
        length--;
    while (length > 0 && is_space(*text))
        text++, length--;
    AQ_TRY(match(text, length, answer, bytes, &last, &open));
    *out = last ? bytes - last : 0;
    return AQ_OK;
}

/*
 * How many bytes of an answer follow the message's content: its end. Templates that take the thinking out of a content
 * leave the text behind it. 0: the content is empty, or the answer does not contain it unchanged.
 */
static enum aq_status tail_of(const json_t *message, const char *answer, size_t bytes, size_t *tail)
{
    static const char end_of_thinking[] = "</think>";
    const json_t *content = json_object_get(message, "content");
    const char *at = json_string_value(content), *rest;
    size_t length = json_string_length(content);
    *tail = 0;
    if (!at) return AQ_OK;
    AQ_TRY(behind(at, length, answer, bytes, tail));
    if (*tail) return AQ_OK;
    while ((rest = memmem(at, length, end_of_thinking, sizeof end_of_thinking - 1))) {
        rest += sizeof end_of_thinking - 1;
        length -= (size_t)(rest - at);
        at = rest;
    }
    return behind(at, length, answer, bytes, tail);
}

/* Finds the answer's start in full. */
static enum aq_status answer_begin(struct conversation *c, size_t message, const struct aq_chat_text *full,
                                   size_t *begin)
{
    struct aq_chat_text head = {0}, bare = {0};
    AQ_TRY(render(c, message, true, false, &head));
    *begin = common(&head, full);
    enum aq_status status = AQ_OK;
    if (*begin < head.bytes) {
        AQ_TRY_GOTO(render(c, message, false, false, &bare), out);
        if (*begin < bare.bytes)
            status = fail_message(c, message,
                                  "the template writes the text before it differently when more messages follow");
    }
out:
    aq_chat_text_free(&head);
    aq_chat_text_free(&bare);
    return status;
}

/* Finds the answer's range in full, from its start. */
static enum aq_status answer_range(struct conversation *c, size_t message, const struct aq_chat_text *full,
                                   size_t begin, struct aq_chat_range *out)
{
    const json_t *of = json_array_get(json_object_get(c->line, "messages"), message);
    struct aq_chat_text whole = {0};
    enum aq_status status = AQ_OK;
    AQ_TRY(render(c, message + 1, false, false, &whole));
    size_t end = whole.bytes, tail, last, left;
    if (end < begin || memcmp(whole.text, full->text, begin) != 0) {
        status = fail_message(c, message,
                              "the template writes the messages before it differently when more messages follow");
        goto out;
    }
    AQ_TRY_GOTO(tail_of(of, whole.text + begin, end - begin, &tail), out);
    const char *eos = aq_chat_variable(c->template_, "eos_token");
    const size_t same = common(&whole, full), eos_bytes = eos ? strlen(eos) : 0;
    if (same < end && eos_bytes && tail > eos_bytes && same >= end - eos_bytes &&
        memcmp(whole.text + end - eos_bytes, eos, eos_bytes) == 0) {
        /* Some templates end a text, not an answer, with this token. */
        end -= eos_bytes;
        tail -= eos_bytes;
    } else if (same < end) {
        const size_t most = full->bytes - begin < end - begin ? full->bytes - begin : end - begin;
        AQ_TRY_GOTO(match(full->text + begin, most, whole.text + begin, end - begin, &last, &left), out);
        if (tail == 0 || left <= tail) {
            status = fail_message(c, message, "the template writes it differently when more messages follow");
            goto out;
        }
        end = begin + left;
    }
    /* A model does not generate the white space behind an end token; if only white space ends an answer, it stays. */
    last = end;
    while (last > end - tail && is_space(full->text[last - 1]))
        last--;
    *out = (struct aq_chat_range){begin, last > end - tail ? last : end};
out:
    aq_chat_text_free(&whole);
    return status;
}

static bool is_answer(const json_t *message)
{
    const char *role = json_string_value(json_object_get(message, "role"));
    return role && strcmp(role, "assistant") == 0;
}

static enum aq_status answers_by_comparing(struct conversation *c, struct aq_chat_text *out)
{
    const json_t *messages = json_object_get(c->line, "messages");
    const size_t count = json_array_size(messages);
    uint32_t answers = 0;
    for (size_t i = 0; i < count; i++)
        answers += is_answer(json_array_get(messages, i));
    if (answers == 0) return fail(c, AQ_INVAL, "the conversation has no answer (a message of role \"assistant\")");
    AQ_TRY(render(c, count, false, false, out));
    AQ_TRY(AQ_NEW(answers, &out->answers));
    for (size_t i = 0; i < count; i++) {
        struct aq_chat_range range;
        if (!is_answer(json_array_get(messages, i))) continue;
        AQ_TRY(answer_begin(c, i, out, &range.begin));
        AQ_TRY(answer_range(c, i, out, range.begin, &range));
        if (range.end == range.begin) continue;
        if (out->answer_count && out->answers[out->answer_count - 1].end > range.begin)
            return fail_message(c, i, "it would start inside the answer before it");
        out->answers[out->answer_count++] = range;
    }
    return AQ_OK;
}

/* ---- conversations ---- */

static enum aq_status check(const struct conversation *c)
{
    size_t i;
    json_t *message;
    const json_t *messages = json_object_get(c->line, "messages");
    if (!json_is_array(messages)) return fail(c, AQ_CORRUPT, "has no list \"messages\"");
    if (json_array_size(messages) == 0) return fail(c, AQ_CORRUPT, "\"messages\" is empty");
    json_array_foreach(messages, i, message)
    {
        const json_t *content = json_object_get(message, "content");
        if (!json_is_string(json_object_get(message, "role")))
            return aq_fail(AQ_CORRUPT, JINJA_AREA, "%s%smessages[%zu] has no \"role\"",
                           c->config->where ? c->config->where : "", c->config->where ? ": " : "", i);
        if (!content && !json_object_get(message, "tool_calls"))
            return aq_fail(AQ_CORRUPT, JINJA_AREA, "%s%smessages[%zu] has no \"content\"",
                           c->config->where ? c->config->where : "", c->config->where ? ": " : "", i);
    }
    return AQ_OK;
}

typedef enum aq_status what_to_do(struct conversation *c, struct aq_chat_text *out);

static enum aq_status do_render(struct conversation *c, struct aq_chat_text *out)
{
    const size_t count = json_array_size(json_object_get(c->line, "messages"));
    return render(c, count, c->config->add_generation_prompt, false, out);
}

static enum aq_status do_answers(struct conversation *c, struct aq_chat_text *out)
{
    const size_t count = json_array_size(json_object_get(c->line, "messages"));
    if (!c->template_->program->generation) return answers_by_comparing(c, out);
    AQ_TRY(render(c, count, false, true, out));
    return out->answer_count ? AQ_OK : fail(c, AQ_INVAL, "the template marks no answer in this conversation");
}

static enum aq_status with_line(const struct aq_chat_template *template_, const char *line, size_t bytes,
                                const struct aq_chat_config *config, what_to_do *what, struct aq_chat_text *out)
{
    json_t *object = NULL, *variables = NULL;
    struct aq_chat_text text = {0};
    enum aq_status status;
    if (config->variables)
        AQ_TRY(aq_chat_object("chat variables", config->variables, strlen(config->variables), &variables));
    object = json_incref(config->line);
    if (!object)
        AQ_TRY_GOTO(aq_chat_object(config->where ? config->where : "conversation", line, bytes, &object), out);
    struct conversation c = {.template_ = template_,
                             .config = config,
                             .line = object,
                             .variables = variables,
                             .steps = config->steps_max ? config->steps_max : AQ_CHAT_STEPS_MAX};
    AQ_TRY_GOTO(check(&c), out);
    AQ_TRY_GOTO(what(&c, &text), out);
    *out = text;
    text = (struct aq_chat_text){0};
out:
    aq_chat_text_free(&text);
    json_decref(object);
    json_decref(variables);
    return status;
}

enum aq_status aq_chat_render(const struct aq_chat_template *template_, const char *line, size_t bytes,
                              const struct aq_chat_config *config, struct aq_chat_text *out)
{
    return with_line(template_, line, bytes, config, do_render, out);
}

enum aq_status aq_chat_answers(const struct aq_chat_template *template_, const char *line, size_t bytes,
                               const struct aq_chat_config *config, struct aq_chat_text *out)
{
    return with_line(template_, line, bytes, config, do_answers, out);
}
