/*
 * security.h -- is a job under TLS, and where does a worker find its keys?
 *
 * Locking: pure functions; aq_security_folder reads the environment.
 */
#ifndef RUNTIME_SECURITY_H
#define RUNTIME_SECURITY_H

#include "job.h"

/* The first address of the job, of a link or a daemon, that is not this machine's own (net/endpoint.h); NULL: all
 * are. */
const char *aq_security_outside(const struct aq_job *job);

/* Is this host:port, or only this host, this machine's own? A text that is no address is not. */
bool aq_security_inside(const char *address);
bool aq_security_inside_host(const char *host);

/* Are the job's links and daemons under mutual TLS? security.tls: on, off, or auto: if an address is outside, or
 * keys are named: an aqpiped with keys rejects peers without. */
bool aq_security_on(const struct aq_job *job);

/* The folder of a worker's own keys: that of the daemon that started it (aqpiped --keys), else security.keys. */
#define AQ_SECURITY_WORKER_KEYS "AQPIPE_WORKER_KEYS"
const char *aq_security_folder(const struct aq_job *job);

#endif
