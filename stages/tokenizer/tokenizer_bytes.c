/*
 * tokenizer_bytes.c -- 256 tokens, a byte each: needs no file, and takes any bytes as they are.
 */
#include "tokenizer.h"

static enum aq_status bytes_open(struct aq_tokenizer *tokenizer, const char *path)
{
    (void)path; /* there is nothing to read */
    uint8_t *bytes;
    AQ_TRY(AQ_NEW(256, &bytes));
    for (unsigned i = 0; i < 256; i++) bytes[i] = (uint8_t)i;
    tokenizer->state = bytes;
    tokenizer->vocabulary = 256;
    return AQ_OK;
}

static void bytes_close(struct aq_tokenizer *tokenizer)
{
    aq_free(tokenizer->state);
}

static enum aq_status bytes_encode(const struct aq_tokenizer *tokenizer, const uint8_t *text, size_t bytes,
                                   struct aq_token_list *list)
{
    (void)tokenizer;
    AQ_TRY(aq_token_list_reserve(list, bytes));
    for (size_t i = 0; i < bytes; i++) list->at[list->count + i] = text[i];
    list->count += bytes;
    return AQ_OK;
}

static const uint8_t *bytes_token(const struct aq_tokenizer *tokenizer, uint32_t token, uint32_t *bytes)
{
    *bytes = 1;
    return (const uint8_t *)tokenizer->state + token;
}

const struct aq_tokenizer_kind aq_tokenizer_bytes = {
    .about = {.name = "bytes", .tokens = 256},
    .open = bytes_open,
    .close = bytes_close,
    .encode = bytes_encode,
    .token = bytes_token,
};
