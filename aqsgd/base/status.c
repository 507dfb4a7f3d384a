/*
 * status.c -- status texts, and the first error of the process.
 *
 * The first text is kept under a flag that only one thread can win; it is published by a release store, so that a
 * reader on another thread sees it whole or not at all.
 */
#include "aqsgd/base/status.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "aqsgd/base/log.h"
#include "aqsgd/base/printable.h"

enum { TEXT_BYTES = AQ_ERROR_BYTES };

static char first_text[TEXT_BYTES];
static _Thread_local struct aq_error_hold *held;
static atomic_int first_taken; /* pairs with the exchange in keep_first                        */
static atomic_int first_ready; /* release in keep_first, acquire in aq_error_text              */

static const char *const texts[AQ_STATUS_COUNT] = {
    [AQ_OK] = "ok",
    [AQ_INVAL] = "invalid",
    [AQ_NOMEM] = "no memory",
    [AQ_NOSPC] = "no space",
    [AQ_AGAIN] = "not now",
    [AQ_TIMEOUT] = "timed out",
    [AQ_CLOSED] = "closed",
    [AQ_REFUSED] = "refused",
    [AQ_PROTO] = "protocol violated",
    [AQ_CORRUPT] = "corrupt",
    [AQ_MISMATCH] = "mismatch",
    [AQ_NODEV] = "not on this machine",
    [AQ_CUDAERR] = "CUDA error",
    [AQ_NCCLERR] = "NCCL error",
    [AQ_TLSERR] = "TLS error",
    [AQ_IO] = "input/output error",
    [AQ_ABORTED] = "aborted",
    [AQ_NOTFOUND] = "not found",
};

const char *aq_status_text(enum aq_status status)
{
    if ((int)status < 0 || status >= AQ_STATUS_COUNT) return "unknown status";
    return texts[status];
}

enum aq_status aq_status_errno(int error)
{
    switch (error) {
    case 0:
        return AQ_OK;
    case EINVAL:
        return AQ_INVAL;
    case ENOMEM:
        return AQ_NOMEM;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
        return AQ_NOSPC;
    case EAGAIN:
    case EINTR:
        return AQ_AGAIN;
    case ETIMEDOUT:
        return AQ_TIMEOUT;
    case EPIPE:
    case ECONNRESET:
        return AQ_CLOSED;
    case EACCES:
    case EPERM:
    case EADDRINUSE:
    case EROFS:
    case EBUSY:
    case ECONNREFUSED:
        return AQ_REFUSED;
    case ENOENT:
    case ENOTDIR:
        return AQ_NOTFOUND;
    case ENODEV:
    case ENOSYS:
        return AQ_NODEV;
    default:
        return AQ_IO;
    }
}

static void keep_first(const char *text)
{
    if (atomic_exchange_explicit(&first_taken, 1, memory_order_relaxed) != 0) return;
    (void)aq_printable(text, strlen(text), true, first_text, sizeof first_text); /* it goes into reports and JSON */
    atomic_store_explicit(&first_ready, 1, memory_order_release);
}

enum aq_status aq_fail(enum aq_status status, const char *area, const char *format, ...)
{
    if (status == AQ_AGAIN || status == AQ_OK) return status;
    char text[TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (held) {
        if (!held->text[0]) memcpy(held->text, text, sizeof held->text);
        return status;
    }
    keep_first(text);
    aq_log(area, 0, "%s", text);
    return status;
}

void aq_error_hold(struct aq_error_hold *hold)
{
    hold->text[0] = '\0';
    hold->outer = held;
    held = hold;
}

void aq_error_release(struct aq_error_hold *hold)
{
    AQ_ASSERT(held == hold);
    held = hold->outer;
}

const char *aq_errno_text(int error, char *text, size_t bytes)
{
    char reason[128];
    const char *why = strerror_r(error, reason, sizeof reason), *remedy = "";
    if (error == EFBIG) remedy = ": the file exceeds a size limit (ulimit -f, or the file system's): raise the limit";
    if (error == EDQUOT) remedy = ": free disk space, or have the quota raised";
    snprintf(text, bytes, "%s%s", why, remedy);
    return text;
}

enum aq_status aq_fail_errno(const char *area, const char *format, ...)
{
    const int error = errno;
    char text[TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    char reason[160];
    return aq_fail(aq_status_errno(error), area, "%s: %s", text, aq_errno_text(error, reason, sizeof reason));
}

const char *aq_error_text(void)
{
    return atomic_load_explicit(&first_ready, memory_order_acquire) ? first_text : "";
}

void aq_error_clear(void)
{
    atomic_store_explicit(&first_ready, 0, memory_order_relaxed);
    atomic_store_explicit(&first_taken, 0, memory_order_relaxed);
}

void aq_assert_failed(const char *condition, const char *file, int line)
{
    aq_log("assert", 0, "%s:%d: %s does not hold: this is a bug of aqpipe", file, line, condition);
    abort();
}
