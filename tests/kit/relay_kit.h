/*
 * relay_kit.h -- a relay on a thread of its own, for tests of what meets at one.
 */
#ifndef TESTS_RELAY_KIT_H
#define TESTS_RELAY_KIT_H

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cmocka.h>

#include "net/relay.h"

struct relay_kit {
    struct aq_relay *relay;
    struct aq_thread *thread;
    uint16_t port;
    int stop;
};

static inline void relay_kit_run(void *context)
{
    struct relay_kit *kit = context;
    AQ_ASSERT(aq_link_relay_run(kit->relay, kit->stop) == AQ_OK);
}

/* At that port; 0: the system chooses. */
static inline void relay_kit_open(struct relay_kit *kit, uint16_t port, double rate_mbps, uint32_t connections)
{
    char listen[32];
    snprintf(listen, sizeof listen, "127.0.0.1:%u", port);
    const struct aq_relay_config config = {.listen = listen, .rate_mbps = rate_mbps, .connections = connections};
    kit->stop = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    assert_int_not_equal(kit->stop, -1);
    assert_int_equal(aq_link_relay_open(&config, &kit->relay, &kit->port), AQ_OK);
    assert_int_equal(aq_thread_open("relay", relay_kit_run, kit, &kit->thread), AQ_OK);
}

static inline void relay_kit_close(struct relay_kit *kit, struct aq_relay_stats *stats)
{
    const uint64_t one = 1;
    assert_int_equal(write(kit->stop, &one, sizeof one), sizeof one);
    aq_thread_close(kit->thread);
    if (stats) aq_link_relay_stats(kit->relay, stats);
    aq_link_relay_close(kit->relay);
    close(kit->stop);
}

#endif
