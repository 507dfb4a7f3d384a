/*
 * manifest.h -- a job with what it was made from: the tree (for places) and the pool (for memory). For manifest_*.c
 * only.
 */
#ifndef RUNTIME_MANIFEST_H
#define RUNTIME_MANIFEST_H

#include "job.h"
#include "keys.h"
#include "pool.h"
#include "yaml_tree.h"

struct aq_manifest {
    struct aq_job job; /* first: aq_job_close and aq_job_place get from the one to the other */
    struct aq_pool pool;
    struct aq_yaml_node *root;
    struct aq_yaml_errors errors;
    bool of_folder;   /* config.json of model.weights fills the model's missing keys */
    uint32_t unknown; /* errors that are unknown keys: they leave no value wrong, checks may follow */
    /* While reading: the job's arrays before they become const. */
    struct aq_job_stage *stages;
    struct aq_yaml_node **stage_nodes; /* of a list, NULL where the cut is automatic */
    struct aq_job_edge *edges;
};

/* An error at the node of a dotted key; for a key that is not set, at the manifest, and the text names the default.
 */
void aq_manifest_error(struct aq_manifest *manifest, const char *key, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* manifest_edges.c: fill manifest->edges from edges.* and the stages' views; unknown and ill-typed keys are errors.
 * AQ_NOMEM. */
enum aq_status aq_manifest_edges(struct aq_manifest *manifest);

/* manifest_stages.c: fill manifest->stages from pipeline.stages. AQ_NOMEM. */
enum aq_status aq_manifest_stages(struct aq_manifest *manifest);

/* manifest_optimizer.c: before the sections are read, the published settings of the kind that is asked for. */
void aq_manifest_optimizer_defaults(struct aq_manifest *manifest);

/* manifest_optimizer.c: after them, what replicas average in: reduce.* resolved into train.optimizer, and its fit. */
void aq_manifest_reduce(struct aq_manifest *manifest);

/* manifest_machines.c: does reduce.machine_first fit the optimizer and the hosts? */
void aq_manifest_machines(struct aq_manifest *manifest);

/* manifest_folder.c: after the sections, the model's values from config.json of a folder (model.weights). */
void aq_manifest_folder(struct aq_manifest *manifest);
/* manifest_adapter.c: after that, the adapters' values from PEFT's folder (lora.weights). AQ_NOMEM. */
enum aq_status aq_manifest_adapter(struct aq_manifest *manifest);

/* manifest_data.c: after them, the kind of the data where the manifest names none, from the first file. */
void aq_manifest_data(struct aq_manifest *manifest);

/* manifest_lora.c: after both, model.tied where an embedding or a head trains whole. */
void aq_manifest_untie(struct aq_manifest *manifest);
/* manifest_lora.c: what concerns the names in the keys of adapters. The model is checked. */
void aq_manifest_lora(struct aq_manifest *manifest, const struct aq_model_config *model);

/* manifest_adapter.c: the word of the model's layers and tensors that is nearest to one that none has; "": none is. */
void aq_manifest_nearest(const struct aq_model_config *model, uint32_t T, const char *unknown, char *out, size_t bytes);

/* manifest_rules.c: what keys.def says of keys that need or exclude each other. AQ_NOMEM. */
enum aq_status aq_manifest_rules(struct aq_manifest *manifest);

/* The checks of manifest_checks.def; their faults are errors of the manifest. Rates also reads train.schedule. */
#define AQ_CHECK(name, when) void aq_manifest_check_##name(struct aq_manifest *manifest);
#include "manifest_checks.def"

/* manifest_check.c: all of them, then the rules. AQ_NOMEM. */
enum aq_status aq_manifest_check(struct aq_manifest *manifest);

/* Read the scalar of node as key into base; ill-typed: an error with the name `path`. PATH is made absolute.
 * AQ_NOMEM. */
enum aq_status aq_manifest_scalar(struct aq_manifest *manifest, const struct aq_key *key,
                                  const struct aq_yaml_node *node, const char *path, void *base);

/* manifest_map.c: a section of keys that are not this program's, as JSON. AQ_NOMEM. */
enum aq_status aq_manifest_map(struct aq_manifest *manifest, const struct aq_key *key, const struct aq_yaml_node *node);

/* Error for a key that the table does not have: names its full path and the nearest key. */
void aq_manifest_unknown(struct aq_manifest *manifest, const struct aq_yaml_node *node, const char *path,
                         const char *name, struct aq_key_table table);

/*
 * Before the sections are read: nulls are dropped, other programs' names of keys and values become ours, and names
 * without an exact equivalent are errors. A value of --set wins over the file, by any of the names. Errors go to the
 * manifest's.
 */
void aq_manifest_aliases(struct aq_manifest *manifest);

#endif
