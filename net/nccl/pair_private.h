/*
 * pair_private.h -- what the two kinds of pairs are to net/pair.h: a const table each, and the counts of both.
 */
#ifndef NET_PAIR_PRIVATE_H
#define NET_PAIR_PRIVATE_H

#include "net/pair.h"

struct aq_pair_ops {
    enum aq_status (*poll)(struct aq_pair *pair);
    enum aq_status (*failed)(const struct aq_pair *pair); /* NULL: it never says AQ_NCCLERR */
    void (*note)(struct aq_pair *pair, void *at, size_t bytes); /* of move `noted` */
    void (*close)(struct aq_pair *pair);
};

struct aq_pair {
    const struct aq_pair_ops *ops;
    bool sends;
    uint64_t noted, passed;
};

/* As aq_pair_open, of each kind; AQ_NODEV where it is not built. */
enum aq_status aq_pair_open_nccl(const struct aq_pair_config *config, struct aq_pair **out);
enum aq_status aq_pair_open_ipc(const struct aq_pair_config *config, struct aq_pair **out);

/* Of those over NCCL; others have nothing that waits. */
void aq_pairs_abandon_nccl(struct aq_pair *const *pairs, uint32_t count);

#endif
