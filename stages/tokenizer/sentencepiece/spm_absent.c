/* spm_absent.c -- spm.h without the library: opening fails with that reason, so nothing else is ever called. */
#include "spm.h"

#if !AQ_SENTENCEPIECE

const char *aq_spm_library(void)
{
    return "";
}

enum aq_status aq_spm_open(const char *path, const uint8_t *bytes, size_t count, struct aq_spm **out)
{
    (void)bytes, (void)count, (void)out;
    return aq_fail(
        AQ_NODEV, "tokenizer",
        "%s: this aqpipe was built without SentencePiece: apt-get install libsentencepiece-dev, and build again", path);
}

void aq_spm_close(struct aq_spm *spm)
{
    (void)spm;
}

uint32_t aq_spm_pieces(const struct aq_spm *spm)
{
    (void)spm;
    return 0;
}

const char *aq_spm_piece(const struct aq_spm *spm, uint32_t piece, size_t *bytes, enum aq_spm_type *type)
{
    (void)spm, (void)piece;
    *bytes = 0;
    *type = AQ_SPM_UNUSED;
    return "";
}

int32_t aq_spm_end(const struct aq_spm *spm)
{
    (void)spm;
    return -1;
}

enum aq_status aq_spm_encode(const struct aq_spm *spm, const char *text, size_t bytes,
                             enum aq_status (*take)(void *context, const int *pieces, size_t count), void *context)
{
    (void)spm, (void)text, (void)bytes, (void)take, (void)context;
    return AQ_NODEV;
}

#endif
