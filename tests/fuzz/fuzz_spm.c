/*
 * fuzz_spm.c -- any bytes as spm.model, and any text through what is taken: the first byte says how long the text is,
 * which stands behind it; the rest is the model. What our look at a model lets pass goes to SentencePiece's library.
 */
#include "fuzz.h"
#include "stages/dataset.h"

enum { BYTES_MAX = 1 << 14 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct aq_tokenizer *tokenizer;
    int32_t *tokens;
    size_t count, bytes;
    char *back;
    fuzz_quiet();
    if (size < 1 || size > BYTES_MAX || data[0] >= size) return 0;
    const size_t text = data[0];
    fuzz_write("spm.model", data + 1 + text, size - 1 - text);
    const enum aq_status status = aq_tokenizer_open("sentencepiece", fuzz_folder(), &tokenizer);
    fuzz_told(status == AQ_OK || status == AQ_NODEV); /* without the library nothing can be taken */
    if (status != AQ_OK) {
        AQ_ASSERT(status == AQ_CORRUPT || status == AQ_NODEV);
        return 0;
    }
    if (aq_tokenizer_encode(tokenizer, (const char *)data + 1, text, &tokens, &count) == AQ_OK) {
        AQ_ASSERT(aq_tokenizer_decode(tokenizer, tokens, count, &back, &bytes) == AQ_OK);
        aq_free(tokens);
        aq_free(back);
    }
    aq_tokenizer_close(tokenizer);
    return 0;
}
