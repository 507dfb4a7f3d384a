/* split_piece.c -- see the header. base64 is OpenSSL's. */
#include "split_piece.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "run_folder.h"
#include "split_session.h"

enum {
    TEXT_BYTES = (AQ_SPLIT_PIECE_BYTES + 2) / 3 * 4, /* of a whole piece */
    ROOM = AQ_SPLIT_PIECE_BYTES + 64
};

static const char *const AREA = "split";

enum aq_status aq_split_out_open(struct aq_split_out *out, const char *path, const char *word, uint32_t rank)
{
    struct stat about;
    *out = (struct aq_split_out){.fd = -1, .rank = rank, .word = word};
    int fd;
    AQ_TRY(aq_file_open(NULL, path, AQ_FILE_READ, &fd));
    if (fstat(fd, &about) != 0 || about.st_size <= 0) {
        close(fd);
        return aq_fail(AQ_IO, AREA, "%s cannot be sent: it is empty or missing", path);
    }
    out->fd = fd;
    out->of = (uint64_t)about.st_size;
    return AQ_OK;
}

enum aq_status aq_split_out_line(struct aq_split_out *out, const char *key, json_t **line, bool *last)
{
    void *memory;
    const uint64_t left = out->of - out->at, take = left < AQ_SPLIT_PIECE_BYTES ? left : AQ_SPLIT_PIECE_BYTES;
    AQ_TRY(aq_alloc(ROOM + TEXT_BYTES + 1, &memory));
    unsigned char *plain = memory, *text = plain + ROOM;
    const ssize_t got = aq_read_all(out->fd, plain, (size_t)take);
    enum aq_status status = AQ_OK;
    if (got != (ssize_t)take) {
        status = aq_fail(AQ_IO, AREA, "file %u of its %s became shorter while it was sent", out->rank, out->word);
    } else {
        EVP_EncodeBlock(text, plain, (int)take);
        *line = json_pack("{s:s, s:I, s:I, s:I, s:s}", key, out->word, "rank", (json_int_t)out->rank, "offset",
                          (json_int_t)out->at, "of", (json_int_t)out->of, "data", (const char *)text);
        if (!*line) status = aq_fail(AQ_NOMEM, AREA, "no memory for a piece of a file");
        out->at += take;
        *last = out->at == out->of;
    }
    aq_free(memory);
    return status;
}

void aq_split_out_close(struct aq_split_out *out)
{
    if (out->fd != -1) close(out->fd);
    out->fd = -1;
}

enum aq_status aq_split_in_open(struct aq_split_in *in)
{
    *in = (struct aq_split_in){.fd = -1};
    return AQ_NEW(ROOM, &in->buffer);
}

static enum aq_status part_name(const char *path, char out[AQ_RUN_PATH_BYTES])
{
    if (snprintf(out, AQ_RUN_PATH_BYTES, "%s" AQ_SPLIT_PART, path) >= AQ_RUN_PATH_BYTES)
        return aq_fail(AQ_INVAL, AREA, "the path %s is too long", path);
    return AQ_OK;
}

static enum aq_status write_all(int fd, const char *bytes, size_t count)
{
    return aq_write_all(fd, bytes, count) ? AQ_OK : aq_fail_errno(AREA, "cannot write a file of weights");
}

/* -1: it is no base64 of a piece. */
static long decode(const char *data, char *buffer)
{
    const size_t count = strlen(data);
    if (count == 0 || count > TEXT_BYTES || count % 4 != 0) return -1;
    const int got = EVP_DecodeBlock((unsigned char *)buffer, (const unsigned char *)data, (int)count);
    if (got < 0) return -1;
    return (long)got - (data[count - 1] == '=') - (data[count - 2] == '=');
}

enum aq_status aq_split_in_piece(struct aq_split_in *in, const char *path, uint64_t offset, const char *data,
                                 uint64_t *bytes)
{
    char part[AQ_RUN_PATH_BYTES];
    const long got = decode(data, in->buffer);
    if (got <= 0)
        return aq_fail(AQ_PROTO, AREA, "a piece of a file is not base64 of at most %d bytes", AQ_SPLIT_PIECE_BYTES);
    if (offset == 0) {
        aq_split_in_close(&(struct aq_split_in){.fd = in->fd});
        in->fd = -1;
        AQ_TRY(part_name(path, part));
        AQ_TRY(aq_file_open(NULL, part, AQ_FILE_ANEW, &in->fd));
    }
    if (in->fd == -1) return aq_fail(AQ_PROTO, AREA, "a piece of a file came before its first one");
    AQ_TRY(write_all(in->fd, in->buffer, (size_t)got));
    *bytes = (uint64_t)got;
    return AQ_OK;
}

enum aq_status aq_split_in_done(struct aq_split_in *in, const char *path)
{
    char part[AQ_RUN_PATH_BYTES];
    AQ_TRY(part_name(path, part));
    const int fd = in->fd;
    in->fd = -1;
    const bool synced = fd != -1 && fsync(fd) == 0;
    if (fd != -1 && (close(fd) != 0 || !synced)) return aq_fail_errno(AREA, "cannot write %s", part);
    AQ_TRY(aq_file_rename(NULL, part, path));
    return aq_run_sync_folder_of(path);
}

void aq_split_in_close(struct aq_split_in *in)
{
    if (in->fd != -1) close(in->fd);
    in->fd = -1;
    aq_free(in->buffer);
    in->buffer = NULL;
}

enum aq_status aq_split_copy(const char *from, const char *to)
{
    struct aq_split_in in;
    char part[AQ_RUN_PATH_BYTES];
    int fd;
    AQ_TRY(aq_file_open(NULL, from, AQ_FILE_READ, &fd));
    enum aq_status status = aq_split_in_open(&in);
    if (status == AQ_OK) status = part_name(to, part);
    if (status == AQ_OK) status = aq_file_open(NULL, part, AQ_FILE_ANEW, &in.fd);
    for (ssize_t got = 1; status == AQ_OK && got > 0;) {
        got = aq_read_all(fd, in.buffer, AQ_SPLIT_PIECE_BYTES);
        if (got < 0) status = aq_fail_errno(AREA, "cannot read %s", from);
        if (got > 0) status = write_all(in.fd, in.buffer, (size_t)got);
    }
    close(fd);
    if (status == AQ_OK) status = aq_split_in_done(&in, to);
    aq_split_in_close(&in);
    return status;
}
