/*
 * faulty_worker.c -- the program aqpipe as a worker of tests: links that break, checkpoints that are slow.
 *
 * Linked with runtime/cli/main_aqpipe.c into bin/aqpipe_faulty, which daemons start where AQPIPE_WORKER names it
 * (tests/jobs.py, faulty). The linker puts these functions before the house's (--wrap), so that the shipped programs
 * hold no hook. Environment:
 *
 *     FAULTY_LINKS=query       every connection that this process makes goes through the filter fault with this query
 *                              (net/transport/transport_fault.c): seed=1&cut_every=6000
 *     FAULTY_CHECKPOINT=ms     so long before each piece of a checkpoint's file (a tensor, or 4 MiB of one)
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "checkpoint.h"
#include "transport.h"

enum aq_status __real_aq_byte_stream_connect(const char *address, struct aq_tls *tls, uint32_t attempt, bool paced,
                                             struct aq_byte_stream **out);
enum aq_status __wrap_aq_byte_stream_connect(const char *address, struct aq_tls *tls, uint32_t attempt, bool paced,
                                             struct aq_byte_stream **out);
enum aq_status __real_aq_checkpoint_file_piece(struct aq_checkpoint_file *file);
enum aq_status __wrap_aq_checkpoint_file_piece(struct aq_checkpoint_file *file);

enum aq_status __wrap_aq_byte_stream_connect(const char *address, struct aq_tls *tls, uint32_t attempt, bool paced,
                                             struct aq_byte_stream **out)
{
    struct aq_address fault = {.whole = "FAULTY_LINKS"};
    const char *query = getenv("FAULTY_LINKS");
    AQ_TRY(__real_aq_byte_stream_connect(address, tls, attempt, paced, out));
    if (!query) return AQ_OK;
    snprintf(fault.query, sizeof fault.query, "%s", query);
    return aq_fault_wrap(&fault, *out, out);
}

enum aq_status __wrap_aq_checkpoint_file_piece(struct aq_checkpoint_file *file)
{
    const char *asked = getenv("FAULTY_CHECKPOINT");
    const long ms = asked ? strtol(asked, NULL, 10) : 0;
    const struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    if (ms > 0) (void)nanosleep(&pause, NULL);
    return __real_aq_checkpoint_file_piece(file);
}
