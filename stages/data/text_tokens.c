/* text_tokens.c -- a mapped text to tokens, piece by piece on all cores. See text_tokens.h. */
#include "text_tokens.h"

#include <jansson.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "aqsgd/base/given_file.h"
#include "dataset_kind.h"

#define AREA DATASET_AREA

/* A piece takes a core a tenth of a second; the look around a cut is a thousandth of it. */
enum { PIECE_BYTES = 4 << 20, LOOK_BYTES = 4 << 10, CUTS_TRIED = 256, THREADS_MAX = 256 };

#define SAY_NS UINT64_C(5000000000) /* between two lines about how far it is */

/* ---- files ---- */

enum aq_status text_map_open(const char *path, struct text_map *out)
{
    struct stat about;
    int file;
    AQ_TRY(aq_given_open(AREA, path, &file));
    enum aq_status status = AQ_OK;
    *out = (struct text_map){.at = NULL};
    if (fstat(file, &about) != 0) {
        status = aq_fail_errno(AREA, "%s: fstat", path);
    } else if (about.st_size > 0) {
        void *mapped = mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_PRIVATE, file, 0);
        if (mapped == MAP_FAILED) {
            (void)aq_fail_errno(AREA, "%s: cannot be mapped", path);
            status = AQ_IO;
        } else {
            *out = (struct text_map){.at = mapped, .bytes = (size_t)about.st_size};
            (void)madvise(mapped, out->bytes, MADV_SEQUENTIAL);
        }
    }
    close(file);
    return status;
}

void text_map_close(struct text_map *map)
{
    if (map->at) munmap((void *)(uintptr_t)map->at, map->bytes);
    *map = (struct text_map){.at = NULL};
}

/* Tokens in memory: half of it. */
static size_t tokens_max(void)
{
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    return pages > 0 && page > 0 ? (size_t)pages / 2 * ((size_t)page / sizeof(int32_t)) : SIZE_MAX;
}

enum aq_status text_sink_add(struct text_sink *sink, const int32_t *tokens, size_t count)
{
    if (count == 0) return AQ_OK;
    sink->count += count;
    if (sink->file >= 0) {
        sink->unwritten = !aq_write_all(sink->file, tokens, count * sizeof(int32_t));
        return sink->unwritten ? aq_fail_errno(AREA, "cannot write tokens to the cache (data.cache)") : AQ_OK;
    }
    if ((sink->list.count + count) > tokens_max())
        return aq_fail(AQ_NOMEM, AREA,
                       "these texts have more than %zu tokens, half of this machine's memory: name a folder in "
                       "data.cache, where they are kept on disk, or read fewer (data.train_samples_max)",
                       tokens_max());
    AQ_TRY(aq_token_list_reserve(&sink->list, count));
    memcpy(sink->list.at + sink->list.count, tokens, count * sizeof(int32_t));
    sink->list.count += count;
    return AQ_OK;
}

/* ---- pieces ---- */

struct piece {
    const struct aq_tokenizer *tokenizer;
    const char *path;
    const uint8_t *text;
    size_t bytes;
    uint64_t line; /* of a .jsonl: the number of its first one */
    bool lines;
    struct aq_token_list tokens;
    enum aq_status status;
};

static enum aq_status add_text(struct piece *piece, const char *text, size_t bytes)
{
    size_t count = 0;
    int32_t *tokens = NULL;
    AQ_TRY(aq_tokenizer_encode(piece->tokenizer, text, bytes, &tokens, &count));
    if (!piece->tokens.at) { /* the first text's tokens are not copied: often there is no other */
        piece->tokens = (struct aq_token_list){.at = tokens, .count = count, .capacity = count};
        return AQ_OK;
    }
    const enum aq_status status = aq_token_list_reserve(&piece->tokens, count);
    if (status == AQ_OK) {
        memcpy(piece->tokens.at + piece->tokens.count, tokens, count * sizeof(int32_t));
        piece->tokens.count += count;
    }
    aq_free(tokens);
    return status;
}

/* The `text` of one line of a .jsonl file, and the end of a text behind it: a line feed where that is no token. */
static enum aq_status add_line(struct piece *piece, const char *line, size_t bytes)
{
    const int32_t end = aq_tokenizer_end_of_text(piece->tokenizer);
    json_error_t error;
    json_t *object = json_loadb(line, bytes, JSON_ALLOW_NUL, &error);
    const json_t *text = json_object_get(object, "text");
    enum aq_status status;
    if (!object)
        status =
            aq_fail(AQ_CORRUPT, AREA, "%s:%llu: no JSON: %s", piece->path, (unsigned long long)piece->line, error.text);
    else if (!json_is_string(text))
        status = aq_fail(AQ_CORRUPT, AREA, "%s:%llu: has no \"text\" that is a string; each line is an object with one",
                         piece->path, (unsigned long long)piece->line);
    else
        status = add_text(piece, json_string_value(text), json_string_length(text));
    json_decref(object);
    if (status != AQ_OK || end < 0) return status == AQ_OK ? add_text(piece, "\n", 1) : status;
    AQ_TRY(aq_token_list_reserve(&piece->tokens, 1));
    piece->tokens.at[piece->tokens.count++] = end;
    return AQ_OK;
}

static enum aq_status add_lines(struct piece *piece)
{
    const char *text = (const char *)piece->text;
    for (size_t at = 0; at < piece->bytes; piece->line++) {
        const char *end = memchr(text + at, '\n', piece->bytes - at);
        const size_t line = end ? (size_t)(end - text) - at : piece->bytes - at;
        size_t blank = 0;
        while (blank < line && strchr(" \t\r", text[at + blank]) && text[at + blank])
            blank++;
        if (line > DATASET_LINE_BYTES_MAX)
            return aq_fail(AQ_INVAL, AREA, DATASET_LINE_LONG, piece->path, (unsigned long long)piece->line, line,
                           DATASET_LINE_BYTES_MAX);
        if (line > blank) AQ_TRY(add_line(piece, text + at, line));
        at += line + 1;
    }
    return AQ_OK;
}

static void run_piece(void *context)
{
    struct piece *piece = context;
    piece->status = piece->lines ? add_lines(piece) : add_text(piece, (const char *)piece->text, piece->bytes);
}

/* ---- cuts ---- */

static bool same_tokens(const struct aq_tokenizer *tokenizer, const uint8_t *text, size_t left, size_t right)
{
    int32_t *all = NULL, *a = NULL, *b = NULL;
    size_t all_count = 0, a_count = 0, b_count = 0;
    const char *at = (const char *)text;
    bool same = aq_tokenizer_encode(tokenizer, at, left + right, &all, &all_count) == AQ_OK &&
                aq_tokenizer_encode(tokenizer, at, left, &a, &a_count) == AQ_OK &&
                aq_tokenizer_encode(tokenizer, at + left, right, &b, &b_count) == AQ_OK;
    same = same && all_count == a_count + b_count && memcmp(all, a, a_count * sizeof *a) == 0 &&
           memcmp(all + a_count, b, b_count * sizeof *b) == 0;
    aq_free(all);
    aq_free(a);
    aq_free(b);
    return same;
}

/* The end of the piece that begins at `at`: behind a line, about PIECE_BYTES on; or the end of the text. */
static size_t piece_end(const struct aq_tokenizer *tokenizer, const struct text_map *text, size_t at, bool lines)
{
    size_t from = at + PIECE_BYTES;
    for (int tried = 0; tried < CUTS_TRIED && from < text->bytes; tried++) {
        const uint8_t *line = memchr(text->at + from, '\n', text->bytes - from);
        if (!line) break;
        const size_t cut = (size_t)(line - text->at) + 1, left = text->bytes - cut;
        if (left == 0) break;
        if (lines ||
            same_tokens(tokenizer, text->at + cut - LOOK_BYTES, LOOK_BYTES, left < LOOK_BYTES ? left : LOOK_BYTES))
            return cut;
        from = cut;
    }
    return text->bytes;
}

static uint64_t count_lines(const uint8_t *text, size_t bytes)
{
    uint64_t count = 0;
    for (size_t i = 0; i < bytes; i++)
        count += text[i] == '\n';
    return count;
}

/* ---- all of it ---- */

struct progress {
    uint64_t began_ns, said_ns;
};

static void say(struct progress *progress, const char *path, size_t done, size_t bytes)
{
    const uint64_t now = aq_clock_ns();
    if (now - progress->said_ns < SAY_NS || done == bytes) return;
    progress->said_ns = now;
    aq_log(AREA, 1, "tokens of %s: %.0f %% of %.1f MB, %.1f MB/s", path, 100.0 * (double)done / (double)bytes,
           1e-6 * (double)bytes, 1e3 * (double)done / (double)(now - progress->began_ns));
}

/* So many pieces side by side, each on a thread but the first, which is the caller's. */
static void run_pieces(struct piece *pieces, uint32_t count)
{
    struct aq_thread *threads[THREADS_MAX] = {NULL};
    for (uint32_t i = 1; i < count; i++)
        if (aq_thread_open("tokens", run_piece, &pieces[i], &threads[i]) != AQ_OK) run_piece(&pieces[i]);
    run_piece(&pieces[0]);
    for (uint32_t i = 1; i < count; i++)
        aq_thread_close(threads[i]);
}

enum aq_status text_tokens(const struct aq_tokenizer *tokenizer, const char *path, const struct text_map *text,
                           bool lines, uint32_t threads, struct text_sink *sink)
{
    struct progress progress = {.began_ns = aq_clock_ns()};
    struct piece pieces[THREADS_MAX];
    enum aq_status status = AQ_OK;
    uint64_t line = 1;
    progress.said_ns = progress.began_ns;
    if (threads == 0) threads = aq_thread_cores();
    if (threads > THREADS_MAX) threads = THREADS_MAX;
    for (size_t at = 0; at < text->bytes && status == AQ_OK && !(sink->limit && sink->count >= sink->limit);) {
        const uint64_t wanted = sink->limit ? 1 + (sink->limit - sink->count) / PIECE_BYTES : threads;
        uint32_t count = 0;
        for (; count < threads && count < wanted && at < text->bytes; count++) {
            const size_t end = piece_end(tokenizer, text, at, lines);
            pieces[count] = (struct piece){.tokenizer = tokenizer,
                                           .path = path,
                                           .text = text->at + at,
                                           .bytes = end - at,
                                           .line = line,
                                           .lines = lines};
            if (lines) line += count_lines(text->at + at, end - at);
            at = end;
        }
        run_pieces(pieces, count);
        for (uint32_t i = 0; i < count; i++) {
            if (status == AQ_OK) status = pieces[i].status;
            if (status == AQ_OK) status = text_sink_add(sink, pieces[i].tokens.at, pieces[i].tokens.count);
            aq_free(pieces[i].tokens.at);
        }
        say(&progress, path, at, text->bytes);
    }
    return status;
}
