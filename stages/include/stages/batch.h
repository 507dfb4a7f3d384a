/*
 * batch.h -- what a micro-batch is, on every rank: the samples' ids, lengths and parts, and the arrays that the
 * data set names.
 *
 *     struct aq_batch batch = {.samples = 2, .sample_ids = ids, .field_count = 1,
 *                              .fields = {{"tokens", AQ_FIELD_I32, T, tokens}}};
 *     const int32_t *tokens = aq_batch_find(&batch, "tokens", AQ_FIELD_I32, T);
 *
 * A middle stage has only the ids, the lengths and the parts: field_count is 0 there. All memory is the host's, and
 * borrowed. Locking: none; plain values.
 */
#ifndef STAGES_BATCH_H
#define STAGES_BATCH_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { AQ_BATCH_FIELDS_MAX = 4, AQ_FIELD_NAME_MAX = 16 };

enum aq_field_type { AQ_FIELD_I32 = 1, AQ_FIELD_F32 = 2 };
enum { AQ_FIELD_BYTES = 4 }; /* of a value of either */

struct aq_field {
    const char *name; /* "tokens", "targets", "images", "labels" */
    enum aq_field_type type;
    uint32_t count; /* values of one sample               */
    void *values;   /* (samples, count), host             */
};

struct aq_batch {
    uint32_t samples;
    const uint64_t *sample_ids; /* samples of them                                                       */
    const uint32_t *lengths;    /* tokens of each sample that are real, at its beginning; NULL: all are  */
    /*
     * (samples, T): first place, in the sample, of each token's part, ascending; parts do not see each other, and
     * positions count from the start of a part. NULL: a sample is one part.
     */
    const uint32_t *starts;
    struct aq_field fields[AQ_BATCH_FIELDS_MAX];
    uint32_t field_count;
};

/* The values of the field, or NULL: no field has that name, type and count. */
void *aq_batch_find(const struct aq_batch *batch, const char *name, enum aq_field_type type, uint32_t count);

#ifdef __cplusplus
}
#endif
#endif
