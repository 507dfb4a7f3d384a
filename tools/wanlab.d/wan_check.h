/*
 * wan_check.h -- `wanlab --check`: does a lab do what was asked of it?
 *
 * Locking: from a process without other threads.
 */
#ifndef TOOLS_WAN_CHECK_H
#define TOOLS_WAN_CHECK_H

/*
 * Build a lab, measure it, print a line per figure. The exit status: 0, every one is within 5 %; 1; 77, no lab is
 * possible here (printed).
 */
int aq_wan_check(void);

#endif
