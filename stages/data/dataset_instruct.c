/*
 * dataset_instruct.c -- instructions and their answers; the loss counts only the answers.
 *
 * A file has records (data_record.h): {"prompt": ..., "response": ...}, {"messages": [...]}, or another layout
 * (instruct_line.h). The folder's chat template makes a text of messages (stages/chat.h). A prompt and its response are
 * tokenized one by one, as they are when a model answers; behind a response comes the tokenizer's end-of-text token (a
 * line feed where it has none), which is learnt. A template itself writes the start of a conversation and the end of
 * its answers. A prompt starts with the tokens that the tokenizer puts in front of a text (data.bos), unless it already
 * has them.
 *
 * A conversation of n tokens takes n - 1 places: `tokens` are all but its last, `targets` all but its first, and -1
 * where that is of no answer. A longer conversation is cut at T places; if no answer is left, it is left out.
 * Conversations are packed into samples of T places, each into the first of the newest PACKS_OPEN samples that has
 * room, in the order of the files: what a sample holds never changes. They are its parts (stages/batch.h); with
 * `together` they see those before them in their sample instead. Without packing each is a sample. Behind a sample's
 * last token is padding: samples have lengths.
 *
 *     conversations   [0][1][2][3]...      starts in tokens, and what of each is learnt
 *     samples         [0 2][1][3 ...]      those of sample s: order[first[s]] .. order[first[s+1]-1]
 */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "data_faults.h"
#include "data_record.h"
#include "dataset_kind.h"
#include "instruct_line.h"
#include "stages/chat.h"
#include "tokenizer.h"

#define AREA DATASET_AREA

enum { PACKS_OPEN = 64, PLACE_BYTES = 4200, ENDS_SEEN = 16 };

/* An array that grows. */
struct rows {
    void *at;
    uint64_t count, room;
};

struct instruct {
    struct aq_token_list tokens; /* of all conversations, one behind the other */
    struct rows learnt;          /* uint8_t, one a token: is it of an answer?  */
    struct rows starts;          /* uint64_t, one a conversation, and the end  */
    uint32_t *order;             /* conversations, sample by sample            */
    uint64_t *first;             /* of each sample in order, and the end       */
    uint32_t *lengths, *targets; /* of each sample: places, and those that count */
    uint32_t *parts;             /* places of each conversation, sample by sample; NULL: they are no parts */
    uint64_t samples;
    uint32_t T;
    int32_t padding;
};

struct reader {
    const struct aq_dataset_config *config;
    const struct aq_tokenizer *tokenizer;
    struct aq_chat_template *template; /* opened by the first line that needs it; NULL: not yet, or none      */
    bool looked;                       /* for it */
    bool unreadable;                   /* it is: no line is to blame, and none is skipped for it */
    struct data_roles roles;
    struct data_faults faults;
    struct instruct *to;
    const char *path;
    uint64_t line, left_out, cut;
    int32_t before[AQ_TOKENIZER_FRAME_MAX]; /* the start of a prompt */
    uint32_t ahead;
    struct end {
        int32_t token;
        uint64_t answers;
    } ends[ENDS_SEEN]; /* special tokens that end answers, and how many */
    uint32_t end_count;
};

/* Room for `more` elements of this size. AQ_NOMEM; they stay as they were. */
static enum aq_status rows_reserve(struct rows *rows, uint64_t more, size_t each)
{
    void *memory;
    if (rows->count + more <= rows->room) return AQ_OK;
    const uint64_t room = rows->count + more + rows->room / 2 + 1024;
    AQ_TRY(aq_alloc(room * each, &memory));
    if (rows->count) memcpy(memory, rows->at, rows->count * each);
    aq_free(rows->at);
    rows->at = memory;
    rows->room = room;
    return AQ_OK;
}

/* --- one conversation ------------------------------------------------------------------------------------------- */

static enum aq_status refuse(const struct reader *reader, const char *what)
{
    return aq_fail(AQ_CORRUPT, AREA, "%s:%llu: %s", reader->path, (unsigned long long)reader->line, what);
}

static enum aq_status add_tokens(struct reader *reader, const int32_t *tokens, size_t count, bool learnt)
{
    struct instruct *to = reader->to;
    if (count == 0) return AQ_OK;
    AQ_TRY(aq_token_list_reserve(&to->tokens, count));
    AQ_TRY(rows_reserve(&to->learnt, count, 1));
    memcpy(to->tokens.at + to->tokens.count, tokens, count * sizeof *tokens);
    memset((uint8_t *)to->learnt.at + to->learnt.count, learnt, count);
    to->tokens.count += count;
    to->learnt.count += count;
    return AQ_OK;
}

static enum aq_status add_text(struct reader *reader, const char *text, size_t bytes, bool learnt)
{
    int32_t *tokens;
    size_t count;
    if (bytes == 0) return AQ_OK;
    AQ_TRY(aq_tokenizer_encode(reader->tokenizer, text, bytes, &tokens, &count));
    const enum aq_status status = count ? add_tokens(reader, tokens, count, learnt) : AQ_OK;
    aq_free(tokens);
    return status;
}

/* The special token at an answer's end, or before the white space that a template learns behind it. */
static void note_end(struct reader *reader, const int32_t *answer, size_t count)
{
    const size_t last = count && aq_tokenizer_special(reader->tokenizer, answer[count - 1]) ? 1 : 2;
    if (count < last || !aq_tokenizer_special(reader->tokenizer, answer[count - last])) return;
    for (uint32_t i = 0; i < ENDS_SEEN; i++) {
        struct end *end = &reader->ends[i];
        if (i == reader->end_count) *end = (struct end){.token = answer[count - last]};
        reader->end_count += i == reader->end_count;
        if (end->token != answer[count - last]) continue;
        end->answers++;
        return;
    }
}

/* A prompt that a template rendered already has the tokens of its start. */
static enum aq_status add_prompt(struct reader *reader, const char *text, size_t bytes)
{
    int32_t *tokens;
    size_t count;
    AQ_TRY(aq_tokenizer_encode(reader->tokenizer, text, bytes, &tokens, &count));
    const bool begun = aq_tokenizer_begun(reader->before, reader->ahead, tokens, count);
    enum aq_status status = begun ? AQ_OK : add_tokens(reader, reader->before, reader->ahead, false);
    if (status == AQ_OK) status = add_tokens(reader, tokens, count, false);
    aq_free(tokens);
    return status;
}

static enum aq_status add_pair(struct reader *reader, const struct instruct_line *line)
{
    const int32_t end = reader->to->padding;
    AQ_TRY(add_prompt(reader, line->prompt, line->prompt_bytes));
    AQ_TRY(add_text(reader, line->response, line->response_bytes, true));
    if (end < 0) return add_text(reader, "\n", 1, true);
    note_end(reader, &end, 1);
    return add_tokens(reader, &end, 1, true);
}

static const char *chat_folder(const struct reader *reader)
{
    return reader->config->chat ? reader->config->chat : reader->config->tokenizer_path;
}

static enum aq_status template_open(struct reader *reader)
{
    const enum aq_status status = aq_chat_open(chat_folder(reader), NULL, &reader->template);
    reader->unreadable = status != AQ_OK && status != AQ_NOTFOUND;
    return status;
}

/* Is there a chat template? Layouts that do without one ask. */
static enum aq_status look_for_template(struct reader *reader)
{
    struct aq_error_hold why;
    if (reader->looked || !chat_folder(reader)) return AQ_OK;
    reader->looked = true;
    aq_error_hold(&why);
    const enum aq_status status = template_open(reader);
    aq_error_release(&why);
    return status == AQ_OK || status == AQ_NOTFOUND ? AQ_OK : aq_fail(status, AREA, "%s", why.text);
}

static enum aq_status add_messages(struct reader *reader, const struct instruct_line *line)
{
    struct aq_chat_config config = aq_chat_config_default();
    struct aq_chat_tokens got = {0};
    char place[PLACE_BYTES];
    uint32_t answers = 0;
    snprintf(place, sizeof place, "%s:%llu", reader->path, (unsigned long long)reader->line);
    config.where = place;
    config.line = line->messages;
    config.variables = reader->config->chat_variables;
    if (!chat_folder(reader))
        return refuse(reader, "\"messages\" need a chat template: name a folder that has one in data.chat_template");
    if (!reader->template) AQ_TRY(template_open(reader));
    AQ_TRY(aq_chat_tokenize(reader->template, reader->tokenizer, NULL, 0, &config, &got));
    enum aq_status status = AQ_OK;
    for (size_t at = 0, end; at < got.count && status == AQ_OK; at = end) {
        for (end = at + 1; end < got.count && got.answer[end] == got.answer[at];)
            end++;
        const bool learnt = got.answer[at] && ++answers > line->earlier;
        status = add_tokens(reader, got.tokens + at, end - at, learnt);
        if (learnt) note_end(reader, got.tokens + at, end - at);
    }
    if (status == AQ_OK && line->earlier > 0 && answers <= line->earlier)
        status = refuse(reader, "its template does not separate answers in the prompt from the completion");
    aq_chat_tokens_free(&got);
    return status;
}

/* A conversation's tokens are there, from `start` on: it is taken, cut, or left out. */
static enum aq_status conversation_end(struct reader *reader, uint64_t start)
{
    struct instruct *to = reader->to;
    uint64_t end = to->tokens.count, learnt = 0;
    const uint64_t most = start + to->T + 1;
    reader->cut += end > most;
    if (end > most) end = most;
    for (uint64_t i = start + 1; i < end; i++)
        learnt += ((const uint8_t *)to->learnt.at)[i];
    reader->left_out += learnt == 0;
    if (learnt == 0) end = start;
    to->tokens.count = end;
    to->learnt.count = end;
    if (learnt == 0) return AQ_OK;
    AQ_TRY(rows_reserve(&to->starts, 2, sizeof(uint64_t)));
    ((uint64_t *)to->starts.at)[to->starts.count++] = start;
    ((uint64_t *)to->starts.at)[to->starts.count] = end;
    return AQ_OK;
}

/* Adds an object's conversation; if it fails, its tokens are removed again. */
static enum aq_status add_object(struct reader *reader, json_t *object)
{
    struct instruct *to = reader->to;
    const uint64_t start = to->tokens.count;
    char place[PLACE_BYTES];
    struct instruct_line line;
    snprintf(place, sizeof place, "%s:%llu", reader->path, (unsigned long long)reader->line);
    if (data_layout_of(&reader->roles, object) == DATA_LAYOUT_ALPACA) AQ_TRY(look_for_template(reader));
    AQ_TRY(instruct_line_of(&reader->roles, object, place, reader->template != NULL, &line));
    enum aq_status status = line.messages ? add_messages(reader, &line) : add_pair(reader, &line);
    instruct_line_free(&line);
    if (status == AQ_OK) status = conversation_end(reader, start);
    if (status != AQ_OK) to->tokens.count = to->learnt.count = start;
    return status;
}

/* The next record, or *at_end. A bad one is noted. */
static enum aq_status add_record(struct reader *reader, struct data_reader *file, bool *at_end)
{
    struct aq_error_hold why;
    struct data_record record;
    json_t *object = NULL;
    bool ends;
    aq_error_hold(&why);
    enum aq_status status = data_reader_next(file, &record, &ends);
    reader->line = record.line;
    *at_end = status == AQ_OK && !record.at;
    if (status == AQ_OK && record.at) status = data_record_object(file, &record, JSON_REJECT_DUPLICATES, &object);
    if (object) status = add_object(reader, object);
    aq_error_release(&why);
    json_decref(object);
    if (status == AQ_OK) return AQ_OK;
    if (ends || reader->unreadable || !data_fault_is(status)) return aq_fail(status, AREA, "%s", why.text);
    data_faults_note(&reader->faults, reader->path, reader->line, why.text);
    return AQ_OK;
}

static enum aq_status add_file(struct reader *reader)
{
    const struct data_how how = {.fallback = DATA_LINES, .quotes = reader->config->quotes, .named = true};
    struct data_reader *file;
    enum aq_status status = AQ_OK;
    AQ_TRY(data_reader_open(reader->path, &how, &file));
    for (bool at_end = false; status == AQ_OK && !at_end && !data_faults_over(&reader->faults);)
        status = add_record(reader, file, &at_end);
    data_reader_close(file);
    return status;
}

static enum aq_status add_files(struct reader *reader)
{
    for (uint32_t i = 0; i < reader->config->path_count; i++) {
        reader->path = reader->config->paths[i];
        AQ_TRY(add_file(reader));
    }
    return data_faults_end(&reader->faults);
}

/* --- samples ---------------------------------------------------------------------------------------------------- */

static uint64_t start_of(const struct instruct *of, uint64_t conversation)
{
    return ((const uint64_t *)of->starts.at)[conversation];
}

/* Places that a conversation takes. */
static uint32_t places_of(const struct instruct *of, uint64_t conversation)
{
    return (uint32_t)(start_of(of, conversation + 1) - start_of(of, conversation) - 1);
}

static uint32_t learnt_of(const struct instruct *of, uint64_t conversation)
{
    const uint8_t *learnt = of->learnt.at;
    uint32_t count = 0;
    for (uint64_t i = start_of(of, conversation) + 1; i < start_of(of, conversation + 1); i++)
        count += learnt[i];
    return count;
}

/* The sample of each conversation, into samples; lengths and targets of each sample. */
static void pack(struct instruct *of, bool packs, uint32_t *samples)
{
    for (uint64_t c = 0; c < of->starts.count; c++) {
        const uint32_t places = places_of(of, c);
        const uint64_t open = !packs ? 0 : of->samples < PACKS_OPEN ? of->samples : PACKS_OPEN;
        uint64_t s = of->samples - open;
        while (s < of->samples && of->lengths[s] + places > of->T)
            s++;
        of->samples += s == of->samples;
        of->lengths[s] += places;
        of->targets[s] += learnt_of(of, c);
        samples[c] = (uint32_t)s;
    }
}

/* Conversations in order of their samples: a counting sort, which keeps the order of the files within a sample. */
static void order_fill(struct instruct *of, const uint32_t *samples)
{
    for (uint64_t c = 0; c < of->starts.count; c++)
        of->first[samples[c] + 1]++;
    for (uint64_t s = 0; s < of->samples; s++)
        of->first[s + 1] += of->first[s];
    for (uint64_t c = 0; c < of->starts.count; c++)
        of->order[of->first[samples[c]]++] = (uint32_t)c;
    for (uint64_t s = of->samples; s > 0; s--)
        of->first[s] = of->first[s - 1];
    of->first[0] = 0;
}

static enum aq_status samples_make(struct instruct *of, bool packs)
{
    const uint64_t count = of->starts.count;
    void *memory;
    if (count > UINT32_MAX)
        return aq_fail(AQ_INVAL, AREA, "%llu conversations are too many", (unsigned long long)count);
    AQ_TRY(AQ_NEW(count, &of->order));
    AQ_TRY(AQ_NEW(count + 1, &of->first));
    AQ_TRY(AQ_NEW(count, &of->lengths));
    AQ_TRY(AQ_NEW(count, &of->targets));
    AQ_TRY(aq_alloc(count * sizeof(uint32_t), &memory));
    pack(of, packs, memory);
    order_fill(of, memory);
    aq_free(memory);
    return AQ_OK;
}

static enum aq_status parts_make(struct instruct *of)
{
    AQ_TRY(AQ_NEW(of->starts.count, &of->parts));
    for (uint64_t i = 0; i < of->starts.count; i++)
        of->parts[i] = places_of(of, of->order[i]);
    return AQ_OK;
}

static void facts_of(const struct instruct *of, uint32_t vocabulary, struct dataset_facts *facts)
{
    uint64_t digest = aq_digest(of->tokens.at, of->tokens.count * sizeof *of->tokens.at);
    digest = aq_digest_seeded(of->learnt.at, of->learnt.count, digest);
    digest = aq_digest_seeded(of->order, of->starts.count * sizeof *of->order, digest);
    *facts = (struct dataset_facts){.samples = of->samples,
                                    .digest = aq_digest_seeded(of->lengths, of->samples * sizeof *of->lengths, digest),
                                    .outputs = vocabulary,
                                    .vocabulary = vocabulary,
                                    .lengths = of->lengths,
                                    .parts = of->parts,
                                    .part_first = of->first};
}

/* The most frequent ones. */
static void ends_of(const struct reader *reader, struct dataset_facts *facts)
{
    uint64_t below = UINT64_MAX;
    for (uint32_t n = 0; n < AQ_DATASET_ENDS_MAX; n++) {
        const struct end *most = NULL;
        for (uint32_t i = 0; i < reader->end_count; i++) {
            const struct end *end = &reader->ends[i];
            const bool taken = end->answers > below || (n && end->token == facts->ends[n - 1]);
            if (!taken && (!most || end->answers > most->answers)) most = end;
        }
        if (!most) return;
        facts->ends[facts->end_count++] = most->token;
        below = most->answers;
    }
}

static enum aq_status read_all(struct reader *reader, struct dataset_facts *facts)
{
    struct instruct *to = reader->to;
    to->T = reader->config->T;
    to->padding = aq_tokenizer_end_of_text(reader->tokenizer);
    AQ_TRY(add_files(reader));
    if (to->starts.count == 0 && reader->left_out == 0)
        return aq_fail(AQ_INVAL, AREA, "%s%s: there is no record to learn from: is the file empty?",
                       reader->config->paths[0], reader->config->path_count > 1 ? " and others" : "");
    if (to->starts.count == 0)
        return aq_fail(AQ_INVAL, AREA, "%s%s: no line has an answer within T=%u tokens (%llu have none); raise train.T",
                       reader->config->paths[0], reader->config->path_count > 1 ? " and others" : "", to->T,
                       (unsigned long long)reader->left_out);
    AQ_TRY(samples_make(to, !reader->config->whole));
    if (!reader->config->whole && !reader->config->together) AQ_TRY(parts_make(to));
    AQ_TRY(aq_tokenizer_within(reader->tokenizer, to->tokens.at, to->tokens.count, reader->config->tokens_max));
    facts_of(to, dataset_vocabulary(reader->config, reader->tokenizer), facts);
    ends_of(reader, facts);
    aq_log(AREA, reader->left_out + reader->cut ? 1 : 2,
           "%llu conversations in %llu samples of T=%u; %llu cut, %llu without an answer within T left out",
           (unsigned long long)to->starts.count, (unsigned long long)to->samples, to->T,
           (unsigned long long)reader->cut, (unsigned long long)reader->left_out);
    return AQ_OK;
}

static enum aq_status instruct_open(const struct aq_dataset_config *config, void **state, struct dataset_facts *facts)
{
    struct aq_tokenizer *own = NULL;
    if (config->T == 0) return aq_fail(AQ_INVAL, AREA, "a sample must have room for at least 1 token, T is 0");
    AQ_TRY(aq_alloc_at(sizeof(struct instruct), state));
    struct reader *reader;
    AQ_TRY(AQ_NEW(1, &reader));
    *reader = (struct reader){.config = config, .to = *state, .path = config->paths[0]};
    reader->faults.allowed = config->skip_invalid;
    enum aq_status status = data_roles_open(config->names, &reader->roles);
    if (status == AQ_OK && !config->tokenizer)
        status = aq_tokenizer_open(config->tokenizer_kind, config->tokenizer_path, &own);
    reader->tokenizer = own ? own : config->tokenizer;
    if (status == AQ_OK) status = aq_tokenizer_begins(reader->tokenizer, config->begin, reader->before, &reader->ahead);
    if (status == AQ_OK) status = read_all(reader, facts);
    data_roles_close(&reader->roles);
    aq_chat_close(reader->template);
    aq_tokenizer_close(own);
    aq_free(reader);
    return status;
}

static void instruct_close(void *state)
{
    struct instruct *of = state;
    aq_free(of->tokens.at);
    aq_free(of->learnt.at);
    aq_free(of->starts.at);
    aq_free(of->order);
    aq_free(of->first);
    aq_free(of->lengths);
    aq_free(of->parts);
    aq_free(of->targets);
    aq_free(of);
}

static void get(const void *state, uint64_t sample, void *const values[AQ_BATCH_FIELDS_MAX])
{
    const struct instruct *of = state;
    int32_t *tokens = values[0], *targets = values[1];
    uint32_t at = 0;
    for (uint64_t i = of->first[sample]; i < of->first[sample + 1]; i++) {
        const uint64_t start = start_of(of, of->order[i]);
        const uint32_t places = places_of(of, of->order[i]);
        const uint8_t *learnt = (const uint8_t *)of->learnt.at + start + 1;
        memcpy(tokens + at, of->tokens.at + start, places * sizeof *tokens);
        for (uint32_t p = 0; p < places; p++)
            targets[at + p] = learnt[p] ? of->tokens.at[start + 1 + p] : -1;
        at += places;
    }
    for (; at < of->T; at++) {
        tokens[at] = of->padding > 0 ? of->padding : 0;
        targets[at] = -1;
    }
}

static uint32_t targets_of(const void *state, uint64_t sample)
{
    const struct instruct *of = state;
    return of->targets[sample];
}

static uint64_t bytes(uint32_t T, const struct aq_dataset_image *image, uint64_t samples)
{
    (void)image;
    /* At most: one token per conversation. */
    return samples * (T + 1ull) * (sizeof(int32_t) + 1 + sizeof(uint64_t) + sizeof(uint32_t));
}

extern const struct aq_dataset_kind aq_dataset_instruct;
const struct aq_dataset_kind aq_dataset_instruct = {.name = "instruct",
                                                    .what = "sample",
                                                    .lengths = true,
                                                    .fields = data_text_fields,
                                                    .open = instruct_open,
                                                    .close = instruct_close,
                                                    .get = get,
                                                    .targets = targets_of,
                                                    .bytes = bytes};

const char *aq_dataset_of_answers(void)
{
    return "instruct";
}
