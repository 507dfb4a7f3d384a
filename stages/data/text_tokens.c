/* text_tokens.c -- a text to tokens, piece by piece on all cores. See text_tokens.h. */
#include "text_tokens.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "aqsgd/base/given_file.h"
#include "data_bytes.h"
#include "data_record.h"
#include "dataset_kind.h"

#define AREA DATASET_AREA

/* A piece takes a core a tenth of a second; the look around a cut is a thousandth of it. */
enum { PIECE_BYTES = 4 << 20, LOOK_BYTES = 4 << 10, CUTS_TRIED = 256, THREADS_MAX = 256 };
enum { RECORDS_TOKENS = 1 << 20, WHY_BYTES = 700 };

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

size_t text_numbers_max(void)
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
        return sink->unwritten ? aq_fail_errno(AREA, "cannot write to the cache (data.cache)") : AQ_OK;
    }
    if ((sink->list.count + count) > text_numbers_max())
        return aq_fail(AQ_NOMEM, AREA,
                       "these texts have more than %zu tokens, half of this machine's memory: name a folder in "
                       "data.cache, where they are kept on disk, or read fewer (data.train_samples_max)",
                       text_numbers_max());
    AQ_TRY(aq_token_list_reserve(&sink->list, count));
    memcpy(sink->list.at + sink->list.count, tokens, count * sizeof(int32_t));
    sink->list.count += count;
    return AQ_OK;
}

/* ---- pieces ---- */

struct piece {
    const struct text_how *how;
    const char *path;
    const uint8_t *text;
    size_t bytes;
    uint64_t line; /* of JSON lines: the number of its first one */
    struct aq_token_list tokens;
    struct data_faults *faults; /* memory of aq_alloc; NULL: none yet */
    enum aq_status status;
};

static enum aq_status add_text(struct piece *piece, const char *text, size_t bytes)
{
    size_t count = 0;
    int32_t *tokens = NULL;
    AQ_TRY(aq_tokenizer_encode(piece->how->tokenizer, text, bytes, &tokens, &count));
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

/* The text of an object, and the end of a text behind it: a line feed where that is no token. */
static enum aq_status add_object(struct piece *piece, const json_t *object)
{
    const int32_t end = aq_tokenizer_end_of_text(piece->how->tokenizer);
    const json_t *text = data_role_of(piece->how->roles, DATA_ROLE_TEXT, object);
    char why[WHY_BYTES];
    if (!json_is_string(text)) {
        data_text_missing(piece->how->roles, object, why, sizeof why);
        return aq_fail(AQ_CORRUPT, AREA, "%s:%llu: %s", piece->path, (unsigned long long)piece->line, why);
    }
    AQ_TRY(add_text(piece, json_string_value(text), json_string_length(text)));
    if (end < 0) return add_text(piece, "\n", 1);
    AQ_TRY(aq_token_list_reserve(&piece->tokens, 1));
    piece->tokens.at[piece->tokens.count++] = end;
    return AQ_OK;
}

/* A line is bad: it is noted, and gives no tokens. */
static enum aq_status note_fault(struct piece *piece, enum aq_status status, size_t tokens, const char *why)
{
    piece->tokens.count = tokens;
    if (!data_fault_is(status)) return aq_fail(status, AREA, "%s", why);
    if (!piece->faults) {
        AQ_TRY(AQ_NEW(1, &piece->faults));
        piece->faults->allowed = piece->how->faults->allowed;
    }
    data_faults_note(piece->faults, piece->path, piece->line, why);
    return AQ_OK;
}

static enum aq_status add_line(struct piece *piece, const char *line, size_t bytes)
{
    const size_t tokens = piece->tokens.count;
    struct aq_error_hold why;
    json_t *object = NULL;
    aq_error_hold(&why);
    enum aq_status status = data_line_object(piece->path, piece->line, line, bytes, 0, &object);
    if (status == AQ_OK) status = add_object(piece, object);
    aq_error_release(&why);
    json_decref(object);
    return status == AQ_OK ? AQ_OK : note_fault(piece, status, tokens, why.text);
}

static enum aq_status add_lines(struct piece *piece)
{
    const char *text = (const char *)piece->text;
    for (size_t at = 0; at < piece->bytes && !(piece->faults && data_faults_over(piece->faults)); piece->line++) {
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
    piece->status = piece->how->lines ? add_lines(piece) : add_text(piece, (const char *)piece->text, piece->bytes);
}

/* Adds the tokens and faults of a piece. */
static enum aq_status piece_take(struct piece *piece, const struct text_how *how, struct text_sink *sink)
{
    if (piece->faults) data_faults_join(how->faults, piece->faults);
    AQ_TRY(piece->status);
    return text_sink_add(sink, piece->tokens.at, piece->tokens.count);
}

static void piece_free(struct piece *piece)
{
    aq_free(piece->tokens.at);
    aq_free(piece->faults);
}

/* ---- records of other forms ---- */

static enum aq_status next_record(struct piece *piece, struct data_reader *file, bool *at_end)
{
    const size_t tokens = piece->tokens.count;
    struct data_record record;
    struct aq_error_hold why;
    json_t *object = NULL;
    bool ends;
    aq_error_hold(&why);
    enum aq_status status = data_reader_next(file, &record, &ends);
    piece->line = record.line;
    *at_end = status == AQ_OK && !record.at;
    if (status == AQ_OK && record.at) status = data_record_object(file, &record, 0, &object);
    if (object) status = add_object(piece, object);
    aq_error_release(&why);
    json_decref(object);
    if (status == AQ_OK) return AQ_OK;
    return ends ? aq_fail(status, AREA, "%s", why.text) : note_fault(piece, status, tokens, why.text);
}

enum aq_status text_records(const struct text_how *how, struct data_reader *file, const char *path,
                            struct text_sink *sink)
{
    struct piece piece = {.how = how, .path = path};
    enum aq_status status = AQ_OK;
    bool at_end = false;
    while (status == AQ_OK && !at_end && !(sink->limit && sink->count >= sink->limit) &&
           !data_faults_over(how->faults)) {
        status = next_record(&piece, file, &at_end);
        if (status == AQ_OK && (at_end || piece.tokens.count >= RECORDS_TOKENS || piece.faults)) {
            status = piece_take(&piece, how, sink);
            piece.tokens.count = 0;
            aq_free(piece.faults);
            piece.faults = NULL;
        }
    }
    piece_free(&piece);
    return status;
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

/*
 * The end of the piece that starts at `at`: behind a line, about PIECE_BYTES on; or the end of the text. 0: more of the
 * text must be known.
 */
static size_t piece_end(const struct text_how *how, const struct text_source *text, size_t at)
{
    size_t from = at + PIECE_BYTES;
    for (int tried = 0; tried < CUTS_TRIED && from < text->bytes; tried++) {
        const uint8_t *line = memchr(text->at + from, '\n', text->bytes - from);
        if (!line) break;
        const size_t cut = (size_t)(line - text->at) + 1, left = text->bytes - cut;
        if (!text->whole && left < LOOK_BYTES) return 0;
        if (left == 0) break;
        if (how->lines || same_tokens(how->tokenizer, text->at + cut - LOOK_BYTES, LOOK_BYTES,
                                      left < LOOK_BYTES ? left : LOOK_BYTES))
            return cut;
        from = cut;
    }
    return text->whole ? text->bytes : 0;
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

/* Runs `count` pieces in parallel, each on a thread except the first, which the caller runs. */
static void run_pieces(struct piece *pieces, uint32_t count)
{
    struct aq_thread *threads[THREADS_MAX] = {NULL};
    for (uint32_t i = 1; i < count; i++)
        if (aq_thread_open("tokens", run_piece, &pieces[i], &threads[i]) != AQ_OK) run_piece(&pieces[i]);
    run_piece(&pieces[0]);
    for (uint32_t i = 1; i < count; i++)
        aq_thread_close(threads[i]);
}

void text_source_mapped(const char *path, const struct text_map *map, struct text_source *out)
{
    const size_t mark = data_mark(map->at, map->bytes);
    *out = (struct text_source){.path = path, .at = map->at + mark, .bytes = map->bytes - mark, .whole = true};
}

/* The window has `bytes` bytes, or all that is left. */
static enum aq_status window_fill(struct text_source *source, size_t bytes)
{
    void *memory;
    if (bytes > source->room) {
        if (bytes > TEXT_WINDOW_MAX)
            return aq_fail(AQ_INVAL, AREA,
                           "%s: is packed and has no place to cut it within %zu MiB for this tokenizer: unpack it",
                           source->path, TEXT_WINDOW_MAX >> 20);
        AQ_TRY(aq_alloc(bytes, &memory));
        if (source->bytes) memcpy(memory, source->at, source->bytes);
        aq_free(source->window);
        source->window = memory;
        source->room = bytes;
    } else if (source->bytes) {
        memmove(source->window, source->at, source->bytes);
    }
    source->at = source->window;
    while (!source->whole && source->bytes < bytes) {
        size_t got;
        AQ_TRY(data_bytes_read(source->rest, source->window + source->bytes, source->room - source->bytes, &got));
        source->bytes += got;
        source->whole = got == 0;
    }
    return AQ_OK;
}

enum aq_status text_source_packed(const char *path, struct text_source *out)
{
    *out = (struct text_source){.path = path};
    AQ_TRY(data_bytes_open(path, &out->rest));
    enum aq_status status = window_fill(out, PIECE_BYTES);
    if (status == AQ_OK) status = data_check_format(path, out->at, out->bytes);
    if (status != AQ_OK) {
        text_source_close(out);
        return status;
    }
    const size_t mark = data_mark(out->at, out->bytes);
    out->at += mark;
    out->bytes -= mark;
    return AQ_OK;
}

void text_source_close(struct text_source *source)
{
    data_bytes_close(source->rest);
    aq_free(source->window);
    *source = (struct text_source){.path = NULL};
}

/* Beyond its bound once it is there: then it is refused. */
static size_t wider(size_t room)
{
    if (room < TEXT_WINDOW_MAX / 2) return 2 * room;
    return room < TEXT_WINDOW_MAX ? TEXT_WINDOW_MAX : TEXT_WINDOW_MAX + 1;
}

/* Pieces at the start of the source, at most `most`, and their bytes together; advances *line. */
static uint32_t cut_pieces(const struct text_how *how, const struct text_source *source, uint32_t most,
                           struct piece *pieces, uint64_t *line, size_t *bytes)
{
    uint32_t count = 0;
    *bytes = 0;
    for (; count < most && *bytes < source->bytes; count++) {
        const size_t end = piece_end(how, source, *bytes);
        if (end == 0) break;
        pieces[count] = (struct piece){.how = how,
                                       .path = source->path,
                                       .text = source->at + *bytes,
                                       .bytes = end - *bytes,
                                       .line = *line};
        if (how->lines) *line += count_lines(source->at + *bytes, end - *bytes);
        *bytes = end;
    }
    return count;
}

enum aq_status text_tokens(const struct text_how *how, struct text_source *source, struct text_sink *sink)
{
    struct progress progress = {.began_ns = aq_clock_ns()};
    struct piece pieces[THREADS_MAX];
    enum aq_status status = AQ_OK;
    uint64_t line = 1;
    const size_t all = source->bytes;
    uint32_t threads = how->threads ? how->threads : aq_thread_cores();
    progress.said_ns = progress.began_ns;
    if (threads > THREADS_MAX) threads = THREADS_MAX;
    const size_t window = (size_t)(threads + 1) * PIECE_BYTES < TEXT_WINDOW_MAX ? (size_t)(threads + 1) * PIECE_BYTES
                                                                               : TEXT_WINDOW_MAX;
    for (size_t done = 0, bytes; status == AQ_OK && !(sink->limit && sink->count >= sink->limit); done += bytes) {
        if (source->rest) AQ_TRY(window_fill(source, source->room > window ? source->room : window));
        if (source->bytes == 0 || data_faults_over(how->faults)) break;
        const uint64_t wanted = sink->limit ? 1 + (sink->limit - sink->count) / PIECE_BYTES : threads;
        const uint32_t most = wanted < threads ? (uint32_t)wanted : threads;
        uint32_t count = cut_pieces(how, source, most, pieces, &line, &bytes);
        while (count == 0) { /* ends: the window grows up to its bound */
            AQ_TRY(window_fill(source, wider(source->room)));
            count = cut_pieces(how, source, most, pieces, &line, &bytes);
        }
        run_pieces(pieces, count);
        for (uint32_t i = 0; i < count; i++) {
            if (status == AQ_OK) status = piece_take(&pieces[i], how, sink);
            piece_free(&pieces[i]);
        }
        source->at += bytes;
        source->bytes -= bytes;
        if (!source->rest) say(&progress, source->path, done + bytes, all);
    }
    return status;
}
