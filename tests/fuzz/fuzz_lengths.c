/*
 * fuzz_lengths.c -- any text as the lengths of a data set's samples. Bytes 0 and 1: how many; byte 2: the bits of the
 * longest; then the text.
 */
#include <string.h>

#include "fuzz.h"
#include "lengths.h"

enum { COUNT_MAX = 4096, TEXT_MAX = 1 << 15 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint32_t lengths[COUNT_MAX];
    static char text[TEXT_MAX + 1];
    struct fuzz_piece rest = {data, size};
    fuzz_quiet();
    const uint64_t count = (fuzz_byte(&rest) * 256u + fuzz_byte(&rest)) % COUNT_MAX;
    const uint32_t most = (UINT32_C(1) << fuzz_byte(&rest) % 21) + 1;
    const size_t bytes = rest.count < TEXT_MAX ? rest.count : TEXT_MAX;
    if (bytes) memcpy(text, rest.bytes, bytes);
    text[bytes] = 0;
    const enum aq_status status = aq_lengths_read(text, count, most, lengths);
    fuzz_told(status == AQ_OK);
    AQ_ASSERT(status == AQ_OK || status == AQ_PROTO);
    if (status != AQ_OK) return 0;
    char *again;
    for (uint64_t i = 0; i < count; i++)
        AQ_ASSERT(lengths[i] >= 1 && lengths[i] <= most);
    AQ_ASSERT(aq_lengths_write(lengths, count, most, &again) == AQ_OK);
    AQ_ASSERT(strcmp(again, text) == 0);
    aq_free(again);
    return 0;
}
