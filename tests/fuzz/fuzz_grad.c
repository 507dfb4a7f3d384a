/*
 * fuzz_grad.c -- any bytes, as any range of any gradient codec: AQ_OK or AQ_CORRUPT, and no memory touched beyond.
 *
 * The first eight bytes choose codec, tensors and range; the rest is what came over the wire, once in its own length
 * and once cut or filled to the right one.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "aqsgd/grad_codec.h"
#include "fuzz.h"

enum { HEAD = 8, FLOATS = 1600 };

static struct aq_grad_codec_config config_of(const uint8_t *byte)
{
    static const char *const grids[] = {NULL, "tread", "rise", "signed"};
    static const float norms[] = {1.0f, 0.5f, 3.0f, INFINITY};
    struct aq_grad_codec_config config;
    aq_grad_codec_config_default(&config, aq_grad_codec_kind(byte[0] % 10));
    config.bits = 2 + byte[1] % 7;
    config.grid = grids[byte[1] / 7 % 4];
    config.norm = norms[byte[1] / 28 % 4];
    config.scale = byte[2] % 2 ? "l1" : "l2";
    config.bucket = 64 * (byte[2] / 2 % 4);
    if (config.density > 0 && config.bucket == 0) config.bucket = 65536;
    if (config.density > 0) config.density = (float)(1 + byte[2] / 8) / 32.0f;
    if (strcmp(config.kind, "topk") != 0) config.density /= 2; /* values as they are: at most half of them */
    return config;
}

static void check(enum aq_status status)
{
    if (status != AQ_OK && status != AQ_CORRUPT) abort();
    fuzz_told(status == AQ_OK);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct aq_grad_codec *codec;
    void *sum = NULL, *wire = NULL;
    fuzz_quiet();
    if (size < HEAD) return 0;
    const struct aq_grad_codec_config config = config_of(data);
    const struct aq_optimizer_tensor tensors[] = {{.offset = data[3] % 64, .count = 1 + data[4]},
                                                  {.offset = 400, .count = 4 * (uint64_t)data[5]}};
    const uint64_t first = 3 * (uint64_t)data[6], count = 3 * (uint64_t)data[7];
    if (aq_grad_codec_open(&config, tensors, 2, FLOATS, &codec) != AQ_OK) abort();
    data += HEAD;
    size -= HEAD;
    const size_t bytes = aq_grad_codec_bytes(codec, first, count);
    if (aq_alloc(count * sizeof(float), &sum) != AQ_OK || aq_alloc(size, &wire) != AQ_OK) abort();
    memcpy(wire, data, size);
    check(aq_grad_decode(codec, first, count, wire, size, 0.5f, true, sum));
    aq_free(wire);
    if (aq_alloc(bytes, &wire) != AQ_OK) abort();
    memcpy(wire, data, size < bytes ? size : bytes);
    check(aq_grad_decode(codec, first, count, wire, bytes, 0.5f, false, sum));
    /* What was decoded is something that can be coded. */
    if (aq_grad_encode(codec, first, count, sum, NULL, 1, wire) != AQ_OK) abort();
    aq_free(sum);
    aq_free(wire);
    aq_grad_codec_close(codec);
    return 0;
}
