/* gguf_keys.c -- pairs of key and value as a GGUF file has them, little endian: docs/GGUF.md. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "gguf_private.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are written as they lie in memory");

enum { KEYS_BYTES_MIN = 1 << 16 };

void gguf_keys_free(struct gguf_keys *keys)
{
    aq_free(keys->at);
    keys->at = NULL;
}

void gguf_bytes(struct gguf_keys *keys, const void *bytes, size_t count)
{
    if (keys->status != AQ_OK) return;
    if (count > keys->capacity - keys->count) {
        void *memory;
        size_t capacity = keys->capacity ? 2 * keys->capacity : KEYS_BYTES_MIN;
        while (capacity - keys->count < count)
            capacity *= 2;
        keys->status = aq_alloc(capacity, &memory);
        if (keys->status != AQ_OK) return;
        if (keys->count) memcpy(memory, keys->at, keys->count);
        aq_free(keys->at);
        keys->at = memory;
        keys->capacity = capacity;
    }
    if (count) memcpy(keys->at + keys->count, bytes, count);
    keys->count += count;
}

void gguf_text(struct gguf_keys *keys, const char *text, size_t bytes)
{
    const uint64_t count = bytes;
    gguf_bytes(keys, &count, sizeof count);
    gguf_bytes(keys, text, bytes);
}

static void put_key(struct gguf_keys *keys, const char *key, enum gguf_kind kind)
{
    char name[GGUF_KEY_BYTES];
    const uint32_t number = (uint32_t)kind;
    const int bytes = snprintf(name, sizeof name, "%s%s", key[0] == '.' ? keys->arch : "", key);
    AQ_ASSERT(bytes > 0 && (size_t)bytes < sizeof name);
    gguf_text(keys, name, (size_t)bytes);
    gguf_bytes(keys, &number, sizeof number);
    keys->pairs++;
}

void gguf_u32(struct gguf_keys *keys, const char *key, uint32_t value)
{
    put_key(keys, key, GGUF_U32);
    gguf_bytes(keys, &value, sizeof value);
}

void gguf_f32(struct gguf_keys *keys, const char *key, float value)
{
    put_key(keys, key, GGUF_F32);
    gguf_bytes(keys, &value, sizeof value);
}

void gguf_bool(struct gguf_keys *keys, const char *key, bool value)
{
    const uint8_t byte = value;
    put_key(keys, key, GGUF_BOOL);
    gguf_bytes(keys, &byte, sizeof byte);
}

void gguf_string(struct gguf_keys *keys, const char *key, const char *text, size_t bytes)
{
    put_key(keys, key, GGUF_STRING);
    gguf_text(keys, text, bytes);
}

void gguf_array(struct gguf_keys *keys, const char *key, enum gguf_kind kind, uint64_t count)
{
    const uint32_t number = (uint32_t)kind;
    put_key(keys, key, GGUF_ARRAY);
    gguf_bytes(keys, &number, sizeof number);
    gguf_bytes(keys, &count, sizeof count);
}
