/*
 * command_generate.c -- `aqpipe generate MODEL`: the continuation of a prompt, token by token, in this process or
 * through a run's stages as processes (through.h).
 *
 * The prompt is one forward; then each token is one forward, after the cached keys and values of earlier ones. A model
 * with a layer without a cache computes the whole text for each token. Tokens are drawn where the logits are; this file
 * decodes them, and finds the end of the text.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "chat_variables.h"
#include "commands.h"
#include "control.h"
#include "json_text.h"
#include "local_model.h"
#include "out.h"
#include "stages/chat.h"
#include "stages/sampling.h"
#include "through.h"

enum { PROMPT_BYTES_MAX = 16 << 20, READ_BYTES = 1 << 16, TOKENS_DEFAULT = 128, CODEC_BYTES = 32 };

#define AS_FOLDER UINT32_MAX

struct asked {
    struct aq_local_asked model;
    const char *prompt, *chat, *token_file;
    uint32_t tokens, top_k;             /* 0, AS_FOLDER: not given */
    double temperature, top_p, penalty; /* top_p, penalty 0: not given */
    uint64_t seed;
    struct aq_arguments stops, variables;
    bool again, json, raw;
};

static const struct aq_option options[] = {
    AQ_ROW(TEXT, struct asked, prompt, "prompt", "TEXT",
           "how the text begins; default: standard input (without its last newline)"),
    AQ_ROW(TEXT, struct asked, chat, "chat", "TEXT", "a user's message, by the folder's chat template (docs/CHAT.md)"),
    AQ_ROW(LIST, struct asked, variables, "chat-variable", "NAME=VALUE",
           "a variable of the template; may be repeated; default: the run's"),
    AQ_ROW_RANGE(U32, struct asked, tokens, "tokens", "N", 1, 1e9,
                 "at most N; default: max_new_tokens of generation_config.json, else 128"),
    AQ_ROW_RANGE(NUMBER, struct asked, temperature, "temperature", "T", 0, 1e6,
                 "draw from the softmax of logits / T; 0: the most probable token (0)"),
    AQ_ROW_RANGE(U32, struct asked, top_k, "top-k", "K", 0, 4294967295.0,
                 "draw among the K most probable; 0: all; default: as --tokens"),
    AQ_ROW_RANGE(NUMBER, struct asked, top_p, "top-p", "P", 1e-6, 1,
                 "draw among the fewest whose probabilities add up to P; default: the same"),
    AQ_ROW_RANGE(U64, struct asked, seed, "seed", "S", 0, 1e19, "of the draws; the same seed gives the same text (0)"),
    AQ_ROW_RANGE(NUMBER, struct asked, penalty, "repetition-penalty", "R", 0.01, 100,
                 "divide the logits of earlier tokens by R; default: the same"),
    AQ_ROW(LIST, struct asked, stops, "stop", "WORD", "end before this word; may be given several times"),
    AQ_ROW(FLAG, struct asked, again, "no-cache", NULL, "compute the whole text again for each token"),
    AQ_LOCAL_OPTIONS(struct asked, model),
    AQ_ROW(FLAG, struct asked, model.pipeline, "pipeline", NULL,
           "through the run's stages as processes, on the hosts of its manifest"),
    AQ_ROW(TEXT, struct asked, token_file, "token-file", "FILE",
           "with --pipeline: the secret shared with daemons (AQPIPE_TOKEN_FILE)"),
    AQ_ROW(FLAG, struct asked, raw, "raw", NULL, "let escape sequences of the text act on the terminal"),
    AQ_ROW(FLAG, struct asked, json, "json", NULL, "one JSON object when it is done; errors, too"),
    {0}};

static const struct aq_command_line line = {
    "aqpipe generate", "MODEL",
    "Continues a text. MODEL is a published folder, what `aqpipe export` wrote, or the folder of a run that has ended. "
    "The text is printed as it is made, without the prompt, until the model's end token, a stop word, --tokens or the "
    "model's context. One process, on the CPU; docs/MODELS.md and "
    "docs/CHAT.md tell more.",
    options,
    "Examples:\n"
    "  aqpipe generate run --prompt 'The pipeline' --tokens 64\n"
    "  aqpipe generate model --chat 'What is a delta?' --temperature 0.7 --top-p 0.9 --seed 1\n"
    "  echo -n 'Once upon a time' | aqpipe generate model --stop '.' --json\n"};

/* The state of a text while it is written. */
struct writing {
    const struct asked *asked;
    struct aq_local *local;
    struct aq_through *through; /* NULL: this process computes */
    struct aq_tokenizer *tokenizer;
    struct aq_model_marks marks;
    int32_t *tokens; /* T of them: the prompt, and what was generated */
    uint32_t prompt, count, T, made;
    uint32_t computed; /* of `count`, if the layers cache keys and values; else 0 */
    uint32_t told;     /* of `count`, sent to the stages                                         */
    bool keeps;
    int32_t *ids; /* `made` of them: what was generated, the end token with it */
    float *logits;
    struct aq_sampling *sampling;
    struct aq_stopper *stopper;
    struct aq_text text; /* with --json */
    struct aq_out_pieces pieces;
    const char *ended; /* NULL: not yet */
    double seconds;
};

static enum aq_status memory_of(size_t bytes, void *out)
{
    void *memory;
    AQ_TRY(aq_alloc(bytes, &memory));
    memset(memory, 0, bytes);
    memcpy(out, &memory, sizeof memory);
    return AQ_OK;
}

/* ---- the prompt ---- */

static enum aq_status read_input(struct aq_text *text)
{
    char bytes[READ_BYTES];
    size_t count;
    if (isatty(STDIN_FILENO)) fputs("aqpipe: type the prompt; Ctrl-D ends it\n", stderr);
    while ((count = fread(bytes, 1, sizeof bytes, stdin)) > 0) {
        if (count > PROMPT_BYTES_MAX - text->used)
            return aq_fail(AQ_NOSPC, "generate", "standard input has more than %d bytes", PROMPT_BYTES_MAX);
        aq_text_bytes(text, bytes, count);
    }
    if (ferror(stdin)) return aq_fail_errno("generate", "cannot read standard input");
    if (text->used && text->bytes[text->used - 1] == '\n') text->bytes[--text->used] = 0;
    return text->status;
}

static enum aq_status chat_text(const struct aq_local *local, const struct asked *asked, struct aq_text *text)
{
    const char *folder = local->asked.path, *message = asked->chat;
    const char *run = local->job ? local->job->data.chat_variables : NULL;
    struct aq_text variables = {0};
    struct aq_chat_config config = aq_chat_config_default();
    struct aq_chat_template *template = NULL;
    struct aq_chat_text rendered = {0};
    struct aq_text conversation = {0};
    enum aq_status status;
    json_t *object = json_pack("{s:[{s:s, s:s}]}", "messages", "role", "user", "content", message);
    if (!object) return aq_fail(AQ_INVAL, "generate", "--chat is not UTF-8 text");
    config.add_generation_prompt = true;
    config.where = "--chat";
    AQ_TRY_GOTO(aq_json_text(object, JSON_COMPACT, &conversation), out);
    AQ_TRY_GOTO(aq_named_values("--chat-variable", run, &asked->variables, &variables), out);
    if (variables.used) config.variables = aq_text_of(&variables);
    AQ_TRY_GOTO(aq_chat_open(folder, NULL, &template), out);
    AQ_TRY_GOTO(aq_chat_render(template, aq_text_of(&conversation), conversation.used, &config, &rendered), out);
    aq_text_bytes(text, rendered.text, rendered.bytes);
    status = text->status;
out:
    aq_chat_text_free(&rendered);
    aq_chat_close(template);
    aq_text_deinit(&conversation);
    aq_text_deinit(&variables);
    json_decref(object);
    return status;
}

/* The tokens of the text, behind what the tokenizer puts before one, once: a chat template has written that itself. */
static enum aq_status take_prompt(struct writing *w, const int32_t *tokens, size_t count)
{
    const struct aq_tokenizer_frame *frame = aq_tokenizer_frame(w->tokenizer);
    const uint32_t context = w->local->model.context;
    const char *path = w->local->asked.path;
    int32_t before[AQ_TOKENIZER_FRAME_MAX];
    const bool begun = aq_tokenizer_begun(frame->before, frame->before_count, tokens, count);
    uint32_t ahead = w->asked->chat || begun ? 0 : frame->before_count;
    memcpy(before, frame->before, sizeof before);
    if (count == 0 && ahead == 0 && w->marks.begin >= 0) before[ahead++] = w->marks.begin;
    if (count + ahead == 0)
        return aq_fail(AQ_INVAL, "generate",
                       "the prompt is empty, and %s names no token to start with (bos_token_id): give a prompt", path);
    if (count > (context ? context : UINT32_MAX / 2) - ahead)
        return aq_fail(AQ_INVAL, "generate", "the prompt has %zu tokens, the context of %s has %u", count + ahead, path,
                       context);
    const uint64_t wanted = (uint64_t)count + ahead + w->asked->tokens;
    w->T = context && wanted > context ? context : (uint32_t)wanted;
    AQ_TRY(memory_of((size_t)w->T * sizeof *w->tokens, &w->tokens));
    AQ_TRY(memory_of((size_t)(w->T + 1) * sizeof *w->ids, &w->ids));
    memcpy(w->tokens, before, ahead * sizeof *before);
    if (count) memcpy(w->tokens + ahead, tokens, count * sizeof *tokens);
    w->prompt = w->count = ahead + (uint32_t)count;
    return AQ_OK;
}

static enum aq_status open_prompt(struct writing *w)
{
    const struct asked *asked = w->asked;
    struct aq_text text = {0};
    int32_t *tokens = NULL;
    size_t count;
    enum aq_status status;
    AQ_TRY_GOTO(aq_local_tokenizer(w->local, &w->tokenizer), out);
    AQ_TRY_GOTO(aq_model_folder_marks(w->local->folder, &w->marks), out);
    if (asked->chat)
        AQ_TRY_GOTO(chat_text(w->local, asked, &text), out);
    else if (asked->prompt)
        aq_text_bytes(&text, asked->prompt, strlen(asked->prompt));
    else
        AQ_TRY_GOTO(read_input(&text), out);
    AQ_TRY_GOTO(text.status, out);
    AQ_TRY_GOTO(aq_tokenizer_encode(w->tokenizer, aq_text_of(&text), text.used, &tokens, &count), out);
    AQ_TRY_GOTO(aq_tokenizer_within(w->tokenizer, tokens, count, w->local->model.vocabulary), out);
    status = take_prompt(w, tokens, count);
out:
    aq_free(tokens);
    aq_text_deinit(&text);
    return status;
}

/* ---- the text ---- */

static struct aq_sampling_config draws_of(const struct asked *asked)
{
    struct aq_sampling_config config = aq_sampling_config_default();
    config.temperature = (float)asked->temperature;
    config.top_k = asked->top_k;
    config.top_p = (float)asked->top_p;
    config.repetition_penalty = (float)asked->penalty;
    config.seed = asked->seed;
    return config;
}

static enum aq_status open_draws(struct writing *w)
{
    const uint32_t vocabulary = w->local->model.vocabulary;
    const struct aq_sampling_config config = draws_of(w->asked);
    AQ_TRY(aq_stopper_open(w->asked->stops.of, w->asked->stops.count, &w->stopper));
    if (w->through) return AQ_OK;
    AQ_TRY(aq_sampling_open(&config, vocabulary, &w->sampling));
    AQ_TRY(memory_of((size_t)vocabulary * sizeof *w->logits, &w->logits));
    aq_sampling_begin(w->sampling, 0);
    return aq_sampling_note(w->sampling, w->tokens, w->count);
}

static enum aq_status show(struct writing *w, const struct aq_stopper_text *text)
{
    if (w->asked->json) {
        aq_text_bytes(&w->text, text->text, text->bytes);
        return w->text.status;
    }
    const bool clean = isatty(STDOUT_FILENO) && !w->asked->raw; /* a model may write escapes, too */
    const bool good = clean ? aq_out_piece(&w->pieces, text->text, text->bytes)
                            : fwrite(text->text, 1, text->bytes, stdout) == text->bytes;
    if (!good || fflush(stdout) != 0) return aq_fail_errno("generate", "cannot write the text");
    return AQ_OK;
}

/* Tokens that only the model has (rows that fill its table up) have no text. */
static enum aq_status put_token(struct writing *w, int32_t token)
{
    struct aq_stopper_text shown;
    char *text;
    size_t bytes;
    if ((uint32_t)token >= aq_tokenizer_vocabulary(w->tokenizer)) return AQ_OK;
    AQ_TRY(aq_tokenizer_decode(w->tokenizer, &token, 1, &text, &bytes));
    const enum aq_status status = aq_stopper_put(w->stopper, text, bytes, &shown);
    aq_free(text);
    AQ_TRY(status);
    if (shown.stopped) w->ended = "stop";
    return show(w, &shown);
}

/* One forward of all that there is and is not kept, and the token behind it. */
static enum aq_status compute(struct writing *w, int32_t *token)
{
    const struct aq_batch batch = {
        .samples = 1, .field_count = 1, .fields = {{"tokens", AQ_FIELD_I32, w->T, w->tokens}}};
    const struct aq_stage_input input = {
        .batch = &batch, .evaluate = true, .tokens_used = w->count, .tokens_before = w->computed};
    AQ_TRY(aq_local_forward(w->local, &input, NULL));
    AQ_TRY(aq_stage_logits(w->local->stage, 0, w->count - 1, w->logits, NULL));
    return aq_sampling_next(w->sampling, w->logits, token);
}

/* The same by the stages, which get the tokens that they have not got yet. */
static enum aq_status ask(struct writing *w, int32_t *token)
{
    const struct aq_asking_step step = {
        .before = w->computed, .used = w->count, .fresh = w->tokens + w->told, .count = w->count - w->told};
    AQ_TRY(aq_through_next(w->through, &step, token));
    w->told = w->count;
    return AQ_OK;
}

static enum aq_status step(struct writing *w)
{
    int32_t token;
    AQ_TRY(w->through ? ask(w, &token) : compute(w, &token));
    if (w->keeps) w->computed = w->count;
    w->ids[w->made++] = token;
    for (uint32_t i = 0; i < w->marks.end_count; i++)
        if (token == w->marks.ends[i]) w->ended = "end";
    if (w->ended) return AQ_OK;
    AQ_TRY(put_token(w, token));
    if (w->ended) return AQ_OK;
    if (w->made == w->asked->tokens)
        w->ended = "tokens";
    else if (w->count == w->T)
        w->ended = "context";
    else
        w->tokens[w->count++] = token;
    return AQ_OK;
}

static enum aq_status write_text(struct writing *w)
{
    struct aq_stopper_text rest;
    const uint64_t begin = aq_clock_ns();
    while (!w->ended)
        AQ_TRY(step(w));
    w->seconds = (double)(aq_clock_ns() - begin) * 1e-9;
    AQ_TRY(aq_stopper_end(w->stopper, &rest));
    return show(w, &rest);
}

static enum aq_status tell(struct writing *w)
{
    const double rate = w->seconds > 0 ? w->made / w->seconds : 0;
    struct aq_text text = {0};
    const uint32_t processes = w->through ? w->local->plan->stage_count : 1;
    char codec[CODEC_BYTES];
    aq_local_codec_text(w->local, codec, sizeof codec);
    if (!w->asked->json) {
        (void)(aq_out_piece(&w->pieces, NULL, 0) && aq_out_raw("\n"));
        if (isatty(STDERR_FILENO) || w->asked->model.codec || w->through)
            fprintf(stderr, "aqpipe: %u tokens behind %u, %.1f tokens/s, ended by: %s; %u process%s, codec %s\n",
                    w->made, w->prompt, rate, w->ended, processes, processes == 1 ? "" : "es", codec);
        return AQ_OK;
    }
    json_t *ids = json_array();
    for (uint32_t i = 0; i < w->made; i++)
        json_array_append_new(ids, json_integer(w->ids[i]));
    json_t *object = json_pack("{s:s%, s:i, s:i, s:o, s:s, s:b, s:s, s:i, s:o, s:o}", "text", aq_text_of(&w->text),
                               w->text.used, "tokens", (int)w->made, "prompt_tokens", (int)w->prompt, "ids", ids,
                               "ended", w->ended, "cache", w->keeps, "codec", codec, "processes", (int)processes,
                               "seconds", aq_control_number(w->seconds), "tokens_per_second", aq_control_number(rate));
    const enum aq_status status = aq_json_text(object, JSON_COMPACT, &text);
    json_decref(object);
    if (status == AQ_OK) (void)(aq_out_raw(aq_text_of(&text)) && aq_out_raw("\n"));
    aq_text_deinit(&text);
    return status;
}

/* Does the model give a token for every token? */
static enum aq_status check_model(const struct aq_local *local)
{
    struct aq_model_config model = local->model;
    aq_model_use_task(&model, NULL, model.labels);
    if (!model.labels && !aq_model_tokens(model.kind) && !aq_model_folder_classifies(local->folder)) return AQ_OK;
    return aq_fail(AQ_MISMATCH, "generate", "%s is a %s, which writes no text", local->asked.path,
                   aq_model_folder_architecture(local->folder));
}

static enum aq_status load(struct writing *w)
{
    const char *kind;
    struct aq_model_config model = w->local->model;
    aq_model_use_task(&model, NULL, model.labels);
    w->keeps = !w->asked->again && aq_model_extends(&model, &kind);
    const struct aq_sampling_config draws = draws_of(w->asked);
    const struct aq_through_asked through = {
        .local = w->local, .token_file = w->asked->token_file, .T = w->T, .keeps = w->keeps, .draws = &draws};
    if (w->asked->model.pipeline) return aq_through_open(&through, &w->through);
    return aq_local_load(w->local, &(struct aq_asked_size){.B = 1, .T = w->T, .writes = true, .extends = w->keeps});
}

/* Options that are not set come from generation_config.json; without --temperature a text is greedy all the same. */
static enum aq_status take_generation(const struct aq_local *local, struct asked *asked)
{
    struct aq_model_generation of;
    AQ_TRY(aq_model_folder_generation(local->folder, &of));
    const bool draws = asked->temperature > 0;
    if (!asked->tokens) asked->tokens = of.tokens_max ? of.tokens_max : TOKENS_DEFAULT;
    if (asked->penalty == 0) asked->penalty = (double)of.repetition_penalty;
    if (asked->top_p == 0) asked->top_p = draws && of.top_p > 0 ? (double)of.top_p : 1;
    if (asked->top_k == AS_FOLDER) asked->top_k = draws ? of.top_k : 0;
    if (of.others[0])
        fprintf(stderr, "aqpipe: %s: generation_config.json has %s, which is not computed here\n", local->asked.path,
                of.others);
    if (of.draws && !draws && isatty(STDERR_FILENO))
        fprintf(stderr, "aqpipe: greedy; generation_config.json draws: --temperature %g does\n",
                (double)of.temperature);
    return AQ_OK;
}

static enum aq_status run_generate(struct asked *asked)
{
    struct writing w = {.asked = asked};
    enum aq_status status;
    AQ_TRY_GOTO(aq_local_open(&asked->model, &w.local), out);
    AQ_TRY_GOTO(check_model(w.local), out);
    AQ_TRY_GOTO(take_generation(w.local, asked), out);
    AQ_TRY_GOTO(open_prompt(&w), out);
    AQ_TRY_GOTO(load(&w), out);
    AQ_TRY_GOTO(open_draws(&w), out);
    AQ_TRY_GOTO(write_text(&w), out);
    status = tell(&w);
out:
    aq_through_close(w.through);
    aq_stopper_close(w.stopper);
    aq_sampling_close(w.sampling);
    aq_tokenizer_close(w.tokenizer);
    aq_local_close(w.local);
    aq_text_deinit(&w.text);
    aq_free(w.logits);
    aq_free(w.ids);
    aq_free(w.tokens);
    return status;
}

int aq_command_generate(int argc, char **argv)
{
    struct asked asked = {.top_k = AS_FOLDER, .token_file = getenv("AQPIPE_TOKEN_FILE")};
    struct aq_arguments rest;
    const int code = aq_options_read(&line, argc, argv, &asked, &rest);
    if (code != AQ_OPTIONS_READ) return code;
    if (rest.count != 1) return aq_options_wrong(line.name, "generate needs one model folder");
    if (asked.prompt && asked.chat) return aq_options_wrong(line.name, "use --prompt or --chat, not both");
    const bool limits = (asked.top_k && asked.top_k != AS_FOLDER) || (asked.top_p > 0 && asked.top_p < 1);
    if (asked.temperature <= 0 && limits)
        return aq_options_wrong(line.name, "--top-k and --top-p apply only to sampling: pass --temperature, too");
    for (uint32_t i = 0; i < asked.stops.count; i++)
        if (!asked.stops.of[i][0]) return aq_options_wrong(line.name, "--stop wants a word");
    asked.model.path = rest.of[0];
    return aq_exit_of(run_generate(&asked));
}
