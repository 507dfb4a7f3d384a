/*
 * visit_ledger.h -- what was released of each sample of a data set, on disk before it is sent (docs/PRIVACY.md).
 *
 * One file per data set, named by its digest, in a folder that outlives runs: a new run over the same data goes on
 * counting. A record is appended and synced before the values of a micro-batch may leave, so a crash between the two
 * counts a visit that nobody saw, never the reverse. Several processes (the two workers of a client, another job over
 * the same data) may have it open: each reads what the others appended before it adds, under a lock, so they agree.
 *
 * Of each sample it has the sum of what its releases add to mu^2 (epsilon.h), whatever the noise of each was.
 *
 * The file (little-endian; docs/FORMAT.md, "Ledgers of visits"): a head, then records, each chained to the one before.
 *
 *     head    0  8  "aqvisits"            record   0  8  its number, from 1
 *             8  4  1, the format                  8  8  what each of these visits adds to mu^2, a double
 *            12  4  zero                          16  4  number of samples, 1 .. 4096
 *            16  8  digest of the data            20  4  0: activations, 1: gradients
 *            24  8  zero                          24  8  digest of bytes 0 .. 23, seeded with the digest before it
 *            32  8  a random number               32  8  digest of the samples, seeded with that of bytes 0 .. 23
 *            40  8  digest of bytes 0 .. 39       40     the samples, 4 bytes each: places in the data
 *
 * A record that the file's end cuts off was never synced, so its values never left: it is dropped, and overwritten.
 * Anything else that is not as above is AQ_CORRUPT, and nothing may be sent.
 *
 * Locking: one thread per ledger; between processes flock on the file, held for one call.
 */
#ifndef RUNTIME_VISIT_LEDGER_H
#define RUNTIME_VISIT_LEDGER_H

#include <stdint.h>

#include "aqsgd/base.h"

enum { AQ_LEDGER_NAME_BYTES = 40, AQ_LEDGER_RECORD_SAMPLES = 4096 };
enum aq_ledger_cut { AQ_LEDGER_ACTIVATIONS = 0, AQ_LEDGER_GRADIENTS = 1, AQ_LEDGER_CUTS };

struct aq_ledger; /* opaque */

/* ids: places in the data, whatever part of it a job takes (data.skip). */
struct aq_ledger_batch {
    enum aq_ledger_cut cut;
    const uint64_t *ids;
    uint32_t count;
    double each; /* what a visit adds to mu^2 */
    double most; /* no sample's sum may pass it; INFINITY: no limit */
};

/* Which sample has the largest sum, how large, and its visits. */
struct aq_ledger_most {
    double sum;
    uint64_t sample;
    uint32_t visits[AQ_LEDGER_CUTS];
};

/* Which file it is, and how far: a file that is another, or shorter, than one that was seen before lost something. */
struct aq_ledger_place {
    uint64_t instance, records;
};

/* The file's name in its folder. */
void aq_ledger_name(uint64_t digest, char name[AQ_LEDGER_NAME_BYTES]);

/* Bytes of memory that an open one takes, of data with so many samples. */
uint64_t aq_ledger_bytes(uint64_t samples);

/* An empty file, where there is none. The folder must be there. AQ_NOSPC, AQ_IO, AQ_REFUSED. */
enum aq_status aq_ledger_make(const char *folder, uint64_t digest);

/*
 * Reads all of it. samples: the largest id that the caller adds or asks for, and 1; it knows those that the file has,
 * too. AQ_NOTFOUND: there is none (not logged). AQ_CORRUPT: damaged, or of other data, with the remedy. AQ_NOMEM,
 * AQ_IO.
 */
enum aq_status aq_ledger_open(const char *folder, uint64_t digest, uint64_t samples, struct aq_ledger **out);

/*
 * The same of a file at a path, which need not be writable, as of a backup: nothing can be added. AQ_INVAL, too: its
 * name is none of a ledger.
 */
enum aq_status aq_ledger_open_read(const char *path, struct aq_ledger **out);
void aq_ledger_close(struct aq_ledger *ledger); /* NULL is fine */

/* Reads what others appended since; of samples that it does not know only whether the bytes are right. As open. */
enum aq_status aq_ledger_follow(struct aq_ledger *ledger);

/*
 * One more visit of each sample of the batch, on disk when it returns AQ_OK: only then may its values leave.
 * AQ_REFUSED (not logged): a sum would pass `most`; nothing was written. AQ_CORRUPT; AQ_NOSPC, AQ_IO: the values must
 * not leave, and may be counted.
 */
enum aq_status aq_ledger_add(struct aq_ledger *ledger, const struct aq_ledger_batch *batch);

double aq_ledger_sum(const struct aq_ledger *ledger, uint64_t sample);
uint64_t aq_ledger_visited(const struct aq_ledger *ledger); /* samples with visits */
struct aq_ledger_most aq_ledger_most(const struct aq_ledger *ledger);
struct aq_ledger_place aq_ledger_place(const struct aq_ledger *ledger);

#endif
