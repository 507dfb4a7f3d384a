/*
 * data_files.h -- files for the tests of the data room: a folder that goes away, a small GPT-2 vocabulary, shared data.
 */
#ifndef TESTS_DATA_FILES_H
#define TESTS_DATA_FILES_H

#include <stdbool.h>
#include <stddef.h>

enum { DATA_PATH_BYTES = 4096 };

/* A new empty folder; aborts where there can be none. */
void data_folder_open(char folder[DATA_PATH_BYTES]);
/* Removes it with the files in it. */
void data_folder_close(const char *folder);

/* folder/name into path. */
const char *data_path(const char *folder, const char *name, char path[DATA_PATH_BYTES]);
void data_write(const char *folder, const char *name, const void *bytes, size_t count);
void data_write_text(const char *folder, const char *name, const char *text);

/* The vocabulary of the tests: 256 bytes in GPT-2's order, one token for every merge ("left right"), <|endoftext|>. */
void data_write_vocabulary(const char *folder, const char *const *merges, size_t count);
/* The same as tokenizer.json, without <|endoftext|>: head has the other members of the file ("\"normalizer\": null"),
 * model more of the model's ("\"ignore_merges\": true, ") or nothing. */
void data_write_tokenizer_json(const char *folder, const char *head, const char *model, const char *const *merges,
                               size_t count);
/*
 * A SentencePiece model, spm.model: <unk>, <s>, </s>, the 256 bytes, and pieces (U+2581 is a space) whose scores are
 * -1, -2 and so on. Its normalizer does nothing.
 */
void data_write_spm(const char *folder, const char *const *pieces, size_t count);
/* The character that stands for a byte in vocab.json, as UTF-8: written here apart from the library's own. */
const char *data_writing(unsigned byte, char out[3]);
/* The token of a byte in that vocabulary. */
int data_byte_token(unsigned byte);

/* The file `name` of the shared data (AQ_SHARED, else ../shared beside the source); false, with the reason printed. */
bool data_shared(const char *name, char path[DATA_PATH_BYTES]);

/* Errors that a test provokes are not printed from now on. */
void data_be_quiet(void);

#endif
