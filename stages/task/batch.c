/* batch.c -- a batch's arrays by their names. See the header. */
#include "stages/batch.h"

#include <string.h>

void *aq_batch_find(const struct aq_batch *batch, const char *name, enum aq_field_type type, uint32_t count)
{
    for (uint32_t i = 0; i < batch->field_count; i++) {
        const struct aq_field *field = &batch->fields[i];
        if (field->type == type && field->count == count && strcmp(field->name, name) == 0) return field->values;
    }
    return NULL;
}
