/* split_key.c -- see the header. */
#include "split_key.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "run_folder.h"
#include "runtime_text.h"
#include "seal.h"

enum { PIECE = 4096, PIECES_MAX = 64 };

/* SHA-256 of the authority's certificate, as text: whose job it is. */
static enum aq_status authority(const char *keys, char text[AQ_HASH_TEXT_BYTES])
{
    char path[AQ_RUN_PATH_BYTES], piece[PIECE];
    struct aq_hash *hash;
    ssize_t got = 1;
    int fd;
    AQ_TRY(aq_run_path(keys, "authority.pem", path));
    AQ_TRY(aq_file_open(NULL, path, AQ_FILE_READ, &fd));
    enum aq_status status = aq_hash_open(&hash);
    if (status == AQ_OK) {
        aq_hash_begin(hash);
        for (int i = 0; i < PIECES_MAX && got > 0; i++) {
            got = aq_read_all(fd, piece, sizeof piece);
            if (got > 0) aq_hash_add(hash, piece, (size_t)got);
        }
        aq_hash_end(hash, text);
        aq_hash_close(hash);
        if (got < 0) status = aq_fail_errno("split", "cannot read %s", path);
    }
    close(fd);
    return status;
}

/* Whole under its name, or not there: whoever is killed here makes another one later. */
static enum aq_status make(const char *file)
{
    char aside[AQ_RUN_PATH_BYTES];
    if (snprintf(aside, sizeof aside, "%s.new", file) >= (int)sizeof aside)
        return aq_fail(AQ_INVAL, "split", "the path %s is too long", file);
    AQ_TRY(aq_file_remove(NULL, aside));
    AQ_TRY(aq_seal_key_make(aside));
    AQ_TRY(aq_file_rename(NULL, aside, file));
    return aq_run_sync_folder_of(file);
}

enum aq_status aq_split_key(const char *file, const char *keys, const char *name, bool *made,
                            char out[AQ_SPLIT_KEY_TEXT_BYTES])
{
    char whose[AQ_HASH_TEXT_BYTES];
    uint8_t own[AQ_SEAL_KEY_BYTES], derived[AQ_SEAL_KEY_BYTES];
    struct aq_text about = {0};
    AQ_TRY(authority(keys, whose));
    *made = access(file, F_OK) != 0;
    if (*made) AQ_TRY(make(file));
    AQ_TRY(aq_seal_key_load(file, own));
    aq_text_add(&about, "aqpipe split cache 1\n%s\n%s\n", whose, name);
    enum aq_status status = about.status;
    if (status == AQ_OK) status = aq_seal_key_derive(own, aq_text_of(&about), derived);
    aq_text_deinit(&about);
    if (status == AQ_OK) aq_hex(derived, sizeof derived, out);
    explicit_bzero(own, sizeof own);
    explicit_bzero(derived, sizeof derived);
    return status;
}
