/*
 * base.h -- the common vocabulary: status, log, printable text, the processor, memory, rings, random numbers, time,
 * digests, threads, traces, places at a listener.
 *
 * Every other module may use it; it uses only the C library and xxHash. Each part has its own header with its manual.
 */
#ifndef AQSGD_BASE_H
#define AQSGD_BASE_H

#include "aqsgd/base/admission.h"
#include "aqsgd/base/clock.h"
#include "aqsgd/base/digest.h"
#include "aqsgd/base/file.h"
#include "aqsgd/base/log.h"
#include "aqsgd/base/memory.h"
#include "aqsgd/base/printable.h"
#include "aqsgd/base/processor.h"
#include "aqsgd/base/ring.h"
#include "aqsgd/base/rng.h"
#include "aqsgd/base/status.h"
#include "aqsgd/base/thread.h"
#include "aqsgd/base/trace.h"

#endif
