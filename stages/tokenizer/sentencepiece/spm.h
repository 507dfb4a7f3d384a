/*
 * spm.h -- SentencePiece's library behind a C interface: spm_library.cpp is its one file; spm_model.c looks a model
 * over before the library sees it.
 *
 * Locking: a model does not change after open; any thread.
 */
#ifndef STAGES_SPM_H
#define STAGES_SPM_H

#include <stddef.h>
#include <stdint.h>

#include "aqsgd/base.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { AQ_SPM_BYTES_MAX = 64 << 20, AQ_SPM_PIECES_MAX = 1 << 22 };

/*
 * Is it a model (protobuf's wire format, ModelProto of sentencepiece_model.proto) whose pieces are named and scored,
 * and whose normalizer's table stays within itself? The library trusts both. AQ_CORRUPT: what is wrong, and where.
 */
enum aq_status aq_spm_check(const char *path, const uint8_t *bytes, size_t count);

/* The library's version as it was compiled against; "" without it. */
const char *aq_spm_library(void);

struct aq_spm; /* opaque */

enum aq_spm_type { AQ_SPM_NORMAL, AQ_SPM_UNKNOWN, AQ_SPM_CONTROL, AQ_SPM_BYTE, AQ_SPM_UNUSED };

/* A model that aq_spm_check has taken. AQ_NODEV: this program was built without the library. AQ_CORRUPT: its words. */
enum aq_status aq_spm_open(const char *path, const uint8_t *bytes, size_t count, struct aq_spm **out);
void aq_spm_close(struct aq_spm *spm); /* NULL is fine */
uint32_t aq_spm_pieces(const struct aq_spm *spm);
/* A piece's text, as long as the model is open. */
const char *aq_spm_piece(const struct aq_spm *spm, uint32_t piece, size_t *bytes, enum aq_spm_type *type);
/* The piece that ends a text, or -1. */
int32_t aq_spm_end(const struct aq_spm *spm);

/* The pieces of a text; `take` is given them all at once, and its status is returned. AQ_INVAL, AQ_NOMEM. */
enum aq_status aq_spm_encode(const struct aq_spm *spm, const char *text, size_t bytes,
                             enum aq_status (*take)(void *context, const int *pieces, size_t count), void *context);

#ifdef __cplusplus
}
#endif
#endif
