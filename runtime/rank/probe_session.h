/*
 * probe_session.h -- two ends of a link measure it together: round trips of small and large frames, then load one way
 * and the other (docs/CONTROL.md section 9 has the frames).
 *
 * The end that connected asks, the other end answers; both make the same call. The peer is a stranger with a
 * certificate: a frame that is not due is AQ_PROTO, every wait has an end, and nothing of it is kept but counts.
 *
 *     aq_probe_link_config(&config);           what the session needs of a link, on top of what the job has
 *     ... connect or accept ...
 *     status = aq_probe_session(link, eventcount, connected, &figures, &phase);
 *
 * Locking: the thread that polls the link, which polls no other meanwhile.
 */
#ifndef RUNTIME_PROBE_SESSION_H
#define RUNTIME_PROBE_SESSION_H

#include "probe_figures.h"

/*
 * Sizes, no pacing, no packing, no sums of stripes, no healing: what the network does is to be seen. The rest of config
 * is kept.
 */
void aq_probe_link_config(struct aq_link_config *config);

/*
 * Blocks for 75 s at most. *phase: how far it came. AQ_OK: *out is full, and both ends have finished. AQ_TIMEOUT:
 * something that was due did not come. AQ_PROTO: the peer sent what was not due. AQ_NOMEM; or as the link ended.
 * Logged. The link must still be closed.
 */
enum aq_status aq_probe_session(struct aq_link *link, struct aq_eventcount *eventcount, bool connected,
                                struct aq_probe_figures *out, enum aq_probe_phase *phase);

#endif
