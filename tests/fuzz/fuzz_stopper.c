/*
 * fuzz_stopper.c -- any bytes as stop words and as what a model writes: what is shown is UTF-8, and the same however
 * the text is cut.
 *
 * Stop words with line feeds between, ff, then the text with fe where it is cut (neither is in any UTF-8).
 */
#include <jansson.h>
#include <string.h>

#include "fuzz.h"
#include "stages/sampling.h"

enum { WORDS_MAX = 8, WORD_BYTES = 64, TEXT_BYTES = 1 << 12, SHOWN_BYTES = 3 * TEXT_BYTES };

struct shown {
    char text[SHOWN_BYTES];
    size_t bytes;
    bool stopped;
};

static void keep(struct shown *all, const struct aq_stopper_text *piece)
{
    AQ_ASSERT(all->bytes + piece->bytes <= sizeof all->text);
    memcpy(all->text + all->bytes, piece->text, piece->bytes);
    all->bytes += piece->bytes;
    all->stopped = piece->stopped;
}

static void run(const char *const *words, uint32_t count, struct fuzz_piece text, bool pieces, struct shown *out)
{
    static char joined[TEXT_BYTES];
    struct aq_stopper *stopper;
    struct aq_stopper_text shown;
    size_t bytes = 0;
    out->bytes = 0;
    AQ_ASSERT(aq_stopper_open(words, count, &stopper) == AQ_OK);
    while (text.count > 0) {
        const struct fuzz_piece piece = fuzz_cut(&text, 0xfe);
        if (pieces) {
            AQ_ASSERT(aq_stopper_put(stopper, piece.bytes, piece.count, &shown) == AQ_OK);
            keep(out, &shown);
        } else if (piece.count) {
            memcpy(joined + bytes, piece.bytes, piece.count);
            bytes += piece.count;
        }
    }
    if (!pieces) {
        AQ_ASSERT(aq_stopper_put(stopper, joined, bytes, &shown) == AQ_OK);
        keep(out, &shown);
    }
    AQ_ASSERT(aq_stopper_end(stopper, &shown) == AQ_OK);
    keep(out, &shown);
    aq_stopper_close(stopper);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char words[WORDS_MAX][WORD_BYTES];
    static struct shown cut, whole;
    const char *list[WORDS_MAX];
    uint32_t count = 0;
    struct fuzz_piece rest = {data, size}, head = fuzz_cut(&rest, 0xff);
    fuzz_quiet();
    if (rest.count > TEXT_BYTES) return 0;
    while (head.count > 0 && count < WORDS_MAX) {
        const struct fuzz_piece word = fuzz_cut(&head, '\n');
        if (word.count == 0 || word.count >= WORD_BYTES || memchr(word.bytes, 0, word.count)) continue;
        memcpy(words[count], word.bytes, word.count);
        words[count][word.count] = 0;
        list[count] = words[count];
        count++;
    }
    run(list, count, rest, true, &cut);
    run(list, count, rest, false, &whole);
    AQ_ASSERT(cut.stopped == whole.stopped && cut.bytes == whole.bytes &&
              (cut.bytes == 0 || memcmp(cut.text, whole.text, cut.bytes) == 0));
    json_t *checked = json_stringn(whole.text, whole.bytes);
    AQ_ASSERT(checked);
    json_decref(checked);
    fuzz_told(!whole.stopped);
    return 0;
}
