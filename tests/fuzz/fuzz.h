/*
 * fuzz.h -- what the fuzz targets share: inputs cut into pieces, files in a folder that goes away, a quiet log.
 *
 * A target says of each input whether its reader took or refused it (fuzz_told). The replay demands that both have
 * happened: a corpus of which everything is refused at the front door tests nothing any more.
 *
 * Locking: one thread.
 */
#ifndef TESTS_FUZZ_H
#define TESTS_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "aqsgd/base.h"

/* What each target defines. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Log lines go nowhere from now on: a fuzzer provokes thousands a second. */
void fuzz_quiet(void);

/* A folder of this process, below AQ_FUZZ_FOLDER, /dev/shm or /tmp; its files and one level of folders go at exit. */
const char *fuzz_folder(void);
/* folder/name; good until the next but three calls. */
const char *fuzz_path(const char *name);
/* Write folder/name. Aborts where that fails: it is the machine's trouble. */
void fuzz_write(const char *name, const void *bytes, size_t count);
void fuzz_make_folder(const char *name);

/* Where the next piece of an input begins and ends: the bytes up to `mark`, which is left out. */
struct fuzz_piece {
    const uint8_t *bytes;
    size_t count;
};
struct fuzz_piece fuzz_cut(struct fuzz_piece *rest, uint8_t mark);
/* The next byte of an input; 0 behind its end. */
uint8_t fuzz_byte(struct fuzz_piece *rest);

void fuzz_told(bool taken);
uint64_t fuzz_taken(void);
uint64_t fuzz_refused(void);

#endif
