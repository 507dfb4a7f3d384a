/*
 * tls_keys.h -- a folder of keys for a test, in a folder of its own below /tmp; removed at the end.
 */
#ifndef TESTS_TLS_KEYS_H
#define TESTS_TLS_KEYS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "net/tls.h"

enum { KEYS_PATH_BYTES = 64, KEYS_STAGES = 4 };

static inline void keys_make(char folder[KEYS_PATH_BYTES], const char *job)
{
    const int64_t now = (int64_t)time(NULL);
    snprintf(folder, KEYS_PATH_BYTES, "/tmp/aqpipe-keys-XXXXXX");
    assert_non_null(mkdtemp(folder));
    assert_int_equal(aq_tls_make_authority(folder, job, now - 3600, now + 86400), AQ_OK);
    for (uint32_t s = 0; s < KEYS_STAGES; s++)
        assert_int_equal(aq_tls_make(folder, AQ_TLS_STAGE, s, now - 3600, now + 86400), AQ_OK);
    assert_int_equal(aq_tls_make(folder, AQ_TLS_LAUNCHER, 0, now - 3600, now + 86400), AQ_OK);
    assert_int_equal(aq_tls_make_daemon(folder, "here", now - 3600, now + 86400), AQ_OK);
}

static inline void keys_remove(const char *folder)
{
    static const char *const files[] = {"authority.pem", "authority-key.pem", "launcher.pem", "daemon-here.pem",
                                        "issued",        "revoked.pem"};
    char path[KEYS_PATH_BYTES + 32];
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, files[i]);
        (void)unlink(path);
    }
    for (uint32_t s = 0; s < KEYS_STAGES; s++) {
        snprintf(path, sizeof path, "%s/stage-%u.pem", folder, s);
        (void)unlink(path);
    }
    assert_int_equal(rmdir(folder), 0);
}

#endif
