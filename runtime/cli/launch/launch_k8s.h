/*
 * launch_k8s.h -- `aqpipe launch --on k8s`: the job as manifests of Kubernetes', written from the job's own.
 *
 * A StatefulSet of daemons, one pod a worker (stages x replicas), behind a headless Service that names them; a Job with
 * the launcher, which resumes by itself. All of a run's paths are on one claim that every pod mounts at the same place;
 * caches are on a disk of each pod's own; keys come from a Secret. Nothing is sent to a cluster. docs/CLUSTERS.md.
 *
 * Locking: one thread.
 */
#ifndef RUNTIME_LAUNCH_K8S_H
#define RUNTIME_LAUNCH_K8S_H

#include "options.h"
#include "plan.h"

struct aq_k8s {
    const struct aq_plan *plan;      /* and its job: no stage has a host                              */
    const char *manifest;            /* its path                                                      */
    const struct aq_arguments *sets; /* "key=value", for the launcher                                 */
    const char *image;               /* of containers with aqpipe and aqpiped in their PATH           */
    const char *claim;               /* a PersistentVolumeClaim, ReadWriteMany                        */
    const char *mount;               /* where pods and this machine have it; NULL: the manifest's folder */
    uint32_t restarts, warning_s;    /* of the launcher; how long a pod has between SIGTERM and SIGKILL */
    bool print;                      /* to standard output; else RUN.k8s.yaml                         */
};

/* AQ_INVAL: no image or claim, a path outside the mount, a stage with a host. */
enum aq_status aq_k8s_manifests(const struct aq_k8s *k8s, struct aq_text *out);

/* Writes or prints them; answers an exit status. */
int aq_k8s_write(const struct aq_k8s *k8s);

#endif
