/*
 * entropy_zstd.c -- entropy.h over libzstd: the only file that includes zstd.h.
 *
 * Measured (docs/DECISIONS.md 0054): a hash table of 64 places and matches of 7 bytes and more find no fewer bytes
 * than level 1 as it comes, cost nothing where there is nothing to find, and are three times as quick on codes of 2
 * bits. The window is one block (128 KiB): each block has its own Huffman table, and bodies are no longer-lived than
 * that.
 */
#include <zstd.h>

#include "entropy.h"

enum { LEVEL = 1, WINDOW_LOG = 17, HASH_LOG = 6, MATCH_BYTES_MIN = 7, MAGIC_BYTES = 4 };

struct aq_entropy {
    ZSTD_CCtx *packs;
    ZSTD_DCtx *unpacks;
};

static bool configure(ZSTD_CCtx *packs)
{
    const struct {
        ZSTD_cParameter parameter;
        int value;
    } values[] = {{ZSTD_c_compressionLevel, LEVEL},
                  {ZSTD_c_strategy, ZSTD_fast},
                  {ZSTD_c_windowLog, WINDOW_LOG},
                  {ZSTD_c_hashLog, HASH_LOG},
                  {ZSTD_c_minMatch, MATCH_BYTES_MIN}};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        if (ZSTD_isError(ZSTD_CCtx_setParameter(packs, values[i].parameter, values[i].value))) return false;
    return true;
}

enum aq_status aq_entropy_open(struct aq_entropy **out)
{
    struct aq_entropy *entropy;
    AQ_TRY(AQ_NEW(1, &entropy));
    entropy->packs = ZSTD_createCCtx();
    entropy->unpacks = ZSTD_createDCtx();
    if (!entropy->packs || !entropy->unpacks || !configure(entropy->packs)) {
        aq_entropy_close(entropy);
        return aq_fail(AQ_NOMEM, "net", "no memory for zstd %s (link.entropy)", ZSTD_versionString());
    }
    *out = entropy;
    return AQ_OK;
}

void aq_entropy_close(struct aq_entropy *entropy)
{
    if (!entropy) return;
    ZSTD_freeCCtx(entropy->packs);
    ZSTD_freeDCtx(entropy->unpacks);
    aq_free(entropy);
}

uint32_t aq_entropy_pack(struct aq_entropy *entropy, const void *body, uint32_t body_bytes, void *out,
                         uint32_t out_bytes)
{
    const size_t bytes = ZSTD_compress2(entropy->packs, out, out_bytes, body, body_bytes);
    return ZSTD_isError(bytes) ? 0 : (uint32_t)bytes;
}

/* One frame, of today's format: the library would also read what older versions wrote, several frames, and frames
 * without a size. */
static bool one_frame(const uint8_t *packed, uint32_t packed_bytes, uint32_t raw_bytes)
{
    uint32_t magic = 0;
    if (packed_bytes < MAGIC_BYTES) return false;
    for (int i = 0; i < MAGIC_BYTES; i++)
        magic |= (uint32_t)packed[i] << (8 * i);
    return magic == ZSTD_MAGICNUMBER && ZSTD_getFrameContentSize(packed, packed_bytes) == raw_bytes &&
           ZSTD_findFrameCompressedSize(packed, packed_bytes) == packed_bytes;
}

bool aq_entropy_unpack(struct aq_entropy *entropy, const void *packed, uint32_t packed_bytes, void *out,
                       uint32_t raw_bytes)
{
    return one_frame(packed, packed_bytes, raw_bytes) &&
           ZSTD_decompressDCtx(entropy->unpacks, out, raw_bytes, packed, packed_bytes) == raw_bytes;
}
