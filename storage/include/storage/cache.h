/*
 * cache.h -- the message cache: for every (edge, sample, variant) the previous message m, on SSD or in memory.
 *
 * Caveats first.
 * - "Seen before" is this cache's answer per sample, never an epoch flag.
 * - A put is write-behind: a get before it is on disk is served from memory. A put is durable only after a mark.
 * - A reference from get is borrowed memory of the cache's bounded pool; give it back soon (aq_cache_release).
 * - The bytes that the two newest marks refer to are never overwritten: after a crash, aq_cache_open with one of them
 * gives exactly the cache as it was at that mark (and forgets everything later). Two, because a job's checkpoint is one
 * only when every stage has made it: a stage that is ahead must be able to go back one. So start mark k+1 only when the
 * whole job has mark k, and expect up to three copies of a message on disk.
 *
 * Members: "lmdb" (LMDB index, message bytes in cells of one slab file, read and written by io_uring with O_DIRECT
 * where the file system takes it; see docs/FORMAT.md and docs/DECISIONS.md 0003 for the layout and why) and "memory"
 * (everything in RAM; a mark is granted at once and holds nothing: a job with a memory cache starts cold after a
 * restart, and logs that).
 *
 *     aq_cache_prefetch(cache, &key);                          // some micro-batches ahead
 *     ...
 *     status = aq_cache_get(cache, &key, deadline, &entry);     // AQ_NOTFOUND: cold
 *     aq_cache_slot(cache, deadline, &slot); encode(m = entry.bytes, m_out = slot);
 *     aq_cache_put(cache, &key, version + 1, digest, slot, bytes);   // the slot is the cache's again
 *     aq_cache_release(cache, &entry);
 *
 * Locking: all calls of one cache from one thread (the worker's exec thread); the cache has its own storage thread.
 */
#ifndef STORAGE_CACHE_H
#define STORAGE_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "aqsgd/base.h"

#ifdef __cplusplus
extern "C" {
#endif

struct aq_cache; /* opaque */

struct aq_cache_key {
    uint64_t sample;  /* stable id of the training sample                                          */
    uint32_t edge;    /* number of the edge in the pipeline: edge e joins stage e and e+1          */
    uint16_t variant; /* augmentation (a flipped image has its own m); 0 for text                  */
    uint16_t side;    /* 0: what this stage sent, 1: what it received                              */
};

enum { AQ_CACHE_KEY_BYTES = 32 };

struct aq_cache_config {
    const char *kind;         /* "lmdb" or "memory"                                              */
    const char *path;         /* folder, made if absent; its parent must exist. NULL for "memory" */
    uint64_t job_digest;      /* identity: a cache of another job, model or cut is refused by name */
    const char *job_name;     /* for that refusal                                                */
    uint64_t value_bytes_max; /* the largest message                                             */
    uint64_t samples_max;     /* how many messages there can be (keys): sizes the index map      */
    uint32_t slots;           /* buffers of value_bytes_max in memory: prefetched, lent, being written */
    uint32_t depth;           /* reads and writes in flight, <= slots                            */
    uint64_t bytes_max;       /* "memory": most bytes kept; "lmdb": most bytes on disk; 0: no limit */
    uint64_t mark;            /* open the cache as it was at this mark; 0: a cache without marks */
    bool direct;              /* O_DIRECT where the file system takes it (logged when it does not) */
    bool fresh;               /* throw away what is there (same job) and start empty             */
    bool lost;                /* a cache that starts empty replaces one that was lost            */
    bool sealed;              /* "lmdb": what is on disk is encrypted (AES-256-GCM)              */
    const uint8_t *key;       /* of AQ_CACHE_KEY_BYTES, where it is sealed; borrowed until open returns */
    struct aq_eventcount *eventcount; /* notified when a read or write is complete; may be NULL           */
    struct aq_trace *trace;   /* lane "cache"; may be NULL                                       */
    struct aq_pages pages;    /* where the slots come from; zeroed: plain memory                 */
};

void aq_cache_config_default(struct aq_cache_config *out); /* lmdb, 16 slots, depth 8, direct */

/* The kinds there are: NULL beyond the last. */
uint32_t aq_cache_kind_count(void);
const char *aq_cache_kind(uint32_t number);

/*
 * mark 0 opens an absent folder, or one in which no mark was ever made, empty; a cache with marks is not thrown away
 * without `fresh`. A cache that is sealed under another key, or in the clear where it is to be sealed (or the other
 * way), does not hold the wanted mark. AQ_INVAL: config. AQ_MISMATCH: the folder holds the cache of another job or
 * format, or one with marks where mark 0 is wanted. AQ_NOTFOUND: it is this job's, or empty, but does not hold the
 * wanted mark (the line names those it holds). AQ_CORRUPT: its files are broken. AQ_NOSPC, AQ_NOMEM, AQ_IO, AQ_REFUSED
 * (permission, in use).
 */
enum aq_status aq_cache_open(const struct aq_cache_config *config, struct aq_cache **out);

/* Finishes the writes in flight and closes; no mark is made. NULL is fine. */
void aq_cache_close(struct aq_cache *cache);

/* Read ahead: AQ_OK (also where there is nothing to read, or it is in memory already). AQ_AGAIN: no slot free now. */
enum aq_status aq_cache_prefetch(struct aq_cache *cache, const struct aq_cache_key *key);

struct aq_cache_entry {
    const void *bytes;
    uint64_t byte_count;
    uint64_t version; /* count of updates: the first put has 1                */
    uint64_t digest;  /* as it was put                                        */
    uint32_t slot;    /* the cache's own                                      */
};

/*
 * The message of key, read now if it was not prefetched; its digest is checked against its bytes.
 * AQ_NOTFOUND: cold, never put or dropped (an answer, not logged). AQ_CORRUPT: the bytes are not those that were put
 * (logged, counted; the entry is dropped: the sample is cold from now on). AQ_TIMEOUT, AQ_AGAIN (no slot, and none can
 * come without the caller).
 */
enum aq_status aq_cache_get(struct aq_cache *cache, const struct aq_cache_key *key, uint64_t deadline_ns,
                            struct aq_cache_entry *out);
void aq_cache_release(struct aq_cache *cache, struct aq_cache_entry *entry);

/* Is it there, without reading it? AQ_OK fills all but bytes (NULL); AQ_NOTFOUND. Nothing to release. */
enum aq_status aq_cache_peek(struct aq_cache *cache, const struct aq_cache_key *key, struct aq_cache_entry *out);

/* An empty buffer of value_bytes_max. Waits for a write to finish where none is free. AQ_TIMEOUT, AQ_AGAIN as get. */
enum aq_status aq_cache_slot(struct aq_cache *cache, uint64_t deadline_ns, void **out);

/*
 * Gives the slot's buffer, filled with `bytes` of m', to the cache (on failure it did not move). digest = aq_digest of
 * them. AQ_NOSPC: disk, bytes_max or samples_max full (logged the first time): everything that was there still is.
 * AQ_IO (or AQ_NOSPC where the file system does not promise room): an earlier write failed; its sample is cold now, and
 * after this answer, given once, the cache continues. AQ_INVAL: bytes.
 */
enum aq_status aq_cache_put(struct aq_cache *cache, const struct aq_cache_key *key, uint64_t version, uint64_t digest,
                            void *slot, uint64_t bytes);
void aq_cache_slot_return(struct aq_cache *cache, void *slot); /* without a put */

/* Make the sample cold (after AQ_CODED_RAW). */
enum aq_status aq_cache_drop(struct aq_cache *cache, const struct aq_cache_key *key);

/*
 * Everything put so far becomes durable under `mark` (greater than any before): writes drained, fsync, index committed.
 * aq_cache_mark_begin only starts it; aq_cache_mark_done answers AQ_AGAIN until it is there, so that training
 * continues: puts made meanwhile belong to the next mark. begin: AQ_INVAL (mark does not rise, or one is being made),
 * AQ_IO, AQ_NOSPC (as put). done: AQ_OK (also where none was begun), AQ_IO, AQ_NOSPC, AQ_CORRUPT: this mark was not
 * made, the ones before it hold, and the same mark may be begun again.
 */
enum aq_status aq_cache_mark_begin(struct aq_cache *cache, uint64_t mark);
enum aq_status aq_cache_mark_done(struct aq_cache *cache);

struct aq_cache_stats {
    uint64_t gets, hits, colds; /* gets = hits + colds + those that were corrupt */
    uint64_t prefetched;        /* gets that found the message in memory         */
    uint64_t corrupt;           /* messages and index entries found broken       */
    bool lost; /* it held messages that it lost: of a cold sample the other side may hold one. Told by a mark to those
                  who open it later, until the cache begins afresh. */
    uint64_t puts, drops;
    uint64_t read_bytes;
    uint64_t wait_ns;        /* that gets and slots made the caller wait      */
    uint64_t check_ns;       /* in which digests were checked               */
    uint64_t entries;        /* messages held                                 */
    uint64_t entry_bytes;    /* their bytes                                   */
    uint64_t file_bytes;     /* on disk, 0 for "memory"                       */
    uint32_t slots_free_low; /* fewest free slots so far                      */
};
void aq_cache_stats(const struct aq_cache *cache, struct aq_cache_stats *out);

/* Bytes of RAM that a cache of this config will take; what `aqpipe plan` prints. */
uint64_t aq_cache_measure(const struct aq_cache_config *config);

/*
 * Reading a cache offline, for tools: one walk over what it holds at a mark, in the order edge, side, variant, sample.
 *
 *     aq_cache_walk_open(path, 0, true, &walk);
 *     while ((status = aq_cache_walk_next(walk, &visit)) == AQ_OK) if (visit.status != AQ_OK) ++broken;
 *     aq_cache_walk_close(walk);                               // status is AQ_NOTFOUND where all went well
 */
struct aq_cache_walk; /* opaque */

struct aq_cache_info {
    char job_name[128];
    uint64_t job_digest;
    uint32_t format; /* version of the files */
    uint64_t value_bytes_max;
    uint64_t mark_last, mark_previous; /* the two that can be opened; 0: none */
    uint64_t mark;                     /* the one walked                      */
    uint64_t entries;                  /* messages held at mark_last          */
    uint64_t file_bytes;               /* slab and index                      */
    uint64_t cells, cell_bytes;        /* of the slab                         */
    bool sealed;                       /* messages cannot be read             */
};

struct aq_cache_visit {
    struct aq_cache_key key;
    uint64_t version;
    uint64_t digest;
    uint64_t byte_count;
    uint32_t cell;         /* where it is in the slab                                                       */
    enum aq_status status; /* AQ_CORRUPT: its index entry is broken, or (verify) its bytes are not these    */
};

/*
 * mark 0: the last one. verify: read every message and compare its digest. AQ_NOTFOUND: no cache there (logged).
 * AQ_REFUSED: a job has it open; or it is sealed, and its messages are asked for. AQ_MISMATCH (format, mark),
 * AQ_CORRUPT, AQ_IO, AQ_NOMEM.
 */
enum aq_status aq_cache_walk_open(const char *path, uint64_t mark, bool verify, struct aq_cache_walk **out);
enum aq_status aq_cache_walk_next(struct aq_cache_walk *walk, struct aq_cache_visit *out); /* AQ_NOTFOUND at the end */
void aq_cache_walk_info(const struct aq_cache_walk *walk, struct aq_cache_info *out);
void aq_cache_walk_close(struct aq_cache_walk *walk); /* NULL is fine */

/*
 * Removes a cache's files, by their names, and its folder where nothing else is in it. The caller knows that the folder
 * is its own, and has it not open. A missing one is fine.
 */
enum aq_status aq_cache_discard(const char *path);

/*
 * The same for a cache that another process may have open: AQ_REFUSED then, and nothing is done. Files are unlinked,
 * not overwritten: a disk may keep their bytes. *bytes: what they took. AQ_NOTFOUND: no such folder.
 */
enum aq_status aq_cache_wipe(const char *path, uint64_t *bytes);

/*
 * Moves the messages of the two kept marks to the head of the slab and cuts off the rest. Killed at any moment it
 * leaves a good cache. freed_bytes: by how much the slab shrank. Statuses as aq_cache_walk_open, and AQ_NOSPC. A sealed
 * one is refused: a cell's place is sealed with it.
 */
enum aq_status aq_cache_compact(const char *path, uint64_t *freed_bytes);

#ifdef __cplusplus
}
#endif
#endif
