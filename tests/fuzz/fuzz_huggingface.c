/*
 * fuzz_huggingface.c -- any bytes as tokenizer.json, and any text through what is taken.
 *
 * Three pieces with ff between them (which JSON does not take): the file, the list of merges, a text. A file that
 * begins with + is the members of the object but the model ("normalizer": ...): that one is made here with the 256
 * entries for single bytes that byte-level vocabularies must have and the list of merges, so that inputs stay small.
 */
#include <stdio.h>
#include <string.h>

#include "data_files.h"
#include "fuzz.h"
#include "stages/dataset.h"

enum { BYTES_MAX = 1 << 12, TEXT_MAX = 512, FILE_BYTES_MAX = BYTES_MAX + 16384 };

static size_t single_bytes(char *out)
{
    size_t at = 0;
    for (unsigned byte = 0; byte < 256; byte++) {
        char writing[3];
        const char *character = data_writing(byte, writing);
        const char *escape = *character == '"' || *character == '\\' ? "\\" : "";
        at += (size_t)snprintf(out + at, 64, "%s\"%s%s\": %d", byte ? ", " : "", escape, character,
                               data_byte_token(byte));
    }
    /* What merges can make. */
    at += (size_t)snprintf(out + at, 64, ", \"aa\": 256, \"aaa\": 257, \"ab\": 258, \"aab\": 259");
    return at;
}

static void write_file(struct fuzz_piece head, struct fuzz_piece merges)
{
    static char file[FILE_BYTES_MAX];
    if (head.count == 0 || head.bytes[0] != '+') {
        fuzz_write("tokenizer.json", head.bytes, head.count);
        return;
    }
    size_t at = (size_t)snprintf(file, sizeof file, "{");
    memcpy(file + at, head.bytes + 1, head.count - 1);
    at += head.count - 1;
    at += (size_t)snprintf(file + at, 80, "%s\"model\": {\"type\": \"BPE\", \"vocab\": {", head.count > 1 ? ", " : "");
    at += single_bytes(file + at);
    at += (size_t)snprintf(file + at, 32, "}, \"merges\": [");
    memcpy(file + at, merges.bytes, merges.count);
    at += merges.count;
    at += (size_t)snprintf(file + at, 8, "]}}");
    fuzz_write("tokenizer.json", file, at);
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
    const struct fuzz_piece head = fuzz_cut(&rest, 0xff), merges = fuzz_cut(&rest, 0xff);
    write_file(head, merges);
    const enum aq_status status = aq_tokenizer_open("huggingface", fuzz_folder(), &tokenizer);
    fuzz_told(status == AQ_OK);
    if (status != AQ_OK) {
        AQ_ASSERT(status == AQ_CORRUPT || status == AQ_INVAL);
        return 0;
    }
    AQ_ASSERT(aq_tokenizer_end_of_text(tokenizer) < (int32_t)aq_tokenizer_vocabulary(tokenizer));
    if (rest.count > TEXT_MAX) rest.count = TEXT_MAX;
    const enum aq_status encoded =
        aq_tokenizer_encode(tokenizer, (const char *)rest.bytes, rest.count, &tokens, &count);
    if (encoded == AQ_OK) {
        AQ_ASSERT(aq_tokenizer_decode(tokenizer, tokens, count, &back, &bytes) == AQ_OK);
        aq_free(tokens);
        aq_free(back);
    } else
        AQ_ASSERT(encoded == AQ_INVAL); /* a pattern that takes too long */
    aq_tokenizer_close(tokenizer);
    return 0;
}
