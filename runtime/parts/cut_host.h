/*
 * cut_host.h -- values at a cut where the host may read and change them, for the parts of a worker.
 *
 * If device memory is host memory, they are read in place. On a GPU they are copied to pinned memory behind all that
 * the compute stream has, and exec waits for that stream. A changed copy goes back on the same stream, before the
 * values are sent (aq_values_write_end) or computed with. So plain C gives the same bits everywhere. Other streams see
 * no more than before, because their events come after the copy.
 *
 * One buffer is enough: its user has waited for the compute stream, on which all earlier copies to and from it were.
 * The wait is the price: a stage that reads its values on the host issues nothing ahead.
 *
 * Locking: none; the exec thread's.
 */
#ifndef RUNTIME_CUT_HOST_H
#define RUNTIME_CUT_HOST_H

#include "aqsgd/device.h"
#include "values.h"

struct aq_cut_host {
    struct aq_device *device; /* borrowed */
    struct aq_stream *stream; /* the compute stream */
    float *pinned;            /* NULL: the host reads values where they are */
    uint64_t bytes;           /* of the largest values that it is asked for */
};

/* bytes 0: nothing is asked for. AQ_NOMEM. Closing takes one that was not opened. */
enum aq_status aq_cut_host_open(struct aq_device *device, struct aq_stream *stream, uint64_t bytes,
                                struct aq_cut_host *out);
void aq_cut_host_close(struct aq_cut_host *host);

/* Waits for the work that writes `values`; *out has `count` floats of them until the next call. AQ_CUDAERR. */
enum aq_status aq_cut_host_read(struct aq_cut_host *host, const struct aq_values *values, uint64_t count, float **out);

/* Puts the floats that the last read gave back into `values`, on the compute stream. AQ_CUDAERR. */
enum aq_status aq_cut_host_write(struct aq_cut_host *host, const struct aq_values *values, uint64_t count);

#endif
