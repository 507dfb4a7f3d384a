/*
 * fuzz_codec.c -- any bytes, as any kind of body of any config: AQ_OK or AQ_CORRUPT, and no memory touched beyond.
 *
 * The first twelve bytes choose config, shape and flags; the rest is the message (as much as it takes) and the body.
 * Where the body is longer or shorter than its kind it is cut or left: both lengths are tried.
 */
#include <stdlib.h>
#include <string.h>

#include "aqsgd/codec.h"
#include "fuzz.h"

/* How a keyframe may be coded. */
static const enum aq_codec_precision keyframes[] = {AQ_PRECISION_FP32, AQ_PRECISION_FP16, AQ_PRECISION_BF16,
                                                    AQ_PRECISION_Q8, AQ_PRECISION_EC};

static struct aq_codec_config config_of(const uint8_t *byte)
{
    static const uint32_t tiles[] = {32, 64, 128};
    static const float fractions[] = {0.0f, 0.01f, 0.2f, 0.7f};
    struct aq_codec_config config;
    enum aq_codec_kind kind;
    uint32_t kinds = 0;
    while (aq_codec_kind_at(kinds, &kind))
        kinds++;
    (void)aq_codec_kind_at(byte[0] % kinds, &kind);
    aq_codec_config_default(&config, kind, 1 + byte[1] % 8);
    config.raw = (enum aq_codec_precision)(1 + byte[2] % 3);
    config.grid = (enum aq_codec_grid)(1 + byte[2] / 3 % 3);
    config.group = (enum aq_codec_group)(1 + byte[3] % 4);
    config.tile = tiles[byte[3] / 4 % 3];
    config.hadamard = byte[3] / 12 % 2 == 1;
    config.scale_format = (enum aq_codec_scale_format)(1 + byte[4] % 4);
    config.prescale_log2 = (int32_t)(byte[5] % 129) - 64;
    config.store = (enum aq_codec_precision)(1 + byte[6] % 6);
    config.keyframe = keyframes[byte[6] / 6 % 5];
    config.store_group = byte[6] / 30 % 2 == 0 ? AQ_PER_ROW : AQ_PER_CHANNEL;
    if (aq_codec_about(kind)->sparse) config.top_k = fractions[byte[7] % 4];
    if (aq_codec_about(kind)->grid || aq_codec_about(kind)->plain) return config;
    struct aq_codec_config own; /* its other settings are its own */
    aq_codec_config_default(&own, kind, 1);
    own.prescale_log2 = config.prescale_log2;
    own.keyframe = config.keyframe;
    own.store_group = config.store_group;
    own.store = byte[7] % 4 ? config.store : AQ_PRECISION_NONE;
    return own;
}

static void check(enum aq_status status)
{
    if (status != AQ_OK && status != AQ_CORRUPT) abort();
    fuzz_told(status == AQ_OK);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum { HEAD = 12 };
    struct aq_codec *codec;
    void *m = NULL, *hat = NULL, *body = NULL;
    fuzz_quiet();
    if (size < HEAD) return 0;
    const struct aq_codec_config config = config_of(data);
    const uint32_t rows = 1 + data[8] % 20, columns = 1 + data[9] % 150, flags = data[10] % 8;
    if (aq_codec_open(NULL, &config, rows, columns, &codec) != AQ_OK) return 0;
    data += HEAD;
    size -= HEAD;
    const size_t message = aq_codec_message_bytes(codec), take = size < message ? size : message;
    if (aq_alloc(message, &m) != AQ_OK || aq_alloc(4 * (size_t)rows * columns, &hat) != AQ_OK ||
        aq_alloc(size - take > aq_codec_bound(codec) ? size - take : aq_codec_bound(codec), &body) != AQ_OK)
        abort();
    memcpy(m, data, take);
    memcpy(body, data + take, size - take);
    check(aq_codec_decode(codec, body, size - take, flags, m, hat, m, NULL));
    if (aq_codec_varies(codec, flags != 0) && flags < 2) /* chunks that are as long as the body says */
        check(aq_codec_decode(codec, body, size - take, flags, m, hat, NULL, NULL));
    const size_t exact = flags == AQ_CODED_RAW ? 4 * (size_t)rows * columns
                                               : aq_codec_body_bytes(codec, (flags & AQ_CODED_KEYFRAME) != 0);
    check(aq_codec_decode(codec, body, exact, flags, m, hat, m, NULL));
    aq_free(m);
    aq_free(hat);
    aq_free(body);
    aq_codec_close(codec);
    return 0;
}
