/*
 * tokenize_lines.c -- KIND FOLDER FILE: the tokens of each text of FILE, a line of numbers a text, for
 * test_tokenizer_reference. A text stands behind its length, four bytes little-endian. With --time in place of FILE's
 * texts FILE is one text, and its rate is printed: MB a second, the best of seven.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "stages/dataset.h"

static int one_text(const struct aq_tokenizer *t, const char *text, size_t bytes)
{
    int32_t *tokens;
    size_t count;
    if (aq_tokenizer_encode(t, text, bytes, &tokens, &count) != AQ_OK) return 1;
    for (size_t i = 0; i < count; i++)
        printf("%d ", (int)tokens[i]);
    printf("\n");
    aq_free(tokens);
    return 0;
}

static int time_text(const struct aq_tokenizer *t, const char *text, size_t bytes)
{
    uint64_t best = UINT64_MAX;
    for (int i = 0; i < 7; i++) {
        int32_t *tokens;
        size_t count;
        const uint64_t begin = aq_clock_ns();
        if (aq_tokenizer_encode(t, text, bytes, &tokens, &count) != AQ_OK) return 1;
        if (aq_clock_ns() - begin < best) best = aq_clock_ns() - begin;
        aq_free(tokens);
    }
    printf("%.1f\n", 1e3 * (double)bytes / (double)best);
    return 0;
}

int main(int argc, char **argv)
{
    struct aq_tokenizer *t;
    char *text;
    size_t count, at = 0;
    int failed = 0;
    if (argc < 4 || aq_tokenizer_open(argv[1], argv[2], &t) != AQ_OK) return 1;
    if (aq_file_load(NULL, argv[3], (size_t)1 << 32, &text, &count) != AQ_OK) return 1;
    if (argc > 4 && strcmp(argv[4], "--time") == 0) failed = time_text(t, text, count);
    while (argc == 4 && !failed && at + 4 <= count) {
        uint32_t bytes;
        memcpy(&bytes, text + at, 4);
        failed = bytes > count - at - 4 || one_text(t, text + at + 4, bytes);
        at += 4 + (size_t)bytes;
    }
    aq_free(text);
    aq_tokenizer_close(t);
    return failed;
}
