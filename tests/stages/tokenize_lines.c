/*
 * tokenize_lines.c -- KIND FOLDER FILE [--text | --time]: the tokens of each text of FILE, a line of numbers per text,
 * for test_tokenizer_reference. In FILE each text follows its length, four bytes little-endian.
 *
 * --text  the first line has the tokens before, between and behind texts, with ";" between; and behind each line of
 *         tokens a line has the text that these are, as hexadecimal bytes
 * --time  FILE is one text, and its rate is printed: MB per second of CPU time, the best of seven
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "stages/dataset.h"

static void put_tokens(const int32_t *tokens, size_t count, const char *behind)
{
    for (size_t i = 0; i < count; i++)
        printf("%d ", (int)tokens[i]);
    printf("%s", behind);
}

static void put_frame(const struct aq_tokenizer_frame *frame)
{
    put_tokens(frame->before, frame->before_count, ";");
    put_tokens(frame->between, frame->between_count, ";");
    put_tokens(frame->after, frame->after_count, "\n");
}

static int put_text(const struct aq_tokenizer *t, const int32_t *tokens, size_t count)
{
    char *text;
    size_t bytes;
    if (aq_tokenizer_text(t, tokens, count, &text, &bytes) != AQ_OK) return 1;
    for (size_t i = 0; i < bytes; i++)
        printf("%02x", (unsigned)(uint8_t)text[i]);
    printf("\n");
    aq_free(text);
    return 0;
}

static int one_text(const struct aq_tokenizer *t, const char *text, size_t bytes, bool back)
{
    int32_t *tokens;
    size_t count;
    if (aq_tokenizer_encode(t, text, bytes, &tokens, &count) != AQ_OK) return 1;
    put_tokens(tokens, count, "\n");
    const int failed = back ? put_text(t, tokens, count) : 0;
    aq_free(tokens);
    return failed;
}

/* Of this thread alone: a machine that is busy otherwise does not count. */
static uint64_t cpu_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static int time_text(const struct aq_tokenizer *t, const char *text, size_t bytes)
{
    uint64_t best = UINT64_MAX;
    for (int i = 0; i < 7; i++) {
        int32_t *tokens;
        size_t count;
        const uint64_t begin = cpu_ns();
        if (aq_tokenizer_encode(t, text, bytes, &tokens, &count) != AQ_OK) return 1;
        if (cpu_ns() - begin < best) best = cpu_ns() - begin;
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
    const bool times = argc > 4 && strcmp(argv[4], "--time") == 0, back = argc > 4 && strcmp(argv[4], "--text") == 0;
    if (times) failed = time_text(t, text, count);
    if (back) put_frame(aq_tokenizer_frame(t));
    while (!times && !failed && at + 4 <= count) {
        uint32_t bytes;
        memcpy(&bytes, text + at, 4);
        failed = bytes > count - at - 4 || one_text(t, text + at + 4, bytes, back);
        at += 4 + (size_t)bytes;
    }
    aq_free(text);
    aq_tokenizer_close(t);
    return failed;
}
