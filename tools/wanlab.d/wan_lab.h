/*
 * wan_lab.h -- a wide-area network on one machine: ends (network namespaces) and a line from each to each other.
 *
 * Each end is a namespace with a TUN device `wan0`, 10.79.0.(end + 1)/24; one process moves the packets of all of them
 * (wan_line.h). Root, no netem, no iproute2. Nothing has a name in the file system, and everything hangs off that one
 * process: it is the first of a process namespace, so that whatever the command leaves behind ends with it, and it
 * ends with its caller, however that ends. There is nothing to clean up, after a kill -9 either.
 *
 *     struct aq_wan_lab lab = {.ends = 4, .mtu = 1500, .seed = 1, .run = work};
 *     lab.changes[lab.change_count++] = (struct aq_wan_change){.given = AQ_WAN_RATE, .ahead.rate_mbps = 100, ...};
 *     AQ_TRY(aq_wan_lab_run(&lab, &code));     // work(context) runs at end 0; code is what it answered
 *
 * At an end, in `work` or in what it starts: aq_wan_enter puts a process at another end, aq_wan_tell changes lines.
 *
 * Locking: aq_wan_lab_run from a process without other threads (it forks); the others from any process in the lab.
 */
#ifndef TOOLS_WAN_LAB_H
#define TOOLS_WAN_LAB_H

#include "wan_line.h"

enum { AQ_WAN_ENDS_MAX = 32, AQ_WAN_CHANGES_MAX = 64, AQ_WAN_NAME_BYTES = 16, AQ_WAN_ALL = -1 };

enum { /* what of a change is given */
       AQ_WAN_RATE = 1,
       AQ_WAN_DELAY = 2,
       AQ_WAN_JITTER = 4,
       AQ_WAN_LOSS = 8,
       AQ_WAN_QUEUE = 16,
       AQ_WAN_BLACKHOLE = 32,
       AQ_WAN_CONGESTION = 64
};

/*
 * New rules for some lines, at a time. Of all (from and to AQ_WAN_ALL): `ahead` is from lower to higher ends, `back`
 * from higher to lower. Of a link: from `from` to `to`, and back. Of an end (to AQ_WAN_ALL): out of it, and into it.
 */
struct aq_wan_change {
    uint64_t at_ns; /* from when the command began; aq_wan_tell: from now */
    int32_t from, to;
    uint32_t given;
    struct aq_wan_rules ahead, back;
    char congestion[AQ_WAN_NAME_BYTES]; /* of sockets that the ends open from then on: bbr, cubic, reno */
};

struct aq_wan_lab {
    uint32_t ends, mtu;
    uint64_t seed;
    bool stats; /* lines and what they did, on standard error, at the end */
    uint32_t change_count;
    struct aq_wan_change changes[AQ_WAN_CHANGES_MAX]; /* in order of time */
    int (*run)(void *context);                        /* in its own process at end 0: its exit status */
    void *context;
};

/* The requirement of a lab that this process or machine lacks, with the remedy; NULL: none. */
const char *aq_wan_lab_cannot(void);

/*
 * Build it, run, take it down; *code: what `run` answered, 128 + n where signal n ended it. A SIGINT or SIGTERM to this
 * process is passed on to that one, which then has ten seconds. AQ_NODEV, AQ_REFUSED, AQ_IO: the cause is logged.
 */
enum aq_status aq_wan_lab_run(const struct aq_wan_lab *lab, int *code);

/* Ends of the lab that this process is in; 0: it is in none. */
uint32_t aq_wan_ends(void);

/* Moves this process, and its later children, to that end. AQ_NOTFOUND: no such end (not logged). */
enum aq_status aq_wan_enter(uint32_t end);

/* Change the lines now, or at_ns from now. AQ_NOTFOUND: this process is in no lab (not logged). */
enum aq_status aq_wan_tell(const struct aq_wan_change *change);

/* NULL, or the fault of a change in a lab of `ends` ends. */
const char *aq_wan_change_wrong(const struct aq_wan_change *change, uint32_t ends);

#endif
