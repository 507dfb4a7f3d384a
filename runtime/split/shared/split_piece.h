/*
 * split_piece.h -- a file in lines of the control channel: pieces of 1 MiB in base64, in order, and a file again.
 *
 *     {"<key>":"ends" or "labels","rank":r,"offset":o,"of":bytes,"data":base64}
 *
 * Locking: one object, one thread.
 */
#ifndef RUNTIME_SPLIT_PIECE_H
#define RUNTIME_SPLIT_PIECE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "aqsgd/base.h"

/* A file on its way out. */
struct aq_split_out {
    int fd; /* -1: none is open */
    uint32_t rank;
    uint64_t at, of;
    const char *word; /* the kind that the line names */
};

/* AQ_NOTFOUND, AQ_IO. */
enum aq_status aq_split_out_open(struct aq_split_out *out, const char *path, const char *word, uint32_t rank);
/* The next line of it, a new reference; `key` is "op" or "event". *last: there is no other. AQ_IO: the file changed. */
enum aq_status aq_split_out_line(struct aq_split_out *out, const char *key, json_t **line, bool *last);
void aq_split_out_close(struct aq_split_out *out);

/* A file on its way in: written to `path`.part. */
#define AQ_SPLIT_PART ".part"
struct aq_split_in {
    int fd;       /* -1: none is open */
    char *buffer; /* AQ_SPLIT_PIECE_BYTES and a little */
};
enum aq_status aq_split_in_open(struct aq_split_in *in); /* takes the buffer */
/* Append the decoded bytes of the text. *bytes: their count. AQ_PROTO: it is no base64, or too long. AQ_NOSPC,
 * AQ_IO. */
enum aq_status aq_split_in_piece(struct aq_split_in *in, const char *path, uint64_t offset, const char *data,
                                 uint64_t *bytes);
/* All is there: synced, and under its name. */
enum aq_status aq_split_in_done(struct aq_split_in *in, const char *path);
void aq_split_in_close(struct aq_split_in *in); /* an incomplete file stays aside, and is started again */

/* A copy of one of our files, synced, under its name. */
enum aq_status aq_split_copy(const char *from, const char *to);

#endif
