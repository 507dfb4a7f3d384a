/*
 * yaml_tree.h -- YAML text as a small tree of nodes with places; the only module that uses libyaml.
 *
 * Any bytes are safe: size, depth and count of nodes are bounded; anchors, aliases, tags and further documents are
 * refused, so that a short text can never expand to a long one. Keys are plain texts; a key given twice is an error.
 *
 * Locking: one thread a tree.
 */
#ifndef RUNTIME_YAML_TREE_H
#define RUNTIME_YAML_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "aqsgd/base.h"
#include "pool.h"

enum {
    AQ_YAML_BYTES_MAX = 256 * 1024, /* a manifest is a page; the longest list of stages and edges fits 50 times */
    AQ_YAML_DEPTH_MAX = 16,         /* edges.list.N.forward.bits needs 5                                        */
    AQ_YAML_NODES_MAX = 8192
};

enum aq_yaml_kind { AQ_YAML_SCALAR = 1, AQ_YAML_LIST = 2, AQ_YAML_MAP = 3 };

struct aq_yaml_node {
    enum aq_yaml_kind kind;
    bool quoted;                /* a scalar in quotes is a text, whatever it looks like                  */
    uint32_t line, column;      /* from 1; of the key where there is one                               */
    const char *source;         /* file, or "--set train.batch": then line is 0                          */
    const char *key;            /* in a map, else NULL                                                   */
    const char *text;           /* of a scalar                                                           */
    struct aq_yaml_node *first; /* of a list or map                                               */
    struct aq_yaml_node *next;  /* sibling                                                        */
};

/* Collects errors: prints "source:line:column: text" by aq_fail, counts, and stops printing after limit. */
struct aq_yaml_errors {
    uint32_t count, limit;
};
void aq_yaml_error(struct aq_yaml_errors *errors, const struct aq_yaml_node *node, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* "job.yaml:12:7" or "--set train.batch". */
void aq_yaml_place(const struct aq_yaml_node *node, char *text, size_t bytes);

/*
 * The tree of text. An empty text is an empty map. fixed_place: the place of every node is only `source` (--set).
 * AQ_INVAL (reported through errors; *out is set if the only errors are doubled keys), AQ_NOMEM.
 */
enum aq_status aq_yaml_parse(struct aq_pool *pool, const char *text, size_t bytes, const char *source, bool fixed_place,
                             struct aq_yaml_errors *errors, struct aq_yaml_node **out);

/* The child of a map by key (length given), or of a list by number; NULL. */
struct aq_yaml_node *aq_yaml_child(const struct aq_yaml_node *node, const char *key, size_t bytes);

/* By dotted path "edges.list.0.forward"; NULL. */
struct aq_yaml_node *aq_yaml_find(struct aq_yaml_node *root, const char *path);

/* Put value at the dotted path, in place of the present one; missing maps on the way are made. AQ_INVAL: reported. */
enum aq_status aq_yaml_graft(struct aq_pool *pool, struct aq_yaml_node *root, const char *path,
                             struct aq_yaml_node *value, struct aq_yaml_errors *errors);

#endif
