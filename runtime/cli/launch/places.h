/*
 * places.h -- where each worker runs and listens, as settings of the manifest: of stages that it lists, or of a count.
 *
 * Locking: pure functions.
 */
#ifndef RUNTIME_PLACES_H
#define RUNTIME_PLACES_H

#include <stdbool.h>

#include "job.h"
#include "runtime_text.h"

/* Adds the host of a rank, or the address that its worker listens at, without quotes: nothing in it needs any. */
typedef void (*aq_place_text)(const void *context, uint32_t rank, bool address, struct aq_text *out);

/* "key=value", a line each, at most two a stage. A stage that has an address keeps it. AQ_NOMEM. */
enum aq_status aq_places_settings(const struct aq_job *job, aq_place_text text, const void *context,
                                  struct aq_text *out);

#endif
