/*
 * collective_cases.h -- every collective with its right answer, as a rank of any group runs it: shared by the suites of
 * all members (links: conform_collective.c, GPUs: conform_collective_device.c, conform_collective_gpu.c).
 *
 * A new collective is one function in the .c file and one line in its table. Cases answer a status and say what is
 * wrong by aq_fail: they run on threads and in processes where there is no cmocka.
 */
#ifndef TESTS_COLLECTIVE_CASES_H
#define TESTS_COLLECTIVE_CASES_H

#include "net/collective.h"

/* Groups are opened with pieces of CASE_PIECE_BYTES, at whose borders the counts and blocks lie; those of up to three
 * ranks with pieces that a whole coded piece fits, for their compressed cases have more than one. */
enum { CASE_RANKS_MAX = 8, CASE_PIECE_BYTES = 16 << 10, CASE_CODED_BYTES = 256 << 10, CASE_CODED_RANKS = 3 };

/* Some ranks reduce on GPUs: codecs without kernels are left out. Set before the first rank begins. */
extern bool collective_cases_on_gpus;

/* All cases one after the other over the same group: what one leaves behind would trouble the next. */
enum aq_status collective_cases_run(struct aq_group *group);
/* The same where what is reduced lies in memory of the device that the host cannot reach. */
enum aq_status collective_cases_run_behind(struct aq_group *group, struct aq_device *device);

/* AQ_CORRUPT with the place, for what a rank finds wrong in its results. */
#define CASE_EXPECT(group, condition)                                                                                  \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            return aq_fail(AQ_CORRUPT, "test", "%s:%d: rank %u: %s", __FILE__, __LINE__, aq_group_rank(group),         \
                           #condition);                                                                                \
    } while (0)

#endif
