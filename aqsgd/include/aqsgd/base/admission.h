/*
 * admission.h -- which connection gets a place at a listener, and which gives way: one rule for all listeners.
 *
 * A listener has a fixed number of places. Connections without a handshake cost a stranger nothing, so that he can open
 * any number of them; many addresses are harder to get. So:
 *
 * - one source (an IPv4 address, or an IPv6 network of 64 bits) has at most half of the places;
 * - without a place (or if the source has its half), an unproved connection of the most crowded source is closed: the
 *   one that has waited longest, once that was AQ_ADMISSION_GRACE_NS, so that places held half open come free; before
 *   that the new one of the crowded source;
 * - a connection that has proved itself never gives way.
 *
 * A peer that is let in has the grace for its handshake, however many connections a second the others of its source
 * open; one of a source that is not crowded is let in at once.
 *
 *     index = aq_admit(guests, count, source, aq_clock_ns());
 *     if (index == AQ_ADMISSION_REFUSED) close the newcomer;
 *     else if (guests[index].state != AQ_GUEST_NONE) close that one; the newcomer has its place
 *
 * Locking: pure functions.
 */
#ifndef AQSGD_BASE_ADMISSION_H
#define AQSGD_BASE_ADMISSION_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { AQ_ADMISSION_PLACES_MAX = 1024 };
#define AQ_ADMISSION_REFUSED  UINT32_MAX
#define AQ_ADMISSION_GRACE_NS UINT64_C(1000000000) /* two round trips of 400 ms, and some time to sign */

enum aq_guest_state {
    AQ_GUEST_NONE,     /* the place is free             */
    AQ_GUEST_UNPROVED, /* it may give way               */
    AQ_GUEST_PROVED    /* it has its place until it goes */
};

struct aq_guest {
    uint64_t source;   /* aq_source_of                  */
    uint64_t since_ns; /* when it came                  */
    enum aq_guest_state state;
};

/*
 * The source of an address in network order: of 4 bytes all of them, of 16 the network (the first 8), but of an IPv4
 * address in IPv6 (::ffff:a.b.c.d) as of that address. 0: any other number of bytes, all of them one source.
 */
uint64_t aq_source_of(const void *address, uint32_t address_bytes);

/*
 * The place of a new connection from `source`: the index of a free place, or of an unproved guest that has to leave it.
 * AQ_ADMISSION_REFUSED: the new connection must be closed. count: the listener's places, at most
 * AQ_ADMISSION_PLACES_MAX.
 */
uint32_t aq_admit(const struct aq_guest *guests, uint32_t count, uint64_t source, uint64_t now_ns);

#ifdef __cplusplus
}
#endif
#endif
