/*
 * launch_ssh.h -- `aqpipe launch --on ssh`: each stage's host as ssh://HOST, from --hosts or from the manifest.
 *
 * The launcher starts an agent on each (launch/launcher_ssh.c) and ends it with the job. docs/CLUSTERS.md.
 *
 * Locking: pure functions.
 */
#ifndef RUNTIME_LAUNCH_SSH_H
#define RUNTIME_LAUNCH_SSH_H

#include "job.h"
#include "runtime_text.h"

/* --hosts "A,B": one [USER@]HOST[:PORT] a rank, those of replica 0 first, as settings of the manifest, a line each. A
 * stage without an address gets that of its host, at a port of the system's choice. AQ_INVAL: no hosts, or not as many
 * as ranks. local: a host that is an address of this machine needs no ssh: its stages run here. */
enum aq_status aq_ssh_settings(const struct aq_job *job, const char *hosts, bool local, struct aq_text *out);

/* AQ_INVAL: a stage's host is not ssh://... */
enum aq_status aq_ssh_check(const struct aq_job *job);

#endif
