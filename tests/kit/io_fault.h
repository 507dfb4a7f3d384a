/*
 * io_fault.h -- fails the n-th call of a program into the files below one folder, or keeps what a crash before it
 * leaves.
 *
 * The calls of libc and liburing stand in io_fault.c under their own names, so that a test program that links it sees
 * all of them, also those of LMDB; nothing outside the folder is touched. Syncs are kept, not done: what a file had at
 * its last fsync (or wrote through O_DSYNC), and the names that a folder had at its own, is what a loss of power
 * leaves.
 *
 *     io_fault_begin(root, IO_FAULT_ERROR, n, EIO, NULL);
 *     ...                                   the code under test; n = 1, 2, ... until io_fault_end() says false
 *     const bool fired = io_fault_end();
 *
 * Locking: calls are counted under one lock, whichever thread makes them.
 */
#ifndef TESTS_IO_FAULT_H
#define TESTS_IO_FAULT_H

#include <stdbool.h>
#include <stdint.h>

enum io_fault_kind {
    IO_FAULT_NONE,
    IO_FAULT_ERROR,     /* the call fails with this errno, and does nothing                */
    IO_FAULT_INTERRUPT, /* a read or write fails with EINTR, once                          */
    IO_FAULT_SHORT,     /* a read or write moves half                                      */
    IO_FAULT_FULL,      /* a write moves half, and the next one nothing, with this errno    */
    IO_FAULT_KILL,      /* the folder as it is is copied: what kill -9 leaves              */
    IO_FAULT_POWER,     /* what is on the disk for certain is copied                       */
    IO_FAULT_MIXED      /* and of what was written and not synced, every other block, too  */
};

/* The n-th call from now on. A crash's copy goes to `copy`, a folder that is not there; `crashed` is called then. */
void io_fault_begin(const char *root, enum io_fault_kind kind, uint64_t n, int error, const char *copy,
                    void (*crashed)(void));
/* Was there an n-th call? */
bool io_fault_end(void);
const char *io_fault_call(void);  /* what it was: "fsync slab"                             */
bool io_fault_must_be_told(void); /* it was one whose failure may not be passed over      */

void io_fault_rings(bool there); /* false: io_uring is refused                           */
void io_fault_hold(bool hold);   /* writes wait in their calls until they are let go      */

/* Nobody is in a call meanwhile; recursive. */
void io_fault_lock(void);
void io_fault_unlock(void);

void io_fault_copy(const char *from, const char *to); /* a folder and all below it */
void io_fault_remove(const char *folder);
int io_fault_descriptors(void); /* how many are open */

#endif
