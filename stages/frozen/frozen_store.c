/* frozen_store.c -- the table of frozen_stores.def. See frozen_store.h. */
#include "frozen_store.h"

const struct frozen_store *frozen_store_of(enum aq_frozen_store store)
{
    switch (store) {
#define AQ_FROZEN_STORE(name, NAME, number)                                                                            \
    case AQ_FROZEN_##NAME:                                                                                             \
        return &frozen_store_##name;
#include "stages/frozen_stores.def"
#undef AQ_FROZEN_STORE
    case AQ_FROZEN_FP32:
        break;
    }
    return NULL;
}

const char *aq_frozen_store_name(enum aq_frozen_store store)
{
    const struct frozen_store *of = frozen_store_of(store);
    return of ? of->name : "fp32";
}

const char *aq_frozen_store_type(enum aq_frozen_store store)
{
    const struct frozen_store *of = frozen_store_of(store);
    return of ? of->type : "F32";
}

uint64_t frozen_part_bytes(const struct frozen_store *store, uint32_t p, uint64_t count)
{
    const struct frozen_part *part = &store->parts[p];
    return part->values ? (count + part->values - 1) / part->values * part->bytes : part->bytes;
}
