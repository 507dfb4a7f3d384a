/*
 * tokenizer_gpt2.c -- GPT-2's byte-level BPE from the files that were published first: vocab.json (encoder.json) and
 * merges.txt (vocab.bpe).
 *
 * "<|endoftext|>" in a text is the one token of that name, if the vocabulary has it: the texts before and behind it are
 * cut into words independently.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "bpe.h"
#include "dataset_file.h"

enum { PATH_BYTES_MAX = 4096 };

/* path of folder/first or folder/second, whichever is there. */
static enum aq_status find_file(const char *folder, const char *first, const char *second, char path[PATH_BYTES_MAX])
{
    const char *const names[] = {first, second};
    if (!folder) return aq_fail(AQ_INVAL, AQ_BPE_AREA, "the gpt2 tokenizer needs the folder of its %s", first);
    for (int i = 0; i < 2; i++) {
        int length = snprintf(path, PATH_BYTES_MAX, "%s/%s", folder, names[i]);
        if (length < 0 || length >= PATH_BYTES_MAX)
            return aq_fail(AQ_INVAL, AQ_BPE_AREA, "the folder's name \"%.64s...\" is too long", folder);
        if (access(path, F_OK) == 0) return AQ_OK;
    }
    return aq_fail(AQ_NOTFOUND, AQ_BPE_AREA, "%s: has neither %s nor %s", folder, first, second);
}

static enum aq_status published(const char *folder, uint32_t index, char *from, size_t bytes, const char **name)
{
    char path[PATH_BYTES_MAX];
    *name = NULL;
    if (index > 1) return AQ_OK;
    AQ_TRY(index == 0 ? find_file(folder, "vocab.json", "encoder.json", path)
                      : find_file(folder, "merges.txt", "vocab.bpe", path));
    snprintf(from, bytes, "%s", path);
    *name = index == 0 ? "vocab.json" : "merges.txt";
    return AQ_OK;
}

static enum aq_status parse_merges(const char *path, const char *text, size_t bytes, struct aq_bpe_vocabulary *v)
{
    uint64_t line = 0, lines = 1;
    const char *end = text + bytes;
    for (size_t i = 0; i < bytes; i++)
        lines += text[i] == '\n';
    AQ_TRY(aq_bpe_merges_open(v, lines));
    for (const char *at = text, *next; at < end; at = next) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        next = stop ? stop + 1 : end;
        if (!stop) stop = end;
        if (stop > at && stop[-1] == '\r') stop--;
        line++;
        if (stop == at || (line == 1 && stop - at >= 8 && memcmp(at, "#version", 8) == 0)) continue;
        const char *space = memchr(at, ' ', (size_t)(stop - at));
        const char *right = space ? space + 1 : stop;
        AQ_TRY(
            aq_bpe_merges_add(path, at, (size_t)((space ? space : stop) - at), right, (size_t)(stop - right), line, v));
    }
    return AQ_OK;
}

static enum aq_status read_merges(const char *folder, struct aq_bpe_vocabulary *v)
{
    char path[PATH_BYTES_MAX];
    uint8_t *text;
    size_t bytes;
    AQ_TRY(find_file(folder, "merges.txt", "vocab.bpe", path));
    AQ_TRY(aq_file_read(AQ_BPE_AREA, path, AQ_BPE_FILE_BYTES_MAX, &text, &bytes));
    const enum aq_status status = parse_merges(path, (const char *)text, bytes, v);
    aq_free(text);
    return status;
}

static enum aq_status read_vocabulary(const char *folder, struct aq_bpe_vocabulary *v)
{
    char path[PATH_BYTES_MAX];
    uint8_t *text;
    size_t bytes;
    AQ_TRY(find_file(folder, "vocab.json", "encoder.json", path));
    AQ_TRY(aq_file_read(AQ_BPE_AREA, path, AQ_BPE_FILE_BYTES_MAX, &text, &bytes));
    json_error_t error;
    json_t *object = json_loadb((const char *)text, bytes, JSON_REJECT_DUPLICATES, &error);
    enum aq_status status;
    if (!object)
        status = aq_fail(AQ_CORRUPT, AQ_BPE_AREA, "%s:%d:%d: %s", path, error.line, error.column, error.text);
    else
        status = aq_bpe_vocabulary_open(path, object, false, NULL, 0, v);
    json_decref(object);
    aq_free(text);
    AQ_TRY(status);
    return aq_bpe_vocabulary_bytes(path, v);
}

static enum aq_status open_bpe(const char *folder, struct aq_tokenizer *tokenizer, struct aq_bpe *bpe)
{
    static const char end_of_text[] = "<|endoftext|>";
    struct aq_bpe_added added = {.content = end_of_text, .bytes = sizeof end_of_text - 1};
    AQ_TRY(read_vocabulary(folder, &bpe->vocabulary));
    AQ_TRY(read_merges(folder, &bpe->vocabulary));
    AQ_TRY(aq_bpe_pattern_open("the gpt2 tokenizer", aq_bpe_pattern_gpt2, strlen(aq_bpe_pattern_gpt2), false,
                               &bpe->steps[0].pattern));
    bpe->step_count = 1;
    added.token = aq_bpe_vocabulary_find(&bpe->vocabulary, end_of_text, added.bytes);
    tokenizer->vocabulary = bpe->vocabulary.count;
    if (added.token == AQ_BPE_NONE) return AQ_OK;
    tokenizer->begin = tokenizer->end_of_text = (int32_t)added.token;
    return aq_bpe_finder_open(bpe, &added, 1, false, &bpe->raw);
}

static void gpt2_close(struct aq_tokenizer *tokenizer)
{
    aq_bpe_close(tokenizer->state);
    aq_free(tokenizer->state);
}

static enum aq_status gpt2_open(struct aq_tokenizer *tokenizer, const char *path)
{
    AQ_TRY(aq_alloc(sizeof(struct aq_bpe), &tokenizer->state));
    const enum aq_status status = open_bpe(path, tokenizer, tokenizer->state);
    if (status != AQ_OK) gpt2_close(tokenizer);
    return status;
}

const struct aq_tokenizer_kind aq_tokenizer_gpt2 = {
    .about = {.name = "gpt2", .files = "vocab.json and merges.txt", .marks = "merges.txt|vocab.bpe"},
    .open = gpt2_open,
    .close = gpt2_close,
    .encode = aq_bpe_encode,
    .token = aq_bpe_token,
    .published = published,
    .published_class = "GPT2Tokenizer",
};
