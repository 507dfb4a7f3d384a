/*
 * tokenizer_sentencepiece.c -- SentencePiece models (spm.model, tokenizer.model, ...), by their own library.
 *
 * The library does not recognize special tokens in a text. As in published tokenizers, a control symbol in the text
 * ("[SEP]") is that token, the unknown one ("[UNK]") too, and the text between them is tokenized independently.
 * DeBERTa's models lack [MASK]: it is the token behind the last piece, as `transformers` gives it.
 *
 * A model normalizes (form NFKC, spaces run together), so that decoding gives the text as the model has seen it.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "bpe.h"
#include "dataset_file.h"
#include "huggingface.h"
#include "spm.h"

enum { PATH_BYTES_MAX = 4096, SPECIALS_MAX = 1024 };

static const char mask[] = "[MASK]";

struct model {
    struct aq_spm *spm;
    struct aq_bpe_finder *specials; /* that are found in the text; or NULL */
    uint32_t *start;                /* the text of token i is text[start[i] .. start[i + 1]) */
    uint8_t *text;
};

static enum aq_status find_file(const char *folder, char path[PATH_BYTES_MAX], const char **name)
{
    static const char *const names[] = {"spm.model", "tokenizer.model", "spiece.model"};
    if (!folder) return aq_fail(AQ_INVAL, AQ_BPE_AREA, "this tokenizer needs the folder of its %s", names[0]);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const int length = snprintf(path, PATH_BYTES_MAX, "%s/%s", folder, names[i]);
        if (length < 0 || length >= PATH_BYTES_MAX)
            return aq_fail(AQ_INVAL, AQ_BPE_AREA, "the folder's name \"%.64s...\" is too long", folder);
        *name = names[i];
        if (access(path, F_OK) == 0) return AQ_OK;
    }
    return aq_fail(AQ_NOTFOUND, AQ_BPE_AREA, "%s: has none of spm.model, tokenizer.model and spiece.model", folder);
}

/* "<0x0A>" is its byte, U+2581 a space. Never longer than the piece. */
static uint32_t say(const char *piece, size_t bytes, enum aq_spm_type type, uint8_t *out)
{
    unsigned byte;
    uint32_t used = 0;
    if (type == AQ_SPM_BYTE && bytes == 6 && sscanf(piece, "<0x%2X>", &byte) == 1) {
        *out = (uint8_t)byte;
        return 1;
    }
    for (size_t i = 0; i < bytes; i++) {
        const bool space = bytes - i >= 3 && memcmp(piece + i, "\xE2\x96\x81", 3) == 0;
        out[used++] = space ? ' ' : (uint8_t)piece[i];
        i += space ? 2 : 0;
    }
    return used;
}

/* Texts of all tokens; the specials are noted as they come. */
static enum aq_status read_pieces(struct model *model, uint32_t count, struct aq_bpe_added *specials, uint32_t *found)
{
    size_t bytes, total = sizeof mask;
    enum aq_spm_type type;
    bool masked = false, classifies = false;
    const uint32_t pieces = aq_spm_pieces(model->spm);
    for (uint32_t i = 0; i < pieces; i++) {
        (void)aq_spm_piece(model->spm, i, &bytes, &type);
        total += bytes;
    }
    AQ_TRY(AQ_NEW(count + 1, &model->start));
    AQ_TRY(AQ_NEW(total, &model->text));
    for (uint32_t i = 0; i < pieces; i++) {
        const char *piece = aq_spm_piece(model->spm, i, &bytes, &type);
        model->start[i + 1] = model->start[i] + say(piece, bytes, type, model->text + model->start[i]);
        masked = masked || (bytes == sizeof mask - 1 && memcmp(piece, mask, bytes) == 0);
        classifies = classifies || (type == AQ_SPM_CONTROL && bytes == 5 && memcmp(piece, "[CLS]", 5) == 0);
        if ((type == AQ_SPM_CONTROL || type == AQ_SPM_UNKNOWN) && *found < SPECIALS_MAX)
            specials[(*found)++] = (struct aq_bpe_added){.content = piece, .bytes = (uint32_t)bytes, .token = i};
    }
    if (classifies && !masked) {
        memcpy(model->text + model->start[pieces], mask, sizeof mask - 1);
        model->start[pieces + 1] = model->start[pieces] + (uint32_t)sizeof mask - 1;
        specials[(*found)++] = (struct aq_bpe_added){.content = mask, .bytes = sizeof mask - 1, .token = pieces};
    }
    return AQ_OK;
}

/* Models with [CLS] and [SEP] frame a text as BERT does. */
static void frame_by(struct aq_tokenizer_frame *frame, const struct aq_bpe_added *special)
{
    if (special->bytes != 5) return;
    if (memcmp(special->content, "[CLS]", 5) == 0) frame->before[frame->before_count++] = (int32_t)special->token;
    if (memcmp(special->content, "[SEP]", 5) != 0) return;
    frame->between[frame->between_count++] = (int32_t)special->token;
    frame->after[frame->after_count++] = (int32_t)special->token;
}

/*
 * Llama's and Gemma's models put <s> or <bos> before a text if tokenizer_config.json has add_bos_token: true. The frame
 * already has the tokens that DeBERTa's put around a text.
 */
static enum aq_status find_begin(const char *folder, const struct aq_bpe_added *specials, uint32_t count,
                                 struct aq_tokenizer *tokenizer)
{
    char path[PATH_BYTES_MAX];
    json_t *settings = NULL;
    const int length = snprintf(path, sizeof path, "%s/tokenizer_config.json", folder);
    for (uint32_t i = 0; i < count; i++)
        if ((specials[i].bytes == 3 && memcmp(specials[i].content, "<s>", 3) == 0) ||
            (specials[i].bytes == 5 && memcmp(specials[i].content, "<bos>", 5) == 0))
            tokenizer->begin = (int32_t)specials[i].token;
    if (tokenizer->begin < 0 || length < 0 || (size_t)length >= sizeof path || access(path, F_OK) != 0) return AQ_OK;
    AQ_TRY(huggingface_load(path, &settings));
    if (json_is_true(json_object_get(settings, "add_bos_token")) && tokenizer->frame.before_count == 0)
        tokenizer->frame.before[tokenizer->frame.before_count++] = tokenizer->begin;
    json_decref(settings);
    return AQ_OK;
}

static enum aq_status read_model(const char *folder, struct aq_tokenizer *tokenizer, struct model *model)
{
    static const struct aq_bpe no_normalizer = {.normal_count = 0};
    char path[PATH_BYTES_MAX];
    const char *name;
    uint8_t *bytes;
    size_t count;
    uint32_t found = 0;
    void *specials;
    AQ_TRY(find_file(folder, path, &name));
    AQ_TRY(aq_file_read(AQ_BPE_AREA, path, AQ_SPM_BYTES_MAX, &bytes, &count));
    enum aq_status status = aq_file_check(AQ_BPE_AREA, path, bytes, count);
    if (status == AQ_OK) status = aq_spm_check(path, bytes, count);
    if (status == AQ_OK) status = aq_spm_open(path, bytes, count, &model->spm);
    aq_free(bytes);
    AQ_TRY(status);
    const uint32_t pieces = aq_spm_pieces(model->spm);
    AQ_TRY(aq_alloc((SPECIALS_MAX + 1) * sizeof(struct aq_bpe_added), &specials));
    status = read_pieces(model, pieces + 1, specials, &found);
    if (status == AQ_OK) status = aq_bpe_finder_open(&no_normalizer, specials, found, false, &model->specials);
    tokenizer->vocabulary = pieces + (model->start && model->start[pieces + 1] > 0);
    tokenizer->end_of_text = aq_spm_end(model->spm);
    for (uint32_t i = 0; i < found && status == AQ_OK; i++)
        frame_by(&tokenizer->frame, &((const struct aq_bpe_added *)specials)[i]);
    for (uint32_t i = 0; i < found && status == AQ_OK; i++)
        status = aq_tokenizer_note_special(tokenizer, (int32_t)((const struct aq_bpe_added *)specials)[i].token);
    if (status == AQ_OK) status = find_begin(folder, specials, found, tokenizer);
    aq_free(specials);
    return status;
}

static void sentencepiece_close(struct aq_tokenizer *tokenizer)
{
    struct model *model = tokenizer->state;
    aq_bpe_finder_close(model->specials);
    aq_spm_close(model->spm);
    aq_free(model->start);
    aq_free(model->text);
    aq_free(model);
}

static enum aq_status sentencepiece_open(struct aq_tokenizer *tokenizer, const char *folder)
{
    AQ_TRY(aq_alloc(sizeof(struct model), &tokenizer->state));
    const enum aq_status status = read_model(folder, tokenizer, tokenizer->state);
    if (status != AQ_OK) sentencepiece_close(tokenizer);
    return status;
}

static enum aq_status take(void *context, const int *pieces, size_t count)
{
    struct aq_token_list *list = context;
    AQ_TRY(aq_token_list_reserve(list, count));
    for (size_t i = 0; i < count; i++)
        list->at[list->count++] = pieces[i];
    return AQ_OK;
}

static enum aq_status sentencepiece_encode(const struct aq_tokenizer *tokenizer, const uint8_t *text, size_t bytes,
                                           struct aq_token_list *list)
{
    const struct model *model = tokenizer->state;
    struct aq_bpe_place place = {0};
    size_t done = 0, next = 0;
    while (model->specials && aq_bpe_finder_next(model->specials, text, bytes, &next, &place)) {
        if (place.start > done)
            AQ_TRY(aq_spm_encode(model->spm, (const char *)text + done, place.start - done, take, list));
        AQ_TRY(aq_token_list_reserve(list, 1));
        list->at[list->count++] = (int32_t)place.token;
        done = place.end;
    }
    return done < bytes ? aq_spm_encode(model->spm, (const char *)text + done, bytes - done, take, list) : AQ_OK;
}

static const uint8_t *sentencepiece_token(const struct aq_tokenizer *tokenizer, uint32_t token, uint32_t *bytes)
{
    const struct model *model = tokenizer->state;
    *bytes = model->start[token + 1] - model->start[token];
    return model->text + model->start[token];
}

static enum aq_status published(const char *folder, uint32_t index, char *from, size_t bytes, const char **name)
{
    char path[PATH_BYTES_MAX];
    *name = NULL;
    AQ_TRY(find_file(folder, path, name));
    if (index == 0) {
        snprintf(from, bytes, "%s", path);
        return AQ_OK;
    }
    *name = NULL;
    const int length = snprintf(from, bytes, "%s/tokenizer_config.json", folder);
    if (index == 1 && length > 0 && (size_t)length < bytes && access(from, F_OK) == 0) *name = "tokenizer_config.json";
    return AQ_OK;
}

const struct aq_tokenizer_kind aq_tokenizer_sentencepiece = {
    .about = {.name = "sentencepiece",
              .files = "spm.model or tokenizer.model",
              .normalizes = true,
              .marks = "spm.model|spiece.model",
              .marks_alone = "tokenizer.model"},
    .open = sentencepiece_open,
    .close = sentencepiece_close,
    .encode = sentencepiece_encode,
    .token = sentencepiece_token,
    .published = published,
};
