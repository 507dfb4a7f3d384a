/*
 * disk.h -- the storage thread: it owns the io_uring ring and LMDB's transactions, and does what tokens ask of it.
 *
 * The exec thread hands over slots (buffers) to read or write, and marks; it gets each back as an event. A slot belongs
 * to the storage thread between its request and its event. Reads go first, but never take the last quarter of the depth
 * while writes wait. A mark waits for the writes asked for before it, syncs the slab, and commits the index; reads
 * continue until the commit.
 *
 * If the kernel has no io_uring (old, or forbidden as in many containers), the thread reads and writes one at a time.
 * Locking: all calls from the exec thread; events come over a ring, and both event counts are notified.
 */
#ifndef STORAGE_DISK_H
#define STORAGE_DISK_H

#include "index.h"
#include "vault.h"

struct aq_disk; /* opaque */

struct aq_disk_config {
    int fd;          /* the slab                                        */
    uint8_t *memory; /* aq_disk_buffers() * slot_bytes, aligned to AQ_STORE_BLOCK; the slots come first */
    uint64_t slot_bytes;
    uint32_t slots;
    uint32_t depth;
    struct aq_index *index; /* the storage thread's while it runs */
    struct aq_eventcount *eventcount; /* the caller's; may be NULL          */
    struct aq_trace *trace; /* may be NULL                        */
    const char *path;       /* of the slab, for error lines       */
    struct aq_vault *vault; /* seals messages on their way to the disk, and opens them on their way back; NULL: none */
};

/* Of slots, and where messages are sealed of what is written at the moment: a slot may be read meanwhile. */
uint64_t aq_disk_buffers(bool sealed, uint32_t slots, uint32_t depth);

#define AQ_DISK_MARK UINT32_MAX /* in an event: the mark, no slot */

struct aq_disk_event {
    uint32_t slot;
    enum aq_status status;
};

enum aq_status aq_disk_open(const struct aq_disk_config *config, struct aq_disk **out); /* AQ_NOMEM, AQ_IO */
void aq_disk_close(struct aq_disk *disk); /* finishes what was asked for. NULL is fine */

/*
 * Asks for the message to be read into slot from its cell, whose first byte is at this offset of the slab, or written
 * to it from there; what is behind it in the slot, to a whole block, goes with it. The event's status: AQ_CORRUPT: it
 * cannot be read, or it is not what was sealed.
 */
void aq_disk_read(struct aq_disk *disk, uint32_t slot, uint64_t offset, const struct aq_vault_about *about);
void aq_disk_write(struct aq_disk *disk, uint32_t slot, uint64_t offset, const struct aq_vault_about *about);

struct aq_disk_mark {
    uint64_t mark;
    const struct aq_index_change *changes; /* lent until the event */
    uint64_t count;
    uint64_t entries;        /* messages held                                                   */
    bool lost;               /* messages were lost                                              */
    uint64_t failures_known; /* failed writes whose events were polled: the changes reckon with them */
};

/* Asks for a mark: its event is AQ_OK, AQ_IO or AQ_NOSPC (a write before it failed, or the commit did). One at a time.
 */
void aq_disk_mark(struct aq_disk *disk, const struct aq_disk_mark *mark);

bool aq_disk_poll(struct aq_disk *disk, struct aq_disk_event *out);

/* Sleeps until there may be an event to poll: AQ_OK or AQ_TIMEOUT. */
enum aq_status aq_disk_wait(struct aq_disk *disk, uint64_t deadline_ns);


#endif
