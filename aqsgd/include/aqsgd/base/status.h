/*
 * status.h -- the results of functions, and how an error gets its one line.
 *
 * Three classes of trouble, never mixed:
 *   our own bug            AQ_ASSERT, stays on in release builds;
 *   the world              a status, passed up unchanged;
 *   bytes from outside     a status (AQ_PROTO, AQ_CORRUPT, AQ_INVAL), never an assertion.
 *
 * The first site that sees trouble calls aq_fail() once, with the numbers; its callers only pass the status up
 * (AQ_TRY). Results come by out-parameter and are written only on success.
 *
 * Locking: aq_fail and aq_error_text may be called from any thread.
 */
#ifndef AQSGD_BASE_STATUS_H
#define AQSGD_BASE_STATUS_H

#include <errno.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum aq_status {
    AQ_OK = 0,
    AQ_INVAL = 1,     /* the caller or the user asked for something that cannot be                  */
    AQ_NOMEM = 2,     /* memory could not be had                                                    */
    AQ_NOSPC = 3,     /* a disk, map or buffer is full                                              */
    AQ_AGAIN = 4,     /* not now; ask again after the next event. Never logged                      */
    AQ_TIMEOUT = 5,   /* the deadline passed                                                        */
    AQ_CLOSED = 6,    /* the other side closed in good order                                        */
    AQ_REFUSED = 7,   /* the other side, or the system, refused (port in use, no permission)        */
    AQ_PROTO = 8,     /* bytes from a peer that the protocol does not allow                         */
    AQ_CORRUPT = 9,   /* bytes from a disk or peer whose checksum or structure is wrong             */
    AQ_MISMATCH = 10, /* well-formed, but of another job, plan, version or shape                    */
    AQ_NODEV = 11,    /* the device, library or kernel feature is not on this machine               */
    AQ_CUDAERR = 12,  /* CUDA failed (its text is in the log line)                                  */
    AQ_NCCLERR = 13,  /* NCCL failed                                                                */
    AQ_TLSERR = 14,   /* TLS failed                                                                 */
    AQ_IO = 15,       /* a read or write failed                                                     */
    AQ_ABORTED = 16,  /* given up because another rank or the user asked for it                     */
    AQ_NOTFOUND = 17, /* there is no such key, file or name. Not logged where it is an answer       */
    AQ_STATUS_COUNT = 18
};

/* The status in a word or two ("no space", "corrupt"). Never NULL, also for numbers that are no status. */
const char *aq_status_text(enum aq_status status);

/* The status of an errno of the last system call (ENOSPC -> AQ_NOSPC, EADDRINUSE -> AQ_REFUSED, ...). */
enum aq_status aq_status_errno(int error);

/* The text of an errno, and the remedy where strerror leaves it open (a file size limit, a quota). Returns `text`. */
const char *aq_errno_text(int error, char *text, size_t bytes);

/*
 * aq_fail -- report once, in one line, what went wrong and where; returns `status` so that `return aq_fail(...)` reads
 * well.
 *
 * area is the module ("net", "cache", ...), format a sentence with the numbers and, where there is one, the remedy. The
 * line goes to the log as an error, and the first one of the process is kept for aq_error_text(). AQ_AGAIN is never
 * logged.
 */
enum aq_status aq_fail(enum aq_status status, const char *area, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* As aq_fail, with ": <text of errno>" at the end and the status of that errno. Reads errno at entry. */
enum aq_status aq_fail_errno(const char *area, const char *format, ...) __attribute__((format(printf, 2, 3)));

/*
 * Between the two calls the line of aq_fail on this thread is kept in `text` (of several lines the first; "" without
 * any) instead of the log, and is not the process' first error: for a caller that reports it in its own line. Holds may
 * nest; each is released by its holder, the last one first.
 */
enum { AQ_ERROR_BYTES = 1024 };
struct aq_error_hold {
    char text[AQ_ERROR_BYTES];
    struct aq_error_hold *outer; /* private */
};
void aq_error_hold(struct aq_error_hold *hold);
void aq_error_release(struct aq_error_hold *hold);

/* The text of the first aq_fail of this process, "" where there was none. Valid until the process ends. */
const char *aq_error_text(void);

/* Forget the first error (tests; a supervisor that has dealt with it). Not to be called while other threads run. */
void aq_error_clear(void);

/* Called by AQ_ASSERT. Prints the condition and its place, then aborts. */
void aq_assert_failed(const char *condition, const char *file, int line) __attribute__((noreturn));

#define AQ_ASSERT(condition) ((condition) ? (void)0 : aq_assert_failed(#condition, __FILE__, __LINE__))

/* For inner loops: on in debug builds only. */
#ifdef NDEBUG
#define AQ_DEBUG(condition) ((void)sizeof(condition))
#else
#define AQ_DEBUG(condition) AQ_ASSERT(condition)
#endif

/* Pass a failure up. */
#define AQ_TRY(call)                                                                                                   \
    do {                                                                                                               \
        enum aq_status aq_try_ = (call);                                                                               \
        if (aq_try_ != AQ_OK) return aq_try_;                                                                          \
    } while (0)

/* Go to the function's one label with `status` set; `status` is the local variable of that name. */
#define AQ_TRY_GOTO(call, label)                                                                                       \
    do {                                                                                                               \
        status = (call);                                                                                               \
        if (status != AQ_OK) goto label;                                                                               \
    } while (0)

/* A system call that answers -1 and errno: on failure log which call, where, and why, and return the errno's status. */
#define AQ_SYS(call)                                                                                                   \
    do {                                                                                                               \
        if ((call) == -1) return aq_fail_errno("system", "%s:%d: %s", __FILE__, __LINE__, #call);                      \
    } while (0)

#ifdef __cplusplus
}
#endif
#endif
