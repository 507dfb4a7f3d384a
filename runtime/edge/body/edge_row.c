/* edge_row.c -- rows of a micro-batch's table, byte by byte. */
#include "edge_row.h"

static uint8_t *put(uint8_t *at, uint64_t value, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        at[i] = (uint8_t)(value >> (8 * i));
    return at + bytes;
}

static uint64_t take(const uint8_t *at, unsigned bytes)
{
    uint64_t value = 0;
    for (unsigned i = 0; i < bytes; i++)
        value |= (uint64_t)at[i] << (8 * i);
    return value;
}

void aq_edge_row_write(const struct aq_edge_row *row, uint8_t *bytes)
{
    uint8_t *at = put(bytes, row->sample, 8);
    at = put(at, row->version_before, 8);
    at = put(at, row->version_after, 8);
    at = put(at, row->digest_before, 8);
    at = put(at, row->digest_after, 8);
    at = put(at, row->body_bytes, 4);
    at = put(at, row->flags, 2);
    at = put(at, row->variant, 2);
    AQ_ASSERT(at == bytes + AQ_EDGE_ROW_BYTES);
}

void aq_edge_row_read(const uint8_t *bytes, struct aq_edge_row *row)
{
    row->sample = take(bytes, 8);
    row->version_before = take(bytes + 8, 8);
    row->version_after = take(bytes + 16, 8);
    row->digest_before = take(bytes + 24, 8);
    row->digest_after = take(bytes + 32, 8);
    row->body_bytes = (uint32_t)take(bytes + 40, 4);
    row->flags = (uint16_t)take(bytes + 44, 2);
    row->variant = (uint16_t)take(bytes + 46, 2);
}

void aq_edge_check_write(uint64_t digest, uint8_t *bytes)
{
    (void)put(bytes, digest, AQ_EDGE_CHECK_BYTES);
}

uint64_t aq_edge_check_read(const uint8_t *bytes)
{
    return take(bytes, AQ_EDGE_CHECK_BYTES);
}
