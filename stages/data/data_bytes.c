/* data_bytes.c -- the tables of packings and of formats that are refused, and the stream. See data_bytes.h. */
#include "data_bytes.h"

#include <string.h>
#include <strings.h>
#include <unistd.h>
#if AQ_ZLIB
#include <zlib.h>
#endif
#include <zstd.h>

#include "aqsgd/base/given_file.h"
#include "dataset_kind.h"

#define AREA DATASET_AREA

enum { IN_BYTES = 256 << 10, ZSTD_WINDOW_LOG_MAX = 27 };

struct data_packing;

struct data_bytes {
    const char *path;
    int file;
    const struct data_packing *packing; /* NULL: none */
    uint8_t *in;                        /* IN_BYTES of the file */
    size_t at, count;                   /* [at, count) of them are not taken yet */
    uint64_t taken, given;              /* packed and unpacked bytes so far */
    bool ended;                         /* the file has no more */
    bool within;                        /* a packed stream has begun and has not ended */
    bool done;
    void *state; /* the packing's */
};

/* One row a packing. NULL open: this build has not got its library, which `lacks` names. */
struct data_packing {
    const char *name, *endings;
    uint8_t magic[4];
    uint32_t magic_bytes;
    const char *lacks;
    enum aq_status (*open)(struct data_bytes *bytes);
    void (*close)(struct data_bytes *bytes);
    /* Some bytes; *got 0: nothing came of the input so far, which is used up. */
    enum aq_status (*read)(struct data_bytes *bytes, uint8_t *to, size_t room, size_t *got);
};

static enum aq_status damaged(const struct data_bytes *bytes, const char *why)
{
    return aq_fail(AQ_CORRUPT, AREA, "%s: is not a complete %s file: %s; copy or download it again", bytes->path,
                   bytes->packing->name, why);
}

/* ---- gzip ---- */

#if AQ_ZLIB
static enum aq_status gzip_open(struct data_bytes *bytes)
{
    void *memory;
    AQ_TRY(aq_alloc(sizeof(z_stream), &memory));
    bytes->state = memory;
    if (inflateInit2((z_stream *)memory, 15 + 16) == Z_OK) return AQ_OK;
    aq_free(memory);
    bytes->state = NULL;
    return aq_fail(AQ_NOMEM, AREA, "%s: no memory to unpack it", bytes->path);
}

static void gzip_close(struct data_bytes *bytes)
{
    if (bytes->state) (void)inflateEnd(bytes->state);
    aq_free(bytes->state);
}

/* Behind a member: another one, or zeroes up to the end, as tapes have them. */
static enum aq_status gzip_between(struct data_bytes *bytes)
{
    if (bytes->in[bytes->at] == 0x1f) return inflateReset(bytes->state) == Z_OK ? AQ_OK : damaged(bytes, "zlib");
    while (bytes->at < bytes->count && bytes->in[bytes->at] == 0)
        bytes->at++;
    return bytes->at == bytes->count ? AQ_OK : damaged(bytes, "other bytes follow its end");
}

static enum aq_status gzip_read(struct data_bytes *bytes, uint8_t *to, size_t room, size_t *got)
{
    z_stream *stream = bytes->state;
    const uInt most = room < (1u << 30) ? (uInt)room : 1u << 30;
    *got = 0;
    if (bytes->at == bytes->count) return AQ_OK;
    if (!bytes->within) AQ_TRY(gzip_between(bytes));
    if (bytes->at == bytes->count) return AQ_OK;
    stream->next_in = bytes->in + bytes->at;
    stream->avail_in = (uInt)(bytes->count - bytes->at);
    stream->next_out = to;
    stream->avail_out = most;
    const int result = inflate(stream, Z_NO_FLUSH);
    bytes->at = bytes->count - stream->avail_in;
    *got = most - stream->avail_out;
    bytes->within = result != Z_STREAM_END;
    if (result == Z_MEM_ERROR) return aq_fail(AQ_NOMEM, AREA, "%s: no memory to unpack it", bytes->path);
    if (result == Z_OK || result == Z_STREAM_END || result == Z_BUF_ERROR) return AQ_OK;
    return damaged(bytes, stream->msg ? stream->msg : "zlib cannot read it");
}
#else
#define gzip_open  NULL
#define gzip_close NULL
#define gzip_read  NULL
#endif

/* ---- zstd ---- */

static enum aq_status zstd_open(struct data_bytes *bytes)
{
    ZSTD_DCtx *context = ZSTD_createDCtx();
    if (!context) return aq_fail(AQ_NOMEM, AREA, "%s: no memory to unpack it", bytes->path);
    bytes->state = context;
    (void)ZSTD_DCtx_setParameter(context, ZSTD_d_windowLogMax, ZSTD_WINDOW_LOG_MAX);
    return AQ_OK;
}

static void zstd_close(struct data_bytes *bytes)
{
    (void)ZSTD_freeDCtx(bytes->state);
}

static enum aq_status zstd_read(struct data_bytes *bytes, uint8_t *to, size_t room, size_t *got)
{
    ZSTD_inBuffer in = {.src = bytes->in, .size = bytes->count, .pos = bytes->at};
    ZSTD_outBuffer out = {.dst = to, .size = room, .pos = 0};
    const size_t result = ZSTD_decompressStream(bytes->state, &out, &in);
    const bool moved = in.pos != bytes->at || out.pos > 0;
    bytes->at = in.pos;
    *got = out.pos;
    if (moved) bytes->within = result != 0;
    if (!ZSTD_isError(result)) return AQ_OK;
    const char *why = ZSTD_getErrorName(result);
    if (strstr(why, "too much memory"))
        return aq_fail(AQ_INVAL, AREA, "%s: needs a window of more than %d MiB (zstd --long): unpack it (zstd -d)",
                       bytes->path, 1 << (ZSTD_WINDOW_LOG_MAX - 20));
    return damaged(bytes, why);
}

static const struct data_packing packings[] = {
    {"gzip", ".gz .gzip", {0x1f, 0x8b, 8}, 3, "zlib1g-dev", gzip_open, gzip_close, gzip_read},
    {"zstd", ".zst .zstd", {0x28, 0xb5, 0x2f, 0xfd}, 4, "libzstd-dev", zstd_open, zstd_close, zstd_read},
};
enum { PACKINGS = sizeof packings / sizeof *packings };

static const struct data_packing *packing_of(const uint8_t *head, size_t bytes)
{
    for (size_t i = 0; i < PACKINGS; i++)
        if (bytes >= packings[i].magic_bytes && memcmp(head, packings[i].magic, packings[i].magic_bytes) == 0)
            return &packings[i];
    return NULL;
}

bool data_is_packed(const uint8_t *head, size_t bytes)
{
    return packing_of(head, bytes) != NULL;
}

bool data_name_ends(const char *name, size_t bytes, const char *endings)
{
    for (const char *at = endings; *at; at += strspn(at, " ")) {
        const size_t ending = strcspn(at, " ");
        if (bytes > ending && strncasecmp(name + bytes - ending, at, ending) == 0) return true;
        at += ending;
    }
    return false;
}

size_t data_name_bytes(const char *path)
{
    size_t bytes = strlen(path);
    for (size_t i = 0; i < PACKINGS; i++)
        if (data_name_ends(path, bytes, packings[i].endings)) return (size_t)(strrchr(path, '.') - path);
    return bytes;
}

/* ---- formats that are refused ---- */

static const struct {
    const char *magic;
    size_t bytes, at;
    const char *what, *remedy; /* the remedy has the file's name for each %s, which it takes twice */
} foreign[] = {
    {"PAR1", 4, 0, "a Parquet file",
     "convert it: python3 -c \"import pandas; pandas.read_parquet('%s').to_json('%s.jsonl', orient='records', "
     "lines=True)\""},
    {"ARROW1", 6, 0, "an Arrow file",
     "convert it: python3 -c \"import pandas; pandas.read_feather('%s').to_json('%s.jsonl', orient='records', "
     "lines=True)\""},
    {"\xff\xff\xff\xff", 4, 0, "an Arrow stream",
     "convert it: python3 -c \"from datasets import Dataset; Dataset.from_file('%s').to_json('%s.jsonl')\""},
    {"PK\x03\x04", 4, 0, "a zip archive, as .xlsx is one",
     "unpack it, or save the sheet as CSV: unzip '%s' -d '%s.files'"},
    {"\xfd" "7zXZ\0", 6, 0, "packed by xz", "unpack it: xz -dc '%s' > '%s.unpacked'"},
    {"1AY&SY", 6, 4, "packed by bzip2", "unpack it: bzip2 -dc '%s' > '%s.unpacked'"},
    {"\x04\x22\x4d\x18", 4, 0, "packed by lz4", "unpack it: lz4 -dc '%s' > '%s.unpacked'"},
    {"\xff\xfe", 2, 0, "UTF-16", "convert it: iconv -f UTF-16 -t UTF-8 '%s' > '%s.utf8'"},
    {"\xfe\xff", 2, 0, "UTF-16", "convert it: iconv -f UTF-16 -t UTF-8 '%s' > '%s.utf8'"},
};

enum aq_status data_check_format(const char *path, const uint8_t *head, size_t bytes)
{
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++) {
        char remedy[2 * AQ_ERROR_BYTES];
        if (bytes < foreign[i].at + foreign[i].bytes) continue;
        if (memcmp(head + foreign[i].at, foreign[i].magic, foreign[i].bytes) != 0) continue;
        if (foreign[i].at == 4 && memcmp(head, "BZh", 3) != 0) continue;
        size_t used = 0;
        for (const char *at = foreign[i].remedy; *at && used + 1 < sizeof remedy; at++) {
            const bool name = at[0] == '%' && at[1] == 's';
            const size_t more = name ? strlen(path) : 1;
            if (more >= sizeof remedy - used) break;
            memcpy(remedy + used, name ? path : at, more);
            used += more;
            at += name;
        }
        remedy[used] = 0;
        return aq_fail(AQ_CORRUPT, AREA, "%s: is %s, which is not read here; %s", path, foreign[i].what, remedy);
    }
    static const char pointer[] = "version https://git-lfs.github.com/spec/";
    if (bytes < sizeof pointer || memcmp(head, pointer, sizeof pointer - 1) != 0) return AQ_OK;
    return aq_file_check(AREA, path, head, bytes);
}

size_t data_mark(const uint8_t *head, size_t bytes)
{
    return bytes >= 3 && memcmp(head, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
}

/* ---- the stream ---- */

/* More of the file into `in`, all of which was taken. */
static enum aq_status refill(struct data_bytes *bytes)
{
    const ssize_t got = aq_read_all(bytes->file, bytes->in, IN_BYTES);
    if (got < 0) {
        (void)aq_fail_errno(AREA, "%s: cannot be read", bytes->path);
        return AQ_IO;
    }
    bytes->taken += bytes->count;
    bytes->at = 0;
    bytes->count = (size_t)got;
    bytes->ended = bytes->count < IN_BYTES;
    return AQ_OK;
}

static enum aq_status check_bounds(const struct data_bytes *bytes)
{
    const uint64_t taken = bytes->taken + bytes->at;
    if (!bytes->packing) return AQ_OK;
    if (bytes->given > DATA_UNPACKED_MAX)
        return aq_fail(AQ_INVAL, AREA, "%s: has more than %llu GiB: cut it into several files", bytes->path,
                       (unsigned long long)(DATA_UNPACKED_MAX >> 30));
    if (bytes->given <= DATA_RATIO_FREE || bytes->given / DATA_RATIO_MAX <= taken) return AQ_OK;
    return aq_fail(AQ_INVAL, AREA,
                   "%s: unpacks to more than %llu times its bytes, as no text does; if that is right, unpack it first",
                   bytes->path, (unsigned long long)DATA_RATIO_MAX);
}

static enum aq_status read_packed(struct data_bytes *bytes, uint8_t *to, size_t room, size_t *got)
{
    for (;;) { /* ends: each turn takes from the file, or gives, or is at its end */
        const size_t before = bytes->at;
        AQ_TRY(bytes->packing->read(bytes, to, room, got));
        if (*got > 0) return AQ_OK;
        if (bytes->at < bytes->count) {
            if (bytes->at == before) return damaged(bytes, "it cannot be unpacked further");
            continue;
        }
        if (bytes->ended) return bytes->within ? damaged(bytes, "it ends in the middle") : AQ_OK;
        AQ_TRY(refill(bytes));
    }
}

static enum aq_status read_plain(struct data_bytes *bytes, uint8_t *to, size_t room, size_t *got)
{
    if (bytes->at == bytes->count && !bytes->ended) AQ_TRY(refill(bytes));
    *got = bytes->count - bytes->at < room ? bytes->count - bytes->at : room;
    memcpy(to, bytes->in + bytes->at, *got);
    bytes->at += *got;
    return AQ_OK;
}

enum aq_status data_bytes_read(struct data_bytes *bytes, uint8_t *to, size_t room, size_t *got)
{
    AQ_ASSERT(room > 0);
    *got = 0;
    if (bytes->done) return AQ_OK;
    AQ_TRY(bytes->packing ? read_packed(bytes, to, room, got) : read_plain(bytes, to, room, got));
    bytes->done = *got == 0;
    bytes->given += *got;
    return check_bounds(bytes);
}

bool data_bytes_packed(const struct data_bytes *bytes)
{
    return bytes->packing != NULL;
}

static enum aq_status begin(struct data_bytes *bytes)
{
    AQ_TRY(aq_given_whole(AREA, bytes->path, bytes->file));
    AQ_TRY(aq_alloc_at(IN_BYTES, &bytes->in));
    AQ_TRY(refill(bytes));
    AQ_TRY(data_check_format(bytes->path, bytes->in, bytes->count));
    const struct data_packing *packing = packing_of(bytes->in, bytes->count);
    if (packing && !packing->open)
        return aq_fail(AQ_NODEV, AREA,
                       "%s: is packed by %s, which this build cannot unpack: unpack it, or build aqpipe with %s",
                       bytes->path, packing->name, packing->lacks);
    if (!packing) return AQ_OK;
    bytes->packing = packing;
    bytes->within = true;
    return packing->open(bytes);
}

enum aq_status data_bytes_open(const char *path, struct data_bytes **out)
{
    struct data_bytes *bytes;
    AQ_TRY(AQ_NEW(1, &bytes));
    *bytes = (struct data_bytes){.path = path, .file = -1};
    enum aq_status status = aq_given_open(AREA, path, &bytes->file);
    if (status == AQ_OK) status = begin(bytes);
    if (status == AQ_OK)
        *out = bytes;
    else
        data_bytes_close(bytes);
    return status;
}

void data_bytes_close(struct data_bytes *bytes)
{
    if (!bytes) return;
    if (bytes->packing && bytes->state) bytes->packing->close(bytes);
    if (bytes->file >= 0) close(bytes->file);
    aq_free(bytes->in);
    aq_free(bytes);
}
