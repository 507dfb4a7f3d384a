/*
 * layer_times.h -- what was measured of layers and codes on this machine, kept in a file for the next plan.
 *
 * The file is `aqpipe/layers.json` in XDG_CACHE_HOME, or in ~/.cache: {"format": "aqpipe layers 1", "times": {KEY:
 * [seconds, ...]}}. A key is a text with all that a time depends on (device, threads, version, sizes, batch), for
 * people to read too. It is only a cache: a missing, broken or foreign file counts as empty, and it may be deleted at
 * any time; of two processes that write it, the later one wins.
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

/* AQ_NOMEM. A file that cannot be used gives a warning and counts as empty. */
enum aq_status aq_layer_times_open(struct aq_layer_times **out);

/* Writes the file if something was added and its folder exists; a failure only gives a warning. */
void aq_layer_times_close(struct aq_layer_times *times);

/* The file's path; "": neither XDG_CACHE_HOME nor HOME is set. */
const char *aq_layer_times_path(const struct aq_layer_times *times);

/* Exactly `count` values of finite, non-negative seconds, or false. */
bool aq_layer_times_find(const struct aq_layer_times *times, const char *key, double *values, uint32_t count);
enum aq_status aq_layer_times_add(struct aq_layer_times *times, const char *key, const double *values, uint32_t count);

#endif
