/*
 * split_samples.h -- the samples of a client as its job reads them, in a file: tools/split-audit compares them with
 * what the server saw. Templates, tokenizers, packing and decoders of images are the job's own.
 *
 * Caveat: the file is the client's private data. It is readable by its owner only, and nothing reads or sends it.
 *
 * The file (little-endian; docs/FORMAT.md, "Samples of a client"): a head, then records.
 *
 *     head    0  16  "aqpipe samples 1"        record   0  4  what the values are: enum aq_sample_values
 *                                                       4  4  number of values
 *                                                       8  4  1: of a held-out sample
 *                                                      12  4  zero
 *                                                      16  8  its place in the training data, or in the held-out data
 *                                                      24     the values: int32; of images and scores fp32
 *
 * Locking: none.
 */
#ifndef RUNTIME_SPLIT_SAMPLES_H
#define RUNTIME_SPLIT_SAMPLES_H

#include "job.h"

/* Of what there is to learn only what the job's task learns. AQ_SAMPLE_PARTS: tokens of each part of a packed sample,
 * and together as many as the sample has. */
enum aq_sample_values {
    AQ_SAMPLE_TOKENS = 1,
    AQ_SAMPLE_TARGETS,
    AQ_SAMPLE_LABELS,
    AQ_SAMPLE_SCORES,
    AQ_SAMPLE_IMAGES,
    AQ_SAMPLE_PARTS
};

/* Writes (or replaces) the file. What is left after a failure has no whole last record. As aq_dataset_open; AQ_NOSPC,
 * AQ_IO, AQ_NOMEM. */
enum aq_status aq_split_samples_write(const struct aq_job *job, const char *path);

#endif
