/*
 * layer_times.h -- what was measured of layers and codes on this machine, kept in a file for the next plan.
 *
 * The file is `aqpipe/layers.json` in XDG_CACHE_HOME, or in ~/.cache: {"format": "aqpipe layers 1", "times": {KEY:
 * [seconds, ...]}}. A key is a text with all that a time depends on (device, threads, version, sizes, batch), for
 * people to read too. It is nobody's truth: one that is gone, broken or of another format is as an empty one, and may
 * be deleted at any time; of two processes that write it the later one's is kept.
 *
 * Locking: one thread.
 */
#ifndef RUNTIME_LAYER_TIMES_H
#define RUNTIME_LAYER_TIMES_H

#include <stdbool.h>
#include <stdint.h>

#include "aqsgd/base.h"

enum { AQ_LAYER_TIMES_KEPT = 2000, AQ_LAYER_TIMES_VALUES = 4 };

struct aq_layer_times;

/* AQ_NOMEM. A file that cannot be used is told in a line of the log, and begun anew. */
enum aq_status aq_layer_times_open(struct aq_layer_times **out);

/* Writes the file where something was added and there is a folder for it; what fails is told and costs nothing else. */
void aq_layer_times_close(struct aq_layer_times *times);

/* Where it is kept; "": neither XDG_CACHE_HOME nor HOME is set. */
const char *aq_layer_times_path(const struct aq_layer_times *times);

/* Exactly `count` values of finite, non-negative seconds, or false. */
bool aq_layer_times_find(const struct aq_layer_times *times, const char *key, double *values, uint32_t count);
enum aq_status aq_layer_times_add(struct aq_layer_times *times, const char *key, const double *values, uint32_t count);

#endif
