/* spm_library.cpp -- see spm.h. Nothing that the library throws leaves this file. */
#include <sentencepiece_processor.h>

#include <climits>
#include <new>
#include <vector>

#include "spm.h"

struct aq_spm {
    sentencepiece::SentencePieceProcessor processor;
};

extern "C" const char *aq_spm_library(void)
{
    return AQ_SENTENCEPIECE_VERSION;
}

extern "C" enum aq_status aq_spm_open(const char *path, const uint8_t *bytes, size_t count, struct aq_spm **out)
{
    aq_spm *spm = nullptr;
    try {
        spm = new aq_spm;
        const auto status = spm->processor.LoadFromSerializedProto({reinterpret_cast<const char *>(bytes), count});
        if (status.ok() && spm->processor.GetPieceSize() > 0) {
            *out = spm;
            return AQ_OK;
        }
        aq_fail(AQ_CORRUPT, "tokenizer", "%s: sentencepiece: %.200s", path, status.message());
    } catch (...) {
        delete spm;
        return aq_fail(AQ_NOMEM, "tokenizer", "%s: sentencepiece has no memory", path);
    }
    delete spm;
    return AQ_CORRUPT;
}

extern "C" void aq_spm_close(struct aq_spm *spm)
{
    delete spm;
}

extern "C" uint32_t aq_spm_pieces(const struct aq_spm *spm)
{
    return static_cast<uint32_t>(spm->processor.GetPieceSize());
}

extern "C" const char *aq_spm_piece(const struct aq_spm *spm, uint32_t piece, size_t *bytes, enum aq_spm_type *type)
{
    const auto &processor = spm->processor;
    const int id = static_cast<int>(piece);
    const std::string &text = processor.IdToPiece(id);
    *type = processor.IsControl(id)   ? AQ_SPM_CONTROL
            : processor.IsUnknown(id) ? AQ_SPM_UNKNOWN
            : processor.IsByte(id)    ? AQ_SPM_BYTE
            : processor.IsUnused(id)  ? AQ_SPM_UNUSED
                                      : AQ_SPM_NORMAL;
    *bytes = text.size();
    return text.data();
}

extern "C" int32_t aq_spm_end(const struct aq_spm *spm)
{
    return spm->processor.eos_id();
}

extern "C" enum aq_status aq_spm_encode(const struct aq_spm *spm, const char *text, size_t bytes,
                                        enum aq_status (*take)(void *context, const int *pieces, size_t count),
                                        void *context)
{
    if (bytes > INT_MAX / 4)
        return aq_fail(AQ_INVAL, "tokenizer",
                       "sentencepiece takes texts of at most %d bytes, this one has %zu: make it a .jsonl file "
                       "of shorter ones, a text a line",
                       INT_MAX / 4, bytes);
    try {
        std::vector<int> pieces;
        const auto status = spm->processor.Encode({text, bytes}, &pieces);
        if (!status.ok()) return aq_fail(AQ_INVAL, "tokenizer", "sentencepiece: %.200s", status.message());
        return take(context, pieces.data(), pieces.size());
    } catch (...) {
        return aq_fail(AQ_NOMEM, "tokenizer", "sentencepiece has no memory for a text of %zu bytes", bytes);
    }
}
