/*
 * given_file.h -- a file whose path a user gave (a manifest, data, weights, a tokenizer): its links are followed, and
 * anything but a regular file is refused before it is read.
 *
 * The one way in for such paths: open() would hang on a FIFO without a writer, and reading a device may never end.
 * Files whose names are ours, in folders where others may write, are file.h's.
 *
 * Locking: pure functions over the file system, any thread.
 */
#ifndef AQSGD_BASE_GIVEN_FILE_H
#define AQSGD_BASE_GIVEN_FILE_H

#include "aqsgd/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Opens for reading; *fd is the caller's to close. area: of the message. AQ_NOTFOUND: no such file. AQ_INVAL: it is
 * a FIFO, a device, a socket or a folder. AQ_IO: it cannot be opened. All are logged and name the file.
 */
enum aq_status aq_given_open(const char *area, const char *path, int *fd);

/*
 * AQ_INVAL (logged): a file of data has a hole, like a sparse file of a terabyte that takes no disk: it would be read
 * as zeroes, and take memory and time by its length. On file systems without holes every file is whole.
 */
enum aq_status aq_given_whole(const char *area, const char *path, int fd);

#ifdef __cplusplus
}
#endif
#endif
