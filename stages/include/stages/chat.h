/*
 * chat.h -- a conversation as the text that a model was trained on: a folder's chat template, rendered here.
 *
 * A published model folder has a Jinja program that turns messages into text: `chat_template` of tokenizer_config.json,
 * or the file chat_template.jinja. aq_chat_render gives the text that transformers' apply_chat_template gives, byte for
 * byte, or a status; docs/CHAT.md lists the supported part of Jinja.
 *
 *     struct aq_chat_template *template;
 *     struct aq_chat_text text;
 *     AQ_TRY(aq_chat_open(folder, NULL, &template));
 *     struct aq_chat_config config = aq_chat_config_default();
 *     config.where = "train.jsonl:12";                        in front of the text of an error
 *     AQ_TRY(aq_chat_answers(template, line, bytes, &config, &text));
 *     ...  text.text[text.answers[i].begin .. end) is what the loss is of
 *     aq_chat_text_free(&text);
 *     aq_chat_close(template);
 *
 * Caveats first. A template is an untrusted program: it has neither files nor processes, its steps, memory and output
 * are bounded, and an unsupported construct ends with AQ_INVAL and the file, line and column of the template. Some
 * templates write today's date (strftime_now): config.now is that moment, in UTC, so that a data set is the same after
 * a restart; keep it with the run. The text has its special tokens in it (a tokenizer must not add them again).
 *
 * A conversation is a JSON object {"messages": [{"role": ..., "content": ...}, ...]}, one line of a .jsonl file.
 * Its `tools` and `documents`, where there are, are given to the template, too.
 *
 * Locking: a template does not change after open; any thread may render with it.
 */
#ifndef STAGES_CHAT_H
#define STAGES_CHAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "aqsgd/base.h"

#ifdef __cplusplus
extern "C" {
#endif

struct aq_chat_template; /* opaque */

/* Limits of what is read and done; past one: AQ_NOSPC, which names it. */
enum {
    AQ_CHAT_TEMPLATE_BYTES_MAX = 1 << 20, /* published ones have 0.3 to 30 KB                                  */
    AQ_CHAT_OUTPUT_BYTES_MAX = 64 << 20,  /* of one conversation                                               */
    AQ_CHAT_MEMORY_BYTES_MAX = 256 << 20, /* that a rendering may have out                                     */
    AQ_CHAT_STEPS_MAX = 1 << 26           /* of a conversation's renderings together: a long one takes 2^20    */
};

/*
 * The template of a model folder. name: one of several (a list in tokenizer_config.json, or
 * additional_chat_templates/NAME.jinja); NULL: "default". chat_template.jinja goes before tokenizer_config.json. The
 * folder's special tokens (bos_token, eos_token, ...) become variables.
 *
 * AQ_NOTFOUND: the folder has none, or none of that name; the text lists those it has. AQ_CORRUPT: no JSON, no
 * template: file, line and column. AQ_NOSPC: a file or a template beyond its limit.
 */
enum aq_status aq_chat_open(const char *folder, const char *name, struct aq_chat_template **out);

/* The text of the default template that aq_chat_open takes, byte for byte; caller frees with aq_free. As that. */
enum aq_status aq_chat_source(const char *folder, char **text, size_t *bytes);

/*
 * A template from memory; errors print `called` before line and column. variables: a JSON object ({"bos_token": "<s>"})
 * or NULL.
 */
enum aq_status aq_chat_parse(const char *text, size_t bytes, const char *called, const char *variables,
                             struct aq_chat_template **out);
void aq_chat_close(struct aq_chat_template *template_); /* NULL is fine */

/* A template's variable that is a text (bos_token), or NULL: borrowed until close. */
const char *aq_chat_variable(const struct aq_chat_template *template_, const char *name);

struct aq_chat_config {
    bool add_generation_prompt; /* aq_chat_render: end with the head of an answer                        */
    int64_t now;                /* seconds since 1970, for strftime_now; 0: 2024-07-26, as Llama's default */
    const char *variables;      /* a JSON object of further variables ({"enable_thinking": false}); NULL: none */
    const char *where;          /* put in front of errors; NULL: nothing                                 */
    uint64_t steps_max;         /* 0: AQ_CHAT_STEPS_MAX                                                  */
    struct json_t *line;        /* the object, where it is read already (borrowed): no bytes are looked at; or NULL */
};
struct aq_chat_config aq_chat_config_default(void);

/* Bytes [begin, end) of the text. */
struct aq_chat_range {
    size_t begin, end;
};

struct aq_chat_text {
    char *text; /* of aq_alloc, terminated; UTF-8 */
    size_t bytes;
    struct aq_chat_range *answers; /* in order, not overlapping; NULL: none was asked for */
    uint32_t answer_count;
};
void aq_chat_text_free(struct aq_chat_text *text); /* all zeroes are fine */

/*
 * The text of a conversation. AQ_CORRUPT: the line is no such JSON object. AQ_REFUSED: the template called
 * raise_exception (with its text). AQ_INVAL: the template does what is not supported, or what fails in Jinja, too.
 * AQ_NOSPC: a limit.
 */
enum aq_status aq_chat_render(const struct aq_chat_template *template_, const char *line, size_t bytes,
                              const struct aq_chat_config *config, struct aq_chat_text *out);

/*
 * The same, and where the answers (role "assistant") are. A template's {% generation %} marks them. Else an answer
 * starts at the end of the rendering of the messages before it, with the head of an answer; it ends at the end of the
 * rendering up to it, less the white space behind an end token (a model does not generate it). Templates may write an
 * earlier answer shorter than the last one (without its thinking): the answer is then what of it is left.
 *
 * AQ_MISMATCH: an answer cannot be located (the template changes the text before it); names the message. AQ_INVAL also:
 * the conversation has no answer.
 */
enum aq_status aq_chat_answers(const struct aq_chat_template *template_, const char *line, size_t bytes,
                               const struct aq_chat_config *config, struct aq_chat_text *out);

struct aq_tokenizer; /* stages/dataset.h */

/* A conversation as a model reads it. */
struct aq_chat_tokens {
    int32_t *tokens; /* of aq_alloc                                       */
    uint8_t *answer; /* 1: this token has bytes of an answer              */
    size_t count, answer_tokens;
};
void aq_chat_tokens_free(struct aq_chat_tokens *tokens); /* all zeroes are fine */

/*
 * Tokens of a conversation's text, and which of them are of answers: a token that is partly of an answer is. The loss
 * of a model that predicts the next token counts where the token that is predicted is one. The tokenizer adds nothing
 * to the text. Statuses as aq_chat_answers'.
 */
enum aq_status aq_chat_tokenize(const struct aq_chat_template *template_, const struct aq_tokenizer *tokenizer,
                                const char *line, size_t bytes, const struct aq_chat_config *config,
                                struct aq_chat_tokens *out);

#ifdef __cplusplus
}
#endif
#endif
