/*
 * text_tokens.h -- the tokens of text files, in pieces on all cores, and kept in a file.
 *
 *     text files, mapped --text_tokens.c--> pieces of some MiB, a thread each --> tokens in order --> memory, or
 *     packed ones, a window at a time                            <cache folder>/<key>.tokens --text_cache.c--> mapped
 *
 * A piece ends behind a line, where tokenizing the 4 KiB on each side separately gives the same tokens as both joined:
 * so pieces give the tokens of the whole text, for tokenizers that allow such cuts; others get one piece. The cuts
 * depend only on the text and the tokenizer: any number of threads gives the same tokens.
 *
 * A file of tokens (format "aqpipe tokens 1"; numbers little-endian):
 *
 *     offset 0    8 bytes   "AQTOKENS"
 *            8    4         version, 1
 *           12    4         0
 *           16    8         key: digest of texts, tokenizer and settings; the file's name has it, too
 *           24    8         count of tokens
 *           32    8         digest of the tokens
 *           40    8         digest of bytes 0 .. 39
 *           48   16         0
 *           64    4 each    tokens
 *
 * It is written under a temporary name and renamed when it is whole and on disk; a reader checks length and both
 * digests. A damaged file is made again; a file of that name that does not start with AQTOKENS is another program's and
 * stays. Nothing else in the folder is read.
 *
 * Caveat: texts and tokens are mapped, not loaded, so that 100 GB of them need no memory. A file that is cut short
 * while it is mapped ends the process (SIGBUS): do not write to it during a run.
 *
 * Locking: one thread calls; it starts and ends others.
 */
#ifndef TEXT_TOKENS_H
#define TEXT_TOKENS_H

#include "data_faults.h"
#include "data_roles.h"
#include "tokenizer.h"

struct data_bytes;

/* A file's bytes, mapped. */
struct text_map {
    const uint8_t *at; /* NULL: it is empty */
    size_t bytes;
};
/* AQ_NOTFOUND, AQ_IO: names the file. */
enum aq_status text_map_open(const char *path, struct text_map *out);
void text_map_close(struct text_map *map);

/* The target of tokens: memory that grows, or a file, behind its head. */
struct text_sink {
    struct aq_token_list list;
    int file; /* -1: into memory */
    uint64_t count;
    uint64_t limit; /* reading ends behind this many tokens, or some pieces later; 0: at the end of the text */
    bool unwritten; /* the file does not take them: the texts are not to blame */
    char aside[64]; /* its name in the cache folder, until it is whole         */
};
/* How many of them memory may take: half of it. */
size_t text_numbers_max(void);
enum aq_status text_sink_add(struct text_sink *sink, const int32_t *tokens, size_t count);

/*
 * A text of which [at, at + bytes) are in memory: all that is left of a mapped file, or a window of a packed one, which
 * grows where no cut is in it (to TEXT_WINDOW_MAX bytes) and moves on behind the pieces that are done.
 */
struct text_source {
    const char *path; /* for messages */
    const uint8_t *at;
    size_t bytes;
    bool whole;               /* nothing follows */
    struct data_bytes *rest;  /* of a window; else NULL */
    uint8_t *window;          /* memory of aq_alloc */
    size_t room;
};
#define TEXT_WINDOW_MAX ((size_t)1 << 30)
void text_source_mapped(const char *path, const struct text_map *map, struct text_source *out);
/* Statuses of data_bytes_open. */
enum aq_status text_source_packed(const char *path, struct text_source *out);
void text_source_close(struct text_source *source);

/* How a text becomes tokens. */
struct text_how {
    const struct aq_tokenizer *tokenizer;
    bool lines;       /* JSON lines: the text of each */
    uint32_t threads; /* 0: all cores */
    const struct data_roles *roles;
    struct data_faults *faults; /* bad lines are noted here */
};

/* The tokens of a text, in order, to the sink. Ends early where the faults are over. */
enum aq_status text_tokens(const struct text_how *how, struct text_source *source, struct text_sink *sink);

/* Those of the records of a form that is no lines, one after the other. */
struct data_reader;
enum aq_status text_records(const struct text_how *how, struct data_reader *file, const char *path,
                            struct text_sink *sink);

/* All tokens, as a reader has them. */
struct text_ids {
    const int32_t *at;
    uint64_t count;
    void *owned;     /* memory of aq_alloc, or NULL */
    uint8_t *mapped; /* a file, or NULL             */
    size_t mapped_bytes;
};
void text_ids_close(struct text_ids *ids);

/* AQ_NOTFOUND (not logged): no file, or a damaged one, with a logged warning. */
enum aq_status text_cache_get(const char *folder, uint64_t key, struct text_ids *out);
/* A file to write tokens to, behind its head. AQ_REFUSED: a file of that name is not ours. AQ_IO, AQ_NOSPC. */
enum aq_status text_cache_begin(const char *folder, uint64_t key, struct text_sink *out);
/* Head, disk, name. Closes the sink's file whatever happens. */
enum aq_status text_cache_end(const char *folder, uint64_t key, struct text_sink *sink);
/* The sink failed: its file goes. */
void text_cache_drop(const char *folder, struct text_sink *sink);

#endif
