/* metrics_index.c -- see the header. */
#include "metrics_index.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "control.h"
#include "run_folder.h"
#include "run_lines.h"

struct entry {
    uint64_t offset; /* of the metrics' bytes that it covers         */
    uint64_t bytes;  /* of the last line of them, newline and all    */
    uint64_t digest; /* of that line                                 */
};

struct aq_metrics_index {
    int fd; /* -1: no more */
    uint64_t every;
    struct entry last; /* the line that came last: where the next entry would be */
    uint64_t written;  /* the offset of the entry that was written last          */
    struct aq_report_sums sums;
};

static bool index_path(const char *metrics_path, char *out)
{
    const int length = snprintf(out, AQ_RUN_PATH_BYTES, "%s.index", metrics_path);
    return length > 0 && length < AQ_RUN_PATH_BYTES;
}

static json_t *parse(const char *text, size_t count, struct entry *entry)
{
    if (count < 18 || text[16] != ' ') return NULL;
    json_t *given = json_stringn(text, 16), *of = aq_control_hex(aq_digest(text + 17, count - 17));
    const bool whole = json_equal(given, of);
    json_decref(given);
    json_decref(of);
    json_t *object = whole ? json_loadb(text + 17, count - 17, 0, NULL) : NULL;
    if (json_is_object(object) && aq_control_get_u64(object, "offset", &entry->offset) == AQ_OK &&
        aq_control_get_u64(object, "line_bytes", &entry->bytes) == AQ_OK &&
        aq_control_get_hex(object, "line_digest", &entry->digest) == AQ_OK)
        return object;
    json_decref(object);
    return NULL;
}

/* Does the line that ends at the entry's byte have its digest? */
static bool fits(int metrics, const struct entry *entry)
{
    void *bytes;
    if (entry->bytes == 0 || entry->bytes > AQ_RUN_LINE_BYTES_MAX || entry->offset < entry->bytes ||
        entry->offset > INT64_MAX || aq_alloc(entry->bytes, &bytes) != AQ_OK)
        return false;
    const ssize_t got = aq_pread_all(metrics, bytes, entry->bytes, entry->offset - entry->bytes);
    const bool same = got == (ssize_t)entry->bytes && aq_digest(bytes, entry->bytes) == entry->digest;
    aq_free(bytes);
    return same;
}

/* The newest entry of at most `bytes` that fits. *end gets where its line ends in the index; 0 and NULL: none. */
static json_t *newest(const char *metrics_path, uint64_t bytes, struct entry *entry, uint64_t *end)
{
    char path[AQ_RUN_PATH_BYTES], *text;
    size_t count;
    json_t *object = NULL;
    *end = 0;
    if (!index_path(metrics_path, path)) return NULL;
    int metrics;
    if (aq_file_open(NULL, metrics_path, AQ_FILE_READ, &metrics) != AQ_OK) return NULL;
    for (uint64_t at = UINT64_MAX, begin; !object && at > 0; at = begin) {
        if (aq_run_line_before(path, at, &text, &count, &begin) != AQ_OK) break;
        object = parse(text, count, entry);
        *end = begin + count + 1;
        aq_free(text);
        if (object && (entry->offset > bytes || !fits(metrics, entry))) {
            json_decref(object);
            object = NULL;
        }
    }
    close(metrics);
    if (!object) *end = 0;
    return object;
}

void aq_metrics_index_load(const char *metrics_path, struct aq_report_sums *sums, uint64_t *offset)
{
    struct entry entry;
    uint64_t end;
    json_t *object = newest(metrics_path, UINT64_MAX, &entry, &end);
    *offset = 0;
    aq_report_sums_init(sums);
    if (object && aq_report_sums_take(sums, json_object_get(object, "sums"))) *offset = entry.offset;
    json_decref(object);
}

void aq_metrics_index_cut(const char *metrics_path, uint64_t bytes)
{
    char path[AQ_RUN_PATH_BYTES];
    struct entry entry;
    uint64_t end = 0;
    if (!index_path(metrics_path, path)) return;
    if (bytes > 0) json_decref(newest(metrics_path, bytes, &entry, &end));
    int fd;
    if (end > 0 && aq_file_open(NULL, path, AQ_FILE_UPDATE, &fd) == AQ_OK) {
        const bool shorter = ftruncate(fd, (off_t)end) == 0;
        close(fd);
        if (shorter) return;
    }
    (void)aq_file_remove(NULL, path);
}

/* ---- the writer ---- */

static void give_up(struct aq_metrics_index *index, const char *why)
{
    aq_log("metrics", AQ_LOG_WARNING, "no more index of metrics.jsonl: %s", why);
    if (index->fd != -1) close(index->fd);
    index->fd = -1;
}

static void write_entry(struct aq_metrics_index *index)
{
    struct aq_text text = {0};
    json_t *object = json_pack("{s:I, s:I, s:o, s:o}", "offset", (json_int_t)index->last.offset, "line_bytes",
                               (json_int_t)index->last.bytes, "line_digest", aq_control_hex(index->last.digest), "sums",
                               aq_report_sums_json(&index->sums));
    char *line = object ? json_dumps(object, JSON_COMPACT | JSON_ENSURE_ASCII) : NULL;
    json_decref(object);
    if (line) aq_text_add(&text, "%016llx %s\n", (unsigned long long)aq_digest(line, strlen(line)), line);
    (free)(line); /* jansson's own memory */
    /* Half an entry has neither digest nor newline: the next one would be lost with it. */
    if (text.used == 0 || text.status != AQ_OK)
        give_up(index, "no memory");
    else if (!aq_write_all(index->fd, text.bytes, text.used))
        give_up(index, "it cannot be written");
    index->written = index->last.offset;
    aq_text_deinit(&text);
}

void aq_metrics_index_add(struct aq_metrics_index *index, const json_t *line, const char *text, size_t count)
{
    if (!index || index->fd == -1) return;
    if (index->last.offset - index->written >= index->every && aq_control_is(line, "event", "step")) write_entry(index);
    (void)aq_report_sums_add(line, &index->sums);
    index->last =
        (struct entry){.offset = index->last.offset + count, .bytes = count, .digest = aq_digest(text, count)};
}

/* Reads the metrics after the newest entry. False: they cannot be read. */
static bool read_rest(struct aq_metrics_index *index, const char *metrics_path)
{
    struct aq_run_lines *lines;
    const char *text;
    size_t count;
    enum aq_status status = aq_run_lines_open(metrics_path, index->last.offset, &lines);
    if (status != AQ_OK) return status == AQ_NOTFOUND;
    while ((status = aq_run_lines_next(lines, &text, &count)) == AQ_OK) {
        json_t *line = json_loadb(text, count, 0, NULL);
        const bool whole = json_is_object(line);
        if (whole) aq_metrics_index_add(index, line, text, count + 1);
        json_decref(line);
        if (!whole) break;
    }
    aq_run_lines_close(lines);
    struct stat info;
    return status == AQ_NOTFOUND && stat(metrics_path, &info) == 0 && (uint64_t)info.st_size == index->last.offset;
}

struct aq_metrics_index *aq_metrics_index_open(const char *metrics_path, uint64_t every)
{
    char path[AQ_RUN_PATH_BYTES];
    struct aq_metrics_index *index;
    uint64_t end;
    if (!index_path(metrics_path, path) || AQ_NEW(1, &index) != AQ_OK) return NULL;
    *index = (struct aq_metrics_index){.fd = -1, .every = every ? every : AQ_METRICS_INDEX_BYTES};
    aq_report_sums_init(&index->sums);
    json_t *object = newest(metrics_path, UINT64_MAX, &index->last, &end);
    if (object && !aq_report_sums_take(&index->sums, json_object_get(object, "sums"))) end = 0;
    if (end == 0) index->last = (struct entry){0};
    json_decref(object);
    index->written = index->last.offset;
    if (aq_file_open(NULL, path, AQ_FILE_APPEND, &index->fd) != AQ_OK || ftruncate(index->fd, (off_t)end) != 0)
        give_up(index, "its file cannot be opened");
    else if (!read_rest(index, metrics_path))
        give_up(index, "metrics.jsonl cannot be read whole");
    return index;
}

void aq_metrics_index_close(struct aq_metrics_index *index)
{
    if (!index) return;
    if (index->fd != -1) close(index->fd);
    aq_report_sums_deinit(&index->sums);
    aq_free(index);
}
