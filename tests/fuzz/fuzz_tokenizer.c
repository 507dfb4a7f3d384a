/*
 * fuzz_tokenizer.c -- any bytes as vocab.json and merges.txt of a GPT-2 tokenizer, and any text through what is taken.
 *
 * Three pieces with ff between them (which JSON does not take): the vocabulary, the merges, a text. A vocabulary that
 * begins with + is put behind the 256 entries for single bytes that every vocabulary must have, so that inputs stay
 * small.
 */
#include <stdio.h>
#include <string.h>

#include "data_files.h"
#include "fuzz.h"
#include "stages/dataset.h"

enum { BYTES_MAX = 1 << 16, FILE_BYTES_MAX = BYTES_MAX + 8192 };

/* The opening brace and the entries of the 256 bytes, each with the id that it has in the tests' vocabulary. */
static size_t single_bytes(char *out)
{
    size_t at = 0;
    out[at++] = '{';
    for (unsigned byte = 0; byte < 256; byte++) {
        char writing[3];
        const char *character = data_writing(byte, writing);
        const char *escape = *character == '"' || *character == '\\' ? "\\" : "";
        at += (size_t)snprintf(out + at, 64, "%s\"%s%s\": %d", byte ? ", " : "", escape, character,
                               data_byte_token(byte));
    }
    return at;
}

static void write_vocabulary(struct fuzz_piece piece)
{
    static char file[FILE_BYTES_MAX];
    static size_t head;
    if (piece.count == 0 || piece.bytes[0] != '+') {
        fuzz_write("vocab.json", piece.bytes, piece.count);
        return;
    }
    if (head == 0) head = single_bytes(file);
    memcpy(file + head, piece.bytes + 1, piece.count - 1);
    file[head + piece.count - 1] = '}';
    fuzz_write("vocab.json", file, head + piece.count);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct aq_tokenizer *tokenizer;
    struct fuzz_piece rest = {data, size};
    int32_t *tokens;
    size_t count, bytes;
    char *back;
    fuzz_quiet();
    if (size > BYTES_MAX) return 0;
    write_vocabulary(fuzz_cut(&rest, 0xff));
    const struct fuzz_piece merges = fuzz_cut(&rest, 0xff);
    fuzz_write("merges.txt", merges.bytes, merges.count);
    const enum aq_status status = aq_tokenizer_open("gpt2", fuzz_folder(), &tokenizer);
    fuzz_told(status == AQ_OK);
    if (status != AQ_OK) {
        AQ_ASSERT(status == AQ_CORRUPT);
        return 0;
    }
    AQ_ASSERT(aq_tokenizer_end_of_text(tokenizer) < (int32_t)aq_tokenizer_vocabulary(tokenizer));
    AQ_ASSERT(aq_tokenizer_encode(tokenizer, (const char *)rest.bytes, rest.count, &tokens, &count) == AQ_OK);
    for (size_t i = 0; i < count; i++)
        AQ_ASSERT(tokens[i] >= 0 && (uint32_t)tokens[i] < aq_tokenizer_vocabulary(tokenizer));
    AQ_ASSERT(aq_tokenizer_decode(tokenizer, tokens, count, &back, &bytes) == AQ_OK);
    AQ_ASSERT(bytes == rest.count && (bytes == 0 || memcmp(back, rest.bytes, bytes) == 0));
    aq_free(tokens);
    aq_free(back);
    aq_tokenizer_close(tokenizer);
    return 0;
}
